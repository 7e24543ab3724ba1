"""For tests of this package and of what is built on it: nodes in memory, generated nodes, throw-away namespaces.

`strategies` needs hypothesis (the extra `testing`) and is imported when it is asked for; nothing else here does.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from .memory import Crash, MemoryHost, read_table

if TYPE_CHECKING:
    from . import strategies as strategies

__all__ = ["Crash", "MemoryHost", "read_table", "strategies"]


def __getattr__(name: str) -> ModuleType:
    if name == "strategies":
        return importlib.import_module(".strategies", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
