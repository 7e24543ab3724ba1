"""The one loop: read, claim, plan, apply, verify, report.

A dry run is the same path without apply. Expected trouble (a busy lock, a missing right, a moving ruleset) becomes an
outcome or a gap; the rest of the run goes on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping

import attrs

from .components import Component
from .errors import BatchRefused, KernelError, LockBusy, StaleGeneration
from .handlers._ipset import ENTRY_BUSY
from .handlers._xtables_lock import xtables_lock
from .host import Host, LegacyTable
from .model import (
    Backend,
    Controller,
    Family,
    FamilyState,
    Gap,
    IpSet,
    NativeTable,
    Rule,
    Snapshot,
    Table,
    TableKey,
)
from .ownership import Claims, claim
from .plan import Plan, make_plan
from .report import CleanupReport, Left, Status

__all__ = ["Settings", "run"]

_TRIES = 20
# The kernel drops the references of deleted nf_tables rules some milliseconds after the batch.
_SET_SECONDS = 3.0
_SET_SECONDS_IN_DOUBT = 0.5
_SET_POLL_SECONDS = 0.002
_SET_POLL_MOST_SECONDS = 0.05


@attrs.frozen
class Settings:
    """How a run behaves: `wait` is the budget in seconds for all waiting for the xtables lock.

    `stopped` is asked between steps and gives the number of a signal that asks to stop. Time is a parameter.
    """

    dry_run: bool = False
    wait: float = 30.0
    stopped: Callable[[], int | None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    lock: Callable[..., contextlib.AbstractContextManager[None]] = xtables_lock


@attrs.frozen
class _Reading:
    snapshot: Snapshot
    claims: Claims
    plan: Plan
    generation: int | None
    moving: bool  # nf_tables did not stand still long enough to be read


def run(
    host: Host, component: Component, controllers: frozenset[Controller], settings: Settings | None = None
) -> CleanupReport:
    """Clean a host of what some controllers of a component own, and report."""
    return _Run(host, component, controllers, settings or Settings()).run()


class _Run:
    def __init__(
        self, host: Host, component: Component, controllers: frozenset[Controller], settings: Settings
    ) -> None:
        self.host, self.component, self.controllers, self.settings = host, component, controllers, settings
        self.families = frozenset(host.families)
        self.deadline = settings.clock() + settings.wait
        self.refusals: dict[tuple[object, str, object], Left] = {}
        self.held: set[tuple[str, str]] = set()
        self.stage_errors: dict[Backend | TableKey, Left] = {}
        self.stage_gaps: list[Gap] = []
        self.seen = Claims()
        self.set_failures: dict[str, Left] = {}
        self.changed = False

    def run(self) -> CleanupReport:
        first = self.read()
        if self.settings.dry_run:
            return self.report(first, gone=Claims())
        self.seen = first.plan.selected
        for stage in (self.apply_nft, self.apply_legacy, self.apply_sets):
            if self.settings.stopped() is not None:
                break
            stage(first)
        if not first.plan.selected and not self.changed:
            return self.report(first, gone=Claims())
        last = self.read()
        return self.report(last, gone=self._verified(self.seen.minus(last.plan.selected), last))

    # read

    def skip(self, table: str, chain: str) -> bool:
        """Tell whether a chain is one whose inside goes with it unread."""
        if self.component.chain_owner(table, chain) not in self.controllers:
            return False
        # What something holds, or the kernel would not delete, is read to know whether it is empty already.
        return (table, chain) not in self.held and not any(name == chain for _where, _kind, name in self.refusals)

    def read(self) -> _Reading:
        reading = self.read_once()
        held = [
            place
            for place in reading.plan.left
            if isinstance(place, tuple) and isinstance(place[1], str) and place not in reading.plan.empty
        ]
        if held:
            # A chain that something holds may be empty already: only its inside can tell.
            self.held.update((key.name, name) for key, name in held)
            reading = self.read_once()
        return reading

    def read_once(self) -> _Reading:
        gaps = list(self.host.gaps)
        tables: dict[TableKey, Table] = {}
        natives: tuple[NativeTable, ...] = ()
        generation, moving = None, False
        with contextlib.ExitStack() as stack:
            legacy = [
                stack.enter_context(contextlib.closing(table))
                for family in self.host.families
                for table in self._open_legacy(family, gaps)
            ]
            dump = None
            try:
                dump = self.host.dump_nft(self.skip)
            except KernelError as error:
                moving = error.errno == errno.EAGAIN
                gaps += [Gap(_text(error), family, Backend.NFT) for family in self.host.families]
            # After the rules: an index that a rule holds keeps its name for as long as the rule is there.
            sets = self.read_sets(gaps)
            names = {item.index: item.name for item in sets.values() if item.index is not None}
            if dump is not None:
                tables.update(dump.tables(names))
                natives, generation = dump.native_tables, dump.generation
            for table in legacy:
                tables[table.key] = table.table(self.skip, names)
        snapshot = Snapshot(tables, natives, sets, tuple(dict.fromkeys(gaps)), self._families(tables, gaps))
        claims = self.with_texts(claim(snapshot, self.component), snapshot)
        return _Reading(snapshot, claims, self.plan(snapshot, claims), generation, moving)

    def _families(self, tables: Mapping[TableKey, Table], gaps: list[Gap]) -> dict[Family, FamilyState]:
        return {
            family: self.host.family_state(
                family,
                gap=any(gap.family in {None, family} for gap in gaps),
                found=any(key.family is family for key in tables),
            )
            for family in self.host.families
        }

    def _open_legacy(self, family: Family, gaps: list[Gap]) -> Iterator[LegacyTable]:
        try:
            keys = self.host.legacy_tables(family)
        except OSError as error:
            reason = f"legacy tables cannot be listed: {error.strerror}"
            gaps.append(Gap(reason, family, Backend.LEGACY))
            return
        for key in keys:
            try:
                yield self.host.open_legacy(key)
            except KernelError as error:
                gaps.append(Gap(_text(error), family, Backend.LEGACY, key.name))

    def read_sets(self, gaps: list[Gap]) -> dict[str, IpSet]:
        sets: dict[str, IpSet] = {}
        for family in self.host.families:
            try:
                sets.update((item.name, item) for item in self.host.sets(family))
            except KernelError as error:
                gaps.append(Gap(f"ipset: {_text(error)}", family, subsystem="ipset"))
        return sets

    def plan(self, snapshot: Snapshot, claims: Claims) -> Plan:
        return make_plan(
            snapshot,
            claims,
            controllers=self.controllers,
            families=self.families,
            refusals=self.refusals,
        )

    def with_texts(self, claims: Claims, snapshot: Snapshot) -> Claims:
        """Ask iptables for the text of owned rules that we do not understand whole."""
        rules = {
            key: {
                id_: attrs.evolve(found, rule=self._with_text(key, found.rule, snapshot))
                for id_, found in own.items()
            }
            if any(found.rule.opaque for found in own.values())
            else own
            for key, own in claims.rules.items()
        }
        return attrs.evolve(claims, rules=rules)

    def _with_text(self, key: TableKey, rule: Rule, snapshot: Snapshot) -> Rule:
        if not rule.opaque or rule.text is not None:
            return rule
        lines = self.host.texts(key, rule.chain)
        if lines is None or len(lines) != len(snapshot.tables[key].rules[rule.chain]):
            return rule
        return attrs.evolve(rule, text=lines[rule.index])

    # apply

    def apply_nft(self, reading: _Reading) -> None:
        """Remove rules, chains and tables of nf_tables in one batch, over both families."""
        for _ in range(_TRIES):
            change = reading.plan.nft_change()
            if not reading.moving and (not change or reading.generation is None):
                return
            try:
                if reading.generation is not None:
                    self.host.commit_nft(change, reading.generation)
                    self.changed = True
                    return
            except StaleGeneration:
                pass
            except BatchRefused as refused:
                self.note(refused)
            except KernelError as error:
                self.stage_errors[Backend.NFT] = _left(error.errno or 0, _text(error))
                return
            if self.settings.stopped() is not None:
                return
            reading = self.read()
            self.seen = reading.plan.selected.plus(self.seen)
        reason = f"the ruleset was changed by somebody else each of the {_TRIES} times that we tried"
        self.stage_gaps += [Gap(reason, family, Backend.NFT) for family in self.host.families]

    def note(self, refused: BatchRefused) -> None:
        """Remember what the kernel refused, so that the next plan does without it."""
        for place, code in refused.failures.items():
            if code not in {errno.ENOENT, errno.EAGAIN}:
                self.refusals[place] = _left(code, f"the kernel refused: {os.strerror(code)}")

    def apply_legacy(self, reading: _Reading) -> None:
        """Remove rules and chains of the legacy tables, each in one commit under the xtables lock."""
        for key in reading.plan.legacy_keys():
            if self.settings.stopped() is not None:
                return
            try:
                with self.settings.lock(
                    self.deadline,
                    give_up=lambda: self.settings.stopped() is not None,
                    clock=self.settings.clock,
                    sleep=self.settings.sleep,
                ):
                    self._apply_legacy_table(key)
            except LockBusy as error:
                self.stage_gaps.append(Gap(str(error), key.family, Backend.LEGACY, key.name))
            except KernelError as error:
                self.stage_errors[key] = _left(error.errno or 0, _text(error))
                self.stage_gaps.append(Gap(_text(error), key.family, Backend.LEGACY, key.name))

    def _apply_legacy_table(self, key: TableKey) -> None:
        for _ in range(_TRIES):
            with contextlib.closing(self.host.open_legacy(key)) as table:
                sets = self.read_sets([])
                names = {item.index: item.name for item in sets.values() if item.index is not None}
                snapshot = Snapshot({key: table.table(self.skip, names)}, sets=sets)
                # Texts were asked for before: iptables would wait for the lock that we hold.
                plan = self.plan(snapshot, claim(snapshot, self.component))
                change = plan.table_change(key)
                self.seen = self.seen.plus(attrs.evolve(plan.selected, sets={}))
                if not (change.rules or change.flush or change.delete):
                    return
                try:
                    table.commit(change)
                except BatchRefused as refused:
                    self.note(refused)
                except KernelError as error:
                    # Somebody who takes no lock changed the table.
                    if error.errno != errno.EAGAIN:
                        raise
                else:
                    self.changed = True
                    return
        raise KernelError(errno.EAGAIN, f"legacy table {key.name}")

    def apply_sets(self, reading: _Reading) -> None:
        """Destroy the sets, waiting a moment for the kernel to let go of those whose rules went just now."""
        pending = reading.plan.set_names()
        if not pending:
            return
        settings = self.settings
        # What is unread or refused may hold a set for good; the other sets still need a moment.
        doubt = self.stage_gaps or self.stage_errors or self.refusals or reading.snapshot.gaps
        deadline = settings.clock() + (_SET_SECONDS_IN_DOUBT if doubt else _SET_SECONDS)
        pause = _SET_POLL_SECONDS
        while True:
            try:
                failures = self.host.destroy_sets(pending)
            except KernelError as error:
                self.set_failures.update((name, _left(error.errno or 0, _text(error))) for name in pending)
                return
            self.changed = self.changed or any(name not in failures for name in pending)
            self.set_failures.update(
                (name, _left(code, f"the kernel refused: {os.strerror(code) if code < ENTRY_BUSY else code}"))
                for name, code in failures.items()
                if code not in {errno.ENOENT, ENTRY_BUSY}
            )
            pending = tuple(name for name, code in failures.items() if code == ENTRY_BUSY)
            waited = settings.clock() >= deadline or settings.stopped() is not None
            if not pending or waited:
                break
            settings.sleep(pause)
            pause = min(pause * 2, _SET_POLL_MOST_SECONDS)
        reason = "in use by something that the rules that could be read do not show"
        self.set_failures.update((name, Left(Status.IN_USE, reason)) for name in pending)

    # verify and report

    def _verified(self, gone: Claims, last: _Reading) -> Claims:
        """Return what of `gone` is proven gone: what could not be read again is not."""
        gaps = last.snapshot.gaps
        if not gaps:
            return gone
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
        )

    def report(self, reading: _Reading, *, gone: Claims) -> CleanupReport:
        left: dict[object, Left] = dict(self.set_failures.items())
        left.update(self._stage_left(reading.plan.selected))
        left.update(reading.plan.left)
        signal = self.settings.stopped()
        if signal is not None:
            stopped = Left(Status.FAILED, "interrupted before it was its turn")
            left = {place: left.get(place, stopped) for place in _places(reading.plan.selected)}
        gaps = tuple(dict.fromkeys((*reading.snapshot.gaps, *self.stage_gaps)))
        families = {
            family: FamilyState.GAP if any(gap.family in {None, family} for gap in gaps) else state
            for family, state in reading.snapshot.families.items()
        }
        return CleanupReport(
            component=self.component.name,
            dry_run=self.settings.dry_run,
            changed=self.changed,
            families=families,
            gaps=gaps,
            gone=gone,
            here=reading.plan.selected,
            left=left,
            interrupted=signal,
        )

    def _stage_left(self, selected: Claims) -> dict[object, Left]:
        left: dict[object, Left] = {}
        for place in _places(selected):
            key = _table_of(place)
            if key is None:
                continue
            error = self.stage_errors.get(key) or self.stage_errors.get(key.backend)
            gap = next((gap for gap in self.stage_gaps if gap.covers(key)), None)
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


def _table_of(place: object) -> TableKey | None:
    """Return the table of a place, a table of nftables included; None for a set."""
    if isinstance(place, NativeTable):
        return TableKey(place.address_family or Family.IPV4, Backend.NFT, place.name)
    return place[0] if isinstance(place, tuple) and isinstance(place[0], TableKey) else None


def _left(code: int, reason: str) -> Left:
    if code in {errno.EPERM, errno.EACCES}:
        return Left(Status.DENIED, reason)
    if code in {errno.EBUSY, errno.EMLINK, ENTRY_BUSY}:
        return Left(Status.IN_USE, reason)
    return Left(Status.FAILED, reason)


def _text(error: KernelError) -> str:
    return error.strerror or str(error)
