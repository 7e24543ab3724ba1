"""What is neither rule, chain, table nor set: each claim has its proof, and a look-alike beside it is foreign."""

from __future__ import annotations

import attrs
import pytest

from firewall_cleanup import Controller, Family, Status
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.components.kube_router_host import tunnel_names
from firewall_cleanup.dumps import read_dumps
from firewall_cleanup.model import (
    Address,
    FouPort,
    Gap,
    IpSet,
    IpvsService,
    Link,
    PolicyRule,
    Route,
    Snapshot,
)
from firewall_cleanup.ownership import claim
from firewall_cleanup.plan import make_plan

BOTH = frozenset(Family)
ALL = frozenset(Controller)


@attrs.frozen
class Side:
    """The addresses of one family, so that each test is written once for both."""

    family: Family
    service: str
    node: str
    pod: str
    foreign: str
    pods: str
    peer: str
    prefix: str
    tunnel: str

    def end(self, host: str, port: int) -> str:
        return f"{host}:{port}" if self.family is Family.IPV4 else f"[{host}]:{port}"

    def host(self, address: str) -> str:
        return f"{address}/{self.family.bits}"

    def set_name(self, name: str) -> str:
        return self.prefix + name


SIDES = [
    Side(
        Family.IPV4, "203.0.113.130", "192.0.2.10", "198.51.100.2", "192.0.2.99", "198.51.100.0/26", "192.0.2.200",
        "", "ipip",
    ),
    Side(
        Family.IPV6, "2001:db8:ff::82", "2001:db8::10", "2001:db8:a::2", "2001:db8:9::9", "2001:db8:a::/64",
        "2001:db8:2::200", "inet6:", "ip6tnl",
    ),
]  # fmt: skip
sides = pytest.mark.parametrize("side", SIDES, ids=lambda side: side.family.value)
DUMMY = Link("kube-dummy-if", "dummy", 4)


def service(side: Side, address: str, port: int, *destinations: str, protocol: str = "tcp") -> IpvsService:
    return IpvsService(side.family, protocol, address, port, destinations=frozenset(destinations))


def evidence(snapshot: Snapshot, item: object) -> str | None:
    found = claim(snapshot, KUBE_ROUTER).items.get(item)  # type: ignore[call-overload]
    return None if found is None else found.evidence


def sets(side: Side, name: str, *members: str, kind: str = "hash:ip,port") -> dict[str, IpSet]:
    return {name: IpSet(name, kind, side.family, members=members)}


@sides
def test_a_service_on_the_dummy_link_is_owned_and_one_elsewhere_is_not(side: Side) -> None:
    owned, foreign = service(side, side.service, 80), service(side, side.foreign, 80)
    snapshot = Snapshot(
        links=(DUMMY,),
        addresses=(Address(side.family, DUMMY.name, side.host(side.service)),),
        services=(owned, foreign),
    )

    assert evidence(snapshot, owned) == "dummy-address"
    assert evidence(snapshot, foreign) is None


@sides
def test_the_dummy_links_name_alone_proves_nothing(side: Side) -> None:
    link = attrs.evolve(DUMMY, kind="bridge")
    owned = service(side, side.service, 80)
    snapshot = Snapshot(
        links=(link,), addresses=(Address(side.family, link.name, side.host(side.service)),), services=(owned,)
    )

    assert not claim(snapshot, KUBE_ROUTER).items


@sides
def test_a_mark_is_proven_by_a_policy_rule_of_its_family_exactly(side: Side) -> None:
    marked, other = IpvsService(side.family, mark=0x8E), IpvsService(side.family, mark=0x8EF)
    rule = PolicyRule(side.family, 78, 32764, mark=0x8E)
    snapshot = Snapshot(policy_rules=(rule,), services=(marked, other))

    assert evidence(snapshot, marked) == "fwmark"
    assert evidence(snapshot, other) is None
    for wrong in (
        attrs.evolve(rule, table=780),
        attrs.evolve(rule, plain=False),
        attrs.evolve(rule, source=side.pods),
        attrs.evolve(rule, family=next(f for f in Family if f is not side.family)),
    ):
        assert evidence(attrs.evolve(snapshot, policy_rules=(wrong,)), marked) is None


@pytest.mark.parametrize(("family", "name"), [(Family.IPV4, "iptables-save"), (Family.IPV6, "ip6tables-save")])
def test_a_mark_is_proven_by_an_owned_mangle_rule(family: Family, name: str) -> None:
    address, mark = ("203.0.113.10", 16051) if family is Family.IPV4 else ("2001:db8:ee::10", 9130)
    rule = f"-A PREROUTING -d {address} -p tcp -m tcp --dport 80 -j MARK --set-xmark {mark:#x}/0xffffffff"
    snapshot = read_dumps({name: f"*mangle\n:PREROUTING ACCEPT [0:0]\n{rule}\nCOMMIT\n"})
    owned, foreign = IpvsService(family, mark=mark), IpvsService(family, mark=mark + 1)
    snapshot = attrs.evolve(snapshot, services=(owned, foreign))

    assert evidence(snapshot, owned) == "fwmark"
    assert evidence(snapshot, foreign) is None


@pytest.mark.parametrize(("family", "name"), [(Family.IPV4, "iptables-save"), (Family.IPV6, "ip6tables-save")])
def test_a_mangle_rule_with_another_mark_is_proven_by_the_policy_rule(family: Family, name: str) -> None:
    address = "203.0.113.10" if family is Family.IPV4 else "2001:db8:ee::10"
    text = f"-A PREROUTING -d {address} -p tcp -m tcp --dport 80 -j MARK --set-xmark 0x2aaa/0xffffffff"
    snapshot = read_dumps({name: f"*mangle\n:PREROUTING ACCEPT [0:0]\n{text}\nCOMMIT\n"})
    proven = attrs.evolve(snapshot, policy_rules=(PolicyRule(family, 78, mark=0x2AAA),))

    assert not any(claim(snapshot, KUBE_ROUTER).rules.values())
    assert any(claim(proven, KUBE_ROUTER).rules.values())


@sides
def test_a_node_port_is_proven_by_the_service_set(side: Side) -> None:
    owned, other_port = service(side, side.node, 30080), service(side, side.node, 30081)
    udp = service(side, side.node, 30080, protocol="udp")
    snapshot = Snapshot(
        sets=sets(side, side.set_name("kube-router-svip-prt"), f"{side.node},tcp:30080"),
        services=(owned, other_port, udp),
    )

    assert evidence(snapshot, owned) == "service-set"
    assert evidence(snapshot, other_port) is None
    assert evidence(snapshot, udp) is None


@sides
def test_a_node_port_is_proven_by_the_destinations_of_a_proven_service(side: Side) -> None:
    end, other_end = side.end(side.pod, 8080), side.end(side.pod, 8081)
    base = service(side, side.service, 80, end)
    owned = service(side, side.node, 41000, end)
    foreign = [
        service(side, side.node, 41001, other_end),
        service(side, side.node, 41002),
        service(side, side.node, 41003, end, protocol="udp"),
    ]
    snapshot = Snapshot(
        links=(DUMMY,),
        addresses=(Address(side.family, DUMMY.name, side.host(side.service)),),
        services=(base, owned, *foreign),
    )

    assert evidence(snapshot, owned) == "same-destinations"
    assert [evidence(snapshot, each) for each in foreign] == [None, None, None]


@sides
@pytest.mark.parametrize("source", ["set", "rule"])
def test_a_node_port_is_proven_by_its_range_and_pod_destinations(side: Side, source: str) -> None:
    owned = service(side, side.node, 30080, side.end(side.pod, 1))
    foreign = [
        service(side, side.node, 29999, side.end(side.pod, 1)),
        service(side, side.node, 30081, side.end(side.pod, 1), side.end(side.foreign, 1)),
        service(side, side.node, 30082),
    ]
    snapshot = Snapshot(services=(owned, *foreign))
    if source == "set":
        name = side.set_name("kube-router-pod-subnets")
        snapshot = attrs.evolve(snapshot, sets=sets(side, name, side.pods, kind="hash:net"))
    else:
        snapshot = attrs.evolve(snapshot, policy_rules=(PolicyRule(side.family, 77, source=side.pods),))

    assert evidence(snapshot, owned) == "pod-destinations"
    assert [evidence(snapshot, each) for each in foreign] == [None, None, None]


@sides
def test_what_kube_proxy_explains_is_kept_and_is_no_residue(side: Side) -> None:
    six = "6-" if side.family is Family.IPV6 else ""
    by_link, by_set, by_port, alone = (service(side, side.service, port) for port in (80, 81, 30080, 83))
    proxy = Link("kube-ipvs0", "dummy", 5)
    elsewhere = str(side.foreign)
    shared = Snapshot(
        links=(DUMMY, proxy),
        addresses=(
            Address(side.family, DUMMY.name, side.host(side.service)),
            Address(side.family, DUMMY.name, side.host(elsewhere)),
            Address(side.family, proxy.name, side.host(elsewhere)),
        ),
        sets={
            **sets(side, f"KUBE-{six}CLUSTER-IP", f"{side.service},tcp:81"),
            f"KUBE-{six}NODE-PORT-TCP": IpSet(f"KUBE-{six}NODE-PORT-TCP", "bitmap:port", members=("30080",)),
        },
        services=(attrs.evolve(by_link, address=elsewhere), by_set, by_port, alone),
    )
    claims = claim(shared, KUBE_ROUTER)
    plan = make_plan(shared, claims, controllers=ALL, families=BOTH)

    assert plan.services() == (alone,)
    assert {plan.left[s].status for s in shared.services if s != alone} == {Status.KEPT}


@sides
def test_look_alikes_of_kube_proxys_sets_share_nothing(side: Side) -> None:
    owned = service(side, side.service, 80)
    snapshot = Snapshot(
        links=(DUMMY,),
        addresses=(Address(side.family, DUMMY.name, side.host(side.service)),),
        sets=sets(side, "KUBE-CLUSTER-IPS", f"{side.service},tcp:80"),
        services=(owned,),
    )

    assert make_plan(snapshot, claim(snapshot, KUBE_ROUTER), controllers=ALL, families=BOTH).services() == (owned,)


@sides
def test_node_ports_go_before_what_proves_them(side: Side) -> None:
    end = side.end(side.pod, 8080)
    base, node_port = service(side, side.service, 80, end), service(side, side.node, 30080, end)
    snapshot = Snapshot(
        links=(DUMMY,),
        addresses=(Address(side.family, DUMMY.name, side.host(side.service)),),
        services=(base, node_port),
    )
    plan = make_plan(snapshot, claim(snapshot, KUBE_ROUTER), controllers=ALL, families=BOTH)

    assert plan.services() == (node_port, base)


@sides
def test_routing_alone_keeps_what_alone_proves_a_node_port(side: Side) -> None:
    """Else the service proxy's own cleanup could not claim that service any more."""
    name = side.set_name("kube-router-pod-subnets")
    node_port = service(side, side.node, 30080, side.end(side.pod, 1))
    snapshot = Snapshot(sets=sets(side, name, side.pods, kind="hash:net"), services=(node_port,))
    claims = claim(snapshot, KUBE_ROUTER)
    alone = make_plan(snapshot, claims, controllers=frozenset({Controller.ROUTING}), families=BOTH)
    together = make_plan(snapshot, claims, controllers=ALL, families=BOTH)

    assert alone.left[name].status is Status.KEPT
    assert alone.set_names() == ()
    assert together.set_names() == (name,)


@sides
@pytest.mark.parametrize("subsystem", ["ipset", "routing"])
def test_services_stay_while_it_cannot_be_told_whether_kube_proxy_shares_them(side: Side, subsystem: str) -> None:
    snapshot = Snapshot(
        policy_rules=(PolicyRule(side.family, 78, mark=5),),
        services=(IpvsService(side.family, mark=5),),
        gaps=(Gap("unread", subsystem=subsystem),),
    )
    plan = make_plan(snapshot, claim(snapshot, KUBE_ROUTER), controllers=ALL, families=BOTH)

    assert plan.services() == ()


@sides
def test_proofs_stay_while_ipvs_is_unread(side: Side) -> None:
    name = side.set_name("kube-router-svip-prt")
    snapshot = Snapshot(
        links=(DUMMY,),
        addresses=(Address(side.family, DUMMY.name, side.host(side.service)),),
        policy_rules=(PolicyRule(side.family, 78, mark=5), PolicyRule(side.family, 79)),
        sets=sets(side, name),
        gaps=(Gap("unread", subsystem="ipvs"),),
    )
    plan = make_plan(snapshot, claim(snapshot, KUBE_ROUTER), controllers=ALL, families=BOTH)

    assert plan.items() == (PolicyRule(side.family, 79),)
    assert plan.set_names() == ()


@sides
@pytest.mark.parametrize(
    ("changes", "owner"),
    [
        ({"table": 77, "source": "pods"}, Controller.ROUTING),
        ({"table": 78, "mark": 0x8E}, Controller.SERVICE_PROXY),
        ({"table": 79}, Controller.SERVICE_PROXY),
        ({"table": 77}, None),
        ({"table": 77, "source": "pods", "mark": 1}, None),
        ({"table": 78, "mark": 0x8E, "plain": False}, None),
        ({"table": 78}, None),
        ({"table": 79, "mark": 1}, None),
        ({"table": 79, "source": "pods"}, None),
        ({"table": 780, "mark": 0x8E}, None),
        ({"table": 254}, None),
    ],
)
def test_policy_rules_are_compared_by_their_fields(side: Side, changes: dict, owner: Controller | None) -> None:
    fields = {key: side.pods if value == "pods" else value for key, value in changes.items()}
    for priority in (32764, 5):
        rule = PolicyRule(side.family, priority=priority, **fields)
        found = claim(Snapshot(policy_rules=(rule,)), KUBE_ROUTER).items.get(rule)

        assert (found.controller if found else None) is owner


@sides
@pytest.mark.parametrize(
    ("changes", "owned"),
    [
        ({"table": 254, "protocol": 17, "gateway": "peer", "device": "eth0"}, True),
        ({"table": 254, "protocol": 17, "device": "tunnel"}, True),
        ({"table": 254, "protocol": 17, "device": "eth0", "scope": 253}, False),
        ({"table": 254, "protocol": 17, "device": "tun-home"}, False),
        ({"table": 254, "protocol": 4, "gateway": "peer", "device": "eth0"}, False),
        ({"table": 254, "protocol": 17, "gateway": "peer", "type": 0}, False),
        ({"table": 100, "protocol": 17, "gateway": "peer"}, False),
        ({"table": 77, "device": "tunnel"}, True),
        ({"table": 77, "device": "eth0"}, False),
        ({"table": 78, "destination": "default", "type": 2, "device": "lo", "scope": 254}, True),
        ({"table": 78, "destination": "default", "type": 1, "device": "lo"}, False),
        ({"table": 78, "type": 2, "device": "lo"}, False),
        ({"table": 79, "device": "kube-bridge"}, True),
        ({"table": 79, "device": "eth0"}, False),
    ],
)
def test_routes_are_owned_by_table_or_protocol_and_form(side: Side, changes: dict, owned: bool) -> None:
    tunnel = Link(min(n for n in tunnel_names(side.peer) if len(n) == 15), side.tunnel, 7, remote=side.peer)
    home = Link("tun-home", side.tunnel, 8, remote=side.peer)
    words = {
        "peer": side.peer,
        "tunnel": tunnel.name,
        "default": "0.0.0.0/0" if side.family is Family.IPV4 else "::/0",
    }
    fields = {key: words.get(value, value) if isinstance(value, str) else value for key, value in changes.items()}
    route = Route(side.family, **{"destination": side.pods, **fields})
    snapshot = Snapshot(links=(tunnel, home), routes=(route,))

    assert (route in claim(snapshot, KUBE_ROUTER).items) is owned


@sides
def test_a_tunnel_is_owned_if_its_name_is_made_of_its_other_end(side: Side) -> None:
    names = sorted(tunnel_names(side.peer))
    owned = [Link(name, side.tunnel, i, remote=side.peer) for i, name in enumerate(names)]
    foreign = [
        Link("tun-home", side.tunnel, 20, remote=side.peer),
        Link(names[0], "gre", 21, remote=side.peer),
        Link(names[0], side.tunnel, 22, remote=side.foreign),
        Link("tunl0", "ipip", 23),
        Link("ip6tnl0", "ip6tnl", 24),
    ]
    for link in owned:
        assert claim(Snapshot(links=(link,)), KUBE_ROUTER).items[link].evidence == "tunnel-name"
    for link in foreign:
        assert not claim(Snapshot(links=(link,)), KUBE_ROUTER).items


def test_a_fou_port_goes_with_its_tunnels_unless_others_use_it() -> None:
    side = SIDES[0]
    tunnel = Link("tun-8bae244745f", "ipip", 7, remote=side.peer, encap_port=5555)
    other = Link("tun-home", "ipip", 8, remote=side.foreign, encap_port=5555)
    port, foreign = FouPort(Family.IPV4, 5555), FouPort(Family.IPV4, 5556)
    alone = Snapshot(links=(tunnel,), fou_ports=(port, foreign))
    both = Snapshot(links=(tunnel, other), fou_ports=(port, foreign))
    plan = make_plan(alone, claim(alone, KUBE_ROUTER), controllers=ALL, families=BOTH)
    held = make_plan(both, claim(both, KUBE_ROUTER), controllers=ALL, families=BOTH)

    assert plan.items() == (port, tunnel)
    assert held.items() == (tunnel,)
    assert held.left[port].status is Status.IN_USE


def test_a_bridge_with_ports_is_kept_unless_asked_for() -> None:
    bridge, port = Link("kube-bridge", "bridge", 3), Link("veth1", "veth", 9, master="kube-bridge")
    snapshot = Snapshot(links=(bridge, port))
    claims = claim(snapshot, KUBE_ROUTER)
    plan = make_plan(snapshot, claims, controllers=ALL, families=BOTH)
    forced = make_plan(snapshot, claims, controllers=ALL, families=BOTH, remove_bridge=True)

    assert plan.items() == ()
    assert plan.left[bridge].status is Status.IN_USE
    assert "veth1" in plan.left[bridge].reason
    assert forced.items() == (bridge,)


def test_one_family_leaves_links_that_serve_both_and_takes_their_addresses() -> None:
    addresses = tuple(Address(side.family, DUMMY.name, side.host(side.service)) for side in SIDES)
    snapshot = Snapshot(links=(DUMMY,), addresses=addresses)
    claims = claim(snapshot, KUBE_ROUTER)
    one = make_plan(snapshot, claims, controllers=ALL, families=frozenset({Family.IPV4}))
    both = make_plan(snapshot, claims, controllers=ALL, families=BOTH)

    assert one.items() == (addresses[0],)
    assert both.items() == (DUMMY,)


def test_an_address_that_kube_proxy_serves_says_so() -> None:
    side = SIDES[0]
    address = Address(side.family, DUMMY.name, side.host(side.service))
    snapshot = Snapshot(
        links=(DUMMY,), addresses=(address,), sets=sets(side, "KUBE-EXTERNAL-IP", f"{side.service},tcp:80")
    )

    assert "next sync" in claim(snapshot, KUBE_ROUTER).items[address].note


@sides
def test_a_source_with_host_bits_is_read(side: Side) -> None:
    """The kernel keeps them, and `ip rule` of old releases gave them."""
    source = f"{side.pod}/{side.pods.partition('/')[2]}"
    rule = PolicyRule(side.family, 77, source=source)
    node_port = service(side, side.node, 30080, side.end(side.pod, 1))
    snapshot = Snapshot(policy_rules=(rule,), services=(node_port,))

    assert evidence(snapshot, node_port) == "pod-destinations"
    assert evidence(snapshot, rule) == "policy-rule"


@sides
def test_sets_of_another_type_than_their_name_says_are_no_trouble(side: Side) -> None:
    node_port = service(side, side.node, 30080, side.end(side.pod, 1))
    snapshot = Snapshot(
        sets={
            **sets(side, side.set_name("kube-router-pod-subnets"), "", "eth0,1"),
            **sets(side, "KUBE-NODE-PORT-TCP", "", "x"),
            **sets(side, "KUBE-CLUSTER-IP", "", "192.0.2.1"),
        },
        services=(node_port,),
    )

    assert claim(snapshot, KUBE_ROUTER).items == {}
