"""The cycle: Cilium must not reach the API server over what Cilium serves."""

from __future__ import annotations

from typing import Any

import pytest
from exposures import exposure

from firewall_cleanup.exposure.capabilities import CiliumVersion
from firewall_cleanup.exposure.cilium_hosts import CiliumPart, ingress_of, read_settings
from firewall_cleanup.exposure.cycle import CycleReport, find_cycles, owned_addresses

NAMES = {
    "api.example.org": ["192.0.2.10", "2001:db8::10"],
    "mixed.example.org": ["10.0.1.11", "2001:db8::10"],
    "localhost": ["127.0.0.1", "::1"],
    "nodes.example.org": ["10.0.1.11", "fd00:1::12"],
    "elsewhere.example.org": ["203.0.113.1"],
}


def resolve(name: str) -> list[str]:
    if name not in NAMES:
        raise OSError(-2, "Name or service not known")
    return NAMES[name]


def agents(host: str | None = None, *, init: str | None = "same", args: tuple[str, ...] = ()) -> dict[str, Any]:
    """Cilium's DaemonSet, with the host in the environment of the agent and of its init container."""

    def container(name: str, value: str | None) -> dict[str, Any]:
        env = [] if value is None else [{"name": "KUBERNETES_SERVICE_HOST", "value": value}]
        return {"name": name, "env": env, "command": ["cilium-agent"], "args": list(args)}

    first = host if init == "same" else init
    spec = {
        "initContainers": [container("config", first), container("other", "x")],
        "containers": [container("cilium-agent", host)],
    }
    return {
        "kind": "DaemonSet",
        "metadata": {"name": "cilium", "namespace": "kube-system"},
        "spec": {"template": {"spec": spec}},
    }


def config_map(**data: str) -> dict[str, Any]:
    found = {key.replace("_", "-"): value for key, value in data.items()}
    return {"kind": "ConfigMap", "metadata": {"name": "cilium-config", "namespace": "kube-system"}, "data": found}


def node_config(name: str = "control-plane", selector: Any = None, **defaults: str) -> dict[str, Any]:
    spec = {
        "nodeSelector": {"matchExpressions": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]}
        if selector is None
        else selector or None,
        "defaults": {key.replace("_", "-") if key.islower() else key: value for key, value in defaults.items()},
    }
    return {"kind": "CiliumNodeConfig", "metadata": {"name": name, "namespace": "kube-system"}, "spec": spec}


NO_PROXY = config_map(kube_proxy_replacement="true")


def check(*documents: Any, version: str | None = None, **more: Any) -> CycleReport:
    owned = owned_addresses(exposure(), cluster_ips=["10.96.0.1", "fd00:10:96::1"], **more)
    return find_cycles(read_settings(documents), owned, resolve, CiliumVersion.parse(version) if version else None)


def verdicts(report: CycleReport) -> dict[str, bool | None]:
    return {each.host.part.value: each.cycle for each in report.verdicts}


@pytest.mark.parametrize(
    "host",
    ["192.0.2.10", "2001:db8::10", "2001:DB8:0::10", "::ffff:192.0.2.10", "api.example.org", "mixed.example.org"],
)
def test_an_address_of_the_exposure_is_refused(host: str) -> None:
    report = check(agents(host), NO_PROXY)
    assert verdicts(report) == {"bootstrap": True, "agent": True}
    assert report.exit_code == 1
    [bootstrap, agent] = report.verdicts
    assert host in agent.chain[0]
    assert "is an address of Service exposure-root" in agent.chain[1]
    assert "does not start before" in bootstrap.chain[-1]
    assert report.to_dict()["cycle"] is True


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "::1", "10.0.1.11", "fd00:1::12", "nodes.example.org", "203.0.113.1"]
)
def test_other_hosts_are_not(host: str) -> None:
    report = check(agents(host), NO_PROXY)
    assert verdicts(report) == {"bootstrap": False, "agent": False}
    assert (report.exit_code, report.ways) == (0, ())


def test_a_name_of_the_exposure_is_refused_whatever_it_resolves_to() -> None:
    assert check(agents("Elsewhere.example.org."), NO_PROXY, names=["elsewhere.example.org"]).exit_code == 1


def test_addresses_of_the_ranges_and_of_the_status_are_owned() -> None:
    owned = owned_addresses(exposure(ranges=["192.0.2.0/24", "2001:db8::/64"]), addresses=["203.0.113.1"])
    for host in ("192.0.2.77", "2001:db8::77", "203.0.113.1"):
        assert find_cycles(read_settings([agents(host)]), owned, resolve).exit_code == 1
    service = {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}, {"hostname": "api.example.org"}]}}}
    assert ingress_of(service) == ({"203.0.113.1"}, {"api.example.org"})
    assert ingress_of(None) == (set(), set())


@pytest.mark.parametrize(
    "host", [None, "10.96.0.1", "fd00:10:96::1", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local."]
)
@pytest.mark.parametrize(("replaces", "cycle"), [("true", True), ("strict", True), ("false", False), (None, None)])
def test_the_kubernetes_service_counts_if_there_is_no_kube_proxy(
    host: str | None, replaces: str | None, cycle: bool | None
) -> None:
    report = check(agents(host), *([config_map(kube_proxy_replacement=replaces)] if replaces else []))
    assert set(verdicts(report).values()) == {cycle}
    assert report.exit_code == (0 if cycle is False else 1)


def test_what_does_not_resolve_cannot_be_told() -> None:
    report = check(agents("nowhere.example.org"), NO_PROXY)
    assert verdicts(report) == {"bootstrap": None, "agent": None}
    assert "Name or service not known" in report.verdicts[0].chain[-1]
    assert report.exit_code == 1


def test_a_node_config_helps_the_agent_and_not_the_bootstrap() -> None:
    good = node_config(k8s_api_server_urls="https://localhost:443")
    report = check(agents("192.0.2.10"), NO_PROXY, good)
    assert verdicts(report) == {"bootstrap": True, "agent": False}
    assert any("CiliumNodeConfig (control-plane) is not enough" in way for way in report.ways)
    assert check(agents("localhost"), NO_PROXY, good).exit_code == 0


def test_a_node_config_is_judged_itself() -> None:
    bad = node_config("b", k8s_api_server_urls="https://10.0.1.11 https://[2001:db8::10]:443")
    report = check(agents("localhost"), NO_PROXY, node_config("a", k8s_api_server_urls="https://localhost"), bad)
    assert [each.cycle for each in report.verdicts if each.host.part is CiliumPart.AGENT] == [False, True]
    assert (
        check(
            agents("localhost"), NO_PROXY, node_config(selector=False, k8s_api_server_urls="https://192.0.2.10")
        ).exit_code
        == 0
    )


def test_keys_that_a_node_config_does_not_know_are_a_gap() -> None:
    report = check(agents("localhost"), NO_PROXY, node_config(KUBERNETES_SERVICE_HOST="localhost"))
    assert report.exit_code == 1
    assert "no key of the agent's configuration" in report.gaps[0]


def test_the_arguments_and_the_config_map_go_before_the_environment() -> None:
    assert verdicts(check(agents("192.0.2.10", args=("--k8s-api-server-urls=https://localhost:443",)), NO_PROXY)) == {
        "bootstrap": False,
        "agent": False,
    }
    urls = config_map(k8s_api_server_urls="https://localhost:443,https://10.0.1.11", kube_proxy_replacement="true")
    assert verdicts(check(agents("192.0.2.10"), urls)) == {"bootstrap": True, "agent": False}


@pytest.mark.parametrize("wrap", [False, True])
def test_helm_values(wrap: bool) -> None:
    def values(**found: Any) -> Any:
        return {"cilium": found} if wrap else found

    assert check(values(k8sServiceHost="192.0.2.10", kubeProxyReplacement=True)).exit_code == 1
    assert check(values(k8sServiceHost="localhost", kubeProxyReplacement=True)).exit_code == 0
    assert check(values(k8s={"apiServerURLs": "https://10.0.1.11 https://api.example.org"})).exit_code == 1
    assert check(values(k8s={"apiServerURLs": ["https://10.0.1.11"]})).exit_code == 0
    assert "cluster-info" in check(values(k8sServiceHost="auto")).gaps[0]
    assert set(verdicts(check(values(k8sServiceHost="api.example.org")))) == {"bootstrap", "agent", "operator"}


def test_the_operator_counts() -> None:
    operator = agents("192.0.2.10")
    operator |= {"kind": "Deployment", "metadata": {"name": "cilium-operator"}}
    assert verdicts(check(agents("localhost"), operator, NO_PROXY)) == {
        "bootstrap": False,
        "agent": False,
        "operator": True,
    }


def test_the_ways_name_the_version() -> None:
    new, old, unknown = (check(agents("192.0.2.10"), version=each).ways for each in ("1.19.2", "1.17", None))
    assert any(way.startswith("Cilium 1.19.2: several URLs") and "https://[fd00:1::11]:443" in way for way in new)
    assert any(way.startswith("Cilium 1.17: one URL") for way in old)
    assert len(unknown) == len(new) + 1
    assert all("localhost" in ways[0] for ways in (new, old, unknown))


@pytest.mark.parametrize(
    "document", ["x", 1, {"kind": "DaemonSet"}, {"kind": "ConfigMap", "data": 1}, {"kind": "CiliumNodeConfig"}, {}]
)
def test_odd_documents_do_not_crash(document: Any) -> None:
    check(document).lines()


def test_lines() -> None:
    lines = check(agents("192.0.2.10"), NO_PROXY, "x").lines()
    assert lines[0] == "CYCLE: bootstrap, 192.0.2.10 (DaemonSet cilium, container config, KUBERNETES_SERVICE_HOST)"
    assert any(line.startswith("not read: 'x'") for line in lines)
    assert "ways round:" in lines
