"""What the measurements were made on and with."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from pathlib import Path

from firewall_cleanup import __version__

__all__ = ["describe", "line"]

_TOOLS = {
    "iptables": ["iptables-nft", "--version"], "ipset": ["ipset", "--version"], "nft": ["nft", "--version"],
}  # fmt: skip


def describe() -> dict[str, str]:
    """Return facts by name."""
    facts = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "firewall-cleanup": __version__,
        "cpu": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release().partition("-")[0],  # without what a distribution calls its build
        "python": platform.python_version(),
    }
    for name, words in _TOOLS.items():
        facts[name] = _version(words)
    return facts


def line(facts: dict[str, str]) -> str:
    """Return the facts in a sentence."""
    return "; ".join(f"{name} {value}" for name, value in facts.items())


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(words: list[str]) -> str:
    try:
        said = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False).stdout  # noqa: S603
    except FileNotFoundError:
        return "none"
    return next((word.strip("v,") for word in said.split() if word.strip("v,")[:1].isdigit()), "unknown")
