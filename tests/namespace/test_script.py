"""The printed script does what the cleanup does, on the same nodes, and no more; run by several shells."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from scenes import NODES, SELECTIONS, Scene, clean, command, plan_on, problems
from script_runs import POD, PROGRAM, Two, bare, clean_by, equal, printed, run

from firewall_cleanup import Backend, Controller, Family
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.dumps import read_dumps
from firewall_cleanup.engine import Settings
from firewall_cleanup.engine import run as run_engine
from firewall_cleanup.script import script
from firewall_cleanup.testing.memory import MemoryHost
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace


@pytest.mark.parametrize("node", ["historic", "nft-netpol"])
def test_it_does_what_the_cleanup_does(two: Two, backend: Backend, node: str) -> None:
    """Object by object: what stays has its place and its counters; again it finds nothing and changes nothing."""
    one, other = two(Scene(NODES[node], backend))
    text = printed(one)
    assert clean_by(one, text)
    assert problems(clean(other)) == []
    assert equal(one, other)
    state = one.state()
    assert clean_by(one, text)
    assert one.state() == state
    assert clean(one, dry_run=True).outcomes == ()


def test_one_controller_after_the_other(two: Two, backend: Backend) -> None:
    one, other = two(bare("default", backend))
    for controllers in SELECTIONS.values():
        text = printed(one, controllers=controllers)
        assert problems(clean(other, controllers)) == []
        assert clean_by(one, text)
        assert equal(one, other)


def test_one_family(two: Two) -> None:
    one, other = two(bare("default", Backend.LEGACY))
    text = printed(one, families=[Family.IPV6])
    clean(other, families=[Family.IPV6])
    assert clean_by(one, text)
    assert equal(one, other)


def test_a_plan_of_what_the_tools_printed(two: Two, backend: Backend) -> None:
    """Made elsewhere, from files, without handles and messages of this kernel."""
    one, other = two(bare("historic", backend))
    state = one.state()
    files = {"ipset-save": state.sets, **{name: text for name, text in state.rules.items() if text}}
    host = MemoryHost(read_dumps(files))
    text = script([run_engine(host, KUBE_ROUTER, frozenset(Controller), Settings(dry_run=True))])
    assert clean_by(one, text)
    clean(other)
    assert equal(one, other)


def test_a_plan_on_files_that_were_collected(two: Two, backend: Backend) -> None:
    """Collected here, planned by somebody without rights, and the script run here."""
    one, other = two(Scene(NODES["default"], backend))
    assert command(one, "--collect", str(one.folder / "node")).returncode == 0
    text = plan_on(one.folder / "node", "--dry-run", "--output", "script").stdout
    assert problems(clean(other)) == []
    assert clean_by(one, text)
    assert equal(one, other)


@pytest.mark.parametrize("older_runs", [True, False], ids=["run-by-older", "run-by-newer"])
def test_rules_of_another_release_of_iptables(two: Two, newer_iptables: str, older_runs: bool) -> None:
    one, other = two(bare("historic", Backend.NFT), tools=newer_iptables if older_runs else None)
    path = os.environ["PATH"] if older_runs else f"{newer_iptables}:{os.environ['PATH']}"
    text = printed(one)
    clean(other)
    assert clean_by(one, text, env={"PATH": path})
    assert equal(one, other)


@pytest.mark.skipif(not shutil.which("busybox"), reason="no busybox")
def test_by_busybox(two: Two, tmp_path: Path) -> None:
    """Its shell, and its awk, sed, cat, id and sleep."""
    for name in ("awk", "sed", "cat", "id", "sleep"):
        (tmp_path / name).symlink_to(shutil.which("busybox") or "")
    one, other = two(bare("nft-netpol", Backend.NFT))
    text = printed(one)
    clean(other)
    assert clean_by(one, text, shell=["busybox", "sh"], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert equal(one, other)


def test_commands_without_a_backend_in_their_name(two: Two, backend: Backend, tmp_path: Path) -> None:
    """What `iptables` is, it says itself; one that is of the other backend is not taken."""
    for program in PROGRAM.values():
        for action in ("", "-save", "-restore"):
            (tmp_path / f"{program}{action}").symlink_to(shutil.which(f"{program}-{backend.value}{action}") or "")
            for each in Backend:
                broken = tmp_path / f"{program}-{each.value}{action}"
                broken.write_text("#!/bin/sh\nexit 127\n")
                broken.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    one, other = two(bare("default", backend))
    text = printed(one)
    wrong = next(each.value for each in Backend if each is not backend)
    status, said = run(one, re.sub(rf"\b(ip6?tables) {backend.value}\b", rf"\1 {wrong}", text), env=path)
    assert (status, f"iptables for {wrong} (iptables-{wrong}, " in said) == (2, True)
    clean(other)
    assert clean_by(one, text, env=path)
    assert equal(one, other)


def test_the_command_prints_it(two: Two) -> None:
    one, other = two(bare("nft-netpol", Backend.LEGACY))
    done = command(one, "--cleanup-config", "--dry-run", "--output", "script")
    assert (done.returncode, done.stderr) == (0, "")
    assert clean_by(one, done.stdout)
    clean(other)
    assert equal(one, other)


@pytest.mark.parametrize(
    "options", [["--cleanup-config"], ["--check"], ["--restore", "/nowhere"]], ids=lambda o: o[0]
)
def test_a_script_is_of_a_plan(sandbox: Sandbox, options: list[str]) -> None:
    done = command(sandbox, *options, "--output", "script")
    assert (done.returncode, done.stdout) == (2, "")
    assert "script" in done.stderr


# what it must not do


def test_nothing_is_made_by_looking(sandbox: Sandbox, new_sandbox: Callable[..., Sandbox], backend: Backend) -> None:
    """Where the node has been cleaned otherwise, or was booted anew, there is nothing to do and nothing is made."""
    bare("nft-netpol", backend).load(sandbox)
    text = printed(sandbox)
    empty = new_sandbox()
    before = empty.state()
    assert clean_by(empty, text)
    assert empty.state() == before
    assert empty.run("nft list ruleset").stdout == ""


def test_it_makes_no_chain_that_is_missing(new_sandbox: Callable[..., Sandbox]) -> None:
    """A table with few built-in chains keeps just these."""
    one, other = new_sandbox(), new_sandbox()
    for sandbox in (one, other):
        sandbox.run(f"ip6tables-nft -N {POD} && ip6tables-nft -A INPUT -j {POD} && ip6tables-nft -A INPUT -j ACCEPT")
    assert clean_by(one, printed(one))
    clean(other)
    ruleset = one.run("nft list ruleset").stdout
    assert ruleset == other.run("nft list ruleset").stdout
    assert "FORWARD" not in ruleset


def test_as_many_as_planned(sandbox: Sandbox, backend: Backend) -> None:
    """Of equal rules no more go than there were when the plan was made."""
    words = '-A FORWARD -i kube-bridge -m comment --comment "allow outbound traffic from pods" -j ACCEPT'
    programs = [f"{name}-{backend.value}" for name in PROGRAM.values()]
    add = "; ".join(f"{program} {words}" for program in programs)
    sandbox.run(f"{add}; {add}; {add}")
    text = printed(sandbox)
    sandbox.run(f"{add}; {add}")
    assert clean_by(sandbox, text)
    assert [sandbox.run([program, "-S", "FORWARD"]).stdout.count("-A ") for program in programs] == [2, 2]


COMMENTS = [
    "", " ", "-j", "!", "'", '"', "\\", "$HOME `id` $(id)", 'a "b" \\ c', "*", "a\nb", "\n", "tab\there", "é€",
    "\udcff\udc80", "# x", "-D INPUT -j ACCEPT", "END", "%s\\n", "\r", "a' b", "COMMIT", ";reboot", "--comment", "~",
    "{a,b}", "a\\",
]  # fmt: skip


def comments() -> list[str]:
    chance = random.Random("comments")
    letters = "'\"\\$` \n\t!-*?#;&|<>()[]{}~aeé\udcff"
    return [*COMMENTS, *("".join(chance.choices(letters, k=chance.randrange(1, 60))) for _ in range(8))]


def test_whatever_a_comment_says(new_sandbox: Callable[..., Sandbox], backend: Backend) -> None:
    """The rule with it goes, and somebody else's with the same comment stays."""
    texts = list(dict.fromkeys(comments()))
    one, other = new_sandbox(), new_sandbox()
    programs = [f"{name}-{backend.value}" for name in PROGRAM.values()]
    for program in programs:
        add = f'{program} -A INPUT -m comment --comment "$each" -j'
        one.run(["sh", "-c", f"{program} -N {POD}; for each; do {add} ACCEPT; {add} {POD}; done", "sh", *texts])
        other.run(["sh", "-c", f"for each; do {add} ACCEPT; done", "sh", *texts])
    assert clean_by(one, printed(one))
    assert equal(one, other)
