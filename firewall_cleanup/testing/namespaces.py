"""A throw-away network namespace to try a cleanup in, and its netfilter state as text to compare.

    from firewall_cleanup import Backend, cleanup_all
    from firewall_cleanup.testing.namespaces import Sandbox
    from firewall_cleanup.testing.node import Node

    with Sandbox() as sandbox:
        before = sandbox.state()
        sandbox.load(Node(), Backend.NFT)
        assert cleanup_all(netns=sandbox.path).clean
        assert sandbox.state().sets == before.sets

The namespace belongs to a process that ends when the sandbox is closed and also when the test is killed, and goes
with it: nothing is mounted, no name is given, and the machine's own namespace is never entered with a command.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import attrs

from ..model import Backend, Family
from ..rules import logical_lines

__all__ = ["LoadableNode", "NotAvailable", "Sandbox", "State"]

_PREFIX = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
_NAMES = {Family.IPV4: "ip_tables_names", Family.IPV6: "ip6_tables_names"}
_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
# nf_tables tables that iptables-nft manages and `iptables-nft-save` shows.
_IPTABLES_TABLES = {
    f"{family} {name}" for family in ("ip", "ip6") for name in ("filter", "mangle", "nat", "raw", "security")
}
_SECONDS = 120


class NotAvailable(RuntimeError):
    """The process may not make a network namespace, or a tool is missing; the text says which."""


class LoadableNode(Protocol):
    """What `Sandbox.load` asks of a node; `testing.node.Node` is one."""

    def iptables_save(self, family: str, /) -> str:
        """Return the rules of "ipv4" or "ipv6" as `iptables-save` prints them."""

    def ipsets(self) -> str:
        """Return the sets of both families as `ipset save` prints them."""

    def nft_tables(self) -> str:
        """Return native tables for `nft -f`; may be empty."""


@attrs.frozen
class State:
    """The netfilter state of a namespace as the tools print it, counters included, without dates.

    Two states are equal if nothing that a packet could meet differs: the order of rules, their counters, the
    policies of built-in chains with theirs, the members of sets, native tables, and which legacy tables exist.
    """

    rules: Mapping[str, str]
    """What each of `iptables-nft-save`, `ip6tables-nft-save`, `iptables-legacy-save` … prints."""

    sets: str
    """`ipset save`, each set with its members in alphabetical order, without the seeds of hashes."""

    native: str
    """Every nf_tables table that is not of iptables."""

    legacy_tables: Mapping[str, tuple[str, ...]]
    """The names in /proc/net/ip_tables_names and ip6_tables_names, by the name of the file."""

    def lines(self, backend: Backend, family: Family = Family.IPV4) -> list[str]:
        """Return the lines of one backend and family."""
        return self.rules[_tool(family, backend, "save")].splitlines()


class Sandbox:
    """A network namespace of its own, made by entering the context and gone with it.

    Root gets a network namespace. Anybody else gets one inside a user namespace in which he is root; `path` can then
    be entered by commands only (`run`), not by the calling process. Where the machine allows neither, or a tool is
    missing, `NotAvailable` is raised.
    """

    def __init__(self, *, tools: str | os.PathLike[str] | None = None, rootless: bool | None = None) -> None:
        """Choose what to make.

        Args:
            tools: a folder of iptables commands to use instead of the installed ones.
            rootless: whether to make it inside a user namespace; by default unless this process is root.

        """
        self.rootless = os.geteuid() != 0 if rootless is None else rootless
        self._path = f"{os.fspath(tools)}:{_PATH}" if tools is not None else f"{os.environ.get('PATH', '')}:{_PATH}"
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        for tool in ("unshare", "nsenter", "nft", "ipset"):
            if shutil.which(tool, path=self._path) is None:
                raise NotAvailable(f"the command {tool} is not installed")
        # In two steps, so that the files of /proc/net belong to the root of the user namespace.
        unshare = ["unshare", "-r", "unshare", "-n"] if self.rootless else ["unshare", "-n"]
        self._folder = tempfile.TemporaryDirectory(prefix="sandbox-")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the words are ours
                [*unshare, "sh", "-c", "echo ready && exec cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PATH": self._path},
            )
            self._wait_for(self._process)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the namespace; again is no error. A process that is still inside keeps it until it ends."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _wait_for(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is None or process.stderr is None:  # pragma: no cover - both are pipes
            raise AssertionError
        if process.stdout.readline() != "ready\n":
            said = process.stderr.read().strip()
            raise NotAvailable(f"no network namespace can be made: {said or 'unshare failed'}")
        if Path(self.path).stat().st_ino == Path("/proc/thread-self/ns/net").stat().st_ino:
            raise NotAvailable("unshare made no network namespace")

    @property
    def pid(self) -> int:
        """The process that holds the namespace."""
        if self._process is None:
            raise ValueError("the sandbox is not open")
        return self._process.pid

    @property
    def path(self) -> str:
        """The namespace as a path, as `Handlers.open(netns=…)` and `--netns` take it."""
        return f"/proc/{self.pid}/ns/net"

    @property
    def folder(self) -> Path:
        """A folder for files, gone with the sandbox."""
        if self._folder is None:
            raise ValueError("the sandbox is not open")
        return Path(self._folder.name)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of commands inside: a lock file of its own, unless XTABLES_LOCKFILE names one already."""
        return {"XTABLES_LOCKFILE": str(self.folder / "xtables.lock"), **os.environ, "PATH": self._path}

    def command(self, *words: str) -> list[str]:
        """Return the words of a command that runs inside, for `subprocess.Popen(…, env=sandbox.environment)`."""
        user = ["--user", "--preserve-credentials"] if self.rootless else []
        return ["nsenter", f"--target={self.pid}", *user, "--net", "--", *words]

    def run(
        self,
        command: Sequence[str] | str,
        *,
        input: str | None = None,  # noqa: A002 - as in subprocess.run
        check: bool = True,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside, by its words or as a line for the shell, and return what it printed.

        `env` adds variables; other options are those of `subprocess.run`. Raises CalledProcessError, with what the
        command said on standard error as a note, unless `check` is false.
        """
        words = ["sh", "-c", command] if isinstance(command, str) else command
        try:
            return subprocess.run(  # noqa: S603 - a test runs what it says
                self.command(*words),
                input=input,
                stdin=subprocess.DEVNULL if input is None else None,
                capture_output=True,
                text=True,
                errors="surrogateescape",
                check=check,
                env={**self.environment, **(env or {})},
                **{"timeout": _SECONDS, **options},
            )
        except subprocess.CalledProcessError as error:
            error.add_note(error.stderr)
            raise

    def load_rules(self, text: str, family: Family, backend: Backend) -> None:
        """Load `iptables-save` text beside what is there, counters included."""
        self.run([_tool(family, backend, "restore"), "--noflush", "--counters"], input=text)

    def load_sets(self, text: str) -> None:
        """Load `ipset save` text."""
        if text:
            self.run(["ipset", "restore"], input=text)

    def load_tables(self, text: str) -> None:
        """Load native tables, as `nft list ruleset` prints them."""
        if text:
            self.run(["nft", "-f", "-"], input=text)

    def load(self, node: LoadableNode, backend: Backend, families: Iterable[Family] = tuple(Family)) -> None:
        """Load a node: its sets, its native tables, and the rules of the given families into one backend."""
        self.load_sets(node.ipsets())
        self.load_tables(node.nft_tables())
        for family in families:
            self.load_rules(node.iptables_save(family.value), family, backend)

    def state(self) -> State:
        """Read the state. Nothing is changed, and no table is made, by reading it."""
        sections = self.run(_STATE).stdout.split(_MARK)
        rules = dict(zip(_SAVES, map(_without_dates, sections), strict=False))
        sets, tables, *names = sections[len(_SAVES) :]
        wanted = [line.removeprefix("table ") for line in tables.splitlines()]
        native = [self.run(f"nft list table {name}").stdout for name in wanted if name not in _IPTABLES_TABLES]
        return State(
            rules=rules,
            sets=_sorted_sets(sets),
            native="".join(native),
            legacy_tables={
                name: tuple(sorted(text.split())) for name, text in zip(_NAMES.values(), names, strict=True)
            },
        )


def _tool(family: Family, backend: Backend, action: str) -> str:
    return f"{_PREFIX[family]}-{backend.value}-{action}"


_MARK = "\n=====\n"
_SAVES = tuple(_tool(family, backend, "save") for backend in Backend for family in Family)
# iptables-nft-save fails for a table with expressions that are not its own; what it says is part of the state.
_STATE = "; printf '\\n=====\\n'; ".join(
    (
        *(f"{save} -c || :" for save in _SAVES),
        "ipset save || exit",
        "nft list tables || exit",
        *(f"cat /proc/self/net/{name} 2>/dev/null || :" for name in _NAMES.values()),
    )
)


def _without_dates(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(("# Generated by ", "# Completed on ")))


def _sorted_sets(text: str) -> str:
    plain = re.sub(r"^(create .*) initval \S+", r"\1", text, flags=re.MULTILINE)
    lines = [line for _number, line in logical_lines(plain)]
    order = {line.split()[1]: i for i, line in enumerate(sorted(ln for ln in lines if ln.startswith("create ")))}
    lines.sort(key=lambda line: (order[line.split()[1]], not line.startswith("create "), line))
    return "".join(f"{line}\n" for line in lines)
