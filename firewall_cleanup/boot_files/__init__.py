"""Saved rules that are loaded at boot and bring the component's state back: found by file and line, never edited.

A line is named if what it makes would be owned in the kernel: a chain, a set or a table by its whole name, a rule by
its jump to an owned chain or by its exact shape. Whether a file is really loaded (its service may be off) is not
looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import attrs

from ..components import Component
from ..host import FoundFile
from ..model import Controller, Family

__all__ = ["PLACES", "BootFiles", "SavedLine", "UnreadFile", "find_saved"]

# How each is read: `_readers.READERS`.
PLACES: Mapping[str, str] = {
    # Debian, Ubuntu: plugins of netfilter-persistent (iptables-persistent, ipset-persistent)
    "/etc/iptables/rules.v4": "ipv4",
    "/etc/iptables/rules.v6": "ipv6",
    "/etc/iptables/ipsets": "ipset",
    # Fedora and its kin: iptables-services, ipset-service (ipset.start-stop; the single file is its older form)
    "/etc/sysconfig/iptables": "ipv4",
    "/etc/sysconfig/ip6tables": "ipv6",
    "/etc/sysconfig/ipset": "ipset",
    "/etc/sysconfig/ipset.d/*.set": "ipset",
    # Arch: units of the packages iptables and ipset
    "/etc/iptables/iptables.rules": "ipv4",
    "/etc/iptables/ip6tables.rules": "ipv6",
    "/etc/ipset.conf": "ipset",
    # Alpine: /etc/conf.d/iptables, /etc/init.d/ipset
    "/etc/iptables/rules-save": "ipv4",
    "/etc/iptables/rules6-save": "ipv6",
    "/etc/ipset.d/*": "ipset",
    # Gentoo: /etc/conf.d/iptables and so on
    "/var/lib/iptables/rules-save": "ipv4",
    "/var/lib/ip6tables/rules-save": "ipv6",
    "/var/lib/ipset/rules-save": "ipset",
    "/var/lib/nftables/rules-save": "nft",
    # what hand-made scripts for ifupdown restore from (wiki.debian.org/iptables)
    "/etc/iptables.rules": "ipv4",
    "/etc/iptables.up.rules": "ipv4",
    "/etc/network/iptables.up.rules": "ipv4",
    "/etc/ip6tables.rules": "ipv6",
    "/etc/ip6tables.up.rules": "ipv6",
    # nftables.service: Debian and Arch, Fedora, Alpine; and what these include
    "/etc/nftables.conf": "nft",
    "/etc/sysconfig/nftables.conf": "nft",
    "/etc/nftables.nft": "nft",
    "/etc/nftables/*.nft": "nft",
    "/etc/nftables.d/*.nft": "nft",
    # the manual page firewalld.direct
    "/etc/firewalld/direct.xml": "direct",
    # the manual page ufw-framework
    "/etc/ufw/before.rules": "ipv4",
    "/etc/ufw/user.rules": "ipv4",
    "/etc/ufw/after.rules": "ipv4",
    "/etc/ufw/before6.rules": "ipv6",
    "/etc/ufw/user6.rules": "ipv6",
    "/etc/ufw/after6.rules": "ipv6",
    # commands: interfaces(5), rc-local.service, NetworkManager-dispatcher(8); ufw-framework(8)
    "/etc/network/interfaces": "commands",
    "/etc/network/interfaces.d/*": "commands",
    "/etc/network/if-pre-up.d/*": "commands",
    "/etc/network/if-up.d/*": "commands",
    "/etc/rc.local": "commands",
    "/etc/rc.d/rc.local": "commands",
    "/etc/NetworkManager/dispatcher.d/*": "commands",
    "/etc/ufw/before.init": "commands",
    "/etc/ufw/after.init": "commands",
}


@attrs.frozen
class SavedLine:
    """A line that brings a component's state back; `evidence` and `detail` are those of an outcome."""

    component: str
    file: str
    line: int
    text: str
    evidence: str
    detail: str = ""
    controller: Controller | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the line as JSON has it."""
        return {
            "file": self.file,
            "line": self.line,
            "text": self.text,
            "evidence": self.evidence,
            "detail": self.detail or None,
            "controller": None if self.controller is None else self.controller.value,
        }


@attrs.frozen
class UnreadFile:
    """A file, or a folder of such files, that is there and could not be read."""

    file: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        """Return it as JSON has it."""
        return {"file": self.file, "reason": self.reason}


@attrs.frozen
class BootFiles:
    """What was found in files that are loaded at boot."""

    lines: tuple[SavedLine, ...] = ()
    unread: tuple[UnreadFile, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lines or self.unread)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "lines": [line.to_dict() for line in self.lines],
            "unread": [file.to_dict() for file in self.unread],
        }


def find_saved(
    files: Iterable[FoundFile],
    component: Component,
    controllers: Collection[Controller],
    families: Collection[Family],
) -> BootFiles:
    """Return the lines of files, found by `PLACES`, that bring back what some controllers own in some families."""
    lines: list[SavedLine] = []
    unread: list[UnreadFile] = []
    for file in files:
        if file.unread:
            unread.append(UnreadFile(file.path, file.unread))
            continue
        try:
            lines += _lines(file, component, controllers, families)
        except ValueError as error:  # it is not what its name says
            unread.append(UnreadFile(file.path, str(error)))
    return BootFiles(tuple(lines), tuple(unread))


def _lines(
    file: FoundFile, component: Component, controllers: Collection[Controller], families: Collection[Family]
) -> Iterator[SavedLine]:
    from ._readers import READERS, judge  # noqa: PLC0415 - most nodes have no such file

    entries, rows = READERS[PLACES[file.asked]](file.text), file.text.split("\n")
    for number, found in sorted(judge(entries, component).items()):
        other = found.controller is not None and found.controller not in controllers
        if other or (found.family is not None and found.family not in families):
            continue
        text = rows[min(number, len(rows)) - 1].strip()
        yield SavedLine(component.name, file.path, number, text, found.evidence, found.detail, found.controller)
