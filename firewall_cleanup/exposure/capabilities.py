"""Which objects a Cilium release has, in which API version, and what it cannot do."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping

import attrs

from ..errors import FirewallCleanupError
from ..model import Family
from .values import Announce, Exposure

__all__ = [
    "LATEST_KNOWN",
    "RESOURCES",
    "Apis",
    "CiliumVersion",
    "Finding",
    "NotServed",
    "Resource",
    "UnsupportedError",
    "api_server_key",
    "limits_of",
    "refuse_errors",
]


class UnsupportedError(FirewallCleanupError, ValueError):
    """A Cilium cannot do what is asked for; the text names its version, or the API that it does not serve."""


class NotServed(UnsupportedError):
    """The API server serves no such kind. It may later: Cilium's operator registers them when it starts."""


@functools.total_ordering
@attrs.frozen(order=False)
class CiliumVersion:
    """A release of Cilium: 1.19 is the whole series, 1.19.3 one release of it."""

    major: int
    minor: int
    patch: int | None = None

    @classmethod
    def parse(cls, text: str) -> CiliumVersion:
        """Read `1.19`, `v1.19.3`, `1.19.3-rc.1`; raises ValueError for anything else."""
        found = re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,4}))?(?:[-+][-+.0-9A-Za-z]+)?", text.strip())
        if not found:
            raise ValueError(f"{text!r:.40} is no version of Cilium, such as 1.19 or 1.19.3")
        return cls(int(found[1]), int(found[2]), int(found[3]) if found[3] else None)

    @property
    def series(self) -> tuple[int, int]:
        """Major and minor number."""
        return self.major, self.minor

    def __lt__(self, other: CiliumVersion) -> bool:
        return (*self.series, self.patch or 0) < (*other.series, other.patch or 0)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + ("" if self.patch is None else f".{self.patch}")


LATEST_KNOWN = CiliumVersion(1, 19)
"""The newest series whose objects were read; newer ones are taken to be like it."""

OLDEST = CiliumVersion(1, 16)
"""The oldest series: pools have `blocks` and nothing else, and the BGP objects of today, from 1.16."""


@attrs.frozen
class Resource:
    """A kind of the API. `since` has its API versions by the first Cilium release that takes them.

    Sources: cilium/cilium, pkg/k8s/apis/cilium.io/v2 and v2alpha1, and Documentation/operations/upgrade.rst.
    """

    kind: str
    plural: str
    namespaced: bool
    since: tuple[tuple[CiliumVersion, str], ...] = ()
    versions: tuple[str, ...] = ()


_V2, _ALPHA = "cilium.io/v2", "cilium.io/v2alpha1"
_PROMOTION = CiliumVersion(1, 18)
_PROMOTED = ((_PROMOTION, _V2), (OLDEST, _ALPHA))


def _cilium(
    kind: str, plural: str, since: tuple[tuple[CiliumVersion, str], ...], *, namespaced: bool = False
) -> Resource:
    return Resource(kind, plural, namespaced, since, (_V2, _ALPHA))


RESOURCES = {
    each.kind: each
    for each in (
        Resource("Service", "services", namespaced=True, versions=("v1",)),
        Resource("EndpointSlice", "endpointslices", namespaced=True, versions=("discovery.k8s.io/v1",)),
        _cilium("CiliumLoadBalancerIPPool", "ciliumloadbalancerippools", _PROMOTED),
        _cilium("CiliumL2AnnouncementPolicy", "ciliuml2announcementpolicies", ((OLDEST, _ALPHA),)),
        _cilium("CiliumBGPAdvertisement", "ciliumbgpadvertisements", _PROMOTED),
        _cilium("CiliumBGPPeerConfig", "ciliumbgppeerconfigs", _PROMOTED),
        _cilium("CiliumBGPClusterConfig", "ciliumbgpclusterconfigs", _PROMOTED),
        _cilium("CiliumNodeConfig", "ciliumnodeconfigs", ((OLDEST, _V2),), namespaced=True),
    )
}
"""Every kind that an exposure can have, in the order in which they are deleted."""


@attrs.frozen
class Apis:
    """The API version of every kind that is there, Cilium's version if it is known, and its namespace."""

    versions: Mapping[str, str] = attrs.field(hash=False)
    cilium: CiliumVersion | None = None
    namespace: str = "kube-system"

    @classmethod
    def of_version(cls, version: CiliumVersion) -> Apis:
        """Return those of a Cilium release. Raises UnsupportedError for one older than 1.16."""
        if version < OLDEST:
            raise UnsupportedError(_too_old(version))
        found = {kind: each.versions[0] for kind, each in RESOURCES.items() if not each.since}
        for kind, each in RESOURCES.items():
            for first, api in each.since:
                if version >= first:
                    found.setdefault(kind, api)
        return cls(found, version)

    @classmethod
    def of_discovery(cls, served: Mapping[str, Iterable[str]], cilium: CiliumVersion | None = None) -> Apis:
        """Return those that an API server serves: the kinds by API version (`cilium.io/v2`), the best of each."""
        found: dict[str, str] = {}
        for kind, each in RESOURCES.items():
            for api in each.versions:
                if kind in served.get(api, ()):
                    found.setdefault(kind, api)
        return cls(found, cilium)

    def version_of(self, kind: str) -> str:
        """Return the API version to write. Raises NotServed if there is none."""
        if kind not in self.versions:
            name = f"Cilium {self.cilium}" if self.cilium else "the API server"
            raise NotServed(
                f"{name} does not serve {kind} ({' or '.join(RESOURCES[kind].versions)}):"
                " is Cilium installed, with this feature enabled?"
            )
        return self.versions[kind]

    def is_older(self, than: CiliumVersion) -> bool | None:
        """Tell whether Cilium is older than a release, None if that cannot be told.

        Where the release is not known, the pools tell it a little: they have cilium.io/v2 from 1.18 on.
        """
        if self.cilium is not None:
            return self.cilium < than
        pools = self.versions.get("CiliumLoadBalancerIPPool")
        if pools == _ALPHA:
            return True if than >= _PROMOTION else None
        return False if pools is not None and than <= _PROMOTION else None

    @property
    def release(self) -> str:
        """Cilium's release in words."""
        if self.cilium is not None:
            return f"Cilium {self.cilium}"
        if self.is_older(_PROMOTION):
            return f"This Cilium, which serves CiliumLoadBalancerIPPool as {_ALPHA} alone and is older than 1.18,"
        return "This Cilium"


def _too_old(version: CiliumVersion) -> str:
    return (
        f"Cilium {version} is too old: its address pools have no blocks, and its BGP has other objects;"
        f" it takes {OLDEST} or newer"
    )


@attrs.frozen
class Finding:
    """What a Cilium version cannot do (an error), or does in a way to know of (a warning)."""

    error: bool
    text: str

    def __str__(self) -> str:
        return f"{'error' if self.error else 'warning'}: {self.text}"


_L2_IPV6 = CiliumVersion(1, 19)
_SEVERAL_URLS = CiliumVersion(1, 18)


def limits_of(exposure: Exposure, apis: Apis) -> tuple[Finding, ...]:
    """Return what this Cilium makes of the exposure; nothing if all is well."""
    config, version = exposure.config, apis.cilium
    if version is not None and version < OLDEST:
        return (Finding(True, _too_old(version)),)
    found: list[Finding] = []
    if config.announce is Announce.L2 and Family.IPV6 in config.families:
        older = apis.is_older(_L2_IPV6)
        if older is None:
            found.append(
                Finding(
                    False,
                    f"IPv6 is announced by L2 from Cilium {_L2_IPV6} only, and the version is not known here;"
                    " give it by --cilium-version",
                )
            )
        elif older:
            found.append(
                Finding(
                    True,
                    f"{apis.release} announces no IPv6 address by L2 (NDP came with {_L2_IPV6}): update Cilium,"
                    " use announce: bgp, or leave IPv6 out of ipFamilies",
                )
            )
        elif version is not None and version.series == (1, 19) and version.patch == 0:
            found.append(
                Finding(
                    False,
                    "Cilium 1.19.0 may miss neighbour solicitations for IPv6 (cilium#44311): use 1.19.1 or newer",
                )
            )
    if config.announce is Announce.BGP and not config.bgp.peers:
        found.append(
            Finding(
                False,
                "no bgp.peers: nothing is advertised unless a CiliumBGPPeerConfig of yours selects those with the"
                f" label firewall-cleanup/exposure: {exposure.name}",
            )
        )
    if apis.is_older(_SEVERAL_URLS) and len(config.api_server_urls) > 1:
        found.append(
            Finding(
                True,
                f"{apis.release} takes one URL of an API server; several (k8s-api-server-urls) came with 1.18:"
                " give one in apiServerURLs, such as https://localhost:443",
            )
        )
    if version is not None and version.series > LATEST_KNOWN.series:
        found.append(
            Finding(False, f"Cilium {version} is newer than {LATEST_KNOWN}, the newest whose objects are known")
        )
    return tuple(found)


def api_server_key(apis: Apis) -> str:
    """Return the key of the agent's configuration for the API server's URLs: its name changed with Cilium 1.18."""
    return "k8s-api-server" if apis.is_older(_SEVERAL_URLS) else "k8s-api-server-urls"


def refuse_errors(findings: Iterable[Finding]) -> None:
    """Raise UnsupportedError with the texts of all findings that are errors."""
    texts = [finding.text for finding in findings if finding.error]
    if texts:
        raise UnsupportedError("; ".join(texts))
