"""What the commands on a cluster have in common: connecting, which exposure is meant, printing a report."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs

from ..cli import while_read
from ..words import escape
from .capabilities import Apis
from .client import Client
from .fields import DNS_SUBDOMAIN, ManifestError, shown
from .parsing import DEFAULT_NAMESPACE, read_manifest
from .values import Exposure

__all__ = ["connected", "print_report", "which_exposure"]


@contextmanager
def connected(args: argparse.Namespace) -> Iterator[tuple[Client, Apis]]:
    """Connect to an API server that has finished its start."""
    client = Client.open(args.kubeconfig, context=args.context)
    try:
        client.check_ready()
        apis = Apis.of_discovery(client.served(), args.cilium_version)
        yield client, attrs.evolve(apis, namespace=args.cilium_namespace)
    finally:
        client.close()


def which_exposure(args: argparse.Namespace) -> tuple[str, str, Exposure | None]:
    """Return which exposure is meant: its name, its namespace, and its manifest if there is one."""
    if (args.file is None) == (args.name is None):
        raise ManifestError("", "give the NAME of an exposure, or --file FILE")
    if args.file is not None:
        exposure = read_manifest(args.file, args.namespace)
        return exposure.name, exposure.namespace, exposure
    if not DNS_SUBDOMAIN.fullmatch(args.name):
        raise ManifestError("NAME", f"{shown(args.name)} is no name of an exposure")
    return args.name, args.namespace or DEFAULT_NAMESPACE, None


def print_report(report: dict[str, Any], lines: Sequence[str], args: argparse.Namespace) -> None:
    """Print a report in the format that was asked for."""
    with while_read():
        if args.output == "json":
            print(json.dumps(report, indent=1))
        else:
            for line in lines:
                print(escape(line))
