# Modules of scripts/torch/zoo.py, exported, and trained by scripts/torch/parallel.py as plans say.

needs_torch() {
    [ -n "${AP_TORCH_PYTHON:-}" ] || skip "AP_TORCH_PYTHON: a Python with torch and transformers"
    "$AP_TORCH_PYTHON" -c 'import torch.distributed.tensor, transformers, jax' ||
        skip "$AP_TORCH_PYTHON lacks torch, transformers or jax"
}

# zoo_step MODEL: the step of zoo.py's function, exported
zoo_step() {
    local dir=$BATS_FILE_TMPDIR/$1
    [ -s "$dir/step.json" ] || {
        "$AP_TORCH_PYTHON" scripts/torch/export.py "scripts/torch/zoo.py:$1" -o "$dir" &&
            ap-import --no-history "$dir/model.hlo" |
            ap-grad --no-history --optimizer adam --lr 0.01 -o "$dir/step.json"
    } >&2 || return
    echo "$dir/step.json"
}

# torch_trains MODEL FILTER [OPTION...] PLAN...: losses and gradients as one process's,
# parameters as planned, FILTER of the list of lines
torch_trains() {
    local found=$BATS_TEST_TMPDIR/found
    "$AP_TORCH_PYTHON" scripts/torch/parallel.py "scripts/torch/zoo.py:$1" "${@:3}" >"$found"
    jq -e '.loss_error <= 1e-5 and .gradient_error <= 1e-5 and .misplaced == []' "$found" ||
        { cat "$found"; return 1; }
    jq -es "$2" "$found" || { cat "$found"; return 1; }
}
