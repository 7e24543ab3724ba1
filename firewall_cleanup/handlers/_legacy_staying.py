"""What stays of a legacy table, in a form in which the same is the same bytes."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable

import attrs

from ..host import Staying
from ..rules import render
from ._legacy_blob import Blob
from ._legacy_rules import decode_entry
from ._nft_staying import Words, set_slots
from ._xt import SetNames

__all__ = ["SET_WORDS", "of_legacy"]

_SIZES, _SIZE = struct.Struct("=HH"), struct.Struct("=H")
SET_WORDS = (b"set\0", b"SET\0")
"""The names of the match and the target that use sets; what else holds these bytes is told apart by decoding it."""

# The sizes that these may have with their heads.
_SET_SIZES = range(33, 100)


def of_legacy(blob: Blob, sets: SetNames, like: Staying | None = None) -> Staying:
    """Return what stays of a legacy table of which only that is left.

    The block itself is compared, as the kernel lays out the same chains and rules always alike; beside it the places
    where built-in chains begin and end, as the block alone does not tell a policy from a rule without matches.
    """
    if like is not None and isinstance(like.marks, _Marks) and like.marks.fit(blob, sets):
        return like
    # Nothing is written into these where no set is used.
    entries = blob.entries if blob.is_blank and not sets else blob.blanked()
    used = _without_indices(entries, sets)
    names = b"".join(f"{place} {name}\n".encode("utf-8", "surrogateescape") for place, name in used)
    places = _places(blob)
    builtin, user = len(places) // 12, blob.user_count

    def words() -> Words:
        return {
            chain.name: [
                _legacy_rule(blob, chain.name, index, offset, sets)
                for index, offset in enumerate(blob.offsets(chain.begin, chain.end))
            ]
            for chain in blob.chains.values()
        }

    # A user chain has an entry at its head and one at its end, a built-in one its policy; the last ends the table.
    rules = blob.info.num_entries - 2 * user - builtin - 1
    marks = _Marks(entries, places, blob.blanks, used)
    return Staying((places, names, entries), builtin + user, rules, words=words, marks=marks)


def _places(blob: Blob) -> bytes:
    info = blob.info
    hooks = (place for place in range(5) if info.valid_hooks & 1 << place)
    return b"".join(struct.pack("=III", hook, info.hook_entry[hook], info.underflow[hook]) for hook in hooks)


@attrs.frozen
class _Marks:
    """Where in a block is what is not compared as it is: with it another block is compared without a walk."""

    entries: bytearray
    places: bytes
    blanks: array[int]
    sets: list[tuple[int, str]]

    def fit(self, blob: Blob, sets: SetNames) -> bool:
        """Tell whether a block has the same content."""
        if len(blob.entries) != len(self.entries) or _places(blob) != self.places:
            return False
        entries = blob.blanked(self.blanks)
        for place, name in self.sets:
            (index,) = _SIZE.unpack_from(entries, place)
            if str(sets.get(index, index)) != name:
                return False
            _SIZE.pack_into(entries, place, 0)
        return entries == self.entries


def _without_indices(entries: bytearray, sets: SetNames) -> list[tuple[int, str]]:
    """Set the indices of sets to zero and return where they were and the names: the same set may get another one."""
    used = []
    for word in SET_WORDS if sets else ():
        at = entries.find(word)
        while at >= 2:
            (size,) = _SIZE.unpack_from(entries, at - 2)
            for slot in set_slots(word, entries[at + 29]) if size in _SET_SIZES else ():
                (index,) = _SIZE.unpack_from(entries, at + 30 + slot)
                used.append((at + 30 + slot, str(sets.get(index, index))))
                _SIZE.pack_into(entries, at + 30 + slot, 0)
            at = entries.find(word, at + len(word))
    return used


def _legacy_rule(blob: Blob, chain: str, index: int, offset: int, sets: SetNames) -> tuple[bytes, Callable[[], str]]:
    entry, target = blob.entry(offset), blob.target(offset)
    blank = blob.size_at + _SIZES.size
    same = bytearray(entry[:blank] + bytes(blob.head - blank) + entry[blob.head :])
    names = "".join(f" {name}" for _place, name in _without_indices(same, sets)).encode("utf-8", "surrogateescape")
    (target_at, _length) = _SIZES.unpack_from(entry, blob.size_at)
    if not entry[target_at + 2]:  # a verdict or a jump, which is to an offset
        same[target_at:] = target.encode("utf-8", "surrogateescape")
    family, chains = blob.key.family, blob.chains
    return bytes(same) + names, lambda: render(decode_entry(entry, target, chain, index, family, sets, chains))
