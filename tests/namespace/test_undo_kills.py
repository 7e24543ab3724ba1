"""A cleanup with a backup, or a restore, that is killed at any moment: either of them finishes from there."""

from __future__ import annotations

import random

import pytest
from killer import Killer, backup
from scenes import ALL, NODES, Killed, Scene, clean, problems
from undo_cases import unordered, wrong

from firewall_cleanup import Backend, BackupError, restore
from firewall_cleanup.testing.namespaces import Sandbox, State

pytestmark = pytest.mark.namespace

ROUNDS = 7
NOTHING_LOST = Killed(frozenset())


def put_back(sandbox: Sandbox, before: State, killed: Killed) -> None:
    """Restore, which must give the state from before; without a backup nothing was removed."""
    try:
        assert wrong(restore(backup(sandbox), netns=sandbox.path, wait=20)) == []
    except BackupError:
        assert not list(backup(sandbox).glob("2*")) if backup(sandbox).exists() else True
    assert unordered(killed.forgiven(sandbox.state())) == unordered(killed.forgiven(before))


@pytest.mark.parametrize("then", ["restore", "clean"])
def test_a_cleanup_that_is_killed(backend: Backend, then: str):
    scene = Scene(NODES["nft-netpol"], backend)
    chance = random.Random(f"clean {then}")
    with Sandbox() as first, Killer(first) as killer:
        before = scene.load(first)
        whole, status = killer.run("clean-with-backup", first, 60)
        assert status == 0
        expected = first.state()
        unfinished = 0
        for turn in range(ROUNDS):
            with Sandbox() as sandbox:
                scene.load(sandbox)
                killer.run("clean-with-backup", sandbox, whole * (turn + chance.random()) / ROUNDS)
                after = sandbox.state()
                unfinished += after != expected
                killed = Killed.of(before, after)
                if then == "clean":
                    assert problems(clean(sandbox, backup=backup(sandbox))) == []
                    assert killed.forgiven(sandbox.state()) == killed.forgiven(expected)
                put_back(sandbox, before, killed)
        assert unfinished, "every run had ended before it was killed"


@pytest.mark.parametrize("then", ["restore", "clean"])
def test_a_restore_that_is_killed(backend: Backend, then: str):
    scene = Scene(NODES["nft-netpol"], backend)
    chance = random.Random(f"restore {then}")
    with Sandbox() as first, Killer(first) as killer:
        before = scene.load(first)
        clean(first, backup=backup(first))
        expected = first.state()
        whole, status = killer.run("restore", first, 60)
        assert status == 0
        assert unordered(first.state()) == unordered(before)
        unfinished = 0
        for turn in range(ROUNDS):
            with Sandbox() as sandbox:
                scene.load(sandbox)
                clean(sandbox, backup=backup(sandbox))
                killer.run("restore", sandbox, whole * (turn + chance.random()) / ROUNDS)
                unfinished += unordered(sandbox.state()) != unordered(before)
                if then == "clean":
                    assert problems(clean(sandbox, ALL, backup=backup(sandbox))) == []
                    assert unordered(sandbox.state()) == unordered(expected)
                put_back(sandbox, before, NOTHING_LOST)
        assert unfinished, "every restore had ended before it was killed"
