"""`firewall-cleanup ensure-address`: make a service address, keep it, undo it."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from .cli import fail, noted_signals, print_error, while_read
from .errors import KernelError, NamespaceError
from .service_address import ensure_service_address, remove_service_address, run_service_address
from .service_report import AddressStatus, ServiceAddressReport
from .service_state import SCOPES, check_device, parse_address
from .stop import Stop
from .words import escape

__all__ = ["address_lines", "ensure_address", "make_parser"]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(
        prog="firewall-cleanup ensure-address",
        description="Make addresses of this node usable for a local service: on the device, with their local route.",
        epilog="Exit status: 0 the state is as wanted, 1 it is not, 2 usage. With --daemon it is that at the end.",
        allow_abbrev=False,  # a slip must not change anything
    )
    add = parser.add_argument
    add(
        "--ip-address",
        action="append",
        required=True,
        type=_address,
        metavar="ADDRESS",
        help="an IPv4 or IPv6 address, used as a /32 or /128 (repeat for the other family)",
    )
    add("--interface", required=True, type=_device, metavar="NAME", help="its link; a dummy link is made if absent")
    add(
        "--scope",
        choices=list(SCOPES),
        help="host: not the source of other packets (default); or global",
    )
    add("--take-over", action="store_true", help="replace the same address where somebody else made it")
    add("--set-up", action="store_true", help="set the link up though this tool did not make it")
    add("--kind", metavar="KIND", help="what kind a link that is there must be of, as dummy (default: any)")
    add("--daemon", action="store_true", help="keep it so until SIGTERM or SIGINT")
    add(
        "--sync-interval",
        type=_duration,
        metavar="DURATION",
        help="with --daemon, the longest time between two looks, as 30s or 1m30s (default: 1m)",
    )
    add("--cleanup", action="store_true", help="undo it and exit; with --daemon: undo it at the end")
    add("--netns", metavar="NAME|PATH", help="the network namespace to work in (default: this one)")
    add("--output", choices=["text", "json"], default="text", help="how to report (default: text)")
    return parser


def _address(text: str) -> str:
    try:
        return parse_address(text)[1]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _device(text: str) -> str:
    try:
        return check_device(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _duration(text: str) -> float:
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
    whole = "".join(number + unit for number, unit in parts)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not parts and re.fullmatch(r"\d+(\.\d+)?", text):
        whole, seconds = text, float(text)
    if whole != text or not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a time, as 30s, 1m or 1h30m")
    return seconds


def ensure_address(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = make_parser()
    args = parser.parse_args(arguments)
    alone = args.cleanup and not args.daemon
    unused = {"--scope": args.scope, "--take-over": args.take_over, "--set-up": args.set_up, "--kind": args.kind}
    for name, value in unused.items():
        if alone and value:
            parser.error(f"argument {name}: --cleanup without --daemon only undoes, so it has no use")
    if args.sync_interval is not None and not args.daemon:
        parser.error("argument --sync-interval: it goes with --daemon")
    try:
        return _run(args, alone=alone)
    except (NamespaceError, KernelError) as error:
        return fail(error)


def _run(args: argparse.Namespace, *, alone: bool) -> int:
    if alone:
        report = remove_service_address(args.ip_address, args.interface, netns=args.netns)
        _print(report, args)
        return report.exit_code
    options: dict[str, Any] = {
        "scope": args.scope or "host",
        "take_over": args.take_over,
        "set_up": args.set_up,
        "kind": args.kind,
        "netns": args.netns,
    }
    if not args.daemon:
        report = ensure_service_address(args.ip_address, args.interface, **options)
        _print(report, args)
        return report.exit_code
    with Stop() as stop, noted_signals(stop.set):
        return run_service_address(
            args.ip_address,
            args.interface,
            stop,
            interval=args.sync_interval or 60.0,
            cleanup=args.cleanup,
            on_report=lambda report: _print(report, args),
            **options,
        ).exit_code


def _print(report: ServiceAddressReport, args: argparse.Namespace) -> None:
    with while_read():
        if args.output == "json":
            # A loop prints one line per report.
            print(json.dumps(report.to_dict(), indent=None if args.daemon else 1))
        else:
            for line in address_lines(report):
                print(escape(line))
    if args.output == "text":
        for problem in report.problems:
            print_error(problem)


def address_lines(report: ServiceAddressReport) -> Iterator[str]:
    """Yield what a report says of what is as wanted, a line per address and one for the device if it changed."""
    if report.device_reason is None and report.device_status.value not in {"present", "absent"}:
        yield f"{report.device}: {report.device_status.value}"
    yield from (f"{report.device}: {note}" for note in report.notes)
    for outcome in report.addresses:
        name = f"{outcome.address} on {report.device}"
        if outcome.status is not AddressStatus.FAILED:
            more = [change for change in outcome.changes if change != outcome.status.value]
            yield f"{name}: {'; '.join([outcome.status.value, *more])}"
        yield from (f"{name}: {note}" for note in outcome.notes)
