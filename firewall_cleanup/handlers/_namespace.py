"""Work in another network namespace while the caller stays in its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ..errors import NamespaceError, explain

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["Namespace"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_NAMED = Path("/run/netns")
_OWN = "/proc/thread-self/ns/net"


class Namespace:
    """A network namespace to work in: the one that the caller is in now (None), or one given by name or path.

    A namespace that is not the caller's is entered by a thread of its own that never leaves it, so no error, signal
    or thread can leave the caller in the wrong one. Sockets opened there stay there. The namespace is held open, so
    it stays the same one even if the caller moves on or the name is given to another. `close` ends all that.
    """

    def __init__(self, spec: str | os.PathLike[str] | None = None) -> None:
        """Open the namespace. Raises NamespaceError if there is none, or no right to enter it."""
        self._executor: ThreadPoolExecutor | None = None
        path = Path(_OWN)
        if spec is not None:
            name = os.fspath(spec)
            if not name:
                raise NamespaceError("network namespace: the name is empty")
            path = Path(name) if "/" in name else _NAMED / name
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _error(path, error) from error
        self.identity = _identity(os.fstat(self._descriptor))
        try:
            self.run(int)  # enter now: whether we may is part of opening
        except OSError as error:
            os.close(self._descriptor)
            raise _error(path, error) from error

    @property
    def is_callers(self) -> bool:
        """Whether the calling thread is in this namespace."""
        return _identity(Path(_OWN).stat()) == self.identity

    def fileno(self) -> int:
        """Return the descriptor that holds it open."""
        return self._descriptor

    def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a function inside the namespace and return what it returns."""
        if self._executor is None:
            if self.is_callers:
                return function(*args, **kwargs)
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - most runs stay where they are

            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="netns")
            try:
                self._executor.submit(_enter, self._descriptor).result()
            except BaseException:
                self._executor.shutdown()
                self._executor = None
                raise
        return self._executor.submit(function, *args, **kwargs).result()

    def close(self) -> None:
        """Let go of the namespace; again is no error."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._descriptor < 0


def _error(path: Path, error: OSError) -> NamespaceError:
    code = error.errno or 0
    return NamespaceError(f"network namespace {path}: {explain(code)}", code)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _enter(descriptor: int) -> None:
    from pyroute2 import netns  # noqa: PLC0415 - its import costs more than a whole run without a namespace

    netns.setns(descriptor, flags=0)
