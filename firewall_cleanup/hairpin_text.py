"""The report of a hairpin run in words, for a person."""

from __future__ import annotations

from collections.abc import Iterator

from .hairpin_report import HairpinOutcome, HairpinReport, HairpinStatus
from .plan_text import Line
from .words import count, escape

__all__ = ["hairpin_lines", "outcome_line"]

_WORDS = {
    HairpinStatus.ENABLED: "hairpin mode turned on",
    HairpinStatus.ON: "hairpin mode is on already",
    HairpinStatus.PUT_BACK: "hairpin mode put back to off",
    HairpinStatus.PLANNED: "hairpin mode would be put back to off",
    HairpinStatus.HOST_NETWORK: "no hairpin mode needed",
    HairpinStatus.ELSEWHERE: "not on this node",
    HairpinStatus.GONE: "gone, nothing to do",
    HairpinStatus.JOINS: "left alone",
    HairpinStatus.NOT_FOUND: "not found",
    HairpinStatus.NO_BRIDGE: "no such bridge",
    HairpinStatus.NOT_A_PORT: "cannot have a hairpin mode",
    HairpinStatus.NOT_VETH: "cannot lead to a pod",
    HairpinStatus.AMBIGUOUS: "not one pod alone",
    HairpinStatus.DENIED: "not permitted",
    HairpinStatus.FAILED: "failed",
}
_QUIET = frozenset({HairpinStatus.ON, HairpinStatus.JOINS})


def hairpin_lines(report: HairpinReport, *, verbose: bool = False) -> Iterator[Line]:
    """Yield a line for each port that was changed or is not as wanted (`verbose`: for each), or one for all."""
    shown = [o for o in report.outcomes if verbose or len(report.outcomes) == 1 or o.status not in _QUIET]
    alike: dict[tuple[object, ...], list[HairpinOutcome]] = {}
    for number, outcome in enumerate(shown):
        # What is wrong with many for the same reason is told once.
        same = (outcome.status, outcome.reason) if not (outcome.status.ok or verbose) else (number,)
        alike.setdefault(same, []).append(outcome)
    for first, *others in alike.values():
        yield outcome_line(report, first, f" and {count(len(others), 'port')} more" if others else "")
    hidden = len(report.outcomes) - len(shown)
    if hidden:
        rest = " more" if shown else ""
        yield Line.of(0, escape(f"{report.target}: {count(hidden, 'port')}{rest} as wanted already"), "good")
    elif not shown:
        yield Line.of(0, escape(f"{report.target}: no port, nothing to do"), "good")


def outcome_line(report: HairpinReport, outcome: HairpinOutcome, others: str = "") -> Line:
    """Return the line of one outcome: the port, with its bridge and its pod's end, what became of it, and why."""
    where = outcome.interface or report.target
    where += f" on {outcome.bridge}" if outcome.bridge else ""
    where += f" (to {outcome.pod_interface})" if outcome.pod_interface else ""
    where += others
    why = f": {outcome.reason}" if outcome.reason else ""
    return Line.of(0, escape(f"{where}: {_WORDS[outcome.status]}{why}"), "good" if outcome.status.ok else "bad")
