"""Errors, each with a class to catch and, where the kernel spoke, an errno; text is for people."""

from __future__ import annotations

import errno as _errno
import os
from collections.abc import Mapping

__all__ = [
    "BackupError",
    "BatchRefused",
    "BundleError",
    "DumpError",
    "FirewallCleanupError",
    "KernelError",
    "LockBusy",
    "NamespaceError",
    "ResidueError",
    "RootError",
    "StaleGeneration",
    "ToolError",
]


class FirewallCleanupError(Exception):
    """Base of every error that this package raises on purpose."""


class NamespaceError(FirewallCleanupError, ValueError):
    """The network namespace that was asked for does not exist or cannot be entered. `errno` says which."""

    def __init__(self, message: str, code: int = _errno.ENOENT) -> None:
        super().__init__(message)
        self.errno = code


class RootError(FirewallCleanupError, ValueError):
    """The folder that was given as another root is none, or may not be entered."""


class BackupError(FirewallCleanupError, ValueError):
    """A backup cannot be written (nothing is changed then), or there is none, or it cannot be understood."""


class BundleError(FirewallCleanupError, ValueError):
    """A folder of dump files cannot be read at all, or not be written; what is in the way is said."""


class DumpError(FirewallCleanupError, ValueError):
    """A dump file could not be understood. `line` is its 1-based line number.

    `whole` tells that more than a line is unknown: the file, or what it has of one `table`.
    """

    def __init__(self, reason: str, *, source: str, line: int, whole: bool = False, table: str | None = None) -> None:
        super().__init__(f"{source}:{line}: {reason}")
        self.reason, self.source, self.line = reason, source, line
        self.whole, self.table = whole, table


class KernelError(FirewallCleanupError, OSError):
    """The kernel refused a request. `errno` is its code."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(code, f"{what}: {explain(code)}")


class LockBusy(FirewallCleanupError):
    """Another process held the xtables lock for the whole time that we were allowed to wait."""


class StaleGeneration(FirewallCleanupError):
    """Somebody changed the nf_tables ruleset after it was read; nothing was applied."""


class ToolError(FirewallCleanupError):
    """A command that is needed is not installed, or failed; the text says what it said."""


class BatchRefused(FirewallCleanupError):
    """The kernel refused a change as a whole; nothing was applied.

    `failures` maps what was refused, `(table, kind, name or handle)`, to its errno.
    """

    def __init__(self, failures: Mapping[tuple[object, str, object], int]) -> None:
        codes = sorted({_errno.errorcode.get(code, str(code)) for code in failures.values()})
        super().__init__(f"{len(failures)} operations refused: {', '.join(codes)}")
        self.failures = failures


class ResidueError(FirewallCleanupError):
    """Owned state is left, or a part could not be read. `report` is the `CleanupReport`."""

    def __init__(self, report: object, summary: str) -> None:
        super().__init__(summary)
        self.report = report


def explain(code: int) -> str:
    """Return what an errno means for the person who reads it, with what to do where there is something."""
    if code in {_errno.EPERM, _errno.EACCES}:
        return f"{os.strerror(code)} (needs CAP_NET_ADMIN in this network namespace: run as root)"
    return os.strerror(code)
