"""A report in words, for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from .model import Gap, Kind
from .report import CleanupReport, Holder, Outcome, Status

__all__ = ["escape", "summary"]

_EVIDENCE = {
    "chain-name": "name of a chain of {component}",
    "jump": "jumps to {detail}",
    "rule-shape": "exact rule of {component}",
    "dsr-mark": "mark is the hash of its service",
    "dsr-vip": "address of a service with a proven mark",
    "set-name": "name of a set of {component}",
    "temporary-set": "unused temporary set of {component}",
    "table-name": "name of a table of {component}",
    "dummy-address": "its address is on the component's dummy link",
    "fwmark": "its mark is proven",
    "service-set": "member of the component's set of services",
    "same-destinations": "destinations of a service that is proven",
    "pod-destinations": "node port, and all destinations are pods",
    "link-name": "name and kind of a link of {component}",
    "tunnel-name": "name is the hash of its other end",
    "tunnel-port": "port of {detail}",
    "on-owned-link": "on {detail}",
    "policy-rule": "looks up a table of {component}",
    "route-table": "exact route in a table of {component}",
    "route-protocol": "protocol and form of the routes of {component}",
}


def escape(text: str) -> str:
    """Return the text with every character that is not printable as an escape sequence."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def summary(report: CleanupReport, *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines of a report: what went, what is left and why, what was not examined, and the verdict."""
    name = report.component
    going = Status.PLANNED if report.dry_run else Status.REMOVED
    yield from _section(
        f"{name}: would remove" if report.dry_run else f"{name}: removed",
        [outcome for outcome in report.outcomes if outcome.status is going],
        verbose=verbose,
    )
    kept = [outcome for outcome in report.remaining if outcome.status is Status.KEPT]
    if kept:
        yield f"{name}: kept, another controller needs it"
        yield from _left(kept)
    if report.residue:
        yield f"{name}: {'would be left' if report.dry_run else 'left'}"
        yield from _left(report.residue)
    if report.gaps:
        yield "not examined"
        yield from _gaps(report.gaps)
    if report.notes:
        yield "not removed by this tool"
        yield from (f"  {escape(note)}" for note in report.notes)
    yield _verdict(report)


def _section(title: str, items: list[Outcome], *, verbose: bool) -> Iterator[str]:
    if not items:
        yield f"{title} nothing"
        return
    yield f"{title} {_count(len(items), 'object')}"
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for item in items:
        controller = item.controller.value if item.controller else "no single controller"
        groups.setdefault((controller, item.family.value if item.family else "no family"), []).append(item)
    for (controller, family), members in sorted(groups.items()):
        counts = Counter((_KIND_ORDER[m.kind], _noun(m.kind), m.backend.value if m.backend else "") for m in members)
        parts = (
            _count(n, kind) + (f" ({backend})" if backend else "") for (_, kind, backend), n in sorted(counts.items())
        )
        yield f"  {controller}, {family}: {', '.join(parts)}"
        if verbose:
            yield from (f"    {_describe(item)}  [{_evidence(item)}]{_note(item)}" for item in members)


_KIND_ORDER = {kind: i for i, kind in enumerate(Kind)}
_NOUNS = {Kind.IPVS_SERVICE: "IPVS service", Kind.POLICY_RULE: "policy rule", Kind.FOU_PORT: "FOU port"}


def _noun(kind: Kind) -> str:
    return _NOUNS.get(kind, kind.value)


def _count(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"


def _describe(item: Outcome) -> str:
    where = " ".join(part for part in (item.backend.value if item.backend else "", item.table or "") if part)
    if item.kind is Kind.RULE:
        return escape(f"{where}: {item.text}")
    if item.kind is Kind.TABLE:
        return escape(f"nft: table {item.name}")
    if item.backend is None:
        return escape(f"{_noun(item.kind)} {item.text or item.name}")
    return escape(f"{where}: {item.kind.value} {item.name}")


def _note(item: Outcome) -> str:
    return f"; {escape(item.reason)}" if item.reason else ""


def _evidence(item: Outcome) -> str:
    words = _EVIDENCE.get(item.evidence, item.evidence)
    return escape(words.format(component=item.component, detail=item.detail))


def _left(items: Iterable[Outcome]) -> Iterator[str]:
    for item in items:
        family = f"{item.family.value} " if item.family else ""
        yield f"  {family}{_describe(item)}: {item.status.value}" + (
            f", {escape(item.reason)}" if item.reason else ""
        )
        if item.holder is not None:
            yield f"      held by {_holder(item.holder)}"


def _holder(holder: Holder) -> str:
    if holder.kind in {Kind.LINK, Kind.IPVS_SERVICE}:
        return escape(f"{_noun(holder.kind)} {holder.text}")
    parts = (holder.family, holder.backend)
    where = " ".join(part.value for part in parts if part is not None)
    if holder.kind is Kind.SET:
        return escape(f"set {holder.text}" if holder.table is None else f"{where} {holder.table}: map {holder.text}")
    return escape(f"{where} {holder.table}: {holder.text}")


def _gaps(gaps: Iterable[Gap]) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for gap in gaps:
        words = (gap.family and gap.family.value, gap.backend and gap.backend.value, gap.table)
        part = " ".join(word for word in words if word) or gap.subsystem
        by_reason.setdefault(gap.reason, []).append(part)
    for reason, parts in by_reason.items():
        yield escape(f"  {', '.join(dict.fromkeys(parts))}: {reason}")


def _verdict(report: CleanupReport) -> str:
    if report.interrupted is not None:
        return f"stopped by signal {report.interrupted}; run it again to finish"
    if report.dry_run:
        return "dry run: nothing was changed"
    if report.clean:
        return f"clean: nothing of {report.component} is left of what was selected"
    return f"not clean: {_count(len(report.residue), 'object')} left, {_count(len(report.gaps), 'part')} not examined"
