"""Shapes: equal match by match, in any order, with placeholders that agree."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from firewall_cleanup import Controller, Family
from firewall_cleanup.components import ChainNames, SetNames
from firewall_cleanup.rules import parse_rule
from firewall_cleanup.shapes import Shape

V4, V6 = Family.IPV4, Family.IPV6
SHAPE = Shape("nat", ("POSTROUTING",), '-o <interface> -m comment --comment "x y" -m mark --mark 0x1 -j ACCEPT')


def match(shape: Shape, text: str, family: Family = V4, chain: str = "POSTROUTING") -> dict[str, str] | None:
    found = shape.match(parse_rule(f"-A {chain} {text}", user_chains=("mine",)), family)
    return None if found is None else dict(found)


@pytest.mark.parametrize(
    "text",
    [
        '-o eth0 -m comment --comment "x y" -m mark --mark 0x1 -j ACCEPT',
        '-o eth0 -m mark --mark 0x1 -m comment --comment "x y" -j ACCEPT',
        '-m mark --mark 0x1 -m comment --comment "x y" -j ACCEPT -o eth0',
    ],
)
def test_order_does_not_count(text: str) -> None:
    assert match(SHAPE, text) == {"<interface>": "eth0"}


@pytest.mark.parametrize(
    "text",
    [
        '-i eth0 -m comment --comment "x y" -m mark --mark 0x1 -j ACCEPT',
        '! -o eth0 -m comment --comment "x y" -m mark --mark 0x1 -j ACCEPT',
        '-o eth+ -m comment --comment "x y" -m mark --mark 0x1 -j ACCEPT',
        '-o eth0 -m comment --comment "x  y" -m mark --mark 0x1 -j ACCEPT',
        '-o eth0 -m comment --comment "X Y" -m mark --mark 0x1 -j ACCEPT',
        '-o eth0 -m comment --comment "x y" -m mark --mark 0x1/0x1 -j ACCEPT',
        '-o eth0 -m comment --comment "x y" -m mark ! --mark 0x1 -j ACCEPT',
        '-o eth0 -m comment --comment "x y" -j ACCEPT',
        '-m comment --comment "x y" -m mark --mark 0x1 -j ACCEPT',
        '-o eth0 -m comment --comment "x y" -m mark --mark 0x1 -m mark --mark 0x1 -j ACCEPT',
        '-s 192.0.2.1 -o eth0 -m comment --comment "x y" -m mark --mark 0x1 -j ACCEPT',
        '-o eth0 -m comment --comment "x y" -m mark --mark 0x1 -j DROP',
        '-o eth0 -m comment --comment "x y" -m mark --mark 0x1',
        '-o eth0 -m comment --comment "x y" -m mark --mark 0x1 -g mine',
        '-o eth0 -m comment --comment "x y" -m mark --mark 0x1 -m limit --limit 1/s -j ACCEPT',
    ],
)
def test_one_respect_differs(text: str) -> None:
    """Nothing more and nothing less: each of these is foreign."""
    assert match(SHAPE, text) is None


def test_another_chain() -> None:
    assert match(SHAPE, '-o eth0 -m comment --comment "x y" -m mark --mark 0x1 -j ACCEPT', chain="PREROUTING") is None


@pytest.mark.parametrize(
    ("placeholder", "family", "good", "bad"),
    [
        ("<cidr>", V4, ["10.0.0.0/8", "10.0.0.1"], ["2001:db8::/64"]),
        ("<cidr>", V6, ["2001:db8::/64", "2001:db8::1"], ["10.0.0.0/8"]),
        ("<vip>", V4, ["10.0.0.1"], ["10.0.0.0/8", "2001:db8::1"]),
        ("<vip>", V6, ["2001:db8::1"], ["2001:db8::/64", "10.0.0.1"]),
    ],
)
def test_address_placeholders(placeholder: str, family: Family, good: list[str], bad: list[str]) -> None:
    shape = Shape("nat", ("POSTROUTING",), f"-s {placeholder} -j ACCEPT")
    assert all(match(shape, f"-s {word} -j ACCEPT", family) for word in good)
    assert not any(match(shape, f"-s {word} -j ACCEPT", family) for word in bad)


@pytest.mark.parametrize(
    ("target", "good", "bad"),
    [
        ("SNAT --to-source <address>", ["192.0.2.1"], ["192.0.2.1:80", "192.0.2.1-192.0.2.9", "2001:db8::1", "x"]),
        ("TCPMSS --set-mss <mss>", ["1440"], ["x", "-1"]),
        ("MARK --set-xmark <mark>", ["0x1/0xffffffff"], ["0x1/0x1", "1/0xffffffff", "0x1"]),
    ],
)
def test_target_placeholders(target: str, good: list[str], bad: list[str]) -> None:
    shape = Shape("nat", ("POSTROUTING",), f"-j {target}")
    head = target.split("<", maxsplit=1)[0]
    assert all(match(shape, f"-j {head}{word}") for word in good)
    assert not any(match(shape, f"-j {head}{word}") for word in bad)


def test_a_placeholder_twice_means_the_same_twice() -> None:
    shape = Shape("nat", ("POSTROUTING",), "! -s <cidr> ! -d <cidr> -j ACCEPT")
    assert match(shape, "! -s 10.0.0.0/8 ! -d 10.0.0.0/8 -j ACCEPT") == {"<cidr>": "10.0.0.0/8"}
    assert match(shape, "! -s 10.0.0.0/8 ! -d 10.1.0.0/16 -j ACCEPT") is None


def test_placeholders_agree_between_matches_and_target() -> None:
    shape = Shape("nat", ("POSTROUTING",), "-m ipvs --vaddr <address> -j SNAT --to-source <address>")
    assert match(shape, "-m ipvs --vaddr 192.0.2.1 -j SNAT --to-source 192.0.2.1") is not None
    assert match(shape, "-m ipvs --vaddr 192.0.2.1 -j SNAT --to-source 192.0.2.2") is None


def test_equal_matches_are_paired_each_with_its_own() -> None:
    """Two alike need two alike: pairing tries all ways."""
    shape = Shape("nat", ("POSTROUTING",), "-m set --match-set a src -m set ! --match-set a dst -j ACCEPT")
    assert match(shape, "-m set ! --match-set a dst -m set --match-set a src -j ACCEPT") is not None
    assert match(shape, "-m set --match-set a src -m set --match-set a src -j ACCEPT") is None


def test_optional_target_options() -> None:
    shape = Shape("nat", ("POSTROUTING",), "-j MASQUERADE", frozenset({"--random-fully"}))
    assert match(shape, "-j MASQUERADE") is not None
    assert match(shape, "-j MASQUERADE --random-fully") is not None
    assert match(shape, "-j MASQUERADE --random") is None
    assert match(shape, "-j MASQUERADE --to-ports 1-2") is None


def test_family_prefix() -> None:
    shape = Shape("nat", ("POSTROUTING",), "-m set --match-set {inet6}a src -j ACCEPT")
    plain, prefixed = "-m set --match-set a src -j ACCEPT", "-m set --match-set inet6:a src -j ACCEPT"
    assert match(shape, plain, V4) is not None
    assert match(shape, prefixed, V6) is not None
    assert match(shape, prefixed, V4) is None
    assert match(shape, plain, V6) is None


def test_only_built_in_chains_are_looked_at() -> None:
    for chains in (("POSTROUTING", "mine"), ("FORWARD",)):  # nat has no FORWARD
        with pytest.raises(ValueError, match="not all are built-in chains of nat"):
            Shape("nat", chains, "-j ACCEPT")


@pytest.mark.parametrize(
    "make", [lambda p: ChainNames("nat", p, Controller.SERVICE_PROXY), lambda p: SetNames(p, None)]
)
def test_names_have_no_groups(make: Callable[[re.Pattern[str]], object]) -> None:
    """The groups of the one pattern that is made of all tell which of them matched."""
    make(re.compile("KUBE-(?:A|B)"))
    with pytest.raises(ValueError, match="use"):
        make(re.compile("KUBE-(A|B)"))


def test_a_wrong_shape_is_an_error() -> None:
    with pytest.raises(ValueError, match="more than one target"):
        match(Shape("nat", ("POSTROUTING",), "-j ACCEPT -j DROP"), "-j ACCEPT")
