"""What `exposure status` tells: everything that belongs to an exposure, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from .addresses import plain_address
from .builders import build, slice_name, targets
from .capabilities import RESOURCES, Apis, UnsupportedError
from .client import Client, path_of
from .comparison import why_unlike
from .fields import ManifestError
from .nodes import choose
from .objects import object_title, why_foreign
from .parsing import parse
from .reconcile import addresses_of, conditions_of, owned_objects
from .values import CONTROL_PLANE, Exposure, Manifest, family_of, family_word, owner_labels, resource_name

__all__ = ["StatusReport", "read_status"]


@attrs.frozen
class StatusReport:
    """An exposure as the cluster has it. `families` are those that are wanted, else those of the Service."""

    name: str
    namespace: str
    operation: Mapping[str, Any] | None
    families: tuple[str, ...]
    addresses: tuple[str, ...]
    endpoints: Mapping[str, tuple[str, ...]]
    objects: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0: all is there and as it is wanted, with an address and an endpoint of every family; 1: not."""
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


@attrs.define
class _Found:
    """What is there of an exposure. `objects` has ours by their titles."""

    service: Manifest | None = None
    objects: dict[str, Manifest] = attrs.field(factory=dict)
    endpoints: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    foreign: dict[str, str] = attrs.field(factory=dict)

    def of_kind(self, kind: str) -> list[Manifest]:
        return [each for each in self.objects.values() if each["kind"] == kind]


def read_status(
    client: Client, apis: Apis, which: tuple[str, str], found: Manifest | None, wanted: Exposure | None = None
) -> StatusReport:
    """Read what there is of an exposure, by name and namespace, and compare it with what is wanted.

    That is `wanted`, else what the exposure's object `found` says; without either, just what is there is looked at.
    Raises Unreachable and ApiError.
    """
    name, namespace = which
    there = _read(client, apis, name, namespace)
    problems: list[str] = []
    if wanted is None and found is not None and not found["metadata"].get("deletionTimestamp"):
        try:
            wanted = parse(found)
        except ManifestError as error:
            problems.append(str(error))
    families = tuple((there.service or {}).get("spec", {}).get("ipFamilies") or ())
    if wanted is not None:
        families = tuple(family_word(family) for family in wanted.config.families)
    ingress = (((there.service or {}).get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    addresses = tuple(each["ip"] for each in ingress if each.get("ip"))
    if there.service is None:
        problems.append("there is no Service of it")
    else:
        for family in families:
            problems += _family_problems(family, addresses, there, wanted)
    operation = ((found or {}).get("status") or {}).get("lastOperation")
    if operation and operation.get("state") != "Succeeded":
        problems.append(str(operation.get("description")))
    problems += [f"{what} is not ours: {why}" for what, why in there.foreign.items()]
    if wanted is not None:
        problems += _differences(client, apis, wanted, there)
    problems += _conditions(there, wanted)
    objects = tuple(
        title + (" (being deleted)" if each["metadata"].get("deletionTimestamp") else "")
        for title, each in there.objects.items()
    )
    return StatusReport(
        name, namespace, operation, families, addresses, there.endpoints, objects, tuple(dict.fromkeys(problems))
    )


def _family_problems(family: str, addresses: Sequence[str], there: _Found, wanted: Exposure | None) -> Iterable[str]:
    given = [plain_address(each) for each in addresses if family_word(family_of(each)) == family]
    fixed = [each for each in (wanted.config.addresses if wanted else ()) if family_word(family_of(each)) == family]
    lacking = [each for each in fixed if each not in given]
    if not given:
        yield f"{family}: Cilium has given no address"
    elif lacking:
        yield f"{family}: Cilium has given {', '.join(given)}, not {', '.join(lacking)}"
    if not there.endpoints.get(family):
        yield f"{family}: there is no endpoint"


def _read(client: Client, apis: Apis, name: str, namespace: str) -> _Found:
    labels = owner_labels(name, namespace)
    there = _Found()
    for found, ours in owned_objects(client, apis, labels, namespace):
        if not ours:
            there.foreign[object_title(found)] = str(why_foreign(found, labels))
            continue
        there.objects[object_title(found)] = found
        if found["kind"] == "Service":
            there.service = found
        elif found["kind"] == "EndpointSlice":
            there.endpoints[found["addressType"]] = _endpoints(found)
    taken = client.get(path_of("v1", RESOURCES["Service"].plural, namespace, resource_name(name)))
    if there.service is None and taken is not None and (why := why_foreign(taken, labels)):
        there.foreign[object_title({"kind": "Service", **taken})] = why
    return there


def _differences(client: Client, apis: Apis, wanted: Exposure, there: _Found) -> list[str]:
    """Return what an apply would make, change or remove now, by the nodes as they are."""
    choice = choose(wanted, client.list(path_of("v1", "nodes"), {CONTROL_PLANE: ""}))
    slices = targets(wanted, choice.endpoints)
    try:
        manifests = {object_title(each): each for each in build(wanted, apis, slices)}
    except UnsupportedError as error:
        return [str(error)]
    found: list[str] = []
    left_out = ", ".join(f"{node}: {reason}" for node, reason in choice.left_out)
    stay: set[str] = set()
    for family, endpoints in slices.items():
        if not endpoints:
            stay.add(f"EndpointSlice {wanted.namespace}/{slice_name(wanted, family)}")
            why = f" ({left_out})" if left_out else ""
            found.append(f"{family_word(family)}: no healthy node has an InternalIP{why}")
    for title, manifest in manifests.items():
        if title not in there.objects:
            if title not in there.foreign and manifest["kind"] != "Service":  # that is said already
                found.append(f"{title} is missing")
        elif (unlike := why_unlike(manifest, there.objects[title])) is not None:
            found.append(f"{title} is not as wanted: {unlike}")
    return found + [f"{title} is not wanted" for title in there.objects if title not in {*manifests, *stay}]


def _conditions(there: _Found, wanted: Exposure | None) -> list[str]:
    """Return what Cilium says is wrong: of the addresses, of the pool, of what announces it."""
    missing = wanted is None or bool(addresses_of(wanted, there.service)[1])
    pool = next(iter(there.of_kind("CiliumLoadBalancerIPPool")), None)
    refused, pending = conditions_of(there.service, pool, missing)
    found = [*refused, *([f"Cilium gives no address{pending}"] if pending else [])]
    for kind in ("CiliumBGPClusterConfig", "CiliumBGPPeerConfig"):
        for each in there.of_kind(kind):
            # All that Cilium has for these say what is wrong: NoMatchingNode, MissingPeerConfigs, MissingAuthSecret.
            for condition in (each.get("status") or {}).get("conditions") or ():
                if condition.get("status") == "True":
                    said = f"{condition.get('type')}: {condition.get('message') or condition.get('reason')}"
                    found.append(f"{object_title(each)}: Cilium says {said}")
    return found


def _endpoints(found: Mapping[str, Any]) -> tuple[str, ...]:
    entries: Sequence[Mapping[str, Any]] = found.get("endpoints") or ()
    return tuple(
        f"{each.get('nodeName', '?')} {address}" for each in entries for address in each.get("addresses") or ()
    )
