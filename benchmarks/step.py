"""One measurement in a network namespace of its own: load, clean, look; prints one line of JSON.

It is started as `unshare --net python -m benchmarks.step NAME WAY FOLDER LEFT`. It stays small, as the kernel counts
the memory of who starts a process as the peak of that process too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import floor_legacy, floor_nft, state
from .cells import COMMAND, FLOOR, LIBRARY, Cell, select

__all__ = ["main"]


def main() -> None:
    """Do what the arguments say."""
    name, way, folder, left = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    (cell,) = select([name])
    os.environ.update(state.environment(folder))
    state.load(cell, folder)
    sample = _clean(cell, way, folder)
    state.check(cell, left)
    print(json.dumps(sample))


def _clean(cell: Cell, way: str, folder: Path) -> dict[str, float]:
    if way == LIBRARY:
        expected = "none" if cell.series == "nothing" else "some"
        words = [sys.executable, "-m", "benchmarks.library", expected]
        said = subprocess.run(words, check=True, stdout=subprocess.PIPE)  # noqa: S603 - the words are ours
        sample: dict[str, float] = json.loads(said.stdout)
        return sample
    if way == FLOOR:
        return floor_legacy.clean() if cell.backend == "legacy" else {"seconds": floor_nft.clean()}
    return _timed(_command() if way == COMMAND else _reference(cell, folder))


def _command() -> list[str]:
    installed = Path(sys.executable).with_name("firewall-cleanup")
    words = [str(installed)] if installed.exists() else [sys.executable, "-m", "firewall_cleanup"]
    return [*words, "--cleanup-config"]


def _reference(cell: Cell, folder: Path) -> list[str]:
    """Return what the command is compared with."""
    if cell.series == "nothing":
        return [sys.executable, "-c", "import attrs"]
    if cell.series == "sets":
        return ["ipset", "restore", "-file", str(folder / "destroy")]
    tools = (f"{prefix}-{cell.backend}" for prefix in state.PREFIX.values())
    return ["sh", "-c", "; ".join(f"{tool}-save | grep -v KUBE | {tool}-restore" for tool in tools)]


def _timed(words: list[str]) -> dict[str, float]:
    """Run a command; return the seconds from its start to its end, and its peak memory in bytes."""
    with tempfile.TemporaryFile() as output:
        to = [(os.POSIX_SPAWN_DUP2, output.fileno(), descriptor) for descriptor in (1, 2)]
        start = time.perf_counter()
        process = os.posix_spawnp(words[0], words, os.environ, file_actions=to)
        _, status, usage = os.wait4(process, 0)
        seconds = time.perf_counter() - start
        if status:
            output.seek(0)
            sys.stderr.buffer.write(output.read()[-2000:])
            raise SystemExit(f"{words[0]} ended with {os.waitstatus_to_exitcode(status)}")
    return {"seconds": seconds, "peak": usage.ru_maxrss * 1024}


if __name__ == "__main__":
    main()
