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
