"""What is made of the bytes in which nf_tables tells of chains and rules, whatever their attributes' order."""

from __future__ import annotations

import errno
import itertools
import struct
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest
from builders import V4, V6, H, key
from wires import Wire, parse

from firewall_cleanup.errors import BatchRefused, KernelError
from firewall_cleanup.handlers import _netlink, _nft
from firewall_cleanup.handlers._netlink import acknowledged, attribute, message, named_messages
from firewall_cleanup.handlers._nft import NftConnection, NftDump
from firewall_cleanup.host import Interest
from firewall_cleanup.model import Change, Family, NativeTable, Policy, Rule, TableChange

GET_TABLE, GET_CHAIN, GET_RULE, GET_GEN = 0x0A01, 0x0A04, 0x0A07, 0x0A10
HEAD = {V4: b"\x02\0\0\0", V6: b"\x0a\0\0\0"}


class FakeKernel(Wire):
    """Answers requests from a list of chains, and of rules by the names of their chains."""

    def __init__(self, chains: Iterable[bytes] = (), rules: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(self._answer)
        self.chains, self.rules = list(chains), list(rules)
        self.tables = [HEAD[family] + attribute(1, b"filter\0") for family in Family]
        self.family = V4
        self.asked: list[tuple[int, bytes]] = []

    def answers(self, kind: int, payload: bytes) -> list[bytes]:
        mine = payload[0] in {0, self.family.number}
        parts = dict(_netlink.attributes(payload, 4))
        if kind == GET_TABLE:
            return self.tables
        if kind == GET_CHAIN:
            return [HEAD[self.family] + chain for chain in self.chains if mine]
        if kind == GET_RULE:
            return [HEAD[self.family] + rule for name, rule in self.rules if mine and parts.get(2, name) == name]
        return []

    def _answer(self, data: bytes) -> Iterable[bytes]:
        (kind, _flags, sequence, payload) = parse(data)[0]
        self.asked.append((kind, payload))
        if kind == GET_GEN:
            yield message(0x0A0F, 0, sequence, bytes(4) + attribute(1, b"\0\0\0\5"))
            yield message(2, 0, sequence, bytes(20))
            return
        for answer in self.answers(kind, payload):
            yield message(kind, 2, sequence, answer)
        yield message(3, 2, sequence, bytes(4))


@pytest.fixture
def dump(monkeypatch: pytest.MonkeyPatch) -> Callable[..., NftDump]:
    def read(kernel: FakeKernel, interest: Interest | None = None, families: Iterable[Family] = (V4,)) -> NftDump:
        monkeypatch.setattr(_netlink.socket, "socket", lambda *_args: kernel)
        return NftConnection().dump(families, interest or Interest())

    return read


# Chains

TABLE, NAME, HANDLE = attribute(1, b"filter\0"), attribute(3, b"KUBE-ROUTER-INPUT\0"), attribute(2, bytes(7) + b"\7")
FLAGS, USERDATA, ID = attribute(10, b"\0\0\0\4"), attribute(12, b"\1\3ab\0"), attribute(11, b"\0\0\0\1")
PAD = attribute(9, b"")


def use(count: int) -> bytes:
    return attribute(6, count.to_bytes(4, "big"))


ORDERS = {
    "as Linux 6": TABLE + NAME + HANDLE + use(0x01020304),
    "as older ones": TABLE + HANDLE + NAME + use(0x01020304),
    "without a handle": TABLE + NAME + use(0x01020304),
    "flags before the use": TABLE + NAME + HANDLE + FLAGS + use(0x01020304),
    "flags before the name": TABLE + FLAGS + NAME + HANDLE + use(0x01020304),
    "user data last": TABLE + NAME + HANDLE + use(0x01020304) + USERDATA,
    "user data before the use": TABLE + NAME + HANDLE + USERDATA + use(0x01020304),
    "all": TABLE + HANDLE + NAME + FLAGS + PAD + ID + USERDATA + use(0x01020304),
    "the use first": use(0x01020304) + NAME + TABLE + HANDLE,
}


def chains_of(connection_dump: NftDump, family: Family = V4) -> tuple[list[str], dict[str, int]]:
    raw = connection_dump.raw[key(family=family)]
    return raw.chains, raw.uses


@pytest.mark.parametrize("payload", ORDERS.values(), ids=ORDERS)
def test_a_user_chain(dump: Callable[..., NftDump], payload: bytes) -> None:
    chains, uses = chains_of(dump(FakeKernel([payload])))
    assert (chains, uses) == (["KUBE-ROUTER-INPUT"], {"KUBE-ROUTER-INPUT": 0x01020304})


@pytest.mark.parametrize("order", range(2))
@pytest.mark.parametrize("count", [0, 1, 0x0A, 0x0600, 0x06000800, 0x00080006, 0xFFFFFFFF])
@pytest.mark.parametrize("handle", [1, 0x0A, 0x0800030000000000, 0x0000060008000600, 0xFFFFFFFFFFFFFFFF])
def test_numbers_that_look_like_attributes(dump: Callable[..., NftDump], order: int, count: int, handle: int) -> None:
    """Also line feeds, which a dot does not take."""
    number, name = attribute(2, handle.to_bytes(8, "big")), attribute(3, b"a\0")
    middle = name + number if order else number + name
    assert chains_of(dump(FakeKernel([TABLE + middle + use(count)]))) == (["a"], {"a": count})


@pytest.mark.parametrize("length", [1, 2, 3, 4, 28, 31, 127, 200])
def test_names_of_every_length(dump: Callable[..., NftDump], length: int) -> None:
    name = "K" * length
    for middle in ((1, 0), (0, 1)):
        parts = [attribute(3, name.encode() + b"\0"), HANDLE]
        assert chains_of(dump(FakeKernel([TABLE + parts[middle[0]] + parts[middle[1]] + use(9)])))[1] == {name: 9}


def test_names_that_are_no_text(dump: Callable[..., NftDump]) -> None:
    names = [b"\xff\xfe", "ÄÖ☃".encode(), b"a\nb", b"\x03\x01\x06", b"x" * 10]
    payloads = [TABLE + attribute(3, name + b"\0") + HANDLE + use(1) for name in names]
    rules = [(name + b"\0", rule(name)) for name in names]
    read = dump(FakeKernel(payloads, rules))
    assert chains_of(read)[0] == ["\udcff\udcfe", "ÄÖ☃", "a\nb", "\x03\x01\x06", "x" * 10]
    assert all(len(own) == 1 for own in read.tables({})[key()].rules.values())


HOOK = attribute(0x8004, attribute(1, b"\0\0\0\1") + attribute(2, b"\0\0\0\0"))
POLICY, TYPE = attribute(5, bytes(4)), attribute(7, b"filter\0")
COUNTERS = attribute(0x8008, attribute(1, (1 << 40).to_bytes(8, "big")) + attribute(2, (77).to_bytes(8, "big")))


@pytest.mark.parametrize(
    "payload",
    [
        TABLE + attribute(3, b"INPUT\0") + HANDLE + HOOK + POLICY + TYPE + COUNTERS + FLAGS + use(3),
        TABLE + HANDLE + attribute(3, b"INPUT\0") + HOOK + POLICY + TYPE + COUNTERS + use(3) + USERDATA,
        TABLE + HANDLE + attribute(3, b"INPUT\0") + attribute(4, HOOK[4:]) + POLICY + TYPE + COUNTERS + use(3),
    ],
)
def test_a_base_chain(dump: Callable[..., NftDump], payload: bytes) -> None:
    read = dump(FakeKernel([payload, ORDERS["as Linux 6"]]))
    assert read.raw[key()].builtin == {"INPUT": Policy("DROP", 77, 1 << 40)}
    assert read.raw[key()].uses["INPUT"] == 3
    assert read.raw[key()].chains == ["KUBE-ROUTER-INPUT"]


def test_chains_of_other_tables(dump: Callable[..., NftDump]) -> None:
    """Neither a table that is not of iptables counts, nor one whose name only begins or ends like one that is."""
    names = [b"nat", b"filter", b"filter2", b"xfilter", b"KUBE-ROUTER-INPUT", b"mangle"]
    payloads = [attribute(1, name + b"\0") + NAME + HANDLE + use(0) for name in names]
    read = dump(FakeKernel(payloads))
    assert set(read.raw) == {key("nat"), key(), key("mangle")}
    assert read.native_tables == ()


def test_each_family_has_its_own(dump: Callable[..., NftDump]) -> None:
    kernel = FakeKernel([ORDERS["as Linux 6"]])
    kernel.family = V6
    kernel.tables.append(b"\1\0\0\0" + attribute(1, b"filter\0"))
    read = dump(kernel, families=tuple(Family))
    assert set(read.raw) == {key(family=V6)}
    assert read.native_tables == (NativeTable("inet", "filter"),)


# Rules


def verdict(code: int, chain: bytes = b"") -> bytes:
    """An immediate expression that ends a rule."""
    inside = attribute(1, struct.pack(">i", code)) + (attribute(2, chain + b"\0") if chain else b"")
    data = attribute(1, b"\0\0\0\0") + attribute(0x8002, attribute(0x8002, inside))
    return attribute(0x8001, attribute(1, b"immediate\0") + attribute(0x8002, data))


def rule(chain: bytes, *expressions: bytes, handle: int = 5) -> bytes:
    return (
        TABLE + attribute(2, chain + b"\0") + attribute(3, handle.to_bytes(8, "big"))
        + attribute(0x8004, b"".join(expressions))
    )  # fmt: skip


def extension(kind: str, name: bytes) -> bytes:
    data = attribute(1, name + b"\0") + attribute(2, b"\0\0\0\1") + attribute(3, bytes(32))
    return attribute(0x8001, attribute(1, kind.encode() + b"\0") + attribute(0x8002, data))


JUMP, GOTO, RETURN, ACCEPT = -3, -4, -5, 1


@pytest.mark.parametrize(
    ("expressions", "found"),
    [
        ([verdict(JUMP, b"KUBE-A")], [b"KUBE-A"]),
        ([verdict(GOTO, b"KUBE-A")], [b"KUBE-A"]),
        ([verdict(JUMP, b"a" * 28), verdict(GOTO, b"\xff\n")], [b"a" * 28, b"\xff\n"]),
        ([verdict(ACCEPT)], []),
        ([verdict(RETURN)], []),
        ([verdict(JUMP, b"\n"), verdict(0)], [b"\n"]),
        ([extension("match", b"KUBE-A")], []),
        ([], []),
    ],
)
def test_jumps_in_a_rule(expressions: list[bytes], found: list[bytes]) -> None:
    assert _nft._JUMP.findall(HEAD[V4] + rule(b"X", *expressions)) == found
    assert _nft._JUMP.findall(HEAD[V4] + rule(b"K" * 27, *expressions)) == found


class Owns(Interest):
    """Owns a chain by name, and lets sets matter, or none."""

    def __init__(self, *chains: str, sets: bool = True) -> None:
        self.chains, self.sets = chains, sets

    def sort(self, _table: str, chains: Collection[str]) -> tuple[Collection[str], Collection[str]]:
        owned = {name for name in chains if name in self.chains}
        return owned, owned

    def matters(self, _set: str) -> bool:
        return self.sets

    def any_set_matters(self) -> bool:
        return self.sets


def user_chain(name: bytes, count: int) -> bytes:
    return TABLE + attribute(3, name + b"\0") + HANDLE + use(count)


FOREIGN: dict[bytes, list[list[bytes]]] = {
    b"jumps": [[], [verdict(JUMP, b"OWN")], [verdict(ACCEPT)]],
    b"goes": [[verdict(GOTO, b"OWN")]],
    b"to longer": [[verdict(JUMP, b"OWN2")]],
    b"to shorter": [[verdict(JUMP, b"OW")], [verdict(JUMP, b"xOWN")]],
    b"matches a set": [[verdict(ACCEPT)], [extension("match", b"set")]],
    b"adds to a set": [[extension("target", b"SET")], []],
    b"others": [[extension("match", b"reset")], [extension("target", b"RESET"), extension("match", b"sets")]],
    b"OWN3": [[], []],
}


def test_what_is_kept_of_foreign_chains(dump: Callable[..., NftDump]) -> None:
    base = TABLE + attribute(3, b"INPUT\0") + HANDLE + HOOK + POLICY + TYPE + COUNTERS + use(2)
    chains = [base, user_chain(b"OWN", 5), *(user_chain(name, len(own)) for name, own in FOREIGN.items())]
    rules = [(b"INPUT\0", rule(b"INPUT", handle=i)) for i in range(2)] + [(b"OWN\0", rule(b"OWN"))]
    number = itertools.count(10)
    rules += [(n + b"\0", rule(n, *parts, handle=next(number))) for n, own in FOREIGN.items() for parts in own]
    kernel = FakeKernel(chains, rules)
    raw = dump(kernel, Owns("OWN")).raw[key()]
    assert {name: len(own) for name, own in raw.rules.items()} == {"INPUT": 2, "jumps": 3, "goes": 1}
    assert {name: len(own) for name, own in raw.maybe.items()} == {"matches a set": 2, "adds to a set": 2}
    assert not any(attribute(2, b"OWN\0") in payload for kind, payload in kernel.asked if kind == GET_RULE)
    kernel.asked.clear()
    raw = dump(kernel, Owns(sets=False)).raw[key()]
    assert (set(raw.rules), raw.maybe) == ({"INPUT"}, {})
    assert not any(b"jumps" in payload for _kind, payload in kernel.asked)


# Batches


@pytest.mark.parametrize(
    "names", [[], [b"a\0"], [b"ab\0", b"abc\0", b"\xff" * 4 + b"\0"], [bytes(range(1, 256)) + b"\0"]]
)
@pytest.mark.parametrize("head", [b"", HEAD[V6], HEAD[V4] + TABLE])
def test_named_messages(names: list[bytes], head: bytes) -> None:
    """The same bytes as one by one, and for a handle, which is no text."""
    for number, given in ((3, names), (3, [bytes(7) + b"\7"] * len(names))):
        wanted = [message(0x0A05, 1, 7 + i, head + attribute(number, name)) for i, name in enumerate(given)]
        assert named_messages(0x0A05, 7, head, number, given) == wanted
        for i, name in enumerate(given):
            assert acknowledged(wanted[i]) == message(0x0A05, 5, 7 + i, head + attribute(number, name))


TABLES = (
    TableChange(
        key(), (Rule("INPUT", handle=1), Rule("FORWARD", handle=2)), ("A", "X\udcff", "B" + H), ("B" + H, "A")
    ),
    TableChange(key("nat", V6), (Rule("OUTPUT", handle=3),), ("A",), ("A",)),
)  # fmt: skip
CHANGE = Change(TABLES, (NativeTable("ip", "k4"), NativeTable("ip6", "k6")))
PLACES = [
    (key(), "rule", 1), (key(), "rule", 2), (key(), "flush", "A"), (key(), "flush", "X\udcff"),
    (key(), "flush", "B" + H), (key("nat", V6), "rule", 3), (key("nat", V6), "flush", "A"), (key(), "chain", "B" + H),
    (key(), "chain", "A"), (key("nat", V6), "chain", "A"), (NativeTable("ip", "k4"), "table", "k4"),
    (NativeTable("ip6", "k6"), "table", "k6"),
]  # fmt: skip


class Refuses(FakeKernel):
    """Refuses some messages of a batch, by place from 1; acknowledges what asks for it."""

    def __init__(self, *places: int) -> None:
        super().__init__()
        self.places, self.sent = places, list[Any]()

    def send(self, data: bytes) -> None:
        self.sent = parse(data)
        for place, (_kind, flags, sequence, _payload) in enumerate(self.sent):
            code = errno.EBUSY if place in self.places else 0
            if code or flags & 4:
                self.queue.append(message(2, 0, sequence, struct.pack("=i", -code) + bytes(16)))


def commit(monkeypatch: pytest.MonkeyPatch, kernel: FakeKernel, change: Change) -> None:
    monkeypatch.setattr(_netlink.socket, "socket", lambda *_args: kernel)
    NftConnection().commit(change, 5)


@pytest.mark.parametrize("refused", [*((i,) for i in range(len(PLACES))), (0, 4, 11), tuple(range(12))])
def test_a_refusal_names_what_was_refused(monkeypatch: pytest.MonkeyPatch, refused: tuple[int, ...]) -> None:
    kernel = Refuses(*(place + 1 for place in refused))
    with pytest.raises(BatchRefused) as raised:
        commit(monkeypatch, kernel, CHANGE)
    assert raised.value.failures == {PLACES[place]: errno.EBUSY for place in refused}
    sequences = [sequence for _kind, _flags, sequence, _payload in kernel.sent]
    assert sequences == list(range(sequences[0], sequences[0] + len(PLACES) + 2))
    # What a message says is what its place is called.
    for (_table, _kind, name), (_number, _flags, _sequence, payload) in zip(PLACES, kernel.sent[1:-1], strict=True):
        word = name.to_bytes(8, "big") if isinstance(name, int) else str(name).encode("utf-8", "surrogateescape")
        assert word in payload


@pytest.mark.parametrize("change", [CHANGE, Change(), Change(TABLES[1:]), Change((), CHANGE.native_tables)])
def test_one_answer_is_asked_for(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """By the last message before the end; a batch of nothing asks by its beginning."""
    kernel = Refuses()
    commit(monkeypatch, kernel, change)
    assert [place for place, sent in enumerate(kernel.sent) if sent[1] & 4] == [len(kernel.sent) - 2]


def test_silence_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Refuses()
    monkeypatch.setattr(_nft, "acknowledged", lambda request: request)
    with pytest.raises(KernelError) as raised:
        commit(monkeypatch, kernel, CHANGE)
    assert raised.value.errno == errno.EPROTO
