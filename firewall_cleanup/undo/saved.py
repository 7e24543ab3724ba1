"""What a backup holds, as a value and as the files of a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import attrs

from ..errors import BackupError
from ..model import BUILTIN_CHAINS, Backend, Family, NativeTable, TableKey
from ..rules import logical_lines
from .ip_text import is_line
from .rule_text import ForeignChain, is_same, read_save

__all__ = [
    "IP_FILES",
    "MANIFEST",
    "Saved",
    "SavedTable",
    "members_without_time",
    "plain_native",
    "service_of",
    "sets_of",
]

MANIFEST = "manifest.json"
SETS, NATIVE, SERVICES = "sets.ipset", "native.nft", "services.ipvs"
# In the order in which they are put back; with the family flag that `ip` needs.
IP_FILES: Mapping[str, str] = {
    "links.ip": "",
    "addresses.ip": "",
    "routes.ipv4.ip": "-4",
    "routes.ipv6.ip": "-6",
    "rules.ipv4.ip": "-4",
    "rules.ipv6.ip": "-6",
    "fou.ip": "",
}
_VERSION = 1
_COMMANDS = {
    SETS: "ipset restore",
    NATIVE: "nft -f",
    SERVICES: "ipvsadm -R",
    **{name: f"ip {flag} -batch".replace("  ", " ") for name, flag in IP_FILES.items()},
}
_T = TypeVar("_T")
_K = TypeVar("_K")


@attrs.frozen
class SavedTable:
    """What was removed from an iptables table: whole chains, and rules of others' chains."""

    chains: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    foreign: Mapping[str, ForeignChain] = attrs.field(factory=dict)
    policies: Mapping[str, str] = attrs.field(factory=dict, eq=False)

    def __bool__(self) -> bool:
        return bool(self.chains or self.foreign)


@attrs.frozen
class Saved:
    """What one part of a backup holds, each object as text.

    `sets` have the line that creates one, then its members; `lines` those for `ip -batch` by the name of their file;
    `services` the lines of a virtual service and its destinations.
    """

    tables: Mapping[TableKey, SavedTable] = attrs.field(factory=dict)
    sets: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    natives: Mapping[NativeTable, str] = attrs.field(factory=dict)
    lines: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    services: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)

    def __bool__(self) -> bool:
        parts = (self.sets, self.natives, self.services)
        return any(parts) or any(self.tables.values()) or any(self.lines.values())

    def minus(self, other: Saved) -> Saved:
        """Return what the other one does not hold, or holds with another content."""
        tables = {}
        for key, table in self.tables.items():
            old = other.tables.get(key, SavedTable())
            chains = _news(table.chains, old.chains, is_same)
            foreign = _news(table.foreign, old.foreign, _same_foreign)
            tables[key] = attrs.evolve(table, chains=chains, foreign=foreign)
        return Saved(
            tables={key: table for key, table in tables.items() if table},
            sets=_news(self.sets, other.sets, lambda a, b: members_without_time(a) == members_without_time(b)),
            natives=_news(self.natives, other.natives, lambda a, b: plain_native(a) == plain_native(b)),
            lines={
                name: tuple(line for line in lines if line not in other.lines.get(name, ()))
                for name, lines in self.lines.items()
            },
            services=_news(self.services, other.services, lambda a, b: a == b),
        )

    def plus(self, older: Saved) -> Saved:
        """Return both, this one's where both hold an object."""
        tables = dict(older.tables)
        for key, table in self.tables.items():
            old = older.tables.get(key, SavedTable())
            tables[key] = SavedTable(
                {**old.chains, **table.chains}, {**old.foreign, **table.foreign}, {**old.policies, **table.policies}
            )
        names = [name for name in IP_FILES if name in self.lines or name in older.lines]
        return Saved(
            tables,
            {**older.sets, **self.sets},
            {**older.natives, **self.natives},
            {name: _union(self.lines.get(name, ()), older.lines.get(name, ())) for name in names},
            {**older.services, **self.services},
        )

    # files

    def to_files(self, about: Mapping[str, Any]) -> dict[str, str]:
        """Return the files by name; `about` is added to the manifest."""
        files: dict[str, str] = {}
        for backend in Backend:
            for family in Family:
                keys = [k for k in self.tables if k.backend is backend and k.family is family and self.tables[k]]
                if text := "".join(_table_text(key, self.tables[key]) for key in sorted(keys, key=TableKey.sort_key)):
                    files[f"iptables-{backend.value}.{family.value}"] = text
        # Those that hold others come last, or they could not name them.
        sets = sorted(self.sets.values(), key=lambda lines: " list:set" in lines[0])
        files[SETS] = _text(line for lines in sets for line in lines)
        files[NATIVE] = "".join(self.natives.values())
        files[SERVICES] = _text(line for lines in self.services.values() for line in lines)
        files.update((name, _text(lines)) for name, lines in self.lines.items())
        files = {name: text for name, text in files.items() if text}
        tables = [
            {
                "family": key.family.value,
                "backend": key.backend.value,
                "table": key.name,
                "policies": dict(table.policies),
                "neighbours": {chain: list(found.neighbours) for chain, found in table.foreign.items()},
            }
            for key, table in self.tables.items()
            if table
        ]
        order = [{"file": name, "command": _command(name)} for name in sorted(files, key=_order)]
        manifest = {"version": _VERSION, **about, "order": order, "tables": tables}
        return files | {MANIFEST: json.dumps(manifest, indent=1) + "\n"}

    @classmethod
    def from_files(cls, files: Mapping[str, str]) -> Saved:
        """Read the files of one part. Raises BackupError if they are not what `to_files` writes."""
        try:
            manifest = _manifest(files)
            return cls(
                _tables(files, manifest["tables"]),
                sets_of(files.get(SETS, "")),
                _natives(files.get(NATIVE, "")),
                {name: _ip_lines(files[name]) for name in IP_FILES if name in files},
                _services(files.get(SERVICES, "").split("\n")),
            )
        except BackupError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise BackupError(f"the backup cannot be understood: {type(error).__name__} {error}") from error


def _manifest(files: Mapping[str, str]) -> Mapping[str, Any]:
    manifest: Mapping[str, Any] = json.loads(files[MANIFEST])
    if manifest["version"] != _VERSION:
        raise BackupError(f"the backup is of version {manifest['version']}, which is not known here")
    for one in manifest["order"]:
        if not files.get(one["file"]):  # no file is written empty
            raise BackupError(f"the backup is not whole: {one['file']} is missing or empty")
    return manifest


def _news(new: Mapping[_K, _T], old: Mapping[_K, _T], same: Callable[[_T, _T], bool]) -> dict[_K, _T]:
    return {name: one for name, one in new.items() if name not in old or not same(one, old[name])}


def _same_foreign(one: ForeignChain, other: ForeignChain) -> bool:
    return one.removed == other.removed and is_same(one.rules, other.rules)


def _union(new: Iterable[str], old: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*new, *old)))


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _command(name: str) -> str:
    if name in _COMMANDS:
        return _COMMANDS[name]
    tool, family = name.split(".")
    return f"{tool if family == 'ipv4' else tool.replace('iptables', 'ip6tables')}-restore --noflush --counters"


def _order(name: str) -> tuple[int, str]:
    order = [SETS, NATIVE, "iptables", *IP_FILES, SERVICES]
    return order.index(name if name in order else "iptables"), name


def _table_text(key: TableKey, table: SavedTable) -> str:
    lines = [f"*{key.name}", *(f":{chain} - [0:0]" for chain in table.chains)]
    lines += [line for rules in table.chains.values() for line in rules]
    lines += [line for foreign in table.foreign.values() for line in foreign.insertions()]
    return _text([*lines, "COMMIT"])


def _tables(files: Mapping[str, str], about: Iterable[Mapping[str, Any]]) -> dict[TableKey, SavedTable]:
    texts = {name: read_save(text) for name, text in files.items() if name.startswith("iptables-")}
    tables = {}
    for one in about:
        key = TableKey(Family(one["family"]), Backend(one["backend"]), one["table"])
        if key.name not in BUILTIN_CHAINS:
            raise ValueError(f"no table of iptables is called {key.name!r}")
        found = texts[f"iptables-{key.backend.value}.{key.family.value}"][key.name]
        neighbours = one["neighbours"]
        tables[key] = SavedTable(
            {chain: lines for chain, lines in found.chains.items() if chain not in neighbours},
            {chain: ForeignChain.of(rules, found.chains[chain]) for chain, rules in neighbours.items()},
            {chain: policy for chain, policy in one["policies"].items() if _is_policy(chain, policy)},
        )
    return tables


def _is_policy(chain: object, policy: object) -> bool:
    if not (isinstance(chain, str) and isinstance(policy, str)):
        raise TypeError(f"the policy of {chain!r} is no text")
    return True


def _ip_lines(text: str) -> tuple[str, ...]:
    lines = tuple(filter(None, text.split("\n")))
    unknown = next((line for line in lines if not is_line(line)), None)
    if unknown is not None:
        raise ValueError(f"not a line for ip: {unknown}")
    return lines


def sets_of(text: str) -> dict[str, tuple[str, ...]]:
    """Return the lines of each set in what `ipset save` prints. Raises ValueError or LookupError for other lines."""
    sets: dict[str, list[str]] = {}
    for number, line in logical_lines(text):
        verb, name, *_rest = line.split()
        if verb == "create":
            sets[name] = [line]
        elif verb == "add":
            sets[name].append(line)
        else:
            raise ValueError(f"line {number} is none of ipset save: {line[:80]}")
    return {name: tuple(found) for name, found in sets.items()}


def _natives(text: str) -> dict[NativeTable, str]:
    blocks = re.finditer(r"^table (\S+) (\S+) \{\n.*?^\}\n?", text, re.MULTILINE | re.DOTALL)
    return {NativeTable(block[1], block[2]): block[0] for block in blocks}


def _services(lines: Iterable[str]) -> dict[str, tuple[str, ...]]:
    services: dict[str, list[str]] = {}
    for line in filter(None, lines):
        services.setdefault(service_of(line), []).append(line)
    return {name: tuple(found) for name, found in services.items()}


def service_of(line: str) -> str:
    """Return the service of a line for `ipvsadm -R`: `-t 192.0.2.1:80`, `-f 7 -6`."""
    words = line.split()
    return " ".join(words[1:4] if words[1] == "-f" and words[3:4] == ["-6"] else words[1:3])


def members_without_time(lines: Iterable[str]) -> tuple[str, frozenset[str]]:
    """Return what a set is and holds, less what the kernel makes up, its size, and how much time is left.

    Raises ValueError if there are no lines.
    """
    first, *members = lines
    create = re.sub(r" (initval 0x[0-9a-f]+|hashsize \d+|bucketsize \d+)", "", first).strip()
    return create, frozenset(re.sub(r" timeout [1-9]\d*", " timeout …", line).strip() for line in members)


def plain_native(text: str) -> str:
    """Return a table as `nft list table` prints it, less what it counted and how much time is left."""
    text = re.sub(r"\bpackets \d+ bytes \d+", "packets … bytes …", text)
    text = re.sub(r" expires \w+", "", text)
    return re.sub(
        r"elements = \{(.*?)\}", lambda m: " ".join(sorted(" ".join(m[1].split()).split(", "))), text, flags=re.DOTALL
    )
