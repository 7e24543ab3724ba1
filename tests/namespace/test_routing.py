"""Policy rules, routes and the bridge on this kernel, in both families; what it lacks is tested by tests/run-vm."""

from __future__ import annotations

import json

import pytest
from scenes import clean, problems

from firewall_cleanup import Controller, Family, Handlers, Status, cleanup_all
from firewall_cleanup.dumps import read_dumps
from firewall_cleanup.handlers._namespace import Namespace
from firewall_cleanup.report import describe
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace

# Per family: pods, a peer's pods, the peer, a network of somebody else.
NETS = {
    "-4": ("198.51.100.64/26", "198.51.100.128/26", "192.0.2.21", "198.18.9.0/24"),
    "-6": ("2001:db8:10:1::/64", "2001:db8:10:2::/64", "2001:db8:1::21", "2001:db8:99::/64"),
}


def ip(sandbox: Sandbox, lines: list[str], flag: str | None = None) -> None:
    sandbox.run(["ip", *([flag] if flag else []), "-batch", "-"], input="\n".join(lines) + "\n")


def shown(sandbox: Sandbox) -> dict[str, list[dict[str, object]]]:
    """What ip prints, less what the kernel makes up or what goes with a link by itself."""
    found = {}
    for name, words in {
        "rule": "-4 rule", "rule6": "-6 rule", "route": "-4 route show table all",
        "route6": "-6 route show table all", "link": "-d link",
    }.items():  # fmt: skip
        items = json.loads(sandbox.run(["ip", "-j", *words.split()]).stdout or "[]")
        found[name] = [item for item in items if "fe80" not in str(item) and "ff00" not in str(item)]
    # A bridge shows its timers.
    found["link"] = [{key: link.get(key) for key in ("ifname", "flags", "master", "mtu")} for link in found["link"]]
    return found


def neighbours(sandbox: Sandbox) -> None:
    ip(
        sandbox,
        [
            "link set lo up",
            "link add eth0 type bridge",
            "link set eth0 up",
            "addr add 192.0.2.20/25 dev eth0",
            "addr add 2001:db8:1::20/64 dev eth0 nodad",
            "link add tun-home type veth peer name pod0",
            "link set pod0 up",
        ],
    )
    for flag, (pods, _peer_pods, peer, net) in NETS.items():
        ip(
            sandbox,
            [
                "rule add pref 9 fwmark 0x200/0xf00 lookup 2004",
                "rule add fwmark 0x8e lookup 780",
                "rule add fwmark 0x8e/0xff lookup 78",
                "rule add iif lo lookup 79",
                f"rule add from {pods} fwmark 0x1 lookup 77",
                f"route add {net} dev eth0 proto 17",
                f"route add {net} via {peer} table 77",
                "route add blackhole default table 78",
            ],
            flag,
        )
    ip(sandbox, ["route add local default tos 0x10 dev lo table 78"], "-4")


def owned(sandbox: Sandbox) -> None:
    ip(sandbox, ["link add kube-bridge type bridge", "link set kube-bridge up"])
    for flag, (pods, peer_pods, peer, _net) in NETS.items():
        ip(
            sandbox,
            [
                f"rule add from {pods} lookup 77",
                "rule add pref 32764 fwmark 0x3eb3 lookup 78",
                "rule add pref 32765 lookup 79",
                "route add local default dev lo table 78 metric 5",
                f"route add {pods} dev kube-bridge table 79",
                f"route add {peer_pods} via {peer} dev eth0 proto 17",
            ],
            flag,
        )


def test_what_is_kube_routers_goes_and_the_rest_stays(sandbox: Sandbox) -> None:
    neighbours(sandbox)
    before = shown(sandbox)
    owned(sandbox)
    whole = shown(sandbox)
    planned = clean(sandbox, dry_run=True)

    assert shown(sandbox) == whole
    report = clean(sandbox)
    assert problems(report) == []
    after = shown(sandbox)
    assert after == before
    assert [(o.kind, o.name, o.text) for o in planned.outcomes] == [(o.kind, o.name, o.text) for o in report.outcomes]
    again = clean(sandbox)
    assert not again.changed
    assert again.outcomes == ()


@pytest.mark.parametrize("family", Family)
def test_one_family_leaves_the_other(sandbox: Sandbox, family: Family) -> None:
    other = "6" if family is Family.IPV4 else ""
    neighbours(sandbox)
    owned(sandbox)
    before = shown(sandbox)
    report = clean(sandbox, families=[family])
    after = shown(sandbox)

    assert problems(report) == []
    assert after[f"rule{other}"] == before[f"rule{other}"]
    assert after[f"route{other}"] == before[f"route{other}"]
    assert {o.family for o in report.outcomes} == {family}


@pytest.mark.parametrize(
    ("controller", "kinds"),
    [
        (Controller.NETWORK_POLICY, set()),
        (Controller.SERVICE_PROXY, {"78", "79"}),
        (Controller.ROUTING, {"77", "254", None}),
    ],
)
def test_each_controller_alone(sandbox: Sandbox, controller: Controller, kinds: set[str | None]) -> None:
    neighbours(sandbox)
    owned(sandbox)
    report = clean(sandbox, controllers=[controller])

    assert problems(report) == []
    assert {o.table for o in report.outcomes} == kinds


def test_a_bridge_with_a_pod_stays_until_asked(sandbox: Sandbox) -> None:
    neighbours(sandbox)
    owned(sandbox)
    ip(sandbox, ["link set pod0 master kube-bridge"])
    report = clean(sandbox)
    again = clean(sandbox)
    forced = clean(sandbox, remove_bridge=True)

    assert [(o.name, o.status, o.reason) for o in report.residue] == [("kube-bridge", Status.IN_USE, "pod0 attached")]
    assert report.exit_code == 1
    assert not again.changed
    assert forced.clean


def test_files_and_kernel_tell_the_same(sandbox: Sandbox) -> None:
    """Readers of what ip prints give the objects that netlink gives."""
    neighbours(sandbox)
    owned(sandbox)
    files = {
        "ip-rule.json": "-4 rule", "ip6-rule.json": "-6 rule", "ip-route.json": "-4 route show table all",
        "ip6-route.json": "-6 route show table all", "ip-link.json": "-d link", "ip-addr.json": "addr",
    }  # fmt: skip
    texts = {name: sandbox.run(["ip", "-j", *words.split()]).stdout for name, words in files.items()}
    snapshot = read_dumps(texts)
    with Handlers.open(netns=sandbox.path) as handlers:
        routing = handlers.routing
        assert routing is not None
        links = routing.links()
        assert [(link.name, link.kind, link.master) for link in links] == [
            (link.name, link.kind, link.master) for link in snapshot.links
        ]
        for family in Family:
            rules = [(describe(rule), rule.plain) for rule in routing.policy_rules(family)]
            assert rules == [(describe(r), r.plain) for r in snapshot.policy_rules if r.family is family]
            tables = (77, 78, 79, 254)
            read = routing.routes(family, [(table, 0) for table in tables], links)
            told = [r for r in snapshot.routes if r.family is family and r.table in tables]
            assert sorted(map(str, map(describe, read))) == sorted(map(str, map(describe, told)))


def test_a_kernel_without_ipvs_is_no_trouble(sandbox: Sandbox) -> None:
    """Absent is the goal: clean, and no word of errors."""
    report = clean(sandbox)

    assert report.clean
    assert report.gaps == ()
    assert report.notes == ()


@pytest.mark.parametrize("flag", list(NETS))
def test_a_foreign_rule_that_the_kernel_would_take_for_ours_stays(sandbox: Sandbox, flag: str) -> None:
    """What a request does not name is anything to the kernel, and the first rule that fits goes."""
    ip(sandbox, ["rule add pref 32765 iif lo fwmark 5 lookup 79", "rule add pref 32765 lookup 79"], flag)
    before = shown(sandbox)
    report = clean(sandbox)

    assert shown(sandbox) == before
    assert [(o.status, o.text) for o in report.residue] == [(Status.FAILED, "from all lookup 79")]
    assert "priority 32765" in (report.residue[0].reason or "")
    ip(sandbox, ["rule del pref 32765 iif lo fwmark 5 lookup 79"], flag)
    assert clean(sandbox).clean


@pytest.mark.parametrize("flag", list(NETS))
def test_a_mask_without_a_mark_is_not_no_mark(sandbox: Sandbox, flag: str) -> None:
    ip(sandbox, [f"rule add from {NETS[flag][0]} fwmark 0/0x4000 lookup 77"], flag)
    before = shown(sandbox)

    assert clean(sandbox).outcomes == ()
    assert shown(sandbox) == before


def test_files_are_those_of_the_own_node(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firewall_cleanup.handlers.host.find_traces", lambda _traces, _root: ["a file of the node"])
    with Handlers.open(netns=sandbox.path) as handlers:
        given = cleanup_all(handlers, dry_run=True)
    named = cleanup_all(netns=sandbox.path, dry_run=True)
    own = Namespace(sandbox.path)
    inside = own.run(cleanup_all, dry_run=True)
    own.close()

    assert (given.notes, named.notes) == ((), ())
    assert inside.notes == ("a file of the node",)
