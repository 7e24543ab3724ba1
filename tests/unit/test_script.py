"""The script of a plan: what it says, in which order, and that a shell reads from it exactly what was meant."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator

import attrs
import pytest
from builders import LEGACY, NFT, POLICY, V4, V6, H, clean, host_node, key, node
from hypothesis import given
from hypothesis import strategies as st

from firewall_cleanup import CleanupReport, Controller, Gap, Kind, Status
from firewall_cleanup.components import ItemClaim
from firewall_cleanup.model import (
    Address,
    FouPort,
    IpSet,
    IpvsService,
    Item,
    Link,
    Match,
    NativeTable,
    Option,
    PolicyRule,
    Route,
    Rule,
    Target,
)
from firewall_cleanup.ownership import Claims, RuleClaim
from firewall_cleanup.script import script
from firewall_cleanup.testing import MemoryHost
from firewall_cleanup.writers import Process

POD = f"KUBE-POD-FW-{H}"
SHELLS = [["sh"], *([["busybox", "sh"]] if shutil.which("busybox") else [])]


def body(text: str) -> list[str]:
    """The commands of a script, less its functions and what checks what it needs."""
    found = re.search(r"^main\(\) \{\n(.*?)^\}\n", text, re.MULTILINE | re.DOTALL)
    assert found
    return found[1].removesuffix("\n").split("\n")


def after(text: str) -> list[str]:
    return text.partition('\nmain "$@"\n')[2].removesuffix("\n").split("\n")


def planned(*arguments: object, **options: object) -> CleanupReport:
    return clean(*arguments, dry_run=True, **options)  # type: ignore[arg-type]


def report_of(*rules: Rule, **more: object) -> CleanupReport:
    """A report with rules that jump to a chain of ours, in one table."""
    claims = Claims(
        chains={key(): {POD: POLICY}},
        rules={key(): {(rule.chain, n, 0): RuleClaim(rule, POLICY, "jump", POD) for n, rule in enumerate(rules)}},
    )
    return CleanupReport("kube-router", True, False, {}, here=claims, **more)  # type: ignore[arg-type]


def test_order_of_a_run() -> None:
    """Services, nf_tables of both families, whole tables, legacy, sets, and what may prove services at the end."""
    text = f"-N {POD}\n-A INPUT -j {POD}"
    rules = node(
        {key(backend=b, family=f): text for b in (NFT, LEGACY) for f in (V4, V6)},
        [IpSet("kube-router-svip", "hash:ip", V4)],
        [NativeTable("ip", "kube-router-filter-ipv4")],
    ).state
    whole = attrs.evolve(host_node().state, tables=rules.tables, native_tables=rules.native_tables, sets=rules.sets)
    lines = body(script([planned(MemoryHost(whole), remove_bridge=True)]))
    places = [
        "begin", "list_services", "service ", "table iptables nft filter", "table ip6tables nft filter",
        "nft_tables", "table iptables legacy filter", "table ip6tables legacy filter", "sets",
        "proves policy_rule", "route", "fou_port", "link",
    ]  # fmt: skip
    found = [next((i for i, line in enumerate(lines) if line.startswith(place)), place) for place in places]
    assert all(isinstance(place, int) for place in found), found
    assert found == sorted(found, key=int), list(zip(places, found, strict=True))
    assert lines[-1].startswith("finish ")


def test_all_that_is_no_rule() -> None:
    report = planned(host_node(), remove_bridge=True)
    text = script([report])
    lines = body(text)
    named = [line for line in lines if line.startswith("service ")]
    assert len(named) == sum(o.kind is Kind.IPVS_SERVICE and o.status is Status.PLANNED for o in report.outcomes)
    assert "service last -f 16051" in named
    assert "proves policy_rule -4 32764 78 'from all fwmark 0x3eb3'" in lines
    assert "proves policy_rule -4 32763 77 'from 10.244.0.0/24'" in lines
    assert "route -4 local 0.0.0.0/0 78 0 0 dev lo" in lines
    assert "fou_port 5555" in lines
    assert "link kube-bridge bridge 0 attached" in lines
    assert "proves address -4 10.96.0.1/32 kube-dummy-if" not in lines  # it goes with its link
    assert "proves link kube-dummy-if dummy 0 alone" in lines
    # What kube-proxy serves too stays, and is named.
    assert not any("10.96.0.2" in line for line in lines)
    assert any("10.96.0.2" in line and "kube-proxy" in line for line in after(text))


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (IpvsService(V4, "tcp", "10.0.0.1", 80), "service last -t 10.0.0.1:80"),
        (IpvsService(V4, "sctp", "10.0.0.1", 80), "service last --sctp-service 10.0.0.1:80"),
        (IpvsService(V6, "udp", "fd00::1", 53), "service last -u '[fd00::1]:53'"),
        (IpvsService(V6, mark=7), "service last -f 7 -6"),
        (PolicyRule(V6, 77, 100, source="fd00::1/128"), "policy_rule -6 100 77 'from fd00::1'"),
        (Route(V6, 77, "fd00::/64", 17, gateway="fe80::1", device="eth0", metric=1024),
         "route -6 unicast fd00::/64 77 17 1024 via fe80::1 dev eth0"),
        (FouPort(V6, 5556), "fou_port 5556 -6"),
        (Address(V6, "kube-dummy-if", "fd00::1/128"), "address -6 fd00::1/128 kube-dummy-if"),
        (Link("tun-1", "ip6tnl", encap_port=5556), "link tun-1 ip6tnl 5556 alone"),
    ],
)  # fmt: skip
def test_items_in_the_words_of_the_tools(item: Item, words: str) -> None:
    claims = Claims(items={item: ItemClaim(Controller.SERVICE_PROXY, "service-set")})
    report = CleanupReport("kube-router", True, False, {}, here=claims)
    assert words in body(script([report]))


def test_every_program_is_asked_for() -> None:
    """Also `ip` where only services go: without it, the guard of kube-proxy's addresses would see none."""
    claims = Claims(
        items={IpvsService(V4, "tcp", "10.0.0.1", 80): ItemClaim(Controller.SERVICE_PROXY, "service-set")}
    )
    text = script([CleanupReport("kube-router", True, False, {}, here=claims)])
    lines = body(text)
    assert lines[: lines.index("begin")] == ["need ipvsadm", "need_ip"]
    assert "\nneed_ip() {" in text


def test_what_the_plan_leaves_stays_and_is_named() -> None:
    """A chain that is held is emptied; a set that is held is not touched; the status will be that of a cleanup."""
    text = f"-N {POD}\n-N MINE\n-A INPUT -j MINE\n-A MINE -m set --match-set kube-router-svip src -j DROP"
    report = planned(node({key(): text}))
    lines = body(script([report]))
    assert "kube-router-svip" not in lines
    assert lines[-1] == "finish 1"
    comments = after(script([report]))
    assert any("set kube-router-svip: in-use" in line for line in comments)
    assert any("-A MINE -m set --match-set kube-router-svip src -j DROP" in line for line in comments)


def test_a_chain_that_is_held_is_emptied() -> None:
    text = f"-N {POD}\n-A {POD} -j DROP\n-A KUBE-ROUTER-SERVICES -j {POD}"
    lines = body(script([planned(node({key(): text}), frozenset({POLICY}))]))
    assert lines[lines.index("emptied <<'END'") + 1] == POD
    assert "chains <<'END'" not in lines
    assert lines[-1] == "finish 0"  # it is kept for the service proxy, which is no residue


def test_what_was_not_read_is_named() -> None:
    report = planned(node(gaps=(Gap("not allowed", V4), Gap("no lock", V6, NFT, "nat"))))
    text = script([report])
    assert body(text)[-1] == "finish 2"
    assert [line for line in after(text) if "not allowed" in line or "no lock" in line] == [
        "#   ipv4: not allowed",
        "#   ipv6 nft nat: no lock",
    ]


def test_who_writes_it_again_is_named() -> None:
    host = node({key(): f"-N {POD}"}, running=(Process(7, "kube-router", ("kube-router",)),))
    comments = after(script([planned(host)]))
    assert "# warning: kube-router still runs, and writes its rules again; stop it first" in comments


def test_a_rule_that_is_there_twice_goes_twice() -> None:
    rule = Rule("INPUT", target=Target(POD))
    assert f"jump {POD} 2 INPUT -j {POD}" in body(script([report_of(rule, rule)]))


def test_a_rule_without_words() -> None:
    """iptables could not print it: in nf_tables it is found by its jump, in a legacy table it stays and is told."""
    rule = Rule("INPUT", target=Target(POD), opaque=("bpf",), handle=7)
    assert f"jump_by_nft {POD} 1 INPUT" in body(script([report_of(rule)]))
    report = report_of(rule)
    legacy = attrs.evolve(
        report,
        here=Claims(
            chains={key(backend=LEGACY): {POD: POLICY}},
            rules={key(backend=LEGACY): report.here.rules[key()]},
        ),
    )
    assert any(line.startswith(f"unnamed {POD} INPUT ") for line in body(script([legacy])))


def test_only_dry_runs() -> None:
    with pytest.raises(ValueError, match="dry runs"):
        script([clean(node())])


def test_a_name_that_could_end_a_list_is_refused() -> None:
    for name in ("END", "a\nb", ""):
        claims = Claims(chains={key(): {name: POLICY}})
        with pytest.raises(ValueError, match="not a name"):
            script([CleanupReport("kube-router", True, False, {}, here=claims)])


def test_nothing_is_flushed_whole() -> None:
    """No command of the functions empties or removes more than what it is given by name."""
    text = script([planned(host_node(), remove_bridge=True), report_of(Rule("INPUT", target=Target(POD)))])
    assert not re.search(r"(?<!show )\bflush\b|--flush|ipvsadm -C|-F\s*$|-X\s*$|destroy\s*$", text, re.MULTILINE)


# what a shell reads

WORDS = st.text(
    st.one_of(st.sampled_from("'\"`$\\!#*?~;&|<>(){}[] \t\nEND\r-=é€"), st.characters(exclude_characters="\0")),
    min_size=1,
    max_size=20,
).filter(lambda text: text.strip())


def surrogates(text: str) -> str:
    """Bytes that are no text, as they come from a kernel."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")


def read_by(shell: list[str], lines: str) -> list[str]:
    """What functions of ours get from lines of a script."""
    program = "jump() { printf '%s\\0' \"$@\"; }\n" + lines
    data = program.encode("utf-8", "surrogateescape")
    done = subprocess.run([*shell, "-s"], input=data, capture_output=True, check=True, timeout=20)
    assert done.stderr == b""
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


def rules(comment: str) -> Iterator[Rule]:
    matches = (Match("comment", (Option("--comment", (comment,)),)),)
    yield Rule("INPUT", matches, Target(POD))


@pytest.mark.property
@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@given(words=st.lists(WORDS, min_size=1, max_size=8))
def test_a_shell_reads_the_words_of_a_rule(shell: list[str], words: list[str]) -> None:
    """Whatever a comment has in it. Several at a time, as a shell takes its time to start."""
    comments = [surrogates(word) for word in dict.fromkeys(words)]
    lines = body(script([report_of(*(rule for word in comments for rule in rules(word)))]))
    text = "\n".join(lines)
    start = text.index(f"jump {POD}")
    found = read_by(shell, text[start : text.rindex("\ncommit")])
    expected = [[POD, "1", "INPUT", "-m", "comment", "--comment", comment, "-j", POD] for comment in comments]
    assert found == [word for words_of_one in expected for word in words_of_one]


@pytest.mark.property
@given(text=WORDS)
def test_what_is_only_told_is_a_comment(text: str) -> None:
    """Nothing in the reasons, notes and rules of others gets out of its comment."""
    told = surrogates(text)
    report = report_of(gaps=(Gap(told, V4),), notes=(told,))
    lines = after(script([report]))
    assert all(line.startswith("#") for line in lines)
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_half_a_script_does_nothing(shell: list[str]) -> None:
    """A download that was cut off must not be begun."""
    text = script([report_of(Rule("INPUT", target=Target(POD)))]).replace("\nbegin\n", "\necho began; exit\n")

    def said(size: int) -> str:
        done = subprocess.run([*shell, "-s"], input=text[:size], capture_output=True, text=True, check=False)
        return done.stdout

    assert said(len(text)) == "began\n"
    assert {said(size) for size in range(0, text.index('\nmain "$@"'), 97)} == {""}


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck")
def test_shellcheck_has_nothing_to_say() -> None:
    """With every part, and with the least."""
    odd = Rule("INPUT", target=Target(POD), text='-A INPUT -m comment --comment "it\'s $HOME" -j ' + POD)
    for reports in ([], [planned(host_node(), remove_bridge=True), report_of(odd)]):
        done = subprocess.run(
            ["shellcheck", "--shell=sh", "-"], input=script(reports), capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.returncode) == ("", 0)


def test_words_are_those_of_the_rule() -> None:
    """As iptables prints it: its own quotes are read, and the shell's are written."""
    text = r"""-A INPUT -m comment --comment "a \"b\" \\ c\'d `e` $f" -j """ + POD
    (line,) = [ln for ln in body(script([report_of(Rule("INPUT", target=Target(POD), text=text))])) if "jump" in ln]
    assert shlex.split(line)[3:] == ["INPUT", "-m", "comment", "--comment", 'a "b" \\ c\'d `e` $f', "-j", POD]
