"""Who writes the state again, now or at the next boot, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .boot_files import SavedLine
from .plan_text import Line, Part
from .report import CleanupReport
from .words import count, escape, evidence
from .writers import Writer

__all__ = ["boot_lines", "writer_lines"]

# So many lines of one file are shown one by one.
_FEW = 3
_EVIDENCE = {"executable": "its executable", "argument": "its command line", "comm": "its process name"}


def writer_lines(report: CleanupReport) -> Iterator[Line]:
    """Yield the lines about running writers, and those of a run that did not begin as they did not end."""
    writers = report.writers
    not_begun = [gap.reason for gap in report.gaps if gap.subsystem == "processes"]
    yield from (Line.of(0, escape(reason), "bad") for reason in not_begun)
    if writers.running and not not_begun:
        title = f"warning: {report.component} still runs, and writes its rules again; stop it first"
        yield Line.of(0, title, "bad")
        yield from (Line.of(2, _writer(writer), "reason") for writer in writers.running)
    yield from (Line.of(0, f"not seen: {escape(text)}", "reason") for text in writers.unseen)


def _writer(writer: Writer) -> str:
    known = f"{writer.name}, pid {writer.pid}, known by {_EVIDENCE[writer.evidence]}: {writer.program}"
    where = "" if writer.here else " (whether it is in this network namespace could not be seen)"
    return escape(f"{known}{where}{f' ({writer.doubt})' if writer.doubt else ''}")


def boot_lines(report: CleanupReport, *, verbose: bool = False) -> Iterator[Line]:
    """Yield the lines about saved rules; of a file with many the first only, unless `verbose`."""
    found = report.boot_files
    if found.lines:
        title = f"saved for the next boot, which brings it back: {count(len(found.lines), 'line')}, not edited"
        yield Line.of(0, title, "bad")
    files: dict[str, list[SavedLine]] = {}
    for line in found.lines:
        files.setdefault(line.file, []).append(line)
    for lines in files.values():
        yield from _saved(lines, fold=not verbose)
    if found.unread:
        yield Line.of(0, "saved rules that could not be read", "bad")
        yield from (Line.of(2, escape(f"{file.file}: {file.reason}"), "reason") for file in found.unread)


def _saved(lines: Sequence[SavedLine], *, fold: bool) -> Iterator[Line]:
    more: tuple[Part, ...] = ()
    if fold and len(lines) > _FEW:
        lines, more = lines[:1], (Part(f"{len(lines)} lines, the first:", "count"),)
    for line in lines:
        place, text = Part(escape(f"{line.file}:{line.line}:")), Part(escape(line.text), "object")
        yield Line(2, (place, *more, text, Part(f"[{evidence(line)}]", "evidence")))
