"""A real API server for the tests of this folder, with the custom resources and the controller's rights in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from exposures import NODES, node
from servers import Cluster, Missing, find_binaries
from world import World


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One API server for all tests; a test that swaps its etcd leaves it with the empty one."""
    try:
        binaries = find_binaries()
    except Missing as reason:
        pytest.skip(str(reason))
    found = Cluster(tmp_path_factory.mktemp("cluster"), *binaries)
    try:
        found.start()
        yield found
    finally:
        found.close()


@pytest.fixture
def world(cluster: Cluster) -> Iterator[World]:
    """The cluster, empty but for three healthy nodes; what a test leaves is taken away after it."""
    found = World(cluster)
    try:
        found.prepare()
        for name, addresses in NODES.items():
            found.put_node(node(name, *addresses))
        yield found
        found.clean()
    finally:
        found.close()
