"""A controller that can clean up after itself.

    python examples/controller.py                     runs until it is told to stop
    python examples/controller.py --cleanup-config    removes what it and its predecessors left, and exits

The second needs no API server and no other option: it is what an operator runs on a node that leaves the cluster.
"""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Sequence

from firewall_cleanup import Controller, add_cleanup_config, run_cleanup_config

# What this program runs, and so what it cleans up. A program that runs one controller names that one only.
CONTROLLERS = (Controller.NETWORK_POLICY, Controller.ROUTING, Controller.SERVICE_PROXY)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options: the controller's own, and those of the cleanup."""
    parser = argparse.ArgumentParser(description="An example of a controller.")
    parser.add_argument("--sync-period", type=float, default=60.0, metavar="SECONDS", help="default: 60")
    parser.add_argument("--once", action="store_true", help="synchronise once and exit")
    add_cleanup_config(parser)
    return parser.parse_args(arguments)


def run(period: float, *, once: bool) -> None:
    """Synchronise every `period` seconds until SIGINT or SIGTERM."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    while not stop.is_set():
        print("synchronised", flush=True)  # here a real one would write its rules
        if once:
            break
        stop.wait(period)


def main(arguments: Sequence[str] | None = None) -> None:
    """Clean up if that is asked for, before anything else is started; else run."""
    args = parse(arguments)
    if args.cleanup_config:
        raise SystemExit(run_cleanup_config(args, controllers=CONTROLLERS))
    run(args.sync_period, once=args.once)


if __name__ == "__main__":
    main()
