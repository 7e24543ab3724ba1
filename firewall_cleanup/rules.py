"""The text of a rule as `iptables-save` writes it: read into a `Rule`, and written from one."""

from __future__ import annotations

import functools
import ipaddress
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import attrs

from .model import Match, Option, Rule, Target

__all__ = [
    "PROTOCOLS",
    "is_open",
    "logical_lines",
    "network",
    "parse_rule",
    "protocol_name",
    "quote",
    "render",
    "tokenize",
    "used_names",
]

# The names that iptables prints by itself, whatever /etc/protocols says (xtables_chain_protos).
PROTOCOLS = {
    "icmp": 1, "tcp": 6, "udp": 17, "dccp": 33, "esp": 50, "ah": 51, "ipv6-icmp": 58,
    "sctp": 132, "mh": 135, "udplite": 136,
}  # fmt: skip
_PROTOCOL_NAMES = {number: name for name, number in PROTOCOLS.items()}
_PROTOCOL_ALIASES = {"icmpv6": "ipv6-icmp", "icmp6": "ipv6-icmp", "ipv6-mh": "mh"}

# Flags whose one word may look like a flag itself, as iptables quotes only what the shell would split.
_FREE_TEXT = frozenset({"--comment", "--log-prefix", "--nflog-prefix", "--string", "--hex-string", "--id"})
_PLAIN_FLAGS = {
    "--source": "-s", "--src": "-s", "--destination": "-d", "--dst": "-d", "--in-interface": "-i",
    "--out-interface": "-o", "--protocol": "-p", "--proto": "-p", "--fragment": "-f",
}  # fmt: skip
_PLAIN_ORDER = ("-s", "-d", "-i", "-o", "-p", "-f")

# What handlers decode from the kernel; any other match or target makes a rule opaque in every reader alike.
KNOWN_MATCHES = frozenset("addrtype comment conntrack ipvs mark multiport physdev set tcp udp".split())
KNOWN_TARGETS = frozenset("MARK MASQUERADE SNAT TCPMSS".split())
VERDICTS = frozenset({"ACCEPT", "DROP", "RETURN", "QUEUE"})
_KNOWN_FLAGS = {
    "conntrack": frozenset({"--ctstate"}),
    "set": frozenset({"--match-set"}),
    "tcp": frozenset({"--sport", "--dport", "--tcp-flags"}),
    "udp": frozenset({"--sport", "--dport"}),
    "SNAT": frozenset({"--to-source", "--random", "--random-fully", "--persistent"}),
    "TCPMSS": frozenset({"--set-mss", "--clamp-mss-to-pmtu"}),
}

_TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|(\S+))', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_PLAIN_WORD = re.compile(r"[-_0-9A-Za-z]+\Z")
_COUNTERS = re.compile(r"\[(\d+):(\d+)\]\Z")
_SET_FLAGS = frozenset({"--match-set", "--add-set", "--del-set", "--map-set"})


# A comment may hold line breaks; no rule is longer than this.
_MOST_LINES, _MOST_LENGTH = 256, 4096
_ESCAPED = re.compile(r"\\.")
# Names may begin or end with what else counts as a blank.
_BLANKS = " \t\r"


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield what is not blank with the number of its first line, from 1: a quoted word may hold line breaks."""
    rows = text.split("\n")
    at = 0
    while at < len(rows):
        line, number = rows[at].strip(_BLANKS), at + 1
        at += 1
        if is_open(line) and not line.startswith("#"):
            whole = rows[number - 1]
            for end in range(at, min(at + _MOST_LINES, len(rows))):
                whole += "\n" + rows[end]
                if len(whole) > _MOST_LENGTH:
                    break
                if is_open(rows[end]) and _is_whole(whole):
                    line, at = whole.strip(_BLANKS), end + 1
                    break
        if line:
            yield number, line


def is_open(line: str) -> bool:
    """Tell whether a quote is left open at the end of a line, or one is closed that was open at its beginning."""
    return '"' in line and _ESCAPED.sub("", line).count('"') % 2 == 1


def _is_whole(line: str) -> bool:
    try:
        return any(True for _word in tokenize(line))
    except ValueError:
        return False


def tokenize(line: str) -> Iterator[tuple[str, bool]]:
    """Yield the words of a line as iptables quotes them, each with whether it stood in quotes.

    Raises ValueError for a quote that is not closed.
    """
    for quoted, plain in _TOKEN.findall(line.rstrip()):  # \S+ matches whatever is left: there are no holes
        if not plain:
            yield (_ESCAPE.sub(r"\1", quoted) if "\\" in quoted else quoted), True
        elif plain.startswith('"'):
            raise ValueError("a quote is not closed")
        else:
            yield plain, False


def protocol_name(number: int) -> str:
    """Return the name by which iptables prints a protocol, else its number."""
    return _PROTOCOL_NAMES.get(number, str(number))


@functools.lru_cache(maxsize=1 << 14)
def network(text: str) -> str:
    """Return an address or network in canonical form with its prefix length; what is neither stays as it is."""
    try:
        return ipaddress.ip_network(text, strict=False).with_prefixlen
    except ValueError:
        return text  # a mask with holes, a host name


def parse_rule(line: str, *, user_chains: Iterable[str] = (), remarks: bool = False) -> Rule:
    """Read one `-A CHAIN …` line, with or without counters before it.

    `user_chains` tells jumps from targets that are not known. With `remarks`, one in angle brackets, as `render`
    writes it, names parts that were not understood; such a line is not kept as iptables' text. Raises ValueError with
    a reason if it is no such line.
    """
    tokens = list(tokenize(line))
    packets = octets = 0
    if tokens and (counters := _COUNTERS.match(tokens[0][0])):
        packets, octets = int(counters[1]), int(counters[2])
        del tokens[0]
    if len(tokens) < 2 or tokens[0][0] not in {"-A", "-I", "--append"}:
        raise ValueError("expected -A CHAIN")
    remark: list[str] = []
    words = tokens[2:]
    if remarks and "<" in line:
        remark, words = _without_remark(words)
    groups = _group(words)
    plain = groups[0]
    named = [Match(group.name, tuple(group.options)) for group in groups[1:] if group.kind == "-m"]
    targets = [group for group in groups[1:] if group.kind != "-m"]
    if len(targets) > 1:
        raise ValueError("more than one target")
    target = Target()
    if targets:
        target = Target(targets[0].name, tuple(targets[0].options), goto=targets[0].kind == "-g")
    matches = _canonical_matches(plain.options, named)
    opaque = _opaque(matches, target, frozenset(user_chains))
    if remark:
        opaque = tuple(dict.fromkeys((*remark, *opaque)))
    return Rule(
        chain=tokens[1][0],
        matches=matches,
        target=target,
        opaque=opaque,
        sets=_sets(matches, target),
        packets=packets,
        bytes=octets,
        text=None if remark else "-A " + line.split("-A ", 1)[-1].strip(),
    )


def _without_remark(tokens: list[tuple[str, bool]]) -> tuple[list[str], list[tuple[str, bool]]]:
    """Return the names in a remark, `<recent, statistic>`, and the words without it."""
    plain = [(i, text) for i, (text, quoted) in enumerate(tokens) if not quoted]
    first = next((i for i, text in plain if text.startswith("<")), None)
    last = None if first is None else next((i for i, text in plain if i >= first and text.endswith(">")), None)
    if first is None or last is None:
        return [], tokens
    words = " ".join(text for text, _quoted in tokens[first : last + 1])
    return words[1:-1].split(", "), tokens[:first] + tokens[last + 1 :]


def used_names(line: str) -> tuple[str, frozenset[str]]:
    """Return the target and the sets that stand in a line of a rule, whatever else is in it."""
    words = [word.strip('"') for word in line.split()]
    pairs = list(itertools.pairwise(words))
    targets = [name for flag, name in pairs if flag in {"-j", "-g", "--jump", "--goto"}]
    return targets[-1] if targets else "", frozenset(name for flag, name in pairs if flag in _SET_FLAGS)


class _Group(NamedTuple):
    kind: str  # "", -m, -j or -g
    name: str
    options: list[Option]


def _group(tokens: list[tuple[str, bool]]) -> list[_Group]:
    groups = [_Group("", "", [])]
    negated = False
    index = 0
    while index < len(tokens):
        text, quoted = tokens[index]
        index += 1
        if text == "!" and not quoted:
            negated = True
            continue
        if quoted or not text.startswith("-"):
            raise ValueError(f"unexpected word {text!r}")
        if text in {"-m", "-j", "-g", "--match", "--jump", "--goto"}:
            if index == len(tokens):
                raise ValueError(f"{text} without a name")
            groups.append(
                _Group({"--match": "-m", "--jump": "-j", "--goto": "-g"}.get(text, text), tokens[index][0], [])
            )
            index += 1
            continue
        words = []
        if text not in _FREE_TEXT and _is_old_negation(tokens, index):
            negated, index = True, index + 1
        if text in _FREE_TEXT:
            words = [tokens[index][0]] if index < len(tokens) else []
            index += 1
        else:
            while index < len(tokens) and (tokens[index][1] or not _starts_option(tokens[index][0])):
                words.append(tokens[index][0])
                index += 1
        flag = _PLAIN_FLAGS.get(text, text)
        # Options without a match of their own may follow a target in hand-written text; they belong to the rule.
        group = groups[0] if flag in _PLAIN_ORDER else groups[-1]
        group.options.append(Option(flag, tuple(words), negated))
        negated = False
    return groups


def _is_old_negation(tokens: list[tuple[str, bool]], index: int) -> bool:
    """Tell whether a value follows the `!` at this place: the syntax of old releases, `--flag ! value`."""
    if tokens[index : index + 1] != [("!", False)] or index + 1 == len(tokens):
        return False
    text, quoted = tokens[index + 1]
    return quoted or not _starts_option(text)


def _starts_option(text: str) -> bool:
    return text == "!" or (text.startswith("-") and not text[1:2].isdigit())


def _canonical_matches(plain: list[Option], matches: list[Match]) -> tuple[Match, ...]:
    unknown = next((option.flag for option in plain if option.flag not in _PLAIN_ORDER), None)
    if unknown is not None:
        raise ValueError(f"unknown option {unknown}")
    options = sorted((_canonical_plain(option) for option in plain), key=lambda o: _PLAIN_ORDER.index(o.flag))
    result = [Match("", tuple(options))] if options else []
    # `-m tcp` alone says no more than `-p tcp`; nf_tables does not keep it.
    result.extend(match for match in matches if match.options or match.name not in {"tcp", "udp"})
    return tuple(result)


def _canonical_plain(option: Option) -> Option:
    if option.flag in {"-s", "-d"}:
        return attrs.evolve(option, words=tuple(network(word) for word in option.words))
    if option.flag == "-p":
        names = (_PROTOCOL_ALIASES.get(word, word) for word in option.words)
        return attrs.evolve(option, words=tuple(protocol_name(int(w)) if w.isdigit() else w for w in names))
    return option


def _opaque(matches: tuple[Match, ...], target: Target, user_chains: frozenset[str]) -> tuple[str, ...]:
    parts: list[str] = []
    for match in matches:
        if match.name == "":
            parts.extend(option.flag for option in match.options if option.flag == "-f")
        elif match.name not in KNOWN_MATCHES or not _known(match.name, match.options):
            parts.append(match.name)
    known = target.name in VERDICTS or target.name in user_chains or target.name in KNOWN_TARGETS or not target.name
    if not known or not _known(target.name, target.options):
        parts.append(target.name)
    return tuple(parts)


def _known(name: str, options: tuple[Option, ...]) -> bool:
    flags = _KNOWN_FLAGS.get(name)
    return flags is None or all(option.flag in flags for option in options)


def _sets(matches: tuple[Match, ...], target: Target) -> frozenset[str]:
    names = {
        option.words[0]
        for match in matches
        if match.name == "set"
        for option in match.options
        if option.flag == "--match-set" and option.words
    }
    if target.name == "SET":
        names.update(
            option.words[0]
            for option in target.options
            if option.flag in {"--add-set", "--del-set", "--map-set"} and option.words
        )
    return frozenset(names)


def render(rule: Rule) -> str:
    """Return the rule as `iptables-save` prints it; what is opaque appears as a remark in angle brackets."""
    if rule.text is not None:
        return rule.text
    words = ["-A", quote(rule.chain)]
    for match in rule.matches:
        if match.name:
            words += ["-m", match.name]
        words += _render_options(match.options)
    if rule.opaque:
        words.append("<" + ", ".join(rule.opaque) + ">")
    if rule.target.name:
        words += ["-g" if rule.target.goto else "-j", quote(rule.target.name)]
        words += _render_options(rule.target.options)
    return " ".join(words)


def _render_options(options: tuple[Option, ...]) -> Iterator[str]:
    for option in options:
        if option.negated:
            yield "!"
        yield option.flag
        for word in option.words:
            yield quote(word, force=option.flag in _FREE_TEXT)


def quote(word: str, *, force: bool = False) -> str:
    """Quote as xtables_save_string does; other words than free text are printed bare unless they hold a blank."""
    if _PLAIN_WORD.match(word) or (not force and word and not re.search(r'[\s"\\]', word)):
        return word
    escaped = re.sub(r'(["\\\'])', r"\\\1", word)
    return f'"{escaped}"'
