"""Service addresses without a kernel: what is decided, said and waited for."""

from __future__ import annotations

import argparse
import errno
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from firewall_cleanup import Family, cli
from firewall_cleanup.errors import KernelError
from firewall_cleanup.handlers import _made, _netlink, service_address
from firewall_cleanup.handlers._made import MadeAddresses
from firewall_cleanup.handlers._service import ServiceConnection
from firewall_cleanup.service_address import _Pace, _wait, ensure_service_address, run_service_address
from firewall_cleanup.service_command import _duration, address_lines, ensure_address, make_parser
from firewall_cleanup.service_report import AddressOutcome, AddressStatus, DeviceStatus, ServiceAddressReport
from firewall_cleanup.service_state import (
    LINK_GROUP,
    LocalRoute,
    NodeAddress,
    NodeLink,
    Problem,
    Seen,
    Step,
    Wanted,
    check_device,
    link_mark,
    next_step,
    parse_address,
    wrong_routes,
)
from firewall_cleanup.service_work import _refusal
from firewall_cleanup.stop import Stop, StopLike, is_stopped, wait_for

V4, V6 = "203.0.113.145", "2001:db8::145"
SCHEMA = json.loads((Path(__file__).parents[2] / "docs/service-address.schema.json").read_text())


# what is asked for


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("203.0.113.7", (Family.IPV4, "203.0.113.7")),
        ("203.0.113.7/32", (Family.IPV4, "203.0.113.7")),
        ("169.254.20.10", (Family.IPV4, "169.254.20.10")),
        ("2001:DB8:0::7/128", (Family.IPV6, "2001:db8::7")),
    ],
)
def test_addresses(text: str, expected: tuple[Family, str]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.com",
        "203.0.113.7/24",
        "203.0.113.7/",
        "203.0.113.07",
        "2001:db8::/64",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "::ffff:203.0.113.7",
        "fe80::1",
        "fe80::1%eth0",
        "2001:db8::1%eth0",
    ],
)
def test_no_service_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        parse_address(text)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a:b", "dummy%d", "sixteen-letters-", "é" * 8, "a\n"])
def test_no_devices(name: str) -> None:
    with pytest.raises(ValueError, match="device"):
        check_device(name)


@pytest.mark.parametrize(
    ("arguments", "options", "word"),
    [
        (([], "lo"), {}, "address"),
        ((["203.0.113.7", "x"], "lo"), {}, "'x'"),
        (("203.0.113.7", "l/o"), {}, "'l/o'"),
        (("203.0.113.7", "lo"), {"scope": "link"}, "scope"),
    ],
)
def test_wrong_arguments(arguments: Any, options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        ensure_service_address(*arguments, **options)


@pytest.mark.parametrize("interval", [0, -1, math.nan, math.inf])
def test_wrong_intervals(interval: float) -> None:
    with pytest.raises(ValueError, match="interval"):
        run_service_address(V4, "lo", lambda: True, interval=interval)


# what is decided

LINK = NodeLink(7, "d0", "bridge", flags=1)


def wanted(family: Family, **more: Any) -> Wanted:
    return Wanted(family, V4 if family is Family.IPV4 else V6, "d0", **more)


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (NodeLink(7, "own", "dummy", other_names=(link_mark("own"),)), "own"),
        (NodeLink(7, "new", "dummy", other_names=("x", link_mark("own"))), "own"),
        (NodeLink(7, "own", "dummy", group=LINK_GROUP), "own"),
        (NodeLink(7, "own", "dummy"), None),
        (NodeLink(7, "own", "bridge", other_names=(link_mark("own"),)), None),
        (NodeLink(7, "own", "bridge", group=LINK_GROUP), None),
        (NodeLink(7, "own", "dummy", other_names=("firewall-cleanup",)), None),
    ],
)
def test_which_links_are_ours(link: NodeLink, expected: str | None) -> None:
    assert link.made_as == expected


class Kernel:
    """One device and its addresses, as the kernel treats them: the model that the steps are tried on."""

    def __init__(self, seen: Seen, family: Family) -> None:
        self.seen, self.family = seen, family

    def do(self, step: Step, want: Wanted) -> None:
        seen, here = self.seen, self.seen.here(self.family)
        others = tuple(a for a in seen.addresses if a is not here)
        good = LocalRoute(254, want.address) if self.family is Family.IPV4 else LocalRoute(0)
        scope = want.scope if self.family is Family.IPV4 else 0
        fresh = NodeAddress(LINK.index, self.family.bits, scope, flags=0x20 if want.deprecated else 0, made=True)
        if step is Step.ADD:
            assert here is None
            self.seen = Seen(LINK, (*others, fresh), (*seen.routes, good))
        elif step in {Step.ADOPT, Step.PREFER}:
            assert here is not None
            flags = here.flags & ~0x20 | fresh.flags
            self.seen = attrs.evolve(seen, addresses=(*others, attrs.evolve(here, made=True, flags=flags)))
        elif step is Step.ADD_ROUTE:
            assert good not in seen.routes
            self.seen = attrs.evolve(seen, routes=(*seen.routes, good))
        elif step is Step.DROP_ROUTE:
            bad = wrong_routes(want, seen)
            self.seen = attrs.evolve(seen, routes=tuple(r for r in seen.routes if r not in bad))
        else:
            self.seen = Seen(LINK, (*others, fresh), (good,))


@st.composite
def situations(draw: st.DrawFn) -> tuple[Wanted, Seen]:
    family = draw(st.sampled_from(Family))
    want = wanted(family, scope=draw(st.sampled_from([0, 254])), take_over=draw(st.booleans()))
    bits = st.sampled_from([family.bits, family.bits, 24])
    scopes = st.sampled_from([0, 253, 254]) if family is Family.IPV4 else st.just(0)
    flags = st.sampled_from([0x80, 0x82, 0xA2, 0xC0, 0x88]) if family is Family.IPV6 else st.just(0x80)
    address = st.builds(NodeAddress, st.sampled_from([LINK.index, 1, 9]), bits, scopes, flags, st.booleans())
    # IPv4: once per link and prefix length; IPv6: once per link.
    key = (lambda a: (a.index, a.prefix)) if family is Family.IPV4 else (lambda a: a.index)
    addresses = draw(st.lists(address, unique_by=key, max_size=4))
    sources = st.sampled_from([None, want.address, "198.51.100.1"]) if family is Family.IPV4 else st.none()
    route = st.builds(LocalRoute, st.sampled_from([254, 0]) if family is Family.IPV4 else st.just(0), sources)
    return want, Seen(LINK, tuple(addresses), tuple(draw(st.lists(route, unique=True, max_size=3))))


@pytest.mark.property
@given(situations())
def test_steps_lead_there_and_leave_the_rest(situation: tuple[Wanted, Seen]) -> None:
    """In a bounded number of steps it is as wanted, or there is a reason; foreign addresses are as they were."""
    want, seen = situation
    kernel, family = Kernel(seen, want.family), want.family
    for _ in range(5):
        step = next_step(want, kernel.seen)
        if not isinstance(step, Step):
            break
        kernel.do(step, want)
    assert not isinstance(step, Step)
    here = kernel.seen.here(family)
    if step is None:
        assert here is not None
        assert family is Family.IPV6 or here.scope == want.scope
        assert not here.flags & 0x48
        assert not here.made or family is Family.IPV4 or bool(here.flags & 0x20) is want.deprecated
        assert len(kernel.seen.routes) > len(wrong_routes(want, kernel.seen))
        assert here.made or not want.take_over
    else:
        assert "--take-over" in step.reason or "instead of 128" in step.reason
    before = seen.here(family)
    kept = [a for a in seen.addresses if a is not before]
    assert [a for a in kernel.seen.addresses if a is not here] == kept
    if before is not None and not before.made and not want.take_over:
        assert here == before


@pytest.mark.parametrize("link", [NodeLink(7, "d0", "vrf"), NodeLink(7, "d0", "bridge", port_of="vrf")])
@pytest.mark.parametrize("family", Family)
def test_a_vrf_has_its_own_table(link: NodeLink, family: Family) -> None:
    step = next_step(wanted(family), Seen(link))
    assert isinstance(step, Problem)
    assert "VRF" in step.reason


# when to look


class Events:
    """Events and a clock that only waiting moves on."""

    def __init__(self, ready: Callable[[float], bool]) -> None:
        self.now, self.ready, self.waits = 0.0, ready, 0

    def clock(self) -> float:
        return self.now

    def drain(self, _index: int) -> bool:
        return self.ready(self.now)

    def wait(self, _stop: StopLike, seconds: float, *, listen: bool) -> None:
        assert seconds > 0
        self.waits += 1
        self.now += seconds


class Nobody:
    def device(self, _name: str) -> None:
        return None


def looks(events: Events, seconds: float, interval: float) -> list[float]:
    """Return when the loop looks, for so long."""
    pace, times = _Pace(events.clock), [0.0]
    with Stop() as stop:
        while events.now < seconds:
            ready: Any = events
            assert _wait(Nobody(), ready, "d0", (pace.next(), events.now + interval), stop, events.clock)  # type: ignore[arg-type]
            times.append(events.now)
    return times


def test_it_looks_once_per_interval_where_nothing_happens() -> None:
    events = Events(lambda _now: False)
    assert looks(events, 300, 60) == [0, 60, 120, 180, 240, 300]


def test_it_does_not_spin_where_somebody_fights_it() -> None:
    """There is always an event: ten looks at once, then two per second; each wait ends with one."""
    events = Events(lambda _now: True)
    times = looks(events, 60, 60)
    assert times[:10] == [0] * 10
    assert 118 <= len(times) - 10 <= 122
    assert events.waits <= len(times)


def test_a_calm_minute_pays_for_the_next_burst() -> None:
    events = Events(lambda now: now < 1 or now >= 100)
    times = looks(events, 121, 30)
    assert times.count(0) == 11
    assert times.count(next(t for t in times if t >= 100)) >= 10


# stopping


def test_stop() -> None:
    with Stop() as stop:
        assert not is_stopped(stop)
        stop.set()
        stop.set()
        assert is_stopped(stop)
        wait_for(stop, None)  # returns at once
        assert os.eventfd_read(stop.fileno()) == 2
    stop.set()
    stop.close()
    assert is_stopped(stop)


def test_other_stops() -> None:
    event = threading.Event()
    for stop in (event, event.is_set):
        wait_for(stop, None)  # returns soon, to ask it again
        assert not is_stopped(stop)
    event.set()
    assert is_stopped(event)
    assert is_stopped(event.is_set)


# how the kernel is spoken to


def test_deleting_is_that_of_the_cleanup() -> None:
    """One way to name to the kernel what is to go: what compares every field is not written twice."""
    assert [name for name in vars(ServiceConnection) if name.startswith("delete")] == []


# records


class Kept:
    """The records of a namespace, and which links have an address."""

    def __init__(self, records: MadeAddresses) -> None:
        self.records = records
        self.there: set[int] = set()

    def make(
        self,
        index: int,
        address: str = V4,
        *,
        done: bool = True,
        refuses: int = 0,
        adds: bool = True,
        new: bool = False,
    ) -> bool:
        """Add or change an address: it succeeds, somebody else is faster, or the kernel refuses."""

        def put() -> bool:
            assert self.records.holds(index, address)  # it is noted first
            if adds:
                self.there.add(index)
            if refuses:
                raise KernelError(refuses, "rtnetlink")
            return done

        return self.records.make(index, address, put, lambda: set(self.there), new=new)

    def unmake(self, index: int, address: str = V4) -> bool:
        return self.records.unmake(index, address, lambda: self.there.discard(index) or True)


def test_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_made, "FOLDER", tmp_path / "run")
    one, two = MadeAddresses((4, 1)), MadeAddresses((4, 2))
    assert not one.holds(7, V4)
    node = Kept(one)
    assert [node.make(7), node.make(7), node.make(7, V6)] == [True] * 3
    assert [one.holds(7, V4), one.holds(8, V4), two.holds(7, V4), MadeAddresses((4, 1)).holds(7, V6)] == [
        True,
        False,
        False,
        True,
    ]
    assert [node.unmake(7), node.unmake(7)] == [True] * 2
    assert [one.holds(7, V4), one.holds(7, V6)] == [False, True]
    with monkeypatch.context() as patch:
        patch.setattr(_made, "_boot", lambda: "another boot")
        later = MadeAddresses((4, 1))
        assert not later.holds(7, V6)
        Kept(later).make(7)
    assert not one.holds(7, V6)  # nothing of an earlier boot is kept
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("text", ["", "{", "{}", "[1]", "null"])
def test_records_that_are_damaged_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(_made, "FOLDER", tmp_path)
    (tmp_path / "service-addresses.json").write_text(text)
    made = MadeAddresses((4, 1))
    assert not made.holds(7, V4)
    assert Kept(made).make(7)
    assert made.holds(7, V4)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.setattr(_made, "FOLDER", tmp_path / "run")
    return Kept(MadeAddresses((4, 1)))


def test_a_record_whose_address_is_not_there_is_dropped(kept: Kept) -> None:
    for index in (7, 8, 9):
        kept.make(index)
    kept.make(7, V6)
    kept.there = {8}
    kept.make(10)
    assert [kept.records.holds(index, V4) for index in (7, 8, 9, 10)] == [False, True, False, True]
    kept.there = {8}
    kept.records.forget_gone(V4, lambda: kept.there)
    assert [kept.records.holds(index, V4) for index in (8, 10)] == [True, False]
    assert kept.records.holds(7, V6)  # nobody asked for it


def test_what_somebody_else_added_faster_gets_no_record(kept: Kept) -> None:
    assert not kept.make(7, done=False, new=True)  # when it was tried
    assert not kept.records.holds(7, V4)
    assert not kept.make(7, new=True)  # before it was tried, and so it was not
    assert not kept.records.holds(7, V4)
    kept.there = set()
    assert kept.make(7, new=True)
    assert not kept.make(7, new=True)  # another one of us was faster
    assert kept.records.holds(7, V4)


@pytest.mark.parametrize(
    ("before", "held", "adds", "kept_after"),
    [
        (False, False, False, False),
        (False, False, True, True),  # it is there though the kernel's answer is lost
        (False, True, False, False),  # a stale record
        (True, False, False, False),  # another's that was to be taken over
        (True, True, False, True),
    ],
)
def test_a_refusal_and_records(kept: Kept, before: bool, held: bool, adds: bool, kept_after: bool) -> None:
    if held:
        kept.make(7)
    kept.there = {7} if before else set()
    with pytest.raises(KernelError):
        kept.make(7, refuses=errno.ENOBUFS, adds=adds)
    assert kept.records.holds(7, V4) is kept_after


class OneLink:
    """The kernel's side of an address that somebody else has put on the link as a part of a network."""

    def __init__(self, family: Family) -> None:
        self.there = [NodeAddress(LINK.index, 24 if family is Family.IPV4 else 64, 0)]

    def addresses_equal_to(self, _family: Family, _address: str) -> list[NodeAddress]:
        return self.there

    def add_address(self, link: NodeLink, want: Wanted) -> None:
        self.there = [*self.there, NodeAddress(link.index, want.family.bits, 0)]

    def local_routes(self, *_: object) -> tuple[LocalRoute, ...]:
        return (LocalRoute(0),)


@pytest.mark.parametrize("family", list(Family))
def test_a_part_of_a_network_is_not_ours_being_there(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, family: Family
) -> None:
    """Before Linux 5.18 ours is told by a record: one of another prefix length neither stands for it nor keeps it."""
    monkeypatch.setattr(service_address, "kernel_keeps_protocol", lambda: False)
    kernel, want = OneLink(family), wanted(family)
    place: Any = SimpleNamespace(identity=(4, 1))
    handler = service_address.ServiceAddressHandler(place, kernel)  # type: ignore[arg-type]
    assert handler.apply(Step.ADD, want, Seen(LINK, tuple(kernel.there)))
    assert [each.prefix for each in kernel.there][1:] == [family.bits]
    assert kept.records.holds(LINK.index, want.address)
    handler.forget_gone(want)
    assert kept.records.holds(LINK.index, want.address)
    del kernel.there[1]
    handler.forget_gone(want)
    assert not kept.records.holds(LINK.index, want.address)


@pytest.mark.parametrize("family", list(Family))
def test_records_that_are_refused_are_not_taken_for_addresses(family: Family) -> None:
    """EACCES for an IPv6 address means that IPv6 is switched off; for the file it is just what it says."""
    file = KernelError(errno.EACCES, "/run/firewall-cleanup cannot be written, which this kernel's version needs")
    assert _refusal(file, family, LINK) == file.strerror
    for code in (errno.EOPNOTSUPP, errno.EAFNOSUPPORT):
        file = KernelError(code, "/run/firewall-cleanup cannot be written")
        assert _refusal(file, family, LINK) == file.strerror
    said = _refusal(KernelError(errno.EACCES, "rtnetlink"), family, LINK)
    assert said.startswith("IPv6 is switched off on d0" if family is Family.IPV6 else "Permission denied")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.EISDIR])
def test_records_that_cannot_be_read_are_not_none(kept: Kept, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """They would all be lost by the next change."""
    kept.make(7)

    def refuse(*_: object, **__: object) -> str:
        raise OSError(code, "no")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        for function in (
            lambda: kept.records.holds(7, V4),
            lambda: kept.make(8),
            lambda: kept.unmake(7),
            lambda: kept.records.forget_gone(V4, lambda: {7}),
        ):
            with pytest.raises(KernelError, match="cannot be read") as caught:
                function()
            assert caught.value.errno == code
    assert kept.records.holds(7, V4)
    assert kept.there == {7}


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("5.17.0-1-amd64", False),
        ("5.18", True),
        ("4.19.0", False),
        ("6.1.0-40", True),
        ("10.0-rc1", True),
        ("5.18+", True),
    ],
)
def test_which_kernels_keep_it(monkeypatch: pytest.MonkeyPatch, release: str, expected: bool) -> None:
    uname = os.uname()
    monkeypatch.setattr(_made.os, "uname", lambda: os.uname_result((uname[0], uname[1], release, uname[3], uname[4])))
    assert _made.kernel_keeps_protocol() is expected


# the command


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1m", 60), ("30s", 30), ("1m30s", 90), ("500ms", 0.5), ("1.5h", 5400), ("45", 45), ("0.5", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert _duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-1s", "m", "1d", "1m 30s", "soon", "inf", "1e3", "1mm", "nan"])
def test_no_durations(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a time"):
        _duration(text)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ([], "--ip-address"),
        (["--ip-address", V4], "--interface"),
        (["--interface", "lo"], "--ip-address"),
        (["--ip-address", "203.0.113.7/24", "--interface", "lo"], "a service address is a /32"),
        (["--ip-address", V4, "--interface", "a/b"], "'a/b'"),
        (["--ip-address", V4, "--interface", "lo", "--sync-interval", "1m"], "--daemon"),
        (["--ip-address", V4, "--interface", "lo", "--daemon", "--sync-interval", "soon"], "'soon'"),
        (["--ip-address", V4, "--interface", "lo", "--cleanup", "--take-over"], "--take-over"),
        (["--ip-address", V4, "--interface", "lo", "--cleanup", "--scope", "host"], "--scope"),
        (["--ip-address", V4, "--interface", "lo", "--netns", "/no/such"], "/no/such"),
        (["--ip-address", V4, "--interface", "lo", "--cleanup-config"], "--cleanup-config"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], options: list[str], word: str) -> None:
    try:
        status = cli.main(["ensure-address", *options])
    except SystemExit as end:
        status = int(str(end.code))
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert word in err.splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    [
        ["ensure-address", "--ip-address", V4, "--interface", "lo", "--netns", "/no/such", "--clean"],
        ["ensure-address", "--ip", V4, "--interface", "lo", "--netns", "/no/such"],
        ["ensure-hairpin", "--netns", "/no/such", "--und"],
        ["ensure-hairpin", "--netns", "/no/such", "--bri", "br0"],
        ["--netns", "/no/such", "--cleanup"],
    ],
    ids=" ".join,
)
def test_a_part_of_an_option_is_none(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(words)
    last = capsys.readouterr().err.splitlines()[-1]
    assert "unrecognized arguments" in last or "are required" in last


@pytest.mark.parametrize(
    "words",
    [
        ["ensure-address", "--ip-address", V4, "--interface", "lo", "--cleanup"],
        ["ensure-address", "--ip-address", V4, "--interface", "lo"],
        ["ensure-hairpin", "--undo"],
    ],
    ids=" ".join,
)
def test_what_the_kernel_refuses_is_said_in_one_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(_netlink.socket, "socket", none)
    assert cli.main(words) == 1
    assert capsys.readouterr().err == "firewall-cleanup: rtnetlink: Too many open files\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--cleanup-config"],
        ["ensure-address", "--ip-address", V4, "--interface", "lo"],
        ["ensure-hairpin", "--undo"],
    ],
    ids=" ".join,
)
def test_errors_that_nobody_reads_keep_their_status(words: list[str]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "firewall_cleanup", *words, "--netns", "/no/such"]
    done = subprocess.run(command, stderr=theirs, stdout=subprocess.PIPE, check=False)
    os.close(theirs)
    assert (done.returncode, done.stdout) == (2, b"")


def test_subcommands_are_imported_when_they_are_used() -> None:
    code = (
        "import sys, firewall_cleanup.cli as cli;"
        "print([m for m in sys.modules if 'service' in m]); print(sorted(cli.SUBCOMMANDS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "[]"
    assert "ensure-address" in done.stdout
    for target in cli.SUBCOMMANDS.values():
        module, _, function = target.partition(":")
        code = f"import {module}; print(callable({module}.{function}))"
        assert (
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
            == "True\n"
        )


def test_help_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "ensure-address" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        ensure_address(["--help"])
    assert "--ip-address" in capsys.readouterr().out
    assert make_parser().prog == "firewall-cleanup ensure-address"


# the report

REPORTS = [
    ServiceAddressReport(
        "d0",
        DeviceStatus.CREATED,
        (
            AddressOutcome(Family.IPV4, V4, AddressStatus.ADDED, None, ("added", "removed from lo"), ("a note",)),
            AddressOutcome(Family.IPV6, V6, AddressStatus.FAILED, "why"),
        ),
    ),
    ServiceAddressReport(
        "d0",
        DeviceStatus.FAILED,
        tuple(AddressOutcome(f, a, AddressStatus.FAILED, "no") for f, a in ((Family.IPV4, V4), (Family.IPV6, V6))),
        "no",
    ),
    ServiceAddressReport("d0", DeviceStatus.PRESENT, (AddressOutcome(Family.IPV6, V6, AddressStatus.PRESENT),)),
    ServiceAddressReport("d0", DeviceStatus.REMOVED, (AddressOutcome(Family.IPV6, V6, AddressStatus.ABSENT),)),
]


def test_reports_are_valid() -> None:
    validator = Draft202012Validator(SCHEMA)
    for report in REPORTS:
        validator.validate(json.loads(json.dumps(report.to_dict())))
    assert SCHEMA["$defs"]["status"]["enum"] == [status.value for status in AddressStatus]
    assert SCHEMA["properties"]["device"]["properties"]["status"]["enum"] == [status.value for status in DeviceStatus]


def test_what_reports_say() -> None:
    assert [(r.ok, r.changed, r.exit_code) for r in REPORTS] == [
        (False, True, 1),
        (False, False, 1),
        (True, False, 0),
        (True, True, 0),
    ]
    assert [r.problems for r in REPORTS] == [(f"{V6} on d0: why",), ("d0: no",), (), ()]
    assert list(address_lines(REPORTS[0])) == [
        "d0: created",
        f"{V4} on d0: added; removed from lo",
        f"{V4} on d0: a note",
    ]
    assert list(address_lines(REPORTS[1])) == []
