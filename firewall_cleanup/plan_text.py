"""What a report names, grouped and folded for reading. Pure: it makes lines, and others print them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

import attrs

from .model import Backend, Controller, Family, Kind
from .report import Outcome
from .words import escape, evidence, holder, location, noun, object_name

__all__ = ["Group", "Line", "Part", "grouped", "groups", "left_lines"]

# What a part of a line is; a terminal gives each a style.
Role = Literal["title", "group", "count", "object", "evidence", "reason", "good", "bad", "plain"]


@attrs.frozen
class Part:
    """A part of a line that is not broken."""

    text: str
    role: Role = "plain"


@attrs.frozen
class Line:
    """A line: its indentation in columns, and its parts."""

    indent: int
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, indent: int, text: str, role: Role = "plain") -> Line:
        """Return a line of one part."""
        return cls(indent, (Part(text, role),))

    @property
    def plain(self) -> str:
        """The line without any style, in one piece."""
        return " " * self.indent + "".join(gap(i, part) + part.text for i, part in enumerate(self.parts))


def gap(index: int, part: Part) -> str:
    """Return what stands before the part of this index in its line."""
    if index == 0:
        return ""
    return "  " if part.role == "evidence" else " "


@attrs.frozen
class Group:
    """Objects of one controller, one family and one subsystem, in the order in which a run removes them."""

    controller: Controller | None
    family: Family | None
    subsystem: str
    items: tuple[Outcome, ...]

    @property
    def owner(self) -> str:
        """The controller and the family in words."""
        return owner_of(self.controller, self.family)


def owner_of(controller: Controller | None, family: Family | None) -> str:
    """Return a controller and a family in words; a set may have neither, a link may serve both families."""
    return f"{controller.value if controller else 'no single controller'}, {family.value if family else 'no family'}"


_CONTROLLERS = {controller: i for i, controller in enumerate((*Controller, None))}
_FAMILIES = {family: i for i, family in enumerate((*Family, None))}
# The stages of a run, as the engine has them.
_STAGES = {
    Kind.IPVS_SERVICE: (0, "IPVS"),
    Kind.TABLE: (2, "nftables"),
    Kind.SET: (4, "ipset"),
    Kind.POLICY_RULE: (5, "policy rules"),
    Kind.ROUTE: (6, "routes"),
    Kind.FOU_PORT: (7, "FOU ports"),
    Kind.ADDRESS: (8, "addresses"),
    Kind.LINK: (9, "links"),
}
# Services that others prove go before these.
_PROVEN_BY_OTHERS = frozenset({"service-set", "same-destinations", "pod-destinations"})


def _stage(item: Outcome) -> tuple[int, str]:
    if item.kind in _STAGES:
        return _STAGES[item.kind]
    backend = item.backend or Backend.NFT
    return 1 if backend is Backend.NFT else 3, f"iptables {backend.value}, {item.table}"


def _place_in_group(item: Outcome) -> tuple[object, ...]:
    late = item.kind is Kind.CHAIN or (item.kind is Kind.IPVS_SERVICE and item.evidence not in _PROVEN_BY_OTHERS)
    return late, item.name, item.text or ""


def groups(items: Iterable[Outcome]) -> Iterator[Group]:
    """Yield the groups: by controller, then by family, then in the order in which a run works."""
    found: dict[tuple[Controller | None, Family | None, tuple[int, str]], list[Outcome]] = {}
    for item in items:
        found.setdefault((item.controller, item.family, _stage(item)), []).append(item)
    for key in sorted(found, key=lambda key: (_CONTROLLERS[key[0]], _FAMILIES[key[1]], key[2])):
        controller, family, (_, subsystem) = key
        yield Group(controller, family, subsystem, tuple(sorted(found[key], key=_place_in_group)))


# So many alike are still shown one by one.
_FEW = 3
# A number or a hash at the end of a name: names that differ only there are alike.
_VARIES = re.compile(r"(?:\d+|[0-9A-Za-z]{11,})\Z")
_NAMED = frozenset({Kind.CHAIN, Kind.SET, Kind.LINK})


def _stem(name: str) -> str:
    return _VARIES.sub("", name)


def _likeness(item: Outcome) -> tuple[object, ...]:
    """Return what objects of a run have in common."""
    name = _stem(item.name) if item.kind in _NAMED else item.name if item.kind is Kind.RULE else ""
    detail = item.detail if item.kind is Kind.ADDRESS else _stem(item.detail) if item.kind is Kind.RULE else ""
    return item.kind, item.table, name, item.evidence, detail, item.status, item.reason, item.holder


def _runs(items: Iterable[Outcome], *, fold: bool) -> Iterator[tuple[Outcome, ...]]:
    """Yield what is shown as one line: an object, or many that are alike."""
    if not fold:
        yield from ((item,) for item in items)
        return
    alike: dict[tuple[object, ...], list[Outcome]] = {}
    for item in items:
        alike.setdefault(_likeness(item), []).append(item)
    for run in alike.values():
        if len(run) > _FEW:
            yield tuple(run)
        else:
            yield from ((item,) for item in run)


def _names(run: tuple[Outcome, ...], where: str = "") -> tuple[Part, ...]:
    if len(run) == 1:
        return (Part(where + object_name(run[0]), "object"),)
    kind = run[0].kind
    if kind is Kind.RULE:
        size = Part(f"{where}{len(run)} rules in {escape(run[0].name)}, the first:", "count")
        return size, Part(object_name(run[0]), "object")
    first, last = (escape(item.text or item.name) for item in (run[0], run[-1]))
    return (
        Part(f"{where}{len(run)} {noun(kind, len(run))}", "count"),
        Part(first, "object"),
        Part(f"to {last}", "object"),
    )


def _evidence(run: tuple[Outcome, ...]) -> str:
    details = {item.detail for item in run}
    if len(details) == 1:
        return evidence(run[0])
    # Rules that jump to different chains; of other objects the detail says nothing about all of them.
    stem = _stem(run[0].detail)
    return evidence(run[0], f"{stem}*" if run[0].kind is Kind.RULE and stem else "")


def grouped(items: Iterable[Outcome], *, fold: bool, indent: int = 2) -> Iterator[Line]:
    """Yield the lines of a plan: each group under its controller and family, each object with what proves it."""
    owner = ""
    for group in groups(items):
        if group.owner != owner:
            owner = group.owner
            yield Line.of(indent, owner, "group")
        size = f"({len(group.items)})"
        yield Line(indent + 2, (Part(escape(group.subsystem), "group"), Part(size, "count")))
        for run in _runs(group.items, fold=fold):
            parts = (*_names(run), Part(f"[{_evidence(run)}]", "evidence"))
            reason = run[0].reason
            yield Line(indent + 4, (*parts, Part(f"({escape(reason)})", "reason")) if reason else parts)


def left_lines(items: Iterable[Outcome], *, fold: bool) -> Iterator[Line]:
    """Yield the lines of what stays: the status, the reason, and what holds it."""
    in_order = (item for group in groups(items) for item in group.items)
    for run in _runs_left(in_order, fold=fold):
        item = run[0]
        *front, last = _names(run, location(item))
        status = attrs.evolve(last, text=f"{last.text}: {item.status.value}" + ("," if item.reason else ""))
        reason = (Part(escape(item.reason), "reason"),) if item.reason else ()
        proof = () if fold else (Part(f"[{_evidence(run)}]", "evidence"),)
        yield Line(2, (*front, status, *reason, *proof))
        if item.holder is not None:
            yield Line(6, (Part("held by"), Part(holder(item.holder), "object")))


def _runs_left(items: Iterable[Outcome], *, fold: bool) -> Iterator[tuple[Outcome, ...]]:
    places: dict[tuple[object, ...], list[Outcome]] = {}
    for item in items:
        places.setdefault((item.family, item.backend), []).append(item)
    for members in places.values():
        yield from _runs(members, fold=fold)
