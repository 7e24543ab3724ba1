"""Who writes beside us: looked for before a run, waited for if wanted, and named when something came back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import attrs

from .boot_files import PLACES, BootFiles, find_saved
from .components import Component
from .errors import KernelError
from .host import Host, NftListener
from .model import Backend, Controller, FamilyState, Gap, TableKey
from .report import CleanupReport, Left, Status
from .writers import Commits, Process, Writer, Writers

__all__ = ["Watch"]

# How long a wait goes on before it is asked whether to stop, and who else has come.
_STEP_SECONDS = 0.2
# Of the commits of others so many are reported: the last ones.
_MOST_COMMITS = 100


class Watch:
    """What is known of the writers of one run."""

    def __init__(self, host: Host, component: Component, controllers: Collection[Controller]) -> None:
        self.host, self.component, self.controllers = host, component, frozenset(controllers)
        self.writers = Writers()
        self._listener: NftListener | None = None

    def look(self) -> tuple[Writer, ...]:
        """Look for running processes of the component."""
        seen = self.host.processes(lambda process: self._writer(process) is not None)
        running = tuple(writer for process in seen.found if (writer := self._writer(process)) is not None)
        self.writers = attrs.evolve(self.writers, proc=seen.proc, running=running, unseen=seen.unseen)
        return running

    def _writer(self, process: Process) -> Writer | None:
        return self.component.writer(process, self.controllers)

    def not_begun(
        self, seconds: float | None, clock: Callable[[], float], stopped: Callable[[], int | None]
    ) -> CleanupReport | None:
        """Look, and wait until none runs any more; return a report of that if one still does after so many seconds.

        None for seconds: look once, and go on whatever there is.
        """
        deadline = clock() + (seconds or 0)
        while (running := self.look()) and seconds is not None:
            left = deadline - clock()
            if left <= 0:
                return self._still_running(seconds)
            if stopped() is not None:
                break
            self.host.wait_for_end([writer.pid for writer in running], min(left, _STEP_SECONDS))
        return None

    def _still_running(self, seconds: float) -> CleanupReport:
        who = _names(self.writers.running)
        reason = f"{who} did not end within {seconds:g} s; nothing was changed, stop it first"
        return CleanupReport(
            component=self.component.name,
            dry_run=False,
            changed=False,
            families=dict.fromkeys(self.host.families, FamilyState.GAP),
            gaps=(Gap(reason, subsystem="processes"),),
            writers=self.writers,
            boot_files=self.boot_files(),
        )

    def boot_files(self) -> BootFiles:
        """Return what brings the selection back at boot."""
        files = self.host.read_files(PLACES)
        return find_saved(files, self.component, self.controllers, self.host.families)

    def listen(self) -> None:
        """Hear from now on who changes nf_tables."""
        if self._listener is None:
            self._listener = self.host.listen_nft()

    def close(self) -> None:
        """Stop listening; again is no error."""
        if self._listener is not None:
            self._listener.rest()
            self._listener = None

    def _hear(self) -> None:
        """Note who has changed nf_tables meanwhile."""
        if self._listener is None:
            return
        try:
            heard = self._listener.commits()
        except KernelError:
            heard = Commits(missed=True)
        seen = (*self.writers.commits, *heard.seen)
        missed = self.writers.missed or heard.missed or len(seen) > _MOST_COMMITS
        self.writers = attrs.evolve(self.writers, commits=seen[-_MOST_COMMITS:], missed=missed)

    def why_again(self, places: Mapping[object, TableKey | None]) -> Iterator[tuple[object, Left]]:
        """Yield why places, each with its table, are there again, if it can be said who likely made them."""
        self._hear()
        if places:
            self.look()
        for place, key in places.items():
            reason = self._who(None if key is None else key.backend)
            if reason:
                yield place, Left(Status.FAILED, f"it is there again: {reason}")

    def _who(self, backend: Backend | None) -> str:
        parts = []
        if backend is Backend.NFT and self.writers.commits:
            last = dict.fromkeys(f"{commit.name} (pid {commit.pid})" for commit in reversed(self.writers.commits))
            parts.append(f"{', '.join(list(last)[:3])} wrote nf_tables after us")
        if self.writers.running:
            parts.append(f"{_names(self.writers.running)} is running")
        return "; ".join(parts)


def _names(writers: Collection[Writer]) -> str:
    """Return processes in one line: `kube-router (pid 123)`."""
    return ", ".join(f"{writer.name} (pid {writer.pid})" for writer in writers)
