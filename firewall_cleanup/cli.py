"""The command, and the same as options for a controller's own command."""

from __future__ import annotations

import argparse
import errno
import importlib
import math
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from ._version import __version__
from .controllers import COMPONENTS, check, cleanup, collect, plan_from, restore
from .errors import BackupError, BundleError, KernelError, NamespaceError, RootError
from .model import Controller, Family
from .report import CleanupReport
from .words import escape

if TYPE_CHECKING:
    from .collected import Collected
    from .plan_text import Line
    from .restore_report import RestoreReport

__all__ = [
    "SUBCOMMANDS",
    "add_cleanup_config",
    "fail",
    "main",
    "noted_signals",
    "print_error",
    "print_text",
    "run_cleanup_config",
    "while_read",
]

SUBCOMMANDS = {
    "ensure-address": "firewall_cleanup.service_command:ensure_address",
    "ensure-hairpin": "firewall_cleanup.hairpin_cli:hairpin_main",
    "exposure": "firewall_cleanup.exposure.cli:main",
}
"""What may be the first word of the command, each with the function that takes the rest and returns the status."""

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
    add(
        "wait-gone",
        type=_seconds,
        metavar="SECONDS",
        help="first wait for running processes of the component to end; if one is still there then, change nothing",
    )
    add(
        "root",
        metavar="DIR",
        help="where the node's root is mounted, to look at its processes and files (default: /)",
    )
    add("remove-bridge", action="store_true", help="remove the pod bridge even if links are attached to it")
    add("undo-hairpin", action="store_true", help="turn hairpin mode off where ensure-hairpin turned it on")
    add("backup", metavar="DIR", help="first write all that will be removed into a fresh folder of DIR")
    add(
        "output",
        choices=["text", "json", "script"],
        default="text",
        help="how to report (default: text); script, of a dry run: as a shell script that does it",
    )
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
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="Exit status: 0 nothing owned is left and nothing was left unread (with --dry-run:\n"
        "the plan was made), 1 residue or gaps, 2 usage, 128 + number after a signal.\n"
        f"Duties of a node are commands of their own, each with --help:\n{', '.join(SUBCOMMANDS)}.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    _add_options(parser, prefix="")
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 if there is anything to remove or something could not be read, else with 0; change nothing",
    )
    parser.add_argument(
        "--collect",
        metavar="DIR",
        help="write all that a plan needs from this node into files of DIR, for --from; change nothing",
    )
    parser.add_argument(
        "--without-members",
        action="store_true",
        help="with --collect: leave out the members of sets that prove nothing",
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="DIR",
        help="with --dry-run or --check: look at files of another node in DIR, not at this node",
    )
    parser.add_argument(
        "--restore",
        metavar="DIR",
        help="put back what --backup DIR holds, of all runs or of the folder of one; the rest stays as it is",
    )
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
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words and words[0] in SUBCOMMANDS:
        module, _, function = SUBCOMMANDS[words[0]].partition(":")
        return int(getattr(importlib.import_module(module), function)(words[1:]))
    parser = _parser()
    args = parser.parse_args(words)
    controllers = [Controller(name) for name in args.controller] if args.controller else list(Controller)
    components = args.component or list(COMPONENTS)
    wrong = _misused(args, words)
    if wrong:
        parser.error(wrong)
    if args.collect is not None:
        status = _collect(args)
    elif args.restore is not None:
        status = _restore(args)
    elif args.source is not None:
        status = _plan_from(args, controllers, components)
    elif args.check:
        status = _check(args, controllers, components)
    elif args.cleanup_config:
        status = run_cleanup_config(args, controllers=controllers, components=components)
    else:
        parser.print_help()
        status = 0
    return status


_SELECTION = frozenset({"--family", "--controller", "--component"})
# What may stand beside an option; how to report, and for how long to wait for a lock, always may.
_BESIDE = {
    "--collect": frozenset({"--netns", "--without-members"}),
    "--restore": frozenset({"--netns"}),
    "--from": _SELECTION | {"--cleanup-config", "--dry-run", "--check", "--remove-bridge", "--output script"},
    "--check": _SELECTION | {"--from", "--netns", "--root"},
}
# What an option cannot do without.
_NEEDS = {
    "--without-members": ("--collect", frozenset({"--collect"})),
    "--from": ("--dry-run or --check, as files cannot be cleaned", frozenset({"--dry-run", "--check"})),
}
# Those that say what is to be done.
_ACTIONS = frozenset({"--cleanup-config", "--check", "--collect", "--restore", "--from"})


def _misused(args: argparse.Namespace, words: Sequence[str]) -> str:
    """Return what is wrong with the options that stand together, "" if nothing is; `words` are as they were given."""
    given = {
        "--cleanup-config": args.cleanup_config,
        "--dry-run": args.cleanup_dry_run,
        "--check": args.check,
        "--collect": args.collect is not None,
        "--without-members": args.without_members,
        "--from": args.source is not None,
        "--restore": args.restore is not None,
        "--backup": args.cleanup_backup is not None,
        "--remove-bridge": args.cleanup_remove_bridge,
        "--undo-hairpin": args.cleanup_undo_hairpin,
        "--wait-gone": args.cleanup_wait_gone is not None,
        "--root": args.cleanup_root is not None,
        "--netns": args.cleanup_netns is not None,
        "--family": args.cleanup_family,
        "--controller": args.controller,
        "--component": args.component,
        "--output script": args.cleanup_output == "script",
    }
    there = {name for name, is_there in given.items() if is_there}
    for name, beside in _BESIDE.items():
        others = [other for other in given if other in there and other != name and other not in beside]
        if name in there and others:
            return f"argument {name}: it excludes {', '.join(others)}"
    for name, (what, needed) in _NEEDS.items():
        if name in there and not there & needed:
            return f"argument {name}: it goes with {what}"
    if words and not there & _ACTIONS:
        # How to report, too, says nothing to do.
        name = next((name for name in given if name in there), words[0].partition("=")[0])
        return f"argument {name}: it goes with --cleanup-config"
    return ""


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
    chosen = tuple(controllers)

    def run(component: str, stopped: Callable[[], int | None]) -> CleanupReport:
        return cleanup(
            component=component,
            controllers=chosen,
            families=_families(args),
            netns=args.cleanup_netns,
            dry_run=args.cleanup_dry_run,
            wait=args.cleanup_wait,
            remove_bridge=args.cleanup_remove_bridge,
            backup=args.cleanup_backup,
            undo_hairpin=args.cleanup_undo_hairpin,
            wait_gone=args.cleanup_wait_gone,
            root=args.cleanup_root,
            stopped=stopped,
        )

    if args.cleanup_dry_run and args.cleanup_backup is not None:
        return fail("a dry run removes nothing, so there is nothing for a backup")
    if args.cleanup_undo_hairpin and Controller.SERVICE_PROXY not in chosen:
        return fail("hairpin mode is the service proxy's, which is not selected")
    if args.cleanup_dry_run and args.cleanup_wait_gone is not None:
        return fail("a dry run changes nothing, so there is nobody to wait for; it names who runs")
    if args.cleanup_output == "script" and not args.cleanup_dry_run:
        return fail("a script is of a plan: it goes with a dry run")
    return _run_each(run, args, components)


def _check(args: argparse.Namespace, controllers: Iterable[Controller], components: Iterable[str]) -> int:
    def run(component: str, stopped: Callable[[], int | None]) -> CleanupReport:
        return check(
            component=component,
            controllers=controllers,
            families=_families(args),
            netns=args.cleanup_netns,
            root=args.cleanup_root,
            stopped=stopped,
        )

    return _run_each(run, args, components)


def _plan_from(args: argparse.Namespace, controllers: Iterable[Controller], components: Iterable[str]) -> int:
    def run(component: str, stopped: Callable[[], int | None]) -> CleanupReport:
        return plan_from(
            args.source,
            component=component,
            controllers=controllers,
            families=_families(args),
            remove_bridge=args.cleanup_remove_bridge,
            check=args.check,
            stopped=stopped,
        )

    return _run_each(run, args, components)


def _collect(args: argparse.Namespace) -> int:
    try:
        with noted_signals() as stopped:
            members = not args.without_members
            report = collect(args.collect, netns=args.cleanup_netns, members=members, stopped=stopped)
    except (NamespaceError, BundleError) as error:
        return fail(error)
    _print(report, args)
    return report.exit_code


def _restore(args: argparse.Namespace) -> int:
    try:
        with noted_signals() as stopped:
            report = restore(args.restore, netns=args.cleanup_netns, wait=args.cleanup_wait, stopped=stopped)
    except (NamespaceError, BackupError) as error:
        return fail(error)
    _print(report, args)
    return report.exit_code


def fail(error: NamespaceError | RootError | BackupError | BundleError | KernelError | str) -> int:
    """Print an error and return the exit status for it: 2, or 1 where a right is missing or the kernel refused."""
    print_error(str(error.strerror if isinstance(error, KernelError) else error))
    if isinstance(error, KernelError):
        return 1
    return 1 if isinstance(error, NamespaceError) and error.errno in {errno.EPERM, errno.EACCES} else 2


def print_error(text: str) -> None:
    """Print a line of what is wrong to standard error, if there is somebody who reads it."""
    with while_read(sys.stderr):
        print(f"firewall-cleanup: {escape(text)}", file=sys.stderr)


def _families(args: argparse.Namespace) -> list[Family] | None:
    return [Family(name) for name in args.cleanup_family] if args.cleanup_family else None


def _run_each(
    run: Callable[[str, Callable[[], int | None]], CleanupReport], args: argparse.Namespace, components: Iterable[str]
) -> int:
    """Run it for each component, print each report, and return the exit status of all."""
    status = 0
    planned = []
    with noted_signals() as stopped:
        for component in dict.fromkeys(components):
            try:
                report = run(component, stopped)
            except (NamespaceError, RootError, BundleError) as error:
                return fail(error)
            if args.cleanup_output == "script":
                planned.append(report)
            else:
                _print(report, args)
            status = max(status, report.exit_code)
    if planned:
        _print_script(planned, args)
    return status


def _print(report: CleanupReport | RestoreReport | Collected, args: argparse.Namespace) -> None:
    with while_read():
        if args.cleanup_output == "json":
            import json  # noqa: PLC0415 - most programs that import this print none

            print(json.dumps(report.to_dict(), indent=1))
        else:
            print_text(_lines(report, verbose=args.cleanup_verbose))


def _print_script(reports: Iterable[CleanupReport], args: argparse.Namespace) -> None:
    from .script import script  # noqa: PLC0415 - most runs need none

    with while_read():
        # As bytes: a comment of a rule may be in no encoding.
        sys.stdout.buffer.write(script(reports, wait=args.cleanup_wait).encode("utf-8", "surrogateescape"))


@contextmanager
def while_read(stream: TextIO | None = None) -> Iterator[None]:
    """Print what is inside to a stream (standard output), for as long as there is somebody who reads it."""
    place = sys.stdout if stream is None else stream
    try:
        yield
        place.flush()
    except BrokenPipeError:
        # The reader has gone; the work is done and its status still counts.
        os.dup2(os.open(os.devnull, os.O_WRONLY), place.fileno())


def _lines(report: CleanupReport | RestoreReport | Collected, *, verbose: bool) -> Iterator[Line]:
    # Who asks for JSON, or only imports the package, does not wait for these.
    if isinstance(report, CleanupReport):
        from .text import report_lines  # noqa: PLC0415

        return report_lines(report, verbose=verbose)
    from .restore_report import RestoreReport  # noqa: PLC0415

    if isinstance(report, RestoreReport):
        from .restore_text import restore_lines  # noqa: PLC0415

        return restore_lines(report, verbose=verbose)
    from .collect_text import collect_lines  # noqa: PLC0415

    return collect_lines(report, verbose=verbose)


def print_text(lines: Iterable[Line]) -> None:
    """Print lines, on a terminal in colour."""
    if sys.stdout.isatty():
        from .terminal import show  # noqa: PLC0415 - its import takes longer than most runs, and only a terminal needs it

        show(lines)
    else:
        for line in lines:
            print(line.plain)


@contextmanager
def noted_signals(then: Callable[[], object] | None = None) -> Iterator[Callable[[], int | None]]:
    """Note SIGINT and SIGTERM for as long as the block runs; a second signal acts as it would have before.

    What is given tells the number of the first, and `then` is called when it comes.
    """
    received: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def note(number: int, _frame: types.FrameType | None) -> None:
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)
        if then is not None:
            then()

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) or signal.SIG_DFL for number in _SIGNALS}
        for number in _SIGNALS:
            signal.signal(number, note)
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
