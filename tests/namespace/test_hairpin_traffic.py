"""What hairpin mode is for: a pod that calls its own service, in both families, over a real bridge."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pods import BRIDGE, NODE_ADDRESSES, Node, Pod

from firewall_cleanup import ensure_hairpin, undo_hairpin, watch_hairpin
from firewall_cleanup.handlers._ports import PortHandler

pytestmark = pytest.mark.namespace

SERVICE = ("203.0.113.80", "2001:db8:80::80")

RULES = """
table inet service {{
    chain prerouting {{
        type nat hook prerouting priority dstnat
        ip daddr {service[0]} tcp dport 80 dnat ip to {pod[0]}:8080
        ip6 daddr {service[1]} tcp dport 80 dnat ip6 to [{pod[1]}]:8080
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat
        masquerade
    }}
}}
"""

SERVER = """
import socket
server = socket.create_server(("::", 8080), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
print("ready", flush=True)
while True:
    connection, peer = server.accept()
    connection.sendall(peer[0].encode())
    connection.close()
"""

# Both at once: what times out takes the whole time.
CLIENT = """
import json, socket, sys, threading
found = {}
def call(address):
    try:
        with socket.create_connection((address, 80), timeout=float(sys.argv[1])) as connection:
            found[address] = connection.recv(100).decode()
    except TimeoutError:
        found[address] = "timed out"
threads = [threading.Thread(target=call, args=(address,)) for address in sys.argv[2:]]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([found[address] for address in sys.argv[2:]]))
"""

# Seconds: for what cannot come, and for what comes as soon as the machine has time for it.
SHORT, LONG = 0.7, 20.0
TIMED_OUT = ["timed out", "timed out"]
# The masquerade makes the node's address of it.
CONNECTED = ["::ffff:" + NODE_ADDRESSES[0].partition("/")[0], NODE_ADDRESSES[1].partition("/")[0]]


@contextmanager
def serving(node: Node, pod: Pod, filtered: str) -> Iterator[Callable[[float], list[str]]]:
    """Run a service with the pod behind it; give what calls it from the pod itself, for so many seconds."""
    settings = ["ipv4.ip_forward=1", "ipv6.conf.all.forwarding=1"]
    settings += [f"bridge.bridge-nf-call-{tables}={filtered}" for tables in ("iptables", "ip6tables")]
    for setting in settings:
        name, _, value = setting.partition("=")
        name = name.replace("conf.all.", "conf/all/").replace(".", "/")
        done = node.sandbox.run(f"echo {value} > /proc/sys/net/{name}", check=False)
        if done.returncode:
            pytest.skip(f"this kernel has no {setting}")
    node.sandbox.load_tables(RULES.format(service=SERVICE, pod=pod.addresses))
    server = subprocess.Popen(pod.sandbox.command(sys.executable, "-c", SERVER), stdout=subprocess.PIPE, text=True)
    with server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        try:
            yield lambda seconds: json.loads(
                pod.sandbox.run([sys.executable, "-c", CLIENT, str(seconds), *SERVICE]).stdout
            )
        finally:
            server.kill()


def test_a_pod_reaches_itself_through_its_service(node: Node):
    pod = node.pod(7)
    with serving(node, pod, filtered="1") as call:
        assert call(SHORT) == TIMED_OUT
        assert ensure_hairpin(pid=pod.sandbox.pid, netns=node.path).changed
        assert call(LONG) == CONNECTED
        node.reattach(pod.port)
        assert call(SHORT) == TIMED_OUT
        stop, done = threading.Event(), threading.Event()
        options = {"netns": node.path, "seen": lambda _report: done.set()}
        watch = threading.Thread(target=watch_hairpin, args=(BRIDGE, stop), kwargs=options)
        watch.start()
        try:
            assert done.wait(60)
            assert call(LONG) == CONNECTED
            done.clear()
            node.reattach(pod.port)
            assert done.wait(60)
            assert call(LONG) == CONNECTED
        finally:
            stop.set()
            watch.join(60)
        assert undo_hairpin(netns=node.path).changed
        assert call(SHORT) == TIMED_OUT


def test_without_the_filter_on_bridges_it_is_not_needed(node: Node):
    pod = node.pod(7)
    with serving(node, pod, filtered="0") as call:
        assert not node.hairpin(pod.port)
        assert call(LONG) == CONNECTED
        # By this traffic the node learned where the pod is, as a search for an endpoint may need it.
        with PortHandler.open(node.path) as handler:
            for address in pod.addresses:
                assert handler.ports.learned(ipaddress.ip_address(address)) == {node.link(pod.port)["ifindex"]}
