"""How a loop is told to stop, and how it waits meanwhile."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from .closing import Closing

__all__ = ["Event", "Stop", "StopLike", "is_stopped", "wait_for"]

_ASKED_EVERY = 0.2  # seconds between looks at a stop that has no file descriptor to wait for
_LONGEST_WAIT = 3600.0  # poll(2) takes milliseconds as an int; who waits asks again


@runtime_checkable
class Event(Protocol):
    """A flag that may be set, as `Stop` and `threading.Event` are."""

    def is_set(self) -> bool:
        """Whether it was set."""


StopLike: TypeAlias = Event | Callable[[], object]
"""What ends a loop: an object with `is_set()`, as `Stop` or `threading.Event`, or a function that tells."""


class Stop(Closing):
    """A flag that a loop waits for: setting it ends the loop at once. It may be set in a signal handler."""

    def __init__(self) -> None:
        self._set = False
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        """Set the flag; again changes nothing."""
        self._set = True
        if self._descriptor >= 0:
            os.eventfd_write(self._descriptor, 1)

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._set

    def fileno(self) -> int:
        """Return a file descriptor that is readable once the flag is set."""
        return self._descriptor

    def close(self) -> None:
        """Close the file descriptor; again is no error."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_stopped(stop: StopLike) -> bool:
    """Whether the loop is to end."""
    return bool(stop.is_set() if isinstance(stop, Event) else stop())


def wait_for(stop: StopLike, seconds: float | None, *descriptors: int) -> None:
    """Wait until a descriptor is readable, the time is over (None: never), or it may be that one should stop.

    It may return before: who waits looks again.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    longest = _ASKED_EVERY
    if isinstance(stop, Stop):
        poll.register(stop.fileno(), select.POLLIN)
        longest = _LONGEST_WAIT
    poll.poll(min(longest, longest if seconds is None else max(seconds, 0)) * 1000)
