"""Tables in memory: read from text, changed with the errno of the kernel, shown as a decoder sees them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial

import attrs

from ..errors import KernelError
from ..host import Interest, Staying
from ..model import BUILTIN_CHAINS, Backend, Policy, Rule, Table, TableChange, TableKey, Target
from ..rules import parse_rule, render

__all__ = ["Draft", "as_read", "entries", "named", "read_table", "read_whole", "staying", "uses"]

# The part of an option list that names a set, in the match `set` and in the target `SET`.
_SET_FLAGS = frozenset({"--match-set", "--add-set", "--del-set", "--map-set"})


def read_table(key: TableKey, text: str) -> Table:
    """Return a table from lines as `iptables -S` prints them: `-P`, `-N` and `-A`, with or without counters.

    Built-in chains are there without saying, and so is a chain that only a `-A` names. Raises ValueError for a line
    that is none of these.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    policies = {words[1]: words[2] for line in lines if (words := line.split())[0] == "-P"}
    builtin = {chain: Policy(policies.get(chain, "ACCEPT")) for chain in BUILTIN_CHAINS[key.name]}
    named = [line.split()[1] for line in lines if line.startswith("-N ")]
    heads = [line.split("-A ", 1)[1].split()[0] for line in lines if line.startswith(("-A ", "["))]
    chains = tuple(dict.fromkeys(name for name in (*named, *heads) if name not in builtin))
    rules: dict[str, list[Rule]] = {chain: [] for chain in (*builtin, *chains)}
    for line in lines:
        if not line.startswith(("-P ", "-N ")):
            rule = parse_rule(line, user_chains=chains)
            rules[rule.chain].append(rule)
    return Table(key, builtin, chains, {chain: tuple(own) for chain, own in rules.items()})


@attrs.define
class Draft:
    """A table that is being changed; each method answers with an errno, 0 for done."""

    table: Table
    rules: dict[str, tuple[Rule, ...]]

    @classmethod
    def of(cls, table: Table) -> Draft:
        return cls(table, dict(table.rules))

    def delete(self, chain: str, position: int | None) -> int:
        own = self.rules.get(chain, ())
        if position is None or not 0 <= position < len(own):
            return errno.ENOENT
        self.rules[chain] = own[:position] + own[position + 1 :]
        return 0

    def flush(self, chain: str) -> int:
        if chain not in self.rules:
            return errno.ENOENT
        self.rules[chain] = ()
        return 0

    def drop(self, chain: str, busy: int, *, held: bool = False) -> int:
        if chain not in self.rules:
            return errno.ENOENT
        others = (rule for name, own in self.rules.items() if name != chain for rule in own)
        if held or any(rule.target.name == chain for rule in others):
            return busy
        del self.rules[chain]
        return 0

    def done(self) -> Table:
        return attrs.evolve(
            self.table,
            builtin={name: policy for name, policy in self.table.builtin.items() if name in self.rules},
            chains=tuple(name for name in self.table.chains if name in self.rules),
            rules=self.rules,
        )


def read_whole(table: Table, interest: Interest) -> tuple[frozenset[str], bool]:
    """Return the chains of a table that are read whatever is in them, and whether the others are looked at."""
    owned, unread = interest.sort(table.key.name, table.chains)
    return frozenset(table.builtin) | frozenset(owned) - frozenset(unread), bool(owned) or interest.any_set_matters()


def as_read(table: Table, interest: Interest) -> Table:
    """Return what is handed out of a table: of chains that are neither built in nor owned what may matter."""
    owned, unread = interest.sort(table.key.name, table.chains)
    look = bool(owned) or interest.any_set_matters()

    def is_read(chain: str, own: tuple[Rule, ...]) -> bool:
        if chain in table.builtin or chain in owned:
            return chain not in unread
        return look and any(rule.target.name in owned or any(map(interest.matters, rule.sets)) for rule in own)

    return attrs.evolve(table, rules={chain: own for chain, own in table.rules.items() if is_read(chain, own)})


def named(table: Table, sets: Mapping[int, str]) -> Table:
    names = frozenset(sets.values())
    return attrs.evolve(table, rules={c: tuple(_shown(r, names) for r in own) for c, own in table.rules.items()})


def _shown(rule: Rule, names: frozenset[str]) -> Rule:
    """Return a rule as a decoder sees it: sets that were not listed have no name, what is opaque has no content."""
    opaque = rule.opaque
    if not rule.sets <= names:
        opaque = (*opaque, "set")
    if not opaque:
        return rule
    target = Target(rule.target.name, goto=rule.target.goto) if rule.target.name in opaque else rule.target
    matches = tuple(match for match in rule.matches if match.name not in opaque)
    return attrs.evolve(rule, matches=matches, target=target, opaque=opaque, sets=rule.sets & names)


def uses(tables: Iterable[Table]) -> Iterator[str]:
    for table in tables:
        for own in table.rules.values():
            for rule in own:
                if rule.sets:
                    options = [option for match in rule.matches for option in match.options]
                    yield from (o.words[0] for o in (*options, *rule.target.options) if o.flag in _SET_FLAGS)


def entries(table: Table) -> int:
    """Count the entries that the kernel counts: a user chain has one at its head and one at its end."""
    return len(table.builtin) + 2 * len(table.chains) + sum(map(len, table.rules.values()))


def staying(table: Table, owned: TableChange, whole: Container[str], *, looked_at: bool = False) -> Staying:
    """Return what stays of a table without what is owned, with the rules of the chains in `whole`.

    Of the others only the handles are known, if they were looked at.
    """
    gone = {*owned.flush, *owned.delete}
    draft = Draft.of(table)
    for rule in sorted(owned.rules, key=lambda rule: -rule.index):
        if draft.delete(rule.chain, rule.index):
            raise KernelError(errno.ENOENT, f"{table.key}: no rule {rule.index} in {rule.chain}")
    chains = (*table.builtin, *(name for name in table.chains if name not in gone))
    # The order of chains says nothing in nf_tables.
    names = chains if table.key.backend is Backend.LEGACY else tuple(sorted(chains))
    texts = {name: [render(rule) for rule in draft.rules.get(name, ())] for name in names if name in whole}
    policies = [f"{name} {policy.verdict}" for name, policy in sorted(table.builtin.items())]
    lines = [*policies, *names, *(line for own in texts.values() for line in own)]

    def words() -> dict[str, list[tuple[bytes, Callable[[], str]]]]:
        return {
            name: [(line.encode("utf-8", "surrogateescape"), partial(str, line)) for line in own]
            for name, own in texts.items()
        }

    content = "\n".join(lines).encode("utf-8", "surrogateescape")
    unread = tuple(name for name in names if name not in texts)
    handles = {name: [rule.handle or 0 for rule in draft.rules[name]] for name in unread} if looked_at else {}
    return Staying((content,), len(names), sum(map(len, texts.values())), unread, lambda: handles, words)
