#!/usr/bin/env bats
# Documents of every stage validate against schemas/, and broken ones do not.

load helpers

validate() { /usr/bin/python3 tests/validate.py "$@"; }

# Python's validator is a second opinion beside ap-check.
needs_jsonschema() {
    /usr/bin/python3 -c 'import jsonschema' 2>/dev/null || skip "Python has no jsonschema: ap-check alone has checked"
}

# check FILE...: ap-check passes them
check() {
    local f
    for f; do
        run --separate-stderr ap-check "$f"
        [ "$status" -eq 0 ] || { echo "$f: $stderr"; return 1; }
        [ -z "$stderr" ] || { echo "$f: $stderr"; return 1; }
    done
}

# Ways to break a document that has all sections: a jq filter each.
mutations() {
    cat <<'END'
.autopar = 2
.autopar = "1"
del(.autopar)
.history = {}
.history[0].tool = 3
del(.history[0].tool)
.history[0].args = "--mesh 4"
.graph = []
del(.graph.nodes)
.graph.nodes = {}
.graph.nodes[0] = 7
del(.graph.nodes[0].op)
.graph.nodes[0].op = "frobnicate"
.graph.nodes[0].op = 12
del(.graph.nodes[0].shape)
.graph.nodes[0].shape = "f33[2]"
.graph.nodes[0].shape = "f32[-4]"
.graph.nodes[0].shape = [4, 4]
(.graph.nodes[] | select(.in) | .in) = "0"
(.graph.nodes[] | select(.in) | .in[0]) = -1
(.graph.nodes[] | select(.in) | .in[0]) = 0.5
.graph.nodes[0].phase = "sideways"
.graph.nodes[0].role = "king"
.graph.nodes[0].param = -2
.graph.nodes[0].group = "a"
(.graph.nodes[] | select(.lhs_contracting_dims) | .lhs_contracting_dims) = 1
(.graph.nodes[] | select(.direction) | .direction) = "UP"
.graph.results = 3
.graph.results[0].node = "loss"
.graph.results[0].role = "hero"
.graph.reducers[0].kind = "median"
.graph.n_groups = -1
.cluster = "laptop"
.cluster.memory_bytes = "lots"
.cluster.memory_bytes = -1
del(.cluster.levels)
.cluster.levels[0].size = 0
.cluster.levels[0].bandwidth_bytes_per_sec = "fast"
.blocks.n = 0
del(.blocks.block_of)
.blocks.block_of[0] = -2
.blocks.blocks = []
.blocks.blocks[0].nodes.sideways = 1
.blocks.blocks[0].in_bytes = -16
.blocks.unit = "furlongs"
del(.blocks.objective)
.blocks.cone_of = [0]
.placement = []
.placement.hosts = {}
.placement.hosts[0] = -1
.placement.node = 3
.families = []
.families.families = {}
.families.families[0].nodes[0][0] = -1
.families.families[0].labels = ["one"]
del(.families.families)
.families.algorithm = "guess"
.sharding.mesh.shape = "2x2"
.sharding.mesh.shape = [0, 2]
del(.sharding.mesh)
.sharding.algorithm = 1
.sharding.objective_sec = "1"
.sharding.objective_sec = -1
.sharding.groups = {}
.sharding.groups[0].choice = "none"
.sharding.layouts[0] = "Q0"
.sharding.layouts[0] = 0
.sharding.conversions = [{"node": -5}]
.cost = 12
del(.cost.step_sec)
.cost.collectives = [{"op": "gossip", "axes": ["x"], "count": 1, "bytes": 1, "sec": 0}]
.cost.memory.peak_bytes = -1
.program.n_ranks = 0
del(.program.modules)
.program.modules[0].buffers.offset = 0
.program.peak_bytes = 1.5
.program.collectives = {}
END
}

@test "schema: documents of all stages, algorithms and models validate" {
    docs=("$(imported mlp)" "$(sharded mlp 2x2)")
    for m in mlp resnet moe; do # a program has the sections before it, too
        docs+=("$(rewritten $m 2x2)")
    done
    for a in data zero3 megatron largest-dim tap ffn-only; do
        docs+=("$(rewritten mlp 2x2 $a)")
    done
    ap-rewrite "$(imported mlp)" >"$BATS_TEST_TMPDIR/one.json"
    ap-import "$(hlo mlp)" | ap-prune | ap-shard --mesh dp=2,tp=2 --solver glpk | ap-cost | ap-rewrite \
        >"$BATS_TEST_TMPDIR/history.json"
    ap-shard --mesh 2x2 --space alpa --cost-model alpa -o "$BATS_TEST_TMPDIR/alpa.json" "$(imported mlp)"
    jq -c '."x-mine" = {"a": 1}' "$(imported mlp)" >"$BATS_TEST_TMPDIR/unknown.json"
    ap-coarsen --blocks 2 "$(imported mlp)" | ap-stage --cluster "$CLUSTERS/cpu-8.json" --stages 2 \
        --shard-command 'ap-shard --serve --algorithm data' -o "$BATS_TEST_TMPDIR/stages.json"
    ap-rewrite -o "$BATS_TEST_TMPDIR/pipeline.json" "$BATS_TEST_TMPDIR/stages.json"
    ap-cost -o "$BATS_TEST_TMPDIR/priced.json" "$BATS_TEST_TMPDIR/stages.json"
    check "${docs[@]}" "$BATS_TEST_TMPDIR"/*.json
    needs_jsonschema
    run validate "${docs[@]}" "$BATS_TEST_TMPDIR"/{one,history,unknown,alpa,stages}.json
    echo "$output"
    [ "$status" -eq 0 ]
    [ "${#lines[@]}" -eq $((${#docs[@]} + 5)) ]
}

@test "schema: clusters that ship validate" {
    for f in "$CLUSTERS"/*.json "$CLUSTERS"/papers/*.json; do
        jq -c '{autopar: 1, cluster: .}' "$f" >"$BATS_TEST_TMPDIR/$(basename "$f")"
    done
    check "$BATS_TEST_TMPDIR"/*.json
    needs_jsonschema
    run validate "$BATS_TEST_TMPDIR"/*.json
    echo "$output"
    [ "$status" -eq 0 ]
}

@test "schema: at least 50 broken documents do not validate" {
    doc=$BATS_TEST_TMPDIR/whole.json
    ap-import "$(hlo mlp)" | ap-prune | ap-coarsen |
        ap-shard --mesh 2x2 --algorithm data | ap-cost |
        ap-rewrite >"$doc"
    check "$doc"
    n=$(mutations | wc -l)
    [ $n -ge 50 ]
    # all in one jq: a line each, empty where nothing is changed
    jq -c ". as \$whole | $(mutations | sed 's/.*/(&)/' | paste -sd,) | if . == \$whole then \"\" else . end" "$doc" >"$BATS_TEST_TMPDIR/all"
    [ "$(wc -l <"$BATS_TEST_TMPDIR/all")" -eq "$n" ]
    i=$(grep -nx '""' "$BATS_TEST_TMPDIR/all" | head -n 1 | cut -d: -f1)
    [ -z "$i" ] || { echo "changes nothing: $(mutations | sed -n "${i}p")"; return 1; }
    awk -v to="$BATS_TEST_TMPDIR/broken-" '{ f = to NR ".json"; print >f; close(f) }' "$BATS_TEST_TMPDIR/all"
    for ((k = 1; k <= n; k++)); do
        refuses 1 "broken-$k.json" ap-check "$BATS_TEST_TMPDIR/broken-$k.json" || { mutations | sed -n "${k}p"; return 1; }
        [[ $stderr != *"the schema's"* ]]
    done
    needs_jsonschema
    validate "$doc"
    run validate "$BATS_TEST_TMPDIR"/broken-*.json
    while IFS= read -r line; do
        i=${line##*/broken-}
        echo "validates: $(mutations | sed -n "${i%.json}p")"
        return 1
    done < <(grep '^ok' <<<"$output")
    [ "$(grep -c '^bad' <<<"$output")" -eq $n ]
}

@test "ap-check: every section is checked by what it means, and faults have their places" {
    local dir=$BATS_TEST_TMPDIR line
    ap-import "$(hlo mlp)" | ap-prune | ap-coarsen --blocks 2 --eps 1 | ap-shard --mesh 2x2 --algorithm data --cluster cpu-4 |
        ap-cost | ap-rewrite >"$dir/whole.json"
    [ "$(ap-check "$dir/whole.json" | paste -sd' ')" = "graph cluster families blocks sharding cost program placement history" ]
    while IFS=';' read -r line said; do
        jq -c "$line" "$dir/whole.json" >"$dir/bad.json"
        refuses 1 "ap-check: $dir/bad.json: $said" ap-check "$dir/bad.json"
    done <<'END'
.graph.nodes[27].shape = "f32[8,32]";/graph/nodes/27
.graph.nodes[27].op = "dott";/graph/nodes/27/op: unknown operator 'dott'
.families.families[0].nodes[0][1] = 2;/families/families/0/nodes/0/1: ids of the first instance must ascend
.blocks.n = 9;/blocks: block 2 has no forward operator
.sharding.mesh.shape = [4, 4];/sharding: mesh 4x4 needs 16 devices, cluster cpu-4 has 4
.sharding.groups[28].choice = [9, 9];/sharding/groups/28/choice: expected integers from -1
.cost.step_sec = 1;/cost/step_sec: 1, but the plan's objective_sec is
.program.peak_bytes = 1;/program
.sharding.foo = 1;/sharding/foo: there is no such member
.history[0].tool = "me";/history/0/tool: 'me' does not have the form
END
    # all faults are told
    jq -c '.blocks.n = 9 | .cost.step_sec = 1' "$dir/whole.json" >"$dir/bad.json"
    refuses 1 "ap-check: $dir/bad.json: 2 sections are wrong" ap-check "$dir/bad.json"
    [ "${#stderr_lines[@]}" -eq 3 ]
    # each once: blocks are read with the stages, and a cluster with its plan
    jq -c 'del(.sharding, .cost, .program, .placement) | .stages = {microbatches: 2, stages:
        [0, 1 | {blocks: [.], devices: [.], sharding: {mesh: "1", algorithm: "data"}}]}' "$dir/whole.json" >"$dir/staged.json"
    for line in '.blocks.n = 9' '.cluster.levels = 1'; do
        jq -c "$line" "$dir/staged.json" >"$dir/bad.json"
        refuses 1 "ap-check: $dir/bad.json: 1 section is wrong" ap-check "$dir/bad.json"
        [ "${#stderr_lines[@]}" -eq 2 ]
    done
    jq -c '.stages.foo = 1' "$dir/staged.json" >"$dir/bad.json"
    refuses 1 "/stages/foo: there is no such member" ap-check "$dir/bad.json"
    # stages that wait for each other
    jq -c 'del(.sharding, .cost, .program, .placement) |  .blocks.block_of[23] = 1 | .stages = {microbatches: 2, stages:
        [0, 1 | {blocks: [.], devices: [.], sharding: {mesh: "1", algorithm: "data"}}]}' "$dir/whole.json" >"$dir/bad.json"
    refuses 1 "/blocks: node 26 (jit_relu_.2/max.3) of block 0 reads node 23 (add.45) of the later block 1" ap-check "$dir/bad.json"
}
