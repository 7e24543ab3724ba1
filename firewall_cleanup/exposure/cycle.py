"""Does Cilium reach the API server over an address that Cilium itself serves? Then neither comes up again. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from .addresses import host_of, is_service_name, plain_address
from .capabilities import CiliumVersion
from .cilium_hosts import ApiHost, CiliumPart, CiliumSettings
from .values import Announce, Exposure, IpRange

__all__ = ["CycleReport", "Owned", "Verdict", "find_cycles", "owned_addresses", "why_unannounced"]

_LOCALHOST = (
    "on control-plane nodes: KUBERNETES_SERVICE_HOST=localhost in a DaemonSet of their own (two DaemonSets, by"
    " node affinity), for the agent and its init container config; Helm: k8sServiceHost: localhost"
)


@attrs.frozen
class Owned:
    """What the exposure serves: addresses, their ranges, host names; and the kubernetes ClusterIPs."""

    service: str
    namespace: str
    addresses: frozenset[str]
    ranges: tuple[IpRange, ...] = ()
    names: frozenset[str] = frozenset()
    cluster_ips: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    port: int = 443

    def has(self, address: str) -> bool:
        """Tell whether the address is the exposure's, or may become it."""
        return address in self.addresses or any(address in block for block in self.ranges)

    def has_name(self, name: str) -> bool:
        """Tell whether the host name is the exposure's: one that was given, or its Service's in the cluster's DNS."""
        return name.lower().rstrip(".") in self.names or is_service_name(name, self.service, self.namespace)


def owned_addresses(
    exposure: Exposure,
    *,
    addresses: Iterable[str] = (),
    names: Iterable[str] = (),
    cluster_ips: Iterable[str] = (),
) -> Owned:
    """Return what an exposure owns by its manifest, and what its Service and its status name besides.

    Raises ValueError for an address that is none.
    """
    internal = (each for endpoint in exposure.endpoints for each in endpoint.addresses if each.type == "InternalIP")
    return Owned(
        exposure.service,
        exposure.namespace,
        frozenset(plain_address(each) for each in (*exposure.config.addresses, *addresses)),
        exposure.config.ranges,
        frozenset(host_of(name).lower().rstrip(".") for name in names),
        frozenset(plain_address(each) for each in cluster_ips),
        frozenset(plain_address(each.address) for each in internal),
        exposure.port,
    )


@attrs.frozen
class Verdict:
    """What is said of one host: whether it makes a cycle (None: that cannot be told), and the chain of reasons."""

    host: ApiHost
    cycle: bool | None
    chain: tuple[str, ...]


@attrs.frozen
class CycleReport:
    """All verdicts, what could not be read, the ways round, and what else will not work, which is no cycle."""

    verdicts: tuple[Verdict, ...]
    gaps: tuple[str, ...]
    ways: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: no cycle; 1: there is one, or it cannot be told."""
        return 0 if all(each.cycle is False for each in self.verdicts) and not self.gaps else 1

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON; docs/exposure.md describes it."""
        return {
            "version": 1,
            "cycle": any(each.cycle for each in self.verdicts),
            "hosts": [
                {
                    "part": each.host.part.value,
                    "host": each.host.host,
                    "source": each.host.source,
                    "cycle": each.cycle,
                    "chain": list(each.chain),
                }
                for each in self.verdicts
            ],
            "gaps": list(self.gaps),
            "ways": list(self.ways),
            "warnings": list(self.warnings),
        }

    def lines(self) -> list[str]:
        """Return it as text."""
        words = {True: "CYCLE", False: "ok", None: "cannot be told"}
        found: list[str] = []
        for each in self.verdicts:
            found.append(
                f"{words[each.cycle]}: {each.host.part.value}, {each.host.host or 'default'} ({each.host.source})"
            )
            found += [f"  {'-> ' if index else ''}{reason}" for index, reason in enumerate(each.chain)]
        found += [f"not read: {gap}" for gap in self.gaps]
        if self.ways:
            found += ["ways round:", *(f"  - {way}" for way in self.ways)]
        return [*found, *(f"warning: {each}" for each in self.warnings)]


def find_cycles(
    settings: CiliumSettings,
    owned: Owned,
    resolve: Callable[[str], Sequence[str]],
    cilium: CiliumVersion | None = None,
) -> CycleReport:
    """Judge every host. `resolve` returns a name's addresses of both families, or raises OSError."""
    verdicts = tuple(_judge(host, settings, owned, resolve) for host in settings.hosts)
    bad = any(each.cycle is not False for each in verdicts)
    return CycleReport(verdicts, settings.gaps, _ways(settings, verdicts, owned, cilium) if bad else ())


def _judge(host: ApiHost, settings: CiliumSettings, owned: Owned, resolve: Callable[[str], Sequence[str]]) -> Verdict:
    name = host.host
    if name is None or is_service_name(name, "kubernetes", "default"):
        return _cluster_ip(host, settings, f"{host.part.value} uses the kubernetes Service's ClusterIP")
    try:
        addresses, said = [plain_address(name)], f"{host.part.value} uses the address {name}"
    except ValueError:
        said = f"{host.part.value} uses the host {name}"
        if owned.has_name(name):
            return Verdict(host, True, (said, f"that is a host name of Service {owned.service}", *_closing(host)))
        try:
            addresses = [plain_address(each) for each in resolve(name)]
        except (OSError, ValueError) as error:  # ValueError: of the encoding of host names
            reason = getattr(error, "strerror", None) or error
            return Verdict(host, None, (said, f"it does not resolve here: {reason}"))
        if not addresses:
            return Verdict(host, None, (said, "it resolves to no address here"))
        said = f"{said}, which resolves to {', '.join(addresses)}"
    return _judge_addresses(host, addresses, said, settings, owned)


def _judge_addresses(
    host: ApiHost, addresses: Sequence[str], said: str, settings: CiliumSettings, owned: Owned
) -> Verdict:
    """Judge what a host resolves to: one address that is owned is enough, as any may be taken."""
    for address in addresses:
        if owned.has(address):
            own = f"{address} is an address of Service {owned.service}, which Cilium serves"
            return Verdict(host, True, (said, own, *_closing(host)))
    for address in addresses:
        if address in owned.cluster_ips:
            return _cluster_ip(host, settings, f"{said}; {address} is the kubernetes Service's ClusterIP")
    others = [each for each in addresses if not ipaddress.ip_address(each).is_loopback and each not in owned.nodes]
    if others and not owned.cluster_ips and settings.replaces_kube_proxy is not False:
        doubt = f"it is not known whether {others[0]} is the ClusterIP of the Service kubernetes: --kubernetes-ip"
        return Verdict(host, None, (said, doubt))
    reason = f"Service {owned.service} has none of it"
    if all(ipaddress.ip_address(each).is_loopback for each in addresses):
        reason = "that is the node itself"
    elif all(each in owned.nodes for each in addresses):
        reason = "that is a control-plane node's own address"
    return Verdict(host, False, (said, reason))


def _closing(host: ApiHost) -> tuple[str, ...]:
    if host.part is CiliumPart.BOOTSTRAP:
        return (
            "Cilium serves it when its agent runs",
            "the agent does not start before this container has reached the API",
        )
    return ("Cilium serves it while it reaches the API", "it reaches the API while it serves it")


def _cluster_ip(host: ApiHost, settings: CiliumSettings, said: str) -> Verdict:
    if settings.replaces_kube_proxy is False:
        return Verdict(host, False, (said, "kube-proxy serves that, without Cilium"))
    if settings.replaces_kube_proxy is None:
        return Verdict(host, None, (said, "it is not known whether kube-proxy serves that, or Cilium"))
    return Verdict(
        host, True, (said, "there is no kube-proxy: Cilium replaces it and serves that address", *_closing(host))
    )


def _ways(
    settings: CiliumSettings, verdicts: Sequence[Verdict], owned: Owned, cilium: CiliumVersion | None
) -> tuple[str, ...]:
    nodes = sorted(owned.nodes, key=lambda each: (":" in each, each))
    found = [_LOCALHOST]
    urls = " ".join(
        f"https://[{node}]:{owned.port}" if ":" in node else f"https://{node}:{owned.port}" for node in nodes
    )
    localhost = f"https://localhost:{owned.port}"
    if cilium is None or cilium >= CiliumVersion(1, 18):
        version = f"Cilium {cilium}" if cilium else "Cilium 1.18 or newer"
        found.append(
            f"{version}: several URLs with fail-over, k8s-api-server-urls (Helm: k8s.apiServerURLs), such as"
            f' "{urls or localhost}"'
        )
    if cilium is None or cilium < CiliumVersion(1, 18):
        version = f"Cilium {cilium}" if cilium else "Cilium 1.17 or older"
        found.append(f"{version}: one URL, k8s-api-server, such as {localhost}; it takes no list, so no fail-over")
    bootstrap = any(each.host.part is CiliumPart.BOOTSTRAP and each.cycle is not False for each in verdicts)
    if bootstrap or settings.node_configs:
        named = f" ({', '.join(settings.node_configs)})" if settings.node_configs else ""
        found.append(
            f"a CiliumNodeConfig{named} is not enough: it is read by the init container config, which must reach"
            " the API before; it helps an agent that runs"
        )
    return tuple(found)


def why_unannounced(exposure: Exposure, settings: CiliumSettings) -> tuple[str, ...]:
    """Return why Cilium would announce no address of the exposure, by its settings. It says so nowhere itself."""
    way = exposure.config.announce
    key, value = {
        Announce.L2: ("enable-l2-announcements", "l2announcements.enabled"),
        Announce.BGP: ("enable-bgp-control-plane", "bgpControlPlane.enabled"),
    }[way]
    found: list[str] = []
    if settings.announces.get(way) is False:
        found.append(f"announce: {way.value} needs {key} (Helm: {value}), which is not true: nothing is announced")
    if way is Announce.L2 and settings.replaces_kube_proxy is False:
        found.append("announce: l2 needs kube-proxy-replacement, which is false: nothing is announced")
    return tuple(found)
