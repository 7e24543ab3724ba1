"""Legacy tables read without libiptc, against what iptables-legacy-save prints of them."""

from __future__ import annotations

import pytest
from legacy_node import HOST, LegacyNode, assert_read_alike
from scenes import NODES, Scene

from firewall_cleanup import Backend, Family
from firewall_cleanup.dumps import read_iptables_save
from firewall_cleanup.handlers import probe
from firewall_cleanup.handlers._ipset import IpsetConnection
from firewall_cleanup.model import BUILTIN_CHAINS, Table, TableChange

pytestmark = pytest.mark.namespace


def check_reading(legacy_node: LegacyNode) -> dict[str, Table]:
    before = legacy_node.save()
    texts = read_iptables_save(before, legacy_node.family, Backend.LEGACY)
    connection = legacy_node.namespace.run(IpsetConnection)
    sets = {item.index: item.name for item in connection.sets()}
    connection.close()
    assert set(legacy_node.namespace.run(probe.legacy_tables, legacy_node.family)) == {key.name for key in texts}
    result = {key.name: legacy_node.open(key.name).table(sets) for key in texts}
    for key, text in texts.items():
        assert_read_alike(result[key.name], text)
    assert legacy_node.save() == before
    return result


@pytest.mark.parametrize("kind", NODES)
def test_a_node_among_neighbours(legacy_node: LegacyNode, kind: str):
    Scene(NODES[kind], Backend.LEGACY).load(legacy_node.sandbox)
    tables = check_reading(legacy_node)
    assert sum(len(rules) for table in tables.values() for rules in table.rules.values()) > 100


@pytest.mark.parametrize("table", BUILTIN_CHAINS)
def test_a_table_without_chains_and_with_one_policy_each(legacy_node: LegacyNode, table: str):
    """Every table has hooks of its own; each policy has counters of its own."""
    verdicts = ["ACCEPT"] if table == "nat" else ["DROP", "ACCEPT"]  # nothing may be dropped in nat
    hooks = BUILTIN_CHAINS[table]
    policies = "".join(
        f":{hook} {verdicts[i % len(verdicts)]} [{7 + i}:{1 << 33 + i}]\n" for i, hook in enumerate(hooks)
    )
    legacy_node.restore(f"*{table}\n{policies}COMMIT\n")
    read = check_reading(legacy_node)[table]
    assert read.chains == ()
    assert [policy.packets for policy in read.builtin.values()] == [7 + i for i in range(len(hooks))]
    assert all(rules == () for rules in read.rules.values())


LONG = "KUBE-ABCDEFGHIJKLMNOPQRSTUVW"  # 28 characters, all that a name can have
COMMENT = ("ERROR " * 43)[:255]
EDGES = f"""\
:a - [0:0]
:b - [0:0]
:c - [0:0]
:ERROR - [0:0]
:empty - [0:0]
:INPUT2 - [0:0]
:{LONG} - [0:0]
:empty2 - [0:0]
:with.dot:and/slash - [0:0]
:z - [0:0]
[1:2] -A {{hook}}
[3:4] -A {{hook}} -j z
[5:6] -A {{hook}} -g a
[7:8] -A {{hook}} -j {LONG}
[9:10] -A {{hook}} -j empty
[11:12] -A {{hook}}
[13:14] -A a -s {{host}}
[15:16] -A a -j RETURN
[17:18] -A a -m comment --comment "no target"
[19:20] -A a -j b
[21:22] -A a -g c
[23:24] -A b
[25:26] -A c -j RETURN
[27:28] -A ERROR -m comment --comment ERROR -j b
[29:30] -A {LONG} -j ERROR
[31:32] -A {LONG} -m comment --comment "{COMMENT}" -j with.dot:and/slash
[33:34] -A z -g a
[35:36] -A z -j ERROR
[37:38] -A z -m comment --comment "{COMMENT}"
[39:40] -A z -m u32 --u32 "0x0>>0x16&0x3c@0x8=0x45:0x46,0x52" -j a
[41:42] -A z -m string --string "ERROR" --algo bm --to 65535 -j c
[18446744073709551615:18446744073709551614] -A z -j ACCEPT
"""


@pytest.mark.parametrize("table", BUILTIN_CHAINS)
def test_edges(legacy_node: LegacyNode, table: str):
    text = EDGES.format(hook=BUILTIN_CHAINS[table][-1], host=HOST[legacy_node.family].format(7))
    legacy_node.restore(f"*{table}\n{text}COMMIT\n")
    read = check_reading(legacy_node)[table]
    assert len(read.chains) == 10
    assert sum(len(rules) for rules in read.rules.values()) == 22


@pytest.mark.parametrize("chain", ["a", "INPUT", "OUTPUT"])
def test_a_match_that_holds_the_head_of_a_chain(legacy_node: LegacyNode, chain: str):
    """The pattern of a string match is any bytes; they make no chain, and what follows stays what it was."""
    head, between = (112, 20) if legacy_node.family is Family.IPV4 else (168, 24)
    pattern = (
        head.to_bytes(2, "little") + (head + 64).to_bytes(2, "little") + bytes(between)
        + (64).to_bytes(2, "little") + b"ERROR".ljust(30, b"\0") + b"KUBE-ROUTER-INPUT\0"
    )  # fmt: skip
    legacy_node.restore(
        "*filter\n:a - [0:0]\n:b - [0:0]\n[0:0] -A INPUT -j a\n[1:1] -A a -p tcp\n"
        f'[2:2] -A {chain} -m string --hex-string "|{pattern.hex()}|" --algo bm -j b\n[3:3] -A a -j ACCEPT\nCOMMIT\n'
    )
    before = legacy_node.save()
    opened_table = legacy_node.open()
    read = opened_table.table({})
    assert read.chains == ("a", "b")
    wanted = {"INPUT": 1, "FORWARD": 0, "OUTPUT": 0, "a": 2, "b": 0}
    wanted[chain] += 1
    assert {name: len(rules) for name, rules in read.rules.items()} == wanted
    opened_table.commit(TableChange(read.key, (read.rules["a"][0],)))
    assert legacy_node.save() == before.replace("[1:1] -A a -p tcp\n", "")
