"""What a node in memory gives of its tables when it is read; the protocols `host.NftDump` and `host.LegacyTable`."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping

import attrs

from ..errors import BatchRefused, KernelError
from ..host import Staying
from ..model import NativeTable, Table, TableChange, TableKey
from ._tables import Draft, entries, named, staying

__all__ = ["ReadDump", "ReadTable"]


@attrs.frozen
class ReadDump:
    """What was read of nf_tables in one generation."""

    generation: int
    native_tables: tuple[NativeTable, ...]
    raw: tuple[Table, ...]
    read: Mapping[TableKey, tuple[Table, frozenset[str], bool]]

    def tables(self, sets: Mapping[int, str]) -> dict[TableKey, Table]:
        return {table.key: named(table, sets) for table in self.raw}

    def staying(self, owned: TableChange, sets: Mapping[int, str], like: Staying | None = None) -> Staying:
        del sets, like
        table, whole, looked_at = self.read[owned.key]
        return staying(table, owned, whole, looked_at=looked_at)


@attrs.define(eq=False)
class ReadTable:
    """A legacy table as it was read. `now` gives it as it is, `replace` puts another one in its place."""

    key: TableKey
    _read: Table
    _shown: Table
    _now: Callable[[], Table | None]
    _replace: Callable[[Table, int], None]
    size: int = 0

    def table(self, sets: Mapping[int, str]) -> Table:
        return named(self._shown, sets)

    def staying(self, owned: TableChange, sets: Mapping[int, str], like: Staying | None = None) -> Staying:
        del sets, like
        return staying(self._read, owned, self._read.rules)

    def is_current(self) -> bool:
        return self._now() == self._read

    def commit(self, change: TableChange) -> None:
        draft = Draft.of(self._read)
        for rule in sorted(change.rules, key=lambda rule: -rule.index):
            self._check(draft.delete(rule.chain, rule.index))
        for chain in change.flush:
            self._check(draft.flush(chain))
        failures: dict[tuple[object, str, object], int] = {}
        for chain in change.delete:
            code = errno.ENOTEMPTY if draft.rules.get(chain) else draft.drop(chain, errno.EMLINK)
            if chain in self._read.builtin:
                code = errno.EINVAL
            if code:
                failures[self.key, "chain", chain] = code
        if failures:
            raise BatchRefused(failures)
        self._replace(draft.done(), entries(self._read))

    def _check(self, code: int) -> None:
        if code:
            raise KernelError(code, f"legacy table {self.key.name}")
