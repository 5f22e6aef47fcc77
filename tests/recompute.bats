#!/usr/bin/env bats
# ap-stage --recompute: what is recomputed where memory binds, and what that takes.

load helpers

setup_file() {
    local dir=$BATS_FILE_TMPDIR need
    ap-model gpt --layers 4 --hidden 128 --heads 4 --seq 128 --batch 16 --vocab 500 --dtype f16 |
        ap-prune | ap-coarsen --blocks 4 --eps 2 -o "$dir/gpt.json"
    jq '.levels = [.levels[0] | .size = 2]' "$CLUSTERS/papers/p3x1.json" >"$dir/two.json"
    # a byte less than what the leanest plan needs that keeps everything
    need=$(plan 1MB none 2>&1 | sed -n 's/.* needs \([0-9]*\) bytes per device.*/\1/p')
    echo $((need - 1)) >"$dir/memory"
}

# plan MEMORY WHAT: two stages of one device each
plan() {
    ap-stage --no-history --cluster "$BATS_FILE_TMPDIR/two.json" --stages 2 --microbatches 4 \
        --schedule 1f1b --shard-command 'ap-shard --serve --algorithm data' \
        --memory "$1" --recompute "$2" "$BATS_FILE_TMPDIR/gpt.json"
}

# priced WHAT: the plan for that memory, with its cost
priced() {
    local out=$BATS_FILE_TMPDIR/$1.json
    [ -s "$out" ] || plan "$(cat "$BATS_FILE_TMPDIR/memory")" "$1" |
        ap-cost --no-history >"$out" || return
    echo "$out"
}

# Stage 0 of the plan as it stands, with all of its activations kept: its cost.
kept() {
    jq -c '.stages.stages[0] |= (.recompute = "none" | del(.recomputed))' "$(priced selected)" |
        ap-cost --no-history --quiet | jq .cost.stages[0]
}

@test "keeping all does not fit, making blocks again does, selected operators are faster" {
    local memory
    memory=$(cat "$BATS_FILE_TMPDIR/memory")
    refuses 3 "nothing fits in $memory bytes" plan "$memory" none
    jq -e -s --argjson memory "$memory" 'map(.cost) | all(.peak_bytes <= $memory) and
        .[0].step_sec < .[1].step_sec and .[1].step_sec <= .[2].step_sec' \
        "$(priced selected)" "$(priced auto)" "$(priced blocks)"
    jq -e '.stages | .objective_sec >= .lower_bound_sec and .lower_bound_sec > 0 and
        any(.stages[]; .recompute == "selected")' "$(priced selected)"
    jq -e '.stages.objective_sec == .cost.step_sec' "$(priced selected)"
    /usr/bin/python3 tests/validate.py "$(priced selected)"
    plan "$memory" selected | cmp - <(plan "$memory" selected)
}

# Each value is there once per microbatch, a fourth of the batch on one device, if the
# backward pass reads it; of one microbatch a block's are recomputed at once.
SAVED='.stages.stages[0].recomputed as $again | .graph.nodes as $n | .blocks.block_of as $block |
    ([$n[] | select((.phase // "forward") == "backward") | .in[]?] | unique) as $read |
    [$again[] | select(. as $i | $read | bsearch($i) >= 0) |
        [$block[.], ($n[.].shape | capture("(?<type>[a-z0-9]+)\\[(?<dims>[0-9,]*)\\]") |
            {f16: 2, f32: 4, pred: 1}[.type] *
            reduce (.dims | split(",")[] | tonumber) as $d (1; . * $d) / 4)]]'

@test "selected: the memory that it saves is that of the values, by hand" {
    local saved most
    [ "$(jq '.stages.stages[0].recompute' "$(priced selected)")" = '"selected"' ]
    saved=$(jq "$SAVED | map(.[1]) | add" "$(priced selected)")
    most=$(jq "$SAVED | group_by(.[0]) | map(map(.[1]) | add) | max" "$(priced selected)")
    ((saved > 0 && most < saved))
    jq -e --argjson kept "$(kept)" --argjson saved "$saved" --argjson most "$most" \
        '.cost.stages[0] | $kept.microbatch_bytes - .microbatch_bytes == $saved and
            .recomputed_bytes == $most and .stage_bytes == $kept.stage_bytes and
            .forward_sec == $kept.forward_sec and .backward_sec == $kept.backward_sec and
            .recompute_sec > 0 and .recompute_sec < .forward_sec' "$(priced selected)"
}

@test "selected: what fits as it is stays kept" {
    plan 1GB selected | jq -e 'all(.stages.stages[]; .recompute == "none")'
    cmp <(plan 1GB selected | jq .stages.stages) <(plan 1GB auto | jq .stages.stages)
}

@test "selected: chunks of one device share what it has left, and fill it" {
    local dir=$BATS_TEST_TMPDIR
    jq -n '{name: "z", device: "d", memory_bytes: 100000000, launch_sec: 1e-6, efficiency: 0.8,
        flops_per_sec: {f32: 1e11}, memory_bandwidth_bytes_per_sec: 1e10, levels: [{name: "in", size: 2,
        bandwidth_bytes_per_sec: 1e8, latency_sec: 2e-5}]}' >"$dir/cluster.json"
    ap-model gpt --layers 4 --hidden 128 --heads 8 --seq 64 --vocab 2048 --batch 16 --no-history |
        ap-prune --no-history | ap-coarsen --no-history --blocks 4 --eps 4 |
        ap-stage --no-history --schedule interleaved-1f1b --recompute selected --memory 17049456 \
            --cluster "$dir/cluster.json" | ap-cost --no-history >"$dir/out.json"
    jq -e '.stages.stages | map(.recompute) | any(. == "selected") and all(. != "all")' "$dir/out.json"
    jq -e '.cost.peak_bytes / 17049456 | . > 0.85 and . <= 1' "$dir/out.json"
}

@test "selected: the report names the operators, in 100 columns" {
    run -0 ap-cost --details "$(priced selected)"
    [[ $output =~ "stage 0 recomputes "[0-9]+" values in "[0-9.]+" us a microbatch: "[0-9]+" " ]]
    (($(sed '/^weights of stage/,$d' <<<"$output" | wc -l) <= 40)) # the tables of weights come last
    for line in "${lines[@]}"; do
        ((${#line} <= 100)) || { echo "$line"; return 1; }
    done
}

@test "collectives of recomputed operators are communication, whether all of it or selected" {
    local doc=$BATS_TEST_TMPDIR/all.json each=$BATS_TEST_TMPDIR/each.json some=$BATS_TEST_TMPDIR/some.json
    ap-stage --no-history --cluster "$CLUSTERS/papers/p3x1.json" --stages 2 --microbatches 4 \
        --schedule 1f1b --shard-command 'ap-shard --serve --algorithm megatron' \
        --memory 8MB --recompute blocks "$BATS_FILE_TMPDIR/gpt.json" | ap-cost --no-history -o "$doc"
    jq -e '.cost.stages | all(.[]; .recompute_comm_sec > 0 and .recompute_comm_sec <= .recompute_sec and
        (.recompute_comm_sec / .forward_comm_sec - 1 | fabs < 1e-9))' "$doc"
    # every forward operator of a stage, named one by one
    jq -c '.blocks.block_of as $of | .graph.nodes as $n | .stages.stages |= map(.blocks as $b |
        .recompute = "selected" | .recomputed = [range($n | length) | select(. as $i |
            $n[$i].op != "parameter" and $n[$i].op != "constant" and
            ($n[$i].phase // "forward") == "forward" and ($b | index($of[$i]))) ])' \
        "$doc" | ap-cost --no-history --quiet -o "$each"
    jq -e -s '[.[].cost.devices[].comm_sec] as $c | range(2) | $c[.] / $c[. + 2] - 1 | fabs < 1e-9' \
        "$doc" "$each"
    # of one of two blocks, a part of them
    jq -c '.blocks.block_of as $of | .stages.stages |= map(.blocks[0] as $first |
        .recomputed |= map(select($of[.] == $first)))' "$each" | ap-cost --no-history --quiet -o "$some"
    jq -e '.cost.stages | all(.[]; .recompute_comm_sec > 0 and .recompute_comm_sec < .forward_comm_sec)' "$some"
    /usr/bin/python3 tests/validate.py "$each"
}

@test "blocks: each is recomputed behind the backward pass of the next, in the program, too" {
    # the chain between two blocks is one group of both: its copy starts from what is kept
    ap-model llama --layers 6 --hidden 256 --heads 4 --kv-heads 4 --ffn 1024 --seq 1024 --vocab 500 \
        --batch 8 --dtype bf16 | ap-fuse --quiet | ap-prune | ap-coarsen --blocks 6 --eps 2 |
        ap-stage --quiet --cluster h100-8 --stages 1 --submeshes 1x2 --microbatches 4 --recompute blocks \
            --shard-command 'ap-shard --serve --algorithm megatron' |
        jq '.stages.stages[].recompute = "all"' | ap-cost |
        jq -e '.cost | 80e9 - .plan.spare_bytes <= 1.05 * .peak_bytes'
}
