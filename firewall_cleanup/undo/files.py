"""The folders of a backup: written whole or not at all, and found again."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ..errors import BackupError
from .saved import MANIFEST, Saved

__all__ = ["parts", "sync_folder", "write_file", "write_part", "write_run"]

_RUN = re.compile(r"(\d{8}T\d{6}Z)-(\d{3,})")
_PART = re.compile(r"part-(\d+)")


def write_run(base: Path, files: Mapping[str, str], now: float) -> Path:
    """Write files into a fresh folder of `base`, which is made if it is missing, and return it.

    The folders' names are in the order in which they were made, even if the clock was set back. Raises BackupError;
    there is no folder then.
    """
    try:
        if not base.is_dir():
            base.mkdir(mode=0o700, parents=True)
            sync_folder(base.parent)
        return _write(base, files, lambda: base / _next(base, now))
    except OSError as error:
        raise _error(base, error) from error


def write_part(run: Path, files: Mapping[str, str]) -> Path:
    """Write files into the folder of a run as its next part, and return where. Raises BackupError."""
    try:
        return _write(run, files, lambda: run / f"part-{_last_part(run) + 1}")
    except OSError as error:
        raise _error(run, error) from error


def _error(place: Path, error: OSError) -> BackupError:
    where = error.filename if isinstance(error.filename, str) else place
    return BackupError(f"the backup cannot be written: {where}: {error.strerror or error}")


def _next(base: Path, now: float) -> str:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    before, number = max((_place_in_order(path) for path in base.iterdir()), default=("", 0))
    return f"{before}-{number + 1:03d}" if stamp <= before else f"{stamp}-001"


def _place_in_order(run: Path) -> tuple[str, int]:
    """Return what the folders of runs are sorted by: the time, and the number, as a number."""
    found = _RUN.fullmatch(run.name)
    return (found[1], int(found[2])) if found else ("", 0)


def _last_part(run: Path) -> int:
    return max((int(found[1]) for path in run.iterdir() if (found := _PART.fullmatch(path.name))), default=1)


def _write(parent: Path, files: Mapping[str, str], choose: Callable[[], Path]) -> Path:
    # Nobody takes it for a backup before it has its name.
    temporary = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=parent))
    try:
        for name, text in files.items():
            write_file(temporary / name, text)
        sync_folder(temporary)
        while True:
            place = choose()
            # `rename` would take an empty folder's place: only a name that is not there will do.
            if not place.exists():
                temporary.rename(place)
                break
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(parent)
    return place


def write_file(path: Path, text: str) -> None:
    """Write a file of mode 0600 that has its name once it is whole and on the disk. Raises OSError."""
    unfinished = path.with_name(f".{path.name}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    unfinished.rename(path)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def parts(directory: Path) -> list[Saved]:
    """Return all parts of a backup, the newest first; `directory` holds runs, or is that of one.

    Raises BackupError if there is none, or one cannot be read or understood.
    """
    try:
        runs = [directory] if (directory / MANIFEST).exists() else list(_runs(directory))
        return [_read(part) for run in runs for part in (*_parts(run), run)]
    except OSError as error:
        raise BackupError(f"{error.filename}: {error.strerror}") from error


def _runs(directory: Path) -> Iterator[Path]:
    found = [path for path in directory.iterdir() if _RUN.fullmatch(path.name) and (path / MANIFEST).exists()]
    if not found:
        raise BackupError(f"{directory}: there is no backup in it")
    yield from sorted(found, key=_place_in_order, reverse=True)


def _parts(run: Path) -> list[Path]:
    found = [(int(name[1]), path) for path in run.iterdir() if (name := _PART.fullmatch(path.name))]
    return [path for _number, path in sorted(found, reverse=True)]


def _read(folder: Path) -> Saved:
    files = {
        path.name: path.read_text("utf-8", "surrogateescape")
        for path in folder.iterdir()
        if path.is_file() and not path.name.startswith(".")
    }
    try:
        return Saved.from_files(files)
    except BackupError as error:
        raise BackupError(f"{folder}: {error}") from error
