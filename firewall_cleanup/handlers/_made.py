"""A file that says which addresses are ours, for kernels that do not keep that with the address (before Linux 5.18).

A record is written before the address is added, so a kill leaves at most a record too many, which does no harm.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import KernelError

__all__ = ["MadeAddresses", "kernel_keeps_protocol"]

FOLDER = Path("/run/firewall-cleanup")
_FILE, _LOCK = "service-addresses.json", "service-addresses.lock"


def kernel_keeps_protocol() -> bool:
    """Whether the kernel's version says that an address has a protocol (`IFA_PROTO`)."""
    major, _, rest = os.uname().release.partition(".")
    minor = "".join(c for c in rest.partition(".")[0] if c.isdigit())
    return (int(major), int(minor or 0)) >= (5, 18)


class MadeAddresses:
    """The records of one network namespace. They are of this boot only, as the addresses are."""

    def __init__(self, namespace: tuple[int, int]) -> None:
        self._key = {"namespace": list(namespace), "boot": _boot()}

    def holds(self, index: int, address: str) -> bool:
        """Whether there is a record of an address on the link of this index."""
        return self._record(index, address) in _read()

    def add(self, index: int, address: str) -> bool:
        """Write a record; tell whether there was none. Raises KernelError if it cannot be written."""
        record = self._record(index, address)
        with _locked():
            records = [each for each in _read() if each.get("boot") == self._key["boot"]]
            if record in records:
                return False
            _write([*records, record])
        return True

    def remove(self, index: int, address: str) -> None:
        """Remove a record; one that is not there is no error. Raises KernelError if it cannot be written."""
        if not self.holds(index, address):
            return
        record = self._record(index, address)
        with _locked():
            _write([each for each in _read() if each != record])

    def _record(self, index: int, address: str) -> dict[str, Any]:
        return {**self._key, "index": index, "address": address}


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _read() -> list[dict[str, Any]]:
    try:
        found = json.loads((FOLDER / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []  # it is replaced as a whole: what cannot be read was written by nobody of ours
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _write(records: list[dict[str, Any]]) -> None:
    temporary = FOLDER / f".{_FILE}.{os.getpid()}"
    temporary.write_text(json.dumps(records), encoding="utf-8")
    temporary.replace(FOLDER / _FILE)


@contextmanager
def _locked() -> Iterator[None]:
    try:
        FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(FOLDER / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.closing(os.fdopen(descriptor, "w")) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise KernelError(
            error.errno or 0, f"{FOLDER} cannot be written, which this kernel's version needs"
        ) from error
