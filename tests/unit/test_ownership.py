"""Claims: by name, by jump, by shape; how they are selected, subtracted and merged."""

from __future__ import annotations

import pytest
from builders import LEGACY, NFT, POLICY, PROXY, ROUTING, V4, V6, H, claims, key, node, snapshot

from firewall_cleanup import Backend
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.model import IpSet, NativeTable, Rule, Snapshot, Table, Target
from firewall_cleanup.ownership import Claims, claim, rule_ids

POD = f"KUBE-POD-FW-{H}"
TABLE = f"""
-N {POD}
-N mine
-A INPUT -j KUBE-ROUTER-INPUT
-A INPUT -p tcp -j ACCEPT
-A mine -j {POD}
-A KUBE-ROUTER-INPUT -j {POD}
-A {POD} -j ACCEPT
"""


@pytest.mark.parametrize("backend", [NFT, LEGACY])
def test_chains_and_what_jumps_to_them(backend: Backend) -> None:
    """Rules inside an owned chain are not claimed one by one: they go with the chain."""
    where = key(backend=backend)
    found = claims({where: TABLE})
    assert found.chains[where] == {"KUBE-ROUTER-INPUT": POLICY, POD: POLICY}
    assert {(c.rule.chain, c.detail) for c in found.rules[where].values()} == {
        ("INPUT", "KUBE-ROUTER-INPUT"),
        ("mine", POD),
    }


def test_a_jump_counts_in_its_own_table_only() -> None:
    """The same name may be somebody else's chain in another family, backend or table."""
    other = key(backend=LEGACY)
    found = claims({key(): TABLE, other: f"-N {POD}\n-A INPUT -j KUBE-ROUTER-INPUTS"})
    assert list(found.rules[other]) == []


def test_a_chain_that_is_not_there_is_not_jumped_to() -> None:
    """A target of that name which is no chain of the table proves nothing."""
    table = Table(
        key(),
        chains=(),
        rules={
            "INPUT": (
                Rule(
                    "INPUT",
                    target=Target("KUBE-ROUTER-INPUT"),
                ),
            )
        },
    )
    assert not claim(Snapshot({key(): table}), KUBE_ROUTER)


def test_an_opaque_rule_is_owned_for_its_jump_only() -> None:
    line = '-A FORWARD -o kube-bridge -m comment --comment "allow inbound traffic to pods" -m limit --limit 1/s -j'
    found = claims({key(): f"-N {POD}\n{line} ACCEPT\n{line} {POD}"})
    assert [c.evidence for c in found.rules[key()].values()] == ["jump"]


def test_unread_chains_say_nothing() -> None:
    """A chain whose rules were not read is claimed all the same, and no rule in it."""
    table = Table(key(), chains=(POD,), rules={})
    assert claim(Snapshot({key(): table}), KUBE_ROUTER).chains == {key(): {POD: POLICY}}


def test_the_family_of_a_set_is_the_kernels() -> None:
    """A name with `inet6:` on a set of IPv4 does not make it IPv6's."""
    found = claims({}, [IpSet("inet6:kube-router-svip", "hash:ip", V4), IpSet("kube-router-svip", "hash:ip", V6)])
    only = found.select(frozenset({PROXY}), frozenset({V4}))
    assert list(only.sets) == ["inet6:kube-router-svip"]


def test_select() -> None:
    text = f'{TABLE}-A FORWARD -i kube-bridge -m comment --comment "allow outbound traffic from pods" -j ACCEPT'
    sets = [IpSet("kube-router-svip", "hash:ip", V4), IpSet("kube-router-node-ips", "hash:ip", V6)]
    sets += [IpSet("TMP-PRBJ7ASFQM5DJR3Q", "hash:ip", V6)]
    natives = [NativeTable("ip", "kube-router-filter-ipv4"), NativeTable("ip6", "kube-router-filter-ipv6")]
    tables = {key(): text, key(family=V6): text}
    every = claim(snapshot(tables, sets, natives), KUBE_ROUTER)
    routing = every.select(frozenset({ROUTING}), frozenset({V4, V6}))
    assert [c.controller for own in routing.rules.values() for c in own.values()] == [ROUTING, ROUTING]
    assert not any(routing.chains.values())
    assert not routing.native_tables
    assert set(routing.sets) == {
        "kube-router-node-ips",
        "TMP-PRBJ7ASFQM5DJR3Q",
    }  # the latter is nobody's in particular
    policy = every.select(frozenset({POLICY}), frozenset({V6}))
    assert set(policy.chains) == {key(family=V6)}
    assert set(policy.native_tables) == {natives[1]}
    assert set(policy.sets) == {"TMP-PRBJ7ASFQM5DJR3Q"}
    assert not every.select(frozenset(), frozenset({V4, V6})).chains[key()]


def test_minus_and_plus() -> None:
    one = claims({key(): TABLE}, [IpSet("kube-router-svip", "hash:ip", V4)])
    none = Claims()
    assert not one.minus(one)
    assert one.minus(none) == one
    assert not none.minus(one)
    assert one.plus(none) == none.plus(one) == one
    assert bool(one)
    assert not none
    assert not Claims(chains={key(): {}}, rules={key(): {}})
    part = claims({key(): "-N KUBE-ROUTER-INPUT"})
    assert set(one.minus(part).chains[key()]) == {POD}
    assert part.plus(one).chains == one.chains


def test_rules_are_known_by_handle_or_by_count() -> None:
    """Equal rules are told apart by their handles in nf_tables, and by their count in legacy, which has none."""
    text = "-A INPUT -j ACCEPT\n-A INPUT -j ACCEPT\n-A INPUT -j DROP"
    nft, legacy = (
        (rules, [id_ for id_, _rule in rule_ids(where, rules)])
        for where in (key(), key(backend=LEGACY))
        for rules in [node({where: text}).state.tables[where].rules["INPUT"]]
    )
    assert [id_[1] for id_ in nft[1]] == [rule.handle for rule in nft[0]]
    assert [id_[2] for id_ in legacy[1]] == [0, 1, 0]
    assert len(set(nft[1])) == len(set(legacy[1])) == 3
