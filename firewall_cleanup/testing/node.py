"""The netfilter state of a node that runs kube-router, as loadable text.

The shapes are those of kube-router v2.11 (pkg/controllers/netpol, proxy and routing), printed as
iptables 1.8.9 and ipset 7.17 print them. Nothing here is recorded: addresses come from the
documentation ranges (large nodes also use 100.64.0.0/10), names from kube-router's algorithms.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from functools import cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from itertools import count, islice

import attrs

from ._node_text import END, HOOK, ICMP, ICMP_TYPES, NO_POLICY, OPTIONS, POD, POLICY, SERVICE, START, TRUE, WORDS

__all__ = ["BUILTIN", "FAMILIES", "Node", "fwmark", "short_hash", "temporary_set"]

FAMILIES = ("ipv4", "ipv6")
BUILTIN = {
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
}
"""Built-in chains by table, in the order in which iptables-save prints them."""


def short_hash(text: str) -> str:
    """The 16 base32 characters that end kube-router's chain and set names."""
    return base64.b32encode(hashlib.sha256(text.encode()).digest())[:16].decode()


def fwmark(address: str, port: int, protocol: str = "tcp", *, increment: int = 0) -> int:
    """The 14-bit mark of a DSR service (FNV-1a; `increment` counts collisions, from 0)."""
    mark = 0x811C9DC5
    suffix = f"-{increment}" if increment else ""
    for byte in f"{address}-{protocol}-{port}{suffix}".encode():
        mark = (mark ^ byte) * 0x01000193 & 0xFFFFFFFF
    return mark & 0x3FFF


def temporary_set(options: str) -> str:
    """The name of the set that kube-router fills before it swaps (pkg/utils/ipset.go)."""
    digest = hashlib.sha1(f"tmp:{options}".encode(), usedforsecurity=False).digest()
    return "TMP-" + base64.b32encode(digest[:10]).decode()


_Network = IPv4Network | IPv6Network


@attrs.frozen
class _Family:
    """All that differs between the families; there is one code path for both."""

    api: str  # Kubernetes' name, which is hashed into chain and set names
    pods: tuple[str, ...]  # ranges to carve pod CIDRs from, smallest first
    services: tuple[str, ...]
    longest: tuple[int, int]  # prefix lengths of pod CIDRs and service ranges on a small node
    icmp: tuple[int, ...]  # types, in the order of ICMP_TYPES
    words: dict[str, str]  # for the templates


_FAMILY = {
    "ipv4": _Family(
        "IPv4", ("198.51.100.0/24", "100.64.0.0/11"), ("203.0.113.0/24", "100.96.0.0/12"),
        longest=(26, 26), icmp=(8, 3, 11), words={
            "p": "", "host": "/32", "inet": "inet", "ip": "ip", "type": "ipv4_addr",
            "table": "kube-router-filter-ipv4", "unreachable": "icmp-port-unreachable",
            "icmp": "icmp", "icmp_match": "icmp --icmp-type", "icmp_nft": "icmp",
            "node": "192.0.2.20", "peers": "192.0.2.21 192.0.2.22", "local": "127.0.0.1",
            "cidr": "192.0.2.0/25", "hole": "192.0.2.96/27", "mss": "1440", "old_mss": "1440",
        },
    ),
    "ipv6": _Family(
        "IPv6", ("2001:db8:10::/48",), ("2001:db8:20::/64",),
        longest=(64, 112), icmp=(128, 1, 3, 135, 136, 129), words={
            "p": "inet6:", "host": "/128", "inet": "inet6", "ip": "ip6", "type": "ipv6_addr",
            "table": "kube-router-filter-ipv6", "unreachable": "icmp6-port-unreachable",
            "icmp": "ipv6-icmp", "icmp_match": "icmp6 --icmpv6-type", "icmp_nft": "icmpv6",
            "node": "2001:db8:1::20", "peers": "2001:db8:1::21 2001:db8:1::22",
            "local": "::1 fe80::200:5eff:fe00:5320", "cidr": "2001:db8:1::/64",
            "hole": "2001:db8:1:0:4000::/66", "mss": "1400", "old_mss": "1440",
        },
    ),
}  # fmt: skip


def _carve(ranges: tuple[str, ...], size: int, longest: int) -> list[_Network]:
    """Three equal networks with room for `size` hosts each, from the first range that fits."""
    for text in ranges:
        whole = ip_network(text)
        length = min(longest, whole.max_prefixlen - (size + 2).bit_length())
        if length - whole.prefixlen >= 2:
            return list(islice(whole.subnets(new_prefix=length), 1, 4))
    raise ValueError(f"{size} addresses do not fit into {ranges}")


def _policy(index: int, api: str, version: str) -> dict[str, str]:
    """The words of a policy; its namespace, way and name form the policy's title."""
    way = tuple(TRUE)[index % 3]
    namespace, name = ("shop", "billing")[index % 2], f"{way}-{index}"

    def key(part: str = "", kind: str = "") -> str:
        return short_hash(f"{namespace}{name}{part}{api}{kind}")

    return {
        "way": way, "namespace": namespace, "policy": f"{namespace}/{name}",
        "chain": f"KUBE-NWPLCY-{key(version)}", "dst": f"KUBE-DST-{key()}", "src": f"KUBE-SRC-{key()}",
        "from_pods": f"KUBE-SRC-{key('ingressrule0', 'pod')}", "to_pods": f"KUBE-DST-{key('egressrule0', 'pod')}",
        "block": f"KUBE-DST-{key('egressrule0', 'ipblock')}",
        "holes": f"KUBE-DST-{key('egressrule0', 'ipblockexcept')}",
        "subchain": f"KUBE-NWPLCY-{key('egressrule0', 'ipblockchain')}",
    }  # fmt: skip


def _elements(addresses: list[str]) -> str:
    return f"elements = {{ {', '.join(addresses)} }};" if addresses else ""


def _note(text: str, cidr: _Network) -> str:
    arguments = f"KUBE-ROUTER-INPUT-mcomment--comment{text}-d{cidr}-jRETURN"
    return f"{text} - {short_hash(arguments)}"


@cache
def _select(template: str, true: frozenset[str]) -> str:
    """The lines whose condition holds, without it."""
    lines = (line.partition(" ") for line in template.splitlines() if line)
    return "".join(f"{rest}\n" for when, _, rest in lines if true.issuperset(when.split("+")))


@attrs.frozen(kw_only=True)
class Node:
    """A dual-stack node whose netfilter tables hold kube-router's state and nothing else.

    Methods that take a `family`, "ipv4" or "ipv6", raise ValueError for any other.
    """

    pods: int = attrs.field(default=3, validator=attrs.validators.ge(0))  # each with a chain of its own
    policies: int = attrs.field(default=2, validator=attrs.validators.ge(0))  # ingress, both, egress by turns
    services: int = attrs.field(default=2, validator=attrs.validators.ge(0))  # external address, NodePort by turns
    version: str = "1767225600000000000"  # of the sync, ns since 1970; part of chain names
    default_deny: bool = False  # --netpol-default-deny (2.10 and later)
    k3s: bool = False  # accepting rules in built-in chains, as k3s' and RKE2's copy adds
    random_fully: bool = True  # iptables knows --random-fully
    ipvs: bool = False  # rules with `-m ipvs`, which need a kernel with ip_vs
    dsr: bool = True  # external addresses, with direct server return
    nft_netpol: bool = False  # network policy in nftables (`nft_tables`), not in iptables
    historic: bool = False  # what older releases left, as far as it can stand beside the rest

    def iptables_save(self, family: str) -> str:
        """The filter, nat and mangle tables of "ipv4" or "ipv6", rules without counters."""
        tables: dict[str, dict[str, list[str]]] = {
            table: {chain: [] for chain in chains} for table, chains in BUILTIN.items()
        }
        for where, what, rule in self._lines(family):
            if where == "match":  # kube-router writes two rules for what a policy allows
                marked = f"-A {what} {rule} -m mark --mark 0x10000/0x10000 -j RETURN"
                rules = tables["filter"].setdefault(what, [])
                rules += [f"-A {what} {rule} {WORDS['mark']}", marked]
            elif where in tables:
                for chain in what.split(","):
                    rules = tables[where].setdefault(chain, [])
                    rules += [f"-A {chain} {rule}"] * bool(rule)
        text = []
        for table, chains in tables.items():
            order = (*BUILTIN[table], *sorted(chains.keys() - BUILTIN[table]))
            text.append(f"*{table}")
            text += [f":{c} {'ACCEPT' if c in BUILTIN[table] else '-'} [0:0]" for c in order]
            text += [rule for chain in order for rule in chains[chain]]
            text.append("COMMIT")
        return "\n".join(text).replace(' -c "', ' -m comment --comment "') + "\n"

    def ipsets(self) -> str:
        """`ipset restore` text, both families, in the order of `ipset save`."""
        sets: dict[str, list[str]] = {}
        for family in FAMILIES:
            prefix, inet = _FAMILY[family].words["p"], _FAMILY[family].words["inet"]
            for where, what, rest in self._lines(family):
                members = rest.split()
                if where == "ipset":
                    sets[prefix + what] = [f"create {prefix}{what} {OPTIONS.format(members.pop(0), inet)}\n"]
                if where in ("ipset", "member"):
                    sets[prefix + what] += [f"add {prefix}{what} {one} timeout 0\n" for one in members]
        # The node's address comes once for each NodePort.
        text = "".join(line for lines in sets.values() for line in dict.fromkeys(lines))
        return text.replace("! timeout 0", " timeout 0 nomatch")

    def temporary_sets(self) -> str:
        """`ipset restore` text of the sets that a crash in the middle of a sync leaves.

        Their names depend on the options that kube-router passed or has read back. An ipset too old to print a
        bucketsize goes with a kube-router that knew IPv4 only.
        """
        text = ""
        for name, family in _FAMILY.items():
            for kind in ("ip", "ip,port", "net"):
                full = OPTIONS.format(kind, family.words["inet"])
                known = [f"hash:{kind} timeout 0", f"{full} bucketsize 12"]
                if name == "ipv6":
                    known[0] += " family inet6"
                elif kind != "ip,port":
                    known.append(full)
                text += "".join(f"create {temporary_set(options)} {full}\n" for options in known)
        return text

    def nft_tables(self) -> str:
        """`nft -f` text of both families' network policy; empty unless `nft_netpol`."""
        text: list[str] = []
        for family in FAMILIES:
            table = "{ip} {table}".format(**_FAMILY[family].words)
            verbs = {verb: list[str]() for verb in ("table", "chain", "set", "element", "rule")}
            for where, what, rest in self._lines(family):
                if where in verbs:
                    verbs[where] += [f"add {where} {table} {one} {rest}".rstrip() for one in what.split(",")]
            text += [line for lines in verbs.values() for line in lines]
        return "".join(f"{line}\n" for line in text)

    def marks(self) -> dict[str, int]:
        """The mark of every DSR address, both families; empty without `dsr`."""
        taken: dict[int, str] = {}
        for family in FAMILIES:
            *_, outside = self._ranges(family)
            for index in range(0, self.services if self.dsr else 0, 2):
                address = str(outside[2 + index])
                tries = (fwmark(address, 80, increment=increment) for increment in count())
                taken[next(mark for mark in tries if mark not in taken)] = address
        return {address: mark for mark, address in taken.items()}

    def _ranges(self, family: str) -> list[_Network]:
        """Three pod CIDRs, this node's first; the ranges of cluster and external addresses."""
        if family not in _FAMILY:
            raise ValueError(f"family must be one of {FAMILIES}, not {family!r}")
        one = _FAMILY[family]
        services = _carve(one.services, self.services, one.longest[1])
        return _carve(one.pods, self.pods, one.longest[0]) + services[:2]

    def _lines(self, family: str) -> Iterator[tuple[str, str, str]]:
        """All that the node has in this family: where, what (without blanks), the rest."""
        own, *others, cluster, outside = self._ranges(family)
        one, marks = _FAMILY[family], self.marks()
        local = [str(own[2 + index]) for index in range(self.pods)]
        far = [str(network[2 + index]) for network in others for index in range(2)]
        subnets = f"--match-set {one.words['p']}kube-router-pod-subnets"
        words = WORDS | one.words | {
            "pods": str(own), "all_pods": " ".join(map(str, (own, *others))), "far": " ".join(far),
            "far_list": _elements(far), "cluster": str(cluster), "outside": str(outside),
            "cluster_note": _note("allow traffic to primary/secondary cluster IP range", cluster),
            "outside_note": _note(f"allow traffic to external IP range: {outside}", outside),
            "set": f'type {one.words["type"]}; comment "netpol set";',
            "leaving": f"-m set {subnets} src -m set ! {subnets} dst",
            "random": " --random-fully" * self.random_fully,
        }  # fmt: skip
        flags = {
            "nft": self.nft_netpol, "netpol": not self.nft_netpol, "deny": self.default_deny,
            "k3s": self.k3s, "ipvs": self.ipvs, "old": self.historic, "pods": bool(local),
            "primary": family == "ipv4", "any": True,
        }  # fmt: skip
        true = frozenset(flag for flag, value in flags.items() if value)
        text: list[str] = []

        def fill(template: str, *more: str, **extra: str) -> None:
            text.append(_select(template, true.union(more)).format(**words, **extra))

        fill(START)
        for (note, name), number in zip(ICMP_TYPES.items(), one.icmp, strict=False):
            fill(ICMP, text=note, name=name, number=str(number))
        policies = [_policy(index, one.api, self.version) for index in range(self.policies)]
        for index, policy in enumerate(policies):
            chosen = local[index :: self.policies + 1]  # the last pod of a round has no policy
            fill(POLICY, *TRUE[policy["way"]], own=" ".join(chosen), own_list=_elements(chosen), **policy)
        for index, address in enumerate(local):
            policy = [*policies, NO_POLICY][index % (self.policies + 1)]
            namespace, name = policy["namespace"], f"pod-{index}"
            own_chain = f"KUBE-POD-FW-{short_hash(namespace + name + self.version)}"
            by, to = (f"-{flag} {address}{one.words['host']}" for flag in "sd")
            fill(
                POD, *TRUE[policy["way"]], pod=f"{namespace}/{name}", chain=own_chain, to=to, by=by,
                address=address, policy=policy["policy"], policy_chain=policy["chain"],
                old_pod=f"POD name:{name} namespace: {namespace} to chain {own_chain}",
            )  # fmt: skip
        for index in range(self.services):
            address, external = str(cluster[2 + index]), str(outside[2 + index])
            node_port, pod = 30080 + index, local[index % len(local)] if local else ""
            more = ["dsr"] * (external in marks)
            more += ["nodeport"] * (index % 2 == 1 and node_port <= 32767)
            fill(
                SERVICE, *more, address=address, port="7000" if index % 2 else "80",
                external=external, fwmark=f"{marks.get(external, 0):#x}", node_port=str(node_port),
                pod=" ".join(f"-{flag} {pod}{one.words['host']}" for flag in "sd"),
            )  # fmt: skip
        for hook in BUILTIN["filter"]:
            fill(HOOK, hook=hook, lower=hook.lower())
        fill(END)
        for line in "".join(text).splitlines():
            where, what, *rest = line.split(" ", 2)
            yield where, what, "".join(rest)
