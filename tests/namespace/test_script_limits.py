"""The printed script where it cannot do all, or is killed: it says so, harms nobody, and can be run again."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest
from scenes import as_nobody, clean, command, plan_on, problems, without_counters
from script_runs import POD, PROGRAM, Two, bare, clean_by, commands, equal, printed, run

from firewall_cleanup import Backend, Family, Kind
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace


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


@pytest.mark.parametrize("comment", ["a\nb", '"\n"', "-j\n-A INPUT"])
def test_a_rule_that_is_not_decoded_has_the_words_of_iptables(two: Two, backend: Backend, comment: str) -> None:
    """Line breaks of a comment among them, and beside a rule that says nothing at all.

    iptables-nft is not asked for them, as it loads modules: there it goes by its jump.
    """
    one, other = two(bare("nft-netpol", backend))
    for sandbox in (one, other):
        for program in (f"{name}-{backend.value}" for name in PROGRAM.values()):
            matches = ["-m", "comment", "--comment", comment, "-m", "length", "--length", "1:99"]
            sandbox.run(f"{program} -N {POD}; {program} -A INPUT")
            sandbox.run([program, "-A", "INPUT", *matches, "-j", POD])
            sandbox.run([program, "-A", "INPUT", *matches, "-j", "ACCEPT"])
    text = printed(one)
    found = {line for line in commands(text) if line.startswith(("jump_by_nft", "unnamed"))}
    assert found == (set() if backend is Backend.LEGACY else {f"jump_by_nft {POD} 1 INPUT"})
    command(one, "--collect", str(one.folder / "node"))
    assert commands(plan_on(one.folder / "node", "--dry-run", "--output", "script").stdout) == commands(text)
    assert problems(clean(other)) == []
    assert clean_by(one, text)
    assert equal(one, other)


def test_a_rule_that_nothing_prints_is_the_same_in_files(sandbox: Sandbox) -> None:
    """Somebody used nft in the table: what goes by its jump there, goes so by the script from files."""
    bare("default", Backend.NFT).load(sandbox)
    sandbox.run("nft insert rule ip filter INPUT ct state new counter jump KUBE-ROUTER-INPUT")
    sandbox.run("nft insert rule ip filter INPUT ct count over 3 accept")
    command(sandbox, "--collect", str(sandbox.folder / "node"))
    there = commands(printed(sandbox))
    assert "jump_by_nft KUBE-ROUTER-INPUT 1 INPUT" in there
    assert commands(plan_on(sandbox.folder / "node", "--dry-run", "--output", "script").stdout) == there


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
