"""An entry of a legacy table read into a `Rule`."""

from __future__ import annotations

import errno
import ipaddress
import struct
from collections.abc import Collection

import attrs

from ..errors import KernelError
from ..model import Family, Match, Option, Rule, Target
from ..rules import PROTOCOLS, VERDICTS, protocol_name
from ._xt import SetNames, decode_match, decode_target, interface_word, match_sets, target_sets

__all__ = ["decode_entry"]

_INV_IN, _INV_OUT, _INV_SOURCE, _INV_DESTINATION, _INV_PROTOCOL = 0x01, 0x02, 0x08, 0x10, 0x40


def decode_entry(
    entry: bytes,
    target_name: str,
    chain: str,
    index: int,
    family: Family,
    sets: SetNames,
    user_chains: Collection[str],
) -> Rule:
    """Return the rule that an entry holds; `target_name` is its verdict, the chain it jumps to, or its extension."""
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
