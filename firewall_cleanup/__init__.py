"""Remove exactly what Kubernetes node networking left in the kernel, and nothing else.

>>> from firewall_cleanup import Handlers, cleanup_network_policy
>>> with Handlers.open() as handlers:  # doctest: +SKIP
...     report = cleanup_network_policy(handlers)
...     report.raise_for_residue()
"""

from ._version import __version__
from .cli import add_cleanup_config, run_cleanup_config
from .collected import Collected
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
    "plan_from",
    "restore",
    "run_cleanup_config",
]
