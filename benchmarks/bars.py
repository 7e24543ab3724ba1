"""The bars: what a cleanup must reach, as data, and what was measured of it; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from .cells import COMMAND, FLOOR, LIBRARY, REFERENCE, SIZES
from .figures import Ratio, Rounds, growth, median, ratio

__all__ = ["BARS", "Bar", "Growth", "Inner", "Measured", "Memory", "Times", "exponent"]

Measured = Mapping[str, Rounds]
"""Rounds by the name of the cell."""
MEGABYTE = 1_000_000
TIMES = "\N{MULTIPLICATION SIGN}"


class Bar(Protocol):
    """A limit, and how to compute what must not exceed it."""

    @property
    def text(self) -> str:
        """What is limited."""

    @property
    def limit(self) -> float:
        """The largest value that passes."""

    @property
    def unit(self) -> str:
        """What follows a value."""

    def value(self, measured: Measured) -> Ratio | None:
        """Return the value with its spread; None if it was not measured."""


@attrs.frozen
class Times:
    """How long one way may take, as a multiple of another."""

    cell: str
    way: str
    to: str
    limit: float
    meaning: str
    unit: str = TIMES

    @property
    def text(self) -> str:
        """What is limited."""
        return f"{self.cell}: {self.way} / {self.meaning}"

    def value(self, measured: Measured) -> Ratio | None:
        """Return the ratio of the medians, and those of the rounds."""
        return ratio(measured.get(self.cell, []), self.way, self.to)


@attrs.frozen
class Growth:
    """How fast the time of the library may grow with the number of rules."""

    series: str
    small: int
    large: int
    limit: float
    unit: str = ""

    @property
    def text(self) -> str:
        """What is limited."""
        return f"{self.series}: growth exponent of the library, {self.small:,} to {self.large:,} rules"

    def value(self, measured: Measured) -> Ratio | None:
        """Return the exponent; it has no spread of its own."""
        return _alone(exponent(measured, self.series, LIBRARY, self.small, self.large))


@attrs.frozen
class Inner:
    """Whether rules inside owned chains cost more than what the kernel needs to free them."""

    few: str
    many: str
    limit: float
    unit: str = TIMES

    @property
    def text(self) -> str:
        """What is limited."""
        return f"{self.many} against {self.few} (rules in each chain): growth of library / floor"

    def value(self, measured: Measured) -> Ratio | None:
        """Return the ratio of the two ratios."""
        few, many = (ratio(measured.get(name, []), LIBRARY, FLOOR) for name in (self.few, self.many))
        return _alone(many.value / few.value if few and many else None)


@attrs.frozen
class Memory:
    """How much memory the whole process of the command may need."""

    cell: str
    limit: float
    unit: str = " MB"

    @property
    def text(self) -> str:
        """What is limited."""
        return f"{self.cell}: peak memory of the command"

    def value(self, measured: Measured) -> Ratio | None:
        """Return the median of the peaks."""
        peak = median(measured.get(self.cell, []), COMMAND, "peak")
        return _alone(None if peak is None else peak / MEGABYTE)


def exponent(measured: Measured, series: str, way: str, small: int, large: int) -> float | None:
    """Return the growth exponent of a way between two sizes, None if they were not measured."""
    times = [median(measured.get(f"{series}/{size}", []), way) for size in (small, large)]
    return growth(times[0], times[1], small, large) if times[0] and times[1] else None


def _alone(value: float | None) -> Ratio | None:
    return None if value is None else Ratio(value, value, value)


def _against(cell: str, way: str, limit: float, meaning: str = "pipeline") -> Times:
    return Times(cell, way, REFERENCE, limit, meaning)


BARS: tuple[Bar, ...] = (
    _against("owned/nft/50000", LIBRARY, 0.35),
    _against("owned/nft/50000", COMMAND, 0.75),
    Times("owned/nft/50000", LIBRARY, FLOOR, 2.5, "floor"),
    _against("owned/legacy/50000", LIBRARY, 0.80),
    _against("owned/legacy/50000", COMMAND, 1.3),
    *(
        _against(f"foreign/{backend}/{size}", LIBRARY, 1.0)
        for backend in ("nft", "legacy")
        for size in SIZES
    ),
    *(
        Growth(f"{series}/{backend}", 10_000, 200_000, 1.1)
        for series in ("owned", "foreign")
        for backend in ("nft", "legacy")
    ),
    Inner("inner/nft/2", "inner/nft/10", 1.0),
    _against("sets/ipset/5000", LIBRARY, 2.0, "ipset restore"),
    _against("nothing/nft/0", COMMAND, 8.0, "import attrs"),
    Memory("owned/nft/200000", 150),
    Memory("owned/legacy/200000", 300),
)  # fmt: skip
