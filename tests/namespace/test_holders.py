"""What others hold stays, with its holder in the report; what is not understood is handled all the same."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from scenes import ALL, NODES, Scene, clean, problems, without_counters

from firewall_cleanup import Backend, CleanupReport, Controller, Family, Kind, Outcome, Status
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace

PROGRAM = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}


def _run_twice(sandbox: Sandbox, **options: object) -> CleanupReport:
    """Dry run, run, and run again; the plan was true, the second run had nothing to do. Return the run."""
    planned = clean(sandbox, dry_run=True, **options)
    report = clean(sandbox, **options)
    again = clean(sandbox, **options)
    assert (planned.exit_code, report.exit_code, again.exit_code) == (0, 1, 1)
    assert (planned.changed, report.changed, again.changed) == (False, True, False)
    assert not report.gaps
    assert [_key(outcome) for outcome in planned.outcomes] == [_key(outcome) for outcome in report.outcomes]
    assert again.residue == report.residue
    assert planned.residue == report.residue
    return report


def _key(outcome: Outcome) -> tuple[object, ...]:
    return outcome.kind, outcome.family, outcome.backend, outcome.table, outcome.name, outcome.text


@pytest.mark.parametrize("family", Family)
def test_a_rule_that_stays_holds_a_set(new_sandbox: Callable[..., Sandbox], tools, family):
    scene = Scene(NODES["default"], tools.backend)
    wanted, sandbox = new_sandbox(tools.folder), new_sandbox(tools.folder)
    name = "inet6:kube-router-svip" if family is Family.IPV6 else "kube-router-svip"
    rule = f"-A INPUT -m set --match-set {name} src -j DROP"
    for each, gone in ((wanted, ALL), (sandbox, frozenset[Controller]())):
        each.load_sets("".join(f"{ln}\n" for ln in scene.sets().splitlines() if gone and ln.split()[1] == name))
        scene.load(each, gone)
        each.run([f"{PROGRAM[family]}-{tools.backend.value}", *rule.split()])

    report = _run_twice(sandbox)

    (left,) = report.residue
    assert (left.kind, left.name, left.status, left.family) == (Kind.SET, name, Status.IN_USE, family)
    assert left.holder is not None
    assert left.holder.to_dict() == {
        "kind": "rule",
        "family": family.value,
        "backend": tools.backend.value,
        "table": "filter",
        "chain": "INPUT",
        "text": rule,
    }
    assert sandbox.state() == wanted.state()


def test_a_rule_of_the_other_backend_holds_a_set(sandbox: Sandbox):
    Scene(NODES["default"], Backend.NFT).load(sandbox)
    sandbox.run("iptables-legacy -A INPUT -m set --match-set kube-router-node-ips src -j ACCEPT")
    (left,) = _run_twice(sandbox).residue
    assert left.holder is not None
    assert (left.name, left.holder.backend) == ("kube-router-node-ips", Backend.LEGACY)


def test_a_set_that_stays_holds_its_member(sandbox: Sandbox, backend: Backend):
    Scene(NODES["default"], backend).load(sandbox)
    sandbox.run("ipset create admin-all list:set && ipset add admin-all inet6:kube-router-svip")
    (left,) = _run_twice(sandbox).residue
    assert (left.name, left.status) == ("inet6:kube-router-svip", Status.IN_USE)
    assert left.holder is not None
    assert (left.holder.kind, left.holder.text) == (Kind.SET, "admin-all")
    assert sandbox.run("ipset test admin-all inet6:kube-router-svip", check=False).returncode == 0


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize(
    "lines",
    [
        "add map {} filter admin-map {{ type mark : verdict; elements = {{ 7 : jump KUBE-ROUTER-INPUT }}; }}",
        "add rule {} filter FORWARD meta mark vmap {{ 7 : goto KUBE-ROUTER-INPUT, 8 : accept }}",
    ],
    ids=["map", "anonymous map"],
)
def test_a_verdict_map_holds_a_chain(sandbox: Sandbox, family, lines):
    """The chain is emptied, which ends what it does; the map's owner can still delete it."""
    scene = Scene(NODES["default"], Backend.NFT)
    scene.load(sandbox)
    nft_family = "ip" if family is Family.IPV4 else "ip6"
    sandbox.load_tables(lines.format(nft_family))

    (left,) = _run_twice(sandbox).residue

    assert (left.kind, left.name, left.family) == (Kind.CHAIN, "KUBE-ROUTER-INPUT", family)
    assert left.status is Status.IN_USE
    assert left.holder is not None
    assert (left.holder.kind, left.holder.family, left.holder.table) == (Kind.SET, family, "filter")
    assert left.holder.text == ("admin-map" if "admin-map" in lines else "__map0")
    listed = sandbox.run(f"nft list chain {nft_family} filter KUBE-ROUTER-INPUT").stdout
    assert listed.split() == f"table {nft_family} filter {{ chain KUBE-ROUTER-INPUT {{ }} }}".split()
    assert "KUBE-ROUTER-INPUT" in sandbox.run(f"nft list table {nft_family} filter").stdout
    sandbox.run(f"nft flush chain {nft_family} filter FORWARD; nft flush map {nft_family} filter admin-map || :")
    assert problems(clean(sandbox)) == []


@pytest.mark.parametrize("family", Family)
def test_a_table_that_iptables_cannot_list_is_cleaned(new_sandbox: Callable[..., Sandbox], family):
    scene = Scene(NODES["default"], Backend.NFT)
    wanted, sandbox = new_sandbox(), new_sandbox()
    nft_family = "ip" if family is Family.IPV4 else "ip6"
    for each, gone in ((wanted, ALL), (sandbox, frozenset[Controller]())):
        scene.load(each, gone)
        each.load_tables(
            f"add rule {nft_family} filter INPUT ct state established counter packets 5 bytes 9 accept\n"
            f'insert rule {nft_family} filter FORWARD fib saddr type local accept comment "KUBE-ROUTER-INPUT"\n'
            f"add chain {nft_family} filter admin\n"
            f"add rule {nft_family} filter FORWARD tcp dport {{ 1, 2, 9 }} jump admin\n"
            f"add rule {nft_family} nat POSTROUTING masquerade random\n"
        )
        refused = each.run([f"{PROGRAM[family]}-nft", "-S"], check=False)
        assert refused.returncode
        assert "incompatible" in refused.stderr

    report = clean(sandbox)

    assert problems(report) == []
    show = f"nft list table {nft_family} filter; nft list table {nft_family} nat"
    assert sandbox.run(show).stdout == wanted.run(show).stdout
    assert sandbox.state() == wanted.state()
    assert not clean(sandbox).changed


OPAQUE = (
    "-m limit --limit 5/min --limit-burst 7",
    "-m time --timestart 08:00:00 --timestop 17:30:00",
    "-m length --length 100:200",
    "-m statistic --mode random --probability 0.25000000000",
    "-m connmark --mark 0x7/0xff",
    "-p tcp -m tcp --tcp-option 5",
    '-m comment --comment "it is mine, \\"quoted\\"" -m string --string "KUBE ROUTER" --algo bm',
    "-m hashlimit --hashlimit-upto 5/sec --hashlimit-burst 5 --hashlimit-name kube",
)


@pytest.mark.parametrize("family", Family)
def test_rules_with_opaque_parts_go_if_they_jump_to_owned_chains(new_sandbox: Callable[..., Sandbox], tools, family):
    """An opaque rule is foreign, unless it jumps to what is owned.

    Then the report has iptables' own words for it, or, where iptables would load modules to print it, a remark.
    """
    text = (
        "*filter\n:INPUT DROP [5:500]\n:FORWARD ACCEPT [6:600]\n:OUTPUT ACCEPT [7:700]\n:KUBE-ROUTER-INPUT - [0:0]\n"
        ":MINE - [0:0]\n"
        + "".join(
            f"[3:33] -A INPUT {part} -j {chain}\n" for part in OPAQUE for chain in ("KUBE-ROUTER-INPUT", "MINE")
        )
        + "COMMIT\n"
    )
    sandbox = new_sandbox(tools.folder)
    sandbox.load_rules(text, family, tools.backend)
    before = sandbox.state().lines(tools.backend, family)
    going = [without_counters(line) for line in before if line.endswith("-j KUBE-ROUTER-INPUT")]
    assert len(going) == len(OPAQUE)

    planned = clean(sandbox, dry_run=True)
    report = clean(sandbox)

    assert problems(report) == []
    texts = sorted(o.text or "" for o in report.outcomes if o.kind is Kind.RULE)
    if tools.backend is Backend.LEGACY:
        assert texts == sorted(going)
    else:
        assert len(texts) == len(going)
        assert all(text in going or re.search(r" <\w+>.* -j KUBE-ROUTER-INPUT$", text) for text in texts)
    assert [_key(outcome) for outcome in planned.outcomes] == [_key(outcome) for outcome in report.outcomes]
    after = sandbox.state().lines(tools.backend, family)
    assert after == [line for line in before if "KUBE-ROUTER-INPUT" not in line]


def test_texts_without_iptables(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    """Where iptables cannot be asked, the text says what was understood and names what was not."""
    sandbox.load_rules(
        "*filter\n:KUBE-ROUTER-INPUT - [0:0]\n-A INPUT -s 192.0.2.1/32 -m limit --limit 5/min -j KUBE-ROUTER-INPUT\n"
        "COMMIT\n",
        Family.IPV4,
        Backend.LEGACY,
    )
    monkeypatch.setattr("shutil.which", lambda *_args, **_options: None)
    (rule,) = (o for o in clean(sandbox).outcomes if o.kind is Kind.RULE)
    assert rule.text == "-A INPUT -s 192.0.2.1/32 <limit> -j KUBE-ROUTER-INPUT"


def test_another_controllers_rule_keeps_what_it_needs(sandbox: Sandbox, backend: Backend):
    """A policy chain that jumps to the service proxy's chain keeps it: kept, not residue."""
    Scene(NODES["default"], backend).load(sandbox)
    sandbox.run(f"iptables-{backend.value} -A KUBE-ROUTER-INPUT -m set --match-set kube-router-svip dst -j RETURN")
    report = clean(sandbox, [Controller.SERVICE_PROXY])
    assert problems(report) == []
    assert report.exit_code == 0
    (kept,) = (o for o in report.outcomes if o.status is Status.KEPT)
    assert kept.name == "kube-router-svip"
    assert kept.holder is not None
    assert kept.holder.controller is Controller.NETWORK_POLICY
    assert "create kube-router-svip " in sandbox.state().sets
    assert problems(clean(sandbox)) == []
    assert "create kube-router-svip " not in sandbox.state().sets
