#!/usr/bin/env bats
# A part of scripts/bench/golden-table, small enough for every run: each model on the 2x2 mesh,
# searched and under one named plan, five steps on four ranks against JAX.
# shellcheck disable=SC2030,SC2031 # output is of one test

load helpers

golden() { # MODEL ALGORITHMS
    needs_exec
    run scripts/bench/golden-table --models "$1" --meshes 2x2 --algorithms "$2"
    echo "$output"
    [ "$status" -eq 0 ]
    [ "${lines[-1]}" = "$(wc -w <<<"$2") passed, 0 failed, 0 do not exist" ]
}

@test "golden: mlp" { golden mlp "ilp zero3"; }
@test "golden: gpt2l" { golden gpt2l "ilp megatron"; }
@test "golden: gpt2l_bf16" { golden gpt2l_bf16 "ilp data"; }
@test "golden: resnet" { golden resnet "ilp largest-dim"; }
@test "golden: moe" { golden moe "ilp zero2"; }
@test "golden: t5" { golden t5 "ilp megatron"; }
@test "golden: scan_mlp" { golden scan_mlp "ilp zero3"; }
@test "golden: scan_gpt" { golden scan_gpt "ilp megatron"; }
@test "golden: lstm" { golden lstm "ilp tofu"; }
@test "golden: in microbatches" {
    needs_exec
    run scripts/bench/golden-table --models "mlp gpt2l resnet" --meshes 2x2 --algorithms "ilp" \
        --microbatches "2 4"
    echo "$output"
    [ "$status" -eq 0 ]
    [ "${lines[-1]}" = "4 passed, 0 failed, 2 do not exist" ]
}
@test "golden: ff" { golden ff "ilp largest-dim"; }

# An ap-exec that alters its report or its exit status.
altered() { # FILTER STATUS
    needs_exec
    local bin
    bin=$(dirname "$(command -v ap-exec)")
    mkdir -p "$BATS_TEST_TMPDIR/bin"
    ln -s "$bin"/* "$BATS_TEST_TMPDIR/bin"
    rm "$BATS_TEST_TMPDIR/bin/ap-exec"
    printf '#!/bin/sh\n"%s/ap-exec" "$@" | jq -c "%s"\nexit %s\n' "$bin" "$1" "$2" \
        >"$BATS_TEST_TMPDIR/bin/ap-exec"
    chmod +x "$BATS_TEST_TMPDIR/bin/ap-exec"
    AP_BUILD=$BATS_TEST_TMPDIR run scripts/bench/golden-table --models mlp --meshes 2 --algorithms data
    echo "$output"
}

@test "golden: states that differ fail, and so does a status" {
    altered . 0
    [ "$status" -eq 0 ]
    for case in ".compare.states_error=1e-3 0" ".compare.states_error=null 0" ". 1"; do
        rm -r "${BATS_TEST_TMPDIR:?}/bin"
        altered "${case% *}" "${case#* }"
        [ "$status" -eq 1 ]
        [ "${lines[-1]}" = "0 passed, 1 failed, 0 do not exist" ]
    done
}
