"""A SelfHostedShootExposure manifest becomes an Exposure, or an error that names the field."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..model import Family
from .fields import DNS_LABEL, DNS_SUBDOMAIN, Field, ManifestError
from .values import (
    Announce,
    BgpPeer,
    BgpSettings,
    Endpoint,
    EndpointSource,
    Exposure,
    IpRange,
    NodeAddress,
    ProviderConfig,
    family_of,
    family_word,
    resource_name,
)

__all__ = ["API_VERSION", "KIND", "TYPE", "can_have_objects", "parse", "read_documents", "read_manifest"]

API_VERSION = "extensions.gardener.cloud/v1alpha1"
KIND = "SelfHostedShootExposure"
TYPE = "cilium"
"""The `spec.type` that is ours."""

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
_URL = re.compile(r"https?://[^/\s]+/?")


@functools.cache
def _loader() -> Any:
    """Return PyYAML's safe loader, but with a key that is given twice as an error."""
    import yaml  # noqa: PLC0415 - of the extra; who only builds does without

    class Loader(yaml.SafeLoader):
        """For documents that people write."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                said = f"the key {key.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
            seen.add(str(key.value))
        return loader.construct_mapping(node, deep=True)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    return Loader


def read_documents(text: str, source: str) -> list[Any]:
    """Return the YAML documents of a text that are not empty.

    Raises ManifestError if it is no YAML; the text of the error has `source` and the line.
    """
    import yaml  # noqa: PLC0415 - as above

    try:
        return [document for document in yaml.load_all(text, _loader()) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark else source
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ManifestError("", f"{where}: this is no YAML: {problem}") from None
    except RecursionError:
        raise ManifestError("", f"{source}: it is nested too deeply") from None


def read_manifest(file: str | Path) -> Exposure:
    """Read the exposure in a file, `-` for the standard input; the file may hold other objects beside it.

    Raises ManifestError if it cannot be read, or does not hold exactly one.
    """
    source = "standard input" if str(file) == "-" else str(file)
    try:
        text = Path("/dev/stdin" if str(file) == "-" else file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ManifestError("", f"{source}: {reason}") from None
    documents = read_documents(text, source)
    found = [document for document in documents if isinstance(document, dict) and document.get("kind") == KIND]
    if len(found) != 1:
        raise ManifestError("", f"{source}: it must hold one {KIND}, not {len(found)}")
    return parse(found[0], strict=True)


def parse(document: Any, *, strict: bool = False) -> Exposure:
    """Return the exposure that a manifest describes.

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
    namespace = metadata.get("namespace").optional()
    spec.get("type").one_of([TYPE])
    class_name = spec.get("class").optional()
    port = spec.get("port").integer(1, 65535)
    return Exposure(
        name=name,
        namespace=namespace.text(DNS_LABEL, "a DNS label in lower case") if namespace else "kube-system",
        port=port,
        endpoints=_endpoints(spec.get("endpoints")),
        config=_config(spec.get("providerConfig"), port),
        class_name=class_name.text() if class_name else "shoot",
    )


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


def _address(field: Field) -> NodeAddress:
    field.mapping(("type", "address"))
    kind = field.get("type").one_of([*_IP_TYPES, *_NAME_TYPES])
    address = field.get("address")
    return NodeAddress(kind, address.address() if kind in _IP_TYPES else address.text(DNS_SUBDOMAIN, "a host name"))


def _config(field: Field, port: int) -> ProviderConfig:
    field.mapping(_CONFIG)
    addresses = _texts(field.get("addresses"), Field.address)
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
    if config.announce is Announce.BGP and config.interfaces:
        raise field.get("interfaces").error("it is for announce: l2")
    if config.announce is Announce.L2 and config.bgp != BgpSettings():
        raise field.get("bgp").error("it is for announce: bgp")


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
            return IpRange(str(start), str(stop))
        network = ipaddress.ip_network(text)
    except (ValueError, TypeError) as error:
        raise field.error(
            f"must be a network (192.0.2.0/28) or a range (192.0.2.10-192.0.2.20), not {text!r:.80} ({error})"
        ) from None
    return IpRange(str(network[0]), str(network[-1]), str(network))


def _url(field: Field) -> str:
    return field.text(_URL, "the URL of an API server, as https://localhost:443").rstrip("/")


def _selector(field: Field) -> Mapping[str, Any]:
    found = field.mapping(("matchLabels", "matchExpressions"))
    labels = field.get("matchLabels")
    for key in labels.mapping() if labels.optional() else {}:
        if not _LABEL_VALUE.fullmatch(str(labels.get(key).value)):
            raise labels.get(key).error("must be the value of a label")
        if not isinstance(labels.get(key).value, str):
            labels.get(key).text()
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
