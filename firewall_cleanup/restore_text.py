"""The report of a restore in words, for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .model import Kind
from .plan_text import Line
from .restore_report import Restored, RestoreOutcome, RestoreReport
from .words import count, escape, noun

__all__ = ["restore_lines"]

_TITLES = {
    Restored.RESTORED: "put back",
    Restored.THERE: "already there",
    Restored.WAITING: "not put back yet",
    Restored.DIFFERENT: "there, but different",
    Restored.FAILED: "not put back",
}
_BAD = {Restored.DIFFERENT, Restored.FAILED}
_KINDS = list(Kind)


def restore_lines(report: RestoreReport, *, verbose: bool = False) -> Iterator[Line]:
    """Yield the lines of a report: what was put back, one line for each object that was not, and the verdict."""
    for status, title in _TITLES.items():
        items = [outcome for outcome in report.outcomes if outcome.status is status]
        if not items:
            continue
        yield Line.of(0, f"{title}: {_counted(items)}", "bad" if status in _BAD else "title")
        if verbose or status in _BAD:
            yield from (Line.of(2, _describe(item)) for item in items)
    yield from (Line.of(0, escape(problem), "bad") for problem in report.problems)
    yield Line.of(0, escape(_verdict(report)), "good" if report.exit_code == 0 else "bad")


def _counted(items: list[RestoreOutcome]) -> str:
    counts = Counter(item.kind for item in items)
    return ", ".join(f"{number} {noun(kind, number)}" for kind, number in sorted(counts.items(), key=_order))


def _order(counted: tuple[Kind, int]) -> int:
    return _KINDS.index(counted[0])


def _describe(item: RestoreOutcome) -> str:
    where = (item.family and item.family.value, item.backend and item.backend.value, item.backend and item.table)
    words = [*(word for word in where if word), noun(item.kind, 1), item.text or item.name]
    return escape(" ".join(words) + (f": {item.reason}" if item.reason else ""))


def _verdict(report: RestoreReport) -> str:
    if report.interrupted is not None:
        return f"stopped by signal {report.interrupted}; run it again to finish"
    if report.complete:
        return f"complete: all that {report.directory} holds is there"
    if not report.changed:
        return "not complete, and nothing was changed"
    left = sum(outcome.status not in {Restored.RESTORED, Restored.THERE} for outcome in report.outcomes)
    return f"not complete: {count(left, 'object')} left"
