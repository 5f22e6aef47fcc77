#!/usr/bin/env bats
# ap-exec: ranks that die or stall, and signals: the job ends, says why, and leaves no process.
# AP_FAULTS=200 sets how many runs the last test disturbs at random, AP_SEED=N which; AP_FAULTS_LOG
# gets a line for each: what it did, the seconds from there to the end, and those from its start to the end.
# shellcheck disable=SC2030,SC2031,SC2154 # status, output and stderr are bats'

load helpers

setup_file() {
    needs_exec
    PLAN=$(rewritten mlp 2x2)
    # seconds, far more than a start takes on this machine
    local start=$SECONDS
    ap-exec -n 4 --data "$MODELS/mlp/in" --quiet "$PLAN"
    WATCHDOG=$((8 + 4 * (SECONDS - start)))
    export PLAN WATCHDOG
}

# Starts an endless run: TOP is ap-exec, its messages are in `err`. --out names the run's processes.
launch() {
    cd "$BATS_TEST_TMPDIR" && rm -f out err || return
    # bash makes what runs in the background deaf to ^C
    env --default-signal=INT,QUIT ap-exec -n 4 --data "$MODELS/mlp/in" --steps 100000000 \
        --out "$BATS_TEST_TMPDIR/end" --watchdog $WATCHDOG "$PLAN" >out 2>err 3>&- &
    TOP=$!
}

# Waits until the run has printed a step.
runs() {
    await printed_or_gone
    [ -s out ] || { cat err; return 1; }
}
printed_or_gone() { [ -s out ] || [ ! -e "/proc/$TOP" ]; }

mpirun_pid() { pgrep -P "$TOP" -x mpirun; }
# Process of a rank: rank_pid R
rank_pid() { pgrep -P "$(mpirun_pid)" | sed -n "$(($1 + 1))p"; }

# Whether the run ends out of order in time, and leaves nothing behind. mpirun may take three
# times its five seconds of grace, and a loaded machine as long again.
ends() {
    local start=$SECONDS
    status=0
    wait "$TOP" || status=$?
    took=$((SECONDS - start))
    echo "ended with $status after $took s: $(cat err)"
    [ "$status" -ne 0 ] && [ $took -le $((WATCHDOG + 60)) ] || return 1
    await nothing_left || { pgrep -fa "$BATS_TEST_TMPDIR/end"; return 1; }
}
nothing_left() { ! pgrep -f "$BATS_TEST_TMPDIR/end" >/dev/null; }

teardown() {
    local left
    left=$(pgrep -f "$BATS_TEST_TMPDIR/end" || true)
    # shellcheck disable=SC2086 # several numbers
    [ -z "$left" ] || kill -9 $left || true
}

@test "faults: a rank that is killed ends the job, and the signal is named" {
    launch
    runs
    # a rank's memory does not grow with --steps
    [ "$(awk '/^VmRSS/ { print $2 }' "/proc/$(rank_pid 2)/status")" -lt 500000 ]
    kill -9 "$(rank_pid 2)"
    ends
    [ "$status" -eq 137 ]
    [ "$(cat err)" = 'ap-exec: a rank was killed by signal 9 (Killed)' ]
}

@test "faults: a rank that is stopped ends the job within the watchdog" {
    launch
    runs
    kill -STOP "$(rank_pid 1)"
    ends
    [ "$status" -eq 1 ]
    grep -qE "^ap-exec: rank [023] has waited for other ranks for $WATCHDOG s \(step [1-9][0-9]*, MPI_[A-Za-z]*\): one of them has stopped, computes for longer than --watchdog, or cannot be reached$" err
}

@test "faults: mpirun killed, ap-exec killed" {
    launch
    runs
    kill -9 "$(mpirun_pid)"
    ends
    [ "$status" -eq 137 ] && grep -q 'mpirun was killed by signal 9' err
    launch
    runs
    kill -9 "$TOP"
    ends
    [ "$status" -eq 137 ]
}

@test "faults: mpirun that is told to end, and a library that ends its rank, are named" {
    launch
    runs
    kill -TERM "$(mpirun_pid)"
    ends
    [ "$status" -eq 1 ]
    [ "$(cat err)" = 'ap-exec: mpirun ended the job (exit 1)' ]
    printf '#include <stdlib.h>\nint MPI_Allreduce(void) { exit(7); }\n' >ends.c
    cc -shared -fPIC -o ends.so ends.c
    ASAN_OPTIONS=verify_asan_link_order=0 LD_PRELOAD=$PWD/ends.so run --separate-stderr ap-exec -n 4 "$PLAN"
    [ "$status" -eq 7 ]
    [ "$stderr" = 'ap-exec: mpirun ended the job (exit 7)' ]
}

@test "faults: ^C and SIGTERM end the job as they end other programs" {
    launch
    runs
    kill -INT "$TOP"
    ends
    [ "$status" -eq 130 ]
    [ "$(cat err)" = 'ap-exec: ended by signal 2 (Interrupt)' ]
    launch
    runs
    kill -TERM "$TOP"
    ends
    [ "$status" -eq 143 ]
    [ "$(cat err)" = 'ap-exec: ended by signal 15 (Terminated)' ]
}

@test "faults: under mpirun alone ranks have the watchdog, too" {
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
    cd "$BATS_TEST_TMPDIR"
    local stopped ranks
    for stopped in 0 2; do
        rm -f out err
        mpirun -q --oversubscribe -n 4 ap-exec --data "$MODELS/mlp/in" --steps 100000000 \
            --out "$BATS_TEST_TMPDIR/end" --watchdog $WATCHDOG "$PLAN" >out 2>err 3>&- &
        TOP=$!
        runs
        ranks=$(pgrep -P $TOP)
        kill -STOP "$(sed -n "$((stopped + 1))p" <<<"$ranks")"
        ends
        grep -q "has waited for other ranks for $WATCHDOG s" err
    done
}

@test "faults: a full TMPDIR ends the job" {
    [ "$(id -u)" -eq 0 ] || skip "mounting a small file system needs root"
    cd "$BATS_TEST_TMPDIR"
    mkdir small
    mount -t tmpfs -o size=16k tmpfs small || skip "tmpfs cannot be mounted"
    cat /dev/zero >small/fill 2>/dev/null || true
    TMPDIR=$PWD/small run --separate-stderr timeout 300 ap-exec -n 4 --data "$MODELS/mlp/in" --watchdog 20 "$PLAN"
    first=$status
    TMPDIR=$PWD/small run --separate-stderr timeout 300 ap-exec -n 4 --data "$MODELS/mlp/in" --watchdog 20 <"$PLAN"
    umount small
    [ "$first" -ne 0 ]
    [ "$first" -ne 124 ]
    [ "$status" -ne 0 ]
    [ "$status" -ne 124 ]
    [[ $stderr == *ap-exec:* ]]
}

@test "faults: a rank notes its end only in the file of its own launcher" {
    cd "$BATS_TEST_TMPDIR"
    local host
    host=$(uname -n)
    printf kept >file
    : >gone
    exec 7<>file 8<>gone
    rm gone
    ends_with() { # VALUE: a run that says why it ends
        AP_EXEC_TOLD=$1 run -1 --separate-stderr ap-exec "$PLAN"
        [[ $stderr == *"this job has 1: run it with -n 4" ]]
    }
    ends_with "$host/proc/$BASHPID/fd/7"
    [ "$(cat file)" = kept ]
    ends_with "not-$host/proc/$BASHPID/fd/8"
    [ "$(wc -c <"/proc/$BASHPID/fd/8")" -eq 0 ]
    ends_with "$host/proc/$BASHPID/fd/8"
    [ "$(wc -c <"/proc/$BASHPID/fd/8")" -eq 1 ]
}

@test "faults: --watchdog takes seconds; 0 switches it off" {
    run --separate-stderr ap-exec --watchdog -1 "$PLAN"
    [ "$status" -eq 2 ]
    ap-exec -n 4 --data "$MODELS/mlp/in" --watchdog 0 "$PLAN" | grep -q '^step 1 loss'
}

@test "faults: at random instants, to random processes: always an end" {
    local i sig who pid start took n=${AP_FAULTS:-4} slowest=0
    RANDOM=${AP_SEED:-1}
    for ((i = 0; i < n; i++)); do
        start=$SECONDS
        launch
        case $((RANDOM % 4)) in
            0) ;; # while it starts
            *) runs || true ;; # where the machine is too slow, the watchdog may end it
        esac
        sleep "0.$((RANDOM % 10))$((RANDOM % 10))"
        who=$((RANDOM % 6))
        sig=$((RANDOM % 3))
        case $who in
            4) pid=$(mpirun_pid || true) ;;
            5) pid=$TOP ;;
            *) pid=$(rank_pid $who 2>/dev/null || true) ;;
        esac
        pid=${pid:-$TOP}
        # whoever stops ap-exec or mpirun waits for it
        [ $who -lt 4 ] && [ "$pid" != "$TOP" ] || [ $sig -ne 1 ] || sig=2
        sig=$(set -- KILL STOP INT && shift $sig && echo "$1")
        echo "run $i: SIG$sig to $who"
        kill -"$sig" "$pid" 2>/dev/null || true # it may have ended
        ends
        [ $took -le $slowest ] || slowest=$took
        echo "seed ${AP_SEED:-1} run $i: SIG$sig to $who, ended with $status after $took s, $((SECONDS - start)) in all" >>"${AP_FAULTS_LOG:-log}"
        rm -f out
    done
    echo "# $n faults, all ended within $slowest s" >&3
}
