"""The lock by which iptables-legacy processes take turns."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import LockBusy

__all__ = ["take_lock", "xtables_lock"]

_DEFAULT_FILE = "/run/xtables.lock"
_POLL_SECONDS = 0.02


@contextmanager
def xtables_lock(
    deadline: float,
    *,
    give_up: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[None]:
    """Hold the lock that iptables-legacy takes (XTABLES_LOCKFILE, else /run/xtables.lock).

    It is tried at least once, then until `clock()` passes `deadline` or `give_up()` is true.
    Raises LockBusy if another process holds it for that long, or if the file cannot be opened.
    """
    path = os.environ.get("XTABLES_LOCKFILE") or _DEFAULT_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LockBusy(f"xtables lock {path} cannot be opened: {error.strerror}") from error
    try:
        take_lock(descriptor, "xtables lock", path, deadline, give_up=give_up, clock=clock, sleep=sleep)
        yield
    finally:
        os.close(descriptor)


def take_lock(
    descriptor: int,
    what: str,
    path: str,
    deadline: float,
    *,
    give_up: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Lock an open file; tried at least once, then until the deadline or `give_up()`. Raises LockBusy."""
    began = clock()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EWOULDBLOCK, errno.EINTR}:
                raise LockBusy(f"{what} {path}: {error.strerror}") from error
        else:
            return
        if clock() >= deadline or give_up():
            waited = max(clock() - began, 0)
            raise LockBusy(f"{what} held by another process for {waited:.0f} s")
        sleep(_POLL_SECONDS)
