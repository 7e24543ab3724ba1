"""Virtual services of IPVS."""

from __future__ import annotations

from typing import Self

from ..model import IpvsService
from . import probe
from ._genl import IpvsConnection
from ._handler import Handler, NetNs, connect
from ._namespace import Namespace

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
