"""Laws of planning on files: it says what the node itself would, and whatever is in the files, it says something."""

from __future__ import annotations

import errno
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import attrs
import pytest
from builders import V4, V6, host_node
from hypothesis import event, given, settings
from hypothesis import strategies as st

from firewall_cleanup import Backend, CleanupReport, Controller, Family, Gap
from firewall_cleanup.bundle import FILES, MANIFEST, read_bundle
from firewall_cleanup.bundles import files_of_node, read_node
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.engine import Settings, run
from firewall_cleanup.filehost import FileHost
from firewall_cleanup.host import Host
from firewall_cleanup.model import IpSet, Rule, Snapshot, TableKey
from firewall_cleanup.report import BadLine
from firewall_cleanup.script import script
from firewall_cleanup.testing import MemoryHost, read_table, strategies
from firewall_cleanup.testing.strategies import Scenario
from firewall_cleanup.text import summary
from firewall_cleanup.writers import Writers

pytestmark = pytest.mark.property

BOTH = frozenset(Family)
CHOICES = st.sets(st.sampled_from(Controller), min_size=1).map(frozenset)


def plan(host: Host, controllers: frozenset[Controller] = frozenset(Controller), **settings: bool) -> CleanupReport:
    return run(host, KUBE_ROUTER, controllers, Settings(dry_run=True, **settings))


def collected(host: MemoryHost) -> dict[str, str]:
    return files_of_node(host, KUBE_ROUTER, read_node(host, KUBE_ROUTER), {})


def from_files(files: Mapping[str, str], families: Collection[Family] = BOTH) -> FileHost:
    return FileHost.of(read_bundle(files), KUBE_ROUTER, families)


def said(report: CleanupReport) -> tuple[object, list[str]]:
    """All that a report says, but for who writes, which files do not tell."""
    report = attrs.evolve(report, writers=Writers())
    return json.loads(json.dumps(report.to_dict())), list(summary(report, verbose=True))


@st.composite
def nodes(draw: st.DrawFn) -> MemoryHost:
    """Nodes with rules, sets and tables of all sorts, and with a part of what else there is, in both families."""
    snapshot = draw(strategies.mixed_nodes(holders=True)).snapshot
    both = (host_node(V4).state, host_node(V6).state)
    fields = {
        field: tuple(draw(st.lists(st.sampled_from(items), unique_by=repr))) if items else ()
        for field in ("links", "addresses", "policy_rules", "routes", "fou_ports", "services")
        if (items := [item for one in both for item in getattr(one, field)])
    }
    names = {link.name: link for link in fields["links"]}
    fields["links"] = tuple(names.values())
    members = draw(st.sampled_from([(), ("192.0.2.10,tcp:30080",), ("10.96.0.2,tcp:443", "10.96.0.9,udp:53")]))
    sets = [IpSet(name, "hash:ip,port", V4, members=members) for name in ("kube-router-svip-prt", "KUBE-CLUSTER-IP")]
    mine = {item.name: item for item in sets if draw(st.booleans())}
    return MemoryHost(attrs.evolve(snapshot, sets={**mine, **snapshot.sets}, **fields))


@given(nodes(), CHOICES, st.sets(st.sampled_from(Family), min_size=1), st.booleans())
def test_a_plan_from_files_is_that_of_the_node(
    node: MemoryHost, chosen: frozenset[Controller], families: set[Family], remove_bridge: bool
) -> None:
    files = collected(node)
    wanted = tuple(sorted(families))
    there = plan(attrs.evolve(node, holds=node.state, families=wanted), chosen, remove_bridge=remove_bridge)
    here = plan(from_files(files, families), chosen, remove_bridge=remove_bridge)
    assert said(here) == said(there)
    assert here.exit_code == there.exit_code
    event(f"{min(len(there.outcomes), 10)} objects or more")


@given(
    nodes(),
    CHOICES,
    st.sets(st.sampled_from(("dump", "tables", "list", "texts", "ipvs", "routing"))),
    st.sets(st.tuples(st.sampled_from(("iptables", "ipset")), st.sampled_from(Family))),
    st.frozensets(st.sampled_from(Family)),
)
def test_what_could_not_be_read_there_is_known_here(
    node: MemoryHost,
    chosen: frozenset[Controller],
    failing: set[str],
    unopened: set[tuple[str, Family]],
    absent: frozenset[Family],
) -> None:
    gaps = tuple(Gap(f"{what} not opened: no", family, subsystem=what) for what, family in sorted(unopened))
    node = MemoryHost(node.state, gaps=gaps, absent=absent, errors=dict.fromkeys(sorted(failing), errno.EPERM))
    files = collected(node)
    assert said(plan(from_files(files), chosen)) == said(plan(node, chosen))


def untold(report: CleanupReport) -> CleanupReport:
    """A report less what files do not tell: who writes, and in which order sets were made."""
    sets = {n: attrs.evolve(c, item=attrs.evolve(c.item, index=None)) for n, c in report.here.sets.items()}
    return attrs.evolve(report, writers=Writers(), here=attrs.evolve(report.here, sets=sets))


@given(nodes(), st.booleans())
def test_a_script_from_files_is_that_of_the_node(node: MemoryHost, printed: bool) -> None:
    """Also of rules that are not decoded, whether iptables prints them or not."""
    errors = {} if printed else {"texts": errno.EPERM}
    node = attrs.evolve(node, holds=node.state, errors=errors)
    reports = [plan(node), plan(from_files(collected(node)))]
    there, here = (script([untold(report)]).split("\n") for report in reports)
    assert here == there
    event("by nft" if any(line.startswith("jump_by_nft KUBE") for line in there) else "all in words")


@settings(max_examples=40)
@given(nodes(), st.data())
def test_a_missing_file_is_a_gap(node: MemoryHost, data: st.DataObject) -> None:
    """And what goes all the same would go with it too."""
    files = collected(node)
    name = data.draw(st.sampled_from(sorted(files.keys() - {MANIFEST})))
    del files[name]
    report = plan(from_files(files))
    assert report.exit_code == 1
    assert any(gap.reason.startswith(f"{name} is missing") for gap in report.gaps)
    del files[MANIFEST]
    again = plan(from_files(files))
    assert any(gap.reason.startswith(f"{name} is missing") for gap in again.gaps) or name == "ip-fou.json"


@given(strategies.mixed_nodes(holders=True))
def test_without_the_manifest_no_more_is_owned(scenario: Scenario) -> None:
    """And who lost it is told: it may say what holds something back."""
    files = collected(scenario.host())
    whole = plan(from_files(files))
    del files[MANIFEST]
    report = plan(from_files(files))
    assert {(o.kind, o.family, o.table, o.name) for o in report.outcomes} <= {
        (o.kind, o.family, o.table, o.name) for o in whole.outcomes
    }
    assert [gap.reason for gap in report.gaps if MANIFEST in gap.reason]


@settings(max_examples=40)
@given(st.sampled_from(Family).flatmap(lambda family: st.tuples(st.just(family), strategies.rules(family))))
def test_rules_come_back(given_: tuple[Family, Rule]) -> None:
    """Also those whose comments hold quotes, backslashes and line breaks."""
    family, rule = given_
    key = TableKey(family, Backend.NFT, "filter")
    table = attrs.evolve(read_table(key, "-N mine"), rules={"INPUT": (), "FORWARD": (), "OUTPUT": (), "mine": ()})
    table = attrs.evolve(table, rules={**table.rules, rule.chain: (rule,)})
    sets = {name: IpSet(name, "hash:ip", family) for name in rule.sets}
    files = collected(MemoryHost(Snapshot({key: table}, sets=sets)))
    bundle = read_bundle(files)
    assert bundle.problems == ()
    assert bundle.snapshot.tables[key].rules[rule.chain] == (rule,)


# whatever is in the files


GOOD = collected(
    MemoryHost(
        attrs.evolve(
            host_node().state,
            tables={
                TableKey(family, backend, "filter"): read_table(
                    TableKey(family, backend, "filter"),
                    '-N KUBE-ROUTER-INPUT\n-N mine\n-A INPUT -m comment --comment "a \'b" -j KUBE-ROUTER-INPUT\n'
                    "-A mine -m set --match-set kube-router-svip src -m recent --set -j KUBE-ROUTER-INPUT",
                )
                for family in Family
                for backend in Backend
            },
            sets={
                name: IpSet(name, "hash:ip,port", V4, members=("192.0.2.10,tcp:30080",))
                for name in ("kube-router-svip", "KUBE-CLUSTER-IP", "kube-router-svip-prt", "TMP-PRBJ7ASFQM5DJR3Q")
            },
        )
    )
)
_WORDS = (
    "-A", "-j", "<", ">", '"', "\\", "[", "{", "null", "true", "-1", "1e999", "Infinity", "9" * 5000, "\\ud800",
    "\udcff", "\0", "²", "\n", "*filter", "COMMIT", ":", "-6", "default", "all", "0x", "/", "KUBE-ROUTER-INPUT",
    "add", "::1%x", '"src": []',
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """A text with pieces cut out, put in, doubled or exchanged."""
    for _ in range(draw(st.integers(0, 4))):
        first, last = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        piece = draw(st.just("") | st.sampled_from(_WORDS) | st.text(max_size=6) | st.just(text[first:last] * 2))
        text = text[:first] + piece + text[last if draw(st.booleans()) else first :]
    return text


# What JSON can say, and Python or a shell cannot take everywhere.
_BEYOND = (float("inf"), float("-inf"), float("nan"), 10**400, -1)
_ODD = ("\ud800", "lo\0", "", "0x" + "f" * 5000)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from((*_BEYOND, *_ODD, *_WORDS)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def wrong_values(draw: st.DrawFn, text: str) -> str:
    """JSON in which a value is another one."""
    data = json.loads(text)
    place, parent, key = data, None, None
    while isinstance(place, (dict, list)) and place and (parent is None or draw(st.booleans())):
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        parent, place = place, place[key]
    if parent is None:
        return json.dumps(draw(_JSON))
    parent[key] = draw(_JSON)
    return json.dumps(data)


def _leaves(place: Any) -> Iterator[tuple[Any, Any]]:
    """Yield where a value stands that has no others inside: what it is in, and its key or number there."""
    for key, inner in place.items() if isinstance(place, dict) else enumerate(place):
        if isinstance(inner, (dict, list)):
            yield from _leaves(inner)
        else:
            yield place, key


@st.composite
def wrong_leaves(draw: st.DrawFn, text: str) -> str:
    """JSON in which a number is one beyond all measure, or a text one that no file can have."""
    data = json.loads(text)
    leaves = [(parent, key) for parent, key in _leaves(data) if isinstance(parent[key], (int, str))]
    if leaves:
        parent, key = draw(st.sampled_from(leaves))
        parent[key] = draw(st.sampled_from(_ODD if isinstance(parent[key], str) else _BEYOND))
    return json.dumps(data)


@st.composite
def folders(draw: st.DrawFn) -> dict[str, str]:
    files = dict(GOOD)
    for name in draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=3, unique=True)):
        kinds = [damaged(files[name]), damaged(files[name]), st.text(max_size=40)]
        more = [wrong_values(GOOD[name]), wrong_leaves(GOOD[name])] * (2 * name.endswith(".json"))
        files[name] = draw(st.one_of(*kinds, *more))
    for name in draw(st.sets(st.sampled_from(sorted(files)), max_size=2)):
        del files[name]
    return files


@given(folders(), CHOICES)
def test_nothing_in_the_files_is_a_crash(files: dict[str, str], chosen: frozenset[Controller]) -> None:
    """Damage gives gaps and bad lines, with a report and a script that can be printed."""
    bundle = read_bundle(files)
    report = plan(FileHost.of(bundle, KUBE_ROUTER, Family), chosen)
    report = attrs.evolve(report, bad_lines=tuple(BadLine(e.source, e.line, e.reason) for e in bundle.problems))
    said(report)
    script([report]).encode("utf-8", "surrogateescape")
    assert all(error.source in {*FILES, MANIFEST} and error.line >= 1 for error in bundle.problems)


@pytest.mark.parametrize("name", sorted(name for name in GOOD if "{" in GOOD[name]))
def test_no_value_is_a_crash(name: str) -> None:
    """Each number and each text in turn; what is of another type then is a problem of its file."""
    for place in range(len(list(_leaves(json.loads(GOOD[name]))))):
        for odd in (*_BEYOND, *_ODD):
            data = json.loads(GOOD[name])
            parent, key = list(_leaves(data))[place]
            parent[key] = odd
            bundle = read_bundle({name: json.dumps(data)})
            assert all(error.source == name for error in bundle.problems)
            json.dumps([repr(bundle), [str(error) for error in bundle.problems]]).encode()


@given(st.data())
def test_a_file_that_is_cut_is_no_success(data: st.DataObject) -> None:
    """Unless what is missing says nothing."""
    name = data.draw(st.sampled_from(sorted(n for n in GOOD if "tables" in n or n.endswith(".json"))))
    whole = GOOD[name].rstrip()
    files = {**GOOD, name: whole[: data.draw(st.integers(0, len(whole) - 1))]}
    report, full = plan(from_files(files)), plan(from_files(GOOD))
    assert report.exit_code == 1 or said(report) == said(full) or not files[name].strip() or "*" not in files[name]
