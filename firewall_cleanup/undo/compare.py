"""What of a backup is there, what is missing, and what is there but different; and what puts it back."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from ..errors import BackupError
from ..model import BUILTIN_CHAINS, Backend, Family, Kind, NativeTable, TableKey
from .ip_text import identity, in_order, same_line
from .ipvs_text import VirtualService
from .rule_text import ForeignChain, TableText, inserted, is_same, placed
from .saved import Saved, SavedTable, members_without_time, plain_native, service_of

__all__ = [
    "Comparison",
    "Found",
    "Merged",
    "Object",
    "Place",
    "merge",
    "of_lines",
    "of_natives",
    "of_services",
    "of_sets",
    "of_table",
]


class Found(enum.Enum):
    """What of an object is on the node."""

    ALL = "all"
    NOTHING = "nothing"
    PART = "part"
    ANOTHER = "another"


Place: TypeAlias = tuple[object, ...]


@attrs.frozen
class Object:
    """An object of a backup. `place` tells it from all others; for a rule `name` is its chain."""

    place: Place
    kind: Kind
    name: str
    found: Found
    family: Family | None = None
    backend: Backend | None = None
    table: str | None = None
    text: str | None = None
    reason: str | None = None


@attrs.frozen
class Comparison:
    """Objects as they are, and the lines that make what is missing."""

    objects: tuple[Object, ...] = ()
    lines: tuple[str, ...] = ()


@attrs.frozen
class Merged:
    """All parts of a backup in one; of others' chains every state that was saved, the newest first."""

    saved: Saved
    foreign: Mapping[TableKey, Mapping[str, tuple[ForeignChain, ...]]]


def merge(parts: Sequence[Saved]) -> Merged:
    """Make one of several parts, of which the newest comes first and is what counts for each object."""
    saved = Saved()
    foreign: dict[TableKey, dict[str, tuple[ForeignChain, ...]]] = {}
    for part in parts:
        for key, table in part.tables.items():
            for chain, state in table.foreign.items():
                states = foreign.setdefault(key, {})
                states[chain] = (*states.get(chain, ()), state)
    for part in reversed(parts):
        saved = part.plus(saved)
    return Merged(attrs.evolve(saved, lines=_without_older(saved.lines)), foreign)


def _without_older(lines: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Leave out lines for an object that a newer one, which comes first, makes in another way."""
    result = {}
    for name, found in lines.items():
        kept: dict[Place, str] = {}
        for line in found:
            kept.setdefault(identity(line), line)
        result[name] = tuple(in_order(kept.values()))
    return result


def of_table(
    key: TableKey, table: SavedTable, foreign: Mapping[str, Sequence[ForeignChain]], current: TableText | None
) -> Comparison:
    """Compare an iptables table; the lines are for `iptables-restore --noflush --counters`.

    They set the policies of a legacy table to what they are: a commit would set their counters to zero.
    """
    chains = {} if current is None else current.chains
    where: dict[str, Any] = {"family": key.family, "backend": key.backend, "table": key.name}
    objects: list[Object] = []
    declared: list[str] = []
    rules: list[str] = []
    for name, lines in table.chains.items():
        there = chains.get(name)
        found = _chain(lines, there)
        reason = f"it has {_count(there or ())}, the backup {_count(lines)}" if found is Found.ANOTHER else None
        objects.append(Object((key, name), Kind.CHAIN, name, found, reason=reason, **where))
        if found is Found.NOTHING or found is Found.PART:
            declared.append(f":{name} - [0:0]")
            rules += lines
    for name, states in foreign.items():
        if name not in chains and name not in BUILTIN_CHAINS[key.name]:
            objects.append(Object((key, name, 0), Kind.CHAIN, name, Found.ANOTHER, reason="it is gone", **where))
            continue
        for number, (i, line, is_there) in enumerate(placed(chains.get(name, ()), states)):
            found = Found.ALL if is_there else Found.NOTHING
            text = line[line.index("-A ") :]
            objects.append(Object((key, name, number, text), Kind.RULE, name, found, text=text, **where))
            if not is_there:
                rules.append(inserted(line, i + 1))
    if not rules and not declared:
        return Comparison(tuple(objects))
    policies = []
    if key.backend is Backend.LEGACY and current is not None:
        policies = [f":{chain} {policy}" for chain, policy in current.policies.items()]
    return Comparison(tuple(objects), (f"*{key.name}", *policies, *declared, *rules, "COMMIT"))


def _chain(wanted: Sequence[str], there: Sequence[str] | None) -> Found:
    if there is None:
        return Found.NOTHING
    if is_same(wanted, there):
        return Found.ALL
    # One that something holds is emptied by the cleanup and stays.
    return Found.ANOTHER if there else Found.PART


def _count(lines: Sequence[str]) -> str:
    return f"{len(lines)} other rule{'' if len(lines) == 1 else 's'}"


def of_sets(wanted: Mapping[str, Sequence[str]], current: Mapping[str, Sequence[str]]) -> Comparison:
    """Compare ipsets; the lines are for `ipset restore`. One with a part of its members gets the others."""
    objects, lines = [], []
    # Those that hold other sets come last, or they could not name them.
    for name in sorted(wanted, key=lambda name: " list:set" in wanted[name][0]):
        create, members = members_without_time(wanted[name])
        found, reason, missing = Found.NOTHING, None, list(wanted[name])
        if name in current:
            create_now, members_now = members_without_time(current[name])
            if create != create_now:
                found, reason = Found.ANOTHER, f"it is another set: {create_now}"
            elif members_now - members:
                found, reason = Found.ANOTHER, f"it has {len(members_now - members)} members that the backup has not"
            else:
                found = Found.ALL if members == members_now else Found.PART
            missing = [line for line in wanted[name][1:] if members_without_time(["", line])[1] - members_now]
        objects.append(Object((name,), Kind.SET, name, found, family=_family_of_set(create), reason=reason))
        if found in {Found.NOTHING, Found.PART}:
            lines += missing
    return Comparison(tuple(objects), tuple(lines))


def _family_of_set(create: str) -> Family | None:
    words = create.split()
    if "family" not in words:
        return None
    return Family.IPV6 if words[words.index("family") + 1] == "inet6" else Family.IPV4


def of_natives(wanted: Mapping[NativeTable, str], current: Mapping[NativeTable, str]) -> Comparison:
    """Compare tables of nf_tables; the lines are for `nft -f`."""
    objects, lines = [], []
    for table, text in wanted.items():
        found, reason = Found.NOTHING, None
        if table in current:
            same = plain_native(text) == plain_native(current[table])
            found, reason = (Found.ALL, None) if same else (Found.ANOTHER, "its content is another one")
        where: dict[str, Any] = {"family": table.address_family, "backend": Backend.NFT, "table": table.name}
        objects.append(Object((table,), Kind.TABLE, table.name, found, reason=reason, **where))
        lines += text.rstrip("\n").split("\n") if found is Found.NOTHING else []
    return Comparison(tuple(objects), tuple(lines))


def of_lines(name: str, wanted: Sequence[str], current: Mapping[str, Sequence[str]]) -> Comparison:
    """Compare what a file for `ip -batch` makes with all that is there, by file."""
    here = {identity(line): line for line in current.get(name, ())}
    links = {line.split()[3]: line for line in current.get("links.ip", ()) if line.startswith("link add ")}
    objects, lines = [], []
    for line in wanted:
        found, reason = Found.NOTHING, None
        if line.startswith("link set ") and " master " in line:
            found, reason = _port(line, links)
        elif identity(line) in here:
            other = here[identity(line)]
            found, reason = (Found.ALL, None) if same_line(line, other) else (Found.ANOTHER, f"there is: {other}")
        objects.append(_object_of_line(name, line, found, reason))
        lines += [line] if found is Found.NOTHING else []
    return Comparison(tuple(objects), tuple(lines))


def _port(line: str, links: Mapping[str, str]) -> tuple[Found, str | None]:
    """Tell whether a link is attached to a bridge; one that is gone meanwhile cannot be, and hinders nothing."""
    words = line.split()
    now = links.get(words[3], "").split()
    master = now[now.index("master") + 1] if "master" in now else None
    if master == words[5]:
        return Found.ALL, None
    return (Found.NOTHING, None) if master is None else (Found.ANOTHER, f"it is attached to {master}")


def _object_of_line(name: str, line: str, found: Found, reason: str | None) -> Object:
    words = line.split()
    kind, what, table = Kind.LINK, words[3], None
    family = Family.IPV6 if ".ipv6." in name else Family.IPV4 if ".ipv4." in name else None
    if words[0] == "addr":
        kind, what, family = Kind.ADDRESS, words[2], Family.IPV6 if ":" in words[2] else Family.IPV4
    elif words[0] == "route":
        kind, what, table = Kind.ROUTE, words[3], words[words.index("table") + 1]
    elif words[0] == "rule":
        kind, what = Kind.POLICY_RULE, words[words.index("pref") + 1]
        table = words[words.index("lookup") + 1] if "lookup" in words else None
    elif words[0] == "fou":
        kind, family = Kind.FOU_PORT, Family.IPV6 if words[-1] == "-6" else Family.IPV4
    return Object((name, line), kind, what, found, family, table=table, text=line, reason=reason)


def of_services(wanted: Mapping[str, tuple[str, ...]], current: Iterable[VirtualService]) -> Comparison:
    """Compare virtual services of IPVS; the lines are for `ipvsadm -R`.

    One with a part of its destinations gets the others.
    """
    here = {service.name: tuple(service.lines()) for service in current}
    objects, lines = [], []
    for name, text in wanted.items():
        # In the words that this program finds, whoever wrote them.
        service = _parsed(text)
        first, *rest = service.lines()
        found, reason, missing = Found.NOTHING, None, [first, *rest]
        if service.name in here:
            now, *destinations = here[service.name]
            missing = [line for line in rest if line not in destinations]
            found = Found.PART if missing else Found.ALL
            if now != first or set(destinations) - set(rest):
                found, reason = Found.ANOTHER, f"there is: {'; '.join(here[service.name])}"
        where = f"fwmark {service.mark}" if service.mark else f"{service.protocol} {name.split()[1]}"
        objects.append(Object((name,), Kind.IPVS_SERVICE, where, found, service.family, reason=reason))
        lines += missing if found in {Found.NOTHING, Found.PART} else []
    return Comparison(tuple(objects), tuple(lines))


def _parsed(lines: tuple[str, ...]) -> VirtualService:
    try:
        return VirtualService.parse(lines)
    except (ValueError, KeyError, IndexError, StopIteration) as error:
        raise BackupError(f"the backup cannot be understood: {lines[0]}") from error


def services_to_make(
    lines: Iterable[str], wanted: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[VirtualService, bool]]:
    """Yield each service of which a line is missing, with the missing destinations, and whether it is to be made."""
    missing: dict[str, list[str]] = {}
    for line in lines:
        missing.setdefault(service_of(line), []).append(line)
    for name, found in missing.items():
        is_new = found[0].startswith("-A ")
        first = next(VirtualService.parse(text).lines() for text in wanted.values() if service_of(text[0]) == name)
        head = found[0] if is_new else next(iter(first))
        yield VirtualService.parse((head, *(line for line in found if line.startswith("-a ")))), is_new
