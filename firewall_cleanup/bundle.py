"""A node as the files of a folder, read back: a snapshot with gaps for what the files do not say. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from .dumps import IPTABLES_FILES, backend_of, read_dumps
from .errors import DumpError
from .model import Backend, Family, Gap, IpSet, Rule, Snapshot, Table, TableKey

__all__ = ["FILES", "MANIFEST", "WRITTEN", "Bundle", "Manifest", "RuleNote", "read_bundle"]

MANIFEST = "manifest.json"
WRITTEN = "# Written by firewall-cleanup"
"""How files of rules begin that go with a manifest."""
_VERSION = 1

# What each file tells of, in words, and for gaps its subsystem and family.
_SUBJECTS: Mapping[str, tuple[str, str, Family | None]] = {
    **{name: ("its rules", "iptables", family) for name, (family, _backend) in IPTABLES_FILES.items()},
    "ipset-save": ("sets", "ipset", None),
    "nft-ruleset.json": ("tables of nftables, and verdict maps to chains,", "nftables", None),
    "ipvsadm-save": ("services of IPVS", "ipvs", None),
    "ip-link.json": ("links, and what is on them or leads through them,", "routing", None),
    "ip-addr.json": ("addresses, and services on them,", "routing", None),
    "ip-rule.json": ("policy rules, and services that they prove,", "routing", Family.IPV4),
    "ip6-rule.json": ("policy rules, and services that they prove,", "routing", Family.IPV6),
    "ip-route.json": ("routes", "routing", Family.IPV4),
    "ip6-route.json": ("routes", "routing", Family.IPV6),
    "ip-fou.json": ("FOU ports, and tunnels that prove them,", "fou", None),
}
FILES = tuple(_SUBJECTS)
"""The names of the files that are read, beside the manifest."""


@attrs.frozen
class RuleNote:
    """What a rule's line in a file does not say of it: its text by iptables itself, and the sets that it uses."""

    key: TableKey
    chain: str
    index: int
    text: str | None = None
    sets: frozenset[str] = frozenset()


@attrs.frozen
class Manifest:
    """What the standard tools do not print, and what was not read.

    `files` are those that were written, `families` those that the kernel has, `gaps` what could not be read,
    `references` how many use each set, `routes` the tables that were read, each with a protocol number or 0 for all,
    `left_out` the sets whose members were not read, `rules` what is known of rules beside their text, and `traces`
    what was found of the component's files.
    """

    files: frozenset[str]
    families: frozenset[Family] = frozenset(Family)
    gaps: tuple[Gap, ...] = ()
    references: Mapping[str, int] = attrs.field(factory=dict)
    routes: frozenset[tuple[int, int]] = frozenset()
    left_out: frozenset[str] = frozenset()
    rules: tuple[RuleNote, ...] = ()
    traces: tuple[str, ...] = ()

    def to_text(self, about: Mapping[str, Any]) -> str:
        """Return it as JSON; `about` is added."""
        return json.dumps(
            {
                "version": _VERSION,
                **about,
                "files": sorted(self.files),
                "families": sorted(family.value for family in self.families),
                "gaps": [_gap_dict(gap) for gap in self.gaps],
                "references": dict(self.references),
                "routes": sorted(self.routes),
                "left_out": sorted(self.left_out),
                "rules": [_rule_dict(rule) for rule in self.rules],
                "traces": list(self.traces),
            },
            indent=1,
        )

    @classmethod
    def from_text(cls, text: str) -> Manifest:
        """Read it. Raises ValueError, KeyError, TypeError, AttributeError or RecursionError for anything else."""
        data = json.loads(text)
        if data["version"] != _VERSION:
            raise ValueError(f"version {data['version']!r} is not known")
        return cls(
            files=frozenset(map(_word, data["files"])),
            families=frozenset(Family(name) for name in data["families"]),
            gaps=tuple(_gap(gap) for gap in data["gaps"]),
            references={_word(name): int(number) for name, number in data["references"].items()},
            routes=frozenset((int(table), int(protocol)) for table, protocol in data["routes"]),
            left_out=frozenset(map(_word, data["left_out"])),
            rules=tuple(_rule_note(rule) for rule in data["rules"]),
            traces=tuple(map(_word, data["traces"])),
        )


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, not {value!r}")
    return value


def _gap_dict(gap: Gap) -> dict[str, str | None]:
    return {"subsystem": gap.subsystem, **gap.to_dict()}


def _gap(data: Mapping[str, Any]) -> Gap:
    family, backend, table = data["family"], data["backend"], data["table"]
    return Gap(
        reason=_word(data["reason"]),
        family=None if family is None else Family(family),
        backend=None if backend is None else Backend(backend),
        table=None if table is None else _word(table),
        subsystem=_word(data["subsystem"]),
    )


def _rule_dict(note: RuleNote) -> dict[str, Any]:
    where = {"family": note.key.family.value, "backend": note.key.backend.value, "table": note.key.name}
    return {**where, "chain": note.chain, "index": note.index, "text": note.text, "sets": sorted(note.sets)}


def _rule_note(data: Mapping[str, Any]) -> RuleNote:
    key = TableKey(Family(data["family"]), Backend(data["backend"]), _word(data["table"]))
    text = None if data["text"] is None else _word(data["text"])
    return RuleNote(key, _word(data["chain"]), int(data["index"]), text, frozenset(map(_word, data["sets"])))


@attrs.frozen
class Bundle:
    """What the files of a folder say of a node.

    `manifest` is None if they were not written by `collect`. `texts` has rules as iptables prints them, by the number
    of each in its chain. `problems` are lines that could not be understood, beside those that a gap names; they count
    as foreign.
    """

    snapshot: Snapshot
    manifest: Manifest | None = None
    texts: Mapping[tuple[TableKey, str], Mapping[int, str]] = attrs.field(factory=dict)
    problems: tuple[DumpError, ...] = ()


def read_bundle(files: Mapping[str, str], *, unreadable: Mapping[str, str] | None = None) -> Bundle:
    """Return what files say, given by their names; `unreadable` has the reason for each that could not be opened.

    Nothing is raised for what is in them: a line that is not understood is a problem, and a file or table of which
    more than lines is unknown is a gap of the snapshot, as is a file that is missing. Other names are ignored.
    """
    problems: list[DumpError] = []
    unread = dict(unreadable or {})
    manifest = _manifest(files[MANIFEST], problems) if MANIFEST in files else None
    given = {name: text for name, text in files.items() if name in _SUBJECTS}
    backends = {name: known or backend_of(given.get(name, "")) for name, (_family, known) in IPTABLES_FILES.items()}
    snapshot = read_dumps(given, problems=problems)
    gaps = [] if manifest is None else list(manifest.gaps)
    gaps += [_unread_gap(name, f"{name}: {reason}", backends.get(name)) for name, reason in unread.items()]
    if MANIFEST not in {*files, *unread} and any(text.startswith(WRITTEN) for text in given.values()):
        gaps.append(
            Gap(f"{MANIFEST} is missing: what was not read, and what uses sets, cannot be judged", subsystem="bundle")
        )
    gaps += _missing(given.keys() | unread.keys(), snapshot, manifest, backends)
    unknown = _unknown(problems)
    gaps += [_gap_of(error, backends) for error in unknown]
    texts: dict[tuple[TableKey, str], dict[int, str]] = {}
    if manifest is not None:
        snapshot = attrs.evolve(snapshot, tables=_noted(snapshot.tables, manifest.rules, texts))
    rules_unknown = any(gap.subsystem in {"iptables", "bundle"} for gap in gaps)
    references = _References(None if manifest is None else manifest.references, rules_unknown)
    snapshot = attrs.evolve(
        snapshot,
        sets={name: references.of(item) for name, item in snapshot.sets.items()},
        gaps=tuple(dict.fromkeys(gaps)),
    )
    return Bundle(snapshot, manifest, texts, tuple(error for error in problems if error not in unknown))


def _manifest(text: str, problems: list[DumpError]) -> Manifest | None:
    try:
        return Manifest.from_text(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"not a manifest of this release: {type(error).__name__} {error}"
        problems.append(DumpError(reason, source=MANIFEST, line=1, whole=True))
        return None


@attrs.frozen
class _References:
    """How many use each set: as was counted on the node, or by the rules that there are.

    If there may be more rules, somebody may use it: a set that is owned only while nothing does is not owned then.
    """

    counted: Mapping[str, int] | None
    unknown: bool

    def of(self, item: IpSet) -> IpSet:
        if self.counted is not None:
            return attrs.evolve(item, references=max(item.references, self.counted.get(item.name, 0)))
        return attrs.evolve(item, references=max(item.references, 1)) if self.unknown else item


def _noted(
    tables: Mapping[TableKey, Table], notes: tuple[RuleNote, ...], texts: dict[tuple[TableKey, str], dict[int, str]]
) -> dict[TableKey, Table]:
    """Give rules what is noted of them beside their text; what `iptables` says of them goes into `texts`."""
    result = dict(tables)
    by_chain: dict[tuple[TableKey, str], dict[int, RuleNote]] = {}
    for note in notes:
        by_chain.setdefault((note.key, note.chain), {})[note.index] = note
    for (key, chain), found in by_chain.items():
        if key in result and chain in result[key].rules:
            rules = tuple(_with_note(rule, found.get(i)) for i, rule in enumerate(result[key].rules[chain]))
            result[key] = attrs.evolve(result[key], rules={**result[key].rules, chain: rules})
            texts[key, chain] = {i: note.text for i, note in found.items() if note.text is not None}
    return result


def _with_note(rule: Rule, note: RuleNote | None) -> Rule:
    # Only what was not understood there: a note cannot make a rule say anything else.
    return rule if note is None or not rule.opaque else attrs.evolve(rule, sets=rule.sets | note.sets)


def _missing(
    given: set[str], snapshot: Snapshot, manifest: Manifest | None, backends: Mapping[str, Backend]
) -> Iterator[Gap]:
    if manifest is not None:
        expected = [name for name in FILES if name in manifest.files]
    else:
        shown = {(IPTABLES_FILES[name][0], backends[name]) for name in given if name in IPTABLES_FILES}
        expected = [name for name, where in IPTABLES_FILES.items() if where[1] and where not in shown]
        tunnels = any(link.encap_port for link in snapshot.links)
        expected += [name for name in FILES if name not in IPTABLES_FILES and (name != "ip-fou.json" or tunnels)]
    for name in expected:
        if name not in given:
            reason = f"{name} is missing: {_SUBJECTS[name][0]} cannot be judged"
            yield _unread_gap(name, reason, backends.get(name))


def _unread_gap(name: str, reason: str, backend: Backend | None, table: str | None = None) -> Gap:
    _what, subsystem, family = _SUBJECTS.get(name, ("", "bundle", None))
    return Gap(reason, family, backend, table, subsystem)


def _unknown(problems: list[DumpError]) -> list[DumpError]:
    """Return the first problem of each file, and table of one, of which more than a line is unknown."""
    first: dict[tuple[str, str | None], DumpError] = {}
    for error in problems:
        if error.whole:
            first.setdefault((error.source, error.table), error)
    return list(first.values())


def _gap_of(error: DumpError, backends: Mapping[str, Backend]) -> Gap:
    if error.source in IPTABLES_FILES or error.table is None:
        return _unread_gap(error.source, str(error), backends.get(error.source), error.table)
    # A table of iptables that the ruleset of nftables has, and no other file.
    family, _, name = error.table.partition(" ")
    return Gap(str(error), Family.IPV4 if family == "ip" else Family.IPV6, Backend.NFT, name)
