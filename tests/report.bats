#!/usr/bin/env bats
# The head of reports: a plan in words, rates, utilization, whether it fits and is of use.

load helpers

# A bf16 GPT of which 2x2 H100s run a named plan.
gpt() { # ARGUMENTS of ap-shard...
    ap-model gpt --layers 2 --hidden 256 --heads 4 --vocab 1000 --batch 8 --seq 128 --dtype bf16 |
        ap-prune | ap-shard --cluster h100-8 "$@"
}

@test "report: the first line is the plan in words, and the document has it" {
    gpt --mesh dp=2,tp=2 --algorithm megatron-sp | ap-cost -o "$BATS_TEST_TMPDIR/p.json"
    run -0 ap-cost --details "$BATS_TEST_TMPDIR/p.json"
    [ "${lines[0]}" = 'TP 2 with sequence parallelism · DP 2 · micro-batch 4' ]
    jq -e --arg words "${lines[0]}" '.cost.plan.words == $words and
        .history[-2].words == $words' "$BATS_TEST_TMPDIR/p.json"
    run -0 ap-cost --details <(gpt --mesh 4 --algorithm zero1)
    [ "${lines[0]}" = 'DP 4 · ZeRO-1 · micro-batch 2' ]
    run -0 ap-cost --details <(gpt --mesh 4 --algorithm zero3)
    [ "${lines[0]}" = 'DP 4 · ZeRO-3 · micro-batch 2' ]
}

@test "report: a first look is short, details have the tables" {
    gpt --mesh dp=2,tp=2 | ap-cost -o "$BATS_TEST_TMPDIR/p.json"
    ap-cost --report "$BATS_TEST_TMPDIR/p.json" >"$BATS_TEST_TMPDIR/short"
    ap-cost --details "$BATS_TEST_TMPDIR/p.json" >"$BATS_TEST_TMPDIR/all"
    cmp <(ap-cost --report --details "$BATS_TEST_TMPDIR/p.json") "$BATS_TEST_TMPDIR/all"
    [ "$(wc -l <"$BATS_TEST_TMPDIR/short")" -le 20 ]
    # what both have is the same, and the quickest plan by rule is that of the table
    local line
    while read -r line; do
        grep -qxF -- "$line" <(sed 's/^ *//' "$BATS_TEST_TMPDIR/all") || [[ $line == 'plans by rule: '* ]]
    done <"$BATS_TEST_TMPDIR/short"
    grep -qE "^  $(sed -n 's/^plans by rule: \([^ ]*\) .*/\1/p' "$BATS_TEST_TMPDIR/short") +$(
        sed -n 's/^plans by rule: [^ ]* \([^,]*\),.*/\1/p' "$BATS_TEST_TMPDIR/short") " "$BATS_TEST_TMPDIR/all"
    for line in '^weights' '^activations' '^collectives of the plan' "^what fills a device's memory"; do
        grep -q "$line" "$BATS_TEST_TMPDIR/all"
        run ! grep -q "$line" "$BATS_TEST_TMPDIR/short"
    done
    # of stages: a line for each run of them
    ap-model gpt --layers 4 --hidden 256 --heads 4 --vocab 1000 --batch 32 --seq 64 | ap-prune | ap-coarsen --blocks 4 |
        ap-stage --stages 2 --cluster p3x1 | ap-cost -o "$BATS_TEST_TMPDIR/s.json"
    [ "$(ap-cost --report "$BATS_TEST_TMPDIR/s.json" | wc -l)" -le 26 ]
    ap-cost --details "$BATS_TEST_TMPDIR/s.json" | grep -q '^weights of stage 0'
}

@test "report: the types in which a step trains, and the bytes of a parameter" {
    said() { # WORDS of ap-model, of ap-fuse, of ap-shard
        # shellcheck disable=SC2086
        ap-model llama --layers 2 --hidden 64 --heads 4 --kv-heads 4 --vocab 64 --seq 16 --batch 8 --untied $1 | ap-fuse --quiet $2 |
            ap-shard --quiet --mesh 4 --cluster h100-8 --algorithm data $3 | ap-cost --quiet >"$BATS_TEST_TMPDIR/t.json"
        jq -r '.cost.plan | "\(.precision) \(.bytes_per_parameter)"' "$BATS_TEST_TMPDIR/t.json"
    }
    [ "$(said '--recipe mixed')" = \
        'bf16 products; weights bf16 with f32 master, moments f32, gradients f32: 18 bytes per parameter 18' ]
    ap-cost --report "$BATS_TEST_TMPDIR/t.json" | sed -n 5p | grep -qx 'bf16 products;.* 18 bytes per parameter'
    [[ $(said '--recipe mixed' --fp8) == 'fp8 products; weights bf16 with f32 master, '* ]]
    [[ $(said '--recipe mixed,moments=bf16,gradients=bf16') == *', moments bf16, gradients bf16: 12 bytes per parameter 12' ]]
    [[ $(said '--recipe mixed,moments=fp8:bf16') == *', moments bf16 and f8e4m3fn, gradients f32: 13 bytes per parameter 13' ]]
    [ "$(said '--recipe bf16')" = 'bf16 products; weights bf16, moments bf16, gradients bf16: 8 bytes per parameter 8' ]
    # sums over microbatches are f32
    [[ $(said '--recipe bf16' '' '--microbatches 2') == *', gradient sums f32: 10 bytes per parameter 10' ]]
    [ "$(said '--recipe f32 --optimizer sgd')" = 'tf32 products; weights f32, gradients f32: 8 bytes per parameter 8' ]
    [ "$(said --forward)" = 'tf32 products; weights f32: 4 bytes per parameter 4' ]
    # of a step that JAX traced
    ap-import "$(hlo gpt2l)" | ap-shard --mesh 4 | ap-cost --quiet |
        jq -e '.cost.plan.precision == "f32 products; weights f32, moments f32, gradients f32: 16 bytes per parameter"'
}

@test "report: stages that differ are listed, equal ones are not" {
    ap-model gpt --layers 4 --hidden 256 --heads 4 --vocab 1000 --batch 32 --seq 64 | ap-prune |
        ap-coarsen --blocks 4 | jq -c '.stages = {microbatches: 4, stages: [
            {blocks: [0, 1], devices: [0, 1], sharding: {algorithm: "megatron", mesh: "tp=2"}},
            {blocks: [2, 3], devices: [2, 3], sharding: {algorithm: "data", mesh: "2"}}]}' \
        >"$BATS_TEST_TMPDIR/mixed.json"
    run -0 ap-cost --details --cluster p3x1 "$BATS_TEST_TMPDIR/mixed.json"
    [ "${lines[0]}" = 'PP 2 · 4 microbatches; stage 0 TP 2, stage 1 DP 2' ]
    jq -c '.stages.stages[].sharding = {algorithm: "megatron", mesh: "tp=2"} |
        .stages.stages[].recompute = "all"' "$BATS_TEST_TMPDIR/mixed.json" >"$BATS_TEST_TMPDIR/alike.json"
    run -0 ap-cost --details --cluster p3x1 "$BATS_TEST_TMPDIR/alike.json"
    [ "${lines[0]}" = 'TP 2 · PP 2 · micro-batch 8 · recompute all' ]
    # a table of weights for each kind of stage
    [[ $output == *"weights of stage 0"*"gpt/h_*/attn/q/w"*"S1"* ]]
}

@test "report: MFU is the model's FLOPs over the peak, HFU counts what is recomputed" {
    local dir=$BATS_TEST_TMPDIR
    ap-model gpt --layers 4 --hidden 256 --heads 4 --vocab 1000 --batch 32 --seq 64 --dtype bf16 |
        ap-prune | ap-coarsen --blocks 4 | jq -c '.stages = {microbatches: 4, stages: [
            {blocks: [0, 1], devices: [0, 1], recompute: "all", sharding: {algorithm: "data", mesh: "2"}},
            {blocks: [2, 3], devices: [2, 3], recompute: "all", sharding: {algorithm: "data", mesh: "2"}}]}' |
        ap-cost --cluster h100-8 -o "$dir/p.json"
    # per token: 6 FLOPs for each weight that is contracted, and 12 for each pair of attention
    # in all layers (Chowdhery et al., "PaLM", appendix B)
    jq -e '.cost.plan as $p | .cluster.flops_per_sec.bf16 as $peak |
        (4 * 12 * 256 * 256 + 1000 * 256) as $weights |
        ($p.tokens * (6 * $weights + 12 * 4 * 256 * 64)) as $flops |
        $p.tokens == 32 * 64 and $p.samples == 32 and $p.peak_of == "bf16" and
        ($p.model_flops / $flops - 1 | fabs) < 1e-6 and
        ($p.mfu / ($flops / $peak / 4 / .cost.step_sec) - 1 | fabs) < 1e-6 and
        ($p.hfu / $p.mfu - 4 / 3 | fabs) < 0.05 and
        ($p.tokens_per_sec_per_device * .cost.step_sec * 4 / $p.tokens - 1 | fabs) < 1e-9 and
        .cost.mfu == $p.mfu' "$dir/p.json"
}

@test "report: what does not fit and what is of no use is said" {
    gpt --mesh 4 --algorithm data >"$BATS_TEST_TMPDIR/p.json"
    jq '.memory_bytes = 1000000' "$CLUSTERS/h100-8.json" >"$BATS_TEST_TMPDIR/small.json"
    run -0 ap-cost --details --cluster "$BATS_TEST_TMPDIR/small.json" "$BATS_TEST_TMPDIR/p.json"
    head -n 4 <<<"$output" | grep -q ' of 1 MB: does not fit, by '
    # a small model on slow links: one device is faster
    jq '.levels[].latency_sec = 0.01' "$CLUSTERS/h100-8.json" >"$BATS_TEST_TMPDIR/slow.json"
    run -0 ap-cost --details --cluster "$BATS_TEST_TMPDIR/slow.json" "$BATS_TEST_TMPDIR/p.json"
    [ "${lines[1]}" = 'of no use: the model is too small for 4 devices: one is as fast' ]
    # and where it is faster by less than 5 %
    jq '.levels[].latency_sec *= 1.6' "$CLUSTERS/h100-8.json" >"$BATS_TEST_TMPDIR/slow.json"
    run -0 --separate-stderr ap-plan "$MODELS/torch_gpt" --cluster "$BATS_TEST_TMPDIR/slow.json"
    [[ ${lines[1]} == 'of no use: the model is too small for '*' devices: one is nearly as fast' ]]
    [[ ${lines[2]} == *'; 1.0'*' x the speed of one' ]]
    # all replicated: nothing can be split
    run -0 ap-cost --details <(ap-model mlp --layers 2 --batch 1 --hidden 1 --features 1 --classes 2 |
        ap-shard --mesh 2 --cluster cpu-4)
    [ "${lines[0]}" = 'replicated 2 · micro-batch 1' ]
    [ "${lines[1]}" = 'of no use: all 2 devices do the same work' ]
}

@test "report: a plan that is not priced in seconds has words and no rates" {
    ap-import "$(hlo mlp)" | ap-shard --mesh 2x2 --space alpa --cost-model alpa |
        ap-cost -o "$BATS_TEST_TMPDIR/p.json"
    jq -e '.cost.plan | has("words") and (has("mfu") | not)' "$BATS_TEST_TMPDIR/p.json"
    run ! grep -q MFU <(ap-cost --details "$BATS_TEST_TMPDIR/p.json")
}
