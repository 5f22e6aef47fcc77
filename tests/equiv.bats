#!/usr/bin/env bats
# 600 random (graph, plan, mesh) cases on 2, 3, 4, 6 and 8 ranks: the bits of one rank.
# AP_SEED=N draws other cases; a failing case prints its seed. With sanitizers: 200, and all with
# AP_TEST_ASAN=all.

load helpers

setup_file() {
    [ -x "$AP_BUILD/equiv/test_equiv" ] || skip "test_equiv is not built"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 \
        OMPI_MCA_btl_vader_single_copy_mechanism=none OPENBLAS_NUM_THREADS=1
}

few() { [[ $AP_BUILD == */asan && ${AP_TEST_ASAN-} != all ]]; }

# same_bits RANKS CASES: runs the cases and keeps the log for the coverage test
same_bits() {
    local log=$BATS_FILE_TMPDIR/$1.log
    ! few || set -- "$1" $(($2 / 3))
    timeout 300 mpirun --stdin none -n "$1" "$AP_BUILD/equiv/test_equiv" $((${AP_SEED:-0} * 10000 + $1 * 1000)) "$2" \
        >"$log" 2>&1 || { grep -v '^ok\|^# covered' "$log" | head -n 20; return 1; }
    [ "$(grep -c '^ok' "$log")" -eq "$2" ]
}

@test "2 ranks: 120 cases" { same_bits 2 120; }
@test "3 ranks: 120 cases" { same_bits 3 120; }
@test "4 ranks: 140 cases" { same_bits 4 140; }
@test "6 ranks: 100 cases" { same_bits 6 100; }
@test "8 ranks: 120 cases" { same_bits 8 120; }

@test "every operator, kind of conversion, reduction and layout occurred" {
    ! few || skip "of all cases only"
    cat "$BATS_FILE_TMPDIR"/*.log | sed -n 's/^# covered //p' | sort -u >"$BATS_TEST_TMPDIR/covered"
    {
        # the operator table, the program's own operators included
        # but for what is planned only (ap-exec refuses it by name), and for loops that are
        # kept whole, which loops.bats runs
        sed -n 's/^AP_OP([A-Z0-9_]*, "\([^"]*\)".*/\1/p' libcommon/graph/ops.def |
            grep -vxE "custom-call|while$(has_fft || echo '|fft')"
        printf '%s\n' strided padded 'partial sum' 'partial prod' 'partial max' 'partial min' \
            'partial and' 'partial or' 'type bf16' 'type f16' 'type f32' 'type s32' 'type u32' \
            'type pred' 'all-reduce over microbatches' 'all-gather over microbatches' \
            'ap-slice over microbatches' 'ap-partial over microbatches' \
            'kernel of elements' 'kernel of rows' 'kernel of columns' \
            'groups before microbatches' 'groups behind microbatches' 'mesh 2x4' 'mesh 2x2x2' 'mesh 2x1x2x2'
    } | sort -u >"$BATS_TEST_TMPDIR/wanted"
    run comm -23 "$BATS_TEST_TMPDIR/wanted" "$BATS_TEST_TMPDIR/covered"
    [ -z "$output" ] || { echo "did not occur: $output"; return 1; }
}
