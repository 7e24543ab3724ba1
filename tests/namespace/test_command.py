"""The command: what it prints, its exit status, and what it does when something is in its way."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scenes import ALL, NODES, Scene, as_nobody, clean, command, json_of, problems

from firewall_cleanup import Backend, Controller, Family, Kind, __version__
from firewall_cleanup.cli import main
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace

CLEAN = "--cleanup-config"
JSON = (CLEAN, "--output", "json")


def check_shape(report: dict[str, Any]) -> None:
    """Fail unless the report has the documented form, key for key."""
    assert list(report) == ["version", "dry_run", "clean", "changed", "families", "outcomes", "gaps"]
    assert report["version"] == 1
    assert all(isinstance(report[key], bool) for key in ("dry_run", "clean", "changed"))
    assert set(report["families"]) <= {"ipv4", "ipv6"}
    assert set(report["families"].values()) <= {"examined", "absent", "gap"}
    families, backends = {"ipv4", "ipv6", None}, {"legacy", "nft", None}
    for outcome in report["outcomes"]:
        assert list(outcome) == (
            "component controller family backend kind table name status evidence text reason holder".split()
        )
        assert outcome["component"] == "kube-router"
        assert outcome["controller"] in {"service-proxy", "network-policy", "routing", None}
        assert outcome["family"] in families
        assert outcome["backend"] in backends
        assert outcome["kind"] in {kind.value for kind in Kind}
        assert outcome["status"] in {"planned", "removed", "kept", "in-use", "denied", "failed"}
        assert isinstance(outcome["name"], str)
        assert isinstance(outcome["evidence"], str)
        assert (outcome["text"] is not None) is (outcome["kind"] == "rule")
        assert (outcome["table"] is None) is (outcome["kind"] == "set")
        assert (outcome["reason"] is None) is (outcome["status"] in {"planned", "removed"})
        if outcome["holder"] is not None:
            assert list(outcome["holder"]) == "kind family backend table chain text".split()
            assert outcome["status"] in {"kept", "in-use"}
    for gap in report["gaps"]:
        assert list(gap) == ["family", "backend", "table", "reason"]
        assert gap["family"] in families
        assert gap["backend"] in backends
        assert gap["reason"]


@pytest.mark.parametrize("options", [(), ("--help",), ("--version",), ("-v",), ("--dry-run",)])
def test_without_cleanup_config_nothing_happens(sandbox: Sandbox, options):
    before = Scene(NODES["default"], Backend.NFT).load(sandbox)
    done = command(sandbox, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("--cleanup-config" in done.stdout) is (options != ("--version",))
    assert (__version__ in done.stdout) is (options == ("--version",))
    assert sandbox.state() == before


@pytest.mark.parametrize(
    "options",
    [
        ("--family", "ipv5"),
        ("--controller", "everything"),
        ("--component", "kube-proxy"),
        ("--wait", "-1"),
        ("--wait", "nan"),
        ("--wait", "inf"),
        ("--wait", "soon"),
        ("--output", "xml"),
        ("--netns", "no-such-namespace"),
        ("--netns", "/no/such/path"),
        ("--netns", "/dev/null"),
        ("--no-such-option",),
        ("argument",),
    ],
    ids=" ".join,
)
def test_wrong_usage(sandbox: Sandbox, options):
    before = Scene(NODES["default"], Backend.NFT).load(sandbox)
    done = command(sandbox, CLEAN, *options)
    assert done.returncode == 2
    assert done.stdout == ""
    assert options[-1] in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert sandbox.state() == before


def test_json(new_sandbox: Callable[..., Sandbox], backend: Backend):
    wanted, sandbox = new_sandbox(), new_sandbox()
    scene = Scene(NODES["nft-netpol"], backend)
    expected = scene.load(wanted, gone=ALL)
    scene.load(sandbox)
    planned = json_of(command(sandbox, *JSON, "--dry-run"))
    done = json_of(command(sandbox, *JSON))
    again = json_of(command(sandbox, *JSON))
    for report in (planned, done, again):
        check_shape(report)
        assert report["families"] == {"ipv4": "examined", "ipv6": "examined"}
        assert report["gaps"] == []
    assert [planned[key] for key in ("dry_run", "clean", "changed")] == [True, False, False]
    assert [done[key] for key in ("dry_run", "clean", "changed")] == [False, True, True]
    assert [again[key] for key in ("dry_run", "clean", "changed", "outcomes")] == [False, True, False, []]
    assert [{**outcome, "status": "removed"} for outcome in planned["outcomes"]] == done["outcomes"]
    assert {outcome["kind"] for outcome in done["outcomes"]} == {"table", "chain", "rule", "set"}
    assert sandbox.state() == expected


def test_text(sandbox: Sandbox):
    Scene(NODES["default"], Backend.NFT).load(sandbox)
    sandbox.run("iptables-nft -A INPUT -m set --match-set kube-router-svip src -j DROP")
    done = command(sandbox, CLEAN)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert len(lines) < 20
    assert "network-policy, ipv6" in done.stdout
    assert "set kube-router-svip" in done.stdout
    assert "ipv4 nft filter: -A INPUT -m set --match-set kube-router-svip src -j DROP" in done.stdout
    assert lines[-1].startswith("not clean: 1 object left")
    sandbox.run("iptables-nft -F INPUT")
    done = command(sandbox, CLEAN, "-v")
    assert done.returncode == 0
    assert "name of a set of kube-router" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("clean")


def test_a_reader_that_goes_away(sandbox: Sandbox):
    Scene(NODES["default"], Backend.NFT).load(sandbox)
    script = f"{sys.executable} -m firewall_cleanup {CLEAN} -v | true; echo ${{PIPESTATUS[0]}}"
    done = sandbox.run(["bash", "-c", script])
    assert (done.stdout.strip(), done.stderr) == ("0", "")
    assert not clean(sandbox).outcomes


def test_exit_status_is_about_the_selection(sandbox: Sandbox, backend: Backend):
    """A set of IPv4 and of network policy stays in use; who did not ask for it does not hear of it."""
    Scene(NODES["default"], backend).load(sandbox)
    name = next(ln.split()[1] for ln in NODES["default"].ipsets().splitlines() if ln.startswith("create KUBE-DST-"))
    sandbox.run(f"iptables-{backend.value} -A INPUT -m set --match-set {name} src -j DROP")
    for options, status in (
        (("--dry-run",), 0),
        (("--family", "ipv6"), 0),
        (("--family", "ipv4"), 1),
        (("--controller", "routing", "--controller", "service-proxy"), 0),
        (("--controller", "network-policy"), 1),
        (("--controller", "network-policy", "--family", "ipv6"), 0),
        (("--component", "kube-router"), 1),
        (("--family", "ipv4", "--family", "ipv6"), 1),
    ):
        assert main([CLEAN, "--netns", sandbox.path, *options]) == status, options
    report = json_of(command(sandbox, *JSON))
    assert [(o["name"], o["status"]) for o in report["outcomes"]] == [(name, "in-use")]


@pytest.mark.parametrize("controller", Controller)
def test_selections(new_sandbox: Callable[..., Sandbox], controller):
    scene = Scene(NODES["default"], Backend.NFT)
    wanted, sandbox = new_sandbox(), new_sandbox()
    expected = scene.load(wanted, gone=frozenset({controller}))
    scene.load(sandbox)
    assert command(sandbox, CLEAN, "--controller", controller.value).returncode == 0
    assert sandbox.state() == expected


def test_by_namespace(new_sandbox: Callable[..., Sandbox]):
    home, away = new_sandbox(), new_sandbox()
    scene = Scene(NODES["default"], Backend.NFT)
    before = scene.load(home)
    scene.load(away)
    assert command(home, CLEAN, "--netns", away.path).returncode == 0
    assert home.state() == before
    assert not clean(away).outcomes


@pytest.mark.parametrize("who", ["root without capabilities", "nobody"])
@pytest.mark.parametrize("dry_run", [False, True], ids=["run", "dry run"])
def test_without_rights(new_sandbox: Callable[..., Sandbox], who, dry_run):
    sandbox = new_sandbox()
    before = Scene(NODES["default"], Backend.NFT).load(sandbox)
    drop, python = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"], sys.executable
    if who == "nobody":
        drop, python = as_nobody(sandbox.folder)
    done = sandbox.run([*drop, python, "-m", "firewall_cleanup", *JSON, *["--dry-run"] * dry_run], check=False)
    assert done.returncode == 1
    assert done.stderr == ""
    report = json_of(done)
    check_shape(report)
    assert (report["clean"], report["changed"], report["outcomes"]) == (False, False, [])
    assert report["families"] == {"ipv4": "gap", "ipv6": "gap"}
    assert any("CAP_NET_ADMIN" in gap["reason"] for gap in report["gaps"])
    assert sandbox.state() == before


def test_no_right_to_enter_a_namespace(new_sandbox: Callable[..., Sandbox]):
    home, away = new_sandbox(), new_sandbox()
    before = Scene(NODES["default"], Backend.NFT).load(away)
    drop = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
    done = home.run([*drop, sys.executable, "-m", "firewall_cleanup", CLEAN, "--netns", away.path], check=False)
    assert done.returncode == 1
    assert "CAP_" in done.stderr
    assert away.state() == before


@contextmanager
def lock_held() -> Iterator[None]:
    with Path(os.environ["XTABLES_LOCKFILE"]).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def both_backends(sandbox: Sandbox) -> Sandbox:
    """A node in nft and, without its sets, in legacy."""
    Scene(NODES["default"], Backend.NFT).load(sandbox)
    legacy = Scene(NODES["default"], Backend.LEGACY)
    for family in Family:
        sandbox.load_rules(legacy.rules(family), family, Backend.LEGACY)
    return sandbox


@pytest.mark.parametrize("wait", ["0", "0.3"])
def test_the_lock_is_held_by_another_process(both_backends: Sandbox, wait):
    sandbox = both_backends
    before = sandbox.state()
    with lock_held():
        done = command(sandbox, *JSON, "--wait", wait)
        assert json_of(command(sandbox, *JSON, "--dry-run"))["gaps"] == [], "looking takes no lock"
    assert done.returncode == 1
    report = json_of(done)
    check_shape(report)
    assert (report["clean"], report["changed"]) == (False, True)
    gaps = report["gaps"]
    assert {(gap["family"], gap["backend"]) for gap in gaps} == {("ipv4", "legacy"), ("ipv6", "legacy")}
    assert {gap["table"] for gap in gaps} == {"filter", "nat", "mangle"}
    assert all("xtables lock held by another process" in gap["reason"] for gap in gaps)
    assert report["families"] == {"ipv4": "gap", "ipv6": "gap"}
    after = sandbox.state()
    for family in Family:
        assert after.lines(Backend.LEGACY, family) == before.lines(Backend.LEGACY, family)
        assert "KUBE-NWPLCY-COMMON" not in str(after.lines(Backend.NFT, family))
    removed = [o for o in report["outcomes"] if o["status"] == "removed"]
    assert {o["backend"] for o in removed} >= {"nft"}
    assert "legacy" not in {o["backend"] for o in removed}

    assert problems(clean(sandbox)) == []
    assert not clean(sandbox).changed


def wait_until(true: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until something is true; fail if the process ends before or it takes a minute."""
    deadline = time.monotonic() + 60
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def opened(process: subprocess.Popen[str], file: str) -> bool:
    """Tell whether a process has a file open."""
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            if entry.readlink() == Path(file):
                return True
        except FileNotFoundError:
            continue
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_waits_for_the_lock(both_backends: Sandbox, number):
    sandbox = both_backends
    before = sandbox.state()
    with lock_held():
        process = subprocess.Popen(
            sandbox.command(sys.executable, "-m", "firewall_cleanup", *JSON, "--wait", "60"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=sandbox.environment,
        )
        wait_until(lambda: opened(process, os.environ["XTABLES_LOCKFILE"]), process)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    report = json.loads(output)
    check_shape(report)
    assert not report["clean"]
    assert report["changed"]
    assert {o["status"] for o in report["outcomes"]} > {"removed"}
    after = sandbox.state()
    assert after.rules["iptables-legacy-save"] == before.rules["iptables-legacy-save"]
    assert "KUBE-NWPLCY-COMMON" not in after.rules["iptables-nft-save"]
    assert problems(clean(sandbox)) == []
    assert not clean(sandbox).changed
