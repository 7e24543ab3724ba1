"""The part of a kube-router node that is neither rules nor sets, and neighbours of every kind beside it.

Text for `ip -batch` and `ipvsadm -R`, with the addresses of `node.Node()`. The kernel must have dummy, ipip and
ip6tnl links and, for the services, IPVS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from ..components.kube_router_host import tunnel_names

__all__ = ["Side", "foreign_links", "foreign_services", "owned_links", "owned_services", "sides"]


@attrs.frozen
class Side:
    """All that differs between the families."""

    flag: str
    bits: int
    node: str
    peer: str
    far: str
    pods: str
    peer_pods: str
    far_pods: str
    gateway: str
    services: tuple[str, ...]
    pod: str
    dsr: str
    tunnel: str
    other: str
    keepalived: str

    def end(self, host: str, port: int) -> str:
        """Return an endpoint as `ipvsadm` writes it."""
        return f"{host}:{port}" if self.bits == 32 else f"[{host}]:{port}"

    @property
    def tunnel_name(self) -> str:
        """The name that kube-router gives to the tunnel to the far node, since 2.0."""
        return max(tunnel_names(self.far), key=len)


_SIDES = (
    Side(
        "-4", 32, "192.0.2.20", "192.0.2.21", "192.0.2.222", "198.51.100.64/26", "198.51.100.128/26",
        "198.51.100.192/26", "198.51.100.65/26", ("203.0.113.66", "203.0.113.67"), "198.51.100.67", "203.0.113.130",
        "ipip", "192.0.2.99", "192.0.2.77",
    ),
    Side(
        "-6", 128, "2001:db8:1::20", "2001:db8:1::21", "2001:db8:2::222", "2001:db8:10:1::/64",
        "2001:db8:10:2::/64", "2001:db8:10:3::/64", "2001:db8:10:1::1/64", ("2001:db8:20::1:2", "2001:db8:20::1:3"),
        "2001:db8:10:1::3", "2001:db8:20::2:2", "ip6tnl", "2001:db8:1::99", "2001:db8:1::77",
    ),
)  # fmt: skip


def sides(*, ipv6: bool = True) -> tuple[Side, ...]:
    """Return the families, one for each address family that the kernel has."""
    return _SIDES if ipv6 else _SIDES[:1]


def foreign_links(sides: Iterable[Side], *, uplink: str = "eth0") -> dict[str, list[str]]:
    """Return the neighbours by the flag for `ip` (`-4`, `-6`, "" for links), among them traps for a cleaner.

    `uplink` stands for the node's interface; it is made as a dummy link. Build these first: others lead through it.
    """
    lines: dict[str, list[str]] = {
        "": [
            f"link add {uplink} type dummy",
            f"link set {uplink} up",
            "link set lo up",
            "link add dummy1 type dummy",
            "link set dummy1 up",
            "link add kube-dummy-if1 type dummy",
            "link add veth-user type veth peer name veth-peer",
        ]
    }
    for side in sides:
        nodad = "" if side.bits == 32 else " nodad"
        length = 25 if side.bits == 32 else 64
        lines[""] += [
            f"addr add {side.node}/{length} dev {uplink}{nodad}",
            f"addr add {side.other}/{side.bits} dev dummy1{nodad}",
            f"addr add {side.keepalived}/{side.bits} dev lo{nodad}",
            # Kind and prefix of kube-router's tunnels, not its names.
            f"link add tun-home{side.flag} type {side.tunnel} local {side.node} remote {side.other}",
            f"link set tun-home{side.flag} up",
        ]
        lines[side.flag] = [
            "rule add pref 9 fwmark 0x200/0xf00 lookup 2004",  # Cilium
            "rule add pref 5230 fwmark 0x80000/0xff0000 lookup main",  # Tailscale
            "rule add pref 5270 lookup 52",
            "rule add fwmark 0x8e lookup 780",
            f"rule add from {side.other} lookup 770",
            "rule add iif lo fwmark 0x1 lookup 79",
            "route add blackhole default table 780",
            # What mrouted and the like have: protocol 17, straight on a link.
            f"route add {'198.18.9.0/24' if side.bits == 32 else '2001:db8:99::/64'} dev dummy1 proto 17",
            f"route add {'198.18.8.0/24' if side.bits == 32 else '2001:db8:98::/64'} via {side.peer} proto bird",
            f"route add {'198.18.7.0/24' if side.bits == 32 else '2001:db8:97::/64'} dev tun-home{side.flag}",
        ]
    return lines


def owned_links(
    sides: Iterable[Side], marks: Mapping[str, int], *, uplink: str = "eth0", fou: bool = False
) -> dict[str, list[str]]:
    """Return what kube-router made, by the flag for `ip`; `marks` gives the mark of each DSR address."""
    lines: dict[str, list[str]] = {
        "": [
            "link add kube-bridge type bridge",
            "link set kube-bridge up",
            "link add kube-dummy-if type dummy",
            "link set kube-dummy-if up",
        ]
    }
    for side in sides:
        nodad = "" if side.bits == 32 else " nodad"
        scope = " scope link" if side.bits == 32 else ""
        encap = " encap gue encap-sport auto encap-dport 5555 ttl 225" if fou else ""
        if fou:
            lines[""].append(f"fou add port 5555 gue {'' if side.bits == 32 else '-6'}".strip())
        lines[""] += [
            f"addr add {side.gateway} dev kube-bridge{nodad}",
            *(f"addr add {a}/{side.bits} dev kube-dummy-if{scope}{nodad}" for a in side.services),
            f"link add {side.tunnel_name} type {side.tunnel} local {side.node} remote {side.far}{encap}",
            f"link set {side.tunnel_name} up",
        ]
        lines[side.flag] = [
            f"rule add from {side.pods} lookup 77",
            f"rule add pref 32764 fwmark {marks[side.dsr]:#x} lookup 78",
            "rule add pref 32765 lookup 79",
            "route add local default dev lo table 78",
            f"route add {side.far}/{side.bits} dev {side.tunnel_name} table 77",
            f"route add {side.dsr}/{side.bits} dev kube-bridge table 79",
            f"route add {side.peer_pods} via {side.peer} dev {uplink} proto 17",
            f"route add {side.far_pods} dev {side.tunnel_name} proto 17 src {side.node}",
        ]
    return lines


def owned_services(sides: Iterable[Side], marks: Mapping[str, int]) -> str:
    """Return kube-router's virtual services: on cluster addresses, node ports, and marks of DSR services."""
    lines = []
    for side in sides:
        pod = side.end(side.pod, 8080)
        addresses = [(address, 80) for address in side.services]
        # The first is in the service set (IPv4 alone), the second is known by its destinations.
        ports = [(side.node, 30081), (side.keepalived, 30081)]
        for host, port in (*addresses, *ports):
            lines += [f"-A -t {side.end(host, port)} -s rr", f"-a -t {side.end(host, port)} -r {pod} -m -w 1"]
        # All destinations are pods, which the pod networks alone prove.
        lines += [
            f"-A -u {side.end(side.node, 31053)} -s rr",
            f"-a -u {side.end(side.node, 31053)} -r {side.end(side.pod, 53)} -m -w 1",
        ]
        six = "" if side.bits == 32 else " -6"
        lines += [f"-A -f {marks[side.dsr]}{six} -s rr", f"-a -f {marks[side.dsr]}{six} -r {pod} -i -w 1"]
    return "".join(f"{line}\n" for line in lines)


def foreign_services(sides: Iterable[Side]) -> str:
    """Return virtual services of others: keepalived's, one by mark, and one in the range of node ports."""
    lines = []
    for side in sides:
        six = "" if side.bits == 32 else " -6"
        lines += [
            f"-A -t {side.end(side.keepalived, 6443)} -s wlc -p 50",
            f"-a -t {side.end(side.keepalived, 6443)} -r {side.end(side.other, 6443)} -m -w 100",
            f"-A -f 77{six} -s rr",
            f"-A -t {side.end(side.keepalived, 30090)} -s rr",
            f"-a -t {side.end(side.keepalived, 30090)} -r {side.end(side.other, 80)} -m -w 1",
            f"-A -u {side.end(side.keepalived, 30091)} -s rr",
        ]
    return "".join(f"{line}\n" for line in lines)
