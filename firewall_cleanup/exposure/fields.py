"""Reading a YAML or JSON document with the path of every field, so that an error says where it is."""

from __future__ import annotations

import ipaddress
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import attrs

from ..errors import FirewallCleanupError

__all__ = ["DNS_LABEL", "DNS_SUBDOMAIN", "Field", "ManifestError", "shown"]

T = TypeVar("T")

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""A name of a Service (RFC 1035)."""
DNS_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A host name, a name of most objects (RFC 1123)."""

_TYPES = {str: "a text", int: "a whole number", bool: "true or false", dict: "a mapping", list: "a list"}


class _Short(reprlib.Repr):
    """Shows the beginning of a value. All of it may be gigabytes: YAML's aliases make much of few lines."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 2, 80, 60

    def repr_int(self, x: int, level: int) -> str:  # noqa: ARG002 - its caller gives both
        # Python writes no number of more than 4300 digits.
        return repr(x) if x.bit_length() < 256 else f"a number of {x.bit_length()} bits"


_SHORT = _Short()


def shown(value: object, length: int = 60) -> str:
    """Return a value as an error shows it: cut to a length, and quickly, however much it is."""
    return _SHORT.repr(value)[:length]


class ManifestError(FirewallCleanupError, ValueError):
    """A manifest that is not what it should be. `path` names the field, as in `spec.endpoints[0].nodeName`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path, self.reason = path, reason


@attrs.frozen
class Field:
    """A value and its path. Every method raises ManifestError with the path if the value is not what it asks for."""

    value: Any
    path: str = ""

    def error(self, reason: str) -> ManifestError:
        """Return the error for this field."""
        return ManifestError(self.path, reason)

    def _typed(self, kind: type[T]) -> T:
        if isinstance(self.value, kind) and (kind is bool or not isinstance(self.value, bool)):
            return self.value
        if self.value is None:
            raise self.error(f"is missing; it must be {_TYPES[kind]}")
        hint = "; put it in quotes" if kind is str and isinstance(self.value, int | float) else ""
        raise self.error(f"must be {_TYPES[kind]}, not {shown(self.value)}{hint}")

    def mapping(self, known: Iterable[str] | None = None) -> Mapping[str, Any]:
        """Return it as a mapping whose keys are all known (None: any)."""
        found = self._typed(dict)
        for key in found:
            if not isinstance(key, str):
                raise self.error(f"the key {shown(key)} must be a text")
            if known is not None and key not in known:
                raise self.get(key).error(f"is not known; known are {', '.join(sorted(known))}")
        return found

    def get(self, key: str) -> Field:
        """Return the field of this name in a mapping; its value is None if there is none."""
        value = self.value.get(key) if isinstance(self.value, dict) else None
        return Field(value, f"{self.path}.{key}" if self.path else key)

    def items(self) -> Iterator[Field]:
        """Yield the elements of a list."""
        for index, value in enumerate(self._typed(list)):
            yield Field(value, f"{self.path}[{index}]")

    def optional(self) -> Field | None:
        """Return itself, or None if there is no value."""
        return None if self.value is None else self

    def text(self, pattern: re.Pattern[str] | None = None, what: str = "") -> str:
        """Return it as a text that is not empty, and is what the pattern describes."""
        found = self._typed(str)
        if not found or (pattern is not None and not pattern.fullmatch(found)):
            raise self.error(f"must be {what or 'a text that is not empty'}, not {shown(found, 80)}")
        return found

    def integer(self, low: int, high: int) -> int:
        """Return it as a whole number within the bounds."""
        found = self._typed(int)
        if not low <= found <= high:
            raise self.error(f"must be between {low} and {high}, not {shown(found)}")
        return found

    def boolean(self) -> bool:
        """Return it as a boolean."""
        return self._typed(bool)

    def one_of(self, words: Iterable[str]) -> str:
        """Return it as one of the words."""
        found, words = self.text(), list(words)
        if found not in words:
            raise self.error(f"must be {' or '.join(words)}, not {shown(found)}")
        return found

    def address(self) -> str:
        """Return it as an IP address, as `ipaddress` writes it; no zone, no prefix length."""
        found = self.text()
        try:
            address = ipaddress.ip_address(found)
        except ValueError:
            raise self.error(f"must be an IP address, not {shown(found)}") from None
        if getattr(address, "scope_id", None):
            raise self.error(f"must be an IP address without a zone, not {shown(found)}")
        return str(address)
