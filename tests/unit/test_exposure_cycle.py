"""The cycle: Cilium must not reach the API server over what Cilium serves."""

from __future__ import annotations

from typing import Any

import pytest
from exposures import exposure

from firewall_cleanup.exposure.capabilities import CiliumVersion
from firewall_cleanup.exposure.cilium_hosts import CiliumPart, ingress_of, read_settings
from firewall_cleanup.exposure.cycle import CycleReport, find_cycles, owned_addresses, why_unannounced

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


HOST = "KUBERNETES_SERVICE_HOST"
LOCAL: dict[str, Any] = {"k8sServiceHost": "localhost", "kubeProxyReplacement": True}


def env(name: str, value: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value}]


@pytest.mark.parametrize("key", ["k8s-api-server-urls", "k8s-api-server"])
def test_helm_values_add_to_the_configuration(key: str) -> None:
    """What `extraConfig` has is in the ConfigMap as if the chart had put it there, and after all else."""
    report = check({**LOCAL, "extraConfig": {key: "https://192.0.2.10:443"}})
    assert verdicts(report) == {"bootstrap": False, "agent": True, "operator": True}
    assert report.verdicts[1].host.source == f"Helm value extraConfig, {key}"
    assert check({**LOCAL, "extraConfig": {key: "https://10.0.1.11"}}).exit_code == 0
    default = {"kubeProxyReplacement": False, "extraConfig": {"kube-proxy-replacement": "true"}}
    assert verdicts(check(default)) == {"bootstrap": True, "agent": True, "operator": True}
    # Files are merged key by key; null takes away.
    for later in ({"extraConfig": {"x": "y"}}, {"extraConfig": {key: None}}, {"extraConfig": None}):
        bad = later == {"extraConfig": {"x": "y"}}
        assert check({**LOCAL, "extraConfig": {key: "https://192.0.2.10"}}, later).exit_code == bad
    assert check({"k8s": {"apiServerURLs": "https://localhost"}}, {"k8s": None}, NO_PROXY).exit_code == 1
    [gap] = check({**LOCAL, "extraConfig": [key]}).gaps
    assert gap == f"Helm value extraConfig: ['{key}'] is not a map"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"extraEnv": env(HOST, "192.0.2.10")}, {"bootstrap": True, "agent": True, "operator": False}),
        ({"operator": {"extraEnv": env(HOST, "192.0.2.10")}}, {"bootstrap": False, "agent": False, "operator": True}),
        (
            {"extraEnv": env("CILIUM_K8S_API_SERVER_URLS", "https://192.0.2.10")},
            {"bootstrap": True, "agent": True, "operator": False},
        ),
        (
            {"extraArgs": ["--k8s-api-server-urls=https://[2001:db8::10]"]},
            {"bootstrap": False, "agent": True, "operator": False},
        ),
        (
            {"operator": {"extraArgs": ["--k8s-api-server", "https://192.0.2.10"]}},
            {"bootstrap": False, "agent": False, "operator": True},
        ),
    ],
)
def test_helm_values_add_to_containers(values: dict[str, Any], expected: dict[str, bool]) -> None:
    report = check({"kubeProxyReplacement": False, **values})
    assert (verdicts(report), report.exit_code) == (expected, 1)
    [place] = [f"operator.{each}" for each in values.get("operator", ())] or list(values)
    assert {each.host.source.partition(",")[0] for each in report.verdicts if each.cycle} == {f"Helm value {place}"}
    assert check({"kubeProxyReplacement": False, **values}, {place.split(".")[0]: None}).exit_code == 0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"k8sServiceHostRef": {"name": "api", "key": "host"}},
            "k8sServiceHostRef takes it from the ConfigMap 'api'",
        ),
        ({"extraEnv": [{"name": HOST, "valueFrom": {"configMapKeyRef": {"name": "api"}}}]}, "another object"),
        ({"extraEnv": {HOST: "192.0.2.10"}}, "is not a list"),
        ({"operator": {"extraArgs": "--k8s-api-server=https://192.0.2.10"}}, "is not a list"),
        ({"operator": "x"}, "Helm value operator: 'x' is not a map"),
        (
            {"kubeConfigPath": "/etc/kubeconfig"},
            "Helm value kubeConfigPath: the host is in the file '/etc/kubeconfig'",
        ),
        ({"extraConfig": {"k8s-kubeconfig-path": "/etc/kubeconfig"}}, "the host is in the file '/etc/kubeconfig'"),
        ({"extraArgs": ["--k8s-kubeconfig-path=/etc/kubeconfig"]}, "the host is in the file '/etc/kubeconfig'"),
        ({"extraEnv": env("CILIUM_K8S_KUBECONFIG_PATH", "/f")}, "the host is in the file '/f'"),
        ({"daemon": {"configSources": "config-map:cilium-config,config-map:mine"}}, "from 'config-map:mine', too"),
    ],
)
def test_helm_values_that_lead_elsewhere_are_a_gap(values: dict[str, Any], said: str) -> None:
    """It is not known which host that is, so nobody can say that there is no cycle."""
    report = check({"kubeProxyReplacement": False, **values})
    assert said in report.gaps[0]
    assert len(report.gaps) == len(set(report.gaps))
    assert report.exit_code == 1


def test_values_that_change_nothing_of_the_hosts_are_no_gap() -> None:
    values = {
        "k8sServiceHostRef": {"name": None, "key": None},
        "extraConfig": {"debug": "true", "k8s-kubeconfig-path": ""},
        "extraEnv": env("HTTP_PROXY", "x"),
        "extraArgs": ["--debug"],
        "operator": {"replicas": 1, "extraArgs": [], "extraEnv": None},
        "daemon": {"configSources": "config-map:kube-system/cilium-config,cilium-node-config"},
    }
    assert check({**LOCAL, **values}).exit_code == 0


def test_the_operator_of_helm_values_counts_if_there_is_one() -> None:
    """Without a host of its own it takes the kubernetes Service, as its Deployment would."""
    values = {"kubeProxyReplacement": True, "extraEnv": env(HOST, "localhost")}
    assert verdicts(check(values)) == {"bootstrap": False, "agent": False, "operator": True}
    assert verdicts(check({**values, "operator": {"enabled": False}})) == {"bootstrap": False, "agent": False}


def test_a_kubeconfig_of_the_node_is_a_gap_wherever_it_is_named() -> None:
    path = "/etc/kubeconfig"
    named = agents("localhost", args=(f"--k8s-kubeconfig-path={path}",))
    key = {"k8s_kubeconfig_path": path}
    for documents in ([named], [agents("localhost"), config_map(**key)], [agents("localhost"), node_config(**key)]):
        report = check(*documents, NO_PROXY)
        assert "is in the file '/etc/kubeconfig' of the node" in report.gaps[0]
        assert report.exit_code == 1
    assert check(agents("localhost", args=("--source=config-map:other",)), NO_PROXY).exit_code == 1


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


def test_a_kubernetes_cluster_ip_that_is_not_known_cannot_be_told() -> None:
    """Where Cilium may serve it, an address that is no node's may be just that."""
    for settings, cycle in (([NO_PROXY], None), ([], None), ([config_map(kube_proxy_replacement="false")], False)):
        for host in ("10.96.0.1", "elsewhere.example.org"):
            report = find_cycles(read_settings([agents(host), *settings]), owned_addresses(exposure()), resolve)
            assert verdicts(report) == {"bootstrap": cycle, "agent": cycle}
    assert (
        "--kubernetes-ip"
        in find_cycles(read_settings([agents("10.96.0.1"), NO_PROXY]), owned_addresses(exposure()), resolve)
        .verdicts[0]
        .chain[-1]
    )
    for host in ("localhost", "nodes.example.org", "fd00:1::11", "127.0.0.1"):
        report = find_cycles(read_settings([agents(host), NO_PROXY]), owned_addresses(exposure()), resolve)
        assert report.exit_code == 0


@pytest.mark.parametrize(
    "host",
    [
        *("exposure-root", "exposure-root.kube-system", "Exposure-Root.kube-system.svc."),
        *("exposure-root.kube-system.svc.cluster.local", "exposure-root.kube-system.svc.example.org"),
        *("2001:db8::10%eth0", "[2001:db8::10]:443", "https://192.0.2.10:443"),
    ],
)
def test_the_service_by_its_names_and_by_other_writings(host: str) -> None:
    assert verdicts(check(agents(host), NO_PROXY)) == {"bootstrap": True, "agent": True}


def test_the_kubernetes_service_in_another_domain() -> None:
    assert check(agents("kubernetes.default.svc.example.org"), NO_PROXY).to_dict()["cycle"] is True


def test_a_name_that_resolves_to_nothing_cannot_be_told() -> None:
    report = find_cycles(
        read_settings([agents("x.example.org"), NO_PROXY]), owned_addresses(exposure()), lambda _: []
    )
    assert verdicts(report) == {"bootstrap": None, "agent": None}


def pod(owner: str, host: str, node: str | None = None) -> dict[str, Any]:
    spec = agents(host)["spec"]["template"]["spec"]
    metadata = {"name": f"{owner}-x", "ownerReferences": [{"name": owner}]}
    return {"kind": "Pod", "metadata": metadata, "spec": {**spec, **({"nodeName": node} if node else {})}}


def daemon_set(name: str, host: str, *expressions: Any) -> dict[str, Any]:
    found = agents(host)
    found["metadata"]["name"] = name
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(each)} for each in expressions]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    found["spec"]["template"]["spec"]["affinity"] = affinity if expressions else None
    return found


LABEL = "node-role.kubernetes.io/control-plane"
THERE, ELSEWHERE = ({"key": LABEL, "operator": each} for each in ("Exists", "DoesNotExist"))
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}


def agents_of(*documents: Any, nodes: tuple[str, ...] = ("cp-1",)) -> set[str | None]:
    """The hosts that are judged."""
    return {each.host for each in read_settings(documents, nodes).hosts}


def test_agents_that_are_not_on_control_plane_nodes_may_use_the_address() -> None:
    """What check advises: localhost in a DaemonSet for control-plane nodes; the others take the exposure."""
    here, there = pod("cilium-control-plane", "localhost", "cp-1"), pod("cilium", "192.0.2.10", "worker-1")
    assert agents_of(here, there) == {"localhost"}
    assert agents_of(pod("cilium", "192.0.2.10", "cp-1"), here) == {"192.0.2.10", "localhost"}
    assert agents_of(pod("cilium", "192.0.2.10"), here) == {"192.0.2.10", "localhost"}  # no node yet
    assert agents_of(here, there, nodes=()) == {"192.0.2.10", "localhost"}  # which node is which is not known
    node = {"kind": "Node", "metadata": {"name": "worker-1", "labels": {LABEL: ""}}}
    assert agents_of(here, there, node) == {"192.0.2.10", "localhost"}


def test_daemon_sets_count_unless_they_avoid_control_plane_nodes() -> None:
    first = daemon_set("cilium-control-plane", "localhost", [THERE])
    assert agents_of(first, daemon_set("cilium", "192.0.2.10", [ELSEWHERE, ZONE])) == {"localhost"}
    for expressions in ([], [[ZONE]], [[ELSEWHERE], [ZONE]]):
        found = agents_of(first, daemon_set("cilium", "192.0.2.10", *expressions))
        assert found == {"localhost", "192.0.2.10"}
    # What was put into the pods on these nodes counts, not what is in the DaemonSet; pods elsewhere say nothing.
    assert agents_of(daemon_set("cilium", "192.0.2.10"), pod("cilium", "localhost", "cp-1")) == {"localhost"}
    assert agents_of(daemon_set("cilium", "192.0.2.10"), pod("cilium", "localhost", "w")) == {"192.0.2.10"}
    [gap] = read_settings([daemon_set("cilium", "192.0.2.10", [ELSEWHERE])]).gaps
    assert "no agent of Cilium was found" in gap


def test_a_node_config_of_other_nodes_does_not_count() -> None:
    other = node_config("workers", {"matchExpressions": [ELSEWHERE]}, k8s_api_server_urls="https://192.0.2.10")
    assert check(agents("localhost"), NO_PROXY, other).exit_code == 0


def test_a_later_helm_file_replaces_values_of_an_earlier_one() -> None:
    first = {
        "k8sServiceHost": "192.0.2.10",
        "kubeProxyReplacement": True,
        "k8s": {"apiServerURLs": "https://192.0.2.10"},
    }
    later = {"cilium": {"k8sServiceHost": "localhost", "k8s": {"apiServerURLs": ""}}}
    assert agents_of(first, later) == {"localhost"}
    assert read_settings([first, later]).replaces_kube_proxy is True
    assert agents_of(later, {"k8sServiceHost": None}) == {None}


def test_flags_as_variables() -> None:
    found = agents("localhost")
    [agent] = found["spec"]["template"]["spec"]["containers"]
    agent["env"].append({"name": "CILIUM_K8S_API_SERVER_URLS", "value": "https://10.0.1.11, https://192.0.2.10"})
    assert [each.cycle for each in check(found, NO_PROXY).verdicts] == [False, False, True]
    agent["env"][-1] = {"name": "CILIUM_K8S_API_SERVER_URLS", "valueFrom": {"fieldRef": {}}}
    assert "CILIUM_K8S_API_SERVER_URLS comes from another object" in check(found, NO_PROXY).gaps[0]
    agent["env"][-1] = {"name": "CILIUM_KUBE_PROXY_REPLACEMENT", "value": "true"}
    assert read_settings([found]).replaces_kube_proxy is True
    agent["env"].pop()
    agent["envFrom"] = [{"configMapRef": {"name": "x"}}]
    report = check(found, NO_PROXY)
    assert "envFrom takes variables from other objects" in report.gaps[0]
    assert report.exit_code == 1


def test_endpoint_slices_count_if_they_are_the_kubernetes_services() -> None:
    def found(service: str, namespace: str, *addresses: str) -> dict[str, Any]:
        metadata = {"name": "s", "namespace": namespace, "labels": {"kubernetes.io/service-name": service}}
        return {"kind": "EndpointSlice", "metadata": metadata, "endpoints": [{"addresses": list(addresses)}, {}]}

    good = [agents("localhost"), NO_PROXY]
    assert check(*good, found("kubernetes", "default", "10.0.1.11", "192.0.2.10")).exit_code == 1
    assert check(*good, found("kubernetes", "default", "10.0.1.11")).exit_code == 0
    assert check(*good, found("other", "default", "192.0.2.10")).exit_code == 0
    assert check(*good, found("kubernetes", "other", "192.0.2.10")).exit_code == 0


@pytest.mark.parametrize("announce", ["l2", "bgp"])
def test_what_is_not_turned_on_is_warned_about(announce: str) -> None:
    """Without it the Service is given its address, all is well by its status, and nothing is announced."""
    key = {"l2": "enable_l2_announcements", "bgp": "enable_bgp_control_plane"}[announce]
    value = {"l2": "l2announcements", "bgp": "bgpControlPlane"}[announce]
    wanted = exposure(announce=announce)

    def warnings(*documents: Any) -> tuple[str, ...]:
        return why_unannounced(wanted, read_settings(documents))

    assert warnings(agents("localhost")) == ()  # it is not known
    [said] = warnings(NO_PROXY)
    assert f"{key.replace('_', '-')} (Helm: {value}.enabled), which is not true" in said
    assert warnings(config_map(**{key: "true"})) == ()
    assert warnings(NO_PROXY, node_config(**{key: "true"})) == ()
    assert warnings({value: {"enabled": True}}) == ()
    assert len(warnings({value: {"enabled": False}})) == 1
    flag = key.replace("_", "-")
    assert len(warnings({value: {"enabled": True}, "extraConfig": {flag: "false"}})) == 1  # that comes last
    assert warnings({value: {"enabled": False}, "extraConfig": {flag: "true"}}) == ()
    off = warnings(config_map(**{key: "true"}, kube_proxy_replacement="false"))
    assert len(off) == (announce == "l2")


@pytest.mark.parametrize(
    "document",
    [
        {"kind": ["a"]},
        {"kind": "EndpointSlice", "endpoints": 1},
        "x",
        1,
        {"kind": "DaemonSet"},
        {"kind": "ConfigMap", "data": 1},
        {"kind": "CiliumNodeConfig"},
        {},
    ],
)
def test_odd_documents_do_not_crash(document: Any) -> None:
    check(document).lines()


def test_documents_without_end_are_read_quickly() -> None:
    """YAML's aliases make gigabytes of a few lines."""
    huge: Any = "x"
    for _ in range(40):
        huge = [huge] * 10
    spec = {"containers": [{"name": "cilium-agent", "args": [huge], "env": [{"name": huge, "value": huge}]}]}
    label = {"kubernetes.io/service-name": "kubernetes"}
    report = check(
        huge,
        {"k8sServiceHost": huge, "k8s": {"apiServerURLs": huge}, "kubeProxyReplacement": huge},
        {"kind": "DaemonSet", "metadata": {"name": huge}, "spec": {"template": {"spec": spec}}},
        {"kind": "Pod", "metadata": {"name": huge, "ownerReferences": huge}, "spec": {**spec, "nodeName": huge}},
        {"kind": "ConfigMap", "metadata": {"name": "cilium-config"}, "data": {"k8s-api-server-urls": huge}},
        {"kind": "EndpointSlice", "metadata": {"labels": label}, "endpoints": [{"addresses": huge}]},
        {
            "kind": "CiliumNodeConfig",
            "metadata": {"name": huge},
            "spec": {"nodeSelector": {"a": huge}, "defaults": {"k8s-api-server": huge}},
        },
    )
    assert len("\n".join(report.lines())) < 20_000


def test_lines() -> None:
    lines = check(agents("192.0.2.10"), NO_PROXY, "x").lines()
    assert lines[0] == "CYCLE: bootstrap, 192.0.2.10 (DaemonSet cilium, container config, KUBERNETES_SERVICE_HOST)"
    assert any(line.startswith("not read: 'x'") for line in lines)
    assert "ways round:" in lines
