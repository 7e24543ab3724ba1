"""Talking to an API server: the only importer of the client library. What is read is always the newest.

lightkube knows kubeconfigs, service accounts, certificates and tokens. Its requests are not used: a watch of it
resumes from the last version that it saw, and after the etcd below the API server was swapped such a watch is silent
for ever. Nothing here takes or keeps a resource version to read from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import httpx2
from lightkube import KubeConfig, SingleConfig
from lightkube.config import client_adapter
from lightkube.exceptions import ConfigError

from ..errors import FirewallCleanupError
from .capabilities import RESOURCES
from .values import MANAGER, Manifest

__all__ = [
    "ApiError",
    "Client",
    "ClusterConfigError",
    "NotLeading",
    "NotReady",
    "Unreachable",
    "WatchEvent",
    "path_of",
]

Labels = Mapping[str, str]


class ClusterConfigError(FirewallCleanupError, ValueError):
    """There is no usable kubeconfig or service account."""


class Unreachable(FirewallCleanupError, OSError):
    """The API server does not answer: it is down, or the connection broke; nothing is known of what it did."""


class NotLeading(FirewallCleanupError):
    """The lease was lost, so nothing may be written."""


class NotReady(FirewallCleanupError):
    """The API server answers, but has not finished its start: what it does not list may be there all the same."""


class ApiError(FirewallCleanupError):
    """The API server refused a request: `code` is the HTTP status, `reason` its word (`Conflict`, `Forbidden`)."""

    def __init__(self, code: int, reason: str, message: str, causes: tuple[Mapping[str, Any], ...] = ()) -> None:
        super().__init__(message)
        self.code, self.reason, self.causes = code, reason, causes

    @property
    def managers(self) -> tuple[str, ...]:
        """What other field managers own, if that is why an apply was refused: the server's words for each field."""
        found = (each for each in self.causes if each.get("reason") == "FieldManagerConflict")
        return tuple(f"{each.get('message')} ({each.get('field')})" for each in found)


@attrs.frozen
class WatchEvent:
    """What a watch tells: `OPEN`, `ADDED`, `MODIFIED` or `DELETED`, and of what."""

    type: str
    uid: str = ""
    version: str = ""


def path_of(api_version: str, plural: str, namespace: str | None = None, name: str | None = None) -> str:
    """Return the path of a collection or of an object."""
    parts = ["/api" if "/" not in api_version else "/apis", api_version]
    if namespace is not None:
        parts += ["namespaces", namespace]
    parts += [plural, *([quote(name, safe="")] if name is not None else [])]
    return "/".join(parts)


@attrs.define
class Client:
    """A connection to one API server.

    Methods raise Unreachable, ApiError (a status of 404 is None or an empty list where that is said), and NotLeading
    if `may_write` says no to a request that changes something.
    """

    _http: Any
    server: str
    may_write: Callable[[], bool] = lambda: True

    @classmethod
    def open(
        cls, kubeconfig: str | Path | None = None, *, context: str | None = None, timeout: float = 10.0
    ) -> Client:
        """Connect by a kubeconfig, or (None) by the service account of the pod.

        `timeout` is how long a request may take, in seconds. Raises ClusterConfigError if neither is there or it
        cannot be used.
        """
        try:
            if kubeconfig is None:
                found = KubeConfig.from_service_account().get()
            else:
                found = KubeConfig.from_file(kubeconfig).get(context)
            config = _present(found)
            http = client_adapter.Client(config, client_adapter.ConnectionParams(timeout=httpx2.Timeout(timeout)))
        except ConfigError as error:
            if kubeconfig is None:
                raise ClusterConfigError(
                    f"this is no pod with a service account ({error}): give --kubeconfig FILE"
                ) from None
            raise ClusterConfigError(f"kubeconfig {kubeconfig}: {error}") from None
        except KeyError as error:
            where = "the environment" if kubeconfig is None else f"kubeconfig {kubeconfig}"
            raise ClusterConfigError(f"{where}: {error} is missing") from None
        except Exception as error:  # noqa: BLE001 - a parser's, a certificate's, a decoder's
            said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            raise ClusterConfigError(f"kubeconfig {kubeconfig}: it cannot be used: {said}") from None
        return cls(http, config.cluster.server)

    def close(self) -> None:
        """Close all connections; a watch of another thread ends."""
        self._http.close()

    def _request(
        self, method: str, path: str, *, body: Any = None, kind: str = "application/json", **params: Any
    ) -> Any:
        if method != "GET" and not self.may_write():
            raise NotLeading("another instance leads; nothing more is written")
        content = None if body is None else json.dumps(body)
        headers = {"Accept": "application/json", **({"Content-Type": kind} if body is not None else {})}
        with self._errors():
            response = self._http.request(method, path, content=content, headers=headers, params=params)
            return _answer(response.status_code, response.text)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the library's errors into ours, and those of what gives the token: it is run here."""
        try:
            yield
        except FirewallCleanupError:
            raise
        except (ConfigError, httpx2.InvalidURL) as error:
            raise ClusterConfigError(f"{self.server}: {_said(error)}") from None
        # OSError: a program or a file of a token, which is away for a moment while it is replaced
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            raise Unreachable(f"{self.server}: {_said(error)}") from None
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            said = f"{type(error).__name__}: {_said(error)}"
            raise ClusterConfigError(
                f"{self.server}: what the kubeconfig names for its user gives no token ({said})"
            ) from None

    def get(self, path: str) -> Manifest | None:
        """Return an object as it is now, or None if there is none."""
        try:
            found: Manifest = self._request("GET", path)
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        return found

    def list(self, path: str, labels: Labels | None = None) -> list[Manifest]:
        """Return all objects of a collection as they are now; none if the API server does not serve the kind.

        No resource version is asked for: that is the newest state, whatever was seen before.
        """
        params: dict[str, Any] = {"labelSelector": _selector(labels)} if labels else {}
        found: list[Manifest] = []
        while True:
            try:
                answer = self._request("GET", path, limit=500, **params)
            except ApiError as error:
                if error.code == 404:
                    return []
                if error.code == 410 and "continue" in params:  # the pages were too old: from the start
                    del params["continue"]
                    found.clear()
                    continue
                raise
            kind, version = answer.get("kind", "").removesuffix("List"), answer.get("apiVersion")
            found += [{"apiVersion": version, "kind": kind, **item} for item in answer.get("items") or ()]
            if not (more := answer.get("metadata", {}).get("continue")):
                return found
            params["continue"] = more

    def apply(self, path: str, manifest: Manifest) -> Manifest:
        """Apply an object under our field manager; what another manager owns is a conflict (ApiError, 409)."""
        answer: Manifest = self._request(
            "PATCH", path, body=manifest, kind="application/apply-patch+yaml", fieldManager=MANAGER, force="false"
        )
        return answer

    def patch(self, path: str, change: Manifest) -> Manifest | None:
        """Merge a change into an object, None if there is none; with a `resourceVersion` only if it is unchanged."""
        try:
            answer: Manifest = self._request(
                "PATCH", path, body=change, kind="application/merge-patch+json", fieldManager=MANAGER
            )
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        return answer

    def create(self, path: str, manifest: Manifest) -> Manifest:
        """Make an object (ApiError, 409, if it is there already)."""
        answer: Manifest = self._request("POST", path, body=manifest, fieldManager=MANAGER)
        return answer

    def replace(self, path: str, manifest: Manifest) -> Manifest:
        """Replace an object; with a `resourceVersion` only if it is unchanged."""
        answer: Manifest = self._request("PUT", path, body=manifest, fieldManager=MANAGER)
        return answer

    def delete(self, path: str, uid: str) -> bool:
        """Ask for an object's deletion, of just the one that was looked at; False if that one is not there."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            self._request("DELETE", path, body=body)
        except ApiError as error:
            if error.code in {404, 409}:
                return False
            raise
        return True

    def served(self) -> dict[str, set[str]]:
        """Return the kinds that are served, by API version, of all versions that an exposure's objects can have."""
        found: dict[str, set[str]] = {}
        for api in dict.fromkeys(api for each in RESOURCES.values() for api in each.versions):
            resources = self.get(f"/api/{api}" if "/" not in api else f"/apis/{api}")
            found[api] = {each["kind"] for each in (resources or {}).get("resources", ())}
        return found

    def check_ready(self) -> None:
        """Raise NotReady unless the API server has finished its start.

        Measured after a start on another etcd: /readyz says ok a moment before the server has made even its own
        Service `kubernetes`. Until both are there, a list that is empty says nothing.
        """
        with self._errors():
            response = self._http.get("/readyz")
        if response.status_code in {401, 403}:
            _answer(response.status_code, response.text)
        if response.status_code != 200:
            raise NotReady(f"{self.server} is not ready: /readyz gives {response.status_code}")
        if self.get(path_of("v1", "services", "default", "kubernetes")) is None:
            raise NotReady(f"{self.server} is not ready: it has not made its Service default/kubernetes yet")

    def watch(self, path: str, labels: Labels | None, seconds: int) -> Iterator[WatchEvent]:
        """Yield the events of a collection for some seconds; first an `OPEN`, then an `ADDED` for each object there.

        It starts at the newest state and is never resumed. Raises Unreachable or ApiError if it cannot start or
        breaks; an event of type ERROR ends it.
        """
        params = {"watch": "true", "timeoutSeconds": str(seconds)}
        if labels:
            params["labelSelector"] = _selector(labels)
        # The server ends it after `seconds`; one that has died without a word is noticed a little later.
        timeout = httpx2.Timeout(10.0, read=seconds + 10.0)
        with self._errors(), self._http.stream("GET", path, params=params, timeout=timeout) as response:
            if response.status_code != 200:
                _answer(response.status_code, response.read().decode(errors="replace"))
            yield WatchEvent("OPEN")
            for line in response.iter_lines():
                found = _event(line)
                if found is None:
                    return
                yield found


def _event(line: str) -> WatchEvent | None:
    """Return the event of a line, None if it is an error, or cut off."""
    try:
        found = json.loads(line)
        metadata = found["object"]["metadata"]
        kind = found["type"]
        return None if kind == "ERROR" else WatchEvent(kind, metadata["uid"], metadata["resourceVersion"])
    except (ValueError, KeyError, TypeError):
        return None


def _present(found: SingleConfig | None) -> SingleConfig:
    if found is None:
        raise ConfigError("no current context")
    return found


def _selector(labels: Labels) -> str:
    return ",".join(f"{key}={value}" if value else key for key, value in labels.items())


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _answer(code: int, text: str) -> Any:
    """Return what an answer holds, or raise what it says."""
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if code < 400:
        if not isinstance(body, dict):
            raise ApiError(code, "BadAnswer", f"the answer is no object: {text[:80]!r}; is this an API server?")
        return body
    status = body if isinstance(body, dict) else {}
    message = str(status.get("message") or text.strip()[:200] or f"HTTP status {code}")
    # The port that the server had for a connection of its own, as to a webhook, is another one each time.
    message = re.sub(r":\d+->", "->", message)
    if code == 401:
        message = f"{message}: the token or certificate is not accepted; give another --kubeconfig"
    details = status.get("details")
    causes = (details.get("causes") if isinstance(details, dict) else None) or ()
    raise ApiError(code, str(status.get("reason") or code), message, tuple(causes))
