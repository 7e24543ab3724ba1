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
# What a rule does not have is anything to the kernel: another rule that would fit, too, stops it. Who made it says
# nothing, and stands behind the table.
policy_rule() {
    policy_rules "$@" || return 0
    # shellcheck disable=SC2086 # the words of the selection
    case $found in
        '') return 0 ;;
        0) try "$what" "$1" rule del pref "$2" $4 lookup "$3" || return 0 ;;
        *)
            left "$what: another rule with the same priority and table says more"
            return 0
            ;;
    esac
    if policy_rules "$@" && [ -n "$found" ]; then left "$what: another one like it is there"; fi
}

# Sets $found to how many other rules the kernel may take for it; to nothing if it is not there.
policy_rules() {
    shown "policy rule $2: $4 lookup $3" "$1" rule show pref "$2" table "$3" || return 1
    found=$(printf '%s\n' "$shown" | awk -v wanted="$2: $4 lookup" -v part="${4#from all}" '
        { sub(/ proto [^ ]+ *$/, ""); text = $1; for (i = 2; i < NF; i++) text = text " " $i }
        text == wanted { same++; next }
        part == "" || index(text " ", part " ") { other++ }
        END { if (same) print other + 0 }
    ')
}

# A route: flag of the family, type, destination, table, protocol, metric, and how it leads there.
route() {
    flag=$1 type=$2 to=$3 number=$4 protocol=$5 metric=$6
    shift 6
    routes "$@" || return 0
    more=''
    if [ "$metric" -gt 0 ]; then more="metric $metric"; fi
    # shellcheck disable=SC2086 # two words or none
    try "$what" "$flag" route del "$type" "$to" table "$number" proto "$protocol" "$@" $more || return 0
    if routes "$@"; then left "$what: another one like it is there"; fi
}

# Tells whether it is there. Without a metric, any will do for the kernel; one with a TOS is another route.
routes() {
    shown "route $to table $number" \
        "$flag" route show table "$number" type "$type" exact "$to" proto "$protocol" "$@" || return 1
    printf '%s\n' "$shown" | awk -v wanted="$flag $metric" '
        { metric = 0; for (i = 1; i < NF; i++) { if ($i == "metric") metric = $(i + 1); if ($i == "tos") next } }
        wanted == "-6 0" || wanted == "-4 " metric || wanted == "-6 " metric { found = 1 }
        END { exit !found }
    '
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
