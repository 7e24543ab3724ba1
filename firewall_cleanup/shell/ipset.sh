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
            if [ "$tries" -gt 0 ]; then say "ipset: done"; fi
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
