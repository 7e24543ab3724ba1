"""docs/exposure-run.md is what happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from record import PAGE, record
from world import World

pytestmark = pytest.mark.apiserver


def test_the_recorded_run_is_true(world: World, tmp_path: Path) -> None:
    """In it etcd is swapped for an older state and for an empty one, and the controller is never started again."""
    assert record(world, tmp_path / "controller.log") == PAGE.read_text()
