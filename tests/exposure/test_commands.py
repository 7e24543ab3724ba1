"""The commands against a real API server: what they print, and their exit statuses."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from exposures import manifest, node
from jsonschema import Draft202012Validator
from servers import free_port
from world import Double, World, eventually, where

from firewall_cleanup.exposure import commands
from firewall_cleanup.exposure.objects import object_title
from firewall_cleanup.exposure.status import FINALIZER, adopt

pytestmark = pytest.mark.apiserver

SCHEMA = Draft202012Validator(json.loads((Path(__file__).parents[2] / "docs/exposure.schema.json").read_text()))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path, manifest())


def write(folder: Path, document: dict[str, Any]) -> Path:
    found = folder / "exposure.yaml"
    found.write_text(yaml.safe_dump(document))
    return found


def json_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    SCHEMA.validate(found)
    return found


@pytest.mark.parametrize("families", ["dual", "ipv4", "ipv6"])
def test_apply_status_delete(world: World, tmp_path: Path, families: str) -> None:
    file = str(write(tmp_path, manifest(families)))
    with world.cilium():
        done = world.command("apply", "-f", file, "--output", "json")
        assert (done.returncode, json_of(done)["state"]) == (0, "Succeeded")
        assert set(json_of(done)["objects"].values()) == {"created"}
        again = json_of(world.command("apply", "-f", file, "--output", "json"))
        assert set(again["objects"].values()) == {"unchanged"}
        done = world.command("status", "-f", file, "--output", "json")
        assert (done.returncode, json_of(done)["problems"]) == (0, [])
        assert len(json_of(done)["addresses"]) == len(json_of(done)["families"])
    done = world.command("delete", "-f", file, "--output", "json")
    assert (done.returncode, json_of(done)["gone"]) == (0, True)
    assert len(json_of(done)["removed"]) == len(again["objects"])
    assert world.objects() == {}
    done = world.command("delete", "root")
    assert (done.returncode, done.stdout) == (0, "nothing of the exposure is left\n")
    assert world.command("status", "root").returncode == 1


def test_apply_says_what_is_missing(world: World, file: Path) -> None:
    done = world.command("apply", "-f", str(file), "--wait", "0")
    assert done.returncode == 1
    assert "Processing: waiting for Cilium to give an IPv4 address and an IPv6 address" in done.stdout
    assert "warning: IPv6 is announced by L2 from Cilium 1.19 only" in done.stdout
    done = world.command("status", "root")
    assert done.returncode == 1
    assert "problem: IPv6: Cilium has given no address" in done.stdout
    done = world.command("apply", "-f", str(file), "--cilium-version", "1.18", "--wait", "0")
    assert done.returncode == 1
    assert "Error: Cilium 1.18 announces no IPv6 address by L2" in done.stdout


def problems(world: World, *words: str) -> list[str]:
    done = world.command("status", *words, "--output", "json")
    found: list[str] = json_of(done)["problems"]
    assert done.returncode == bool(found)
    return found


def test_status_compares_with_what_is_wanted(world: World, tmp_path: Path) -> None:
    """A file, else the exposure's object; what others have set besides, and a node that fails, are told apart."""
    world.reconcile(manifest("ipv4", interfaces=["^eth0$"]))
    Double(world.admin, world.apis).step()
    assert problems(world, "root") == []
    file = str(write(tmp_path, manifest("ipv4", interfaces=["^eth0$"])))
    assert problems(world, "-f", file) == []
    policy = world.objects()["CiliumL2AnnouncementPolicy exposure-root"]
    world.admin.patch(where(policy), {"metadata": {"annotations": {"of": "others"}}})
    assert problems(world, "-f", file) == []

    # A list that is merged by keys may have more; one that is replaced as a whole may not.
    service = world.objects()["Service exposure-root"]
    another = {"name": "konnectivity", "port": 8132, "targetPort": 8132, "protocol": "TCP"}
    bare = {key: service[key] for key in ("apiVersion", "kind")}
    metadata = {"name": "exposure-root", "namespace": "kube-system"}
    world.put({**bare, "metadata": metadata, "spec": {"ports": [another]}}, manager="konnectivity")
    assert len(world.objects()["Service exposure-root"]["spec"]["ports"]) == 2
    assert problems(world, "-f", file) == []
    moved = manifest("ipv4", interfaces=["^eth0$"])
    moved["spec"]["port"] = 8443
    moved["spec"]["providerConfig"]["apiServerURLs"] = ["https://localhost:443"]
    write(tmp_path, moved)
    assert problems(world, "-f", file) == [
        "EndpointSlice kube-system/exposure-root-ipv4 is not as wanted: ports[0].port is 443, not 8443",
        "Service kube-system/exposure-root is not as wanted: spec.ports[port: 8443, protocol: TCP] is missing",
    ]
    write(tmp_path, manifest("ipv4", interfaces=["^eth0$"]))
    world.put({**bare, "metadata": metadata}, manager="konnectivity")
    endpoints = world.objects()["EndpointSlice exposure-root-ipv4"]
    for ports, expected in (([*endpoints["ports"], another], 1), (endpoints["ports"], 0)):
        bare_ports = [{key: each[key] for key in ("name", "port", "protocol")} for each in ports]
        world.admin.patch(where(endpoints), {"ports": bare_ports})
        found = problems(world, "-f", file)
        assert (len(found), "ports has 2 entries, not 1" in " ".join(found)) == (expected, bool(expected))

    world.put_node(node("cp-2", ready="False"))
    assert problems(world, "-f", file) == [
        "EndpointSlice kube-system/exposure-root-ipv4 is not as wanted: endpoints has 3 entries, not 2"
    ]
    for name in ("cp-1", "cp-3"):
        world.put_node(node(name, ready="False"))
    assert "IPv4: no healthy node has an InternalIP (cp-1: Ready is False" in " ".join(problems(world, "-f", file))
    for name in ("cp-1", "cp-2", "cp-3"):
        world.put_node(node(name))

    write(tmp_path, manifest("ipv4"))
    assert problems(world, "-f", file) == [
        "CiliumL2AnnouncementPolicy exposure-root is not as wanted: spec.interfaces is there still"
    ]
    write(tmp_path, manifest("ipv4", addresses=["192.0.2.11"], interfaces=["^eth0$"], apiServerURLs=[]))
    found = problems(world, "-f", file)
    assert "IPv4: Cilium has given 192.0.2.10, not 192.0.2.11" in found
    assert "CiliumNodeConfig kube-system/exposure-root is not wanted" in found
    assert any("CiliumLoadBalancerIPPool exposure-root is not as wanted: spec.blocks[0]" in each for each in found)
    write(tmp_path, manifest(interfaces=["^eth0$"]))
    found = problems(world, "-f", file)
    assert "EndpointSlice kube-system/exposure-root-ipv6 is missing" in found
    assert "IPv6: Cilium has given no address" in found

    world.put(manifest("ipv4", interfaces=["^eth0$"]))
    assert problems(world, "root") == []
    world.remove("CiliumL2AnnouncementPolicy", "exposure-root")
    world.remove("CiliumLoadBalancerIPPool", "exposure-root")
    assert sorted(problems(world, "root")) == [
        "CiliumL2AnnouncementPolicy exposure-root is missing",
        "CiliumLoadBalancerIPPool exposure-root is missing",
    ]
    document = manifest("ipv4")
    document["spec"]["providerConfig"]["announce"] = "x"
    world.put(document)
    assert problems(world, "root") == ["spec.providerConfig.announce: must be l2 or bgp, not 'x'"]


def test_status_compares_lists_as_an_apply_merges_them(world: World, tmp_path: Path) -> None:
    """Instances and peers of others are theirs; ours that are not wanted any more are there still."""
    peers = [{"address": "10.0.0.1", "asn": 1}, {"address": "10.0.0.2", "asn": 1}]

    def wanted(*some: dict[str, Any]) -> dict[str, Any]:
        return manifest("ipv4", announce="bgp", bgp={"localASN": 65000, "peers": list(some)})

    world.reconcile(wanted(*peers))
    Double(world.admin, world.apis).step()
    cluster = world.objects()["CiliumBGPClusterConfig exposure-root"]
    of_others = {
        **{key: cluster[key] for key in ("apiVersion", "kind")},
        "metadata": {"name": cluster["metadata"]["name"]},
        "spec": {"bgpInstances": [{"name": "another"}, {"name": "exposure-root", "peers": [{"name": "another"}]}]},
    }
    world.put(of_others, manager="somebody")
    assert len(world.objects()["CiliumBGPClusterConfig exposure-root"]["spec"]["bgpInstances"]) == 2
    file = str(write(tmp_path, wanted(*peers)))
    assert problems(world, "-f", file) == []
    assert not world.reconcile(wanted(*peers)).changed
    what = "CiliumBGPClusterConfig exposure-root is not as wanted: spec.bgpInstances[0]"
    write(tmp_path, wanted(peers[0]))
    assert problems(world, "-f", file) == [f"{what}.peers[name: peer-10-0-0-2] is there still"]
    write(tmp_path, wanted(peers[0], {**peers[1], "asn": 2}))
    assert problems(world, "-f", file) == [f"{what}.peers[1].peerASN is 1, not 2"]
    world.reconcile(wanted(peers[0]))
    assert [each["name"] for each in instances(world)[-1]["peers"]] == ["peer-10-0-0-1", "another"]
    write(tmp_path, wanted(peers[0]))
    assert problems(world, "-f", file) == []


def instances(world: World) -> list[dict[str, Any]]:
    found = world.objects()["CiliumBGPClusterConfig exposure-root"]["spec"]["bgpInstances"]
    return sorted(found, key=lambda each: str(each["name"]))


def test_status_tells_what_cilium_says(world: World) -> None:
    peers = [{"address": "10.0.0.1", "asn": 1}]
    world.reconcile(manifest("ipv4", announce="bgp", bgp={"localASN": 65000, "peers": peers}))
    Double(world.admin, world.apis).step()
    assert problems(world, "root") == []
    for title, kind in (
        ("CiliumBGPClusterConfig exposure-root", "cilium.io/NoMatchingNode"),
        ("CiliumBGPPeerConfig exposure-root-179", "cilium.io/MissingAuthSecret"),
        ("CiliumLoadBalancerIPPool exposure-root", "cilium.io/PoolConflict"),
    ):
        path = where(world.objects()[title])
        for status in ("True", "False"):
            condition = {"type": kind, "status": status, "reason": "r", "message": "said"}
            world.admin.patch(f"{path}/status", {"status": {"conditions": [condition]}})
            found = problems(world, "root")
            assert (len(found), "said" in " ".join(found)) == ((1, True) if status == "True" else (0, False))


def test_apply_does_not_wait_for_what_waiting_does_not_cure(
    world: World, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(commands, "_wait", waits.append)
    for version, text in (("1.18", "announces no IPv6"), ("1.12", "Cilium 1.12 is too old")):
        done = world.command("apply", "-f", str(file), "--cilium-version", version)
        assert (done.returncode, text in done.stdout, waits) == (1, True, [])
    # Cilium may yet give an address.
    assert world.command("apply", "-f", str(file), "--cilium-version", "1.19").returncode == 1
    assert len(waits) == 1


def test_apply_follows_the_nodes(world: World, file: Path) -> None:
    with world.cilium():
        assert world.command("apply", "-f", str(file)).returncode == 0
        world.put_node(node("cp-1", ready="False"))
        done = world.command("apply", "-f", str(file))
        assert "changed: EndpointSlice kube-system/exposure-root-ipv6" in done.stdout
        done = world.command("status", "root")
        assert "IPv4: 192.0.2.10 -> cp-2 10.0.1.12, cp-3 10.0.1.13" in done.stdout


def test_in_a_pod_the_service_account_is_used(world: World, tmp_path: Path) -> None:
    config = yaml.safe_load(world.cluster.kubeconfig("admin").read_text())
    account = {
        "token": config["users"][0]["user"]["token"],
        "namespace": "kube-system",
        "ca.crt": base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode(),
    }
    for name, text in account.items():
        (tmp_path / name).write_text(text)
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    script = f'mount -t tmpfs none /run && mkdir -p {place} && mount --bind {tmp_path} {place} || exit 99; exec "$@"'
    words = [sys.executable, "-m", "firewall_cleanup", "exposure", "status", "root"]
    variables = {
        **os.environ,
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(world.cluster.port),
    }
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *words],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip(f"no mount namespace: {done.stderr}")
    assert done.stdout == "exposure kube-system/root\nproblem: there is no Service of it\n", done.stderr


def test_what_the_controller_keeps_is_its_own(world: World, file: Path) -> None:
    world.put(manifest())
    adopt(world.admin, world.exposure() or {})
    for command in (("apply", "-f", str(file)), ("delete", "root")):
        done = world.command(*command)
        assert done.returncode == 1
        assert "the controller keeps the exposure kube-system/root" in done.stderr
    # The controller is gone for good: what it would do is done by hand.
    world.reconcile(manifest())
    world.remove("SelfHostedShootExposure", "root")
    assert (world.exposure() or {})["metadata"]["finalizers"] == [FINALIZER]
    assert world.command("delete", "root").returncode == 0
    assert (world.exposure(), world.objects()) == (None, {})


def test_delete_waits_and_is_stopped(world: World, file: Path) -> None:
    world.reconcile(manifest())
    service = world.objects()["Service exposure-root"]
    world.admin.patch(where(service), {"metadata": {"finalizers": ["example.org/hold"]}})
    done = world.command("delete", "root", "--wait", "0")
    assert done.returncode == 1
    assert "waiting for Service kube-system/exposure-root to go (held by example.org/hold)" in done.stdout
    found = json_of(world.command("delete", "root", "--wait", "0", "--output", "json"))
    assert (found["gone"], len(found["waiting"])) == (False, 1)
    process = subprocess.Popen([*world._words("delete", "admin"), "root"], stderr=subprocess.PIPE, text=True)
    eventually(lambda: Path(f"/proc/{process.pid}/net/tcp").read_text().count("\n") > 1)
    eventually(lambda: catches_sigterm(process.pid))
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[1] == "firewall-cleanup exposure: stopped; run it again to go on\n"
    assert process.returncode == 128 + signal.SIGTERM
    world.admin.patch(where(service), {"metadata": {"finalizers": None}})
    assert world.command("delete", "root").returncode == 0


@pytest.mark.parametrize("force", [False, True])
def test_delete_lists_what_took_a_moment(world: World, monkeypatch: pytest.MonkeyPatch, force: bool) -> None:
    """What a finalizer held in one look and is gone in the next is removed as well; what was there still is not."""
    world.reconcile(manifest())
    all_of_it = {object_title(each) for each in world.objects().values()}
    for kind in ("Service", "CiliumLoadBalancerIPPool"):
        held = where(world.objects()[f"{kind} exposure-root"])
        world.admin.patch(held, {"metadata": {"finalizers": ["example.org/hold"]}})
    looks = 0

    def wait(_deadline: float) -> bool:
        """The Service is let go after the first look; the pool never is, or after the second."""
        nonlocal looks
        looks += 1
        let_go = "Service" if looks == 1 else "CiliumLoadBalancerIPPool"
        world.admin.patch(where(world.objects()[f"{let_go} exposure-root"]), {"metadata": {"finalizers": None}})
        return not force

    monkeypatch.setattr(commands, "_wait", wait)
    done = world.command("delete", "root", "--output", "json", *(["--force"] if force else []))
    found = json_of(done)
    left = {"CiliumLoadBalancerIPPool exposure-root"} if force else set()
    assert (done.returncode, found["gone"], set(found["removed"])) == (int(force), not force, all_of_it - left)
    assert len(found["removed"]) == len(set(found["removed"]))
    if not force:
        assert found["removed"][0] == "Service kube-system/exposure-root"


def test_delete_by_force_lets_the_exposure_go(world: World) -> None:
    """What holds the Service will never let it go: the rest goes, the exposure too, and it is said what is left."""
    world.put(manifest())
    adopt(world.client, world.exposure() or {})
    world.reconcile(manifest())
    service = world.objects()["Service exposure-root"]
    world.admin.patch(where(service), {"metadata": {"finalizers": ["example.org/hold"]}})
    refused = world.command("delete", "root", "--wait", "0", "--force")
    assert (refused.returncode, "the controller keeps the exposure" in refused.stderr) == (1, True)
    world.remove("SelfHostedShootExposure", "root")
    assert world.command("delete", "root", "--wait", "0").returncode == 1
    assert world.exposure() is not None
    assert len(world.objects()) > 1
    done = world.command("delete", "root", "--wait", "0", "--force")
    assert done.returncode == 1
    assert "waiting for Service kube-system/exposure-root to go (held by example.org/hold)" in done.stdout
    assert (world.exposure(), list(world.objects())) == (None, ["Service exposure-root"])
    world.admin.patch(where(service), {"metadata": {"finalizers": None}})


def catches_sigterm(pid: int) -> bool:
    [line] = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("SigCgt")]
    return bool(int(line.split()[1], 16) & 1 << (signal.SIGTERM - 1))


def test_an_api_server_that_is_away(world: World, file: Path, tmp_path: Path) -> None:
    port = free_port()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(world.cluster.kubeconfig().read_text().replace(str(world.cluster.port), str(port)))
    for words in (("status", "root"), ("apply", "-f", str(file)), ("delete", "root"), ("check", "root")):
        done = world.command(*words, "--kubeconfig", str(kubeconfig))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"firewall-cleanup exposure: https://127.0.0.1:{port}: ")
        assert done.stderr.count("\n") == 1


def test_rights_and_credentials_are_named(world: World, tmp_path: Path) -> None:
    config = yaml.safe_load(world.cluster.kubeconfig("admin").read_text())
    [user] = config["users"]
    for credentials, status, error in (
        ({"token": "wrong"}, 1, "the token or certificate is not accepted"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "x"}}, 2, "v1 not implemented"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "/nowhere"}}, 1, "/nowhere"),
    ):
        user["user"] = credentials
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(config))
        words = [*world._words("status", "admin"), "root", "--kubeconfig", str(kubeconfig)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (status, ""), done
        assert error in done.stderr
        assert "Traceback" not in done.stderr
    done = world.command("check", "root", user="controller")
    assert done.returncode == 1
    assert "forbidden" in done.stderr.lower() or "cannot get" in done.stderr


@pytest.mark.parametrize("words", [("status", "root"), ("check", "root"), ("apply", "-f", "FILE")])
def test_a_signal_while_it_connects(file: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    """The server takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        kubeconfig = tmp_path / "kubeconfig"
        user = {"name": "u", "user": {"token": "x"}}
        cluster = {"server": f"http://127.0.0.1:{port}"}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        found = {"clusters": [{"name": "c", "cluster": cluster}], "contexts": [context], "users": [user]}
        kubeconfig.write_text(yaml.safe_dump({"current-context": "c", **found}))
        given = [str(file) if each == "FILE" else each for each in words]
        command = [sys.executable, "-m", "firewall_cleanup", "exposure", *given, "--kubeconfig", str(kubeconfig)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        with server.accept()[0]:
            process.send_signal(signal.SIGINT)
            said = process.communicate()[1]
    assert (process.returncode, said.count("\n")) == (128 + signal.SIGINT, 1)
    assert "stopped" in said


@pytest.mark.parametrize("name", ["a/b", "A", "..", "a,b"])
def test_odd_names(world: World, name: str) -> None:
    for words in (("status", name), ("status", "root", "-n", name)):
        done = world.command(*words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
