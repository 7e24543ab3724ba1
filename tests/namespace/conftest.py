"""What several modules of namespace tests ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from legacy_node import LegacyNode, opened

from firewall_cleanup import Family, service_state
from firewall_cleanup.testing.namespaces import Sandbox


@pytest.fixture(params=list(Family))
def legacy_node(request: pytest.FixtureRequest, new_sandbox: Callable[..., Sandbox]) -> Iterator[LegacyNode]:
    with opened(new_sandbox(), request.param) as made:
        yield made


@pytest.fixture
def own_kind(monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of link that is made, here one that every kernel of the tests has (not all have dummy links)."""
    monkeypatch.setattr(service_state, "OWN_KIND", "ifb")
    return "ifb"
