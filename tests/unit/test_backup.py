"""Folders of a backup, their files, and when the engine keeps what it removes."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest
from builders import LEGACY, NFT, V4, V6, clean, key, node

from firewall_cleanup import BackupError, Status
from firewall_cleanup.errors import StaleGeneration
from firewall_cleanup.host import LegacyTable
from firewall_cleanup.model import IpSet, NativeTable, TableChange
from firewall_cleanup.plan import Plan
from firewall_cleanup.reading import Reading
from firewall_cleanup.testing import MemoryHost
from firewall_cleanup.undo.files import parts, write_part, write_run
from firewall_cleanup.undo.rule_text import ForeignChain
from firewall_cleanup.undo.saved import Saved, SavedTable

RULES = ("[1:10] -A KUBE-ROUTER-INPUT -j RETURN", "[0:0] -A KUBE-ROUTER-INPUT -p udp -j ACCEPT")
INPUT = (
    "[5:50] -A INPUT -p tcp -j ACCEPT",
    '[7:70] -A INPUT -m comment --comment "kube-router netpol" -j KUBE-ROUTER-INPUT',
    "[6:60] -A INPUT -j DROP",
)
SAVED = Saved(
    tables={
        key(backend=backend, family=family): SavedTable(
            {"KUBE-ROUTER-INPUT": RULES, "KUBE-ROUTER-OUTPUT": ()},
            {"INPUT": ForeignChain(INPUT, (1,))},
            {"INPUT": "DROP [9:90]"} if backend is LEGACY else {},
        )
        for backend in (NFT, LEGACY)
        for family in (V4, V6)
    },
    sets={
        "outer": ("create outer list:set size 8", "add outer inner"),
        "inner": ("create inner hash:ip family inet hashsize 64 maxelem 5", "add inner 192.0.2.1 timeout 9"),
    },
    natives={
        NativeTable("ip", "a"): "table ip a {\n\tchain b {\n\t}\n}\n",
        NativeTable("inet", "b"): "table inet b {\n}\n",
    },
    lines={
        "links.ip": ("link add name kube-bridge mtu 1500 type bridge",),
        "rules.ipv6.ip": ("rule add pref 1 from all",),
    },
    services={
        "-f 7 -6": ("-A -f 7 -6 -s rr", "-a -f 7 -6 -r [2001:db8::1]:80 -i -w 1"),
        "-t 192.0.2.1:80": ("-A -t 192.0.2.1:80 -s rr",),
    },
)


def test_files_hold_what_was_saved() -> None:
    files = SAVED.to_files({"time": "now"})
    assert Saved.from_files(files) == SAVED
    assert files["iptables-nft.ipv4"] == (
        "*filter\n:KUBE-ROUTER-INPUT - [0:0]\n:KUBE-ROUTER-OUTPUT - [0:0]\n"
        "[1:10] -A KUBE-ROUTER-INPUT -j RETURN\n[0:0] -A KUBE-ROUTER-INPUT -p udp -j ACCEPT\n"
        '[7:70] -I INPUT 2 -m comment --comment "kube-router netpol" -j KUBE-ROUTER-INPUT\nCOMMIT\n'
    )
    # A set comes before those that hold it.
    assert files["sets.ipset"].index("create inner") < files["sets.ipset"].index("create outer")
    manifest = json.loads(files["manifest.json"])
    assert manifest["time"] == "now"
    assert [(one["file"], one["command"]) for one in manifest["order"]] == [
        ("sets.ipset", "ipset restore"),
        ("native.nft", "nft -f"),
        ("iptables-legacy.ipv4", "iptables-legacy-restore --noflush --counters"),
        ("iptables-legacy.ipv6", "ip6tables-legacy-restore --noflush --counters"),
        ("iptables-nft.ipv4", "iptables-nft-restore --noflush --counters"),
        ("iptables-nft.ipv6", "ip6tables-nft-restore --noflush --counters"),
        ("links.ip", "ip -batch"),
        ("rules.ipv6.ip", "ip -6 -batch"),
        ("services.ipvs", "ipvsadm -R"),
    ]


def test_names_that_are_no_text() -> None:
    odd = Saved(
        sets={"a\udcff": ("create a\udcff hash:ip",)},
        tables={key(): SavedTable({"b\x85\u2028": ("[0:0] -A b\x85\u2028 -j DROP",)})},
    )
    assert Saved.from_files(odd.to_files({})) == odd


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "tables": [{}]}', "\0"])
def test_a_manifest_that_is_not_understood(tmp_path: Path, manifest: str) -> None:
    run = write_run(tmp_path / "a", SAVED.to_files({}), 0)
    (run / "manifest.json").write_text(manifest)
    with pytest.raises(BackupError, match=str(run)):
        parts(tmp_path / "a")


@pytest.mark.parametrize("name", sorted(SAVED.to_files({}).keys() - {"manifest.json"}))
def test_a_file_that_is_missing_or_emptied(tmp_path: Path, name: str) -> None:
    """What was kept in it would be called restored else."""
    run = write_run(tmp_path, SAVED.to_files({}), 0)
    (run / name).write_text("")
    with pytest.raises(BackupError, match=name):
        parts(tmp_path)
    (run / name).unlink()
    with pytest.raises(BackupError, match=name):
        parts(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("links.ip", "link add\n"),
        ("links.ip", "link set dev a master\n"),
        ("addresses.ip", "addr add 10.9.0.1/32\n"),
        ("routes.ipv4.ip", "route add unicast 10.9.0.0/24\n"),
        ("rules.ipv4.ip", "rule add from all\n"),
        ("fou.ip", "fou add\n"),
        ("sets.ipset", "create\n"),
        ("sets.ipset", "add nothing 192.0.2.1\n"),
        ("iptables-nft.ipv4", "*filter\nwhat is this\nCOMMIT\n"),
        ("iptables-nft.ipv4", '*filter\n-A a -m comment --comment "x\nCOMMIT\n'),
    ],
)
def test_a_damaged_file_is_one_error(tmp_path: Path, name: str, text: str) -> None:
    run = write_run(tmp_path, {**SAVED.to_files({}), name: text}, 0)
    with pytest.raises(BackupError, match=str(run)):
        parts(tmp_path)


@pytest.mark.parametrize(
    "change", [{"neighbours": []}, {"policies": 5}, {"policies": {"INPUT": 5}}, {"table": "nothing"}], ids=str
)
def test_a_damaged_manifest_is_one_error(tmp_path: Path, change: dict[str, object]) -> None:
    files = SAVED.to_files({})
    manifest = json.loads(files["manifest.json"])
    manifest["tables"][0].update(change)
    run = write_run(tmp_path, {**files, "manifest.json": json.dumps(manifest)}, 0)
    with pytest.raises(BackupError, match=str(run)):
        parts(tmp_path)
    (run / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(BackupError, match=str(run)):
        parts(tmp_path)


def test_what_is_known_is_not_kept_again() -> None:
    assert not SAVED.minus(SAVED)
    counted = attrs.evolve(
        SAVED,
        tables={
            k: attrs.evolve(
                t, chains={n: tuple(f"[99:9]{ln[ln.index(']') + 1 :]}" for ln in c) for n, c in t.chains.items()}
            )
            for k, t in SAVED.tables.items()
        },
        sets={**SAVED.sets, "inner": (SAVED.sets["inner"][0], "add inner 192.0.2.1 timeout 8")},
    )
    assert not counted.minus(SAVED)
    more = attrs.evolve(SAVED, sets={**SAVED.sets, "outer": (*SAVED.sets["outer"], "add outer third")})
    assert more.minus(SAVED) == Saved(sets={"outer": more.sets["outer"]}, lines=dict.fromkeys(SAVED.lines, ()))
    assert more.minus(SAVED).plus(SAVED).sets == more.sets


def test_folders_are_in_the_order_of_time(tmp_path: Path) -> None:
    base = tmp_path / "deep" / "backup"
    clock = [100.0, 100.5, 99.0, 5000.0]  # set back once
    names = [write_run(base, {"manifest.json": str(number)}, now).name for number, now in enumerate(clock)]
    assert names == sorted(names)
    assert names == ["19700101T000140Z-001", "19700101T000140Z-002", "19700101T000140Z-003", "19700101T012320Z-001"]
    assert base.stat().st_mode & 0o777 == 0o700


def test_more_than_a_thousand_runs_of_a_second(tmp_path: Path) -> None:
    """As a clock that was ahead makes them; numbers are no words."""
    for name in ("19700101T000140Z-999", "19700101T000140Z-1000"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps({"version": 1, "order": [], "tables": []}))
    set_ = Saved(sets={"a": ("create a hash:ip",)})
    assert write_run(tmp_path, set_.to_files({}), 0).name == "19700101T000140Z-1001"
    assert parts(tmp_path)[0] == set_


def test_parts_are_read_newest_first(tmp_path: Path) -> None:
    def one(name: str) -> dict[str, str]:
        return Saved(sets={name: (f"create {name} hash:ip",)}).to_files({})

    first = write_run(tmp_path, one("a"), 0)
    second = write_run(tmp_path, one("b"), 1)
    assert write_part(second, one("c")) == second / "part-2"
    for number in range(3, 12):
        assert write_part(second, one(f"c{number}")).name == f"part-{number}"
    (tmp_path / ".unfinished-x").mkdir()
    (tmp_path / "20200101T000000Z-001").mkdir()  # nobody's
    (tmp_path / "notes").write_text("")
    found = [next(iter(part.sets)) for part in parts(tmp_path)]
    assert found == [*(f"c{number}" for number in range(11, 2, -1)), "c", "b", "a"]
    assert [next(iter(part.sets)) for part in parts(first)] == ["a"]


def test_a_mask_changes_nothing(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        run = write_run(tmp_path / "a", SAVED.to_files({}), 0)
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert run.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in run.iterdir()} == {0o600}


@pytest.mark.parametrize("step", range(8))
def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Whatever step fails: no folder that counts, none that is left over, and one line that says why."""
    left = [step]

    def failing(original):  # type: ignore[no-untyped-def]
        def call(*arguments, **options):  # type: ignore[no-untyped-def]
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", failing(os.fsync))
        patch.setattr(Path, "rename", failing(Path.rename))
        with pytest.raises(BackupError, match="No space left") as error:
            write_run(tmp_path, {"manifest.json": "", "a": "", "b": ""}, 0)
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] in ([], ["19700101T000000Z-001"] if step == 7 else [])


@pytest.mark.parametrize("what", ["missing", "file", "empty"])
def test_no_backup(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BackupError, match=what):
        parts(tmp_path / what)


# The engine


TEXT = "-A INPUT -j KUBE-ROUTER-INPUT\n-A KUBE-ROUTER-INPUT -j ACCEPT\n"


@attrs.define
class Fake:
    """Notes what was there whenever it had to keep something; `says` is raised, one each time."""

    host: MemoryHost
    says: list[Exception] = attrs.field(factory=list)
    writes: list[int] = attrs.field(factory=list)
    plans: list[Plan] = attrs.field(factory=list)
    tables: list[TableChange] = attrs.field(factory=list)
    later: Exception | None = None

    def save(self, reading: Reading, plan: Plan) -> None:
        self.plans.append(plan)
        self._note()

    def save_table(self, table: LegacyTable, change: TableChange, names: Mapping[int, str]) -> None:
        self.tables.append(change)
        self._note()
        if self.later is not None:
            raise self.later

    def _note(self) -> None:
        self.writes.append(self.host.writes)
        if self.says:
            raise self.says.pop(0)


def full() -> MemoryHost:
    sets = [IpSet("kube-router-svip", "hash:ip", V4)]
    tables = {key(): TEXT, key(family=V6): TEXT, key(backend=LEGACY): TEXT}
    return node(tables, sets, [NativeTable("ip", "kube-router-filter-ipv4")])


def test_it_is_kept_before_the_first_change() -> None:
    host = full()
    saver = Fake(host)
    report = clean(host, saver=saver)
    assert report.clean
    assert saver.writes[0] == 0
    first = saver.plans[0]
    assert first.nft_change()
    assert first.legacy_keys() == (key(backend=LEGACY),)
    assert first.set_names() == ("kube-router-svip",)


def test_a_dry_run_keeps_nothing() -> None:
    host = full()
    saver = Fake(host)
    clean(host, saver=saver, dry_run=True)
    assert saver.writes == []


def test_without_a_backup_nothing_is_changed() -> None:
    host = full()
    before = host.state
    report = clean(host, saver=Fake(host, [BackupError("no space")]))
    assert host.state == before
    assert host.writes == 0
    assert (report.changed, report.clean, report.exit_code) == (False, False, 1)
    assert [(gap.subsystem, gap.reason) for gap in report.gaps] == [("backup", "no space")]
    assert {outcome.status for outcome in report.outcomes} == {Status.FAILED}
    assert {outcome.reason for outcome in report.outcomes} == {"not removed without a backup"}


def test_a_node_that_moves_is_read_again() -> None:
    host = full()
    saver = Fake(host, [StaleGeneration("moved"), StaleGeneration("moved")])
    assert clean(host, saver=saver).clean
    assert saver.writes[:3] == [0, 0, 0]


def test_a_node_that_never_stands_still() -> None:
    host = full()
    report = clean(host, saver=Fake(host, [StaleGeneration("moved")] * 1000))
    assert host.writes == 0
    assert ["has changed each of the" in gap.reason for gap in report.gaps] == [True]


def test_what_is_found_later_is_kept_before_it_goes() -> None:
    """Somebody adds an owned rule after the first reading, in each backend."""
    host = full()
    added: list[str] = []

    def interfere(step: str) -> None:
        for name, backend in (("nft", NFT), ("lock", LEGACY)):
            if step == name and name not in added:
                added.append(name)
                host.insert(key(backend=backend), "-A INPUT -j KUBE-ROUTER-INPUT")

    host.before_commit = interfere
    saver = Fake(host)
    assert clean(host, saver=saver).clean
    assert added == ["nft", "lock"]
    in_nft = [len(plan.table_change(key()).rules) for plan in saver.plans]
    assert in_nft[:2] == [1, 2]
    (table,) = saver.tables
    assert len(table.rules) == 2


def test_what_was_done_before_it_could_not_be_kept_is_reported() -> None:
    """The second time there is no room: what was removed by then is removed, the rest stays and is named."""
    host = full()

    def interfere(step: str) -> None:
        if step == "lock":
            host.insert(key(backend=LEGACY), "-A INPUT -j KUBE-ROUTER-INPUT")

    host.before_commit = interfere
    report = clean(host, saver=Fake(host, later=BackupError("no space")))
    assert [gap.reason for gap in report.gaps] == ["no space"]
    assert report.exit_code == 1
    assert report.changed
    gone = {outcome.backend for outcome in report.outcomes if outcome.status is Status.REMOVED}
    assert gone == {NFT}
    assert {o.backend for o in report.residue} == {LEGACY, None}
    assert "kube-router-svip" in host.state.sets
