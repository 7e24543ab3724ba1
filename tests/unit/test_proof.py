"""What the proof compares, what it says where that differs, and the bytes that it compares."""

from __future__ import annotations

import errno
import struct
from collections import Counter

import attrs
import pytest
from builders import ALL, LEGACY, NFT, POLICY, V4, V6, H, clean, key, node
from hypothesis import given
from hypothesis import strategies as st
from test_engine_items import END, FOREIGN, NODE, TUNNEL
from test_legacy_blob import R, Spec
from test_nft_reading import FakeKernel, dump  # noqa: F401

from firewall_cleanup import Controller
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.errors import KernelError
from firewall_cleanup.handlers._legacy import LegacyTable
from firewall_cleanup.handlers._netlink import attribute
from firewall_cleanup.handlers._nft import NftDump
from firewall_cleanup.handlers._nft_staying import of_nft
from firewall_cleanup.host import Interest, Look, Staying
from firewall_cleanup.model import (
    Address,
    Gap,
    IpSet,
    Link,
    NativeTable,
    Policy,
    PolicyRule,
    Route,
    Rule,
    Snapshot,
    TableChange,
)
from firewall_cleanup.ownership import Claims
from firewall_cleanup.proof import Difference, ForeignState, Proof, Unread, _moves, prove, stood_still
from firewall_cleanup.proof_text import proof_lines
from firewall_cleanup.reading import Reader
from firewall_cleanup.testing import MemoryHost

POD = f"KUBE-POD-FW-{H}"
TEXT = f"""
-N KUBE-ROUTER-INPUT
-P FORWARD DROP
-A INPUT -p udp -j ACCEPT
-A INPUT -j KUBE-ROUTER-INPUT
-A {POD} -j ACCEPT
-A mine -j DROP
"""


def look(host: MemoryHost) -> Look:
    return Reader(host, KUBE_ROUTER, ALL).read().look()


def differences(before: Snapshot, after: Snapshot, owned: Claims | None = None) -> list[tuple[str, str, str]]:
    proof = prove(Look(before), Look(after), owned or Claims(), commits=0)
    assert proof.equal == (not proof.differences)
    assert proof.equal == (proof.before.digest == proof.after.digest)
    return [(each.change, each.kind, each.text) for each in proof.differences]


# in words and JSON

BEFORE = ForeignState(
    "a" * 64, {"nft": {"tables": 1, "chains": 3, "rules": 1}, "ipset": {"sets": 2}, "routing": {"links": 0}}
)
AFTER = ForeignState("b" * 64, {**BEFORE.counts, "legacy": {"tables": 1, "chains": 3, "rules": 4}})
ADDED = Difference("added", "rule", "-A INPUT -j DROP\x1b", V4, NFT, "filter", "INPUT")


def lines(proof: Proof, *, verbose: bool = False) -> list[str]:
    return [line.plain for line in proof_lines(proof, verbose=verbose)]


def test_one_line_if_it_is_the_same() -> None:
    proof = Proof(BEFORE, BEFORE, unread=(Unread("members of sets"),))
    assert lines(proof) == ["foreign state: 1 table, 3 chains, 1 rule, 2 sets: unchanged (sha256 aaaaaaaaaaaaaaaa…)"]
    assert lines(Proof(ForeignState("c" * 64, {}), ForeignState("c" * 64, {})))[0].startswith(
        "foreign state: nothing: unchanged"
    )


def test_all_of_it_if_asked() -> None:
    parts = (Unread("rules of chains of others: 2 chains", V6, NFT, "nat", unchanged=True), Unread("members of sets"))
    assert lines(Proof(BEFORE, BEFORE, unread=parts), verbose=True) == [
        f"foreign state: 1 table, 3 chains, 1 rule, 2 sets: unchanged (sha256 {'a' * 64})",
        "not compared of it",
        f"  ipv6 nft nat: {parts[0].what} (nobody changed it: the generation of nf_tables shows that)",
        "  members of sets",
    ]


def test_what_somebody_changed() -> None:
    """So many lines, all in the long report; nothing that a terminal obeys."""
    others = [
        Difference("changed", "policy", "policy DROP, was ACCEPT", V6, LEGACY, "filter", "INPUT"),
        Difference("removed", "ipvs-service", "tcp 192.0.2.1:80", V4),
        *(Difference("added", "set", f"s{n} hash:ip", V4) for n in range(9)),
    ]
    proof = Proof(BEFORE, AFTER, (ADDED, *others))
    assert not proof.equal
    short, long = lines(proof), lines(proof, verbose=True)
    assert short[:4] == [
        "foreign state: 2 tables, 6 chains, 5 rules, 2 sets: somebody else changed it meanwhile",
        "  added: ipv4 nft filter: -A INPUT -j DROP\\x1b",
        "  changed: ipv6 legacy filter INPUT: policy DROP, was ACCEPT",
        "  removed: ipv4: IPVS service tcp 192.0.2.1:80",
    ]
    assert short[-1] == "  … and 2 more (-v or --output json shows all)"
    assert len(short) == 12
    assert long[-3:] == [
        "  added: ipv4: set s8 hash:ip",
        f"  sha256 before {'a' * 64}",
        f"  sha256 after  {'b' * 64}",
    ]


def test_json_exactly() -> None:
    proof = Proof(BEFORE, AFTER, (attrs.evolve(ADDED, text="-A INPUT"),), (Unread("x", V6, LEGACY, "nat"),))
    assert proof.to_dict() == {
        "before": {"digest": "a" * 64, "counts": BEFORE.counts},
        "after": {"digest": "b" * 64, "counts": AFTER.counts},
        "equal": False,
        "differences": [
            {
                "change": "added",
                "kind": "rule",
                "family": "ipv4",
                "backend": "nft",
                "table": "filter",
                "chain": "INPUT",
                "text": "-A INPUT",
            }
        ],
        "unread": [{"what": "x", "family": "ipv6", "backend": "legacy", "table": "nat", "unchanged": False}],
    }
    assert Proof(BEFORE, AFTER).equal is False
    assert Proof(BEFORE, BEFORE, (ADDED,)).equal is False  # a policy's counters are in no digest


# what is compared


def test_a_run_with_its_proof() -> None:
    host = node({key(): TEXT, key(backend=LEGACY): TEXT, key("nat", V6): "-N theirs"})
    proof = clean(host).proof
    assert proof is not None
    assert proof.equal
    assert proof.before.counts == proof.after.counts
    assert proof.after.counts["nft"] == {"tables": 2, "chains": 9, "rules": 1}
    assert proof.after.counts["legacy"] == {"tables": 1, "chains": 4, "rules": 2}
    unread = [(part.family, part.table, part.what, part.unchanged) for part in proof.unread if part.table]
    assert unread == [
        (V4, "filter", "rules of chains of others: 1 chains", True),
        (V6, "nat", "rules of chains of others: 1 chains", True),
    ]


@pytest.mark.parametrize("where", [key(), key(backend=LEGACY)])
def test_what_is_left_is_not_foreign(where) -> None:  # type: ignore[no-untyped-def]
    """Neither what could not go, nor what is there again."""
    host = node({where: TEXT})
    host.errors["nft"] = host.errors["legacy"] = errno.EPERM
    report = clean(host)
    assert not report.clean
    assert report.proof is not None
    assert report.proof.equal
    host = node({where: TEXT})
    host.before_commit = lambda step: step == "sets" and host.insert(where, "-A KUBE-ROUTER-INPUT -j DROP")
    host.put_set(IpSet("kube-router-svip", "hash:ip", V4))
    report = clean(host)
    assert [outcome.name for outcome in report.residue] == ["KUBE-ROUTER-INPUT"]
    assert report.proof is not None
    assert report.proof.equal


def test_nothing_to_do_is_nothing_to_prove() -> None:
    report = clean(node({key(): "-A mine -j DROP"}))
    assert (report.proof, "proof" in report.to_dict()) == (None, False)
    assert clean(node({key(): TEXT}), dry_run=True).proof is None


def test_links_and_what_is_on_them() -> None:
    """A port of a bridge that goes has no master any more; what leads through a link that goes, goes with it."""
    bridge, pod = Link("kube-bridge", "bridge", 3), Link("veth1", "veth", 9, master="kube-bridge")
    before = Snapshot(links=(bridge, pod), routes=(Route(V4, 77, "192.0.2.0/24", device="kube-bridge"),))
    after = Snapshot(links=(attrs.evolve(pod, master=None, index=9),))
    owned = attrs.evolve(Claims(), items={bridge: None})  # type: ignore[dict-item]
    assert differences(before, after, owned) == []
    moved = Snapshot(links=(attrs.evolve(pod, master="br0"),))
    assert differences(before, moved, owned) == [
        ("removed", "link", "veth1 type veth"),
        ("added", "link", "veth1 type veth master br0"),
    ]


def test_items_of_others() -> None:
    """Each by what makes it what it is; a policy rule by its place too."""
    rules = (PolicyRule(V4, 7, 5, source="192.0.2.0/24"), PolicyRule(V4, 8, 5, mark=9, plain=False, raw=bytes(16)))
    before = attrs.evolve(NODE, policy_rules=rules, sets={"a": IpSet("a", "list:set", None, members=("b",))})
    assert differences(before, before) == []
    changes = {
        "services": (attrs.evolve(FOREIGN, destinations=END),),
        "policy_rules": rules[::-1],
        "links": (attrs.evolve(TUNNEL, remote="192.0.2.201"),),
        "routes": (),
        "addresses": (Address(V6, "eth0", "2001:db8::1/64"),),
        "sets": {"a": IpSet("a", "list:set", None, members=("c",), references=3, index=7)},
        "native_tables": (NativeTable("inet", "x"),),
    }
    for field, value in changes.items():
        assert differences(before, attrs.evolve(before, **{field: value}))
    assert differences(before, attrs.evolve(before, policy_rules=rules[::-1])) == [
        ("moved", "policy-rule", "5: from all fwmark 0x9 lookup 8 and more (00000000)")
    ]
    grown = {18: b"\0\0\4\0", 25: b"\0\0\0\3"}
    same = {"sets": {"a": IpSet("a", "list:set", None, members=("b",), references=3, index=7, header=grown)}}
    assert differences(before, attrs.evolve(before, **same)) == []
    other = {"sets": {"a": IpSet("a", "list:set", None, members=("b",), header={6: b"\0\0\0\x3c", 14: b"\1"})}}
    assert differences(before, attrs.evolve(before, **other))[1] == (
        "added", "set", "a list:set timeout 60 attribute 14 1 members b"
    )  # fmt: skip
    assert differences(before, attrs.evolve(before, links=NODE.links[::-1], services=NODE.services[::-1])) == []


@pytest.mark.parametrize(
    ("gap", "kinds"),
    [
        (Gap("x", subsystem="ipvs"), {"ipvs-service"}),
        (Gap("x", subsystem="routing"), {"policy-rule", "route", "link", "address", "fou-port"}),
        (Gap("x", V4, subsystem="ipset"), {"set"}),
        (Gap("x", V4, NFT), {"table"}),
        (Gap("x", subsystem="fou"), {"fou-port"}),
    ],
)
def test_a_gap_is_compared_in_neither(gap: Gap, kinds: set[str]) -> None:
    before = attrs.evolve(NODE, native_tables=(NativeTable("ip", "x"),), sets={"a": IpSet("a", "hash:ip", V4)})
    after = Snapshot(gaps=(gap,))
    proof = prove(Look(before), Look(after), Claims(), commits=0)
    assert {each.kind for each in proof.differences}.isdisjoint(kinds)
    assert proof.unread[0].what == "x"


def test_a_table_that_cannot_be_made_out_is_compared_in_neither() -> None:
    host = node({key(backend=LEGACY): TEXT, key("nat", backend=LEGACY): TEXT})
    seen = look(host)

    @attrs.frozen
    class Torn:
        key = key("nat", backend=LEGACY)

        def staying(self, _owned: object, _sets: object, _like: object = None) -> Staying:
            raise KernelError(errno.EPROTO, "torn")

    torn = attrs.evolve(seen, legacy={**seen.legacy, Torn.key: Torn()})  # type: ignore[dict-item]
    proof = prove(seen, torn, Claims(), commits=0)
    assert proof.equal
    assert proof.after.counts["legacy"]["tables"] == 1
    assert Unread("torn: Protocol error", V4, LEGACY, "nat") in proof.unread


def test_who_wrote_to_nf_tables() -> None:
    """Each of our batches makes one generation; one more is somebody else's."""
    host = node({key(): TEXT})
    first = look(host)
    assert stood_still(first, first, 0)
    assert not stood_still(first, first, 1)
    host.insert(key(), "-A INPUT -j DROP")
    assert stood_still(first, look(host), 1)
    assert not stood_still(first, look(host), 0)
    last = attrs.evolve(first, dump=attrs.evolve(first.dump, generation=0))  # type: ignore[type-var]
    before = attrs.evolve(first, dump=attrs.evolve(first.dump, generation=0xFFFFFFFF))  # type: ignore[type-var]
    assert stood_still(before, last, 1)
    assert stood_still(Look(Snapshot()), Look(Snapshot()), 0)
    assert not stood_still(first, Look(Snapshot()), 0)


def test_a_policy() -> None:
    host = node({key(): "-P INPUT DROP"})
    other = node({key(): "-P INPUT ACCEPT"})
    (found,) = prove(look(host), look(other), Claims(), commits=0).differences
    assert (found.change, found.kind, found.chain, found.text) == (
        "changed", "policy", "INPUT", "policy ACCEPT, was DROP"
    )  # fmt: skip


def test_chains_in_another_order() -> None:
    """It is a difference in legacy, where the table is one block, and none in nf_tables."""
    for backend, count in ((LEGACY, 1), (NFT, 0)):
        sides = [look(node({key(backend=backend): text})) for text in ("-N a\n-N b", "-N b\n-N a")]
        found = prove(*sides, Claims(), commits=0).differences
        assert [each.text for each in found] == ["the chains are in another order"] * count


# rules of a chain

words = st.lists(st.sampled_from("abcd"), max_size=8)


def moves(before: list[str], after: list[str]) -> list[tuple[str, str]]:
    sides = [[(word.encode(), lambda word=word: word) for word in side] for side in (before, after)]  # type: ignore[misc]
    return list(_moves(*sides))


@given(words, words)
def test_moves_account_for_everything(before: list[str], after: list[str]) -> None:
    found = moves(before, after)
    assert (not found) == (before == after)
    removed = Counter(text for change, text in found if change == "removed")
    added = Counter(text for change, text in found if change == "added")
    assert removed == Counter(before) - Counter(after)
    assert added == Counter(after) - Counter(before)


@given(words, words)
def test_moves_of_a_chain_of_many_rules(before: list[str], after: list[str]) -> None:
    """Not place by place, but complete all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("firewall_cleanup.proof._MOST_PLACES", 0)
        test_moves_account_for_everything.hypothesis.inner_test(before, after)


def test_moves() -> None:
    assert moves(["a", "b", "c"], ["a", "c", "b"]) == [("moved", "c")]
    assert moves(["a", "b"], ["x", "a", "b"]) == [("added", "x")]
    assert moves(["a", "b"], ["a"]) == [("removed", "b")]


# bytes


def staying_of(spec: Spec, family, owned: TableChange | None = None) -> Staying:  # type: ignore[no-untyped-def]
    table = LegacyTable.__new__(LegacyTable)
    table.key, table._blob = key(family=family, backend=LEGACY), spec.blob(family)
    table._taken_out = (frozenset(), frozenset(), frozenset())
    return table.staying(owned or TableChange(table.key), {})


SPEC = Spec(
    {"INPUT": (R("A"), R("", 1), R("B")), "FORWARD": (), "OUTPUT": (R("ACCEPT"),)},
    {"A": (R("B"),), "B": (R("mark"), R("RETURN")), "C": (R("B"),)},
)
REST = Spec(
    {"INPUT": (R("", 1), R("B", count=9)), "FORWARD": (), "OUTPUT": (R("ACCEPT", count=3),)},
    {"B": (R("mark", count=5), R("RETURN")), "C": (R("B"),)},
)


@pytest.mark.parametrize("family", [V4, V6])
def test_a_legacy_table_without_what_is_owned(family) -> None:  # type: ignore[no-untyped-def]
    """The same as one that never had it, counters or not; and all of it can be read out."""
    owned = TableChange(key(family=family, backend=LEGACY), (Rule("INPUT", index=0),), ("A",), ("A",))
    one, two = staying_of(SPEC, family, owned), staying_of(REST, family)
    assert one.content == two.content
    assert (one.chains, one.rules) == (two.chains, two.rules) == (5, 6)
    said = [{chain: [same for same, _text in own] for chain, own in each.words().items()} for each in (one, two)]
    assert said[0] == said[1]
    texts = {chain: [text() for _same, text in own] for chain, own in one.words().items()}
    assert texts["C"] == ["-A C -j B"]
    assert texts["OUTPUT"] == ["-A OUTPUT -j ACCEPT"]


def test_a_policy_is_not_a_rule() -> None:
    """A block of the same bytes, of which another part is the policy."""
    one = Spec({"INPUT": (R("DROP"),), "FORWARD": ()})
    two = Spec({"INPUT": (), "FORWARD": (R("DROP"),)})
    three = [staying_of(spec, V4) for spec in (one, two)]
    assert three[0].content != three[1].content


def test_what_is_owned_of_a_chain_that_is_held() -> None:
    """It is left out but for its name, to which a rule that stays jumps."""
    table = key(backend=LEGACY)
    empty = attrs.evolve(SPEC, user={**SPEC.user, "B": ()})
    owned = TableChange(table, (), ("B",), ("B",))
    assert (
        staying_of(SPEC, V4, owned).content == staying_of(empty, V4, owned).content == staying_of(empty, V4).content
    )


def rule(chain: bytes, handle: int, *expressions: bytes, position: int = 0) -> bytes:
    place = attribute(6, position.to_bytes(8, "big")) if position else b""
    head = attribute(1, b"filter\0") + attribute(2, chain + b"\0") + attribute(3, handle.to_bytes(8, "big"))
    return b"\2\0\0\0" + head + place + attribute(4, b"".join(attribute(1, each) for each in expressions))


def expression(name: bytes, *parts: bytes) -> bytes:
    data = b"".join(attribute(i + 1, part) for i, part in enumerate(parts))
    return attribute(1, name + b"\0") + attribute(2, data)


def counter(packets: int) -> bytes:
    return expression(b"counter", (packets * 60).to_bytes(8, "big"), packets.to_bytes(8, "big"))


def set_match(index: int) -> bytes:
    return expression(b"match", b"set\0", (4).to_bytes(4, "big"), struct.pack("=HBB", index, 1, 2) + bytes(36))


def nft(*payloads: bytes, owned: frozenset[int | None] = frozenset(), sets: dict[int, str] | None = None) -> Staying:
    return of_nft(V4, {"INPUT": Policy("DROP", 5, 9)}, ["b", "a"], {"INPUT": payloads}, owned, {}, sets or {})


def test_a_rule_of_nf_tables() -> None:
    """By what it does: not by its place, its handle, what it counted, or the number that a set has."""
    drop = expression(b"immediate", b"x")
    one = nft(rule(b"INPUT", 4, counter(7), drop, position=2))
    assert one.content == nft(rule(b"INPUT", 9, counter(0), drop)).content
    assert one.content != nft(rule(b"INPUT", 4, counter(7))).content
    assert (
        one.content == nft(rule(b"INPUT", 3, drop), rule(b"INPUT", 4, counter(1), drop), owned=frozenset({3})).content
    )
    assert (one.chains, one.rules, one.unread) == (3, 1, ("a", "b"))
    named = [nft(rule(b"INPUT", 4, set_match(i)), sets={i: "mine"}).content for i in (1, 2)]
    assert named[0] == named[1]
    assert named[0] != nft(rule(b"INPUT", 4, set_match(1)), sets={1: "other"}).content
    assert b"mine" in named[0][0]


def test_handles_of_others(dump) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Where rules of others are looked at at all, the handles are kept, of chains without rules too."""
    head = attribute(1, b"filter\0")
    chains = [
        head + attribute(3, name + b"\0") + attribute(6, use.to_bytes(4, "big"))
        for name, use in ((b"own", 1), (b"theirs", 2), (b"empty", 0))
    ]
    rules = [(b"theirs\0", rule(b"theirs", number, counter(1))[4:]) for number in (5, 7)]

    class Own(Interest):
        def sort(self, _table, _chains):  # type: ignore[no-untyped-def]
            return ("own",), ("own",)

    read: NftDump = dump(FakeKernel(chains, rules), Own())
    stays = read.staying(TableChange(key(), (Rule("theirs", handle=5),), ("own",), ("own",)), {})
    assert stays.unread == ("empty", "theirs")
    assert stays.handles() == {"theirs": [7], "empty": []}

    class Nothing(Own):
        def sort(self, _table, _chains):  # type: ignore[no-untyped-def]
            return (), ()

        def any_set_matters(self) -> bool:
            return False

    assert dump(FakeKernel(chains, rules), Nothing()).staying(TableChange(key()), {}).handles() == {}


def test_another_controller_is_foreign() -> None:
    """What is not of the selected controllers is compared as anybody else's."""
    host = node({key(): f"{TEXT}\n-A INPUT -j KUBE-ROUTER-SERVICES\n-A KUBE-ROUTER-SERVICES -j ACCEPT"})
    report = clean(host, frozenset({POLICY}))
    assert report.proof is not None
    assert report.proof.equal
    assert report.proof.after.counts["nft"]["chains"] == 3 + 2
    assert "the selected controllers have none" in report.proof.unread[-1].what
    report = clean(host, frozenset({Controller.SERVICE_PROXY}))
    assert report.proof is not None
    assert report.proof.equal
