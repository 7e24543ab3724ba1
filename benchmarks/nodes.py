"""The netfilter state of large nodes as text that `iptables-restore` and `ipset restore` load.

Every text is the same each time. The rules of a family are counted exactly, built-in chains included; no rule needs
an ipset.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Iterator
from itertools import cycle

import attrs

__all__ = ["MEMBERS", "destroy_lines", "filled_sets", "foreign", "owned", "owned_chains", "sets"]

BUILTIN = ("INPUT", "FORWARD", "OUTPUT")
FOREIGN_PARTS = 9
"""Foreign chains to each owned one in `foreign`."""
MEMBERS = 10_000
"""Of each set that has any."""

# Rules in the chain of a pod, by turns; 6 in the middle.
_LENGTHS = (6, 2, 10, 4, 8, 5, 7, 3, 9)
_HOOKS = {"INPUT": "4IA2OSFRMVNDXBVV", "FORWARD": "TEMCG2JMHZYE7H7T", "OUTPUT": "VEAAIY32XVBHCSCY"}
_MARK = "-j MARK --set-xmark 0x10000/0x10000"
_UNMARKED = "-m mark ! --mark 0x10000/0x10000"


@attrs.frozen
class _Family:
    pods: int  # the first address of a pod
    host: str
    unreachable: str
    icmp: str


_FAMILIES = {
    "ipv4": _Family(int(ipaddress.IPv4Address("100.64.0.0")), "/32", "icmp-port-unreachable", "icmp"),
    "ipv6": _Family(int(ipaddress.IPv6Address("2001:db8:10::")), "/128", "icmp6-port-unreachable", "ipv6-icmp"),
}


class _Table:
    """A filter table that grows; chains keep the order in which they came, as rules do within a chain."""

    def __init__(self) -> None:
        self.chains: dict[str, list[str]] = {chain: [] for chain in BUILTIN}
        self.rules = 0

    def add(self, chain: str, *rules: str) -> None:
        """Append rules to a chain, which is made if need be."""
        self.chains.setdefault(chain, []).extend(rules)
        self.rules += len(rules)

    def text(self) -> str:
        """Return the table as `iptables-save` prints it."""
        user = sorted(self.chains.keys() - set(BUILTIN))
        lines = ["*filter"]
        lines += [f":{chain} ACCEPT [0:0]" for chain in BUILTIN]
        lines += [f":{chain} - [0:0]" for chain in user]
        lines += [f"-A {chain} {rule}" for chain in (*BUILTIN, *user) for rule in self.chains[chain]]
        lines.append("COMMIT\n")
        return "\n".join(lines)


def owned(family: str, rules: int) -> str:
    """Return a table of exactly so many rules, all of which a cleanup removes."""
    table = _Table()
    _owned_base(table, family)
    _owned_pods(table, family, rules, cycle(_LENGTHS))
    return table.text()


def owned_chains(family: str, chains: int, length: int) -> str:
    """Return a table with so many chains of pods, each of so many rules."""
    table = _Table()
    _owned_base(table, family)
    for index in range(chains):
        _pod(table, family, index, length)
    return table.text()


def foreign(family: str, rules: int) -> tuple[str, int]:
    """Return a table of exactly so many rules, nine chains of ten foreign, and the number of foreign rules in it."""
    table = _Table()
    _foreign_base(table)
    before = table.rules
    _owned_base(table, family)
    own = table.rules - before
    lengths = cycle(_LENGTHS)
    pods = 0
    workloads = 0
    # Three foreign chains belong together; ten thirds of that to each pod of kube-router's.
    while True:
        if pods * FOREIGN_PARTS <= workloads * 3:
            length = next(lengths)
            if table.rules + 3 + length > rules:
                break
            _pod(table, family, pods, length)
            own += 3 + length
            pods += 1
        else:
            if table.rules + _WORKLOAD_RULES > rules:
                break
            _workload(table, family, workloads)
            workloads += 1
    # What is left over goes where it makes no chain.
    for index in range(rules - table.rules):
        table.add("cali-FORWARD", f"-s {_address(family, 1 << 20 | index)} {_cali(f'rest {index}')} -j DROP")
    return table.text(), rules - own


def sets(count: int) -> str:
    """Return the sets of policies, half IPv4, half IPv6; every tenth IPv4 set has its 10,000 members.

    Those of IPv6 cannot be written as a range, and are better not loaded as text.
    """
    lines = []
    for family, inet in (("ipv4", "inet"), ("ipv6", "inet6")):
        # kube-router asks for 1024; with 10,000 members the kernel has made it 4096, which waits at each step.
        filled = set(filled_sets(count, family))
        for name in _set_names(count // 2, family):
            size = 4096 if name in filled else 1024
            lines.append(f"create {name} hash:ip family {inet} hashsize {size} maxelem 65536 timeout 0")
    first = ipaddress.IPv4Address(_FAMILIES["ipv4"].pods)
    lines += [f"add {name} {first}-{first + MEMBERS - 1}" for name in filled_sets(count, "ipv4")]
    return "\n".join(lines) + "\n"


def filled_sets(count: int, family: str) -> list[str]:
    """Return the names of the sets of a family that have members, of `count` sets in all."""
    return list(_set_names(count // 2, family))[::10]


def destroy_lines(count: int = 5000) -> str:
    """Return what `ipset restore` needs to remove the sets of `sets`."""
    names = [name for family in _FAMILIES for name in _set_names(count // 2, family)]
    return "".join(f"destroy {name}\n" for name in names)


def _set_names(count: int, family: str) -> Iterator[str]:
    prefix = "inet6:" if family == "ipv6" else ""
    for index in range(count):
        yield f"{prefix}KUBE-{('SRC', 'DST')[index % 2]}-{_hash(f'set {index}')}"


def _owned_base(table: _Table, family: str) -> None:
    for hook in BUILTIN:
        table.add(hook, f'-m comment --comment "kube-router netpol - {_HOOKS[hook]}" -j KUBE-ROUTER-{hook}')
        table.add(f"KUBE-ROUTER-{hook}")
    table.add("KUBE-NWPLCY-DEFAULT", _note("rule to mark traffic matching a network policy") + _MARK)
    invalid, known = "rule to drop invalid state for pod", "rule for stateful firewall for pod"
    table.add("KUBE-NWPLCY-COMMON", _note(invalid) + "-m conntrack --ctstate INVALID -j DROP")
    table.add("KUBE-NWPLCY-COMMON", _note(known) + "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
    table.add("KUBE-NWPLCY-COMMON", f"-p {_FAMILIES[family].icmp} " + _note("allow icmp messages") + "-j ACCEPT")
    accept = "-m mark --mark 0x20000/0x20000 -j ACCEPT"
    table.add("KUBE-NWPLCY-TAIL", _note("accept netpol-ok") + accept)


def _owned_pods(table: _Table, family: str, rules: int, lengths: Iterator[int]) -> None:
    for index, length in enumerate(lengths):
        if table.rules + 3 + length > rules:
            break
        _pod(table, family, index, length)
    for index in range(rules - table.rules):
        table.add("KUBE-NWPLCY-COMMON", f"-s {_address(family, 1 << 20 | index)} -j ACCEPT")


def _pod(table: _Table, family: str, index: int, length: int) -> None:
    """Add a pod: a chain of 2 to 10 rules, and the three rules that send its traffic there."""
    words = _FAMILIES[family]
    address = _address(family, index)
    namespace = ("shop", "billing", "web", "batch")[index % 4]
    pod = f"{namespace}/pod-{index}"
    chain = f"KUBE-POD-FW-{_hash(f'{pod} {family}')}"
    body = [
        _note("common netpol rules") + "-j KUBE-NWPLCY-COMMON",
        f"-d {address} " + _note("from local node") + "-m addrtype --src-type LOCAL -j ACCEPT",
        _note(f"{pod} reject") + f"{_UNMARKED} -j REJECT --reject-with {words.unreachable}",
        f"-s {address} " + _note("default egress") + "-j KUBE-NWPLCY-DEFAULT",
        f"-d {address} " + _note("default ingress") + "-j KUBE-NWPLCY-DEFAULT",
        f"-d {address} -p tcp " + _note(f"{namespace}/web ingress") + f"-m tcp --dport {8000 + index % 999} {_MARK}",
        _note(f"{pod} log-drop") + f"{_UNMARKED} -m limit --limit 10/min --limit-burst 10 -j NFLOG --nflog-group 100",
        f"-s {address} -p udp " + _note(f"{namespace}/dns egress") + f"-m udp --dport 53 {_MARK}",
    ]
    end = ["-j MARK --set-xmark 0x0/0x10000", _note("set netpol-ok mark") + "-j MARK --set-xmark 0x20000/0x20000"]
    table.add(chain, *body[: length - 2], *end)
    table.add("KUBE-ROUTER-FORWARD", f"-d {address} " + _note(f"{pod} in") + f"-j {chain}")
    table.add("KUBE-ROUTER-OUTPUT", f"-d {address} " + _note(f"{pod} in") + f"-j {chain}")
    table.add("KUBE-ROUTER-INPUT", f"-s {address} " + _note(f"{pod} out") + f"-j {chain}")


def _foreign_base(table: _Table) -> None:
    """Add what Calico has once."""
    for hook in BUILTIN:
        table.add(hook, f"{_cali(hook)} -j cali-{hook}")
        table.add(f"cali-{hook}", f"{_cali(hook + ' clear')} -j MARK --set-xmark 0x0/0xe0000")
    table.add("cali-FORWARD", f"-i cali+ {_cali('from')} -j cali-from-wl-dispatch")
    table.add("cali-FORWARD", f"-o cali+ {_cali('to')} -j cali-to-wl-dispatch")
    table.add("cali-FORWARD", f"{_cali('accept')} -m mark --mark 0x10000/0x10000 -j ACCEPT")
    table.add("cali-INPUT", f"-i cali+ {_cali('in')} -g cali-wl-to-host")
    table.add("cali-OUTPUT", f"{_cali('out')} -m conntrack ! --ctstate DNAT -j cali-to-host-endpoint")
    table.add("cali-wl-to-host", f"{_cali('wl')} -j cali-from-wl-dispatch")
    table.add(
        "cali-wl-to-host", f'{_cali("wl2")} -m comment --comment "Configured DefaultEndpointToHostAction" -j ACCEPT'
    )
    table.add("cali-to-host-endpoint")
    table.add("cali-from-wl-dispatch")
    table.add("cali-to-wl-dispatch")


_WORKLOAD_RULES = 20


def _workload(table: _Table, family: str, index: int) -> None:
    """Add a workload of Calico's: the chains of its interface, one each way, and that of its policy."""
    name = hashlib.sha256(f"workload {index}".encode()).hexdigest()[:11]
    address = _address(family, 1 << 19 | index)
    policy = "cali-pi-_" + _hash64(f"policy {index}")
    to, by = f"cali-tw-cali{name}", f"cali-fw-cali{name}"

    def rules(chain: str, *parts: str) -> None:
        table.add(chain, *(f"{part} ".replace("@ ", f"{_cali(f'{chain} {i} {index}')} ").strip()
                           for i, part in enumerate(parts)))  # fmt: skip

    rules("cali-from-wl-dispatch", f"-i cali{name} @ -g {by}")
    rules("cali-to-wl-dispatch", f"-o cali{name} @ -g {to}")
    both = ("@ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "@ -m conntrack --ctstate INVALID -j DROP")
    clear = "@ -j MARK --set-xmark 0x0/0x10000"
    end = '@ -m comment --comment "Drop if no policies passed packet" -m mark --mark 0x0/0x20000 -j DROP'
    rules(to, *both, clear, f'@ -m comment --comment "Start of policies" -j {policy}', end)
    encapsulated = (
        '-p udp @ -m comment --comment "Drop VXLAN encapped packets from workloads" -m udp --dport 4789 -j DROP'
    )
    rules(by, *both, clear, encapsulated, f"! -s {address} @ -j DROP", "@ -j MARK --set-xmark 0x10000/0x10000")
    rules(
        policy,
        f"-d {address} -p tcp @ -m tcp --dport {1024 + index % 30000} -j MARK --set-xmark 0x10000/0x10000",
        "@ -m mark --mark 0x10000/0x10000 -j RETURN",
        f"-s {address} -p tcp @ -m multiport --dports 80,443,8080 -j MARK --set-xmark 0x10000/0x10000",
        "@ -m mark --mark 0x10000/0x10000 -j RETURN",
        "-p udp @ -m udp --dport 53 -j MARK --set-xmark 0x10000/0x10000",
        "@ -m mark --mark 0x10000/0x10000 -j RETURN",
        "@ -j MARK --set-xmark 0x20000/0x20000",
    )


def _address(family: str, index: int) -> str:
    words = _FAMILIES[family]
    return f"{ipaddress.ip_address(words.pods + index)}{words.host}"


def _note(text: str) -> str:
    return f'-m comment --comment "{text}" '


def _cali(text: str) -> str:
    return f'-m comment --comment "cali:{_hash64(text)}"'


def _hash(text: str) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest())[:16].decode()


def _hash64(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())[:16].decode()
