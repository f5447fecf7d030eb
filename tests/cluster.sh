# Sourced after harness.sh: a cluster of real processes on loopback ports. Node 1 has metadata and data, nodes 2 and 3 have data; two
# mounts, $A and $B. `begin_cluster` brings it up; the harness takes it down with `end_cluster`. Needs root, for the mounts and
# the memory tiers of their own.
# shellcheck shell=bash

A=$scratch/a B=$scratch/b
# Of this run alone: two at once do not meet. Below those that the kernel gives to connections.
port=$((20000 + $$ % 12000))

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
    timeout 60 "$onfs" mount --config none --cluster-key "$scratch/c/cluster.key" --state "$scratch/state-$1" \
        --set "monitor.listen=unix:$scratch/monitor-$1" --set "log.level=${client_log:-info}" \
        "127.0.0.1:$port:/" "$scratch/$1" >>"$logs/mount.log" 2>&1 </dev/null
}
all_are_up() { [ "$("$onfs" node list --config "$scratch/n2.toml" | grep -c ' up ')" = 3 ]; }
begin_cluster() {
    mkdir -p "$A" "$B"
    "$onfs" cluster init "$scratch/c"
    local id roles n
    id=$(sed -n 's/^id = "\(.*\)"/\1/p' "$scratch/c/onfs.toml")
    for n in 1 2 3; do
        roles=data
        [ $n = 1 ] && roles=metadata,data
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
metadata = "127.0.0.1:$port"
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
        server $n
    done
    client a
    client b
    mountpoint -q "$A" && mountpoint -q "$B"
    # The last one may not have reported yet.
    local tries
    for ((tries = 0; tries < 200; tries++)); do
        all_are_up && return
        sleep 0.1
    done
    all_are_up
}
end_cluster() {
    local n place
    for place in "$A" "$B"; do
        mountpoint -q "$place" && { timeout 60 "$onfs" umount "$place" || umount -l "$place"; } >>"$logs/mount.log" 2>&1
    done
    for n in 1 2 3; do end_server "$scratch/n$n"; done
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
