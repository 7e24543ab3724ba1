"""The printed script and links, routes and policy rules: exactly those of the plan."""

from __future__ import annotations

import pytest
import test_routing as routing
from script_runs import clean_by, printed, run

from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace


def test_links_routes_and_policy_rules(sandbox: Sandbox) -> None:
    routing.neighbours(sandbox)
    before = routing.shown(sandbox)
    routing.owned(sandbox)
    text = printed(sandbox)
    for _ in range(2):
        assert clean_by(sandbox, text)
        assert routing.shown(sandbox) == before


def test_a_policy_rule_that_would_take_another(sandbox: Sandbox) -> None:
    """What a rule does not have is anything to the kernel: a rule that says more must not go in its place."""
    sandbox.run("ip link set lo up && ip rule add pref 50 lookup 79 && ip -6 rule add pref 50 lookup 79")
    text = printed(sandbox)
    sandbox.run("ip rule add pref 50 from 192.0.2.1 lookup 79")
    before = sandbox.run("ip rule").stdout
    status, said = run(sandbox, text)
    assert status == 1
    assert "policy rule 50: from all lookup 79: another rule" in said
    assert sandbox.run("ip rule").stdout == before
    assert "79" not in sandbox.run("ip -6 rule").stdout


def test_a_route_of_another_metric(sandbox: Sandbox) -> None:
    """It came since: to the kernel, a route that is to be deleted without a metric may have any."""
    sandbox.run("ip link set lo up && ip route add local default dev lo table 78")
    sandbox.run("ip -6 route add local default dev lo table 78 metric 5")
    text = printed(sandbox)
    sandbox.run("ip route del local default table 78 && ip route add local default dev lo table 78 metric 9")
    sandbox.run("ip -6 route del local default table 78 && ip -6 route add local default dev lo table 78 metric 9")
    assert clean_by(sandbox, text)
    assert [sandbox.run(f"ip {flag} route show table 78").stdout.count("metric 9") for flag in ("-4", "-6")] == [1, 1]


def test_a_bridge_that_has_a_pod_by_now(sandbox: Sandbox) -> None:
    sandbox.run("ip link add kube-bridge type bridge")
    text = printed(sandbox)
    sandbox.run("ip link add pod0 type veth peer name pod1 && ip link set pod0 master kube-bridge")
    asked = printed(sandbox, remove_bridge=True)
    status, said = run(sandbox, text)
    assert status == 1
    assert "link kube-bridge: links are attached to it by now" in said
    assert clean_by(sandbox, asked)
    assert "kube-bridge" not in sandbox.run("ip link").stdout
    assert clean_by(sandbox, text)


def test_a_link_of_another_kind(sandbox: Sandbox) -> None:
    """It has the name of ours and is none."""
    sandbox.run("ip link add kube-bridge type bridge")
    text = printed(sandbox)
    sandbox.run("ip link del kube-bridge && ip link add kube-bridge type veth peer name other")
    assert clean_by(sandbox, text)
    assert "kube-bridge" in sandbox.run("ip link").stdout
