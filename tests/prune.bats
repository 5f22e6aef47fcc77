#!/usr/bin/env bats
# ap-prune: what repeats in the papers' models and in JAX's graphs, and nothing else.

load helpers

# Families of a model, one a line: outer NAME [OPTION...] [-- OPTION of ap-prune...]
# The section has the head of each on a line of its own, so that jq need not read the graph.
outer() {
    local model=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        model+=("$1")
        shift
    done
    [ $# -eq 0 ] || shift
    ap-model "${model[@]}" | ap-prune "$@" |
        sed -n 's/^\({"name":.*,"labels":\[.*\]\),$/\1}/p' |
        jq -r 'select(has("parent") | not) | "\(.name) \(.labels | length) \(.weights)"'
}

small() {
    ap-model "$1" --layers 4 --hidden 32 --heads 4 --seq 16 --vocab 64 --no-history "${@:2}"
}

# The instances of every family are isomorphic, disjoint, and inside one of their parent.
sound() {
    jq -e '.graph.nodes as $g | .families.families as $all |
        def places: to_entries | map({key: (.value | tostring), value: .key}) | from_entries;
        ($all | length > 0) and all($all[];
            . as $f | .nodes[0] as $first | ($first | places) as $p |
            ([.nodes[][]] | length == (unique | length)) and
            (.parent == null or ([$all[.parent].nodes[] | places] as $up |
                all($f.nodes[]; map(tostring) as $ids |
                    any($up[]; . as $u | all($ids[]; $u[.] != null))))) and
            all(.nodes[1:][]; . as $row | places as $q |
                all(range($row | length); $g[$first[.]] as $a | $g[$row[.]] as $b |
                    ([$a, $b] | map([.op, .shape, .phase, .role, .value]) | .[0] == .[1]) and
                    [$a.in[]? | $p[tostring]] == [$b.in[]? | $q[tostring]])))' "$1" >/dev/null
}

@test "prune: tap §2.3.3, §6.3.1: folding T5-large leaves 3^6 = 729 of 3^1015 plans for an encoder block" {
    doc=$BATS_TEST_TMPDIR/t5.json
    ap-model t5-large | ap-prune -o "$doc"
    run jq -c '.graph.nodes as $g | [$g[] | select(.role == "weight")] as $all |
        [.families.families[] | select(.name | test("coder/block_\\*$")) | .nodes[0] |
            map($g[.] | select(.role == "weight" and (.shape | test(","))))] |
        [($all | length), map(length), map(pow(3; length))]' "$doc"
    shows "weights, matrices of a decoder's and an encoder's block, plans of both: $output (1015, 6, 729)"
    [ "$output" = '[1015,[10,6],[59049,729]]' ]
}

@test "prune: tap §4.2: of T5-large's 1015 weights 24 x (16 + 26) are in blocks" {
    run outer t5-large -- --min-duplicate 3
    [ "$output" = "t5/decoder/block_* 24 26
t5/encoder/block_* 24 16" ]
    stats=$(ap-model t5-large | ap-prune --stats --min-duplicate 3 2>&1 >/dev/null)
    [ "$(jq -c '[.weights, .weights_inside]' <<<"$stats")" = "[1015,$((24 * (16 + 26)))]" ]
}

# Encoder block, decoder block, what is left of the encoder (position, norm), of the decoder
# (likewise), and the shared embedding; from 2 instances on, position and norm are families
# of the two. 25 is too much for the blocks.
@test "prune: tap §6.2.1: T5-large has 5 distinct blocks, at thresholds from 2 to 24" {
    doc=$BATS_TEST_TMPDIR/t5.json
    ap-model t5-large -o "$doc"
    for n in 2 3 24 25; do
        run jq .distinct < <(ap-prune --min-duplicate $n --stats "$doc" 2>&1 >/dev/null)
        shows "$n copies and more: $output distinct blocks (5, up to 24)"
        if [ $n -le 24 ]; then [ "$output" -eq 5 ]; else [ "$output" -ne 5 ]; fi
    done
    # no families at all: one block
    [ "$(ap-prune --algorithm none --stats "$doc" 2>&1 >/dev/null | jq .distinct)" -eq 1 ]
}

# Towers are counted apart: CLIP has 12 layers in each of two, T5 and Switch 24 and 15 in
# encoder and decoder. V-MoE's 24 layers are 12 pairs, one without and one with experts. WideNet's and
# ALBERT's layers share their weights, which so belong to none.
@test "prune: tap table 1: the multiplicities of transformers" {
    while read -r model want; do
        got=$(outer "$model" -- --min-duplicate 3 | tr '\n' ';')
        shows "$model: name, copies and weights of families: $got"
        [ "$got" = "$want" ] || { echo "$model: $got, expected $want"; return 1; }
    done <<'END'
clip-base clip/text/layer_* 12 16;clip/visual/encoder/layer_* 12 16;
widenet-huge widenet/encoder/layer_* 32 4;
vit-huge vit/encoder/layer_* 32 16;
v-moe-large v_moe/encoder/layer_* 12 33;
wav2vec2-large wav2vec2/layer_* 24 16;
bert-large bert/encoder/layer_* 24 16;
t5-large t5/decoder/block_* 24 26;t5/encoder/block_* 24 16;
gpt3-175b gpt/h_* 96 16;
switch-c switch/decoder/block_* 15 14;switch/encoder/block_* 15 9;
END
}

# TAP counts scopes of the same operators, of whatever shapes; ours must be equal. Of
# ResNet50's 50 layers the 36 convolutions in the 12 units after the first of each stage are
# in families; the first units' 12, the stem and the classifier are what is left. Every one
# of wav2vec 2.0's 7 convolutions has other shapes, if only of its sequence.
@test "prune: tap table 1: the multiplicities of convolutions" {
    doc=$BATS_TEST_TMPDIR/resnet.json
    ap-model resnet50 | ap-prune -o "$doc"
    run jq -c '[.families.families[] | select(.name | test("block_\\*$")) |
        [(.labels | length), .weights]]' "$doc"
    [ "$output" = '[[2,9],[3,9],[5,9],[2,9]]' ]
    layers() { # that hold a filter, shortcuts apart, by whether they are in a family
        jq --argjson inside "$1" '([.families.families[].nodes[][]] | unique) as $in |
            [.graph.nodes | to_entries[] | select(.value.role == "weight" and
                (.value.shape | test(",")) and (.value.name | test("shortcut") | not)) |
                .key as $k | ($in | bsearch($k)) >= 0 | select(. == $inside)] | length' "$doc"
    }
    [ $((3 * (2 + 3 + 5 + 2) + 3 * 4 + 2)) -eq 50 ]
    shows "resnet50: layers in families, and others: $(layers true) + $(layers false) (50)"
    [ $(($(layers true) + $(layers false))) -eq 50 ]
    [ "$(layers true)" -ge 36 ]
    ap-model wav2vec2-large | ap-prune -o "$doc"
    jq -e '[.graph.nodes[] | select(.op == "convolution" and .phase == "forward" and
        (.scope | test("/conv_"))) | .shape] | length == 7 and (unique | length) == 7' "$doc"
    jq -e '.graph.nodes as $g | all(.families.families[].nodes[][];
        $g[.] | .op != "convolution")' "$doc"
}

@test "prune: what depends on constants alone, outside of the layers, is listed as trimmed" {
    ap-prune -o "$BATS_TEST_TMPDIR/gpt.json" "$(imported gpt2l)"
    jq -e '([.families.families[].nodes[][]] | unique) as $in | [foreach .graph.nodes[] as $x ({v: []};
        .v as $v | .v += [$x.op != "parameter" and all(($x.in // [])[]; $v[.])]; .v[-1])] | to_entries |
        map(select(.value).key) - $in' "$BATS_TEST_TMPDIR/gpt.json" >"$BATS_TEST_TMPDIR/constant"
    jq -e --slurpfile want "$BATS_TEST_TMPDIR/constant" '.families.trimmed == $want[0] and
        (.families.trimmed | length) > 50' "$BATS_TEST_TMPDIR/gpt.json"
}

@test "prune: layers of JAX's graphs" {
    while read -r model want; do
        got=$(ap-prune "$(imported "$model")" | jq -r '[.families.families[] |
            select(has("parent") | not) | "\(.name) \(.labels | length) \(.weights)"] |
            join(";")')
        [ "$got" = "$want" ] || { echo "$model: $got, expected $want"; return 1; }
    done <<'END'
gpt2l gpt/h_* 2 15
scan_gpt gpt/layers/* 2 15
bert bert/encoder/layer_* 2 15;bert/*s/ln 2 2
t5 t5/decoder/block_* 2 13;t5/encoder/block_* 2 8
gpt2-124m gpt/h_* 12 15
END
}

@test "prune: layers of alternating kinds repeat as pairs, and what they share inside" {
    small moe | ap-prune -o "$BATS_TEST_TMPDIR/moe.json"
    run jq -c '.families.families[] | [.name, .labels[0], .labels[-1], (.labels | length), .parent]' \
        "$BATS_TEST_TMPDIR/moe.json"
    [ "$output" = '["moe/h_*","moe/h_0+h_1","moe/h_2+h_3",2,null]
["moe/h_*/attn","moe/h_0/attn","moe/h_3/attn",4,0]
["moe/h_*/ln_*","moe/h_0/ln_1","moe/h_3/ln_2",8,0]
["moe/h_*/attn/*","moe/h_0/attn/q","moe/h_3/attn/o",16,1]' ]
}

@test "prune: families are isomorphic, disjoint and nested" {
    for m in gpt moe switch resnet unet; do
        case $m in
        unet) args=(unet --image 32 --batch 2) ;;
        resnet) args=(resnet50 --image 32 --batch 2) ;;
        switch) args=(switch --layers 2 --hidden 32 --heads 4 --seq 16 --vocab 64 --experts 4) ;;
        moe) args=(moe --layers 4 --hidden 32 --heads 4 --seq 16 --vocab 64 --experts 4) ;;
        *) args=(gpt --layers 4 --hidden 32 --heads 4 --seq 16 --vocab 64) ;;
        esac
        ap-model "${args[@]}" | ap-prune -o "$BATS_TEST_TMPDIR/$m.json"
        sound "$BATS_TEST_TMPDIR/$m.json" || { echo "$m"; return 1; }
    done
    jq -e '.families.families | .[0].name == "gpt/h_*" and all(.[1:][]; .parent == 0) and
        map(.name) == ["gpt/h_*", "gpt/h_*/ln_*", "gpt/h_*/attn/*"]' "$BATS_TEST_TMPDIR/gpt.json"
}

# The scope of an update, a parameter or a constant is never needed, nor believed.
@test "prune: parameters, constants and updates go where their data goes" {
    small gpt | ap-prune --no-history | jq -c .families >"$BATS_TEST_TMPDIR/named"
    small gpt | jq -c '(.graph.nodes[] | select(.phase == "update" or .op == "parameter" or
        .op == "constant") | .scope) = "gpt/h_0"' | ap-prune --no-history |
        jq -c .families >"$BATS_TEST_TMPDIR/lied"
    jq -c 'del(.distinct)' "$BATS_TEST_TMPDIR/named" >"$BATS_TEST_TMPDIR/want"
    diff "$BATS_TEST_TMPDIR/want" <(jq -c 'del(.distinct)' "$BATS_TEST_TMPDIR/lied")
    jq -e '.families[0].labels | length == 4' "$BATS_TEST_TMPDIR/named"
}

# The sum of all weights' squares, without a name, reads the weights of all layers.
@test "prune: a penalty on the weights leaves them in their layers" {
    small gpt | jq -c '
        (first(.graph.nodes | to_entries[] | select(.value.op == "constant" and .value.shape == "f32[]" and .value.value == 0)).key) as $zero |
        (first(.graph.reducers | to_entries[] | select(.value.kind == "sum")).key) as $sum |
        [.graph.nodes | to_entries[] | select(.value.role == "weight")] as $w |
        reduce $w[] as $x (.last = $zero;
            (.graph.nodes | length) as $n |
            .graph.nodes += [
                {op: "multiply", name: "sq\($n)", in: [$x.key, $x.key], shape: $x.value.shape, phase: "forward"},
                {op: "reduce", name: "s\($n)", in: [$n, $zero], shape: "f32[]", to_apply: $sum, phase: "forward",
                 dimensions: [range([$x.value.shape | scan("[0-9]+")] | length - 1)]},
                {op: "add", name: "a\($n)", in: [.last, $n + 1], shape: "f32[]", phase: "forward"}] |
            .last = $n + 2) |
        .graph.results += [{node: .last, role: "aux"}] | del(.last)' >"$BATS_TEST_TMPDIR/penalty.json"
    ap-prune -o "$BATS_TEST_TMPDIR/out.json" "$BATS_TEST_TMPDIR/penalty.json"
    jq -e '.families.families[0] | .name == "gpt/h_*" and .weights == 16 and
        (.labels | length == 4)' "$BATS_TEST_TMPDIR/out.json"
}

@test "prune: same names, other shapes: no family" {
    [ -z "$(outer mlp --layers 3 --hidden 64 -- --min-nodes 15)" ]
    # of 8 hidden layers the first and the last have shapes of their own
    [ "$(outer mlp --layers 8 --hidden 64 -- --min-nodes 15)" = "mlp/fc_* 6 2" ]
}

# One layer of four reads an operand twice, or its products the other way round, or has its
# activation under the name of another layer.
@test "prune: same names and shapes, other wiring: no wrong family" {
    small gpt | jq -c . >"$BATS_TEST_TMPDIR/gpt.json"
    n=0
    while IFS= read -r change; do
        n=$((n + 1))
        jq -c ".graph.nodes[] |= ($change)" "$BATS_TEST_TMPDIR/gpt.json" >"$BATS_TEST_TMPDIR/lie.json"
        ! cmp -s "$BATS_TEST_TMPDIR/gpt.json" "$BATS_TEST_TMPDIR/lie.json" ||
            { echo "changes nothing: $change"; return 1; }
        ap-prune --no-history -o "$BATS_TEST_TMPDIR/out.json" "$BATS_TEST_TMPDIR/lie.json"
        sound "$BATS_TEST_TMPDIR/out.json" || { echo "$change"; return 1; }
        jq -e '.families.families[0] | .name == "gpt/h_*" and (.labels | length >= 2) and
            .weights == 16' "$BATS_TEST_TMPDIR/out.json" || { echo "$change"; return 1; }
    done <<'END'
if .scope == "gpt/h_2" and .op == "add" then .in |= [.[0], .[0]] else . end
if (.scope // "" | startswith("gpt/h_2")) and .op == "multiply" then .in |= reverse else . end
if .op == "multiply" then .scope |= ({"gpt/h_1/mlp/act": "gpt/h_2/mlp/act", "gpt/h_2/mlp/act": "gpt/h_1/mlp/act"}[. // ""] // .) else . end
END
    [ $n -eq 3 ]
}

@test "prune: options" {
    # flat from the outside in; the same outer families
    small gpt | ap-prune --depth-order shallow | jq -e '.families.families | length == 1 and
        (.[0].labels | length == 4)'
    # too few layers: their parts repeat often enough
    small gpt | ap-prune --min-duplicate 5 | jq -e '.families.families | length > 0 and
        all(.[]; .labels | length >= 5) and all(.[]; .name != "gpt/h_*")'
    # scopes of two parts at most: layers, nothing inside
    small gpt | ap-prune --max-depth 2 | jq -e '.families.families | map(.name) == ["gpt/h_*"]'
    small gpt | ap-prune --min-nodes 100 | jq -e '.families.families |
        length > 0 and all(.[].nodes[]; length >= 100)'
    small gpt | ap-prune --algorithm none | jq -e '.families.families == [] and
        .families.algorithm == "none"'
    refuses 2 min-duplicate ap-prune --min-duplicate 1 /dev/null
    refuses 2 algorithm ap-prune --algorithm magic /dev/null
    refuses 2 '--max-depth is not for structure' ap-prune --algorithm structure --max-depth 2 /dev/null
    refuses 2 '--depth-order is not for structure' \
        ap-prune --algorithm structure --depth-order shallow /dev/null
    refuses 2 '--min-nodes is not for none' ap-prune --algorithm none --min-nodes 9 /dev/null
    refuses 1 graph ap-prune <<<'{"autopar":1}'
}

@test "prune: the same bytes twice, other sections as they were" {
    doc=$BATS_TEST_TMPDIR/doc.json
    small gpt | jq -c '."x-mine" = {"a": [1.50, 2e3]}' >"$doc"
    ap-prune --no-history "$doc" >"$BATS_TEST_TMPDIR/once.json"
    ap-prune --no-history "$doc" | cmp - "$BATS_TEST_TMPDIR/once.json"
    ap-prune --no-history "$BATS_TEST_TMPDIR/once.json" | cmp - "$BATS_TEST_TMPDIR/once.json"
    diff <(jq -S 'del(.families)' "$BATS_TEST_TMPDIR/once.json") <(jq -S . "$doc")
}

@test "prune: a table of what graphs repeat" {
    run scripts/bench/families-table "$(hlo gpt2l)" "$(imported mlp)"
    echo "$output"
    [ "$status" -eq 0 ]
    [[ $output == *"    gpt/h_* 2 x 741"* && $output == *mlp* ]]
    run scripts/bench/families-table README.md
    [ "$status" -eq 1 ]
}

@test "README of cmd/ap-prune: families of a GPT of four layers, and of a mixture of experts" {
    families() { ap-prune "$@" | jq -c '[.families.families[] |
        [.name, .parent // -1, (.nodes | length), (.nodes[0] | length), .weights]]'; }
    gpt() { ap-model gpt --layers 4 --hidden 32 --heads 4 --seq 16 --vocab 64; }
    [ "$(gpt | families)" = '[["gpt/h_*",-1,4,746,16],["gpt/h_*/ln_*",0,8,115,2],["gpt/h_*/attn/*",0,16,69,2]]' ]
    [ "$(gpt | families --algorithm structure)" = \
        '[["repeat_0",-1,4,746,16],["repeat_1",0,16,69,2],["repeat_2",0,8,110,2]]' ]
    [ "$(gpt | families --depth-order shallow)" = '[["gpt/h_*",-1,4,746,16]]' ]
    ap-model moe --layers 4 --hidden 32 --heads 4 --seq 16 --vocab 64 --experts 4 | ap-prune |
        jq -e '.families.families[0] | .labels == ["moe/h_0+h_1", "moe/h_2+h_3"] and .weights == 33'
}
