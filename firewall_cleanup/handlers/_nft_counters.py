"""Giving rules of nf_tables the counters that they had: ip6tables-nft 1.8.9 sets them to zero when it restores."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from ..errors import KernelError, StaleGeneration
from ..model import Family, TableKey
from ..rules import PROTOCOLS
from ._netlink import (
    NLA_F_NESTED,
    NLM_F_REQUEST,
    NetlinkSocket,
    attribute,
    attributes,
    message,
    parts_of,
)
from ._nft import send_batch
from ._nft_rules import decode_rule

__all__ = ["add_counters"]

_SUBSYSTEM = 10 << 8
_NEW_RULE, _GET_RULE = 6, 7
_REPLACE = 0x100
# Attributes of a rule (NFTA_RULE_*), of an expression, of a counter.
_TABLE, _CHAIN, _HANDLE, _EXPRESSIONS, _COMPAT, _USERDATA = 1, 2, 3, 4, 5, 7
_ELEMENT, _NAME, _DATA = 1, 1, 2
_BYTES, _PACKETS = 1, 2
_INVERTED = 2

Counts = Mapping[str, Mapping[int, tuple[int, int]]]


def add_counters(key: TableKey, counts: Counts, generation: int) -> None:
    """Add packets and bytes to rules, given by chain and index from 0, in one batch; each rule is replaced by itself.

    Raises StaleGeneration if the ruleset is of another generation (nothing is done then), KernelError.
    """
    head = struct.pack("=BBH", key.family.number, 0, 0)
    with NetlinkSocket() as netlink:
        rules: list[bytes] = []
        for chain, wanted in counts.items():
            where = head + attribute(_TABLE, _text(key.name)) + attribute(_CHAIN, _text(chain))
            payloads, torn = netlink.dump(_SUBSYSTEM | _GET_RULE, where)
            if torn or len(payloads) <= max(wanted):
                raise StaleGeneration("the nf_tables ruleset was changed by somebody else")
            rules += (_counting(payloads[index], key.family, *count) for index, count in wanted.items())
        _send(netlink, [head + rule for rule in rules], generation)


def _send(netlink: NetlinkSocket, rules: list[bytes], generation: int) -> None:
    flags = NLM_F_REQUEST | _REPLACE
    refused = send_batch(
        netlink,
        len(rules),
        generation,
        lambda start: (message(_SUBSYSTEM | _NEW_RULE, flags, n, rule) for n, rule in enumerate(rules, start)),
    )
    if refused:
        raise KernelError(next(iter(refused.values())), "counters of rules")


def _counting(payload: bytes, family: Family, packets: int, octets: int) -> bytes:
    """Return the attributes of a rule with more in its counter."""
    parts = parts_of(payload, 4)
    elements = b"".join(_expressions(parts.get(_EXPRESSIONS, b""), packets, octets))
    rule = b"".join(attribute(kind, parts[kind]) for kind in (_TABLE, _CHAIN, _HANDLE))
    rule += attribute(_EXPRESSIONS | NLA_F_NESTED, elements)
    rule += _compat(payload, family)
    return rule + (attribute(_USERDATA, parts[_USERDATA]) if _USERDATA in parts else b"")


def _expressions(data: bytes, packets: int, octets: int) -> Iterator[bytes]:
    for _kind, element in attributes(data):
        parts = parts_of(element)
        if parts[_NAME] == b"counter\0":
            old = parts_of(parts[_DATA])
            octets_now, packets_now = (int.from_bytes(old[kind], "big") for kind in (_BYTES, _PACKETS))
            counted = attribute(_BYTES, (octets_now + octets).to_bytes(8, "big"))
            counted += attribute(_PACKETS, (packets_now + packets).to_bytes(8, "big"))
            element = attribute(_NAME, parts[_NAME]) + attribute(_DATA | NLA_F_NESTED, counted)  # noqa: PLW2901
        yield attribute(_ELEMENT | NLA_F_NESTED, element)


def _compat(payload: bytes, family: Family) -> bytes:
    """Return the protocol for matches of xtables, which the kernel wants to know and does not tell."""
    rule = decode_rule(payload, "", 0, family, {})
    for option in (option for match in rule.matches if not match.name for option in match.options):
        if option.flag == "-p":
            word = option.words[0]
            number = PROTOCOLS.get(word) or (int(word) if word.isdigit() else 0)
            fields = attribute(1, number.to_bytes(4, "big"))
            fields += attribute(2, (_INVERTED if option.negated else 0).to_bytes(4, "big"))
            return attribute(_COMPAT | NLA_F_NESTED, fields)
    return b""


def _text(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape") + b"\0"
