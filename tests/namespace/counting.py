"""Runs a cleanup and counts its work: messages, bytes, calls, processes, imports. Prints one line of JSON.

Run as a program in a namespace, as imports can be counted only once in a process.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections import Counter
from typing import Any

count: Counter[str] = Counter()
PROTOCOLS = {0: "route", 12: "netfilter", 16: "generic"}
PROCESSES = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec", "os.system"}


def messages(data: bytes) -> int:
    offset = found = 0
    while offset + 16 <= len(data):
        (length,) = struct.unpack_from("=I", data, offset)
        offset += max((length + 3) & ~3, 16)
        found += 1
    return found


def is_destroy(data: bytes) -> bool:
    """Whether it destroys ipsets, which is tried again until the kernel has let go of deleted rules."""
    return struct.unpack_from("=H", data, 4) == (6 << 8 | 3,)


class CountingSocket(socket.socket):
    def _count(self, what: str, data: bytes) -> None:
        kind = f"{PROTOCOLS.get(self.proto, 'other')} {what}"
        count[f"{kind} calls"] += 1
        count[f"{kind} messages"] += messages(data)
        count[f"{kind} bytes"] += len(data)

    def send(self, data: Any, *flags: int) -> int:
        if is_destroy(data):
            count["destroys"] = max(count["destroys"], messages(data))
        else:
            self._count("sent", data)
        return super().send(data, *flags)

    def recv(self, *arguments: int) -> bytes:
        data = super().recv(*arguments)
        if struct.unpack_from("=H", data, 4) != (2,):  # answers to single requests, of which some are tried again
            self._count("received", data)
        return data


def audit(event: str, _arguments: object) -> None:
    if event in PROCESSES:
        count["processes"] += 1


def count_legacy() -> None:
    """Count the tables that the kernel hands out and takes back."""
    from firewall_cleanup.handlers import _legacy_blob

    get, put = _legacy_blob._Socket.get, _legacy_blob._Socket.set

    def counting_get(self: Any, option: int, buffer: Any) -> None:
        count[f"legacy get {option}"] += 1
        get(self, option, buffer)

    def counting_put(self: Any, option: int, data: bytes) -> None:
        count[f"legacy set {option}"] += 1
        count[f"legacy set {option} bytes"] += len(data)
        put(self, option, data)

    _legacy_blob._Socket.get, _legacy_blob._Socket.set = counting_get, counting_put  # type: ignore[method-assign]


def main() -> None:
    sys.addaudithook(audit)
    before = set(sys.modules)
    from firewall_cleanup import Handlers, cleanup_all

    imported = {"import": sorted(set(sys.modules) - before)}
    if "legacy" in sys.argv:
        count_legacy()
    socket.socket = CountingSocket  # type: ignore[misc]
    before = set(sys.modules)
    with Handlers.open() as handlers:
        report = cleanup_all(handlers)
    imported["run"] = sorted(set(sys.modules) - before)
    result = {"clean": report.clean, "changed": report.changed, "work": dict(count), "imported": imported}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
