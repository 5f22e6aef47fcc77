#!/usr/bin/env bats
# ap-rewrite --to torch: plans for PyTorch; and modules that train as these say.

load helpers
load torch_helpers

# step MODEL: the step of a golden PyTorch model
step() {
    local f=$BATS_FILE_TMPDIR/$1.json
    [ -s "$f" ] || ap-import --no-history "$MODELS/$1/model.hlo" |
        ap-grad --no-history --optimizer adam --lr 0.01 -o "$f"
    echo "$f"
}

# planned MODEL MESH ALGORITHM [OPTION...]: the document for PyTorch
planned() {
    ap-shard --quiet --no-history --cluster "$CLUSTERS/cpu-8.json" --mesh "$2" \
        --algorithm "$3" "${@:4}" "$(step "$1")" | ap-rewrite --quiet --to torch
}

# parameter NAME: its line
parameter() { jq -c --arg name "$1" '.parameters[] | select(.name == $name) | del(.name)'; }

@test "torch out: goldens" {
    planned torch_roles dp=2,tp=2 megatron | diff tests/torch/roles.json -
    planned torch_roles 4 zero3 | jq 'del(.activations, .unpinned)' | diff tests/torch/zero3.json -
}

@test "torch out: placements are the plan's, and local shapes those of its program" {
    local dir=$BATS_TEST_TMPDIR algorithm
    for algorithm in data megatron zero3; do
        ap-shard --quiet --mesh 2x2 --cluster cpu-4 --algorithm $algorithm -o "$dir/plan" \
            "$(step torch_gpt)"
        ap-rewrite --quiet --to torch -o "$dir/torch" "$dir/plan"
        jq -c '.parameters[] | [.name, .placements, .local]' "$dir/torch" | sort >"$dir/said"
        ap-rewrite "$dir/plan" | jq -c '.sharding.layouts as $layout
            | .program.modules[0].graph.nodes as $local
            | .graph.nodes | to_entries[] | select(.value.role == "weight") | .key as $k
            | .value.name as $name | [$name,
                ($layout[$k] | split(",") | map(if . == "R" then "Replicate"
                    else "Shard(" + .[1:] + ")" end)),
                ($local[] | select(.name == $name) | .shape
                    | capture("\\[(?<dims>.*)\\]").dims | split(",") | map(tonumber))]' |
            sort | diff "$dir/said" -
    done
}

@test "torch out: axes of FSDP2, whether weights are gathered twice, whole weights" {
    local plan=$BATS_TEST_TMPDIR/plan
    planned torch_gpt dp=2,tp=2 zero3 >"$plan"
    [ "$(jq -c .fsdp "$plan")" = \
        '{"shard":["dp","tp"],"replicate":[],"reshard_after_forward":true}' ]
    planned torch_gpt fsdp=2,tp=2 zero2 >"$plan"
    jq -e '.fsdp.reshard_after_forward == false and (.differences[] | contains("whole between steps"))' "$plan"
    planned torch_gpt dp=4 data >"$plan"
    jq -e '.fsdp == null and all(.parameters[]; .placements == ["Replicate"])' "$plan"
    jq -e '.inputs | all(.placements == ["Shard(0)"])' "$plan"
}

@test "torch out: microbatches split the shapes of activations" {
    local plan=$BATS_TEST_TMPDIR/plan
    planned torch_gpt dp=2,tp=2 zero2 --microbatches 2 >"$plan"
    jq -e '.microbatches == 2 and .mesh.shape == [2, 2] and .inputs[0].shape == [8, 16]
        and all(.inputs[]; .placements == ["Shard(0)", "Shard(0)"])
        and ([.activations[] | select(.module == "blocks.0" and .output == 0) | .shape]
            == [[4, 16, 32]])
        and ([.activations[] | select(.module == "blocks.1" and .input == 0) | .shape] == [[4, 16, 32]])' "$plan"
}

@test "torch out: documents validate against the schema" {
    local plan=$BATS_TEST_TMPDIR/plan
    planned torch_resnet 2x2 ilp >"$plan.1"
    planned torch_gpt 2x2 ilp >"$plan.2"
    planned torch_roles 4 zero1 >"$plan.3"
    /usr/bin/python3 tests/validate.py --schema torch.json "$plan".[123]
    jq '.parameters[0].placements[0] = "Shard"' "$plan.2" >"$plan.bad"
    run /usr/bin/python3 tests/validate.py --schema torch.json "$plan.bad"
    [ "$status" -eq 1 ]
}

@test "torch out: layouts that DTensor has not are whole, or stay, and are named with their price" {
    local dir=$BATS_TEST_TMPDIR bias
    # a bias as partial sums: its broadcast is pinned so
    bias=$(jq -r '(.graph.nodes | map(.name) | index("blocks.0.out.bias")) as $bias
        | .graph.nodes[] | select(.op == "broadcast" and .in == [$bias]) | .name' "$(step torch_gpt)")
    ap-shard --quiet --mesh 2 --cluster cpu-8 --pin "$bias=P" "$(step torch_gpt)" -o "$dir/partial"
    ap-rewrite --to torch -o "$dir/torch" "$dir/partial" 2>"$dir/said"
    grep -E "1 tensor is partial sums of a parameter: it is used whole \([0-9.e-]+ s to gather" "$dir/said"
    run ! grep -q '"use": \["Partial' "$dir/torch"
    ap-shard --quiet --mesh 3x2 --cluster cpu-8 --algorithm data "$(step torch_gpt)" -o "$dir/uneven"
    ap-rewrite --to torch -o "$dir/torch" "$dir/uneven" 2>"$dir/said"
    grep -E "warning:   [0-9]+ tensors are split along several axes into parts of different sizes: .*\([0-9.e-]+ s to gather" "$dir/said"
    jq -e '.inputs | all(.placements == ["Shard(0)", "Replicate"])' "$dir/torch"
}

@test "torch out: steps that are of no PyTorch module are refused" {
    refuses 2 "is not named as a PyTorch module names its parameters" \
        ap-rewrite --to torch "$(sharded mlp 4)"
    ap-model --no-history gpt --layers 2 | ap-shard --quiet --mesh 2 -o "$BATS_TEST_TMPDIR/gpt.json"
    refuses 2 "is not named as a PyTorch module" ap-rewrite --to torch "$BATS_TEST_TMPDIR/gpt.json"
    refuses 2 "--dialect is for --to hlo" ap-rewrite --to torch --dialect gspmd "$(sharded mlp 4)"
}

# ---- with PyTorch ----

# plans MODEL ALGORITHM...: files of plans on a mesh of 2x2
plans() {
    local algorithm model
    model=$(zoo_step "$1") || return
    for algorithm in "${@:2}"; do
        ap-shard --quiet --mesh 2x2 --cluster cpu-4 --algorithm "$algorithm" "$model" |
            ap-rewrite --quiet --to torch -o "$BATS_TEST_TMPDIR/$1-$algorithm.json" || return
        echo "$BATS_TEST_TMPDIR/$1-$algorithm.json"
    done
}

@test "torch out: Llama on four processes: losses of one, placements as planned" {
    needs_torch
    mapfile -t plans < <(plans llama megatron data zero3 ilp)
    [ "${#plans[@]}" -eq 4 ]
    # DTensor's own propagation computes each module's output, and makes each gradient, as planned;
    # under ilp norms' gradients are summed over both axes, where the plan gathers what they are of
    # under megatron DTensor has the gradient of the head whole
    torch_trains llama 'length == 4 and all(.[1:3][]; .departures == [])
        and all(.[0].departures[]; test("^gradient of lm_head.weight: "))
        and all(.[3].departures[]; test("^gradient of .*norm.weight: made as .Partial.sum., Partial"))
        and .[1].collectives.all_reduce == 21 and .[2].collectives._reduce_scatter_base_ == 3' \
        --steps 3 "${plans[@]}"
}

@test "torch out: Llama with ZeRO-2, ZeRO-3 gathered by DTensor, and microbatches" {
    needs_torch
    mapfile -t plans < <(plans llama zero2 zero3)
    ap-shard --quiet --mesh 2x2 --cluster cpu-4 --algorithm zero2 --microbatches 2 "$(zoo_step llama)" |
        ap-rewrite --quiet --to torch -o "$BATS_TEST_TMPDIR/micro.json"
    torch_trains llama 'length == 3 and all(.departures == [])' --steps 3 "${plans[0]}" "${plans[1]}" \
        "$BATS_TEST_TMPDIR/micro.json"
    torch_trains llama 'length == 1 and .[0].collectives.reduce_scatter_tensor == 21' --steps 3 --no-fsdp "${plans[1]}"
}

@test "torch out: ViT, BERT and a convolution net: losses of one process" {
    needs_torch
    local model
    for model in 'vit ilp' 'bert ilp' 'cnn ilp data'; do
        # shellcheck disable=SC2086 # words of the list
        mapfile -t plans < <(plans $model)
        torch_trains "${model%% *}" 'all(.without_gradient == [])' --steps 2 "${plans[@]}"
    done
}

@test "torch out: a module that is not the plan's is refused with the first difference" {
    needs_torch
    local plan
    plan=$(plans llama data)
    run "$AP_TORCH_PYTHON" scripts/torch/parallel.py scripts/torch/zoo.py:gpt2 "$plan"
    [ "$status" -ne 0 ]
    [[ $output == *"the module has no parameter 'model.embed_tokens.weight' of the plan"* ]]
}

@test "torch out: what DTensor refuses or computes otherwise trains as one process does" {
    needs_torch
    "$AP_TORCH_PYTHON" tests/torch_back.py
}

@test "torch out: another number of processes is refused" {
    needs_torch
    local plan
    plan=$(plans llama data)
    run "$AP_TORCH_PYTHON" - "$plan" <<'END'
import sys
import torch.distributed as dist
sys.path[:0] = ["python", "scripts/torch"]
import autopar.torch, zoo
plan = autopar.torch.load(sys.argv[1])
model, batch = zoo.llama()
try:
    plan.parallelize(model)
except RuntimeError as e:
    print(e)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
plan.parallelize(model)
END
    [ "$status" -eq 1 ]
    [[ $output == *"init_process_group() comes before"*"the plan is for 4 processes, and 1 run"* ]]
}
