"""Events of rtnetlink that may concern a service address."""

from __future__ import annotations

import errno
import ipaddress
import struct
from collections.abc import Iterable

from ..closing import Closing
from ..errors import KernelError
from ..service_state import link_mark
from ..stop import StopLike, wait_for
from ._netlink import NETLINK_ROUTE, NetlinkSocket

__all__ = ["ServiceEvents"]

# RTNLGRP_: LINK, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE, IPV6_RULE
_GROUPS = sum(1 << group - 1 for group in (1, 5, 7, 8, 9, 11, 19))
_LINK, _ADDRESS, _ROUTE, _RULE = {16, 17}, {20, 21}, {24, 25}, {32, 33}
_LOOPBACK = 1  # the index of `lo` in every network namespace


class ServiceEvents(Closing):
    """A subscription, from the moment it is made on."""

    BUFFER = 8 << 20
    """Bytes of events that the kernel keeps for us; what is more is lost, and we are told that something is."""

    def __init__(self, device: str, addresses: Iterable[str], *, buffer: int = BUFFER) -> None:
        """Subscribe. `buffer` is the size of the receive buffer in bytes. Raises KernelError."""
        self._addresses = tuple(ipaddress.ip_address(address).packed for address in addresses)
        self._names = tuple(name.encode("utf-8", "surrogateescape") + b"\0" for name in (device, link_mark(device)))
        try:
            self._netlink = NetlinkSocket(NETLINK_ROUTE, groups=_GROUPS, buffer=buffer)
        except OSError as error:
            raise KernelError(error.errno or 0, "rtnetlink events") from error

    def close(self) -> None:
        """Close the subscription; again is no error."""
        self._netlink.close()

    def wait(self, stop: StopLike, seconds: float, *, listen: bool = True) -> None:
        """Wait as `stop.wait_for`, and if we listen, for an event."""
        wait_for(stop, seconds, *([self._netlink.fileno()] if listen else []))

    def drain(self, index: int) -> bool:
        """Take the events that are there; tell whether one may concern the addresses or the device of this index.

        Missed events may have been about them. Raises KernelError.
        """
        found = False
        while True:
            try:
                for message in self._netlink.receive_ready():
                    found = found or self._concerns(message.type, message.payload, index)
            except KernelError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                found = True
            else:
                return found

    def _concerns(self, kind: int, payload: bytes, index: int) -> bool:
        # An address may be found in a message by chance: then the state is looked at once more.
        if kind in _LINK:
            (about,) = struct.unpack_from("=4xi", payload)
            return about in {index, _LOOPBACK} or any(name in payload for name in self._names)
        if kind in _ADDRESS | _ROUTE:
            return any(address in payload for address in self._addresses)
        return kind in _RULE
