"""Legacy tables: what is of interest of one, and taking out of it what is owned."""

from __future__ import annotations

import errno

from ..errors import BatchRefused, KernelError
from ..host import Interest, Staying
from ..model import Policy, Rule, Table, TableChange, TableKey
from ._legacy_blob import Blob, Cut, well_formed
from ._legacy_rules import decode_entry
from ._legacy_staying import SET_WORDS, of_legacy
from ._namespace import Namespace
from ._xt import SetNames

__all__ = ["LegacyTable"]

# Chains that go, chains that are emptied, rules by chain and index.
_Part = tuple[frozenset[str], frozenset[str], frozenset[tuple[str, int]]]
_NOTHING: _Part = (frozenset(), frozenset(), frozenset())


class LegacyTable:
    """A legacy table, read at one moment. Nothing is written before `commit`.

    Reading a table that is not there makes it: only what `probe.legacy_tables` names may be opened.
    """

    def __init__(self, key: TableKey, interest: Interest, namespace: Namespace) -> None:
        """Read the table from the kernel. Raises KernelError."""
        self.key = key
        self._namespace, self._interest = namespace, interest
        self._blob = namespace.run(Blob, key)
        self._taken_out = _NOTHING

    @property
    def size(self) -> int:
        """How many bytes it holds in memory."""
        return len(self._blob.entries)

    def is_current(self) -> bool:
        """Tell whether the kernel's table still is what was read, but for counters. Raises KernelError."""
        return self._namespace.run(Blob, self.key).equals(self._blob)

    def table(self, sets: SetNames) -> Table:
        """Return the table, with the rules of the chains that are of interest. Raises KernelError (EPROTO).

        `sets` maps an ipset's index to its name; read after this object was made, it is true for every rule.
        """
        with well_formed(self.key):
            return self._table(sets)

    def _table(self, sets: SetNames) -> Table:
        blob = self._blob
        rules: dict[str, tuple[Rule, ...]] = {}
        names = blob.user_chains
        owned, unread = self._interest.sort(self.key.name, names)
        builtin = [chain for chain in blob.chains.values() if blob.is_builtin(chain)]
        whole = [*(chain.name for chain in builtin), *(name for name in owned if name not in unread)]
        rules.update((name, self._rules(name, sets)) for name in whole)
        if len(owned) < len(names) and (owned or self._interest.any_set_matters()):
            targets = frozenset(blob.chains[name].begin for name in owned)
            for name in names:
                if name not in owned and (found := self._if_it_matters(name, targets, sets)):
                    rules[name] = found
        policies = {chain.name: Policy(blob.target(chain.end), *blob.counters(chain.end)) for chain in builtin}
        return Table(self.key, policies, names, rules)

    def _if_it_matters(self, name: str, targets: frozenset[int], sets: SetNames) -> tuple[Rule, ...] | None:
        """Return the rules of a foreign chain if one of them jumps to an owned one, or uses a set that matters."""
        chain = self._blob.chains[name]
        if self._blob.jumps_to(chain.begin, chain.end, targets):
            return self._rules(name, sets)
        if any(self._blob.entries.find(word, chain.begin, chain.end) >= 0 for word in SET_WORDS):
            rules = self._rules(name, sets)
            if any(self._interest.matters(used_set) for rule in rules for used_set in rule.sets):
                return rules
        return None

    def _rules(self, name: str, sets: SetNames) -> tuple[Rule, ...]:
        blob, chain = self._blob, self._blob.chains[name]
        return tuple(
            decode_entry(blob.entry(offset), blob.target(offset), name, index, self.key.family, sets, blob.chains)
            for index, offset in enumerate(blob.offsets(chain.begin, chain.end))
        )

    def commit(self, change: TableChange) -> None:
        """Apply a change and write the table back, if the kernel still has what was read.

        Everything that stays keeps its order and its counters, those of policies included. Raises BatchRefused for
        chains that something still jumps to, KernelError otherwise (EAGAIN if the table is not what it was); nothing
        is changed then, unless it is the counters that the kernel refuses.
        """
        part = _part(change)
        cut = self._without(part)
        if cut.dangling:
            raise BatchRefused({(self.key, "chain", name): errno.EMLINK for name in sorted(cut.dangling)})
        self._namespace.run(self._blob.replace, cut)
        # What was read is not needed any more and is large; what was written is what stays.
        self._blob, self._taken_out = cut.left(), part

    def staying(self, owned: TableChange, sets: SetNames, like: Staying | None = None) -> Staying:
        """Return what stays of what was read, without what is owned. Raises KernelError (EPROTO).

        That it is `like` another one is seen faster than what it is.
        """
        part, blob = _part(owned), self._blob
        if part != self._taken_out:
            part = self._rest(part)
            cut = self._without(part)
            if cut.dangling:  # what stays jumps there: as it will, to what is empty
                cut = self._without((part[0] - cut.dangling, part[1] | cut.dangling, part[2]))
            blob = cut.left()
        with well_formed(self.key):
            return of_legacy(blob, sets, like)

    def _rest(self, part: _Part) -> _Part:
        """Return what of a part is still there after the commit, by where it is now."""
        chains, (_deleted, emptied, taken) = self._blob.chains, self._taken_out
        rules = frozenset(
            (chain, index - sum(other == chain and place < index for other, place in taken))
            for chain, index in part[2] - taken
            if chain in chains and chain not in emptied
        )
        return part[0] & chains.keys(), part[1] & chains.keys(), rules

    def _without(self, part: _Part) -> Cut:
        with well_formed(self.key):
            try:
                return self._blob.without(*part)
            except LookupError as error:
                raise KernelError(errno.ENOENT, f"legacy table {self.key.name}: {error.args[0]}") from None


def _part(change: TableChange) -> _Part:
    rules = frozenset((rule.chain, rule.index) for rule in change.rules)
    return frozenset(change.delete), frozenset(change.flush), rules
