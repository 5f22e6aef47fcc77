#!/usr/bin/env bats
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
