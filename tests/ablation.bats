#!/usr/bin/env bats
# scripts/experiments/ablation: all combinations of the pipe's filters, one's own among them.

load helpers

# ablation DIR SLOT=WORDS...: in the test's folder
ablation() {
    local dir=$1
    shift
    (cd "$BATS_TEST_TMPDIR" && env MODELS="mlp:layers=4@4" BLOCKS=alpa:2 STAGES=alpa SHARDS=data COSTS=seconds "$@" \
        make -C "$AP_TOP/scripts/experiments" --no-print-directory -j2 ablation DIR="$BATS_TEST_TMPDIR/$dir")
}

# A program of one's own: own NAME, its text on standard input
own() {
    cat >"$BATS_TEST_TMPDIR/$1"
    chmod +x "$BATS_TEST_TMPDIR/$1"
}

setup() {
    [ "$AP_BUILD" = "$AP_TOP/build" ] || skip "the lab runs what is in build"
    own blocks <<<$'#!/bin/sh\nexec ap-coarsen --quiet --blocks "$DEVICES"'
    own stages <<'E2'
#!/bin/sh
exec jq '.stages = {schedule: "1f1b", microbatches: 2, stages: [range(.blocks.n) |
    {blocks: [.], devices: [.], sharding: {algorithm: "data", mesh: "1"}}]}'
E2
    own shards <<<$'#!/bin/sh\nexec ap-shard --serve --algorithm zero3 "$@"'
    own mesh <<<$'#!/bin/sh\nexec ap-shard --quiet --mesh "$DEVICES" --algorithm zero3 --cluster "$CLUSTER"'
    own costs <<<$'#!/bin/sh\nexec jq -c --unbuffered \'if .front then .front |= map(.sec_per_microbatch |= map_values(1)) else . end\''
    own breaks <<<$'#!/bin/sh\necho "no, $0" >&2\nexit 1'
}

@test "ablation: own programs stand in every slot; each cell has its document and a row" {
    ablation all MODELS="mlp:layers=4@4 testdata/models/mlp/mlp.hlo@2" BLOCKS="alpa:2 ./blocks" STAGES="alpa ./stages" \
        SHARDS="data ./shards" COSTS="seconds ./costs" >"$BATS_TEST_TMPDIR/tsv"
    [ "$(wc -l <"$BATS_TEST_TMPDIR/tsv")" = 33 ]
    cmp "$BATS_TEST_TMPDIR/tsv" "$BATS_TEST_TMPDIR/all/cells.tsv"
    [ "$(cut -f 1-8 "$BATS_TEST_TMPDIR/tsv" | sort -u | wc -l)" = 33 ]
    [ "$(cut -f 8 "$BATS_TEST_TMPDIR/tsv" | sort | uniq -c | tr -s ' ')" = " 1 answer
 32 plan" ]
    local f n=0
    for f in "$BATS_TEST_TMPDIR"/all/cell/*.json; do
        jq -e '.cost.step_sec > 0 and (.stages.stages | length > 0)' "$f" >/dev/null
        n=$((n + 1))
    done
    [ $n = 32 ]
    # what is in the slots is what ran
    awk -F '\t' '$5 == "./stages" && ($10 != ($4 == "./blocks" ? $2 : 2) || $11 != 2) { exit 1 }' "$BATS_TEST_TMPDIR/tsv"
    jq -e '.stages.stages | all(.sharding.algorithm == "zero3")' \
        "$BATS_TEST_TMPDIR"/all/cell/mlp_layers_4@4=alpa_2=alpa=shards=seconds.json
    # one mesh, too
    ablation one STAGES=- SHARDS="data ./mesh" COSTS="seconds bytes" >"$BATS_TEST_TMPDIR/tsv"
    [ "$(cut -f 8 "$BATS_TEST_TMPDIR/tsv" | grep -c '^plan$')" = 4 ]
    awk -F '\t' 'NR > 1 && $9 > 1 { exit 1 }' "$BATS_TEST_TMPDIR/tsv" # milliseconds, not bytes
    jq -e '.sharding.algorithm == "zero3"' "$BATS_TEST_TMPDIR"/one/cell/*mesh*.json
    # and the plot has a bar for each
    [ "$(grep -c 'fill="#8fb8de"' "$BATS_TEST_TMPDIR/all/cells.svg")" = 32 ]
    ! grep -qvE '^<(svg|rect|text|/svg)' "$BATS_TEST_TMPDIR/all/cells.svg" || false
}

@test "ablation: a cell that fails is a row that says why, and the others are there" {
    ablation bad MODELS="mlp:layers=4@4 no-model@4" BLOCKS="alpa:2 ./breaks" STAGES="alpa ./breaks no-planner" \
        SHARDS="data ./none" >"$BATS_TEST_TMPDIR/tsv"
    [ "$(wc -l <"$BATS_TEST_TMPDIR/tsv")" = 25 ]
    [ "$(cut -f 8 "$BATS_TEST_TMPDIR/tsv" | grep -c '^plan$')" = 1 ]
    why() { awk -F '\t' -v m="$1" -v b="$2" -v st="$3" -v sh="$4" '$1 == m && $4 == b && $5 == st && $6 == sh { print $16 }' "$BATS_TEST_TMPDIR/tsv"; }
    [[ $(why no-model alpa:2 alpa data) == *no-model* ]]
    [[ $(why mlp:layers=4 ./breaks alpa data) == "no, $BATS_TEST_TMPDIR/breaks" ]]
    [[ $(why mlp:layers=4 alpa:2 ./breaks data) == "no, $BATS_TEST_TMPDIR/breaks" ]]
    [[ $(why mlp:layers=4 alpa:2 no-planner data) == *"'no-planner' is not one of"* ]]
    [[ $(why mlp:layers=4 alpa:2 alpa ./none) == *none* ]]
    [ "$(grep -c 'fill="#a33"' "$BATS_TEST_TMPDIR/bad/cells.svg")" = 23 ]
    run -2 ablation bad MODELS=mlp
    [[ $output == *"MODELS: mlp: expected MODEL@DEVICES"* ]]
}

@test "ablation: after a kill it goes on where it was; a filter that changed runs again" {
    local all first
    # a planner that waits in one cell
    own waits <<<$'#!/bin/sh\n[ -e '"$BATS_TEST_TMPDIR"$'/go ] || sleep 300\nexec '"$BATS_TEST_TMPDIR"'/stages'
    (cd "$BATS_TEST_TMPDIR" && MODELS=mlp:layers=4@2 BLOCKS=alpa:2 STAGES="alpa ./stages ./waits" SHARDS=data COSTS=seconds \
        exec setsid make -C "$AP_TOP/scripts/experiments" --no-print-directory ablation DIR="$BATS_TEST_TMPDIR/k") \
        >/dev/null 2>&1 3>&- &
    all=$!
    await test -e "$BATS_TEST_TMPDIR/k/cell/mlp_layers_4@2=alpa_2=stages=data=seconds.row"
    sleep 0.3
    kill -9 -- -$all
    wait $all || true
    [ ! -e "$BATS_TEST_TMPDIR/k/cells.tsv" ]
    first=$(stat -c '%n %y' "$BATS_TEST_TMPDIR"/k/cell/*.row)
    [ "$(wc -l <<<"$first")" = 2 ]
    touch "$BATS_TEST_TMPDIR/go"
    ablation k MODELS=mlp:layers=4@2 STAGES="alpa ./stages ./waits" | awk -F '\t' 'NR > 1 { n += $8 == "plan" } END { exit n != 3 }'
    [ "$(stat -c '%n %y' "$BATS_TEST_TMPDIR"/k/cell/*{alpa=,stages=}*.row | sort -u | grep -v waits)" = "$(sort -u <<<"$first")" ]
    # the filter's own cell alone
    sleep 0.01
    sed -i 's/microbatches: 2/microbatches: 4/' "$BATS_TEST_TMPDIR/stages"
    ablation k MODELS=mlp:layers=4@2 STAGES="alpa ./stages ./waits" 2>"$BATS_TEST_TMPDIR/said" | awk -F '\t' '$5 == "./stages" && $11 != 4 { exit 1 }'
    [ "$(grep -c ': plan$' "$BATS_TEST_TMPDIR/said")" = 1 ]
}

@test "ablation: cells are of the cluster, the limit and the folder that were asked for" {
    local dir="$BATS_TEST_TMPDIR/a b"
    mkdir "$dir"
    mv "$BATS_TEST_TMPDIR/stages" "$dir"
    lab() { # SLOT=WORDS...: from a folder with a blank in its name, which DIR is relative to
        (cd "$dir" && env MODELS=mlp:layers=4@4 BLOCKS=alpa:2 STAGES="alpa ./stages" SHARDS=data COSTS=seconds "$@" \
            make -C "$AP_TOP/scripts/experiments" --no-print-directory ablation DIR=rel)
    }
    lab CLUSTER=cpu-4 2>/dev/null >"$dir/cpu"
    lab CLUSTER=h100x2 2>/dev/null >"$dir/h100"
    cmp "$dir/h100" "$dir/rel/cells.tsv"
    [ "$(cut -f 3,8 "$dir/cpu" "$dir/h100" | sort | uniq -c | tr -s ' \t' ' ')" = " 2 cluster answer
 2 cpu-4 plan
 2 h100x2 plan" ]
    awk -F '\t' 'FNR > 1 && ++n[FNR] == 1 { first[FNR] = $9 } FNR > 1 && n[FNR] == 2 && $9 == first[FNR] { exit 1 }' "$dir/cpu" "$dir/h100"
    # nothing has changed: nothing is planned; another limit: all is, and what has no plan any more has no document
    run -0 --separate-stderr lab CLUSTER=h100x2
    [[ $stderr != *": plan"* ]]
    [ "$output" = "$(cat "$dir/h100")" ]
    [ "$(find "$dir/rel/cell" -name '*.json' | wc -l)" = 2 ]
    printf '#!/bin/sh\nhead -c 0\necho "%s" >&2\nexit 1\n' "a$(printf 'é%.0s' {1..300})" >"$dir/stages"
    lab CLUSTER=h100x2 LIMIT=200 2>"$dir/said" >"$dir/now"
    [ "$(grep -cE ': (plan|error)$' "$dir/said")" = 2 ]
    [ "$(find "$dir/rel/cell" -name '*.json' | wc -l)" = 1 ]
    [ "$(jq -Rr 'split("\t") | select(.[7] == "error") | .[15] | length' "$dir/now")" = 200 ]
    iconv -f utf-8 -t utf-8 "$dir/rel/cells.svg" >/dev/null
}

@test "ablation: a cluster that there is not, or that has no such part, is said before the first cell" {
    run -2 ablation no CLUSTER=nosuch
    [[ $output == *"nosuch: no such file, and no preset has this name"* ]]
    run -2 ablation no CLUSTER=p3x8 MODELS=mlp:layers=4@12
    [[ $output == *"ablation: p3x8: 12 devices are not whole hosts of 8"* ]]
    [ ! -e "$BATS_TEST_TMPDIR/no/cells.tsv" ]
}
