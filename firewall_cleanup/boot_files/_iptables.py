"""What `iptables-save` and `ipset save` print, and lines of scripts that call iptables, ip6tables and ipset."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

from ..model import Family, TableKey
from ..rules import tokenize
from ._entries import ChainEntry, Entry, RuleEntry, SetEntry, key_of

__all__ = ["command_entries", "ipset_entries", "rule_entry", "save_entries", "words_entry"]

_CHAIN = re.compile(r":(\S+)\s+(\S+)")
_RULE = re.compile(r"(?:\[\d+:\d+\]\s+)?(?:-A|-I|--append|--insert)\s+(\S+)(?:\s+\d+(?=\s))?(.*)")
_NEW_CHAIN = re.compile(r"(?:-N|--new-chain|--new)\s+(\S+)")
_TARGET = re.compile(r"-(?:j|g|-jump|-goto)\s+(\S+)")


def rule_entry(line: int, key: TableKey, chain: str, rest: str) -> RuleEntry:
    """Return the entry of a rule whose text after the chain is `rest`."""
    return RuleEntry(line, key, chain, _TARGET.findall(rest), f"-A {chain} {rest}")


def save_entries(text: str, family: Family) -> Iterator[Entry]:
    """Yield what a file for `iptables-restore` makes."""
    key = None
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if line.startswith("*"):
            key = key_of(family, line[1:].strip())
        elif line == "COMMIT":
            key = None
        elif key is not None:
            if line.startswith("-A "):
                chain, _, rest = line[3:].lstrip().partition(" ")
                yield rule_entry(number, key, chain, rest)
            elif not line.startswith("#"):
                yield from _entry(number, key, line)


def _entry(number: int, key: TableKey, line: str) -> Iterator[Entry]:
    if found := _RULE.match(line):
        yield rule_entry(number, key, found[1], found[2])
    elif ((found := _CHAIN.match(line)) and found[2] == "-") or (found := _NEW_CHAIN.match(line)):
        yield ChainEntry(number, key, found[1])


def ipset_entries(text: str) -> Iterator[Entry]:
    """Yield what a file for `ipset restore` makes."""
    for number, line in enumerate(text.split("\n"), 1):
        try:
            words = [word for word, _quoted in tokenize(line)]
        except ValueError:
            continue
        yield from _set_entry(number, words)


def _set_entry(number: int, words: list[str]) -> Iterator[Entry]:
    words = [word for word in words if word not in {"-exist", "-!", "--exist"}]
    if len(words) > 1 and words[0] in {"create", "-N", "--create"}:
        options = dict(zip(words[3::2], words[4::2], strict=False))
        family = {"inet": Family.IPV4, "inet6": Family.IPV6}.get(options.get("family", ""))
        yield SetEntry(number, words[1], family)


# what interfaces(5) runs when a link comes up
_HOOKS = frozenset({"pre-up", "up", "post-up"})
_COMMANDS = {
    **dict.fromkeys(("iptables", "iptables-nft", "iptables-legacy"), Family.IPV4),
    **dict.fromkeys(("ip6tables", "ip6tables-nft", "ip6tables-legacy"), Family.IPV6),
}
# Words of a shell before a command.
_BEFORE = _HOOKS | {"if", "then", "elif", "else", "while", "until", "do", "!", "{", "("}
# What ends a command: an operator; and what ends its words: a redirection with the number before it, or a remark.
# What is quoted, or the output of another command, is passed over.
_END = re.compile(
    r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`"""
    r"""|(?P<words>((?<!\S)\d+)?[<>]+[&|]?|&>+|(?<!\S)\#.*)|(?P<command>[;&|]+)"""
)
_WORD = re.compile(r"[-_./:,!=+0-9A-Za-z]+")


def command_entries(text: str) -> Iterator[Entry]:
    """Yield what plain calls of iptables, ip6tables and ipset in a script make; nothing is expanded or followed."""
    for number, line in enumerate(text.split("\n"), 1):
        if "tables" not in line and "ipset" not in line:
            continue
        for command in _commands(line):
            try:
                words = shlex.split(command)
            except ValueError:
                continue
            while words and words[0] in _BEFORE:
                del words[0]
            name = words[0].rpartition("/")[2] if words else ""
            if name in _COMMANDS:
                yield from words_entry(number, _COMMANDS[name], words[1:])
            elif name == "ipset":
                yield from _set_entry(number, words[1:])


def _commands(line: str) -> Iterator[str]:
    """Yield the commands of a line, without where their input comes from and their output goes."""
    start, end = 0, None
    for found in _END.finditer(line):
        if found["words"] and end is None:
            end = found.start()
        elif found["command"]:
            yield line[start : found.start() if end is None else end]
            start, end = found.end(), None
    yield line[start:end]


def words_entry(number: int, family: Family, words: Iterable[str]) -> Iterator[Entry]:
    """Yield what a call of iptables with these words makes."""
    rest, table = list(words), "filter"
    for index in range(len(rest) - 1, -1, -1):
        if rest[index] in {"-t", "--table"} and index + 1 < len(rest):
            table = rest[index + 1]
            del rest[index : index + 2]
        elif rest[index] in {"-w", "--wait", "-W", "--wait-interval"}:
            seconds = index + 1 < len(rest) and rest[index + 1].isdigit()
            del rest[index : index + 1 + seconds]
    key = key_of(family, table)
    if key is not None:
        yield from _entry(number, key, " ".join(map(_quoted, rest)))


def _quoted(word: str) -> str:
    if _WORD.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
