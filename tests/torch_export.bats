#!/usr/bin/env bats
# scripts/torch/export.py: gradients that are PyTorch's, roles, and what is refused.

load helpers

MODULES=$AP_TOP/tests/torch_modules.py

setup() {
    PYTHON=${AP_TORCH_PYTHON:-python3}
    "$PYTHON" -c 'import torch._functorch.aot_autograd, jax' 2>/dev/null || skip "$PYTHON has no PyTorch and JAX"
}

# trains NAME [TOLERANCE]: the export's own check passes, and so does ap-exec --compare of its files
trains() {
    local out=$BATS_TEST_TMPDIR/$1
    "$PYTHON" scripts/torch/export.py "$MODULES:$1" -o "$out" --steps 2 --optimizer sgd --lr 0.1 2>"$out.err" ||
        { cat "$out.err"; return 1; }
    grep -q 'export.py: checked: ' "$out.err" || { cat "$out.err"; return 1; }
    ap-import --quiet "$out/model.hlo" | ap-grad --optimizer sgd --lr 0.1 | ap-rewrite |
        ap-exec --data "$out/inputs" --steps 2 --compare "$out" --tolerance "${2:-1e-4}"
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

@test "torch export: gradients are PyTorch's, at kinks, behind detach and in layers of many operators" {
    needs_exec
    local name
    for name in nearest detached no_grad inference own hook second norm counter replaced bent layers dropout rnn_dropout known; do
        trains $name
    done
    trains autocast 1e-2
    run ! grep -l 'call:' "$BATS_TEST_TMPDIR"/*/model.hlo
    ap-import "$BATS_TEST_TMPDIR/layers/model.hlo" | jq -e '
        [.graph.nodes[] | select(.role == "state") | .name] == ["last"]'
    # products have the names of PyTorch's graphs
    ap-import "$BATS_TEST_TMPDIR/layers/model.hlo" | jq -e '
        ([.graph.nodes[] | select(.op == "dot" and .phase == "forward") | .name]
            | map(select(startswith("dot_general") | not))) == ["gru", "linear", "scaled_dot_product_attention"]
        and ([.graph.nodes[] | select(.phase == "forward") | .scope // "" | contains(":")] | any | not)'
    for name in dropout rnn_dropout; do
        ap-import "$BATS_TEST_TMPDIR/$name/model.hlo" | jq -e '
            [.graph.nodes[] | select(.role == "state") | .name] == ["random_key"]'
    done
}

@test "torch export: what cannot be exported is refused by name" {
    stops parameter_hook "parameter 'a.weight' has a hook"
    stops change "changes 'a.weight' in place"
    stops replaced_with_gradient "the forward pass assigns buffer 'scale' a tensor with a gradient"
    stops unruled 'no rule for aten._linalg_svd' "the outermost module"
    stops values 'torch_modules.py:' 'the step depends on the value of a tensor'
    stops counted "reads the value of the buffer 'count', and changes it"
    stops effect "aten._linalg_check_errors.default of linalg.inv (in the outermost module) stops the step"
    stops sized 'torch_modules.py:' 'the size of a result depends on the values of a tensor'
}

@test "torch export: mistakes are named" {
    stops logits "returns no floating-point scalar" "'logits' [16, 4]" "give it the labels"
    stops number "example input 'y' is a int: expected a tensor"
    stops alone "returns a Case: expected the module and its example inputs"
    stops text "the example inputs are a str"
    stops missing "has no 'missing'"
    echo '{}' >"$BATS_TEST_TMPDIR/config.json"
    cd "$BATS_TEST_TMPDIR"
    refuses 2 "--batch, --seq: expected 1 or more" "$PYTHON" "$AP_TOP/scripts/torch/export.py" --config config.json --batch 0 -o x
    refuses 2 "--steps, --optimizer, --lr, --no-check: not of --config" "$PYTHON" "$AP_TOP/scripts/torch/export.py" \
        --config config.json --steps 1 --optimizer adam --lr 3 --no-check -o x
    cd "$AP_TOP"
    run "$PYTHON" scripts/torch/export.py nowhere.py:net -o "$BATS_TEST_TMPDIR/x"
    [ "$status" -eq 1 ]
    [[ $output == *"there is no file nowhere.py"* ]]
    run "$PYTHON" scripts/torch/export.py "$MODULES:memory" --no-check -o "$BATS_TEST_TMPDIR/memory"
    [ "$status" -eq 0 ]
    [[ $output == *"the forward pass assigns self.last"* ]]
}

@test "torch export: without weights; numbers that differ are named" {
    needs_exec
    "$PYTHON" scripts/torch/export.py "$MODULES:norm" --shapes-only -o "$BATS_TEST_TMPDIR/norm.hlo.gz"
    trains norm
    "$PYTHON" scripts/torch/export.py "$MODULES:wide_mask" --shapes-only -o "$BATS_TEST_TMPDIR/wide.hlo"
    ap-import "$BATS_TEST_TMPDIR/wide.hlo" | jq -e 'any(.graph.nodes[]; .op == "compare" and .shape == "pred[1048576,512,512]")'
    gzip -cd "$BATS_TEST_TMPDIR/norm.hlo.gz" | diff -q - "$BATS_TEST_TMPDIR/norm/model.hlo"
    cat >"$BATS_TEST_TMPDIR/wrong.py" <<END
import sys
sys.path[:0] = ["$AP_TOP/python", "$AP_TOP/tests"]
from autopar.torch import export, rules
from torch_modules import bent
rules.TABLE["aten.relu.default"] = lambda of, x: x
END
    echo 'sys.argv[1:] = [sys.argv[1] + ":bent", "-o", sys.argv[2]]; export.main()' >>"$BATS_TEST_TMPDIR/wrong.py"
    run "$PYTHON" "$BATS_TEST_TMPDIR/wrong.py" "$MODULES" "$BATS_TEST_TMPDIR/wrong"
    [ "$status" -eq 1 ]
    [[ $output == *'computes other numbers than PyTorch'*'the loss of step 0: norm '* ]]
    # a rule that is wrong at a kink alone, where a changed weight changes as much
    sed '/^rules.TABLE/s/.*/rules.TABLE["aten.le.Scalar"] = lambda of, x, y: x < y/; s/:bent/:at_a_kink/' \
        "$BATS_TEST_TMPDIR/wrong.py" >"$BATS_TEST_TMPDIR/kink.py"
    run "$PYTHON" "$BATS_TEST_TMPDIR/kink.py" "$MODULES" "$BATS_TEST_TMPDIR/wrong"
    [ "$status" -eq 1 ]
    [[ $output == *"with PyTorch's own operands, too: aten.le.Scalar (in the outermost module)"* ]]
    # equal values are named
    trains at_a_kink
    run -0 "$PYTHON" scripts/torch/export.py "$MODULES:ties" -o "$BATS_TEST_TMPDIR/ties"
    [[ $output == *"PyTorch leaves open which of equal values aten.topk.default (in the outermost module) takes: the gradient of 'w'"* ]]
    run -0 "$PYTHON" scripts/torch/export.py "$MODULES:tied_quantile" -o "$BATS_TEST_TMPDIR/quantile"
    [[ $output == *"PyTorch's own graph differs from PyTorch, too, in the gradient of 'w'"* ]]
    # a text that leaves out what PyTorch draws
    sed '/^rules.TABLE/s/.*/export.capture.__globals__["layer_by_layer"] = lambda layers: layers/; s/:bent/:rnn_dropout/' \
        "$BATS_TEST_TMPDIR/wrong.py" >"$BATS_TEST_TMPDIR/undrawn.py"
    run "$PYTHON" "$BATS_TEST_TMPDIR/undrawn.py" "$MODULES" "$BATS_TEST_TMPDIR/wrong"
    [ "$status" -eq 1 ]
    [[ $output == *'computes other numbers than PyTorch'*'the loss of step 0: norm '* ]]
    run -0 env PYTHONPATH="$AP_TOP/python" "$PYTHON" -c 'from autopar.torch.proof import Comparison
found = Comparison(False)
found.add("a", [1.1], [1.0], lambda: [1.05])
found.add("b", [1.0], [1.0], None)
print(found.said())'
    [[ $output == "checked: 2 "*"it: a (1.0e-01)" ]]
}

@test "torch export: the user's torch.optim object: five steps are PyTorch's" {
    needs_exec
    run "$PYTHON" tests/torch_optimizers.py "$BATS_TEST_TMPDIR"
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    [ "$(grep -c '^ok ' <<<"$output")" -eq 17 ]
    # on four ranks, with a learning rate that is an input; counters of steps are one argument
    local out=$BATS_TEST_TMPDIR/rate
    jq -e '.inputs.lr == [] and .states.step == [] and (.states | length == 9)' "$out/meta.json"
    ap-import --quiet "$out/model.hlo" | ap-shard --quiet --mesh 4 -o "$out/plan.json"
    ap-rewrite --quiet "$out/plan.json" | ap-exec -n 4 --data "$out/inputs" --steps 5 --compare "$out"
    ap-rewrite --quiet --to torch "$out/plan.json" | jq -e '.parameters | length == 4'
}

@test "torch export: optimizers and schedulers that are not supported are refused by name" {
    local name text file=$AP_TOP/tests/torch_optimizers.py
    while read -r name text; do
        run --separate-stderr "$PYTHON" scripts/torch/export.py "$file:build" \
            --optimizer "$file:$name" -o "$BATS_TEST_TMPDIR/$name"
        [[ $status -eq 2 && $stderr == *"export.py: "*"$text"* && ! -e $BATS_TEST_TMPDIR/$name ]] ||
            { echo "$name: exit $status: $stderr"; return 1; }
    done <<'END'
adafactor the optimizer Adafactor is not supported: its step cannot be traced
lbfgs the optimizer LBFGS is not supported
damped SGD with dampening is not supported
scheduled learning-rate schedulers are not supported (StepLR)
counting the optimizer Counting is not supported: its step changes self.calls, which would be a constant of every step
falling the optimizer Falling is not supported: its step changes param_groups[0]['lr']
cooling the optimizer Cooling is not supported: its step changes the learning rate lr
marking the optimizer Marking is not supported: its step changes self.marks, which
noting the optimizer Noting is not supported: its step changes self.notes['seen']
partly the optimizer does not have head.weight, head.bias
END
    run "$PYTHON" scripts/torch/export.py "$file:build" --optimizer adamx -o "$BATS_TEST_TMPDIR/x"
    [[ $status -eq 2 && $output == *"--optimizer: expected sgd, momentum, adam, adamw or FILE.py:FUNCTION"* ]]
    run "$PYTHON" scripts/torch/export.py "$file:build" --optimizer "$file:plain" --lr 0.1 -o "$BATS_TEST_TMPDIR/x"
    [[ $status -eq 2 && $output == *"--lr: FILE.py:FUNCTION makes an optimizer with its own learning rate"* ]]
    for name in nothing:TypeError broken:AttributeError; do
        run "$PYTHON" scripts/torch/export.py "$file:build" --optimizer "$file:${name%:*}" -o "$BATS_TEST_TMPDIR/x"
        [[ $status -eq 1 && $output == "export.py: $file:${name%:*}: ${name#*:}: "* ]]
    done
}

@test "torch export: a row of the table of modules" {
    needs_exec
    "$PYTHON" -c 'import transformers' 2>/dev/null || skip "$PYTHON has no transformers"
    run "$PYTHON" scripts/torch/zoo-table --bin "$AP_BUILD/bin" --models 'byol vqvae'
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    [ "${lines[-1]}" = "2 passed, 0 failed" ]
    run "$PYTHON" scripts/torch/zoo-table --models 'perceptron'
    [ "$status" -eq 2 ]
    [[ $output == *"no 'perceptron'"* ]]
}

@test "torch export: a config.json of any type, once; ap-plan takes it where ap-model does not build it" {
    "$PYTHON" -c 'import transformers' 2>/dev/null || skip "$PYTHON has no transformers"
    export AP_TORCH_PYTHON=$PYTHON XDG_CACHE_HOME=$BATS_TEST_TMPDIR/cache
    cd "$BATS_TEST_TMPDIR"
    echo '{"model_type": "dots1", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 96, "vocab_size": 500, "max_position_embeddings": 64, "n_routed_experts": 8, "n_shared_experts": 1,
        "moe_intermediate_size": 32, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "head_dim": 16}' >config.json
    run -0 --separate-stderr ap-plan config.json --cluster cpu-4 --batch 4
    [[ $stderr == "$PYTHON -m autopar.torch.config config.json --batch 4 |"*"ap-import |"*"ap-grad --optimizer adam --recipe mixed |"* ]]
    [[ $output == *"model jit_Dots1ForCausalLM: "* ]]
    # the same text from the cache, without the packages
    "$PYTHON" "$AP_TOP/scripts/torch/export.py" --config config.json --batch 4 -o own.hlo
    (PYTHONPATH=$AP_TOP/python "$PYTHON" -X importtime -m autopar.torch.config config.json --batch 4 2>times | cmp - own.hlo)
    [ "$(grep -c '| *transformers$' times)" -eq 0 ]
    # experts are batched over their weights; the weights are those of transformers
    ap-import --quiet own.hlo >graph.json
    jq -e 'any(.graph.nodes[]; .op == "dot" and .shape == "f32[8,64,64]" and .phase == "forward")' graph.json
    want=$("$PYTHON" -c 'import json, torch; from transformers import Dots1Config as C, Dots1ForCausalLM as M
m = json.load(open("config.json"))
with torch.device("meta"): print(sum(p.numel() for p in M(C.from_dict(m)).parameters() if p.requires_grad))')
    jq -e --argjson want "$want" '[.graph.nodes[] | select(.role == "weight") | .shape | capture("\\[(?<d>.*)\\]").d
        | reduce (split(",")[] | tonumber) as $n (1; . * $n)] | add == $want' graph.json
    sed -i 's/"head_dim": 16/"head_dim": "x"/' config.json
    refuses 1 "config.json: /head_dim: " "$PYTHON" "$AP_TOP/scripts/torch/export.py" --config config.json -o wrong.hlo
    [ ! -e wrong.hlo ]
}
