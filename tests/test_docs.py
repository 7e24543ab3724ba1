"""README.md and docs/ tell the truth: code and commands run, links lead somewhere, the man page is complete."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from scenes import NODES, Scene
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from firewall_cleanup import Backend, cleanup_all
from firewall_cleanup.cli import SUBCOMMANDS, _parser
from firewall_cleanup.hairpin_cli import hairpin_parser
from firewall_cleanup.handlers._namespace import Namespace
from firewall_cleanup.service_command import make_parser
from firewall_cleanup.testing.namespaces import Sandbox
from firewall_cleanup.testing.node import Node

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
MAN_PAGE = ROOT / "docs/firewall-cleanup.1"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
_SYBIL = Sybil(parsers=[PythonCodeBlockParser()])
WITH_CODE = [page for page in PAGES if list(_SYBIL.parse(page).examples())]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@attrs.frozen
class Block:
    """A fenced block: its language, its text, and why its commands are not run, if they are not."""

    language: str
    text: str
    not_run: str | None


_FENCE = re.compile(r"(?:^<!-- not run: ([^\n]+) -->\n)?^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[Block]:
    found = _FENCE.findall(page.read_text())
    return [
        Block(language, re.sub(f"^{indent}", "", text, flags=re.MULTILINE), not_run or None)
        for not_run, indent, language, text in found
    ]


def commands(text: str) -> Iterator[str]:
    """Split a block into its commands: lines, joined until the shell finds them complete."""
    waiting = ""
    for line in text.splitlines():
        waiting += f"{line}\n"
        complete = subprocess.run(["bash", "-n"], input=waiting, capture_output=True, text=True, check=False)
        if complete.returncode == 0 and not line.endswith("\\"):
            if waiting.strip() and not waiting.lstrip().startswith("#"):
                yield waiting.strip()
            waiting = ""
    assert not waiting, waiting


SHELL = {page: [block for block in blocks(page) if block.language == "sh" and not block.not_run] for page in PAGES}
WITH_COMMANDS = [page for page, found in SHELL.items() if found]


def test_the_readme_has_code_and_commands():
    assert README in WITH_CODE
    assert README in WITH_COMMANDS


@pytest.mark.namespace
@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_code_runs(page: Path, sandbox: Sandbox):
    """In order, on a node that kube-router has left, in a namespace that is thrown away."""
    sandbox.load(Node(), Backend.NFT)
    namespace = Namespace(sandbox.path)
    try:
        for example in _SYBIL.parse(page).examples():
            namespace.run(example.evaluate)
    finally:
        namespace.close()
    if page == README:
        assert cleanup_all(netns=sandbox.path, dry_run=True).outcomes == ()


# What the pages take for granted: names of namespaces, a folder for backups, and a loopback that is up. None of it is
# the machine's.
_PLACE = """
mount -t tmpfs none /run && mkdir /run/netns && touch /run/netns/blue || exit 99
mount --bind /proc/self/ns/net /run/netns/blue && mount --bind "$BACKUPS" /var/backups || exit 99
ip link set lo up || exit 99
exec bash -euo pipefail -c "$1"
"""


@pytest.mark.namespace
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_commands_run(page: Path, sandbox: Sandbox, backend: Backend, tmp_path: Path):
    """Each ends with status 0, or with the one that the comment behind it names."""
    Scene(NODES["default"], backend).load(sandbox)
    for folder in ("bin", "backups", "work"):
        (tmp_path / folder).mkdir()
    for command, words in {
        "firewall-cleanup": [sys.executable, "-m", "firewall_cleanup"],
        "python3": [sys.executable],
    }.items():
        file = tmp_path / "bin" / command
        file.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        file.chmod(0o755)
    (tmp_path / "work/examples").symlink_to(ROOT / "examples")
    variables = {
        "PATH": f"{tmp_path}/bin:{sandbox.environment['PATH']}",
        "BACKUPS": str(tmp_path / "backups"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    for block in SHELL[page]:
        for command in commands(block.text):
            expected = re.search(r"#.*\bexit status (\d+)", command)
            done = sandbox.run(
                ["unshare", "--mount", "sh", "-c", _PLACE, "sh", command],
                check=False,
                env=variables,
                cwd=tmp_path / "work",
            )
            said = f"{command}\n{done.stdout}{done.stderr}"
            assert done.returncode == (int(expected[1]) if expected else 0), said


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_accounted_for(page: Path):
    """Code and commands run; a block that does not says why; files are read as what they are."""
    for block in blocks(page):
        assert block.language in {"", "python", "sh", "text", "dockerfile", "yaml"}, block
        assert block.not_run is None or block.language == "sh", block
        if block.language == "dockerfile":
            entry = re.search(r"^ENTRYPOINT (.*)$", block.text, re.MULTILINE)
            assert entry
            assert Path(json.loads(entry[1])[0]).name == "firewall-cleanup"
        if block.language == "yaml":
            for arguments in re.findall(r"^ +args: (.*)$", block.text, re.MULTILINE):
                words = json.loads(arguments)
                COMMANDS.get(words[0], _parser)().parse_args(words[words[0] in COMMANDS :])
    assert page.read_text().count("```") == 2 * len(blocks(page))


COMMANDS = {"ensure-address": make_parser, "ensure-hairpin": hairpin_parser}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_their_own_are_accepted(command: str):
    text = "".join(page.read_text() for page in (*PAGES, MAN_PAGE))
    found = re.findall(rf"(?:^ *|`|\$ |Dl |timeout .*)firewall-cleanup {command} (-[^`\n|>]*)", text, re.MULTILINE)
    assert len(found) >= 5
    for line in found:
        COMMANDS[command]().parse_args(
            shlex.split(line.replace("--ip-address A ", "--ip-address ::2 ").replace("$$", "1"), comments=True)
        )


@pytest.mark.parametrize("command", COMMANDS)
def test_the_man_page_has_all_options_of_commands(command: str):
    section = MAN_PAGE.read_text().partition(f".Sh THE COMMAND {command.upper()}")[2].partition(".Sh ")[0]
    assert _documented(section) == _options(COMMANDS[command]())


def test_the_man_page_has_all_commands():
    synopsis = MAN_PAGE.read_text().partition(".Sh SYNOPSIS")[2].partition(".Sh ")[0]
    assert all(f".Cm {name}\n" in synopsis for name in SUBCOMMANDS)
    assert {*COMMANDS, "exposure"} == SUBCOMMANDS.keys()  # that one has a page and tests of its own


def test_commands_are_accepted():
    """Also those in blocks that are not run, and in the text."""
    text = "".join(page.read_text() for page in PAGES)
    found = re.findall(r"(?:^ *|`|\$ )firewall-cleanup (-[^`\n|>]*)", text, re.MULTILINE)
    assert len(found) > 15
    for line in found:
        args = _parser().parse_args(shlex.split(line, comments=True))
        assert args.cleanup_config or args.check or args.restore or args.collect or args.source, line


def test_subcommands_are_accepted():
    text = "".join(page.read_text() for page in PAGES) + MAN_PAGE.read_text()
    found = re.findall(r"firewall-cleanup ensure-hairpin (-[^`\n|>]*)", text)
    assert len(found) > 8
    for line in found:
        hairpin_parser().parse_args(shlex.split(line.replace("$$", "1"), comments=True))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^):]+)\)", page.read_text()):
        file, _, heading = target.partition("#")
        assert (page.parent / file).exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", (page.parent / file).read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", text).lower().replace(" ", "-") for text in headings}, target


def test_the_index_has_all_pages():
    index = (ROOT / "docs/README.md").read_text()
    for page in (ROOT / "docs").rglob("*"):
        if page.is_file() and page.suffix in {".md", ".1", ".json"} and page.name != "README.md":
            assert f"({page.relative_to(ROOT / 'docs')})" in index, page
    assert "(docs/README.md)" in README.read_text()


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = [*project["dependency-groups"]["dev"], *project["dependency-groups"]["bench"]]
    listed = [*project["project"]["dependencies"], *(one for one in groups if isinstance(one, str))]
    reasons = (ROOT / "docs/dependencies.md").read_text()
    for requirement in listed:
        assert f"| {re.split('[<>=~!;[ ]', requirement)[0]} |" in reasons


# the man page


def _options(parser: argparse.ArgumentParser) -> dict[str, str | None]:
    """The options of the command, each with the name of its value."""
    found: dict[str, str | None] = {}
    for action in parser._actions:
        value = None if action.nargs == 0 else action.metavar or "|".join(action.choices or ())
        found.update(dict.fromkeys(action.option_strings, str(value) if value else None))
    return found


def _documented(section: str) -> dict[str, str | None]:
    """The options of a section of the man page, each with the name of its value."""
    documented: dict[str, str | None] = {}
    for head in re.findall(r"^\.It (Fl .*)$", section, re.MULTILINE):
        flags, _, value = head.partition(" Ar ")
        for flag in re.findall(r"Fl (\S+)", flags.replace(" , ", " ")):
            documented["-" + flag.replace("\\-", "-")] = value.replace(" | ", "|").replace(" Ar ", "") or None
    return documented


def test_the_man_page_has_all_options():
    """In its list of options and, those that say what to do, in the synopsis; and it has no others."""
    text = MAN_PAGE.read_text()
    documented = _documented(text.partition(".Sh OPTIONS")[2].partition(".Sh ")[0])
    assert documented == _options(_parser())
    synopsis = re.findall(r"Fl (\S+)", text.partition(".Sh SYNOPSIS")[2].partition(".Sh ")[0])
    assert {"-" + flag.replace("\\-", "-") for flag in synopsis} == set(documented) - {"-h", "--verbose"}


def test_the_man_page_is_well_formed():
    if shutil.which("mandoc"):
        words = ["mandoc", "-T", "lint", "-W", "warning", str(MAN_PAGE)]
    elif shutil.which("groff"):
        words = ["groff", "-mdoc", "-ww", "-z", str(MAN_PAGE)]
    else:
        pytest.skip("neither mandoc nor groff is installed")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.stdout + done.stderr, done.returncode) == ("", 0)


def test_what_is_installed_beside_the_package_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert shared["docs/firewall-cleanup.1"] == "share/man/man1/firewall-cleanup.1"
    assert all((ROOT / file).is_file() for file in shared)
