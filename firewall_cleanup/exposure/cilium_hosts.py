"""Where Cilium is told to reach the API server: read from its manifests and Helm values. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import attrs

from .addresses import host_of
from .fields import shown
from .helm_values import HelmValues
from .values import CONTROL_PLANE, Announce, Manifest

__all__ = ["ApiHost", "CiliumPart", "CiliumSettings", "ingress_of", "read_settings"]

_URL_KEYS = ("k8s-api-server-urls", "k8s-api-server")
_REPLACEMENT = "kube-proxy-replacement"
_KUBECONFIG = "k8s-kubeconfig-path"
_FEATURES = {Announce.L2: "enable-l2-announcements", Announce.BGP: "enable-bgp-control-plane"}
_FEATURE_VALUES = {Announce.L2: "l2announcements.enabled", Announce.BGP: "bgpControlPlane.enabled"}
_KEYS = (*_URL_KEYS, _REPLACEMENT, _KUBECONFIG, *_FEATURES.values())
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
    announces: Mapping[Announce, bool] = attrs.field(factory=dict, hash=False)
    """Whether each way of announcing is turned on, as far as that is said."""


@attrs.define
class _Reading:
    """What was found so far, by its rank: an URL in the configuration is used rather than the environment."""

    urls: dict[CiliumPart, list[ApiHost]] = attrs.field(factory=dict)
    env: dict[CiliumPart, list[ApiHost]] = attrs.field(factory=dict)
    node_urls: dict[str, list[ApiHost]] = attrs.field(factory=dict)
    parts: set[CiliumPart] = attrs.field(factory=set)
    endpoints: list[ApiHost] = attrs.field(factory=list)
    helm: HelmValues = attrs.field(factory=lambda: HelmValues(_KEYS))
    replaces: bool | None = None
    announces: dict[Announce, bool] = attrs.field(factory=dict)
    node_configs: list[str] = attrs.field(factory=list)
    gaps: list[str] = attrs.field(factory=list)

    def note_replacement(self, value: Any) -> None:
        """One place that says that Cilium replaces kube-proxy is enough, whichever of them counts."""
        if (truth := _truth(value)) is not None:
            self.replaces = bool(self.replaces) or truth

    def note_feature(self, way: Announce, value: Any) -> None:
        self.announces[way] = self.announces.get(way, False) or _truth(value) is True


def read_settings(documents: Iterable[Any], control_plane: Collection[str] = ()) -> CiliumSettings:
    """Read Cilium's DaemonSets, Deployment, ConfigMap and CiliumNodeConfigs, and Helm values, which have no kind.

    What is for an agent comes from a CiliumNodeConfig of control-plane nodes, else from the ConfigMap, else from the
    environment; what is for the container that reads those, from its own arguments and environment. Of agents only
    those of control-plane nodes count: `control_plane` names these, as do Nodes with the label. What is in the pods
    of a DaemonSet there goes before what is in itself. A value of a later Helm file replaces that of an earlier one.
    """
    reading = _Reading()
    pods: list[Mapping[str, Any]] = []
    owners: list[Mapping[str, Any]] = []
    nodes = set(control_plane)
    for document in documents:
        kind = document.get("kind") if isinstance(document, Mapping) else document
        if not isinstance(document, Mapping) or not (kind is None or isinstance(kind, str)):
            reading.gaps.append(f"{shown(kind, 40)} is neither an object nor Helm values")
        elif kind is None:
            reading.helm.add(document)
        elif kind == "ConfigMap":
            _config_map(reading, document)
        elif kind == "CiliumNodeConfig":
            _node_config(reading, document)
        elif kind == "EndpointSlice":
            _endpoints(reading, document)
        elif kind == "Pod":
            pods.append(document)
        elif kind in {"DaemonSet", "Deployment"}:
            owners.append(document)
        elif kind == "Node" and isinstance(labels := _dig(document, "metadata", "labels"), Mapping):
            nodes |= {_name(document)} if CONTROL_PLANE in labels else set()
    _workloads(reading, pods, owners, nodes)
    _helm_values(reading)
    return _settings(reading)


def _workloads(
    reading: _Reading, pods: list[Mapping[str, Any]], owners: list[Mapping[str, Any]], nodes: Collection[str]
) -> None:
    """Read the pods that are, or may come to be, on control-plane nodes, and the operator's wherever they are."""
    seen: set[str] = set()
    for pod in pods:
        found = _listed(reading, "Pod", _name(pod), _dig(pod, "metadata", "ownerReferences"))
        # What a webhook has put into the pods is not in their DaemonSet.
        owner = next((_text(_dig(each, "name")) for each in found), _name(pod))
        node = _dig(pod, "spec", "nodeName")
        if not node or not nodes or _text(node) in nodes or "operator" in owner:
            seen |= {owner} if node else set()
            _pod_spec(reading, "pods of", owner, pod.get("spec"))
    for each in owners:
        kind, name, spec = _text(each.get("kind")), _name(each), _dig(each, "spec", "template", "spec")
        if name not in seen and (kind == "Deployment" or not _avoids_control_plane(spec)):
            _pod_spec(reading, kind, name, spec)
    agents = pods or any(each.get("kind") == "DaemonSet" for each in owners)
    if agents and not reading.parts & {CiliumPart.BOOTSTRAP, CiliumPart.AGENT}:
        reading.gaps.append("no agent of Cilium was found that runs, or would run, on a control-plane node")


def _avoids_control_plane(spec: Any) -> bool:
    """Tell whether pods cannot be on control-plane nodes, by their affinity; False if that is not plain."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = _dig(spec, "affinity", "nodeAffinity", required, "nodeSelectorTerms")
    return isinstance(terms, list) and bool(terms) and all(_selects_others(term) for term in terms)


def _selects_others(selector: Any) -> bool:
    """Tell whether a selector of nodes asks that they be no control-plane nodes."""
    return any(
        _dig(each, "key") == CONTROL_PLANE and _dig(each, "operator") == "DoesNotExist"
        for each in _expressions(selector)
    )


def _expressions(selector: Any) -> list[Any]:
    found = _dig(selector, "matchExpressions")
    return found if isinstance(found, list) else []


def _settings(reading: _Reading) -> CiliumSettings:
    hosts: list[ApiHost] = []
    parts = reading.parts | {CiliumPart.BOOTSTRAP, CiliumPart.AGENT}
    for part in (each for each in CiliumPart if each in parts):
        if part is CiliumPart.AGENT and reading.node_urls:
            hosts += reading.node_urls[max(reading.node_urls)]  # of several, the last by name counts
        else:
            hosts += reading.urls.get(part) or reading.env.get(part) or [ApiHost(part, None, DEFAULT_SOURCE)]
    return CiliumSettings(
        tuple(dict.fromkeys((*hosts, *reading.endpoints))),
        reading.replaces,
        tuple(reading.node_configs),
        tuple(dict.fromkeys(reading.gaps)),
        reading.announces,
    )


def _dig(document: Any, *keys: str) -> Any:
    for key in keys:
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document


def _text(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def _name(document: Any) -> str:
    return _text(_dig(document, "metadata", "name"))


def _words(value: Any) -> list[str]:
    if isinstance(value, list):
        return [_text(each) for each in value]
    return [word for word in re.split(r"[\s,]+", _text(value or "")) if word]


def _add(found: dict[CiliumPart, list[ApiHost]], part: CiliumPart, values: Iterable[str], source: str) -> None:
    found.setdefault(part, []).extend(ApiHost(part, host_of(value), source) for value in values)


def _truth(value: Any) -> bool | None:
    return {"true": True, "strict": True, "false": False, "disabled": False}.get(_text(value).lower())


def _helm_values(reading: _Reading) -> None:
    values = reading.helm
    reading.gaps += values.gaps
    if not values.given:
        return
    _helm_hosts(reading, values)
    reading.note_replacement(values.get("kubeProxyReplacement"))
    for way, place in _FEATURE_VALUES.items():
        reading.note_feature(way, values.config.get(_FEATURES[way], values.get(place)))  # extraConfig comes last
    _configuration(reading, "Helm value extraConfig", values.config)


def _helm_hosts(reading: _Reading, values: HelmValues) -> None:
    if _truth(values.get("operator.enabled")) is not False:
        reading.parts.add(CiliumPart.OPERATOR)
    host, urls = values.get("k8sServiceHost"), values.get("k8s.apiServerURLs")
    if host == "auto":
        reading.gaps.append(
            "Helm value k8sServiceHost: auto takes it from the ConfigMap kube-public/cluster-info; give it by --host"
        )
        host = None
    if reference := values.get("k8sServiceHostRef.name"):
        reading.gaps.append(
            f"Helm value k8sServiceHostRef takes it from the ConfigMap {shown(reference, 40)}; give it by --host"
        )
    for part in CiliumPart:
        if host:
            _add(reading.env, part, [_text(host)], "Helm value k8sServiceHost")
        if urls:
            _add(reading.urls, part, _words(urls), "Helm value k8s.apiServerURLs")
    _note_file(reading, "Helm value kubeConfigPath", values.get("kubeConfigPath"))
    _note_sources(reading, "Helm value daemon.configSources", values.get("daemon.configSources"))
    for container, place, added in values.containers():
        of = _part(container, container)
        if of is not None:
            _container(reading, of, f"Helm value {place}", added)


def _config_map(reading: _Reading, document: Mapping[str, Any]) -> None:
    data = document.get("data")
    if _name(document) != "cilium-config" or not isinstance(data, Mapping):
        return
    _configuration(reading, "ConfigMap cilium-config", data)
    for way, key in _FEATURES.items():
        reading.note_feature(way, data.get(key))


def _configuration(reading: _Reading, source: str, data: Mapping[str, Any]) -> None:
    """Read the keys that the agent and the operator take; the container that reads them cannot know them before."""
    for key in _URL_KEYS:
        if data.get(key):
            for part in (CiliumPart.AGENT, CiliumPart.OPERATOR):
                _add(reading.urls, part, _words(data[key]), f"{source}, {key}")
            break
    _note_file(reading, f"{source}, {_KUBECONFIG}", data.get(_KUBECONFIG))
    reading.note_replacement(data.get(_REPLACEMENT))


def _note_file(reading: _Reading, source: str, path: Any) -> None:
    """Note that a kubeconfig on the node says where the API server is."""
    if path:
        reading.gaps.append(f"{source}: the host is in the file {shown(path, 60)} of the node; give it by --host")


def _note_sources(reading: _Reading, source: str, words: Any) -> None:
    """Note what the container `config` reads besides the ConfigMap and the CiliumNodeConfigs."""
    for word in _words(words):
        kind, _, name = word.partition(":")
        if kind != "cilium-node-config" and (kind != "config-map" or name.rpartition("/")[2] != "cilium-config"):
            reading.gaps.append(f"{source}: the configuration comes from {shown(word, 60)}, too; give it by --host")


def _node_config(reading: _Reading, document: Mapping[str, Any]) -> None:
    name, spec = _name(document), document.get("spec")
    defaults, selector = _dig(spec, "defaults"), _dig(spec, "nodeSelector")
    # A selector that is null selects no node (pkg/option/resolver/resolver.go).
    if not isinstance(defaults, Mapping) or selector is None or _selects_others(selector):
        return
    reading.note_replacement(defaults.get(_REPLACEMENT))
    for way, key in _FEATURES.items():
        if key in defaults:
            reading.note_feature(way, defaults[key])
    _note_file(reading, f"CiliumNodeConfig {name}, {_KUBECONFIG}", defaults.get(_KUBECONFIG))
    about = [key for key in (*_URL_KEYS, _HOST_VARIABLE, "k8s-service-host") if key in defaults]
    if not about:
        return
    reading.node_configs.append(name)
    for key in about:
        if key not in _URL_KEYS:
            reading.gaps.append(
                f"CiliumNodeConfig {name} sets {key}, which is no key of the agent's configuration: no effect"
            )
    labels = _dig(selector, "matchLabels")
    keys = [_dig(each, "key") for each in _expressions(selector)]
    if selector and CONTROL_PLANE not in (*(labels if isinstance(labels, Mapping) else ()), *keys):
        reading.gaps.append(
            f"CiliumNodeConfig {name}: its selector does not name {CONTROL_PLANE}; taken to select such nodes"
        )
    values = next((defaults[key] for key in _URL_KEYS if defaults.get(key)), None)
    if values:
        found = [ApiHost(CiliumPart.AGENT, host_of(each), f"CiliumNodeConfig {name}") for each in _words(values)]
        reading.node_urls[name] = found


def _endpoints(reading: _Reading, document: Mapping[str, Any]) -> None:
    """Note the endpoints of the kubernetes Service: from 1.18 on a running agent goes over to them."""
    if _dig(document, "metadata", "labels", "kubernetes.io/service-name") != "kubernetes":
        return
    if _dig(document, "metadata", "namespace") not in (None, "default"):
        return
    for endpoint in _listed(reading, "EndpointSlice", _name(document), document.get("endpoints")):
        for each in _listed(reading, "EndpointSlice", _name(document), _dig(endpoint, "addresses")):
            reading.endpoints.append(ApiHost(CiliumPart.AGENT, _text(each), "endpoint of the kubernetes Service"))


def _pod_spec(reading: _Reading, kind: str, name: str, spec: Any) -> None:
    for group in ("initContainers", "containers"):
        for container in _listed(reading, kind, name, _dig(spec, group)):
            called = _text(_dig(container, "name"))
            part = _part(name, called)
            if part is not None:
                reading.parts.add(part)
                _container(reading, part, f"{kind} {name}, container {called}", container)


def _container(reading: _Reading, part: CiliumPart, source: str, container: Any) -> None:
    for key, value in _arguments(reading, source, container):
        if key in _URL_KEYS and value:
            _add(reading.urls, part, _words(value), f"{source}, --{key}")
        elif key == _REPLACEMENT:
            reading.note_replacement(value)
        elif key == _KUBECONFIG:
            _note_file(reading, f"{source}, --{key}", value)
        elif key == "source" and part is CiliumPart.BOOTSTRAP:
            _note_sources(reading, f"{source}, --{key}", value)
    _variables(reading, part, source, container)
    if _dig(container, "envFrom"):
        reading.gaps.append(f"{source}: envFrom takes variables from other objects; if a host is among them: --host")


def _variables(reading: _Reading, part: CiliumPart, source: str, container: Any) -> None:
    for variable in _listed(reading, source, "env", _dig(container, "env")):
        name, value = _text(_dig(variable, "name")), _dig(variable, "value")
        # Every flag of Cilium's programs is a variable, too: CILIUM_K8S_API_SERVER_URLS.
        key = name.removeprefix("CILIUM_").lower().replace("_", "-") if name.startswith("CILIUM_") else ""
        if key == _REPLACEMENT:
            reading.note_replacement(value)
        elif key == _KUBECONFIG:
            _note_file(reading, f"{source}, {name}", value or _dig(variable, "valueFrom"))
        elif name != _HOST_VARIABLE and key not in _URL_KEYS:
            continue
        elif value:
            found = reading.urls if key else reading.env
            _add(found, part, _words(value) if key else [_text(value)], f"{source}, {name}")
        elif not key or _dig(variable, "valueFrom") is not None:
            reading.gaps.append(f"{source}: {name} comes from another object; give it by --host")


def _listed(reading: _Reading, kind: str, name: str, value: Any) -> list[Any]:
    if value is not None and not isinstance(value, list):
        reading.gaps.append(f"{kind} {name}: {shown(value, 40)} is not a list")
    return value if isinstance(value, list) else []


def _part(owner: str, container: str) -> CiliumPart | None:
    if "operator" in owner:
        return CiliumPart.OPERATOR
    return {"config": CiliumPart.BOOTSTRAP, "cilium-agent": CiliumPart.AGENT}.get(container)


def _arguments(reading: _Reading, source: str, container: Any) -> Iterator[tuple[str, str]]:
    given = (_listed(reading, source, key, _dig(container, key)) for key in ("command", "args"))
    words = [_text(each) for some in given for each in some]
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
