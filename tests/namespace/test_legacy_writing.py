"""Legacy tables written without libiptc: what is not removed stays as iptables-legacy-save printed it."""

from __future__ import annotations

import errno
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from legacy_node import HOST, SMALL, LegacyNode, assert_read_alike, opened
from scenes import NODES, Scene, as_nobody, few

from firewall_cleanup import Backend, Family
from firewall_cleanup.dumps import read_iptables_save
from firewall_cleanup.errors import BatchRefused, KernelError
from firewall_cleanup.model import BUILTIN_CHAINS, Rule, Table, TableChange
from firewall_cleanup.testing.namespaces import NotAvailable, Sandbox

pytestmark = pytest.mark.namespace


@st.composite
def tables(draw: st.DrawFn, family: Family) -> tuple[str, str]:
    """A table's name and its text: rules jump to chains that come later in an order that is not that of names."""
    table = draw(st.sampled_from(list(BUILTIN_CHAINS)))
    chance = draw(st.randoms(use_true_random=False))
    names = [f"{chance.choice('abKUBE')}{i}" + "x" * chance.randint(0, 20) for i in range(chance.randint(0, 9))]
    order = [*BUILTIN_CHAINS[table], *names]
    lines = [f":{hook} ACCEPT [{chance.randint(0, 99)}:{chance.getrandbits(40)}]\n" for hook in BUILTIN_CHAINS[table]]
    lines += [f":{name} - [0:0]\n" for name in names]
    rules = [
        f"[{chance.randint(1, 1 << 34)}:{chance.randint(1, 1 << 50)}] -A {chain} {_rule(chance, family, order, i)}\n"
        for i, chain in enumerate(order)
        for _ in range(chance.choice((0, 0, 1, 2, 3, 6)))
    ]
    chance.shuffle(rules)
    return table, f"*{table}\n{''.join(lines + rules)}COMMIT\n"


def _rule(chance: random.Random, family: Family, order: list[str], place: int) -> str:
    words = []
    if chance.random() < 0.6:
        words.append(f"-s {HOST[family].format(chance.randint(1, 99))}")
    if chance.random() < 0.3:
        words.append(f'-m comment --comment "{"ERROR " * chance.randint(1, 40)}"')
    if chance.random() < 0.2:
        words.append("-m mark --mark 0x1")
    later = [name for name in order[place + 1 :] if name[0] in "abKUBE" and not name.isupper()]
    kind = chance.choice(("jump", "jump", "goto", "verdict", "nothing", "extension"))
    if kind in {"jump", "goto"} and later:
        words.append(f"-{kind[0]} {chance.choice(later)}")
    elif kind == "verdict":
        words.append(f"-j {chance.choice(('ACCEPT', 'RETURN'))}")
    elif kind == "extension":
        words.append("-j NFLOG --nflog-group 5")
    return " ".join(words)


def edited(lines: list[str], change: TableChange) -> tuple[list[str], set[str]]:
    """What is left of a saved table after a change, and the deleted chains to which something left jumps."""
    gone = {(rule.chain, rule.index) for rule in change.rules}
    left, seen = [], dict[str, int]()
    for line in lines:
        words = line.split()
        if line.startswith(":") and words[0][1:] in change.delete:
            continue
        if line.startswith("["):
            chain = words[2]
            index = seen[chain] = seen.get(chain, -1) + 1
            if chain in {*change.flush, *change.delete} or (chain, index) in gone:
                continue
        left.append(line)
    rules = [line.split() for line in left if line.startswith("[")]
    used = {words[i + 1] for words in rules for i, word in enumerate(words[:-1]) if word in {"-j", "-g"}}
    return left, used & set(change.delete)


def random_change(data: st.DataObject, table: Table) -> TableChange:
    some = lambda items: data.draw(st.lists(st.sampled_from(items), unique=True)) if items else []  # noqa: E731
    flush, delete = some(table.chains), some(table.chains)
    if data.draw(st.booleans()):  # as plans have it: what is deleted was emptied, and nothing jumps there
        delete = [name for name in delete if name in flush]
    rules = [rule for chain, own in table.rules.items() if chain not in {*flush, *delete} for rule in own]
    chosen = some(list(range(len(rules))))
    if data.draw(st.booleans()):
        chosen = sorted({*chosen, *(i for i, rule in enumerate(rules) if rule.target.name in delete)})
    return TableChange(table.key, tuple(rules[i] for i in chosen), tuple(flush), tuple(delete))


@pytest.mark.parametrize("family", Family)
def test_what_is_left_is_what_was(new_sandbox: Callable[..., Sandbox], family: Family):
    sandbox = new_sandbox()
    done = {"refused": 0, "changed": 0}

    @settings(few, max_examples=40)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        with opened(sandbox, family) as node:
            name, text = data.draw(tables(family))
            node.restore(text)
            before = node.save(name)
            opened_table = node.open(name)
            table = opened_table.table({})
            assert_read_alike(table, read_iptables_save(before, family, Backend.LEGACY)[table.key])
            change = random_change(data, table)
            wanted, dangling = edited(before.splitlines(), change)
            if dangling:
                with pytest.raises(BatchRefused) as refused:
                    opened_table.commit(change)
                assert refused.value.failures == {(table.key, "chain", c): errno.EMLINK for c in dangling}
                assert node.save(name) == before
                done["refused"] += 1
                return
            opened_table.commit(change)
            assert node.save(name).splitlines() == wanted
            assert_read_alike(
                node.open(name).table({}), read_iptables_save(node.save(name), family, Backend.LEGACY)[table.key]
            )
            done["changed"] += 1

    check()
    assert min(done.values()) > 0, done


@pytest.mark.parametrize("kind", NODES)
def test_a_node_among_neighbours(legacy_node: LegacyNode, kind: str):
    """Every extension there is goes back as it came."""
    Scene(NODES[kind], Backend.LEGACY).load(legacy_node.sandbox)
    texts = read_iptables_save(legacy_node.save(), legacy_node.family, Backend.LEGACY)
    for key, text in texts.items():
        before = legacy_node.save(key.name).splitlines()
        change = TableChange(key, next(own[:1] for own in text.rules.values() if own))
        legacy_node.open(key.name).commit(change)
        assert legacy_node.save(key.name).splitlines() == edited(before, change)[0]


def test_rules_of_an_emptied_chain_may_be_named_too(legacy_node: LegacyNode):
    legacy_node.restore(
        "*filter\n:a - [0:0]\n:b - [0:0]\n[1:1] -A INPUT -j b\n[2:2] -A a\n[3:3] -A a\n[4:4] -A b\nCOMMIT\n"
    )
    named = tuple(Rule("a", index=i) for i in range(2))
    wanted = [line for line in legacy_node.save().splitlines() if " -A a" not in line and not line.startswith(":a")]
    legacy_node.open().commit(TableChange(legacy_node.key(), named, ("a",), ("a",)))
    assert legacy_node.save().splitlines() == wanted


def test_a_chain_that_is_not_there(legacy_node: LegacyNode):
    legacy_node.restore("*filter\n:a - [0:0]\n[1:1] -A INPUT -j a\nCOMMIT\n")
    before = legacy_node.save()
    for change in (
        TableChange(legacy_node.key(), flush=("b",)),
        TableChange(legacy_node.key(), delete=("b",)),
        TableChange(legacy_node.key(), (Rule("b", index=0),)),
    ):
        with pytest.raises(KernelError) as raised:
            legacy_node.open().commit(change)
        assert raised.value.errno == errno.ENOENT
    assert legacy_node.save() == before


# A writer between reading and writing


def test_is_current(legacy_node: LegacyNode):
    """Counters may move; a rule may not, also where the table stays as large as it was."""
    legacy_node.load_small()
    table = legacy_node.open()
    assert table.is_current()
    legacy_node.load_small(_1_2="7:700", _5_6="8:800")
    assert "[7:700]" in legacy_node.save()
    assert table.is_current()
    legacy_node.iptables(f"-R a 1 -s {HOST[legacy_node.family].format(8)}")
    assert not table.is_current()
    legacy_node.load_small()
    assert table.is_current()
    legacy_node.iptables(f"-R a 2 -d {HOST[legacy_node.family].format(7)} -j ACCEPT")
    assert not table.is_current()
    legacy_node.load_small()
    legacy_node.iptables("-E a b")
    assert not table.is_current()
    legacy_node.load_small()
    legacy_node.iptables("-P INPUT DROP")
    assert not table.is_current()


def test_another_number_of_rules(legacy_node: LegacyNode):
    """The kernel itself refuses what was made for a table with another number of entries."""
    legacy_node.load_small()
    table = legacy_node.open()
    legacy_node.iptables("-A INPUT -j ACCEPT")
    before = legacy_node.save()
    assert not table.is_current()
    with pytest.raises(KernelError) as raised:
        table.commit(TableChange(legacy_node.key(), flush=("a",)))
    assert raised.value.errno == errno.EAGAIN
    assert legacy_node.save() == before


def test_packets_between_reading_and_writing_are_counted(legacy_node: LegacyNode):
    legacy_node.sandbox.run("ip link set lo up")
    legacy_node.restore(
        "*filter\n:OUTPUT DROP [10:1000]\n:a - [0:0]\n:b - [0:0]\n:c - [0:0]\n[1:100] -A OUTPUT -p udp -j a\n"
        "[2:200] -A OUTPUT -p udp -j b\n[3:300] -A OUTPUT -p udp -j c\n[4:400] -A c -p udp\nCOMMIT\n"
    )
    size = legacy_node.send(0)
    table = legacy_node.open()
    with pytest.raises(PermissionError):  # the policy's doing
        legacy_node.send(1)
    legacy_node.iptables("-P OUTPUT ACCEPT")
    assert not table.is_current()
    legacy_node.send(4)  # their answers, ICMP errors, are counted by the policy only
    table = legacy_node.open()
    legacy_node.send(5)
    assert table.is_current()
    before = legacy_node.save()
    jumps = tuple(rule for rule in table.table({}).rules["OUTPUT"] if rule.target.name == "a")
    table.commit(TableChange(legacy_node.key(), jumps, ("a", "b"), ("a",)))
    wanted = [line for line in before.splitlines() if not line.endswith("-j a") and not line.startswith(":a ")]
    assert legacy_node.save().splitlines() == wanted
    read = legacy_node.open().table({})
    assert [(rule.packets, rule.bytes) for rule in read.rules["c"]] == [(4 + 10, 400 + 10 * size)]


# Rights


SCRIPT = """
from firewall_cleanup import Backend, Family
from firewall_cleanup.errors import KernelError
from firewall_cleanup.handlers._legacy import LegacyTable
from firewall_cleanup.handlers._namespace import Namespace
from firewall_cleanup.host import Interest
from firewall_cleanup.model import TableKey
try:
    table = LegacyTable(TableKey(Family("{family}"), Backend.LEGACY, "filter"), Interest(), Namespace())
    print(len(table.table({{}}).chains))
except KernelError as error:
    print(error.errno, error.strerror)
"""


def test_without_rights(legacy_node: LegacyNode):
    legacy_node.load_small()
    with tempfile.TemporaryDirectory() as folder:
        become, python = as_nobody(Path(folder))
        script = SCRIPT.format(family=legacy_node.family.value)
        nobody = legacy_node.sandbox.run([*become, python, "-c", script]).stdout
        elsewhere = legacy_node.sandbox.run([*become, "unshare", "-r", python, "-c", script], check=False)
    said = "legacy table filter: Operation not permitted (needs CAP_NET_ADMIN in this network namespace: run as root)"
    assert nobody == f"{errno.EPERM} {said}\n"
    if elsewhere.returncode == 0:  # root of a user namespace that does not own the network namespace
        assert elsewhere.stdout == nobody


@pytest.mark.parametrize("family", Family)
def test_root_of_a_user_namespace(family: Family):
    try:
        with Sandbox(rootless=True) as sandbox:
            sandbox.load_rules(SMALL.format(HOST[family].format(7)), family, Backend.LEGACY)
            assert sandbox.run([sys.executable, "-c", SCRIPT.format(family=family.value)]).stdout == "1\n"
    except NotAvailable as reason:
        pytest.skip(str(reason))
