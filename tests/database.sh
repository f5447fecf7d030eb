# Sourced after harness.sh: PostgreSQL servers of a suite's own, run by the user postgres. $bin has the programs.
# shellcheck shell=bash

bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
no_database() { # says why there can be none
    [ -x "$bin/initdb" ] || { echo "no PostgreSQL server is installed (scripts/setup installs one)"; return 0; }
    getent passwd postgres >/dev/null && [ "$(id -u)" = 0 ] || { echo "needs root, to become the user postgres"; return 0; }
    return 1
}
as() { (cd / && runuser -u postgres -- env LC_ALL=C PATH="$bin:/usr/bin:/bin" "$@"); }
start_server() { # [DATA]
    local n
    # A killed one's memory is in use until its last process has noticed.
    for ((n = 0; n < 100; n++)); do
        as pg_ctl -D "${1:-$data}" -w -t 60 -l "${1:-$data}.log" start >/dev/null 2>&1 </dev/null && return
        sleep 0.1
    done
    tail -5 "${1:-$data}.log"
    return 1
}
kill_server() { # [DATA]
    local pid
    pid=$(head -1 "${1:-$data}/postmaster.pid")
    # shellcheck disable=SC2046
    kill -9 "$pid" $(pgrep -P "$pid")
}
