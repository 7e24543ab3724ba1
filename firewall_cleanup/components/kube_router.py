"""What kube-router owns in iptables, nftables and ipset, of all releases since 0.1, and its copy in k3s and RKE2.

Read in cloudnativelabs/kube-router at v2.11 and in its tags; the release in which a name came is given where it is
known. What it leaves to others (kubelet's and kube-proxy's chains, tables named filter) is not here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final

from ..model import Controller, Family, NativeTable
from ..shapes import Bindings, Shape
from ..writers import Program
from . import ChainNames, Component, OwnedShape, SetNames
from .kube_router_host import FILES, HOST_NEEDS, LASTING, claim_items, service_marks

__all__ = ["KUBE_ROUTER", "dsr_marks"]

_PROXY = Controller.SERVICE_PROXY
_POLICY = Controller.NETWORK_POLICY
_ROUTING = Controller.ROUTING

# The base32 of a SHA-256, cut: pkg/controllers/netpol.
_HASH = "[A-Z2-7]{16}"

_CHAINS = (
    # npc_iptables.go, pod.go, policy.go. INPUT … since 1.0, DEFAULT 1.3, COMMON 2.6, TAIL 2.10.
    ChainNames(
        "filter",
        re.compile(
            f"KUBE-ROUTER-(?:INPUT|FORWARD|OUTPUT)|KUBE-POD-FW-{_HASH}|KUBE-NWPLCY-(?:DEFAULT|COMMON|TAIL|{_HASH})"
        ),
        _POLICY,
    ),
    # network_services_controller.go (setupIpvsFirewall, ensureHairpinChain).
    ChainNames("filter", re.compile("KUBE-ROUTER-SERVICES"), _PROXY),
    ChainNames("nat", re.compile("KUBE-ROUTER-HAIRPIN"), _PROXY),
)

# generateUniqueFWMark in pkg/controllers/proxy/utils.go: FNV-1a, 14 bits, and a number appended when it is taken.
_MARK_BITS: Final = 0x3FFF
_MARK_TRIES: Final = 64


def dsr_marks(address: str, protocol: str, port: str) -> frozenset[int]:
    """Return the marks that kube-router may give to the traffic of one DSR service.

    >>> min(dsr_marks("203.0.113.10", "tcp", "80")) <= 16051 in dsr_marks("203.0.113.10", "tcp", "80")
    True
    """
    key = f"{ipaddress.ip_address(address)}-{protocol}-{port}"
    return frozenset(_fnv1a(key if n == 0 else f"{key}-{n}") & _MARK_BITS for n in range(_MARK_TRIES + 1))


def _fnv1a(text: str) -> int:
    value = 0x811C9DC5
    for octet in text.encode():
        value = ((value ^ octet) * 0x01000193) & 0xFFFFFFFF
    return value


def _mark_is_proven(protocol: str) -> Callable[[Bindings, Family, frozenset[tuple[Family, int]]], bool]:
    def proof(bindings: Bindings, family: Family, marks: frozenset[tuple[Family, int]]) -> bool:
        address = bindings["<vip>"].partition("/")[0]
        mark = int(bindings["<mark>"].partition("/")[0], 16)
        return mark in dsr_marks(address, protocol, bindings["<port>"]) or (family, mark) in marks

    return proof


def _masquerade(text: str) -> OwnedShape:
    # ensureMasqueradeIptablesRule: the comment is there and empty; --random-fully came with 1.3.
    shape = Shape("nat", ("POSTROUTING",), text, frozenset({"--random-fully"}))
    return OwnedShape(shape, _PROXY, "rule-shape")


def _egress(text: str) -> OwnedShape:
    # podEgressArgs of pkg/controllers/routing/pod_egress.go; without node-ips in old releases.
    shape = Shape("nat", ("POSTROUTING",), text, frozenset({"--random-fully"}))
    return OwnedShape(shape, _ROUTING, "rule-shape")


def _forward(text: str) -> OwnedShape:
    # enableForwarding of pkg/controllers/routing/network_routes_controller.go.
    return OwnedShape(Shape("filter", ("FORWARD",), text), _ROUTING, "rule-shape")


def _dsr_mark(protocol: str) -> OwnedShape:
    # setupMangleTableRule of pkg/controllers/proxy: it has no comment, so the mark itself must be the hash.
    text = f"-d <vip> -p {protocol} -m {protocol} --dport <port> -j MARK --set-xmark <mark>"
    shape = Shape("mangle", ("PREROUTING", "OUTPUT"), text)
    return OwnedShape(shape, _PROXY, "dsr-mark", _mark_is_proven(protocol), proves_vip=True)


_SHAPES = (
    _forward('-i kube-bridge -m comment --comment "allow outbound traffic from pods" -j ACCEPT'),
    _forward('-o kube-bridge -m comment --comment "allow inbound traffic to pods" -j ACCEPT'),
    _forward(
        '-o <interface> -m comment --comment "allow outbound node port traffic on node interface with which node'
        ' ip is associated" -j ACCEPT'
    ),
    _egress(
        "-m set --match-set {inet6}kube-router-pod-subnets src"
        " -m set ! --match-set {inet6}kube-router-pod-subnets dst"
        " -m set ! --match-set {inet6}kube-router-node-ips dst -j MASQUERADE"
    ),
    _egress(
        "-m set --match-set {inet6}kube-router-pod-subnets src"
        " -m set ! --match-set {inet6}kube-router-pod-subnets dst"
        " -j MASQUERADE"
    ),
    _masquerade(
        '! -s <cidr> ! -d <cidr> -m ipvs --vdir ORIGINAL --vmethod MASQ -m comment --comment ""'
        " -j SNAT --to-source <address>"
    ),
    _masquerade('-m ipvs --vdir ORIGINAL --vmethod MASQ -m comment --comment "" -j SNAT --to-source <address>'),
    _masquerade(
        '! -s <cidr> ! -d <cidr> -m ipvs --vdir ORIGINAL --vmethod MASQ -m comment --comment "" -j MASQUERADE'
    ),
    _masquerade('-m ipvs --vdir ORIGINAL --vmethod MASQ -m comment --comment "" -j MASQUERADE'),
    _dsr_mark("tcp"),
    _dsr_mark("udp"),
    # Since 2.2 the clamp names the bridge and the port; nobody else writes that.
    OwnedShape(
        Shape(
            "mangle",
            ("PREROUTING",),
            "-s <vip> -i kube-bridge -p tcp -m tcp --sport <port> --tcp-flags SYN,RST SYN -j TCPMSS --set-mss <mss>",
        ),
        _PROXY,
        "rule-shape",
    ),
    # 1.3 to 2.1: a clamp that anybody could have written, but for the address.
    OwnedShape(
        Shape(
            "mangle",
            ("PREROUTING",),
            "-d <vip> -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss <mss>",
        ),
        _PROXY,
        "dsr-vip",
        needs_vip=True,
    ),
    OwnedShape(
        Shape(
            "mangle",
            ("POSTROUTING",),
            "-s <vip> -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss <mss>",
        ),
        _PROXY,
        "dsr-vip",
        needs_vip=True,
    ),
    # The network policy controller in k3s and RKE2 appends this to the built-in chains (k3s-io/k3s#7244).
    OwnedShape(
        Shape(
            "filter",
            ("INPUT", "FORWARD", "OUTPUT"),
            '-m comment --comment "KUBE-ROUTER rule to explicitly ACCEPT traffic that comply to network policies"'
            " -m mark --mark 0x20000/0x20000 -j ACCEPT",
        ),
        _POLICY,
        "rule-shape",
    ),
)

# pkg/utils/ipset.go names temporary sets after the options of the set, so the names are constants: by `create`
# options, and by those that `ipset save` prints.
TEMPORARY_SETS = (
    "TMP-PRBJ7ASFQM5DJR3Q", "TMP-TF3INM4IEYGA443O", "TMP-LP6R7TXZCLIUYMBN", "TMP-3TF2IQ5MKRP6NAJL",
    "TMP-54ALMNP65S4KA7CE", "TMP-6RUYGQYVJUHZ3KV3", "TMP-MOR3H7HU5JDLK6FI", "TMP-RSBHANEMWCYCBHBT",
    "TMP-BXHY5LLMLSN36WFL", "TMP-HCOURTRSJMOBFDQ2", "TMP-VWYBUB54W7TIO5MX", "TMP-HFA3N3MYAZWHHOEU",
    "TMP-OS7GGD2P5UDSAXIN", "TMP-PUNCP53ETFCOGORG",
)  # fmt: skip


def _sets(names: str, controller: Controller, *, inet6: bool = True) -> tuple[SetNames, SetNames]:
    pattern = f"(?:inet6:)?(?:{names})" if inet6 else f"(?:{names})"
    # Releases up to 1.6 filled `<name>-`, up to 1.1 `<name>-temp`, and swapped: what a crash left is unused.
    return (
        SetNames(re.compile(pattern), controller),
        SetNames(re.compile(f"(?:{names})(?:-temp|-)"), controller, unreferenced=True),
    )


_SETS = (
    *_sets("kube-router-(?:local-ips|svip|svip-prt)", _PROXY),
    *_sets("kube-router-(?:service-ips|ipvs-services)", _PROXY, inet6=False),  # up to 1.6, IPv4 only
    *_sets(f"KUBE-(?:SRC|DST)-{_HASH}|kube-router-local-pods", _POLICY),
    *_sets("kube-router-(?:pod-subnets|node-ips)", _ROUTING),
    SetNames(re.compile("|".join(TEMPORARY_SETS)), None, unreferenced=True),
)

_NODE = frozenset({"server", "agent"})

# Flags: pkg/options/options.go of kube-router; true if not given. k3s runs the policy controller in servers and
# agents (pkg/agent/netpol), and gives itself the title "k3s server" or "k3s agent", which hides its options
# (pkg/cli/server, pkg/cli/agent); the agent is told by its server. What unpacks and starts it is k3s-server or
# k3s-agent (cmd/k3s).
_PROGRAMS = (
    Program(
        "kube-router",
        {_POLICY: "--run-firewall", _PROXY: "--run-service-proxy", _ROUTING: "--run-router"},
        passing=frozenset({"--cleanup-config", "--help", "--version", "--V"}),
    ),
    Program(
        "k3s",
        {_POLICY: "--disable-network-policy"},
        commands=_NODE,
        doubt="its policy controller writes, unless its servers have disable-network-policy",
    ),
    Program(
        "rke2",
        {_POLICY: "--disable-network-policy"},
        commands=_NODE,
        doubt="its policy controller writes only where it is not disabled, as most releases have it",
    ),
)

KUBE_ROUTER = Component(
    name="kube-router",
    chains=_CHAINS,
    shapes=_SHAPES,
    sets=_SETS,
    # pkg/controllers/netpol/npc_nftables.go, since 2.11.
    native_tables={
        NativeTable("ip", "kube-router-filter-ipv4"): _POLICY,
        NativeTable("ip6", "kube-router-filter-ipv6"): _POLICY,
    },
    claim_items=claim_items,
    service_marks=service_marks,
    wants_members=HOST_NEEDS.wants_members,
    links_with_addresses=HOST_NEEDS.links,
    routes=HOST_NEEDS.routes,
    item_controllers=frozenset({_PROXY, _ROUTING}),
    files=FILES,
    lasting=LASTING,
    programs=_PROGRAMS,
)
