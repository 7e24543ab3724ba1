"""The pieces of generated nodes are what they say: owned, foreign, holding; no law holds for want of a case."""

from __future__ import annotations

import attrs
import pytest
from builders import LEGACY, NFT, V4, V6, clean
from hypothesis import HealthCheck, Phase, find, settings

from firewall_cleanup import Backend, Family, Kind, Status
from firewall_cleanup.components.kube_router import KUBE_ROUTER
from firewall_cleanup.ownership import claim
from firewall_cleanup.testing import strategies
from firewall_cleanup.testing.strategies import FOREIGN, HASHES, HOLDERS, OWNED, Piece, Placed, Scenario

EVERY = [(family, backend) for family in (V4, V6) for backend in (NFT, LEGACY)]
PLACES = pytest.mark.parametrize(("family", "backend"), EVERY)


def scenario(piece: Piece, family: Family, backend: Backend, *more: Piece) -> Scenario:
    return Scenario.of(Placed(each, family, backend, HASHES[0]) for each in (piece, *more))


QUICK = settings(database=None, max_examples=50, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize(
    ("piece", "family", "backend"),
    [(piece, *place) for piece in OWNED for place in EVERY if not piece.ipv4 or place[0] is V4],
)
def test_owned_pieces(piece: Piece, family: Family, backend: Backend) -> None:
    """Each is claimed for its owner, and goes whole."""
    one = scenario(piece, family, backend)
    claims = claim(one.snapshot, KUBE_ROUTER)
    owners = {found.controller for own in claims.rules.values() for found in own.values()}
    owners |= {owner for own in claims.chains.values() for owner in own.values()}
    owners |= {found.controller for found in claims.sets.values()} | set(claims.native_tables.values())
    assert piece.owner in owners
    host = one.host()
    assert clean(host).clean
    assert host.state == one.foreign(one.snapshot)


@PLACES
@pytest.mark.parametrize("piece", FOREIGN, ids=lambda piece: piece.lines[-1])
def test_foreign_pieces(piece: Piece, family: Family, backend: Backend) -> None:
    """Nothing of them is claimed, alone or beside everything that is owned."""
    assert not claim(scenario(piece, family, backend).snapshot, KUBE_ROUTER)
    alone = scenario(piece, family, backend)
    assert attrs.evolve(alone.foreign(alone.snapshot), sets={}) == attrs.evolve(alone.snapshot, sets={})
    beside = scenario(piece, family, backend, *(each for each in OWNED if not (each.ipv4 and family is V6)))
    host = beside.host()
    before = beside.foreign(host.state)
    assert clean(host).clean
    assert beside.foreign(host.state) == before


@PLACES
@pytest.mark.parametrize("piece", HOLDERS, ids=lambda piece: piece.lines[-1])
def test_holders_hold(piece: Piece, family: Family, backend: Backend) -> None:
    report = clean(scenario(piece, family, backend).host())
    assert {(outcome.kind, outcome.status) for outcome in report.residue} == {(Kind.SET, Status.IN_USE)}
    assert all(outcome.holder for outcome in report.residue)


def test_mirrored_twice_is_the_same() -> None:
    one = Scenario.of(Placed(piece, V4, NFT, HASHES[0]) for piece in (*OWNED, *FOREIGN) if not piece.ipv4)
    assert one.mirrored().mirrored() == one
    assert {key.family for key in one.mirrored().snapshot.tables} == {V6}


@pytest.mark.parametrize(
    "wanted",
    [
        lambda s: any(t.status is Status.KEPT for t in clean(s.host(), frozenset([_POLICY])).outcomes),
        lambda s: any(t.status is Status.IN_USE for t in clean(s.host()).outcomes),
        lambda s: {k.backend for k in s.snapshot.tables} == set(Backend) and len(clean(s.host()).outcomes) > 5,
        lambda s: any(t.evidence == "dsr-vip" for t in clean(s.host()).outcomes),
        lambda s: any(t.evidence == "temporary-set" for t in clean(s.host()).outcomes),
    ],
)
def test_the_cases_that_matter_are_drawn(wanted) -> None:  # type: ignore[no-untyped-def]
    """Each sort of outcome turns up among the nodes of the properties."""
    often = settings(QUICK, max_examples=2000, derandomize=True)
    assert find(strategies.mixed_nodes(holders=True), wanted, settings=often)


_POLICY = OWNED[0].owner
