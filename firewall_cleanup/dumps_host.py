"""Files that describe a node beside its rules and sets: `ip -j`, `ipvsadm -Sn` and `nft -j list ruleset`."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from .errors import DumpError
from .model import Address, Family, IpvsService, Link, NativeTable, PolicyRule, Route

__all__ = [
    "read_addresses",
    "read_ipvsadm",
    "read_links",
    "read_native_tables",
    "read_policy_rules",
    "read_routes",
]

Problem = Callable[[DumpError], None]

# Names of iproute2's rt_tables, kube-router's among them, and of rt_protos, rt_scopes and route types.
_TABLES = {"local": 255, "main": 254, "default": 253, "kube-router": 77, "kube-router-dsr": 78, "external_ip": 79}
_PROTOCOLS = {
    "unspec": 0, "redirect": 1, "kernel": 2, "boot": 3, "static": 4, "ra": 9, "zebra": 11, "bird": 12,
    "dhcp": 16, "mrouted": 17, "bgp": 186,
}  # fmt: skip
_SCOPES = {"global": 0, "universe": 0, "site": 200, "link": 253, "host": 254, "nowhere": 255}
_TYPES = {
    "unicast": 1, "local": 2, "broadcast": 3, "anycast": 4, "multicast": 5, "blackhole": 6, "unreachable": 7,
    "prohibit": 8,
}  # fmt: skip
_RULE_KEYS = frozenset({"priority", "src", "srclen", "table", "fwmark", "protocol"})
_SIMPLE_ROUTE = frozenset({"nexthops", "via", "encap", "nhid"})
_FAMILIES = {"inet": Family.IPV4, "inet6": Family.IPV6}
_UNKNOWN = -1


def _objects(text: str, source: str, problem: Problem) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the objects of a JSON array with their places in it; an empty file is an empty array."""
    if not text.strip():
        return
    try:
        items = json.loads(text)
    except json.JSONDecodeError as error:
        problem(DumpError(f"not JSON: {error.msg}", source=source, line=error.lineno))
        return
    if not isinstance(items, list):
        problem(DumpError("expected a JSON array", source=source, line=1))
        return
    for place, item in enumerate(items, 1):
        if isinstance(item, dict):
            if item:  # iproute2 prints empty objects for what it filtered out
                yield place, item
        else:
            problem(DumpError(f"entry {place}: expected an object", source=source, line=1))


def _each(text: str, source: str, problem: Problem, read: Callable[[Mapping[str, Any]], Any]) -> Iterator[Any]:
    for place, item in _objects(text, source, problem):
        try:
            yield read(item)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            problem(DumpError(f"entry {place}: {type(error).__name__} {error}", source=source, line=1))


def _number(names: Mapping[str, int], word: object) -> int:
    text = str(word)
    return int(text) if text.isdigit() else names.get(text, _UNKNOWN)


def _network(text: str, family: Family, length: object = None) -> str:
    if text in {"default", "all"}:
        text, length = ("0.0.0.0" if family is Family.IPV4 else "::"), 0  # noqa: S104 - the default route
    if length is not None:
        text = f"{text}/{length}"
    return ipaddress.ip_network(text, strict=False).with_prefixlen


def read_policy_rules(text: str, family: Family, *, source: str, problem: Problem) -> tuple[PolicyRule, ...]:
    """Return the rules that `ip -j rule` printed."""

    def read(item: Mapping[str, Any]) -> PolicyRule:
        mark, _, mask = str(item.get("fwmark", "")).partition("/")
        return PolicyRule(
            family=family,
            table=_number(_TABLES, item.get("table", "")),
            priority=int(item["priority"]),
            source=None if item["src"] == "all" else _network(item["src"], family, item.get("srclen", family.bits)),
            mark=int(mark, 0) if mark else None,
            plain=item.keys() <= _RULE_KEYS and "table" in item and int(mask or "0xffffffff", 0) == 0xFFFFFFFF,
        )

    return tuple(_each(text, source, problem, read))


def read_routes(text: str, family: Family, *, source: str, problem: Problem) -> tuple[Route, ...]:
    """Return the routes that `ip -j route show table all` printed."""

    def read(item: Mapping[str, Any]) -> Route:
        return Route(
            family=family,
            table=_number(_TABLES, item.get("table", "main")),
            destination=_network(item["dst"], family),
            protocol=_number(_PROTOCOLS, item.get("protocol", "boot")),
            scope=_number(_SCOPES, item.get("scope", "global")),
            type=0 if item.keys() & _SIMPLE_ROUTE else _TYPES.get(item.get("type", "unicast"), _UNKNOWN),
            gateway=item.get("gateway"),
            device=item.get("dev"),
            metric=int(item.get("metric", 0)),
        )

    return tuple(_each(text, source, problem, read))


def read_links(text: str, *, source: str, problem: Problem) -> tuple[Link, ...]:
    """Return the links that `ip -j -d link` printed."""

    def read(item: Mapping[str, Any]) -> Link:
        info = item.get("linkinfo", {})
        data = info.get("info_data", {})
        remote = data.get("remote")
        return Link(
            name=item["ifname"],
            kind=info.get("info_kind", ""),
            index=int(item.get("ifindex", 0)),
            master=item.get("master"),
            remote=None if remote in {None, "any"} else str(ipaddress.ip_address(remote)),
            encap_port=int(data.get("encap", {}).get("dport", 0)),
        )

    return tuple(_each(text, source, problem, read))


def read_addresses(text: str, *, source: str, problem: Problem) -> tuple[Address, ...]:
    """Return the addresses that `ip -j addr` printed."""

    def read(item: Mapping[str, Any]) -> list[Address]:
        return [
            Address(_FAMILIES[a["family"]], item["ifname"], f"{ipaddress.ip_address(a['local'])}/{a['prefixlen']}")
            for a in item.get("addr_info", ())
            if a.get("family") in _FAMILIES and "local" in a
        ]

    return tuple(address for found in _each(text, source, problem, read) for address in found)


def read_native_tables(text: str, *, source: str, problem: Problem) -> tuple[NativeTable, ...]:
    """Return all tables that `nft -j list ruleset` printed, those of iptables among them."""
    if not text.strip():
        return ()
    try:
        entries = json.loads(text)["nftables"]
        tables = [entry["table"] for entry in entries if "table" in entry]
        return tuple(NativeTable(table["family"], table["name"]) for table in tables)
    except json.JSONDecodeError as error:
        problem(DumpError(f"not JSON: {error.msg}", source=source, line=error.lineno))
    except (KeyError, TypeError):
        problem(DumpError("not what nft -j prints", source=source, line=1))
    return ()


_SERVICE = re.compile(r"-[Aa]\s+(?:-([tu])|--(sctp)-service|-(f))\s+(\S+)(\s+-6)?(.*)")
_DESTINATION = re.compile(r"\s-r\s+(\S+)")


def read_ipvsadm(text: str, *, source: str, problem: Problem) -> tuple[IpvsService, ...]:
    """Return the virtual services that `ipvsadm -Sn` printed."""
    services: dict[IpvsService, set[str]] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        try:
            service, destination = _ipvs_line(line)
        except (ValueError, TypeError):
            problem(DumpError("not a line of ipvsadm -Sn", source=source, line=number))
            continue
        into = services.setdefault(service, set())
        if destination is not None:
            into.add(destination)
    return tuple(attrs.evolve(s, destinations=frozenset(found)) for s, found in services.items())


def _ipvs_line(line: str) -> tuple[IpvsService, str | None]:
    found = _SERVICE.fullmatch(line)
    if found is None:
        raise ValueError(line)
    short, sctp, mark, where, six, rest = found.groups()
    destination = _DESTINATION.search(rest)
    if line.startswith("-a") and destination is None:
        raise ValueError(line)
    end = destination[1] if destination and line.startswith("-a") else None
    if mark:
        return IpvsService(Family.IPV6 if six else Family.IPV4, mark=int(where)), end
    host, _, port = where.rpartition(":")
    address = ipaddress.ip_address(host.strip("[]"))
    protocol = sctp or {"t": "tcp", "u": "udp"}[short]
    family = Family.IPV4 if address.version == 4 else Family.IPV6
    return IpvsService(family, protocol, str(address), int(port)), end
