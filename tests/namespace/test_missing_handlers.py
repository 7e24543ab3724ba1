"""Missing handlers make no difference; handlers that cannot be had are said."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from scenes import ALL, NODES, Scene, clean, problems

from firewall_cleanup import (
    Backend,
    Controller,
    Family,
    FamilyState,
    Handlers,
    IpsetHandler,
    IptablesHandler,
    NamespaceError,
    NftablesHandler,
    cleanup,
    cleanup_all,
    cleanup_network_policy,
    cleanup_routing,
    cleanup_service_proxy,
    stages,
)
from firewall_cleanup.errors import KernelError
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = pytest.mark.namespace


def _close_all(handlers: Handlers) -> Handlers:
    for handler in handlers:
        handler.close()
    return handlers


MISSING: dict[str, Callable[[Handlers], Handlers]] = {
    "complete": lambda h: h,
    "no iptables": lambda h: attrs.evolve(h, iptables={}),
    "iptables None": lambda h: attrs.evolve(h, iptables=dict.fromkeys(Family)),
    "iptables of IPv4 only": lambda h: attrs.evolve(h, iptables={Family.IPV4: h.iptables[Family.IPV4]}),
    "iptables of IPv4 None": lambda h: attrs.evolve(h, iptables={**h.iptables, Family.IPV4: None}),
    "no ipset": lambda h: attrs.evolve(h, ipset={}),
    "ipset None": lambda h: attrs.evolve(h, ipset={Family.IPV4: None, Family.IPV6: None}),
    "ipset of IPv6 only": lambda h: attrs.evolve(h, ipset={Family.IPV6: h.ipset[Family.IPV6]}),
    "nftables None": lambda h: attrs.evolve(h, nftables=None),
    "only nftables": lambda h: attrs.evolve(h, iptables={}, ipset={}),
    "none at all": lambda h: attrs.evolve(h, iptables={}, ipset={}, nftables=None),
    "all closed": _close_all,
    "only handlers, no namespace": lambda h: attrs.evolve(h, namespace=None),
}


@pytest.mark.parametrize("missing", MISSING)
def test_missing_handlers_lead_to_the_same_end(new_sandbox: Callable[..., Sandbox], backend, missing):
    scene = Scene(NODES["nft-netpol"], backend)
    wanted, sandbox = new_sandbox(), new_sandbox()
    expected = scene.load(wanted, gone=ALL)
    scene.load(sandbox)
    with Handlers.open(netns=sandbox.path) as handlers:
        changed = MISSING[missing](handlers)
        report = cleanup_all(changed, wait=20)
        assert problems(report) == []
        assert report.changed
        assert not cleanup_all(changed).changed
    assert sandbox.state() == expected


@pytest.mark.parametrize(
    ("function", "controller"),
    [
        (cleanup_service_proxy, Controller.SERVICE_PROXY),
        (cleanup_network_policy, Controller.NETWORK_POLICY),
        (cleanup_routing, Controller.ROUTING),
    ],
)
def test_each_function_opens_what_it_needs(new_sandbox: Callable[..., Sandbox], backend, function, controller):
    scene = Scene(NODES["default"], backend)
    wanted, sandbox = new_sandbox(), new_sandbox()
    expected = scene.load(wanted, gone=frozenset({controller}))
    scene.load(sandbox)
    assert problems(function(netns=sandbox.path)) == []
    assert sandbox.state() == expected
    with Handlers.open(netns=sandbox.path) as handlers:
        assert not function(attrs.evolve(handlers, iptables={}, ipset={})).changed


def test_handlers_of_their_own(new_sandbox: Callable[..., Sandbox]):
    """Handlers opened one by one and put together by hand."""
    scene = Scene(NODES["default"], Backend.NFT)
    sandbox = new_sandbox()
    scene.load(sandbox)
    with (
        IptablesHandler.open(Family.IPV4, netns=sandbox.path) as iptables,
        IpsetHandler.open(Family.IPV6, netns=sandbox.path) as ipset,
        NftablesHandler.open(netns=sandbox.path) as nftables,
    ):
        handlers = Handlers(iptables={Family.IPV4: iptables}, ipset={Family.IPV6: ipset}, nftables=nftables)
        assert problems(cleanup_all(handlers)) == []
        assert not iptables.closed
    with IptablesHandler.open(Family.IPV4, netns=sandbox.path) as iptables:
        assert problems(cleanup_all(Handlers(families=(Family.IPV4,), iptables={Family.IPV4: iptables}))) == []


def test_handlers_of_two_namespaces_are_refused(new_sandbox: Callable[..., Sandbox]):
    one, two = new_sandbox(), new_sandbox()
    with (
        Handlers.open(netns=one.path) as first,
        Handlers.open(netns=two.path) as second,
        pytest.raises(ValueError, match="another network namespace"),
    ):
        cleanup_all(attrs.evolve(first, ipset=second.ipset))


def test_closed_handlers_never_lead_to_another_namespace(new_sandbox: Callable[..., Sandbox]):
    """With the namespace closed too, it cannot be entered again; the caller's own is not meant."""
    home, away = new_sandbox(), new_sandbox()
    scene = Scene(NODES["default"], Backend.NFT)
    before = scene.load(home), scene.load(away)
    script = (
        "from firewall_cleanup import Handlers, cleanup_all\n"
        f"with Handlers.open(netns={away.path!r}) as handlers: pass\n"
        "try: cleanup_all(handlers)\n"
        "except ValueError as error: print(error)\n"
        "with Handlers.open() as handlers: pass\n"
        "print(cleanup_all(handlers, dry_run=True).exit_code)\n"
    )
    said = home.run([sys.executable, "-c", script]).stdout.splitlines()
    assert (home.state(), away.state()) == before
    assert "closed" in said[0]
    assert said[1] == "0"


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("handler", [IptablesHandler, IpsetHandler])
def test_a_handler_that_cannot_be_opened_is_a_gap(
    new_sandbox: Callable[..., Sandbox], backend, handler, family, monkeypatch: pytest.MonkeyPatch
):
    scene = Scene(NODES["default"], backend)
    wanted, sandbox = new_sandbox(), new_sandbox()
    expected = scene.load(wanted, gone=ALL)
    before = scene.load(sandbox)
    original = handler.open

    def refuse(wish, netns=None, **options):
        if wish is family:
            raise KernelError(errno.EMFILE, "socket")
        return original(wish, netns, **options)

    monkeypatch.setattr(handler, "open", refuse)
    other = next(other for other in Family if other is not family)

    with Handlers.open(netns=sandbox.path) as handlers:
        reports = [cleanup_all(handlers, wait=20)]
    reports.append(clean(sandbox))

    for report in reports:
        assert report.exit_code == 1
        assert not report.clean
        assert {(gap.family, gap.subsystem) for gap in report.gaps} == {
            (family, "iptables" if handler is IptablesHandler else "ipset")
        }
        assert all("Too many open files" in gap.reason for gap in report.gaps)
        assert report.families == {family: FamilyState.GAP, other: FamilyState.EXAMINED}
    assert not reports[1].changed
    after = sandbox.state()
    assert after.lines(backend, other) == expected.lines(backend, other)
    prefix = "inet6:" if family is Family.IPV6 else ""
    if handler is IptablesHandler:
        # Its rules stay, and so do the sets that they use.
        assert after.lines(backend, family) == before.lines(backend, family)
        assert f"create {prefix}kube-router-svip " in after.sets
    elif family is Family.IPV6:
        assert "create inet6:kube-router-svip " in after.sets
        assert "create kube-router-svip " not in after.sets

    monkeypatch.undo()
    assert problems(clean(sandbox)) == []
    assert sandbox.state() == expected


def test_tables_that_cannot_be_seen_are_a_gap(new_sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch):
    scene = Scene(NODES["nft-netpol"], Backend.NFT)
    wanted, sandbox = new_sandbox(), new_sandbox()
    expected = scene.load(wanted, gone=ALL)
    before = scene.load(sandbox)

    def refuse(*_arguments, **_options):
        raise KernelError(errno.EMFILE, "socket")

    monkeypatch.setattr(NftablesHandler, "open", refuse)
    report = clean(sandbox)
    assert (report.exit_code, report.changed, report.residue) == (1, True, ())
    assert [(gap.family, gap.subsystem) for gap in report.gaps] == [(None, "nftables")]
    after = sandbox.state()
    assert (after.rules, after.sets) == (expected.rules, expected.sets)
    assert after.native == before.native
    monkeypatch.undo()
    assert problems(clean(sandbox)) == []
    assert sandbox.state() == expected


@pytest.fixture
def named(sandbox: Sandbox):
    """A sandbox under a name of its own in /run/netns."""
    name = f"cleanup-test-{uuid.uuid4().hex[:12]}"
    attach = ["ip", "netns", "attach", name, str(sandbox.pid)]
    done = subprocess.run(attach, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no right to name a network namespace: {done.stderr.strip()}")
    yield name
    subprocess.run(["ip", "netns", "delete", name], check=True)


def _home() -> str:
    return str(Path("/proc/thread-self/ns/net").readlink())


def test_by_name_and_by_path(sandbox: Sandbox, named: str, tmp_path):
    scene = Scene(NODES["default"], Backend.NFT)
    scene.load(sandbox)
    home = _home()
    link = tmp_path / "namespace"
    link.symlink_to(f"/run/netns/{named}")
    plans = [cleanup_all(netns=place, dry_run=True) for place in (named, f"/run/netns/{named}", link, sandbox.path)]
    assert plans[0].outcomes
    assert all(plan.outcomes == plans[0].outcomes for plan in plans)
    assert problems(cleanup_all(netns=named)) == []
    assert not cleanup_all(netns=sandbox.path).outcomes
    assert _home() == home


@pytest.mark.parametrize("wrong", ["no-such-namespace", "/no/such/path", "", "/dev/null", "/proc/self/ns/mnt"])
def test_wrong_namespaces(wrong: str):
    home = _home()
    with pytest.raises(NamespaceError):
        cleanup_all(netns=wrong)
    with pytest.raises(NamespaceError):
        Handlers.open(netns=wrong)
    assert _home() == home


def test_in_a_thread(sandbox: Sandbox):
    scene = Scene(NODES["default"], Backend.LEGACY)
    scene.load(sandbox)
    seen: list[object] = []

    def work() -> None:
        home = _home()
        with Handlers.open(netns=sandbox.path) as handlers:
            report = cleanup_all(handlers)
        seen.extend((report.clean, _home() == home, report.changed))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True, True, True]


def test_an_error_leaves_the_caller_where_it_was(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    home, threads = _home(), threading.active_count()

    def fail(*_args, **_options):
        raise RuntimeError("on purpose")

    monkeypatch.setattr(stages, "make_plan", fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        cleanup_all(netns=sandbox.path)
    with pytest.raises(RuntimeError, match="on purpose"), Handlers.open(netns=sandbox.path) as handlers:
        cleanup_all(handlers)
    assert _home() == home
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    "options",
    [
        {"controllers": []},
        {"controllers": ["routing"]},
        {"families": []},
        {"families": ["ipv4"]},
        {"component": "nobody"},
        {"wait": -1},
        {"wait": float("nan")},
    ],
)
def test_wrong_arguments(sandbox: Sandbox, options):
    with pytest.raises(ValueError, match=r"expected|is not one of"):
        cleanup(netns=sandbox.path, **options)
    with Handlers.open(netns=sandbox.path) as handlers, pytest.raises(ValueError, match="netns"):
        cleanup_all(handlers, netns=sandbox.path)
