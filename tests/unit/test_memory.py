"""The node in memory is as strict as the kernel: what it refuses, with which errno, and that nothing changes then."""

from __future__ import annotations

import errno
from collections.abc import Collection

import pytest
from builders import LEGACY, V4, V6, Clock, key, lines, node

from firewall_cleanup import Gap
from firewall_cleanup.errors import BatchRefused, KernelError, LockBusy, StaleGeneration
from firewall_cleanup.host import Interest
from firewall_cleanup.model import Change, IpSet, NativeTable, Rule, Snapshot, Table, TableChange
from firewall_cleanup.testing import Crash, MemoryHost, read_table

TEXT = "-A INPUT -j a\n-A INPUT -p tcp -j ACCEPT\n-A a -j b\n-A b -j DROP"
WHOLE = key(backend=LEGACY)


EVERYTHING = Interest()


class Unread(Interest):
    """Every user chain is owned and goes with its inside."""

    def sort(self, _table: str, chains: Collection[str]) -> tuple[Collection[str], Collection[str]]:
        return chains, chains


def change(**parts: object) -> Change:
    return Change((TableChange(key(), **parts),))  # type: ignore[arg-type]


def refused(host: MemoryHost, what: Change) -> dict[tuple[str, object], int]:
    before, generation = host.state, host.generation
    with pytest.raises(BatchRefused) as raised:
        host.commit_nft(what, host.generation)
    assert (host.state, host.generation, host.writes) == (before, generation, 0)
    return {(kind, name): code for (_where, kind, name), code in raised.value.failures.items()}


def test_a_batch_applies_whole() -> None:
    host = node({key(): TEXT}, natives=[NativeTable("ip", "x")])
    jump = host.state.tables[key()].rules["INPUT"][0]
    what = Change((TableChange(key(), (jump,), ("a", "b"), ("a", "b")),), (NativeTable("ip", "x"),))
    generation = host.generation
    host.commit_nft(what, generation)
    assert host.state.tables[key()].chains == ()
    assert lines(host, key(), "INPUT") == ["-A INPUT -p tcp -j ACCEPT"]
    assert host.state.tables[key()].rules["INPUT"][0].index == 0
    assert (host.state.native_tables, host.generation, host.writes) == ((), generation + 1, 1)


def test_a_batch_is_refused_whole() -> None:
    """One failure among many, and nothing is applied; every failure is told."""
    host = node({key(): TEXT})
    rule = Rule("INPUT", handle=4711)
    assert refused(host, change(rules=(rule,), flush=("b", "none"), delete=("b", "none"))) == {
        ("rule", 4711): errno.ENOENT,
        ("flush", "none"): errno.ENOENT,
        ("chain", "b"): errno.EBUSY,
        ("chain", "none"): errno.ENOENT,
    }


def test_a_handle_counts_in_its_own_chain() -> None:
    host = node({key(): TEXT})
    handle = host.state.tables[key()].rules["a"][0].handle
    assert refused(host, change(rules=(Rule("INPUT", handle=handle),))) == {("rule", handle): errno.ENOENT}


def test_unknown_tables() -> None:
    host = node()
    native = NativeTable("ip", "x")
    what = Change((TableChange(key(), (Rule("INPUT", handle=1),), ("a",), ("a",)),), (native,))
    assert set(refused(host, what).values()) == {errno.ENOENT}


def test_references_that_are_no_rules() -> None:
    host = node({key(): "-N a\n-N b"}, held=frozenset({(key(), "a")}))
    table = host.state.tables[key()]
    host.put_table(Table(key(), table.builtin, table.chains, table.rules, {"b": "a map"}))
    assert refused(host, change(delete=("a", "b"))) == {("chain", "a"): errno.EBUSY, ("chain", "b"): errno.EBUSY}


def test_generations() -> None:
    """Every write to nf_tables moves the generation, whoever makes it; one to legacy does not."""
    host = node({key(): TEXT, WHOLE: TEXT})
    read = host.dump_nft(EVERYTHING).generation
    host.insert(WHOLE, "-A INPUT -j DROP")
    assert host.generation == read
    host.insert(key(), "-A INPUT -j DROP")
    with pytest.raises(StaleGeneration):
        host.commit_nft(change(flush=("a",)), read)
    assert lines(host, key(), "a") == ["-A a -j b"]
    host.commit_nft(change(flush=("a",)), host.generation)
    with pytest.raises(StaleGeneration):
        host.commit_nft(change(flush=("b",)), read + 1)


def test_handles_are_never_given_twice() -> None:
    host = node({key(): TEXT, WHOLE: TEXT})
    first = {rule.handle for own in host.state.tables[key()].rules.values() for rule in own}
    host.remove(key(), "INPUT", 0)
    host.insert(key(), "-A INPUT -j a", 0)
    assert host.state.tables[key()].rules["INPUT"][0].handle not in first
    assert {rule.handle for own in host.state.tables[WHOLE].rules.values() for rule in own} == {None}
    again = MemoryHost(host.state)
    assert again.state == host.state
    again.insert(key(), "-A INPUT -j DROP")
    assert again.state.tables[key()].rules["INPUT"][-1].handle not in first


def test_a_dump_is_of_one_moment() -> None:
    host = node({key(): TEXT})
    dump = host.dump_nft(EVERYTHING)
    host.insert(key(), "-A INPUT -j DROP")
    assert len(dump.tables({})[key()].rules["INPUT"]) == 2


def test_skipped_chains_are_not_handed_out() -> None:
    """A chain that need not be read is listed and its rules are not; a built-in chain is always read."""
    host = node({key(): TEXT, WHOLE: TEXT})
    for table in (
        host.dump_nft(Unread()).tables({})[key()],
        host.open_legacy(WHOLE, Unread()).table({}),
    ):
        assert table.chains == ("a", "b")
        assert set(table.rules) == set(table.builtin)


def test_what_is_not_understood_is_not_shown() -> None:
    """As a decoder does: an opaque match has a name and no content; iptables prints all of it."""
    line = "-A INPUT -m limit --limit 1/s -j LOG --log-prefix x"
    host = node({key(): line})
    (rule,) = host.dump_nft(EVERYTHING).tables({})[key()].rules["INPUT"]
    assert (rule.opaque, rule.matches, rule.target.options, rule.text) == (("limit", "LOG"), (), (), None)
    assert host.texts(key(), "INPUT") == [line]


def test_sets_have_names_only_if_they_were_listed() -> None:
    host = node({key(): "-A INPUT -m set --match-set a src -j DROP"})
    unknown, known = (host.dump_nft(EVERYTHING).tables(names)[key()].rules["INPUT"][0] for names in ({}, {1: "a"}))
    assert (unknown.opaque, unknown.sets, unknown.matches) == (("set",), frozenset(), ())
    assert (known.opaque, known.sets) == ((), {"a"})
    assert host.sets([V4])[0].index == 1


def test_a_rule_needs_its_sets() -> None:
    with pytest.raises(ValueError, match="no such set: a"):
        MemoryHost(Snapshot({key(): read_table(key(), "-A INPUT -m set --match-set a src -j DROP")}))


def test_references_are_counted() -> None:
    """By match and by target, in every backend and family, and by lists; a set twice in a rule counts twice."""
    twice = "-m set --match-set a src -m set ! --match-set a dst"
    tables = {key(): f"-A INPUT {twice} -j DROP", key("nat", V6, LEGACY): "-A INPUT -j SET --add-set a src"}
    sets = [IpSet("a", "hash:ip", V4), IpSet("l", "list:set", members=("a",)), IpSet("b", "hash:ip", V6)]
    host = node(tables, sets)
    assert {item.name: item.references for item in host.sets([V4])} == {"a": 4, "l": 0}
    assert {item.name for item in host.sets([V6])} == {"b", "l"}
    assert host.destroy_sets(["a", "none", "l", "b"]) == {"a": 4100, "none": errno.ENOENT}
    assert host.writes == 2
    assert set(host.state.sets) == {"a"}
    with pytest.raises(ValueError, match="without a name"):
        host.destroy_sets([""])


def test_a_set_lingers_after_nf_tables_only() -> None:
    host = node({key(): "-A a -m set --match-set s src -j DROP"}, busy_polls=2)
    host.commit_nft(change(flush=("a",)), host.generation)
    assert host.sets([V4])[0].references == 1
    assert [host.destroy_sets(["s"]) for _ in range(3)] == [{"s": 4100}, {"s": 4100}, {}]


def legacy(host: MemoryHost, what: TableChange, **errors: int) -> None:
    with host.lock(0, give_up=lambda: False, clock=Clock(), sleep=lambda _s: None):
        table = host.open_legacy(WHOLE, EVERYTHING)
        host.errors.update(errors)
        table.commit(what)


def test_legacy_commits() -> None:
    host = node({WHOLE: TEXT})
    rules = host.state.tables[WHOLE].rules["INPUT"][:1]
    legacy(host, TableChange(WHOLE, rules, ("a", "b"), ("a", "b")))
    assert host.state.tables[WHOLE].chains == ()
    assert lines(host, WHOLE, "INPUT") == ["-A INPUT -p tcp -j ACCEPT"]
    assert (host.writes, host.locked) == (1, False)


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (TableChange(WHOLE, flush=("b",), delete=("b",)), errno.EMLINK),
        (TableChange(WHOLE, delete=("a",)), errno.ENOTEMPTY),
        (TableChange(WHOLE, delete=("none",)), errno.ENOENT),
        (TableChange(WHOLE, delete=("OUTPUT",)), errno.EINVAL),
    ],
)
def test_legacy_refuses_chains(what: TableChange, code: int) -> None:
    host = node({WHOLE: TEXT})
    before = host.state
    with pytest.raises(BatchRefused) as raised:
        legacy(host, what)
    assert list(raised.value.failures.values()) == [code]
    assert (host.state, host.writes) == (before, 0)


@pytest.mark.parametrize("what", [TableChange(WHOLE, (Rule("INPUT", index=9),)), TableChange(WHOLE, flush=("none",))])
def test_legacy_refuses_the_rest(what: TableChange) -> None:
    with pytest.raises(KernelError):
        legacy(node({WHOLE: TEXT}), what)


def test_legacy_needs_the_lock() -> None:
    host = node({WHOLE: TEXT})
    with pytest.raises(AssertionError, match="lock"):
        host.open_legacy(WHOLE, EVERYTHING).commit(TableChange(WHOLE, flush=("a",)))


def test_a_table_that_somebody_changed_is_not_current() -> None:
    host = node({WHOLE: TEXT})
    table = host.open_legacy(WHOLE, EVERYTHING)
    assert table.is_current()
    host.insert(WHOLE, "-A INPUT -j DROP")
    assert not table.is_current()


def test_legacy_compares_the_number_of_entries() -> None:
    """EAGAIN if it differs; an edit that keeps it is lost, which is why there is a lock."""
    host = node({WHOLE: TEXT})
    host.before_commit = lambda step: step == "legacy" and host.insert(WHOLE, "-A INPUT -j DROP")
    with pytest.raises(KernelError) as raised:
        legacy(host, TableChange(WHOLE, flush=("a",)))
    assert raised.value.errno == errno.EAGAIN
    assert "-A INPUT -j DROP" in lines(host, WHOLE, "INPUT")

    def swap(step: str) -> None:
        if step == "legacy":
            host.remove(WHOLE, "INPUT", 0)
            host.insert(WHOLE, "-A INPUT -j RETURN")

    host.before_commit = swap
    legacy(host, TableChange(WHOLE, flush=("a",)))
    assert "-A INPUT -j RETURN" not in lines(host, WHOLE, "INPUT")


def test_texts_are_not_asked_for_under_the_lock() -> None:
    host = node({WHOLE: TEXT, key(): TEXT})
    with host.lock(0, give_up=lambda: False, clock=Clock(), sleep=lambda _s: None):
        assert host.texts(key(), "a") == ["-A a -j b"]
        with pytest.raises(AssertionError, match="wait for the lock"):
            host.texts(WHOLE, "a")


def test_a_busy_lock() -> None:
    clock = Clock()
    host = node(lock_polls=3)
    with host.lock(10, give_up=lambda: False, clock=clock, sleep=clock.sleep):
        assert len(clock.slept) == 3
    host.lock_polls = float("inf")
    for deadline, give_up in ((1.0, False), (float("inf"), True)):
        with (
            pytest.raises(LockBusy),
            host.lock(deadline, give_up=lambda g=give_up: g, clock=clock, sleep=clock.sleep),
        ):
            pass
    assert not host.locked


def test_crashes_come_after_the_write() -> None:
    host = node(sets=[IpSet("a", "hash:ip", V4), IpSet("b", "hash:ip", V4)], crash_after=1)
    with pytest.raises(Crash):
        host.destroy_sets(["a", "b"])
    assert set(host.state.sets) == {"b"}
    assert not issubclass(Crash, Exception)


def test_switches_that_fail() -> None:
    host = node(
        {WHOLE: TEXT}, errors={WHOLE: errno.EPERM, "tables": errno.EACCES, "list": errno.EPERM, "dump": errno.EPERM}
    )
    for read in (
        lambda: host.open_legacy(WHOLE, EVERYTHING),
        lambda: host.sets([V4]),
        lambda: host.dump_nft(EVERYTHING),
    ):
        with pytest.raises(KernelError) as raised:
            read()
        assert raised.value.errno == errno.EPERM
    with pytest.raises(OSError, match="denied"):
        host.legacy_tables(V4)


def test_gaps_hide_what_their_handler_would_read() -> None:
    host = node({key(): TEXT, WHOLE: TEXT}, [IpSet("a", "hash:ip", V4)], [NativeTable("ip", "x")])
    host.gaps = (Gap("no", V4), Gap("no", V4, subsystem="ipset"), Gap("no", subsystem="nftables"))
    dump = host.dump_nft(EVERYTHING)
    assert (dump.tables({}), dump.native_tables, host.legacy_tables(V4), host.sets([V4])) == ({}, (), (), [])


def test_others_may_not_do_the_impossible() -> None:
    host = node({key(): "-A INPUT -m set --match-set a src -j DROP"})
    with pytest.raises(ValueError, match="in use"):
        host.drop_set("a")
    with pytest.raises(ValueError, match="no rule 1"):
        host.remove(key(), "INPUT", 1)


def test_read_table() -> None:
    table = read_table(key(), "-P FORWARD DROP\n\n-N empty\n[1:60] -A INPUT -j late\n-A late -j ACCEPT\n")
    assert {name: policy.verdict for name, policy in table.builtin.items()} == {
        "INPUT": "ACCEPT", "FORWARD": "DROP", "OUTPUT": "ACCEPT",
    }  # fmt: skip
    assert table.chains == ("empty", "late")
    (rule,) = table.rules["INPUT"]
    assert (rule.packets, rule.opaque) == (1, ())
    assert read_table(key("raw"), "").builtin.keys() == {"PREROUTING", "OUTPUT"}
    with pytest.raises(ValueError, match="expected -A"):
        read_table(key(), "-X nothing")
