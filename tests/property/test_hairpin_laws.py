"""What is turned on by us is noted at every moment, whoever else is at work, in whatever order."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import cast

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from firewall_cleanup import HairpinOutcome, HairpinStatus
from firewall_cleanup.errors import KernelError
from firewall_cleanup.hairpin import _ensurer, _undoer
from firewall_cleanup.handlers._ports import Port, PortConnection

pytestmark = pytest.mark.property

INDEX = 7


@attrs.define(eq=False)
class Link:
    """A link, and who turned its hairpin mode on."""

    peer_namespace: int
    on_bridge: bool = True
    hairpin: bool = False
    by_us: bool = False
    theirs: bool = False
    """Somebody else turned it on while nothing was noted."""
    marks: list[str] = attrs.field(factory=list)


class Kernel:
    """One index of a kernel, as strict as it: notes are unique, and what is set by a note is set on its link."""

    strict = False

    def __init__(self) -> None:
        self.link: Link | None = Link(1)
        self.links = [self.link]

    def port(self, index: int) -> Port | None:
        link = self.link
        if index != INDEX or link is None:
            return None
        return Port(INDEX, "veth", "veth", 2, link.peer_namespace, 1, link.on_bridge, link.hairpin, tuple(link.marks))

    def mark(self, port: Port, mark: str) -> None:
        if self.link is None:
            raise KernelError(errno.ENODEV, "mark")
        if mark in self.link.marks:
            raise KernelError(errno.EEXIST, "mark")
        self.link.marks.append(mark)

    def unmark(self, port: Port, mark: str) -> None:
        if self.link is None:
            raise KernelError(errno.ENODEV, "unmark")
        if mark not in self.link.marks:
            raise KernelError(errno.EINVAL, "unmark")
        self.link.marks.remove(mark)

    def set_hairpin(self, mark: str, *, on: bool) -> None:
        if self.link is None or mark not in self.link.marks:
            raise KernelError(errno.ENODEV, "set")
        if not self.link.on_bridge:
            raise KernelError(errno.EOPNOTSUPP, "set")
        if self.strict:
            assert on or not self.link.theirs, "turned off, though it was others'"
        if on != self.link.hairpin:
            self.link.hairpin = self.link.by_us = on

    # what others do

    def others(self, action: str) -> None:
        if action == "delete":
            self.link = None
        elif action == "create":  # a link of another pod gets the index
            self.link = Link(len(self.links) + 1)
            self.links.append(self.link)
        elif self.link is None:
            return
        elif action in {"attach", "detach"}:
            if self.link.on_bridge != (action == "attach"):
                self.link.on_bridge = action == "attach"
                self.link.hairpin = self.link.by_us = self.link.theirs = False
        elif action == "move":
            self.link.peer_namespace += 100
        elif self.link.on_bridge and self.link.hairpin != (action == "on"):
            self.link.hairpin, self.link.by_us = action == "on", False
            self.link.theirs = self.link.hairpin and not self.link.marks

    def check(self) -> None:
        for link in self.links:
            assert link.marks or not link.by_us, "turned on by us, and not noted"
        for link in self.links[1:]:
            assert not link.by_us, "turned on, though it is not the link that was meant"


class Actor:
    """Something of ours at work, one request at a time."""

    def __init__(self, kernel: Kernel, act: Callable[[PortConnection, Port], HairpinOutcome]) -> None:
        self.kernel, self.act = kernel, act
        self.may, self.did = threading.Semaphore(0), threading.Semaphore(0)
        self.outcome: HairpinOutcome | None = None
        self.failure: BaseException | None = None
        self.over = False
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.may.acquire()
        try:
            self.outcome = self.act(cast(PortConnection, self), Port(INDEX, "veth", "veth", 2, 1))
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.failure = error
        self.over = True
        self.did.release()

    def step(self) -> None:
        """Let it make its next request and come to the one after it."""
        if self.over:
            return
        if not self.thread.is_alive():
            self.thread.start()
        self.may.release()
        self.did.acquire()
        if self.failure is not None:
            raise self.failure

    def _turn(self) -> None:
        self.did.release()
        self.may.acquire()

    def port(self, index: int) -> Port | None:
        self._turn()
        return self.kernel.port(index)

    def other_end(self, port: Port) -> tuple[Port | None, bool]:
        self._turn()
        return None, True

    def mark(self, port: Port, mark: str) -> None:
        self._turn()
        self.kernel.mark(port, mark)

    def unmark(self, port: Port, mark: str) -> None:
        self._turn()
        self.kernel.unmark(port, mark)

    def set_hairpin(self, mark: str, *, on: bool) -> None:
        self._turn()
        self.kernel.set_hairpin(mark, on=on)


def noted() -> Kernel:
    """A port that an earlier run turned on; nobody is about to turn it on."""
    kernel = Kernel()
    kernel.strict = True
    assert kernel.link is not None
    kernel.link.hairpin = kernel.link.by_us = True
    kernel.link.marks.append("earlier")
    return kernel


OTHERS = ("delete", "create", "attach", "detach", "move", "on", "off")
STEPS = st.lists(st.one_of(st.integers(0, 2), st.sampled_from(OTHERS)), max_size=60)


def play(kernel: Kernel, actors: list[Actor], steps: list[int | str]) -> None:
    for step in steps:
        if isinstance(step, str):
            kernel.others(step)
        else:
            actors[step % len(actors)].step()
        kernel.check()
    for actor in actors:
        while not actor.over:
            actor.step()
            kernel.check()


@given(STEPS)
def test_what_is_on_is_noted_at_every_moment(steps: list[int | str]):
    kernel = Kernel()
    play(kernel, [Actor(kernel, _ensurer()), Actor(kernel, _ensurer()), Actor(kernel, _undoer())], steps)


@given(STEPS)
def test_what_is_not_ours_bears_no_note_in_the_end(steps: list[int | str]):
    """Unless an other turned it off and on again after we had turned it on."""
    kernel = Kernel()
    actors = [Actor(kernel, _ensurer()), Actor(kernel, _ensurer())]
    play(kernel, actors, [step for step in steps if step not in {"off", "attach", "detach"}])
    enabled = any(actor.outcome and actor.outcome.status is HairpinStatus.ENABLED for actor in actors)
    for link in kernel.links:
        if link is kernel.link and not enabled:
            assert not link.marks
    if kernel.link in kernel.links[1:] and kernel.link is not None:
        assert not kernel.link.marks


@given(STEPS)
def test_an_undo_that_nobody_disturbs_undoes_all_of_it(steps: list[int | str]):
    kernel = Kernel()
    play(kernel, [Actor(kernel, _ensurer()), Actor(kernel, _ensurer())], steps)
    port = kernel.port(INDEX)
    if port is not None:
        noted = bool(port.marks)
        was = port.hairpin
        undo = Actor(kernel, lambda ports, _: _undoer()(ports, port))
        play(kernel, [undo], [])
        assert kernel.link is not None
        assert kernel.link.marks == []
        assert kernel.link.hairpin is (was and not noted)


@example([0, 0, *[1] * 14, "on"])
@given(STEPS)
def test_undoing_leaves_alone_what_others_turned_on(steps: list[int | str]):
    """Also two at a time, of which one is done before the other has begun to change anything."""
    kernel = noted()
    play(kernel, [Actor(kernel, _undoer()), Actor(kernel, _undoer())], steps)


@given(st.lists(st.sampled_from([0, "move"]), max_size=20))
def test_undoing_is_whole_or_changes_nothing_if_the_other_end_moves(steps: list[int | str]):
    kernel = noted()
    undo = Actor(kernel, _undoer())
    play(kernel, [undo], steps)
    assert kernel.link is not None
    assert undo.outcome is not None
    whole = undo.outcome.status is HairpinStatus.PUT_BACK
    assert (kernel.link.hairpin, kernel.link.marks) == ((False, []) if whole else (True, ["earlier"]))


@settings(max_examples=40)
@given(st.integers(0, 12), st.integers(0, 12))
def test_a_kill_at_any_moment_is_finished_by_the_next_run(turning_on: int, undoing: int):
    kernel = Kernel()
    kill_after(kernel, _ensurer(), turning_on)
    nexts = Actor(kernel, _ensurer())
    play(kernel, [nexts], [])
    assert nexts.outcome is not None
    assert nexts.outcome.status.ok
    assert kernel.link is not None
    assert kernel.link.hairpin
    kill_after(kernel, _undoer(), undoing)
    play(kernel, [Actor(kernel, _undoer())], [])
    assert (kernel.link.hairpin, kernel.link.marks) == (False, [])


def kill_after(kernel: Kernel, act: Callable[[PortConnection, Port], HairpinOutcome], steps: int) -> None:
    killed = Actor(kernel, act)
    for _ in range(steps):
        killed.step()
        kernel.check()
