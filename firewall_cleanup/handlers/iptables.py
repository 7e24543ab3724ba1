"""iptables of one family: both backends behind one object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from ..host import Interest
from ..model import Backend, Family, TableKey
from ..rules import logical_lines, quote
from . import probe
from ._handler import FamilyHandler, NetNs, connect
from ._namespace import Namespace
from ._nft import NftConnection
from .nftables import connect_nft

if TYPE_CHECKING:
    from ._legacy import LegacyTable

__all__ = ["IptablesHandler"]

_TEXT_SECONDS = 30


class IptablesHandler(FamilyHandler[NftConnection]):
    """Reads and writes the iptables of one family, legacy and nft.

    `connection` speaks to nf_tables. Nothing is loaded or created by opening or reading.
    """

    @classmethod
    def open(cls, family: Family, netns: NetNs = None, *, namespace: Namespace | None = None) -> Self:
        """Open the handler in a namespace given by name or path (None: the caller's own).

        Raises NamespaceError, and KernelError if the kernel refuses.
        """
        place, connection, own = connect("nf_tables", connect_nft, netns, namespace)
        return cls(family, place, connection, own_namespace=own)

    def legacy_tables(self) -> tuple[TableKey, ...]:
        """Return the legacy tables that exist. Raises OSError if the kernel does not let us look."""
        names = self.namespace.run(probe.legacy_tables, self.family)
        return tuple(TableKey(self.family, Backend.LEGACY, name) for name in names)

    def open_legacy(self, key: TableKey, interest: Interest) -> LegacyTable:
        """Read a legacy table. Raises KernelError."""
        from ._legacy import LegacyTable  # noqa: PLC0415 - most nodes have no legacy table, and need no ctypes

        return LegacyTable(key, interest, self.namespace)

    def texts(self, key: TableKey, chain: str) -> list[str] | None:
        """Return the `-A` lines of a chain of a legacy table as iptables prints them; None if it cannot list them.

        The table must exist: only then does listing change nothing. Listing by `-S` would take the xtables lock.
        Not so for nf_tables: iptables-nft asks the kernel for every extension with which it prints a rule, for which
        the kernel loads modules if nft made the rule without them (1.8.9 on Linux 6.1).
        """
        import subprocess  # noqa: PLC0415 - it takes longer to import than most runs, which need no text

        path = probe.find_program(("iptables" if self.family is Family.IPV4 else "ip6tables") + "-legacy-save")
        if path is None:
            return None
        try:
            done = self.namespace.run(
                subprocess.run,
                [path, "-t", key.name],
                capture_output=True,
                timeout=_TEXT_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        printed = done.stdout.decode("utf-8", "surrogateescape")  # a comment may hold any kind of line break
        start = f"-A {quote(chain)} "
        return [line for _number, line in logical_lines(printed) if f"{line} ".startswith(start)]
