"""Virtual services of IPVS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from ..model import IpvsService
from . import probe
from ._genl import IpvsConnection
from ._handler import Handler, NetNs, connect
from ._namespace import Namespace

if TYPE_CHECKING:
    from ..undo.ipvs_text import VirtualService

__all__ = ["IpvsHandler"]


def _connect() -> IpvsConnection | None:
    return IpvsConnection.connect() if probe.is_loaded("ip_vs") else None


class IpvsHandler(Handler[IpvsConnection]):
    """Lists and deletes virtual services, of both families and of marks. Never flushes.

    `connection` is None where the kernel has no IPVS. Nothing is loaded by opening or reading.
    """

    @classmethod
    def open(cls, netns: NetNs = None, *, namespace: Namespace | None = None) -> Self:
        """Open the handler in a namespace given by name or path (None: the caller's own).

        Raises NamespaceError, and KernelError if the kernel refuses.
        """
        place, connection, own = connect("IPVS", _connect, netns, namespace)
        return cls(place, connection, own_namespace=own)

    def services(self) -> tuple[IpvsService, ...]:
        """Return all virtual services. Raises KernelError."""
        return () if self.connection is None else self.connection.services()

    def delete(self, service: IpvsService) -> None:
        """Delete one virtual service. Raises KernelError (ESRCH if it is gone)."""
        if self.connection is not None:
            self.connection.delete(service)

    def settings(self) -> list[VirtualService]:
        """Return all virtual services with all their settings. Raises KernelError."""
        return [] if self.connection is None else self.connection.settings()

    def load(self) -> bool:
        """Connect to IPVS even if that loads its module; return whether the kernel has it. Raises KernelError."""
        if self.connection is None:
            self.connection = self.namespace.run(IpvsConnection.connect)
        return self.connection is not None

    def add(self, service: VirtualService, *, is_new: bool) -> None:
        """Make a virtual service with its destinations, or give one that is there these destinations, all at once.

        Raises KernelError (EEXIST if something of it is there).
        """
        if self.connection is not None:
            self.connection.add(service, is_new=is_new)
