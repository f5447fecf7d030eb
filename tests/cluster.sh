# Sourced after harness.sh: a cluster of real processes on loopback ports. Node 1 has metadata and data, nodes 2 and 3 have data; two
# mounts, $A and $B. `begin_cluster` brings it up; the harness takes it down with `end_cluster`. Needs root, for the mounts and
# the memory tiers of their own.
# With several=yes nodes 1 and 2 have metadata alone, over a PostgreSQL server of the suite's own, and are each other's standby;
# nodes 3 and 4 have data.
# shellcheck shell=bash

A=$scratch/a B=$scratch/b
# Of this run alone: two at once do not meet. Below those that the kernel gives to connections.
port=${port:-$(free_ports)}
addresses=127.0.0.1:$port
several=${several:-no} nodes=3
if [ $several = yes ]; then
    addresses+=,127.0.0.1:$((port + 1))
    nodes=4
    data=$scratch/data
    . "$repo/tests/database.sh"
fi

server() { # NODE
    timeout 60 "$onfs" server --config "$scratch/n$1.toml" >>"$logs/servers.log" 2>&1 </dev/null
}
pid_of() { head -1 "$scratch/$1/onfs.pid"; }
# Returns when it is gone: until then its state is in use.
kill_of() {
    local pid
    pid=$(pid_of "$1")
    kill -9 "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
}
client() { # DIR
    # shellcheck disable=SC2086
    timeout 60 "$onfs" mount --config none --cluster-key "$scratch/c/cluster.key" --state "$scratch/state-$1" \
        --set "monitor.listen=unix:$scratch/monitor-$1" --set "log.level=${client_log:-info}" ${SUITES_MOUNT_OPTIONS:-} \
        "$addresses:/" "$scratch/$1" >>"$logs/mount.log" 2>&1 </dev/null
}
all_are_up() { [ "$("$onfs" node list --config "$scratch/n3.toml" | grep -c ' up ')" = $nodes ]; }
mds() { "$onfs" mds "$@" --config "$scratch/n3.toml"; }
slots_of() { mds list --json | jq -r ".[] | select(.node == $1) | .slots"; }
# Both metadata servers have slots, and each has what the other has answered.
shared() { mds list --json | jq -e '[.[] | select(.slots > 1500 and .standby.complete)] | length == 2' >/dev/null; }
# Another one has all that this one has answered.
is_copied() { mds list --json | jq -e ".[] | select(.node == $1) | .standby.complete" >/dev/null; }
has_none() { [ "$(mds list --json | jq "[.[] | select(.node == $1) | .slots] | add // 0")" = 0 ]; }
node_of() { mds list "$1" --json | jq '.[0].node'; }
until_true() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        if [ $SECONDS -ge $end ]; then
            echo "not within its time: $*"
            [ $several = no ] || mds list
            return 1
        fi
        sleep 0.1
    done
}
begin_database() {
    mkdir -p "$scratch/run"
    chown postgres "$scratch/run"
    install -d -o postgres "$data"
    as initdb -N -U onfs --no-instructions -A trust -D "$data"
    # A server that is killed leaves what it has in /dev/shm; of this kind it is in its directory.
    printf '%s\n' "unix_socket_directories = '$scratch/run'" "listen_addresses = ''" "dynamic_shared_memory_type = mmap" >>"$data/postgresql.conf"
    install -o postgres /dev/null "$data.log"
    start_server
}
begin_cluster() {
    mkdir -p "$A" "$B"
    [ $several = no ] || begin_database
    "$onfs" cluster init "$scratch/c"
    local id roles n
    id=$(sed -n 's/^id = "\(.*\)"/\1/p' "$scratch/c/onfs.toml")
    for ((n = 1; n <= nodes; n++)); do
        roles=data
        [ $n = 1 ] && roles=metadata,data
        [ $several = yes ] && ((n <= 2)) && roles=metadata
        mkdir -p "$scratch/ssd$n"
        cat >"$scratch/n$n.toml" <<END
[node]
id = $n
name = "n$n"
roles = "$roles"
listen = "127.0.0.1:$((port + n - 1))"
[cluster]
id = "$id"
key_file = "$scratch/c/cluster.key"
metadata = "$addresses"
[mount]
state = "$scratch/n$n"
[memory]
size = "64MiB"
[ssd]
dir = "$scratch/ssd$n"
[monitor]
listen = "127.0.0.1:$((port + 40 + n))"
[log]
level = "${server_log:-info}"
END
        [ $several = no ] || ((n > 2)) || cat >>"$scratch/n$n.toml" <<END
[metadata]
servers = "several"
engine = "postgres"
url = "host=$scratch/run user=onfs dbname=postgres"
END
    done
    for ((n = 1; n <= nodes; n++)); do server $n; done
    client a
    client b
    mountpoint -q "$A" && mountpoint -q "$B"
    # The last one may not have reported yet.
    until_true 20 all_are_up && { [ $several = no ] || until_true 60 shared; }
}
# A directory of each metadata server, and one of both. For a while after a start nothing goes.
begin_places() {
    mkdir "$A/of1" "$A/of2" "$A/spread" &&
        until_true 60 mds move "$A/of1" --to 1 && until_true 60 mds move "$A/of2" --to 2 &&
        "$onfs" mds spread "$A/spread" --over 4
}
end_cluster() {
    local n place
    for place in "$A" "$B"; do
        mountpoint -q "$place" && { timeout 60 "$onfs" umount "$place" || umount -l "$place"; } >>"$logs/mount.log" 2>&1
    done
    for ((n = nodes; n > 0; n--)); do end_server "$scratch/n$n"; done
    [ ! -s "${data:-}/postmaster.pid" ] || as pg_ctl -D "$data" -m immediate stop
} 2>/dev/null
end_server() { # STATE
    local pid
    pid=$(head -1 "$1/onfs.pid" 2>/dev/null)
    [ -z "$pid" ] || kill "$pid" || true
    for _ in $(seq 300); do
        [ -n "$pid" ] && kill -0 "$pid" || break
        sleep 0.1
    done
    ! mountpoint -q "$1/memory" || umount -l "$1/memory"
} 2>/dev/null
