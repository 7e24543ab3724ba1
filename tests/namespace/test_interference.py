"""Killed at any moment, or with somebody else at work: neighbours survive, and the next run finishes."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from killer import Killer
from scenes import ALL, NODES, Killed, Scene, clean, problems, without_counters

from firewall_cleanup import Backend, Family
from firewall_cleanup.testing.namespaces import Sandbox, State

pytestmark = pytest.mark.namespace

ROUNDS = 20


def test_killed_at_any_moment(new_sandbox: Callable[..., Sandbox], backend: Backend):
    scene = Scene(NODES["default"], backend)
    wanted = new_sandbox()
    expected = scene.load(wanted, gone=ALL)
    chance = random.Random(3)
    with Killer(wanted) as killer:
        with Sandbox() as sandbox:
            before = scene.load(sandbox)
            whole, status = killer.run("clean", sandbox, 60)
            assert status == 0
            assert sandbox.state() == expected
        unfinished = 0
        for turn in range(ROUNDS):
            with Sandbox() as sandbox:
                scene.load(sandbox)
                killer.run("clean", sandbox, whole * (turn + chance.random()) / ROUNDS)
                after = sandbox.state()
                killed = Killed.of(before, after)
                assert_neighbours_survive(killed.forgiven(after), killed.forgiven(expected))
                report = clean(sandbox)
                assert problems(report) == []
                assert killed.forgiven(sandbox.state()) == killed.forgiven(expected)
                unfinished += report.changed
        assert unfinished, "every run had ended before it was killed"


def assert_neighbours_survive(state: State, expected: State) -> None:
    for save, text in expected.rules.items():
        lines = iter(state.rules[save].splitlines())
        assert all(line in lines for line in text.splitlines())
    assert set(state.sets.splitlines()) >= set(expected.sets.splitlines())


WRITER = """
n=0
while [ ! -e {folder}/stop ]; do
    n=$((n + 1))
    for family in ip ip6; do
        {{ ${{family}}tables-{backend} -w -I INPUT 1 -m comment --comment "KUBE-ROUTER-INPUT $n" -j ACCEPT &&
            ${{family}}tables-{backend} -w -A FORWARD -m comment --comment "KUBE-POD-FW $n" -j RETURN &&
            ${{family}}tables-{backend} -w -t nat -N user-$n; }} || echo failed
    done
    ipset create user-$n hash:ip && ipset add user-$n 192.0.2.$((n % 250)) || echo failed
    echo $n
    sleep 0.05
done
"""


@pytest.fixture
def writer(sandbox: Sandbox, backend: Backend) -> Iterator[Callable[[], int]]:
    """Somebody who writes rules, chains and sets; to be called to stop him, it returns how many times he did."""
    script = WRITER.format(folder=sandbox.folder, backend=backend.value)
    output = (sandbox.folder / "written").open("w+")
    process = subprocess.Popen(
        sandbox.command("sh", "-c", script), stdout=output, stderr=subprocess.STDOUT, env=sandbox.environment
    )

    def stop() -> int:
        (sandbox.folder / "stop").touch()
        process.wait(timeout=60)
        output.seek(0)
        lines = output.read().split("\n")[:-1]
        assert lines == [str(n + 1) for n in range(len(lines))]
        return len(lines)

    deadline = time.monotonic() + 60
    while not output.tell() and time.monotonic() < deadline:
        time.sleep(0.01)
        output.seek(0, 2)
    yield stop
    process.kill()
    process.wait()
    output.close()


def test_a_writer_during_the_cleanup(
    new_sandbox: Callable[..., Sandbox], sandbox: Sandbox, backend: Backend, request
):
    """Rules that come in front of those that are being deleted are there afterwards, all of them, once each."""
    scene = Scene(NODES["default"], backend)
    wanted = new_sandbox()
    expected = scene.load(wanted, gone=ALL)
    scene.load(sandbox)
    stop = request.getfixturevalue("writer")

    own = Scene(NODES["default"], backend, neighbours=False)
    for turn in range(4):
        if turn:
            sandbox.run(["ipset", "-exist", "restore"], input=own.sets())
            for family in Family:
                sandbox.load_rules(_without_policies(own.rules(family)), family, backend)
        report = clean(sandbox)
        # Either it is done or it says that the ruleset did not stand still.
        assert report.clean or report.gaps, problems(report)
        assert all("changed by somebody else" in gap.reason or "changes faster" in gap.reason for gap in report.gaps)
    written = stop()
    assert problems(clean(sandbox)) == []
    assert written

    after = sandbox.state()
    for family in Family:
        lines = after.lines(backend, family)
        found = [without_counters(line) for line in lines if '"KUBE-ROUTER-INPUT ' in line or '"KUBE-POD-FW ' in line]
        first = [f'-A INPUT -m comment --comment "KUBE-ROUTER-INPUT {n}" -j ACCEPT' for n in range(written, 0, -1)]
        last = [f'-A FORWARD -m comment --comment "KUBE-POD-FW {n}" -j RETURN' for n in range(1, written + 1)]
        assert found == first + last
        assert sum(line.startswith(":user-") for line in lines) == written
        rest = [line for line in lines if without_counters(line) not in found and not line.startswith(":user-")]
        left = expected.lines(backend, family)
        if backend is Backend.LEGACY:  # the writer himself, iptables-legacy, zeroes the counters of policies
            rest, left = ([without_counters(line) for line in lines] for lines in (rest, left))
        assert rest == left
    rest_of_sets = [line for line in after.sets.splitlines() if not line.split()[1].startswith("user-")]
    assert rest_of_sets == expected.sets.splitlines()
    assert after.sets.count("create user-") == written


def _without_policies(text: str) -> str:
    """Leave the built-in chains as they are."""
    return "".join(f"{ln}\n" for ln in text.splitlines() if not ln.startswith(":") or ln.split()[1] == "-")
