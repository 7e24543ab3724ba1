"""What stays of a table of nf_tables, in a form in which the same is the same bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..host import Staying
from ..model import Family, Policy
from ..rules import render
from ._netlink import attributes, parts_of
from ._nft_rules import decode_rule
from ._xt import SetNames

__all__ = ["Words", "of_nft", "set_slots"]

_SIZE = struct.Struct("=H")
# Attributes of a rule: its expressions, and what a program wrote beside them. The others say where it is.
_EXPRESSIONS, _USER_DATA = 4, 7
# Expressions whose data change by themselves.
_COUNTING = frozenset({b"counter\0", b"last\0", b"quota\0"})
# Those that hold what iptables has: its name, its revision, its data.
_EXTENSIONS = frozenset({b"match\0", b"target\0"})

Words = Mapping[str, Sequence[tuple[bytes, Callable[[], str]]]]


def set_slots(name: bytes, revision: int) -> tuple[int, ...]:
    """Return where the match or the target of this name has indices of sets."""
    if name.startswith(b"set"):
        return (0,)
    return () if revision == 0 else (0, 4, 8) if revision == 3 else (0, 4)


def of_nft(
    family: Family,
    policies: Mapping[str, Policy],
    chains: Iterable[str],
    rules: Mapping[str, Sequence[bytes]],
    owned: frozenset[int | None],
    handles: Mapping[str, bytes],
    sets: SetNames,
) -> Staying:
    """Return what stays of a table of nf_tables: of these chains, those with `rules`, but for owned ones.

    `handles` has the handles of the rules of others.
    """
    names = sorted(chains)
    read = {
        chain: [
            (_expressions(parts, sets), payload)
            for payload in rules[chain]
            if _handle(parts := parts_of(payload, 4)) not in owned
        ]
        for chain in (*sorted(policies), *names)
        if chain in rules
    }

    def words() -> Words:
        return {
            chain: [(same, _text(payload, chain, family, sets)) for same, payload in own]
            for chain, own in read.items()
        }

    heads = [f"{name} {policy.verdict}" for name, policy in sorted(policies.items())]
    content = [line.encode("utf-8", "surrogateescape") for line in (*heads, *names)]
    for chain, own in read.items():
        content.append(b"\n" + chain.encode("utf-8", "surrogateescape"))
        content += [len(same).to_bytes(4, "big") + same for same, _payload in own]
    return Staying(
        (b"\n".join(content),),
        len(policies) + len(names),
        sum(map(len, read.values())),
        tuple(name for name in names if name not in read),
        lambda: {name: _numbers(handles[name], owned) for name in names if name in handles},
        words,
    )


def _numbers(handles: bytes, owned: frozenset[int | None]) -> list[int]:
    whole = handles[: len(handles) & ~7]
    return [number for (number,) in struct.iter_unpack(">Q", whole) if number not in owned]


def _text(payload: bytes, chain: str, family: Family, sets: SetNames) -> Callable[[], str]:
    return lambda: render(decode_rule(payload, chain, 0, family, sets))


def _handle(parts: Mapping[int, bytes]) -> int:
    return int.from_bytes(parts.get(3, b""), "big")


def _expressions(parts: Mapping[int, bytes], sets: SetNames) -> bytes:
    result = []
    for _kind, element in attributes(parts.get(_EXPRESSIONS, b"")):
        expression = parts_of(element)
        name = expression.get(1, b"")
        result.append(name)
        if name in _EXTENSIONS:
            result += _extension(parts_of(expression.get(2, b"")), sets)
        elif name not in _COUNTING:
            result.append(expression.get(2, b""))
    return b"\n".join((*result, parts.get(_USER_DATA, b"")))


def _extension(data: Mapping[int, bytes], sets: SetNames) -> list[bytes]:
    name, revision, info = data.get(1, b""), data.get(2, b""), bytearray(data.get(3, b""))
    names = []
    if name in {b"set\0", b"SET\0"}:
        slots = set_slots(name, revision[-1] if revision else 0)
        for slot in (slot for slot in slots if len(info) >= slot + _SIZE.size):
            (index,) = _SIZE.unpack_from(info, slot)
            names.append(str(sets.get(index, index)).encode("utf-8", "surrogateescape"))
            _SIZE.pack_into(info, slot, 0)
    return [name, revision, bytes(info), *names]
