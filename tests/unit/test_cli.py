"""The command's options: what none of them can do alone."""

from __future__ import annotations

import argparse

import pytest

from firewall_cleanup.cli import _ACTIONS, _parser, main

VALUES = {"family": "ipv4", "controller": "routing", "component": "kube-router", "output": "script"}


def options() -> list[list[str]]:
    """Each option that says nothing to do, by each of its names, with a value if it needs one."""
    found = []
    for action in _parser()._actions:
        if not _ACTIONS.isdisjoint(action.option_strings) or action.dest in {"help", "version"}:
            continue
        needs = action.nargs is None and not isinstance(action, argparse._StoreTrueAction)
        value = [VALUES.get(action.dest.removeprefix("cleanup_"), "3")] if needs else []
        found += [[name, *value] for name in action.option_strings]
    return found


@pytest.mark.parametrize(
    "words",
    [*options(), ["--output", "json"], ["--wait=3"], ["-v", "--output=text"], ["--dry-run", "--family", "ipv6"]],
    ids=" ".join,
)
def test_an_option_that_says_nothing_to_do_is_wrong_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be taken for a run that succeeded."""
    with pytest.raises(SystemExit) as stop:
        main(words)
    said = capsys.readouterr()
    assert (stop.value.code, said.out) == (2, "")
    what = "--collect" if words == ["--without-members"] else "--cleanup-config"
    assert said.err.splitlines()[-1].endswith(f": it goes with {what}")
    assert words[0].partition("=")[0] in said.err.splitlines()[-1]


def test_without_a_word_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("usage: firewall-cleanup")
    assert said.err == ""


@pytest.mark.parametrize("words", [["--cleanup-conf"], ["--che"], ["--cleanup-config", "--dry"]], ids=" ".join)
def test_options_are_not_abbreviated(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What is short for one option today would be another one's, or none, tomorrow."""
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert f"unrecognized arguments: {words[-1]}" in capsys.readouterr().err
