"""Plans in words: groups, their order, what is folded, and how a terminal shows it."""

from __future__ import annotations

import io
import subprocess
import sys

import attrs
import pytest
from builders import LEGACY, NFT, POLICY, PROXY, ROUTING, V4, V6, clean, host_node
from rich.cells import cell_len
from rich.console import Console

from firewall_cleanup import Kind, Outcome, Status
from firewall_cleanup.plan_text import Line, Part, grouped, groups, left_lines
from firewall_cleanup.report import Holder
from firewall_cleanup.terminal import show
from firewall_cleanup.text import summary
from firewall_cleanup.words import evidence, object_name


def outcome(kind: Kind, name: str, why: str = "chain-name", **more: object) -> Outcome:
    where = (
        {"backend": NFT, "table": "filter"} if kind in {Kind.CHAIN, Kind.RULE} else {"backend": None, "table": None}
    )
    fields = {"controller": POLICY, "family": V4, "status": Status.PLANNED, **where, **more}
    return Outcome(component="kube-router", kind=kind, name=name, evidence=why, **fields)  # type: ignore[arg-type]


def chain(name: str, **more: object) -> Outcome:
    return outcome(Kind.CHAIN, name, **more)


def pod(number: int) -> str:
    return f"KUBE-POD-FW-{number:016d}"


def plain(items: list[Outcome], *, fold: bool = True) -> list[str]:
    return [line.plain for line in grouped(items, fold=fold)]


def test_groups_are_in_the_order_of_a_run() -> None:
    items = [
        outcome(Kind.LINK, "kube-dummy-if", "link-name", controller=PROXY, family=None),
        outcome(Kind.ADDRESS, "10.96.0.1/32", "on-owned-link", controller=PROXY),
        outcome(Kind.SET, "KUBE-SRC-1", "set-name"),
        chain("KUBE-ROUTER-INPUT", backend=LEGACY),
        chain("KUBE-ROUTER-INPUT"),
        outcome(Kind.TABLE, "kube-router-filter-ipv4", "table-name"),
        chain("KUBE-ROUTER-HAIRPIN", controller=PROXY, table="nat"),
        outcome(Kind.IPVS_SERVICE, "tcp 10.96.0.1:443", "dummy-address", controller=PROXY),
        outcome(Kind.FOU_PORT, "5555", "tunnel-port", controller=ROUTING),
        outcome(Kind.ROUTE, "10.0.0.0/8", "route-table", controller=ROUTING),
        outcome(Kind.POLICY_RULE, "32764", "policy-rule", controller=ROUTING),
        outcome(Kind.SET, "TMP-1", "temporary-set", controller=None, family=V6),
    ]
    found = [(group.owner, group.subsystem) for group in groups(items)]
    assert found == [
        ("service-proxy, ipv4", "IPVS"),
        ("service-proxy, ipv4", "iptables nft, nat"),
        ("service-proxy, ipv4", "addresses"),
        ("service-proxy, no family", "links"),
        ("network-policy, ipv4", "iptables nft, filter"),
        ("network-policy, ipv4", "nftables"),
        ("network-policy, ipv4", "iptables legacy, filter"),
        ("network-policy, ipv4", "ipset"),
        ("routing, ipv4", "policy rules"),
        ("routing, ipv4", "routes"),
        ("routing, ipv4", "FOU ports"),
        ("no single controller, ipv6", "ipset"),
    ]
    assert [(group.owner, group.subsystem) for group in groups(items[::-1])] == found


def test_within_a_group_what_goes_first_comes_first() -> None:
    """Rules before chains, and services before those that prove them."""
    rule = outcome(Kind.RULE, "INPUT", "jump", text="-A INPUT -j KUBE-ROUTER-INPUT", detail="KUBE-ROUTER-INPUT")
    assert [item.kind for item in next(groups([chain("A"), rule])).items] == [Kind.RULE, Kind.CHAIN]
    proof = outcome(Kind.IPVS_SERVICE, "tcp 10.96.0.1:443", "dummy-address", detail="kube-dummy-if")
    proven = outcome(Kind.IPVS_SERVICE, "tcp 192.0.2.1:30443", "same-destinations")
    assert next(groups([proof, proven])).items == (proven, proof)


def test_runs_of_alike_objects_are_folded() -> None:
    items = [chain(pod(n)) for n in range(12)] + [chain(f"KUBE-NWPLCY-{n:016d}") for n in range(3)]
    assert plain(items) == [
        "  network-policy, ipv4",
        "    iptables nft, filter (15)",
        *(f"      chain KUBE-NWPLCY-{n:016d}  [name of a chain of the network policy controller]" for n in range(3)),
        f"      12 chains {pod(0)} to {pod(11)}  [name of a chain of the network policy controller]",
    ]
    assert len(plain(items, fold=False)) == 2 + 15
    assert plain(items[::-1]) == plain(items)


def test_names_that_differ_in_more_are_not_alike() -> None:
    items = [chain(f"KUBE-ROUTER-{name}") for name in ("INPUT", "FORWARD", "OUTPUT", "SERVICES")]
    assert len(plain(items)) == 2 + 4


@pytest.mark.parametrize(
    "more",
    [{"evidence": "set-name"}, {"table": "nat"}, {"reason": "of note"}, {"status": Status.FAILED}, {"family": V6}],
    ids=str,
)
def test_what_differs_in_anything_is_not_alike(more: dict[str, object]) -> None:
    items = [chain(pod(n)) for n in range(3)]
    assert not any("chains" in line for line in plain([*items, attrs.evolve(chain(pod(3)), **more)]))
    assert any("4 chains" in line for line in plain([*items, chain(pod(3))]))


def test_rules_that_jump_to_alike_chains() -> None:
    items = [
        outcome(Kind.RULE, "FORWARD", "jump", text=f"-A FORWARD -d 10.1.0.{n}/32 -j {pod(n)}", detail=pod(n))
        for n in range(4)
    ]
    assert plain(items)[2:] == [
        f"      4 rules in FORWARD, the first: -A FORWARD -d 10.1.0.0/32 -j {pod(0)}  [jumps to KUBE-POD-FW-*]"
    ]
    other = attrs.evolve(items[3], name="INPUT", text=f"-A INPUT -j {pod(3)}")
    assert len(plain([*items[:3], other])) == 2 + 4


def test_tunnels_to_different_ends() -> None:
    items = [
        outcome(Kind.LINK, f"tun-{n:011d}", "tunnel-name", detail=f"192.0.2.{n}", controller=ROUTING)
        for n in range(5)
    ]
    assert plain(items)[2:] == ["      5 links tun-00000000000 to tun-00000000004  [name is made from its other end]"]
    assert plain(items[:1])[2:] == ["      link tun-00000000000  [name is made from its other end 192.0.2.0]"]


def test_addresses_are_folded_by_link() -> None:
    items = [
        outcome(Kind.ADDRESS, a, "on-owned-link", text=f"{a} dev kube-dummy-if", detail="kube-dummy-if")
        for a in (f"10.96.0.{n}/32" for n in range(4))
    ]
    assert plain(items)[2:] == [
        "      4 addresses 10.96.0.0/32 dev kube-dummy-if to 10.96.0.3/32 dev kube-dummy-if  [on kube-dummy-if]"
    ]


def test_what_a_person_should_know_is_added() -> None:
    item = outcome(
        Kind.ADDRESS, "10.96.0.1/32", "on-owned-link", detail="kube-dummy-if", reason="kube-proxy\n binds it"
    )
    assert plain([item])[-1].endswith("[on kube-dummy-if] (kube-proxy\\n binds it)")


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (outcome(Kind.RULE, "INPUT", "jump", detail="KUBE-ROUTER-INPUT"), "jumps to KUBE-ROUTER-INPUT"),
        (
            outcome(Kind.RULE, "FORWARD", "rule-shape", text='-A FORWARD -m comment --comment "so" -j ACCEPT'),
            "exact comment and matches of a rule of the network policy controller",
        ),
        (
            outcome(Kind.RULE, "POSTROUTING", "rule-shape", text='-A POSTROUTING -m comment --comment "" -j SNAT'),
            "exact matches of a rule of the network policy controller",
        ),
        (outcome(Kind.IPVS_SERVICE, "x", "dummy-address", detail="kube-dummy-if"), "address on kube-dummy-if"),
        (outcome(Kind.SET, "x", "temporary-set", controller=None), "unused temporary set of kube-router"),
        (outcome(Kind.SET, "x", "set-name", controller=None), "name of a set of kube-router"),
        (outcome(Kind.SET, "x", "of\na later release"), "of\\na later release"),
    ],
)
def test_evidence_in_words(item: Outcome, words: str) -> None:
    assert evidence(item) == words


def test_every_evidence_has_words() -> None:
    """All of docs/json.md are known here, and the other way round."""
    import re
    from pathlib import Path

    from firewall_cleanup.words import _EVIDENCE

    page = (Path(__file__).parents[2] / "docs/json.md").read_text().split("| evidence |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) == set(_EVIDENCE)


def test_what_is_left_is_folded_too() -> None:
    rule = Holder(Kind.RULE, V4, NFT, "filter", "INPUT", "-A INPUT -j X")
    items = [chain(pod(n), status=Status.IN_USE, reason="why", holder=rule) for n in range(5)]
    items += [chain(pod(n), status=Status.IN_USE, reason="why", holder=rule, backend=LEGACY) for n in range(2)]
    assert [line.plain for line in left_lines(items, fold=True)] == [
        f"  ipv4 nft filter: 5 chains {pod(0)} to {pod(4)}: in-use, why",
        "      held by ipv4 nft filter: -A INPUT -j X",
        *(
            line
            for n in range(2)
            for line in (
                f"  ipv4 legacy filter: chain {pod(n)}: in-use, why",
                "      held by ipv4 nft filter: -A INPUT -j X",
            )
        ),
    ]
    unfolded = [line.plain for line in left_lines(items, fold=False)]
    assert len(unfolded) == 14
    assert unfolded[0].endswith("in-use, why  [name of a chain of the network policy controller]")


def test_a_node_with_everything() -> None:
    """What the report of a node with IPVS, links and routes says, and what stays and why."""
    lines = list(summary(clean(host_node(), dry_run=True)))
    assert [line for line in lines if not line.startswith("  sysctls")] == EVERYTHING.format(
        protocol="protocol and form of the routes of the routing controller"
    ).splitlines()


EVERYTHING = """\
kube-router: would remove 13 objects
  service-proxy, ipv4
    IPVS (3)
      IPVS service tcp 192.0.2.10:30080  [destinations of a service that is proven]
      IPVS service fwmark 16051  [mark of a rule that is proven]
      IPVS service tcp 10.96.0.1:443  [address on kube-dummy-if]
    policy rules (1)
      policy rule from all fwmark 0x3eb3 lookup 78  [looks up a table of the service proxy]
    routes (1)
      route local 0.0.0.0/0 dev lo proto 0 table 78  [exact route in a table of the service proxy]
    addresses (2)
      address 10.96.0.1/32 dev kube-dummy-if  [on kube-dummy-if]
      address 10.96.0.2/32 dev kube-dummy-if  [on kube-dummy-if]
  service-proxy, no family
    links (1)
      link kube-dummy-if  [name and kind of a link of the service proxy]
  routing, ipv4
    policy rules (1)
      policy rule from 10.244.0.0/24 lookup 77  [looks up a table of the routing controller]
    routes (2)
      route 10.244.1.0/24 dev tun-19202200 proto 0 table 77  [exact route in a table of the routing controller]
      route 10.244.1.0/24 dev tun-19202200 proto 17 table 254  [{protocol}]
    FOU ports (1)
      FOU port 5555  [port of tun-19202200]
    links (1)
      link tun-19202200  [name is made from its other end 192.0.2.200]
kube-router: kept, kube-proxy serves it too
  ipv4 IPVS service tcp 10.96.0.2:443: kept, kube-proxy serves it too: its address is on kube-ipvs0
kube-router: would be left
  link kube-bridge: in-use, veth1 attached
      held by link veth1
not removed by this tool
foreign state seen, which stays: 3 links
dry run: nothing was changed
"""

# on a terminal


def shown(lines: list[Line], width: int = 80, *, colour: bool = False, **more: object) -> str:
    file = io.StringIO()
    system = "truecolor" if colour else None
    show(lines, Console(file=file, width=width, force_terminal=True, color_system=system, **more))  # type: ignore[arg-type]
    return file.getvalue()


LINE = Line(
    2,
    (
        Part("-A FORWARD -i kube-bridge -j KUBE-ROUTER-FORWARD", "object"),
        Part("[jumps to KUBE-ROUTER-FORWARD]", "evidence"),
    ),
)


def test_a_terminal_that_is_wide_enough() -> None:
    assert shown([LINE], 200) == LINE.plain + "\n"


def test_a_narrow_one_breaks_between_parts_then_between_words() -> None:
    assert shown([LINE], 60).splitlines() == [
        "  -A FORWARD -i kube-bridge -j KUBE-ROUTER-FORWARD",
        "      [jumps to KUBE-ROUTER-FORWARD]",
    ]
    assert shown([LINE], 40).splitlines() == [
        "  -A FORWARD -i kube-bridge -j",
        "      KUBE-ROUTER-FORWARD",
        "      [jumps to KUBE-ROUTER-FORWARD]",
    ]


@pytest.mark.parametrize("width", [1, 8, 20, 39, 40, 41, 60, 79, 80, 81])
@pytest.mark.parametrize("name", ["K" * 300, "日本 " * 30 + "x", "a b" * 40])
def test_no_width_loses_or_breaks_a_word(name: str, width: int) -> None:
    line = Line(2, (Part("chain", "count"), Part(name, "object"), Part("[so]", "evidence")))
    lines = shown([line], width).splitlines()
    assert " ".join(lines).split() == line.plain.split()
    for each in lines:
        assert cell_len(each) <= max(width, 6 + max(map(cell_len, line.plain.split())))


def test_colour_and_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    line = Line.of(0, "clean", "good")
    assert "32m" in shown([line], colour=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "32m" not in shown([line], colour=True)
    assert "clean" in shown([line], colour=True)


def test_markup_in_names_is_not_obeyed() -> None:
    name = "[red]KUBE[/red] :smile: [link=http://x]"
    assert shown([Line.of(0, name, "object")], colour=True) == f"{name}\n"


def test_a_terminal_gets_no_control_characters() -> None:
    item = chain("KUBE\x1b[2J\u202e\n")
    assert object_name(item) == "chain KUBE\\x1b[2J\\u202e\\n"
    assert "\x1b" not in shown(list(grouped([item], fold=False)))


@pytest.mark.parametrize("option", [["--help"], ["--cleanup-config", "--dry-run", "--netns", "/no/such"]])
def test_rich_is_imported_for_a_terminal_only(option: list[str]) -> None:
    code = (
        "import sys; from firewall_cleanup.cli import main\n"
        f"try: main({option!r})\n"
        "except SystemExit: pass\n"
        "print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
