"""Remove exactly what Kubernetes node networking left in the kernel, and nothing else.

>>> from firewall_cleanup import Handlers, cleanup_network_policy
>>> with Handlers.open() as handlers:  # doctest: +SKIP
...     report = cleanup_network_policy(handlers)
...     report.raise_for_residue()
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .cli import add_cleanup_config, run_cleanup_config
from .controllers import (
    check,
    cleanup,
    cleanup_all,
    cleanup_network_policy,
    cleanup_routing,
    cleanup_service_proxy,
    collect,
    plan_from,
    restore,
)
from .errors import BackupError, BundleError, FirewallCleanupError, NamespaceError, ResidueError, RootError
from .handlers import Handlers, IpsetHandler, IptablesHandler, IpvsHandler, NftablesHandler, RoutingHandler
from .model import Backend, Controller, Family, FamilyState, Gap, Kind
from .report import BadLine, CleanupReport, Holder, Outcome, Status

if TYPE_CHECKING:
    from .collected import Collected
    from .hairpin import ensure_hairpin, undo_hairpin, watch_hairpin
    from .hairpin_report import HairpinOutcome, HairpinReport, HairpinStatus
    from .restore_report import Restored, RestoreOutcome, RestoreReport

__all__ = [
    "Backend",
    "BackupError",
    "BadLine",
    "BundleError",
    "CleanupReport",
    "Collected",
    "Controller",
    "Family",
    "FamilyState",
    "FirewallCleanupError",
    "Gap",
    "HairpinOutcome",
    "HairpinReport",
    "HairpinStatus",
    "Handlers",
    "Holder",
    "IpsetHandler",
    "IptablesHandler",
    "IpvsHandler",
    "Kind",
    "NamespaceError",
    "NftablesHandler",
    "Outcome",
    "ResidueError",
    "RestoreOutcome",
    "RestoreReport",
    "Restored",
    "RootError",
    "RoutingHandler",
    "Status",
    "__version__",
    "add_cleanup_config",
    "check",
    "cleanup",
    "cleanup_all",
    "cleanup_network_policy",
    "cleanup_routing",
    "cleanup_service_proxy",
    "collect",
    "ensure_hairpin",
    "plan_from",
    "restore",
    "run_cleanup_config",
    "undo_hairpin",
    "watch_hairpin",
]

# What a cleanup does not need is imported when it is asked for.
_LATE = {
    "Collected": "collected",
    "RestoreOutcome": "restore_report",
    "RestoreReport": "restore_report",
    "Restored": "restore_report",
    "HairpinOutcome": "hairpin_report",
    "HairpinReport": "hairpin_report",
    "HairpinStatus": "hairpin_report",
    "ensure_hairpin": "hairpin",
    "undo_hairpin": "hairpin",
    "watch_hairpin": "hairpin",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module(f".{_LATE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
