"""Versions of Cilium, the choice of nodes, what deploys the controller, and the command without a cluster."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from exposures import endpoint, exposure, manifest, node, validate

from firewall_cleanup import Family, cli
from firewall_cleanup.exposure import (
    Apis,
    CiliumVersion,
    ManifestError,
    UnsupportedError,
    build,
    limits_of,
    parse,
    read_manifest,
)
from firewall_cleanup.exposure.builders import targets
from firewall_cleanup.exposure.capabilities import RESOURCES
from firewall_cleanup.exposure.cli import parser
from firewall_cleanup.exposure.deploy import Deployment, controller_manifests
from firewall_cleanup.exposure.nodes import choose, why_unhealthy
from firewall_cleanup.exposure.parsing import _CONFIG

V19 = Apis.of_version(CiliumVersion(1, 19))


# versions


@pytest.mark.parametrize(
    ("text", "found"), [("1.19", (1, 19, None)), ("v1.18.3", (1, 18, 3)), ("1.20.0-rc.1", (1, 20, 0))]
)
def test_versions_are_read(text: str, found: tuple[int, int, int | None]) -> None:
    assert CiliumVersion.parse(text) == CiliumVersion(*found)


@pytest.mark.parametrize("text", ["", "1", "latest", "1.19.x", "1.19\n2", "-1.2"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="no version of Cilium"):
        CiliumVersion.parse(text)


@pytest.mark.parametrize(
    ("version", "pool", "l2", "node"),
    [
        ("1.16", "cilium.io/v2alpha1", "cilium.io/v2alpha1", "cilium.io/v2"),
        ("1.17.9", "cilium.io/v2alpha1", "cilium.io/v2alpha1", "cilium.io/v2"),
        ("1.18", "cilium.io/v2", "cilium.io/v2alpha1", "cilium.io/v2"),
        ("1.20", "cilium.io/v2", "cilium.io/v2alpha1", "cilium.io/v2"),
    ],
)
def test_api_versions(version: str, pool: str, l2: str, node: str) -> None:
    apis = Apis.of_version(CiliumVersion.parse(version))
    assert apis.version_of("CiliumLoadBalancerIPPool") == apis.version_of("CiliumBGPAdvertisement") == pool
    assert apis.version_of("CiliumL2AnnouncementPolicy") == l2
    assert apis.version_of("CiliumNodeConfig") == node


def test_discovery_goes_before_tables() -> None:
    served = {"v1": ["Service"], "cilium.io/v2": ["CiliumNodeConfig"], "cilium.io/v2alpha1": list(RESOURCES)}
    apis = Apis.of_discovery(served)
    assert apis.version_of("CiliumLoadBalancerIPPool") == "cilium.io/v2alpha1"
    assert apis.version_of("CiliumNodeConfig") == "cilium.io/v2"
    with pytest.raises(UnsupportedError, match="the API server does not serve EndpointSlice"):
        apis.version_of("EndpointSlice")


def test_too_old() -> None:
    with pytest.raises(UnsupportedError, match=r"Cilium 1\.15\.9 is too old"):
        Apis.of_version(CiliumVersion(1, 15, 9))


@pytest.mark.parametrize(
    ("version", "families", "config", "error", "text"),
    [
        ("1.18.4", "dual", {}, True, "Cilium 1.18.4 announces no IPv6 address by L2"),
        ("1.18.4", "ipv6", {}, True, "Cilium 1.18.4 announces no IPv6 address by L2"),
        ("1.18", "ipv4", {}, None, ""),
        (
            "1.18",
            "dual",
            {"announce": "bgp", "bgp": {"localASN": 1, "peers": [{"address": "::1", "asn": 1}]}},
            None,
            "",
        ),
        ("1.19", "dual", {}, None, ""),
        ("1.19.0", "dual", {}, False, "Cilium 1.19.0 may miss neighbour solicitations"),
        ("1.19", "dual", {"announce": "bgp"}, False, "no bgp.peers: nothing is advertised unless"),
        ("1.17", "ipv4", {"apiServerURLs": ["https://a", "https://b"]}, True, "Cilium 1.17 takes one URL"),
        ("1.30", "ipv4", {}, False, "Cilium 1.30 is newer than"),
    ],
)
def test_what_a_version_cannot_do(version: str, families: str, config: Any, error: bool | None, text: str) -> None:
    apis = Apis.of_version(CiliumVersion.parse(version))
    found = limits_of(exposure(families, **config), apis)
    assert [finding.error for finding in found] == ([] if error is None else [error])
    assert all(text in finding.text for finding in found)
    if error:
        with pytest.raises(UnsupportedError, match=text):
            build(exposure(families, **config), apis)


def test_without_a_version_ipv6_by_l2_is_warned_about() -> None:
    [finding] = limits_of(exposure(), Apis(V19.versions))
    assert not finding.error
    assert "--cilium-version" in finding.text


@pytest.mark.parametrize("old", ["CiliumLoadBalancerIPPool", "all"])
def test_an_old_release_is_known_by_its_pools(old: str) -> None:
    """No version is given, and pools are served as v2alpha1 alone: it is older than 1.18."""
    kinds = [kind for kind in RESOURCES if kind not in {"CiliumNodeConfig", "Service", "EndpointSlice"}]
    served = {
        "v1": ["Service"],
        "discovery.k8s.io/v1": ["EndpointSlice"],
        "cilium.io/v2": ["CiliumNodeConfig", *(kind for kind in kinds if old != "all" and kind != old)],
        "cilium.io/v2alpha1": kinds,
    }
    apis = Apis.of_discovery(served)
    made = build(exposure("ipv4"), apis)
    [config] = [each for each in made if each["kind"] == "CiliumNodeConfig"]
    assert config["spec"]["defaults"] == {"k8s-api-server": "https://localhost:443"}
    for families, settings, text in (
        ("dual", {}, "announces no IPv6 address by L2"),
        ("ipv4", {"apiServerURLs": ["https://a", "https://b"]}, "takes one URL"),
    ):
        [finding] = limits_of(exposure(families, **settings), apis)
        assert finding.error
        assert finding.text.startswith(
            "This Cilium, which serves CiliumLoadBalancerIPPool as cilium.io/v2alpha1 alone"
        )
        assert text in finding.text
    # What is known goes before what is guessed; newer pools say nothing of IPv6.
    assert limits_of(exposure(), Apis.of_discovery(served, CiliumVersion(1, 19))) == ()
    assert [each.error for each in limits_of(exposure(), Apis(V19.versions))] == [False]


def test_a_version_that_is_too_old_is_refused_where_discovery_is_asked() -> None:
    apis = Apis(V19.versions, CiliumVersion(1, 12))
    [finding] = limits_of(exposure("ipv4"), apis)
    assert (finding.error, finding.text.startswith("Cilium 1.12 is too old: its")) == (True, True)
    with pytest.raises(UnsupportedError, match=r"Cilium 1\.12 is too old"):
        build(exposure("ipv4"), apis)


# builders, where a property says less than an example


def test_the_key_of_the_node_config_follows_the_version() -> None:
    for version, key in (("1.17", "k8s-api-server"), ("1.18", "k8s-api-server-urls")):
        made = build(exposure("ipv4"), Apis.of_version(CiliumVersion.parse(version)))
        [config] = [each for each in made if each["kind"] == "CiliumNodeConfig"]
        assert config["spec"]["defaults"] == {key: "https://localhost:443"}


def test_a_family_that_no_node_has_is_an_error() -> None:
    document = manifest()
    document["spec"]["endpoints"] = [endpoint("cp-1", "10.0.1.11")]
    with pytest.raises(ManifestError, match=r"^spec\.endpoints: no node has an InternalIP of IPv6"):
        build(parse(document), V19)


def test_only_internal_addresses_are_endpoints() -> None:
    document = manifest("ipv4")
    document["spec"]["endpoints"][0]["addresses"].insert(0, {"type": "ExternalIP", "address": "198.51.100.1"})
    document["spec"]["endpoints"][0]["addresses"].append({"type": "InternalIP", "address": "::ffff:10.0.0.1"})
    found = parse(document)
    assert [address for _node, address in targets(found, found.endpoints)[Family.IPV4]] == [
        "10.0.1.11",
        "10.0.1.12",
        "10.0.1.13",
    ]


def test_bgp_peers_of_two_ports() -> None:
    peers = [{"address": "10.0.0.1", "asn": 1}, {"address": "fd00::1", "asn": 2, "port": 1790}]
    made = build(exposure(announce="bgp", bgp={"localASN": 65000, "peers": peers, "authSecret": "bgp"}), V19)
    configs = {each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "CiliumBGPPeerConfig"}
    assert {name: spec["transport"]["peerPort"] for name, spec in configs.items()} == {
        "exposure-root-179": 179,
        "exposure-root-1790": 1790,
    }
    [cluster] = [each for each in made if each["kind"] == "CiliumBGPClusterConfig"]
    refs = [peer["peerConfigRef"]["name"] for peer in cluster["spec"]["bgpInstances"][0]["peers"]]
    assert refs == ["exposure-root-179", "exposure-root-1790"]
    [advertisement] = [each for each in made if each["kind"] == "CiliumBGPAdvertisement"]
    for spec in configs.values():
        selector = spec["families"][0]["advertisements"]["matchLabels"]
        assert selector.items() <= advertisement["metadata"]["labels"].items()


# nodes


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (node("a"), None),
        (node("a", DiskPressure="False", NetworkUnavailable="False"), None),
        (node("a", ready="False"), "Ready is False"),
        (node("a", ready="Unknown"), "Ready is Unknown"),
        (node("a", NetworkUnavailable="True"), "NetworkUnavailable is True"),
        (node("a", PIDPressure="Unknown"), "PIDPressure is Unknown"),
        ({"metadata": {"name": "a"}}, "Ready is missing"),
        (node("a") | {"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, "it is being deleted"),
    ],
)
def test_health(found: dict[str, Any], reason: str | None) -> None:
    assert why_unhealthy(found) == reason


def test_nodes_of_the_manifest() -> None:
    choice = choose(exposure(), [node("cp-1", ready="False"), node("cp-2", "10.9.9.9")])
    assert [each.node for each in choice.endpoints] == ["cp-2", "cp-3"]
    assert choice.endpoints[0].internal(Family.IPV4) == ("10.0.1.12",)  # the manifest's
    assert choice.left_out == (("cp-1", "Ready is False"),)


def test_nodes_of_the_cluster() -> None:
    nodes = [
        node("cp-9", "10.9.9.9", "fd00::9"),
        node("cp-8", "fe80::1%eth0", "x", "127.0.0.1", "::1", "fd00::1%eth0", "0.0.0.0", "ff02::1", ""),
        node("cp-7", MemoryPressure="True"),
    ]
    choice = choose(exposure(endpoints="nodes"), nodes)
    assert [each.node for each in choice.endpoints] == ["cp-9"]
    assert choice.left_out == (("cp-7", "MemoryPressure is True"), ("cp-8", "it has no address"))


# the controller's manifests


def test_the_controller_is_deployed_where_it_needs_no_exposure() -> None:
    made = controller_manifests(
        Deployment("registry.example.org/firewall-cleanup:1", cilium=CiliumVersion(1, 19), port=6443)
    )
    for each in made:
        validate(each)
    pod = made[-1]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert {each["name"]: each["value"] for each in container["env"]} == {
        "KUBERNETES_SERVICE_HOST": "localhost",
        "KUBERNETES_SERVICE_PORT": "6443",
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost"),
    }
    assert pod["hostNetwork"] is True
    args = parser().parse_args(container["args"][1:])
    assert args.command == "run"
    assert container["args"][0] in cli.SUBCOMMANDS
    assert container["livenessProbe"]["httpGet"]["port"] == args.health_port


def test_a_proxy_is_not_asked_for_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client library asks it even for that, unless it is told not to."""
    httpx2 = pytest.importorskip("httpx2")
    [container] = controller_manifests(Deployment("i"))[-1]["spec"]["template"]["spec"]["containers"]
    monkeypatch.setenv("HTTPS_PROXY", "http://192.0.2.1:3128")
    monkeypatch.setenv("no_proxy", "example.org")
    for each in container["env"]:
        monkeypatch.setenv(each["name"], each["value"])
    with httpx2.Client() as client:
        patterns = {pattern.pattern: transport for pattern, transport in client._mounts.items()}
    assert patterns["https://"] is not None
    assert patterns["all://localhost"] is None


def test_instances_of_the_controller() -> None:
    """Each takes its port of a node: on a single control-plane node a second one would wait for ever."""
    words = ["exposure", "render", "--controller", "--image", "i", "--output", "json"]
    for more, count in (([], 2), (["--replicas", "1"], 1)):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert cli.main([*words, *more]) == 0
        assert json.loads(out.getvalue())["items"][-1]["spec"]["replicas"] == count


def test_the_rights_are_few() -> None:
    rules = [rule for each in controller_manifests(Deployment("i")) for rule in each.get("rules", ())]
    for rule in rules:
        assert "*" not in str(rule)
        assert not set(rule["resources"]) & {"secrets", "pods", "configmaps"}
        if "nodes" in rule["resources"]:
            assert rule["verbs"] == ["list", "watch"]
        if "leases" in rule["resources"] and rule["verbs"] != ["create"]:
            assert rule["resourceNames"] == ["firewall-cleanup-exposure"]


@pytest.mark.parametrize("namespace", ["kube-system", "default"])
@pytest.mark.parametrize("cilium_namespace", ["kube-system", "default"])
def test_no_object_of_the_deployment_replaces_another(namespace: str, cilium_namespace: str) -> None:
    made = controller_manifests(Deployment("i", namespace, cilium_namespace))
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in made]
    assert len(set(names)) == len(names)


# the command


def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "firewall_cleanup", "exposure", *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "exposure.yaml").write_text(yaml.safe_dump(manifest()))
    return str(tmp_path / "exposure.yaml")


def test_render(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["exposure", "render", "-f", file]) == 0
    made = list(yaml.safe_load_all(capsys.readouterr().out))
    assert made == list(build(exposure(), V19))
    assert cli.main(["exposure", "render", "-f", file, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == made
    assert cli.main(["exposure", "render", "-f", file, "--cilium-version", "1.18"]) == 1
    assert "Cilium 1.18 announces no IPv6 address by L2" in capsys.readouterr().err
    assert cli.main(["exposure", "render", "-f", file, "--cilium-namespace", "cilium"]) == 0
    namespaces = {
        each["kind"]: each["metadata"].get("namespace") for each in yaml.safe_load_all(capsys.readouterr().out)
    }
    assert (namespaces["CiliumNodeConfig"], namespaces["Service"]) == ("cilium", "kube-system")


def test_the_namespace_of_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is that of a file which names none; one that names another is an error."""
    document = manifest()
    file = tmp_path / "exposure.yaml"
    file.write_text(yaml.safe_dump(document))
    assert cli.main(["exposure", "render", "-f", str(file), "-n", "garden"]) == 2
    assert "metadata.namespace: it is kube-system, but --namespace says garden" in capsys.readouterr().err
    assert cli.main(["exposure", "render", "-f", str(file), "-n", "kube-system"]) == 0
    capsys.readouterr()
    del document["metadata"]["namespace"]
    file.write_text(yaml.safe_dump(document))
    assert cli.main(["exposure", "render", "-f", str(file), "-n", "garden"]) == 0
    made = {each["kind"]: each["metadata"] for each in yaml.safe_load_all(capsys.readouterr().out)}
    assert (made["Service"]["namespace"], made["CiliumL2AnnouncementPolicy"]["name"]) == (
        "garden",
        "exposure-root.garden",
    )


def test_render_reads_the_standard_input() -> None:
    done = run("render", "-f", "-", stdin=yaml.safe_dump(manifest()))
    assert (done.returncode, done.stderr) == (0, "")
    done = run("render", "-f", "-", stdin=yaml.safe_dump(manifest(announce="x")))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "firewall-cleanup exposure: spec.providerConfig.announce: must be l2 or bgp, not 'x'\n"


def test_render_the_controller(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["exposure", "render", "--controller", "--image", "i", "--class", "c"]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == list(
        controller_manifests(Deployment("i", class_name="c"))
    )


@pytest.mark.parametrize(
    "words",
    [
        ["render"],
        ["render", "--controller"],
        ["render", "--controller", "--image", "i", "-f", "x"],
        ["render", "-f", "nothing"],
        ["render", "-f", "nothing", "--replicas", "1"],
        ["apply"],
        ["status"],
        ["status", "a", "-f", "b"],
        ["status", "root"],
        ["delete", "root", "-n", "A"],
        ["check", "root", "--cilium", "x"],
        ["run", "--kubeconfig", "nothing"],
        ["delete", "root", "--kubeconfig", "/dev/null"],
    ],
)
def test_wrong_usage_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["exposure", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("firewall-cleanup exposure: ")


@pytest.mark.parametrize("option", ["--namespace", "--cilium-namespace"])
def test_a_namespace_is_checked_before_anything_else(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["render", "-f", "nothing"], ["run", "--kubeconfig", "/dev/null"], ["delete", "root"]):
        assert cli.main(["exposure", *words, option, "a/b"]) == 2
        assert f"{option}: 'a/b' is no name of a namespace" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nothing"],
        ["render", "--cilium-version", "x"],
        ["run", "--resync", "0"],
        ["run", "--health-port", "65536"],
        ["render", "--controller", "--image", "i", "--replicas", "0"],
        # What changes a cluster is written out.
        ["delete", "root", "--forc"],
        ["run", "--no-leader"],
        ["render", "--contr", "--image", "i"],
    ],
)
def test_wrong_options(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["exposure", *words])
    assert end.value.code == 2


def test_check_with_files(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = tmp_path / "values.yaml"
    for host, status in (("192.0.2.10", 1), ("localhost", 0)):
        values.write_text(yaml.safe_dump({"k8sServiceHost": host, "kubeProxyReplacement": True}))
        assert cli.main(["exposure", "check", "-f", file, "--cilium", str(values), "--output", "json"]) == status
        assert json.loads(capsys.readouterr().out)["cycle"] == bool(status)
    assert cli.main(["exposure", "check", "-f", file, "--cilium", str(values), "--host", "2001:db8::10"]) == 1
    assert "CYCLE: agent, 2001:db8::10 (--host)" in capsys.readouterr().out
    for host in ("https://192.0.2.10:443", "[2001:db8::10]:443", "2001:db8::10%eth0"):
        assert cli.main(["exposure", "check", "-f", file, "--cilium", str(values), "--host", host]) == 1
        assert "which Cilium serves" in capsys.readouterr().out
    for name in ("localhost", "https://LOCALHOST:443/"):
        assert cli.main(["exposure", "check", "-f", file, "--cilium", str(values), "--dns-name", name]) == 1
        assert "localhost" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dns-name", "192.0.2.9"], "--dns-name: '192.0.2.9' is no host name"),
        (["--dns-name", "a b"], "--dns-name: 'a b' is no host name"),
        (["--host", ""], "--host: it is empty"),
        (["--kubernetes-ip", "10.96.0"], "--kubernetes-ip: '10.96.0' is no IP address"),
    ],
)
def test_options_of_check_that_would_have_no_effect(
    file: str, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["exposure", "check", "-f", file, "--cilium", "/dev/null", *options]) == 2
    assert capsys.readouterr().err == f"firewall-cleanup exposure: {said}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("k8sServiceHost: 10.96.0.1", "whether 10.96.0.1 is the ClusterIP of the Service kubernetes"),
        ("k8sServiceHost: foo..bar", "it does not resolve here"),
        (f"k8sServiceHost: {'a' * 70}.example", "it does not resolve here"),
        ("kind: [a]", "not read: ['a'] is neither an object nor Helm values"),
        ("{kind: EndpointSlice, endpoints: [{}]}", "cannot be told"),
    ],
)
def test_check_cannot_tell(
    file: str, tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(text)
    assert cli.main(["exposure", "check", "-f", file, "--cilium", str(values)]) == 1
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("command", ["render", "check"])
def test_a_reader_that_goes_is_no_traceback(file: str, tmp_path: Path, command: str) -> None:
    """What was done is done, whoever reads of it."""
    end, far = os.pipe()
    os.close(end)
    (tmp_path / "values.yaml").write_text("{k8sServiceHost: localhost, kubeProxyReplacement: true}")
    more = ["--cilium", str(tmp_path / "values.yaml")] if command == "check" else []
    words = [sys.executable, "-m", "firewall_cleanup", "exposure", command, "-f", file, *more]
    done = subprocess.run(words, stdout=far, stderr=subprocess.PIPE, text=True, check=False)
    os.close(far)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_signal_while_it_reads_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    words = [sys.executable, "-m", "firewall_cleanup", "exposure", "render", "-f", str(tmp_path / "fifo")]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    # Opened at both ends: the command waits for what is to be read.
    with (tmp_path / "fifo").open("w"):
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == "firewall-cleanup exposure: stopped\n"
    assert process.returncode == 128 + signal.SIGINT


def test_without_the_extra_the_error_says_so(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("raise ModuleNotFoundError('no', name='yaml')")
    code = "import sys; from firewall_cleanup.cli import main; sys.exit(main(['exposure', 'render', '-f', 'x']))"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'firewall-cleanup[kubernetes]'" in done.stderr


def test_render_needs_no_client() -> None:
    code = (
        "import sys; import firewall_cleanup, firewall_cleanup.exposure, firewall_cleanup.exposure.cli;"
        "import firewall_cleanup.exposure.builders;"
        "print([n for n in ('lightkube', 'httpx2', 'firewall_cleanup.exposure.client') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# what is written about it

ROOT = Path(__file__).parents[2]


def test_the_man_page_has_all_options() -> None:
    documented: dict[str, str] = {}
    text = (ROOT / "docs/firewall-cleanup-exposure.1").read_text()
    for head in re.findall(r"^\.It (Fl .*)$", text.partition(".Sh OPTIONS")[2].partition(".Sh ")[0], re.MULTILINE):
        flags, _, value = head.partition(" Ar ")
        documented |= {f"-{flag}".replace("\\-", "-"): value for flag in re.findall(r"Fl (\S+)", flags)}
    known: dict[str, str] = {}
    [commands] = [each.choices for each in parser()._actions if each.dest == "command"]
    for added in (commands or {}).values():
        for action in added._actions:
            value = (
                "" if action.nargs == 0 else action.metavar or "|".join(action.choices or ()) or action.dest.upper()
            )
            known |= {flag: str(value) for flag in action.option_strings if flag != "--output"}
    known |= {"--output": "text|json"}
    assert set(documented) == set(known)
    for flag, value in documented.items():
        assert bool(value) == (known[flag] != ""), flag


def test_the_commands_of_the_pages_are_accepted() -> None:
    pages = [ROOT / "README.md", ROOT / "docs/exposure-run.md", ROOT / "docs/how-to/expose-the-api-server.md"]
    found = [
        line
        for page in pages
        for line in re.findall(r"^(?:\$ )?firewall-cleanup exposure (.*)$", page.read_text(), re.MULTILINE)
    ]
    assert len(found) > 20
    for line in found:
        parser().parse_args(shlex.split(line.partition(" > ")[0], comments=True))


def test_the_reference_has_all_fields() -> None:
    text = (ROOT / "docs/exposure.md").read_text()
    fields = set(re.findall(r"^\| `(\w+)` \|", text.partition("## What it makes")[0], re.MULTILINE))
    assert fields == set(_CONFIG) - {"apiVersion", "kind"}


def test_the_example_is_the_manifest_of_the_tests() -> None:
    assert read_manifest(ROOT / "examples/exposure.yaml").config == exposure().config
