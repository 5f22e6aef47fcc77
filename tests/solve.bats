#!/usr/bin/env bats
# ap-solve: the selection problem with memory, from outside.

load helpers

# problem SEED NODES STRATEGIES: a ring with chords, intervals and a limit that binds; a strategy
# that costs less uses more.
problem() {
    jq -nc --argjson seed "$1" --argjson n "$2" --argjson k "$3" '
        def h($x): ($x * 7919 + $seed * 104729) % 1009;
        def table($e): [range($k * $k) | if h(. + 31 * $e) < 60 then 1000000000000000000
            else h(. * 3 + $e) end];
        [range($n) | [., (. + 1) % $n], select(. % 3 == 0) | if type == "number"
            then [., (. + 5) % $n] else . end] as $ends |
        {problem: {name: "ring",
            edges: {nodes: $ends, costs: [range($ends | length) | table(.)]},
            nodes: {intervals: [range($n) | [., . + 6]],
                costs: [range($n) as $v | [range($k) | 300 * . + h($v + 11 * .)]],
                usages: [range($n) as $v | [range($k) | 100 * ($k - .) + h($v * 5 + .) % 50]]},
            usage_limit: (6 * (60 * $k + 50))}}'
}

@test "solve: exact, glpk and auto agree, and the evaluator with them" {
    for seed in 1 2 3; do
        problem "$seed" 9 4 >"$BATS_TEST_TMPDIR/p.json"
        for a in exact glpk auto; do
            ap-solve --algorithm "$a" "$BATS_TEST_TMPDIR/p.json" >"$BATS_TEST_TMPDIR/$a"
            head -n 1 "$BATS_TEST_TMPDIR/$a" | jq -c '[.objective, .bound, .gap, .stopped]'
            scripts/bench/solve-check "$BATS_TEST_TMPDIR/p.json" "$BATS_TEST_TMPDIR/$a" |
                jq -e --argjson answer "$(head -n 1 "$BATS_TEST_TMPDIR/$a")" '
                .legal and .cost == $answer.objective and .peak == $answer.peak'
        done | sort -u >"$BATS_TEST_TMPDIR/all"
        [ "$(wc -l <"$BATS_TEST_TMPDIR/all")" -eq 2 ] || { cat "$BATS_TEST_TMPDIR/all"; return 1; }
        grep -q ',0,"optimal"' "$BATS_TEST_TMPDIR/all"
    done
}

@test "solve: answers repeat byte for byte, for any number of threads" {
    problem 7 40 5 >"$BATS_TEST_TMPDIR/p.json"
    ap-solve --algorithm local --work-limit 2 --threads 1 "$BATS_TEST_TMPDIR/p.json" >"$BATS_TEST_TMPDIR/1"
    ap-solve --algorithm local --work-limit 2 --threads 2 <"$BATS_TEST_TMPDIR/p.json" |
        cmp - "$BATS_TEST_TMPDIR/1"
    gzip -c "$BATS_TEST_TMPDIR/p.json" | ap-solve --algorithm local --work-limit 2 |
        cmp - "$BATS_TEST_TMPDIR/1"
    jq -c '.problem |= (to_entries | reverse | from_entries)' "$BATS_TEST_TMPDIR/p.json" |
        ap-solve --algorithm local --work-limit 2 | cmp - "$BATS_TEST_TMPDIR/1"
}

@test "solve: the answer is there in time, legal, with a bound" {
    # work for hours, whose first choice is legal
    scripts/bench/solve-gen tight 400 1 >"$BATS_TEST_TMPDIR/p.json"
    ap-solve --algorithm local --time-limit 0.5 --work-limit 10000000 --stats "$BATS_TEST_TMPDIR/p.json" \
        2>"$BATS_TEST_TMPDIR/stats" >"$BATS_TEST_TMPDIR/a"
    jq -e '.sec < 60 and .nodes == 400' "$BATS_TEST_TMPDIR/stats"
    head -n 1 "$BATS_TEST_TMPDIR/a" | jq -e '.stopped == "time limit" and .bound > 0 and .bound <= .objective'
    scripts/bench/solve-check "$BATS_TEST_TMPDIR/p.json" "$BATS_TEST_TMPDIR/a" | jq -e .legal
}

@test "solve: a limit of time that is over when the problem has been read" {
    scripts/bench/solve-gen tight 6000 1 >"$BATS_TEST_TMPDIR/p.json"
    for a in auto local exact; do
        ap-solve --algorithm "$a" --time-limit 0.001 "$BATS_TEST_TMPDIR/p.json" >"$BATS_TEST_TMPDIR/a"
        scripts/bench/solve-check "$BATS_TEST_TMPDIR/p.json" "$BATS_TEST_TMPDIR/a" | jq -e .legal
        head -n 1 "$BATS_TEST_TMPDIR/a" |
            jq -e '.stopped == "time limit" and .bound > 0 and .bound < .objective'
    done
}

@test "solve: no legal choice is exit 3" {
    problem 1 9 4 | jq -c '.problem.usage_limit = 10' >"$BATS_TEST_TMPDIR/p.json"
    refuses 3 "no solution: at time" ap-solve "$BATS_TEST_TMPDIR/p.json"
    problem 1 9 4 | jq -c '.problem.edges.costs[0] |= map(1000000000000000000)' \
        >"$BATS_TEST_TMPDIR/p.json"
    for a in auto exact local glpk; do
        refuses 3 "no solution" ap-solve --algorithm "$a" "$BATS_TEST_TMPDIR/p.json"
    done
}

@test "solve: bad input is named by line and column, or element" {
    bad() { # TEXT JSON
        printf '%s' "$2" >"$BATS_TEST_TMPDIR/bad.json"
        refuses 1 "bad.json:$1" ap-solve "$BATS_TEST_TMPDIR/bad.json"
    }
    bad " the input is empty" ''
    bad "1:1: expected '{'" '[]'
    bad "1:27: expected a number >= 0" '{"problem":{"usage_limit":-1}}'
    bad "1:30: expected an integer" '{"problem":{"usage_limit":1.5}}'
    bad $'2:11: expected a number >= 0' $'{"problem":{"nodes":{\n"costs":[[x]]}}}'
    bad "1:23: expected ','" '{"problem":{"nodes":{}]}'
    bad " expected a member" '{}'
    bad " /problem/nodes/costs/0: expected at least one strategy" \
        '{"problem":{"nodes":{"costs":[[]]}}}'
    bad " /problem/nodes/costs/1: expected at least one strategy" \
        '{"problem":{"nodes":{"costs":[[1],[]]}}}'
    bad " /problem/edges/nodes/0: expected two different nodes" \
        '{"problem":{"nodes":{"costs":[[1],[1]]},"edges":{"nodes":[[1,1]],"costs":[[0]]}}}'
    bad " /problem/edges/costs/0: expected as many items as pairs" \
        '{"problem":{"nodes":{"costs":[[1],[1]]},"edges":{"nodes":[[0,1]],"costs":[[0,0]]}}}'
    bad " /problem/nodes/intervals/0: expected" \
        '{"problem":{"nodes":{"costs":[[1]],"intervals":[[2,1]],"usages":[[1]]},"usage_limit":3}}'
    bad " /problem/usage_limit: without" '{"problem":{"nodes":{"costs":[[1]]},"usage_limit":3}}'
}

@test "solve: a problem without nodes, and one without a limit" {
    run --separate-stderr ap-solve <<<'{"problem":{"nodes":{"costs":[]}}}'
    [ "$status" -eq 0 ]
    [ "${lines[1]}" = "[]" ]
    problem 1 9 4 | jq -c 'del(.problem.usage_limit)' | ap-solve >"$BATS_TEST_TMPDIR/a"
    head -n 1 "$BATS_TEST_TMPDIR/a" | jq -e '.stopped == "optimal" and (has("usage_limit") | not)'
}

@test "solve: what ap-shard emits has ap-shard's optimum" {
    for model in mlp "gpt --layers 1 --hidden 64 --heads 4 --vocab 256 --seq 32"; do
        # shellcheck disable=SC2086 # words
        ap-model $model |
            ap-shard --mesh 2x2 --emit-problem "$BATS_TEST_TMPDIR/p.json" -o "$BATS_TEST_TMPDIR/plan"
        ap-solve --algorithm exact "$BATS_TEST_TMPDIR/p.json" | head -n 1 |
            jq -ce --slurpfile plan "$BATS_TEST_TMPDIR/plan" '
                [.objective / 1e15, $plan[0].sharding.objective_sec, .stopped] |
                if .[2] == "optimal" and (.[0] / .[1] - 1 | fabs) < 1e-6 then . else
                    error(tostring) end'
    done
    run -2 ap-shard --mesh 2x2 --algorithm data --emit-problem "$BATS_TEST_TMPDIR/q.json" \
        "$BATS_TEST_TMPDIR/plan"
    [[ $stderr == *"--emit-problem is for ilp, not for data"* || \
        $output == *"--emit-problem is for ilp, not for data"* ]]
}

@test "solve: a legal choice where most cells are forbidden, and in other hard problems" {
    while read -r kind nodes rounds; do
        scripts/bench/solve-gen "$kind" "$nodes" 1 >"$BATS_TEST_TMPDIR/p.json"
        ap-solve --algorithm local --work-limit "${rounds:-4}" "$BATS_TEST_TMPDIR/p.json" >"$BATS_TEST_TMPDIR/a"
        scripts/bench/solve-check "$BATS_TEST_TMPDIR/p.json" "$BATS_TEST_TMPDIR/a" | jq -e '.legal'
        head -n 1 "$BATS_TEST_TMPDIR/a" | jq -e '.bound > 0 and .bound <= .objective'
    done <<<"forbid 3000
chain 2000
grid 400
tight 400
wide 30
wide 6 60
knapsack 400
train 600"
}

@test "solve: coolings lead out of what descents and kicks end in, whatever the seed" {
    scripts/bench/solve-gen tight 400 2 >"$BATS_TEST_TMPDIR/p.json"
    for seed in 1 2; do
        ap-solve --algorithm local --work-limit 20 --seed "$seed" "$BATS_TEST_TMPDIR/p.json" |
            head -n 1 | jq -e '.gap < 0.062'
    done
}

@test "solve: hubs of degree 4000, and hundreds of strategies, in linear time and near the bound" {
    local rounds gap
    while read -r kind nodes rounds gap; do
        scripts/bench/solve-gen "$kind" "$nodes" 2 >"$BATS_TEST_TMPDIR/p.json"
        # CPU seconds, far more than it needs
        (ulimit -t 20 && ap-solve --algorithm local --work-limit "$rounds" "$BATS_TEST_TMPDIR/p.json") \
            >"$BATS_TEST_TMPDIR/a"
        scripts/bench/solve-check "$BATS_TEST_TMPDIR/p.json" "$BATS_TEST_TMPDIR/a" | jq -e '.legal'
        head -n 1 "$BATS_TEST_TMPDIR/a" | jq -e --argjson gap "$gap" '.bound > 0 and .gap <= $gap' ||
            { head -n 1 "$BATS_TEST_TMPDIR/a"; return 1; }
    done <<<"hub 8000 1 0.3
wide 100 8 0.3"
}

@test "solve: exact has the optimum of toulbar2 where there is no limit" {
    command -v toulbar2 >/dev/null || skip "no toulbar2 (Debian's package of that name)"
    local dir=$BATS_TEST_TMPDIR kind nodes seed p
    while read -r kind nodes; do
        for seed in 1 2 3 4 5; do
            scripts/bench/solve-gen "$kind" "$nodes" "$seed" free >"$dir/$kind$seed.json"
        done
    done <<<"chain 60
forbid 40
grid 36
tight 50
wide 6"
    scripts/bench/solve-wcsp "$dir"/*.json
    for p in "$dir"/*.json; do
        ap-solve --algorithm exact "$p" | sed -n 1p >>"$dir/ours"
        toulbar2 "$p.wcsp" | sed -n 's/^Optimum: \([0-9]*\) .*/\1/p' >>"$dir/theirs"
    done
    jq -r 'if .stopped == "optimal" then .objective else "not proven" end' "$dir/ours" |
        diff - "$dir/theirs"
    [ "$(grep -c '[1-9]' "$dir/theirs")" -eq 25 ]
    scripts/bench/solve-gen tight 4 1 >"$dir/limited"
    run -1 scripts/bench/solve-wcsp "$dir/limited"
    [[ $output == *"a limit on usage"* ]]
}

@test "ap-shard --solution takes the solver's choice back: the same price, and a plan that runs" {
    needs_exec
    local dir=$BATS_TEST_TMPDIR mlp options=(--quiet --mesh 2x2 --cluster cpu-4)
    mlp=$(imported mlp)
    ap-shard "${options[@]}" --emit-problem "$dir/problem.json" -o "$dir/plan.json" "$mlp"
    ap-solve "$dir/problem.json" >"$dir/solution"
    ap-shard "${options[@]}" --solution "$dir/solution" -o "$dir/back.json" "$mlp"
    jq -e -s '.[0].sharding.objective_sec == .[1].sharding.objective_sec and .[1].sharding.stopped == "given"' "$dir"/{plan,back}.json
    ap-rewrite "$dir/back.json" | ap-exec -n 4 --verify --quiet
    # solved as if communication were free: the plan costs more, as ap-cost finds, too
    jq -c '.problem.edges.costs |= map(map(if . >= 1e18 then . else 0 end))' "$dir/problem.json" | ap-solve >"$dir/first"
    ap-shard "${options[@]}" --solution "$dir/first" "$mlp" | ap-cost >"$dir/first.json"
    jq -e -s '.[0].sharding.objective_sec < .[1].sharding.objective_sec and .[1].sharding.objective_sec == .[1].cost.step_sec' \
        "$dir/plan.json" "$dir/first.json"
    refuses 1 "first: 196 strategies, but the problem has" ap-shard --quiet --mesh 2 --cluster cpu-4 --solution "$dir/first" "$mlp"
    refuses 1 "problem.json: no line is a choice" ap-shard "${options[@]}" --solution "$dir/problem.json" "$mlp"
    jq -c 'arrays | .[3] = 99' "$dir/first" >"$dir/bad"
    refuses 1 "bad: /3: expected a strategy from 0 to" ap-shard "${options[@]}" --solution "$dir/bad" "$mlp"
    refuses 2 "--solution is a complete plan" ap-shard "${options[@]}" --solution "$dir/first" --start "$dir/plan.json" "$mlp"
    refuses 2 "--solution is for ilp" ap-shard "${options[@]}" --solution "$dir/first" --algorithm data "$mlp"
}
