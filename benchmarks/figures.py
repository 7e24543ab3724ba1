"""What is computed from samples; pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import attrs

__all__ = ["Ratio", "Rounds", "growth", "median", "ratio"]

Rounds = list[dict[str, dict[str, float]]]
"""What was measured in each round, by way and figure; times in seconds, memory in bytes."""


@attrs.frozen
class Ratio:
    """The ratio of two medians, and the smallest and the largest ratio of a round."""

    value: float
    low: float
    high: float


def median(rounds: Sequence[Mapping[str, Mapping[str, float]]], way: str, figure: str = "seconds") -> float | None:
    """Return the median of a figure over the rounds, None if it was not measured.

    >>> median([{"a": {"seconds": 1}}, {"a": {"seconds": 3}}, {"a": {"seconds": 2}}], "a")
    2
    """
    values = [samples[way][figure] for samples in rounds if figure in samples.get(way, {})]
    return statistics.median(values) if values else None


def ratio(rounds: Sequence[Mapping[str, Mapping[str, float]]], way: str, to: str) -> Ratio | None:
    """Return how long one way takes as a multiple of another, None if one was not measured.

    >>> ratio([{"a": {"seconds": 1}, "b": {"seconds": 2}}, {"a": {"seconds": 4}, "b": {"seconds": 2}}], "a", "b")
    Ratio(value=1.25, low=0.5, high=2.0)
    """
    above, below = median(rounds, way), median(rounds, to)
    if above is None or not below:
        return None
    each = [
        samples[way]["seconds"] / samples[to]["seconds"] for samples in rounds if way in samples and to in samples
    ]
    return Ratio(above / below, min(each), max(each))


def growth(small: float, large: float, small_size: float, large_size: float) -> float:
    """Return the exponent with which a time grows: 1 is as fast as the size, 2 as its square.

    >>> growth(1, 4, 10, 40)
    1.0
    """
    return math.log(large / small) / math.log(large_size / small_size)
