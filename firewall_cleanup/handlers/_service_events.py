"""Events of rtnetlink that may concern a service address."""

from __future__ import annotations

import errno
import ipaddress
import select
import socket
import struct
from collections.abc import Iterable

from ..errors import KernelError
from ..service_state import link_mark
from ._netlink import NETLINK_ROUTE

__all__ = ["ServiceEvents"]

_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
# RTNLGRP_: LINK, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE, IPV6_RULE
_GROUPS = (1, 5, 7, 8, 9, 11, 19)
_LINK, _ADDRESS, _ROUTE, _RULE = {16, 17}, {20, 21}, {24, 25}, {32, 33}
_LOOPBACK = 1  # the index of `lo` in every network namespace
_RECEIVE_SIZE = 1 << 16
_LONGEST_WAIT = 3600.0  # poll(2) takes milliseconds as an int; who waits asks again
_HEADER = struct.Struct("=IHHII")


class ServiceEvents:
    """A subscription, from the moment it is made on."""

    def __init__(self, device: str, addresses: Iterable[str], *, buffer: int | None = None) -> None:
        """Subscribe. `buffer` is the size of the receive buffer in bytes. Raises OSError."""
        self._addresses = tuple(ipaddress.ip_address(address).packed for address in addresses)
        self._names = tuple(name.encode("utf-8", "surrogateescape") + b"\0" for name in (device, link_mark(device)))
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, NETLINK_ROUTE
        )
        try:
            if buffer is not None:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            self._socket.bind((0, 0))
            for group in _GROUPS:
                self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        """Close the subscription; again is no error."""
        self._socket.close()

    def wait(self, seconds: float, stop: int | None, *, listen: bool = True) -> None:
        """Wait until `stop` (a descriptor) is readable, the time is over or, if we listen, there is an event."""
        poll = select.poll()
        if listen:
            poll.register(self._socket.fileno(), select.POLLIN)
        if stop is not None:
            poll.register(stop, select.POLLIN)
        poll.poll(min(max(seconds, 0), _LONGEST_WAIT) * 1000)

    def drain(self, index: int) -> bool:
        """Take the events that are there; tell whether one may concern the addresses or the device of this index.

        Missed events may have been about them. Raises KernelError.
        """
        found = False
        while True:
            try:
                data = self._socket.recv(_RECEIVE_SIZE)
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise KernelError(error.errno or 0, "rtnetlink events") from error
                found = True
            else:
                found = found or self._concern(data, index)

    def _concern(self, data: bytes, index: int) -> bool:
        offset = 0
        while offset + 16 <= len(data):
            length, kind, *_rest = _HEADER.unpack_from(data, offset)
            if length < 16:
                return True
            if self._concerns(kind, data[offset + 16 : offset + length], index):
                return True
            offset += (length + 3) & ~3
        return False

    def _concerns(self, kind: int, payload: bytes, index: int) -> bool:
        # An address may be found in a message by chance: then the state is looked at once more.
        if kind in _LINK:
            (about,) = struct.unpack_from("=4xi", payload)
            return about in {index, _LOOPBACK} or any(name in payload for name in self._names)
        if kind in _ADDRESS | _ROUTE:
            return any(address in payload for address in self._addresses)
        return kind in _RULE
