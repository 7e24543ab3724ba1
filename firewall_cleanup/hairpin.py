"""Hairpin mode of the ports to which pods are attached: found, turned on, noted, watched, put back.

A pod that reaches itself through its own service's address sends a packet into the bridge that has to come out of the
port by which it came in. With br_netfilter on, the bridge does that for ports in hairpin mode only (both families).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

import attrs

from .errors import KernelError, explain
from .hairpin_report import HairpinOutcome, HairpinReport, HairpinStatus
from .hairpin_target import Finder, everything, noted, outcome_of, target_of
from .handlers._namespace import Namespace
from .handlers._ports import MARK, IpAddress, Port, PortConnection, PortHandler
from .stop import StopLike

__all__ = ["ensure_hairpin", "undo_hairpin", "undo_in", "watch_hairpin"]

# Each round reads a port and takes one step, so this many others may cross us.
_ROUNDS = 12
_Act = Callable[[PortConnection, Port], HairpinOutcome]
_ALL = "all ports"
# What could not be done is tried again although nothing happens.
_RETRY_SECONDS = 30.0
# What seemed to go may only have had its other end moved into its pod, which is no event of the port.
_SOON_SECONDS = 0.2


def ensure_hairpin(
    *,
    bridge: str | None = None,
    pid: int | None = None,
    pod_netns: str | os.PathLike[str] | int | None = None,
    interface: str | None = None,
    endpoint: str | IpAddress | None = None,
    netns: str | os.PathLike[str] | None = None,
) -> HairpinReport:
    """Turn on the hairpin mode of the ports by which pods are attached to a bridge, and note it on the ports.

    A port that has it already is left alone and gets no note, so `undo_hairpin` leaves it alone too. Detaching a port
    from its bridge ends its hairpin mode: call this again, or use `watch_hairpin`.

    Args:
        bridge: a bridge by its name: all its veth ports, but for those that join it to another bridge of this node.
        pid: a process of a pod, as this process sees it.
        pod_netns: the network namespace of a pod, by its name in /run/netns, by a path, or as an open descriptor.
        interface: a port by its name, alternative names included.
        endpoint: the address of a pod, IPv4 or IPv6: of the pod that has it on its end of a port, else of the port
            behind which the neighbour table and the forwarding database have it.
        netns: the network namespace in which the bridge is, by name or path; by default the caller's own.

    Returns:
        The report, also for whatever went wrong: an outcome for each port, or one that says why there is none.

    Raises:
        ValueError: not exactly one of the first five is given, or it cannot be one; NamespaceError (a ValueError) if
            there is no such `netns`, or `pod_netns` is no network namespace.
        KernelError: no netlink socket could be opened.

    """
    target, find = target_of(bridge, pid, pod_netns, interface, endpoint)
    with PortHandler.open(netns) as handler:
        return _each(handler, target, find, _ensurer())


def undo_hairpin(
    *,
    bridge: str | None = None,
    interface: str | None = None,
    netns: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
) -> HairpinReport:
    """Turn off the hairpin mode of ports that `ensure_hairpin` or `watch_hairpin` turned on.

    Without `bridge` and `interface`: of all ports of the namespace. Ports without their note are left alone and not
    in the report. Again is no error. With `dry_run` nothing is changed. Returns and raises as `ensure_hairpin` does.
    """
    if bridge is None and interface is None:
        target, find = _ALL, noted(everything)
    else:
        target, of_target = target_of(bridge, None, None, interface, None)
        find = noted(of_target)
    with PortHandler.open(netns) as handler:
        return _each(handler, target, find, _plan if dry_run else _undoer())


def undo_in(namespace: Namespace, *, dry_run: bool) -> HairpinReport:
    """Do what `undo_hairpin` does, of all ports of a namespace that is open already."""
    try:
        handler = PortHandler.open(namespace=namespace)
    except KernelError as error:
        return HairpinReport(_ALL, (_refused(error),))
    with handler:
        return _each(handler, _ALL, noted(everything), _plan if dry_run else _undoer())


def watch_hairpin(
    bridge: str,
    stop: StopLike,
    *,
    netns: str | os.PathLike[str] | None = None,
    seen: Callable[[HairpinReport], object] | None = None,
) -> None:
    """Keep all veth ports of a bridge in hairpin mode until `stop`, each as soon as it is attached.

    It waits for the kernel's events, and reads all ports again when events were lost. A bridge that is not there yet,
    or goes, is waited for. What could not be done is tried again with the next event, or after 30 seconds.

    Args:
        bridge: the bridge, by its name.
        stop: ends it: a `Stop` at once, a `threading.Event` or a function that tells within 0.2 seconds.
        netns: the network namespace in which the bridge is, by name or path; by default the caller's own.
        seen: called with a report at the start, when something was changed, and when there is other trouble than
            before. What it raises ends the watch.

    Raises:
        ValueError: `bridge` cannot be a name; NamespaceError (a ValueError) if there is no such namespace.
        KernelError: events of links cannot be had.

    """
    target, find = target_of(bridge, None, None, None, None)
    with PortHandler.open(netns) as handler, handler.events() as events:
        trouble: list[HairpinOutcome] | None = None
        ensure = _ensurer()  # one for all the time, so that a port that is attached again needs no second note
        while True:
            report = _each(handler, target, find, ensure)
            bad = [outcome for outcome in report.outcomes if not outcome.status.ok]
            if seen is not None and (report.changed or bad != trouble):
                seen(report)
            trouble = bad
            index = _index(handler, bridge)
            seconds = None if report.ok else _RETRY_SECONDS
            if any(outcome.status is HairpinStatus.GONE for outcome in report.outcomes):
                seconds = _SOON_SECONDS

            def matters(link: int, name: str, master: int, bridge_index: int = index) -> bool:
                return name == bridge or bridge_index in {link, master}

            if not events.wait(stop, matters, seconds):
                return


def _index(handler: PortHandler, bridge: str) -> int:
    try:
        link = handler.ports.named(bridge)
    except KernelError:
        return -1  # the report has it
    return -1 if link is None else link.index


# What is done with each


def _each(handler: PortHandler, target: str, find: Finder, act: _Act) -> HairpinReport:
    outcomes: list[HairpinOutcome] = []
    try:
        found = find(handler)
        outcomes.extend(
            item if isinstance(item, HairpinOutcome) else _guarded(handler.ports, item, act) for item in found
        )
    except KernelError as error:
        outcomes.append(_refused(error))
    return HairpinReport(target, tuple(outcomes))


def _guarded(ports: PortConnection, port: Port, act: _Act) -> HairpinOutcome:
    try:
        return act(ports, port)
    except KernelError as error:
        refused = _refused(error)
        return attrs.evolve(refused, interface=port.name, index=port.index)


def _refused(error: KernelError) -> HairpinOutcome:
    if error.errno in {errno.EPERM, errno.EACCES}:
        return HairpinOutcome(HairpinStatus.DENIED, reason=explain(error.errno))
    return HairpinOutcome(HairpinStatus.FAILED, reason=error.strerror)


def _done(ports: PortConnection, port: Port, status: HairpinStatus) -> HairpinOutcome:
    bridge, (other, _) = ports.port(port.master), ports.other_end(port)
    names = (None if link is None else link.name for link in (bridge, other))
    return HairpinOutcome(status, port.name, port.index, *names)


def _ensurer() -> _Act:
    """Return what turns a port on, with notes of its own: of two at a time, each takes back its own only."""
    return _with_notes(_ensure)


def _undoer() -> _Act:
    """Return what puts a port back, with notes of its own."""
    return _with_notes(_undo)


def _with_notes(act: Callable[[PortConnection, Port, str], HairpinOutcome]) -> _Act:
    # In a namespace no two links may have the same name.
    own = f"{MARK}{os.urandom(4).hex()}"
    return lambda ports, port: act(ports, port, f"{own}-{port.index}")


def _ensure(ports: PortConnection, port: Port, note: str) -> HairpinOutcome:
    """Note on the port that its hairpin mode is ours, then turn it on.

    In this order a kill in between leaves no port that is on without a note. The note is put on an index, which may
    be another link's by then, so the link is looked at again; from then on the note tells that it is the same one.
    It is taken back only while we cannot have turned the mode on.
    """
    noted = turned = False
    refusal = _CHANGES
    try:
        for _ in range(_ROUNDS):
            now = ports.port(port.index)
            ours = now is not None and note in now.marks
            if now is None or (now.identity != port.identity and not (turned and ours)):
                return outcome_of(port, HairpinStatus.GONE)
            if not now.on_bridge:
                return outcome_of(now, HairpinStatus.NOT_A_PORT, "it was taken from its bridge meanwhile")
            if now.hairpin and turned and ours:
                return _done(ports, now, HairpinStatus.ENABLED)
            if now.hairpin:  # perhaps only just, by somebody who was faster: then it is his
                return _done(ports, now, HairpinStatus.ON)
            before = noted
            try:
                if ours:
                    noted = False  # whatever comes from here on, it may be on by us
                    ports.set_hairpin(note, on=True)
                    turned = True
                elif ports.other_end(now)[1]:
                    ports.mark(now, note)
                    noted = True
                else:
                    return outcome_of(port, HairpinStatus.GONE)
            except KernelError as error:
                noted = before and error.errno in _REFUSED
                refusal = _passing(error)
        return outcome_of(port, HairpinStatus.FAILED, refusal)
    finally:
        if noted:
            with contextlib.suppress(KernelError):  # it went with the link
                ports.unmark(port, note)


def _undo(ports: PortConnection, port: Port, note: str) -> HairpinOutcome:
    """Take over the port by a note of this call, take the others away, turn the hairpin mode off, take the note away.

    So a run that turns it on meanwhile has lost its note and cannot, or has made a new one; and a kill at any moment
    leaves a note to be found again.
    """
    added = held = False
    refusal = _CHANGES
    try:
        for _ in range(_ROUNDS):
            now = ports.port(port.index)
            ours = now is not None and note in now.marks
            if now is None or (now.identity != port.identity and not (held and ours)):
                return outcome_of(port, HairpinStatus.GONE)
            others = [mark for mark in now.marks if mark != note]
            if not others and not (held and ours):
                return _done(ports, now, HairpinStatus.PUT_BACK)
            try:
                if not ours:
                    ports.mark(now, note)
                    added = True
                    continue
                held = True
                if others:
                    ports.unmark(now, others[0])
                elif now.hairpin:
                    ports.set_hairpin(note, on=False)
                else:
                    ports.unmark(now, note)
                    return _done(ports, now, HairpinStatus.PUT_BACK)
            except KernelError as error:
                refusal = _passing(error)
        return outcome_of(port, HairpinStatus.FAILED, refusal)
    finally:
        if added and not held:
            with contextlib.suppress(KernelError):  # it went with the link
                ports.unmark(port, note)


def _plan(ports: PortConnection, port: Port) -> HairpinOutcome:
    # Asking for the other end could make the kernel give a number to this namespace: not when one only looks.
    bridge = ports.port(port.master)
    return HairpinOutcome(HairpinStatus.PLANNED, port.name, port.index, None if bridge is None else bridge.name)


_CHANGES = "it changes faster than it can be set"
# The next reading says why: the port went, was detached, or another was faster.
_CROSSED = frozenset({errno.ENODEV, errno.EOPNOTSUPP, errno.EEXIST, errno.EINVAL})
# Nothing was set then. Another error may be about the answer alone (ENOBUFS).
_REFUSED = _CROSSED | {errno.EPERM, errno.EACCES}


def _passing(error: KernelError) -> str:
    """Return what was refused if the next reading says why."""
    if error.errno in _CROSSED:
        return error.strerror or str(error)
    raise error
