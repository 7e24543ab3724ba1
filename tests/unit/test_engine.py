"""The loop on a node in memory: order, races, refusals, missing parts, waiting, interruption, rights."""

from __future__ import annotations

import errno
import signal

import pytest
from builders import ALL, LEGACY, NFT, POLICY, PROXY, V4, V6, Clock, H, clean, key, lines, node

from firewall_cleanup import Backend, FamilyState, Gap, Kind, Status, reading
from firewall_cleanup.model import IpSet, NativeTable
from firewall_cleanup.testing import Crash, MemoryHost

POD = f"KUBE-POD-FW-{H}"
FOREIGN = "-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT"
TEXT = f"""
-A INPUT -p udp -j ACCEPT
-A INPUT -j KUBE-ROUTER-INPUT
{FOREIGN}
-A KUBE-ROUTER-INPUT -m set --match-set kube-router-local-pods src -j {POD}
-A {POD} -j ACCEPT
-A mine -j DROP
"""
BACKENDS = pytest.mark.parametrize("backend", [NFT, LEGACY])


def everywhere() -> MemoryHost:
    sets = [IpSet("kube-router-local-pods", "hash:ip", V4), IpSet("inet6:kube-router-svip", "hash:ip", V6)]
    tables = {
        key(): TEXT,
        key(family=V6): TEXT,
        key(backend=LEGACY): TEXT,
        key("nat", V6, LEGACY): "-N KUBE-ROUTER-HAIRPIN",
    }
    return node(tables, sets, [NativeTable("ip", "kube-router-filter-ipv4"), NativeTable("inet", "theirs")])


def test_everything_goes_and_the_rest_stays() -> None:
    host = everywhere()
    report = clean(host)
    assert report.clean
    assert report.changed
    for where in (key(), key(family=V6), key(backend=LEGACY)):
        assert lines(host, where, "INPUT") == ["-A INPUT -p udp -j ACCEPT", FOREIGN]
        assert host.state.tables[where].chains == ("mine",)
    assert host.state.native_tables == (NativeTable("inet", "theirs"),)
    assert host.state.sets == {}
    # One batch, a commit for each of the two legacy tables, two sets.
    assert host.writes == 5
    assert report.families == {V4: FamilyState.EXAMINED, V6: FamilyState.EXAMINED}


def test_a_second_run_changes_nothing() -> None:
    host = everywhere()
    clean(host)
    writes, generation = host.writes, host.generation
    report = clean(host)
    assert (report.clean, report.changed, report.outcomes) == (True, False, ())
    assert (host.writes, host.generation) == (writes, generation)


def test_a_dry_run_takes_no_lock_and_writes_nothing() -> None:
    host = everywhere()
    host.lock_polls = float("inf")
    steps: list[str] = []
    host.before_commit = steps.append
    report = clean(host, dry_run=True)
    assert (steps, host.writes, report.changed, report.exit_code) == ([], 0, False, 0)
    assert {outcome.status for outcome in report.outcomes} == {Status.PLANNED}


def test_an_empty_node() -> None:
    """Nothing there is nothing to do, and clean."""
    host = node(absent=frozenset({V6}))
    report = clean(host)
    assert (report.clean, report.changed, host.writes) == (True, False, 0)
    assert report.families == {V4: FamilyState.EXAMINED, V6: FamilyState.ABSENT}


def test_only_the_families_of_the_host() -> None:
    host = everywhere()
    host.families = (V6,)
    report = clean(host)
    assert report.clean
    assert {outcome.family for outcome in report.outcomes} == {V6}
    assert host.state.tables[key()].chains == ("KUBE-ROUTER-INPUT", POD, "mine")


# races


class Once:
    """A writer that does something at the first step of a name."""

    def __init__(self, step: str, action, times: int = 1) -> None:  # type: ignore[no-untyped-def]
        self.step, self.action, self.times, self.calls = step, action, times, 0

    def __call__(self, step: str) -> None:
        if step == self.step:
            self.calls += 1
            if self.calls <= self.times:
                self.action()


def test_a_stale_generation_is_read_again() -> None:
    """A foreign rule that came between read and commit survives, in its place."""
    host = node({key(): TEXT})
    host.before_commit = writer = Once("nft", lambda: host.insert(key(), "-A INPUT -j DROP", 1))
    report = clean(host)
    assert report.clean
    assert writer.calls == 2
    assert lines(host, key(), "INPUT") == ["-A INPUT -p udp -j ACCEPT", "-A INPUT -j DROP", FOREIGN]


def test_an_owned_rule_that_came_meanwhile_goes_too() -> None:
    """What was planned first is not all: each try claims anew, and the report has all that went."""
    host = node({key(): TEXT})
    host.before_commit = Once("nft", lambda: host.insert(key(), "-A OUTPUT -j KUBE-ROUTER-INPUT"))
    report = clean(host)
    assert report.clean
    assert {o.name for o in report.outcomes if o.kind is Kind.RULE} == {"INPUT", "OUTPUT"}


def test_a_ruleset_that_never_stands_still() -> None:
    """Tries are bounded; the run gives up aloud and says why of each object."""
    host = node({key(): TEXT, key(backend=LEGACY): TEXT}, natives=[NativeTable("ip", "kube-router-filter-ipv4")])
    writer = Once("nft", lambda: host.insert(key(), "-A FORWARD -j DROP"), times=1000)
    host.before_commit = writer
    report = clean(host)
    assert 1 < writer.calls <= 20
    assert not report.clean
    assert {(gap.family, gap.backend) for gap in report.gaps} == {(V4, NFT), (V6, NFT)}
    stuck = [outcome for outcome in report.residue if outcome.backend is NFT]
    assert {outcome.kind for outcome in stuck} == {Kind.CHAIN, Kind.RULE, Kind.TABLE}
    assert all("changed by somebody else" in (outcome.reason or "") for outcome in stuck)
    assert host.state.tables[key(backend=LEGACY)].chains == ("mine",)
    host.before_commit = None
    assert clean(host).clean


def test_somebody_cleaned_meanwhile() -> None:
    """Gone is gone, whoever did it; stale handles are no trouble."""
    host = node({key(): TEXT})

    def restart() -> None:
        host.remove(key(), "INPUT", 1)
        host.insert(key(), "-A INPUT -j ACCEPT", 1)

    host.before_commit = Once("nft", restart)
    report = clean(host)
    assert report.clean
    assert "-A INPUT -j ACCEPT" in lines(host, key(), "INPUT")


def test_a_holder_that_went_meanwhile_is_not_reported() -> None:
    """What another controller held when it was first looked at, and no longer does, goes."""
    where = key()
    host = node({where: f"-A {POD} -j ACCEPT\n-A KUBE-ROUTER-SERVICES -j {POD}\n-A INPUT -j {POD}"})
    host.before_commit = Once("nft", lambda: host.remove(where, "KUBE-ROUTER-SERVICES", 0))
    report = clean(host, frozenset({POLICY}))
    assert POD not in host.state.tables[where].chains
    assert (report.clean, report.remaining) == (True, ())


def test_legacy_is_read_again_under_the_lock() -> None:
    where = key(backend=LEGACY)
    host = node({where: TEXT})
    host.before_commit = Once("lock", lambda: host.insert(where, "-A INPUT -j DROP", 0))
    report = clean(host)
    assert report.clean
    assert lines(host, where, "INPUT") == ["-A INPUT -j DROP", "-A INPUT -p udp -j ACCEPT", FOREIGN]


def test_a_legacy_writer_without_the_lock() -> None:
    """The kernel sees that the number of entries changed; the commit is made anew and nothing is lost."""
    where = key(backend=LEGACY)
    host = node({where: TEXT})
    host.before_commit = writer = Once("legacy", lambda: host.insert(where, "-A INPUT -j DROP", 0))
    report = clean(host)
    assert report.clean
    assert writer.calls == 2
    assert lines(host, where, "INPUT")[0] == "-A INPUT -j DROP"


def test_a_legacy_writer_without_the_lock_again_and_again() -> None:
    where = key(backend=LEGACY)
    host = node({where: TEXT, key("nat", backend=LEGACY): "-N KUBE-ROUTER-HAIRPIN"})
    host.before_commit = writer = Once(
        "legacy", lambda: host.insert(where, "-A FORWARD -j DROP") if not cleaned_nat(host) else None, times=1000
    )
    report = clean(host)
    assert writer.calls > 2
    assert [(gap.table, gap.backend) for gap in report.gaps] == [("filter", LEGACY)]
    assert {outcome.status for outcome in report.residue} <= {Status.FAILED, Status.IN_USE}
    assert cleaned_nat(host) or host.state.tables[key("nat", backend=LEGACY)].chains == ()


def cleaned_nat(host: MemoryHost) -> bool:
    """Whether it is the turn of nat, in which nobody writes: filter is always first."""
    return host.writes > 0


# refusals


def test_a_chain_that_something_unseen_holds() -> None:
    """The kernel refuses the batch as a whole; the next one empties the chain and leaves it, and says so."""
    host = node({key(): TEXT}, held=frozenset({(key(), POD)}))
    report = clean(host)
    assert lines(host, key(), POD) == []
    assert host.state.tables[key()].chains == (POD, "mine")
    assert [(o.name, o.status) for o in report.residue] == [(POD, Status.IN_USE)]
    assert "refused" in (report.residue[0].reason or "")
    again, writes = clean(host), host.writes
    assert (again.changed, again.clean) == (False, False)
    third = clean(host)
    assert (third.remaining, host.writes) == (again.remaining, writes)


def test_a_chain_that_a_verdict_map_holds() -> None:
    host = node({key(): TEXT})
    table = host.state.tables[key()]
    host.put_table(type(table)(key(), table.builtin, table.chains, table.rules, {POD: "ports"}))
    report = clean(host)
    assert [(o.name, o.status, o.holder and o.holder.text) for o in report.residue] == [(POD, Status.IN_USE, "ports")]
    assert lines(host, key(), POD) == []
    assert not clean(host).changed


def test_a_set_that_a_foreign_rule_uses() -> None:
    """The set stays with its holder named; the rule is not touched; the rest goes."""
    rule = "-A mine -m set --match-set kube-router-local-pods src -j ACCEPT"
    host = node({key(): f"{TEXT}\n{rule}"})
    report = clean(host)
    (outcome,) = report.residue
    assert (outcome.kind, outcome.name, outcome.status) == (Kind.SET, "kube-router-local-pods", Status.IN_USE)
    assert outcome.holder is not None
    assert (outcome.holder.text, outcome.holder.chain) == (rule, "mine")
    assert lines(host, key(), "mine") == ["-A mine -j DROP", rule]
    assert not clean(host).changed


@BACKENDS
def test_a_chain_that_another_controller_uses(backend: Backend) -> None:
    """It is emptied and kept, which is clean; a second run writes nothing."""
    where = key(backend=backend)
    host = node({where: f"-A {POD} -j ACCEPT\n-A KUBE-ROUTER-SERVICES -j {POD}"})
    report = clean(host, frozenset({POLICY}))
    assert (report.clean, report.changed) == (True, True)
    (outcome,) = report.remaining
    assert (outcome.name, outcome.status) == (POD, Status.KEPT)
    assert outcome.holder is not None
    assert outcome.holder.controller is PROXY
    assert lines(host, where, POD) == []
    writes = host.writes
    assert (clean(host, frozenset({POLICY})).changed, host.writes) == (False, writes)
    assert clean(host).clean
    assert host.state.tables[where].chains == ()


# missing parts


@pytest.mark.parametrize(
    ("step", "gaps"),
    [
        ("dump", {(V4, NFT, None), (V6, NFT, None)}),
        ("tables", {(V4, LEGACY, None), (V6, LEGACY, None)}),
        ("list", {(V4, None, None), (V6, None, None)}),
        (key(backend=LEGACY), {(V4, LEGACY, "filter")}),
    ],
)
def test_what_cannot_be_read_is_a_gap(step, gaps) -> None:  # type: ignore[no-untyped-def]
    """The rest is cleaned, the report is not clean, and the family is not said to be examined."""
    host = everywhere()
    host.errors[step] = errno.EPERM
    before = host.state
    report = clean(host)
    assert {(gap.family, gap.backend, gap.table) for gap in report.gaps} == gaps
    assert all("root" in gap.reason or "listed" in gap.reason for gap in report.gaps)
    assert (report.clean, report.exit_code, report.changed) == (False, 1, True)
    assert report.families == {
        f: FamilyState.GAP if f in {g[0] for g in gaps} else FamilyState.EXAMINED for f in (V4, V6)
    }
    for where, table in before.tables.items():
        if any(gap.covers(where) for gap in report.gaps):
            assert host.state.tables[where] == table
        else:
            assert "KUBE-ROUTER-INPUT" not in host.state.tables[where].chains
    host.errors.clear()
    assert clean(host).clean


def test_handlers_that_could_not_be_opened() -> None:
    host = everywhere()
    host.gaps = (
        Gap("no", V6, subsystem="iptables"),
        Gap("no", V4, subsystem="ipset"),
        Gap("no", subsystem="nftables"),
    )
    before = host.state
    report = clean(host)
    assert set(host.gaps) == set(report.gaps)
    assert host.state.tables[key(family=V6)] == before.tables[key(family=V6)]
    assert host.state.native_tables == before.native_tables
    assert host.state.tables[key()].chains == ("mine",)
    assert "inet6:kube-router-svip" not in host.state.sets


def test_a_rule_with_a_set_of_unknown_name_is_foreign() -> None:
    """Without the list of sets nothing proves a rule by its sets: it stays, and the gap says why."""
    subnets = "-m set --match-set kube-router-pod-subnets src -m set ! --match-set kube-router-pod-subnets dst"
    rule = f"-A POSTROUTING {subnets} -j MASQUERADE"
    host = node({key("nat"): rule})
    host.errors["list"] = errno.EPERM
    report = clean(host)
    assert (lines(host, key("nat"), "POSTROUTING"), report.outcomes) == ([rule], ())
    assert not report.clean


def test_a_part_that_fails_at_the_end_proves_nothing() -> None:
    """What cannot be read again is not reported as removed."""
    host = node({key(): TEXT})

    def lose() -> None:
        host.errors["dump"] = errno.ENOBUFS

    host.before_commit = Once("sets", lose)
    report = clean(host)
    assert not [o for o in report.outcomes if o.backend is NFT]
    assert {gap.backend for gap in report.gaps} == {NFT}


# sets


def test_a_set_that_is_busy_for_a_moment() -> None:
    """The kernel lets go of it a little later: it is polled with growing pauses, and no longer than needed."""
    host = node({key(): TEXT}, busy_polls=4)
    clock = Clock()
    report = clean(host, clock=clock)
    assert report.clean
    assert len(clock.slept) == 4
    assert clock.slept == sorted(clock.slept)
    assert clock.now < 0.1


def test_a_set_that_is_busy_for_good() -> None:
    """Polling ends, and the reason says that nothing that was read explains it."""
    host = node({key(): TEXT}, busy_polls=10**9)
    clock = Clock()
    report = clean(host, clock=clock)
    (outcome,) = report.residue
    assert (outcome.name, outcome.status, outcome.holder) == ("kube-router-local-pods", Status.IN_USE, None)
    assert "do not show" in (outcome.reason or "")
    assert 1 < clock.now < 10
    assert max(clock.slept) <= 0.1


def test_no_waiting_in_legacy() -> None:
    host = node({key(backend=LEGACY): TEXT}, busy_polls=4)
    clock = Clock()
    assert clean(host, clock=clock).clean
    assert clock.slept == []


def test_a_set_that_is_refused_is_told_even_if_another_needs_time() -> None:
    """The reason of the first try is not lost in the next."""
    host = node({key(): TEXT}, [IpSet("kube-router-svip", "hash:ip", V4)], busy_polls=3)
    host.errors["kube-router-svip"] = errno.EPERM
    (outcome,) = clean(host).residue
    assert (outcome.name, outcome.status) == ("kube-router-svip", Status.DENIED)
    assert "refused" in (outcome.reason or "")


def test_a_set_that_somebody_else_destroyed() -> None:
    host = node(sets=[IpSet("kube-router-svip", "hash:ip", V4), IpSet("kube-router-node-ips", "hash:ip", V4)])
    host.before_commit = Once("sets", lambda: host.drop_set("kube-router-svip"))
    report = clean(host)
    assert report.clean
    assert len(report.outcomes) == 2


def test_lists_before_members() -> None:
    sets = [
        IpSet("kube-router-local-ips", "hash:ip", V4),
        IpSet("kube-router-svip", "list:set", members=("kube-router-local-ips",)),
    ]
    host = node(sets=sets)
    clock = Clock()
    assert clean(host, clock=clock).clean
    assert clock.slept == []


# interruption


def test_stopped_before_anything() -> None:
    host = everywhere()
    report = clean(host, stopped=lambda: signal.SIGTERM)
    assert (host.writes, report.changed, report.interrupted, report.exit_code) == (0, False, 15, 143)
    assert {outcome.status for outcome in report.outcomes} == {Status.FAILED}
    assert {outcome.reason for outcome in report.outcomes} == {"interrupted before it was its turn"}


@pytest.mark.parametrize("writes", [1, 2, 3, 4])
def test_stopped_between_steps(writes: int) -> None:
    """The step is finished, the next one is not begun, and the report has both; a next run does the rest."""
    host = everywhere()
    report = clean(host, stopped=lambda: signal.SIGINT if host.writes >= writes else None)
    assert report.exit_code == 130
    assert report.changed
    removed = {outcome for outcome in report.outcomes if outcome.status is Status.REMOVED}
    assert removed
    assert all(o.reason == "interrupted before it was its turn" for o in report.outcomes if o not in removed)
    assert clean(host).clean


def test_stopped_while_the_ruleset_moves() -> None:
    """A signal ends the tries, too."""
    host = node({key(): TEXT})
    writer = Once("nft", lambda: host.insert(key(), "-A FORWARD -j DROP"), times=1000)
    host.before_commit = writer
    report = clean(host, stopped=lambda: signal.SIGTERM if writer.calls >= 3 else None)
    assert writer.calls == 3
    assert report.exit_code == 143


def test_stopped_while_waiting() -> None:
    """For the lock and for a busy set."""
    clock = Clock()
    host = node({key(backend=LEGACY): TEXT}, lock_polls=float("inf"))
    report = clean(host, clock=clock, wait=1000, stopped=lambda: signal.SIGTERM if clock.now > 1 else None)
    assert report.exit_code == 143
    assert clock.now < 2
    clock = Clock()
    host = node({key(): TEXT}, busy_polls=10**9)
    report = clean(host, clock=clock, stopped=lambda: signal.SIGTERM if clock.slept else None)
    assert len(clock.slept) == 1
    assert report.exit_code == 143


# the lock


def test_a_busy_lock_is_a_gap_of_its_table() -> None:
    """The rest is cleaned; the budget is for the whole run, not for each table."""
    host = everywhere()
    host.lock_polls = float("inf")
    clock = Clock()
    report = clean(host, clock=clock, wait=2.0)
    assert {(gap.family, gap.table) for gap in report.gaps} == {(V4, "filter"), (V6, "nat")}
    assert all("lock" in gap.reason for gap in report.gaps)
    assert clock.now < 6
    assert {o.status for o in report.outcomes if o.backend is LEGACY} == {Status.FAILED}
    assert {o.status for o in report.outcomes if o.backend is NFT} == {Status.REMOVED}
    assert all("lock" in (o.reason or "") for o in report.residue if o.backend is LEGACY)
    host.lock_polls = 0
    assert clean(host).clean


def test_a_lock_that_becomes_free() -> None:
    host = everywhere()
    host.lock_polls = 5
    clock = Clock()
    assert clean(host, clock=clock).clean
    assert len(clock.slept) == 5


def test_no_wait_still_tries_once() -> None:
    host = everywhere()
    assert clean(host, wait=0).clean


# rights


@pytest.mark.parametrize(("step", "backend"), [("nft", NFT), ("legacy", LEGACY), ("sets", None)])
def test_no_right_to_write(step: str, backend: Backend | None) -> None:
    """Denied is said of what was denied, in every backend alike, and nothing of it was changed."""
    host = everywhere()
    host.errors[step] = errno.EPERM
    report = clean(host)
    denied = [outcome for outcome in report.outcomes if outcome.status is Status.DENIED]
    assert denied
    assert {outcome.backend for outcome in denied} == {backend}
    assert all("root" in (outcome.reason or "") for outcome in denied)
    assert (report.clean, report.exit_code) == (False, 1)
    assert not [o for o in report.residue if o.backend is backend and o.status is not Status.DENIED]
    host.errors.clear()
    assert clean(host).clean


# texts


def test_the_text_of_an_opaque_rule_is_asked_for() -> None:
    """What we did not decode, iptables prints; without it the rest is shown and the gap in it is visible."""
    where = key(backend=LEGACY)
    rule = f"-A INPUT -m limit --limit 3/sec -j {POD}"
    host = node({where: f"-N {POD}\n-A INPUT -j ACCEPT\n{rule}"})
    assert rule in [outcome.text for outcome in clean(host, dry_run=True).outcomes]
    host.errors["texts"] = errno.ENOENT
    assert f"-A INPUT <limit> -j {POD}" in [outcome.text for outcome in clean(host).outcomes]


# crashes


@pytest.mark.parametrize("writes", [1, 2, 3, 4, 5])
def test_killed_after_any_write(writes: int) -> None:
    """The lock and the tables are let go of, and a next run ends where the first would have."""
    host, whole = everywhere(), everywhere()
    clean(whole)
    host.crash_after = writes
    with pytest.raises(Crash):
        clean(host)
    assert not host.locked
    host.crash_after = None
    assert clean(host).clean
    assert host.state == whole.state


def test_the_order_of_writes() -> None:
    """Rules before the sets that they use; each legacy table under its own lock."""
    host = everywhere()
    steps: list[str] = []
    host.before_commit = steps.append
    clean(host, ALL)
    assert steps == ["nft", "lock", "legacy", "lock", "legacy", "sets"]


@pytest.mark.parametrize("limit", [-1, 0])
def test_large_legacy_tables_are_read_once_more_instead_of_kept(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """What is not kept from the first reading is read and planned anew under the lock: the same end."""
    monkeypatch.setattr(reading, "_MOST_KEPT", limit)
    host, where = node({key(backend=LEGACY): TEXT}), key(backend=LEGACY)
    opened = []
    open_legacy = MemoryHost.open_legacy
    monkeypatch.setattr(MemoryHost, "open_legacy", lambda *args: opened.append(args) or open_legacy(*args))
    assert clean(host).clean
    assert host.state.tables[where].chains == ("mine",)
    assert len(opened) == (2 if limit == 0 else 3)
