#!/usr/bin/env bats
# scripts/jax/export.py --step: steps of one's own. Needs JAX, Flax and Optax: the Python of
# AP_JAX_PYTHON, or that of build/jaxenv; without them all is skipped.
# shellcheck disable=SC2154 # status, output and stderr are bats'

load helpers

setup() {
    needs_jax
}

setup_file() {
    export PYTHONDONTWRITEBYTECODE=1
    cat >"$BATS_FILE_TMPDIR/mine.py" <<'END'
import jax
import jax.numpy as jnp
import numpy as np


def train_step(state, batch, key, unused, rate=0.1):
    def loss_of(w):
        noise = 0.01 * jax.random.normal(key, w.shape)
        return jnp.mean((batch["x"] @ (w + noise) - batch["y"]) ** 2)

    loss, grad = jax.value_and_grad(loss_of)(state["w"])
    new = {"w": state["w"] - rate * grad, "n": state["n"] + 1, "none": None}
    return new, {"norm": jnp.sqrt(jnp.sum(grad**2)), "the_loss": loss}


def renamed(s, b, k, u):
    return train_step(s, b, k, u)


def faster(s, b, k, u):
    return train_step(s, b, k, u, rate=0.2)


jitted = jax.jit(train_step, donate_argnums=0)
static = jax.jit(train_step, static_argnames="rate", donate_argnames="state")
no_loss = lambda state, batch, key, unused: batch["x"] @ state["w"]


def args():
    rng = np.random.default_rng(0)
    batch = {"x": rng.standard_normal((8, 4), np.float32), "y": np.ones((8, 2), np.float32)}
    state = {"w": jnp.ones((4, 2), jnp.float32), "n": 3, "none": None}
    return state, batch, jax.random.key(1), np.arange(2)


def with_rate():
    return (*args(), 0.1)


def shapes():
    return jax.eval_shape(lambda: args())
END
}

export_step() { # STEP ARGS OPTIONS: the text and what is printed in the test's folder
    "$JAX_PYTHON" scripts/jax/export.py --step "$BATS_FILE_TMPDIR/mine.py:$1" \
        --args "$BATS_FILE_TMPDIR/mine.py:$2" -o "$BATS_TEST_TMPDIR/$1.hlo" "${@:3}"
}

@test "export: keys, numbers, None and unused arguments; the section names them all" {
    local dir=$BATS_TEST_TMPDIR
    run export_step train_step args --donate 0 --data "$dir/data"
    [[ $output == *"6 arguments, 2 of them replaced; the loss is [1]['the_loss'], by its name (--loss)" ]]
    ap-import "$dir/train_step.hlo" >"$dir/g.json"
    /usr/bin/python3 tests/validate.py "$dir/g.json"
    jq -e '.step | [.arguments[] | [.path, .shape, .donated // false, .key]] == [
        ["state['"'n'"']", "s32[]", true, null], ["state['"'w'"']", "f32[4,2]", true, null],
        ["batch['"'x'"']", "f32[8,4]", false, null], ["batch['"'y'"']", "f32[8,2]", false, null],
        ["key", "u32[2]", false, "threefry2x32"], ["unused", "s32[2]", false, null]]' "$dir/g.json"
    jq -e '.step.loss == {result: 3, guessed: true} and .graph.results[3].role == "loss"' "$dir/g.json"
    needs_exec
    ap-shard --mesh 2 "$dir/g.json" | ap-rewrite | ap-exec -n 2 --steps 2 --data "$dir/data" --out "$dir/out" --verify -
    [ "$(tail -c 4 "$dir/out/0.npy" | od -An -td4 | tr -d ' ')" -eq 5 ] # the step's number, twice counted up
}

@test "export: the hash is the computation's, whatever it is called and how it is jitted" {
    local dir=$BATS_TEST_TMPDIR step
    for step in train_step renamed jitted faster; do
        export_step $step args
        ap-import --quiet "$dir/$step.hlo" | jq -r .step.hash >"$dir/$step"
    done
    export_step train_step shapes
    [ "$(ap-import --quiet "$dir/train_step.hlo" | jq -r .step.hash)" = "$(cat "$dir/train_step")" ]
    cmp "$dir/train_step" "$dir/renamed"
    cmp "$dir/train_step" "$dir/jitted"
    # an argument that is static is a part of the step, and of no data
    export_step static with_rate --data "$dir/data"
    [ "$(ap-import --quiet "$dir/static.hlo" | jq -r .step.hash)" = "$(cat "$dir/train_step")" ]
    [ "$(cd "$dir/data" && echo *)" = "0.npy 1.npy 2.npy 3.npy 4.npy 5.npy" ]
    run ! cmp -s "$dir/train_step" "$dir/faster"
}

@test "export: what cannot be exported is refused, with what to do" {
    refuses 1 "--donate: no result has the form of batch['x'], batch['y']" export_step train_step args --donate 1
    refuses 1 "--donate: there is no argument 7" export_step train_step args --donate 7
    refuses 1 "--donate: the step is jitted, with donations of its own" export_step jitted args --donate 0
    refuses 1 "loss 'nothing': no result of this name; float scalars are: [1]['norm'], [1]['the_loss']" \
        export_step train_step args --loss nothing
    refuses 1 "loss 'w': no float scalar of this name" export_step train_step args --loss w
    refuses 1 "--frozen: there is no argument 4" export_step train_step args --frozen 4
    refuses 2 "--frozen: expected numbers, got 'w'" export_step train_step args --frozen w
    refuses 1 "--data: ARGS returns shapes, not arrays" export_step train_step shapes --data "$BATS_TEST_TMPDIR/d"
    refuses 1 "mine.py: there is no 'nowhere'" export_step nowhere args
    run export_step no_loss args
    [[ $output == *"no result is a float scalar: planned as inference, not to train"* ]]
    run "$JAX_PYTHON" scripts/jax/export.py --help
    [ "$status" -eq 0 ] && [[ $output == *--layers*--step*--loss*--data* ]]
}

@test "export: train steps of the zoo run on four ranks with JAX's losses" {
    needs_exec
    run "$JAX_PYTHON" scripts/jax/zoo-table --steps 'flax_ema rwkv fp8'
    echo "$output"
    [ "$status" -eq 0 ] && [ "${lines[-1]}" = "3 passed, 0 failed" ]
}
