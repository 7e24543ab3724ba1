"""A backup and its restoring on a kernel that has it all: links, addresses, routes, policy rules, ports and IPVS."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import replay
from test_clean import SIDES, feed, fresh, same, whole_node  # noqa: F401 - fresh is a fixture
from test_kernel import HAS_IPV6, pytestmark  # noqa: F401 - the same conditions hold here
from undo_cases import wrong

from firewall_cleanup import Controller, Kind, Restored, cleanup, cleanup_all, restore
from firewall_cleanup.handlers import IpvsHandler
from firewall_cleanup.handlers.tools import Tools


@pytest.mark.parametrize("backend", ["nft", "legacy"])
@pytest.mark.parametrize("fou", [False, True], ids=["ipip", "fou"])
def test_round_trip(fresh: Callable[[], None], tmp_path: Path, backend: str, fou: bool) -> None:  # noqa: F811
    fresh()
    whole_node(backend, fou=fou)
    # Settings of services that kube-router's flags and annotations make.
    end = SIDES[0].end(SIDES[0].services[0], 81)
    feed(
        f"-A -t {end} -s sh -p 10800 -M 255.255.255.0 -b flag-1,flag-2\n"
        f"-a -t {end} -r {SIDES[0].end(SIDES[0].pod, 8080)} -m -w 3 -x 100 -y 50\n"
        f"-A -u {end} -s mh -o\n",
        "ipvsadm",
        "-R",
    )
    before = replay.state()
    report = cleanup_all(backup=tmp_path / "backup")
    assert report.clean, report.to_dict()
    assert {kind for kind in Kind if kind is not Kind.TABLE} - {o.kind for o in report.outcomes} <= (
        set() if fou else {Kind.FOU_PORT}
    )
    restored = restore(tmp_path / "backup")
    again = restore(tmp_path / "backup")
    after = replay.state()

    assert wrong(restored) == []
    assert wrong(again) == []
    assert not again.changed
    assert same(before, after) == []
    # The dummy link has its own address again; a bridge takes that of a port.
    assert not [line for line in replay.differences(before, after) if line.startswith("links") and "dummy" in line]


class _Killed(BaseException):
    pass


def dying(patch: pytest.MonkeyPatch, after: int) -> None:
    """Let the process end after so many steps of a restore; of the lines for `ip`, half are done by then."""
    left = [after]

    def limited(original: Callable[..., object]) -> Callable[..., object]:
        def step(self: object, *arguments: Any, **options: Any) -> object:
            left[0] -= 1
            if left[0] == 0 and original is lines:
                name, wanted = arguments
                original(self, name, wanted[: len(wanted) // 2])
            if left[0] <= 0:
                raise _Killed
            return original(self, *arguments, **options)

        return step

    lines = Tools.restore_lines
    for name in ("restore_sets", "restore_natives", "restore_table", "restore_lines"):
        patch.setattr(Tools, name, limited(getattr(Tools, name)))
    patch.setattr(IpvsHandler, "add", limited(IpvsHandler.add))


@pytest.mark.parametrize(
    ("after", "then"),
    [
        (8, "restore"),
        (8, "clean"),
        (9, "restore"),
        (10, "clean"),
        (10, "restore"),
        (13, "clean"),
        (16, "restore"),
        (18, "clean"),
    ],
)
def test_killed_anywhere(
    fresh: Callable[[], None],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    after: int,
    then: str,
) -> None:
    fresh()
    whole_node("nft", fou=True)
    before = replay.state()
    assert cleanup_all(backup=tmp_path / "backup").clean
    cleaned = replay.state()
    with monkeypatch.context() as patch:
        dying(patch, after)
        with pytest.raises(_Killed):
            restore(tmp_path / "backup")
    if then == "clean":
        report = cleanup_all(backup=tmp_path / "backup")
        assert report.clean, report.to_dict()
        assert same(cleaned, replay.state()) == []
    assert wrong(restore(tmp_path / "backup")) == []
    assert same(before, replay.state()) == []


def test_a_cleanup_in_parts(fresh: Callable[[], None], tmp_path: Path) -> None:  # noqa: F811
    """One controller after the other, each with a backup: together they give all back."""
    fresh()
    whole_node("nft", fou=True)
    before = replay.state()
    for controllers in [*([one] for one in Controller), list(Controller)]:
        cleanup(controllers=controllers, backup=tmp_path / "backup")
    assert wrong(restore(tmp_path / "backup")) == []
    assert same(before, replay.state()) == []


def test_a_pod_gets_its_bridge_again(fresh: Callable[[], None], tmp_path: Path) -> None:  # noqa: F811
    fresh()
    whole_node("nft")
    feed("link set veth-user master kube-bridge\nroute add 198.18.77.0/24 dev kube-bridge\n", "ip", "-batch", "-")
    before = replay.state()
    assert cleanup_all(remove_bridge=True, backup=tmp_path / "backup").clean
    assert wrong(restore(tmp_path / "backup")) == []
    assert same(before, replay.state()) == []


@pytest.mark.parametrize(
    ("command", "line", "name"),
    [
        ("ip", "link add kube-bridge type dummy", "kube-bridge"),
        ("ip", f"route add {SIDES[0].peer_pods} via {SIDES[0].peer} dev eth0 proto 18", SIDES[0].peer_pods),
        ("ipvsadm", f"-A -t {SIDES[0].end(SIDES[0].services[0], 80)} -s wlc", SIDES[0].services[0]),
    ],
)
def test_what_is_different_stops_it(
    fresh: Callable[[], None],  # noqa: F811
    tmp_path: Path,
    command: str,
    line: str,
    name: str,
) -> None:
    fresh()
    whole_node("nft")
    assert cleanup_all(backup=tmp_path / "backup").clean
    feed(f"{line}\n", command, *(["-R"] if command == "ipvsadm" else ["-batch", "-"]))
    before = replay.state()
    report = restore(tmp_path / "backup")
    assert [name in outcome.name for outcome in report.outcomes if outcome.status is Restored.DIFFERENT] == [True]
    assert report.exit_code == 1
    assert not report.changed
    assert replay.differences(before, replay.state()) == []


def test_the_files_are_for_the_standard_tools(fresh: Callable[[], None], tmp_path: Path) -> None:  # noqa: F811
    fresh()
    whole_node("nft", fou=True)
    before = replay.state()
    assert cleanup_all(backup=tmp_path / "backup").clean
    (run,) = (tmp_path / "backup").iterdir()
    for one in json.loads((run / "manifest.json").read_text())["order"]:
        words = one["command"].split()
        feed((run / one["file"]).read_text(), *words, *(["-"] if words[-1] in {"-batch", "-f"} else []))
    assert same(before, replay.state()) == []
