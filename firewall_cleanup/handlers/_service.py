"""Service addresses over rtnetlink: what `next_step` asks for, each as one message, or as two that are sent as one.

Two messages in one datagram are both handled before the send returns, so a kill cannot come between them.
"""

from __future__ import annotations

import errno
import ipaddress
import struct
import sys
from collections.abc import Iterable

from ..errors import KernelError
from ..model import Family
from ..service_state import ADDRESS_PROTOCOL, LINK_GROUP, LocalRoute, NodeAddress, NodeLink, Wanted, link_mark
from ._netlink import (
    NLA_F_NESTED,
    NLM_F_ACK,
    NLM_F_REQUEST,
    NLMSG_ERROR,
    attribute,
    attributes,
    message,
    name_of,
    parts_of,
)
from ._rtnl import RouteConnection

__all__ = ["ServiceConnection"]

_NEW_LINK, _GET_LINK, _NEW_LINK_PROPERTY = 16, 18, 108
_NEW_ADDRESS, _DEL_ADDRESS, _GET_ADDRESS = 20, 21, 22
_NEW_ROUTE, _GET_ROUTE = 24, 26
_REPLACE, _EXCLUSIVE, _CREATE, _APPEND = 0x100, 0x200, 0x400, 0x800
_LOCAL_TABLE, _LOCAL, _PROTOCOL_KERNEL, _SCOPE_HOST = 255, 2, 2, 254
_SCOPE_LINK = 253
_NODAD = 0x02
_ADDRESS, _IFA_LOCAL, _LIFETIMES, _FLAGS, _PROTOCOL = 1, 2, 6, 8, 11
_FOREVER = 0xFFFFFFFF
_BELOW, _GROUP, _BELOW_NAMESPACE, _TARGET_NAMESPACE, _PROPERTIES, _OTHER_NAME = 5, 27, 37, 46, 52, 53
_VXLAN_BELOW = 3
_DESTINATION, _OUTPUT, _SOURCE, _TABLE = 1, 4, 7, 15
_UP = 1

_Message = tuple[int, int, bytes]


class ServiceConnection(RouteConnection):
    """A connection to the rtnetlink of one network namespace, for links, addresses and local routes one by one."""

    def _send(self, *messages: _Message) -> None:
        """Send messages as one; raise KernelError with the last one's errno, else the first one's that has one."""
        numbered = [(self._netlink.next_sequence(), *each) for each in messages]
        flags = NLM_F_REQUEST | NLM_F_ACK
        self._netlink.send(b"".join(message(kind, flags | more, n, payload) for n, kind, more, payload in numbered))
        waiting = {each[0]: 0 for each in numbered}
        answered: set[int] = set()
        while len(answered) < len(waiting):
            for reply in self._netlink.receive():
                if reply.sequence in waiting and reply.type == NLMSG_ERROR:
                    waiting[reply.sequence] = -struct.unpack_from("=i", reply.payload)[0]
                    answered.add(reply.sequence)
        for code in reversed(waiting.values()):
            if code:
                raise KernelError(code, "rtnetlink")

    # links

    def link(self, *, name: str = "", other_name: str = "", index: int = 0) -> NodeLink | None:
        """Return the link of a name (or, from Linux 5.5, of another name), or of an index; None if there is none.

        Raises KernelError.
        """
        head = struct.pack("=BxHiII", 0, 0, index, 0, 0)
        names = (attribute(3, _bytes(name)) if name else b"") + (
            attribute(_OTHER_NAME, _bytes(other_name)) if other_name else b""
        )
        try:
            payload = self._netlink.request(_GET_LINK, head + names)
        except KernelError as error:
            # Older kernels do not look for other names: there is none.
            if error.errno == errno.ENODEV or (other_name and error.errno == errno.EINVAL):
                return None
            raise
        return None if payload is None else _link(payload)

    def create_link(self, name: str, kind: str) -> None:
        """Make a link that is down; its group says at once that it is ours.

        Raises KernelError: EEXIST if the name is taken, EOPNOTSUPP if the kernel has no links of this kind.
        """
        parts = attribute(3, _bytes(name)) + attribute(_GROUP, struct.pack("=I", LINK_GROUP))
        parts += attribute(18, attribute(1, _bytes(kind)))
        self._send((_NEW_LINK, _CREATE | _EXCLUSIVE, bytes(16) + parts))

    def mark_link(self, link: NodeLink, device: str) -> None:
        """Give a link the other name that says that it is ours, and then the ordinary group. Raises KernelError."""
        head = struct.pack("=BxHiII", 0, 0, link.index, 0, 0)
        name = attribute(_PROPERTIES | NLA_F_NESTED, attribute(_OTHER_NAME, _bytes(link_mark(device))))
        try:
            self._send((_NEW_LINK_PROPERTY, _CREATE | _EXCLUSIVE, head + name))
        except KernelError as error:
            if error.errno in {errno.EOPNOTSUPP, errno.EINVAL}:
                return  # before Linux 5.5; the group stays as the mark
            if error.errno != errno.EEXIST:
                raise
        if (now := self.link(index=link.index)) is not None and link_mark(device) in now.other_names:
            self._send((_NEW_LINK, 0, head + attribute(_GROUP, bytes(4))))

    def links_on(self, link: NodeLink, namespace: int) -> list[str]:
        """Return the names of links that would go with a link, as a VLAN on it; the descriptor is of our namespace.

        Also of those in namespaces that ours has a number for, as it has once a link went from here to there, if we
        may look into them. The kernel tells of no others: one may have been made there, or have gone on to a third.
        Raises KernelError.
        """
        found = [name_of(parts[3]) for parts in self._links_over(link) if _BELOW_NAMESPACE not in parts]
        for number in self.namespace_ids():
            try:
                others = self._links_over(link, number)
            except KernelError as error:
                # It has gone, or belongs to another user.
                if error.errno not in {errno.EINVAL, errno.EPERM, errno.EACCES}:
                    raise
                continue
            if others and (ours := self.namespace_id(namespace)) is not None:
                here = struct.pack("=i", ours)
                names = [name_of(parts[3]) for parts in others if parts.get(_BELOW_NAMESPACE) == here]
                found += [f"{name} in another network namespace" for name in names]
        return found

    def _links_over(self, link: NodeLink, namespace: int | None = None) -> list[dict[int, bytes]]:
        """Return the links of a namespace, given by its number, over one of this index in whatever namespace."""
        where = b"" if namespace is None else struct.pack("=i", namespace)
        payload = bytes(16) + (attribute(_TARGET_NAMESPACE, where) if where else b"")
        links = [parts_of(found, 16) for found in self._dump(_GET_LINK, payload)]
        below = struct.pack("=i", link.index)
        # A kernel that cannot look elsewhere (before Linux 4.15) gives the links of this namespace.
        return [each for each in links if _below(each) == below and each.get(_TARGET_NAMESPACE, b"") == where]

    def set_link_up(self, link: NodeLink) -> None:
        """Set a link up. Raises KernelError."""
        self._send((_NEW_LINK, 0, struct.pack("=BxHiII", 0, 0, link.index, _UP, _UP)))

    # addresses

    def addresses_equal_to(self, family: Family, address: str) -> list[NodeAddress]:
        """Return an address on every link that has it, whatever its prefix length. Raises KernelError."""
        wanted, found = ipaddress.ip_address(address).packed, []
        for payload in self._dump(_GET_ADDRESS, struct.pack("=BBBBI", family.number, 0, 0, 0, 0)):
            if wanted in payload and payload[0] == family.number:  # nodes may have ten thousand
                parts = parts_of(payload, 8)
                if parts.get(_IFA_LOCAL, parts.get(_ADDRESS)) == wanted:
                    found.append(_node_address(payload, parts))
        return found

    def addresses_of(self, link: NodeLink) -> list[tuple[str, bool]]:
        """Return the addresses of a link, each with whether its protocol is ours. Raises KernelError.

        Without the IPv6 link-local ones that the kernel makes.
        """
        found = []
        for payload in self._dump(_GET_ADDRESS, struct.pack("=BBBBI", 0, 0, 0, 0, link.index)):
            family, prefix, _flags, scope, index = struct.unpack_from("=BBBBI", payload)
            parts = parts_of(payload, 8)
            raw = parts.get(_IFA_LOCAL, parts.get(_ADDRESS))
            if index == link.index and raw is not None and (family, scope) != (Family.IPV6.number, _SCOPE_LINK):
                text = f"{ipaddress.ip_address(raw)}/{prefix}"
                found.append((text, parts.get(_PROTOCOL, b"\0")[0] == ADDRESS_PROTOCOL))
        return found

    def add_address(self, link: NodeLink, wanted: Wanted) -> None:
        """Add an address, marked as ours where the kernel keeps that. Raises KernelError (EEXIST if it is there)."""
        self._send((_NEW_ADDRESS, _CREATE | _EXCLUSIVE, _address(link, wanted)))

    def renew_address(self, link: NodeLink, wanted: Wanted, old: NodeAddress) -> None:
        """Delete an address and add it at once. Raises KernelError."""
        try:
            self._send((_DEL_ADDRESS, 0, old.raw), (_NEW_ADDRESS, _CREATE | _EXCLUSIVE, _address(link, wanted)))
        except KernelError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # it was gone already, and has been added
                raise

    def change_address(self, link: NodeLink, wanted: Wanted) -> None:
        """Give an address that is there our mark, where the kernel keeps that, and our lifetimes. Raises KernelError.

        The scope of an IPv4 address does not change.
        """
        self._send((_NEW_ADDRESS, _REPLACE, _address(link, wanted)))

    # routes

    def local_routes(self, link: NodeLink, family: Family, address: str) -> tuple[LocalRoute, ...]:
        """Return the routes in table local that deliver an address over a link. Raises KernelError."""
        wanted, found = ipaddress.ip_address(address).packed, []
        head = struct.pack("=BBBBBBBBI", family.number, 0, 0, 0, 0, 0, 0, _LOCAL, 0)
        # Older kernels ignore the filters.
        filters = attribute(_TABLE, struct.pack("=I", _LOCAL_TABLE)) + attribute(
            _OUTPUT, struct.pack("=I", link.index)
        )
        for payload in self._dump(_GET_ROUTE, head + filters):
            _family, length, _source, _tos, table, _protocol, scope, kind = struct.unpack_from("=8B", payload)
            if (length, table, kind) != (family.bits, _LOCAL_TABLE, _LOCAL) or wanted not in payload:
                continue
            parts = parts_of(payload, 12)
            if parts.get(_DESTINATION) == wanted and parts.get(_OUTPUT) == struct.pack("=I", link.index):
                source = str(ipaddress.ip_address(parts[_SOURCE])) if _SOURCE in parts else None
                found.append(LocalRoute(scope, source, payload))
        return tuple(found)

    def add_local_route(self, link: NodeLink, address: str) -> None:
        """Add the local route of an IPv4 address as the kernel does, beside those over other links.

        It goes with the address. Raises KernelError (EEXIST if it is there).
        """
        raw = ipaddress.IPv4Address(address).packed
        parts = (
            attribute(_DESTINATION, raw) + attribute(_OUTPUT, struct.pack("=I", link.index)) + attribute(_SOURCE, raw)
        )
        head = struct.pack("=8BI", 2, 32, 0, 0, _LOCAL_TABLE, _PROTOCOL_KERNEL, _SCOPE_HOST, _LOCAL, 0)
        self._send((_NEW_ROUTE, _CREATE | _APPEND, head + parts))

    def lookup(self, family: Family, address: str) -> int:
        """Return the type of the route to an address, 2 for local. Raises KernelError if there is none."""
        raw = ipaddress.ip_address(address).packed
        head = struct.pack("=8BI", family.number, family.bits, 0, 0, 0, 0, 0, 0, 0)
        payload = self._netlink.request(_GET_ROUTE, head + attribute(_DESTINATION, raw))
        return payload[7] if payload is not None and len(payload) >= 8 else 0

    def local_table_is_asked(self, family: Family) -> bool:
        """Whether some policy rule leads to table local. Raises KernelError."""
        return any(rule.table == _LOCAL_TABLE for rule in self.policy_rules(family))


def _address(link: NodeLink, wanted: Wanted) -> bytes:
    family, raw = wanted.family, ipaddress.ip_address(wanted.address).packed
    flags, scope = (_NODAD, 0) if family is Family.IPV6 else (0, wanted.scope)
    return b"".join(
        (
            struct.pack("=BBBBI", family.number, family.bits, flags, scope, link.index),
            attribute(_IFA_LOCAL, raw),
            attribute(_ADDRESS, raw),
            attribute(_FLAGS, struct.pack("=I", flags)),
            attribute(_LIFETIMES, struct.pack("=4I", 0 if wanted.deprecated else _FOREVER, _FOREVER, 0, 0)),
            attribute(_PROTOCOL, bytes([ADDRESS_PROTOCOL])),  # ignored before Linux 5.18
        )
    )


def _node_address(payload: bytes, parts: dict[int, bytes]) -> NodeAddress:
    _family, prefix, flags, scope, index = struct.unpack_from("=BBBBI", payload)
    return NodeAddress(
        index=index,
        prefix=prefix,
        scope=scope,
        flags=int.from_bytes(parts[_FLAGS], sys.byteorder) if _FLAGS in parts else flags,
        made=parts.get(_PROTOCOL, b"\0")[0] == ADDRESS_PROTOCOL,
        raw=payload,
    )


def _below(parts: dict[int, bytes]) -> bytes | None:
    """Return the index of the link under another one; a VXLAN has it in a place of its own."""
    info = parts_of(parts.get(18, b""))
    return parts_of(info[2]).get(_VXLAN_BELOW) if info.get(1) == b"vxlan\0" and 2 in info else parts.get(_BELOW)


def _link(payload: bytes) -> NodeLink:
    index, flags = struct.unpack_from("=4xiI", payload)
    parts = parts_of(payload, 16)
    info = parts_of(parts.get(18, b""))
    return NodeLink(
        index=index,
        name=name_of(parts[3]),
        kind=name_of(info.get(1, b"")),
        flags=flags,
        group=int.from_bytes(parts.get(_GROUP, b""), sys.byteorder),
        other_names=_names(attributes(parts.get(_PROPERTIES, b""))),
        port_of=name_of(info.get(4, b"")),
    )


def _names(properties: Iterable[tuple[int, bytes]]) -> tuple[str, ...]:
    return tuple(name_of(data) for kind, data in properties if kind == _OTHER_NAME)


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape") + b"\0"
