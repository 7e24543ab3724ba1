"""The work of a run, counted: what it asks the kernel, what comes back, what it starts and imports.

A guard against regressions that needs no clock: the numbers are those of one node, and may go up only for a reason.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scenes import Scene

from firewall_cleanup import Backend, Family
from firewall_cleanup.testing.foreign import foreign_nft, foreign_rules, foreign_sets
from firewall_cleanup.testing.namespaces import Sandbox
from firewall_cleanup.testing.node import Node

pytestmark = pytest.mark.namespace

COUNTING = Path(__file__).with_name("counting.py")
NODE = Node(pods=20)

# A cleanup of that node among neighbours, and a second run that finds nothing to do. Kernels differ in what they tell
# of an object, so bytes are rounded up.
LINKS = {"route sent messages": 22, "route received messages": 40, "generic sent messages": 3}
MOST = {
    Backend.NFT: {
        **LINKS,
        "netfilter sent messages": 342,
        "netfilter sent bytes": 18_404,
        "netfilter received messages": 1_290,
        "netfilter received bytes": 330_000,
        "destroys": 34,
    },
    Backend.LEGACY: {
        **LINKS,
        "netfilter sent messages": 14,
        "netfilter received messages": 160,
        "netfilter received bytes": 25_000,
        "legacy get 65": 22,  # 8 tables at first, 8 at last, 6 before they are written
        "legacy set 64": 6,
        "legacy set 64 bytes": 170_000,
        "legacy set 65": 6,
        "destroys": 34,
    },
}
MOST_AGAIN = {
    Backend.NFT: {"netfilter sent messages": 41, "netfilter received messages": 440, "route sent messages": 11},
    Backend.LEGACY: {"netfilter sent messages": 7, "legacy get 65": 8, "route sent messages": 11},
}


def counted(sandbox: Sandbox, backend: Backend) -> dict[str, Any]:
    """What a cleanup of the namespace did."""
    words = [sys.executable, str(COUNTING), *([backend.value] if backend is Backend.LEGACY else [])]
    result: dict[str, Any] = json.loads(sandbox.run(words).stdout)
    assert result["clean"]
    return result


def excess(work: dict[str, int], most: dict[str, int]) -> dict[str, tuple[int, int]]:
    """What is more than it may be; nothing may be counted that is not foreseen."""
    found = Counter(work)
    unknown = {name: (found[name], 0) for name in found if name.split()[0] not in {n.split()[0] for n in most}}
    return {name: (found[name], limit) for name, limit in most.items() if found[name] > limit} | unknown


@pytest.mark.parametrize("backend", Backend)
def test_work_of_a_cleanup(new_sandbox: Callable[..., Sandbox], backend: Backend):
    sandbox = new_sandbox()
    Scene(NODE, backend).load(sandbox)
    first, again = counted(sandbox, backend), counted(sandbox, backend)
    assert (first["changed"], again["changed"]) == (True, False)
    assert excess(first["work"], MOST[backend]) == {}
    assert excess(again["work"], {**MOST[backend], **MOST_AGAIN[backend], "legacy set 64": 0, "destroys": 0}) == {}
    assert first["work"].get("processes", 0) == 0


@pytest.mark.parametrize("backend", Backend)
def test_rules_inside_owned_chains_cost_nothing(new_sandbox: Callable[..., Sandbox], backend: Backend):
    """Twelve times as many of them, and not a message more."""
    works = []
    for times in (1, 12):
        sandbox = new_sandbox()
        sandbox.load_sets(NODE.ipsets())
        for family in Family:
            text = NODE.iptables_save(family.value)
            inside = re.compile(r"^-A KUBE-(?:POD-FW|NWPLCY)-.*\n", re.MULTILINE)
            sandbox.load_rules(inside.sub(lambda line: line[0] * times, text), family, backend)  # noqa: B023
        works.append(counted(sandbox, backend)["work"])
    few, many = works
    sizes = {name for name in few if name.startswith("netfilter received") or name.endswith("bytes")}
    assert {n: c for n, c in many.items() if n not in sizes} == {n: c for n, c in few.items() if n not in sizes}
    if backend is Backend.NFT:
        assert many == few
    else:  # what is written back has none of them
        assert many["legacy set 64 bytes"] == few["legacy set 64 bytes"]


@pytest.mark.parametrize("backend", Backend)
def test_work_grows_with_owned_chains_alone(new_sandbox: Callable[..., Sandbox], backend: Backend):
    """Two messages to remove a chain, one to read it; nothing grows with the square."""
    works = []
    for pods in (20, 40, 60):
        sandbox = new_sandbox()
        for family in Family:
            sandbox.load_rules(without_sets(Node(pods=pods).iptables_save(family.value)), family, backend)
        works.append(Counter(counted(sandbox, backend)["work"]))
    first, second, third = works
    for name in third:
        if "bytes" not in name and "calls" not in name:
            assert third[name] - second[name] <= 1.3 * (second[name] - first[name]) + 4, name


def without_sets(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if "--match-set" not in line)


def test_nothing_to_do(new_sandbox: Callable[..., Sandbox]):
    """No chain of others is read, nothing started; what only some nodes need is not imported."""
    sandbox = new_sandbox()
    sandbox.load_sets(foreign_sets())
    sandbox.load_tables(foreign_nft())
    for family in Family:
        sandbox.load_rules(foreign_rules(family.value, "nft"), family, Backend.NFT)
    result = counted(sandbox, Backend.NFT)
    assert not result["changed"]
    assert excess(result["work"], {**MOST_AGAIN[Backend.NFT], "generic sent messages": 2}) == {}
    costly = {
        "pyroute2",
        "iptc",
        "ctypes",
        "subprocess",
        "shutil",
        "hashlib",
        "concurrent.futures",
        "hypothesis",
        "rich",
    }
    assert costly.isdisjoint(name for names in result["imported"].values() for name in names)
    assert sum(len(names) for names in result["imported"].values()) <= 105
