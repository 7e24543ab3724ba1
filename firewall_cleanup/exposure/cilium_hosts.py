"""Where Cilium is told to reach the API server: read from its manifests and Helm values. Pure."""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs

from .values import CONTROL_PLANE, Manifest

__all__ = ["ApiHost", "CiliumPart", "CiliumSettings", "read_settings"]

_URL_KEYS = ("k8s-api-server-urls", "k8s-api-server")
_HOST_VARIABLE = "KUBERNETES_SERVICE_HOST"
DEFAULT_SOURCE = "nothing is set, so it is what kubelet puts into every pod: the kubernetes Service"


class CiliumPart(enum.Enum):
    """Who asks the API server. `BOOTSTRAP` is the init container `config`, without which the agent does not start."""

    BOOTSTRAP = "bootstrap"
    AGENT = "agent"
    OPERATOR = "operator"


@attrs.frozen
class ApiHost:
    """A host that a part of Cilium uses, and where that is said. `host` is None for the pod's default."""

    part: CiliumPart
    host: str | None
    source: str


@attrs.frozen
class CiliumSettings:
    """What was read: hosts, whether Cilium replaces kube-proxy (None: not said), what was not understood."""

    hosts: tuple[ApiHost, ...]
    replaces_kube_proxy: bool | None
    node_configs: tuple[str, ...]
    gaps: tuple[str, ...] = ()


@attrs.define
class _Reading:
    """What was found so far, by its rank: an URL in the configuration is used rather than the environment."""

    urls: dict[CiliumPart, list[ApiHost]] = attrs.field(factory=dict)
    env: dict[CiliumPart, list[ApiHost]] = attrs.field(factory=dict)
    node_urls: dict[str, list[ApiHost]] = attrs.field(factory=dict)
    parts: set[CiliumPart] = attrs.field(factory=set)
    replaces: bool | None = None
    node_configs: list[str] = attrs.field(factory=list)
    gaps: list[str] = attrs.field(factory=list)


def read_settings(documents: Iterable[Any], namespace: str | None = None) -> CiliumSettings:
    """Read Cilium's DaemonSet, Deployment, ConfigMap and CiliumNodeConfigs, and Helm values, which have no kind.

    With `namespace`, objects of others are left out. What is for an agent comes from a CiliumNodeConfig of
    control-plane nodes, else from the ConfigMap, else from the environment; what is for the container that reads
    those, from its own arguments and environment.
    """
    reading = _Reading()
    for document in documents:
        if not isinstance(document, Mapping):
            reading.gaps.append(f"{str(document)[:40]!r} is neither an object nor Helm values")
            continue
        where = _dig(document, "metadata", "namespace")
        if namespace is not None and where not in {None, namespace}:
            continue
        kind = document.get("kind")
        if kind is None:
            _helm(reading, document)
        elif kind == "ConfigMap":
            _config_map(reading, document)
        elif kind == "CiliumNodeConfig":
            _node_config(reading, document)
        elif kind in {"DaemonSet", "Deployment", "Pod"}:
            _pods(reading, document)
    return _settings(reading)


def _settings(reading: _Reading) -> CiliumSettings:
    hosts: list[ApiHost] = []
    parts = reading.parts | {CiliumPart.BOOTSTRAP, CiliumPart.AGENT}
    for part in (each for each in CiliumPart if each in parts):
        if part is CiliumPart.AGENT and reading.node_urls:
            hosts += reading.node_urls[max(reading.node_urls)]  # of several, the last by name counts
        else:
            hosts += reading.urls.get(part) or reading.env.get(part) or [ApiHost(part, None, DEFAULT_SOURCE)]
    return CiliumSettings(
        tuple(dict.fromkeys(hosts)), reading.replaces, tuple(reading.node_configs), tuple(reading.gaps)
    )


def _dig(document: Any, *keys: str) -> Any:
    for key in keys:
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document


def _host(url: str) -> str:
    """Return the host of an URL, or of what was written in its place."""
    text = url.strip()
    try:
        host = urlsplit(text if "://" in text else f"//{text}").hostname
    except ValueError:
        return text
    if "://" not in text:
        try:
            ipaddress.ip_address(text.strip("[]"))
        except ValueError:
            return host or text
        return text.strip("[]")
    return host or text


def _words(value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(each) for each in value]
    return [word for word in re.split(r"[\s,]+", str(value or "")) if word]


def _add(found: dict[CiliumPart, list[ApiHost]], part: CiliumPart, values: Iterable[str], source: str) -> None:
    found.setdefault(part, []).extend(ApiHost(part, _host(value), source) for value in values)


def _truth(value: Any) -> bool | None:
    return {"true": True, "strict": True, "false": False, "disabled": False}.get(str(value).lower())


def _helm(reading: _Reading, values: Mapping[str, Any]) -> None:
    values = values["cilium"] if isinstance(values.get("cilium"), Mapping) else values
    host, urls = values.get("k8sServiceHost"), _dig(values, "k8s", "apiServerURLs")
    if host == "auto":
        reading.gaps.append(
            "Helm value k8sServiceHost: auto takes it from the ConfigMap kube-public/cluster-info; give it by --host"
        )
        reading.parts.add(CiliumPart.OPERATOR)
        host = None
    for part in CiliumPart:
        if host:
            reading.parts.add(part)
            _add(reading.env, part, [str(host)], "Helm value k8sServiceHost")
        if urls:
            reading.parts.add(part)
            _add(reading.urls, part, _words(urls), "Helm value k8s.apiServerURLs")
    if (replaces := _truth(values.get("kubeProxyReplacement"))) is not None:
        reading.replaces = replaces


def _config_map(reading: _Reading, document: Mapping[str, Any]) -> None:
    name = _dig(document, "metadata", "name")
    data = document.get("data")
    if name != "cilium-config" or not isinstance(data, Mapping):
        return
    for key in _URL_KEYS:
        if data.get(key):
            # The container that reads the ConfigMap cannot know it before.
            for part in (CiliumPart.AGENT, CiliumPart.OPERATOR):
                _add(reading.urls, part, _words(data[key]), f"ConfigMap {name}, {key}")
            break
    if (replaces := _truth(data.get("kube-proxy-replacement"))) is not None:
        reading.replaces = replaces


def _node_config(reading: _Reading, document: Mapping[str, Any]) -> None:
    name, spec = _dig(document, "metadata", "name"), document.get("spec")
    defaults, selector = _dig(spec, "defaults"), _dig(spec, "nodeSelector")
    if not isinstance(defaults, Mapping) or selector is None:
        return  # a selector that is null selects no node (pkg/option/resolver/resolver.go)
    about = [key for key in (*_URL_KEYS, _HOST_VARIABLE, "k8s-service-host") if key in defaults]
    if not about:
        return
    reading.node_configs.append(str(name))
    for key in about:
        if key not in _URL_KEYS:
            reading.gaps.append(
                f"CiliumNodeConfig {name} sets {key}, which is no key of the agent's configuration: no effect"
            )
    if selector and CONTROL_PLANE not in str(selector):
        reading.gaps.append(
            f"CiliumNodeConfig {name}: its selector does not name {CONTROL_PLANE}; taken to select such nodes"
        )
    values = next((defaults[key] for key in _URL_KEYS if defaults.get(key)), None)
    if values:
        found = [ApiHost(CiliumPart.AGENT, _host(each), f"CiliumNodeConfig {name}") for each in _words(values)]
        reading.node_urls[str(name)] = found


def _pods(reading: _Reading, document: Mapping[str, Any]) -> None:
    kind, name = document.get("kind"), _dig(document, "metadata", "name")
    spec = _dig(document, "spec", "template", "spec")
    if kind == "Pod":
        # What a webhook has put into the pods is not in their DaemonSet.
        spec = document.get("spec")
        owners = _listed(reading, kind, name, _dig(document, "metadata", "ownerReferences"))
        kind, name = "pods of", next((_dig(each, "name") for each in owners), name)
    for group in ("initContainers", "containers"):
        for container in _listed(reading, kind, name, _dig(spec, group)):
            part = _part(str(name), str(_dig(container, "name")))
            if part is not None:
                reading.parts.add(part)
                _container(reading, part, f"{kind} {name}, container {_dig(container, 'name')}", container)


def _container(reading: _Reading, part: CiliumPart, source: str, container: Any) -> None:
    for key, value in _arguments(container):
        if key in _URL_KEYS and value:
            _add(reading.urls, part, _words(value), f"{source}, --{key}")
    for variable in _listed(reading, source, "env", _dig(container, "env")):
        if _dig(variable, "name") != _HOST_VARIABLE:
            continue
        if value := _dig(variable, "value"):
            _add(reading.env, part, [str(value)], f"{source}, {_HOST_VARIABLE}")
        else:
            reading.gaps.append(f"{source}: {_HOST_VARIABLE} comes from another object; give it by --host")


def _listed(reading: _Reading, kind: Any, name: Any, value: Any) -> list[Any]:
    if value is not None and not isinstance(value, list):
        reading.gaps.append(f"{kind} {name}: {str(value)[:40]!r} is not a list")
    return value if isinstance(value, list) else []


def _part(owner: str, container: str) -> CiliumPart | None:
    if "operator" in owner:
        return CiliumPart.OPERATOR
    return {"config": CiliumPart.BOOTSTRAP, "cilium-agent": CiliumPart.AGENT}.get(container)


def _arguments(container: Any) -> Iterator[tuple[str, str]]:
    given = (_dig(container, key) for key in ("command", "args"))
    words = [str(each) for some in given if isinstance(some, list) for each in some]
    for index, word in enumerate(words):
        key, _, value = word.lstrip("-").partition("=")
        if word.startswith("--"):
            following = words[index + 1] if index + 1 < len(words) and not words[index + 1].startswith("-") else ""
            yield key, value or following


def ingress_of(service: Manifest | None) -> tuple[set[str], set[str]]:
    """Return the addresses and the host names in the status of a Service or of an exposure."""
    status = (service or {}).get("status") or {}
    found = status.get("ingress") or (status.get("loadBalancer") or {}).get("ingress") or []
    return {each["ip"] for each in found if each.get("ip")}, {
        each["hostname"] for each in found if each.get("hostname")
    }
