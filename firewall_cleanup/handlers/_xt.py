"""The payloads of xtables matches and targets, as C structures of include/uapi/linux/netfilter.

Legacy entries and the compat expressions of nf_tables carry the same bytes, so one decoder serves both backends.
A revision or an option that is not known gives None: the rule is opaque, and so foreign.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Mapping

from ..model import Family, Match, Option, Target

__all__ = ["decode_match", "decode_target", "match_sets", "target_sets"]

SetNames = Mapping[int, str]

_SET_FLAGS_INVERT = 1
_TCP_FLAGS = ("FIN", "SYN", "RST", "PSH", "ACK", "URG")
_CT_STATES = (
    (1, "INVALID"),
    (8, "NEW"),
    (4, "RELATED"),
    (2, "ESTABLISHED"),
    (256, "UNTRACKED"),
    (64, "SNAT"),
    (128, "DNAT"),
)
_ADDRESS_TYPES = (
    "UNSPEC", "UNICAST", "LOCAL", "BROADCAST", "ANYCAST", "MULTICAST", "BLACKHOLE", "UNREACHABLE", "PROHIBIT",
    "THROW", "NAT", "XRESOLVE",
)  # fmt: skip
_IPVS_METHODS = ("MASQ", "LOCALNODE", "IPIP", "GATE")


def decode_match(name: str, revision: int, data: bytes, family: Family, sets: SetNames) -> Match | None:
    """Return the match in the words of `iptables-save`, or None if it is not understood whole."""
    decoder = _MATCHES.get((name, revision))
    if decoder is None:
        return None
    try:
        options = decoder(data, family, sets)
    except (struct.error, LookupError, UnicodeDecodeError):
        return None
    return None if options is None else Match(name, options)


def decode_target(name: str, revision: int, data: bytes, family: Family) -> Target | None:
    """Return the target in the words of `iptables-save`, or None if it is not understood whole."""
    decoder = _TARGETS.get((name, revision))
    if decoder is None:
        return None
    try:
        options = decoder(data, family, {})
    except struct.error:
        return None
    return None if options is None else Target(name, options)


def match_sets(name: str, data: bytes) -> tuple[int, ...]:
    """Return the indices of the ipsets that a match uses, whatever its revision (all begin with the index)."""
    return struct.unpack_from("=H", data) if name == "set" else ()


def target_sets(name: str, revision: int, data: bytes) -> tuple[int, ...]:
    """Return the indices of the ipsets that a SET target uses; 65535 (IPSET_INVALID_ID) stands for none."""
    if name != "SET" or revision == 0:
        return ()
    slots = 3 if revision == 3 else 2
    indices = struct.unpack_from("=" + "Hxx" * slots, data)
    return tuple(index for index in indices if index != 0xFFFF)


_Options = tuple[Option, ...] | None
_Decoder = Callable[[bytes, Family, SetNames], _Options]


def _comment(data: bytes, _family: Family, _sets: SetNames) -> _Options:
    return (Option("--comment", (data.split(b"\0", 1)[0].decode("utf-8", "surrogateescape"),)),)


def _mark(data: bytes, _family: Family, _sets: SetNames) -> _Options:
    mark, mask, invert = struct.unpack_from("=IIB", data)
    return (Option("--mark", (mark_word(mark, mask),), bool(invert)),)


def mark_word(mark: int, mask: int) -> str:
    """Return a mark as iptables prints it: without the mask if that is all ones."""
    return f"{mark:#x}" if mask == 0xFFFFFFFF else f"{mark:#x}/{mask:#x}"


def port_word(low: int, high: int) -> str:
    """Return a port or a range of ports as iptables prints it."""
    return str(low) if low == high else f"{low}:{high}"


def tcp_flags_words(mask: int, value: int) -> tuple[str, str]:
    """Return both words of `--tcp-flags`."""

    def word(bits: int) -> str:
        return ",".join(name for i, name in enumerate(_TCP_FLAGS) if bits & (1 << i)) or "NONE"

    return word(mask), word(value)


def _ports(source: tuple[int, int], destination: tuple[int, int], invert: int) -> list[Option]:
    return [
        Option(flag, (port_word(*ports),), bool(invert & bit))
        for flag, ports, bit in (("--sport", source, 1), ("--dport", destination, 2))
        if ports != (0, 65535) or invert & bit
    ]


def _tcp(data: bytes, _family: Family, _sets: SetNames) -> _Options:
    sport_low, sport_high, dport_low, dport_high, option, mask, value, invert = struct.unpack_from("=4H4B", data)
    options = _ports((sport_low, sport_high), (dport_low, dport_high), invert)
    if option or invert & 8 or (mask | value) & ~0x3F:
        return None
    if mask or invert & 4:
        options.append(Option("--tcp-flags", tcp_flags_words(mask, value), bool(invert & 4)))
    return tuple(options)


def _udp(data: bytes, _family: Family, _sets: SetNames) -> _Options:
    sport_low, sport_high, dport_low, dport_high, invert = struct.unpack_from("=4HB", data)
    return tuple(_ports((sport_low, sport_high), (dport_low, dport_high), invert))


def _set(data: bytes, _family: Family, sets: SetNames) -> _Options:
    index, dimension, flags = struct.unpack_from("=HBB", data)
    # Behind the common head: counters (revision 3, 4) and flags (4) that nobody here asks for.
    if any(data[4:]) or flags & 0xF0:
        return None
    directions = ",".join("src" if flags & (2 << i) else "dst" for i in range(dimension))
    return (Option("--match-set", (sets[index], directions), bool(flags & _SET_FLAGS_INVERT)),)


def _ipvs(data: bytes, family: Family, _sets: SetNames) -> _Options:
    raw, mask, port, protocol, method, control, invert, bits = struct.unpack_from("=16s16s2sBB2sBB", data)
    address = _address(raw, family)
    prefix = int.from_bytes(mask[: family.bits // 8], "big").bit_count()
    vaddr = address if prefix == family.bits else f"{address}/{prefix}"
    parts = (
        (1, "--ipvs", None),
        (2, "--vproto", str(protocol)),
        (4, "--vaddr", vaddr),
        (8, "--vport", str(int.from_bytes(port, "big"))),
        (16, "--vdir", "REPLY" if invert & 16 else "ORIGINAL"),
        (32, "--vmethod", _IPVS_METHODS[method]),
        (64, "--vportctl", str(int.from_bytes(control, "big"))),
    )
    # iptables prints --ipvs only where no other option implies it, and the direction never as negated.
    return tuple(
        Option(flag, () if word is None else (word,), bool(invert & bit) and bit != 16)
        for bit, flag, word in parts
        if bits & bit and (bit != 1 or bits == 1)
    )


def _addrtype(data: bytes, _family: Family, _sets: SetNames) -> _Options:
    source, destination, flags = struct.unpack_from("=HHI", data)

    def words(bits: int) -> tuple[str, ...]:
        return (",".join(name for i, name in enumerate(_ADDRESS_TYPES) if bits & (1 << i)),)

    options = []
    if source:
        options.append(Option("--src-type", words(source), bool(flags & 1)))
    if destination:
        options.append(Option("--dst-type", words(destination), bool(flags & 2)))
    options += [Option(flag) for bit, flag in ((4, "--limit-iface-in"), (8, "--limit-iface-out")) if flags & bit]
    return tuple(options)


def _conntrack(data: bytes, _family: Family, _sets: SetNames) -> _Options:
    # xt_conntrack_mtinfo2/3: eight addresses, two expiry bounds, five 16-bit fields, then what we need.
    match_flags, invert_flags, state_mask = struct.unpack_from("=HHH", data, 8 * 16 + 2 * 4 + 5 * 2)
    if match_flags != 1 or invert_flags & ~1:
        return None
    states = ",".join(name for bit, name in _CT_STATES if state_mask & bit)
    return (Option("--ctstate", (states,), bool(invert_flags & 1)),)


def _physdev(data: bytes, _family: Family, _sets: SetNames) -> _Options:
    inward, in_mask, outward, out_mask, invert, bits = struct.unpack_from("=16s16s16s16sBB", data)
    parts = (
        (8, "--physdev-is-in", ()),
        (1, "--physdev-in", (interface_word(inward, in_mask),)),
        (16, "--physdev-is-out", ()),
        (2, "--physdev-out", (interface_word(outward, out_mask),)),
        (4, "--physdev-is-bridged", ()),
    )
    return tuple(Option(flag, words, bool(invert & bit)) for bit, flag, words in parts if bits & bit)


def interface_word(name: bytes, mask: bytes) -> str:
    """Return an interface as iptables prints it: `+` stands for any rest of the name."""
    length = len(mask.rstrip(b"\0"))
    text = name[:length].rstrip(b"\0").decode("utf-8", "surrogateescape")
    # The mask covers the closing NUL of a whole name, and only the given letters of a prefix.
    return text if length > len(text) else text + "+"


def _multiport(data: bytes, _family: Family, _sets: SetNames) -> _Options:
    flags, count = struct.unpack_from("=BB", data)
    ports = struct.unpack_from("=15H", data, 2)
    is_range = struct.unpack_from("=15B", data, 32)
    words, i = [], 0
    while i < count:
        if is_range[i]:
            words.append(f"{ports[i]}:{ports[i + 1]}")
            i += 1
        else:
            words.append(str(ports[i]))
        i += 1
    flag = ("--sports", "--dports", "--ports")[flags]
    return (Option(flag, (",".join(words),), bool(data[47])),)


def _mark_target(data: bytes, _family: Family, _sets: SetNames) -> _Options:
    mark, mask = struct.unpack_from("=II", data)
    return (Option("--set-xmark", (f"{mark:#x}/{mask:#x}",)),)


def _tcpmss(data: bytes, _family: Family, _sets: SetNames) -> _Options:
    (size,) = struct.unpack_from("=H", data)
    return (Option("--clamp-mss-to-pmtu") if size == 0xFFFF else Option("--set-mss", (str(size),)),)


def _nat_compat(data: bytes) -> tuple[int, bytes, bytes, int, int]:
    size, flags, low, high, port_low, port_high = struct.unpack_from("=II4s4s2s2s", data)
    if size != 1:
        raise struct.error("several ranges")
    return flags, low, high, int.from_bytes(port_low, "big"), int.from_bytes(port_high, "big")


def _nat_range(data: bytes) -> tuple[int, bytes, bytes, int, int]:
    flags, low, high, port_low, port_high = struct.unpack_from("=I16s16s2s2s", data)
    return flags, low, high, int.from_bytes(port_low, "big"), int.from_bytes(port_high, "big")


def _nat_options(parts: tuple[int, bytes, bytes, int, int], family: Family, address_flag: str) -> _Options:
    flags, low, high, port_low, port_high = parts
    if flags & ~0x1F:
        return None
    first, last = _address(low, family), _address(high, family)
    ports = ""
    if flags & 2:
        ports = str(port_low) if port_low == port_high else f"{port_low}-{port_high}"
    options = []
    if address_flag == "--to-ports":
        if ports:
            options.append(Option("--to-ports", (ports,)))
    else:
        word = ""
        if flags & 1:
            word = first if first == last else f"{first}-{last}"
            if ports and family is Family.IPV6:
                word = f"[{word}]"
        options.append(Option(address_flag, (word + (f":{ports}" if ports else ""),)))
    options += [
        Option(flag) for bit, flag in ((4, "--random"), (16, "--random-fully"), (8, "--persistent")) if flags & bit
    ]
    return tuple(options)


def _nat(flag: str, *, compat: bool) -> _Decoder:
    def decode(data: bytes, family: Family, _sets: SetNames) -> _Options:
        parts = _nat_compat(data) if compat and family is Family.IPV4 else _nat_range(data)
        return _nat_options(parts, family, flag)

    return decode


def _address(raw: bytes, family: Family) -> str:
    return str(ipaddress.ip_address(raw[: family.bits // 8]))


_MATCHES: dict[tuple[str, int], _Decoder] = {
    ("comment", 0): _comment,
    ("mark", 1): _mark,
    ("tcp", 0): _tcp,
    ("udp", 0): _udp,
    ("set", 1): _set,
    ("set", 2): _set,
    ("set", 3): _set,
    ("set", 4): _set,
    ("ipvs", 0): _ipvs,
    ("addrtype", 1): _addrtype,
    ("conntrack", 2): _conntrack,
    ("conntrack", 3): _conntrack,
    ("physdev", 0): _physdev,
    ("multiport", 1): _multiport,
}
_TARGETS: dict[tuple[str, int], _Decoder] = {
    ("MARK", 2): _mark_target,
    ("TCPMSS", 0): _tcpmss,
    ("MASQUERADE", 0): _nat("--to-ports", compat=True),
    ("SNAT", 0): _nat("--to-source", compat=True),
    ("SNAT", 1): _nat("--to-source", compat=False),
    ("SNAT", 2): _nat("--to-source", compat=False),
}
