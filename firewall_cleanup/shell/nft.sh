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
