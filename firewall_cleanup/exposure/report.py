"""What `exposure status` tells: everything that belongs to an exposure, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from .capabilities import RESOURCES, Apis
from .client import Client, path_of
from .objects import object_title, why_foreign
from .reconcile import owned_objects
from .values import Manifest, family_of, family_word, owner_labels, resource_name

__all__ = ["StatusReport", "read_status"]


@attrs.frozen
class StatusReport:
    """An exposure as the cluster has it. `exit_code` is 0 if every wanted family has an address and an endpoint."""

    name: str
    namespace: str
    operation: Mapping[str, Any] | None
    families: tuple[str, ...]
    addresses: tuple[str, ...]
    endpoints: Mapping[str, tuple[str, ...]]
    objects: tuple[str, ...]
    foreign: tuple[tuple[str, str], ...]
    conditions: tuple[str, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What keeps it from being reachable."""
        found: list[str] = []
        if not self.families:
            found.append("there is no Service of it")
        for family in self.families:
            if not any(family_word(family_of(each)) == family for each in self.addresses):
                found.append(f"{family}: Cilium has given no address")
            if not self.endpoints.get(family):
                found.append(f"{family}: there is no endpoint")
        if self.operation and self.operation.get("state") != "Succeeded":
            found.append(str(self.operation.get("description")))
        return (*found, *(f"{what} is not ours: {why}" for what, why in self.foreign), *self.conditions)

    @property
    def exit_code(self) -> int:
        """0: reachable by every wanted family; 1: not."""
        return 1 if self.problems else 0

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON; docs/exposure.md describes it."""
        operation = dict(self.operation) if self.operation else None
        return {
            "version": 1,
            "name": self.name,
            "namespace": self.namespace,
            "lastOperation": operation,
            "families": list(self.families),
            "addresses": list(self.addresses),
            "endpoints": {family: list(found) for family, found in self.endpoints.items()},
            "objects": list(self.objects),
            "problems": list(self.problems),
        }

    def lines(self) -> list[str]:
        """Return it as text."""
        found = [f"exposure {self.namespace}/{self.name}"]
        if self.operation:
            operation = self.operation
            found.append(f"  {operation.get('type')} {operation.get('state')}: {operation.get('description')}")
        for family in self.families:
            addresses = [each for each in self.addresses if family_word(family_of(each)) == family]
            endpoints = ", ".join(self.endpoints.get(family, ())) or "nothing"
            found.append(f"  {family}: {', '.join(addresses) or 'no address'} -> {endpoints}")
        found += [f"  {each}" for each in self.objects]
        return found + [f"problem: {each}" for each in self.problems]


def read_status(client: Client, apis: Apis, name: str, namespace: str, exposure: Manifest | None) -> StatusReport:
    """Read what there is of an exposure, whose object may be None. Raises Unreachable and ApiError."""
    labels = owner_labels(name, namespace)
    objects: list[str] = []
    foreign: list[tuple[str, str]] = []
    endpoints: dict[str, tuple[str, ...]] = {}
    service: Manifest | None = None
    for found, ours in owned_objects(client, apis, labels, namespace):
        if not ours:
            foreign.append((object_title(found), str(why_foreign(found, labels))))
            continue
        going = " (being deleted)" if found["metadata"].get("deletionTimestamp") else ""
        objects.append(object_title(found) + going)
        if found["kind"] == "Service":
            service = found
        elif found["kind"] == "EndpointSlice":
            endpoints[found["addressType"]] = _endpoints(found)
    taken = client.get(path_of("v1", RESOURCES["Service"].plural, namespace, resource_name(name)))
    if service is None and taken is not None and (why := why_foreign(taken, labels)):
        foreign.append((object_title({"kind": "Service", **taken}), why))
    status = (service or {}).get("status") or {}
    ingress = (status.get("loadBalancer") or {}).get("ingress") or ()
    conditions = [
        f"{each.get('type')}: {each.get('reason')}: {each.get('message')}"
        for each in status.get("conditions") or ()
        if str(each.get("type", "")).startswith("cilium.io/") and each.get("status") == "False"
    ]
    return StatusReport(
        name,
        namespace,
        ((exposure or {}).get("status") or {}).get("lastOperation"),
        tuple((service or {}).get("spec", {}).get("ipFamilies") or ()),
        tuple(each["ip"] for each in ingress if each.get("ip")),
        endpoints,
        tuple(objects),
        tuple(dict.fromkeys(foreign)),
        tuple(conditions),
    )


def _endpoints(found: Mapping[str, Any]) -> tuple[str, ...]:
    entries: Sequence[Mapping[str, Any]] = found.get("endpoints") or ()
    return tuple(
        f"{each.get('nodeName', '?')} {address}" for each in entries for address in each.get("addresses") or ()
    )
