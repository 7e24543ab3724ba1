"""The controller's rights: all that it uses, and nothing that it does not use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from exposures import manifest
from world import World, eventually

from firewall_cleanup.exposure.client import path_of
from firewall_cleanup.exposure.deploy import Deployment, controller_manifests

pytestmark = pytest.mark.apiserver

Right = tuple[str | None, str, str, str]


def granted() -> set[Right]:
    """Namespace (None: the cluster), group, resource and verb of each right."""
    found: set[Right] = set()
    for each in controller_manifests(Deployment("i")):
        for rule in each.get("rules", ()):
            for resource in rule["resources"]:
                place, [group] = each["metadata"].get("namespace"), rule["apiGroups"]
                found |= {(place, group, resource, verb) for verb in rule["verbs"]}
    return found


def used(world: World, after: int) -> tuple[set[Right], list[dict[str, Any]]]:
    """What the audit log has of the controller, from a position on."""
    lines = world.cluster.audit_log.read_text()[after:].splitlines()
    found: set[Right] = set()
    entries = [json.loads(line) for line in lines if line.endswith("}")]
    for entry in entries:
        if ref := entry.get("objectRef"):
            resource = "/".join(each for each in (ref["resource"], ref.get("subresource")) if each)
            right = (ref.get("namespace"), ref.get("apiGroup", ""), resource)
            found.add((*right, entry["verb"]))
            # An apply that makes an object must be allowed to create it, too.
            if entry["verb"] == "patch" and entry["responseStatus"].get("code") == 201:
                found.add((*right, "create"))
    return found, entries


def test_every_right_is_needed_and_no_version_is_asked_for(world: World, tmp_path: Path) -> None:
    start = len(world.cluster.audit_log.read_text())
    document = manifest()
    service = path_of("v1", "services", "kube-system", "exposure-root")

    def settled(service_class: str) -> bool:
        state = ((world.exposure() or {}).get("status") or {}).get("lastOperation", {}).get("state")
        found = (world.admin.get(service) or {"spec": {}})["spec"]
        return state == "Succeeded" and found.get("loadBalancerClass") == service_class

    with world.cilium(), world.controller(log=tmp_path / "log"):
        world.put(document)
        eventually(lambda: settled("io.cilium/l2-announcer"))
        bgp = {"localASN": 65000, "peers": [{"address": "fd00::1", "asn": 65001}]}
        document["spec"]["providerConfig"] |= {"announce": "bgp", "bgp": bgp}
        world.put(document)
        eventually(lambda: settled("io.cilium/bgp-control-plane"))
        world.remove("SelfHostedShootExposure", "root")
        eventually(lambda: world.exposure() is None)
        eventually(lambda: granted() <= used(world, start)[0])
    found, entries = used(world, start)
    assert granted() - found == set()
    assert not [each for each in entries if "resourceVersion=" in each["requestURI"]]
    written = [
        (each["objectRef"]["resource"], each["verb"]) for each in entries if each["verb"] in {"patch", "delete"}
    ]
    assert written[0] == ("selfhostedshootexposures", "patch")  # the finalizer, before anything else is made
    assert written[-1] == ("selfhostedshootexposures", "patch")  # and off, after all has gone
    refused = [each["requestURI"] for each in entries if each["responseStatus"].get("code") == 403]
    assert refused == []
