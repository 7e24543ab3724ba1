"""Files that a component wrote, or that are loaded at boot: found, never edited."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator

from ..host import FoundFile
from ..model import FileTrace
from ._root import Root

__all__ = ["find_traces", "read_files"]


def find_traces(traces: Iterable[FileTrace], root: Root) -> Iterator[str]:
    """Yield a line for each trace that is found: where it is, and what to do about it."""
    for trace in traces:
        path = root.shown(trace.path)
        try:
            text = root.read(trace.path) if trace.lines else ""
            there = bool(trace.lines) or root.exists(trace.path)
        except OSError:  # not there, or not for us to see
            continue
        if not trace.lines and there:
            yield f"{path}: {trace.advice}"
        for number, line in enumerate(text.splitlines(), 1):
            if " ".join(line.split()) in trace.lines:
                yield f"{path}:{number}: {line.strip()!r}: {trace.advice}"


def read_files(paths: Iterable[str], root: Root) -> Iterator[FoundFile]:
    """Yield the files that are there, by path or by a pattern of names in a folder, with their text or why not."""
    for asked in paths:
        try:
            paths_there = root.glob(asked)
        except OSError as error:
            if error.errno not in _ABSENT:
                folder = root.shown(asked.rpartition("/")[0])
                yield FoundFile(asked, folder, unread=error.strerror or str(error))
            continue
        files = (_read(asked, path, root) for path in paths_there)
        yield from (file for file in files if file is not None)


_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})


def _read(asked: str, path: str, root: Root) -> FoundFile | None:
    try:
        return FoundFile(asked, root.shown(path), root.read(path))
    except OSError as error:
        if error.errno in _ABSENT or (error.errno == errno.EINVAL and asked != path):
            return None  # or a folder that a pattern fits
        return FoundFile(asked, root.shown(path), unread=error.strerror or str(error))
