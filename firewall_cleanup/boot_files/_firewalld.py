"""firewalld's direct.xml (firewalld.direct(5)): chains, rules, and calls of iptables that it passes through."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..model import Family
from ._entries import ChainEntry, Entry, key_of
from ._iptables import rule_entry, words_entry

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["direct_entries"]

_FAMILIES = {"ipv4": Family.IPV4, "ipv6": Family.IPV6}


def direct_entries(text: str) -> Iterator[Entry]:
    """Yield what direct.xml makes. Raises ValueError if it is no XML."""
    for line, name, attributes, words in _elements(text):
        family, table = _FAMILIES.get(attributes.get("ipv", "")), attributes.get("table", "")
        if family is None:
            continue
        key, chain = key_of(family, table), attributes.get("chain", "")
        if name == "chain" and key is not None:
            yield ChainEntry(line, key, chain)
        elif name == "rule" and key is not None:
            yield rule_entry(line, key, chain, " ".join(words.split()))
        elif name == "passthrough":
            try:
                yield from words_entry(line, family, shlex.split(words))
            except ValueError:
                continue


def _elements(text: str) -> Iterator[tuple[int, str, Mapping[str, str], str]]:
    """Yield each element with the line where it begins, its attributes and its own text."""
    from xml.parsers import expat  # noqa: PLC0415 - few nodes have such files

    parser = expat.ParserCreate()
    found: list[tuple[int, str, Mapping[str, str], list[str]]] = []
    opened: list[int] = []

    def start(name: str, attributes: Mapping[str, str]) -> None:
        opened.append(len(found))
        found.append((parser.CurrentLineNumber, name, attributes, []))

    def end(_name: str) -> None:
        opened.pop()

    def data(text: str) -> None:
        if opened:
            found[opened[-1]][3].append(text)

    def refuse(*_arguments: object) -> None:
        raise ValueError("a document type in it, which firewalld does not write")

    handlers: Mapping[str, Callable[..., None]] = {
        "StartElementHandler": start,
        "EndElementHandler": end,
        "CharacterDataHandler": data,
        "StartDoctypeDeclHandler": refuse,  # entities could make it grow without end
    }
    for name, handler in handlers.items():
        setattr(parser, name, handler)
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise ValueError(f"not XML: {error}") from error
    return ((line, name, attributes, "".join(words)) for line, name, attributes, words in found)
