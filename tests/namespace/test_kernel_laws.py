"""The laws that need a kernel, over parts of a node and of its neighbours in any order."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import ALL, NODES, SELECTIONS, Scene, clean, few, generation, rule_owner, without_counters

from firewall_cleanup import Backend, Controller, Family, Kind
from firewall_cleanup.errors import KernelError
from firewall_cleanup.handlers.host import Host
from firewall_cleanup.testing.namespaces import Sandbox, State

pytestmark = [pytest.mark.namespace, pytest.mark.property]

nodes = st.builds(
    Scene, st.sampled_from(list(NODES.values())), st.sampled_from(list(Backend)), st.booleans()
)  # neighbours or none


class Crash(BaseException):
    """The process ends here."""


def part(scene: Scene, family: Family, seed: int, gone: frozenset[Controller] = frozenset()) -> str:
    """Rules of the scene that a seed chooses, in an order that it chooses, without those of `gone`."""
    chance = random.Random(f"{seed} {family}")
    own: set[str] = set()
    table, text = "", []
    for line in scene.node.iptables_save(family.value).splitlines():
        table = line[1:] if line.startswith("*") else table
        own.add(f"{table} {line}")
    rules: list[str] = []
    for line in scene.rules(family).splitlines():
        if line.startswith("["):
            rules.append(line)
            continue
        if line.startswith("*"):
            table = line[1:]
        if line == "COMMIT":
            chance.shuffle(rules)
            kept = [rule for rule in rules if chance.random() < 0.7]
            text += [rule for rule in kept if not _gone(table, without_counters(rule), own, gone)]
            rules = []
        if not (line.startswith(":KUBE-") and _gone(table, line.rpartition(" [")[0] + " [0:0]", own, gone)):
            text.append(line)
    return "\n".join(text) + "\n"


def _gone(table: str, line: str, own: set[str], gone: frozenset[Controller]) -> bool:
    return f"{table} {line}" in own and rule_owner(table, line) in gone


def load(sandbox: Sandbox, scene: Scene, seed: int, gone: Iterable[Controller] = ()) -> State:
    chosen = frozenset(gone)
    sandbox.load_sets(scene.sets(chosen))
    sandbox.load_tables(scene.tables(chosen))
    for family in Family:
        sandbox.load_rules(part(scene, family, seed, chosen), family, scene.backend)
    return sandbox.state()


@few
@given(scene=nodes, seed=st.integers(0, 10**6), selection=st.sampled_from(list(SELECTIONS.values())))
def test_neighbours_survive_nothing_is_left_and_the_report_is_true(scene, seed, selection):
    """Laws 1, 2, 3, 5 and 9."""
    with Sandbox() as wanted, Sandbox() as sandbox:
        expected = load(wanted, scene, seed, selection)
        before = load(sandbox, scene, seed)
        number = generation(sandbox)

        planned = clean(sandbox, selection, dry_run=True)
        assert (sandbox.state(), generation(sandbox)) == (before, number)

        report = clean(sandbox, selection)
        assert sandbox.state() == expected
        assert report.clean
        assert report.changed is (before != expected)
        assert [o.to_dict() for o in report.outcomes] == [
            o.to_dict() | {"status": "removed"} for o in planned.outcomes
        ]
        for family in Family:
            went = _rules(before, scene.backend, family) - _rules(expected, scene.backend, family)
            said = {o.text for o in report.outcomes if o.kind is Kind.RULE and o.family is family}
            # Rules of owned chains go with the chain and are not listed.
            assert said <= went
            assert all(rule.split()[1].startswith("KUBE-") for rule in went - said)
        sets = {line.split()[1] for line in set(before.sets.splitlines()) - set(expected.sets.splitlines())}
        assert {o.name for o in report.outcomes if o.kind is Kind.SET} == sets

        again = clean(sandbox, selection)
        assert (again.changed, again.outcomes) == (False, ())
        assert sandbox.state() == expected


def _rules(state: State, backend: Backend, family: Family) -> set[str]:
    return {without_counters(line) for line in state.lines(backend, family) if line.startswith("[")}


@few
@given(scene=nodes, seed=st.integers(0, 10**6), order=st.permutations(list(Controller)))
def test_one_controller_after_the_other_is_the_same_as_all(scene, seed, order):
    with Sandbox() as wanted, Sandbox() as sandbox:
        expected = load(wanted, scene, seed, ALL)
        load(sandbox, scene, seed)
        for controller in order:
            clean(sandbox, [controller])
        assert sandbox.state() == expected


@few
@given(scene=nodes, seed=st.integers(0, 10**6), steps=st.integers(0, 7), after=st.booleans())
def test_a_crash_at_any_step_is_finished_by_the_next_run(scene, seed, steps, after):
    """Law 4: before or after any step that writes."""
    left = [steps]

    def crash(original):
        def step(*arguments, **options):
            left[0] -= 1
            if left[0] < 0 and not after:
                raise Crash
            result = original(*arguments, **options)
            if left[0] < 0:
                raise Crash
            return result

        return step

    with Sandbox() as wanted, Sandbox() as sandbox, pytest.MonkeyPatch.context() as patch:
        expected = load(wanted, scene, seed, ALL)
        load(sandbox, scene, seed)
        from firewall_cleanup.handlers._legacy import LegacyTable

        patch.setattr(Host, "commit_nft", crash(Host.commit_nft))
        patch.setattr(Host, "destroy_sets", crash(Host.destroy_sets))
        patch.setattr(LegacyTable, "commit", crash(LegacyTable.commit))
        with contextlib.suppress(Crash):
            clean(sandbox)
        patch.undo()
        report = clean(sandbox)
        assert report.clean
        assert sandbox.state() == expected
        assert not clean(sandbox).changed


@few
@given(scene=nodes, seed=st.integers(0, 10**6), steps=st.integers(0, 5))
def test_a_refusal_at_any_step_is_said(scene, seed, steps):
    """A kernel that refuses a step: no exception, a true report, and the next run finishes."""
    left = [steps]
    refused = []

    def refuse(original):
        def step(*arguments, **options):
            left[0] -= 1
            if left[0] == -1:
                refused.append(original)
                raise KernelError(errno.ENOMEM, "on purpose")
            return original(*arguments, **options)

        return step

    with Sandbox() as wanted, Sandbox() as sandbox, pytest.MonkeyPatch.context() as patch:
        expected = load(wanted, scene, seed, ALL)
        load(sandbox, scene, seed)
        from firewall_cleanup.handlers._legacy import LegacyTable

        patch.setattr(Host, "commit_nft", refuse(Host.commit_nft))
        patch.setattr(Host, "destroy_sets", refuse(Host.destroy_sets))
        patch.setattr(LegacyTable, "commit", refuse(LegacyTable.commit))
        report = clean(sandbox)
        patch.undo()
        assert report.clean is (not refused)
        assert report.exit_code == int(bool(refused))
        still = {(o.kind, o.table, o.name, o.text) for o in report.residue}
        last = clean(sandbox)
        assert still <= {(o.kind, o.table, o.name, o.text) for o in last.outcomes}
        assert last.clean
        assert sandbox.state() == expected
