"""Links, addresses, routes and policy rules as lines for `ip -batch`, from what `ip -json` prints.

The same line for the same object: lines are compared to find out whether an object is there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ..model import Address, Family, FouPort, Link, PolicyRule, Route

__all__ = ["IpState", "identity", "in_order", "is_line", "same_line"]

_Object = Mapping[str, Any]

_KERNEL, _MAIN = "2", 254
_FOREVER = 2**32 - 1
_TYPES = {
    "1": "unicast", "2": "local", "3": "broadcast", "4": "anycast", "5": "multicast", "6": "blackhole",
    "7": "unreachable", "8": "prohibit", "9": "throw",
}  # fmt: skip
_NUMBERS = {name: int(number) for number, name in _TYPES.items()}
# What a bridge is made with: a kernel may lack an option, and then takes not even this value.
_BRIDGE = {
    "stp_state": 0, "priority": 32768, "forward_delay": 1500, "hello_time": 200, "max_age": 2000,
    "ageing_time": 30000, "vlan_filtering": 0, "mcast_snooping": 1, "mcast_querier": 0, "nf_call_iptables": 0,
    "nf_call_ip6tables": 0, "nf_call_arptables": 0,
}  # fmt: skip
_RULE_KEYS = frozenset({
    "not", "priority", "src", "srclen", "dst", "dstlen", "fwmark", "fwmask", "iif", "oif", "table", "protocol"
})  # fmt: skip
# The lines that are made here, as far as they are taken apart again.
_LINE = re.compile(
    r"link add name \S+ (\S.*)?type \S+.*|link set dev \S+ (up|master \S+)|addr add \S+ (\S.*)?dev \S+.*"
    r"|route add \S+ \S+ table \d+.*|rule add (not )?pref \d+ .*|fou add port \d+ \S+.*"
)
_TUNNEL_MODES = {"any": "any", "ipip6": "ipip6", "ip4ip6": "ipip6", "ip6ip6": "ip6ip6"}


class IpState:
    """What `ip` printed: `links` of `-d -j addr show`, `routes` and `rules` (with numbers) by family, FOU ports."""

    def __init__(
        self,
        links: Iterable[_Object] = (),
        routes: Mapping[Family, Iterable[_Object]] | None = None,
        rules: Mapping[Family, Iterable[_Object]] | None = None,
        ports: Iterable[FouPort] = (),
    ) -> None:
        self.links = {link["ifname"]: link for link in links}
        self.routes = {family: list(found) for family, found in (routes or {}).items()}
        self.rules = {family: list(found) for family, found in (rules or {}).items()}
        self.ports = tuple(ports)

    def lines(self) -> dict[str, list[str]]:
        """Return all lines by the name of their file."""
        result = {
            "links.ip": [line for link in self.links.values() for line in _link_lines(link)],
            "addresses.ip": [line for link in self.links.values() for line in _address_lines(link)],
            "fou.ip": [_fou_line(port) for port in self.ports],
        }
        for family in Family:
            routes, rules = self.routes.get(family, ()), self.rules.get(family, ())
            result[f"routes.{family.value}.ip"] = [_route_line(route, family) for route in routes]
            result[f"rules.{family.value}.ip"] = [_rule_line(rule, family) for rule in rules]
        return result

    def of(self, items: Iterable[object]) -> dict[str, tuple[str, ...]]:
        """Return the lines of some objects, and of what goes with a link or an address, by the name of their file.

        Raises LookupError if one is not there.
        """
        result: dict[str, dict[str, None]] = {}

        def add(name: str, lines: Iterable[str]) -> None:
            result.setdefault(name, {}).update(dict.fromkeys(lines))

        items = tuple(items)
        gone = [item.name for item in items if isinstance(item, Link)]
        sources: set[str] = set()
        for item in items:
            if isinstance(item, Link):
                link = self.links[item.name]
                add("links.ip", _link_lines(link))
                add("addresses.ip", _address_lines(link))
                add("links.ip", (line for other in self.links.values() for line in _port_lines(other, item.name)))
            elif isinstance(item, Address):
                infos = self.links[item.link].get("addr_info", ())
                found = [info for info in infos if f"{info['local']}/{info['prefixlen']}" == item.address]
                sources.add(item.address.partition("/")[0])
                add("addresses.ip", [f"addr add {_address_words(found[0], item.link)}"])
            elif isinstance(item, Route):
                found = [r for r in self.routes[item.family] if _is_route(r, item)]
                add(f"routes.{item.family.value}.ip", [_route_line(found[0], item.family)])
            elif isinstance(item, PolicyRule):
                found = [r for r in self.rules[item.family] if _is_rule(r, item)]
                add(f"rules.{item.family.value}.ip", [_rule_line(found[0], item.family)])
            elif isinstance(item, FouPort):
                add("fou.ip", [_fou_line(item)])
        for family, routes in self.routes.items():
            with_them = [r for r in routes if r.get("protocol") != _KERNEL and _goes_with(r, gone, sources)]
            add(f"routes.{family.value}.ip", (_route_line(route, family) for route in with_them))
        return {name: tuple(in_order(lines)) for name, lines in result.items() if lines}


def in_order(lines: Iterable[str]) -> list[str]:
    """Put routes to gateways behind those that lead to them, and ports behind their bridge."""
    return sorted(lines, key=lambda line: (line.startswith("link set "), " via " in line or " nexthop " in line))


def _goes_with(route: _Object, links: Collection[str], sources: Collection[str]) -> bool:
    hops = (route, *route.get("nexthops", ()))
    return any(hop.get("dev") in links for hop in hops) or route.get("prefsrc") in sources


def _is_route(route: _Object, wanted: Route) -> bool:
    kind = _TYPES.get(str(route.get("type", "1")), "unicast")
    return (
        int(route.get("table", _MAIN)) == wanted.table
        and _destination(route["dst"], wanted.family) == wanted.destination
        and int(route.get("protocol", 3)) == wanted.protocol
        and wanted.type in {0, _NUMBERS[kind]}
        and route.get("metric", 0) == wanted.metric
        and (wanted.type == 0 or (route.get("gateway"), route.get("dev")) == (wanted.gateway, wanted.device))
    )


def _is_rule(rule: _Object, wanted: PolicyRule) -> bool:
    source = None if rule["src"] == "all" else _prefix(rule["src"], rule.get("srclen"), wanted.family)
    mark = int(rule["fwmark"], 16) if "fwmark" in rule else None
    return (int(rule.get("table", -1)), rule["priority"], source, mark) == (
        wanted.table,
        wanted.priority,
        wanted.source,
        wanted.mark,
    )


def _link_lines(link: _Object) -> Iterator[str]:
    info = link.get("linkinfo") or {}
    kind, flags, data = info.get("info_kind", ""), link.get("flags", ()), info.get("info_data") or {}
    if not kind:
        return
    words = ["link add name", link["ifname"], f"mtu {link['mtu']}"]
    words += [f"txqueuelen {link['txqlen']}"] if "txqlen" in link else []
    if kind in {"dummy", "bridge"}:
        # A bridge takes the address of a port; one that is given to it would stay, and take its carrier away.
        words += [f"address {link['address']}"] if kind == "dummy" and link.get("address") else []
        words.append("arp off" if "NOARP" in flags else "arp on")
        words.append("multicast on" if "MULTICAST" in flags else "multicast off")
    words += [f"master {link['master']}"] if link.get("master") else []
    words.append(f"type {kind}")
    if kind == "bridge":
        words += [f"{option} {data[option]}" for option, usual in _BRIDGE.items() if data.get(option, usual) != usual]
    elif kind in {"ipip", "ip6tnl"}:
        words += _tunnel_words(kind, data)
    yield " ".join(words)
    # Not in one with the line above: a bridge that begins its life up has no carrier, and no link-local address.
    if "UP" in flags:
        yield f"link set dev {link['ifname']} up"


def _port_lines(link: _Object, bridge: str) -> Iterator[str]:
    if link.get("master") == bridge:
        yield f"link set dev {link['ifname']} master {bridge}"


def _tunnel_words(kind: str, data: _Object) -> Iterator[str]:
    if kind == "ip6tnl":
        yield f"mode {_TUNNEL_MODES.get(data.get('proto', 'any'), 'any')}"
    for end in ("local", "remote"):
        if data.get(end) not in {None, "any"}:
            yield f"{end} {data[end]}"
    if data.get("link"):
        yield f"dev {data['link']}"
    if kind == "ipip":
        yield f"ttl {data.get('ttl') or 'inherit'}"
        if data.get("tos") not in {None, 0, "0", "0x0"}:
            yield f"tos {data['tos']}"
        yield "pmtudisc" if data.get("pmtudisc", True) else "nopmtudisc"
    else:
        yield f"hoplimit {data.get('ttl', 0)}"
        yield f"encaplimit {data.get('encap_limit', 'none')}"
        yield from (f"{key} {data[key]}" for key in ("tclass", "flowlabel") if key in data)
    encap = data.get("encap")
    if encap:
        yield f"encap {encap['type']} encap-sport {encap.get('sport') or 'auto'} encap-dport {encap['dport']}"
        for option, word in (("csum", "csum"), ("csum6", "udp6-csum"), ("remcsum", "remcsum")):
            if option in encap:
                yield f"{'' if encap[option] else 'no'}encap-{word}"


def _address_lines(link: _Object) -> Iterator[str]:
    for found in link.get("addr_info", ()):
        # The kernel makes link-local addresses by itself when the link comes up.
        if found["family"] in {"inet", "inet6"} and not _is_own_link_local(link, found):
            yield f"addr add {_address_words(found, link['ifname'])}"


def _is_own_link_local(link: _Object, found: _Object) -> bool:
    return bool(
        found["family"] == "inet6"
        and found["local"].startswith("fe80:")
        and found["prefixlen"] == 64
        and link.get("inet6_addr_gen_mode", "eui64") != "none"
    )


def _address_words(found: _Object, name: str) -> str:
    words = [f"{found['local']}/{found['prefixlen']}"]
    if "address" in found:
        words = [found["local"], "peer", f"{found['address']}/{found['prefixlen']}"]
    words += ["dev", name]
    words += [f"{key} {found[key]}" for key in ("broadcast", "scope", "label") if key in found]
    if found["family"] == "inet6":
        words.append("nodad")
        words += [flag for flag in ("home", "mngtmpaddr", "autojoin") if found.get(flag)]
    words += ["noprefixroute"] if found.get("noprefixroute") else []
    if found.get("valid_life_time", _FOREVER) != _FOREVER:
        words.append(f"valid_lft {found['valid_life_time']} preferred_lft {found['preferred_life_time']}")
    return " ".join(words)


def _prefix(text: str, length: object, family: Family) -> str:
    return text if "/" in text else f"{text}/{family.bits if length is None else length}"


def _destination(text: str, family: Family) -> str:
    if text == "default":
        return "0.0.0.0/0" if family is Family.IPV4 else "::/0"
    return _prefix(text, None, family)


def _route_line(route: _Object, family: Family) -> str:
    kind = _TYPES.get(str(route.get("type", "1")), str(route.get("type", "")))
    words = [f"route add {kind} {_destination(route['dst'], family)} table {route.get('table', _MAIN)}"]
    words += [f"tos {route['tos']}"] if "tos" in route else []
    words += [f"metric {route['metric']}"] if route.get("metric") else []
    words += _hop_words(route)
    words.append(f"proto {route.get('protocol', 3)}")  # `ip` leaves "boot" out
    if family is Family.IPV4:
        words.append(f"scope {route.get('scope', 0)}")  # without it, `ip` would choose one
    words += [f"src {route['prefsrc']}"] if "prefsrc" in route else []
    for metric in route.get("metrics", ()):
        words += [f"{key} {value}" for key, value in metric.items()]
    for hop in route.get("nexthops", ()):
        words += ["nexthop", *_hop_words(hop), f"weight {hop.get('weight', 1)}"]
    return " ".join(words)


def _hop_words(hop: _Object) -> Iterator[str]:
    if "via" in hop:
        yield f"via {hop['via']['family']} {hop['via']['host']}"
    if "gateway" in hop:
        yield f"via {hop['gateway']}"
    if "dev" in hop:
        yield f"dev {hop['dev']}"
    if "onlink" in hop.get("flags", ()):
        yield "onlink"


def _rule_line(rule: _Object, family: Family) -> str:
    words = ["rule add", *(["not"] if "not" in rule else []), f"pref {rule['priority']}"]
    words.append(f"from {'all' if rule['src'] == 'all' else _prefix(rule['src'], rule.get('srclen'), family)}")
    if "dst" in rule:
        words.append(f"to {_prefix(rule['dst'], rule.get('dstlen'), family)}")
    if "fwmark" in rule:
        words.append(f"fwmark {rule['fwmark']}" + (f"/{rule['fwmask']}" if "fwmask" in rule else ""))
    words += [f"{key} {rule[key]}" for key in ("iif", "oif") if key in rule]
    words += [f"lookup {rule['table']}"] if "table" in rule else []
    words += [f"protocol {rule['protocol']}"] if "protocol" in rule else []
    # What else it selects by or does: no rule of ours has any, and one that has is another one.
    words += [f"{key} {value}" for key, value in sorted(rule.items()) if key not in _RULE_KEYS]
    return " ".join(words)


def _fou_line(port: FouPort) -> str:
    kind = "gue" if port.kind == 2 else f"ipproto {4 if port.family is Family.IPV4 else 41}"
    return f"fou add port {port.port} {kind}{'' if port.family is Family.IPV4 else ' -6'}"


def same_line(one: str, other: str) -> bool:
    """Tell whether two lines make the same object, for all that matters: a link's own address is made up."""
    return one == other or _plain(one) == _plain(other)


def _plain(line: str) -> str:
    if line.startswith("link "):
        return re.sub(r" address \S+", "", line)
    return re.sub(r" valid_lft \d+ preferred_lft \d+", "", line)


def is_line(line: str) -> bool:
    """Tell whether a line is one of those that are made here."""
    return _LINE.fullmatch(line) is not None


def identity(line: str) -> tuple[str, ...]:
    """Return what names the object that a line makes: two that differ in anything else cannot both be there."""
    words = line.split()
    if words[0] == "link":
        # add name NAME …, set dev NAME up, set dev NAME master …
        return ("link", words[4] if words[1] == "set" else "add", words[3])
    if words[0] == "addr":
        return ("addr", words[2], line.partition(" dev ")[2].split()[0])
    if words[0] == "route":
        options = [f"{key} {words[words.index(key) + 1]}" for key in ("table", "tos", "metric") if key in words]
        return ("route", words[3], *options)
    if words[0] == "fou":
        return ("fou", words[3], words[-1] if words[-1] == "-6" else "")
    return (line,)  # several policy rules may have one priority
