#!/usr/bin/env bats
# shellcheck disable=SC2016,SC2154 # what jq expands; what bats assigns
# Named points of the space: the collectives that data parallelism, ZeRO and Megatron are
# known by, counted in the program, with the expected counts derived from the number of
# layers of a GPT.

load helpers

setup_file() {
    ap-import -o "$BATS_FILE_TMPDIR/gpt2l.json" testdata/models/gpt2l/gpt2l.hlo
    ap-import -o "$BATS_FILE_TMPDIR/gpt2-124m.json" testdata/models/gpt2-124m.hlo.gz
}

# layers FILE: number of transformer layers, from the names of the weights
layers() {
    jq '[.graph.nodes[].name | capture("h_(?<l>[0-9]+)/").l] | unique | length' "$1"
}

# weights FILE
weights() {
    jq '[.graph.nodes[] | select(.role == "weight")] | length' "$1"
}

# counts FILE ALGORITHM: "all-reduce N all-gather N reduce-scatter N" of the program for 4 ranks
counts() {
    ap-shard --mesh 4 --algorithm "$2" "$1" | ap-rewrite | jq -r '
        [.program.modules[0].graph.nodes[].op] as $ops
        | ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"]
        | map(. as $op | "\($op) \([$ops[] | select(. == $op)] | length)") | join(" ")'
}

# A weight each for q, k, v, output, two of the MLP; all but k have a bias; two norms with
# scale and bias: 15 a layer. Token and position table, last norm: 4.
@test "the GPTs have 15 weights a layer and 4 more" {
    for model in gpt2l gpt2-124m; do
        file=$BATS_FILE_TMPDIR/$model.json
        [ "$(weights "$file")" -eq $((15 * $(layers "$file") + 4)) ]
    done
}

@test "data: one all-reduce per weight's gradient and one for the loss" {
    for model in gpt2l gpt2-124m; do
        file=$BATS_FILE_TMPDIR/$model.json
        n=$(weights "$file")
        [ "$(counts "$file" data)" = "all-reduce $((n + 1)) all-gather 0 reduce-scatter 0 all-to-all 0 collective-permute 0" ]
    done
}

@test "zero2: each gradient reduce-scattered, each new weight gathered, once a step" {
    for model in gpt2l gpt2-124m; do
        file=$BATS_FILE_TMPDIR/$model.json
        n=$(weights "$file")
        [ "$(counts "$file" zero2)" = "all-reduce 1 all-gather $n reduce-scatter $n all-to-all 0 collective-permute 0" ]
    done
}

# Forward: every weight, the table once for itself and for the head that shares it. Backward:
# what gradients of activations need: the six matrices and two scales of a layer, the last
# scale and the head.
@test "zero3: weights gathered for forward and again for backward, gradients reduce-scattered" {
    for model in gpt2l gpt2-124m; do
        file=$BATS_FILE_TMPDIR/$model.json
        l=$(layers "$file") n=$(weights "$file")
        [ "$(counts "$file" zero3)" = "all-reduce 1 all-gather $((n + 8 * l + 2)) reduce-scatter $n all-to-all 0 collective-permute 0" ]
        # a gather that is repeated on purpose says so, for compilers would merge the two
        ap-shard --quiet --mesh 4 --algorithm zero3 "$file" | ap-rewrite | jq -e --argjson again $((8 * l + 2)) '
            [.program.modules[0].graph.nodes[] | select(.op == "all-gather")] as $gathers |
            ([$gathers[] | select(.recomputed)] | length) == $again and
            all($gathers[] | select(.recomputed); .phase != "forward")'
    done
}

# Shoeybi et al. 2019, section 3: two all-reduces in the forward and two in the backward
# pass of a layer (g after attention and MLP, f before them). Embedding by vocabulary: one;
# head by vocabulary: maximum, sum and picked logit of the softmax, and one in the backward
# pass.
@test "megatron: four all-reduces a layer, five for embedding, head and loss" {
    for model in gpt2l gpt2-124m; do
        file=$BATS_FILE_TMPDIR/$model.json
        l=$(layers "$file")
        [ "$(counts "$file" megatron)" = "all-reduce $((4 * l + 5)) all-gather 0 reduce-scatter 0 all-to-all 0 collective-permute 0" ]
    done
}

@test "a named plan that does not exist says why" {
    run --separate-stderr ap-shard --mesh 16 --algorithm data "$BATS_FILE_TMPDIR/gpt2l.json"
    [ "$status" -eq 3 ]
    [ -z "$output" ]
    [[ $stderr == *"batch 8 on 16 devices"* ]]
}

# on AXES ALGORITHM NAME...: placements of these nodes, by the names of the axes
on() {
    local mesh=$1 algorithm=$2
    shift 2
    ap-shard --no-history --quiet --mesh "$mesh" --algorithm "$algorithm" --cluster "$CLUSTERS/papers/p3x1.json" \
        "$BATS_FILE_TMPDIR/gpt2l.json" | jq -rc --args '.sharding as $s | .graph.nodes as $nodes |
        [$ARGS.positional[] as $n | $nodes[] | select(.name == $n) |
            [$s.mesh.axes, ($s.groups[.group].out[0] | split(","))] | transpose | map(join(":")) |
            sort | join(" ")] | join(" | ")' "$@"
}

@test "axes have the plan's parts by their names, wherever they stand" {
    local mesh fc="params['gpt/h_0/mlp/fc/w']" tokens="batch['tokens']" m="opt_state['m']['gpt/h_0/mlp/fc/w']"
    for mesh in dp=2,tp=4 tp=4,dp=2; do
        [ "$(on $mesh megatron "$fc" "$tokens")" = "dp:R tp:S1 | dp:S0 tp:R" ]
    done
    for mesh in data=2,model=4 model=4,data=2; do
        [ "$(on $mesh megatron-sp "$fc" "$tokens")" = "data:R model:S1 | data:S0 model:R" ]
    done
    [ "$(on 2x4 megatron "$fc" "$tokens")" = "x:R y:S1 | x:S0 y:R" ]
    # ZeRO shards over fsdp alone, and over all axes where none is called so
    [ "$(on fsdp=4,dp=2 zero3 "$fc" "$m" "$tokens")" = "dp:R fsdp:S1 | dp:R fsdp:S1 | dp:S0 fsdp:S0" ]
    [ "$(on dp=2,fsdp=4 zero1 "$fc" "$m" "$tokens")" = "dp:R fsdp:R | dp:R fsdp:S1 | dp:S0 fsdp:S0" ]
    [ "$(on dp=2,tp=4 zero3 "$fc" "$tokens")" = "dp:S1 tp:S1 | dp:S0 tp:S0" ]
    for algorithm in megatron mha-only tap; do
        refuses 3 "no axis of the mesh is for tensor parallelism" \
            ap-shard --mesh dp=8 --algorithm $algorithm "$BATS_FILE_TMPDIR/gpt2l.json"
    done
}

@test "expert: on the axis of that name alone" {
    ap-import --no-history "$(hlo moe)" >"$BATS_TEST_TMPDIR/moe.json"
    for mesh in dp=2,ep=4 expert=4,batch=2; do
        ap-shard --no-history --mesh "$mesh" --algorithm expert "$BATS_TEST_TMPDIR/moe.json" |
            jq -e '.sharding as $s | ($s.mesh.axes | map(test("^e"))) as $is_expert | [.graph.nodes[] |
                select(.name == "params[\u0027moe/h_1/moe/fc/w\u0027]") | $s.groups[.group].out[0] |
                split(",")] == [$is_expert | map(if . then "S0" else "R" end)]'
    done
}

@test "the search: of symmetric axes, the one called dp has the batch; else a message" {
    local gpt=$BATS_TEST_TMPDIR/gpt.json plain=$BATS_TEST_TMPDIR/plain.json plan=$BATS_TEST_TMPDIR/plan.json
    ap-model gpt --layers 2 --hidden 512 --heads 8 --batch 32 --seq 128 --vocab 2000 --no-history |
        ap-prune --no-history >"$gpt"
    ap-shard --no-history --mesh 2x2 --cluster "$CLUSTERS/papers/p3x1.json" "$gpt" >"$plain"
    # groups that each axis splits along their first dimension, most on the axis of the batch
    local most='[.sharding as $s | $s.groups[] | .out[]? | split(",") | to_entries[] |
        select(.value == "S0") | $s.mesh.axes[.key]] | group_by(.) | max_by(length)[0]'
    for mesh in dp=2,tp=2 tp=2,dp=2 model=2,batch=2; do
        run --separate-stderr ap-shard --no-history --mesh "$mesh" --cluster "$CLUSTERS/papers/p3x1.json" \
            -o "$plan" "$gpt"
        [ "$status" -eq 0 ]
        [ -z "$stderr" ]
        [[ $(jq -r "$most" "$plan") =~ ^(dp|batch)$ ]]
        jq -en --slurpfile a "$plain" --slurpfile b "$plan" '$a[0].sharding | .objective_sec ==
            $b[0].sharding.objective_sec and .lower_bound_sec == $b[0].sharding.lower_bound_sec'
        ap-cost --no-history "$plan" | jq -e '.cost.serial_sec == .sharding.objective_sec'
    done
    # hosts of two with a net between them: the cheapest plan stays
    local hosts=$BATS_TEST_TMPDIR/hosts.json gpt2l=$BATS_FILE_TMPDIR/gpt2l.json
    jq '.levels[0] += {size: 2, shared: false} | .levels += [{name: "net", size: 2, shared: false,
        bandwidth_bytes_per_sec: 5e9, latency_sec: 1e-4}]' "$CLUSTERS/cpu-4.json" >"$hosts"
    ap-shard --no-history --mesh 2x2 --cluster "$hosts" "$gpt2l" >"$plain"
    run --separate-stderr ap-shard --no-history --mesh dp=2,tp=2 --cluster "$hosts" -o "$plan" "$gpt2l"
    [[ $stderr == *"the batch is split over tp, not dp: the other way round the plan costs"*"% more" ]]
    jq -en --slurpfile a "$plain" --slurpfile b "$plan" \
        '$a[0].sharding.objective_sec == $b[0].sharding.objective_sec'
    [ -z "$(ap-shard --no-history --mesh tp=2,dp=2 --cluster "$hosts" -o "$plan" "$gpt2l" 2>&1)" ]
    # of other sizes
    run --separate-stderr ap-shard --no-history --mesh dp=2,tp=4 --cluster "$CLUSTERS/cpu-8.json" \
        -o "$plan" "$gpt"
    [[ $stderr == *"the batch is split over tp, not dp: this is cheaper" ]]
}

@test "a sharding by hand: layouts by name, factors by operands, named plans, choices alone" {
    needs_exec
    local dir=$BATS_TEST_TMPDIR mlp
    mlp=$(imported mlp)
    hand() { jq -c ".sharding = ($1)" "$mlp" >"$dir/hand.json"; }
    ap-shard --quiet --mesh 2x2 --cluster cpu-4 -o "$dir/full.json" "$mlp"
    while IFS=';' read -r section want; do
        hand "$section"
        ap-cost --cluster cpu-4 "$dir/hand.json" 2>"$dir/warnings" >"$dir/priced.json"
        [ ! -s "$dir/warnings" ]
        [ "$(jq -c '.sharding.groups[28] | [.choice, .in, .out]' "$dir/priced.json")" = "$want" ]
        jq -e '.sharding | .objective_sec > 0 and .peak_bytes > 0 and (.layouts | length > 0)' "$dir/priced.json"
        for f in hand priced; do
            ap-rewrite "$dir/$f.json" | ap-exec -n 4 --verify --quiet
        done
    done <<'END'
{mesh: "dp=2,tp=2", algorithm: "megatron"};[[0,2],["S0,S1","R,S0"],["S0,P"]]
{mesh: "2x2", nodes: {"dot_general.9": "S0,0:S1"}};[[0,2],["S0,S1","R,S0"],["S0,P"]]
{mesh: "2x2", nodes: {"dot_general*": "R,0:S0", "dot_general.9": "S0,0:S1"}};[[0,2],["S0,S1","R,S0"],["S0,P"]]
{mesh: "2x2", nodes: {"dot_general.9": "R,R", "dot_general.?": "S0,0:S1"}};[[0,2],["S0,S1","R,S0"],["S0,P"]]
{mesh: "4", nodes: {"dot_general.9": "1:S0"}};[[2],["S1","S0"],["P"]]
{mesh: "4", algorithm: "data", nodes: {"*fc_2/w*": "S0"}, regather: ["*fc_2/w*"]};[[0],["S0","R"],["S0"]]
END
    jq -c '.sharding |= {mesh, groups: [.groups[] | {choice}]}' "$dir/full.json" | ap-cost >"$dir/priced.json"
    [ "$(jq -c '.sharding | [.groups, .layouts, .conversions, .objective_sec]' "$dir/priced.json")" = \
        "$(jq -c '.sharding | [.groups, .layouts, .conversions, .objective_sec]' "$dir/full.json")" ]
}

@test "a sharding by hand: what is refused, with its place" {
    local dir=$BATS_TEST_TMPDIR section said
    while IFS=';' read -r section said; do
        jq -c ".sharding = ($section)" "$(imported mlp)" >"$dir/hand.json"
        refuses 1 "hand.json: /sharding$said" ap-cost --cluster cpu-4 "$dir/hand.json"
    done <<'END'
{mesh: "4"};: expected "groups", or "nodes" with layouts, or the "algorithm" of a named plan
{mesh: "four", algorithm: "data"};/mesh: 
{mesh: [2, 2], algorithm: "data"};/mesh: expected text such as "2x4" or "dp=2,tp=4", or an object with axes and shape
{mesh: "4", algorithm: "ilp"};/algorithm: "ilp" is not a named plan
{mesh: "4", node: {}, algorithm: "data"};/node: a sharding without "groups" has
{mesh: "4", nodes: {nobody: "R"}};/nodes/nobody: the graph has no such node
{mesh: "4", nodes: {"dot_general.9": "S3"}};/nodes/dot_general.9: dot_general.9: layout 'S3'
{mesh: "4", nodes: {"dot_general.9": "2:S0"}};/nodes/dot_general.9: 2:S0: expected an operand from 0 to 1
{mesh: "2x2", nodes: {"dot_general.9": "R,:S0"}};/nodes/dot_general.9: :S0: expected an operand from 0 to 1
{mesh: "2x2", nodes: {"dot_general.9": "R,4294967296:S0"}};/nodes/dot_general.9: 4294967296:S0: expected an operand from 0 to 1
{mesh: "2x2", nodes: {"dot_general.9": "R,9223372036854775808:S0"}};/nodes/dot_general.9: 9223372036854775808:S0: expected an operand from 0
{mesh: "2x2", nodes: {"dot_general.9": "R,,0:S0"}};/nodes/dot_general.9: layout ''
{mesh: "2x2", nodes: {"dot_general.9": "R,0:S0,"}};/nodes/dot_general.9: R,0:S0, has 3 placements, the mesh 2 axes
{mesh: "4", nodes: {"dot_general.9": "0:Pmax"}};/nodes/dot_general.9: no way of splitting dot_general.9 (dot) gives 0:Pmax
{mesh: "2x2", nodes: {"dot_general.9": "0:S1"}};/nodes/dot_general.9: 0:S1 has 1 placements, the mesh 2 axes
{mesh: "4", nodes: {"dot_general.9": "Pmax"}};/nodes: dot_general.9 (dot) cannot have the layout asked by 'dot_general.9': no way
{mesh: {axes: ["t", "x"], shape: [2, 2], time: "t"}, algorithm: "data"};/mesh: a plan without "groups" has no microbatch axis
{mesh: "4", nodes: {"*": "R"}, regather: [999]};/regather/0: the graph has no such node
END
}
