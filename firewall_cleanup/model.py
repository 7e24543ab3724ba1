"""Values that describe a node: frozen, comparable, free of I/O.

A rule is kept in the terms of `iptables-save`: options with words. Both iptables backends, both families and
the reader of dump files produce the same values for the same rule, so everything that decides is written once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import attrs

__all__ = [
    "BUILTIN_CHAINS",
    "WHOLE_LINE",
    "Address",
    "Backend",
    "Change",
    "Controller",
    "Family",
    "FamilyState",
    "FileTrace",
    "FouPort",
    "Gap",
    "IpSet",
    "IpvsService",
    "Item",
    "Kind",
    "Link",
    "Match",
    "NativeTable",
    "Option",
    "Policy",
    "PolicyRule",
    "Route",
    "Rule",
    "Snapshot",
    "Table",
    "TableChange",
    "TableKey",
    "Target",
    "names_by_index",
]


class Family(enum.Enum):
    """An address family."""

    IPV4 = "ipv4"
    IPV6 = "ipv6"

    __hash__ = object.__hash__  # members are unique; the inherited one is slow and part of every table's key

    @property
    def number(self) -> int:
        """The family's number in netlink (AF_INET, AF_INET6)."""
        return 2 if self is Family.IPV4 else 10

    @property
    def bits(self) -> int:
        """The length of an address in bits."""
        return 32 if self is Family.IPV4 else 128

    def __lt__(self, other: Family) -> bool:
        return self.value < other.value


class Backend(enum.Enum):
    """Where the rules of iptables live: `legacy` is xtables, `nft` is nf_tables."""

    LEGACY = "legacy"
    NFT = "nft"

    __hash__ = object.__hash__


class Controller(enum.Enum):
    """A part of a component that can be cleaned alone."""

    SERVICE_PROXY = "service-proxy"
    NETWORK_POLICY = "network-policy"
    ROUTING = "routing"

    __hash__ = object.__hash__


class Kind(enum.Enum):
    """What sort of kernel object an outcome is about."""

    TABLE = "table"
    CHAIN = "chain"
    RULE = "rule"
    SET = "set"
    IPVS_SERVICE = "ipvs-service"
    POLICY_RULE = "policy-rule"
    ROUTE = "route"
    FOU_PORT = "fou-port"
    LINK = "link"
    ADDRESS = "address"


class FamilyState(enum.Enum):
    """Whether a family was looked at: all of it, not at all because the kernel lacks it, or not all of it."""

    EXAMINED = "examined"
    ABSENT = "absent"
    GAP = "gap"


@attrs.frozen(cache_hash=True)
class TableKey:
    """An iptables table: its family, its backend and its name (`filter`, `nat`, …)."""

    family: Family
    backend: Backend
    name: str

    def sort_key(self) -> tuple[str, str, str]:
        """A key that orders tables the same way in every run."""
        return (self.backend.value, self.family.value, self.name)


@attrs.frozen
class Option:
    """One option of a match or a target: `! --match-set blocklist src` is its flag, its words, negated."""

    flag: str
    words: tuple[str, ...] = ()
    negated: bool = False


@attrs.frozen
class Match:
    """A match extension with its options; the name "" holds the options that need none (`-s`, `-i`, `-p` …)."""

    name: str
    options: tuple[Option, ...] = ()


@attrs.frozen
class Target:
    """Where a rule sends the packet: a verdict, a chain or a target extension. The name "" means nowhere."""

    name: str = ""
    options: tuple[Option, ...] = ()
    goto: bool = False


WHOLE_LINE = "line"
"""The opaque part of a rule of which no part was understood."""


@attrs.frozen
class Rule:
    """A rule of an iptables table.

    `opaque` names the parts that were not understood; such a rule is never owned for its shape, but its jump and
    the sets it uses (`sets`) are known all the same. `handle`, `index` (from 0, within its chain) and the counters
    say where the rule is and what it counted; they take no part in comparing rules. A rule with the opaque part
    `WHOLE_LINE` was a line of a file that could not be understood: not even a jump proves whose it is.
    """

    chain: str
    matches: tuple[Match, ...] = ()
    target: Target = Target()
    opaque: tuple[str, ...] = ()
    sets: frozenset[str] = frozenset()
    handle: int | None = attrs.field(default=None, eq=False)
    index: int = attrs.field(default=0, eq=False)
    packets: int = attrs.field(default=0, eq=False)
    bytes: int = attrs.field(default=0, eq=False)
    text: str | None = attrs.field(default=None, eq=False)


@attrs.frozen
class Policy:
    """The policy of a built-in chain with its packet and byte counters."""

    verdict: str
    packets: int = 0
    bytes: int = 0


Rules: TypeAlias = Mapping[str, tuple[Rule, ...]]


@attrs.frozen
class Table:
    """An iptables table: built-in chains with their policies, user chains, and the rules of chains that were read.

    A chain that is not in `rules` was not read (the inside of an owned chain goes with it and says nothing).
    `mapped` names the nf_tables verdict map of each chain to which one sends packets.
    """

    key: TableKey
    builtin: Mapping[str, Policy] = attrs.field(factory=dict)
    chains: tuple[str, ...] = ()
    rules: Rules = attrs.field(factory=dict)
    mapped: Mapping[str, str] = attrs.field(factory=dict)


BUILTIN_CHAINS: Mapping[str, tuple[str, ...]] = {
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "raw": ("PREROUTING", "OUTPUT"),
    "security": ("INPUT", "FORWARD", "OUTPUT"),
}
"""The built-in chains of each iptables table."""


@attrs.frozen
class NativeTable:
    """An nf_tables table by its nf_tables family (`ip`, `ip6`, `inet` …) and name."""

    family: str
    name: str

    @property
    def address_family(self) -> Family | None:
        """The address family, or None for a table that serves none or both."""
        return {"ip": Family.IPV4, "ip6": Family.IPV6}.get(self.family)


@attrs.frozen
class IpSet:
    """An ipset as its header shows it.

    `family` is the kernel's word, None where a type has none. `references` counts the rules and sets that use it.
    `members` are read for list:set only, where they name other sets. `header` has the kernel's attributes by number.
    """

    name: str
    type: str
    family: Family | None = None
    references: int = 0
    index: int | None = attrs.field(default=None, eq=False)
    members: tuple[str, ...] = ()
    header: Mapping[int, bytes] = attrs.field(factory=dict, eq=False, repr=False)


@attrs.frozen
class Link:
    """A network interface.

    `kind` is the kernel's word (`dummy`, `bridge`, `ipip` …), "" for hardware. For a tunnel, `remote` is its other
    end and `encap_port` the UDP port to which it is encapsulated, 0 for none.
    """

    name: str
    kind: str = ""
    index: int = attrs.field(default=0, eq=False)
    master: str | None = None
    remote: str | None = None
    encap_port: int = 0


@attrs.frozen
class PolicyRule:
    """A policy rule that looks a table up: `from SOURCE fwmark MARK lookup TABLE`.

    `plain` is False if it selects by anything else, or does anything else. `raw` is the kernel's own message, with
    which it is deleted again exactly.
    """

    family: Family
    table: int
    priority: int = 0
    source: str | None = None
    mark: int | None = None
    plain: bool = True
    raw: bytes = attrs.field(default=b"", repr=False)


@attrs.frozen
class Route:
    """A route. `protocol` and `scope` are the kernel's numbers, `type` is 1 for unicast and 2 for local.

    `raw` is the kernel's own message, with which it is deleted again exactly.
    """

    family: Family
    table: int
    destination: str
    protocol: int = 0
    scope: int = 0
    type: int = 1
    gateway: str | None = None
    device: str | None = None
    metric: int = 0
    raw: bytes = attrs.field(default=b"", eq=False, repr=False)


@attrs.frozen
class Address:
    """An address in CIDR form on a link. `raw` is the kernel's own message, by which it is deleted exactly."""

    family: Family
    link: str
    address: str
    raw: bytes = attrs.field(default=b"", eq=False, repr=False)


@attrs.frozen
class FouPort:
    """A UDP port on which the kernel takes encapsulated packets; `kind` is 1 for FOU, 2 for GUE."""

    family: Family
    port: int
    kind: int = 2


def names_by_index(sets: Iterable[IpSet]) -> dict[int, str]:
    """Return the names of sets by the index that rules hold."""
    return {item.index: item.name for item in sets if item.index is not None}


@attrs.frozen
class IpvsService:
    """A virtual service of IPVS: an address, protocol and port, or a firewall mark, with its destinations.

    A destination is `address:port`, in IPv6 `[address]:port`.
    """

    family: Family
    protocol: str = ""
    address: str = ""
    port: int = 0
    mark: int = 0
    destinations: frozenset[str] = attrs.field(default=frozenset(), eq=False)

    @property
    def name(self) -> str:
        """The service as `ipvsadm` writes it."""
        if self.mark:
            return f"fwmark {self.mark}"
        host = self.address if self.family is Family.IPV4 else f"[{self.address}]"
        return f"{self.protocol} {host}:{self.port}"


# What is neither in a table of rules nor a set, and is removed one by one.
Item: TypeAlias = IpvsService | PolicyRule | Route | FouPort | Link | Address


@attrs.frozen
class FileTrace:
    """A file, or whole lines in one, that the component wrote, and what a person can do about it."""

    path: str
    advice: str
    lines: frozenset[str] = frozenset()


@attrs.frozen
class Gap:
    """A part of the node that could not be read or written, and why. Nothing that depends on it is removed."""

    reason: str
    family: Family | None = None
    backend: Backend | None = None
    table: str | None = None
    subsystem: str = "iptables"

    def to_dict(self) -> dict[str, str | None]:
        """Return the gap as JSON has it."""
        return {
            "family": None if self.family is None else self.family.value,
            "backend": None if self.backend is None else self.backend.value,
            "table": self.table,
            "reason": self.reason,
        }

    def covers(self, key: TableKey) -> bool:
        """Tell whether the gap is about this iptables table, alone or among others."""
        return (
            self.subsystem == "iptables"
            and self.family in {None, key.family}
            and self.backend in {None, key.backend}
            and self.table in {None, key.name}
        )


@attrs.frozen
class Snapshot:
    """What was seen of a node at one moment."""

    tables: Mapping[TableKey, Table] = attrs.field(factory=dict)
    native_tables: tuple[NativeTable, ...] = ()
    sets: Mapping[str, IpSet] = attrs.field(factory=dict)
    links: tuple[Link, ...] = ()
    addresses: tuple[Address, ...] = ()
    policy_rules: tuple[PolicyRule, ...] = ()
    routes: tuple[Route, ...] = ()
    fou_ports: tuple[FouPort, ...] = ()
    services: tuple[IpvsService, ...] = ()
    gaps: tuple[Gap, ...] = ()
    families: Mapping[Family, FamilyState] = attrs.field(factory=dict)

    def addresses_on(self, link: Link) -> tuple[Address, ...]:
        """Return the addresses of a link."""
        return tuple(address for address in self.addresses if address.link == link.name)

    def policy_rules_of(self, family: Family) -> tuple[PolicyRule, ...]:
        """Return the policy rules of a family."""
        return tuple(rule for rule in self.policy_rules if rule.family is family)

    def routes_in(self, family: Family, selections: Iterable[tuple[int, int]]) -> tuple[Route, ...]:
        """Return the routes of some tables, each given with a protocol number or 0 for all."""
        return tuple(
            route
            for table, protocol in selections
            for route in self.routes
            if (route.family, route.table) == (family, table) and protocol in {0, route.protocol}
        )


@attrs.frozen
class TableChange:
    """What to remove from one iptables table: rules of foreign chains, and owned chains.

    `flush` empties chains; `delete` (a part of them) then deletes chains. Nothing else in the table is written.
    """

    key: TableKey
    rules: tuple[Rule, ...] = ()
    flush: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules or self.flush or self.delete)


@attrs.frozen
class Change:
    """What to remove in one step from tables of one backend. Empty is a valid change: nothing is sent."""

    tables: tuple[TableChange, ...] = ()
    native_tables: tuple[NativeTable, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.native_tables) or any(self.tables)
