"""A whole kube-router node on a kernel that has it all: everything goes, and every neighbour stays as it was.

Run by `tests/run-vm`; each process start costs much there, so one test does a whole round.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import replay
from test_kernel import HAS_IPV6, pytestmark  # noqa: F401 - the same conditions hold here

from firewall_cleanup import CleanupReport, Controller, Family, FamilyState, Handlers, Status, cleanup, cleanup_all
from firewall_cleanup.handlers import IpvsHandler, RoutingHandler
from firewall_cleanup.handlers._namespace import Namespace
from firewall_cleanup.model import Item
from firewall_cleanup.testing.foreign import foreign_rules, foreign_sets, interleave
from firewall_cleanup.testing.host import foreign_links, foreign_services, owned_links, owned_services, sides
from firewall_cleanup.testing.node import Node

SIDES = sides(ipv6=HAS_IPV6)
FAMILIES = ["ipv4", "ipv6"] if HAS_IPV6 else ["ipv4"]
NODE = Node(ipvs=True)
_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_NETWORK = 0x40000000
# Where the tools of a newer iptables are, if the host has them.
NEWER = os.environ.get("FIREWALL_CLEANUP_NEWER_IPTABLES", "")


@pytest.fixture
def fresh() -> Iterator[Callable[[], None]]:
    """Return a function that moves this process into a new network namespace; at the end it is back."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)

    def enter() -> None:
        assert _LIBC.unshare(_NEW_NETWORK) == 0

    yield enter
    _LIBC.setns(home, 0)
    os.close(home)


def feed(text: str, *command: str) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"


def ip(lines: dict[str, list[str]]) -> None:
    for flag, batch in lines.items():
        feed("\n".join(batch), "ip", *([flag] if flag else []), "-batch", "-")


def load(backend: str, texts: dict[str, str], tools: str = "") -> None:
    for family, text in texts.items():
        program = f"{'iptables' if family == 'ipv4' else 'ip6tables'}-{backend}-restore"
        feed(text, str(Path(tools, program)) if tools else program, "--counters")


def neighbours(backend: str, tools: str = "") -> None:
    """Build what is not kube-router's."""
    ip(foreign_links(SIDES))
    feed(foreign_sets(), "ipset", "restore")
    load(backend, {family: foreign_rules(family, backend) for family in FAMILIES}, tools)
    feed(foreign_services(SIDES), "ipvsadm", "-R")


def whole_node(backend: str, tools: str = "", *, fou: bool = False) -> None:
    """Build the neighbours and kube-router's state between them."""
    ip(foreign_links(SIDES))
    ip(owned_links(SIDES, NODE.marks(), fou=fou))
    feed(foreign_sets(), "ipset", "restore")
    feed(NODE.ipsets(), "ipset", "restore")
    texts = {f: interleave(NODE.iptables_save(f), foreign_rules(f, backend)) for f in FAMILIES}
    load(backend, texts, tools)
    feed(foreign_services(SIDES) + owned_services(SIDES, NODE.marks()), "ipvsadm", "-R")


def same(expected: replay.State, found: replay.State) -> list[str]:
    """Return differences, less what the kernel makes up anew for each link."""

    def lasting(state: replay.State) -> replay.State:
        kept = {name: [line for line in lines if "fe80" not in line] for name, lines in state.items()}
        return kept | {"links": [re.sub(r" address=\S+", "", line) for line in state["links"]]}

    return replay.differences(lasting(expected), lasting(found))


@functools.cache
def expected(backend: str, tools: str = "") -> replay.State:
    """Return the neighbours alone; leaves the process in their namespace."""
    assert _LIBC.unshare(_NEW_NETWORK) == 0
    neighbours(backend, tools)
    return replay.state()


BACKENDS = [
    pytest.param("nft", "", id="nft"),
    pytest.param("legacy", "", id="legacy"),
    pytest.param("nft", NEWER, id="nft-newer", marks=pytest.mark.skipif(not NEWER, reason="no newer iptables")),
]


@pytest.mark.parametrize(("backend", "tools"), BACKENDS)
@pytest.mark.parametrize("fou", [False, True], ids=["ipip", "fou"])
def test_the_whole_node_goes_and_its_neighbours_stay(
    fresh: Callable[[], None], backend: str, tools: str, fou: bool
) -> None:
    wanted = expected(backend, tools)
    fresh()
    whole_node(backend, tools, fou=fou)
    planned = cleanup_all(dry_run=True)
    report = cleanup_all()
    after = replay.state()
    again = cleanup_all()

    assert same(wanted, after) == []
    assert report.clean, report.to_dict()
    assert report.families[Family.IPV6] is (FamilyState.EXAMINED if HAS_IPV6 else FamilyState.ABSENT)
    assert not again.changed
    assert not again.outcomes
    assert names(planned, Status.PLANNED) == names(report, Status.REMOVED)


def names(report: CleanupReport, status: Status) -> list[tuple[str, str, str | None]]:
    return [(o.kind.value, o.name, o.text) for o in report.outcomes if o.status is status]


@pytest.mark.parametrize("first", list(Controller), ids=lambda controller: controller.value)
def test_each_controller_removes_its_part_and_the_others_finish(fresh: Callable[[], None], first: Controller) -> None:
    """In any order the end is the same: no controller's cleanup takes what proves another one's services."""
    wanted = expected("nft")
    fresh()
    whole_node("nft")
    report = cleanup(controllers=[first])
    rest = [controller for controller in Controller if controller is not first]
    last = cleanup(controllers=rest)
    final = cleanup_all()  # what the first one kept for the others' sake

    assert {o.controller for o in report.outcomes if o.status is Status.REMOVED} <= {first, None}
    assert {o.controller for o in last.outcomes if o.status is Status.REMOVED} <= {*rest, None}
    assert final.clean, final.to_dict()
    assert same(wanted, replay.state()) == []


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("after", [1, 7, 16])
def test_killed_anywhere_and_finished_by_the_next_run(
    fresh: Callable[[], None], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    wanted = expected("nft")
    fresh()
    whole_node("nft", fou=True)
    left = after

    def dying(original: Callable[[object, Item], None]) -> Callable[[object, Item], None]:
        def delete(self: object, item: Item) -> None:
            nonlocal left
            if left == 0:
                raise _Killed
            left -= 1
            original(self, item)

        return delete

    with monkeypatch.context() as patch:
        for handler in (IpvsHandler, RoutingHandler):
            patch.setattr(handler, "delete", dying(handler.delete))
        with pytest.raises(_Killed):
            cleanup_all()
    report = cleanup_all()

    assert report.clean, report.to_dict()
    assert same(wanted, replay.state()) == []


def test_a_dry_run_changes_nothing(fresh: Callable[[], None]) -> None:
    fresh()
    whole_node("nft")
    before = replay.state()
    cleanup_all(dry_run=True)

    assert not replay.differences(before, replay.state())


def test_one_family_alone(fresh: Callable[[], None]) -> None:
    if not HAS_IPV6:
        pytest.skip("IPv6 is disabled")
    fresh()
    whole_node("nft")
    before = replay.state()
    report = cleanup_all(families=[Family.IPV4])
    after = replay.state()

    assert report.clean, report.to_dict()
    # The kernel's own link-local and multicast routes go with the IPv4 tunnel.
    gone = [line for line in replay.differences(before, after) if SIDES[0].tunnel_name not in line]
    assert not [line for line in gone if line.startswith(("routes6", "rules6", "ip6tables"))]
    assert {o.family for o in report.outcomes if o.status is Status.REMOVED} == {Family.IPV4}


def test_a_bridge_with_a_pod_is_reported_and_taken_only_when_asked(fresh: Callable[[], None]) -> None:
    fresh()
    whole_node("nft")
    feed("link set veth-user master kube-bridge", "ip", "-batch", "-")
    report = cleanup_all()
    forced = cleanup_all(remove_bridge=True)

    assert [(o.name, o.status) for o in report.residue] == [("kube-bridge", Status.IN_USE)]
    assert report.residue[0].holder is not None
    assert report.residue[0].holder.text == "veth-user"
    assert report.exit_code == 1
    assert forced.clean


def test_a_missing_handler_is_opened(fresh: Callable[[], None]) -> None:
    wanted = expected("nft")
    fresh()
    whole_node("nft")
    with Handlers.open() as handlers:
        report = cleanup_all(attrs.evolve(handlers, ipvs=None, routing=None))

    assert report.clean, report.to_dict()
    assert same(wanted, replay.state()) == []


# ---- traffic -------------------------------------------------------------------------------------------------------


class _Wire:
    """Three hosts, client, node and server, each in a namespace of its own; the node is the current one."""

    def __init__(self, name: str) -> None:
        self.names = (f"{name}-client", f"{name}-server")
        for host in self.names:
            subprocess.run(["ip", "netns", "add", host], check=True)
        lines = ["link set lo up"]
        for host, net in zip(self.names, (1, 2), strict=True):
            lines += [
                f"link add to-{net} type veth peer name eth0 netns {host}",
                f"addr add 198.18.{net}.1/24 dev to-{net}",
                *([f"addr add 2001:db8:f{net}::1/64 dev to-{net} nodad"] if HAS_IPV6 else []),
                f"link set to-{net} up",
            ]
        feed("\n".join(lines), "ip", "-batch", "-")
        for host, net in zip(self.names, (1, 2), strict=True):
            lines = [
                "link set lo up",
                "link set eth0 up",
                f"addr add 198.18.{net}.2/24 dev eth0",
                f"route add default via 198.18.{net}.1",
            ]
            if HAS_IPV6:
                lines += [
                    f"addr add 2001:db8:f{net}::2/64 dev eth0 nodad",
                    f"-6 route add default via 2001:db8:f{net}::1",
                ]
            plain = [line for line in lines if not line.startswith("-6 ")]
            feed("\n".join(plain), "ip", "-n", host, "-batch", "-")
            six = [line[3:] for line in lines if line.startswith("-6 ")]
            if six:
                feed("\n".join(six), "ip", "-n", host, "-6", "-batch", "-")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        if HAS_IPV6:
            Path("/proc/sys/net/ipv6/conf/all/forwarding").write_text("1")
        self.client, self.server = (Namespace(host) for host in self.names)

    def close(self) -> None:
        for namespace, host in zip((self.client, self.server), self.names, strict=True):
            namespace.close()
            subprocess.run(["ip", "netns", "del", host], check=False)


def _echo(listener: socket.socket) -> None:
    """Send back what comes, on each connection, until the listener is closed."""

    def serve(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(64):
                connection.sendall(data)

    while True:
        try:
            connection, _peer = listener.accept()
        except OSError:
            return
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def _ask(connection: socket.socket, word: bytes) -> bytes:
    connection.sendall(word)
    return connection.recv(64)


@pytest.mark.parametrize("family", FAMILIES)
def test_traffic_of_others_flows_on(fresh: Callable[[], None], family: str) -> None:
    """A foreign IPVS service and a foreign published port work before, during and after, on the same connections."""
    fresh()
    whole_node("nft")
    v4 = family == "ipv4"
    kind = socket.AF_INET if v4 else socket.AF_INET6
    vip, front, back = (
        ("192.0.2.77", "198.18.1.1", "198.18.2.2") if v4 else ("2001:db8:1::77", "2001:db8:f1::1", "2001:db8:f2::2")
    )
    end = (lambda host, port: f"{host}:{port}") if v4 else (lambda host, port: f"[{host}]:{port}")
    wire = _Wire(f"wire-{os.getpid()}")
    try:
        listener = wire.server.run(socket.create_server, (back, 8080), family=kind)
        threading.Thread(target=_echo, args=(listener,), daemon=True).start()
        feed(f"-A -t {end(vip, 7777)} -s rr\n-a -t {end(vip, 7777)} -r {end(back, 8080)} -m -w 1\n", "ipvsadm", "-R")
        tables = "iptables" if v4 else "ip6tables"
        publish = (
            f"*nat\n-I PREROUTING 1 -d {front} -p tcp -m tcp --dport 8888 -j DNAT"
            f" --to-destination {end(back, 8080)}\nCOMMIT\n"
            "*filter\n-I FORWARD 1 -i to-1 -j ACCEPT\n-I FORWARD 1 -o to-1 -j ACCEPT\n"
            "-I INPUT 1 -i to-1 -j ACCEPT\n-I INPUT 1 -i to-2 -j ACCEPT\nCOMMIT\n"
        )
        feed(publish, f"{tables}-nft-restore", "--noflush")

        def connect(host: str, port: int) -> socket.socket:
            return wire.client.run(socket.create_connection, (host, port), timeout=20)

        old = [connect(vip, 7777), connect(front, 8888)]
        assert [_ask(connection, b"before") for connection in old] == [b"before", b"before"]
        answers: list[bytes] = []
        stop = threading.Event()

        def talk() -> None:
            while not stop.is_set() and len(answers) < 10_000:
                answers.extend(_ask(connection, b"during") for connection in old)

        talker = threading.Thread(target=talk)
        talker.start()
        report = cleanup_all()
        stop.set()
        talker.join(30)
        new = [connect(vip, 7777), connect(front, 8888)]
        after = [_ask(connection, b"after") for connection in (*old, *new)]
        listener.close()
        for connection in (*old, *new):
            connection.close()
    finally:
        wire.close()

    assert report.clean, report.to_dict()
    assert set(answers) == {b"during"}
    assert after == [b"after"] * 4
