"""A real etcd and a real kube-apiserver, to be stopped, started, and put on another etcd."""

from __future__ import annotations

import base64
import contextlib
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import attrs
import yaml

FOLDER = Path(__file__).parents[1] / "apiserver"
ACCOUNT = "system:serviceaccount:kube-system:firewall-cleanup-exposure"
USERS = {"admin": ("admin", "system:masters"), "controller": (ACCOUNT, "system:serviceaccounts")}
"""Each with its name and group; the controller's is the service account of `render --controller`."""


class Missing(Exception):
    """What the tests need is not on this machine."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def find_binaries() -> tuple[str, str]:
    """The paths of etcd and kube-apiserver; raises Missing with the reason."""
    found: list[str] = []
    for script in ("etcd", "build"):
        done = subprocess.run([FOLDER / script], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Missing(done.stderr.strip())
        found.append(done.stdout.strip())
    return found[0], found[1]


@attrs.define
class Cluster:
    """etcd and kube-apiserver in a folder, on ports of their own, at 127.0.0.1."""

    folder: Path
    etcd_binary: str
    binary: str
    port: int = attrs.field(factory=free_port)
    etcd_port: int = attrs.field(factory=free_port)
    peer_port: int = attrs.field(factory=free_port)
    store: str = "etcd"
    _processes: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict, init=False)

    def start(self) -> None:
        """Start both and wait until the API server is ready."""
        self.start_etcd()
        self.start_apiserver()

    def start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.etcd_port, self.peer_port))
        words = [
            self.etcd_binary,
            *("--name", "test", "--data-dir", str(self.folder / self.store)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"test={peer}"),
            *("--unsafe-no-fsync",) * self._knows_no_fsync(),
        ]
        self._start("etcd", words)
        self._wait("etcd", lambda: urllib.request.urlopen(f"{client}/health", timeout=2).status == 200)

    def _knows_no_fsync(self) -> bool:
        done = subprocess.run([self.etcd_binary, "--help"], capture_output=True, text=True, check=False)
        return "--unsafe-no-fsync" in done.stdout + done.stderr

    def start_apiserver(self) -> None:
        certificates, key, tokens = (self.folder / name for name in ("certificates", "sa.key", "tokens.csv"))
        if not key.exists():
            words = ["openssl", "genrsa", "-out", str(key), "2048"]
            subprocess.run(words, check=True, capture_output=True)
            lines = (
                f'{user}-token,{name},{user},"{group},system:authenticated"' for user, (name, group) in USERS.items()
            )
            tokens.write_text("\n".join(lines) + "\n")
        policy = self.folder / "audit.yaml"
        policy.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "audit.k8s.io/v1",
                    "kind": "Policy",
                    "omitStages": ["RequestReceived"],
                    "rules": [{"level": "Metadata", "users": [ACCOUNT]}, {"level": "None"}],
                }
            )
        )
        words = [
            self.binary,
            *(f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"),
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            f"--secure-port={self.port}",
            *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"),
            f"--cert-dir={certificates}",
            f"--token-auth-file={tokens}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112",
            "--endpoint-reconciler-type=none",
            *("--shutdown-delay-duration=0s", "--min-request-timeout=60"),
        ]
        self._start("apiserver", words)
        self._wait("apiserver", self.is_ready)

    @property
    def audit_log(self) -> Path:
        """What the controller asked for, a line of JSON each."""
        return self.folder / "audit.log"

    def is_ready(self) -> bool:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for path in ("/readyz", "/api/v1/namespaces/default/services/kubernetes", "/api/v1/namespaces/kube-system"):
            request = urllib.request.Request(
                f"https://127.0.0.1:{self.port}{path}", headers={"Authorization": "Bearer admin-token"}
            )
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                if answer.status != 200:
                    return False
        return True

    def _start(self, name: str, words: list[str]) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        with log:
            self._processes[name] = subprocess.Popen(words, stdout=log, stderr=log, cwd=self.folder)

    def _wait(self, name: str, ready: Any) -> None:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError, urllib.error.URLError):
                if ready():
                    return
            if self._processes[name].poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{name} did not start:\n" + (self.folder / f"{name}.log").read_text()[-3000:])
            time.sleep(0.05)

    def stop(self, name: str, *, kill: bool = False) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            process.wait(timeout=30)

    def close(self) -> None:
        for name in ("apiserver", "etcd"):
            self.stop(name, kill=True)

    def swap(self, store: str) -> None:
        """Stop both and start them on another data directory: an empty one, or a copy of an older state."""
        self.stop("apiserver", kill=True)
        self.stop("etcd")
        self.store = store
        self.start()

    def keep(self, copy: str) -> None:
        """Keep the present state under another name, to be swapped to later; the API server goes on."""
        self.stop("etcd")
        shutil.copytree(self.folder / self.store, self.folder / copy)
        self.start_etcd()

    def kubeconfig(self, user: str = "admin") -> Path:
        """Write a kubeconfig for one of the users."""
        file = self.folder / f"{user}.kubeconfig"
        authority = base64.b64encode((self.folder / "certificates/apiserver.crt").read_bytes()).decode()
        server = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority-data": authority}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": user, "user": {"token": f"{user}-token"}}],
        }
        file.write_text(yaml.safe_dump(config))
        file.chmod(0o600)
        return file
