"""Handlers: the only part of the package that touches the kernel. None of them needs an API server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import attrs

from ..closing import Closing
from ..errors import FirewallCleanupError
from ..model import Family
from ._handler import Handler, NetNs
from ._namespace import Namespace
from .ipset import IpsetHandler
from .iptables import IptablesHandler
from .ipvs import IpvsHandler
from .nftables import NftablesHandler
from .routing import RoutingHandler

__all__ = ["Handlers", "IpsetHandler", "IptablesHandler", "IpvsHandler", "NftablesHandler", "RoutingHandler"]


@attrs.frozen
class Handlers(Closing):
    """One handler of iptables and one of ipset per family, one each of whole nf_tables tables, IPVS, and routing.

    A plain value: `attrs.evolve(handlers, ipset={})` is valid, and what is missing or None is opened by whoever needs
    it, in the same network namespace. A context manager; handlers that were put in by hand are closed too.
    """

    families: tuple[Family, ...] = (Family.IPV4, Family.IPV6)
    iptables: Mapping[Family, IptablesHandler | None] = attrs.field(factory=dict)
    ipset: Mapping[Family, IpsetHandler | None] = attrs.field(factory=dict)
    nftables: NftablesHandler | None = None
    ipvs: IpvsHandler | None = None
    routing: RoutingHandler | None = None
    namespace: Namespace | None = attrs.field(default=None, repr=False)

    @classmethod
    def open(cls, netns: NetNs = None, families: Iterable[Family] = (Family.IPV4, Family.IPV6)) -> Self:
        """Open all handlers in a network namespace, given by name or path (None: the caller's own).

        A handler that the kernel refuses stays None; whoever needs it tries again and reports why. The caller stays
        in its namespace. Raises NamespaceError if there is no such namespace or no right to enter it, ValueError if
        `families` is empty or holds something else.
        """
        selected = tuple(sorted(set(families)))
        if not selected or not all(isinstance(family, Family) for family in selected):
            raise ValueError("families: expected Family.IPV4, Family.IPV6 or both")
        namespace = Namespace(netns)
        try:
            return cls(
                families=selected,
                iptables={f: _try(IptablesHandler.open, f, namespace=namespace) for f in selected},
                ipset={f: _try(IpsetHandler.open, f, namespace=namespace) for f in selected},
                nftables=_try(NftablesHandler.open, namespace=namespace),
                ipvs=_try(IpvsHandler.open, namespace=namespace),
                routing=_try(RoutingHandler.open, namespace=namespace),
                namespace=namespace,
            )
        except BaseException:
            namespace.close()
            raise

    def __iter__(self) -> Iterator[Handler[Any]]:
        """Yield the handlers that there are."""
        every = (*self.iptables.values(), *self.ipset.values(), self.nftables, self.ipvs, self.routing)
        return (handler for handler in every if handler is not None)

    def close(self) -> None:
        """Close all handlers; again is no error."""
        for handler in self:
            handler.close()
        if self.namespace is not None:
            self.namespace.close()


def _try(function: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except FirewallCleanupError:
        return None
