"""The least that legacy iptables needs: libiptc's calls to remove what is owned, with all names known before."""

from __future__ import annotations

import ctypes
import time
from typing import Any

__all__ = ["clean", "deletion_order"]

_EVERY = 20
_TABLE = b"filter"


def clean() -> dict[str, float]:
    """Remove the chains of kube-router in the calling process's namespace.

    Returns the seconds for that ("seconds"), and for reading both tables and writing them back ("rewrite").
    """
    libraries = _libiptc()
    plans = [_plan(library) for library in libraries]
    start = time.perf_counter()
    for library in libraries:
        _rewrite(library)
    middle = time.perf_counter()
    for library, plan in zip(libraries, plans, strict=True):
        _apply(library, *plan)
    return {"seconds": time.perf_counter() - middle, "rewrite": middle - start}


def deletion_order(chains: list[bytes]) -> list[bytes]:
    """Return chains in an order in which libiptc deletes them without building its index anew each time.

    The index has an entry for every 40 chains or so, and is built anew when one loses its last chain. If all but
    every 20th go first, no entry does; then the same again with the rest.

    >>> [int(name) for name in deletion_order([b"%d" % i for i in range(45)])][-3:]
    [20, 40, 0]
    """
    if len(chains) <= 1:
        return chains
    first = [name for index, name in enumerate(chains) if index % _EVERY]
    return first + deletion_order(chains[::_EVERY])


def _plan(library: Any) -> tuple[list[tuple[bytes, int]], list[bytes], list[bytes]]:
    handle = library.iptc_init(_TABLE)
    if not handle:
        raise OSError("libiptc cannot read the filter table")
    jumps, owned = [], []
    chain = library.iptc_first_chain(handle)
    while chain:
        if chain.startswith(b"KUBE-"):
            owned.append(chain)
        elif library.iptc_builtin(chain, handle):
            jumps += [(chain, index) for index in _jumps(library, handle, chain)]
        chain = library.iptc_next_chain(handle)
    library.iptc_free(handle)
    return sorted(jumps, key=lambda jump: -jump[1]), owned, deletion_order(owned)


def _jumps(library: Any, handle: Any, chain: bytes) -> list[int]:
    found, index = [], 0
    rule = library.iptc_first_rule(chain, handle)
    while rule:
        if library.iptc_get_target(rule, handle).startswith(b"KUBE-"):
            found.append(index)
        index += 1
        rule = library.iptc_next_rule(rule, handle)
    return found


def _apply(library: Any, jumps: list[tuple[bytes, int]], flush: list[bytes], delete: list[bytes]) -> None:
    handle = library.iptc_init(_TABLE)
    done = all(library.iptc_delete_num_entry(chain, index, handle) for chain, index in jumps)
    done = done and all(library.iptc_flush_entries(chain, handle) for chain in flush)
    done = done and all(library.iptc_delete_chain(chain, handle) for chain in delete)
    if not done or not library.iptc_commit(handle):
        raise OSError("libiptc refused")
    library.iptc_free(handle)


def _rewrite(library: Any) -> None:
    handle = library.iptc_init(_TABLE)
    # A table in which nothing was changed is not written.
    if not library.iptc_set_policy(b"INPUT", b"ACCEPT", None, handle) or not library.iptc_commit(handle):
        raise OSError("libiptc refused")
    library.iptc_free(handle)


class _Libiptc:
    """The functions of libiptc for one family, which iptables brings along."""

    def __init__(self, name: str, prefix: str) -> None:
        library = ctypes.CDLL(name)
        text, number, handle = ctypes.c_char_p, ctypes.c_uint, ctypes.c_void_p
        signatures: dict[str, tuple[object, ...]] = {
            "init": (handle, text),
            "free": (None, handle),
            "first_chain": (text, handle),
            "next_chain": (text, handle),
            "builtin": (ctypes.c_int, text, handle),
            "first_rule": (handle, text, handle),
            "next_rule": (handle, handle, handle),
            "get_target": (text, handle, handle),
            "delete_num_entry": (ctypes.c_int, text, number, handle),
            "flush_entries": (ctypes.c_int, text, handle),
            "delete_chain": (ctypes.c_int, text, handle),
            "set_policy": (ctypes.c_int, text, text, handle, handle),
            "commit": (ctypes.c_int, handle),
        }
        for function, (result, *arguments) in signatures.items():
            found = getattr(library, prefix + function)
            found.restype, found.argtypes = result, arguments
            setattr(self, "iptc_" + function, found)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)  # all are set; this tells mypy


def _libiptc() -> tuple[Any, Any]:
    return _Libiptc("libip4tc.so.2", "iptc_"), _Libiptc("libip6tc.so.2", "ip6tc_")
