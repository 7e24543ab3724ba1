"""What is measured: each cell is a series, a backend and a size, and the ways to clean that are compared there."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable

import attrs

__all__ = [
    "ALL",
    "COMMAND",
    "FLOOR",
    "INNER_CHAINS",
    "LIBRARY",
    "QUICK_SIZES",
    "REFERENCE",
    "SIZES",
    "WAYS",
    "Cell",
    "select",
]

WAYS = LIBRARY, COMMAND, REFERENCE, FLOOR = "library", "command", "reference", "floor"
SIZES = (1_000, 10_000, 50_000, 200_000)
"""Rules in each family."""
QUICK_SIZES = (1_000, 10_000)
INNER_CHAINS = 5_000
"""Chains in each family in the series "inner", whose sizes are the rules in each of them."""

_REPETITIONS = 7


@attrs.frozen
class Cell:
    """A state of the kernel, and the ways to clean it that are timed."""

    series: str
    backend: str
    size: int
    ways: tuple[str, ...] = WAYS

    @property
    def name(self) -> str:
        """The name by which it is selected and recorded, such as owned/nft/50000."""
        return f"{self.series}/{self.backend}/{self.size}"

    def rounds(self, repeat: int | None) -> int:
        """Return how often it is measured."""
        return _REPETITIONS if repeat is None else repeat

    def order(self, turn: int) -> tuple[str, ...]:
        """Return the ways in the order of one round: another one begins each time."""
        start = turn % len(self.ways)
        return self.ways[start:] + self.ways[:start]


ALL = (
    Cell("nothing", "nft", 0, (LIBRARY, COMMAND, REFERENCE)),
    *(
        Cell(series, backend, size)
        for series in ("owned", "foreign")
        for backend in ("nft", "legacy")
        for size in SIZES
    ),
    *(Cell("inner", "nft", length, (LIBRARY, FLOOR)) for length in (2, 10)),
    Cell("sets", "ipset", 5_000, (LIBRARY, COMMAND, REFERENCE)),
)


def select(patterns: Iterable[str], *, quick: bool = False, ways: Collection[str] = ()) -> tuple[Cell, ...]:
    """Return the cells that fit one of the patterns, all if there is none: `owned`, `owned/nft`, `*/nft/10000`.

    With `ways`, only those of a cell are measured.
    """
    wanted = tuple(patterns) or ("*",)
    chosen = (
        attrs.evolve(cell, ways=tuple(way for way in cell.ways if way in (ways or WAYS)))
        for cell in ALL
        if any(fnmatch.fnmatchcase(cell.name, end) for one in wanted for end in (one, f"{one.rstrip('/')}/*"))
        and not (quick and not (cell.series in {"owned", "foreign"} and cell.size in QUICK_SIZES))
    )
    return tuple(cell for cell in chosen if cell.ways)
