"""Everything of the selected controllers goes; everything else stays as it was, counters and order included."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from scenes import ALL, NODES, SELECTIONS, Scene, clean, generation, problems, without_counters

from firewall_cleanup import Backend, Controller, Family, Status
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace


# The newer iptables writes the same rules in other words: one variant in all selections, and all variants whole.
CASES = [
    (tools, variant, selection)
    for tools in ("nft", "nft-newer", "legacy")
    for variant in NODES
    for selection in SELECTIONS
    if tools != "nft-newer" or variant == "default" or selection == "all"
]


@pytest.mark.parametrize(("tools", "variant", "selection"), CASES, indirect=["tools"])
def test_what_is_left_is_what_was_not_selected(new_sandbox: Callable[..., Sandbox], tools, variant, selection):
    scene, selected = Scene(NODES[variant], tools.backend), SELECTIONS[selection]
    expected = scene.load(new_sandbox(tools.folder), gone=selected)
    sandbox = new_sandbox(tools.folder)
    before = scene.load(sandbox)
    assert before != expected

    report = clean(sandbox, selected)

    assert problems(report) == []
    assert report.changed
    assert {outcome.status for outcome in report.outcomes} == {Status.REMOVED}
    assert {outcome.controller for outcome in report.outcomes} == {*selected, None}
    after = sandbox.state()
    assert after == expected
    for save in before.rules:
        lines = iter(before.rules[save].splitlines())
        assert all(line in lines for line in after.rules[save].splitlines()), "the order changed"

    again = clean(sandbox, selected)
    assert (again.changed, again.outcomes, again.exit_code) == (False, (), 0)
    assert sandbox.state() == expected


def test_neighbours_alone_are_what_is_left_of_neighbours_and_node(new_sandbox: Callable[..., Sandbox], tools):
    scene = Scene(NODES["default-deny"], tools.backend)
    alone = new_sandbox(tools.folder)
    expected = scene.load(alone, gone=ALL)
    # The comparison means something: all of it is there and counts.
    for family in Family:
        lines = expected.lines(tools.backend, family)
        policies = [line for line in lines if line.startswith(":") and line.split()[1] != "-"]
        assert any(" DROP " in line for line in policies)
        assert all(without_counters(line) != line and not line.endswith("[0:0]") for line in policies)
        rules = [line for line in lines if line.startswith("[")]
        assert len(rules) > 20
        if tools.folder or (tools.backend, family) != (Backend.NFT, Family.IPV6):  # ip6tables-nft 1.8.9 drops them
            assert not any(line.startswith("[0:0]") for line in rules)
        assert any("KUBE-" in line for line in rules), "no trap"
    assert expected.sets.count("create ") > 2
    assert expected.native

    assert clean(alone).outcomes == ()
    assert alone.state() == expected


@pytest.mark.parametrize("family", Family)
def test_one_family(new_sandbox: Callable[..., Sandbox], tools, family):
    scene = Scene(NODES["default"], tools.backend)
    wanted, sandbox = new_sandbox(tools.folder), new_sandbox(tools.folder)
    expected = scene.load(wanted, gone=ALL)
    before = scene.load(sandbox)
    other = next(other for other in Family if other is not family)
    word = " family inet6 " if other is Family.IPV6 else " family inet "
    names = [line.split()[1] for line in before.sets.splitlines() if line.startswith("create ") and word in line]

    report = clean(sandbox, families=[family])

    assert problems(report) == []
    assert set(report.families) == {family}
    assert {outcome.family for outcome in report.outcomes} == {family}
    after = sandbox.state()
    for backend in Backend:
        assert after.lines(backend, other) == before.lines(backend, other)
        assert after.lines(backend, family) == expected.lines(backend, family)
    kept = {line for line in before.sets.splitlines() if line.split()[1] in names}
    assert set(after.sets.splitlines()) == {*expected.sets.splitlines(), *kept}
    assert not clean(sandbox, families=[family]).changed


def test_counters_that_packets_made(sandbox: Sandbox, backend: Backend):
    """Rules of both families that have counted; in the order and with the numbers that they had."""
    scene = Scene(NODES["default"], backend)
    sandbox.run(["ip", "link", "set", "lo", "up"])
    scene.load(sandbox)
    sandbox.run([sys.executable, "-c", _SEND])
    before = sandbox.state()
    assert problems(clean(sandbox)) == []
    after = sandbox.state()
    assert not clean(sandbox).changed
    for family in Family:
        own = {without_counters(line) for line in scene.node.iptables_save(family.value).splitlines()}
        left = [
            line
            for line in before.lines(backend, family)
            if without_counters(line) not in own or not line.startswith(("[", ":KUBE-"))
        ]
        assert after.lines(backend, family) == left
        assert sum(line.startswith("[") and not line.startswith("[0:0]") for line in left) > 20


_SEND = """
import contextlib, socket
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        for _ in range(3):
            with contextlib.suppress(PermissionError):  # a rule drops it, and counts
                sender.sendto(b"x", (address, 5353))
"""


def test_both_backends_at_once(new_sandbox: Callable[..., Sandbox]):
    """Rules of one backend hold sets that rules of the other hold as well."""
    expected_sandbox, sandbox = new_sandbox(), new_sandbox()
    states = []
    for each, gone in ((expected_sandbox, ALL), (sandbox, frozenset[Controller]())):
        first = Scene(NODES["historic"], Backend.NFT)
        first.load(each, gone)
        second = Scene(NODES["historic"], Backend.LEGACY)
        for family in Family:
            each.load_rules(second.rules(family, gone), family, Backend.LEGACY)
        states.append(each.state())

    report = clean(sandbox)

    assert problems(report) == []
    assert {outcome.backend for outcome in report.outcomes} == {*Backend, None}
    assert sandbox.state() == states[0]
    assert not clean(sandbox).changed


def test_looking_changes_nothing(new_sandbox: Callable[..., Sandbox], tools):
    scene = Scene(NODES["nft-netpol"], tools.backend)
    sandbox = new_sandbox(tools.folder)
    before, number = scene.load(sandbox), generation(sandbox)

    planned = clean(sandbox, dry_run=True)

    assert generation(sandbox) == number
    assert sandbox.state() == before
    assert (planned.exit_code, planned.changed, planned.clean) == (0, False, False)
    assert {outcome.status for outcome in planned.outcomes} == {Status.PLANNED}

    done = clean(sandbox)
    assert [o.to_dict() | {"status": ""} for o in planned.outcomes] == [
        o.to_dict() | {"status": ""} for o in done.outcomes
    ]
