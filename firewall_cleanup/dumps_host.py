"""Files that describe a node beside its rules and sets: `ip -j`, `ipvsadm -Sn` and `nft -j list ruleset`.

They may come from anybody: a value of another type than it should have makes its entry a problem, never a crash.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from .errors import DumpError
from .model import Address, Family, FouPort, IpvsService, Link, NativeTable, PolicyRule, Route

__all__ = [
    "PROTOCOLS_OF_ROUTES",
    "SCOPES",
    "TYPES",
    "Native",
    "Problem",
    "read_addresses",
    "read_fou_ports",
    "read_ipvsadm",
    "read_links",
    "read_native",
    "read_policy_rules",
    "read_routes",
    "word_of",
    "word_or_none",
]

Problem = Callable[[DumpError], None]

# Names of iproute2's rt_tables, kube-router's among them, and of rt_protos, rt_scopes and route types.
_TABLES = {"local": 255, "main": 254, "default": 253, "kube-router": 77, "kube-router-dsr": 78, "external_ip": 79}
PROTOCOLS_OF_ROUTES = {
    "unspec": 0, "redirect": 1, "kernel": 2, "boot": 3, "static": 4, "ra": 9, "zebra": 11, "bird": 12,
    "dhcp": 16, "mrouted": 17, "bgp": 186,
}  # fmt: skip
SCOPES = {"global": 0, "universe": 0, "site": 200, "link": 253, "host": 254, "nowhere": 255}
TYPES = {
    "unicast": 1, "local": 2, "broadcast": 3, "anycast": 4, "multicast": 5, "blackhole": 6, "unreachable": 7,
    "prohibit": 8,
}  # fmt: skip
_RULE_KEYS = frozenset({"priority", "src", "srclen", "table", "fwmark", "protocol"})
# What makes a route another one than a component adds.
_MORE_OF_ROUTES = frozenset({"nexthops", "via", "encap", "nhid", "tos"})
_FAMILIES = {"inet": Family.IPV4, "inet6": Family.IPV6}
# Of other kinds `remote` and `encap` can be anything, as the word "group" of gre.
_TUNNELS = frozenset({"ipip", "ip6tnl"})
_UNKNOWN = -1


def _loaded(text: str, source: str, problem: Problem) -> Any:
    """Return what JSON says; None, and a problem, if it is none or says null, which no tool prints."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        problem(DumpError(f"not JSON: {error.msg}", source=source, line=error.lineno, whole=True))
    except (ValueError, RecursionError) as error:  # a number or a nesting beyond all measure
        problem(DumpError(f"not JSON: {error}", source=source, line=1, whole=True))
    else:
        if found is None:
            problem(DumpError("null says nothing", source=source, line=1, whole=True))
        return found
    return None


def _objects(text: str, source: str, problem: Problem) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the objects of a JSON array with their places in it; an empty file is an empty array."""
    if not text.strip():
        return
    items = _loaded(text, source, problem)
    if not isinstance(items, list):
        if items is not None:
            problem(DumpError("expected a JSON array", source=source, line=1, whole=True))
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
        except (KeyError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            problem(DumpError(f"entry {place}: {type(error).__name__} {error}", source=source, line=1))


def word_of(value: object) -> str:
    """Return a value that is text. Raises TypeError, or ValueError for what no file or terminal can have."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, not {value!r}")
    if "\0" in value:
        raise ValueError(f"{value!r} is no text")
    value.encode("utf-8", "surrogateescape")  # JSON can say half a character
    return value


def word_or_none(value: object) -> str | None:
    """Return a value that is text, or None. Raises as `word_of` does."""
    return None if value is None else word_of(value)


def _number(names: Mapping[str, int], word: object) -> int:
    text = str(word)
    return int(text) if text.isdecimal() else names.get(text, _UNKNOWN)


def _network(value: object, family: Family) -> str:
    text = word_of(value)
    if text in {"default", "all"}:
        text = "0.0.0.0/0" if family is Family.IPV4 else "::/0"
    return ipaddress.ip_network(text, strict=False).with_prefixlen


def _address(value: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(word_of(value))
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise ValueError(f"{value!r}: an address with a link is none")  # anything can stand there
    return address


def _gateway(value: object, family: Family) -> str | None:
    if value is None:
        return None
    address = _address(value)
    if address.max_prefixlen != family.bits:
        raise ValueError(f"{value!r}: a gateway of the other family")
    return str(address)


def _source(item: Mapping[str, Any], family: Family) -> str | None:
    """Return the source of a policy rule; the kernel keeps its host bits."""
    address, _, length = word_of(item["src"]).partition("/")
    if address == "all":
        return None
    return f"{_address(address)}/{int(length or item.get('srclen', family.bits))}"


def _mark(text: str) -> int:
    number = int(text, 0)
    if not 0 <= number <= 0xFFFFFFFF:
        raise ValueError("a mark that no packet can have")
    return number


def read_policy_rules(text: str, family: Family, *, source: str, problem: Problem) -> tuple[PolicyRule, ...]:
    """Return the rules that `ip -j rule` printed."""

    def read(item: Mapping[str, Any]) -> PolicyRule:
        mark, _, mask = str(item.get("fwmark", "")).partition("/")
        return PolicyRule(
            family=family,
            table=_number(_TABLES, item.get("table", "")),
            priority=int(item["priority"]),
            source=_source(item, family),
            mark=_mark(mark) if mark else None,
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
            protocol=_number(PROTOCOLS_OF_ROUTES, item.get("protocol", "boot")),
            scope=_number(SCOPES, item.get("scope", "global")),
            type=0 if item.keys() & _MORE_OF_ROUTES else _number(TYPES, item.get("type", "unicast")),
            gateway=_gateway(item.get("gateway"), family),
            device=word_or_none(item.get("dev")),
            metric=int(item.get("metric", 0)),
        )

    return tuple(_each(text, source, problem, read))


def read_links(text: str, *, source: str, problem: Problem) -> tuple[Link, ...]:
    """Return the links that `ip -j -d link` printed."""

    def read(item: Mapping[str, Any]) -> Link:
        info = item.get("linkinfo") or {}
        kind = word_of(info.get("info_kind", ""))
        data = (info.get("info_data") or {}) if kind in _TUNNELS else {}
        remote = data.get("remote")
        return Link(
            name=word_of(item["ifname"]),
            kind=kind,
            index=int(item.get("ifindex", 0)),
            master=word_or_none(item.get("master")),
            remote=None if remote in {None, "any"} else str(_address(remote)),
            encap_port=int((data.get("encap") or {}).get("dport", 0)),
        )

    return tuple(_each(text, source, problem, read))


def read_addresses(text: str, *, source: str, problem: Problem) -> tuple[Address, ...]:
    """Return the addresses that `ip -j addr` printed."""

    def read(item: Mapping[str, Any]) -> list[Address]:
        name = word_of(item["ifname"])
        return [
            Address(_FAMILIES[a["family"]], name, f"{_address(a['local'])}/{int(a['prefixlen'])}")
            for a in item.get("addr_info", ())
            if a.get("family") in _FAMILIES and "local" in a
        ]

    return tuple(address for found in _each(text, source, problem, read) for address in found)


def read_fou_ports(text: str, *, source: str, problem: Problem) -> tuple[FouPort, ...]:
    """Return the ports that `ip -j fou show` printed."""

    def read(item: Mapping[str, Any]) -> FouPort:
        return FouPort(_FAMILIES[item.get("family", "inet")], int(item["port"]), 2 if "gue" in item else 1)

    return tuple(_each(text, source, problem, read))


@attrs.frozen
class Native:
    """What `nft -j list ruleset` printed: all tables, those of iptables among them.

    `with_chains` are those of which a chain or a map was printed; `mapped` has the verdict maps of each by the chains
    to which they send packets.
    """

    tables: tuple[NativeTable, ...] = ()
    with_chains: tuple[NativeTable, ...] = ()
    mapped: Mapping[NativeTable, Mapping[str, str]] = attrs.field(factory=dict)


def read_native(text: str, *, source: str, problem: Problem) -> Native:
    """Return the tables of nf_tables that `nft -j list ruleset` printed."""
    found = _loaded(text, source, problem) if text.strip() else {"nftables": []}
    if found is None:
        return Native()
    try:
        entries = found["nftables"]
        tables = [_native(entry["table"], "name") for entry in entries if "table" in entry]
        inside = {
            _native(entry[kind], "table"): None for entry in entries for kind in ("chain", "map") if kind in entry
        }
        mapped: dict[NativeTable, dict[str, str]] = {}
        for one in (entry["map"] for entry in entries if "map" in entry):
            into = mapped.setdefault(_native(one, "table"), {})
            into.update(dict.fromkeys(_targets(one.get("elem", [])), word_of(one["name"])))
        return Native(tuple(tables), tuple(inside), mapped)
    except (KeyError, TypeError, AttributeError, ValueError):
        problem(DumpError("not what nft -j prints", source=source, line=1, whole=True))
    return Native()


def _native(item: Mapping[str, Any], name: str) -> NativeTable:
    return NativeTable(word_of(item["family"]), word_of(item[name]))


def _targets(elements: Any) -> Iterator[str]:
    """Yield the chains in the verdicts of a map's elements, each a pair of a key and a verdict."""
    for element in elements:
        verdict = element[-1] if isinstance(element, list) and element else None
        if isinstance(verdict, dict):
            yield from (word_of(verdict[way]["target"]) for way in ("jump", "goto") if way in verdict)


_SERVICE = re.compile(r"-[Aa]\s+(?:-([tu])|--(sctp)-service|-(f))\s+(\S+)(\s+-6)?(.*)")
_DESTINATION = re.compile(r"\s-r\s+(\S+)")


def read_ipvsadm(text: str, *, source: str, problem: Problem) -> tuple[IpvsService, ...]:
    """Return the virtual services that `ipvsadm -Sn` printed."""
    services: dict[IpvsService, set[str]] = {}
    first_bad: DumpError | None = None
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        try:
            service, destination = _ipvs_line(line)
        except (ValueError, TypeError):
            error = DumpError("not a line of ipvsadm -Sn", source=source, line=number)
            first_bad = first_bad or error
            problem(error)
            continue
        into = services.setdefault(service, set())
        if destination is not None:
            into.add(destination)
    if first_bad is not None and not services:
        first_bad.whole = True  # it is something else
    return tuple(attrs.evolve(s, destinations=frozenset(found)) for s, found in services.items())


def _ipvs_line(line: str) -> tuple[IpvsService, str | None]:
    found = _SERVICE.fullmatch(line)
    if found is None:
        raise ValueError(line)
    short, sctp, mark, where, six, rest = found.groups()
    end = None
    if line.startswith("-a"):
        destination = _DESTINATION.search(rest)
        if destination is None:
            raise ValueError(line)
        host, port = _end(destination[1])
        end = f"[{host}]:{port}" if host.version == 6 else f"{host}:{port}"
    if mark:
        return IpvsService(Family.IPV6 if six else Family.IPV4, mark=int(where)), end
    address, port = _end(where)
    protocol = sctp or {"t": "tcp", "u": "udp"}[short]
    family = Family.IPV4 if address.version == 4 else Family.IPV6
    return IpvsService(family, protocol, str(address), port), end


def _end(text: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    host, _, port = text.rpartition(":")
    return _address(host.strip("[]")), int(port)
