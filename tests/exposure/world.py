"""The cluster of a test as the test sees it, and a double for Cilium."""

from __future__ import annotations

import contextlib
import functools
import io
import ipaddress
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import attrs
import yaml
from exposures import CRDS
from servers import Cluster

from firewall_cleanup import cli
from firewall_cleanup.exposure import Apis, CiliumVersion, parse
from firewall_cleanup.exposure.capabilities import RESOURCES
from firewall_cleanup.exposure.client import ApiError, Client, path_of
from firewall_cleanup.exposure.deploy import Deployment, controller_manifests
from firewall_cleanup.exposure.parsing import API_VERSION
from firewall_cleanup.exposure.reconcile import Reconciliation, reconcile
from firewall_cleanup.exposure.status import exposure_path
from firewall_cleanup.exposure.values import CONTROL_PLANE, owner_labels

T = TypeVar("T")
PLURALS = {
    "Node": ("nodes", False),
    "Pod": ("pods", True),
    "CustomResourceDefinition": ("customresourcedefinitions", False),
    "ServiceAccount": ("serviceaccounts", True),
    "Role": ("roles", True),
    "RoleBinding": ("rolebindings", True),
    "ClusterRole": ("clusterroles", False),
    "ClusterRoleBinding": ("clusterrolebindings", False),
    "Deployment": ("deployments", True),
    "DaemonSet": ("daemonsets", True),
    "ConfigMap": ("configmaps", True),
    "SelfHostedShootExposure": ("selfhostedshootexposures", True),
    **{kind: (each.plural, each.namespaced) for kind, each in RESOURCES.items()},
}
LABELS = owner_labels("root", "kube-system")


@functools.cache
def _crds() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(CRDS.read_text())
    return found


def where(found: dict[str, Any]) -> str:
    plural, namespaced = PLURALS[found["kind"]]
    metadata = found["metadata"]
    return path_of(found["apiVersion"], plural, metadata["namespace"] if namespaced else None, metadata["name"])


def eventually(look: Callable[[], T], seconds: float = 60) -> T:
    """What `look` returns once that is true; what it raised last, or an AssertionError, if it never is."""
    deadline = time.monotonic() + seconds
    while True:
        last: Exception | None = None
        try:
            if found := look():
                return found
        except Exception as error:  # noqa: BLE001
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {seconds} s: {last or look}")
        time.sleep(0.1)


@attrs.define
class World:
    """`admin` may do everything; `client` has the controller's rights and no more."""

    cluster: Cluster
    admin: Client = attrs.field(init=False)
    client: Client = attrs.field(init=False)
    apis: Apis = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.admin = Client.open(self.cluster.kubeconfig("admin"))
        self.client = Client.open(self.cluster.kubeconfig("controller"))

    def prepare(self) -> None:
        """Put the custom resources and the rights there, as an administrator does, if they are not there already."""
        wanted = [*_crds(), *controller_manifests(Deployment("firewall-cleanup:test"))]
        if any(self.admin.get(where(each)) is None for each in (wanted[0], wanted[-1])):
            for each in wanted:
                self.put(each)
            for crd in _crds():
                spec = crd["spec"]
                for version in spec["versions"]:
                    path = path_of(f"{spec['group']}/{version['name']}", spec["names"]["plural"])
                    eventually(lambda path=path: self.admin._request("GET", path))
        self.apis = Apis.of_discovery(self.admin.served(), CiliumVersion(1, 19))
        # The authorizer learns of a role a moment after it was made.
        eventually(lambda: [self.client.list(path_of("v1", "nodes")), True])
        eventually(lambda: [self.client.list(exposure_path("kube-system")), True])
        eventually(lambda: [self.client.get(path_of("v1", "services", "default", "kubernetes"))][0])

    def put(self, found: dict[str, Any], manager: str = "admin") -> dict[str, Any]:
        """Apply an object as somebody else than the controller; a field that is not known is an error."""
        params = {"fieldManager": manager, "force": "true", "fieldValidation": "Strict"}
        kind = "application/apply-patch+yaml"
        done: dict[str, Any] = self.admin._request("PATCH", where(found), body=found, kind=kind, **params)
        return done

    def put_node(self, found: dict[str, Any]) -> None:
        self.put({key: found[key] for key in ("apiVersion", "kind", "metadata")})
        change = {"status": found["status"]}
        self.admin.patch(f"{path_of('v1', 'nodes', None, found['metadata']['name'])}/status", change)

    def remove(self, kind: str, name: str) -> None:
        api = {"Node": "v1", "Pod": "v1", "SelfHostedShootExposure": API_VERSION}.get(kind) or self.apis.versions[
            kind
        ]
        plural, namespaced = PLURALS[kind]
        path = path_of(api, plural, "kube-system" if namespaced else None, name)
        found = self.admin.get(path)
        if found is not None:
            self.admin.delete(path, found["metadata"]["uid"])

    def objects(self) -> dict[str, dict[str, Any]]:
        """All objects of the kinds that an exposure has, by kind and name, but for the API server's own."""
        found: dict[str, dict[str, Any]] = {}
        for kind, resource in RESOURCES.items():
            namespace = "kube-system" if resource.namespaced else None
            for each in self.admin.list(path_of(self.apis.versions[kind], resource.plural, namespace)):
                found[f"{kind} {each['metadata']['name']}"] = each
        return found

    def endpoints(self, family: str) -> list[str]:
        found = self.objects().get(f"EndpointSlice exposure-root-{family}", {})
        return [address for each in found.get("endpoints") or () for address in each["addresses"]]

    def exposure(self) -> dict[str, Any] | None:
        return self.admin.get(exposure_path("kube-system", "root"))

    def reconcile(self, document: dict[str, Any], apis: Apis | None = None) -> Reconciliation:
        """One reconciliation with the controller's rights."""
        nodes = self.client.list(path_of("v1", "nodes"), {CONTROL_PLANE: ""})
        return reconcile(self.client, parse(document), apis or self.apis, nodes)

    def close(self) -> None:
        self.admin.close()
        self.client.close()

    def clean(self) -> None:
        """Take away all that tests make, finalizers or not."""
        kinds = {kind: self.apis.versions[kind] for kind in RESOURCES}
        kinds |= {"Node": "v1", "SelfHostedShootExposure": API_VERSION}
        for kind, api in kinds.items():
            plural, namespaced = PLURALS[kind]
            namespace = "kube-system" if namespaced else None
            for each in self.admin.list(path_of(api, plural, namespace)):
                path = path_of(api, plural, namespace, each["metadata"]["name"])
                if each["metadata"].get("finalizers"):
                    self.admin.patch(path, {"metadata": {"finalizers": None}})
                self.admin.delete(path, each["metadata"]["uid"])
        for plural, namespace in (("leases", "kube-system"),):
            path = path_of("coordination.k8s.io/v1", plural, namespace, "firewall-cleanup-exposure")
            if found := self.admin.get(path):
                self.admin.delete(path, found["metadata"]["uid"])

    # commands

    def command(self, *words: str, user: str = "admin") -> subprocess.CompletedProcess[str]:
        """Run `firewall-cleanup exposure` to its end, in this process, as its start takes longer than its work."""
        done = [*self._words(words[0], user)[3:], *words[1:]]
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            code = cli.main(done)
        return subprocess.CompletedProcess(done, code, out.getvalue(), error.getvalue())

    def _words(self, command: str, user: str) -> list[str]:
        kubeconfig = str(self.cluster.kubeconfig(user))
        return [sys.executable, "-m", "firewall_cleanup", "exposure", command, "--kubeconfig", kubeconfig]

    @contextlib.contextmanager
    def controller(self, *options: str, log: Path) -> Iterator[subprocess.Popen[str]]:
        """Run the controller, with a short time between two passes, and kill it at the end."""
        words = [*self._words("run", "controller"), "--resync=2", "--cilium-version=1.19", *options]
        if not any(each.startswith("--health-port") for each in options):
            words.append("--health-port=0")
        with log.open("a") as out:
            process = subprocess.Popen(words, stdout=out, stderr=out, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @contextlib.contextmanager
    def cilium(self) -> Iterator[Double]:
        """Have the double work beside the test."""
        double = Double(Client.open(self.cluster.kubeconfig("admin")), self.apis)
        thread = threading.Thread(target=double.run, daemon=True)
        thread.start()
        try:
            yield double
        finally:
            double.stopped.set()
            thread.join()
            double.client.close()


@attrs.define
class Double:
    """Plays what Cilium's operator does with Services and pools; no packet is announced.

    `families` limits what it gives: a partial answer of a dual-stack Service. Overlapping pools are in conflict: the
    one that was made later gives nothing.
    """

    client: Client
    apis: Apis
    families: tuple[int, ...] = (4, 6)
    stopped: threading.Event = attrs.field(factory=threading.Event)

    def run(self) -> None:
        while not self.stopped.wait(0.15):
            with contextlib.suppress(OSError, ApiError, KeyError):  # the API server is away, or knows no pools
                self.step()

    def step(self) -> None:
        """Look at every pool and every Service once."""
        pools = self.client.list(path_of(self.apis.versions["CiliumLoadBalancerIPPool"], "ciliumloadbalancerippools"))
        pools.sort(key=lambda each: (each["metadata"]["creationTimestamp"], each["metadata"]["name"]))
        usable: list[dict[str, Any]] = []
        for pool in pools:
            taken = {each for other in usable for each in blocks(other)}
            conflict = bool(taken & set(blocks(pool)))
            if not conflict:
                usable.append(pool)
            self._condition(pool, "cilium.io/PoolConflict", conflict, "cidr_overlap", "it overlaps with another pool")
        for service in self.client.list(path_of("v1", "services", "kube-system")):
            if str(service["spec"].get("loadBalancerClass", "")).startswith("io.cilium/"):
                self._serve(service, usable)

    def _serve(self, service: dict[str, Any], pools: list[dict[str, Any]]) -> None:
        labels = {
            "io.kubernetes.service.namespace": service["metadata"]["namespace"],
            "io.kubernetes.service.name": service["metadata"]["name"],
        }
        mine = [each for each in pools if each["spec"]["serviceSelector"]["matchLabels"].items() <= labels.items()]
        asked = service["metadata"].get("annotations", {}).get("lbipam.cilium.io/ips", "")
        versions = [4 if family == "IPv4" else 6 for family in service["spec"]["ipFamilies"]]
        versions = [each for each in versions if each in self.families]
        free = [each for pool in mine for each in blocks(pool) if ipaddress.ip_address(each).version in versions]
        if asked:
            # Who asks for addresses is given these and no others, whatever families are wanted besides.
            given = [each for each in asked.split(",") if each in free]
        else:
            given = [
                next(each for each in free if ipaddress.ip_address(each).version == version)
                for version in versions
                if any(ipaddress.ip_address(each).version == version for each in free)
            ]
        status = {"ingress": [{"ip": each} for each in given] or None}
        if (service["status"].get("loadBalancer") or {}).get("ingress", []) != [{"ip": each} for each in given]:
            self._patch(where(service), {"loadBalancer": status})
        reason, message = ("satisfied", "") if given else ("no_pool", "there is no pool")
        self._condition(service, "cilium.io/IPAMRequestSatisfied", bool(given), reason, message)

    def _condition(self, found: dict[str, Any], kind: str, value: bool, reason: str, message: str) -> None:
        condition = {"type": kind, "status": str(value), "reason": reason, "message": message or reason}
        before = (found.get("status") or {}).get("conditions") or []
        if [{key: each.get(key) for key in condition} for each in before] != [condition]:
            self._patch(where(found), {"conditions": [{**condition, "lastTransitionTime": "2026-01-01T00:00:00Z"}]})

    def _patch(self, path: str, status: dict[str, Any]) -> None:
        kind, manager = "application/merge-patch+json", "cilium-operator-lb-ipam"
        self.client._request("PATCH", f"{path}/status", body={"status": status}, kind=kind, fieldManager=manager)


def blocks(pool: dict[str, Any]) -> list[str]:
    """The addresses of a pool whose blocks are single ones or short ranges."""
    found: list[str] = []
    for block in pool["spec"]["blocks"]:
        start = ipaddress.ip_address(block["start"])
        stop = ipaddress.ip_address(block.get("stop", block["start"]))
        found += [str(start + offset) for offset in range(min(int(stop) - int(start) + 1, 16))]
    return found
