"""A node made by hand, recorded, and replayed by replay.py is the same again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import replay

pytestmark = [
    pytest.mark.namespace,
    pytest.mark.skipif(os.environ.get("FIREWALL_CLEANUP_VM") != "modules", reason="needs the guest of tests/run-vm"),
]

LINKS = """\
link add kube-bridge type bridge
link set kube-bridge up
link add eth0 type dummy
link set eth0 arp on up
link set eth0 master kube-bridge
link add kube-dummy-if mtu 1400 type dummy
link set kube-dummy-if up
link add kube-ipvs0 type dummy
addr add 192.0.2.1/24 dev eth0
addr add 192.0.2.2/24 dev eth0
addr add 10.96.0.1/32 dev kube-dummy-if scope link
addr add 10.96.0.1/32 dev kube-ipvs0
link add tun-0123456789a type ipip local 192.0.2.1 remote 192.0.2.99 ttl 225 encap gue encap-sport auto \\
encap-dport 5555
link set tun-0123456789a up
"""
LINKS6 = """\
addr add 2001:db8::1/64 dev eth0 nodad
addr add 2001:db8:96::1/128 dev kube-dummy-if nodad
link add tun-a987654321 type ip6tnl mode any local 2001:db8::1 remote 2001:db8::99 encap gue encap-sport auto \
encap-dport 5555
link set tun-a987654321 up
"""
IPV4 = """\
fou add port 5555 gue
route add local default dev lo table 78
route add 10.244.1.0/24 dev tun-0123456789a proto 17 src 192.0.2.1
route add 192.0.2.99 dev tun-0123456789a table 77
route add default via 192.0.2.254 dev eth0 metric 50
route add blackhole 198.51.100.0/24
route add 198.51.101.0/24 nexthop via 192.0.2.253 dev eth0 weight 2 nexthop via 192.0.2.254 dev eth0
rule add from 10.244.0.0/24 lookup 77
rule add fwmark 0x349f/0xffff lookup 78
rule add not from 192.0.2.0/24 to 203.0.113.0/24 iif eth0 ipproto tcp dport 80 lookup 79
rule add priority 9 from 203.0.113.7 unreachable
"""
IPV6 = """\
fou add port 5555 gue
route add local default dev lo table 78
route add 2001:db8:244::/64 dev tun-a987654321 proto 17 src 2001:db8::1
rule add from 2001:db8:244::/64 lookup 77
"""
SETS = """\
create pods hash:net family inet timeout 0
add pods 10.244.0.0/24 timeout 0
add pods 10.244.0.128/25 timeout 0 nomatch
create all list:set size 8
add all pods
"""
SERVICES = """\
-A -t 10.96.0.1:80 -s sh -p 10800
-a -t 10.96.0.1:80 -r 10.244.0.10:8080 -m -w 1
-A -f 77 -s rr
-a -f 77 -r 10.244.0.10:8080 -i -w 1
"""
RULES = """\
*nat
:KUBE-ROUTER-HAIRPIN - [0:0]
-A POSTROUTING -m ipvs --vdir ORIGINAL -j KUBE-ROUTER-HAIRPIN
COMMIT
"""
NATIVE = """\
table inet mine {
 chain input {
  type filter hook input priority 5; policy accept;
  iifname "x" counter
 }
}
"""


def run(*command: str, given: str = "") -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


@pytest.fixture
def node() -> Iterator[list[str]]:
    name = f"replay-{os.getpid()}"
    run("ip", "netns", "add", name)
    try:
        yield ["ip", "netns", "exec", name]
    finally:
        run("ip", "netns", "del", name)


def test_round_trip(node: list[str], tmp_path: Path) -> None:
    six = replay.has_ipv6()
    run(*node, "ip", "link", "set", "lo", "up")
    run(*node, "ip", "-batch", "-", given=LINKS + LINKS6 * six)
    run(*node, "ip", "-4", "-batch", "-", given=IPV4)
    if six:
        run(*node, "ip", "-6", "-batch", "-", given=IPV6)
    run(*node, "ipset", "restore", given=SETS)
    run(*node, "ipvsadm", "-R", given=SERVICES)
    run(*node, "iptables-nft-restore", given=RULES)
    run(*node, "nft", "-f", "-", given=NATIVE)
    commands = {
        "ip-link.json": "ip -j -d link",
        "ip-addr.json": "ip -j addr",
        "ip-route.json": "ip -4 -j route show table all",
        "ip-rule.json": "ip -4 -j rule",
        "ipvsadm-save": "ipvsadm -Sn",
        "ipset-save": "ipset save",
        "iptables-nft-save": "iptables-nft-save",
        "nft-ruleset.nft": "nft list ruleset",
    }
    if Path("/sys/module/ip_tables").exists():
        run(*node, "iptables-legacy-restore", given=RULES)
        commands["iptables-legacy-save"] = "iptables-legacy-save"
    if six:
        commands |= {"ip6-route.json": "ip -6 -j route show table all", "ip6-rule.json": "ip -6 -j rule"}
    for name, command in commands.items():
        (tmp_path / name).write_text(run(*node, *command.split()))

    assert len(replay.recorded(tmp_path)["fou"]) == 1 + six
    assert any("encap" in line for line in replay.recorded(tmp_path)["links"])
    done = subprocess.run([sys.executable, replay.__file__, tmp_path], capture_output=True, text=True, check=False)
    assert not done.stderr
    assert done.stdout.count("\n") == 1, done.stdout
    assert done.returncode == 0
