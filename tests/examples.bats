#!/usr/bin/env bats
# examples/: filters of one's own in the place of tools, in pipes that run and compute what one device does.

load helpers

GPT() { ap-model --no-history gpt --layers 4 --hidden 16 --heads 2 --vocab 32 --batch 8 --seq 8; }

@test "examples: all filters in one pipe, and those that make a plan of one mesh" {
    needs_exec
    local dir=$BATS_TEST_TMPDIR
    GPT | examples/prune-by-scope | examples/coarsen-by-layer | examples/planner | examples/stage-by-block |
        examples/shard-by-name | examples/cost-of-bytes >"$dir/stages.json"
    ap-rewrite "$dir/stages.json" | ap-exec -n 4 --verify
    [ "$(ap-check "$dir/stages.json" | paste -sd' ')" = "graph cluster families blocks stages cost history" ]
    jq -e '.cost.step_sec > 0 and (.families.families | length) == 1 and (.stages.stages | length) > 1' "$dir/stages.json"
    ap-cost --report "$dir/stages.json" | head -n 1 | grep -x 'cost by bytes over 1 GB/s: step .* s'
    refuses 1 "/cost: its price is by bytes over 1 GB/s, not by ap-cost" ap-cost "$dir/stages.json"
    GPT | examples/prune-by-scope | examples/shard-by-name | examples/cost-of-bytes >"$dir/mesh.json"
    ap-rewrite "$dir/mesh.json" | ap-exec -n 4 --verify
    ap-check "$dir/mesh.json" | grep -x sharding
    jq -e '[.sharding.conversions[].steps[].op] | index("all-reduce") != null' "$dir/mesh.json"
}

@test "examples: in the place of one tool each" {
    local dir=$BATS_TEST_TMPDIR
    # a family by hand is searched as ap-prune's, here without the first and last layer
    ap-model --no-history gpt --layers 12 --hidden 64 --heads 2 --vocab 32 --batch 8 --seq 8 | examples/prune-by-scope >"$dir/families.json"
    ap-shard --quiet --mesh 4 --cluster cpu-4 --stats "$dir/families.json" 2>&1 >/dev/null | jq -e '.tied > 1000'
    jq -c '.graph.nodes as $n | .families.families[].nodes |= map(map(select($n[.].phase == "forward")))' "$dir/families.json" |
        ap-shard --mesh 4 --cluster cpu-4 --algorithm data 2>&1 >/dev/null | grep "no instance has nodes of the update: nothing is tied"
    jq -c '.graph.nodes as $n | .families.families[].nodes |= map(map(select($n[.].role != "weight")))' "$dir/families.json" |
        ap-shard --mesh 4 --cluster cpu-4 --algorithm data 2>&1 >/dev/null | grep "no instance has a weight: nothing is tied"
    GPT | examples/coarsen-by-layer | ap-stage --quiet --cluster cpu-4 --stages 2 | examples/cost-of-bytes | jq -e '.cost.step_sec > 0'
    GPT | DEVICES=2 examples/coarsen-by-devices | examples/stage-by-block | ap-cost --cluster cpu-4 |
        jq -e '[.stages.stages[].sharding.mesh.shape] == [[1], [1], [1], [1]] and .cost.step_sec > 0'
}

@test "examples: a planner whose plans are all refused says why, and writes none" {
    GPT | examples/coarsen-by-layer | jq -c '.graph.nodes[3].op = "nothing"' >"$BATS_TEST_TMPDIR/bad.json"
    refuses 3 "planner: no plan has a price: ap-cost: <stdin>: /graph/nodes/3/op: unknown operator 'nothing'" \
        examples/planner <"$BATS_TEST_TMPDIR/bad.json"
}

@test "examples: at most twenty lines, the planner thirty" {
    local f most
    for f in examples/*; do
        [[ $f != *.md ]] || continue
        [ -x "$f" ]
        most=20
        [[ $f != */planner ]] || most=30
        [ "$(wc -l <"$f")" -le "$most" ] || { echo "$f is longer"; return 1; }
        grep -q "\`${f#*/}\`" examples/README.md || { echo "examples/README.md does not name $f"; return 1; }
    done
}
