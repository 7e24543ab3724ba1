"""Folders of files: read whatever lies there, written whole or not at all; and the options of the command."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from builders import LEGACY, V4, V6, node
from hypothesis import given
from hypothesis import strategies as st
from test_bundle import EMPTY, RULES, key, plan, written

from firewall_cleanup import Family, Status, bundles, plan_from
from firewall_cleanup.bundle import MANIFEST, read_bundle
from firewall_cleanup.bundles import collect_node, files_of_node, read_node
from firewall_cleanup.cli import main
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.dumps import read_dumps
from firewall_cleanup.errors import BundleError
from firewall_cleanup.filehost import FileHost
from firewall_cleanup.handlers.tools import Tools
from firewall_cleanup.host import Interest
from firewall_cleanup.model import (
    Change,
    Gap,
    IpSet,
    IpvsService,
    Link,
    NativeTable,
    Snapshot,
    TableChange,
)
from firewall_cleanup.undo.ipvs_text import VirtualService

# folders


def test_no_such_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, said in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "none of the files is in it: iptables-save, "),
    ):
        with pytest.raises(BundleError, match=said):
            plan_from(folder)
        assert main(["--from", str(folder), "--dry-run"]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "make",
    [
        Path.mkdir,
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path.with_name("ipvsadm-save")),
        lambda path: path.symlink_to("nowhere"),
    ],
)
def test_what_is_no_regular_file_is_a_gap(tmp_path: Path, make: Callable[[Path], object]) -> None:
    """A folder from elsewhere may hold anything: it is not followed, and nobody waits for it."""
    written(tmp_path, {name: text for name, text in EMPTY.items() if name != "ipset-save"})
    make(tmp_path / "ipset-save")
    report = plan_from(tmp_path)
    (gap,) = report.gaps
    assert gap.reason.startswith("ipset-save: ")
    assert report.exit_code == 1


def test_a_manifest_that_cannot_be_read_is_one_gap(tmp_path: Path) -> None:
    """And what it would say is not taken for nothing: a set may be in use."""
    host = node(sets=[IpSet("TMP-PRBJ7ASFQM5DJR3Q", "hash:ip", V4)])
    files = files_of_node(host, KUBE_ROUTER, read_node(host, KUBE_ROUTER), {})
    assert len(plan(files).outcomes) == 1
    del files[MANIFEST]
    (tmp_path / MANIFEST).mkdir()
    written(tmp_path, files)
    report = plan_from(tmp_path)
    (gap,) = report.gaps
    assert gap.reason == f"{MANIFEST}: it is no regular file"
    assert report.outcomes == ()


def test_other_files_are_ignored(tmp_path: Path) -> None:
    written(tmp_path, {**EMPTY, "dmesg": "x", ".unfinished": "y"})
    assert plan_from(tmp_path).gaps == ()


def test_wrong_arguments(tmp_path: Path) -> None:
    written(tmp_path, EMPTY)
    for arguments in ({"controllers": []}, {"families": ["ipv4"]}, {"component": "other"}):
        with pytest.raises(ValueError, match=r"expected|is not one of"):
            plan_from(tmp_path, **arguments)  # type: ignore[arg-type]


def test_no_kernel_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, {**EMPTY, "iptables-legacy-save": RULES})

    def refused(*_arguments: object, **_keywords: object) -> None:
        raise AssertionError("a socket or a process")

    monkeypatch.setattr(socket, "socket", refused)
    monkeypatch.setattr(subprocess, "Popen", refused)
    monkeypatch.setattr(os, "open", _only_below(tmp_path))
    assert len(plan_from(tmp_path).outcomes) == 2


def _only_below(folder: Path) -> Callable[..., int]:
    really = os.open

    def opened(path: Any, *arguments: Any, **keywords: Any) -> int:
        assert Path(path).is_relative_to(folder)
        return really(path, *arguments, **keywords)

    return opened


def test_pyroute2_is_not_imported(tmp_path: Path) -> None:
    written(tmp_path, EMPTY)
    code = f"import sys; from firewall_cleanup import plan_from; plan_from({str(tmp_path)!r})"
    code += "; print('pyroute2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_node_from_files_is_only_looked_at() -> None:
    host = FileHost.of(read_bundle({**EMPTY, "iptables-legacy-save": RULES}), KUBE_ROUTER, Family)
    table, dump = host.open_legacy(key(LEGACY), Interest()), host.dump_nft(Interest())
    change = TableChange(key(LEGACY))
    for write in (
        lambda: host.commit_nft(Change(), 1),
        lambda: host.destroy_sets(["x"]),
        lambda: host.delete(Link("x")),
        lambda: table.commit(change),
        lambda: table.staying(change, {}),
        lambda: dump.staying(change, {}),
    ):
        with pytest.raises(TypeError, match="cannot be changed"):
            write()
    assert table.is_current()


# the command


@pytest.mark.parametrize(
    "options",
    [
        "--from x", "--from x --cleanup-config", "--from x --dry-run --netns y", "--from x --check --backup y",
        "--from x --dry-run --restore y", "--from x --check --dry-run", "--collect x --check",
        "--collect x --dry-run",
        "--collect x --cleanup-config", "--collect x --from y", "--collect x --restore y", "--collect x --backup y",
        "--collect x --family ipv4", "--collect x --controller routing", "--collect x --component kube-router",
        "--collect x --remove-bridge", "--without-members", "--without-members --check",
    ],
)  # fmt: skip
def test_what_excludes_each_other(
    options: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(options.split())
    assert end.value.code == 2
    assert "error: argument --" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_selections_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {**EMPTY, "iptables-nft-save": RULES, "ip6tables-legacy-save": RULES}
    written(tmp_path, files)
    for options, status, found in (
        ([], 1, 4),
        (["--family", "ipv6"], 1, 2),
        (["--controller", "routing"], 0, 0),
        (["--controller", "network-policy", "--component", "kube-router"], 1, 4),
    ):
        assert main(["--from", str(tmp_path), "--check", "--output", "json", *options]) == status
        assert len(json.loads(capsys.readouterr().out)["outcomes"]) == found
        for more in ([], ["--cleanup-config"]):
            assert main(["--from", str(tmp_path), "--dry-run", *options, *more]) == 0
        capsys.readouterr()


def test_remove_bridge(tmp_path: Path) -> None:
    links = [
        {"ifname": "kube-bridge", "linkinfo": {"info_kind": "bridge"}},
        {"ifname": "veth1", "master": "kube-bridge", "linkinfo": {"info_kind": "veth"}},
    ]
    written(tmp_path, {**EMPTY, "ip-link.json": json.dumps(links)})
    for remove, status in ((False, Status.IN_USE), (True, Status.PLANNED)):
        (outcome,) = plan_from(tmp_path, remove_bridge=remove).outcomes
        assert outcome.status is status


# collecting


def test_members_of_many_sets_are_read_in_one_pass() -> None:
    """A set of 200,000 members is no longer to read than as many lines."""
    text = "create a hash:net family inet\n" + "".join(
        f"add a 10.{i >> 16}.{i >> 8 & 255}.{i & 255}\n" for i in range(50_000)
    )
    assert len(read_bundle({**EMPTY, "ipset-save": text}).snapshot.sets["a"].members) == 50_000


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is there before, nor what comes while it works."""
    (tmp_path / "ipset-save").write_text("mine")
    with pytest.raises(BundleError, match="ipset-save is there already"):
        collect_node(tmp_path, [KUBE_ROUTER], netns=None, members=True, stopped=lambda: None)
    assert [path.name for path in tmp_path.iterdir()] == ["ipset-save"]
    other = tmp_path / "other"
    written(other, {"ipset-save": "mine"})
    monkeypatch.setattr("firewall_cleanup.bundles._check_free", lambda _folder: None)
    with pytest.raises(BundleError, match="is there already"):
        collect_node(other, [KUBE_ROUTER], netns=None, members=True, stopped=lambda: None)
    assert [path.name for path in other.iterdir()] == ["ipset-save"]
    assert (other / "ipset-save").read_text() == "mine"


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_all_or_nothing(tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a file system that has no links."""
    if not links:

        def no_links(_self: Path, _target: Path) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(Path, "hardlink_to", no_links)
    bundles._write(tmp_path / "a/b", {"x": "1", "y": "2"})
    assert {p.name: p.read_text() for p in (tmp_path / "a/b").iterdir()} == {"x": "1", "y": "2"}
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "a/b").iterdir()} == {0o600}
    written(tmp_path / "c", {"y": "mine"})
    with pytest.raises(BundleError):
        bundles._write(tmp_path / "c", {"x": "1", "y": "2"})
    assert {p.name: p.read_text() for p in (tmp_path / "c").iterdir()} == {"y": "mine"}


def test_no_folder_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(BundleError):
            collect_node(place, [KUBE_ROUTER], netns=None, members=True, stopped=lambda: None)


@pytest.mark.parametrize("what", ["--collect", "--from"])
def test_a_folder_without_a_name(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([what, "", *["--check"] * (what == "--from")]) == 2
    assert "the name of the folder is empty" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@attrs.frozen
class MovingIpvs:
    """IPVS that a writer changes while it is read, for so many readings."""

    readings: list[tuple[str, ...]]

    def settings(self) -> list[VirtualService]:
        lines = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        return [VirtualService.parse((line,)) for line in lines]

    def services(self) -> tuple[IpvsService, ...]:
        return read_dumps({"ipvsadm-save": "\n".join(self.readings[0])}).services


A, B = "-A -t 192.0.2.1:80 -s rr", "-A -f 7 -6 -s wlc"


@pytest.mark.parametrize("changes", [0, 1, 5])
def test_services_that_change_meanwhile(changes: int) -> None:
    """The lines and what was read are of one moment."""
    ipvs = MovingIpvs([*[(A,), (A, B)] * changes, (B,)])
    snapshot = Snapshot(services=read_dumps({"ipvsadm-save": A}).services)
    host: Any = SimpleNamespace(ipvs=ipvs)
    found, lines = bundles._services_of(host, snapshot)
    assert lines is not None
    assert found.services == read_dumps({"ipvsadm-save": "\n".join(lines)}).services
    assert found.gaps == ()


def test_services_that_never_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then they are a gap, and not in the files."""
    monkeypatch.setattr(MovingIpvs, "services", lambda _self: ())
    host: Any = SimpleNamespace(ipvs=MovingIpvs([(A,)]))
    found, lines = bundles._services_of(host, Snapshot(services=read_dumps({"ipvsadm-save": B}).services))
    assert (found.services, lines) == ((), None)
    (gap,) = found.gaps
    assert (gap.subsystem, gap.reason) == ("ipvs", "IPVS: IPVS changes faster than it can be read")


def test_sets_that_change_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ipset prints of another moment is not taken."""
    host: Any = SimpleNamespace(namespace=None)
    notes: list[str] = []
    monkeypatch.setattr(Tools, "run", lambda *_: "create a hash:ip family inet\n")
    assert bundles._sets_of(host, Snapshot(sets={"a": IpSet("a", "hash:ip", V4)}), notes)
    assert notes == []
    assert bundles._sets_of(host, Snapshot(sets={"b": IpSet("b", "hash:ip", V4)}), notes) is None
    assert "sets came or went meanwhile" in notes[0]


def test_a_signal_before_anything_is_written(tmp_path: Path) -> None:
    report = collect_node(tmp_path / "x", [KUBE_ROUTER], netns=None, members=False, stopped=lambda: 15)
    assert (report.exit_code, report.complete, report.files) == (143, False, ())
    assert not (tmp_path / "x").exists()


@given(st.sampled_from(Family), st.sampled_from(("hash:ip", "bitmap:port", "list:set", "bitmap:ip", "hash:net")))
def test_sets_come_back(family: Family, kind: str) -> None:
    known = family if kind.startswith("hash:") else V4 if kind == "bitmap:ip" else None
    item = IpSet("a", kind, known, members=("b",) if kind == "list:set" else ())
    host = node(sets=[item, IpSet("b", "hash:ip", V4)], natives=[NativeTable("inet", "fw")])
    bundle = read_bundle(files_of_node(host, KUBE_ROUTER, read_node(host, KUBE_ROUTER), {}))
    assert bundle.snapshot.sets["a"] == item
    assert bundle.snapshot.sets["b"].references == (kind == "list:set")
    assert bundle.snapshot.native_tables == (NativeTable("inet", "fw"),)


def test_gaps_of_a_node_are_in_the_files() -> None:
    host = node(
        gaps=(Gap("ipset not opened: no", V4, subsystem="ipset"), Gap("ipset not opened: no", V6, subsystem="ipset"))
    )
    files = files_of_node(host, KUBE_ROUTER, read_node(host, KUBE_ROUTER), {})
    assert "ipset-save" not in files
    assert [gap.reason for gap in plan(files).gaps] == ["ipset not opened: no"] * 2
