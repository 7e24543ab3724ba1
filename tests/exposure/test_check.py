"""`exposure check` against a real API server: what it reads of Cilium."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from exposures import manifest
from jsonschema import Draft202012Validator
from world import World, where

pytestmark = pytest.mark.apiserver

SCHEMA = Draft202012Validator(json.loads((Path(__file__).parents[2] / "docs/exposure.schema.json").read_text()))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "exposure.yaml"
    found.write_text(yaml.safe_dump(manifest()))
    return found


def json_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    SCHEMA.validate(found)
    return found


def daemon_set(host: str | None) -> dict[str, Any]:
    env = [{"name": "KUBERNETES_SERVICE_HOST", "value": host}] if host else []
    labels = {"k8s-app": "cilium"}
    pod = {
        "initContainers": [{"name": "config", "image": "cilium", "env": env}],
        "containers": [{"name": "cilium-agent", "image": "cilium", "env": env}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "cilium", "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }


def test_check_knows_all_addresses_of_the_service(world: World, file: Path) -> None:
    """Its ClusterIP and its names lead to the exposure as well; ports of nodes, a third way, it does not have."""
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cilium-config", "namespace": "kube-system"},
        "data": {"kube-proxy-replacement": "true"},
    }
    world.reconcile(manifest(apiServerURLs=[]))
    service = world.objects()["Service exposure-root"]
    assert "nodePort" not in service["spec"]["ports"][0]
    made = [world.put(config)]
    try:
        for host in (*service["spec"]["clusterIPs"], "exposure-root.kube-system.svc.cluster.local"):
            made[1:] = [world.put(daemon_set(host))]
            done = world.command("check", "-f", str(file))
            assert done.returncode == 1
            assert f"CYCLE: bootstrap, {host}" in done.stdout
        assert "warning: announce: l2 needs enable-l2-announcements" in done.stdout
        # As check advises: a DaemonSet for control-plane nodes, and pods of the other one on other nodes.
        made[1:] = [world.put(daemon_set("localhost"))]
        for name, node_name in (("cilium-here", "cp-1"), ("cilium-there", "worker-1")):
            one = daemon_set("localhost" if node_name == "cp-1" else "192.0.2.10")["spec"]["template"]
            one["metadata"] |= {"name": name, "namespace": "kube-system"}
            one["spec"]["nodeName"] = node_name
            made.append(world.put({"apiVersion": "v1", "kind": "Pod", **one}))
        second = daemon_set("192.0.2.10")
        second["metadata"]["name"] = "cilium-workers"
        avoid = {"key": "node-role.kubernetes.io/control-plane", "operator": "DoesNotExist"}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [avoid]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        second["spec"]["template"]["spec"]["affinity"] = affinity
        made.append(world.put(second))
        assert world.command("check", "-f", str(file)).returncode == 0
        del second["spec"]["template"]["spec"]["affinity"]
        made[-1] = world.put(second)
        done = world.command("check", "-f", str(file))
        assert "CYCLE: bootstrap, 192.0.2.10 (DaemonSet cilium-workers" in done.stdout
    finally:
        for each in made:
            world.admin._request("DELETE", where(each), body={"gracePeriodSeconds": 0})  # pods, too: no kubelet runs


def test_check_looks_at_the_cluster(world: World, file: Path) -> None:
    done = world.command("check", "-f", str(file))
    assert done.returncode == 1
    assert "there is no DaemonSet kube-system/cilium to look at" in done.stderr
    assert world.command("check", "root").returncode == 2  # no such exposure
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cilium-config", "namespace": "kube-system"},
        "data": {"kube-proxy-replacement": "true"},
    }
    made = [world.put(config), world.put(daemon_set(None))]
    try:
        found = json_of(world.command("check", "-f", str(file), "--output", "json"))
        assert {each["cycle"] for each in found["hosts"]} == {True}  # the ClusterIP, and no kube-proxy
        world.put(daemon_set("localhost"))
        assert world.command("check", "-f", str(file)).returncode == 0
        done = world.command("check", "-f", str(file), "--dns-name", "localhost", "--output", "json")
        assert (done.returncode, len(json_of(done)["warnings"])) == (1, 1)
        # A webhook may have put something else into the pods.
        pod = daemon_set("192.0.2.10")["spec"]["template"]
        pod["metadata"] |= {"name": "cilium-x", "namespace": "kube-system"}
        made.append(world.put({"apiVersion": "v1", "kind": "Pod", **pod}))
        done = world.command("check", "-f", str(file))
        assert "CYCLE: bootstrap, 192.0.2.10 (pods of cilium-x, container config" in done.stdout
        world.remove("Pod", made.pop()["metadata"]["name"])
        world.put(manifest(addresses=None, ranges=["192.0.2.0/24", "2001:db8::/64"]))
        world.put(daemon_set("2001:db8::77"))
        done = world.command("check", "root")
        assert done.returncode == 1
        assert "CYCLE: bootstrap, 2001:db8::77" in done.stdout
        world.put(daemon_set("localhost"))
        world.reconcile(manifest())  # its CiliumNodeConfig says localhost, too
        found = json_of(world.command("check", "root", "--output", "json"))
        assert {each["source"] for each in found["hosts"]} >= {"CiliumNodeConfig exposure-root"}
        assert found["cycle"] is False
    finally:
        for each in made:
            path = where(each)
            world.admin.delete(path, (world.admin.get(path) or {})["metadata"]["uid"])


def test_looking_changes_nothing(world: World, file: Path) -> None:
    """Neither where all is as wanted nor where an apply would change, make or remove something."""
    world.put(manifest())
    world.reconcile(manifest())
    world.admin.delete(where(found := world.objects()["CiliumNodeConfig exposure-root"]), found["metadata"]["uid"])
    other = file.with_name("other.yaml")
    other.write_text(yaml.safe_dump(manifest("ipv4", announce="bgp")))
    agents = world.put(daemon_set("localhost"))
    before = world.exposure(), world.objects()
    try:
        for words in (("status", "root"), ("status", "-f", str(file)), ("status", "-f", str(other))):
            assert world.command(*words).returncode == 1
        assert world.command("check", "root").returncode == 0
        assert world.command("check", "-f", str(other), "--host", "192.0.2.10").returncode == 1
    finally:
        world.admin.delete(where(agents), agents["metadata"]["uid"])
    assert (world.exposure(), world.objects()) == before
