"""What kube-router owns beside rules and sets: IPVS services, links, addresses, tunnels, routes and policy rules.

Read in cloudnativelabs/kube-router at v2.11 and in its tags, and compared with nodes recorded from it. An IPVS
service has no name and no owner: it is owned by proof alone, and kept where kube-proxy's own state explains it too.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping

import attrs

from ..model import (
    Controller,
    Family,
    FileTrace,
    IpvsService,
    Item,
    Link,
    PolicyRule,
    Route,
    Snapshot,
)
from . import ItemClaim, Proofs

__all__ = ["FILES", "HOST_NEEDS", "LASTING", "claim_items", "service_marks", "tunnel_names"]

_PROXY = Controller.SERVICE_PROXY
_ROUTING = Controller.ROUTING

_DUMMY, _BRIDGE, _KUBE_PROXY_DUMMY = "kube-dummy-if", "kube-bridge", "kube-ipvs0"
_TABLE_PODS, _TABLE_DSR, _TABLE_EXTERNAL, _TABLE_MAIN = 77, 78, 79, 254
# pkg/routes/linux_routes.go calls 0x11 ZebraOriginator; rtnetlink.h knows it as RTPROT_MROUTED.
_PROTOCOL = 17
_UNICAST, _LOCAL, _SCOPE_LINK = 1, 2, 253
_NODE_PORTS = range(30000, 32768)
_TUNNEL_KINDS = {"ipip": Family.IPV4, "ip6tnl": Family.IPV6}

_SERVICE_SETS = ("kube-router-svip-prt", "inet6:kube-router-svip-prt")
_POD_SETS = ("kube-router-pod-subnets", "inet6:kube-router-pod-subnets")
# pkg/proxy/ipvs/ipset.go of kube-proxy; IPv6 has "KUBE-6-" and is cut to 31 characters.
_PROXY_SETS = re.compile(r"KUBE-(?:6-)?(?:CLUSTER-IP|EXTERNAL-IP(?:-LOCAL)?|LOAD-BALANCER(?:-FW|-LOCAL)?)")
_PROXY_PORT_SETS = re.compile(r"KUBE-(?:6-)?NODE-PORT-(?:LOCAL-)?(TCP|UDP)")
_PROXY_SCTP_SETS = re.compile(r"KUBE-(?:6-)?NODE-PORT-(?:LOCAL-)?SCTP-HAS(?:H)?")


@attrs.frozen
class HostNeeds:
    """What must be read for `claim_items`: links with addresses, sets with members, routes by table and protocol."""

    links: frozenset[str]
    routes: tuple[tuple[int, int], ...]

    @staticmethod
    def wants_members(name: str) -> bool:
        """Tell whether the members of a set of this name may prove or share an IPVS service."""
        return name in _SERVICE_SETS or name in _POD_SETS or _is_kube_proxy_set(name)


def _is_kube_proxy_set(name: str) -> bool:
    patterns = (_PROXY_SETS, _PROXY_PORT_SETS, _PROXY_SCTP_SETS)
    return any(pattern.fullmatch(name) for pattern in patterns)


HOST_NEEDS = HostNeeds(
    links=frozenset({_DUMMY, _KUBE_PROXY_DUMMY}),
    routes=((_TABLE_MAIN, _PROTOCOL), (_TABLE_PODS, 0), (_TABLE_DSR, 0), (_TABLE_EXTERNAL, 0)),
)


# pkg/utils/linux_routing.go appends to the first file that exists; the CNI files are those of its manifests.
_TABLE_LINES = frozenset({"77 kube-router", "78 kube-router-dsr", "79 external_ip"})
_CNI = "configuration of kube-router's pod network; remove it when another CNI has taken over"
FILES = (
    *(
        FileTrace(f"/{folder}/iproute2/rt_tables", "a name that kube-router added; delete the line", _TABLE_LINES)
        for folder in ("etc", "usr/lib", "usr/share")
    ),
    FileTrace("/etc/cni/net.d/10-kuberouter.conflist", _CNI),
    FileTrace("/etc/cni/net.d/10-kuberouter.conf", _CNI),
    FileTrace("/var/lib/cni/networks/mynet", "addresses handed out in kube-router's pod network; remove with it"),
)
LASTING = (
    "sysctls keep what kube-router set, as nobody kept the old values: net.ipv4.vs.conntrack, conn_reuse_mode,"
    " expire_nodest_conn, expire_quiescent_template, sloppy_tcp; net.ipv4.conf.*.rp_filter, arp_ignore, arp_announce;"
    " net.bridge.bridge-nf-call-*. A reboot puts the defaults back"
)


def tunnel_names(remote: str) -> frozenset[str]:
    """Return the names that kube-router gave and gives to the tunnel to a peer.

    GenerateTunnelName of pkg/tunnels/linux_tunnels.go, and its form up to 1.6 (IPv4 only).

    >>> sorted(tunnel_names("10.0.0.1"))
    ['tun-10001', 'tun-e443169117a']
    >>> sorted(tunnel_names("100.200.30.40")), len(tunnel_names("2001:db8:42:2::"))
    (['tun-1002003040', 'tun-6635c4d785d'], 1)
    """
    import hashlib  # noqa: PLC0415 - few nodes have tunnels

    digits = remote.replace(".", "").replace(":", "")
    names = {"tun-" + hashlib.sha256(digits.encode()).hexdigest()[:11]}
    if "." in remote:
        names.add("tun" + digits if len(digits) == 12 else "tun-" + digits)
    return frozenset(names)


def service_marks(snapshot: Snapshot) -> frozenset[tuple[Family, int]]:
    """Return the marks that a policy rule sends to the DSR table, with their families."""
    return frozenset(
        (rule.family, rule.mark)
        for rule in snapshot.policy_rules
        if rule.plain and rule.table == _TABLE_DSR and rule.mark and rule.source is None
    )


def claim_items(snapshot: Snapshot, proofs: Proofs) -> dict[Item, ItemClaim]:
    """Return what is proven to be kube-router's, apart from rules, chains, tables and sets."""
    claims: dict[Item, ItemClaim] = {}
    proxy = _kube_proxy(snapshot)
    claims.update(_services(snapshot, proofs, proxy))
    claims.update(_policy_rules(snapshot.policy_rules))
    links = dict(_links(snapshot.links))
    claims.update(links)
    tunnels = {link.name for link in links if isinstance(link, Link) and link.kind in _TUNNEL_KINDS}
    claims.update(_routes(snapshot.routes, tunnels))
    claims.update(_fou_ports(snapshot, tunnels))
    claims.update(_addresses(snapshot, links, proxy))
    return claims


def _policy_rules(rules: Iterable[PolicyRule]) -> Iterator[tuple[Item, ItemClaim]]:
    """Yield rules by their fields; the priority is whatever the kernel gave (pkg/routes/pbr.go)."""
    for rule in rules:
        if not rule.plain:
            continue
        if rule.table == _TABLE_PODS and rule.source is not None and rule.mark is None:
            yield rule, ItemClaim(_ROUTING, "policy-rule", proves_services=True)
        elif rule.table == _TABLE_DSR and rule.source is None and rule.mark:
            yield rule, ItemClaim(_PROXY, "policy-rule", proves_services=True)
        elif rule.table == _TABLE_EXTERNAL and rule.source is None and rule.mark is None:
            yield rule, ItemClaim(_PROXY, "policy-rule")


def _links(links: Iterable[Link]) -> Iterator[tuple[Item, ItemClaim]]:
    for link in links:
        if link.name == _DUMMY and link.kind == "dummy":
            yield link, ItemClaim(_PROXY, "link-name", proves_services=True)
        elif link.name == _BRIDGE and link.kind == "bridge":
            ports = tuple(port.name for port in links if port.master == link.name)
            yield link, ItemClaim(_ROUTING, "link-name", ports=ports)
        elif link.kind in _TUNNEL_KINDS and link.remote and link.name in tunnel_names(link.remote):
            yield link, ItemClaim(_ROUTING, "tunnel-name", detail=link.remote, family=_TUNNEL_KINDS[link.kind])


def _routes(routes: Iterable[Route], tunnels: set[str]) -> Iterator[tuple[Item, ItemClaim]]:
    for route in routes:
        via_tunnel = route.device in tunnels
        if route.table == _TABLE_MAIN and route.protocol == _PROTOCOL and route.type == _UNICAST:
            # injectRoute: through a gateway or a tunnel of ours, never just on a link.
            if route.gateway is not None or via_tunnel:
                yield route, ItemClaim(_ROUTING, "route-protocol")
        elif route.table == _TABLE_PODS and route.type == _UNICAST and via_tunnel:
            yield route, ItemClaim(_ROUTING, "route-table")
        elif route.table == _TABLE_DSR and route.type == _LOCAL and route.destination in {"0.0.0.0/0", "::/0"}:
            if route.device == "lo":
                yield route, ItemClaim(_PROXY, "route-table")
        elif route.table == _TABLE_EXTERNAL and route.device == _BRIDGE and route.type == _UNICAST:
            yield route, ItemClaim(_PROXY, "route-table")


def _fou_ports(snapshot: Snapshot, tunnels: set[str]) -> Iterator[tuple[Item, ItemClaim]]:
    for port in snapshot.fou_ports:
        users = [
            link
            for link in snapshot.links
            if link.encap_port == port.port and _TUNNEL_KINDS.get(link.kind) is port.family
        ]
        ours = [link.name for link in users if link.name in tunnels]
        others = tuple(link.name for link in users if link.name not in tunnels)
        if ours:
            yield port, ItemClaim(_ROUTING, "tunnel-port", detail=", ".join(sorted(ours)), ports=others)


def _addresses(
    snapshot: Snapshot, links: Mapping[Item, ItemClaim], proxied: _KubeProxy
) -> Iterator[tuple[Item, ItemClaim]]:
    ours = {link.name for link in links if isinstance(link, Link) and link.name == _DUMMY}
    for address in snapshot.addresses:
        if address.link in ours and not address.address.startswith("fe80:"):
            host = address.address.partition("/")[0]
            note = ""
            if host in proxied.set_addresses and host not in proxied.addresses:
                note = "kube-proxy serves this address too, and binds it itself at its next sync"
            yield (
                address,
                ItemClaim(_PROXY, "on-owned-link", detail=address.link, note=note, proves_services=True),
            )


@attrs.frozen
class _KubeProxy:
    """What kube-proxy's own state explains."""

    addresses: frozenset[str]
    endpoints: Mapping[tuple[str, str, int], str]
    ports: Mapping[tuple[Family, str, int], str]

    @property
    def set_addresses(self) -> frozenset[str]:
        return frozenset(address for address, _protocol, _port in self.endpoints)

    def explains(self, service: IpvsService) -> str | None:
        if service.mark:
            return None
        if service.address in self.addresses:
            return f"its address is on {_KUBE_PROXY_DUMMY}"
        name = self.endpoints.get((service.address, service.protocol, service.port))
        name = name or self.ports.get((service.family, service.protocol, service.port))
        return f"it is in {name}" if name else None


def _endpoint(member: str) -> tuple[str, str, int] | None:
    """Read `192.0.2.10,tcp:30080`."""
    found = re.fullmatch(r"([^,]+),([a-z]+):(\d+)", member)
    return (found[1], found[2], int(found[3])) if found else None


def _kube_proxy(snapshot: Snapshot) -> _KubeProxy:
    links = {link.name for link in snapshot.links if link.name == _KUBE_PROXY_DUMMY and link.kind == "dummy"}
    endpoints: dict[tuple[str, str, int], str] = {}
    ports: dict[tuple[Family, str, int], str] = {}
    for item in snapshot.sets.values():
        by_port = _PROXY_PORT_SETS.fullmatch(item.name)
        if by_port:
            # A bitmap has no family; the name does, and kube-proxy's names are exact.
            family = Family.IPV6 if item.name.startswith("KUBE-6-") else Family.IPV4
            numbers = (member.rpartition(":")[2] for member in item.members)
            ports.update(((family, by_port[1].lower(), int(n)), item.name) for n in numbers if n.isdecimal())
        elif _PROXY_SETS.fullmatch(item.name) or _PROXY_SCTP_SETS.fullmatch(item.name):
            endpoints.update((end, item.name) for member in item.members if (end := _endpoint(member)))
    return _KubeProxy(
        addresses=frozenset(a.address.partition("/")[0] for a in snapshot.addresses if a.link in links),
        endpoints=endpoints,
        ports=ports,
    )


def _services(snapshot: Snapshot, proofs: Proofs, proxy: _KubeProxy) -> Iterator[tuple[Item, ItemClaim]]:
    if not snapshot.services:
        return
    dummies = {link.name for link in snapshot.links if link.name == _DUMMY and link.kind == "dummy"}
    ours = {a.address.partition("/")[0] for a in snapshot.addresses if a.link in dummies}
    marks = proofs.marks | service_marks(snapshot)
    members = {
        end: name
        for name in _SERVICE_SETS
        if name in snapshot.sets
        for member in snapshot.sets[name].members
        if (end := _endpoint(member))
    }
    same = {
        (s.family, s.protocol, s.destinations)
        for s in snapshot.services
        if not s.mark and s.address in ours and s.destinations
    }
    pods = _PodNetworks.of(snapshot, proofs)
    for service in snapshot.services:
        claim = None
        if service.mark:
            if (service.family, service.mark) in marks:
                claim = ItemClaim(_PROXY, "fwmark")
        elif service.address in ours:
            claim = ItemClaim(_PROXY, "dummy-address", detail=_DUMMY)
        elif name := members.get((service.address, service.protocol, service.port)):
            claim = ItemClaim(_PROXY, "service-set", detail=name, first=True)
        elif (service.family, service.protocol, service.destinations) in same:
            claim = ItemClaim(_PROXY, "same-destinations", first=True)
        elif service.port in _NODE_PORTS and (needs := pods.hold(service)) is not None:
            claim = ItemClaim(_PROXY, "pod-destinations", first=True, needs=needs)
        if claim is not None:
            yield service, attrs.evolve(claim, shared=proxy.explains(service))


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _network(text: str) -> _Network | None:
    """Read a network; the kernel keeps the host bits of a policy rule's source, and a set may be of another type."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


@attrs.frozen
class _PodNetworks:
    """The pod networks that owned state tells of: those that stay with the service proxy, and those of routing."""

    own: tuple[_Network, ...]
    routing: tuple[tuple[_Network, object], ...]

    @classmethod
    def of(cls, snapshot: Snapshot, proofs: Proofs) -> _PodNetworks:
        sources: list[tuple[str, object]] = [
            (member, name) for name in _POD_SETS if name in snapshot.sets for member in snapshot.sets[name].members
        ]
        sources += [
            (rule.source, rule)
            for rule in snapshot.policy_rules
            if rule.plain and rule.table == _TABLE_PODS and rule.source and rule.mark is None
        ]
        return cls(
            own=tuple(network for text in sorted(proofs.pod_networks) if (network := _network(text))),
            routing=tuple((network, source) for text, source in sources if (network := _network(text))),
        )

    def hold(self, service: IpvsService) -> frozenset[object] | None:
        """Return what of routing proves that all destinations are pods; None if they are not, or there are none."""
        needs: set[object] = set()
        for destination in service.destinations:
            host = ipaddress.ip_address(destination.rpartition(":")[0].strip("[]"))
            if any(host in network for network in self.own):
                continue
            sources = {source for network, source in self.routing if host in network}
            if not sources:
                return None
            needs |= sources
        return frozenset(needs) if service.destinations else None
