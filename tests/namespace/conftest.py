"""What several modules of namespace tests ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from legacy_node import LegacyNode, opened

from firewall_cleanup import Family
from firewall_cleanup.testing.namespaces import Sandbox


@pytest.fixture(params=list(Family))
def legacy_node(request: pytest.FixtureRequest, new_sandbox: Callable[..., Sandbox]) -> Iterator[LegacyNode]:
    with opened(new_sandbox(), request.param) as made:
        yield made
