"""Chains as text where the tables that they are in cannot be listed as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from .errors import BackupError, ToolError
from .model import Rule, TableKey
from .rules import render

__all__ = ["DecodedChains"]


class DecodedChains(dict[str, tuple[str, ...]]):
    """The chains of a table that cannot be listed as a whole, each as text when it is asked for."""

    def __init__(
        self,
        key: TableKey,
        rules: Mapping[str, tuple[Rule, ...]],
        printed: Callable[[TableKey, str], tuple[str, ...] | None] | None = None,
    ) -> None:
        super().__init__()
        self._key, self._rules, self._printed = key, rules, printed

    def __missing__(self, chain: str) -> tuple[str, ...]:
        rules = self._rules[chain]
        if self._printed is not None and any(rule.opaque for rule in rules):
            try:
                lines = self._printed(self._key, chain)
            except ToolError:
                lines = None
            if lines is not None and len(lines) == len(rules):
                return lines
        return tuple(f"[{rule.packets}:{rule.bytes}] {render(rule)}" for rule in rules)

    def check(self, chain: str, lines: Sequence[str], places: Iterable[int]) -> None:
        """Raise BackupError if one of these rules has no text that a tool would read."""
        for rule, line in ((self._rules[chain][i], lines[i]) for i in places):
            if rule.opaque and line.endswith(render(rule)) and rule.text is None:
                where = f"{self._key.family.value} {self._key.backend.value} {self._key.name} {chain}"
                parts = ", ".join(rule.opaque)
                raise BackupError(f"the backup cannot be complete: {where}: no command prints a rule with {parts}")
