"""What is left out of a reading: by interest, and not by backend, family, or how many chains there are."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection

import attrs
import pytest

from firewall_cleanup import Backend, Family, Handlers
from firewall_cleanup.errors import BatchRefused
from firewall_cleanup.handlers._legacy_blob import Blob
from firewall_cleanup.handlers._netlink import NetlinkSocket, parts_of
from firewall_cleanup.handlers.host import open_host
from firewall_cleanup.host import Interest
from firewall_cleanup.model import Change, Rule, Table, TableChange, TableKey
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace

NATIVE = {Family.IPV4: "ip", Family.IPV6: "ip6"}
GET_RULE = 0x0A07


@attrs.frozen
class Some(Interest):
    """Chains whose names begin with OWN are owned, those with OWN-U not read; sets matter likewise."""

    chains: bool = True
    sets: bool = True

    def sort(self, _table: str, chains: Collection[str]) -> tuple[Collection[str], Collection[str]]:
        owned = [name for name in chains if self.chains and name.startswith("OWN")]
        return owned, {name for name in owned if name.startswith("OWN-U")}

    def matters(self, name: str) -> bool:
        return self.sets and name.startswith("own")

    def any_set_matters(self) -> bool:
        return self.sets


INTERESTS = {
    "all": Some(),
    "no sets": Some(sets=False),
    "no chains": Some(chains=False),
    "nothing": Some(chains=False, sets=False),
    "everything": Interest(),
}

SETS = """\
create own1 hash:ip family {0}
create own2 hash:ip family {0}
create foreign hash:ip family {0}
"""

# Each foreign chain's name says what is to come of it: Jn have a jump to an owned chain, Sn an owned set, Nn neither.
RULES = """\
*filter
:INPUT ACCEPT [1:2]
:FORWARD DROP [3:4]
:OWN-U1 - [0:0]
:OWN-U2 - [0:0]
:OWN-R1 - [0:0]
:OWN-R2 - [0:0]
:J1 - [0:0]
:J2 - [0:0]
:J3 - [0:0]
:S1 - [0:0]
:S2 - [0:0]
:S3 - [0:0]
:N1 - [0:0]
:N2 - [0:0]
:N3 - [0:0]
:N4 - [0:0]
:XOWN-U1 - [0:0]
[5:6] -A INPUT -j OWN-U1
[7:8] -A INPUT -j N1
[9:10] -A FORWARD -m set --match-set foreign src -j J1
[11:12] -A OWN-U1 -j N1
[13:14] -A OWN-U1 -m set --match-set own1 src -j OWN-R1
[15:16] -A OWN-R1 -j N1
[17:18] -A OWN-R1 -m comment --comment "only a comment"
[19:20] -A J1 -p tcp -j ACCEPT
[21:22] -A J1 -j OWN-U2
[23:24] -A J1 -p udp -j RETURN
[25:26] -A J2 -g OWN-R1
[27:28] -A J2
[29:30] -A J3 -m set --match-set foreign dst -j OWN-R2
[31:32] -A S1 -p tcp -j ACCEPT
[33:34] -A S1 -m set ! --match-set own1 src -j ACCEPT
[35:36] -A S2 -j SET --add-set own2 src
[37:38] -A S2
[39:40] -A S3 -m comment --comment "before" -m set --match-set foreign src -m set --match-set own1 dst -j N2
[41:42] -A N1 -m set --match-set foreign src -j XOWN-U1
[43:44] -A N1 -j SET --del-set foreign src
[45:46] -A N2 -m comment --comment "-j OWN-U1"
[47:48] -A N3 -m comment --comment "set own1" -m comment --comment set -j MARK --set-xmark 0x1/0x1
[49:50] -A N3 -j N2
[51:52] -A XOWN-U1 -j N3
COMMIT
*nat
:OWN-U1 - [0:0]
:N1 - [0:0]
:J1 - [0:0]
[1:1] -A J1 -j OWN-U1
[2:2] -A N1 -m set --match-set foreign src -j ACCEPT
COMMIT
*mangle
:N1 - [0:0]
[1:1] -A N1 -j MARK --set-xmark 0x1/0x1
COMMIT
"""


def many_foreign(chains: int, rules: int) -> str:
    """More chains that say nothing."""
    names = [f"FOREIGN-{i}" for i in range(chains)]
    lines = [f":{name} - [0:0]" for name in names]
    lines += [f"-A {name} -p tcp -m tcp --dport {i + 1} -j ACCEPT" for name in names for i in range(rules)]
    return "\n".join(["*filter", *lines, "COMMIT\n"]) if chains else ""


def many_owned(rules: int) -> str:
    return "\n".join(["*filter", *(["-A OWN-U2 -p tcp -j N1"] * rules), "COMMIT\n"]) if rules else ""


SIZES = {"small": (0, 0, 0), "many chains": (300, 1, 0), "big chains": (3, 400, 0), "many owned rules": (0, 0, 900)}


def load(sandbox: Sandbox, backend: Backend, family: Family, size: str = "small") -> Sandbox:
    sandbox.load_sets(SETS.format("inet" if family is Family.IPV4 else "inet6"))
    chains, rules, owned = SIZES[size]
    for text in (RULES, many_foreign(chains, rules), many_owned(owned)):
        if text:
            sandbox.load_rules(text, family, backend)
    return sandbox


def read(sandbox: Sandbox, backend: Backend, family: Family, interest: Interest) -> dict[str, Table]:
    with Handlers.open(netns=sandbox.path) as handlers, open_host(handlers) as host:
        if backend is Backend.NFT:
            dump = host.dump_nft(interest)
            assert dump is not None
            names = {item.index: item.name for item in host.sets((family,))}
            return {key.name: table for key, table in dump.tables(names).items() if key.family is family}
        opened = [host.open_legacy(key, interest) for key in host.legacy_tables(family)]
        names = {item.index: item.name for item in host.sets((family,))}
        return {table.key.name: table.table(names) for table in opened}


def expected(whole: dict[str, Table], interest: Interest) -> dict[str, Table]:
    """The same told from a reading of everything, by what the rules say."""
    return {name: attrs.evolve(table, rules=_expected(table, interest)) for name, table in whole.items()}


def _expected(table: Table, interest: Interest) -> dict[str, tuple[Rule, ...]]:
    owned, unread = interest.sort(table.key.name, table.chains)
    found = {}
    for chain, rules in table.rules.items():
        if chain in table.builtin or chain in owned:
            matters = chain not in unread
        else:
            matters = any(
                rule.target.name in owned or any(interest.matters(name) for name in rule.sets) for rule in rules
            )
        if matters:
            found[chain] = rules
    return found


def everything(table: Table) -> list[object]:
    """All of a table, with what takes no part in comparing rules."""
    rules = {
        chain: [(rule, rule.handle, rule.index, rule.packets, rule.bytes) for rule in own]
        for chain, own in table.rules.items()
    }
    return [table.key, table.builtin, table.chains, rules, table.mapped]


def assert_same(found: dict[str, Table], wanted: dict[str, Table]) -> None:
    assert found.keys() == wanted.keys()
    for name, table in found.items():
        assert table.rules.keys() == wanted[name].rules.keys(), name
        assert everything(table) == everything(wanted[name])


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("size", SIZES)
def test_what_is_read(new_sandbox: Callable[..., Sandbox], tools, family: Family, size: str):
    sandbox = load(new_sandbox(tools.folder), tools.backend, family, size)
    before = sandbox.state()
    whole = read(sandbox, tools.backend, family, Interest())
    assert all(table.rules.keys() == {*table.builtin, *table.chains} for table in whole.values())
    for interest in INTERESTS.values():
        assert_same(read(sandbox, tools.backend, family, interest), expected(whole, interest))
    assert sandbox.state() == before


@pytest.mark.parametrize("family", Family)
def test_the_names_say_what_is_read(new_sandbox: Callable[..., Sandbox], tools, family: Family):
    """The same as above, by eye."""
    sandbox = load(new_sandbox(tools.folder), tools.backend, family)
    found = {name: read(sandbox, tools.backend, family, each) for name, each in INTERESTS.items()}

    def user_chains(interest: str, table: str = "filter") -> set[str]:
        return set(found[interest][table].rules) - set(found[interest][table].builtin)

    read_ones, jump, use = {"OWN-R1", "OWN-R2"}, {"J1", "J2", "J3"}, {"S1", "S2", "S3"}
    assert user_chains("all") == read_ones | jump | use
    assert user_chains("no sets") == read_ones | jump
    assert user_chains("no chains") == use | {"OWN-U1"}
    assert user_chains("nothing") == set()
    assert user_chains("all", "nat") == {"J1"}
    assert user_chains("nothing", "nat") == user_chains("all", "mangle") == set()
    assert len(found["all"]["filter"].rules["J1"]) == 3
    assert found["all"]["filter"].rules["OWN-R2"] == ()
    assert all(set(found[each]["filter"].builtin) <= set(found[each]["filter"].rules) for each in INTERESTS)


# nf_tables: what is asked for


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What rules are asked for: the payload of each request for them."""
    asked: list[bytes] = []
    dump_each = NetlinkSocket.dump_each

    def counted(self: NetlinkSocket, kind: int, payload: bytes, take: Callable[[bytes], object]) -> bool:
        if kind == GET_RULE:
            asked.append(payload)
        return dump_each(self, kind, payload, take)

    monkeypatch.setattr(NetlinkSocket, "dump_each", counted)
    return asked


def chains_asked_for(requests: list[bytes], table: bytes) -> set[bytes]:
    parts = [parts_of(payload, 4) for payload in requests]
    return {part[2].rstrip(b"\0") for part in parts if part[1] == table + b"\0"}


@pytest.mark.parametrize("size", SIZES)
def test_what_is_asked_for(sandbox: Sandbox, requests: list[bytes], size: str):
    """Never the inside of an unread chain; where nothing can matter, not that of a foreign chain either."""
    load(sandbox, Backend.NFT, Family.IPV4, size)
    read(sandbox, Backend.NFT, Family.IPV4, INTERESTS["all"])
    asked = chains_asked_for(requests, b"filter")
    assert {b"INPUT", b"FORWARD", b"J1", b"S2", b"N3", b"OWN-R1"} <= asked
    assert asked.isdisjoint({b"OWN-U1", b"OWN-U2"})
    assert len(requests) == len(set(requests))
    requests.clear()
    read(sandbox, Backend.NFT, Family.IPV4, INTERESTS["nothing"])
    assert chains_asked_for(requests, b"filter") == {b"INPUT", b"FORWARD"}
    assert chains_asked_for(requests, b"nat") == chains_asked_for(requests, b"mangle") == set()


@pytest.mark.parametrize("family", Family)
def test_no_rule_of_others_is_read_where_nothing_is_owned(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, family: Family
):
    load(sandbox, Backend.LEGACY, family)
    monkeypatch.setattr(Blob, "jumps_to", lambda *_args: pytest.fail("looked for jumps"))
    for table in read(sandbox, Backend.LEGACY, family, INTERESTS["nothing"]).values():
        assert table.rules.keys() == table.builtin.keys()


@pytest.mark.parametrize("family", Family)
def test_rules_that_nft_wrote(sandbox: Sandbox, family: Family):
    """Jumps, gotos and verdict maps, named or not, of another program in the tables of iptables."""
    load(sandbox, Backend.NFT, family)
    where = f"{NATIVE[family]} filter"
    sandbox.load_tables(
        f"add chain {where} n-jump\nadd rule {where} n-jump tcp dport 1 counter jump OWN-U1\n"
        f"add chain {where} n-goto\nadd rule {where} n-goto meta mark 7 goto OWN-R1\n"
        f"add chain {where} n-none\nadd rule {where} n-none tcp dport {{ 1, 2 }} jump N1\n"
        f"add chain {where} n-vmap\nadd rule {where} n-vmap tcp dport vmap {{ 1 : jump OWN-U2, 2 : goto N2 }}\n"
        f"add map {where} verdicts {{ type inet_service : verdict; elements = {{ 5 : goto OWN-R2, 6 : drop }}; }}\n"
        f"add chain {where} n-map\nadd rule {where} n-map udp dport vmap @verdicts\n"
        f"add chain {where} base {{ type filter hook prerouting priority 7; policy drop; }}\n"
        f"add rule {where} base jump n-none\n"
    )
    before = sandbox.run(["nft", "list", "ruleset"]).stdout
    whole = read(sandbox, Backend.NFT, family, Interest())
    found = read(sandbox, Backend.NFT, family, INTERESTS["all"])
    assert_same(found, expected(whole, INTERESTS["all"]))
    table = found["filter"]
    others = {name for name in table.rules if name.startswith(("n-", "N"))}
    assert others == {"n-jump", "n-goto"}
    assert [(rule.target.name, rule.target.goto) for rule in table.rules["n-jump"]] == [("OWN-U1", False)]
    assert [(rule.target.name, rule.target.goto) for rule in table.rules["n-goto"]] == [("OWN-R1", True)]
    assert set(table.mapped) == {"OWN-U2", "OWN-R2", "N2"}
    assert table.mapped["OWN-R2"] == "verdicts"
    assert table.builtin["base"].verdict == "DROP"
    assert len(table.rules["base"]) == 1
    assert sandbox.run(["nft", "list", "ruleset"]).stdout == before


@pytest.mark.parametrize("family", Family)
def test_a_refusal_in_the_middle_names_what_it_is_about(sandbox: Sandbox, family: Family):
    """Chains that are still jumped to, rules and chains that are not there, among those that could go."""
    load(sandbox, Backend.NFT, family)
    key, nat = (TableKey(family, Backend.NFT, name) for name in ("mangle", "nat"))
    before = sandbox.state()
    change = Change((
        TableChange(nat, (Rule("J1", handle=9999),), ("N1", "OWN-U1", "GONE"), ("N1", "OWN-U1", "GONE", "J1")),
        TableChange(key, (), ("N1",), ("N1",)),
    ))  # fmt: skip
    with Handlers.open(netns=sandbox.path) as handlers, open_host(handlers) as host:
        dump = host.dump_nft(Interest())
        with pytest.raises(BatchRefused) as refused:
            host.commit_nft(change, dump.generation)
    assert refused.value.failures == {
        (nat, "rule", 9999): errno.ENOENT,
        (nat, "flush", "GONE"): errno.ENOENT,
        (nat, "chain", "OWN-U1"): errno.EBUSY,
        (nat, "chain", "GONE"): errno.ENOENT,
    }
    assert sandbox.state() == before
