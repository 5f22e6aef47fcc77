#!/usr/bin/env bats
# ap-shard: the search folded by families against the search of the whole graph.

load helpers

# pruned NAME ARG...: a model of ap-model with its families, made once per file
pruned() {
    local f=$BATS_FILE_TMPDIR/$1.pruned.json
    [ -s "$f" ] || ap-model "${@:2}" | ap-prune --no-history -o "$f" || return
    echo "$f"
}

gpt() { pruned gpt gpt --layers 8 --hidden 128 --heads 4 --seq 64; }
mlp() { pruned mlp mlp --layers 16 --hidden 512 --features 512 --classes 512 --batch 64; }
deep() { pruned deep mlp --layers 60 --hidden 512 --features 512 --classes 512 --batch 64; }

# search FILE OPTION...: the line of --stats
search() {
    ap-shard --mesh 2x2 --cluster "$CLUSTERS/cpu-8.json" --stats -o "$BATS_TEST_TMPDIR/plan.json" \
        "${@:2}" "$1" 2>&1 | tail -n 1
}

@test "fold: never worse than unfolded, and the bound never above the unfolded optimum" {
    for model in gpt mlp deep; do
        folded=$(search "$("$model")" --rounds 4)
        whole=$(search "$("$model")" --no-families)
        jq -en --argjson f "$folded" --argjson w "$whole" '
            $f.tied > 0 and $w.tied == 0 and $f.folded_strategies * 2 < $f.strategies and
            $f.log10_folded_plans < $f.log10_plans and
            $f.objective_sec <= $w.objective_sec * (1 + 1e-9) and
            $f.folded_objective_sec >= $w.folded_bound_sec * (1 - 1e-9) and
            $f.folded_bound_sec <= $w.objective_sec * (1 + 1e-9) and
            $f.folded_bound_sec > 0.9 * $w.objective_sec' >/dev/null ||
            { echo "$model: folded $folded whole $whole"; return 1; }
    done
}

@test "fold: the distinct layers of a deep net prove its optimum" {
    folded=$(search "$(deep)" --mesh 4 --rounds 40)
    whole=$(search "$(deep)" --mesh 4 --no-families)
    jq -en --argjson f "$folded" --argjson w "$whole" '
        $f.searches == 1 and $f.folded_bound_sec >= $f.folded_objective_sec * (1 - 1e-9) and
        $f.objective_sec == $w.objective_sec' || { echo "$folded"; return 1; }
}

@test "fold: the answer is legal, and ap-cost finds the same price" {
    search "$(gpt)" --rounds 1
    ap-cost "$BATS_TEST_TMPDIR/plan.json" | jq -e '
        .sharding.objective_sec == .cost.serial_sec and
        .sharding.lower_bound_sec <= .sharding.objective_sec' >/dev/null
}

@test "fold: groups with different pins are not tied" {
    doc=$BATS_TEST_TMPDIR/pinned.json
    jq -c '(.graph.nodes[] | select(.name == "gpt/h_3/mlp/fc/w")).pin = "{devices=[2,2]<=[4]}"' \
        "$(gpt)" >"$doc"
    search "$doc" --rounds 1
    jq -e '.sharding.objective_sec > 0' "$BATS_TEST_TMPDIR/plan.json"
    node=$(jq '[.graph.nodes[].name] | index("gpt/h_3/mlp/fc/w")' "$BATS_TEST_TMPDIR/plan.json")
    [ "$node" -gt 0 ]
}

@test "fold: without families the whole graph is searched" {
    jq -c 'del(.families)' "$(gpt)" >"$BATS_TEST_TMPDIR/plain.json"
    ap-shard --no-history --mesh 2x2 "$BATS_TEST_TMPDIR/plain.json" |
        jq -c .sharding >"$BATS_TEST_TMPDIR/a"
    ap-shard --no-history --no-families --mesh 2x2 "$(gpt)" |
        jq -c .sharding >"$BATS_TEST_TMPDIR/b"
    cmp "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b"
}

@test "fold: where the bound meets the folded price the whole graph is not searched" {
    folded=$(search "$(gpt)" --unfold 0)
    whole=$(search "$(gpt)" --no-families)
    jq -en --argjson f "$folded" --argjson w "$whole" '
        $f.searches == 1 and $f.folded_bound_sec >= $f.folded_objective_sec * (1 - 1e-9) and
        ($f.objective_sec / $w.objective_sec - 1 | fabs) < 1e-9' >/dev/null ||
        { echo "folded $folded whole $whole"; return 1; }
    jq -e '.sharding.stopped == "optimal"' "$BATS_TEST_TMPDIR/plan.json"
}

@test "fold: where the bound leaves a gap the whole graph is searched" {
    left=$(search "$(deep)")
    jq -e '.sharding.stopped == "optimal"' "$BATS_TEST_TMPDIR/plan.json"
    never=$(search "$(deep)" --unfold 0)
    whole=$(search "$(deep)" --no-families)
    jq -en --argjson l "$left" --argjson n "$never" --argjson w "$whole" '
        $l.searches == 2 and $n.searches == 1 and
        $n.objective_sec > $l.objective_sec * 1.001 and
        $n.lower_bound_sec <= $l.objective_sec * (1 + 1e-9) and
        ($l.objective_sec / $w.objective_sec - 1 | fabs) < 1e-9' >/dev/null ||
        { echo "left $left never $never whole $whole"; return 1; }
}

@test "fold: the same bytes twice" {
    for options in "--unfold 0" "--rounds 1"; do
        # shellcheck disable=SC2086
        ap-shard --no-history --mesh 2x4 $options -o "$BATS_TEST_TMPDIR/a" "$(mlp)"
        # shellcheck disable=SC2086
        ap-shard --no-history --mesh 2x4 $options -o "$BATS_TEST_TMPDIR/b" "$(mlp)"
        cmp "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b"
    done
}
