"""The examples do what they are there to show."""

from __future__ import annotations

import errno
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import attrs
import pytest

import firewall_cleanup
from firewall_cleanup import Backend, HairpinOutcome, HairpinReport, HairpinStatus
from firewall_cleanup.handlers import _netlink
from firewall_cleanup.testing.namespaces import NotAvailable, Sandbox
from firewall_cleanup.testing.node import Node

EXAMPLES = Path(__file__).parent.parent / "examples"
CONTROLLER = [sys.executable, str(EXAMPLES / "controller.py")]
SIDECAR = [sys.executable, str(EXAMPLES / "service_address_sidecar.py")]
HAIRPIN = [sys.executable, str(EXAMPLES / "hairpin_watcher.py")]
DEMO = [sys.executable, str(EXAMPLES / "demo_node.py")]


@pytest.fixture
def namespace() -> Iterator[Sandbox]:
    """A network namespace for commands; nobody needs to be root for it where user namespaces are allowed."""
    try:
        with Sandbox() as sandbox:
            yield sandbox
    except NotAvailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def demo_node(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import demo_node

    return demo_node


@pytest.mark.namespace
@pytest.mark.parametrize("node", [Node(), Node(nft_netpol=True)], ids=["iptables", "nftables"])
def test_a_controller_cleans_up_at_its_start(namespace: Sandbox, node: Node):
    namespace.load(node, Backend.NFT)
    before = namespace.state()
    assert all("KUBE-" in before.rules[f"{tool}-nft-save"] for tool in ("iptables", "ip6tables"))
    assert "create kube-router-svip " in before.sets
    assert "create inet6:kube-router-svip " in before.sets

    done = namespace.run([*CONTROLLER, "--cleanup-config", "--cleanup-output", "json"], check=False)

    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert (report["clean"], report["changed"]) == (True, True)
    assert report["families"] == {"ipv4": "examined", "ipv6": "examined"}
    after = namespace.state()
    lines = [line for text in after.rules.values() for line in text.splitlines()]
    assert [line for line in lines if line.startswith("[") or " - [" in line] == []
    assert (after.sets, after.native) == ("", "")

    again = namespace.run([*CONTROLLER, "--cleanup-config"])
    assert "synchronised" not in again.stdout


def test_a_controller_runs_if_it_is_not_told_to_clean_up():
    done = subprocess.run([*CONTROLLER, "--once"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "synchronised\n"


def test_a_controller_stops_when_it_is_told_to():
    with subprocess.Popen(CONTROLLER, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.namespace
def test_a_sidecar_keeps_its_address(namespace: Sandbox):
    namespace.run("ip link set lo up; ip link add proxy type bridge")
    before = namespace.run("ip address; ip -6 route show table local").stdout
    words = namespace.command(*SIDECAR, "proxy", "203.0.113.10", "2001:db8::10")
    with subprocess.Popen(words, env=namespace.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(3)]
        assert said == ["203.0.113.10 added added\n", "2001:db8::10 added added\n", "ready\n"]
        namespace.run(
            "ip addr del 203.0.113.10/32 dev proxy; ip -6 route del local 2001:db8::10 dev proxy table local"
        )
        while said[-1] != "2001:db8::10 repaired added again: its local route was missing\n":
            said.append(process.stdout.readline())
        process.terminate()
        rest = process.stdout.read()
        assert process.wait(60) == 0
    assert "203.0.113.10 removed" in rest
    assert "ready" not in rest.partition("203.0.113.10 removed")[2]
    assert namespace.run("ip address; ip -6 route show table local").stdout == before


@pytest.mark.namespace
def test_a_sidecar_that_fails_says_nothing_that_a_proxy_waits_for(namespace: Sandbox):
    words = namespace.command(*SIDECAR, "lo", "203.0.113.10")  # which is down
    with subprocess.Popen(words, env=namespace.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(2)]
        process.terminate()
        said += process.stdout.readlines()
        assert process.wait(60) == 0
    assert said[1].startswith("failed: ")
    assert [line for line in said if "ready" in line or line.startswith(("ok", "not ok"))] == []


def test_a_sidecar_says_what_is_wrong_with_its_arguments():
    for words in ([], ["lo"], ["lo", "example.com"]):
        assert subprocess.run([*SIDECAR, *words], capture_output=True, check=False, timeout=60).returncode == 2


@pytest.mark.parametrize(
    "words",
    [("service_address_sidecar", "lo", "203.0.113.10"), ("hairpin_watcher", "kube-bridge")],
    ids=lambda w: w[0],
)
def test_what_the_kernel_refuses_is_one_line(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def none(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(_netlink.socket, "socket", none)
    assert _run_example(monkeypatch, *words) == 1
    assert capsys.readouterr() == ("", "rtnetlink: Too many open files\n")


def _run_example(monkeypatch: pytest.MonkeyPatch, name: str, *words: str) -> int:
    """Run an example in this process, and return its exit status."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](words)


@pytest.mark.parametrize("status", [HairpinStatus.FAILED, HairpinStatus.PUT_BACK])
def test_a_hairpin_watcher_tells_whether_it_could_put_back(
    status: HairpinStatus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    report = HairpinReport("kube-bridge", (HairpinOutcome(status, interface="veth1"),))
    monkeypatch.setattr(firewall_cleanup, "watch_hairpin", lambda *_, **__: None)
    monkeypatch.setattr(firewall_cleanup, "undo_hairpin", lambda **_: report)
    assert _run_example(monkeypatch, "hairpin_watcher", "kube-bridge") == int(not status.ok)
    assert capsys.readouterr().out == f"veth1: {status.value}\n"


def test_a_hairpin_watcher_says_what_is_wrong_with_its_arguments():
    for words in ([], ["a/b"]):
        done = subprocess.run([*HAIRPIN, *words], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("keep", [False, True])
def test_a_hairpin_watcher_watches_and_puts_back(namespace: Sandbox, keep: bool):
    namespace.run("ip link add kube-bridge type bridge")
    namespace.run("ip link add veth1 type veth peer name eth0")
    words = [*HAIRPIN, "kube-bridge", *["--keep"] * keep]
    with subprocess.Popen(
        namespace.command(*words), env=namespace.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        namespace.run("ip link set veth1 master kube-bridge")
        assert process.stdout.readline() == "veth1: enabled\n"
        namespace.run("ip link set veth1 nomaster && ip link set veth1 master kube-bridge")
        assert process.stdout.readline() == "veth1: enabled\n"
        process.terminate()
        assert process.stdout.read() == ("" if keep else "veth1: put-back\n")
        assert process.wait(60) == 0
    state = "on" if keep else "off"
    assert f"hairpin {state}" in namespace.run("ip -d link show veth1").stdout


@pytest.mark.namespace
@pytest.mark.parametrize("backend", ["nft", "legacy", "both"])
def test_the_demonstration_keeps_its_promise(backend: str, namespace: Sandbox):
    # In a namespace of its own, so that one which touches its caller's own would be found out.
    empty = namespace.state()
    done = namespace.run([*DEMO, f"--backend={backend}"], check=False)
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("identical") == (6 if backend == "both" else 4)
    assert "removed nothing" in done.stdout
    assert namespace.state() == empty


@pytest.mark.namespace
def test_the_demonstration_notices_differences(demo_node: ModuleType, namespace: Sandbox, capsys):
    state = demo_node.fill(namespace, [Backend.NFT])
    assert demo_node.compare(state, state)
    assert "DIFFERENT" not in capsys.readouterr().out
    rules = dict(state.rules)
    rules["ip6tables-nft-save"] = rules["ip6tables-nft-save"].replace("[", "[1", 1)
    for other in (attrs.evolve(state, sets=""), attrs.evolve(state, native=""), attrs.evolve(state, rules=rules)):
        assert not demo_node.compare(state, other)
        assert capsys.readouterr().out.count("DIFFERENT") == 1


@pytest.mark.namespace
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_demonstration_leaves_nothing(namespace: Sandbox, tmp_path: Path, number: signal.Signals):
    with subprocess.Popen(
        namespace.command(*DEMO),
        env={**namespace.environment, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("== What would be removed"))
        os.killpg(process.pid, number)
        process.stdout.read()
        assert process.wait(60) == 128 + number
    assert list(tmp_path.iterdir()) == []
    assert _ends(process.pid)


def _ends(group: int) -> bool:
    """Whether a process group has no member any more, or soon."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False
