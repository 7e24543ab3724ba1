"""Legacy iptables through python-iptables, at the level of libiptc's handles and nothing above it.

The one module that imports iptc. Its import is costly and asks modprobe for ip_tables and ip6_tables, so it happens
only when a legacy table exists; and opening a table creates it, so only tables that the kernel lists are opened.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib
import importlib.util
import ipaddress
import struct
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from ..errors import BatchRefused, KernelError
from ..host import Skip
from ..model import Family, Match, Option, Policy, Rule, Table, TableChange, TableKey, Target
from ..rules import PROTOCOLS, VERDICTS, protocol_name
from ._xt import SetNames, decode_match, decode_target, interface_word, match_sets, target_sets

__all__ = ["LegacyTable", "legacy_tables"]

_INV_IN, _INV_OUT, _INV_SOURCE, _INV_DESTINATION, _INV_PROTOCOL = 0x01, 0x02, 0x08, 0x10, 0x40


def legacy_tables(family: Family) -> tuple[str, ...]:
    """Return the names of the legacy tables of the calling thread's network namespace.

    Empty if the kernel has no legacy iptables for the family. Raises OSError if the list may not be read.
    """
    name = "ip_tables_names" if family is Family.IPV4 else "ip6_tables_names"
    try:
        return tuple(sorted(Path("/proc/thread-self/net", name).read_text().split()))
    except FileNotFoundError:
        return ()


class LegacyTable:
    """A legacy table, read whole at one moment. Nothing is written before `commit`."""

    def __init__(self, key: TableKey) -> None:
        """Read the table from the kernel. Raises KernelError."""
        self.key = key
        self._lib = _libiptc(key.family)
        self._handle = self._lib.iptc_init(key.name.encode())
        if not self._handle:
            raise KernelError(_errno(), f"legacy table {key.name}")

    def close(self) -> None:
        """Free the table; again is no error."""
        if self._handle:
            self._lib.iptc_free(self._handle)
            self._handle = None

    def table(self, skip: Skip, sets: SetNames) -> Table:
        """Return the table, with the rules of every chain that `skip` does not name.

        `sets` maps an ipset's index to its name; read after this object was made, it is true for every rule.
        """
        raw: dict[str, list[bytes]] = {}
        targets: dict[str, list[str]] = {}
        builtin: dict[str, Policy] = {}
        chains: list[str] = []
        for chain in self._chain_names():
            policy = self._policy(chain)
            name = chain.decode("utf-8", "surrogateescape")
            if policy is None:
                chains.append(name)
                if skip(self.key.name, name):
                    continue
            else:
                builtin[name] = policy
            raw[name], targets[name] = self._entries(chain)
        user_chains = frozenset(chains)
        rules = {
            chain: tuple(
                _decode_entry(entry, target, chain, i, self.key.family, sets, user_chains)
                for i, (entry, target) in enumerate(zip(entries, targets[chain], strict=True))
            )
            for chain, entries in raw.items()
        }
        return Table(self.key, builtin, tuple(chains), rules)

    def _chain_names(self) -> Iterator[bytes]:
        chain = self._lib.iptc_first_chain(self._handle)
        while chain:
            yield chain
            chain = self._lib.iptc_next_chain(self._handle)

    def _policy(self, chain: bytes) -> Policy | None:
        if not self._lib.iptc_builtin(chain, self._handle):
            return None
        counters = _ip4tc().xt_counters()
        verdict = self._lib.iptc_get_policy(chain, ctypes.byref(counters), self._handle)
        return Policy(verdict.decode(), counters.pcnt, counters.bcnt)

    def _entries(self, chain: bytes) -> tuple[list[bytes], list[str]]:
        entries, targets = [], []
        entry = self._lib.iptc_first_rule(chain, self._handle)
        while entry:
            length = entry.contents.next_offset
            entries.append(ctypes.string_at(entry, length))
            target = self._lib.iptc_get_target(entry, self._handle)
            targets.append((target or b"").decode("utf-8", "surrogateescape"))
            entry = self._lib.iptc_next_rule(entry, self._handle)
        return entries, targets

    def commit(self, change: TableChange) -> None:
        """Apply a change and write the table back, if the kernel still has what was read.

        Policy counters, which any commit of libiptc sets to zero, are put back. Raises BatchRefused for chains that
        something still jumps to, KernelError otherwise; nothing is applied then.
        """
        handle, lib = self._handle, self._lib
        for rule in sorted(change.rules, key=lambda rule: -rule.index):
            self._check(lib.iptc_delete_num_entry(_bytes(rule.chain), rule.index, handle), "delete a rule")
        for chain in change.flush:
            self._check(lib.iptc_flush_entries(_bytes(chain), handle), f"flush {chain}")
        failures: dict[tuple[object, str, object], int] = {}
        for chain in change.delete:
            if not lib.iptc_delete_chain(_bytes(chain), handle):
                failures[self.key, "chain", chain] = _errno() or errno.EMLINK
        if failures:
            raise BatchRefused(failures)
        for chain_name in list(self._chain_names()):
            if lib.iptc_builtin(chain_name, handle):
                counters = _ip4tc().xt_counters()
                verdict = lib.iptc_get_policy(chain_name, ctypes.byref(counters), handle)
                done = lib.iptc_set_policy(chain_name, verdict, ctypes.byref(counters), handle)
                self._check(done, f"keep the counters of {chain_name.decode()}")
        self._check(lib.iptc_commit(handle), "commit")

    def _check(self, done: int, what: str) -> None:
        if not done:
            raise KernelError(_errno(), f"legacy table {self.key.name}: {what}")


def _decode_entry(
    entry: bytes,
    target_name: str,
    chain: str,
    index: int,
    family: Family,
    sets: SetNames,
    user_chains: frozenset[str],
) -> Rule:
    head = _Head.of(entry, family)
    matches: list[Match] = []
    opaque: list[str] = []
    used: set[int] = set()
    plain = head.options()
    if plain:
        matches.append(Match("", plain))
    if head.unknown:
        opaque.append("flags")
    offset = 112 if family is Family.IPV4 else 168
    while offset < head.target_offset:
        size, name, revision = _extension(entry, offset)
        data = entry[offset + 32 : offset + size]
        used.update(match_sets(name, data))
        match = decode_match(name, revision, data, family, sets)
        if match is None:
            opaque.append(name)
        elif match.options or name not in PROTOCOLS:
            matches.append(match)
        offset += size
    target = Target(target_name, goto=head.goto)
    if target_name and target_name not in VERDICTS and target_name not in user_chains:
        size, name, revision = _extension(entry, head.target_offset)
        data = entry[head.target_offset + 32 : head.target_offset + size]
        used.update(target_sets(name, revision, data))
        decoded = decode_target(name, revision, data, family)
        if decoded is None:
            opaque.append(name)
        else:
            target = decoded
    return Rule(
        chain=chain,
        matches=tuple(matches),
        target=target,
        opaque=tuple(opaque),
        sets=frozenset(sets[i] for i in used if i in sets),
        index=index,
        packets=head.packets,
        bytes=head.octets,
    )


def _extension(entry: bytes, offset: int) -> tuple[int, str, int]:
    size, name, revision = struct.unpack_from("=H29sB", entry, offset)
    if size < 32:
        raise KernelError(errno.EPROTO, "an entry of a legacy table is malformed")
    return size, name.split(b"\0", 1)[0].decode("ascii", "replace"), revision


@attrs.frozen
class _Head:
    """The fixed part of an entry: struct ipt_entry, struct ip6t_entry."""

    family: Family
    addresses: tuple[bytes, ...]
    interfaces: tuple[bytes, ...]
    protocol: int
    flags: int
    inverted: int
    target_offset: int
    packets: int
    octets: int

    @classmethod
    def of(cls, entry: bytes, family: Family) -> _Head:
        if family is Family.IPV4:
            fields = struct.unpack_from("=4s4s4s4s16s16s16s16sHBBIHHIQQ", entry)
            protocol, flags, inverted = fields[8:11]
            target_offset, packets, octets = fields[12], fields[15], fields[16]
        else:
            fields = struct.unpack_from("=16s16s16s16s16s16s16s16sHBBB3xIHHI4xQQ", entry)
            # `tos` is matched by no tool that still runs; its flag makes the rule opaque.
            protocol, flags, inverted = fields[8], fields[10], fields[11]
            target_offset, packets, octets = fields[13], fields[16], fields[17]
        return cls(family, fields[:4], fields[4:8], protocol, flags, inverted, target_offset, packets, octets)

    @property
    def goto(self) -> bool:
        return bool(self.flags & (2 if self.family is Family.IPV4 else 4))

    @property
    def unknown(self) -> bool:
        known = 2 if self.family is Family.IPV4 else 1 | 4
        inversions = _INV_IN | _INV_OUT | _INV_SOURCE | _INV_DESTINATION | _INV_PROTOCOL
        return bool(self.flags & ~known or self.inverted & ~inversions)

    def options(self) -> tuple[Option, ...]:
        source, destination, source_mask, destination_mask = self.addresses
        result = []
        for flag, address, mask, bit in (
            ("-s", source, source_mask, _INV_SOURCE),
            ("-d", destination, destination_mask, _INV_DESTINATION),
        ):
            if any(mask) or self.inverted & bit:
                result.append(Option(flag, (_network(address, mask),), bool(self.inverted & bit)))
        inward, outward, inward_mask, outward_mask = self.interfaces
        for flag, name, mask, bit in (
            ("-i", inward, inward_mask, _INV_IN),
            ("-o", outward, outward_mask, _INV_OUT),
        ):
            if any(mask) or self.inverted & bit:
                result.append(Option(flag, (interface_word(name, mask),), bool(self.inverted & bit)))
        if self.protocol:
            result.append(Option("-p", (protocol_name(self.protocol),), bool(self.inverted & _INV_PROTOCOL)))
        return tuple(result)


def _network(address: bytes, mask: bytes) -> str:
    number, bits = int.from_bytes(mask, "big"), len(mask) * 8
    prefix = number.bit_count()
    text = str(ipaddress.ip_address(address))
    if number == ((1 << prefix) - 1) << (bits - prefix):
        return f"{text}/{prefix}"
    return f"{text}/{ipaddress.ip_address(mask)}"


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _errno() -> int:
    return int(_ip4tc()._get_errno_loc()[0])  # noqa: SLF001 - ctypes keeps no errno for libraries loaded so


@functools.cache
def _iptc() -> types.ModuleType:
    """Import python-iptables without letting it run modprobe: looking must not load a module."""
    spec = importlib.util.find_spec("iptc")
    if spec is None or spec.submodule_search_locations is None:
        raise KernelError(errno.ENOENT, "python-iptables is not installed, legacy iptables cannot be read")
    if "iptc" in sys.modules:
        return sys.modules["iptc"]
    package = types.ModuleType("iptc")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["iptc"] = package
    try:
        util: Any = importlib.import_module("iptc.util")
    finally:
        del sys.modules["iptc"]
    original, util.load_kernel = util.load_kernel, lambda *_args, **_kwargs: None
    try:
        return importlib.import_module("iptc")
    finally:
        util.load_kernel = original


def _ip4tc() -> Any:
    _iptc()
    return sys.modules["iptc.ip4tc"]


def _libiptc(family: Family) -> Any:
    _iptc()
    if family is Family.IPV4:
        return sys.modules["iptc.ip4tc"].iptc
    return sys.modules["iptc.ip6tc"].ip6tc
