"""Whether an object of the cluster is what a manifest wants. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .fields import shown
from .values import MANAGER, Manifest

__all__ = ["why_unlike"]

_Records = Sequence[Mapping[str, Any]]
"""What the API server has noted of one place: by field manager, which fields below it that one has set."""


def why_unlike(wanted: Manifest, current: Manifest) -> str | None:
    """Return the first field that an apply of the manifest would change; what others have set besides is theirs."""
    entries = current["metadata"].get("managedFields") or ()
    records = [each.get("fieldsV1") or {} for each in entries if not each.get("subresource")]
    found = _difference(
        {key: wanted[key] for key in wanted if key not in {"apiVersion", "kind"}}, current, "", records
    )
    if found is not None:
        return found
    for entry in entries:
        ours = entry.get("manager") == MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource")
        path = _left(entry.get("fieldsV1") or {}, wanted, "") if ours else None
        if path is not None:
            return f"{path} is there still"
    return None


def _difference(wanted: Any, current: Any, path: str, records: _Records) -> str | None:
    below: Iterable[tuple[Any, Any, str, _Records]]
    if isinstance(wanted, Mapping) and isinstance(current, Mapping):
        below = (
            (wanted[key], current.get(key), f"{path}.{key}" if path else key, _below(records, f"f:{key}"))
            for key in wanted
        )
    elif isinstance(wanted, list) and isinstance(current, list):
        keys = _keys(records)
        if not keys and len(wanted) != len(current):
            return f"{path} has {len(current)} entries, not {len(wanted)}"
        below = _merged(wanted, current, path, records, keys) if keys else _whole(wanted, current, path)
    elif wanted == current:
        return None
    elif current is None:
        return f"{path} is missing" + ("" if isinstance(wanted, Mapping) else f", not {shown(wanted)}")
    else:
        return f"{path} is {shown(current)}, not {shown(wanted)}"
    return next((said for each in below if (said := _difference(*each)) is not None), None)


def _whole(wanted: list[Any], current: list[Any], path: str) -> Iterator[tuple[Any, Any, str, _Records]]:
    for index, each in enumerate(wanted):
        yield each, current[index], f"{path}[{index}]", ()


def _merged(
    wanted: list[Any], current: list[Any], path: str, records: _Records, keys: Iterable[str]
) -> Iterator[tuple[Any, Any, str, _Records]]:
    """Yield the elements of a list that an apply merges by keys: it leaves those of others alone."""
    for index, each in enumerate(wanted):
        found = next((other for other in current if _same(each, other, keys)), None)
        where = f"{path}[{index}]" if found is not None else _element(path, {key: each.get(key) for key in keys})
        yield each, found, where, [below for name, below in _elements(records) if _same(each, name, keys)]


def _below(records: _Records, name: str) -> list[Mapping[str, Any]]:
    return [each[name] for each in records if name in each]


def _elements(records: _Records) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the elements of a list that is merged, each as the keys that name it, with what is noted below it."""
    return [
        (json.loads(name.removeprefix("k:")), below)
        for each in records
        for name, below in each.items()
        if name.startswith("k:")
    ]


def _keys(records: _Records) -> list[str]:
    """Return by which keys a list is merged; none if it is replaced as a whole."""
    return sorted({key for name, _below in _elements(records) for key in name})


def _element(path: str, name: Mapping[str, Any]) -> str:
    return f"{path}[{', '.join(f'{key}: {value}' for key, value in name.items())}]"


def _same(one: Any, other: Any, keys: Iterable[str]) -> bool:
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False
    return all(one.get(key) == other.get(key) for key in keys)


def _left(fields: Mapping[str, Any], wanted: Any, path: str) -> str | None:
    """Return a field that we have set before and that is not wanted any more, by the record of the API server."""
    below: list[tuple[Mapping[str, Any], Any, str]] = []
    if isinstance(wanted, list):
        for element, fields_below in _elements([fields]):
            index = next((index for index, each in enumerate(wanted) if _same(each, element, element)), None)
            if index is None:
                return _element(path, element)
            below.append((fields_below, wanted[index], f"{path}[{index}]"))
    elif isinstance(wanted, Mapping):
        for key in fields:
            name = key.removeprefix("f:")
            where = f"{path}.{name}" if path else name
            if key != name and name not in wanted:
                return where
            if key != name:
                below.append((fields[key], wanted[name], where))
    return next((said for each in below if (said := _left(*each)) is not None), None)
