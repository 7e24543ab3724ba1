"""The block of entries of a legacy table, built here by struct: what is found in it, and what is left of it."""

from __future__ import annotations

import ctypes
import errno
import itertools
import struct
from collections.abc import Callable, Collection, Iterable
from typing import Any, Self

import attrs
import pytest
from builders import LEGACY, V4, key
from hypothesis import given
from hypothesis import strategies as st

from firewall_cleanup.errors import KernelError
from firewall_cleanup.handlers import _legacy_blob
from firewall_cleanup.handlers._legacy import LegacyTable
from firewall_cleanup.handlers._legacy_blob import Blob, Cut
from firewall_cleanup.host import Interest
from firewall_cleanup.model import Family, Rule, TableChange

HOOKS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
VERDICTS = {"DROP": -1, "ACCEPT": -2, "QUEUE": -4, "RETURN": -5}
NONE = 0xFFFFFFFF  # what the kernel has for a hook that the table does not have


@attrs.frozen
class R:
    """A rule: `to` is a verdict, a chain, an extension (these in lower case), or nothing; it has `extra` matches."""

    to: str = ""
    extra: int = 0
    count: int = 0


@attrs.frozen
class Spec:
    """A table: rules by chain; built-in ones first, in the order of hooks."""

    builtin: dict[str, tuple[R, ...]]
    user: dict[str, tuple[R, ...]] = attrs.field(factory=dict)

    def blob(self, family: Family = V4) -> Blob:
        return _Builder(family, self).blob()


class _Builder:
    def __init__(self, family: Family, spec: Spec) -> None:
        self.family, self.spec = family, spec
        self.size_at, self.head = (88, 112) if family is V4 else (140, 168)
        self.begins: dict[str, int] = {}

    def entry(self, target: bytes, count: int, extra: int = 0) -> bytes:
        matches = b"".join(struct.pack("=H29sB", 40, b"mark", 1) + b"\xff" * 8 for _ in range(extra))
        start = self.head + len(matches)
        entry = bytearray(self.head)
        struct.pack_into("=HH", entry, self.size_at, start, start + len(target))
        struct.pack_into("=QQ", entry, self.head - 16, count, count * 60)
        return bytes(entry) + matches + target

    def standard(self, verdict: int) -> bytes:
        return struct.pack("=H29sBi4x", 40, b"", 0, verdict)

    def error(self, name: str) -> bytes:
        return struct.pack("=H29sB32s", 64, b"ERROR", 0, name.encode("utf-8", "surrogateescape"))

    def rule(self, rule: R, offset: int) -> bytes:
        if rule.to.islower():
            return self.entry(struct.pack("=H29sB8s", 40, rule.to.encode(), 2, b"\0" * 8), rule.count, rule.extra)
        after = offset + self.head + 40 * (rule.extra + 1)
        verdict = VERDICTS[rule.to] if rule.to in VERDICTS else self.begins.get(rule.to, 0) if rule.to else after
        return self.entry(self.standard(verdict), rule.count, rule.extra)

    def build(self) -> bytes:
        data = b""
        self.hook_entry, self.underflow, self.number = [NONE] * 5, [NONE] * 5, 1
        for name, rules in (*self.spec.builtin.items(), *self.spec.user.items()):
            builtin = name in self.spec.builtin
            if not builtin:
                data += self.entry(self.error(name), 0)
            self.begins[name] = len(data)
            if builtin:
                self.hook_entry[HOOKS.index(name)] = len(data)
            for rule in rules:
                data += self.rule(rule, len(data))
            if builtin:
                self.underflow[HOOKS.index(name)] = len(data)
            data += self.entry(self.standard(VERDICTS["ACCEPT" if builtin else "RETURN"]), 1 if builtin else 0)
            self.number += len(rules) + (1 if builtin else 2)
        return data + self.entry(self.error("ERROR"), 0)

    def blob(self) -> Blob:
        self.build()  # only to know where the chains are
        return blob_of(self.build(), self.family, self.hook_entry, self.underflow, self.number)


def blob_of(data: bytes, family: Family, hook_entry: list[int], underflow: list[int], number: int) -> Blob:
    blob = Blob.__new__(Blob)
    blob.key = key(family=family, backend=LEGACY)
    blob.size_at, blob.head = (88, 112) if family is V4 else (140, 168)
    valid = sum(1 << i for i, offset in enumerate(hook_entry) if offset != NONE)
    hooks = _legacy_blob._Hooks
    blob.info = _legacy_blob._Info(
        b"filter", valid, hooks(*hook_entry), hooks(*underflow), num_entries=number, size=len(data)
    )
    blob.entries = bytearray(data)
    return blob


SPEC = Spec(
    {"INPUT": (R("B"), R(), R("ACCEPT", 2)), "OUTPUT": ()},
    {"A": (R(), R("RETURN")), "ERROR": (R("DROP"), R("A", 1), R("mark")), "B": (R("ERROR"), R("", 3)), "E": ()},
)


@pytest.fixture(params=list(Family))
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


def contents(blob: Blob) -> dict[str, list[str]]:
    return {
        name: [blob.target(offset) for offset in blob.offsets(chain.begin, chain.end)]
        for name, chain in blob.chains.items()
    }


def test_chains_and_targets(family: Family) -> None:
    """A chain named like the end of a table, a rule without a target at each place, chains without rules."""
    blob = SPEC.blob(family)
    assert contents(blob) == {
        "INPUT": ["B", "", "ACCEPT"],
        "OUTPUT": [],
        "A": ["", "RETURN"],
        "ERROR": ["DROP", "A", "mark"],
        "B": ["ERROR", ""],
        "E": [],
    }
    assert blob.user_chains == ("A", "ERROR", "B", "E")
    assert [blob.is_builtin(chain) for chain in blob.chains.values()] == [True] * 2 + [False] * 4
    assert [blob.target(chain.end) for chain in blob.chains.values()] == ["ACCEPT"] * 2 + ["RETURN"] * 4
    ends = [chain.next for chain in blob.chains.values()]
    assert [chain.head for chain in blob.chains.values()] == [0, *ends[:-1]]
    assert ends[-1] + blob.head + 64 == len(blob.entries)


def test_long_names_and_bytes_that_are_no_text(family: Family) -> None:
    names = ("K" * 28, "X\udcff\udcfe", "ÄÖ", "A.B:C/D")
    blob = Spec({"INPUT": tuple(map(R, names))}, dict.fromkeys(names, ())).blob(family)
    assert blob.user_chains == names
    assert contents(blob)["INPUT"] == list(names)


def test_jumps_to(family: Family) -> None:
    blob = SPEC.blob(family)
    begin = {chain.begin: name for name, chain in blob.chains.items()}
    for name, chain in blob.chains.items():
        found = {to for at, to in begin.items() if blob.jumps_to(chain.begin, chain.end, frozenset({at}))}
        assert found == {to for to in contents(blob)[name] if to in SPEC.user}, name
    assert not blob.jumps_to(0, blob.chains["E"].next, frozenset())


def test_a_chain_that_does_not_end_as_iptables_ends_it(family: Family) -> None:
    """Its last entry is its end, whatever it is."""
    builder = _Builder(family, SPEC)
    blob = builder.blob()
    end = blob.chains["E"].end
    entry = builder.entry(builder.standard(VERDICTS["RETURN"]), 0, 1)
    data = bytes(blob.entries[:end]) + entry + bytes(blob.entries[blob.chains["E"].next :])
    changed = blob_of(data, family, list(blob.info.hook_entry), list(blob.info.underflow), blob.info.num_entries)
    assert contents(changed) == contents(blob)
    assert changed.chains["E"].next == end + len(entry)


# What is left


def numbered(spec: Spec) -> Spec:
    """The same with counters by which each rule is known."""
    number = itertools.count(10)
    chains = ({n: tuple(attrs.evolve(r, count=next(number)) for r in rules) for n, rules in part.items()}
              for part in (spec.builtin, spec.user))  # fmt: skip
    return Spec(*chains)


def reduced(spec: Spec, delete: Iterable[str], flush: Iterable[str], rules: Iterable[tuple[str, int]]) -> Spec:
    def left(name: str, own: tuple[R, ...]) -> tuple[R, ...]:
        return () if name in flush else tuple(rule for i, rule in enumerate(own) if (name, i) not in rules)

    return Spec(
        {name: left(name, own) for name, own in spec.builtin.items()},
        {name: left(name, own) for name, own in spec.user.items() if name not in delete},
    )


def counts(blob: Blob) -> list[int]:
    return [blob.counters(offset)[0] for offset in blob.offsets(0, len(blob.entries))]


def check_cut(spec: Spec, family: Family, delete: list[str], flush: list[str], rules: list[tuple[str, int]]) -> None:
    """What is left is what would have been built without what is removed, byte by byte."""
    spec = numbered(spec)
    blob, rest = spec.blob(family), reduced(spec, delete, flush, rules)
    before = bytes(blob.entries)
    cut = blob.without(delete, flush, rules)
    assert bytes(blob.entries) == before
    still_used = {rule.to for own in (*rest.builtin.values(), *rest.user.values()) for rule in own}
    assert cut.dangling == still_used & set(delete)
    if cut.dangling:
        return
    wanted = rest.blob(family)
    assert bytes(cut.entries) == bytes(wanted.blanked())
    for field in ("hook_entry", "underflow"):
        mine, theirs = getattr(blob.info, field), getattr(wanted.info, field)
        assert [cut.moved(at) for at in mine if at != NONE] == [at for at in theirs if at != NONE]
        given = getattr(cut.info, field)
        assert [g for g, at in zip(given, theirs, strict=True) if at != NONE] == [at for at in theirs if at != NONE]
    assert (cut.info.size, cut.info.num_entries) == (wanted.info.size, wanted.info.num_entries)
    assert (cut.info.name, cut.info.valid_hooks) == (wanted.info.name, wanted.info.valid_hooks)
    assert sum(count for _number, count in cut.kept) == wanted.info.num_entries
    old = counts(blob)
    assert [old[i] for start, count in cut.kept for i in range(start, start + count)] == counts(wanted)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    names = draw(st.lists(st.sampled_from("ABCDEFGH"), unique=True))
    hooks = [hook for hook in HOOKS if draw(st.booleans())] or ["OUTPUT"]
    rules = st.lists(
        st.builds(R, st.sampled_from(["", "", *VERDICTS, "mark", *names, *names]), st.integers(0, 2)), max_size=4
    ).map(tuple)
    return Spec({hook: draw(rules) for hook in hooks}, {name: draw(rules) for name in names})


def some(draw: st.DrawFn, items: Iterable[Any]) -> list[Any]:
    known = list(items)
    return draw(st.lists(st.sampled_from(known), unique=True)) if known else []


@given(st.data(), specs(), st.sampled_from(Family))
def test_what_is_left(data: st.DataObject, spec: Spec, family: Family) -> None:
    delete, flush = some(data.draw, spec.user), some(data.draw, (*spec.user, *spec.builtin))
    chains = {name: own for name, own in {**spec.builtin, **spec.user}.items() if name not in {*delete, *flush}}
    rules = some(data.draw, [(name, i) for name, own in chains.items() for i in range(len(own))])
    if data.draw(st.booleans()):  # no jump to what goes
        rules += [(n, i) for n, own in chains.items() for i, rule in enumerate(own) if rule.to in delete]
    check_cut(spec, family, delete, flush, list(dict.fromkeys(rules)))


@pytest.mark.parametrize(
    ("delete", "flush", "rules"),
    [
        ([], [], []),
        (["A", "ERROR", "B", "E"], [], [("INPUT", 0)]),
        (["E"], ["E", "INPUT", "B"], [("A", 0)]),
        ([], ["INPUT", "OUTPUT", "A", "ERROR", "B", "E"], []),
        (["E", "E"], ["B", "B"], [("A", 1), ("A", 1)]),  # named twice
        (["B"], ["A"], [("INPUT", 0), ("A", 0), ("A", 1), ("B", 1)]),  # rules of what is emptied or goes
        (["A"], [], [("ERROR", 1), ("A", 0)]),
    ],
)
def test_what_is_left_of_the_example(family: Family, delete: list[str], flush: list[str], rules: list[Any]) -> None:
    check_cut(SPEC, family, delete, flush, rules)


def test_dangling(family: Family) -> None:
    blob = SPEC.blob(family)
    assert blob.without(["A", "ERROR"], [], []).dangling == {"ERROR"}  # the jump to A goes with its chain
    assert blob.without(["A", "B"], [], []).dangling == {"A", "B"}
    assert blob.without(["A"], ["ERROR"], []).dangling == set()


def test_moved_is_where_the_next_one_that_stays_is(family: Family) -> None:
    blob = SPEC.blob(family)
    chain = blob.chains["A"]
    cut = Cut(blob, [(chain.head, chain.next)], {chain.begin: "A"})
    assert [cut.moved(at) for at in (0, chain.head, chain.begin, chain.end, chain.next, chain.next + 8)] == [
        0, *[chain.head] * 4, chain.head + 8,
    ]  # fmt: skip


def test_equals_is_blind_for_what_changes_by_itself(family: Family) -> None:
    """The counters, and before them from which hooks the kernel found a way to the entry."""
    spec, blob = numbered(SPEC), SPEC.blob(family)
    assert blob.equals(spec.blob(family))
    for place in range(len(blob.entries)):
        other = SPEC.blob(family)
        other.entries[place] ^= 1
        in_sizes = any(0 <= place - at - blob.size_at < 4 for at in blob.offsets(0, len(blob.entries)))
        by_itself = any(blob.size_at + 4 <= place - at < blob.head for at in blob.offsets(0, len(blob.entries)))
        if not in_sizes:
            assert blob.equals(other) == by_itself
    for field in ("underflow", "hook_entry"):
        other = SPEC.blob(family)
        getattr(other.info, field)[1] += 8
        assert not blob.equals(other)


def test_joined() -> None:
    joined = _legacy_blob._joined
    assert joined([]) == []
    assert joined([(0, 4), (4, 8), (9, 12), (12, 13), (20, 21)]) == [(0, 8), (9, 13), (20, 21)]
    assert joined([(0, 8), (4, 8), (8, 12), (8, 9)]) == [(0, 12)]


# What the kernel would never say


def shortened(blob: Blob) -> None:
    del blob.entries[len(blob.entries) // 2 :]


def emptied(blob: Blob) -> None:
    blob.entries.clear()


def without_length(name: str) -> Callable[[Blob], None]:
    def change(blob: Blob) -> None:
        struct.pack_into("=H", blob.entries, SPEC.blob(blob.key.family).chains[name].begin + blob.size_at + 2, 0)

    return change


def without_return(blob: Blob) -> None:
    chain = SPEC.blob(blob.key.family).chains["E"]
    del blob.entries[chain.begin : chain.next]


def far_target(blob: Blob) -> None:
    struct.pack_into("=H", blob.entries, blob.size_at, 0xFFF8)


def far_hook(blob: Blob) -> None:
    blob.info.underflow[1] = len(blob.entries) - 4


class OwnsB(Interest):
    def sort(self, _table: str, chains: Collection[str]) -> tuple[Collection[str], Collection[str]]:
        return {"B"} & set(chains), ()


class Nowhere:
    """The namespace of a table that is not in a kernel; nothing made of nonsense may come as far as that."""

    def run(self, function: Any, *args: Any) -> Any:
        pytest.fail("written")


def use_all(blob: Blob) -> None:
    """All that a cleanup does with a table: looking for jumps, reading whole, cutting, comparing."""
    for interest in (OwnsB(), Interest()):
        table = LegacyTable.__new__(LegacyTable)
        table.key, table._blob, table._interest, table._namespace = blob.key, blob, interest, Nowhere()
        table.table({})
    blob.equals(numbered(SPEC).blob(blob.key.family))
    table.commit(TableChange(blob.key, (Rule("INPUT", index=0),), blob.user_chains))


@pytest.mark.timeout(5)  # an entry without a length would be read for ever
@pytest.mark.parametrize(
    "change",
    [shortened, emptied, without_length("INPUT"), without_length("A"), without_return, far_target, far_hook],
    ids=["shortened", "emptied", "no length in INPUT", "no length in A", "no return", "far target", "far hook"],
)
def test_malformed(family: Family, change: Callable[[Blob], None]) -> None:
    blob = SPEC.blob(family)
    change(blob)
    with pytest.raises(KernelError) as raised:
        use_all(blob)
    assert raised.value.errno == errno.EPROTO


def test_a_table_that_changes_between_the_two_questions(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of the same size is no sign that it is the same: where its chains are was asked before."""
    before, after = Spec({"INPUT": (R("DROP"),), "OUTPUT": ()}), Spec({"INPUT": (), "OUTPUT": (R("DROP"),)})
    infos = itertools.chain([before.blob(family).info], itertools.repeat(after.blob(family).info))

    class Fake:
        def __init__(self, _key: object) -> None: ...
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_error: object) -> None: ...
        def get(self, option: int, buffer: Any) -> None:
            if option == _legacy_blob._GET_INFO:
                ctypes.memmove(ctypes.byref(buffer), bytes(next(infos)), ctypes.sizeof(buffer))
            else:
                buffer[40:] = bytes(after.blob(family).entries)

    monkeypatch.setattr(_legacy_blob, "_Socket", Fake)
    read = Blob(key(family=family, backend=LEGACY))
    assert contents(read) == contents(after.blob(family))
