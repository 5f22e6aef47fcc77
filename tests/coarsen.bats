#!/usr/bin/env bats
# ap-coarsen: blocks that hold, Alpa's clustering, what is refused.

load helpers

# Document of ap-model, made once: model NAME [OPTION...]
model() {
    local f
    f=$BATS_FILE_TMPDIR/$(tr -c 'a-z0-9\n' _ <<<"$*").json
    [ -s "$f" ] || ap-model --no-history -o "$f" "$@" || return
    echo "$f"
}

# Small sizes of every family.
families() {
    cat <<'END'
mlp --layers 4 --hidden 64
gpt --layers 2 --hidden 64 --heads 2 --seq 32 --vocab 256
bert --layers 2 --hidden 64 --heads 2 --seq 32 --vocab 256
albert --layers 3 --hidden 64 --heads 2 --seq 32 --vocab 256
t5 --layers 2 --hidden 64 --heads 2 --seq 32 --vocab 256
moe --layers 2 --hidden 64 --heads 2 --seq 32 --experts 4 --vocab 256
switch --layers 2 --hidden 64 --heads 2 --seq 32 --experts 4 --vocab 256
vit --layers 2 --hidden 64 --heads 2
widenet --layers 2 --hidden 64 --heads 2
clip --layers 2 --hidden 64 --heads 2 --vocab 256
wav2vec2 --layers 4 --hidden 256 --heads 4
resnet
vgg19
alexnet
unet
END
}

# Says what is wrong with the blocks of a document: forward edges go forward, backward edges
# backward (also of what is made of weights alone), every block has an operator, and sums count
# each node once.
holds() {
    jq -e '.graph.nodes as $n | .blocks as $b | $b.block_of as $of |
        def inner: ($n[.].in // [] | length) > 0;
        # made of inputs, in id order
        (reduce range($n | length) as $i ([]; . + [
            if $n[$i].op == "parameter" then $n[$i].role == "input"
            else . as $made | any($n[$i].in // [] | .[]; $made[.]) end])) as $made |
        [range($n | length) as $v | $n[$v].in // [] | .[] | [., $v]
            | select(($made[.[0]] or $n[.[0]].phase == "backward") and (.[0] | inner))
            | select($n[.[0]].phase == $n[.[1]].phase)
            | select(if $n[.[1]].phase == "forward" then $of[.[0]] > $of[.[1]]
                     elif $n[.[1]].phase == "backward" then $of[.[0]] < $of[.[1]]
                     else false end)] == [] and
        ([$b.blocks[].nodes[]] | add) == ($n | length) and
        ($of | unique) == [range($b.n)] and
        ($b.blocks | length) == $b.n and
        all($b.blocks[]; .nodes.forward > 0)' "$1" >/dev/null
}

@test "coarsen: blocks hold on every family and on the JAX graphs, both costs" {
    out=$BATS_TEST_TMPDIR/out.json
    while read -r args; do
        doc=$(model $args)
        ap-coarsen -o "$out" "$doc"
        ap-coarsen --cluster-cost optimized --blocks 3 -o /dev/null "$doc"
        [ "$(jq .blocks.n "$out")" -ge 2 ] || { echo "$args: one block"; return 1; }
    done < <(families)
    for m in mlp bert ff gpt2l gpt2l_bf16 moe resnet scan_gpt scan_mlp lstm t5 mlp_fwd gpt2l_fwd \
        t5_fwd; do
        ap-coarsen --no-history -o "$out" "$(imported $m)"
        ap-coarsen --cluster-cost optimized --blocks 3 -o /dev/null "$(imported $m)"
    done
}

@test "coarsen: the edges, counted outside, go the right way" {
    for m in gpt2l scan_gpt ff moe; do
        for n in auto 2 4; do
            ap-coarsen --cluster-cost optimized --blocks $n -o "$BATS_TEST_TMPDIR/$m.json" \
                "$(imported $m)"
            holds "$BATS_TEST_TMPDIR/$m.json" || { echo "$m $n"; return 1; }
        done
    done
}

@test "coarsen: every block's backward pass has twice the FLOPs of its forward pass" {
    # the first product of a net has no gradient of its input, so it is not looked at
    for m in t5 bert gpt2l; do
        ap-coarsen "$(imported $m)" | jq -e '.blocks.blocks | length >= 3 and
            all(.[1:][] | .flops; (.backward - 2 * .forward | fabs) < 0.02 * .forward)'
    done
    ap-coarsen --blocks 6 "$(model gpt --layers 6 --hidden 64 --heads 2 --seq 32)" |
        jq -e 'all(.blocks.blocks[] | .flops; .backward == 2 * .forward)'
}

@test "coarsen: a train step is cut where its forward pass alone is" {
    for m in gpt2l moe t5; do
        cuts=()
        for d in $m ${m}_fwd; do
            cuts+=("$(ap-coarsen "$(imported $d)" |
                jq -c '[.blocks.blocks[] | [.in_bytes, .out_bytes, .flops.forward]]')")
        done
        [ "${cuts[0]}" = "${cuts[1]}" ] || { printf '%s\n' "${cuts[@]}"; return 1; }
    done
}

@test "coarsen: a step without an update has blocks, and a gradient lies where it is summed" {
    needs_exec
    ap-import --quiet "$MODELS/torch_gpt/model.hlo" | ap-coarsen --blocks 2 |
        ap-stage --cluster cpu-4 --stages 2 --microbatches 2 | ap-rewrite |
        ap-exec -n 4 --seed 1 --int-range 10 --steps 1 --verify --quiet
}

@test "coarsen: no name, scope or order of the sections matters" {
    doc=$(imported gpt2l)
    jq -c '.graph.nodes |= (to_entries | map(.value + {name: "n\(.key)"} | del(.scope)))' \
        "$doc" >"$BATS_TEST_TMPDIR/bare.json"
    diff <(ap-coarsen "$doc" | jq -c .blocks) \
        <(ap-coarsen "$BATS_TEST_TMPDIR/bare.json" | jq -c .blocks)
}

@test "coarsen: --cut modules: layers begin with a module" {
    local dir=$BATS_TEST_TMPDIR
    ap-model --forward --layers 2 --hidden 8 mlp |
        jq -c '.graph.nodes |= (to_entries | map(.value + {scope: ["", "a", "a", "a/b", "a/c", "d", "d"][.key / 6 | floor]}))' >"$dir/tiny.json"
    ap-coarsen --cut modules --balance count --eps 2 --blocks 2 "$dir/tiny.json" >"$dir/two"
    jq -e '.blocks.block_of as $block | [.graph.nodes | to_entries[]
            | select($block[.key] == 1 and (.value.op | IN("dot", "add", "maximum", "subtract"))) | .value.scope][0]
        | IN("a", "a/b", "a/c", "d")' "$dir/two"
    refuses 2 '--cut is for alpa, not for rhino' ap-coarsen --algorithm rhino --cut modules "$dir/tiny.json"
}

@test "coarsen: the objective is the most that a block receives" {
    ap-coarsen --blocks 4 "$(model gpt --layers 6 --hidden 64 --heads 2 --seq 32)" |
        jq -e '.blocks | .unit == "bytes" and .bound == .objective and .n == 4 and
            .objective == ([.blocks[].in_bytes] | max)'
}

@test "coarsen: none is one block without an objective" {
    ap-coarsen --algorithm none "$(imported mlp)" | jq -e '.blocks | .n == 1 and
        (has("objective") | not) and (.block_of | unique) == [0]'
    refuses 2 'none makes one block' ap-coarsen --algorithm none --blocks 2 \
        "$(imported mlp)"
}

@test "coarsen: what has no answer says what there is" {
    doc=$(imported gpt2l)
    refuses 3 'no 9999 blocks: the forward pass has 177 operators' ap-coarsen \
        --blocks 9999 "$doc"
    ap-model gpt --layers 4 --hidden 64 --heads 4 --seq 16 --batch 4 --vocab 64 -o "$BATS_TEST_TMPDIR/gpt.json"
    refuses 3 'there are 4, or a larger --eps is needed' ap-coarsen --blocks 5 --eps 0.1 "$BATS_TEST_TMPDIR/gpt.json"
}

# dots_of FILE OPTION...: how many products each block has
dots_of() {
    ap-coarsen --no-history "${@:2}" "$1" | jq -c '[.graph.nodes, .blocks.block_of] | transpose |
        map(select(.[0].op == "dot")) | group_by(.[1]) | map(length)'
}

# chain WIDTH...: products, one behind the other, of vectors of these widths
chain() {
    local f=$BATS_TEST_TMPDIR/chain-${*//[!0-9]/-} i
    {
        printf '%s\n' 'HloModule m' 'ENTRY main {' "  v1 = f32[4,$1] parameter(0)"
        for ((i = 2; i <= $#; i++)); do
            echo "  w$i = f32[${*:i-1:1},${*:i:1}] parameter($((i - 1)))"
            echo "  v$i = f32[4,${*:i:1}] dot(v$((i - 1)), w$i), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        done
        printf '%s\n' "  ROOT r = f32[4,${!#}] negate(v$#)" '}'
    } >"$f.hlo"
    ap-import --no-history -o "$f.json" "$f.hlo"
    echo "$f.json"
}

@test "coarsen: Alpa's rule: three heavy operators or the bound, no more than three above it" {
    # two products of 100 units and six of 1: in two layers the bound is 1.5 * 103
    f=$(chain 8 800 8 8 8 8 8 8 8)
    [ "$(dots_of "$f" --blocks 2)" = "[3,5]" ] # three may be above the bound, four may not
    f=$(chain 8 800 8 80 8 8 8 8 8)            # little is received behind the second:
    [ "$(dots_of "$f" --blocks 2)" = "[2,6]" ] # it makes a layer with the first one
    # products are counted: at most five more than the average, 9, are in a layer, not as many
    f=$(chain 8 8 8 8 8 8 8 8 8 8 8 8 8 4 8 8 8 8 8) # 4 is received behind the 13th
    [ "$(dots_of "$f" --blocks 2 --balance count)" = "[13,5]" ]
    f=$(chain 8 8 8 8 8 8 8 8 8 8 8 8 8 8 4 8 8 8 8)
    [ "$(dots_of "$f" --blocks 2 --balance count)" = "[9,9]" ]
}

@test "coarsen: N equal layers are N blocks, whatever the rule counts" {
    ap-model gpt --layers 36 --hidden 64 --heads 4 --seq 16 --batch 4 --vocab 51200 -o "$BATS_TEST_TMPDIR/gpt.json"
    for options in '' '--balance count' '--balance input-memory' '--cluster-cost optimized'; do
        # shellcheck disable=SC2086
        ap-coarsen --blocks 36 $options "$BATS_TEST_TMPDIR/gpt.json" | jq -e '.blocks.n == 36' >/dev/null
    done
}

@test "coarsen: layers of a decoder come after the encoder that they read, wherever the text lists their first product" {
    local dims='lhs_contracting_dims={1}, rhs_contracting_dims={0}' name a b module k=2
    {
        printf 'HloModule m\nENTRY main {\n  x = f32[8,16] parameter(0)\n  y = f32[8,16] parameter(1)\n'
        while read -r name a b module; do
            [ "$name" != out ] || echo '  sum = f32[8,16] add(own, cross)'
            echo "  $b = f32[16,16] parameter($k), metadata={op_name=\"$module.$b\"}"
            echo "  ${name/out/ROOT out} = f32[8,16] dot($a, $b), $dims, metadata={op_name=\"jit(m)/${module//.//}/dot\"}"
            k=$((k + 1))
        done <<END
own y w0 decoder.layers.0
a x w1 encoder.layers.0
b a w2 encoder.layers.1
cross b w3 decoder.layers.0
out sum w4 decoder.layers.1
END
        echo '}'
    } >"$BATS_TEST_TMPDIR/two.hlo"
    echo '{"*coder*": "weight"}' >"$BATS_TEST_TMPDIR/roles.json"
    ap-import --roles "$BATS_TEST_TMPDIR/roles.json" "$BATS_TEST_TMPDIR/two.hlo" | ap-coarsen --algorithm layers |
        jq -e '[.graph.nodes, .blocks.block_of] | transpose | map(select(.[0].op == "dot") | {(.[0].name): .[1]}) | add
            == {own: 2, a: 0, b: 1, cross: 2, out: 3}'
}

@test "coarsen: options that are not looked at are refused" {
    doc=$(imported mlp)
    refuses 2 '--eps is for alpa, not for none' ap-coarsen --algorithm none --eps 1 "$doc"
    refuses 2 'are for --cluster-cost paper' ap-coarsen --cluster-cost=optimized --eps=1 \
        "$doc"
    refuses 2 'alpa looks at no cluster' ap-coarsen --memory 5 "$doc"
    refuses 2 "--blocks: expected a number" ap-coarsen --blocks 0 "$doc"
    refuses 2 "--blocks: expected a number" ap-coarsen --blocks two "$doc"
}

@test "coarsen: a graph whose phases run backwards is refused with its place" {
    jq -c '(.graph.nodes[] | select(.op == "dot" and .phase == "forward")).phase =
        "update"' "$(imported mlp)" >"$BATS_TEST_TMPDIR/phases.json"
    refuses 1 '/graph/nodes/' ap-coarsen "$BATS_TEST_TMPDIR/phases.json"
    refuses 1 'of phase forward reads node' ap-coarsen "$BATS_TEST_TMPDIR/phases.json"
    refuses 1 'graph' ap-coarsen <<<'{"autopar":1}'
}

@test "coarsen: other sections pass, stages of older blocks go, the same bytes twice" {
    jq -c '. + {"x-mine": {"a": 1}, stages: {}}' "$(imported gpt2l)" \
        >"$BATS_TEST_TMPDIR/in.json"
    ap-coarsen -o "$BATS_TEST_TMPDIR/a.json" "$BATS_TEST_TMPDIR/in.json"
    ap-coarsen <"$BATS_TEST_TMPDIR/in.json" >"$BATS_TEST_TMPDIR/b.json"
    cmp "$BATS_TEST_TMPDIR"/{a,b}.json
    jq -e '."x-mine".a == 1 and (has("stages") | not) and
        (.history[-1] | .tool == "ap-coarsen" and .algorithm == "alpa" and
            .objective == .bound)' "$BATS_TEST_TMPDIR/a.json"
    /usr/bin/python3 tests/validate.py "$BATS_TEST_TMPDIR/a.json"
    ap-coarsen "$BATS_TEST_TMPDIR/a.json" | jq -e '.blocks.n == 3'
}

@test "states are in their weight's block, also where a step that is not finite keeps them" {
    ap-model gpt --layers 3 --hidden 32 --heads 2 --seq 16 --batch 4 --vocab 64 --dtype f16 |
        ap-coarsen --algorithm alpa --blocks 3 --eps 3 >"$BATS_TEST_TMPDIR/doc.json"
    jq -e '[.graph.nodes[] | select(.op == "is-finite")] | length > 0' \
        "$BATS_TEST_TMPDIR/doc.json"
    run -0 jq -c '.blocks.block_of as $b | .graph.nodes as $n |
        [range(0; $n | length) as $i | ($n[$i].in // [])[] |
         select($b[.] != $b[$i] and $n[$i].phase == "update" and ($n[.].shape | test("\\[\\d")) and
                $n[.].op != "constant" and $n[.].op != "broadcast") | $n[.].name]' \
        "$BATS_TEST_TMPDIR/doc.json"
    [ "$output" = "[]" ]
}

@test "README of cmd/ap-coarsen: Alpa's clustering of eight products in a chain" {
    doc=$BATS_TEST_TMPDIR/chain.json
    cat >"$doc" <<'END'
{"autopar":1,"graph":{"nodes":[
{"op":"parameter","name":"x","shape":"f32[1,4]","param":0,"role":"input"},
{"op":"parameter","name":"wa","shape":"f32[4,8]","param":1,"role":"weight"},
{"op":"parameter","name":"wb","shape":"f32[8,2]","param":2,"role":"weight"},
{"op":"parameter","name":"wc","shape":"f32[2,2]","param":3,"role":"weight"},
{"op":"parameter","name":"wd","shape":"f32[2,8]","param":4,"role":"weight"},
{"op":"parameter","name":"we","shape":"f32[8,8]","param":5,"role":"weight"},
{"op":"parameter","name":"wf","shape":"f32[8,4]","param":6,"role":"weight"},
{"op":"parameter","name":"wg","shape":"f32[4,4]","param":7,"role":"weight"},
{"op":"parameter","name":"wh","shape":"f32[4,4]","param":8,"role":"weight"},
{"op":"dot","name":"a","shape":"f32[1,8]","in":[0,1],"lhs_contracting_dims":[1],"rhs_contracting_dims":[0]},
{"op":"dot","name":"b","shape":"f32[1,2]","in":[9,2],"lhs_contracting_dims":[1],"rhs_contracting_dims":[0]},
{"op":"dot","name":"c","shape":"f32[1,2]","in":[10,3],"lhs_contracting_dims":[1],"rhs_contracting_dims":[0]},
{"op":"dot","name":"d","shape":"f32[1,8]","in":[11,4],"lhs_contracting_dims":[1],"rhs_contracting_dims":[0]},
{"op":"dot","name":"e","shape":"f32[1,8]","in":[12,5],"lhs_contracting_dims":[1],"rhs_contracting_dims":[0]},
{"op":"dot","name":"f","shape":"f32[1,4]","in":[13,6],"lhs_contracting_dims":[1],"rhs_contracting_dims":[0]},
{"op":"dot","name":"g","shape":"f32[1,4]","in":[14,7],"lhs_contracting_dims":[1],"rhs_contracting_dims":[0]},
{"op":"dot","name":"h","shape":"f32[1,4]","in":[15,8],"lhs_contracting_dims":[1],"rhs_contracting_dims":[0]}],
"results":[{"node":16,"role":"aux"}]}}
END
    [ "$(jq -c '[.graph.nodes[9:][].shape | [scan("\\d+") | tonumber][1:] | reduce .[] as $d (4; . * $d)]' \
        "$doc")" = "[32,8,8,32,32,16,16,16]" ]
    while read -r n want sum squares of; do
        ap-coarsen --balance count --blocks "$n" --stats "$doc" 2>"$BATS_TEST_TMPDIR/stats" |
            jq -e ".blocks | .objective == $want and .bound == $want and .block_of[9:] == $of" >/dev/null ||
            { echo "$n"; return 1; }
        jq -e ".sum_bytes == $sum and .squares == $squares" "$BATS_TEST_TMPDIR/stats"
    done <<'END'
2 8 8 34 [0,0,0,1,1,1,1,1]
3 16 24 22 [0,0,0,1,1,1,2,2]
4 32 56 16 [0,0,1,1,2,2,3,3]
END
}

@test "README of cmd/ap-coarsen: critical nodes of a GPT of four layers" {
    doc=$(model gpt --layers 4 --hidden 64 --heads 2 --seq 32 --vocab 256)
    counts() { ap-coarsen --algorithm rhino --critical "$1" --stats -o /dev/null "$doc" 2>&1 |
        jq -c '[.critical, .segments]'; }
    [ "$(counts paper) $(counts code)" = "[29,28] [17,16]" ]
}

@test "blocks by hand: a cut of the forward pass is completed as ap-coarsen completes its own" {
    local dir=$BATS_TEST_TMPDIR mlp full
    mlp=$(imported mlp)
    ap-coarsen --blocks 3 --eps 1 "$mlp" >"$dir/full.json"
    full=$(jq -c .blocks.block_of "$dir/full.json")
    # numbers of forward operators, -1 or null of all others; names and ids where blocks begin
    jq -c '.graph.nodes as $n | .blocks = {block_of: [.blocks.block_of | to_entries[] | $n[.key] as $x |
        if $x.phase == "forward" and $x.op != "parameter" then .value elif .key % 2 == 0 then -1 else null end]}' \
        "$dir/full.json" >"$dir/numbers.json"
    jq -c '.graph.nodes as $n | [.blocks.block_of | to_entries[] | select($n[.key].op == "dot") | .key] as $dots |
        .blocks = {cut: [$n[$dots[1]].name, $dots[2]]}' "$dir/full.json" >"$dir/names.json"
    for form in numbers names; do
        [ "$(ap-coarsen --algorithm given "$dir/$form.json" | jq -c .blocks.block_of)" = "$full" ]
        ap-stage --quiet --cluster cpu-4 --stages 3 --submeshes 1x1 "$dir/$form.json" | ap-cost | jq -e '.cost.step_sec > 0'
    done
}

@test "blocks by hand: what is refused, with its place" {
    local dir=$BATS_TEST_TMPDIR mlp
    mlp=$(imported mlp)
    blocks() { jq -c ".graph.nodes as \$n | .blocks = ($1)" "$mlp" >"$dir/b.json"; }
    given() { refuses 1 "b.json: $1" ap-coarsen --algorithm given "$dir/b.json"; }
    refuses 1 'no section "blocks"' ap-coarsen --algorithm given "$mlp"
    blocks '{cut: ["dot_general.9"], block_of: []}'
    given '/blocks: has cut and block_of: which is meant?'
    blocks '{n: 2}'
    given '/blocks: expected "block_of", or "cut" with the first nodes of blocks 1, 2, ...'
    blocks '{cut: ["nobody"]}'
    given '/blocks/cut/0: the graph has no node nobody'
    blocks '{cut: [27, 22]}'
    given '/blocks/cut/1: node 22 (add.44) is not after the first operator of block 1'
    blocks '{cut: [297]}'
    given '/blocks/cut: the last block would be empty'
    blocks '{block_of: [$n[] | -1]}'
    given '/blocks/block_of/21: node 21 (dot_general.8) is an operator of the forward pass'
    blocks '{block_of: [$n[] | if .phase == "forward" then 0 elif .phase == "update" then -1 else 0 end]}'
    given '/blocks/block_of/77: node 77 (constant.85) is of the backward phase'
    blocks '{block_of: [$n[] | if .name == "dot_general.8" then 1 elif .phase == "forward" then 0 else -1 end]}'
    given '/blocks: node 23 (add.45) of block 0 reads node 21 (dot_general.8) of the later block 1 in the forward pass'
    blocks '{n: 3, cut: [27]}'
    given '/blocks: 2 blocks, but n is 3'
}

@test "blocks by hand: random cuts and moved nodes run, or are refused with a place" {
    needs_exec
    slow_with_sanitizers
    # AP_BLOCK_LISTS=1000: as many
    run scripts/bench/block-lists --count "${AP_BLOCK_LISTS:-20}" --models 'mlp gpt'
    echo "$output"
    [ "$status" -eq 0 ]
    [[ ${lines[1]} == *cut*[1-9]* ]]
}

@test "operators: blocks of equally many operators, in the program's order" {
    ap-model gpt --layers 2 --hidden 64 --heads 4 --batch 8 --seq 16 --vocab 100 -o "$BATS_TEST_TMPDIR/g"
    ap-coarsen --algorithm operators --blocks 6 "$BATS_TEST_TMPDIR/g" >"$BATS_TEST_TMPDIR/b"
    jq -e '.blocks.n == 6 and ([.graph.nodes, .blocks.block_of] | transpose |
        [.[] | select(.[0].phase == "forward" and .[0].op == "dot") | .[1]] | . == sort)' "$BATS_TEST_TMPDIR/b"
    ap-stage --quiet --cluster cpu-4 --algorithm alpa "$BATS_TEST_TMPDIR/b" | jq -e '.stages.objective_sec > 0'
    refuses 2 "operators needs --blocks" ap-coarsen --algorithm operators "$BATS_TEST_TMPDIR/g"
    refuses 3 "no 9999 blocks" ap-coarsen --algorithm operators --blocks 9999 "$BATS_TEST_TMPDIR/g"
}
