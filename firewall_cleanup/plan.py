"""From claims to what is to be done: what goes, in which order, and what cannot go because something holds it."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from .model import (
    Address,
    Backend,
    Change,
    Controller,
    Family,
    FouPort,
    Gap,
    IpvsService,
    Item,
    Kind,
    Link,
    PolicyRule,
    Route,
    Rule,
    Snapshot,
    Table,
    TableChange,
    TableKey,
)
from .ownership import Claims, rule_ids
from .report import Holder, Left, Status, describe
from .rules import render

__all__ = ["Plan", "Refusals", "make_plan", "others"]

# What the kernel refused in this run: (table or native table, kind, name or handle) -> why it is left.
Refusals = Mapping[tuple[object, str, object], Left]


@attrs.frozen
class Plan:
    """What is to be removed. `left` says why some of `selected` will stay all the same."""

    selected: Claims
    left: Mapping[object, Left] = attrs.field(factory=dict)
    empty: frozenset[tuple[TableKey, str]] = frozenset()

    def nft_change(self) -> Change:
        """Return the one batch over both families: rules, chains and tables of nf_tables."""
        keys = sorted((k for k in self.selected.chains if k.backend is Backend.NFT), key=TableKey.sort_key)
        changes = (self.table_change(key) for key in keys)
        natives = tuple(sorted((t for t in self.selected.native_tables if t not in self.left), key=attrs.astuple))
        return Change(tuple(filter(None, changes)), natives)

    def table_change(self, key: TableKey) -> TableChange:
        """Return what is to be removed from one iptables table.

        A chain that something holds is emptied, which ends its effect, and stays.
        """
        chains = self.selected.chains.get(key, {})
        rules = self.selected.rules.get(key, {})
        flush = tuple(sorted(chains))
        if self.left:
            flush = tuple(name for name in flush if not self._untouchable(key, name))
        return TableChange(
            key=key,
            rules=tuple(
                sorted(
                    (found.rule for id_, found in rules.items() if (key, id_) not in self.left),
                    key=lambda rule: (rule.chain, rule.index),
                )
            ),
            flush=tuple(name for name in flush if (key, name) not in self.empty) if self.empty else flush,
            delete=tuple(name for name in flush if (key, name) not in self.left) if self.left else flush,
        )

    def _untouchable(self, key: TableKey, name: str) -> bool:
        left = self.left.get((key, name))
        return left is not None and left.status in {Status.DENIED, Status.FAILED}

    def legacy_keys(self) -> tuple[TableKey, ...]:
        """Return the legacy tables in which there is something to do."""
        keys = (key for key in self.selected.chains if key.backend is Backend.LEGACY)
        return tuple(key for key in sorted(keys, key=TableKey.sort_key) if self._touches(key))

    def _touches(self, key: TableKey) -> bool:
        selected = self.selected
        if not self.left:
            return bool(selected.chains.get(key) or selected.rules.get(key))
        return bool(self.table_change(key))

    def set_names(self) -> tuple[str, ...]:
        """Return the sets to destroy; those that hold other sets first, then as the kernel finds them fastest.

        It looks for a name from the first index on.
        """
        sets = [found.item for name, found in self.selected.sets.items() if name not in self.left]
        return tuple(item.name for item in sorted(sets, key=lambda s: (s.type != "list:set", s.index or 0, s.name)))

    def services(self) -> tuple[IpvsService, ...]:
        """Return the IPVS services to delete; those that others prove come before these."""
        claims = self.selected.items
        items = [item for item in claims if isinstance(item, IpvsService) and item not in self.left]
        return tuple(sorted(items, key=lambda item: (not claims[item].first, attrs.astuple(item)[1:5])))

    def items(self) -> tuple[Item, ...]:
        """Return what is to be deleted last, in order; addresses go with their link if that goes."""
        going = [i for i in self.selected.items if not isinstance(i, IpvsService) and i not in self.left]
        links = {item.name for item in going if isinstance(item, Link)}
        items = [i for i in going if not (isinstance(i, Address) and i.link in links)]
        return tuple(sorted(items, key=lambda item: (_ITEM_ORDER[type(item)], describe(item)[1:])))


# Rules go before the routes to which they lead, ports before the tunnels that prove them.
_ITEM_ORDER: dict[type, int] = {PolicyRule: 0, Route: 1, FouPort: 2, Address: 3, Link: 4}


def make_plan(
    snapshot: Snapshot,
    claims: Claims,
    *,
    controllers: frozenset[Controller],
    families: frozenset[Family],
    refusals: Refusals | None = None,
    remove_bridge: bool = False,
    keep_proofs: str | None = None,
) -> Plan:
    """Return the plan for the selected controllers and families.

    The rules that will remain are looked at: an owned chain or set that one of them uses cannot go. `refusals` are
    what the kernel said to an earlier plan of the same run. `keep_proofs` is the reason why what proves IPVS services
    must stay: they could not be read, or not all be removed.
    """
    selected = claims.select(controllers, families)
    left: dict[object, Left] = {}
    # In an order of our own: of several holders the report names the same one each time.
    for key in sorted(snapshot.tables, key=TableKey.sort_key):
        _holders_in(snapshot.tables[key], claims, selected, left)
    for item in sorted(snapshot.sets.values(), key=lambda item: item.name):
        if item.name not in selected.sets:
            for member in item.members:
                if member in selected.sets:
                    holder = Holder(Kind.SET, item.family, text=item.name)
                    left.setdefault(member, _left(holder, "a member of a set that stays"))
    _items(selected, left, snapshot.gaps, remove_bridge=remove_bridge)
    blind = {"ipvs", "ipset", "routing"} if snapshot.services else {"ipvs"}
    unread = next((gap.reason for gap in snapshot.gaps if gap.subsystem in blind), None)
    if keep_proofs or unread:
        _keep_proofs(selected, left, keep_proofs or f"it may prove IPVS services, and not all was read ({unread})")
    _keep_needed(claims, selected, left)
    for (where, kind, name), reason in (refusals or {}).items():
        _refused(selected, left, where, kind, name, reason)
    empty = frozenset(
        (key, name)
        for key, name in (place for place in left if isinstance(place, tuple))
        if name in selected.chains.get(key, ()) and snapshot.tables[key].rules.get(name) == ()
    )
    return Plan(selected, left, empty)


def others(snapshot: Snapshot, claims: Claims) -> dict[str, int]:
    """Count what was seen and is not owned, by kind; not the rules of others, which are not all read."""
    tables = snapshot.tables
    return {
        "tables": len(tables),
        "chains": sum(len(table.chains) - len(claims.chains.get(key, ())) for key, table in tables.items()),
        "native_tables": sum(table not in claims.native_tables for table in snapshot.native_tables),
        "sets": sum(name not in claims.sets for name in snapshot.sets),
        "services": sum(service not in claims.items for service in snapshot.services),
        "links": sum(link not in claims.items for link in snapshot.links),
    }


def _items(selected: Claims, left: dict[object, Left], gaps: tuple[Gap, ...], *, remove_bridge: bool) -> None:
    blind = next((gap.reason for gap in gaps if gap.subsystem in {"ipset", "routing"}), None)
    no_ports = next((gap.reason for gap in gaps if gap.subsystem == "fou"), None)
    for item, found in selected.items.items():
        if found.shared is not None:
            left[item] = Left(Status.KEPT, f"kube-proxy serves it too: {found.shared}")
        elif isinstance(item, IpvsService) and blind is not None:
            left[item] = Left(Status.FAILED, f"whether kube-proxy serves it too cannot be told: {blind}")
        elif isinstance(item, Link) and item.encap_port and no_ports is not None:
            left[item] = Left(Status.FAILED, f"it proves a FOU port, and these were not read ({no_ports})")
        elif found.ports and not (remove_bridge and isinstance(item, Link)):
            names = ", ".join(found.ports)
            reason = f"{names} attached" if isinstance(item, Link) else f"{names} uses it"
            left[item] = Left(Status.IN_USE, reason, Holder(Kind.LINK, text=names))


def _keep_proofs(selected: Claims, left: dict[object, Left], reason: str) -> None:
    kept = Left(Status.FAILED, reason)
    places: list[object] = [item for item, found in selected.items.items() if found.proves_services]
    places += [name for name, item in selected.sets.items() if item.proves_services]
    places += [
        (key, id_) for key, rules in selected.rules.items() for id_, rule in rules.items() if rule.proves_services
    ]
    for place in places:
        left.setdefault(place, kept)


def _keep_needed(claims: Claims, selected: Claims, left: dict[object, Left]) -> None:
    """Keep what alone proves a service of a controller that was not selected: its own cleanup needs the proof."""
    for item, found in claims.items.items():
        if item in selected.items or not found.needs or found.shared is not None:
            continue
        going = {n for n in found.needs if n not in left and (n in selected.items or n in selected.sets)}
        if going == found.needs:
            kind, name, _table, _text = describe(item)
            holder = Holder(kind, item.family if not isinstance(item, Link) else None, text=name)
            reason = f"it proves that {name} belongs to {found.controller.value}"
            for need in going:
                left[need] = Left(Status.KEPT, reason, attrs.evolve(holder, controller=found.controller))


def _holders_in(table: Table, claims: Claims, selected: Claims, left: dict[object, Left]) -> None:
    key = table.key
    chains = selected.chains.get(key, {})
    going = selected.rules.get(key, {})
    owners = claims.chains.get(key, {})
    claimed = claims.rules.get(key, {})
    if not chains and not selected.sets:
        return
    for name, verdict_map in table.mapped.items():
        if name in chains:
            holder = Holder(Kind.SET, key.family, key.backend, key.name, text=verdict_map)
            left.setdefault((key, name), _left(holder, "emptied; a verdict map that stays jumps to it"))
    for chain, rules in sorted(table.rules.items()):
        if chain in chains:
            continue
        for id_, rule in rule_ids(key, rules) if claimed else ((None, rule) for rule in rules):
            target = rule.target.name
            if (target not in chains and not rule.sets) or id_ in going:
                continue
            claim = claimed.get(id_) if id_ is not None else None
            owner = owners.get(chain) or (claim.controller if claim else None)
            holder = _rule_holder(key, rule, owner)
            if target in chains:
                left.setdefault((key, target), _left(holder, "emptied; a rule that stays jumps to it"))
            for name in rule.sets:
                if name in selected.sets:
                    left.setdefault(name, _left(holder, "a rule that stays uses it"))


def _rule_holder(key: TableKey, rule: Rule, owner: Controller | None) -> Holder:
    return Holder(Kind.RULE, key.family, key.backend, key.name, rule.chain, render(rule), owner)


def _left(holder: Holder, reason: str) -> Left:
    if holder.controller is not None:
        return Left(Status.KEPT, f"{reason} ({holder.controller.value})", holder)
    return Left(Status.IN_USE, reason, holder)


def _refused(
    selected: Claims, left: dict[object, Left], where: object, kind: str, name: object, reason: Left
) -> None:
    if kind == "table":
        left.setdefault(where, reason)
    elif kind == "rule" and isinstance(where, TableKey):
        for id_, found in selected.rules.get(where, {}).items():
            if found.rule.handle == name:
                left.setdefault((where, id_), reason)
    else:
        left.setdefault((where, name), reason)
