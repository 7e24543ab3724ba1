"""What a service address needs to be usable, and the next step towards it. Pure: values in, a step or a reason out.

What the kernel does with such an address (its local route, IPv6 duplicate address detection, a link that is down) is
in docs/how-to/service-address.md.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Mapping

import attrs

from .model import Family

__all__ = [
    "ADDRESS_PROTOCOL",
    "LINK_GROUP",
    "OWN_KIND",
    "SCOPES",
    "LocalRoute",
    "NodeAddress",
    "NodeLink",
    "Problem",
    "Seen",
    "Step",
    "Wanted",
    "check_device",
    "link_mark",
    "next_step",
    "notes_on",
    "parse_address",
    "wrong_routes",
]

ADDRESS_PROTOCOL = 83
"""What an address that we made has as its protocol (`IFA_PROTO`, Linux 5.18): the letter S."""

LINK_GROUP = 0x6677636C
"""The group of a link that we made, until it has its other name; for good on kernels without such names (< 5.5)."""

OWN_KIND = "dummy"
"""The kind of a link that we make."""

SCOPES: Mapping[str, int] = {"host": 254, "global": 0}
"""The scopes that a service address can have, with the kernel's number.

An IPv6 address has none. What `host` does for IPv4, that the address is not taken as the source of other packets, a
preferred lifetime of 0 (deprecated) does for IPv6.
"""

_DADFAILED, _DEPRECATED, _TENTATIVE = 0x08, 0x20, 0x40
_IF_UP = 1
_MARK = "firewall-cleanup."


def link_mark(device: str) -> str:
    """Return the other name (altname) that says that we made the link."""
    return _MARK + device


@attrs.frozen
class NodeLink:
    """A link. `kind` is empty for `lo` and hardware; `port_of` is the kind of its master, as `vrf` or `bridge`."""

    index: int
    name: str
    kind: str = ""
    flags: int = 0
    group: int = 0
    other_names: tuple[str, ...] = ()
    port_of: str = ""

    @property
    def up(self) -> bool:
        """Whether it is set up."""
        return bool(self.flags & _IF_UP)

    @property
    def made_as(self) -> str | None:
        """The name under which we made it; None if we did not."""
        if self.kind != OWN_KIND:
            return None
        marks = [name.removeprefix(_MARK) for name in self.other_names if name.startswith(_MARK)]
        if marks:
            return marks[0]
        return self.name if self.group == LINK_GROUP else None


@attrs.frozen
class NodeAddress:
    """An address on a link. `made` says whether we put it there; `flags` and `scope` are the kernel's numbers."""

    index: int
    prefix: int
    scope: int
    flags: int = 0
    made: bool = False
    link: NodeLink | None = None
    raw: bytes = attrs.field(default=b"", repr=False, eq=False)

    @property
    def device(self) -> str:
        """The name of its link."""
        return f"link {self.index}" if self.link is None else self.link.name


@attrs.frozen
class LocalRoute:
    """A route of type local in table local, on the device. `source` is its preferred source, None if it has none."""

    scope: int
    source: str | None = None
    raw: bytes = attrs.field(default=b"", repr=False, eq=False)


@attrs.frozen
class Wanted:
    """An address that is to be usable on a device. `scope` is the kernel's number, also for IPv6."""

    family: Family
    address: str
    device: str
    scope: int = SCOPES["host"]
    take_over: bool = False

    @property
    def deprecated(self) -> bool:
        """Whether its preferred lifetime is 0."""
        return self.family is Family.IPV6 and self.scope == SCOPES["host"]


@attrs.frozen
class Seen:
    """What was read of an address: the device, the address on every link, its local routes on the device."""

    link: NodeLink
    addresses: tuple[NodeAddress, ...] = ()
    routes: tuple[LocalRoute, ...] = ()

    def here(self, family: Family) -> NodeAddress | None:
        """Return the address on the device with its full prefix length."""
        return next((a for a in self.addresses if a.index == self.link.index and a.prefix == family.bits), None)

    def elsewhere(self) -> tuple[NodeAddress, ...]:
        """Return the same address on other links."""
        return tuple(a for a in self.addresses if a.index != self.link.index)


class Step(enum.Enum):
    """What to do next; the value says it in a report."""

    ADD = "added"
    RENEW_SCOPE = "added again: it had another scope"
    RENEW_DAD = "added again: duplicate address detection held it back"
    RENEW_ROUTE = "added again: its local route was missing"
    PREFER = "preferred lifetime set"
    ADOPT = "taken over"
    ADD_ROUTE = "local route put back"
    DROP_ROUTE = "wrong local route removed"


@attrs.frozen
class Problem:
    """Why there is no next step though the state is not as wanted."""

    reason: str


def next_step(wanted: Wanted, seen: Seen) -> Step | Problem | None:
    """Return the next step towards the address, a problem if there is none, None if the state is as wanted.

    What we did not make is touched only with `take_over`, and an address with another prefix length never.
    """
    link, mine = seen.link, seen.here(wanted.family)
    if "vrf" in {link.kind, link.port_of}:
        return Problem(f"{link.name} belongs to a VRF, so the local route would not be in table local")
    if mine is None:
        longer = [a.prefix for a in seen.addresses if a.index == link.index]
        if wanted.family is Family.IPV6 and longer:  # the kernel allows an IPv6 address once per link
            return Problem(f"it is on {link.name} already, with prefix length {longer[0]} instead of 128")
        return Step.ADD
    may = mine.made or wanted.take_over
    step, what = _address_step(wanted, mine) or _route_step(wanted, seen) or (None, "")
    # The route is exactly the kernel's, so it is put back under an address that is not ours, too.
    if may or step is None or step is Step.ADD_ROUTE:
        return step
    return Problem(f"it is on {link.name} {what} and was not made by this tool; --take-over replaces it")


def _address_step(wanted: Wanted, mine: NodeAddress) -> tuple[Step, str] | None:
    """Return what to do about the address itself, and what is wrong with it."""
    if wanted.family is Family.IPV4 and mine.scope != wanted.scope:
        return Step.RENEW_SCOPE, f"with scope {_scope(mine.scope)}"
    if mine.flags & (_DADFAILED | _TENTATIVE):
        done = "failed" if mine.flags & _DADFAILED else "has not finished"
        return Step.RENEW_DAD, f"without nodad (duplicate address detection {done})"
    if wanted.take_over and not mine.made:
        return Step.ADOPT, ""
    if mine.made and wanted.family is Family.IPV6 and wanted.deprecated is not bool(mine.flags & _DEPRECATED):
        return Step.PREFER, ""
    return None


def _route_step(wanted: Wanted, seen: Seen) -> tuple[Step, str] | None:
    """Return what to do about the local route, and what is wrong with it."""
    wrong = wrong_routes(wanted, seen)
    if len(wrong) == len(seen.routes):
        return Step.ADD_ROUTE if wanted.family is Family.IPV4 else Step.RENEW_ROUTE, "without its local route"
    return (Step.DROP_ROUTE, "") if wrong and wanted.take_over else None


def notes_on(wanted: Wanted, seen: Seen) -> list[str]:
    """Return what a person should know of an address that is as wanted."""
    notes = []
    mine = seen.here(wanted.family)
    if mine is not None and wanted.deprecated and not mine.flags & _DEPRECATED:
        notes.append("it was not made by this tool, and may be taken as the source of other packets")
    if wrong_routes(wanted, seen):
        notes.append("there is another local route to it beside the kernel's: left (--take-over removes it)")
    return notes


def wrong_routes(wanted: Wanted, seen: Seen) -> tuple[LocalRoute, ...]:
    """Return local routes of the address on the device that are not as the kernel makes them."""
    return tuple(route for route in seen.routes if not _is_right(route, wanted))


def _is_right(route: LocalRoute, wanted: Wanted) -> bool:
    # An IPv6 route has neither; its metric does not matter.
    return wanted.family is Family.IPV6 or (route.scope, route.source) == (SCOPES["host"], wanted.address)


def _scope(number: int) -> str:
    return {**{value: name for name, value in SCOPES.items()}, 253: "link", 200: "site"}.get(number, str(number))


def parse_address(text: str) -> tuple[Family, str]:
    """Return the family of an address and how the kernel writes it; `/32` or `/128` behind it is allowed.

    Raises ValueError for what is no address, and for one that no service can have.
    """
    where = f"address {text!r}: "
    name, slash, length = text.partition("/")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        raise ValueError(f"{where}expected an IPv4 or IPv6 address") from None
    family = Family.IPV4 if address.version == 4 else Family.IPV6
    if slash and length != str(family.bits):
        raise ValueError(f"{where}a service address is a /{family.bits}")
    if address.is_multicast or address.is_unspecified or address == ipaddress.IPv4Address("255.255.255.255"):
        raise ValueError(f"{where}a service cannot have a multicast, broadcast or unspecified address")
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None or address.is_link_local:
            raise ValueError(f"{where}a link-local IPv6 address cannot be bound without its link")
        if address.ipv4_mapped is not None:
            raise ValueError(f"{where}write it as the IPv4 address {address.ipv4_mapped}")
    return family, str(address)


def check_device(name: str) -> str:
    """Return the name of a device, or raise ValueError for what the kernel does not take as one."""
    wrong = not name or len(name.encode("utf-8", "surrogateescape")) > 15 or name in {".", ".."}
    # The kernel numbers a name with % in it.
    if wrong or any(c in "/:%" or c.isspace() or not c.isprintable() for c in name):
        raise ValueError(f"device {name!r}: expected the name of a link, up to 15 characters without / : % or blanks")
    return name
