"""Laws of where the rules of a backup come back to; those over whole nodes are in tests/namespace."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from firewall_cleanup.undo.rule_text import ForeignChain, inserted, is_same, placed

pytestmark = pytest.mark.property

lines = st.integers(0, 6).map(lambda n: f"[{n}:{n}] -A INPUT -p tcp -m tcp --dport {n} -j ACCEPT")


@st.composite
def chains(draw: st.DrawFn) -> ForeignChain:
    """A chain of which some rules were removed; of rules that are alike all were, as owned is what they are."""
    rules = draw(st.lists(lines, max_size=12))
    owned = draw(st.sets(lines))
    return ForeignChain(tuple(rules), tuple(i for i, line in enumerate(rules) if line in owned))


def done(current: Sequence[str], states: Sequence[ForeignChain]) -> list[str]:
    """The chain after the insertions, as `iptables-restore` does them one by one."""
    result = list(current)
    for i, line, is_there in placed(current, states):
        if not is_there:
            result.insert(i, line)
    return result


def alike(*numbers: int, removed: tuple[int, ...]) -> ForeignChain:
    return ForeignChain(tuple(f"[0:0] -A INPUT -p tcp -m tcp --dport {n} -j ACCEPT" for n in numbers), removed)


# The same rule many times, of which any could be the neighbour.
@example(state=alike(0, 1, 0, 0, removed=(1,)))
@example(state=alike(1, 0, 2, 0, 0, 3, removed=(0, 2, 5)))
@given(state=chains())
def test_rules_come_back_to_their_places(state: ForeignChain) -> None:
    assert done(state.neighbours, [state]) == list(state.rules)


@given(state=chains())
def test_a_file_holds_the_whole_chain(state: ForeignChain) -> None:
    assert ForeignChain.of(state.neighbours, state.insertions()) == state


@given(state=chains(), current=st.lists(lines, max_size=12))
def test_nobody_elses_rules_move_and_twice_is_once(state: ForeignChain, current: list[str]) -> None:
    """Whatever the chain is now: all its rules stay in their order, and a second restore finds nothing to do."""
    result = done(current, [state])
    rest = iter(result)
    assert all(line in rest for line in current)
    assert done(result, [state]) == result
    assert len(placed(result, [state])) == len(state.removed)


@given(rules=st.lists(lines, max_size=12), owned=st.lists(st.sets(lines), max_size=3))
def test_several_runs_are_one(rules: list[str], owned: list[set[str]]) -> None:
    """Rules that went in several runs, the newest of which comes first, come back to their places all the same."""
    left, runs = rules, []
    for some in owned:
        gone = tuple(i for i, line in enumerate(left) if line in some)
        runs.append(ForeignChain(tuple(left), gone))
        left = list(runs[-1].neighbours)
    assert is_same(done(left, runs[::-1]), rules)


@given(line=lines, number=st.integers(1, 9))
def test_an_insertion_is_the_same_rule(line: str, number: int) -> None:
    assert inserted(line, number).replace(f"-I INPUT {number} ", "-A INPUT ") == line
