"""One pass of ensuring or removing service addresses: read, do a step, and again until it is as wanted."""

from __future__ import annotations

import errno

import attrs

from .errors import KernelError
from .handlers.service_address import ServiceAddressHandler
from .model import Family
from .service_report import AddressOutcome, AddressStatus, DeviceStatus, ServiceAddressReport
from .service_state import LINK_GROUP, NodeLink, Problem, Seen, Step, Wanted, next_step, notes_on

__all__ = ["Request", "ensure", "remove"]

_TRIES, _STEPS = 3, 8
_PROTOCOLS = ("rtnetlink: ", "netlink request: ")


@attrs.frozen
class Request:
    """What is asked for. The arguments of `ensure_service_address` say what the fields mean."""

    device: str
    addresses: tuple[Wanted, ...]
    set_up: bool = False
    kind: str | None = None


class _LinkGone(Exception):
    pass


@attrs.frozen
class _Device:
    link: NodeLink
    status: DeviceStatus
    notes: tuple[str, ...] = ()


def ensure(handler: ServiceAddressHandler, request: Request) -> ServiceAddressReport:
    """Make all that is asked for usable; trouble is in the report."""
    device: _Device | Problem | None = None
    for left in reversed(range(_TRIES)):
        try:
            device = _ensure_device(handler, request)
            if isinstance(device, Problem):
                break
            outcomes = tuple(
                _ensure_address(handler, device.link, wanted, again=bool(left)) for wanted in request.addresses
            )
        except _LinkGone:
            continue
        return ServiceAddressReport(request.device, device.status, outcomes, notes=device.notes)
    reason = device.reason if isinstance(device, Problem) else "it disappears again and again"
    return _all_failed(request, reason)


def _all_failed(request: Request, reason: str) -> ServiceAddressReport:
    failed = tuple(
        AddressOutcome(wanted.family, wanted.address, AddressStatus.FAILED, reason) for wanted in request.addresses
    )
    return ServiceAddressReport(request.device, DeviceStatus.FAILED, failed, reason)


def _ensure_device(handler: ServiceAddressHandler, request: Request) -> _Device | Problem:
    name = request.device
    try:
        link, created = handler.device(name), False
        if link is None:
            created = handler.create(name)
            link = handler.device(name)
            if link is None:
                raise _LinkGone
        if link.made_as == name:
            return _own_device(handler, link, name, created=created)
        return _foreign_device(handler, link, request)
    except KernelError as error:
        if error.errno == errno.ENODEV:
            raise _LinkGone from None
        if error.errno == errno.EOPNOTSUPP:
            return Problem("there is no such link, and the kernel has no dummy links: modprobe dummy, or make one")
        return Problem(_words(error))


def _own_device(handler: ServiceAddressHandler, link: NodeLink, name: str, *, created: bool) -> _Device:
    if link.group == LINK_GROUP:  # new, or a run was killed in between
        handler.mark(link, name)
    if not link.up:
        handler.set_up(link)
    status = DeviceStatus.PRESENT if link.up else DeviceStatus.REPAIRED
    return _Device(link, DeviceStatus.CREATED if created else status)


def _foreign_device(handler: ServiceAddressHandler, link: NodeLink, request: Request) -> _Device | Problem:
    if request.kind is not None and link.kind != request.kind:
        return Problem(f"its kind is {link.kind or 'none'}, not {request.kind}")
    if link.up:
        return _Device(link, DeviceStatus.PRESENT)
    if not request.set_up:
        return _Device(link, DeviceStatus.PRESENT, ("it is down and was not made by this tool: left (--set-up)",))
    handler.set_up(link)
    return _Device(link, DeviceStatus.REPAIRED)


def _ensure_address(handler: ServiceAddressHandler, link: NodeLink, wanted: Wanted, *, again: bool) -> AddressOutcome:
    """Make one address usable. Raises _LinkGone if the link went meanwhile and there is another try (`again`)."""
    done: list[Step] = []
    changes: list[str] = []
    notes: list[str] = []

    def outcome(reason: str | None = None) -> AddressOutcome:
        status = AddressStatus.REPAIRED if changes else AddressStatus.PRESENT
        if reason is not None:
            status = AddressStatus.FAILED
        elif Step.ADD in done:
            status = AddressStatus.ADDED
        return AddressOutcome(wanted.family, wanted.address, status, reason, tuple(changes), tuple(notes))

    try:
        for _ in range(_STEPS):
            seen = handler.seen(link, wanted)
            step = next_step(wanted, seen)
            if isinstance(step, Problem):
                return outcome(step.reason)
            if step is None:
                break
            if done.count(step) == 2:
                return outcome("what is done for it does not last: somebody else undoes it")
            if handler.apply(step, wanted, seen):
                changes.append(step.value)
            done.append(step)
        else:
            return outcome("it is changed by somebody else all the time")
        reason = handler.trouble(wanted)
        notes += notes_on(wanted, seen)
        if reason is None:
            _remove_elsewhere(handler, wanted, seen, changes, notes)
        return outcome(reason)
    except KernelError as error:
        if error.errno == errno.ENODEV and again:
            raise _LinkGone from None
        return outcome(_refusal(error, wanted.family, link))


def _remove_elsewhere(
    handler: ServiceAddressHandler, wanted: Wanted, seen: Seen, changes: list[str], notes: list[str]
) -> None:
    """Remove the same address from other links; what is left there is noted."""
    for other in seen.elsewhere():
        if other.prefix != wanted.family.bits:
            notes.append(f"it is on {other.device} too, as part of a /{other.prefix}")
        elif not other.made and not wanted.take_over:
            notes.append(f"it is on {other.device} too, not made by this tool: left (--take-over removes it)")
        elif handler.remove(other, wanted.address):
            changes.append(f"removed from {other.device}")
            if other.link is not None and other.link.made_as is not None:
                _remove_link(handler, other.link)


def _remove_link(handler: ServiceAddressHandler, link: NodeLink) -> tuple[DeviceStatus, str]:
    """Remove a link that we made, unless something is on it; return what became of it, and why if it stays.

    A link on it in a network namespace that ours has no number for is not seen, and goes with it.
    """
    holders = handler.holders(link)
    if holders:
        return DeviceStatus.IN_USE, f"it stays, as this tool did not make what is on it: {', '.join(holders)}"
    if handler.has_addresses(link):
        return DeviceStatus.PRESENT, "it stays, as it has other addresses that this tool made"
    handler.remove_device(link)
    return DeviceStatus.REMOVED, ""


def _refusal(error: KernelError, family: Family, link: NodeLink) -> str:
    if not (error.strerror or "").startswith(_PROTOCOLS):
        return _words(error)  # of the file of records: its errno says nothing about addresses
    if family is Family.IPV6 and error.errno == errno.EACCES:
        # With slashes, as a name may have dots in it.
        return f"IPv6 is switched off on {link.name}: sysctl -w net/ipv6/conf/{link.name}/disable_ipv6=0"
    if family is Family.IPV6 and error.errno in {errno.EOPNOTSUPP, errno.EAFNOSUPPORT}:
        return "the kernel runs without IPv6"
    return _words(error)


def _words(error: KernelError) -> str:
    """Return what the kernel said, without the name of the protocol."""
    text = error.strerror or ""
    return next((text.removeprefix(protocol) for protocol in _PROTOCOLS if text.startswith(protocol)), text)


def remove(handler: ServiceAddressHandler, request: Request) -> ServiceAddressReport:
    """Undo what is ours of it; trouble is in the report."""
    device = request.device
    try:
        link = handler.device(device)
    except KernelError as error:
        return _all_failed(request, _words(error))
    if link is None:
        absent = tuple(_absent_address(handler, wanted) for wanted in request.addresses)
        return ServiceAddressReport(device, DeviceStatus.ABSENT, absent)
    outcomes = tuple(_remove_address(handler, link, wanted) for wanted in request.addresses)
    if link.made_as != device:
        return ServiceAddressReport(device, DeviceStatus.PRESENT, outcomes)
    try:
        status, why = _remove_link(handler, link)
    except KernelError as error:
        return ServiceAddressReport(device, DeviceStatus.FAILED, outcomes, _words(error))
    if status is DeviceStatus.IN_USE:
        return ServiceAddressReport(device, status, outcomes, why)
    return ServiceAddressReport(device, status, outcomes, notes=(why,) if why else ())


def _absent_address(handler: ServiceAddressHandler, wanted: Wanted) -> AddressOutcome:
    """Return that an address has gone with its link, or why that cannot be noted."""
    try:
        handler.forget_gone(wanted)
    except KernelError as error:
        return AddressOutcome(wanted.family, wanted.address, AddressStatus.FAILED, _words(error))
    return AddressOutcome(wanted.family, wanted.address, AddressStatus.ABSENT)


def _remove_address(handler: ServiceAddressHandler, link: NodeLink, wanted: Wanted) -> AddressOutcome:
    def outcome(status: AddressStatus, reason: str | None = None, **more: tuple[str, ...]) -> AddressOutcome:
        return AddressOutcome(wanted.family, wanted.address, status, reason, **more)

    try:
        here = handler.seen(link, wanted).here(wanted.family)
        if here is None:
            handler.forget_gone(wanted)
            return outcome(AddressStatus.ABSENT)
        if not here.made:
            note = f"it is on {link.name}, but was not made by this tool: left"
            return outcome(AddressStatus.FOREIGN, notes=(note,))
        if not handler.remove(here, wanted.address):
            return outcome(AddressStatus.ABSENT)
        return outcome(AddressStatus.REMOVED, changes=("removed",))
    except KernelError as error:
        if error.errno == errno.ENODEV:
            return outcome(AddressStatus.ABSENT)
        return outcome(AddressStatus.FAILED, _refusal(error, wanted.family, link))
