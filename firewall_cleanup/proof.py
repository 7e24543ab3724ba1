"""The proof that a cleanup left foreign state as it was: what is compared of it, before and after, and how; pure.

Foreign is what stays when all that the run found owned is left out. What is compared is in docs/proof.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from .foreign import ForeignPart
from .host import Look, Staying
from .model import Backend, Family, Gap, Table, TableKey
from .ownership import Claims

__all__ = ["Difference", "ForeignState", "Proof", "Unread", "prove", "stood_still"]

# A chain with more rules is not compared place by place, as that takes the square of their number.
_MOST_PLACES = 2_000
_Rule = tuple[bytes, Callable[[], str]]


@attrs.frozen
class ForeignState:
    """Foreign state at one moment: a sha256 over all that is compared, and how much of it there is."""

    digest: str
    counts: Mapping[str, Mapping[str, int]]

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        return {"digest": self.digest, "counts": {name: dict(numbers) for name, numbers in self.counts.items()}}


@attrs.frozen
class Difference:
    """A foreign object that is not as it was: `added`, `removed`, `moved` or `changed`."""

    change: str
    kind: str
    text: str
    family: Family | None = None
    backend: Backend | None = None
    table: str | None = None
    chain: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        """Return the difference as JSON has it."""
        return {
            "change": self.change,
            "kind": self.kind,
            "family": self.family and self.family.value,
            "backend": self.backend and self.backend.value,
            "table": self.table,
            "chain": self.chain,
            "text": self.text,
        }


@attrs.frozen
class Unread:
    """A part that was not compared. `unchanged` tells that something else shows that nobody changed it."""

    what: str
    family: Family | None = None
    backend: Backend | None = None
    table: str | None = None
    unchanged: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the part as JSON has it."""
        return {
            "what": self.what,
            "family": self.family and self.family.value,
            "backend": self.backend and self.backend.value,
            "table": self.table,
            "unchanged": self.unchanged,
        }


@attrs.frozen
class Proof:
    """Foreign state before and after a run. Where it differs, somebody else changed it: it is no residue."""

    before: ForeignState
    after: ForeignState
    differences: tuple[Difference, ...] = ()
    unread: tuple[Unread, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all that was compared is as it was."""
        return not self.differences and self.before.digest == self.after.digest

    def to_dict(self) -> dict[str, Any]:
        """Return the proof as JSON has it."""
        return {
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "equal": self.equal,
            "differences": [difference.to_dict() for difference in self.differences],
            "unread": [part.to_dict() for part in self.unread],
        }


def prove(first: Look, last: Look, owned: Claims, *, commits: int, concerned: bool = True) -> Proof:
    """Compare what two looks show of foreign state.

    Args:
        first: the node before the first change; `last` after the last one.
        last: see there.
        owned: all that was found owned at any time: it is left out of both, whether it went or not.
        commits: how many batches of nf_tables were committed in between.
        concerned: whether IPVS, links and routes were read.

    """
    gaps = tuple(dict.fromkeys((*first.snapshot.gaps, *last.snapshot.gaps)))
    before = ForeignPart.of(first, owned, gaps, like={})
    after = ForeignPart.of(last, owned, gaps, like=before.tables)
    failed = {**before.failed, **after.failed}
    for key in failed:  # what one look could not make out is compared in neither
        before.tables.pop(key, None)
        after.tables.pop(key, None)
    still = stood_still(first, last, commits)
    differences = [*_tables(before, after), *_lists(before, after)]
    unread = [] if still else list(_handles(before, after, differences))
    digest = before.digest()
    return Proof(
        ForeignState(digest, before.counts()),
        # The same is not hashed twice: a legacy table may be large.
        ForeignState(digest if before.parts() == after.parts() else after.digest(), after.counts()),
        (*differences, *_policy_counters(before, after)),
        (
            *_gaps(gaps, failed),
            *(_in_tables(before) if still else unread),
            *_never(before, still=still, concerned=concerned),
        ),
    )


def _tables(before: ForeignPart, after: ForeignPart) -> Iterator[Difference]:
    for key in sorted(before.tables.keys() | after.tables.keys(), key=TableKey.sort_key):
        one, two = before.tables.get(key), after.tables.get(key)
        where: dict[str, Any] = {"family": key.family, "backend": key.backend, "table": key.name}
        if one is None or two is None:
            yield Difference("added" if one is None else "removed", "table", key.name, **where)
        elif one.content != two.content:
            found = list(_inside(before.look.snapshot.tables[key], after.look.snapshot.tables[key], one, two, where))
            yield from found or [Difference("moved", "chain", "the chains are in another order", **where)]


def _inside(old: Table, new: Table, one: Staying, two: Staying, where: Mapping[str, Any]) -> Iterator[Difference]:
    for chain, policy in new.builtin.items():
        was = old.builtin.get(chain)
        if was is not None and was.verdict != policy.verdict:
            text = f"policy {policy.verdict}, was {was.verdict}"
            yield Difference("changed", "policy", text, chain=chain, **where)
    rules, other = one.words(), two.words()
    chains, others = {*rules, *one.unread}, {*other, *two.unread}
    for chain in sorted(chains - others):
        yield Difference("removed", "chain", chain, chain=chain, **where)
    for chain in sorted(others - chains):
        yield Difference("added", "chain", chain, chain=chain, **where)
    for chain in sorted(rules.keys() | other.keys()):
        for change, text in _moves(rules.get(chain, ()), other.get(chain, ())):
            yield Difference(change, "rule", text, chain=chain, **where)


def _moves(before: Sequence[_Rule], after: Sequence[_Rule]) -> Iterator[tuple[str, str]]:
    """Yield what became of the rules of a chain, in their order."""
    before, after = _different(before, after)
    ids = [same for same, _text in before], [same for same, _text in after]
    going: list[_Rule] = []
    coming: list[_Rule] = []
    if max(map(len, ids)) > _MOST_PLACES:
        rest = Counter(ids[1])
        going = [rule for rule in before if not _take(rest, rule[0])]
        rest = Counter(ids[0])
        coming = [rule for rule in after if not _take(rest, rule[0])]
        if not going and not coming:
            yield "moved", "the rules are in another order"
    else:
        from difflib import SequenceMatcher  # noqa: PLC0415 - likewise, and seldom needed

        for what, begin, end, start, stop in SequenceMatcher(None, *ids, autojunk=False).get_opcodes():
            if what != "equal":
                going += before[begin:end]
                coming += after[start:stop]
    # What went here and came there has moved.
    moved = Counter(same for same, _text in going) & Counter(same for same, _text in coming)
    rest = moved.copy()
    yield from (("removed", text()) for same, text in going if not _take(rest, same))
    for same, text in coming:
        yield "moved" if _take(moved, same) else "added", text()


def _take(rest: Counter[bytes], same: bytes) -> bool:
    """Take one of these, if there is one."""
    rest[same] -= 1
    return rest[same] >= 0


def _different(before: Sequence[_Rule], after: Sequence[_Rule]) -> tuple[Sequence[_Rule], Sequence[_Rule]]:
    """Return both without what is the same at the begin and at the end."""
    most, begin, end = min(len(before), len(after)), 0, 0
    while begin < most and before[begin][0] == after[begin][0]:
        begin += 1
    while end < most - begin and before[-1 - end][0] == after[-1 - end][0]:
        end += 1
    return before[begin : len(before) - end], after[begin : len(after) - end]


def _policy_counters(before: ForeignPart, after: ForeignPart) -> Iterator[Difference]:
    """Yield the counters of policies that became smaller: traffic only makes them larger."""
    for key in before.tables.keys() & after.tables.keys():
        old, new = (side.look.snapshot.tables[key].builtin for side in (before, after))
        for chain in old.keys() & new.keys():
            was, now = old[chain], new[chain]
            if now.packets < was.packets or now.bytes < was.bytes:
                text = f"counters of the policy {now.packets}:{now.bytes}, were {was.packets}:{was.bytes}"
                yield Difference("changed", "policy", text, key.family, key.backend, key.name, chain)


def _lists(before: ForeignPart, after: ForeignPart) -> Iterator[Difference]:
    for (kind, family), lines in before.lists.items():
        others = after.lists.get((kind, family), [])
        if lines != others:
            for change, text in _moves(_as_rules(lines), _as_rules(others)):
                yield Difference(change, kind, text, family)


def _as_rules(lines: Iterable[str]) -> list[_Rule]:
    return [(line.encode("utf-8", "surrogateescape"), lambda line=line: line) for line in lines]  # type: ignore[misc]


def _handles(before: ForeignPart, after: ForeignPart, found: list[Difference]) -> Iterator[Unread]:
    """Compare the rules of chains of which nothing else is known by their handles; yield what was not looked at.

    A rule of nf_tables never changes, and its handle is given once.
    """
    for key in before.tables.keys() & after.tables.keys():
        one, two = before.tables[key], after.tables[key]
        was, now = one.handles(), two.handles()
        for chain in sorted({*one.unread} & {*two.unread} & was.keys() & now.keys()):
            if was[chain] != now[chain]:
                less, more = set(was[chain]).difference(now[chain]), set(now[chain]).difference(was[chain])
                text = f"rules of chain {chain}: {len(more)} added, {len(less)} removed"
                found.append(Difference("changed", "chain", text, key.family, key.backend, key.name, chain))
        unknown = len({*one.unread} & {*two.unread} - (was.keys() & now.keys()))
        if unknown:
            yield Unread(f"rules of chains of others: {unknown} chains", key.family, key.backend, key.name)


def stood_still(first: Look, last: Look, commits: int) -> bool:
    """Tell whether nobody but us changed nf_tables: each commit makes the next generation."""
    if first.dump is None or last.dump is None:
        return first.dump is last.dump
    return (last.dump.generation - first.dump.generation) % (1 << 32) == commits


def _gaps(gaps: Iterable[Gap], failed: Mapping[TableKey, str]) -> Iterator[Unread]:
    yield from (Unread(gap.reason, gap.family, gap.backend, gap.table) for gap in gaps)
    yield from (Unread(reason, key.family, key.backend, key.name) for key, reason in failed.items())


def _in_tables(side: ForeignPart) -> Iterator[Unread]:
    for key, table in side.tables.items():
        if table.unread:
            what = f"rules of chains of others: {len(table.unread)} chains"
            yield Unread(what, key.family, key.backend, key.name, unchanged=True)


def _never(side: ForeignPart, *, still: bool, concerned: bool) -> Iterator[Unread]:
    """Yield what is never read."""
    natives = side.lists.get(("table", None))
    if natives:
        yield Unread(f"what is in other tables of nf_tables: {', '.join(natives)}", unchanged=still)
    if any(side.lists.get(("set", family)) for family in (*Family, None)):
        yield Unread("members of sets")
    if concerned:
        yield Unread("routes of other tables and protocols, addresses of other links, schedulers and weights of IPVS")
    else:
        yield Unread("IPVS, links, routes and policy rules: the selected controllers have none")
