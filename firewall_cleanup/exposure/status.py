"""The SelfHostedShootExposure itself: finalizer, annotations and status, by Gardener's contract.

docs/extensions/resources/selfhostedshootexposure.md and extensions/pkg/controller/selfhostedshootexposure in
gardener/gardener.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from .client import Client, path_of
from .parsing import API_VERSION, TYPE
from .reconcile import Reconciliation
from .values import Manifest

__all__ = [
    "FINALIZER",
    "PLURAL",
    "adopt",
    "exposure_path",
    "is_selected",
    "release",
    "write_status",
]

PLURAL = "selfhostedshootexposures"
FINALIZER = f"extensions.gardener.cloud/{PLURAL.removesuffix('s')}"
_OPERATION = "gardener.cloud/operation"


def exposure_path(namespace: str, name: str | None = None) -> str:
    """Return the path of an exposure, or of all of a namespace."""
    return path_of(API_VERSION, PLURAL, namespace, name)


def is_selected(found: Mapping[str, Any], class_name: str) -> bool:
    """Tell whether an exposure is for us: its type, and its class (`shoot` if it has none)."""
    spec = found.get("spec") or {}
    return spec.get("type") == TYPE and (spec.get("class") or "shoot") == class_name


def adopt(client: Client, found: Manifest) -> Manifest | None:
    """Add the finalizer and take off the operation annotation, before anything else is done.

    Returns the exposure as it is then, None if it has gone. Raises ApiError (409) if it was changed meanwhile.
    """
    metadata = found["metadata"]
    finalizers = list(metadata.get("finalizers") or ())
    annotations = metadata.get("annotations") or {}
    change: Manifest = {}
    if FINALIZER not in finalizers:
        change["finalizers"] = [*finalizers, FINALIZER]
    if _OPERATION in annotations:
        change["annotations"] = {_OPERATION: None}
    if not change:
        return found
    change["resourceVersion"] = metadata["resourceVersion"]
    return client.patch(exposure_path(metadata["namespace"], metadata["name"]), {"metadata": change})


def release(client: Client, found: Manifest) -> None:
    """Take the finalizer off: nothing of the exposure is left. Raises ApiError (409) if it was changed meanwhile."""
    metadata = found["metadata"]
    finalizers = [each for each in metadata.get("finalizers") or () if each != FINALIZER]
    change = {"finalizers": finalizers, "resourceVersion": metadata["resourceVersion"]}
    client.patch(exposure_path(metadata["namespace"], metadata["name"]), {"metadata": change})


def operation_type(found: Mapping[str, Any]) -> str:
    """Return what is going on, as Gardener names it: Create until it has succeeded once, then Reconcile; Delete."""
    if found["metadata"].get("deletionTimestamp"):
        return "Delete"
    last = (found.get("status") or {}).get("lastOperation") or {}
    first = not last or (last.get("type") == "Create" and last.get("state") != "Succeeded")
    return "Create" if first else "Reconcile"


_PROGRESS = {"Succeeded": 100, "Processing": 50, "Error": 50}


def write_status(client: Client, found: Manifest, outcome: Reconciliation) -> Manifest:
    """Write how far it is; nothing is written if that is what is there. Returns the exposure as it is then.

    Addresses replace `status.ingress` only if there are any: neither an error nor a wait takes known ones away.
    Raises ApiError (409) if the exposure was changed meanwhile, or is another one of its name.
    """
    before = found.get("status") or {}
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    last = before.get("lastOperation") or {}
    settled = (
        last.get("state") == outcome.state == "Succeeded"
    )  # a Create that is done is not written again as another
    operation = {
        "type": last.get("type") if settled else operation_type(found),
        "state": outcome.state,
        "progress": _PROGRESS[outcome.state],
        "description": outcome.description,
    }
    error: Manifest | None = None
    if outcome.state == "Error":
        error = {"description": outcome.description, **({"codes": list(outcome.codes)} if outcome.codes else {})}
    wanted: Manifest = {"observedGeneration": found["metadata"].get("generation", 0)}
    if outcome.addresses:
        wanted["ingress"] = [{"ip": each} for each in outcome.addresses]
    same = (
        all(before.get(key) == value for key, value in wanted.items())
        and _timeless(before.get("lastOperation")) == operation
        and _timeless(before.get("lastError")) == error
    )
    if same:
        return found
    wanted["lastOperation"] = {**operation, "lastUpdateTime": now}
    # null in a merge patch takes the field away; codes of an earlier error go with it.
    wanted["lastError"] = {"codes": None, **error, "lastUpdateTime": now} if error else None
    metadata = found["metadata"]
    path = f"{exposure_path(metadata['namespace'], metadata['name'])}/status"
    # A UID in the patch is of no effect: of a custom resource's status the API server takes the status alone.
    change = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": wanted}
    return client.patch(path, change) or found


def _timeless(found: Mapping[str, Any] | None) -> Manifest | None:
    return {key: value for key, value in found.items() if key != "lastUpdateTime"} if found else None
