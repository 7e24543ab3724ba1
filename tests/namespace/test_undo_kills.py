"""A cleanup with a backup, or a restore, that is killed at any moment: either of them finishes from there."""

from __future__ import annotations

import fcntl
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Self

import attrs
import pytest
from scenes import ALL, NODES, Killed, Scene, clean, problems

from firewall_cleanup import Backend, BackupError, Restored, RestoreReport, restore
from firewall_cleanup.testing.namespaces import Sandbox, State

pytestmark = pytest.mark.namespace

ROUNDS = 120
NOTHING_LOST = Killed(frozenset())


class Killer:
    """A process that does something in a child and kills it after a time."""

    # Each line on its standard input: what, a namespace, a directory, a number of seconds.
    SCRIPT = """
import os, select, signal, sys, time
from firewall_cleanup import cleanup_all, restore
for line in sys.stdin:
    what, path, directory, seconds = line.split()
    began = time.monotonic()
    child = os.fork()
    if not child:
        if what == "clean":
            cleanup_all(netns=path, wait=20, backup=directory)
        else:
            restore(directory, netns=path, wait=20)
        os._exit(0)
    descriptor = os.pidfd_open(child)
    ended, _, _ = select.select([descriptor], [], [], float(seconds))
    if not ended:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(descriptor)
    print(time.monotonic() - began, status, flush=True)
"""

    def __init__(self, sandbox: Sandbox) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=sandbox.environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.communicate()
        assert self.process.returncode == 0

    def run(self, what: str, sandbox: Sandbox, seconds: float) -> tuple[float, int]:
        """Do it for at most so long; return the seconds that it took and the wait status."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what} {sandbox.path} {backup(sandbox)} {seconds}\n")
        self.process.stdin.flush()
        took, status = self.process.stdout.readline().split()
        wait_for_commands(backup(sandbox))
        return float(took), int(status)


def wait_for_commands(directory: Path) -> None:
    """Wait until the commands of a killed restore have ended: they hold its lock."""
    if directory.exists():
        descriptor = os.open(directory, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.close(descriptor)


def backup(sandbox: Sandbox) -> Path:
    return sandbox.folder / "backup"


def wrong(report: RestoreReport) -> list[str]:
    there = {Restored.RESTORED, Restored.THERE}
    bad = [f"{o.kind.value} {o.name} {o.text}: {o.reason}" for o in report.outcomes if o.status not in there]
    return [*bad, *report.problems]


def unordered(state: State) -> State:
    """The state without the order of tables of nf_tables, which no packet can tell."""
    return attrs.evolve(state, native="".join(sorted(re.split(r"^(?=table )", state.native, flags=re.MULTILINE))))


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
        whole, status = killer.run("clean", first, 60)
        assert status == 0
        expected = first.state()
        unfinished = 0
        for turn in range(ROUNDS):
            with Sandbox() as sandbox:
                scene.load(sandbox)
                killer.run("clean", sandbox, whole * (turn + chance.random()) / ROUNDS)
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
