#!/usr/bin/env bats
# ap-shard --memory: plans that fit, their bounds, and what is said when there is none.

load helpers

# jq -e calls the empty output of a tool that failed true.
setup() { set -o pipefail; }

# within LIMIT MODEL OPTION...: the section "sharding" of the plan that fits
within() {
    ap-shard --cluster "$CLUSTERS/cpu-8.json" --memory "$1" "${@:3}" "$(imported "$2")" |
        jq -c '.sharding'
}

# least MODEL OPTION...: the least memory found, and that proven
least() {
    run -3 --separate-stderr ap-shard --cluster "$CLUSTERS/cpu-8.json" --memory 1kB "${@:2}" \
        "$(imported "$1")"
    [ -z "$output" ]
    # shellcheck disable=SC2154
    [[ $stderr =~ 'least found needs '[^\(]*\(([0-9]+)\ bytes\) ]] && found=${BASH_REMATCH[1]}
    [[ $stderr =~ 'at least '[^\(]*\(([0-9]+)\ bytes\) ]] && proven=${BASH_REMATCH[1]}
    [ "$proven" -le "$found" ]
}

@test "memory: tighter limits cost more, every plan fits, bounds hold" {
    local last=0 limit
    for limit in 2MB 965kB 900kB; do
        within "$limit" gpt2l --mesh 2x4 >"$BATS_TEST_TMPDIR/s"
        jq -e --argjson last "$last" '.peak_bytes <= .memory_limit_bytes and .fits_device and
            .objective_sec >= $last and .lower_bound_sec <= .objective_sec and
            .lower_bound_sec > 0.96 * .objective_sec' "$BATS_TEST_TMPDIR/s" >/dev/null ||
            { jq -c 'del(.groups, .layouts, .conversions)' "$BATS_TEST_TMPDIR/s"; return 1; }
        last=$(jq .objective_sec "$BATS_TEST_TMPDIR/s")
    done
}

# Two layers: choices come in large steps, and prices alone leave a few percent.
@test "memory: within 3 % of the bound at 1.2, 1.5 and 2 times the least found" {
    local row
    for row in 'mlp 2x4' 'mlp 2x2' 'resnet 2x2' 'gpt2l 2x2'; do
        read -r model mesh <<<"$row"
        least "$model" --mesh "$mesh"
        for times in 1.2 1.5 2; do
            within "$(jq -n "$found * $times | floor")" "$model" --mesh "$mesh" |
                jq -e '.peak_bytes <= .memory_limit_bytes and .gap <= 0.03' >/dev/null ||
                { echo "$row, $times times $found"; return 1; }
        done
        within "$found" "$model" --mesh "$mesh" |
            jq -e '.peak_bytes <= .memory_limit_bytes and .gap <= 0.03' >/dev/null ||
            { echo "$row, $found"; return 1; }
        [ "$model" != gpt2l ] || continue # four times as long as all of resnet
        refuses 3 "at least" ap-shard --cluster "$CLUSTERS/cpu-8.json" --mesh "$mesh" \
            --memory $((proven - 1)) "$(imported "$model")"
    done
}

@test "memory: what is advised is found by who asks for it" {
    local model mesh
    while read -r model mesh; do
        least "$model" --mesh "$mesh"
        within "$found" "$model" --mesh "$mesh" |
            jq -e --argjson n "$found" '.peak_bytes <= $n' >/dev/null || { echo "$model $mesh, $found"; return 1; }
    done <<'EOT'
mlp 2
mlp 4
mlp 8
mlp 2x4
scan_mlp 2
scan_mlp 4
scan_mlp 8
EOT
}

# Two layers again: models of real size are within 1 %.
@test "memory: programs need more than what is alive, and plans are found all the same" {
    ap-shard --mesh 2x4 --memory 243072 "$(imported resnet)" |
        jq -e '.sharding | .peak_bytes <= .memory_limit_bytes and .gap <= 0.05'
}

@test "memory: what several later users need is held" {
    ap-shard --mesh 2x4 --memory 20736 "$(imported scan_mlp)" |
        jq -e '.sharding | .peak_bytes <= .memory_limit_bytes and .gap <= 0.03'
}

@test "memory: prices that meet a known plan on the way to better ones do not end the search" {
    ap-model vit --layers 6 --hidden 512 --heads 8 --batch 64 | ap-prune |
        ap-shard --mesh 8x8 --memory 195398000 |
        jq -e '.sharding | .peak_bytes <= .memory_limit_bytes and .gap <= 0.01'
}

@test "memory: the gap of a small graph on many devices is stated" {
    ap-shard --mesh 8x8 --memory 8064 "$(imported scan_mlp)" |
        jq -e '.sharding | .peak_bytes <= .memory_limit_bytes and .gap > 0.01 and .gap <= 0.07'
}

@test "memory: the least is found where it is a million times the limit" {
    ap-model vit --layers 6 --hidden 512 --heads 8 --batch 64 |
        ap-prune -o "$BATS_TEST_TMPDIR/vit.json"
    refuses 3 "least found" timeout 300 ap-shard --mesh 2x4 --memory 1kB \
        "$BATS_TEST_TMPDIR/vit.json"
}

@test "memory: a copy that waits for its next user is priced" {
    ap-shard --mesh 2x4 --memory 20275 "$(imported mlp)" |
        jq -e '.sharding | .peak_bytes <= .memory_limit_bytes and .gap <= 0.035'
}

# kinds OPTION...: how many kinds of inner layers the plan has
kinds() {
    ap-shard --mesh 4 "$@" "$BATS_TEST_TMPDIR/deep.json" >"$BATS_TEST_TMPDIR/plan.json"
    jq '.sharding.layouts as $layouts | [.graph.nodes | to_entries[] |
        select(.value.scope // "" | test("^gpt/h_[1-6]/"))] |
        group_by(.value.scope | split("/")[1]) |
        map(map($layouts[.key]) | join(" ")) | unique | length' "$BATS_TEST_TMPDIR/plan.json"
}

@test "memory: a limit that only k of L layers must meet, folded bounds are those of all plans" {
    ap-model gpt --layers 8 --hidden 64 --heads 4 --batch 16 --seq 32 --vocab 128 |
        ap-prune -o "$BATS_TEST_TMPDIR/deep.json"
    [ "$(kinds)" -eq 1 ]
    local last=0 limit found=0
    for limit in 38MB 36MB; do
        [ "$(kinds --memory "$limit")" -gt 1 ]
        jq -e --argjson last "$last" '.sharding | .peak_bytes <= .memory_limit_bytes and
            .gap <= 0.01 and .objective_sec > $last' "$BATS_TEST_TMPDIR/plan.json"
        last=$(jq .sharding.objective_sec "$BATS_TEST_TMPDIR/plan.json")
        found=$(jq .sharding.lower_bound_sec "$BATS_TEST_TMPDIR/plan.json")
        kinds --memory "$limit" --no-families >/dev/null
        jq -e --argjson bound "$found" --argjson price "$last" '.sharding |
            .objective_sec >= $bound and .lower_bound_sec <= $price' "$BATS_TEST_TMPDIR/plan.json"
    done
}

@test "memory: the plan is priced alike by ap-cost, and its program is as large" {
    ap-shard --mesh 2x2 --cluster "$CLUSTERS/cpu-8.json" --memory 38kB "$(imported mlp)" |
        ap-cost | ap-rewrite >"$BATS_TEST_TMPDIR/p.json"
    jq -e '.sharding.objective_sec == .cost.serial_sec and
        .program.peak_bytes == .sharding.peak_bytes and
        .sharding.peak_bytes <= 38000' "$BATS_TEST_TMPDIR/p.json"
    ap-shard --mesh 2x2 --cluster "$CLUSTERS/cpu-8.json" --memory 38kB "$(imported mlp)" |
        jq -S .sharding >"$BATS_TEST_TMPDIR/again"
    jq -S .sharding "$BATS_TEST_TMPDIR/p.json" | cmp - "$BATS_TEST_TMPDIR/again"
}

@test "memory: rhino §7.4: VGG-19 with a million classes needs more than one device of 32 GiB" {
    ap-model vgg19-4.2b --batch 128 -o "$BATS_TEST_TMPDIR/vgg.json"
    refuses 3 "vgg19/fc_2/w 15.26 GiB (f32[4096,1000000] as R)" ap-shard --mesh 1 \
        --cluster "$CLUSTERS/papers/rhino-m8.json" --memory 32GiB "$BATS_TEST_TMPDIR/vgg.json"
    ap-shard --mesh 8 --cluster "$CLUSTERS/papers/rhino-m8.json" --memory 32GiB \
        -o "$BATS_TEST_TMPDIR/split.json" "$BATS_TEST_TMPDIR/vgg.json"
    shows "one device: no plan fits; eight: $(jq -r .sharding.peak_bytes "$BATS_TEST_TMPDIR/split.json") bytes of 34359738368 a device"
    jq -e '.sharding | .peak_bytes <= .memory_limit_bytes and .fits_device and .gap < 1e-6' "$BATS_TEST_TMPDIR/split.json"
    ap-shard --mesh 1 --cluster "$CLUSTERS/papers/rhino-m8.json" "$BATS_TEST_TMPDIR/vgg.json" |
        jq -e '.sharding | .fits_device == false and (has("memory_limit_bytes") | not)'
}

@test "memory: a rule that is too large is refused with what it holds" {
    refuses 3 "data needs 1.798 MiB (1885056 bytes) per device, more than 976.6 KiB: it holds" \
        ap-shard --mesh 2x4 --algorithm data --memory 1MB "$(imported gpt2l)"
    ap-shard --mesh 2x4 --algorithm zero3 --memory 1MB "$(imported gpt2l)" |
        jq -e '.sharding.peak_bytes <= 1000000'
    ap-shard --mesh 2x4 --algorithm data --memory device "$(imported gpt2l)" |
        jq -e '.sharding.memory_limit_bytes == .cluster.memory_bytes'
    refuses 2 "such as 16GiB" ap-shard --mesh 2 --memory 16Gi "$(imported mlp)"
    refuses 2 "Alpa's space" ap-shard --mesh 2 --space alpa --memory 1GB "$(imported mlp)"
}

@test "memory: where the budget of work ends the search, the price is the plan's" {
    ap-import --quiet testdata/models/gpt2-124m.hlo.gz | ap-prune --quiet |
        ap-shard --quiet --mesh 8x8 --memory 602365440 --work-limit 20 >"$BATS_TEST_TMPDIR/p.json"
    jq -e '.sharding | .stopped != "optimal" and .peak_bytes <= .memory_limit_bytes' "$BATS_TEST_TMPDIR/p.json"
    ap-cost --quiet "$BATS_TEST_TMPDIR/p.json" |
        jq -e '(.cost.step_sec - .sharding.objective_sec | fabs) <= 1e-9 * .cost.step_sec'
}
