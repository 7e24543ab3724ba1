"""Looking at a node loads no module; `tests/run-vm --no-modules` runs it where none is loaded yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    "FIREWALL_CLEANUP_VM" not in os.environ, reason="needs a kernel with modules of its own: use tests/run-vm"
)


def _modules() -> set[str]:
    path = Path("/proc/modules")
    return {line.split()[0] for line in path.read_text().splitlines()} if path.exists() else set()


def test_looking_loads_no_module_and_finds_nothing() -> None:
    """In a process of its own, so that nothing of this one's work is counted."""
    before = _modules()
    done = subprocess.run(
        [sys.executable, "-m", "firewall_cleanup", "--cleanup-config", "--dry-run", "--output", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    after = _modules()

    assert done.returncode == 0, done.stdout + done.stderr
    assert after == before
    assert set(json.loads(done.stdout)["families"].values()) <= {"examined", "absent"}
