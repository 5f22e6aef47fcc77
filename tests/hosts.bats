#!/usr/bin/env bats
# ap-exec on two and three hosts: network namespaces that a bridge joins, each with its own name
# and folder of temporary files, and a link of 1 Gbit/s. Skipped where they cannot be made.
# shellcheck disable=SC2154 # status, output and stderr are bats'

load helpers

setup() {
    needs_exec
    [ "$(id -u)" -eq 0 ] || skip "network namespaces need root"
    A=apA$$ B=apB$$ C=apC$$ BRIDGE=apbr$$
    ip netns add "$BRIDGE" 2>/dev/null || skip "no network namespaces here"
    ip netns exec "$BRIDGE" ip link add bridge type bridge 2>/dev/null ||
        { ip netns del "$BRIDGE"; skip "no bridges here"; }
    ip netns exec "$BRIDGE" ip link set bridge up
    local h n=0
    for h in "$A" "$B" "$C"; do
        ip netns add "$h"
        ip link add "v$h" netns "$h" type veth peer name "p$h" netns "$BRIDGE"
        ip netns exec "$BRIDGE" ip link set "p$h" master bridge up
        ip netns exec "$h" ip addr add "10.77.9.$((++n))/24" dev "v$h"
        ip netns exec "$h" ip link set "v$h" up
        ip netns exec "$h" ip link set lo up
        ip netns exec "$h" tc qdisc add dev "v$h" root tbf rate 1gbit burst 64kb latency 50ms || true
        mkdir -p "$BATS_TEST_TMPDIR/tmp/$h" "/etc/netns/$h"
        printf '127.0.0.1 localhost\n10.77.9.1 %s\n10.77.9.2 %s\n10.77.9.3 %s\n' "$A" "$B" "$C" >"/etc/netns/$h/hosts"
    done
    # what mpirun takes for ssh: options, a host, a command
    cat >"$BATS_TEST_TMPDIR/rsh" <<END
#!/bin/bash
while [[ \$1 == -* ]]; do shift; done
h=\$1
shift
exec ip netns exec "\$h" unshare -u bash -c "hostname \$h; export TMPDIR=$BATS_TEST_TMPDIR/tmp/\$h; \$*"
END
    chmod +x "$BATS_TEST_TMPDIR/rsh"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

teardown() {
    local h pid
    [ -n "${A-}" ] || return 0
    for h in "$A" "$B" "$C" "$BRIDGE"; do
        for pid in $(ip netns pids "$h" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
        ip netns del "$h" 2>/dev/null || true
        rm -rf "/etc/netns/$h"
    done
}

# mpirun, started on the first host: mpirun_on OPTION... COMMAND...
mpirun_on() {
    "$BATS_TEST_TMPDIR/rsh" "$A" "cd $PWD && PATH=$PATH exec timeout 120 mpirun -q --mca plm_rsh_agent $BATS_TEST_TMPDIR/rsh \
        --mca btl_tcp_if_include 10.77.9.0/24 --mca oob_tcp_if_include 10.77.9.0/24 \
        --mca btl_vader_single_copy_mechanism none --oversubscribe -x PATH $*"
}

# Two ranks on each of two hosts: on_hosts COMMAND...
on_hosts() {
    mpirun_on --host "$A:2,$B:2" -np 4 "$@"
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
    [ ! -s err ]
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
    mpirun_on --host "$A:2,$B:2,$C:2" --rankfile ranks -np 6 ap-exec --seed 1 --steps 2 --verify program.json >out 2>err
    [ ! -s err ]
    grep -q '^verify: losses' out
    mpirun_on --host "$A:2,$B:2,$C:2" --rankfile ranks -np 6 hostname | sort | uniq -c >where
    [ "$(awk '$1 == 2' where | wc -l)" -eq 3 ]
    mpirun_on --host "$A:2,$B:2,$C:2" --map-by node -np 6 ap-exec --seed 1 --steps 2 program.json >other 2>err
    grep -q "ap-exec: warning: rank 1 is on host $B and rank 0 on host $A" err
    diff other <(grep '^step' out)
}

@test "hosts: two hosts compute what one rank does, and share checkpoints" {
    local plan
    cd "$BATS_TEST_TMPDIR"
    cluster_of 2 >cluster.json
    ap-shard --mesh 2x2 --cluster cluster.json "$(imported mlp)" | ap-rewrite -o plan.json
    plan=plan.json
    on_hosts ap-exec --data "$MODELS/mlp/in" --steps 3 --compare "$MODELS/mlp" --save "$PWD/ck" "$plan" >out 2>err ||
        [[ $(cat err) == *"holds 5 losses"* ]]
    on_hosts ap-exec --data "$MODELS/mlp/in" --steps 3 --save "$PWD/ck" "$plan" >out
    on_hosts ap-exec --data "$MODELS/mlp/in" --steps 2 --resume "$PWD/ck" --compare "$MODELS/mlp" --tolerance 1e-4 "$plan" >>out
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

@test "hosts: a link that is cut ends every rank on both hosts within the watchdog" {
    local plan i start
    plan=$(rewritten mlp 2x2)
    cd "$BATS_TEST_TMPDIR"
    on_hosts ap-exec --data "$MODELS/mlp/in" --steps 100000000 --watchdog 8 "$plan" >out 2>err 3>&- &
    for ((i = 0; i < 600; i++)); do
        [ ! -s out ] || break
        sleep 0.1
    done
    [ -s out ]
    ip netns exec "$A" ip link set "v$A" down
    start=$SECONDS
    while [ -n "$(ranks)" ] && [ $((SECONDS - start)) -lt 40 ]; do sleep 0.2; done
    echo "$((SECONDS - start)) s: $(cat err)"
    [ -z "$(ranks)" ]
    grep -qE 'has not answered|no rank has made progress' err
}
