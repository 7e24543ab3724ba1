"""A manifest is an exposure, or an error that names the field."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from exposures import NODES, endpoint, exposure, manifest

from firewall_cleanup import Family
from firewall_cleanup.exposure import (
    Announce,
    Apis,
    BgpPeer,
    CiliumVersion,
    IpRange,
    ManifestError,
    build,
    parse,
    read_manifest,
)

V4, V6 = Family.IPV4, Family.IPV6


def changed(path: str, value: object, base: dict[str, Any] | None = None) -> dict[str, Any]:
    """The manifest with one field set (None: removed)."""
    found = copy.deepcopy(base or manifest())
    *steps, last = path.split(".")
    place: Any = found
    for step in steps:
        place = place[int(step)] if step.isdigit() else place.setdefault(step, {})
    if value is None:
        del place[last]
    else:
        place[int(last) if last.isdigit() else last] = value
    return found


def test_all_fields() -> None:
    found = exposure()
    assert (found.name, found.namespace, found.port) == ("root", "kube-system", 443)
    assert [each.node for each in found.endpoints] == list(NODES)
    assert found.endpoints[0].internal(V4) == ("10.0.1.11",)
    assert found.endpoints[0].internal(V6) == ("fd00:1::11",)
    assert found.config.families == (V4, V6)
    assert found.config.policy == "RequireDualStack"
    assert found.config.fixed(V6) == ("2001:db8::10",)
    assert found.config.api_server_urls == ("https://localhost:443",)
    assert found.config.announce is Announce.L2


@pytest.mark.parametrize("families", ["ipv4", "ipv6"])
def test_one_family(families: str) -> None:
    found = exposure(families)
    assert found.config.families == ((V4,) if families == "ipv4" else (V6,))
    assert found.config.policy == "SingleStack"


def test_both_families_are_the_default() -> None:
    assert exposure(ipFamilies=None).config.families == (V4, V6)
    with pytest.raises(ManifestError, match=r"^spec.providerConfig.addresses: there is no IPv6 address"):
        exposure(ipFamilies=None, addresses=["192.0.2.1"])


def test_ranges_and_bgp() -> None:
    found = exposure(
        addresses=None,
        ranges=["192.0.2.0/28", "2001:db8::1 - 2001:db8::ff"],
        announce="bgp",
        bgp={
            "localASN": 65000,
            "peers": [{"address": "FD00::1", "asn": 65001}, {"address": "10.0.0.1", "asn": 1, "port": 1790}],
        },
    )
    assert found.config.ranges == (
        IpRange("192.0.2.0", "192.0.2.15", "192.0.2.0/28"),
        IpRange("2001:db8::1", "2001:db8::ff"),
    )
    assert found.config.bgp.peers == (BgpPeer("fd00::1", 65001), BgpPeer("10.0.0.1", 1, 1790))


def test_ranges_of_one_family_and_addresses_of_both() -> None:
    found = exposure(ranges=["2001:db8::/64"])
    [pool] = [each for each in build(found, Apis.of_version(CiliumVersion(1, 19))) if each["kind"].endswith("Pool")]
    assert pool["spec"]["blocks"] == [{"cidr": "2001:db8::/64"}, {"start": "192.0.2.10"}]


def test_a_fixed_address_of_one_family_and_a_range_of_the_other_is_refused() -> None:
    """Cilium gives a Service that asks for addresses these and no others: it would wait for ever."""
    for pool in (True, False):
        with pytest.raises(ManifestError, match=r"^spec.providerConfig.addresses: there is one of IPv4 only"):
            exposure(addresses=["192.0.2.10"], ranges=["2001:db8::/64"] if pool else None, pool=pool)


def test_a_range_must_not_hold_a_node_unless_the_address_is_fixed() -> None:
    ranges = ["10.0.1.0/24", "2001:db8::/64"]
    with pytest.raises(ManifestError, match=r"ranges\[0\]: Cilium may give 10.0.1.11 of it, .* of the node cp-1"):
        exposure(addresses=None, ranges=ranges)
    exposure(addresses=["10.0.1.1", "2001:db8::10"], ranges=ranges)


def test_an_url_in_the_ranges_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"apiServerURLs\[0\]: 192.0.2.77 is the exposure's own"):
        exposure(ranges=["192.0.2.0/24"], apiServerURLs=["https://192.0.2.77"])


CONFIG = "spec.providerConfig"


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        ("apiVersion", "v1", "apiVersion: must be extensions.gardener.cloud/v1alpha1, not 'v1'"),
        ("metadata", None, "metadata: is missing"),
        ("metadata.name", "Root", "metadata.name: must be a DNS name in lower case"),
        ("metadata.name", "a" * 60, "metadata.name: 'exposure-a"),
        ("metadata.name", "a.b", "metadata.name: 'exposure-a.b' is to be the name of a Service"),
        ("metadata.namespace", "a/b", "metadata.namespace: must be a DNS label"),
        ("spec", None, "spec: is missing"),
        ("spec.type", "local", "spec.type: must be cilium, not 'local'"),
        ("spec.port", 0, "spec.port: must be between 1 and 65535, not 0"),
        ("spec.port", "443", "spec.port: must be a whole number, not '443'"),
        ("spec.port", True, "spec.port: must be a whole number, not True"),
        ("spec.prot", 1, "spec.prot: is not known"),
        ("spec.endpoints", None, "spec.endpoints: is missing; it must be a list"),
        ("spec.endpoints", [], "spec.endpoints: must not be empty"),
        (
            "spec.endpoints.1",
            endpoint("cp-1", "10.0.0.9"),
            r"spec.endpoints\[1\].nodeName: the node cp-1 is given twice",
        ),
        ("spec.endpoints.0.nodeName", None, r"spec.endpoints\[0\].nodeName: is missing"),
        ("spec.endpoints.0.addresses", [], r"spec.endpoints\[0\].addresses: must not be empty"),
        (
            "spec.endpoints.0.addresses.0.type",
            "IP",
            r"spec.endpoints\[0\].addresses\[0\].type: must be InternalIP or",
        ),
        (
            "spec.endpoints.0.addresses.0.address",
            "10.0.1",
            r"spec.endpoints\[0\].addresses\[0\].address: must be an IP",
        ),
        (
            "spec.endpoints.0.addresses.0.address",
            "fe80::1%eth0",
            r"\[0\].address: must be an IP address without a zone",
        ),
        (
            "spec.endpoints.0.addresses.2.address",
            "a b",
            r"spec.endpoints\[0\].addresses\[2\].address: must be a host name",
        ),
        (CONFIG, None, f"{CONFIG}: is missing; it must be a mapping"),
        (f"{CONFIG}.adresses", [], f"{CONFIG}.adresses: is not known; known are addresses, announce"),
        (f"{CONFIG}.addresses.0", 1.5, rf"{CONFIG}.addresses\[0\]: must be a text, not 1.5; put it in quotes"),
        (f"{CONFIG}.addresses.0", "192.0.2.10/32", rf"{CONFIG}.addresses\[0\]: must be an IP address"),
        (f"{CONFIG}.addresses", ["fd00::1", "fd00:0::1"], rf"{CONFIG}.addresses\[1\]: fd00::1 is given twice"),
        (f"{CONFIG}.announce", "arp", f"{CONFIG}.announce: must be l2 or bgp, not 'arp'"),
        (
            f"{CONFIG}.ipFamilies",
            ["IPv4"],
            rf"{CONFIG}.addresses\[1\]: 2001:db8::10 is IPv6, which ipFamilies does not",
        ),
        (f"{CONFIG}.ipFamilies", ["ipv4"], rf"{CONFIG}.ipFamilies\[0\]: must be IPv4 or IPv6, not 'ipv4'"),
        (f"{CONFIG}.ipFamilies", [], f"{CONFIG}.ipFamilies: must not be empty"),
        (f"{CONFIG}.ipFamilyPolicy", "SingleStack", f"{CONFIG}.ipFamilyPolicy: SingleStack does not go with 2"),
        (f"{CONFIG}.ranges", ["192.0.2.1/24"], rf"{CONFIG}.ranges\[0\]: must be a network"),
        (f"{CONFIG}.ranges", ["192.0.2.9-192.0.2.1"], rf"{CONFIG}.ranges\[0\]: must be a network"),
        (f"{CONFIG}.ranges", ["192.0.2.9-2001:db8::1"], rf"{CONFIG}.ranges\[0\]: must be a network"),
        (f"{CONFIG}.ranges", ["198.51.100.0/24"], rf"{CONFIG}.addresses\[0\]: 192.0.2.10 is in none of the ranges"),
        (f"{CONFIG}.ranges", ["127.0.0.0/8"], rf"{CONFIG}.ranges\[0\]: 127.0.0.0 is a loopback address"),
        (f"{CONFIG}.ranges", ["fe80::1%a-fe80::9"], rf"{CONFIG}.ranges\[0\]: fe80::1%a has a zone"),
        ("spec.class", 1, "spec.class: must be a text"),
        (
            "spec.endpoints.0.addresses.0.address",
            "127.0.0.1",
            r"spec.endpoints\[0\].addresses\[0\].address: 127.0.0.1 is a loopback address",
        ),
        (f"{CONFIG}.addresses.0", "0.0.0.0", rf"{CONFIG}.addresses\[0\]: 0.0.0.0 is unspecified"),
        (f"{CONFIG}.addresses.0", "0.1.2.3", rf"{CONFIG}.addresses\[0\]: 0.1.2.3 is unspecified"),
        (f"{CONFIG}.addresses.0", "127.1.2.3", rf"{CONFIG}.addresses\[0\]: 127.1.2.3 is a loopback address"),
        (f"{CONFIG}.addresses.0", "255.255.255.255", rf"{CONFIG}.addresses\[0\]: 255.255.255.255 is an address of"),
        (f"{CONFIG}.addresses.1", "ff02::1", rf"{CONFIG}.addresses\[1\]: ff02::1 is an address of many"),
        (f"{CONFIG}.addresses.1", "fe80::1", rf"{CONFIG}.addresses\[1\]: fe80::1 is a link-local address"),
        (
            f"{CONFIG}.addresses.1",
            "::ffff:192.0.2.9",
            r"\[1\]: ::ffff:.* is an IPv4 address written as IPv6: write",
        ),
        (f"{CONFIG}.addresses.1", "::ffff:127.0.0.1", r"\[1\]: ::ffff:.* is a loopback address"),
        (f"{CONFIG}.addresses.0", "10.0.1.12", rf"{CONFIG}.addresses\[0\]: 10.0.1.12 is the InternalIP of"),
        (
            f"{CONFIG}.nodeSelector",
            {"matchLabels": {"a": "-"}},
            f"{CONFIG}.nodeSelector.matchLabels.a: must be the value",
        ),
        (f"{CONFIG}.pool", "no", f"{CONFIG}.pool: must be true or false"),
        (f"{CONFIG}.bgp", {"localASN": 1}, f"{CONFIG}.bgp.localASN: it goes with peers"),
        (f"{CONFIG}.bgp", {"peers": [{"address": "::1"}]}, rf"{CONFIG}.bgp.peers\[0\].asn: is missing"),
        (
            f"{CONFIG}.bgp",
            {"peers": [{"address": "::1", "asn": 1}], "localASN": 1},
            f"{CONFIG}.bgp: it is for announce: bgp",
        ),
        (f"{CONFIG}.nodeSelector", {"matchLabel": {}}, f"{CONFIG}.nodeSelector.matchLabel: is not known"),
        (
            f"{CONFIG}.nodeSelector",
            {"matchExpressions": [{"key": "a", "operator": "In"}]},
            "In goes with some values",
        ),
        (f"{CONFIG}.nodeSelector", {"matchLabels": {"a": 1}}, f"{CONFIG}.nodeSelector.matchLabels.a: must be a text"),
        (f"{CONFIG}.apiServerURLs", ["localhost"], rf"{CONFIG}.apiServerURLs\[0\]: must be the URL of an API server"),
        (f"{CONFIG}.endpoints", "pods", f"{CONFIG}.endpoints: must be spec or nodes"),
    ],
)
def test_errors_name_the_field(path: str, value: object, error: str) -> None:
    with pytest.raises(ManifestError, match=f"^{error}" if error[0] in "ams" else error):
        parse(changed(path, value), strict=True)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "https://a,b",
            "https://[zz",
            "https://[zz]",
            "https://a b",
            "https://x?y",
            "https://user@a",
            "https://a..b",
        ),
        *("https://a:0", "https://a:65536", "https://3221225994", "https://0xc0.0.2.10", "https://[fe80::1%eth0]"),
    ],
)
def test_what_is_no_url_of_an_api_server(url: str) -> None:
    with pytest.raises(ManifestError, match=r"apiServerURLs\[0\]: must be the URL of an API server"):
        exposure(apiServerURLs=[url])


@pytest.mark.parametrize(
    "url",
    [
        *("https://192.0.2.10:443", "https://[2001:DB8::0:10]:6443/", "https://[::ffff:192.0.2.10]"),
        "https://exposure-root.kube-system.svc",
        "https://Exposure-Root.kube-system.svc.cluster.local:443",
    ],
)
def test_an_url_of_the_exposure_itself_is_refused(url: str) -> None:
    """The node configuration that is made of it would be the cycle."""
    with pytest.raises(ManifestError, match=r"apiServerURLs\[1\]: .* is the exposure's own"):
        exposure(apiServerURLs=["https://localhost:443", url])


@pytest.mark.parametrize("path", ["spec.port", "spec.type", f"{CONFIG}.nodeSelector", f"{CONFIG}.ipFamilies.0"])
def test_an_error_shows_the_beginning_of_what_is_endless(path: str) -> None:
    """YAML's aliases make gigabytes of a few lines; Python writes no number of 5000 digits."""
    huge: Any = "x"
    for _ in range(40):
        huge = [huge] * 10
    for value in (huge, {"matchLabels": {"a": huge}}, {"a": huge}, 10**5000, [10**5000], "x" * 10**6):
        with pytest.raises(ManifestError) as error:
            parse(changed(path, value), strict=True)
        assert len(str(error.value)) < 300


@pytest.mark.parametrize("document", [None, 1, "text", [], {}, {"spec": 1}, {1: 2}])
def test_what_is_no_manifest(document: object) -> None:
    with pytest.raises(ManifestError):
        parse(document)


def test_an_object_of_a_newer_api_may_have_more() -> None:
    parse(changed("spec.more", 1))
    with pytest.raises(ManifestError, match="is not known"):
        parse(changed(f"{CONFIG}.more", 1))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: [", r":1: this is no YAML|:2: this is no YAML"),
        ("a: 1\na: 2", ":2: this is no YAML: the key 'a' is given twice"),
        ("", "must hold one SelfHostedShootExposure, not 0"),
        ("[" * 1200, "nested too deeply|no YAML"),
        ("!!python/object/apply:os.system [x]", "no YAML"),
        ("\x00", "no YAML"),
        ("x: 2026-13-45", "exposure.yaml: a value cannot be read: ValueError: month must be in 1..12"),
        (f"x: {'9' * 5000}", "a value cannot be read: ValueError: Exceeds the limit"),
        ("x: !!bool foo", "a value cannot be read: KeyError"),
        ("x: !!int ''", "a value cannot be read: IndexError"),
        ("x: !!timestamp foo", "a value cannot be read: AttributeError"),
        ("? [a]\n: b", "no YAML: found unhashable key"),
    ],
)
def test_files(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "exposure.yaml"
    file.write_text(text)
    with pytest.raises(ManifestError, match=error):
        read_manifest(file)


def test_a_file_may_hold_other_objects(tmp_path: Path) -> None:
    file = tmp_path / "exposure.yaml"
    file.write_text(yaml.safe_dump_all([{"kind": "Namespace"}, manifest(), None]))
    assert read_manifest(file) == exposure()
    file.write_text(yaml.safe_dump_all([manifest(), manifest()]))
    with pytest.raises(ManifestError, match="not 2"):
        read_manifest(file)
    file.write_text(yaml.safe_dump({"kind": "List", "items": [manifest()]}))
    assert read_manifest(file) == exposure()
    with pytest.raises(ManifestError, match="No such file"):
        read_manifest(tmp_path / "nothing")
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ManifestError, match=r"codec|decode"):
        read_manifest(file)


def test_the_namespace_of_a_file_without_one() -> None:
    bare = changed("metadata.namespace", None)
    assert [parse(bare, namespace=each).namespace for each in (None, "garden")] == ["kube-system", "garden"]
    assert parse(manifest(), namespace="kube-system").namespace == "kube-system"
    with pytest.raises(ManifestError, match=r"^metadata.namespace: it is kube-system, but --namespace says garden"):
        parse(manifest(), namespace="garden")
