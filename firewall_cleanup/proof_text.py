"""The proof in words: one line where foreign state is what it was, else what somebody else changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .plan_text import Line
from .proof import Difference, Proof, Unread
from .words import count, escape

__all__ = ["proof_lines"]

_MOST_LINES = 10
_DIGITS = 16
# What is counted, in the order of the line; all subsystems that have it are added up.
_NOUNS = {
    "tables": "table",
    "chains": "chain",
    "rules": "rule",
    "sets": "set",
    "services": "IPVS service",
    "links": "link",
    "addresses": "address",
    "policy_rules": "policy rule",
    "routes": "route",
    "ports": "FOU port",
}


def proof_lines(proof: Proof, *, verbose: bool = False) -> Iterator[Line]:
    """Yield what a person should know of the proof; with `verbose` all of it."""
    numbers: Counter[str] = Counter()
    for counted in proof.after.counts.values():
        numbers.update(counted)
    there = ", ".join(_count(numbers[name], noun) for name, noun in _NOUNS.items() if numbers[name]) or "nothing"
    if proof.equal:
        digest = proof.after.digest if verbose else f"{proof.after.digest[:_DIGITS]}…"
        yield Line.of(0, f"foreign state: {there}: unchanged (sha256 {digest})", "reason")
    else:
        yield Line.of(0, f"foreign state: {there}: somebody else changed it meanwhile", "bad")
        shown = proof.differences if verbose else proof.differences[:_MOST_LINES]
        yield from (Line.of(2, _difference(difference), "reason") for difference in shown)
        if len(shown) < len(proof.differences):
            more = f"… and {len(proof.differences) - len(shown)} more (-v or --output json shows all)"
            yield Line.of(2, more, "reason")
        if verbose:
            yield Line.of(2, f"sha256 before {proof.before.digest}", "reason")
            yield Line.of(2, f"sha256 after  {proof.after.digest}", "reason")
    if verbose and proof.unread:
        yield Line.of(0, "not compared of it", "title")
        yield from (Line.of(2, _unread(part), "reason") for part in proof.unread)


def _count(number: int, noun: str) -> str:
    return f"{number} addresses" if noun == "address" and number != 1 else count(number, noun)


def _where(part: Difference | Unread) -> str:
    words = (part.family and part.family.value, part.backend and part.backend.value, part.table)
    return " ".join(word for word in words if word)


def _difference(item: Difference) -> str:
    place = " ".join(word for word in (_where(item), item.chain if item.kind == "policy" else "") if word)
    kind = item.kind.replace("-", " ").replace("ipvs", "IPVS").replace("fou", "FOU")
    what = item.text if item.kind in {"rule", "policy"} else f"{kind} {item.text}"
    return escape(f"{item.change}: {place + ': ' if place else ''}{what}")


def _unread(part: Unread) -> str:
    where = _where(part)
    more = " (nobody changed it: the generation of nf_tables shows that)" if part.unchanged else ""
    return escape(f"{where + ': ' if where else ''}{part.what}{more}")
