#!/usr/bin/env bats
# shellcheck disable=SC2016 # what jq expands
# ap-coarsen --algorithm rannc: components, blocks, limits, variants.
load helpers

# coarsened NAME OPTIONS... < document: stats of the run in NAME.stats, document in NAME.json
coarsened() {
    local out=$BATS_TEST_TMPDIR/$1
    shift
    ap-coarsen --algorithm rannc --no-history --stats "$@" -o "$out.json" 2>"$out.stats"
}
stat() { jq "$2" "$BATS_TEST_TMPDIR/$1.stats"; }
blocks() { jq "$2" "$BATS_TEST_TMPDIR/$1.json"; }

bert() {
    ap-model bert --hidden 64 --heads 2 --seq 16 --vocab 100 --no-history --layers "$@"
}

# Forward operators that depend on an input, by jq.
non_constant() {
    jq '[foreach .graph.nodes[] as $x ({v: [], is: false};
          .v as $v |
          .is = ($x.phase == "forward" and any(($x.in // [])[]; $v[.])) |
          .v += [.is or $x.role == "input"];
          select(.is and $x.op != "get-tuple-element") | 1)] | add' "$1"
}

@test "rannc §III-A: as many components as operators that depend on an input, so many a layer" {
    local per=()
    for n in 2 4; do
        bert "$n" -o "$BATS_TEST_TMPDIR/bert-$n.json"
        coarsened "$n" <"$BATS_TEST_TMPDIR/bert-$n.json"
        [ "$(stat "$n" .components)" -eq "$(non_constant "$BATS_TEST_TMPDIR/bert-$n.json")" ]
        per+=("$(stat "$n" .components)")
    done
    echo "# $(((per[1] - per[0]) / 2)) components a layer; RaNNC's: about 58.6" >&3
    [ $(((per[1] - per[0]) / 2)) -ge 53 ]
    [ $(((per[1] - per[0]) / 2)) -le 66 ]
}

@test "rannc §III-B: 256 layers of BERT, over 15 000 components, end in 32 blocks" {
    bert 256 --forward | coarsened bert
    shows "$(stat bert .components) components (about 15000), in $(blocks bert .blocks.n) blocks (32)"
    [ "$(stat bert .components)" -gt 15000 ]
    [ "$(blocks bert .blocks.n)" -eq 32 ]
    # what the slowest block takes is in reach of the bound
    [ "$(blocks bert '.blocks | .objective < 1.6 * .bound and .bound > 0')" = true ]
}

@test "rannc §III-B: blocks are convex: operators read none of a later block" {
    bert 6 | coarsened bert --blocks 7
    [ "$(blocks bert .blocks.n)" -eq 7 ]
    [ "$(blocks bert '.blocks.block_of as $b |
        [foreach (.graph.nodes | to_entries[]) as $e ({v: []};
          .v as $v | $e.value as $x |
          .is = ($x.phase == "forward" and any(($x.in // [])[]; $v[.])) |
          .bad = ([$x.in // [] | .[] | select($v[.] and $b[.] > $b[$e.key])] | length) |
          .v += [.is or $x.role == "input"];
          select(.is) | .bad)] | add, length > 200')" = $'0\ntrue' ]
    [ "$(blocks bert '[.blocks.block_of[]] | unique | length')" -eq 7 ]
}

@test "rannc tutorial: the tutorial's ten layers hold 10 506 240 bytes of weights" {
    ap-model mlp --layers 10 --hidden 512 --features 512 --classes 512 --batch 64 \
        --no-history | coarsened mlp
    [ "$(blocks mlp '[.blocks.blocks[].weight_bytes] | add')" -eq 10506240 ]
}

@test "rannc tutorial: two stages of our ten blocks are no slower than the tutorial's 47 and 53 layers" {
    ap-model mlp --layers 100 --hidden 5000 --features 5000 --classes 5000 --batch 512 \
        --no-history -o "$BATS_TEST_TMPDIR/mlp.json"
    for k in 10 32; do
        coarsened "mlp-$k" --blocks "$k" --cluster "$CLUSTERS/papers/rannc.json" \
            <"$BATS_TEST_TMPDIR/mlp.json"
        # layers of the slower stage, at the best cut
        run blocks "mlp-$k" '[.blocks.blocks[].weight_bytes / 100020000] as $w |
            ($w | add) as $all |
            [range(1; $w | length) as $i | $w[:$i] | add | [., $all - .] | max] | min'
        echo "slower stage at k = $k: $output layers"
        jq -ne --argjson layers "$output" '$layers >= 50 and $layers <= 53'
    done
}

@test "rannc: blocks fit the memory that they are given, and fewer blocks need more" {
    bert 4 -o "$BATS_TEST_TMPDIR/bert.json"
    coarsened roomy --blocks 4 <"$BATS_TEST_TMPDIR/bert.json"
    # five times 4 bytes of each weight and 10 % kept free: too little for a half
    local weights
    weights=$(blocks roomy '[.blocks.blocks[].weight_bytes] | add')
    refuses 3 "remain, 2 are wanted" ap-coarsen --algorithm rannc --blocks 2 \
        --memory $((weights * 2)) "$BATS_TEST_TMPDIR/bert.json"
    coarsened tight --memory $((weights * 2)) <"$BATS_TEST_TMPDIR/bert.json"
    [ "$(blocks tight "[.blocks.blocks[].weight_bytes * 4 / 0.9] | max < $((weights * 2))")" \
        = true ]
}

@test "rannc: a component above the limit is named, exit 3" {
    bert 2 -o "$BATS_TEST_TMPDIR/bert.json"
    refuses 3 "its component needs" ap-coarsen --algorithm rannc --memory 100000 \
        "$BATS_TEST_TMPDIR/bert.json"
    [[ $stderr == *"/graph/nodes/"*" ("*"): "*"the limit is 90000" ]]
}

@test "rannc: activations of all microbatches need memory unless they are recomputed" {
    bert 4 --batch 256 -o "$BATS_TEST_TMPDIR/bert.json"
    coarsened again --memory 3000000 <"$BATS_TEST_TMPDIR/bert.json"
    refuses 3 "bytes" ap-coarsen --algorithm rannc --memory 3000000 --no-checkpointing \
        "$BATS_TEST_TMPDIR/bert.json"
}

@test "rannc: the published code's rules: fewer blocks than k, other ones by each rule" {
    local code=(--merge gain --successors-only --unprofiled-above 200 --stop-blocks 5
        --no-uncoarsening)
    ap-model bert --layers 2 --no-history -o "$BATS_TEST_TMPDIR/bert.json"
    coarsened paper <"$BATS_TEST_TMPDIR/bert.json"
    coarsened code "${code[@]}" <"$BATS_TEST_TMPDIR/bert.json"
    [ "$(blocks paper .blocks.n)" -eq 32 ]
    [ "$(blocks code .blocks.n)" -lt 32 ]
    [ "$(blocks code .blocks.n)" -ge 5 ]
    for rule in --successors-only --no-uncoarsening "--merge=gain" "--stop-blocks=5"; do
        coarsened one "$rule" <"$BATS_TEST_TMPDIR/bert.json"
        [ "$(blocks one .blocks.block_of)" != "$(blocks paper .blocks.block_of)" ]
    done
    coarsened priced --merge gain <"$BATS_TEST_TMPDIR/bert.json"
    coarsened unpriced --merge gain --unprofiled-above 20 <"$BATS_TEST_TMPDIR/bert.json"
    [ "$(blocks priced .blocks.block_of)" != "$(blocks unpriced .blocks.block_of)" ]
}

@test "rannc: uncoarsening sends fewer bytes" {
    bert 6 -o "$BATS_TEST_TMPDIR/bert.json"
    coarsened with --blocks 7 <"$BATS_TEST_TMPDIR/bert.json"
    coarsened without --blocks 7 --no-uncoarsening <"$BATS_TEST_TMPDIR/bert.json"
    [ "$(blocks with '[.blocks.blocks[].in_bytes] | add')" -lt \
        "$(blocks without '[.blocks.blocks[].in_bytes] | add')" ]
}

@test "rannc: the same bytes twice, on every golden model" {
    local m doc
    for m in "$MODELS"/*/*.hlo*; do
        case $m in
        */model.hlo) doc=$BATS_TEST_TMPDIR/step && ap-import --quiet "$m" | ap-grad >"$doc" ;; # PyTorch's
        *) doc=$(imported "$(basename "$(dirname "$m")")") ;;
        esac
        ap-coarsen --algorithm rannc --blocks 4 "$doc" >"$BATS_TEST_TMPDIR/1" || { echo "$m"; return 1; }
        ap-coarsen --algorithm rannc --blocks 4 "$doc" >"$BATS_TEST_TMPDIR/2"
        cmp "$BATS_TEST_TMPDIR/1" "$BATS_TEST_TMPDIR/2"
    done
}

@test "rannc: options that contradict or are out of range are refused, exit 2" {
    local doc
    doc=$(imported mlp)
    refuses 2 "--memory-margin" ap-coarsen --algorithm rannc --memory-margin 1 "$doc"
    refuses 2 "--optimizer-factor" ap-coarsen --algorithm rannc --optimizer-factor=-1 "$doc"
    refuses 2 "--merge gain" ap-coarsen --algorithm rannc --unprofiled-above 9 "$doc"
    refuses 2 "--successors-only" ap-coarsen --algorithm none --successors-only "$doc"
}

@test "README of cmd/ap-coarsen/rannc: four blocks of the tutorial's ten layers" {
    ap-model mlp --layers 10 --hidden 512 --features 512 --classes 512 --batch 64 --no-history \
        -o "$BATS_TEST_TMPDIR/mlp.json"
    coarsened mlp --blocks 4 <"$BATS_TEST_TMPDIR/mlp.json"
    coarsened rough --blocks 4 --no-uncoarsening <"$BATS_TEST_TMPDIR/mlp.json"
    [ "$(stat mlp .components)" -eq 62 ]
    local layers='[.blocks.blocks[].weight_bytes / 1050624]'
    [ "$(blocks mlp "$layers | tostring")" = '"[1,4,2,3]"' ]
    [ "$(blocks rough "$layers | tostring")" = '"[1,4,5,0]"' ]
    [ "$(blocks mlp '.blocks | .objective < 1.11 * .bound and .objective > 1.1 * .bound')" = true ]
}

@test "rannc §IV-C: without coarsening the search asks for stages far out of proportion to the blocks, for 2 % of the step" {
    local k asked=() sec=() out=$BATS_TEST_TMPDIR/plan.json
    for k in 8 64; do
        ap-model bert --layers 12 --hidden 256 --heads 4 --seq 128 --vocab 1000 --batch 32 | ap-prune |
            ap-coarsen --algorithm rannc --blocks $k -o "$BATS_TEST_TMPDIR/blocks.json" 2>/dev/null
        asked+=("$(ap-stage --algorithm rannc --cluster p3x1 --microbatches 8 --shard-command 'ap-shard --serve --algorithm data' \
            --stats -o "$out" "$BATS_TEST_TMPDIR/blocks.json" 2>&1 | jq .asked)")
        sec+=("$(jq .stages.objective_sec "$out")")
    done
    # stages that are identical are asked for once: fewer than the square
    shows "stages asked for: ${asked[0]} with 8 blocks, ${asked[1]} with 64; steps ${sec[*]} s"
    [ "${asked[1]}" -gt $((20 * asked[0])) ]
    jq -en "${sec[1]} <= ${sec[0]} and ${sec[1]} > 0.95 * ${sec[0]}"
}

@test "rannc §III-A: stages make a bias by position of its weight, which one sends the other; losses are one process's" {
    local out=$BATS_TEST_TMPDIR/t5
    ap-model t5 --layers 2 --hidden 64 --heads 4 --vocab 256 --seq 32 --batch 8 --recipe mixed >"$out"
    ap-fuse <"$out" | ap-prune | ap-coarsen --algorithm rannc --blocks 8 --cluster cpu-4 |
        ap-stage --algorithm rannc --stages 2 --microbatches 2 --cluster cpu-4 | ap-rewrite >"$out.2"
    # the bias has 4 heads of 32 x 32, its weight 32 buckets of 4
    run jq -r '.pipeline.transfers[] | select(.from == 0) | .shape' "$out.2"
    [[ $output == *'bf16[32,4]'* && $output != *'[4,32,32]'* ]]
    jq -en --argjson a "$(ap-rewrite "$out" | ap-exec --steps 3 --json | jq -c .losses)" \
        --argjson b "$(ap-exec -n 4 --steps 3 --json "$out.2" | jq -c .losses)" \
        '[$a, $b] | transpose | all(.[0] - .[1] | fabs < 1e-3)'
}
