"""A node with a bridge, and pods on it: each a network namespace with a veth whose other end is a port."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
from jsonschema import Draft202012Validator

from firewall_cleanup import HairpinOutcome, HairpinReport, ensure_hairpin
from firewall_cleanup.testing.namespaces import Sandbox

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA = Draft202012Validator(json.loads((DOCS / "hairpin.schema.json").read_text()))
BRIDGE = "kube-bridge"
NODE_ADDRESSES = ("198.51.100.1/24", "2001:db8:7::1/64")


def ip(sandbox: Sandbox, *lines: str) -> None:
    sandbox.run(["ip", "-batch", "-"], input="".join(f"{line}\n" for line in lines))


@attrs.frozen
class Pod:
    """A pod: its namespace, its port on the node, and its addresses."""

    sandbox: Sandbox
    port: str
    addresses: tuple[str, str]


class Node:
    """The namespace of a node with a bridge."""

    def __init__(self, new_sandbox: Callable[..., Sandbox]) -> None:
        self.new_sandbox = new_sandbox
        self.sandbox = new_sandbox()
        self.ip(f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up", "link set lo up")
        self.ip(*(f"address add {address} dev {BRIDGE} nodad" for address in NODE_ADDRESSES if ":" in address))
        self.ip(*(f"address add {address} dev {BRIDGE}" for address in NODE_ADDRESSES if ":" not in address))

    @property
    def path(self) -> str:
        return self.sandbox.path

    def ip(self, *lines: str) -> None:
        ip(self.sandbox, *lines)

    def pod(self, number: int, *, interface: str = "eth0", options: str = "") -> Pod:
        """Attach a pod; its interface need not be called eth0."""
        made = self.new_sandbox()
        port = f"veth{number}"
        addresses = f"198.51.100.{number}", f"2001:db8:7::{number:x}"
        self.ip(
            f"link add {port} {options} type veth peer name {interface} netns {made.pid}",
            f"link set {port} master {BRIDGE} up",
        )
        ip(
            made,
            "link set lo up",
            f"link set {interface} up",
            f"address add {addresses[0]}/24 dev {interface}",
            f"address add {addresses[1]}/64 dev {interface} nodad",
            *(f"route add default via {address.partition('/')[0]}" for address in NODE_ADDRESSES),
        )
        return Pod(made, port, addresses)

    def link(self, name: str) -> dict[str, Any]:
        (found,) = json.loads(self.sandbox.run(["ip", "-j", "-d", "link", "show", "dev", name]).stdout)
        return found

    def hairpin(self, name: str) -> bool:
        """Whether a port is in hairpin mode, as ip prints it."""
        return self.link(name)["linkinfo"]["info_slave_data"]["hairpin"]

    def notes(self, name: str) -> list[str]:
        return self.link(name).get("altnames", [])

    def set_hairpin(self, name: str, state: str) -> None:
        """As the CNI plugin or an administrator would."""
        self.sandbox.run(["bridge", "link", "set", "dev", name, "hairpin", state])

    def reattach(self, name: str) -> None:
        self.ip(f"link set {name} nomaster", f"link set {name} master {BRIDGE}")


def ensure(node: Node, **target: Any) -> HairpinReport:
    report = ensure_hairpin(netns=node.path, **target)
    SCHEMA.validate(report.to_dict())
    return report


def only(report: HairpinReport) -> HairpinOutcome:
    (outcome,) = report.outcomes
    return outcome


def statuses(report: HairpinReport) -> dict[str | None, str]:
    return {outcome.interface: outcome.status.value for outcome in report.outcomes}
