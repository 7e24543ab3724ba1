"""The printed script does what the cleanup does, on the same nodes, and no more; run by several shells."""

from __future__ import annotations

import fcntl
import os
import random
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest
import test_routing as routing
from scenes import NODES, SELECTIONS, Scene, as_nobody, clean, command, plan_on, problems, without_counters

from firewall_cleanup import Backend, Controller, Family, Kind
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.dumps import read_dumps
from firewall_cleanup.engine import Settings
from firewall_cleanup.engine import run as run_engine
from firewall_cleanup.script import script
from firewall_cleanup.testing.memory import MemoryHost
from firewall_cleanup.testing.namespaces import Sandbox, State
from firewall_cleanup.testing.node import short_hash

pytestmark = pytest.mark.namespace

PROGRAM = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
POD = f"KUBE-POD-FW-{short_hash('pod')}"

Two = Callable[..., tuple[Sandbox, Sandbox]]


def bare(node: str, backend: Backend) -> Scene:
    """A node without its neighbours, which is loaded faster."""
    return Scene(NODES[node], backend, neighbours=False)


@pytest.fixture
def two(new_sandbox: Callable[..., Sandbox]) -> Two:
    """Two namespaces with the same in them: one for the script, one for the cleanup."""

    def make(scene: Scene, *, tools: str | None = None, also: str = "") -> tuple[Sandbox, Sandbox]:
        pair = new_sandbox(tools), new_sandbox(tools)
        for sandbox in pair:
            scene.load(sandbox)
            if also:
                sandbox.run(also)
        return pair

    return make


def printed(sandbox: Sandbox, **options: object) -> str:
    """The script for a node as it is now."""
    return script([clean(sandbox, dry_run=True, **options)], wait=20)


def run(sandbox: Sandbox, text: str, *, shell: Iterable[str] = ("sh",), **more: Any) -> tuple[int, str]:
    """Run a script; return its status and what it said."""
    file = sandbox.folder / "cleanup.sh"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    done = sandbox.run([*shell, str(file)], check=False, **more)
    assert done.stdout == ""
    return done.returncode, done.stderr


def clean_by(sandbox: Sandbox, text: str, **more: Any) -> bool:
    """Run a script, which must end well."""
    status, said = run(sandbox, text, **more)
    assert (status, said.splitlines()[-1]) == (0, "clean: nothing of this plan is left"), said
    return True


def equal(one: Sandbox, other: Sandbox) -> bool:
    """The states are equal, but for what no command of iptables-legacy keeps: the counters of policies."""

    def kept(state: State) -> State:
        rules = {
            name: re.sub(r"^(:\S+ (?!-)\S+) .*", r"\1", text, flags=re.MULTILINE) if "legacy" in name else text
            for name, text in state.rules.items()
        }
        return attrs.evolve(state, rules=rules)

    assert kept(one.state()) == kept(other.state())
    return True


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


# what it cannot do


def test_what_the_plan_leaves_is_left(two: Two, backend: Backend) -> None:
    """A set that somebody's rule uses: it ends as the cleanup does, and says why."""
    rule = f"iptables-{backend.value} -A INPUT -m set --match-set kube-router-svip src -j DROP"
    one, other = two(bare("default", backend), also=rule)
    text = printed(one)
    assert clean(other).exit_code == 1
    for _ in range(2):
        status, said = run(one, text)
        assert (status, said.splitlines()[-1]) == (1, "not clean: 1 left")
        assert equal(one, other)
    assert "#   ipv4 set kube-router-svip: in-use" in text


def test_a_rule_that_came_since(two: Two, backend: Backend) -> None:
    """Its chain is emptied and stays, the rest goes; when the rule has gone, another run ends it."""
    program = f"ip6tables-{backend.value}"
    one, other = two(bare("default", backend), also=f"{program} -N ADMIN")
    text = printed(one)
    clean(other)
    one.run(f"{program} -A ADMIN -j KUBE-ROUTER-INPUT")
    for _ in range(2):
        status, said = run(one, text)
        assert (status, said.splitlines()[-1]) == (1, "not clean: 1 left")
        assert f"left: ip6tables {backend.value} filter: chain KUBE-ROUTER-INPUT: " in said
        rules = [line for line in one.state().lines(backend, Family.IPV6) if "KUBE-" in line]
        assert sorted(map(without_counters, rules)) == ["-A ADMIN -j KUBE-ROUTER-INPUT", ":KUBE-ROUTER-INPUT -"]
    one.run(f"{program} -F ADMIN")
    assert clean_by(one, text)
    assert equal(one, other)


def test_a_set_that_is_used_since(two: Two) -> None:
    """It stays, and those behind it go."""
    one, other = two(bare("default", Backend.LEGACY))
    text = printed(one)
    clean(other)
    one.run("ipset create other list:set && ipset add other kube-router-svip")
    status, said = run(one, text)
    assert (status, said.splitlines()[-1]) == (1, "not clean: 1 left")
    assert "left: set kube-router-svip: " in said
    assert one.run("ipset list -n").stdout.split() == ["kube-router-svip", "other"]
    one.run("ipset destroy other")
    assert clean_by(one, text)
    assert equal(one, other)


def test_a_lock_that_another_program_holds(sandbox: Sandbox) -> None:
    """The table stays as it is, and the others go."""
    for backend in Backend:
        sandbox.run(f"iptables-{backend.value} -N {POD} && iptables-{backend.value} -A INPUT -j {POD}")
    text = printed(sandbox).replace("\nwait=20\n", "\nwait=1\n")
    before = sandbox.state()
    descriptor = os.open(sandbox.environment["XTABLES_LOCKFILE"], os.O_RDONLY | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        status, said = run(sandbox, text)
    finally:
        os.close(descriptor)
    assert status == 1
    assert "left: iptables legacy filter: the xtables lock" in said
    after = sandbox.state()
    assert after.lines(Backend.LEGACY) == before.lines(Backend.LEGACY)
    assert not any(POD in line for line in after.lines(Backend.NFT))
    assert clean_by(sandbox, text)
    assert not any(POD in line for line in sandbox.state().lines(Backend.LEGACY))


def test_a_table_that_iptables_cannot_list(two: Two) -> None:
    """Rules of nft in iptables' tables: those that jump to our chains go, and the others stay."""
    rules = """
        insert rule FAMILY filter INPUT ct state established counter accept comment "jump KUBE-ROUTER-INPUT"
        insert rule FAMILY filter OUTPUT ct state new counter jump KUBE-ROUTER-OUTPUT comment "mine"
        add rule FAMILY filter OUTPUT ct state new log prefix "jump KUBE-ROUTER-OUTPUT"
    """
    also = "".join(f"nft -f - <<'X'\n{rules.replace('FAMILY', family)}\nX\n" for family in ("ip", "ip6"))
    one, other = two(bare("default", Backend.NFT), also=also)
    text = printed(one)
    assert "jump_by_nft KUBE-ROUTER-OUTPUT 1 OUTPUT" in text
    assert problems(clean(other)) == []
    for _ in range(2):
        assert clean_by(one, text)
        assert equal(one, other)
        assert one.run("nft list ruleset").stdout == other.run("nft list ruleset").stdout


def test_rules_that_cannot_be_told_apart_are_left(sandbox: Sandbox) -> None:
    """In a chain whose rules iptables cannot read, what is ours by its form alone stays, and is told."""
    bare("default", Backend.NFT).load(sandbox)
    sandbox.run("nft insert rule ip filter FORWARD ct state new counter accept")
    shapes = [o for o in clean(sandbox, dry_run=True).outcomes if o.kind is Kind.RULE and o.evidence == "rule-shape"]
    there = [o for o in shapes if (o.family, o.table, o.name) == (Family.IPV4, "filter", "FORWARD")]
    status, said = run(sandbox, printed(sandbox))
    assert status == 1
    assert said.count("left: ") == len(there) > 0
    left = clean(sandbox, dry_run=True).outcomes
    assert {(o.kind, o.text) for o in left} == {(o.kind, o.text) for o in there}


def test_a_rule_that_this_iptables_does_not_understand(sandbox: Sandbox, backend: Backend) -> None:
    """It is not taken for one that is not there; the others go."""
    bare("default", backend).load(sandbox)
    text = printed(sandbox).replace(" --random-fully", " --option-of-tomorrow")
    status, said = run(sandbox, text)
    assert status == 1
    told = [line for line in said.splitlines() if line.startswith("left: ip")]
    assert told
    assert all("--option-of-tomorrow" in line for line in told)
    left = [o for o in clean(sandbox, dry_run=True).outcomes if o.kind is Kind.RULE]
    assert [o.name for o in left] == ["POSTROUTING", "POSTROUTING"]
    assert all("--random-fully" in (o.text or "") for o in left)


def test_a_program_is_missing(sandbox: Sandbox) -> None:
    before = bare("default", Backend.NFT).load(sandbox)
    text = printed(sandbox).replace("need ipset\n", "need ipset-of-nowhere\nneed_iptables iptables none\n")
    status, said = run(sandbox, text)
    assert status == 2
    assert "missing on this machine: " in said
    assert "ipset-of-nowhere" in said
    assert "iptables for none" in said
    assert sandbox.state() == before


def test_not_root(sandbox: Sandbox, tmp_path: Path) -> None:
    before = bare("default", Backend.NFT).load(sandbox)
    as_him, _python = as_nobody(tmp_path)
    done = sandbox.run([*as_him, "sh", "-s"], input=printed(sandbox), check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "not root" in done.stderr
    assert sandbox.state() == before


def test_without_the_capability(sandbox: Sandbox, backend: Backend) -> None:
    """Root of a container that may not: everything is told, nothing is changed."""
    before = bare("nft-netpol", backend).load(sandbox)
    words = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", "sh", "-s"]
    done = sandbox.run(words, input=printed(sandbox), check=False)
    assert done.returncode == 1
    assert "not clean" in done.stderr
    assert sandbox.state() == before


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_each_write(two: Two, tmp_path: Path, when: str) -> None:
    """Each run is killed at one of its writes, or of the commands that look; the next one goes on to the same end."""
    also = "; ".join(f"{name}-legacy -N {POD}; {name}-legacy -A INPUT -j {POD}" for name in PROGRAM.values())
    one, other = two(bare("nft-netpol", Backend.NFT), also=also)
    text = printed(one)
    for backend in Backend:
        for name in PROGRAM.values():
            _dying(tmp_path, f"{name}-{backend.value}-restore", when)
    _dying(tmp_path, "ipset", when)
    _dying(tmp_path, "nft", when)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    statuses = []
    # Killed at its first write a run may get nowhere: the next one lives longer.
    for turn in range(6):
        (tmp_path / "left").write_text(str(2**turn))
        statuses.append(run(one, text, env=path, start_new_session=True)[0])
    assert set(statuses) <= {-9, 0}
    assert statuses.count(-9) >= 3
    assert clean_by(one, text)
    clean(other)
    assert equal(one, other)


def _dying(folder: Path, name: str, when: str) -> None:
    """Make a command that kills the whole script, before or after what it does, when the file `left` is down to 0."""
    real, left = shutil.which(name), folder / "left"
    counts = f'case "$*" in *list* | *-V*) ;; *) echo $(($(cat {left}) - 1)) > {left} ;; esac\n'
    dies = f"[ $(cat {left}) -gt 0 ] || kill -KILL 0\n"
    lines = {
        "before": f'{counts}{dies}exec {real} "$@"\n',
        "after": f'{counts}{real} "$@"\nstatus=$?\n{dies}exit $status\n',
    }
    file = folder / name
    file.write_text("#!/bin/sh\n" + lines[when])
    file.chmod(0o755)


# policy rules, routes, the bridge


def test_links_routes_and_policy_rules(sandbox: Sandbox) -> None:
    routing.neighbours(sandbox)
    before = routing.shown(sandbox)
    routing.owned(sandbox)
    text = printed(sandbox)
    for _ in range(2):
        assert clean_by(sandbox, text)
        assert routing.shown(sandbox) == before


def test_a_policy_rule_that_would_take_another(sandbox: Sandbox) -> None:
    """What a rule does not have is anything to the kernel: a rule that says more must not go in its place."""
    sandbox.run("ip link set lo up && ip rule add pref 50 lookup 79 && ip -6 rule add pref 50 lookup 79")
    text = printed(sandbox)
    sandbox.run("ip rule add pref 50 from 192.0.2.1 lookup 79")
    before = sandbox.run("ip rule").stdout
    status, said = run(sandbox, text)
    assert status == 1
    assert "policy rule 50: from all lookup 79: another rule" in said
    assert sandbox.run("ip rule").stdout == before
    assert "79" not in sandbox.run("ip -6 rule").stdout


def test_a_route_of_another_metric(sandbox: Sandbox) -> None:
    """It came since: to the kernel, a route that is to be deleted without a metric may have any."""
    sandbox.run("ip link set lo up && ip route add local default dev lo table 78")
    sandbox.run("ip -6 route add local default dev lo table 78 metric 5")
    text = printed(sandbox)
    sandbox.run("ip route del local default table 78 && ip route add local default dev lo table 78 metric 9")
    sandbox.run("ip -6 route del local default table 78 && ip -6 route add local default dev lo table 78 metric 9")
    assert clean_by(sandbox, text)
    assert [sandbox.run(f"ip {flag} route show table 78").stdout.count("metric 9") for flag in ("-4", "-6")] == [1, 1]


def test_a_bridge_that_has_a_pod_by_now(sandbox: Sandbox) -> None:
    sandbox.run("ip link add kube-bridge type bridge")
    text = printed(sandbox)
    sandbox.run("ip link add pod0 type veth peer name pod1 && ip link set pod0 master kube-bridge")
    asked = printed(sandbox, remove_bridge=True)
    status, said = run(sandbox, text)
    assert status == 1
    assert "link kube-bridge: links are attached to it by now" in said
    assert clean_by(sandbox, asked)
    assert "kube-bridge" not in sandbox.run("ip link").stdout
    assert clean_by(sandbox, text)


def test_a_link_of_another_kind(sandbox: Sandbox) -> None:
    """It has the name of ours and is none."""
    sandbox.run("ip link add kube-bridge type bridge")
    text = printed(sandbox)
    sandbox.run("ip link del kube-bridge && ip link add kube-bridge type veth peer name other")
    assert clean_by(sandbox, text)
    assert "kube-bridge" in sandbox.run("ip link").stdout
