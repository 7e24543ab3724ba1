"""Hairpin mode: put back where it was turned on by us, and nowhere else."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator
from pods import BRIDGE, DOCS, SCHEMA, Node, ensure, only, statuses

from firewall_cleanup import (
    HairpinReport,
    HairpinStatus,
    ResidueError,
    cleanup_all,
    cleanup_routing,
    cleanup_service_proxy,
    undo_hairpin,
)
from firewall_cleanup.errors import KernelError
from firewall_cleanup.handlers._ports import PortConnection
from firewall_cleanup.text import summary

pytestmark = pytest.mark.namespace

REPORT = Draft202012Validator(json.loads((DOCS / "report.schema.json").read_text()))


def test_only_what_was_turned_on_is_put_back(node: Node):
    pods = [node.pod(number) for number in (7, 8, 9)]
    node.set_hairpin("veth8", "on")
    ensure(node, bridge=BRIDGE)
    node.ip("link property add dev veth9 altname somebody-elses")

    planned = undo_hairpin(netns=node.path, dry_run=True)
    assert statuses(planned) == {"veth7": "planned", "veth9": "planned"}
    assert (planned.changed, node.hairpin("veth7")) == (False, True)

    report = undo_hairpin(netns=node.path)
    SCHEMA.validate(report.to_dict())
    assert statuses(report) == {"veth7": "put-back", "veth9": "put-back"}
    assert (report.ok, report.changed) == (True, True)
    assert [node.hairpin(pod.port) for pod in pods] == [False, True, False]
    assert [node.notes(pod.port) for pod in pods] == [[], [], ["somebody-elses"]]
    assert undo_hairpin(netns=node.path) == HairpinReport("all ports", ())


@pytest.mark.parametrize("target", [{"bridge": BRIDGE}, {"interface": "veth7"}], ids=str)
def test_a_part_is_put_back(node: Node, target: dict[str, str]):
    node.pod(7)
    node.ip(
        "link add br-other type bridge", "link add other type veth peer name end", "link set other master br-other"
    )
    ensure(node, bridge=BRIDGE)
    ensure(node, bridge="br-other")
    assert statuses(undo_hairpin(netns=node.path, **target)) == {"veth7": "put-back"}
    assert (node.hairpin("veth7"), node.hairpin("other")) == (False, True)
    assert undo_hairpin(netns=node.path, **target).outcomes == ()


def test_a_port_that_was_detached_loses_its_note(node: Node):
    node.pod(7)
    ensure(node, bridge=BRIDGE)
    node.ip("link set veth7 nomaster")
    assert len(node.notes("veth7")) == 1
    assert statuses(undo_hairpin(netns=node.path, interface="veth7")) == {"veth7": "put-back"}
    assert node.notes("veth7") == []


def test_a_new_link_of_the_same_name_and_index_has_no_note(node: Node):
    pod = node.pod(7, options="index 77")
    ensure(node, bridge=BRIDGE)
    node.ip(
        "link del veth7",
        f"link add veth7 index 77 type veth peer name eth0 netns {pod.sandbox.pid}",
        f"link set veth7 master {BRIDGE}",
    )
    node.set_hairpin("veth7", "on")
    assert undo_hairpin(netns=node.path).outcomes == ()
    assert node.hairpin("veth7")


@pytest.mark.parametrize("target", [{"bridge": "nothing"}, {"interface": "nothing"}], ids=str)
def test_what_is_gone_needs_no_undoing(node: Node, target: dict[str, str]):
    report = undo_hairpin(netns=node.path, **target)
    assert (only(report).status, report.exit_code) == (HairpinStatus.GONE, 0)


@pytest.mark.parametrize("step", ["mark", "set_hairpin", "unmark"])
def test_a_run_that_was_killed_is_finished_by_the_next(node: Node, monkeypatch, step: str):
    node.pod(7)

    class Kill(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Kill

    with monkeypatch.context() as patch:
        patch.setattr(PortConnection, "set_hairpin", killed)
        patch.setattr(PortConnection, "unmark", killed)
        with pytest.raises(Kill):
            ensure(node, bridge=BRIDGE)
    assert (node.hairpin("veth7"), len(node.notes("veth7"))) == (False, 1)
    assert statuses(ensure(node, bridge=BRIDGE)) == {"veth7": "enabled"}
    with monkeypatch.context() as patch:
        patch.setattr(PortConnection, step, killed)
        with pytest.raises(Kill):
            undo_hairpin(netns=node.path)
    assert statuses(undo_hairpin(netns=node.path)) == {"veth7": "put-back"}
    assert (node.hairpin("veth7"), node.notes("veth7")) == (False, [])


def test_the_cleanup_of_the_service_proxy_puts_it_back_on_request(node: Node):
    node.pod(7)
    ensure(node, bridge=BRIDGE)
    assert cleanup_service_proxy(netns=node.path).hairpin is None
    assert node.hairpin("veth7")

    planned = cleanup_all(netns=node.path, undo_hairpin=True, dry_run=True)
    assert (planned.changed, planned.exit_code, node.hairpin("veth7")) == (False, 0, True)
    REPORT.validate(planned.to_dict())
    with pytest.raises(ValueError, match="not selected"):
        cleanup_routing(netns=node.path, undo_hairpin=True)

    report = cleanup_service_proxy(netns=node.path, undo_hairpin=True)
    assert (report.clean, report.changed, node.hairpin("veth7")) == (True, True, False)
    REPORT.validate(report.to_dict())
    assert "veth7 on kube-bridge (to eth0): hairpin mode put back to off" in summary(report)
    again = cleanup_service_proxy(netns=node.path, undo_hairpin=True)
    assert (again.clean, again.changed) == (True, False)


def test_a_cleanup_that_cannot_put_it_back_is_not_clean(node: Node, monkeypatch):
    node.pod(7)
    ensure(node, bridge=BRIDGE)

    def refuse(self: PortConnection, mark: str, *, on: bool) -> None:
        raise KernelError(1, "hairpin mode")

    monkeypatch.setattr(PortConnection, "set_hairpin", refuse)
    report = cleanup_service_proxy(netns=node.path, undo_hairpin=True)
    assert (report.clean, report.exit_code) == (False, 1)
    with pytest.raises(ResidueError):
        report.raise_for_residue()
