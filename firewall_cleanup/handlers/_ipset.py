"""ipset over netlink: headers without members, and destroying by name."""

from __future__ import annotations

import errno
import ipaddress
import struct
from collections.abc import Container, Iterable

from ..errors import KernelError
from ..model import Family, IpSet
from ..rules import protocol_name
from ._netlink import (
    NLMSG_ERROR,
    NetlinkSocket,
    acknowledged,
    attribute,
    attributes,
    name_of,
    named_messages,
    parts_of,
)

__all__ = ["ENTRY_BUSY", "IpsetConnection"]

_SUBSYSTEM = 6 << 8
_DESTROY, _LIST = 3, 7
_PROTOCOL, _SETNAME, _TYPENAME, _FAMILY, _FLAGS, _DATA, _ADT, _INDEX = 1, 2, 3, 5, 6, 7, 8, 11
_REFERENCES = 25
# Within a member; the last is the name of one in a list:set.
_IP, _CIDR, _PORT, _PROTO, _MEMBER = 1, 3, 4, 7, 18
_LIST_HEADER = 1 << 2
# The index in listings came with protocol 7 (Linux 4.18); requests in 6 are answered by all.
_OLD, _NEW = b"\6", b"\7"
# IPSET_ERR_PROTOCOL
_UNKNOWN_PROTOCOL = 4097
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
        result = []
        for payload in self._headers():
            parts = parts_of(payload, 4)
            name, kind = name_of(parts[_SETNAME]), name_of(parts[_TYPENAME])
            header = parts_of(parts.get(_DATA, b""))
            result.append(
                IpSet(
                    name=name,
                    type=kind,
                    family=_FAMILIES.get(parts.get(_FAMILY, b"\0")[0]),
                    references=int.from_bytes(header.get(_REFERENCES, b""), "big"),
                    index=int.from_bytes(parts[_INDEX], "big") if _INDEX in parts else None,
                    members=self._members(name) if kind == "list:set" or name in with_members else (),
                    header=header,
                )
            )
        return result

    def _headers(self) -> list[bytes]:
        # In one go: asked for one set, the kernel looks for its name among all.
        flags = attribute(_FLAGS, _LIST_HEADER.to_bytes(4, "big"))
        for _ in range(20):
            try:
                payloads, torn = self._netlink.dump(_SUBSYSTEM | _LIST, _NEW_HEAD + flags)
            except KernelError as error:
                if error.errno != _UNKNOWN_PROTOCOL:
                    raise
                payloads, torn = self._netlink.dump(_SUBSYSTEM | _LIST, _HEAD + flags)
            if not torn:
                break
        return payloads

    def _members(self, name: str) -> tuple[str, ...]:
        try:
            payloads, _torn = self._netlink.dump(_SUBSYSTEM | _LIST, _HEAD + _name(name))
        except KernelError as error:
            if error.errno == errno.ENOENT:  # gone meanwhile
                return ()
            raise  # no members would mean that nobody shares what they name
        return tuple(
            _member(parts_of(data))
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
        first = self._netlink.take_sequences(len(names))
        encoded = [name.encode("utf-8", "surrogateescape") + b"\0" for name in names]
        messages = named_messages(_SUBSYSTEM | _DESTROY, first, _HEAD, _SETNAME, encoded)
        messages[-1] = acknowledged(messages[-1])  # refusals come unasked
        self._netlink.send(b"".join(messages))
        failures: dict[str, int] = {}
        done = False
        while not done:
            for reply in self._netlink.receive():
                place = reply.sequence - first
                if reply.type == NLMSG_ERROR and 0 <= place < len(names):
                    done = done or place == len(names) - 1
                    if code := -struct.unpack_from("=i", reply.payload)[0]:
                        failures[names[place]] = code
        return failures


_HEAD = b"\0\0\0\0" + attribute(_PROTOCOL, _OLD)
_NEW_HEAD = b"\0\0\0\0" + attribute(_PROTOCOL, _NEW)


def _member(element: dict[int, bytes]) -> str:
    """Return a member as `ipset save` prints it, as far as types of one address, a port, or a name go."""
    if _MEMBER in element:
        return name_of(element[_MEMBER])
    words = []
    if _IP in element:
        ((_kind, address), *_) = attributes(element[_IP])
        prefix = element.get(_CIDR, b"")
        words.append(str(ipaddress.ip_address(address)) + (f"/{prefix[0]}" if prefix else ""))
    if _PORT in element:
        port = str(int.from_bytes(element[_PORT], "big"))
        protocol = element.get(_PROTO, b"")
        words.append(f"{protocol_name(protocol[0])}:{port}" if protocol else port)
    return ",".join(words)


def _name(name: str) -> bytes:
    return attribute(_SETNAME, name.encode("utf-8", "surrogateescape") + b"\0")
