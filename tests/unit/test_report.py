"""Reports: one outcome per object, exit codes, the exact JSON, and what counts as clean."""

from __future__ import annotations

import json
import signal

import pytest
from builders import LEGACY, NFT, PROXY, V4, V6, H, clean, key, node

from firewall_cleanup import CleanupReport, Family, FamilyState, Gap, Kind, ResidueError, Status
from firewall_cleanup.model import IpSet, NativeTable, Rule, Target
from firewall_cleanup.ownership import Claims, RuleClaim, SetClaim
from firewall_cleanup.report import Holder, Left

FAMILIES = {V6: FamilyState.ABSENT, V4: FamilyState.EXAMINED}
SET = Claims(sets={"kube-router-svip": SetClaim(IpSet("kube-router-svip", "hash:ip", V4), PROXY, "set-name")})


def report(*, dry_run: bool = False, changed: bool = False, **more: object) -> CleanupReport:
    return CleanupReport("kube-router", dry_run, changed, FAMILIES, **more)  # type: ignore[arg-type]


def left(status: Status) -> CleanupReport:
    return report(here=SET, left={"kube-router-svip": Left(status, "why")})


@pytest.mark.parametrize(
    ("made", "clean", "exit_code", "dry_exit_code"),
    [
        (lambda dry: report(dry_run=dry), True, 0, 0),
        (lambda dry: report(dry_run=dry, gone=SET), True, 0, 0),
        (lambda dry: report(dry_run=dry, here=SET), False, 1, 0),
        (lambda dry: report(dry_run=dry, gaps=(Gap("x"),)), False, 1, 1),
        (lambda dry: report(dry_run=dry, here=SET, left={"kube-router-svip": Left(Status.KEPT, "x")}), True, 0, 0),
        (lambda dry: report(dry_run=dry, here=SET, left={"kube-router-svip": Left(Status.IN_USE, "x")}), False, 1, 0),
        (lambda dry: report(dry_run=dry, here=SET, left={"kube-router-svip": Left(Status.DENIED, "x")}), False, 1, 0),
        (lambda dry: report(dry_run=dry, interrupted=signal.SIGTERM), True, 143, 143),
        (lambda dry: report(dry_run=dry, interrupted=signal.SIGINT, gaps=(Gap("x"),)), False, 130, 130),
    ],
)
def test_exit_codes(made, clean: bool, exit_code: int, dry_exit_code: int) -> None:  # type: ignore[no-untyped-def]
    """1 for residue or gaps; a dry run fails only if the plan could not be made whole; 128 + n after a signal."""
    assert made(False).clean is clean
    assert made(False).exit_code == exit_code
    assert made(True).exit_code == dry_exit_code


@pytest.mark.parametrize("status", [Status.IN_USE, Status.DENIED, Status.FAILED])
def test_residue(status: Status) -> None:
    made = left(status)
    assert [outcome.status for outcome in made.residue] == [status]
    with pytest.raises(ResidueError, match="1 owned objects left, 0 parts") as raised:
        made.raise_for_residue()
    assert raised.value.report is made


def test_kept_and_planned_are_no_residue() -> None:
    assert left(Status.KEPT).residue == ()
    left(Status.KEPT).raise_for_residue()
    plan = report(dry_run=True, here=SET)
    assert [outcome.status for outcome in plan.outcomes] == [Status.PLANNED]
    assert plan.residue == ()


def test_gaps_raise_too() -> None:
    with pytest.raises(ResidueError, match="0 owned objects left, 1 parts"):
        report(gaps=(Gap("x"),)).raise_for_residue()


def test_what_is_there_again_has_a_reason() -> None:
    (outcome,) = report(here=SET).outcomes
    assert outcome.status is Status.FAILED
    assert "still running" in (outcome.reason or "")


def test_json_exactly() -> None:
    """Keys, order and values: what a reader depends on."""
    where = key("nat", V6, LEGACY)
    rule = Rule("POSTROUTING", target=Target("KUBE-ROUTER-HAIRPIN"))
    made = report(
        changed=True,
        gaps=(Gap("no", V4, NFT, "nat"), Gap("never", subsystem="ipset")),
        gone=Claims(
            chains={where: {"KUBE-ROUTER-HAIRPIN": PROXY}},
            rules={where: {("POSTROUTING", rule, 0): RuleClaim(rule, PROXY, "jump", "KUBE-ROUTER-HAIRPIN")}},
        ),
        here=SET,
        left={
            "kube-router-svip": Left(
                Status.IN_USE, "a rule uses it", Holder(Kind.RULE, V4, NFT, "filter", "INPUT", "-A INPUT -j X", PROXY)
            )
        },
    )
    common = {"component": "kube-router", "controller": "service-proxy"}
    assert made.to_dict() == {
        "version": 1,
        "dry_run": False,
        "clean": False,
        "changed": True,
        "families": {"ipv4": "examined", "ipv6": "absent"},
        "outcomes": [
            {
                **common,
                "family": "ipv4",
                "backend": None,
                "kind": "set",
                "table": None,
                "name": "kube-router-svip",
                "status": "in-use",
                "evidence": "set-name",
                "detail": None,
                "text": None,
                "reason": "a rule uses it",
                "holder": {
                    "kind": "rule",
                    "family": "ipv4",
                    "backend": "nft",
                    "table": "filter",
                    "chain": "INPUT",
                    "text": "-A INPUT -j X",
                },
            },
            {
                **common,
                "family": "ipv6",
                "backend": "legacy",
                "kind": "chain",
                "table": "nat",
                "name": "KUBE-ROUTER-HAIRPIN",
                "status": "removed",
                "evidence": "chain-name",
                "detail": None,
                "text": None,
                "reason": None,
                "holder": None,
            },
            {
                **common,
                "family": "ipv6",
                "backend": "legacy",
                "kind": "rule",
                "table": "nat",
                "name": "POSTROUTING",
                "status": "removed",
                "evidence": "jump",
                "detail": "KUBE-ROUTER-HAIRPIN",
                "text": "-A POSTROUTING -j KUBE-ROUTER-HAIRPIN",
                "reason": None,
                "holder": None,
            },
        ],
        "gaps": [
            {"family": "ipv4", "backend": "nft", "table": "nat", "reason": "no"},
            {"family": None, "backend": None, "table": None, "reason": "never"},
        ],
        "writers": {"proc": "/proc", "running": [], "unseen": [], "commits": [], "missed": False},
    }
    assert list(made.to_dict()) == [
        *("version", "dry_run", "clean", "changed", "families", "outcomes", "gaps"),
        "writers",
    ]
    keys = "component controller family backend kind table name status evidence detail text reason holder".split()
    assert all(list(outcome) == keys for outcome in made.to_dict()["outcomes"])
    json.dumps(made.to_dict())


def test_values_of_enumerations() -> None:
    assert [status.value for status in Status] == ["planned", "removed", "kept", "in-use", "denied", "failed"]
    assert [state.value for state in FamilyState] == ["examined", "absent", "gap"]


def test_a_table_and_a_temporary_set() -> None:
    """A table belongs to its family; a temporary set to no controller."""
    host = node(
        sets=[IpSet("TMP-PRBJ7ASFQM5DJR3Q", "hash:ip", V4)], natives=[NativeTable("ip6", "kube-router-filter-ipv6")]
    )
    table, item = sorted(clean(host).to_dict()["outcomes"], key=lambda outcome: outcome["kind"], reverse=True)
    assert (table["family"], table["backend"], table["table"], table["evidence"]) == (
        "ipv6", "nft", "kube-router-filter-ipv6", "table-name"
    )  # fmt: skip
    assert (item["controller"], item["evidence"], item["family"]) == (None, "temporary-set", "ipv4")


def test_outcomes_are_ordered_whatever_the_node() -> None:
    pod, services = f"KUBE-POD-FW-{H}", "KUBE-ROUTER-SERVICES"
    text = f"-N {pod}\n-N {services}\n-A INPUT -j {services}\n-A FORWARD -j {pod}"
    keys = [key(), key(family=V6), key(backend=LEGACY)]
    one, two = (clean(node(dict.fromkeys(order, text))) for order in (keys, keys[::-1]))
    assert one.to_dict() == two.to_dict()
    names = [(o.controller.value if o.controller else "", o.family, o.backend, o.kind.value) for o in one.outcomes]
    assert names == sorted(names, key=lambda each: (each[0], each[1].value, each[2].value, each[3]))  # type: ignore[union-attr]


def test_names_in_json_are_safe() -> None:
    """A name of any bytes is still JSON that every reader can take."""
    name = "kube-router-svip"
    made = report(here=SET, left={name: Left(Status.IN_USE, "\x1b[2J\udcff")})
    assert "\x1b" not in json.dumps(made.to_dict())


def test_family_order() -> None:
    assert sorted([Family.IPV6, Family.IPV4]) == [Family.IPV4, Family.IPV6]
