"""In user namespaces: what works without being root of the machine, and what is said about the rest."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from scenes import ALL, NODES, Scene, as_nobody, clean, command, json_of, problems

from firewall_cleanup import Backend, Family, FamilyState
from firewall_cleanup.handlers import probe
from firewall_cleanup.handlers._netlink import NetlinkSocket
from firewall_cleanup.testing.namespaces import NotAvailable, Sandbox
from firewall_cleanup.testing.node import Node, short_hash

pytestmark = pytest.mark.namespace

JSON = ("--cleanup-config", "--output", "json")


@pytest.fixture
def new_rootless() -> Iterator[object]:
    """A function that makes sandboxes inside user namespaces."""
    with ExitStack() as stack:

        def make() -> Sandbox:
            try:
                return stack.enter_context(Sandbox(rootless=True))
            except NotAvailable as reason:
                pytest.skip(str(reason))

        yield make


def test_in_two_steps_everything_works(new_rootless, backend: Backend):
    scene = Scene(NODES["nft-netpol"], backend)
    wanted, sandbox = new_rootless(), new_rootless()
    expected = scene.load(wanted, gone=ALL)
    before = scene.load(sandbox)
    assert before != expected
    done = command(sandbox, *JSON)
    assert (done.returncode, done.stderr) == (0, "")
    assert json_of(done)["families"] == {"ipv4": "examined", "ipv6": "examined"}
    assert sandbox.state() == expected


@pytest.fixture
def tmp_path_of_all() -> Iterator[Path]:
    """A folder that every user can reach; tmp_path is private."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_in_one_step_legacy_tables_are_unknown(tmp_path_of_all: Path):
    """The list of tables is not readable there: a gap, not "none"; nft and ipset are cleaned."""
    become, python = as_nobody(tmp_path_of_all)
    node = Node()
    script = """
set -e
ipset restore <<'END'
{sets}END
iptables-nft-restore <<'END'
{ipv4}END
ip6tables-nft-restore <<'END'
{ipv6}END
"$@" || echo "status $?" >&2
ipset list -n >&2
iptables-nft-save | grep KUBE >&2 || :
""".format(sets=node.ipsets(), ipv4=node.iptables_save("ipv4"), ipv6=node.iptables_save("ipv6"))
    words = ["sh", "-c", script, "sh", python, "-m", "firewall_cleanup", *JSON]
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    done = subprocess.run(
        [*become, "unshare", "-rn", *words],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )
    if not done.stdout and "unshare" in done.stderr:
        pytest.skip(f"no user namespaces: {done.stderr.strip()}")
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert done.stderr.splitlines() == ["status 1"]
    assert {(gap["family"], gap["backend"]) for gap in report["gaps"]} == {("ipv4", "legacy"), ("ipv6", "legacy")}
    assert all("legacy tables cannot be listed" in gap["reason"] for gap in report["gaps"])
    assert {outcome["status"] for outcome in report["outcomes"]} == {"removed"}
    assert len(report["outcomes"]) > 50


def test_legacy_tables_that_cannot_be_listed(new_sandbox, monkeypatch: pytest.MonkeyPatch):
    scene = Scene(NODES["default"], Backend.NFT)
    wanted, sandbox = new_sandbox(), new_sandbox()
    expected = scene.load(wanted, gone=ALL)
    scene.load(sandbox)

    def refuse(_family: Family) -> tuple[str, ...]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(probe, "legacy_tables", refuse)
    report = clean(sandbox)
    assert (report.exit_code, report.changed, report.residue) == (1, True, ())
    assert [(gap.family, gap.backend) for gap in report.gaps] == [(family, Backend.LEGACY) for family in Family]
    assert report.families == dict.fromkeys(Family, FamilyState.GAP)
    assert sandbox.state() == expected


def test_a_batch_that_does_not_fit_the_send_buffer(new_sandbox, monkeypatch: pytest.MonkeyPatch):
    """Only root of the machine may go beyond net.core.wmem_max; the report says what to do."""
    sandbox = new_sandbox()
    chains = "".join(f":KUBE-POD-FW-{short_hash(str(n))} - [0:0]\n" for n in range(1000))
    for family in Family:
        sandbox.load_rules(f"*filter\n{chains}COMMIT\n", family, Backend.NFT)
    before = sandbox.state()
    with monkeypatch.context() as patch:
        # As if the buffers could not grow: the limit of most machines is what a socket has from the start.
        patch.setattr(NetlinkSocket, "_grow", lambda *_arguments: None)
        report = clean(sandbox)
    assert (report.exit_code, report.changed) == (1, False)
    reasons = {outcome.reason for outcome in report.outcomes if outcome.backend is Backend.NFT}
    assert len(reasons) == 1
    assert "raise net.core.wmem_max to" in str(reasons.pop())
    assert sandbox.state() == before
    assert problems(clean(sandbox)) == []
