"""Processes in /proc: trees of our own, and the real one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from firewall_cleanup.handlers import processes
from firewall_cleanup.handlers._namespace import Namespace
from firewall_cleanup.handlers._root import Root
from firewall_cleanup.handlers.processes import read_processes, wait_for_end
from firewall_cleanup.writers import Process, Processes

OWN = "/proc/self/ns/net"


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    opened = Namespace()
    yield opened
    opened.close()


class Proc:
    """A folder like /proc of a machine, in a root of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self.proc = root, root / "proc"
        self.add(2, "kthreadd", "", netns=OWN)
        self.add(50, "python3", "python3 -m firewall_cleanup", parent=49)
        self.add(49, "kube-router", "/usr/bin/kube-router --cleanup", parent=48)
        self.add(48, "systemd", "/sbin/init", parent=0)
        (self.proc / "self").symlink_to("50")

    def add(
        self, pid: int, comm: str, command: str, *, exe: str = "", netns: str | None = OWN, parent: int = 1
    ) -> None:
        folder = self.proc / str(pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "comm").write_text(f"{comm}\n")
        (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0" if command else b"")
        (folder / "stat").write_text(f"{pid} ({comm}) S {parent} 1 1 0")
        if exe:
            (folder / "exe").symlink_to(exe)
        if netns:
            (folder / "ns/net").symlink_to(netns)

    def read(self, namespace: Namespace) -> Processes:
        with Root(self.root) as root:
            return read_processes(lambda process: "kube" in process.command + process.executable, namespace, root)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_those_in_the_namespace(proc: Proc, namespace: Namespace) -> None:
    proc.add(7, "kube-router", "/opt/kube-router --run-router", exe="/opt/kube-router (deleted)")
    proc.add(8, "kube-router", "/opt/kube-router", netns="/dev/null")  # in another one
    proc.add(9, "sleep", "sleep 1")
    found = proc.read(namespace)
    assert found == Processes(
        str(proc.proc),
        (Process(7, "kube-router", ("/opt/kube-router", "--run-router"), "/opt/kube-router (deleted)"),),
    )


def test_this_process_and_those_that_started_it_are_left_out(proc: Proc, namespace: Namespace) -> None:
    """Also where the process that cleans is the controller, or was started by it."""
    assert proc.read(namespace).found == ()
    (proc.proc / "self").unlink()  # not in the pid namespace of that /proc
    assert [process.pid for process in proc.read(namespace).found] == [49]


def test_what_ended_meanwhile_is_none(proc: Proc, namespace: Namespace) -> None:
    proc.add(7, "kube-router", "kube-router", netns=None)  # ns/net is gone with the process
    proc.add(8, "kube-router", "")  # a zombie has no command line
    (proc.proc / "9").mkdir()
    (proc.proc / "49/stat").unlink()
    assert proc.read(namespace).found == ()


def test_a_namespace_that_may_not_be_read(proc: Proc, namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inode of a file in its /proc/net tells; without that it may be in this namespace, which is said."""
    proc.add(7, "kube-router", "kube-router")
    proc.add(8, "kube-router", "kube-router")
    proc.add(9, "kube-router", "kube-router")
    (proc.proc / "7/net").symlink_to("/proc/self/net")
    (proc.proc / "8/net").mkdir()
    (proc.proc / "8/net/dev").touch()
    stat = os.stat

    def refuse(path: str, **options: int) -> os.stat_result:
        if "dir_fd" in options and (path.endswith("ns/net") or path == "9/net/dev"):
            raise PermissionError(13, "no", path)
        return stat(path, **options)

    monkeypatch.setattr(processes.os, "stat", refuse)
    found = proc.read(namespace)
    assert [(process.pid, process.here) for process in found.found] == [(7, True), (9, None)]
    (text,) = found.unseen
    assert text.startswith("the network namespace of kube-router (pid 9)")


def test_a_process_that_may_not_be_looked_at_is_said(
    proc: Proc, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc.add(7, "kube-router", "kube-router")
    read = processes._Reader._read

    def refuse(self: processes._Reader, path: str) -> bytes:
        if path == "7/cmdline":
            raise PermissionError(13, "no", path)
        return read(self, path)

    monkeypatch.setattr(processes._Reader, "_read", refuse)
    assert proc.read(namespace).unseen == ("1 processes that may not be looked at: run as root",)


def test_a_container_does_not_see_the_host(proc: Proc, namespace: Namespace) -> None:
    (proc.proc / "2/comm").write_text("sh\n")
    (text,) = proc.read(namespace).unseen
    assert "container" in text


def test_a_root_without_proc_is_said(tmp_path: Path, namespace: Namespace) -> None:
    (tmp_path / "proc").mkdir()
    with Root(tmp_path) as root:
        found = read_processes(lambda _process: False, namespace, root)
    assert found.proc == "/proc"
    assert found.unseen[0] == f"the host's processes: {tmp_path}/proc is not mounted, so /proc was looked at"


def test_the_real_one(namespace: Namespace) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.read(1)  # it runs
        found = read_processes(lambda process: process.comm == "cat", namespace)
        everything = read_processes(lambda _: True, namespace)
    assert child.pid in [process.pid for process in found.found]
    assert os.getpid() not in [process.pid for process in everything.found]


def test_the_end_of_a_process_is_not_waited_for_longer() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as first, subprocess.Popen(["sleep", "600"]) as second:
        assert first.stdin is not None
        first.stdin.close()
        wait_for_end([first.pid, second.pid], 500)
        second.kill()
        second.wait()
        wait_for_end([second.pid], 500)  # it is gone


def test_where_there_is_no_descriptor_for_it_looking_again_is_left_to_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(processes.time, "sleep", slept.append)
    wait_for_end([os.getpid()], 500, own=False)

    def refuse(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(processes.os, "pidfd_open", refuse)
    wait_for_end([os.getpid()], 0.05)
    assert slept == [0.1, 0.05]
