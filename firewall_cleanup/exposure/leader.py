"""Leader election by a Lease (coordination.k8s.io/v1), as client-go's: one instance works, the others wait."""

from __future__ import annotations

import datetime as dt
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable

import attrs

from ..errors import FirewallCleanupError
from .client import ApiError, Client, path_of
from .values import Manifest

__all__ = ["Leader", "unique_identity"]

_LOG = logging.getLogger(__name__)


def unique_identity() -> str:
    """Return a name for the Lease that no other instance has.

    Host names need not differ (a pod in the host's network has the node's), nor process numbers (1 in a container).
    """
    return f"{socket.gethostname()}_{uuid.uuid4()}"


@attrs.define
class Leader:
    """Holds the Lease, or tries to. Seconds are client-go's: 15 for the lease, 10 to renew it, 2 between tries.

    Another instance's lease is taken over when it was not renewed for its whole length *by this machine's clock*, so
    clocks need not agree, and a Lease that is older than the one known (its etcd was restored) is watched anew. Where
    the Lease is gone with its etcd, it is made again.
    """

    client: Client
    namespace: str
    name: str
    identity: str
    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0
    changed: Callable[[], None] = lambda: None
    _renewed: float = attrs.field(default=float("-inf"), init=False)
    _seen: tuple[object, float] | None = attrs.field(default=None, init=False)
    _was: bool = attrs.field(default=False, init=False)
    _said: str = attrs.field(default="", init=False)
    _stop: threading.Event = attrs.field(factory=threading.Event, init=False)
    _thread: threading.Thread | None = attrs.field(default=None, init=False)

    def held(self) -> bool:
        """Tell whether this instance leads now: it renewed the Lease within the renewal time."""
        return time.monotonic() < self._renewed + self.renew

    def start(self) -> threading.Thread:
        """Keep trying until `stop`, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="lease")
        self._thread.start()
        return self._thread

    def _run(self) -> None:
        while not self._stop.is_set():
            said = ""
            try:
                self._try()
            except FirewallCleanupError as error:
                # A conflict is another instance's success.
                said = "" if isinstance(error, ApiError) and error.code == 409 else str(error)
            except Exception as error:  # noqa: BLE001 - who tries no more never leads again, and nobody notices
                said = f"unexpected {type(error).__name__}: {error}"
                _LOG.debug("lease", exc_info=True)
            if said not in {"", self._said}:
                _LOG.info("the lease %s/%s: %s", self.namespace, self.name, said)
            self._said = said
            if self.held() != self._was:
                self._was = self.held()
                _LOG.info(
                    "%s the lease %s/%s", "leading: holds" if self._was else "not leading:", self.namespace, self.name
                )
                self.changed()
            self._stop.wait(self.retry)

    def stop(self) -> None:
        """Stop trying, and give the Lease up if it is held, so that another instance need not wait."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self.renew)  # a try under way would take the Lease again
        if not self.held() or (self._thread is not None and self._thread.is_alive()):
            return
        self._renewed = float("-inf")
        try:
            found = self.client.get(self._path())
            if found is not None and found["spec"].get("holderIdentity") == self.identity:
                found["spec"].update(holderIdentity="", leaseDurationSeconds=1, renewTime=_now())
                self.client.replace(self._path(), found)
        except FirewallCleanupError as error:
            _LOG.debug("the lease was not given up: %s", error)

    def _path(self) -> str:
        return path_of("coordination.k8s.io/v1", "leases", self.namespace, self.name)

    def _try(self) -> None:
        started = time.monotonic()
        found = self.client.get(self._path())
        if found is None:
            body: Manifest = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self.name, "namespace": self.namespace},
                "spec": self._spec({}),
            }
            self.client.create(path_of("coordination.k8s.io/v1", "leases", self.namespace), body)
        else:
            spec = found.get("spec") or {}
            if spec.get("holderIdentity") not in {self.identity, "", None} and not self._expired(found):
                self._renewed = float("-inf")
                return
            # A stale resource version makes this a conflict: somebody else was faster.
            found["spec"] = self._spec(spec)
            self.client.replace(self._path(), found)
        self._renewed = started

    def _expired(self, found: Manifest) -> bool:
        spec, now = found["spec"], time.monotonic()
        record = (spec.get("holderIdentity"), spec.get("renewTime"), found["metadata"].get("resourceVersion"))
        if self._seen is None or self._seen[0] != record:
            self._seen = (record, now)
        return now > self._seen[1] + float(spec.get("leaseDurationSeconds") or self.lease)

    def _spec(self, before: Manifest) -> Manifest:
        ours = before.get("holderIdentity") == self.identity
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, int(self.lease)),
            "acquireTime": before.get("acquireTime") if ours else _now(),
            "renewTime": _now(),
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if ours or not before else 1),
        }


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
