#!/usr/bin/env bats
# autopar.plan and autopar.torch.plan: export, pipe, check and load in one call.

load helpers
load torch_helpers

@test "autopar.plan: a step is planned, runs as JAX's, is saved; a tool's message is an exception" {
    needs_jax
    needs_exec
    PYTHONPATH=python run "$JAX_PYTHON" -W error::UserWarning tests/jax_plan.py "$BATS_TEST_TMPDIR/plan.json"
    echo "$output"
    [ "$status" -eq 0 ]
    [ "${lines[-1]}" = ok ]
}

@test "autopar.torch.plan: one process of four plans, all train as one does" {
    needs_torch
    PYTHONPATH=python run "$AP_TORCH_PYTHON" tests/torch_plan.py
    echo "$output"
    [ "$status" -eq 0 ]
    [ "${lines[-1]}" = ok ]
}
