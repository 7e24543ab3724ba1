"""The controller as a process: the contract with Gardener, kills, restarts, leadership, and etcd swaps."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from exposures import manifest, node
from servers import free_port
from world import World, eventually, where

from firewall_cleanup.exposure.client import ApiError, path_of
from firewall_cleanup.exposure.status import FINALIZER, exposure_path

pytestmark = pytest.mark.apiserver

INGRESS = [{"ip": "192.0.2.10"}, {"ip": "2001:db8::10"}]
ALL = {
    "CiliumLoadBalancerIPPool exposure-root",
    "CiliumL2AnnouncementPolicy exposure-root",
    "CiliumNodeConfig exposure-root",
    "EndpointSlice exposure-root-ipv4",
    "EndpointSlice exposure-root-ipv6",
    "Service exposure-root",
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "controller.log"


def status(world: World) -> dict[str, Any]:
    found = world.exposure()
    assert found is not None
    return found.get("status") or {}


def operation(world: World) -> tuple[str, str]:
    last = status(world).get("lastOperation") or {}
    return last.get("type", ""), last.get("state", "")


def is_ready(world: World) -> bool:
    """The consumer's own test: pkg/utils/kubernetes/health/extensions.go in gardener/gardener."""
    found = world.exposure()
    assert found is not None
    state = found.get("status") or {}
    return (
        not state.get("lastError")
        and state.get("observedGeneration") == found["metadata"]["generation"]
        and "gardener.cloud/operation" not in found["metadata"].get("annotations", {})
        and state.get("lastOperation", {}).get("state") == "Succeeded"
    )


def wanted(**config: Any) -> dict[str, Any]:
    """As gardenlet writes it: with the annotations of an operation."""
    found = manifest(**config)
    stamps = {"gardener.cloud/operation": "reconcile", "gardener.cloud/timestamp": "2026-11-30T12:00:00Z"}
    found["metadata"]["annotations"] = stamps
    return found


def gone(world: World) -> bool:
    return world.exposure() is None and world.objects() == {}


def test_its_life(world: World, log: Path) -> None:
    """Made, changed, in trouble, well again, deleted."""
    with world.cilium(), world.controller("--no-leader-election", log=log):
        world.put(wanted(), manager="gardenlet")
        eventually(lambda: is_ready(world))
        assert status(world)["ingress"] == INGRESS
        assert operation(world) == ("Create", "Succeeded")
        assert (world.exposure() or {})["metadata"]["finalizers"] == [FINALIZER]
        assert set(world.objects()) == ALL

        document = wanted()
        document["spec"]["endpoints"].pop()
        world.put(document, manager="gardenlet")
        eventually(lambda: is_ready(world) and world.endpoints("ipv4") == ["10.0.1.11", "10.0.1.12"])

        world.put_node(node("cp-1", "10.0.1.11", ready="False"))
        eventually(lambda: world.endpoints("ipv4") == ["10.0.1.12"])
        world.put_node(node("cp-2", "10.0.1.12", ready="False"))
        eventually(lambda: operation(world) == ("Reconcile", "Error"))
        assert "no healthy control-plane node" in status(world)["lastError"]["description"]
        assert status(world)["ingress"] == INGRESS
        assert world.endpoints("ipv4") == ["10.0.1.12"]

        document["spec"]["providerConfig"]["announce"] = "pigeon"
        world.put(document, manager="gardenlet")
        eventually(lambda: "spec.providerConfig.announce" in status(world)["lastError"]["description"])
        assert status(world)["lastError"]["codes"] == ["ERR_CONFIGURATION_PROBLEM"]
        assert status(world)["ingress"] == INGRESS

        for name in ("cp-1", "cp-2"):
            world.put_node(node(name, "10.0.1.11"))
        world.put({**document, "spec": wanted()["spec"]}, manager="gardenlet")
        eventually(lambda: is_ready(world))
        assert "lastError" not in status(world)

        world.remove("SelfHostedShootExposure", "root")
        eventually(lambda: gone(world))


def test_others_are_not_its_business(world: World, log: Path) -> None:
    """Another type, another class; one that is being deleted and never was ours."""
    other, classed, going = manifest(name="other"), manifest(name="classed"), manifest(name="going")
    other["spec"]["type"] = "local"
    classed["spec"]["class"] = "seed"
    going["metadata"]["finalizers"] = ["example.org/hold"]
    for each in (other, classed, going):
        world.put(each)
    world.remove("SelfHostedShootExposure", "going")
    world.put(manifest(name="root"))
    with world.cilium(), world.controller("--no-leader-election", log=log):
        eventually(lambda: is_ready(world))
    assert set(world.objects()) == ALL
    for name in ("other", "classed", "going"):
        found = world.admin.get(exposure_path("kube-system", name)) or {}
        assert "status" not in found
        assert FINALIZER not in found["metadata"].get("finalizers", [])
    with world.cilium(), world.controller("--no-leader-election", "--class=seed", log=log):
        eventually(lambda: "Service exposure-classed" in world.objects())


def test_a_name_that_is_too_long_is_no_trap(world: World, log: Path) -> None:
    """Nothing can be made for it; it can be deleted all the same."""
    name = "a" * 70
    world.put(manifest(name=name))
    path = exposure_path("kube-system", name)
    with world.controller("--no-leader-election", log=log):
        eventually(lambda: "metadata.name" in (world.admin.get(path) or {})["status"]["lastError"]["description"])
        world.remove("SelfHostedShootExposure", name)
        eventually(lambda: world.admin.get(path) is None)


def test_it_says_nothing_twice(world: World, log: Path) -> None:
    """An error is written once, not at every pass: a status that changed would call for the next pass."""
    world.put(manifest())
    for name in ("cp-1", "cp-2", "cp-3"):
        world.put_node(node(name, ready="False"))
    with world.controller("--no-leader-election", log=log):
        eventually(lambda: "the endpoints stay as they are" in str(status(world).get("lastError")))
        before = (world.exposure() or {})["metadata"]["resourceVersion"]
        # Four more passes: each makes a Service that is removed again.
        for _each in range(4):
            world.remove("Service", "exposure-root")
            eventually(lambda: "Service exposure-root" in world.objects())
        assert (world.exposure() or {})["metadata"]["resourceVersion"] == before
    assert log.read_text().count("the endpoints stay as they are; IPv6") == 1


def test_killed_and_started_again(world: World, log: Path) -> None:
    """At any moment of making and of deleting, several times."""
    world.put(manifest())
    with world.cilium():
        for position in (1, 3, 5):
            with world.controller("--no-leader-election", log=log):
                eventually(lambda position=position: len(world.objects()) >= position)
        with world.controller("--no-leader-election", log=log):
            eventually(lambda: is_ready(world))
        assert set(world.objects()) == ALL
        service = world.objects()["Service exposure-root"]
        world.admin.patch(where(service), {"metadata": {"finalizers": ["example.org/hold"]}})
        world.remove("SelfHostedShootExposure", "root")
        with world.controller("--no-leader-election", log=log):
            eventually(lambda: "deletionTimestamp" in world.objects()["Service exposure-root"]["metadata"])
            eventually(lambda: operation(world) == ("Delete", "Processing"))
        assert len(world.endpoints("ipv4")) == 3
        world.admin.patch(where(service), {"metadata": {"finalizers": None}})
        for left in (3, 1):
            with world.controller("--no-leader-election", log=log):
                eventually(lambda left=left: len(world.objects()) <= left)
        with world.controller("--no-leader-election", log=log):
            eventually(lambda: gone(world))


def test_sigterm_and_leadership(world: World, log: Path, tmp_path: Path) -> None:
    """One leads, the other waits; a SIGTERM hands the Lease over."""
    lease = path_of("coordination.k8s.io/v1", "leases", "kube-system", "firewall-cleanup-exposure")

    def holder() -> str:
        return str((world.admin.get(lease) or {"spec": {}})["spec"].get("holderIdentity"))

    port = free_port()
    second = tmp_path / "second.log"
    with (
        world.cilium(),
        world.controller("--identity=a", f"--health-port={port}", log=log) as first,
    ):
        eventually(lambda: holder() == "a")
        with world.controller("--identity=b", log=second):
            world.put(manifest())
            eventually(lambda: is_ready(world))
            assert health(port, "/healthz")[0] == health(port, "/readyz")[0] == 200
            assert health(port, "/nothing")[0] == 404
            assert health(port, "/readyz")[1]["leading"] is True
            eventually(lambda: "health at port" in second.read_text())
            assert "leading" not in second.read_text()
            first.send_signal(signal.SIGTERM)
            assert first.wait(timeout=30) == 0
            assert "stopped" in log.read_text()
            eventually(lambda: holder() == "b")
            world.remove("SelfHostedShootExposure", "root")
            eventually(lambda: gone(world))


def health(port: int, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_missing_right_is_an_error_that_names_it(world: World, log: Path) -> None:
    path = path_of("rbac.authorization.k8s.io/v1", "roles", "kube-system", "firewall-cleanup-exposure")
    role = world.admin.get(path) or {}
    world.put(manifest())
    try:
        world.admin.patch(path, {"rules": [each for each in role["rules"] if "services" not in each["resources"]]})
        with world.cilium(), world.controller("--no-leader-election", log=log):
            eventually(lambda: 'resource "services"' in status(world)["lastError"]["description"])
            assert operation(world) == ("Create", "Error")
            world.admin.patch(path, {"rules": role["rules"]})
            eventually(lambda: is_ready(world))
    finally:
        world.admin.patch(path, {"rules": role["rules"]})


def test_without_the_definition_there_is_nothing_to_do_and_it_says_so(world: World, log: Path) -> None:
    path = path_of(
        "apiextensions.k8s.io/v1",
        "customresourcedefinitions",
        None,
        "selfhostedshootexposures.extensions.gardener.cloud",
    )
    world.admin.delete(path, (world.admin.get(path) or {})["metadata"]["uid"])
    eventually(lambda: world.admin.get(path) is None)
    port = free_port()
    try:
        with world.cilium(), world.controller("--no-leader-election", f"--health-port={port}", log=log):
            eventually(lambda: "does not serve SelfHostedShootExposure" in log.read_text())
            code, told = health(port, "/readyz")
            assert (code, "does not serve" in told["trouble"]) == (503, True)
            assert health(port, "/healthz")[0] == 200
            world.prepare()
            world.put(manifest())
            eventually(lambda: is_ready(world))
            assert health(port, "/readyz")[0] == 200
    finally:
        world.prepare()


# the API server and its etcd


def test_the_api_server_is_started_again(world: World, log: Path) -> None:
    """What happens after it is heard of: the next pass without an event would be in an hour."""
    world.put(manifest())
    with world.cilium(), world.controller("--resync=3600", log=log) as process:
        eventually(lambda: is_ready(world))
        world.cluster.stop("apiserver", kill=True)
        eventually(lambda: "no pass" in log.read_text() or process.poll() is not None)
        world.cluster.start_apiserver()
        document = manifest()
        document["spec"]["endpoints"].pop(0)
        eventually(lambda: world.put(document))
        eventually(lambda: world.endpoints("ipv6") == ["fd00:1::12", "fd00:1::13"])
        assert process.poll() is None


def test_etcd_is_swapped_for_an_older_one(world: World, log: Path) -> None:
    """The older state lacks a node and has other addresses; what it lacks is made, what it has becomes right."""
    world.put(manifest(addresses=["192.0.2.9", "2001:db8::9"]))
    store = f"before-{log.parent.name}"
    # It converges by what it hears alone: the next pass without an event would be in an hour.
    with world.cilium(), world.controller("--resync=3600", log=log) as process:
        eventually(lambda: is_ready(world))
        world.cluster.keep(store)
        document = manifest()
        document["spec"]["endpoints"].append(document["spec"]["endpoints"][0] | {"nodeName": "cp-4"})
        eventually(lambda: world.put(document))
        eventually(lambda: is_ready(world) and len(world.endpoints("ipv4")) == 4)
        version = int((world.exposure() or {})["metadata"]["resourceVersion"])

        world.cluster.swap(store)
        eventually(lambda: [world.exposure()])
        assert int((world.exposure() or {})["metadata"]["resourceVersion"]) < version
        eventually(lambda: is_ready(world))
        assert [each["ip"] for each in status(world)["ingress"]] == ["192.0.2.9", "2001:db8::9"]
        # It hears of what happens now, by no watch of the old store.
        eventually(lambda: world.put(document))
        eventually(lambda: is_ready(world) and len(world.endpoints("ipv4")) == 4)
        assert status(world)["ingress"] == INGRESS
        world.remove("SelfHostedShootExposure", "root")
        eventually(lambda: gone(world))
        assert process.poll() is None


# test_recorded_run.py swaps it for an empty one.


def test_an_exposure_that_vanished_takes_nothing_with_it(world: World, log: Path) -> None:
    """That a list lacks it is no wish to remove it: only a deletion is. It is reported, and removed by command."""
    world.put(manifest())
    with world.cilium(), world.controller("--no-leader-election", log=log):
        eventually(lambda: is_ready(world))
        # As a store restored from before it was made, or a finalizer that somebody took off.
        with contextlib.suppress(ApiError):
            world.admin.patch(exposure_path("kube-system", "root"), {"metadata": {"finalizers": None}})
        world.remove("SelfHostedShootExposure", "root")
        world.put(manifest(name="second", addresses=["192.0.2.20", "2001:db8::20"]))
        eventually(lambda: "Service exposure-second" in world.objects())
        assert set(world.objects()) >= ALL
    if world.exposure() is not None:
        pytest.skip("the finalizer was put back before the deletion came")
    done = world.command("delete", "root")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^nothing of the exposure is left$", done.stdout, re.MULTILINE)
    assert not set(world.objects()) & ALL
