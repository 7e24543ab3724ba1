"""NEWRULE messages as iptables-nft writes them, expression by expression, read into rules."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from builders import V4, V6

from firewall_cleanup import Family
from firewall_cleanup.handlers._netlink import attribute
from firewall_cleanup.handlers._nft_rules import decode_rule
from firewall_cleanup.model import Rule
from firewall_cleanup.rules import parse_rule

SETS = {3: "svip"}
REG32, REG128 = 8, 1  # NFT_REG32_00, NFT_REG_1: the same register under two names


def u32(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=number < 0)


def expression(name: str, **parts: bytes) -> bytes:
    data = b"".join(attribute(int(kind[1:]), value) for kind, value in parts.items())
    return attribute(0x8001, attribute(1, name.encode() + b"\0") + attribute(0x8002, data))


def value(data: bytes) -> bytes:
    return attribute(1, data)


def meta(key: int, register: int = REG128) -> bytes:
    return expression("meta", _2=u32(key), _1=u32(register))


def payload(base: int, offset: int, length: int, register: int = REG128) -> bytes:
    return expression("payload", _1=u32(register), _2=u32(base), _3=u32(offset), _4=u32(length))


def bitwise(mask: bytes, xor: bytes | None = None, register: int = REG128) -> bytes:
    mixed = xor or bytes(len(mask))
    return expression(
        "bitwise", _1=u32(register), _2=u32(register), _3=u32(len(mask)), _4=value(mask), _5=value(mixed)
    )


def cmp(data: bytes, operator: int = 0, register: int = REG128) -> bytes:
    return expression("cmp", _1=u32(register), _2=u32(operator), _3=value(data))


def verdict(code: int, chain: bytes = b"") -> bytes:
    parts = attribute(1, u32(code)) + (attribute(2, chain + b"\0") if chain else b"")
    return expression("immediate", _1=u32(0), _2=attribute(0x8002, parts))


def xt(kind: str, name: bytes, revision: int, data: bytes) -> bytes:
    return expression(kind, _1=name + b"\0", _2=u32(revision), _3=data)


COUNTER = expression("counter", _1=(420).to_bytes(8, "big"), _2=(7).to_bytes(8, "big"))
ACCEPT = verdict(1)


def decode(*expressions: bytes, family: Family = V4) -> Rule:
    head = bytes([family.number, 0, 0, 0]) + attribute(1, b"filter\0") + attribute(2, b"INPUT\0")
    message = head + attribute(3, (0x1234).to_bytes(8, "big")) + attribute(0x8004, b"".join(expressions))
    return decode_rule(message, "INPUT", 3, family, SETS)


def address(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


COMMENT = xt("match", b"comment", 0, b"a b".ljust(256, b"\0"))
SET = xt("match", b"set", 4, struct.pack("=HBB", 3, 1, 2) + bytes(44))
RULES = [
    (V4, [ACCEPT], "-j ACCEPT"),
    (V4, [COUNTER], ""),
    (V4, [verdict(0)], "-j DROP"),
    (V4, [verdict(-5)], "-j RETURN"),
    (V4, [verdict(-3, b"mine")], "-j mine"),
    (V4, [verdict(-4, b"mine")], "-g mine"),
    # Addresses: whole, by bytes of the prefix, with a mask, negated.
    (V4, [payload(1, 12, 4), cmp(address("192.0.2.1")), ACCEPT], "-s 192.0.2.1/32 -j ACCEPT"),
    (V4, [payload(1, 16, 3), cmp(address("192.0.2.0")[:3], 1), ACCEPT], "! -d 192.0.2.0/24 -j ACCEPT"),
    (
        V4,
        [payload(1, 12, 4), bitwise(b"\xff\xff\xff\xc0"), cmp(address("198.51.100.0")), ACCEPT],
        "-s 198.51.100.0/26 -j ACCEPT",
    ),
    (V6, [payload(1, 24, 16), cmp(address("2001:db8::1")), ACCEPT], "-d 2001:db8::1/128 -j ACCEPT"),
    (V6, [payload(1, 8, 8), cmp(address("2001:db8::")[:8]), ACCEPT], "-s 2001:db8::/64 -j ACCEPT"),
    # Interfaces: with the closing NUL a whole name, without it a prefix.
    (V4, [meta(6), cmp(b"kube-bridge\0"), ACCEPT], "-i kube-bridge -j ACCEPT"),
    (V4, [meta(7), cmp(b"eth0".ljust(16, b"\0")), ACCEPT], "-o eth0 -j ACCEPT"),
    (V4, [meta(7), cmp(b"eth", 1), ACCEPT], "! -o eth+ -j ACCEPT"),
    # The protocol: as 1.8.9 and as 1.8.11 load it.
    (V4, [meta(16), cmp(b"\x06"), ACCEPT], "-p tcp -j ACCEPT"),
    (V4, [payload(1, 9, 1), cmp(b"\x06"), ACCEPT], "-p tcp -j ACCEPT"),
    (V6, [meta(16), cmp(b"\x3a", 1), ACCEPT], "! -p ipv6-icmp -j ACCEPT"),
    # 1.8.11 puts addresses before interfaces; the rule is the same.
    (
        V4,
        [payload(1, 12, 4), cmp(address("192.0.2.1")), meta(6), cmp(b"a\0"), payload(1, 9, 1), cmp(b"\x11"), ACCEPT],
        "-s 192.0.2.1/32 -i a -p udp -j ACCEPT",
    ),
    (
        V4,
        [meta(6), cmp(b"a\0"), meta(16), cmp(b"\x11"), payload(1, 12, 4), cmp(address("192.0.2.1")), ACCEPT],
        "-s 192.0.2.1/32 -i a -p udp -j ACCEPT",
    ),
    # Ports and flags.
    (V4, [meta(16), cmp(b"\x06"), payload(2, 2, 2), cmp(b"\0\x50"), ACCEPT], "-p tcp -m tcp --dport 80 -j ACCEPT"),
    (V4, [meta(16), cmp(b"\x11"), payload(2, 0, 2), cmp(b"\0\x35", 1)], "-p udp -m udp ! --sport 53"),
    (
        V4,
        [meta(16), cmp(b"\x06"), payload(2, 2, 2), cmp(b"\x04\0", 5), cmp(b"\xff\xff", 3), ACCEPT],
        "-p tcp -m tcp --dport 1024:65535 -j ACCEPT",
    ),
    (
        V4,
        [
            meta(16),
            cmp(b"\x06"),
            payload(2, 2, 2),
            expression("range", _1=u32(REG128), _2=u32(1), _3=value(b"\0\x50"), _4=value(b"\0\x51")),
            ACCEPT,
        ],
        "-p tcp -m tcp ! --dport 80:81 -j ACCEPT",
    ),
    (
        V4,
        [
            meta(16),
            cmp(b"\x06"),
            payload(2, 0, 2),
            cmp(b"\0\x50"),
            payload(2, 13, 1),
            bitwise(b"\x06"),
            cmp(b"\x02"),
            xt("target", b"TCPMSS", 0, struct.pack("=H", 1440)),
        ],
        "-p tcp -m tcp --sport 80 --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1440",
    ),
    # Marks are in the machine's byte order.
    (V4, [meta(3), cmp(struct.pack("=I", 0x3EB3)), ACCEPT], "-m mark --mark 0x3eb3 -j ACCEPT"),
    (
        V4,
        [meta(3), bitwise(struct.pack("=I", 0x20000)), cmp(struct.pack("=I", 0x20000), 1), ACCEPT],
        "-m mark ! --mark 0x20000/0x20000 -j ACCEPT",
    ),
    # Matches in the order in which they were written, the ports where they stand.
    (V4, [COMMENT, SET, COUNTER, ACCEPT], '-m comment --comment "a b" -m set --match-set svip src -j ACCEPT'),
    (
        V4,
        [meta(16), cmp(b"\x06"), COMMENT, payload(2, 2, 2), cmp(b"\0\x50"), SET, ACCEPT],
        '-p tcp -m comment --comment "a b" -m tcp --dport 80 -m set --match-set svip src -j ACCEPT',
    ),
    (V4, [xt("match", b"tcp", 0, struct.pack("=4H4B", 0, 65535, 0, 65535, 0, 0, 0, 0)), ACCEPT], "-j ACCEPT"),
    # Another register, under its other name.
    (V4, [meta(6, REG32), cmp(b"a\0", register=REG128), ACCEPT], "-i a -j ACCEPT"),
    (
        V4,
        [meta(6, 9), payload(1, 12, 4, 10), cmp(b"a\0", register=9), cmp(address("192.0.2.1"), register=10)],
        "-s 192.0.2.1/32 -i a",
    ),
]


@pytest.mark.parametrize(("family", "expressions", "text"), RULES)
def test_rules(family: Family, expressions: list[bytes], text: str) -> None:
    """What the bytes say is what the text says."""
    rule = decode(*expressions, family=family)
    assert rule == parse_rule(f"-A INPUT {text}", user_chains=("mine",))
    assert (rule.handle, rule.index, rule.text) == (0x1234, 3, None)


def test_counters() -> None:
    rule = decode(COUNTER, ACCEPT)
    assert (rule.packets, rule.bytes) == (7, 420)


@pytest.mark.parametrize(
    ("expressions", "opaque"),
    [
        ([expression("limit", _1=bytes(8)), ACCEPT], ("limit",)),
        ([expression("log"), ACCEPT], ("log",)),
        ([expression("lookup", _1=b"x\0"), ACCEPT], ("lookup",)),
        ([xt("match", b"statistic", 0, bytes(24)), ACCEPT], ("statistic",)),
        ([xt("target", b"REJECT", 0, bytes(4))], ("REJECT",)),
        ([meta(99), ACCEPT], ("meta",)),
        ([expression("meta", _2=u32(3), _3=u32(REG128)), ACCEPT], ("meta",)),  # meta mark set
        ([payload(1, 8, 1), cmp(b"\x40"), ACCEPT], ("payload", "cmp")),  # ttl
        ([payload(0, 6, 6), cmp(bytes(6)), ACCEPT], ("payload", "cmp")),  # a link address
        ([meta(3), bitwise(b"\xff" * 4, b"\1\0\0\0"), cmp(bytes(4)), ACCEPT], ("bitwise",)),
        ([cmp(b"\0"), ACCEPT], ("cmp",)),  # of a register that was never loaded
        ([meta(16), cmp(b"\x06"), payload(2, 2, 2), cmp(b"\0\x50", 5), ACCEPT], ("cmp",)),  # half a range
        ([payload(2, 2, 2), cmp(b"\0\x50"), ACCEPT], ("payload",)),  # a port of no protocol
        ([verdict(-3), verdict(77)], ("immediate",)),
        ([xt("match", b"set", 4, struct.pack("=HBB", 9, 1, 2) + bytes(44)), ACCEPT], ("set",)),
        ([meta(6), cmp(b"a\0"), meta(6), cmp(b"b\0"), ACCEPT], ("cmp",)),  # twice
    ],
)
def test_opaque(expressions: list[bytes], opaque: tuple[str, ...]) -> None:
    """Whatever iptables does not write, or we do not know, is named and never guessed."""
    assert set(opaque) <= set(decode(*expressions).opaque)


def test_a_jump_is_known_in_an_opaque_rule() -> None:
    rule = decode(expression("limit"), verdict(-3, b"KUBE-ROUTER-INPUT"))
    assert rule.target.name == "KUBE-ROUTER-INPUT"
    assert rule.opaque == ("limit",)


def test_sets_are_known_in_an_opaque_rule() -> None:
    slots = struct.pack("=HBBHBB", 3, 1, 2, 0xFFFF, 0, 0) + bytes(8)
    assert decode(xt("target", b"SET", 2, slots)).sets == {"svip"}
    odd = xt("match", b"set", 9, struct.pack("=HBB", 3, 1, 2))
    assert decode(odd, ACCEPT).sets == {"svip"}


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_truncated_messages_never_raise(cut: int) -> None:
    """A message of a kernel to come is read as far as it is understood."""
    head = b"\x02\0\0\0" + attribute(3, bytes(8))
    body = attribute(0x8004, meta(6) + cmp(b"a\0") + ACCEPT)
    decode_rule((head + body)[:-cut], "INPUT", 0, V4, {})
