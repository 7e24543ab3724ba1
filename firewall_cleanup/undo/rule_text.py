"""Rules as lines of `iptables-save -c`: taken apart by chain, compared, and put back in their places."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher

import attrs

from ..rules import is_open, logical_lines, parse_rule

__all__ = ["ForeignChain", "TableText", "is_same", "missing_counts", "placed", "read_save", "without_counters"]

_COUNTERS = re.compile(r"\[\d+:\d+\] ")
_COUNTED = re.compile(r"\[(\d+):(\d+)\] (-[AI]) (\S+) ?(.*)", re.DOTALL)
_RULE = re.compile(r"(?:\[\d+:\d+\] )?-[AI] ([^ ]+)(?: |$)")
_INSERTED = re.compile(r"(\[\d+:\d+\] )?-I (\S+) (\d+) (.*)", re.DOTALL)


@attrs.frozen
class TableText:
    """A table as text: policies (`DROP [1:60]`) of its built-in chains, and all chains with their `-A` lines."""

    policies: Mapping[str, str] = attrs.field(factory=dict)
    chains: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)


@attrs.frozen
class ForeignChain:
    """Somebody else's chain as it was: all its rules, and the places (from 0) of those that were removed."""

    rules: tuple[str, ...]
    removed: tuple[int, ...]

    @property
    def neighbours(self) -> tuple[str, ...]:
        """The rules that stayed."""
        gone = set(self.removed)
        return tuple(line for i, line in enumerate(self.rules) if i not in gone)

    def insertions(self) -> Iterator[str]:
        """Yield a `-I CHAIN NUMBER` line for each removed rule, right when done in this order."""
        for i in self.removed:
            yield inserted(self.rules[i], i + 1)

    @classmethod
    def of(cls, neighbours: Iterable[str], insertions: Iterable[str]) -> ForeignChain:
        """Return the chain that these insertions make of its neighbours. Raises ValueError for another line."""
        rules, removed = list(neighbours), []
        for line in insertions:
            found = _INSERTED.fullmatch(line)
            if found is None:
                raise ValueError(f"expected -I CHAIN NUMBER: {line}")
            counters, chain, number, rest = found.groups()
            removed.append(min(int(number) - 1, len(rules)))
            rules.insert(removed[-1], f"{counters or ''}-A {chain} {rest}")
        return cls(tuple(rules), tuple(removed))


def inserted(line: str, number: int) -> str:
    """Return an `-A` line as one that inserts the rule at a place, from 1."""
    before, _, rest = line.partition("-A ")
    chain, _, rule = rest.partition(" ")
    return f"{before}-I {chain} {number} {rule}"


def without_counters(line: str) -> str:
    """Return a line of a rule without its counters."""
    found = _COUNTERS.match(line)
    return line[found.end() :] if found else line


@functools.lru_cache(maxsize=1 << 16)
def _meaning(line: str) -> object:
    try:
        return parse_rule(line)
    except ValueError:
        return line


def is_same(one: Sequence[str], other: Sequence[str]) -> bool:
    """Tell whether two lists of lines are the same rules, whatever they counted and however they are written."""
    if len(one) != len(other):
        return False
    pairs = zip(map(without_counters, one), map(without_counters, other), strict=True)
    return all(a == b or _meaning(a) == _meaning(b) for a, b in pairs)


def read_save(text: str) -> dict[str, TableText]:
    """Return the tables of what `iptables-save -c` prints, or of a backup's file, by name; `-I` lines included.

    A rule whose comment holds line breaks is one line here, too. Raises ValueError for what is no such line.
    """
    tables: dict[str, TableText] = {}
    policies: dict[str, str] = {}
    chains: dict[str, list[str]] = {}
    name = None
    for number, line in logical_lines(text):
        rule = _RULE.match(line)
        if line.startswith("*"):
            name, policies, chains = line[1:].strip(), {}, {}
        elif line.startswith(":"):
            chain, _, policy = line[1:].partition(" ")
            chains[chain] = []
            if not policy.startswith("-"):
                policies[chain] = policy
        elif line == "COMMIT" and name is not None:
            tables[name] = TableText(policies, {chain: tuple(lines) for chain, lines in chains.items()})
        elif rule is not None and not is_open(line):
            chains.setdefault(rule[1], []).append(line)
        elif not line.startswith("#"):
            raise ValueError(f"line {number} is none of iptables-save: {line[:80]}")
    return tables


def missing_counts(
    lines: Iterable[str], chains: Mapping[str, Sequence[str]]
) -> dict[str, dict[int, tuple[int, int]]]:
    """Return what rules that were put back by these lines should have counted and have not, by chain and index."""
    result: dict[str, dict[int, tuple[int, int]]] = {}
    lengths: Counter[str] = Counter()
    for line in lines:
        counters = _COUNTED.match(line)
        if counters is None:
            continue
        packets, octets, verb, chain, rest = counters.groups()
        if verb == "-A":
            index, rule = lengths[chain], rest
            lengths[chain] += 1
        else:
            number, _, rule = rest.partition(" ")
            index = int(number) - 1
        there = chains.get(chain, ())
        if index >= len(there) or not is_same([f"-A {chain} {rule}"], [there[index]]):
            continue  # somebody moved it
        counted = _COUNTED.match(there[index])
        if counted is not None and int(counted[1]) < int(packets):
            result.setdefault(chain, {})[index] = (int(packets), int(octets))
    return result


def placed(chain: Sequence[str], wanted: Sequence[ForeignChain]) -> list[tuple[int, str, bool]]:
    """Find the places of removed rules in a chain as it is now; `wanted` are states of it, the newest first.

    Each stands after the neighbour before it, or before the one behind it, that is still there.

    Returns:
        For each removed rule its place (from 0) in the chain with all of them, its line, and whether it is there.

    """
    slots = [_Slot(line, _meaning(without_counters(line))) for line in chain]
    for state in wanted:
        _place(slots, state)
    return [(i, slot.line, not slot.new) for i, slot in enumerate(slots) if slot.wanted is not None]


@attrs.define(eq=False)
class _Slot:
    line: str
    meaning: object
    new: bool = False
    wanted: bool | None = None


def _place(slots: list[_Slot], state: ForeignChain) -> None:
    meanings = [_meaning(without_counters(line)) for line in state.rules]
    found = _matching(meanings, state.removed, slots)
    removed = [i for i in state.removed if i not in found]
    # A rule that stands elsewhere by now was put there by somebody: there is no need for another one.
    taken = {id(slot) for slot in found.values()}
    spare = [slot for slot in slots if id(slot) not in taken]
    counts = Counter(slot.meaning for slot in spare)
    for i in removed:
        if counts[meanings[i]] > 0:
            counts[meanings[i]] -= 1
            slot = next(slot for slot in spare if slot.meaning == meanings[i] and id(slot) not in taken)
            taken.add(id(slot))
            slot.wanted = True
        else:
            slot = _Slot(state.rules[i], meanings[i], new=True, wanted=True)
            slots.insert(_where(i, found, slots), slot)
            found[i] = slot
    for i in state.removed:
        if i in found:
            found[i].wanted = True


def _where(place: int, found: Mapping[int, _Slot], slots: list[_Slot]) -> int:
    before = max((i for i in found if i < place), default=None)
    if before is not None:
        return slots.index(found[before]) + 1
    behind = min((i for i in found if i > place), default=None)
    return min(place, len(slots)) if behind is None else slots.index(found[behind])


def _matching(meanings: list[object], removed: Sequence[int], slots: list[_Slot]) -> dict[int, _Slot]:
    """Return which slot holds which rule of a state, in order, as far as they still agree."""
    numbers: dict[object, int] = {}
    # By number: comparing rules is slow.
    wanted = [numbers.setdefault(meaning, len(numbers)) for meaning in meanings]
    present = [numbers.setdefault(slot.meaning, len(numbers)) for slot in slots]
    found = _with_others_between(wanted, set(removed), present)
    if found is None:
        blocks = SequenceMatcher(None, wanted, present, autojunk=False).get_matching_blocks()
        found = {a + i: b + i for a, b, size in blocks for i in range(size)}
    return {i: slots[place] for i, place in found.items()}


def _with_others_between(wanted: list[int], removed: set[int], present: list[int]) -> dict[int, int] | None:
    """Match a state with what is there if all that stayed is still there in its order, else return None.

    This is exact where a chain has the same rule many times, of which a search for the longest block picks any.
    """
    gone = {wanted[i] for i in removed}
    rest = (place for place, number in enumerate(present) if number not in gone)
    found: dict[int, int] = {}
    for i, number in enumerate(wanted):
        if i not in removed:
            place = next((place for place in rest if present[place] == number), None)
            if place is None:
                return None
            found[i] = place
    # What was removed may be there again, between the same neighbours.
    end = len(present)
    for i in range(len(wanted) - 1, -1, -1):
        if i in found:
            end = found[i]
        elif end and present[end - 1] == wanted[i]:
            end -= 1
            found[i] = end
    return found
