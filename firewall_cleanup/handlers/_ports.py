"""Ports of bridges over rtnetlink: the pod behind each, its hairpin mode, and the note that it was us who set it.

The note is an alternative name of the link (Linux 5.5). It goes with the link, so a link that later gets the same
name or index does not have it; and the kernel finds a link by it, so that what is set by it is set on no other one.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import struct
from typing import Self

import attrs

from ..errors import KernelError
from ..model import Family
from ._handler import Handler, NetNs, connect
from ._link_events import LinkEvents
from ._namespace import Namespace
from ._netlink import NLA_F_NESTED, attribute, attributes, name_of, parts_of
from ._rtnl import RouteConnection

__all__ = ["MARK", "IpAddress", "NextHop", "Port", "PortConnection", "PortHandler"]

MARK = "hairpin-by-firewall-cleanup-"
"""How the alternative names begin that note a port whose hairpin mode we turned on."""

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

# linux/rtnetlink.h, if_link.h, if_addr.h, neighbour.h
_NEW_LINK, _GET_LINK, _GET_ADDRESS, _GET_ROUTE, _GET_NEIGHBOUR = 16, 18, 22, 26, 30
_NEW_NAME, _DEL_NAME = 108, 109
_IFNAME, _LINK, _MASTER, _LINKINFO, _EXT_MASK, _LINK_NETNSID = 3, 5, 10, 18, 29, 37
_TARGET_NETNSID, _PROP_LIST, _ALT_IFNAME = 46, 52, 53
_KIND, _SLAVE_KIND, _SLAVE_DATA, _BRIDGE_MODE = 1, 4, 5, 4
_SKIP_STATISTICS = 8
_AF_BRIDGE = 7
# A neighbour that did not answer; one that the node itself put there.
_UNANSWERED, _PERMANENT = 0x01 | 0x20, 0x80


@attrs.frozen
class Port:
    """A link, as far as it matters here. `peer` is the index of the other end of a veth in its own namespace."""

    index: int
    name: str
    kind: str
    peer: int = 0
    peer_namespace: int | None = None
    """The number by which this namespace knows that of the other end; None if that is this one."""

    master: int = 0
    on_bridge: bool = False
    hairpin: bool = False
    marks: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[object, ...]:
        """What stays the same while it is the same link: names change, and indices are used again."""
        return self.index, self.kind, self.peer, self.peer_namespace


@attrs.frozen
class NextHop:
    """Where the kernel sends what goes to an address."""

    local: bool
    device: int
    through_gateway: bool


class PortConnection(RouteConnection):
    """A connection to the rtnetlink of one network namespace, for ports of bridges and what is behind them."""

    def port(self, index: int, namespace: int | None = None) -> Port | None:
        """Return a link by its index, also from another namespace by its number. Raises KernelError."""
        if index <= 0:
            return None
        where = b"" if namespace is None else attribute(_TARGET_NETNSID, struct.pack("=i", namespace))
        return self._link(struct.pack("=B3xiII", 0, index, 0, 0) + where)

    def named(self, name: str) -> Port | None:
        """Return the link that has this name. Raises KernelError."""
        raw = os.fsencode(name)
        return self._link(bytes(16) + attribute(_IFNAME if len(raw) < 16 else _ALT_IFNAME, raw + b"\0"))

    def _link(self, payload: bytes) -> Port | None:
        try:
            answer = self._netlink.request(_GET_LINK, payload + _WITHOUT_STATISTICS)
        except KernelError as error:
            if error.errno in {errno.ENODEV, errno.ENOENT}:
                return None
            raise
        return None if answer is None else _port(answer)

    def veths(self, bridge: int | None = None) -> list[Port]:
        """Return the veth links, those of one bridge if its index is given. Raises KernelError."""
        wanted = _WITHOUT_STATISTICS + attribute(_LINKINFO | NLA_F_NESTED, attribute(_KIND, b"veth\0"))
        if bridge is not None:
            wanted += attribute(_MASTER, struct.pack("=I", bridge))
        # A kernel that does not filter gives more.
        ports = map(_port, self._dump(_GET_LINK, bytes(16) + wanted))
        return [port for port in ports if port.kind == "veth" and bridge in {None, port.master}]

    def other_end(self, port: Port) -> tuple[Port | None, bool]:
        """Return the other end of a veth, and whether both ends say that they belong together.

        Where the right to look into the other namespace is missing, what the kernel says of this end must do.
        Raises KernelError.
        """
        try:
            other = self.port(port.peer, port.peer_namespace)
        except KernelError as error:
            if error.errno in {errno.EPERM, errno.EACCES}:
                return None, True
            if error.errno == errno.EINVAL:  # that namespace has gone
                return None, False
            raise
        return other, other is not None and other.kind == "veth" and other.peer == port.index

    def mark(self, port: Port, mark: str) -> None:
        """Note on the link that its hairpin mode is ours, by a name that begins with MARK. Raises KernelError."""
        try:
            self._netlink.request(_NEW_NAME, _alternative(port.index, mark))
        except KernelError as error:
            what = "a note on the link of what is changed (an alternative name; Linux 5.5 or newer)"
            raise KernelError(error.errno or 0, what) from error

    def unmark(self, port: Port, mark: str) -> None:
        """Take a note from the link. Raises KernelError."""
        self._netlink.request(_DEL_NAME, _alternative(port.index, mark))

    def set_hairpin(self, mark: str, *, on: bool) -> None:
        """Turn the hairpin mode of the port with this note on or off.

        Raises KernelError: ENODEV if there is no such link, EOPNOTSUPP if it is no port of a bridge.
        """
        mode = attribute(_SLAVE_DATA | NLA_F_NESTED, attribute(_BRIDGE_MODE, bytes([on])))
        info = attribute(_LINKINFO | NLA_F_NESTED, attribute(_SLAVE_KIND, b"bridge\0") + mode)
        self._netlink.request(_NEW_LINK, bytes(16) + attribute(_ALT_IFNAME, mark.encode() + b"\0") + info)

    def bearers(self, address: IpAddress, namespace: int | None) -> frozenset[int]:
        """Return the indices of the links of a namespace that have an address. Raises KernelError."""
        where = b"" if namespace is None else attribute(10, struct.pack("=i", namespace))
        family = Family.IPV4 if address.version == 4 else Family.IPV6
        found = set()
        for payload in self._dump(_GET_ADDRESS, struct.pack("=BBBBI", family.number, 0, 0, 0, 0) + where):
            parts = parts_of(payload, 8)
            # Of IPv4 1 is the other end of a point-to-point link, else the same as 2; of IPv6 it is the other way.
            if parts.get(2, parts.get(1)) == address.packed:
                found.add(struct.unpack_from("=4xI", payload)[0])
        return frozenset(found)

    def next_hop(self, address: IpAddress) -> NextHop | None:
        """Return where packets to an address go, None if nowhere. Raises KernelError."""
        family = Family.IPV4 if address.version == 4 else Family.IPV6
        head = struct.pack("=BB10x", family.number, family.bits)
        try:
            answer = self._netlink.request(_GET_ROUTE, head + attribute(1, address.packed))
        except KernelError as error:
            if error.errno in {errno.EPERM, errno.EACCES}:
                raise
            return None  # unreachable, prohibited, no such family
        if answer is None:
            return None
        parts = parts_of(answer, 12)
        device = struct.unpack("=I", parts[4])[0] if 4 in parts else 0
        return NextHop(local=answer[7] == 2, device=device, through_gateway=bool(parts.keys() & {5, 18}))

    def learned(self, address: IpAddress) -> frozenset[int]:
        """Return the ports behind which an address was heard of: its neighbour's MAC, and the port of that.

        Raises KernelError.
        """
        family = Family.IPV4 if address.version == 4 else Family.IPV6
        macs: set[tuple[int, bytes]] = set()
        for payload in self._dump(_GET_NEIGHBOUR, struct.pack("=B11x", family.number)):
            index, state = struct.unpack_from("=4xiH", payload)
            parts = parts_of(payload, 12)
            if parts.get(1) == address.packed and 2 in parts and not state & _UNANSWERED:
                macs.add((index, parts[2]))
        if not macs:
            return frozenset()
        found = set()
        for payload in self._dump(_GET_NEIGHBOUR, struct.pack("=B11x", _AF_BRIDGE)):
            index, state = struct.unpack_from("=4xiH", payload)
            parts = parts_of(payload, 12)
            bridge = struct.unpack("=i", parts[9])[0] if 9 in parts else 0
            if (bridge, parts.get(2)) in macs and not state & _PERMANENT:
                found.add(index)
        return frozenset(found)


class PortHandler(Handler[PortConnection]):
    """Reads ports of bridges and sets their hairpin mode."""

    @classmethod
    def open(cls, netns: NetNs = None, *, namespace: Namespace | None = None) -> Self:
        """Open the handler in a namespace given by name or path (None: the caller's own).

        Raises NamespaceError, and KernelError if the kernel refuses.
        """
        place, connection, own = connect("rtnetlink", PortConnection, netns, namespace)
        return cls(place, connection, own_namespace=own)

    @property
    def ports(self) -> PortConnection:
        """The connection."""
        assert self.connection is not None  # noqa: S101 - every kernel has rtnetlink
        return self.connection

    def events(self) -> LinkEvents:
        """Return what happens to links in the same namespace from now on. Raises KernelError."""
        return self.namespace.run(LinkEvents)


_WITHOUT_STATISTICS = attribute(_EXT_MASK, struct.pack("=I", _SKIP_STATISTICS))


def _alternative(index: int, name: str) -> bytes:
    names = attribute(_PROP_LIST | NLA_F_NESTED, attribute(_ALT_IFNAME, name.encode() + b"\0"))
    return struct.pack("=B3xiII", 0, index, 0, 0) + names


def _port(payload: bytes) -> Port:
    (index,) = struct.unpack_from("=4xi", payload)
    parts = parts_of(payload, 16)
    info = parts_of(parts.get(_LINKINFO, b""))
    on_bridge = info.get(_SLAVE_KIND, b"").rstrip(b"\0") == b"bridge"
    names = (name_of(name) for kind, name in attributes(parts.get(_PROP_LIST, b"")) if kind == _ALT_IFNAME)
    namespace = parts.get(_LINK_NETNSID)
    return Port(
        index=index,
        name=name_of(parts.get(_IFNAME, b"")),
        kind=name_of(info.get(_KIND, b"")),
        peer=struct.unpack("=I", parts.get(_LINK, bytes(4)))[0],
        peer_namespace=None if namespace is None else struct.unpack("=i", namespace)[0],
        master=struct.unpack("=I", parts.get(_MASTER, bytes(4)))[0],
        on_bridge=on_bridge,
        hairpin=on_bridge and any(parts_of(info.get(_SLAVE_DATA, b"")).get(_BRIDGE_MODE, b"")),
        marks=tuple(name for name in names if name.startswith(MARK)),
    )
