"""Readers of files beside rules and sets: what they take, and what they say of what they cannot take."""

from __future__ import annotations

import json

import pytest

from firewall_cleanup import Family
from firewall_cleanup.dumps import read_dumps
from firewall_cleanup.errors import DumpError
from firewall_cleanup.model import Address, IpvsService, Link, NativeTable, PolicyRule, Route


def test_policy_rules() -> None:
    rules = [
        {"priority": 0, "src": "all", "table": "local"},
        {"priority": 32764, "src": "all", "fwmark": "0x3eb3", "table": "78"},
        {"priority": 32765, "src": "198.51.100.0", "srclen": 26, "table": "kube-router"},
        {"priority": 5, "src": "192.0.2.1", "iif": "eth0", "table": "79"},
        {"priority": 6, "src": "all", "fwmark": "0x1", "fwmask": "0xff", "table": "78"},
        {"priority": 7, "src": "all", "action": "unreachable"},
        {"priority": 8, "src": "198.51.100.9", "srclen": 26, "table": "77"},
    ]
    snapshot = read_dumps({"ip-rule.json": json.dumps(rules)})

    assert snapshot.policy_rules == (
        PolicyRule(Family.IPV4, 255, 0),
        PolicyRule(Family.IPV4, 78, 32764, mark=0x3EB3),
        PolicyRule(Family.IPV4, 77, 32765, source="198.51.100.0/26"),
        PolicyRule(Family.IPV4, 79, 5, source="192.0.2.1/32", plain=False),
        PolicyRule(Family.IPV4, 78, 6, mark=1, plain=False),
        PolicyRule(Family.IPV4, -1, 7, plain=False),
        PolicyRule(Family.IPV4, 77, 8, source="198.51.100.9/26"),
    )


@pytest.mark.parametrize(
    ("name", "family", "default", "peer"),
    [
        ("ip-route.json", Family.IPV4, "0.0.0.0/0", "192.0.2.1"),
        ("ip6-route.json", Family.IPV6, "::/0", "2001:db8::1"),
    ],
)
def test_routes(name: str, family: Family, default: str, peer: str) -> None:
    routes = [
        {"type": "local", "dst": "default", "dev": "lo", "table": "78", "scope": "host", "flags": []},
        {"dst": peer, "gateway": peer, "dev": "eth0", "protocol": "17", "flags": []},
        {"dst": "default", "nexthops": [{"gateway": peer}], "flags": []},
        {"dst": "default", "tos": "0x10", "dev": "lo", "table": "78", "flags": []},
        {},
    ]
    snapshot = read_dumps({name: json.dumps(routes)})

    assert snapshot.routes == (
        Route(family, 78, default, protocol=3, scope=254, type=2, device="lo"),
        Route(family, 254, f"{peer}/{family.bits}", protocol=17, gateway=peer, device="eth0"),
        Route(family, 254, default, protocol=3, type=0),
        Route(family, 78, default, protocol=3, type=0, device="lo"),
    )


def test_links_and_addresses() -> None:
    links = [
        {"ifname": "tun-8bae244745f", "ifindex": 5, "linkinfo": {"info_kind": "ipip", "info_data": {
            "remote": "192.0.2.200", "local": "192.0.2.10", "encap": {"type": "gue", "dport": 5555}}}},
        {"ifname": "tunl0", "linkinfo": {"info_kind": "ipip", "info_data": {"remote": "any"}}},
        {"ifname": "veth1", "master": "kube-bridge", "linkinfo": {"info_kind": "veth"}},
        {"ifname": "tap1", "ifindex": 6, "linkinfo": {"info_kind": "gretap", "info_data": {
            "remote": "group", "encap": {"type": "fou", "dport": "any"}}}},
        {"ifname": "gre6", "master": "br1", "linkinfo": {"info_kind": "ip6gre", "info_data": {
            "remote": "2001:db8::7", "encap": {"dport": 5555}}}},
        {"ifname": "odd", "linkinfo": {"info_kind": "new", "info_data": ["remote"]}},
    ]  # fmt: skip
    addresses = [
        {"ifname": "lo", "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8}]},
        {"ifname": "eth0", "addr_info": [{"family": "inet6", "local": "2001:DB8:0::1", "prefixlen": 64}]},
    ]
    snapshot = read_dumps({"ip-link.json": json.dumps(links), "ip-addr.json": json.dumps(addresses)})

    assert snapshot.links == (
        Link("tun-8bae244745f", "ipip", remote="192.0.2.200", encap_port=5555),
        Link("tunl0", "ipip"),
        Link("veth1", "veth", master="kube-bridge"),
        # Of no other kind of tunnel is it used where it leads to; what is no address there is no bad line.
        Link("tap1", "gretap"),
        Link("gre6", "ip6gre", master="br1"),
        Link("odd", "new"),
    )
    assert snapshot.addresses == (
        Address(Family.IPV4, "lo", "127.0.0.1/8"),
        Address(Family.IPV6, "eth0", "2001:db8::1/64"),
    )


def test_services() -> None:
    text = """\
-A -t 203.0.113.130:80 -s rr
-a -t 203.0.113.130:80 -r 198.51.100.2:8080 -m -w 1
-A -u [2001:db8::1]:53 -s rr -p 10800
-a -u [2001:db8::1]:53 -r [2001:db8:a::2]:53 -m -w 1
-A --sctp-service 203.0.113.130:90 -s wlc
-A -f 16051 -s rr
-a -f 16051 -r 198.51.100.2:8080 -i -w 1 --tun-type ipip
-A -f 9130 -6 -s rr
"""
    services = read_dumps({"ipvsadm-save": text}).services

    assert [s.name for s in services] == [
        "tcp 203.0.113.130:80",
        "udp [2001:db8::1]:53",
        "sctp 203.0.113.130:90",
        "fwmark 16051",
        "fwmark 9130",
    ]
    assert services[1].destinations == {"[2001:db8:a::2]:53"}
    assert services[4] == IpvsService(Family.IPV6, mark=9130)


def test_tables_of_iptables_are_no_native_tables() -> None:
    nft = {"nftables": [{"metainfo": {}}, {"table": {"family": "ip", "name": "filter"}},
                        {"table": {"family": "ip6", "name": "kube-router-filter-ipv6"}}]}  # fmt: skip
    files = {"iptables-nft-save": "*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n", "nft-ruleset.json": json.dumps(nft)}

    assert read_dumps(files).native_tables == (NativeTable("ip6", "kube-router-filter-ipv6"),)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("ip-rule.json", "[\n{]", 2),
        ("ip-rule.json", '[{"src": "all"}]', 1),
        ("ip-route.json", '[{"dst": "nonsense"}]', 1),
        ("ip-link.json", "{}", 1),
        ("ip-addr.json", "[7]", 1),
        ("ipvsadm-save", "\n-A -x 1\n", 2),
        ("ipvsadm-save", "-A -t nonsense:80 -s rr\n", 1),
        ("nft-ruleset.json", "[]", 1),
        # a number beyond all measure, and what is no number
        ("ip-rule.json", '[{"src": "all", "priority": 1e999}]', 1),
        ("ip-rule.json", '[{"src": "10.0.0.0", "srclen": Infinity, "priority": 1}]', 1),
        ("ip-route.json", '[{"dst": "default", "metric": -Infinity}]', 1),
        ("ip-link.json", '[{"ifname": "lo", "ifindex": NaN}]', 1),
        (
            "ip-addr.json",
            '[{"ifname": "lo", "addr_info": [{"family": "inet", "local": "::1", "prefixlen": 1e999}]}]',
            1,
        ),
        ("ip-fou.json", '[{"port": 1e999}]', 1),
        # what is no gateway
        ("ip-route.json", '[{"dst": "default", "gateway": "192.0.2.1; id"}]', 1),
        ("ip-route.json", '[{"dst": "default", "gateway": 3221225985}]', 1),
        ("ip-route.json", '[{"dst": "default", "gateway": "fe80::1"}]', 1),
        ("ip6-route.json", '[{"dst": "default", "gateway": "fe80::1%eth0"}]', 1),
        # what no script could say
        ("ip-route.json", '[{"dst": "default", "dev": "\\ud800"}]', 1),
        ("ip-route.json", '[{"dst": "default", "dev": "l\\u0000o"}]', 1),
        ("ip-link.json", '[{"ifname": "\\udbff"}]', 1),
        ("ip-link.json", '[{"ifname": "lo", "master": "\\ud800"}]', 1),
        ("ip-addr.json", '[{"ifname": "\\ud800"}]', 1),
        ("nft-ruleset.json", '{"nftables": [{"table": {"family": "ip", "name": "\\ud800"}}]}', 1),
    ],
)
def test_a_bad_line_is_named_and_the_rest_is_read(name: str, text: str, line: int) -> None:
    problems: list[DumpError] = []
    read_dumps({name: text}, problems=problems)

    assert [(problem.source, problem.line) for problem in problems] == [(name, line)]
    with pytest.raises(DumpError, match=rf"{name}:{line}: "):
        read_dumps({name: text})
