"""Hairpin mode: what happens between two looks at a port, and what fails there."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from pods import BRIDGE, Node, ensure, only, statuses

from firewall_cleanup import (
    HairpinStatus,
    undo_hairpin,
)
from firewall_cleanup.errors import KernelError
from firewall_cleanup.handlers._ports import Port, PortConnection

pytestmark = pytest.mark.namespace


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object]], None]:
    """Let something happen just before a step, once."""

    def arrange(step: str, happens: Callable[[], object]) -> None:
        original, waiting = getattr(PortConnection, step), [happens]

        def stepped(self: PortConnection, *args: Any, **options: Any) -> Any:
            if waiting:
                waiting.pop()()
            return original(self, *args, **options)

        monkeypatch.setattr(PortConnection, step, stepped)

    return arrange


@pytest.mark.parametrize("step", ["mark", "set_hairpin"])
def test_a_pod_that_goes_meanwhile(node: Node, meanwhile, step: str):
    pod, other = node.pod(7), node.pod(8)
    meanwhile(step, lambda: node.ip("link del veth7"))
    report = ensure(node, bridge=BRIDGE)
    assert statuses(report) == {pod.port: "gone", other.port: "enabled"}
    assert report.exit_code == 0


@pytest.mark.parametrize("step", ["mark", "set_hairpin"])
def test_an_index_that_is_used_again_meanwhile(node: Node, new_sandbox, meanwhile, step: str):
    pod, stranger = node.pod(7, options="index 77"), new_sandbox()
    node.pod(8)  # so that the number of the stranger's namespace is another one

    def reuse() -> None:
        node.ip(
            "link del veth7",
            f"link add veth7 index 77 type veth peer name eth0 netns {stranger.pid}",
            f"link set veth7 master {BRIDGE} up",
        )

    meanwhile(step, reuse)
    outcome = only(ensure(node, pid=pod.sandbox.pid))
    assert (outcome.status, outcome.index) == (HairpinStatus.GONE, 77)
    assert (node.link("veth7")["ifindex"], node.hairpin("veth7"), node.notes("veth7")) == (77, False, [])


@pytest.mark.parametrize("step", ["mark", "set_hairpin"])
def test_a_port_that_is_detached_meanwhile(node: Node, meanwhile, step: str):
    pod = node.pod(7)
    meanwhile(step, lambda: node.ip("link set veth7 nomaster"))
    assert only(ensure(node, pid=pod.sandbox.pid)).status is HairpinStatus.NOT_A_PORT
    assert node.notes(pod.port) == []


def test_a_port_that_is_attached_again_meanwhile(node: Node, meanwhile):
    pod = node.pod(7)
    meanwhile("set_hairpin", lambda: node.reattach("veth7"))
    assert only(ensure(node, pid=pod.sandbox.pid)).status is HairpinStatus.ENABLED
    assert node.hairpin(pod.port)


def test_somebody_else_who_is_faster_keeps_it(node: Node, meanwhile):
    pod = node.pod(7)
    meanwhile("mark", lambda: node.set_hairpin("veth7", "on"))
    assert only(ensure(node, pid=pod.sandbox.pid)).status is HairpinStatus.ON
    assert (node.hairpin(pod.port), node.notes(pod.port)) == (True, [])


def test_two_at_a_time_leave_one_note(node: Node, meanwhile):
    """Whichever is first, what one of them turned on stays noted, so it can be put back."""
    node.pod(7)
    meanwhile("mark", lambda: ensure(node, bridge=BRIDGE))
    assert statuses(ensure(node, bridge=BRIDGE)) == {"veth7": "already-on"}
    assert (node.hairpin("veth7"), len(node.notes("veth7"))) == (True, 1)
    assert statuses(undo_hairpin(netns=node.path)) == {"veth7": "put-back"}


@pytest.mark.parametrize("error", [KernelError(errno.ENOBUFS, "netlink receive"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["set_hairpin", "port"])
def test_what_ends_it_after_it_was_turned_on_leaves_the_note(
    node: Node, monkeypatch, step: str, error: BaseException
):
    """In the answer to the change, or in the reading after it."""
    node.pod(7)
    original = getattr(PortConnection, step)

    def fail(self: PortConnection, *args: Any, **options: Any) -> Any:
        found = original(self, *args, **options)
        if node.hairpin("veth7"):
            raise error
        return found

    with monkeypatch.context() as patch:
        patch.setattr(PortConnection, step, fail)
        if isinstance(error, KernelError):
            assert statuses(ensure(node, bridge=BRIDGE)) == {"veth7": "failed"}
        else:
            with pytest.raises(KeyboardInterrupt):
                ensure(node, bridge=BRIDGE)
    assert (node.hairpin("veth7"), len(node.notes("veth7"))) == (True, 1)
    assert statuses(undo_hairpin(netns=node.path)) == {"veth7": "put-back"}
    assert (node.hairpin("veth7"), node.notes("veth7")) == (False, [])


def test_somebody_who_turns_it_off_each_time_leaves_the_note(node: Node, monkeypatch):
    """The last time it was turned on may not have been seen by him."""
    node.pod(7)
    original, left = PortConnection.set_hairpin, 20

    def contest(self: PortConnection, mark: str, *, on: bool) -> None:
        nonlocal left
        left -= 1
        original(self, mark, on=on)
        if left >= 20 - 10:  # of twelve rounds one makes the note, so the last one is not contested
            node.set_hairpin("veth7", "off")

    with monkeypatch.context() as patch:
        patch.setattr(PortConnection, "set_hairpin", contest)
        assert statuses(ensure(node, bridge=BRIDGE)) == {"veth7": "failed"}
    assert (node.hairpin("veth7"), len(node.notes("veth7"))) == (True, 1)
    assert statuses(undo_hairpin(netns=node.path)) == {"veth7": "put-back"}


def test_a_plain_refusal_takes_the_note_back(node: Node, monkeypatch):
    node.pod(7)

    def refuse(self: PortConnection, mark: str, *, on: bool) -> None:
        raise KernelError(errno.EPERM, "netlink request")

    monkeypatch.setattr(PortConnection, "set_hairpin", refuse)
    assert statuses(ensure(node, bridge=BRIDGE)) == {"veth7": "denied"}
    assert node.notes("veth7") == []


def test_one_port_that_fails_does_not_stop_the_others(node: Node, monkeypatch):
    node.pod(7)
    node.pod(8)
    original = PortConnection.mark

    def refuse(self: PortConnection, port: Port, mark: str) -> None:
        if port.name == "veth7":
            raise KernelError(12, "a note")
        original(self, port, mark)

    monkeypatch.setattr(PortConnection, "mark", refuse)
    report = ensure(node, bridge=BRIDGE)
    assert statuses(report) == {"veth7": "failed", "veth8": "enabled"}
    assert report.exit_code == 1


def test_a_kernel_without_alternative_names_is_told(node: Node, monkeypatch):
    """Nothing is turned on that could not be noted."""
    node.pod(7)

    def refuse(self: PortConnection, port: Port, mark: str) -> None:
        raise KernelError(95, "a note on the link")

    monkeypatch.setattr(PortConnection, "mark", refuse)
    outcome = only(ensure(node, bridge=BRIDGE))
    assert (outcome.status, outcome.reason) == (HairpinStatus.FAILED, "a note on the link: Operation not supported")
    assert not node.hairpin("veth7")
