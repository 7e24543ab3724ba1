"""What a collection wrote, in words, for a person."""

from __future__ import annotations

from collections.abc import Iterator

from .collected import Collected
from .plan_text import Line
from .text import gap_lines
from .words import count, escape

__all__ = ["collect_lines"]


def collect_lines(report: Collected, *, verbose: bool = False) -> Iterator[Line]:
    """Yield the lines: what was written, what could not be read, and the verdict. `verbose` names the files."""
    if report.interrupted is not None:
        yield Line.of(0, f"stopped by signal {report.interrupted}; nothing was written", "bad")
        return
    yield Line.of(0, f"wrote {count(len(report.files), 'file')} to {escape(str(report.directory))}", "title")
    if verbose:
        yield from (Line.of(2, name) for name in report.files)
    yield from (Line.of(2, escape(note), "reason") for note in report.notes)
    if report.gaps:
        yield Line.of(0, "not read", "bad")
        yield from gap_lines(report.gaps)
        yield Line.of(0, f"not complete: {count(len(report.gaps), 'part')} could not be read", "bad")
    else:
        yield Line.of(0, "complete: all that a plan needs was read; nothing was changed", "good")
