"""The laws of the proof on generated nodes in memory: what it says is what a witness of all of the node sees."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st
from runs import ALL, clean, controllers

from firewall_cleanup import Backend, Controller, Family
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.model import IpSet, NativeTable, Policy, Snapshot, TableKey
from firewall_cleanup.ownership import Claims
from firewall_cleanup.proof import Proof, prove
from firewall_cleanup.reading import Reader
from firewall_cleanup.testing import MemoryHost, strategies
from firewall_cleanup.testing.strategies import Scenario

pytestmark = pytest.mark.property


def digest(host: MemoryHost, chosen: frozenset[Controller] = ALL) -> str:
    """What the proof says of a node on which nothing is owned."""
    look = Reader(host, KUBE_ROUTER, chosen).read().look()
    return prove(look, look, Claims(), commits=0).before.digest


@given(strategies.mixed_nodes(holders=True), controllers)
def test_equal_without_a_writer(scenario: Scenario, chosen: frozenset[Controller]) -> None:
    """Whatever the node and whatever is left: nobody else wrote, so foreign state is what it was."""
    report = clean(scenario.host(), chosen)
    if report.proof is None:
        assert not report.changed
        return
    assert report.proof.equal
    assert report.proof.differences == ()
    assert report.proof.before == report.proof.after
    assert all(part.unchanged for part in report.proof.unread if part.backend or "tables of nf_tables" in part.what)


@given(strategies.mixed_nodes())
def test_the_digest_is_that_of_the_node_without_owned_state(scenario: Scenario) -> None:
    """It says nothing of what was owned: two runs can be compared, and a node that was never kube-router's."""
    report = clean(scenario.host())
    assume(report.proof)
    assert report.proof is not None
    foreign = MemoryHost(scenario.foreign(scenario.snapshot))
    assert report.proof.after.digest == digest(foreign)


@given(strategies.mixed_nodes(holders=True), controllers)
def test_a_dry_run_has_none(scenario: Scenario, chosen: frozenset[Controller]) -> None:
    assert clean(scenario.host(), chosen, dry_run=True).proof is None


@given(strategies.foreign_nodes())
def test_where_nothing_is_owned_nothing_is_read_again(scenario: Scenario) -> None:
    host = scenario.host()
    reads: list[object] = []

    @attrs.define(eq=False)
    class Counting(MemoryHost):
        def dump_nft(self, interest):  # type: ignore[no-untyped-def]
            reads.append(interest)
            return super().dump_nft(interest)

    report = clean(Counting(host.state))
    assert (report.proof, report.changed, len(reads)) == (None, False, 1)


Move = Callable[[MemoryHost, int], object]


def _key(host: MemoryHost, number: int) -> TableKey:
    keys = sorted(host.state.tables, key=TableKey.sort_key)
    return keys[number % len(keys)]


def _insert(host: MemoryHost, number: int) -> None:
    key = _key(host, number)
    chain = next(iter(host.state.tables[key].builtin))
    host.insert(key, f"-A {chain} -p tcp -m tcp --dport {number} -j ACCEPT", number % 3)


def _delete(host: MemoryHost, number: int) -> None:
    places = [
        (k, c, i) for k, table in host.state.tables.items() for c, own in table.rules.items() for i in range(len(own))
    ]
    if places:
        host.remove(*places[number % len(places)])


def _swap(host: MemoryHost, number: int) -> None:
    """Two neighbouring rules change places."""
    places = [(k, c) for k, table in host.state.tables.items() for c, own in table.rules.items() if len(own) > 1]
    if places:
        key, chain = places[number % len(places)]
        table = host.state.tables[key]
        first, second, *rest = (attrs.evolve(rule, handle=None) for rule in table.rules[chain])
        host.put_table(attrs.evolve(table, rules={**table.rules, chain: (second, first, *rest)}))


def _policy(host: MemoryHost, number: int, policy: Policy) -> None:
    table = host.state.tables[_key(host, number)]
    chain = sorted(table.builtin)[number % len(table.builtin)]
    host.put_table(attrs.evolve(table, builtin={**table.builtin, chain: policy}))


def _chain(host: MemoryHost, number: int) -> None:
    host.insert(_key(host, number), f"-A theirs-{number} -j ACCEPT")


def _drop(host: MemoryHost, number: int) -> None:
    free = sorted(name for name, item in host.state.sets.items() if not item.references)
    if free:
        host.drop_set(free[number % len(free)])


def _set(host: MemoryHost, number: int) -> None:
    host.put_set(IpSet(f"theirs-{number}", "hash:ip", Family.IPV4))


MOVES: dict[str, Move] = {
    "a rule comes": _insert,
    "any rule goes": _delete,
    "rules change places": _swap,
    "a policy drops": partial(_policy, policy=Policy("DROP", 9, 900)),
    "a chain comes": _chain,
    "a set comes": _set,
    "a set goes": _drop,
}


@attrs.define
class Writer:
    """Somebody else, who makes his moves at the steps of a run."""

    host: MemoryHost
    moves: list[tuple[str, int]]
    done: int = 0

    def __call__(self, step: str) -> None:
        if step != "legacy" and self.moves:
            move, number = self.moves.pop()
            MOVES[move](self.host, number)
            self.done += 1


def all_of(snapshot: Snapshot) -> object:
    """All of foreign state, seen by a witness who reads every chain."""
    return (
        {
            key: (
                {name: policy.verdict for name, policy in table.builtin.items()},
                set(table.chains) if key.backend is Backend.NFT else table.chains,
                {chain: [attrs.evolve(rule, text=None) for rule in own] for chain, own in table.rules.items()},
            )
            for key, table in snapshot.tables.items()
        },
        set(snapshot.native_tables),
        {name: (item.type, item.family, item.members) for name, item in snapshot.sets.items()},
    )


@given(
    strategies.mixed_nodes(holders=True),
    controllers,
    st.lists(st.tuples(st.sampled_from(tuple(MOVES)), st.integers(0, 40)), min_size=1, max_size=4),
)
def test_a_writer_is_listed(scenario: Scenario, chosen: frozenset[Controller], moves: list[tuple[str, int]]) -> None:
    """What somebody else changed is told; nothing is told where all is as it was, or was made so again."""
    assume(scenario.snapshot.tables)
    host = scenario.host()
    before = host.state
    writer = Writer(host, list(moves))
    host.before_commit = writer
    report = clean(host, chosen)
    assume(report.proof)
    assert report.proof is not None
    same = all_of(scenario.foreign(before, chosen)) == all_of(scenario.foreign(host.state, chosen))
    event(f"{writer.done} moves, {'the same' if same else 'another'} at the end")
    assert_told(report.proof, same=same)
    if writer.done and not report.proof.equal:
        assert report.exit_code == int(not report.clean)


def assert_told(proof: Proof, *, same: bool) -> None:
    assert proof.equal == (not proof.differences)
    if same:
        # Of chains that are looked at only, a rule that was made anew is another one.
        assert all((found.change, found.kind) == ("changed", "chain") for found in proof.differences)
    elif proof.equal:
        # Only what was not compared may differ, and it is said of it that nobody vouches for it.
        assert any(part.table and not part.unchanged for part in proof.unread)


@given(strategies.mixed_nodes(), st.integers(0, 40), st.booleans())
def test_counters_of_policies(scenario: Scenario, number: int, grow: bool) -> None:
    """Traffic makes them larger, which is no difference; smaller they must not get."""
    assume(scenario.snapshot.tables)
    host = scenario.host()
    for key in host.state.tables:
        for chain in host.state.tables[key].builtin:
            table = host.state.tables[key]
            host.put_table(attrs.evolve(table, builtin={**table.builtin, chain: Policy("ACCEPT", 5, 300)}))
    count = Policy("ACCEPT", 6, 360) if grow else Policy("ACCEPT", 0, 0)
    once = [1]

    def write(step: str) -> None:
        if step != "legacy" and once:
            once.clear()
            _policy(host, number, count)

    host.before_commit = write
    report = clean(host)
    assume(report.proof and not once)
    assert report.proof is not None
    assert report.proof.before.digest == report.proof.after.digest
    assert report.proof.equal == grow
    if not grow:
        (difference,) = report.proof.differences
        assert (difference.change, difference.kind) == ("changed", "policy")
        assert "0:0, were 5:300" in difference.text


def test_a_table_of_others() -> None:
    """The whole table of somebody else comes: it is listed by its name."""
    scenario = MemoryHost(Snapshot())
    scenario.put_set(IpSet("kube-router-local-pods", "hash:ip", Family.IPV4))
    natives = (NativeTable("inet", "theirs"),)
    scenario.before_commit = lambda _step: setattr(scenario, "_natives", natives)
    report = clean(scenario)
    assert report.proof is not None
    (difference,) = report.proof.differences
    assert (difference.change, difference.kind, difference.text) == ("added", "table", "inet theirs")
