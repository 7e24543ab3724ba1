"""A node that is known from files: what the engine reads of one, without a kernel. Nothing can be written to it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import NoReturn

import attrs

from .bundle import Bundle
from .components import Component
from .host import FoundFile, Interest, Staying
from .model import (
    Address,
    Backend,
    Change,
    Family,
    FamilyState,
    FileTrace,
    FouPort,
    Gap,
    IpSet,
    IpvsService,
    Item,
    Link,
    NativeTable,
    PolicyRule,
    Route,
    Snapshot,
    Table,
    TableChange,
    TableKey,
)
from .writers import Process, Processes

__all__ = ["UNTOLD", "FileHost"]

UNTOLD = "files do not tell who runs, nor what is saved for the next boot"
"""What no collection of files says, as a line of `Writers.unseen`."""


@attrs.frozen
class FileHost:
    """What files say of a node, as the protocol `host.Host` for some families. It is only looked at."""

    bundle: Bundle
    families: tuple[Family, ...]
    gaps: tuple[Gap, ...]

    @classmethod
    def of(cls, bundle: Bundle, component: Component, families: Iterable[Family]) -> FileHost:
        """Return the node, with a gap also for what this component needs and was not collected."""
        wanted = tuple(sorted(set(families)))
        gaps = (*bundle.snapshot.gaps, *_uncollected(bundle, component))
        return cls(bundle, wanted, tuple(gap for gap in gaps if gap.family in {None, *wanted}))

    @property
    def _snapshot(self) -> Snapshot:
        return self.bundle.snapshot

    def dump_nft(self, interest: Interest) -> _Dump:
        """Return what the files have of nf_tables, everything whatever is of interest."""
        del interest
        keys = [key for key in self._snapshot.tables if key.backend is Backend.NFT and key.family in self.families]
        return _Dump(self._snapshot.native_tables, {key: self._snapshot.tables[key] for key in keys})

    def legacy_tables(self, family: Family) -> tuple[TableKey, ...]:
        """Return the legacy tables that the files have."""
        keys = [key for key in self._snapshot.tables if key.family is family and key.backend is Backend.LEGACY]
        return tuple(sorted(keys, key=TableKey.sort_key))

    def open_legacy(self, key: TableKey, interest: Interest) -> _FileTable:
        """Return a legacy table."""
        del interest
        return _FileTable(key, self._snapshot.tables[key])

    def sets(self, families: Iterable[Family], with_members: Container[str] = ()) -> list[IpSet]:
        """Return the sets of some families and those of none; members of list:set and where they are wanted."""
        wanted = {*families, None}
        return [
            item if item.type == "list:set" or item.name in with_members else attrs.evolve(item, members=())
            for item in self._snapshot.sets.values()
            if item.family in wanted
        ]

    def services(self) -> tuple[IpvsService, ...]:
        """Return the virtual services of IPVS."""
        return self._snapshot.services

    def links(self) -> tuple[Link, ...]:
        """Return all links."""
        return self._snapshot.links

    def addresses(self, link: Link) -> tuple[Address, ...]:
        """Return the addresses of a link."""
        return self._snapshot.addresses_on(link)

    def policy_rules(self, family: Family) -> tuple[PolicyRule, ...]:
        """Return the policy rules of a family."""
        return self._snapshot.policy_rules_of(family)

    def routes(
        self, family: Family, selections: Iterable[tuple[int, int]], links: Iterable[Link]
    ) -> tuple[Route, ...]:
        """Return the routes of some tables, each given with a protocol number or 0 for all."""
        del links
        return self._snapshot.routes_in(family, selections)

    def fou_ports(self) -> tuple[FouPort, ...]:
        """Return the FOU ports of both families."""
        return self._snapshot.fou_ports

    def traces(self, traces: Iterable[FileTrace]) -> tuple[str, ...]:
        """Return what was found on the node of a component's files."""
        manifest = self.bundle.manifest
        starts = tuple(f"{trace.path}:" for trace in traces)
        return () if manifest is None else tuple(line for line in manifest.traces if line.startswith(starts))

    def read_files(self, paths: Iterable[str]) -> tuple[FoundFile, ...]:
        """Return nothing: what is saved for the next boot is not in the files."""
        del paths
        return ()

    def processes(self, wanted: Callable[[Process], bool]) -> Processes:
        """Say that files do not tell it."""
        del wanted
        return Processes("", unseen=(UNTOLD,))

    def wait_for_end(self, pids: Iterable[int], seconds: float) -> None:
        """Return: there is nobody to wait for."""

    def listen_nft(self) -> None:
        """Return nothing: nobody writes."""

    def texts(self, key: TableKey, chain: str) -> list[str | None] | None:
        """Return the rules of a chain as iptables printed them on the node; None if it was not asked.

        None also for each rule of which there is no such text.
        """
        texts = self.bundle.texts.get((key, chain))
        if not texts:
            return None
        return [texts.get(i, rule.text) for i, rule in enumerate(self._snapshot.tables[key].rules[chain])]

    def family_state(self, family: Family, *, gap: bool, found: bool) -> FamilyState:
        """Return the state of a family of which something was `found`, or a part has a `gap`."""
        if gap:
            return FamilyState.GAP
        manifest = self.bundle.manifest
        there = found or manifest is None or family in manifest.families
        return FamilyState.EXAMINED if there else FamilyState.ABSENT

    def commit_nft(self, change: Change, generation: int) -> None:
        """Refuse."""
        _refuse(change, generation)

    def destroy_sets(self, names: Iterable[str]) -> dict[str, int]:
        """Refuse."""
        _refuse(names)

    def delete(self, item: Item) -> None:
        """Refuse."""
        _refuse(item)


def _refuse(*_request: object) -> NoReturn:
    raise TypeError("a node that is known from files cannot be changed")


def _uncollected(bundle: Bundle, component: Component) -> Iterable[Gap]:
    manifest = bundle.manifest
    if manifest is None:
        return
    tables = sorted({table for table, _protocol in set(component.routes) - manifest.routes})
    if tables:
        yield Gap(f"routes of the tables {', '.join(map(str, tables))} were not collected", subsystem="routing")
    names = sorted(name for name in manifest.left_out if component.wants_members(name))
    if names and bundle.snapshot.services:
        reason = f"members of sets were not collected that may prove services: {', '.join(names)}"
        yield Gap(reason, subsystem="ipset")


@attrs.frozen
class _Dump:
    native_tables: tuple[NativeTable, ...]
    read: Mapping[TableKey, Table]
    generation: int = 0

    def tables(self, sets: Mapping[int, str]) -> Mapping[TableKey, Table]:
        del sets
        return self.read

    def staying(self, owned: TableChange, sets: Mapping[int, str], like: Staying | None = None) -> Staying:
        _refuse(owned, sets, like)


@attrs.define
class _FileTable:
    key: TableKey
    read: Table
    size: int = 0

    def table(self, sets: Mapping[int, str]) -> Table:
        del sets
        return self.read

    def is_current(self) -> bool:
        return True

    def commit(self, change: TableChange) -> None:
        _refuse(change)

    def staying(self, owned: TableChange, sets: Mapping[int, str], like: Staying | None = None) -> Staying:
        _refuse(owned, sets, like)
