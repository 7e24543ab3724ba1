"""How a loop is told to stop."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from .closing import Closing

__all__ = ["Event", "Stop", "StopLike", "descriptor_of", "is_stopped"]


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


def descriptor_of(stop: StopLike) -> int | None:
    """Return the file descriptor to wait for, None if there is none and `stop` has to be asked."""
    return stop.fileno() if isinstance(stop, Stop) else None
