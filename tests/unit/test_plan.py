"""Plans: what goes, in which order, what stays because something holds it."""

from __future__ import annotations

import pytest
from builders import ALL, LEGACY, NFT, POLICY, PROXY, V4, V6, H, key, node, snapshot

from firewall_cleanup import Backend, Controller, Kind, Status
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.model import IpSet, NativeTable, Snapshot, Table
from firewall_cleanup.ownership import claim
from firewall_cleanup.plan import Plan, make_plan
from firewall_cleanup.report import Left

POD = f"KUBE-POD-FW-{H}"
BOTH = frozenset({V4, V6})


def plan(state: Snapshot, controllers: frozenset[Controller] = ALL, **more):  # type: ignore[no-untyped-def]
    return make_plan(
        state, claim(state, KUBE_ROUTER), controllers=controllers, families=more.pop("families", BOTH), **more
    )


def planned(tables: dict, sets: list[IpSet] | None = None, controllers: frozenset[Controller] = ALL) -> Plan:  # type: ignore[type-arg]
    return plan(node(tables, sets or []).state, controllers)


def test_one_change_over_both_families() -> None:
    text = f"-N {POD}\n-A INPUT -j KUBE-ROUTER-INPUT\n-A KUBE-ROUTER-INPUT -j {POD}"
    tables = {key(): text, key(family=V6): text, key(backend=LEGACY): text}
    natives = [NativeTable("ip6", "kube-router-filter-ipv6"), NativeTable("ip", "theirs")]
    result = plan(node(tables, natives=natives).state)
    change = result.nft_change()
    assert [part.key for part in change.tables] == [key(), key(family=V6)]
    for part in change.tables:
        assert part.flush == part.delete == (POD, "KUBE-ROUTER-INPUT")
        assert [rule.chain for rule in part.rules] == ["INPUT"]
    assert change.native_tables == (natives[0],)
    assert result.legacy_keys() == (key(backend=LEGACY),)
    assert not result.left


def test_nothing_owned_is_no_change() -> None:
    result = planned({key(): "-A INPUT -j ACCEPT", key("nat", backend=LEGACY): ""})
    assert not result.nft_change()
    assert result.legacy_keys() == ()
    assert result.set_names() == ()


def test_lists_of_sets_go_before_their_members() -> None:
    sets = [
        IpSet("kube-router-svip", "list:set", members=("kube-router-local-ips",)),
        IpSet("kube-router-local-ips", "hash:ip", V4),
        IpSet("inet6:kube-router-svip", "hash:ip", V6),
    ]
    assert planned({}, sets).set_names() == ("kube-router-svip", "kube-router-local-ips", "inet6:kube-router-svip")


@pytest.mark.parametrize("backend", [NFT, LEGACY])
@pytest.mark.parametrize(
    "line", ["-m set --match-set kube-router-svip src -j DROP", "-j SET --add-set kube-router-svip src"]
)
def test_a_foreign_rule_holds_a_set(backend: Backend, line: str) -> None:
    where = key(backend=backend)
    result = planned({where: f"-A INPUT {line}"})
    assert result.set_names() == ()
    left = result.left["kube-router-svip"]
    assert left.status is Status.IN_USE
    assert left.holder is not None
    assert (left.holder.kind, left.holder.chain, left.holder.backend) == (Kind.RULE, "INPUT", backend)
    assert left.holder.controller is None


def test_a_rule_that_goes_holds_nothing() -> None:
    """Neither a rule of an owned chain nor one that is claimed itself keeps a set."""
    line = "-m set --match-set kube-router-svip dst -j KUBE-ROUTER-SERVICES"
    inside = "-A KUBE-ROUTER-SERVICES -m set --match-set kube-router-svip dst -j ACCEPT"
    result = planned({key(): f"-A INPUT {line}\n{inside}"})
    assert result.set_names() == ("kube-router-svip",)


def test_another_controller_holds() -> None:
    """Its rule stays, so what it uses is kept, and that is no residue."""
    text = f"-N {POD}\n-A KUBE-ROUTER-SERVICES -m set --match-set kube-router-local-pods src -j {POD}"
    result = planned({key(): text}, controllers=frozenset({POLICY}))
    assert {place: (left.status, left.holder.controller) for place, left in result.left.items() if left.holder} == {
        (key(), POD): (Status.KEPT, PROXY),
        "kube-router-local-pods": (Status.KEPT, PROXY),
    }
    change = result.table_change(key())
    assert (change.flush, change.delete) == ((), ())  # it is empty already
    result = planned({key(): f"{text}\n-A {POD} -j ACCEPT"}, controllers=frozenset({POLICY}))
    assert (result.table_change(key()).flush, result.table_change(key()).delete) == ((POD,), ())


def test_a_claimed_rule_of_another_controller_holds() -> None:
    """A rule in a built-in chain that is not selected keeps what it uses, too."""
    line = (
        "-A POSTROUTING -m set --match-set kube-router-pod-subnets src"
        " -m set ! --match-set kube-router-pod-subnets dst -j MASQUERADE"
    )
    assert planned({key("nat"): line}).set_names() == ("kube-router-pod-subnets",)
    text = f"-N {POD}\n-A FORWARD -m set --match-set kube-router-svip dst -j {POD}"
    kept = planned({key(): text}, controllers=frozenset({PROXY})).left["kube-router-svip"]
    assert kept.status is Status.KEPT
    assert kept.holder is not None
    assert kept.holder.controller is POLICY


def test_a_foreign_list_holds_its_members() -> None:
    sets = [IpSet("kube-router-svip", "hash:ip", V4), IpSet("all", "list:set", members=("kube-router-svip", "x"))]
    left = planned({}, sets).left["kube-router-svip"]
    assert left.status is Status.IN_USE
    assert left.holder is not None
    assert (left.holder.kind, left.holder.text) == (Kind.SET, "all")


def test_a_verdict_map_holds_a_chain() -> None:
    """No rule shows it; the chain is emptied and stays."""
    text = "-A KUBE-ROUTER-INPUT -j ACCEPT"
    table = snapshot({key(): text}).tables[key()]
    table = Table(key(), table.builtin, table.chains, table.rules, {"KUBE-ROUTER-INPUT": "ports"})
    result = plan(Snapshot({key(): table}))
    assert (result.table_change(key()).flush, result.table_change(key()).delete) == (("KUBE-ROUTER-INPUT",), ())
    left = result.left[key(), "KUBE-ROUTER-INPUT"]
    assert left.status is Status.IN_USE
    assert left.holder is not None
    assert left.holder.text == "ports"


def test_refusals() -> None:
    """What the kernel refused is left out of the next plan: a busy chain is emptied, a denied one not touched."""
    text = "-A INPUT -j KUBE-ROUTER-INPUT\n-A KUBE-ROUTER-INPUT -j ACCEPT\n-A KUBE-ROUTER-OUTPUT -j ACCEPT"
    native = NativeTable("ip", "kube-router-filter-ipv4")
    state = node({key(): text}, natives=[native]).state
    handle = state.tables[key()].rules["INPUT"][0].handle
    busy, denied = Left(Status.IN_USE, "busy"), Left(Status.DENIED, "no")
    result = plan(
        state,
        refusals={
            (key(), "chain", "KUBE-ROUTER-INPUT"): busy,
            (key(), "flush", "KUBE-ROUTER-OUTPUT"): denied,
            (key(), "rule", handle): denied,
            (native, "table", native.name): denied,
        },
    )
    change = result.nft_change()
    assert change.native_tables == ()
    assert (change.tables[0].rules, change.tables[0].flush, change.tables[0].delete) == (
        (),
        ("KUBE-ROUTER-INPUT",),
        (),
    )
    assert {left.reason for left in result.left.values()} == {"busy", "no"}
    assert len(result.left) == 4


def test_a_refusal_of_something_else_changes_nothing() -> None:
    """Only what was refused is left: another table, handle or name goes on."""
    state = node({key(): "-N KUBE-ROUTER-INPUT\n-A INPUT -j KUBE-ROUTER-INPUT"}).state
    denied = Left(Status.DENIED, "no")
    result = plan(state, refusals={(key(), "rule", 4711): denied, (key("nat"), "chain", "KUBE-ROUTER-INPUT"): denied})
    change = result.table_change(key())
    assert (len(change.rules), change.delete) == (1, ("KUBE-ROUTER-INPUT",))


def test_only_selected_families() -> None:
    text = "-N KUBE-ROUTER-INPUT"
    state = node({key(): text, key(family=V6): text}).state
    result = plan(state, families=frozenset({V6}))
    assert [part.key.family for part in result.nft_change().tables] == [V6]


def test_of_several_holders_the_same_one_is_named() -> None:
    """The order in which tables, chains and sets were read does not choose."""
    use = "-m set --match-set kube-router-svip src -j DROP"
    text = f"-A FORWARD {use}\n-A INPUT {use}\n-A mine {use}"
    lists = [IpSet(name, "list:set", members=("kube-router-node-ips",)) for name in ("one", "two")]
    sets = [IpSet("kube-router-node-ips", "hash:ip", V4), *lists]
    state = snapshot({key(backend=LEGACY): text, key(): text}, sets)
    turned = Snapshot(
        {
            k: Table(k, t.builtin, t.chains, dict(reversed(t.rules.items())))
            for k, t in reversed(state.tables.items())
        },
        sets=dict(reversed(state.sets.items())),
    )
    assert plan(state) == plan(turned)
    holders = {place: left.holder for place, left in plan(state).left.items()}
    assert holders == {place: left.holder for place, left in plan(turned).left.items()}


def test_rules_go_in_one_order() -> None:
    text = "-N KUBE-ROUTER-INPUT\n-A OUTPUT -j KUBE-ROUTER-INPUT\n-A INPUT -j KUBE-ROUTER-INPUT"
    table = snapshot({key(): text}).tables[key()]
    turned = Table(key(), table.builtin, table.chains, dict(reversed(table.rules.items())))
    changes = [plan(Snapshot({key(): each})).nft_change() for each in (table, turned)]
    assert changes[0] == changes[1]
