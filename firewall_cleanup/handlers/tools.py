"""The commands of others that a backup and its restoring need, run in a network namespace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ToolError
from ..model import Backend, Family, FouPort, NativeTable, TableKey
from ..undo.ip_text import IpState
from ..undo.rule_text import TableText, read_save
from ..undo.saved import IP_FILES, sets_of
from ._namespace import Namespace
from .probe import find_program

__all__ = ["Tools"]

_SECONDS = 120
_T = TypeVar("_T")
# What `-v -S` prints: counters stand before the target.
_COUNTED = re.compile(r"(-A .*) -c (\d+) (\d+)((?: -[jg] .*)?)", re.DOTALL)
# One by one up to here; from there on, all sets at once are faster.
_FEW_SETS = 16


class Tools:
    """Runs commands in a network namespace. All methods raise ToolError if one is missing or fails."""

    def __init__(self, namespace: Namespace, *, keep_open: Sequence[int] = ()) -> None:
        """Choose the namespace; commands get the descriptors `keep_open`, and hold what locks they have."""
        self._namespace, self._keep_open = namespace, tuple(keep_open)

    @staticmethod
    def find(name: str) -> str | None:
        """Return where a command is, None if it is not installed."""
        return find_program(name)

    def _run(self, words: Sequence[str], text: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        path = self.find(words[0])
        if path is None:
            raise ToolError(f"the command {words[0]} is not installed")
        try:
            return self._namespace.run(
                subprocess.run,
                [path, *words[1:]],
                input=text,
                stdin=subprocess.DEVNULL if text is None else None,
                capture_output=True,
                encoding="utf-8",
                errors="surrogateescape",
                timeout=_SECONDS,
                check=False,
                pass_fds=self._keep_open,
                env={**os.environ, "LC_ALL": "C", **more},
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ToolError(f"{words[0]}: {error}") from error

    def run(self, words: Sequence[str], text: str | None = None, **more: str) -> str:
        """Run a command with that input and return what it printed; `more` are environment variables."""
        done = self._run(words, text, **more)
        if done.returncode:
            said = [line for line in done.stderr.split("\n") if line.strip()]
            raise ToolError(f"{' '.join(words[:3])}: {'; '.join(said) or f'exit status {done.returncode}'}")
        return done.stdout

    # what is there

    def tables(self, family: Family, backend: Backend) -> dict[str, TableText]:
        """Return the iptables tables that exist and can be listed, by name."""
        words = [_iptables(family, backend, "save"), "-c"]
        # That of nft fails for a table with expressions that are not its own, and lists the others.
        text = self.run(words) if backend is Backend.LEGACY else self._run(words).stdout
        return _understood(words, read_save, text)

    def chain(self, key: TableKey, chain: str) -> tuple[str, ...] | None:
        """Return the rules of an existing chain of nf_tables, in the form of `tables`; None if it cannot be listed.

        This works for chains of a table of which others cannot be listed.
        """
        words = [_iptables(key.family, key.backend, ""), "-t", key.name, "-v", "-S", chain]
        done = self._run(words)
        lines = [line for line in done.stdout.split("\n") if line.startswith(f"-A {chain} ")]
        counted = [_COUNTED.fullmatch(line) for line in lines]
        if done.returncode or not all(counted):
            return None
        return tuple(f"[{one[2]}:{one[3]}] {one[1]}{one[4]}" for one in counted if one is not None)

    def sets(self, names: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return those of the sets that exist, each as the line that creates it and one for each member."""
        if len(names) > _FEW_SETS:
            found = _understood(["ipset", "save"], sets_of, self.run(["ipset", "save"]))
        else:
            found = {}
            for name in names:
                done = self._run(["ipset", "save", name])
                if not done.returncode:
                    found.update(_understood(["ipset", "save", name], sets_of, done.stdout))
                elif "does not exist" not in done.stderr:
                    raise ToolError(f"ipset save {name}: {done.stderr.strip()}")
        return {name: lines for name, lines in found.items() if name in names}

    def natives(self, tables: Iterable[NativeTable]) -> dict[NativeTable, str]:
        """Return those of the tables of nf_tables that exist, as `nft` lists them."""
        result = {}
        for table in tables:
            done = self._run(["nft", "list", "table", table.family, table.name])
            if not done.returncode:
                result[table] = done.stdout
            elif "No such file" not in done.stderr:
                raise ToolError(f"nft list table {table.family} {table.name}: {done.stderr.strip()}")
        return result

    def ip(self, families: Iterable[Family], ports: Iterable[FouPort] = ()) -> IpState:
        """Return links, addresses, routes and policy rules."""
        flags = {Family.IPV4: "-4", Family.IPV6: "-6"}
        links = self._json("-d", "addr", "show")
        routes = {family: self._json("-N", flags[family], "route", "show", "table", "all") for family in families}
        rules = {family: self._json("-N", flags[family], "rule", "show") for family in families}

        def state(_text: str) -> IpState:
            found = IpState(links, routes, rules, ports)
            found.lines()  # all of it has a form that is known
            return found

        return _understood(["ip", "-j"], state, "")

    def _json(self, *words: str) -> list[dict[str, Any]]:
        words = ("ip", "-j", *words)
        found = _understood(words, json.loads, self.run(words).strip() or "[]")
        return [one for one in found if one]

    # putting it back

    def restore_table(self, key: TableKey, text: str) -> None:
        """Put rules into a table, beside what is there; of a legacy one the caller holds the lock."""
        words = [_iptables(key.family, key.backend, "restore"), "--noflush", "--counters"]
        if key.backend is Backend.NFT:
            self.run(words, text)
            return
        with tempfile.TemporaryDirectory(prefix="xtables-") as folder:
            # It would wait for ever for the lock that we hold.
            self.run(words, text, XTABLES_LOCKFILE=str(Path(folder, "lock")))

    def restore_sets(self, text: str) -> None:
        """Make sets and add members."""
        self.run(["ipset", "restore"], text)

    def restore_natives(self, text: str) -> None:
        """Make tables of nf_tables, all or none."""
        self.run(["nft", "-f", "-"], text)

    def restore_lines(self, name: str, lines: Sequence[str]) -> None:
        """Do the lines of a file for `ip -batch`, on after an error."""
        words = ["ip", *filter(None, [IP_FILES[name]]), "-force", "-batch", "-"]
        self.run(words, "".join(f"{line}\n" for line in lines))


def _understood(words: Sequence[str], read: Callable[[str], _T], text: str) -> _T:
    """Return what a command printed, read. Raises ToolError if it is not of the form that is known."""
    try:
        return read(text)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ToolError(f"{' '.join(words[:3])}: what it printed cannot be understood: {error}") from error


def _iptables(family: Family, backend: Backend, action: str) -> str:
    name = f"{'iptables' if family is Family.IPV4 else 'ip6tables'}-{backend.value}"
    return f"{name}-{action}" if action else name
