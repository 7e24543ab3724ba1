"""Laws of the script of a plan over generated nodes: what it removes is what the plan has, and each as often."""

from __future__ import annotations

import shlex
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firewall_cleanup import Backend, CleanupReport, Controller, Family, Kind, Status
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.engine import Settings, run
from firewall_cleanup.rules import tokenize
from firewall_cleanup.script import script
from firewall_cleanup.testing import strategies
from firewall_cleanup.testing.strategies import Scenario

pytestmark = pytest.mark.property

FAMILIES = {"iptables": Family.IPV4, "ip6tables": Family.IPV6}


def read(text: str) -> Counter[object]:
    """What a script removes, in the terms of a report, read as a shell would."""
    found: Counter[object] = Counter()
    lines = iter(text.partition("\nbegin\n")[2].partition("\n}\n")[0].split("\n"))
    where: tuple[object, ...] = ()

    def names() -> list[str]:
        return list(iter(lambda: next(lines), "END"))

    for line in lines:
        words = shlex.split(line, comments=True)
        while words and words[0] in {"proves", "using"}:
            del words[: 2 if words[0] == "using" else 1]
        match words:
            case ["table", program, backend, table]:
                where = FAMILIES[program], Backend(backend), table
            case ["chains", _]:
                found.update((Kind.CHAIN, *where, name) for name in names())
            case ["emptied", _]:
                names()
            case ["rule", number, chain, *rest] | ["jump", _, number, chain, *rest]:
                found[Kind.RULE, *where, chain, tuple(rest)] += int(number)
            case ["nft_tables", _]:
                found.update((Kind.TABLE, name.split()[1]) for name in names())
            case ["sets", _]:
                found.update((Kind.SET, name) for name in names())
            case [] | ["commit"] | ["list_sets"] | ["finish", _]:
                pass
            case _:
                raise AssertionError(line)
    return found


def planned(report: CleanupReport) -> Counter[object]:
    found: Counter[object] = Counter()
    for item in report.outcomes:
        if item.status is Status.PLANNED:
            where = (item.family, item.backend, item.table)
            if item.kind is Kind.CHAIN:
                found[Kind.CHAIN, *where, item.name] += 1
            elif item.kind is Kind.RULE:
                words = tuple(word for word, _quoted in tokenize(item.text or ""))
                found[Kind.RULE, *where, item.name, words[2:]] += 1
            else:
                found[item.kind, item.name] += 1
    return found


@given(
    strategies.mixed_nodes(holders=True),
    st.sets(st.sampled_from(tuple(Controller)), min_size=1).map(frozenset),
)
def test_it_removes_what_is_planned(scenario: Scenario, chosen: frozenset[Controller]) -> None:
    """No more and no less, whatever is around it; and where something would be left, it will end with status 1."""
    report = run(scenario.host(), KUBE_ROUTER, chosen, Settings(dry_run=True))
    text = script([report])
    assert read(text) == planned(report)
    assert f"\nfinish {len(report.residue)}\n" in text


@given(strategies.foreign_nodes())
def test_of_a_foreign_node_it_removes_nothing(scenario: Scenario) -> None:
    report = run(scenario.host(), KUBE_ROUTER, frozenset(Controller), Settings(dry_run=True))
    assert not read(script([report]))
