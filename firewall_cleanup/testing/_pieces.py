"""Pieces of nodes as text: what kube-router writes, what others write that looks like it, and what holds its sets."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

import attrs

from ..model import Controller, Family, NativeTable
from .node import fwmark, short_hash, temporary_set

__all__ = [
    "CHAIN_OWNERS",
    "FOREIGN",
    "HASHES",
    "HOLDERS",
    "NATIVE_OWNERS",
    "OWNED",
    "SET_OWNERS",
    "TARGETS",
    "TEMPORARY",
    "TEMPORARY_PIECE",
    "Piece",
    "fill",
]

_PROXY, _POLICY, _ROUTING = Controller.SERVICE_PROXY, Controller.NETWORK_POLICY, Controller.ROUTING
HASHES = tuple(short_hash(f"name {i}") for i in range(2))
"""The hashes that stand in drawn names; few, so that pieces meet."""
TEMPORARY = temporary_set("hash:ip timeout 0")
_WORDS: Mapping[Family, Mapping[str, str]] = {
    Family.IPV4: {
        "p": "", "host": "/32", "ip": "ip", "ip6": "ip6", "number": "4", "other_number": "6", "vip": "203.0.113.10",
        "other": "203.0.113.11", "pods": "198.51.100.0/26", "pod": "198.51.100.2/32", "node": "192.0.2.20",
        "reject": "icmp-port-unreachable",
    },
    Family.IPV6: {
        "p": "inet6:", "host": "/128", "ip": "ip6", "ip6": "ip", "number": "6", "other_number": "4",
        "vip": "2001:db8:20::10", "other": "2001:db8:20::11", "pods": "2001:db8:10::/64",
        "pod": "2001:db8:10::2/128", "node": "2001:db8:1::20", "reject": "icmp6-port-unreachable",
    },
}  # fmt: skip


@attrs.frozen
class Piece:
    """Lines that come together, in one table: `-N`, `-A` (`-c` for a comment), `create SET TYPE [members]`, `table`.

    `owner` is set if the lines are owned: a rule in a built-in chain, a chain, a set, a table of nftables. What they
    name (the chain that a rule jumps to, its sets) is made as well. `ipv4` marks what has no counterpart in IPv6.
    """

    lines: tuple[str, ...]
    owner: Controller | None = None
    table: str = "filter"
    ipv4: bool = False


def _pieces(text: str, owner: Controller | None = None) -> tuple[Piece, ...]:
    """Read lines of `table line [& line]`, `4 table line` for IPv4 only; empty lines and remarks are left out."""
    result = []
    for each in text.strip().splitlines():
        if each and not each.startswith("#"):
            ipv4 = each.startswith("4 ")
            table, lines = each.removeprefix("4 ").split(" ", 1)
            result.append(Piece(tuple(lines.split(" & ")), owner, table, ipv4))
    return tuple(result)


OWNED = (
    *_pieces(
        """
filter -A INPUT -c "kube-router netpol - 4IA2OSFRMVNDXBVV" -j KUBE-ROUTER-INPUT
filter -A FORWARD -c "kube-router netpol" -j KUBE-ROUTER-FORWARD
filter -A OUTPUT -g KUBE-ROUTER-OUTPUT
filter -A FORWARD -d {pod} -m physdev --physdev-is-bridged -c "rule to jump" -j KUBE-POD-FW-{h}
filter -A INPUT -c "KUBE-ROUTER rule to explicitly ACCEPT traffic that comply to network policies" {ok} -j ACCEPT
filter -A KUBE-ROUTER-FORWARD -d {pod} -c "default/web-0 in" -j KUBE-POD-FW-{h}
filter -A KUBE-ROUTER-INPUT -c "explicitly ACCEPT traffic that complies with network policies" {ok} -j ACCEPT
filter -A KUBE-POD-FW-{h} -c "default egress" -j KUBE-NWPLCY-DEFAULT
filter -A KUBE-POD-FW-{h} -c "common netpol rules" -j KUBE-NWPLCY-COMMON
filter -A KUBE-POD-FW-{h} -m limit --limit 10/min --limit-burst 10 -j NFLOG --nflog-group 100
filter -A KUBE-POD-FW-{h} -c "reject" -j REJECT --reject-with {reject}
filter -A KUBE-NWPLCY-{h} -m set --match-set {p}KUBE-SRC-{h} src -m set --match-set {p}KUBE-DST-{h} dst -j RETURN
filter -A KUBE-NWPLCY-COMMON -c "\\"rule to drop invalid state for pod\\"" -m conntrack --ctstate INVALID -j DROP
filter -A KUBE-NWPLCY-TAIL -s {pods} -m set ! --match-set {p}kube-router-local-pods src -j DROP
filter -N KUBE-NWPLCY-{h}
ipset create {p}KUBE-SRC-{h} hash:ip
ipset create {p}kube-router-local-pods hash:ip
native table {ip} kube-router-filter-ipv{number}
""",
        _POLICY,
    ),
    *_pieces(
        """
filter -A INPUT -c "handle traffic to IPVS service IPs in custom chain" {svip} dst -j KUBE-ROUTER-SERVICES
filter -A KUBE-ROUTER-SERVICES -m set --match-set {p}kube-router-svip-prt dst,dst -j ACCEPT
filter -A KUBE-ROUTER-SERVICES -m set ! --match-set {p}kube-router-local-ips dst -j REJECT --reject-with {reject}
nat -A POSTROUTING -m ipvs --vdir ORIGINAL -j KUBE-ROUTER-HAIRPIN
nat -A KUBE-ROUTER-HAIRPIN -s {pod} -d {pod} -m ipvs --vaddr {vip} --vport 80 -j SNAT --to-source {vip}
nat -A POSTROUTING ! -s {pods} ! -d {pods} {masq} -c "" -j SNAT --to-source {node} --random-fully
nat -A POSTROUTING {masq} -c "" -j SNAT --to-source {node}
nat -A POSTROUTING ! -s {pods} ! -d {pods} {masq} -c "" -j MASQUERADE
mangle -A PREROUTING -d {vip}{host} -p tcp -m tcp --dport 80 -j MARK --set-xmark {mark}/0xffffffff
mangle -A OUTPUT -d {vip}{host} -p udp -m udp --dport 53 -j MARK --set-xmark {udp_mark}/0xffffffff
mangle -A PREROUTING -s {vip}{host} -i kube-bridge -p tcp -m tcp --sport 80 {syn} 1440
mangle {proof} & -A PREROUTING -d {vip}{host} -p tcp -m tcp {syn} 1440
mangle -A POSTROUTING -s {vip}{host} -p tcp -m tcp {syn} 1440 & {proof}
ipset create {p}kube-router-svip hash:ip
ipset create kube-router-svip-temp hash:ip
4 ipset create kube-router-service-ips hash:ip
""",
        _PROXY,
    ),
    *_pieces(
        """
filter -A FORWARD -i kube-bridge -c "allow outbound traffic from pods" -j ACCEPT
filter -A FORWARD -o kube-bridge -c "allow inbound traffic to pods" -j ACCEPT
filter -A FORWARD -o eth0 -c "{node_port}" -j ACCEPT
nat -A POSTROUTING {leaving} -m set ! --match-set {p}kube-router-node-ips dst -j MASQUERADE --random-fully
nat -A POSTROUTING {leaving} -j MASQUERADE
ipset create {p}kube-router-pod-subnets hash:net
ipset create kube-router-node-ips- hash:ip
""",
        _ROUTING,
    ),
    # What one controller has and another one uses. Behind the rest: who names a chain or a set first, owns it.
    *_pieces(
        """
filter -A KUBE-ROUTER-FORWARD -m set --match-set {p}kube-router-pod-subnets src -j RETURN
filter -A FORWARD {svip} dst -j KUBE-ROUTER-FORWARD
""",
        _POLICY,
    ),
    *_pieces(
        """
filter -A KUBE-ROUTER-SERVICES -d {pod} -j KUBE-POD-FW-{h}
filter -A INPUT -m set --match-set {p}KUBE-SRC-{h} src -g KUBE-ROUTER-SERVICES
""",
        _PROXY,
    ),
)
"""What kube-router writes, with its owner."""

# Owned, and nobody's in particular; a rule that uses it makes it foreign.
TEMPORARY_PIECE = Piece((f"create {TEMPORARY} hash:ip",), table="ipset")

FOREIGN = _pieces("""
# Other owners.
filter -A INPUT -j KUBE-FIREWALL
filter -A KUBE-FIREWALL ! -s {pods} -d {pods} -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
filter [7:420] -A FORWARD -m limit --limit 3/sec -j LOG --log-prefix "KUBE-ROUTER-INPUT"
nat -A POSTROUTING -s {pods} -j MASQUERADE
filter -N KUBE-KUBELET-CANARY
# Names that are not whole, or in another table.
filter -A KUBE-ROUTER-INPUTS -j ACCEPT
filter -A FORWARD -j KUBE-FW-{h}
filter -N KUBE-POD-FW-{short}
filter -A INPUT -j kube-router-input
nat -A KUBE-ROUTER-INPUT -j RETURN
nat -A PREROUTING -j KUBE-POD-FW-{h}
filter -A KUBE-ROUTER-HAIRPIN -j RETURN
# A comment says it, the rule does not do it.
filter -A INPUT -c "kube-router netpol - 4IA2OSFRMVNDXBVV" -j ACCEPT
filter -A FORWARD -c "-j KUBE-ROUTER-FORWARD" -j ACCEPT
filter -A OUTPUT -c "rule to jump traffic to chain KUBE-POD-FW-{h}" -j RETURN
# One respect differs.
filter -A FORWARD -i kube-bridge0 -c "allow outbound traffic from pods" -j ACCEPT
filter -A FORWARD -o kube-bridge -c "allow inbound traffic to pods " -j ACCEPT
filter -A FORWARD -i kube-bridge -c "allow inbound traffic to pods" -j ACCEPT
filter -A OUTPUT -o kube-bridge -c "allow inbound traffic to pods" -j ACCEPT
filter -A FORWARD -o eth+ -c "{node_port}" -j ACCEPT
filter -A FORWARD -o kube-bridge -c "allow inbound traffic to pods" -j DROP
filter -A FORWARD -o kube-bridge -c "allow inbound traffic to pods" -m limit --limit 1/sec -j ACCEPT
filter -A INPUT {ok} -j ACCEPT
nat -A POSTROUTING {masq} -j SNAT --to-source {node}
nat -A POSTROUTING {masq} -c "mine" -j MASQUERADE
nat -A POSTROUTING ! -s {pods} {masq} -c "" -j MASQUERADE
nat -A POSTROUTING {masq} -c "" -j SNAT --to-source {node}:1024-2048
nat -A POSTROUTING -m set --match-set {p}pod-subnets src -m set ! --match-set {p}pod-subnets dst -j MASQUERADE
mangle -A PREROUTING -d {vip}{host} -p tcp -m tcp --dport 81 -j MARK --set-xmark 0x4000/0xffffffff
mangle -A PREROUTING -d {vip}{host} -p tcp -m tcp --dport 80 -j MARK --set-xmark {mark}/0x3fff
mangle -A PREROUTING -d {other}{host} -p tcp -m tcp {syn} 1440
mangle -A PREROUTING -s {vip}{host} -i cni0 -p tcp -m tcp --sport 80 {syn} 1440
# Sets.
ipset create {p}kube-router-svip2 hash:ip
ipset create {p}KUBE-SRC-{short} hash:ip
ipset create {p}KUBE-CLUSTER-IP hash:ip,port
ipset create TMP-{h} hash:ip
ipset create mine-{number} hash:net & create all-{number} list:set mine-{number}
filter -A INPUT -m set --match-set {p}kube-router-svip2 src -j DROP
filter -A INPUT -m set --match-set {temporary} src -j DROP
# Tables of nftables.
native table {ip6} kube-router-filter-ipv{number}
native table inet kube-router-filter-ipv{number}
native table {ip} kube-router-filter-ipv{other_number}
""")
"""What others write; most lines differ from an owned one in a single respect."""

HOLDERS = _pieces("""
filter -A INPUT {svip} src -j ACCEPT
nat -A PREROUTING -m set --match-set {p}kube-router-pod-subnets dst -j RETURN
nat -A POSTROUTING {leaving} -j ACCEPT
filter -A mine -j SET --add-set {p}KUBE-SRC-{h} src
ipset create group-{number} list:set {p}kube-router-svip
""")
"""What others write and what uses an owned set, which therefore cannot go."""

TARGETS = frozenset("ACCEPT DROP RETURN REJECT NFLOG LOG MARK MASQUERADE SNAT TCPMSS SET".split())


@functools.cache
def fill(line: str, family: Family, h: str) -> str:
    words = dict(_WORDS[family], h=h, short=h[:15], temporary=TEMPORARY)
    words["mark"] = f"{fwmark(words['vip'], 80):#x}"
    words["udp_mark"] = f"{fwmark(words['vip'], 53, 'udp', increment=2):#x}"
    words["ok"] = "-m mark --mark 0x20000/0x20000"
    words["masq"] = "-m ipvs --vdir ORIGINAL --vmethod MASQ"
    words["syn"] = "--tcp-flags SYN,RST SYN -j TCPMSS --set-mss"
    words["svip"] = f"-m set --match-set {words['p']}kube-router-svip"
    subnets = f"--match-set {words['p']}kube-router-pod-subnets"
    words["leaving"] = f"-m set {subnets} src -m set ! {subnets} dst"
    words["node_port"] = "allow outbound node port traffic on node interface with which node ip is associated"
    words["proof"] = "-A PREROUTING -d {vip}{host} -p tcp -m tcp --dport 80 -j MARK --set-xmark {mark}/0xffffffff"
    return line.format(**words).format(**words).replace(' -c "', ' -m comment --comment "')


def _owned_names() -> tuple[dict[tuple[str, str], Controller], dict[str, Controller]]:
    """Return the owners of all chains (by table) and sets that `OWNED` names."""
    chains: dict[tuple[str, str], Controller] = {}
    sets: dict[str, Controller] = {}
    for piece, family, h in itertools.product(OWNED, Family, HASHES):
        for line in (fill(line, family, h) for line in piece.lines):
            words = line.split()
            if piece.table == "ipset":
                sets.setdefault(words[1], piece.owner or _PROXY)
            elif words[0] == "-N":
                chains.setdefault((piece.table, words[1]), piece.owner or _PROXY)
            elif words[0] == "-A":
                names = (words[1], words[-1]) if words[-2] in {"-j", "-g"} else (words[1],)
                for name in names:
                    if name.startswith("KUBE-"):
                        chains.setdefault((piece.table, name), piece.owner or _PROXY)
                for name in (word for before, word in itertools.pairwise(words) if before == "--match-set"):
                    sets.setdefault(name, piece.owner or _PROXY)
    return chains, sets


CHAIN_OWNERS, SET_OWNERS = _owned_names()
NATIVE_OWNERS = {
    NativeTable("ip", "kube-router-filter-ipv4"): _POLICY,
    NativeTable("ip6", "kube-router-filter-ipv6"): _POLICY,
}
