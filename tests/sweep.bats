#!/usr/bin/env bats
# ap-plan over several clusters, numbers of devices, batches and lengths: the table, the page, the picture.

load helpers

setup_file() {
    # plans of one test are those of the next
    export CACHE=$BATS_FILE_TMPDIR/cache
    mkdir "$CACHE"
}

setup() {
    cd "$BATS_TEST_TMPDIR"
    export XDG_CACHE_HOME=$CACHE
    echo '{"model_type": "llama", "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 4, "intermediate_size": 256, "vocab_size": 512, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512, "hidden_act": "silu", "tie_word_embeddings": false}' >config.json
    sed 's/"num_hidden_layers": 1/"num_hidden_layers": 2/' config.json >two.json # layers that lines can name
    echo '{"currency": "EUR", "per_device_hour": {"H100-80GB": 3, "A100-80GB": 3}}' >prices.json
}

@test "sweep: a row is what one ask says, and what follows from it" {
    run -0 --separate-stderr ap-plan config.json --cluster h100,a100,h100x2 --batch 32 --seq 64 --stages 1 \
        --tokens 1e9 --days 1 --price prices.json -o rows.json --html page.html --svg picture.svg
    [ -z "$stderr" ]
    echo "$output" >report
    for c in h100 a100 h100x2; do
        ap-plan --quiet config.json --cluster $c --batch 32 --seq 64 --stages 1 -o $c.json >/dev/null
    done
    jq -e --slurpfile h h100.json --slurpfile a a100.json --slurpfile hh h100x2.json '
        def near($b): (. / $b - 1 | fabs) < 1e-9;
        [.rows[].step_sec] == [($h, $a, $hh)[0].cost.step_sec]
        and [.rows[].words] == [($h, $a, $hh)[0].cost.plan.words]
        and [.rows[].devices] == [{"H100-80GB": 8}, {"A100-80GB": 8}, {"H100-80GB": 16}]
        and (.rows[2] | .days as $days
            | ($days | near(1e9 / 2048 * $hh[0].cost.step_sec / 86400))
                and (.device_hours | near($days * 24 * 16)) and (.money | near($days * 24 * 16 * 3)))
        and .rows[0].bound_sec == $h[0].stages.lower_bound_sec' rows.json
    # dominated: no quicker and no cheaper than another row
    jq -e '.rows | . as $all | all(.[]; . as $r | ((.dominated_by != null) == any($all[];
        .step_sec <= $r.step_sec and .money <= $r.money and (.step_sec < $r.step_sec or .money < $r.money))))
        and any(.[]; .dominated_by)' rows.json
    [[ $output == *$'\ncheapest: '*' days'$'\n'* && $output == *'within 1 day: 3 of 3'* ]]
    [ "$(grep -c '<circle' picture.svg)" -eq 6 ] # against money, and against devices
    python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse("picture.svg")'
    grep -q '<td>h100x2</td><td>16</td>' page.html
    run ! grep -qE '(src|href)=|@import' page.html
    # the same for any number of jobs, without what is kept
    ap-plan --no-cache config.json --cluster h100,a100,h100x2 --batch 32 --seq 64 --stages 1 \
        --tokens 1e9 --days 1 --price prices.json -o again.json --jobs 1 | diff report -
    diff <(jq 'del(.asked)' rows.json) <(jq 'del(.asked)' again.json)
}

@test "sweep: devices, batches and lengths; rows without a plan or a price say why" {
    run -0 --separate-stderr ap-plan mlp --cluster h100x4 --devices 4,8..32 --batch 64 --stages 1 -o rows.json
    jq -e '[.rows[].cluster] == ["h100x?", "h100x1", "h100x2", "h100x4"]
        and .rows[0].why == "4 devices: a host has 8" and [.rows[1:][].devices[]] == [8, 16, 32]
        and .rows[0].step_sec == null' rows.json
    # where the curve bends is the first doubling that gains less than 1.6
    jq -r '[.rows[1:][].step_sec] | [.[0] / .[1], .[1] / .[2]] | if .[0] < 1.6 then "bends at 8 devices"
        elif .[1] < 1.6 then "bends at 16 devices" else "does not bend up to 32" end' rows.json >want
    grep -qF "$(cat want)" <<<"$output"
    run -0 --separate-stderr ap-plan config.json --cluster h100 --batch 16,32 --seq 32,64 --stages 1 --tokens 1e9 -o rows.json --svg picture.svg
    jq -e '[.rows[] | [.samples, .seq]] == [[16, 32], [16, 64], [32, 32], [32, 64]]
        and all(.rows[]; .tokens == .samples * .seq)' rows.json
    grep -q '>tokens/s</text>' picture.svg
    [[ $output == *$'\nquickest: h100 of 8 devices, batch 32, seq 64, '* ]]
    # too small a memory is no failure of the others
    run -0 --separate-stderr ap-plan mlp --cluster cpu-4,cpu-8 --batch 64 --memory 30000 --recompute none -o rows.json
    jq -e '[.rows[] | has("why")] == [true, false]' rows.json
    [[ $output == *$'\ncpu-4 '*'nothing fits in 30000 bytes'* ]]
    echo '{"per_device_hour": {"H100-80GB": 3}}' >some.json
    run -0 --separate-stderr ap-plan config.json --cluster h100,a100 --batch 32 --seq 64 --stages 1 --tokens 1e9 --price some.json
    [[ $output == *'no price of A100-80GB'* ]]
    run -0 --separate-stderr ap-plan config.json --cluster h100x1+a100x1 --batch 32 --seq 64 --stages 2 --tokens 1e9 \
        --price prices.json -o rows.json
    jq -e '.rows[0] | .devices == {"H100-80GB": 8, "A100-80GB": 8} and (.money / (.days * 24 * (8 * 3 + 8 * 3)) - 1 | fabs) < 1e-9' rows.json
}

@test "sweep: prices by the names that people use" {
    local names
    priced() { # PRICES CLUSTER: the money of an hour of a device
        echo "{\"per_device_hour\": $1}" >named.json
        ap-plan config.json --cluster "$2" --batch 32 --seq 64 --stages 1 --tokens 1e9 --price named.json -o rows.json >/dev/null
        jq -c '[.rows[] | .money / .device_hours * 1000 | round / 1000]' rows.json
    }
    for names in H100-80GB h100-80gb H100 h100 h100x2; do
        [ "$(priced "{\"$names\": 2.5}" h100x2)" = '[2.5]' ]
    done
    # what is nearer to the ask counts; of others a file may say what it likes
    [ "$(priced '{"h100x2": 5, "H100-80GB": 2, "A100": 1, "gb300": 7, "b200x16": 4, "core": 1}' h100x2,h100,a100)" = '[5,2,1]' ]
    [ "$(priced '{"dgx-h100": 4, "H100-80GB": 2}' dgx-h100x2,h100x2)" = '[4,2]' ]
    # a cluster of several kinds has the names of its devices
    [ "$(priced '{"h100": 3, "A100": 1}' h100x1+a100x1)" = '[2]' ]
    echo '{"per_device_hour": {"H100": 2, "h1000": 3}}' >bad.json
    refuses 1 "ap-plan: bad.json: /per_device_hour/h1000: no device or cluster has this name; those asked have H100, H100-80GB, h100x2" \
        ap-plan config.json --cluster h100x2 --batch 32 --tokens 1e9 --price bad.json
    echo '{"per_device_hour": {"H100": 2, "h100": 3}}' >bad.json
    refuses 1 "ap-plan: bad.json: /per_device_hour/h100: H100 is the same name" \
        ap-plan config.json --cluster h100x2 --batch 32 --tokens 1e9 --price bad.json
}

@test "sweep: how sure a row is, and which order is open" {
    jq '.published = [{types: "16-bit", plan: "one-stage", runs: 12, sources: 3, devices: 8, low: 0.9, median: 1, high: 1.2, of: "some"}]' \
        "$CLUSTERS/h100-8.json" >near.json
    jq '.name = "far" | .published[0].devices = 1' near.json >far.json
    for c in near far; do
        run -0 --separate-stderr ap-plan --quiet config.json --cluster $c.json --batch 32 --seq 64 --stages 1 -o $c.plan
        if [ $c = near ]; then
            [[ $output == *$'\nwithin 20 % for 8 of 10 published runs of this kind: 0.90 to 1.20 x, median 1.00 (12 runs, 3 sources)\n'* ]]
            jq -e '.cost.plan.published == {runs: 12, sources: 3, low: 0.9, median: 1, high: 1.2, of: "some"}' $c.plan
        else
            [[ $output == *$'\nno measured run is near this plan\n'* ]]
            jq -e '.cost.plan | has("published") | not' $c.plan
        fi
    done
    # the same devices, a little quicker: the order is open; twice as quick: it is not
    jq '.name = "h2" | .efficiency *= 1.02 | .launch_sec *= 0.99' near.json >h2.json
    jq '.name = "h3" | .flops_per_sec[] *= 3 | .memory_bandwidth_bytes_per_sec *= 3 | .launch_sec /= 3' near.json >h3.json
    run -0 --separate-stderr ap-plan config.json --cluster near.json,h2.json,h3.json,far.json --batch 32 --seq 64 --stages 1
    [[ $output == *'open: whether h2.json or near.json is quicker'* && $output != *'open: whether h3.json'* ]]
    [[ $output == *$'\nno measured run is near the plan of far.json\n'* && $output == *' 0.90-1.20 x '* ]]
    # days have the range that these runs make, where there are any, and the picture a bar of it
    run -0 --separate-stderr ap-plan config.json --cluster near.json,far.json --batch 32 --seq 64 --stages 1 --tokens 1e15 \
        --svg picture.svg -o rows.json
    [ "$(jq '.rows[0].days * 1.2 | round' rows.json)" -ge 1000 ]
    [ "$(awk '$1 == "near.json" && match($0, /\([0-9,]+-[0-9,]+\)/) { print substr($0, RSTART + 1, RLENGTH - 2) }' <<<"$output" | tr -d ,)" = \
        "$(jq -r '.rows[0].days | pow(10; log10 | floor - 2) as $e | "\(. * 0.9 / $e | round * $e)-\(. * 1.2 / $e | round * $e)"' rows.json)" ]
    ! grep '^far.json' <<<"$output" | grep -qF '(' || false
    [ "$(grep -c '<path' picture.svg)" -eq 1 ]
    for bad in '.low = 2' '.runs = 0' '.plan = "x"' 'del(.of)'; do
        jq ".published[0] |= ($bad)" near.json >bad.json
        refuses 1 "/published/0" ap-plan config.json --cluster bad.json --batch 32 --seq 64
    done
    # a kind whose runs are all of one source but for those left out: what is written is what it says
    jq -n '[range(24) | {preset: "dgx-a100", source: "s\(. % 4) x", dtype: "bf16", ffn_kind: "gelu", ep: "1", pp: "1",
        n_gpus: "8", gpu: "A100", gpu_mem_gb: "80", step_s: (1 + . / 100 | tostring), predicted_s: 1}]' >runs.json
    "$AP_TOP/scripts/published-errors" --coverage runs.json | grep -qE '^ *dgx-a100 +24 rows +91.7%$' # all but the ends
    # a kind that no other source has is not counted; the other rows take the interval of all plans
    jq '.[] |= if .source == "s0 x" then .pp = "2" else . end' runs.json >kinds.json
    "$AP_TOP/scripts/published-errors" --coverage kinds.json | grep -qE '^ *dgx-a100 +18 rows +94.4%$'
}

@test "sweep: numbers of devices of any cluster; equal rows once; no plan at all" {
    run -0 --separate-stderr ap-plan mlp --cluster tpu-v5e,rhino-m8,tap-128,mi300x,cpu-4,cpu-4 --devices 4,64 --batch 64 -o rows.json
    jq -e '[.rows[] | [.cluster, .why // ([.devices[]] | add)]] == [["tpu-v5ex1", 4], ["tpu-v5ex16", 64],
        ["rhino-m8x?", "4 devices: a host has 8"], ["rhino-m8x8", 64], ["tap-128x?", "4 devices: a host has 8"], ["tap-128x8", 64],
        ["mi300x-8x?", "4 devices: a host has 8"], ["mi300x-8x8", 64],
        ["cpu-4", 4], ["cpu-4", "64 devices: it has 4, and there is no KINDxHOSTS of its hosts"]]' rows.json
    # hosts of several kinds are of the first level; other levels are between them
    ap-plan --quiet mlp --cluster h100x2+a100x2 -o mixed.json >/dev/null
    jq '.cluster | .name = "three" | .levels |= [.[0], (.[1] | .size = 2), (.[1] | .size = 2 | .name = "spine")]' mixed.json >three.json
    run -0 ap-plan --quiet mlp --cluster three.json,cpu-4 --batch 64 -o rows.json
    jq -e '.rows[0].devices == {"H100-80GB": 16, "A100-80GB": 16}' rows.json
    # a line that --grid says, warnings and counts of each row
    run -0 --separate-stderr ap-plan two.json --cluster h100,a100 --batch 32 --seq 64 --grid dp=8 --stats
    [ "$(grep -c '"tool":"ap-stage"' <<<"$stderr")" -eq 2 ]
    run -3 --separate-stderr ap-plan mlp --cluster cpu-4,cpu-8 --batch 64 --memory 1000 --svg picture.svg -o none.json
    [ -z "$output" ]
    [ "$(grep -c '^cpu-.*nothing fits in 1000 bytes' <<<"$stderr")" -eq 2 ]
    [ ! -e picture.svg ]
    [ ! -e none.json ]
}

@test "ap-plan: what is kept follows files that words name, and an entry is whole or absent" {
    export XDG_CACHE_HOME=$PWD/own
    ap-plan --quiet mlp --cluster cpu-4 --html page.html >report
    for f in own/autopar/plan/*; do
        truncate -s -9 "$f" # as a full disk leaves it
    done
    rm page.html
    ap-plan --quiet mlp --cluster cpu-4 --html page.html | diff report -
    [ -s page.html ]
    echo '--tensor-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 32' >flags
    ap-plan --quiet two.json --cluster h100 --batch 32 --seq 64 --from=megatron:flags | grep -q 'TP 2'
    echo '--tensor-model-parallel-size 4 --micro-batch-size 4 --global-batch-size 32' >flags
    ap-plan --quiet two.json --cluster h100 --batch 32 --seq 64 --from=megatron:flags | grep -q 'TP 4'
}

@test "sweep: what it refuses" {
    local base=(ap-plan config.json --batch 32 --seq 64)
    refuses 2 "--price: how much is trained? --tokens is missing" "${base[@]}" --cluster h100 --price prices.json
    refuses 2 "--tokens: expected a number > 0, got '1e'" "${base[@]}" --cluster h100 --tokens 1e
    refuses 2 "--days: expected a number > 0, got '0'" "${base[@]}" --cluster h100 --tokens 1e9 --days 0
    refuses 2 "--devices: expected a number > 0 or A..B, got '8..4'" "${base[@]}" --cluster h100 --devices 8..4
    refuses 2 "--devices: expected a number > 0 or A..B, got '8-64'" "${base[@]}" --cluster h100 --devices 8-64
    refuses 2 "--batch: expected a number > 0 or A..B, got 'x'" ap-plan config.json --cluster h100 --batch 8,x
    refuses 2 "--batch: expected a number > 0 or A..B, got ''" ap-plan config.json --cluster h100 --batch 8,,16
    refuses 2 "--devices: cluster h100x1+a100x1 has several kinds of devices" "${base[@]}" --cluster h100x1+a100x1 --devices 8
    refuses 2 "--out: it is of one plan" "${base[@]}" --cluster h100,a100 --out megatron
    refuses 1 "nowhere.json: No such file or directory" "${base[@]}" --cluster h100 --tokens 1e9 --price nowhere.json
    echo '{"per_device_hour": {"H100-80GB": "3"}}' >bad.json
    refuses 1 "bad.json: /per_device_hour/H100-80GB: expected a number > 0, got \"3\"" \
        "${base[@]}" --cluster h100 --tokens 1e9 --price bad.json
    echo '{"H100-80GB": 3}' >bad.json
    refuses 1 "bad.json: /per_device_hour: expected an object" "${base[@]}" --cluster h100 --tokens 1e9 --price bad.json
    echo '{"currency": {"a": 1}, "per_device_hour": {"H100-80GB": 3}}' >bad.json
    refuses 1 'bad.json: /currency: expected a string, got {"a":1}' "${base[@]}" --cluster h100 --tokens 1e9 --price bad.json
    : >bad.json
    refuses 1 "bad.json: expected one object" "${base[@]}" --cluster h100 --tokens 1e9 --price bad.json
    echo '{' >bad.json
    refuses 1 "bad.json: " "${base[@]}" --cluster h100 --tokens 1e9 --price bad.json
    # names are known before the first row is planned
    refuses 1 "ap-plan: h999: no such file" "${base[@]}" --cluster h100,h999
    run ! grep -q . <(find "$XDG_CACHE_HOME" -newer bad.json -type f)
    refuses 2 "--cluster: expected names with commas between, got ','" "${base[@]}" --cluster ,
    refuses 2 "--batch: expected a number > 0 or A..B, got '*'" ap-plan mlp --cluster h100 --batch '*,'
    refuses 2 "--free: it is of one plan" "${base[@]}" --cluster h100,a100 --for megatron --free
    refuses 2 "--batch: $(hlo mlp) has its own" ap-plan "$(hlo mlp)" --cluster h100 --batch 8,16
    refuses 1 "--tokens: its samples are not sequences of tokens" ap-plan mlp --cluster h100 --tokens 1e9
}
