# shellcheck shell=bash disable=SC2154 # for bats
# Plans in Alpa's space and prices, and the closed forms that they are held against. For tests.

# alpa FILE MESH [OPTION...]: the document planned in Alpa's space, made once
alpa() {
    local f
    f=$BATS_FILE_TMPDIR/$(basename "$1" .json)-$2$(printf %s "${@:3}" | tr -c 'a-z0-9\n' -).alpa.json
    [ -s "$f" ] || ap-shard --no-history --space alpa --cost-model alpa --mesh "$2" "${@:3}" \
        -o "$f" "$1" || return
    echo "$f"
}

# bert LAYERS BATCH SEQ HIDDEN HEADS [OPTIMIZER]: encoder layers alone, with Adam
bert() {
    local f=$BATS_FILE_TMPDIR/bert-$1-$2-$3-$4-${6-adam}.json
    echo '{"l*": "weight"}' >"$BATS_FILE_TMPDIR/roles.json"
    [ -s "$f" ] || tests/bert_layers.bash "${@:1:5}" |
        ap-import --no-history --roles "$BATS_FILE_TMPDIR/roles.json" - |
        ap-grad --no-history --optimizer "${6-adam}" -o "$f" || return
    echo "$f"
}

# alpa_model OPTIMIZER MODEL SIZE...: a train step of alpa_models.py
alpa_model() {
    local f=$BATS_FILE_TMPDIR/${*//\//-} roles='{"l*": "weight"}'
    f=${f// /-}.json
    [ "$2" != embedding ] || roles='{"embed*": "weight"}'
    [ "$2" != lm ] || roles='{"l*": "weight", "embed*": "weight"}'
    [ "${!#}" != untied ] || roles='{"l*": "weight", "embed*": "weight", "head*": "weight"}'
    echo "$roles" >"$BATS_FILE_TMPDIR/roles.json"
    [ -s "$f" ] || tests/alpa_models.py "${@:2}" |
        ap-import --no-history --roles "$BATS_FILE_TMPDIR/roles.json" - |
        ap-grad --no-history --optimizer "$1" -o "$f" || return
    echo "$f"
}

# closed FILE FORMULA [SHARE]: the objective is proven and within SHARE (0.1 %; Alpa's tests
# allow 1 %, which may hide a collective of the second axis) of the formula. ar(x; a), ag and
# a2a are Alpa's all-reduce, all-gather and all-to-all of x bytes on axis a, of n[a] devices;
# pen(leaves) the penalty of that many replicated leaves; dp(a) the all-reduces of all
# gradients over the axis, and the penalty of all leaves.
closed() {
    jq -e --argjson share "${3:-0.001}" '
        [.graph.nodes[] | select(.role == "weight" or .role == "state")] as $leaves |
        .sharding | .mesh.shape[(if .mesh.time then 1 else 0 end):] as $shape | .objective_sec as $got |
        (.alpa.alpha // [1, 1]) as $alpha | (.alpa.beta // [1, 0.1]) as $beta |
        def n: [$shape[0], $shape[1] // 1];
        def ar($x; $a): $alpha[$a] + $beta[$a] * 2 * (n[$a] - 1) / n[$a] * $x + 0.01;
        def ag($x; $a): $alpha[$a] + $beta[$a] * (n[$a] - 1) / n[$a] * $x + 0.1;
        def a2a($x; $a): $alpha[$a] + $beta[$a] * (n[$a] - 1) / n[$a] / 2 * $x + 0.001;
        def pen($leaves): $leaves *
            ([0, 1 | ($alpha[.] + $beta[.] * 2 * (n[.] - 1) / n[.] | round) + 0.01] | add | round);
        def dp($a): ([$leaves[] | select(.role == "weight") | .shape |
            [capture("\\[(?<d>.*)\\]").d | split(",")[] | tonumber] |
            ar(4 * reduce .[] as $d (1; . * $d); $a)] | add) + pen($leaves | length);
        ('"$2"') as $want |
        if .stopped == "optimal" and ($got - $want | fabs) <= $share * $want then true
        else "objective \($got), closed form \($want), \(.stopped)" | halt_error end' "$1"
}

# layouts FILE ROLE PATTERN: layouts of the parameters of a role, in order
layouts() {
    jq -r --arg role "$2" --arg name "$3" '[.graph.nodes, .sharding.layouts] | transpose[] |
        select(.[0].role == $role and (.[0].name | test($name))) | .[1]' "$1" | paste -sd ' '
}

# dots FILE PHASE: result dimensions and layouts of the dots of a phase
dots() {
    jq -r --arg phase "$2" '[.graph.nodes, .sharding.layouts] | transpose[] |
        select(.[0].op == "dot" and .[0].phase == $phase) | .[0].shape + .[1]' "$1"
}
