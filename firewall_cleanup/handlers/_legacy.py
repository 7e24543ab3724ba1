"""Legacy tables: what is of interest of one, and taking out of it what is owned."""

from __future__ import annotations

import errno

from ..errors import BatchRefused, KernelError
from ..host import Interest
from ..model import Policy, Rule, Table, TableChange, TableKey
from ._legacy_blob import Blob, well_formed
from ._legacy_rules import decode_entry
from ._namespace import Namespace
from ._xt import SetNames

__all__ = ["LegacyTable"]

# The names of the match and the target that use sets; what else holds these bytes is told apart by decoding it.
_SET_WORDS = (b"set\0", b"SET\0")


class LegacyTable:
    """A legacy table, read at one moment. Nothing is written before `commit`.

    Reading a table that is not there makes it: only what `probe.legacy_tables` names may be opened.
    """

    def __init__(self, key: TableKey, interest: Interest, namespace: Namespace) -> None:
        """Read the table from the kernel. Raises KernelError."""
        self.key = key
        self._namespace, self._interest = namespace, interest
        self._blob = namespace.run(Blob, key)

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
        if any(self._blob.entries.find(word, chain.begin, chain.end) >= 0 for word in _SET_WORDS):
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
        blob = self._blob
        with well_formed(self.key):
            try:
                cut = blob.without(change.delete, change.flush, ((rule.chain, rule.index) for rule in change.rules))
            except LookupError as error:
                raise KernelError(errno.ENOENT, f"legacy table {self.key.name}: {error.args[0]}") from None
        if cut.dangling:
            raise BatchRefused({(self.key, "chain", name): errno.EMLINK for name in sorted(cut.dangling)})
        self._namespace.run(blob.replace, cut)
