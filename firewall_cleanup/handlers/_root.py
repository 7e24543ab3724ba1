"""A folder as the root of paths: links in it lead to where they would lead if it were `/`, never out of it."""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
from collections import deque
from pathlib import Path

from ..closing import Closing
from ..errors import RootError

__all__ = ["Root", "names_in"]

_MOST_LINKS = 40  # as the kernel
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


class Root(Closing):
    """The root of a machine, this one's or one that is mounted somewhere."""

    def __init__(self, path: str | os.PathLike[str] = "/") -> None:
        """Open it. Raises RootError if it is not a folder or may not be entered."""
        if not os.fspath(path):
            raise RootError("root: the name is empty; give the folder where the host's / is mounted")
        self.path = Path(path)
        self._is_own = os.fspath(path) == "/"
        try:
            self._descriptor = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:  # ValueError: a null byte
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise RootError(
                f"root {os.fspath(path)}: {reason}; give the folder where the host's / is mounted"
            ) from error

    def close(self) -> None:
        """Close it; again is no error."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def shown(self, path: str) -> str:
        """Return a path as a person finds it from outside."""
        return str(self.path / path.lstrip("/"))

    def open(self, path: str, flags: int = _PATH) -> int:
        """Open a path inside; the descriptor is the caller's. Raises OSError."""
        if self._is_own:
            return os.open(f"/{path.lstrip('/')}", flags & ~os.O_NOFOLLOW)  # the kernel follows its links itself
        parts, links, opened = deque(path.split("/")), 0, False
        folders = [os.dup(self._descriptor)]  # where we are, with the way back for ".."
        try:
            while parts:
                part = parts.popleft()
                if part in {"", "."}:
                    continue
                if part == "..":
                    if len(folders) > 1:
                        os.close(folders.pop())
                    opened = False
                    continue
                target = _link(part, folders[-1])
                if target is None:
                    opened = not any(rest not in {"", "."} for rest in parts)
                    folders.append(os.open(part, flags if opened else _PATH, dir_fd=folders[-1]))
                    continue
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                if target.startswith("/"):
                    while len(folders) > 1:
                        os.close(folders.pop())
                parts.extendleft(reversed(target.split("/")))
            # A folder that was passed on the way, as of "..", is open for nothing else.
            return folders.pop() if opened else os.open(".", flags, dir_fd=folders[-1])
        finally:
            for descriptor in folders:
                os.close(descriptor)

    def exists(self, path: str) -> bool:
        """Tell whether there is something at a path. Raises OSError if that cannot be seen."""
        try:
            os.close(self.open(path))
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR}:
                return False
            raise
        return True

    def read(self, path: str) -> str:
        """Return the text of a regular file, what is not UTF-8 replaced. Raises OSError."""
        descriptor = self.open(path, _READ)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        with os.fdopen(descriptor, "rb") as file:
            return file.read().decode("utf-8", "replace")

    def glob(self, pattern: str) -> list[str]:
        """Return the paths that a pattern fits, with wildcards in its last part only. Raises OSError."""
        folder, _, names = pattern.rpartition("/")
        if not any(sign in names for sign in "*?["):
            return [pattern]
        descriptor = self.open(folder, _FOLDER)
        try:
            found = names_in(descriptor)
        finally:
            os.close(descriptor)
        return [f"{folder}/{name}" for name in sorted(found) if fnmatch.fnmatchcase(name, names) and name[0] != "."]


def names_in(folder: int) -> list[str]:
    """Return the names in an open folder. Raises OSError."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _link(name: str, folder: int) -> str | None:
    """Return where a link leads, None if it is none (or not there, which opening it will say)."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOENT, errno.ENOTDIR}:
            return None
        raise
