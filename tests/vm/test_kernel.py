"""Smoke tests of the virtual machine: its kernel takes every kind of object that a kube-router node has.

They need IPVS and other modules that few kernels have loaded; `tests/run-vm` runs them on one that does.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# In the guest, with the modules loaded, nothing may be skipped for the want of one.
IN_GUEST = os.environ.get("FIREWALL_CLEANUP_VM") == "modules"
HAS_IPVS = Path("/proc/net/ip_vs").exists()
HAS_IPV6 = Path("/proc/sys/net/ipv6").exists()

pytestmark = [
    pytest.mark.namespace,
    pytest.mark.skipif(not IN_GUEST and os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not IN_GUEST and not HAS_IPVS, reason="this kernel has no IPVS: use tests/run-vm"),
]

FAMILIES = [
    pytest.param("4", id="ipv4"),
    pytest.param("6", id="ipv6", marks=pytest.mark.skipif(not HAS_IPV6, reason="IPv6 is disabled")),
]
families = pytest.mark.parametrize("family", FAMILIES)


class Namespace:
    """A network namespace with a name, thrown away after the test."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, command: str, *, given: str = "") -> str:
        words = ["ip", "netns", "exec", self.name, *command.split()]
        done = subprocess.run(words, input=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def ip(self, *lines: str, family: str = "") -> None:
        words = ["ip", "-n", self.name, *([f"-{family}"] if family else []), "-batch", "-"]
        done = subprocess.run(words, input="\n".join(lines), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def show(self, what: str) -> list[dict[str, Any]]:
        return json.loads(self.run(f"ip -j -d {what}") or "[]")


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    name = f"kernel-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield Namespace(name)
    subprocess.run(["ip", "netns", "del", name], check=True)


def test_the_guest_has_every_module() -> None:
    if not IN_GUEST:
        pytest.skip("not in the guest of tests/run-vm")
    assert HAS_IPVS
    for module in "ip_vs dummy ipip fou nf_tables xt_ipvs ip_set".split():
        assert Path("/sys/module", module).exists(), module


@pytest.mark.parametrize(
    ("service", "destination"),
    [
        pytest.param("-t 192.0.2.1:80", "192.0.2.10:8080 -m", id="ipv4"),
        pytest.param("-u [2001:db8::1]:53", "[2001:db8::10]:8053 -m", id="ipv6"),
        pytest.param("-f 77", "192.0.2.10:8080 -i", id="fwmark4"),
        pytest.param("-f 292 -6", "[2001:db8::10]:8080 -i", id="fwmark6"),
    ],
)
def test_ipvs_service(namespace: Namespace, service: str, destination: str) -> None:
    if "[" in destination and not HAS_IPV6:
        pytest.skip("IPv6 is disabled")
    key = service.removesuffix(" -6")
    namespace.ip("link set lo up")  # an IPv4 destination is refused while there is no routing table at all
    namespace.run("ipvsadm -R", given=f"-A {service} -s rr\n-a {service} -r {destination} -w 1\n")
    saved = namespace.run("ipvsadm -Sn").splitlines()
    assert [line.startswith(f"{verb} {key}") for verb, line in zip(["-A", "-a"], saved, strict=True)] == [True, True]
    assert f"-r {destination} -w 1" in saved[1]
    namespace.run(f"ipvsadm -D {service}")
    assert not namespace.run("ipvsadm -Sn")


def test_ipvs_services_are_those_of_a_namespace(namespace: Namespace) -> None:
    before = subprocess.run(["ipvsadm", "-Sn"], capture_output=True, text=True, check=True).stdout
    namespace.run("ipvsadm -A -t 192.0.2.1:80 -s wrr")
    assert namespace.run("ipvsadm -Sn")
    assert subprocess.run(["ipvsadm", "-Sn"], capture_output=True, text=True, check=True).stdout == before


@families
def test_dummy_link_with_addresses(namespace: Namespace, family: str) -> None:
    address = {"4": "192.0.2.1/32", "6": "2001:db8::1/128"}[family]
    namespace.ip(
        "link add kube-dummy-if type dummy",
        "link set kube-dummy-if up",
        f"addr add {address} dev kube-dummy-if {'scope link' if family == '4' else 'nodad'}",
    )
    [link] = namespace.show("addr show dev kube-dummy-if")
    assert link["linkinfo"]["info_kind"] == "dummy"
    assert address.partition("/")[0] in [found["local"] for found in link["addr_info"]]
    local = namespace.show(f"-{family} route show table local")
    assert address.partition("/")[0] in [found["dst"] for found in local]


@families
@pytest.mark.parametrize("encap", ["", "encap gue encap-sport auto encap-dport 5555"], ids=["plain", "gue"])
def test_tunnel(namespace: Namespace, family: str, encap: str) -> None:
    kind, local, remote = {
        "4": ("ipip", "192.0.2.1", "192.0.2.2"),
        "6": ("ip6tnl mode any", "2001:db8::1", "2001:db8::2"),
    }[family]
    if encap:
        namespace.ip("fou add port 5555 gue", family=family)
    namespace.ip(f"link add tun-0123456789a type {kind} local {local} remote {remote} {encap}")
    [link] = namespace.show("link show dev tun-0123456789a")
    assert link["linkinfo"]["info_kind"] == kind.split()[0]
    data = link["linkinfo"]["info_data"]
    assert (data["local"], data["remote"]) == (local, remote)
    assert data.get("encap", {}).get("dport") == (5555 if encap else None)
    namespace.ip("link del tun-0123456789a")


@families
def test_fou_port(namespace: Namespace, family: str) -> None:
    namespace.ip("fou add port 5555 gue", family=family)
    [port] = namespace.show("fou show")
    assert port["port"] == 5555
    namespace.ip("fou del port 5555", family=family)
    assert not namespace.show("fou show")


@families
def test_a_fallback_tunnel_stays_though_the_kernel_says_it_went(namespace: Namespace, family: str) -> None:
    name = {"4": "tunl0", "6": "ip6tnl0"}[family]
    namespace.ip(f"link del {name}")
    assert name in [link["ifname"] for link in namespace.show("link")]


@families
@pytest.mark.parametrize("backend", ["nft", "legacy"])
def test_rules_with_ipvs(namespace: Namespace, family: str, backend: str) -> None:
    if backend == "legacy" and not Path(f"/sys/module/ip{'6' if family == '6' else ''}_tables").exists():
        pytest.skip("this kernel has no legacy iptables")
    pod, vip, node = {
        "4": ("10.244.0.10/32", "10.96.0.1", "192.0.2.1"),
        "6": ("2001:db8:244::10/128", "2001:db8:96::1", "2001:db8::1"),
    }[family]
    snat = f"-j SNAT --to-source {node} --random-fully"
    rules = [
        f'-A POSTROUTING ! -s {pod} -m ipvs --vdir ORIGINAL --vmethod MASQ -m comment --comment "" {snat}',
        "-A POSTROUTING -m ipvs --vdir ORIGINAL -j KUBE-ROUTER-HAIRPIN",
        f"-A KUBE-ROUTER-HAIRPIN -s {pod} -d {pod} -m ipvs --vaddr {vip} --vport 80 -j SNAT --to-source {vip}",
    ]
    tool = f"ip{'6' if family == '6' else ''}tables-{backend}"
    namespace.run(f"{tool}-restore", given="\n".join(["*nat", ":KUBE-ROUTER-HAIRPIN - [0:0]", *rules, "COMMIT", ""]))
    saved = namespace.run(f"{tool}-save -t nat").splitlines()
    assert [line for line in saved if line.startswith("-A")] == rules


@families
def test_policy_rules_and_routes_in_tables(namespace: Namespace, family: str) -> None:
    pods = {"4": "10.244.0.0/24", "6": "2001:db8:244::/64"}[family]
    namespace.ip(
        "link set lo up",
        f"rule add from {pods} lookup 77",
        "rule add fwmark 0x349f lookup 78",
        "rule add lookup 79",
        "route add local default dev lo table 78",
        f"route add {pods} dev lo table 77 proto 17",
        family=family,
    )
    tables = {"77", "78", "79"}
    rules = [rule for rule in json.loads(namespace.run(f"ip -N -j -{family} rule")) if rule["table"] in tables]
    assert sorted(rule["table"] for rule in rules) == ["77", "78", "79"]
    [route] = json.loads(namespace.run(f"ip -N -j -{family} route show table 77"))
    assert (route["dst"], route["protocol"]) == (pods, "17")


@families
def test_sets(namespace: Namespace, family: str) -> None:
    inet, member = {"4": ("inet", "192.0.2.1,tcp:80"), "6": ("inet6", "2001:db8::1,tcp:80")}[family]
    namespace.run("ipset restore", given=f"create vips hash:ip,port family {inet} timeout 0\nadd vips {member}\n")
    assert f"add vips {member} timeout 0" in namespace.run("ipset save")
