"""Exposing the API server of a self-hosted cluster through Cilium: an optional part, `firewall-cleanup[kubernetes]`.

Nothing else of the package imports it, and importing it loads no Kubernetes client:

>>> from firewall_cleanup.exposure import Apis, CiliumVersion, build, read_manifest
>>> manifests = build(read_manifest("exposure.yaml"), Apis.of_version(CiliumVersion(1, 19)))  # doctest: +SKIP
"""

from .builders import build
from .capabilities import Apis, CiliumVersion, Finding, UnsupportedError, limits_of
from .fields import ManifestError
from .parsing import parse, read_manifest
from .values import Announce, BgpPeer, BgpSettings, Endpoint, EndpointAddress, Exposure, IpRange, ProviderConfig

__all__ = [
    "Announce",
    "Apis",
    "BgpPeer",
    "BgpSettings",
    "CiliumVersion",
    "Endpoint",
    "EndpointAddress",
    "Exposure",
    "Finding",
    "IpRange",
    "ManifestError",
    "ProviderConfig",
    "UnsupportedError",
    "build",
    "limits_of",
    "parse",
    "read_manifest",
]
