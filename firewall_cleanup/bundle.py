"""A node as the files of a folder, read back: a snapshot with gaps for what the files do not say. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from .dumps import IPTABLES_FILES, backend_of, read_dumps
from .dumps_host import word_of, word_or_none
from .errors import DumpError
from .model import Backend, Family, Gap, IpSet, Rule, Snapshot, Table, TableKey
from .rules import parse_rule

__all__ = ["FILES", "MANIFEST", "WRITTEN", "Bundle", "Manifest", "RuleNote", "read_bundle"]

MANIFEST = "manifest.json"
WRITTEN = "# Written by firewall-cleanup"
"""How files of rules begin that go with a manifest."""
_VERSION = 1
# What reading a manifest raises where something else stands in it, or a number beyond all measure.
_WRONG = (ValueError, KeyError, TypeError, AttributeError, RecursionError, ArithmeticError)

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
    `left_out` the sets whose members were not read, `rules` what is known of rules beside their text, `counts` how
    many rules each chain has of which something is known, and `traces` what was found of the component's files.
    """

    files: frozenset[str]
    families: frozenset[Family] = frozenset(Family)
    gaps: tuple[Gap, ...] = ()
    references: Mapping[str, int] = attrs.field(factory=dict)
    routes: frozenset[tuple[int, int]] = frozenset()
    left_out: frozenset[str] = frozenset()
    rules: tuple[RuleNote, ...] = ()
    counts: Mapping[tuple[TableKey, str], int] = attrs.field(factory=dict)
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
                "counts": [
                    {**_key_dict(key), "chain": chain, "rules": number}
                    for (key, chain), number in self.counts.items()
                ],
                "traces": list(self.traces),
            },
            indent=1,
        )

    @classmethod
    def from_text(cls, text: str) -> Manifest:
        """Read it. Raises one of `_WRONG` for anything else."""
        data = json.loads(text)
        if data["version"] != _VERSION:
            raise ValueError(f"version {data['version']!r} is not known")
        return cls(
            files=frozenset(map(word_of, data["files"])),
            families=frozenset(Family(name) for name in data["families"]),
            gaps=tuple(_gap(gap) for gap in data["gaps"]),
            references={word_of(name): int(number) for name, number in data["references"].items()},
            routes=frozenset((int(table), int(protocol)) for table, protocol in data["routes"]),
            left_out=frozenset(map(word_of, data["left_out"])),
            rules=tuple(_rule_note(rule) for rule in data["rules"]),
            counts={(_key(one), word_of(one["chain"])): int(one["rules"]) for one in data["counts"]},
            traces=tuple(map(word_of, data["traces"])),
        )


def _gap_dict(gap: Gap) -> dict[str, str | None]:
    return {"subsystem": gap.subsystem, **gap.to_dict()}


def _gap(data: Mapping[str, Any]) -> Gap:
    family, backend, table = data["family"], data["backend"], data["table"]
    return Gap(
        reason=word_of(data["reason"]),
        family=None if family is None else Family(family),
        backend=None if backend is None else Backend(backend),
        table=word_or_none(table),
        subsystem=word_of(data["subsystem"]),
    )


def _key_dict(key: TableKey) -> dict[str, str]:
    return {"family": key.family.value, "backend": key.backend.value, "table": key.name}


def _key(data: Mapping[str, Any]) -> TableKey:
    return TableKey(Family(data["family"]), Backend(data["backend"]), word_of(data["table"]))


def _rule_dict(note: RuleNote) -> dict[str, Any]:
    return {
        **_key_dict(note.key),
        "chain": note.chain,
        "index": note.index,
        "text": note.text,
        "sets": sorted(note.sets),
    }


def _rule_note(data: Mapping[str, Any]) -> RuleNote:
    key = _key(data)
    sets = frozenset(map(word_of, data["sets"]))
    return RuleNote(key, word_of(data["chain"]), int(data["index"]), word_or_none(data["text"]), sets)


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
        noted = _Noted(manifest, texts, gaps, problems)
        snapshot = attrs.evolve(snapshot, tables=noted.tables(snapshot.tables))
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
    except _WRONG as error:
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


@attrs.frozen
class _Noted:
    """What is noted of rules beside their text; what `iptables` says of them goes into `texts`.

    A note is of the rule with a number. In a chain that has more or fewer rules by now, each would be of another one.
    """

    manifest: Manifest
    texts: dict[tuple[TableKey, str], dict[int, str]]
    gaps: list[Gap]
    problems: list[DumpError]

    def tables(self, tables: Mapping[TableKey, Table]) -> dict[TableKey, Table]:
        """Return the tables with what is noted of their rules."""
        result = dict(tables)
        by_chain: dict[tuple[TableKey, str], dict[int, RuleNote]] = {}
        for note in self.manifest.rules:
            by_chain.setdefault((note.key, note.chain), {})[note.index] = note
        for (key, chain), found in by_chain.items():
            if key not in result:
                continue
            table, rules = result[key], result[key].rules.get(chain, ())
            if not rules or self.manifest.counts.get((key, chain)) != len(rules):
                reason = f"chain {chain} has more or fewer rules than {MANIFEST} says: its notes of them are left out"
                self.gaps.append(Gap(reason, key.family, key.backend, key.name))
                continue
            self.texts[key, chain] = {}
            rules = tuple(self._with_note(table, rule, found.get(i)) for i, rule in enumerate(rules))
            result[key] = attrs.evolve(table, rules={**table.rules, chain: rules})
        return result

    def _with_note(self, table: Table, rule: Rule, note: RuleNote | None) -> Rule:
        # Only what was not understood there: a note cannot make a rule say anything else.
        if note is None or not rule.opaque:
            return rule
        if note.text is not None:
            if _is_text_of(note.text, rule, table):
                self.texts[note.key, note.chain][note.index] = note.text
            else:
                reason = f"rule {note.index + 1} of chain {note.chain} is another one than its text says"
                self.problems.append(DumpError(reason, source=MANIFEST, line=1))
        return attrs.evolve(rule, sets=rule.sets | note.sets)


def _is_text_of(text: str, rule: Rule, table: Table) -> bool:
    """Tell whether a text can be that of a rule, as it may become the words of a deletion."""
    try:
        said = parse_rule(text, user_chains=table.chains)
    except ValueError:
        return False
    # A target that was not understood has no name.
    same = not rule.target.name or (said.target.name, said.target.goto) == (rule.target.name, rule.target.goto)
    return text.startswith("-A ") and said.chain == rule.chain and same and said.sets >= rule.sets


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
