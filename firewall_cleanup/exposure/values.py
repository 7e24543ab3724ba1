"""What an exposure is, as values: what to expose, where, and how it is announced. Free of I/O and of any client."""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs

from ..model import Family

__all__ = [
    "CONTROL_PLANE",
    "EXPOSURE_LABEL",
    "MANAGER",
    "Announce",
    "BgpPeer",
    "BgpSettings",
    "Endpoint",
    "EndpointAddress",
    "EndpointSource",
    "Exposure",
    "IpRange",
    "Manifest",
    "ProviderConfig",
    "cluster_name",
    "family_of",
    "family_word",
    "owner_labels",
    "resource_name",
]

Manifest: TypeAlias = dict[str, Any]
"""An object of the Kubernetes API as JSON holds it."""

MANAGER = "firewall-cleanup"
"""The field manager of every apply, and the value of the label `app.kubernetes.io/managed-by`."""

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
"""The label of control-plane nodes (kubeadm, Gardener)."""

EXPOSURE_LABEL = f"{MANAGER}/exposure"
"""The label that has the name of an object's exposure."""

_WORDS = {Family.IPV4: "IPv4", Family.IPV6: "IPv6"}


def family_word(family: Family) -> str:
    """Return a family as the Kubernetes API writes it: `IPv4`, `IPv6`."""
    return _WORDS[family]


def family_of(address: str) -> Family:
    """Return the family of an IP address; an IPv4 address mapped into IPv6 is IPv6.

    Raises ValueError if it is no address.
    """
    return Family.IPV4 if ipaddress.ip_address(address).version == 4 else Family.IPV6


def owner_labels(name: str, namespace: str) -> dict[str, str]:
    """Return the labels of all objects of an exposure."""
    return {
        "app.kubernetes.io/managed-by": MANAGER,
        EXPOSURE_LABEL: name,
        f"{MANAGER}/exposure-namespace": namespace,
    }


def resource_name(exposure: str) -> str:
    """Return the name of an exposure's Service, from which all other names are made."""
    return f"exposure-{exposure}"


def cluster_name(exposure: str, namespace: str) -> str:
    """Return the name of objects that have no namespace: that of the Service, made unique outside kube-system."""
    service = resource_name(exposure)
    return service if namespace == "kube-system" else f"{service}.{namespace}"


class Announce(enum.Enum):
    """How Cilium tells the network where the address is."""

    L2 = "l2"
    BGP = "bgp"

    @property
    def service_class(self) -> str:
        """The `loadBalancerClass` of a Service that is announced in this way (Documentation/network/lb-ipam.rst)."""
        return "io.cilium/l2-announcer" if self is Announce.L2 else "io.cilium/bgp-control-plane"


class EndpointSource(enum.Enum):
    """Who says which nodes serve the API: the manifest, or the Node objects with the control-plane label."""

    SPEC = "spec"
    NODES = "nodes"


@attrs.frozen
class EndpointAddress:
    """An address of a node, with its type as in a Node's status (`InternalIP`, `Hostname`)."""

    type: str
    address: str


@attrs.frozen
class Endpoint:
    """A control-plane node and its addresses."""

    node: str
    addresses: tuple[EndpointAddress, ...]

    def internal(self, family: Family) -> tuple[str, ...]:
        """Return the InternalIPs of the family, as `ipaddress` writes them."""
        found = (each.address for each in self.addresses if each.type == "InternalIP")
        return tuple(dict.fromkeys(str(ipaddress.ip_address(ip)) for ip in found if family_of(ip) is family))


@attrs.frozen
class IpRange:
    """A run of addresses of one family, both ends included. `cidr` is set if it was written as one."""

    start: str
    stop: str
    cidr: str | None = None

    @property
    def family(self) -> Family:
        """The family of its addresses."""
        return family_of(self.start)

    def __contains__(self, address: object) -> bool:
        ip, start, stop = (ipaddress.ip_address(str(each)) for each in (address, self.start, self.stop))
        return ip.version == start.version and int(start) <= int(ip) <= int(stop)


@attrs.frozen
class BgpPeer:
    """A router that learns the address: its own address, its AS number, its TCP port."""

    address: str
    asn: int
    port: int = 179


@attrs.frozen
class BgpSettings:
    """How BGP is set up. Without peers only an advertisement is made, for another peer configuration to select."""

    local_asn: int | None = None
    peers: tuple[BgpPeer, ...] = ()
    auth_secret: str | None = None
    ebgp_multihop: int = 1


@attrs.frozen
class ProviderConfig:
    """`spec.providerConfig`: what Cilium needs to know beyond the endpoints. docs/exposure.md has the fields."""

    families: tuple[Family, ...]
    announce: Announce = Announce.L2
    addresses: tuple[str, ...] = ()
    ranges: tuple[IpRange, ...] = ()
    pool: bool = True
    policy: str = "RequireDualStack"
    interfaces: tuple[str, ...] = ()
    node_selector: Mapping[str, Any] = attrs.field(
        factory=lambda: {"matchExpressions": [{"key": CONTROL_PLANE, "operator": "Exists"}]}, hash=False
    )
    bgp: BgpSettings = BgpSettings()
    api_server_urls: tuple[str, ...] = ()
    endpoints: EndpointSource = EndpointSource.SPEC

    def fixed(self, family: Family) -> tuple[str, ...]:
        """Return the addresses of the family that the Service asks for."""
        return tuple(address for address in self.addresses if family_of(address) is family)


@attrs.frozen
class Exposure:
    """A SelfHostedShootExposure of type `cilium`: an API server's port, its nodes, and how to make it reachable.

    `port` is both the API server's and the load balancer's (pkg/apis/extensions/v1alpha1 in gardener/gardener).
    """

    name: str
    namespace: str
    port: int
    endpoints: tuple[Endpoint, ...]
    config: ProviderConfig

    @property
    def service(self) -> str:
        """The name of its Service."""
        return resource_name(self.name)

    @property
    def cluster_name(self) -> str:
        """The name of its objects that have no namespace."""
        return cluster_name(self.name, self.namespace)

    @property
    def labels(self) -> dict[str, str]:
        """The labels by which all its objects are found again."""
        return owner_labels(self.name, self.namespace)
