"""xtables payloads and legacy entries, written out by hand after include/uapi/linux/netfilter."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from builders import V4, V6

from firewall_cleanup import Family
from firewall_cleanup.handlers._legacy_rules import decode_entry
from firewall_cleanup.handlers._xt import (
    decode_match,
    decode_target,
    interface_word,
    mark_word,
    match_sets,
    port_word,
    target_sets,
    tcp_flags_words,
)
from firewall_cleanup.model import Match, Rule
from firewall_cleanup.rules import parse_rule

SETS = {3: "svip", 4: "local"}


def words(found: Match | None) -> str | None:
    """The match in the words of iptables-save."""
    if found is None:
        return None
    parts = []
    for option in found.options:
        parts += ["!"] * option.negated + [option.flag, *option.words]
    return " ".join(parts)


def same(text: str) -> Match:
    """The match that a reader of text makes of it."""
    (match,) = parse_rule(f"-A X {text}").matches
    return match


def nul(text: bytes, size: int) -> bytes:
    return text.ljust(size, b"\0")


def conntrack(state: int, *, match: int = 1, invert: int = 0, rest: bytes = b"") -> bytes:
    # xt_conntrack_mtinfo3: 8 addresses, 2 u32, l4proto and 4 ports, then match_flags, invert_flags, state, status.
    return (
        bytes(8 * 16)
        + struct.pack("=II", 0, 0)
        + bytes(5 * 2)
        + struct.pack("=HHHH", match, invert, state, 0)
        + bytes(8)
    )


def ipvs(
    bitmask: int, *, invert: int = 0, vaddr: bytes = b"", vmask: bytes = b"", vport: int = 0, method: int = 0
) -> bytes:
    # xt_ipvs_mtinfo: vaddr[16] vmask[16] vport(be16) l4proto fwd_method vportctl(be16) invert bitmask
    return nul(vaddr, 16) + nul(vmask, 16) + vport.to_bytes(2, "big") + bytes([6, method, 0, 21, invert, bitmask])


def multiport(flags: int, ports: list[int], ranges: list[int] | None = None, invert: int = 0) -> bytes:
    # xt_multiport_v1: flags count ports[15] pflags[15] invert
    table = ports + [0] * (15 - len(ports))
    pflags = (ranges or []) + [0] * (15 - len(ranges or []))
    return struct.pack("=BB15H15BB", flags, len(ports), *table, *pflags, invert)


def physdev(bits: int, *, invert: int = 0, inward: bytes = b"", in_mask: bytes = b"") -> bytes:
    return nul(inward, 16) + nul(in_mask, 16) + bytes(32) + bytes([invert, bits])


V4_VIP = ipaddress.ip_address("203.0.113.10").packed
V6_VIP = ipaddress.ip_address("2001:db8::10").packed

MATCHES = [
    # char comment[256]; behind the NUL may be anything
    ("comment", 0, b'say "hi"\0' + b"\xee" * 247, V4, '--comment say "hi"'),
    ("comment", 0, bytes(256), V4, "--comment "),
    ("comment", 0, b"x" * 256, V4, "--comment " + "x" * 256),
    ("comment", 0, nul(b"caf\xe9", 256), V4, "--comment caf\udce9"),
    # xt_mark_mtinfo1: mark mask invert
    ("mark", 1, struct.pack("=IIB3x", 0x20000, 0x20000, 0), V4, "--mark 0x20000/0x20000"),
    ("mark", 1, struct.pack("=IIB3x", 1, 0xFFFFFFFF, 1), V6, "! --mark 0x1"),
    # xt_tcp: spts[2] dpts[2] option flg_mask flg_cmp invflags
    ("tcp", 0, struct.pack("=4H4B", 0, 65535, 80, 80, 0, 0, 0, 0), V4, "--dport 80"),
    ("tcp", 0, struct.pack("=4H4B", 1024, 65535, 0, 65535, 0, 0, 0, 1), V4, "! --sport 1024:65535"),
    ("tcp", 0, struct.pack("=4H4B", 0, 65535, 0, 65535, 0, 0x06, 0x02, 0), V4, "--tcp-flags SYN,RST SYN"),
    (
        "tcp",
        0,
        struct.pack("=4H4B", 0, 65535, 0, 65535, 0, 0x3F, 0, 4),
        V4,
        "! --tcp-flags FIN,SYN,RST,PSH,ACK,URG NONE",
    ),
    ("tcp", 0, struct.pack("=4H4B", 0, 65535, 0, 65535, 0, 0, 0, 0), V4, ""),
    ("tcp", 0, struct.pack("=4H4B", 0, 65535, 80, 80, 7, 0, 0, 0), V4, None),  # --tcp-option
    ("tcp", 0, struct.pack("=4H4B", 0, 65535, 80, 80, 0, 0, 0, 8), V4, None),  # ! --tcp-option
    ("tcp", 0, struct.pack("=4H4B", 0, 65535, 80, 80, 0, 0x40, 0, 0), V4, None),  # ECE
    # xt_udp: spts[2] dpts[2] invflags
    ("udp", 0, struct.pack("=4HB", 53, 53, 0, 65535, 0), V4, "--sport 53"),
    ("udp", 0, struct.pack("=4HB", 0, 65535, 1, 2, 2), V6, "! --dport 1:2"),
    # xt_set_info: index dim flags (1 inverts, 2 << i: src); rev 3 and 4 have counters and flags behind it
    ("set", 1, struct.pack("=HBB", 3, 1, 2), V4, "--match-set svip src"),
    ("set", 1, struct.pack("=HBB", 4, 1, 1), V4, "! --match-set local dst"),
    ("set", 2, struct.pack("=HBB", 3, 2, 2), V4, "--match-set svip src,dst"),
    ("set", 4, struct.pack("=HBB", 3, 2, 0) + bytes(44), V4, "--match-set svip dst,dst"),
    ("set", 3, struct.pack("=HBB", 3, 3, 14) + bytes(28), V4, "--match-set svip src,src,src"),
    ("set", 4, struct.pack("=HBB", 3, 1, 2) + bytes(40) + b"\1\0\0\0", V4, None),  # --update-counters …
    ("set", 1, struct.pack("=HBB", 3, 1, 0x12), V4, None),  # --return-nomatch
    ("set", 1, struct.pack("=HBB", 9, 1, 2), V4, None),  # a set that was not listed
    ("ipvs", 0, ipvs(16), V4, "--vdir ORIGINAL"),
    ("ipvs", 0, ipvs(16 | 32), V4, "--vdir ORIGINAL --vmethod MASQ"),
    ("ipvs", 0, ipvs(16 | 32, invert=16, method=3), V4, "--vdir REPLY --vmethod GATE"),
    ("ipvs", 0, ipvs(1), V4, "--ipvs"),
    ("ipvs", 0, ipvs(1 | 16), V4, "--vdir ORIGINAL"),
    ("ipvs", 0, ipvs(4 | 8, vaddr=V4_VIP, vmask=b"\xff" * 4, vport=80), V4, "--vaddr 203.0.113.10 --vport 80"),
    ("ipvs", 0, ipvs(4, vaddr=V6_VIP, vmask=b"\xff" * 16), V6, "--vaddr 2001:db8::10"),
    ("ipvs", 0, ipvs(4, invert=4, vaddr=V4_VIP[:3], vmask=b"\xff" * 3), V4, "! --vaddr 203.0.113.0/24"),
    ("ipvs", 0, ipvs(2 | 64), V4, "--vproto 6 --vportctl 21"),
    ("ipvs", 0, ipvs(32, method=9), V4, None),
    # xt_addrtype_info_v1: source dest flags
    ("addrtype", 1, struct.pack("=HHI", 4, 0, 0), V4, "--src-type LOCAL"),
    ("addrtype", 1, struct.pack("=HHI", 0, 4 | 8, 2), V4, "! --dst-type LOCAL,BROADCAST"),
    ("addrtype", 1, struct.pack("=HHI", 2, 4, 1 | 8), V4, "! --src-type UNICAST --dst-type LOCAL --limit-iface-out"),
    ("conntrack", 3, conntrack(1), V4, "--ctstate INVALID"),
    ("conntrack", 3, conntrack(2 | 4), V4, "--ctstate RELATED,ESTABLISHED"),
    ("conntrack", 2, conntrack(2 | 4 | 128, invert=1), V6, "! --ctstate RELATED,ESTABLISHED,DNAT"),
    ("conntrack", 3, conntrack(2, match=1 | 2), V4, None),  # more than a state
    ("physdev", 0, physdev(4), V4, "--physdev-is-bridged"),
    ("physdev", 0, physdev(4, invert=4), V4, "! --physdev-is-bridged"),
    ("physdev", 0, physdev(1, inward=b"veth1", in_mask=b"\xff" * 6), V4, "--physdev-in veth1"),
    ("physdev", 0, physdev(1, inward=b"veth", in_mask=b"\xff" * 4), V4, "--physdev-in veth+"),
    ("multiport", 1, multiport(1, [30000, 32767], [1, 0]), V4, "--dports 30000:32767"),
    ("multiport", 1, multiport(0, [80, 1, 2, 443], [0, 1, 0, 0], 1), V4, "! --sports 80,1:2,443"),
    ("multiport", 1, multiport(2, [80]), V4, "--ports 80"),
    # Unknown: a match, a revision, bytes that are too few.
    ("limit", 0, bytes(40), V4, None),
    ("set", 0, bytes(40), V4, None),
    ("mark", 0, bytes(40), V4, None),
    ("mark", 1, b"\0\0", V4, None),
    ("conntrack", 3, bytes(100), V4, None),
    ("multiport", 1, multiport(7, [80]), V4, None),
    ("conntrack", 1, conntrack(2), V4, None),
]


@pytest.mark.parametrize(("name", "revision", "data", "family", "expected"), MATCHES)
def test_matches(name: str, revision: int, data: bytes, family: Family, expected: str | None) -> None:
    found = decode_match(name, revision, data, family, SETS)
    assert words(found) == expected
    assert found is None or found.name == name


@pytest.mark.parametrize(
    ("name", "revision", "data", "text"),
    [
        ("comment", 0, nul(b"a b", 256), '-m comment --comment "a b"'),
        ("mark", 1, struct.pack("=IIB3x", 1, 0xFFFFFFFF, 1), "-m mark ! --mark 0x1"),
        ("tcp", 0, struct.pack("=4H4B", 0, 65535, 80, 80, 0, 6, 2, 0), "-m tcp --dport 80 --tcp-flags SYN,RST SYN"),
        ("set", 1, struct.pack("=HBB", 3, 2, 1), "-m set ! --match-set svip dst,dst"),
        ("ipvs", 0, ipvs(16 | 32), "-m ipvs --vdir ORIGINAL --vmethod MASQ"),
        ("conntrack", 3, conntrack(2 | 4), "-m conntrack --ctstate RELATED,ESTABLISHED"),
        ("physdev", 0, physdev(4), "-m physdev --physdev-is-bridged"),
        ("addrtype", 1, struct.pack("=HHI", 0, 4, 0), "-m addrtype --dst-type LOCAL"),
        ("multiport", 1, multiport(1, [30000, 32767], [1, 0]), "-m multiport --dports 30000:32767"),
    ],
)
def test_bytes_and_text_are_the_same_match(name: str, revision: int, data: bytes, text: str) -> None:
    assert decode_match(name, revision, data, V4, SETS) == same(text)


def compat(flags: int, low: bytes, high: bytes, ports: tuple[int, int] = (0, 0), size: int = 1) -> bytes:
    # nf_nat_ipv4_multi_range_compat: rangesize, then flags min_ip max_ip min max
    return struct.pack("=II", size, flags) + low + high + b"".join(port.to_bytes(2, "big") for port in ports)


def nat_range(flags: int, low: bytes, high: bytes, ports: tuple[int, int] = (0, 0)) -> bytes:
    # nf_nat_range: flags min_addr[16] max_addr[16] min_proto max_proto
    return struct.pack("=I", flags) + nul(low, 16) + nul(high, 16) + b"".join(p.to_bytes(2, "big") for p in ports)


NODE, LAST = bytes([192, 0, 2, 1]), bytes([192, 0, 2, 9])
TARGETS = [
    ("MARK", 2, struct.pack("=II", 0x3EB3, 0xFFFFFFFF), V4, "-j MARK --set-xmark 0x3eb3/0xffffffff"),
    ("MARK", 2, struct.pack("=II", 0, 0x10000), V6, "-j MARK --set-xmark 0x0/0x10000"),
    ("TCPMSS", 0, struct.pack("=H", 1440), V4, "-j TCPMSS --set-mss 1440"),
    ("TCPMSS", 0, struct.pack("=H", 0xFFFF), V4, "-j TCPMSS --clamp-mss-to-pmtu"),
    ("MASQUERADE", 0, compat(0, bytes(4), bytes(4)), V4, "-j MASQUERADE"),
    ("MASQUERADE", 0, compat(16, bytes(4), bytes(4)), V4, "-j MASQUERADE --random-fully"),
    ("MASQUERADE", 0, nat_range(16, b"", b""), V6, "-j MASQUERADE --random-fully"),
    ("SNAT", 0, compat(1, NODE, NODE), V4, "-j SNAT --to-source 192.0.2.1"),
    ("SNAT", 0, compat(17, NODE, NODE), V4, "-j SNAT --to-source 192.0.2.1 --random-fully"),
    ("SNAT", 0, compat(1, NODE, LAST), V4, "-j SNAT --to-source 192.0.2.1-192.0.2.9"),
    ("SNAT", 0, compat(3, NODE, NODE, (80, 81)), V4, "-j SNAT --to-source 192.0.2.1:80-81"),
    ("SNAT", 1, nat_range(1 | 8, V6_VIP, V6_VIP), V6, "-j SNAT --to-source 2001:db8::10 --persistent"),
    ("SNAT", 2, nat_range(3, V6_VIP, V6_VIP, (80, 80)) + bytes(2), V6, "-j SNAT --to-source [2001:db8::10]:80"),
    ("SNAT", 2, nat_range(1, NODE, NODE) + bytes(2), V4, "-j SNAT --to-source 192.0.2.1"),
    ("SNAT", 0, compat(1, NODE, NODE, size=2), V4, None),
    ("SNAT", 0, compat(1 | 32, NODE, NODE), V4, None),  # a flag of another time
    ("MARK", 0, bytes(4), V4, None),
    ("REJECT", 0, bytes(4), V4, None),
    ("TCPMSS", 0, b"", V4, None),
]


@pytest.mark.parametrize(("name", "revision", "data", "family", "text"), TARGETS)
def test_targets(name: str, revision: int, data: bytes, family: Family, text: str | None) -> None:
    assert decode_target(name, revision, data, family) == (
        None if text is None else parse_rule(f"-A X {text}").target
    )


@pytest.mark.parametrize(
    ("revision", "slots", "expected"),
    [
        (0, (3, 4), ()),  # another layout, of Linux 2.6
        (1, (3, 0xFFFF), (3,)),
        (2, (0xFFFF, 4), (4,)),
        (3, (3, 0xFFFF, 4), (3, 4)),
        (3, (0xFFFF, 0xFFFF, 0xFFFF), ()),
    ],
)
def test_sets_of_a_target(revision: int, slots: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """xt_set_info per slot: add, del, and since revision 3 map; 65535 stands for none."""
    data = b"".join(struct.pack("=HBB", slot, 1, 2) for slot in slots) + bytes(16)
    assert target_sets("SET", revision, data) == expected
    assert target_sets("MARK", revision, data) == ()


@pytest.mark.parametrize("revision", range(5))
def test_sets_of_a_match(revision: int) -> None:
    """Known whatever the revision, so that a set in use is never taken for free."""
    assert match_sets("set", struct.pack("=HBB", 7, 1, 2) + bytes(40)) == (7,)
    assert match_sets("comment", bytes(256)) == ()


@pytest.mark.parametrize(
    ("name", "mask", "word"),
    [
        (b"eth0", b"\xff" * 5, "eth0"),
        (b"eth", b"\xff" * 3, "eth+"),
        (b"eth0junk", b"\xff" * 4, "eth0+"),
        (b"", b"", "+"),
        (b"exactly-15-long", b"\xff" * 16, "exactly-15-long"),
    ],
)
def test_interface_word(name: bytes, mask: bytes, word: str) -> None:
    """The mask covers the closing NUL of a whole name, and only the letters of a prefix."""
    assert interface_word(nul(name, 16), nul(mask, 16)) == word


def test_words() -> None:
    assert (mark_word(1, 0xFFFFFFFF), mark_word(1, 0xFF)) == ("0x1", "0x1/0xff")
    assert (port_word(80, 80), port_word(1, 2)) == ("80", "1:2")
    assert tcp_flags_words(0x06, 0x02) == ("SYN,RST", "SYN")
    assert tcp_flags_words(0x3F, 0) == ("FIN,SYN,RST,PSH,ACK,URG", "NONE")


# struct ipt_entry and ip6t_entry, then matches, then the target; each extension: u16 size, name[29], u8 revision


def extension(name: bytes, revision: int, data: bytes) -> bytes:
    data += bytes(-len(data) % 8)
    return struct.pack("=H29sB", 32 + len(data), name, revision) + data


def entry4(
    matches: bytes,
    target: bytes,
    *,
    source: bytes = bytes(8),
    inward: bytes = b"",
    proto: int = 0,
    flags: int = 0,
    inv: int = 0,
) -> bytes:
    head = source[:4] + bytes(4) + source[4:] + bytes(4) + nul(inward, 16) + bytes(16)
    head += nul(b"\xff" * (len(inward) + 1 if inward else 0), 16) + bytes(16) + struct.pack("=HBB", proto, flags, inv)
    offset = 112 + len(matches)
    head += struct.pack("=IHHIQQ", 0, offset, offset + len(target), 0, 7, 420)
    assert len(head) == 112
    return head + matches + target


def entry6(matches: bytes, target: bytes, *, destination: bytes, prefix: int, proto: int, flags: int = 1) -> bytes:
    mask = ((1 << prefix) - 1 << 128 - prefix).to_bytes(16, "big")
    head = bytes(16) + destination + bytes(16) + mask + bytes(64) + struct.pack("=HBBB3x", proto, 0, flags, 0)
    offset = 168 + len(matches)
    head += struct.pack("=IHHI4xQQ", 0, offset, offset + len(target), 0, 1, 60)
    assert len(head) == 168
    return head + matches + target


STANDARD = extension(b"", 0, struct.pack("=i", -2))


def decode(entry: bytes, target: str, family: Family, chains: set[str] | None = None) -> Rule:
    return decode_entry(entry, target, "INPUT", 5, family, SETS, frozenset(chains or ()))


def test_legacy_entry() -> None:
    matches = extension(b"tcp", 0, struct.pack("=4H4B", 0, 65535, 80, 80, 0, 0, 0, 0))
    matches += extension(b"set", 1, struct.pack("=HBB", 3, 1, 2))
    network = bytes([192, 0, 2, 0]) + b"\xff\xff\xff\0"
    rule = decode(entry4(matches, STANDARD, source=network, inward=b"eth0", proto=6, inv=0x08), "ACCEPT", V4)
    text = "! -s 192.0.2.0/24 -i eth0 -p tcp -m tcp --dport 80 -m set --match-set svip src -j ACCEPT"
    assert rule == parse_rule(f"-A INPUT {text}")
    assert (rule.index, rule.packets, rule.bytes, rule.handle) == (5, 7, 420, None)


def test_legacy_entry_without_anything() -> None:
    assert decode(entry4(b"", STANDARD), "", V4) == parse_rule("-A INPUT")


def test_legacy_goto_and_jump() -> None:
    """A goto is a flag: 2 in IPv4, 4 in IPv6; the name of a user chain is no extension."""
    assert decode(entry4(b"", STANDARD, flags=2), "mine", V4, {"mine"}).target == parse_rule("-A X -g mine").target
    six = entry6(b"", STANDARD, destination=V6_VIP, prefix=128, proto=17, flags=1 | 4)
    rule = decode(six, "mine", V6, {"mine"})
    assert rule == parse_rule("-A INPUT -d 2001:db8::10/128 -p udp -g mine", user_chains=("mine",))


def test_legacy_target_extension() -> None:
    mark = extension(b"MARK", 2, struct.pack("=II", 0x3EB3, 0xFFFFFFFF))
    network = ipaddress.ip_address("2001:db8::").packed
    rule = decode(entry6(b"", mark, destination=network, prefix=64, proto=6), "MARK", V6)
    assert rule == parse_rule("-A INPUT -d 2001:db8::/64 -p tcp -j MARK --set-xmark 0x3eb3/0xffffffff")


@pytest.mark.parametrize(
    ("entry", "target", "opaque"),
    [
        (entry4(extension(b"limit", 0, bytes(40)), STANDARD), "ACCEPT", ("limit",)),
        (entry4(b"", extension(b"REJECT", 0, bytes(4))), "REJECT", ("REJECT",)),
        (entry4(b"", STANDARD, flags=1), "ACCEPT", ("flags",)),  # -f
        (entry4(b"", STANDARD, inv=0x20), "ACCEPT", ("flags",)),  # ! -f
        (entry4(extension(b"set", 1, struct.pack("=HBB", 9, 1, 2)), STANDARD), "ACCEPT", ("set",)),
    ],
)
def test_legacy_entry_opaque(entry: bytes, target: str, opaque: tuple[str, ...]) -> None:
    rule = decode(entry, target, V4)
    assert rule.opaque == opaque
    assert rule.target.name == target


def test_legacy_set_target_is_opaque_and_its_sets_known() -> None:
    slots = struct.pack("=HBBHBB", 4, 1, 2, 0xFFFF, 0, 0)
    rule = decode(entry4(b"", extension(b"SET", 1, slots)), "SET", V4)
    assert (rule.opaque, rule.sets) == (("SET",), {"local"})


def test_legacy_match_that_says_nothing() -> None:
    """`-m tcp` without an option is no match: nf_tables keeps none either."""
    empty = extension(b"tcp", 0, struct.pack("=4H4B", 0, 65535, 0, 65535, 0, 0, 0, 0))
    assert decode(entry4(empty, STANDARD, proto=6), "ACCEPT", V4) == parse_rule("-A INPUT -p tcp -m tcp -j ACCEPT")


def test_malformed_entry() -> None:
    """A size that would not move on is an error, not an endless loop."""
    with pytest.raises(OSError, match="malformed"):
        decode(entry4(struct.pack("=H29sB", 0, b"tcp", 0), STANDARD), "ACCEPT", V4)
