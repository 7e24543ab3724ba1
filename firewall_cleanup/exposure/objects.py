"""Objects in a cluster: where they are, whose they are, how one is applied."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ..errors import FirewallCleanupError
from .capabilities import RESOURCES
from .client import ApiError, Client, path_of
from .values import MANAGER, Manifest

__all__ = [
    "ForeignObject",
    "Waiting",
    "ensure_object",
    "explain",
    "fixed_field",
    "is_ours",
    "object_title",
    "path_to",
    "why_foreign",
]


class ForeignObject(FirewallCleanupError):
    """An object with one of our names is somebody else's; it is not touched."""


class Waiting(FirewallCleanupError):
    """Something must happen first; the text says what."""


def object_title(manifest: Mapping[str, Any]) -> str:
    """Return an object's kind and name for people."""
    metadata = manifest.get("metadata") or {}
    namespace = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{manifest.get('kind')} {namespace}{metadata.get('name')}"


def path_to(manifest: Mapping[str, Any]) -> str:
    """Return the path of an object in the API."""
    metadata = manifest["metadata"]
    resource = RESOURCES[manifest["kind"]]
    namespace = metadata["namespace"] if resource.namespaced else None
    return path_of(manifest["apiVersion"], resource.plural, namespace, metadata["name"])


def why_foreign(found: Mapping[str, Any], labels: Mapping[str, str]) -> str | None:
    """Return why an object is not the exposure's own, None if it is.

    Both must hold: it has all labels of the exposure, and our field manager has applied it. Labels alone can be
    copied.
    """
    metadata = found.get("metadata") or {}
    has = metadata.get("labels") or {}
    for key, value in labels.items():
        if has.get(key) != value:
            return f"its label {key} is {has.get(key, 'missing')}, not {value}"
    entries = metadata.get("managedFields") or ()
    if not any(
        each.get("manager") == MANAGER and each.get("operation") == "Apply" and not each.get("subresource")
        for each in entries
    ):
        managers = sorted({str(each.get("manager")) for each in entries})
        return f"{MANAGER} has not applied it, but {', '.join(managers) or 'nobody known'}"
    return None


def is_ours(found: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Tell whether an object is the exposure's own."""
    return why_foreign(found, labels) is None


def ensure_object(client: Client, manifest: Manifest, labels: Mapping[str, str]) -> tuple[Manifest, str]:
    """Apply a manifest; return the object, and `created`, `changed` or `unchanged`.

    Raises ForeignObject if an object of that name is somebody else's, Waiting if it must go first (it is being
    deleted, or has to be made anew as a field cannot be changed), ApiError for a conflict with another field manager.
    """
    path, what = path_to(manifest), object_title(manifest)
    current = client.get(path)
    if current is None:
        made = client.apply(path, manifest)
        others = {
            str(each.get("manager"))
            for each in made["metadata"].get("managedFields") or ()
            if each.get("manager") != MANAGER and not each.get("subresource")
        }
        if others:
            # Somebody made it at the same moment: take back what was applied.
            bare = {key: manifest[key] for key in ("apiVersion", "kind")}
            place = {key: manifest["metadata"][key] for key in ("name", "namespace") if key in manifest["metadata"]}
            client.apply(path, {**bare, "metadata": place})
            raise ForeignObject(
                f"{what} was made by {', '.join(sorted(others))} at the same moment; it is left alone"
            )
        return made, "created"
    reason = why_foreign(current, labels)
    if reason:
        raise ForeignObject(f"{what} is not ours: {reason}; rename it or remove it, it is left alone")
    if current["metadata"].get("deletionTimestamp"):
        raise Waiting(f"{what} is being deleted")
    if what_is_fixed := fixed_field(current, manifest):
        client.delete(path, current["metadata"]["uid"])
        raise Waiting(f"{what} is made anew, as its {what_is_fixed} cannot be changed")
    body = copy.deepcopy(manifest)
    body["metadata"]["uid"] = current["metadata"]["uid"]  # just the one that was looked at
    try:
        done = client.apply(path, body)
    except ApiError as error:
        if any(each.get("field") == "metadata.uid" for each in error.causes):
            raise ApiError(409, "Conflict", "somebody replaced it at the same moment") from None
        raise
    same = done["metadata"]["resourceVersion"] == current["metadata"]["resourceVersion"]
    return done, "unchanged" if same else "changed"


def fixed_field(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Return which field forbids an update (core/v1 validation of Services), None if nothing does."""
    if wanted["kind"] != "Service":
        return None
    before, after = current["spec"], wanted["spec"]
    if before.get("loadBalancerClass") != after["loadBalancerClass"]:
        return "loadBalancerClass"
    if (before.get("ipFamilies") or after["ipFamilies"])[0] != after["ipFamilies"][0]:
        return "first family"
    return None


def explain(error: ApiError, what: str) -> str:
    """Return what a refused apply means."""
    if error.managers:
        return f"{what}: another field manager owns what is to be applied: {'; '.join(error.managers)}"
    return f"{what}: {error}"
