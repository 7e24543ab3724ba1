"""Small nodes for unit tests: tables as text, sets by name, a run on a clock that only sleeping moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from firewall_cleanup import Backend, CleanupReport, Controller, Family
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.components.kube_router_host import tunnel_names
from firewall_cleanup.engine import Settings, run
from firewall_cleanup.model import (
    Address,
    FouPort,
    IpSet,
    IpvsService,
    Link,
    NativeTable,
    PolicyRule,
    Route,
    Snapshot,
    TableKey,
)
from firewall_cleanup.ownership import Claims, claim
from firewall_cleanup.testing import MemoryHost, read_table

V4, V6 = Family.IPV4, Family.IPV6
NFT, LEGACY = Backend.NFT, Backend.LEGACY
ALL = frozenset(Controller)
PROXY, POLICY, ROUTING = Controller.SERVICE_PROXY, Controller.NETWORK_POLICY, Controller.ROUTING

H = "ABCDEFGHIJKLM234"  # as long as kube-router's hashes, of their letters


def key(table: str = "filter", family: Family = V4, backend: Backend = NFT) -> TableKey:
    return TableKey(family, backend, table)


def snapshot(
    tables: Mapping[TableKey, str], sets: Iterable[IpSet] = (), natives: Iterable[NativeTable] = ()
) -> Snapshot:
    """A snapshot of tables as `iptables -S` text; sets that rules use are made where none are given."""
    built = {k: read_table(k, text) for k, text in tables.items()}
    known = {item.name: item for item in sets}
    for k, table in built.items():
        for rule in (rule for own in table.rules.values() for rule in own):
            for name in rule.sets:
                known.setdefault(name, IpSet(name, "hash:ip", k.family))
    return Snapshot(built, tuple(natives), known)


def node(
    tables: Mapping[TableKey, str] | None = None,
    sets: Iterable[IpSet] = (),
    natives: Iterable[NativeTable] = (),
    **switches: Any,
) -> MemoryHost:
    return MemoryHost(snapshot(tables or {}, sets, natives), **switches)


def host_node(family: Family = V4) -> MemoryHost:
    """A node with objects of every kind that is neither in a table nor a set, some of them held or shared."""
    six = family is V6
    own, shared, pod, ours, peer = (
        ("2001:db8:96::1", "2001:db8:96::2", "[2001:db8:244::2]", "2001:db8::10", "2001:db8::200")
        if six
        else ("10.96.0.1", "10.96.0.2", "10.244.0.2", "192.0.2.10", "192.0.2.200")
    )
    pods, peer_pods = ("2001:db8:244::/64", "2001:db8:245::/64") if six else ("10.244.0.0/24", "10.244.1.0/24")
    services = [
        IpvsService(family, "tcp", own, 443, destinations=frozenset({f"{pod}:80"})),
        IpvsService(family, "tcp", shared, 443),
        IpvsService(family, mark=16051),
        IpvsService(family, "tcp", ours, 30080, destinations=frozenset({f"{pod}:80"})),
    ]
    tunnel, number = min(tunnel_names(peer)), 6 if six else 5
    links = [
        Link("kube-dummy-if", "dummy", 2),
        Link("kube-ipvs0", "dummy", 3),
        Link("kube-bridge", "bridge", 4),
        Link("veth1", "veth", 5, master="kube-bridge"),
        Link(tunnel, "ip6tnl" if six else "ipip", number + 1, remote=peer, encap_port=number * 1111),
        Link("eth0", "", 9),
    ]
    addresses = [("kube-dummy-if", own), ("kube-dummy-if", shared), ("kube-ipvs0", shared)]
    return MemoryHost(
        Snapshot(
            links=tuple(links),
            addresses=tuple(Address(family, link, f"{address}/{family.bits}") for link, address in addresses),
            policy_rules=(
                PolicyRule(family, 78, 32764, mark=16051),
                PolicyRule(family, 77, 32763, source=pods),
            ),
            routes=(
                Route(family, 78, "::/0" if six else "0.0.0.0/0", type=2, device="lo"),
                Route(family, 77, peer_pods, device=tunnel),
                Route(family, 254, peer_pods, protocol=17, device=tunnel),
            ),
            fou_ports=(FouPort(family, number * 1111),),
            services=tuple(services),
        )
    )


def claims(tables: Mapping[TableKey, str], sets: Iterable[IpSet] = ()) -> Claims:
    """What is claimed on a node, as its host shows it."""
    return claim(node(tables, sets).state, KUBE_ROUTER)


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def clean(
    host: MemoryHost, controllers: frozenset[Controller] = ALL, *, clock: Clock | None = None, **settings: Any
) -> CleanupReport:
    clock = clock or Clock()
    chosen = Settings(clock=clock, sleep=clock.sleep, lock=host.lock, **settings)
    return run(host, KUBE_ROUTER, controllers, chosen)


def lines(host: MemoryHost, where: TableKey, chain: str) -> list[str]:
    """The rules of a chain as iptables prints them."""
    return host.texts(where, chain) or []
