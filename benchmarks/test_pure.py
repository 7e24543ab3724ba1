"""Tests of what the benchmark computes and writes; run with `pytest benchmarks --doctest-modules`."""
# ruff: noqa: D103, S101

from __future__ import annotations

import ipaddress
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from firewall_cleanup.components.kube_router import KUBE_ROUTER

from . import nodes, plot, records, report
from .bars import BARS, Growth, Inner, Memory, Times
from .cells import ALL, Cell, select
from .figures import Ratio, Rounds, growth, median, ratio
from .floor_legacy import deletion_order

FAMILIES = ("ipv4", "ipv6")
OWNED = next(names.pattern for names in KUBE_ROUTER.chains if names.table == "filter")


def rounds(library: float, floor: float = 1.0, reference: float = 2.0, peak: float = 0.0) -> Rounds:
    one = {
        "library": {"seconds": library},
        "command": {"seconds": library, "peak": peak},
        "reference": {"seconds": reference},
        "floor": {"seconds": floor},
    }
    return [one, one]


def rules(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("-A ")]


def chains(text: str) -> list[str]:
    return [line.split()[0][1:] for line in text.splitlines() if line.startswith(":") and " - " in line]


def lengths_of_pods(text: str) -> list[int]:
    counts = Counter(rule.split()[1] for rule in rules(text))
    return [counts[chain] for chain in chains(text) if "POD-FW" in chain]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [1_000, 1_001, 10_000])
def test_owned_nodes_have_exactly_so_many_rules(family: str, size: int) -> None:
    text = nodes.owned(family, size)
    assert len(rules(text)) == size
    assert all(OWNED.fullmatch(chain) for chain in chains(text))
    assert len(chains(text)) == len(set(chains(text)))


@pytest.mark.parametrize("family", FAMILIES)
def test_chains_of_pods_have_two_to_ten_rules(family: str) -> None:
    text = nodes.owned(family, 10_000)
    lengths = lengths_of_pods(text)
    assert (min(lengths), max(lengths)) == (2, 10)
    assert 5.5 < sum(lengths) / len(lengths) < 6.5


@pytest.mark.parametrize("family", FAMILIES)
def test_nine_chains_of_ten_are_foreign(family: str) -> None:
    text, left = nodes.foreign(family, 10_000)
    own = [chain for chain in chains(text) if OWNED.fullmatch(chain)]
    assert 0.88 < 1 - len(own) / len(chains(text)) < 0.92
    assert len(rules(text)) == 10_000
    assert left == sum("KUBE" not in rule for rule in rules(text))


@pytest.mark.parametrize("length", [2, 10])
def test_inner_nodes_differ_only_inside_chains(length: int) -> None:
    text = nodes.owned_chains("ipv4", 50, length)
    assert lengths_of_pods(text) == [length] * 50


def test_sets_are_created_and_destroyed_by_name() -> None:
    created = re.findall(r"^create (\S+) .*family (\S+) ", nodes.sets(100), re.MULTILINE)
    assert len(dict(created)) == 100
    assert [family for _name, family in created].count("inet6") == 50
    assert nodes.destroy_lines(100).split() == [word for name, _family in created for word in ("destroy", name)]
    assert all(any(names.pattern.fullmatch(name) for names in KUBE_ROUTER.sets) for name, _family in created)
    first, last = re.findall(r"^add \S+ (\S+)-(\S+)$", nodes.sets(100), re.MULTILINE)[0]
    assert int(ipaddress.ip_address(last)) - int(ipaddress.ip_address(first)) + 1 == nodes.MEMBERS


def test_medians_and_ratios() -> None:
    three: Rounds = [{"a": {"seconds": a}, "b": {"seconds": b}} for a, b in ((1, 2), (3, 2), (8, 4))]
    assert median(three, "a") == 3
    assert median(three, "c") is None
    assert ratio(three, "a", "b") == Ratio(1.5, 0.5, 2.0)
    assert ratio([], "a", "b") is None
    assert growth(1, 100, 1_000, 10_000) == pytest.approx(2)


def test_bars() -> None:
    measured = {
        "owned/nft/10000": rounds(1),
        "owned/nft/200000": rounds(20, peak=151_000_000),
        "inner/nft/2": rounds(2, floor=1),
        "inner/nft/10": rounds(3, floor=2),
    }
    assert Times("owned/nft/10000", "library", "reference", 0.5, "pipeline").value(measured) == Ratio(0.5, 0.5, 0.5)
    exponent = Growth("owned/nft", 10_000, 200_000, 1.1).value(measured)
    assert exponent is not None
    assert exponent.value == pytest.approx(1)
    assert Inner("inner/nft/2", "inner/nft/10", 1).value(measured) == Ratio(0.75, 0.75, 0.75)
    memory = Memory("owned/nft/200000", 150)
    assert memory.value(measured) == Ratio(151, 151, 151)
    assert Memory("owned/nft/1000", 150).value(measured) is None
    assert report.missed(measured, [memory]) == [memory]
    assert report.bars_table(measured, [memory])[1][2:] == ("151 MB", "MISS")


def test_every_bar_names_cells_that_exist() -> None:
    measured = {cell.name: rounds(1, peak=1) for cell in ALL}
    assert all(bar.value(measured) is not None for bar in BARS)


def test_cells_are_selected() -> None:
    assert [cell.name for cell in select(["owned/nft/50000"])] == ["owned/nft/50000"]
    assert {cell.backend for cell in select(["owned"])} == {"nft", "legacy"}
    assert {cell.size for cell in select([], quick=True)} == {1_000, 10_000}
    assert select(["nonsense"]) == ()
    assert select([]) == ALL
    assert {cell.ways for cell in select(["owned"], ways=["floor"])} == {("floor",)}


def test_each_way_begins_a_round() -> None:
    cell = Cell("owned", "nft", 1)
    assert [cell.order(turn)[0] for turn in range(4)] == list(cell.ways)
    assert all(set(cell.order(turn)) == set(cell.ways) for turn in range(4))


def test_deletion_order_keeps_an_entry_in_each_bucket() -> None:
    names = [b"%05d" % number for number in range(1_000)]
    order = deletion_order(names)
    assert sorted(order) == names
    left = sorted(set(names) - set(order[:950]))
    assert left == names[::20]


def test_results_come_back_from_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    measured = {cell.name: rounds(cell.size + 1, peak=1) for cell in ALL}
    facts = {"cpu": "one"}
    records.write(tmp_path / "results.json", facts, measured)
    assert records.read(tmp_path / "results.json") == (facts, measured)
    page = tmp_path / "page.md"
    page.write_text(records.PAGE.read_text())
    records.render(facts, measured, page)
    once = page.read_text()
    assert "Measured on: cpu one." in once
    assert "| owned/nft/50000 |" in once
    picture = page.with_suffix(".svg").read_bytes()
    records.render(facts, measured, page)
    assert (page.read_text(), page.with_suffix(".svg").read_bytes()) == (once, picture)


def test_the_plot_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(plot.MissingLibrary, match="--group bench"):
        plot.find()
