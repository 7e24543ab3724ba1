"""Tables of nf_tables that belong to a component as a whole."""

from __future__ import annotations

from typing import Self

from . import probe
from ._handler import Handler, NetNs, connect
from ._namespace import Namespace
from ._nft import NftConnection

__all__ = ["NftablesHandler", "connect_nft"]


def connect_nft() -> NftConnection | None:
    """Connect to nf_tables; None if the kernel has none. Raises OSError."""
    if not (probe.is_loaded("nfnetlink") and probe.is_loaded("nf_tables")):
        return None
    return NftConnection()


class NftablesHandler(Handler[NftConnection]):
    """Sees and deletes whole nf_tables tables, of any family.

    Nothing is loaded or created by opening or reading.
    """

    @classmethod
    def open(cls, netns: NetNs = None, *, namespace: Namespace | None = None) -> Self:
        """Open the handler in a namespace given by name or path (None: the caller's own).

        Raises NamespaceError, and KernelError if the kernel refuses.
        """
        place, connection, own = connect("nf_tables", connect_nft, netns, namespace)
        return cls(place, connection, own_namespace=own)
