"""As much of netlink as the benchmark needs, written apart from the package's own so that one checks the other."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

__all__ = ["ACK", "REQUEST", "Netlink", "attribute", "attributes", "message", "nested", "text"]

REQUEST, ACK, _DUMP = 0x1, 0x4, 0x300
_ERROR, _DONE = 2, 3
_NETLINK_NETFILTER = 12
_SO_SNDBUFFORCE = 32
_NESTED = 0x8000
_RECEIVE = 1 << 18


def attribute(kind: int, data: bytes) -> bytes:
    """Return an attribute."""
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def nested(kind: int, data: bytes) -> bytes:
    """Return an attribute that holds others."""
    return attribute(kind | _NESTED, data)


def text(kind: int, data: bytes) -> bytes:
    """Return an attribute that is a string."""
    return attribute(kind, data + b"\0")


def attributes(data: bytes) -> dict[int, bytes]:
    """Return the attributes of a message after its nfgenmsg header."""
    result, offset = {}, 4
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4:
            break
        result[kind & 0x3FFF] = data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return result


def message(kind: int, flags: int, sequence: int, family: int, data: bytes = b"", resource: int = 0) -> bytes:
    """Return a message of a netfilter subsystem."""
    payload = struct.pack("=BB", family, 0) + resource.to_bytes(2, "big") + data
    return struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0) + payload + bytes(-len(payload) % 4)


class Netlink:
    """A netlink socket to netfilter."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
        self._socket.bind((0, 0))
        self._socket.settimeout(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def make_room(self, size: int) -> None:
        """Let `size` bytes be sent at once."""
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, size + 4096)

    def dump(self, kind: int, family: int, data: bytes = b"") -> Iterator[bytes]:
        """Yield what follows the netlink header of each message of a dump."""
        self._socket.send(message(kind, REQUEST | _DUMP, 1, family, data))
        while True:
            for answer, payload in self._receive():
                if answer in {_DONE, _ERROR}:
                    _check(payload)
                    return
                yield payload

    def request(self, kind: int, family: int, data: bytes = b"") -> bytes:
        """Send a request and return what follows the netlink header of the first answer."""
        self._socket.send(message(kind, REQUEST, 1, family, data))
        answer, payload = next(iter(self._receive()))
        if answer == _ERROR:
            _check(payload)
        return payload

    def acknowledged(self, data: bytes) -> None:
        """Send one or more messages, one of which asks for an acknowledgement, and wait for it."""
        self._socket.send(data)
        for answer, payload in self._receive():
            if answer == _ERROR:
                _check(payload)

    def _receive(self) -> Iterable[tuple[int, bytes]]:
        data = self._socket.recv(_RECEIVE)
        offset = 0
        while offset + 16 <= len(data):
            length, kind = struct.unpack_from("=IH", data, offset)
            yield kind, data[offset + 16 : offset + length]
            offset += (length + 3) & ~3


def _check(payload: bytes) -> None:
    code = -struct.unpack_from("=i", payload)[0] if len(payload) >= 4 else 0
    if code:
        raise OSError(code, os.strerror(code))
