services=''
taken=''
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
    # kube-proxy has the addresses that it serves on a link of its own.
    taken=$(ip -o addr show dev kube-ipvs0 2>/dev/null | awk '{ sub("/.*", "", $4); print $4 }')
}

# A service in the words of ipvsadm; those that are `first` are proven by the `last`, which stay while they do.
service() {
    place=$1
    shift
    case "$newline$services" in *"$newline-A $* -s "*) ;; *) return 0 ;; esac
    host=${2%:*}
    host=${host#\[}
    if is_in "$taken" "${host%\]}"; then
        left "IPVS service $*: kube-proxy serves it by now"
    elif [ "$place-$first_left" = last-1 ]; then
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
