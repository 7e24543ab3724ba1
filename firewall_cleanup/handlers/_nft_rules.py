"""The expressions of a rule that iptables-nft wrote, read into a `Rule`.

Measured with iptables 1.8.9 and 1.8.11: both write addresses, interfaces, protocol, ports, TCP flags and marks as
native expressions (payload or meta, bitwise, cmp or range), most other matches and targets as xtables payloads.
They differ in the order and in how IPv4 `-p` is loaded, so the decoder follows registers and not positions.
"""

from __future__ import annotations

import ipaddress
import struct
import sys

from ..model import Family, Match, Option, Rule, Target
from ..rules import PROTOCOLS, protocol_name
from ._netlink import attributes, name_of, parts_of
from ._xt import (
    SetNames,
    decode_match,
    decode_target,
    mark_word,
    match_sets,
    port_word,
    target_sets,
    tcp_flags_words,
)

__all__ = ["decode_rule"]

_RULE_HANDLE, _RULE_EXPRESSIONS = 3, 4
_META_KEYS = {3: "mark", 6: "-i", 7: "-o", 16: "-p"}
_VERDICTS = {0: "DROP", 1: "ACCEPT", 3: "QUEUE", -5: "RETURN"}
_JUMP, _GOTO, _CONTINUE = -3, -4, -1
_EQ, _NEQ, _LTE, _GT, _GTE = 0, 1, 3, 4, 5
_ORDER = {"-s": 0, "-d": 1, "-i": 2, "-o": 3, "-p": 4}
_TRANSPORT_ORDER = {"--sport": 0, "--dport": 1, "--tcp-flags": 2}


class _Unknown(Exception):
    """An expression that iptables does not write, or not for anything that ownership needs."""


class _Register:
    """What a register holds: the field that was loaded into it, its width in bytes, and the mask laid over it."""

    __slots__ = ("field", "length", "mask")

    def __init__(self, field: str, length: int) -> None:
        self.field, self.length, self.mask = field, length, b""


def decode_rule(payload: bytes, chain: str, index: int, family: Family, sets: SetNames) -> Rule:
    """Return the rule of one NEWRULE message (behind its nfgenmsg); what is not understood makes it opaque."""
    handle, expressions = 0, b""
    for kind, data in attributes(payload, 4):
        if kind == _RULE_HANDLE:
            handle = int.from_bytes(data, "big")
        elif kind == _RULE_EXPRESSIONS:
            expressions = data
    decoder = _Decoder(family, sets)
    for _kind, element in attributes(expressions):
        parts = parts_of(element)
        name = parts.get(1, b"").rstrip(b"\0").decode("ascii", "replace")
        try:
            decoder.expression(name, parts_of(parts.get(2, b"")))
        except (_Unknown, KeyError, struct.error, ValueError):
            decoder.opaque.append(name)
    return decoder.rule(chain, index, handle)


class _Decoder:
    def __init__(self, family: Family, sets: SetNames) -> None:
        self.family, self.names = family, sets
        self.registers: dict[int, _Register] = {}
        self.plain: dict[str, Option] = {}
        self.transport: dict[str, Option] = {}
        self.matches: list[Match] = []
        self.target = Target()
        self.opaque: list[str] = []
        self.sets: set[str] = set()
        self.packets = self.octets = 0
        self.bounds: dict[str, int] = {}
        self.transport_at = -1

    def rule(self, chain: str, index: int, handle: int) -> Rule:
        matches = list(self.matches)
        if self.transport:
            protocol = self.plain.get("-p", Option("-p", ("",))).words[0]
            if protocol not in {"tcp", "udp"}:
                self.opaque.append("payload")
            options = sorted(self.transport.values(), key=lambda o: _TRANSPORT_ORDER[o.flag])
            matches.insert(self.transport_at, Match(protocol, tuple(options)))
        if self.bounds:  # a bound without its other half is no range of iptables
            self.opaque.append("cmp")
        if self.plain:
            options = sorted(self.plain.values(), key=lambda o: _ORDER[o.flag])
            matches.insert(0, Match("", tuple(options)))
        return Rule(
            chain=chain,
            matches=tuple(matches),
            target=self.target,
            opaque=tuple(self.opaque),
            sets=frozenset(self.sets),
            handle=handle,
            index=index,
            packets=self.packets,
            bytes=self.octets,
        )

    def expression(self, name: str, data: dict[int, bytes]) -> None:
        method = getattr(self, "_" + name, None) if name in _EXPRESSIONS else None
        if method is None:
            raise _Unknown(name)
        method(data)

    def _counter(self, data: dict[int, bytes]) -> None:
        self.octets, self.packets = int.from_bytes(data[1], "big"), int.from_bytes(data[2], "big")

    def _immediate(self, data: dict[int, bytes]) -> None:
        verdict = parts_of(parts_of(data[2])[2])
        code = int.from_bytes(verdict[1], "big", signed=True)
        if code in {_JUMP, _GOTO}:
            self.target = Target(name_of(verdict[2]), goto=code == _GOTO)
        elif code in _VERDICTS:
            self.target = Target(_VERDICTS[code])
        elif code != _CONTINUE:
            raise _Unknown("verdict")

    def _meta(self, data: dict[int, bytes]) -> None:
        if 3 in data:
            raise _Unknown("meta set")
        field = _META_KEYS[int.from_bytes(data[2], "big")]
        length = {"mark": 4, "-p": 1}.get(field, 16)
        self.registers[_register(data[1])] = _Register(field, length)

    def _payload(self, data: dict[int, bytes]) -> None:
        if 5 in data:
            raise _Unknown("payload set")
        base, offset, length = (int.from_bytes(data[i], "big") for i in (2, 3, 4))
        self.registers[_register(data[1])] = _Register(self._payload_field(base, offset, length), length)

    def _payload_field(self, base: int, offset: int, length: int) -> str:
        size = self.family.bits // 8
        source = 12 if self.family is Family.IPV4 else 8
        if base == 1 and length <= size and offset in {source, source + size}:
            return "-s" if offset == source else "-d"
        if (base, offset, length) == (1, 9, 1) and self.family is Family.IPV4:
            return "-p"
        if base == 2 and length == 2 and offset in {0, 2}:
            return "--dport" if offset else "--sport"
        if (base, offset, length) == (2, 0, 4):
            return "ports"  # of a rule that has both
        if (base, offset, length) == (2, 13, 1):
            return "--tcp-flags"
        raise _Unknown("payload")

    def _bitwise(self, data: dict[int, bytes]) -> None:
        register = self.registers[_register(data[1])]
        if any(_value(data[5])) or int.from_bytes(data.get(6, b""), "big") or register.mask:
            raise _Unknown("bitwise")
        register.mask = _value(data[4])
        self.registers[_register(data[2])] = register

    def _cmp(self, data: dict[int, bytes]) -> None:
        register = self.registers[_register(data[1])]
        operator, value = int.from_bytes(data[2], "big"), _value(data[3])
        if operator in {_EQ, _NEQ}:
            self._compare(register, value, negated=operator == _NEQ)
        elif register.field not in {"--sport", "--dport"} or register.mask:
            raise _Unknown("cmp")
        else:
            self._bound(register.field, operator, int.from_bytes(value, "big"))

    def _bound(self, flag: str, operator: int, port: int) -> None:
        if operator == _GTE:
            self.bounds[flag] = port
        elif operator == _LTE:
            self._range_of(flag, self.bounds.pop(flag, 0), port)
        elif operator == _GT:
            self._range_of(flag, port + 1, 0xFFFF)
        else:
            raise _Unknown("cmp")

    def _range(self, data: dict[int, bytes]) -> None:
        register = self.registers[_register(data[1])]
        low, high = (int.from_bytes(_value(data[i]), "big") for i in (3, 4))
        if register.field not in {"--sport", "--dport"} or register.mask:
            raise _Unknown("range")
        self._range_of(register.field, low, high, negated=int.from_bytes(data[2], "big") == _NEQ)

    def _range_of(self, flag: str, low: int, high: int, *, negated: bool = False) -> None:
        self._add_transport(Option(flag, (port_word(low, high),), negated))

    def _compare(self, register: _Register, value: bytes, *, negated: bool) -> None:
        field = register.field
        if field in {"-s", "-d"}:
            self._add_plain(Option(field, (self._network(register, value),), negated))
        elif field in {"-i", "-o"}:
            whole = value.endswith(b"\0")
            name = name_of(value)
            self._add_plain(Option(field, (name if whole else name + "+",), negated))
        elif field == "-p":
            # ip6tables shows and means ipv6-icmp; the number decides.
            self._add_plain(Option(field, (protocol_name(value[0]),), negated))
        elif field == "mark":
            mask = int.from_bytes(register.mask or b"\xff" * 4, sys.byteorder)
            mark = mark_word(int.from_bytes(value, sys.byteorder), mask)
            self.matches.append(Match("mark", (Option("--mark", (mark,), negated),)))
        elif field == "--tcp-flags":
            mask = (register.mask or b"\xff")[0]
            if (mask | value[0]) & ~0x3F:
                raise _Unknown("tcp flags")
            self._add_transport(Option(field, tcp_flags_words(mask, value[0]), negated))
        elif register.mask:
            raise _Unknown("masked port")
        elif field == "ports":
            for flag, octets in (("--sport", value[:2]), ("--dport", value[2:])):
                port = int.from_bytes(octets, "big")
                self._range_of(flag, port, port, negated=negated)  # as iptables-nft writes and prints it
        else:
            port = int.from_bytes(value, "big")
            self._range_of(field, port, port, negated=negated)

    def _network(self, register: _Register, value: bytes) -> str:
        size = self.family.bits // 8
        address = ipaddress.ip_address(value.ljust(size, b"\0")[:size])
        mask = (register.mask or b"\xff" * register.length).ljust(size, b"\0")[:size]
        number = int.from_bytes(mask, "big")
        prefix = number.bit_count()
        if number == ((1 << prefix) - 1) << (self.family.bits - prefix):
            return f"{address}/{prefix}"
        return f"{address}/{ipaddress.ip_address(mask)}"

    def _add_plain(self, option: Option) -> None:
        if option.flag in self.plain:
            raise _Unknown("twice")
        self.plain[option.flag] = option

    def _add_transport(self, option: Option) -> None:
        if option.flag in self.transport:
            raise _Unknown("twice")
        if not self.transport:
            self.transport_at = len(self.matches)
        self.transport[option.flag] = option

    def _match(self, data: dict[int, bytes]) -> None:
        name, revision, info = _extension(data)
        self._note_sets(match_sets(name, info))
        match = decode_match(name, revision, info, self.family, self.names)
        if match is None:
            self.opaque.append(name)
        elif match.options or name not in PROTOCOLS:
            self.matches.append(match)

    def _target(self, data: dict[int, bytes]) -> None:
        name, revision, info = _extension(data)
        self._note_sets(target_sets(name, revision, info))
        target = decode_target(name, revision, info, self.family)
        if target is None:
            self.opaque.append(name)
            target = Target(name)
        self.target = target

    def _note_sets(self, indices: tuple[int, ...]) -> None:
        self.sets.update(self.names[index] for index in indices if index in self.names)


_EXPRESSIONS = frozenset("counter immediate meta payload bitwise cmp range match target".split())


def _register(data: bytes) -> int:
    """Return the number of a register in units of four bytes: the old 16-byte registers are names for groups."""
    number = int.from_bytes(data, "big")
    return (number - 1) * 4 if 1 <= number <= 4 else number - 8


def _value(data: bytes) -> bytes:
    return parts_of(data)[1]


def _extension(data: dict[int, bytes]) -> tuple[str, int, bytes]:
    name = data[1].rstrip(b"\0").decode("ascii", "replace")
    return name, int.from_bytes(data[2], "big"), data.get(3, b"")
