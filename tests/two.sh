# Sourced by suites with two mounts, $A and $B: a file with two copies, $A/two/f, that is used on both while servers are killed.
# shellcheck shell=bash

# As its layout says: `nodes`, who orders its writes, or `seconds`.
of_two() { timeout 20 getfattr --absolute-names --only-values -n user.onfs.layout "$A/two/f" 2>/dev/null | grep -o " $1=[0-9]*" | grep -o '[0-9]*$'; }
has_two() { [ -n "$(of_two seconds)" ] && [ "$(of_two seconds)" != "$(of_two nodes)" ]; }
goes_on_elsewhere() { local now; now=$(of_two nodes) && [ "$now" != "$1" ]; }

# Programs on both mounts that write, read and check (`tests/copies.py`), until end_two.
begin_two() {
    mkdir "$A/two"
    "$onfs" layout --copies 2 --stripes 1 "$A/two" >"$scratch/layout-two"
    grep -q 'copies   2' "$scratch/layout-two"
    getfattr --absolute-names --only-values -n user.onfs.layout "$B/two" | grep -q copies=2
    : >"$A/two/f"
    rm -f "$scratch/two-stop"
    python3 "$repo/tests/copies.py" "$A/two/f" "$B/two/f" "$scratch/two-stop" >"$scratch/two-said" 2>&1 &
    two_users=$!
}
two_go_on() { kill -0 $two_users || { cat "$scratch/two-said"; false; }; }
end_two() {
    touch "$scratch/two-stop"
    wait $two_users || { cat "$scratch/two-said"; false; }
    cat "$scratch/two-said"
    rm -r "$A/two"
}
