"""What is kube-router's, form by form and release by release, each with near misses that are not."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest
from builders import LEGACY, NFT, POLICY, PROXY, ROUTING, V4, V6, H, claims, key, node

from firewall_cleanup import Backend, Controller, Family
from firewall_cleanup.components.kube_router import KUBE_ROUTER, TEMPORARY_SETS, dsr_marks
from firewall_cleanup.model import IpSet, NativeTable, Policy, Snapshot, Table
from firewall_cleanup.ownership import claim

CHAINS = [
    ("filter", "KUBE-ROUTER-INPUT", POLICY),
    ("filter", "KUBE-ROUTER-FORWARD", POLICY),
    ("filter", "KUBE-ROUTER-OUTPUT", POLICY),
    ("filter", "KUBE-NWPLCY-DEFAULT", POLICY),
    ("filter", "KUBE-NWPLCY-COMMON", POLICY),
    ("filter", "KUBE-NWPLCY-TAIL", POLICY),
    ("filter", f"KUBE-NWPLCY-{H}", POLICY),
    ("filter", f"KUBE-POD-FW-{H}", POLICY),
    ("filter", "KUBE-ROUTER-SERVICES", PROXY),
    ("nat", "KUBE-ROUTER-HAIRPIN", PROXY),
]


@pytest.mark.parametrize(("table", "name", "owner"), CHAINS)
def test_chains(table: str, name: str, owner: Controller) -> None:
    """Owned in its own table, and in no other."""
    assert KUBE_ROUTER.chain_owner(table, name) is owner
    for other in {"filter", "nat", "mangle", "raw", "security"} - {table}:
        assert KUBE_ROUTER.chain_owner(other, name) is None


@pytest.mark.parametrize(("table", "name", "_owner"), CHAINS)
def test_chain_names_are_whole(table: str, name: str, _owner: Controller) -> None:
    """One letter more, one less, another case: somebody else's."""
    for other in (f"{name}S", f"X{name}", name[:-1], name.lower(), f"{name}-", f"{name}\n", f" {name}"):
        assert KUBE_ROUTER.chain_owner(table, other) is None, other


@pytest.mark.parametrize(
    "name",
    [
        "KUBE-ROUTER-PREROUTING",
        "KUBE-ROUTER",
        "KUBE-NWPLCY-ABCDEFGHIJKLM231",  # 1 is no base32 letter
        "KUBE-NWPLCY-ABCDEFGHIJKLM238",
        "KUBE-NWPLCY-abcdefghijklm234",
        f"KUBE-NWPLCY-{H[:15]}",
        f"KUBE-NWPLCY-{H}A",
        f"KUBE-FW-{H}",  # kube-proxy's
        f"KUBE-SVC-{H}",
        f"KUBE-SEP-{H}",
        "KUBE-SERVICES",
        "KUBE-FIREWALL",  # kubelet's
        "KUBE-KUBELET-CANARY",
        "KUBE-IPTABLES-HINT",
        "KUBE-VIP-EGRESS",
        "INPUT",
    ],
)
def test_foreign_chains(name: str) -> None:
    assert not any(KUBE_ROUTER.chain_owner(table, name) for table in ("filter", "nat", "mangle", "raw", "security"))


def test_a_built_in_chain_is_never_claimed() -> None:
    """A base chain of somebody's own in an iptables table may have any name."""
    built_in = Table(key(), {"KUBE-ROUTER-INPUT": Policy("ACCEPT")}, ("KUBE-ROUTER-OUTPUT",))
    assert claim(Snapshot({key(): built_in}), KUBE_ROUTER).chains == {key(): {"KUBE-ROUTER-OUTPUT": POLICY}}


SETS = [
    *((f"{p}kube-router-{name}", PROXY) for p in ("", "inet6:") for name in ("local-ips", "svip", "svip-prt")),
    *((f"{p}kube-router-{name}", ROUTING) for p in ("", "inet6:") for name in ("pod-subnets", "node-ips")),
    *((f"{p}{name}", POLICY) for p in ("", "inet6:") for name in (f"KUBE-SRC-{H}", f"KUBE-DST-{H}")),
    *((f"{p}kube-router-local-pods", POLICY) for p in ("", "inet6:")),
    ("kube-router-service-ips", PROXY),
    ("kube-router-ipvs-services", PROXY),
]


@pytest.mark.parametrize(("name", "owner"), SETS)
def test_sets(name: str, owner: Controller) -> None:
    """Owned by its whole name, used or not; never by a part of it."""
    found = KUBE_ROUTER.set_owner(name)
    assert found is not None
    assert (found.controller, found.unreferenced) == (owner, False)
    for other in (f"{name}2", f"x{name}", f"inet6:inet6:{name}", name.swapcase(), f"{name}_", f"{name}\n"):
        assert KUBE_ROUTER.set_owner(other) is None, other


@pytest.mark.parametrize(
    "name",
    [
        "inet6:kube-router-service-ips",  # never was: dual-stack came later
        "inet6:kube-router-ipvs-services",
        "inet4:kube-router-svip",
        "inet6:",
        "kube-router",
        "kube-router-svip-port",
        "kube-router-node",
        f"KUBE-SRC-{H[:15]}",
        f"KUBE-SRC-{H}A",
        f"KUBE-SRC-{H[:15]}1",
        f"KUBE-SVC-{H}",
        "KUBE-CLUSTER-IP",  # kube-proxy's
        "KUBE-6-CLUSTER-IP",
        "KUBE-SRC-",
        f"TMP-{H}",
        "TMP-",
        "cali40all-ipam-pools",
        "",
    ],
)
def test_foreign_sets(name: str) -> None:
    assert KUBE_ROUTER.set_owner(name) is None


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("kube-router-svip-temp", PROXY),
        ("kube-router-svip-", PROXY),
        ("kube-router-service-ips-temp", PROXY),
        ("kube-router-pod-subnets-", ROUTING),
        (f"KUBE-SRC-{H}-temp", POLICY),
        (f"KUBE-DST-{H}-", POLICY),
        *((name, None) for name in TEMPORARY_SETS),
    ],
)
def test_temporary_sets(name: str, owner: Controller | None) -> None:
    """Owned while nothing uses it; in use it is somebody else's, whatever its name."""
    found = KUBE_ROUTER.set_owner(name)
    assert found is not None
    assert (found.controller, found.unreferenced) == (owner, True)
    free = claims({}, [IpSet(name, "hash:ip", V4)])
    assert free.sets[name].evidence == "temporary-set"
    used = claims({key(): f"-A INPUT -m set --match-set {name} src -j DROP"})
    assert name not in used.sets
    member = claims({}, [IpSet(name, "hash:ip", V4), IpSet("theirs", "list:set", members=(name,))])
    assert name not in member.sets


@pytest.mark.parametrize(
    "name", ["kube-router-svip-tmp", "kube-router-svip--", "kube-router-svip-temp-", "inet6:kube-router-svip-temp"]
)
def test_foreign_temporary_sets(name: str) -> None:
    assert KUBE_ROUTER.set_owner(name) is None


def temporary(options: str) -> str:
    return "TMP-" + base64.b32encode(hashlib.sha1(f"tmp:{options}".encode()).digest()[:10]).decode()


def test_temporary_set_names_are_hashes_of_options() -> None:
    """By `create` options and by those that `ipset save` prints, which releases of ipset print differently."""
    saved = "hash:{} family {} hashsize 1024 maxelem 65536 timeout 0"
    options = [
        *(f"hash:{kind} timeout 0" for kind in ("ip", "ip,port", "net")),
        *(f"hash:{kind} timeout 0 family inet6" for kind in ("ip", "ip,port", "net")),
        *(
            saved.format(kind, family) + " bucketsize 12"
            for kind in ("ip", "ip,port", "net")
            for family in ("inet", "inet6")
        ),
        *(saved.format(kind, "inet") for kind in ("ip", "net")),
    ]
    assert {temporary(each) for each in options} == set(TEMPORARY_SETS)
    assert temporary("hash:ip timeout 1") not in TEMPORARY_SETS


def test_native_tables() -> None:
    """By name and nf_tables family together."""
    owned = (NativeTable("ip", "kube-router-filter-ipv4"), NativeTable("ip6", "kube-router-filter-ipv6"))
    near = (
        NativeTable("ip6", "kube-router-filter-ipv4"),
        NativeTable("ip", "kube-router-filter-ipv6"),
        NativeTable("inet", "kube-router-filter-ipv4"),
        NativeTable("ip", "kube-router-filter"),
        NativeTable("ip", "kube-router-filter-ipv4-old"),
        NativeTable("ip", "filter"),
    )
    assert claim(node(natives=owned + near).state, KUBE_ROUTER).native_tables == dict.fromkeys(owned, POLICY)


MARK4, MARK6 = min(dsr_marks("203.0.113.10", "tcp", "80")), min(dsr_marks("2001:db8::10", "udp", "53"))
K3S = "KUBE-ROUTER rule to explicitly ACCEPT traffic that comply to network policies"
NODE_PORT = "allow outbound node port traffic on node interface with which node ip is associated"
IPVS = "-m ipvs --vdir ORIGINAL --vmethod MASQ"
SYN = "--tcp-flags SYN,RST SYN -j TCPMSS --set-mss"
POD4 = "-m set --match-set kube-router-pod-subnets src -m set ! --match-set kube-router-pod-subnets dst"
POD6 = POD4.replace("kube", "inet6:kube")
VIP, OTHER, VIP6 = "203.0.113.10", "203.0.113.11", "2001:db8::10/128"
MARKED = f"-p tcp -m tcp --dport 80 -j MARK --set-xmark {MARK4:#x}/0xffffffff"
CLAMPED = f"-A PREROUTING -s {VIP6} -i kube-bridge -p tcp -m tcp --sport 80"
OUTSIDE, EMPTY = "! -s 10.0.0.0/24 ! -d 10.0.0.0/24", '-m comment --comment ""'
SNAT, SNAT6 = "-j SNAT --to-source 192.0.2.1", "-j SNAT --to-source 2001:db8::1"
NODES4, NODES6 = (
    "-m set ! --match-set kube-router-node-ips dst",
    "-m set ! --match-set inet6:kube-router-node-ips dst",
)

# (table, family, owned line, evidence, owner, lines that differ from it in one respect)
RULES: list[tuple[str, Family, str, str, Controller, list[str]]] = [
    (
        "filter", V4, '-A FORWARD -i kube-bridge -m comment --comment "allow outbound traffic from pods" -j ACCEPT',
        "rule-shape", ROUTING,
        [
            '-A FORWARD -i kube-bridge -m comment --comment "allow outbound traffic from pods" -j DROP',
            '-A FORWARD -i kube-bridge -m comment --comment "Allow outbound traffic from pods" -j ACCEPT',
            '-A FORWARD -i kube-bridge+ -m comment --comment "allow outbound traffic from pods" -j ACCEPT',
            '-A FORWARD -o kube-bridge -m comment --comment "allow outbound traffic from pods" -j ACCEPT',
            '-A INPUT -i kube-bridge -m comment --comment "allow outbound traffic from pods" -j ACCEPT',
            '-A FORWARD -i kube-bridge -j ACCEPT',
            '-A FORWARD -m comment --comment "allow outbound traffic from pods" -j ACCEPT',
            '-A FORWARD -i kube-bridge -p tcp -m comment --comment "allow outbound traffic from pods" -j ACCEPT',
        ],
    ),
    (
        "filter", V6, '-A FORWARD -o kube-bridge -m comment --comment "allow inbound traffic to pods" -j ACCEPT',
        "rule-shape", ROUTING,
        ['-A FORWARD -o cni0 -m comment --comment "allow inbound traffic to pods" -j ACCEPT'],
    ),
    (
        "filter", V6, f'-A FORWARD -o enp1s0 -m comment --comment "{NODE_PORT}" -j ACCEPT', "rule-shape", ROUTING,
        [
            f'-A FORWARD -o enp+ -m comment --comment "{NODE_PORT}" -j ACCEPT',
            f'-A FORWARD ! -o enp1s0 -m comment --comment "{NODE_PORT}" -j ACCEPT',
            f'-A FORWARD -m comment --comment "{NODE_PORT}" -j ACCEPT',
            f'-A FORWARD -o enp1s0 -m comment --comment "{NODE_PORT}." -j ACCEPT',
        ],
    ),
    (
        "filter", V4, f'-A OUTPUT -m comment --comment "{K3S}" -m mark --mark 0x20000/0x20000 -j ACCEPT',
        "rule-shape", POLICY,
        [
            "-A OUTPUT -m mark --mark 0x20000/0x20000 -j ACCEPT",
            f'-A OUTPUT -m comment --comment "{K3S}" -m mark --mark 0x20000 -j ACCEPT',
            f'-A OUTPUT -m comment --comment "{K3S}" -m mark ! --mark 0x20000/0x20000 -j ACCEPT',
            f'-A OUTPUT -m comment --comment "{K3S}" -m mark --mark 0x20000/0x20000 -j RETURN',
            f'-A OUTPUT -m comment --comment "my {K3S}" -m mark --mark 0x20000/0x20000 -j ACCEPT',
            f'-A mine -m comment --comment "{K3S}" -m mark --mark 0x20000/0x20000 -j ACCEPT',
        ],
    ),
    (
        "nat", V4, f"-A POSTROUTING {POD4} {NODES4} -j MASQUERADE --random-fully", "rule-shape", ROUTING,
        [
            f"-A POSTROUTING {POD4} {NODES4} -j ACCEPT",
            f"-A POSTROUTING {POD4} {NODES4} -j MASQUERADE --random",
            f"-A POSTROUTING {POD4} {NODES4.replace(' !', '')} -j MASQUERADE",
            f"-A POSTROUTING {POD4} {NODES6} -j MASQUERADE",
            f"-A POSTROUTING -o eth0 {POD4} {NODES4} -j MASQUERADE",
            f"-A OUTPUT {POD4} {NODES4} -j MASQUERADE",
        ],
    ),
    ("nat", V6, f"-A POSTROUTING {POD6} {NODES6} -j MASQUERADE", "rule-shape", ROUTING,
     [f"-A POSTROUTING {POD4} {NODES4} -j MASQUERADE"]),
    (
        "nat", V4, f"-A POSTROUTING {POD4} -j MASQUERADE", "rule-shape", ROUTING,
        [
            "-A POSTROUTING -m set --match-set kube-router-pod-subnets src -j MASQUERADE",
            f"-A POSTROUTING {POD4.replace(' !', '')} -j MASQUERADE",
            f"-A POSTROUTING {POD4.replace('subnets src', 'subnets dst')} -j MASQUERADE",
            f"-A POSTROUTING {POD4} -j MASQUERADE --to-ports 1024-65535",
        ],
    ),
    (
        "nat", V4,
        f'-A POSTROUTING {OUTSIDE} {IPVS} {EMPTY} {SNAT} --random-fully',
        "rule-shape", PROXY,
        [
            f'-A POSTROUTING ! -s 10.0.0.0/24 ! -d 10.0.1.0/24 {IPVS} {EMPTY} {SNAT}',
            f'-A POSTROUTING ! -s 10.0.0.0/24 {IPVS} {EMPTY} {SNAT}',
            f'-A POSTROUTING -s 10.0.0.0/24 -d 10.0.0.0/24 {IPVS} {EMPTY} {SNAT}',
            f"-A POSTROUTING {OUTSIDE} {IPVS} {SNAT}",
            f'-A POSTROUTING {OUTSIDE} {IPVS} -m comment --comment x {SNAT}',
        ],
    ),
    (
        "nat", V6, f'-A POSTROUTING {IPVS} {EMPTY} {SNAT6}', "rule-shape", PROXY,
        [
            f'-A POSTROUTING {IPVS} {EMPTY} {SNAT}',
            f'-A POSTROUTING {IPVS} {EMPTY} -j SNAT --to-source [2001:db8::1]:80',
            f'-A POSTROUTING {IPVS} {EMPTY} {SNAT6} --persistent',
            f'-A POSTROUTING -m ipvs --vdir ORIGINAL {EMPTY} {SNAT6}',
            f'-A POSTROUTING -m ipvs --vdir REPLY --vmethod MASQ {EMPTY} {SNAT6}',
        ],
    ),
    (
        "nat", V4, f'-A POSTROUTING {OUTSIDE} {IPVS} {EMPTY} -j MASQUERADE',
        "rule-shape", PROXY,
        [f'-A OUTPUT {OUTSIDE} {IPVS} {EMPTY} -j MASQUERADE'],
    ),
    ("nat", V4, f'-A POSTROUTING {IPVS} {EMPTY} -j MASQUERADE', "rule-shape", PROXY,
     [f"-A POSTROUTING {IPVS} -j MASQUERADE"]),
    (
        "mangle", V4, f"-A PREROUTING -d {VIP}/32 {MARKED}",
        "dsr-mark", PROXY,
        [
            f"-A PREROUTING -d 203.0.113.11/32 {MARKED}",
            f"-A PREROUTING -d {VIP}/32 -p tcp -m tcp --dport 81 -j MARK --set-xmark {MARK4:#x}/0xffffffff",
            f"-A PREROUTING -d {VIP}/32 -p udp -m udp --dport 80 -j MARK --set-xmark {MARK4:#x}/0xffffffff",
            f"-A PREROUTING -d {VIP}/32 -p tcp -m tcp --dport 80 -j MARK --set-xmark {MARK4:#x}/0x3fff",
            f"-A PREROUTING -d {VIP}/32 -p tcp -m tcp --dport 80 -j MARK --set-xmark 0x4000/0xffffffff",
            f"-A PREROUTING -d 203.0.113.0/24 {MARKED}",
            f"-A FORWARD -d {VIP}/32 {MARKED}",
            f"-A PREROUTING -d {VIP}/32 -p tcp -m tcp --sport 80 -j MARK --set-xmark {MARK4:#x}/0xffffffff",
        ],
    ),
    ("mangle", V6, f"-A OUTPUT -d {VIP6} -p udp -m udp --dport 53 -j MARK --set-xmark {MARK6:#x}/0xffffffff",
     "dsr-mark", PROXY,
     [f"-A OUTPUT -d {VIP6} -i eth0 -p udp -m udp --dport 53 -j MARK --set-xmark {MARK6:#x}/0xffffffff"]),
    (
        "mangle", V6, f"-A PREROUTING -s {VIP6} -i kube-bridge -p tcp -m tcp --sport 80 {SYN} 1400",
        "rule-shape", PROXY,
        [
            f"-A PREROUTING -s {VIP6} -i cni0 -p tcp -m tcp --sport 80 {SYN} 1400",
            f"-A PREROUTING -s {VIP6} -p tcp -m tcp --sport 80 {SYN} 1400",
            f"-A PREROUTING -s 2001:db8::/64 -i kube-bridge -p tcp -m tcp --sport 80 {SYN} 1400",
            f"-A POSTROUTING -s {VIP6} -i kube-bridge -p tcp -m tcp --sport 80 {SYN} 1400",
            f"{CLAMPED} --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu",
            f"{CLAMPED} --tcp-flags SYN,ACK SYN -j TCPMSS --set-mss 1400",
        ],
    ),
]  # fmt: skip

JUMPS = [
    ("filter", '-A INPUT -m comment --comment "kube-router netpol - 4IA2OSFRMVNDXBVV" -j KUBE-ROUTER-INPUT', POLICY),
    ("filter", '-A INPUT -m comment --comment "kube-router netpol" -j KUBE-ROUTER-INPUT', POLICY),
    ("filter", f"-A FORWARD -d 192.0.2.2/32 -m physdev --physdev-is-bridged -j KUBE-POD-FW-{H}", POLICY),
    ("filter", "-A INPUT -m set --match-set kube-router-svip dst -j KUBE-ROUTER-SERVICES", PROXY),
    ("filter", "-A INPUT -m set --match-set kube-router-service-ips dst -j KUBE-ROUTER-SERVICES", PROXY),
    ("filter", "-A mine -m limit --limit 1/sec -g KUBE-ROUTER-OUTPUT", POLICY),
    ("nat", "-A POSTROUTING -m ipvs --vdir ORIGINAL -j KUBE-ROUTER-HAIRPIN", PROXY),
]


@pytest.mark.parametrize("backend", [NFT, LEGACY])
@pytest.mark.parametrize(("table", "family", "line", "evidence", "owner", "_near"), RULES)
def test_rules(
    backend: Backend, table: str, family: Family, line: str, evidence: str, owner: Controller, _near: list[str]
) -> None:
    where = key(table, family, backend)
    (found,) = claims({where: line}).rules[where].values()
    assert (found.evidence, found.controller) == (evidence, owner)


@pytest.mark.parametrize(
    ("table", "family", "line", "near"),
    [(table, family, line, near) for table, family, line, _evidence, _owner, many in RULES for near in many],
)
def test_near_misses(table: str, family: Family, line: str, near: str) -> None:
    """One respect differs, and it is foreign; the trap is armed, as the line itself is owned beside it."""
    where = key(table, family)
    (found,) = claims({where: f"{near}\n{line}"}).rules[where].values()
    assert (
        found.rule.handle == node({where: f"{near}\n{line}"}).state.tables[where].rules[found.rule.chain][-1].handle
    )
    assert not claims({where: near}).rules[where]


@pytest.mark.parametrize(("table", "family", "line", "near"), [(t, f, li, n) for t, f, li, _e, _o, n in RULES])
def test_near_misses_are_near(table: str, family: Family, line: str, near: list[str]) -> None:
    """They share most of their words with the owned line."""
    for other in near:
        mine, theirs = (set(re.findall(r'"[^"]*"|\S+', each)) for each in (line, other))
        assert len(mine ^ theirs) <= 9, other


@pytest.mark.parametrize(("table", "line", "owner"), JUMPS)
def test_jumps(table: str, line: str, owner: Controller) -> None:
    """Whatever jumps to an owned chain of its table goes with it, however it reads."""
    target = line.rsplit(maxsplit=1)[-1]
    where = key(table)
    (found,) = claims({where: f"-N {target}\n{line}"}).rules[where].values()
    assert (found.evidence, found.controller, found.detail) == ("jump", owner, target)


@pytest.mark.parametrize(("table", "line", "_owner"), JUMPS)
def test_jumps_elsewhere(table: str, line: str, _owner: Controller) -> None:
    """The same name is a foreign chain in another table, and one letter more is another chain."""
    target = line.rsplit(maxsplit=1)[-1]
    other = "raw" if "INPUT" not in line else "security"
    moved = line.replace("-A FORWARD", "-A OUTPUT").replace("-A POSTROUTING", "-A OUTPUT")
    where = key(other)
    assert not claims({where: f"-N {target}\n{moved}"}).rules[where]
    where = key(table)
    assert not claims({where: f"-N {target}S\n{line}S"}).rules[where]


PROOF = f"-A PREROUTING -d {VIP}/32 {MARKED}"


@pytest.mark.parametrize("backend", [NFT, LEGACY])
@pytest.mark.parametrize("line", ["-A PREROUTING -d {}/32 -p tcp -m tcp", "-A POSTROUTING -s {}/32 -p tcp -m tcp"])
def test_old_clamps_need_a_proven_address(line: str, backend: Backend) -> None:
    """The clamp of 1.3 to 2.1 is owned with the mark of its address in the same table, before or after it."""
    where = key("mangle", backend=backend)
    mine, theirs = (f"{line} {SYN} 1440".format(address) for address in (VIP, OTHER))
    for text in (f"{PROOF}\n{mine}\n{theirs}", f"{theirs}\n{mine}\n{PROOF}"):
        found = claims({where: text}).rules[where].values()
        assert sorted(each.evidence for each in found) == ["dsr-mark", "dsr-vip"]
    assert not claims({where: f"{mine}\n{theirs}"}).rules[where]
    elsewhere = key("mangle", backend=LEGACY if backend is NFT else NFT)
    assert not claims({where: mine, elsewhere: PROOF}).rules[where]


def fnv1a(text: str) -> int:
    value = 0x811C9DC5
    for octet in text.encode():
        value = (value ^ octet) * 0x01000193 % 2**32
    return value


def test_dsr_marks() -> None:
    """FNV-1a of the service, 14 bits, and the numbered successors that are tried when it is taken."""
    marks = dsr_marks("203.0.113.10", "tcp", "80")
    assert 0x3EB3 in marks  # as on a real node
    assert fnv1a("203.0.113.10-tcp-80") & 0x3FFF == 0x3EB3
    assert fnv1a("203.0.113.10-tcp-80-1") & 0x3FFF in marks
    assert fnv1a("203.0.113.10-tcp-80-64") & 0x3FFF in marks
    assert len(marks) <= 65
    assert max(marks) < 2**14
    assert dsr_marks("2001:DB8:0::10", "tcp", "80") == dsr_marks("2001:db8::10", "tcp", "80")


def test_evidence_and_controllers_are_complete() -> None:
    """Every entry belongs to a controller and every table named is one of iptables."""
    assert {entry.shape.table for entry in KUBE_ROUTER.shapes} == {"filter", "nat", "mangle"}
    assert {entry.evidence for entry in KUBE_ROUTER.shapes} == {"rule-shape", "dsr-mark", "dsr-vip"}
    assert all(entry.controller in Controller for entry in KUBE_ROUTER.shapes)
    assert len({entry.shape.text + str(entry.shape.chains) for entry in KUBE_ROUTER.shapes}) == len(
        KUBE_ROUTER.shapes
    )
