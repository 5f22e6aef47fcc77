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

# Reads lines "RELATION NAME [OPTION...]" of ap-model's models.
relations() {
    local want args got doc=$BATS_TEST_TMPDIR/model.json
    while read -r want args; do
        ap-model --no-history -o "$doc" $args || return
        got=$(relation "$doc") || return
        [ "$got" = "$want" ] || { echo "$args: $got, expected $want"; return 1; }
    done
}

@test "structure: sees the classes of weights that scope sees, without any name" {
    relations <<'END'
same mlp --layers 5
same rannc-mlp
same tofu-mlp4
same tofu-cnn5-6
same gpt-350m --layers 4
same gpt3-350m --layers 5
same gpt2-124m --layers 3
same m6-moe-100b --layers 4
same bert-base --layers 3
same dnabert --layers 4
same albert-base --layers 4
same vit-base --layers 4
same widenet-huge --layers 4
same clip-base --layers 3
same t5-base --layers 4
same vgg19-4.2b
same resnet50
same wresnet-1b
END
}

# Names say less: layers with and without experts have the same attention, and the norms of
# one level are alike.
@test "structure: sees more than scope where names hide what is alike" {
    relations <<'END'
coarser moe-380m --layers 4
coarser v-moe-large --layers 4
coarser switch-base --layers 4
coarser t5-large --layers 3
coarser unet-33m
coarser wav2vec2-base --layers 3
END
}

# ff: scope leaves out the last layer, which has one operator fewer. moe: scope makes families
# of attention and norms (the last norm too), structure of layers. resnet of PyTorch: norms.
@test "structure: the same on JAX's and PyTorch's graphs" {
    local m want got doc
    for m in bert ff gpt2l gpt2l_bf16 gpt2l_fwd mlp mlp_fwd moe resnet resnet_fwd scan_gpt \
        scan_mlp t5 t5_fwd torch_gpt torch_resnet; do
        case $m in
        ff | torch_resnet) want=coarser ;;
        moe) want=finer ;;
        *) want=same ;;
        esac
        case $m in
        torch_*) doc=$BATS_FILE_TMPDIR/$m.json
            ap-import --quiet --no-history -o "$doc" "$MODELS/$m/model.onnx" ;;
        *) doc=$(imported "$m") ;;
        esac
        got=$(relation "$doc")
        [ "$got" = "$want" ] || { echo "$m: $got, expected $want"; return 1; }
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

@test "structure: a second is enough for 76 000 nodes and more" {
    ap-model gpt3-175b --layers 105 | ap-prune --algorithm structure --stats -o /dev/null 2>&1 |
        jq -e '.nodes > 76000 and .prune_sec < 1 and .instances == 105'
}
