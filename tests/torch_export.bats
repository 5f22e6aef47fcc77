#!/usr/bin/env bats
# scripts/torch/export.py with current PyTorch and with Debian's: gradients that stop, roles,
# and what is refused.

load helpers

MODULES=$AP_TOP/tests/torch_modules.py

# python WHICH: the Python with current PyTorch ("new"), or Debian's 1.13 ("old")
python() {
    if [ "$1" = new ]; then
        PYTHON=${AP_TORCH_PYTHON:-python3}
        "$PYTHON" -c 'import torch.export, onnx, onnxscript, torch.onnx.ops' 2>/dev/null ||
            skip "$PYTHON has no current PyTorch with onnx and onnxscript"
    else
        PYTHON=/usr/bin/python3
        "$PYTHON" -c 'import torch, sys; sys.exit(hasattr(torch, "export"))' 2>/dev/null ||
            skip "Debian's python3-torch is not installed"
    fi
}

# trains NAME: a module's losses of three steps, by autopar, are PyTorch's
trains() {
    local out=$BATS_TEST_TMPDIR/$1
    "$PYTHON" scripts/torch/export.py "$MODULES:$1" -o "$out" --steps 3 --optimizer sgd --lr 0.5 2>"$out.err" ||
        { cat "$out.err"; return 1; }
    ap-import --quiet --weights "$out/inputs" "$out/model.onnx" |
        ap-grad --optimizer sgd --lr 0.5 | ap-shard --mesh 2 | ap-rewrite |
        ap-exec -n 2 --data "$out/inputs" --steps 3 --json >"$out/run.json"
    jq -e --slurpfile meta "$out/meta.json" --argjson most "${2:-1e-5}" '
        [.losses, $meta[0].losses] | transpose
        | length == 3 and all((.[0] - .[1] | fabs) <= $most * (.[1] | fabs))' "$out/run.json" ||
        { echo "$1:"; jq -c .losses "$out/run.json" "$out/meta.json"; return 1; }
}

# stops NAME TEXT...: the export fails with each TEXT in its message, and writes nothing
stops() {
    local name=$1
    shift
    run --separate-stderr "$PYTHON" scripts/torch/export.py "$MODULES:$name" -o "$BATS_TEST_TMPDIR/$name"
    [[ $status -eq 1 && ! -e $BATS_TEST_TMPDIR/$name ]] || { echo "$name: exit $status: $stderr"; return 1; }
    for text; do
        [[ $stderr == *"export.py: "*"$text"* && $stderr != *Traceback* ]] ||
            { echo "$name: expected '$text', got: $stderr"; return 1; }
    done
}

@test "torch export: gradients stop at detach, no_grad and inference_mode" {
    needs_exec
    python new
    trains detached
    trains no_grad
    trains inference
    trains second
    trains norm
    trains counter
}

@test "torch export: gradients that a trace does not have are refused" {
    python new
    stops own 'torch_modules.py:' 'the gradient of Round (torch.autograd.Function) is its own'
    stops hook 'torch_modules.py:' 'a hook on a gradient is not supported'
    stops parameter_hook "parameter 'a.weight' has a hook"
    stops change "changes 'a.weight' in place"
    stops activation "under torch.no_grad() changes"
    stops dropout 'dropout with p=0.1'
}

@test "torch export: mistakes are named" {
    python new
    stops logits "returns no floating-point scalar" "['logits'] [16, 4]" "give it the labels"
    stops number "example input 'y' is a int: expected a tensor"
    stops alone "returns a Case: expected the module and its example inputs"
    stops text "the example inputs are a str"
    stops missing "has no 'missing'"
    run "$PYTHON" scripts/torch/export.py nowhere.py:net -o "$BATS_TEST_TMPDIR/x"
    [ "$status" -eq 1 ]
    [[ $output == *"there is no file nowhere.py"* ]]
    run "$PYTHON" scripts/torch/export.py "$MODULES:memory" -o "$BATS_TEST_TMPDIR/memory"
    [ "$status" -eq 0 ]
    [[ $output == *"the forward pass assigns self.last"* ]]
    stops autocast "tests/torch_modules.py" "torch.export loses torch.no_grad() inside of autocast"
}

@test "torch export: a row of the table of modules" {
    needs_exec
    python new
    run "$PYTHON" scripts/torch/zoo-table --bin "$AP_BUILD/bin" --models 'byol vqvae'
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    [ "${lines[-1]}" = "2 passed, 0 failed" ]
    run "$PYTHON" scripts/torch/zoo-table --models 'perceptron'
    [ "$status" -eq 2 ]
    [[ $output == *"no 'perceptron'"* ]]
}

@test "torch export: Debian's PyTorch has the same roles and losses" {
    needs_exec
    python old
    trains detached
    trains second
    trains norm
    grep "running statistics are not updated (norm.running_mean, norm.running_var)" \
        "$BATS_TEST_TMPDIR/norm.err"
    ap-import "$BATS_TEST_TMPDIR/norm/model.onnx" |
        jq -e '[.graph.nodes[] | select(.role == "weight") | .name]
            == ["a.weight", "a.bias", "b.weight", "b.bias", "norm.weight", "norm.bias"]'
}

@test "torch export: what Debian's PyTorch cannot export is refused" {
    python old
    stops no_grad 'torch_modules.py:' 'torch.no_grad() in the forward pass' 'use detach()'
    stops counter "changes the buffer 'scale'" "PyTorch 2.8 or newer can"
    stops layer_dropout "dropout with p=0.1 in drop"
    stops logits "returns no floating-point scalar" "logits"
    stops parameter_hook "parameter 'a.weight' has a hook"
}
