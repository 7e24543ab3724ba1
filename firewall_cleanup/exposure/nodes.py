"""Which control-plane nodes serve the API now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from .addresses import why_unusable
from .values import Endpoint, EndpointAddress, EndpointSource, Exposure, Manifest

__all__ = ["Choice", "choose", "why_unhealthy"]

_PRESSURES = ("DiskPressure", "MemoryPressure", "PIDPressure", "NetworkUnavailable")


@attrs.frozen
class Choice:
    """The nodes to send to, and those that are left out, each with the reason."""

    endpoints: tuple[Endpoint, ...]
    left_out: tuple[tuple[str, str], ...] = ()


def why_unhealthy(node: Mapping[str, Any]) -> str | None:
    """Return why a Node is not healthy, None if it is: Gardener's rule (pkg/utils/kubernetes/health/node.go).

    `Ready` must be there and True; pressures and `NetworkUnavailable`, if there, False. One that is being deleted
    counts as not healthy too.
    """
    if (node.get("metadata") or {}).get("deletionTimestamp"):
        return "it is being deleted"
    conditions = {each.get("type"): each.get("status") for each in (node.get("status") or {}).get("conditions") or ()}
    if conditions.get("Ready") != "True":
        return f"Ready is {conditions.get('Ready', 'missing')}"
    for name in _PRESSURES:
        if conditions.get(name, "False") != "False":
            return f"{name} is {conditions[name]}"
    return None


def choose(exposure: Exposure, nodes: Iterable[Manifest]) -> Choice:
    """Return the endpoints of healthy nodes.

    From the manifest, a node that is not among the Nodes stays: that it is not listed may mean that it has not
    registered yet. From the Nodes themselves, only what is listed counts.
    """
    by_name = {node["metadata"]["name"]: node for node in nodes}
    if exposure.config.endpoints is EndpointSource.NODES:
        candidates = [Endpoint(name, _addresses(by_name[name])) for name in sorted(by_name)]
    else:
        candidates = list(exposure.endpoints)
    found: list[Endpoint] = []
    left_out: list[tuple[str, str]] = []
    for each in candidates:
        reason = why_unhealthy(by_name[each.node]) if each.node in by_name else None
        if reason is None and not each.addresses:
            reason = "it has no address"
        if reason is None:
            found.append(each)
        else:
            left_out.append((each.node, reason))
    return Choice(tuple(found), tuple(left_out))


def _addresses(node: Mapping[str, Any]) -> tuple[EndpointAddress, ...]:
    """Return a Node's addresses; the API server does not check them, so what leads nowhere is left out."""
    found = (node.get("status") or {}).get("addresses") or ()
    return tuple(EndpointAddress(each["type"], each["address"]) for each in found if _is_usable(each))


def _is_usable(entry: Mapping[str, Any]) -> bool:
    try:
        return entry["type"] != "InternalIP" or why_unusable(entry["address"]) is None
    except ValueError:
        return False
