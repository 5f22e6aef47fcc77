#!/usr/bin/env bats
# shellcheck disable=SC2016,SC2154 # what jq expands; what bats assigns
# Plans of whole models by ap-stage, as published systems report them: what fits, what is
# even, what does not fit and which change helps, and what is shown of a plan.

load helpers

DATA='ap-shard --serve --algorithm data'

setup_file() {
    ap-model gpt --layers 4 --hidden 256 --heads 4 --batch 8 --seq 64 --vocab 1000 --no-history |
        ap-prune --no-history | ap-coarsen --blocks 4 --no-history -o "$BATS_FILE_TMPDIR/gpt.json"
}

GPT() { echo "$BATS_FILE_TMPDIR/gpt.json"; }

# hosts N PER [BANDWIDTH]: file of a cluster of CPUs, N hosts of PER with a net between them
hosts() {
    local f=$BATS_FILE_TMPDIR/cluster-$1-$2-${3:-3e9}.json
    jq --argjson n "$1" --argjson per "$2" --argjson net "${3:-3e9}" '.levels[0] += {size: $per,
        shared: false} | .levels += [{name: "net", size: $n, bandwidth_bytes_per_sec: $net,
        latency_sec: 1e-5, shared: false}]' "$CLUSTERS/cpu-4.json" >"$f"
    echo "$f"
}

# plan CLUSTER [OPTION]... FILE: by data parallelism inside the stages
plan() {
    local cluster=$1
    shift
    ap-stage --no-history --jobs 1 --cluster "$cluster" --shard-command "$DATA" "$@"
}

# weights MODEL: billions of parameters, and the largest weight's bytes at 16 a parameter
weights() {
    ap-model "$1" --no-history | jq -r '[.graph.nodes[] |
        select(.op == "parameter" and .role == "weight") | .shape |
        [capture("\\[(?<d>.*)\\]").d | splits(",") | select(. != "") | tonumber] |
        reduce .[] as $x (1; . * $x)] | [add / 1e9, max * 16] | @tsv'
}

@test "infeasible: too little memory names the least, which does; a byte less does not" {
    local cluster=$CLUSTERS/cpu-4.json need
    refuses 3 "nothing fits in 10000000 bytes" plan "$cluster" --memory 10MB "$(GPT)"
    need=$(sed -n 's/.* needs \([0-9]*\) bytes per device.*/\1/p' <<<"$stderr")
    [[ "$need" -gt 10000000 && $stderr == *" $need bytes per device, $((need - 10000000)) more"* ]]
    plan "$cluster" --memory "$need" "$(GPT)" -o "$BATS_TEST_TMPDIR/plan.json"
    ap-cost "$BATS_TEST_TMPDIR/plan.json" |
        jq -e --argjson need "$need" '.cost.peak_bytes <= $need'
    # near the limit the programs' buffers decide: what is named then may be another plan's
    refuses 3 "nothing fits in $((need - 1)) bytes" plan "$cluster" --memory $((need - 1)) "$(GPT)"
}

# least CLUSTER [OPTION]...: a little less memory than the leanest plan found needs
least() {
    local need
    refuses 3 "nothing fits" plan "$@" --memory 1MB "$(GPT)"
    need=$(sed -n 's/.* needs \([0-9]*\) bytes per device.*/\1/p' <<<"$stderr")
    echo $((need * 98 / 100))
}

@test "infeasible: the number of hosts that is named does, one less does not" {
    local memory n
    memory=$(least "$(hosts 1 2)")
    refuses 3 " hosts in place of 1" plan "$(hosts 1 2)" --memory "$memory" "$(GPT)"
    n=$(sed -n 's/.*; or \([0-9]*\) hosts in place of 1.*/\1/p' <<<"$stderr")
    ((n >= 2))
    plan "$(hosts "$n" 2)" --memory "$memory" "$(GPT)" |
        jq -e '[.stages.stages[].devices[]] | length > 2'
    ((n == 2)) || refuses 3 "nothing fits" \
        plan "$(hosts $((n - 1)) 2)" --memory "$memory" "$(GPT)"
}

@test "infeasible: recomputation is named where it alone does" {
    local cluster=$CLUSTERS/cpu-4.json memory
    memory=$(least "$cluster" --recompute none)
    refuses 3 "or --recompute auto: " plan "$cluster" --memory "$memory" --recompute none "$(GPT)"
    plan "$cluster" --memory "$memory" "$(GPT)" | jq -e 'any(.stages.stages[]; .recompute == "all")'
    refuses 3 "nothing fits" plan "$cluster" --memory 10MB --recompute none "$(GPT)"
    [[ $stderr != *"--recompute auto"* ]]
}

@test "infeasible: more stages than blocks, and as many as there are" {
    refuses 3 "5 stages of 4 blocks: at most 4 stages" \
        plan "$CLUSTERS/cpu-8.json" --stages 5 "$(GPT)"
    plan "$CLUSTERS/cpu-8.json" --stages 4 "$(GPT)" | jq -e '.stages.stages | length == 4'
}

@test "infeasible: microbatches that do not divide the batch, and the nearest that do" {
    local n near
    while read -r n near; do
        refuses 3 "$n microbatches do not divide the batch of 8 rows; --microbatches $near is" \
            plan "$CLUSTERS/cpu-4.json" --microbatches "$n" "$(GPT)"
    done <<<$'3 2\n7 8\n16 8\n1000000 8'
    plan "$CLUSTERS/cpu-4.json" --microbatches 8 "$(GPT)" | jq -e '.stages.microbatches == 8'
}

@test "a 4-stage 1F1B plan: a valid trace, and a report of one screen" {
    local dir=$BATS_TEST_TMPDIR
    plan "$CLUSTERS/cpu-4.json" --stages 4 --microbatches 8 --schedule 1f1b "$(GPT)" \
        -o "$dir/plan.json"
    ap-cost --trace "$dir/trace.json" "$dir/plan.json" -o "$dir/cost.json"
    jq -e '.cost.schedule == "1f1b" and [.cost.devices[].peak_in_flight] == [4, 3, 2, 1]' \
        "$dir/cost.json"
    run -0 /usr/bin/python3 tests/trace.py "$dir/trace.json"
    jq -e --slurpfile c "$dir/cost.json" '.flows == 2 * 3 * 8 and
        (.end_sec / $c[0].cost.step_sec - 1 | fabs) < 1e-3 and
        .most_bytes <= $c[0].cost.peak_bytes' <<<"$output"
    run -0 ap-cost --details "$dir/plan.json"
    (($(sed '/^weights of stage/,$d' <<<"$output" | wc -l) <= 40)) # the tables of weights come last
    for line in "${lines[@]}"; do
        ((${#line} <= 100)) || { echo "$line"; return 1; }
    done
    [[ $output == *"4 stages on 4 of 4 devices"*"where the time goes"* ]]
    [[ $output == *"what fills the fullest device"*"what would help this plan most"* ]]
    [ "$(sed '1,/what would help this plan most/d; /^weights of stage/,$d' <<<"$output" | grep -c '^  ')" -eq 3 ]
}

@test "documents cut short or with a wrong byte: exit 1 and a reason, or a plan that is whole" {
    local doc=$BATS_TEST_TMPDIR/plan.json bad=$BATS_TEST_TMPDIR/bad.json size at i=0 n=0
    local out=$BATS_TEST_TMPDIR/out.json said=$BATS_TEST_TMPDIR/said
    plan "$CLUSTERS/cpu-4.json" --stages 2 --microbatches 2 "$(GPT)" | jq -c . >"$doc"
    size=$(stat -c %s "$doc")
    for at in 0 1 9 $((size / 7)) $((size / 3)) $((size / 2)) $((size - 4000)) $((size - 700)) \
        $((size - 90)) $((size - 2)); do
        head -c "$at" "$doc" >"$bad"
        refuses 1 "ap-cost: " ap-cost "$bad"
        refuses 1 "ap-stage: " plan "$CLUSTERS/cpu-4.json" "$bad"
    done
    # one byte of the section stages overwritten, by a fixed sequence
    at=$(grep -abo '"stages":{' "$doc" | head -n 1 | cut -d: -f1)
    while ((i < 12)); do
        cp "$doc" "$bad"
        printf '%s' "x" | dd of="$bad" bs=1 seek=$((at + (i * 7919 + 11) % (size - at - 20))) \
            conv=notrunc status=none
        rm -f "$out"
        if ap-cost --quiet -o "$out" "$bad" 2>"$said"; then
            jq -e '.cost.step_sec > 0' "$out" >/dev/null
        else
            [ ! -e "$out" ]
            grep -q '^ap-cost: ' "$said"
            n=$((n + 1))
        fi
        i=$((i + 1))
    done
    ((n >= 6))
}

# branched MODEL DEVICES [OPTION]...: rhino on the graph of blocks, alpa on their line, auto, also
# with four stages; two hosts with a slow net. What is reduced over the batch is taken per microbatch.
branched() {
    local a cluster model=$1 n=$2
    cluster=$(hosts 2 $((n / 2)) 1e8)
    shift 2
    for a in rhino alpa 'auto --stages 4' auto; do
        # shellcheck disable=SC2086
        plan "$cluster" --microbatch each --algorithm $a "$@" -o "$BATS_TEST_TMPDIR/$a.json" "$model"
        ap-cost --no-history "$BATS_TEST_TMPDIR/$a.json" | jq '.cost.step_sec' \
            >"$BATS_TEST_TMPDIR/$a.sec"
        echo "# $n devices, $a: $(cat "$BATS_TEST_TMPDIR/$a.sec") s" >&3
    done
    jq -e -n --slurpfile r "$BATS_TEST_TMPDIR/rhino.sec" --slurpfile a "$BATS_TEST_TMPDIR/alpa.sec" \
        --slurpfile four "$BATS_TEST_TMPDIR/auto --stages 4.sec" --slurpfile auto "$BATS_TEST_TMPDIR/auto.sec" \
        '$auto[0] > 0 and $auto[0] <= ([$r[0], $a[0], $four[0]] | min) * (1 + 1e-9)'
}

@test "not a chain: U-Net with its skips, 4 and 8 devices" {
    ap-model unet --layers 3 --hidden 16 --image 32 --batch 16 --no-history | ap-prune --no-history |
        ap-coarsen --no-history --algorithm rhino --blocks 8 -o "$BATS_TEST_TMPDIR/u.json"
    branched "$BATS_TEST_TMPDIR/u.json" 4
    branched "$BATS_TEST_TMPDIR/u.json" 8
}

# tower_blocks FILE: blocks of two towers
tower_blocks() {
    two_towers 12 64 16 | ap-import --no-history | ap-grad --no-history --optimizer adam |
        ap-prune --no-history | ap-coarsen --no-history --algorithm rannc --blocks 8 -o "$1"
}

@test "not a chain: two towers, 4 and 8 devices" {
    tower_blocks "$BATS_TEST_TMPDIR/t.json"
    branched "$BATS_TEST_TMPDIR/t.json" 4
    branched "$BATS_TEST_TMPDIR/t.json" 8
}

# towers: rhino's last plan has a stage that is no run of blocks and nothing flows between the two
# towers; alpa's stages are runs
towers() {
    jq -e '.stages.stages | map(.blocks | .[-1] - .[0] + 1 == length) | length == 2 and all | not' \
        "$BATS_TEST_TMPDIR/rhino.json"
    jq -e 'all(.stages.stages[].blocks; .[-1] - .[0] + 1 == length)' "$BATS_TEST_TMPDIR/alpa.json"
}

@test "not a chain: two stages, a tower each by rhino, runs of the line by alpa" {
    tower_blocks "$BATS_TEST_TMPDIR/t.json"
    branched "$BATS_TEST_TMPDIR/t.json" 4 --stages 2 --microbatches 8
    towers
    branched "$BATS_TEST_TMPDIR/t.json" 8 --stages 2 --microbatches 4
    towers
}

@test "alpa §8.1: one expert product of MoE is too large for 16 GB from 32 GPUs on" {
    local m gpus b bytes fits
    while read -r m gpus fits; do
        read -r b bytes < <(weights "$m")
        echo "# $m, $gpus GPUs: $b B parameters, the largest weight takes $bytes bytes" >&3
        [ "$(jq -n --argjson x "$bytes" '$x < 16e9')" = "$fits" ]
    done <<<$'moe-10b 16 true\nmoe-27b 32 false\nmoe-70b 64 false'
}

@test "alpa §8.1: one convolution of the two large Wide-ResNets leaves 16 GB no room" {
    local m b bytes
    for m in wresnet-6.8b wresnet-13b; do
        read -r b bytes < <(weights "$m")
        [ "$bytes" -eq 15099494400 ]
    done
}

@test "alpa §8.1: a layer of GPT-39B is 12.9 GB, three of them, 16 equal stages, are beyond 16 GB" {
    local layer
    layer=$(ap-model gpt3-39b --no-history | jq '[.graph.nodes[] |
        select(.op == "parameter" and .role == "weight" and (.name | test("/h_7/"))) | .shape |
        [capture("\\[(?<d>.*)\\]").d | splits(",") | select(. != "") | tonumber] |
        reduce .[] as $x (1; . * $x)] | add * 16')
    jq -e -n --argjson l "$layer" '($l / 1e8 | round) == 129 and 3 * $l > 16e9 and $l < 16e9'
}

@test "auto is no worse than alpa where a short run would leave too much for the other devices" {
    local dir=$BATS_TEST_TMPDIR a
    jq '.levels |= .[:1]' "$CLUSTERS/papers/p3x8.json" >"$dir/host.json"
    ap-model wresnet-2b --no-history | ap-prune --no-history --quiet |
        ap-coarsen --no-history --algorithm alpa --blocks 12 -o "$dir/in.json"
    for a in auto alpa; do
        plan "$dir/host.json" --microbatch each --algorithm $a -o "$dir/$a.json" "$dir/in.json"
    done
    jq -es 'map(.stages.objective_sec) | .[0] <= .[1]' "$dir/auto.json" "$dir/alpa.json"
}
