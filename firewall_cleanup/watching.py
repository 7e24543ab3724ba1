"""Who writes beside us: looked for before a run, waited for if wanted, and named when something came back."""

from __future__ import annotations

from collections.abc import Callable, Collection

import attrs

from .components import Component
from .errors import KernelError
from .host import Host, NftListener
from .model import Backend, Controller
from .writers import Commits, Process, Writer, Writers

__all__ = ["Watch", "names"]

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

    def still_running(
        self, seconds: float | None, clock: Callable[[], float], stopped: Callable[[], int | None]
    ) -> bool:
        """Look, and wait until none runs any more; tell whether one still does after so many seconds.

        None: look once, and go on whatever there is.
        """
        deadline = clock() + (seconds or 0)
        while (running := self.look()) and seconds is not None:
            left = deadline - clock()
            if left <= 0:
                return True
            if stopped() is not None:
                return False
            self.host.wait_for_end([writer.pid for writer in running], min(left, _STEP_SECONDS))
        return False

    def listen(self) -> None:
        """Hear from now on who changes nf_tables."""
        if self._listener is None:
            self._listener = self.host.listen_nft()

    def close(self) -> None:
        """Stop listening; again is no error."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def hear(self) -> None:
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

    def why_again(self, backend: Backend | None) -> str:
        """Return why something is there again, and who likely made it: an object of this backend, or of none."""
        parts = []
        if backend is Backend.NFT and self.writers.commits:
            last = dict.fromkeys(f"{commit.name} (pid {commit.pid})" for commit in reversed(self.writers.commits))
            parts.append(f"{', '.join(list(last)[:3])} wrote nf_tables after us")
        if self.writers.running:
            parts.append(f"{names(self.writers.running)} is running")
        return f"it is there again: {'; '.join(parts)}" if parts else ""


def names(writers: Collection[Writer]) -> str:
    """Return processes in one line: `kube-router (pid 123)`."""
    return ", ".join(f"{writer.name} (pid {writer.pid})" for writer in writers)
