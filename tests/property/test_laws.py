"""The laws of DESIGN.md on generated nodes in memory: one law, one test."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import attrs
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st
from runs import ALL, clean, controllers

from firewall_cleanup import Backend, CleanupReport, Controller, Family, Gap, Kind, Outcome, Status
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.model import IpSet, Rule, Snapshot, Table, TableKey
from firewall_cleanup.ownership import Claims, claim, rule_ids
from firewall_cleanup.plan import make_plan
from firewall_cleanup.rules import parse_rule, render
from firewall_cleanup.testing import Crash, MemoryHost, strategies
from firewall_cleanup.testing.strategies import Scenario

pytestmark = pytest.mark.property

BOTH = frozenset(Family)


def exact(snapshot: Snapshot) -> object:
    """All of a snapshot that can be compared: order of rules, handles and counters too."""
    tables = {
        key: (table.builtin, table.chains, {c: [written(rule) for rule in own] for c, own in table.rules.items()})
        for key, table in snapshot.tables.items()
    }
    return tables, snapshot.native_tables, dict(snapshot.sets)


def written(rule: Rule) -> object:
    return (rule, rule.handle, rule.packets, rule.bytes)


def objects(snapshot: Snapshot, scenario: Scenario, controllers: frozenset[Controller] = ALL) -> Counter[object]:
    """What is owned on a node, counted by what a report can say about it; independent of claims."""
    foreign = scenario.foreign(snapshot, controllers)
    found: Counter[object] = Counter()
    for key, table in snapshot.tables.items():
        rest = foreign.tables[key]
        found.update((Kind.CHAIN, key, name) for name in table.chains if name not in rest.chains)
        for chain in rest.rules:
            gone = Counter(table.rules[chain]) - Counter(rest.rules[chain])
            found.update((Kind.RULE, key, chain, rule.target.name) for rule in gone.elements())
    found.update((Kind.TABLE, native) for native in set(snapshot.native_tables) - set(foreign.native_tables))
    found.update((Kind.SET, name) for name in snapshot.sets.keys() - foreign.sets.keys())
    return found


def reported(report: CleanupReport, *statuses: Status) -> Counter[object]:
    """The outcomes of some statuses in the same terms."""
    return counted(item for item in report.outcomes if item.status in statuses)


def counted(outcomes: Iterable[Outcome]) -> Counter[object]:
    found: Counter[object] = Counter()
    for item in outcomes:
        if item.kind is Kind.SET:
            found[Kind.SET, item.name] += 1
        elif item.kind is Kind.TABLE:
            found[Kind.TABLE, item.family, item.name] += 1
        else:
            assert item.family is not None
            assert item.backend is not None
            assert item.table is not None
            key = TableKey(item.family, item.backend, item.table)
            if item.kind is Kind.CHAIN:
                found[Kind.CHAIN, key, item.name] += 1
            else:
                found[Kind.RULE, key, item.name, parse_target(item.text)] += 1
    return found


def parse_target(text: str | None) -> str:
    return parse_rule(text or "", remarks=True).target.name


def named(found: Counter[object]) -> Counter[object]:
    """`objects` with native tables as a report names them."""
    return Counter(
        {
            (Kind.TABLE, item[1].address_family, item[1].name) if item[0] is Kind.TABLE else item: n  # type: ignore[index]
            for item, n in found.items()
        }
    )


@given(strategies.mixed_nodes(holders=True), controllers)
def test_1_neighbours_survive(scenario: Scenario, chosen: frozenset[Controller]) -> None:
    """Every foreign object of the first snapshot is in the last one, in order, with handle and counters."""
    host = scenario.host()
    before = exact(scenario.foreign(host.state, chosen))
    clean(host, chosen)
    assert exact(scenario.foreign(host.state, chosen)) == before


@given(strategies.foreign_nodes())
def test_1_a_foreign_node_is_not_touched(scenario: Scenario) -> None:
    """Where nothing is owned, nothing is written and nothing reported, whatever it looks like."""
    host = scenario.host()
    before = exact(host.state)
    report = clean(host)
    assert (exact(host.state), host.writes, report.outcomes) == (before, 0, ())
    assert report.clean
    assert not report.changed


@given(strategies.mixed_nodes())
def test_2_nothing_left(scenario: Scenario) -> None:
    """Without holders, what is left is exactly the foreign part, and nothing is claimed in it."""
    host = scenario.host()
    report = clean(host)
    assert exact(host.state) == exact(without_references(scenario.foreign(host.state), host.state))
    assert not claim(host.state, KUBE_ROUTER)
    assert report.clean
    assert not objects(host.state, scenario)


@given(strategies.mixed_nodes(holders=True), controllers)
def test_2_what_is_left_is_residue_or_kept(scenario: Scenario, chosen: frozenset[Controller]) -> None:
    """With holders, each claim on the last snapshot is in the report, with the reason and the holder."""
    host = scenario.host()
    report = clean(host, chosen)
    left = reported(report, *set(Status) - {Status.REMOVED, Status.PLANNED})
    assert left == named(objects(host.state, scenario, chosen))
    assert all(item.status in {Status.KEPT, Status.IN_USE} for item in report.remaining)
    assert all(item.reason and item.holder for item in report.remaining)
    assert report.clean == all(item.status is Status.KEPT for item in report.remaining)


@given(strategies.mixed_nodes(), controllers)
def test_2_another_controller_is_no_residue(scenario: Scenario, chosen: frozenset[Controller]) -> None:
    """Without foreign holders, only what another controller's state needs is left: kept, and the node is clean."""
    report = clean(scenario.host(), chosen)
    assert {item.status for item in report.remaining} <= {Status.KEPT}
    assert all(item.holder and item.holder.controller not in {None, *chosen} for item in report.remaining)
    assert (report.clean, report.residue) == (True, ())


def without_references(foreign: Snapshot, state: Snapshot) -> Snapshot:
    """The foreign part with the reference counts that are there."""
    return attrs.evolve(foreign, sets={name: state.sets[name] for name in foreign.sets})


@given(strategies.mixed_nodes(holders=True), controllers)
def test_3_idempotent(scenario: Scenario, chosen: frozenset[Controller]) -> None:
    """A second run changes nothing, says so, and finds the same residue."""
    host = scenario.host()
    first = clean(host, chosen)
    after, writes = exact(host.state), host.writes
    second = clean(host, chosen)
    assert (exact(host.state), host.writes) == (after, writes)
    assert not second.changed
    assert second.clean == first.clean
    assert second.remaining == first.remaining
    assert first.changed == (writes > 0)


@given(strategies.mixed_nodes(holders=True), st.integers(1, 12))
def test_4_crash_safe(scenario: Scenario, writes: int) -> None:
    """Killed after any write, then run again: the same end as without the crash."""
    whole, broken = scenario.host(), scenario.host()
    expected = clean(whole)
    broken.crash_after = writes
    try:
        clean(broken)
    except Crash:
        event("killed")
    broken.crash_after = None
    report = clean(broken)
    assert exact(broken.state) == exact(whole.state)
    assert report.remaining == expected.remaining


@given(strategies.mixed_nodes(holders=True), controllers)
def test_5_dry_run_true(scenario: Scenario, chosen: frozenset[Controller]) -> None:
    """A dry run changes nothing, takes no lock, and lists what the run then does and leaves."""
    host = scenario.host()
    before, generation = exact(host.state), host.generation
    host.lock_polls = float("inf")
    plan = clean(host, chosen, dry_run=True)
    assert (exact(host.state), host.generation, host.writes) == (before, generation, 0)
    assert plan.exit_code == 0
    assert not plan.changed
    host.lock_polls = 0
    done = clean(host, chosen)
    planned = {attrs.evolve(item, status=Status.REMOVED) for item in plan.outcomes if item.status is Status.PLANNED}
    assert planned == {item for item in done.outcomes if item.status is Status.REMOVED}
    assert [item for item in plan.outcomes if item.status is not Status.PLANNED] == list(done.remaining)


@given(strategies.mixed_nodes(symmetric=True, holders=True), controllers)
def test_6_families_symmetric(scenario: Scenario, chosen: frozenset[Controller]) -> None:
    """The same node with its families exchanged gives the same report with them exchanged."""
    plain, mirrored = clean(scenario.host(), chosen), clean(scenario.mirrored().host(), chosen)
    assert Counter(without_family(plain, 0)) == Counter(without_family(mirrored, 1))
    assert plain.clean == mirrored.clean


def without_family(report: CleanupReport, exchanged: int) -> Iterator[object]:
    order = tuple(Family)
    for item in report.outcomes:
        family = None if item.family is None else order.index(item.family) ^ exchanged
        name = item.name.removeprefix("inet6:")
        if item.kind is Kind.TABLE:
            name = name[:-1]
        yield (item.kind, family, item.backend, item.table if item.kind is not Kind.TABLE else "", name, item.status)


@given(strategies.mixed_nodes(holders=True), controllers, st.randoms(use_true_random=False))
def test_7_order_free(scenario: Scenario, chosen: frozenset[Controller], shuffle: random.Random) -> None:
    """Tables, chains and sets in another order give the same plan; the order of rules means something and stays."""
    plain = scenario.snapshot
    other = shuffled(plain, shuffle)
    plans = [
        make_plan(snapshot, claim(snapshot, KUBE_ROUTER), controllers=chosen, families=BOTH)
        for snapshot in (plain, other)
    ]
    assert plans[0] == plans[1]
    assert plans[0].nft_change() == plans[1].nft_change()
    assert plans[0].legacy_keys() == plans[1].legacy_keys()
    assert plans[0].set_names() == plans[1].set_names()
    assert [plans[0].table_change(key) for key in plain.tables] == [
        plans[1].table_change(key) for key in plain.tables
    ]


def shuffled(snapshot: Snapshot, order: random.Random) -> Snapshot:
    def mixed(items):  # type: ignore[no-untyped-def]
        return order.sample(list(items), len(items))

    def table(each: Table) -> Table:
        return attrs.evolve(each, chains=tuple(mixed(each.chains)), rules=dict(mixed(each.rules.items())))

    return Snapshot(
        {key: table(each) for key, each in mixed(snapshot.tables.items())},
        tuple(mixed(snapshot.native_tables)),
        dict(mixed(snapshot.sets.items())),
    )


@attrs.define
class Writer:
    """Somebody else who writes at some steps, and a witness that each write of the cleaner took owned things only."""

    host: MemoryHost
    scenario: Scenario
    chosen: frozenset[Controller]
    moves: list[tuple[str, int]]
    before: Snapshot
    done: int = 0

    def __call__(self, step: str) -> None:
        self.witness()
        # A legacy commit is made under the lock, which this writer honours.
        if step != "legacy" and self.moves:
            move, number = self.moves.pop()
            _MOVES[move](self.host, number)
            self.done += 1
        self.before = self.host.state

    def witness(self) -> None:
        """Whatever went since the last look went by the cleaner's hand."""
        rest, before = (self.scenario.foreign(each, self.chosen) for each in (self.host.state, self.before))
        assert exact(rest) == exact(before)


def _key(host: MemoryHost, number: int, table: str = "filter") -> TableKey:
    keys = [key for key in host.state.tables if key.name == table] or list(host.state.tables)
    return keys[number % len(keys)]


def _insert(rule: str, host: MemoryHost, number: int) -> None:
    key = _key(host, number)
    chain = next(iter(host.state.tables[key].builtin))
    host.insert(key, f"-A {chain} {rule}".format(n=number), number % (len(host.state.tables[key].rules[chain]) + 1))


def _delete(host: MemoryHost, number: int) -> None:
    places = [
        (k, c, i) for k, table in host.state.tables.items() for c, own in table.rules.items() for i in range(len(own))
    ]
    if places:
        host.remove(*places[number % len(places)])


def _jump(host: MemoryHost, number: int) -> None:
    table = host.state.tables[_key(host, number)]
    if table.chains:
        chain = table.chains[number % len(table.chains)]
        host.insert(table.key, f"-A {next(iter(table.builtin))} -j {chain}")


def _use(host: MemoryHost, number: int) -> None:
    names = sorted(host.state.sets)
    if names:
        name = names[number % len(names)]
        _insert(f"-m set --match-set {name} src -j ACCEPT", host, number)


def _drop(host: MemoryHost, number: int) -> None:
    free = sorted(name for name, item in host.state.sets.items() if not item.references)
    if free:
        host.drop_set(free[number % len(free)])


_MOVES: dict[str, Callable[[MemoryHost, int], object]] = {
    "foreign rule": partial(_insert, "-p tcp -m tcp --dport {n} -j ACCEPT"),
    "owned rule": partial(_insert, '-m comment --comment "kube-router netpol" -j KUBE-ROUTER-INPUT'),
    "any rule goes": _delete,
    "a jump to any chain": _jump,
    "a rule with any set": _use,
    "a set comes": lambda host, number: host.put_set(IpSet(f"theirs-{number}", "hash:ip", Family.IPV4)),
    "a set goes": _drop,
}


@given(
    strategies.mixed_nodes(holders=True),
    controllers,
    st.lists(st.tuples(st.sampled_from(tuple(_MOVES)), st.integers(0, 40)), min_size=1, max_size=5),
)
def test_8_races(scenario: Scenario, chosen: frozenset[Controller], moves: list[tuple[str, int]]) -> None:
    """Whoever writes between read and commit: neighbours survive, and what is left is told or given up aloud."""
    assume(scenario.snapshot.tables)
    host = scenario.host()
    writer = Writer(host, scenario, chosen, list(moves), host.state)
    host.before_commit = writer
    report = clean(host, chosen)
    host.before_commit = None
    writer.witness()
    event(f"{writer.done} moves")
    left = claim(host.state, KUBE_ROUTER).select(chosen, BOTH)
    if not report.gaps:
        told = reported(report, *set(Status) - {Status.REMOVED, Status.PLANNED})
        assert claimed(left) <= told
        # The writer may have taken what proved an object: that is told as well, for it is there.
        lost = [item for item in report.outcomes if item.reason == "it is still there, though what proved it is gone"]
        assert told == claimed(left) + counted(lost)
        assert counted(lost) <= rules_of(host.state)
        assert not lost or any(move == "any rule goes" for move, _number in moves)
        holds = {
            (chain, name)
            for table in host.state.tables.values()
            for chain, own in table.rules.items()
            for rule in own
            for name in (*rule.sets, rule.target.name)
        }
        holds.update((None, name) for item in host.state.sets.values() for name in item.members)
        assert all((item.holder.chain, item.name) in holds for item in report.remaining if item.holder is not None)
    # The same without a writer: what could go has gone or goes now, and what must stay stays.
    again = clean(host, chosen)
    assert not again.gaps
    assert all(item.holder for item in again.remaining)
    assert not clean(host, chosen).changed


def rules_of(state: Snapshot) -> Counter[object]:
    return Counter(
        (Kind.RULE, key, chain, rule.target.name)
        for key, table in state.tables.items()
        for chain, own in table.rules.items()
        for rule in own
    )


def claimed(claims: Claims) -> Counter[object]:
    found: Counter[object] = Counter((Kind.SET, name) for name in claims.sets)
    found.update((Kind.TABLE, native.address_family, native.name) for native in claims.native_tables)
    for key, chains in claims.chains.items():
        found.update((Kind.CHAIN, key, name) for name in chains)
    for key, rules in claims.rules.items():
        found.update((Kind.RULE, key, each.rule.chain, each.rule.target.name) for each in rules.values())
    return found


@given(strategies.mixed_nodes(holders=True), controllers, st.integers(0, 3))
def test_9_report_true(scenario: Scenario, chosen: frozenset[Controller], polls: int) -> None:
    """What is reported removed is what was there before and is not there now, no more and no less."""
    host = scenario.host()
    host.busy_polls = polls
    before = host.state
    report = clean(host, chosen)
    gone = objects(before, scenario, chosen) - objects(host.state, scenario, chosen)
    assert reported(report, Status.REMOVED) == named(gone)
    assert report.changed == bool(gone) or emptied(before, host.state)


def emptied(before: Snapshot, after: Snapshot) -> bool:
    return any(
        bool(own) and not after.tables[key].rules.get(chain)
        for key, table in before.tables.items()
        for chain, own in table.rules.items()
    )


_READS = ("dump", "tables", "list", "filter", "nat", "mangle")
_SUBSYSTEMS = [("iptables", family) for family in Family] + [("ipset", family) for family in Family]


@given(
    strategies.mixed_nodes(),
    st.sets(st.sampled_from(_READS), max_size=2),
    st.sets(st.sampled_from([*_SUBSYSTEMS, ("nftables", None)]), max_size=2),
)
def test_10_gaps_protect(scenario: Scenario, failing: set[str], unopened: set[tuple[str, Family | None]]) -> None:
    """A part that could not be read is not touched, is reported, and is not called clean; the rest is cleaned."""
    assume(failing or unopened)
    host = scenario.host()
    for step in failing:
        keys = [k for k in host.state.tables if k.name == step and k.backend is Backend.LEGACY]
        host.errors.update(dict.fromkeys(keys or [step], errno.EPERM))
    host.gaps = tuple(Gap("not opened", family, subsystem=what) for what, family in unopened)
    before = host.state
    report = clean(host)
    after = host.state
    assert exact(scenario.foreign(after)) == exact(scenario.foreign(before))
    for key, table in before.tables.items():
        if any(gap.covers(key) for gap in report.gaps):
            assert exact(Snapshot({key: after.tables[key]})) == exact(Snapshot({key: table}))
    if any(gap.subsystem == "nftables" for gap in report.gaps):
        assert after.native_tables == before.native_tables
    gone = objects(before, scenario) - objects(after, scenario)
    assert not reported(report, Status.REMOVED) - named(gone)
    if unopened or failing & {"dump", "tables", "list"}:
        assert report.gaps
    if report.gaps:
        assert not report.clean
        assert report.exit_code == 1
        host.errors.clear()
        host.gaps = ()
        assert clean(host).clean


@given(strategies.mixed_nodes(), st.sampled_from(("nft", "legacy", "sets")))
def test_10_denied_writes(scenario: Scenario, step: str) -> None:
    """Without the right to write, that part is left whole and the report says so."""
    host = scenario.host()
    host.errors[step] = errno.EPERM
    before = host.state
    report = clean(host)
    assert exact(scenario.foreign(host.state)) == exact(scenario.foreign(before))
    gone = objects(before, scenario) - objects(host.state, scenario)
    assert reported(report, Status.REMOVED) == named(gone)
    assert report.clean == (not objects(host.state, scenario))
    host.errors.clear()
    assert clean(host).clean


@given(st.sampled_from(Family).flatmap(lambda family: st.tuples(st.just(family), strategies.rules(family))))
def test_11_text_reader_equals_rules(given_: tuple[Family, Rule]) -> None:
    """A rule printed and read again is the same rule, quotes and all; and its text is stable."""
    _family, rule = given_
    text = render(rule)
    again = parse_rule(text, user_chains=("mine",))
    assert again == rule
    assert render(attrs.evolve(again, text=None)) == text


@given(strategies.mixed_nodes(holders=True))
def test_11_backends_agree(scenario: Scenario) -> None:
    """The same rules are claimed for the same reasons, whichever backend they are in."""
    by_backend = [Scenario.of(attrs.evolve(part, backend=backend) for part in scenario.placed) for backend in Backend]
    reports = [clean(one.host(), dry_run=True) for one in by_backend]
    told = [
        Counter((o.family, o.kind, o.table, o.name, o.text, o.controller, o.evidence, o.status) for o in r.outcomes)
        for r in reports
    ]
    assert told[0] == told[1]


@given(strategies.owned_nodes())
def test_rule_ids_are_unique(scenario: Scenario) -> None:
    """What a rule is known by tells it from every other one of its table."""
    for key, table in scenario.snapshot.tables.items():
        known = [id_ for own in table.rules.values() for id_, _rule in rule_ids(key, own)]
        assert len(known) == len(set(known))
