# shellcheck shell=bash
# Hosts on one machine, for scripts/bench/hosts-table, scripts/bench/overlap-gain and tests/hosts.bats: network
# namespaces that a bridge joins, each with its own name, its own folder of temporary files and a
# link of 1 Gbit/s. Needs root, ip and tc.
#
# A link sends what it is given at once, be it one of the packets of 64 kB that TCP leaves to network
# cards to cut up, and then nothing until 1 Gbit/s allows it (htb, whose bucket may be in debt). tbf
# would cut up such packets itself, for ten times the processor's time, unless its bucket has room
# for two: and then 128 kB after a pause cost nothing, which no cable gives.

hosts=() HOSTS_BRIDGE=

# hosts_open N FOLDER: makes N hosts, whose names are then in the array `hosts`; files of theirs lie
# in FOLDER. Status 1, and nothing is left, where hosts cannot be made.
hosts_open() {
    local n=$1 h i
    HOSTS_FOLDER=$2
    HOSTS_BRIDGE=apbr$$
    hosts=()
    [ "$(id -u)" -eq 0 ] && command -v ip >/dev/null && command -v tc >/dev/null || return 1
    ip netns add "$HOSTS_BRIDGE" 2>/dev/null || return 1
    ip netns exec "$HOSTS_BRIDGE" ip link add bridge type bridge 2>/dev/null || { hosts_close; return 1; }
    ip netns exec "$HOSTS_BRIDGE" ip link set bridge up
    for ((i = 1; i <= n; i++)); do
        h=ap${i}h$$
        hosts+=("$h")
        ip netns add "$h"
        ip link add "v$h" netns "$h" type veth peer name "p$h" netns "$HOSTS_BRIDGE"
        ip netns exec "$HOSTS_BRIDGE" ip link set "p$h" master bridge up
        ip netns exec "$h" ip addr add "10.77.9.$i/24" dev "v$h"
        ip netns exec "$h" ip link set "v$h" up
        ip netns exec "$h" ip link set lo up
        if ! ip netns exec "$h" tc qdisc add dev "v$h" root handle 1: htb default 1 ||
            ! ip netns exec "$h" tc class add dev "v$h" parent 1: classid 1:1 htb rate 1gbit burst 2kb cburst 2kb quantum 60000; then
            hosts_close
            return 1
        fi
        mkdir -p "$HOSTS_FOLDER/$h" "/etc/netns/$h"
    done
    for h in "${hosts[@]}"; do
        echo '127.0.0.1 localhost' >"/etc/netns/$h/hosts"
        for ((i = 0; i < n; i++)); do echo "10.77.9.$((i + 1)) ${hosts[i]}"; done >>"/etc/netns/$h/hosts"
    done
    # what mpirun takes for ssh: options, a host, a command
    cat >"$HOSTS_FOLDER/rsh" <<END
#!/bin/bash
while [[ \$1 == -* ]]; do shift; done
h=\$1
shift
exec ip netns exec "\$h" unshare -u bash -c "hostname \$h; export TMPDIR=$HOSTS_FOLDER/\$h; \$*"
END
    chmod +x "$HOSTS_FOLDER/rsh"
}

# Ends what runs on the hosts, and the hosts.
hosts_close() {
    local h pid
    for h in "${hosts[@]}" ${HOSTS_BRIDGE:+"$HOSTS_BRIDGE"}; do
        for pid in $(ip netns pids "$h" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
        ip netns del "$h" 2>/dev/null || true
        rm -rf "/etc/netns/$h"
    done
    hosts=() HOSTS_BRIDGE=
}

# hosts_mpirun OPTION... COMMAND...: mpirun, started on the first host, here and with this PATH.
hosts_mpirun() {
    "$HOSTS_FOLDER/rsh" "${hosts[0]}" "cd $PWD && PATH=$PATH exec timeout 300 mpirun -q --mca plm_rsh_agent $HOSTS_FOLDER/rsh \
        --mca btl_tcp_if_include 10.77.9.0/24 --mca oob_tcp_if_include 10.77.9.0/24 --mca mpi_yield_when_idle 1 \
        --mca btl_vader_single_copy_mechanism none --oversubscribe -x PATH $*" </dev/null
}

# hosts_run EACH COMMAND...: that many ranks on each host, host by host. Every mpirun daemon takes the
# machine for its own: several ranks of a host are bound to a core each, as on a host; single ones to
# none, or all hosts' would share the first.
hosts_run() {
    local each=$1 bind=none
    shift
    [ "$each" -eq 1 ] || [ "$each" -gt "$(nproc)" ] || bind=core
    hosts_mpirun --map-by slot --bind-to $bind --host "$(printf "%s:$each," "${hosts[@]}" | sed 's/,$//')" \
        -np $((${#hosts[@]} * each)) -x OPENBLAS_NUM_THREADS "$@"
}
