"""docs/report.schema.json says what the reports are, and what it refuses is none."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from builders import LEGACY, POLICY, V4, V6, H, clean, host_node, key, node
from jsonschema import Draft202012Validator, ValidationError
from scenes import NODES, Scene, command, json_of

from firewall_cleanup import (
    Backend,
    BadLine,
    Controller,
    Family,
    FamilyState,
    Gap,
    HairpinOutcome,
    HairpinReport,
    HairpinStatus,
    Kind,
    Restored,
    Status,
)
from firewall_cleanup.boot_files import BootFiles, UnreadFile
from firewall_cleanup.model import IpSet, NativeTable
from firewall_cleanup.testing.namespaces import Sandbox
from firewall_cleanup.words import _EVIDENCE
from firewall_cleanup.writers import Commit, Commits, Process

SCHEMA = json.loads((Path(__file__).parents[1] / "docs/report.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)
POD = f"KUBE-POD-FW-{H}"


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_it_has_the_words_of_the_code() -> None:
    definitions = SCHEMA["$defs"]
    outcome = definitions["outcome"]["properties"]
    assert set(definitions["kind"]["enum"]) == {kind.value for kind in Kind}
    assert outcome["status"]["enum"] == [status.value for status in Status]
    assert outcome["controller"]["enum"] == [*(controller.value for controller in Controller), None]
    assert set(outcome["evidence"]["enum"]) == set(_EVIDENCE)
    assert definitions["family"]["enum"] == [*(family.value for family in Family), None]
    assert definitions["backend"]["enum"] == [*(backend.value for backend in Backend), None]
    assert SCHEMA["properties"]["families"]["additionalProperties"]["enum"] == [state.value for state in FamilyState]


def reports() -> Iterator[dict[str, Any]]:
    """Of nodes in memory: planned, removed, kept, held, refused, unread, empty."""
    text = f"-N {POD}\n-A INPUT -j {POD}\n-A INPUT -m set --match-set kube-router-svip src -j DROP"
    for dry_run in (True, False):
        sets = [IpSet("TMP-PRBJ7ASFQM5DJR3Q", "hash:ip", V6), IpSet("kube-router-svip", "hash:ip", V4)]
        tables = {key(): text, key(backend=LEGACY): text}
        natives = [NativeTable("ip", "kube-router-filter-ipv4"), NativeTable("inet", "fw")]
        yield clean(node(tables, sets, natives), dry_run=dry_run).to_dict()
        kept = node({key(): f"-N {POD}\n-A KUBE-ROUTER-SERVICES -j {POD}"})
        yield clean(kept, frozenset({POLICY}), dry_run=dry_run).to_dict()
        yield clean(node(gaps=(Gap("no", V4), Gap("no", None, Backend.NFT, "nat"))), dry_run=dry_run).to_dict()
        yield clean(host_node(), dry_run=dry_run).to_dict()
        yield clean(node(), dry_run=dry_run, stopped=lambda: 15).to_dict()
    hairpin = HairpinReport("all ports", (HairpinOutcome(HairpinStatus.PUT_BACK, "veth1", 4, "br0", "eth0"),))
    yield attrs.evolve(clean(node()), notes=("a file",), backup="/var/backups/x", hairpin=hairpin).to_dict()
    saved = {"/etc/iptables/rules.v6": f"*filter\n:{POD} - [0:0]\n-A INPUT -j {POD}\nCOMMIT\n"}
    written = Commits((Commit(7, 8, "iptables-nft-re"),), missed=True)
    running = (Process(9, "kube-router", ("/usr/bin/kube-router",), here=None), Process(10, "k3s-server"))
    yield clean(node({key(): text}, text_files=saved, running=running, commits=written)).to_dict()
    yield clean(node({key(): text}, running=running), wait_gone=0.0).to_dict()
    unread = BootFiles(unread=(UnreadFile("/etc/rc.local", "Permission denied"),))
    yield attrs.evolve(clean(node(), dry_run=True), boot_files=unread).to_dict()
    yield attrs.evolve(clean(node(), dry_run=True), bad_lines=(BadLine("ipset-save", 1, "no"),)).to_dict()


def test_reports_are_valid() -> None:
    found = [json.loads(json.dumps(report)) for report in reports()]
    for report in found:
        VALIDATOR.validate(report)
    assert set().union(*found) == set(SCHEMA["properties"])
    statuses = {outcome["status"] for report in found for outcome in report["outcomes"]}
    assert statuses >= {"planned", "removed", "kept", "in-use"}
    assert {outcome["kind"] for report in found for outcome in report["outcomes"]} == {kind.value for kind in Kind}


@pytest.mark.namespace
@pytest.mark.parametrize(
    "options", [["--cleanup-config"], ["--cleanup-config", "--dry-run"], ["--check"]], ids=" ".join
)
def test_what_the_command_prints_is_valid(sandbox: Sandbox, backend: Backend, options: list[str]) -> None:
    Scene(NODES["nft-netpol"], backend).load(sandbox)
    sandbox.run(f"iptables-{backend.value} -A INPUT -m set --match-set kube-router-svip src -j DROP")
    report = json_of(command(sandbox, *options, "--output", "json"))
    VALIDATOR.validate(report)
    assert {outcome["status"] for outcome in report["outcomes"]} > {"in-use"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["version"], 2),
        (["more"], 1),
        (["families", "ipv5"], "gap"),
        (["outcomes", 0, "status"], "gone"),
        (["outcomes", 0, "evidence"], "a word"),
        (["outcomes", 0, "more"], None),
        (["outcomes", 0, "name"], None),
        (["gaps"], [{"reason": "x"}]),
        (["notes"], []),
        (["proof"], {}),
        (["bad_lines"], []),
        (["others"], {}),
        (["changed"], True),
    ],
    ids=str,
)
def test_anything_else_is_not(path: list[Any], value: object) -> None:
    report = copy.deepcopy(next(reports()))
    VALIDATOR.validate(report)
    place: Any = report
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ValidationError):
        VALIDATOR.validate(report)


@pytest.mark.parametrize("name", SCHEMA["required"])
def test_nothing_may_be_missing(name: str) -> None:
    report = next(reports())
    del report[name]
    with pytest.raises(ValidationError):
        VALIDATOR.validate(report)


# the report of a restore

RESTORE = json.loads((Path(__file__).parents[1] / "docs/restore.schema.json").read_text())


def test_the_schema_of_a_restore_has_the_words_of_the_code() -> None:
    Draft202012Validator.check_schema(RESTORE)
    outcome = RESTORE["properties"]["outcomes"]["items"]["properties"]
    assert set(outcome["kind"]["enum"]) == {kind.value for kind in Kind}
    assert set(outcome["status"]["enum"]) == {status.value for status in Restored}


@pytest.mark.namespace
def test_what_a_restore_prints_is_valid(sandbox: Sandbox, backend: Backend, tmp_path: Path) -> None:
    Scene(NODES["nft-netpol"], backend).load(sandbox)
    VALIDATOR.validate(json_of(command(sandbox, "--cleanup-config", "--output=json", f"--backup={tmp_path}")))
    for changed in (True, False):
        report = json_of(command(sandbox, f"--restore={tmp_path}", "--output=json"))
        Draft202012Validator(RESTORE).validate(report)
        assert (report["complete"], report["changed"]) == (True, changed)


# the report of the hairpin mode of ports

HAIRPIN = json.loads((Path(__file__).parents[1] / "docs/hairpin.schema.json").read_text())


def test_the_schema_of_hairpin_reports_has_the_words_of_the_code() -> None:
    Draft202012Validator.check_schema(HAIRPIN)
    outcome = HAIRPIN["properties"]["outcomes"]["items"]["properties"]
    assert outcome["status"]["enum"] == [status.value for status in HairpinStatus]
    for status in HairpinStatus:
        report = HairpinReport("bridge br0", (HairpinOutcome(status, reason="why"),))
        Draft202012Validator(HAIRPIN).validate(report.to_dict())
        assert f"| `{status.value}` |" in (Path(__file__).parents[1] / "docs/json.md").read_text()


def test_a_cleanup_has_the_same() -> None:
    embedded = SCHEMA["$defs"]["hairpin"]
    assert embedded == {key: HAIRPIN[key] for key in embedded}
    assert {*HAIRPIN} - {*embedded} == {"$schema", "title", "description"}


# the report of a collection

COLLECT = json.loads((Path(__file__).parents[1] / "docs/collect.schema.json").read_text())


@pytest.mark.namespace
@pytest.mark.parametrize("rights", [True, False])
def test_what_a_collection_prints_is_valid(sandbox: Sandbox, rights: bool, tmp_path: Path) -> None:
    Draft202012Validator.check_schema(COLLECT)
    words = [] if rights else ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
    command_ = [sys.executable, "-m", "firewall_cleanup", f"--collect={tmp_path / 'x'}", "--output=json"]
    report = json_of(sandbox.run([*words, *command_], check=False))
    Draft202012Validator(COLLECT).validate(report)
    assert report["complete"] is rights
