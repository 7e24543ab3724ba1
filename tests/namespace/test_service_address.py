"""A service address works once it is ensured, and again after each kind of damage; undoing leaves what was there."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from service_cases import (
    ADDED,
    DAMAGES,
    DEVICE,
    NO_RULES,
    PAIR,
    PRESENT,
    REPAIRED,
    RULES,
    V4,
    V6,
    Damage,
    check_damage,
    ensured,
    make,
    shell,
    state,
    statuses,
    usable,
)

from firewall_cleanup import Family, NamespaceError, service_state
from firewall_cleanup.errors import KernelError
from firewall_cleanup.handlers._service import ServiceConnection
from firewall_cleanup.service_address import ensure_service_address, remove_service_address
from firewall_cleanup.service_report import AddressStatus, DeviceStatus
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace

KINDS = ["bridge", "ifb", "veth"]


# what is as wanted


@pytest.mark.parametrize("kind", [*KINDS, "lo"])
@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
def test_it_can_be_bound_and_reached(sandbox: Sandbox, sent: list[tuple[int, ...]], kind: str, up: bool) -> None:
    device = "lo" if kind == "lo" else DEVICE
    make(sandbox, "bridge" if kind == "lo" else kind, up=up)
    before = state(sandbox)
    first = ensured(sandbox, device)
    assert statuses(first) == [ADDED, ADDED]
    assert usable(sandbox) == PAIR
    assert bool(first.notes) is (not up and device != "lo")
    after, count = state(sandbox), len(sent)

    again = ensured(sandbox, device)

    assert (statuses(again), again.changed) == ([PRESENT, PRESENT], False)
    assert len(sent) == count
    assert state(sandbox) == after
    assert f"inet {V4}/32 scope host {device}" in after
    removed = remove_service_address(PAIR, device, netns=sandbox.path)
    assert statuses(removed) == [AddressStatus.REMOVED] * 2
    assert removed.ok
    assert state(sandbox) == before
    gone = remove_service_address(PAIR, device, netns=sandbox.path)
    assert (statuses(gone), gone.ok, gone.changed) == ([AddressStatus.ABSENT] * 2, True, False)


CASES = [
    pytest.param(kind, damage, id=f"{kind}: {name}")
    for name, damage in DAMAGES.items()
    for kind in KINDS
    if damage.harms(kind)
]


@pytest.mark.parametrize(("kind", "damage"), CASES)
def test_damage_is_repaired(sandbox: Sandbox, kind: str, damage: Damage) -> None:
    check_damage(sandbox, kind, damage)


def test_our_own_scope_is_changed_without_a_moment_without_it(sandbox: Sandbox, sent: list[tuple[int, ...]]) -> None:
    """The address goes and comes in one datagram, so that a kill cannot come between."""
    make(sandbox, "bridge")
    ensured(sandbox, scope="global")
    assert f"inet {V4}/32 scope global {DEVICE}" in state(sandbox)
    sent.clear()
    assert statuses(ensured(sandbox)) == [REPAIRED, REPAIRED]
    assert sent == [(21, 20), (20,)]
    assert f"inet {V4}/32 scope host {DEVICE}" in state(sandbox)


@pytest.mark.parametrize("device", ["lo", DEVICE])
@pytest.mark.parametrize("scope", ["host", "global"])
def test_it_is_not_the_source_of_other_packets(sandbox: Sandbox, device: str, scope: str) -> None:
    """Over a link without an address, where the kernel chooses among those of all links."""
    make(sandbox, "bridge")
    shell(
        sandbox,
        "ip link add n0 type ifb; ip addr add 198.51.100.5/24 dev n0; ip addr add 2001:db8:1::5/64 dev n0 nodad;"
        " ip link set n0 up; ip link add e0 type ifb; ip link set e0 up;"
        " ip route add 192.0.2.0/24 dev e0; ip -6 route add 2001:db8:9::/64 dev e0",
    )
    ensured(sandbox, device, scope=scope)
    chosen = sandbox.run("ip route get 192.0.2.1; ip -6 route get 2001:db8:9::1").stdout
    if scope == "host":
        assert "src 198.51.100.5 " in chosen
        assert "src 2001:db8:1::5 " in chosen
    else:  # the trap is armed
        assert f"src {V6} " in chosen
        assert f"src {V4} " in chosen
    assert usable(sandbox) == PAIR
    assert statuses(ensured(sandbox, device, scope=scope)) == [PRESENT, PRESENT]


def test_another_local_route_is_somebody_elses(sandbox: Sandbox) -> None:
    """As one that was there before the address, so that a service could bind to it."""
    make(sandbox, "bridge")
    shell(sandbox, f"ip route add local {V4} dev {DEVICE} table local")
    before = state(sandbox)
    report = ensured(sandbox)
    assert "another local route" in report.addresses[0].notes[0]
    assert f"local {V4} dev {DEVICE} proto kernel scope host src {V4}" in state(sandbox)
    assert remove_service_address(PAIR, DEVICE, netns=sandbox.path).ok
    assert state(sandbox).splitlines() in (
        before.splitlines(),
        # The kernel takes all routes of an address with it that is gone.
        [line for line in before.splitlines() if not line.startswith(f"local {V4} ")],
    )
    ensured(sandbox)
    shell(sandbox, f"ip route replace local {V4} dev {DEVICE} table local")
    assert statuses(ensured(sandbox)) == [REPAIRED, PRESENT]
    report = ensured(sandbox, take_over=True)
    assert report.addresses[0].changes == ("wrong local route removed",)
    assert statuses(ensured(sandbox)) == [PRESENT, PRESENT]


# what cannot be put right


def test_without_rule_0_it_is_an_error(sandbox: Sandbox) -> None:
    make(sandbox, "bridge")
    ensured(sandbox)
    shell(sandbox, NO_RULES)
    report = ensure_service_address(PAIR, DEVICE, netns=sandbox.path)
    assert statuses(report) == [AddressStatus.FAILED] * 2
    assert ["ip rule add pref 0" in report.problems[0], "ip -6 rule add pref 0" in report.problems[1]] == [True, True]
    shell(sandbox, RULES.replace("pref 0", "pref 100"))  # where Cilium has it
    assert statuses(ensured(sandbox)) == [PRESENT, PRESENT]
    shell(sandbox, f"ip rule add pref 50 to {V4} unreachable; ip -6 rule add pref 50 to {V6} lookup main")
    report = ensure_service_address(PAIR, DEVICE, netns=sandbox.path)
    assert statuses(report) == [AddressStatus.FAILED] * 2
    assert all("rule" in problem for problem in report.problems)


@pytest.mark.parametrize("device", [DEVICE, "d0.7"])
def test_one_family_that_fails_does_not_stop_the_other(sandbox: Sandbox, device: str) -> None:
    """And what the report says is to be done helps, also for a link with a dot in its name."""
    sandbox.run(f"ip link set lo up; ip link add {device} type bridge; ip link set {device} up")
    sandbox.run(f"sysctl -qw net/ipv6/conf/{device}/disable_ipv6=1")
    report = ensure_service_address([V6, V4], device, netns=sandbox.path)
    assert statuses(report) == [AddressStatus.FAILED, ADDED]
    assert (report.ok, report.exit_code) == (False, 1)
    assert f"net/ipv6/conf/{device}/disable_ipv6=0" in report.problems[0]
    assert usable(sandbox) == (V4,)
    shell(sandbox, report.problems[0].rpartition(": ")[2])
    assert statuses(ensured(sandbox, device)) == [PRESENT, ADDED]


def test_lo_that_is_down_is_an_error(sandbox: Sandbox) -> None:
    sandbox.run(f"ip link add {DEVICE} type ifb")
    report = ensure_service_address(PAIR, DEVICE, netns=sandbox.path)
    assert not report.ok
    assert all("ip link set lo up" in problem for problem in report.problems)
    assert not usable(sandbox, 0.2)
    assert ensure_service_address(PAIR, "lo", netns=sandbox.path, set_up=True).ok


@pytest.mark.parametrize(
    ("commands", "options", "words"),
    [
        (f"ip link add {DEVICE} type bridge", {"kind": "dummy"}, "its kind is bridge, not dummy"),
        (
            f"ip link add vrf0 type vrf table 10; ip link add {DEVICE} type bridge; ip link set {DEVICE} master vrf0",
            {},
            "VRF",
        ),
        (
            f"ip link add {DEVICE} type bridge; ip addr add {V6}/64 dev {DEVICE} nodad",
            {"take_over": True},
            "length 64",
        ),
    ],
    ids=["kind", "vrf", "another prefix length"],
)
def test_a_device_that_does_not_fit(sandbox: Sandbox, commands: str, options: dict[str, Any], words: str) -> None:
    if "vrf" in commands and sandbox.run("ip link add v type vrf table 9", check=False).returncode:
        pytest.skip("this kernel has no VRF")
    shell(sandbox, f"ip link set lo up; {commands}")
    report = ensure_service_address(V6, DEVICE, netns=sandbox.path, **options)
    assert not report.ok
    assert words in report.problems[0]


def test_a_kernel_without_dummy_links(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_state, "OWN_KIND", "no-such-kind")
    report = ensure_service_address(PAIR, "own", netns=sandbox.path)
    assert report.device_status is DeviceStatus.FAILED
    assert len(report.problems) == 1
    assert "modprobe dummy" in report.problems[0]


def test_a_namespace_that_is_not_there() -> None:
    for function in (ensure_service_address, remove_service_address):
        with pytest.raises(NamespaceError):
            function(PAIR, "lo", netns="/no/such/path")


# the rest


def test_no_rights(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses; each address says what is needed."""
    make(sandbox, "bridge")

    def refuse(_self: object, *_messages: object) -> None:
        raise KernelError(1, "rtnetlink")

    monkeypatch.setattr(ServiceConnection, "_send", refuse)
    for device in (DEVICE, "own"):
        report = ensure_service_address(PAIR, device, netns=sandbox.path)
        assert not report.ok
        assert all("CAP_NET_ADMIN" in problem for problem in report.problems)
    assert [family for family in Family if not report.ok] == list(Family)


def test_ip_is_what_it_says(sandbox: Sandbox) -> None:
    """A helper of these tests fails where a command fails."""
    with pytest.raises(subprocess.CalledProcessError):
        shell(sandbox, "ip link set no-such-link up")
