"""The least that nf_tables needs: one batch that removes what is owned, and nothing read or decided."""

from __future__ import annotations

import time

from .netlink import ACK, REQUEST, Netlink, attribute, attributes, message, text

__all__ = ["chain_names", "clean", "rule_count"]

_SUBSYSTEM = 10 << 8
_GET_CHAIN, _DEL_CHAIN, _GET_RULE, _DEL_RULE, _GET_GENERATION = (_SUBSYSTEM | kind for kind in (4, 5, 7, 8, 16))
_BATCH_BEGIN, _BATCH_END, _BATCH_GENERATION = 16, 17, 1
_RESOURCE = 10
_FAMILIES = (2, 10)
_TABLE = text(1, b"filter")


def chain_names(netlink: Netlink, family: int) -> list[bytes]:
    """Return the names of the chains of a family, AF_INET or AF_INET6."""
    return [attributes(chain)[3].rstrip(b"\0") for chain in netlink.dump(_GET_CHAIN, family)]


def rule_count(netlink: Netlink, family: int) -> int:
    """Return the number of rules of a family.

    Chain by chain: in a dump of all, the kernel counts from the first rule again for each packet that it fills.
    """
    chains = [attributes(chain) for chain in netlink.dump(_GET_CHAIN, family)]
    where = (attribute(1, chain[1]) + attribute(2, chain[3]) for chain in chains)
    return sum(1 for one in where for _rule in netlink.dump(_GET_RULE, family, one))


def clean() -> float:
    """Remove the chains of kube-router in the calling process's namespace; return the seconds for send and answer."""
    with Netlink() as netlink:
        batch = _batch(netlink)
        netlink.make_room(len(batch))
        start = time.perf_counter()
        netlink.acknowledged(batch)
        return time.perf_counter() - start


def _batch(netlink: Netlink) -> bytes:
    steps: list[tuple[int, int, bytes]] = []
    removals: list[tuple[int, int, bytes]] = []
    for family in _FAMILIES:
        owned = [name for name in chain_names(netlink, family) if name.startswith(b"KUBE-")]
        for chain in (b"INPUT", b"FORWARD", b"OUTPUT"):
            where = _TABLE + text(2, chain)
            jumps = [rule for rule in netlink.dump(_GET_RULE, family, where) if b"KUBE-ROUTER-" in rule]
            steps += [(_DEL_RULE, family, where + attribute(3, attributes(rule)[3])) for rule in jumps]
        steps += [(_DEL_RULE, family, _TABLE + text(2, name)) for name in owned]
        removals += [(_DEL_CHAIN, family, _TABLE + text(3, name)) for name in owned]
    steps += removals
    generation = attribute(_BATCH_GENERATION, attributes(netlink.request(_GET_GENERATION, 0))[1])
    parts = [message(_BATCH_BEGIN, REQUEST, 1, 0, generation, _RESOURCE)]
    # One acknowledgement: thousands would not fit the receive buffer, and errors come unasked.
    for sequence, (kind, family, data) in enumerate(steps, 2):
        flags = REQUEST | ACK if sequence == len(steps) + 1 else REQUEST
        parts.append(message(kind, flags, sequence, family, data))
    parts.append(message(_BATCH_END, REQUEST, len(steps) + 2, 0, b"", _RESOURCE))
    return b"".join(parts)
