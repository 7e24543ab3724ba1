"""The printed script on a kernel that has it all: services, links, tunnels, ports, routes and policy rules too."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import replay
from test_clean import SIDES, expected, feed, fresh, same, whole_node  # noqa: F401 - fresh is a fixture
from test_kernel import pytestmark  # noqa: F401 - the same conditions hold here

from firewall_cleanup import Controller, Kind, cleanup, cleanup_all
from firewall_cleanup.script import script


def run(text: str, folder: Path | None = None) -> tuple[int, str]:
    """Run a script, with the commands of a folder before the installed ones; return its status and what it said."""
    path = os.environ.get("PATH", "") if folder is None else f"{folder}:{os.environ.get('PATH', '')}"
    done = subprocess.run(
        ["sh", "-s"], input=text, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize("backend", ["nft", "legacy"])
@pytest.mark.parametrize("fou", [False, True], ids=["ipip", "fou"])
def test_it_does_what_the_cleanup_does(fresh: Callable[[], None], backend: str, fou: bool) -> None:  # noqa: F811
    wanted = expected(backend)
    fresh()
    whole_node(backend, fou=fou)
    report = cleanup_all(dry_run=True)
    kinds = {outcome.kind for outcome in report.outcomes}
    assert {kind for kind in Kind if kind is not Kind.TABLE} - kinds <= (set() if fou else {Kind.FOU_PORT})
    text = script([report])
    status, said = run(text)
    after = replay.state()
    again = run(text)

    assert status == 0, said
    assert same(wanted, after) == []
    assert again == (0, "clean: nothing of this plan is left\n")
    assert replay.differences(after, replay.state()) == []
    assert cleanup_all(dry_run=True).outcomes == ()


def test_one_controller_after_the_other(fresh: Callable[[], None]) -> None:  # noqa: F811
    """Each does what the cleanup of that controller does; what it keeps for the others, it keeps."""
    states: list[list[replay.State]] = []
    for by_script in (False, True):
        fresh()
        whole_node("nft", fou=True)
        states.append([])
        for controller in Controller:
            report = cleanup(controllers=[controller], dry_run=by_script)
            if by_script:
                status, said = run(script([report]))
                assert status == 0, said
            states[-1].append(replay.state())
    for one, other in zip(*states, strict=True):
        assert same(one, other) == []


def test_a_service_that_is_kube_proxys_by_now(fresh: Callable[[], None]) -> None:  # noqa: F811
    """It came after the plan, and has the address on its own link."""
    fresh()
    whole_node("nft")
    text = script([cleanup_all(dry_run=True)])
    addresses = [(side.end(side.services[0], 80), f"{side.services[0]}/{side.bits}") for side in SIDES]
    feed("link add kube-ipvs0 type dummy\n", "ip", "-batch", "-")
    feed("".join(f"addr add {address} dev kube-ipvs0\n" for _end, address in addresses), "ip", "-batch", "-")
    status, said = run(text)
    assert status == 1
    for end, _address in addresses:
        assert f"left: IPVS service -t {end}: kube-proxy serves it by now" in said
        assert any(f"-t {end} " in line for line in replay.state()["ipvs"])


def dying(folder: Path, name: str, line: str) -> None:
    """Make a command that does as the real one, but for what a line of shell says before."""
    file = folder / name
    file.write_text(f'#!/bin/sh\n{line}\nexec {shutil.which(name)} "$@"\n')
    file.chmod(0o755)


@pytest.mark.parametrize("ended_by", ["cleanup", "script"])
@pytest.mark.parametrize("port", [80, 30081], ids=["proven-by-its-address", "proven-by-the-others"])
def test_what_proves_services_stays_until_they_have_gone(
    fresh: Callable[[], None],  # noqa: F811
    tmp_path: Path,
    ended_by: str,
    port: int,
) -> None:
    """One cannot be removed: all that proves it stays, so that a cleanup, or the script, can end it."""
    end = SIDES[0].end(SIDES[0].services[0] if port == 80 else SIDES[0].keepalived, port)
    dying(tmp_path, "ipvsadm", f'case "$*" in "-D -t {end}") echo refused >&2; exit 1 ;; esac')
    wanted = expected("nft")
    fresh()
    whole_node("nft")
    text = script([cleanup_all(dry_run=True)])
    status, said = run(text, tmp_path)
    assert status == 1
    assert f"left: IPVS service -t {end}: refused" in said
    assert "it proves IPVS services that could not be removed" in said
    assert ("it may prove one that could not be removed" in said) == (port != 80)
    assert [line for line in replay.state()["links"] if "kube-dummy-if " in line]
    if ended_by == "cleanup":
        assert cleanup_all().clean
    else:
        status, said = run(text)
        assert status == 0, said
    assert same(wanted, replay.state()) == []


@pytest.mark.parametrize(("name", "number"), [("ipvsadm", 2), ("iptables-nft-restore", 2), ("ipset", 1), ("ip", 3)])
def test_killed_at_a_write(fresh: Callable[[], None], tmp_path: Path, name: str, number: int) -> None:  # noqa: F811
    """Whatever was done until then, the cleanup, without the script, finds the rest."""
    wanted = expected("nft")
    fresh()
    whole_node("nft", fou=True)
    counter = tmp_path / "writes"
    counter.write_text(str(number))
    writes = '*"-D "* | restore | *" del "* | *--noflush*'
    dying(
        tmp_path,
        name,
        f'case "$*" in {writes}) left=$(($(cat {counter}) - 1)); echo $left > {counter}\n'
        "[ $left -gt 0 ] || kill -KILL 0 ;; esac",
    )
    text = script([cleanup_all(dry_run=True)])
    path = f"{tmp_path}:{os.environ.get('PATH', '')}"
    done = subprocess.run(
        ["sh", "-s"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
        start_new_session=True,
    )
    assert done.returncode == -9
    assert cleanup_all().clean
    assert same(wanted, replay.state()) == []


def test_a_tunnel_stays_with_its_port(fresh: Callable[[], None], tmp_path: Path) -> None:  # noqa: F811
    fresh()
    whole_node("nft", fou=True)
    dying(tmp_path, "ip", 'case "$*" in *"fou del port"*) echo refused >&2; exit 1 ;; esac')
    text = script([cleanup_all(dry_run=True)])
    status, said = run(text, tmp_path)
    assert status == 1
    assert "it proves a FOU port that could not be removed" in said
    assert [line for line in replay.state()["links"] if SIDES[0].tunnel_name in line]
    assert cleanup_all().clean


def test_nothing_is_loaded_by_looking(fresh: Callable[[], None]) -> None:  # noqa: F811
    """On another node, with nothing on it, the script finds nothing and makes nothing."""
    fresh()
    whole_node("legacy")
    text = script([cleanup_all(dry_run=True)])
    fresh()
    feed("link set lo up\n", "ip", "-batch", "-")
    before = replay.state()
    assert run(text) == (0, "clean: nothing of this plan is left\n")
    assert replay.differences(before, replay.state()) == []
