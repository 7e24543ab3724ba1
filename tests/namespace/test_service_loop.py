"""The loop that keeps a service address: it reacts to events, and to nothing else."""

from __future__ import annotations

import threading
from queue import Queue
from typing import Any

import pytest
from service_cases import ADDED, DEVICE, PAIR, PRESENT, REPAIRED, V4, V6, inside, make, shell, state, statuses, usable

from firewall_cleanup import service_state
from firewall_cleanup.handlers._service_events import ServiceEvents
from firewall_cleanup.service_address import (
    AddressStatus,
    DeviceStatus,
    ServiceAddressReport,
    Stop,
    run_service_address,
)
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace


class Loop:
    """A loop in a thread; its reports come through a queue, so that nobody has to sleep."""

    def __init__(self, sandbox: Sandbox, device: str = DEVICE, stop: Any = None, **options: Any) -> None:
        self.reports: Queue[ServiceAddressReport] = Queue()
        self.stop = Stop() if stop is None else stop
        self.result: ServiceAddressReport | None = None

        def run() -> None:
            self.result = run_service_address(
                PAIR,
                device,
                self.stop,
                **{"interval": 3600.0, "on_report": self.reports.put, "netns": sandbox.path, **options},
            )

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def next(self) -> ServiceAddressReport:
        return self.reports.get(timeout=60)

    def end(self) -> ServiceAddressReport:
        self.stop.set()
        self.thread.join(60)
        assert self.result is not None
        return self.result


def test_the_loop_repairs_at_the_event(sandbox: Sandbox, own_kind: str) -> None:
    """The interval is an hour, so it is the event that it reacts to; and each damage is repaired by one report."""
    make(sandbox, "bridge")
    start = state(sandbox)
    loop = Loop(sandbox, "own", cleanup=True)
    try:
        assert statuses(loop.next()) == [ADDED, ADDED]
        good = state(sandbox)
        for commands, expected in [
            (f"ip addr del {V4}/32 dev own", [ADDED, PRESENT]),
            (f"ip -6 addr del {V6}/128 dev own", [PRESENT, ADDED]),
            (f"ip route del local {V4} dev own table local", [REPAIRED, PRESENT]),
            (f"ip -6 route del local {V6} dev own table local", [PRESENT, REPAIRED]),
            ("ip link del own", [ADDED, ADDED]),
        ]:
            shell(sandbox, commands)
            assert statuses(loop.next()) == expected
            if "link" not in commands:
                assert state(sandbox) == good
        shell(sandbox, "ip link set own down")
        report = loop.next()
        while statuses(report) != [PRESENT, ADDED]:  # the link may be seen before or after IPv6 has gone
            report = loop.next()
        shell(sandbox, "ip rule del pref 0")
        assert "rule 0 is missing" in loop.next().problems[0]
        shell(sandbox, "ip rule add pref 0 lookup local")
        assert loop.next().ok
        assert usable(sandbox) == PAIR
        assert loop.reports.empty()
    finally:
        result = loop.end()
    assert statuses(result) == [AddressStatus.REMOVED] * 2
    assert state(sandbox) == start


def test_the_loop_waits_for_a_device_that_it_cannot_make(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that another program makes at its start, and makes again when it is started again."""
    monkeypatch.setattr(service_state, "OWN_KIND", "no-such-kind")
    sandbox.run("ip link set lo up")
    loop = Loop(sandbox)
    try:
        assert loop.next().device_status is DeviceStatus.FAILED
        for _ in range(2):
            shell(sandbox, f"ip link add {DEVICE} type bridge")
            while not (report := loop.next()).ok:
                pass
            assert statuses(report) == [ADDED, ADDED]
            assert usable(sandbox) == PAIR
            shell(sandbox, f"ip link del {DEVICE}")
            assert loop.next().device_status is DeviceStatus.FAILED
    finally:
        assert not loop.end().ok


@pytest.mark.parametrize("kind", ["event", "function"])
def test_other_ways_to_stop(sandbox: Sandbox, kind: str) -> None:
    make(sandbox, "bridge")
    event = threading.Event()
    loop = Loop(sandbox, stop=event) if kind == "event" else Loop(sandbox, stop=event.is_set)
    loop.stop = event
    loop.next()
    assert loop.end().ok
    assert usable(sandbox) == PAIR  # it was not asked to clean up


def test_a_wait_without_events(sandbox: Sandbox) -> None:
    """It looks at times, too."""
    make(sandbox, "bridge")
    loop = Loop(sandbox, interval=0.01)
    loop.next()
    assert loop.end().ok


def test_a_burst_of_events_is_kept(sandbox: Sandbox) -> None:
    """More than the kernel keeps for an ordinary socket."""
    with inside(sandbox) as namespace, namespace.run(lambda: ServiceEvents(DEVICE, PAIR)) as events:
        sandbox.run("ip link add d7 type bridge")
        sandbox.run("ip -batch -", input="".join(f"link set d7 alias a{n}\n" for n in range(400)))
        assert not events.drain(0)  # it missed none, and none concerns it


def test_missed_events_are_as_good_as_events(sandbox: Sandbox) -> None:
    make(sandbox, "bridge")
    with inside(sandbox) as namespace:
        tiny = namespace.run(lambda: ServiceEvents(DEVICE, PAIR, buffer=2048))
        ordinary = namespace.run(lambda: ServiceEvents(DEVICE, PAIR))
    try:
        sandbox.run("ip link add d7 type bridge")
        sandbox.run("ip -batch -", input="".join(f"addr add 198.51.100.{n}/32 dev d7\n" for n in range(40)))
        assert tiny.drain(0)
        assert not tiny.drain(0)
        assert not ordinary.drain(0)  # it missed none, and none concerns it
        for commands in (
            f"ip addr add {V4}/32 dev d7",
            f"ip link set {DEVICE} down",
            "ip rule add pref 7 lookup main",
        ):
            sandbox.run(commands)
            assert ordinary.drain(0), commands
            assert not ordinary.drain(0)
    finally:
        tiny.close()
        ordinary.close()
