"""Tables of what was measured, plain or for Markdown; pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .bars import BARS, MEGABYTE, Bar, Measured, exponent
from .cells import ALL, COMMAND, FLOOR, LIBRARY, REFERENCE, SIZES, WAYS
from .figures import Ratio, median, ratio

__all__ = ["bars_table", "growth_table", "markdown", "missed", "plain", "times_table"]

Table = Sequence[Sequence[str]]
"""Rows of cells, the heads first."""
_NOTHING = _DASH = "\N{EN DASH}"


def times_table(measured: Measured) -> Table:
    """Return the medians and the ratios of each cell."""
    heads = (
        "cell",
        "rounds",
        *WAYS,
        "rewrite",
        "library / reference",
        "command / reference",
        "library / floor",
        "peak memory",
    )
    rows: list[tuple[str, ...]] = [heads]
    for cell in ALL:
        rounds = measured.get(cell.name)
        if not rounds:
            continue
        peaks = [median(rounds, way, "peak") for way in (COMMAND, LIBRARY)]
        peak = next((one for one in peaks if one is not None), None)
        rows.append((
            cell.name,
            str(len(rounds)),
            *(_seconds(median(rounds, way)) for way in WAYS),
            _seconds(median(rounds, FLOOR, "rewrite")),
            _ratio(ratio(rounds, LIBRARY, REFERENCE)),
            _ratio(ratio(rounds, COMMAND, REFERENCE)),
            _ratio(ratio(rounds, LIBRARY, FLOOR)),
            _NOTHING if peak is None else f"{peak / MEGABYTE:.0f} MB",
        ))  # fmt: skip
    return rows


def growth_table(measured: Measured) -> Table:
    """Return the growth exponents from size to size, of what was measured at two sizes or more."""
    steps = [*pairwise(SIZES), (SIZES[1], SIZES[-1])]
    rows = [("growth exponent", "way", *(f"{small:,} → {large:,}" for small, large in steps))]
    for series in dict.fromkeys(f"{cell.series}/{cell.backend}" for cell in ALL if cell.size in SIZES):
        for way in WAYS:
            values = [exponent(measured, series, way, *step) for step in steps]
            if any(value is not None for value in values):
                rows.append((series, way, *(_NOTHING if value is None else f"{value:.2f}" for value in values)))
    return rows


def bars_table(measured: Measured, bars: Sequence[Bar] = BARS) -> Table:
    """Return the bars with what was measured of them; those of which nothing was are left out."""
    rows = [("bar", "at most", "measured", "")]
    for bar in bars:
        value = bar.value(measured)
        if value is not None:
            verdict = "pass" if value.value <= bar.limit else "MISS"
            digits = 0 if bar.unit == " MB" else 2
            rows.append((bar.text, f"{bar.limit:g}{bar.unit}", _ratio(value, bar.unit, digits), verdict))
    return rows


def missed(measured: Measured, bars: Sequence[Bar] = BARS) -> list[Bar]:
    """Return the bars that were measured and missed."""
    values = ((bar, bar.value(measured)) for bar in bars)
    return [bar for bar, value in values if value is not None and value.value > bar.limit]


def plain(table: Table) -> str:
    """Return a table for a terminal.

    >>> print(plain([("cell", "time"), ("a", "10 ms")]), end="")
    cell   time
    a     10 ms
    """
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        first, *rest = zip(row, widths, strict=True)
        lines.append("  ".join((f"{first[0]:<{first[1]}}", *(f"{word:>{width}}" for word, width in rest))).rstrip())
    return "".join(f"{line}\n" for line in lines)


def markdown(table: Table) -> str:
    """Return a table in Markdown; without rows nothing.

    >>> print(markdown([("cell", "time"), ("a", "10 ms")]), end="")
    | cell | time |
    | --- | --- |
    | a | 10 ms |
    """
    if len(table) < 2:
        return ""
    heads, *rows = table
    lines = (heads, ("---",) * len(heads), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _seconds(value: float | None) -> str:
    if value is None:
        return _NOTHING
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1000:.1f} ms" if value < 0.01 else f"{value * 1000:.0f} ms"


def _ratio(value: Ratio | None, unit: str = "", digits: int = 2) -> str:
    if value is None:
        return _NOTHING
    digits = 0 if value.value >= 100 else 1 if value.value >= 10 and digits else digits
    spread = "" if value.low == value.high else f" ({value.low:.{digits}f}{_DASH}{value.high:.{digits}f})"
    return f"{value.value:.{digits}f}{unit}{spread}"
