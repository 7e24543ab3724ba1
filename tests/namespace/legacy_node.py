"""A node whose legacy tables the tests read and write, and what iptables-legacy-save prints of them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from firewall_cleanup import Backend, Family
from firewall_cleanup.handlers._legacy import LegacyTable
from firewall_cleanup.handlers._namespace import Namespace
from firewall_cleanup.host import Interest
from firewall_cleanup.model import Table, TableKey, Target
from firewall_cleanup.testing.namespaces import Sandbox

__all__ = ["HOST", "SMALL", "LegacyNode", "assert_read_alike", "opened"]

PROGRAM = {Family.IPV4: "iptables-legacy", Family.IPV6: "ip6tables-legacy"}
LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
HOST = {Family.IPV4: "192.0.2.{}/32", Family.IPV6: "2001:db8::{}/128"}
SMALL = "*filter\n:a - [0:0]\n[1:2] -A INPUT -s {0} -j a\n[3:4] -A a -s {0}\n[5:6] -A a -d {0} -j DROP\nCOMMIT\n"


class LegacyNode:
    """A sandbox of which this process reads and writes one family's tables."""

    def __init__(self, sandbox: Sandbox, family: Family) -> None:
        self.sandbox, self.family = sandbox, family
        self.namespace = Namespace(sandbox.path)

    def key(self, table: str = "filter") -> TableKey:
        return TableKey(self.family, Backend.LEGACY, table)

    def open(self, table: str = "filter") -> LegacyTable:
        return LegacyTable(self.key(table), Interest(), self.namespace)

    def restore(self, text: str, *options: str) -> None:
        self.sandbox.run([f"{PROGRAM[self.family]}-restore", "--counters", *options], input=text)

    def iptables(self, line: str) -> None:
        self.sandbox.run([PROGRAM[self.family], *line.split()])

    def save(self, table: str | None = None) -> str:
        only = ["-t", table] if table else []
        text = self.sandbox.run([f"{PROGRAM[self.family]}-save", "--counters", *only]).stdout
        return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))

    def send(self, packets: int) -> int:
        """Send UDP packets to the loopback, which is all that is ever sent; return their size."""

        def send() -> None:
            kind = socket.AF_INET if self.family is Family.IPV4 else socket.AF_INET6
            for _ in range(packets):
                with socket.socket(kind, socket.SOCK_DGRAM) as sender:  # a new one has no error waiting
                    sender.sendto(b"x" * 12, (LOOPBACK[self.family], 9))

        self.namespace.run(send)
        return (20 if self.family is Family.IPV4 else 40) + 8 + 12

    def load_small(self, **counters: str) -> None:
        """Load a small table, with other counters: `_1_2="7:700"` for what has [1:2]."""
        text = SMALL.format(HOST[self.family].format(7))
        for old, new in counters.items():
            text = text.replace(f"[{old[1:].replace('_', ':')}]", f"[{new}]")
        self.restore(text)


@contextmanager
def opened(sandbox: Sandbox, family: Family) -> Iterator[LegacyNode]:
    node = LegacyNode(sandbox, family)
    try:
        yield node
    finally:
        node.namespace.close()


def assert_read_alike(table: Table, text: Table) -> None:
    """Compare all that the kernel's table and the text have in common."""
    assert table.key == text.key
    assert dict(table.builtin) == dict(text.builtin)
    assert table.chains == text.chains
    assert table.rules.keys() == text.rules.keys()
    for chain, lines in text.rules.items():
        for rule, line in zip(table.rules[chain], lines, strict=True):
            assert (rule.chain, rule.index, rule.packets, rule.bytes) == (chain, line.index, line.packets, line.bytes)
            assert (bool(rule.opaque), rule.sets) == (bool(line.opaque), line.sets), line
            if rule.opaque:  # a jump is a jump, whatever stands before it
                assert {rule.target, line.target}.isdisjoint(map(Target, table.chains)) or rule.target == line.target
            else:
                assert rule == line
