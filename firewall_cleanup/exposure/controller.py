"""The controller: level-triggered, without a cache.

A pass reads everything anew and makes it what it should be. Watches only say that a pass is due; each starts at the
newest state and is never resumed, so no resource version is kept that another etcd could make meaningless. Whatever a
watch misses, the next pass finds: one is made at the latest after `resync` seconds, and whenever a watch opens again.
Nothing is removed because a list lacks something: only because an exposure that is there asks for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs

from ..errors import FirewallCleanupError
from .capabilities import RESOURCES, Apis, CiliumVersion
from .client import ApiError, Client, NotLeading, path_of
from .fields import ManifestError
from .parsing import KIND, can_have_objects, parse
from .reconcile import Reconciliation, Removal, is_passing, reconcile, take_down
from .status import FINALIZER, adopt, exposure_path, is_selected, release, write_status
from .values import CONTROL_PLANE, MANAGER, Manifest, owner_labels

__all__ = ["ControllerSettings", "ExposureController"]

_LOG = logging.getLogger(__name__)
_SOON = 2.0
"""Seconds to the next try of what may pass by itself."""
_SETTLE = 0.1
"""Seconds to wait for more events before a pass: changes come in groups."""


@attrs.frozen
class ControllerSettings:
    """What a controller works on. `resync` is the time between two passes without an event, in seconds."""

    namespace: str = "kube-system"
    cilium_namespace: str = "kube-system"
    class_name: str = "shoot"
    cilium: CiliumVersion | None = None
    resync: float = 30.0


@attrs.define
class ExposureController:
    """Passes over all exposures of a namespace, while `leads` says yes."""

    client: Client
    settings: ControllerSettings
    leads: Callable[[], bool] = lambda: True
    _due: threading.Event = attrs.field(factory=threading.Event, init=False)
    _stop: threading.Event = attrs.field(factory=threading.Event, init=False)
    _beat: float = attrs.field(factory=time.monotonic, init=False)
    _passed: float | None = attrs.field(default=None, init=False)
    _trouble: str | None = attrs.field(default=None, init=False)
    _said: dict[str, str] = attrs.field(factory=dict, init=False)
    _refused: dict[str, str] = attrs.field(factory=dict, init=False)
    _refused_before: dict[str, str] = attrs.field(factory=dict, init=False)
    threads: list[threading.Thread] = attrs.field(factory=list, init=False)
    """Those that it cannot do without."""

    def wake(self) -> None:
        """Make a pass soon."""
        self._due.set()

    def stop(self) -> None:
        """End `run` after the pass that is under way."""
        self._stop.set()
        self._due.set()

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Tell whether the loop turns, and how it is. An API server that is away is no reason to be started anew."""
        quiet = time.monotonic() - self._beat
        since = None if self._passed is None else round(time.monotonic() - self._passed, 1)
        dead = [each.name for each in self.threads if not each.is_alive() and not self._stop.is_set()]
        trouble = f"threads have ended: {', '.join(dead)}" if dead else self._trouble
        told = {"leading": self.leads(), "seconds since last pass": since, "trouble": trouble}
        return quiet < self.settings.resync + 120 and not dead, told

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Tell whether it can do its work: it leads and the last pass went well, or it waits for its turn."""
        return not self.leads() or (self._passed is not None and self._trouble is None), self.health()[1]

    def run(self) -> None:
        """Work until `stop`."""
        for path, labels in self._watched():
            thread = threading.Thread(target=self._watch, args=(path, labels), daemon=True, name=path)
            thread.start()
            self.threads.append(thread)
        delay = 0.0
        failures = 0
        while not self._stop.is_set():
            self._beat = time.monotonic()
            # After a refusal events do not count for a while: one is what we have just written into the status.
            if self._refused:
                self._stop.wait(min(delay, _SOON))
                delay = max(0.0, delay - _SOON)
            self._due.wait(delay)
            if self._stop.wait(_SETTLE):
                break
            self._due.clear()
            if not self.leads():
                delay = self.settings.resync
                continue
            try:
                soon = self.run_pass()
            except NotLeading:
                delay = self.settings.resync
            except Exception as error:  # noqa: BLE001 - none ends the controller; it is told, and it is not ready
                failures += 1
                delay = min(0.5 * 2 ** min(failures, 6), self.settings.resync)
                self._trouble = _words(error)
                self._note("", f"no pass: {self._trouble}", error, again=f"tried again in {delay:.1f} s")
            else:
                self._note("", "")
                failures = 0
                delay = min(soon, self.settings.resync)

    def _watched(self) -> list[tuple[str, dict[str, str]]]:
        """The collections whose changes call for a pass: ours, the exposures, the nodes."""
        ours = {"app.kubernetes.io/managed-by": MANAGER}
        found: list[tuple[str, dict[str, str]]] = [
            (exposure_path(self.settings.namespace), {}),
            (path_of("v1", "nodes"), {CONTROL_PLANE: ""}),
        ]
        for kind, resource in RESOURCES.items():
            namespace = self.settings.cilium_namespace if kind == "CiliumNodeConfig" else self.settings.namespace
            where = namespace if resource.namespaced else None
            found += [(path_of(api, resource.plural, where), ours) for api in resource.versions]
        return found

    def _watch(self, path: str, labels: dict[str, str]) -> None:
        """Call for a pass at every change, until the end of the process."""
        seconds = max(1, int(self.settings.resync))
        seen: dict[str, str] = {}
        ended_well = False
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                for event in self.client.watch(path, labels, seconds):
                    # What an open watch tells first is known, unless the one before it broke: then nothing is.
                    if (event.type == "OPEN" and not ended_well) or seen.get(event.uid, "") != event.version:
                        self._due.set()
                    if event.type == "DELETED":
                        self._due.set()
                        seen.pop(event.uid, None)
                    elif event.uid:
                        seen[event.uid] = event.version
                ended_well = time.monotonic() - began > seconds - 0.5
                pause = 0.0 if ended_well else 1.0
            except Exception as error:  # noqa: BLE001 - a watch that has ended would never be missed
                ended_well = False
                away = isinstance(error, FirewallCleanupError) and not isinstance(error, ApiError)
                silent = away or (isinstance(error, ApiError) and error.code in {404, 410})
                if not silent and not self._stop.is_set():
                    self._note(path, f"watch {path}: {_words(error)}", error)
                # What is not served now may be later: a CRD comes when Cilium does.
                pause = 1.0 if away else min(seconds, 10.0)
            self._stop.wait(pause)

    def run_pass(self) -> float:
        """Make one pass; return in how many seconds the next is due. Raises what makes a pass impossible."""
        self.client.check_ready()
        apis = attrs.evolve(
            Apis.of_discovery(self.client.served(), self.settings.cilium), namespace=self.settings.cilium_namespace
        )
        collection = exposure_path(self.settings.namespace)
        if self.client.get(collection) is None:
            self._trouble = f"the API server does not serve {KIND}: there is nothing to do until it does"
            self._note("exposures", self._trouble)
            return self.settings.resync
        found = self.client.list(collection)
        nodes = self.client.list(path_of("v1", "nodes"), {CONTROL_PLANE: ""})
        soon = self.settings.resync
        self._refused_before, self._refused = self._refused, {}
        for exposure in found:
            if not is_selected(exposure, self.settings.class_name):
                continue
            try:
                soon = min(soon, self._handle(exposure, apis, nodes))
            except Exception as error:  # noqa: BLE001 - a fault of ours; other exposures do not suffer from it
                soon = min(soon, self._report(exposure, _what_failed(error), error))
        lasting = [f"{key}: {said}" for key, said in self._refused.items() if key in self._refused_before]
        self._trouble, self._passed = "; ".join(lasting) or None, time.monotonic()
        self._note("exposures", "")
        return soon

    def _report(self, found: Manifest, outcome: Reconciliation, error: Exception | None = None) -> float:
        """Write what keeps an exposure from being handled into its status; return when the next pass is due.

        What may pass by itself, as a conflict with somebody who was faster, is told when it comes twice in a row.
        """
        key = _key(found)
        self._refused[key] = outcome.description
        if outcome.passing and key not in self._refused_before:
            return _SOON
        self._note(key, f"{outcome.state}: {outcome.description}", error)
        with suppress(ApiError):  # it may be this that is refused
            write_status(self.client, found, outcome)
        return 5.0

    def _handle(self, found: Manifest, apis: Apis, nodes: list[Manifest]) -> float:
        if found["metadata"].get("deletionTimestamp"):
            return self._delete(found, apis)
        adopted = adopt(self.client, found)
        if adopted is None:
            return self.settings.resync
        status = adopted.get("status") or {}
        asked = adopted is not found  # the finalizer was not there, or an operation was asked for
        try:
            exposure = parse(adopted)
        except ManifestError as error:
            outcome = Reconciliation("Error", str(error), codes=("ERR_CONFIGURATION_PROBLEM",))
        else:
            if asked or status.get("observedGeneration") != adopted["metadata"].get("generation"):
                with suppress(ApiError):  # what cannot be told must be done all the same
                    adopted = write_status(
                        self.client, adopted, Reconciliation("Processing", "the objects are being applied")
                    )
            try:
                outcome = reconcile(self.client, exposure, apis, nodes)
            except Exception as error:  # noqa: BLE001
                return self._report(adopted, _what_failed(error), error)
        if outcome.passing:
            return self._report(adopted, outcome)
        write_status(self.client, adopted, outcome)
        self._note(_key(found), f"{outcome.state}: {outcome.description}")
        for warning in outcome.warnings:
            self._note(f"{_key(found)} {warning}", f"warning: {warning}")
        return self.settings.resync if outcome.state == "Succeeded" else 5.0

    def _delete(self, found: Manifest, apis: Apis) -> float:
        if FINALIZER not in (found["metadata"].get("finalizers") or ()):
            return self.settings.resync
        metadata = found["metadata"]
        if can_have_objects(metadata["name"]):
            labels = owner_labels(metadata["name"], metadata["namespace"])
            removal = take_down(self.client, apis, labels, metadata["namespace"])
        else:
            removal = Removal((), (), ())
        if removal.gone:
            release(self.client, found)
            kept = f": {', '.join(removal.kept)}" if removal.kept else ""
            self._note(_key(found), f"deleted: {removal.left}{kept}")
            return self.settings.resync
        said = f"waiting for {', '.join(removal.waiting)}"
        write_status(self.client, found, Reconciliation("Processing", said))
        self._note(_key(found), f"deletion: {said}")
        return 1.0

    def _note(self, key: str, text: str, error: Exception | None = None, again: str = "") -> None:
        """Log what is new of a thing, once; an error that nobody thought of whole."""
        if self._said.get(key, "") == text:
            return
        self._said[key] = text
        if text:
            whole = None if isinstance(error, FirewallCleanupError) else error
            _LOG.info("%s%s%s", f"{key}: " if key else "", text, f"; {again}" if again else "", exc_info=whole)
        else:
            _LOG.info("%s", f"{key} are served" if key else "the API server answers again")


def _what_failed(error: Exception) -> Reconciliation:
    """Return what keeps one exposure from being handled; raises what makes the whole pass impossible."""
    if not isinstance(error, ApiError):
        if isinstance(error, FirewallCleanupError):
            raise error
        return Reconciliation("Error", _words(error))
    if is_passing(error):
        return Reconciliation("Processing", f"the API server refuses for now: {error}", passing=True)
    return Reconciliation("Error", str(error))


def _words(error: Exception) -> str:
    """Return what an error says, or of one that nobody thought of, what it is."""
    if isinstance(error, FirewallCleanupError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}"


def _key(found: Manifest) -> str:
    return f"{found['metadata']['namespace']}/{found['metadata']['name']}"
