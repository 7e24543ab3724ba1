"""Service addresses: what is ours, by which mark, and what is not, which is left."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from service_cases import (
    ADDED,
    DAMAGES,
    DEVICE,
    PAIR,
    PRESENT,
    REPAIRED,
    V4,
    V6,
    check_foreign,
    check_own_device,
    ensured,
    make,
    shell,
    state,
    statuses,
    usable,
)

from firewall_cleanup.errors import KernelError
from firewall_cleanup.handlers import _made, _service
from firewall_cleanup.handlers import service_address as handler_module
from firewall_cleanup.handlers._service import ServiceConnection
from firewall_cleanup.service_address import ensure_service_address, remove_service_address
from firewall_cleanup.service_report import AddressStatus, DeviceStatus
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace


# a device of our own


def test_a_device_of_our_own_is_made_and_undone(sandbox: Sandbox, own_kind: str) -> None:
    check_own_device(sandbox)


def test_it_is_known_by_its_group_where_links_have_no_other_names(
    sandbox: Sandbox, own_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_service, "_NEW_LINK_PROPERTY", 254)  # as before Linux 5.5, no such message
    sandbox.run("ip link set lo up")
    before = state(sandbox)
    ensured(sandbox, "own")
    assert "altname" not in state(sandbox)
    assert not ensured(sandbox, "own").changed
    assert remove_service_address(PAIR, "own", netns=sandbox.path).device_status is DeviceStatus.REMOVED
    assert state(sandbox) == before


def test_a_device_of_our_own_that_others_use_stays(sandbox: Sandbox, own_kind: str) -> None:
    sandbox.run("ip link set lo up")
    ensured(sandbox, "own")
    ensure_service_address("203.0.113.146", "own", netns=sandbox.path)
    shell(sandbox, "ip addr add 198.51.100.1/32 dev own")
    report = remove_service_address(PAIR, "own", netns=sandbox.path)
    assert (report.device_status, report.exit_code) == (DeviceStatus.IN_USE, 1)
    assert "198.51.100.1/32" in report.problems[0]
    assert "203.0.113.146" not in report.problems[0]
    shell(sandbox, "ip addr del 198.51.100.1/32 dev own")
    report = remove_service_address(PAIR, "own", netns=sandbox.path)
    assert (report.device_status, report.ok) == (DeviceStatus.PRESENT, True)
    if not sandbox.run("ip link add link own name vlan7 type vlan id 7", check=False).returncode:
        report = remove_service_address("203.0.113.146", "own", netns=sandbox.path)
        assert report.device_status is DeviceStatus.IN_USE
        assert "vlan7" in report.problems[0]
        shell(sandbox, "ip link del vlan7")
    report = remove_service_address("203.0.113.146", "own", netns=sandbox.path)
    assert report.device_status is DeviceStatus.REMOVED


@pytest.mark.parametrize(
    ("commands", "name"),
    [
        (
            "ip link add link own name up0 type macvlan; ip link set up0 netns {pod}",
            "up0 in another network namespace",
        ),
        (
            "ip link add d7 type veth peer netns {pod}; ip link add link own name up0 netns {pod} type macvlan",
            "up0 in another network namespace",
        ),
        (
            "ip link add up0 type vxlan id 9 remote 192.0.2.1 dstport 4789 dev own; ip link set up0 netns {pod}",
            "up0 in another network namespace",
        ),
        ("ip link add up0 type vxlan id 9 remote 192.0.2.1 dstport 4789 dev own", "up0"),
    ],
    ids=["macvlan moved", "macvlan made there", "VXLAN moved", "VXLAN"],
)
def test_a_device_of_our_own_that_pods_use_stays(
    sandbox: Sandbox, new_sandbox: Callable[..., Sandbox], own_kind: str, commands: str, name: str
) -> None:
    """They would go with it, in whatever namespace they are."""
    pod = new_sandbox()
    sandbox.run("ip link set lo up")
    ensured(sandbox, "own")
    shell(sandbox, commands.format(pod=pod.pid))
    report = remove_service_address(PAIR, "own", netns=sandbox.path)
    assert (report.device_status, report.exit_code) == (DeviceStatus.IN_USE, 1)
    assert report.problems[0].endswith(f": link {name}")
    shell(sandbox if name == "up0" else pod, "ip link del up0")
    assert remove_service_address(PAIR, "own", netns=sandbox.path).device_status is DeviceStatus.REMOVED


def test_links_of_pods_on_other_links_do_not_matter(
    sandbox: Sandbox, new_sandbox: Callable[..., Sandbox], own_kind: str
) -> None:
    """Though the link under them has the same index in its own namespace."""
    pod, other = new_sandbox(), new_sandbox()
    sandbox.run("ip link set lo up")
    ensured(sandbox, "own")
    index = sandbox.run("ip -o link show own").stdout.partition(":")[0]
    for place in (pod, other):
        shell(place, f"ip link add low index {index} type bridge")
    shell(sandbox, f"ip link add d7 type veth peer name eth0 netns {pod.pid}")
    shell(sandbox, f"ip link add d8 type veth peer name eth0 netns {other.pid}")
    shell(pod, "ip link add link low name up0 type macvlan")
    shell(other, f"ip link add link low name up1 type macvlan; ip link set up1 netns {pod.pid}")
    shell(sandbox, f"ip link add link d7 name up2 type macvlan; ip link set up2 netns {pod.pid}")
    assert remove_service_address(PAIR, "own", netns=sandbox.path).device_status is DeviceStatus.REMOVED
    assert "up2" in pod.run("ip -br link").stdout


@pytest.mark.parametrize(("code", "raised"), [(errno.EPERM, False), (errno.EINVAL, False), (errno.EIO, True)])
def test_a_namespace_that_cannot_be_looked_into(
    sandbox: Sandbox,
    new_sandbox: Callable[..., Sandbox],
    own_kind: str,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    raised: bool,
) -> None:
    pod = new_sandbox()
    sandbox.run("ip link set lo up")
    ensured(sandbox, "own")
    shell(sandbox, f"ip link add d7 type veth peer name eth0 netns {pod.pid}")
    original = ServiceConnection._links_over

    def look(self: ServiceConnection, link: Any, namespace: int | None = None) -> Any:
        if namespace is not None:
            raise KernelError(code, "netlink request")
        return original(self, link)

    monkeypatch.setattr(ServiceConnection, "_links_over", look)
    report = remove_service_address(PAIR, "own", netns=sandbox.path)
    assert report.device_status is (DeviceStatus.FAILED if raised else DeviceStatus.REMOVED)


def test_a_renamed_device_of_our_own_is_found_again(sandbox: Sandbox, own_kind: str) -> None:
    sandbox.run("ip link set lo up")
    before = state(sandbox)
    ensured(sandbox, "own")
    shell(sandbox, "ip link set own down; ip link set own name other; ip link set other up")
    assert ensured(sandbox, "own").device_status is DeviceStatus.PRESENT
    assert remove_service_address(PAIR, "own", netns=sandbox.path).device_status is DeviceStatus.REMOVED
    assert state(sandbox) == before


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("after", range(1, 7))
def test_a_kill_between_two_steps_leaves_nothing_that_is_not_undone(
    sandbox: Sandbox, own_kind: str, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    sandbox.run(f"ip link set lo up; {'ip link add d0 type bridge'}")
    before = state(sandbox)
    left = [after]
    original = ServiceConnection._send

    def send(self: ServiceConnection, *messages: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise _Killed
        original(self, *messages)

    with monkeypatch.context() as patch:
        patch.setattr(ServiceConnection, "_send", send)
        try:
            ensure_service_address(PAIR, "own", netns=sandbox.path)
        except _Killed:
            assert after < 6
        else:
            assert after == 6
    if after % 2:
        ensured(sandbox, "own")
        assert usable(sandbox) == PAIR
    assert remove_service_address(PAIR, "own", netns=sandbox.path).ok
    assert state(sandbox) == before


# what is not ours


def test_foreign_state_is_left(sandbox: Sandbox) -> None:
    check_foreign(sandbox, "bridge")


def test_on_a_kernel_that_keeps_the_mark_of_a_changed_address(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Linux 6.1 does: it goes and comes in one step then."""
    change = ServiceConnection.change_address

    def without_mark(self: ServiceConnection, link: Any, wanted: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(_service, "ADDRESS_PROTOCOL", 0)
            change(self, link, wanted)

    monkeypatch.setattr(ServiceConnection, "change_address", without_mark)
    check_foreign(sandbox, "bridge")


def test_the_route_of_a_foreign_address_is_put_back(sandbox: Sandbox) -> None:
    """For IPv4 it is exactly the kernel's; for IPv6 the address would have to go and come."""
    make(sandbox, "bridge")
    shell(
        sandbox,
        f"ip addr add {V4}/32 dev {DEVICE} scope host; ip -6 addr add {V6}/128 dev {DEVICE} nodad preferred_lft 0",
    )
    before = state(sandbox)
    shell(sandbox, DAMAGES["local routes deleted"].commands)
    report = ensure_service_address(PAIR, DEVICE, netns=sandbox.path)
    assert statuses(report) == [REPAIRED, AddressStatus.FAILED]
    assert "without its local route" in report.problems[0]
    ensured(sandbox, take_over=True)
    assert state(sandbox) == before


@pytest.mark.parametrize("take_over", [False, True])
def test_a_duplicate_on_another_link(sandbox: Sandbox, sent: list[tuple[int, ...]], take_over: bool) -> None:
    make(sandbox, "bridge")
    shell(
        sandbox,
        f"ip addr add {V4}/32 dev lo; ip -6 addr add {V6}/128 dev lo; ip link add d7 type bridge;"
        f" ip addr add {V4}/24 dev d7; ip -6 addr add {V6}/64 dev d7 nodad; ip addr add 198.51.100.7/32 dev lo",
    )
    report = ensured(sandbox, take_over=take_over)
    assert usable(sandbox) == PAIR
    after = state(sandbox)
    assert "198.51.100.7/32" in after
    assert f"inet {V4}/24 scope global d7" in after
    assert f"inet6 {V6}/64" in after
    assert (f"inet {V4}/32 scope global lo" not in after) is take_over
    assert sum(f"inet6 {V6}/128" in line for line in after.splitlines()) == (1 if take_over else 2)
    for outcome in report.addresses:
        assert [note for note in outcome.notes if "d7 too" in note]
        assert bool([note for note in outcome.notes if "lo too" in note]) is not take_over
        assert ("removed from lo" in outcome.changes) is take_over
    if take_over:
        assert sent == [(20,), (21,), (20,), (21,)]  # added first
    else:
        assert sent == [(20,), (20,)]


def test_our_own_duplicate_moves(sandbox: Sandbox, own_kind: str) -> None:
    make(sandbox, "bridge")
    start = state(sandbox)
    ensured(sandbox, "own")
    report = ensured(sandbox, "lo")
    assert [o.changes[-1] for o in report.addresses] == ["removed from own"] * 2
    assert "own" not in state(sandbox)  # made for nothing else
    assert usable(sandbox) == PAIR
    ensured(sandbox)
    assert usable(sandbox) == PAIR
    assert remove_service_address(PAIR, "lo", netns=sandbox.path).changed is False
    assert remove_service_address(PAIR, DEVICE, netns=sandbox.path).ok
    assert state(sandbox) == start


@pytest.mark.parametrize("device", [DEVICE, "own"])
def test_several_at_once(sandbox: Sandbox, own_kind: str, device: str) -> None:
    make(sandbox, "bridge")
    before = state(sandbox)
    with ThreadPoolExecutor(8) as pool:
        reports = list(pool.map(lambda _: ensure_service_address(PAIR, device, netns=sandbox.path), range(8)))
    assert [report.problems for report in reports] == [()] * 8
    assert usable(sandbox) == PAIR
    assert remove_service_address(PAIR, device, netns=sandbox.path).ok
    assert state(sandbox) == before


# kernels that do not keep whose an address is


@pytest.fixture
def old_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As before Linux 5.18: what it does not know of an address it ignores. Returns the folder of records."""
    monkeypatch.setattr(_service, "_PROTOCOL", 63)
    for module in (_made, handler_module):
        monkeypatch.setattr(module, "kernel_keeps_protocol", lambda: False)
    monkeypatch.setattr(_made, "FOLDER", tmp_path / "run")
    return tmp_path / "run"


def test_records_where_the_kernel_keeps_none(
    sandbox: Sandbox, new_sandbox: Callable[..., Sandbox], old_kernel: Path
) -> None:
    other = new_sandbox()
    for place in (sandbox, other):
        make(place, "bridge")
    ensured(sandbox)
    shell(other, f"ip link set {DEVICE} up; ip addr add {V4}/32 dev {DEVICE} scope host")
    assert statuses(ensured(other)) == [PRESENT, ADDED]
    for _ in range(2):
        report = remove_service_address(PAIR, DEVICE, netns=other.path)
        assert report.addresses[0].status is AddressStatus.FOREIGN
    shell(sandbox, DAMAGES["local routes deleted"].commands)
    assert statuses(ensured(sandbox)) == [REPAIRED, REPAIRED]
    assert statuses(remove_service_address(PAIR, DEVICE, netns=sandbox.path)) == [AddressStatus.REMOVED] * 2
    assert (old_kernel / "service-addresses.json").read_text() == "[]"
    assert [path.name for path in old_kernel.iterdir() if path.name.startswith(".")] == []


def test_several_at_once_where_the_kernel_keeps_none(sandbox: Sandbox, old_kernel: Path) -> None:
    """One of them writes the record, and the others neither drop it nor take the address for somebody else's."""
    make(sandbox, "bridge")
    before = state(sandbox)
    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            reports = list(pool.map(lambda _: ensure_service_address(PAIR, DEVICE, netns=sandbox.path), range(8)))
        assert [report.problems for report in reports] == [()] * 8
        assert statuses(remove_service_address(PAIR, DEVICE, netns=sandbox.path)) == [AddressStatus.REMOVED] * 2
        assert state(sandbox) == before


def _killed_before_it_adds(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*_: object) -> None:
        raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(ServiceConnection, "add_address", kill)
        for address in PAIR:
            with pytest.raises(_Killed):
                ensure_service_address(address, DEVICE, netns=sandbox.path)


_ADMINS = f"ip addr add {V4}/32 dev {DEVICE} scope host; ip -6 addr add {V6}/128 dev {DEVICE} nodad preferred_lft 0"


@pytest.mark.parametrize("link", ["there", "gone", "another"])
def test_a_record_that_a_kill_left_does_not_outlive_a_look(
    sandbox: Sandbox, old_kernel: Path, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    make(sandbox, "bridge")
    _killed_before_it_adds(sandbox, monkeypatch)
    records = old_kernel / "service-addresses.json"
    assert all(address in records.read_text() for address in PAIR)
    if link == "another":  # it is found when the address is added there
        shell(sandbox, "ip link add d7 type bridge; ip link set d7 up")
        ensured(sandbox, "d7")
        remove_service_address(PAIR, "d7", netns=sandbox.path)
    else:
        index = sandbox.run(f"ip -o link show {DEVICE}").stdout.partition(":")[0]
        if link == "gone":
            shell(sandbox, f"ip link del {DEVICE}")
        assert statuses(remove_service_address(PAIR, DEVICE, netns=sandbox.path)) == [AddressStatus.ABSENT] * 2
        if link == "gone":
            shell(sandbox, f"ip link add {DEVICE} index {index} type bridge; ip link set {DEVICE} up")
    assert records.read_text() == "[]"
    shell(sandbox, _ADMINS)
    assert statuses(remove_service_address(PAIR, DEVICE, netns=sandbox.path)) == [AddressStatus.FOREIGN] * 2


@pytest.mark.parametrize("before", ["the lock", "the request"])
def test_what_somebody_else_adds_in_between_is_his(
    sandbox: Sandbox, old_kernel: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    make(sandbox, "bridge")
    if before == "the request":  # also where a record was left by a kill
        _killed_before_it_adds(sandbox, monkeypatch)
    where: Any = (_made.MadeAddresses, "make") if before == "the lock" else (ServiceConnection, "add_address")
    original, commands = getattr(*where), _ADMINS.split("; ")

    def late(*args: Any, **options: Any) -> Any:
        if commands:
            shell(sandbox, commands.pop(0))
        return original(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(*where, late)
        assert [outcome.changes for outcome in ensured(sandbox).addresses] == [(), ()]
    assert statuses(remove_service_address(PAIR, DEVICE, netns=sandbox.path)) == [AddressStatus.FOREIGN] * 2
    assert usable(sandbox) == PAIR


def test_records_that_cannot_be_read_are_an_error(
    sandbox: Sandbox, old_kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them all would be taken for others', and be forgotten with the next change."""
    make(sandbox, "bridge")
    ensured(sandbox)
    before = state(sandbox)

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "no")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        for function in (ensure_service_address, remove_service_address):
            for device in (DEVICE, "none") if function is remove_service_address else (DEVICE,):
                report = function(PAIR, device, netns=sandbox.path)
                assert (statuses(report), report.exit_code) == ([AddressStatus.FAILED] * 2, 1)
                assert all("service-addresses.json cannot be read" in problem for problem in report.problems)
        assert state(sandbox) == before
    assert statuses(remove_service_address(PAIR, DEVICE, netns=sandbox.path)) == [AddressStatus.REMOVED] * 2


def test_a_record_that_cannot_be_written_is_said_before_anything_is_done(sandbox: Sandbox, old_kernel: Path) -> None:
    make(sandbox, "bridge")
    before = state(sandbox)
    old_kernel.write_text("no folder")
    report = ensure_service_address(PAIR, DEVICE, netns=sandbox.path)
    assert statuses(report) == [AddressStatus.FAILED] * 2
    assert str(old_kernel) in report.problems[0]
    assert state(sandbox) == before
