"""Folders of files that describe a node: collected there, planned on anywhere."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from ._version import __version__
from .bundle import FILES, MANIFEST, Manifest, read_bundle
from .bundle_text import bundle_files
from .collected import Collected
from .components import Component
from .dumps import read_ipset_save
from .dumps_host import read_ipvsadm
from .engine import Settings, run
from .errors import BundleError, DumpError, KernelError, ToolError
from .filehost import FileHost
from .handlers.host import Host, open_host
from .handlers.tools import Tools
from .host import Host as AnyHost
from .host import Interest
from .model import Controller, Family, FamilyState, Gap, Snapshot
from .reading import Reader, text_of
from .report import BadLine, CleanupReport
from .undo.files import sync_folder, write_file

__all__ = ["any_of", "collect_node", "files_of_node", "plan_folder", "read_node"]

_TRIES = 20


def collect_node(
    directory: str | os.PathLike[str],
    components: Iterable[Component],
    *,
    netns: str | os.PathLike[str] | None,
    members: bool,
    stopped: Callable[[], int | None],
) -> Collected:
    """Collect what a plan for any of these components needs; `controllers.collect` says more."""
    folder = _folder(directory)
    component = any_of(components)
    _check_free(folder)
    notes: list[str] = []
    with open_host(None, netns=None if netns is None else os.fspath(netns)) as host:
        snapshot, services = _services_of(host, read_node(host, component))
        sets = _sets_of(host, snapshot, notes) if members and snapshot.sets else None
        files = files_of_node(host, component, snapshot, _about(), sets=sets, services=services)
    signal = stopped()
    if signal is not None:
        return Collected(folder, interrupted=signal)
    _write(folder, files)
    return Collected(folder, tuple(files), snapshot.gaps, tuple(notes))


def plan_folder(
    directory: str | os.PathLike[str],
    component: Component,
    controllers: frozenset[Controller],
    settings: Settings,
    *,
    families: Iterable[Family] | None,
) -> CleanupReport:
    """Plan on the files of a folder; `controllers.plan_from` says more."""
    files, unreadable = _read(_folder(directory))
    bundle = read_bundle(files, unreadable=unreadable)
    host = FileHost.of(bundle, component, Family if families is None else families)
    report = run(host, component, controllers, settings)
    bad = tuple(BadLine(error.source, error.line, error.reason) for error in bundle.problems)
    return attrs.evolve(report, bad_lines=bad)


# reading a node


def read_node(host: AnyHost, component: Component) -> Snapshot:
    """Return all of a node that a component may own, or that may hold it, every rule included."""
    return Reader(host, component, frozenset(Controller), Interest()).read().snapshot


def files_of_node(
    host: AnyHost,
    component: Component,
    snapshot: Snapshot,
    about: Mapping[str, Any],
    *,
    sets: str | None = None,
    services: Iterable[str] | None = None,
) -> dict[str, str]:
    """Return the files by name; `bundle_text.bundle_files` says what the arguments mean."""
    families = (f for f in Family if host.family_state(f, gap=False, found=False) is FamilyState.EXAMINED)
    read = {name for name in snapshot.sets if snapshot.services and component.wants_members(name)}
    manifest = Manifest(
        files=frozenset(),
        families=frozenset(families),
        routes=frozenset(component.routes),
        left_out=frozenset(
            n for n, s in snapshot.sets.items() if sets is None and s.type != "list:set" and n not in read
        ),
        traces=host.traces(component.files),
    )
    return bundle_files(snapshot, manifest, about, sets=sets, services=services)


def any_of(components: Iterable[Component]) -> Component:
    """Return a component that needs whatever one of these does."""
    first, *more = components
    for other in more:
        first = _both(first, other)
    return first


def _both(one: Component, other: Component) -> Component:
    return attrs.evolve(
        one,
        chains=one.chains + other.chains,
        sets=one.sets + other.sets,
        wants_members=lambda name: one.wants_members(name) or other.wants_members(name),
        links_with_addresses=one.links_with_addresses | other.links_with_addresses,
        routes=one.routes + other.routes,
        item_controllers=one.item_controllers | other.item_controllers,
        files=one.files + other.files,
    )


def _about() -> dict[str, str]:
    return {
        "program": f"firewall-cleanup {__version__}",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kernel": os.uname().release,
    }


def _services_of(host: Host, snapshot: Snapshot) -> tuple[Snapshot, list[str] | None]:
    """Return the lines of `ipvsadm -Sn`, and the snapshot with the services that they tell of."""
    if not snapshot.services or host.ipvs is None:
        return snapshot, None
    services = snapshot.services
    try:
        for _ in range(_TRIES):
            lines = [line for service in host.ipvs.settings() for line in service.lines()]
            told = read_ipvsadm("\n".join(lines), source="ipvsadm-save", problem=_ignore)
            if {s: s.destinations for s in told} == {s: s.destinations for s in services}:
                return attrs.evolve(snapshot, services=services), lines
            services = host.ipvs.services()
        reason = "IPVS changes faster than it can be read"
    except KernelError as error:
        reason = text_of(error)
    gap = Gap(f"IPVS: {reason}", subsystem="ipvs")
    return attrs.evolve(snapshot, services=(), gaps=(*snapshot.gaps, gap)), None


def _ignore(_error: DumpError) -> None: ...


def _sets_of(host: Host, snapshot: Snapshot, notes: list[str]) -> str | None:
    """Return what `ipset save` prints, if it is of the sets that were read."""
    try:
        text = Tools(host.namespace).run(["ipset", "save"])
        if read_ipset_save(text, problems=[]).keys() == snapshot.sets.keys():
            return text
        reason = "sets came or went meanwhile"
    except ToolError as error:
        reason = str(error)
    notes.append(f"of sets only the members that may prove something were written: {reason}")
    return None


# folders


def _folder(directory: str | os.PathLike[str]) -> Path:
    if not os.fspath(directory):  # which a path takes for the folder that we are in
        raise BundleError("the name of the folder is empty")
    return Path(directory)


def _check_free(folder: Path) -> None:
    there = [name for name in (*FILES, MANIFEST) if os.path.lexists(folder / name)]
    if there:
        raise BundleError(f"{folder}: {there[0]} is there already; choose another folder")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files into a folder, the manifest last, or none of them. Raises BundleError."""
    placed: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
        try:
            for name, text in files.items():
                write_file(temporary / name, text)
            for name in files:
                _place(temporary / name, folder / name)
                placed.append(folder / name)
        except BaseException:
            for path in placed:
                path.unlink(missing_ok=True)
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_folder(folder)
    except FileExistsError as error:
        if not folder.is_dir():
            raise BundleError(f"{folder}: it is no folder") from error
        raise BundleError(f"{folder}: one of the files is there already; choose another folder") from error
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else folder
        raise BundleError(f"the files cannot be written: {where}: {error.strerror or error}") from error


def _place(file: Path, name: Path) -> None:
    """Give a file its name. Raises FileExistsError if another one has it."""
    try:
        name.hardlink_to(file)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        with contextlib.suppress(FileNotFoundError):
            name.lstat()
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(name)) from None
        file.rename(name)


def _read(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the text of each file that is there, and the reason for each that cannot be read. Raises BundleError."""
    try:
        names = set(os.listdir(folder))  # noqa: PTH208 - names are all that is needed
    except OSError as error:
        raise BundleError(f"{folder}: {error.strerror}") from error
    files: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    for name in (*FILES, MANIFEST):
        if name in names:
            try:
                files[name] = _text_of_file(folder / name)
            except OSError as error:
                unreadable[name] = error.strerror or str(error)
    if not files and not unreadable:
        raise BundleError(f"{folder}: none of the files is in it: {', '.join(FILES)}")
    return files, unreadable


def _text_of_file(path: Path) -> str:
    """Return the text of a regular file: others may have made the folder, and a link could lead anywhere."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    with os.fdopen(descriptor, "rb") as file:
        return file.read().decode("utf-8", "surrogateescape")
