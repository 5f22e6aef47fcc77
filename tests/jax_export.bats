#!/usr/bin/env bats
# scripts/jax/export.py --step: steps of one's own. Needs JAX, Flax, Optax and Equinox: the Python of
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


shaped = lambda *args: train_step(*args)


def shapes():
    return jax.eval_shape(lambda: args())
END
}

# Lines STEP ARGS OPTIONS of standard input, one process for all, which starts JAX once: the N-th line's
# exit status, standard output and messages in N.status, N.out and N.err of the test's folder.
export_steps() {
    "$JAX_PYTHON" - "$BATS_FILE_TMPDIR/mine.py" "$BATS_TEST_TMPDIR" 3<&0 <<'END'
import contextlib
import os
import runpy
import sys

mine, folder = sys.argv[1:]
sys.path.insert(0, "scripts/jax")  # as of the script
for n, (step, args, *options) in enumerate(map(str.split, os.fdopen(3)), 1):
    sys.argv = ["scripts/jax/export.py", "--step", f"{mine}:{step}", "--args", f"{mine}:{args}",
                "-o", f"{folder}/{step}.hlo", *options]
    status = 0
    with open(f"{folder}/{n}.out", "w") as out, open(f"{folder}/{n}.err", "w") as err:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                runpy.run_path(sys.argv[0], run_name="__main__")
            except SystemExit as end: # as the interpreter ends
                status = end.code if isinstance(end.code, int) else 1 if end.code else 0
                if isinstance(end.code, str):
                    print(end.code, file=sys.stderr)
    with open(f"{folder}/{n}.status", "w") as file:
        print(status, file=file)
END
}

@test "export: keys, numbers, None and unused arguments; the section names them all" {
    local dir=$BATS_TEST_TMPDIR
    # one by itself, as all are run
    run "$JAX_PYTHON" scripts/jax/export.py --step "$BATS_FILE_TMPDIR/mine.py:train_step" --args "$BATS_FILE_TMPDIR/mine.py:args" \
        -o "$dir/train_step.hlo" --donate 0 --data "$dir/data" --steps 2
    [[ $output == *"6 arguments, 2 of them replaced; the loss is [1]['the_loss']"* ]]
    ap-import "$dir/train_step.hlo" >"$dir/g.json"
    /usr/bin/python3 tests/validate.py "$dir/g.json"
    jq -e '.step | [.arguments[] | [.path, .shape, .donated // false, .key]] == [
        ["state['"'n'"']", "s32[]", true, null], ["state['"'w'"']", "f32[4,2]", true, null],
        ["batch['"'x'"']", "f32[8,4]", false, null], ["batch['"'y'"']", "f32[8,2]", false, null],
        ["key", "u32[2]", false, "threefry2x32"], ["unused", "s32[2]", false, null]]' "$dir/g.json"
    jq -e '.step.loss == {result: 3, guessed: false} and .graph.results[3].role == "loss"' "$dir/g.json"
    needs_exec
    [[ $output == *"checked: 4 arrays of 2 steps are JAX's; "* ]]
    ap-shard --mesh 2 "$dir/g.json" | ap-rewrite | ap-exec -n 2 --steps 2 --data "$dir/data" --out "$dir/out" \
        --compare "$dir/data" --tolerance 1e-5 --verify -
    [ "$(tail -c 4 "$dir/out/0.npy" | od -An -td4 | tr -d ' ')" -eq 5 ] # the step's number, twice counted up
}

@test "export: the hash is the computation's, whatever it is called and how it is jitted" {
    local dir=$BATS_TEST_TMPDIR step
    # an argument that is static is a part of the step, and of no data
    printf '%s\n' 'train_step args' 'renamed args' 'jitted args' 'faster args' 'static with_rate' 'shaped shapes' |
        sed "s|\$| --no-check|; /^static/s|\$| --data $dir/data|" | export_steps
    [ "$(sort -u "$dir"/*.status)" = 0 ]
    for step in train_step renamed jitted faster static shaped; do
        ap-import --quiet "$dir/$step.hlo" | jq -r .step.hash >"$dir/$step"
    done
    cmp "$dir/train_step" "$dir/shaped"
    cmp "$dir/train_step" "$dir/renamed"
    cmp "$dir/train_step" "$dir/jitted"
    cmp "$dir/train_step" "$dir/static"
    [ "$(cd "$dir/data" && echo *)" = "0.npy 1.npy 2.npy 3.npy 4.npy 5.npy losses.npy out" ]
    run ! cmp -s "$dir/train_step" "$dir/faster"
}

@test "export: what cannot be exported is refused, with what to do" {
    local n=0 want text line wants=() texts=()
    while IFS='|' read -r want text line; do
        n=$((n + 1))
        echo "$line" >>"$BATS_TEST_TMPDIR/lines"
        wants[n]=$want texts[n]=$text
    done <<END
1|--donate: no result has the form of batch['x'], batch['y']|train_step args --donate 1
1|--donate: there is no argument 7|train_step args --donate 7
1|--donate: the step is jitted, with donations of its own|jitted args --donate 0
1|loss 'nothing': no result of this name; float scalars are: [1]['norm'], [1]['the_loss']|train_step args --loss nothing
1|loss 'w': no float scalar of this name|train_step args --loss w
1|--frozen: there is no argument 4|train_step args --frozen 4
2|--frozen: expected numbers, got 'w'|train_step args --frozen w
1|--data: ARGS returns shapes, not arrays|train_step shapes --data $BATS_TEST_TMPDIR/d
1|mine.py: there is no 'nowhere'|nowhere args
END
    echo "no_loss args --no-check" >>"$BATS_TEST_TMPDIR/lines"
    export_steps <"$BATS_TEST_TMPDIR/lines"
    grep -qF 'no result is a float scalar: planned as inference, not to train' "$BATS_TEST_TMPDIR/10.out"
    [ $n -eq 9 ]
    for ((; n > 0; n--)); do
        [ "$(cat "$BATS_TEST_TMPDIR/$n.status")" -eq "${wants[n]}" ] && [ ! -s "$BATS_TEST_TMPDIR/$n.out" ] &&
            grep -qF -e "${texts[n]}" "$BATS_TEST_TMPDIR/$n.err" ||
            { head "$BATS_TEST_TMPDIR/$n".*; return 1; }
    done
}

@test "export: pairs, losses, states in place, containers, calls into Python: right or refused, each proved" {
    needs_exec
    PYTHONDONTWRITEBYTECODE=1 run "$JAX_PYTHON" tests/jax_kinds.py "$AP_BUILD/bin" "$BATS_TEST_TMPDIR"
    echo "$output"
    [ "$status" -eq 0 ]
    # rows that are counted are a batch dimension: microbatches and stages take their share of them
    ap-import --quiet "$BATS_TEST_TMPDIR/rows_that_are_counted.hlo" >"$BATS_TEST_TMPDIR/g.json"
    jq -e '[.graph.nodes[] | select(.op == "gather").start_indices_batching_dims] | sort == [[0], [0, 1]]' "$BATS_TEST_TMPDIR/g.json"
    ap-coarsen --blocks 2 "$BATS_TEST_TMPDIR/g.json" |
        ap-stage --quiet --cluster cpu-4 --stages 2 --submeshes 1x2 --microbatches 2 | ap-rewrite |
        ap-exec -n 4 --data "$BATS_TEST_TMPDIR/rows_that_are_counted" --compare "$BATS_TEST_TMPDIR/rows_that_are_counted" --tolerance 1e-5
}

@test "export: a step that ap-exec computes in another way is not exported silently" {
    needs_exec
    cd "$BATS_TEST_TMPDIR"
    cat >wrong.py <<'END'
import sys

sys.path.insert(0, sys.argv[1] + "/python")
from autopar import check
from autopar import export as own

plain = check.load  # as if ap-exec had computed a weight that is 1 % further away
check.load = lambda path, like: plain(path, like) * (0.99 if path.name == "1.npy" else 1)
own.main(["--step", "mine.py:train_step", "--args", "mine.py:args", "--donate", "0", "-o", "wrong.hlo"])
END
    cp "$BATS_FILE_TMPDIR/mine.py" .
    run "$JAX_PYTHON" wrong.py "$AP_TOP"
    [ "$status" -eq 1 ]
    [[ $output == *"ap-exec computes other numbers than JAX: 1 of 4 arrays differ, as part of what the steps change: state['w'] by "* ]]
}

@test "export: train steps of the zoo run on four ranks with JAX's losses" {
    needs_exec
    run "$JAX_PYTHON" scripts/jax/zoo-table --steps 'flax_ema fp8'
    echo "$output"
    [ "$status" -eq 0 ]
    [ "${lines[-1]}" = "2 passed, 0 failed" ]
}
