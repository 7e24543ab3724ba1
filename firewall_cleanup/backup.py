"""Keeping what a cleanup removes, in files that the standard tools read, before it is removed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from ._version import __version__
from .decoded import DecodedChains
from .errors import BackupError, KernelError, StaleGeneration, ToolError
from .handlers.host import Host
from .handlers.tools import Tools
from .host import Interest, LegacyTable
from .model import Backend, Family, FouPort, IpvsService, NativeTable, Rule, TableChange, TableKey, names_by_index
from .plan import Plan
from .reading import Reading
from .undo.files import write_part, write_run
from .undo.ipvs_text import VirtualService
from .undo.rule_text import ForeignChain, TableText
from .undo.saved import Saved, SavedTable

__all__ = ["Backup", "Saver"]

_K = TypeVar("_K")


class Saver(Protocol):
    """Keeps what a plan removes. Both raise BackupError, and StaleGeneration if the node is not as it was read."""

    def save(self, reading: Reading, plan: Plan) -> None:
        """Keep all that the plan removes, as far as that was not done."""

    def save_table(self, table: LegacyTable, change: TableChange, names: Mapping[int, str]) -> None:
        """Keep what a change removes from a legacy table; `names` are those of sets by index."""


class Backup:
    """Writes what is removed from a host into a fresh folder of a directory, and more parts into that one.

    Each object is as the standard tools print it; rules that they cannot print are written as they were decoded. What
    was written already, and has not changed since, is not written again. `run` is the folder, None before the first.
    """

    def __init__(
        self, directory: str | os.PathLike[str], host: Host, *, component: str, clock: Callable[[], float] = time.time
    ) -> None:
        self.directory = Path(directory)
        self.run: Path | None = None
        self._host, self._component, self._clock = host, component, clock
        self._tools = Tools(host.namespace)
        self._saved = Saved()
        self._done: tuple[object, object] | None = None

    def save(self, reading: Reading, plan: Plan) -> None:
        """Keep all that the plan removes, as far as that was not done.

        Raises BackupError, and StaleGeneration if the node is not as it was read; nothing was written then.
        """
        names = names_by_index(reading.snapshot.sets.values())
        try:
            tables = {**self._nft_tables(reading, plan, names), **self._legacy_tables(reading, plan, names)}
            found = Saved(
                tables=tables,
                sets=self._sets(plan.set_names()),
                natives=self._natives(reading, plan),
                lines=self._lines(plan),
                services=self._services(plan.services()),
            )
            self._check_generation(reading, plan)
        except (ToolError, KernelError) as error:
            raise BackupError(f"the backup cannot be written: {error}") from error
        self._write(found)

    def save_table(self, table: LegacyTable, change: TableChange, names: Mapping[int, str]) -> None:
        """Keep what a change removes from a legacy table, of which this is the reading.

        Raises BackupError, and StaleGeneration if the table is not as it was read.
        """
        try:
            text = self._texts(Backend.LEGACY, [table.key.family]).get(table.key)
            found = self._legacy_table(table, change, names, text)
        except (ToolError, KernelError) as error:
            raise BackupError(f"the backup cannot be written: {error}") from error
        self._write(Saved(tables={table.key: found}))

    def _write(self, found: Saved) -> None:
        new = found.minus(self._saved)
        if not new:
            return
        about = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock())),
            "component": self._component,
            "program": f"firewall-cleanup {__version__}",
        }
        files = new.to_files(about)
        if self.run is None:
            self.run = write_run(self.directory, files, self._clock())
        else:
            write_part(self.run, files)
        self._saved = new.plus(self._saved)

    # rules

    def _nft_tables(self, reading: Reading, plan: Plan, names: Mapping[int, str]) -> dict[TableKey, SavedTable]:
        change = plan.nft_change()
        if not change.tables or self._done == (reading.generation, change):
            return {}
        texts = self._texts(Backend.NFT, (part.key.family for part in change.tables))
        whole: Mapping[TableKey, TableText] | None = None
        result = {}
        for part in change.tables:
            read = {rule.chain: reading.snapshot.tables[part.key].rules[rule.chain] for rule in part.rules}
            text = texts.get(part.key)
            if text is None or not _fits(text, part, read):
                if whole is None:
                    whole = self._decoded_nft(names, reading.generation)
                text = whole[part.key]
            result[part.key] = _saved_table(text, part)
        return result

    def _check_generation(self, reading: Reading, plan: Plan) -> None:
        """Make sure that what was printed is what was read: its counters may differ, and nothing else."""
        change = plan.nft_change()
        if change and self._host.generation() != reading.generation:
            raise StaleGeneration("the nf_tables ruleset was changed by somebody else")
        self._done = (reading.generation, change)

    def _texts(self, backend: Backend, families: Iterable[Family]) -> dict[TableKey, TableText]:
        result: dict[TableKey, TableText] = {}
        for family in sorted(set(families)):
            try:
                found = self._tools.tables(family, backend)
            except ToolError:  # without the tool, rules are written as they were decoded
                continue
            result.update((TableKey(family, backend, name), text) for name, text in found.items())
        return result

    def _decoded_nft(self, names: Mapping[int, str], generation: int | None) -> dict[TableKey, TableText]:
        dump = self._host.dump_nft(Interest())
        if dump is None or dump.generation != generation:
            raise StaleGeneration("the nf_tables ruleset was changed by somebody else")
        tables = dump.tables(names)
        return {
            key: TableText(chains=DecodedChains(key, table.rules, self._tools.chain)) for key, table in tables.items()
        }

    def _legacy_tables(self, reading: Reading, plan: Plan, names: Mapping[int, str]) -> dict[TableKey, SavedTable]:
        keys = [key for key in plan.legacy_keys() if key in reading.legacy]
        texts = self._texts(Backend.LEGACY, (key.family for key in keys))
        return {
            key: self._legacy_table(reading.legacy[key], plan.table_change(key), names, texts.get(key))
            for key in keys
        }

    def _legacy_table(
        self, table: LegacyTable, change: TableChange, names: Mapping[int, str], text: TableText | None
    ) -> SavedTable:
        key = table.key
        if not table.is_current():
            raise StaleGeneration(f"legacy table {key.name} was changed by somebody else")
        read = table.table(names)
        if text is None or not _fits(text, change, {rule.chain: read.rules[rule.chain] for rule in change.rules}):
            whole = self._host.open_legacy(key, Interest())
            if not table.is_current():
                raise StaleGeneration(f"legacy table {key.name} was changed by somebody else")
            found = whole.table(names)
            policies = {chain: f"{p.verdict} [{p.packets}:{p.bytes}]" for chain, p in found.builtin.items()}
            text = TableText(policies, DecodedChains(key, found.rules))
        return _saved_table(text, change)

    # all else

    def _sets(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        if not names:
            return {}
        found = self._tools.sets(set(names))
        for line in (line for name in _all_there(names, found) for line in found[name]):
            _check_line(line)
        return {name: found[name] for name in names}

    def _natives(self, reading: Reading, plan: Plan) -> dict[NativeTable, str]:
        tables = plan.nft_change().native_tables
        if not tables or self._done == (reading.generation, plan.nft_change()):
            return {}
        found = self._tools.natives(tables)
        return {table: found[table] for table in _all_there(tables, found)}

    def _lines(self, plan: Plan) -> dict[str, tuple[str, ...]]:
        items = plan.items()
        if not items:
            return {}
        families = [family for family in self._host.families if self._host.has_family(family)]
        ports = self._host.fou_ports() if any(isinstance(item, FouPort) for item in items) else ()
        try:
            return self._tools.ip(families, ports).of(items)
        except LookupError as error:
            raise StaleGeneration(f"it was changed by somebody else: {error}") from error

    def _services(self, services: Sequence[IpvsService]) -> dict[str, tuple[str, ...]]:
        if not services or self._host.ipvs is None:
            return {}
        found = {_service_key(service): service for service in self._host.ipvs.settings()}
        wanted = [_service_key(service) for service in services]
        chosen = [found[key] for key in _all_there(wanted, found)]
        return {service.name: tuple(service.lines()) for service in chosen}


def _check_line(line: str) -> None:
    """Raise BackupError for what the tools print, and do not read again."""
    if "\n" in line:
        raise BackupError(
            f"the backup cannot be complete: no command puts back what has a line break in it: {line!r}"
        )


def _all_there(wanted: Iterable[_K], found: Mapping[_K, object]) -> Iterator[_K]:
    for one in wanted:
        if one not in found:
            raise StaleGeneration(f"{one} went away")
        yield one


def _service_key(service: IpvsService | VirtualService) -> tuple[object, ...]:
    return (service.family, service.mark) if service.mark else (service.family, *_end(service))


def _end(service: IpvsService | VirtualService) -> tuple[object, ...]:
    return service.protocol, service.address, service.port


def _fits(text: TableText, change: TableChange, read: Mapping[str, tuple[Rule, ...]]) -> bool:
    """Tell whether the chains that are needed were printed, and as many rules as were read."""
    if any(chain not in text.chains for chain in change.flush):
        return False
    return all(len(text.chains.get(chain, ())) == len(rules) for chain, rules in read.items())


def _saved_table(text: TableText, change: TableChange) -> SavedTable:
    removed: dict[str, list[int]] = {}
    for rule in change.rules:
        removed.setdefault(rule.chain, []).append(rule.index)
    chains = {chain: text.chains[chain] for chain in dict.fromkeys((*change.flush, *change.delete))}
    foreign = {chain: ForeignChain(text.chains[chain], tuple(sorted(places))) for chain, places in removed.items()}
    if isinstance(text.chains, DecodedChains):
        for chain, lines in chains.items():
            text.chains.check(chain, lines, range(len(lines)))
        for chain, state in foreign.items():
            text.chains.check(chain, state.rules, state.removed)
    for line in (line for lines in chains.values() for line in lines):
        _check_line(line)
    for line in (state.rules[place] for state in foreign.values() for place in state.removed):
        _check_line(line)
    return SavedTable(
        chains=chains,
        foreign=foreign,
        policies=text.policies if change.key.backend is Backend.LEGACY else {},
    )
