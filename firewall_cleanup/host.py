"""What the engine asks of a node: one behind handlers (`handlers.host`), or one in memory (`testing.memory`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Protocol

import attrs

from .model import (
    Address,
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
    Snapshot,
    Table,
    TableChange,
    TableKey,
)
from .writers import Commits, Process, Processes

__all__ = ["FoundFile", "Host", "Interest", "LegacyTable", "Look", "NftDump", "NftListener", "Staying"]


class Interest:
    """What must be read of a node's rules. This one wants everything; others let a reader leave out most.

    A built-in chain is read whole, and so is an owned one, unless its inside says nothing. The rules of every other
    chain are looked at only for whether they jump to an owned chain or use a set that matters; a chain without any is
    left out.
    """

    def sort(self, _table: str, chains: Collection[str]) -> tuple[Collection[str], Collection[str]]:
        """Return the user chains of an iptables table to which a jump matters, and those of them to leave unread."""
        return chains, ()

    def matters(self, _set: str) -> bool:
        """Tell whether it matters that a rule uses the set of this name."""
        return True

    def any_set_matters(self) -> bool:
        """Tell whether there may be a set that matters."""
        return True


@attrs.frozen
class Staying:
    """What stays of an iptables table when all that is owned is left out, so that it can be compared.

    `content` is the same for the same: policies, chains, and rules in their order, without counters, handles and
    offsets. `unread` are chains whose rules are not in it; of those that were looked at all the same, `handles` has
    the handles of their rules, in order. `words` gives the rules of each chain in `content`, each as what may be
    compared, and its text. `marks` is for who made it, to see faster whether another one is the same.
    """

    content: tuple[bytes | bytearray, ...] = attrs.field(repr=False)
    chains: int = 0
    rules: int = 0
    unread: tuple[str, ...] = attrs.field(default=(), repr=False)
    handles: Callable[[], Mapping[str, Sequence[int]]] = attrs.field(default=dict, repr=False)
    words: Callable[[], Mapping[str, Sequence[tuple[bytes, Callable[[], str]]]]] = attrs.field(
        default=dict, repr=False
    )
    marks: object = attrs.field(default=None, eq=False, repr=False)


class LegacyTable(Protocol):
    """A legacy table, read at one moment; see `handlers._legacy.LegacyTable`."""

    key: TableKey

    @property
    def size(self) -> int: ...
    def table(self, sets: Mapping[int, str]) -> Table: ...
    def is_current(self) -> bool: ...
    def commit(self, change: TableChange) -> None: ...
    def staying(self, owned: TableChange, sets: Mapping[int, str], like: Staying | None = None) -> Staying: ...


class NftDump(Protocol):
    """nf_tables in one generation; see `handlers._nft.NftDump`."""

    @property
    def generation(self) -> int: ...
    @property
    def native_tables(self) -> tuple[NativeTable, ...]: ...
    def tables(self, sets: Mapping[int, str]) -> Mapping[TableKey, Table]: ...
    def staying(self, owned: TableChange, sets: Mapping[int, str], like: Staying | None = None) -> Staying: ...


@attrs.frozen
class FoundFile:
    """A file that was looked for: where it is, and its text, or the reason why it has none.

    `asked` is the path or the pattern by which it was looked for.
    """

    asked: str
    path: str
    text: str = attrs.field(default="", repr=False)
    unread: str = ""


class NftListener(Protocol):
    """Hears who changes nf_tables from now on; see `handlers._nft_listener.NftListener`."""

    def commits(self) -> Commits: ...
    def rest(self) -> None: ...


@attrs.frozen
class Look:
    """What was seen of a node at one moment, as the engine reads it."""

    snapshot: Snapshot
    dump: NftDump | None = attrs.field(default=None, repr=False)
    legacy: Mapping[TableKey, LegacyTable] = attrs.field(factory=dict, repr=False)


class Host(Protocol):
    """What the engine reads from and writes to; all of it in one network namespace."""

    @property
    def families(self) -> tuple[Family, ...]: ...
    @property
    def gaps(self) -> tuple[Gap, ...]: ...
    def dump_nft(self, interest: Interest) -> NftDump | None: ...
    def commit_nft(self, change: Change, generation: int) -> None: ...
    def legacy_tables(self, family: Family) -> tuple[TableKey, ...]: ...
    def open_legacy(self, key: TableKey, interest: Interest) -> LegacyTable: ...
    def sets(self, families: Iterable[Family], with_members: Container[str] = ()) -> list[IpSet]: ...
    def destroy_sets(self, names: Iterable[str]) -> dict[str, int]: ...
    def services(self) -> tuple[IpvsService, ...]: ...
    def links(self) -> tuple[Link, ...]: ...
    def addresses(self, link: Link) -> tuple[Address, ...]: ...
    def policy_rules(self, family: Family) -> tuple[PolicyRule, ...]: ...
    def routes(
        self, family: Family, selections: Iterable[tuple[int, int]], links: Iterable[Link]
    ) -> tuple[Route, ...]: ...
    def fou_ports(self) -> tuple[FouPort, ...]: ...
    def delete(self, item: Item) -> None: ...
    def traces(self, traces: Iterable[FileTrace]) -> tuple[str, ...]: ...
    def read_files(self, paths: Iterable[str]) -> tuple[FoundFile, ...]: ...
    def processes(self, wanted: Callable[[Process], bool]) -> Processes: ...
    def wait_for_end(self, pids: Iterable[int], seconds: float) -> None: ...
    def listen_nft(self) -> NftListener | None: ...
    def texts(self, key: TableKey, chain: str) -> Sequence[str | None] | None: ...
    def family_state(self, family: Family, *, gap: bool, found: bool) -> FamilyState: ...
