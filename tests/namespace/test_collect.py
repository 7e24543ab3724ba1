"""Collecting from the kernel changes nothing, and a plan on the files says what a plan on the node says."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from scenes import ALL, NODES, SELECTIONS, Scene, command, generation, json_of, plan_on, without_writers
from test_routing import NETS, neighbours
from test_routing import ip as run_ip

from firewall_cleanup import Backend, Controller, Family, cleanup, collect, plan_from
from firewall_cleanup.bundle import FILES, MANIFEST
from firewall_cleanup.filehost import UNTOLD
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace


def load(sandbox: Sandbox, backend: Backend) -> None:
    """A node among neighbours, with routes and rules of both, and with rules that hold what is owned."""
    neighbours(sandbox)
    Scene(NODES["default"], backend).load(sandbox)
    sandbox.load_tables(NODES["nft-netpol"].nft_tables())
    for flag, (pods, peer_pods, peer, _net) in NETS.items():
        lines = [f"rule add from {pods} lookup 77", f"route add {peer_pods} via {peer} proto 17"]
        run_ip(sandbox, lines, flag)
    run_ip(sandbox, ["link add kube-bridge type bridge", "link set pod0 master kube-bridge"])
    for iptables in ("iptables", "ip6tables"):
        inet6 = "inet6:" if iptables == "ip6tables" else ""
        for rule in (
            f"-A INPUT -m recent --name us --update -m set --match-set {inet6}kube-router-svip src -j DROP",
            f"-A INPUT -j SET --add-set {inet6}kube-router-svip-prt src,dst",
            "-A FORWARD -m recent --name them --set -j KUBE-ROUTER-FORWARD",
            "-A OUTPUT -m hashlimit --hashlimit-upto 5/sec --hashlimit-name them",
        ):
            sandbox.run([f"{iptables}-{backend.value}", *rule.split()])
    if backend is Backend.NFT:
        verdicts = "{ type ipv4_addr : verdict; elements = { 192.0.2.7 : jump KUBE-ROUTER-INPUT }; }"
        sandbox.run(["nft", f"add map ip filter theirs {verdicts}"])


def by_standard_tools(sandbox: Sandbox, folder: Path) -> Path:
    """What a person without this program would send."""
    folder.mkdir()
    commands = {
        **{name: [name] for name in FILES if name.endswith(("-nft-save", "-legacy-save"))},
        "ipset-save": ["ipset", "save"],
        "nft-ruleset.json": ["nft", "-j", "list", "ruleset"],
        "ip-link.json": "ip -j -d link".split(),
        "ip-addr.json": "ip -j addr".split(),
        "ip-rule.json": "ip -4 -j rule".split(),
        "ip6-rule.json": "ip -6 -j rule".split(),
        "ip-route.json": "ip -4 -j route show table all".split(),
        "ip6-route.json": "ip -6 -j route show table all".split(),
    }
    for name, words in commands.items():
        (folder / name).write_text(sandbox.run(words, check=False).stdout)
    (folder / "ipvsadm-save").write_text("")  # this kernel has none
    return folder


def test_a_plan_elsewhere_is_that_of_the_node(sandbox: Sandbox, backend: Backend):
    load(sandbox, backend)
    number = generation(sandbox)
    folder = sandbox.folder / "bundle"
    done = command(sandbox, "--collect", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("complete: ")
    assert generation(sandbox) == number
    assert {p.name for p in folder.iterdir()} == {*FILES, MANIFEST} - {"iptables-save", "ip6tables-save"}
    assert {p.stat().st_mode & 0o777 for p in folder.iterdir()} == {0o600}
    for options in ("--cleanup-config --dry-run", "--cleanup-config --dry-run -v --family ipv6", "--check"):
        there, here = command(sandbox, *options.split()), plan_on(folder, *options.split())
        assert (here.stderr, here.returncode) == ("", there.returncode), options
        assert here.stdout == f"not seen: {UNTOLD}\n{there.stdout}"
    for controllers, families in [*((some, None) for some in SELECTIONS.values()), (ALL, [Family.IPV4])]:
        on_node = cleanup(netns=sandbox.path, controllers=controllers, families=families, dry_run=True)
        here = plan_from(folder, controllers=controllers, families=families)
        assert without_writers(here.to_dict()) == without_writers(on_node.to_dict())
    report = plan_from(folder)
    assert report.bad_lines == ()
    assert {outcome.status.value for outcome in report.outcomes} == {"planned", "in-use"}
    assert {outcome.controller for outcome in report.outcomes} >= set(Controller)
    assert {outcome.kind.value for outcome in report.outcomes} >= {
        "route",
        "policy-rule",
        "set",
        "chain",
        "rule",
        "table",
    }


def test_the_standard_tools_tell_the_same(sandbox: Sandbox, backend: Backend, tmp_path: Path):
    load(sandbox, backend)
    sandbox.run("nft delete map ip filter theirs 2>/dev/null || :")  # iptables-nft-save would leave the table out
    folder = by_standard_tools(sandbox, tmp_path / "x")
    there = json_of(command(sandbox, "--cleanup-config", "--dry-run", "--output=json"))
    done = command(sandbox, "--from", str(folder), "--dry-run", "--output=json")
    assert done.returncode == 0
    here = json_of(done)
    if backend is Backend.NFT:
        # In a file there are words for a rule that is not understood; on the node iptables-nft, which loads modules
        # to find them, is not asked.
        for ours, theirs in zip(here["outcomes"], there["outcomes"], strict=True):
            for one, other in ((ours, theirs), (ours["holder"] or {}, theirs["holder"] or {})):
                if re.search(r"<\w+>", other.get("text") or ""):
                    assert re.match("-A ", one["text"])
                    one["text"] = other["text"]
    assert without_writers(here) == without_writers(there)


@pytest.mark.parametrize("expression", ["meta cpu 3", "ct count over 3"])
def test_a_table_that_the_tool_leaves_out_is_a_gap(sandbox: Sandbox, expression: str, tmp_path: Path):
    """As `iptables-nft-save` does, or stops in it, where somebody used nft."""
    Scene(NODES["default"], Backend.NFT).load(sandbox)
    sandbox.run(f"nft add rule ip filter INPUT {expression} accept")
    report = plan_from(by_standard_tools(sandbox, tmp_path / "x"))
    table = "filter" if expression.startswith("ct") else None
    assert {(gap.family, gap.backend) for gap in report.gaps} == {(Family.IPV4, Backend.NFT)}
    assert table in {gap.table for gap in report.gaps}
    assert report.exit_code == 1
    # Our own reader takes that rule for what it is: somebody's.
    collect(tmp_path / "y", netns=sandbox.path)
    assert plan_from(tmp_path / "y").gaps == ()


@pytest.mark.parametrize("node", ["k3s", "historic"])
def test_nodes_of_all_sorts(sandbox: Sandbox, backend: Backend, node: str, tmp_path: Path):
    before = Scene(NODES[node], backend).load(sandbox)
    collect(tmp_path, netns=sandbox.path)
    assert sandbox.state() == before
    there = json_of(command(sandbox, "--cleanup-config", "--dry-run", "--output=json"))
    assert without_writers(json.loads(json.dumps(plan_from(tmp_path).to_dict()))) == without_writers(there)


def test_without_the_tools(sandbox: Sandbox, tmp_path: Path):
    """As in a container that has Python and no more: nothing that a plan needs is missing."""
    load(sandbox, Backend.LEGACY)
    words = [sys.executable, "-m", "firewall_cleanup", "--collect", str(tmp_path / "x")]
    script = 'mount -t tmpfs none /usr/sbin; mount -t tmpfs none /sbin; exec "$@"'
    done = sandbox.run(
        ["unshare", "--mount", "sh", "-c", f"export PATH=/usr/bin:/bin; {script}", "sh", *words], check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "of sets only the members that may prove something were written: the command ipset is not" in done.stdout
    here = plan_from(tmp_path / "x")
    assert here.gaps == ()
    # Only what iptables says of rules that are not decoded is not known then, as in a plan there.
    collect(tmp_path / "y", netns=sandbox.path)
    there = plan_from(tmp_path / "y")
    assert [(o.kind, o.name, o.status) for o in here.outcomes] == [(o.kind, o.name, o.status) for o in there.outcomes]


def test_members_that_prove_nothing_can_be_left_out(sandbox: Sandbox, tmp_path: Path):
    Scene(NODES["default"], Backend.NFT).load(sandbox)
    for name, options in (("with", []), ("without", ["--without-members"])):
        assert command(sandbox, "--collect", str(tmp_path / name), *options).returncode == 0
    whole, short = ((tmp_path / name / "ipset-save").read_text() for name in ("with", "without"))
    assert whole.splitlines() == sandbox.run("ipset save").stdout.splitlines()
    assert "add kube-router-pod-subnets" in whole
    lists = {line.split()[1] for line in whole.splitlines() if line.startswith("create ") and " list:set" in line}
    assert {line.split()[1] for line in short.splitlines() if line.startswith("add ")} <= lists
    assert plan_from(tmp_path / "with").to_dict() == plan_from(tmp_path / "without").to_dict()


def test_without_rights(sandbox: Sandbox, tmp_path: Path):
    """What may be read is written; the rest is a gap there and here, the same."""
    Scene(NODES["default"], Backend.NFT).load(sandbox)
    drop = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
    run = [*drop, sys.executable, "-m", "firewall_cleanup"]
    done = sandbox.run([*run, "--collect", str(tmp_path / "x"), "--output=json"], check=False)
    assert done.returncode == 1
    said = json_of(done)
    assert (said["version"], said["complete"]) == (1, False)
    assert any("CAP_NET_ADMIN" in gap["reason"] for gap in said["gaps"])
    assert "ipset-save" not in said["files"]
    there = json_of(sandbox.run([*run, "--cleanup-config", "--dry-run", "--output=json"], check=False))
    assert there["gaps"]
    assert without_writers(json.loads(json.dumps(plan_from(tmp_path / "x").to_dict()))) == without_writers(there)
    text = sandbox.run([*run, "--collect", str(tmp_path / "y")], check=False).stdout
    assert text.splitlines()[-1].startswith("not complete: ")


def test_by_namespace(new_sandbox: Callable[..., Sandbox], tmp_path: Path):
    home, away = new_sandbox(), new_sandbox()
    Scene(NODES["default"], Backend.LEGACY).load(away)
    assert command(home, "--collect", str(tmp_path / "x"), "--netns", away.path).returncode == 0
    assert command(home, "--collect", str(tmp_path / "y"), "--netns", "/no/such/path").returncode == 2
    assert not (tmp_path / "y").exists()
    assert len(plan_from(tmp_path / "x").outcomes) > 50
    done = command(home, "--collect", str(tmp_path / "x"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "iptables-nft-save is there already; choose another folder" in done.stderr


def test_an_empty_node(sandbox: Sandbox, tmp_path: Path):
    """No table comes of looking."""
    before = sandbox.state()
    report = collect(tmp_path / "x", netns=sandbox.path)
    assert (report.complete, report.exit_code, report.notes) == (True, 0, ())
    assert sandbox.state() == before
    assert sandbox.run("nft list tables").stdout == ""
    assert plan_from(tmp_path / "x", check=True).exit_code == 0
