"""Reconciling against a real API server, with the controller's rights and no more."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import pytest
from exposures import ADDRESSES, FAMILIES, NODES, manifest, node
from servers import ACCOUNT
from world import LABELS, Double, World, where

from firewall_cleanup.exposure import Apis, CiliumVersion, build, parse
from firewall_cleanup.exposure.client import ApiError, Client, NotLeading, path_of
from firewall_cleanup.exposure.reconcile import reconcile, take_down

pytestmark = pytest.mark.apiserver

KINDS = {
    "l2": {"CiliumLoadBalancerIPPool", "CiliumL2AnnouncementPolicy", "CiliumNodeConfig", "EndpointSlice", "Service"},
    "bgp": {"CiliumLoadBalancerIPPool", "CiliumBGPAdvertisement", "CiliumNodeConfig", "EndpointSlice", "Service"},
}
PEERS: dict[str, Any] = {
    "localASN": 65000,
    "peers": [{"address": "10.0.0.1", "asn": 1}, {"address": "fd00::1", "asn": 1, "port": 1790}],
}


def double(world: World, *families: int) -> Double:
    """Cilium, which has looked once."""
    found = Double(world.admin, world.apis, families or (4, 6))
    found.step()
    return found


def kinds(world: World) -> set[str]:
    return {name.partition(" ")[0] for name in world.objects()}


@pytest.mark.parametrize("families", ["dual", "ipv4", "ipv6"])
@pytest.mark.parametrize("announce", ["l2", "bgp"])
def test_exposed_and_taken_back(world: World, families: str, announce: str) -> None:
    document = manifest(families, announce=announce)
    first = world.reconcile(document)
    assert (first.state, first.addresses) == ("Processing", ())
    assert {each.done for each in first.objects} == {"created"}
    assert kinds(world) == KINDS[announce]
    double(world)
    second = world.reconcile(document)
    assert (second.state, second.addresses) == ("Succeeded", tuple(ADDRESSES[each] for each in FAMILIES[families]))
    assert not second.changed
    for position, family in enumerate(("ipv4", "ipv6")):
        wanted = [addresses[position] for addresses in NODES.values()]
        assert world.endpoints(family) == (wanted if families in {"dual", family} else [])

    removed = take_down(world.client, world.apis, LABELS, "kube-system")
    assert removed.gone
    assert removed.removed[0] == "Service kube-system/exposure-root"
    assert world.objects() == {}
    again = take_down(world.client, world.apis, LABELS, "kube-system")
    assert (again.gone, again.removed) == (True, ())


def test_every_manifest_is_taken_as_it_is(world: World) -> None:
    """Strictly: not a field is dropped, by today's kinds and by those of Cilium 1.17."""
    documents = [
        manifest(),
        manifest("ipv4"),
        manifest(announce="bgp", bgp={**PEERS, "authSecret": "s", "ebgpMultihop": 2}),
    ]
    for document in documents:
        for version in ("1.17", "1.19"):
            document["spec"]["providerConfig"] |= {"announce": "bgp"}
            for each in build(parse(document), Apis.of_version(CiliumVersion.parse(version))):
                world.put(each)


def test_endpoints_follow_the_nodes(world: World) -> None:
    document = manifest()
    world.reconcile(document)
    world.put_node(node("cp-2", *NODES["cp-2"], ready="False"))
    world.reconcile(document)
    assert world.endpoints("ipv4") == ["10.0.1.11", "10.0.1.13"]
    document["spec"]["endpoints"] = document["spec"]["endpoints"][1:]  # cp-1 is gone, cp-2 still unhealthy
    world.reconcile(document)
    assert (world.endpoints("ipv4"), world.endpoints("ipv6")) == (["10.0.1.13"], ["fd00:1::13"])
    world.put_node(node("cp-2", *NODES["cp-2"]))
    world.reconcile(document)
    assert world.endpoints("ipv6") == ["fd00:1::12", "fd00:1::13"]


def test_the_last_good_endpoints_stay(world: World) -> None:
    document = manifest()
    world.reconcile(document)
    double(world)
    for name, addresses in NODES.items():
        world.put_node(node(name, *addresses, ready="Unknown"))
    outcome = world.reconcile(document)
    assert outcome.state == "Error"
    assert "IPv4: no healthy control-plane node (cp-1: Ready is Unknown" in outcome.description
    assert world.endpoints("ipv4") == [v4 for v4, _v6 in NODES.values()]
    assert world.endpoints("ipv6") == [v6 for _v4, v6 in NODES.values()]
    assert outcome.addresses == ("192.0.2.10", "2001:db8::10")


def test_no_node_is_healthy_from_the_start(world: World) -> None:
    """Those of the manifest are used: who wrote it took them for healthy."""
    for name, addresses in NODES.items():
        world.put_node(node(name, *addresses, ready="False"))
    outcome = world.reconcile(manifest())
    assert outcome.state == "Error"
    assert "those of the manifest are used" in outcome.description
    assert len(world.endpoints("ipv6")) == 3


def test_nodes_of_the_cluster(world: World) -> None:
    document = manifest(endpoints="nodes")
    world.reconcile(document)
    world.put_node(node("cp-4", "10.0.1.14", "fd00:1::14"))
    world.remove("Node", "cp-1")
    world.put_node(node("cp-2"))  # without an address
    world.reconcile(document)
    assert (world.endpoints("ipv4"), world.endpoints("ipv6")) == (
        ["10.0.1.13", "10.0.1.14"],
        ["fd00:1::13", "fd00:1::14"],
    )
    world.put_node(node("cp-3", "10.0.1.13"))
    world.put_node(node("cp-4", "10.0.1.14"))
    outcome = world.reconcile(document)
    assert outcome.state == "Error"
    assert (
        "IPv6: no healthy node has an InternalIP (cp-2: it has no address); the endpoints stay" in outcome.description
    )
    assert world.endpoints("ipv6") == ["fd00:1::13", "fd00:1::14"]


@pytest.mark.parametrize("dropped", ["IPv4", "IPv6"])
def test_a_family_is_dropped_and_wanted_again(world: World, dropped: str) -> None:
    kept = "ipv6" if dropped == "IPv4" else "ipv4"
    world.reconcile(manifest())
    double(world)
    assert world.reconcile(manifest()).state == "Succeeded"
    for _each in range(3):  # the Service is made anew if its first family is dropped
        world.reconcile(manifest(kept))
    double(world)
    outcome = world.reconcile(manifest(kept))
    assert (outcome.state, outcome.addresses) == ("Succeeded", (ADDRESSES[FAMILIES[kept][0]],))
    objects = world.objects()
    assert f"EndpointSlice exposure-root-{dropped.lower()}" not in objects
    assert objects["CiliumLoadBalancerIPPool exposure-root"]["spec"]["blocks"] == [{"start": outcome.addresses[0]}]
    assert objects["Service exposure-root"]["spec"]["ipFamilies"] == FAMILIES[kept]
    for _each in range(3):
        world.reconcile(manifest())
    double(world)
    assert world.reconcile(manifest()).addresses == tuple(ADDRESSES.values())


def test_a_partial_answer_is_not_enough(world: World) -> None:
    world.reconcile(manifest())
    cilium = double(world, 4)
    outcome = world.reconcile(manifest())
    assert (outcome.state, outcome.addresses) == ("Processing", ())
    assert "waiting for Cilium to give an IPv6 address" in outcome.description
    cilium.families = (4, 6)
    cilium.step()
    assert world.reconcile(manifest()).state == "Succeeded"


def test_an_address_that_was_changed_counts_when_it_is_there(world: World) -> None:
    world.reconcile(manifest())
    cilium = double(world)
    document = manifest(addresses=["192.0.2.11", "2001:db8::10"])
    outcome = world.reconcile(document)
    assert (outcome.state, outcome.addresses) == ("Processing", ())
    cilium.step()
    assert world.reconcile(document).addresses == ("192.0.2.11", "2001:db8::10")


def test_a_pool_in_conflict(world: World) -> None:
    pool = {
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumLoadBalancerIPPool",
        "metadata": {"name": "an-older-one"},
        "spec": {
            "blocks": [{"start": "2001:db8::1", "stop": "2001:db8::10"}],
            "serviceSelector": {"matchLabels": {"a": "b"}},
        },
    }
    world.put(pool)
    world.reconcile(manifest(name="root"))
    double(world)
    outcome = world.reconcile(manifest())
    assert outcome.state == "Error"
    assert "the pool is in conflict with another" in outcome.description
    world.remove("CiliumLoadBalancerIPPool", "an-older-one")
    double(world)
    assert world.reconcile(manifest()).state == "Succeeded"


def test_the_way_of_announcing_changes(world: World) -> None:
    """The class of a Service cannot be changed: it is made anew; what belongs to the old way goes."""
    world.reconcile(manifest())
    document = manifest(announce="bgp", bgp=PEERS)
    first = world.reconcile(document)
    assert "is made anew, as its loadBalancerClass cannot be changed" in first.description
    world.reconcile(document)
    double(world)
    assert world.reconcile(document).state == "Succeeded"
    assert kinds(world) == KINDS["bgp"] | {"CiliumBGPPeerConfig", "CiliumBGPClusterConfig"}
    document["spec"]["providerConfig"]["bgp"]["peers"].pop()
    document["spec"]["providerConfig"]["apiServerURLs"] = []
    world.reconcile(document)
    found = world.objects()
    assert "CiliumBGPPeerConfig exposure-root-179" in found
    assert "CiliumBGPPeerConfig exposure-root-1790" not in found
    assert "CiliumNodeConfig exposure-root" not in found


def test_cilium_is_updated(world: World) -> None:
    """From a release with v2alpha1 to one with v2: the objects stay the same ones, and are still ours."""
    old, new = (
        attrs.evolve(Apis.of_version(CiliumVersion(1, minor)), cilium=CiliumVersion(1, 19)) for minor in (17, 19)
    )
    assert old.version_of("CiliumLoadBalancerIPPool") != new.version_of("CiliumLoadBalancerIPPool")
    world.reconcile(manifest(announce="bgp", bgp=PEERS), old)
    before = {name: each["metadata"]["uid"] for name, each in world.objects().items()}
    outcome = world.reconcile(manifest(announce="bgp", bgp=PEERS), new)
    assert "removed" not in {each.done for each in outcome.objects}
    assert {name: each["metadata"]["uid"] for name, each in world.objects().items()} == before
    peers = {**PEERS, "peers": PEERS["peers"][:1]}
    world.reconcile(manifest(announce="bgp", bgp=peers), new)
    assert len(before) - len(world.objects()) == 1
    assert take_down(world.client, old, LABELS, "kube-system").gone
    assert world.objects() == {}


def test_what_others_change_comes_back(world: World) -> None:
    world.reconcile(manifest())
    before = {name: each["spec"] if "spec" in each else each["endpoints"] for name, each in world.objects().items()}
    for kind, name in (("EndpointSlice", "exposure-root-ipv6"), ("CiliumLoadBalancerIPPool", "exposure-root")):
        world.remove(kind, name)
    world.reconcile(manifest())
    assert {
        name: each["spec"] if "spec" in each else each["endpoints"] for name, each in world.objects().items()
    } == before


# what is not ours


def foreign(world: World, **more: Any) -> dict[str, Any]:
    """A Service of our name that somebody else made."""
    made: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "exposure-root", "namespace": "kube-system", **more},
        "spec": {"ports": [{"name": "web", "port": 80, "protocol": "TCP"}]},
    }
    return world.put(made, manager="somebody")


@pytest.mark.parametrize("labels", [{}, LABELS], ids=["no labels", "our labels, copied"])
def test_a_foreign_object_of_our_name_is_left_alone(world: World, labels: dict[str, str]) -> None:
    before = foreign(world, labels=labels)
    outcome = world.reconcile(manifest())
    assert outcome.state == "Error"
    assert "Service kube-system/exposure-root is not ours" in outcome.description
    assert len(world.endpoints("ipv4")) == 3  # the rest is as it should be
    removal = take_down(world.client, world.apis, LABELS, "kube-system")
    assert removal.gone
    assert removal.kept == ("Service kube-system/exposure-root",)
    assert list(world.objects()) == ["Service exposure-root"]
    assert world.admin.get(where(before)) == before


def test_a_slice_of_another_service_is_left_alone(world: World) -> None:
    world.reconcile(manifest())
    other = copy.deepcopy(world.objects()["EndpointSlice exposure-root-ipv4"])
    other["metadata"] = {"name": "mine", "namespace": "kube-system", "labels": other["metadata"]["labels"]}
    world.put(other, manager="somebody")
    assert "EndpointSlice mine" in world.objects()
    world.reconcile(manifest())
    take_down(world.client, world.apis, LABELS, "kube-system")
    assert list(world.objects()) == ["EndpointSlice mine"]


def test_a_conflict_with_another_manager_is_reported(world: World) -> None:
    world.reconcile(manifest())
    service = world.objects()["Service exposure-root"]
    taken = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "exposure-root", "namespace": "kube-system"},
        "spec": {"externalTrafficPolicy": "Local"},
    }
    world.put(taken, manager="somebody")
    outcome = world.reconcile(manifest())
    assert outcome.state == "Error"
    assert 'conflict with "somebody"' in outcome.description
    assert "externalTrafficPolicy" in outcome.description
    assert world.objects()["Service exposure-root"]["spec"]["externalTrafficPolicy"] == "Local"
    assert service["metadata"]["uid"] == world.objects()["Service exposure-root"]["metadata"]["uid"]


def test_somebody_makes_it_at_the_same_moment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our look and our apply: what was applied is taken back."""
    document = manifest()
    get = Client.get

    def slow(client: Client, path: str) -> Any:
        found = get(client, path)
        if path.endswith("/services/exposure-root") and found is None:
            monkeypatch.setattr(Client, "get", get)
            foreign(world)
        return found

    monkeypatch.setattr(Client, "get", slow)
    outcome = world.reconcile(document)
    assert outcome.state == "Error"
    assert "Service kube-system/exposure-root" in outcome.description
    found = world.objects()["Service exposure-root"]
    assert found["spec"]["type"] == "ClusterIP"
    assert [each["name"] for each in found["spec"]["ports"]] == ["web"]
    assert "labels" not in found["metadata"]


# taking down


@pytest.mark.parametrize(
    "held", ["Service exposure-root", "EndpointSlice exposure-root-ipv4", "CiliumLoadBalancerIPPool exposure-root"]
)
def test_each_stage_is_waited_for(world: World, held: str) -> None:
    world.reconcile(manifest())
    found = world.objects()[held]
    world.admin.patch(where(found), {"metadata": {"finalizers": ["example.org/hold"]}})
    order = ["Service", "EndpointSlice", "CiliumLoadBalancerIPPool", "CiliumL2AnnouncementPolicy", "CiliumNodeConfig"]
    for _twice in range(2):
        removal = take_down(world.client, world.apis, LABELS, "kube-system")
        assert not removal.gone
        assert "held by example.org/hold" in removal.waiting[0]
        left = [kind for kind in order if kind in kinds(world)]
        assert left == order[order.index(held.partition(" ")[0]) :]
    world.admin.patch(where(found), {"metadata": {"finalizers": None}})
    assert take_down(world.client, world.apis, LABELS, "kube-system").gone
    assert world.objects() == {}


def test_families_were_changed_before_the_deletion(world: World) -> None:
    world.reconcile(manifest())
    world.client.patch(where(world.objects()["Service exposure-root"]), {"metadata": {"labels": {"more": "1"}}})
    assert take_down(world.client, world.apis, LABELS, "kube-system").gone
    assert world.objects() == {}


def test_killed_between_any_two_requests(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reconciliation and a removal that stop after any number of writes are finished by the next."""

    class Killed(BaseException):
        pass

    request = Client._request
    left = 0

    def counting(client: Client, method: str, path: str, **more: Any) -> Any:
        nonlocal left
        if method != "GET":
            left -= 1
            if left < 0:
                raise Killed
        return request(client, method, path, **more)

    def killed_after(number: int, work: Any) -> bool:
        nonlocal left
        left = number
        with monkeypatch.context() as patch:
            patch.setattr(Client, "_request", counting)
            try:
                work()
            except Killed:
                return True
        return False

    wanted: set[str] = set()
    for number in (100, 0, 1, 2, 3, 4, 5):
        killed_after(number, lambda: world.reconcile(manifest()))
        world.reconcile(manifest())
        wanted = wanted or set(world.objects())
        assert set(world.objects()) == wanted
        killed_after(number, lambda: take_down(world.client, world.apis, LABELS, "kube-system"))
        assert take_down(world.client, world.apis, LABELS, "kube-system").gone
        assert world.objects() == {}


# rights


def test_it_has_no_more_rights_than_it_needs(world: World) -> None:
    for path in (
        path_of("v1", "secrets", "kube-system"),
        path_of("v1", "pods", "kube-system"),
        path_of("v1", "services", "default"),
        path_of("cilium.io/v2", "ciliumnodeconfigs", "default"),
    ):
        with pytest.raises(ApiError) as error:
            world.client.list(path)
        assert error.value.reason == "Forbidden"
        assert ACCOUNT in str(error.value)


def test_nothing_is_written_without_the_lease(world: World) -> None:
    client = Client.open(world.cluster.kubeconfig("controller"))
    client.may_write = lambda: False
    try:
        with pytest.raises(NotLeading):
            reconcile(client, parse(manifest()), world.apis, [])
        assert world.objects() == {}
    finally:
        client.close()


def test_discovery_that_lacks_a_kind_does_not_hide_its_objects(world: World) -> None:
    """As it may for a moment after a start: a removal asks for every kind all the same."""
    world.reconcile(manifest())
    bare = Apis({kind: api for kind, api in world.apis.versions.items() if not kind.startswith("Cilium")})
    assert take_down(world.client, bare, LABELS, "kube-system").gone
    assert world.objects() == {}


def test_a_server_that_has_not_finished_its_start_is_not_believed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lists may be empty: a removal would take that for done."""
    world.reconcile(manifest())
    before = set(world.objects())
    get = Client.get

    def early(client: Client, path: str) -> Any:
        return None if path.endswith("/default/services/kubernetes") else get(client, path)

    monkeypatch.setattr(Client, "get", early)
    for command in (("delete", "root"), ("status", "root")):
        done = world.command(*command)
        assert (done.returncode, done.stdout) == (1, "")
        assert "is not ready: it has not made its Service default/kubernetes yet" in done.stderr
    assert set(world.objects()) == before
