"""A sidecar that keeps an address of the node for the proxy beside it, and takes it away when it is told to stop.

    python examples/service_address_sidecar.py apiserver-proxy 203.0.113.10 2001:db8::10

The proxy may bind to the address once a line says "ready" and nothing else; one that begins with "failed: " says what
is not as wanted. SIGTERM undoes all that was made.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from firewall_cleanup.errors import KernelError
from firewall_cleanup.service_address import AddressStatus, ServiceAddressReport, Stop, run_service_address

USABLE = (AddressStatus.ADDED, AddressStatus.PRESENT, AddressStatus.REPAIRED)


def tell(report: ServiceAddressReport) -> None:
    """Print what changed, and whether all is as wanted or what is not."""
    for outcome in report.addresses:
        print(outcome.address, outcome.status.value, *outcome.changes, *outcome.notes, flush=True)
    if not report.ok:
        print("failed: " + "; ".join(report.problems), flush=True)
    elif all(outcome.status in USABLE for outcome in report.addresses):  # at the end they are not
        print("ready", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Keep the addresses until SIGINT or SIGTERM; return 0 if all was undone."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if len(words) < 2:
        print("usage: service_address_sidecar.py DEVICE ADDRESS...", file=sys.stderr)
        return 2
    device, *addresses = words
    with Stop() as stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        try:
            return run_service_address(addresses, device, stop, cleanup=True, on_report=tell).exit_code
        except KernelError as error:
            print(error.strerror, file=sys.stderr)
            return 1
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2


if __name__ == "__main__":
    raise SystemExit(main())
