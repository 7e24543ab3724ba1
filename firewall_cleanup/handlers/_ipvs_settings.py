"""The messages that describe a virtual service of IPVS whole, and that make it again."""

from __future__ import annotations

import ipaddress
import struct
import sys

from ..model import Family
from ..undo.ipvs_text import Destination, VirtualService
from ._netlink import NLA_F_NESTED, attribute, parts_of

__all__ = ["decode_destination", "decode_service", "encode_destination", "encode_service"]

_FAMILIES = {2: Family.IPV4, 10: Family.IPV6}
_PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}
_NUMBERS = {name: number for number, name in _PROTOCOLS.items()}
_SERVICE, _DESTINATION = 1, 2
_HASHED = 0x2  # a state that the kernel reports and does not take
_FORWARD_MASK = 0x7


def decode_service(payload: bytes) -> VirtualService | None:
    """Return a service without its destinations; None for a family that is not known."""
    parts = parts_of(payload)
    family = _FAMILIES.get(_number(parts, 1))
    if family is None:
        return None
    (flags,) = struct.unpack_from("=I", parts.get(7, bytes(8)))
    mark = _number(parts, 5)
    protocol = _number(parts, 2)
    return VirtualService(
        family=family,
        protocol="" if mark else _PROTOCOLS.get(protocol, str(protocol)),
        address="" if mark else _address(parts[3], family),
        port=0 if mark else int.from_bytes(parts.get(4, b""), "big"),
        mark=mark,
        scheduler=parts.get(6, b"").rstrip(b"\0").decode(),
        flags=flags & ~_HASHED,
        timeout=_number(parts, 8),
        netmask=_netmask(parts.get(9, b""), family),
        engine=parts.get(11, b"").rstrip(b"\0").decode(),
    )


def _netmask(data: bytes, family: Family) -> int | None:
    if not data:
        return None
    return int.from_bytes(data, "big").bit_count() if family is Family.IPV4 else int.from_bytes(data, sys.byteorder)


def decode_destination(payload: bytes, service: Family) -> Destination:
    """Return a destination; old kernels do not say its family, which is the service's then."""
    parts = parts_of(payload)
    family = _FAMILIES.get(_number(parts, 11), service)
    return Destination(
        family=family,
        address=_address(parts[1], family),
        port=int.from_bytes(parts[2], "big"),
        method=_number(parts, 3) & _FORWARD_MASK,
        weight=_number(parts, 4),
        upper=_number(parts, 5),
        lower=_number(parts, 6),
        tunnel=_number(parts, 13),
        tunnel_port=int.from_bytes(parts.get(14, b""), "big"),
        tunnel_flags=_number(parts, 15),
    )


def encode_service(service: VirtualService, *, whole: bool) -> bytes:
    """Return the attribute that names a service, with all its settings if `whole`."""
    payload = attribute(1, struct.pack("=H", service.family.number))
    if service.mark:
        payload += attribute(5, struct.pack("=I", service.mark))
    else:
        payload += attribute(2, struct.pack("=H", _NUMBERS.get(service.protocol) or int(service.protocol)))
        payload += attribute(3, ipaddress.ip_address(service.address).packed.ljust(16, b"\0"))
        payload += attribute(4, service.port.to_bytes(2, "big"))
    if whole:
        payload += attribute(6, service.scheduler.encode() + b"\0")
        payload += attribute(7, struct.pack("=II", service.flags, 0xFFFFFFFF))
        payload += attribute(8, struct.pack("=I", service.timeout))
        payload += attribute(9, _mask(service))
        if service.engine:
            payload += attribute(11, service.engine.encode() + b"\0")
    return attribute(_SERVICE | NLA_F_NESTED, payload)


def _mask(service: VirtualService) -> bytes:
    bits = service.family.bits
    length = bits if service.netmask is None else service.netmask
    if service.family is Family.IPV6:
        return struct.pack("=I", length)
    return (((1 << length) - 1) << (bits - length)).to_bytes(4, "big")


def encode_destination(destination: Destination) -> bytes:
    """Return the attribute that describes a destination whole."""
    payload = attribute(11, struct.pack("=H", destination.family.number))
    payload += attribute(1, ipaddress.ip_address(destination.address).packed.ljust(16, b"\0"))
    payload += attribute(2, destination.port.to_bytes(2, "big"))
    for kind, number in (
        (3, destination.method),
        (4, destination.weight),
        (5, destination.upper),
        (6, destination.lower),
    ):
        payload += attribute(kind, struct.pack("=I", number))
    if destination.tunnel:
        payload += attribute(13, bytes([destination.tunnel]))
        payload += attribute(14, destination.tunnel_port.to_bytes(2, "big"))
        payload += attribute(15, struct.pack("=H", destination.tunnel_flags))
    return attribute(_DESTINATION | NLA_F_NESTED, payload)


def _number(parts: dict[int, bytes], kind: int) -> int:
    return int.from_bytes(parts.get(kind, b""), sys.byteorder)


def _address(raw: bytes, family: Family) -> str:
    return str(ipaddress.ip_address(raw[: family.bits // 8]))
