"""Links, addresses, routes and policy rules over rtnetlink.

What is to be deleted is named to the kernel by its own message from the dump: every field that it gave is compared.
"""

from __future__ import annotations

import errno
import ipaddress
import struct
import sys
from typing import Protocol

import attrs

from ..errors import KernelError
from ..model import Address, Family, Link, PolicyRule, Route
from ._netlink import NETLINK_ROUTE, NetlinkSocket, attribute, name_of, parts_of

__all__ = ["RouteConnection"]

_GET_LINK, _DEL_LINK, _GET_ADDRESS, _DEL_ADDRESS = 18, 17, 22, 21
_GET_ROUTE, _DEL_ROUTE, _GET_RULE, _DEL_RULE = 26, 25, 34, 33
_GET_NAMESPACE_ID = 90
_RULE_TO_TABLE = 1
# Attributes of a rule that say nothing beyond `from`, `fwmark` and `lookup`; 14 and 13 are limits, -1 for none.
_RULE_KNOWN = frozenset({2, 6, 10, 13, 14, 15, 16, 18, 21})
_MULTIPATH, _VIA, _ENCAP, _NEXTHOP_ID = 9, 18, 22, 30
_FAMILIES = {2: Family.IPV4, 10: Family.IPV6}
_TUNNELS = frozenset({"ipip", "ip6tnl"})
_TRIES = 20


class _Indexed(Protocol):
    @property
    def index(self) -> int: ...


class _Dumped(Protocol):
    @property
    def raw(self) -> bytes: ...


class RouteConnection:
    """A connection to the rtnetlink of one network namespace."""

    def __init__(self) -> None:
        self._netlink = NetlinkSocket(NETLINK_ROUTE)
        self._netlink.check_strictly()

    def close(self) -> None:
        """Close the connection; again is no error."""
        self._netlink.close()

    def _dump(self, kind: int, payload: bytes) -> list[bytes]:
        for _ in range(_TRIES):
            try:
                payloads, torn = self._netlink.dump(kind, payload)
            except KernelError as error:
                # No such table, no such link, no such family: nothing there.
                if error.errno in {errno.ENOENT, errno.ENODEV, errno.EAFNOSUPPORT, errno.EOPNOTSUPP}:
                    return []
                raise
            if not torn:
                return payloads
        raise KernelError(errno.EAGAIN, "the node's network changes faster than it can be read")

    def namespace_id(self, descriptor: int) -> int | None:
        """Return the number by which this namespace knows another one, None if it does not: no link leads there.

        Raises KernelError (EINVAL if the descriptor is none of a network namespace).
        """
        answer = self._netlink.request(_GET_NAMESPACE_ID, bytes(4) + attribute(3, struct.pack("=i", descriptor)))
        (number,) = struct.unpack("=i", parts_of(answer or b"", 4).get(1, b"\xff" * 4))
        return number if number >= 0 else None

    def namespace_ids(self) -> list[int]:
        """Return the numbers of all namespaces that this one knows. Raises KernelError."""
        found = (parts_of(payload, 4).get(1, b"\xff" * 4) for payload in self._dump(_GET_NAMESPACE_ID, bytes(4)))
        return [number for raw in found if (number := struct.unpack("=i", raw)[0]) >= 0]

    def links(self) -> tuple[Link, ...]:
        """Return all links. Raises KernelError."""
        found: list[tuple[Link, int]] = []
        for payload in self._dump(_GET_LINK, bytes(16)):
            (index,) = struct.unpack_from("=4xi", payload)
            parts = parts_of(payload, 16)
            info = parts_of(parts.get(18, b""))
            kind = name_of(info.get(1, b""))
            data = parts_of(info.get(2, b"")) if kind in _TUNNELS else {}
            link = Link(
                name=name_of(parts[3]),
                kind=kind,
                index=index,
                remote=str(ipaddress.ip_address(data[3])) if 3 in data else None,
                encap_port=int.from_bytes(data[18], "big") if any(data.get(15, b"")) else 0,
            )
            found.append((link, int.from_bytes(parts.get(10, b""), sys.byteorder)))
        names = {link.index: link.name for link, _master in found}
        return tuple(attrs.evolve(link, master=names.get(master)) for link, master in found)

    def addresses(self, link: Link) -> tuple[Address, ...]:
        """Return the addresses of a link. Raises KernelError."""
        result = []
        for payload in self._dump(_GET_ADDRESS, struct.pack("=BBBBI", 0, 0, 0, 0, link.index)):
            number, prefix, _flags, _scope, index = struct.unpack_from("=BBBBI", payload)
            family = _FAMILIES.get(number)
            parts = parts_of(payload, 8)
            raw = parts.get(2, parts.get(1))
            if index == link.index and family is not None and raw is not None:
                result.append(Address(family, link.name, f"{ipaddress.ip_address(raw)}/{prefix}", payload))
        return tuple(result)

    def policy_rules(self, family: Family) -> tuple[PolicyRule, ...]:
        """Return the policy rules of a family. Raises KernelError."""
        payloads = self._dump(_GET_RULE, struct.pack("=B11x", family.number))
        return tuple(_policy_rule(payload, family) for payload in payloads if payload[0] == family.number)

    def routes(self, family: Family, table: int, protocol: int, names: dict[int, str]) -> tuple[Route, ...]:
        """Return the routes of one table, those of one protocol unless that is 0. Raises KernelError.

        `names` maps the indices of links to their names.
        """
        head = struct.pack("=BBBBBBBBI", family.number, 0, 0, 0, 0, protocol, 0, 0, 0)
        payloads = self._dump(_GET_ROUTE, head + attribute(15, struct.pack("=I", table)))
        routes = (_route(payload, family, names) for payload in payloads if payload[0] == family.number)
        return tuple(r for r in routes if r.table == table and protocol in {0, r.protocol})

    def delete_policy_rule(self, rule: PolicyRule) -> None:
        """Delete a rule. Raises KernelError: ENOENT if it is gone, EEXIST if the kernel would hit another one.

        To the kernel what a request does not name is anything, and it deletes the first rule that fits.
        """
        for other in self.policy_rules(rule.family):
            if other.raw == rule.raw:
                self._netlink.request(_DEL_RULE, rule.raw)
                return
            same = (other.table, other.priority) == (rule.table, rule.priority)
            if same and rule.source in {None, other.source} and rule.mark in {None, other.mark}:
                what = f"a rule of the same priority {rule.priority} stands before it and would go in its place"
                raise KernelError(errno.EEXIST, what)
        raise KernelError(errno.ENOENT, "policy rule")

    def delete_route(self, route: _Dumped) -> None:
        """Delete a route, compared by every field. Raises KernelError (ESRCH if it is gone)."""
        # State that the kernel reports but does not take: flags such as "link down".
        self._netlink.request(_DEL_ROUTE, route.raw[:8] + bytes(4) + route.raw[12:])

    def delete_address(self, address: _Dumped) -> None:
        """Delete an address. Raises KernelError (EADDRNOTAVAIL if it is gone, ENODEV if its link is)."""
        self._netlink.request(_DEL_ADDRESS, address.raw)

    def delete_link(self, link: _Indexed) -> None:
        """Delete a link by its index, which no other gets. Raises KernelError (ENODEV if it is gone)."""
        self._netlink.request(_DEL_LINK, struct.pack("=B3xiII", 0, link.index, 0, 0))


def _policy_rule(payload: bytes, family: Family) -> PolicyRule:
    _family, to_length, from_length, tos, table, action, flags = struct.unpack_from("=BBBBB2xBI", payload)
    parts = parts_of(payload, 12)
    limits = (parts.get(13, b"\xff" * 4), parts.get(14, b"\xff" * 4))
    mask = parts.get(16, b"\xff" * 4)
    plain = (
        action == _RULE_TO_TABLE
        and not (to_length or tos or flags)
        and parts.keys() <= _RULE_KNOWN
        and limits == (b"\xff" * 4, b"\xff" * 4)
        and (16 not in parts or (10 in parts and mask == b"\xff" * 4))  # a mask without a mark: mark 0
    )
    return PolicyRule(
        family=family,
        table=int.from_bytes(parts[15], sys.byteorder) if 15 in parts else table,
        priority=int.from_bytes(parts.get(6, b""), sys.byteorder),
        source=f"{ipaddress.ip_address(parts[2])}/{from_length}" if 2 in parts else None,
        mark=int.from_bytes(parts[10], sys.byteorder) if 10 in parts else None,
        plain=plain,
        raw=payload,
    )


def _route(payload: bytes, family: Family, names: dict[int, str]) -> Route:
    _family, length, _source, tos, table, protocol, scope, kind = struct.unpack_from("=8B", payload)
    parts = parts_of(payload, 12)
    # A destination is padded by the kernel; `default` has none.
    raw = parts.get(1, b"").ljust(family.bits // 8, b"\0")
    simple = not tos and not parts.keys() & {_MULTIPATH, _VIA, _ENCAP, _NEXTHOP_ID}
    return Route(
        family=family,
        table=int.from_bytes(parts[15], sys.byteorder) if 15 in parts else table,
        destination=f"{ipaddress.ip_address(raw)}/{length}",
        protocol=protocol,
        scope=scope,
        type=kind if simple else 0,
        gateway=str(ipaddress.ip_address(parts[5])) if 5 in parts else None,
        metric=int.from_bytes(parts.get(6, b""), sys.byteorder),
        device=names.get(int.from_bytes(parts[4], sys.byteorder)) if 4 in parts else None,
        raw=payload,
    )
