"""Files that a component wrote and that no cleanup of the kernel removes: found, never edited."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ..model import FileTrace

__all__ = ["find_traces"]


def find_traces(traces: Iterable[FileTrace], *, root: Path = Path("/")) -> Iterator[str]:
    """Yield a line for each trace that is found: where it is, and what to do about it."""
    for trace in traces:
        path = root / trace.path.lstrip("/")
        try:
            text = "" if not trace.lines else path.read_text("utf-8", "replace")
            there = bool(trace.lines) or path.exists()
        except OSError:  # not there, or not for us to see
            continue
        if not trace.lines and there:
            yield f"{path}: {trace.advice}"
        for number, line in enumerate(text.splitlines(), 1):
            if " ".join(line.split()) in trace.lines:
                yield f"{path}:{number}: {line.strip()!r}: {trace.advice}"
