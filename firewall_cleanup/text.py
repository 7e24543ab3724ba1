"""A report in words, for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from .hairpin_text import hairpin_lines
from .model import Gap, Kind
from .plan_text import Line, grouped, left_lines, owner_of
from .proof_text import proof_lines
from .report import BadLine, CleanupReport, Outcome, Status
from .words import count, escape, noun
from .writers_text import boot_lines, writer_lines

__all__ = ["gap_lines", "report_lines", "summary"]


def summary(report: CleanupReport, *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines of a report without any style."""
    return (line.plain for line in report_lines(report, verbose=verbose))


def report_lines(report: CleanupReport, *, verbose: bool = False) -> Iterator[Line]:
    """Yield the lines of a report: what went, what is left and why, what was not examined, and the verdict.

    A dry run names what would go, and folds what is alike; a run and a check only count. `verbose` names everything.
    """
    yield from writer_lines(report)
    if report.gaps and all(gap.subsystem == "processes" for gap in report.gaps):
        return  # it was not begun
    yield from _going(report, verbose=verbose)
    if report.backup is not None:
        yield Line.of(0, f"kept for --restore in {escape(report.backup)}", "reason")
    yield from _staying(report, verbose=verbose)
    if report.hairpin is not None:
        yield from hairpin_lines(report.hairpin, verbose=verbose)
    if report.gaps:
        yield Line.of(0, "not examined", "bad")
        yield from gap_lines(report.gaps)
    if report.bad_lines:
        yield from _bad_lines(report.bad_lines, verbose=verbose)
    if report.notes:
        yield Line.of(0, "not removed by this tool", "title")
        yield from (Line.of(2, escape(note), "reason") for note in report.notes)
    yield from boot_lines(report, verbose=verbose)
    if any(report.others.values()) and not report.check:
        words = (count(number, _OTHERS[kind]) for kind, number in report.others.items() if number)
        yield Line.of(0, f"foreign state seen, which stays: {', '.join(words)}", "reason")
    if not report.dry_run and not report.changed:
        yield Line.of(0, "nothing was changed", "reason")
    if report.proof is not None:
        yield from proof_lines(report.proof, verbose=verbose)
    yield Line.of(0, _verdict(report), "good" if report.exit_code == 0 else "bad")


def _going(report: CleanupReport, *, verbose: bool) -> Iterator[Line]:
    """Yield what was removed, would be, or was found."""
    if report.check:
        title, items = "found", [outcome for outcome in report.remaining if outcome.status is not Status.KEPT]
    elif report.dry_run:
        title, items = "would remove", [o for o in report.outcomes if o.status is Status.PLANNED]
    else:
        title, items = "removed", [o for o in report.outcomes if o.status is Status.REMOVED]
    size = count(len(items), "object") if items else "nothing"
    yield Line.of(0, f"{report.component}: {title} {size}", "title")
    if verbose or (report.dry_run and not report.check):
        yield from grouped(items, fold=not verbose)
    else:
        yield from _counted(items)


def _counted(items: Iterable[Outcome]) -> Iterator[Line]:
    owners: dict[str, list[Outcome]] = {}
    for item in items:
        owners.setdefault(owner_of(item.controller, item.family), []).append(item)
    for owner, members in sorted(owners.items()):
        counts = Counter((_KIND_ORDER[m.kind], m.kind, m.backend.value if m.backend else "") for m in members)
        parts = (
            f"{number} {noun(kind, number)}" + (f" ({backend})" if backend else "")
            for (_, kind, backend), number in sorted(counts.items(), key=lambda each: (each[0][0], each[0][2]))
        )
        yield Line.of(2, f"{owner}: {', '.join(parts)}")


_OTHERS = {
    "tables": "iptables table",
    "chains": "chain",
    "native_tables": "nftables table",
    "sets": "set",
    "services": "IPVS service",
    "links": "link",
}
_KIND_ORDER = {kind: i for i, kind in enumerate(Kind)}


def _staying(report: CleanupReport, *, verbose: bool) -> Iterator[Line]:
    """Yield what stays, by why it does; a check has named what should not."""
    name = report.component
    kept = [outcome for outcome in report.remaining if outcome.status is Status.KEPT]
    for title, items in (
        ("kept, another controller needs it", [outcome for outcome in kept if outcome.holder is not None]),
        ("kept, kube-proxy serves it too", [outcome for outcome in kept if outcome.holder is None]),
    ):
        if items:
            yield Line.of(0, f"{name}: {title}", "title")
            yield from left_lines(items, fold=not verbose)
    if report.residue and not report.check:
        yield Line.of(0, f"{name}: {'would be left' if report.dry_run else 'left'}", "bad")
        yield from left_lines(report.residue, fold=not verbose)


def gap_lines(gaps: Iterable[Gap]) -> Iterator[Line]:
    """Yield a line for each reason, with the parts that it is about."""
    by_reason: dict[str, list[str]] = {}
    for gap in gaps:
        words = (gap.family and gap.family.value, gap.backend and gap.backend.value, gap.table)
        part = " ".join(word for word in words if word) or gap.subsystem
        by_reason.setdefault(gap.reason, []).append(part)
    for reason, parts in by_reason.items():
        yield Line.of(2, escape(f"{', '.join(dict.fromkeys(parts))}: {reason}"))


def _bad_lines(bad: tuple[BadLine, ...], *, verbose: bool) -> Iterator[Line]:
    hint = "" if verbose else " (-v lists them)"
    yield Line.of(0, f"{count(len(bad), 'line')} not understood, and taken for foreign{hint}", "reason")
    if verbose:
        yield from (Line.of(2, escape(f"{one.file}:{one.line}: {one.reason}"), "reason") for one in bad)


def _verdict(report: CleanupReport) -> str:
    if report.interrupted is not None:
        return f"stopped by signal {report.interrupted}; run it again to finish"
    unread = f"{count(len(report.gaps), 'part')} not examined"
    if report.check:
        left = sum(outcome.status is not Status.KEPT for outcome in report.remaining)
        if report.clean:
            return f"clean: nothing of {report.component} was found that a cleanup would remove"
        return f"not clean: {count(left, 'object')} found, {unread}"
    if report.dry_run:
        return "dry run: nothing was changed"
    if report.clean:
        return f"clean: nothing of {report.component} is left of what was selected"
    return f"not clean: {count(len(report.residue), 'object')} left, {unread}"
