"""The stages of a run: read, plan, keep, and remove subsystem by subsystem what is owned.

Expected trouble (a busy lock, a missing right, a moving ruleset) is noted, and the rest of the run goes on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from .components import Component
from .errors import BackupError, BatchRefused, KernelError, LockBusy, StaleGeneration
from .handlers._ipset import ENTRY_BUSY
from .handlers._xtables_lock import xtables_lock
from .host import Host
from .model import Backend, Controller, FouPort, Gap, IpvsService, Item, Link, Snapshot, TableChange, TableKey
from .ownership import Claims, claim
from .plan import Plan, make_plan
from .reading import Reader, Reading, text_of
from .report import Left, Status

if TYPE_CHECKING:
    from .backup import Saver

__all__ = ["Planned", "Settings", "Stages"]

_TRIES = 20
# What deleting says of an object that is gone already.
_GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.EADDRNOTAVAIL})
# The kernel drops the references of deleted nf_tables rules some milliseconds after the batch.
_SET_SECONDS = 3.0
_SET_SECONDS_IN_DOUBT = 0.5
_SET_POLL_SECONDS = 0.002
_SET_POLL_MOST_SECONDS = 0.05


@attrs.frozen
class Settings:
    """How a run behaves: `wait` is the budget in seconds for all waiting for the xtables lock.

    `stopped` is asked between steps and gives the number of a signal that asks to stop. `saver` keeps what is going
    to be removed. `wait_gone` is for how many seconds to wait for the component's processes to end; None: not at all.
    Time is a parameter.
    """

    dry_run: bool = False
    wait: float = 30.0
    remove_bridge: bool = False
    saver: Saver | None = None
    wait_gone: float | None = None
    stopped: Callable[[], int | None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    lock: Callable[..., contextlib.AbstractContextManager[None]] = xtables_lock


@attrs.frozen
class Planned:
    """What was read, and what is to be done about it."""

    found: Reading
    plan: Plan


class Stages:
    """What a run does to a host, stage by stage, and what came of it.

    `seen` is all that was found owned at any time; `failures` tells why an object, and `errors` why a whole
    backend or table, is left; `gaps` are parts that could not be written. `keep_proofs` says why what proves
    others has to stay, `unsaved` why nothing more may be removed. `commits` counts the batches of nf_tables;
    `after_nft` is called when there will be none any more.
    """

    def __init__(
        self,
        host: Host,
        component: Component,
        controllers: frozenset[Controller],
        settings: Settings,
        *,
        after_nft: Callable[[], object],
    ) -> None:
        self.host, self.component, self.controllers, self.settings = host, component, controllers, settings
        self.after_nft = after_nft
        self.families = frozenset(host.families)
        self.deadline = settings.clock() + settings.wait
        self.refusals: dict[tuple[object, str, object], Left] = {}
        self.reader = Reader(host, component, controllers)
        self.errors: dict[Backend | TableKey, Left] = {}
        self.gaps: list[Gap] = []
        self.seen = Claims()
        self.failures: dict[object, Left] = {}
        self.keep_proofs: str | None = None
        self.unsaved: str | None = None
        self.changed = False
        self.commits = 0

    def newly_unused(self, reading: Planned) -> bool:
        """Tell whether there are sets to destroy now that were not owned before."""
        going_on = self.settings.stopped() is None and self.unsaved is None
        return going_on and any(n not in self.seen.sets for n in reading.plan.set_names())

    # read

    def read(self) -> Planned:
        """Read the host and plan. What cannot be read becomes a gap."""
        reading = self._read_once()
        held = [
            place
            for place in reading.plan.left
            if isinstance(place, tuple) and isinstance(place[1], str) and place not in reading.plan.empty
        ]
        if held:
            # A chain that something holds may be empty already: only its inside can tell.
            self.reader.look_into.update((key.name, name) for key, name in held)
            reading = self._read_once()
        return reading

    def _read_once(self) -> Planned:
        found = self.reader.read()
        return Planned(found, self._plan(found.snapshot, found.claims))

    def _plan(self, snapshot: Snapshot, claims: Claims) -> Plan:
        return make_plan(
            snapshot,
            claims,
            controllers=self.controllers,
            families=self.families,
            refusals=self.refusals,
            remove_bridge=self.settings.remove_bridge,
            keep_proofs=self.keep_proofs,
        )

    # keep

    def saved(self, reading: Planned) -> Planned:
        """Keep what will be removed and return the reading that this is about, a new one if the node has moved.

        Raises BackupError: nothing more may be removed then.
        """
        saver = self.settings.saver
        if saver is None:
            return reading
        for _ in range(_TRIES):
            try:
                saver.save(reading.found, reading.plan)
            except StaleGeneration:
                reading = self.read()
                self.seen = self.seen.plus(reading.plan.selected)
            else:
                return reading
        raise BackupError(f"the backup cannot be complete: the node has changed each of the {_TRIES} times")

    @contextlib.contextmanager
    def unless_unsaved(self) -> Iterator[None]:
        """Do what is inside up to where something could not be kept, and note that."""
        try:
            yield
        except BackupError as error:
            self.unsaved = str(error)
            self.gaps.append(Gap(self.unsaved, subsystem="backup"))

    # apply

    def apply(self, first: Planned) -> None:
        """Remove it all, stage by stage. Raises BackupError."""
        reading = self.saved(first)
        for stage in (self._apply_services, self._apply_nft, self._apply_legacy, self.apply_sets, self._apply_items):
            if self.settings.stopped() is not None:
                break
            proofs = self.keep_proofs
            stage(reading)
            if stage == self._apply_nft and first.plan.selected:
                self.after_nft()
            if self.keep_proofs != proofs:
                reading = self.saved(self.read())  # with a plan that keeps them
                self.seen = self.seen.plus(reading.plan.selected)

    def _apply_services(self, reading: Planned) -> None:
        """Delete virtual services of IPVS one by one, while everything that proves them is still there."""
        services = reading.plan.services()
        for place, service in enumerate(services):
            if self.settings.stopped() is not None:
                return
            self._delete(service)
            if service in self.failures and reading.plan.selected.items[service].first:
                # Those after it may be what proves it.
                rest = Left(Status.FAILED, f"it may prove {service.name}, which could not be removed")
                self.failures.update(dict.fromkeys(services[place + 1 :], rest))
                break
        if any(isinstance(item, IpvsService) for item in self.failures):
            self.keep_proofs = "it proves IPVS services that could not be removed"

    def _apply_items(self, reading: Planned) -> None:
        """Delete policy rules, routes, FOU ports, addresses and links."""
        if not reading.plan.items():
            return
        # Waiting for a lock may have taken long: a pod may hang on the bridge now.
        reading = self.saved(self.read())
        self.seen = self.seen.plus(reading.plan.selected)
        for item in reading.plan.items():
            if self.settings.stopped() is not None:
                return
            unfreed = {port.port for port in self.failures if isinstance(port, FouPort)}
            if isinstance(item, Link) and item.encap_port in unfreed:
                self.failures[item] = Left(Status.FAILED, "it proves a FOU port that could not be removed")
                continue
            self._delete(item)

    def _delete(self, item: Item) -> None:
        try:
            self.host.delete(item)
        except KernelError as error:
            if error.errno not in _GONE:
                self.failures[item] = _left(error.errno or 0, text_of(error))
        else:
            self.changed = True

    def _apply_nft(self, reading: Planned) -> None:
        """Remove rules, chains and tables of nf_tables in one batch, over both families."""
        for _ in range(_TRIES):
            change = reading.plan.nft_change()
            if not reading.found.moving and (not change or reading.found.generation is None):
                return
            try:
                if reading.found.generation is not None:
                    self.host.commit_nft(change, reading.found.generation)
                    self.changed = True
                    self.commits += 1
                    return
            except StaleGeneration:
                pass
            except BatchRefused as refused:
                self._note(refused)
            except KernelError as error:
                self.errors[Backend.NFT] = _left(error.errno or 0, text_of(error))
                return
            if self.settings.stopped() is not None:
                return
            reading = self.saved(self.read())
            self.seen = reading.plan.selected.plus(self.seen)
            # What this reading shows may prove services that the one before it did not claim.
            self._apply_services(reading)
            if self.keep_proofs:
                reading = self.saved(self.read())
        reason = f"the ruleset was changed by somebody else each of the {_TRIES} times that we tried"
        self.gaps += [Gap(reason, family, Backend.NFT) for family in self.host.families]

    @staticmethod
    def _known_change(key: TableKey, plan: Plan, reading: Planned) -> TableChange:
        """Leave out rules that prove services and are new: theirs were not looked for. The next run does."""
        before = {found.rule for found in reading.plan.selected.rules.get(key, {}).values()}
        found_now = plan.selected.rules.get(key, {}).values()
        new = {found.rule for found in found_now if found.proves_services} - before
        change = plan.table_change(key)
        return attrs.evolve(change, rules=tuple(rule for rule in change.rules if rule not in new))

    def _note(self, refused: BatchRefused) -> None:
        """Remember what the kernel refused, so that the next plan does without it."""
        for place, code in refused.failures.items():
            if code not in {errno.ENOENT, errno.EAGAIN}:
                self.refusals[place] = _left(code, f"the kernel refused: {os.strerror(code)}")
                table, kind, name = place
                if isinstance(table, TableKey) and kind != "rule":
                    self.reader.look_into.add((table.name, str(name)))

    def _apply_legacy(self, reading: Planned) -> None:
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
                    self._apply_legacy_table(key, reading)
            except LockBusy as error:
                self.gaps.append(Gap(str(error), key.family, Backend.LEGACY, key.name))
            except KernelError as error:
                self.errors[key] = _left(error.errno or 0, text_of(error))
                self.gaps.append(Gap(text_of(error), key.family, Backend.LEGACY, key.name))

    def _apply_legacy_table(self, key: TableKey, reading: Planned) -> None:
        for _ in range(_TRIES):
            table, unsaved = reading.found.legacy.pop(key, None), None
            if table is not None and table.is_current():
                change = reading.plan.table_change(key)
            else:
                table = self.reader.open_legacy(key)
                # What else proves ownership is as it was read: it goes later.
                snapshot = self.reader.with_table(reading.found.snapshot, table)
                # Texts were asked for before: iptables would wait for the lock that we hold.
                plan = self._plan(snapshot, claim(snapshot, self.component))
                change = self._known_change(key, plan, reading)
                self.seen = self.seen.plus(attrs.evolve(plan.selected, sets={}, items={}))
                unsaved = self.settings.saver
            if not change:
                return
            try:
                if unsaved is not None:
                    unsaved.save_table(table, change, self.reader.set_names())
                table.commit(change)
            except StaleGeneration:
                pass
            except BatchRefused as refused:
                self._note(refused)
            except KernelError as error:
                # Somebody who takes no lock changed the table.
                if error.errno != errno.EAGAIN:
                    raise
            else:
                self.changed = True
                return
        raise KernelError(errno.EAGAIN, f"legacy table {key.name}")

    def apply_sets(self, reading: Planned) -> None:
        """Destroy the sets, waiting a moment for the kernel to let go of those whose rules went just now."""
        pending = reading.plan.set_names()
        if not pending:
            return
        settings = self.settings
        # What is unread or refused may hold a set for good; the other sets still need a moment.
        doubt = self.gaps or self.errors or self.refusals or reading.found.snapshot.gaps
        deadline = settings.clock() + (_SET_SECONDS_IN_DOUBT if doubt else _SET_SECONDS)
        pause = _SET_POLL_SECONDS
        while True:
            try:
                failures = self.host.destroy_sets(pending)
            except KernelError as error:
                self.failures.update((name, _left(error.errno or 0, text_of(error))) for name in pending)
                return
            self.changed = self.changed or any(name not in failures for name in pending)
            self.failures.update(
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
        if doubt:
            reason = "in use, perhaps by rules that could not be read or removed"
        self.failures.update((name, Left(Status.IN_USE, reason)) for name in pending)


def _left(code: int, reason: str) -> Left:
    if code in {errno.EPERM, errno.EACCES}:
        return Left(Status.DENIED, reason)
    if code in {errno.EBUSY, errno.EMLINK, ENTRY_BUSY}:
        return Left(Status.IN_USE, reason)
    return Left(Status.FAILED, reason)
