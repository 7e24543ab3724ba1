"""Runs on nodes in memory, in which no time passes but while they sleep."""

from __future__ import annotations

from hypothesis import strategies as st

from firewall_cleanup import CleanupReport, Controller
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.engine import Settings, run
from firewall_cleanup.testing import MemoryHost

__all__ = ["ALL", "Clock", "clean", "controllers"]

ALL = frozenset(Controller)
controllers = st.sets(st.sampled_from(tuple(Controller)), min_size=1).map(frozenset)


class Clock:
    """A clock that only sleeping moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def clean(host: MemoryHost, chosen: frozenset[Controller] = ALL, *, dry_run: bool = False) -> CleanupReport:
    clock = Clock()
    settings = Settings(dry_run=dry_run, clock=clock, sleep=clock.sleep, lock=host.lock)
    report = run(host, KUBE_ROUTER, chosen, settings)
    assert not host.locked
    return report
