# Sourced by the suites. Gives a directory under test (an ONFS mount, or any directory with --dir), runs cases with a
# deadline, and prints one line per case: `ok SUITE/CASE`, `FAIL SUITE/CASE: why`, `skip SUITE/CASE: why`.
#
# A suite: `suite NAME "$@"`, `place`, then `check CASE SECONDS COMMAND...`, and `finish` as its last line.
# Options of every suite: --dir DIR (no ONFS: test this directory), --quick, --full, --case PATTERN, --keep; of pjdfstest, fsx
# and model also --cluster (on two mounts of a cluster, $mnt and $second_mnt), and of them and coherence --several (the same with two
# metadata servers: one has $mnt, the other $second_mnt, and $spread_mnt is spread over both).
#
# SUITES_MOUNT_OPTIONS: words for every `onfs mount`, such as $older_kernel.
# Variables for a suite: $mnt the directory under test, $scratch a private directory on a disk, $onfs the binary,
# $tier_dirs yes when it is a mount, $size quick, normal or full.
# shellcheck shell=bash
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${CARGO_TARGET_DIR:-$repo/target}
tools=${SUITES_TOOLS:-$repo/target/tools}
onfs=${SUITES_ONFS:-$build/release/onfs}
programs=${SUITES_PROGRAMS:-$build/release}
size=${SUITES_SIZE:-normal} dir= cluster=no several=no keep=no case_filter='*' failures=0 plain=no
export LC_ALL=C
# As on Debian 12's kernel.
older_kernel='--set mount.kernel_features=6.1'

suite() {
    suite=$1 program=$1
    shift
    while [ $# -gt 0 ]; do
        case $1 in
            --dir) dir=$2 plain=yes; shift ;;
            --cluster) cluster=yes suite=$suite-cluster ;;
            --several) cluster=yes several=yes suite=$suite-several ;;
            --quick) size=quick ;;
            --full) size=full ;;
            --case) case_filter=$2; shift ;;
            --keep) keep=yes ;;
            *) echo "$suite: unknown option $1 (--dir DIR, --quick, --full, --case PATTERN, --keep)" >&2; exit 2 ;;
        esac
        shift
    done
    mkdir -p "${SUITES_ROOT:-/var/tmp}"
    # Short: a socket's path has at most 107 bytes.
    scratch=$(mktemp -d "${SUITES_ROOT:-/var/tmp}/onfs-$program-XXXXXX")
    chmod 755 "$scratch"
    logs=${SUITES_LOGS:-$repo/target/test-logs}/$suite
    mkdir -p "$logs"
    rm -f "$logs"/*.log
    trap cleanup EXIT
    trap 'exit 130' INT TERM
    if [ $plain = no ] && [ ! -x "$onfs" ]; then
        echo "FAIL $suite/set-up: no onfs binary at $onfs (cargo build --release, or set SUITES_ONFS)"
        exit 1
    fi
}

# The directory under test. Words are further options of `onfs mount`. $memory is the memory tier's size.
memory=256MiB
place() {
    if [ $plain = yes ]; then
        mnt=$(mktemp -d "$dir/onfs-$suite-XXXXXX")
        chmod 755 "$mnt"
        return
    fi
    if [ $cluster = yes ]; then
        [ "$(id -u)" = 0 ] || { echo "skip $suite/all: needs root"; exit 0; }
        . "$repo/tests/cluster.sh"
        if [ $several = yes ] && why=$(no_database); then echo "skip $suite/all: $why"; exit 0; fi
        mnt=$A second_mnt=$B
        { begin_cluster && { [ $several = no ] || begin_places; }; } >>"$logs/mount.log" 2>&1 ||
            { echo "FAIL $suite/mount: see $logs/mount.log and servers.log"; tail -5 "$logs/mount.log"; exit 1; }
        [ $several = no ] || mnt=$A/of1 second_mnt=$B/of2 spread_mnt=$A/spread
        return
    fi
    mkdir -p "$scratch"/{ssd,nearline,state,mnt}
    mnt=$scratch/mnt
    mount_onfs "$@" || { echo "FAIL $suite/mount: see $logs/mount.log"; tail -5 "$logs/mount.log"; exit 1; }
}
mount_onfs() {
    # shellcheck disable=SC2086
    timeout 60 "$onfs" mount --memory "$memory" --ssd "$scratch/ssd" --nearline "$scratch/nearline" \
        --state "$scratch/state" ${SUITES_MOUNT_OPTIONS:-} "$@" "$scratch/mnt" >>"$logs/mount.log" 2>&1 </dev/null
    mountpoint -q "$scratch/mnt"
}
umount_onfs() {
    timeout 300 "$onfs" umount "$scratch/mnt" >>"$logs/mount.log" 2>&1 </dev/null
}
remount_onfs() { umount_onfs && mount_onfs "$@"; }

# check CASE SECONDS COMMAND...: COMMAND runs in a subshell with `set -e`, its output in a log.
# A command that ends with status 77 is skipped, its last line says why.
check() {
    local name=$1 limit=$2 log status=0 start=$SECONDS why
    shift 2
    # shellcheck disable=SC2254
    case $name in $case_filter) ;; *) return 0 ;; esac
    log=$logs/${name//[^A-Za-z0-9._-]/-}.log
    set -m
    (trap - EXIT INT TERM; set -euo pipefail; "$@") >"$log" 2>&1 </dev/null &
    local pid=$!
    set +m
    while kill -0 $pid 2>/dev/null; do
        if ((SECONDS - start > limit)); then
            echo "harness: still running after $limit s" >>"$log"
            kill -TERM -- -$pid 2>/dev/null || true
            sleep 2
            kill -KILL -- -$pid 2>/dev/null || true
            break
        fi
        sleep 0.05
    done
    wait $pid 2>/dev/null || status=$?
    why=$(sed '/^$/d' "$log" | tail -1)
    case $status in
        0) echo "ok $suite/$name ($((SECONDS - start)) s)" ;;
        77) echo "skip $suite/$name: $why" ;;
        *)
            failures=$((failures + 1))
            echo "FAIL $suite/$name: status $status: $why"
            echo "    the end of $log:"
            tail -25 "$log" | sed 's/^/    /'
            ;;
    esac
}
skip_case() { # inside a case
    echo "$*"
    exit 77
}
# The first of a hundred ports that nobody uses, below those that the kernel gives to connections. Suites that run at the same time have
# process numbers near each other, so each number has a hundred.
free_ports() {
    local n first
    for ((n = $$; n < $$ + 120; n++)); do
        first=$((20000 + n % 120 * 100))
        [ -n "$(ss -Htln "sport >= :$first and sport < :$((first + 100))")" ] || break
    done
    echo "$first"
}
# Runs a command that must end with this status; prints what it said.
expect_status() { # STATUS COMMAND...
    local wanted=$1 got=0
    shift
    "$@" || got=$?
    [ $got = "$wanted" ] || { echo "'$*' ended with status $got, should be $wanted"; return 1; }
}
# Runs a command that must fail and must say each of the words (case aside).
expect_failure() { # WORDS(separated by |) COMMAND...
    local words=$1 said
    shift
    if said=$("$@" 2>&1 </dev/null); then
        echo "'$*' should have failed; it said: $said"
        return 1
    fi
    echo "it said: $said"
    local IFS='|'
    for word in $words; do
        grep -qiF -- "$word" <<<"$said" || { echo "the message lacks '$word': $said"; return 1; }
    done
}
# Moves files; nothing on a plain directory, nor on a cluster (S-178).
tier_of_all() { # TIER FILE...
    local tier=$1
    shift
    [ $plain = yes ] || [ $cluster = yes ] || "$onfs" migrate --wait --to "$tier" "$@"
}
# Moves a file up and down until the file named `$scratch/stop` appears.
mover() { # FILE...
    [ $plain = yes ] || [ $cluster = yes ] && return 0
    local tiers=(ssd memory nearline ssd nearline memory) n=0
    while [ ! -e "$scratch/stop" ]; do
        for file in "$@"; do
            [ -e "$file" ] || continue
            timeout 120 "$onfs" migrate --wait --to "${tiers[n % 6]}" "$file" >>"$logs/mover.txt" 2>&1 || true
            n=$((n + 1))
        done
        sleep 0.02
    done
    echo "$n moves"
}

# What servers and mounts wrote, beside the case's own log: it would go with the directory.
keep_logs() {
    local log
    for log in "$scratch"/*/onfs.log; do
        [ ! -e "$log" ] || cp "$log" "$logs/of-$(basename "$(dirname "$log")").log"
    done
}
cleanup() {
    local status=$?
    trap - EXIT
    if [ $keep = yes ]; then
        echo "  kept: $scratch"
    else
        if [ -d "$scratch/mnt" ]; then
            if mountpoint -q "$scratch/mnt" 2>/dev/null; then
                timeout 120 "$onfs" umount "$scratch/mnt" >/dev/null 2>&1 || umount -l "$scratch/mnt" 2>/dev/null || true
            else
                # A dead FUSE mount does not look like a mount point.
                umount -l "$scratch/mnt" 2>/dev/null || true
            fi
        fi
        declare -F suite_cleanup >/dev/null && suite_cleanup
        declare -F end_cluster >/dev/null && { set +e; end_cluster; set -e; }
        ((failures == 0)) || keep_logs
        # What is still mounted below (loop file systems, the memory tier of a killed daemon).
        awk -v at="$scratch/" 'index($5, at) == 1 {print $5}' /proc/self/mountinfo | tac | while read -r at; do
            umount -l "$at" 2>/dev/null || true
        done
        [ $plain = yes ] && [ -n "${mnt:-}" ] && rm -rf "$mnt"
        rm -rf "$scratch"
    fi
    exit $status
}
finish() { exit $((failures > 0)); }
