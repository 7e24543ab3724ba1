"""Bringing a cluster to what an exposure wants, and taking it back. Every call reads all that it needs anew."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from ..errors import FirewallCleanupError
from ..model import Family
from .builders import build, endpoint_slice, names_of, slice_name, targets
from .capabilities import RESOURCES, Apis, NotServed, UnsupportedError, limits_of
from .client import ApiError, Client, path_of
from .nodes import choose
from .objects import ForeignObject, Waiting, ensure_object, explain, fixed_field, is_ours, object_title, path_to
from .values import EXPOSURE_LABEL, Exposure, Manifest, family_of, family_word

__all__ = [
    "ObjectState",
    "Reconciliation",
    "Removal",
    "State",
    "addresses_of",
    "conditions_of",
    "owned_objects",
    "reconcile",
    "take_down",
]

State = str
"""`Succeeded`, `Processing` or `Error`: as in `status.lastOperation.state`."""

_CONFIGURATION = "ERR_CONFIGURATION_PROBLEM"
_PASSING = ("no_pool", "unsatisfied", "")
"""Reasons of Cilium that a pool just made may give for a moment (operator/pkg/lbipam)."""


@attrs.frozen
class ObjectState:
    """An object and what was done with it: `created`, `changed`, `unchanged`, `removed`, `going`, `refused`."""

    what: str
    done: str


@attrs.frozen
class Reconciliation:
    """What a reconciliation came to. `addresses` are of all wanted families; empty until all are there.

    With `codes` no waiting helps: the manifest must be changed, or Cilium. `passing`: it is the API server that
    refuses, with an error that may be over at the next call.
    """

    state: State
    description: str
    addresses: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    objects: tuple[ObjectState, ...] = ()
    warnings: tuple[str, ...] = ()
    passing: bool = False

    @property
    def changed(self) -> bool:
        """Whether anything was written."""
        return any(each.done not in {"unchanged", "refused"} for each in self.objects)


@attrs.frozen
class Removal:
    """What a removal came to, and what it waits for. `kept` has our labels or names, but we did not make it.

    `waiting` says in words what holds each of the objects in `going`.
    """

    removed: tuple[str, ...]
    waiting: tuple[str, ...]
    kept: tuple[str, ...]
    going: tuple[str, ...] = ()

    @property
    def gone(self) -> bool:
        """Whether nothing of ours is left."""
        return not self.waiting

    @property
    def left(self) -> str:
        """What is left of it once all of ours has gone, in words."""
        count = len(self.kept)
        if not count:
            return "nothing of the exposure is left"
        return f"{count} object{'s are' if count > 1 else ' is'} left that we did not make"


@attrs.define
class _Progress:
    """What was done and what is wrong: one bad object does not keep the others from being right."""

    objects: list[ObjectState] = attrs.field(factory=list)
    problems: list[str] = attrs.field(factory=list)
    passing: list[str] = attrs.field(factory=list)
    waiting: list[str] = attrs.field(factory=list)
    refused: set[str] = attrs.field(factory=set)
    going: set[str] = attrs.field(factory=set)
    """The kinds of which an object was refused, and of which one has to go first."""

    @property
    def blocked(self) -> set[str]:
        """The kinds of which an object is not what it is to be."""
        return self.refused | self.going

    def apply(self, client: Client, manifest: Manifest, labels: Mapping[str, str]) -> Manifest | None:
        what = object_title(manifest)
        try:
            found, done = ensure_object(client, manifest, labels)
        except Waiting as error:
            self.waiting.append(str(error))
            self.going.add(manifest["kind"])
            self.objects.append(ObjectState(what, "going"))
        except (ForeignObject, ApiError) as error:
            self.refuse(manifest, error)
        else:
            self.objects.append(ObjectState(what, done))
            return found
        return None

    def refuse(self, manifest: Manifest, error: ForeignObject | ApiError) -> None:
        """Note what was refused: for people to solve, or the server's trouble, or somebody was faster."""
        what = object_title(manifest)
        said = explain(error, what) if isinstance(error, ApiError) else str(error)
        if isinstance(error, ApiError) and is_passing(error) and not error.managers:
            self.passing.append(said)
        else:
            self.problems.append(said)
        self.refused.add(manifest["kind"])
        self.objects.append(ObjectState(what, "refused"))

    def stays(self, manifest: Manifest) -> None:
        """Note what is not touched until something else is right."""
        what = object_title(manifest)
        said = self.problems or self.passing or self.waiting
        said.append(f"{what} stays as it is until that is right")
        self.objects.append(ObjectState(what, "unchanged"))


def reconcile(client: Client, exposure: Exposure, apis: Apis, nodes: Sequence[Manifest]) -> Reconciliation:
    """Make the cluster what the exposure wants, as far as it can be now, and tell how far that is.

    Raises Unreachable, and ApiError for what concerns no single object; the next call goes on.
    """
    progress = _Progress()
    slices = _slices(client, exposure, nodes, progress)
    before = client.get(path_of("v1", "services", exposure.namespace, exposure.service))
    if before is not None and not is_ours(before, exposure.labels):
        before = None
    try:
        manifests = build(exposure, apis, slices)
    except UnsupportedError as error:
        return _only_endpoints(client, exposure, slices, before, progress, error)
    service, pool = _apply_all(client, exposure, manifests, before, progress)
    # What was announced before goes when its successor is there: what it made reachable is not given up for nothing.
    if not progress.refused and not progress.going - {"Service"}:
        _prune(client, exposure, apis, manifests, progress)
    addresses, missing = addresses_of(exposure, service)
    refused, pending = conditions_of(service, pool, bool(missing))
    progress.problems += refused
    warnings = tuple(finding.text for finding in limits_of(exposure, apis) if not finding.error)
    done = tuple(progress.objects)
    known = () if missing else addresses
    if progress.problems:
        said = "; ".join([*progress.problems, *progress.passing])
        return Reconciliation("Error", said, known, (), done, warnings)
    if progress.passing:
        said = f"the API server refuses for now: {'; '.join(progress.passing)}"
        return Reconciliation("Processing", said, known, (), done, warnings, passing=True)
    waiting = [
        *progress.waiting,
        *([f"waiting for Cilium to give {' and '.join(missing)}{pending}"] if missing else []),
    ]
    if waiting:
        return Reconciliation("Processing", "; ".join(waiting), (), (), done, warnings)
    return Reconciliation(
        "Succeeded", f"the API server is exposed at {', '.join(addresses)}", addresses, (), done, warnings
    )


def _apply_all(
    client: Client, exposure: Exposure, manifests: Sequence[Manifest], before: Manifest | None, progress: _Progress
) -> tuple[Manifest | None, Manifest | None]:
    """Apply all manifests; return the Service and the pool.

    A change that cannot be made whole must not take a working exposure down. So where anything was refused, or has to
    go first, the Service is not made anew, and the pool keeps its addresses with it; and where the pool was, the
    Service asks for no others.
    """
    service, pool = before, None
    anew = before is not None and fixed_field(before, manifests[-1]) is not None
    for manifest in manifests:
        kind = manifest["kind"]
        if before is not None and (
            (progress.blocked and anew and kind in {"CiliumLoadBalancerIPPool", "Service"})
            or (kind == "Service" and "CiliumLoadBalancerIPPool" in progress.blocked)
        ):
            progress.stays(manifest)
            continue
        made = progress.apply(client, manifest, exposure.labels)
        if kind == "Service":
            service = made
        elif kind == "CiliumLoadBalancerIPPool":
            pool = made
    return service, pool


def _only_endpoints(
    client: Client,
    exposure: Exposure,
    slices: Mapping[Family, Sequence[tuple[str, str]]],
    before: Manifest | None,
    progress: _Progress,
    error: UnsupportedError,
) -> Reconciliation:
    """Have what is exposed already follow the nodes, though this Cilium cannot do all that is wanted."""
    if before is not None:
        there = before["spec"].get("ipFamilies") or ()
        for family, found in slices.items():
            if found and family_word(family) in there:
                progress.apply(client, endpoint_slice(exposure, family, found), exposure.labels)
    codes = () if isinstance(error, NotServed) else (_CONFIGURATION,)
    said = "; ".join([str(error), *progress.problems, *progress.passing])
    return Reconciliation("Error", said, codes=codes, objects=tuple(progress.objects))


def _slices(
    client: Client, exposure: Exposure, nodes: Sequence[Manifest], progress: _Progress
) -> dict[Family, Sequence[tuple[str, str]]]:
    """Return the endpoints to write for each family; an empty list leaves what is there as it is."""
    choice = choose(exposure, nodes)
    left_out = ", ".join(f"{node}: {reason}" for node, reason in choice.left_out)
    found: dict[Family, Sequence[tuple[str, str]]] = dict(targets(exposure, choice.endpoints))
    for family, endpoints in found.items():
        if endpoints:
            continue
        why = "no healthy control-plane node" if not choice.endpoints else "no healthy node has an InternalIP"
        last = _last_good(client, exposure, family)
        if last is None:
            found[family] = targets(exposure, exposure.endpoints)[family]
        elif {each.get("port") for each in last.get("ports") or ()} != {exposure.port}:
            # The endpoints stay, but the API server is at another port.
            found[family] = _targets_of(last)
        stays = "the endpoints stay as they are" if last else "those of the manifest are used"
        stays = stays if last or found[family] else "there is nothing to send to"
        progress.problems.append(f"{family_word(family)}: {why}{f' ({left_out})' if left_out else ''}; {stays}")
    return found


def _last_good(client: Client, exposure: Exposure, family: Family) -> Manifest | None:
    """Return the slice of the family if it is ours and has endpoints."""
    name = slice_name(exposure, family)
    found = client.get(path_of("discovery.k8s.io/v1", "endpointslices", exposure.namespace, name))
    good = found is not None and is_ours(found, exposure.labels) and bool(found.get("endpoints"))
    return found if good else None


def _targets_of(found: Manifest) -> tuple[tuple[str, str], ...]:
    """Return the endpoints of a slice."""
    return tuple(
        (each["nodeName"], address)
        for each in found["endpoints"]
        if each.get("nodeName")
        for address in each["addresses"]
    )


def addresses_of(exposure: Exposure, service: Mapping[str, Any] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the Service's addresses of the wanted families, and which of them are missing, in words.

    Fixed addresses must be there themselves: what Cilium gave before they were changed does not count.
    """
    ingress = (((service or {}).get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    given = [str(ipaddress.ip_address(each["ip"])) for each in ingress if each.get("ip")]
    addresses: list[str] = []
    missing: list[str] = []
    for family in exposure.config.families:
        fixed = exposure.config.fixed(family)
        found = [each for each in given if family_of(each) is family and (not fixed or each in fixed)]
        addresses += found
        if not found:
            missing.append(f"an {family_word(family)} address")
        elif lacking := [each for each in fixed if each not in found]:
            missing.append(", ".join(lacking))
    return tuple(addresses), tuple(missing)


def conditions_of(
    service: Mapping[str, Any] | None, pool: Mapping[str, Any] | None, missing: bool
) -> tuple[list[str], str]:
    """Return what Cilium refuses for good, and what it says while it has not given all addresses."""
    refused: list[str] = []
    for each in ((pool or {}).get("status") or {}).get("conditions") or ():
        conflict = str(each.get("type", "")).lower().replace("-", "") == "cilium.io/poolconflict"
        if conflict and each.get("status") == "True":
            refused.append(f"Cilium says that the pool is in conflict with another: {each.get('message')}")
    pending = ""
    for each in ((service or {}).get("status") or {}).get("conditions") or ():
        name = str(each.get("type", "")).replace("-", "").lower()
        if name.endswith("requestsatisfied") and each.get("status") == "False" and missing:
            said = f"{each.get('reason')}: {each.get('message')}"
            if str(each.get("reason", "")) in _PASSING:
                pending = f" ({said})"
            else:
                refused.append(f"Cilium gives no address, {said}")
    return refused, pending


def owned_objects(
    client: Client, apis: Apis, labels: Mapping[str, str], namespace: str
) -> Iterable[tuple[Manifest, bool]]:
    """Yield all objects that have an exposure's labels, in the order of a removal, each with whether it is ours."""
    for kind in RESOURCES:
        for found in _labelled(client, apis, kind, labels, namespace):
            yield found, is_ours(found, labels)


def _labelled(client: Client, apis: Apis, kind: str, labels: Mapping[str, str], namespace: str) -> list[Manifest]:
    """Return the objects of a kind with the labels, or all; of one that discovery does not name, too."""
    resource = RESOURCES[kind]
    where = (apis.namespace if kind == "CiliumNodeConfig" else namespace) if resource.namespaced else None
    for version in (apis.versions[kind],) if kind in apis.versions else resource.versions:
        if found := client.list(path_of(version, resource.plural, where), labels):
            return found
    return []


def _belonging(client: Client, apis: Apis, kind: str, labels: Mapping[str, str], namespace: str) -> list[Manifest]:
    """Return the objects of a kind that have an exposure's labels, or one of its names: labels can be overwritten."""
    names = re.compile(names_of(kind, labels[EXPOSURE_LABEL], namespace))
    return [
        each
        for each in _labelled(client, apis, kind, {}, namespace)
        if labels.items() <= (each["metadata"].get("labels") or {}).items()
        or names.fullmatch(each["metadata"]["name"])
    ]


def _prune(
    client: Client, exposure: Exposure, apis: Apis, manifests: Sequence[Manifest], progress: _Progress
) -> None:
    """Remove what an earlier manifest of the exposure wanted and this one does not."""
    wanted = {path_to(each) for each in manifests}
    # A slice that is not written now is not unwanted: its last endpoints stay.
    for family in exposure.config.families:
        wanted.add(path_of("discovery.k8s.io/v1", "endpointslices", exposure.namespace, slice_name(exposure, family)))
    for found, ours in owned_objects(client, apis, exposure.labels, exposure.namespace):
        if ours and path_to(found) not in wanted and not found["metadata"].get("deletionTimestamp"):
            try:
                client.delete(path_to(found), found["metadata"]["uid"])
            except ApiError as error:
                progress.refuse(found, error)
            else:
                progress.objects.append(ObjectState(object_title(found), "removed"))


def take_down(
    client: Client, apis: Apis, labels: Mapping[str, str], namespace: str, *, in_order: bool = True
) -> Removal:
    """Remove all objects of an exposure, as far as it can be now: a kind only when those before it have gone.

    The Service goes first, so that Cilium withdraws the address before it loses what belongs to it; without
    `in_order` nothing waits for what does not go. What an exposure has is found by its labels, so what an earlier
    manifest wanted goes too; what has only its names is told. Raises Unreachable and ApiError.
    """
    removed: list[str] = []
    waiting: list[str] = []
    kept: list[str] = []
    going: list[str] = []
    for kind in RESOURCES:
        for found in _belonging(client, apis, kind, labels, namespace):
            if not is_ours(found, labels):
                kept.append(object_title(found))
                continue
            if not found["metadata"].get("deletionTimestamp"):
                client.delete(path_to(found), found["metadata"]["uid"])
            left = client.get(path_to(found))
            if left is not None and left["metadata"]["uid"] == found["metadata"]["uid"]:
                going.append(object_title(found))
                finalizers = ", ".join(left["metadata"].get("finalizers") or ())
                waiting.append(f"{object_title(found)} to go{f' (held by {finalizers})' if finalizers else ''}")
            else:
                removed.append(object_title(found))
        if waiting and in_order:
            break
    return Removal(tuple(removed), tuple(waiting), tuple(kept), tuple(going))


def is_passing(error: FirewallCleanupError) -> bool:
    """Tell whether an error is the API server's state at the moment, not ours to solve."""
    return not isinstance(error, ApiError) or error.code >= 500 or error.code in {409, 429}
