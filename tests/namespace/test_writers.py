"""Processes that write the component's state: found by /proc, waited for, and named when something comes back."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scenes import ALL, Scene, clean, command, json_of, problems

from firewall_cleanup import Backend, Family, Handlers, Kind, RootError, cleanup, cleanup_all
from firewall_cleanup.boot_files import find_saved
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.handlers._namespace import Namespace
from firewall_cleanup.handlers._nft_listener import NftListener
from firewall_cleanup.host import FoundFile
from firewall_cleanup.testing.namespaces import Sandbox, State
from firewall_cleanup.testing.node import Node
from firewall_cleanup.text import summary
from firewall_cleanup.writers import Commits

pytestmark = pytest.mark.namespace

CLEAN = "--cleanup-config"
CHAIN = "KUBE-ROUTER-INPUT"
MINUTE = 60


@pytest.fixture
def kube_router(tmp_path: Path) -> Iterator[Callable[[Sandbox], subprocess.Popen[bytes]]]:
    """A function that starts a program named kube-router in a sandbox, which ends with its input."""
    program = tmp_path / "kube-router"
    shutil.copy(shutil.which("cat") or "/bin/cat", program)
    with contextlib.ExitStack() as stack:

        def start(sandbox: Sandbox) -> subprocess.Popen[bytes]:
            words = sandbox.command(str(program))
            process = stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.read(1) == b"\n"  # it runs, inside
            return process

        yield start


def running(report: dict[str, object]) -> list[tuple[object, ...]]:
    return [(w["pid"], w["name"], w["evidence"], w["same_netns"]) for w in report["writers"]["running"]]  # type: ignore[index]


def owned(sandbox: Sandbox, backend: Backend = Backend.NFT) -> State:
    """Make something to remove in both families, and return the state."""
    for name in commands(backend):
        sandbox.run(f"{name} -N {CHAIN} && {name} -A INPUT -j {CHAIN}")
    return sandbox.state()


def commands(backend: Backend) -> list[str]:
    return [f"{name}-{backend.value}" for name in ("iptables", "ip6tables")]


def test_it_is_named_and_no_obstacle(new_sandbox, kube_router):
    """By a dry run, a check and a cleanup; one in another namespace is not."""
    sandbox, other = new_sandbox(), new_sandbox()
    owned(sandbox)
    kube_router(other)
    assert clean(sandbox, dry_run=True).writers.running == ()
    process = kube_router(sandbox)
    found = [(process.pid, "kube-router", "executable", True)]
    for options, status in (((CLEAN, "--dry-run"), 0), (("--check",), 1), ((CLEAN,), 0)):
        done = command(sandbox, *options, "--output=json")
        assert (done.returncode, done.stderr, running(json_of(done))) == (status, "", found)
    text = list(summary(clean(sandbox)))
    assert text[0].startswith("warning: kube-router still runs")
    assert f"pid {process.pid}, known by its executable: " in text[1]


def test_the_controller_that_cleans_is_not_named(sandbox, kube_router, tmp_path):
    """The process that cleans, and one that started it, may have the very name; another one is named all the same."""
    other = kube_router(sandbox)
    shell = tmp_path / "folder/kube-router"
    shell.parent.mkdir()
    shutil.copy(os.path.realpath(shutil.which("sh") or "/bin/sh"), shell)
    script = f"{sys.executable} -m firewall_cleanup --check --output=json; exit $?"
    assert [found[0] for found in running(json_of(sandbox.run([str(shell), "-c", script])))] == [other.pid]


def test_with_the_rights_of_a_container(sandbox, kube_router):
    """Without CAP_SYS_PTRACE the namespace of a process is told by its /proc/net."""
    process = kube_router(sandbox)
    words = ["setpriv", "--inh-caps=-all", "--bounding-set=-all,+net_admin", sys.executable, "-m", "firewall_cleanup"]
    report = json_of(sandbox.run([*words, CLEAN, "--dry-run", "--output=json"]))
    assert running(report) == [(process.pid, "kube-router", "executable" if _traced(words) else "argument", True)]


def _traced(words: list[str]) -> bool:
    """Whether the executable of a root's process may be read with these rights."""
    reader = [*words[:3], "readlink", f"/proc/{os.getpid()}/exe"]
    return subprocess.run(reader, capture_output=True, check=False).returncode == 0


def test_it_is_waited_for(sandbox, kube_router, backend):
    before = owned(sandbox, backend)
    process = kube_router(sandbox)
    done = command(sandbox, CLEAN, "--wait-gone=0.1")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == (
        f"kube-router (pid {process.pid}) did not end within 0.1 s; nothing was changed, stop it first\n"
    )
    assert sandbox.state() == before
    with waiting(sandbox) as cleaning:
        process.stdin.close()
        assert "clean: nothing" in cleaning.communicate(timeout=MINUTE)[0]
    assert cleaning.returncode == 0
    assert cleanup(netns=sandbox.path, wait_gone=0.0).clean


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_waiting_is_interrupted(sandbox, kube_router, number):
    before = owned(sandbox)
    kube_router(sandbox)
    with waiting(sandbox) as cleaning:
        cleaning.send_signal(number)
        text = cleaning.communicate(timeout=MINUTE)[0]
    if number == signal.SIGKILL:
        assert cleaning.returncode == -number
    else:
        assert cleaning.returncode == 128 + number
        assert f"stopped by signal {number:d}" in text
    assert sandbox.state() == before
    assert clean(sandbox).clean


@contextlib.contextmanager
def waiting(sandbox: Sandbox) -> Iterator[subprocess.Popen[str]]:
    """A cleanup that waits for a process to end, which it does by a descriptor for it."""
    words = sandbox.command(sys.executable, "-m", "firewall_cleanup", CLEAN, f"--wait-gone={10 * MINUTE}")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=sandbox.environment)
    try:
        deadline = time.monotonic() + MINUTE
        while not _has_pidfd(process.pid):
            assert process.poll() is None
            assert time.monotonic() < deadline
        yield process
    finally:
        process.kill()
        process.wait()


def _has_pidfd(pid: int) -> bool:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if "pidfd" in str(descriptor.readlink()):
                return True
    return False


@pytest.mark.parametrize("with_process", [True, False])
def test_who_made_it_again_is_named(sandbox, kube_router, backend, with_process):
    """Somebody makes the chain again, in both families, after it was removed and before everything is read again."""
    process = kube_router(sandbox) if with_process else None
    names = commands(backend)
    owned(sandbox, backend)
    written = False

    def write() -> None:
        """Is asked between steps whether to stop."""
        nonlocal written
        if not written and all(CHAIN not in sandbox.run([name, "-S"]).stdout for name in names):
            written = True
            for name in names:
                sandbox.run([name, "-N", CHAIN])

    report = clean(sandbox, stopped=write)
    assert [(o.kind, o.name, o.family) for o in report.residue] == [(Kind.CHAIN, CHAIN, f) for f in Family]
    (reason,) = {outcome.reason for outcome in report.residue}
    parts = []
    if backend is Backend.NFT:
        made = report.writers.commits
        assert [commit.name for commit in made] == names
        assert made[0].generation + 1 == made[1].generation
        parts.append(f"ip6tables-nft (pid {made[1].pid}), iptables-nft (pid {made[0].pid}) wrote nf_tables after us")
    else:
        assert report.writers.commits == ()
    if process is not None:
        parts.append(f"kube-router (pid {process.pid}) is running")
    default = "something made it while we were cleaning (is its owner still running?)"
    assert reason == f"it is there again: {'; '.join(parts) or default}"
    assert problems(clean(sandbox)) == []


@pytest.fixture
def listener(sandbox: Sandbox) -> Iterator[NftListener]:
    namespace = Namespace(sandbox.path)
    opened = namespace.run(NftListener)
    yield opened
    opened.close()
    opened.close()
    namespace.close()


def test_commits_are_heard_one_by_one(sandbox, listener):
    """Not their objects: of the largest commit there is one message, which fits the smallest buffer."""
    listener._netlink._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    chains = "".join(f"add chain ip t c{n}\n" for n in range(5000))
    writer = sandbox.run(["sh", "-c", "echo $$; exec nft -f -"], input=f"add table ip t\n{chains}").stdout
    sandbox.run("nft list ruleset")  # reading is no commit
    heard = listener.commits()
    (first,) = heard.seen
    assert (first.name, first.pid, heard.missed) == ("nft", int(writer), False)
    sandbox.run("nft delete table ip t")
    heard = listener.commits()
    (second,) = heard.seen
    assert (second.name, second.generation, heard.missed) == ("nft", first.generation + 1, False)
    assert listener.commits() == Commits()


def test_what_happens_while_it_rests_is_not_told(sandbox, listener):
    sandbox.run("nft add table ip a")
    listener.rest()
    listener.rest()
    sandbox.run("nft add table ip b")
    listener.begin()
    sandbox.run("nft add table ip c")
    listener.begin()
    sandbox.run("nft add table ip d")
    assert len(listener.commits().seen) == 1
    listener.rest()
    sandbox.run("nft add table ip e")
    assert listener.commits() == Commits()


def test_it_rests_between_the_runs_of_one_connection(sandbox):
    """It is kept with the connection: to close it would wait until the kernel has freed what was deleted."""
    with Handlers.open(netns=sandbox.path) as handlers:
        for _run in range(2):
            sandbox.load(Node(pods=3), Backend.NFT)
            report = cleanup_all(handlers)
            assert report.clean
            assert report.changed
            assert report.writers.commits == ()
        connection = next(h.connection for h in handlers.iptables.values() if h is not None and h.connection)
        assert connection._listener.commits() == Commits()


def test_commits_that_were_missed_are_said(sandbox, listener):
    listener._netlink._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the least there is
    for number in range(12):
        sandbox.run(f"nft add table ip t{number}")
    heard = listener.commits()
    assert heard.missed
    assert 0 < len(heard.seen) < 12


def test_saved_tables_are_found_line_by_line(sandbox):
    """What `nft list ruleset` wrote to /etc/nftables.conf brings back what a cleanup would remove."""
    sandbox.load(Node(pods=3, nft_netpol=True), Backend.NFT)
    text = sandbox.run("nft list ruleset").stdout
    saved = find_saved([FoundFile("/etc/nftables.conf", "x", text)], KUBE_ROUTER, ALL, tuple(Family))
    found = [(line.evidence, line.detail, line.controller) for line in saved.lines]
    plan = clean(sandbox, dry_run=True)
    expected = [
        (outcome.evidence, outcome.detail, outcome.controller)
        for outcome in plan.outcomes
        if outcome.evidence in {"chain-name", "jump", "table-name"}
    ]
    assert sorted(map(str, found)) == sorted(map(str, expected))
    assert {evidence for evidence, _, _ in found} == {"chain-name", "jump", "table-name"}


# another root


def test_files_of_another_root(sandbox, backend, tmp_path):
    state = Scene(Node(pods=2), backend).load(sandbox)
    save = {Family.IPV4: "rules.v4", Family.IPV6: "rules.v6"}
    folder = tmp_path / "etc/iptables"
    folder.mkdir(parents=True)
    for family, name in save.items():
        (folder / name).write_text(
            sandbox.run(f"ip{'6' * (family is Family.IPV6)}tables-{backend.value}-save").stdout
        )
    (tmp_path / "etc/iproute2").mkdir()
    (tmp_path / "etc/iproute2/rt_tables").write_text("77 kube-router\n")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    plan = cleanup(netns=sandbox.path, root=tmp_path, dry_run=True)
    for family, name in save.items():
        lines = [line for line in plan.boot_files.lines if line.file == str(folder / name)]
        owned = [o for o in plan.outcomes if o.family is family and o.kind in {Kind.CHAIN, Kind.RULE}]
        assert len(lines) == len(owned) > 10
    assert any(f"{tmp_path}/etc/iproute2/rt_tables:1" in note for note in plan.notes)
    assert plan.writers.unseen[0].startswith(f"the host's processes: {tmp_path}/proc is not mounted")
    assert sandbox.state() == state
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    with pytest.raises(RootError):
        cleanup(netns=sandbox.path, root=tmp_path / "none", dry_run=True)


def test_processes_of_the_host_from_a_container(sandbox, kube_router, tmp_path):
    """A container has a /proc of its own, and the host's where its root is mounted."""
    process = kube_router(sandbox)
    (tmp_path / "host/proc").mkdir(parents=True)
    words = [sys.executable, "-m", "firewall_cleanup", "--check", "--output=json"]
    script = f"mount --bind /proc {tmp_path}/host/proc && exec unshare --pid --fork --mount-proc {shlex.join(words)}"
    inside = ["unshare", "--mount", "sh", "-c"]
    alone = json_of(sandbox.run([*inside, script], check=False))
    assert running(alone) == []
    assert "outside of this container" in alone["writers"]["unseen"][0]
    with_root = json_of(sandbox.run([*inside, f"{script} --root {tmp_path}/host"], check=False))
    assert running(with_root) == [(process.pid, "kube-router", "executable", True)]
    assert with_root["writers"]["proc"] == f"{tmp_path}/host/proc"


@pytest.mark.parametrize(
    "options",
    [
        (CLEAN, "--root", "/no/such/root"),
        ("--check", "--root", "/dev/null"),
        (CLEAN, "--wait-gone", "-1"),
        (CLEAN, "--wait-gone", "inf"),
        (CLEAN, "--dry-run", "--wait-gone", "1"),
        ("--check", "--wait-gone", "1"),
        ("--restore", "/tmp", "--root", "/"),
        ("--restore", "/tmp", "--wait-gone", "1"),
    ],
    ids=" ".join,
)
def test_wrong_usage(sandbox, options):
    done = command(sandbox, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if not line.startswith((" ", "usage"))]) == 1
