#!/usr/bin/env bats
# ap-exec on two and three hosts (scripts/bench/hosts.bash). Skipped where they cannot be made.
# shellcheck disable=SC2154 # status, output and stderr are bats'

load helpers

. scripts/bench/hosts.bash

setup() {
    needs_exec
    hosts_open 3 "$BATS_TEST_TMPDIR" || skip "hosts need root, ip and tc"
    A=${hosts[0]} B=${hosts[1]} C=${hosts[2]}
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

teardown() {
    [ -z "${A-}" ] || hosts_close
}

# Two ranks on each of two hosts: on_hosts COMMAND...
on_hosts() {
    hosts_mpirun --host "$A:2,$B:2" -np 4 "$@"
}

# A cluster of two ranks on each of N hosts: cluster_of N
cluster_of() {
    jq --argjson n "$1" '.levels[0].size = 2 | .levels += [{name: "ethernet", size: $n,
        bandwidth_bytes_per_sec: 125e6, latency_sec: 5e-5, uplink: true}]' "$CLUSTERS/cpu-8.json"
}

@test "hosts: ranks that lie otherwise than the plan has them are named" {
    local plan
    cd "$BATS_TEST_TMPDIR"
    cluster_of 2 >cluster.json
    plan=$(rewritten mlp 2x2)
    ap-shard --mesh 2x2 --cluster cluster.json "$(imported mlp)" | ap-rewrite -o two.json
    on_hosts --map-by slot ap-exec --data "$MODELS/mlp/in" two.json >out 2>err
    [ -z "$(grep ap-exec err)" ] # what mpirun says of slow daemons is its own
    on_hosts --map-by node ap-exec --data "$MODELS/mlp/in" two.json >other 2>err
    diff out other
    grep -q "ap-exec: warning: rank 1 is on host $B and rank 0 on host $A, but the plan has both on one host" err
    # a plan for one host of eight
    on_hosts --map-by slot ap-exec --data "$MODELS/mlp/in" "$plan" >other 2>err
    grep -q "ap-exec: warning: rank 2 is on host $B and rank 0 on host $A" err
    # a program that says nothing of hosts
    jq -c 'del(.placement)' "$plan" >bare.json
    on_hosts --map-by node ap-exec --data "$MODELS/mlp/in" bare.json >other 2>err
    grep -q "ap-exec: warning: rank 2 is on host $A, as rank 0 is: plans number devices host by host" err
}

@test "hosts: mpirun puts the ranks of a plan on three hosts where the rankfile says" {
    cd "$BATS_TEST_TMPDIR"
    cluster_of 3 >cluster.json
    ap-shard --mesh 3x2 --cluster cluster.json "$(imported mlp)" |
        ap-rewrite --rankfile ranks --hosts "$C,$A,$B" -o program.json
    hosts_mpirun --host "$A:2,$B:2,$C:2" --rankfile ranks -np 6 ap-exec --seed 1 --steps 2 --verify program.json >out 2>err
    [ -z "$(grep ap-exec err)" ]
    grep -q '^verify: losses' out
    hosts_mpirun --host "$A:2,$B:2,$C:2" --rankfile ranks -np 6 hostname | sort | uniq -c >where
    [ "$(awk '$1 == 2' where | wc -l)" -eq 3 ]
    hosts_mpirun --host "$A:2,$B:2,$C:2" --map-by node -np 6 ap-exec --seed 1 --steps 2 program.json >other 2>err
    grep -q "ap-exec: warning: rank 1 is on host $B and rank 0 on host $A" err
    diff other <(grep '^step' out)
}

@test "hosts: two hosts compute what one rank does" {
    cd "$BATS_TEST_TMPDIR"
    cluster_of 2 >cluster.json
    ap-shard --mesh 2x2 --cluster cluster.json "$(imported mlp)" | ap-rewrite -o plan.json
    on_hosts ap-exec --data "$MODELS/mlp/in" --steps 5 --compare "$MODELS/mlp" --tolerance 1e-4 plan.json >out
    [ "$(grep -c '^step [1-5] loss' out)" -eq 5 ]
}

# Processes of ap-exec on both hosts. mpirun itself may wait longer for its daemon.
ranks() {
    local h pid
    for h in "$A" "$B"; do
        for pid in $(ip netns pids "$h"); do
            [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != ap-exec ] || echo "$pid"
        done
    done
}

no_ranks() { [ -z "$(ranks)" ]; }

@test "hosts: a link that is cut ends every rank on both hosts within the watchdog" {
    local plan start=$SECONDS watchdog
    plan=$(rewritten mlp 2x2)
    cd "$BATS_TEST_TMPDIR"
    on_hosts ap-exec --data "$MODELS/mlp/in" "$plan" >out 2>err
    watchdog=$((8 + 4 * (SECONDS - start))) # far more than a start takes on this machine
    : >out
    on_hosts ap-exec --data "$MODELS/mlp/in" --steps 100000000 --watchdog $watchdog "$plan" >out 2>err 3>&- &
    await test -s out
    ip netns exec "$A" ip link set "v$A" down
    start=$SECONDS
    await no_ranks
    echo "$((SECONDS - start)) s: $(cat err)"
    [ $((SECONDS - start)) -le $((watchdog + 60)) ]
    grep -q 'has waited for other ranks' err
}
