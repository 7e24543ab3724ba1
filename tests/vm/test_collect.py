"""A whole node, collected, on a kernel that has it all; run by `tests/run-vm`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from scenes import without_writers
from test_clean import BACKENDS, fresh, whole_node  # noqa: F401 - the fixture is taken as it is
from test_kernel import HAS_IPV6, pytestmark  # noqa: F401 - the same conditions hold here

from firewall_cleanup import Controller, Kind, cleanup, cleanup_all, collect, plan_from
from firewall_cleanup.bundle import FILES, MANIFEST


@pytest.mark.parametrize(("backend", "tools"), BACKENDS)
@pytest.mark.parametrize("fou", [False, True], ids=["ipip", "fou"])
def test_a_plan_from_files_is_that_of_the_node(
    fresh: Callable[[], None],  # noqa: F811
    backend: str,
    tools: str,
    fou: bool,
    tmp_path: Path,
) -> None:
    fresh()
    whole_node(backend, tools, fou=fou)
    there = cleanup_all(dry_run=True)
    assert collect(tmp_path / "x").complete
    assert without_writers(plan_from(tmp_path / "x").to_dict()) == without_writers(there.to_dict())
    assert {o.kind for o in there.outcomes} >= {
        Kind.IPVS_SERVICE,
        Kind.LINK,
        Kind.ADDRESS,
        Kind.ROUTE,
        Kind.POLICY_RULE,
    }
    assert (Kind.FOU_PORT in {o.kind for o in there.outcomes}) is fou
    for controller in Controller:
        one = cleanup(controllers=[controller], dry_run=True)
        here = plan_from(tmp_path / "x", controllers=[controller])
        assert without_writers(here.to_dict()) == without_writers(one.to_dict())
    # The same by hand. What only the manifest has are files of kube-router that were found.
    if HAS_IPV6 and not tools:
        report = plan_from(by_hand(tmp_path / "y")).to_dict()
        expected = there.to_dict()
        assert report.pop("notes", [])[-1:] == expected.pop("notes", [])[-1:]
        assert without_writers(report) == without_writers(expected)


def by_hand(folder: Path) -> Path:
    folder.mkdir()
    commands = {
        **{name: name for name in FILES if name.endswith(("-nft-save", "-legacy-save"))},
        "ipset-save": "ipset save",
        "nft-ruleset.json": "nft -j list ruleset",
        "ip-link.json": "ip -j -d link",
        "ip-addr.json": "ip -j addr",
        "ip-rule.json": "ip -4 -j rule",
        "ip6-rule.json": "ip -6 -j rule",
        "ip-route.json": "ip -4 -j route show table all",
        "ip6-route.json": "ip -6 -j route show table all",
        "ip-fou.json": "ip -j fou show",
        "ipvsadm-save": "ipvsadm -Sn",
    }
    assert set(commands) == set(FILES) - {"iptables-save", "ip6tables-save", MANIFEST}
    for name, words in commands.items():
        done = subprocess.run(words.split(), capture_output=True, text=True, check=False)
        (folder / name).write_text(done.stdout)
    return folder
