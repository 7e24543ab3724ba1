"""Manifests of exposures, and schemas for what is made of them."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import kubernetes_validate.utils as shipped
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from firewall_cleanup.exposure import Exposure, parse

CRDS = Path(__file__).parents[1] / "exposure/crds.yaml"
NODES = {
    "cp-1": ("10.0.1.11", "fd00:1::11"),
    "cp-2": ("10.0.1.12", "fd00:1::12"),
    "cp-3": ("10.0.1.13", "fd00:1::13"),
}
FAMILIES = {"dual": ["IPv4", "IPv6"], "ipv4": ["IPv4"], "ipv6": ["IPv6"]}
ADDRESSES = {"IPv4": "192.0.2.10", "IPv6": "2001:db8::10"}


def endpoint(node: str, *addresses: str) -> dict[str, Any]:
    entries = [{"type": "InternalIP", "address": each} for each in addresses]
    return {"nodeName": node, "addresses": [*entries, {"type": "Hostname", "address": node}]}


def manifest(families: str = "dual", name: str = "root", **config: Any) -> dict[str, Any]:
    """A manifest of three control-plane nodes; what is None in `config` is left out."""
    wanted = FAMILIES[families]
    provider = {"addresses": [ADDRESSES[each] for each in wanted], "announce": "l2", "ipFamilies": wanted, **config}
    return {
        "apiVersion": "extensions.gardener.cloud/v1alpha1",
        "kind": "SelfHostedShootExposure",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {
            "type": "cilium",
            "port": 443,
            "endpoints": [endpoint(node, *addresses) for node, addresses in NODES.items()],
            "providerConfig": copy.deepcopy({key: value for key, value in provider.items() if value is not None}),
        },
    }


def exposure(families: str = "dual", name: str = "root", **config: Any) -> Exposure:
    return parse(manifest(families, name, **config), strict=True)


def node(name: str, *addresses: str, ready: str = "True", **conditions: str) -> dict[str, Any]:
    """A Node as kubelet reports it."""
    found = [
        {"type": "Ready", "status": ready},
        *({"type": key, "status": value} for key, value in conditions.items()),
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"node-role.kubernetes.io/control-plane": ""}},
        "status": {
            "conditions": found,
            "addresses": [{"type": "InternalIP", "address": each} for each in addresses],
        },
    }


@functools.cache
def _definitions() -> Resource[Any]:
    return Resource.from_contents(shipped.schema_contents(f"{_folder()}/_definitions.json", ""))


def _folder() -> str:
    return f"kubernetes-json-schema/v{shipped.latest_version()}-local-strict"


def _closed(schema: Any) -> Any:
    """A schema of a custom resource with nothing allowed that it does not list, as the API server would drop it."""
    if not isinstance(schema, dict):
        return schema
    found = {key: _closed(value) for key, value in schema.items() if not key.startswith("x-")}
    if "properties" in found:
        found["properties"] = {key: _closed(value) for key, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            found["additionalProperties"] = False
    return found


@functools.cache
def _validator(api_version: str, kind: str) -> Draft202012Validator:
    for crd in yaml.safe_load(CRDS.read_text()):
        for version in crd["spec"]["versions"]:
            if (f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]) == (api_version, kind):
                schema = _closed(version["schema"]["openAPIV3Schema"])
                schema["properties"] |= {key: {} for key in ("apiVersion", "kind", "metadata")}
                return Draft202012Validator(schema)
    group, _, version = api_version.rpartition("/")
    name = "-".join(each for each in (kind.lower(), group.partition(".")[0], version) if each)
    registry: Registry[Any] = _definitions() @ Registry()
    resource = Resource.from_contents(shipped.schema_contents(f"{_folder()}/{name}.json", ""))
    return Draft202012Validator(resource.contents, registry=resource @ registry)


def validate(found: dict[str, Any]) -> None:
    """Raise if an object is not as its schema says: Kubernetes' own, or that of crds.yaml."""
    _validator(found["apiVersion"], found["kind"]).validate(found)
