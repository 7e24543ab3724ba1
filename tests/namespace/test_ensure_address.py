"""The command `ensure-address`: what it prints, its exit status, and how it stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from scenes import command
from service_cases import DAMAGES, DEVICE, PAIR, V4, V6, make, shell, state, usable

from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/service-address.schema.json").read_text())
OPTIONS = ("ensure-address", "--ip-address", V4, "--ip-address", V6, "--interface", DEVICE)


def test_text(sandbox: Sandbox) -> None:
    make(sandbox, "bridge")
    before = state(sandbox)
    expected = [
        ((), [f"{V4} on d0: added", f"{V6} on d0: added"]),
        ((), [f"{V4} on d0: present", f"{V6} on d0: present"]),
        (
            ("--scope", "global"),
            [
                f"{V4} on d0: repaired; added again: it had another scope",
                f"{V6} on d0: repaired; preferred lifetime set",
            ],
        ),
        (("--cleanup",), [f"{V4} on d0: removed", f"{V6} on d0: removed"]),
        (("--cleanup",), [f"{V4} on d0: absent", f"{V6} on d0: absent"]),
    ]
    for options, lines in expected:
        done = command(sandbox, *OPTIONS, *options)
        assert (done.returncode, done.stderr, done.stdout.splitlines()) == (0, "", lines)
    assert state(sandbox) == before


def test_one_clear_line(sandbox: Sandbox) -> None:
    """For a device that cannot be had, as for an address that somebody else made otherwise."""
    make(sandbox, "bridge")
    shell(sandbox, f"ip addr add {V4}/32 dev d0")
    for options, words in (((), "scope global"), (("--kind", "dummy"), "its kind is bridge")):
        done = command(sandbox, *OPTIONS, *options)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("firewall-cleanup: ")
        assert words in line
    assert command(sandbox, *OPTIONS, "--take-over").returncode == 0


def test_json(sandbox: Sandbox) -> None:
    make(sandbox, "bridge", up=False)
    for options, statuses in [
        ((), ["added", "added"]),
        (("--set-up",), ["present", "present"]),
        (("--cleanup",), ["removed", "removed"]),
    ]:
        done = command(sandbox, *OPTIONS, "--output", "json", *options)
        report = json.loads(done.stdout)
        Draft202012Validator(SCHEMA).validate(report)
        assert (done.returncode, done.stderr, report["ok"], report["changed"]) == (0, "", True, True)
        assert [outcome["status"] for outcome in report["addresses"]] == statuses
        assert bool(report["device"]["notes"]) is (options == ())
    sandbox.run("ip rule del pref 0")
    done = command(sandbox, *OPTIONS, "--output", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr, report["ok"]) == (1, "", False)
    assert [outcome["status"] for outcome in report["addresses"]] == ["failed", "added"]


def test_without_rights(sandbox: Sandbox) -> None:
    make(sandbox, "bridge")
    before = state(sandbox)
    words = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", sys.executable, "-m", "firewall_cleanup", *OPTIONS]
    done = sandbox.run(words, check=False)
    assert done.returncode == 1
    assert done.stderr.count("CAP_NET_ADMIN") == 2
    assert "Traceback" not in done.stderr
    assert state(sandbox) == before


def test_netns(sandbox: Sandbox) -> None:
    make(sandbox, "bridge")
    words = [sys.executable, "-m", "firewall_cleanup", *OPTIONS, "--netns", sandbox.path]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert usable(sandbox) == PAIR


@contextmanager
def daemon(sandbox: Sandbox, *options: str) -> Iterator[subprocess.Popen[str]]:
    words = sandbox.command(sys.executable, "-m", "firewall_cleanup", *OPTIONS, "--daemon", *options)
    environment = {**sandbox.environment, "PYTHONPATH": os.environ.get("PYTHONPATH", str(Path(__file__).parents[2]))}
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def next_report(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    report: dict[str, Any] = json.loads(process.stdout.readline())
    Draft202012Validator(SCHEMA).validate(report)
    return report


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("cleanup", [True, False], ids=["cleanup", "stay"])
def test_daemon(sandbox: Sandbox, number: signal.Signals, cleanup: bool) -> None:
    make(sandbox, "bridge")
    before = state(sandbox)
    options = ["--output", "json", "--sync-interval", "1h", *["--cleanup"] * cleanup]
    with daemon(sandbox, *options) as process:
        assert [o["status"] for o in next_report(process)["addresses"]] == ["added", "added"]
        good = state(sandbox)
        shell(sandbox, f"ip addr del {V4}/32 dev {DEVICE}")
        assert [o["status"] for o in next_report(process)["addresses"]] == ["added", "present"]
        process.send_signal(number)
        if cleanup:
            assert [o["status"] for o in next_report(process)["addresses"]] == ["removed", "removed"]
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.stdout.read(), process.stderr.read(), process.wait(60)) == ("", "", 0)
    assert state(sandbox) == (before if cleanup else good)


def test_a_daemon_that_was_killed(sandbox: Sandbox) -> None:
    """The next one knows what is ours: it is in the kernel."""
    make(sandbox, "bridge")
    before = state(sandbox)
    with daemon(sandbox, "--output", "json") as process:
        next_report(process)
        process.kill()
    shell(sandbox, DAMAGES["local routes deleted"].commands)
    with daemon(sandbox, "--output", "json", "--cleanup") as process:
        assert [o["status"] for o in next_report(process)["addresses"]] == ["repaired", "repaired"]
        process.terminate()
        assert process.wait(60) == 0
    assert state(sandbox) == before


def test_a_daemon_whose_errors_nobody_reads_goes_on_and_cleans_up(sandbox: Sandbox) -> None:
    make(sandbox, "bridge")
    before = state(sandbox)
    with daemon(sandbox, "--cleanup") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stderr.close()
        assert [process.stdout.readline() for _ in PAIR] == [f"{address} on d0: added\n" for address in PAIR]
        for _ in range(2):
            shell(sandbox, "ip rule del pref 0")
            assert process.stdout.readline() == f"{V6} on d0: present\n"  # IPv4 is the other one's line
            shell(sandbox, "ip rule add pref 0 lookup local")
            assert [process.stdout.readline() for _ in PAIR] == [f"{address} on d0: present\n" for address in PAIR]
        process.terminate()
        assert process.stdout.read() == "".join(f"{address} on d0: removed\n" for address in PAIR)
        assert process.wait(60) == 0
    assert state(sandbox) == before


def test_a_daemon_says_what_is_wrong_and_ends_with_it(sandbox: Sandbox) -> None:
    make(sandbox, "bridge")
    shell(sandbox, "ip rule del pref 0")
    with daemon(sandbox) as process:
        assert process.stderr is not None
        assert "rule 0 is missing" in process.stderr.readline()
        process.terminate()
        assert process.wait(60) == 1
