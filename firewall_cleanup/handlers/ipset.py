"""ipsets of one family."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Self

from ..model import Family, IpSet
from . import probe
from ._handler import FamilyHandler, NetNs, connect
from ._ipset import IpsetConnection
from ._namespace import Namespace

__all__ = ["IpsetHandler"]


def _connect() -> IpsetConnection | None:
    if not (probe.is_loaded("nfnetlink") and probe.is_loaded("ip_set")):
        return None
    return IpsetConnection()


class IpsetHandler(FamilyHandler[IpsetConnection]):
    """Lists and destroys the ipsets of one family, and those of no family.

    Nothing is loaded by opening or reading.
    """

    @classmethod
    def open(cls, family: Family, netns: NetNs = None, *, namespace: Namespace | None = None) -> Self:
        """Open the handler in a namespace given by name or path (None: the caller's own).

        Raises NamespaceError, and KernelError if the kernel refuses.
        """
        place, connection, own = connect("ipset", _connect, netns, namespace)
        return cls(family, place, connection, own_namespace=own)

    def sets(self, with_members: Container[str] = ()) -> list[IpSet]:
        """Return the family's sets, and those without a family; some with their members. Raises KernelError."""
        if self.connection is None:
            return []
        return [item for item in self.connection.sets(with_members) if item.family in {self.family, None}]

    def destroy(self, names: Iterable[str]) -> dict[str, int]:
        """Destroy sets by name; return the errno of each that the kernel refused. Raises KernelError."""
        return {} if self.connection is None else self.connection.destroy(names)
