"""Looking at a node loads no module; `tests/run-vm --no-modules` runs it where none is loaded yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
    assert _looked("--from", str(tmp_path / "x"), "--dry-run") == _looked("--cleanup-config", "--dry-run")
