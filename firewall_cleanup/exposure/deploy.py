"""What a cluster needs to run the controller: the least rights it works with, and its Deployment. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from .capabilities import RESOURCES, CiliumVersion
from .status import PLURAL
from .values import CONTROL_PLANE, Manifest

__all__ = ["NAME", "Deployment", "controller_manifests"]

NAME = "firewall-cleanup-exposure"
"""Of what is deployed, and of the Lease."""
HEALTH_PORT = 10369
_LABELS = {"app.kubernetes.io/name": NAME}
_WRITE = ["create", "delete", "get", "list", "patch", "watch"]


@attrs.frozen
class Deployment:
    """How the controller is deployed. `port` is the API server's on localhost."""

    image: str
    namespace: str = "kube-system"
    cilium_namespace: str = "kube-system"
    class_name: str = "shoot"
    cilium: CiliumVersion | None = None
    port: int = 443
    replicas: int = 2


def controller_manifests(settings: Deployment) -> tuple[Manifest, ...]:
    """Return the service account, the roles with their bindings, and the Deployment."""
    cluster, local, cilium = _rules()
    made: list[Manifest] = [_object("v1", "ServiceAccount", settings.namespace)]
    made += _role(None, cluster, settings)
    made += _role(settings.namespace, local, settings)
    # That the API server has made its Service `kubernetes` tells that it has finished its start.
    own_service = [_rule("", ["services"], ["get"], ["kubernetes"])]
    made += _role("default", own_service, settings, suffix="-start")
    made += _role(settings.cilium_namespace, cilium, settings, suffix="-cilium")
    made.append(_deployment(settings))
    return tuple(made)


def _rules() -> tuple[list[Manifest], list[Manifest], list[Manifest]]:
    """Return the rules for the cluster, for the exposures' namespace, and for Cilium's."""
    cluster = [_rule("", ["nodes"], ["list", "watch"])]
    local = [
        _rule("extensions.gardener.cloud", [PLURAL], ["list", "patch", "watch"]),
        _rule("extensions.gardener.cloud", [f"{PLURAL}/status"], ["patch"]),
        _rule("coordination.k8s.io", ["leases"], ["create"]),  # what is not there yet has no name to allow
        _rule("coordination.k8s.io", ["leases"], ["get", "update"], [NAME]),
    ]
    cilium: list[Manifest] = []
    groups: dict[tuple[str, str], list[str]] = {}
    for kind, resource in RESOURCES.items():
        api = resource.versions[0]
        group = api.partition("/")[0] if "/" in api else ""
        place = "cilium" if kind == "CiliumNodeConfig" else "local" if resource.namespaced else "cluster"
        groups.setdefault((place, group), []).append(resource.plural)
    for (place, group), plurals in groups.items():
        {"cluster": cluster, "local": local, "cilium": cilium}[place].append(_rule(group, sorted(plurals), _WRITE))
    return cluster, local, cilium


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] = ()) -> Manifest:
    rule: Manifest = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return {**rule, "resourceNames": list(names)} if names else rule


def _object(api: str, kind: str, namespace: str | None, name: str = NAME) -> Manifest:
    place = {"namespace": namespace} if namespace else {}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **place, "labels": dict(_LABELS)}}


def _role(namespace: str | None, rules: list[Manifest], settings: Deployment, suffix: str = "") -> list[Manifest]:
    kind, api = "Role" if namespace else "ClusterRole", "rbac.authorization.k8s.io/v1"
    name = NAME + suffix
    return [
        {**_object(api, kind, namespace, name), "rules": rules},
        {
            **_object(api, f"{kind}Binding", namespace, name),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": settings.namespace}],
        },
    ]


def _deployment(settings: Deployment) -> Manifest:
    arguments = ["exposure", "run", f"--namespace={settings.namespace}", f"--class={settings.class_name}"]
    arguments += [f"--cilium-namespace={settings.cilium_namespace}", f"--health-port={HEALTH_PORT}"]
    if settings.cilium:
        arguments.append(f"--cilium-version={settings.cilium}")
    container = {
        "name": "controller",
        "image": settings.image,
        "command": ["firewall-cleanup"],
        "args": arguments,
        "env": [
            # Not the kubernetes Service, which Cilium serves, nor the exposure: the API server of this node.
            {"name": "KUBERNETES_SERVICE_HOST", "value": "localhost"},
            {"name": "KUBERNETES_SERVICE_PORT", "value": str(settings.port)},
            # Else a proxy that all pods are given is asked for localhost, too.
            {"name": "NO_PROXY", "value": "localhost"},
            {"name": "no_proxy", "value": "localhost"},
        ],
        "ports": [{"name": "health", "containerPort": HEALTH_PORT, "hostPort": HEALTH_PORT, "protocol": "TCP"}],
        "livenessProbe": _probe("/healthz", 20),
        "readinessProbe": _probe("/readyz", 10),
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    pod = {
        "serviceAccountName": NAME,
        "hostNetwork": True,
        "dnsPolicy": "Default",  # the cluster's DNS is reached through Cilium
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {CONTROL_PLANE: ""},
        # It must run before Cilium does, and while a node is not ready.
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    return {
        **_object("apps/v1", "Deployment", settings.namespace),
        "spec": {
            "replicas": settings.replicas,
            "selector": {"matchLabels": dict(_LABELS)},
            # Two pods on one node would want the same port.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {"metadata": {"labels": dict(_LABELS)}, "spec": pod},
        },
    }


def _probe(path: str, period: int) -> Manifest:
    get = {"path": path, "port": HEALTH_PORT, "host": "127.0.0.1"}
    return {"httpGet": get, "periodSeconds": period, "timeoutSeconds": 5, "initialDelaySeconds": 5}
