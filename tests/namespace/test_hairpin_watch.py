"""The watch over a bridge: what is attached is in hairpin mode at once, whatever was missed; and how it ends."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pods import BRIDGE, SCHEMA, Node

from firewall_cleanup import HairpinReport, NamespaceError, ensure_hairpin, watch_hairpin
from firewall_cleanup.errors import KernelError
from firewall_cleanup.handlers._link_events import LinkEvents
from firewall_cleanup.handlers._ports import Port, PortConnection
from firewall_cleanup.stop import Stop

pytestmark = pytest.mark.namespace

SECONDS = 30  # until a test gives up; nothing waits that long


class Watch:
    """A watch in a thread of its own, and the reports that it gave."""

    def __init__(self) -> None:
        self.reports: queue.Queue[HairpinReport] = queue.Queue()

    def next(self) -> dict[str | None, str]:
        report = self.reports.get(timeout=SECONDS)
        return {outcome.interface: outcome.status.value for outcome in report.outcomes}


@contextmanager
def watching(node: Node, seen: Callable[[HairpinReport], object] | None = None) -> Iterator[Watch]:
    watch, stop = Watch(), threading.Event()

    def take(report: HairpinReport) -> None:
        watch.reports.put(report)
        if seen is not None:
            seen(report)

    thread = threading.Thread(target=watch_hairpin, args=(BRIDGE, stop), kwargs={"netns": node.path, "seen": take})
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join(SECONDS)
    assert not thread.is_alive()
    assert watch.reports.empty()


def test_what_is_attached_is_set_at_once(node: Node):
    node.pod(7)
    with watching(node) as watch:
        assert watch.next() == {"veth7": "enabled"}
        node.pod(8)
        assert watch.next() == {"veth7": "already-on", "veth8": "enabled"}
        assert node.hairpin("veth8")
        node.reattach("veth7")
        assert watch.next() == {"veth7": "enabled", "veth8": "already-on"}
        assert node.hairpin("veth7")
        node.set_hairpin("veth8", "off")
        assert watch.next() == {"veth7": "already-on", "veth8": "enabled"}
        assert node.hairpin("veth8")


def test_a_bridge_that_comes_and_goes(node: Node):
    node.pod(7)
    node.ip(f"link del {BRIDGE}")
    with watching(node) as watch:
        assert watch.next() == {None: "no-bridge"}
        node.ip(f"link add {BRIDGE} type bridge")
        assert watch.next() == {}
        node.ip(f"link set veth7 master {BRIDGE}")
        assert watch.next() == {"veth7": "enabled"}
        node.ip(f"link del {BRIDGE}", f"link add {BRIDGE} type bridge", f"link set veth7 master {BRIDGE}")
        while (found := watch.next()) != {"veth7": "enabled"}:
            assert found in ({}, {None: "no-bridge"})
        assert node.hairpin("veth7")


def test_lost_events_are_made_up_for(node: Node, monkeypatch):
    """While the watch is busy, more happens than the kernel keeps for it, and what matters comes last."""
    monkeypatch.setattr(LinkEvents, "BUFFER", 4096)
    node.pod(7)
    node.set_hairpin("veth7", "on")  # so that there are no events of its own doing
    node.ip("link add stranger up type veth peer name nobody")
    busy, go_on = threading.Event(), threading.Event()

    def seen(_report: HairpinReport) -> None:
        busy.set()
        assert go_on.wait(SECONDS)

    with watching(node, seen) as watch:
        try:
            assert watch.next() == {"veth7": "already-on"}
            assert busy.wait(SECONDS)
            node.ip(*(f"link set stranger alias a{number}" for number in range(40)))
            node.reattach("veth7")
            assert not node.hairpin("veth7")
        finally:
            go_on.set()
        assert watch.next() == {"veth7": "enabled"}
        assert node.hairpin("veth7")


def test_events_were_really_lost(node: Node, monkeypatch):
    """What the test before takes for granted: with so small a buffer the kernel says that it lost some."""
    monkeypatch.setattr(LinkEvents, "BUFFER", 4096)
    from firewall_cleanup.handlers._ports import PortHandler

    node.ip("link add stranger up type veth peer name nobody")
    with PortHandler.open(node.path) as handler, handler.events() as events:
        node.ip(*(f"link set stranger alias a{number}" for number in range(40)))
        with pytest.raises(KernelError, match="No buffer space"):
            list(events._netlink.receive_ready())


def test_events_of_other_links_are_no_work(node: Node, monkeypatch):
    node.pod(7)
    node.ip("link add br-other type bridge", "link add stranger up type veth peer name nobody")
    read: list[int | None] = []
    original = PortConnection.veths

    def counted(self: PortConnection, bridge: int | None = None) -> list[Port]:
        read.append(bridge)
        return original(self, bridge)

    with watching(node) as watch:
        assert watch.next() == {"veth7": "enabled"}
        monkeypatch.setattr(PortConnection, "veths", counted)
        node.ip("link set stranger master br-other", *(f"link set stranger alias a{number}" for number in range(40)))
        node.reattach("veth7")
        assert watch.next() == {"veth7": "enabled"}
    # Its own first changes, the attachment, and its own second ones; each may come in several parts.
    assert 0 < len(read) < 15


def test_a_port_whose_pod_comes_after_it(node: Node, new_sandbox, monkeypatch):
    """Some runtimes attach one end first and then move the other one: it must not be taken for gone."""
    pod, moved = new_sandbox(), threading.Event()
    original = PortConnection.mark

    def move(self: PortConnection, port: Port, mark: str) -> None:
        if not moved.is_set():
            moved.set()
            node.ip(f"link set pod-end netns {pod.pid}")
        original(self, port, mark)

    monkeypatch.setattr(PortConnection, "mark", move)
    with watching(node) as watch:
        assert watch.next() == {}
        node.ip(f"link add veth7 master {BRIDGE} type veth peer name pod-end")
        assert watch.next() == {"veth7": "enabled"}
        assert moved.is_set()
    assert (node.hairpin("veth7"), len(node.notes("veth7"))) == (True, 1)


def test_trouble_is_told_once_and_tried_again(node: Node, monkeypatch):
    node.pod(7)
    refused = threading.Event()
    original = PortConnection.mark

    def refuse(self: PortConnection, port: Port, mark: str) -> None:
        if not refused.is_set():
            raise KernelError(12, "a note")
        original(self, port, mark)

    monkeypatch.setattr(PortConnection, "mark", refuse)
    monkeypatch.setattr("firewall_cleanup.hairpin._RETRY_SECONDS", 0.05)
    with watching(node) as watch:
        assert watch.next() == {"veth7": "failed"}
        node.pod(8)
        while (found := watch.next()) != {"veth7": "failed", "veth8": "failed"}:
            assert found == {"veth7": "failed"}
        refused.set()
        # No event comes with that.
        while "failed" in (found := watch.next()).values():
            pass
    assert node.hairpin("veth7")
    assert node.hairpin("veth8")


@pytest.mark.parametrize("form", ["stop", "event", "function", "set before"])
def test_how_it_is_stopped(node: Node, form: str):
    node.pod(7)
    event = threading.Event()
    if form == "set before":
        event.set()
    with Stop() as sign:
        stop = {"stop": sign, "function": event.is_set}.get(form, event)
        thread = threading.Thread(target=watch_hairpin, args=(BRIDGE, stop), kwargs={"netns": node.path})
        thread.start()
        (sign if form == "stop" else event).set()
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert node.hairpin("veth7")


def test_an_error_in_what_it_calls_ends_it(node: Node):
    before = threading.active_count()
    stop = threading.Event()

    def seen(_report: HairpinReport) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        watch_hairpin(BRIDGE, stop, netns=node.path, seen=seen)
    assert threading.active_count() <= before


def test_wrong_arguments(node: Node):
    with pytest.raises(ValueError, match="cannot be the name"):
        watch_hairpin("", threading.Event(), netns=node.path)
    with pytest.raises(NamespaceError):
        watch_hairpin(BRIDGE, threading.Event(), netns="no-such-namespace")


@pytest.mark.parametrize("undo", [False, True])
def test_the_command_watches_until_it_is_told_to_stop(node: Node, undo: bool):
    node.pod(7)
    ensure_hairpin(bridge=BRIDGE, netns=node.path)
    words = [sys.executable, "-m", "firewall_cleanup", "ensure-hairpin", "--bridge", BRIDGE, "--watch"]
    words += ["--undo"] if undo else ["--output", "json"]
    process = subprocess.Popen(
        node.sandbox.command(*words), env=node.sandbox.environment, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        first = process.stdout.readline()
        node.reattach("veth7")
        second = process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM if undo else signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(SECONDS) == 0
    if undo:
        assert first == "veth7 on kube-bridge: hairpin mode is on already\n"
        assert second == "veth7 on kube-bridge (to eth0): hairpin mode turned on\n"
        assert rest == "veth7 on kube-bridge (to eth0): hairpin mode put back to off\n"
    else:
        for line in (first, second):
            SCHEMA.validate(json.loads(line))
        assert rest == ""
    assert (node.hairpin("veth7"), bool(node.notes("veth7"))) == (not undo, not undo)
