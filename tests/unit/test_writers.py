"""Which processes write a component's state, and what a run does about them."""

from __future__ import annotations

from typing import NoReturn

import attrs
import pytest
from builders import ALL, LEGACY, NFT, POLICY, PROXY, ROUTING, V6, Clock, clean, key, node
from hypothesis import given
from hypothesis import strategies as st

from firewall_cleanup import Controller, Status, cleanup
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.model import IpSet
from firewall_cleanup.testing import MemoryHost
from firewall_cleanup.text import summary
from firewall_cleanup.writers import Commit, Commits, Process

CHAIN = "KUBE-ROUTER-INPUT"
NODE = {key(): f"-N {CHAIN}\n-A INPUT -j {CHAIN}", key(family=V6): f"-N {CHAIN}\n-A INPUT -j {CHAIN}"}
KUBE_ROUTER_PROCESS = Process(7, "kube-router", ("/usr/local/bin/kube-router", "--run-router"), "/bin/kube-router")


def process(command: str, *, comm: str = "", exe: str = "") -> Process:
    words = tuple(command.split())
    return Process(7, (comm or words[0].rpartition("/")[2])[:15], words, exe)


def evidence(found: Process, controllers: frozenset[Controller] = ALL) -> str | None:
    writer = KUBE_ROUTER.writer(found, controllers)
    return None if writer is None else f"{writer.name}: {writer.evidence}"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (process("kube-router --v=1"), "kube-router: argument"),
        (process("kr", exe="/usr/local/bin/kube-router"), "kube-router: executable"),
        (process("kr", exe="/usr/local/bin/kube-router (deleted)"), "kube-router: executable"),
        (process("python3 /usr/bin/kube-router", comm="kube-router"), "kube-router: comm"),
        (process("kube-router --cleanup-config"), None),
        (process("kube-router --cleanup-config=true"), None),
        (process("kube-router -V"), None),
        (process("my-kube-router"), None),
        (process("kube-router-exporter"), None),
        (process("vim kube-router"), None),
        (process("sh -c kube-router"), None),
        (process("gobgp", exe="/kube-router/gobgp"), None),
        (process("/usr/local/bin/k3s server --disable traefik"), "k3s: argument"),
        (Process(7, "k3s-server", ("/usr/local/bin/k3s server", "", "")), "k3s: argument"),
        (Process(7, "k3s-agent", ("/usr/local/bin/k3s agent",), "/var/lib/rancher/k3s/bin/k3s"), "k3s: executable"),
        (Process(7, "k3s-agent", ("renamed",)), "k3s: comm"),
        (process("/usr/local/bin/k3s server --disable-network-policy"), None),
        (process("/usr/local/bin/k3s server --disable-network-policy=false"), "k3s: argument"),
        (process("k3s kubectl get nodes"), None),
        (process("k3s etcd-snapshot save server"), None),
        (process("containerd -c x", exe="/var/lib/rancher/k3s/data/0/bin/k3s"), None),
        (process("/usr/local/bin/rke2 agent"), "rke2: argument"),
        (process("/usr/bin/kubelet"), None),
    ],
    ids=lambda value: " ".join(value.arguments) if isinstance(value, Process) else "",
)  # fmt: skip
def test_what_writes(found: Process, expected: str | None) -> None:
    assert evidence(found) == expected


@pytest.mark.parametrize(
    ("options", "writes"),
    [
        ("", {POLICY, PROXY, ROUTING}),
        ("--run-firewall=false", {PROXY, ROUTING}),
        ("--run-router=0 --run-service-proxy=F", {POLICY}),
        ("--run-router=true", {POLICY, PROXY, ROUTING}),
    ],
)
def test_only_the_controllers_that_run_in_it(options: str, writes: set[Controller]) -> None:
    found = process(f"kube-router {options}")
    assert {one for one in Controller if evidence(found, frozenset({one}))} == writes
    assert evidence(process("k3s server"), frozenset({PROXY, ROUTING})) is None


def test_a_command_line_with_secrets_is_not_shown() -> None:
    found = process("/usr/bin/kube-router --peer-router-passwords=c2VjcmV0")
    report = clean(node(running=(found,)))
    assert "c2VjcmV0" not in str(report.to_dict()) + "\n".join(summary(report, verbose=True))


@given(st.text(), st.lists(st.text(), max_size=3).map(tuple), st.text())
def test_any_process_can_be_looked_at(comm: str, arguments: tuple[str, ...], executable: str) -> None:
    KUBE_ROUTER.writer(Process(7, comm, arguments, executable), ALL)


# a run

WARNING = [
    "warning: kube-router still runs, and writes its rules again; stop it first",
    "  kube-router, pid 7, known by its executable: /bin/kube-router",
]


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_warning_and_no_obstacle(dry_run: bool) -> None:
    report = clean(node(NODE, running=(KUBE_ROUTER_PROCESS,)), dry_run=dry_run)
    assert list(summary(report))[:2] == WARNING
    assert list(summary(attrs.evolve(report, check=dry_run)))[:2] == WARNING
    assert report.exit_code == 0
    assert report.changed is not dry_run
    assert report.to_dict()["writers"]["running"] == [
        {
            "pid": 7,
            "name": "kube-router",
            "program": "/bin/kube-router",
            "evidence": "executable",
            "same_netns": True,
            "doubt": None,
        }
    ]


def test_of_another_controller_it_says_nothing() -> None:
    off = attrs.evolve(KUBE_ROUTER_PROCESS, arguments=("kube-router", "--run-firewall=false"))
    assert clean(node(running=(off,)), frozenset({POLICY})).writers.running == ()


def test_what_is_not_known_of_it_is_said() -> None:
    unsure = attrs.evolve(KUBE_ROUTER_PROCESS, here=None)
    lines = list(summary(clean(node(running=(unsure, Process(8, "k3s-agent"))))))
    assert lines[1].endswith("(whether it is in this network namespace could not be seen)")
    assert lines[2].endswith("(its policy controller writes, unless its servers have disable-network-policy)")


def waiting(host: MemoryHost, steps: int, clock: Clock) -> MemoryHost:
    """Let its processes end after so many steps of waiting, each of which takes a second."""
    left = steps

    def wait(step: str) -> None:
        nonlocal left
        if step == "processes":
            clock.now += 1
            left -= 1
            host.running = host.running if left else ()

    host.before_commit = wait
    return host


def test_it_is_waited_for() -> None:
    clock = Clock()
    host = waiting(node(NODE, running=(KUBE_ROUTER_PROCESS,)), 3, clock)
    report = clean(host, clock=clock, wait_gone=5.0)
    assert (report.clean, report.changed, report.writers.running) == (True, True, ())


def test_waiting_does_not_shorten_the_patience_for_the_lock() -> None:
    clock = Clock()
    table = key(backend=LEGACY)
    host = waiting(node({table: NODE[key()]}, running=(KUBE_ROUTER_PROCESS,), lock_polls=3), 3, clock)
    assert clean(host, clock=clock, wait_gone=5.0, wait=0.1).clean
    assert clock.now > 3


def test_it_is_not_waited_for_longer_and_nothing_is_changed() -> None:
    clock = Clock()
    host = waiting(node(NODE, running=(KUBE_ROUTER_PROCESS, Process(8, "k3s-agent"))), 30, clock)
    before = host.state
    report = clean(host, clock=clock, wait_gone=5.0)
    assert host.state == before
    assert clock.now == 5
    assert (report.exit_code, report.changed, report.outcomes) == (1, False, ())
    assert list(summary(report)) == [
        "kube-router (pid 7), k3s (pid 8) did not end within 5 s; nothing was changed, stop it first"
    ]
    assert [gap["reason"] for gap in report.to_dict()["gaps"]] == list(summary(report))


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_how_long_to_wait_is_checked(seconds: float) -> None:
    with pytest.raises(ValueError, match="wait_gone"):
        cleanup(wait_gone=seconds)
    with pytest.raises(ValueError, match="a dry run waits for nobody"):
        cleanup(wait_gone=1.0, dry_run=True)


def test_without_patience_it_is_looked_for_once() -> None:
    report = clean(node(NODE, running=(KUBE_ROUTER_PROCESS,)), wait_gone=0.0)
    assert (report.exit_code, report.changed) == (1, False)
    assert clean(node(NODE), wait_gone=0.0).clean


def test_a_signal_ends_the_waiting() -> None:
    clock = Clock()
    host = waiting(node(NODE, running=(KUBE_ROUTER_PROCESS,)), 30, clock)
    report = clean(host, clock=clock, wait_gone=50.0, stopped=lambda: 15 if clock.now > 2 else None)
    assert (report.exit_code, report.changed) == (128 + 15, False)
    assert clock.now == 3


@pytest.mark.parametrize(
    ("commits", "running", "reason"),
    [
        (
            Commits((Commit(5, 70, "nft"), Commit(6, 71, "iptables-nft-re"))),
            True,
            "iptables-nft-re (pid 71), nft (pid 70) wrote nf_tables after us; kube-router (pid 7) is running",
        ),
        (Commits((Commit(6, 71, "x\x1b"),)), False, "x\x1b (pid 71) wrote nf_tables after us"),
        (Commits(), True, "kube-router (pid 7) is running"),
        (Commits(), False, "something made it while we were cleaning (is its owner still running?)"),
    ],
)
def test_who_made_it_again_is_named(commits: Commits, running: bool, reason: str) -> None:
    sets = [IpSet("kube-router-svip", "hash:ip", V6)]
    host = node(NODE, sets, commits=commits)

    def write(step: str) -> None:
        if step == "sets":  # they go after the chains
            host.running = (KUBE_ROUTER_PROCESS,) if running else ()  # it was not there before
            host.insert(key(), f"-A {CHAIN} -j ACCEPT")

    host.before_commit = write
    report = clean(host)
    (again,) = report.residue
    assert (again.name, again.backend, again.status) == (CHAIN, NFT, Status.FAILED)
    assert again.reason == f"it is there again: {reason}"
    assert report.to_dict()["writers"]["commits"] == [commit.to_dict() for commit in commits.seen]
    assert all(line.isprintable() for line in summary(report))


def test_looking_does_not_listen() -> None:
    """To listen in a dry run would make others' commits slower; and there is nothing to come back."""

    class Deaf(MemoryHost):
        def listen_nft(self) -> NoReturn:
            raise AssertionError

    host = Deaf(node(NODE).state)
    assert clean(host, dry_run=True).writers.commits == ()
    with pytest.raises(AssertionError):
        clean(host)


def test_of_many_commits_the_last_are_kept() -> None:
    commits = tuple(Commit(n, n, "nft") for n in range(250))
    writers = clean(node(NODE, commits=Commits(commits))).writers
    assert (writers.commits, writers.missed) == (commits[-100:], True)
