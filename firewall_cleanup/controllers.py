"""One function per controller, and one for all of them. They need no API server and no configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypedDict, Unpack

from .components import Component
from .components.kube_router import KUBE_ROUTER
from .engine import Settings, run
from .handlers import Handlers
from .handlers.host import open_host
from .model import Controller, Family
from .report import CleanupReport

__all__ = [
    "COMPONENTS",
    "Options",
    "cleanup",
    "cleanup_all",
    "cleanup_network_policy",
    "cleanup_routing",
    "cleanup_service_proxy",
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
        stopped: asked between steps; the number of a signal ends the call early, which the report says.

    Returns:
        The report, also for whatever went wrong on the way: a part that could not be read or written is a gap, what
        could not be removed is residue, and everything else was done.

    Raises:
        ValueError: an argument is wrong; NamespaceError (a ValueError) if there is no such namespace.

    """
    chosen = frozenset(controllers)
    if not chosen or not all(isinstance(controller, Controller) for controller in chosen):
        raise ValueError("controllers: expected members of Controller, at least one")
    if not wait >= 0:
        raise ValueError(f"wait: expected seconds, 0 or more, not {wait!r}")
    if handlers is not None and netns is not None:
        raise ValueError("netns: the handlers know their namespace already")
    wanted = None if families is None else tuple(sorted(set(families)))
    if wanted is not None and (not wanted or not all(isinstance(family, Family) for family in wanted)):
        raise ValueError("families: expected members of Family, at least one")
    settings = Settings(dry_run=dry_run, wait=wait, remove_bridge=remove_bridge, stopped=stopped)
    place = None if netns is None else os.fspath(netns)
    with open_host(handlers, netns=place, families=wanted) as host:
        return run(host, _component(component), chosen, settings)


def _component(name: str) -> Component:
    try:
        return COMPONENTS[name]
    except KeyError:
        raise ValueError(f"component: {name!r} is not one of {', '.join(COMPONENTS)}") from None


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
