"""The kernel's side of service addresses: what is there, one step towards what is wanted, and whether it works."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Self

import attrs

from .. import service_state
from ..errors import KernelError
from ..model import Family
from ..service_state import NodeAddress, NodeLink, Seen, Step, Wanted, link_mark, wrong_routes
from ._handler import Handler, NetNs, connect
from ._made import MadeAddresses, kernel_keeps_protocol
from ._service import ServiceConnection
from ._service_events import ServiceEvents

__all__ = ["ServiceAddressHandler"]

_LOCAL = 2
_ROUTE_SECONDS = 2.0


class ServiceAddressHandler(Handler[ServiceConnection]):
    """Reads and changes links, addresses and local routes of one network namespace. Reading changes nothing."""

    @classmethod
    def open(cls, netns: NetNs = None) -> Self:
        """Open the handler in a namespace given by name or path (None: the caller's own).

        Raises NamespaceError, and KernelError if the kernel refuses.
        """
        place, connection, own = connect("rtnetlink", ServiceConnection, netns, None)
        return cls(place, connection, own_namespace=own)

    @property
    def _kernel(self) -> ServiceConnection:
        assert self.connection is not None  # noqa: S101 - every kernel has rtnetlink
        return self.connection

    @property
    def _records(self) -> MadeAddresses:
        return MadeAddresses(self.identity)

    # the device

    def device(self, name: str) -> NodeLink | None:
        """Return the link of this name, or the one that we made under it if it was renamed. Raises KernelError."""
        return self._kernel.link(name=name) or self._kernel.link(other_name=link_mark(name))

    def loopback_is_up(self) -> bool:
        """Whether `lo` is up, without which nothing local is delivered. Raises KernelError."""
        link = self._kernel.link(name="lo")
        return link is not None and link.up

    def create(self, name: str) -> bool:
        """Make a dummy link of ours that is down; tell whether that was still to be done.

        Raises KernelError (EOPNOTSUPP if the kernel has no dummy links).
        """
        return _try(self._kernel.create_link, name, service_state.OWN_KIND, so_already=errno.EEXIST)

    def mark(self, link: NodeLink, name: str) -> None:
        """Give a link that we made the other name that says so. Raises KernelError."""
        self._kernel.mark_link(link, name)

    def set_up(self, link: NodeLink) -> None:
        """Set a link up. Raises KernelError."""
        self._kernel.set_link_up(link)

    def holders(self, link: NodeLink) -> tuple[str, ...]:
        """Return what would go with a link and is not ours: addresses, and links on it. Raises KernelError."""
        addresses = self._kernel.addresses_of(link)
        # Where the kernel does not keep whose an address is, all on a link that we made are taken for ours.
        foreign = [text for text, made in addresses if not made and kernel_keeps_protocol()]
        links = self._kernel.links_on(link, self.namespace.fileno())
        return (*(f"address {text}" for text in foreign), *(f"link {name}" for name in links))

    def has_addresses(self, link: NodeLink) -> bool:
        """Whether a link has addresses, but for its own IPv6 link-local one. Raises KernelError."""
        return bool(self._kernel.addresses_of(link))

    def remove_device(self, link: NodeLink) -> None:
        """Delete a link; one that is gone is no error. Raises KernelError."""
        _try(self._kernel.delete_link, link, so_already=errno.ENODEV)

    # addresses

    def seen(self, link: NodeLink, wanted: Wanted) -> Seen:
        """Return what there is of an address. Raises KernelError."""
        links = {link.index: link}
        addresses = []
        for address in self._kernel.addresses_equal_to(wanted.family, wanted.address):
            if address.index not in links and (other := self._kernel.link(index=address.index)) is not None:
                links[address.index] = other
            place = links.get(address.index)
            made = address.made or (place is not None and place.made_as is not None)
            made = made or (not kernel_keeps_protocol() and self._records.holds(address.index, wanted.address))
            addresses.append(attrs.evolve(address, made=made, link=place))
        routes = self._kernel.local_routes(link, wanted.family, wanted.address)
        return Seen(link, tuple(addresses), routes)

    def apply(self, step: Step, wanted: Wanted, seen: Seen) -> bool:
        """Do one step; tell whether it was still to be done, as somebody else may have. Raises KernelError."""
        kernel, link, here = self._kernel, seen.link, seen.here(wanted.family)
        if step is Step.ADD_ROUTE:
            return _try(kernel.add_local_route, link, wanted.address, so_already=errno.EEXIST)
        if step is Step.DROP_ROUTE:
            gone = [_try(kernel.delete_route, r, so_already=errno.ESRCH) for r in wrong_routes(wanted, seen)]
            return any(gone)

        def put() -> bool:
            if here is None:
                return _try(kernel.add_address, link, wanted, so_already=errno.EEXIST)
            if step in {Step.ADOPT, Step.PREFER}:
                return self._change(step, link, wanted)
            return _try(kernel.renew_address, link, wanted, here, so_already=errno.EEXIST)

        if link.made_as is not None or kernel_keeps_protocol():
            changed = put()
        else:
            bearers = partial(self._bearers, wanted)
            changed = self._records.make(link.index, wanted.address, put, bearers, new=here is None)
        if changed and wanted.family is Family.IPV6:
            self._await_route(link, wanted)
        return changed

    def _change(self, step: Step, link: NodeLink, wanted: Wanted) -> bool:
        """Change an address in place; tell whether it was there. Raises KernelError."""
        changed = _try(self._kernel.change_address, link, wanted, so_already=errno.EADDRNOTAVAIL)
        if step is Step.ADOPT and changed and kernel_keeps_protocol():
            now = self.seen(link, wanted).here(wanted.family)
            if now is not None and not now.made:  # Linux 6.1 keeps the old mark of an IPv4 address
                changed = _try(self._kernel.renew_address, link, wanted, now, so_already=errno.EEXIST)
        return changed

    def _await_route(self, link: NodeLink, wanted: Wanted) -> None:
        """Wait until the kernel has made the local route: for IPv6 a worker does that after the address is added."""
        deadline, pause = time.monotonic() + _ROUTE_SECONDS, 0.0005
        while not self._kernel.local_routes(link, wanted.family, wanted.address) and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def remove(self, address: NodeAddress, text: str) -> bool:
        """Delete an address; tell whether it was still there. Raises KernelError."""
        delete = partial(_try, self._kernel.delete_address, address, so_already=errno.EADDRNOTAVAIL)
        return delete() if kernel_keeps_protocol() else self._records.unmake(address.index, text, delete)

    def forget_gone(self, wanted: Wanted) -> None:
        """Drop the records of an address on links that do not have it, if there are any. Raises KernelError."""
        if not kernel_keeps_protocol():
            self._records.forget_gone(wanted.address, partial(self._bearers, wanted))

    def _bearers(self, wanted: Wanted) -> set[int]:
        found = self._kernel.addresses_equal_to(wanted.family, wanted.address)
        return {address.index for address in found if address.prefix == wanted.family.bits}

    # whether it works

    def trouble(self, wanted: Wanted) -> str | None:
        """Return why an address that is there with its local route cannot be used, None if it can.

        Raises KernelError.
        """
        family, address = wanted.family, wanted.address
        six = "-6 " if family is Family.IPV6 else ""
        if not self._kernel.local_table_is_asked(family):
            return (
                "no policy rule leads to the table local (rule 0 is missing), without which nothing local is reached:"
                f" ip {six}rule add pref 0 lookup local"
            )
        try:
            kind = self._kernel.lookup(family, address)
        except KernelError as error:
            return f"the kernel finds no route to it ({error.strerror}): see ip {six}rule"
        if kind != _LOCAL:
            return f"a policy rule before that of table local sends its packets elsewhere: see ip {six}rule"
        if not self.loopback_is_up():
            return "lo is down, and the kernel delivers to local addresses over it: ip link set lo up"
        code = self.namespace.run(_bind, family, address)
        return None if not code else f"it cannot be bound: {KernelError(code, 'bind').strerror}"

    def events(self, device: str, addresses: Iterable[str]) -> ServiceEvents:
        """Subscribe to the events that may concern addresses on a device. Raises KernelError."""
        return self.namespace.run(ServiceEvents, device, addresses)


def _bind(family: Family, address: str) -> int:
    """Bind a datagram socket to a free port of an address; return the errno, 0 if it could be bound."""
    try:
        with socket.socket(family.number, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.bind((address, 0))
    except OSError as error:
        return error.errno or errno.EADDRNOTAVAIL
    return 0


def _try(function: Callable[..., object], *args: object, so_already: int) -> bool:
    """Call it; return False if the kernel refuses because it is so already."""
    try:
        function(*args)
    except KernelError as error:
        if error.errno != so_already:
            raise
        return False
    return True
