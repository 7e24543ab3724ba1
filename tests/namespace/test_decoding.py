"""Both backends, both families, both iptables and the reader of text give equal rules for equal rulesets."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
from scenes import NODES, Scene

from firewall_cleanup import Backend, Family, Handlers
from firewall_cleanup.handlers.host import open_host
from firewall_cleanup.host import Interest
from firewall_cleanup.model import Rule, Target
from firewall_cleanup.rules import parse_rule, render
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace

WORDS = {
    Family.IPV4: {
        "a": "192.0.2.7", "b": "192.0.2.99", "net": "198.51.100.0/24", "holes": "10.0.3.0/255.0.255.0", "host": "32",
        "odd": "203.0.113.16/29", "to": "192.0.2.7", "to2": "192.0.2.9", "icmp": "icmp", "inet": "inet",
        "any": "0.0.0.0/0", "half": "128.0.0.0/1",
    },
    Family.IPV6: {
        "a": "2001:db8::7", "b": "2001:db8::99", "net": "2001:db8:1::/48", "host": "128", "odd": "2001:db8:2::/61",
        "holes": "2001:db8:0:3::/ffff:ffff:0:ffff::", "to": "[2001:db8::7]", "to2": "[2001:db8::9]",
        "icmp": "ipv6-icmp", "inet": "inet6", "any": "::/0", "half": "8000::/1",
    },
}  # fmt: skip

SETS = """\
create plain hash:ip family {inet}
create pairs hash:ip,port family {inet}
create with:colon hash:net family {inet}
"""

KNOWN = {
    "filter": r"""
-A INPUT
-A INPUT -j ACCEPT
-A INPUT -j DROP
-A INPUT -j RETURN
-A INPUT -j user
-A INPUT -g user
-A INPUT -s {a}/{host} -j ACCEPT
-A INPUT ! -s {a}/{host} -j ACCEPT
-A INPUT -d {net} -j ACCEPT
-A INPUT ! -d {net} -j ACCEPT
-A INPUT -s {odd} -d {half} -j ACCEPT
-A INPUT -s {holes} -j ACCEPT
-A INPUT ! -d {holes} -j ACCEPT
-A INPUT -s {any} -j ACCEPT
-A INPUT -i eth0 -j ACCEPT
-A INPUT ! -i eth0 -j ACCEPT
-A INPUT -i eth+ -j ACCEPT
-A INPUT ! -i eth+ -j ACCEPT
-A INPUT -i + -j ACCEPT
-A FORWARD -i averyverylongna -j ACCEPT
-A FORWARD -i fifteencharact+ -o x -j ACCEPT
-A FORWARD -i eth0.100 ! -o br-0_a -j ACCEPT
-A FORWARD -o eth0 -j ACCEPT
-A OUTPUT -s {a}/{host} -d {b}/{host} -o lo+ -p tcp -j ACCEPT
-A OUTPUT -s {net} -o eth0 -p udp -m udp --sport 53 -j ACCEPT
-A INPUT -p tcp -j ACCEPT
-A INPUT ! -p tcp -j ACCEPT
-A INPUT -p udp -j ACCEPT
-A INPUT -p sctp -j ACCEPT
-A INPUT -p {icmp} -j ACCEPT
-A INPUT -p esp -j ACCEPT
-A INPUT -p 50 -j ACCEPT
-A INPUT ! -p 200 -j ACCEPT
-A INPUT -p all -j ACCEPT
-A INPUT -p tcp -m tcp --dport 80 -j ACCEPT
-A INPUT -p tcp -m tcp ! --dport 80 -j ACCEPT
-A INPUT -p tcp -m tcp --sport 1024:2048 -j ACCEPT
-A INPUT -p tcp -m tcp ! --sport 1024:2048 -j ACCEPT
-A INPUT -p tcp -m tcp --dport 0:100 -j ACCEPT
-A INPUT -p tcp -m tcp --dport 100:65535 -j ACCEPT
-A INPUT -p tcp -m tcp --sport 0 -j ACCEPT
-A INPUT -p tcp -m tcp --sport 1:2 --dport 3:4 -j ACCEPT
-A INPUT -p tcp -m tcp ! --sport 7 ! --dport 9 -j ACCEPT
-A INPUT -p udp -m udp --sport 5 --dport 6:7 -j ACCEPT
-A INPUT -p udp -m udp ! --dport 6:7 -j ACCEPT
-A INPUT -p udp -m udp --sport 65535 -j ACCEPT
-A INPUT -p tcp -m tcp --tcp-flags SYN,RST SYN -j ACCEPT
-A INPUT -p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -j ACCEPT
-A INPUT -p tcp -m tcp --tcp-flags FIN,SYN,RST,PSH,ACK,URG NONE -j ACCEPT
-A INPUT -p tcp -m tcp --sport 80 --tcp-flags SYN,RST SYN -j ACCEPT
-A INPUT -p tcp -m tcp --dport 80 --tcp-flags FIN,SYN,RST,PSH,ACK,URG FIN,SYN,RST,PSH,ACK,URG -j ACCEPT
-A INPUT -m mark --mark 0x1 -j ACCEPT
-A INPUT -m mark --mark 0x10000/0x10000 -j ACCEPT
-A INPUT -m mark ! --mark 0x1/0x3 -j ACCEPT
-A INPUT -m mark ! --mark 0xffffffff -j ACCEPT
-A INPUT -m mark --mark 0x0/0xff -j ACCEPT
-A INPUT -m mark --mark 0x0 -j ACCEPT
-A INPUT -m mark --mark 0x1/0x1 -m mark --mark 0x2/0x2 -j ACCEPT
-A INPUT -m comment --comment word -j ACCEPT
-A INPUT -m comment --comment "" -j ACCEPT
-A INPUT -m comment --comment "two words" -j ACCEPT
-A INPUT -m comment --comment "-j KUBE-ROUTER-INPUT" -j ACCEPT
-A INPUT -m comment --comment "! not" -j ACCEPT
-A INPUT -m comment --comment "a \"quote\", a back\\slash, an \'apostrophe\'" -j ACCEPT
-A INPUT -m comment --comment "COMMIT" -j ACCEPT
-A INPUT -m comment --comment "#no.comment; $(x) `y` *" -j ACCEPT
-A INPUT -m comment --comment one -m comment --comment two -j ACCEPT
-A INPUT -m comment --comment "ümlaut ☃" -j ACCEPT
-A INPUT -m comment --comment "{long}" -j ACCEPT
-A INPUT -m set --match-set plain src -j ACCEPT
-A INPUT -m set ! --match-set plain dst -j ACCEPT
-A INPUT -m set --match-set pairs dst,dst -j ACCEPT
-A INPUT -m set --match-set pairs src,dst -j ACCEPT
-A INPUT -m set --match-set with:colon src -m set ! --match-set with:colon dst -j user
-A INPUT -m addrtype --src-type LOCAL -j ACCEPT
-A INPUT -m addrtype ! --dst-type LOCAL -j ACCEPT
-A INPUT -m addrtype --src-type UNICAST --dst-type LOCAL,ANYCAST,MULTICAST -j ACCEPT
-A INPUT -m addrtype --dst-type LOCAL --limit-iface-in -j ACCEPT
-A OUTPUT -m addrtype --src-type LOCAL --limit-iface-out -j ACCEPT
-A INPUT -m conntrack --ctstate NEW -j ACCEPT
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -m conntrack ! --ctstate INVALID,UNTRACKED -j ACCEPT
-A INPUT -m conntrack --ctstate SNAT -j ACCEPT
-A INPUT -m conntrack --ctstate INVALID,NEW,RELATED,ESTABLISHED,UNTRACKED,SNAT,DNAT -j ACCEPT
-A FORWARD -m physdev --physdev-is-bridged -j ACCEPT
-A FORWARD -m physdev ! --physdev-is-bridged -j ACCEPT
-A FORWARD -m physdev --physdev-in eth0 -j ACCEPT
-A FORWARD -m physdev ! --physdev-in veth+ --physdev-is-bridged -j ACCEPT
-A FORWARD -m physdev --physdev-in a --physdev-out b+ --physdev-is-bridged -j ACCEPT
-A FORWARD -m physdev --physdev-is-in -j ACCEPT
-A INPUT -p tcp -m multiport --dports 80 -j ACCEPT
-A INPUT -p tcp -m multiport --dports 22,80,443 -j ACCEPT
-A INPUT -p udp -m multiport --sports 30000:32767 -j ACCEPT
-A INPUT -p tcp -m multiport ! --ports 1,5:9,7 -j ACCEPT
-A INPUT -p tcp -m multiport --dports 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15 -j ACCEPT
-A INPUT -p tcp -m comment --comment before -m set --match-set plain src -m tcp --dport 8080 -m mark --mark 0x1 -j ACCEPT
-A INPUT -p udp -m udp --dport 53 -m comment --comment after -j ACCEPT
-A user -p tcp -m comment --comment x -m tcp --tcp-flags SYN,RST SYN -m conntrack --ctstate NEW -j RETURN
-A user -m comment --comment "no target"
""",  # noqa: E501
    "nat": """
-A POSTROUTING -j MASQUERADE
-A POSTROUTING -j MASQUERADE --random
-A POSTROUTING -j MASQUERADE --random-fully
-A POSTROUTING -p tcp -j MASQUERADE --to-ports 1024
-A POSTROUTING -p tcp -j MASQUERADE --to-ports 1024-2048 --random
-A POSTROUTING -s {net} ! -d {net} -j SNAT --to-source {a}
-A POSTROUTING -j SNAT --to-source {a} --random-fully
-A POSTROUTING -j SNAT --to-source {a}-{b}
-A POSTROUTING -p tcp -j SNAT --to-source {to}:100
-A POSTROUTING -p udp -j SNAT --to-source {to}:100-200 --random --persistent
-A POSTROUTING -p udp -j SNAT --to-source :100-200
""",
    "mangle": """
-A PREROUTING -j MARK --set-xmark 0x1/0xffffffff
-A PREROUTING -j MARK --set-xmark 0x0/0x10000
-A PREROUTING -d {a}/{host} -p tcp -m tcp --dport 80 -j MARK --set-xmark 0x2f3a/0xffffffff
-A PREROUTING -s {a}/{host} -i kube-bridge -p tcp -m tcp --sport 80 --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1440
-A POSTROUTING -s {a}/{host} -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1400
-A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
""",
}

# Nobody needs to understand these; every reader must say so.
OPAQUE = {
    "filter": """
-A INPUT -m limit --limit 5/min -j ACCEPT
-A INPUT -m comment --comment x -m limit --limit 5/min --limit-burst 9 -j user
-A INPUT -m length --length 5 -j ACCEPT
-A INPUT -m recent --set --name x --rsource -j user
-A INPUT -p tcp -m tcp --tcp-option 5 -j ACCEPT
-A INPUT -m conntrack --ctstate NEW --ctdir ORIGINAL -j ACCEPT
-A INPUT -m conntrack --ctproto 6 -j ACCEPT
-A INPUT -m conntrack --ctstatus SEEN_REPLY -j ACCEPT
-A INPUT -m set --match-set plain src --packets-gt 5 -j ACCEPT
-A INPUT -m set --match-set plain src --return-nomatch -j ACCEPT
-A INPUT -m state --state NEW -j ACCEPT
-A INPUT -m statistic --mode random --probability 0.5 -j user
-A INPUT -m time --timestart 10:00:00 -j ACCEPT
-A INPUT -m owner --uid-owner 0 -j ACCEPT
-A INPUT -m connmark --mark 0x1 -j ACCEPT
-A INPUT -j LOG --log-prefix "-j KUBE-ROUTER-INPUT "
-A INPUT -j NFLOG --nflog-group 5
-A INPUT -j REJECT
-A INPUT -j SET --add-set plain src
-A INPUT -p {icmp} -m {icmp_match} 8 -j user
""".replace("-m owner --uid-owner 0 -j ACCEPT", "-m connmark ! --mark 0x1 -j ACCEPT"),
    "mangle": """
-A PREROUTING -j CONNMARK --save-mark
-A PREROUTING -j MARK --set-xmark 0x1/0x1 -m limit --limit 1/s
""",
    "nat": """
-A PREROUTING -p tcp -j DNAT --to-destination {to}:80
-A PREROUTING -p tcp -j REDIRECT --to-ports 80
""",
}


def text_of(rules: dict[str, str], family: Family) -> str:
    icmp = "icmp --icmp-type" if family is Family.IPV4 else "icmp6 --icmpv6-type"
    words = {**WORDS[family], "long": "x" * 255, "icmp_match": icmp}
    return "".join(
        f"*{table}\n" + ":user - [0:0]\n" * (table == "filter") + lines.format(**words).strip() + "\nCOMMIT\n"
        for table, lines in rules.items()
    )


def decoded(sandbox: Sandbox, backend: Backend, family: Family) -> dict[str, dict[str, tuple[Rule, ...]]]:
    """The rules by table and chain as the handlers see them, those of owned chains included."""
    with Handlers.open(netns=sandbox.path) as handlers, open_host(handlers) as host:
        names = {item.index: item.name for item in host.sets(Family)}
        if backend is Backend.NFT:
            dump = host.dump_nft(Interest())
            return {key.name: dict(t.rules) for key, t in dump.tables(names).items() if key.family is family}
        tables = {}
        for key in host.legacy_tables(family):
            tables[key.name] = dict(host.open_legacy(key, Interest()).table(names).rules)
        return tables


def saved(lines: list[str]) -> dict[str, dict[str, list[str]]]:
    """The `-A` lines of iptables-save by table and chain."""
    tables: dict[str, dict[str, list[str]]] = {}
    for line in lines:
        if line.startswith("*"):
            chains = tables[line[1:]] = {}
        elif line.startswith(":"):
            chains[line[1:].split()[0]] = []
        elif line.startswith("["):
            chains[line.split()[2]].append(line)
    return tables


Reading = list[tuple[str, Rule, Rule]]


def readings(sandbox: Sandbox, backend: Backend, family: Family) -> Reading:
    """Each rule three times: iptables' line, what the reader of text makes of it, what the handlers do."""
    tables, texts = decoded(sandbox, backend, family), saved(sandbox.state().lines(backend, family))
    result = []
    assert tables.keys() == texts.keys()
    for table, chains in texts.items():
        for chain, lines in chains.items():
            for line, rule in zip(lines, tables[table].get(chain, ()), strict=True):
                result.append((line, parse_rule(line, user_chains=chains), rule))
    return result


def with_sets(sandbox: Sandbox, family: Family) -> Sandbox:
    sandbox.load_sets(SETS.format(**WORDS[family]))
    return sandbox


@pytest.mark.parametrize("family", Family)
def test_every_reader_understands_the_same(new_sandbox: Callable[..., Sandbox], newer_iptables: str, family):
    text = text_of(KNOWN, family)
    found: dict[str, list[Rule]] = {}
    for name, backend, folder in (
        ("legacy", Backend.LEGACY, None),
        ("nft", Backend.NFT, None),
        ("newer nft", Backend.NFT, newer_iptables),
    ):
        sandbox = with_sets(new_sandbox(folder), family)
        sandbox.load_rules(text, family, backend)
        rules = []
        for line, from_text, from_kernel in readings(sandbox, backend, family):
            where = f"{name}: {line}"
            assert from_kernel == from_text, where
            assert from_kernel.opaque == (), where
            assert (from_kernel.packets, from_kernel.bytes) == (from_text.packets, from_text.bytes), where
            assert render(attrs.evolve(from_kernel, text=None)) == line.split("] ", 1)[1], where
            assert render(attrs.evolve(from_text, text=None)) == line.split("] ", 1)[1], where
            rules.append(from_kernel)
        assert len(rules) == sum(len(lines.strip().splitlines()) for lines in KNOWN.values())
        found[name] = sorted(rules, key=repr)
    assert found["nft"] == found["legacy"]
    assert found["newer nft"] == found["legacy"]


@pytest.mark.parametrize("family", Family)
def test_every_reader_leaves_the_same_alone(new_sandbox: Callable[..., Sandbox], tools, family):
    sandbox = with_sets(new_sandbox(tools.folder), family)
    sandbox.load_rules(text_of(OPAQUE, family), family, tools.backend)
    for line, from_text, from_kernel in readings(sandbox, tools.backend, family):
        assert from_kernel.opaque, line
        assert from_text.opaque, line
        if from_text.target.name == "user":
            assert from_kernel.target == from_text.target == Target("user"), line
        assert from_kernel.sets == from_text.sets, line


@pytest.mark.parametrize("family", Family)
def test_a_whole_node_is_read_alike(new_sandbox: Callable[..., Sandbox], tools, family):
    """Whatever of a node and its neighbours is understood is understood alike."""
    scene = Scene(NODES["historic"], tools.backend)
    sandbox = new_sandbox(tools.folder)
    scene.load(sandbox)
    rules = readings(sandbox, tools.backend, family)
    assert len(rules) > 150
    for line, from_text, from_kernel in rules:
        assert bool(from_kernel.opaque) == bool(from_text.opaque), line
        assert from_kernel.target.name == from_text.target.name or from_kernel.opaque, line
        if not from_kernel.opaque:
            assert from_kernel == from_text, line
