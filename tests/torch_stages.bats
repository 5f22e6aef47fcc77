#!/usr/bin/env bats
# ap-rewrite --to torch of plans with stages; and modules that train in stages as these say.

load helpers
load torch_helpers

# golden_step: the step of the golden GPT
golden_step() {
    ap-import --no-history "$MODELS/torch_gpt/model.hlo" |
        ap-grad --no-history --optimizer adam --lr 0.01
}

# in_stages MICROBATCHES SCHEDULE STAGES [BLOCKS]: a document with stages, of the step on standard input
in_stages() {
    ap-coarsen --no-history --blocks "${4:-4}" --eps 3 --cut modules |
        jq -c ". + {stages: ({microbatches: $1, schedule: \"$2\", stages: $3}
            + if \"$2\" == \"interleaved-1f1b\" then {chunks: 2} else {} end)}"
}

# two ALGORITHM MESH ALGORITHM MESH: two stages of two devices
two() {
    echo "[{blocks: [0, 1], devices: [0, 1], sharding: {algorithm: \"$1\", mesh: \"$2\"}},
        {blocks: [2, 3], devices: [2, 3], sharding: {algorithm: \"$3\", mesh: \"$4\"}}]"
}

@test "torch stages: they begin at modules, with shapes of one microbatch" {
    local doc=$BATS_TEST_TMPDIR/stages.json
    golden_step | in_stages 2 1f1b "$(two megatron tp=2 zero2 dp=2)" >"$doc"
    ap-rewrite --to torch "$doc" 2>"$BATS_TEST_TMPDIR/said" >"$BATS_TEST_TMPDIR/torch"
    grep -F "weights are whole between steps" "$BATS_TEST_TMPDIR/said"
    jq -e '.schedule == "1f1b" and .microbatches == 2
        and [.stages[].begins] == ["", "blocks.1"]
        and [.stages[].devices] == [[0, 1], [2, 3]]
        and [.stages[] | .parameters | length > 10] == [true, true]
        and .stages[1].inputs[0].name == "targets"
        and ([.stages[].receives[] | [.shape, .placements]] | .[-1] == [[4, 16, 32], ["Shard(0)"]])
        and ([.stages[0].activations[] | select(.module == "blocks.0.qkv" and .input == 0) | .shape]
            == [[4, 16, 32]])' "$BATS_TEST_TMPDIR/torch"
    /usr/bin/python3 tests/validate.py --schema torch.json "$BATS_TEST_TMPDIR/torch"
    jq '.stages.schedule = "inference"' "$doc" >"$doc.inference"
    refuses 2 "inference" ap-rewrite --to torch "$doc.inference"
}

@test "torch stages: a cut inside a module, and unequal numbers of devices are refused" {
    local doc=$BATS_TEST_TMPDIR/stages.json stages
    stages=$(printf '{blocks: [%s], devices: [%s], sharding: {algorithm: "data", mesh: "1"}},' \
        0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7)
    golden_step | ap-coarsen --no-history --blocks 8 --eps 3 |
        jq -c ". + {stages: {microbatches: 2, schedule: \"1f1b\", stages: [${stages%,}]}}" >"$doc"
    refuses 2 "begins inside module blocks.0" ap-rewrite --to torch "$doc"
    refuses 2 "ap-coarsen --cut modules" ap-rewrite --to torch "$doc"
    golden_step | in_stages 2 1f1b "[${stages%,}]" 8 | ap-rewrite --quiet --to torch |
        jq -e '[.stages[].begins] | length == 8 and .[1] == "blocks.0.out"'
    golden_step | in_stages 2 1f1b "$(two data 2 data 2)" |
        jq '.stages.stages[1] |= (.devices = [2] | .sharding.mesh = "1")' >"$doc"
    refuses 2 "stage 1 has 1 devices and stage 0 2" ap-rewrite --to torch "$doc"
}

# ---- with PyTorch ----

# staged MODEL NAME MICROBATCHES SCHEDULE STAGES: a plan's file
staged() {
    local step
    step=$(zoo_step "$1") || return
    in_stages "${@:3}" <"$step" | ap-rewrite --quiet --to torch -o "$BATS_TEST_TMPDIR/$2.json" || return
    echo "$BATS_TEST_TMPDIR/$2.json"
}

@test "torch stages: Llama in 2 stages of 2 devices, and 4 interleaved: losses of one process" {
    needs_torch
    local four plans=()
    plans+=("$(staged llama 1f1b 2 1f1b "$(two megatron tp=2 zero2 dp=2)")")
    plans+=("$(staged llama gpipe 4 gpipe "$(two zero3 dp=2 data dp=2)")")
    plans+=("$(staged llama recomputed 4 1f1b \
        "$(two zero3 dp=2 megatron tp=2) | map(. + {recompute: \"all\"})")")
    four=$(for k in 0 1 2 3; do
        echo "{blocks: [$k], devices: [$((k % 2 * 2)), $((k % 2 * 2 + 1))],
            sharding: {algorithm: \"zero3\", mesh: \"2\"}},"
    done)
    plans+=("$(staged llama interleaved 4 interleaved-1f1b "[${four%,}]")")
    torch_trains llama 'length == 4 and all(.without_gradient == [])' --steps 2 "${plans[@]}"
}

@test "torch stages: Llama in 2 stages of one device" {
    needs_torch
    local plan
    plan=$(staged llama one 4 1f1b '[{blocks: [0, 1], devices: [0], sharding: {algorithm: "data", mesh: "1"}},
        {blocks: [2, 3], devices: [1], sharding: {algorithm: "data", mesh: "1"}}]')
    torch_trains llama 'length == 1 and .[0].departures == []' --steps 2 "$plan"
}

@test "torch stages: tied weights, and masks that go from stage to stage" {
    needs_torch
    torch_trains gpt2 'all(.without_gradient == [])' --steps 2 \
        "$(staged gpt2 tied 2 1f1b "$(two megatron tp=2 zero2 dp=2)")"
    torch_trains bert 'all(.without_gradient == [])' --steps 2 \
        "$(staged bert masked 2 1f1b "$(two zero3 dp=2 megatron tp=2)")"
}

@test "torch stages: documents with mistakes are refused with their place" {
    needs_torch
    golden_step | in_stages 2 1f1b "$(two megatron tp=2 zero2 dp=2)" |
        ap-rewrite --quiet --to torch -o "$BATS_TEST_TMPDIR/stages"
    golden_step | ap-shard --quiet --cluster cpu-4 --mesh 2x2 --algorithm zero3 |
        ap-rewrite --quiet --to torch -o "$BATS_TEST_TMPDIR/plan"
    "$AP_TORCH_PYTHON" tests/torch_load.py "$BATS_TEST_TMPDIR/plan" "$BATS_TEST_TMPDIR/stages"
}
