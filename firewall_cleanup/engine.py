"""The one loop: read, claim, plan, apply, verify, report.

A dry run is the same path without apply. Expected trouble (a busy lock, a missing right, a moving ruleset) becomes an
outcome or a gap; the rest of the run goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import attrs

from .components import Component
from .host import Host
from .model import Backend, Controller, Family, FamilyState, FouPort, IpvsService, Item, NativeTable, TableKey
from .ownership import Claims
from .plan import others
from .report import CleanupReport, Left, Status
from .stages import Planned, Settings, Stages
from .watching import Watch

if TYPE_CHECKING:
    from .proof import Proof

__all__ = ["Settings", "run"]

_UNPROVEN = Left(Status.FAILED, "it is still there, though what proved it is gone")


def run(
    host: Host, component: Component, controllers: frozenset[Controller], settings: Settings | None = None
) -> CleanupReport:
    """Clean a host of what some controllers of a component own, and report."""
    settings, watch = settings or Settings(), Watch(host, component, controllers)
    try:
        not_begun = watch.not_begun(settings.wait_gone, settings.clock, settings.stopped)
        return not_begun or _Run(host, component, controllers, settings, watch).run()
    finally:
        watch.close()


class _Run:
    def __init__(
        self, host: Host, component: Component, controllers: frozenset[Controller], settings: Settings, watch: Watch
    ) -> None:
        self.host, self.component, self.controllers, self.settings = host, component, controllers, settings
        self.watch = watch
        self.stages = Stages(host, component, controllers, settings, after_nft=watch.listen)

    def run(self) -> CleanupReport:
        stages = self.stages
        first = stages.read()
        if self.settings.dry_run:
            return self.report(first, gone=Claims())
        stages.seen = first.plan.selected
        look = first.found.look()
        with stages.unless_unsaved():
            stages.apply(first)
        if not stages.changed and (stages.unsaved or not first.plan.selected):
            return self.report(first, gone=Claims())
        from .proof import prove, stood_still  # noqa: PLC0415 - a run that changed nothing needs none

        last = stages.read()
        if stages.newly_unused(last):
            # A temporary set is owned only once nothing uses it, which was so only after the chains had gone.
            stages.seen = stages.seen.plus(last.plan.selected)
            with stages.unless_unsaved():
                stages.apply_sets(stages.saved(last))
            last = stages.read()
        if not stood_still(look, last.found.look(), stages.commits):
            stages.reader.look_at_all = True  # the rules of others have to be compared
            last = stages.read()
        there = stages.seen.there(last.found.snapshot)
        owned = stages.seen.plus(last.plan.selected)
        concerned = stages.reader.is_concerned
        proof = prove(look, last.found.look(), owned, commits=stages.commits, concerned=concerned)
        gone = self._verified(stages.seen.minus(there), last)
        return self.report(last, gone=gone, unproven=there, first=first, proof=proof)

    def _verified(self, gone: Claims, last: Planned) -> Claims:
        """Return what of `gone` is proven gone: what could not be read again is not."""
        gaps = last.found.snapshot.gaps
        if not gaps:
            return gone
        unread = {gap.subsystem for gap in gaps}
        no_natives = any(gap.subsystem == "nftables" or gap.backend is Backend.NFT for gap in gaps)
        return Claims(
            chains={k: v for k, v in gone.chains.items() if not any(gap.covers(k) for gap in gaps)},
            rules={k: v for k, v in gone.rules.items() if not any(gap.covers(k) for gap in gaps)},
            native_tables={t: owner for t, owner in gone.native_tables.items() if not no_natives},
            sets={
                name: found
                for name, found in gone.sets.items()
                if not any(gap.subsystem == "ipset" and gap.family in {None, found.item.family} for gap in gaps)
            },
            items={item: found for item, found in gone.items.items() if unread.isdisjoint(_subsystems(item))},
        )

    def report(
        self,
        reading: Planned,
        *,
        gone: Claims,
        unproven: Claims | None = None,
        first: Planned | None = None,
        proof: Proof | None = None,
    ) -> CleanupReport:
        """Report on what is gone, what is claimed now, and what is there but lost what proved it (`unproven`)."""
        here = reading.plan.selected
        left: dict[object, Left] = dict(self.stages.failures)
        if unproven is not None and first is not None:
            # A temporary set that somebody has begun to use is his now.
            lost = attrs.evolve(unproven.minus(here), sets={})
            left.update((place, first.plan.left.get(place, _UNPROVEN)) for place in _places(lost))
            here = here.plus(lost)
        left.update(self._part_left(here))
        if self.stages.unsaved is not None:
            unsaved = Left(Status.FAILED, "not removed without a backup")
            left.update((place, unsaved) for place in _places(here) if place not in left)
        left.update(reading.plan.left)
        signal = self.settings.stopped()
        if signal is not None:
            stopped = Left(Status.FAILED, "interrupted before it was its turn")
            left = {place: left.get(place, stopped) for place in _places(here)}
        if not self.settings.dry_run:
            again = {place: _table_of(place) for place in _places(here) if place not in left}
            left.update(self.watch.why_again(again))
        gaps = tuple(dict.fromkeys((*reading.found.snapshot.gaps, *self.stages.gaps)))
        families = {
            family: FamilyState.GAP if any(gap.family in {None, family} for gap in gaps) else state
            for family, state in reading.found.snapshot.families.items()
        }
        return CleanupReport(
            component=self.component.name,
            dry_run=self.settings.dry_run,
            changed=self.stages.changed,
            families=families,
            gaps=gaps,
            gone=gone,
            here=here,
            left=left,
            interrupted=signal,
            notes=self.notes(reading, gone),
            proof=proof,
            others=others(reading.found.snapshot, reading.found.claims) if self.settings.dry_run else {},
            writers=self.watch.writers,
            boot_files=self.watch.boot_files(),
        )

    def notes(self, reading: Planned, gone: Claims) -> tuple[str, ...]:
        """Return what of the selected controllers is not in the kernel, or not to be told from others' there."""
        if not self.controllers & self.component.item_controllers:
            return ()
        found = self.host.traces(self.component.files)
        lasting = self.component.lasting if gone.items or reading.plan.selected.items else ""
        return (*found, lasting) if lasting else found

    def _part_left(self, selected: Claims) -> dict[object, Left]:
        left: dict[object, Left] = {}
        for place in _places(selected):
            key = _table_of(place)
            if key is None:
                continue
            error = self.stages.errors.get(key) or self.stages.errors.get(key.backend)
            gap = next((gap for gap in self.stages.gaps if gap.covers(key)), None)
            if error is not None:
                left[place] = error
            elif gap is not None:
                left[place] = Left(Status.FAILED, gap.reason)
        return left


def _places(claims: Claims) -> Iterator[object]:
    for key, chains in claims.chains.items():
        yield from ((key, name) for name in chains)
    for key, rules in claims.rules.items():
        yield from ((key, id_) for id_ in rules)
    yield from claims.native_tables
    yield from claims.sets
    yield from claims.items


def _subsystems(item: Item) -> Collection[str]:
    """Return those of which a gap says that an item may not have been read."""
    if isinstance(item, IpvsService):
        return {"ipvs"}
    return {"routing", "fou"} if isinstance(item, FouPort) else {"routing"}


def _table_of(place: object) -> TableKey | None:
    """Return the table of a place, a table of nftables included; None for a set."""
    if isinstance(place, NativeTable):
        return TableKey(place.address_family or Family.IPV4, Backend.NFT, place.name)
    return place[0] if isinstance(place, tuple) and isinstance(place[0], TableKey) else None
