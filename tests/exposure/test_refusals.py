"""What is refused, and what changes between a look and a write: nothing that works is lost, and it is told."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from exposures import NODES, manifest, node
from world import LABELS, Double, World, eventually, where

from firewall_cleanup.exposure import Apis, CiliumVersion, build, parse
from firewall_cleanup.exposure.client import ApiError, Client, NotReady, path_of
from firewall_cleanup.exposure.controller import ControllerSettings, ExposureController
from firewall_cleanup.exposure.reconcile import Reconciliation, take_down
from firewall_cleanup.exposure.status import FINALIZER, adopt, exposure_path, release, write_status

pytestmark = pytest.mark.apiserver

PEERS = {"localASN": 65000, "peers": [{"address": "10.0.0.1", "asn": 1}]}
SERVICES = path_of("v1", "services", "kube-system")


def controller(world: World) -> ExposureController:
    """One in this process, without its threads, whose passes are made by the test."""
    return ExposureController(world.client, ControllerSettings(cilium=CiliumVersion(1, 19)))


def operation(world: World) -> dict[str, Any]:
    found = (world.exposure() or {}).get("status", {})
    return dict(found.get("lastOperation") or {})


def expose(world: World, document: dict[str, Any]) -> None:
    world.reconcile(document)
    Double(world.admin, world.apis).step()
    assert world.reconcile(document).state == "Succeeded"


@contextlib.contextmanager
def dead_webhook(world: World) -> Iterator[None]:
    """Services cannot be written, as a webhook that has its say cannot be reached."""
    webhook = {
        "name": "dead.example.org",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "timeoutSeconds": 1,
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["services"],
            }
        ],
    }
    api = "admissionregistration.k8s.io/v1"
    hooks = path_of(api, "validatingwebhookconfigurations")
    kind = "ValidatingWebhookConfiguration"
    made = world.admin.create(
        hooks, {"apiVersion": api, "kind": kind, "metadata": {"name": "dead"}, "webhooks": [webhook]}
    )

    def refused() -> bool:
        body = {"metadata": {"name": "x"}, "spec": {"ports": [{"port": 1}]}}
        try:
            world.admin._request("POST", SERVICES, body=body, dryRun="All")
        except ApiError as error:
            return "failed calling webhook" in str(error)
        return False

    try:
        eventually(refused)
        yield
    finally:
        world.admin.delete(f"{hooks}/dead", made["metadata"]["uid"])
        eventually(lambda: not refused())


def test_an_error_of_the_server_that_lasts_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """At its second time in a row; and what is not refused goes on."""
    caplog.set_level(logging.INFO)
    working = controller(world)
    world.put(manifest())
    working.run_pass()
    Double(world.admin, world.apis).step()
    working.run_pass()
    assert operation(world)["state"] == "Succeeded"
    ingress = (world.exposure() or {})["status"]["ingress"]
    with dead_webhook(world):
        world.put_node(node("cp-1", *NODES["cp-1"], ready="False"))
        assert working.run_pass() == 2.0
        assert world.endpoints("ipv4") == ["10.0.1.12", "10.0.1.13"]
        assert operation(world)["state"] == "Succeeded"
        assert working.ready()[0]
        working.run_pass()
        found = operation(world)
        assert found["state"] == "Processing"
        assert found["description"].startswith("the API server refuses for now: Service kube-system/exposure-root: ")
        assert "failed calling webhook" in found["description"]
        assert (world.exposure() or {})["status"]["ingress"] == ingress
        assert "failed calling webhook" in caplog.text
        ready, told = working.ready()
        assert (ready, "failed calling webhook" in told["trouble"]) == (False, True)
    working.run_pass()
    assert operation(world)["state"] == "Succeeded"
    assert working.ready()[0]


def test_a_conflict_with_who_was_faster_is_told_when_it_lasts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    working = controller(world)
    world.put(manifest())
    found = world.exposure() or {}
    patch = Client.patch

    def late(client: Client, path: str, change: dict[str, Any]) -> Any:
        if client is world.client and not path.endswith("/status"):
            raise ApiError(409, "Conflict", "the object has been modified")
        return patch(client, path, change)

    monkeypatch.setattr(Client, "patch", late)
    working.run_pass()
    assert world.exposure() == found
    working.run_pass()
    expected = "the API server refuses for now: the object has been modified"
    assert (operation(world)["state"], operation(world)["description"]) == ("Processing", expected)
    monkeypatch.undo()
    working.run_pass()
    assert operation(world)["description"] != expected


def test_a_fault_with_one_exposure_does_not_reach_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the process: it is in the status, and in the log."""
    working = controller(world)
    world.put(manifest(name="a", addresses=["192.0.2.20", "2001:db8::20"]))
    world.put(manifest())
    get = Client.get

    def odd(client: Client, path: str) -> Any:
        if path.endswith("/exposure-a"):
            raise KeyError("odd")
        return get(client, path)

    monkeypatch.setattr(Client, "get", odd)
    working.run_pass()
    found = world.admin.get(exposure_path("kube-system", "a")) or {}
    assert found["status"]["lastError"]["description"] == "unexpected KeyError: 'odd'"
    assert "Service exposure-root" in world.objects()


# a change that cannot be made whole


def test_what_works_is_kept_until_its_successor_can_be_made(world: World) -> None:
    expose(world, manifest())
    before = world.objects()
    other: dict[str, Any] = {
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumBGPAdvertisement",
        "metadata": {"name": "exposure-root"},
        "spec": {"advertisements": [{"advertisementType": "PodCIDR"}]},
    }
    taken = world.put(other, manager="somebody")
    document = manifest(announce="bgp", bgp=PEERS, addresses=["192.0.2.11", "2001:db8::11"])
    world.put_node(node("cp-1", ready="False"))
    for _twice in range(2):
        outcome = world.reconcile(document)
        assert outcome.state == "Error"
        assert "CiliumBGPAdvertisement exposure-root is not ours" in outcome.description
        assert "Service kube-system/exposure-root stays as it is until that is right" in outcome.description
        after = world.objects()
        for each in ("Service", "CiliumLoadBalancerIPPool", "CiliumL2AnnouncementPolicy"):
            assert after[f"{each} exposure-root"] == before[f"{each} exposure-root"]
        assert world.endpoints("ipv4") == ["10.0.1.12", "10.0.1.13"]
    world.admin.delete(where(taken), taken["metadata"]["uid"])
    world.reconcile(document)
    expose(world, document)
    assert "CiliumL2AnnouncementPolicy exposure-root" not in world.objects()


def test_what_works_is_kept_until_its_successor_has_gone_and_can_be_made(world: World) -> None:
    """The advertisement of a former time is being deleted, which something holds up."""
    bgp = manifest(announce="bgp", bgp=PEERS)
    world.reconcile(bgp)
    held = world.objects()["CiliumBGPAdvertisement exposure-root"]
    world.admin.patch(where(held), {"metadata": {"finalizers": ["example.org/hold"]}})
    world.reconcile(manifest())
    expose(world, manifest())
    before = world.objects()
    assert before["CiliumBGPAdvertisement exposure-root"]["metadata"]["deletionTimestamp"]
    for _twice in range(2):
        outcome = world.reconcile(bgp)
        assert outcome.state == "Processing"
        assert "CiliumBGPAdvertisement exposure-root is being deleted" in outcome.description
        assert "Service kube-system/exposure-root stays as it is until that is right" in outcome.description
        after = world.objects()
        for each in ("Service", "CiliumLoadBalancerIPPool", "CiliumL2AnnouncementPolicy"):
            assert after[f"{each} exposure-root"] == before[f"{each} exposure-root"]
    world.admin.patch(where(held), {"metadata": {"finalizers": None}})
    world.reconcile(bgp)
    expose(world, bgp)
    assert "CiliumL2AnnouncementPolicy exposure-root" not in world.objects()


def test_a_status_that_cannot_be_written_keeps_nothing_else_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put(manifest())
    working = controller(world)
    working.run_pass()
    document = manifest()
    del document["spec"]["endpoints"][0]
    world.put(document)
    patch = Client.patch

    def refuse(self: Client, path: str, change: dict[str, Any]) -> dict[str, Any] | None:
        if path.endswith("/status"):
            raise ApiError(500, "InternalError", "not now")
        return patch(self, path, change)

    with monkeypatch.context() as patched:
        patched.setattr(Client, "patch", refuse)
        working.run_pass()
    assert world.endpoints("ipv4") == ["10.0.1.12", "10.0.1.13"]
    assert world.endpoints("ipv6") == ["fd00:1::12", "fd00:1::13"]


def test_a_service_asks_for_no_address_that_its_pool_has_not(world: World) -> None:
    """The pool cannot be changed, as another manager owns its blocks."""
    expose(world, manifest())
    pool = {
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumLoadBalancerIPPool",
        "metadata": {"name": "exposure-root"},
        "spec": {"blocks": world.objects()["CiliumLoadBalancerIPPool exposure-root"]["spec"]["blocks"]},
    }
    world.put(pool, manager="somebody")
    before = world.objects()["Service exposure-root"]
    outcome = world.reconcile(manifest(addresses=["192.0.2.11", "2001:db8::11"]))
    assert (outcome.state, 'conflict with "somebody"' in outcome.description) == ("Error", True)
    assert world.objects()["Service exposure-root"] == before


@pytest.mark.parametrize("missing", ["a kind", "a feature"])
def test_endpoints_follow_the_nodes_whatever_this_cilium_cannot_do(world: World, missing: str) -> None:
    if missing == "a kind":
        less = {kind: api for kind, api in world.apis.versions.items() if kind != "CiliumNodeConfig"}
        apis, codes, text = Apis(less, world.apis.cilium), (), "does not serve CiliumNodeConfig"
    else:
        apis = attrs.evolve(world.apis, cilium=CiliumVersion(1, 18))
        codes, text = ("ERR_CONFIGURATION_PROBLEM",), "announces no IPv6 address by L2"
    # What is not there at all is not begun, and neither is a family.
    assert world.reconcile(manifest(), apis).state == "Error"
    assert world.objects() == {}
    world.reconcile(manifest("ipv4"))
    assert world.reconcile(manifest(), apis).state == "Error"
    assert "EndpointSlice exposure-root-ipv6" not in world.objects()
    expose(world, manifest())
    before = set(world.objects())
    world.put_node(node("cp-1", *NODES["cp-1"], ready="False"))
    outcome = world.reconcile(manifest(), apis)
    assert (outcome.state, outcome.codes, text in outcome.description) == ("Error", codes, True)
    assert (world.endpoints("ipv4"), world.endpoints("ipv6")) == (
        ["10.0.1.12", "10.0.1.13"],
        ["fd00:1::12", "fd00:1::13"],
    )
    assert set(world.objects()) == before


def test_the_port_changes_while_no_node_is_healthy(world: World) -> None:
    """The endpoints stay; the port is the manifest's matter."""
    document = manifest()
    world.reconcile(document)
    for name, addresses in NODES.items():
        world.put_node(node(name, *addresses, ready="False"))
    document["spec"]["port"] = 6443
    document["spec"]["endpoints"].pop()
    outcome = world.reconcile(document)
    assert "the endpoints stay as they are" in outcome.description
    objects = world.objects()
    assert [each["port"] for each in objects["Service exposure-root"]["spec"]["ports"]] == [6443]
    for family, position in (("ipv4", 0), ("ipv6", 1)):
        found = objects[f"EndpointSlice exposure-root-{family}"]
        assert [each["port"] for each in found["ports"]] == [6443]
        assert {each["nodeName"]: each["addresses"] for each in found["endpoints"]} == {
            name: [addresses[position]] for name, addresses in NODES.items()
        }


# what is left


def test_what_others_applied_is_said_to_be_left(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """As by `render | kubectl apply`, by command and by the controller."""
    caplog.set_level(logging.INFO)
    for each in build(parse(manifest()), world.apis):
        world.put(each, manager="kubectl")
    done = world.command("delete", "root")
    assert done.returncode == 0
    assert done.stdout.count("kept, not made by us: ") == 6
    assert done.stdout.endswith("\n6 objects are left that we did not make\n")
    world.put(manifest())
    adopt(world.client, world.exposure() or {})
    world.remove("SelfHostedShootExposure", "root")
    controller(world).run_pass()
    assert world.exposure() is None
    assert "deleted: 6 objects are left that we did not make: Service kube-system/exposure-root, " in caplog.text
    assert len(world.objects()) == 6


def test_what_lost_its_labels_is_said_to_be_left(world: World) -> None:
    world.reconcile(manifest(announce="bgp", bgp=PEERS))
    found = world.objects()
    for each in found.values():
        world.admin.patch(where(each), {"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}})
    removal = take_down(world.client, world.apis, LABELS, "kube-system")
    assert (removal.removed, removal.waiting) == ((), ())
    assert len(removal.kept) == len(found) == len(world.objects())
    assert removal.left == "8 objects are left that we did not make"


# what changes between a look and a write


def change(world: World) -> dict[str, Any]:
    """Somebody else's finalizer comes to the exposure that was read before."""
    found = world.exposure() or {}
    path = exposure_path("kube-system", "root")
    world.admin.patch(path, {"metadata": {"finalizers": ["example.org/other"]}})
    return found


def test_an_exposure_that_changed_is_not_adopted(world: World) -> None:
    world.put(manifest())
    before = change(world)
    with pytest.raises(ApiError) as error:
        adopt(world.client, before)
    assert error.value.code == 409
    assert (world.exposure() or {})["metadata"]["finalizers"] == ["example.org/other"]


def test_an_exposure_that_changed_is_not_released(world: World) -> None:
    world.put(manifest())
    adopt(world.client, world.exposure() or {})
    before = change(world)
    assert before["metadata"]["finalizers"] == [FINALIZER]
    with pytest.raises(ApiError) as error:
        release(world.client, before)
    assert error.value.code == 409
    assert (world.exposure() or {})["metadata"]["finalizers"] == ["example.org/other"]


def test_no_status_goes_to_another_exposure_of_the_name(world: World) -> None:
    world.put(manifest())
    before = world.exposure() or {}
    world.remove("SelfHostedShootExposure", "root")
    world.put(manifest())
    with pytest.raises(ApiError) as error:
        write_status(world.client, before, Reconciliation("Error", "of the old one"))
    assert error.value.code == 409
    assert "status" not in (world.exposure() or {})


def test_an_object_that_was_replaced_is_not_changed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our look and our apply somebody puts another Service there."""
    world.reconcile(manifest())
    apply = Client.apply

    def slow(client: Client, path: str, wanted: dict[str, Any]) -> Any:
        if path.endswith("/services/exposure-root"):
            world.remove("Service", "exposure-root")
            spec = {"ports": [{"name": "web", "port": 80, "protocol": "TCP"}]}
            metadata = {"name": "exposure-root", "namespace": "kube-system"}
            world.put({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}, "somebody")
        return apply(client, path, wanted)

    monkeypatch.setattr(Client, "apply", slow)
    outcome = world.reconcile(manifest())
    assert (outcome.state, outcome.passing) == ("Processing", True)
    found = world.objects()["Service exposure-root"]
    assert found["spec"]["type"] == "ClusterIP"
    assert "labels" not in found["metadata"]


def test_no_pass_while_the_server_has_not_finished_its_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lists may be empty: a deletion would take that for done."""
    world.put(manifest())
    adopt(world.client, world.exposure() or {})
    world.remove("SelfHostedShootExposure", "root")
    before = world.exposure()
    wrote: list[bool] = []
    world.client.may_write = lambda: [wrote.append(True), True][1] is True

    def early(client: Client) -> None:
        raise NotReady("it has not finished its start")

    with monkeypatch.context() as patch:
        patch.setattr(Client, "check_ready", early)
        with pytest.raises(NotReady):
            controller(world).run_pass()
    assert (world.exposure(), wrote) == (before, [])
    controller(world).run_pass()
    assert (world.exposure(), wrote) == (None, [True])
