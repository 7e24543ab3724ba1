"""An address of the node's own for a local proxy, as one in front of the API server: made, kept, undone.

    from firewall_cleanup.service_address import ensure_service_address, remove_service_address

    report = ensure_service_address(["203.0.113.10", "2001:db8::10"], "apiserver-proxy")
    assert report.ok, report.problems
    ...
    remove_service_address(["203.0.113.10", "2001:db8::10"], "apiserver-proxy")

What is ours says so in the kernel: an address by its protocol 83 (before Linux 5.18 by a record in
/run/firewall-cleanup), a link by its other name `firewall-cleanup.NAME` (before Linux 5.5 by its group).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import TypeAlias

from .errors import KernelError
from .handlers._service_events import ServiceEvents
from .handlers.service_address import ServiceAddressHandler
from .service_report import AddressOutcome, AddressStatus, DeviceStatus, ServiceAddressReport
from .service_state import SCOPES, Wanted, check_device, parse_address
from .service_work import Request, ensure, remove
from .stop import Stop, StopLike, is_stopped

__all__ = [
    "AddressOutcome",
    "AddressStatus",
    "Addresses",
    "DeviceStatus",
    "ServiceAddressReport",
    "Stop",
    "ensure_service_address",
    "remove_service_address",
    "run_service_address",
]

Addresses: TypeAlias = str | IPv4Address | IPv6Address | Iterable[str | IPv4Address | IPv6Address]
NetNs: TypeAlias = str | os.PathLike[str] | None


def ensure_service_address(
    address: Addresses,
    device: str,
    *,
    scope: str = "host",
    take_over: bool = False,
    set_up: bool = False,
    kind: str | None = None,
    netns: NetNs = None,
) -> ServiceAddressReport:
    """Make addresses of the node usable on a device: there, with the local route, reached and free to be bound.

    What is so already is left alone. The address is added before the same one is removed from another link, and other
    addresses and links are not touched. One family that fails does not stop the other.

    Args:
        address: an IPv4 or IPv6 address, or several, as a dual-stack pair; each is used as a /32 or a /128.
        device: the name of a link. If there is none, a dummy link is made and set up; it is then ours.
        scope: `host` or `global`: that of an IPv4 address. An IPv6 address has none; with `host` its preferred
            lifetime is 0. That keeps the kernel from taking an address as the source of other packets.
        take_over: also replace what somebody else made: the same address on this device, which becomes ours, and on
            other links, from which it goes. An address with another prefix length always stays.
        set_up: set the device up if it is not ours and down; else that is noted.
        kind: what kind a device that is there must be of, as `dummy`; by default any.
        netns: a network namespace by name or path; by default the caller's own.

    Returns:
        The report, also for whatever went wrong; `report.ok` says whether all is as wanted.

    Raises:
        ValueError: an argument is wrong; NamespaceError (a ValueError) if there is no such namespace.
        KernelError: no netlink socket could be opened.

    """
    request = _request(address, device, scope=scope, take_over=take_over, set_up=set_up, kind=kind)
    with ServiceAddressHandler.open(netns) as handler:
        return ensure(handler, request)


def remove_service_address(address: Addresses, device: str, *, netns: NetNs = None) -> ServiceAddressReport:
    """Undo `ensure_service_address`: remove the addresses from the device if we put them there, and what we made.

    The device goes if we made it, and nobody else uses it, as far as that can be seen: not every link on it in
    another network namespace can. What is gone already is as wanted; an address that somebody else put there is
    left, and its status says so. Again changes nothing.

    Args:
        address: as for `ensure_service_address`.
        device: the same.
        netns: the same.

    Raises:
        ValueError: an argument is wrong; NamespaceError (a ValueError) if there is no such namespace.
        KernelError: no netlink socket could be opened.

    """
    request = _request(address, device)
    with ServiceAddressHandler.open(netns) as handler:
        return remove(handler, request)


def run_service_address(
    address: Addresses,
    device: str,
    stop: StopLike,
    *,
    interval: float = 60.0,
    cleanup: bool = False,
    on_report: Callable[[ServiceAddressReport], object] = lambda _report: None,
    scope: str = "host",
    take_over: bool = False,
    set_up: bool = False,
    kind: str | None = None,
    netns: NetNs = None,
    clock: Callable[[], float] = time.monotonic,
) -> ServiceAddressReport:
    """Keep addresses usable until `stop`: look when the kernel tells of a change that may concern them, and at times.

    Where somebody else undoes what this does, it is done again at once ten times, and then twice per second.

    Args:
        address: as for `ensure_service_address`.
        device: the same.
        stop: ends it: a `Stop` at once, a `threading.Event` or a function that tells within 0.2 seconds.
        interval: the longest time between two looks in seconds.
        cleanup: at the end do what `remove_service_address` does.
        on_report: called with the first report, and with each that changed something or says something new.
        scope: as for `ensure_service_address`.
        take_over: the same.
        set_up: the same.
        kind: the same.
        netns: the same.
        clock: the time in seconds, for tests.

    Returns:
        The last report; with `cleanup` that of the undoing.

    Raises:
        ValueError: an argument is wrong; NamespaceError (a ValueError) if there is no such namespace.
        KernelError: netlink sockets could not be opened.

    """
    request = _request(address, device, scope=scope, take_over=take_over, set_up=set_up, kind=kind)
    if not 0 < interval < float("inf"):
        raise ValueError(f"interval: expected seconds, more than 0, not {interval!r}")
    with ServiceAddressHandler.open(netns) as handler:
        with handler.events(device, (wanted.address for wanted in request.addresses)) as events:
            pace, last = _Pace(clock), None
            while True:
                report = ensure(handler, request)
                if last is None or report.changed or report.said != last.said:
                    on_report(report)
                last = report
                if not _wait(handler, events, device, (pace.next(), clock() + interval), stop, clock):
                    break
        if cleanup:
            last = remove(handler, request)
            on_report(last)
        return last


def _wait(
    handler: ServiceAddressHandler,
    events: ServiceEvents,
    device: str,
    times: tuple[float, float],
    stop: StopLike,
    clock: Callable[[], float],
) -> bool:
    """Wait until it is time to look again, not before the first time and not after the second; False to stop."""
    earliest, latest = times
    index = _index(handler, device)
    while not is_stopped(stop):
        now = clock()
        # While we hold back, events stay in the receive buffer; if it gets full, that is as good as an event.
        if now >= earliest and (now >= latest or events.drain(index)):
            return True
        until = (latest if now >= earliest else earliest) - now
        events.wait(stop, until, listen=now >= earliest)
    return False


def _index(handler: ServiceAddressHandler, device: str) -> int:
    """Return the index of the device, 0 if there is none: then its name is what events are known by."""
    try:
        link = handler.device(device)
    except KernelError:
        return 0
    return 0 if link is None else link.index


class _Pace:
    """How soon to look again: at once ten times, then twice per second."""

    BURST, PER_SECOND = 10, 2.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left, self._at = float(self.BURST), clock()

    def next(self) -> float:
        """Take one look and return the time from which the next one is allowed."""
        now = self._clock()
        self._left = min(self.BURST, self._left + (now - self._at) * self.PER_SECOND) - 1
        self._at = now
        return now + max(0.0, -self._left / self.PER_SECOND)


def _request(
    address: Addresses,
    device: str,
    *,
    scope: str = "host",
    take_over: bool = False,
    set_up: bool = False,
    kind: str | None = None,
) -> Request:
    given = [address] if isinstance(address, str | IPv4Address | IPv6Address) else list(address)
    if not given:
        raise ValueError("address: expected at least one")
    if scope not in SCOPES:
        raise ValueError(f"scope {scope!r}: expected {' or '.join(SCOPES)}")
    check_device(device)
    parsed = dict.fromkeys(parse_address(str(each)) for each in given)
    wanted = tuple(Wanted(family, text, device, SCOPES[scope], take_over) for family, text in parsed)
    return Request(device, wanted, set_up, kind)
