"""What happens to links, as the kernel tells it, and a way to be told to stop while waiting for it."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ..closing import Closing
from ..errors import KernelError
from ._netlink import NETLINK_ROUTE, NetlinkSocket, parts_of

__all__ = ["LinkEvent", "LinkEvents", "StopSignal", "readable_at"]

_GROUP_LINK = 1
_NEW_LINK, _IFNAME, _MASTER = 16, 3, 10

LinkEvent = Callable[[int, str, int], bool]
"""Whether a link matters: it has this index, this name, and the link with this index as its master."""


class HasDescriptor(Protocol):
    """An object with a descriptor: a socket, a pipe."""

    def fileno(self) -> int:
        """Return the descriptor."""


StopSignal = threading.Event | HasDescriptor | int
"""What ends a watch: an event that is set, or a descriptor that becomes readable (an eventfd, a pipe, a socket)."""


class LinkEvents(Closing):
    """What happens to links in the network namespace in which it is made, from then on."""

    BUFFER = 8 << 20
    """Bytes of events that the kernel keeps for us; what is more is lost, and we are told that something is."""

    def __init__(self) -> None:
        """Listen. Raises KernelError."""
        try:
            self._netlink = NetlinkSocket(NETLINK_ROUTE, groups=_GROUP_LINK, buffer=self.BUFFER)
        except OSError as error:
            raise KernelError(error.errno or 0, "events of links") from error

    def close(self) -> None:
        """Stop listening; again is no error."""
        self._netlink.close()

    def wait(self, stop: int, matters: LinkEvent, seconds: float | None = None) -> bool:
        """Return True when something happened to a link that matters, events were lost, or the time is over.

        False if `stop` is readable. What has happened until now is taken as one. Raises KernelError.
        """
        poll = select.poll()
        poll.register(self._netlink.fileno(), select.POLLIN)
        poll.register(stop, select.POLLIN)
        # Events that do not matter must not put the end off: a busy node has them all the time.
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = dict(poll.poll(None if left is None else left * 1000))
            if stop in ready:
                return False
            if not ready or self._happened(matters) or left == 0:
                return True

    def _happened(self, matters: LinkEvent) -> bool:
        found = False
        try:
            for message in self._netlink.receive_ready():
                if message.type == _NEW_LINK and not found:
                    parts = parts_of(message.payload, 16)
                    (index,) = struct.unpack_from("=4xi", message.payload)
                    name = os.fsdecode(parts.get(_IFNAME, b"").rstrip(b"\0"))
                    (master,) = struct.unpack("=I", parts.get(_MASTER, bytes(4)))
                    found = matters(index, name, master)
        except KernelError as error:
            if error.errno != errno.ENOBUFS:
                raise
            return True  # what is still queued comes with the next wait
        return found


@contextmanager
def readable_at(stop: StopSignal) -> Iterator[int]:
    """Give a descriptor that becomes readable when one should stop."""
    if isinstance(stop, int):
        yield stop
        return
    if not isinstance(stop, threading.Event):
        yield stop.fileno()
        return
    ours, theirs = socket.socketpair()

    def tell() -> None:
        stop.wait()
        with contextlib.suppress(OSError):  # the watch is over already
            theirs.send(b"\0")

    # Who never sets the event does not keep the process from ending.
    threading.Thread(target=tell, name="hairpin-stop", daemon=True).start()
    with ours, theirs:
        yield ours.fileno()
