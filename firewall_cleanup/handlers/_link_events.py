"""What happens to links, as the kernel tells it."""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Callable

from ..closing import Closing
from ..errors import KernelError
from ..stop import StopLike, is_stopped, wait_for
from ._netlink import NETLINK_ROUTE, NetlinkSocket, name_of, parts_of

__all__ = ["LinkEvent", "LinkEvents"]

_GROUP_LINK = 1
_NEW_LINK, _IFNAME, _MASTER = 16, 3, 10

LinkEvent = Callable[[int, str, int], bool]
"""Whether a link matters: it has this index, this name, and the link with this index as its master."""


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

    def wait(self, stop: StopLike, matters: LinkEvent, seconds: float | None = None) -> bool:
        """Return True when something happened to a link that matters, events were lost, or the time is over.

        False if one should stop. What has happened until now is taken as one. Raises KernelError.
        """
        # Events that do not matter must not put the end off: a busy node has them all the time.
        deadline = None if seconds is None else time.monotonic() + seconds
        while not is_stopped(stop):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            wait_for(stop, left, self._netlink.fileno())
            if self._happened(matters) or (deadline is not None and time.monotonic() >= deadline):
                return not is_stopped(stop)
        return False

    def _happened(self, matters: LinkEvent) -> bool:
        found = False
        try:
            for message in self._netlink.receive_ready():
                if message.type == _NEW_LINK and not found:
                    parts = parts_of(message.payload, 16)
                    (index,) = struct.unpack_from("=4xi", message.payload)
                    name = name_of(parts.get(_IFNAME, b""))
                    (master,) = struct.unpack("=I", parts.get(_MASTER, bytes(4)))
                    found = matters(index, name, master)
        except KernelError as error:
            if error.errno != errno.ENOBUFS:
                raise
            return True  # what is still queued comes with the next wait
        return found
