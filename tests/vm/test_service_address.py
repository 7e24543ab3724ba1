"""Service addresses on dummy links, which not every kernel has."""

from __future__ import annotations

import pytest
from service_cases import (
    DAMAGES,
    PAIR,
    Damage,
    check_damage,
    check_foreign,
    check_own_device,
    ensured,
    make,
    state,
    usable,
)
from test_kernel import HAS_IPV6, pytestmark  # noqa: F401 - the same conditions hold here

from firewall_cleanup.service_address import ensure_service_address, remove_service_address
from firewall_cleanup.service_report import DeviceStatus
from firewall_cleanup.testing.namespaces import Sandbox

needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="this kernel runs without IPv6")


@needs_ipv6
@pytest.mark.parametrize(
    "damage", [pytest.param(damage, id=name) for name, damage in DAMAGES.items() if damage.harms("dummy")]
)
def test_damage_is_repaired(sandbox: Sandbox, damage: Damage) -> None:
    check_damage(sandbox, "dummy", damage)


@needs_ipv6
def test_a_device_of_our_own(sandbox: Sandbox) -> None:
    check_own_device(sandbox)


@needs_ipv6
def test_foreign_state_is_left(sandbox: Sandbox) -> None:
    check_foreign(sandbox, "dummy")


@needs_ipv6
def test_a_dummy_that_somebody_else_made_stays(sandbox: Sandbox) -> None:
    make(sandbox, "dummy", up=False)
    before = state(sandbox)
    report = ensured(sandbox, kind="dummy")
    assert report.device_status is DeviceStatus.PRESENT
    assert report.notes
    assert usable(sandbox) == PAIR
    assert remove_service_address(PAIR, "d0", netns=sandbox.path).ok
    assert state(sandbox) == before


@pytest.mark.skipif(HAS_IPV6, reason="this kernel has IPv6")
def test_the_kernel_without_ipv6(sandbox: Sandbox) -> None:
    """The other family works, and the report says what is missing."""
    sandbox.run("ip link set lo up")
    report = ensure_service_address(PAIR, "own", netns=sandbox.path)
    assert (report.ok, usable(sandbox)) == (False, PAIR[:1])
    assert "without IPv6" in report.problems[0]
    assert remove_service_address(PAIR, "own", netns=sandbox.path).device_status is DeviceStatus.REMOVED
