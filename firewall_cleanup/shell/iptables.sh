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
    # To ask what has nft in its name loads a module where nothing of nf_tables is loaded.
    case $iptables in *-nft) loaded nf_tables nf_tables_newtable || return 0 ;; esac
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
        [ -e "$names" ] || return 0
        known=$(cat "$names") || return 1
        is_in "$known" "$table" || return 0
    else
        loaded nf_tables nf_tables_newtable || return 0
    fi
    seen=$(saved_chains) && return 0
    seen=''
    [ "$backend" = nft ] || return 1
    case $("$iptables-save" -t "$table" 2>&1) in *"does not exist"*) return 0 ;; esac
    known=$(nft list tables) || return 1
    is_in "$known" "table $nft_family $table" || return 0
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
