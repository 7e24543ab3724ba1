"""The commands that talk to a cluster: each prints what it found and returns the exit status."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from ..errors import FirewallCleanupError
from ..words import escape
from .capabilities import Apis
from .cilium_hosts import ApiHost, CiliumPart, ingress_of, read_settings
from .client import ApiError, Client, path_of
from .controller import ControllerSettings, ExposureController
from .cycle import CycleReport, find_cycles, owned_addresses
from .deploy import NAME
from .fields import DNS_LABEL, DNS_SUBDOMAIN, ManifestError
from .health import serve_health
from .leader import Leader, unique_identity
from .parsing import parse, read_documents, read_manifest
from .reconcile import Reconciliation, Removal, is_passing, reconcile, take_down
from .report import StatusReport, read_status
from .status import FINALIZER, exposure_path, release
from .stopping import stop_by_signal
from .values import CONTROL_PLANE, Exposure, Manifest, owner_labels

_LOG = logging.getLogger(__name__)
_AGAIN = 0.5
"""Seconds between two looks while a command waits."""


class _Stopped(Exception):
    """A signal came; its number is the argument."""


@contextmanager
def _signals() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into _Stopped, so that a wait ends at once; every request is whole or was not made."""

    def stop(number: int, _frame: object) -> None:
        raise _Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print(report: dict[str, Any], lines: Sequence[str], args: argparse.Namespace) -> None:
    if args.output == "json":
        print(json.dumps(report, indent=1))
    else:
        for line in lines:
            print(escape(line))


@contextmanager
def _connect(args: argparse.Namespace) -> Iterator[tuple[Client, Apis]]:
    """Connect to an API server that has finished its start."""
    for option in ("namespace", "cilium_namespace"):
        if not DNS_LABEL.fullmatch(getattr(args, option)):
            name = option.replace("_", "-")
            raise ManifestError(f"--{name}", f"{getattr(args, option)!r:.60} is no name of a namespace")
    client = Client.open(args.kubeconfig, context=args.context)
    try:
        client.check_ready()
        apis = Apis.of_discovery(client.served(), args.cilium_version)
        yield client, attrs.evolve(apis, namespace=args.cilium_namespace)
    finally:
        client.close()


def _name(args: argparse.Namespace) -> tuple[str, str, Exposure | None]:
    """Return which exposure is meant: its name, its namespace, and its manifest if there is one."""
    if (args.file is None) == (args.name is None):
        raise ManifestError("", "give the NAME of an exposure, or --file FILE")
    if args.file is not None:
        exposure = read_manifest(args.file)
        return exposure.name, exposure.namespace, exposure
    if not DNS_SUBDOMAIN.fullmatch(args.name):
        raise ManifestError("NAME", f"{args.name!r:.60} is no name of an exposure")
    return args.name, args.namespace, None


def apply(args: argparse.Namespace) -> int:
    """Reconcile until every wanted family has an address, or the time is over."""
    if args.file is None:
        raise ManifestError("", "give --file FILE")
    exposure = read_manifest(args.file)
    done: dict[str, str] = {}
    try:
        with _connect(args) as (client, apis), _signals():
            kept = client.get(exposure_path(exposure.namespace, exposure.name))
            if _is_adopted(kept):
                place = f"{exposure.namespace}/{exposure.name}"
                raise FirewallCleanupError(f"the controller keeps the exposure {place}: change that object instead")
            deadline = time.monotonic() + args.wait
            while True:
                try:
                    nodes = client.list(path_of("v1", "nodes"), {CONTROL_PLANE: ""})
                    outcome = reconcile(client, exposure, apis, nodes)
                except ApiError as error:
                    if is_passing(error) and _wait(deadline):
                        continue
                    raise
                for each in outcome.objects:
                    if done.get(each.what) in {None, "unchanged", "refused", "going"}:
                        done[each.what] = each.done
                if outcome.state == "Succeeded" or outcome.codes or not _wait(deadline):
                    break
    except _Stopped as stopped:
        print("stopped; what was applied stays, run it again to go on", file=sys.stderr)
        return 128 + int(stopped.args[0])
    _print(_outcome(outcome, done), _outcome_lines(outcome, done), args)
    return 0 if outcome.state == "Succeeded" else 1


def _is_adopted(found: Manifest | None) -> bool:
    """Tell whether an exposure has the controller's finalizer."""
    return found is not None and FINALIZER in (found["metadata"].get("finalizers") or ())


def _wait(deadline: float) -> bool:
    """Wait a little; False if the time is over."""
    left = deadline - time.monotonic()
    if left > 0:
        time.sleep(min(_AGAIN, left))
    return left > 0


def _outcome(outcome: Reconciliation, done: dict[str, str]) -> dict[str, Any]:
    return {
        "version": 1,
        "state": outcome.state,
        "description": outcome.description,
        "addresses": list(outcome.addresses),
        "objects": done,
        "warnings": list(outcome.warnings),
    }


def _outcome_lines(outcome: Reconciliation, done: dict[str, str]) -> list[str]:
    lines = [f"{how}: {what}" for what, how in done.items()]
    lines += [f"warning: {each}" for each in outcome.warnings]
    return [*lines, f"{outcome.state}: {outcome.description}"]


def status(args: argparse.Namespace) -> int:
    """Print what there is."""
    name, namespace, _exposure = _name(args)
    with _connect(args) as (client, apis):
        found = client.get(exposure_path(namespace, name))
        report: StatusReport = read_status(client, apis, name, namespace, found)
    _print(report.to_dict(), report.lines(), args)
    return report.exit_code


def delete(args: argparse.Namespace) -> int:
    """Take all objects down in their order, waiting for each."""
    name, namespace, _exposure = _name(args)
    removed: dict[str, None] = {}
    try:
        with _connect(args) as (client, apis), _signals():
            kept = client.get(exposure_path(namespace, name))
            if kept is not None and _is_adopted(kept) and not kept["metadata"].get("deletionTimestamp"):
                raise FirewallCleanupError(
                    f"the controller keeps the exposure {namespace}/{name} and would make everything again:"
                    " delete the SelfHostedShootExposure itself"
                )
            deadline = time.monotonic() + args.wait
            while True:
                removal = take_down(client, apis, owner_labels(name, namespace), namespace)
                removed.update(dict.fromkeys(removal.removed))
                if removal.gone or not _wait(deadline):
                    break
            if args.force and not removal.gone:
                removal = take_down(client, apis, owner_labels(name, namespace), namespace, in_order=False)
                removed.update(dict.fromkeys(removal.removed))
            found = client.get(exposure_path(namespace, name))
            if (removal.gone or args.force) and found is not None and _is_adopted(found):
                release(client, found)  # the controller would do this, and is not there
    except _Stopped as stopped:
        print("stopped; run it again to go on", file=sys.stderr)
        return 128 + int(stopped.args[0])
    _print(_removal(removal, removed), _removal_lines(removal, removed), args)
    return 0 if removal.gone else 1


def _removal(removal: Removal, removed: dict[str, None]) -> dict[str, Any]:
    return {
        "version": 1,
        "gone": removal.gone,
        "removed": list(removed),
        "waiting": list(removal.waiting),
        "kept": list(removal.kept),
    }


def _removal_lines(removal: Removal, removed: dict[str, None]) -> list[str]:
    lines = [f"removed: {each}" for each in removed]
    lines += [f"kept, not made by us: {each}" for each in removal.kept]
    lines += [f"waiting for {each}" for each in removal.waiting]
    return [*lines, removal.left if removal.gone else "not all has gone; run it again"]


def run(args: argparse.Namespace) -> int:
    """Be the controller until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    client = Client.open(args.kubeconfig, context=args.context)
    settings = ControllerSettings(
        args.namespace, args.cilium_namespace, args.class_name, args.cilium_version, args.resync
    )
    controller = ExposureController(client, settings)
    leader: Leader | None = None
    if not args.no_leader_election:
        identity = args.identity or unique_identity()
        # A connection of its own: it must renew the Lease while another request hangs.
        lease_client = Client.open(args.kubeconfig, context=args.context, timeout=5.0)
        leader = Leader(lease_client, args.namespace, NAME, identity, changed=controller.wake)
        controller.leads = leader.held
        client.may_write = leader.held
    try:
        probes = {"/healthz": controller.health, "/readyz": controller.ready}
        server = serve_health(args.health_address, args.health_port, probes)
    except (OSError, OverflowError) as error:
        raise FirewallCleanupError(
            f"the health endpoint cannot be opened at {args.health_address} port {args.health_port}: {error};"
            " give another --health-port"
        ) from None

    with stop_by_signal(controller.stop):
        try:
            if leader is not None:
                controller.threads.append(leader.start())
            _LOG.info("health at port %d", server.server_address[1])
            controller.run()
        finally:
            if leader is not None:
                leader.stop()
            server.shutdown()
            server.server_close()
    _LOG.info("stopped")
    return 0


def check(args: argparse.Namespace) -> int:
    """Look for the cycle."""
    name, namespace, exposure = _name(args)
    if args.cilium is not None:
        if exposure is None:
            raise ManifestError("", "--cilium: it goes with --file FILE, as no cluster is asked")
        documents = [document for file in args.cilium for document in _documents(file)]
        report = _judge(args, exposure, documents, (), (), args.kubernetes_ip or ())
    else:
        with _connect(args) as (client, apis):
            report = _check_cluster(args, client, apis, name, namespace, exposure)
    _print(report.to_dict(), report.lines(), args)
    return report.exit_code


def _check_cluster(
    args: argparse.Namespace, client: Client, apis: Apis, name: str, namespace: str, exposure: Exposure | None
) -> CycleReport:
    found = client.get(exposure_path(namespace, name))
    if exposure is None:
        if found is None:
            raise ManifestError("", f"there is no exposure {namespace}/{name}: give --file FILE")
        exposure = parse(found)
    addresses, names = ingress_of(client.get(path_of("v1", "services", namespace, exposure.service)))
    more, more_names = ingress_of(found)
    kubernetes = client.get(path_of("v1", "services", "default", "kubernetes")) or {}
    cluster_ips = [*(args.kubernetes_ip or ()), *((kubernetes.get("spec") or {}).get("clusterIPs") or ())]
    documents = _cluster_documents(client, apis, args.cilium_namespace)
    return _judge(args, exposure, documents, addresses | more, names | more_names, cluster_ips)


def _documents(file: str) -> list[Any]:
    try:
        text = Path("/dev/stdin" if file == "-" else file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError("", f"{file}: {getattr(error, 'strerror', None) or error}") from None
    found: list[Any] = []
    for document in read_documents(text, file):
        items = document.get("items") if isinstance(document, dict) else None
        found += items if isinstance(items, list) and str(document.get("kind")).endswith("List") else [document]
    return found


def _cluster_documents(client: Client, apis: Apis, namespace: str) -> list[Manifest]:
    """Return Cilium's objects in the cluster, those that say where its parts reach the API server."""
    found: list[Manifest] = []
    config = client.get(path_of("v1", "configmaps", namespace, "cilium-config"))
    if config is not None:
        found.append({**config, "kind": "ConfigMap"})
    for plural, label in (("daemonsets", "cilium"), ("deployments", "cilium-operator")):
        one = client.get(path_of("apps/v1", plural, namespace, label))
        if one is not None:
            found.append(one)
    if "CiliumNodeConfig" in apis.versions:
        found += client.list(path_of(apis.versions["CiliumNodeConfig"], "ciliumnodeconfigs", namespace))
    for pods, label, kind in (("cilium", "k8s-app", "DaemonSet"), ("cilium-operator", "name", "Deployment")):
        running = client.list(path_of("v1", "pods", namespace), {label: pods})
        if running:
            found = [each for each in found if each["kind"] != kind] + running
    if not any(each["kind"] in {"DaemonSet", "Pod"} for each in found):
        raise FirewallCleanupError(
            f"there is no DaemonSet {namespace}/cilium to look at: give --cilium-namespace, or --cilium FILE"
        )
    for each in client.list(
        path_of("discovery.k8s.io/v1", "endpointslices", "default"), {"kubernetes.io/service-name": "kubernetes"}
    ):
        found.append(each)
    return found


def _judge(
    args: argparse.Namespace,
    exposure: Exposure,
    documents: Sequence[Any],
    addresses: Iterable[str],
    names: Iterable[str],
    cluster_ips: Sequence[str],
) -> CycleReport:
    try:
        names = (*names, *(args.dns_name or ()))
        owned = owned_addresses(exposure, addresses=addresses, names=names, cluster_ips=cluster_ips)
    except ValueError as error:
        raise ManifestError("--kubernetes-ip", str(error)) from None
    settings = read_settings(documents)
    more = [ApiHost(CiliumPart.AGENT, host, "--host") for host in args.host or ()]
    # From 1.18 on an agent goes over to the endpoints of the kubernetes Service once it has reached the API.
    for document in documents:
        if isinstance(document, dict) and document.get("kind") == "EndpointSlice":
            for endpoint in document.get("endpoints") or ():
                more += [
                    ApiHost(CiliumPart.AGENT, each, "endpoint of the kubernetes Service")
                    for each in endpoint["addresses"]
                ]
    settings = attrs.evolve(settings, hosts=tuple(dict.fromkeys((*settings.hosts, *more))))
    return find_cycles(settings, owned, _resolve, args.cilium_version)


def _resolve(name: str) -> list[str]:
    found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found))
