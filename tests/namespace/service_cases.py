"""Service addresses: devices, ways to damage an address, and whether it can be bound and reached."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from firewall_cleanup.handlers._namespace import Namespace
from firewall_cleanup.service_address import ensure_service_address, remove_service_address
from firewall_cleanup.service_report import AddressStatus, DeviceStatus, ServiceAddressReport
from firewall_cleanup.testing.namespaces import Sandbox

V4, V6 = "203.0.113.145", "2001:db8::145"
PAIR = (V4, V6)
DEVICE = "d0"
ADDED, PRESENT, REPAIRED = AddressStatus.ADDED, AddressStatus.PRESENT, AddressStatus.REPAIRED
MAKE = {
    "bridge": f"ip link add {DEVICE} type bridge",
    "dummy": f"ip link add {DEVICE} type dummy",
    "ifb": f"ip link add {DEVICE} type ifb",
    "veth": f"ip link add {DEVICE} type veth peer name d1 && ip link set d1 up",
}
NO_RULES = "ip rule del pref 0; ip -6 rule del pref 0"
RULES = "ip rule add pref 0 lookup local; ip -6 rule add pref 0 lookup local"


@attrs.frozen
class Damage:
    """What somebody does to a working address.

    `breaks` are the addresses that cannot be used after it. `take_over`: it is put right only if that is asked for,
    as what is there is somebody else's. `down`: the device stays down. `arp`: it does nothing to a device without
    ARP, whose addresses are not tried for duplicates.
    """

    commands: str
    breaks: tuple[str, ...] = ()
    take_over: bool = False
    down: bool = False
    arp: bool = False

    def harms(self, kind: str) -> bool:
        """Whether it does anything to a device of this kind."""
        return not self.arp or kind not in {"dummy", "ifb"}


DAMAGES = {
    "local routes deleted": Damage(
        f"ip route del local {V4} dev {DEVICE} table local; ip -6 route del local {V6} dev {DEVICE} table local", PAIR
    ),
    "table local flushed": Damage(
        f"ip route flush table local dev {DEVICE}; ip -6 route flush table local dev {DEVICE}"
    ),
    "addresses deleted": Damage(f"ip addr del {V4}/32 dev {DEVICE}; ip -6 addr del {V6}/128 dev {DEVICE}", PAIR),
    "link down": Damage(f"ip link set {DEVICE} down", (V6,), down=True),
    "link down and up": Damage(f"ip link set {DEVICE} down; ip link set {DEVICE} up", (V6,)),
    "scope changed": Damage(f"ip addr del {V4}/32 dev {DEVICE}; ip addr add {V4}/32 dev {DEVICE}", take_over=True),
    "duplicate address detection": Damage(
        # The device is down, so that it does not end.
        f"ip link set {DEVICE} down; ip -6 addr add {V6}/128 dev {DEVICE}",
        (V6,),
        take_over=True,
        down=True,
        arp=True,
    ),
}


@contextmanager
def inside(sandbox: Sandbox) -> Iterator[Namespace]:
    """Yield the namespace to run functions in."""
    namespace = Namespace(sandbox.path)
    try:
        yield namespace
    finally:
        namespace.close()


def make(sandbox: Sandbox, kind: str, *, up: bool = True) -> None:
    """Make the device, as somebody else."""
    sandbox.run(f"ip link set lo up; {MAKE[kind]}" + (f"; ip link set {DEVICE} up" if up else ""))


def reaches(address: str, seconds: float = 10.0) -> bool:
    """Whether a service can listen on an address and be reached there, in the namespace of the caller."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as service, socket.socket(family) as client:
            service.bind((address, 0))
            service.listen()
            client.settimeout(seconds)
            client.connect(service.getsockname())
    except OSError:
        return False
    return True


def usable(sandbox: Sandbox, seconds: float = 10.0) -> tuple[str, ...]:
    """Return which of the two addresses can be bound and reached."""
    with inside(sandbox) as namespace:
        return tuple(address for address in PAIR if namespace.run(reaches, address, seconds))


_STATE = """
ip -d address show; ip -d route show table local; ip -d -6 route show table local
ip route show; ip -6 route show; ip rule; ip -6 rule; ip -d link show
"""


def state(sandbox: Sandbox) -> str:
    """Return links, addresses, routes and rules as `ip` prints them, without what changes by itself."""
    text = sandbox.run(_STATE).stdout
    # The carrier comes and goes a moment after the link is set up; link-local addresses with it.
    text = re.sub(r"<[^>]*?(\bUP\b)?[^>]*> mtu", lambda m: f"{m[1]} mtu", text)
    text = re.sub(r" (state|qdisc) \w+", "", text).replace(" linkdown", "")
    skipped = ("multicast ff00::", "valid_lft", "bridge forward_delay")
    lines = (line for line in text.splitlines() if not line.strip().startswith(skipped))
    return "\n".join(line for line in lines if "fe80:" not in line)


def shell(sandbox: Sandbox, commands: str) -> None:
    """Run commands of which each must succeed."""
    for command in commands.split("; "):
        done = sandbox.run(command, check=False)
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)


def statuses(report: ServiceAddressReport) -> list[AddressStatus]:
    return [outcome.status for outcome in report.addresses]


def ensured(sandbox: Sandbox, device: str = DEVICE, **options: Any) -> ServiceAddressReport:
    report = ensure_service_address(PAIR, device, netns=sandbox.path, **options)
    assert report.ok, report.problems
    return report


def check_damage(sandbox: Sandbox, kind: str, damage: Damage) -> None:
    """Damage an address on a device of this kind, and see it repaired."""
    make(sandbox, kind)
    ensured(sandbox)
    before = state(sandbox)
    shell(sandbox, damage.commands)
    # The trap is armed.
    assert state(sandbox) != before
    assert not set(damage.breaks) & set(usable(sandbox, 0.2))

    if damage.take_over:
        damaged = state(sandbox)
        refused = ensure_service_address(PAIR, DEVICE, netns=sandbox.path)
        assert not refused.ok
        assert "--take-over" in " ".join(refused.problems)
        assert state(sandbox) == damaged
    report = ensured(sandbox, take_over=damage.take_over)

    assert report.changed
    assert usable(sandbox) == PAIR
    assert bool(report.notes) is damage.down
    if damage.down:
        assert ensured(sandbox, set_up=True).device_status is DeviceStatus.REPAIRED
    assert state(sandbox) == before
    assert remove_service_address(PAIR, DEVICE, netns=sandbox.path).ok
    assert not usable(sandbox)


def check_own_device(sandbox: Sandbox) -> None:
    """See a device of our own made, repaired and undone."""
    sandbox.run("ip link set lo up")
    before = state(sandbox)
    report = ensured(sandbox, "own")
    assert report.device_status is DeviceStatus.CREATED
    assert usable(sandbox) == PAIR
    made = state(sandbox)
    assert "altname firewall-cleanup.own" in made
    assert "group default" in made
    shell(sandbox, "ip link set own down")
    assert ensured(sandbox, "own").device_status is DeviceStatus.REPAIRED
    assert state(sandbox) == made
    shell(sandbox, f"ip addr del {V4}/32 dev own; ip addr add {V4}/32 dev own")
    assert statuses(ensured(sandbox, "own")) == [REPAIRED, PRESENT]  # all on it is ours
    removed = remove_service_address(PAIR, "own", netns=sandbox.path)
    assert (removed.device_status, removed.ok) == (DeviceStatus.REMOVED, True)
    assert state(sandbox) == before
    again = remove_service_address(PAIR, "own", netns=sandbox.path)
    assert (again.device_status, again.ok, again.changed) == (DeviceStatus.ABSENT, True, False)


def check_foreign(sandbox: Sandbox, kind: str) -> None:
    """See what others made left, and taken over in place where that is asked for."""
    make(sandbox, kind)
    shell(
        sandbox,
        f"ip addr add 203.0.113.1/24 dev {DEVICE}; ip addr add 2001:db8::1/64 dev {DEVICE} nodad;"
        f" ip addr add 198.51.100.7/32 dev lo; ip addr add {V4}/32 dev {DEVICE} scope host;"
        f" ip -6 addr add {V6}/128 dev {DEVICE} nodad preferred_lft 0",
    )
    before = state(sandbox)
    assert statuses(ensured(sandbox)) == [PRESENT, PRESENT]
    report = remove_service_address(PAIR, DEVICE, netns=sandbox.path)
    assert statuses(report) == [AddressStatus.FOREIGN] * 2
    assert report.ok
    assert state(sandbox) == before
    # Ours by being asked for.
    assert statuses(ensured(sandbox, take_over=True)) == [REPAIRED, REPAIRED]
    assert state(sandbox) == before
    assert statuses(remove_service_address(PAIR, DEVICE, netns=sandbox.path)) == [AddressStatus.REMOVED] * 2
