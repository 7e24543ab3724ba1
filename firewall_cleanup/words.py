"""Objects and what proves them in words, for a person. Everything is free of characters that a terminal obeys."""

from __future__ import annotations

from .boot_files import SavedLine
from .model import Backend, Controller, Kind
from .report import Holder, Outcome

__all__ = ["count", "escape", "evidence", "holder", "location", "noun", "object_name"]

_OWNERS = {
    Controller.SERVICE_PROXY: "the service proxy",
    Controller.NETWORK_POLICY: "the network policy controller",
    Controller.ROUTING: "the routing controller",
}

_EVIDENCE = {
    "chain-name": "name of a chain of {owner}",
    "jump": "jumps to {detail}",
    "rule-shape": "exact {matches} of a rule of {owner}",
    "dsr-mark": "mark is the hash of its service",
    "dsr-vip": "address of a service with a proven mark",
    "set-name": "name of a set of {owner}",
    "temporary-set": "unused temporary set of {component}",
    "table-name": "name of a table of {owner}",
    "dummy-address": "address on {detail}",
    "fwmark": "mark of a rule that is proven",
    "service-set": "member of {detail}",
    "same-destinations": "destinations of a service that is proven",
    "pod-destinations": "node port, and all destinations are pods",
    "link-name": "name and kind of a link of {owner}",
    "tunnel-name": "name is made from its other end {detail}",
    "tunnel-port": "port of {detail}",
    "on-owned-link": "on {detail}",
    "policy-rule": "looks up a table of {owner}",
    "route-table": "exact route in a table of {owner}",
    "route-protocol": "protocol and form of the routes of {owner}",
}

_NOUNS = {Kind.IPVS_SERVICE: "IPVS service", Kind.POLICY_RULE: "policy rule", Kind.FOU_PORT: "FOU port"}


def escape(text: str) -> str:
    """Return the text with every character that is not printable as an escape sequence."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def noun(kind: Kind, number: int = 1) -> str:
    """Return what an object of this kind is called, or several."""
    word = _NOUNS.get(kind, kind.value)
    return word if number == 1 else word + ("es" if word.endswith("s") else "s")


def count(number: int, word: str) -> str:
    """Return `3 parts`, `1 part`."""
    return f"{number} {word if number == 1 else word + 's'}"


def evidence(item: Outcome | SavedLine, detail: str | None = None) -> str:
    """Return why an object is owned; `detail` takes the place of its own where it stands for several."""
    template = _EVIDENCE.get(item.evidence)
    if template is None:
        return escape(item.evidence)
    text = item.text or ""
    commented = "--comment " in text and '--comment ""' not in text
    words = template.format(
        component=item.component,
        owner=item.component if item.controller is None else _OWNERS[item.controller],
        matches="comment and matches" if commented else "matches",
        detail=item.detail if detail is None else detail,
    )
    return escape(words.rstrip())


def object_name(item: Outcome) -> str:
    """Return an object as a line of its group has it: a rule as iptables prints it, others by kind and name."""
    if item.kind is Kind.RULE:
        return escape(item.text or item.name)
    if item.kind in {Kind.CHAIN, Kind.TABLE, Kind.SET}:
        return escape(f"{item.kind.value} {item.name}")
    return escape(f"{noun(item.kind)} {item.text or item.name}")


def location(item: Outcome) -> str:
    """Return where an object is, for a line outside of its group: `ipv4 nft filter: `, or the family alone."""
    family = item.family.value if item.family else ""
    if item.kind is Kind.TABLE:
        return f"{family} {Backend.NFT.value}: "
    if item.backend is None:
        return f"{family} " if family else ""
    return escape(f"{family} {item.backend.value} {item.table}: ")


def holder(item: Holder) -> str:
    """Return what holds an object, with where it is."""
    if item.kind in {Kind.LINK, Kind.IPVS_SERVICE}:
        return escape(f"{noun(item.kind)} {item.text}")
    parts = (item.family, item.backend)
    where = " ".join(part.value for part in parts if part is not None)
    if item.kind is Kind.SET:
        return escape(f"set {item.text}" if item.table is None else f"{where} {item.table}: map {item.text}")
    return escape(f"{where} {item.table}: {item.text}")
