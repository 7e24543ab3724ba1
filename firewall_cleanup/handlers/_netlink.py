"""A small netlink socket: send, receive until the end, and say when a dump was torn.

pyroute2 speaks nf_tables too, but hangs on a stale generation, says nothing of a torn dump and needs seconds for
what takes hundredths here (DESIGN.md, "Why an own message loop").
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ..closing import Closing
from ..errors import KernelError

__all__ = [
    "Attributes",
    "Message",
    "NetlinkSocket",
    "acknowledged",
    "attribute",
    "attributes",
    "message",
    "name_of",
    "named_messages",
    "parts_of",
]

NETLINK_ROUTE, NETLINK_NETFILTER, NETLINK_GENERIC = 0, 12, 16
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR = 0x1, 0x4, 0x300, 0x10
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLA_F_NESTED = 0x8000
NLA_TYPE_MASK = 0x3FFF

_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_GET_STRICT_CHK = 270, 10, 12
_NETLINK_ADD_MEMBERSHIP, _NETLINK_DROP_MEMBERSHIP, _SO_ATTACH_FILTER = 1, 2, 26
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_RECEIVE_SIZE = 1 << 17  # the kernel fills at most 32 KiB of a dump
# No reply within this time means a kernel that is stuck; better an error than a process that never ends.
_TIMEOUT_SECONDS = 60

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")

Attributes = dict[int, bytes]


class Message(NamedTuple):
    """A received netlink message: its type, its flags, its sequence number and what follows the header."""

    type: int
    flags: int
    sequence: int
    payload: bytes


def attribute(kind: int, data: bytes) -> bytes:
    """Return one attribute, padded to four bytes."""
    length = 4 + len(data)
    return _ATTRIBUTE.pack(length, kind) + data + bytes(-length % 4)


def attributes(data: bytes, offset: int = 0) -> list[tuple[int, bytes]]:
    """Return (type, payload) of each attribute; a truncated rest is left out."""
    result = []  # no generator: this is where much of a large dump's time goes
    end = len(data)
    unpack = _ATTRIBUTE.unpack_from
    while offset + 4 <= end:
        length, kind = unpack(data, offset)
        if length < 4 or offset + length > end:
            break
        result.append((kind & NLA_TYPE_MASK, data[offset + 4 : offset + length]))
        offset += (length + 3) & ~3
    return result


def parts_of(data: bytes, offset: int = 0) -> Attributes:
    """Return the payloads of attributes by type, of each type the last."""
    return dict(attributes(data, offset))


def name_of(data: bytes) -> str:
    """Return a name as text; what is no UTF-8 in it comes back as it was when the text is encoded alike."""
    return data.rstrip(b"\0").decode("utf-8", "surrogateescape")


def message(kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    """Return a netlink message ready to send."""
    length = 16 + len(payload)
    return _HEADER.pack(length, kind, flags, sequence, 0) + payload + bytes(-length % 4)


def named_messages(kind: int, sequence: int, head: bytes, number: int, names: Iterable[bytes]) -> list[bytes]:
    """Return a request for each name: `head`, then the name in an attribute of this number; sequences count up."""
    result, before = [], 20 + len(head)
    pack = struct.Struct(f"=IHHII{len(head)}sHH").pack
    for name in names:
        length = len(name)
        padded = (length + 3) & ~3
        start = pack(before + padded, kind, NLM_F_REQUEST, sequence, 0, head, length + 4, number)
        result.append(start + name.ljust(padded, b"\0"))
        sequence += 1
    return result


def acknowledged(request: bytes) -> bytes:
    """Return a request with the flag that asks for an answer also when all is well."""
    length, kind, flags, sequence, port = _HEADER.unpack_from(request)
    return _HEADER.pack(length, kind, flags | NLM_F_ACK, sequence, port) + request[16:]


class NetlinkSocket(Closing):
    """A netlink socket of one protocol, bound to the network namespace in which it was opened."""

    def __init__(self, protocol: int = NETLINK_NETFILTER, *, groups: int = 0, buffer: int = 8 << 20) -> None:
        """Open the socket, as a member of these multicast groups (a bit mask). Raises OSError."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._sequence = 0
        self._send_limit = 0
        try:
            self._socket.bind((0, groups))
            # Errors come back without a copy of the request: a refused batch would not fit the receive buffer.
            self._socket.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", _TIMEOUT_SECONDS, 0))
            self._grow(_SO_RCVBUFFORCE, socket.SO_RCVBUF, buffer)
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor, to wait for it."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket; again is no error."""
        self._socket.close()

    def check_strictly(self) -> None:
        """Let dumps be filtered by what their request says (Linux 4.20; older kernels give more, never less)."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(_SOL_NETLINK, _NETLINK_GET_STRICT_CHK, 1)

    def listen(self, group: int, program: bytes) -> None:
        """Receive what the kernel tells a multicast group, if a filter (struct sock_fprog) lets it pass.

        Raises OSError (EPERM without CAP_NET_ADMIN).
        """
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)

    def ignore(self, group: int) -> None:
        """Receive no more of what the kernel tells a multicast group; again is no error. Raises OSError."""
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_DROP_MEMBERSHIP, group)

    def next_sequence(self) -> int:
        """Return a sequence number that was not used before on this socket."""
        self._sequence += 1
        return self._sequence

    def take_sequences(self, count: int) -> int:
        """Return the first of so many sequence numbers that were not used before."""
        first = self._sequence + 1
        self._sequence += count
        return first

    def _grow(self, force: int, ordinary: int, size: int) -> None:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, force, size)
        except PermissionError:  # a user namespace: the limit of the machine holds
            self._socket.setsockopt(socket.SOL_SOCKET, ordinary, size)

    def send(self, data: bytes) -> None:
        """Send bytes as one datagram.

        Raises KernelError with EMSGSIZE if it does not fit the send buffer and that cannot be made large enough.
        """
        # The kernel accounts the buffer with its overhead; twice the size is what it doubles SO_SNDBUF for.
        if len(data) > self._send_limit:
            self._grow(_SO_SNDBUFFORCE, socket.SO_SNDBUF, max(len(data) + 4096, 1 << 18))
            self._send_limit = len(data)
        try:
            self._socket.send(data)
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                what = (
                    f"a batch of {len(data)} bytes is larger than the send buffer; raise net.core.wmem_max to"
                    f" {2 * len(data)} or run as root of the machine"
                )
                raise KernelError(errno.EMSGSIZE, what) from error
            raise KernelError(error.errno or 0, "netlink send") from error

    def receive_ready(self) -> Iterator[Message]:
        """Yield the messages that have arrived already: the kernel answers before `send` returns."""
        while True:
            try:
                yield from self.receive(socket.MSG_DONTWAIT)
            except KernelError as error:
                if error.errno != errno.ETIMEDOUT:
                    raise
                return

    def receive(self, flags: int = 0) -> Iterator[Message]:
        """Yield the messages of one datagram. Raises KernelError (ETIMEDOUT if none came)."""
        data = self._receive_datagram(flags)
        offset, end = 0, len(data)
        unpack = _HEADER.unpack_from
        while offset + 16 <= end:
            length, kind, flags, sequence, _port = unpack(data, offset)
            if length < 16:
                return
            yield Message(kind, flags, sequence, data[offset + 16 : offset + length])
            offset += (length + 3) & ~3

    def request(self, kind: int, payload: bytes) -> bytes | None:
        """Send one request and return the payload of its answer, None if it is only acknowledged.

        Raises KernelError with the kernel's errno.
        """
        sequence = self.next_sequence()
        self.send(message(kind, NLM_F_REQUEST | NLM_F_ACK, sequence, payload))
        answer: bytes | None = None
        while True:
            for reply in self.receive():
                if reply.sequence != sequence:
                    continue  # left from a request that was given up
                if reply.type == NLMSG_ERROR:
                    code = -struct.unpack_from("=i", reply.payload)[0]
                    if code:
                        raise KernelError(code, "netlink request")
                    return answer
                answer = reply.payload

    def dump(self, kind: int, payload: bytes) -> tuple[list[bytes], bool]:
        """Return the payloads of a dump, and whether it is torn (a writer crossed it).

        Raises KernelError with the kernel's errno.
        """
        result: list[bytes] = []
        torn = self.dump_each(kind, payload, result.append)
        return result, torn

    def dump_each(self, kind: int, payload: bytes, take: Callable[[bytes], object]) -> bool:
        """Give the payload of each message of a dump to `take`; return whether the dump is torn.

        Raises KernelError with the kernel's errno.
        """
        sequence = self.next_sequence()
        self.send(message(kind, NLM_F_REQUEST | NLM_F_DUMP, sequence, payload))
        torn, unpack = False, _HEADER.unpack_from
        while True:
            # Not by `receive`: tens of thousands of messages come this way.
            data = self._receive_datagram()
            offset, end = 0, len(data)
            while offset + 16 <= end:
                length, kind, flags, answers, _port = unpack(data, offset)
                if length < 16:
                    break
                if answers == sequence:
                    torn = torn or bool(flags & NLM_F_DUMP_INTR)
                    if kind == NLMSG_DONE or kind == NLMSG_ERROR:  # noqa: PLR1714, SIM109 - see above
                        return self._end_of_dump(data[offset + 16 : offset + length]) or torn
                    take(data[offset + 16 : offset + length])
                offset += (length + 3) & ~3

    @staticmethod
    def _end_of_dump(payload: bytes) -> bool:
        code = -struct.unpack_from("=i", payload)[0] if len(payload) >= 4 else 0
        if code and code != errno.EINTR:
            raise KernelError(code, "netlink dump")
        return code == errno.EINTR

    def _receive_datagram(self, flags: int = 0) -> bytes:
        try:
            return self._socket.recv(_RECEIVE_SIZE, flags)
        except OSError as error:
            code = errno.ETIMEDOUT if error.errno == errno.EAGAIN else error.errno or 0
            raise KernelError(code, "netlink receive") from error
