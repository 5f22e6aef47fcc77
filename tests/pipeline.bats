#!/usr/bin/env bats
# shellcheck disable=SC2016 # what jq expands
# Pipelined plans that are written by hand: what ap-cost says of them, and who refuses them.

load helpers

setup_file() {
    P3=(--cluster "$CLUSTERS/papers/p3x8.json")
    ap-model gpt --layers 4 --hidden 256 --heads 4 --seq 128 --batch 16 --vocab 1000 \
        --dtype f16 --no-history |
        ap-coarsen --no-history --algorithm alpa --blocks 4 --eps 2 >"$BATS_FILE_TMPDIR/gpt.json"
}

setup() { P3=(--cluster "$CLUSTERS/papers/p3x8.json"); }

# staged DEVICES MESH [JQ]: the GPT with a stage per block, each on so many devices.
staged() {
    jq -c --argjson d "$1" --arg mesh "$2" '.blocks.n as $n | .stages = {microbatches: 8, stages:
        [range(0; $n) | {blocks: [.], devices: [range(. * $d; (. + 1) * $d)],
                         sharding: {algorithm: "data", mesh: $mesh}}]}' \
        "$BATS_FILE_TMPDIR/gpt.json" | jq -c "${3:-.}"
}

valid() { /usr/bin/python3 tests/validate.py "$@"; }

@test "a plan by hand is priced, and completed" {
    local dir=$BATS_TEST_TMPDIR
    staged 2 dp=2 >"$dir/hand.json"
    ap-cost --no-history "${P3[@]}" "$dir/hand.json" >"$dir/cost.json"
    valid "$dir/hand.json" "$dir/cost.json"
    jq -e '.cost | (.compute_sec + .comm_sec + .send_sec + .sync_sec + .wait_sec - .step_sec | fabs)
            < 1e-9 * .step_sec' "$dir/cost.json"
    jq -e '.cost | .mfu > 0 and .mfu < 1 and .bubble > 0 and .bubble < 1 and .n_devices == 8' \
        "$dir/cost.json"
    jq -e '.stages.objective_sec == .cost.step_sec and .stages.stopped == "given" and
           .stages.schedule == "1f1b" and (.stages.stages[0] | .hosts == 1 and .devices_per_host == 2 and
           .recompute == "none" and (.sharding.groups | length) > 0)' "$dir/cost.json"
    jq -e '[.cost.devices[].peak_in_flight] == [4, 3, 2, 1]' "$dir/cost.json"
    jq -e 'all(.cost.devices[].memory; .peak_bytes == ([.over_time[][1]] | max))' "$dir/cost.json"
}

@test "a complete section is priced to the same bytes, another cluster corrects it" {
    local dir=$BATS_TEST_TMPDIR
    staged 2 dp=2 | ap-cost --no-history "${P3[@]}" >"$dir/one.json"
    run --separate-stderr -0 ap-cost --no-history "$dir/one.json"
    [ -z "$stderr" ]
    [ "$output" = "$(cat "$dir/one.json")" ]
    run --separate-stderr -0 ap-cost --no-history --cluster "$CLUSTERS/a100x4.json" "$dir/one.json"
    [[ $stderr == *"is not what the plan costs"*"bound dropped"* ]]
    jq -e '.stages.objective_sec == .cost.step_sec' <<<"$output"
}

@test "schedules: in-flight microbatches, bubbles and what each is good for" {
    local s
    for s in gpipe 1f1b; do
        staged 2 dp=2 ".stages.schedule = \"$s\"" | ap-cost --no-history "${P3[@]}" |
            jq -c .cost >"$BATS_TEST_TMPDIR/$s.json"
    done
    jq -e '[.devices[].peak_in_flight] == [8, 8, 8, 8]' "$BATS_TEST_TMPDIR/gpipe.json"
    jq -e -n --slurpfile g "$BATS_TEST_TMPDIR/gpipe.json" --slurpfile f "$BATS_TEST_TMPDIR/1f1b.json" \
        '$f[0].peak_bytes < $g[0].peak_bytes'
    staged 2 dp=2 '.stages.schedule = "interleaved-1f1b" | .stages.chunks = 2 |
        .stages.stages[2].devices = [0, 1] | .stages.stages[3].devices = [2, 3]' |
        ap-cost --no-history "${P3[@]}" >"$BATS_TEST_TMPDIR/int.json"
    valid "$BATS_TEST_TMPDIR/int.json"
    jq -e '.cost | [.devices[].stages] == [[0, 2], [1, 3]] and .n_devices == 4' \
        "$BATS_TEST_TMPDIR/int.json"
    ap-cost --no-history --trace "$BATS_TEST_TMPDIR/trace.json" "$BATS_TEST_TMPDIR/int.json" >/dev/null
    run -0 /usr/bin/python3 tests/trace.py "$BATS_TEST_TMPDIR/trace.json"
    jq -e '.flows == 2 * 3 * 8' <<<"$output"
}

@test "a graph without a backward pass is planned as inference" {
    ap-model gpt --layers 4 --hidden 64 --heads 4 --seq 32 --batch 16 --vocab 100 --forward --no-history |
        ap-coarsen --no-history --algorithm alpa --blocks 2 --eps 2 |
        jq -c '.stages = {microbatches: 4, stages: [range(2) | {blocks: [.], devices: [.],
            sharding: {algorithm: "data", mesh: "1"}}]}' | ap-cost --no-history "${P3[@]}" |
        jq -c .cost >"$BATS_TEST_TMPDIR/cost.json"
    # sum t + (B - 1) max t, and what the sends add
    jq -e '.schedule == "inference" and all(.stages[]; .backward_sec == 0) and
        [.devices[].peak_in_flight] == [1, 1] and
        .step_sec >= (.stages | map(.forward_sec) | add + 3 * max)' "$BATS_TEST_TMPDIR/cost.json"
}

@test "recompute trades time for memory, selected operators less of both" {
    local how ids # of the attention's scores
    ids=$(jq -c '.blocks.block_of as $b | [.graph.nodes | to_entries[] |
        select((.value.shape | test("\\[16,4,128,128\\]")) and .value.op != "constant" and
               (.value.phase // "forward") == "forward") | .key]' \
        "$BATS_FILE_TMPDIR/gpt.json")
    for how in none all; do
        staged 2 dp=2 ".stages.stages[].recompute = \"$how\"" | ap-cost --no-history "${P3[@]}" |
            jq -c '.cost | [.step_sec, .peak_bytes]' >"$BATS_TEST_TMPDIR/$how"
    done
    staged 2 dp=2 ".blocks.block_of as \$b | $ids as \$ids | .stages.stages |= map(. as \$s |
        .recompute = \"selected\" | .recomputed = [\$ids[] | select(\$b[.] == \$s.blocks[0])])" |
        ap-cost --no-history "${P3[@]}" | jq -c '.cost | [.step_sec, .peak_bytes]' \
        >"$BATS_TEST_TMPDIR/some"
    jq -e -n --slurpfile n "$BATS_TEST_TMPDIR/none" --slurpfile s "$BATS_TEST_TMPDIR/some" \
        --slurpfile a "$BATS_TEST_TMPDIR/all" \
        '$n[0][0] < $s[0][0] and $s[0][0] < $a[0][0] and $n[0][1] > $s[0][1] and $s[0][1] > $a[0][1]'
}

@test "--report fits 100 columns and a screen, and its advice is the price of the change" {
    staged 2 dp=2 >"$BATS_TEST_TMPDIR/hand.json"
    run -0 ap-cost "${P3[@]}" --details "$BATS_TEST_TMPDIR/hand.json"
    (($(sed '/^weights of stage/,$d' <<<"$output" | wc -l) <= 40)) # the tables of weights come last
    for line in "${lines[@]}"; do
        ((${#line} <= 100)) || { echo "$line"; return 1; }
    done
    [[ $output == *"4 stages on 8 of 64 devices of p3x8"*"where the time goes"* ]]
    [[ $output == *"what fills the fullest device"*"what would help this plan most"* ]]
    # the first line of advice by hand
    jq '.launch_sec /= 2' "$CLUSTERS/papers/p3x8.json" >"$BATS_TEST_TMPDIR/quick.json"
    local said step
    said=$(sed -n 's/^  half the kernel-launch overhead *\([0-9.]* [mu]*s\) .*/\1/p' <<<"$output")
    step=$(ap-cost --no-history --cluster "$BATS_TEST_TMPDIR/quick.json" \
        "$BATS_TEST_TMPDIR/hand.json" | jq .cost.step_sec)
    [ -n "$said" ]
    run -0 awk -v said="$said" -v step="$step" 'BEGIN {
        split(said, a, " "); unit = a[2] == "ms" ? 1e-3 : a[2] == "us" ? 1e-6 : 1
        d = a[1] * unit / step - 1; print (d < 0 ? -d : d) < 1e-3 }'
    [ "$output" = 1 ]
}

@test "--report shows a plan that does not fit, and runs of equal stages in one row" {
    jq '.memory_bytes = 1000000' "$CLUSTERS/papers/p3x8.json" >"$BATS_TEST_TMPDIR/small.json"
    run -0 bash -c "$(declare -f staged); staged 2 dp=2 | ap-cost --details --cluster $BATS_TEST_TMPDIR/small.json"
    [[ $output == *"is too large for 1 MB"*"it does not fit as it is"* ]]
    [[ $output == *$'\n'"1-2   1-2 "* ]]
}

@test "--trace: four stages of 1f1b by the rules of the format" {
    local dir=$BATS_TEST_TMPDIR
    staged 2 dp=2 | ap-cost --no-history "${P3[@]}" --trace "$dir/trace.json" >"$dir/cost.json"
    run -0 /usr/bin/python3 tests/trace.py "$dir/trace.json"
    jq -e --slurpfile c "$dir/cost.json" '
        (.end_sec - $c[0].cost.step_sec | fabs) < 1e-9 and .flows == 2 * 3 * 8 and
        .most_bytes == $c[0].cost.peak_bytes' <<<"$output"
    jq -e '.traceEvents | [.[] | select(.ph == "X" and .tid == 1 and .cat == "forward")] | length == 32' \
        "$dir/trace.json"
    jq -e '[.traceEvents[] | select(.pid == 1 and .tid == 1 and .ph == "X") | .name][0:8] ==
        ["forward 0", "forward 1", "forward 2", "forward 3", "backward 0", "forward 4",
         "backward 1", "forward 5"]' "$dir/trace.json"
}

# Seconds of a column of times with their units and signs: column N, from stdin.
column_sec() {
    awk -v from="$1" 'NF { t = substr($0, from, 14); gsub(/^ +/, "", t); split(t, a, " ")
        unit = a[2] == "ms" ? 1e-3 : a[2] == "us" ? 1e-6 : 1; sum += a[1] * unit }
        END { printf "%.9g\n", sum }'
}

@test "--diff: the parts of two plans' steps add up, pipelined or not" {
    local dir=$BATS_TEST_TMPDIR
    staged 2 dp=2 | ap-cost --no-history "${P3[@]}" >"$dir/one.json"
    staged 2 dp=2 '.stages.microbatches = 2 | .stages.schedule = "gpipe" |
        .stages.stages[0].recompute = "all"' | ap-cost --no-history "${P3[@]}" >"$dir/two.json"
    ap-shard --no-history --mesh 8 --algorithm megatron "${P3[@]}" "$BATS_FILE_TMPDIR/gpt.json" |
        ap-cost --no-history >"$dir/spmd.json"
    run -0 ap-cost --diff "$dir/one.json" "$dir/one.json"
    [[ $output == *"the two cost the same everywhere" ]]
    local other parts
    for other in two spmd; do
        run -0 ap-cost --diff "$dir/$other.json" "$dir/one.json"
        parts=$(sed '1,/together/d' <<<"$output" | column_sec 3)
        jq -n -e --argjson parts "$parts" --slurpfile a "$dir/one.json" --slurpfile b "$dir/$other.json" \
            '($a[0].cost.step_sec - $b[0].cost.step_sec - $parts | fabs) < 2e-3 * $a[0].cost.step_sec'
    done
    [[ $output == *"megatron: 1 stage on 8 devices, 1 microbatch"*"block 3"*"waiting for other stages"* ]]
    ap-import --no-history "$(hlo mlp)" >"$dir/mlp.json"
    refuses 1 "plans of two graphs" ap-cost --diff "$dir/mlp.json" "$dir/one.json"
}

@test "--why: the step with each way of a node, as simulated" {
    local dir=$BATS_TEST_TMPDIR node
    staged 2 dp=2 | ap-cost --no-history "${P3[@]}" >"$dir/one.json"
    node=$(jq -r '[.graph.nodes[] | select(.op == "dot" and (.phase // "forward") == "forward")][-1].name' \
        "$dir/one.json")
    run -0 ap-cost --why "$node" "$dir/one.json"
    [[ $output == "stage 3 of 4, 2 devices, 8 microbatches"*"$node (dot), forward"*"the plan"* ]]
    [[ $output == *"R <- "* ]]
    # replicated, it takes twice the time in the slowest stage: the step is longer
    [[ $(grep ' R <- R R$' <<<"$output") == *+*us* ]]
    refuses 2 "the graph has no node nobody" ap-cost --why nobody "$dir/one.json"
}

@test "what a pipelined plan cannot be is refused by its place" {
    local dir=$BATS_TEST_TMPDIR
    staged 2 dp=2 >"$dir/hand.json"
    jq -c '.sharding = {}' "$dir/hand.json" >"$dir/both.json"
    refuses 1 "/stages: there is a /sharding, too" ap-cost "${P3[@]}" "$dir/both.json"
    jq -c 'del(.blocks)' "$dir/hand.json" >"$dir/none.json"
    refuses 1 'no section "blocks"' ap-cost "${P3[@]}" "$dir/none.json"
    jq -c '.stages.microbatches = 16' "$dir/hand.json" >"$dir/rows.json"
    refuses 1 "at most 8 microbatches" ap-cost "${P3[@]}" "$dir/rows.json"
    jq -c '.stages.stages[1].devices = [1, 2]' "$dir/hand.json" >"$dir/twice.json"
    refuses 1 "/stages/stages/1: device 1 is of stage 0 already" ap-cost "${P3[@]}" "$dir/twice.json"
    jq -c '.stages.stages[1].devices = [2, 64]' "$dir/hand.json" >"$dir/far.json"
    refuses 3 "/stages: cluster p3x8 has devices 0 to 63, not 64" ap-cost "${P3[@]}" "$dir/far.json"
    refuses 3 "cluster a100-8 has devices 0 to 7, not 11" \
        ap-cost --cluster "$CLUSTERS/a100-8.json" <(staged 3 dp=3)
    jq -c --slurpfile c "$CLUSTERS/a100-8.json" '.cluster = $c[0]' "$dir/far.json" >"$dir/own.json"
    refuses 1 "/stages/stages/1/devices/1: cluster a100-8 has devices 0 to 7, not 64" \
        ap-cost "$dir/own.json"
    jq -c --slurpfile c "$CLUSTERS/a100-8.json" '.cluster = $c[0] | .stages.n_devices = 99' \
        "$dir/hand.json" >"$dir/own.json"
    refuses 1 "/stages/n_devices: cluster a100-8 has 8 devices, not 99" ap-cost "$dir/own.json"
    ap-cost --cluster "$CLUSTERS/papers/p3x1.json" "$dir/own.json" | jq -e '.cost.n_devices == 8'
    jq -c '.stages |= . + {objective_sec: 1, lower_bound_sec: -1}' "$dir/hand.json" >"$dir/sec.json"
    refuses 1 "/stages/lower_bound_sec: expected a number >= 0" ap-cost "${P3[@]}" "$dir/sec.json"
    # beside the stages, which are there
    sed 's/"stages":{/&"microbatches":8,/' "$dir/hand.json" >"$dir/again.json"
    refuses 1 "duplicate object key" ap-cost "${P3[@]}" "$dir/again.json"
    sed 's/"stages":{/&"stages":[],/' "$dir/hand.json" >"$dir/again.json"
    refuses 1 "duplicate object key" ap-cost "${P3[@]}" "$dir/again.json"
    sed 's/"stages":{/&"big":12345678901234567890,/' "$dir/hand.json" >"$dir/big.json"
    refuses 1 "too big integer" ap-cost "${P3[@]}" "$dir/big.json"
}

@test "microbatches: what needs the whole batch is named, unless each takes its own" {
    local model plan='.blocks.n as $n | .stages = {microbatches: 4, stages: [{blocks: [range($n)],
        devices: [0, 1], sharding: {algorithm: "data", mesh: "2"}}]}'
    bn() {
        ap-model resnet --layers 18 --hidden 4 --image 32 --batch 16 --no-history |
            ap-coarsen --no-history --algorithm rhino --blocks 1 | jq -c "$plan | $1"
    }
    bn . >"$BATS_TEST_TMPDIR/exact.json"
    refuses 1 "/stages/microbatch: exact, but node" ap-cost "$BATS_TEST_TMPDIR/exact.json"
    bn '.stages.microbatch = "each"' | ap-cost --no-history >"$BATS_TEST_TMPDIR/each.json"
    bn '.stages.microbatches = 1' | ap-cost --no-history >"$BATS_TEST_TMPDIR/one.json"
    # sums that only the loss or a weight's gradient is made of forbid nothing
    for model in gpt t5; do
        ap-model $model --layers 2 --hidden 32 --heads 2 --seq 16 --vocab 64 --batch 16 --no-history |
            ap-coarsen --no-history --algorithm rhino --blocks 1 | jq -c "$plan" |
            ap-cost --no-history >"$BATS_TEST_TMPDIR/$model.json"
    done
}

@test "schema: a broken stages section is no document" {
    local dir=$BATS_TEST_TMPDIR i=0 filter
    # what repeats a thousand times is there twice
    staged 2 dp=2 | ap-cost --no-history "${P3[@]}" | jq -c '.graph.nodes |= .[:2] |
        .blocks.block_of |= .[:2] | .stages.stages[].sharding |=
        (.groups |= .[:2] | .layouts |= .[:2] | .conversions |= .[:2])' >"$dir/cost.json"
    valid "$dir/cost.json"
    while read -r filter; do
        i=$((i + 1))
        jq -c "$filter" "$dir/cost.json" >"$dir/bad-$i.json"
    done <<'END'
del(.stages.microbatches)
.stages.microbatches = 0
.stages.schedule = "zigzag"
.stages.microbatch = "some"
.stages.stages = []
del(.stages.stages[0].blocks)
.stages.stages[0].devices = [-1]
.stages.stages[0].devices = [1, 1]
.stages.stages[0].recompute = true
.stages.stages[0].sharding = {"algorithm": "data"}
.stages.stages[0].extra = 1
.stages.gap = 2
.cost.bubble = 1.5
del(.cost.levels)
.cost.devices[0].memory.over_time = [[0]]
.cost.stages[0].blocks = []
END
    run valid "$dir"/bad-*.json
    [ "$(grep -c '^bad ' <<<"$output")" -eq 16 ] || { echo "$output" | cut -c1-200; return 1; }
}

@test "a new sharding replaces a pipelined plan and its programs" {
    local doc=$BATS_TEST_TMPDIR/hand.json
    staged 2 dp=2 >"$doc"
    ap-rewrite --no-history "$doc" -o "$BATS_TEST_TMPDIR/run.json"
    jq -e '.pipeline and (has("program") | not)' "$BATS_TEST_TMPDIR/run.json"
    doc=$BATS_TEST_TMPDIR/run.json
    run -0 bash -c "ap-shard --no-history --mesh 4 --algorithm data ${P3[*]} $doc | jq -c keys"
    [ "$output" = '["autopar","blocks","cluster","graph","sharding"]' ]
}

@test "rannc §IV: of the ResNets of eight times the width, data parallelism fits only the smallest on 32 GB" {
    local m gb peak want=(24.3 43.7 59.7) i=0
    for m in resnet50x8 resnet101x8 resnet152x8; do
        ap-model "$m" --optimizer adam --batch 32 --no-history >"$BATS_TEST_TMPDIR/m.json"
        # 16 bytes per parameter: weight, gradient and Adam's two
        gb=$(jq -r '[.graph.nodes[] | select(.op == "parameter" and .role == "weight") | .shape |
            capture("\\[(?<d>.*)\\]").d | split(",") | map(tonumber) | reduce .[] as $x (1; . * $x)] |
            add * 16 / 1e8 | round / 10' "$BATS_TEST_TMPDIR/m.json")
        [ "$gb" = "${want[i]}" ]
        peak=$(ap-shard --algorithm data --mesh 32 --cluster "$CLUSTERS/papers/rannc.json" \
            "$BATS_TEST_TMPDIR/m.json" | ap-cost | jq .cost.memory.peak_bytes)
        echo "# $m: $gb GB at 16 B a parameter, $peak bytes by the program's buffers" >&3
        ((i == 0 ? peak < 32000000000 : peak > 32000000000))
        i=$((i + 1))
    done
}

@test "rannc §II-C: BERT-Base's vocabulary head is as much work as three layers" {
    local head
    ap-model bert-base --seq 512 --batch 32 --no-history |
        ap-coarsen --no-history --algorithm rannc --blocks 13 --cluster "$CLUSTERS/papers/rannc.json" \
            >"$BATS_TEST_TMPDIR/bert.json"
    head=$(jq '.blocks.block_of as $b | [.graph.nodes | to_entries[] | select(.value.op == "dot" and
        .value.scope == "bert/cls/decoder" and (.value.phase // "forward") == "forward") | .key] |
        if length == 1 then $b[.[0]] else error("no decoder") end' "$BATS_TEST_TMPDIR/bert.json")
    # the product alone, of the forward FLOPs and of a layer, which most blocks are; its block, and whether it is the largest
    run -0 jq -r --argjson h "$head" --argjson product $((2 * 32 * 512 * 768 * 30522)) '[.blocks.blocks[].flops.forward] |
        [($product / add, $product / (sort | .[length / 2 | floor]), .[$h] / add | . * 1e4 | round / 1e4), (.[$h] == max)] | @tsv' "$BATS_TEST_TMPDIR/bert.json"
    read -r share layers block largest <<<"$output"
    shows "the product with the vocabulary is $share of the forward FLOPs, $layers layers; its block, the largest, $block; the paper says 40 % of compute"
    [ "$largest" = true ]
    awk -v s="$share" -v l="$layers" -v b="$block" 'BEGIN { exit !(s > 0.19 && l > 2.95 && b > s && b < 0.4) }'
}
