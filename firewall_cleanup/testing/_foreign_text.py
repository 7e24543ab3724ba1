"""What others have on a node, as templates; `foreign.py` fills them in."""

from __future__ import annotations

__all__ = ["MATCHES", "NFT", "NFT_KUBE_PROXY", "POLICIES", "RULES", "SETS", "WORDS"]

POLICIES = {
    "raw": dict.fromkeys(("PREROUTING", "OUTPUT"), "ACCEPT"),
    "mangle": dict.fromkeys(("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"), "ACCEPT"),
    "nat": dict.fromkeys(("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"), "ACCEPT"),
    "filter": {"INPUT": "DROP", "FORWARD": "DROP", "OUTPUT": "ACCEPT"},
}

# All that differs between the families.
WORDS = {
    "ipv4": {
        "host": "/32", "icmp": "icmp", "icmp_match": "icmp --icmp-type", "echo": "8", "mask": "255.255.255.255",
        "reject": "-j REJECT --reject-with icmp-port-unreachable", "ufw": "ufw", "loopback": "127.0.0.0/8",
        "dhcp": "-p udp -m udp --sport 67 --dport 68", "multicast": "224.0.0.251/32", "node": "192.0.2.20",
        "admin": "192.0.2.128/25", "docker": "203.0.113.192/26", "container": "203.0.113.194", "to": "203.0.113.194",
        "service": "203.0.113.10", "vip": "203.0.113.20", "pods": "198.51.100.0/26", "pod": "198.51.100.10",
        "dnat": "198.51.100.10", "dns": "192.0.2.253", "blocklist": "blocklist", "banned": "f2b-sshd",
        "cluster_ip": "KUBE-CLUSTER-IP", "own": "kube-router-extra", "odd": "web;$HOME#1", "ip": "ip",
        "type": "ipv4_addr",
    },
    "ipv6": {
        "host": "/128", "icmp": "ipv6-icmp", "icmp_match": "icmp6 --icmpv6-type", "echo": "128",
        "mask": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "reject": "-j REJECT --reject-with icmp6-port-unreachable",
        "ufw": "ufw6", "loopback": "::1/128", "multicast": "ff02::fb/128", "node": "2001:db8:1::20",
        "dhcp": "-s fe80::/10 -d fe80::/10 -p udp -m udp --sport 547 --dport 546", "admin": "2001:db8:1:0:8000::/65",
        "docker": "2001:db8:d0c::/64", "container": "2001:db8:d0c::2", "to": "[2001:db8:d0c::2]",
        "service": "2001:db8:f::10", "vip": "2001:db8:f::20", "pods": "2001:db8:cafe::/64",
        "pod": "2001:db8:cafe::10", "dnat": "[2001:db8:cafe::10]", "dns": "2001:db8:53::10",
        "blocklist": "blocklist6", "banned": "f2b-sshd6", "cluster_ip": "KUBE-6-CLUSTER-IP", "own": "inet6:mine",
        "odd": "inet6:mine", "ip": "ip6", "type": "ipv6_addr",
    },
}  # fmt: skip

# Rules by table: chain and rule (none: the chain is empty); `-c` stands for `-m comment --comment`.
RULES = {
    "raw": r"""
PREROUTING -c "cali:6gwbT8clXdHdC1b1" -j cali-PREROUTING
PREROUTING -c "cilium-feeder: CILIUM_PRE_raw" -j CILIUM_PRE_raw
PREROUTING -d {dns}{host} -p udp -c "NodeLocal DNS Cache: skip conntrack" -m udp --dport 53 -j NOTRACK
PREROUTING -d {dns}{host} -p tcp -c "NodeLocal DNS Cache: skip conntrack" -m tcp --dport 53 -j NOTRACK
OUTPUT -s {dns}{host} -p udp -c "NodeLocal DNS Cache: skip conntrack" -m udp --sport 53 -j NOTRACK
OUTPUT -d {dns}{host} -p tcp -c "NodeLocal DNS Cache: skip conntrack" -m tcp --dport 8080 -j NOTRACK
OUTPUT -c "cali:tbw5BQl9Qwhy8hyS" -j cali-OUTPUT
CILIUM_PRE_raw -m mark --mark 0x200/0xf00 -c "cilium: NOTRACK for proxy traffic" -j NOTRACK
cali-PREROUTING -c "cali:XFX5xbM8B9qR10JG" -j MARK --set-xmark 0x0/0xf0000
cali-PREROUTING -i cali+ -c "cali:EWMPb0zVROM-woQp" -j MARK --set-xmark 0x40000/0x40000
cali-OUTPUT -c "cali:njdnLwYeGqBJyMxW" -j MARK --set-xmark 0x0/0xf0000
""",
    "mangle": r"""
PREROUTING -c "cilium-feeder: CILIUM_PRE_mangle" -j CILIUM_PRE_mangle
PREROUTING -d {vip}{host} -p tcp -m tcp --dport 443 -j MARK --set-xmark 0x4d/0xffffffff
PREROUTING -i wg0 -j MARK --set-xmark 0x10000/0x10000
PREROUTING -s {vip}{host} -p tcp -m tcp --sport 443 --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1380
FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
FORWARD -i kube-bridge -o wg0 -j MARK --set-xmark 0x20000/0x20000
OUTPUT -d {vip}{host} -p tcp -m tcp --dport 443 -j MARK --set-xmark 0x4d/0xffffffff
POSTROUTING -o wg0 -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1380
CILIUM_PRE_mangle -m mark --mark 0xa00/0xf00 -c "cilium: any->pod redirect proxied traffic to host proxy" -j ACCEPT
KUBE-IPTABLES-HINT
KUBE-KUBELET-CANARY
KUBE-PROXY-CANARY
""",
    "nat": r"""
PREROUTING -c "cali:6gwbT8clXdHdC1b1" -j cali-PREROUTING
PREROUTING -c "kubernetes service portals" -j KUBE-SERVICES
PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
OUTPUT -c "kubernetes service portals" -j KUBE-SERVICES
OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
OUTPUT ! -d {loopback} -m addrtype --dst-type LOCAL -j DOCKER
POSTROUTING -c "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
POSTROUTING -c "cali:O3lYWMrLQYEMJtB5" -j cali-POSTROUTING
POSTROUTING -c "cilium-feeder: CILIUM_POST_nat" -j CILIUM_POST_nat
POSTROUTING -c "kubernetes postrouting rules" -j KUBE-POSTROUTING
POSTROUTING -s {docker} ! -o docker0 -j MASQUERADE
POSTROUTING -s {container}{host} -d {container}{host} -p tcp -m tcp --dport 80 -j MASQUERADE
POSTROUTING -m set --match-set {own} src -m set ! --match-set {own} dst -j MASQUERADE --random-fully
POSTROUTING -o wg0 -c "by hand, not ipvs: SNAT" -j SNAT --to-source {node}
POSTROUTING ! -s {pods} ! -d {pods} -c "" -j MASQUERADE
POSTROUTING -s {pods} -c "KUBE-ROUTER-HAIRPIN is not used here" -j RETURN
DOCKER -i docker0 -j RETURN
DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination {to}:80
CILIUM_POST_nat -s {pods} ! -d {pods} ! -o cilium_+ -c "cilium masquerade non-cluster" -j MASQUERADE
CNI-DN-0123456789abcdef01234 -s {pods} -p tcp -m tcp --dport 8443 -j CNI-HOSTPORT-SETMARK
CNI-DN-0123456789abcdef01234 -p tcp -m tcp --dport 8443 -j DNAT --to-destination {dnat}:443
CNI-HOSTPORT-DNAT -p tcp -c "dnat name: \"mynet\" id: \"5e\"" -m tcp --dport 8443 -j CNI-DN-0123456789abcdef01234
CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
CNI-HOSTPORT-SETMARK -c "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
KUBE-KUBELET-CANARY
KUBE-PROXY-CANARY
KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
KUBE-NODEPORTS -p tcp -c "shop/web:http" -m tcp --dport 30443 -j KUBE-EXT-MBIMWAFW6O5N5C2Q
KUBE-EXT-MBIMWAFW6O5N5C2Q -c "masquerade traffic for shop/web:http external destinations" -j KUBE-MARK-MASQ
KUBE-EXT-MBIMWAFW6O5N5C2Q -j KUBE-SVC-MBIMWAFW6O5N5C2Q
KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
KUBE-POSTROUTING -c "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
KUBE-SEP-3KRYM5VDK2QLTTYO -s {pod}{host} -c "shop/web:http" -j KUBE-MARK-MASQ
KUBE-SEP-3KRYM5VDK2QLTTYO -p tcp -c "shop/web:http" {recent} --set {name} -m tcp -j DNAT --to-destination {dnat}:8080
KUBE-SERVICES -d {service}{host} -p tcp -c "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-MBIMWAFW6O5N5C2Q
KUBE-SERVICES -m set --match-set {cluster_ip} dst,dst -j RETURN
KUBE-SERVICES -c "kubernetes service nodeports; NOTE: must be the last rule in this chain" {local} -j KUBE-NODEPORTS
KUBE-SVC-MBIMWAFW6O5N5C2Q ! -s {pods} -d {service}{host} -p tcp -c "shop/web:http cluster IP" {http} -j KUBE-MARK-MASQ
KUBE-SVC-MBIMWAFW6O5N5C2Q -c "shop/web:http -> {dnat}:8080" {recent} --rcheck {affinity} -j KUBE-SEP-3KRYM5VDK2QLTTYO
KUBE-SVC-MBIMWAFW6O5N5C2Q -c "shop/web:http -> {dnat}:8080" {half} -j KUBE-SEP-3KRYM5VDK2QLTTYO
cali-PREROUTING -c "cali:r6XmIziWUJsdOK6Z" -j cali-fip-dnat
cali-fip-dnat
cali-POSTROUTING -o tunl0 -c "cali:JHlpT-eSqR1TvyYm" {tunnel} -j MASQUERADE
""",
    "filter": r"""
INPUT -p tcp -m multiport --dports 22,2222 -j f2b-sshd
INPUT -c "cali:Cz_u1IQiXIMmKD4c" -j cali-INPUT
INPUT -c "cilium-feeder: CILIUM_INPUT" -j CILIUM_INPUT
INPUT -j KUBE-FIREWALL
INPUT -m conntrack --ctstate NEW -c "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
INPUT -c "kubernetes health check service ports" -j KUBE-NODEPORTS
INPUT -m conntrack --ctstate NEW -c "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
INPUT -d {dns}{host} -p udp -c "NodeLocal DNS Cache: allow DNS traffic" -m udp --dport 53 -j ACCEPT
INPUT -m set --match-set {blocklist} src -j DROP
INPUT -m set --match-set {odd} src -j DROP
INPUT -j MY-KUBE-ROUTER-INPUT
INPUT -c "kube-router netpol - 4IA2OSFRMVNDXBVV" -j KUBE-ROUTER-INPUTS
INPUT -s {admin} -c "kube-router netpol - 4IA2OSFRMVNDXBVV" -j ACCEPT
INPUT -s {admin} -c "see KUBE-ROUTER-INPUT and KUBE-POD-FW-ABCDEFGHIJKLMNOP" -j ACCEPT
INPUT -s {admin} -m comment --comment COMMIT -j ACCEPT
INPUT -s {admin} -c "COMMIT # Completed" -j ACCEPT
INPUT -s {admin} -c "*filter" -j ACCEPT
INPUT -s {admin} -c ":KUBE-ROUTER-INPUT - [0:0]" -j ACCEPT
INPUT -s {admin} -c "say \"KUBE-ROUTER-INPUT\", it\'s C:\\temp; $HOME `id`" -j ACCEPT
INPUT -s {admin} -c "\" -j KUBE-ROUTER-FORWARD" -j ACCEPT
INPUT -m mark --mark 0x20000/0x20000 -j ACCEPT
INPUT -p tcp -c "written through {backend}" -m tcp --dport 9100 -j KUBE-POD-FW-abc
INPUT -m set --match-set {own} dst -c "handle traffic to IPVS service IPs in custom chain" -j RETURN
INPUT -j {ufw}-before-logging-input
INPUT -j {ufw}-before-input
INPUT -j {ufw}-after-input
INPUT -j {ufw}-reject-input
INPUT -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT
INPUT -i lo -j ACCEPT
INPUT -j INPUT_direct
INPUT -j INPUT_ZONES
FORWARD -c "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
FORWARD -c "cilium-feeder: CILIUM_FORWARD" -j CILIUM_FORWARD
FORWARD -m conntrack --ctstate NEW -c "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
FORWARD -c "kubernetes forwarding rules" -j KUBE-FORWARD
FORWARD -m conntrack --ctstate NEW -c "kubernetes service portals" -j KUBE-SERVICES
FORWARD -j DOCKER-USER
FORWARD -j DOCKER-ISOLATION-STAGE-1
FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
FORWARD -o docker0 -j DOCKER
FORWARD -i docker0 ! -o docker0 -j ACCEPT
FORWARD -i docker0 -o docker0 -j ACCEPT
FORWARD -i kube-bridge -c "allow outbound traffic from pods to the office" -j ACCEPT
FORWARD -i kube-bridge -j ACCEPT
FORWARD -i kube-bridge -o wg0 -c "allow outbound traffic from pods" -j ACCEPT
FORWARD -o cni0 -c "allow inbound traffic to pods" -j ACCEPT
FORWARD -d {pod}{host} -c "rule to jump traffic destined to POD name:web" -j KUBE-POD-FW-ABCDEFGHIJKLMNO
FORWARD -s {admin} -c "-j KUBE-ROUTER-FORWARD" -j ACCEPT
FORWARD -m mark --mark 0x20000/0x20000 -j ACCEPT
FORWARD -j KUBE-NWPLCY-TAILS
FORWARD -j {ufw}-user-forward
FORWARD -j FWDI_public
FORWARD -c "cali:S93hcgKJrXEqnTfs" -c "Policy explicitly accepted packet." -m mark --mark 0x10000/0x10000 -j ACCEPT
OUTPUT -c "cali:tVnHkvAo15HuiPy0" -j cali-OUTPUT
OUTPUT -j KUBE-FIREWALL
OUTPUT -m conntrack --ctstate NEW -c "kubernetes service portals" -j KUBE-SERVICES
OUTPUT -s {dns}{host} -p udp -c "NodeLocal DNS Cache: allow DNS traffic" -m udp --sport 53 -j ACCEPT
OUTPUT -j {ufw}-before-output
OUTPUT -m mark --mark 0x20000/0x20000 -j ACCEPT
DOCKER -d {container}{host} ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
DOCKER-ISOLATION-STAGE-1 -j RETURN
DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
DOCKER-ISOLATION-STAGE-2 -j RETURN
DOCKER-USER -s {admin} -c "KUBE-ROUTER-FORWARD must not come first" -j RETURN
DOCKER-USER -j RETURN
CILIUM_INPUT -m mark --mark 0x200/0xf00 -c "cilium: ACCEPT for proxy traffic" -j ACCEPT
CILIUM_FORWARD -o cilium_host -c "cilium: any->cluster on cilium_host forward accept" -j ACCEPT
FWDI_public -j FWDI_public_allow
FWDI_public -p {icmp} -j ACCEPT
FWDI_public_allow
INPUT_direct
INPUT_ZONES -g IN_public
IN_public -j IN_public_allow
IN_public -p {icmp} -j ACCEPT
IN_public_allow -p tcp -m tcp --dport 22 -m conntrack --ctstate NEW,UNTRACKED -j ACCEPT
KUBE-EXTERNAL-SERVICES
KUBE-FIREWALL -c "kubernetes firewall for dropping marked packets" -m mark --mark 0x8000/0x8000 -j DROP
KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
KUBE-FORWARD -c "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
KUBE-FORWARD -c "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
KUBE-KUBELET-CANARY
KUBE-NODEPORTS -p tcp -c "shop/web:http health check node port" -m tcp --dport 31234 -j ACCEPT
KUBE-PROXY-CANARY
KUBE-PROXY-FIREWALL
KUBE-SERVICES -d {vip}{host} -p tcp -c "shop/idle:http has no endpoints" -m tcp --dport 80 {reject}
KUBE-NWPLCY-TAILS -c "accept netpol-ok" -m mark --mark 0x20000/0x20000 -j ACCEPT
KUBE-POD-FW-ABCDEFGHIJKLMNO -c "set netpol-ok mark" -j MARK --set-xmark 0x20000/0x20000
KUBE-POD-FW-abc -j KUBE-POD-FW-ABCDEFGHIJKLMN01
KUBE-POD-FW-ABCDEFGHIJKLMN01 -j RETURN
KUBE-ROUTER-INPUTS -m mark --mark 0x20000/0x20000 -j ACCEPT
MY-KUBE-ROUTER-INPUT -s {admin} -c "rule to explicitly ACCEPT traffic that comply to network policies" -j ACCEPT
cali-FORWARD -i cali+ -c "cali:8ZoYfO5HKXWbB3pk" -j cali-from-wl-dispatch
cali-INPUT -p udp -c "cali:J76FwxInZIsk7uKY" -c "Allow IPv4 VXLAN packets" -m multiport --dports 4789 -j ACCEPT
cali-OUTPUT -c "cali:Mq1_rAdXXH3YkrzW" -m mark --mark 0x10000/0x10000 -j ACCEPT
cali-from-wl-dispatch -c "cali:zTj6P0TIgYvgz-md" -c "Unknown interface" -j DROP
f2b-sshd -m set --match-set {banned} src {reject}
f2b-sshd -s {container}{host} {reject}
f2b-sshd -j RETURN
{ufw}-after-input -p udp -m udp --dport 137 -j {ufw}-skip-to-policy-input
{ufw}-before-input -i lo -j ACCEPT
{ufw}-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
{ufw}-before-input -m conntrack --ctstate INVALID -j {ufw}-logging-deny
{ufw}-before-input -m conntrack --ctstate INVALID -j DROP
{ufw}-before-input -p {icmp} -m {icmp_match} {echo} -j ACCEPT
{ufw}-before-input {dhcp} -j ACCEPT
{ufw}-before-input -d {multicast} -p udp -m udp --dport 5353 -j ACCEPT
{ufw}-before-input -j {ufw}-user-input
{ufw}-before-logging-input
{ufw}-before-output -o lo -j ACCEPT
{ufw}-logging-deny -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "
{ufw}-reject-input
{ufw}-skip-to-policy-input -j DROP
{ufw}-user-forward -i kube-bridge -o wg0 -j ACCEPT
{ufw}-user-input -p tcp -m tcp --dport 22 -c "\'dapp_OpenSSH\'" -j ACCEPT
{ufw}-user-input -p tcp -m multiport --dports 80,443 -j ACCEPT
""",
}
MATCHES = {
    "http": "-m tcp --dport 80",
    "recent": "-m recent",
    "affinity": "--seconds 10800 --reap --name KUBE-SEP-3KRYM5VDK2QLTTYO --mask {mask} --rsource",
    "name": "--name KUBE-SEP-3KRYM5VDK2QLTTYO --mask {mask} --rsource",
    "half": "-m statistic --mode random --probability 0.50000000000",
    "local": "-m addrtype --dst-type LOCAL",
    "tunnel": "-m addrtype ! --src-type LOCAL --limit-iface-out -m addrtype --src-type LOCAL",
}

SETS = """\
create blocklist hash:net family inet hashsize 1024 maxelem 65536 counters comment
add blocklist 203.0.113.208/28 packets 12 bytes 720 comment "KUBE-ROUTER-INPUT; do not remove"
create blocklist6 hash:net family inet6 hashsize 1024 maxelem 65536
add blocklist6 2001:db8:bad::/48
create f2b-sshd hash:ip family inet hashsize 1024 maxelem 65536 timeout 600
add f2b-sshd 203.0.113.250 timeout 0
create f2b-sshd6 hash:ip family inet6 hashsize 1024 maxelem 65536 timeout 600
create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536
add KUBE-CLUSTER-IP 203.0.113.10,tcp:80
create KUBE-6-CLUSTER-IP hash:ip,port family inet6 hashsize 1024 maxelem 65536
add KUBE-6-CLUSTER-IP 2001:db8:f::10,tcp:80
create TMP-mine hash:ip family inet hashsize 1024 maxelem 65536 timeout 0
create TMP-AAAAAAAAAAAAAAAA hash:ip family inet hashsize 1024 maxelem 65536
add TMP-AAAAAAAAAAAAAAAA 192.0.2.77
create inet6:mine hash:net family inet6 hashsize 1024 maxelem 65536
add inet6:mine 2001:db8:cafe::/64
create kube-router-extra hash:net family inet hashsize 1024 maxelem 65536 timeout 0
add kube-router-extra 198.51.100.0/26 timeout 0
create KUBE-SRC-short hash:ip family inet hashsize 1024 maxelem 65536 timeout 0
create web;$HOME#1 hash:net family inet hashsize 1024 maxelem 65536
add web;$HOME#1 192.0.2.64/26
create admin-lists list:set size 8
add admin-lists blocklist
add admin-lists TMP-mine
"""

NFT = """\
table inet firewalld {
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		iifname "lo" accept
		jump filter_INPUT_ZONES comment "not KUBE-ROUTER-INPUT"
		reject with icmpx admin-prohibited
	}

	chain filter_INPUT_ZONES {
		iifname "kube-bridge" accept
		goto filter_IN_public
	}

	chain filter_IN_public {
		tcp dport 22 accept
	}
}
table inet filter {
	set kube-router-svip {
		type ipv4_addr
		elements = { 203.0.113.20 }
	}

	chain KUBE-POD-FW-ABCDEFGHIJKLMNOPQ {
		counter packets 3 bytes 180 accept
	}

	chain input {
		type filter hook input priority filter; policy accept;
		ip daddr @kube-router-svip counter packets 12 bytes 720 accept
		meta mark & 0x00020000 == 0x00020000 jump KUBE-POD-FW-ABCDEFGHIJKLMNOPQ
	}
}
table ip kube-router-filter {
	comment "rules for kube-router-filter"
	set KUBE-SRC-ABCDEFGHIJKLMNOP {
		type ipv4_addr
		elements = { 198.51.100.10 }
	}

	chain KUBE-ROUTER-INPUT {
		type filter hook input priority filter; policy accept;
		ip saddr @KUBE-SRC-ABCDEFGHIJKLMNOP counter packets 7 bytes 420 accept
	}
}
table ip6 kube-router-filter-ipv4 {
	chain KUBE-NWPLCY-DEFAULT {
	}
}
"""
NFT_KUBE_PROXY = """\
table {ip} kube-proxy {{
	comment "rules for kube-proxy"
	map service-ips {{
		type {type} . inet_proto . inet_service : verdict
		comment "ClusterIP, ExternalIP and LoadBalancer IP traffic"
		elements = {{ {service} . tcp . 80 : goto service-MBIMWAFW-shop/web/tcp/http }}
	}}

	chain services {{
		{ip} daddr . meta l4proto . th dport vmap @service-ips
	}}

	chain service-MBIMWAFW-shop/web/tcp/http {{
		counter packets 5 bytes 300 accept
	}}

	chain nat-prerouting {{
		type nat hook prerouting priority dstnat; policy accept;
		jump services
	}}
}}
"""
