"""A file that says which addresses are ours, for kernels that do not keep that with the address (before Linux 5.18).

A record is written before its address is added, under a lock that is held until it is there. So a kill leaves at most
a record too many. It is dropped by whoever of us next sees, under the lock, that its address is not there. If before
that somebody else adds just this address to this link, it is taken for ours; so is ours that others delete and add.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import KernelError

__all__ = ["MadeAddresses", "kernel_keeps_protocol"]

FOLDER = Path("/run/firewall-cleanup")
_FILE, _LOCK = "service-addresses.json", "service-addresses.lock"
_Records = list[dict[str, Any]]


def kernel_keeps_protocol() -> bool:
    """Whether the kernel's version says that an address has a protocol (`IFA_PROTO`)."""
    major, _, rest = os.uname().release.partition(".")
    minor = "".join(c for c in rest.partition(".")[0] if c.isdigit())
    return (int(major), int(minor or 0)) >= (5, 18)


class MadeAddresses:
    """The records of one network namespace. They are of this boot only, as the addresses are.

    Functions that are given as `bearers` return the indices of the links that have the address now. Nobody of us adds
    or deletes one while they are called.
    """

    def __init__(self, namespace: tuple[int, int]) -> None:
        self._key = {"namespace": list(namespace), "boot": _boot()}

    def holds(self, index: int, address: str) -> bool:
        """Whether there is a record of an address on the link of this index. Raises KernelError."""
        return self._record(index, address) in _read()

    def make(
        self,
        index: int,
        address: str,
        put: Callable[[], bool],
        bearers: Callable[[], Collection[int]],
        *,
        new: bool = False,
    ) -> bool:
        """Write the record of an address, then add or change it by `put`, which tells whether that was to be done.

        `new`: the address was not there when somebody last looked; nothing is done if it is there now. Returns what
        `put` did. Raises KernelError, also if there can be no record.
        """
        record = self._record(index, address)
        with _locked():
            there = bearers()
            if new and index in there:
                return False
            known = [each for each in _read() if each.get("boot") == self._key["boot"]]
            held = record in known and index in there
            others = [each for each in self._valid(known, address, there) if each != record]
            _write([*others, record])
            try:
                done = put()
            except KernelError:
                if not (index in bearers() and (held or index not in there)):
                    _write(others)
                raise
            if not done:  # somebody else was faster: it is theirs
                _write(others)
            return done

    def unmake(self, index: int, address: str, delete: Callable[[], bool]) -> bool:
        """Delete an address, then its record; return what `delete` did. Raises KernelError."""
        if not self.holds(index, address):
            return delete()
        with _locked():
            done = delete()
            _write([each for each in _read() if each != self._record(index, address)])
            return done

    def forget_gone(self, address: str, bearers: Callable[[], Collection[int]]) -> None:
        """Drop the records of an address on links that do not have it. Raises KernelError."""
        if not any(self._is_about(each, address) for each in _read()):
            return
        with _locked():
            known = _read()
            valid = self._valid(known, address, bearers())
            if valid != known:
                _write(valid)

    def _valid(self, records: _Records, address: str, there: Collection[int]) -> _Records:
        return [each for each in records if not self._is_about(each, address) or each.get("index") in there]

    def _is_about(self, record: dict[str, Any], address: str) -> bool:
        return {**record, "index": 0} == self._record(0, address)

    def _record(self, index: int, address: str) -> dict[str, Any]:
        return {**self._key, "index": index, "address": address}


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _read() -> _Records:
    """Return the records. A file that is damaged has none: it is replaced as a whole, so nobody of us wrote that.

    Raises KernelError: what cannot be read may have any, and must not be replaced.
    """
    try:
        found = json.loads((FOLDER / _FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return []
    except OSError as error:
        what = f"{FOLDER / _FILE} cannot be read, which this kernel's version needs"
        raise KernelError(error.errno or 0, what) from error
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _write(records: _Records) -> None:
    temporary = FOLDER / f".{_FILE}.{os.getpid()}"
    try:
        temporary.write_text(json.dumps(records), encoding="utf-8")
        temporary.replace(FOLDER / _FILE)
    except OSError as error:
        raise _unwritten(error) from error


@contextmanager
def _locked() -> Iterator[None]:
    try:
        FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(FOLDER / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritten(error) from error
    with contextlib.closing(os.fdopen(descriptor, "w")) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise _unwritten(error) from error
        yield


def _unwritten(error: OSError) -> KernelError:
    return KernelError(error.errno or 0, f"{FOLDER} cannot be written, which this kernel's version needs")
