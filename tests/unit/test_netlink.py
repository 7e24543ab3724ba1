"""Netlink messages and attributes as bytes, and the loop over a socket that answers as we like."""

from __future__ import annotations

import errno
import socket
import struct

import pytest
from builders import V4, key
from wires import Wire, parse

from firewall_cleanup.errors import BatchRefused, KernelError, StaleGeneration
from firewall_cleanup.handlers import _netlink
from firewall_cleanup.handlers._ipset import ENTRY_BUSY, IpsetConnection
from firewall_cleanup.handlers._netlink import NetlinkSocket, attribute, attributes, message
from firewall_cleanup.handlers._nft import NftConnection
from firewall_cleanup.model import Change, IpSet, NativeTable, Rule, TableChange
from firewall_cleanup.testing import memory

LITTLE = struct.pack("=H", 1) == b"\1\0"
pytestmark = pytest.mark.skipif(not LITTLE, reason="the bytes below are those of a little-endian machine")


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        (1, b"", b"\x04\0\x01\0"),
        (1, b"a\0", b"\x06\0\x01\0a\0\0\0"),
        (2, b"abcd", b"\x08\0\x02\0abcd"),
        (0x8003, b"abcde", b"\x09\0\x03\x80abcde\0\0\0"),
    ],
)
def test_attribute(kind: int, data: bytes, expected: bytes) -> None:
    """Length without the padding, type, payload, padded to four."""
    assert attribute(kind, data) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\x04\0\x01\0", [(1, b"")]),
        (b"\x05\0\x01\0a\0\0\0\x08\0\x02\0abcd", [(1, b"a"), (2, b"abcd")]),
        (b"\x05\0\x01\0a", [(1, b"a")]),  # the last one may lack its padding
        (b"\x08\0\x03\x80abcd", [(3, b"abcd")]),  # NLA_F_NESTED
        (b"\x08\0\x03\x40abcd", [(3, b"abcd")]),  # NLA_F_NET_BYTEORDER
        (b"\x08\0\x03\xc0abcd\x04", [(3, b"abcd")]),
        (b"\x09\0\x01\0abcd", []),  # cut short
        (b"\x03\0\x01\0abcd", []),  # a length that would not move on
        (b"\x00\0\x01\0", []),
    ],
)
def test_attributes(data: bytes, expected: list[tuple[int, bytes]]) -> None:
    assert list(attributes(data)) == expected
    assert list(attributes(b"head" + data, 4)) == expected


def test_attributes_round_trip() -> None:
    pairs = [(1, b""), (2, b"x"), (3, attribute(1, b"inner\0")), (0x3FFF, bytes(range(256)))]
    assert list(attributes(b"".join(attribute(*pair) for pair in pairs))) == pairs


def test_message() -> None:
    """nlmsghdr: length, type, flags, sequence, port; then the payload, padded behind the length."""
    assert message(0x0A08, 5, 7, b"\x02\0\0\0x") == (
        b"\x15\0\0\0\x08\x0a\x05\0\x07\0\0\0\0\0\0\0\x02\0\0\0x\0\0\0"
    )  # fmt: skip


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    def make(answer):  # type: ignore[no-untyped-def]
        made = Wire(answer)
        monkeypatch.setattr(_netlink.socket, "socket", lambda *_args: made)
        return made

    return make


def ack(sequence: int, code: int = 0) -> bytes:
    return message(2, 0, sequence, struct.pack("=i", -code) + bytes(16))


def done(sequence: int, flags: int = 2) -> bytes:
    return message(3, flags, sequence, struct.pack("=i", 0))


def test_request(wire) -> None:  # type: ignore[no-untyped-def]
    """Replies to requests that were given up are skipped; the answer may come with or before the acknowledgement."""
    made = wire(lambda data: [message(9, 0, 99, b"old"), message(9, 0, parse(data)[0][2], b"new1") + ack(1)])
    with NetlinkSocket() as netlink:
        assert netlink.request(0x0A10, b"\0\0\0\0") == b"new1"
    ((kind, flags, sequence, payload),) = parse(made.sent[0])
    assert (kind, flags, sequence, payload) == (0x0A10, 0x5, 1, b"\0\0\0\0")


def test_request_error(wire) -> None:  # type: ignore[no-untyped-def]
    wire(lambda _data: [ack(1, errno.EPERM)])
    with NetlinkSocket() as netlink, pytest.raises(KernelError) as raised:
        netlink.request(0x0A10, b"")
    assert raised.value.errno == errno.EPERM


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ([message(9, 2, 1, b"aaaa") + message(9, 2, 1, b"bbbb"), done(1)], ([b"aaaa", b"bbbb"], False)),
        ([done(1)], ([], False)),
        ([message(9, 2 | 0x10, 1, b"aaaa"), done(1)], ([b"aaaa"], True)),  # NLM_F_DUMP_INTR on a part
        ([message(9, 2, 1, b"aaaa"), done(1, 2 | 0x10)], ([b"aaaa"], True)),  # or at the end alone
        ([message(9, 2, 7, b"other"), done(7), message(9, 2, 1, b"aaaa"), done(1)], ([b"aaaa"], False)),
        ([message(9, 2, 1, b"aaaa"), message(3, 2, 1, struct.pack("=i", -errno.EINTR))], ([b"aaaa"], True)),
    ],
)
def test_dump(wire, replies: list[bytes], expected: tuple[list[bytes], bool]) -> None:  # type: ignore[no-untyped-def]
    """A dump that a writer crossed is said to be torn, wherever the kernel says so."""
    made = wire(lambda _data: replies)
    with NetlinkSocket() as netlink:
        assert netlink.dump(0x0A01, b"\0\0\0\0") == expected
    assert parse(made.sent[0])[0][:2] == (0x0A01, 0x301)


def test_dump_error_and_silence(wire) -> None:  # type: ignore[no-untyped-def]
    wire(lambda _data: [message(3, 2, 1, struct.pack("=i", -errno.EPERM))])
    with NetlinkSocket() as netlink, pytest.raises(KernelError) as refused:
        netlink.dump(0x0A01, b"")
    assert refused.value.errno == errno.EPERM
    wire(lambda _data: [])
    with NetlinkSocket() as netlink, pytest.raises(KernelError) as silent:
        netlink.dump(0x0A01, b"")
    assert silent.value.errno == errno.ETIMEDOUT


def test_receive_stops_at_a_broken_header(wire) -> None:  # type: ignore[no-untyped-def]
    wire(lambda _data: [message(9, 0, 1, b"good") + bytes(16)])
    with NetlinkSocket() as netlink:
        netlink.send(b"x")
        assert [reply.payload for reply in netlink.receive()] == [b"good"]


def test_a_batch_that_is_too_large_says_what_to_do(wire) -> None:  # type: ignore[no-untyped-def]
    def too_large(_data: bytes) -> list[bytes]:
        raise OSError(errno.EMSGSIZE, "too large")

    wire(too_large)
    with NetlinkSocket() as netlink, pytest.raises(KernelError, match=r"net\.core\.wmem_max") as raised:
        netlink.send(bytes(1000))
    assert raised.value.errno == errno.EMSGSIZE


def test_buffers_grow_without_the_right_to_force(wire, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """In a user namespace forcing is refused; the ordinary option is tried then."""
    made = wire(lambda _data: [])

    def setsockopt(_level: int, option: int, value: object) -> None:
        made.options.append((option, value))
        if option in {32, 33}:
            raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(made, "setsockopt", setsockopt)
    with NetlinkSocket() as netlink:
        netlink.send(bytes(1 << 20))
        netlink.send(b"small")
    sizes = [value for option, value in made.options if option == socket.SO_SNDBUF]
    assert len(sizes) == 1
    assert sizes[0] > 1 << 20


# nf_tables batches


CHANGE = Change(
    (
        TableChange(key(), (Rule("INPUT", handle=0x0102),), ("KUBE-ROUTER-INPUT",), ("KUBE-ROUTER-INPUT",)),
        TableChange(key("nat"), flush=("KUBE-ROUTER-HAIRPIN",)),
    ),
    (NativeTable("ip6", "kube-router-filter-ipv6"),),
)


def batch(wire, *errors: tuple[int, int], acknowledge: bool = True):  # type: ignore[no-untyped-def]
    """A connection whose kernel answers a batch with errors by position, 0 for its begin."""

    def answer(data: bytes) -> list[bytes]:
        sent = parse(data)
        replies = [ack(sent[position][2], code) for position, code in errors]
        if acknowledge:
            replies += [ack(sequence) for _kind, flags, sequence, _payload in sent if flags & 4]
        return replies

    return wire(answer), NftConnection()


def test_batch_bytes(wire) -> None:  # type: ignore[no-untyped-def]
    """Begin with the generation; rules and flushes of all tables, then chains, then tables; end; one datagram."""
    made, connection = batch(wire)
    connection.commit(CHANGE, 0x01020304)
    (data,) = made.sent
    sent = parse(data)
    name, chain = attribute(1, b"filter\0"), b"KUBE-ROUTER-INPUT\0"
    assert [(kind, payload) for kind, _flags, _sequence, payload in sent] == [
        (0x10, b"\0\0\0\x0a" + b"\x08\0\x01\0\x01\x02\x03\x04"),
        (0x0A08, b"\x02\0\0\0" + name + attribute(2, b"INPUT\0") + attribute(3, b"\0\0\0\0\0\0\x01\x02")),
        (0x0A08, b"\x02\0\0\0" + name + attribute(2, chain)),
        (0x0A08, b"\x02\0\0\0" + attribute(1, b"nat\0") + attribute(2, b"KUBE-ROUTER-HAIRPIN\0")),
        (0x0A05, b"\x02\0\0\0" + name + attribute(3, chain)),
        (0x0A02, b"\x0a\0\0\0" + attribute(1, b"kube-router-filter-ipv6\0")),
        (0x11, b"\0\0\0\x0a"),
    ]
    sequences = [sequence for _kind, _flags, sequence, _payload in sent]
    assert sequences == list(range(sequences[0], sequences[0] + len(sent)))
    assert all(flags & 1 for _kind, flags, _sequence, _payload in sent)


def test_batch_stale(wire) -> None:  # type: ignore[no-untyped-def]
    """ERESTART on the begin message: the generation moved."""
    _made, connection = batch(wire, (0, errno.ERESTART), acknowledge=False)
    with pytest.raises(StaleGeneration):
        connection.commit(CHANGE, 1)


def test_batch_denied(wire) -> None:  # type: ignore[no-untyped-def]
    _made, connection = batch(wire, (0, errno.EPERM), acknowledge=False)
    with pytest.raises(KernelError) as raised:
        connection.commit(CHANGE, 1)
    assert raised.value.errno == errno.EPERM


def test_batch_refused(wire) -> None:  # type: ignore[no-untyped-def]
    """Each error is told by what it is about, as the fake in memory names it."""
    _made, connection = batch(wire, (1, errno.ENOENT), (4, errno.EBUSY), (5, errno.ENOENT))
    with pytest.raises(BatchRefused) as raised:
        connection.commit(CHANGE, 1)
    assert raised.value.failures == {
        (key(), "rule", 0x0102): errno.ENOENT,
        (key(), "chain", "KUBE-ROUTER-INPUT"): errno.EBUSY,
        (CHANGE.native_tables[0], "table", "kube-router-filter-ipv6"): errno.ENOENT,
    }


def test_batch_without_an_answer_is_no_success(wire) -> None:  # type: ignore[no-untyped-def]
    _made, connection = batch(wire, acknowledge=False)
    with pytest.raises(KernelError):
        connection.commit(CHANGE, 1)


# ipset


def test_destroy_bytes(wire) -> None:  # type: ignore[no-untyped-def]
    """Refusals come unasked; one acknowledgement, of the last, tells that all were looked at."""

    def answer(data: bytes) -> list[bytes]:
        asked = zip(parse(data), (0, 4100, errno.ENOENT, 0), strict=True)
        return [ack(sequence, code) for (_kind, flags, sequence, _payload), code in asked if code or flags & 4]

    made = wire(answer)
    assert IpsetConnection().destroy(["a", "busy", "gone", "b"]) == {"busy": 4100, "gone": errno.ENOENT}
    (data,) = made.sent
    assert [(kind, flags, payload) for kind, flags, _sequence, payload in parse(data)] == [
        (0x0603, flags, b"\0\0\0\0" + b"\x05\0\x01\0\x06\0\0\0" + attribute(2, name))
        for name, flags in ((b"a\0", 1), (b"busy\0", 1), (b"gone\0", 1), (b"b\0", 5))
    ]


def test_destroy_whose_last_is_refused(wire) -> None:  # type: ignore[no-untyped-def]
    wire(lambda data: [ack(parse(data)[-1][2], errno.ENOENT)])
    assert IpsetConnection().destroy(["a", "gone"]) == {"gone": errno.ENOENT}


def test_lists_on_old_kernels(wire) -> None:  # type: ignore[no-untyped-def]
    """Before 4.18 the newer protocol is refused, and indexes are not told."""

    def answer(data: bytes) -> list[bytes]:
        (_kind, _flags, sequence, payload) = parse(data)[0]
        if b"\x05\0\x01\0\x07" in payload:
            return [ack(sequence, 4097)]
        return [message(0x0607, 2, sequence, header(b"x", b"hash:ip", 2, None, 3)) + done(sequence)]

    wire(answer)
    assert [(item.name, item.index) for item in IpsetConnection().sets()] == [("x", None)]


def test_destroy_of_all_is_refused(wire) -> None:  # type: ignore[no-untyped-def]
    """The kernel takes an empty name for every set there is."""
    made = wire(lambda _data: [])
    with pytest.raises(ValueError, match="without a name"):
        IpsetConnection().destroy(["a", ""])
    assert made.sent == []
    assert IpsetConnection().destroy([]) == {}


def header(name: bytes, kind: bytes, family: int, index: int | None, references: int) -> bytes:
    data = attribute(25, references.to_bytes(4, "big"))
    return (
        b"\x02\0\0\0"
        + attribute(1, b"\x06")
        + attribute(2, name + b"\0")
        + attribute(3, kind + b"\0")
        + attribute(5, bytes([family]))
        + (b"" if index is None else attribute(11, index.to_bytes(2, "big")))
        + attribute(0x8007, data)
    )


def test_list_of_sets(wire) -> None:  # type: ignore[no-untyped-def]
    """Headers alone are asked for; the family is the kernel's, whatever the name says."""

    def answer(data: bytes) -> list[bytes]:
        (_kind, _flags, sequence, _payload) = parse(data)[0]
        sets = header(b"inet6:x", b"hash:ip", 2, 5, 3), header(b"y", b"hash:net", 10, 6, 0)
        return [b"".join(message(0x0607, 2, sequence, each) for each in sets), done(sequence)]

    made = wire(answer)
    assert IpsetConnection().sets() == [
        IpSet("inet6:x", "hash:ip", V4, 3, index=5),
        IpSet("y", "hash:net", key().family.__class__.IPV6, 0, index=6),
    ]
    payload = parse(made.sent[0])[0][3]
    assert attribute(6, b"\0\0\0\x04") in payload


def test_the_fake_knows_the_same_code() -> None:
    assert memory.ENTRY_BUSY == ENTRY_BUSY == 4100
