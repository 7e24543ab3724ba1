"""The report in words."""

from __future__ import annotations

import errno

import attrs
import pytest
from builders import LEGACY, POLICY, V4, V6, H, clean, key, node

from firewall_cleanup import Gap, Status
from firewall_cleanup.model import IpSet, NativeTable
from firewall_cleanup.text import summary
from firewall_cleanup.words import escape

POD = f"KUBE-POD-FW-{H}"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain", "plain"),
        ("é 日本", "é 日本"),
        ("a\nb", "a\\nb"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\u202eright to left", "\\u202eright to left"),
        ("byte \udcff", "byte \\udcff"),
        ("\x7f\x00", "\\x7f\\x00"),
    ],
)
def test_escape(text: str, escaped: str) -> None:
    """Nothing that a terminal obeys gets through."""
    assert escape(text) == escaped
    assert escape(text).isprintable()


def words(host, **more):  # type: ignore[no-untyped-def]
    """The lines of a report, without the proof, which has tests of its own."""
    verbose = more.pop("verbose", False)
    lines = summary(attrs.evolve(clean(host, **more), proof=None), verbose=verbose)
    return [line for line in lines if line != "nothing was changed"]


def test_nothing() -> None:
    assert words(node()) == [
        "kube-router: removed nothing",
        "clean: nothing of kube-router is left of what was selected",
    ]


def test_removed() -> None:
    text = f"-N {POD}\n-A INPUT -j {POD}\n-A FORWARD -j {POD}"
    host = node(
        {key(): text, key(family=V6, backend=LEGACY): text}, natives=[NativeTable("ip", "kube-router-filter-ipv4")]
    )
    assert words(host) == [
        "kube-router: removed 7 objects",
        "  network-policy, ipv4: 1 table (nft), 1 chain (nft), 2 rules (nft)",
        "  network-policy, ipv6: 1 chain (legacy), 2 rules (legacy)",
        "clean: nothing of kube-router is left of what was selected",
    ]


def test_verbose_gives_the_evidence() -> None:
    host = node({key(): f"-N {POD}\n-A INPUT -j {POD}"}, [IpSet("TMP-PRBJ7ASFQM5DJR3Q", "hash:ip", V6)])
    assert words(host, verbose=True)[1:-1] == [
        "  network-policy, ipv4",
        "    iptables nft, filter (2)",
        f"      -A INPUT -j {POD}  [jumps to {POD}]",
        f"      chain {POD}  [name of a chain of the network policy controller]",
        "  no single controller, ipv6",
        "    ipset (1)",
        "      set TMP-PRBJ7ASFQM5DJR3Q  [unused temporary set of kube-router]",
    ]


def test_dry_run_gives_it_too() -> None:
    text = "\n".join(f"-N KUBE-POD-FW-ABCDEFGHIJKLM2{n}" for n in range(22, 28))
    assert words(node({key(): text}), dry_run=True) == [
        "kube-router: would remove 6 objects",
        "  network-policy, ipv4",
        "    iptables nft, filter (6)",
        (
            "      6 chains KUBE-POD-FW-ABCDEFGHIJKLM222 to KUBE-POD-FW-ABCDEFGHIJKLM227"
            "  [name of a chain of the network policy controller]"
        ),
        "foreign state seen, which stays: 1 iptables table",
        "dry run: nothing was changed",
    ]
    assert len(words(node({key(): text}), dry_run=True, verbose=True)) == 5 + 6


def test_what_of_others_was_seen() -> None:
    sets = [IpSet("theirs", "hash:ip", V4), IpSet("kube-router-svip", "hash:ip", V4)]
    host = node({key(): f"-N {POD}\n-N THEIRS\n-N MINE"}, sets, [NativeTable("inet", "fw")])
    assert words(host, dry_run=True)[-2] == (
        "foreign state seen, which stays: 1 iptables table, 2 chains, 1 nftables table, 1 set"
    )


def checked(host, **more):  # type: ignore[no-untyped-def]
    return attrs.evolve(clean(host, dry_run=True, **more), check=True)


def test_check() -> None:
    report = checked(node({key(): f"-N {POD}\n-A INPUT -j {POD}"}))
    assert list(summary(report)) == [
        "kube-router: found 2 objects",
        "  network-policy, ipv4: 1 chain (nft), 1 rule (nft)",
        "not clean: 2 objects found, 0 parts not examined",
    ]
    assert report.exit_code == 1
    assert "jumps to" in "\n".join(summary(report, verbose=True))


def test_check_of_a_clean_node() -> None:
    report = checked(node({key(): "-N THEIRS"}))
    assert list(summary(report)) == [
        "kube-router: found nothing",
        "clean: nothing of kube-router was found that a cleanup would remove",
    ]
    assert report.exit_code == 0


def test_check_counts_what_is_in_use_and_not_what_is_kept() -> None:
    used = checked(node({key(): "-A INPUT -m set --match-set kube-router-svip src -j DROP"}))
    assert list(summary(used))[-1] == "not clean: 1 object found, 0 parts not examined"
    assert "rule that stays uses it" in "\n".join(summary(used, verbose=True))
    text = f"-N {POD}\n-A KUBE-ROUTER-SERVICES -j {POD}"
    kept = checked(node({key(): text}), controllers=frozenset({POLICY}))
    assert [status.status for status in kept.remaining] == [Status.KEPT]
    assert (kept.exit_code, next(iter(summary(kept)))) == (0, "kube-router: found nothing")


def test_check_of_what_cannot_be_read() -> None:
    report = checked(node(gaps=(Gap("no right", V4, subsystem="ipset"),)))
    assert (report.exit_code, list(summary(report))[-1]) == (1, "not clean: 0 objects found, 1 part not examined")


def test_left_and_its_holder() -> None:
    host = node({key(): "-A INPUT -m set --match-set kube-router-svip src -j DROP"})
    assert words(host) == [
        "kube-router: removed nothing",
        "kube-router: left",
        "  ipv4 set kube-router-svip: in-use, a rule that stays uses it",
        "      held by ipv4 nft filter: -A INPUT -m set --match-set kube-router-svip src -j DROP",
        "not clean: 1 object left, 0 parts not examined",
    ]


def test_a_set_holds() -> None:
    sets = [IpSet("kube-router-svip", "hash:ip", V4), IpSet("all\n", "list:set", members=("kube-router-svip",))]
    assert "      held by set all\\n" in words(node(sets=sets))


def test_kept() -> None:
    text = f"-N {POD}\n-A KUBE-ROUTER-SERVICES -j {POD}"
    lines = words(node({key(): text}), controllers=frozenset({POLICY}))
    assert lines[1] == "kube-router: kept, another controller needs it"
    assert lines[-1].startswith("clean")


def test_gaps_are_grouped_by_reason() -> None:
    gaps = (Gap("no right", V4, subsystem="ipset"), Gap("no right", V6, subsystem="ipset"), Gap("gone\x1b", None))
    lines = words(node(gaps=gaps))
    assert lines[1:] == [
        "not examined",
        "  ipv4, ipv6: no right",
        "  iptables: gone\\x1b",
        "not clean: 0 objects left, 3 parts not examined",
    ]


def test_control_characters_in_rules_do_not_reach_the_terminal() -> None:
    host = node({key(): f'-N {POD}\n-A INPUT -m comment --comment "\x1b[2Jgone" -j {POD}'})
    text = "\n".join(words(host, verbose=True))
    assert "\x1b" not in text
    assert "\\x1b[2Jgone" in text


def test_signals_and_denials() -> None:
    host = node({key(): f"-N {POD}"})
    host.errors["nft"] = errno.EPERM
    assert f"  ipv4 nft filter: chain {POD}: denied, nft: Operation not permitted" in words(host)[2]
    assert words(node(), stopped=lambda: 15)[-1] == "stopped by signal 15; run it again to finish"
