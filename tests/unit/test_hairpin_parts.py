"""Hairpin mode without a kernel: what messages say, what is told to the user, and how the command is found."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Iterable

import pytest
from wires import Wire, parse

from firewall_cleanup import HairpinOutcome, HairpinReport, HairpinStatus, cli, ensure_hairpin, undo_hairpin
from firewall_cleanup.errors import KernelError
from firewall_cleanup.hairpin_cli import hairpin_parser
from firewall_cleanup.hairpin_text import hairpin_lines
from firewall_cleanup.handlers import _netlink
from firewall_cleanup.handlers._link_events import LinkEvents
from firewall_cleanup.handlers._netlink import attribute, message
from firewall_cleanup.handlers._ports import MARK, Port, PortConnection
from firewall_cleanup.stop import Stop

LINK = struct.pack("=B3xiII", 0, 4, 0, 0)


def link(*parts: bytes, index: int = 4) -> bytes:
    return struct.pack("=B3xiII", 0, index, 0, 0) + b"".join(parts)


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=i", value))


def port_link(index: int = 4, mode: bytes = b"\1", slave: bytes = b"bridge\0", names: Iterable[str] = ()) -> bytes:
    info = attribute(1, b"veth\0") + attribute(4, slave) + attribute(5, attribute(4, mode))
    alternatives = b"".join(attribute(53, name.encode() + b"\0") for name in names)
    return link(
        attribute(3, b"veth1\0"),
        u32(5, 9),
        u32(10, 2),
        u32(37, 3),
        attribute(18 | 0x8000, info),
        attribute(52 | 0x8000, alternatives),
        index=index,
    )


def connection(monkeypatch: pytest.MonkeyPatch, *answers: bytes | int) -> tuple[PortConnection, Wire]:
    """A connection to which a kernel answers, in turn, with a payload or an errno."""
    waiting = list(answers)

    def answer(data: bytes) -> list[bytes]:
        ((_kind, flags, sequence, _payload),) = parse(data)
        given = waiting.pop(0)
        if isinstance(given, int):
            return [message(2, 0, sequence, struct.pack("=i", -given) + bytes(16))]
        end = message(3, 0, sequence, bytes(4)) if flags & 0x300 else message(2, 0, sequence, bytes(20))
        return [*([message(16, 0, sequence, given)] if given else []), end]

    wire = Wire(answer)
    monkeypatch.setattr(_netlink.socket, "socket", lambda *_: wire)
    return PortConnection(), wire


@pytest.mark.parametrize(
    ("mode", "slave", "on"), [(b"\1", b"bridge\0", 1), (b"\0", b"bridge\0", 0), (b"\1", b"bond\0", 0)]
)
def test_a_port_is_understood(monkeypatch, mode: bytes, slave: bytes, on: int):
    ports, _ = connection(monkeypatch, port_link(mode=mode, slave=slave, names=[f"{MARK}1", "x", f"y-{MARK}"]))
    assert ports.port(4) == Port(4, "veth1", "veth", 9, 3, 2, slave == b"bridge\0", bool(on), (f"{MARK}1",))


def test_a_link_that_says_nothing(monkeypatch):
    ports, _ = connection(monkeypatch, link())
    assert ports.port(4) == Port(4, "", "")


def test_what_the_kernel_is_asked_to_set(monkeypatch):
    """By the note, not by the index: an index may be another link's by now."""
    ports, wire = connection(monkeypatch, b"")
    ports.set_hairpin(f"{MARK}77", on=True)
    ((kind, flags, _, payload),) = parse(wire.sent[-1])
    mode = attribute(5 | 0x8000, attribute(4, b"\1"))
    assert (kind, flags) == (16, 0x5)  # no flag that would create a link
    assert payload == bytes(16) + attribute(53, f"{MARK}77".encode() + b"\0") + attribute(
        18 | 0x8000, attribute(4, b"bridge\0") + mode
    )


def test_a_long_name_is_asked_for_as_an_alternative_one(monkeypatch):
    ports, wire = connection(monkeypatch, errno.ENODEV, errno.ENODEV)
    assert ports.named("x" * 15) is None
    assert ports.named("x" * 16) is None
    numbers = [struct.unpack_from("=HH", parse(sent)[0][3], 16)[1] for sent in wire.sent]
    assert numbers == [3, 53]


@pytest.mark.parametrize(
    ("code", "belongs"), [(errno.EPERM, True), (errno.EACCES, True), (errno.EINVAL, False), (errno.ENODEV, False)]
)
def test_the_other_end_may_be_hidden_or_gone(monkeypatch, code: int, belongs: bool):
    ports, _ = connection(monkeypatch, code)
    assert ports.other_end(Port(4, "veth1", "veth", 9, 3)) == (None, belongs)


@pytest.mark.parametrize(
    ("peer", "kind", "belongs"), [(4, b"veth\0", True), (5, b"veth\0", False), (4, b"vlan\0", False)]
)
def test_both_ends_must_say_so(monkeypatch, peer: int, kind: bytes, belongs: bool):
    ports, _ = connection(monkeypatch, link(u32(5, peer), attribute(18, attribute(1, kind)), index=9))
    assert ports.other_end(Port(4, "veth1", "veth", 9, 3))[1] is belongs


def test_a_veth_without_another_end(monkeypatch):
    ports, wire = connection(monkeypatch)
    assert ports.other_end(Port(4, "veth1", "veth")) == (None, False)
    assert wire.sent == []


def test_a_namespace_that_no_link_leads_to(monkeypatch):
    ports, _ = connection(monkeypatch, bytes(4) + u32(1, -1))
    assert ports.namespace_id(0) is None


def test_addresses_are_compared_on_the_right_side(monkeypatch):
    """Of a point-to-point link the attribute "address" is the other end's."""
    address = ipaddress.ip_address("192.0.2.1")
    head = struct.pack("=BBBBI", 2, 32, 0, 0, 5)
    mine, other = address.packed, ipaddress.ip_address("192.0.2.2").packed
    ports, _ = connection(
        monkeypatch, head + attribute(1, other) + attribute(2, mine), head + attribute(1, mine) + attribute(2, other)
    )
    assert ports.bearers(address, None) == {5}
    assert ports.bearers(address, 3) == frozenset()


# events


class Events(LinkEvents):
    """Events from a pair of sockets, with an error before them where one is wanted."""

    def __init__(self, *payloads: bytes, error: int = 0) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for payload in payloads:
            self.theirs.send(message(16, 0, 0, payload))
        self._netlink = _netlink.NetlinkSocket.__new__(_netlink.NetlinkSocket)
        self.error = error
        self._netlink._socket = self  # type: ignore[assignment]

    def fileno(self) -> int:
        return self.ours.fileno()

    def recv(self, size: int, flags: int) -> bytes:
        if self.error:
            error, self.error = self.error, 0
            raise OSError(error, os.strerror(error))
        return self.ours.recv(size, flags)

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def ask(events: Events, *, seconds: float | None = 0) -> tuple[bool, list[tuple[int, str, int]]]:
    asked: list[tuple[int, str, int]] = []
    with Stop() as stop, events:
        found = events.wait(stop, lambda *link: bool(asked.append(link)) or link[0] == 4, seconds)
    return found, asked


def test_an_event_says_which_link():
    assert ask(Events(link(attribute(3, b"a\0"), u32(10, 7))), seconds=None) == (True, [(4, "a", 7)])


def test_what_does_not_matter_is_waited_over():
    found, asked = ask(Events(link(index=1), link(index=2), link(index=4), link(index=5)), seconds=None)
    assert (found, [index for index, _, _ in asked]) == (True, [1, 2, 4])


def test_lost_events_matter_always():
    assert ask(Events(link(index=1), error=errno.ENOBUFS), seconds=None) == (True, [])


def test_other_errors_are_told():
    with pytest.raises(KernelError):
        ask(Events(link(), error=errno.EIO), seconds=None)


def test_the_time_may_be_over():
    assert ask(Events(), seconds=0) == (True, [])


class Busy(Events):
    """There is always an event of a link that does not matter, each in a wait of its own."""

    asked, latest = 0, 0.0

    def recv(self, size: int, flags: int) -> bytes:
        self.asked += 1
        if self.asked % 2 == 0:
            raise BlockingIOError(errno.EAGAIN, "nothing")
        assert time.monotonic() < self.latest, "it waits for ever"
        return message(16, 0, 0, link(index=1))


@pytest.mark.parametrize("seconds", [0, 0.2])
def test_events_that_do_not_matter_do_not_put_the_end_off(seconds: float):
    events = Busy(link(index=1))
    before = time.monotonic()
    events.latest = before + 20
    found, asked = ask(events, seconds=seconds)
    assert found
    assert {index for index, _, _ in asked} == {1}
    assert time.monotonic() - before >= seconds


def test_stopping_comes_first():
    with Stop() as stop, Events(link()) as events:
        stop.set()
        assert not events.wait(stop, lambda *_: True)


def test_a_function_ends_a_wait_without_end():
    answers = iter((False, False, True))
    with Events() as events:
        assert not events.wait(lambda: next(answers), lambda *_: True)
    assert list(answers) == []


def test_what_is_raised_without_a_socket_is_said(monkeypatch):
    def none(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(_netlink.socket, "socket", none)
    for function in (ensure_hairpin, undo_hairpin):
        with pytest.raises(KernelError):
            function(bridge="br0")
    assert "KernelError: " in (ensure_hairpin.__doc__ or "").partition("Raises:")[2]
    assert "raises as `ensure_hairpin`" in (undo_hairpin.__doc__ or "")


# words


def lines(*outcomes: HairpinOutcome, verbose: bool = False) -> list[str]:
    return [line.plain for line in hairpin_lines(HairpinReport("bridge br0", outcomes), verbose=verbose)]


ON = HairpinOutcome(HairpinStatus.ON, "veth1", 1, "br0", "eth0")
ENABLED = HairpinOutcome(HairpinStatus.ENABLED, "veth2", 2, "br0")


def test_each_status_has_a_line():
    for status in HairpinStatus:
        (line,) = lines(HairpinOutcome(status, reason="because\nof \x1b[31m this"))
        assert line.startswith("bridge br0: ")
        assert "\n" not in line
        assert "\x1b" not in line


def test_ports_as_wanted_are_counted():
    assert lines() == ["bridge br0: no port, nothing to do"]
    assert lines(ON) == ["veth1 on br0 (to eth0): hairpin mode is on already"]
    assert lines(ON, ON) == ["bridge br0: 2 ports as wanted already"]
    assert lines(ON, ENABLED) == ["veth2 on br0: hairpin mode turned on", "bridge br0: 1 port more as wanted already"]
    assert len(lines(ON, ENABLED, ON, verbose=True)) == 3


def test_the_same_trouble_of_many_is_one_line():
    bad = [HairpinOutcome(HairpinStatus.DENIED, f"veth{i}", i, reason="no right") for i in range(3)]
    other = HairpinOutcome(HairpinStatus.FAILED, "veth9", 9, reason="no memory")
    assert lines(*bad, other) == ["veth0 and 2 ports more: not permitted: no right", "veth9: failed: no memory"]
    assert len(lines(*bad, other, verbose=True)) == 4


# the command


def test_the_rest_of_the_words_goes_to_the_subcommand(monkeypatch):
    given: list[list[str]] = []
    monkeypatch.setattr("firewall_cleanup.hairpin_cli.hairpin_main", lambda words: given.append(words) or 5)
    assert cli.main(["ensure-hairpin", "--bridge", "br0"]) == 5
    assert given == [["--bridge", "br0"]]
    with pytest.raises(SystemExit):
        cli.main(["--cleanup-config", "ensure-hairpin"])
    assert len(given) == 1


def test_the_help_names_the_subcommands(capsys: pytest.CaptureFixture[str]):
    assert cli.main([]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in cli.SUBCOMMANDS)
    assert "--endpoint" in hairpin_parser().format_help()


def test_undoing_belongs_to_the_service_proxy(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["--cleanup-config", "--undo-hairpin", "--controller", "routing"]) == 2
    assert "service proxy" in capsys.readouterr().err
    for other in ("--check", "--restore=/nowhere"):
        with pytest.raises(SystemExit):
            cli.main([other, "--undo-hairpin"])
