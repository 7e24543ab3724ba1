"""State of others on a node, as loadable text: what a cleaner of kube-router must leave alone.

What Docker, ufw, firewalld, fail2ban, kubelet, kube-proxy, CNI plugins, Calico, Cilium and node-local-dns write, and
an admin's rules, chains, sets and tables that look like kube-router's; printed as iptables 1.8.9, ipset 7.17 and
nft 1.0.6 print them. No rule needs ip_vs or nfacct.
"""

from __future__ import annotations

import zlib

from ._foreign_text import MATCHES, NFT, NFT_KUBE_PROXY, POLICIES, RULES, SETS, WORDS

__all__ = ["BACKENDS", "foreign_nft", "foreign_rules", "foreign_sets", "interleave"]

BACKENDS = ("nft", "legacy")


def foreign_rules(family: str, backend: str) -> str:
    """The raw, mangle, nat and filter tables of "ipv4" or "ipv6" in iptables-save's form, with counters.

    `backend`, "nft" or "legacy", is named in a comment, so that rules that end up in the other one are noticed. Load
    `foreign_sets` first.
    """
    if family not in WORDS or backend not in BACKENDS:
        raise ValueError(f"family must be one of {tuple(WORDS)} and backend one of {BACKENDS}")
    words = WORDS[family] | MATCHES | {"backend": backend}
    text = []
    for table, template in RULES.items():
        chains: dict[str, list[str]] = {chain: [] for chain in POLICIES[table]}
        for line in template.format(**words).format(**words).replace('-c "', '-m comment --comment "').splitlines():
            chain, _, rule = line.partition(" ")
            if chain:
                rules = chains.setdefault(chain, [])
                rules += [f"[{_counters(f'{table} {line}')}] -A {line}"] * bool(rule)
        headers = {c: f":{c} {policy} [{_counters(f'{table} {c}')}]" for c, policy in POLICIES[table].items()}
        headers |= {chain: f":{chain} - [0:0]" for chain in sorted(chains.keys() - headers.keys())}
        text.append(_table(table, headers, chains))
    return "".join(text)


def foreign_sets() -> str:
    """`ipset restore` text, both families, in the order and form of `ipset save`."""
    return SETS


def foreign_nft() -> str:
    """`nft -f` text of native tables, both families; a proxy's, a firewall's and look-alikes."""
    return NFT + "".join(NFT_KUBE_PROXY.format(**words) for words in WORDS.values())


def interleave(owned: str, foreign: str, *, seed: int = 0) -> str:
    """Merge two texts in iptables-save's form, of one family, into one that loads.

    Policies and their counters are `foreign`'s where both have a chain. Where both have rules in it, the `owned` ones
    stand between foreign ones; the order within either is kept. Rules without counters get some. The same arguments
    give the same text.
    """
    sides = [_parse(text) for text in (owned, foreign)]
    text = []
    for table in dict.fromkeys([*sides[1], *sides[0]]):
        (own_headers, own_rules), (headers, rules) = (side.get(table, ({}, {})) for side in sides)
        merged = own_headers | headers
        builtin = [chain for chain in merged if merged[chain].split()[1] != "-"]
        order = [*builtin, *sorted(merged.keys() - builtin)]
        woven = {
            chain: _weave(own_rules.get(chain, []), rules.get(chain, []), f"{seed}/{table}/{chain}")
            for chain in order
        }
        text.append(_table(table, {chain: merged[chain] for chain in order}, woven))
    return "".join(text)


_Parsed = dict[str, tuple[dict[str, str], dict[str, list[str]]]]


def _parse(text: str) -> _Parsed:
    """Headers and rules, with counters, by chain, by table."""
    tables: _Parsed = {}
    headers: dict[str, str] = {}
    rules: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("*"):
            headers, rules = tables.setdefault(line[1:], ({}, {}))
        elif line.startswith(":"):
            headers[line[1:].split()[0]] = line
        elif line.startswith(("[", "-A ")):
            rule = line if line[0] == "[" else f"[{_counters(line)}] {line}"
            rules.setdefault(rule.split(" ", 3)[2], []).append(rule)
    return tables


def _weave(owned: list[str], foreign: list[str], key: str) -> list[str]:
    """Put each of `owned` into a gap between two of `foreign`, or beside the only one."""
    first, gaps = (1, len(foreign) - 1) if len(foreign) > 1 else (0, len(foreign) + 1)
    places = sorted(first + zlib.crc32(f"{key}/{index}".encode()) % gaps for index in range(len(owned)))
    woven, waiting = [], list(zip(places, owned, strict=True))[::-1]
    for index, rule in enumerate([*foreign, None]):
        while waiting and waiting[-1][0] <= index:
            woven.append(waiting.pop()[1])
        woven += [rule] if rule else []
    return woven


def _table(table: str, headers: dict[str, str], chains: dict[str, list[str]]) -> str:
    rules = [rule for chain in headers for rule in chains[chain]]
    return "\n".join([f"*{table}", *headers.values(), *rules, "COMMIT\n"])


def _counters(seed: str) -> str:
    """Packets and bytes, at least one of each, that depend on `seed` only."""
    number = zlib.crc32(seed.encode())
    packets = number % 9973 + 1
    return f"{packets}:{packets * (40 + number % 1400)}"
