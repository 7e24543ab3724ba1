"""What the lines of a file would make in the kernel, and which of it would be owned there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import attrs

from ..components import Component
from ..model import BUILTIN_CHAINS, Backend, Controller, Family, IpSet, NativeTable, Rule, Snapshot, Table, TableKey
from ..ownership import Claims, claim, rule_ids
from ..rules import parse_rule

__all__ = ["ChainEntry", "Entry", "Judged", "RuleEntry", "SetEntry", "TableEntry", "judge", "key_of"]


@attrs.frozen
class ChainEntry:
    """A line that makes a chain."""

    line: int
    key: TableKey
    name: str


class RuleEntry(NamedTuple):  # there may be 100,000
    """A line that makes a rule: its text (`-A CHAIN …`), or the rule itself where only its jump is known.

    `targets` has the word behind each `-j` and `-g`, also of one in a comment: the rule is parsed if that may matter.
    """

    line: int
    key: TableKey
    chain: str
    targets: Sequence[str]
    rule: str | Rule


@attrs.frozen
class SetEntry:
    """A line that makes an ipset."""

    line: int
    name: str
    family: Family | None = None


@attrs.frozen
class TableEntry:
    """A line that makes a table of nf_tables."""

    line: int
    table: NativeTable


Entry = ChainEntry | RuleEntry | SetEntry | TableEntry


@attrs.frozen
class Judged:
    """Why what a line makes would be owned, and by whom."""

    evidence: str
    controller: Controller | None
    family: Family | None
    detail: str = ""


def key_of(family: Family, table: str) -> TableKey | None:
    """Return the key of an iptables table by its name, None if there is no such."""
    return TableKey(family, Backend.NFT, table) if table in BUILTIN_CHAINS else None


@attrs.define
class _Found:
    """What a file makes, by what it is: each with its line."""

    chains: dict[TableKey, dict[str, int]] = attrs.field(factory=lambda: defaultdict(dict))
    rules: dict[TableKey, dict[str, list[RuleEntry]]] = attrs.field(
        factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    sets: dict[str, SetEntry] = attrs.field(factory=dict)
    tables: dict[NativeTable, int] = attrs.field(factory=dict)

    def take(self, entry: Entry) -> None:
        match entry:
            case ChainEntry(line, key, name):
                self.chains[key].setdefault(name, line)
            case RuleEntry():
                self.rules[entry.key][entry.chain].append(entry)
            case SetEntry():
                self.sets.setdefault(entry.name, entry)
            case TableEntry(line, table):
                self.tables.setdefault(table, line)


def judge(entries: Iterable[Entry], component: Component) -> Mapping[int, Judged]:
    """Return what would be owned, by line: everything is claimed together, as on a node that has loaded it."""
    made = _Found()
    for entry in entries:
        made.take(entry)
    lines: dict[TableKey, dict[object, int]] = {}
    keys = {*made.chains, *made.rules}
    snapshot = Snapshot(
        tables={key: _table(key, made.chains[key], made.rules[key], component, lines) for key in keys},
        native_tables=tuple(made.tables),
        sets={name: IpSet(name, "", entry.family) for name, entry in made.sets.items()},
    )
    return dict(_judged(claim(snapshot, component), made, lines))


def _judged(
    claims: Claims, made: _Found, lines: Mapping[TableKey, Mapping[object, int]]
) -> Iterator[tuple[int, Judged]]:
    for key, owners in claims.chains.items():
        for name, owner in owners.items():
            if name in made.chains[key]:
                yield made.chains[key][name], Judged("chain-name", owner, key.family)
    for key, owned in claims.rules.items():
        for id_, rule in owned.items():
            yield lines[key][id_], Judged(rule.evidence, rule.controller, key.family, rule.detail)
    for native, controller in claims.native_tables.items():
        yield made.tables[native], Judged("table-name", controller, native.address_family)
    for name, item in claims.sets.items():
        yield made.sets[name].line, Judged(item.evidence, item.controller, item.item.family)


def _table(
    key: TableKey,
    chains: Mapping[str, int],
    rules: Mapping[str, list[RuleEntry]],
    component: Component,
    lines: dict[TableKey, dict[object, int]],
) -> Table:
    """Return a table of what may be owned in it. A chain to which a rule jumps is there: another file makes it."""
    targets = {name for own in rules.values() for entry in own for name in entry.targets}
    owned = set(component.owned_chains(key.name, {*chains, *targets}))
    shaped = {name for entry in component.shapes if entry.shape.table == key.name for name in entry.shape.chains}
    kept: dict[str, tuple[Rule, ...]] = {}
    where: dict[object, int] = {}
    for chain, own in rules.items():
        if chain in owned:
            continue  # goes with the chain
        # A file may have 100,000 rules, and most can be no one's: they are not parsed.
        read = [
            (entry.line, _rule(entry, owned))
            for entry in own
            if chain in shaped or not owned.isdisjoint(entry.targets)
        ]
        known = [(line, rule) for line, rule in read if rule is not None]
        kept[chain] = tuple(rule for _line, rule in known)
        where.update((id_, line) for (id_, _rule), (line, _) in zip(rule_ids(key, kept[chain]), known, strict=True))
    lines[key] = where
    return Table(key, {}, tuple({*chains, *owned}), kept)


def _rule(entry: RuleEntry, owned: set[str]) -> Rule | None:
    if isinstance(entry.rule, Rule):
        return entry.rule
    try:
        return parse_rule(entry.rule, user_chains=owned)
    except ValueError:  # not understood, so it is nobody's
        return None
