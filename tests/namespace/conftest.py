"""What several modules of namespace tests ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from legacy_node import LegacyNode, opened
from pods import Node
from scenes import Scene
from script_runs import Two
from wires import parse

from firewall_cleanup import Family, service_state
from firewall_cleanup.handlers._netlink import NetlinkSocket
from firewall_cleanup.testing.namespaces import Sandbox

_READING = 2  # of the types of rtnetlink, which go by fours: new, delete, get, set


@pytest.fixture(params=list(Family))
def legacy_node(request: pytest.FixtureRequest, new_sandbox: Callable[..., Sandbox]) -> Iterator[LegacyNode]:
    with opened(new_sandbox(), request.param) as made:
        yield made


@pytest.fixture
def own_kind(monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of link that is made, here one that every kernel of the tests has (not all have dummy links)."""
    monkeypatch.setattr(service_state, "OWN_KIND", "ifb")
    return "ifb"


@pytest.fixture
def node(new_sandbox: Callable[..., Sandbox]) -> Node:
    """A node with a bridge, for pods."""
    return Node(new_sandbox)


@pytest.fixture
def two(new_sandbox: Callable[..., Sandbox]) -> Two:
    """Two namespaces with the same in them: one for the script, one for the cleanup."""

    def make(scene: Scene, *, tools: str | None = None, also: str = "") -> tuple[Sandbox, Sandbox]:
        pair = new_sandbox(tools), new_sandbox(tools)
        for sandbox in pair:
            scene.load(sandbox)
            if also:
                sandbox.run(also)
        return pair

    return make


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """What was sent to change something: the types of the messages of each datagram."""
    found: list[tuple[int, ...]] = []
    original = NetlinkSocket.send

    def send(self: NetlinkSocket, data: bytes) -> None:
        kinds = tuple(kind for kind, _flags, _sequence, _payload in parse(data))
        if any(kind % 4 != _READING for kind in kinds):
            found.append(kinds)
        original(self, data)

    monkeypatch.setattr(NetlinkSocket, "send", send)
    return found
