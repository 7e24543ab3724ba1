"""The commands against a real API server: what they print, and their exit statuses."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from exposures import manifest, node
from jsonschema import Draft202012Validator
from servers import free_port
from world import World, eventually, where

from firewall_cleanup.exposure import commands
from firewall_cleanup.exposure.client import Client
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
    assert process.communicate()[1] == "stopped; run it again to go on\n"
    assert process.returncode == 128 + signal.SIGTERM
    world.admin.patch(where(service), {"metadata": {"finalizers": None}})
    assert world.command("delete", "root").returncode == 0


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


@pytest.mark.parametrize("name", ["a/b", "A", "..", "a,b"])
def test_odd_names(world: World, name: str) -> None:
    for words in (("status", name), ("status", "root", "-n", name)):
        done = world.command(*words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def daemon_set(host: str | None) -> dict[str, Any]:
    env = [{"name": "KUBERNETES_SERVICE_HOST", "value": host}] if host else []
    labels = {"k8s-app": "cilium"}
    pod = {
        "initContainers": [{"name": "config", "image": "cilium", "env": env}],
        "containers": [{"name": "cilium-agent", "image": "cilium", "env": env}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "cilium", "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }


def test_check_looks_at_the_cluster(world: World, file: Path) -> None:
    done = world.command("check", "-f", str(file))
    assert done.returncode == 1
    assert "there is no DaemonSet kube-system/cilium to look at" in done.stderr
    assert world.command("check", "root").returncode == 2  # no such exposure
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cilium-config", "namespace": "kube-system"},
        "data": {"kube-proxy-replacement": "true"},
    }
    made = [world.put(config), world.put(daemon_set(None))]
    try:
        found = json_of(world.command("check", "-f", str(file), "--output", "json"))
        assert {each["cycle"] for each in found["hosts"]} == {True}  # the ClusterIP, and no kube-proxy
        world.put(daemon_set("localhost"))
        assert world.command("check", "-f", str(file)).returncode == 0
        assert world.command("check", "-f", str(file), "--dns-name", "localhost").returncode == 1
        # A webhook may have put something else into the pods.
        pod = daemon_set("192.0.2.10")["spec"]["template"]
        pod["metadata"] |= {"name": "cilium-x", "namespace": "kube-system"}
        made.append(world.put({"apiVersion": "v1", "kind": "Pod", **pod}))
        done = world.command("check", "-f", str(file))
        assert "CYCLE: bootstrap, 192.0.2.10 (pods of cilium-x, container config" in done.stdout
        world.remove("Pod", made.pop()["metadata"]["name"])
        world.put(manifest(addresses=None, ranges=["192.0.2.0/24", "2001:db8::/64"]))
        world.put(daemon_set("2001:db8::77"))
        done = world.command("check", "root")
        assert done.returncode == 1
        assert "CYCLE: bootstrap, 2001:db8::77" in done.stdout
        world.put(daemon_set("localhost"))
        world.reconcile(manifest())  # its CiliumNodeConfig says localhost, too
        found = json_of(world.command("check", "root", "--output", "json"))
        assert {each["source"] for each in found["hosts"]} >= {"CiliumNodeConfig exposure-root"}
        assert found["cycle"] is False
    finally:
        for each in made:
            path = where(each)
            Client.delete(world.admin, path, (world.admin.get(path) or {})["metadata"]["uid"])
