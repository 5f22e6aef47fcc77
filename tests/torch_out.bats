#!/usr/bin/env bats
# ap-rewrite --to torch: plans for PyTorch; and modules that train as these say.

load helpers

# step MODEL: the step of a golden PyTorch model
step() {
    local f=$BATS_FILE_TMPDIR/$1.json
    [ -s "$f" ] || ap-import --no-history "$MODELS/$1/model.onnx" |
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
        and ([.activations[] | select(.module == "tokens" and .input == 0) | .shape] == [[4, 16]])' "$plan"
}

@test "torch out: stages begin at modules" {
    local doc=$BATS_TEST_TMPDIR/stages.json
    ap-coarsen --no-history --blocks 4 --eps 1 "$(step torch_gpt)" |
        jq -c '. + {stages: {microbatches: 2, schedule: "1f1b", stages: [
            {blocks: [0, 1], devices: [0, 1], sharding: {algorithm: "megatron", mesh: "tp=2"}},
            {blocks: [2, 3], devices: [2, 3], sharding: {algorithm: "zero2", mesh: "dp=2"}}]}}' >"$doc"
    ap-rewrite --to torch "$doc" 2>"$BATS_TEST_TMPDIR/said" >"$BATS_TEST_TMPDIR/torch"
    grep -F "stage 1: 15 weights are whole between steps" "$BATS_TEST_TMPDIR/said"
    jq -e '.schedule == "1f1b" and .microbatches == 2
        and [.stages[].begins] == ["", "blocks.1"]
        and [.stages[].devices] == [[0, 1], [2, 3]]
        and [.stages[] | .parameters | length > 10] == [true, true]
        and .stages[1].inputs[0].name == "targets"' "$BATS_TEST_TMPDIR/torch"
    jq '.stages.schedule = "inference"' "$doc" >"$doc.inference"
    refuses 2 "inference" ap-rewrite --to torch "$doc.inference"
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

@test "torch out: steps that are of no PyTorch module are refused" {
    refuses 2 "is not named as a PyTorch module names its parameters" \
        ap-rewrite --to torch "$(sharded mlp 4)"
    ap-model --no-history gpt --layers 2 | ap-shard --quiet --mesh 2 -o "$BATS_TEST_TMPDIR/gpt.json"
    refuses 2 "is not named as a PyTorch module" ap-rewrite --to torch "$BATS_TEST_TMPDIR/gpt.json"
    refuses 2 "--dialect is for --to hlo" ap-rewrite --to torch --dialect gspmd "$(sharded mlp 4)"
}

# ---- with PyTorch ----

needs_torch() {
    [ -n "${AP_TORCH_PYTHON:-}" ] || skip "AP_TORCH_PYTHON: a Python with torch and transformers"
    "$AP_TORCH_PYTHON" -c 'import torch.distributed.tensor, transformers, onnxscript' ||
        skip "$AP_TORCH_PYTHON lacks torch, transformers or onnxscript"
}

# llama: the step of zoo.py's Llama, exported
llama() {
    local dir=$BATS_FILE_TMPDIR/llama
    [ -s "$dir/step.json" ] || {
        "$AP_TORCH_PYTHON" scripts/torch/export.py scripts/torch/zoo.py:llama -o "$dir" &&
            ap-import --no-history "$dir/model.onnx" |
            ap-grad --no-history --optimizer adam --lr 0.01 -o "$dir/step.json"
    } >&2 || return
    echo "$dir/step.json"
}

# llama_plans ALGORITHM...: files of plans on a mesh of 2x2
llama_plans() {
    local algorithm model
    model=$(llama) || return
    for algorithm; do
        ap-shard --quiet --mesh 2x2 --cluster cpu-4 --algorithm "$algorithm" "$model" |
            ap-rewrite --quiet --to torch -o "$BATS_TEST_TMPDIR/$algorithm.json" || return
        echo "$BATS_TEST_TMPDIR/$algorithm.json"
    done
}

# trains FILTER [OPTION...] PLAN...: losses as one process's, parameters as planned, FILTER
trains() {
    local found=$BATS_TEST_TMPDIR/found
    "$AP_TORCH_PYTHON" scripts/torch/parallel.py scripts/torch/zoo.py:llama "${@:2}" >"$found"
    jq -e '.loss_error <= 1e-5 and .gradient_error <= 1e-5 and .misplaced == []' "$found" ||
        { cat "$found"; return 1; }
    jq -es "$1" "$found" || { cat "$found"; return 1; }
}

@test "torch out: Llama on four processes: losses of one, placements as planned" {
    needs_torch
    mapfile -t plans < <(llama_plans megatron data zero3 ilp)
    [ "${#plans[@]}" -eq 4 ]
    # DTensor's own propagation computes each module's output, and makes each gradient, as planned
    trains 'length == 4 and all(.departures == [])
        and .[1].collectives.all_reduce == 21 and .[2].collectives._reduce_scatter_base_ == 3' \
        --steps 3 "${plans[@]}"
}

@test "torch out: Llama with ZeRO-2, ZeRO-3 gathered by DTensor, and microbatches" {
    needs_torch
    mapfile -t plans < <(llama_plans zero2 zero3)
    ap-shard --quiet --mesh 2x2 --cluster cpu-4 --algorithm zero2 --microbatches 2 "$(llama)" |
        ap-rewrite --quiet --to torch -o "$BATS_TEST_TMPDIR/micro.json"
    trains 'length == 3 and all(.departures == [])' --steps 3 "${plans[0]}" "${plans[1]}" \
        "$BATS_TEST_TMPDIR/micro.json"
    trains 'length == 1 and .[0].collectives.reduce_scatter_tensor == 21' --steps 3 --no-fsdp "${plans[1]}"
}

@test "torch out: a module that is not the plan's is refused with the first difference" {
    needs_torch
    local plan
    plan=$(llama_plans data)
    run "$AP_TORCH_PYTHON" scripts/torch/parallel.py scripts/torch/zoo.py:gpt2 "$plan"
    [ "$status" -ne 0 ]
    [[ $output == *"the module has no parameter 'model.embed_tokens.weight' of the plan"* ]]
}
