"""Virtual services of IPVS as `ipvsadm -Sn` writes them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

import attrs

from ..model import Family

__all__ = ["Destination", "VirtualService"]

PERSISTENT, ONE_PACKET = 0x1, 0x4
# IP_VS_SVC_F_SCHED1 to 3; what they mean is the scheduler's business.
_SCHEDULER_FLAGS = {0x8: "flag-1", 0x10: "flag-2", 0x20: "flag-3"}
_FORWARD = {0: "-m", 1: "-g", 2: "-i", 3: "-g", 4: "-g"}
_METHODS = {"-m": 0, "-g": 3, "-i": 2}
_TUNNELS = {0: "ipip", 1: "gue", 2: "gre"}
_TUNNEL_FLAGS = {0: "--tun-nocsum", 1: "--tun-csum", 2: "--tun-remcsum"}
_PROTOCOLS = {"-t": "tcp", "-u": "udp", "--sctp-service": "sctp"}
_FLAGS = {name: flag for flag, name in _PROTOCOLS.items()}


@attrs.frozen
class Destination:
    """A real server of a virtual service; `method` is the kernel's number of the way to it."""

    family: Family
    address: str
    port: int
    method: int = 0
    weight: int = 1
    upper: int = 0
    lower: int = 0
    tunnel: int = 0
    tunnel_port: int = 0
    tunnel_flags: int = 0

    def words(self) -> str:
        """Return what follows the service."""
        words = ["-r", _end(self.family, self.address, self.port), _FORWARD.get(self.method, "-m")]
        words += [f"-w {self.weight}"]
        words += [f"-x {self.upper}"] if self.upper else []
        words += [f"-y {self.lower}"] if self.lower else []
        if self.method == 2 and self.tunnel:
            words.append(f"--tun-type {_TUNNELS.get(self.tunnel, self.tunnel)}")
            words += [f"--tun-port {self.tunnel_port}"] if self.tunnel == 1 else []
            words.append(_TUNNEL_FLAGS.get(self.tunnel_flags, "--tun-nocsum"))
        return " ".join(words)


@attrs.frozen
class VirtualService:
    """A virtual service with all its settings. `protocol` is "" for one of a mark; `netmask` is a prefix length."""

    family: Family
    protocol: str
    address: str
    port: int
    mark: int
    scheduler: str
    flags: int = 0
    timeout: int = 0
    netmask: int | None = None
    engine: str = ""
    destinations: tuple[Destination, ...] = ()

    @property
    def name(self) -> str:
        """The service's own words: `-t 192.0.2.1:80`."""
        if self.mark:
            return f"-f {self.mark}" + ("" if self.family is Family.IPV4 else " -6")
        return f"{_FLAGS[self.protocol]} {_end(self.family, self.address, self.port)}"

    def lines(self) -> Iterator[str]:
        """Yield the line of the service, then those of its destinations, in an order that does not vary."""
        words = ["-A", self.name, "-s", self.scheduler]
        if self.flags & PERSISTENT:
            words.append(f"-p {self.timeout}")
            if self.netmask is not None and self.netmask != self.family.bits:
                words.append(f"-M {_mask(self.netmask, self.family)}")
        words += [f"--pe {self.engine}"] if self.engine else []
        words += ["-o"] if self.flags & ONE_PACKET else []
        flags = [name for bit, name in _SCHEDULER_FLAGS.items() if self.flags & bit]
        words += [f"-b {','.join(flags)}"] if flags else []
        yield " ".join(words)
        yield from sorted(f"-a {self.name} {destination.words()}" for destination in self.destinations)

    @classmethod
    def parse(cls, lines: tuple[str, ...]) -> VirtualService:
        """Read the lines of one service. Raises ValueError, KeyError or IndexError for anything else."""
        first, *rest = lines
        words = iter(first.split()[1:])
        values: dict[str, str] = {}
        for word in words:
            values[word] = "" if word in {"-o", "-6"} else next(words)
        if "-f" in values:
            family, protocol = Family.IPV6 if "-6" in values else Family.IPV4, ""
            address, port = "", 0
        else:
            flag = next(flag for flag in _PROTOCOLS if flag in values)
            (family, address, port), protocol = _parse_end(values[flag]), _PROTOCOLS[flag]
        named = {name: bit for bit, name in _SCHEDULER_FLAGS.items()}
        flags = sum(named[name] for name in values.get("-b", "").split(",") if name)
        return cls(
            family=family,
            protocol=protocol,
            address=address,
            port=port,
            mark=int(values.get("-f", "0")),
            scheduler=values["-s"],
            flags=flags | (PERSISTENT if "-p" in values else 0) | (ONE_PACKET if "-o" in values else 0),
            timeout=int(values.get("-p", "0")),
            netmask=_mask_length(values["-M"]) if "-M" in values else None,
            engine=values.get("--pe", ""),
            destinations=tuple(_parse_destination(line) for line in rest),
        )


def _parse_destination(line: str) -> Destination:
    words = line.split()
    family, address, port = _parse_end(words[words.index("-r") + 1])

    def number(flag: str, default: int = 0) -> int:
        return int(words[words.index(flag) + 1]) if flag in words else default

    kind = words[words.index("--tun-type") + 1] if "--tun-type" in words else "ipip"
    return Destination(
        family=family,
        address=address,
        port=port,
        method=next(method for flag, method in _METHODS.items() if flag in words),
        weight=number("-w", 1),
        upper=number("-x"),
        lower=number("-y"),
        tunnel=next(value for value, name in _TUNNELS.items() if name == kind),
        tunnel_port=number("--tun-port"),
        tunnel_flags=next((value for value, flag in _TUNNEL_FLAGS.items() if flag in words), 0),
    )


def _end(family: Family, address: str, port: int) -> str:
    return f"{address}:{port}" if family is Family.IPV4 else f"[{address}]:{port}"


def _parse_end(text: str) -> tuple[Family, str, int]:
    address, _, port = text.rpartition(":")
    family = Family.IPV6 if address.startswith("[") else Family.IPV4
    return family, str(ipaddress.ip_address(address.strip("[]"))), int(port)


def _mask(length: int, family: Family) -> str:
    if family is Family.IPV6:
        return str(length)
    return str(ipaddress.IPv4Network(f"0.0.0.0/{length}").netmask)


def _mask_length(text: str) -> int:
    return int(text) if "." not in text else ipaddress.IPv4Network(f"0.0.0.0/{text}").prefixlen
