"""`exposure check`: the documents that say where Cilium reaches the API server, of files or of a cluster."""

from __future__ import annotations

import argparse
import ipaddress
import socket
from collections.abc import Iterable
from typing import Any

import attrs

from ..errors import FirewallCleanupError
from .addresses import host_of, plain_address
from .capabilities import Apis
from .cilium_hosts import ApiHost, CiliumPart, ingress_of, read_settings
from .client import Client, path_of
from .cycle import CycleReport, Owned, find_cycles, owned_addresses, why_unannounced
from .documents import read_file
from .fields import ManifestError, shown
from .parsing import parse
from .session import connected, print_report, which_exposure
from .status import exposure_path
from .values import CONTROL_PLANE, Exposure, Manifest

# No __all__: `check` is also a function of firewall_cleanup.controllers.


def check(args: argparse.Namespace) -> int:
    """Look for the cycle."""
    name, namespace, exposure = which_exposure(args)
    _check_options(args)
    given = {"names": args.dns_name or (), "cluster_ips": args.kubernetes_ip or ()}
    if args.cilium is not None:
        if exposure is None:
            raise ManifestError("", "--cilium: it goes with --file FILE, as no cluster is asked")
        documents = [document for file in args.cilium for document in read_file(file)]
        report = _judge(args, exposure, documents, owned_addresses(exposure, **given))
    else:
        with connected(args) as (client, apis):
            report = _check_cluster(args, client, apis, (name, namespace, exposure))
    print_report(report.to_dict(), report.lines(), args)
    return report.exit_code


def _check_options(args: argparse.Namespace) -> None:
    """Refuse what would have no effect, but for a wrong verdict."""
    for each in args.kubernetes_ip or ():
        try:
            plain_address(each)
        except ValueError:
            raise ManifestError("--kubernetes-ip", f"{shown(each)} is no IP address") from None
    for each in args.dns_name or ():
        host = host_of(each)
        try:
            ipaddress.ip_address(host)
        except ValueError:
            if host and not set(host) & set("/: []"):
                continue
        raise ManifestError("--dns-name", f"{shown(each)} is no host name")
    for each in args.host or ():
        if not host_of(each):
            raise ManifestError("--host", "it is empty")


def _check_cluster(
    args: argparse.Namespace, client: Client, apis: Apis, which: tuple[str, str, Exposure | None]
) -> CycleReport:
    name, namespace, exposure = which
    found = client.get(exposure_path(namespace, name))
    if exposure is None:
        if found is None:
            raise ManifestError("", f"there is no exposure {namespace}/{name}: give --file FILE")
        exposure = parse(found)
    service = client.get(path_of("v1", "services", namespace, exposure.service))
    addresses, names = ingress_of(service)
    more, more_names = ingress_of(found)
    kubernetes = client.get(path_of("v1", "services", "default", "kubernetes"))
    owned = owned_addresses(
        exposure,
        addresses=addresses | more | _own_addresses(service),
        names=(*names, *more_names, *(args.dns_name or ())),
        cluster_ips={*(args.kubernetes_ip or ()), *_own_addresses(kubernetes)},
    )
    return _judge(args, exposure, _cluster_documents(client, apis, args.cilium_namespace), owned)


def _own_addresses(service: Manifest | None) -> set[str]:
    """Return by which addresses a Service is reached besides those that its load balancer has been given."""
    spec = (service or {}).get("spec") or {}
    found = [*(spec.get("clusterIPs") or ()), *(spec.get("externalIPs") or ()), spec.get("loadBalancerIP")]
    return {each for each in found if each and each != "None"}


def _cluster_documents(client: Client, apis: Apis, namespace: str) -> list[Manifest]:
    """Return Cilium's objects in the cluster, those that say where its parts reach the API server."""
    found: list[Manifest] = []
    config = client.get(path_of("v1", "configmaps", namespace, "cilium-config"))
    if config is not None:
        found.append(config)
    if "CiliumNodeConfig" in apis.versions:
        found += client.list(path_of(apis.versions["CiliumNodeConfig"], "ciliumnodeconfigs", namespace))
    agents = [
        *(each for each in client.list(path_of("apps/v1", "daemonsets", namespace)) if _is_agent(each)),
        *client.list(path_of("v1", "pods", namespace), {"k8s-app": "cilium"}),
    ]
    if not agents:
        raise FirewallCleanupError(
            f"there is no DaemonSet {namespace}/cilium to look at: give --cilium-namespace, or --cilium FILE"
        )
    operator = client.list(path_of("v1", "pods", namespace), {"name": "cilium-operator"})
    if not operator:
        deployment = client.get(path_of("apps/v1", "deployments", namespace, "cilium-operator"))
        operator = [deployment] if deployment else []
    kubernetes = {"kubernetes.io/service-name": "kubernetes"}
    found += [*agents, *operator, *client.list(path_of("v1", "nodes"), {CONTROL_PLANE: ""})]
    return found + client.list(path_of("discovery.k8s.io/v1", "endpointslices", "default"), kubernetes)


def _is_agent(daemon_set: Manifest) -> bool:
    """Tell whether a DaemonSet runs agents: there may be one for control-plane nodes and one for the others."""
    template = daemon_set["spec"]["template"].get("metadata") or {}
    labels = {**(daemon_set["metadata"].get("labels") or {}), **(template.get("labels") or {})}
    return daemon_set["metadata"]["name"] == "cilium" or labels.get("k8s-app") == "cilium"


def _judge(args: argparse.Namespace, exposure: Exposure, documents: Iterable[Any], owned: Owned) -> CycleReport:
    settings = read_settings(documents, [each.node for each in exposure.endpoints])
    more = [ApiHost(CiliumPart.AGENT, host_of(host), "--host") for host in args.host or ()]
    hosts = tuple(dict.fromkeys((*settings.hosts, *more)))
    report = find_cycles(attrs.evolve(settings, hosts=hosts), owned, _resolve, args.cilium_version)
    return attrs.evolve(report, warnings=why_unannounced(exposure, settings))


def _resolve(name: str) -> list[str]:
    found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(each[4][0]) for each in found))
