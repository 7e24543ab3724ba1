"""Nodes that lack something: no tables, no sets, one family, one backend, no IPv6."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scenes import ALL, NODES, Scene, clean, generation, problems

from firewall_cleanup import Backend, Family, FamilyState
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace


def test_an_empty_namespace_stays_empty(sandbox: Sandbox):
    before, number = sandbox.state(), generation(sandbox)
    for dry_run in (True, False, False):
        report = clean(sandbox, dry_run=dry_run)
        assert (report.exit_code, report.changed, report.outcomes, report.gaps) == (0, False, (), ())
        assert report.clean
        assert report.families == dict.fromkeys(Family, FamilyState.EXAMINED)
    assert sandbox.state() == before
    assert generation(sandbox) == number
    assert set(before.legacy_tables.values()) == {()}
    assert set(before.rules.values()) == {""}


@pytest.mark.parametrize("family", Family)
def test_one_family_only(new_sandbox: Callable[..., Sandbox], tools, family):
    scene = Scene(NODES["default"], tools.backend)
    wanted, sandbox = new_sandbox(tools.folder), new_sandbox(tools.folder)
    expected = scene.load(wanted, gone=ALL, families=[family])
    scene.load(sandbox, families=[family])

    assert problems(clean(sandbox)) == []
    assert sandbox.state() == expected
    assert not clean(sandbox).changed


def test_legacy_tables_that_do_not_exist_are_not_made(sandbox: Sandbox):
    sandbox.load_rules("*filter\n:KUBE-ROUTER-INPUT - [0:0]\nCOMMIT\n", Family.IPV4, Backend.LEGACY)
    assert problems(clean(sandbox)) == []
    state = sandbox.state()
    assert state.legacy_tables == {"ip_tables_names": ("filter",), "ip6_tables_names": ()}
    assert state.rules["iptables-nft-save"] == ""
    assert "KUBE" not in state.rules["iptables-legacy-save"]


def test_rules_without_sets(sandbox: Sandbox, backend: Backend):
    text = (
        "*filter\n:INPUT DROP [7:700]\n:FORWARD ACCEPT [8:800]\n:OUTPUT ACCEPT [9:900]\n:KUBE-ROUTER-INPUT - [0:0]\n"
        '[1:10] -A INPUT -m comment --comment "kube-router netpol" -j KUBE-ROUTER-INPUT\n'
        "[2:20] -A INPUT -i eth7 -j ACCEPT\n[3:30] -A KUBE-ROUTER-INPUT -j RETURN\nCOMMIT\n"
    )
    for family in Family:
        sandbox.load_rules(text, family, backend)
    before = sandbox.state()
    assert problems(clean(sandbox)) == []
    for family in Family:
        assert sandbox.state().lines(backend, family) == [
            "*filter",
            ":INPUT DROP [7:700]",
            ":FORWARD ACCEPT [8:800]",
            ":OUTPUT ACCEPT [9:900]",
            # ip6tables-nft 1.8.9 loads rules with counters of zero.
            before.lines(backend, family)[6],
            "COMMIT",
        ]


def test_sets_without_rules(new_sandbox: Callable[..., Sandbox]):
    scene = Scene(NODES["default"], Backend.NFT)
    wanted, sandbox = new_sandbox(), new_sandbox()
    wanted.load_sets(scene.sets(gone=ALL))
    sandbox.load_sets(scene.sets())
    assert problems(clean(sandbox)) == []
    assert sandbox.state() == wanted.state()
    assert wanted.state().sets


def test_ipv6_switched_off(new_sandbox: Callable[..., Sandbox], tools):
    """The sysctl removes addresses; tables and sets of IPv6 are there all the same, and are cleaned."""
    scene = Scene(NODES["default"], tools.backend)
    wanted, sandbox = new_sandbox(tools.folder), new_sandbox(tools.folder)
    for each in (wanted, sandbox):
        each.run("echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6")
    expected = scene.load(wanted, gone=ALL)
    assert problems(clean(sandbox)) == []
    scene.load(sandbox)
    assert problems(clean(sandbox)) == []
    assert sandbox.state() == expected


def test_the_kernel_has_no_ipv6(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    """A family that is not there is clean, and the report says that it is not there."""
    monkeypatch.setattr("firewall_cleanup.handlers.probe.has_ipv6", lambda: False)
    report = clean(sandbox)
    assert report.families == {Family.IPV4: FamilyState.EXAMINED, Family.IPV6: FamilyState.ABSENT}
    assert (report.clean, report.exit_code) == (True, 0)
