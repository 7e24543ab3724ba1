"""The commands that talk to a cluster: each prints what it found and returns the exit status."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from typing import Any

from ..errors import FirewallCleanupError
from .client import ApiError, Client, path_of
from .controller import ControllerSettings, ExposureController
from .deploy import NAME
from .fields import ManifestError
from .health import serve_health
from .interrupt import stop_by_signal
from .leader import Leader, unique_identity
from .parsing import DEFAULT_NAMESPACE, read_manifest
from .reconcile import Reconciliation, Removal, is_passing, reconcile, take_down
from .report import StatusReport, read_status
from .session import connected, print_report, which_exposure
from .status import FINALIZER, exposure_path, release
from .values import CONTROL_PLANE, Manifest, owner_labels

_LOG = logging.getLogger(__name__)
_AGAIN = 0.5
"""Seconds between two looks while a command waits."""


def apply(args: argparse.Namespace) -> int:
    """Reconcile until every wanted family has an address, or the time is over."""
    if args.file is None:
        raise ManifestError("", "give --file FILE")
    exposure = read_manifest(args.file, args.namespace)
    done: dict[str, str] = {}
    with connected(args) as (client, apis):
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
    print_report(_outcome(outcome, done), _outcome_lines(outcome, done), args)
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
    name, namespace, exposure = which_exposure(args)
    with connected(args) as (client, apis):
        found = client.get(exposure_path(namespace, name))
        report: StatusReport = read_status(client, apis, (name, namespace), found, exposure)
    print_report(report.to_dict(), report.lines(), args)
    return report.exit_code


def delete(args: argparse.Namespace) -> int:
    """Take all objects down in their order, waiting for each."""
    name, namespace, _exposure = which_exposure(args)
    removed: dict[str, None] = {}
    going: list[str] = []
    with connected(args) as (client, apis):
        kept = client.get(exposure_path(namespace, name))
        if kept is not None and _is_adopted(kept) and not kept["metadata"].get("deletionTimestamp"):
            raise FirewallCleanupError(
                f"the controller keeps the exposure {namespace}/{name} and would make everything again:"
                " delete the SelfHostedShootExposure itself"
            )
        deadline = time.monotonic() + args.wait
        while True:
            removal = take_down(client, apis, owner_labels(name, namespace), namespace)
            going = _count(removal, removed, going)
            if removal.gone or not _wait(deadline):
                break
        if args.force and not removal.gone:
            removal = take_down(client, apis, owner_labels(name, namespace), namespace, in_order=False)
            _count(removal, removed, going)
        found = client.get(exposure_path(namespace, name))
        if (removal.gone or args.force) and found is not None and _is_adopted(found):
            release(client, found)  # the controller would do this, and is not there
    print_report(_removal(removal, removed), _removal_lines(removal, removed), args)
    return 0 if removal.gone else 1


def _count(removal: Removal, removed: dict[str, None], going: list[str]) -> list[str]:
    """Add to `removed` what has gone in a look, and what was still `going` before it; return what is going yet."""
    removed.update(dict.fromkeys(each for each in going if each not in removal.going))
    removed.update(dict.fromkeys(removal.removed))
    return list(removal.going)


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
    namespace = args.namespace or DEFAULT_NAMESPACE
    settings = ControllerSettings(namespace, args.cilium_namespace, args.class_name, args.cilium_version, args.resync)
    controller = ExposureController(client, settings)
    leader: Leader | None = None
    if not args.no_leader_election:
        identity = args.identity or unique_identity()
        # A connection of its own: it must renew the Lease while another request hangs.
        lease_client = Client.open(args.kubeconfig, context=args.context, timeout=5.0)
        leader = Leader(lease_client, namespace, NAME, identity, changed=controller.wake)
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
