r"""A node in memory: what the engine reads and writes, without a kernel and no kinder than one.

A batch applies whole or not at all. A chain that a rule jumps to, a set that a rule uses and a ruleset that somebody
else changed are refused with the errno of the kernel. Writers, missing rights, a busy lock and crashes are switches.

>>> key = TableKey(Family.IPV4, Backend.NFT, "filter")
>>> host = MemoryHost(Snapshot({key: read_table(key, "-N KUBE-ROUTER-INPUT\n-A INPUT -j KUBE-ROUTER-INPUT")}))
>>> host.state.tables[key].chains
('KUBE-ROUTER-INPUT',)
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager

import attrs

from ..errors import BatchRefused, KernelError, LockBusy, StaleGeneration
from ..host import FoundFile, Interest
from ..model import (
    Address,
    Backend,
    Change,
    Family,
    FamilyState,
    FileTrace,
    FouPort,
    Gap,
    IpSet,
    IpvsService,
    Item,
    Link,
    NativeTable,
    PolicyRule,
    Route,
    Rule,
    Snapshot,
    Table,
    TableKey,
)
from ..rules import parse_rule, render
from ..writers import Commits, Process, Processes
from ._read_tables import ReadDump, ReadTable
from ._tables import Draft, as_read, entries, read_table, read_whole, uses

__all__ = ["ENTRY_BUSY", "Crash", "MemoryHost", "read_table"]

ENTRY_BUSY = 4100
"""What ipset answers to destroying a set that is in use (IPSET_ERR_BUSY)."""


_FIELDS: dict[type, str] = {
    IpvsService: "services",
    PolicyRule: "policy_rules",
    Route: "routes",
    FouPort: "fou_ports",
    Link: "links",
    Address: "addresses",
}


class Crash(BaseException):
    """The process was killed here. Not an Exception: no code may expect it."""


@attrs.define(eq=False)
class MemoryHost:
    """A node that holds a snapshot; the protocol `host.Host`.

    Switches, to be set at any time:

    - `before_commit` is called with the name of a step before it is taken, and may write as anybody else would:
      `nft` (a batch), `lock` (the xtables lock), `legacy` (a commit under it), `sets` (destroying).
    - `errors` maps a step (those, and `dump`, `tables`, `list`, `texts`, `ipvs`, `routing`, `fou`, `delete Link` and
      so on), the key of a legacy table that is to be opened, or the name of a set that is to be destroyed, to the
      errno that it fails with.
    - `crash_after` ends the process after so many writes: batches, commits, sets.
    - `lock_polls` is how often the lock is found held by another process.
    - `busy_polls` is how often a set is still in use after the last nf_tables rule that used it went.
    - `running` are its processes, `text_files` its files by path, `commits` what a listener hears of nf_tables.
    - `held` are chains of nf_tables that something refers to which cannot be seen; what can be seen besides rules, a
      verdict map, is in `Table.mapped`.
    """

    holds: Snapshot = attrs.field(factory=Snapshot, repr=False)
    families: tuple[Family, ...] = attrs.field(default=(Family.IPV4, Family.IPV6), kw_only=True)
    absent: frozenset[Family] = attrs.field(default=frozenset(), kw_only=True)
    gaps: tuple[Gap, ...] = attrs.field(default=(), kw_only=True)
    errors: dict[str | TableKey, int] = attrs.field(factory=dict, kw_only=True)
    before_commit: Callable[[str], object] | None = attrs.field(default=None, kw_only=True, repr=False)
    crash_after: int | None = attrs.field(default=None, kw_only=True)
    lock_polls: float = attrs.field(default=0, kw_only=True)
    busy_polls: int = attrs.field(default=0, kw_only=True)
    held: frozenset[tuple[TableKey, str]] = attrs.field(default=frozenset(), kw_only=True)
    running: tuple[Process, ...] = attrs.field(default=(), kw_only=True)
    text_files: dict[str, str] = attrs.field(factory=dict, kw_only=True, repr=False)
    commits: Commits = attrs.field(factory=Commits, kw_only=True)
    generation: int = attrs.field(default=1, init=False)
    writes: int = attrs.field(default=0, init=False)
    locked: bool = attrs.field(default=False, init=False)
    _tables: dict[TableKey, Table] = attrs.field(factory=dict, init=False, repr=False)
    _others: Snapshot = attrs.field(factory=Snapshot, init=False, repr=False)
    _natives: tuple[NativeTable, ...] = attrs.field(default=(), init=False, repr=False)
    _sets: dict[str, IpSet] = attrs.field(factory=dict, init=False, repr=False)
    _lingering: Counter[str] = attrs.field(factory=Counter, init=False, repr=False)
    _next: int = attrs.field(default=1, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        for item in self.holds.sets.values():
            self.put_set(item)
        for table in self.holds.tables.values():
            self.put_table(table)
        self._natives = tuple(self.holds.native_tables)
        self._others = attrs.evolve(self.holds, tables={}, sets={}, native_tables=(), gaps=(), families={})

    # what is there, and what anybody else may do

    @property
    def state(self) -> Snapshot:
        """All that is on the node now, the inside of every chain included."""
        used = self._references()
        sets = {name: attrs.evolve(item, references=used[name]) for name, item in self._sets.items()}
        return attrs.evolve(self._others, tables=dict(self._tables), native_tables=self._natives, sets=sets)

    def put_table(self, table: Table) -> None:
        """Make a table, or replace it. Raises ValueError if a rule uses a set that there is not."""
        missing = {name for own in table.rules.values() for rule in own for name in rule.sets} - self._sets.keys()
        if missing:
            raise ValueError(f"{table.key}: no such set: {', '.join(sorted(missing))}")
        rules = {
            chain: tuple(self._kept(table.key, rule, i) for i, rule in enumerate(table.rules.get(chain, ())))
            for chain in (*table.builtin, *table.chains)
        }
        self._tables[table.key] = attrs.evolve(table, rules=rules)
        self.generation += table.key.backend is Backend.NFT

    def _kept(self, key: TableKey, rule: Rule, index: int) -> Rule:
        handle = None
        if key.backend is Backend.NFT:
            handle = self._next if rule.handle is None else rule.handle
            self._next = max(self._next, handle + 1)  # a handle is never given twice
        return attrs.evolve(rule, handle=handle, index=index, text=None)

    def insert(self, key: TableKey, line: str, position: int | None = None) -> None:
        """Insert a rule (`-A CHAIN …`) at a position, by default the end, and make its chain if there is none."""
        table = self._tables[key]
        rule = parse_rule(line, user_chains=table.chains)
        if rule.chain not in table.rules:
            table = attrs.evolve(table, chains=(*table.chains, rule.chain))
        own = table.rules.get(rule.chain, ())
        at = len(own) if position is None else position
        self.put_table(attrs.evolve(table, rules={**table.rules, rule.chain: (*own[:at], rule, *own[at:])}))

    def remove(self, key: TableKey, chain: str, position: int) -> None:
        """Delete a rule by its position. Raises ValueError if there is none."""
        draft = Draft.of(self._tables[key])
        if draft.delete(chain, position):
            raise ValueError(f"{key}: no rule {position} in {chain}")
        self.put_table(draft.done())

    def put_set(self, item: IpSet) -> None:
        """Make an ipset, or replace it."""
        index = next(i for i in range(1, len(self._sets) + 2) if all(s.index != i for s in self._sets.values()))
        self._sets[item.name] = attrs.evolve(item, index=index)

    def drop_set(self, name: str) -> None:
        """Destroy an ipset. Raises ValueError if it is in use or there is none."""
        if name not in self._sets or self._references()[name]:
            raise ValueError(f"no such set, or it is in use: {name}")
        del self._sets[name]

    # the protocol: reading

    def dump_nft(self, interest: Interest) -> ReadDump:
        """Read nf_tables in one generation."""
        self._step("dump")
        families = [f for f in self.families if not self._is_gap("iptables", f)]
        tables = [t for k, t in self._tables.items() if k.backend is Backend.NFT and k.family in families]
        natives = () if self._is_gap("nftables", None) else self._natives
        read = {table.key: (table, *read_whole(table, interest)) for table in tables}
        return ReadDump(self.generation, natives, tuple(as_read(table, interest) for table in tables), read)

    def legacy_tables(self, family: Family) -> tuple[TableKey, ...]:
        """Return the legacy tables that exist. Raises OSError if that cannot be known."""
        if "tables" in self.errors:
            raise OSError(self.errors["tables"], os.strerror(self.errors["tables"]))
        keys = [key for key in self._tables if key.family is family and key.backend is Backend.LEGACY]
        return () if self._is_gap("iptables", family) else tuple(sorted(keys, key=TableKey.sort_key))

    def open_legacy(self, key: TableKey, interest: Interest) -> ReadTable:
        """Read a legacy table."""
        if key in self.errors:
            raise KernelError(self.errors[key], f"legacy table {key.name}")
        read = self._tables[key]
        return ReadTable(key, read, as_read(read, interest), lambda: self.state.tables.get(key), self._replace_legacy)

    def sets(self, families: Iterable[Family], with_members: Container[str] = ()) -> list[IpSet]:
        """Return the sets of some families and those of none; members of list:set and where they are wanted."""
        if "list" in self.errors:
            raise KernelError(self.errors["list"], "netlink dump")
        wanted = {family for family in families if not self._is_gap("ipset", family)}
        found = [item for item in self.state.sets.values() if item.family in wanted or (wanted and not item.family)]
        return [
            item if item.type == "list:set" or item.name in with_members else attrs.evolve(item, members=())
            for item in found
        ]

    def _listed(self, subsystem: str) -> bool:
        if subsystem in self.errors:
            raise KernelError(self.errors[subsystem], subsystem)
        return not any(gap.subsystem == subsystem for gap in self.gaps)

    def services(self) -> tuple[IpvsService, ...]:
        """Return the virtual services of IPVS."""
        return self._others.services if self._listed("ipvs") else ()

    def links(self) -> tuple[Link, ...]:
        """Return all links."""
        return self._others.links if self._listed("routing") else ()

    def addresses(self, link: Link) -> tuple[Address, ...]:
        """Return the addresses of a link."""
        return self._others.addresses_on(link)

    def policy_rules(self, family: Family) -> tuple[PolicyRule, ...]:
        """Return the policy rules of a family."""
        return self._others.policy_rules_of(family) if self._listed("routing") else ()

    def routes(
        self, family: Family, selections: Iterable[tuple[int, int]], links: Iterable[Link]
    ) -> tuple[Route, ...]:
        """Return the routes of some tables, each given with a protocol number or 0 for all."""
        del links
        return self._others.routes_in(family, selections)

    def fou_ports(self) -> tuple[FouPort, ...]:
        """Return the FOU ports of both families."""
        return self._others.fou_ports if self._listed("fou") else ()

    def traces(self, traces: Iterable[FileTrace]) -> tuple[str, ...]:
        """Return nothing: a node in memory has no files."""
        del traces
        return ()

    def read_files(self, paths: Iterable[str]) -> tuple[FoundFile, ...]:
        """Return those of `text_files` that are asked for."""
        return tuple(FoundFile(path, path, self.text_files[path]) for path in paths if path in self.text_files)

    def processes(self, wanted: Callable[[Process], bool]) -> Processes:
        """Return those that are `running` and wanted."""
        return Processes(found=tuple(process for process in self.running if wanted(process)))

    def wait_for_end(self, pids: Iterable[int], seconds: float) -> None:
        """Return; `before_commit` (`processes`) may end some."""
        del pids, seconds
        self._step("processes")

    def listen_nft(self) -> _Listener:
        """Return a listener that hears `commits`."""
        return _Listener(self)

    def delete(self, item: Item) -> None:
        """Delete one object, with a link its addresses and routes. What is not there is refused."""
        field = _FIELDS[type(item)]
        self._step(f"delete {type(item).__name__}")
        there: tuple[Item, ...] = getattr(self._others, field)
        if item not in there:
            raise KernelError(errno.ESRCH, "no such object")
        rest = {field: tuple(other for other in there if other != item)}
        if isinstance(item, Link):
            rest["addresses"] = tuple(a for a in self._others.addresses if a.link != item.name)
            rest["routes"] = tuple(r for r in self._others.routes if r.device != item.name)
        self._others = attrs.evolve(self._others, **rest)  # type: ignore[arg-type]
        self._wrote()

    def texts(self, key: TableKey, chain: str) -> list[str] | None:
        """Return the rules of a chain as iptables prints them: all of them, and all of each."""
        if key.backend is Backend.LEGACY and self.locked:
            raise AssertionError("iptables would wait for the lock that its caller holds")
        if "texts" in self.errors:
            return None
        return [render(attrs.evolve(rule, opaque=())) for rule in self._tables[key].rules[chain]]

    def family_state(self, family: Family, *, gap: bool, found: bool) -> FamilyState:
        """Return the state of a family of which something was `found`, or a part has a `gap`."""
        if gap:
            return FamilyState.GAP
        return FamilyState.ABSENT if family in self.absent and not found else FamilyState.EXAMINED

    def _is_gap(self, subsystem: str, family: Family | None) -> bool:
        return any(gap.subsystem == subsystem and gap.family is family for gap in self.gaps)

    def _references(self) -> Counter[str]:
        """Count what uses each set: matches and targets of rules, and members of list:set."""
        used = Counter(uses(self._tables.values()))
        used.update(member for item in self._sets.values() for member in item.members)
        used.update(name for name, polls in self._lingering.items() if polls)
        return used

    # the protocol: writing

    def commit_nft(self, change: Change, generation: int) -> None:
        """Apply a change in one batch or not at all."""
        self._step("nft")
        if generation != self.generation:
            raise StaleGeneration("the nf_tables ruleset was changed by somebody else")
        drafts = {key: Draft.of(table) for key, table in self._tables.items() if key.backend is Backend.NFT}
        natives = list(self._natives)
        failures: dict[tuple[object, str, object], int] = {}
        for part in change.tables:
            draft = drafts.get(part.key, Draft(Table(part.key), {}))
            for rule in part.rules:
                places = (i for i, r in enumerate(draft.rules.get(rule.chain, ())) if r.handle == rule.handle)
                failures[part.key, "rule", rule.handle] = draft.delete(rule.chain, next(places, None))
            for chain in part.flush:
                failures[part.key, "flush", chain] = draft.flush(chain)
        for part in change.tables:
            draft = drafts.get(part.key, Draft(Table(part.key), {}))
            for chain in part.delete:
                held = (part.key, chain) in self.held or chain in draft.table.mapped
                failures[part.key, "chain", chain] = draft.drop(chain, errno.EBUSY, held=held)
        for native in change.native_tables:
            failures[native, "table", native.name] = 0 if native in natives else errno.ENOENT
            natives = [other for other in natives if other != native]
        refused = {name: code for name, code in failures.items() if code}
        if refused:
            raise BatchRefused(refused)
        before = set(uses(self._tables.values()))
        self._tables.update((key, draft.done()) for key, draft in drafts.items())
        self._natives = tuple(natives)
        self._lingering.update(dict.fromkeys(before.difference(uses(self._tables.values())), self.busy_polls))
        self._renumber()
        self.generation += 1
        self._wrote()

    def destroy_sets(self, names: Iterable[str]) -> dict[str, int]:
        """Destroy sets; return the errno of each that is refused."""
        self._step("sets")
        failures = {}
        for name in names:
            if not name:
                raise ValueError("a set without a name")  # the kernel takes it as all sets
            if name not in self._sets:
                failures[name] = errno.ENOENT
            elif name in self.errors:
                failures[name] = self.errors[name]
            elif self._references()[name]:
                failures[name] = ENTRY_BUSY
                self._lingering[name] = max(self._lingering[name] - 1, 0)
            else:
                del self._sets[name]
                self._wrote()
        return failures

    @contextmanager
    def lock(
        self,
        deadline: float,
        *,
        give_up: Callable[[], bool],
        clock: Callable[[], float],
        sleep: Callable[[float], object],
    ) -> Iterator[None]:
        """Hold the xtables lock of this node; for `Settings.lock`."""
        while self.lock_polls > 0:
            self.lock_polls -= 1
            if clock() >= deadline or give_up():
                raise LockBusy("xtables lock held by another process")
            sleep(0.02)
        self._step("lock")  # who honours the lock writes before it is ours
        self.locked = True
        try:
            yield
        finally:
            self.locked = False

    def _step(self, name: str) -> None:
        if self.before_commit is not None and name != "dump":
            self.before_commit(name)
        if name in self.errors:
            raise KernelError(self.errors[name], name)

    def _renumber(self) -> None:
        for key, table in self._tables.items():
            rules = {c: tuple(attrs.evolve(r, index=i) for i, r in enumerate(own)) for c, own in table.rules.items()}
            self._tables[key] = attrs.evolve(table, rules=rules)

    def _wrote(self) -> None:
        self.writes += 1
        if self.writes == self.crash_after:
            raise Crash(f"after write {self.writes}")

    def _replace_legacy(self, table: Table, expected: int) -> None:
        """Put a legacy table in place of the one there, which must have as many entries as the one that was read."""
        self._step("legacy")
        if not self.locked:
            raise AssertionError("a legacy table is committed without the xtables lock")
        # All that the kernel compares is the number of entries: another edit that keeps it is lost.
        if entries(self._tables[table.key]) != expected:
            raise KernelError(errno.EAGAIN, f"legacy table {table.key.name}: commit")
        self._tables[table.key] = table
        self._renumber()
        self._wrote()


@attrs.frozen
class _Listener:
    host: MemoryHost

    def commits(self) -> Commits:
        """Return what the host was told to let it hear."""
        return self.host.commits

    def rest(self) -> None:
        """Do nothing."""
