#!/usr/bin/env bats
# Named points beyond those of named.bats, and the user's hand on the plan: pins, plan
# files, alternatives, views of the cluster, requests about parts.

load helpers

setup_file() {
    ap-import --no-history -o "$BATS_FILE_TMPDIR/gpt.json" "$(hlo gpt2l)"
    ap-import --no-history -o "$BATS_FILE_TMPDIR/moe.json" "$(hlo moe)"
    ap-shard --no-history --mesh 2x4 --cluster "$CLUSTERS/cpu-8.json" \
        -o "$BATS_FILE_TMPDIR/ilp.json" "$BATS_FILE_TMPDIR/gpt.json"
    ap-coarsen --no-history -o "$BATS_FILE_TMPDIR/blocks.json" "$BATS_FILE_TMPDIR/gpt.json"
}

GPT() { echo "$BATS_FILE_TMPDIR/gpt.json"; }
CPU8=(--cluster "$CLUSTERS/cpu-8.json")

# counts < PROGRAM: all-reduce, all-gather, reduce-scatter, all-to-all
counts() {
    jq -r '[.program.modules[0].graph.nodes[].op] as $ops
        | ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]
        | map(. as $op | [$ops[] | select(. == $op)] | length) | join(" ")'
}

# price [OPTION]...: seconds of the plan
price() { ap-shard "$@" | jq .sharding.objective_sec; }

# The GPTs have 15 weights a layer and 4 more (named.bats); two layers here.
N_WEIGHTS=34 N_LAYERS=2

@test "zero1: gradients all-reduced whole, each new weight gathered" {
    [ "$(ap-shard --mesh 4 --algorithm zero1 "$(GPT)" | ap-rewrite | counts)" = \
        "$((N_WEIGHTS + 1)) $N_WEIGHTS 0 0" ]
}

# Korthikanti et al., section 4.2.2: a gather and a scatter in place of each of Megatron's
# four all-reduces a layer. Embedding and head: the looked-up rows and the head's gradient
# scattered, the head's input gathered; the table's gradient scattered, the positions' gathered.
# All-reduces: two norms and two biases a layer and the last norm see a part of the sequence
# (6 a layer, 2), maximum, sum and picked logit of the softmax.
@test "megatron-sp: all-reduces become reduce-scatters and all-gathers" {
    [ "$(ap-shard --mesh 4 --algorithm megatron-sp "$(GPT)" | ap-rewrite | counts)" = \
        "$((6 * N_LAYERS + 5)) $((4 * N_LAYERS + 2)) $((4 * N_LAYERS + 3)) 0" ]
}

@test "megatron-sp keeps less than megatron" {
    for a in megatron megatron-sp; do
        ap-shard --mesh 4 --algorithm $a "$(GPT)" | jq .sharding.peak_bytes
    done >"$BATS_TEST_TMPDIR/bytes"
    [ "$(sed -n 2p "$BATS_TEST_TMPDIR/bytes")" -lt "$(sed -n 1p "$BATS_TEST_TMPDIR/bytes")" ]
}

# GShard, section 3.2: tokens go to their experts and back, forward and backward. The weights of
# the experts are split, so that all others and the loss are all-reduced; so are the two sums
# of the load-balancing loss.
@test "expert: four all-to-alls a layer of experts, no all-reduce of their gradients" {
    experts=$(jq '[.graph.nodes[] | select(.role == "weight" and (.shape | test("^f32\\[8,32,48\\]|^f32\\[8,48,32\\]")))] | length' \
        "$BATS_FILE_TMPDIR/moe.json")
    weights=$(jq '[.graph.nodes[] | select(.role == "weight")] | length' "$BATS_FILE_TMPDIR/moe.json")
    [ "$experts" -eq 2 ]
    [ "$(ap-shard --mesh 4 --algorithm expert "$BATS_FILE_TMPDIR/moe.json" | ap-rewrite | counts)" = \
        "$((weights - experts + 1 + 2)) 0 0 4" ]
}

@test "points that do not exist say why" {
    refuses 3 "no dot is batched" ap-shard --mesh 4 --algorithm expert "$(GPT)"
    refuses 3 "no input has a sequence" ap-shard --mesh 4 --algorithm megatron-sp "$(imported resnet)"
    refuses 3 "sequence 32 on 64 devices" ap-shard --mesh 64 --algorithm megatron-sp "$(GPT)"
}

@test "the new points run on four ranks with the right numbers" {
    needs_exec
    for a in "gpt zero1" "gpt megatron-sp" "moe expert"; do
        ap-shard --mesh 2x2 --algorithm "${a#* }" "$BATS_FILE_TMPDIR/${a% *}.json" | ap-rewrite |
            ap-exec -n 4 --quiet --verify -o "$BATS_TEST_TMPDIR/losses"
    done
}

@test "pins hold for searches and rules, and cost what they cost" {
    free=$(jq .sharding.objective_sec "$BATS_FILE_TMPDIR/ilp.json")
    for a in ilp data zero3 megatron megatron-sp; do
        ap-shard --mesh 2x4 "${CPU8[@]}" --algorithm $a --pin '*mlp/fc/w*=R,S1' \
            --pin "params['gpt/h_0/mlp/fc/w']=S0,S1" "$(GPT)" >"$BATS_TEST_TMPDIR/$a.json"
        jq -e --argjson free "$free" '.sharding.layouts as $l
            | [.graph.nodes | to_entries[] | select(.value.role == "weight" and
                (.value.name | contains("mlp/fc/w"))) | $l[.key]] == ["S0,S1", "R,S1"]
            and .sharding.objective_sec >= $free' "$BATS_TEST_TMPDIR/$a.json"
    done
    jq -e -s '.[0].sharding.objective_sec <= .[1].sharding.objective_sec' \
        "$BATS_TEST_TMPDIR/ilp.json" "$BATS_TEST_TMPDIR/megatron.json"
}

@test "a pin that cannot be kept is named with the reason" {
    refuses 3 "axis y 64 devices" ap-shard --mesh 2x64 --pin 'dot_general.58=R,S1' "$(GPT)"
    refuses 3 "asked by --pin 'dot_general.58=Pmax,R'" ap-shard --mesh 2x4 --algorithm data \
        --pin 'dot_general.58=Pmax,R' "$(GPT)"
    refuses 2 "the graph has no such node; products of the forward pass: dot_general" ap-shard --mesh 2x4 \
        --pin 'nobody=R,R' "$(GPT)"
    refuses 2 "no such node; products in the scope gpt.h_0.mlp.proj: dot_general.58" ap-shard --mesh 2x4 \
        --pin 'gpt.h_0.mlp.proj=R,R' "$(GPT)"
    refuses 2 "expected 2 placements" ap-shard --mesh 2x4 --pin 'dot_general.58=R' "$(GPT)"
    refuses 2 "tofu keeps no pins: --pin '*mlp/fc/w*=R,R'" ap-shard --mesh 2x2 --algorithm tofu \
        --quiet --pin '*mlp/fc/w*=R,R' "$(GPT)"
    refuses 2 "expected GLOB=LAYOUT" ap-shard --mesh 2x4 --pin 'dot_general.58' "$(GPT)"
}

@test "a plan from a document is that plan; another cluster or graph is named" {
    want=$(jq .sharding.objective_sec "$BATS_FILE_TMPDIR/ilp.json")
    [ "$(price --plan "$BATS_FILE_TMPDIR/ilp.json" "${CPU8[@]}" "$(GPT)")" = "$want" ]
    run --separate-stderr ap-shard --plan "$BATS_FILE_TMPDIR/ilp.json" -o /dev/null "$(GPT)"
    [ "$status" -eq 0 ]
    [[ $stderr == *"made for another cluster ("* ]]
    ap-import --no-history "$(hlo gpt2l_bf16)" >"$BATS_TEST_TMPDIR/bf16.json"
    ap-shard --no-history --mesh 2x4 "${CPU8[@]}" --algorithm megatron "$(GPT)" >"$BATS_TEST_TMPDIR/f32.json"
    run --separate-stderr ap-shard --plan "$BATS_TEST_TMPDIR/f32.json" "${CPU8[@]}" \
        -o "$BATS_TEST_TMPDIR/taken.json" "$BATS_TEST_TMPDIR/bf16.json"
    [ "$status" -eq 0 ]
    [[ $stderr == *"made for another graph ("* ]]
    # every parameter has the layout that it has in the other document, whose head is tied
    # shellcheck disable=SC2016 # jq's variables
    params='.sharding.layouts as $l | [.graph.nodes | to_entries[] | select(.value.op == "parameter" and
        (.value.name | contains("gpt/head") | not)) | "\(.value.name) \($l[.key])"] | sort[]'
    cmp <(jq -r "$params" "$BATS_TEST_TMPDIR/taken.json") <(jq -r "$params" "$BATS_TEST_TMPDIR/f32.json")
    refuses 2 "another shape" ap-shard --mesh 8 --plan "$BATS_FILE_TMPDIR/ilp.json" "$(GPT)"
}

# Layouts of the inputs and weights (and states, where they differ) make the point; all else
# follows. The plan costs what the rule's does, on a mesh where both are the whole answer.
@test "rhino §1: Megatron, ZeRO and GShard as plan files validate and cost what the rules cost" {
    weights() { # FILE ALGORITHM MESH: a plan file with the parameters' layouts
        ap-shard --mesh "$3" --algorithm "$2" "$1" | jq '.sharding as $s
            | {mesh: $s.mesh, fingerprint: $s.fingerprint, nodes: [.graph.nodes | to_entries[]
                | select(.value.op == "parameter") | {(.value.name): $s.layouts[.key]}] | add}'
    }
    for case in "gpt data 4" "gpt zero2 4" "gpt megatron 2x2" "moe expert 4"; do
        read -r model algorithm mesh <<<"$case"
        file=$BATS_FILE_TMPDIR/$model.json
        weights "$file" "$algorithm" "$mesh" >"$BATS_TEST_TMPDIR/hand.json"
        ap-shard --plan "$BATS_TEST_TMPDIR/hand.json" "$file" >"$BATS_TEST_TMPDIR/plan.json"
        by_rule=$(price --mesh "$mesh" --algorithm "$algorithm" "$file")
        echo "$case: $(jq .sharding.objective_sec "$BATS_TEST_TMPDIR/plan.json"), rule $by_rule"
        jq -e --argjson rule "$by_rule" '.sharding.algorithm == "plan"
            and .sharding.lower_bound_sec == 0
            and (.sharding.objective_sec / $rule | . > 0.7 and . < 1.3)' "$BATS_TEST_TMPDIR/plan.json"
    done
}

@test "plan files that are wrong say where" {
    hand() { echo "$1" >"$BATS_TEST_TMPDIR/hand.json"; }
    hand '{"mesh":"2x2","nodes":{"nobody":"R,R"}}'
    refuses 1 "/nodes/nobody: the graph has no such node" ap-shard --plan "$BATS_TEST_TMPDIR/hand.json" "$(GPT)"
    hand '{"mesh":"2x2","nodes":{"*fc/w*":"R"}}'
    refuses 1 "expected 2 placements" ap-shard --plan "$BATS_TEST_TMPDIR/hand.json" "$(GPT)"
    hand '{"mesh":"2x2","nodes":{"*fc/w*":7}}'
    refuses 1 "expected a layout" ap-shard --plan "$BATS_TEST_TMPDIR/hand.json" "$(GPT)"
    hand '{"mesh":"2x2"'
    refuses 1 "hand.json:" ap-shard --plan "$BATS_TEST_TMPDIR/hand.json" "$(GPT)"
    hand '{"mesh":"2x2"}'
    refuses 1 'an object with "nodes"' ap-shard --plan "$BATS_TEST_TMPDIR/hand.json" "$(GPT)"
    hand '{"mesh":"2x2","nodes":{},"copies":["x"]}'
    refuses 1 "hand.json: /copies: a plan has no such member" \
        ap-shard --plan "$BATS_TEST_TMPDIR/hand.json" "$(GPT)"
    hand '{"mesh":"2x2","nodes":{},"regather":"x"}'
    refuses 1 "hand.json: /regather: expected an array" \
        ap-shard --plan "$BATS_TEST_TMPDIR/hand.json" "$(GPT)"
    hand '{"nodes":{}}'
    refuses 2 "names no mesh" ap-shard --plan "$BATS_TEST_TMPDIR/hand.json" "$(GPT)"
    hand '{"mesh":"2x64","nodes":{"dot_general.58":"R,S1"}}'
    refuses 3 "asked by" ap-shard --plan "$BATS_TEST_TMPDIR/hand.json" "$(GPT)"
    refuses 2 "cannot be combined with --start" ap-shard --plan a --start b --mesh 4 "$(GPT)"
    refuses 2 "--start is for ilp" ap-shard --start b --algorithm data --mesh 4 "$(GPT)"
    refuses 2 "--plan is a complete plan: it cannot be combined with --rounds" ap-shard --plan b --rounds 3 "$(GPT)"
}

@test "a search from a start is never worse than the start" {
    # the start is the optimum; the search alone would stop at its first step
    ap-shard --start "$BATS_FILE_TMPDIR/ilp.json" --work-limit 1 "${CPU8[@]}" "$(GPT)" |
        jq -e -s --slurpfile start "$BATS_FILE_TMPDIR/ilp.json" \
            '.[0].sharding | .algorithm == "ilp" and .objective_sec <= $start[0].sharding.objective_sec'
    ap-shard --no-history --mesh 2x4 --algorithm zero3 "${CPU8[@]}" "$(GPT)" >"$BATS_TEST_TMPDIR/zero3.json"
    [ "$(price --start "$BATS_TEST_TMPDIR/zero3.json" "${CPU8[@]}" "$(GPT)")" = \
        "$(jq .sharding.objective_sec "$BATS_FILE_TMPDIR/ilp.json")" ]
}

@test "--mesh auto keeps the best view and lists all, with any number of jobs" {
    for j in 1 3; do
        ap-shard --no-history --mesh auto --jobs $j "${CPU8[@]}" "$(GPT)" >"$BATS_TEST_TMPDIR/$j.json"
    done
    cmp "$BATS_TEST_TMPDIR/1.json" "$BATS_TEST_TMPDIR/3.json"
    jq -e '.sharding | [.meshes[].shape] | sort == [[2,4],[4,2],[8]]' "$BATS_TEST_TMPDIR/1.json"
    jq -e '.sharding | .objective_sec == ([.meshes[].objective_sec] | min)
        and .meshes[0].shape == .mesh.shape' "$BATS_TEST_TMPDIR/1.json"
    [ "$(price --mesh 8 "${CPU8[@]}" "$(GPT)")" = \
        "$(jq '.sharding.meshes[] | select(.shape == [8]).objective_sec' "$BATS_TEST_TMPDIR/1.json")" ]
    /usr/bin/python3 tests/validate.py "$BATS_TEST_TMPDIR/1.json"
    refuses 2 "needs --cluster" ap-shard --mesh auto "$(GPT)"
}

@test "--max-axes: --mesh auto looks at meshes of so many axes" {
    for axes in 1 3; do
        ap-shard --mesh auto --max-axes $axes --algorithm data "${CPU8[@]}" "$(GPT)" |
            jq -c '[.sharding.meshes[].shape | length] | [max, length]'
    done >"$BATS_TEST_TMPDIR/axes"
    [ "$(paste -sd' ' "$BATS_TEST_TMPDIR/axes")" = "[1,1] [3,4]" ] # 8; 8, 2x4, 4x2, 2x2x2
}

@test "--mesh auto: a view without a plan is listed with the reason" {
    local most
    most=$(ap-shard --mesh 8 --algorithm expert "${CPU8[@]}" "$BATS_FILE_TMPDIR/moe.json" | jq .sharding.peak_bytes)
    ap-shard --mesh auto --algorithm expert --memory "$most" "${CPU8[@]}" "$BATS_FILE_TMPDIR/moe.json" |
        jq -e '.sharding.meshes | any(has("objective_sec")) and any(.error | length > 0) and
            all(has("objective_sec") or (.error | length > 0))'
    refuses 3 "no view of the cluster has a plan: expert does not exist here" \
        ap-shard --mesh auto --algorithm expert "${CPU8[@]}" "$(GPT)"
}

# serve LINE...: answers
serve() { printf '%s\n' "$@" | ap-shard --serve "${CPU8[@]}" "$BATS_FILE_TMPDIR/blocks.json"; }

@test "--serve answers a line per line, the whole graph with the search's price" {
    lines=('{"id":"a","blocks":[0,2],"mesh":"2x4"}' '{"id":[2],"blocks":[0,0],"submesh":[1,4]}')
    serve "${lines[0]}" | jq -e --argjson sec "$(jq .sharding.objective_sec "$BATS_FILE_TMPDIR/ilp.json")" \
        '.objective_sec / $sec | . > 0.998 and . < 1.01'
    # with a limit of work, all strategies are searched
    printf '%s\n' "${lines[@]}" | ap-shard --serve --work-limit 20 "${CPU8[@]}" \
        "$BATS_FILE_TMPDIR/blocks.json" >"$BATS_TEST_TMPDIR/answers"
    jq -e -s --argjson sec "$(jq .sharding.objective_sec "$BATS_FILE_TMPDIR/ilp.json")" '
        [.[].id] == ["a", [2]] and (.[0].objective_sec / $sec | . > 0.998 and . < 1.002)
        and ([.[0].front[] | select(.algorithm == "ilp" and (.recompute | not))
            | .sec_per_microbatch.forward + .sec_per_microbatch.backward + .sec_per_step + .slack_sec] | min
            | . / $sec | . > 0.998 and . < 1.002)' "$BATS_TEST_TMPDIR/answers"
    # a front: nothing is covered
    jq -e -s '.[1].front | map([.sec_per_microbatch.forward + .sec_per_microbatch.backward,
            .sec_per_step, .stage_bytes, .bytes_per_microbatch]) as $f
        | [range($f | length) as $i | range($f | length) as $k | select($i != $k)
            | [range(4) as $m | $f[$i][$m] <= $f[$k][$m]] | all] | any | not' "$BATS_TEST_TMPDIR/answers"
}

@test "--serve: microbatches divide time and memory, and what is done once per step stays" {
    serve '{"id":1,"blocks":[0,1],"submesh":[1,2],"microbatches":1}' \
        '{"id":4,"blocks":[0,1],"submesh":[1,2],"microbatches":4}' >"$BATS_TEST_TMPDIR/answers"
    jq -e -s 'map(.front | map(select(.recompute | not)) | min_by(.sec_per_step)) as [$one, $four]
        | $four.bytes_per_microbatch * 4 <= $one.bytes_per_microbatch * 1.001
        and $four.sec_per_microbatch.forward < $one.sec_per_microbatch.forward
        and $four.sec_per_microbatch.forward * 4 >= $one.sec_per_microbatch.forward * 0.999' \
        "$BATS_TEST_TMPDIR/answers"
}

@test "--serve answers what it cannot answer with an error and goes on" {
    serve 'nonsense' '[]' '{"id":1}' '{"id":2,"blocks":[0,9],"mesh":"4"}' \
        '{"id":3,"blocks":[1,0],"mesh":"4"}' '{"id":4,"blocks":[0,0],"mesh":"4","submesh":[1,2]}' \
        '{"id":5,"blocks":[0,0],"submesh":[2,8]}' '{"id":6,"blocks":[0,0],"mesh":"4","microbatches":64}' \
        '{"id":7,"blocks":[0,0],"mesh":"4","memory":10}' '{"id":8,"blocks":[0,0],"mesh":"4","mem":1}' \
        '{"id":9,"blocks":[0,0],"mesh":"4"}' >"$BATS_TEST_TMPDIR/answers"
    jq -e -s 'length == 11 and (.[:10] | all(.error | length > 0)) and (.[10].front | length > 0)
        and .[8].error == "no plan within 10 bytes; the least needs \(.[8].error | capture("needs (?<n>[0-9]+)").n)"' \
        "$BATS_TEST_TMPDIR/answers"
    refuses 2 "name the document" ap-shard --serve "${CPU8[@]}"
    refuses 2 "requests have their own mesh" ap-shard --serve --mesh 4 "${CPU8[@]}" "$(GPT)"
    refuses 2 "needs --cluster" ap-shard --serve "$(GPT)" </dev/null
}

@test "ap-cost corrects an objective that is not the plan's, and drops its bound" {
    jq '.sharding.objective_sec = 1e-9 | .sharding.lower_bound_sec = 1e-9' "$BATS_FILE_TMPDIR/ilp.json" \
        >"$BATS_TEST_TMPDIR/wrong.json"
    run --separate-stderr ap-cost --no-history -o "$BATS_TEST_TMPDIR/right.json" "$BATS_TEST_TMPDIR/wrong.json"
    [ "$status" -eq 0 ]
    [[ $stderr == *"is not what the plan costs"* ]]
    jq -e -s '.[0].sharding.objective_sec == .[1].sharding.objective_sec
        and .[0].sharding.lower_bound_sec == 0' "$BATS_TEST_TMPDIR/right.json" "$BATS_FILE_TMPDIR/ilp.json"
    run --separate-stderr ap-cost --no-history -o /dev/null "$BATS_FILE_TMPDIR/ilp.json"
    [ -z "$stderr" ]
}
