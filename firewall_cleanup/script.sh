# == always
say() { printf '%s\n' "$*" >&2; }

# Counts and tells what stays although it should go; the rest goes on.
failed=0
left() {
    failed=$((failed + 1))
    say "left: $*"
}

newline='
'

# Tells whether a list, of one name a line, has a name.
is_in() {
    case "$newline$1$newline" in *"$newline$2$newline"*) return 0 ;; esac
    return 1
}

# Prints those lines of standard input that the list $1 has.
in_list() {
    { printf '%s\n\n' "$1" && cat; } | awk '!NF { second = 1; next } !second { seen[$0]; next } $0 in seen'
}

# Prints the names of the list $2, each behind the word $1.
lines() { printf '%s\n' "$2" | awk -v word="$1" 'NF { print word " " $0 }'; }

# Tells whether the kernel has a subsystem ($2 is a symbol of it). Asking one that it does not have would load it.
loaded() {
    if [ ! -e /proc/modules ] || [ -e "/sys/module/$1" ]; then return 0; fi
    read -r release </proc/sys/kernel/osrelease
    for file in "/lib/modules/$release/modules.builtin" /proc/kallsyms; do
        if [ -r "$file" ]; then
            awk -v end="/$1.ko" -v symbol="$2" '
                substr($0, length($0) - length(end) + 1) == end || $3 == symbol { found = 1; exit } END { exit !found }
            ' "$file"
            return
        fi
    done
}

missing=''
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing, $1"; }

begin() {
    if [ "$(id -u)" -ne 0 ]; then
        say "not root: run it as root; nothing was changed"
        exit 2
    fi
    need awk
    need sed
    if [ -n "$missing" ]; then
        say "missing on this machine: ${missing#, }; nothing was changed"
        exit 2
    fi
}

finish() {
    if [ "$1" -gt 0 ]; then say "left by the plan, or not examined: $1, named at the end of this script"; fi
    if [ $((failed + $1)) -gt 0 ]; then
        say "not clean: $((failed + $1)) left"
        exit 1
    fi
    say "clean: nothing of this plan is left"
    exit 0
}

# == iptables
# Sets $iptables to the command of a family ($1: iptables, ip6tables) for a backend ($2: nft, legacy).
tools() {
    for iptables in "$1-$2" "$1"; do
        if is_backend "$2" && command -v "$iptables-save" >/dev/null && command -v "$iptables-restore" >/dev/null; then
            return 0
        fi
    done
    return 1
}

is_backend() {
    version=$("$iptables" -V 2>/dev/null) || return 1
    case $version in
        *nf_tables*) [ "$1" = nft ] ;;
        *) [ "$1" = legacy ] ;; # before 1.8 it does not say so
    esac
}

need_iptables() { tools "$1" "$2" || missing="$missing, $1 for $2 ($1-$2, $1-$2-save, $1-$2-restore)"; }

# Begins with a table of a family and a backend: what it has is in $seen, what shall go is gathered and then done.
table() {
    tools "$1" "$2" || exit 2
    backend=$2 table=$3 where="$1 $2 $3"
    case $1 in
        iptables) nft_family=ip names=/proc/self/net/ip_tables_names ;;
        *) nft_family=ip6 names=/proc/self/net/ip6_tables_names ;;
    esac
    batch='' going='' emptied=''
    list_chains || left "$where: its chains cannot be listed"
}

# Looking must not make a table: what the kernel does not have is not asked for. A table is $mixed if other tools than
# iptables made rules in it, which iptables may not be able to read.
list_chains() {
    seen='' mixed=''
    if [ "$backend" = legacy ]; then
        is_in "$(cat "$names" 2>/dev/null)" "$table" || return 0
    else
        loaded nf_tables nf_tables_newtable || return 0
    fi
    seen=$(saved_chains) && return 0
    seen=''
    if [ "$backend" = legacy ] || ! command -v nft >/dev/null; then return 1; fi
    is_in "$(nft list tables)" "table $nft_family $table" || return 0
    mixed=yes
    seen=$(nft list table "$nft_family" "$table" 2>/dev/null | awk '$1 == "chain" && $3 == "{" { print $2 }')
    [ -n "$seen" ]
}

saved_chains() {
    { "$iptables-save" -t "$table" 2>/dev/null && echo '# all'; } |
        awk '/^\*/ { found = 1 } /^:/ { print substr($1, 2) } { last = $0 } END { exit !found || last != "# all" }'
}

# Runs lines for a table in one commit; the table's other rules keep their counters.
restore() { printf '*%s\n%s\nCOMMIT\n' "$table" "$1" | "$iptables-restore" -w "$wait" --noflush; }

# The chains that go, or are only emptied, from standard input; those that are not there are left out.
chains() { going=$(in_list "$seen"); }
emptied() { emptied=$(in_list "$seen"); }

# A rule that goes as many times as $1 says: its chain, and its words as iptables-save prints them.
rule() {
    if [ -n "$mixed" ]; then
        delete_rule "$@"
    else
        gather "$@"
    fi
}

# The same for one that jumps to the chain $1, which goes too: without that chain there is no such rule.
jump() {
    target=$1
    shift
    is_in "$seen" "$target" || return 0
    if [ -n "$mixed" ]; then
        jump_by_nft "$target" "$1" "$2"
    else
        gather "$@"
    fi
}

# A rule that uses the set $1: without it there is none, and iptables does not understand its words.
using() {
    set=$1
    shift
    if is_in "$sets" "$set"; then "$@"; fi
}

sets=''
list_sets() {
    loaded ip_set ip_set_create || return 0
    sets=$(ipset list -n) || left "ipset: the sets cannot be listed, so rules that use them were not looked for"
}

gather() {
    count=$1
    shift
    is_in "$seen" "$1" || return 0
    line=-D
    for word; do
        case $word in
            '' | *"$newline"*) # no line of iptables-restore can say that
                delete_rule "$count" "$@"
                return 0
                ;;
            *[!-A-Za-z0-9_./:,=!+@%]*) line="$line \"$(printf '%s\n' "$word" | sed 's/[\\"]/\\&/g')\"" ;;
            *) line="$line $word" ;;
        esac
    done
    while [ "$count" -gt 0 ]; do
        batch="$batch$line$newline"
        count=$((count - 1))
    done
}

delete_rule() {
    count=$1
    shift
    while [ "$count" -gt 0 ] && is_in "$seen" "$1"; do
        status=0
        said=$("$iptables" -w "$wait" -t "$table" -C "$@" 2>&1) || status=$?
        if [ "$status" -eq 0 ]; then said=$("$iptables" -w "$wait" -t "$table" -D "$@" 2>&1) || status=$?; fi
        case $backend-$status in
            *-0) count=$((count - 1)) ;;
            *-1) return 0 ;; # it is not there
            legacy-4) give_up ;;
            *)
                left "$where: rule $*: $said"
                return 0
                ;;
        esac
    done
}

# Deletes at most $2 rules of the chain $3 that jump to the chain $1, by what they do, where iptables cannot.
jump_by_nft() {
    is_in "$seen" "$1" || return 0
    handles=$(nft -a list chain "$nft_family" "$table" "$3" 2>/dev/null | awk -v target="$1" -v most="$2" '
        { handle = $NF; if (!sub(/ # handle [0-9]+$/, "")) next; sub(/ comment "[^"]*"$/, "") }
        $NF == target && ($(NF - 1) == "jump" || $(NF - 1) == "goto") && count < most { count++; print handle }
    ')
    for handle in $handles; do
        said=$(nft delete rule "$nft_family" "$table" "$3" handle "$handle" 2>&1) ||
            left "$where: a rule of $3 that jumps to $1: $said"
    done
}

# A rule of the chain $2 that jumps to the chain $1, and that iptables could not print when the plan was made.
unnamed() {
    if is_in "$seen" "$1"; then left "$where: $2: iptables cannot tell it from other rules: $3"; fi
}

# Another program holds the xtables lock: the next command would wait as long again.
give_up() {
    left "$where: the xtables lock is held by another program; nothing was removed from this table"
    seen='' batch='' going='' emptied=''
}

# Does for the chains of the list $2 what $1 says, -F or -X, in as few commits as it takes when some are refused.
each() (
    [ -n "$2" ] || exit 0
    code=0
    restore "$(lines "$1" "$2")" >/dev/null 2>&1 || code=$?
    [ "$code" -ne 0 ] || exit 0
    if [ "$backend-$code" = legacy-4 ]; then exit 1; fi # no lock, and not for the next one either
    half=$(($(printf '%s\n' "$2" | awk 'END { print NR }') / 2))
    [ "$half" -gt 0 ] || exit 0
    each "$1" "$(printf '%s\n' "$2" | awk -v half="$half" 'NR <= half')" || exit 1
    each "$1" "$(printf '%s\n' "$2" | awk -v half="$half" 'NR > half')"
)

# Removes what was gathered, in one commit. If that is refused because a rule is not there, it is left out; if it is
# refused for something else, as much is removed as is possible.
commit() {
    before=$failed
    attempt
    if [ "$status" -ne 0 ] && [ -n "$batch" ]; then
        leave_out_what_is_gone
        attempt
    fi
    [ -n "$batch$going$emptied" ] || return 0
    if [ "$status" -ne 0 ]; then
        say "$where: not in one step: $said"
        step_by_step
    fi
    list_chains || left "$where: its chains cannot be listed again"
    still=$(printf '%s\n' "$going" | in_list "$seen")
    while IFS= read -r name; do
        if [ -n "$name" ]; then left "$where: chain $name: something that came since uses it, or it was refused"; fi
    done <<LIST
$still
LIST
    if [ "$failed" -eq "$before" ]; then say "$where: done"; fi
}

attempt() {
    status=0
    [ -n "$batch$going$emptied" ] || return 0
    said=$(restore "$batch$(lines -F "$emptied$newline$going")$newline$(lines -X "$going")" 2>&1) || status=$?
    if [ "$backend-$status" = legacy-4 ]; then
        give_up
        status=0
    fi
}

leave_out_what_is_gone() {
    all=$batch batch=''
    while IFS= read -r line; do
        [ -n "$line" ] || continue
        status=0
        said=$(restore "-C${line#-D}" 2>&1) || status=$?
        case $backend-$status in
            *-0) batch="$batch$line$newline" ;;
            *-1) ;;
            legacy-4)
                give_up
                return 0
                ;;
            *) left "$where: $line: $said" ;;
        esac
    done <<LIST
$all
LIST
}

step_by_step() {
    while IFS= read -r line; do
        if [ -z "$line" ] || said=$(restore "$line" 2>&1); then continue; fi
        status=0
        restore "-C${line#-D}" >/dev/null 2>&1 || status=$?
        if [ "$status" -ne 1 ]; then left "$where: $line: $said"; fi
    done <<LIST
$batch
LIST
    if each -F "$emptied$newline$going"; then each -X "$going" || :; fi
}

# == nft
# Deletes whole tables of nftables, from standard input, in one step.
nft_tables() {
    loaded nf_tables nf_tables_newtable || return 0
    if ! seen=$(nft list tables); then
        left "nftables: the tables cannot be listed"
        return 0
    fi
    going=$(sed 's/^/table /' | in_list "$seen")
    [ -n "$going" ] || return 0
    if said=$(lines delete "$going" | nft -f - 2>&1); then
        say "nftables: done"
    else
        left "nftables: $going: $said"
    fi
}

# == ipset
# Destroys sets, from standard input. The kernel lets go of those of rules that just went after a moment.
sets() {
    planned=$(cat)
    loaded ip_set ip_set_create || return 0
    tries=0
    while :; do
        if ! seen=$(ipset list -n); then
            left "ipset: the sets cannot be listed"
            return 0
        fi
        going=$(printf '%s\n' "$planned" | in_list "$seen")
        if [ -z "$going" ]; then
            say "ipset: done"
            return 0
        fi
        [ "$tries" -lt 10 ] || break
        if [ "$tries" -gt 0 ]; then sleep 0.3 2>/dev/null || sleep 1; fi
        tries=$((tries + 1))
        destroy "$going"
    done
    while IFS= read -r name; do
        left "set $name: $said"
    done <<LIST
$going
LIST
}

# A line that fails ends the command: those behind it get another one.
destroy() {
    rest=$1
    while [ -n "$rest" ] && ! said=$(lines destroy "$rest" | ipset restore 2>&1); do
        number=$(printf '%s\n' "$said" | sed -n 's/.*Error in line \([0-9][0-9]*\).*/\1/p')
        [ -n "$number" ] || return 0
        rest=$(printf '%s\n' "$rest" | awk -v number="$number" 'NR > number')
    done
}

# == ipvs
services=''
services_left=0
first_left=0

# What proves to a later cleanup that services are owned goes only if all of them went.
proves() {
    if [ "$services_left" -eq 0 ]; then
        "$@"
    elif [ "$1" = sets ]; then
        while IFS= read -r name; do left "set $name: it proves IPVS services that could not be removed"; done
    else
        left "$*: it proves IPVS services that could not be removed"
    fi
}

list_services() {
    [ -e /proc/net/ip_vs ] || return 0 # ipvsadm would load the module
    if ! services=$(ipvsadm -Sn); then
        left "IPVS: the services cannot be listed"
        services_left=1
    fi
}

# A service in the words of ipvsadm; those that are `first` are proven by the `last`, which stay while they do.
service() {
    place=$1
    shift
    case "$newline$services" in *"$newline-A $* -s "*) ;; *) return 0 ;; esac
    if [ "$place-$first_left" = last-1 ]; then
        left "IPVS service $*: it may prove one that could not be removed"
    elif said=$(ipvsadm -D "$@" 2>&1); then
        say "IPVS service $*: done"
        return 0
    else
        left "IPVS service $*: $said"
        if [ "$place" = first ]; then first_left=1; fi
    fi
    services_left=1
}

# == ip
need_ip() {
    case $(ip -V 2>/dev/null) in *iproute2*) ;; *) missing="$missing, ip of iproute2" ;; esac
}

# Runs ip, and tells what it says if it fails: `try WHAT WORDS...`.
try() {
    what=$1
    shift
    if said=$(ip "$@" 2>&1); then
        say "$what: done"
    else
        left "$what: $said"
        return 1
    fi
}

# Tells whether ip shows something; `shown WHAT WORDS...` leaves it in $shown. What cannot be looked for is told.
shown() {
    what=$1
    shift
    if shown=$(ip "$@" 2>&1); then
        [ -n "$shown" ]
        return
    fi
    case $shown in *"does not exist"* | *"Cannot find device"*) ;; *) left "$what: it cannot be looked for: $shown" ;; esac
    return 1
}

# A policy rule: flag of the family, priority, table, and "from all", "from NET" or "from all fwmark MARK".
# What a rule does not have is anything to the kernel: another rule that would fit, too, stops it.
policy_rule() {
    shown "policy rule $2: $4 lookup $3" "$1" rule show pref "$2" table "$3" || return 0
    found=$(printf '%s\n' "$shown" | awk -v wanted="$2: $4 lookup" -v part="${4#from all}" '
        { text = $1; for (i = 2; i < NF; i++) text = text " " $i }
        text == wanted { same++; next }
        part == "" || index(text " ", part " ") { other++ }
        END { if (same) print other + 0 }
    ')
    # shellcheck disable=SC2086 # the words of the selection
    case $found in
        '') return 0 ;;
        0) try "$what" "$1" rule del pref "$2" $4 lookup "$3" || : ;;
        *) left "$what: another rule with the same priority and table says more" ;;
    esac
}

# A route: flag of the family, type, destination, table, protocol, metric, and how it leads there.
route() {
    flag=$1 type=$2 to=$3 number=$4 protocol=$5 metric=$6
    shift 6
    shown "route $to table $number" \
        "$flag" route show table "$number" type "$type" exact "$to" proto "$protocol" "$@" || return 0
    if [ "$metric" -gt 0 ]; then set -- "$@" metric "$metric"; fi
    try "$what" "$flag" route del "$type" "$to" table "$number" proto "$protocol" "$@" || :
}

# A port for encapsulated packets, and -6 if it is one of IPv6.
ports_left=' '
fou_port() {
    loaded fou __fou_build_header || return 0
    shown "FOU port $*" fou show || return 0
    printf '%s\n' "$shown" | awk -v port="$1" -v six="${2:+1}" '
        $1 == "port" && $2 == port && (index($0 " ", " -6 ") > 0) == (six == "1") { found = 1 } END { exit !found }
    ' || return 0
    try "$what" fou del port "$@" || ports_left="$ports_left$1 "
}

# An address: flag of the family, the address, its link.
address() {
    shown "address $2 of $3" -o "$1" addr show dev "$3" || return 0
    printf '%s\n' "$shown" | awk -v address="$2" '$4 == address { found = 1 } END { exit !found }' || return 0
    try "$what" "$1" addr del "$2" dev "$3" || :
}

# A link: its name, its kind, the port to which it is encapsulated (0: none), and whether links may be attached to it.
link() {
    shown "link $1" -o link show dev "$1" type "$2" || return 0
    case $ports_left in
        *" $3 "*)
            left "$what: it proves a FOU port that could not be removed"
            return 0
            ;;
    esac
    if [ "$4" = alone ] && [ -n "$(ip -o link show master "$1")" ]; then
        left "$what: links are attached to it by now"
        return 0
    fi
    try "$what" link del dev "$1" || :
}
