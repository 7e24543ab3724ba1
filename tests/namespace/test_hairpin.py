"""Hairpin mode: each way to name a pod, everything that can be in the way, and the command."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pods import BRIDGE, SCHEMA, Node, Pod, ensure, ip, only, statuses
from scenes import as_nobody

from firewall_cleanup import (
    HairpinOutcome,
    HairpinReport,
    HairpinStatus,
    NamespaceError,
    ensure_hairpin,
)
from firewall_cleanup.cli import main
from firewall_cleanup.handlers._ports import MARK
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace

WAYS: dict[str, Callable[[Pod], dict[str, Any]]] = {
    "pid": lambda pod: {"pid": pod.sandbox.pid},
    "path": lambda pod: {"pod_netns": pod.sandbox.path},
    "interface": lambda pod: {"interface": pod.port},
    "ipv4": lambda pod: {"endpoint": pod.addresses[0]},
    "ipv6": lambda pod: {"endpoint": pod.addresses[1]},
    "ipv4 in ipv6": lambda pod: {"endpoint": f"::ffff:{pod.addresses[0]}"},
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_finds_the_port_of_the_pod_and_no_other(node: Node, way: str):
    pod, other = node.pod(7, interface="net7"), node.pod(8)
    report = ensure(node, **WAYS[way](pod))
    assert only(report) == HairpinOutcome(
        HairpinStatus.ENABLED, pod.port, node.link(pod.port)["ifindex"], BRIDGE, "net7"
    )
    assert (report.ok, report.changed, report.exit_code) == (True, True, 0)
    assert (node.hairpin(pod.port), node.hairpin(other.port)) == (True, False)
    (note,) = node.notes(pod.port)
    assert note.startswith(MARK)

    again = ensure(node, **WAYS[way](pod))
    assert (only(again).status, again.changed) == (HairpinStatus.ON, False)
    assert node.notes(pod.port) == [note]


def test_a_namespace_by_its_descriptor(node: Node):
    pod = node.pod(7)
    descriptor = os.open(pod.sandbox.path, os.O_RDONLY)
    try:
        assert only(ensure(node, pod_netns=descriptor)).status is HairpinStatus.ENABLED
        os.fstat(descriptor)  # it is the caller's, and still open
    finally:
        os.close(descriptor)


def test_all_ports_of_a_bridge(node: Node):
    pods = [node.pod(number) for number in (7, 8, 9)]
    node.set_hairpin("veth8", "on")
    node.ip(
        "link add br-other type bridge",
        "link add joins type veth peer name joined",
        f"link set joins master {BRIDGE}",
        "link set joined master br-other",
        "link add alone type veth peer name waits",
        "link set alone master br-other",
    )
    report = ensure(node, bridge=BRIDGE)
    assert statuses(report) == {
        "veth7": "enabled", "veth8": "already-on", "veth9": "enabled", "joins": "joins-bridges",
    }  # fmt: skip
    assert report.ok
    assert [node.hairpin(pod.port) for pod in pods] == [True, True, True]
    assert [node.hairpin(name) for name in ("joins", "joined", "alone")] == [False, False, False]
    assert [len(node.notes(pod.port)) for pod in pods] == [1, 0, 1]
    # An end that waits for its pod, or stays here, is no port.
    assert statuses(ensure(node, bridge="br-other")) == {"joined": "joins-bridges", "alone": "enabled"}


def test_an_empty_bridge_is_as_wanted(node: Node):
    assert ensure(node, bridge=BRIDGE) == HairpinReport(f"bridge {BRIDGE}", ())


def test_an_index_that_is_the_same_by_chance_is_not_taken(node: Node, new_sandbox):
    """An interface says the index of its other end, and that counts in the namespace of the other end only."""
    pod, inner = node.pod(7, options="index 77"), new_sandbox()
    ip(
        pod.sandbox,
        f"link add inside index 77 type veth peer name eth0 index 78 netns {inner.pid}",
        "link set inside up",
    )
    ip(inner, "link set eth0 up", "address add 198.51.100.7/24 dev eth0")
    node.ip("link add other index 78 type bridge")
    outcome = only(ensure(node, pid=inner.pid))
    assert outcome.status is HairpinStatus.NOT_A_PORT
    assert "no veth leads into" in outcome.reason
    assert not node.hairpin("veth7")
    assert only(ensure(node, endpoint="198.51.100.7")).interface == "veth7"


def test_a_pod_with_two_interfaces(node: Node):
    pod = node.pod(7)
    node.ip(
        f"link add second type veth peer name net1 netns {pod.sandbox.pid}",
        f"link add routed type veth peer name net2 netns {pod.sandbox.pid}",
        f"link set second master {BRIDGE}",
    )
    assert statuses(ensure(node, pid=pod.sandbox.pid)) == {"veth7": "enabled", "second": "enabled"}


# What is in the way


@pytest.mark.parametrize("target", ["pid", "path", "ipv4", "ipv6"])
def test_a_pod_in_the_network_of_the_node(node: Node, target: str):
    ways: dict[str, dict[str, Any]] = {
        "pid": {"pid": node.sandbox.pid},
        "path": {"pod_netns": node.path},
        "ipv4": {"endpoint": "198.51.100.1"},
        "ipv6": {"endpoint": "2001:db8:7::1"},
    }
    report = ensure(node, **ways[target])
    assert (only(report).status, report.exit_code) == (HairpinStatus.HOST_NETWORK, 0)


@pytest.mark.parametrize("address", ["203.0.113.9", "2001:db8:99::9"])
def test_an_endpoint_on_another_node(node: Node, address: str):
    assert only(ensure(node, endpoint=address)).status is HairpinStatus.ELSEWHERE
    gateway = "2001:db8:7::99" if ":" in address else "198.51.100.99"
    node.ip(f"route add {address} via {gateway}")
    report = ensure(node, endpoint=address)
    assert (only(report).status, report.exit_code) == (HairpinStatus.ELSEWHERE, 0)
    assert BRIDGE in only(report).reason


@pytest.mark.parametrize("address", ["198.51.100.200", "2001:db8:7::200"])
def test_an_endpoint_that_no_pod_has(node: Node, address: str):
    node.pod(7)
    report = ensure(node, endpoint=address)
    assert (only(report).status, report.exit_code) == (HairpinStatus.NOT_FOUND, 1)


@pytest.mark.parametrize("address", ["198.51.100.200", "2001:db8:7::200"])
def test_an_endpoint_behind_a_pod_is_found_by_what_the_bridge_learned(node: Node, address: str):
    """A machine in a pod, say: no end of a port has its address."""
    node.pod(7)
    pod = node.pod(8)
    mac = "02:00:00:00:00:c8"
    node.ip(f"neighbour add {address} lladdr {mac} dev {BRIDGE}")
    assert only(ensure(node, endpoint=address)).status is HairpinStatus.NOT_FOUND
    node.sandbox.run(["bridge", "fdb", "add", mac, "dev", pod.port, "master", "static"])
    outcome = only(ensure(node, endpoint=address))
    assert (outcome.status, outcome.interface) == (HairpinStatus.ENABLED, pod.port)
    assert not node.hairpin("veth7")


def test_an_endpoint_behind_a_port_that_is_no_pod(node: Node):
    mac = "02:00:00:00:00:c8"
    node.ip("link add uplink type ifb", f"link set uplink master {BRIDGE}")
    node.ip(f"neighbour add 198.51.100.200 lladdr {mac} dev {BRIDGE}")
    node.sandbox.run(["bridge", "fdb", "add", mac, "dev", "uplink", "master", "static"])
    outcome = only(ensure(node, endpoint="198.51.100.200"))
    assert (outcome.status, outcome.interface) == (HairpinStatus.ELSEWHERE, "uplink")
    assert not node.hairpin("uplink")


def test_an_address_that_two_pods_have(node: Node):
    first, second = node.pod(7), node.pod(8)
    ip(second.sandbox, f"address add {first.addresses[0]}/24 dev eth0")
    outcome = only(ensure(node, endpoint=first.addresses[0]))
    assert (outcome.status, outcome.status.ok) == (HairpinStatus.AMBIGUOUS, False)
    assert "veth7, veth8" in outcome.reason
    assert not node.hairpin("veth7")
    mac = json.loads(second.sandbox.run("ip -j link show eth0").stdout)[0]["address"]
    node.ip(f"neighbour add {first.addresses[0]} lladdr {mac} dev {BRIDGE}")
    node.sandbox.run(["bridge", "fdb", "replace", mac, "dev", "veth8", "master", "static"])
    assert only(ensure(node, endpoint=first.addresses[0])).interface == "veth8"


def test_an_address_on_another_interface_of_a_pod_does_not_count(node: Node):
    """Some load balancers give a pod the address of its service, on its loopback or a tunnel."""
    pod = node.pod(7)
    ip(pod.sandbox, "address add 198.51.100.222/32 dev lo", "address add 2001:db8:7::de/128 dev lo")
    for address in ("198.51.100.222", "2001:db8:7::de"):
        assert only(ensure(node, endpoint=address)).status is HairpinStatus.NOT_FOUND


def test_what_is_no_port(node: Node):
    pod = node.pod(7)
    node.ip(f"link set {pod.port} nomaster", "route add 198.51.100.7/32 dev veth7", "link add tap0 type ifb")
    expected: list[tuple[dict[str, Any], HairpinStatus, str]] = [
        ({"interface": pod.port}, HairpinStatus.NOT_A_PORT, "no port of a bridge"),
        ({"pid": pod.sandbox.pid}, HairpinStatus.NOT_A_PORT, "no port of a bridge"),
        ({"endpoint": "198.51.100.7"}, HairpinStatus.NOT_A_PORT, "no port of a bridge"),
        ({"interface": BRIDGE}, HairpinStatus.NOT_VETH, "kind bridge"),
        ({"interface": "tap0"}, HairpinStatus.NOT_VETH, "kind ifb"),
        ({"interface": "lo"}, HairpinStatus.NOT_VETH, "no virtual link"),
        ({"interface": "nothing"}, HairpinStatus.NOT_FOUND, "no link nothing"),
        ({"bridge": "nothing"}, HairpinStatus.NO_BRIDGE, "no link nothing"),
        ({"bridge": pod.port}, HairpinStatus.NO_BRIDGE, "kind veth"),
        ({"pid": 2**22 + 1}, HairpinStatus.NOT_FOUND, "no process"),
        ({"pod_netns": "nothing"}, HairpinStatus.NOT_FOUND, "no namespace nothing"),
        ({"pod_netns": "/run/nothing/here"}, HairpinStatus.NOT_FOUND, "no namespace"),
    ]
    for target, status, reason in expected:
        report = ensure(node, **target)
        outcome = only(report)
        assert (outcome.status, report.exit_code) == (status, 1), target
        assert reason in (outcome.reason or ""), target
    assert node.notes(pod.port) == []


@pytest.mark.parametrize(
    "target",
    [
        {},
        {"bridge": BRIDGE, "pid": 1},
        {"bridge": ""},
        {"interface": "a/b"},
        {"interface": "x" * 128},
        {"pid": 0},
        {"endpoint": "10.0.0"},
        {"endpoint": "fe80::1"},
        {"endpoint": "0.0.0.0"},
        {"endpoint": "ff02::1"},
        {"pod_netns": ""},
        {"pod_netns": "/dev/null"},
    ],
    ids=str,
)
def test_wrong_arguments(node: Node, target: dict[str, Any]):
    with pytest.raises(ValueError, match=r"."):
        ensure_hairpin(netns=node.path, **target)


def test_a_namespace_that_does_not_exist():
    with pytest.raises(NamespaceError):
        ensure_hairpin(bridge=BRIDGE, netns="no-such-namespace")


# The command


def command(sandbox: Sandbox, *options: str):
    return sandbox.run([sys.executable, "-m", "firewall_cleanup", "ensure-hairpin", *options], check=False)


def test_the_command(node: Node):
    pod = node.pod(7)
    done = command(node.sandbox, "--pid", str(pod.sandbox.pid))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "veth7 on kube-bridge (to eth0): hairpin mode turned on\n"
    node.pod(8)
    done = command(node.sandbox, "--bridge", BRIDGE, "--output", "json")
    report = json.loads(done.stdout)
    SCHEMA.validate(report)
    assert [(o["interface"], o["status"]) for o in report["outcomes"]] == [
        ("veth7", "already-on"), ("veth8", "enabled"),
    ]  # fmt: skip
    done = command(node.sandbox, "--bridge", BRIDGE)
    assert done.stdout == "bridge kube-bridge: 2 ports as wanted already\n"
    assert len(command(node.sandbox, "--bridge", BRIDGE, "-v").stdout.splitlines()) == 2
    done = command(node.sandbox, "--undo")
    assert (done.returncode, done.stdout.count("put back to off")) == (0, 2)
    assert command(node.sandbox, "--undo").stdout == "all ports: no port, nothing to do\n"


def test_the_command_fails_with_one_line(node: Node):
    done = command(node.sandbox, "--bridge", "nothing")
    assert (done.returncode, done.stdout, done.stderr) == (
        1, "bridge nothing: no such bridge: there is no link nothing\n", "",
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--watch",),
        ("--watch", "--pid", "1"),
        ("--undo", "--pid", "1"),
        ("--bridge", "a", "--interface", "b"),
        ("--pid", "soon"),
        ("--pid", "-1"),
        ("--endpoint", "fe80::1"),
        ("--bridge", BRIDGE, "--netns", "no-such-namespace"),
        ("--pod-netns", "/dev/null"),
        ("--bridge", BRIDGE, "--cleanup-config"),
    ],
    ids=" ".join,
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], options: tuple[str, ...]):
    try:
        status = main(["ensure-hairpin", *options])
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert (status, said.out) == (2, "")
    assert len(said.err.splitlines()[-1]) > 20


def test_missing_rights_are_one_line(node: Node):
    pod = node.pod(7)
    words, python = as_nobody(node.sandbox.folder)
    if not words:
        pytest.skip("needs root")
    for target in (["--bridge", BRIDGE], ["--pid", str(pod.sandbox.pid)]):
        done = node.sandbox.run([*words, python, "-m", "firewall_cleanup", "ensure-hairpin", *target], check=False)
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout.count("\n") == 1
        assert "not permitted" in done.stdout
        assert "run as root" in done.stdout
    assert (node.hairpin("veth7"), node.notes("veth7")) == (False, [])
