"""A legacy table as the kernel hands it out and takes it back: one block of entries, with jumps by offset.

libiptc does the same, but for all programs of a process, with twice the memory, in a time that grows faster than the
number of chains, and it cannot leave policy counters alone. Here only what is removed is cut out: every entry that
stays goes back byte by byte, but for the offsets of its jumps (DESIGN.md, "Why not libiptc").
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import errno
import functools
import itertools
import re
import socket
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Self

from ..errors import KernelError
from ..model import Family, TableKey

__all__ = ["Blob", "Chain", "Cut", "well_formed"]

# The same numbers in both families (IPT_SO_…, IP6T_SO_…).
_GET_INFO, _GET_ENTRIES, _SET_REPLACE, _SET_ADD_COUNTERS = 64, 65, 64, 65
_HOOKS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
_ERROR = b"ERROR\0"
_ERROR_TARGET, _STANDARD_TARGET = 64, 40  # sizes of the target that names a chain, and of a verdict or jump
_SIZES, _VERDICT = struct.Struct("=HH"), struct.Struct("=i")
_VERDICT_NAMES = {-1: "DROP", -2: "ACCEPT", -4: "QUEUE", -5: "RETURN"}
_COUNTERS = 16  # struct xt_counters: packets and bytes, each 8 bytes
_TRIES = 5

_Hooks = ctypes.c_uint32 * 5


class _Info(ctypes.Structure):  # struct ipt_getinfo
    _fields_ = (
        ("name", ctypes.c_char * 32),
        ("valid_hooks", ctypes.c_uint32),
        ("hook_entry", _Hooks),
        ("underflow", _Hooks),
        ("num_entries", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
    )


class _Named(ctypes.Structure):  # the head of struct ipt_get_entries and of struct xt_counters_info
    _fields_ = (("name", ctypes.c_char * 32), ("number", ctypes.c_uint32), ("padding", ctypes.c_uint32))


class _Replace(ctypes.Structure):  # struct ipt_replace
    _fields_ = (
        ("name", ctypes.c_char * 32),
        ("valid_hooks", ctypes.c_uint32),
        ("num_entries", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("hook_entry", _Hooks),
        ("underflow", _Hooks),
        ("num_counters", ctypes.c_uint32),
        ("counters", ctypes.c_void_p),
    )


@contextlib.contextmanager
def well_formed(key: TableKey) -> Iterator[None]:
    """Turn what goes wrong in a block of entries that is not what it should be into KernelError (EPROTO)."""
    try:
        yield
    except (struct.error, IndexError, ValueError) as error:
        raise KernelError(errno.EPROTO, f"legacy table {key.name}: it is malformed ({error})") from error


_ROOM = ctypes.sizeof(_Replace)


class Chain(NamedTuple):
    """A chain's place: its rules are from `begin` to `end`, where its policy or its last return is.

    A user chain has an entry at its head, from `head`; with the one at its end it reaches to `next`.
    """

    name: str
    head: int
    begin: int
    end: int
    next: int


@functools.cache
def _head_pattern(size_at: int, head: int) -> re.Pattern[bytes]:
    sizes = _SIZES.pack(head, head + _ERROR_TARGET)
    between = b".{%d}" % (head - size_at - len(sizes))
    target = re.escape(struct.pack("=H", _ERROR_TARGET) + _ERROR) + b".{24}"  # old kernels leave bytes behind a name
    return re.compile(re.escape(sizes) + between + target + b"([^\\0]*)\\0", re.DOTALL)


class Blob:
    """The entries of one table at one moment."""

    is_blank = False

    def __init__(self, key: TableKey, content: tuple[_Info, bytearray] | None = None) -> None:
        """Read a table of the calling thread's network namespace, which makes it if it is not there.

        With `content` nothing is read. Raises KernelError.
        """
        self.key = key
        self.size_at, self.head = (88, 112) if key.family is Family.IPV4 else (140, 168)
        self.info, self.entries = content or _read(key)

    @functools.cached_property
    def chains(self) -> dict[str, Chain]:
        """The chains by name. Raises KernelError (EPROTO) if the entries are not what they should be."""
        with well_formed(self.key):
            return {chain.name: chain for chain in self._chains()}

    @functools.cached_property
    def _by_offset(self) -> dict[int, str]:
        return {chain.begin: name for name, chain in self.chains.items() if chain.head != chain.begin}

    def _chains(self) -> Iterator[Chain]:
        """Yield the chains: built-in ones begin where the hooks say, user ones with an entry that names them."""
        for place, hook in enumerate(_HOOKS):
            if self.info.valid_hooks & 1 << place:
                begin, end = self.info.hook_entry[place], self.info.underflow[place]
                yield Chain(hook, begin, begin, end, end + self.length(end))
        # User chains are found in one pass, without a look at each entry: a head is an entry of this size without
        # matches, whose target is an error with the chain's name. The last one is no chain's: it ends the table.
        size_at, size = self.size_at, self.head + _ERROR_TARGET
        last_size = self.head + _STANDARD_TARGET
        last_sizes = _SIZES.pack(self.head, last_size)
        found = [
            (head.start() - size_at, head[1]) for head in _head_pattern(size_at, self.head).finditer(self.entries)
        ]
        if not found or found[-1][0] + size != len(self.entries):
            raise ValueError("a table without an end")
        head, begin, name = -1, 0, b""
        for following, next_name in found:
            end = following - last_size
            # What is before a head ends in a plain return, as iptables has it; the built-in chains come first.
            if head < 0 or not self.entries.startswith(last_sizes, end + size_at):
                *_, end = self.offsets(begin, following)
                if end + self.length(end) != following:
                    continue  # bytes in the middle of an entry that look like a head
            if head >= 0:
                yield Chain(name.decode("utf-8", "surrogateescape"), head, begin, end, following)
            head, begin, name = following, following + size, next_name

    @property
    def user_chains(self) -> tuple[str, ...]:
        """The names of the user chains."""
        return tuple(self._by_offset.values())

    @functools.cached_property
    def user_count(self) -> int:
        """How many user chains there are."""
        return len(self._by_offset)

    def is_builtin(self, chain: Chain) -> bool:
        """Tell whether the kernel made the chain."""
        return chain.head == chain.begin

    def offsets(self, begin: int, end: int) -> Iterator[int]:
        """Yield where each entry from `begin` to `end` is."""
        unpack, entries, size_at = _SIZES.unpack_from, self.entries, self.size_at
        while begin < end:
            yield begin
            length = unpack(entries, begin + size_at)[1]
            if length < self.head:
                raise ValueError("an entry without an end")
            begin += length

    def length(self, offset: int) -> int:
        """Return the length of an entry."""
        length: int = _SIZES.unpack_from(self.entries, offset + self.size_at)[1]
        return length

    def entry(self, offset: int) -> bytes:
        """Return one entry."""
        return bytes(self.entries[offset : offset + self.length(offset)])

    def target(self, offset: int) -> str:
        """Return what an entry does: its verdict, the chain to which it jumps, its target's name, "" for nothing."""
        target, length = _SIZES.unpack_from(self.entries, offset + self.size_at)
        place = offset + target
        name = bytes(self.entries[place + 2 : place + 31]).split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
        if name:
            return name
        verdict = _VERDICT.unpack_from(self.entries, place + 32)[0]
        if verdict == offset + length:  # on with the next entry
            return ""
        return _VERDICT_NAMES.get(verdict, "") or self._by_offset.get(verdict, "")

    def jumps_to(self, begin: int, end: int, targets: frozenset[int]) -> bool:
        """Tell whether an entry from `begin` to `end` goes on at one of these offsets."""
        entries, unpack, size_at, verdict = self.entries, _SIZES.unpack_from, self.size_at, _VERDICT.unpack_from
        while begin < end:
            target, length = unpack(entries, begin + size_at)
            # An empty name is a standard target.
            if not entries[begin + target + 2] and verdict(entries, begin + target + 32)[0] in targets:
                return True
            if length < self.head:
                raise ValueError("an entry without an end")
            begin += length
        return False

    def counters(self, offset: int) -> tuple[int, int]:
        """Return the packets and bytes that an entry counted."""
        packets, octets = struct.unpack_from("=QQ", self.entries, offset + self.head - _COUNTERS)
        return packets, octets

    def equals(self, other: Blob) -> bool:
        """Tell whether two readings of a table differ in nothing but counters."""
        if bytes(self.info) != bytes(other.info) or len(self.entries) != len(other.entries):
            return False
        return self.entries == other.entries or self.blanked() == other.blanked(self.blanks)

    @functools.cached_property
    def blanks(self) -> array[int]:
        """Where in each entry that begins which changes by itself: the hooks that lead to it, and its counters."""
        blank = self.size_at + _SIZES.size
        return array("I", [offset + blank for offset in self.offsets(0, len(self.entries))])

    def blanked(self, blanks: array[int] | None = None) -> bytearray:
        """Return the entries without what changes by itself.

        With the places of another block they are equal only if all lengths are, and with them the places.
        """
        result = bytearray(self.entries)
        size = self.head - self.size_at - _SIZES.size
        zeros = bytes(size)
        for place in () if self.is_blank else self.blanks if blanks is None else blanks:
            result[place : place + size] = zeros
        return result

    def without(self, chains: Iterable[str], emptied: Iterable[str], rules: Iterable[tuple[str, int]]) -> Cut:
        """Return what is left without some user chains, the rules of others, and rules by chain and index from 0."""
        gone = [self.chains[name] for name in chains]
        removed = [(chain.head, chain.next) for chain in gone]
        only_emptied = [self.chains[name] for name in set(emptied).difference(chain.name for chain in gone)]
        removed += [(chain.begin, chain.end) for chain in only_emptied]
        by_chain: dict[str, set[int]] = {}
        for name, index in rules:
            by_chain.setdefault(name, set()).add(index)
        for name, places in by_chain.items():
            offsets = list(self.offsets(self.chains[name].begin, self.chains[name].end))
            removed += [(offsets[place], offsets[place] + self.length(offsets[place])) for place in places]
        return Cut(self, _joined(sorted(removed)), {chain.begin: chain.name for chain in gone})

    def replace(self, cut: Cut) -> None:
        """Put the table back as what is left of it; order and counters of what stays are kept.

        Raises KernelError, with EAGAIN if the kernel's table has another number of entries by now: nothing is changed
        then. To put the table and to put the counters are two calls; the kernel has no one for both.
        """
        counted = bytearray(self.info.num_entries * _COUNTERS)
        old = (ctypes.c_char * len(counted)).from_buffer(counted)
        replacement = _Replace(
            **{field: getattr(cut.info, field) for field, *_ in _Info._fields_},
            num_counters=self.info.num_entries,
            counters=ctypes.addressof(old),
        )
        with _Socket(self.key) as connection:
            cut.block[:_ROOM] = bytes(replacement)
            head = bytes(_Named(name=self.info.name, number=replacement.num_entries))
            places = [slice(number * _COUNTERS, (number + count) * _COUNTERS) for number, count in cut.kept]
            connection.set(_SET_REPLACE, cut.block)
            # The kernel has set all counters to zero and has told what they were. Nothing else is done in between.
            connection.set(_SET_ADD_COUNTERS, bytearray(b"".join([head, *map(counted.__getitem__, places)])))


class Cut:
    """What is left of a table: `info`, `entries` with their jumps moved, and `kept`, runs of the numbers they had.

    The entries are blanked: the kernel makes that anew whatever it is given, and what stays can be compared so.
    `dangling` names the removed chains to which something that stays jumps; the kernel would refuse that.
    """

    def __init__(self, blob: Blob, removed: list[tuple[int, int]], gone: Mapping[int, str]) -> None:
        self._key, self._user_count = blob.key, blob.user_count - len(gone)
        self._begins = [begin for begin, _end in removed]
        self._ends = [end for _begin, end in removed]
        self._lengths = [0, *itertools.accumulate(end - begin for begin, end in removed)]
        self.dangling: set[str] = set()
        # Large tables are copied once: with room before the entries for what the kernel wants there.
        self.block = bytearray(_ROOM + len(blob.entries) - self._lengths[-1])
        self.entries = memoryview(self.block)[_ROOM:]
        self.blanks = array("I")
        counts = []
        for start, end in zip([0, *self._ends], [*self._begins, len(blob.entries)], strict=True):
            place = self.moved(start)
            self.entries[place : place + end - start] = memoryview(blob.entries)[start:end]
            counts.append(self._move_jumps(blob, place, start, end, gone))
        self.kept: list[tuple[int, int]] = []
        number = 0
        for count, left_out in zip(counts, [*_counts(blob, removed, sum(counts)), 0], strict=True):
            self.kept.append((number, count))
            number += count + left_out
        info = blob.info
        self.info = _Info(info.name, info.valid_hooks, num_entries=sum(counts), size=len(self.entries))
        self.info.hook_entry = _Hooks(*map(self.moved, info.hook_entry))
        self.info.underflow = _Hooks(*map(self.moved, info.underflow))

    def left(self) -> Blob:
        """Return what is left as a table, which takes the entries over: the cut is of no use after that."""
        self.entries.release()
        del self.block[:_ROOM]  # CPython moves nothing for that
        blob = Blob(self._key, (self.info, self.block))
        blob.is_blank, blob.blanks, blob.user_count = True, self.blanks, self._user_count
        return blob

    def moved(self, offset: int) -> int:
        """Return where an offset is in what is left; one within what is removed is where that was."""
        return offset - sum(self._removed_before(offset))

    def _removed_before(self, offset: int) -> tuple[int, int]:
        """Return how much was removed before an offset: whole places, and of one in whose middle it is."""
        place = bisect.bisect_right(self._ends, offset)
        inside = max(offset - self._begins[place], 0) if place < len(self._begins) else 0
        return self._lengths[place], inside

    def _move_jumps(self, blob: Blob, place: int, start: int, end: int, gone: Mapping[int, str]) -> int:
        """Move the jumps of the entries from `start` to `end`, which are at `place` now; return how many they are."""
        entries, head = blob.entries, blob.head
        sizes, verdicts = _SIZES.unpack_from, _VERDICT
        size_at, blank, shift = blob.size_at, blob.size_at + _SIZES.size, place - start
        zeros, blanks = bytes(head - blank), []
        offset = start
        while offset < end:
            target, length = sizes(entries, offset + size_at)
            at = offset + target
            if not entries[at + 2]:  # a standard target: a verdict, or where to go on
                verdict = verdicts.unpack_from(entries, at + 32)[0]
                if verdict >= 0:
                    before, inside = self._removed_before(verdict)
                    if verdict in gone:
                        self.dangling.add(gone[verdict])
                    elif inside and verdict != offset + length:
                        raise ValueError("a jump into the middle of a chain")
                    verdicts.pack_into(self.entries, at + shift + 32, verdict - before - inside)
            if length < head:
                raise ValueError("an entry without an end")
            changing = offset + shift + blank
            self.entries[changing : changing + len(zeros)] = zeros
            blanks.append(changing)
            offset += length
        self.blanks.extend(blanks)
        return len(blanks)


def _read(key: TableKey) -> tuple[_Info, bytearray]:
    if struct.calcsize("P") != 8:
        raise KernelError(errno.ENOSYS, "legacy tables can be read by 64-bit programs only")
    name, start = key.name.encode(), ctypes.sizeof(_Named)
    with _Socket(key) as connection:
        for _ in range(_TRIES):
            info = _Info(name=name)
            connection.get(_GET_INFO, info)
            answer = bytearray(start + info.size)
            answer[:start] = bytes(_Named(name=name, number=info.size))
            try:
                connection.get(_GET_ENTRIES, (ctypes.c_char * len(answer)).from_buffer(answer))
            except KernelError as error:
                if error.errno == errno.EAGAIN:  # it grew or shrank between the two questions
                    continue
                raise
            again = _Info(name=name)
            connection.get(_GET_INFO, again)
            if bytes(again) != bytes(info):  # another table of the same size
                continue
            del answer[:start]
            return info, answer
    raise KernelError(errno.EAGAIN, f"legacy table {key.name} changes faster than it can be read")


def _joined(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return sorted places with those that touch made one."""
    result: list[tuple[int, int]] = []
    for begin, end in places:
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result


def _counts(blob: Blob, removed: list[tuple[int, int]], kept: int) -> list[int]:
    """Return how many entries each removed place has.

    The largest is not looked at: what is in no other place must be there. Most often all owned chains are in one.
    """
    if not removed:
        return []
    largest = max(range(len(removed)), key=lambda place: removed[place][1] - removed[place][0])
    counts = [
        0 if place == largest else sum(1 for _ in blob.offsets(*removed[place])) for place in range(len(removed))
    ]
    counts[largest] = blob.info.num_entries - kept - sum(counts)
    return counts


class _Socket:
    """The socket through which the kernel gives and takes tables."""

    def __init__(self, key: TableKey) -> None:
        self._what = f"legacy table {key.name}"
        version4 = key.family is Family.IPV4
        self._level = socket.IPPROTO_IP if version4 else socket.IPPROTO_IPV6
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._socket = socket.socket(socket.AF_INET if version4 else socket.AF_INET6, socket.SOCK_DGRAM)
        except OSError as error:
            raise KernelError(error.errno or 0, self._what) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()

    def get(self, option: int, buffer: ctypes.Structure | ctypes.Array[ctypes.c_char]) -> None:
        """Do what `socket.getsockopt` cannot: hand a buffer in, of more than 1024 bytes."""
        length = ctypes.c_uint32(ctypes.sizeof(buffer))
        where = ctypes.byref(buffer), ctypes.byref(length)
        self._check(self._libc.getsockopt(self._socket.fileno(), self._level, option, *where))

    def set(self, option: int, data: bytearray) -> None:
        """Hand a buffer of any size to the kernel."""
        where = (ctypes.c_char * len(data)).from_buffer(data)
        self._check(self._libc.setsockopt(self._socket.fileno(), self._level, option, where, len(data)))

    def _check(self, result: int) -> None:
        if result != 0:
            raise KernelError(ctypes.get_errno(), self._what)
