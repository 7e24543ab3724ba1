"""What all handlers have in common: a connection in a network namespace, opened late and closed once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ..closing import Closing
from ..errors import FirewallCleanupError, KernelError
from ..model import Family
from ._namespace import Namespace

__all__ = ["FamilyHandler", "Handler", "NetNs", "connect"]

NetNs = str | os.PathLike[str] | None


class _Closable(Protocol):
    def close(self) -> None: ...


_C = TypeVar("_C", bound=_Closable)


class Handler(Closing, Generic[_C]):
    """A context manager over a connection, which is None where the kernel lacks the subsystem."""

    def __init__(self, namespace: Namespace, connection: _C | None, *, own_namespace: bool = False) -> None:
        self.connection = connection
        self.closed = False
        self.namespace = namespace
        self._own_namespace = own_namespace

    @property
    def identity(self) -> tuple[int, int]:
        """What tells the handler's network namespace from every other one."""
        return self.namespace.identity

    def close(self) -> None:
        """Close the handler; again is no error."""
        self.closed = True
        if self.connection is not None:
            self.connection.close()
        if self._own_namespace:
            self.namespace.close()


class FamilyHandler(Handler[_C]):
    """A handler of one address family."""

    def __init__(
        self, family: Family, namespace: Namespace, connection: _C | None, *, own_namespace: bool = False
    ) -> None:
        super().__init__(namespace, connection, own_namespace=own_namespace)
        self.family = family


def connect(
    what: str, factory: Callable[[], _C | None], netns: NetNs, namespace: Namespace | None
) -> tuple[Namespace, _C | None, bool]:
    """Return what a handler is made of: its namespace, its connection, and whether the namespace is its own.

    Raises NamespaceError, and KernelError if the kernel refuses.
    """
    own = namespace is None
    place = Namespace(netns) if namespace is None else namespace
    try:
        return place, place.run(factory), own
    except BaseException as error:
        if own:
            place.close()
        if isinstance(error, OSError) and not isinstance(error, FirewallCleanupError):
            raise KernelError(error.errno or 0, what) from error
        raise
