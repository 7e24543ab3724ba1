"""A snapshot as the files that the standard tools would print, as far as a plan needs them. Pure.

What a reader of this package makes of a file is what the snapshot had; what the format of a tool has no place for is
in the manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .bundle import MANIFEST, WRITTEN, Manifest, RuleNote
from .dumps import IPTABLES_FILES
from .dumps_host import PROTOCOLS_OF_ROUTES, SCOPES, TYPES
from .model import (
    Address,
    Backend,
    Family,
    FouPort,
    IpSet,
    IpvsService,
    Link,
    NativeTable,
    PolicyRule,
    Route,
    Rule,
    Snapshot,
    Table,
    TableKey,
)
from .rules import quote, render

__all__ = ["bundle_files", "rule_notes", "service_lines", "set_lines"]

_MAIN = 254
_NFT_FAMILIES = {Family.IPV4: "ip", Family.IPV6: "ip6"}
_WORDS = {Family.IPV4: "inet", Family.IPV6: "inet6"}
_HEAD = f"{WRITTEN}, not for iptables-restore: <…> is a part of a rule that it does not decode.\n"


def bundle_files(
    snapshot: Snapshot,
    manifest: Manifest,
    about: Mapping[str, Any],
    *,
    sets: str | None = None,
    services: Iterable[str] | None = None,
) -> dict[str, str]:
    """Return the files of a node by name, the manifest last.

    Args:
        snapshot: what was read, of every rule its inside included.
        manifest: what is to be said beside; `files` is filled in here.
        about: what else the manifest is to have.
        sets: what `ipset save` printed, if it did, instead of what the snapshot has.
        services: the lines of `ipvsadm -Sn`, if they are known, instead of what the snapshot has.

    A file whose whole subject could not be read is left out.

    """
    gaps = [gap for gap in snapshot.gaps if gap.table is None]

    def unread(subsystem: str, family: Family | None = None, backend: Backend | None = None) -> bool:
        found = (gap for gap in gaps if gap.subsystem == subsystem)
        return any(gap.family in {None, family} and gap.backend in {None, backend} for gap in found)

    files: dict[str, str] = {}
    for name, (family, backend) in IPTABLES_FILES.items():
        if backend is not None and not unread("iptables", family, backend):
            files[name] = _iptables_text(snapshot, family, backend)
    if not all(unread("ipset", family) for family in Family):
        files["ipset-save"] = _text(set_lines(snapshot.sets.values())) if sets is None else sets
    if snapshot.native_tables or not all(unread("iptables", family, Backend.NFT) for family in Family):
        files["nft-ruleset.json"] = _native_text(snapshot)
    if not unread("routing"):
        files["ip-link.json"] = _json(map(_link, snapshot.links))
        files["ip-addr.json"] = _json(map(_address, snapshot.addresses))
        for number, family in (("", Family.IPV4), ("6", Family.IPV6)):
            files[f"ip{number}-rule.json"] = _json(_rule(r) for r in snapshot.policy_rules if r.family is family)
            files[f"ip{number}-route.json"] = _json(_route(r) for r in snapshot.routes if r.family is family)
    if not unread("routing") and not unread("fou"):
        files["ip-fou.json"] = _json(map(_fou_port, snapshot.fou_ports))
    if not unread("ipvs"):
        files["ipvsadm-save"] = _text(service_lines(snapshot.services) if services is None else services)
    notes = tuple(rule_notes(snapshot))
    said = Manifest(
        files=frozenset(files),
        families=manifest.families,
        gaps=snapshot.gaps,
        references={name: item.references for name, item in snapshot.sets.items() if item.references},
        routes=manifest.routes,
        left_out=manifest.left_out,
        rules=notes,
        counts={(note.key, note.chain): len(snapshot.tables[note.key].rules[note.chain]) for note in notes},
        traces=manifest.traces,
    )
    files[MANIFEST] = said.to_text(about) + "\n"
    return files


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _json(items: Iterable[Mapping[str, Any]]) -> str:
    """Return an array with each of its objects on a line."""
    lines = ",\n ".join(json.dumps(item) for item in items)
    return f"[{lines}]\n"


def _iptables_text(snapshot: Snapshot, family: Family, backend: Backend) -> str:
    keys = [key for key in snapshot.tables if key.family is family and key.backend is backend]
    tables = (snapshot.tables[key] for key in sorted(keys, key=TableKey.sort_key))
    return _HEAD + _text(line for table in tables for line in _table_lines(table))


def _table_lines(table: Table) -> Iterator[str]:
    yield f"*{table.key.name}"
    for name, policy in table.builtin.items():
        yield f":{quote(name)} {policy.verdict} [{policy.packets}:{policy.bytes}]"
    yield from (f":{quote(name)} - [0:0]" for name in table.chains)
    for rules in table.rules.values():
        yield from (f"[{rule.packets}:{rule.bytes}] {_bare(rule)}" for rule in rules)
    yield "COMMIT"


def _bare(rule: Rule) -> str:
    """Return the rule as it was decoded, whatever iptables says of it: a reader shall not understand more of it."""
    return render(Rule(rule.chain, rule.matches, rule.target, rule.opaque)) if rule.opaque else render(rule)


def rule_notes(snapshot: Snapshot) -> Iterator[RuleNote]:
    """Yield what the text of rules that were not understood does not say."""
    for key in sorted(snapshot.tables, key=TableKey.sort_key):
        for chain, rules in snapshot.tables[key].rules.items():
            for i, rule in enumerate(rules):
                if rule.opaque and (rule.text is not None or rule.sets):
                    yield RuleNote(key, chain, i, rule.text, rule.sets)


def set_lines(sets: Iterable[IpSet]) -> Iterator[str]:
    """Yield the lines of `ipset save` that say what a set is, and those of the members that were read.

    Those that hold others come last, or they could not name them.
    """
    for item in sorted(sets, key=lambda item: item.type == "list:set"):
        family = f" family {_WORDS[item.family]}" if item.family and item.type.startswith("hash:") else ""
        range_ = " range 0-65535" if item.type == "bitmap:port" else ""
        yield f"create {quote(item.name)} {item.type}{family}{range_}"
        yield from (f"add {quote(item.name)} {quote(member)}" for member in item.members)


def service_lines(services: Iterable[IpvsService]) -> Iterator[str]:
    """Yield the lines of `ipvsadm -Sn` that say which services there are, with their destinations."""
    flags = {"tcp": "-t", "udp": "-u", "sctp": "--sctp-service"}
    for service in services:
        name = f"-f {service.mark}" + ("" if service.family is Family.IPV4 else " -6")
        if not service.mark:
            name = f"{flags.get(service.protocol, '-t')} {service.name.partition(' ')[2]}"
        yield f"-A {name}"
        yield from (f"-a {name} -r {end}" for end in sorted(service.destinations))


def _native_text(snapshot: Snapshot) -> str:
    iptables = {key: table for key, table in snapshot.tables.items() if key.backend is Backend.NFT}
    own = (NativeTable(_NFT_FAMILIES[key.family], key.name) for key in sorted(iptables, key=TableKey.sort_key))
    entries: list[dict[str, Any]] = [
        {"table": {"family": table.family, "name": table.name}} for table in (*own, *snapshot.native_tables)
    ]
    for key, table in iptables.items():
        maps: dict[str, list[Any]] = {}
        for chain, name in table.mapped.items():
            maps.setdefault(name, []).append([None, {"jump": {"target": chain}}])
        where = {"family": _NFT_FAMILIES[key.family], "table": key.name}
        entries += [{"map": {**where, "name": name, "map": "verdict", "elem": found}} for name, found in maps.items()]
    lines = ",\n ".join(json.dumps(entry) for entry in entries)
    return f'{{"nftables": [{lines}]}}\n'


def _link(link: Link) -> dict[str, Any]:
    data: dict[str, Any] = {} if link.remote is None else {"remote": link.remote}
    if link.encap_port:
        data["encap"] = {"dport": link.encap_port}
    result: dict[str, Any] = {"ifindex": link.index, "ifname": link.name}
    if link.master is not None:
        result["master"] = link.master
    if link.kind:
        result["linkinfo"] = {"info_kind": link.kind, "info_data": data}
    return result


def _address(address: Address) -> dict[str, Any]:
    local, _, length = address.address.partition("/")
    found = {"family": _WORDS[address.family], "local": local, "prefixlen": int(length)}
    return {"ifname": address.link, "addr_info": [found]}


def _rule(rule: PolicyRule) -> dict[str, Any]:
    source, _, length = (rule.source or "all").partition("/")
    result: dict[str, Any] = {"priority": rule.priority, "src": source}
    if length:
        result["srclen"] = int(length)
    if rule.mark is not None:
        result["fwmark"] = f"{rule.mark:#x}"
    result["table"] = str(rule.table)
    if not rule.plain:
        result["and_more"] = True  # it selects by something else, or does something else
    return result


def _route(route: Route) -> dict[str, Any]:
    result: dict[str, Any] = {"dst": route.destination, "table": str(route.table)}
    if route.type == 0:
        result["nexthops"] = []
    else:
        result["type"] = _named(TYPES, route.type)
    if route.gateway is not None:
        result["gateway"] = route.gateway
    if route.device is not None:
        result["dev"] = route.device
    result["protocol"] = _named(PROTOCOLS_OF_ROUTES, route.protocol)
    result["scope"] = _named(SCOPES, route.scope)
    return {**result, "metric": route.metric} if route.metric else result


def _named(names: Mapping[str, int], number: int) -> str:
    return next((name for name, known in names.items() if known == number), str(number))


def _fou_port(port: FouPort) -> dict[str, Any]:
    result: dict[str, Any] = {"port": port.port, "family": _WORDS[port.family]}
    return {**result, "gue": None} if port.kind == 2 else result
