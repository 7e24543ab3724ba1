"""Who owns what: a pure function from a snapshot and a component to claims, each with its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

import attrs

from .components import Component, OwnedShape
from .model import Backend, Controller, Family, IpSet, NativeTable, Rule, Snapshot, Table, TableKey

__all__ = ["Claims", "RuleClaim", "RuleId", "SetClaim", "claim"]

# A rule is known by its handle in nf_tables, and in legacy by what it says and how many alike stand before it.
RuleId = tuple[str, object, int]

_K = TypeVar("_K")
_V = TypeVar("_V")


@attrs.frozen
class RuleClaim:
    """A rule in a foreign chain that is owned, and why. `detail` says more where the evidence has more to say."""

    rule: Rule
    controller: Controller
    evidence: str
    detail: str = ""


@attrs.frozen
class SetClaim:
    """An ipset that is owned, and why. `controller` is None for a set of no single controller."""

    item: IpSet
    controller: Controller | None
    evidence: str


@attrs.frozen
class Claims:
    """What is owned in a snapshot. Chains and whole tables are claimed for their names, so they need no evidence."""

    chains: Mapping[TableKey, Mapping[str, Controller]] = attrs.field(factory=dict)
    rules: Mapping[TableKey, Mapping[RuleId, RuleClaim]] = attrs.field(factory=dict)
    native_tables: Mapping[NativeTable, Controller] = attrs.field(factory=dict)
    sets: Mapping[str, SetClaim] = attrs.field(factory=dict)

    def __bool__(self) -> bool:
        return bool(self.native_tables or self.sets) or any(self.chains.values()) or any(self.rules.values())

    def select(self, controllers: frozenset[Controller], families: frozenset[Family]) -> Claims:
        """Return the claims of some controllers and families; what belongs to none in particular stays in."""
        keys = [key for key in self.chains.keys() | self.rules.keys() if key.family in families]
        return Claims(
            chains={
                key: {name: owner for name, owner in self.chains.get(key, {}).items() if owner in controllers}
                for key in keys
            },
            rules={
                key: {id_: c for id_, c in self.rules.get(key, {}).items() if c.controller in controllers}
                for key in keys
            },
            native_tables={
                table: owner
                for table, owner in self.native_tables.items()
                if owner in controllers and table.address_family in families
            },
            sets={
                name: c
                for name, c in self.sets.items()
                if (c.controller is None or c.controller in controllers)
                and (c.item.family is None or c.item.family in families)
            },
        )

    def minus(self, other: Claims) -> Claims:
        """Return what is claimed here and not there."""
        return Claims(
            chains={key: _minus(own, other.chains.get(key, {})) for key, own in self.chains.items()},
            rules={key: _minus(own, other.rules.get(key, {})) for key, own in self.rules.items()},
            native_tables=_minus(self.native_tables, other.native_tables),
            sets=_minus(self.sets, other.sets),
        )

    def plus(self, other: Claims) -> Claims:
        """Return what is claimed here or there."""
        return Claims(
            chains=_merge(self.chains, other.chains),
            rules=_merge(self.rules, other.rules),
            native_tables={**other.native_tables, **self.native_tables},
            sets={**other.sets, **self.sets},
        )


def _minus(own: Mapping[_K, _V], other: Mapping[_K, object]) -> Mapping[_K, _V]:
    return {key: value for key, value in own.items() if key not in other} if other else own


def _merge(
    own: Mapping[TableKey, Mapping[_K, _V]], other: Mapping[TableKey, Mapping[_K, _V]]
) -> Mapping[TableKey, Mapping[_K, _V]]:
    return {key: {**other.get(key, {}), **own.get(key, {})} for key in own.keys() | other.keys()}


def claim(snapshot: Snapshot, component: Component) -> Claims:
    """Return everything in a snapshot that is proven to be the component's. Doubt is foreign."""
    chains = {key: _claim_chains(table, component) for key, table in snapshot.tables.items()}
    return Claims(
        chains=chains,
        rules={key: _claim_rules(table, chains[key], component) for key, table in snapshot.tables.items()},
        native_tables={
            table: component.native_tables[table]
            for table in snapshot.native_tables
            if table in component.native_tables
        },
        sets=_claim_sets(snapshot.sets.values(), component),
    )


def _claim_chains(table: Table, component: Component) -> dict[str, Controller]:
    name = table.key.name
    return {chain: owner for chain in table.chains if (owner := component.chain_owner(name, chain))}


def _claim_rules(table: Table, owned: Mapping[str, Controller], component: Component) -> dict[RuleId, RuleClaim]:
    shapes = [entry for entry in component.shapes if entry.shape.table == table.key.name]
    claims: dict[RuleId, RuleClaim] = {}
    undecided: list[tuple[RuleId, Rule]] = []
    vips: set[str] = set()
    for chain, rules in table.rules.items():
        if chain in owned:
            continue  # goes with the chain
        for id_, rule in rule_ids(table.key, rules):
            found = _claim_rule(rule, owned, shapes, table.key.family, vips, proven=None)
            if found is None:
                undecided.append((id_, rule))
            else:
                claims[id_] = found
    if vips:
        for id_, rule in undecided:
            found = _claim_rule(rule, owned, shapes, table.key.family, set(), proven=vips)
            if found is not None:
                claims[id_] = found
    return claims


def _claim_rule(
    rule: Rule,
    owned: Mapping[str, Controller],
    shapes: list[OwnedShape],
    family: Family,
    vips: set[str],
    *,
    proven: set[str] | None,
) -> RuleClaim | None:
    target = rule.target.name
    if target in owned:
        return RuleClaim(rule, owned[target], "jump", target)
    for entry in shapes:
        if entry.needs_vip == (proven is None):
            continue
        bindings = entry.shape.match(rule, family)
        if bindings is None or not entry.proof(bindings, family):
            continue
        if proven is not None and bindings["<vip>"] not in proven:
            continue
        if entry.proves_vip:
            vips.add(bindings["<vip>"])
        return RuleClaim(rule, entry.controller, entry.evidence)
    return None


def rule_ids(key: TableKey, rules: Iterable[Rule]) -> Iterable[tuple[RuleId, Rule]]:
    """Yield each rule of a chain with what it is known by in two snapshots of the same node."""
    seen: Counter[Rule] = Counter()
    for rule in rules:
        if key.backend is Backend.NFT and rule.handle is not None:
            yield (rule.chain, rule.handle, 0), rule
        else:
            yield (rule.chain, rule, seen[rule]), rule
            seen[rule] += 1


def _claim_sets(sets: Iterable[IpSet], component: Component) -> dict[str, SetClaim]:
    claims = {}
    for item in sets:
        names = component.set_owner(item.name)
        if names is None or (names.unreferenced and item.references):
            continue
        claims[item.name] = SetClaim(item, names.controller, "temporary-set" if names.unreferenced else "set-name")
    return claims
