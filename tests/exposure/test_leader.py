"""The Lease: one leads; it is taken over, given up, and made again after it vanished."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from servers import Cluster
from world import World, eventually

from firewall_cleanup.exposure.client import Client, path_of
from firewall_cleanup.exposure.leader import Leader

pytestmark = pytest.mark.apiserver

LEASE = path_of("coordination.k8s.io/v1", "leases", "kube-system", "firewall-cleanup-exposure")


@contextlib.contextmanager
def leader(cluster: Cluster, identity: str) -> Iterator[Leader]:
    """One whose times are a tenth of the usual."""
    client = Client.open(cluster.kubeconfig("controller"))
    found = Leader(client, "kube-system", "firewall-cleanup-exposure", identity, lease=1.5, renew=1.0, retry=0.1)
    thread = found.start()
    try:
        yield found
    finally:
        found._stop.set()  # without giving it up, as if it were killed
        thread.join()
        client.close()


def holder(world: World) -> str:
    return str((world.admin.get(LEASE) or {"spec": {}})["spec"].get("holderIdentity"))


def test_one_that_is_killed_is_followed(world: World) -> None:
    with leader(world.cluster, "a") as first:
        eventually(first.held)
        with leader(world.cluster, "b") as second:
            found = world.admin.get(LEASE) or {}
            eventually(lambda: (world.admin.get(LEASE) or {})["spec"]["renewTime"] != found["spec"]["renewTime"])
            assert not second.held()
            first._stop.set()
            eventually(second.held)
            assert not first.held()
            assert holder(world) == "b"
            assert (world.admin.get(LEASE) or {})["spec"]["leaseTransitions"] == 1


def test_one_that_is_stopped_is_followed_at_once(world: World) -> None:
    with leader(world.cluster, "a") as first:
        eventually(first.held)
        first.stop()
        assert (holder(world), first.held()) == ("", False)
        with leader(world.cluster, "b") as second:
            eventually(second.held)


def test_a_lease_that_vanished_is_made_again(world: World) -> None:
    with leader(world.cluster, "a") as first:
        eventually(first.held)
        found = world.admin.get(LEASE) or {}
        world.admin.delete(LEASE, found["metadata"]["uid"])
        eventually(
            lambda: (
                (world.admin.get(LEASE) or {"metadata": found["metadata"]})["metadata"]["uid"]
                != found["metadata"]["uid"]
            )
        )
        assert holder(world) == "a"


def test_who_cannot_renew_does_not_lead(world: World) -> None:
    """Somebody else has the Lease: the old holder notices at its next try."""
    with leader(world.cluster, "a") as first:
        eventually(first.held)
        found = world.admin.get(LEASE) or {}
        world.admin.patch(LEASE, {"spec": {"holderIdentity": "c", "renewTime": found["spec"]["renewTime"]}})
        eventually(lambda: not first.held())
        eventually(lambda: first.held() and holder(world) == "a")  # the other one has not renewed it
