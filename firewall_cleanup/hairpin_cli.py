"""The subcommand `ensure-hairpin`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from .cli import fail, noted_signals, print_text, while_read
from .errors import KernelError, NamespaceError
from .hairpin import ensure_hairpin, undo_hairpin, watch_hairpin
from .hairpin_report import HairpinReport
from .hairpin_text import hairpin_lines
from .stop import Stop

__all__ = ["hairpin_main", "hairpin_parser"]


def hairpin_parser() -> argparse.ArgumentParser:
    """Return the parser of the subcommand."""
    result = argparse.ArgumentParser(
        prog="firewall-cleanup ensure-hairpin",
        description="Turn on the hairpin mode of the bridge port of a pod, or of all pods of a bridge, so that a pod"
        " reaches itself through the address of its service.",
        epilog="Exit status: 0 the state is as wanted, 1 it is not, 2 usage.",
        allow_abbrev=False,  # a slip must not change anything
    )
    target = result.add_argument_group("which ports (one of them)").add_mutually_exclusive_group()
    target.add_argument("--bridge", metavar="NAME", help="all veth ports of this bridge")
    target.add_argument("--pid", type=int, metavar="N", help="the port of the pod in which this process runs")
    target.add_argument("--pod-netns", metavar="NAME|PATH", help="the port of the pod with this network namespace")
    target.add_argument("--interface", metavar="NAME", help="this port")
    target.add_argument("--endpoint", metavar="ADDRESS", help="the port of the pod with this address")
    result.add_argument(
        "--watch", action="store_true", help="with --bridge: go on, and turn it on for each port that is attached"
    )
    result.add_argument(
        "--undo",
        action="store_true",
        help="turn it off where this command turned it on: at once (of all ports, or of --bridge or --interface),"
        " with --watch on SIGTERM or SIGINT",
    )
    result.add_argument(
        "--netns", metavar="NAME|PATH", help="the network namespace of the bridge (default: this one)"
    )
    result.add_argument("--output", choices=["text", "json"], default="text", help="how to report (default: text)")
    result.add_argument("-v", "--verbose", action="store_true", help="name also the ports that have it already")
    return result


def hairpin_main(arguments: Sequence[str]) -> int:
    """Run the subcommand and return its exit status."""
    parser = hairpin_parser()
    args = parser.parse_args(arguments)
    if args.watch and args.bridge is None:
        parser.error("argument --watch: it goes with --bridge")
    if args.undo and not args.watch:
        if args.pid is not None or args.pod_netns is not None or args.endpoint is not None:
            parser.error("argument --undo: it goes with --bridge, --interface, or neither")
    elif all(each is None for each in (args.bridge, args.pid, args.pod_netns, args.interface, args.endpoint)):
        parser.error("one of --bridge, --pid, --pod-netns, --interface, --endpoint and --undo is needed")
    try:
        return _run(args)
    except (NamespaceError, KernelError) as error:
        return fail(error)
    except ValueError as error:
        return fail(str(error))


def _run(args: argparse.Namespace) -> int:
    if args.watch:
        return _watch(args)
    if args.undo:
        return _show(undo_hairpin(bridge=args.bridge, interface=args.interface, netns=args.netns), args)
    report = ensure_hairpin(
        bridge=args.bridge,
        pid=args.pid,
        pod_netns=args.pod_netns,
        interface=args.interface,
        endpoint=args.endpoint,
        netns=args.netns,
    )
    return _show(report, args)


def _watch(args: argparse.Namespace) -> int:
    """Watch until a signal; the status is that of the last report, or of the undoing."""
    status = 0

    def seen(report: HairpinReport) -> None:
        nonlocal status
        status = _show(report, args)

    with Stop() as stop, noted_signals(stop.set):
        watch_hairpin(args.bridge, stop, netns=args.netns, seen=seen)
        if args.undo:
            status = _show(undo_hairpin(bridge=args.bridge, netns=args.netns), args)
    return status


def _show(report: HairpinReport, args: argparse.Namespace) -> int:
    with while_read():
        if args.output == "json":
            # A watch prints one report per line.
            print(json.dumps(report.to_dict(), indent=None if args.watch else 1))
        else:
            print_text(hairpin_lines(report, verbose=args.verbose))
    return report.exit_code
