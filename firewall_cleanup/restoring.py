"""Putting back what a cleanup removed and kept in a backup."""

from __future__ import annotations

import errno
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from .decoded import DecodedChains
from .errors import KernelError, LockBusy, StaleGeneration, ToolError
from .handlers import Handlers
from .handlers._nft_counters import add_counters
from .handlers._xtables_lock import take_lock, xtables_lock
from .handlers.host import Host, open_host
from .handlers.tools import Tools
from .host import Interest
from .model import Backend, Family, Kind, Table, TableKey, names_by_index
from .restore_report import Restored, RestoreOutcome, RestoreReport
from .undo.compare import (
    Comparison,
    Found,
    Merged,
    Object,
    Place,
    merge,
    of_lines,
    of_natives,
    of_services,
    of_sets,
    of_table,
    services_to_make,
)
from .undo.files import parts
from .undo.ipvs_text import VirtualService
from .undo.rule_text import TableText, missing_counts

__all__ = ["put_back"]

_TRIES = 20


def put_back(
    directory: str | os.PathLike[str],
    *,
    netns: str | os.PathLike[str] | None,
    handlers: Handlers | None,
    wait: float,
    stopped: Callable[[], int | None],
) -> RestoreReport:
    """Put back what a backup holds; `controllers.restore` says what the arguments mean, and what is raised."""
    if not wait >= 0:
        raise ValueError(f"wait: expected seconds, 0 or more, not {wait!r}")
    if handlers is not None and netns is not None:
        raise ValueError("netns: the handlers know their namespace already")
    path = Path(directory)
    merged = merge(parts(path))
    place = None if netns is None else os.fspath(netns)
    deadline = time.monotonic() + wait
    with open_host(handlers, netns=place, families=tuple(Family)) as host:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Held by the commands too: one that outlives a killed restore is done before the next one looks.
            take_lock(descriptor, "backup", str(path), deadline, give_up=lambda: stopped() is not None)
            tools = Tools(host.namespace, keep_open=[descriptor])
            return _Restore(path, merged, host, tools, deadline, stopped).run()
        except LockBusy as error:
            return RestoreReport(str(path), problems=(str(error),), interrupted=stopped())
        finally:
            os.close(descriptor)


class _Restore:
    def __init__(
        self,
        path: Path,
        merged: Merged,
        host: Host,
        tools: Tools,
        deadline: float,
        stopped: Callable[[], int | None],
    ) -> None:
        self.path, self.merged, self.saved, self.host = path, merged, merged.saved, host
        self.deadline, self.stopped = deadline, stopped
        self.tools = tools
        self.problems: list[str] = []
        self.sent = False  # anything that may have changed the node

    def run(self) -> RestoreReport:
        try:
            before = self.compare()
        except (ToolError, KernelError, OSError) as error:
            return self.report([], [], [f"what is there cannot be read: {error}"])
        if any(one.found is Found.ANOTHER for one in before):
            return self.report(before, before)
        missing = self.missing_tools(before)
        if missing or all(one.found is Found.ALL for one in before):
            return self.report(before, before, missing)
        for step in self.steps():
            if self.stopped() is not None:
                break
            try:
                step()
            except (ToolError, KernelError, LockBusy) as error:
                self.problems.append(str(error))
        try:
            after = self.compare()
        except (ToolError, KernelError, OSError) as error:
            problems = [*self.problems, f"what is there cannot be read: {error}"]
            return self.report(before, before, problems, changed=self.sent)
        changed = [one.found for one in before] != [one.found for one in after]
        # Whether more of a part is there now is not looked at.
        changed = changed or (self.sent and any(one.found is Found.PART for one in after))
        return self.report(before, after, self.problems, changed=changed)

    def report(
        self, before: list[Object], after: list[Object], problems: Iterable[str] = (), *, changed: bool = False
    ) -> RestoreReport:
        was_there = {one.place for one in before if one.found is Found.ALL}
        return RestoreReport(
            directory=str(self.path),
            outcomes=tuple(_outcome(one, was_there, tried=before is not after) for one in after),
            problems=tuple(dict.fromkeys(problems)),
            interrupted=self.stopped(),
            changed=changed,
        )

    # compare

    def compare(self) -> list[Object]:
        """Compare everything. Raises ToolError, KernelError or OSError for what cannot be read."""
        found = [self.sets(), self.natives(), *(self.table(key) for key in self.keys())]
        found += [*self.lines().values(), self.services()]
        self.texts.cache_clear()
        return [one for part in found for one in part.objects]

    def keys(self) -> tuple[TableKey, ...]:
        return tuple(sorted(self.saved.tables, key=lambda key: (key.backend is Backend.LEGACY, key.sort_key())))

    def sets(self) -> Comparison:
        wanted = self.saved.sets
        return of_sets(wanted, self.tools.sets(wanted)) if wanted else Comparison()

    def natives(self) -> Comparison:
        wanted = self.saved.natives
        return of_natives(wanted, self.tools.natives(wanted)) if wanted else Comparison()

    def table(self, key: TableKey) -> Comparison:
        return of_table(key, self.saved.tables[key], self.merged.foreign.get(key, {}), self.current(key))

    def current(self, key: TableKey) -> TableText | None:
        """Return a table as it is, None if it is not there."""
        found = self.texts(key.family, key.backend).get(key.name)
        if found is not None or key.backend is Backend.LEGACY:
            return found
        # iptables does not list a table that somebody has put expressions of nf_tables into.
        table = self.decoded().get(key)
        return None if table is None else self.text_of(table)

    def text_of(self, table: Table) -> TableText:
        saved = self.saved.tables[table.key]
        decoded = DecodedChains(table.key, table.rules, self.tools.chain)
        others = {chain: () for chain in table.chains if chain not in table.rules}
        wanted = (chain for chain in table.rules if chain in saved.chains or chain in saved.foreign)
        return TableText(chains={**others, **{chain: decoded[chain] for chain in wanted}})

    @functools.cache  # noqa: B019 - it lives as long as one call
    def texts(self, family: Family, backend: Backend) -> dict[str, TableText]:
        return self.tools.tables(family, backend)

    def decoded(self) -> Mapping[TableKey, Table]:
        dump = self.host.dump_nft(Interest())
        names = names_by_index(self.host.sets(self.host.families))
        return {} if dump is None else dump.tables(names)

    def lines(self) -> dict[str, Comparison]:
        wanted = self.saved.lines
        if not wanted:
            return {}
        families = [family for family in Family if self.host.has_family(family)]
        ports = self.host.fou_ports() if "fou.ip" in wanted else ()
        current = self.tools.ip(families, ports).lines()
        return {name: of_lines(name, lines, current) for name, lines in wanted.items()}

    def services(self) -> Comparison:
        wanted = self.saved.services
        return of_services(wanted, self.current_services()) if wanted else Comparison()

    def current_services(self) -> list[VirtualService]:
        return [] if self.host.ipvs is None else self.host.ipvs.settings()

    def missing_tools(self, objects: Iterable[Object]) -> list[str]:
        """Return a line for each command that is needed and not installed."""
        needed: dict[str, str] = {}
        for one in objects:
            if one.found is not Found.ALL:
                needed.setdefault(_tool(one), f"{one.kind.value} {one.name}")
        return [
            f"the command {tool} is not installed, and is needed for {what} and others"
            for tool, what in sorted(needed.items())
            if tool and self.tools.find(tool) is None
        ]

    # apply

    def steps(self) -> Iterator[Callable[[], object]]:
        """Yield what is to be done, in order: what others use or are proven by comes before them."""
        yield lambda: self.feed(self.sets(), self.tools.restore_sets)
        yield lambda: self.feed(self.natives(), self.tools.restore_natives)
        for key in self.keys():
            yield functools.partial(self.restore_table, key)
        for name in self.saved.lines:
            yield functools.partial(self.restore_lines, name)
        yield self.restore_services

    def feed(self, found: Comparison, into: Callable[[str], object]) -> None:
        if found.lines:
            self.sent = True
            into("".join(f"{line}\n" for line in found.lines))

    def restore_table(self, key: TableKey) -> None:
        if key.backend is Backend.NFT:
            self.restore_rules(key)
            return
        if all(one.found is Found.ALL for one in self.table(key).objects):
            return
        with xtables_lock(self.deadline, give_up=lambda: self.stopped() is not None):
            self.restore_rules(key)

    def restore_rules(self, key: TableKey) -> None:
        self.texts.cache_clear()
        found = self.table(key)
        if any(one.found is Found.ANOTHER for one in found.objects):
            return  # somebody was faster; the report says so
        self.feed(found, functools.partial(self.tools.restore_table, key))
        self.texts.cache_clear()
        if found.lines and key.backend is Backend.NFT:
            self.restore_counters(key, found.lines)

    def restore_counters(self, key: TableKey, lines: tuple[str, ...]) -> None:
        """Give the rules that were put back what they had counted, where the tool has not."""
        for _ in range(_TRIES):
            generation = self.host.generation()
            self.texts.cache_clear()
            now = self.current(key)
            counts = {} if now is None else missing_counts(lines, now.chains)
            if not counts or generation is None:
                return
            try:
                self.host.namespace.run(add_counters, key, counts, generation)
            except StaleGeneration:
                continue
            return
        raise KernelError(errno.EAGAIN, f"counters of {key.family.value} nft {key.name}")

    def restore_lines(self, name: str) -> None:
        found = self.lines()[name]
        if found.lines:
            self.sent = True
            self.tools.restore_lines(name, found.lines)

    def restore_services(self) -> None:
        found = self.services()
        if not found.lines:
            return
        ipvs = self.host.ipvs
        if ipvs is None or not ipvs.load():
            raise ToolError("IPVS: the kernel has none")
        self.sent = True
        for service, is_new in services_to_make(found.lines, self.saved.services):
            ipvs.add(service, is_new=is_new)


def _outcome(one: Object, was_there: set[Place], *, tried: bool) -> RestoreOutcome:
    status, reason = Restored.RESTORED, one.reason
    if one.found is Found.ANOTHER:
        status = Restored.DIFFERENT
    elif one.found is not Found.ALL:
        status = Restored.FAILED if tried else Restored.WAITING
        missing = "only a part of it is there" if one.found is Found.PART else "it is not there"
        reason = reason or (missing if tried else None)
    elif one.place in was_there:
        status = Restored.THERE
    return RestoreOutcome(one.kind, one.name, status, one.family, one.backend, one.table, one.text, reason)


def _tool(one: Object) -> str:
    if one.kind in {Kind.CHAIN, Kind.RULE}:
        name = "ip6tables" if one.family is Family.IPV6 else "iptables"
        return f"{name}-{one.backend.value}-restore" if one.backend else name
    return {Kind.SET: "ipset", Kind.TABLE: "nft", Kind.IPVS_SERVICE: ""}.get(one.kind, "ip")
