"""The result of a collection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from .model import Gap

__all__ = ["Collected"]


@attrs.frozen
class Collected:
    """What `collect` wrote: the names of the files, and gaps for what could not be read.

    `notes` say what a plan does not need and is not in the files. `interrupted` is the number of the signal that
    ended it before anything was written, else None.
    """

    directory: Path
    files: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    notes: tuple[str, ...] = ()
    interrupted: int | None = None

    @property
    def complete(self) -> bool:
        """Whether all that a plan needs was read and written."""
        return not self.gaps and self.interrupted is None

    @property
    def exit_code(self) -> int:
        """0 if it is complete, else 1. After a signal 128 + its number."""
        return int(not self.complete) if self.interrupted is None else 128 + self.interrupted

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it; documented in docs/json.md."""
        return {
            "version": 1,
            "directory": str(self.directory),
            "complete": self.complete,
            "files": list(self.files),
            "gaps": [gap.to_dict() for gap in self.gaps],
            "notes": list(self.notes),
        }
