"""Large nodes: texts in a folder, loading them into the namespace of the calling process, and looking after it."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

from . import floor_nft, nodes
from .cells import INNER_CHAINS, Cell
from .netlink import ACK, REQUEST, Netlink, attribute, message, nested, text

__all__ = ["PREFIX", "check", "environment", "load", "prepare"]

PREFIX = {"ipv4": "iptables", "ipv6": "ip6tables"}
"""Families, and how the names of their commands begin."""
_FAMILY = {"ipv4": 2, "ipv6": 10}
_CHUNK = 2_000  # members in one message, whose attributes hold 64 KiB at most


class NotAsExpected(Exception):
    """What is in the kernel is not what should be there."""


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of commands: the lock of legacy iptables is not the machine's."""
    path = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
    return {**os.environ, "PATH": path, "XTABLES_LOCKFILE": str(folder / "xtables.lock")}


def prepare(cell: Cell, folder: Path) -> int:
    """Write what `load` loads; return how many rules of a family are foreign."""
    left = 0
    for family in PREFIX:
        if cell.series == "owned":
            rules = nodes.owned(family, cell.size)
        elif cell.series == "foreign":
            rules, left = nodes.foreign(family, cell.size)
        elif cell.series == "inner":
            rules = nodes.owned_chains(family, INNER_CHAINS, cell.size)
        elif cell.series == "nothing":
            rules = _ordinary(family)
        else:
            continue
        (folder / family).write_text(rules)
    if cell.series == "sets":
        (folder / "sets").write_text(nodes.sets(cell.size))
        (folder / "destroy").write_text(nodes.destroy_lines(cell.size))
    if cell.series == "nothing":
        from firewall_cleanup.testing import foreign  # noqa: PLC0415 - nothing else needs the package

        (folder / "sets").write_text(foreign.foreign_sets())
    return left


def _ordinary(family: str) -> str:
    from firewall_cleanup.testing import foreign  # noqa: PLC0415 - as above

    return foreign.foreign_rules(family, "nft")


def load(cell: Cell, folder: Path) -> None:
    """Load the state of a cell. The namespace is empty before."""
    if (folder / "sets").exists():
        with (folder / "sets").open() as lines:
            subprocess.run(["ipset", "restore"], stdin=lines, check=True)  # noqa: S607
    if cell.series == "sets":
        _fill_inet6(nodes.filled_sets(cell.size, "ipv6"))
        return
    if cell.series == "nothing":
        subprocess.run(["ip", "link", "add", "name", "veth-a", "type", "veth", "peer", "name", "veth-b"], check=True)  # noqa: S607
    running = []
    for family, prefix in PREFIX.items():
        with (folder / family).open() as rules:
            # Without --noflush, with which iptables-nft needs minutes for large tables.
            running.append(subprocess.Popen([f"{prefix}-{cell.backend}-restore", "--counters"], stdin=rules))  # noqa: S603
    ended = [process.wait() for process in running]
    if any(ended):
        raise NotAsExpected("a node could not be loaded")


def check(cell: Cell, left: int) -> None:
    """Raise NotAsExpected if something of kube-router is there, or another number of foreign rules than before."""
    if cell.series == "nothing":
        return
    if cell.series == "sets":
        names, counts = _run("ipset", "list", "-n").split(), (0, 0)
    elif cell.backend == "nft":
        with Netlink() as netlink:
            names = [name.decode() for family in _FAMILY.values() for name in floor_nft.chain_names(netlink, family)]
            counts = (floor_nft.rule_count(netlink, 2), floor_nft.rule_count(netlink, 10))
    else:
        saved = [_run(f"{prefix}-legacy-save").splitlines() for prefix in PREFIX.values()]
        names = [word for lines in saved for line in lines if "KUBE" in line for word in line.split()]
        counts = (_rules(saved[0]), _rules(saved[1]))
    if any("KUBE" in name for name in names):
        raise NotAsExpected(f"{cell.name}: something of kube-router is left")
    if counts != (left, left):
        raise NotAsExpected(f"{cell.name}: {counts} foreign rules are left of {left} in each family")


def _rules(lines: list[str]) -> int:
    return sum(line.startswith("-A ") for line in lines)


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603


def _fill_inet6(names: list[str]) -> None:
    """Fill sets; the kernel takes no range of IPv6 addresses, and `ipset restore` would parse for half a minute."""
    with Netlink() as netlink:
        netlink.make_room(1 << 18)
        for first in range(0, nodes.MEMBERS, _CHUNK):
            members = b"".join(
                nested(7, nested(1, attribute(2 | 0x4000, struct.pack(">IIQ", 0x20010DB8, 0, number))))
                for number in range(first + 1, first + _CHUNK + 1)
            )
            for name in names:
                data = attribute(1, b"\6") + text(2, name.encode()) + attribute(9, bytes(4)) + nested(8, members)
                netlink.acknowledged(message(6 << 8 | 9, REQUEST | ACK, 1, 10, data))
