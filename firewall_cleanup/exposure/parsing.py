"""A SelfHostedShootExposure manifest becomes an Exposure, or an error that names the field."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..model import Family
from .addresses import host_of, is_host, is_service_name, plain_address, why_unusable
from .documents import read_file
from .fields import DNS_LABEL, DNS_SUBDOMAIN, Field, ManifestError, shown
from .values import (
    Announce,
    BgpPeer,
    BgpSettings,
    Endpoint,
    EndpointAddress,
    EndpointSource,
    Exposure,
    IpRange,
    ProviderConfig,
    family_of,
    family_word,
    resource_name,
)

__all__ = ["API_VERSION", "DEFAULT_NAMESPACE", "KIND", "TYPE", "can_have_objects", "parse", "read_manifest"]

API_VERSION = "extensions.gardener.cloud/v1alpha1"
KIND = "SelfHostedShootExposure"
TYPE = "cilium"
"""The `spec.type` that is ours."""
DEFAULT_NAMESPACE = "kube-system"

_SPEC = ("type", "class", "providerConfig", "credentialsRef", "port", "endpoints")
_CONFIG = (
    "addresses",
    "announce",
    "apiServerURLs",
    "apiVersion",
    "bgp",
    "endpoints",
    "interfaces",
    "ipFamilies",
    "ipFamilyPolicy",
    "kind",
    "nodeSelector",
    "pool",
    "ranges",
)
_IP_TYPES = ("InternalIP", "ExternalIP")
_NAME_TYPES = ("Hostname", "InternalDNS", "ExternalDNS")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_URL = re.compile(r"https?://[^/\s,?#@]+/?")


def read_manifest(file: str | Path, namespace: str | None = None) -> Exposure:
    """Read the exposure in a file, `-` for the standard input; the file may hold other objects beside it.

    `namespace` is as in `parse`. Raises ManifestError if it cannot be read, or does not hold exactly one.
    """
    found = [each for each in read_file(file) if isinstance(each, dict) and each.get("kind") == KIND]
    if len(found) != 1:
        source = "standard input" if str(file) == "-" else file
        raise ManifestError("", f"{source}: it must hold one {KIND}, not {len(found)}")
    return parse(found[0], strict=True, namespace=namespace)


def parse(document: Any, *, strict: bool = False, namespace: str | None = None) -> Exposure:
    """Return the exposure that a manifest describes.

    `namespace` is where it is if it does not say so itself; if it says another, that is an error.

    `strict` refuses fields of `spec` that are not known, as for a file that a person wrote; an object of the API may
    have some of a newer release. What is not known in `spec.providerConfig` is always refused, as it is read by
    nobody else. Raises ManifestError.
    """
    top = Field(document)
    top.mapping()
    top.get("apiVersion").one_of([API_VERSION])
    top.get("kind").one_of([KIND])
    metadata, spec = top.get("metadata"), top.get("spec")
    metadata.mapping()
    spec.mapping(_SPEC if strict else None)
    name = metadata.get("name").text(DNS_SUBDOMAIN, "a DNS name in lower case")
    if not can_have_objects(name):
        raise metadata.get("name").error(
            f"{resource_name(name)!r} is to be the name of a Service: at most 49 characters of yours, no dots"
        )
    spec.get("type").one_of([TYPE])
    if class_name := spec.get("class").optional():
        class_name.text()
    port = spec.get("port").integer(1, 65535)
    found = Exposure(
        name=name,
        namespace=_namespace(metadata.get("namespace"), namespace),
        port=port,
        endpoints=_endpoints(spec.get("endpoints")),
        config=_config(spec.get("providerConfig"), port),
    )
    _apart(spec.get("providerConfig"), found)
    return found


def _namespace(field: Field, asked: str | None) -> str:
    if field.value is None:
        return asked or DEFAULT_NAMESPACE
    found = field.text(DNS_LABEL, "a DNS label in lower case")
    if asked not in {None, found}:
        raise field.error(f"it is {found}, but --namespace says {asked}")
    return found


def can_have_objects(name: str) -> bool:
    """Tell whether an exposure of this name can have a Service, and slices with names five characters longer."""
    return DNS_LABEL.fullmatch(resource_name(name)) is not None and len(resource_name(name)) <= 58


def _endpoints(field: Field) -> tuple[Endpoint, ...]:
    found: dict[str, Endpoint] = {}
    for item in field.items():
        item.mapping(("nodeName", "addresses"))
        node = item.get("nodeName").text(DNS_SUBDOMAIN, "the name of a node")
        if node in found:
            raise item.get("nodeName").error(f"the node {node} is given twice")
        found[node] = Endpoint(node, tuple(_address(each) for each in item.get("addresses").items()))
        if not found[node].addresses:
            raise item.get("addresses").error("must not be empty")
    if not found:
        raise field.error("must not be empty: it names the control-plane nodes")
    return tuple(found.values())


def _address(field: Field) -> EndpointAddress:
    field.mapping(("type", "address"))
    kind = field.get("type").one_of([*_IP_TYPES, *_NAME_TYPES])
    address = field.get("address")
    if kind not in _IP_TYPES:
        return EndpointAddress(kind, address.text(DNS_SUBDOMAIN, "a host name"))
    return EndpointAddress(kind, _usable(address) if kind == "InternalIP" else address.address())


def _usable(field: Field) -> str:
    """Return an address that packets can be sent to from elsewhere."""
    found = field.address()
    if why := why_unusable(found):
        raise field.error(f"{found} {why}: it cannot be reached from elsewhere")
    return found


def _fixed(field: Field) -> str:
    found = _usable(field)
    if plain_address(found) != found:
        raise field.error(f"{found} is an IPv4 address written as IPv6: write {plain_address(found)}")
    return found


def _config(field: Field, port: int) -> ProviderConfig:
    field.mapping(_CONFIG)
    addresses = _texts(field.get("addresses"), _fixed)
    ranges = tuple(_range(each) for each in _list(field.get("ranges")))
    families = _families(field.get("ipFamilies"))
    announce = field.get("announce").optional()
    pool = field.get("pool").optional()
    endpoints = field.get("endpoints").optional()
    urls = field.get("apiServerURLs").optional()
    config = ProviderConfig(
        families=families,
        announce=Announce(announce.one_of(each.value for each in Announce)) if announce else Announce.L2,
        addresses=addresses,
        ranges=ranges,
        pool=pool.boolean() if pool else True,
        policy=_policy(field.get("ipFamilyPolicy"), families),
        interfaces=_texts(field.get("interfaces"), Field.text),
        bgp=_bgp(field.get("bgp")),
        api_server_urls=_texts(urls, _url) if urls else (f"https://localhost:{port}",),
        endpoints=EndpointSource(endpoints.one_of(each.value for each in EndpointSource))
        if endpoints
        else EndpointSource.SPEC,
        **({"node_selector": _selector(selector)} if (selector := field.get("nodeSelector").optional()) else {}),
    )
    _consistent(field, config)
    return config


def _consistent(field: Field, config: ProviderConfig) -> None:
    """Refuse what each field allows and all together do not."""
    for index, address in enumerate(config.addresses):
        if family_of(address) not in config.families:
            raise Field(None, f"{field.path}.addresses[{index}]").error(
                f"{address} is {family_word(family_of(address))}, which ipFamilies does not have"
            )
        same = [each for each in config.ranges if each.family is family_of(address)]
        if same and not any(address in each for each in same):
            raise Field(None, f"{field.path}.addresses[{index}]").error(f"{address} is in none of the ranges")
    for index, block in enumerate(config.ranges):
        if block.family not in config.families:
            raise Field(None, f"{field.path}.ranges[{index}]").error(
                f"it is {family_word(block.family)}, which ipFamilies does not have"
            )
    if config.ranges and not config.pool:
        raise field.get("ranges").error("there is no pool to put them in, as pool is false")
    for family in config.families if config.pool else ():
        if not config.fixed(family) and not any(block.family is family for block in config.ranges):
            raise field.get("addresses").error(
                f"there is no {family_word(family)} address, and none in ranges;"
                f" give one, or leave {family_word(family)} out of ipFamilies"
            )
    fixed = [family_word(family) for family in config.families if config.fixed(family)]
    if config.addresses and len(fixed) < len(config.families):
        raise field.get("addresses").error(
            f"there is one of {fixed[0]} only: Cilium gives a Service that asks for addresses these and no others;"
            " name one of each family, or none and give ranges"
        )
    if config.announce is Announce.BGP and config.interfaces:
        raise field.get("interfaces").error("it is for announce: l2")
    if config.announce is Announce.L2 and config.bgp != BgpSettings():
        raise field.get("bgp").error("it is for announce: bgp")


def _apart(field: Field, exposure: Exposure) -> None:
    """Refuse what would have the exposure lead to itself: node addresses that it takes, URLs that are its own."""
    config = exposure.config
    for endpoint in exposure.endpoints:
        for address in (plain_address(each.address) for each in endpoint.addresses if each.type == "InternalIP"):
            node = f"the node {endpoint.node}"
            if address in config.addresses:
                path = f"{field.path}.addresses[{config.addresses.index(address)}]"
                raise Field(None, path).error(f"{address} is the InternalIP of {node}")
            for index, block in enumerate(config.ranges):
                if address in block and not config.addresses:
                    where = Field(None, f"{field.path}.ranges[{index}]")
                    raise where.error(f"Cilium may give {address} of it, which is the InternalIP of {node}")
    for index, url in enumerate(config.api_server_urls):
        host = host_of(url)
        try:
            ip = plain_address(host)
            own = ip in config.addresses or any(ip in block for block in config.ranges)
        except ValueError:
            own = is_service_name(host, exposure.service, exposure.namespace)
        if own:
            raise Field(None, f"{field.path}.apiServerURLs[{index}]").error(
                f"{host} is the exposure's own: Cilium would need the address that it serves to reach the API server"
            )


def _list(field: Field) -> list[Field]:
    return [] if field.value is None else list(field.items())


def _texts(field: Field, read: Any) -> tuple[str, ...]:
    found: list[str] = []
    for item in _list(field):
        value = read(item)
        if value in found:
            raise item.error(f"{value} is given twice")
        found.append(value)
    return tuple(found)


def _families(field: Field) -> tuple[Family, ...]:
    if field.value is None:
        return (Family.IPV4, Family.IPV6)
    words = {family_word(family): family for family in Family}
    found = _texts(field, lambda item: item.one_of(words))
    if not found:
        raise field.error("must not be empty")
    return tuple(words[word] for word in found)


def _policy(field: Field, families: tuple[Family, ...]) -> str:
    default = "RequireDualStack" if len(families) == 2 else "SingleStack"
    if field.value is None:
        return default
    policy = field.one_of(["SingleStack", "PreferDualStack", "RequireDualStack"])
    if (policy == "SingleStack") != (len(families) == 1):
        raise field.error(f"{policy} does not go with {len(families)} ipFamilies")
    return policy


def _range(field: Field) -> IpRange:
    text = field.text()
    try:
        if "-" in text:
            start, stop = (ipaddress.ip_address(part.strip()) for part in text.split("-"))
            # Raises if the two are of different families, or the wrong way round.
            next(ipaddress.summarize_address_range(start, stop))
            found = IpRange(str(start), str(stop))
        else:
            network = ipaddress.ip_network(text)
            found = IpRange(str(network[0]), str(network[-1]), str(network))
    except (ValueError, TypeError) as error:
        raise field.error(
            f"must be a network (192.0.2.0/28) or a range (192.0.2.10-192.0.2.20), not {shown(text, 80)} ({error})"
        ) from None
    for address in (found.start, found.stop):
        if why := why_unusable(address):
            raise field.error(f"{address} {why}: it cannot be reached from elsewhere")
    return found


def _url(field: Field) -> str:
    what = "the URL of an API server, as https://localhost:443"
    found = field.text(_URL, what).rstrip("/")
    try:
        parts = urlsplit(found)
        good = is_host(parts.hostname or "") and parts.port != 0
    except ValueError:  # of brackets, of the port
        good = False
    if not good:
        raise field.error(f"must be {what}, not {shown(found, 80)}")
    return found


def _selector(field: Field) -> Mapping[str, Any]:
    found = field.mapping(("matchLabels", "matchExpressions"))
    labels = field.get("matchLabels")
    for key in labels.mapping() if labels.optional() else {}:
        value = labels.get(key)
        if not _LABEL_VALUE.fullmatch(value.value if isinstance(value.value, str) else value.text()):
            raise value.error("must be the value of a label")
    for item in _list(field.get("matchExpressions")):
        item.mapping(("key", "operator", "values"))
        item.get("key").text()
        operator = item.get("operator").one_of(["In", "NotIn", "Exists", "DoesNotExist"])
        values = _texts(item.get("values"), Field.text)
        if bool(values) != (operator in {"In", "NotIn"}):
            raise item.get("values").error(f"{operator} goes with {'some' if not values else 'no'} values")
    return dict(found)


def _bgp(field: Field) -> BgpSettings:
    if field.value is None:
        return BgpSettings()
    field.mapping(("localASN", "peers", "authSecret", "ebgpMultihop"))
    peers: dict[str, BgpPeer] = {}
    for item in _list(field.get("peers")):
        item.mapping(("address", "asn", "port"))
        address, port = item.get("address").address(), item.get("port")
        if address in peers:
            raise item.get("address").error(f"{address} is given twice")
        number = port.integer(1, 65535) if port.optional() else 179
        peers[address] = BgpPeer(address, item.get("asn").integer(1, 4294967295), number)
    asn, secret, hops = (field.get(key) for key in ("localASN", "authSecret", "ebgpMultihop"))
    if not peers:
        for each in (asn, secret, hops):
            if each.optional():
                raise each.error("it goes with peers")
        return BgpSettings()
    return BgpSettings(
        local_asn=asn.integer(1, 4294967295),
        peers=tuple(peers.values()),
        auth_secret=secret.text(DNS_SUBDOMAIN, "the name of a Secret") if secret.optional() else None,
        ebgp_multihop=hops.integer(1, 255) if hops.optional() else 1,
    )
