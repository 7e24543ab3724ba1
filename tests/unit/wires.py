"""Stand-ins for a netlink socket, and the messages that are sent through one."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable

__all__ = ["Wire", "parse"]


def parse(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Return the messages in what was sent: type, flags, sequence, payload."""
    found, offset = [], 0
    while offset < len(data):
        length, kind, flags, sequence, _port = struct.unpack_from("=IHHII", data, offset)
        found.append((kind, flags, sequence, data[offset + 16 : offset + length]))
        offset += (length + 3) & ~3
    return found


class Wire:
    """A socket that notes what is sent and gives what a function answers to it."""

    def __init__(self, answer: Callable[[bytes], Iterable[bytes]]) -> None:
        self.answer = answer
        self.sent: list[bytes] = []
        self.queue: list[bytes] = []
        self.options: list[tuple[object, ...]] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)
        self.queue += self.answer(data)

    def recv(self, _size: int, _flags: int = 0) -> bytes:
        if not self.queue:
            raise BlockingIOError(errno.EAGAIN, "nothing")
        return self.queue.pop(0)

    def setsockopt(self, *options: object) -> None:
        self.options.append(options)

    def bind(self, _address: object) -> None: ...
    def close(self) -> None: ...
