"""Files for `nft -f`: tables, chains and jumps of nf_tables, in blocks or one by one. Nothing else is read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import attrs

from ..model import Family, NativeTable, Rule, TableKey, Target
from ._entries import ChainEntry, Entry, RuleEntry, TableEntry, key_of

__all__ = ["nft_entries"]

_TOKEN = re.compile(r'(?P<skip>#[^\n]*|\\\n)|(?P<end>[\n;{}])|"(?P<text>[^"\n]*)"|(?P<word>[^\s;{}"#]+)')
_FAMILIES = frozenset("ip ip6 inet arp bridge netdev".split())
_IPTABLES = {"ip": Family.IPV4, "ip6": Family.IPV6}


@attrs.frozen
class _Block:
    """Where a statement stands: in nothing, in a table, in a chain of it, or in braces that do not matter."""

    table: NativeTable | None = None
    chain: str = ""
    matters: bool = True

    @property
    def key(self) -> TableKey | None:
        family = _IPTABLES.get(self.table.family) if self.table else None
        return key_of(family, self.table.name) if self.table and family else None


@attrs.frozen
class _Word:
    text: str
    line: int
    quoted: bool = False


def nft_entries(text: str) -> Iterator[Entry]:
    """Yield what a file for `nft -f` makes."""
    blocks, words, line = [_Block()], list[_Word](), 1
    for found in _TOKEN.finditer(text):
        match found.lastgroup:
            case "word":
                words.append(_Word(found["word"], line))
            case "text":
                words.append(_Word(found["text"], line, quoted=True))
            case "end" if found["end"] == "{":
                block, entries = _opened(words, blocks[-1])
                yield from entries
                if block.matters:
                    words = []
                blocks.append(block)
            case "end" if found["end"] == "}":
                if blocks[-1].matters:
                    yield from _statement(words, blocks[-1])
                    words = []
                if len(blocks) > 1:
                    blocks.pop()
            case "end" if blocks[-1].matters:
                yield from _statement(words, blocks[-1])
                words = []
        line += found[0].count("\n")


def _opened(words: list[_Word], block: _Block) -> tuple[_Block, list[Entry]]:
    """Return the block that begins behind some words, and what these make."""
    entries = list(_statement(words, block)) if block.matters else []
    match entries:
        case [TableEntry(_, table)]:
            return _Block(table), entries
        case [ChainEntry(_, _, name)]:
            return attrs.evolve(block, table=_table(words, block), chain=name), entries
    if block.matters and block.table is not None and not block.chain and words and words[0].text == "chain":
        return attrs.evolve(block, chain=words[-1].text), entries  # of a table that is not iptables'
    return _Block(matters=False), []


def _table(words: list[_Word], block: _Block) -> NativeTable | None:
    if block.table is not None:
        return block.table
    rest = [word.text for word in words if word.text not in {"add", "create", "chain"}]
    return NativeTable(*(rest[:2] if rest[0] in _FAMILIES else ("ip", rest[0])))


def _statement(words: list[_Word], block: _Block) -> Iterator[Entry]:
    """Yield what one statement makes; a rule only for its jump."""
    if block.chain:
        if block.key is not None:
            yield from _jump(words, block.key, block.chain)
        return
    rest = words[1:] if words and words[0].text in {"add", "create", "insert"} else words
    if len(rest) < 2:
        return
    kind, rest, line = rest[0].text, rest[1:], rest[0].line
    if block.table is not None:
        if kind == "chain" and block.key is not None:
            yield ChainEntry(line, block.key, rest[0].text)
        return
    family = "ip"
    if rest[0].text in _FAMILIES and not rest[0].quoted:
        family, rest = rest[0].text, rest[1:]
    if kind == "table" and rest:
        yield TableEntry(line, NativeTable(family, rest[0].text))
    key = _Block(NativeTable(family, rest[0].text)).key if rest else None
    if key is None or len(rest) < 2:
        return
    if kind == "chain":
        yield ChainEntry(line, key, rest[1].text)
    elif kind == "rule":
        yield from _jump(rest[2:], key, rest[1].text)


def _jump(words: list[_Word], key: TableKey, chain: str) -> Iterator[Entry]:
    for word, target in itertools.pairwise(words):
        if word.text in {"jump", "goto"} and not word.quoted:
            name = target.text
            rule = Rule(chain, target=Target(name, goto=word.text == "goto"), opaque=("nft",))
            yield RuleEntry(word.line, key, chain, (name,), rule)
            return
