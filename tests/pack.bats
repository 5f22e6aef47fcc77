#!/usr/bin/env bats
# ap-rewrite --pack-bytes and --overlap: gradients in buckets, collectives in flight.
# shellcheck disable=SC2016 # what jq expands

load helpers

# step SEED MESH ALGORITHM: the plan of a random graph's train step.
step() {
    /usr/bin/python3 tests/chain.py "$1" 8 8 | ap-import --quiet --no-history |
        ap-grad --quiet --no-history --optimizer sgd --lr 1 |
        ap-shard --quiet --no-history --mesh "$2" --algorithm "$3"
}

# A small GPT on two devices.
gpt() {
    ap-model --no-history gpt --layers 2 --hidden 64 --heads 4 --seq 16 --vocab 128 --batch 8 |
        ap-shard --quiet --no-history --mesh 2 --algorithm "$1"
}

@test "pack: gradients are reduced in buckets of about equal bytes, the same bytes in all" {
    local dir=$BATS_TEST_TMPDIR a
    for a in data zero2; do
        gpt $a >"$dir/plan.json"
        ap-rewrite --no-history "$dir/plan.json" >"$dir/plain.json"
        ap-rewrite --no-history --pack-bytes 100000 "$dir/plan.json" >"$dir/packed.json"
        jq -e --slurpfile plain "$dir/plain.json" '
            def sum: [.program.collectives[] | {op, axes, bytes}];
            sum == ($plain[0] | sum) and .program.peak_bytes <= 1.01 * $plain[0].program.peak_bytes and
            (.program.modules[0].graph.nodes as $n |
                [$n[] | select((.name | test("pack")) and .op == "concatenate") | [.in[] | $n[.].shape |
                    [scan("[0-9]+") | tonumber][1:] | reduce .[] as $d (4; . * $d)] | add] |
                length == 5 and min > 50000 and max < 140000)' "$dir/packed.json" || { echo $a; return 1; }
        /usr/bin/python3 tests/validate.py "$dir/packed.json"
    done
}

@test "pack: a bucket's all-reduce takes place in it, and gradients are views of it" {
    gpt data | ap-rewrite --no-history --pack-bytes 100000 | jq -e '
        .program.modules[0] | .graph.nodes as $n | .buffers as $b |
        [range($n | length) | select($n[.].op == "all-reduce" and ($n[.].name | test("pack")))] |
        length > 0 and all($b.alias[.] == $n[.].in[0])
        and ([range($n | length) | select($n[.].op == "slice" and ($n[.].name | test("pack")))] |
            length == 36 and all($b.alias[.] == $n[$n[.].in[0]].in[0]))'
}

@test "pack: collectives start early and are awaited by their first reader" {
    gpt zero2 | ap-rewrite --no-history --overlap --pack-bytes 100000 | jq -e '
        .program.modules[0] | .graph.nodes as $n | .async as $a |
        ($a | length > 5) and all($a[]; .start as $s | .wait as $w |
            ($n | map(select(.group == $s)) | length == 1 and (.[0].op | IN("all-reduce", "reduce-scatter", "all-gather"))) and
            $w > $s + 1)'
}

@test "pack: gathers of weights run one ahead" {
    local dir=$BATS_TEST_TMPDIR
    gpt zero3 >"$dir/plan.json"
    ap-rewrite --no-history "$dir/plan.json" >"$dir/plain.json"
    ap-rewrite --no-history --overlap "$dir/plan.json" | jq -e --slurpfile plain "$dir/plain.json" '
        ($plain[0].program.peak_bytes + 65536) as $most | .program.peak_bytes <= $most and
        (.program.modules[0] | (.async | map(.start)) as $start |
            [.graph.nodes[] | select(.op == "all-gather") | .group as $g | $start | index($g)] |
            length == 54 and (map(select(.)) | length > 40))'
}

@test "pack: the price pays the latency of a bucket once" {
    local dir=$BATS_TEST_TMPDIR way
    gpt data >"$dir/plan.json"
    for way in 0 100000; do
        ap-rewrite --no-history --pack-bytes $way "$dir/plan.json" | ap-cost --no-history >"$dir/$way.json"
    done
    ap-cost --no-history "$dir/plan.json" | jq -c .cost >"$dir/cost"
    jq -c .cost "$dir/0.json" | cmp - "$dir/cost"
    jq -e --slurpfile plain "$dir/cost" '
        .cluster.levels[0].latency_sec as $alpha | .cost as $c | ($plain[0].comm_sec - $c.comm_sec) as $less |
        $c.collectives[0].count == 6 and $plain[0].collectives[0].count == 37 and
        ($less / (31 * 2 * $alpha) | . > 0.99 and . < 1.01) and
        ($plain[0].step_sec - $c.step_sec - $less | . < 1e-12 and . > -1e-12)' "$dir/100000.json"
    # a program of another plan says nothing of this one
    gpt zero2 | jq -c --slurpfile other "$dir/100000.json" '.program = $other[0].program' | ap-cost --no-history |
        jq -c .cost >"$dir/zero2"
    gpt zero2 | ap-cost --no-history | jq -c .cost | cmp - "$dir/zero2"
}

@test "pack: random train steps give one device's bits" {
    needs_exec
    local seed n=0 rules=(zero3 data zero2 data) packs=(100 130 300 4000) meshes=(2 2x2)
    for seed in 1 2 3 5 6 7; do
        step $seed "${meshes[seed / 2 % 2]}" "${rules[seed % 4]}" |
            ap-rewrite --no-history --overlap --pack-bytes "${packs[seed / 2 % 4]}" >"$BATS_TEST_TMPDIR/run.json"
        ap-exec -n "$(jq .program.n_ranks "$BATS_TEST_TMPDIR/run.json")" --quiet --verify --seed $seed --small-ints \
            --tolerance 0 "$BATS_TEST_TMPDIR/run.json"
        n=$((n + $(jq '[.program.modules[0].graph.nodes[] | select(.name | test("concatenate.pack"))] | length' \
            "$BATS_TEST_TMPDIR/run.json")))
    done
    [ $n -gt 5 ]
}

@test "pack: what is summed in flight, in pieces, is what is summed at once, to the bit" {
    local dir=$BATS_TEST_TMPDIR a op vocab run
    needs_exec
    while read -r a op vocab; do
        # the table's gradient has 2.3 MB: three pieces
        ap-model --no-history gpt --layers 1 --hidden 96 --heads 4 --seq 8 --vocab "$vocab" --batch 6 |
            ap-shard --quiet --no-history --mesh 3 --algorithm $a >"$dir/plan.json"
        ap-rewrite --no-history "$dir/plan.json" >"$dir/plain.json"
        ap-rewrite --no-history --overlap --pack-bytes 0 "$dir/plan.json" >"$dir/flight.json"
        jq -e --arg op "$op" '.program.modules[0] | .graph.nodes as $n |
            any(.async[].start as $s | $n[] | select(.group == $s) | .op; . == $op)' "$dir/flight.json"
        for run in plain flight; do ap-exec -n 3 --seed 1 --steps 2 --out "$dir/$a.$run" "$dir/$run.json" </dev/null >"$dir/$run.out"; done
        diff "$dir/plain.out" "$dir/flight.out"
        diff -r "$dir/$a.plain" "$dir/$a.flight"
    done <<<$'data all-reduce 6001\nzero2 reduce-scatter 6000'
}

@test "pack: reads before the wait and writes in flight are refused" {
    local dir=$BATS_TEST_TMPDIR
    gpt data | ap-rewrite --no-history --overlap --pack-bytes 100000 >"$dir/run.json"
    refused() {
        jq -c "$2" "$dir/run.json" >"$dir/bad.json"
        refuses 1 "$1" ap-exec "$dir/bad.json"
    }
    needs_exec
    refused "reads what a collective still makes: it is awaited later" '.program.modules[0].async[1].wait += 1'
    refused "is awaited, but is no collective between devices" '.program.modules[0].async += [{start: 200, wait: 240}]'
    refused "/program/modules/0/async/0/wait: expected" '.program.modules[0].async[0].wait = 3'
    refused "is awaited twice" '.program.modules[0].async += [.program.modules[0].async[0]]'
    # a value that is made while a bucket is in flight, in the bucket
    refused "memory" '.program.modules[0] |= (.async[1] as $a |
        (.graph.nodes | map(.group == $a.start) | index(true)) as $c | .buffers.offset[$c] as $at |
        (.graph.nodes | map(.group == $a.start + 3) | index(true)) as $v | .buffers.offset[$v] = $at)'
}

@test "pack: options that do not go together are refused" {
    refuses 2 "--overlap and --pack-bytes are for --to program" ap-rewrite --to jax --overlap "$(imported mlp)"
    refuses 2 "--pack-bytes: expected" ap-rewrite --pack-bytes x "$(imported mlp)"
}
