#!/usr/bin/env bats
# scripts/jax/autopar: plans run in JAX. Needs JAX, Flax and Optax: the Python of AP_JAX_PYTHON, or
# that of build/jaxenv (scripts/jax/environment); without them all is skipped. AP_JAX_EACH=all: staged
# plans in every combination of schedule, microbatches and rules, not in every pair of them.
# shellcheck disable=SC2154 # status, output and stderr are bats'

load helpers

setup() {
    needs_jax
    export JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=4
    export PYTHONPATH=$AP_TOP/scripts/jax PYTHONDONTWRITEBYTECODE=1
}

roundtrip() {
    "$JAX_PYTHON" scripts/jax/roundtrip --bin "$AP_BUILD/bin" "$@"
}

# Processes behind this share what XLA compiles: nearly a hundred programs each, of one operator most.
share_compiled() {
    export JAX_COMPILATION_CACHE_DIR=$BATS_FILE_TMPDIR/xla JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1
}

# The example's step, planned for four devices: $BATS_TEST_TMPDIR/plan.json, made once.
flax_plan() {
    local plan=$BATS_FILE_TMPDIR/plan.json
    share_compiled
    if [ ! -s "$plan" ]; then
        "$JAX_PYTHON" scripts/jax/export.py --step scripts/jax/examples/flax_planned.py:train_step \
            --args scripts/jax/examples/flax_planned.py:example_args -o "$BATS_FILE_TMPDIR/step.hlo"
        ap-import --quiet "$BATS_FILE_TMPDIR/step.hlo" | ap-shard --mesh 4 --algorithm zero3 | ap-rewrite >"$plan"
    fi
    cp "$plan" "$BATS_TEST_TMPDIR"
}

@test "jax: a plan, and stages under 1f1b, give JAX's losses with the planned collectives" {
    roundtrip --models mlp --meshes 2x4 --plans 'ilp zero3' --stages 2:4
}

@test "jax: bf16 weights are widened for one product at a time, long chains of operators are loaded" {
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
    roundtrip --step "$BATS_TEST_TMPDIR/deep.py:train_step" --args "$BATS_TEST_TMPDIR/deep.py:example_args" \
        --donate 0 --meshes 8 --plans data --compile-only
}

@test "jax: layers under lax.scan stay stacked for the user" {
    roundtrip --models scan_mlp --meshes 2x4 --plans ilp # others: make check-jax
}

@test "jax: two processes give the same numbers" {
    roundtrip --models mlp --meshes 2x4 --plans ilp --processes 2
}

@test "jax: a Flax script moved to a plan by ten lines trains as before; its checkpoint is its own" {
    [ "$(diff scripts/jax/examples/flax_train.py scripts/jax/examples/flax_planned.py | grep -c '^>')" -le 10 ]
    flax_plan
    cd "$BATS_TEST_TMPDIR"
    "$JAX_PYTHON" "$AP_TOP/scripts/jax/examples/flax_train.py" plain.msgpack >plain
    "$JAX_PYTHON" "$AP_TOP/scripts/jax/examples/flax_planned.py" plan.json planned.msgpack >planned
    [ "$(wc -l <plain)" -eq 8 ]
    paste plain planned | awk '{ d = $4 - $10; if (d < -1e-4 || d > 1e-4) { print; bad = 1 } } END { exit bad }'
    "$JAX_PYTHON" - <<'END'
import flax.serialization
import jax
import numpy as np

trees = [flax.serialization.msgpack_restore(open(name, "rb").read())
         for name in ("plain.msgpack", "planned.msgpack")]
assert jax.tree.structure(trees[0]) == jax.tree.structure(trees[1])
for a, b in zip(*map(jax.tree.leaves, trees)):
    assert np.shape(a) == np.shape(b) and np.allclose(a, b, atol=2e-3), (a, b)
END
}

@test "jax: what make install installs is imported by PYTHONPATH, and runs a plan" {
    local prefix=$BATS_TEST_TMPDIR/ap
    make -s install BUILD="$AP_BUILD" PREFIX="$prefix"
    flax_plan
    cp scripts/jax/examples/flax_planned.py "$BATS_TEST_TMPDIR"
    cd "$BATS_TEST_TMPDIR"
    export PYTHONPATH=$prefix/share/autopar/python
    "$JAX_PYTHON" -c 'import autopar, sys; assert autopar.__file__.startswith(sys.argv[1])' "$PYTHONPATH"
    "$JAX_PYTHON" flax_planned.py plan.json state.msgpack >losses
    [ "$(wc -l <losses)" -eq 8 ] && [ -s state.msgpack ]
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

@test "jax: a step that is not the planned one is refused, with the first difference" {
    flax_plan
    cd "$BATS_TEST_TMPDIR"
    cat >other.py <<'END'
import sys

sys.path.insert(0, sys.argv[1])
import autopar
import flax_planned as mine
import jax

plan = autopar.load("plan.json")
state, batch, key = mine.example_args()


def faster(state, batch, key):
    state, metrics = mine.train_step(state, batch, key)
    return state, {**metrics, "loss": 2 * metrics["loss"]}


def refused(step, *args):
    try:
        plan.jit(step)(*args)
    except autopar.PlanError as error:
        print(error)
    else:
        sys.exit("not refused")


refused(faster, state, batch, key)
refused(mine.train_step, state, {**batch, "tokens": batch["tokens"][:8]}, key)
END
    run "$JAX_PYTHON" other.py "$AP_TOP/scripts/jax/examples"
    echo "$output"
    [ "$status" -eq 0 ] && [ "${#lines[@]}" -eq 2 ]
    [[ ${lines[0]} == *comput* ]]
    [[ ${lines[1]} == *"batch['tokens']"* ]]
    echo '{}' >none.json
    run "$JAX_PYTHON" -c 'import autopar; autopar.load("none.json")'
    [ "$status" -ne 0 ] && [[ $output == *"none.json: no document of autopar"* ]]
}

# each MODEL: staged plans of tests/jax_each.py have the losses of gradient accumulation in JAX.
each() {
    local half=--half n=6
    [ "${AP_JAX_EACH-}" != all ] || half='' n=12
    # shellcheck disable=SC2086 # an option or nothing
    AP_JAX_PYTHON=$JAX_PYTHON run scripts/bench/staged-table --models "$1" $half
    echo "$output"
    [ "$status" -eq 0 ] && [ "${lines[-1]}" = "$n passed, 0 failed" ]
}

@test "jax: batch norms of each microbatch, a wide residual network in stages: JAX's losses" { each wide-resnet; }
@test "jax: balance losses of each microbatch, experts in stages: JAX's losses" { each experts; }
