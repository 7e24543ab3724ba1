"""The text of rules: words, canonical form, quoting, old syntax, errors."""

from __future__ import annotations

import pytest

from firewall_cleanup.model import Match, Option, Rule, Target
from firewall_cleanup.rules import network, parse_rule, protocol_name, render, tokenize


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-A INPUT", [("-A", False), ("INPUT", False)]),
        ("  -A\tINPUT  ", [("-A", False), ("INPUT", False)]),
        ('"a b"', [("a b", True)]),
        ('""', [("", True)]),
        (r'"say \"hi\""', [('say "hi"', True)]),
        (r'"back\\slash"', [("back\\slash", True)]),
        (r'"it\'s"', [("it's", True)]),
        ('"-j DROP" -j', [("-j DROP", True), ("-j", False)]),
        ('a"b', [('a"b', False)]),
        ("", []),
        ('"two\nlines"', [("two\nlines", True)]),
    ],
)
def test_tokenize(line: str, words: list[tuple[str, bool]]) -> None:
    assert [tuple(word) for word in tokenize(line)] == words


@pytest.mark.parametrize("line", ['"open', 'a "open', r'"ends in \"', '"'])
def test_tokenize_refuses_an_open_quote(line: str) -> None:
    with pytest.raises(ValueError, match="quote"):
        list(tokenize(line))


def comment(text: str) -> Match:
    return Match("comment", (Option("--comment", (text,)),))


def test_parse_reads_all_parts() -> None:
    line = (
        '[3:180] -A INPUT ! -s 192.0.2.1/32 -i eth0 -p tcp -m comment --comment "a b" -m tcp --dport 80:81'
        " -m set ! --match-set blocked src,dst -j MARK --set-xmark 0x1/0xffffffff"
    )
    rule = parse_rule(line)
    assert rule == Rule(
        "INPUT",
        (
            Match(
                "", (Option("-s", ("192.0.2.1/32",), negated=True), Option("-i", ("eth0",)), Option("-p", ("tcp",)))
            ),
            comment("a b"),
            Match("tcp", (Option("--dport", ("80:81",)),)),
            Match("set", (Option("--match-set", ("blocked", "src,dst"), negated=True),)),
        ),
        Target("MARK", (Option("--set-xmark", ("0x1/0xffffffff",)),)),
        sets=frozenset({"blocked"}),
    )
    assert (rule.packets, rule.bytes, rule.handle) == (3, 180, None)
    assert rule.text == line.split("] ", 1)[1]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("-p tcp -s 10.0.0.1", "-s 10.0.0.1/32 -p tcp"),
        ("-s 10.1.2.3/255.255.0.0", "-s 10.1.0.0/16"),
        ("-d 2001:DB8:0::1", "-d 2001:db8::1/128"),
        ("-p 6", "-p tcp"),
        ("-p 99", "-p 99"),
        ("-p icmpv6", "-p ipv6-icmp"),
        ("--source 10.0.0.1 --protocol udp --out-interface eth0", "-s 10.0.0.1/32 -o eth0 -p udp"),
        ("--in-interface eth0 --jump ACCEPT", "-i eth0 -j ACCEPT"),
        ("--match mark --mark 0x1 --goto mine", "-m mark --mark 0x1 -g mine"),
        ("-s ! 10.0.0.1", "! -s 10.0.0.1/32"),
        ("-m set --match-set ! blocked src", "-m set ! --match-set blocked src"),
        ("-p tcp -m tcp -j ACCEPT", "-p tcp -j ACCEPT"),
        ("-p tcp -m tcp --dport 80", "-p tcp -m tcp --dport 80"),
        ("-j ACCEPT -s 10.0.0.1", "-s 10.0.0.1/32 -j ACCEPT"),
        ("-d 10.0.0.1/255.0.255.0", "-d 10.0.0.1/255.0.255.0"),
    ],
)
def test_parse_canonical(text: str, canonical: str) -> None:
    """Words in another order or spelling, the old place of `!`, and `-m tcp` that says nothing: the same rule."""
    assert parse_rule(f"-A X {text}", user_chains=("mine",)) == parse_rule(f"-A X {canonical}", user_chains=("mine",))
    rule = Rule(**{**_fields(parse_rule(f"-A X {text}", user_chains=("mine",))), "text": None})
    assert render(rule) == f"-A X {canonical}"


def _fields(rule: Rule) -> dict[str, object]:
    return {name: getattr(rule, name) for name in Rule.__slots__ if not name.startswith("__")}


def test_order_of_matches_is_kept() -> None:
    """Matches of another order are another rule for the kernel; a shape does not care, a reader must."""
    one, two = '-m comment --comment "a"', "-m mark --mark 0x1"
    assert parse_rule(f"-A X {one} {two}") != parse_rule(f"-A X {two} {one}")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain-word_1", "plain-word_1"),
        ("", '""'),
        ("two words", '"two words"'),
        ("dots.are.quoted", '"dots.are.quoted"'),
        ('"quoted"', r'"\"quoted\""'),
        ("it's", r'"it\'s"'),
        ("a\\b", r'"a\\b"'),
        ("-j", "-j"),
        ("--comment", "--comment"),
        ("!", '"!"'),
        ("-j DROP", '"-j DROP"'),
        ("# no", '"# no"'),
    ],
)
def test_comments_round_trip(text: str, written: str) -> None:
    """Comments are quoted as iptables quotes them and read back as they were."""
    rule = Rule("X", (comment(text),), Target("ACCEPT"))
    assert render(rule) == f"-A X -m comment --comment {written} -j ACCEPT"
    assert parse_rule(render(rule)) == rule


def test_a_comment_is_no_option() -> None:
    """What a comment says is never an option of the rule, not even in hand-written text."""
    rule = parse_rule('-A INPUT -m comment --comment "-j KUBE-ROUTER-INPUT -m set --match-set x src" -j ACCEPT')
    assert rule.target == Target("ACCEPT")
    assert rule.sets == frozenset()
    bare = parse_rule("-A INPUT -m comment --comment --jump -j ACCEPT")
    assert bare.matches == (comment("--jump"),)


@pytest.mark.parametrize(
    ("text", "opaque"),
    [
        ("-j ACCEPT", ()),
        ("-j mine", ()),
        ("-g mine", ()),
        ("", ()),
        ("-j theirs", ("theirs",)),
        ("-m limit --limit 1/sec -j ACCEPT", ("limit",)),
        ("-j REJECT --reject-with icmp-port-unreachable", ("REJECT",)),
        ("-f -j ACCEPT", ("-f",)),
        ("-p tcp -m tcp --syn-something -j ACCEPT", ("tcp",)),
        ("-m set --match-set a src --return-nomatch -j ACCEPT", ("set",)),
        ("-m conntrack --ctstate NEW --ctproto 6 -j ACCEPT", ("conntrack",)),
        ("-j SNAT --to-source 192.0.2.1 --something", ("SNAT",)),
        ("-m statistic --mode random -j LOG --log-prefix x", ("statistic", "LOG")),
    ],
)
def test_opaque(text: str, opaque: tuple[str, ...]) -> None:
    """Whatever is not understood whole is named."""
    assert parse_rule(f"-A X {text}", user_chains=("mine",)).opaque == opaque


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("-m set --match-set a src -m set ! --match-set b dst -j ACCEPT", {"a", "b"}),
        ("-j SET --add-set a src --exist", {"a"}),
        ("-j SET --del-set a src", {"a"}),
        ("-j SET --map-set inet6:a src", {"inet6:a"}),
        ("-m comment --comment a -j ACCEPT", set()),
        ("-m set --match-set a src --return-nomatch -m limit --limit 1/s -j LOG", {"a"}),
    ],
)
def test_sets_are_known_even_in_opaque_rules(text: str, sets: set[str]) -> None:
    assert parse_rule(f"-A X {text}").sets == sets


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "expected -A"),
        ("-A", "expected -A"),
        (":INPUT ACCEPT [0:0]", "expected -A"),
        ("-P INPUT ACCEPT", "expected -A"),
        ("-A X -j ACCEPT -j DROP", "more than one target"),
        ("-A X -j", "without a name"),
        ("-A X -m", "without a name"),
        ("-A X stray", "unexpected word"),
        ('-A X "-j" ACCEPT', "unexpected word"),
        ('-A X -m comment --comment "open', "quote"),
    ],
)
def test_parse_errors(line: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_rule(line)


def test_render_marks_what_is_opaque() -> None:
    rule = Rule("X", target=Target("LOG"), opaque=("limit", "LOG"))
    assert render(rule) == "-A X <limit, LOG> -j LOG"


def test_render_prefers_the_given_text() -> None:
    assert render(Rule("X", text="-A X as it was")) == "-A X as it was"


def test_position_and_counters_do_not_make_a_rule() -> None:
    one = Rule("X", handle=1, index=1, packets=1, bytes=1, text="x")
    assert one == Rule("X")
    assert hash(one) == hash(Rule("X"))
    assert Rule("X", opaque=("a",)) != Rule("X")


@pytest.mark.parametrize(("number", "name"), [(6, "tcp"), (58, "ipv6-icmp"), (1, "icmp"), (253, "253")])
def test_protocol_name(number: int, name: str) -> None:
    assert protocol_name(number) == name


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("10.0.0.1", "10.0.0.1/32"), ("10.1.1.1/8", "10.0.0.0/8"), ("::/0", "::/0"), ("a.host", "a.host")],
)
def test_network(text: str, canonical: str) -> None:
    assert network(text) == canonical


@pytest.mark.parametrize("remarks", [True, False])
def test_a_line_with_a_remark_is_no_text_of_iptables(remarks: bool) -> None:
    """Its words would delete nothing; those of a line without one are kept."""
    line = "-A INPUT -m recent --set -j mine"
    assert parse_rule(line, user_chains=["mine"], remarks=remarks).text == line
    if remarks:
        rule = parse_rule("[1:2] -A INPUT <recent> -j mine", user_chains=["mine"], remarks=True)
        assert (rule.opaque, rule.text) == (("recent",), None)
