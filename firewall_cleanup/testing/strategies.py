"""Hypothesis strategies for nodes: kube-router's state, that of others with traps, and both at once.

A node is drawn as pieces in an order: each piece is a line or two, placed in a family and a backend. What is owned is
known because it was written so, not because the package under test says it.

>>> from hypothesis import given
>>> from firewall_cleanup.testing import strategies
>>> @given(strategies.mixed_nodes())
... def test_neighbours(scenario):
...     host = scenario.host()
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import attrs
from hypothesis import strategies as st

from ..model import (
    BUILTIN_CHAINS,
    Backend,
    Controller,
    Family,
    IpSet,
    Match,
    NativeTable,
    Option,
    Rule,
    Snapshot,
    Table,
    TableKey,
    Target,
)
from ._pieces import (
    CHAIN_OWNERS,
    FOREIGN,
    HASHES,
    HOLDERS,
    NATIVE_OWNERS,
    OWNED,
    SET_OWNERS,
    TARGETS,
    TEMPORARY,
    TEMPORARY_PIECE,
    Piece,
    fill,
)
from .memory import MemoryHost, read_table

__all__ = [
    "FOREIGN",
    "HASHES",
    "HOLDERS",
    "OWNED",
    "Piece",
    "Placed",
    "Scenario",
    "foreign_nodes",
    "mixed_nodes",
    "owned_nodes",
    "rules",
]


@attrs.frozen
class Placed:
    """A piece where it was drawn to be: its family, its backend, and the hash in its names."""

    piece: Piece
    family: Family
    backend: Backend
    h: str

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines with every placeholder filled in."""
        return tuple(fill(line, self.family, self.h) for line in self.piece.lines)


@attrs.frozen
class Scenario:
    """A generated node: what is on it, and what of that is owned, by whom."""

    placed: tuple[Placed, ...]
    snapshot: Snapshot = attrs.field(repr=False)
    owned_rules: Mapping[tuple[TableKey, Rule], Controller] = attrs.field(repr=False)

    @classmethod
    def of(cls, placed: Iterable[Placed]) -> Scenario:
        """Return the node that has these pieces, in this order."""
        parts = tuple(placed)
        texts: dict[TableKey, list[str]] = {}
        owned: list[tuple[TableKey, str, Controller]] = []
        sets: dict[str, IpSet] = {}
        natives: list[NativeTable] = []
        for part in parts:
            for line in part.lines:
                if line.startswith("create "):
                    _, name, kind, *members = line.split()
                    sets.setdefault(name, _set(name, kind, part.family, members))
                elif line.startswith("table "):
                    natives.append(NativeTable(*line.split()[1:]))
                else:
                    key = TableKey(part.family, part.backend, part.piece.table)
                    texts.setdefault(key, []).append(line)
                    if part.piece.owner is not None and line.split()[1] in BUILTIN_CHAINS[key.name]:
                        owned.append((key, line, part.piece.owner))
        tables = {key: read_table(key, _with_chains(lines)) for key, lines in texts.items()}
        for key, table in tables.items():
            for name in (name for own in table.rules.values() for rule in own for name in sorted(rule.sets)):
                sets.setdefault(name, _set(name, "hash:ip", key.family, ()))
        for name in [name for item in sets.values() for name in item.members]:
            sets.setdefault(name, _set(name, "hash:ip", Family.IPV6 if ":" in name else Family.IPV4, ()))
        snapshot = MemoryHost(Snapshot(tables, tuple(dict.fromkeys(natives)), sets)).state
        rules = {}
        for key, line, owner in owned:
            table = read_table(key, _with_chains([line, *(f"-N {name}" for name in tables[key].chains)]))
            rules[key, table.rules[line.split()[1]][0]] = owner
        return cls(parts, snapshot, rules)

    def host(self) -> MemoryHost:
        """Return a fresh node in memory that holds it."""
        return MemoryHost(self.snapshot)

    def mirrored(self) -> Scenario:
        """Return the same node with the families exchanged."""
        other = {Family.IPV4: Family.IPV6, Family.IPV6: Family.IPV4}
        return Scenario.of(attrs.evolve(part, family=other[part.family]) for part in self.placed)

    def foreign(self, snapshot: Snapshot, controllers: Collection[Controller] = tuple(Controller)) -> Snapshot:
        """Return what of a snapshot of this node is not owned by the controllers, and so must survive."""
        return Snapshot(
            {key: self._foreign_table(table, controllers) for key, table in snapshot.tables.items()},
            tuple(table for table in snapshot.native_tables if NATIVE_OWNERS.get(table) not in controllers),
            {
                # How many use a set changes with them.
                name: attrs.evolve(item, references=0)
                for name, item in snapshot.sets.items()
                # A temporary set is nobody's in particular, and foreign as long as something uses it.
                if (item.references if name == TEMPORARY else SET_OWNERS.get(name) not in controllers)
            },
        )

    def _foreign_table(self, table: Table, controllers: Collection[Controller]) -> Table:
        key = table.key
        chains = tuple(name for name in table.chains if CHAIN_OWNERS.get((key.name, name)) not in controllers)
        rules = {
            chain: tuple(rule for rule in own if self._rule_owner(key, rule) not in controllers)
            for chain, own in table.rules.items()
            if chain in table.builtin or chain in chains
        }
        return attrs.evolve(table, chains=chains, rules=rules)

    def _rule_owner(self, key: TableKey, rule: Rule) -> Controller | None:
        if (key.name, rule.chain) in CHAIN_OWNERS:
            return None  # it goes with its chain, or stays with it
        return self.owned_rules.get((key, rule)) or CHAIN_OWNERS.get((key.name, rule.target.name))


def _set(name: str, kind: str, family: Family, members: Iterable[str]) -> IpSet:
    return IpSet(name, kind, None if kind == "list:set" else family, members=tuple(members))


def _with_chains(lines: Iterable[str]) -> str:
    lines = list(lines)
    ends = (line.split()[-2:] for line in lines)
    targets = {end[1] for end in ends if end[0] in {"-j", "-g"}} - TARGETS
    return "\n".join([*(f"-N {name}" for name in sorted(targets)), *lines])


def _nodes(
    pieces: Iterable[Piece], families: Collection[Family], backends: Collection[Backend], most: int
) -> st.SearchStrategy[Scenario]:
    place = st.builds(
        Placed,
        st.sampled_from(tuple(pieces)),
        st.sampled_from(sorted(families)),
        st.sampled_from(sorted(backends, key=lambda backend: backend.value)),
        st.sampled_from(HASHES),
    ).filter(lambda placed: placed.family is Family.IPV4 or not placed.piece.ipv4)
    return st.lists(place, max_size=most).map(Scenario.of)


def owned_nodes(
    *, families: Collection[Family] = tuple(Family), backends: Collection[Backend] = tuple(Backend), most: int = 12
) -> st.SearchStrategy[Scenario]:
    """Nodes with kube-router's state and nothing else, of at most `most` pieces; also an empty node."""
    return _nodes((*OWNED, TEMPORARY_PIECE), families, backends, most)


def foreign_nodes(
    *, families: Collection[Family] = tuple(Family), backends: Collection[Backend] = tuple(Backend), most: int = 12
) -> st.SearchStrategy[Scenario]:
    """Nodes with nothing of kube-router's, but with much that looks like it."""
    return _nodes(FOREIGN, families, backends, most)


def mixed_nodes(
    *,
    families: Collection[Family] = tuple(Family),
    backends: Collection[Backend] = tuple(Backend),
    holders: bool = False,
    symmetric: bool = False,
    most: int = 16,
) -> st.SearchStrategy[Scenario]:
    """Nodes with both, in any order; with `holders` also foreign state that uses owned sets.

    `symmetric` leaves out what kube-router has in one family only.
    """
    pieces = (*OWNED, TEMPORARY_PIECE, *FOREIGN, *(HOLDERS if holders else ()))
    return _nodes((piece for piece in pieces if not (symmetric and piece.ipv4)), families, backends, most)


_names = st.from_regex(r"[A-Za-z][A-Za-z0-9_.:-]{0,14}", fullmatch=True)
_texts = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=12) | st.sampled_from(
    (
        "",
        "-j",
        "!",
        '"',
        "\\",
        "'",
        'say "hi"',
        "a b",
        "--comment",
        "-A INPUT -j DROP",
        "\\\\",
        " lead",
        "trail ",
        "é",
    )
)


@st.composite
def _plain(draw: st.DrawFn, family: Family) -> Match:
    addresses = st.ip_addresses(v=4 if family is Family.IPV4 else 6).map(lambda ip: f"{ip}/{family.bits}")
    values = {
        "-s": addresses,
        "-d": addresses,
        "-i": _names.map(lambda name: name.replace(":", "_")),
        "-o": st.just("cali+"),
        "-p": st.sampled_from(("tcp", "udp", "sctp", "89")),
    }
    flags = draw(st.sets(st.sampled_from(tuple(values)), max_size=3))
    options = (Option(flag, (draw(values[flag]),), draw(st.booleans())) for flag in values if flag in flags)
    return Match("", tuple(options))


def _one(name: str, flag: str, *words: st.SearchStrategy[str], negated: bool = True) -> st.SearchStrategy[Match]:
    either = st.booleans() if negated else st.just(value=False)
    return st.builds(lambda chosen, no: Match(name, (Option(flag, chosen, no),)), st.tuples(*words), either)


@st.composite
def rules(draw: st.DrawFn, family: Family = Family.IPV4) -> Rule:
    """Rules of which every part is understood, with comments, names and values that are awkward to quote."""
    plain = draw(_plain(family))
    set_names = draw(_names)
    matches = draw(
        st.lists(
            st.one_of(
                _one("comment", "--comment", _texts, negated=False),
                _one("set", "--match-set", st.just(set_names), st.sampled_from(("src", "dst,dst"))),
                _one("mark", "--mark", st.sampled_from(("0x1", "0x20000/0x20000"))),
                _one("tcp", "--dport", st.sampled_from(("80", "1:1024"))),
                _one("conntrack", "--ctstate", st.just("RELATED,ESTABLISHED")),
                st.just(Match("ipvs", (Option("--vdir", ("ORIGINAL",)), Option("--vmethod", ("MASQ",))))),
            ),
            max_size=3,
        )
    )
    target = draw(
        st.sampled_from(
            (
                Target(),
                Target("ACCEPT"),
                Target("mine", goto=True),
                Target("MARK", (Option("--set-xmark", ("0x1/0xffffffff",)),)),
                Target("MASQUERADE", (Option("--random-fully"),)),
            )
        )
    )
    used = frozenset({set_names}) if any(match.name == "set" for match in matches) else frozenset()
    whole = (plain, *matches) if plain.options else tuple(matches)
    return Rule(draw(st.sampled_from(("INPUT", "mine"))), whole, target, sets=used)
