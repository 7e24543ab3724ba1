"""The engine on what is neither rule, chain, table nor set: order, failures, and a report that tells the truth."""

from __future__ import annotations

import errno

import attrs
import pytest

from firewall_cleanup import Backend, Controller, Family, Status
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.dumps import read_dumps
from firewall_cleanup.engine import Settings, run
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
    TableKey,
)
from firewall_cleanup.testing.memory import Crash, MemoryHost

ALL = frozenset(Controller)
DUMMY, PROXY = Link("kube-dummy-if", "dummy", 4), Link("kube-ipvs0", "dummy", 5)
TUNNEL = Link("tun-8bae244745f", "ipip", 7, remote="192.0.2.200")
END = frozenset({"198.51.100.2:8080"})
OWN = IpvsService(Family.IPV4, "tcp", "203.0.113.130", 80, destinations=END)
NODE_PORT = IpvsService(Family.IPV4, "tcp", "192.0.2.10", 30080, destinations=END)
SHARED = IpvsService(Family.IPV4, "tcp", "203.0.113.131", 80)
FOREIGN = IpvsService(Family.IPV4, "tcp", "192.0.2.99", 6443)
NODE = Snapshot(
    links=(DUMMY, PROXY, TUNNEL),
    addresses=(
        Address(Family.IPV4, DUMMY.name, "203.0.113.130/32"),
        Address(Family.IPV4, DUMMY.name, "203.0.113.131/32"),
        Address(Family.IPV4, PROXY.name, "203.0.113.131/32"),
    ),
    policy_rules=(
        PolicyRule(Family.IPV4, 77, 32765, source="198.51.100.0/26"),
        PolicyRule(Family.IPV6, 78, 32764, mark=9),
        PolicyRule(Family.IPV4, 780, 32764, mark=9),
    ),
    routes=(
        Route(Family.IPV4, 77, "192.0.2.200/32", device=TUNNEL.name),
        Route(Family.IPV4, 254, "198.51.100.64/26", protocol=17, gateway="192.0.2.11", device="eth0"),
        Route(Family.IPV4, 254, "198.18.0.0/16", protocol=17, device="eth0", scope=253),
    ),
    services=(OWN, NODE_PORT, SHARED, FOREIGN, IpvsService(Family.IPV6, mark=9)),
)
REST = attrs.evolve(
    NODE,
    links=(PROXY,),
    addresses=NODE.addresses[2:],
    policy_rules=NODE.policy_rules[2:],
    routes=NODE.routes[2:],
    services=(SHARED, FOREIGN),
)


def test_all_goes_but_what_is_others_or_shared() -> None:
    host = MemoryHost(NODE)
    report = run(host, KUBE_ROUTER, ALL)
    again = run(host, KUBE_ROUTER, ALL)

    assert host.state == REST
    assert report.clean
    assert not again.changed
    assert again.outcomes == ()


def test_what_is_shared_is_kept_also_when_its_proof_has_gone() -> None:
    """The dummy link goes, and with it the proof; the service is there all the same, and was not removed."""
    report = run(MemoryHost(NODE), KUBE_ROUTER, ALL)
    planned = run(MemoryHost(NODE), KUBE_ROUTER, ALL, Settings(dry_run=True))
    (kept,) = (o for o in report.outcomes if o.status is Status.KEPT)

    assert kept.name == SHARED.name
    assert "kube-ipvs0" in (kept.reason or "")
    assert kept.name not in {o.name for o in report.outcomes if o.status is Status.REMOVED}
    assert kept in planned.outcomes


def test_a_dry_run_lists_what_the_run_removes() -> None:
    host = MemoryHost(NODE)
    planned = run(host, KUBE_ROUTER, ALL, Settings(dry_run=True))

    assert host.state == NODE
    assert not planned.changed
    report = run(host, KUBE_ROUTER, ALL)
    named = [(o.kind, o.name) for o in planned.outcomes if o.status is Status.PLANNED]
    assert named == [(o.kind, o.name) for o in report.outcomes if o.status is Status.REMOVED]


@pytest.mark.parametrize("writes", range(1, 12))
def test_killed_after_any_write_and_finished_by_the_next_run(writes: int) -> None:
    host = MemoryHost(NODE, crash_after=writes)
    try:
        run(host, KUBE_ROUTER, ALL)
    except Crash:
        host.crash_after = None
    report = run(host, KUBE_ROUTER, ALL)

    assert host.state == REST
    assert report.clean


@pytest.mark.parametrize("writes", range(1, 12))
def test_killed_and_finished_by_one_controller_after_the_other(writes: int) -> None:
    host = MemoryHost(NODE, crash_after=writes)
    try:
        run(host, KUBE_ROUTER, ALL)
    except Crash:
        host.crash_after = None
    for controller in (Controller.ROUTING, Controller.SERVICE_PROXY, Controller.ROUTING):
        run(host, KUBE_ROUTER, frozenset({controller}))

    assert host.state == REST


def test_services_that_cannot_be_removed_keep_what_proves_them() -> None:
    host = MemoryHost(NODE, errors={"delete IpvsService": errno.EPERM})
    report = run(host, KUBE_ROUTER, ALL)

    assert DUMMY in host.state.links
    assert TUNNEL not in host.state.links
    assert {
        o.name: o.status for o in report.residue if "30080" in o.name or "fwmark" in o.name or ":80" in o.name
    } == {
        NODE_PORT.name: Status.DENIED,
        OWN.name: Status.FAILED,
        "fwmark 9": Status.FAILED,
    }
    assert report.exit_code == 1
    host.errors.clear()
    assert run(host, KUBE_ROUTER, ALL).clean
    assert host.state == REST


@pytest.mark.parametrize("subsystem", ["ipvs", "routing"])
def test_a_part_that_cannot_be_read_is_a_gap_and_protects_the_rest(subsystem: str) -> None:
    host = MemoryHost(NODE, gaps=(Gap("not opened", subsystem=subsystem),))
    report = run(host, KUBE_ROUTER, ALL)

    assert not report.clean
    assert host.state.services == NODE.services
    assert DUMMY in host.state.links


def test_network_policy_alone_asks_for_neither_ipvs_nor_routes() -> None:
    gaps = (Gap("not opened", subsystem="ipvs"), Gap("not opened", subsystem="routing"))
    host = MemoryHost(NODE, errors={"ipvs": errno.EPERM, "routing": errno.EPERM}, gaps=gaps)
    report = run(host, KUBE_ROUTER, frozenset({Controller.NETWORK_POLICY}))

    assert report.clean
    assert host.state == NODE


def test_what_kube_proxys_sets_explain_is_kept() -> None:
    name = "KUBE-EXTERNAL-IP"
    item = IpSet(name, "hash:ip,port", Family.IPV4, members=("203.0.113.130,tcp:80", "203.0.113.130,tcp:81"))
    node = attrs.evolve(NODE, sets={name: item})
    host = MemoryHost(node)
    report = run(host, KUBE_ROUTER, ALL)

    assert OWN in host.state.services
    (address,) = (o for o in report.outcomes if o.name == "203.0.113.130/32")
    assert "next sync" in (address.reason or "")
    assert NODE_PORT not in host.state.services


def test_notes_are_in_the_report_where_there_are_any() -> None:
    found = run(MemoryHost(NODE), KUBE_ROUTER, ALL).to_dict()
    nothing = run(MemoryHost(), KUBE_ROUTER, ALL).to_dict()

    assert any("sysctls" in note for note in found["notes"])
    assert "notes" not in nothing


def test_sets_that_cannot_be_read_are_one_gap_a_family() -> None:
    host = MemoryHost(NODE, errors={"list": errno.EPERM}, gaps=(Gap("not opened", Family.IPV4, subsystem="ipset"),))
    gaps = [gap for gap in run(host, KUBE_ROUTER, ALL).gaps if gap.subsystem == "ipset"]

    assert [(gap.family, gap.reason == "not opened") for gap in gaps] == [(Family.IPV4, True), (Family.IPV6, False)]


@pytest.mark.parametrize("subsystem", ["ipset", "routing", "ipvs"])
def test_what_is_unread_costs_no_service_its_proof(subsystem: str) -> None:
    """Killed or blind, the next run must still be able to claim what this one left."""
    host = MemoryHost(NODE, errors={{"ipset": "list"}.get(subsystem, subsystem): errno.EPERM})
    blind = run(host, KUBE_ROUTER, ALL)
    host.errors.clear()
    report = run(host, KUBE_ROUTER, ALL)

    assert not blind.clean
    assert report.clean
    assert host.state == REST


def test_a_service_that_stays_keeps_those_that_prove_it() -> None:
    host = MemoryHost(NODE)
    refused = []

    def refuse(step: str) -> None:
        if step == "delete IpvsService" and not refused:
            refused.append(step)
            host.errors[step] = errno.EBUSY
        elif refused:
            host.errors.clear()

    host.before_commit = refuse
    report = run(host, KUBE_ROUTER, ALL)

    assert {NODE_PORT, OWN} <= set(host.state.services)
    assert DUMMY in host.state.links
    assert report.exit_code == 1
    host.before_commit = None
    assert run(host, KUBE_ROUTER, ALL).clean
    assert host.state == REST


def test_a_fou_port_that_stays_keeps_its_tunnel() -> None:
    tunnel = attrs.evolve(TUNNEL, encap_port=5555)
    node = Snapshot(links=(tunnel,), fou_ports=(FouPort(Family.IPV4, 5555),))
    host = MemoryHost(node, errors={"delete FouPort": errno.EPERM})
    report = run(host, KUBE_ROUTER, ALL)

    assert host.state == node
    assert len(report.residue) == 2
    host.errors.clear()
    assert run(host, KUBE_ROUTER, ALL).clean


@pytest.mark.parametrize(
    ("subsystem", "gone"),
    [("fou", {"link"}), ("routing", set()), ("ipvs", {"link", "fou-port"})],
)
def test_what_could_not_be_read_again_is_not_called_gone(subsystem: str, gone: set[str]) -> None:
    """A port is read beside the links, and may be unread alone."""
    tunnel = attrs.evolve(TUNNEL, encap_port=5555)
    host = MemoryHost(
        Snapshot(
            links=(tunnel, DUMMY),
            addresses=NODE.addresses[:1],
            fou_ports=(FouPort(Family.IPV4, 5555),),
            services=(OWN,),
        )
    )

    def lose(step: str) -> None:
        if step == "delete Link":
            host.errors[subsystem] = errno.ENOBUFS

    host.before_commit = lose
    report = run(host, KUBE_ROUTER, ALL)

    assert {gap.subsystem for gap in report.gaps} == {subsystem}
    kinds = {o.kind.value for o in report.outcomes if o.status is Status.REMOVED}
    assert kinds & {"link", "fou-port"} == gone
    assert ("ipvs-service" in kinds) is (subsystem != "ipvs")
    host.errors.clear()
    assert run(host, KUBE_ROUTER, ALL).clean


def test_a_pod_that_comes_meanwhile_keeps_its_bridge() -> None:
    bridge, pod = Link("kube-bridge", "bridge", 3), Link("veth1", "veth", 9, master="kube-bridge")
    owned = IpSet("kube-router-node-ips", "hash:ip", Family.IPV4)
    host = MemoryHost(Snapshot(links=(bridge,), sets={owned.name: owned}))

    def come(step: str) -> None:
        if step == "sets":
            host._others = attrs.evolve(host._others, links=(bridge, pod))

    host.before_commit = come
    report = run(host, KUBE_ROUTER, ALL)

    assert bridge in host.state.links
    assert [o.status for o in report.residue] == [Status.IN_USE]


def test_a_service_that_a_later_reading_shows_goes_before_its_proof() -> None:
    """nf_tables could not be read at first; the mark rule that proves a service is seen only later."""
    text = "*mangle\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -d 203.0.113.10 -p tcp -m tcp --dport 80"
    tables = read_dumps({"iptables-save": f"{text} -j MARK --set-xmark 0x3eb3/0xffffffff\nCOMMIT\n"}).tables
    node = Snapshot(tables=tables, services=(IpvsService(Family.IPV4, mark=0x3EB3),))
    dump = MemoryHost.dump_nft

    class Slow(MemoryHost):
        tries = 0

        def dump_nft(self, interest):  # type: ignore[no-untyped-def]
            type(self).tries += 1
            if type(self).tries > 1:
                self.errors.pop("dump", None)
            return dump(self, interest)

    slow = Slow(node, errors={"dump": errno.EAGAIN})
    report = run(slow, KUBE_ROUTER, ALL)

    assert slow.state.services == ()
    assert report.clean


def test_what_comes_while_services_cannot_be_removed_is_reported() -> None:
    """The plan is made anew then, and has more; what goes by it is told."""
    key = TableKey(Family.IPV4, Backend.LEGACY, "filter")
    text = "*filter\n:FORWARD ACCEPT [0:0]\n:KUBE-ROUTER-FORWARD - [0:0]\nCOMMIT\n"
    (table,) = read_dumps({"iptables-save": text}).tables.values()
    tables = {**NODE.tables, key: attrs.evolve(table, key=key)}
    host = MemoryHost(attrs.evolve(NODE, tables=tables), errors={"delete IpvsService": errno.EPERM})

    def write(step: str) -> None:
        if step == "delete IpvsService" and len(host.state.tables[key].chains) == 1:
            host.insert(key, "-A KUBE-ROUTER-INPUT -j RETURN")

    host.before_commit = write
    report = run(host, KUBE_ROUTER, ALL, Settings(lock=host.lock))

    assert host.state.tables[key].chains == ()
    removed = {o.name for o in report.outcomes if o.status is Status.REMOVED and o.backend is Backend.LEGACY}
    assert removed == {"KUBE-ROUTER-FORWARD", "KUBE-ROUTER-INPUT"}


def test_a_proof_that_comes_while_we_wait_for_the_lock_stays_for_the_next_run() -> None:
    """Whether it proves a service was not looked for yet."""
    mark = "-A PREROUTING -d 203.0.113.10/32 -p tcp -m tcp --dport 80 -j MARK --set-xmark 0x3eb3/0xffffffff"
    other = mark.replace("PREROUTING", "OUTPUT")
    text = f"*mangle\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n{other}\nCOMMIT\n"
    tables = read_dumps({"iptables-legacy-save": text}).tables
    (key,) = tables
    host = MemoryHost(Snapshot(tables=tables))
    come = [mark]

    def write(step: str) -> None:
        if step == "lock" and come:
            host.insert(key, come.pop())

    host.before_commit = write
    report = run(host, KUBE_ROUTER, ALL, Settings(lock=host.lock))

    assert [rule.chain for own in host.state.tables[key].rules.values() for rule in own] == ["PREROUTING"]
    assert report.exit_code == 1
    assert run(host, KUBE_ROUTER, ALL, Settings(lock=host.lock)).clean
