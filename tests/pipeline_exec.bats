#!/usr/bin/env bats
# shellcheck disable=SC2016 # what jq expands
# Pipelines that run: every stage on ranks of its own, with the numbers of one device.

load helpers

setup() { needs_exec; }

# chain SEED BLOCKS [OPTION...]: a random graph of layers; with options of ap-grad its train step.
chain() {
    local seed=$1 n=$2 grad=(cat)
    [ $# -eq 2 ] || grad=(ap-grad --quiet --no-history "${@:3}")
    /usr/bin/python3 tests/chain.py "$seed" $((n + 2)) | ap-import --quiet --no-history | "${grad[@]}" |
        ap-coarsen --no-history --algorithm alpa --blocks "$n" --eps 4
}

# by_hand SEED SCHEDULE MICROBATCHES: a stage per block on one or two devices, rules by turns.
by_hand() {
    jq -c --argjson seed "$1" --arg schedule "$2" --argjson b "$3" '
        .blocks.n as $n | ["data", "largest-dim", "megatron", "zero3"] as $rules |
        .stages = {schedule: $schedule, microbatches: $b, stages:
            (reduce range(0; $n) as $i ({at: 0, list: []};
                (1 + (($seed / (3 * ($i + 1)) | floor) + $i) % 2) as $d |
                {at: (.at + $d), list: (.list + [{blocks: [$i], devices: [range(.at; .at + $d)],
                    sharding: {algorithm: $rules[($seed + $i) % 4], mesh: "m=\($d)"}}])}) | .list)}'
}

# runs FILE [OPTION...]: on as many ranks as it is for.
runs() {
    timeout 300 ap-exec -n "$(jq .pipeline.n_ranks "$1")" --verify "${@:2}" "$1"
}

# three MODEL MICROBATCHES SCHEDULE: a golden model in three stages of two devices.
three() {
    ap-coarsen --quiet --no-history --algorithm alpa --blocks 3 --eps 3 "$(imported "$1")" |
        jq -c --argjson b "$2" --arg schedule "$3" '.stages = {schedule: $schedule, microbatches: $b,
            stages: [range(0; 3) | {blocks: [.], devices: [. * 2, . * 2 + 1], sharding:
                {algorithm: ["data", "megatron", "zero2"][.], mesh: "m=2"}}]}'
}

@test "random graphs in 2 or 3 stages give one device's bits" {
    local seed all=$BATS_TEST_TMPDIR/all.json
    for seed in 1 2 4 9 10 13 15 17; do
        chain $seed $((2 + seed % 2)) | by_hand $seed inference $((1 << seed / 2 % 3)) |
            ap-rewrite --no-history >"$BATS_TEST_TMPDIR/run.json"
        runs "$BATS_TEST_TMPDIR/run.json" --steps 2 --seed $seed --small-ints --tolerance 0 --quiet
        jq -c .pipeline "$BATS_TEST_TMPDIR/run.json" >>"$all"
    done
    # what they are to cover: jumps over a stage, several readers, shares, splits on both sides
    jq -se '[.[] | .transfers] | any(.[][]; .to - .from > 1) and any(.[]; group_by([.from, .result]) |
            any(length > 1)) and any(.[][]; .messages == 4) and any(.[][]; .layout | test("S1|S0,S0")) and
            any(.[][]; .messages == 1)' "$all"
}

@test "random train steps in every schedule give one device's bits" {
    local seed schedules=(1f1b gpipe eager-1f1b)
    for seed in 1 2 4 5 8 9; do
        chain $seed $((2 + seed % 2)) --optimizer sgd --lr 1 |
            by_hand $seed "${schedules[seed % 3]}" $((1 << seed / 2 % 3)) |
            ap-rewrite --no-history >"$BATS_TEST_TMPDIR/run.json"
        runs "$BATS_TEST_TMPDIR/run.json" --seed $seed --small-ints --tolerance 0 --quiet
    done
}

@test "stages that recompute values give one device's bits, all or selected" {
    local seed file=$BATS_TEST_TMPDIR/run.json
    for seed in 1 2 4 5 8 9; do
        chain $seed $((2 + seed % 2)) --optimizer sgd --lr 1 | by_hand $seed 1f1b $((1 << seed / 2 % 3)) |
            jq -c '. as $d | .stages.stages |= map(.blocks as [$b] | if $b % 2 == 0 then .recompute = "all"
                else [$d.graph.nodes | to_entries[] | select(.value.phase == "forward" and
                    (.value.op | IN("dot", "exponential", "clamp", "negate"))).key |
                    select($d.blocks.block_of[.] == $b)] as $ids |
                    if $ids == [] then . else .recompute = "selected" | .recomputed = $ids end end)' |
            ap-rewrite --no-history >"$file"
        runs "$file" --seed $seed --small-ints --tolerance 0 --quiet
        jq -c .pipeline "$file" >>"$BATS_TEST_TMPDIR/all.json"
    done
    jq -se '[.[].stages[].program.modules[].graph.nodes[] | select(.name | endswith(".remat"))] |
        length > 0 and all(.[]; .recomputed)' "$BATS_TEST_TMPDIR/all.json"
}

@test "forward models that ap-stage cuts in two" {
    local m b
    for m in mlp_fwd gpt2l_fwd; do
        for b in 1 2 4; do
            ap-coarsen --no-history "$(imported $m)" | ap-stage --no-history --stages 2 \
                --microbatches $b --cluster "$CLUSTERS/cpu-4.json" |
                ap-rewrite --no-history >"$BATS_TEST_TMPDIR/run.json"
            jq -e --argjson b $b '.pipeline | .schedule == "inference" and (.lanes | length) == 2 and
                any(.transfers[]; .messages == $b)' "$BATS_TEST_TMPDIR/run.json"
            runs "$BATS_TEST_TMPDIR/run.json" --tolerance 1e-5
        done
    done
}

@test "train steps in three stages of two devices have JAX's losses" {
    local m
    for m in mlp gpt2l; do
        three $m 4 1f1b | ap-rewrite --no-history >"$BATS_TEST_TMPDIR/run.json"
        # gpt2l: an embedding that the last stage multiplies with, a counter in every stage
        jq -e --arg m $m '.pipeline | .stages as $s | $m != "gpt2l" or
            any(.transfers[]; $s[.to].params[.param] >= 0)' "$BATS_TEST_TMPDIR/run.json"
        timeout 300 ap-exec -n 6 --data "$MODELS/$m/in" --steps 5 --compare "$MODELS/$m" \
            --tolerance 1e-4 "$BATS_TEST_TMPDIR/run.json"
    done
}

@test "a view that a backward pass sends keeps the value of the forward pass that it shows" {
    ap-coarsen --quiet --no-history --algorithm alpa --blocks 4 --eps 3 "$(imported lstm)" |
        jq -c '.stages = {schedule: "1f1b", microbatches: 2, stages: [range(4) |
            {blocks: [.], devices: [.], sharding: {algorithm: "data", mesh: "m=1"}}]}' |
        ap-rewrite --no-history >"$BATS_TEST_TMPDIR/run.json"
    timeout 300 ap-exec -n 4 --data "$MODELS/lstm/in" --steps 5 --compare "$MODELS/lstm" --tolerance 1e-4 "$BATS_TEST_TMPDIR/run.json"
}

@test "two stages of two layers each keep less when they recompute values" {
    local how dir=$BATS_TEST_TMPDIR
    ap-coarsen --quiet --no-history --algorithm alpa --blocks 4 --eps 3 "$(imported gpt2l)" >"$dir/blocks.json"
    for how in none all; do
        jq -c --arg how $how '.stages = {schedule: "1f1b", microbatches: 4, stages: [[0, 1] | .[] |
            {blocks: [. * 2, . * 2 + 1], devices: [. * 2, . * 2 + 1], recompute: $how,
             sharding: {algorithm: ["data", "megatron"][.], mesh: "m=2"}}]}' "$dir/blocks.json" |
            ap-rewrite --no-history >"$dir/run.json"
        timeout 300 ap-exec -n 4 --data "$MODELS/gpt2l/in" --steps 5 --compare "$MODELS/gpt2l" \
            --tolerance 1e-4 --json "$dir/run.json" >"$dir/$how.json"
    done
    # the losses, but for the last bit: what is recomputed may be another product of the same
    # matrices; sums of activations are sent again, those of gradients are not
    jq -se '.[0] as $kept | .[1] as $again |
        all([$kept.losses, $again.losses] | transpose[]; (.[0] / .[1] - 1 | fabs) < 1e-6) and
        $again.peak_bytes < 0.9 * $kept.peak_bytes and $kept.collectives[0] == $again.collectives[0] and
        $again.collectives[1].count > $kept.collectives[1].count' "$dir/none.json" "$dir/all.json"
}

@test "a U-Net's skips jump over stages; layers that share weights in stages of their own" {
    local dir=$BATS_TEST_TMPDIR
    small() {
        ap-model --quiet --no-history "$@" | ap-coarsen --quiet --no-history --algorithm alpa --blocks 3 --eps 3 |
            jq -c --argjson b "$b" '.stages = {schedule: "1f1b", microbatches: $b, stages:
                [range(0; 3) | {blocks: [.], devices: [.], sharding: {algorithm: "data", mesh: "m=1"}}]}'
    }
    b=1 small unet --layers 2 --hidden 4 --image 16 --batch 8 | ap-rewrite --no-history >"$dir/run.json"
    jq -e 'any(.pipeline.transfers[]; .to - .from > 1) and any(.pipeline.transfers[]; .from - .to > 1)' \
        "$dir/run.json"
    runs "$dir/run.json" --steps 2
    # ALBERT's layers share their weights; a recomputed softmax's row is fused with what its gradient needs;
    # the second block ends inside a norm, whose gradient reads a scale that lies in the first one
    b=1 small albert --layers 3 --hidden 16 --heads 2 --seq 8 --vocab 32 --batch 8 --no-key-bias >"$dir/plan.json"
    for b in 1 2; do
        jq -c --argjson b "$b" '.stages.microbatches = $b' "$dir/plan.json" | ap-rewrite --no-history >"$dir/run.json"
        runs "$dir/run.json" --steps 2
    done
    jq -c 'del(.stages)' "$dir/plan.json" |
        ap-stage --no-history --cluster cpu-4 --algorithm inter-only --stages 3 --microbatches 2 --schedule 1f1b |
        ap-rewrite --no-history | jq -e '.pipeline.schedule == "1f1b"'
    # blocks by hand that send such scales against the flow of gradients
    jq -c '.graph.nodes as $n | .blocks.block_of |= [to_entries[] | $n[.key] as $x | if .value == 2 and
        $x.phase == "backward" and $x.op == "broadcast" and $n[$x.in[0]].role == "weight" then 1 else .value end]' \
        "$dir/plan.json" >"$dir/bad.json"
    refuses 3 "where the forward pass has it, and others are not where it has them: /pipeline: stage 1 waits for" \
        ap-stage --cluster cpu-4 --algorithm inter-only --stages 3 --microbatches 2 --schedule 1f1b "$dir/bad.json"
    refuses 1 "the stages depend on each other in a cycle" ap-rewrite <(jq -c '.stages.microbatches = 2' "$dir/bad.json")
    # gradients flow from later stages to earlier ones: of each microbatch nothing goes the other way behind its forward pass
    jq -e '.pipeline | .stages as $s | [.transfers[] | select(.messages == 2 and .from < .to)] | length == 2' "$dir/run.json"
}

@test "a received value has its memory from then on, though at first only a reshape reads it" {
    local dir=$BATS_TEST_TMPDIR b
    ap-model --quiet --no-history llama --layers 1 --hidden 20 --heads 2 --kv-heads 1 --vocab 32 --seq 4 --batch 4 |
        ap-coarsen --quiet --no-history --algorithm alpa --blocks 4 --eps 6 >"$dir/blocks.json"
    for b in 1 4; do # queries and keys, cut behind their products
        jq -c --argjson b $b '.stages = {schedule: "1f1b", microbatches: $b, stages:
            [range(0; 4) | {blocks: [.], devices: [.], sharding: {algorithm: "data", mesh: "m=1"}}]}' \
            "$dir/blocks.json" | ap-rewrite --no-history >"$dir/run.json"
        runs "$dir/run.json"
    done
    # rows of a split vocabulary, added up for a later stage, and once more for what is recomputed
    jq -c '.stages = {schedule: "1f1b", microbatches: 2, stages: [range(0; 4) | (. == 0) as $first |
        {blocks: [.], devices: (if $first then [0, 1] else [. + 1] end), recompute: "all",
         sharding: {algorithm: "megatron", mesh: (if $first then "m=2" else "m=1" end)}}]}' \
        "$dir/blocks.json" | ap-rewrite --no-history >"$dir/run.json"
    runs "$dir/run.json"
}

@test "schedules change the order, not the numbers; chunks of one device take turns" {
    local dir=$BATS_TEST_TMPDIR s
    for s in gpipe 1f1b; do
        three mlp 4 $s | ap-rewrite --no-history >"$dir/$s.json"
        runs "$dir/$s.json" --steps 2 >"$dir/$s.txt"
    done
    cmp "$dir/gpipe.txt" "$dir/1f1b.txt"
    # gpipe keeps all microbatches of the first stage, 1f1b as many as are in flight
    jq -se 'map(.pipeline.stages[0].slots | length) == [4, 3]' "$dir/gpipe.json" "$dir/1f1b.json"
    ap-coarsen --quiet --no-history --algorithm alpa --blocks 4 --eps 3 "$(imported gpt2l)" |
        jq -c '.stages = {schedule: "interleaved-1f1b", chunks: 2, microbatches: 2, stages: [range(0; 4) |
            {blocks: [.], devices: [. % 2], sharding: {algorithm: "data", mesh: "m=1"}}]}' |
        ap-rewrite --no-history >"$dir/chunks.json"
    jq -e '.pipeline | .n_ranks == 2 and [.stages[].lane] == [0, 1, 0, 1]' "$dir/chunks.json"
    runs "$dir/chunks.json" --steps 2
    # slots of chunks that are nearly alike leave no gaps: 12 microbatches need no more than 8
    for s in 8 12; do
        ap-model --no-history gpt --layers 6 --hidden 64 --heads 4 --seq 16 --vocab 8 --batch $s |
            ap-coarsen --quiet --no-history --algorithm layers |
            jq -c --argjson b $s '.stages = {schedule: "interleaved-1f1b", chunks: 3, microbatches: $b, stages: [range(0; 6) |
                {blocks: (if . == 0 then [0, 1] elif . == 5 then [6, 7] else [. + 1] end), devices: [. % 2],
                 sharding: {algorithm: "data", mesh: "m=1"}}]}' |
            ap-rewrite --quiet --no-history >"$dir/of$s.json"
    done
    jq -se '[.[].pipeline] | .[1].lanes[0].peak_bytes - .[0].lanes[0].peak_bytes < .[0].stages[0].slot_bytes / 8' \
        "$dir/of8.json" "$dir/of12.json"
    runs "$dir/of12.json"
    # all on one device: nothing is sent
    jq -c '.stages.chunks = 4 | .stages.stages[].devices = [0]' "$dir/chunks.json" | ap-rewrite |
        ap-exec --verify --json | jq -e '.ranks == 1 and .sent_bytes == 0 and .verify.loss_error < 1e-5'
}

@test "chunks that share weights: gradients that are summed over microbatches and stages" {
    local dir=$BATS_TEST_TMPDIR
    ap-model --quiet --no-history albert --layers 4 --hidden 16 --heads 2 --seq 8 --vocab 32 --batch 8 --no-key-bias |
        ap-coarsen --quiet --no-history --algorithm alpa --blocks 4 --eps 3 |
        jq -c '.stages = {schedule: "interleaved-1f1b", chunks: 2, microbatches: 2, stages: [range(0; 4) |
            {blocks: [.], devices: (. % 2 | [. * 2, . * 2 + 1]), sharding: {algorithm: "data", mesh: "m=2"}}]}' |
        ap-rewrite --no-history >"$dir/run.json"
    runs "$dir/run.json" --steps 2
}

@test "averages of weights lie with their weights; a loss of terms from all stages, with routers" {
    local dir=$BATS_TEST_TMPDIR b
    # two layers with a term of the loss each; the first adds an expert's output, the largest
    cat >"$dir/step.hlo" <<'HLO'
HloModule steps
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
later { a = f32[] parameter(0)  i = s32[] parameter(1)  b = f32[] parameter(2)  j = s32[] parameter(3)
  first = pred[] compare(a, b), direction=GE
  m = f32[] select(first, a, b)  k = s32[] select(first, i, j)
  ROOT t = (f32[], s32[]) tuple(m, k) }
ENTRY step {
  x = f32[8,16] parameter(0)
  w1 = f32[16,16] parameter(1)
  w2 = f32[16,16] parameter(2)
  zero = f32[] constant(0)  none = s32[] constant(0)  low = f32[] constant(-inf)
  part = f32[] constant(0.0625)
  h1 = f32[8,16] dot(x, w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  a1 = f32[8,16] tanh(h1)
  s1 = f32[8,16] multiply(a1, a1)
  t1 = f32[] reduce(s1, zero), dimensions={0,1}, to_apply=add
  id1 = s32[8,16] iota(), iota_dimension=1
  top1 = (f32[8], s32[8]) reduce(a1, id1, low, none), dimensions={1}, to_apply=later
  best1 = s32[8] get-tuple-element(top1), index=1
  all1 = s32[8,16] broadcast(best1), dimensions={0}
  is1 = pred[8,16] compare(id1, all1), direction=EQ
  one1 = f32[8,16] convert(is1)
  gate1 = f32[8,16] multiply(a1, one1)
  y1 = f32[8,16] add(a1, gate1)
  h2 = f32[8,16] dot(y1, w2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  a2 = f32[8,16] tanh(h2)
  s2 = f32[8,16] multiply(a2, a2)
  t2 = f32[] reduce(s2, zero), dimensions={0,1}, to_apply=add
  e2 = f32[8,16] multiply(s2, a2)
  err = f32[] reduce(e2, zero), dimensions={0,1}, to_apply=add
  terms = f32[] add(t1, t2)
  aux = f32[] multiply(terms, part)
  ROOT loss = f32[] add(err, aux)
}
HLO
    cat >"$dir/average.jq" <<'JQ'
# every weight gets an average: a state that only its own update reads
reduce (.graph.results | to_entries[] | select(.value.role == "weight")) as $r (.;
    (.graph.nodes | length) as $n | .graph.nodes[$r.value.alias] as $w |
    ([.graph.nodes[] | select(.op == "parameter")] | length) as $p |
    .graph.nodes += [
        {op: "parameter", name: "ema/\($w.name)", param: $p, role: "state", shape: $w.shape, phase: "update"},
        {op: "constant", name: "keep.\($n)", shape: "f32[]", value: 0.75, phase: "update"},
        {op: "broadcast", name: "keeps.\($n)", in: [$n + 1], shape: $w.shape, dimensions: [], phase: "update"},
        {op: "multiply", name: "old.\($n)", in: [$n, $n + 2], shape: $w.shape, phase: "update"},
        {op: "constant", name: "take.\($n)", shape: "f32[]", value: 0.25, phase: "update"},
        {op: "broadcast", name: "takes.\($n)", in: [$n + 4], shape: $w.shape, dimensions: [], phase: "update"},
        {op: "multiply", name: "new.\($n)", in: [$r.value.node, $n + 5], shape: $w.shape, phase: "update"},
        {op: "add", name: "average.\($n)", in: [$n + 3, $n + 6], shape: $w.shape, phase: "update"}] |
    .graph.results += [{node: ($n + 7), role: "state", alias: $n}])
JQ
    ap-import --quiet --no-history "$dir/step.hlo" |
        jq -c '(.graph.nodes[] | select(.name | test("^w[12]$"))).role = "weight"' |
        ap-grad --quiet --no-history --optimizer adam | jq -c -f "$dir/average.jq" |
        ap-coarsen --quiet --no-history --blocks 2 --eps 1 >"$dir/blocks.json"
    # weight, moments, average: all in one block
    jq -e '. as $d | [$d.graph.nodes | to_entries[] | select(.value.name | test("w[12]$")) |
        {w: .value.name[-2:], b: $d.blocks.block_of[.key]}] | group_by(.w) |
        map([length, (map(.b) | unique)]) == [[4, [0]], [4, [1]]]' "$dir/blocks.json"
    for b in 1 2 4; do
        ap-stage --no-history --stages 2 --microbatches $b --cluster cpu-4 "$dir/blocks.json" |
            ap-rewrite --no-history >"$dir/run.json"
        runs "$dir/run.json" --seed 1 --steps 3 --json |
            jq -e '.verify | .loss_error < 1e-6 and .params_error < 1e-6 and .states_error < 1e-6'
    done
}

@test "results that are parameters: an input, an old value, the new value of a state that no layer reads" {
    local f=$BATS_TEST_TMPDIR/f.json b
    ap-model gpt --layers 2 --hidden 16 --heads 2 --batch 8 --seq 8 --vocab 32 --no-history | jq -c '
        .graph.nodes as $nodes | def node($name): $nodes | map(.name) | index($name);
        node("gpt/h_0/ln_1/scale") as $first | node("gpt/h_1/ln_1/scale") as $last |
        (.graph.nodes | length) as $n | (.graph.nodes | map(select(.op == "parameter")) | length) as $p |
        node("opt_state/m/gpt/h_0/ln_1/scale") as $m |
        .graph.nodes += [.graph.nodes[$last] + {name: "target", param: $p, role: "state", phase: "update"}] |
        del(.graph.nodes[].group) |
        .graph.results |= (map(if .alias == $m then .node = $last else . end) +  # of another stage
            [{node: node("tokens"), role: "aux"}, {node: $first, role: "aux"},
            {node: $first, role: "state", alias: $n}])' >"$f"
    for b in 1 4; do
        ap-prune --no-history "$f" | ap-coarsen --no-history --blocks 2 |
            ap-stage --no-history --algorithm equal-layer --stages 2 --microbatches $b --cluster cpu-4 |
            ap-rewrite --no-history >"$f.$b"
        runs "$f.$b" --steps 3 --quiet
        # the state has its stage alone
        jq -e '[.pipeline.stages[].program.modules[].graph.nodes[] | select(.name == "target")] | length == 1' "$f.$b"
    done
}

@test "README of cmd/ap-exec/run: every device gets what it holds, once" {
    local dir=$BATS_TEST_TMPDIR
    # f32[8,4] from two devices by rows to two, by rows or both all of it, and from there to one
    printf '%s\n' 'HloModule m' 'ENTRY e {' 'x = f32[8,4] parameter(0)' 'a = f32[8,4] tanh(x)' \
        'b = f32[4,8] transpose(a), dimensions={1,0}' 'c = f32[4,8] negate(b)' \
        'ROOT d = f32[8,4] transpose(c), dimensions={1,0}' '}' | ap-import --no-history |
        jq -c '.blocks = {algorithm: "none", n: 3, objective: 0, bound: 0, unit: "bytes",
            block_of: [0, 0, 1, 1, 2]}' >"$dir/m.json"
    cut() {
        jq -c --argjson m "$1" --arg how "${2:-send-recv}" '.stages = {microbatches: 1, resharding: $how, stages: [range(0; 3) |
            {blocks: [.], devices: (if . == 0 then [0, 1] elif . == 1 then [2, 3] else [4] end),
             sharding: {algorithm: $m[.], mesh: (if . == 2 then "m=1" else "m=2" end)}}]}' "$dir/m.json" |
            ap-rewrite --no-history >"$dir/run.json"
        runs "$dir/run.json" --tolerance 0 --json >"$dir/out.json"
        jq .sent_bytes "$dir/out.json"
    }
    [ "$(cut '["data", "data", "data"]')" = 256 ] # rows to rows, rows to one: 128 bytes each
    jq -e '[.pipeline.transfers[] | [.from, .to, .messages]] == [[0, 1, 1], [1, 2, 1]]' "$dir/run.json"
    [ "$(cut '["data", "megatron", "data"]')" = 384 ] # rows to all on two, one of them to one
    # alpa, sections 6 and 8.5: each replicated tile goes once between the meshes, a half as much for two
    between() { jq -c '[.links[] | select(.[0] < 2) | .[2]] | [add, length]' "$dir/out.json"; }
    [ "$(between)" = '[256,4]' ]
    [ "$(cut '["data", "megatron", "data"]' local-allgather)" = 384 ]
    [ "$(between)" = '[128,2]' ]
    jq -e '.links | map(select(.[0] >= 2 and .[1] < 4)) == [[2, 3, 64], [3, 2, 64]]' "$dir/out.json"
    [ "$(cut '["data", "megatron", "data"]' broadcast)" = 384 ]
    [ "$(between)" = '[128,2]' ]
    jq -e '.links | map(select(.[0] >= 2 and .[1] < 4)) == [[2, 3, 128]]' "$dir/out.json"
}

@test "the section: valid, the same bytes twice, and only one kind of program" {
    local dir=$BATS_TEST_TMPDIR
    three mlp 2 1f1b >"$dir/plan.json"
    ap-rewrite --no-history "$dir/plan.json" >"$dir/one.json"
    ap-rewrite --no-history "$dir/one.json" | cmp - "$dir/one.json"
    /usr/bin/python3 tests/validate.py "$dir/one.json"
    jq -c '.program = 1' "$dir/one.json" | ap-rewrite --no-history | cmp - "$dir/one.json"
    run -0 bash -c "jq -c 'del(.stages, .blocks)' $dir/one.json | ap-rewrite --no-history | jq -c keys"
    [ "$output" = '["autopar","graph","program"]' ]
    run -0 --separate-stderr bash -c "ap-rewrite --stats $dir/plan.json | wc -c"
    jq -e '.stages == 3 and .ranks == 6 and .messages > 2' <<<"$stderr"
}

@test "what cannot be run is refused" {
    local dir=$BATS_TEST_TMPDIR
    three mlp 2 1f1b >"$dir/plan.json"
    ap-rewrite "$dir/plan.json" >"$dir/run.json"
    refuses 1 "the program is for 6 ranks, this job has 2: run it with -n 6" ap-exec -n 2 "$dir/run.json"
    refuses 1 "the program is for 6 ranks, this job has 1" ap-exec "$dir/run.json"
    refuses 1 "has no program: pipe it through ap-rewrite first" ap-exec "$dir/plan.json"
    jq '.stages.microbatches = 3' "$dir/plan.json" >"$dir/bad.json"
    refuses 1 "does not divide into 3 microbatches" ap-rewrite "$dir/bad.json"
    jq 'del(.blocks)' "$dir/plan.json" >"$dir/bad.json"
    refuses 1 'no section "blocks"' ap-rewrite "$dir/bad.json"
    jq '.sharding = {}' "$dir/plan.json" >"$dir/bad.json"
    refuses 1 "which plan is meant?" ap-rewrite "$dir/bad.json"
    three resnet 2 1f1b >"$dir/bad.json"
    refuses 1 "combines the whole batch" ap-rewrite "$dir/bad.json"
    jq '.stages.schedule = "inference"' "$dir/plan.json" >"$dir/bad.json"
    refuses 1 "inference runs forward only, and node" ap-rewrite "$dir/bad.json"
    # another graph's programs are not compared with this one
    jq --slurpfile g "$(imported gpt2l)" '.graph = $g[0].graph' "$dir/run.json" >"$dir/bad.json"
    run ap-exec -n 6 --verify --quiet "$dir/bad.json"
    [ "$status" -eq 1 ]
    [[ $output == *'not one of the section "graph"'* ]]
}

@test "broken sections are refused before anybody waits" {
    local dir=$BATS_TEST_TMPDIR i=0 text filter
    three mlp 2 1f1b | ap-rewrite --no-history >"$dir/run.json"
    while IFS='|' read -r text filter; do
        i=$((i + 1))
        jq -c "$filter" "$dir/run.json" >"$dir/bad.json"
        if cmp -s "$dir/bad.json" "$dir/run.json"; then
            echo "changes nothing: $filter"
            return 1
        fi
        run timeout 300 ap-exec "$dir/bad.json"
        [ "$status" -eq 1 ] && [[ $output == *"$text"* ]] || { echo "$filter: $status $output"; return 1; }
    done <<'END'
the stages depend on each other in a cycle|.pipeline.lanes[0].instructions |= map(select(has("send") | not))
sends the message again|.pipeline.lanes[0].instructions |= (map(select(has("send"))) + .)
receives the message again|.pipeline.lanes[1].instructions |= map(if .receive then ., . else . end)
is never received|.pipeline.lanes[2].instructions |= map(select(has("receive") | not))
the stage is not of this lane|.pipeline.lanes[0].instructions[0].run = 1
runs groups that its program does not have|.pipeline.lanes[0].instructions[0].groups[1] = 100000
has no such microbatch|.pipeline.lanes[0].instructions[0].microbatch = 2
no such transfer|(.pipeline.lanes[0].instructions[] | select(.send).send) = 9999
the transfer has no such message|(.pipeline.lanes[0].instructions[] | select(.send).message) = 2
has its end in another lane|(.pipeline.lanes[1].instructions[] | select(.receive)) |= {send: .receive, message}
has no such slot|(.pipeline.lanes[0].instructions[] | select(.slot).slot) = 7
reads a value whose memory is taken|(.pipeline.lanes[0].instructions | map(.slot == 1 and .run == 0) | rindex(true)) as $i | del(.pipeline.lanes[0].instructions[$i].slot)
its buffers and slots end at|.pipeline.lanes[1].peak_bytes += 64
whose slot ends within|.pipeline.stages[0].slots[1] = 1
expected 1 to 2, one for a microbatch|.pipeline.stages[0].slots += [0]
reads a value whose memory is taken|.pipeline.stages[0].slots[1] = .pipeline.stages[0].slots[0]
has a place already|.pipeline.lanes[0].ranks = [0, 0]
rank 5 is in no lane|.pipeline.lanes[2].ranks = [4]
is for 2 ranks, lane 0 has 1|.pipeline.lanes[0].ranks = [0] | .pipeline.n_ranks = 5 | .pipeline.lanes[1:] |= map(.ranks |= map(. - 1))
is of 2 microbatches, the pipeline of 4|.pipeline.microbatches = 4
has another shape|.pipeline.transfers[0].shape = "f32[1,1]"
messages: expected|.pipeline.transfers[0].messages = 1
expected the shape of a tensor|.pipeline.transfers[0].shape = "f32[1"
becomes a value that another stage sends|.pipeline.stages[1].params[0] = -1
comes by 0 transfers|.pipeline.stages[0] |= ((.program.modules[0].graph.nodes | map(select(.role == "input").param)[0]) as $p | .params[$p] = -1)
expected 3 integers|.pipeline.stages[0].cuts = [1]
expected groups in order|.pipeline.stages[0].cuts = [3, 2, 1]
lane|.pipeline.stages[0].lane = 3
expected an object|.pipeline.stages[0].program = []
expected an object|.pipeline.transfers[0] = 1
no stage is of this lane|.pipeline.lanes += [{ranks: [6], peak_bytes: 0, instructions: []}] | .pipeline.n_ranks = 7
is made twice|.pipeline.stages[1].results[0] = 1
another shape in another stage|.pipeline.stages[1].params[1] = 0
is there twice|.pipeline.stages[1].params[2] = 2
100000000, where the stages hold|.pipeline.stages[1].params[0] = 100000000
100000000, where the stages make|.pipeline.stages[1].results[0] = 100000000
no stage has parameter 20|.pipeline.stages[2].params[7] = 21
peak_bytes 40000000000, its buffers end at|.pipeline.stages[0].program.peak_bytes = 40000000000
END
    [ $i -eq 38 ]
}

@test "memory: what ranks take is what the buffer plan and ap-cost say" {
    local dir=$BATS_TEST_TMPDIR
    scripts/bench/memory-table --most 5 10 quick >"$dir/table"
    [ "$(grep -c ^quick "$dir/table")" -eq 4 ]
    run scripts/bench/memory-table nothing
    [ "$status" -eq 2 ]
    # a lane's arena is the price of its devices
    three gpt2l 4 1f1b | ap-cost --quiet | ap-rewrite >"$dir/run.json"
    jq -e '[.cost.devices[].memory.peak_bytes] == [.pipeline.lanes[].peak_bytes]' "$dir/run.json"
    jq -e '[.pipeline.stages[] | .slot_bytes // 0] | add > 0' "$dir/run.json"
}

@test "memory: the price that planners go by is that of the buffers, within 10 %" {
    local plan
    # weights that are gathered once, and again; sums of gradients in f32; slots
    for plan in "data f32" "data bf16" "zero2 bf16" "zero3 f32" "zero3 bf16"; do
        ap-model --no-history gpt --layers 4 --hidden 512 --heads 8 --seq 64 --batch 16 --vocab 512 --dtype "${plan#* }" |
            ap-coarsen --quiet --no-history --algorithm alpa --blocks 2 --eps 3 |
            jq -c --arg a "${plan% *}" '.stages = {schedule: "1f1b", microbatches: 4, stages: [range(0; 2) |
                {blocks: [.], devices: [2 * ., 2 * . + 1], sharding: {algorithm: $a, mesh: "m=2"}}]}' |
            ap-cost --quiet --cluster cpu-4 >"$BATS_TEST_TMPDIR/priced.json"
        jq -e 'all(.cost.devices[].memory; .summed_bytes / .peak_bytes | . > 0.9 and . < 1.1)' \
            "$BATS_TEST_TMPDIR/priced.json" || { echo "$plan"; return 1; }
    done
    # gradients that are split before they become f32 are summed whole
    ap-model --no-history gpt --layers 2 --hidden 512 --heads 8 --seq 32 --batch 16 --vocab 256 --dtype bf16 --master-weights |
        ap-coarsen --quiet --no-history --algorithm alpa --blocks 2 --eps 3 |
        ap-stage --quiet --cluster cpu-4 --stages 1 --recompute none --microbatches 4 | ap-cost --quiet |
        jq -e '.cost.devices[0].memory | .summed_bytes / .peak_bytes | . >= 1 and . < 1.1'
}

@test "memory: 16-bit gradients of a large weight are added to its sum in f32 as they are" {
    local dir=$BATS_TEST_TMPDIR
    # the weight lies in both stages: one sums its part of the gradient, and sends the sum
    ap-model --no-history gpt --layers 2 --hidden 64 --heads 4 --seq 8 --batch 16 --vocab 8000 --dtype bf16 |
        ap-coarsen --quiet --no-history --blocks 2 |
        jq -c '.stages = {schedule: "1f1b", microbatches: 4, stages: [range(0; 2) |
            {blocks: [.], devices: [2 * ., 2 * . + 1], sharding: {algorithm: "data", mesh: "m=2"}}]}' |
        ap-cost --quiet --cluster cpu-4 >"$dir/priced.json"
    # weight and product of 1.02 MB, sum of 2.05 MB: no copy of the product, which has 2.05 MB, too
    jq -e '.cost.devices[1].memory | .peak_bytes < 4.8e6 and .summed_bytes >= .peak_bytes and
           .summed_bytes < 1.2 * .peak_bytes' "$dir/priced.json"
    ap-rewrite --quiet -o "$dir/run.json" "$dir/priced.json"
    ap-exec --quiet -n 4 --steps 2 --verify "$dir/run.json"
}

@test "programs that are changed are refused with their place, or give the same numbers" {
    # by hand: make asan, scripts/bench/mutations -b build/asan
    run -0 scripts/bench/mutations -b "$AP_BUILD" "${AP_MUTATIONS:-98}"
    echo "# $output" >&3
    [[ $output =~ ^([0-9]+)\ changed\ documents:\ ([0-9]+)\ refused ]]
    [ "${BASH_REMATCH[2]}" -gt $((BASH_REMATCH[1] / 2)) ]
}

# Of the program on standard input: most elements of whole gradients that wait to be scattered at
# once, and elements that are summed over microbatches.
gradients() {
    jq -c 'def elems: capture("\\[(?<d>.*)\\]").d | split(",") | reduce .[] as $d (1; . * ($d | tonumber));
        (.pipeline.stages[0].program // .program) as $p | $p.modules[0].graph.nodes as $n |
        [$n | to_entries[] | select(.value.op == "reduce-scatter") |
            [.value.in[0], .key, ($n[.value.in[0]].shape | elems)]] as $s |
        [([range($n | length) as $i | [$s[] | select(.[0] <= $i and $i < .[1]) | .[2]] | add // 0] | max),
         ([$n[] | select(.op == "all-reduce" and $p.mesh.time and .axes == [0]) | .shape | elems] | add // 0)]'
}

@test "memory: under ZeRO-2 and 3 gradients are reduced as they come, in stages and in microbatches" {
    local dir=$BATS_TEST_TMPDIR words line most=131072 # two layers of 65536
    for words in "f32" "bf16" "f16 --loss-scale 1024" "bf16 --master-weights --cast-weights"; do
        # shellcheck disable=SC2086
        ap-model --no-history llama --layers 6 --hidden 64 --heads 4 --kv-heads 4 --ffn 256 --vocab 64 --seq 8 --batch 16 --dtype $words |
            ap-coarsen --quiet --no-history --algorithm layers >"$dir/m.json"
        for line in dp=4,zero=3,mbs=4 dp=4,zero=2,mbs=1 dp=2,pp=2,zero=3,mbs=2,recompute=full; do
            ap-stage --quiet --cluster cpu-4 --grid "$line" "$dir/m.json" | ap-cost --quiet | ap-rewrite >"$dir/run.json"
            gradients <"$dir/run.json" >"$dir/g"
            # sums have the parts of four devices, of all layers, or of two, of half of them
            jq -e ".[0] <= $most and .[1] < 110000" "$dir/g" || { echo "$words $line: $(cat "$dir/g")"; return 1; }
            jq -e '.cost.peak_bytes == ([.pipeline.lanes[].peak_bytes] | max) and
                all(.cost.devices[].memory; .summed_bytes / .peak_bytes | . > 0.85 and . < 1.15)' "$dir/run.json"
        done
        [[ $words == f16* ]] || # whose losses overflow, partitioned or not
            ap-exec --quiet -n 4 --steps 2 --verify "$dir/run.json"
        for line in "" "--microbatches 4"; do
            # shellcheck disable=SC2086
            ap-shard --quiet --mesh 4 --algorithm zero3 $line "$dir/m.json" | ap-rewrite >"$dir/run.json"
            gradients <"$dir/run.json" | jq -e ".[0] <= $most and .[1] < 110000"
        done
    done
    ap-exec --quiet -n 4 --steps 2 --verify "$dir/run.json"
}

@test "memory: blocks that run again wait for their turn, with what only they are read for" {
    # dropout's masks and the casts of scores need no gradient
    ap-model --no-history gpt --layers 6 --hidden 64 --heads 4 --vocab 64 --seq 64 --batch 8 --dropout 0.1 --dtype bf16 |
        ap-coarsen --quiet --no-history --algorithm layers |
        ap-stage --quiet --cluster cpu-4 --grid pp=2,dp=2,mbs=2,recompute=full | ap-cost --quiet |
        jq -e 'all(.cost.devices[].memory; .summed_bytes / .peak_bytes | . > 0.75)'
}
