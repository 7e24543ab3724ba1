"""The engine on what is neither rule, chain, table nor set: order, failures, and a report that tells the truth."""

from __future__ import annotations

import errno

import attrs
import pytest

from firewall_cleanup import Controller, Family, Status
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.engine import Settings, run
from firewall_cleanup.model import Address, Gap, IpSet, IpvsService, Link, PolicyRule, Route, Snapshot
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
    assert {o.status for o in report.residue if o.name == OWN.name} == {Status.DENIED}
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
