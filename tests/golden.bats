#!/usr/bin/env bats
# A part of scripts/golden-table, small enough for every run: each model on the 2x2 mesh,
# searched and under one baseline, five steps on four ranks against JAX.

load helpers

golden() { # MODEL ALGORITHMS
    needs_exec
    run scripts/golden-table --models "$1" --meshes 2x2 --algorithms "$2"
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
@test "golden: ff" { golden ff "ilp largest-dim"; }
