"""Legacy tables read and written without libiptc, against what iptables-legacy-save prints of them."""

from __future__ import annotations

import errno
import random
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scenes import NODES, Scene, as_nobody

from firewall_cleanup import Backend, Family
from firewall_cleanup.dumps import read_iptables_save
from firewall_cleanup.errors import BatchRefused, KernelError
from firewall_cleanup.handlers import probe
from firewall_cleanup.handlers._ipset import IpsetConnection
from firewall_cleanup.handlers._legacy import LegacyTable
from firewall_cleanup.handlers._namespace import Namespace
from firewall_cleanup.host import Interest
from firewall_cleanup.model import Rule, Table, TableChange, TableKey, Target
from firewall_cleanup.testing.namespaces import NotAvailable, Sandbox

pytestmark = pytest.mark.namespace

PROGRAM = {Family.IPV4: "iptables-legacy", Family.IPV6: "ip6tables-legacy"}
LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
HOST = {Family.IPV4: "192.0.2.{}/32", Family.IPV6: "2001:db8::{}/128"}
HOOKS = {
    "raw": ("PREROUTING", "OUTPUT"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "security": ("INPUT", "FORWARD", "OUTPUT"),
}

few = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Node:
    """A sandbox of which this process reads and writes one family's tables."""

    def __init__(self, sandbox: Sandbox, family: Family) -> None:
        self.sandbox, self.family = sandbox, family
        self.namespace = Namespace(sandbox.path)

    def key(self, table: str = "filter") -> TableKey:
        return TableKey(self.family, Backend.LEGACY, table)

    def open(self, table: str = "filter") -> LegacyTable:
        return LegacyTable(self.key(table), Interest(), self.namespace)

    def restore(self, text: str, *options: str) -> None:
        self.sandbox.run([f"{PROGRAM[self.family]}-restore", "--counters", *options], input=text)

    def iptables(self, line: str) -> None:
        self.sandbox.run([PROGRAM[self.family], *line.split()])

    def save(self, table: str | None = None) -> str:
        only = ["-t", table] if table else []
        text = self.sandbox.run([f"{PROGRAM[self.family]}-save", "--counters", *only]).stdout
        return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))

    def send(self, packets: int) -> int:
        """Send UDP packets to the loopback, which is all that is ever sent; return their size."""

        def send() -> None:
            kind = socket.AF_INET if self.family is Family.IPV4 else socket.AF_INET6
            for _ in range(packets):
                with socket.socket(kind, socket.SOCK_DGRAM) as sender:  # a new one has no error waiting
                    sender.sendto(b"x" * 12, (LOOPBACK[self.family], 9))

        self.namespace.run(send)
        return (20 if self.family is Family.IPV4 else 40) + 8 + 12


@contextmanager
def opened(sandbox: Sandbox, family: Family) -> Iterator[Node]:
    node = Node(sandbox, family)
    try:
        yield node
    finally:
        node.namespace.close()


@pytest.fixture(params=list(Family))
def node(request: pytest.FixtureRequest, new_sandbox: Callable[..., Sandbox]) -> Iterator[Node]:
    with opened(new_sandbox(), request.param) as made:
        yield made


# Reading


def assert_read_alike(table: Table, text: Table) -> None:
    """Compare all that the kernel's table and the text have in common."""
    assert table.key == text.key
    assert dict(table.builtin) == dict(text.builtin)
    assert table.chains == text.chains
    assert table.rules.keys() == text.rules.keys()
    for chain, lines in text.rules.items():
        for rule, line in zip(table.rules[chain], lines, strict=True):
            assert (rule.chain, rule.index, rule.packets, rule.bytes) == (chain, line.index, line.packets, line.bytes)
            assert (bool(rule.opaque), rule.sets) == (bool(line.opaque), line.sets), line
            if rule.opaque:  # a jump is a jump, whatever stands before it
                assert {rule.target, line.target}.isdisjoint(map(Target, table.chains)) or rule.target == line.target
            else:
                assert rule == line


def check_reading(node: Node) -> dict[str, Table]:
    before = node.save()
    texts = read_iptables_save(before, node.family, Backend.LEGACY)
    connection = node.namespace.run(IpsetConnection)
    sets = {item.index: item.name for item in connection.sets()}
    connection.close()
    assert set(node.namespace.run(probe.legacy_tables, node.family)) == {key.name for key in texts}
    result = {key.name: node.open(key.name).table(sets) for key in texts}
    for key, text in texts.items():
        assert_read_alike(result[key.name], text)
    assert node.save() == before
    return result


@pytest.mark.parametrize("kind", NODES)
def test_a_node_among_neighbours(node: Node, kind: str):
    Scene(NODES[kind], Backend.LEGACY).load(node.sandbox)
    tables = check_reading(node)
    assert sum(len(rules) for table in tables.values() for rules in table.rules.values()) > 100
    for name, table in tables.items():  # every extension there is goes back as it came
        before = node.save(name).splitlines()
        change = TableChange(table.key, next(own[:1] for own in table.rules.values() if own))
        node.open(name).commit(change)
        assert node.save(name).splitlines() == edited(before, change)[0]


@pytest.mark.parametrize("table", HOOKS)
def test_a_table_without_chains_and_with_one_policy_each(node: Node, table: str):
    """Every table has hooks of its own; each policy has counters of its own."""
    verdicts = ["ACCEPT"] if table == "nat" else ["DROP", "ACCEPT"]  # nothing may be dropped in nat
    policies = "".join(
        f":{hook} {verdicts[i % len(verdicts)]} [{7 + i}:{1 << 33 + i}]\n" for i, hook in enumerate(HOOKS[table])
    )
    node.restore(f"*{table}\n{policies}COMMIT\n")
    read = check_reading(node)[table]
    assert read.chains == ()
    assert [policy.packets for policy in read.builtin.values()] == [7 + i for i in range(len(HOOKS[table]))]
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


@pytest.mark.parametrize("table", HOOKS)
def test_edges(node: Node, table: str):
    text = EDGES.format(hook=HOOKS[table][-1], host=HOST[node.family].format(7))
    node.restore(f"*{table}\n{text}COMMIT\n")
    read = check_reading(node)[table]
    assert len(read.chains) == 10
    assert sum(len(rules) for rules in read.rules.values()) == 22


@pytest.mark.parametrize("chain", ["a", "INPUT", "OUTPUT"])
def test_a_match_that_holds_the_head_of_a_chain(node: Node, chain: str):
    """The pattern of a string match is any bytes; they make no chain, and what follows stays what it was."""
    head, between = (112, 20) if node.family is Family.IPV4 else (168, 24)
    pattern = (
        head.to_bytes(2, "little") + (head + 64).to_bytes(2, "little") + bytes(between)
        + (64).to_bytes(2, "little") + b"ERROR".ljust(30, b"\0") + b"KUBE-ROUTER-INPUT\0"
    )  # fmt: skip
    node.restore(
        "*filter\n:a - [0:0]\n:b - [0:0]\n[0:0] -A INPUT -j a\n[1:1] -A a -p tcp\n"
        f'[2:2] -A {chain} -m string --hex-string "|{pattern.hex()}|" --algo bm -j b\n[3:3] -A a -j ACCEPT\nCOMMIT\n'
    )
    before = node.save()
    opened_table = node.open()
    read = opened_table.table({})
    assert read.chains == ("a", "b")
    wanted = {"INPUT": 1, "FORWARD": 0, "OUTPUT": 0, "a": 2, "b": 0}
    wanted[chain] += 1
    assert {name: len(rules) for name, rules in read.rules.items()} == wanted
    opened_table.commit(TableChange(read.key, (read.rules["a"][0],)))
    assert node.save() == before.replace("[1:1] -A a -p tcp\n", "")


# Writing


@st.composite
def tables(draw: st.DrawFn, family: Family) -> tuple[str, str]:
    """A table's name and its text: rules jump to chains that come later in an order that is not that of names."""
    table = draw(st.sampled_from(list(HOOKS)))
    chance = draw(st.randoms(use_true_random=False))
    names = [f"{chance.choice('abKUBE')}{i}" + "x" * chance.randint(0, 20) for i in range(chance.randint(0, 9))]
    order = [*HOOKS[table], *names]
    lines = [f":{hook} ACCEPT [{chance.randint(0, 99)}:{chance.getrandbits(40)}]\n" for hook in HOOKS[table]]
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

    @few
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


def test_rules_of_an_emptied_chain_may_be_named_too(node: Node):
    node.restore("*filter\n:a - [0:0]\n:b - [0:0]\n[1:1] -A INPUT -j b\n[2:2] -A a\n[3:3] -A a\n[4:4] -A b\nCOMMIT\n")
    named = tuple(Rule("a", index=i) for i in range(2))
    wanted = [line for line in node.save().splitlines() if " -A a" not in line and not line.startswith(":a")]
    node.open().commit(TableChange(node.key(), named, ("a",), ("a",)))
    assert node.save().splitlines() == wanted


def test_a_chain_that_is_not_there(node: Node):
    node.restore("*filter\n:a - [0:0]\n[1:1] -A INPUT -j a\nCOMMIT\n")
    before = node.save()
    for change in (
        TableChange(node.key(), flush=("b",)),
        TableChange(node.key(), delete=("b",)),
        TableChange(node.key(), (Rule("b", index=0),)),
    ):
        with pytest.raises(KernelError) as raised:
            node.open().commit(change)
        assert raised.value.errno == errno.ENOENT
    assert node.save() == before


# A writer between reading and writing


SMALL = "*filter\n:a - [0:0]\n[1:2] -A INPUT -s {0} -j a\n[3:4] -A a -s {0}\n[5:6] -A a -d {0} -j DROP\nCOMMIT\n"


def small(node: Node, **counters: str) -> None:
    text = SMALL.format(HOST[node.family].format(7))
    for old, new in counters.items():
        text = text.replace(f"[{old[1:].replace('_', ':')}]", f"[{new}]")
    node.restore(text)


def test_is_current(node: Node):
    """Counters may move; a rule may not, also where the table stays as large as it was."""
    small(node)
    table = node.open()
    assert table.is_current()
    small(node, _1_2="7:700", _5_6="8:800")
    assert "[7:700]" in node.save()
    assert table.is_current()
    node.iptables(f"-R a 1 -s {HOST[node.family].format(8)}")
    assert not table.is_current()
    small(node)
    assert table.is_current()
    node.iptables(f"-R a 2 -d {HOST[node.family].format(7)} -j ACCEPT")
    assert not table.is_current()
    small(node)
    node.iptables("-E a b")
    assert not table.is_current()
    small(node)
    node.iptables("-P INPUT DROP")
    assert not table.is_current()


def test_another_number_of_rules(node: Node):
    """The kernel itself refuses what was made for a table with another number of entries."""
    small(node)
    table = node.open()
    node.iptables("-A INPUT -j ACCEPT")
    before = node.save()
    assert not table.is_current()
    with pytest.raises(KernelError) as raised:
        table.commit(TableChange(node.key(), flush=("a",)))
    assert raised.value.errno == errno.EAGAIN
    assert node.save() == before


def test_packets_between_reading_and_writing_are_counted(node: Node):
    node.sandbox.run("ip link set lo up")
    node.restore(
        "*filter\n:OUTPUT DROP [10:1000]\n:a - [0:0]\n:b - [0:0]\n:c - [0:0]\n[1:100] -A OUTPUT -p udp -j a\n"
        "[2:200] -A OUTPUT -p udp -j b\n[3:300] -A OUTPUT -p udp -j c\n[4:400] -A c -p udp\nCOMMIT\n"
    )
    size = node.send(0)
    table = node.open()
    with pytest.raises(PermissionError):  # the policy's doing
        node.send(1)
    node.iptables("-P OUTPUT ACCEPT")
    assert not table.is_current()
    node.send(4)  # their answers, ICMP errors, are counted by the policy only
    table = node.open()
    node.send(5)
    assert table.is_current()
    before = node.save()
    jumps = tuple(rule for rule in table.table({}).rules["OUTPUT"] if rule.target.name == "a")
    table.commit(TableChange(node.key(), jumps, ("a", "b"), ("a",)))
    wanted = [line for line in before.splitlines() if not line.endswith("-j a") and not line.startswith(":a ")]
    assert node.save().splitlines() == wanted
    read = node.open().table({})
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


def test_without_rights(node: Node):
    small(node)
    with tempfile.TemporaryDirectory() as folder:
        become, python = as_nobody(Path(folder))
        script = SCRIPT.format(family=node.family.value)
        nobody = node.sandbox.run([*become, python, "-c", script]).stdout
        elsewhere = node.sandbox.run([*become, "unshare", "-r", python, "-c", script], check=False)
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
