"""Snapshots from files: what `iptables-save`, `ipset save`, `ip -j` and others print, read without a kernel.

>>> snapshot = read_dumps(
...     {
...         "iptables-save": '''*filter
... :INPUT ACCEPT [0:0]
... :KUBE-ROUTER-INPUT - [0:0]
... -A INPUT -m comment --comment "kube-router netpol - 4IA2OSFRMVNDXBVV" -j KUBE-ROUTER-INPUT
... COMMIT
... '''
...     }
... )
>>> [table.chains for table in snapshot.tables.values()]
[('KUBE-ROUTER-INPUT',)]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import attrs

from .dumps_host import (
    read_addresses,
    read_ipvsadm,
    read_links,
    read_native_tables,
    read_policy_rules,
    read_routes,
)
from .errors import DumpError
from .model import Backend, Family, FamilyState, IpSet, Policy, Rule, Snapshot, Table, TableKey
from .rules import parse_rule, tokenize

__all__ = ["read_dumps", "read_ipset_save", "read_iptables_save"]

_CHAIN = re.compile(r":(\S+)\s+(\S+)(?:\s+\[(\d+):(\d+)\])?")
_CHAIN_OF_RULE = re.compile(r"(?:\[\d+:\d+\]\s+)?-[AI]\s+(\S+)")

# File name -> family and backend; where a name does not tell the backend, nft is assumed, as on today's nodes.
_IPTABLES_FILES = {
    "iptables-save": (Family.IPV4, Backend.NFT),
    "iptables-nft-save": (Family.IPV4, Backend.NFT),
    "iptables-legacy-save": (Family.IPV4, Backend.LEGACY),
    "ip6tables-save": (Family.IPV6, Backend.NFT),
    "ip6tables-nft-save": (Family.IPV6, Backend.NFT),
    "ip6tables-legacy-save": (Family.IPV6, Backend.LEGACY),
}
_IPSET_FILE = "ipset-save"
# The members of other types say nothing about ownership.
_TYPES_WITH_MEMBERS = frozenset({"list:set", "hash:net", "hash:ip,port", "bitmap:port"})
_HOST_FILES = frozenset(
    "ip-link.json ip-addr.json ip-rule.json ip6-rule.json ip-route.json ip6-route.json ipvsadm-save"
    " nft-ruleset.json".split()
)


def read_dumps(files: Mapping[str, str], *, problems: list[DumpError] | None = None) -> Snapshot:
    """Return the snapshot that some files give, by the names of the commands that print them.

    Args:
        files: text by name: `iptables-save` or `ip6tables-save`, with `-nft` or `-legacy` before `-save` where the
            backend is known, `ipset-save`, `ip-link.json` (of `ip -j -d link`), `ip-addr.json`, `ip-rule.json`,
            `ip6-rule.json`, `ip-route.json`, `ip6-route.json` (of `ip -j route show table all`), `ipvsadm-save` (of
            `ipvsadm -Sn`), `nft-ruleset.json` (of `nft -j list ruleset`). How often a set is used is counted over the
            rules given.
        problems: collects lines that could not be understood; their rules are opaque, and so foreign.

    Returns:
        A snapshot in which a family without a file was not examined.

    Raises:
        ValueError: a name is not one of these.
        DumpError: a line could not be understood, and there is no list of problems to put it in.

    """
    tables: dict[TableKey, Table] = {}
    sets: dict[str, IpSet] = {}
    for name, text in files.items():
        if name in _IPTABLES_FILES:
            family, backend = _IPTABLES_FILES[name]
            tables.update(read_iptables_save(text, family, backend, source=name, problems=problems))
        elif name == _IPSET_FILE:
            sets = read_ipset_save(text, source=name, problems=problems)
        elif name not in _HOST_FILES:
            raise ValueError(f"no reader for a file named {name!r}")
    given = {family for name, (family, _backend) in _IPTABLES_FILES.items() if name in files}
    snapshot = Snapshot(
        tables=tables,
        sets=_with_references(sets, tables.values()),
        families={family: FamilyState.EXAMINED if family in given else FamilyState.GAP for family in Family},
    )
    return _with_host(snapshot, files, problems)


def _with_host(snapshot: Snapshot, files: Mapping[str, str], problems: list[DumpError] | None) -> Snapshot:
    def text(name: str) -> str:
        return files.get(name, "")

    def problem(error: DumpError) -> None:
        _problem(error.reason, error.source, error.line, problems)

    families = {"": Family.IPV4, "6": Family.IPV6}
    natives = read_native_tables(text("nft-ruleset.json"), source="nft-ruleset.json", problem=problem)
    iptables = {(key.family, key.name) for key in snapshot.tables if key.backend is Backend.NFT}
    return attrs.evolve(
        snapshot,
        native_tables=tuple(table for table in natives if (table.address_family, table.name) not in iptables),
        links=read_links(text("ip-link.json"), source="ip-link.json", problem=problem),
        addresses=read_addresses(text("ip-addr.json"), source="ip-addr.json", problem=problem),
        policy_rules=tuple(
            rule
            for number, family in families.items()
            for rule in read_policy_rules(
                text(f"ip{number}-rule.json"), family, source=f"ip{number}-rule.json", problem=problem
            )
        ),
        routes=tuple(
            route
            for number, family in families.items()
            for route in read_routes(
                text(f"ip{number}-route.json"), family, source=f"ip{number}-route.json", problem=problem
            )
        ),
        services=read_ipvsadm(text("ipvsadm-save"), source="ipvsadm-save", problem=problem),
    )


def read_iptables_save(
    text: str,
    family: Family,
    backend: Backend,
    *,
    source: str = "iptables-save",
    problems: list[DumpError] | None = None,
) -> dict[TableKey, Table]:
    """Return the tables that `iptables-save` (with or without `-c`) printed.

    Raises DumpError as `read_dumps` does.
    """
    tables: dict[TableKey, Table] = {}
    lines: list[tuple[int, str]] = []
    key = None
    for number, line in _lines(text):
        if line.startswith("*"):
            key = TableKey(family, backend, line[1:])
        elif line == "COMMIT":
            if key is not None:
                tables[key] = _table(key, lines, source, problems)
            key, lines = None, []
        elif key is None:
            _problem("outside a table", source, number, problems)
        else:
            lines.append((number, line))
    if key is not None:
        _problem(f"table {key.name} has no COMMIT: the file is cut", source, text.count("\n"), problems)
        tables[key] = _table(key, lines, source, problems)
    return tables


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield number, stripped


def _table(key: TableKey, lines: list[tuple[int, str]], source: str, problems: list[DumpError] | None) -> Table:
    builtin: dict[str, Policy] = {}
    chains: list[str] = []
    rules: dict[str, list[Rule]] = {}
    for number, line in lines:
        if line.startswith(":"):
            found = _CHAIN.match(line)
            if found is None:
                _problem("not a chain", source, number, problems)
                continue
            name, policy, packets, octets = found.groups(default="0")
            if policy == "-":
                chains.append(name)
            else:
                builtin[name] = Policy(policy, int(packets), int(octets))
            rules.setdefault(name, [])
    for number, line in lines:
        if not line.startswith(":"):
            rule = _rule(line, chains, source, number, problems)
            if rule is not None:
                into = rules.setdefault(rule.chain, [])
                into.append(attrs.evolve(rule, index=len(into)))
    return Table(key, builtin, tuple(chains), {chain: tuple(own) for chain, own in rules.items()})


def _rule(line: str, chains: list[str], source: str, number: int, problems: list[DumpError] | None) -> Rule | None:
    try:
        return parse_rule(line, user_chains=chains)
    except ValueError as error:
        _problem(str(error), source, number, problems)
        found = _CHAIN_OF_RULE.match(line)
        return Rule(found[1], opaque=("line",), text=line) if found else None


def read_ipset_save(
    text: str, *, source: str = "ipset-save", problems: list[DumpError] | None = None
) -> dict[str, IpSet]:
    """Return the sets that `ipset save` printed, by name. Raises DumpError as `read_dumps` does."""
    sets: dict[str, IpSet] = {}
    for number, line in _lines(text):
        try:
            verb, name, *words = (word for word, _quoted in tokenize(line))
            if verb == "create":
                sets[name] = IpSet(name, words[0], _set_family(words))
            elif verb == "add":
                if sets[name].type in _TYPES_WITH_MEMBERS:
                    sets[name] = attrs.evolve(sets[name], members=(*sets[name].members, words[0]))
            else:
                _problem(f"unknown command {verb!r}", source, number, problems)
        except (ValueError, LookupError):
            _problem("not a command of ipset save", source, number, problems)
    return sets


def _set_family(words: list[str]) -> Family | None:
    family = dict(zip(words[1::2], words[2::2], strict=False)).get("family")
    return {"inet": Family.IPV4, "inet6": Family.IPV6}.get(family or "")


def _with_references(sets: Mapping[str, IpSet], tables: Iterable[Table]) -> dict[str, IpSet]:
    uses = Counter(name for table in tables for rules in table.rules.values() for rule in rules for name in rule.sets)
    uses.update(member for item in sets.values() if item.type == "list:set" for member in item.members)
    return {name: attrs.evolve(item, references=uses[name]) for name, item in sets.items()}


def _problem(reason: str, source: str, line: int, problems: list[DumpError] | None) -> None:
    error = DumpError(reason, source=source, line=line)
    if problems is None:
        raise error
    problems.append(error)
