"""Processes in /proc: which there are of some kind, in which network namespace, and when they end.

Nobody is asked but the kernel. What a process hides (another user's namespace, a process of another pid namespace) is
said, not guessed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator

import attrs

from ..writers import Process, Processes
from ._namespace import Namespace
from ._root import Root, names_in

__all__ = ["read_processes", "wait_for_end"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_GONE = frozenset({errno.ENOENT, errno.ESRCH})
# Without a descriptor for a process it is looked for this often.
_LOOK_AGAIN_SECONDS = 0.1


def read_processes(wanted: Callable[[Process], bool], namespace: Namespace, root: Root | None = None) -> Processes:
    """Return the processes that are `wanted`, and whether each is in a network namespace.

    Those of `root`, if its /proc is mounted there; else those of this machine, or of this container. This process is
    left out, and so are those that started it: a controller that cleans up as it starts is not its own enemy.
    """
    proc, shown, unseen = _open_proc(root)
    try:
        return attrs.evolve(_Reader(proc, namespace).read(wanted, unseen), proc=shown)
    finally:
        os.close(proc)


def _open_proc(root: Root | None) -> tuple[int, str, list[str]]:
    unseen: list[str] = []
    if root is not None:
        shown = root.shown("/proc")
        with contextlib.suppress(OSError):
            proc = root.open("/proc", _FOLDER)
            if any(map(str.isdigit, names_in(proc))):
                return proc, shown, unseen
            os.close(proc)
        unseen.append(f"the host's processes: {shown} is not mounted, so /proc was looked at")
    return os.open("/proc", _FOLDER), "/proc", unseen


class _Reader:
    def __init__(self, proc: int, namespace: Namespace) -> None:
        self.proc, self.namespace = proc, namespace

    def read(self, wanted: Callable[[Process], bool], unseen: list[str]) -> Processes:
        names = list(filter(str.isdigit, names_in(self.proc)))
        if not self._is_whole(names):
            unseen.append(
                "processes outside of this container, or hidden from us: /proc does not have them"
                " (run it with the host's pid namespace, or with --root and the host's root)"
            )
        skipped, hidden, found = set(self._ancestors()), 0, []
        for name in sorted(names, key=int):
            if name in skipped:
                continue
            try:
                process = self._process(name)
            except PermissionError:
                hidden += 1
                continue
            if process is not None and wanted(process):
                found.append(attrs.evolve(process, here=self._is_here(name)))
        if hidden:
            unseen.append(f"{hidden} processes that may not be looked at: run as root")
        unknown = [process for process in found if process.here is None]
        unseen += [
            f"the network namespace of {p.comm} (pid {p.pid}): run as root with CAP_SYS_PTRACE" for p in unknown
        ]
        return Processes(found=tuple(process for process in found if process.here is not False), unseen=tuple(unseen))

    def _is_whole(self, names: list[str]) -> bool:
        """Tell whether these are all processes of the machine: kthreadd is seen in its first pid namespace only."""
        with contextlib.suppress(OSError):
            return "2" in names and self._read("2/comm") == b"kthreadd\n"
        return False

    def _ancestors(self) -> Iterator[str]:
        """Yield this process and those that started it."""
        try:
            pid = os.readlink("self", dir_fd=self.proc)
        except OSError:  # not in the pid namespace of this /proc
            return
        while pid.isdigit() and pid != "0":
            yield pid
            try:
                pid = self._parent(pid)
            except (OSError, IndexError):
                return

    def _process(self, pid: str) -> Process | None:
        """Return a process, None if it has ended or is a thread of the kernel. Raises PermissionError."""
        try:
            arguments = self._read(f"{pid}/cmdline")
            if not arguments:
                return None
            comm, executable = self._read(f"{pid}/comm").rstrip(b"\n"), ""
            with contextlib.suppress(OSError):
                executable = os.readlink(f"{pid}/exe", dir_fd=self.proc)
        except PermissionError:
            raise
        except OSError:
            return None
        words = tuple(os.fsdecode(word) for word in arguments.rstrip(b"\0").split(b"\0"))
        return Process(int(pid), os.fsdecode(comm), words, executable)

    def _parent(self, pid: str) -> str:
        return self._read(f"{pid}/stat").rpartition(b")")[2].split()[1].decode()

    def _is_here(self, pid: str) -> bool | None:
        """Tell whether a process is in the namespace, None if that cannot be told."""
        try:
            found = os.stat(f"{pid}/ns/net", dir_fd=self.proc)
        except OSError as error:
            if error.errno in _GONE:
                return False
        else:
            return (found.st_dev, found.st_ino) == self.namespace.identity
        # Whoever may not trace a process may still look into its /proc/net, whose files are the namespace's own
        # (fs/proc/proc_net.c): each has another number in another namespace.
        try:
            number = os.stat(f"{pid}/net/dev", dir_fd=self.proc).st_ino
            return number == self.namespace.run(os.stat, "/proc/thread-self/net/dev").st_ino
        except OSError as error:
            return False if error.errno in _GONE else None

    def _read(self, path: str) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.proc)
        try:
            return os.read(descriptor, 1 << 16)
        finally:
            os.close(descriptor)


def wait_for_end(pids: Iterable[int], seconds: float, *, own: bool = True) -> None:
    """Return when one of some processes has ended, and after so many seconds at the latest.

    A process that is not one of this pid namespace (`own` false), and any before Linux 5.3, cannot be waited for:
    it returns soon then, for its caller to look again.
    """
    import select  # noqa: PLC0415 - few runs wait

    descriptors = []
    try:
        for pid in pids:
            try:
                descriptors.append(_pidfd(pid) if own else None)
            except ProcessLookupError:
                return
        if None in descriptors:
            time.sleep(min(seconds, _LOOK_AGAIN_SECONDS))
            return
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)  # type: ignore[arg-type]
        poll.poll(seconds * 1000)
    finally:
        for descriptor in descriptors:
            if descriptor is not None:
                os.close(descriptor)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None
