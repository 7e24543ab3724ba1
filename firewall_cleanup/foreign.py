"""What is foreign on a node: what stays of a reading when all that is owned is left out, in comparable form; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from .errors import KernelError
from .host import Look, Staying
from .model import (
    Address,
    Backend,
    Family,
    FouPort,
    Gap,
    IpSet,
    IpvsService,
    Link,
    PolicyRule,
    Route,
    Snapshot,
    Table,
    TableChange,
    TableKey,
    names_by_index,
)
from .ownership import Claims, rule_ids

__all__ = ["ForeignPart", "Place"]

# The kind of some objects, as outcomes have it, and their family.
Place = tuple[str, Family | None]


@attrs.frozen
class ForeignPart:
    """One look without what is owned: tables, and lists of lines by kind and family."""

    look: Look
    tables: dict[TableKey, Staying]
    failed: dict[TableKey, str]
    lists: Mapping[Place, list[str]]

    @classmethod
    def of(cls, look: Look, owned: Claims, gaps: Sequence[Gap], like: Mapping[TableKey, Staying]) -> ForeignPart:
        """Return a look without what is owned, and without what a gap is about; `like` says what it may be like."""
        tables, failed = {}, {}
        # Those of the cleaned component are looked for in rules only if one that stays may use them.
        sets = look.snapshot.sets.values()
        names = names_by_index(sets) if any(item.name not in owned.sets for item in sets) else {}
        for key in sorted(look.snapshot.tables, key=TableKey.sort_key):
            if any(gap.covers(key) for gap in gaps):
                continue
            source = look.dump if key.backend is Backend.NFT else look.legacy.get(key)
            try:
                if source is not None:
                    part = _owned_of(look.snapshot.tables[key], owned)
                    tables[key] = source.staying(part, names, like.get(key))
            except KernelError as error:
                failed[key] = error.strerror or str(error)
        lists = {place: lines for place, lines in _listed(look.snapshot, owned) if not _is_blind(place, gaps)}
        return cls(look, tables, failed, lists)

    def parts(self) -> list[tuple[str, tuple[bytes | bytearray, ...]]]:
        """Return all that is compared, in an order that is the same in every run."""
        tables = [(" ".join(key.sort_key()), table.content) for key, table in self.tables.items()]
        lists = [
            (
                f"{kind} {'' if family is None else family.value}",
                ("\n".join(lines).encode("utf-8", "surrogateescape"),),
            )
            for (kind, family), lines in self.lists.items()
            if lines
        ]
        return tables + lists

    def digest(self) -> str:
        """Return a sha256 over all that is compared."""
        import hashlib  # noqa: PLC0415 - slow to import, and needed only if something was changed

        result = hashlib.sha256()
        for name, content in self.parts():
            result.update(f"{name} {' '.join(str(len(each)) for each in content)}\n".encode())
            for each in content:
                result.update(each)
        return result.hexdigest()

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how much there is, by subsystem."""
        result: dict[str, dict[str, int]] = {}
        for key, table in self.tables.items():
            numbers = result.setdefault(key.backend.value, {"tables": 0, "chains": 0, "rules": 0})
            for name, number in (("tables", 1), ("chains", table.chains), ("rules", table.rules)):
                numbers[name] += number
        for (kind, _family), lines in self.lists.items():
            subsystem, name = _COUNTED[kind]
            numbers = result.setdefault(subsystem, {})
            numbers[name] = numbers.get(name, 0) + len(lines)
        return result


# The subsystem of each kind, and how its objects are counted.
_COUNTED = {
    "table": ("nftables", "tables"),
    "set": ("ipset", "sets"),
    "ipvs-service": ("ipvs", "services"),
    "policy-rule": ("routing", "policy_rules"),
    "route": ("routing", "routes"),
    "fou-port": ("fou", "ports"),
    "link": ("routing", "links"),
    "address": ("routing", "addresses"),
}


def _owned_of(table: Table, owned: Claims) -> TableChange:
    """Return all that is owned of a table, by the places that it has there."""
    key = table.key
    chains, ids = owned.chains.get(key, {}), owned.rules.get(key, {})
    names = tuple(sorted(name for name in table.chains if name in chains)) if chains else ()
    in_chains = sorted({id_[0] for id_ in ids}.difference(names))
    rules = (found for chain in in_chains for found in rule_ids(key, table.rules.get(chain, ())))
    return TableChange(key, tuple(rule for id_, rule in rules if id_ in ids), names, names)


def _listed(snapshot: Snapshot, owned: Claims) -> Iterator[tuple[Place, list[str]]]:
    """Yield what is neither rule nor chain, a line for each object; only policy rules have an order."""
    natives = (table for table in snapshot.native_tables if table not in owned.native_tables)
    yield ("table", None), sorted(f"{table.family} {table.name}" for table in natives)
    gone = {item.name for item in owned.items if isinstance(item, Link)}
    links = (link for link in snapshot.links if link not in owned.items)
    yield ("link", None), sorted(_link_line(link, gone) for link in links)
    for family in (*Family, None):
        sets = (item for name, item in snapshot.sets.items() if item.family is family and name not in owned.sets)
        yield ("set", family), sorted(_set_line(item) for item in sets)
    # What leads through a link that goes, goes with it.
    routes = (route for route in snapshot.routes if route.device not in gone)
    addresses = (address for address in snapshot.addresses if address.link not in gone)
    items: tuple[Any, ...] = (*snapshot.services, *snapshot.policy_rules, *routes, *addresses, *snapshot.fou_ports)
    for kind, (sort, line) in _LINES.items():
        for family in Family:
            mine = (item for item in items if isinstance(item, sort) and item.family is family)
            lines = [line(item) for item in mine if item not in owned.items]
            yield (kind, family), lines if sort is PolicyRule else sorted(lines)


def _link_line(link: Link, gone: Collection[str]) -> str:
    master = None if link.master in gone else link.master
    parts = (("type", link.kind), ("master", master), ("remote", link.remote), ("encap-port", link.encap_port))
    return link.name + "".join(f" {name} {value}" for name, value in parts if value)


# Attributes of a set's header (IPSET_ATTR_*): those that are made up or change with its members and uses (seed, hash
# size, elements, references, memory), and what others are called.
_CHANGING = frozenset({17, 18, 24, 25, 26})
_SETTINGS = {6: "timeout", 8: "flags", 19: "maxelem", 20: "netmask", 21: "bucketsize", 23: "size"}


def _set_line(item: IpSet) -> str:
    # Only those that hold other sets: what others hold is not read.
    members = item.members if item.type == "list:set" else ()
    numbers = sorted(number for number in item.header if number not in _CHANGING)
    settings = (f"{_SETTINGS.get(n, f'attribute {n}')} {int.from_bytes(item.header[n], 'big')}" for n in numbers)
    return " ".join((item.name, item.type, *settings, *(("members", *members) if members else ())))


def _service_line(item: IpvsService) -> str:
    return " ".join((item.name, *(f"-> {end}" for end in sorted(item.destinations))))


def _policy_rule_line(rule: PolicyRule) -> str:
    mark = "" if rule.mark is None else f" fwmark {rule.mark:#x}"
    more = "" if rule.plain else f" and more ({rule.raw[12:].hex()})"
    return f"{rule.priority}: from {rule.source or 'all'}{mark} lookup {rule.table}{more}"


def _route_line(route: Route) -> str:
    parts = (("via", route.gateway), ("dev", route.device), ("metric", route.metric))
    words = "".join(f" {name} {value}" for name, value in parts if value)
    return (
        f"{route.destination}{words} table {route.table} proto {route.protocol} type {route.type} scope {route.scope}"
    )


_LINES: dict[str, tuple[type[Any], Callable[[Any], str]]] = {
    "ipvs-service": (IpvsService, _service_line),
    "policy-rule": (PolicyRule, _policy_rule_line),
    "route": (Route, _route_line),
    "address": (Address, lambda item: f"{item.address} dev {item.link}"),
    "fou-port": (FouPort, lambda item: f"{item.port} kind {item.kind}"),
}


def _is_blind(place: Place, gaps: Iterable[Gap]) -> bool:
    """Tell whether a gap is about this list."""
    kind, family = place
    subsystem = _COUNTED[kind][0]
    return any(
        (gap.subsystem == subsystem and (gap.family is None or family in {None, gap.family}))
        or (kind == "table" and gap.backend is Backend.NFT)
        or (kind == "fou-port" and gap.subsystem == "routing")
        for gap in gaps
    )
