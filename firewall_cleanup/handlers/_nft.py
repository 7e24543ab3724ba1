"""nf_tables over netlink: a consistent dump, and one batch that applies whole or not at all."""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import attrs

from ..errors import BatchRefused, KernelError, StaleGeneration
from ..host import Interest, Staying
from ..model import BUILTIN_CHAINS, Backend, Change, Family, NativeTable, Policy, Rule, Table, TableChange, TableKey
from ._netlink import (
    NLA_TYPE_MASK,
    NLM_F_REQUEST,
    NLMSG_ERROR,
    NetlinkSocket,
    acknowledged,
    attribute,
    attributes,
    message,
    name_of,
    named_messages,
    parts_of,
)
from ._nft_rules import decode_rule
from ._xt import SetNames

if TYPE_CHECKING:
    from ._nft_listener import NftListener

__all__ = ["IPTABLES_TABLES", "NftConnection", "NftDump", "send_batch"]

IPTABLES_TABLES = frozenset(BUILTIN_CHAINS)

_SUBSYSTEM = 10 << 8
_GET_TABLE, _DEL_TABLE, _GET_CHAIN, _DEL_CHAIN, _GET_RULE, _DEL_RULE, _GET_GEN = 1, 2, 4, 5, 7, 8, 16
_GET_SET, _GET_ELEMENT, _VERDICT_DATA = 10, 13, b"\xff\xff\xff\0"
_BATCH_BEGIN, _BATCH_END, _BATCH_GENID = 0x10, 0x11, 1
# Attributes of a chain (NFTA_CHAIN_*) and of a rule.
_TABLE, _NAME, _HOOK, _POLICY, _USE, _COUNTERS = 1, 3, 4, 5, 6, 8
_RULE_CHAIN, _RULE_HANDLE = 2, 3
_FAMILIES = {0: "unspec", 1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
_FAMILY_NUMBERS = {name: number for number, name in _FAMILIES.items()}
_DUMP_TRIES = 20
_POLICIES = {0: "DROP", 1: "ACCEPT"}


def _attribute_head(number: int) -> bytes:
    return b".." + re.escape(struct.pack("=H", number))


# What the kernel tells of nearly every chain: table, name, handle, use, in that order or with the handle first. The
# others are read attribute by attribute, in three times the time.
_HANDLE = b"(?:" + _attribute_head(2) + b".{8})?"
_USER_CHAIN = re.compile(
    _attribute_head(_TABLE) + b"([^\0]+)\0+" + _HANDLE + _attribute_head(_NAME) + b"([^\0]+)\0+" + _HANDLE
    + _attribute_head(_USE) + b"(.{4})",
    re.DOTALL,
)  # fmt: skip

# Where a rule sends the packet: the attributes NFTA_VERDICT_CODE (jump or goto) and NFTA_VERDICT_CHAIN.
_JUMP = re.compile(
    re.escape(struct.pack("=HH", 8, 1) + b"\xff\xff\xff")
    + b"[\xfc\xfd].."
    + re.escape(struct.pack("=H", 2))
    + b"([^\0]+)",
    re.DOTALL,
)
_HANDLE_HEAD = struct.pack("=HH", 12, _RULE_HANDLE)
# The names of the xtables extensions that use sets, as attributes hold them.
_SET_WORDS = tuple(struct.pack("=HH", 8, 1) + name for name in (b"set\0", b"SET\0"))


@attrs.frozen
class _RawTable:
    """A table as it was dumped: `rules` of the chains to decode, `maybe` of those that matter if their sets do.

    `whole` are the chains that are read whole whatever is in them; `handles` has the handles of the rules of others.
    """

    builtin: dict[str, Policy] = attrs.field(factory=dict)
    chains: list[str] = attrs.field(factory=list)
    uses: dict[str, int] = attrs.field(factory=dict)
    rules: dict[str, list[bytes]] = attrs.field(factory=dict)
    maybe: dict[str, list[bytes]] = attrs.field(factory=dict)
    mapped: dict[str, str] = attrs.field(factory=dict)
    whole: list[str] = attrs.field(factory=list)
    handles: dict[str, bytes] = attrs.field(factory=dict)

    def take(self, chain: str, payloads: list[bytes], owned: Collection[bytes]) -> None:
        """Keep the rules of a chain, if it is to be read whole or one of them may matter."""
        if chain in self.rules or any(name in owned for payload in payloads for name in _JUMP.findall(payload)):
            self.rules[chain] = payloads
        elif any(word in payload for payload in payloads for word in _SET_WORDS):
            self.maybe[chain] = payloads


@attrs.frozen
class NftDump:
    """What nf_tables held in one generation. Rules are kept as bytes until the names of ipsets are known."""

    generation: int
    native_tables: tuple[NativeTable, ...]
    raw: Mapping[TableKey, _RawTable]
    interest: Interest

    def tables(self, sets: SetNames) -> dict[TableKey, Table]:
        """Return the tables of iptables, decoded; `sets` maps an ipset's index to its name."""
        return {key: self._table(key, raw, sets) for key, raw in self.raw.items()}

    def staying(self, owned: TableChange, sets: SetNames, like: Staying | None = None) -> Staying:
        """Return what stays of a table without what is owned, with the rules of the chains that are always read."""
        from ._nft_staying import of_nft  # noqa: PLC0415 - only a run that changed something compares

        del like
        raw, gone = self.raw[owned.key], {*owned.flush, *owned.delete}
        chains = [name for name in raw.chains if name not in gone]
        return of_nft(
            owned.key.family,
            raw.builtin,
            chains,
            {name: raw.rules[name] for name in raw.whole if name not in gone},
            frozenset(rule.handle for rule in owned.rules),
            raw.handles,
            sets,
        )

    def _table(self, key: TableKey, raw: _RawTable, sets: SetNames) -> Table:
        def decode(chain: str, payloads: list[bytes]) -> tuple[Rule, ...]:
            return tuple(decode_rule(payload, chain, i, key.family, sets) for i, payload in enumerate(payloads))

        rules = {chain: decode(chain, payloads) for chain, payloads in raw.rules.items()}
        for chain, payloads in raw.maybe.items():
            decoded = decode(chain, payloads)
            if any(self.interest.matters(name) for rule in decoded for name in rule.sets):
                rules[chain] = decoded
        return Table(key, raw.builtin, tuple(raw.chains), rules, raw.mapped)


class NftConnection:
    """A connection to the nf_tables of one network namespace."""

    def __init__(self) -> None:
        self._netlink = NetlinkSocket()
        self._listener: NftListener | None = None

    def close(self) -> None:
        """Close the connection, and what listens for it; again is no error."""
        self._netlink.close()
        if self._listener is not None:
            self._listener.close()

    def listen(self) -> NftListener:
        """Return what hears from now on who changes nf_tables; it is closed with the connection.

        For a thread in the connection's network namespace. Raises OSError (EPERM without CAP_NET_ADMIN).
        """
        from ._nft_listener import NftListener  # noqa: PLC0415 - only who has changed nf_tables listens

        if self._listener is None:
            self._listener = NftListener()
        else:
            self._listener.begin()
        return self._listener

    def generation(self) -> int:
        """Return the number of the current generation. Raises KernelError (EPERM without CAP_NET_ADMIN)."""
        answer = self._netlink.request(_SUBSYSTEM | _GET_GEN, _nfgen(0))
        return int.from_bytes(parts_of(answer or b"", 4)[1], "big")

    def dump(self, families: Iterable[Family], interest: Interest) -> NftDump:
        """Read tables, chains, and of the rules in iptables' tables what is of interest.

        A dump that a writer crossed is read again. Raises KernelError, with EAGAIN if the ruleset never stood still.
        """
        families = tuple(families)
        for _ in range(_DUMP_TRIES):
            generation = self.generation()
            dump = self._dump_once(generation, families, interest)
            if dump is not None and self.generation() == generation:
                return dump
        raise KernelError(errno.EAGAIN, "the nf_tables ruleset changes faster than it can be read")

    def _dump_once(self, generation: int, families: tuple[Family, ...], interest: Interest) -> NftDump | None:
        natives = self._native_tables()
        if natives is None:
            return None
        wanted = {native for native in natives if native.address_family and native.name in IPTABLES_TABLES}
        raw: dict[TableKey, _RawTable] = {}
        for family in families:
            if not any(native.address_family is family for native in wanted):
                continue
            found = self._chains(family)
            if found is None or not all(self._inside(key, table, interest) for key, table in found.items()):
                return None
            raw.update(found)
        others = tuple(native for native in natives if native not in wanted)
        return NftDump(generation, others, raw, interest)

    def _native_tables(self) -> list[NativeTable] | None:
        payloads, torn = self._netlink.dump(_SUBSYSTEM | _GET_TABLE, _nfgen(0))
        if torn:
            return None
        return [
            NativeTable(_FAMILIES.get(payload[0], str(payload[0])), name_of(parts_of(payload, 4)[1]))
            for payload in payloads
        ]

    def _chains(self, family: Family) -> dict[TableKey, _RawTable] | None:
        by_name = {name.encode(): _RawTable() for name in IPTABLES_TABLES}
        match = _USER_CHAIN.match

        def take(payload: bytes) -> None:
            plain = match(payload, 4)
            if plain is not None:
                table_name, chain, uses = plain.groups()
            else:
                parts = parts_of(payload, 4)
                table_name, chain = parts[_TABLE].rstrip(b"\0"), parts[_NAME].rstrip(b"\0")
                uses = parts.get(_USE, b"\1")
            table = by_name.get(table_name)
            if table is None:
                return
            name = chain.decode("utf-8", "surrogateescape")
            if plain is None and _HOOK in parts:
                table.builtin[name] = _policy(parts)
            else:
                table.chains.append(name)
            # Counts rules and jumps to the chain: one that nothing uses has no rules either.
            table.uses[name] = int.from_bytes(uses, "big")

        if self._netlink.dump_each(_SUBSYSTEM | _GET_CHAIN, _nfgen(family.number), take):
            return None
        return {TableKey(family, Backend.NFT, name.decode()): raw for name, raw in by_name.items() if raw.uses}

    def _inside(self, key: TableKey, table: _RawTable, interest: Interest) -> bool:
        """Read what is of interest of a table's rules; return False if the dump is torn."""
        owned, unread = interest.sort(key.name, table.chains)
        whole = [name for name in (*table.builtin, *owned) if name not in unread]
        table.rules.update((name, []) for name in whole)
        table.whole.extend(whole)
        to_read = [name for name in whole if table.uses[name]]
        if owned or interest.any_set_matters():
            table.handles.update((name, b"") for name in table.chains if name not in owned)
            to_read += [name for name in table.handles if table.uses[name]]
        where = _nfgen(key.family.number) + _string(1, key.name)
        targets = {_bytes(name)[:-1] for name in owned}
        # Chain by chain: asked for a whole table, the kernel counts from the first rule again for each 32 KiB.
        for name in to_read:
            payloads: list[bytes] = []
            request = where + _string(_RULE_CHAIN, name)
            if self._torn(_GET_RULE, request, payloads.append):
                return False
            table.take(name, payloads, targets)
            if payloads and name in table.handles:
                # Rules are told of as they are asked for, and the handle follows.
                at = len(request) + 4
                if not payloads[0].startswith(_HANDLE_HEAD, len(request)):
                    at = _handle_at(payloads[0])
                table.handles[name] = b"".join([payload[at : at + 8] for payload in payloads])
        return self._maps(key, table.mapped)

    def _torn(self, kind: int, payload: bytes, take: Callable[[bytes], object]) -> bool:
        try:
            return self._netlink.dump_each(_SUBSYSTEM | kind, payload, take)
        except KernelError as error:
            if error.errno == errno.ENOENT:  # it went away while we were reading
                return True
            raise

    def _maps(self, key: TableKey, into: dict[str, str]) -> bool:
        """Find the chains to which a verdict map sends packets; iptables makes no such map, but others do."""
        where = _nfgen(key.family.number) + _string(1, key.name)
        maps: list[bytes] = []

        def take(payload: bytes) -> None:
            parts = parts_of(payload, 4)
            if parts.get(6) == _VERDICT_DATA:
                maps.append(parts[2])

        def fill(payload: bytes) -> None:
            into.update(dict.fromkeys(_mapped_chains(payload), name_of(name)))

        torn = self._torn(_GET_SET, where, take)
        for name in maps:
            torn = self._torn(_GET_ELEMENT, where + attribute(2, name), fill) or torn
        return not torn

    def commit(self, change: Change, generation: int) -> None:
        """Apply a change in one batch, if the ruleset is still of the given generation.

        Raises StaleGeneration (nothing applied, read again), BatchRefused (nothing applied), KernelError.
        """
        steps = [step for step in _steps(change) if step.names]

        def encoded(start: int) -> Iterator[bytes]:
            for step in steps:
                kind = _SUBSYSTEM | step.kind
                yield from named_messages(kind, start, step.head, step.attribute, step.names)
                start += len(step.names)

        failures = send_batch(self._netlink, sum(len(step.names) for step in steps), generation, encoded)
        if failures:
            places = [place for step in steps for place in step.places()]
            raise BatchRefused({places[number]: code for number, code in failures.items()})


def send_batch(
    netlink: NetlinkSocket, count: int, generation: int, encoded: Callable[[int], Iterable[bytes]]
) -> dict[int, int]:
    """Send messages that nf_tables takes all or none, if its ruleset still is of a generation.

    `encoded` gives the `count` messages, of which the first has the sequence that it gets. Returns the errno of each
    that is refused, by its number from 0: none is applied then. Raises StaleGeneration, KernelError.
    """
    first = netlink.take_sequences(count + 2)
    begin = _nfgen(0, 10) + attribute(_BATCH_GENID, generation.to_bytes(4, "big"))
    batch = [message(_BATCH_BEGIN, NLM_F_REQUEST, first, begin), *encoded(first + 1)]
    # Errors come unasked. One acknowledgement is enough: thousands would not fit the receive buffer.
    batch[-1] = acknowledged(batch[-1])
    batch.append(message(_BATCH_END, NLM_F_REQUEST, first + count + 1, _nfgen(0, 10)))
    netlink.send(b"".join(batch))
    failures = _answers(netlink, first, first + count)
    return {sequence - first - 1: code for sequence, code in failures.items()}


def _answers(netlink: NetlinkSocket, first: int, last: int) -> dict[int, int]:
    failures: dict[int, int] = {}
    done = False
    for reply in netlink.receive_ready():
        if reply.type != NLMSG_ERROR or not first <= reply.sequence <= last:
            continue
        code = -struct.unpack_from("=i", reply.payload)[0]
        if reply.sequence == first and code:
            if code == errno.ERESTART:
                raise StaleGeneration("the nf_tables ruleset was changed by somebody else")
            raise KernelError(code, "nf_tables batch")
        if code:
            failures[reply.sequence] = code
        done = done or reply.sequence == last
    if not done and not failures:
        raise KernelError(errno.EPROTO, "nf_tables did not answer a batch")
    return failures


@attrs.frozen
class _Step:
    """Messages of one kind: all have `head`, then an attribute that says what goes."""

    kind: int
    head: bytes
    attribute: int
    names: list[bytes]
    table: TableKey | NativeTable
    what: str
    what_names: tuple[str | int | None, ...]

    def places(self) -> Iterator[tuple[object, str, object]]:
        """Yield what a refusal of each message is about."""
        return ((self.table, self.what, name) for name in self.what_names)


def _steps(change: Change) -> Iterator[_Step]:
    """Yield the steps in an order in which the kernel can take each: uses go before what they use."""
    for part in change.tables:
        key, head = part.key, _nfgen(part.key.family.number) + _string(1, part.key.name)
        for rule in part.rules:
            handle = [(rule.handle or 0).to_bytes(8, "big")]
            yield _Step(_DEL_RULE, head + _string(2, rule.chain), _RULE_HANDLE, handle, key, "rule", (rule.handle,))
        yield _Step(_DEL_RULE, head, _RULE_CHAIN, _all_bytes(part.flush), key, "flush", part.flush)
    for part in change.tables:
        key, head = part.key, _nfgen(part.key.family.number) + _string(1, part.key.name)
        yield _Step(_DEL_CHAIN, head, _NAME, _all_bytes(part.delete), key, "chain", part.delete)
    for native in change.native_tables:
        head = _nfgen(_FAMILY_NUMBERS[native.family])
        yield _Step(_DEL_TABLE, head, _TABLE, [_bytes(native.name)], native, "table", (native.name,))


def _handle_at(payload: bytes) -> int:
    """Return where the handle is in a rule's message, which is the same for a whole chain."""
    at = 4
    while at + 4 < len(payload):
        length, kind = struct.unpack_from("=HH", payload, at)
        if kind & NLA_TYPE_MASK == _RULE_HANDLE or length < 4:
            break
        at += (length + 3) & ~3
    return at + 4


def _mapped_chains(payload: bytes) -> Iterator[str]:
    """Yield the chains in the verdicts of a map's elements."""
    for _kind, element in attributes(parts_of(payload, 4).get(3, b"")):
        data = parts_of(parts_of(element).get(2, b""))
        verdict = parts_of(data.get(2, b""))
        if 2 in verdict:
            yield name_of(verdict[2])


def _policy(parts: dict[int, bytes]) -> Policy:
    counters = parts_of(parts.get(_COUNTERS, b""))
    return Policy(
        _POLICIES.get(int.from_bytes(parts.get(_POLICY, b"\1"), "big"), "ACCEPT"),
        packets=int.from_bytes(counters.get(2, b""), "big"),
        bytes=int.from_bytes(counters.get(1, b""), "big"),
    )


def _nfgen(family: int, resource: int = 0) -> bytes:
    return struct.pack("=BB", family, 0) + resource.to_bytes(2, "big")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape") + b"\0"


def _all_bytes(names: Iterable[str]) -> list[bytes]:
    text = "".join(name + "\0" for name in names)  # one encoding of all is many times faster than one of each
    return [name + b"\0" for name in text.encode("utf-8", "surrogateescape").split(b"\0")[:-1]]


def _string(kind: int, text: str) -> bytes:
    return attribute(kind, _bytes(text))
