"""Killing a run at any moment, and waiting for what it has started."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

from firewall_cleanup.testing.namespaces import Sandbox

__all__ = ["Killer", "backup"]


def backup(sandbox: Sandbox) -> Path:
    return sandbox.folder / "backup"


class Killer:
    """A process that does `clean`, `clean-with-backup` or `restore` in a child, and kills it after a time."""

    # Each line on its standard input: what, a namespace, a directory, a number of seconds.
    SCRIPT = """
import os, select, signal, sys, time
from firewall_cleanup import cleanup_all, restore
for line in sys.stdin:
    what, path, directory, seconds = line.split()
    began = time.monotonic()
    child = os.fork()
    if not child:
        if what == "restore":
            restore(directory, netns=path, wait=20)
        else:
            cleanup_all(netns=path, wait=20, backup=None if what == "clean" else directory)
        os._exit(0)
    descriptor = os.pidfd_open(child)
    ended, _, _ = select.select([descriptor], [], [], float(seconds))
    if not ended:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(descriptor)
    print(time.monotonic() - began, status, flush=True)
"""

    def __init__(self, sandbox: Sandbox) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=sandbox.environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.communicate()
        assert self.process.returncode == 0

    def run(self, what: str, sandbox: Sandbox, seconds: float) -> tuple[float, int]:
        """Do it for at most so long; return the seconds that it took and the wait status."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what} {sandbox.path} {backup(sandbox)} {seconds}\n")
        self.process.stdin.flush()
        took, status = self.process.stdout.readline().split()
        wait_for_commands(backup(sandbox))
        return float(took), int(status)


def wait_for_commands(directory: Path) -> None:
    """Wait until the commands of a killed restore have ended: they hold its lock."""
    if directory.exists():
        descriptor = os.open(directory, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.close(descriptor)
