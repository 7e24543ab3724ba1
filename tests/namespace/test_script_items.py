"""The printed script and links, routes and policy rules: exactly those of the plan."""

from __future__ import annotations

import pytest
import test_routing as routing
from scenes import clean
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


@pytest.mark.parametrize("selection", ["from 10.0.0.0/8 pref 100 lookup 77", "pref 50 lookup 79"])
@pytest.mark.parametrize("protocol", ["static", "17"])
def test_who_made_a_policy_rule_says_nothing(sandbox: Sandbox, selection: str, protocol: str) -> None:
    """It is printed behind the table; of the rules of two makers one goes at a time, and the other is told."""
    before = sandbox.run("ip rule").stdout
    sandbox.run(f"ip rule add {selection} proto {protocol}")
    text = printed(sandbox)
    for _ in range(2):
        assert clean_by(sandbox, text)
        assert sandbox.run("ip rule").stdout == before
    sandbox.run(f"ip rule add {selection} proto {protocol} && ip rule add {selection} proto 99")
    status, said = run(sandbox, text)
    assert status == 1
    assert "another one like it is there" in said
    assert clean_by(sandbox, text)
    assert sandbox.run("ip rule").stdout == before


@pytest.mark.parametrize("more", ["", " proto 17"])
def test_a_policy_rule_with_a_maker_would_take_another(sandbox: Sandbox, more: str) -> None:
    sandbox.run("ip rule add pref 50 lookup 79 proto 17")
    text = printed(sandbox)
    sandbox.run(f"ip rule add pref 50 from 192.0.2.1 lookup 79{more}")
    before = sandbox.run("ip rule").stdout
    status, said = run(sandbox, text)
    assert status == 1
    assert "policy rule 50: from all lookup 79: another rule" in said
    assert sandbox.run("ip rule").stdout == before


def test_a_route_of_another_tos(sandbox: Sandbox) -> None:
    """It is another route, of somebody: it stays, beside ours and in its place."""
    sandbox.run("ip link set lo up && ip link add tos type bridge && ip link set tos up")
    sandbox.run("ip addr add 192.0.2.20/25 dev tos")
    sandbox.run("ip route add local default dev lo table 78")
    sandbox.run("ip route add 198.18.0.0/15 via 192.0.2.21 dev tos proto 17")  # what only sounds so
    text = printed(sandbox)
    sandbox.run("ip route add local default tos 0x10 dev lo table 78")
    sandbox.run("ip route add 198.18.0.0/15 tos 0x10 via 192.0.2.21 dev tos proto 17")
    assert printed(sandbox) == text
    for _ in range(2):
        assert clean_by(sandbox, text)
        tables = [sandbox.run(f"ip route show table {table}").stdout for table in ("78", "main proto 17")]
        assert [[" tos 0x10 " in line for line in table.splitlines()] for table in tables] == [[True], [True]]
    assert clean(sandbox, dry_run=True).outcomes == ()


def test_a_route_like_ours_that_came_since(sandbox: Sandbox) -> None:
    """One goes; that another one is there is told."""
    sandbox.run("ip link set lo up && ip route add local default dev lo table 78")
    text = printed(sandbox)
    sandbox.run("ip route append local default dev lo src 127.0.0.1 table 78")
    status, said = run(sandbox, text)
    assert status == 1
    assert "left: route 0.0.0.0/0 table 78: another one like it is there" in said
    assert sandbox.run("ip route show table 78").stdout.count("local default") == 1
    assert clean_by(sandbox, text)


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
