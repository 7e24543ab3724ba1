"""All handlers of one run as one host: complete, in one network namespace, with what could not be opened as gaps."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import FirewallCleanupError, KernelError
from ..host import FoundFile, Interest, LegacyTable
from ..model import (
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
    PolicyRule,
    Route,
    TableKey,
)
from ..writers import Process, Processes
from . import Handlers, probe
from ._handler import Handler
from ._namespace import Namespace
from ._nft import NftConnection, NftDump
from ._root import Root
from .files import find_traces, read_files
from .ipset import IpsetHandler
from .iptables import IptablesHandler
from .ipvs import IpvsHandler
from .nftables import NftablesHandler
from .processes import read_processes, wait_for_end
from .routing import RoutingHandler

if TYPE_CHECKING:
    from ._nft_listener import NftListener

__all__ = ["Host", "open_host"]


@attrs.frozen
class Host:
    """What the engine reads from and writes to."""

    iptables: dict[Family, IptablesHandler]
    ipset: dict[Family, IpsetHandler]
    nftables: NftablesHandler | None
    ipvs: IpvsHandler | None
    routing: RoutingHandler | None
    families: tuple[Family, ...]
    gaps: tuple[Gap, ...]
    namespace: Namespace
    root: Root
    files: bool = True
    elsewhere: bool = False  # whether the root is not this machine's, or this container's, own

    def _connection(self) -> NftConnection | None:
        """Return a connection to nf_tables: one serves all families, as a batch may mix them."""
        for handler in (*self.iptables.values(), self.nftables):
            if handler is not None and handler.connection is not None:
                return handler.connection
        return None

    def dump_nft(self, interest: Interest) -> NftDump | None:
        """Read nf_tables in one generation; None if the kernel has none. Raises KernelError."""
        connection = self._connection()
        if connection is None:
            return None
        dump = connection.dump(self.iptables, interest)
        return dump if self.nftables is not None else attrs.evolve(dump, native_tables=())

    def generation(self) -> int | None:
        """Return the number of nf_tables' current generation, None if the kernel has none. Raises KernelError."""
        connection = self._connection()
        return None if connection is None else connection.generation()

    def commit_nft(self, change: Change, generation: int) -> None:
        """Apply a change in one batch. Raises StaleGeneration, BatchRefused, KernelError; nothing is applied then."""
        connection = self._connection()
        if connection is not None:
            connection.commit(change, generation)

    def legacy_tables(self, family: Family) -> tuple[TableKey, ...]:
        """Return the legacy tables that exist. Raises OSError if the kernel does not let us look."""
        handler = self.iptables.get(family)
        return () if handler is None else handler.legacy_tables()

    def open_legacy(self, key: TableKey, interest: Interest) -> LegacyTable:
        """Read a legacy table. Raises KernelError."""
        return self.iptables[key.family].open_legacy(key, interest)

    def sets(self, families: Iterable[Family], with_members: Container[str] = ()) -> list[IpSet]:
        """Return the sets of some families and those of none, some with their members. Raises KernelError."""
        handlers = {family: handler for family in families if (handler := self.ipset.get(family)) is not None}
        for handler in handlers.values():  # the kernel lists the sets of all families at once
            if handler.connection is not None:
                found = handler.connection.sets(with_members)
                return [item for item in found if item.family is None or item.family in handlers]
        return []

    def destroy_sets(self, names: Iterable[str]) -> dict[str, int]:
        """Destroy sets; return the errno of each that the kernel refused. Raises KernelError."""
        for handler in self.ipset.values():
            if handler.connection is not None:
                return handler.destroy(names)
        return {}

    def services(self) -> tuple[IpvsService, ...]:
        """Return the virtual services of IPVS. Raises KernelError."""
        return () if self.ipvs is None else self.ipvs.services()

    def links(self) -> tuple[Link, ...]:
        """Return all links. Raises KernelError."""
        return () if self.routing is None else self.routing.links()

    def addresses(self, link: Link) -> tuple[Address, ...]:
        """Return the addresses of a link. Raises KernelError."""
        return () if self.routing is None else self.routing.addresses(link)

    def policy_rules(self, family: Family) -> tuple[PolicyRule, ...]:
        """Return the policy rules of a family. Raises KernelError."""
        return () if self.routing is None else self.routing.policy_rules(family)

    def routes(
        self, family: Family, selections: Iterable[tuple[int, int]], links: Iterable[Link]
    ) -> tuple[Route, ...]:
        """Return the routes of some tables, each given with a protocol number or 0 for all. Raises KernelError."""
        return () if self.routing is None else self.routing.routes(family, selections, links)

    def fou_ports(self) -> tuple[FouPort, ...]:
        """Return the FOU ports of both families. Raises KernelError."""
        return () if self.routing is None else self.routing.fou_ports()

    def delete(self, item: Item) -> None:
        """Delete one object. Raises KernelError."""
        if isinstance(item, IpvsService):
            if self.ipvs is not None:
                self.ipvs.delete(item)
        elif self.routing is not None:
            self.routing.delete(item)

    def traces(self, traces: Iterable[FileTrace]) -> tuple[str, ...]:
        """Return what is found of a component's files; nothing where another namespace than the node's is cleaned."""
        return tuple(find_traces(traces, self.root)) if self.files else ()

    def read_files(self, paths: Iterable[str]) -> tuple[FoundFile, ...]:
        """Return the files that are there of some paths and patterns; nothing where traces are not looked for."""
        return tuple(read_files(paths, self.root)) if self.files else ()

    def processes(self, wanted: Callable[[Process], bool]) -> Processes:
        """Return the processes that are `wanted` and in the network namespace, or may be."""
        return read_processes(wanted, self.namespace, self.root if self.elsewhere else None)

    def wait_for_end(self, pids: Iterable[int], seconds: float) -> None:
        """Return when one of some processes has ended, and after so many seconds at the latest."""
        wait_for_end(pids, seconds, own=not self.elsewhere)

    def listen_nft(self) -> NftListener | None:
        """Hear from now on who changes nf_tables; None if the kernel has none, or does not let us."""
        connection = self._connection()
        if connection is None:
            return None
        try:
            return self.namespace.run(connection.listen)
        except OSError:
            return None

    def texts(self, key: TableKey, chain: str) -> list[str] | None:
        """Return the rules of a chain of a legacy table as iptables prints them; None if it cannot."""
        handler = self.iptables.get(key.family)
        return None if handler is None else handler.texts(key, chain)

    def has_family(self, family: Family) -> bool:
        """Tell whether the kernel has the family at all."""
        return family is Family.IPV4 or self.namespace.run(probe.has_ipv6)

    def family_state(self, family: Family, *, gap: bool, found: bool) -> FamilyState:
        """Return the state of a family of which something was `found`, or a part has a `gap`."""
        if gap:
            return FamilyState.GAP
        return FamilyState.EXAMINED if found or self.has_family(family) else FamilyState.ABSENT


@contextmanager
def open_host(
    handlers: Handlers | None,
    *,
    netns: str | None = None,
    families: tuple[Family, ...] | None = None,
    root: str | None = None,
) -> Iterator[Host]:
    """Complete the handlers: what is missing or closed is opened, in the same namespace, and closed again.

    `root` is where the root of the machine is mounted whose files and processes are looked at.

    Raises RootError, NamespaceError, and ValueError if handlers of different namespaces were put together.
    """
    with (
        Root("/" if root is None else root) as folder,
        _open_host(handlers, netns, families, folder, elsewhere=root is not None) as host,
    ):
        yield host


@contextmanager
def _open_host(
    handlers: Handlers | None, netns: str | None, families: tuple[Family, ...] | None, root: Root, *, elsewhere: bool
) -> Iterator[Host]:
    given = Handlers() if handlers is None else handlers
    wanted = given.families if families is None else tuple(f for f in given.families if f in families)
    opened: list[Handler[Any]] = []
    gaps: list[Gap] = []
    namespace, own = _namespace(given, netns)

    def complete(given: Any, what: str, family: Family | None, opener: Callable[..., Any], *args: Any) -> Any:
        if given is not None and not given.closed:
            if given.identity != namespace.identity:
                raise ValueError(f"{what}: the handler works in another network namespace")
            return given
        try:
            fresh = opener(*args, namespace=namespace)
        except FirewallCleanupError as error:
            gaps.append(Gap(f"{what} not opened: {_text(error)}", family, subsystem=what))
            return None
        opened.append(fresh)
        return fresh

    try:
        iptables = {f: complete(given.iptables.get(f), "iptables", f, IptablesHandler.open, f) for f in wanted}
        ipset = {f: complete(given.ipset.get(f), "ipset", f, IpsetHandler.open, f) for f in wanted}
        native = complete(given.nftables, "nftables", None, NftablesHandler.open)
        ipvs = complete(given.ipvs, "ipvs", None, IpvsHandler.open)
        routing = complete(given.routing, "routing", None, RoutingHandler.open)
        yield Host(
            {f: handler for f, handler in iptables.items() if handler is not None},
            {f: handler for f, handler in ipset.items() if handler is not None},
            native,
            ipvs,
            routing,
            wanted,
            tuple(gaps),
            namespace,
            root,
            files=elsewhere or namespace.is_callers,
            elsewhere=elsewhere,
        )
    finally:
        for handler in opened:
            handler.close()
        if own:
            namespace.close()


def _namespace(handlers: Handlers, netns: str | None) -> tuple[Namespace, bool]:
    if netns is not None:
        return Namespace(netns), True
    known = [handlers.namespace, *(handler.namespace for handler in handlers)]
    namespaces = [namespace for namespace in known if namespace is not None]
    for namespace in namespaces:
        if not namespace.closed:
            return namespace, False
    own = Namespace()
    if namespaces and namespaces[0].identity != own.identity:
        own.close()
        raise ValueError("the handlers are closed, and with them their network namespace: open them again")
    return own, True


def _text(error: BaseException) -> str:
    return error.strerror if isinstance(error, KernelError) and error.strerror else str(error)
