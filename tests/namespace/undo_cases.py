"""Restoring a backup, and whether all is as it was."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
from killer import backup

from firewall_cleanup import Restored, RestoreReport, restore
from firewall_cleanup.testing.namespaces import Sandbox, State

__all__ = ["put_back", "runs", "same", "unordered", "wrong"]


def put_back(sandbox: Sandbox, directory: object = None) -> RestoreReport:
    return restore(str(directory or sandbox.folder / "backup"), netns=sandbox.path, wait=20)


def wrong(report: RestoreReport) -> list[str]:
    """What a report says is wrong, to be compared with the empty list."""
    there = {Restored.RESTORED, Restored.THERE}
    return [
        f"{o.kind.value} {o.name} {o.text}: {o.status.value} {o.reason}"
        for o in report.outcomes
        if o.status not in there
    ] + list(report.problems)


def unordered(state: State) -> State:
    """The state without the order of tables of nf_tables, which no packet can tell."""
    return attrs.evolve(state, native="".join(sorted(re.split(r"^(?=table )", state.native, flags=re.MULTILINE))))


def same(sandbox: Sandbox, before: State) -> bool:
    """Whether the state is what it was; new tables of nf_tables come after the old ones, which no packet can tell."""

    assert unordered(sandbox.state()) == unordered(before)
    return True


def runs(sandbox: Sandbox) -> list[Path]:
    return sorted(backup(sandbox).iterdir())
