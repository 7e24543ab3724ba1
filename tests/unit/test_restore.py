"""What of a backup is there and what puts the rest back: rules, sets, tables, links, routes, services; the report."""

from __future__ import annotations

import attrs
import pytest
from builders import LEGACY, NFT, V4, V6, key

from firewall_cleanup import Kind, Restored, RestoreOutcome, RestoreReport
from firewall_cleanup.errors import BackupError
from firewall_cleanup.handlers._ipvs_settings import (
    decode_destination,
    decode_service,
    encode_destination,
    encode_service,
)
from firewall_cleanup.handlers._netlink import attribute, attributes
from firewall_cleanup.model import Address, FouPort, Link, NativeTable, PolicyRule, Route
from firewall_cleanup.restore_text import restore_lines
from firewall_cleanup.undo.compare import (
    Found,
    merge,
    of_lines,
    of_natives,
    of_services,
    of_sets,
    of_table,
    services_to_make,
)
from firewall_cleanup.undo.ip_text import IpState, identity, same_line
from firewall_cleanup.undo.ipvs_text import Destination, VirtualService
from firewall_cleanup.undo.rule_text import ForeignChain, TableText, missing_counts
from firewall_cleanup.undo.saved import Saved, SavedTable

RULES = ("[1:10] -A mine -s 192.0.2.1/32 -j RETURN", "[2:20] -A mine -j ACCEPT")
INPUT = ForeignChain(("[1:1] -A INPUT -p udp", "[7:70] -A INPUT -j mine", "[2:2] -A INPUT -p tcp"), (1,))


# Rules


@pytest.mark.parametrize("backend", [NFT, LEGACY])
def test_what_is_missing_of_a_table(backend) -> None:
    where = key(backend=backend)
    policies = {"INPUT": "DROP [5:50]", "OUTPUT": "ACCEPT [0:0]"}
    now = TableText(policies, {"INPUT": INPUT.neighbours, "OUTPUT": ()})
    found = of_table(where, SavedTable({"mine": RULES}), {"INPUT": (INPUT,)}, now)
    assert [one.found for one in found.objects] == [Found.NOTHING, Found.NOTHING]
    assert [(one.kind, one.name, one.text) for one in found.objects] == [
        (Kind.CHAIN, "mine", None),
        (Kind.RULE, "INPUT", "-A INPUT -j mine"),
    ]
    own = (":INPUT DROP [5:50]", ":OUTPUT ACCEPT [0:0]") if backend is LEGACY else ()
    assert found.lines == ("*filter", *own, ":mine - [0:0]", *RULES, "[7:70] -I INPUT 2 -j mine", "COMMIT")


def test_a_table_that_is_gone() -> None:
    found = of_table(key(), SavedTable({"mine": RULES}), {"INPUT": (INPUT,)}, None)
    assert found.lines == ("*filter", ":mine - [0:0]", *RULES, "[7:70] -I INPUT 1 -j mine", "COMMIT")
    (gone,) = of_table(key(), SavedTable(), {"theirs": (INPUT,)}, None).objects
    assert (gone.found, gone.name, gone.reason) == (Found.ANOTHER, "theirs", "it is gone")


@pytest.mark.parametrize(
    ("there", "found"),
    [
        (RULES, Found.ALL),
        (("[9:9] -A mine -s 192.0.2.1 -j RETURN", "-A mine -j ACCEPT"), Found.ALL),
        ((), Found.PART),
        (RULES[:1], Found.ANOTHER),
        (RULES[::-1], Found.ANOTHER),
        ((*RULES, RULES[0]), Found.ANOTHER),
        (("[1:10] -A mine ! -s 192.0.2.1/32 -j RETURN", RULES[1]), Found.ANOTHER),
        (("[1:10] -A mine -s 192.0.2.1/32 -g RETURN", RULES[1]), Found.ANOTHER),
    ],
)
def test_a_chain_that_is_there(there: tuple[str, ...], found: Found) -> None:
    result = of_table(key(), SavedTable({"mine": RULES}), {}, TableText(chains={"mine": there}))
    assert [one.found for one in result.objects] == [found]
    assert bool(result.lines) is (found is Found.PART)


def test_counts_that_a_tool_forgot() -> None:
    lines = ("*filter", ":mine - [0:0]", *RULES, "[7:70] -I INPUT 2 -j mine", "[8:80] -I INPUT 3 -j mine", "COMMIT")
    now = {
        "mine": ("[0:0] -A mine -s 192.0.2.1/32 -j RETURN", "[3:30] -A mine -j ACCEPT"),
        "INPUT": ("[0:0] -A INPUT -p udp", "[1:1] -A INPUT -j mine", "[0:0] -A INPUT -p tcp"),
    }
    # Of the last it is not known where it went.
    assert missing_counts(lines, now) == {"mine": {0: (1, 10)}, "INPUT": {1: (7, 70)}}
    assert missing_counts(lines, {}) == {}


def test_the_newest_part_counts() -> None:
    def part(rule: str, member: str, gateway: str) -> Saved:
        return Saved(
            tables={key(): SavedTable({"mine": (f"[0:0] -A mine -j {rule}",)}, {"INPUT": INPUT})},
            sets={"a": ("create a hash:ip", f"add a {member}")},
            lines={"routes.ipv4.ip": (f"route add unicast 10.0.0.0/8 table 254 via {gateway} proto 17 scope 0",)},
            services={"-f 1": (f"-A -f 1 -s {rule}",)},
        )

    old, new = part("DROP", "192.0.2.1", "192.0.2.8"), part("RETURN", "192.0.2.2", "192.0.2.9")
    merged = merge([new, old])
    assert merged.saved.tables[key()].chains == new.tables[key()].chains
    assert merged.saved.sets == new.sets
    assert merged.saved.lines == new.lines
    assert merged.saved.services == new.services
    assert merged.foreign == {key(): {"INPUT": (INPUT, INPUT)}}
    both = merge([new, attrs.evolve(old, sets={"b": ("create b hash:ip",)})]).saved
    assert set(both.sets) == {"a", "b"}


# Sets and tables


SET = ("create a hash:ip family inet6 hashsize 64 maxelem 9 timeout 0", "add a ::1 timeout 0", "add a ::2 timeout 7")


@pytest.mark.parametrize(
    ("there", "found", "lines"),
    [
        (None, Found.NOTHING, SET),
        (SET, Found.ALL, ()),
        ((SET[0].replace("64", "1024 bucketsize 12 initval 0x7"), SET[1], SET[2].replace("7", "3")), Found.ALL, ()),
        (SET[:2], Found.PART, SET[2:]),
        (SET[:1], Found.PART, SET[1:]),
        ((*SET, "add a ::3 timeout 0"), Found.ANOTHER, ()),
        ((SET[0], "add a ::2 timeout 0"), Found.ANOTHER, ()),
        ((SET[0].replace("hash:ip", "hash:net"),), Found.ANOTHER, ()),
        ((SET[0].replace("maxelem 9", "maxelem 8"), *SET[1:]), Found.ANOTHER, ()),
    ],
)
def test_sets(there: tuple[str, ...] | None, found: Found, lines: tuple[str, ...]) -> None:
    result = of_sets({"a": SET}, {} if there is None else {"a": there})
    assert [(one.found, one.family) for one in result.objects] == [(found, V6)]
    assert result.lines == lines


def test_a_set_of_sets_comes_last() -> None:
    wanted = {"a": ("create a list:set size 8", "add a b"), "b": ("create b hash:ip",)}
    assert of_sets(wanted, {}).lines == (*wanted["b"], *wanted["a"])


def test_tables_of_nf_tables() -> None:
    text = (
        "table ip a {\n\tset s {\n\t\telements = { 192.0.2.1,\n\t\t\t     192.0.2.2 timeout 1h expires 59m }\n"
        "\t}\n\tcounter packets 1 bytes 2\n}\n"
    )
    other = text.replace("192.0.2.1,", "192.0.2.2 timeout 1h expires 3s,")
    other = other.replace("192.0.2.2 timeout 1h expires 59m }", "192.0.2.1 }")
    table = NativeTable("ip", "a")
    for there, found in (
        ({}, Found.NOTHING),
        ({table: text}, Found.ALL),
        ({table: other.replace("packets 1 bytes 2", "packets 3 bytes 99")}, Found.ALL),
        ({table: text.replace("192.0.2.1", "192.0.2.3")}, Found.ANOTHER),
        ({table: text.replace("counter", "drop")}, Found.ANOTHER),
    ):
        result = of_natives({table: text}, there)
        assert [one.found for one in result.objects] == [found]
        assert result.lines == (tuple(text.splitlines()) if found is Found.NOTHING else ())


# Links, addresses, routes, rules


LINKS = [
    {
        "ifname": "kube-bridge", "flags": ["BROADCAST", "MULTICAST", "UP"], "mtu": 1480, "txqlen": 1000,
        "address": "0a:00:00:00:00:01",
        "linkinfo": {"info_kind": "bridge", "info_data": {"stp_state": 1, "forward_delay": 1500, "root_port": 0}},
        "addr_info": [
            {"family": "inet", "local": "198.51.100.1", "prefixlen": 26, "scope": "global", "label": "kube-bridge",
             "valid_life_time": 2**32 - 1},
            {"family": "inet6", "local": "fe80::1", "prefixlen": 64, "scope": "link", "valid_life_time": 2**32 - 1},
        ],
    },
    {
        "ifname": "kube-dummy-if", "flags": ["NOARP", "UP"], "mtu": 1500, "address": "0a:00:00:00:00:02",
        "linkinfo": {"info_kind": "dummy"},
        "addr_info": [
            {"family": "inet6", "local": "2001:db8::7", "prefixlen": 128, "scope": "global"},
            {"family": "inet", "local": "203.0.113.7", "prefixlen": 32, "scope": "link", "valid_life_time": 60,
             "preferred_life_time": 30},
        ],
    },
    {
        "ifname": "tun-1", "flags": ["NOARP", "UP"], "mtu": 1480,
        "linkinfo": {"info_kind": "ipip", "info_data": {
            "remote": "192.0.2.9", "local": "192.0.2.1", "ttl": 64, "pmtudisc": True, "tos": "0x0",
            "encap": {"type": "gue", "sport": 0, "dport": 5555, "csum": False, "csum6": False, "remcsum": False},
        }},
        "addr_info": [],
    },
    {
        "ifname": "tun-6", "flags": ["NOARP"], "mtu": 1452,
        "linkinfo": {"info_kind": "ip6tnl", "info_data": {
            "proto": "ip6ip6", "remote": "2001:db8::9", "local": "2001:db8::1", "ttl": 64, "encap_limit": 4,
            "flowlabel": "0x00000",
        }},
        "addr_info": [],
    },
    {"ifname": "veth1", "flags": ["UP"], "mtu": 1500, "master": "kube-bridge", "linkinfo": {"info_kind": "veth"}},
    {"ifname": "eth0", "flags": ["UP"], "mtu": 1500, "addr_info": []},
]  # fmt: skip
ROUTES = {
    V4: [
        {"type": "2", "dst": "default", "dev": "lo", "table": "78", "scope": "254", "flags": []},
        {"dst": "198.51.100.0/26", "dev": "kube-bridge", "protocol": "2", "scope": "253", "flags": []},
        {"dst": "10.1.0.0/16", "dev": "tun-1", "protocol": "17", "prefsrc": "192.0.2.1", "flags": []},
        {
            "dst": "10.2.0.1",
            "gateway": "192.0.2.9",
            "dev": "eth0",
            "protocol": "17",
            "metric": 5,
            "flags": ["onlink"],
        },
        {"dst": "10.3.0.0/16", "gateway": "10.1.0.1", "dev": "tun-1", "protocol": "4", "flags": []},
        {"dst": "10.4.0.0/16", "dev": "eth0", "prefsrc": "203.0.113.7", "scope": "253", "flags": []},
    ],
    V6: [{"type": "2", "dst": "default", "dev": "lo", "table": "78", "metric": 1024, "flags": [], "pref": "medium"}],
}
POLICY = {
    V4: [
        {"priority": 0, "src": "all", "table": "255"},
        {"priority": 9, "src": "198.51.100.0", "srclen": 26, "table": "77"},
        {"priority": 8, "src": "all", "fwmark": "0x35d3", "table": "78"},
    ],
    V6: [{"not": None, "priority": 7, "src": "all", "fwmark": "0x1", "fwmask": "0x3", "iif": "lo", "table": "79"}],
}
STATE = IpState(LINKS, ROUTES, POLICY, [FouPort(V4, 5555), FouPort(V6, 5556, 1)])


def test_lines_for_ip() -> None:
    lines = STATE.lines()
    assert lines["links.ip"] == [
        ("link add name kube-bridge mtu 1480 txqueuelen 1000 arp on multicast on type bridge stp_state 1"),
        "link set dev kube-bridge up",
        "link add name kube-dummy-if mtu 1500 address 0a:00:00:00:00:02 arp off multicast off type dummy",
        "link set dev kube-dummy-if up",
        (
            "link add name tun-1 mtu 1480 type ipip local 192.0.2.1 remote 192.0.2.9 ttl 64 pmtudisc"
            " encap gue encap-sport auto encap-dport 5555 noencap-csum noencap-udp6-csum noencap-remcsum"
        ),
        "link set dev tun-1 up",
        (
            "link add name tun-6 mtu 1452 type ip6tnl mode ip6ip6 local 2001:db8::1 remote 2001:db8::9 hoplimit 64"
            " encaplimit 4 flowlabel 0x00000"
        ),
        "link add name veth1 mtu 1500 master kube-bridge type veth",
        "link set dev veth1 up",
    ]
    assert lines["addresses.ip"] == [
        "addr add 198.51.100.1/26 dev kube-bridge scope global label kube-bridge",
        "addr add 2001:db8::7/128 dev kube-dummy-if scope global nodad",
        "addr add 203.0.113.7/32 dev kube-dummy-if scope link valid_lft 60 preferred_lft 30",
    ]
    assert lines["routes.ipv4.ip"][0] == "route add local 0.0.0.0/0 table 78 dev lo proto 3 scope 254"
    assert lines["routes.ipv4.ip"][3] == (
        "route add unicast 10.2.0.1/32 table 254 metric 5 via 192.0.2.9 dev eth0 onlink proto 17 scope 0"
    )
    assert lines["routes.ipv6.ip"] == ["route add local ::/0 table 78 metric 1024 dev lo proto 3"]
    assert lines["rules.ipv4.ip"][1:] == [
        "rule add pref 9 from 198.51.100.0/26 lookup 77",
        "rule add pref 8 from all fwmark 0x35d3 lookup 78",
    ]
    assert lines["rules.ipv6.ip"] == ["rule add not pref 7 from all fwmark 0x1/0x3 iif lo lookup 79"]
    assert lines["fou.ip"] == ["fou add port 5555 gue", "fou add port 5556 ipproto 41 -6"]


def test_what_goes_with_a_link() -> None:
    lines = STATE.of([Link("kube-bridge", "bridge"), Link("tun-1", "ipip"), FouPort(V4, 5555)])
    assert [line.split()[:4] for line in lines["links.ip"]] == [
        ["link", "add", "name", "kube-bridge"],
        ["link", "add", "name", "tun-1"],
        ["link", "set", "dev", "kube-bridge"],
        ["link", "set", "dev", "veth1"],
        ["link", "set", "dev", "tun-1"],
    ]
    assert lines["addresses.ip"] == ("addr add 198.51.100.1/26 dev kube-bridge scope global label kube-bridge",)
    # The kernel makes its own again; what leads to a gateway comes before what uses it.
    assert [line.split()[3] for line in lines["routes.ipv4.ip"]] == ["10.1.0.0/16", "10.3.0.0/16"]
    assert lines["fou.ip"] == ("fou add port 5555 gue",)


def test_single_objects() -> None:
    lines = STATE.of(
        [
            Address(V4, "kube-dummy-if", "203.0.113.7/32"),
            Route(V4, 78, "0.0.0.0/0", protocol=3, type=2, device="lo"),
            Route(V6, 78, "::/0", protocol=3, type=2, device="lo", metric=1024),
            PolicyRule(V4, 77, 9, source="198.51.100.0/26"),
            PolicyRule(V4, 78, 8, mark=0x35D3),
        ]
    )
    assert {name: len(found) for name, found in lines.items()} == {
        "addresses.ip": 1,
        "routes.ipv4.ip": 2,  # with the one whose source the address is
        "routes.ipv6.ip": 1,
        "rules.ipv4.ip": 2,
    }


@pytest.mark.parametrize(
    "item",
    [
        Link("other", "dummy"),
        Address(V4, "kube-bridge", "192.0.2.1/32"),
        Address(V4, "other", "192.0.2.1/32"),
        Route(V4, 78, "0.0.0.0/0", protocol=4, type=2, device="lo"),
        PolicyRule(V4, 77, 9),
        PolicyRule(V6, 77, 9),
    ],
    ids=str,
)
def test_what_went_away(item: object) -> None:
    with pytest.raises(LookupError):
        STATE.of([item])


def test_lines_that_are_there() -> None:
    wanted = STATE.of([Link("kube-bridge", "bridge")])
    now = {name: list(lines) for name, lines in STATE.lines().items()}
    assert [one.found for one in of_lines("links.ip", wanted["links.ip"], now).objects] == [Found.ALL] * 3
    dummy = STATE.of([Link("kube-dummy-if", "dummy")])["links.ip"]
    now["links.ip"] = [line.replace("00:02", "00:07") for line in now["links.ip"]]  # a link's own address is made up
    assert of_lines("links.ip", dummy, now).lines == ()
    now["links.ip"][0] = now["links.ip"][0].replace("stp_state 1", "stp_state 0")
    assert of_lines("links.ip", wanted["links.ip"], now).objects[0].found is Found.ANOTHER
    now["links.ip"] = [line.replace(" master kube-bridge", "") for line in now["links.ip"][2:]]
    assert of_lines("links.ip", wanted["links.ip"], now).lines == wanted["links.ip"]
    now["links.ip"].append(wanted["links.ip"][0])  # killed before it was up
    assert of_lines("links.ip", wanted["links.ip"], now).lines == wanted["links.ip"][1:]
    now["links.ip"] = [f"{line} master br0" if "veth1" in line else line for line in now["links.ip"]]
    assert of_lines("links.ip", wanted["links.ip"], now).objects[2].reason == "it is attached to br0"


def test_lines_of_several_parts_are_in_order() -> None:
    """What came later is in a newer part: a port behind its bridge, a gateway behind what leads to it."""
    older = Saved(
        lines={
            "links.ip": ("link add name kube-bridge mtu 1500 type bridge",),
            "routes.ipv4.ip": ("route add unicast 192.0.2.0/24 table 7 dev a proto 17 scope 253",),
        }
    )
    newer = Saved(
        lines={
            "links.ip": ("link set dev veth9 master kube-bridge",),
            "routes.ipv4.ip": ("route add unicast 10.9.0.0/16 table 7 via 192.0.2.1 dev a proto 17 scope 0",),
        }
    )
    merged = merge([newer, older]).saved.lines
    assert merged == {name: (*older.lines[name], *newer.lines[name]) for name in older.lines}


@pytest.mark.parametrize(
    "more",
    [
        {"ipproto": "tcp"},
        {"tos": "0x10"},
        {"sport": 80},
        {"uid_start": 1, "uid_end": 2},
        {"suppress_prefixlen": 0},
        {"goto": 9},
        {"action": "blackhole"},
        {"l3mdev": None},
        {"tun_id": 5},
    ],
    ids=str,
)
def test_a_policy_rule_that_selects_by_more_is_another(more: dict[str, object]) -> None:
    plain = {"priority": 32764, "src": "all", "fwmark": "0x3ca", "table": "78"}
    ours, other = (IpState(rules={V4: [rule]}).lines()["rules.ipv4.ip"] for rule in (plain, plain | more))
    assert of_lines("rules.ipv4.ip", ours, {"rules.ipv4.ip": ours}).lines == ()
    assert of_lines("rules.ipv4.ip", ours, {"rules.ipv4.ip": other}).lines == tuple(ours)


def test_an_address_with_a_peer() -> None:
    info = {"family": "inet", "local": "10.0.0.1", "address": "10.0.0.2", "prefixlen": 32, "scope": "global"}
    state = IpState([{"ifname": "kube-dummy-if", "addr_info": [info]}])
    lines = state.of([Address(V4, "kube-dummy-if", "10.0.0.1/32")])["addresses.ip"]
    assert lines == ("addr add 10.0.0.1 peer 10.0.0.2/32 dev kube-dummy-if scope global",)


def test_two_that_cannot_both_be_there() -> None:
    one = "route add unicast 10.0.0.0/8 table 254 metric 5 via 192.0.2.1 dev eth0 proto 17 scope 0"
    assert identity(one) == identity(one.replace("192.0.2.1", "192.0.2.2"))
    assert identity(one) != identity(one.replace("table 254", "table 7"))
    assert identity(one) != identity(one.replace("metric 5", "metric 6"))
    assert not same_line(one, one.replace("proto 17", "proto 4"))
    rule = "rule add pref 9 from all lookup 7"
    assert identity(rule) != identity(rule.replace("lookup 7", "lookup 8"))
    port = "fou add port 5555 gue"
    assert identity(port) == identity("fou add port 5555 ipproto 4")
    assert identity(port) != identity(f"{port} -6")
    (found,) = of_lines("fou.ip", [port], {"fou.ip": ["fou add port 5555 ipproto 4"]}).objects
    assert (found.found, found.kind, found.family) == (Found.ANOTHER, Kind.FOU_PORT, V4)


# IPVS


SERVICES = [
    ("-A -t 203.0.113.66:80 -s rr", "-a -t 203.0.113.66:80 -r 198.51.100.3:8080 -m -w 1"),
    (
        "-A -u [2001:db8::1]:53 -s mh -p 300 -M 64 -o -b flag-1,flag-2",
        "-a -u [2001:db8::1]:53 -r [2001:db8::2]:53 -i -w 3 -x 100 -y 50 --tun-type gue --tun-port 5555 --tun-nocsum",
    ),
    ("-A -f 16051 -6 -s rr", "-a -f 16051 -6 -r [2001:db8::2]:80 -i -w 1", "-a -f 16051 -6 -r 192.0.2.2:80 -i -w 1"),
    ("-A -f 7 -s sh -p 50 -M 255.255.255.0 --pe sip", "-a -f 7 -r 192.0.2.2:0 -g -w 0"),
    ("-A --sctp-service 192.0.2.1:9 -s wlc",),
]  # fmt: skip


@pytest.mark.parametrize("lines", SERVICES, ids=lambda lines: lines[0])
def test_services_as_text(lines: tuple[str, ...]) -> None:
    service = VirtualService.parse(lines)
    first, *rest = service.lines()
    assert (first, sorted(rest)) == (lines[0], sorted(lines[1:]))


@pytest.mark.parametrize("lines", SERVICES, ids=lambda lines: lines[0])
def test_services_as_messages(lines: tuple[str, ...]) -> None:
    """What is sent to the kernel, read as what it would tell."""
    service = VirtualService.parse(lines)
    ((_kind, payload),) = attributes(encode_service(service, whole=True))
    read = decode_service(payload)
    assert read is not None
    netmask = service.family.bits if service.netmask is None else service.netmask
    assert read == attrs.evolve(service, destinations=(), netmask=netmask)
    assert next(read.lines()) == lines[0]
    for destination in service.destinations:
        ((_kind, payload),) = attributes(encode_destination(destination))
        assert decode_destination(payload, service.family) == destination
    # An old kernel does not say the family.
    old = attribute(1, bytes([192, 0, 2, 1]).ljust(16, b"\0")) + attribute(2, b"\0\x50") + attribute(3, b"\2\1\0\0")
    assert decode_destination(old, V4) == Destination(V4, "192.0.2.1", 80, method=2, weight=0)


def test_services_that_are_there() -> None:
    wanted = {"-f 16051 -6": SERVICES[2]}
    service = VirtualService.parse(SERVICES[2])

    def found(*current: VirtualService) -> tuple[Found, tuple[str, ...]]:
        result = of_services(wanted, current)
        return result.objects[0].found, result.lines

    assert found(service) == (Found.ALL, ())
    assert found()[0] is Found.NOTHING
    assert set(found()[1]) == set(SERVICES[2])
    half = attrs.evolve(service, destinations=service.destinations[:1])
    assert found(half) == (Found.PART, SERVICES[2][2:])
    assert found(attrs.evolve(service, scheduler="wlc"))[0] is Found.ANOTHER
    heavy = attrs.evolve(service.destinations[0], weight=9)
    assert found(attrs.evolve(service, destinations=(heavy,)))[0] is Found.ANOTHER
    (make,) = services_to_make(found(half)[1], wanted)
    assert make == (attrs.evolve(service, destinations=service.destinations[1:]), False)
    ((made, is_new),) = services_to_make(found()[1], wanted)
    assert (set(made.destinations), is_new) == (set(service.destinations), True)
    with pytest.raises(BackupError):
        of_services({"-t x": ("-A -t x",)}, [])


# The report


def test_a_report() -> None:
    outcomes = (
        RestoreOutcome(Kind.CHAIN, "mine", Restored.RESTORED, V4, NFT, "filter"),
        RestoreOutcome(Kind.SET, "a\x1b[31m", Restored.THERE, V4),
    )
    report = RestoreReport("/b", outcomes, changed=True)
    assert (report.complete, report.changed, report.exit_code) == (True, True, 0)
    assert [line.plain for line in restore_lines(report)] == [
        "put back: 1 chain",
        "already there: 1 set",
        "complete: all that /b holds is there",
    ]
    assert "  ipv4 nft filter chain mine" in [line.plain for line in restore_lines(report, verbose=True)]
    assert report.to_dict()["outcomes"][0] == {
        "kind": "chain", "family": "ipv4", "backend": "nft", "table": "filter", "name": "mine",
        "status": "restored", "text": None, "reason": None,
    }  # fmt: skip
    odd = RestoreOutcome(Kind.SET, "a\x1b[31m", Restored.DIFFERENT, V4, reason="it is another set")
    stopped = RestoreReport("/b", (odd,), ("lock held",))
    assert (stopped.complete, stopped.changed, stopped.exit_code) == (False, False, 1)
    assert [line.plain for line in restore_lines(stopped)] == [
        "there, but different: 1 set",
        "  ipv4 set a\\x1b[31m: it is another set",
        "lock held",
        "not complete, and nothing was changed",
    ]
    assert attrs.evolve(report, interrupted=15).exit_code == 143
