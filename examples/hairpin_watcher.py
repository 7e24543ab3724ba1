"""A sidecar that keeps the pods of a bridge able to reach themselves through their own services.

    python examples/hairpin_watcher.py kube-bridge           until SIGTERM; then it puts back what it turned on
    python examples/hairpin_watcher.py kube-bridge --keep    leaves it on

It needs CAP_NET_ADMIN in the network namespace of the node (in a pod: hostNetwork) and nothing else: no API server,
no container runtime, no process of the pods.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from firewall_cleanup import HairpinReport, HairpinStatus, undo_hairpin, watch_hairpin
from firewall_cleanup.errors import KernelError
from firewall_cleanup.stop import Stop


def tell(report: HairpinReport) -> None:
    """Print what was changed, and what could not be."""
    for outcome in report.outcomes:
        if outcome.status is not HairpinStatus.ON:
            where = outcome.interface or report.target
            why = f": {outcome.reason}" if outcome.reason else ""
            print(f"{where}: {outcome.status.value}{why}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Watch until SIGINT or SIGTERM; return 0 if all was put back that was to be."""
    parser = argparse.ArgumentParser(description="Keep the pods of a bridge in hairpin mode.")
    parser.add_argument("bridge")
    parser.add_argument("--keep", action="store_true", help="leave the hairpin mode on at the end")
    args = parser.parse_args(arguments)
    # An ordinary event could not be set in a signal handler, which may interrupt what holds its lock.
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        watch_hairpin(args.bridge, stop, seen=tell)
        if args.keep:
            return 0
        undone = undo_hairpin(bridge=args.bridge)
    except KernelError as error:
        print(error.strerror, file=sys.stderr)
        return 1
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    tell(undone)
    return undone.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
