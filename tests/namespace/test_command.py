"""The command: what it prints, its exit status, and what it does when something is in its way."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from scenes import ALL, NODES, Scene, as_nobody, clean, command, json_of, problems

from firewall_cleanup import Backend, Controller, Family, __version__, check
from firewall_cleanup.cli import main
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace

CLEAN = "--cleanup-config"
JSON = (CLEAN, "--output", "json")


SCHEMA = Draft202012Validator(json.loads((Path(__file__).parents[2] / "docs/report.schema.json").read_text()))


def check_shape(report: dict[str, Any]) -> None:
    """Fail unless the report has the documented form, its keys in order."""
    SCHEMA.validate(report)
    assert list(report)[:7] == ["version", "dry_run", "clean", "changed", "families", "outcomes", "gaps"]
    for outcome in report["outcomes"]:
        assert list(outcome) == (
            "component controller family backend kind table name status evidence detail text reason holder".split()
        )
        assert outcome["component"] == "kube-router"


@pytest.mark.parametrize("options", [(), ("--help",), ("--version",)])
def test_without_cleanup_config_nothing_happens(sandbox: Sandbox, options):
    before = Scene(NODES["default"], Backend.NFT).load(sandbox)
    done = command(sandbox, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("--cleanup-config" in done.stdout) is (options != ("--version",))
    assert (__version__ in done.stdout) is (options == ("--version",))
    assert sandbox.state() == before


@pytest.mark.parametrize("option", ["-v", "--dry-run"])
def test_without_something_to_do_options_are_refused(sandbox: Sandbox, option: str):
    before = Scene(NODES["default"], Backend.NFT).load(sandbox)
    done = command(sandbox, option)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--cleanup-config" in done.stderr
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
    assert "name of a set of the service proxy" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("clean")


def test_dry_run_in_words(sandbox: Sandbox, backend: Backend):
    before = Scene(NODES["default"], backend).load(sandbox)
    done = command(sandbox, CLEAN, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert sandbox.state() == before
    lines = done.stdout.splitlines()
    groups = [line.strip() for line in lines if line.startswith("  ") and line[2] != " "]
    assert groups[:6] == [f"{c.value}, {f.value}" for c in Controller for f in Family]
    assert f"    iptables {backend.value}, filter (" in done.stdout
    assert "[jumps to KUBE-ROUTER-INPUT]" in done.stdout
    assert "[exact comment and matches of a rule of the routing controller]" in done.stdout
    assert lines[-1] == "dry run: nothing was changed"
    assert lines[-2].startswith("foreign state seen, which stays: ")
    verbose = command(sandbox, CLEAN, "--dry-run", "-v").stdout.splitlines()
    objects = json_of(command(sandbox, *JSON, "--dry-run"))["outcomes"]
    assert sum(line.startswith("      ") and "  [" in line for line in verbose) == len(objects)
    assert command(sandbox, CLEAN, "--dry-run").stdout.splitlines() == lines


@pytest.mark.parametrize("verbose", [False, True])
def test_a_terminal(sandbox: Sandbox, verbose: bool):
    """In colour, in its width, and with the same words; NO_COLOR is respected."""
    Scene(NODES["default"], Backend.NFT).load(sandbox)
    options = [CLEAN, "--dry-run", *["-v"] * verbose]
    plain = command(sandbox, *options).stdout
    shown = on_terminal(sandbox, *options)
    assert "\x1b[1m" in shown
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown).split() == plain.split()
    colours = re.compile(r"\x1b\[(?:[0-9]+;)*3[0-7]m")
    assert colours.search(shown)
    assert not colours.search(on_terminal(sandbox, *options, NO_COLOR="1"))
    assert "\x1b" not in on_terminal(sandbox, *options, TERM="dumb")


def on_terminal(sandbox: Sandbox, *options: str, **variables: str) -> str:
    """Run the command with a terminal of 100 columns as its standard output, and return what it gets."""
    ours, theirs = pty.openpty()
    environment = {**sandbox.environment, "TERM": "xterm-256color", "COLUMNS": "100", **variables}
    if "NO_COLOR" not in variables:
        environment.pop("NO_COLOR", None)
    words = sandbox.command(sys.executable, "-m", "firewall_cleanup", *options)
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=theirs, env=environment) as process:
        os.close(theirs)
        parts = []
        with contextlib.suppress(OSError):  # EIO: the last writer has gone
            while part := os.read(ours, 65536):
                parts.append(part)
        os.close(ours)
    assert process.returncode == 0
    return b"".join(parts).decode().replace("\r\n", "\n")


def test_check(sandbox: Sandbox, backend: Backend):
    """1 while there is something to remove, 0 once there is not; nothing is changed, and no lock is taken."""
    before = Scene(NODES["default"], backend).load(sandbox)
    with lock_held():
        done = command(sandbox, "--check")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[-1].startswith("not clean: ")
    assert "network-policy, ipv6: " in done.stdout
    report = json_of(command(sandbox, "--check", "--output", "json"))
    check_shape(report)
    assert report == json_of(command(sandbox, *JSON, "--dry-run"))
    assert "jumps to KUBE-ROUTER-INPUT" in command(sandbox, "--check", "-v").stdout
    assert sandbox.state() == before
    assert command(sandbox, CLEAN, "--family", "ipv4").returncode == 0
    for options, status in (
        (("--family", "ipv4"), 0),
        (("--family", "ipv6"), 1),
        ((), 1),
        (("--family", "ipv4", "--controller", "routing"), 0),
        (("--component", "kube-router"), 1),
    ):
        assert main(["--check", "--netns", sandbox.path, *options]) == status, options
    assert command(sandbox, CLEAN).returncode == 0
    done = command(sandbox, "--check")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "kube-router: found nothing")


def test_check_from_python(sandbox: Sandbox):
    Scene(NODES["default"], Backend.NFT).load(sandbox)
    report = check(netns=sandbox.path, controllers=[Controller.ROUTING])
    assert (report.check, report.dry_run, report.clean, report.exit_code) == (True, True, False, 1)
    assert {outcome.controller for outcome in report.outcomes} == {Controller.ROUTING, None}
    clean(sandbox)
    assert check(netns=sandbox.path).exit_code == 0


@pytest.mark.parametrize("more", [CLEAN, "--dry-run", "--remove-bridge", "--backup=x", "--restore=x"])
def test_check_stands_alone(more: str):
    with pytest.raises(SystemExit) as end:
        main(["--check", more])
    assert end.value.code == 2


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
