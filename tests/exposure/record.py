"""Records docs/exposure-run.md: an exposure's life against a real API server, and Cilium's double.

usage: python tests/exposure/record.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/unit"), str(ROOT / "tests/exposure")]

from exposures import NODES, node  # noqa: E402
from servers import Cluster, find_binaries  # noqa: E402
from world import World, eventually  # noqa: E402

from firewall_cleanup.exposure.documents import read_documents  # noqa: E402

PAGE = ROOT / "docs/exposure-run.md"
FILE = ROOT / "examples/exposure.yaml"
HEAD = """# A recorded run of an exposure

Made by `tests/exposure/record.py` against a real kube-apiserver 1.36 and etcd; the kubeconfig is an administrator's.
Cilium is played by a double that gives addresses from pools and announces nothing. Lines that start with `#` are what
happened in between.
"""


class Recorder:
    """Runs commands and keeps what they say."""

    def __init__(self, world: World) -> None:
        self.world, self.lines = world, [HEAD, "```text"]

    def note(self, text: str) -> None:
        self.lines.append(f"# {text}")

    def run(self, *words: str, status: int = 0) -> None:
        shown = [str(Path(word).relative_to(ROOT)) if word == str(FILE) else word for word in words]
        self.lines.append(f"$ firewall-cleanup exposure {' '.join(shown)} --kubeconfig admin.kubeconfig")
        done = self.world.command(*words)
        assert done.returncode == status, done.stdout + done.stderr
        self.lines += [*(done.stdout + done.stderr).rstrip().splitlines()]
        self.lines += [f"# exit status {status}"] if status else []
        self.lines.append("")

    def page(self) -> str:
        return "\n".join([*self.lines, "```", ""])


def without_controller(recorder: Recorder, world: World) -> None:
    """By hand: apply, a node fails, delete."""
    recorder.note("Three healthy control-plane nodes. Without the controller, by hand:")
    recorder.run("apply", "-f", str(FILE), "--cilium-version", "1.19")
    recorder.run("status", "root")
    recorder.note("The node cp-2 becomes unhealthy.")
    world.put_node(node("cp-2", *NODES["cp-2"], ready="Unknown"))
    recorder.run("apply", "-f", str(FILE), "--cilium-version", "1.19")
    recorder.run("status", "root")
    recorder.run("delete", "root")
    recorder.run("status", "root", status=1)
    world.put_node(node("cp-2", *NODES["cp-2"]))


def with_controller(recorder: Recorder, world: World, log: Path) -> None:
    """The controller: etcd is swapped for an older state, then for an empty one."""
    [document] = read_documents(FILE.read_text(), FILE.name)

    def settled(count: int) -> bool:
        last = (world.exposure() or {}).get("status", {}).get("lastOperation", {})
        return last.get("state") == "Succeeded" and len(world.endpoints("ipv6")) == count

    with world.controller(log=log):
        recorder.note("With the controller: it runs from here on. kubectl apply -f examples/exposure.yaml")
        world.put(document)
        eventually(lambda: settled(3))
        recorder.run("status", "root")
        world.cluster.keep("older")
        recorder.note("A copy of etcd is kept here. Then cp-3 leaves the manifest, and is gone from the endpoints:")
        shorter = {**document, "spec": {**document["spec"], "endpoints": document["spec"]["endpoints"][:2]}}
        eventually(lambda: world.put(shorter))
        eventually(lambda: settled(2))
        recorder.run("status", "root")
        recorder.note(
            "etcd is swapped for the older copy below the API server. cp-3 is back, as that state wants it:"
        )
        world.cluster.swap("older")
        eventually(lambda: settled(3))
        recorder.run("status", "root")
        recorder.note(
            "The controller hears of changes to the older state, though its resource versions went backwards:"
        )
        eventually(lambda: world.put(shorter))
        eventually(lambda: settled(2))
        recorder.run("status", "root")
        recorder.note("etcd is swapped for an empty one: not even the custom resource definitions are left.")
        world.cluster.swap("empty")
        recorder.run("status", "root", status=1)
        recorder.note("The administrator puts definitions, rights, nodes and the exposure there again:")
        world.prepare()
        for name, addresses in NODES.items():
            world.put_node(node(name, *addresses))
        world.put(document)
        eventually(lambda: settled(3))
        recorder.run("status", "root")
        recorder.note("The controller keeps it, so this is refused:")
        recorder.run("delete", "root", status=1)
        recorder.note("kubectl delete exp root")
        world.remove("SelfHostedShootExposure", "root")
        eventually(lambda: world.exposure() is None)
        recorder.run("status", "root", status=1)
    left = ", ".join(world.objects()) or "none"
    recorder.note(
        f"Objects of the exposure's kinds in the whole cluster: {left}. The controller was never started again."
    )


def record(world: World, log: Path) -> str:
    """Record the page in a cluster with three healthy nodes."""
    found = Recorder(world)
    with world.cilium():
        without_controller(found, world)
        with_controller(found, world, log)
    return found.page()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), *find_binaries())
        try:
            cluster.start()
            world = World(cluster)
            world.prepare()
            for name, addresses in NODES.items():
                world.put_node(node(name, *addresses))
            PAGE.write_text(record(world, Path(folder) / "controller.log"))
            world.close()
        finally:
            cluster.close()


if __name__ == "__main__":
    main()
