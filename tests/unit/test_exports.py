"""What is public: exported once, sorted, importable, and cheap to import."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import firewall_cleanup
from firewall_cleanup import testing

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(firewall_cleanup.__path__, "firewall_cleanup.")
    if not module.name.endswith("__main__")
)


def natural(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions: the order that ruff keeps."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2), name


@pytest.mark.parametrize("name", ["firewall_cleanup", *MODULES])
def test_all_is_sorted_unique_and_true(name: str) -> None:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", [])
    assert len(names) == len(set(names))
    assert list(names) == sorted(names, key=natural)
    assert all(hasattr(module, each) for each in names)


def test_every_public_name_has_one_home() -> None:
    """No two modules of the package define the same public name."""
    homes: dict[str, set[str]] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for each in getattr(module, "__all__", []):
            item = getattr(module, each)
            home = getattr(item, "__module__", None)
            if isinstance(home, str) and home.startswith("firewall_cleanup"):
                homes.setdefault(each, set()).add(home)
    shared = {
        "Host",
        "LegacyTable",
        "NftDump",
        "NftListener",
    }  # a protocol, and the class behind handlers that follows it
    assert {name: found for name, found in homes.items() if len(found) > 1 and name not in shared} == {}


def test_public_names_are_documented() -> None:
    for name in firewall_cleanup.__all__:
        item = getattr(firewall_cleanup, name)
        if callable(item):
            assert item.__doc__, name


def test_version() -> None:
    assert firewall_cleanup.__version__.count(".") == 2


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        (
            "import firewall_cleanup",
            "rich jsonschema hypothesis pyroute2 pytest ctypes concurrent.futures logging.handlers",
        ),
        ("import firewall_cleanup", "firewall_cleanup.hairpin firewall_cleanup.hairpin_report"),
        ("from firewall_cleanup.testing import MemoryHost", "hypothesis pyroute2 pytest"),
        ("import firewall_cleanup.testing.node, firewall_cleanup.testing.memory", "hypothesis pytest"),
    ],
)
def test_imports_stay_light(statement: str, unwanted: str) -> None:
    """Neither hypothesis (an extra) nor pyroute2 (its import takes longer than most runs) comes along."""
    code = f"{statement}; import sys; print([n for n in {unwanted.split()!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_strategies_come_when_asked_for() -> None:
    assert testing.strategies.__name__ == "firewall_cleanup.testing.strategies"
    assert "strategies" in dir(testing)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        testing.nothing  # noqa: B018
