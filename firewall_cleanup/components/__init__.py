"""Components: what each one owns, as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import attrs

from ..model import Controller, Family, NativeTable
from ..shapes import Bindings, Shape

__all__ = ["ChainNames", "Component", "OwnedShape", "SetNames"]


@attrs.frozen
class ChainNames:
    """Names of a component's chains in one iptables table; the pattern must match the whole name."""

    table: str
    pattern: re.Pattern[str]
    controller: Controller


@attrs.frozen
class SetNames:
    """Names of a component's ipsets; the pattern must match the whole name.

    A set that is owned only while nothing uses it (`unreferenced`) is a temporary one that a crash left.
    `controller` is None for sets of no single controller.
    """

    pattern: re.Pattern[str]
    controller: Controller | None
    unreferenced: bool = False


def _no_further_proof(_bindings: Bindings, _family: Family) -> bool:
    return True


@attrs.frozen
class OwnedShape:
    """A rule shape that proves ownership, alone or with a further proof over its placeholders.

    A shape with `needs_vip` is owned only if another shape with `proves_vip` was owned in the same table with the
    same `<vip>`.
    """

    shape: Shape
    controller: Controller
    evidence: str
    proof: Callable[[Bindings, Family], bool] = _no_further_proof
    proves_vip: bool = False
    needs_vip: bool = False


@attrs.frozen
class Component:
    """The software whose state is to be removed."""

    name: str
    chains: tuple[ChainNames, ...]
    shapes: tuple[OwnedShape, ...]
    sets: tuple[SetNames, ...]
    native_tables: Mapping[NativeTable, Controller]

    def chain_owner(self, table: str, chain: str) -> Controller | None:
        """Return the controller that owns a user chain of this name in this iptables table, if one does."""
        for names in self.chains:
            if names.table == table and names.pattern.fullmatch(chain):
                return names.controller
        return None

    def set_owner(self, name: str) -> SetNames | None:
        """Return the entry under which a set of this name is owned, if any."""
        return next((names for names in self.sets if names.pattern.fullmatch(name)), None)
