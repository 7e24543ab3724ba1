"""The plot of docs/performance.md; the one module that needs matplotlib."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from .bars import Measured
from .cells import COMMAND, FLOOR, LIBRARY, REFERENCE, SIZES
from .figures import median

__all__ = ["MissingLibrary", "draw", "find"]

_LINES = {
    REFERENCE: ("shell pipeline", "#888888", "s"),
    COMMAND: ("command", "#d55e00", "^"),
    LIBRARY: ("library", "#0072b2", "o"),
    FLOOR: ("kernel floor", "#222222", "v"),
}


class MissingLibrary(Exception):
    """matplotlib is not installed."""


def find() -> Any:
    """Return matplotlib. Raises MissingLibrary."""
    try:
        return importlib.import_module("matplotlib")
    except ImportError:
        raise MissingLibrary("the plot needs matplotlib: pip install --group bench") from None


def draw(measured: Measured, path: Path) -> None:
    """Write the plot: one panel for each series and backend, times over rules, both axes logarithmic."""
    library = find()
    library.use("svg")
    # The same samples give the same file.
    library.rcParams.update({"svg.hashsalt": "performance", "svg.fonttype": "none", "font.size": 9})
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, rows = pyplot.subplots(2, 2, figsize=(9, 7), sharex=True, sharey=True, layout="constrained")
    for series, row in zip(("owned", "foreign"), rows, strict=True):
        for backend, axes in zip(("nft", "legacy"), row, strict=True):
            _panel(axes, measured, f"{series}/{backend}")
    for axes in rows[1]:
        axes.set_xlabel("rules in each family")
    for row in rows:
        row[0].set_ylabel("seconds, both families")
    rows[0][0].legend()
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    # matplotlib leaves blanks at the ends of lines.
    path.write_text("".join(f"{line.rstrip()}\n" for line in path.read_text().splitlines()))


def _panel(axes: Any, measured: Measured, name: str) -> None:
    for way, (label, colour, marker) in _LINES.items():
        times = [(size, median(measured.get(f"{name}/{size}", []), way)) for size in SIZES]
        known = [(size, seconds) for size, seconds in times if seconds is not None]
        if known:
            axes.plot(*zip(*known, strict=True), label=label, color=colour, marker=marker, markersize=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_title(name)
    axes.grid(visible=True, which="major", alpha=0.3)
