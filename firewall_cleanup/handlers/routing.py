"""Links, addresses, routes, policy rules and FOU ports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from ..model import Address, Family, FouPort, Link, PolicyRule, Route
from . import probe
from ._genl import FouConnection
from ._handler import Handler, NetNs, connect
from ._namespace import Namespace
from ._rtnl import RouteConnection

__all__ = ["RoutingHandler"]


class RoutingHandler(Handler[RouteConnection]):
    """Reads links, addresses, routes, policy rules and FOU ports of both families, and deletes them one by one.

    Nothing is loaded by opening or reading.
    """

    @classmethod
    def open(cls, netns: NetNs = None, *, namespace: Namespace | None = None) -> Self:
        """Open the handler in a namespace given by name or path (None: the caller's own).

        Raises NamespaceError, and KernelError if the kernel refuses.
        """
        place, connection, own = connect("rtnetlink", RouteConnection, netns, namespace)
        return cls(place, connection, own_namespace=own)

    @property
    def _routes(self) -> RouteConnection:
        assert self.connection is not None  # noqa: S101 - every kernel has rtnetlink
        return self.connection

    def links(self) -> tuple[Link, ...]:
        """Return all links. Raises KernelError."""
        return self._routes.links()

    def addresses(self, link: Link) -> tuple[Address, ...]:
        """Return the addresses of a link. Raises KernelError."""
        return self._routes.addresses(link)

    def policy_rules(self, family: Family) -> tuple[PolicyRule, ...]:
        """Return the policy rules of a family. Raises KernelError."""
        return self._routes.policy_rules(family)

    def routes(
        self, family: Family, selections: Iterable[tuple[int, int]], links: Iterable[Link]
    ) -> tuple[Route, ...]:
        """Return the routes of some tables, each given with a protocol number or 0 for all. Raises KernelError."""
        names = {link.index: link.name for link in links}
        return tuple(
            route for table, protocol in selections for route in self._routes.routes(family, table, protocol, names)
        )

    def fou_ports(self) -> tuple[FouPort, ...]:
        """Return the FOU ports of both families; none if the kernel has no FOU. Raises KernelError."""
        connection = self._fou()
        if connection is None:
            return ()
        try:
            return connection.ports()
        finally:
            connection.close()

    def _fou(self) -> FouConnection | None:
        return self.namespace.run(FouConnection.connect) if probe.is_loaded("fou") else None

    def delete(self, item: PolicyRule | Route | Link | Address | FouPort) -> None:
        """Delete one object. Raises KernelError."""
        if isinstance(item, PolicyRule):
            self._routes.delete_policy_rule(item)
        elif isinstance(item, Route):
            self._routes.delete_route(item)
        elif isinstance(item, Link):
            self._routes.delete_link(item)
        elif isinstance(item, Address):
            self._routes.delete_address(item)
        elif (connection := self._fou()) is not None:
            try:
                connection.delete(item)
            finally:
                connection.close()
