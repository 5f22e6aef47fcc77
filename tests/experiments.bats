#!/usr/bin/env bats
# scripts/experiments: the list of what the papers can do and report, and the page of it.

load helpers

@test "claims: every row of the list of capabilities and every number has a command that exists" {
    run -0 scripts/experiments/claims
    [[ $output == "191 ids, 0 without a command or without an assertion; "* ]]
}

@test "claims: each asserts what its command prints; printing, failing and skipping are no proof" {
    local dir=$BATS_TEST_TMPDIR/scripts/experiments
    mkdir -p "$dir"
    ln -s "$PWD/tests" "$PWD/cmd" "$PWD/build" "$BATS_TEST_TMPDIR"
    cp scripts/experiments/* "$dir"
    # a claim without its rows, one whose rows say something else, one whose test is skipped
    sed -i -e '/^B2.2 ::/,/^B2.3 ::/{/^  /d}' -e '/^B2.3 ::/,/^B2.4 ::/s/^  .groups :: < :: .operators/  .groups :: > :: .operators/' \
        -e "s/^\(RH1 :: .* ::\) .*/\1 echo 'ok 1 - layouts # skip no such'/" -e "s/^\(RH2 :: .* ::\) .*/\1 printf 'ok 1 a\\\\nnot ok 2 b\\\\n'/" \
        "$dir/claims.txt"
    run -1 "$dir/claims"
    [[ $output == *"B2.2: only prints"*"191 ids, 3 without"* ]]
    run -1 "$dir/claims" run B2.2
    [ "${lines[-1]}" = "FAILS: it only prints" ]
    run -1 "$dir/claims" run B2.3
    [[ ${lines[-1]} == "FAILS: .groups = "*", not > .operators = "* ]]
    run -1 "$dir/claims" run RH1
    [ "${lines[-1]}" = "FAILS: 1 of 1 tests failed or were skipped" ]
    run -1 "$dir/claims" run RH2
    [ "${lines[-1]}" = "FAILS: 1 of 2 tests failed or were skipped" ]
    # each has a /tmp of its own: no file is left, and none is found
    sed -i -e "s/^\(B2.2 ::\) .*/\1 a :: echo true >\/tmp\/plan.json \&\& cat \/tmp\/plan.json/" \
        -e "s/^\(B2.1 ::\) .*/\1 a :: cat \/tmp\/plan.json/" "$dir/claims.txt"
    sed -i '/^B2.2 ::/a\  . :: == :: true' "$dir/claims.txt"
    run -1 "$dir/claims" run B2.2 B2.1 B2.2
    [ "$(grep -c '^holds: . = true == true' <<<"$output")" = 2 ]
    [[ $output == *"plan.json: No such file"* ]]
    # values: lines, groups, JSON, several values, words
    judge() { # ROW, the output on standard input
        { grep -v '^  ' scripts/experiments/claims.txt | sed "/^B2.2 ::/a\\  $1"; } >"$dir/claims.txt"
        "$dir/claims" judge B2.2
    }
    judge '/a [0-9]/ :: == :: 2' <<<$'a 1\na 2'
    judge '/a ([0-9.e-]+)/ :: <= :: 1e-5' <<<$'a 1e-6\na 2'
    judge '[.[].n] | add :: > :: .[0].n' <<<$'{"n":1}\n{"n":2}'
    judge '.word :: == :: done' <<<$'ap-shard: a message\n{"word":"done"}'
    judge '.word :: ~ :: ^do' <<<'{"word":"done"}'
    for row in '/a ([0-9]+)/ :: > :: 1' '/b ([0-9]+)/ :: > :: 0' '.n :: > :: 0' '/a/ :: > 0' '/b ([0-9]+)/ :: != :: /a ([0-9]+)/' \
        '/a ([0-9]+)/ :: != :: /b ([0-9]+)/' '/b ([0-9]+)/ :: == :: .n'; do
        run -1 judge "$row" <<<'a 1'
        [[ $output == "FAILS: "* ]]
    done
}

@test "claims: an id without a command, a test that is gone, and an id too many are named" {
    mkdir -p "$BATS_TEST_TMPDIR/scripts/experiments"
    ln -s "$PWD/tests" "$PWD/cmd" "$PWD/build" "$BATS_TEST_TMPDIR"
    cp scripts/experiments/* "$BATS_TEST_TMPDIR/scripts/experiments"
    sed '/^B1.4 /s/names, scopes/names and scopes/; /^AL7 /d; s/^AL21 ::/AL99 ::/; /^RH7 /s/:: bats[^:]*/:: /' \
        scripts/experiments/claims.txt >"$BATS_TEST_TMPDIR/scripts/experiments/claims.txt"
    run -1 "$BATS_TEST_TMPDIR/scripts/experiments/claims"
    for text in "AL7: has no line" "B1.4: no test of tests/shard.bats matches" "AL21: has no line" \
        "no such ids: AL99" "RH7: " "191 ids, 5 without a command"; do
        [[ $output == *"$text"* ]] || { echo "no $text in $output"; return 1; }
    done
}

@test "claims: one is run by name, and its command printed" {
    run -0 scripts/experiments/claims run B2.2
    [ "${lines[0]:0:9}" = "ap-import" ]
    [ "${lines[1]}" = true ]
    [ "${lines[2]}" = "holds: . = true == true" ]
    run -2 scripts/experiments/claims run B2.2 B9.9 # before anything runs
    [ "$output" = "claims: there is no B9.9" ]
}

@test "results: what is there is kept, the page has every id and table with its command, and what failed" {
    local id dir=$BATS_TEST_TMPDIR/results
    mkdir "$dir"
    while read -r id; do
        printf '0 1.5\n%s & <of %s>\n' 42 "$id" >"$dir/$id"
    done < <(grep -oE '^[A-Z]+[0-9.]+ ::' scripts/experiments/claims.txt | cut -d' ' -f1)
    while read -r id; do
        printf '0 2.5\nmodel\tpaper\tours\na|b\t1\t<2\n' >"$dir/$id"
    done < <(sed -n 's/^\([a-z]*\) \([a-z0-9-]*\) ::.*/\1-\2/p' scripts/experiments/tables.txt)
    run -0 bash -c 'scripts/experiments/results "$1" 2>/dev/null' - "$dir" # plots of three words fail
    [ "$output" = "$dir/index.md, $dir/index.html" ] # nothing was run
    printf '3 0.1\nno such plan\n' >"$dir/RH7"
    printf '0 0.1\n1..2\n# 7 of 7\nok 1 - alpha\nnot ok 2 beta\n' >"$dir/AL8"
    run -1 scripts/experiments/results "$dir" page
    [[ $output == *"failed: RH7" ]]
    [ "$(grep -cE '^#### [A-Z]+[0-9.]+: ' "$dir/index.md")" = 191 ]
    [ "$(grep -cE '<h4 id="[A-Z]+[0-9.]+">' "$dir/index.html")" = 191 ]
    grep -q '42 &amp; &lt;of AL21' "$dir/index.html"
    grep -q 'exit status 3' "$dir/index.md"
    # of tests what they show and check, no lines of their protocol
    [[ $(<"$dir/index.md") == *$'\n```\n7 of 7\nchecked: alpha\nFAILS: beta\n```\n'* ]]
    # a table is found by its number, a paper is run as a whole, and no link leads nowhere
    grep -qxF '| Table 3 | seven ways to split a batched product | [table](#alpa-table-3), [AL6](#AL6) |' "$dir/index.md"
    for id in alpa rhino tap tofu rannc across; do
        grep -qx "make -C scripts/experiments results ONLY=$id" "$dir/index.md"
    done
    grep -oE '\]\(#[^)]*\)' "$dir/index.md" | sed 's/](#\(.*\))/\1/' | sort -u >"$dir.links"
    [ "$(wc -l <"$dir.links")" -gt 220 ]
    sed -n 's/^<a id="\(.*\)"><\/a>$/\1/p' "$dir/index.md" | sort | comm -13 - "$dir.links" | diff - /dev/null
    grep -oE 'href="#[^"]*"' "$dir/index.html" | sed 's/.*#//; s/"//' | sort -u | diff - "$dir.links"
    grep -oE ' id="[^"]*"' "$dir/index.html" | sed 's/.*="//; s/"//' | sort | comm -13 - "$dir.links" | diff - /dev/null
    # commands stand as they are: a reader copies them
    while read -r id; do
        grep -qxF -- "$id" "$dir/index.md" || { echo "no $id"; return 1; }
    done < <(awk -F ' :: ' '/^[A-Z]+[0-9.]+ ::/ { print $3 } /^[a-z]/ { print "scripts/experiments/" $1 }' \
        scripts/experiments/claims.txt scripts/experiments/tables.txt)
}

@test "results: one by name, anew; a table with its plot; no such name is refused" {
    local dir=$BATS_TEST_TMPDIR/one
    run -0 scripts/experiments/results "$dir" B2.2 rhino-table-5
    [ "$(sed -n 2p "$dir/B2.2")" = true ]
    grep -q '^| MoE, 10B | 18000, 90, 89 | 13941 | 137 | 136 |$' "$dir/index.md"
    grep -q '^not run yet$' "$dir/index.md"
    run -0 make -C scripts/experiments results ONLY=page DIR="../../$(realpath --relative-to=. "$dir")"
    [[ $output == *"$dir/index.md, $dir/index.html"* ]]
    run -2 scripts/experiments/results "$dir" RH7 AL99
    [[ ${output//$'\n'/ } == *"there is no AL99"*" tofu rannc "*"alpa-table-1 "*" RH25 "* ]]
    [ ! -e "$dir/RH7" ]
}

@test "results: a paper's name is all of its tables and claims; what has run as a table is not run as a claim" {
    local dir=$BATS_TEST_TMPDIR/paper mine=$BATS_TEST_TMPDIR/scripts/experiments
    mkdir -p "$mine"
    ln -s "$PWD/tests" "$PWD/cmd" "$PWD/build" "$PWD/clusters" "$BATS_TEST_TMPDIR"
    cp scripts/experiments/* "$mine"
    for f in tables claims; do # with what they assert
        awk '/^[^ ]/ { kept = /^(tofu one-device|TO[289]|TO20|RA5) ::/ } kept' scripts/experiments/$f.txt >"$mine/$f.txt"
    done
    printf '%s\n' '#!/usr/bin/env bash' "printf 'a\\tb\\n'; seq -f 'c\\t%g' 50" >"$mine/tofu"
    : >"$mine/papers.txt"
    sed -i '/^TO2 /{s/:: build[^:]*::/:: seq 2 46 ::/;a\  .[0] :: == :: 2
        }; /^TO20 /{s/:: bats[^:]*::/:: seq 2 41 ::/;a\  .[0] :: == :: 2
        }; /^TO9 /{n;s/.*/  \/^c.*50$\/ :: == :: 1/}' "$mine/claims.txt"
    run "$mine/results" "$dir" tofu
    echo "$output"
    [ $status = 0 ]
    [ "$(sed '/^no gnuplot: /d; s/ [0-9.]* s$/ s/' <<<"$output")" = "tofu-one-device: s
TO2: s
TO8: s
TO9: as tofu-one-device
TO20: s
$dir/index.md, $dir/index.html" ]
    [ "$(grep -A 1 -c '^41$' "$dir/index.md")" = 2 ]
    grep -A 1 '^41$' "$dir/index.md" | grep -qx '... 6 more lines'
    grep -q '<li><a href="#tofu-one-device">' "$dir/index.html"
    grep -q 'EuroSys 2019 (arXiv 1807.08887)' "$dir/index.md"
    # what the list of places does not name is at its end; what it names has to be there
    grep -q '^| [^|]* | [^|]* | \[table\](#tofu-one-device) |$' "$dir/index.md"
    echo "tofu :: section 1 :: halvings :: TO2 TO99" >"$mine/papers.txt"
    run -1 "$mine/results" "$dir" page
    [[ $output == *"there is no TO99"* ]]
}

@test "experiments: usage, and what is not built or not installed" {
    local script mine=$BATS_TEST_TMPDIR/scripts/experiments
    for script in results claims alpa; do
        run -0 --separate-stderr "scripts/experiments/$script" --help
        [[ $output == *"scripts/experiments/$script "* && -z $stderr ]]
    done
    for script in results alpa "alpa table-1 table-2" "claims run" "claims walk"; do
        # shellcheck disable=SC2086 # words
        run -2 --separate-stderr scripts/experiments/$script
        [[ -z $output && $stderr == *"scripts/experiments/"* ]] || { echo "$script: $output"; return 1; }
    done
    mkdir -p "$mine" "$BATS_TEST_TMPDIR/bin"
    cp scripts/experiments/* "$mine"
    for script in "alpa table-1" "results $BATS_TEST_TMPDIR/r AL4" "claims run AL4"; do
        # shellcheck disable=SC2086 # words
        run -1 "$mine"/$script
        [ "$output" = "${script%% *}: build first: make all unit" ]
    done
    for script in bash dirname realpath mktemp rm sed grep tr paste awk; do ln -s "$(command -v $script)" "$BATS_TEST_TMPDIR/bin"; done
    run -1 env PATH="$BATS_TEST_TMPDIR/bin" scripts/experiments/alpa table-1
    [[ $output == "alpa: missing: jq "* ]]
    cd scripts/experiments
    run -0 ./alpa table-1
    [ "${lines[1]}" = $'2\t9\t9' ]
}

@test "results: all that takes no second runs, and what does not is named" {
    local dir=$BATS_TEST_TMPDIR/quick
    mkdir "$dir"
    run -0 scripts/experiments/results "$dir" quick
    [ "$(grep -c '^[A-Z0-9.]*: [0-9.]* s$' <<<"$output")" -ge 80 ]
    [ "$(sed -n 2p "$dir/AL10")" = "ok 1 - alpa §5.2: 11 submeshes of 8x8, 7 with powers of two of hosts" ]
}

@test "tables: every one of tables.txt is one that its script has, and the other way round" {
    local script
    for script in alpa rhino tap tofu rannc across; do
        run -2 "scripts/experiments/$script" no-such
        tr ' ' '\n' <<<"${output##*one of: }" | sed "s/^/$script /"
    done | sort >"$BATS_TEST_TMPDIR/scripts"
    sed -n 's/^\([a-z]* [a-z0-9-]*\) ::.*/\1/p' scripts/experiments/tables.txt | sort | diff - "$BATS_TEST_TMPDIR/scripts"
}
