#!/usr/bin/env bats
# ap-prune --algorithm structure: what scope finds by names, it finds without them.

load helpers

# A document without names and scopes: strip FILE.
strip_names() {
    sed -E 's/"scope":"[^"]*",?//g; s/"name":"[^"]*"/"name":"x"/g' "$1"
}

# How the classes of weights compare: relation FILE, structure without names to scope.
relation() {
    strip_names "$1" | ap-prune --no-history --algorithm structure -o "$1.structure" &&
        ap-prune --no-history -o "$1.scope" "$1" &&
        /usr/bin/python3 tests/weight_classes.py "$1.structure" "$1.scope"
}

# Reads lines "NAME [OPTION...]" of ap-model's models.
alike() {
    local args got doc=$BATS_TEST_TMPDIR/model.json
    while read -r args; do
        ap-model --no-history -o "$doc" $args || return
        got=$(relation "$doc") || return
        [ "$got" = same ] || { echo "$args: $got"; return 1; }
    done
}

# Where layers of two kinds take turns, the number of layers is even.
@test "structure: sees the classes of weights that scope sees, without any name" {
    alike <<'END'
mlp --layers 5
gpt --layers 2
gpt-350m --layers 4
gpt3-350m --layers 5
gpt2-124m --layers 3
moe-380m --layers 4
moe --layers 6
m6-moe-100b --layers 4
bert-base --layers 3
bert-large --layers 4
dnabert --layers 4
albert-base --layers 4
t5-base --layers 4
t5-large --layers 3
switch-base --layers 4
vit-base --layers 4
v-moe-large --layers 4
widenet-huge --layers 4
clip-base --layers 3
wav2vec2-base --layers 3
wav2vec2-large --layers 4
END
}

# Its router has the shape of the heads' matrices, and by names all four are one class of dense
# layers; without names queries and router are one, keys and values another.
@test "structure: tells more weights of one shape apart than names do" {
    ap-model --no-history -o "$BATS_TEST_TMPDIR/m.json" switch-c --layers 3
    [ "$(relation "$BATS_TEST_TMPDIR/m.json" | tail -n 1)" = finer ]
}

@test "structure: the same on convolutions and the papers' small models" {
    alike <<'END'
resnet
resnet50
resnet152-100k
wresnet-1b
vgg19-4.2b
alexnet
cnn
unet-33m
rannc-mlp
tofu-mlp4
tofu-cnn5-6
END
}

@test "structure: the same on JAX's and PyTorch's graphs" {
    local m got want doc
    for m in bert ff gpt2l gpt2l_bf16 gpt2l_fwd mlp mlp_fwd moe moe_fwd resnet resnet_fwd \
        scan_gpt scan_mlp lstm t5 t5_fwd torch_gpt torch_resnet onnx_gpt onnx_resnet; do
        want=same
        case $m in
        torch_* | onnx_*) doc=$BATS_FILE_TMPDIR/$m.json
            [ $m != torch_resnet ] || want=coarser # norms of equal width, with their statistics
            ap-import --quiet --no-history -o "$doc" "$MODELS/$m"/model.* ;;
        lstm) want=coarser doc=$(imported "$m") ;; # names of steps come before those of layers
        ff) want=coarser doc=$(imported "$m") ;;   # by names the last layer is like no other
        *) doc=$(imported "$m") ;;
        esac
        got=$(relation "$doc")
        [ "$(tail -n 1 <<<"$got")" = $want ] || { echo "$m: $got"; return 1; }
    done
}

# "family: nodes of all instances" of a document
families() { jq -c '[.families.families[].nodes]' "$1"; }

@test "structure: scopes that lie change nothing, and mislead scope to no wrong family" {
    local doc=$BATS_TEST_TMPDIR/gpt.json lies=$BATS_TEST_TMPDIR/lies.json
    ap-model --no-history -o "$doc" gpt2-124m --layers 4
    # equal names for what has other shapes and wiring: every node's scope is another's
    jq -c '.graph.nodes |= (map(.scope) as $s | to_entries |
        map(.value + {scope: $s[(.key * 7 + 3) % ($s | length)]}))' "$doc" >"$lies"
    ap-prune --algorithm structure "$doc" -o "$doc.out"
    ap-prune --algorithm structure "$lies" -o "$lies.out"
    [ "$(families "$doc.out" | wc -c)" -gt 1000 ]
    diff <(families "$doc.out") <(families "$lies.out")
    ap-prune "$lies" -o "$lies.scope"
    # stages of convolutions: one name, other shapes
    ap-model --no-history vgg19-4.2b | sed -E 's/stage_[0-9]/stage_0/g' >"$lies"
    for a in scope structure; do
        ap-prune --algorithm $a "$lies" | jq -e '.graph.nodes as $n |
            all(.families.families[].nodes; transpose |
                all(map($n[.] | [.op, .shape]) | unique | length == 1))'
    done
}

@test "structure: a layer that is wired otherwise stands for no other where it differs" {
    local doc=$BATS_TEST_TMPDIR/gpt.json
    # the first subtraction of layer 1 has its operands exchanged
    ap-model --no-history gpt2-124m --layers 4 | jq -c '.minus = [.graph.nodes |
        to_entries[] | select(.value.op == "subtract" and .value.phase == "forward" and
            (.value.scope | test("h_./ln_1"))) | .key] |
        .graph.nodes[.minus[1]].in |= reverse' >"$doc"
    [ "$(jq -c '.minus | length' "$doc")" -eq 4 ]
    for a in scope structure; do
        ap-prune --algorithm $a "$doc" | jq -e '.minus as [$a, $odd, $b] |
            [.families.families[].nodes | transpose[]] |
            length > 500 and all(index($odd) == null or
                (index($a) == null and index($b) == null))' ||
            { echo "$a takes $(jq -c .minus "$doc") for alike"; return 1; }
    done
}

@test "structure: whole layers, from the first to the last" {
    run bash -c "ap-model gpt2-124m | ap-prune --algorithm structure --stats -o '$BATS_TEST_TMPDIR/g' 2>&1 |
        jq -c '[.instances, .weights_inside]'"
    [ "$output" = '[12,192]' ]
    jq -e '.families.algorithm == "structure" and (.families.families[0].nodes[0] | length) > 700' \
        "$BATS_TEST_TMPDIR/g"
}

@test "structure: the same bytes twice, and thresholds hold" {
    local doc=$BATS_TEST_TMPDIR/m.json
    ap-model --no-history -o "$doc" resnet50
    ap-prune --no-history --algorithm structure "$doc" -o "$doc.1"
    ap-prune --no-history --algorithm structure "$doc" -o "$doc.2"
    cmp "$doc.1" "$doc.2"
    ap-prune --algorithm structure --min-duplicate 4 --min-nodes 90 "$doc" | jq -e '
        [.families.families[].nodes] | length > 0 and
        all(length >= 4 and (.[0] | length) >= 90)'
}

@test "structure: 76 000 nodes and more are no matter (times: make bench)" {
    ap-model gpt3-175b --layers 105 | ap-prune --algorithm structure --stats -o /dev/null 2>&1 |
        jq -e '.nodes > 76000 and .prune_sec < 10 and .instances == 105'
}
