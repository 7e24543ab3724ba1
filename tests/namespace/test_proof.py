"""The proof on the kernel: what it says of others' state while they count, write and zero."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable

import pytest
from scenes import ALL, NODES, Scene, clean, command, json_of, problems

from firewall_cleanup import Backend, Controller, Family
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.handlers._nft import NftConnection
from firewall_cleanup.handlers.host import open_host
from firewall_cleanup.ownership import Claims
from firewall_cleanup.proof import Proof, prove
from firewall_cleanup.reading import Reader
from firewall_cleanup.stages import Stages
from firewall_cleanup.testing.namespaces import Sandbox
from firewall_cleanup.text import summary

pytestmark = pytest.mark.namespace


def loaded(sandbox: Sandbox, backend: Backend) -> Scene:
    scene = Scene(NODES["default"], backend)
    scene.load(sandbox)
    return scene


def again(sandbox: Sandbox, backend: Backend) -> None:
    """Load what kube-router has once more, without a word on the built-in chains."""
    own = Scene(NODES["default"], backend, neighbours=False)
    sandbox.run(["ipset", "-exist", "restore"], input=own.sets())
    for family in Family:
        lines = (ln for ln in own.rules(family).splitlines() if not ln.startswith(":") or ln.split()[1] == "-")
        sandbox.load_rules("".join(f"{line}\n" for line in lines), family, backend)


def told(proof: Proof | None) -> list[tuple[object, ...]]:
    assert proof is not None
    # What a set has beside its type depends on the kernel.
    return [(d.change, d.kind, d.family, d.table, d.chain, d.text.split(" maxelem")[0]) for d in proof.differences]


def test_what_nobody_changed(new_sandbox: Callable[..., Sandbox], tools) -> None:  # type: ignore[no-untyped-def]
    """The same digest before and after, in the next run, and on a node that never had anything of kube-router's."""
    sandbox, alone = new_sandbox(tools.folder), new_sandbox(tools.folder)
    loaded(sandbox, tools.backend)
    first = clean(sandbox)
    assert problems(first) == []
    assert first.proof is not None
    assert told(first.proof) == []
    assert first.proof.equal
    assert first.proof.before == first.proof.after

    again(sandbox, tools.backend)
    second = clean(sandbox)
    assert second.changed
    assert second.proof is not None
    assert second.proof.equal
    assert second.proof.before == first.proof.after

    Scene(NODES["default"], tools.backend).load(alone, gone=ALL)
    with open_host(None, netns=alone.path) as host:
        look = Reader(host, KUBE_ROUTER, ALL).read().look()
        assert prove(look, look, Claims(), commits=0).after == first.proof.after


def test_what_is_counted(sandbox: Sandbox, backend: Backend) -> None:
    """As many as the tools show, where all is read; in nf_tables what others have in chains of their own is not."""
    loaded(sandbox, backend)
    proof = clean(sandbox).proof
    assert proof is not None
    lines = [line for family in Family for line in sandbox.state().lines(backend, family)]
    numbers = proof.after.counts[backend.value]
    assert numbers["tables"] == sum(line.startswith("*") for line in lines)
    assert numbers["chains"] == sum(line.startswith(":") for line in lines)
    builtin = {line[1:].split()[0] for line in lines if line.startswith(":") and line.split()[1] != "-"}
    rules = [line.split("-A ", 1)[1].split()[0] for line in lines if line.startswith("[")]
    whole = rules if backend is Backend.LEGACY else [chain for chain in rules if chain in builtin]
    assert numbers["rules"] == len(whole)
    assert proof.after.counts["ipset"]["sets"] == sandbox.state().sets.count("create ")
    unread = [part for part in proof.unread if part.backend is not None]
    assert bool(unread) == (backend is Backend.NFT)
    assert all(part.unchanged for part in unread)


_TRAFFIC = """
import contextlib, pathlib, socket, sys
stop = pathlib.Path(sys.argv[1])
senders = [(socket.socket(family, socket.SOCK_DGRAM), address) for family, address in (
    (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))]
print("begun", flush=True)
while not stop.exists():
    for sender, address in senders:
        with contextlib.suppress(OSError):  # a rule drops it, and counts
            sender.sendto(b"x", (address, 5353))
"""


def test_traffic_is_no_difference(sandbox: Sandbox, backend: Backend) -> None:
    """Counters of rules and policies grow all the time."""
    sandbox.run(["ip", "link", "set", "lo", "up"])
    loaded(sandbox, backend)
    stop = sandbox.folder / "stop"
    words = sandbox.command(sys.executable, "-c", _TRAFFIC, str(stop))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=sandbox.environment) as sender:
        try:
            assert sender.stdout is not None
            assert sender.stdout.readline() == "begun\n"
            before = sandbox.state()
            report = clean(sandbox)
            after = sandbox.state()
        finally:
            stop.touch()
    assert problems(report) == []
    assert before.rules != after.rules
    assert told(report.proof) == []
    assert report.proof is not None
    assert report.proof.equal


def at(monkeypatch: pytest.MonkeyPatch, stage: str, write: Callable[[], object]) -> None:
    """Let somebody else write once, before a stage of the run."""
    original, pending = getattr(Stages, stage), [write]

    def after_him(self, reading):  # type: ignore[no-untyped-def]
        while pending:
            pending.pop()()
        return original(self, reading)

    monkeypatch.setattr(Stages, stage, after_him)


STAGES = pytest.mark.parametrize("stage", ["_apply_services", "apply_sets"])


@STAGES
def test_a_writer_is_listed(sandbox: Sandbox, backend: Backend, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    """Between reading and writing, and after it: what he adds, takes and turns round, and nothing else."""
    loaded(sandbox, backend)
    lines = sandbox.state().lines(backend, Family.IPV4)
    taken = next(line.split("] ", 1)[1] for line in lines if "-A OUTPUT" in line and " -j ACCEPT" in line)

    def iptables(family: Family, *words: str) -> None:
        tool = "iptables" if family is Family.IPV4 else "ip6tables"
        sandbox.run([f"{tool}-{backend.value}", "-w", *words])

    def write() -> None:
        iptables(
            Family.IPV4, "-I", "INPUT", "1", "-m", "comment", "--comment", "his KUBE-ROUTER-INPUT", "-j", "ACCEPT"
        )
        iptables(Family.IPV6, "-t", "nat", "-N", "his")
        sandbox.run(["sh", "-c", f"iptables-{backend.value} -w {taken.replace('-A ', '-D ', 1)}"])
        sandbox.run(["ipset", "create", "his", "hash:ip"])
        sandbox.run(["nft", "add table inet his"])

    at(monkeypatch, stage, write)
    report = clean(sandbox)
    assert problems(report) == []
    assert report.exit_code == 0
    found = [each for each in told(report.proof) if each[1] != "policy"]
    assert found == [
        (
            "added",
            "rule",
            Family.IPV4,
            "filter",
            "INPUT",
            '-A INPUT -m comment --comment "his KUBE-ROUTER-INPUT" -j ACCEPT',
        ),
        ("removed", "rule", Family.IPV4, "filter", "OUTPUT", taken),
        ("added", "chain", Family.IPV6, "nat", "his", "his"),
        ("added", "table", None, None, None, "inet his"),
        ("added", "set", Family.IPV4, None, None, "his hash:ip"),
    ]
    # iptables-legacy itself zeroes the counters of policies, which is told too.
    zeroed = [each for each in told(report.proof) if each[1] == "policy"]
    assert bool(zeroed) == (backend is Backend.LEGACY)
    text = list(summary(report))
    assert any(line.endswith("somebody else changed it meanwhile") for line in text)
    assert "  added: ipv6 " + backend.value + " nat: chain his" in text


def test_a_rule_in_a_chain_of_others(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not read, but if somebody wrote: looked at by its handle."""
    loaded(sandbox, Backend.NFT)
    chains = [
        line[1:].split()[0] for line in sandbox.state().lines(Backend.NFT, Family.IPV6) if line.startswith(":cali-")
    ]
    words = ["ip6tables-nft", "-w", "-A", chains[0], "-j", "RETURN"]
    at(monkeypatch, "apply_sets", lambda: sandbox.run(words))
    report = clean(sandbox)
    assert told(report.proof) == [
        ("changed", "chain", Family.IPV6, "filter", chains[0], f"rules of chain {chains[0]}: 1 added, 0 removed")
    ]
    assert report.proof is not None
    assert report.proof.before.digest == report.proof.after.digest
    assert not [part for part in report.proof.unread if part.table]
    assert [part.unchanged for part in report.proof.unread if "tables of nf_tables" in part.what] == [False]


def test_policy_counters(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cleanup keeps them, though the kernel zeroes them with each commit; who zeroes them is told."""
    loaded(sandbox, Backend.LEGACY)
    before = policies(sandbox)
    assert clean(sandbox).proof is not None
    assert policies(sandbox) == before
    again(sandbox, Backend.LEGACY)
    before = policies(sandbox)
    at(monkeypatch, "apply_sets", lambda: sandbox.run(["iptables-legacy", "-w", "-Z", "INPUT"]))
    report = clean(sandbox)
    assert report.proof is not None
    if before[Family.IPV4]["INPUT"] != "[0:0]":
        (difference,) = report.proof.differences
        assert (difference.change, difference.kind, difference.chain) == ("changed", "policy", "INPUT")
        assert difference.text.startswith("counters of the policy 0:0, were ")
        assert report.proof.before.digest == report.proof.after.digest


def policies(sandbox: Sandbox) -> dict[Family, dict[str, str]]:
    return {
        family: {
            line[1:].split()[0]: line.split()[2]
            for line in sandbox.state().lines(Backend.LEGACY, family)
            if line.startswith(":") and line.split()[1] != "-"
        }
        for family in Family
    }


@pytest.mark.parametrize(
    "chosen", [frozenset({each}) for each in Controller], ids=lambda each: next(iter(each)).value
)
def test_one_controller(sandbox: Sandbox, backend: Backend, chosen: Iterable[Controller]) -> None:
    """What the other controllers have is as foreign as the neighbours' to this run, and compared."""
    loaded(sandbox, backend)
    report = clean(sandbox, chosen)
    assert problems(report) == []
    assert report.proof is not None
    assert told(report.proof) == []
    assert report.proof.equal


def test_nothing_owned_is_nothing_to_prove(
    sandbox: Sandbox, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scene(NODES["default"], backend).load(sandbox, gone=ALL)
    dumps: list[object] = []
    dump = NftConnection.dump

    def counted(self, *args):  # type: ignore[no-untyped-def]
        dumps.append(args)
        return dump(self, *args)

    monkeypatch.setattr(NftConnection, "dump", counted)
    report = clean(sandbox)
    assert (report.proof, report.changed, len(dumps)) == (None, False, 1)
    assert "nothing was changed" in list(summary(report))
    assert "proof" not in report.to_dict()


def test_the_command(sandbox: Sandbox, backend: Backend) -> None:
    loaded(sandbox, backend)
    shown = json_of(command(sandbox, "--cleanup-config", "--output", "json"))["proof"]
    assert list(shown) == ["before", "after", "equal", "differences", "unread"]
    assert shown["equal"] is True
    assert shown["before"] == shown["after"]
    assert len(shown["after"]["digest"]) == 64
    again(sandbox, backend)
    lines = command(sandbox, "--cleanup-config").stdout.splitlines()
    (line,) = (line for line in lines if line.startswith("foreign state: "))
    assert line.endswith(f": unchanged (sha256 {shown['after']['digest'][:16]}…)")
