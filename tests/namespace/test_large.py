"""A large node: 20,000 owned chains in one batch."""

from __future__ import annotations

import pytest
from scenes import clean, problems

from firewall_cleanup import Backend, Family, Kind
from firewall_cleanup.testing.namespaces import Sandbox
from firewall_cleanup.testing.node import short_hash

pytestmark = pytest.mark.namespace


_CHAINS = [f"KUBE-POD-FW-{short_hash(str(n))}" for n in range(10_000)]
_LEGACY = "".join(
    [
        "*filter\n:KUBE-ROUTER-INPUT - [0:0]\n",
        *(f":{chain} - [0:0]\n" for chain in _CHAINS),
        "-A INPUT -j KUBE-ROUTER-INPUT\n",
        *(
            f"-A {chain} -m mark ! --mark 0x1 -j RETURN\n-A KUBE-ROUTER-INPUT -j {chain}\n"
            + f"-A INPUT -j {chain}\n[{n}:{n * 10}] -A INPUT -i user{n} -j ACCEPT\n" * (n % 100 == 1)
            for n, chain in enumerate(_CHAINS)
        ),
        "COMMIT\n",
    ]
)
_NFT = "".join(
    f"add chain FAMILY filter {chain}\nadd rule FAMILY filter {chain} meta mark != 1 counter return\n"
    f"add rule FAMILY filter KUBE-ROUTER-INPUT counter jump {chain}\n"
    + f"add rule FAMILY filter INPUT counter jump {chain}\n"
    f"add rule FAMILY filter INPUT iifname user{n} counter packets {n} bytes {n * 10} accept\n" * (n % 100 == 1)
    for n, chain in enumerate(_CHAINS)
)


def test_twenty_thousand_chains(sandbox: Sandbox, backend: Backend):
    """Each with a rule, used by a chain of its own kind and some by a built-in chain, between rules that stay."""
    for family in Family:
        if backend is Backend.LEGACY:
            sandbox.load_rules(_LEGACY, family, backend)
        else:  # iptables-nft-restore would need half a minute
            program, nft_family = ("iptables", "ip") if family is Family.IPV4 else ("ip6tables", "ip6")
            sandbox.run(f"{program}-nft -N KUBE-ROUTER-INPUT && {program}-nft -A INPUT -j KUBE-ROUTER-INPUT")
            sandbox.load_tables(_NFT.replace("FAMILY", nft_family))
    before = sandbox.state()

    report = clean(sandbox)

    assert problems(report) == []
    assert sum(outcome.kind is Kind.CHAIN for outcome in report.outcomes) == 20_002
    assert sum(outcome.kind is Kind.RULE for outcome in report.outcomes) == 202
    after = sandbox.state()
    for family in Family:
        assert after.lines(backend, family) == [ln for ln in before.lines(backend, family) if "KUBE-" not in ln]
        assert sum("-i user" in line for line in after.lines(backend, family)) == 100
    assert not clean(sandbox).changed
