#!/usr/bin/env bats
# shellcheck disable=SC2016,SC2154 # what jq expands; what bats assigns
# Plans that Alpa's paper (OSDI 2022) reports, asked of the planners at the paper's sizes: what
# they find, what its plan costs beside theirs, what does not fit. p3x8 is its testbed.

load helpers

DATA='ap-shard --serve --algorithm data'

# What a V100 of "16 GB" has. Sums of f16 gradients are f32 here, and take 2 bytes a weight more than
# Alpa's.
V100=17179869184

# The testbed with so many nodes of 8: cluster N [MEMORY]
cluster() {
    local f=$BATS_FILE_TMPDIR/p3x$1-${2:-16e9}.json
    jq --argjson n "$1" --argjson memory "${2:-16e9}" '.memory_bytes = $memory |
        if $n == 1 then .levels = .levels[:1] else .levels[1].size = $n end' \
        "$CLUSTERS/papers/p3x8.json" >"$f"
    echo "$f"
}

# blocks MODEL [OPTION of ap-coarsen]...: the model cut, made once
blocks() {
    local f
    f=$BATS_FILE_TMPDIR/$(tr -c 'a-z0-9\n' - <<<"$*").json
    if [ ! -s "$f" ]; then
        local m=$1 dtype=f16
        shift
        [[ $m != wresnet* ]] || dtype=f32
        ap-model "$m" --dtype $dtype --no-history | ap-prune --no-history |
            ap-coarsen --no-history "$@" -o "$f" || return
    fi
    echo "$f"
}

# plan CLUSTER MICROBATCHES [OPTION]... FILE: under 1F1B, as Alpa runs it
plan() {
    local cluster=$1 n=$2
    shift 2
    ap-stage --no-history --jobs 1 --cluster "$cluster" --microbatches "$n" --schedule 1f1b "$@"
}

# shape PLAN: of each stage blocks@hosts x devices
shape() {
    jq -r '[.stages.stages[] | "\(.blocks | length)@\(.hosts)x\(.devices_per_host)"] |
        join(" ")' "$1"
}

# What axes of the mesh do with a one-stage plan's forward contractions, each once.
contractions() {
    jq -c '.stages.stages[0].sharding.layouts as $l | [.graph.nodes | to_entries[] |
        select(.value.op == "dot" and (.value.phase // "forward") == "forward") |
        $l[.key] | split(",")[]] | unique' "$1"
}

# The best plan of the paper's shape by hand: two data-parallel stages of 4 devices, one of 8
# that is split as the search likes best. The cuts and what is recomputed are the best by the
# stages' times and memory. paper_448 CLUSTER MICROBATCHES FILE
paper_448() {
    local cluster=$1 n=$2 file=$3 serve=(ap-shard --serve --microbatch each --cluster "$1" "$3")
    local dir=$BATS_TEST_TMPDIR last
    last=$(jq '.blocks.n - 1' "$file")
    jq -n -c --argjson last "$last" --argjson n "$n" 'range(0; $last) as $lo |
        range($lo; $last) | {id: [$lo, .], blocks: [$lo, .], submesh: [1, 4], microbatches: $n}' |
        "${serve[@]}" --algorithm data >"$dir/four"
    jq -n -c --argjson last "$last" --argjson n "$n" 'range(2; $last + 1) |
        {id: ., blocks: [., $last], submesh: [1, 8], microbatches: $n}' |
        "${serve[@]}" >"$dir/eight"
    jq -n -c --argjson n "$n" --slurpfile four "$dir/four" --slurpfile eight "$dir/eight" '
        def sec: .value.sec_per_microbatch | .forward + .backward;
        def point($flight): first(.front | to_entries[] | select(
            .value.stage_bytes + $flight * .value.bytes_per_microbatch <= 16e9));
        [$four[] | select(.id[0] == 0) | {at: .id[1], one: point(3)} | . as $a |
         $four[] | select(.id[0] == $a.at + 1) | {cut: .id[1], two: point(2)} | . as $b |
         $eight[] | select(.id == $b.cut + 1) | [$a.one, $b.two, point(1)] |
         {cuts: [$a.at, $b.cut], recompute: map(.value.recompute), plan: .[2].key,
          sec: ((map(sec) | add) + ($n - 1) * (map(sec) | max))}] | min_by(.sec)' >"$dir/cuts"
    jq -c --argjson n "$n" --argjson last "$last" '{blocks: [.cuts[1] + 1, $last],
        submesh: [1, 8], microbatches: $n, plan: .plan}' "$dir/cuts" | "${serve[@]}" >"$dir/third"
    jq -c --argjson n "$n" --slurpfile cuts "$dir/cuts" --slurpfile third "$dir/third" '
        $cuts[0] as $c | {algorithm: "data", mesh: "4"} as $data |
        .stages = {microbatches: $n, microbatch: "each", schedule: "1f1b", stages: [
            {blocks: [range($c.cuts[0] + 1)], devices: [range(4)], sharding: $data},
            {blocks: [range($c.cuts[0] + 1; $c.cuts[1] + 1)], devices: [range(4; 8)],
             sharding: $data},
            {blocks: [range($c.cuts[1] + 1; .blocks.n)], devices: [range(8; 16)],
             sharding: $third[0].sharding}]} |
        .stages.stages |= ([., $c.recompute] | transpose |
            map(.[0] + {recompute: (if .[1] then "all" else "none" end)}))' "$file" |
        ap-cost --no-history --cluster "$cluster"
}

@test "alpa §8.6: WRN-4B on 2x8, its 3 stages on 4, 4 and 8 by hand, and the plan that is found" {
    local f c dir=$BATS_TEST_TMPDIR
    f=$(blocks wresnet-4b --algorithm alpa --blocks 8)
    c=$(cluster 2)
    paper_448 "$c" 96 "$f" >"$dir/paper.json"
    [[ $(shape "$dir/paper.json") == *"@1x4 "*"@1x4 "*"@1x8" ]]
    plan "$c" 96 --microbatch each "$f" -o "$dir/ours.json"
    ap-cost --no-history "$dir/ours.json" -o "$dir/cost.json"
    echo "# 4/4/8: $(jq .cost.step_sec "$dir/paper.json") s, $(shape "$dir/paper.json");" \
        "found: $(jq .cost.step_sec "$dir/cost.json") s, $(shape "$dir/cost.json")" >&3
    jq -e -n --slurpfile p "$dir/paper.json" --slurpfile o "$dir/cost.json" \
        '$p[0].cost.peak_bytes <= 16e9 and $o[0].cost.peak_bytes <= 16e9 and
         $o[0].cost.step_sec <= $p[0].cost.step_sec'
}

@test "alpa §8.1, §8.3: GPT-2.6B on 8, loose memory splits the batch, tight memory more; equal layers do" {
    local f memory a stages dir=$BATS_TEST_TMPDIR
    f=$(blocks gpt3-2.6b --algorithm alpa --blocks 8)
    for memory in 160e9 16e9; do
        for a in alpa equal-layer; do
            plan "$(cluster 1 $memory)" 32 --algorithm $a "$f" -o "$dir/$memory-$a.json"
        done
    done
    [ "$(contractions "$dir/160e9-alpa.json")" = '["S0"]' ]
    jq -e 'index("S2") and index("P")' <<<"$(contractions "$dir/16e9-alpa.json")"
    # where it is tight the batch alone does not do
    refuses 3 "nothing fits in 16000000000 bytes" plan "$(cluster 1)" 32 --algorithm alpa \
        --shard-command 'ap-shard --serve --algorithm data' "$f"
    # stages are even
    for stages in 2 4; do
        plan "$(cluster 1 80e9)" 32 --algorithm alpa --stages $stages "$f" -o "$dir/$stages.json"
        jq -e '[.stages.stages[] | [(.blocks | length), (.devices | length)]] |
            unique | length == 1' "$dir/$stages.json"
    done
    for memory in 160e9 16e9; do
        echo "# $memory bytes: alpa $(jq .stages.objective_sec "$dir/$memory-alpa.json") s," \
            "equal-layer $(jq .stages.objective_sec "$dir/$memory-equal-layer.json") s" >&3
        jq -e -n --slurpfile a "$dir/$memory-alpa.json" \
            --slurpfile e "$dir/$memory-equal-layer.json" '
            $e[0].stages.objective_sec / $a[0].stages.objective_sec | . >= 1 - 1e-9 and . < 1.05'
    done
}

@test "alpa §8.1: a device a stage carries GPT to 64 devices, MoE-10B to 16, not MoE to 32 and 64" {
    local m nodes n out=$BATS_TEST_TMPDIR/plan.json
    while read -r m nodes n; do
        plan "$(cluster "$nodes" $V100)" 1024 --algorithm inter-only -o "$out" \
            "$(blocks "$m" --algorithm alpa --blocks "$n" --eps 1)"
        jq -r --arg m "$m" '"# \($m): \(.stages.objective_sec) s, \(.stages.stages |
            length) stages"' "$out" >&3
        jq -e --argjson all $((8 * nodes)) '.stages.stages | length <= $all and
            length > $all / 2 and all(.devices | length == 1)' "$out"
    done <<<$'gpt3-2.6b 1 8\ngpt3-6.7b 2 16\ngpt3-15b 4 32\ngpt3-39b 8 48'
    plan "$(cluster 2 $V100)" 1024 --algorithm inter-only --microbatch each -o "$out" \
        "$(blocks moe-10b --algorithm alpa --blocks 16)"
    jq -e '.stages.stages | length == 16' "$out"
    # half of an MoE's experts in a layer, one product's, are too much for a device; on a single
    # device all shards are alike
    while read -r m nodes n; do
        refuses 3 "inter-only: nothing fits" plan "$(cluster "$nodes")" 1024 --algorithm inter-only \
            --microbatch each --shard-command "$DATA" "$(blocks "$m" --algorithm alpa --blocks "$n")"
        shows "$m on $((8 * nodes)): ${stderr#*inter-only: }"
    done <<<$'moe-27b 4 22\nmoe-70b 8 32'
}

@test "alpa §8.1: Wide-ResNet-6.8B and 13B fit 32 and 64 devices neither by stages nor by stages and batch" {
    local f m nodes
    while read -r m nodes; do
        f=$(blocks "$m" --algorithm alpa --blocks 8)
        refuses 3 "inter-only: " plan "$(cluster "$nodes")" 96 --microbatch each \
            --algorithm inter-only --shard-command "$DATA" "$f"
        refuses 3 "pp-dp: " plan "$(cluster "$nodes")" 96 --microbatch each --algorithm pp-dp \
            --shard-command "$DATA" "$f"
        shows "$m on $((8 * nodes)): nothing ${stderr#*nothing }"
    done <<<$'wresnet-6.8b 4\nwresnet-13b 8'
}

@test "alpa §8.1: Megatron's grid needs tensor parallelism for GPT-39B on 64, not for 15B on 32" {
    local f line
    # line MODEL NODES LINE: GB of the fullest device
    line() {
        f=$(blocks "$1" --algorithm layers)
        ap-stage --quiet --grid "$3" --cluster "$(cluster "$2" $V100)" "$f" | ap-cost --quiet |
            jq .cost.peak_bytes
    }
    shows "GPT-15B on 32: $(line gpt3-15b 4 pp=16,recompute=full) bytes of $V100; 39B on 64:" \
        "$(line gpt3-39b 8 pp=16,recompute=full), with 8 tensor parallel $(line gpt3-39b 8 tp=8,pp=8,recompute=full)"
    [ "$(line gpt3-15b 4 pp=16,recompute=full)" -le $V100 ]
    for line in pp=16,recompute=full pp=8,recompute=full; do # more stages do not divide 64
        [ "$(line gpt3-39b 8 $line)" -gt $V100 ]
    done
    [ "$(line gpt3-39b 8 tp=8,pp=8,recompute=full)" -le $V100 ]
}

@test "alpa §8.3: equal layers and operators beside free cuts, Wide-ResNet-4B on 16" {
    local a f dir=$BATS_TEST_TMPDIR
    f=$(blocks wresnet-4b --algorithm alpa --blocks 8)
    for a in alpa equal-layer equal-operator; do
        plan "$(cluster 2)" 96 --microbatch each --algorithm $a --shard-command "$DATA" \
            --memory 32GB "$f" | jq .stages.objective_sec >>"$dir/sec"
    done
    jq -r -s '"# equal-layer \(.[1] / .[0]), equal-operator \(.[2] / .[0]) times alpa"' "$dir/sec" >&3
    jq -e -s '.[0] > 0 and .[1] > 1.1 * .[0] and .[2] > 1.1 * .[0]' "$dir/sec"
}

@test "alpa §8.4: the work of a whole plan is linear in the layers" {
    local l dir=$BATS_TEST_TMPDIR
    for l in 8 16 24 32; do # of fewer, one mesh less is worth a question
        ap-model gpt --layers $l --hidden 1024 --heads 16 --seq 512 --batch 64 --vocab 8192 \
            --dtype f16 | ap-prune | ap-coarsen --algorithm alpa --blocks $l --eps 2 >"$dir/in.json"
        plan "$(cluster 1)" 8 --stats --shard-command 'ap-shard --serve --stats' "$dir/in.json" \
            2>&1 >"$dir/plan.json" | jq -s -c --argjson l $l '{layers: $l} + add' >>"$dir/stats"
    done
    jq -r -s '"# layers \(map(.layers)), requests \(map(.requests)), fronts \(map(.fronts)), " +
        "searches \(map(.searches))"' "$dir/stats" >&3
    # a layer more asks for no more among many than among few, and of all that is searched once
    jq -e -s '. as $all | (map(.searches) | unique | length == 1) and
        all("requests", "fronts"; . as $what | [range($all | length - 1) as $i |
            $all[$i] as $x | $all[$i + 1] as $y |
            ($y[$what] - $x[$what]) / ($y.layers - $x.layers)] |
            .[0] > 0 and max <= .[0] * 1.25)' "$dir/stats"
    # what all operators take at least rules runs out, contractions alone leave 6 a layer; with those of the plans
    # that are simulated
    jq -e -s 'all(.[]; .fronts <= 5 * .layers)' "$dir/stats"
}

@test "alpa §8.4: the work of a whole plan is no more than linear in the GPUs" {
    local n dir=$BATS_TEST_TMPDIR
    ap-model gpt --layers 8 --hidden 256 --heads 4 --seq 64 --batch 64 --vocab 1000 --dtype f16 |
        ap-prune | ap-coarsen --algorithm alpa --blocks 8 --eps 2 >"$dir/in.json"
    for n in 1 2 4 8 16 32; do
        plan "$(cluster $n)" 8 --stats --shard-command "$DATA --stats" "$dir/in.json" \
            2>&1 >"$dir/plan.json" | jq -s -c --argjson n $n '{gpus: (8 * $n)} + add' >>"$dir/stats"
    done
    jq -r -s '"# GPUs \(map(.gpus)), requests \(map(.requests)), fronts \(map(.fronts))"' \
        "$dir/stats" >&3
    # twice as many ask for no more than twice as much, 32 times as many for a third of that
    jq -e -s '[range(length - 1) as $i | .[$i + 1].fronts / .[$i].fronts] |
        .[0] <= 2.5 and all(.[1:][]; . < 2)' "$dir/stats"
    jq -e -s '.[-1].fronts < 32 / 3 * .[0].fronts' "$dir/stats"
}
