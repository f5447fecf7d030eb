# Sourced after harness.sh and database.sh: a cluster whose nodes are processes in network namespaces behind one bridge, and what can be done to it. Nodes 1 and 2
# have metadata over a PostgreSQL server of the suite's own, 3 keeps copies of theirs, 4 to 6 have data in memory and on an SSD that is a tmpfs with a bound; hosts 7
# and 8 have the mounts a and b, which are guarded if $guard is set. Each fault returns when it is over; what memory it takes and which daemons of mounts it kills it notes before, in $notes.
# shellcheck shell=bash

net=onfs-chaos-$$
data=$scratch/data notes=$scratch/notes
metadata=(1 2) copies=3 datas=(4 5 6) hosts=(1 2 3 4 5 6 7 8)
addresses=10.213.0.1:7400,10.213.0.2:7400,10.213.0.3:7400
declare -A host_of=([a]=7 [b]=8)

on() { # HOST COMMAND...
    local host=$1
    shift
    nsenter --net="/run/netns/$net-$host" -- "$@"
}
node() { on 4 timeout 60 "$onfs" node "$@" --config "$scratch/n4.toml"; }
mds_list() { on 4 timeout 20 "$onfs" mds list --json --config "$scratch/n4.toml"; }
state_of() { if [[ $1 == [ab] ]]; then echo "$scratch/state-$1"; else echo "$scratch/n$1"; fi; }
pid_of() { head -1 "$(state_of "$1")/onfs.pid"; }
host() { echo "${host_of[$1]:-$1}"; }
until_true() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "not within its time: $*"; return 1; }
        sleep 0.3
    done
}
gone() { ! kill -0 "$1" 2>/dev/null; }

begin_network() {
    local n
    ip netns add "$net"
    ip -n "$net" link add br0 type bridge
    ip -n "$net" link set br0 up
    for n in "${hosts[@]}"; do
        ip netns add "$net-$n"
        ip -n "$net" link add "p$n" type veth peer name eth0 netns "$net-$n"
        ip -n "$net" link set "p$n" master br0 up
        ip -n "$net-$n" link set lo up
        ip -n "$net-$n" addr add "10.213.0.$n/24" dev eth0
        ip -n "$net-$n" link set eth0 up
    done
}
end_network() {
    local n
    for n in "${hosts[@]}"; do ip netns delete "$net-$n"; done
    ip netns delete "$net"
} 2>/dev/null

server() { on "$1" timeout 120 "$onfs" server --config "$scratch/n$1.toml" >>"$logs/server-$1.log" 2>&1 </dev/null; }
client() { # a or b
    # shellcheck disable=SC2086
    on "$(host "$1")" timeout 120 "$onfs" mount --config none --cluster-key "$scratch/c/cluster.key" --state "$scratch/state-$1" \
        ${guard:+--guard} ${SUITES_MOUNT_OPTIONS:-} "$addresses:/" "$scratch/$1" >>"$logs/mount-$1.log" 2>&1 </dev/null
}
write_config() { # NODE ID
    local n=$1 roles=data only=no
    case $n in 1 | 2) roles=metadata ;; 3) roles=metadata only=yes ;; esac
    cat >"$scratch/n$n.toml" <<END
[node]
id = $n
name = "n$n"
roles = "$roles"
listen = "10.213.0.$n:7400"
[cluster]
id = "$2"
key_file = "$scratch/c/cluster.key"
metadata = "$addresses"
[mount]
state = "$scratch/n$n"
[memory]
size = "48MiB"
END
    if [ $roles = data ]; then
        printf '[ssd]\ndir = "%s"\n' "$scratch/ssd$n" >>"$scratch/n$n.toml"
        mkdir -p "$scratch/ssd$n"
        mount -t tmpfs -o size=160m onfs-chaos "$scratch/ssd$n"
    else
        cat >>"$scratch/n$n.toml" <<END
[metadata]
servers = "several"
engine = "postgres"
url = "host=$scratch/run user=onfs dbname=postgres"
standby_only = "$only"
END
    fi
}
begin_cluster() {
    mkdir -p "$scratch"/{a,b,run} "$notes"
    begin_network
    chown postgres "$scratch/run"
    install -d -o postgres "$data"
    as initdb -N -U onfs --no-instructions -A trust -D "$data" >"$logs/initdb.log"
    # A server that is killed leaves what it has in /dev/shm; of this kind it is in its directory.
    printf '%s\n' "unix_socket_directories = '$scratch/run'" "listen_addresses = ''" "dynamic_shared_memory_type = mmap" >>"$data/postgresql.conf"
    install -o postgres /dev/null "$data.log"
    start_server
    "$onfs" cluster init "$scratch/c"
    local id n
    id=$(sed -n 's/^id = "\(.*\)"/\1/p' "$scratch/c/onfs.toml")
    for n in 1 2 3 4 5 6; do write_config $n "$id"; done
    for n in 1 2 3 4 5 6; do server $n; done
    client a
    client b
    mountpoint -q "$scratch/a" && mountpoint -q "$scratch/b"
    until_true 90 at_rest
}
# All servers are heard, both metadata servers have slots, and each has its copy.
at_rest() {
    [ "$(node list | grep -c ' data .* up ')" = ${#datas[@]} ] &&
        mds_list | jq -e '[.[] | select(.slots > 100 and .standby.complete)] | length == 2' >/dev/null
}
end_cluster() {
    local n place pid
    for place in a b; do
        for pid in $(pid_of $place); do kill -CONT "$pid"; done
        mountpoint -q "$scratch/$place" && { timeout 60 "$onfs" umount "$scratch/$place" || umount -l "$scratch/$place"; } >>"$logs/mount-$place.log" 2>&1
    done
    for n in 6 5 4 3 2 1; do
        for pid in $(pid_of $n); do kill -CONT "$pid"; kill "$pid"; done
        for _ in $(seq 200); do gone "$pid" && break; sleep 0.1; done
        gone "$pid" || kill -9 "$pid"
        ! mountpoint -q "$scratch/n$n/memory" || umount -l "$scratch/n$n/memory"
    done
    [ ! -s "$data/postmaster.pid" ] || as pg_ctl -D "$data" -m immediate stop >/dev/null
    end_network
} 2>/dev/null

kill_hard() { # NODE
    local pid
    pid=$(pid_of "$1")
    kill -9 "$pid"
    until_true 20 gone "$pid"
}
end_in_order() { # NODE
    local pid
    pid=$(pid_of "$1")
    kill "$pid"
    until_true 120 gone "$pid"
}
# A start may find its state in use, or nobody on duty, for a moment.
back() { # NODE
    until_true 180 server "$1"
}

fault_kill() { kill_hard "$1"; sleep "$2"; back "$1"; }
fault_restart() { end_in_order "$1"; back "$1"; }
fault_pause() { # WHO SECONDS
    local pid
    pid=$(pid_of "$1")
    kill -STOP "$pid"
    sleep "$2"
    kill -CONT "$pid"
}
fault_cut() { # WHO SECONDS
    ip -n "$net" link set "p$(host "$1")" down
    sleep "$2"
    ip -n "$net" link set "p$(host "$1")" up
}
# What goes to an address of nobody is lost without a word.
astray() { # FROM TO
    ip -n "$net-$1" neigh replace "10.213.0.$2" lladdr 02:00:00:00:00:01 nud permanent dev eth0
}
found_again() { ip -n "$net-$1" neigh del "10.213.0.$2" dev eth0 || true; }
fault_mute() { # WHO SECONDS: nobody hears it
    local n me
    me=$(host "$1")
    for n in "${hosts[@]}"; do [ "$n" = "$me" ] || astray "$me" "$n"; done
    sleep "$2"
    for n in "${hosts[@]}"; do [ "$n" = "$me" ] || found_again "$me" "$n"; done
}
fault_deaf() { # WHO SECONDS: it hears nobody
    local n me
    me=$(host "$1")
    for n in "${hosts[@]}"; do [ "$n" = "$me" ] || astray "$n" "$me"; done
    sleep "$2"
    for n in "${hosts[@]}"; do [ "$n" = "$me" ] || found_again "$n" "$me"; done
}
fault_full() { # NODE SECONDS
    head -c 1G /dev/zero >"$scratch/ssd$1/other" 2>/dev/null || true
    sleep "$2"
    rm "$scratch/ssd$1/other"
}
fault_memory() { # NODE SECONDS: its machine dies, as far as memory goes
    echo lost >>"$notes/losses"
    kill_hard "$1"
    umount -l "$scratch/n$1/memory"
    sleep "$2"
    back "$1"
}
fault_fsck() { # NODE: it finds nothing but what a lost memory had, and removes nothing
    local status=0 said
    end_in_order "$1"
    said=$("$onfs" fsck --repair --config "$scratch/n$1.toml" --state "$scratch/n$1" 2>&1) || status=$?
    if [ $status != 0 ] && { [ $status != 6 ] || [ ! -s "$notes/losses" ]; }; then
        echo "fsck of node $1 ended with status $status: $said"
        return 1
    fi
    ! grep -q 'repaired' <<<"$said" || { echo "fsck changed something: $said"; return 1; }
    back "$1"
}
fault_drain() { # NODE SECONDS
    node drain --wait "n$1" &
    local pid=$!
    for _ in $(seq $(($2 * 5))); do gone $pid && break; sleep 0.2; done
    kill $pid || true
    wait $pid || true
    node undrain "n$1"
} 2>/dev/null
fault_database() { # SECONDS
    kill_server
    sleep "$1"
    start_server
}
# Which daemon of a guarded mount serves it.
number_of() { timeout 20 "$onfs" status --json "$scratch/$1" | jq .guard.number; }
serves() { [ "$(number_of "$1")" -ge "$2" ]; }
fault_daemon() { # a or b: another daemon goes on for it, and nothing that was answered is lost
    local number
    number=$(number_of "$1")
    kill_hard "$1"
    until_true 60 serves "$1" $((number + 1))
}
fault_upgrade() { timeout 180 "$onfs" upgrade "$scratch/$1"; } # a or b
fault_client() { # a or b
    echo killed >>"$notes/life-$([ "$1" = a ] && echo 0 || echo 1)"
    kill_hard "$1"
    umount -l "$scratch/$1"
    until_true 180 client "$1"
}
