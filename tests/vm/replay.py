"""Builds a recorded node in the current network namespace, and reads such a state back.

A recording is a folder with what the tools print: `ip-link.json` (with -d), `ip-addr.json`, `ip[6]-route.json` (table
all), `ip[6]-rule.json`, `ip-fou.json`, `ipvsadm-save`, `ipset-save`, `ip[6]tables-{nft,legacy}-save`,
`nft-ruleset.nft`, and with the node's `rt_tables`. Each may be missing.

    complaints = build(folder)  # of the tools; empty if the kernel took everything
    assert not differences(recorded(folder), state())

As a command it does that for each folder given, in a namespace of its own.
"""

from __future__ import annotations

import ctypes
import difflib
import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

State = dict[str, list[str]]
"""Per section (links, routes4, rules6, ipset …) its objects as lines of text, in an order that does not vary."""

_Object = dict[str, Any]

SAVES = ["iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"]
# Made by the kernel in each namespace, and never gone again while their modules are loaded.
_FALLBACK_LINKS = set("tunl0 ip6tnl0 sit0 gre0 gretap0 erspan0 ip6gre0 ip_vti0 ip6_vti0".split())
_KINDS = {"dummy", "bridge", "ipip", "ip6tnl"}
_TABLES = {"unspec": 0, "default": 253, "main": 254, "local": 255}
_PROTOCOLS = {
    "redirect": 1,
    "kernel": 2,
    "boot": 3,
    "static": 4,
    "gated": 8,
    "ra": 9,
    "mrt": 10,
    "zebra": 11,
    "bird": 12,
}
_PROTOCOLS |= {
    "dnrouted": 13,
    "xorp": 14,
    "ntk": 15,
    "dhcp": 16,
    "keepalived": 18,
    "babel": 42,
    "ovn": 84,
    "openr": 99,
}
_PROTOCOLS |= {"bgp": 186, "isis": 187, "ospf": 188, "rip": 189, "eigrp": 192}
_FOREVER = 2**32 - 1
CLONE_NEWNET = 0x40000000


def has_ipv6() -> bool:
    """Tell whether this kernel has IPv6 at all; it can be disabled at boot."""
    return Path("/proc/sys/net/ipv6").exists()


# ---- a recording ---------------------------------------------------------------------------------------------------


def recorded(folder: Path, *, ipv6: bool | None = None) -> State:
    """Return the recorded state in the form of `state`, less its IPv6 part unless the kernel has it."""
    return _normal(_load(folder, ipv6=ipv6))


def _load(folder: Path, *, ipv6: bool | None) -> _Object:
    """Return the files' contents by name.

    Tables and protocols are numbers, and dummy links stand in for those that a test cannot have.
    """

    def text(name: str) -> str:
        path = folder / name
        return path.read_text() if path.exists() else ""

    def read(name: str) -> list[_Object]:
        return [found for found in json.loads(text(name) or "[]") if found]

    # Tools that had nothing to say left no file, but those that print JSON always say something.
    node: _Object = {
        "ipvs": text("ipvsadm-save"),
        "ipset": text("ipset-save"),
        "nft": _native_tables(text("nft-ruleset.nft")),
        **{save: text(f"{save}-save") for save in SAVES},
    }
    if links := read("ip-link.json"):
        addresses = {link["ifname"]: link["addr_info"] for link in read("ip-addr.json")}
        for link in links:
            link["addr_info"] = addresses.get(link["ifname"], [])
            info = link.get("linkinfo", {})
            if link.get("link_type") != "loopback" and info.get("info_kind") not in _KINDS:
                link["linkinfo"] = {**info, "info_kind": "dummy", "info_data": {}}
        node |= {"links": links, "fou": _fou_of(links)}
    if (folder / "ip-fou.json").exists():
        node["fou"] = read("ip-fou.json")
    tables = _table_numbers(text("rt_tables"))
    for family, prefix in ("4", "ip"), ("6", "ip6"):
        for what in "route", "rule":
            if found := read(f"{prefix}-{what}.json"):
                node[f"{what}s{family}"] = _numbered(found, tables)
    return node if (has_ipv6() if ipv6 is None else ipv6) else _without_ipv6(node)


def _without_ipv6(node: _Object) -> _Object:
    for link in node.get("links", []):
        link["addr_info"] = [found for found in link["addr_info"] if found["family"] == "inet"]
    fewer: _Object = {
        "links": [link for link in node.get("links", []) if _kind(link) != "ip6tnl"],
        "fou": [port for port in node.get("fou", []) if port.get("family") != "inet6"],
        "ipvs": "".join(line for line in node["ipvs"].splitlines(True) if "[" not in line and " -6" not in line),
        "nft": {name: block for name, block in node["nft"].items() if not name.startswith("ip6 ")},
        "routes6": [],
        "rules6": [],
        "ip6tables-nft": "",
        "ip6tables-legacy": "",
    }
    return {name: fewer.get(name, found) for name, found in node.items()}


def _fou_of(links: list[_Object]) -> list[_Object]:
    """Return the ports that the tunnels use, for recordings without `ip fou show`."""
    ports = set()
    for link in links:
        encap = _data(link).get("encap") or {}
        if encap.get("dport"):
            ports.add((encap["dport"], encap["type"], "inet6" if _kind(link) == "ip6tnl" else "inet"))
    return [{"port": port, kind: None, "family": family} for port, kind, family in sorted(ports)]


def _table_numbers(text: str) -> dict[str, int]:
    """Return the numbers of the routing tables that a file of iproute2 names."""
    found = re.findall(r"^\s*(0x[0-9a-fA-F]+|\d+)\s+(\S+)", text, re.MULTILINE)
    return _TABLES | {name: int(number, 0) for number, name in found}


def _numbered(objects: list[_Object], tables: dict[str, int]) -> list[_Object]:
    """Return the routes or rules with their tables and protocols as numbers.

    `ip -batch` takes a protocol's name for another one's number after it has read that number.
    """
    numbered = []
    for found in objects:
        numbers: _Object = {}
        if "table" in found:
            numbers["table"] = tables.get(found["table"]) or int(found["table"])
        if "protocol" in found:
            numbers["protocol"] = _PROTOCOLS.get(found["protocol"], found["protocol"])
        numbered.append({**found, **numbers})
    return numbered


def _native_tables(ruleset: str) -> dict[str, str]:
    """Return the tables that iptables-nft does not write, by family and name."""
    blocks = re.findall(r"^table (\S+ \S+) \{\n.*?^\}\n?", ruleset, re.MULTILINE | re.DOTALL)
    texts = re.finditer(r"^table \S+ \S+ \{\n.*?^\}\n?", ruleset, re.MULTILINE | re.DOTALL)
    theirs = {f"{family} {name}" for family in ("ip", "ip6") for name in "filter nat mangle raw security".split()}
    return {name: text[0] for name, text in zip(blocks, texts, strict=True) if name not in theirs}


# ---- the normal form -----------------------------------------------------------------------------------------------


def state() -> State:
    """Return the state of the current network namespace: no counters, indexes, timers or random numbers."""
    tables: dict[str, int] = dict(_TABLES)
    for path in ("/usr/share/iproute2/rt_tables", "/etc/iproute2/rt_tables"):
        if Path(path).exists():
            tables |= _table_numbers(Path(path).read_text())
    node: _Object = {
        "links": _ip_json("-d", "addr", "show"),
        "fou": _ip_json("fou", "show"),
        "ipvs": _output("ipvsadm", "-Sn"),
        "ipset": _output("ipset", "save"),
        "nft": _native_tables(_output("nft", "list", "ruleset")),
        **{save: _output(f"{save}-save") for save in SAVES if has_ipv6() or not save.startswith("ip6")},
    }
    for family in "46":
        known = family == "4" or has_ipv6()
        node[f"routes{family}"] = _numbered(_routes(family), tables) if known else []
        node[f"rules{family}"] = _numbered(_ip_json(f"-{family}", "rule", "show"), tables) if known else []
    return _normal(node)


def differences(expected: State, found: State) -> list[str]:
    """Return what only one of them has, as "section: -line" (expected) and "section: +line" (found).

    A section that `expected` does not have was not recorded, and tells nothing.
    """
    said = []
    for section, lines_of_it in expected.items():
        lines = difflib.unified_diff(lines_of_it, found.get(section, []), lineterm="", n=0)
        said += [f"{section}: {line}" for line in lines if not line.startswith(("---", "+++", "@@"))]
    return sorted(said)


def _normal(node: _Object) -> State:
    links = [link for link in node.get("links", []) if link["ifname"] not in _FALLBACK_LINKS or "UP" in link["flags"]]
    normal: State = {}
    if "links" in node:
        normal["links"] = sorted(_line(_normal_link(link)) for link in links)
        normal["addresses"] = sorted(
            _line(_normal_address(link, found)) for link in links for found in link["addr_info"]
        )
    for name in ("routes4", "routes6"):
        if name in node:
            normal[name] = sorted(_line(_normal_route(route)) for route in node[name])
    for name in ("rules4", "rules6"):
        if name in node:
            normal[name] = [_line(_normal_rule(rule)) for rule in node[name]]
    if "fou" in node:
        normal["fou"] = sorted(_line(_normal_fou(port)) for port in node["fou"])
    normal["ipvs"] = list(_normal_ipvs(node["ipvs"]))
    normal["ipset"] = list(_normal_sets(node["ipset"]))
    normal["nft"] = [line for name in sorted(node["nft"]) for line in _normal_nft(node["nft"][name])]
    return normal | {save: list(_normal_save(node.get(save, ""))) for save in SAVES}


def _line(found: _Object) -> str:
    return " ".join(f"{key}={value}" for key, value in found.items() if value not in (None, [], {}, ""))


def _kind(link: _Object) -> str:
    return str(link.get("linkinfo", {}).get("info_kind", ""))


def _data(link: _Object) -> _Object:
    data: _Object = link.get("linkinfo", {}).get("info_data") or {}
    return data


def _normal_link(link: _Object) -> _Object:
    flags = {"UP", "NOARP", "MULTICAST", "BROADCAST", "POINTOPOINT", "LOOPBACK"}
    tunnel = _data(link) if _kind(link) in ("ipip", "ip6tnl") else {}
    return {
        "name": link["ifname"],
        "kind": _kind(link),
        "flags": ",".join(sorted(flags & set(link["flags"]))),
        "mtu": link["mtu"],
        "master": link.get("master"),
        "address": link.get("address"),
        **{key: json.dumps(tunnel[key], sort_keys=True) for key in sorted(tunnel)},
    }


def _normal_address(link: _Object, found: _Object) -> _Object:
    flags = "dynamic secondary temporary deprecated mngtmpaddr noprefixroute home autojoin".split()
    return {
        "dev": link["ifname"],
        **{key: found.get(key) for key in "local address prefixlen broadcast scope label".split()},
        "flags": ",".join(flag for flag in flags if found.get(flag)),
    }


def _normal_route(route: _Object) -> _Object:
    dropped = {"flags", "pref", "expires", "table", "dst", "type"}
    flags = [flag for flag in route.get("flags", []) if flag in ("onlink", "pervasive")]
    return {
        "type": route.get("type", "unicast"),
        "dst": route["dst"],
        "table": route.get("table", 254),
        **{key: json.dumps(route[key], sort_keys=True) for key in sorted(route.keys() - dropped)},
        "flags": ",".join(flags),
    }


def _normal_rule(rule: _Object) -> _Object:
    return {key: rule[key] for key in sorted(rule.keys() - {"protocol"})}


def _normal_fou(port: _Object) -> _Object:
    # Older versions of iproute2 do not say the family, so a port that both have is there twice.
    return {key: port[key] or key for key in sorted(port.keys() - {"family"})}


def _normal_ipvs(save: str) -> Iterator[str]:
    services: dict[tuple[str, ...], list[str]] = {}
    lines = {}
    for line in save.splitlines():
        words = line.split()
        if not words:
            continue
        service = tuple(words[1:3]) + (("-6",) if "-6" in words or "[" in line else ())
        if words[0] == "-A":
            lines[service] = line
            services[service] = []
        else:
            services[service].append(line)
    for service in sorted(services):
        yield lines[service].strip()
        yield from sorted(line.strip() for line in services[service])


def _normal_sets(save: str) -> Iterator[str]:
    members = defaultdict(list)
    creations = {}
    for line in save.splitlines():
        verb, name, *_ = [*line.split(), "", ""]
        if verb == "create":
            creations[name] = re.sub(r" (initval 0x[0-9a-f]+|hashsize \d+)", "", line).strip()
        elif verb == "add":
            members[name].append(re.sub(r" timeout [1-9]\d*", " timeout …", line).strip())
    for name in sorted(creations):
        yield creations[name]
        yield from sorted(members[name])


def _normal_save(save: str) -> Iterator[str]:
    tables: dict[str, dict[str, list[str]]] = {}
    policies: dict[tuple[str, str], str] = {}
    table = ""
    for line in save.splitlines():
        if line.startswith("*"):
            table = line[1:]
            tables[table] = {}
        elif line.startswith(":"):
            chain, policy, *_ = line[1:].split()
            tables[table][chain] = []
            policies[table, chain] = policy
        elif rule := re.match(r"(?:\[\d+:\d+\] )?(-A (\S+).*)", line):
            tables[table][rule[2]].append(rule[1])
    for name in sorted(tables):
        for chain in sorted(tables[name]):
            yield f"*{name} :{chain} {policies[name, chain]}"
            yield from (f"*{name} {rule}" for rule in tables[name][chain])


def _normal_nft(block: str) -> Iterator[str]:
    for line in block.splitlines():
        if line.strip():
            yield re.sub(r"\bpackets \d+ bytes \d+", "packets … bytes …", line)


# ---- building ------------------------------------------------------------------------------------------------------


def build(folder: Path, *, ipv6: bool | None = None) -> list[str]:
    """Make the recorded node in the current, new network namespace; return what the tools complained about."""
    node = _load(folder, ipv6=ipv6)
    said = []
    if any(route.get("type") == "anycast" for route in node.get("routes6", [])):
        # A router's namespace has these addresses on each link.
        Path("/proc/sys/net/ipv6/conf/all/forwarding").write_text("1")
    # Without a routing table the kernel refuses some of what comes later.
    said += _batch(["link set lo up", *_link_lines(node.get("links", []))])
    for family in "46":
        lines = [f"fou add {_fou_words(port)}" for port in node.get("fou", []) if _fou_family(port) == family]
        if wanted := node.get(f"routes{family}"):
            lines += _route_lines(wanted, _numbered(_routes(family), _TABLES), family)
        if wanted := node.get(f"rules{family}"):
            lines += _rule_lines(wanted, _numbered(_ip_json(f"-{family}", "rule", "show"), _TABLES), family)
        said += _batch(lines, family)
    said += _feed(node["ipvs"], "ipvsadm", "-R")
    said += _feed(node["ipset"], "ipset", "restore")
    for name in sorted({name for save in SAVES for name in re.findall(r"--nfacct-name\s+(\S+)", node[save])}):
        said += _feed("\n", "nfacct", "add", name)
    for save in SAVES:
        said += _feed(node[save], f"{save}-restore")
    said += _feed("".join(node["nft"].values()), "nft", "-f", "-")
    return said


def _link_lines(links: list[_Object]) -> Iterator[str]:
    # So that a link has the addresses of the recording and no other: those that the kernel makes from random numbers
    # differ, and are "tentative" for a while.
    ours = [link for link in links if link["ifname"] != "lo" and link["ifname"] not in _FALLBACK_LINKS]
    for link in ours:
        name = link["ifname"]
        kind = _kind(link)
        mac = f"address {link['address']}" if kind in ("dummy", "bridge") and link.get("address") else ""
        yield f"link add name {name} {mac} mtu {link['mtu']} type {kind} {_tunnel_words(link)}"
        flags = set(link["flags"])
        if kind == "dummy":
            arp = "off" if "NOARP" in flags else "on"
            yield f"link set {name} arp {arp} multicast {'on' if 'MULTICAST' in flags else 'off'}"
        if has_ipv6():
            yield f"link set {name} addrgenmode none"
    for link in links:
        if "master" in link:
            yield f"link set {link['ifname']} master {link['master']}"
        if "UP" in link["flags"]:
            yield f"link set {link['ifname']} up"
        for found in link["addr_info"]:
            if link["ifname"] != "lo" or found["local"] not in ("127.0.0.1", "::1"):
                yield f"addr add {_address_words(found)} dev {link['ifname']}"
    if has_ipv6():
        for link in ours:
            yield f"link set {link['ifname']} addrgenmode {link.get('inet6_addr_gen_mode', 'eui64')}"


def _tunnel_words(link: _Object) -> str:
    data = _data(link)
    words = [f"{key} {data[key]}" for key in ("local", "remote") if key in data]
    if _kind(link) == "ipip":
        words.append(f"ttl {data.get('ttl') or 'inherit'}")
        words += ["pmtudisc" if data["pmtudisc"] else "nopmtudisc"] if "pmtudisc" in data else []
    elif _kind(link) == "ip6tnl":
        modes = {"any": "any", "ipip6": "ipip6", "ip4ip6": "ipip6", "ip6ip6": "ip6ip6"}
        words.insert(0, f"mode {modes[data.get('proto', 'any')]}")
        words.append(f"hoplimit {data.get('ttl', 0)}")
        words.append(f"encaplimit {data.get('encap_limit', 'none')}")
        words += [f"{key} {data[key]}" for key in ("tclass", "flowlabel") if key in data]
    encap = data.get("encap")
    if encap:
        words.append(f"encap {encap['type']} encap-sport {encap.get('sport') or 'auto'} encap-dport {encap['dport']}")
        for option, word in ("csum", "csum"), ("csum6", "udp6-csum"), ("remcsum", "remcsum"):
            if option in encap:
                words.append(f"{'' if encap[option] else 'no'}encap-{word}")
    return " ".join(words)


def _address_words(found: _Object) -> str:
    words = [found["local"], "peer", found["address"]] if "address" in found else [found["local"]]
    words[-1] += f"/{found['prefixlen']}"
    words += [f"{key} {found[key]}" for key in ("broadcast", "scope", "label") if key in found]
    if found["family"] == "inet6":
        words.append("nodad")
        words += [flag for flag in ("home", "mngtmpaddr", "autojoin") if found.get(flag)]
    words += ["noprefixroute"] if found.get("noprefixroute") else []
    if found.get("valid_life_time", _FOREVER) != _FOREVER:
        words.append(f"valid_lft {found['valid_life_time']} preferred_lft {found['preferred_life_time']}")
    return " ".join(words)


def _route_lines(wanted: list[_Object], present: list[_Object], family: str) -> Iterator[str]:
    """Yield what turns the routes that links and addresses brought into the recorded ones."""
    have: dict[Any, list[_Object]] = defaultdict(list)
    want: dict[Any, list[_Object]] = defaultdict(list)
    for routes, by_key in (present, have), (wanted, want):
        for route in routes:
            # Only IPv6 tells routes apart by more; of several to one place in IPv4, the first is used.
            key = (route.get("table", 254), route["dst"], route.get("tos"), route.get("metric"))
            by_key[key if family == "4" else _line(_normal_route(route))].append(route)

    def same(key: object) -> bool:
        return [_normal_route(route) for route in have[key]] == [_normal_route(route) for route in want[key]]

    yield from (f"route del {_route_words(route)}" for key in [*have] if not same(key) for route in have[key])
    missing = [route for key in [*want] if not same(key) for route in want[key]]
    # A gateway must be reachable through a route that is there already.
    missing.sort(key=lambda route: not route.keys().isdisjoint(("gateway", "via", "nexthops")))
    yield from (f"route {'append' if family == '4' else 'add'} {_route_words(route)}" for route in missing)


def _route_words(route: _Object) -> str:
    named = {"protocol": "proto", "prefsrc": "src", "tos": "tos", "metric": "metric"}
    known = {*named, *"type dst table gateway via dev scope flags pref expires nexthops".split()}
    if route.keys() - known:
        raise ValueError(f"cannot make a route with {', '.join(route.keys() - known)}: {route}")
    words = [route.get("type", ""), route["dst"], f"table {route.get('table', 254)}"]
    words += _hop_words(route)
    words.append(f"scope {route.get('scope', 'global')}")  # without it, `ip` would choose one
    words += [f"{word} {route[key]}" for key, word in named.items() if key in route]
    for hop in route.get("nexthops", []):
        words += ["nexthop", *_hop_words(hop), f"weight {hop.get('weight', 1)}"]
    return " ".join(words)


def _hop_words(hop: _Object) -> Iterator[str]:
    if "via" in hop:
        yield f"via {hop['via']['family']} {hop['via']['host']}"
    if "gateway" in hop:
        yield f"via {hop['gateway']}"
    if "dev" in hop:
        yield f"dev {hop['dev']}"
    if "onlink" in hop.get("flags", []):
        yield "onlink"


def _rule_lines(wanted: list[_Object], present: list[_Object], family: str) -> Iterator[str]:
    have = [_normal_rule(rule) for rule in present]
    want = [_normal_rule(rule) for rule in wanted]
    yield from (f"rule add {_rule_words(rule, family)}" for rule in want if rule not in have)
    yield from (f"rule del {_rule_words(rule, family)}" for rule in have if rule not in want)


def _rule_words(rule: _Object, family: str) -> str:
    named = {"iif": "iif", "oif": "oif", "tos": "tos", "ipproto": "ipproto", "sport": "sport", "dport": "dport"}
    named |= {"table": "lookup", "goto": "goto", "suppress_prefixlen": "suppress_prefixlength"}
    known = {
        *named,
        "priority",
        "not",
        "src",
        "srclen",
        "dst",
        "dstlen",
        "fwmark",
        "fwmask",
        "action",
        "iif_detached",
    }
    known |= {"oif_detached", "uid_start", "uid_end", "l3mdev", "flow_from", "flow_to"}
    if rule.keys() - known:
        raise ValueError(f"cannot make a rule with {', '.join(rule.keys() - known)}: {rule}")
    words = ["not"] if "not" in rule else []
    words.append(f"priority {rule['priority']}")
    longest = {"4": 32, "6": 128}[family]
    words.append(f"from {rule['src']}" + ("" if rule["src"] == "all" else f"/{rule.get('srclen', longest)}"))
    if "dst" in rule:
        words.append(f"to {rule['dst']}/{rule.get('dstlen', longest)}")
    if "fwmark" in rule:
        words.append(f"fwmark {rule['fwmark']}" + (f"/{rule['fwmask']}" if "fwmask" in rule else ""))
    if "uid_start" in rule:
        words.append(f"uidrange {rule['uid_start']}-{rule['uid_end']}")
    words += ["l3mdev"] if "l3mdev" in rule else []
    words += [f"{word} {rule[key]}" for key, word in named.items() if key in rule]
    words += [rule["action"]] if rule.get("action", "lookup") not in ("lookup", "to_tbl", "goto") else []
    return " ".join(words)


def _fou_family(port: _Object) -> str:
    return "6" if port.get("family") == "inet6" else "4"


def _fou_words(port: _Object) -> str:
    return f"port {port['port']} " + ("gue" if "gue" in port else f"ipproto {port.get('ipproto', 4)}")


# ---- the tools -----------------------------------------------------------------------------------------------------


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _ip_json(*words: str) -> list[_Object]:
    return [found for found in json.loads(_output("ip", "-j", *words) or "[]") if found]


def _routes(family: str) -> list[_Object]:
    return _ip_json(f"-{family}", "route", "show", "table", "all")


def _feed(text: str, *command: str) -> list[str]:
    """Run the command with that input, if there is any; return its complaints."""
    if not text:
        return []
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    said = done.stderr.strip() or (f"exit status {done.returncode}" if done.returncode else "")
    return [f"{' '.join(command)}: {line}" for line in said.splitlines()]


def _batch(lines: list[str], family: str = "") -> list[str]:
    """Run all lines in one `ip`, on after an error; return its complaints, each with its line."""
    command = ["ip", f"-{family}"] if family else ["ip"]
    said = _feed("\n".join(lines), *command, "-force", "-batch", "-")
    complaints: list[str] = []
    for line in said:
        if failed := re.search(r"Command failed -:(\d+)", line):
            complaints.append(f"{' '.join(command)} {lines[int(failed[1]) - 1]}: {complaints.pop()}")
        else:
            complaints.append(line.rpartition("-batch -: ")[2])
    return complaints


def _main(folders: list[Path]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    bad = 0
    for folder in folders:
        if libc.unshare(CLONE_NEWNET):  # Python has it since 3.12 only
            raise OSError(ctypes.get_errno(), "cannot make a network namespace")
        began = time.monotonic()
        complaints = build(folder)
        built = time.monotonic()
        unlike = differences(recorded(folder), state())
        bad += len(complaints) + len(unlike)
        print(f"{folder}: built in {built - began:.1f} s, read in {time.monotonic() - built:.1f} s", flush=True)
        for line in complaints + unlike:
            print(f"  {line}", flush=True)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(_main([Path(folder) for folder in sys.argv[1:]]))
