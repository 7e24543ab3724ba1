"""Laws of the builders: valid by schema, families consistent, port names equal, stable."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
import yaml
from exposures import manifest, validate
from hypothesis import given
from hypothesis import strategies as st

from firewall_cleanup.exposure import Apis, CiliumVersion, ManifestError, UnsupportedError, build, limits_of, parse
from firewall_cleanup.exposure.addresses import plain_address, why_unusable
from firewall_cleanup.exposure.cilium_hosts import read_settings
from firewall_cleanup.exposure.cycle import find_cycles, owned_addresses

pytestmark = pytest.mark.property

WORDS = {4: "IPv4", 6: "IPv6"}
versions = st.builds(CiliumVersion, st.just(1), st.integers(16, 21), st.none() | st.integers(0, 9))
anything = st.ip_addresses().map(str)
v4 = st.ip_addresses(v=4).map(str).filter(lambda each: why_unusable(each) is None)
v6 = st.ip_addresses(v=6).map(str).filter(lambda each: why_unusable(each) is None and plain_address(each) == each)
names = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,8})?", fullmatch=True)


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    families = draw(st.permutations(["IPv4", "IPv6"]).map(lambda both: both[:1]) | st.permutations(["IPv4", "IPv6"]))
    pick = {"IPv4": v4.filter(lambda each: each != "10.0.0.1"), "IPv6": v6}  # which is one of the URLs below
    config: dict[str, Any] = {
        "ipFamilies": families,
        "addresses": [
            each for family in families for each in draw(st.lists(pick[family], min_size=1, max_size=2, unique=True))
        ],
        "announce": draw(st.sampled_from(["l2", "bgp"])),
        "pool": draw(st.booleans()),
        "apiServerURLs": draw(
            st.sampled_from([[], ["https://localhost:443"], ["https://[::1]:443", "https://10.0.0.1"]])
        ),
    }
    if config["announce"] == "bgp" and draw(st.booleans()):
        peers = draw(st.lists(anything, min_size=1, max_size=3, unique=True))
        ports = st.sampled_from([179, 1790])
        config["bgp"] = {
            "localASN": 65000,
            "peers": [{"address": each, "asn": 1, "port": draw(ports)} for each in peers],
        }
    taken = set(config["addresses"])
    free = st.tuples(v4, v6).filter(lambda both: not taken & set(both))
    nodes = draw(st.dictionaries(names, free, min_size=1, max_size=4))
    found = manifest(name=draw(names), **config)
    found["metadata"]["namespace"] = draw(st.sampled_from(["kube-system", "garden"]))
    found["spec"]["port"] = draw(st.integers(1, 65535))
    found["spec"]["endpoints"] = [
        {"nodeName": node, "addresses": [{"type": "InternalIP", "address": each} for each in addresses]}
        for node, addresses in nodes.items()
    ]
    return found


def by_kind(made: Any, kind: str) -> list[dict[str, Any]]:
    return [each for each in made if each["kind"] == kind]


@given(manifests(), versions)
def test_what_is_built(document: dict[str, Any], version: CiliumVersion) -> None:
    exposure, apis = parse(document, strict=True), Apis.of_version(version)
    if any(finding.error for finding in limits_of(exposure, apis)):
        with pytest.raises(UnsupportedError, match=str(version)):
            build(exposure, apis)
        return
    made = build(exposure, apis)
    wanted = set(document["spec"]["providerConfig"]["ipFamilies"])

    for each in made:
        validate(each)
    assert made == build(parse(document), apis)
    assert list(yaml.safe_load_all(yaml.safe_dump_all(made))) == list(made)
    places = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in made]
    assert len(set(places)) == len(places)
    assert all(exposure.labels.items() <= each["metadata"]["labels"].items() for each in made)

    [service] = by_kind(made, "Service")
    assert made[-1] is service
    assert "selector" not in service["spec"]
    assert set(service["spec"]["ipFamilies"]) == wanted
    assert (service["spec"]["ipFamilyPolicy"] == "SingleStack") == (len(wanted) == 1)

    slices = by_kind(made, "EndpointSlice")
    assert {each["addressType"] for each in slices} == wanted
    for each in slices:
        assert each["metadata"]["labels"]["kubernetes.io/service-name"] == service["metadata"]["name"]
        assert [port["name"] for port in each["ports"]] == [port["name"] for port in service["spec"]["ports"]]
        for entry in each["endpoints"]:
            assert {WORDS[ipaddress.ip_address(ip).version] for ip in entry["addresses"]} == {each["addressType"]}
    assert len(by_kind(made, "CiliumNodeConfig")) == bool(exposure.config.api_server_urls)

    pools = by_kind(made, "CiliumLoadBalancerIPPool")
    assert len(pools) == exposure.config.pool
    for pool in pools:
        blocks = pool["spec"]["blocks"]
        assert {WORDS[ipaddress.ip_address(each["start"]).version] for each in blocks} == wanted
        assert (
            pool["spec"]["serviceSelector"]["matchLabels"]["io.kubernetes.service.name"]
            == service["metadata"]["name"]
        )


@given(manifests(), st.randoms())
def test_the_order_of_nodes_does_not_matter(document: dict[str, Any], chance: Any) -> None:
    apis = Apis.of_version(CiliumVersion(1, 19))
    made = build(parse(document), apis)
    chance.shuffle(document["spec"]["endpoints"])
    assert build(parse(document), apis) == made


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["IPv4", "::1", "10.0.0.0/8", "l2"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.just("peers"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(manifests(), st.data())
def test_nothing_crashes_the_parser(document: dict[str, Any], data: st.DataObject) -> None:
    """Any value in the place of any field is an exposure, or a ManifestError."""
    paths: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            paths.append((value, key))
            walk(value[key])

    walk(document)
    place, key = data.draw(st.sampled_from(paths))
    place[key] = data.draw(junk)
    try:
        parse(document, strict=True)
    except ManifestError as error:
        found = error.path
    else:
        found = "an exposure"
    assert found


def written(address: str, chance: Any) -> str:
    """The same address, written in one of the ways that a configuration may."""
    ip = ipaddress.ip_address(address)
    ways = [str(ip), ip.exploded, ip.exploded.upper()]
    if ip.version == 4:
        ways.append(f"::ffff:{ip}")
    url = f"[{ip.compressed}]" if ip.version == 6 else str(ip)
    return chance.choice([*ways, f"https://{url}", f"https://{url}:6443/"])


@given(manifests(), st.randoms(), anything.filter(lambda each: plain_address(each) != "10.96.0.1"))
def test_a_cycle_is_found_however_the_address_is_written(document: dict[str, Any], chance: Any, other: str) -> None:
    exposure = parse(document)
    owned = owned_addresses(exposure, cluster_ips=["10.96.0.1"])
    for address in (*exposure.config.addresses, other):
        for values in (
            {"k8sServiceHost": written(address, chance)},
            {"k8s": {"apiServerURLs": written(address, chance)}},
        ):
            report = find_cycles(read_settings([{**values, "kubeProxyReplacement": True}]), owned, lambda _name: [])
            plain = ipaddress.ip_address(address)
            mapped = getattr(plain, "ipv4_mapped", None)
            ours = str(mapped or plain) in owned.addresses
            assert {each.cycle for each in report.verdicts} == {ours}


@given(st.lists(junk, max_size=3), st.sampled_from(["DaemonSet", "ConfigMap", "CiliumNodeConfig", "Pod", None]))
def test_no_document_crashes_the_check(documents: list[Any], kind: str | None) -> None:
    shapes = [{"kind": kind, "metadata": each, "spec": each, "data": each} for each in documents]
    deeper = [{"kind": kind, "spec": {"template": {"spec": {"containers": each}}}} for each in documents]
    settings = read_settings([*documents, *shapes, *deeper])
    owned = owned_addresses(parse(manifest()))
    find_cycles(settings, owned, lambda _name: []).to_dict()
