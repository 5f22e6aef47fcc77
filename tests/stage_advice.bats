#!/usr/bin/env bats
# What ap-stage says would do where there is no plan, done: each advice is tried by the
# same command with that change.

load helpers

setup_file() {
    ap-model gpt --layers 8 --hidden 64 --heads 4 --batch 8 --seq 64 --vocab 500 | ap-prune |
        ap-coarsen --blocks 8 --no-history -o "$BATS_FILE_TMPDIR/gpt.json"
}

# hosts N DEVICES: a cluster of so many
hosts() {
    local file=$BATS_FILE_TMPDIR/$1x$2.json
    jq --argjson n "$1" --argjson d "$2" '.levels = [.levels[0], .levels[-1]] |
        .levels[0].size = $d | .levels[1].size = $n' "$CLUSTERS/papers/p3x8.json" >"$file"
    echo "$file"
}

# stage CLUSTER OPTION...
stage() { ap-stage --quiet --cluster "$1" "${@:2}" "$BATS_FILE_TMPDIR/gpt.json"; }

# less "OPTION..." NAME...: the options but for those, with their values
less_of() {
    local left=$1 name
    for name in "${@:2}"; do
        left=$(sed -E "s/$name [^ ]+//" <<<"$left")
    done
    echo "$left"
}

# follow N DEVICES "OPTION...": every advice in $stderr is a plan within the limits
follow() {
    local options=$3 said=${stderr?} out=$BATS_TEST_TMPDIR/out.json need n rules done=0
    need=$(sed -nE 's/.* needs ([0-9]+) bytes per device.*/\1/p' <<<"$said")
    if [ -n "$need" ]; then
        stage "$(hosts "$1" "$2")" $(less_of "$options" --memory) --memory "$need" -o "$out" ||
            return
        # others plan by their own rules, and warn
        [[ $options == *--algorithm* ]] || ap-cost "$out" |
            jq -e --argjson need "$need" '.cost.peak_bytes <= $need' >/dev/null || return
        done=$((done + 1))
    fi
    n=$(sed -nE 's/.* ([0-9]+) hosts in place of .*/\1/p' <<<"$said")
    if [ -n "$n" ]; then
        stage "$(hosts "$n" "$2")" $options -o "$out" || return
        done=$((done + 1))
    fi
    while read -r rules; do
        stage "$(hosts "$1" "$2")" $(less_of "$options" $rules) -o "$out" || return
        done=$((done + 1))
    done < <(grep -oE 'without( --[a-z]+)+' <<<"$said" | sed 's/without //')
    if [[ $said == *"try auto"* ]]; then
        stage "$(hosts "$1" "$2")" $(less_of "$options" --algorithm) -o "$out" || return
        done=$((done + 1))
    fi
    [ "$done" -gt 0 ]
}

@test "advice: each change that is named makes a plan of what had none" {
    local n devices words options
    while IFS='|' read -r n devices words options; do
        refuses 3 "$words" stage "$(hosts "$n" "$devices")" $options
        follow "$n" "$devices" "$options" || { echo "$options: $stderr"; return 1; }
    done <<'EOF'
1|4|needs|--memory 1MB
1|2|hosts in place of 1|--stages 4 --schedule 1f1b
1|2|hosts in place of 1|--stages 4 --algorithm alpa --memory 12MB
1|8|without --stages|--algorithm rhino --stages 3
1|8|without --submeshes|--submeshes 1x8 --stages 4
1|8|without --stages|--algorithm equal-layer --stages 5 --submeshes 1x4 --memory 12MB
2|2|needs|--algorithm alpa --memory 2MB --submeshes 1x2
2|4|needs|--algorithm rannc --memory 1MB
2|4|needs|--algorithm intra-only --memory 900kB --schedule gpipe
2|2|needs|--algorithm rhino --memory 900kB --stages 2
1|2|needs|--recompute selected --memory 1MB --microbatches 4
EOF
}

@test "advice: a byte less, a host less, and what is not named have no plan" {
    local need algorithm
    for algorithm in "auto --schedule 1f1b" alpa; do
        refuses 3 needs stage "$(hosts 1 4)" --stages 4 --memory 2MB --algorithm $algorithm
        need=$(sed -nE 's/.* needs ([0-9]+) bytes per device.*/\1/p' <<<"$stderr")
        refuses 3 "needs" stage "$(hosts 1 4)" --stages 4 --memory $((need - 1)) --algorithm $algorithm
    done
    refuses 3 "2 hosts in place of 1" stage "$(hosts 1 4)" --stages 8 --schedule 1f1b
    refuses 3 "8 hosts in place of 2" stage "$(hosts 2 1)" --stages 8 --schedule 1f1b
}

@test "memory: weights that are gathered for one microbatch are there until its backward" {
    ap-model llama --layers 6 --hidden 8192 --heads 64 --kv-heads 8 --ffn 28672 --vocab 32000 --untied --batch 16 \
        --seq 131072 --dtype bf16 | ap-fuse --cluster h100x16 | ap-prune | ap-coarsen --blocks 6 |
        ap-stage --quiet --cluster h100x16 --memory 24GB --stages 1 --microbatches 1 --shard-command "ap-shard --serve" |
        ap-cost --quiet | jq -e '.cost.peak_bytes > 20e9 and .cost.peak_bytes <= 24e9'
}
