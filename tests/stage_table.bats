#!/usr/bin/env bats
# scripts/stage-table: its rows, its checks, and that these can fail.

load helpers

model='gpt:layers=2,hidden=64,heads=2,vocab=256,seq=64,batch=16@4'

table() {
    scripts/stage-table --models "$model" --shards data --jobs 1 --coarsen alpa:2 "$@"
}

@test "stage-table: a row for each planner, none faster than auto, all as ap-cost prices them" {
    run table --algorithms 'auto alpa inter-only' --rows "$BATS_TEST_TMPDIR/rows"
    [ "$status" -eq 0 ]
    [[ $output == *"3 rows, 0 checks failed"* ]]
    awk -F '\t' 'NR == 1 { auto = $6 } $6 < auto || $6 <= 0 || $9 !~ /@1x/ { exit 1 } END { exit NR != 3 }' \
        "$BATS_TEST_TMPDIR/rows"
    # where auto is faster, it says by what
    awk -F '\t' 'NR == 1 { auto = $6 } $6 > auto * (1 + 1e-9) { n++ } END { print n + 0 }' \
        "$BATS_TEST_TMPDIR/rows" >"$BATS_TEST_TMPDIR/slower"
    [ "$(grep -c 'auto is faster by another' <<<"$output")" -eq "$(<"$BATS_TEST_TMPDIR/slower")" ]
}

@test "stage-table: prices that do not agree, and a row below auto's, fail" {
    mkdir "$BATS_TEST_TMPDIR/bin"
    ln -s "$AP_BUILD"/bin/* "$BATS_TEST_TMPDIR/bin/"
    rm "$BATS_TEST_TMPDIR/bin/ap-cost"
    cat >"$BATS_TEST_TMPDIR/bin/ap-cost" <<END
#!/usr/bin/env bash
"$AP_BUILD/bin/ap-cost" "\$@"
out=\$3
jq 'if .stages.algorithm == "auto" then . else .cost.step_sec *= 0.5 end' "\$out" >"\$out.new"
mv "\$out.new" "\$out"
END
    chmod +x "$BATS_TEST_TMPDIR/bin/ap-cost"
    AP_BUILD=$BATS_TEST_TMPDIR run table --algorithms 'auto alpa'
    [ "$status" -eq 1 ]
    [[ $output == *"alpa: ap-stage's objective is not ap-cost's step"* ]]
    [[ $output == *"alpa: faster than auto"* ]]
}

@test "stage-table: spread over blocks; a model without a plan says why and fails no check" {
    run table --algorithms auto --coarsen 'alpa:2 none'
    [ "$status" -eq 0 ]
    [[ $output == *"2 rows, 0 checks failed"* ]]
    run scripts/stage-table --models 'gpt3-1.3b:layers=2,hidden=8192@1' --shards data --jobs 1 --algorithms none
    [ "$status" -ne 2 ]
    [[ $output == *"memory"* ]]
}

@test "stage-table: an unknown option, and devices that are not whole hosts, are refused" {
    run scripts/stage-table --no-such
    [ "$status" -eq 2 ]
    run scripts/stage-table --models gpt@12 --algorithms auto
    [ "$status" -ne 0 ]
    [[ $output == *"12 devices are not whole hosts of 8"* ]]
}
