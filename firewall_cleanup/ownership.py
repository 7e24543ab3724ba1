"""Who owns what: a pure function from a snapshot and a component to claims, each with its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

import attrs

from .components import Component, ItemClaim, OwnedShape, Proofs
from .model import (
    WHOLE_LINE,
    Backend,
    Controller,
    Family,
    IpSet,
    Item,
    Link,
    NativeTable,
    Rule,
    Snapshot,
    Table,
    TableKey,
)
from .shapes import Bindings

__all__ = ["Claims", "RuleClaim", "RuleId", "SetClaim", "claim"]

# A rule is known by its handle in nf_tables, and in legacy by what it says and how many alike stand before it.
RuleId = tuple[str, object, int]
# Firewall marks with their families.
Marks = frozenset[tuple[Family, int]]

_K = TypeVar("_K")
_V = TypeVar("_V")


@attrs.frozen
class RuleClaim:
    """A rule in a foreign chain that is owned, and why. `detail` says more where the evidence has more to say."""

    rule: Rule
    controller: Controller
    evidence: str
    detail: str = ""
    bindings: Bindings = attrs.field(factory=dict, eq=False)

    @property
    def proves_services(self) -> bool:
        """Whether it proves the ownership of IPVS services: by a mark, or by a network of pods."""
        return "<mark>" in self.bindings or "<cidr>" in self.bindings


@attrs.frozen
class SetClaim:
    """An ipset that is owned, and why. `controller` is None for a set of no single controller."""

    item: IpSet
    controller: Controller | None
    evidence: str
    proves_services: bool = False


@attrs.frozen
class Claims:
    """What is owned in a snapshot. Chains and whole tables are claimed for their names, so they need no evidence."""

    chains: Mapping[TableKey, Mapping[str, Controller]] = attrs.field(factory=dict)
    rules: Mapping[TableKey, Mapping[RuleId, RuleClaim]] = attrs.field(factory=dict)
    native_tables: Mapping[NativeTable, Controller] = attrs.field(factory=dict)
    sets: Mapping[str, SetClaim] = attrs.field(factory=dict)
    items: Mapping[Item, ItemClaim] = attrs.field(factory=dict)

    def __bool__(self) -> bool:
        return (
            bool(self.native_tables or self.sets or self.items)
            or any(self.chains.values())
            or any(self.rules.values())
        )

    def select(self, controllers: frozenset[Controller], families: frozenset[Family]) -> Claims:
        """Return the claims of some controllers and families; what belongs to none in particular stays in."""
        keys = [key for key in self.chains.keys() | self.rules.keys() if key.family in families]
        return Claims(
            chains={key: _of(controllers, self.chains.get(key, {})) for key in keys},
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
            items={
                item: c
                for item, c in self.items.items()
                if c.controller in controllers and _families(item, c) <= families
            },
        )

    def minus(self, other: Claims) -> Claims:
        """Return what is claimed here and not there."""
        return Claims(
            chains={key: _minus(own, other.chains.get(key, {})) for key, own in self.chains.items()},
            rules={key: _minus(own, other.rules.get(key, {})) for key, own in self.rules.items()},
            native_tables=_minus(self.native_tables, other.native_tables),
            sets=_minus(self.sets, other.sets),
            items=_minus(self.items, other.items),
        )

    def there(self, snapshot: Snapshot) -> Claims:
        """Return what of this is in a snapshot, whether or not it could still be claimed there."""
        items = {*snapshot.services, *snapshot.policy_rules, *snapshot.routes, *snapshot.fou_ports}
        items.update(snapshot.links, snapshot.addresses)
        tables = snapshot.tables
        return Claims(
            chains={
                key: {name: own[name] for name in own.keys() & set(tables[key].chains)}
                for key, own in self.chains.items()
                if key in tables
            },
            rules={
                key: {
                    id_: own[id_]
                    for chain in {id_[0] for id_ in own}
                    for id_, _rule in rule_ids(key, tables[key].rules.get(chain, ()))
                    if id_ in own
                }
                for key, own in self.rules.items()
                if key in tables
            },
            native_tables={t: self.native_tables[t] for t in snapshot.native_tables if t in self.native_tables},
            sets={name: own for name, own in self.sets.items() if name in snapshot.sets},
            items={item: own for item, own in self.items.items() if item in items},
        )

    def plus(self, other: Claims) -> Claims:
        """Return what is claimed here or there."""
        return Claims(
            chains=_merge(self.chains, other.chains),
            rules=_merge(self.rules, other.rules),
            native_tables={**other.native_tables, **self.native_tables},
            sets={**other.sets, **self.sets},
            items={**other.items, **self.items},
        )


def _families(item: Item, claim: ItemClaim) -> frozenset[Family]:
    """Return the families that an object serves; a link of no single family serves both."""
    family = claim.family if isinstance(item, Link) else item.family
    return frozenset(Family) if family is None else frozenset({family})


def _of(controllers: frozenset[Controller], chains: Mapping[str, Controller]) -> Mapping[str, Controller]:
    if controllers.issuperset(chains.values()):
        return chains  # most often all are asked for, and there may be many
    return {name: owner for name, owner in chains.items() if owner in controllers}


def _minus(own: Mapping[_K, _V], other: Mapping[_K, object]) -> Mapping[_K, _V]:
    return {key: value for key, value in own.items() if key not in other} if other else own


def _merge(
    own: Mapping[TableKey, Mapping[_K, _V]], other: Mapping[TableKey, Mapping[_K, _V]]
) -> Mapping[TableKey, Mapping[_K, _V]]:
    return {key: {**other.get(key, {}), **own.get(key, {})} for key in own.keys() | other.keys()}


def claim(snapshot: Snapshot, component: Component) -> Claims:
    """Return everything in a snapshot that is proven to be the component's. Doubt is foreign."""
    chains = {key: _claim_chains(table, component) for key, table in snapshot.tables.items()}
    marks = component.service_marks(snapshot)
    rules = {key: _claim_rules(table, chains[key], component, marks) for key, table in snapshot.tables.items()}
    return Claims(
        chains=chains,
        rules=rules,
        native_tables={
            table: component.native_tables[table]
            for table in snapshot.native_tables
            if table in component.native_tables
        },
        sets=_claim_sets(snapshot.sets, component),
        items=component.claim_items(snapshot, _proofs(rules)),
    )


def _proofs(rules: Mapping[TableKey, Mapping[RuleId, RuleClaim]]) -> Proofs:
    found = [(key.family, c.bindings) for key, own in rules.items() for c in own.values() if c.bindings]
    return Proofs(
        marks=frozenset(
            (family, int(bindings["<mark>"].partition("/")[0], 16))
            for family, bindings in found
            if "<mark>" in bindings
        ),
        pod_networks=frozenset(bindings["<cidr>"] for _family, bindings in found if "<cidr>" in bindings),
    )


def _claim_chains(table: Table, component: Component) -> dict[str, Controller]:
    return component.owned_chains(table.key.name, table.chains)


def _claim_rules(
    table: Table, owned: Mapping[str, Controller], component: Component, marks: Marks
) -> dict[RuleId, RuleClaim]:
    shapes = [entry for entry in component.shapes if entry.shape.table == table.key.name]
    claims: dict[RuleId, RuleClaim] = {}
    undecided: list[tuple[RuleId, Rule]] = []
    vips: set[str] = set()
    for chain, rules in table.rules.items():
        if chain in owned:
            continue  # goes with the chain
        for id_, rule in rule_ids(table.key, rules):
            found = _claim_rule(rule, owned, shapes, table.key.family, vips, marks, proven=None)
            if found is None:
                undecided.append((id_, rule))
            else:
                claims[id_] = found
    if vips:
        for id_, rule in undecided:
            found = _claim_rule(rule, owned, shapes, table.key.family, set(), marks, proven=vips)
            if found is not None:
                claims[id_] = found
    return claims


def _claim_rule(
    rule: Rule,
    owned: Mapping[str, Controller],
    shapes: list[OwnedShape],
    family: Family,
    vips: set[str],
    marks: Marks,
    *,
    proven: set[str] | None,
) -> RuleClaim | None:
    target = rule.target.name
    if target in owned and WHOLE_LINE not in rule.opaque:
        return RuleClaim(rule, owned[target], "jump", target)
    for entry in shapes:
        if entry.needs_vip == (proven is None):
            continue
        bindings = entry.shape.match(rule, family)
        if bindings is None or not entry.proof(bindings, family, marks):
            continue
        if proven is not None and bindings["<vip>"] not in proven:
            continue
        if entry.proves_vip:
            vips.add(bindings["<vip>"])
        return RuleClaim(rule, entry.controller, entry.evidence, bindings=bindings)
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


def _claim_sets(sets: Mapping[str, IpSet], component: Component) -> dict[str, SetClaim]:
    claims = {}
    for name, names in component.owned_sets(sets).items():
        if names.unreferenced and sets[name].references:
            continue
        evidence = "temporary-set" if names.unreferenced else "set-name"
        claims[name] = SetClaim(sets[name], names.controller, evidence, component.wants_members(name))
    return claims
