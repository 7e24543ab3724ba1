"""How each kind of file is read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

from ..model import Family
from ._entries import Entry, judge
from ._firewalld import direct_entries
from ._iptables import command_entries, ipset_entries, save_entries
from ._nft import nft_entries

__all__ = ["READERS", "judge"]

READERS: Mapping[str, Callable[[str], Iterable[Entry]]] = {
    "ipv4": functools.partial(save_entries, family=Family.IPV4),
    "ipv6": functools.partial(save_entries, family=Family.IPV6),
    "ipset": ipset_entries,
    "nft": nft_entries,
    "direct": direct_entries,
    "commands": command_entries,
}
