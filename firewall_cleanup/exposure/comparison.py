"""Whether an object of the cluster is what a manifest wants. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .fields import shown
from .values import MANAGER, Manifest

__all__ = ["why_unlike"]


def why_unlike(wanted: Manifest, current: Manifest) -> str | None:
    """Return the first field that an apply of the manifest would change; what others have set besides is theirs."""
    found = _difference({key: wanted[key] for key in wanted if key not in {"apiVersion", "kind"}}, current, "")
    if found is not None:
        return found
    for entry in current["metadata"].get("managedFields") or ():
        ours = entry.get("manager") == MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource")
        path = _left(entry.get("fieldsV1") or {}, wanted, "") if ours else None
        if path is not None:
            return f"{path} is there still"
    return None


def _difference(wanted: Any, current: Any, path: str) -> str | None:
    if isinstance(wanted, Mapping) and isinstance(current, Mapping):
        below = ((wanted[key], current.get(key), f"{path}.{key}" if path else key) for key in wanted)
    elif isinstance(wanted, list) and isinstance(current, list):
        if len(wanted) != len(current):
            return f"{path} has {len(current)} entries, not {len(wanted)}"
        below = ((each, current[index], f"{path}[{index}]") for index, each in enumerate(wanted))
    elif wanted == current:
        return None
    else:
        return f"{path} is {'missing' if current is None else shown(current)}, not {shown(wanted)}"
    return next((said for each in below if (said := _difference(*each)) is not None), None)


def _left(fields: Mapping[str, Any], wanted: Any, path: str) -> str | None:
    """Return a field that we have set before and that is not wanted any more, by the record of the API server."""
    if not isinstance(wanted, Mapping):
        return None  # elements of lists are compared one by one
    for key, below in fields.items():
        name = key.removeprefix("f:")
        where = f"{path}.{name}" if path else name
        if key == name:
            continue
        if name not in wanted:
            return where
        if (found := _left(below, wanted[name], where)) is not None:
            return found
    return None
