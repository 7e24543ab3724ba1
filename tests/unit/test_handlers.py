"""Handlers where the kernel answers what it seldom answers."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from firewall_cleanup import Family
from firewall_cleanup.errors import KernelError
from firewall_cleanup.handlers import _genl, _ipset
from firewall_cleanup.model import IpvsService, Route


class Answers:
    """In the place of a netlink socket: answers dumps as a function says."""

    def __init__(self, dump: Callable[[int, bytes], tuple[list[bytes], bool]]) -> None:
        self.dump = dump


def connection(kind: type, dump: Callable[[int, bytes], tuple[list[bytes], bool]]) -> Any:
    made = kind.__new__(kind)
    made._netlink, made._family = Answers(dump), 1
    return made


def test_members_that_cannot_be_read_are_not_no_members() -> None:
    """Else a service that kube-proxy shares would look like one of ours alone."""

    def fail(code: int) -> Callable[[int, bytes], tuple[list[bytes], bool]]:
        def dump(_kind: int, _payload: bytes) -> tuple[list[bytes], bool]:
            raise KernelError(code, "netlink dump")

        return dump

    assert connection(_ipset.IpsetConnection, fail(errno.ENOENT))._members("gone") == ()
    with pytest.raises(KernelError):
        connection(_ipset.IpsetConnection, fail(errno.ENOBUFS))._members("KUBE-CLUSTER-IP")


def test_services_are_listed_until_two_lists_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPVS does not say that somebody changed it during a dump."""
    one, two = (IpvsService(Family.IPV4, mark=mark) for mark in (1, 2))
    lists = iter([[one], [one, two], [one, two, two]])
    made = connection(_genl.IpvsConnection, lambda _kind, _payload: ([], False))
    monkeypatch.setattr(made, "_services", lambda: iter(next(lists)))

    assert made.services() == (one, two)
    marks = count(1)
    monkeypatch.setattr(made, "_services", lambda: iter([IpvsService(Family.IPV4, mark=next(marks))]))
    with pytest.raises(KernelError) as caught:
        made.services()
    assert caught.value.errno == errno.EAGAIN


def test_a_route_is_the_same_whatever_state_the_kernel_reports_with_it() -> None:
    route = Route(Family.IPV4, 254, "198.51.100.0/26", protocol=17, gateway="192.0.2.1", raw=b"up")

    assert route == Route(Family.IPV4, 254, "198.51.100.0/26", protocol=17, gateway="192.0.2.1", raw=b"linkdown")
