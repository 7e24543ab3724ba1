"""Reading a node: a snapshot in which everything fits together, with gaps for what could not be read."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Collection, Iterator, Mapping

import attrs

from .components import Component
from .errors import KernelError
from .host import Host, Interest, LegacyTable, Look, NftDump
from .model import (
    Backend,
    Controller,
    Family,
    FamilyState,
    FouPort,
    Gap,
    IpSet,
    IpvsService,
    NativeTable,
    Rule,
    Snapshot,
    Table,
    TableKey,
    names_by_index,
)
from .ownership import Claims, claim

__all__ = ["Reader", "Reading", "text_of"]

# Bytes of legacy tables, of hundreds of thousands of rules, that are worth the time to read them again.
_MOST_KEPT = 100 << 20
# What only those need to do with who own more than rules and sets.
_OF_ITEMS = frozenset({"ipvs", "routing", "fou"})


@attrs.frozen
class Reading:
    """What was read and what of it is owned.

    `generation` is that of nf_tables, None if it was not read; `moving` tells that it did not stand still for that.
    `legacy` has the legacy tables as they were read, to be written if they are still current; not the largest.
    """

    snapshot: Snapshot
    claims: Claims
    generation: int | None
    moving: bool
    legacy: dict[TableKey, LegacyTable] = attrs.field(factory=dict, repr=False)
    dump: NftDump | None = attrs.field(default=None, repr=False)

    def look(self) -> Look:
        """Return what the proof needs, with the legacy tables that are here now."""
        return Look(self.snapshot, self.dump, dict(self.legacy))


class Reader:
    """Reads a host for a component and some controllers of it.

    `interest` says what is read of rules; by default what may be owned, or hold what is. The inside of the selected
    controllers' chains is not read then, but for those in `look_into` (table, chain). With `look_at_all` every rule
    of others is looked at, also where nothing can refer to what is owned.
    """

    def __init__(
        self,
        host: Host,
        component: Component,
        controllers: frozenset[Controller],
        interest: Interest | None = None,
    ) -> None:
        self._wanted = interest
        self.host, self.component, self.controllers = host, component, controllers
        self.families = frozenset(host.families)
        self.look_into: set[tuple[str, str]] = set()
        self.look_at_all = False

    @property
    def is_concerned(self) -> bool:
        """Whether IPVS, links and routes have to do with the selected controllers."""
        return bool(self.controllers & self.component.item_controllers)

    def read(self) -> Reading:
        """Read everything that may be owned, or may hold what is. What cannot be read becomes a gap."""
        gaps = [gap for gap in self.host.gaps if self.is_concerned or gap.subsystem not in _OF_ITEMS]
        tables: dict[TableKey, Table] = {}
        natives: tuple[NativeTable, ...] = ()
        generation, moving = None, False
        interest = self._wanted or _Interest(self)
        legacy = [table for family in self.host.families for table in self._open_legacy(family, interest, gaps)]
        dump = None
        try:
            dump = self.host.dump_nft(interest)
        except KernelError as error:
            moving = error.errno == errno.EAGAIN
            gaps += [Gap(text_of(error), family, Backend.NFT) for family in self.host.families]
        services = self._services(gaps)
        # After the rules: an index that a rule holds keeps its name for as long as the rule is there.
        sets = self._sets(gaps, with_members=bool(services))
        names = names_by_index(sets.values())
        if dump is not None:
            tables.update(dump.tables(names))
            natives, generation = dump.native_tables, dump.generation
        for table in legacy:
            try:
                tables[table.key] = table.table(names)
            except KernelError as error:
                gaps.append(Gap(text_of(error), table.key.family, Backend.LEGACY, table.key.name))
        snapshot = Snapshot(tables=tables, native_tables=natives, sets=sets, services=services)
        snapshot = self._routing(snapshot, gaps)
        snapshot = attrs.evolve(snapshot, gaps=tuple(dict.fromkeys(gaps)), families=self._families(tables, gaps))
        snapshot = self._with_texts(snapshot)
        claims = claim(snapshot, self.component)
        return Reading(snapshot, claims, generation, moving, _kept(legacy), dump)

    def open_legacy(self, key: TableKey) -> LegacyTable:
        """Read one legacy table anew. Raises KernelError."""
        return self.host.open_legacy(key, _Interest(self))

    def with_table(self, snapshot: Snapshot, table: LegacyTable) -> Snapshot:
        """Return the snapshot with this legacy table, read anew, as the only one."""
        names = self.set_names()
        return attrs.evolve(snapshot, tables={table.key: table.table(names)})

    def set_names(self) -> dict[int, str]:
        """Return the names of sets by the index that rules hold."""
        return names_by_index(self._sets([]).values())

    def _families(self, tables: Mapping[TableKey, Table], gaps: list[Gap]) -> dict[Family, FamilyState]:
        return {
            family: self.host.family_state(
                family,
                gap=any(gap.family in {None, family} for gap in gaps),
                found=any(key.family is family for key in tables),
            )
            for family in self.host.families
        }

    def _open_legacy(self, family: Family, interest: Interest, gaps: list[Gap]) -> Iterator[LegacyTable]:
        try:
            keys = self.host.legacy_tables(family)
        except OSError as error:
            reason = f"legacy tables cannot be listed: {error.strerror}"
            gaps.append(Gap(reason, family, Backend.LEGACY))
            return
        for key in keys:
            try:
                yield self.host.open_legacy(key, interest)
            except KernelError as error:
                gaps.append(Gap(text_of(error), family, Backend.LEGACY, key.name))

    def _services(self, gaps: list[Gap]) -> tuple[IpvsService, ...]:
        if not self.is_concerned:
            return ()
        try:
            return tuple(s for s in self.host.services() if s.family in self.families)
        except KernelError as error:
            gaps.append(Gap(f"IPVS: {text_of(error)}", subsystem="ipvs"))
            return ()

    def _routing(self, snapshot: Snapshot, gaps: list[Gap]) -> Snapshot:
        if not self.is_concerned:
            return snapshot
        host, families = self.host, self.host.families
        try:
            links = host.links()
            named = [link for link in links if link.name in self.component.links_with_addresses]
            return attrs.evolve(
                snapshot,
                links=links,
                addresses=tuple(address for link in named for address in host.addresses(link)),
                policy_rules=tuple(rule for family in families for rule in host.policy_rules(family)),
                routes=tuple(
                    route for family in families for route in host.routes(family, self.component.routes, links)
                ),
                fou_ports=self._fou_ports(gaps),
            )
        except KernelError as error:
            gaps.append(Gap(f"links, routes and policy rules: {text_of(error)}", subsystem="routing"))
            return snapshot

    def _fou_ports(self, gaps: list[Gap]) -> tuple[FouPort, ...]:
        try:
            return tuple(port for port in self.host.fou_ports() if port.family in self.families)
        except KernelError as error:
            gaps.append(Gap(f"FOU ports: {text_of(error)}", subsystem="fou"))
            return ()

    def _sets(self, gaps: list[Gap], *, with_members: bool = False) -> dict[str, IpSet]:
        members = _Names(self.component.wants_members) if with_members else ()
        families = self.host.families
        try:
            return {item.name: item for item in self.host.sets(families, members)}
        except KernelError as error:
            told = {gap.family for gap in gaps if gap.subsystem == "ipset"}
            asked = [family for family in families if family not in told]
            gaps += [Gap(f"ipset: {text_of(error)}", family, subsystem="ipset") for family in asked]
            return {}

    def _with_texts(self, snapshot: Snapshot) -> Snapshot:
        """Ask iptables for the text of legacy rules that are not understood whole and that concern what is owned."""
        tables = dict(snapshot.tables)
        for key, table in snapshot.tables.items():
            if key.backend is Backend.NFT:
                continue  # to print a chain, iptables-nft loads modules
            found = {chain for chain, rules in table.rules.items() if any(self._concerns(key, r) for r in rules)}
            if found:
                rules = {chain: self._texts(key, chain, table.rules[chain]) for chain in found}
                tables[key] = attrs.evolve(table, rules={**table.rules, **rules})
        return attrs.evolve(snapshot, tables=tables)

    def _concerns(self, key: TableKey, rule: Rule) -> bool:
        return bool(rule.opaque) and (
            self.component.chain_owner(key.name, rule.target.name) is not None
            or any(self.component.set_owner(name) for name in rule.sets)
        )

    def _texts(self, key: TableKey, chain: str, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        lines = self.host.texts(key, chain)
        if lines is None or len(lines) != len(rules):
            return rules  # it cannot list them, or not the same ones any more
        return tuple(
            attrs.evolve(rule, text=line) if rule.opaque else rule for rule, line in zip(rules, lines, strict=True)
        )


class _Interest(Interest):
    """What a reader wants of rules: all that may be owned, or hold what is."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def sort(self, table: str, chains: Collection[str]) -> tuple[Collection[str], Collection[str]]:
        owned = self._reader.component.owned_chains(table, chains)
        selected, seen = self._reader.controllers, self._reader.look_into
        if not seen and selected.issuperset(owned.values()):
            return owned, owned
        return owned, {name for name, owner in owned.items() if owner in selected and (table, name) not in seen}

    def matters(self, name: str) -> bool:
        return self._reader.component.set_owner(name) is not None

    @functools.cache  # noqa: B019 - it lives as long as one reading
    def any_set_matters(self) -> bool:
        host = self._reader.host
        if self._reader.look_at_all:
            return True
        try:
            return any(self.matters(item.name) for item in host.sets(host.families))
        except KernelError:
            return True


def _kept(tables: list[LegacyTable]) -> dict[TableKey, LegacyTable]:
    """Return the tables to keep as they were read; what is not kept is read once more before it is written."""
    kept, held = {}, 0
    for table in tables:
        if held + table.size <= _MOST_KEPT:
            kept[table.key] = table
            held += table.size
    return kept


@attrs.frozen
class _Names:
    """The names of sets whose members are wanted."""

    test: Callable[[str], bool]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.test(name)


def text_of(error: KernelError) -> str:
    """Return what an error says, without the number that Python puts before it."""
    return error.strerror or str(error)
