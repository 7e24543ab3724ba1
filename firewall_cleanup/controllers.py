"""One function per controller, and one for all of them. They need no API server and no configuration."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypedDict, Unpack

import attrs

from .components import Component
from .components.kube_router import KUBE_ROUTER
from .engine import Settings, run
from .handlers import Handlers
from .handlers.host import Host, open_host
from .model import Controller, Family
from .report import CleanupReport

if TYPE_CHECKING:
    from .collected import Collected
    from .restore_report import RestoreReport

__all__ = [
    "COMPONENTS",
    "Options",
    "check",
    "cleanup",
    "cleanup_all",
    "cleanup_network_policy",
    "cleanup_routing",
    "cleanup_service_proxy",
    "collect",
    "plan_from",
    "restore",
]

COMPONENTS = {component.name: component for component in (KUBE_ROUTER,)}


class Options(TypedDict, total=False):
    """The options that every cleanup function takes; `cleanup` says what they mean."""

    component: str
    families: Iterable[Family] | None
    netns: str | os.PathLike[str] | None
    dry_run: bool
    wait: float
    remove_bridge: bool
    backup: str | os.PathLike[str] | None
    undo_hairpin: bool
    wait_gone: float | None
    root: str | os.PathLike[str] | None
    stopped: Callable[[], int | None]


def cleanup(
    handlers: Handlers | None = None,
    *,
    controllers: Iterable[Controller] = tuple(Controller),
    component: str = KUBE_ROUTER.name,
    families: Iterable[Family] | None = None,
    netns: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    wait: float = 30.0,
    remove_bridge: bool = False,
    backup: str | os.PathLike[str] | None = None,
    undo_hairpin: bool = False,
    wait_gone: float | None = None,
    root: str | os.PathLike[str] | None = None,
    stopped: Callable[[], int | None] = lambda: None,
) -> CleanupReport:
    """Remove what some controllers of a component left in the kernel, and nothing else.

    Args:
        handlers: open handlers. None, or a handler in them that is missing, None or closed: opened for this call.
        controllers: whose state to remove; that of the others keeps working.
        component: the software that made the state; `kube-router`.
        families: the families to look at; by default those of the handlers, which is both.
        netns: a network namespace by name or path, if no handlers are given; by default the caller's own.
        dry_run: plan and report, change nothing, take no lock.
        wait: seconds to wait for the xtables lock, for the whole call.
        remove_bridge: remove the pod bridge even if links (of pods) are attached to it; it is kept and reported else.
        backup: a directory for a backup of what is removed, for `restore`. It gets a fresh folder before the first
            change, if there is one to make; if that cannot be written, nothing is changed and a gap says why.
        undo_hairpin: with the service proxy: also turn off the hairpin mode of ports where `ensure_hairpin` turned it
            on, at the end.
        wait_gone: seconds to wait for running processes of the component to end. If one is still there after that,
            nothing is changed and a gap names it. None: they are named in `writers` of the report, and no obstacle.
        root: where the root of the node is mounted, to look at its processes and its files; by default `/`.
        stopped: asked between steps; the number of a signal ends the call early, which the report says.

    Returns:
        The report, also for whatever went wrong on the way: a part that could not be read or written is a gap, what
        could not be removed is residue, and everything else was done.

    Raises:
        ValueError: an argument is wrong; NamespaceError (a ValueError) if there is no such namespace, RootError (a
            ValueError) if there is no such root.

    """
    chosen = _chosen_controllers(controllers)
    if not wait >= 0:
        raise ValueError(f"wait: expected seconds, 0 or more, not {wait!r}")
    if handlers is not None and netns is not None:
        raise ValueError("netns: the handlers know their namespace already")
    wanted = _chosen_families(families)
    if backup is not None and dry_run:
        raise ValueError("backup: a dry run removes nothing")
    if undo_hairpin and Controller.SERVICE_PROXY not in chosen:
        raise ValueError("undo_hairpin: it is the service proxy's, which is not selected")
    if wait_gone is not None and (dry_run or not 0 <= wait_gone < math.inf):
        raise ValueError("wait_gone: a dry run waits for nobody" if dry_run else f"wait_gone: not {wait_gone!r}")
    software = _component(component)
    settings = Settings(dry_run=dry_run, wait=wait, remove_bridge=remove_bridge, wait_gone=wait_gone, stopped=stopped)
    place, folder = (None if path is None else os.fspath(path) for path in (netns, root))
    with open_host(handlers, netns=place, families=wanted, root=folder) as host:
        if backup is None:
            report = run(host, software, chosen, settings)
        else:
            report = _with_backup(host, software, chosen, settings, backup)
        if undo_hairpin and report.interrupted is None:
            from .hairpin import undo_in  # noqa: PLC0415 - most runs do not ask for it

            hairpin = undo_in(host.namespace, dry_run=dry_run)
            report = attrs.evolve(report, hairpin=hairpin, changed=report.changed or hairpin.changed)
        return report


def _with_backup(
    host: Host,
    component: Component,
    controllers: frozenset[Controller],
    settings: Settings,
    directory: str | os.PathLike[str],
) -> CleanupReport:
    from .backup import Backup  # noqa: PLC0415 - most runs keep nothing

    saver = Backup(directory, host, component=component.name)
    report = run(host, component, controllers, attrs.evolve(settings, saver=saver))
    return attrs.evolve(report, backup=None if saver.run is None else str(saver.run))


def check(
    handlers: Handlers | None = None,
    *,
    controllers: Iterable[Controller] = tuple(Controller),
    component: str = KUBE_ROUTER.name,
    families: Iterable[Family] | None = None,
    netns: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    stopped: Callable[[], int | None] = lambda: None,
) -> CleanupReport:
    """Tell whether there is anything that `cleanup` would have to remove; change nothing, take no lock.

    The report is that of a dry run, but its `exit_code` is 0 only if it is `clean`: nothing is there to remove of
    what was selected, and nothing was left unread. `cleanup` says what the arguments mean.
    """
    report = cleanup(
        handlers,
        controllers=controllers,
        component=component,
        families=families,
        netns=netns,
        dry_run=True,
        root=root,
        stopped=stopped,
    )
    return attrs.evolve(report, check=True)


def _chosen_controllers(controllers: Iterable[Controller]) -> frozenset[Controller]:
    """Return them as a set. Raises ValueError if there is none, or something else among them."""
    chosen = frozenset(controllers)
    if not chosen or not all(isinstance(controller, Controller) for controller in chosen):
        raise ValueError("controllers: expected members of Controller, at least one")
    return chosen


def _chosen_families(families: Iterable[Family] | None) -> tuple[Family, ...] | None:
    """Return them in order, None for no choice. Raises ValueError if there is none, or something else among them."""
    wanted = None if families is None else set(families)
    if wanted is not None and (not wanted or not all(isinstance(family, Family) for family in wanted)):
        raise ValueError("families: expected members of Family, at least one")
    return None if wanted is None else tuple(sorted(wanted))


def _component(name: str) -> Component:
    """Return a component by its name. Raises ValueError if there is none."""
    try:
        return COMPONENTS[name]
    except KeyError:
        raise ValueError(f"component: {name!r} is not one of {', '.join(COMPONENTS)}") from None


def restore(
    directory: str | os.PathLike[str],
    *,
    netns: str | os.PathLike[str] | None = None,
    handlers: Handlers | None = None,
    wait: float = 30.0,
    stopped: Callable[[], int | None] = lambda: None,
) -> RestoreReport:
    """Put back what cleanups removed and wrote to a backup.

    What is there already is left alone; a chain that is empty, a set or a service that has a part of what it had, is
    filled. Of several cleanups the newest counts for each object. If an object is there but is another one, nothing
    is changed.

    Args:
        directory: what `cleanup(backup=…)` got, or the folder of one run in it.
        netns: a network namespace by name or path, if no handlers are given; by default the caller's own.
        handlers: open handlers; what is missing is opened for this call.
        wait: seconds to wait for the xtables lock, for the whole call.
        stopped: asked between steps; the number of a signal ends the call early. The next one finishes it.

    Returns:
        The report, also if something could not be put back: one outcome for each object.

    Raises:
        BackupError (a ValueError): there is no backup there, or it cannot be read or understood.
        ValueError: another argument is wrong; NamespaceError (a ValueError) if there is no such namespace.

    """
    from .restoring import put_back  # noqa: PLC0415 - a cleanup needs none of it

    return put_back(directory, netns=netns, handlers=handlers, wait=wait, stopped=stopped)


def collect(
    directory: str | os.PathLike[str],
    *,
    netns: str | os.PathLike[str] | None = None,
    members: bool = True,
    stopped: Callable[[], int | None] = lambda: None,
) -> Collected:
    """Write everything that a plan needs into files of a folder; change nothing on the node, take no lock.

    The files have the names and the forms of what the standard tools print, and need none of them. `plan_from` reads
    them anywhere. What only people want, such as parts of others' rules that are not decoded, is not in them.

    Args:
        directory: the folder, which is made if it is missing. Files get mode 0600, for they name pods and services.
        netns: a network namespace by name or path; by default the caller's own.
        members: write the members of all sets, if the command ipset is there. Without, only those of sets that may
            prove something.
        stopped: asked before something is written; the number of a signal ends the call.

    Returns:
        What was written. A part that could not be read is a gap, there and in the files.

    Raises:
        BundleError (a ValueError): the folder cannot be written, or one of the files is there; nothing was written.
        NamespaceError (a ValueError): there is no such network namespace, or no right to enter it.

    """
    from .bundles import collect_node  # noqa: PLC0415 - a cleanup needs none of it

    return collect_node(directory, COMPONENTS.values(), netns=netns, members=members, stopped=stopped)


def plan_from(
    directory: str | os.PathLike[str],
    *,
    controllers: Iterable[Controller] = tuple(Controller),
    component: str = KUBE_ROUTER.name,
    families: Iterable[Family] | None = None,
    remove_bridge: bool = False,
    check: bool = False,
    stopped: Callable[[], int | None] = lambda: None,
) -> CleanupReport:
    """Plan a cleanup of the node that the files of a folder describe, without a kernel and without rights.

    The files are those of `collect`, or of the standard tools under the same names. The report is that of
    `cleanup(dry_run=True)` on the node. What is missing, or cannot be read, is a gap; lines that are not understood
    count as foreign and are in `bad_lines`.

    Args:
        directory: the folder.
        controllers: whose state to plan for.
        component: the software that made the state; `kube-router`.
        families: the families to look at, by default both.
        remove_bridge: plan to remove the pod bridge even if links are attached to it.
        check: report as `check` does: clean only if there is nothing to remove.
        stopped: asked between steps; the number of a signal ends the call early, which the report says.

    Raises:
        BundleError (a ValueError): there is no such folder, it cannot be listed, or none of the files is in it.
        ValueError: another argument is wrong.

    """
    from .bundles import plan_folder  # noqa: PLC0415 - a cleanup needs none of it

    chosen = _chosen_controllers(controllers)
    wanted = _chosen_families(families)
    settings = Settings(dry_run=True, remove_bridge=remove_bridge, stopped=stopped)
    return attrs.evolve(plan_folder(directory, _component(component), chosen, settings, families=wanted), check=check)


def cleanup_service_proxy(handlers: Handlers | None = None, **options: Unpack[Options]) -> CleanupReport:
    """Remove what kube-router's service proxy left, in both families; see `cleanup` for options and result."""
    return cleanup(handlers, controllers=(Controller.SERVICE_PROXY,), **options)


def cleanup_network_policy(handlers: Handlers | None = None, **options: Unpack[Options]) -> CleanupReport:
    """Remove what kube-router's network policy controller left, in both families, k3s' and RKE2's copy included.

    See `cleanup` for options and result.
    """
    return cleanup(handlers, controllers=(Controller.NETWORK_POLICY,), **options)


def cleanup_routing(handlers: Handlers | None = None, **options: Unpack[Options]) -> CleanupReport:
    """Remove what kube-router's routing controller left, in both families; see `cleanup` for options and result."""
    return cleanup(handlers, controllers=(Controller.ROUTING,), **options)


def cleanup_all(handlers: Handlers | None = None, **options: Unpack[Options]) -> CleanupReport:
    """Remove what all three controllers of kube-router left, in both families, in one plan over one snapshot.

    See `cleanup` for options and result.
    """
    return cleanup(handlers, **options)
