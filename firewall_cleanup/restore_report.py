"""What a restore found and did: one outcome per object of the backup."""

from __future__ import annotations

import enum
from typing import Any

import attrs

from .model import Backend, Family, Kind

__all__ = ["RestoreOutcome", "RestoreReport", "Restored"]


class Restored(enum.Enum):
    """What became of an object of a backup."""

    RESTORED = "restored"
    THERE = "already-there"
    DIFFERENT = "different"
    FAILED = "failed"
    WAITING = "not-restored"


@attrs.frozen
class RestoreOutcome:
    """What became of one object. `name` is its name, for a rule its chain; `text` is the rule or the `ip` command."""

    kind: Kind
    name: str
    status: Restored
    family: Family | None = None
    backend: Backend | None = None
    table: str | None = None
    text: str | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON has it."""
        return {
            "kind": self.kind.value,
            "family": None if self.family is None else self.family.value,
            "backend": None if self.backend is None else self.backend.value,
            "table": self.table,
            "name": self.name,
            "status": self.status.value,
            "text": self.text,
            "reason": self.reason,
        }


@attrs.frozen(slots=False)
class RestoreReport:
    """The result of a restore. `problems` are reasons that are about no single object.

    `changed` tells whether anything was put back, be it a part of an object.
    """

    directory: str
    outcomes: tuple[RestoreOutcome, ...] = ()
    problems: tuple[str, ...] = ()
    interrupted: int | None = None
    changed: bool = False

    @property
    def complete(self) -> bool:
        """Whether all that the backup holds is there."""
        there = {Restored.RESTORED, Restored.THERE}
        return not self.problems and all(outcome.status in there for outcome in self.outcomes)

    @property
    def exit_code(self) -> int:
        """0 if all is there, 1 otherwise; after a signal 128 + its number."""
        return int(not self.complete) if self.interrupted is None else 128 + self.interrupted

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it; `version` changes when a reader must."""
        return {
            "version": 1,
            "directory": self.directory,
            "complete": self.complete,
            "changed": self.changed,
            "outcomes": [outcome.to_dict() for outcome in self.outcomes],
            "problems": list(self.problems),
        }
