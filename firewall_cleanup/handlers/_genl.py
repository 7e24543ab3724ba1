"""IPVS and FOU over generic netlink."""

from __future__ import annotations

import errno
import ipaddress
import struct
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import attrs

from ..errors import KernelError
from ..model import Family, FouPort, IpvsService
from ._netlink import (
    NETLINK_GENERIC,
    NLA_F_NESTED,
    NLM_F_ACK,
    NLM_F_REQUEST,
    NLMSG_ERROR,
    NetlinkSocket,
    attribute,
    message,
    parts_of,
)

if TYPE_CHECKING:
    from ..undo.ipvs_text import VirtualService

__all__ = ["FouConnection", "IpvsConnection"]

_CONTROL, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 0x10, 3, 1, 2
_FAMILIES = {2: Family.IPV4, 10: Family.IPV6}
_PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}
_PROTOCOL_NUMBERS = {name: number for number, name in _PROTOCOLS.items()}
_TRIES = 20


class _GenericConnection:
    """A connection to one family of generic netlink in one network namespace.

    The kernel loads a module for a family that it does not know: make sure that it is there before.
    """

    name = ""

    def __init__(self) -> None:
        try:
            self._netlink = NetlinkSocket(NETLINK_GENERIC)
        except OSError as error:
            raise KernelError(error.errno or 0, self.name) from error
        try:
            payload = struct.pack("=BBH", _GET_FAMILY, 1, 0) + attribute(_FAMILY_NAME, self.name.encode() + b"\0")
            answer = self._netlink.request(_CONTROL, payload)
            self._family = int.from_bytes(parts_of(answer or b"", 4)[_FAMILY_ID], sys.byteorder)
        except BaseException:
            self._netlink.close()
            raise

    @classmethod
    def connect(cls) -> Self | None:
        """Connect; None if the kernel does not know the family. Raises KernelError."""
        try:
            return cls()
        except KernelError as error:
            if error.errno == errno.ENOENT:  # the controller's word: no such family
                return None
            raise

    def close(self) -> None:
        """Close the connection; again is no error."""
        self._netlink.close()

    def _request(self, command: int, payload: bytes) -> None:
        self._netlink.request(self._family, struct.pack("=BBH", command, 1, 0) + payload)

    def _request_all(self, requests: list[tuple[int, bytes]]) -> None:
        """Send several requests at once, and raise the first error of any."""
        first = self._netlink.take_sequences(len(requests))
        flags = NLM_F_REQUEST | NLM_F_ACK
        self._netlink.send(
            b"".join(
                message(self._family, flags, number, struct.pack("=BBH", command, 1, 0) + payload)
                for number, (command, payload) in enumerate(requests, first)
            )
        )
        pending, failed = set(range(first, first + len(requests))), 0
        while pending:
            for reply in self._netlink.receive():
                if reply.type == NLMSG_ERROR and reply.sequence in pending:
                    pending.discard(reply.sequence)
                    failed = failed or -struct.unpack_from("=i", reply.payload)[0]
        if failed:
            raise KernelError(failed, self.name)

    def _dump(self, command: int, payload: bytes = b"") -> list[dict[int, bytes]]:
        for _ in range(_TRIES):
            payloads, torn = self._netlink.dump(self._family, struct.pack("=BBH", command, 1, 0) + payload)
            if not torn:
                return [parts_of(answer, 4) for answer in payloads]
        raise KernelError(errno.EAGAIN, f"{self.name} changes faster than it can be read")


class IpvsConnection(_GenericConnection):
    """A connection to the IPVS of one network namespace."""

    name = "IPVS"
    _NEW, _DELETE, _GET_SERVICE, _NEW_DESTINATION, _GET_DESTINATION = 1, 3, 4, 5, 8

    def services(self) -> tuple[IpvsService, ...]:
        """Return the virtual services with their destinations. Raises KernelError."""
        before: list[IpvsService] = []
        for _ in range(_TRIES):
            # IPVS does not say that a dump was crossed by a writer: only two that agree are true.
            services = list(dict.fromkeys(self._services()))
            if services == before:
                return tuple(attrs.evolve(s, destinations=self._destinations(s)) for s in services)
            before = services
        raise KernelError(errno.EAGAIN, "IPVS changes faster than it can be read")

    def _destinations(self, service: IpvsService) -> frozenset[str]:
        try:
            found = self._dump(self._GET_DESTINATION, _service(service))
        except KernelError as error:
            if error.errno == errno.ESRCH:  # the service went meanwhile
                return frozenset()
            raise
        return frozenset(_destination(parts_of(answer[2]), service.family) for answer in found)

    def _services(self) -> Iterator[IpvsService]:
        for answer in self._dump(self._GET_SERVICE):
            parts = parts_of(answer[1])
            family = _FAMILIES.get(int.from_bytes(parts[1], sys.byteorder))
            if family is None:
                continue
            yield IpvsService(
                family=family,
                protocol=_protocol(parts),
                address=_address(parts[3], family) if 3 in parts else "",
                port=int.from_bytes(parts.get(4, b""), "big"),
                mark=int.from_bytes(parts.get(5, b""), sys.byteorder),
            )

    def delete(self, service: IpvsService) -> None:
        """Delete one virtual service, its destinations with it. Raises KernelError (ESRCH if it is gone)."""
        self._request(self._DELETE, _service(service))

    def settings(self) -> list[VirtualService]:
        """Return the virtual services whole, with the settings of their destinations. Raises KernelError."""
        from ._ipvs_settings import decode_destination, decode_service, encode_service  # noqa: PLC0415 - only a backup needs it

        result = []
        for answer in self._dump(self._GET_SERVICE):
            service = decode_service(answer[1])
            if service is not None:
                found = self._dump(self._GET_DESTINATION, encode_service(service, whole=False))
                there = (decode_destination(answer[2], service.family) for answer in found)
                result.append(attrs.evolve(service, destinations=tuple(there)))
        return result

    def add(self, service: VirtualService, *, is_new: bool) -> None:
        """Make a virtual service with its destinations, or give one that is there these destinations.

        All of it is one message to the kernel, which nothing that happens to this process can cut in two: a service
        without its destinations may lack what proves whose it is. Raises KernelError (EEXIST if it is there).
        """
        from ._ipvs_settings import encode_destination, encode_service  # noqa: PLC0415 - only a restore needs it

        named = encode_service(service, whole=False)
        requests = [(self._NEW, encode_service(service, whole=True))] if is_new else []
        requests += [(self._NEW_DESTINATION, named + encode_destination(one)) for one in service.destinations]
        self._request_all(requests)


class FouConnection(_GenericConnection):
    """A connection to the FOU ports of one network namespace."""

    name = "fou"
    _DELETE, _GET = 2, 3

    def ports(self) -> tuple[FouPort, ...]:
        """Return the ports on which encapsulated packets are taken. Raises KernelError."""
        result = []
        for parts in self._dump(self._GET):
            family = _FAMILIES.get(parts.get(2, b"\2")[0])
            if family is not None:
                kind = parts.get(4, b"\1")[0]
                result.append(FouPort(family, int.from_bytes(parts[1], "big"), kind))
        return tuple(result)

    def delete(self, port: FouPort) -> None:
        """Stop taking packets on a port. Raises KernelError (EINVAL or ENOENT if it is gone)."""
        family = attribute(2, bytes([port.family.number]))
        self._request(self._DELETE, attribute(1, port.port.to_bytes(2, "big")) + family)


def _protocol(parts: dict[int, bytes]) -> str:
    number = int.from_bytes(parts.get(2, b""), sys.byteorder)
    return _PROTOCOLS.get(number, str(number) if number else "")


def _service(service: IpvsService) -> bytes:
    payload = attribute(1, struct.pack("=H", service.family.number))
    if service.mark:
        payload += attribute(5, struct.pack("=I", service.mark))
    else:
        number = _PROTOCOL_NUMBERS.get(service.protocol) or int(service.protocol)
        payload += attribute(2, struct.pack("=H", number))
        payload += attribute(3, ipaddress.ip_address(service.address).packed.ljust(16, b"\0"))
        payload += attribute(4, service.port.to_bytes(2, "big"))
    return attribute(1 | NLA_F_NESTED, payload)


def _destination(parts: dict[int, bytes], family: Family) -> str:
    # A service of one family may have destinations of the other (tunnelled); old kernels do not say.
    own = _FAMILIES.get(int.from_bytes(parts.get(11, b""), sys.byteorder), family)
    address, port = _address(parts[1], own), int.from_bytes(parts[2], "big")
    return f"{address}:{port}" if own is Family.IPV4 else f"[{address}]:{port}"


def _address(raw: bytes, family: Family) -> str:
    return str(ipaddress.ip_address(raw[: family.bits // 8]))
