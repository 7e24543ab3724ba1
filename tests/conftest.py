"""Fixtures for tests on the kernel: each works in network namespaces that are thrown away.

One profile for all properties; in CI the examples are the same in every run.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, settings

from firewall_cleanup import Backend
from firewall_cleanup.testing.namespaces import NotAvailable, Sandbox

settings.register_profile("laws", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("laws"), derandomize=True)
settings.register_profile("deep", settings.get_profile("laws"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "laws"))

NEWER_IPTABLES = Path(__file__).with_name("newer-iptables")


@attrs.frozen
class Tools:
    """The iptables commands that write the rules of a test: a backend, and a folder (None: the installed ones)."""

    backend: Backend
    folder: str | None = None


@pytest.fixture(scope="session", autouse=True)
def _private_lock_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep away from the machine's own xtables lock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XTABLES_LOCKFILE", str(tmp_path_factory.mktemp("lock") / "xtables.lock"))
        yield


@pytest.fixture(scope="session")
def newer_iptables(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of an iptables that is newer than the one of Debian 12."""
    done = subprocess.run([NEWER_IPTABLES], check=False, capture_output=True, text=True)
    if done.returncode == 3 or (done.returncode and not os.environ.get("CI")):
        pytest.skip(f"no newer iptables: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(params=["nft", "nft-newer", "legacy"])
def tools(request: pytest.FixtureRequest) -> Tools:
    """Each backend, nft also as a newer iptables writes it."""
    if request.param == "nft-newer":
        return Tools(Backend.NFT, request.getfixturevalue("newer_iptables"))
    return Tools(Backend(request.param))


@pytest.fixture(params=["nft", "legacy"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend, with the installed iptables."""
    return Backend(request.param)


@pytest.fixture
def new_sandbox() -> Iterator[Callable[..., Sandbox]]:
    """A function that makes a sandbox which this process can enter, and which is gone after the test."""
    if os.geteuid() != 0:
        pytest.skip("needs root, or a user namespace: unshare -r pytest")
    with ExitStack() as stack:

        def make(tools: str | None = None) -> Sandbox:
            try:
                return stack.enter_context(Sandbox(tools=tools))
            except NotAvailable as reason:
                pytest.skip(str(reason))

        yield make


@pytest.fixture
def sandbox(new_sandbox: Callable[..., Sandbox]) -> Sandbox:
    """An empty network namespace, with the installed iptables."""
    return new_sandbox()


@pytest.fixture(autouse=True)
def _stay_at_home() -> Iterator[None]:
    """Fail if a test leaves this process in another network namespace."""
    before = Path("/proc/thread-self/ns/net").readlink()
    yield
    assert Path("/proc/thread-self/ns/net").readlink() == before
