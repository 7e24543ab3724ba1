"""The rules, chains and sets of a kube-router node as templates; `node.py` fills them in."""

from __future__ import annotations

__all__ = [
    "END",
    "HOOK",
    "ICMP",
    "ICMP_TYPES",
    "NO_POLICY",
    "OPTIONS",
    "POD",
    "POLICY",
    "SERVICE",
    "START",
    "TRUE",
    "WORDS",
]

ICMP_TYPES = {
    "echo requests": "echo-request", "destination unreachable messages": "destination-unreachable",
    "time exceeded messages": "time-exceeded", "neighbor solicitation messages": "nd-neighbor-solicit",
    "neighbor advertisement messages": "nd-neighbor-advert", "echo reply messages": "echo-reply",
}  # fmt: skip

# Each line of a template says when, where and what.
# When: words, all of which must be true of the node, such as "netpol" or "nft" for the place where network policy
# lives, and "old" for what only older releases wrote.
# Where and what: a table of iptables, its chains and a rule (none: the chain is empty), in which `-c` means
# `-m comment --comment`; "match", a policy's chain and what it allows; "ipset", a set, its kind and members;
# "member", a set and a member ("!": nomatch); or a verb of nft's and its object.
# Hashes in comments are of constant arguments (netpol's addUUIDForRuleSpec), so constant as well.
START = r"""
netpol filter INPUT -c "kube-router netpol - 4IA2OSFRMVNDXBVV" -j KUBE-ROUTER-INPUT
netpol filter FORWARD -c "kube-router netpol - TEMCG2JMHZYE7H7T" -j KUBE-ROUTER-FORWARD
netpol filter OUTPUT -c "kube-router netpol - VEAAIY32XVBHCSCY" -j KUBE-ROUTER-OUTPUT
netpol filter KUBE-ROUTER-INPUT -d {cluster} -c "{cluster_note}" -j RETURN
netpol filter KUBE-ROUTER-INPUT -p tcp -c "allow LOCAL TCP traffic to node ports - LR7XO7NXDBGQJD2M" {ports}
netpol filter KUBE-ROUTER-INPUT -p udp -c "allow LOCAL UDP traffic to node ports - 76UCBPIZNGJNWNUZ" {ports}
netpol filter KUBE-ROUTER-INPUT -p sctp -c "allow LOCAL SCTP traffic to node ports - YU47VQ3DEDE3VDG7" {ports}
netpol filter KUBE-ROUTER-INPUT -d {outside} -c "{outside_note}" -j RETURN
netpol filter KUBE-NWPLCY-DEFAULT -c "rule to mark traffic matching a network policy" {mark}
netpol filter KUBE-NWPLCY-COMMON -c "\"rule to drop invalid state for pod\"" -m conntrack --ctstate INVALID -j DROP
netpol filter KUBE-NWPLCY-COMMON -c "\"rule for stateful firewall for pod\"" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
netpol+deny filter KUBE-NWPLCY-TAIL -s {pods} -c "{early}" -m set ! --match-set {p}kube-router-local-pods src {reject} {unreachable}
netpol+deny filter KUBE-NWPLCY-TAIL -d {pods} -c "{early}" -m set ! --match-set {p}kube-router-local-pods dst {reject} {unreachable}
netpol filter KUBE-NWPLCY-TAIL -c "accept netpol-ok" {accept}
netpol+deny filter KUBE-NWPLCY-TAIL -s {pods} -c "{late}" {reject} {unreachable}
netpol+deny filter KUBE-NWPLCY-TAIL -d {pods} -c "{late}" {reject} {unreachable}
any filter FORWARD -o eth0 -c "allow outbound node port traffic on node interface with which node ip is associated" -j ACCEPT
any filter FORWARD -o kube-bridge -c "allow inbound traffic to pods" -j ACCEPT
any filter FORWARD -i kube-bridge -c "allow outbound traffic from pods" -j ACCEPT
any filter INPUT -c "handle traffic to IPVS service IPs in custom chain" {match} {p}kube-router-svip dst -j KUBE-ROUTER-SERVICES
old+primary filter INPUT -c "handle traffic to IPVS service IPs in custom chain" {match} kube-router-service-ips dst -j KUBE-ROUTER-SERVICES
any nat POSTROUTING {leaving} -m set ! --match-set {p}kube-router-node-ips dst -j MASQUERADE{random}
old nat POSTROUTING {leaving} -m set ! --match-set {p}kube-router-node-ips dst -j MASQUERADE
old nat POSTROUTING {leaving} -j MASQUERADE
ipvs nat POSTROUTING ! -s {pods} ! -d {pods} {masq} -j SNAT --to-source {node}{random}
ipvs+old nat POSTROUTING ! -s {pods} ! -d {pods} {masq} -j MASQUERADE
ipvs+old nat POSTROUTING ! -s {pods} ! -d {pods} {masq} -j SNAT --to-source {node}
ipvs+old nat POSTROUTING {masq} -j SNAT --to-source {node}
ipvs nat POSTROUTING -m ipvs --vdir ORIGINAL -j KUBE-ROUTER-HAIRPIN
any nat KUBE-ROUTER-HAIRPIN
any ipset kube-router-pod-subnets net {all_pods}
any ipset kube-router-node-ips ip {node} {peers}
any ipset kube-router-local-ips ip {node} {local}
any ipset kube-router-svip ip
any ipset kube-router-svip-prt ip,port
netpol+deny ipset kube-router-local-pods ip
old+primary ipset kube-router-service-ips ip
old+primary ipset kube-router-ipvs-services ip,port
old+primary ipset kube-router-pod-subnets-temp net
old+primary ipset kube-router-node-ips- ip
nft table {{ comment "rules for {table}"; }}
nft set kube-router-local-pods {{ type {type}; comment "programmed local pod IPs"; }}
nft chain KUBE-NWPLCY-DEFAULT {{ comment "KUBE-NWPLCY-DEFAULT chain for kube-router"; }}
nft chain KUBE-NWPLCY-COMMON {{ comment "KUBE-NWPLCY-COMMON chain for kube-router"; }}
nft chain KUBE-NWPLCY-TAIL {{ comment "KUBE-NWPLCY-TAIL chain for kube-router"; }}
nft rule KUBE-ROUTER-INPUT {ip} daddr {cluster} counter return comment "allow cluster IP range"
nft rule KUBE-ROUTER-INPUT fib daddr type local tcp dport 30000-32767 counter return comment "allow tcp nodeport"
nft rule KUBE-ROUTER-INPUT fib daddr type local udp dport 30000-32767 counter return comment "allow udp nodeport"
nft rule KUBE-ROUTER-INPUT fib daddr type local sctp dport 30000-32767 counter return comment "allow sctp nodeport"
nft rule KUBE-ROUTER-INPUT {ip} daddr {outside} counter return comment "allow traffic to External IP range"
nft rule KUBE-NWPLCY-DEFAULT counter {nft_mark} comment "mark netpol match"
nft rule KUBE-NWPLCY-COMMON ct state invalid counter drop comment "drop invalid state"
nft rule KUBE-NWPLCY-COMMON ct state established,related counter accept comment "accept established/related"
nft+deny rule KUBE-NWPLCY-TAIL {ip} saddr {pods} {ip} saddr != @kube-router-local-pods counter reject comment "{early}"
nft+deny rule KUBE-NWPLCY-TAIL {ip} daddr {pods} {ip} daddr != @kube-router-local-pods counter reject comment "{early}"
nft rule KUBE-NWPLCY-TAIL {nft_accept}
nft+deny rule KUBE-NWPLCY-TAIL {ip} saddr {pods} counter reject comment "{late}"
nft+deny rule KUBE-NWPLCY-TAIL {ip} daddr {pods} counter reject comment "{late}"
"""  # noqa: E501
ICMP = """
netpol filter KUBE-NWPLCY-COMMON -p {icmp} -c "allow icmp {text}" -m {icmp_match} {number} -j ACCEPT
any filter KUBE-ROUTER-SERVICES -p {icmp} -c "allow icmp {text}" -m {icmp_match} {number} -j ACCEPT
nft rule KUBE-NWPLCY-COMMON {icmp_nft} type {name} counter accept comment "allow icmp {name} messages"
"""
POLICY = """
netpol+dst ipset {dst} ip {own}
netpol+src ipset {src} ip {own}
netpol+ingress ipset {from_pods} ip {far}
netpol+ingress match {chain} -p tcp -c "{policy} ingress pods" {match} {p}{from_pods} src {match} {p}{dst} dst -m tcp --dport 8080
netpol+both ipset {block} net {cidr} {hole}!
netpol+both match {chain} -p tcp -c "{policy} ingress any" {match} {p}{dst} dst -m tcp --dport 7000
netpol+both match {chain} -c "{policy} egress cidr" {match} {p}{src} src {match} {p}{block} dst
netpol+egress ipset {to_pods} ip {far}
netpol+egress match {chain} -c "{policy} egress pods" {match} {p}{src} src {match} {p}{to_pods} dst
nft chain {chain} {{ comment "netpol {policy}"; }}
nft+dst set {dst} {{ {set} {own_list} }}
nft+src set {src} {{ {set} {own_list} }}
nft+ingress set {from_pods} {{ {set} {far_list} }}
nft+ingress rule {chain} {ip} saddr @{from_pods} {ip} daddr @{dst} tcp dport 8080 counter {nft_mark} return comment "{policy} ingress pods"
nft+both set {block} {{ type {type}; flags interval; comment "netpol ipblock set"; elements = {{ {cidr} }}; }}
nft+both set {holes} {{ type {type}; flags interval; comment "netpol ipblock except set"; elements = {{ {hole} }}; }}
nft+both chain {subchain}
nft+both rule {subchain} {ip} daddr @{holes} counter return comment "{policy} except-dst"
nft+both rule {subchain} {ip} saddr @{src} {ip} daddr @{block} counter {nft_mark} return comment "{policy} egress cidr"
nft+both rule {chain} {ip} daddr @{dst} tcp dport 7000 counter {nft_mark} return comment "{policy} ingress any"
nft+both rule {chain} counter jump {subchain} comment "{policy} ipblock"
nft+egress set {to_pods} {{ {set} {far_list} }}
nft+egress rule {chain} {ip} saddr @{src} {ip} daddr @{to_pods} counter {nft_mark} return comment "{policy} egress pods"
"""  # noqa: E501
POD = """
netpol filter {chain} -c "common netpol rules" -j KUBE-NWPLCY-COMMON
netpol filter {chain} {to} -c "from local node" -m addrtype --src-type LOCAL -j ACCEPT
netpol+may-send filter {chain} {by} -c "default egress" -j KUBE-NWPLCY-DEFAULT
netpol+may-receive filter {chain} {to} -c "default ingress" -j KUBE-NWPLCY-DEFAULT
netpol+ingress filter {chain} {to} -c "{policy} policy" -j {policy_chain}
netpol+both filter {chain} -c "{policy} policy" -j {policy_chain}
netpol+egress filter {chain} {by} -c "{policy} policy" -j {policy_chain}
netpol filter {chain} -c "{pod} log-drop" {unmarked} -m limit --limit 10/min --limit-burst 10 -j NFLOG --nflog-group 100
netpol filter {chain} -c "{pod} reject" {unmarked} {reject} {unreachable}
netpol filter {chain} -j MARK --set-xmark 0x0/0x10000
netpol filter {chain} -c "set netpol-ok mark" -j MARK --set-xmark 0x20000/0x20000
netpol filter KUBE-ROUTER-FORWARD,KUBE-ROUTER-OUTPUT {to} -c "{pod} in" -j {chain}
netpol filter KUBE-ROUTER-FORWARD {to} {bridged} -c "{pod} in" -j {chain}
netpol filter KUBE-ROUTER-INPUT,KUBE-ROUTER-FORWARD,KUBE-ROUTER-OUTPUT {by} -c "{pod} out" -j {chain}
netpol filter KUBE-ROUTER-FORWARD {by} {bridged} -c "{pod} out" -j {chain}
netpol+old filter FORWARD,OUTPUT,KUBE-ROUTER-FORWARD {to} -c "rule to jump traffic destined to {old_pod}" -j {chain}
netpol+old filter FORWARD {to} {bridged} -c "rule to jump traffic destined to {old_pod}" -j {chain}
netpol+old filter INPUT {by} -c "rule to jump traffic from {old_pod}" -j {chain}
netpol+deny member kube-router-local-pods {address}
nft chain {chain} {{ comment "podfw {pod}"; }}
nft rule {chain} counter jump KUBE-NWPLCY-COMMON comment "common netpol rules"
nft rule {chain} fib saddr type local {ip} daddr {address} counter accept comment "from local node"
nft+ingress rule {chain} {ip} daddr {address} counter jump {policy_chain} comment "{policy} policy"
nft+both rule {chain} counter jump {policy_chain} comment "{policy} policy"
nft+egress rule {chain} {ip} saddr {address} counter jump {policy_chain} comment "{policy} policy"
nft+may-send rule {chain} {ip} saddr {address} counter jump KUBE-NWPLCY-DEFAULT comment "default egress"
nft+may-receive rule {chain} {ip} daddr {address} counter jump KUBE-NWPLCY-DEFAULT comment "default ingress"
nft rule {chain} {nft_unmarked} limit rate 10/minute burst 10 packets log group 100 comment "{pod} log-drop"
nft rule {chain} {nft_unmarked} counter reject comment "{pod} reject"
nft rule {chain} meta mark set meta mark and 0xfffeffff comment "clear netpol mark"
nft rule {chain} meta mark set meta mark or 0x20000 comment "set netpol-ok mark"
nft rule KUBE-ROUTER-FORWARD,KUBE-ROUTER-OUTPUT {ip} daddr {address} counter jump {chain} comment "{pod} in"
nft rule KUBE-ROUTER-INPUT,KUBE-ROUTER-FORWARD,KUBE-ROUTER-OUTPUT {ip} saddr {address} counter jump {chain} comment "{pod} out"
nft+deny element kube-router-local-pods {{ {address} }}
"""  # noqa: E501
SERVICE = """
any member kube-router-svip {address}
any member kube-router-svip-prt {address},tcp:{port}
old+primary member kube-router-service-ips {address}
old+primary member kube-router-ipvs-services {address},tcp:{port}
dsr member kube-router-svip {external}
dsr member kube-router-svip-prt {external},tcp:{port}
dsr mangle PREROUTING,OUTPUT -d {external}{host} -p tcp -m tcp --dport {port} -j MARK --set-xmark {fwmark}/0xffffffff
dsr mangle PREROUTING -s {external}{host} -i kube-bridge -p tcp -m tcp --sport {port} {syn} {mss}
dsr+old mangle PREROUTING -d {external}{host} -p tcp -m tcp {syn} {old_mss}
dsr+old mangle POSTROUTING -s {external}{host} -p tcp -m tcp {syn} {old_mss}
nodeport+primary member kube-router-svip {node}
nodeport+primary member kube-router-svip-prt {node},tcp:{node_port}
nodeport+ipvs+pods nat KUBE-ROUTER-HAIRPIN {pod} -m ipvs --vaddr {address} --vport {port} -j SNAT --to-source {address}
nodeport+ipvs+pods nat KUBE-ROUTER-HAIRPIN {pod} -m ipvs --vaddr {node} --vport {node_port} -j SNAT --to-source {node}
"""  # noqa: E501
HOOK = """
netpol filter KUBE-ROUTER-{hook} -c "{tail}" -j KUBE-NWPLCY-TAIL
netpol filter KUBE-ROUTER-{hook} -c "rule to explicitly ACCEPT traffic that comply to network policies" {accept}
netpol+old filter KUBE-ROUTER-{hook} -c "explicitly ACCEPT traffic that complies with network policies" {accept}
netpol+old filter {hook} -c "kube-router netpol" -j KUBE-ROUTER-{hook}
k3s filter {hook} -c "KUBE-ROUTER rule to explicitly ACCEPT traffic that comply to network policies" {accept}
nft chain KUBE-ROUTER-{hook} {{ type filter hook {lower} priority 0; policy accept; comment "top level KUBE-ROUTER-{hook} chain for kube-router"; }}
nft rule KUBE-ROUTER-{hook} counter jump KUBE-NWPLCY-TAIL comment "netpol accept/reject"
nft rule KUBE-ROUTER-{hook} {nft_accept}
"""  # noqa: E501
END = """
any filter KUBE-ROUTER-SERVICES -c "allow input traffic to ipvs services" {match} {p}kube-router-svip-prt dst,dst -j ACCEPT
any filter KUBE-ROUTER-SERVICES -c "reject all unexpected traffic to service IPs" -m set ! --match-set {p}kube-router-local-ips dst {reject} {unreachable}
"""  # noqa: E501
WORDS = {
    "match": "-m set --match-set", "bridged": "-m physdev --physdev-is-bridged",
    "mark": "-j MARK --set-xmark 0x10000/0x10000", "nft_mark": "meta mark set meta mark or 0x10000",
    "unmarked": "-m mark ! --mark 0x10000/0x10000", "nft_unmarked": "meta mark and 0x10000 == 0",
    "accept": "-m mark --mark 0x20000/0x20000 -j ACCEPT", "reject": "-j REJECT --reject-with",
    "nft_accept": 'meta mark and 0x20000 == 0x20000 counter accept comment "accept netpol-ok"',
    "ports": "-m addrtype --dst-type LOCAL -m multiport --dports 30000:32767 -j RETURN",
    "syn": "--tcp-flags SYN,RST SYN -j TCPMSS --set-mss", "masq": '-m ipvs --vdir ORIGINAL --vmethod MASQ -c ""',
    "early": "reject unprogrammed local pod (default-deny)", "late": "reject pre-netpol (default-deny)",
    "tail": "rule to explicitly handle traffic for network policies ACCEPT/REJECT decision",
}  # fmt: skip
NO_POLICY = {"way": "", "namespace": "kube-system", "policy": "", "chain": ""}
TRUE = {  # of a policy, by its way, and of its pods
    "ingress": ("ingress", "dst", "may-send"), "both": ("both", "dst", "src"),
    "egress": ("egress", "src", "may-receive"), "": ("may-send", "may-receive"),
}  # fmt: skip
OPTIONS = "hash:{} family {} hashsize 1024 maxelem 65536 timeout 0"
