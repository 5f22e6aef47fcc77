#!/usr/bin/env bats
# scripts/bench/stage-table: its rows, its checks, and that these can fail.

load helpers

model='gpt:layers=2,hidden=64,heads=2,vocab=256,seq=64,batch=16@4'

table() {
    scripts/bench/stage-table --models "$model" --shards data --jobs 1 --coarsen alpa:2 "$@"
}

@test "stage-table: a row for each planner, none faster than auto, all as ap-cost prices them" {
    run table --algorithms 'auto alpa inter-only' --rows "$BATS_TEST_TMPDIR/rows"
    [ "$status" -eq 0 ]
    [[ $output == *"3 rows, 0 checks failed"* ]]
    awk -F '\t' 'NR == 1 { auto = $6 } $6 < auto || $6 <= 0 || $9 !~ /@1x/ { exit 1 } END { exit NR != 3 }' \
        "$BATS_TEST_TMPDIR/rows"
    # inter-only gets as many blocks as devices, not only two as the others
    [[ $output =~ gpt\ +4\ alpa:4\ +data\ +inter-only ]]
    awk -F '\t' '{ n = split($22, cut, /[ ,]/); blocks = 0; while (n > 1) blocks += cut[n--] }
        $3 != "alpa:2" || (NR == 3) != (blocks > 2) { exit 1 }' "$BATS_TEST_TMPDIR/rows"
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

@test "stage-table: planners and shards side by side; no row below auto with shards by ilp" {
    # row SHARDS PLANNER SECONDS
    row() { printf 'm\t8\t-\t%s\t%s\t%s\t1\t1f1b\t1@1x8\t0.5\t0.1\t1\t0\t1\t1\t1\t1\t%s\n' "$@" "$3"; }
    rows() { row ilp auto 2; row ilp alpa 3; printf 'm\t8\t-\tdata\tauto\t-\tnone\t\n'; row data alpa "$1"; }
    run awk -F '\t' -v mode=end -f scripts/bench/stage-table.awk <(rows 4)
    [ "$status" -eq 0 ]
    [[ $output =~ ilp\ +2000.00\ +3000.00.*data\ +none\ +4000.00 ]]
    run awk -F '\t' -v mode=end -f scripts/bench/stage-table.awk <(rows 1)
    [ "$status" -eq 1 ]
    [[ $output == *"data alpa: faster than auto with shards by ilp"* ]]
}

@test "stage-table: a row with more blocks is not held to bounds over fewer, but to auto" {
    # row PLANNER SECONDS BOUND BLOCKS
    row() { printf 'm\t32\talpa:16\t-\t%s\t%s\t1\t1f1b\t1@1x8\t0.5\t0.1\t1\t%s\t1\t1\t1\t1\t%s\t%s\n' "$1" "$2" "$3" "$2" "$4"; }
    run awk -F '\t' -v mode=end -f scripts/bench/stage-table.awk <(row auto 2 1.5 alpa:16; row inter-only 1 0 alpa:32)
    [ "$status" -eq 1 ]
    [[ $output == *"inter-only: faster than auto"* && $output != *"below a lower bound"* ]]
    run awk -F '\t' -v mode=end -f scripts/bench/stage-table.awk <(row auto 2 1.5 alpa:16; row inter-only 1 0 alpa:16)
    [[ $output == *"inter-only: below a lower bound"* ]]
}

@test "stage-table: spread over blocks, no more than there are; a model without a plan says why and fails no check" {
    run table --algorithms auto --coarsen 'alpa:99 none'
    [ "$status" -eq 0 ]
    [[ $output == *"2 rows, 0 checks failed"* ]]
    run scripts/bench/stage-table --models 'gpt3-1.3b:layers=2,hidden=8192@1' --shards data --jobs 1 --algorithms none
    [ "$status" -ne 2 ]
    [[ $output == *"memory"* ]]
}

@test "stage-table: an unknown option, and devices that are not whole hosts, are refused" {
    run scripts/bench/stage-table --no-such
    [ "$status" -eq 2 ]
    run scripts/bench/stage-table --models gpt@12 --algorithms auto
    [ "$status" -ne 0 ]
    [[ $output == *"12 devices are not whole hosts of 8"* ]]
}

@test "stage-table: models of one name and several sizes are not compared with each other" {
    run scripts/bench/stage-table --models "$model ${model/layers=2/layers=3}" --shards data --jobs 1 \
        --coarsen alpa:2 --algorithms auto
    [ "$status" -eq 0 ]
    [[ $output == *"layers=3,"*"2 rows, 0 checks failed"* ]]
}

@test "stage-table: what the paper says of its planners is looked for in the rows" {
    # row MODEL DEVICES PLANNER PFLOPS, 0 for no plan
    row() {
        if [ "$4" = 0 ]; then
            printf '%s\t%s\t-\t-\t%s\t-\tnone\t\n' "$1" "$2" "$3"
        else
            printf '%s\t%s\t-\t-\t%s\t1\t1\t1f1b\t1@1x1\t0.5\t%s\t1\t0\t1\t1\t1\t1\t1\t-\n' "$@"
        fi
    }
    # rows INTRA-ONLY'S ON 32
    rows() {
        row gpt3-a 8 auto 1; row gpt3-b 16 auto 2; row gpt3-c 32 auto 4; row gpt3-d 64 auto 8
        row gpt3-a 8 intra-only 0.9; row gpt3-b 16 intra-only 1.9; row gpt3-c 32 intra-only "$1"
        row gpt3-d 64 intra-only 0; row gpt3-a 8 inter-only 0.9; row gpt3-d 64 inter-only 7
        row moe-a 16 inter-only 1; row moe-b 32 inter-only 0; row moe-b 32 auto 1
        row wresnet-a 4 auto 1; row wresnet-b 32 auto 6
    }
    run awk -F '\t' -v mode=end -f scripts/bench/stage-table.awk <(rows 2)
    [ "$status" -eq 0 ]
    [[ $output == *"gpt3: intra-only falls behind beyond 16 devices: yes (8: 0.90 of auto, 16: 0.95 of auto, 32: 0.50 of auto, 64: none)"* ]]
    [[ $output == *"gpt3: inter-only is linear to 64 devices: yes (97 %)"* ]]
    [[ $output == *"moe: inter-only has no plan on 32 devices: yes (none)"* ]]
    [[ $output == *"wresnet: auto keeps 80 % of linear to 32 devices: no (75 %)"* ]]
    run awk -F '\t' -v mode=end -f scripts/bench/stage-table.awk <(rows 3.9)
    [[ $output == *"intra-only falls behind beyond 16 devices: no "* ]]
}

@test "stage-table --papers: gaps of GPTs and orderings of Alpa's paper are checked, and can fail" {
    # row MODEL DEVICES PLANNER SECONDS PFLOPS BOUND
    row() { printf '%s\t%s\t-\t-\t%s\t%s\t1\t1f1b\t1@1x8\t0.5\t%s\t1\t%s\t1\t1\t1\t1\t%s\n' "$@" "$4"; }
    # rows BOUND SPEED: of auto on 16 devices, of intra-only on 32
    rows() {
        row gpt-a 16 auto 1 1 "$1"
        row gpt-a 16 intra-only 2 0.8 0
        row gpt-b 32 auto 1 2 0.9
        row gpt-b 32 intra-only 2 "$2" 0
    }
    end() { awk -F '\t' -v mode=end -v papers="$1" -f scripts/bench/stage-table.awk <(rows "$2" "$3"); }
    run -0 end 1 0.76 1
    [[ $output == *"gpt: intra-only falls behind beyond 16 devices: yes"* ]]
    run -1 end 1 0.74 1
    [[ $output == *"FAILED: gpt-a@16 - -: gap above 25 %"* ]]
    run -1 end 1 0.76 1.7
    [[ $output == *"FAILED: gpt: intra-only falls behind beyond 16 devices: no"* ]]
    run -0 end 0 0.74 1.7
    [[ $output == *"0 checks failed"* ]]
}
