"""nf_tables over netlink: a consistent dump, and one batch that applies whole or not at all."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Iterator, Mapping

import attrs

from ..errors import BatchRefused, KernelError, StaleGeneration
from ..host import Skip
from ..model import Backend, Change, Family, NativeTable, Policy, Rule, Table, TableKey
from ._netlink import NLM_F_ACK, NLM_F_REQUEST, NLMSG_ERROR, NetlinkSocket, attribute, attributes, message
from ._nft_rules import decode_rule
from ._xt import SetNames

__all__ = ["IPTABLES_TABLES", "NftConnection", "NftDump"]

IPTABLES_TABLES = frozenset({"filter", "mangle", "nat", "raw", "security"})

_SUBSYSTEM = 10 << 8
_GET_TABLE, _DEL_TABLE, _GET_CHAIN, _DEL_CHAIN, _GET_RULE, _DEL_RULE, _GET_GEN = 1, 2, 4, 5, 7, 8, 16
_GET_SET, _GET_ELEMENT, _VERDICT_DATA = 10, 13, b"\xff\xff\xff\0"
_BATCH_BEGIN, _BATCH_END, _BATCH_GENID = 0x10, 0x11, 1
_FAMILIES = {0: "unspec", 1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
_FAMILY_NUMBERS = {name: number for number, name in _FAMILIES.items()}
_DUMP_TRIES = 20
_POLICIES = {0: "DROP", 1: "ACCEPT"}


@attrs.frozen
class _RawTable:
    builtin: dict[str, Policy] = attrs.field(factory=dict)
    chains: list[str] = attrs.field(factory=list)
    rules: dict[str, list[bytes]] = attrs.field(factory=dict)
    mapped: dict[str, str] = attrs.field(factory=dict)


@attrs.frozen
class NftDump:
    """What nf_tables held in one generation. Rules are kept as bytes until the names of ipsets are known."""

    generation: int
    native_tables: tuple[NativeTable, ...]
    raw: Mapping[TableKey, _RawTable]

    def tables(self, sets: SetNames) -> dict[TableKey, Table]:
        """Return the tables of iptables, decoded; `sets` maps an ipset's index to its name."""
        return {key: self._table(key, raw, sets) for key, raw in self.raw.items()}

    @staticmethod
    def _table(key: TableKey, raw: _RawTable, sets: SetNames) -> Table:
        rules: dict[str, tuple[Rule, ...]] = {
            chain: tuple(decode_rule(payload, chain, i, key.family, sets) for i, payload in enumerate(payloads))
            for chain, payloads in raw.rules.items()
        }
        return Table(key, raw.builtin, tuple(raw.chains), rules, raw.mapped)


class NftConnection:
    """A connection to the nf_tables of one network namespace."""

    def __init__(self) -> None:
        self._netlink = NetlinkSocket()

    def close(self) -> None:
        """Close the connection; again is no error."""
        self._netlink.close()

    def generation(self) -> int:
        """Return the number of the current generation. Raises KernelError (EPERM without CAP_NET_ADMIN)."""
        answer = self._netlink.request(_SUBSYSTEM | _GET_GEN, _nfgen(0))
        return int.from_bytes(dict(attributes(answer or b"", 4))[1], "big")

    def dump(self, families: Iterable[Family], skip: Skip) -> NftDump:
        """Read tables, chains, and the rules of every chain of iptables that `skip` does not name.

        A dump that a writer crossed is read again. Raises KernelError, with EAGAIN if the ruleset never stood still.
        """
        families = tuple(families)
        for _ in range(_DUMP_TRIES):
            generation = self.generation()
            dump = self._dump_once(generation, families, skip)
            if dump is not None and self.generation() == generation:
                return dump
        raise KernelError(errno.EAGAIN, "the nf_tables ruleset changes faster than it can be read")

    def _dump_once(self, generation: int, families: tuple[Family, ...], skip: Skip) -> NftDump | None:
        natives = self._native_tables()
        if natives is None:
            return None
        raw: dict[TableKey, _RawTable] = {}
        wanted = {native for native in natives if native.address_family and native.name in IPTABLES_TABLES}
        for family in families:
            if not any(native.address_family is family for native in wanted):
                continue
            if not self._chains(family, raw, skip):
                return None
        others = tuple(native for native in natives if native not in wanted)
        return NftDump(generation, others, raw)

    def _native_tables(self) -> list[NativeTable] | None:
        payloads, torn = self._netlink.dump(_SUBSYSTEM | _GET_TABLE, _nfgen(0))
        if torn:
            return None
        return [
            NativeTable(_FAMILIES.get(payload[0], str(payload[0])), _text(dict(attributes(payload, 4))[1]))
            for payload in payloads
        ]

    def _chains(self, family: Family, raw: dict[TableKey, _RawTable], skip: Skip) -> bool:
        payloads, torn = self._netlink.dump(_SUBSYSTEM | _GET_CHAIN, _nfgen(family.number))
        if torn:
            return False
        to_read: list[tuple[TableKey, str]] = []
        keys = {name: TableKey(family, Backend.NFT, name) for name in IPTABLES_TABLES}
        for payload in payloads:
            parts = dict(attributes(payload, 4))
            key = keys.get(_text(parts[1]))
            if key is None:
                continue
            name = _text(parts[3])
            table = raw.setdefault(key, _RawTable())
            if 4 in parts:
                table.builtin[name] = _policy(parts)
            else:
                table.chains.append(name)
                if skip(key.name, name):
                    continue
            table.rules[name] = []
            if any(parts.get(6, b"\1")):  # a chain that nothing uses has no rules either
                to_read.append((key, name))
        if not all(self._rules(key, name, raw[key].rules[name]) for key, name in to_read):
            return False
        return all(self._maps(key, table.mapped) for key, table in raw.items() if key.family is family)

    def _rules(self, key: TableKey, chain: str, into: list[bytes]) -> bool:
        payload = _nfgen(key.family.number) + _string(1, key.name) + _string(2, chain)
        try:
            payloads, torn = self._netlink.dump(_SUBSYSTEM | _GET_RULE, payload)
        except KernelError as error:
            if error.errno == errno.ENOENT:  # the chain went away while we were reading
                return False
            raise
        into.extend(payloads)
        return not torn

    def _maps(self, key: TableKey, into: dict[str, str]) -> bool:
        """Find the chains to which a verdict map sends packets; iptables makes no such map, but others do."""
        where = _nfgen(key.family.number) + _string(1, key.name)
        try:
            payloads, torn = self._netlink.dump(_SUBSYSTEM | _GET_SET, where)
            maps = [parts[2] for parts in _attributes_of(payloads) if parts.get(6) == _VERDICT_DATA]
            for name in maps:
                elements, moved = self._netlink.dump(_SUBSYSTEM | _GET_ELEMENT, where + attribute(2, name))
                torn = torn or moved
                into.update(dict.fromkeys(_mapped_chains(elements), _text(name)))
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        return not torn

    def commit(self, change: Change, generation: int) -> None:
        """Apply a change in one batch, if the ruleset is still of the given generation.

        Raises StaleGeneration (nothing applied, read again), BatchRefused (nothing applied), KernelError.
        """
        operations = list(_operations(change))
        first = self._netlink.next_sequence()
        begin = attribute(_BATCH_GENID, generation.to_bytes(4, "big"))
        batch = [message(_BATCH_BEGIN, NLM_F_REQUEST, first, _nfgen(0, 10) + begin)]
        last = first + len(operations)
        for operation in operations:
            sequence = self._netlink.next_sequence()
            # Errors come unasked. One acknowledgement is enough: thousands would not fit the receive buffer.
            flags = NLM_F_REQUEST | NLM_F_ACK if sequence == last else NLM_F_REQUEST
            batch.append(message(_SUBSYSTEM | operation.kind, flags, sequence, operation.payload))
        batch.append(message(_BATCH_END, NLM_F_REQUEST, self._netlink.next_sequence(), _nfgen(0, 10)))
        self._netlink.send(b"".join(batch))
        failures = self._answers(first, last)
        if failures:
            raise BatchRefused({operations[s - first - 1].name: code for s, code in failures.items()})

    def _answers(self, first: int, last: int) -> dict[int, int]:
        failures: dict[int, int] = {}
        done = False
        for reply in self._netlink.receive_ready():
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
class _Operation:
    kind: int
    payload: bytes
    name: tuple[TableKey | NativeTable, str, str | int | None]


def _operations(change: Change) -> Iterator[_Operation]:
    """Yield the steps in an order in which the kernel can take each: uses go before what they use."""
    for part in change.tables:
        head = _nfgen(part.key.family.number) + _string(1, part.key.name)
        for rule in part.rules:
            where = _string(2, rule.chain) + attribute(3, (rule.handle or 0).to_bytes(8, "big"))
            yield _Operation(_DEL_RULE, head + where, (part.key, "rule", rule.handle))
        for chain in part.flush:
            yield _Operation(_DEL_RULE, head + _string(2, chain), (part.key, "flush", chain))
    for part in change.tables:
        head = _nfgen(part.key.family.number) + _string(1, part.key.name)
        for chain in part.delete:
            yield _Operation(_DEL_CHAIN, head + _string(3, chain), (part.key, "chain", chain))
    for native in change.native_tables:
        payload = _nfgen(_FAMILY_NUMBERS[native.family]) + _string(1, native.name)
        yield _Operation(_DEL_TABLE, payload, (native, "table", native.name))


def _attributes_of(payloads: Iterable[bytes]) -> Iterator[dict[int, bytes]]:
    return (dict(attributes(payload, 4)) for payload in payloads)


def _mapped_chains(payloads: Iterable[bytes]) -> Iterator[str]:
    """Yield the chains in the verdicts of a map's elements."""
    for parts in _attributes_of(payloads):
        for _kind, element in attributes(parts.get(3, b"")):
            data = dict(attributes(dict(attributes(element)).get(2, b"")))
            verdict = dict(attributes(data.get(2, b"")))
            if 2 in verdict:
                yield _text(verdict[2])


def _policy(parts: dict[int, bytes]) -> Policy:
    counters = dict(attributes(parts.get(8, b"")))
    return Policy(
        _POLICIES.get(int.from_bytes(parts.get(5, b"\1"), "big"), "ACCEPT"),
        packets=int.from_bytes(counters.get(2, b""), "big"),
        bytes=int.from_bytes(counters.get(1, b""), "big"),
    )


def _nfgen(family: int, resource: int = 0) -> bytes:
    return struct.pack("=BB", family, 0) + resource.to_bytes(2, "big")


def _string(kind: int, text: str) -> bytes:
    return attribute(kind, text.encode("utf-8", "surrogateescape") + b"\0")


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("utf-8", "surrogateescape")
