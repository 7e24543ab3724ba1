"""README.md and docs/ tell the truth: their code runs, their commands are accepted, their links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from firewall_cleanup import Backend, cleanup_all
from firewall_cleanup.cli import _parser
from firewall_cleanup.handlers._namespace import Namespace
from firewall_cleanup.testing.namespaces import Sandbox
from firewall_cleanup.testing.node import Node

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
_SYBIL = Sybil(parsers=[PythonCodeBlockParser()])
WITH_CODE = [page for page in PAGES if list(_SYBIL.parse(page).examples())]


def test_the_readme_has_code():
    assert README in WITH_CODE


@pytest.mark.namespace
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
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


def test_commands_are_accepted():
    text = "".join(page.read_text() for page in PAGES)
    found = re.findall(r"^firewall-cleanup (-.*)$", text, re.MULTILINE)
    assert len(found) > 5
    for line in found:
        assert _parser().parse_args(shlex.split(line, comments=True)).cleanup_config


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_dependency_has_its_reason():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    reasons = (ROOT / "docs/dependencies.md").read_text()
    for requirement in listed:
        assert f"| {re.split('[<>=~!;[ ]', requirement)[0]} |" in reasons
