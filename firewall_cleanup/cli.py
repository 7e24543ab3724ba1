"""The command, and the same as options for a controller's own command."""

from __future__ import annotations

import argparse
import errno
import json
import math
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ._version import __version__
from .controllers import COMPONENTS, cleanup
from .errors import NamespaceError
from .model import Controller, Family
from .report import CleanupReport
from .text import escape, summary

__all__ = ["add_cleanup_config", "main", "run_cleanup_config"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def add_cleanup_config(parser: argparse.ArgumentParser) -> None:
    """Add `--cleanup-config` and its options (`--cleanup-dry-run`, `--cleanup-family` …) to a controller's parser.

    Call `run_cleanup_config` with the parsed arguments if `args.cleanup_config` is true.
    """
    _add_options(parser, prefix="cleanup-")


def _add_options(parser: argparse.ArgumentParser, *, prefix: str) -> None:
    def flag(name: str) -> str:
        return f"--{prefix}{name}"

    def add(name: str, *more: str, **keywords: Any) -> None:
        group.add_argument(flag(name), *more, dest="cleanup_" + name.replace("-", "_"), **keywords)

    group = parser.add_argument_group("cleanup")
    group.add_argument(
        "--cleanup-config",
        action="store_true",
        help="remove what the component left in the kernel, and exit; no API server is needed",
    )
    add("dry-run", action="store_true", help="show what would be removed, change nothing")
    add(
        "family",
        action="append",
        choices=[family.value for family in Family],
        help="only this family (repeat for more; default: both)",
    )
    add("netns", metavar="NAME|PATH", help="the network namespace to work in (default: this one)")
    add(
        "wait",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for the xtables lock, for the whole run (default: 30)",
    )
    add("remove-bridge", action="store_true", help="remove the pod bridge even if links are attached to it")
    add("output", choices=["text", "json"], default="text", help="how to report (default: text)")
    short = () if prefix else ("-v",)
    add("verbose", *short, action="store_true", help="list every object with what proves that it is owned")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value


_seconds.__name__ = "number of seconds"  # argparse names the type in its error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="firewall-cleanup",
        description="Remove from this node exactly what Kubernetes node networking left in the kernel.",
        epilog="Exit status: 0 nothing owned is left and nothing was left unread (with --dry-run: the plan was made),"
        " 1 residue or gaps, 2 usage, 128 + number after a signal.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    _add_options(parser, prefix="")
    parser.add_argument(
        "--controller",
        action="append",
        choices=[controller.value for controller in Controller],
        help="only this controller (repeat for more; default: all)",
    )
    parser.add_argument(
        "--component",
        action="append",
        choices=list(COMPONENTS),
        help="the software whose state to remove (default: kube-router)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if not args.cleanup_config:
        parser.print_help()
        return 0
    controllers = [Controller(name) for name in args.controller] if args.controller else list(Controller)
    return run_cleanup_config(args, controllers=controllers, components=args.component or list(COMPONENTS))


def run_cleanup_config(
    args: argparse.Namespace,
    *,
    controllers: Iterable[Controller] = tuple(Controller),
    components: Iterable[str] = tuple(COMPONENTS),
) -> int:
    """Run the cleanup that the arguments of `add_cleanup_config` ask for, print its report, return the exit status.

    SIGINT and SIGTERM stop it between two steps (in the main thread, where Python handles signals); what was done
    until then is reported. The caller exits.
    """
    families = [Family(name) for name in args.cleanup_family] if args.cleanup_family else None
    status = 0
    with _stop_signals() as stopped:
        for component in dict.fromkeys(components):
            try:
                report = cleanup(
                    component=component,
                    controllers=controllers,
                    families=families,
                    netns=args.cleanup_netns,
                    dry_run=args.cleanup_dry_run,
                    wait=args.cleanup_wait,
                    remove_bridge=args.cleanup_remove_bridge,
                    stopped=stopped,
                )
            except NamespaceError as error:
                print(f"firewall-cleanup: {escape(str(error))}", file=sys.stderr)
                return 1 if error.errno in {errno.EPERM, errno.EACCES} else 2
            _print(report, args)
            status = max(status, report.exit_code)
    return status


def _print(report: CleanupReport, args: argparse.Namespace) -> None:
    try:
        if args.cleanup_output == "json":
            print(json.dumps(report.to_dict(), indent=1))
        else:
            for line in summary(report, verbose=args.cleanup_verbose):
                print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone; the work is done and its status still counts.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _stop_signals() -> Iterator[Callable[[], int | None]]:
    """Note SIGINT and SIGTERM for as long as the block runs; a second signal acts as it would have before."""
    received: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def note(number: int, _frame: types.FrameType | None) -> None:
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) or signal.SIG_DFL for number in _SIGNALS}
        for number in _SIGNALS:
            signal.signal(number, note)
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
