"""Which ports are meant: by their bridge, by the pod behind them, by their name, by an address."""

from __future__ import annotations

import errno
import ipaddress
import os
from collections.abc import Callable, Iterator

import attrs

from .errors import KernelError, NamespaceError, explain
from .hairpin_report import HairpinOutcome, HairpinStatus
from .handlers._ports import IpAddress, Port, PortConnection, PortHandler

__all__ = ["Finder", "Found", "everything", "noted", "outcome_of", "target_of"]

Found = Iterator[Port | HairpinOutcome]
Finder = Callable[[PortHandler], Found]

_NO_PORT = "it is no port of a bridge"


def outcome_of(port: Port, status: HairpinStatus, reason: str | None = None) -> HairpinOutcome:
    """Return the outcome of a port of which nothing else is known any more."""
    return HairpinOutcome(status, port.name, port.index, reason=reason)


def target_of(
    bridge: str | None,
    pid: int | None,
    pod_netns: str | os.PathLike[str] | int | None,
    interface: str | None,
    endpoint: str | IpAddress | None,
) -> tuple[str, Finder]:
    """Return what was asked for in words, and what finds its ports. Raises ValueError."""
    if sum(each is not None for each in (bridge, pid, pod_netns, interface, endpoint)) != 1:
        raise ValueError("expected one of bridge, pid, pod_netns, interface and endpoint")
    if bridge is not None:
        name = _name("bridge", bridge)
        return f"bridge {name}", lambda handler: _of_bridge(handler.ports, name)
    if interface is not None:
        port = _name("interface", interface)
        return f"interface {port}", lambda handler: _of_interface(handler.ports, port)
    if pid is not None:
        if pid <= 0:
            raise ValueError(f"pid: expected the number of a process, not {pid}")
        return f"process {pid}", lambda handler: _of_namespace(handler, f"/proc/{pid}/ns/net", f"process {pid}")
    if pod_netns is not None:
        place = pod_netns if isinstance(pod_netns, int) else _place(os.fspath(pod_netns))
        what = f"namespace {pod_netns if isinstance(pod_netns, int) else os.fspath(pod_netns)}"
        return what, lambda handler: _of_namespace(handler, place, what)
    address = ipaddress.ip_address(endpoint or "")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_multicast or address.is_unspecified or address.is_link_local:
        raise ValueError(f"endpoint: {address} is no address that one pod alone has")
    return f"endpoint {address}", lambda handler: _of_endpoint(handler.ports, address)


def _name(what: str, name: str) -> str:
    if not 0 < len(os.fsencode(name)) < 128 or any(c in name for c in "\0/"):
        raise ValueError(f"{what}: {name!r} cannot be the name of a link")
    return name


def _place(spec: str) -> str:
    if not spec:
        raise NamespaceError("network namespace: the name is empty")
    return spec if "/" in spec else f"/run/netns/{spec}"


def everything(handler: PortHandler) -> Found:
    """Yield all veth links of the namespace."""
    yield from handler.ports.veths()


def noted(find: Finder) -> Finder:
    """Return what finds, of these ports, those that bear a note of ours; what is gone has nothing to put back."""

    def found(handler: PortHandler) -> Found:
        for item in find(handler):
            port: Port | None
            if isinstance(item, Port):
                port = item
            elif item.index is not None:
                # A port that lost its bridge lost its hairpin mode with it, but not the note.
                port = handler.ports.port(item.index)
            elif item.status in {HairpinStatus.NO_BRIDGE, HairpinStatus.NOT_FOUND}:
                yield attrs.evolve(item, status=HairpinStatus.GONE)
                continue
            else:
                yield item
                continue
            if port is not None and port.marks:
                yield port

    return found


def _of_bridge(ports: PortConnection, name: str) -> Found:
    link = ports.named(name)
    if link is None:
        yield HairpinOutcome(HairpinStatus.NO_BRIDGE, reason=f"there is no link {name}")
        return
    if link.kind != "bridge":
        yield HairpinOutcome(HairpinStatus.NO_BRIDGE, reason=f"{name} is {_kind(link)}, and no bridge")
        return
    for port in ports.veths(link.index):
        other = None if port.peer_namespace is not None else ports.port(port.peer)
        if other is not None and other.master:
            reason = f"its other end {other.name} is a port on this node too"
            yield HairpinOutcome(HairpinStatus.JOINS, port.name, port.index, link.name, other.name, reason)
        elif port.hairpin:  # most are, and it was read only just
            yield HairpinOutcome(HairpinStatus.ON, port.name, port.index, link.name)
        else:
            yield port


def _of_interface(ports: PortConnection, name: str) -> Found:
    port = ports.named(name)
    if port is None:
        yield HairpinOutcome(HairpinStatus.NOT_FOUND, reason=f"there is no link {name}")
    elif port.kind != "veth":
        yield outcome_of(port, HairpinStatus.NOT_VETH, f"it is {_kind(port)}, and no veth")
    elif not port.on_bridge:
        yield outcome_of(port, HairpinStatus.NOT_A_PORT, _NO_PORT)
    else:
        yield port


def _kind(link: Port) -> str:
    return f"a link of kind {link.kind}" if link.kind else "no virtual link"


def _of_namespace(handler: PortHandler, place: str | int, what: str) -> Found:
    try:
        descriptor = (
            os.dup(place) if isinstance(place, int) else os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        )
    except OSError as error:
        yield _unopened(error, what)
        return
    try:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) == handler.identity:
            yield HairpinOutcome(HairpinStatus.HOST_NETWORK, reason="it is in the network namespace of the node")
        else:
            yield from _behind(handler.ports, descriptor, what)
    finally:
        os.close(descriptor)


def _unopened(error: OSError, what: str) -> HairpinOutcome:
    if error.errno in {errno.ENOENT, errno.ESRCH, errno.ENOTDIR}:
        return HairpinOutcome(HairpinStatus.NOT_FOUND, reason=f"there is no {what}")
    if error.errno in {errno.EPERM, errno.EACCES}:
        reason = f"{os.strerror(error.errno)} (needs CAP_SYS_PTRACE if it is another user's: run as root)"
        return HairpinOutcome(HairpinStatus.DENIED, reason=reason)
    return HairpinOutcome(HairpinStatus.FAILED, reason=explain(error.errno or 0))


def _behind(ports: PortConnection, descriptor: int, what: str) -> Found:
    """Yield the ports that lead into a namespace which is held open, so that its number stays its own."""
    links = ports.veths()  # first: by listing them the kernel gives a number to each namespace that they lead to
    try:
        number = ports.namespace_id(descriptor)
    except KernelError as error:
        if error.errno == errno.EINVAL:
            raise NamespaceError(f"{what}: it is no network namespace", errno.EINVAL) from error
        raise
    found = [link for link in links if number is not None and link.peer_namespace == number]
    attached = [link for link in found if link.on_bridge]
    yield from attached
    if not found:
        yield HairpinOutcome(HairpinStatus.NOT_A_PORT, reason=f"no veth leads into {what}")
    elif not attached:
        yield from (outcome_of(link, HairpinStatus.NOT_A_PORT, _NO_PORT) for link in found)


def _of_endpoint(ports: PortConnection, address: IpAddress) -> Found:
    hop = ports.next_hop(address)
    if hop is not None and hop.local:
        yield HairpinOutcome(HairpinStatus.HOST_NETWORK, reason=f"{address} is an address of this node")
        return
    having, learned = _bearing(ports, address), ports.learned(address)
    if len(having) > 1:
        having = [port for port in having if port.index in learned] or having
    if len(having) > 1:
        names = ", ".join(port.name for port in having)
        yield HairpinOutcome(HairpinStatus.AMBIGUOUS, reason=f"several pods have {address}: behind {names}")
    elif having:
        yield from having
    elif learned:
        yield from (_heard_of(ports.port(index), address) for index in sorted(learned))
    else:
        device = None if hop is None else ports.port(hop.device)
        if hop is None or device is None or hop.through_gateway or device.kind not in {"bridge", "veth"}:
            way = "no route" if hop is None or device is None else f"the route through {device.name}"
            yield HairpinOutcome(HairpinStatus.ELSEWHERE, reason=f"no pod here has {address}; {way} leads there")
        elif device.kind == "veth":
            yield outcome_of(device, HairpinStatus.NOT_A_PORT, _NO_PORT)
        else:
            yield HairpinOutcome(HairpinStatus.NOT_FOUND, reason=f"no pod on {device.name} has {address}")


def _heard_of(port: Port | None, address: IpAddress) -> Port | HairpinOutcome:
    if port is None:
        return HairpinOutcome(HairpinStatus.GONE, reason=f"the port behind which {address} was is gone")
    if port.kind != "veth":
        return outcome_of(port, HairpinStatus.ELSEWHERE, f"{address} is behind it, and it leads to no pod")
    return port


def _bearing(ports: PortConnection, address: IpAddress) -> list[Port]:
    """Return the ports whose other end has an address."""
    behind: dict[int | None, list[Port]] = {}
    for port in ports.veths():
        if port.on_bridge:
            behind.setdefault(port.peer_namespace, []).append(port)
    result = []
    for namespace, members in behind.items():
        try:
            bearers = ports.bearers(address, namespace)
        except KernelError as error:
            # Not for us to see, or gone: the neighbour table may still know.
            if error.errno not in {errno.EPERM, errno.EACCES, errno.EINVAL}:
                raise
            continue
        result += [port for port in members if port.peer in bearers]
    return result
