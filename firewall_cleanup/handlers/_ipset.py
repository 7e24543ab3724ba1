"""ipset over netlink: headers without members, and destroying by name."""

from __future__ import annotations

import errno
import ipaddress
import struct
from collections.abc import Container, Iterable

from ..errors import KernelError
from ..model import Family, IpSet
from ..rules import protocol_name
from ._netlink import NLM_F_ACK, NLM_F_REQUEST, NLMSG_ERROR, NetlinkSocket, attribute, attributes, message

__all__ = ["ENTRY_BUSY", "IpsetConnection"]

_SUBSYSTEM = 6 << 8
_DESTROY, _LIST, _GET_BYNAME = 3, 7, 14
_PROTOCOL, _SETNAME, _TYPENAME, _FAMILY, _FLAGS, _DATA, _ADT, _INDEX = 1, 2, 3, 5, 6, 7, 8, 11
_REFERENCES = 25
# Within a member; the last is the name of one in a list:set.
_IP, _CIDR, _PORT, _PROTO, _MEMBER = 1, 3, 4, 7, 18
_LIST_HEADER = 1 << 2
# GET_BYNAME and the index in listings came with protocol 7 (Linux 4.18); requests in 6 are answered by all.
_PROTOCOL_VERSION = b"\6"
_FAMILIES = {2: Family.IPV4, 10: Family.IPV6}
_PER_MESSAGE = 200

# IPSET_ERR_BUSY of include/uapi/linux/netfilter/ipset/ip_set.h
ENTRY_BUSY = 4100


class IpsetConnection:
    """A connection to the ipsets of one network namespace."""

    def __init__(self) -> None:
        self._netlink = NetlinkSocket()

    def close(self) -> None:
        """Close the connection; again is no error."""
        self._netlink.close()

    def sets(self, with_members: Container[str] = ()) -> list[IpSet]:
        """List all sets by their headers, those that are named and list:set with members. Raises KernelError."""
        for _ in range(20):
            payload = _HEAD + attribute(_FLAGS, _LIST_HEADER.to_bytes(4, "big"))
            payloads, torn = self._netlink.dump(_SUBSYSTEM | _LIST, payload)
            if not torn:
                break
        result = []
        for payload in payloads:
            parts = dict(attributes(payload, 4))
            name, kind = _text(parts[_SETNAME]), _text(parts[_TYPENAME])
            header = dict(attributes(parts.get(_DATA, b"")))
            result.append(
                IpSet(
                    name=name,
                    type=kind,
                    family=_FAMILIES.get(parts.get(_FAMILY, b"\0")[0]),
                    references=int.from_bytes(header.get(_REFERENCES, b""), "big"),
                    index=int.from_bytes(parts[_INDEX], "big") if _INDEX in parts else self._index(name),
                    members=self._members(name) if kind == "list:set" or name in with_members else (),
                )
            )
        return result

    def _index(self, name: str) -> int | None:
        try:
            answer = self._netlink.request(_SUBSYSTEM | _GET_BYNAME, _NEW_HEAD + _name(name))
        except KernelError:
            return None
        index = dict(attributes(answer or b"", 4)).get(_INDEX)
        return None if index is None else int.from_bytes(index, "big")

    def _members(self, name: str) -> tuple[str, ...]:
        try:
            payloads, _torn = self._netlink.dump(_SUBSYSTEM | _LIST, _HEAD + _name(name))
        except KernelError as error:
            if error.errno == errno.ENOENT:  # gone meanwhile
                return ()
            raise  # no members would mean that nobody shares what they name
        return tuple(
            _member(dict(attributes(data)))
            for payload in payloads
            for kind, adt in attributes(payload, 4)
            if kind == _ADT
            for _kind, data in attributes(adt)
        )

    def destroy(self, names: Iterable[str]) -> dict[str, int]:
        """Destroy sets by name and return the errno of each that the kernel refused.

        Raises ValueError for an empty name, which the kernel would take as all sets.
        """
        pending = list(names)
        if not all(pending):
            raise ValueError("a set without a name")
        failures: dict[str, int] = {}
        for start in range(0, len(pending), _PER_MESSAGE):
            failures.update(self._destroy_some(pending[start : start + _PER_MESSAGE]))
        return failures

    def _destroy_some(self, names: list[str]) -> dict[str, int]:
        by_sequence = {self._netlink.next_sequence(): name for name in names}
        self._netlink.send(
            b"".join(
                message(_SUBSYSTEM | _DESTROY, NLM_F_REQUEST | NLM_F_ACK, sequence, _HEAD + _name(name))
                for sequence, name in by_sequence.items()
            )
        )
        failures = {}
        while by_sequence:
            for reply in self._netlink.receive():
                name = by_sequence.pop(reply.sequence, None) if reply.type == NLMSG_ERROR else None
                if name is not None and (code := -struct.unpack_from("=i", reply.payload)[0]):
                    failures[name] = code
        return failures


_HEAD = b"\0\0\0\0" + attribute(_PROTOCOL, _PROTOCOL_VERSION)
_NEW_HEAD = b"\0\0\0\0" + attribute(_PROTOCOL, b"\7")


def _member(element: dict[int, bytes]) -> str:
    """Return a member as `ipset save` prints it, as far as types of one address, a port, or a name go."""
    if _MEMBER in element:
        return _text(element[_MEMBER])
    words = []
    if _IP in element:
        address = next(data for _kind, data in attributes(element[_IP]))
        prefix = element.get(_CIDR, b"")
        words.append(str(ipaddress.ip_address(address)) + (f"/{prefix[0]}" if prefix else ""))
    if _PORT in element:
        port = str(int.from_bytes(element[_PORT], "big"))
        protocol = element.get(_PROTO, b"")
        words.append(f"{protocol_name(protocol[0])}:{port}" if protocol else port)
    return ",".join(words)


def _name(name: str) -> bytes:
    return attribute(_SETNAME, name.encode("utf-8", "surrogateescape") + b"\0")


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("utf-8", "surrogateescape")
