"""What the tests load: a node of kube-router's among neighbours, and the same without a part of it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, Phase, settings

import firewall_cleanup
from firewall_cleanup import Backend, CleanupReport, Controller, Family, Status, cleanup
from firewall_cleanup.handlers._namespace import Namespace
from firewall_cleanup.handlers._nft import NftConnection
from firewall_cleanup.testing.foreign import foreign_nft, foreign_rules, foreign_sets, interleave
from firewall_cleanup.testing.namespaces import Sandbox, State
from firewall_cleanup.testing.node import Node

few = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
"""For laws whose examples take seconds, not milliseconds: no shrinking, and the same examples in each run."""

ALL = frozenset(Controller)
SELECTIONS = {**{controller.value: frozenset({controller}) for controller in Controller}, "all": ALL}
NODES = {
    "default": Node(),
    "default-deny": Node(default_deny=True),
    "k3s": Node(k3s=True),
    "historic": Node(historic=True),
    "nft-netpol": Node(nft_netpol=True),
    "no-random-fully": Node(random_fully=False),
}

_ROUTING_COMMENTS = (
    '"allow outbound traffic from pods"',
    '"allow inbound traffic to pods"',
    '"allow outbound node port traffic on node interface with which node ip is associated"',
)


def rule_owner(table: str, line: str) -> Controller:
    """Whose a rule or chain of the node is, written down apart from how the cleanup knows it."""
    if table == "mangle" or "KUBE-ROUTER-SERVICES" in line or "KUBE-ROUTER-HAIRPIN" in line or "-m ipvs" in line:
        return Controller.SERVICE_PROXY
    if table == "nat" or any(comment in line for comment in _ROUTING_COMMENTS):
        return Controller.ROUTING
    return Controller.NETWORK_POLICY


def set_owner(name: str) -> Controller | None:
    name = name.removeprefix("inet6:")
    if name.startswith("TMP-"):
        return None
    if name.startswith(("kube-router-pod-subnets", "kube-router-node-ips")):
        return Controller.ROUTING
    if name.startswith(("KUBE-SRC-", "KUBE-DST-", "kube-router-local-pods")):
        return Controller.NETWORK_POLICY
    return Controller.SERVICE_PROXY


@attrs.frozen
class Scene:
    """A node among neighbours, every rule and every policy with counters of its own."""

    node: Node
    backend: Backend
    neighbours: bool = True

    def rules(self, family: Family, gone: frozenset[Controller] = frozenset()) -> str:
        """The rules, without those that belong to the controllers in `gone`."""
        own = self.node.iptables_save(family.value)
        text = interleave(own, foreign_rules(family.value, self.backend.value)) if self.neighbours else own
        owned = _lines_by_table(own)
        table = ""
        kept = []
        for line in with_counters(text).splitlines():
            if line.startswith("*"):
                table = line[1:]
            bare = without_counters(line)
            mine = bare in owned.get(table, ()) and bare.startswith((":KUBE-", "-A "))
            if not (mine and rule_owner(table, bare) in gone):
                kept.append(line)
        return "\n".join(kept) + "\n"

    def sets(self, gone: frozenset[Controller] = frozenset()) -> str:
        own = self.node.ipsets() + self.node.temporary_sets()
        kept = [
            line
            for line in own.splitlines()
            if not gone or ((owner := set_owner(line.split()[1])) is not None and owner not in gone)
        ]
        return "".join(f"{line}\n" for line in kept) + (foreign_sets() if self.neighbours else "")

    def tables(self, gone: frozenset[Controller] = frozenset()) -> str:
        own = "" if Controller.NETWORK_POLICY in gone else self.node.nft_tables()
        return own + (foreign_nft() if self.neighbours else "")

    def load(
        self,
        sandbox: Sandbox,
        gone: frozenset[Controller] = frozenset(),
        families: Iterable[Family] = tuple(Family),
    ) -> State:
        """Load it and return the state that this makes."""
        sandbox.load_sets(self.sets(gone))
        sandbox.load_tables(self.tables(gone))
        for family in families:
            sandbox.load_rules(self.rules(family, gone), family, self.backend)
        return sandbox.state()


def _lines_by_table(save: str) -> dict[str, set[str]]:
    tables: dict[str, set[str]] = {}
    for line in save.splitlines():
        if line.startswith("*"):
            current = tables.setdefault(line[1:], set())
        else:
            current.add(without_counters(line))
    return tables


def with_counters(save: str) -> str:
    """Give each rule and each built-in chain counters that depend on what it says and are not zero."""
    return "".join(f"{_with_counters(line)}\n" for line in save.splitlines())


def _with_counters(line: str) -> str:
    packets = zlib.crc32(without_counters(line).encode()) % 9000 + 1
    if line.startswith("-A "):
        return f"[{packets}:{packets * 60}] {line}"
    if line.startswith(":") and line.split()[1] != "-":
        chain, policy = line.split()[:2]
        return f"{chain} {policy} [{packets}:{packets * 60}]"
    return line


def without_counters(line: str) -> str:
    if line.startswith("["):
        return line.split("] ", 1)[1]
    return line.rpartition(" [")[0] if line.startswith(":") else line


@attrs.frozen
class Killed:
    """What a kill between the two calls in which the kernel takes a legacy table and its counters has cost.

    Such a table, of which there can be one, has counters of zero; DESIGN.md says why. It is compared without them.
    """

    lost: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, before: State, after: State) -> Killed:
        had, has = _counted_tables(before), _counted_tables(after)
        there = {(save, name) for save, text in after.rules.items() for name, _lines in _tables_of(text)}
        lost = frozenset(place for place in (had - has) & there if "legacy" in place[0])
        assert len(lost) <= 1, lost
        return cls(lost)

    def forgiven(self, state: State) -> State:
        rules = {
            save: "".join(
                f"{without_counters(line) if (save, name) in self.lost else line}\n"
                for name, lines in _tables_of(text)
                for line in lines
            )
            for save, text in state.rules.items()
        }
        return attrs.evolve(state, rules=rules)


def _tables_of(text: str) -> list[tuple[str, list[str]]]:
    tables: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("*") or not tables:
            tables.append((line[1:], []))
        tables[-1][1].append(line)
    return tables


def _counted_tables(state: State) -> frozenset[tuple[str, str]]:
    """The tables, by the command that prints them, in which something was counted."""
    return frozenset(
        (save, name)
        for save, text in state.rules.items()
        for name, lines in _tables_of(text)
        if any("[" in line and "[0:0]" not in line for line in lines if line[0] in "[:")
    )


def clean(sandbox: Sandbox, controllers: Iterable[Controller] = ALL, **options: Any) -> CleanupReport:
    """Clean a sandbox from this process."""
    return cleanup(netns=sandbox.path, controllers=controllers, **{"wait": 20, **options})


def command(sandbox: Sandbox, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the command inside a sandbox."""
    return sandbox.run([sys.executable, "-m", "firewall_cleanup", *options], check=False, **more)


def as_nobody(folder: Path) -> tuple[list[str], str]:
    """Return the words that run a command as a user without any right, and the Python for it.

    Python and this package may lie where only root can read, so he finds them in `folder`, in a view of his own.
    """
    if os.geteuid() != 0:
        return [], sys.executable
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    if not any(int(first) <= 65534 < int(first) + int(count) for first, _, count in ranges):
        pytest.skip("this user namespace has no other users")
    base = Path(os.path.realpath(sys.base_prefix))
    python = folder / "python" / Path(os.path.realpath(sys.executable)).relative_to(base)
    places = {
        "python": base,
        "package": Path(firewall_cleanup.__file__).parents[1],
        "site": Path(sysconfig.get_path("purelib")),
    }
    script = "set -e\n"
    folder.chmod(0o755)
    for name, place in places.items():
        (folder / name).mkdir(exist_ok=True)
        script += f"mount --bind {shlex.quote(str(place))} {folder / name}\n"
    script += f"export PYTHONPATH={folder}/package:{folder}/site\n"
    # A Python with a shared library looks for it where it was installed.
    script += f"export LD_LIBRARY_PATH={folder}/python/lib\n"
    script += 'cd /\nexec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all -- "$@"\n'
    return ["unshare", "--mount", "sh", "-c", script, "sh"], str(python)


def plan_on(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command on files, as who has no right at all and in the machine's own namespace."""
    drop, python = as_nobody(folder.parent)
    elsewhere = folder.parent / "elsewhere"
    if not elsewhere.exists():
        shutil.copytree(folder, elsewhere)
        elsewhere.chmod(0o755)
        for file in elsewhere.iterdir():
            file.chmod(0o644)
    words = [*drop, python, "-m", "firewall_cleanup", "--from", str(elsewhere), *options]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def without_writers(report: dict[str, Any]) -> dict[str, Any]:
    """The report less who writes, which no files tell."""
    return {**report, "writers": None}


def json_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return json.loads(done.stdout)


def generation(sandbox: Sandbox) -> int:
    """The number of the current generation of nf_tables."""
    namespace = Namespace(sandbox.path)
    try:
        connection = namespace.run(NftConnection)
        try:
            return connection.generation()
        finally:
            connection.close()
    finally:
        namespace.close()


def problems(report: CleanupReport) -> list[str]:
    """What a report says is wrong, to be compared with the empty list."""
    return [f"{o.kind.value} {o.name} {o.status.value}: {o.reason} {o.holder}" for o in report.residue] + [
        f"{gap.subsystem} {gap.family} {gap.backend} {gap.table}: {gap.reason}" for gap in report.gaps
    ]


def removed(report: CleanupReport) -> set[tuple[object, ...]]:
    return {
        (o.kind, o.family, o.backend, o.table, o.name, o.text) for o in report.outcomes if o.status is Status.REMOVED
    }
