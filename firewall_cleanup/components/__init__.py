"""Components: what each one owns, as data."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping

import attrs

from ..model import Controller, Family, FileTrace, Item, NativeTable, Snapshot
from ..shapes import Bindings, Shape
from ..writers import Process, Program, Writer

__all__ = ["ChainNames", "Component", "ItemClaim", "OwnedShape", "Proofs", "SetNames"]


def _without_groups(_instance: object, _field: object, pattern: re.Pattern[str]) -> None:
    """Many patterns are made one, whose groups tell which of them a name matched."""
    if pattern.groups:
        raise ValueError(f"a group in a pattern of names, use (?:…): {pattern.pattern}")


@attrs.frozen
class ChainNames:
    """Names of a component's chains in one iptables table; the pattern, without groups, must match the whole name."""

    table: str
    pattern: re.Pattern[str] = attrs.field(validator=_without_groups)
    controller: Controller


@attrs.frozen
class SetNames:
    """Names of a component's ipsets; the pattern, without groups, must match the whole name.

    A set that is owned only while nothing uses it (`unreferenced`) is a temporary one that a crash left.
    `controller` is None for sets of no single controller.
    """

    pattern: re.Pattern[str] = attrs.field(validator=_without_groups)
    controller: Controller | None
    unreferenced: bool = False


@attrs.frozen
class ItemClaim:
    """Why an object that is neither rule, chain, table nor set is owned.

    Attributes:
        controller: the controller that made it.
        evidence: the kind of proof; `detail` says more.
        family: the family of a link that serves only one.
        shared: why another component needs it too; it is kept then.
        ports: the links that use it, for which it stays.
        needs: objects of other controllers without which it could not be proven any more.
        first: whether it goes before the others of its kind, which prove it.
        proves_services: whether it proves the ownership of IPVS services.
        note: what a person should know when it goes.

    """

    controller: Controller
    evidence: str
    detail: str = ""
    family: Family | None = None
    shared: str | None = None
    ports: tuple[str, ...] = ()
    needs: frozenset[object] = frozenset()
    first: bool = False
    proves_services: bool = False
    note: str = ""


@attrs.frozen
class Proofs:
    """What owned rules prove: marks of DSR services by family, and pod networks."""

    marks: frozenset[tuple[Family, int]] = frozenset()
    pod_networks: frozenset[str] = frozenset()


def _no_items(_snapshot: Snapshot, _proofs: Proofs) -> Mapping[Item, ItemClaim]:
    return {}


def _no_marks(_snapshot: Snapshot) -> frozenset[tuple[Family, int]]:
    return frozenset()


def _no_members(_name: str) -> bool:
    return False


def _no_further_proof(_bindings: Bindings, _family: Family, _marks: frozenset[tuple[Family, int]]) -> bool:
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
    proof: Callable[[Bindings, Family, frozenset[tuple[Family, int]]], bool] = _no_further_proof
    proves_vip: bool = False
    needs_vip: bool = False


@attrs.frozen
class Component:
    """The software whose state is to be removed.

    `claim_items` claims what is neither rule, chain, table nor set, from a snapshot that was read as the last three
    say: sets with members where IPVS has services, links with their addresses, routes by table and protocol (0: all).
    `item_controllers` are those to which such objects can belong. `files` and `lasting` tell what is left in files
    and in settings whose old values nobody kept. `programs` write its state for as long as they run.
    """

    name: str
    chains: tuple[ChainNames, ...]
    shapes: tuple[OwnedShape, ...]
    sets: tuple[SetNames, ...]
    native_tables: Mapping[NativeTable, Controller]
    claim_items: Callable[[Snapshot, Proofs], Mapping[Item, ItemClaim]] = _no_items
    service_marks: Callable[[Snapshot], frozenset[tuple[Family, int]]] = _no_marks
    wants_members: Callable[[str], bool] = _no_members
    links_with_addresses: frozenset[str] = frozenset()
    routes: tuple[tuple[int, int], ...] = ()
    item_controllers: frozenset[Controller] = frozenset()
    files: tuple[FileTrace, ...] = ()
    lasting: str = ""
    programs: tuple[Program, ...] = ()

    def writer(self, process: Process, controllers: frozenset[Controller]) -> Writer | None:
        """Return a process as one that writes the state of some controllers, None if it is none."""
        found = (program.match(process, controllers) for program in self.programs)
        return next((writer for writer in found if writer is not None), None)

    def owned_chains(self, table: str, chains: Iterable[str]) -> dict[str, Controller]:
        """Return those of a table's user chains that are owned, with the controller that owns each."""
        entries = [entry for entry in self.chains if entry.table == table]
        match = _any_of(tuple(entry.pattern for entry in entries)).fullmatch
        owners = [entry.controller for entry in entries]
        return {name: owners[(found.lastindex or 0) - 1] for name in chains if (found := match(name))}

    def chain_owner(self, table: str, chain: str) -> Controller | None:
        """Return the controller that owns a user chain of this name in this iptables table, if one does."""
        return self.owned_chains(table, (chain,)).get(chain)

    def owned_sets(self, names: Iterable[str]) -> dict[str, SetNames]:
        """Return those of some sets that are owned, with the entry under which each is."""
        pattern = _any_of(tuple(entry.pattern for entry in self.sets))
        match = pattern.fullmatch
        return {name: self.sets[(found.lastindex or 0) - 1] for name in names if (found := match(name))}

    def set_owner(self, name: str) -> SetNames | None:
        """Return the entry under which a set of this name is owned, if any."""
        return self.owned_sets((name,)).get(name)


@functools.cache
def _any_of(patterns: tuple[re.Pattern[str], ...]) -> re.Pattern[str]:
    """Return one pattern with a group for each: nodes have many names."""
    return re.compile("|".join(f"({pattern.pattern})" for pattern in patterns) or "(?!)")
