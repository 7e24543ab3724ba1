"""YAML that people write, and nothing in it that is not an error of one line."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from .fields import ManifestError, shown

__all__ = ["read_documents", "read_file"]


@functools.cache
def _loader() -> Any:
    """Return PyYAML's safe loader, but with a key that is given twice as an error."""
    import yaml  # noqa: PLC0415 - of the extra; who only builds does without

    class Loader(yaml.SafeLoader):
        """For documents that people write."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # what no mapping can have as a key is refused below
            if key.value in seen:
                said = f"the key {shown(key.value)} is given twice"
                raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
            seen.add(key.value)
        return loader.construct_mapping(node, deep=True)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    return Loader


def read_documents(text: str, source: str) -> list[Any]:
    """Return the YAML documents of a text that are not empty.

    Raises ManifestError if it is no YAML; the text of the error has `source` and the line.
    """
    import yaml  # noqa: PLC0415 - as above

    try:
        return [document for document in yaml.load_all(text, _loader()) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark else source
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ManifestError("", f"{where}: this is no YAML: {problem}") from None
    except RecursionError:
        raise ManifestError("", f"{source}: it is nested too deeply") from None
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        # PyYAML lets them through for a value that is not what its tag or its form says, as the date 2026-13-45.
        said = str(error).partition(";")[0]
        raise ManifestError("", f"{source}: a value cannot be read: {type(error).__name__}: {said}") from None


def read_file(file: str | Path) -> list[Any]:
    """Return the documents of a file, `-` for the standard input, with the items of a List in its place.

    Raises ManifestError if it cannot be read.
    """
    source = "standard input" if str(file) == "-" else str(file)
    try:
        text = Path("/dev/stdin" if str(file) == "-" else file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ManifestError("", f"{source}: {reason}") from None
    found: list[Any] = []
    for document in read_documents(text, source):
        items = _items(document)
        found += [document] if items is None else items
    return found


def _items(document: Any) -> list[Any] | None:
    """Return what a List of the Kubernetes API holds, None if it is none."""
    if not isinstance(document, dict):
        return None
    kind, items = document.get("kind"), document.get("items")
    return items if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list) else None
