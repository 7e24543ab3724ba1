"""How a signal ends a command."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..cli import noted_signals

__all__ = ["Stopped", "stoppable"]


class Stopped(Exception):
    """A signal came; its number is the argument."""


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into Stopped, wherever the program is, so that every wait ends at once.

    Of a request that was under way nobody knows whether it was done; what is run again looks anew.
    """
    told: list[Callable[[], int | None]] = []

    def stop() -> None:
        raise Stopped((told[0]() if told else None) or signal.SIGTERM)

    with noted_signals(stop) as number:
        told.append(number)
        yield
