#!/usr/bin/env bats
# ap-shard --serve for planners of pipelines: equal parts, deeper parts, the sharding of a
# point, memory against time, hostile requests. The rest is in shard_points.bats.

load helpers

setup_file() {
    ap-model gpt --layers 9 --hidden 256 --heads 4 --seq 64 --batch 16 --vocab 512 |
        ap-prune | ap-coarsen --blocks 10 -o "$BATS_FILE_TMPDIR/gpt.json"
    [ "$(jq .blocks.n "$BATS_FILE_TMPDIR/gpt.json")" != 1 ]
}

# serve LINE...: answers
serve() {
    printf '%s\n' "$@" |
        ap-shard --serve --cluster "$CLUSTERS/cpu-8.json" "$BATS_FILE_TMPDIR/gpt.json"
}

@test "--serve: parts that are equal get one answer, named by run or by set" {
    serve '{"id":0,"blocks":[2,3],"mesh":"8"}' '{"id":0,"blocks":[5,6],"mesh":"8"}' \
        '{"id":0,"set":[2,3],"mesh":"8"}' '{"id":0,"set":[2,4],"mesh":"8"}' >"$BATS_TEST_TMPDIR/a"
    [ "$(head -n 3 "$BATS_TEST_TMPDIR/a" | sort -u | wc -l)" -eq 1 ]
    [ "$(sort -u "$BATS_TEST_TMPDIR/a" | wc -l)" -eq 2 ]
    jq -e -s 'all(.front | length > 0)' "$BATS_TEST_TMPDIR/a"
}

@test "--serve: an answer does not depend on what was asked before" {
    lines=('{"id":1,"blocks":[1,6],"submesh":[1,4],"microbatches":4}'
        '{"id":2,"blocks":[0,3],"mesh":"8"}' '{"id":3,"blocks":[1,2],"submesh":[1,4]}'
        '{"id":4,"blocks":[3,3],"submesh":[1,4],"microbatches":4}')
    serve "${lines[@]}" | sort >"$BATS_TEST_TMPDIR/there"
    serve "${lines[3]}" "${lines[2]}" "${lines[1]}" "${lines[0]}" | sort >"$BATS_TEST_TMPDIR/back"
    cmp "$BATS_TEST_TMPDIR/there" "$BATS_TEST_TMPDIR/back"
}

@test "--serve: deeper runs are searched once, and cost what their plans cost" {
    local k lines=()
    for k in 2 3 4 5 6 7; do
        lines+=("{\"id\":$k,\"blocks\":[1,$k],\"mesh\":\"8\",\"plan\":0}")
    done
    printf '%s\n' "${lines[@]}" | ap-shard --serve --stats --cluster "$CLUSTERS/cpu-8.json" \
        "$BATS_FILE_TMPDIR/gpt.json" >"$BATS_TEST_TMPDIR/a" 2>"$BATS_TEST_TMPDIR/stats"
    jq -e '.requests == 6 and .searches == 1' "$BATS_TEST_TMPDIR/stats"
    # the section is priced by itself, node by node
    jq -e -s 'all(.front[0] as $p | ($p.recompute | not)
        and ((($p.sec_per_microbatch.forward + $p.sec_per_microbatch.backward + $p.sec_per_step)
            / .sharding.objective_sec - 1) | fabs) < 1e-9)' "$BATS_TEST_TMPDIR/a"
    # and grows by as much for each further layer
    jq -e -s 'map(.objective_sec) | [.[1:], .[:-1]] | transpose | map(.[0] - .[1])
        | (max - min) / max < 1e-6' "$BATS_TEST_TMPDIR/a"
}

@test "--serve: a value that arrives inside of what was one operator lies as it did there" {
    local k n
    ap-model wresnet-250m --batch 16 --image 64 | ap-prune --quiet | ap-coarsen --quiet \
        --algorithm rannc --blocks 40 --cluster cpu-8 -o "$BATS_TEST_TMPDIR/in.json"
    n=$(jq .blocks.n "$BATS_TEST_TMPDIR/in.json")
    for ((k = 0; k + 3 < n; k++)); do # by sums over blocks, and by itself
        printf '{"id":%d,"blocks":[%d,%d],"mesh":"8"%s}\n' $k $k $((k + 3)) '' $k $k \
            $((k + 3)) ',"plan":0'
    done | ap-shard --serve --algorithm data --microbatch each --cluster cpu-8 \
        "$BATS_TEST_TMPDIR/in.json" >"$BATS_TEST_TMPDIR/a"
    jq -e -s 'length > 30 and (group_by(.id) | all(map(.front[0].bytes_per_microbatch)
        | .[0] == .[1]))' "$BATS_TEST_TMPDIR/a"
}

@test "--serve: numbers of microbatches that leave rows to the same devices share a search" {
    local m with
    for m in 1 4 8 16; do
        echo "{\"id\":$m,\"blocks\":[1,3],\"mesh\":\"8\",\"microbatches\":$m}"
    done >"$BATS_TEST_TMPDIR/lines"
    for with in ilp:2 megatron:1; do # 16 rows: all devices have some, or 4 of them and fewer
        ap-shard --serve --stats --algorithm "${with%:*}" --cluster "$CLUSTERS/cpu-8.json" \
            "$BATS_FILE_TMPDIR/gpt.json" <"$BATS_TEST_TMPDIR/lines" \
            >"$BATS_TEST_TMPDIR/a" 2>"$BATS_TEST_TMPDIR/stats"
        jq -e --argjson n "${with#*:}" '.searches == $n' "$BATS_TEST_TMPDIR/stats"
        jq -e -s 'all(.front | length > 0)' "$BATS_TEST_TMPDIR/a"
    done
    serve "$(sed -n 3p "$BATS_TEST_TMPDIR/lines")" >"$BATS_TEST_TMPDIR/alone"
    serve "$(sed -n 1p "$BATS_TEST_TMPDIR/lines")" "$(sed -n 3p "$BATS_TEST_TMPDIR/lines")" |
        tail -n 1 | cmp - "$BATS_TEST_TMPDIR/alone"
}

@test "--serve: few rows are searched from the plans for many, and nearly as well as among all strategies" {
    local mesh line
    for mesh in 2x4 4x2; do
        line="{\"blocks\":[0,9],\"mesh\":\"$mesh\",\"microbatches\":16}"
        serve "$line" >"$BATS_TEST_TMPDIR/few"
        serve "${line/16/1}" "$line" | tail -n 1 | cmp - "$BATS_TEST_TMPDIR/few"
        ap-shard --serve --work-limit 50 --cluster "$CLUSTERS/cpu-8.json" "$BATS_FILE_TMPDIR/gpt.json" \
            <<<"$line" | cat - "$BATS_TEST_TMPDIR/few" |
            jq -e -s '.[1].objective_sec <= .[0].objective_sec * 1.05'
    done
}

@test "--serve: the whole graph costs at most a hundredth more than the search of all of it" {
    n=$(jq '.blocks.n' "$BATS_FILE_TMPDIR/gpt.json")
    ours=$(serve "{\"blocks\":[0,$((n - 1))],\"mesh\":\"8\"}" | jq .objective_sec)
    best=$(ap-shard --mesh 8 --cluster "$CLUSTERS/cpu-8.json" "$BATS_FILE_TMPDIR/gpt.json" |
        jq .sharding.objective_sec)
    jq -n -e --argjson a "$ours" --argjson b "$best" '$a >= $b * 0.9999 and $a <= $b * 1.01'
}

@test "--serve: the front trades time for memory, and is small" {
    serve '{"blocks":[1,6],"mesh":"2x4","microbatches":4}' '{"blocks":[0,4],"mesh":"8","microbatches":4}' |
        jq -e -s 'all(.front | length <= 12 and (map(.stage_bytes) | min) * 1.25 < .[0].stage_bytes)'
}

@test "--serve: bounds are below the plans" {
    serve '{"blocks":[1,2],"mesh":"8"}' '{"blocks":[1,7],"mesh":"8"}' '{"blocks":[0,0],"mesh":"2x4"}' |
        jq -e -s 'all(.lower_bound_sec > 0 and .lower_bound_sec <= .objective_sec)'
}

@test "--serve: bad sets and plans are answered, and the next request is read" {
    serve '{"set":[],"mesh":"8"}' '{"set":[3,2],"mesh":"8"}' '{"set":[1,99],"mesh":"8"}' \
        '{"set":7,"mesh":"8"}' '{"set":[1],"blocks":[1,2],"mesh":"8"}' '{"set":[1e99],"mesh":"8"}' \
        '{"blocks":[1,2],"mesh":"8","plan":12}' '{"blocks":[1,2],"mesh":"8","plan":-1}' \
        '{"blocks":[1,2],"mesh":"8","plan":"x"}' '{"blocks":[1,2],"mesh":"8","plan":0.5}' \
        '{"blocks":[1,2],"mesh":"999999999x9"}' "$(printf '[%.0s' {1..5000})" \
        '{"blocks":[1,2],"mesh":"8"}' >"$BATS_TEST_TMPDIR/a"
    jq -e -s 'length == 13 and (.[:12] | all(.error | length > 0)) and (.[12].front | length > 0)' \
        "$BATS_TEST_TMPDIR/a"
}

# Whoever takes a part's values takes them as they lie: that is not the part's to gather.
@test "--serve: data parallelism gathers nothing at the border of a part" {
    printf '{"blocks":[1,2],"mesh":"8","plan":0}\n' |
        ap-shard --serve --algorithm data --cluster "$CLUSTERS/cpu-8.json" "$BATS_FILE_TMPDIR/gpt.json" |
        jq -e '[.sharding.conversions[].steps[].op] | index("all-gather") == null and index("all-reduce") != null'
}

@test "--serve: weights, states and gradients take their bytes once, the update what it makes" {
    local optimizer held made
    while read -r optimizer held made; do # bytes per parameter; of the weight being updated
        ap-model mlp --layers 1 --features 2048 --classes 2048 --batch 1 --dtype f32 \
            --optimizer "$optimizer" | ap-coarsen --algorithm none >"$BATS_TEST_TMPDIR/mlp.json"
        ap-shard --serve --cluster "$CLUSTERS/cpu-8.json" "$BATS_TEST_TMPDIR/mlp.json" \
            <<<'{"blocks":[0,0],"submesh":[1,1]}' | jq -e --argjson b $((held + made)) \
            '.front[0].stage_bytes / (2048 * 2048 * $b) | . >= 1 and . < 1.01'
    done <<<$'sgd 8 4\nmomentum 12 8\nadam 16 12'
}

@test "--serve: every algorithm answers with its own plan, tofu on the halvings of the mesh" {
    local algorithm answer=$BATS_TEST_TMPDIR/a n
    n=$(jq .blocks.n "$BATS_FILE_TMPDIR/gpt.json")
    for algorithm in tofu tap rhino data zero3 megatron; do
        printf '{"blocks":[0,%d],"mesh":"2x4","plan":0}\n{"blocks":[2,3],"mesh":"8","plan":0}\n' \
            $((n - 1)) | ap-shard --serve --algorithm $algorithm --cluster "$CLUSTERS/cpu-8.json" \
            "$BATS_FILE_TMPDIR/gpt.json" >"$answer"
        jq -e -s --arg a $algorithm 'all(.front | length > 0 and all(.algorithm == $a)) and
            all(.sharding.mesh.shape | (. == [2, 2, 2]) == ($a == "tofu"))' "$answer"
        # of the whole graph it is what the same algorithm says alone
        ap-shard --mesh 2x4 --algorithm $algorithm --cluster "$CLUSTERS/cpu-8.json" \
            "$BATS_FILE_TMPDIR/gpt.json" | jq -e --slurpfile a "$answer" \
            '.sharding.objective_sec / $a[0].sharding.objective_sec - 1 | fabs < 0.01'
    done
    ap-shard --serve --algorithm tofu --cluster "$CLUSTERS/cpu-8.json" "$BATS_FILE_TMPDIR/gpt.json" \
        <<<'{"blocks":[2,3],"submesh":[1,3]}' | jq -e '.error | test("3, not a power of two")'
}

@test "--serve --cost-model: the plan is the model's, its price is seconds" {
    local model bytes=() f=$BATS_FILE_TMPDIR/gpt.json
    for model in default bytes alpa; do
        echo '{"blocks":[0,8],"mesh":"8","plan":0}' |
            ap-shard --serve --cost-model $model --cluster cpu-8 "$f" >"$BATS_TEST_TMPDIR/$model"
        jq -e '.front[0] as $p | .sharding | .cost_model == "default" and
            ((($p.sec_per_microbatch | .forward + .backward) + $p.sec_per_step) / .objective_sec - 1 | fabs < 1e-9)' \
            "$BATS_TEST_TMPDIR/$model"
        bytes+=("$(jq '[.sharding.conversions[].steps[].bytes] | add' "$BATS_TEST_TMPDIR/$model")")
    done
    [ "${bytes[1]}" -lt "${bytes[0]}" ] # seconds split compute, at the price of bytes
    # no objective or bound in another unit, and no plan by rule
    jq -e '(has("objective_sec") or has("lower_bound_sec") | not) and all(.front[]; .algorithm == "ilp")' \
        "$BATS_TEST_TMPDIR/bytes"
}
