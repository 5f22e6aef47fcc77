#!/usr/bin/env bats
# The CUDA backend without a GPU: on tests/fakecuda, and its kernels through NVRTC.
# AP_FAKE_CASES=N: so many random programs per number of ranks (10); `make check-fake`: 75.

load helpers

setup_file() {
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 \
        OMPI_MCA_btl_vader_single_copy_mechanism=none OPENBLAS_NUM_THREADS=1
}

setup() {
    [ -x "$AP_BUILD/fake/test_fake" ] || skip "tests/fakecuda is not built (no CUDA headers, or no MPI)"
    unset AP_FAKE_SEED AP_FAKE_FAULT AP_FAKE_DEVICES
}

fake() {
    "$AP_BUILD/fake/test_fake" "$@"
}

# ranks N COMMAND...
ranks() {
    local n=$1
    shift
    timeout 120 mpirun -q --stdin none -n "$n" "$@"
}

# finds TEXT COMMAND...: the fake ends the command and says why
finds() {
    local text=$1
    shift
    run "$@"
    [ "$status" -eq 97 ] && [[ $output == *"$text"* ]] || { echo "exit $status: $output"; return 1; }
}

# --- the fake itself ---

@test "fake: kernels, captures, products and errors, in any order" {
    local seed
    for seed in 0 1 2 3 4 5; do
        AP_FAKE_SEED=$seed run fake
        [ "$status" -eq 0 ] || { echo "seed $seed: $output"; return 1; }
    done
}

@test "fake: a missing event shows, whichever stream is ahead" {
    local seed
    for seed in 0 1 2 3 4 5; do
        [ "$(AP_FAKE_SEED=$seed fake scale | head -n 1)" = right ]
    done
    [ "$(AP_FAKE_SEED=0 fake no-event | head -n 1)" = noticed ]
    [ "$(AP_FAKE_SEED=0 AP_FAKE_FAULT=drop-event:1 fake scale 2>/dev/null | head -n 1)" = wrong ]
}

@test "fake: work on a wrong stream shows" {
    [ "$(AP_FAKE_FAULT=wrong-stream:3 fake scale 2>/dev/null | head -n 1)" = wrong ]
}

@test "fake: a launch of the wrong size shows" {
    AP_FAKE_FAULT=wrong-launch:2 run fake
    [ "$status" -eq 1 ]
    [[ $output == *"not ok"*"sums of blocks"* ]]
}

@test "fake: the host's touch of device memory is found" {
    finds "the host touches byte 20 of device memory of 4000 bytes" fake host-touch
}

@test "fake: too small a buffer is found, by its filler and by its guard" {
    finds "beyond wrote byte 4000 of device memory of 4000 bytes" fake filler
    finds "beyond touches byte 4096 of device memory of 4000 bytes" fake guard
    AP_FAKE_FAULT=small-buffer:1 finds "device memory of 4000 bytes" fake filler
}

@test "fake: a barrier that some threads do not reach is found" {
    finds "100 of 128 threads" fake barrier
}

@test "fake: NCCL over 1 to 4 ranks; ranks that differ and shared devices are found" {
    local n
    for n in 1 2 3 4; do
        run ranks "$n" "$AP_BUILD/fake/test_fake" nccl
        [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    done
    finds "runs ncclAllReduce of 9" ranks 2 "$AP_BUILD/fake/test_fake" nccl-differ
    AP_TEST_DEVICE=0 finds "Duplicate GPU detected" ranks 2 "$AP_BUILD/fake/test_fake" nccl
}

# --- the communicator ---

@test "nccl: every collective, type and reduction on 1 to 4 ranks is MPI's" {
    local n
    for n in 1 2 3 4; do
        run ranks "$n" "$AP_BUILD/fake/test_nccl"
        [ "$status" -eq 0 ] || { echo "$n ranks: $output" | grep -v '^ok'; return 1; }
    done
}

@test "nccl: each of its events is needed and there" {
    local i seed found
    for i in 1 2 3 4; do
        found=0
        for seed in 0 1; do
            AP_FAKE_SEED=$seed run ranks 2 "$AP_BUILD/fake/test_nccl" overlap
            [ "$status" -eq 0 ]
            AP_FAKE_SEED=$seed AP_FAKE_FAULT=drop-event:$i run ranks 2 "$AP_BUILD/fake/test_nccl" overlap
            [ "$status" -eq 0 ] || found=1
        done
        [ "$found" = 1 ] || { echo "wait $i was dropped unnoticed"; return 1; }
    done
}

@test "nccl: ranks of one device go through the host, and say so" {
    AP_FAKE_DEVICES=2 run ranks 4 "$AP_BUILD/fake/test_nccl"
    [ "$status" -eq 0 ]
    [[ $output == *"several ranks have one device"* ]]
}

@test "nccl: a rank that does not come is waited for in vain only so long" {
    AP_NCCL_TIMEOUT=1 AP_FAKE_FAULT=nccl-init:1 run ranks 2 "$AP_BUILD/fake/test_nccl" overlap
    [ "$status" -eq 1 ]
    [[ $output == *"ncclCommInitRankConfig: not done after 1 s"* ]]
}

@test "nccl: an error of another rank ends the job and names rank and collective" {
    AP_FAKE_FAULT=nccl-error:2 run ranks 2 "$AP_BUILD/fake/test_nccl" overlap
    [ "$status" -eq 1 ]
    [[ $output == *"rank "*"all-reduce of 96 bytes over 2 ranks, number 2 of this run: remote process exited"* ]]
}
