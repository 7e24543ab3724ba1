"""The manifests of an exposure: pure functions of values, the same input gives the same output."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..model import Family
from .capabilities import Apis, api_server_key, limits_of, refuse_errors
from .fields import ManifestError
from .values import (
    CONTROL_PLANE,
    MANAGER,
    Announce,
    Endpoint,
    Exposure,
    Manifest,
    cluster_name,
    family_word,
    resource_name,
)

__all__ = [
    "bgp_objects",
    "build",
    "endpoint_slice",
    "l2_policy",
    "names_of",
    "node_config",
    "pool",
    "service",
    "slice_name",
    "targets",
]

_PORT_NAME = "https"
"""Of the Service's port and of the slices': they belong together by it."""

Targets = Mapping[Family, Sequence[tuple[str, str]]]
"""The endpoints of each wanted family: the node's name and its address."""


def targets(exposure: Exposure, endpoints: Sequence[Endpoint]) -> dict[Family, tuple[tuple[str, str], ...]]:
    """Return the nodes' InternalIPs of every wanted family, sorted; a family without any has an empty tuple."""
    return {
        family: tuple(sorted((each.node, address) for each in endpoints for address in each.internal(family)))
        for family in exposure.config.families
    }


def build(exposure: Exposure, apis: Apis, endpoints: Targets | None = None) -> tuple[Manifest, ...]:
    """Return all objects of an exposure in the order in which they are made: the endpoints first, the Service last.

    `endpoints` are those of healthy nodes; None takes all nodes of the manifest. A family whose list is empty gets no
    slice then. Raises UnsupportedError for what this Cilium cannot do, ManifestError if no node of the manifest has
    an address of a wanted family.
    """
    refuse_errors(limits_of(exposure, apis))
    if endpoints is None:
        endpoints = targets(exposure, exposure.endpoints)
        for family, found in endpoints.items():
            if not found:
                raise ManifestError(
                    "spec.endpoints", f"no node has an InternalIP of {family_word(family)}, which is wanted"
                )
    made = [endpoint_slice(exposure, family, found) for family, found in endpoints.items() if found]
    if exposure.config.api_server_urls:
        made.append(node_config(exposure, apis))
    if exposure.config.announce is Announce.L2:
        made.append(l2_policy(exposure, apis))
    else:
        made += bgp_objects(exposure, apis)
    if exposure.config.pool:
        made.append(pool(exposure, apis))
    made.append(service(exposure))
    return tuple(made)


def _named(exposure: Exposure, name: str, namespace: str | None, labels: Mapping[str, str] | None = None) -> Manifest:
    place = {"namespace": namespace} if namespace else {}
    return {"name": name, **place, "labels": {**exposure.labels, **(labels or {})}}


def _just_this_service(exposure: Exposure) -> Manifest:
    return {
        "matchLabels": {
            "io.kubernetes.service.namespace": exposure.namespace,
            "io.kubernetes.service.name": exposure.service,
        }
    }


def service(exposure: Exposure) -> Manifest:
    """Return the Service: Cilium's class, no selector, the wanted families, its fixed addresses as an annotation."""
    config = exposure.config
    metadata = _named(exposure, exposure.service, exposure.namespace)
    if config.addresses:
        metadata["annotations"] = {"lbipam.cilium.io/ips": ",".join(config.addresses)}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": "LoadBalancer",
            "loadBalancerClass": config.announce.service_class,
            # Announced by one node (L2), served by any: Local would drop what arrives at a node without the API.
            "externalTrafficPolicy": "Cluster",
            # A port of every node would be one more way in, which nobody asked for.
            "allocateLoadBalancerNodePorts": False,
            "ipFamilyPolicy": config.policy,
            "ipFamilies": [family_word(family) for family in config.families],
            "ports": [
                {"name": _PORT_NAME, "port": exposure.port, "targetPort": exposure.port, "protocol": "TCP"},
            ],
        },
    }


def slice_name(exposure: Exposure, family: Family) -> str:
    """Return the name of the EndpointSlice of a family."""
    return f"{exposure.service}-{family.value}"


def names_of(kind: str, exposure: str, namespace: str) -> str:
    """Return the names that objects of a kind can have, as a regular expression: whatever the manifest says."""
    service, cluster = re.escape(resource_name(exposure)), re.escape(cluster_name(exposure, namespace))
    if kind == "EndpointSlice":
        return f"{service}-({'|'.join(family.value for family in Family)})"
    if kind == "CiliumBGPPeerConfig":
        return rf"{cluster}-\d{{1,5}}"
    return service if kind == "Service" else cluster


def endpoint_slice(exposure: Exposure, family: Family, found: Sequence[tuple[str, str]]) -> Manifest:
    """Return the EndpointSlice of a family with all its endpoints, each a node's name and address."""
    labels = {
        "kubernetes.io/service-name": exposure.service,
        "endpointslice.kubernetes.io/managed-by": MANAGER,
    }
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": _named(exposure, slice_name(exposure, family), exposure.namespace, labels),
        "addressType": family_word(family),
        "endpoints": [
            {"addresses": [address], "conditions": {"ready": True}, "nodeName": node} for node, address in found
        ],
        "ports": [{"name": _PORT_NAME, "port": exposure.port, "protocol": "TCP"}],
    }


def pool(exposure: Exposure, apis: Apis) -> Manifest:
    """Return the address pool: the ranges, or just the fixed addresses, for this Service alone."""
    config = exposure.config
    blocks = [
        {"cidr": block.cidr} if block.cidr else {"start": block.start, "stop": block.stop} for block in config.ranges
    ]
    for family in config.families:
        if not any(block.family is family for block in config.ranges):
            blocks += [{"start": address} for address in config.fixed(family)]
    return {
        "apiVersion": apis.version_of("CiliumLoadBalancerIPPool"),
        "kind": "CiliumLoadBalancerIPPool",
        "metadata": _named(exposure, exposure.cluster_name, None),
        "spec": {"blocks": blocks, "serviceSelector": _just_this_service(exposure)},
    }


def l2_policy(exposure: Exposure, apis: Apis) -> Manifest:
    """Return the policy that has the control-plane nodes answer ARP and NDP for the addresses."""
    spec: Manifest = {
        "loadBalancerIPs": True,
        "nodeSelector": dict(exposure.config.node_selector),
        "serviceSelector": _just_this_service(exposure),
    }
    if exposure.config.interfaces:
        spec["interfaces"] = list(exposure.config.interfaces)
    return {
        "apiVersion": apis.version_of("CiliumL2AnnouncementPolicy"),
        "kind": "CiliumL2AnnouncementPolicy",
        "metadata": _named(exposure, exposure.cluster_name, None),
        "spec": spec,
    }


def bgp_objects(exposure: Exposure, apis: Apis) -> tuple[Manifest, ...]:
    """Return the advertisement and, if there are peers, their configuration and the cluster's."""
    bgp, name = exposure.config.bgp, exposure.cluster_name
    advertisement = {
        "apiVersion": apis.version_of("CiliumBGPAdvertisement"),
        "kind": "CiliumBGPAdvertisement",
        "metadata": _named(exposure, name, None),
        "spec": {
            "advertisements": [
                {
                    "advertisementType": "Service",
                    "service": {"addresses": ["LoadBalancerIP"]},
                    "selector": _just_this_service(exposure),
                }
            ]
        },
    }
    if not bgp.peers:
        return (advertisement,)
    families = [
        {"afi": family.value, "safi": "unicast", "advertisements": {"matchLabels": exposure.labels}}
        for family in exposure.config.families
    ]
    configs: list[Manifest] = []
    for port in sorted({peer.port for peer in bgp.peers}):
        spec: Manifest = {"transport": {"peerPort": port}, "ebgpMultihop": bgp.ebgp_multihop, "families": families}
        if bgp.auth_secret:
            spec["authSecretRef"] = bgp.auth_secret
        configs.append(
            {
                "apiVersion": apis.version_of("CiliumBGPPeerConfig"),
                "kind": "CiliumBGPPeerConfig",
                "metadata": _named(exposure, f"{name}-{port}", None),
                "spec": spec,
            }
        )
    cluster = {
        "apiVersion": apis.version_of("CiliumBGPClusterConfig"),
        "kind": "CiliumBGPClusterConfig",
        "metadata": _named(exposure, name, None),
        "spec": {
            "nodeSelector": dict(exposure.config.node_selector),
            "bgpInstances": [
                {
                    "name": exposure.service,
                    "localASN": bgp.local_asn,
                    "peers": [
                        {
                            "name": f"peer-{peer.address.replace(':', '-').replace('.', '-')}",
                            "peerAddress": peer.address,
                            "peerASN": peer.asn,
                            "peerConfigRef": {"name": f"{name}-{peer.port}"},
                        }
                        for peer in bgp.peers
                    ],
                }
            ],
        },
    }
    return (advertisement, *configs, cluster)


def node_config(exposure: Exposure, apis: Apis) -> Manifest:
    """Return the agents' configuration on control-plane nodes: where they reach the API, which is not the exposure.

    It is read when an agent starts, by a container that must reach the API before (cilium#41108): it helps the
    running agent, and does not get a node out of the cycle. docs/how-to/expose-the-api-server.md says what does.
    """
    return {
        "apiVersion": apis.version_of("CiliumNodeConfig"),
        "kind": "CiliumNodeConfig",
        "metadata": _named(exposure, exposure.cluster_name, apis.namespace),
        "spec": {
            "nodeSelector": {"matchExpressions": [{"key": CONTROL_PLANE, "operator": "Exists"}]},
            "defaults": {api_server_key(apis): " ".join(exposure.config.api_server_urls)},
        },
    }
