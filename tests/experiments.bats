#!/usr/bin/env bats
# scripts/experiments: the list of what the papers can do and report, and the page of it.

load helpers

@test "claims: every row of the list of capabilities and every number has a command that exists" {
    run -0 scripts/experiments/claims
    [ "$output" = "191 ids, 0 without a command" ]
}

@test "claims: an id without a command, a test that is gone, and an id too many are named" {
    mkdir -p "$BATS_TEST_TMPDIR/scripts/experiments"
    ln -s "$PWD/tests" "$PWD/cmd" "$PWD/build" "$BATS_TEST_TMPDIR"
    cp scripts/experiments/claims "$BATS_TEST_TMPDIR/scripts/experiments"
    sed '/^B1.4 /s/names, scopes/names and scopes/; /^AL7 /d; s/^AL21 ::/AL99 ::/; /^RH7 /s/:: bats[^:]*/:: /' \
        scripts/experiments/claims.txt >"$BATS_TEST_TMPDIR/scripts/experiments/claims.txt"
    run -1 "$BATS_TEST_TMPDIR/scripts/experiments/claims"
    for text in "AL7: has no line" "B1.4: no test of tests/shard.bats matches" "AL21: has no line" \
        "no such ids: AL99" "RH7: " "191 ids, 5 without"; do
        [[ $output == *"$text"* ]] || { echo "no $text in $output"; return 1; }
    done
}

@test "claims: one is run by name, and its command printed" {
    run -0 scripts/experiments/claims run B2.2
    [ "${lines[0]:0:9}" = "ap-import" ]
    [ "${lines[1]}" = true ]
    run -2 scripts/experiments/claims run B9.9
    [ "$output" = "claims: there is no B9.9" ]
}

@test "claims: results that are there are kept, and the page has them" {
    local id dir=$BATS_TEST_TMPDIR/results
    mkdir "$dir"
    while read -r id; do
        printf '0\n%s & <of %s>\n' 42 "$id" >"$dir/$id"
    done < <(grep -oE '^[A-Z]+[0-9.]+ ::' scripts/experiments/claims.txt | cut -d' ' -f1)
    run -0 scripts/experiments/claims results "$dir"
    [ "${#lines[@]}" = 1 ] # nothing was run
    [ "$(grep -c '^| [A-Z]*[0-9.]* |' "$dir/claims.md")" = 191 ]
    [ "$(grep -c '<tr id=' "$dir/claims.html")" = 191 ]
    grep -q '42 &amp; &lt;of AL21' "$dir/claims.html"
    printf 'layers\n' >"$dir/ablation.txt"
    scripts/experiments/index "$dir"
    grep -q 'make -C scripts/experiments ablation' "$dir/index.md"
}
