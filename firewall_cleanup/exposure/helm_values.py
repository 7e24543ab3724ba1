"""The values of Cilium's Helm chart that have to do with the API server, as the chart puts them together. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import attrs

from .fields import shown

__all__ = ["HelmValues"]

_PLACES = (
    "k8sServiceHost",
    "k8sServiceHostRef.name",
    "k8s.apiServerURLs",
    "kubeConfigPath",
    "kubeProxyReplacement",
    "l2announcements.enabled",
    "bgpControlPlane.enabled",
    "daemon.configSources",
    "operator.enabled",
    "extraArgs",
    "extraEnv",
    "operator.extraArgs",
    "operator.extraEnv",
)


@attrs.define
class HelmValues:
    """Values by their places, such as `k8s.apiServerURLs`, of one file or several.

    `keys` are those of Cilium's configuration that count; `extraConfig` can set them, whatever other values say.
    """

    keys: Collection[str]
    given: bool = False
    found: dict[str, Any] = attrs.field(factory=dict)
    config: dict[str, Any] = attrs.field(factory=dict)
    gaps: list[str] = attrs.field(factory=list)

    def add(self, values: Mapping[str, Any]) -> None:
        """Add a file, which may be that of a chart with Cilium's in it; as with Helm, it replaces those before it."""
        values = values["cilium"] if isinstance(values.get("cilium"), Mapping) else values
        self.given = True
        for place in _PLACES:
            self._take(self.found, place, place.split("."), values)
        for key in self.keys:
            self._take(self.config, key, ["extraConfig", key], values)

    def _take(self, into: dict[str, Any], name: str, path: list[str], values: Any) -> None:
        for index, key in enumerate(path):
            if values is None:
                break
            if not isinstance(values, Mapping):
                self.gaps.append(f"Helm value {'.'.join(path[:index])}: {shown(values, 40)} is not a map")
                return
            if key not in values:
                return
            values = values[key]
        into[name] = values
        if values is None:  # null takes away what was there, and all below it
            del into[name]

    def get(self, place: str) -> Any:
        """Return a value, None if there is none."""
        return self.found.get(place)

    def containers(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Yield what the chart adds to containers of Cilium: the container's name, the value's place, that part."""
        for place, key, names in (
            ("extraArgs", "args", ("cilium-agent",)),
            ("extraEnv", "env", ("config", "cilium-agent")),
            ("operator.extraArgs", "args", ("cilium-operator",)),
            ("operator.extraEnv", "env", ("cilium-operator",)),
        ):
            for name in names if self.get(place) else ():
                yield name, place, {key: self.get(place)}
