"""Stopping a long run by a signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["stop_by_signal"]


@contextmanager
def stop_by_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` in a thread when SIGINT or SIGTERM comes.

    A handler runs in the middle of what the main thread does, which may hold the very lock that `stop` takes, as that
    of an Event. So it takes none: it writes a byte into a pipe.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def handle(_number: int, _frame: object) -> None:
        with suppress(BlockingIOError):  # full of signals that nobody read yet
            os.write(writer, b"s")

    def wait() -> None:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while pipe.read(1):
                stop()

    thread = threading.Thread(target=wait, daemon=True, name="signals")
    thread.start()
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)
        thread.join()
