"""How a signal ends a command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..cli import noted_signals
from ..stop import Stop, wait_for

__all__ = ["Stopped", "stop_by_signal", "stoppable"]


class Stopped(BaseException):
    """A signal came; its number is the argument. No error: what takes every error must not take this."""


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


@contextmanager
def stop_by_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` in a thread when SIGINT or SIGTERM comes, or at the end.

    A handler runs in the middle of what the main thread does, which may hold the very lock that `stop` takes, as that
    of an Event.
    """

    def wait() -> None:
        while not sign.is_set():
            wait_for(sign, None)
        stop()

    with Stop() as sign:
        thread = threading.Thread(target=wait, daemon=True, name="signals")
        thread.start()
        try:
            with noted_signals(sign.set):
                yield
        finally:
            sign.set()
            thread.join()
