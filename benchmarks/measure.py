"""Runs cells, each measurement in a process and a network namespace of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import state
from .cells import Cell
from .figures import Rounds

__all__ = ["Failed", "measure"]

_SECONDS = 900
_TOP = Path(__file__).parent.parent


class Failed(Exception):
    """A measurement was not what it should be; the text says which and why."""


def measure(cell: Cell, repeat: int | None = None) -> Rounds:
    """Measure a cell: in each round all ways, in turns. Raises Failed."""
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=_memory()) as name:
        folder = Path(name)
        left = state.prepare(cell, folder)
        rounds: Rounds = []
        for turn in range(cell.rounds(repeat)):
            began = time.monotonic()
            samples = {way: _step(cell, way, folder, left) for way in cell.order(turn)}
            rounds.append(samples)
            said = "  ".join(f"{way} {samples[way]['seconds']:.3f}" for way in cell.ways)
            _say(f"{cell.name} {turn + 1}/{cell.rounds(repeat)}: {said}  ({time.monotonic() - began:.0f} s in all)")
    return rounds


def _memory() -> str | None:
    """Return a folder in memory for the texts, if there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a new folder is made in it


def _step(cell: Cell, way: str, folder: Path, left: int) -> dict[str, float]:
    words = ["unshare", "--net", sys.executable, "-m", "benchmarks.step", cell.name, way, str(folder), str(left)]
    try:
        done = subprocess.run(  # noqa: S603 - the words are ours
            words, cwd=_TOP, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{cell.name}, {way}: not done after {_SECONDS} s") from None
    if done.returncode:
        raise Failed(f"{cell.name}, {way}: {done.stderr.strip()[-2000:]}")
    sample: dict[str, float] = json.loads(done.stdout)
    return {figure: round(value, 6) for figure, value in sample.items()}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
