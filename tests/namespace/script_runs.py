"""Printing the script of a node and running it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import attrs
from scenes import NODES, Scene, clean

from firewall_cleanup import Backend, Family
from firewall_cleanup.script import script
from firewall_cleanup.testing.namespaces import Sandbox, State
from firewall_cleanup.testing.node import short_hash

__all__ = ["POD", "PROGRAM", "Two", "bare", "clean_by", "commands", "equal", "printed", "run"]

PROGRAM = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
POD = f"KUBE-POD-FW-{short_hash('pod')}"

Two = Callable[..., tuple[Sandbox, Sandbox]]


def bare(node: str, backend: Backend) -> Scene:
    """A node without its neighbours, which is loaded faster."""
    return Scene(NODES[node], backend, neighbours=False)


def printed(sandbox: Sandbox, **options: object) -> str:
    """The script for a node as it is now."""
    return script([clean(sandbox, dry_run=True, **options)], wait=20)


def commands(text: str) -> list[str]:
    """What a script does, less its functions; sets in order of their names, as files do not tell another."""
    body = text.partition("\nmain() {\n")[2].partition("\n}\n")[0]
    return re.sub(
        r"(?<=sets <<'END'\n)[^#]*?(?=\nEND)", lambda found: "\n".join(sorted(found[0].split())), body
    ).split("\n")


def run(sandbox: Sandbox, text: str, *, shell: Iterable[str] = ("sh",), **more: Any) -> tuple[int, str]:
    """Run a script; return its status and what it said."""
    file = sandbox.folder / "cleanup.sh"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    done = sandbox.run([*shell, str(file)], check=False, **more)
    assert done.stdout == ""
    return done.returncode, done.stderr


def clean_by(sandbox: Sandbox, text: str, **more: Any) -> bool:
    """Run a script, which must end well."""
    status, said = run(sandbox, text, **more)
    assert (status, said.splitlines()[-1]) == (0, "clean: nothing of this plan is left"), said
    return True


def equal(one: Sandbox, other: Sandbox) -> bool:
    """The states are equal, but for what no command of iptables-legacy keeps: the counters of policies."""

    def kept(state: State) -> State:
        rules = {
            name: re.sub(r"^(:\S+ (?!-)\S+) .*", r"\1", text, flags=re.MULTILINE) if "legacy" in name else text
            for name, text in state.rules.items()
        }
        return attrs.evolve(state, rules=rules)

    assert kept(one.state()) == kept(other.state())
    return True
