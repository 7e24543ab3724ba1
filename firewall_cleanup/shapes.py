"""Rule shapes: what a component's rules look like when neither a chain nor a jump gives them away.

A shape is written as `iptables-save` writes the rule, with `<placeholders>` for what differs from node to node:

>>> shape = Shape("filter", ("FORWARD",), '-o <interface> -m comment --comment "to pods" -j ACCEPT')
>>> from firewall_cleanup.rules import parse_rule
>>> shape.match(parse_rule('-A FORWARD -o eth0 -m comment --comment "to pods" -j ACCEPT'), Family.IPV4)
{'<interface>': 'eth0'}
>>> shape.match(parse_rule('-A FORWARD -o eth0 -m comment --comment "to pods 2" -j ACCEPT'), Family.IPV4)
>>> shape.match(parse_rule('-A FORWARD -s 192.0.2.1 -o eth0 -m comment --comment "to pods" -j ACCEPT'), Family.IPV4)

Every match of the rule must be in the shape and the other way round; their order does not count. A placeholder that
stands twice must have the same value twice.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable, Mapping

import attrs

from .model import BUILTIN_CHAINS, Family, Option, Rule, Target
from .rules import parse_rule

__all__ = ["Bindings", "Shape"]

Bindings = Mapping[str, str]


def _is_network(word: str, family: Family) -> bool:
    try:
        return ipaddress.ip_network(word).max_prefixlen == family.bits
    except ValueError:
        return False


def _is_host(word: str, family: Family) -> bool:
    return _is_network(word, family) and word.endswith(f"/{family.bits}")


def _is_address(word: str, family: Family) -> bool:
    return "/" not in word and _is_network(word, family)


def _is_number(word: str, _family: Family) -> bool:
    return word.isascii() and word.isdigit()


def _is_mark(word: str, _family: Family) -> bool:
    value, _, mask = word.partition("/")
    return value.startswith("0x") and mask == "0xffffffff"


def _is_interface(word: str, _family: Family) -> bool:
    return bool(word) and not word.endswith("+")


_PLACEHOLDERS: dict[str, Callable[[str, Family], bool]] = {
    "<cidr>": _is_network,
    "<vip>": _is_host,
    "<address>": _is_address,
    "<interface>": _is_interface,
    "<port>": _is_number,
    "<mss>": _is_number,
    "<mark>": _is_mark,
}

_Item = tuple[str, Option]


@attrs.frozen
class Shape:
    """A rule shape in one table and some built-in chains: of others' chains only jumps and sets are looked at.

    `{inet6}` in the text stands for the prefix `inet6:` in IPv6 and for nothing in IPv4. Target options named in
    `optional` may be there or not. Raises ValueError if a chain is not built in, and on first use if the text is no
    rule.
    """

    table: str
    chains: tuple[str, ...] = attrs.field()
    text: str
    optional: frozenset[str] = frozenset()

    @chains.validator
    def _are_builtin(self, _field: object, chains: tuple[str, ...]) -> None:
        if not set(BUILTIN_CHAINS[self.table]).issuperset(chains):
            raise ValueError(f"not all are built-in chains of {self.table}: {', '.join(chains)}")

    def match(self, rule: Rule, family: Family) -> Bindings | None:
        """Return what the placeholders stand for if the rule has this shape exactly, else None."""
        if rule.opaque or rule.chain not in self.chains:
            return None
        name, items, options = _compiled(self.text, family)
        target = rule.target
        if target.name != name or target.goto:
            return None
        given = [(match.name, option) for match in rule.matches for option in match.options]
        plain = [("", option) for option in target.options if option.flag not in self.optional]
        bindings = _unify(items, given, family, {})
        return None if bindings is None else _unify(options, plain, family, bindings)


@functools.cache
def _compiled(text: str, family: Family) -> tuple[str, list[_Item], list[_Item]]:
    rule = parse_rule("-A X " + text.format(inet6="inet6:" if family is Family.IPV6 else ""))
    target: Target = rule.target
    items = [(match.name, option) for match in rule.matches for option in match.options]
    return target.name, items, [("", option) for option in target.options]


def _unify(wanted: list[_Item], given: list[_Item], family: Family, bindings: Bindings) -> Bindings | None:
    """Pair each wanted item with a given one of its own; try all ways (there are few)."""
    if len(wanted) != len(given):
        return None
    if not wanted:
        return bindings
    for i, item in enumerate(given):
        found = _unify_item(wanted[0], item, family, bindings)
        if found is not None:
            rest = _unify(wanted[1:], given[:i] + given[i + 1 :], family, found)
            if rest is not None:
                return rest
    return None


def _unify_item(wanted: _Item, given: _Item, family: Family, bindings: Bindings) -> Bindings | None:
    option, other = wanted[1], given[1]
    if wanted[0] != given[0] or option.flag != other.flag or option.negated != other.negated:
        return None
    if len(option.words) != len(other.words):
        return None
    result = dict(bindings)
    for pattern, word in zip(option.words, other.words, strict=True):
        check = _PLACEHOLDERS.get(pattern)
        if check is None:
            if pattern != word:
                return None
        elif not check(word, family) or result.setdefault(pattern, word) != word:
            return None
    return result
