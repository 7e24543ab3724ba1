"""Who writes: processes of a component that run now, and who changed nf_tables behind our back. Values only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import attrs

from .model import Controller

__all__ = ["Commit", "Commits", "Process", "Processes", "Program", "Writer", "Writers"]

# strconv.ParseBool of Go, by which its flags are read.
_FALSE = frozenset("0 f F false FALSE False".split())


@attrs.frozen
class Process:
    """A process as /proc shows it.

    `comm` is its name, cut to 15 bytes by the kernel; `arguments` its command line, which a process may rewrite;
    `executable` the path of its program, "" if that may not be read. `here` tells whether it is in the network
    namespace that is cleaned; None if that could not be found out.
    """

    pid: int
    comm: str
    arguments: tuple[str, ...] = ()
    executable: str = ""
    here: bool | None = True

    @property
    def command(self) -> str:
        """The command line in one piece, or the name where there is none."""
        return " ".join(self.arguments).strip() or self.comm


@attrs.frozen
class Processes:
    """What /proc shows: the folder that was looked at, the processes asked for, what could not be seen of others."""

    proc: str = "/proc"
    found: tuple[Process, ...] = ()
    unseen: tuple[str, ...] = ()


@attrs.frozen
class Program:
    """A program that writes a component's state for as long as it runs.

    Attributes:
        name: its base name; a process has it as that of its executable, as its first argument, or as its `comm`.
        controllers: those in it, each with the option that switches it off, "" if there is none: `--run-x` (a flag
            that is true by default), or `--disable-x`.
        commands: the first argument must be one of these, if there are any; `name-command` as `comm` says the same.
        passing: options with which it does not stay.
        doubt: what its process does not show, for the person who reads that it runs.

    """

    name: str
    controllers: Mapping[Controller, str]
    commands: frozenset[str] = frozenset()
    passing: frozenset[str] = frozenset()
    doubt: str = ""

    def match(self, process: Process, controllers: Collection[Controller]) -> Writer | None:
        """Return the process as a writer of some controllers' state, None if it is none."""
        # A process that sets its title has it as one argument, with what is left of the old ones behind.
        words = process.command.split() if process.arguments else []
        evidence = self._evidence(process, words)
        if evidence is None:
            return None
        options = _options(words[1:])
        active = [c for c, option in self.controllers.items() if c in controllers and _is_on(option, options)]
        if not active or not self.passing.isdisjoint(options):
            return None
        # Not the whole command line: it may have passwords in it (--peer-router-passwords, --token).
        program = process.executable or (words[0] if words else process.comm)
        return Writer(process.pid, self.name, program, evidence, process.here, self.doubt)

    def _evidence(self, process: Process, words: list[str]) -> str | None:
        evidence = None
        if _base(process.executable.removesuffix(" (deleted)")) == self.name:
            evidence = "executable"
        elif words and self.name in {_base(words[0]), _base(process.arguments[0])}:
            evidence = "argument"
        elif process.comm == self.name[:15]:
            evidence = "comm"
        if not self.commands:
            return evidence
        if process.comm in {f"{self.name}-{command}"[:15] for command in self.commands}:
            return evidence or "comm"
        return evidence if len(words) > 1 and words[1] in self.commands else None


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _options(words: list[str]) -> dict[str, str]:
    found = {}
    for word in words:
        if word.startswith("-"):
            flag, _, value = word.partition("=")
            found["--" + flag.lstrip("-")] = value
    return found


def _is_on(option: str, options: Mapping[str, str]) -> bool:
    """Tell whether a controller is on that this option switches."""
    if option.startswith("--disable-"):
        return option not in options or options[option] in _FALSE
    return options.get(option, "") not in _FALSE


@attrs.frozen
class Writer:
    """A process that writes the component's state.

    `program` is the path of its executable, or else its first argument; `evidence` says by what it is known:
    `executable`, `argument` or `comm`. `here` is that of the process; `doubt` is what its process does not show.
    """

    pid: int
    name: str
    program: str
    evidence: str
    here: bool | None = True
    doubt: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the writer as JSON has it."""
        return {
            "pid": self.pid,
            "name": self.name,
            "program": self.program,
            "evidence": self.evidence,
            "same_netns": self.here,
            "doubt": self.doubt or None,
        }


@attrs.frozen
class Commit:
    """A change of nf_tables: its generation, and the process that made it.

    The kernel gives the number of the process in the machine's first pid namespace, and its `comm`.
    """

    generation: int
    pid: int
    name: str

    def to_dict(self) -> dict[str, Any]:
        """Return the commit as JSON has it."""
        return {"generation": self.generation, "pid": self.pid, "name": self.name}


@attrs.frozen
class Commits:
    """The commits that were seen, and whether some were missed because there were too many."""

    seen: tuple[Commit, ...] = ()
    missed: bool = False


@attrs.frozen
class Writers:
    """Who writes the component's state, as far as it could be seen.

    `running` are processes of the component, `unseen` what could not be looked at. `commits` are the changes that
    others made to nf_tables after ours, `missed` tells that there were more.
    """

    proc: str = "/proc"
    running: tuple[Writer, ...] = ()
    unseen: tuple[str, ...] = ()
    commits: tuple[Commit, ...] = ()
    missed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "proc": self.proc,
            "running": [writer.to_dict() for writer in self.running],
            "unseen": list(self.unseen),
            "commits": [commit.to_dict() for commit in self.commits],
            "missed": self.missed,
        }
