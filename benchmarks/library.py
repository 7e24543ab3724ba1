"""The process in which a cleanup by the library is timed; prints one line of JSON."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from firewall_cleanup import Handlers, cleanup_all

__all__ = ["main"]


def main() -> None:
    """Clean the namespace of this process. The argument says whether there is something to remove."""
    expected = sys.argv[1] == "some"
    before = _resident()
    start = time.perf_counter()
    with Handlers.open() as handlers:
        report = cleanup_all(handlers)
        seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if not report.clean or report.changed != expected:
        raise SystemExit(f"not the expected report: {report.gaps or report.residue or report.changed}")
    print(json.dumps({"seconds": seconds, "before": before, "peak": after}))


def _resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


if __name__ == "__main__":
    main()
