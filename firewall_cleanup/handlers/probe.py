"""What the running kernel has, found out without loading anything."""

from __future__ import annotations

import os
from pathlib import Path

from ..model import Family

__all__ = ["find_program", "has_ipv6", "is_loaded", "legacy_tables"]

# A symbol that is there whenever the subsystem is built in, for machines without modules.builtin (containers).
_SYMBOLS = {
    "nf_tables": "nf_tables_newtable",
    "ip_set": "ip_set_create",
    "nfnetlink": "nfnetlink_rcv",
    "ip_vs": "ip_vs_conn_put",
    "fou": "__fou_build_header",
}


def is_loaded(module: str, *, root: Path = Path("/")) -> bool:
    """Tell whether a subsystem (`nf_tables`, `ip_set` …) is in the kernel now, as a module or built in.

    Opening its socket would load the module, so this looks at files alone: no /proc/modules means a kernel without
    modules, where asking is harmless and the answer is True.
    """
    if not (root / "proc/modules").exists() or (root / "sys/module" / module).exists():
        return True
    builtin = root / "lib/modules" / os.uname().release / "modules.builtin"
    try:
        names = {Path(line).name.removesuffix(".ko") for line in builtin.read_text().split()}
    except OSError:
        return _has_symbol(_SYMBOLS.get(module), root)
    return module in names


def _has_symbol(symbol: str | None, root: Path) -> bool:
    try:
        with (root / "proc/kallsyms").open() as symbols:
            return symbol is not None and any(line.split()[2] == symbol for line in symbols)
    except OSError:
        return False


def has_ipv6(*, root: Path = Path("/")) -> bool:
    """Tell whether the kernel has IPv6 at all (it has none with `ipv6.disable=1`)."""
    return (root / "proc/thread-self/net/if_inet6").exists()


def legacy_tables(family: Family) -> tuple[str, ...]:
    """Return the names of the legacy tables of the calling thread's network namespace.

    Empty if the kernel has no legacy iptables for the family. Raises OSError if the list may not be read.
    """
    name = "ip_tables_names" if family is Family.IPV4 else "ip6_tables_names"
    try:
        return tuple(sorted(Path("/proc/thread-self/net", name).read_text().split()))
    except FileNotFoundError:
        return ()


def find_program(name: str) -> str | None:
    """Return where a command is, also where not everybody's PATH leads; None if it is not installed."""
    import shutil  # noqa: PLC0415 - it takes longer to import than most runs, which start no command

    return shutil.which(name, path=":".join(filter(None, [os.environ.get("PATH"), "/usr/sbin", "/sbin"])))
