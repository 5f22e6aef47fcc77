#!/usr/bin/env bats
# python/autopar: plans run in JAX. Needs JAX, Flax and Optax: the Python of AP_JAX_PYTHON, or
# that of build/jaxenv (scripts/jax/environment); without them all is skipped. AP_JAX_EACH=all: staged
# plans in every combination of schedule, microbatches and rules, not in three of them.
# shellcheck disable=SC2154 # status, output and stderr are bats'

load helpers

setup() {
    needs_jax
    export JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=4
    export PYTHONPATH=$AP_TOP/python:$AP_TOP/scripts/jax PYTHONDONTWRITEBYTECODE=1
}

# Lines of scripts/jax/roundtrip's options on standard input, all in one process, which starts JAX once.
roundtrips() {
    "$JAX_PYTHON" - "$AP_BUILD/bin" 3<&0 <<'END'
import os
import runpy
import shlex
import sys

bin_ = sys.argv[1]
for line in os.fdopen(3):
    sys.argv = ["scripts/jax/roundtrip", "--bin", bin_, *shlex.split(line)]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            sys.exit(f"{line}: {end.code}")
END
}

@test "jax: plans, and stages under 1f1b, give JAX's losses with the planned collectives; stacked layers stay stacked" {
    cat >"$BATS_TEST_TMPDIR/deep.py" <<'END'
import jax
import jax.numpy as jnp


def loss_of(params, x):
    for w in params:
        x = x @ w
        for _ in range(20):
            x = x * jnp.sin(x)
    return jnp.mean(jnp.square(x.astype(jnp.float32)))


def train_step(params, x):
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    return loss, [w - (1e-3 * g.astype(jnp.float32)).astype(w.dtype) for w, g in zip(params, grads)]


def example_args():
    keys = jax.random.split(jax.random.key(0), 7)
    params = [jax.random.normal(k, (256, 256), jnp.bfloat16) / 16 for k in keys[1:]]
    return params, jax.random.normal(keys[0], (8, 256), jnp.bfloat16)
END
    # the last: bf16 weights are widened for one product at a time, long chains of operators are loaded
    roundtrips <<END
--models mlp --meshes 2x4 --plans 'ilp zero3' --stages 2:4
--models scan_mlp --meshes 2x4 --plans ilp
--step $BATS_TEST_TMPDIR/deep.py:train_step --args $BATS_TEST_TMPDIR/deep.py:example_args --donate 0 --meshes 8 --plans data --compile-only
END
}

@test "jax: two processes give the same numbers" {
    "$JAX_PYTHON" scripts/jax/roundtrip --bin "$AP_BUILD/bin" --models mlp --meshes 2x4 --plans ilp --processes 2
}

@test "jax: a Flax script moved to a plan by ten lines trains as before, by what make install installs; others are refused" {
    [ "$(diff scripts/jax/examples/flax_train.py scripts/jax/examples/flax_planned.py | grep -c '^>')" -le 10 ]
    make -s install BUILD="$AP_BUILD" PREFIX="$BATS_TEST_TMPDIR/ap"
    PYTHONPATH=$BATS_TEST_TMPDIR/ap/share/autopar/python "$JAX_PYTHON" tests/jax_flax.py "$AP_BUILD/bin" "$BATS_TEST_TMPDIR"
}

@test "jax: an environment whose making was interrupted is skipped, not used" {
    mkdir -p "$BATS_TEST_TMPDIR/jaxenv/bin"
    ln -s "$JAX_PYTHON" "$BATS_TEST_TMPDIR/jaxenv/bin/python"
    : >"$BATS_TEST_TMPDIR/jaxenv/made" # empty until it is whole
    skip() { echo "skipped: $1"; exit 0; }
    [[ $(AP_JAX_PYTHON='' AP_BUILD=$BATS_TEST_TMPDIR needs_jax) == skipped:* ]]
    echo whole >"$BATS_TEST_TMPDIR/jaxenv/made"
    [ -z "$(AP_JAX_PYTHON='' AP_BUILD=$BATS_TEST_TMPDIR needs_jax)" ]
}

# each MODEL: staged plans of tests/jax_each.py have the losses of gradient accumulation in JAX.
each() {
    local few=--few n=3
    [ "${AP_JAX_EACH-}" != all ] || few='' n=12
    # shellcheck disable=SC2086 # an option or nothing
    AP_JAX_PYTHON=$JAX_PYTHON run scripts/bench/staged-table --models "$1" $few
    echo "$output"
    [ "$status" -eq 0 ]
    [ "${lines[-1]}" = "$n passed, 0 failed" ]
}

@test "jax: batch norms of each microbatch, a wide residual network in stages: JAX's losses" { each wide-resnet; }
@test "jax: balance losses of each microbatch, experts in stages: JAX's losses" { each experts; }
