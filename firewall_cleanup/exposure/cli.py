"""`firewall-cleanup exposure …`: render, apply, status, delete, run, check."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..cli import while_read
from ..errors import FirewallCleanupError
from ..words import escape
from .capabilities import LATEST_KNOWN, Apis, CiliumVersion, UnsupportedError, limits_of
from .fields import DNS_LABEL, ManifestError, shown
from .interrupt import Stopped, stoppable

# No __all__: the command's `main` is that of firewall_cleanup.cli.

_PROGRAM = "firewall-cleanup exposure"
_MISSING = "the extra is not installed: pip install 'firewall-cleanup[kubernetes]'"


def _version(text: str) -> CiliumVersion:
    try:
        return CiliumVersion.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    read.__name__ = f"number between {low:g} and {high:g}"
    return read


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 100:
        raise ValueError(text)
    return value


_count.__name__ = "number between 1 and 100"
_port.__name__ = "number of a port"  # argparse names the type in its error


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog=_PROGRAM,
        allow_abbrev=False,
        description="Expose the API server of a self-hosted cluster at a stable dual-stack address, through Cilium.",
        epilog="Exit status: 0 done, 1 not done or not well, 2 usage or a bad manifest, 128 + number after a signal.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, *, file: str = "", name_too: bool = False, cluster: bool = True) -> Any:
        added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if file:
            added.add_argument("-f", "--file", metavar="FILE", help=file)
        if name_too:
            added.add_argument("name", nargs="?", metavar="NAME", help="the exposure, if no FILE names it")
        if cluster:
            added.add_argument("--kubeconfig", metavar="FILE", help="default: the service account of this pod")
            added.add_argument("--context", metavar="NAME", help="default: the kubeconfig's current one")
        default = "that of the FILE, else kube-system" if file else "kube-system"
        added.add_argument("-n", "--namespace", help=f"of the exposure (default: {default})")
        added.add_argument(
            "--cilium-namespace", default="kube-system", metavar="NAMESPACE", help="default: kube-system"
        )
        if cluster:
            added.add_argument(
                "--cilium-version", type=_version, metavar="VERSION", help="the release in the cluster"
            )
        return added

    manifest = "the SelfHostedShootExposure, - for the standard input"
    render = command(
        "render",
        "Print the manifests of an exposure, or those that deploy the controller.",
        file=manifest,
        cluster=False,
    )
    render.add_argument(
        "--cilium-version",
        type=_version,
        metavar="VERSION",
        help=f"which release the manifests are for (default: {LATEST_KNOWN})",
    )
    render.add_argument("--controller", action="store_true", help="print what deploys the controller instead")
    render.add_argument("--image", help="with --controller: the image of firewall-cleanup")
    render.add_argument("--class", dest="class_name", help="with --controller: as in run")
    render.add_argument("--port", type=_port, help="with --controller: of the API server on localhost (default: 443)")
    render.add_argument(
        "--replicas", type=_count, metavar="NUMBER", help="with --controller: at most one a node (default: 2)"
    )
    _output(render, "yaml", "json")
    apply = command("apply", "Make the cluster as a manifest says, once, without the controller.", file=manifest)
    _wait(apply)
    _output(apply, "text", "json")
    status = command(
        "status", "Tell what there is of an exposure and what is wrong with it.", file=manifest, name_too=True
    )
    _output(status, "text", "json")
    delete = command(
        "delete", "Remove all objects of an exposure, and wait until they have gone.", file=manifest, name_too=True
    )
    _wait(delete)
    delete.add_argument(
        "--force",
        action="store_true",
        help="after the wait, remove the rest whatever does not go, and let the exposure itself go",
    )
    _output(delete, "text", "json")
    run = command("run", "Be the controller: keep every exposure of the namespace as it should be.")
    run.add_argument(
        "--class", dest="class_name", default="shoot", help="only exposures of this class (default: shoot)"
    )
    run.add_argument(
        "--resync",
        type=_number(1, 3600),
        default=30.0,
        metavar="SECONDS",
        help="the longest time between two passes (default: 30)",
    )
    run.add_argument("--health-address", default="127.0.0.1", metavar="ADDRESS", help="default: 127.0.0.1")
    run.add_argument("--health-port", type=_port, default=10369, metavar="PORT", help="default: 10369")
    run.add_argument(
        "--no-leader-election", action="store_true", help="work without the Lease; only one instance may run"
    )
    run.add_argument("--identity", metavar="NAME", help="in the Lease (default: host name and a random part)")
    check = command(
        "check",
        "Tell whether Cilium reaches the API server over an address that Cilium serves.",
        file=manifest,
        name_too=True,
    )
    check.add_argument(
        "--cilium",
        action="append",
        metavar="FILE",
        help="Cilium's objects or Helm values, instead of the cluster's; repeat for more",
    )
    check.add_argument(
        "--host", action="append", metavar="HOST", help="judge this host of the agent too; repeat for more"
    )
    check.add_argument(
        "--dns-name",
        action="append",
        metavar="NAME",
        help="a name that leads, or will lead, to the exposure; repeat for more",
    )
    check.add_argument(
        "--kubernetes-ip", action="append", metavar="ADDRESS", help="the kubernetes Service's ClusterIP, for files"
    )
    _output(check, "text", "json")
    return top


def _output(added: argparse.ArgumentParser, *formats: str) -> None:
    added.add_argument("--output", choices=formats, default=formats[0], help=f"default: {formats[0]}")


def _wait(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "--wait",
        type=_number(0, 86400),
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for it (default: 60)",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    args = parser().parse_args(arguments)
    try:
        with stoppable():
            _check_namespaces(args)
            if args.command == "render":
                status = _render(args)
            else:
                from . import checking, commands  # noqa: PLC0415 - they load the client, which render does without

                status = getattr(checking if args.command == "check" else commands, args.command)(args)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"yaml", "lightkube", "httpx2"}:
            return _wrong(f"{_MISSING} ({error.name} is missing)", 1)
        raise
    except Stopped as stopped:
        changes = args.command in {"apply", "delete"}
        return _wrong(f"stopped{'; run it again to go on' if changes else ''}", 128 + int(stopped.args[0]))
    except (FirewallCleanupError, OSError) as error:
        return _wrong(str(error), _code(error))
    return status


def _check_namespaces(args: argparse.Namespace) -> None:
    for option, given in (("--namespace", args.namespace), ("--cilium-namespace", args.cilium_namespace)):
        if given is not None and not DNS_LABEL.fullmatch(given):
            raise ManifestError(option, f"{shown(given)} is no name of a namespace")


def _code(error: BaseException) -> int:
    """What the person gave is wrong: 2; what is there does not allow it: 1."""
    return 2 if isinstance(error, ValueError) and not isinstance(error, UnsupportedError) else 1


def _wrong(text: str, status: int) -> int:
    print(f"{_PROGRAM}: {escape(text)}", file=sys.stderr)
    return status


def _render(args: argparse.Namespace) -> int:
    import yaml  # noqa: PLC0415 - of the extra

    from .builders import build  # noqa: PLC0415
    from .deploy import Deployment, controller_manifests  # noqa: PLC0415
    from .parsing import DEFAULT_NAMESPACE, read_manifest  # noqa: PLC0415

    if args.controller:
        if args.file is not None or not args.image:
            return _wrong("--controller: it goes with --image IMAGE, and without --file", 2)
        settings = Deployment(
            image=args.image,
            namespace=args.namespace or DEFAULT_NAMESPACE,
            cilium_namespace=args.cilium_namespace,
            class_name=args.class_name or "shoot",
            cilium=args.cilium_version,
            port=args.port or 443,
            replicas=args.replicas or 2,
        )
        manifests = controller_manifests(settings)
    else:
        if args.file is None or args.image or args.class_name or args.port or args.replicas:
            return _wrong("give --file FILE, or --controller with its options", 2)
        apis = Apis.of_version(args.cilium_version or LATEST_KNOWN)
        apis = Apis(apis.versions, apis.cilium, args.cilium_namespace)
        exposure = read_manifest(args.file, args.namespace)
        for finding in limits_of(exposure, apis):
            print(f"{_PROGRAM}: {escape(str(finding))}", file=sys.stderr)
        if any(finding.error for finding in limits_of(exposure, apis)):
            return 1
        manifests = build(exposure, apis)
    with while_read():
        if args.output == "json":
            print(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=1))
        else:
            print(yaml.dump_all(manifests, Dumper=_dumper(yaml), sort_keys=False, explicit_start=True), end="")
    return 0


def _dumper(yaml: Any) -> Any:
    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Without anchors: what is used twice is written twice, as people do."""

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
            return True

    return Dumper
