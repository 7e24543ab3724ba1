"""Looking at a node loads no module; `tests/run-vm --no-modules` runs it where none is loaded yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import LEGACY, NFT, V4, V6, H, clean, host_node, key, node

from firewall_cleanup.model import IpSet, NativeTable
from firewall_cleanup.script import script

pytestmark = pytest.mark.skipif(
    "FIREWALL_CLEANUP_VM" not in os.environ, reason="needs a kernel with modules of its own: use tests/run-vm"
)


def _modules() -> set[str]:
    path = Path("/proc/modules")
    return {line.split()[0] for line in path.read_text().splitlines()} if path.exists() else set()


def _looked(*options: str) -> dict[str, Any]:
    """What a command of its own says, so that nothing of this process's work is counted."""
    before = _modules()
    done = subprocess.run(
        [sys.executable, "-m", "firewall_cleanup", *options, "--output", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    after = _modules()

    assert done.returncode == 0, done.stdout + done.stderr
    assert after == before
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_looking_loads_no_module_and_finds_nothing() -> None:
    found = _looked("--cleanup-config", "--dry-run")
    assert set(found["families"].values()) <= {"examined", "absent"}


def test_collecting_loads_no_module_either(tmp_path: Path) -> None:
    assert _looked("--collect", str(tmp_path / "x"))["complete"]
    found = _looked("--from", str(tmp_path / "x"), "--dry-run")
    assert {**found, "writers": None} == {**_looked("--cleanup-config", "--dry-run"), "writers": None}


def test_a_script_loads_no_module_for_what_is_not_there() -> None:
    """It was made for a node that had everything, and this one has been booted since."""
    rules = {key(backend=b, family=f): f"-N KUBE-POD-FW-{H}" for b in (NFT, LEGACY) for f in (V4, V6)}
    natives = [NativeTable("ip", "kube-router-filter-ipv4")]
    hosts = [node(rules, [IpSet("kube-router-svip", "hash:ip", V4)], natives), host_node()]
    text = script([clean(host, dry_run=True, remove_bridge=True) for host in hosts])
    assert all(f"\n{word} " in text for word in ("service", "table", "nft_tables", "sets", "fou_port", "route"))
    before = _modules()
    done = subprocess.run(["sh", "-s"], input=text, capture_output=True, text=True, check=False)
    after = _modules()

    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert after == before


def test_a_rule_that_is_not_understood_loads_no_module() -> None:
    """iptables would ask the kernel for every extension with which it prints the chain, and so load them."""
    lines = (
        "iptables-nft -N KUBE-ROUTER-INPUT",
        "iptables-nft -A INPUT -m recent --name us --update -j KUBE-ROUTER-INPUT",
        # What `nft` makes without the extension of the same meaning.
        "nft add rule ip filter INPUT limit rate 10/minute burst 5 packets counter accept",
    )
    subprocess.run(["modprobe", "-r", "xt_limit"], check=False)
    subprocess.run(["sh", "-ec", "\n".join(lines)], check=True)
    try:
        assert "xt_limit" not in _modules()
        found = _looked("--cleanup-config", "--dry-run")
        assert "-A INPUT <recent> -j KUBE-ROUTER-INPUT" in [each["text"] for each in found["outcomes"]]
    finally:
        subprocess.run(["nft", "delete", "table", "ip", "filter"], check=True)
