"""What a run found and did: one outcome per object, and a report that tells the truth about them."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from .boot_files import BootFiles
from .components import ItemClaim
from .errors import ResidueError
from .model import (
    Address,
    Backend,
    Controller,
    Family,
    FamilyState,
    FouPort,
    Gap,
    IpvsService,
    Item,
    Kind,
    Link,
    PolicyRule,
    Route,
)
from .ownership import Claims, RuleClaim
from .rules import render
from .writers import Writers

if TYPE_CHECKING:
    from .hairpin_report import HairpinReport
    from .proof import Proof

__all__ = ["BadLine", "CleanupReport", "Holder", "Left", "Outcome", "Status", "describe", "outcomes"]


class Status(enum.Enum):
    """What became of an owned object."""

    PLANNED = "planned"
    REMOVED = "removed"
    KEPT = "kept"
    IN_USE = "in-use"
    DENIED = "denied"
    FAILED = "failed"


# What of the selection is still there and should not be.
_RESIDUE = frozenset({Status.IN_USE, Status.DENIED, Status.FAILED})


@attrs.frozen
class Holder:
    """An object that stays and uses an owned one, which therefore cannot go.

    `controller` is set if the holder belongs to another controller of the same component.
    """

    kind: Kind
    family: Family | None = None
    backend: Backend | None = None
    table: str | None = None
    chain: str | None = None
    text: str | None = None
    controller: Controller | None = None

    def to_dict(self) -> dict[str, str | None]:
        """Return the holder as JSON has it."""
        return {
            "kind": self.kind.value,
            "family": _value(self.family),
            "backend": _value(self.backend),
            "table": self.table,
            "chain": self.chain,
            "text": self.text,
        }


@attrs.frozen
class Outcome:
    """What became of one object.

    `name` is the object's name, for a rule its chain; `text` is the rule as `iptables-save` prints it. `controller`
    and `family` are None where an object has none. `evidence` says why it is owned, `detail` more of it.
    """

    component: str
    controller: Controller | None
    family: Family | None
    backend: Backend | None
    kind: Kind
    table: str | None
    name: str
    status: Status
    evidence: str
    text: str | None = None
    reason: str | None = None
    holder: Holder | None = None
    detail: str = attrs.field(default="", eq=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON has it."""
        return {
            "component": self.component,
            "controller": _value(self.controller),
            "family": _value(self.family),
            "backend": _value(self.backend),
            "kind": self.kind.value,
            "table": self.table,
            "name": self.name,
            "status": self.status.value,
            "evidence": self.evidence,
            "detail": self.detail or None,
            "text": self.text,
            "reason": self.reason,
            "holder": None if self.holder is None else self.holder.to_dict(),
        }


def _value(item: enum.Enum | None) -> Any:
    return None if item is None else item.value


@attrs.frozen
class Left:
    """Why an object is left: its status, the reason, and what holds it."""

    status: Status
    reason: str
    holder: Holder | None = None


_UNICAST = 1
_ROUTE_TYPES = {2: "local", 6: "blackhole", 7: "unreachable", 8: "prohibit"}

# Where an object is found in `Left` mappings: (table, chain), (table, rule id), native table, or set name.
Place = object


@attrs.frozen
class BadLine:
    """A line of a file, counted from 1, that could not be understood and so is foreign."""

    file: str
    line: int
    reason: str


@attrs.frozen(slots=False)
class CleanupReport:
    """The result of a cleanup or of its dry run.

    `gone` is what was removed (in a dry run: nothing), `here` what is still there, `left` why it is. Gaps are parts
    that could not be read or written. A report is clean if nothing owned is left, and nothing unread, of what was
    selected; what another controller still needs (`kept`) is no residue. `check` tells that this is a dry run to
    learn whether there is anything to remove. `others` counts, in a dry run, what was seen of others.
    `proof` compares foreign state from before and after; None where nothing was changed. `hairpin` says what became
    of the hairpin mode of ports; None unless that was to be put back. `writers` are processes that write such state
    again, `boot_files` what is saved of it for the next boot; neither makes a report less clean. `bad_lines` are
    lines of files that were planned from and could not be understood.
    """

    component: str
    dry_run: bool
    changed: bool
    families: Mapping[Family, FamilyState]
    gaps: tuple[Gap, ...] = ()
    gone: Claims = attrs.field(factory=Claims, repr=False)
    here: Claims = attrs.field(factory=Claims, repr=False)
    left: Mapping[Place, Left] = attrs.field(factory=dict, repr=False)
    interrupted: int | None = None
    notes: tuple[str, ...] = ()
    check: bool = False
    backup: str | None = None
    others: Mapping[str, int] = attrs.field(factory=dict)
    proof: Proof | None = None
    hairpin: HairpinReport | None = None
    writers: Writers = attrs.field(factory=Writers)
    boot_files: BootFiles = attrs.field(factory=BootFiles)
    bad_lines: tuple[BadLine, ...] = ()

    @functools.cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """One outcome per owned object, in an order that is the same in every run."""
        result = [*outcomes(self.component, self.gone, {}, Status.REMOVED), *self.remaining]
        return tuple(sorted(result, key=_order))

    @functools.cached_property
    def remaining(self) -> tuple[Outcome, ...]:
        """The outcomes of what is still there."""
        default = Status.PLANNED if self.dry_run else Status.FAILED
        return tuple(sorted(outcomes(self.component, self.here, self.left, default), key=_order))

    @property
    def residue(self) -> tuple[Outcome, ...]:
        """What is owned, was selected, and is left (in a dry run: would be left)."""
        return tuple(outcome for outcome in self.remaining if outcome.status in _RESIDUE)

    @property
    def clean(self) -> bool:
        """Whether nothing owned is left and nothing was left unread, of what was selected."""
        kept = all(outcome.status is Status.KEPT for outcome in self.remaining)
        return kept and self._complete

    @property
    def _complete(self) -> bool:
        return not self.gaps and (self.hairpin is None or self.hairpin.ok)

    @property
    def exit_code(self) -> int:
        """0 if clean, for a dry run if the whole plan could be made; else 1. After a signal 128 + its number."""
        if self.interrupted is not None:
            return 128 + self.interrupted
        return int(not (self._complete if self.dry_run and not self.check else self.clean))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it; documented in docs/json.md, `version` changes when a reader must."""
        result: dict[str, Any] = {
            "version": 1,
            "dry_run": self.dry_run,
            "clean": self.clean,
            "changed": self.changed,
            "families": {family.value: state.value for family, state in sorted(self.families.items())},
            "outcomes": [outcome.to_dict() for outcome in self.outcomes],
            "gaps": [gap.to_dict() for gap in self.gaps],
        }
        if self.notes:
            result["notes"] = list(self.notes)
        if self.backup is not None:
            result["backup"] = self.backup
        if self.proof is not None:
            result["proof"] = self.proof.to_dict()
        if self.hairpin is not None:
            result["hairpin"] = self.hairpin.to_dict()
        result["writers"] = self.writers.to_dict()
        if self.boot_files:
            result["boot_files"] = self.boot_files.to_dict()
        if self.bad_lines:
            result["bad_lines"] = [attrs.asdict(line) for line in self.bad_lines]
        if self.dry_run:
            result["others"] = dict(self.others)
        return result

    def raise_for_residue(self) -> None:
        """Raise ResidueError if the report is not clean."""
        if not self.clean:
            residue = len(self.residue)
            raise ResidueError(self, f"{residue} owned objects left, {len(self.gaps)} parts not examined")


def _order(outcome: Outcome) -> tuple[str, ...]:
    return (
        _value(outcome.controller) or "",
        _value(outcome.family) or "",
        _value(outcome.backend) or "",
        outcome.table or "",
        outcome.kind.value,
        outcome.name,
        outcome.text or "",
        outcome.status.value,
    )


def outcomes(component: str, claims: Claims, left: Mapping[Place, Left], default: Status) -> Iterator[Outcome]:
    """Yield an outcome for each claim: with the status that `left` gives, else the default one."""

    def outcome(place: Place, note: str, fields: Mapping[str, Any]) -> Outcome:
        why = left.get(place)
        return Outcome(
            component=component,
            status=default if why is None else why.status,
            reason=_reason(why, default) or note or None,
            holder=None if why is None else why.holder,
            **fields,
        )

    for key, chains in claims.chains.items():
        where: dict[str, Any] = {"family": key.family, "backend": key.backend, "table": key.name, "kind": Kind.CHAIN}
        for name, owner in chains.items():
            what = {"name": name, "controller": owner, "evidence": "chain-name"}
            yield outcome((key, name), "", where | what)
    for key, rules in claims.rules.items():
        where = {"family": key.family, "backend": key.backend, "table": key.name, "kind": Kind.RULE}
        for id_, rule in rules.items():
            what = {"name": rule.rule.chain, "text": render(rule.rule), **_why(rule)}
            yield outcome((key, id_), "", where | what)
    for native, owner in claims.native_tables.items():
        where = {"family": native.address_family, "backend": Backend.NFT, "table": native.name, "kind": Kind.TABLE}
        what = {"name": native.name, "controller": owner, "evidence": "table-name"}
        yield outcome(native, "", where | what)
    for name, found in claims.sets.items():
        where = {"family": found.item.family, "backend": None, "table": None, "kind": Kind.SET}
        what = {"name": name, "controller": found.controller, "evidence": found.evidence}
        yield outcome(name, "", where | what)
    for item, proof in claims.items.items():
        kind, name, table, text = describe(item)
        family = proof.family if isinstance(item, Link) else item.family
        where = {"family": family, "backend": None, "table": table, "kind": kind}
        yield outcome(item, proof.note, {**where, "name": name, "text": text, **_why(proof)})


def _why(claim: RuleClaim | ItemClaim) -> dict[str, Any]:
    return {"controller": claim.controller, "evidence": claim.evidence, "detail": claim.detail}


def describe(item: Item) -> tuple[Kind, str, str | None, str | None]:
    """Return an object's kind, name, table and text; the text is as `ip` writes it."""
    if isinstance(item, IpvsService):
        return Kind.IPVS_SERVICE, item.name, None, None
    if isinstance(item, PolicyRule):
        mark = "" if item.mark is None else f" fwmark {item.mark:#x}"
        text = f"from {item.source or 'all'}{mark} lookup {item.table}"
        return Kind.POLICY_RULE, str(item.priority), str(item.table), text
    if isinstance(item, Route):
        return Kind.ROUTE, item.destination, str(item.table), _route_text(item)
    if isinstance(item, FouPort):
        return Kind.FOU_PORT, str(item.port), None, None
    if isinstance(item, Address):
        return Kind.ADDRESS, item.address, None, f"{item.address} dev {item.link}"
    return Kind.LINK, item.name, None, None


def _route_text(route: Route) -> str:
    words = [_ROUTE_TYPES.get(route.type, str(route.type)) if route.type != _UNICAST else "", route.destination]
    words += ["via", route.gateway] if route.gateway else []
    words += ["dev", route.device] if route.device else []
    return " ".join(word for word in (*words, f"proto {route.protocol}", f"table {route.table}") if word)


def _reason(left: Left | None, default: Status) -> str | None:
    if left is not None:
        return left.reason
    if default is Status.FAILED:
        return "it is there again: something made it while we were cleaning (is its owner still running?)"
    return None
