"""A backup and its restoring: the state from before comes back, object by object."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Callable

import attrs
import pytest
import test_routing as routing
from killer import backup
from scenes import NODES, Scene, clean, command, problems, without_counters
from undo_cases import put_back, runs, same, wrong

from firewall_cleanup import Backend, BackupError, Controller, Family, Kind, Restored, restore
from firewall_cleanup.backup import Backup
from firewall_cleanup.handlers.tools import Tools
from firewall_cleanup.plan import Plan
from firewall_cleanup.reading import Reading
from firewall_cleanup.testing.namespaces import Sandbox
from firewall_cleanup.undo.files import write_run
from firewall_cleanup.undo.saved import Saved

pytestmark = pytest.mark.namespace


@pytest.mark.parametrize("node", NODES)
def test_round_trip(sandbox: Sandbox, backend: Backend, node: str):
    """Clean and restore give the state from before: rules, places, counters, policies with theirs, sets, tables."""
    before = Scene(NODES[node], backend).load(sandbox)
    report = clean(sandbox, backup=sandbox.folder / "backup")
    assert problems(report) == []
    assert sandbox.state() != before
    restored = put_back(sandbox)
    assert wrong(restored) == []
    assert restored.changed
    assert restored.exit_code == 0
    assert same(sandbox, before)
    again = put_back(sandbox)
    assert wrong(again) == []
    assert not again.changed
    assert same(sandbox, before)


@pytest.fixture
def newer(newer_iptables: str, new_sandbox: Callable[..., Sandbox]) -> Sandbox:
    """A namespace that is filled by an iptables that, unlike 1.8.9, keeps the counters of IPv6."""
    return new_sandbox(newer_iptables)


def test_counters_of_ipv6(newer: Sandbox):
    before = Scene(NODES["historic"], Backend.NFT).load(newer)
    for family in Family:
        counted = [ln for ln in before.lines(Backend.NFT, family) if "KUBE-ROUTER-INPUT" in ln and ln[0] == "["]
        assert counted
        assert not any(line.startswith("[0:0]") for line in counted)
    clean(newer, backup=backup(newer))
    assert wrong(put_back(newer)) == []
    assert same(newer, before)


def test_the_files_are_for_the_standard_tools(newer: Sandbox, backend: Backend):
    """Without this program, in the order and by the commands that the manifest gives, the same state comes back."""
    before = Scene(NODES["nft-netpol"], backend).load(newer)
    clean(newer, backup=backup(newer))
    (run,) = runs(newer)
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["component"] == "kube-router"
    names = {path.name for path in run.iterdir()}
    assert names == {one["file"] for one in manifest["order"]} | {"manifest.json"}
    assert {f"iptables-{backend.value}.{family.value}" for family in Family} < names
    for one in manifest["order"]:
        newer.run(f"{one['command']} {'' if one['command'].endswith('-f') else '<'} {run / one['file']}")
    after = newer.state()
    if backend is Backend.LEGACY:  # these tools set the counters of policies to zero; the manifest has them
        saved = {table["family"]: table["policies"] for table in manifest["tables"] if table["table"] == "filter"}
        assert all(f":INPUT {saved[f.value]['INPUT']}" in before.lines(backend, f) for f in Family)
        before, after = (
            attrs.evolve(state, rules={name: _without_policy_counters(text) for name, text in state.rules.items()})
            for state in (before, after)
        )
    assert attrs.evolve(after, native="") == attrs.evolve(before, native="")
    assert sorted(after.native.splitlines()) == sorted(before.native.splitlines())


def _without_policy_counters(text: str) -> str:
    return re.sub(r"^(:\S+ (?!-)\S+) .*", r"\1", text, flags=re.MULTILINE)


BROKEN = "a\nb c"


def test_a_comment_of_somebody_else_with_a_line_break(sandbox: Sandbox, backend: Backend):
    """In another table too: it is one rule, and harms neither keeping nor putting back."""
    Scene(NODES["default"], backend).load(sandbox)
    for program in ("iptables", "ip6tables"):
        for table, chain in (("mangle", "OUTPUT"), ("filter", "INPUT")):
            words = [f"{program}-{backend.value}", "-t", table, "-I", chain, "1"]
            sandbox.run([*words, "-m", "comment", "--comment", BROKEN, "-j", "ACCEPT"])
    sandbox.run(["ipset", "create", "theirs", "hash:ip", "comment"])
    sandbox.run(["ipset", "add", "theirs", "192.0.2.1", "comment", BROKEN])
    before = sandbox.state()
    assert problems(clean(sandbox, backup=backup(sandbox))) == []
    assert wrong(put_back(sandbox)) == []
    assert same(sandbox, before)


def test_an_owned_rule_with_a_line_break_is_not_removed_without_a_backup(sandbox: Sandbox, backend: Backend):
    """No line of the tools can hold it."""
    Scene(NODES["default"], backend).load(sandbox)
    words = [f"iptables-{backend.value}", "-A", "KUBE-ROUTER-INPUT", "-m", "comment", "--comment", BROKEN]
    sandbox.run([*words, "-j", "ACCEPT"])
    before = sandbox.state()
    report = clean(sandbox, backup=backup(sandbox))
    assert (report.changed, report.exit_code) == (False, 1)
    assert ["line break" in gap.reason for gap in report.gaps if gap.subsystem == "backup"] == [True]
    assert sandbox.state() == before
    assert problems(clean(sandbox)) == []


def test_a_set_that_cannot_be_whole_is_told_as_it_is(sandbox: Sandbox):
    """It was made, and its member is not to be had: that is a change, and a part is there."""
    folder = backup(sandbox)
    lines = ("create KUBE-L list:set size 8", "add KUBE-L nothing")
    write_run(folder, Saved(sets={"KUBE-L": lines}).to_files({}), 0)
    report = put_back(sandbox)
    assert (report.changed, report.complete) == (True, False)
    assert ["only a part of it is there" in (outcome.reason or "") for outcome in report.outcomes] == [True]


def test_who_may_read_it(sandbox: Sandbox, backend: Backend):
    Scene(NODES["default"], backend).load(sandbox)
    clean(sandbox, backup=backup(sandbox))
    (run,) = runs(sandbox)
    assert re.fullmatch(r"\d{8}T\d{6}Z-001", run.name)
    for folder in (backup(sandbox), run):
        assert folder.stat().st_mode & 0o777 == 0o700
    for path in run.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        assert not path.name.startswith(".")


def test_nothing_to_remove_makes_no_backup(sandbox: Sandbox):
    report = clean(sandbox, backup=backup(sandbox))
    assert report.clean
    assert report.backup is None
    assert not backup(sandbox).exists()


@pytest.mark.parametrize("place", ["file", "missing/file/backup", "/proc/backup"])
def test_a_backup_that_cannot_be_written(sandbox: Sandbox, backend: Backend, place: str):
    """Nothing is changed, and one line says why."""
    before = Scene(NODES["nft-netpol"], backend).load(sandbox)
    (sandbox.folder / "file").write_text("")
    (sandbox.folder / "missing").mkdir()
    (sandbox.folder / "missing/file").write_text("")
    done = command(sandbox, "--cleanup-config", "--backup", str(sandbox.folder / place))
    assert done.returncode == 1
    assert done.stderr == ""
    assert "nothing was changed" in done.stdout
    assert len([line for line in done.stdout.splitlines() if "backup cannot be written" in line]) == 1
    assert sandbox.state() == before
    assert [line for line in done.stdout.splitlines() if "removed nothing" in line]


def test_a_full_disk(sandbox: Sandbox, backend: Backend, monkeypatch: pytest.MonkeyPatch):
    before = Scene(NODES["default"], backend).load(sandbox)
    count = [0]

    def full(descriptor: int) -> None:
        count[0] += 1
        if count[0] == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    report = clean(sandbox, backup=backup(sandbox))
    assert report.exit_code == 1
    assert not report.changed
    (gap,) = report.gaps
    assert gap.subsystem == "backup"
    assert "No space left on device" in gap.reason
    assert runs(sandbox) == []
    assert sandbox.state() == before
    with pytest.raises(BackupError, match="there is no backup in it"):
        put_back(sandbox)


def test_controllers_one_after_the_other(sandbox: Sandbox, backend: Backend):
    """Each run has a folder of its own; together they give all back."""
    before = Scene(NODES["nft-netpol"], backend).load(sandbox)
    for controller in Controller:
        clean(sandbox, [controller], backup=backup(sandbox))
    clean(sandbox, backup=backup(sandbox))
    assert [path.name[-4:] for path in runs(sandbox)] >= ["-001"]
    assert len(runs(sandbox)) >= 3
    assert wrong(put_back(sandbox)) == []
    assert same(sandbox, before)


def test_one_run_alone(new_sandbox: Callable[..., Sandbox], backend: Backend):
    wanted, sandbox = new_sandbox(), new_sandbox()
    Scene(NODES["default"], backend).load(wanted)
    Scene(NODES["default"], backend).load(sandbox)
    clean(wanted, [Controller.NETWORK_POLICY])
    for controller in (Controller.SERVICE_PROXY, Controller.NETWORK_POLICY):
        clean(sandbox, [controller], backup=backup(sandbox))
    assert wrong(put_back(sandbox, runs(sandbox)[0])) == []
    after, expected = sandbox.state(), wanted.state()
    assert after.rules == expected.rules
    # The sets of a crashed sync belong to no controller: the first cleanup took them.
    lines = [line for line in after.sets.splitlines() if "TMP-" not in line]
    assert lines == [line for line in expected.sets.splitlines() if "TMP-" not in line]


def test_in_a_world_that_went_on(sandbox: Sandbox, backend: Backend):
    """Foreign rules came and went meanwhile: a rule goes where its neighbours are."""
    filler = "".join(f"[{n}:{n}0] -A INPUT -p tcp -m tcp --dport {n} -j ACCEPT\n" for n in range(1, 7))
    own = '[9:90] -A INPUT -m comment --comment "kube-router netpol" -j KUBE-ROUTER-INPUT\n'
    lines = filler.splitlines(keepends=True)
    text = "*filter\n:INPUT DROP [5:500]\n:KUBE-ROUTER-INPUT - [0:0]\n:other - [0:0]\n" + "".join(lines[:3]) + own
    text += (
        "".join(lines[3:]) + "[8:80] -A other -j KUBE-ROUTER-INPUT\n[1:1] -A KUBE-ROUTER-INPUT -j RETURN\nCOMMIT\n"
    )
    for family in Family:
        sandbox.load_rules(text, family, backend)
    clean(sandbox, backup=backup(sandbox))
    for tool in ("iptables", "ip6tables"):
        name = f"{tool}-{backend.value}"
        sandbox.run(f"{name} -D INPUT 1 && {name} -D INPUT 2 && {name} -I INPUT 1 -p udp && {name} -I INPUT 4 -p udp")
    # Left of the six: udp, 2, 4, udp, 5, 6; ours stood between 3, which went, and 4.
    assert wrong(put_back(sandbox)) == []
    for family in Family:
        found = [without_counters(ln) for ln in sandbox.state().lines(backend, family) if " -A INPUT" in ln]
        words = [line.split("--dport ")[1].split()[0] if "--dport" in line else line.split()[-1] for line in found]
        assert words == ["udp", "2", "KUBE-ROUTER-INPUT", "4", "udp", "5", "6"]
    assert not put_back(sandbox).changed


CHANGES = {
    "chain": "{tool} -A KUBE-ROUTER-INPUT -p udp -j ACCEPT",
    "set": "ipset create kube-router-svip hash:net",
    "members": "ipset create kube-router-svip hash:ip timeout 0 && ipset add kube-router-svip 192.0.2.250",
    "table": "nft add table ip kube-router-filter-ipv4 && nft add chain ip kube-router-filter-ipv4 mine",
    "no-chain": "{tool} -F mine && {tool} -X mine",
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_different_stops_it_before_it_changes_anything(sandbox: Sandbox, backend: Backend, change: str):
    Scene(NODES["nft-netpol" if change == "table" else "default"], backend).load(sandbox)
    tool = f"iptables-{backend.value}"
    sandbox.run(f"{tool} -N mine && {tool} -A mine -j KUBE-ROUTER-SERVICES")
    clean(sandbox, backup=backup(sandbox))
    if change == "chain":
        sandbox.run(f"{tool} -N KUBE-ROUTER-INPUT")
    sandbox.run(CHANGES[change].format(tool=tool))
    before = sandbox.state()
    done = command(sandbox, "--restore", str(backup(sandbox)))
    assert done.returncode == 1
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[-1] == "not complete, and nothing was changed"
    (title,) = [i for i, line in enumerate(lines) if line.startswith("there, but different: 1 ")]
    names = {"chain": "KUBE-ROUTER-INPUT", "table": "kube-router-filter-ipv4", "no-chain": "mine: it is gone"}
    assert names.get(change, "kube-router-svip") in lines[title + 1]
    assert sandbox.state() == before


def test_what_is_there_in_part_is_completed(sandbox: Sandbox, backend: Backend):
    """A chain that was emptied and stayed, a set that lost members."""
    before = Scene(NODES["default"], backend).load(sandbox)
    clean(sandbox, backup=backup(sandbox))
    for tool in ("iptables", "ip6tables"):
        sandbox.run(f"{tool}-{backend.value} -N KUBE-ROUTER-INPUT")
    create, member, *_ = [ln for ln in before.sets.splitlines() if ln.split()[1] == "kube-router-svip"]
    sandbox.run(["ipset", "restore"], input=f"{create}\n{member}\n")
    assert wrong(put_back(sandbox)) == []
    after = sandbox.state()
    # The kernel lists chains in the order in which they were made.
    now, then = (
        {name: sorted(_without_policy_counters(text).splitlines()) for name, text in state.rules.items()}
        for state in (after, before)
    )
    assert now == then
    assert after.sets == before.sets


def test_a_table_that_iptables_cannot_list(sandbox: Sandbox):
    """Somebody put an expression of nf_tables into it: chains are listed alone, other rules as they were decoded."""
    Scene(NODES["default"], Backend.NFT).load(sandbox)
    for family in ("ip", "ip6"):
        sandbox.run(f"nft insert rule {family} filter FORWARD ct mark 7 counter packets 5 bytes 50 drop")

    def listed() -> list[str]:
        return [sandbox.run(f"nft list table {family} filter").stdout for family in ("ip", "ip6")]

    before = listed()
    assert "*filter" not in sandbox.state().lines(Backend.NFT)
    report = clean(sandbox, backup=backup(sandbox))
    assert problems(report) == []
    assert wrong(put_back(sandbox)) == []
    assert [sorted(text.splitlines()) for text in listed()] == [sorted(text.splitlines()) for text in before]
    assert not put_back(sandbox).changed


def without_iptables(patch: pytest.MonkeyPatch) -> None:
    find = Tools.find
    patch.setattr(Tools, "find", staticmethod(lambda name: None if "tables" in name else find(name)))


def test_a_rule_that_nothing_prints(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, backend: Backend):
    """The backup would not be complete, so nothing is changed."""
    before = Scene(NODES["default"], backend).load(sandbox)
    without_iptables(monkeypatch)
    report = clean(sandbox, backup=backup(sandbox))
    assert any("no command prints a rule with" in gap.reason for gap in report.gaps)
    assert report.exit_code == 1
    assert not report.changed
    assert sandbox.state() == before
    assert not backup(sandbox).exists()


def test_rules_without_a_command_that_prints_them(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, backend: Backend
):
    """They are written as they were decoded."""
    text = (
        "*filter\n:INPUT DROP [5:500]\n:KUBE-ROUTER-INPUT - [0:0]\n[3:30] -A INPUT -p udp -j REJECT\n"
        '[9:90] -A INPUT -m comment --comment "kube-router netpol" -j KUBE-ROUTER-INPUT\n'
        "[1:1] -A KUBE-ROUTER-INPUT -p tcp -m tcp --dport 80 -j RETURN\n"
        "[2:2] -A KUBE-ROUTER-INPUT -p tcp -m set --match-set {set} src -j RETURN\nCOMMIT\n"
    )
    sandbox.run("ipset create ipv4 hash:ip && ipset create ipv6 hash:ip family inet6")
    for family in Family:
        sandbox.load_rules(text.replace("{set}", family.value), family, backend)
    before = sandbox.state()
    with monkeypatch.context() as patch:
        without_iptables(patch)
        assert problems(clean(sandbox, backup=backup(sandbox))) == []
    assert sandbox.state() != before
    assert wrong(put_back(sandbox)) == []
    assert same(sandbox, before)


def test_usage(sandbox: Sandbox):
    before = Scene(NODES["default"], Backend.NFT).load(sandbox)
    folder = str(backup(sandbox))
    for options in (
        ("--cleanup-config", "--dry-run", "--backup", folder),
        ("--backup", folder),
        ("--restore", folder, "--family", "ipv4"),
        ("--restore", folder, "--check"),
        ("--restore", folder),  # there is none
        ("--restore", str(sandbox.folder)),
        ("--cleanup-config", "--restore", folder),
        ("--restore", folder, "--controller", "routing"),
        ("--restore", folder, "--netns", "no-such-namespace"),
    ):
        done = command(sandbox, *options)
        assert (done.returncode, done.stdout) == (2, ""), options
        assert "Traceback" not in done.stderr
    assert sandbox.state() == before
    with pytest.raises(ValueError, match="backup"):
        clean(sandbox, backup=folder, dry_run=True)


def test_the_command(sandbox: Sandbox, backend: Backend):
    before = Scene(NODES["default"], backend).load(sandbox)
    done = command(sandbox, "--cleanup-config", "--backup", str(backup(sandbox)), "--output", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["backup"] == str(runs(sandbox)[0])
    done = command(sandbox, "--restore", str(backup(sandbox)))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"complete: all that {backup(sandbox)} holds is there"
    assert same(sandbox, before)
    done = command(sandbox, "--restore", str(backup(sandbox)), "--output", "json")
    report = json.loads(done.stdout)
    assert list(report) == ["version", "directory", "complete", "changed", "outcomes", "problems"]
    assert (report["complete"], report["changed"], report["problems"]) == (True, False, [])
    assert {outcome["status"] for outcome in report["outcomes"]} == {"already-there"}
    assert {outcome["kind"] for outcome in report["outcomes"]} == {"chain", "rule", "set"}


@pytest.mark.parametrize("tool", ["ipset", "iptables-{}-restore"])
def test_a_missing_command(sandbox: Sandbox, backend: Backend, monkeypatch: pytest.MonkeyPatch, tool: str):
    Scene(NODES["default"], backend).load(sandbox)
    name = tool.format(backend.value)
    find = Tools.find
    if tool == "ipset":
        with monkeypatch.context() as patch:
            patch.setattr(Tools, "find", staticmethod(lambda word: None if word == name else find(word)))
            before = sandbox.state()
            report = clean(sandbox, backup=backup(sandbox))
            assert not report.changed
            assert any("the command ipset is not installed" in gap.reason for gap in report.gaps)
            assert sandbox.state() == before
    clean(sandbox, backup=backup(sandbox))
    before = sandbox.state()
    monkeypatch.setattr(Tools, "find", staticmethod(lambda word: None if word == name else find(word)))
    report = put_back(sandbox)
    assert report.exit_code == 1
    assert any(f"the command {name} is not installed" in problem for problem in report.problems)
    assert not report.changed
    assert sandbox.state() == before


def test_a_busy_lock(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    """What needs no lock is put back, the rest is named; the next restore finishes."""
    before = Scene(NODES["default"], Backend.LEGACY).load(sandbox)
    clean(sandbox, backup=backup(sandbox))
    lock = sandbox.folder / "held"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(lock))
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        report = restore(backup(sandbox), netns=sandbox.path, wait=0)
    assert report.exit_code == 1
    assert any("xtables lock" in problem for problem in report.problems)
    assert {o.kind for o in report.outcomes if o.status is Restored.FAILED} == {Kind.CHAIN, Kind.RULE}
    assert wrong(put_back(sandbox)) == []
    assert same(sandbox, before)


def test_what_comes_between_backup_and_removal(sandbox: Sandbox, backend: Backend, monkeypatch: pytest.MonkeyPatch):
    """It is written as one more part before it is removed, and comes back with the rest."""
    Scene(NODES["default"], backend).load(sandbox)
    save, states = Backup.save, []

    def save_and_change(self: Backup, reading: Reading, plan: Plan) -> None:
        save(self, reading, plan)
        if not states:
            for tool in ("iptables", "ip6tables"):
                name = f"{tool}-{backend.value}"
                sandbox.run(
                    f"{name} -A KUBE-ROUTER-INPUT -p udp -j ACCEPT && {name} -I FORWARD 1 -j KUBE-ROUTER-INPUT"
                )
            states.append(sandbox.state())

    monkeypatch.setattr(Backup, "save", save_and_change)
    assert problems(clean(sandbox, backup=backup(sandbox))) == []
    (run,) = runs(sandbox)
    assert (run / "part-2" / "manifest.json").exists()
    assert not re.search(r"-j KUBE-ROUTER-INPUT$", "".join(sandbox.state().rules.values()), flags=re.MULTILINE)
    assert wrong(put_back(sandbox, run)) == []
    assert same(sandbox, states[0])


@pytest.mark.parametrize("newer_restores", [False, True])
def test_two_versions_of_iptables(
    newer: Sandbox, newer_iptables: str, monkeypatch: pytest.MonkeyPatch, newer_restores: bool
):
    """One writes the backup and the other puts it back."""
    before = Scene(NODES["historic"], Backend.NFT).load(newer)

    def use(is_newer: bool) -> None:
        monkeypatch.setenv("PATH", f"{newer_iptables}:{path}" if is_newer else path)

    path = os.environ["PATH"]
    use(not newer_restores)
    clean(newer, backup=backup(newer))
    use(newer_restores)
    assert wrong(put_back(newer)) == []
    use(not newer_restores)
    assert not put_back(newer).changed
    assert same(newer, before)


def test_links_routes_and_policy_rules(sandbox: Sandbox):
    """What this kernel has of them; tests/vm has the rest."""
    routing.neighbours(sandbox)
    routing.owned(sandbox)
    sandbox.run("ip link set pod0 master kube-bridge")

    def shown() -> list[object]:
        return [
            [_lasting(item) for item in json.loads(sandbox.run(f"ip -j {words}").stdout or "[]")]
            for words in ("-d addr", "-4 rule", "-6 rule", "-4 route show table all", "-6 route show table all")
        ]

    before = shown()
    assert problems(clean(sandbox, remove_bridge=True, backup=backup(sandbox))) == []
    assert shown() != before
    assert wrong(put_back(sandbox)) == []
    after = shown()
    assert [_unlike(was, now) for was, now in zip(before, after, strict=True)] == [[]] * len(before)
    assert not put_back(sandbox).changed


def _unlike(was: object, now: object) -> list[str]:
    assert isinstance(was, list)
    assert isinstance(now, list)
    return sorted(set(map(str, was)) ^ set(map(str, now)))


def _is_the_kernels(item: object) -> bool:
    of_a_moment = item in ("LOWER_UP", "NO-CARRIER", "linkdown")
    where = str(item.get("local", item.get("dst"))) if isinstance(item, dict) else ""
    return of_a_moment or where.startswith(("fe80:", "ff00:"))


def _lasting(item: object) -> object:
    """What `ip` says of an object, less numbers, timers of bridges, and what becomes of a link by and by."""
    dropped = {"ifindex", "link_index", "linkinfo", "operstate", "promiscuity", "allmulti", "tentative", "pref"}
    if isinstance(item, list):
        return sorted((_lasting(one) for one in item if not _is_the_kernels(one)), key=str)
    if isinstance(item, dict):
        return {key: _lasting(value) for key, value in item.items() if key not in dropped}
    return item
