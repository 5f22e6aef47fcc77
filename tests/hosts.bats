#!/usr/bin/env bats
# ap-exec on two hosts: network namespaces that a link joins, each with its own name and folder of
# temporary files. Skipped where they cannot be made.
# shellcheck disable=SC2154 # status, output and stderr are bats'

load helpers

setup() {
    needs_exec
    [ "$(id -u)" -eq 0 ] || skip "network namespaces need root"
    A=apA$$ B=apB$$
    ip netns add "$A" 2>/dev/null || skip "no network namespaces here"
    ip netns add "$B"
    ip link add "v$A" type veth peer name "v$B"
    local h n=0
    for h in "$A" "$B"; do
        ip link set "v$h" netns "$h"
        ip netns exec "$h" ip addr add "10.77.9.$((++n))/24" dev "v$h"
        ip netns exec "$h" ip link set "v$h" up
        ip netns exec "$h" ip link set lo up
        ip netns exec "$h" tc qdisc add dev "v$h" root tbf rate 1gbit burst 64kb latency 50ms || true
        mkdir -p "$BATS_TEST_TMPDIR/tmp/$h" "/etc/netns/$h"
        printf '127.0.0.1 localhost\n10.77.9.1 %s\n10.77.9.2 %s\n' "$A" "$B" >"/etc/netns/$h/hosts"
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
    for h in "$A" "$B"; do
        for pid in $(ip netns pids "$h" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
        ip netns del "$h" 2>/dev/null || true
        rm -rf "/etc/netns/$h"
    done
}

# mpirun on both hosts, two ranks on each: on_hosts COMMAND...
on_hosts() {
    "$BATS_TEST_TMPDIR/rsh" "$A" "cd $PWD && PATH=$PATH exec timeout 120 mpirun -q --mca plm_rsh_agent $BATS_TEST_TMPDIR/rsh \
        --mca btl_tcp_if_include 10.77.9.0/24 --mca oob_tcp_if_include 10.77.9.0/24 \
        --mca btl_vader_single_copy_mechanism none --oversubscribe -x PATH --host $A:2,$B:2 -np 4 $*"
}

@test "hosts: ranks that lie otherwise than plans number devices are named" {
    local plan
    plan=$(rewritten mlp 2x2)
    on_hosts --map-by slot ap-exec --data "$MODELS/mlp/in" "$plan" >"$BATS_TEST_TMPDIR/out" 2>"$BATS_TEST_TMPDIR/err"
    [ ! -s "$BATS_TEST_TMPDIR/err" ]
    on_hosts --map-by node ap-exec --data "$MODELS/mlp/in" "$plan" >"$BATS_TEST_TMPDIR/other" 2>"$BATS_TEST_TMPDIR/err"
    diff "$BATS_TEST_TMPDIR/out" "$BATS_TEST_TMPDIR/other"
    grep -q "ap-exec: warning: rank 2 is on host $A, as rank 0 is: plans number devices host by host" "$BATS_TEST_TMPDIR/err"
}

@test "hosts: two hosts compute what one rank does, and share checkpoints" {
    local plan
    plan=$(rewritten mlp 2x2)
    cd "$BATS_TEST_TMPDIR"
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
