#!/usr/bin/env bats
# ap-cost for people: report, why, diff and trace; presets of clusters.

load helpers

# A plan that is priced for slow devices with fast links.
plan() { sharded mlp 2x2 "${1:-ilp}"; }

@test "cost: f32 contracts at the rate of tf32 where the device has it, unless option or graph say f32" {
    local dir=$BATS_TEST_TMPDIR c f32
    ap-model mlp --hidden 4096 --batch 4096 --layers 3 --features 4096 --classes 4096 >"$dir/m.json"
    jq '(.graph.nodes[] | select(.op == "dot")).operand_precision = "{highest,highest}"' "$dir/m.json" >"$dir/high.json"
    # FILE [OPTION...]
    sec() { ap-shard --quiet --mesh 1 --cluster dgx-a100 "${@:2}" "$dir/$1.json" | ap-cost --quiet | jq .cost.step_sec; }
    c=$(sec m)
    [ "$(sec m --f32-matmul tf32)" = "$c" ]
    [ "$(sec high)" = "$(sec m --f32-matmul f32)" ]
    jq -n --argjson tf32 "$c" --argjson f32 "$(sec high)" -e '$f32 > 4 * $tf32 and $f32 < 8 * $tf32'
    ap-shard --quiet --mesh 1 --cluster dgx-a100 --f32-matmul f32 "$dir/m.json" | jq -e '.cluster | has("tf32_flops_per_sec") | not'
    # a plan for one rate at the other
    ap-shard --quiet --mesh 1 --cluster dgx-a100 "$dir/m.json" >"$dir/plan.json"
    [ "$(ap-cost --quiet --f32-matmul f32 "$dir/plan.json" | jq .cost.step_sec)" = "$(sec m --f32-matmul f32)" ]
    ap-cost --quiet --f32-matmul f32 "$dir/plan.json" | jq -e '.cluster | has("tf32_flops_per_sec") | not'
    ap-cost --quiet --no-history --f32-matmul tf32 "$dir/plan.json" | cmp - <(ap-cost --quiet --no-history "$dir/plan.json")
    # stages, too, and the command that prices them
    stage() { ap-coarsen --quiet --blocks 2 "$dir/m.json" | ap-stage --quiet --cluster a100-8 --stages 1 --submeshes 1x1 --microbatches 1 "$@" >"$dir/stages.json"; }
    stage --f32-matmul f32
    f32=$(jq .stages.objective_sec "$dir/stages.json")
    refuses 2 'the devices of cluster a100-8 have no tf32' ap-cost --f32-matmul tf32 "$dir/stages.json"
    stage
    jq -n --argjson tf32 "$(jq .stages.objective_sec "$dir/stages.json")" --argjson f32 "$f32" -e '$f32 > 4 * $tf32'
    ap-cost --quiet --f32-matmul f32 "$dir/stages.json" | jq --argjson f32 "$f32" -e '.cost.step_sec == $f32 and .stages.objective_sec == $f32'
    refuses 2 'the devices of cluster p3x1 have no tf32' ap-shard --mesh 1 --cluster p3x1 --f32-matmul tf32 "$dir/m.json"
    refuses 2 'cluster h100-measured has measured products' ap-shard --mesh 1 --cluster h100-measured --f32-matmul f32 "$dir/m.json"
}

@test "cost: the report fits 100 columns, also where names and meshes are long" {
    local plan
    for plan in "mlp 2x2x2 ilp" "moe 2x2x2 megatron"; do # the search takes a while for the second
        # shellcheck disable=SC2086 # words
        run -0 ap-cost --details "$(sharded $plan)"
        [ "$(wc -L <<<"$output")" -le 100 ]
        [[ $output == *"where the time goes"*"what fills a device's memory"*"what would help"* ]]
        [ "$(wc -l <<<"$output")" -le 100 ]
    done
}

@test "cost: the report's shares of time are those of the document" {
    local doc
    doc=$(plan)
    ap-cost "$doc" >"$BATS_TEST_TMPDIR/priced.json"
    run -0 ap-cost --details "$doc"
    local want
    want=$(jq '.cost | 100 * .comm_sec / .step_sec * 10 | round / 10' \
        "$BATS_TEST_TMPDIR/priced.json")
    [[ $output == *"communication $want %"$'\n'* ]]
}

@test "cost: a plan beyond the device's memory is marked, and what would hold it is said" {
    local small=$BATS_TEST_TMPDIR/small.json
    jq '.memory_bytes = 30000' "$CLUSTERS/cpu-4.json" >"$small"
    run -0 ap-cost --details --cluster "$small" "$(plan data)"
    [[ $output == *" is too large for 30 kB"* ]]
    [[ $output == *"does not fit as it is"* ]]
    grep -q '^  data .*too large$' <<<"$output"
    run -0 ap-cost --details "$(plan data)"
    [[ $output != *"too large"* ]]
}

@test "cost: what the report says would help does help by as much" {
    local doc line half=$BATS_TEST_TMPDIR/half.json
    doc=$(plan)
    line=$(ap-cost --details "$doc" | grep '^  half the kernel-launch overhead')
    jq '.launch_sec /= 2' "$CLUSTERS/cpu-8.json" >"$half"
    [ "$(ap-cost --cluster "$half" "$doc" | jq '.cost.step_sec * 1e8 | round / 100')" = \
        "$(awk '{ print $5 + 0 }' <<<"$line")" ]
}

@test "cost: --why finds nothing cheaper beside an optimal plan's matrix multiplication" {
    run -0 ap-cost --why dot_general.9 "$(plan)"
    [[ ${lines[0]} == *"dot_general.9 (dot), forward"* ]]
    [[ $output == *"the plan"* ]]
    [ "${#lines[@]}" -gt 5 ]
    [ "$(grep -c '^ *-' <<<"$output")" = 0 ]
    # the same node by its number
    local id=${lines[0]#node }
    diff <(ap-cost --why "${id%% *}" "$(plan)") <(echo "$output")
}

@test "cost: --why's alternative costs what a plan that has it costs" {
    local doc other=$BATS_TEST_TMPDIR/other.json line group
    doc=$(sharded mlp 4 data)
    run -0 ap-cost --why dot_general.9 "$doc"
    [[ $output == "node 27 "* ]]
    group=${lines[0]#*in group }
    line=$(grep 'P <- S1 S0$' <<<"$output")
    jq -c --argjson g "${group%% *}" \
        '.sharding.groups[$g] = {"choice": [2], "in": ["S1", "S0"], "out": ["P"]} |
         .sharding.layouts[27] = "P"' "$doc" >"$other"
    [ "$(ap-cost "$other" | jq --argjson was "$(ap-cost "$doc" | jq .cost.step_sec)" \
        '(.cost.step_sec - $was) * 1e8 | round / 100')" = "$(awk '{ print $1 * 1 }' <<<"$line")" ]
}

@test "cost: --diff's parts add up to the difference of the totals" {
    run -0 ap-cost --diff "$(plan data)" "$(plan)"
    awk 'function sec(number, unit) { return number * (unit == "us" ? 1 : unit == "ms" ? 1e3 : 1e6) }
        / on mesh / { total[++n] = sec($1, $2) }
        on && NF { sum += sec($1, $2) }
        /^the first/ { on = 1 }
        END {
            d = total[1] - total[2] - sum
            exit !(n == 2 && on && d < 0.5 && d > -0.5)
        }' <<<"$output"
    run -0 ap-cost --diff "$(plan)" "$(plan)"
    [[ $output == *"the two cost the same everywhere"* ]]
}

@test "cost: --diff refuses other graphs and other units" {
    refuses 1 "the graphs differ: " ap-cost --diff "$(sharded moe 2x2)" "$(plan)"
    ap-shard --mesh 2x2 --cost-model bytes -o "$BATS_TEST_TMPDIR/bytes.json" \
        "$(imported mlp)"
    refuses 1 "cost models differ: default and bytes" \
        ap-cost --diff "$BATS_TEST_TMPDIR/bytes.json" "$(plan)"
    refuses 2 "--trace: the plan's cost model bytes is not in seconds" \
        ap-cost --trace "$BATS_TEST_TMPDIR/no.json" "$BATS_TEST_TMPDIR/bytes.json"
    [ ! -e "$BATS_TEST_TMPDIR/no.json" ]
}

@test "cost: bad usage" {
    refuses 2 "--why: the graph has no node nobody" ap-cost --why nobody "$(plan)"
    refuses 2 "--why: the graph has no node 99999" ap-cost --why 99999 "$(plan)"
    refuses 2 "only one of" ap-cost --details --why 1 "$(plan)"
    refuses 1 "none.json" ap-cost --diff none.json "$(plan)"
    refuses 1 "none/trace.json" ap-cost --trace none/trace.json "$(plan)"
}

@test "cost: --trace follows the format and adds up to step time and memory" {
    local algorithm trace=$BATS_TEST_TMPDIR/trace.json doc=$BATS_TEST_TMPDIR/doc.json
    for algorithm in ilp data zero3 megatron; do
        ap-cost --trace "$trace" -o "$doc" "$(plan $algorithm)"
        python3 tests/trace.py "$trace" >"$BATS_TEST_TMPDIR/sum.json"
        jq -es '.[0] as $t | .[1].cost as $c |
            ($t.end_sec / $c.step_sec - 1 | fabs < 1e-9) and
            ($t.busy_sec / $c.step_sec - 1 | fabs < 1e-9) and
            $t.most_bytes <= $c.memory.peak_bytes and
            $t.most_bytes > $c.memory.peak_bytes * 0.7 and
            $t.least_bytes >= $c.memory.parameter_bytes and
            $t.slices > 20 and $t.flows > 0' "$BATS_TEST_TMPDIR/sum.json" "$doc" ||
            { cat "$BATS_TEST_TMPDIR/sum.json"; false; }
    done
    ap-cost --trace "$trace.2" -o "$doc" "$(plan megatron)"
    cmp "$trace" "$trace.2"
    ap-cost --trace - -o "$doc" "$(plan megatron)" 2>"$trace.2"
    cmp "$trace" "$trace.2"
}

@test "cost: --overlap: collectives run beside operators, but not beside what waits for them" {
    local algorithm n trace=$BATS_TEST_TMPDIR/trace.json doc=$BATS_TEST_TMPDIR/doc.json
    local sum=$BATS_TEST_TMPDIR/sum.json
    for algorithm in data zero3 megatron ilp; do
        ap-cost --quiet --overlap on --trace "$trace" -o "$doc" "$(plan $algorithm)"
        python3 tests/trace.py "$trace" >"$sum"
        jq -es '.[0] as $t | .[1].cost as $c | .[1].cluster.overlap and
            ($t.end_sec / $c.step_sec - 1 | fabs < 1e-9) and
            ($t.busy_sec / $c.serial_sec - 1 | fabs < 1e-9) and
            ($c.compute_sec + $c.overlap.exposed_sec - $c.step_sec | fabs < 1e-12) and
            $c.step_sec <= $c.serial_sec and $c.step_sec >= $c.comm_sec' "$sum" "$doc" ||
            { cat "$sum"; false; }
        # priced again as its cluster says, and without
        ap-cost --no-history "$doc" | cmp -s - <(ap-cost --no-history --overlap auto "$doc")
        ap-cost --quiet --overlap off "$doc" |
            jq -e '.cost | .step_sec == .serial_sec and (has("overlap") | not)'
    done
    ap-cost --quiet --overlap on --report "$(plan zero3)" | grep 'exposed communication .* hidden'
    ap-model gpt --layers 2 --hidden 32 --heads 4 --vocab 64 --seq 8 --batch 4 | ap-prune | ap-coarsen --blocks 2 |
        ap-stage --stages 2 --microbatches 2 --cluster cpu-4 >"$doc"
    refuses 2 "--overlap is for plans of one mesh" ap-cost --overlap on "$doc"
    # in microbatches, of which those in the middle are one slice
    for n in 2 8; do
        ap-model mlp --batch 64 | ap-shard --mesh 4 --algorithm zero3 --microbatches $n --cluster cpu-4 |
            ap-cost --quiet --overlap on --trace "$trace" -o "$doc"
        python3 tests/trace.py "$trace" >"$sum"
        jq -es '.[0] as $t | .[1].cost as $c | ($t.end_sec / $c.step_sec - 1 | fabs < 1e-9) and
            ($t.busy_sec / $c.serial_sec - 1 | fabs < 1e-9)' "$sum" "$doc"
    done
}

@test "cost: a plan of one device has a trace, too" {
    ap-cost --trace "$BATS_TEST_TMPDIR/one.json" -o "$BATS_TEST_TMPDIR/doc.json" \
        "$(imported mlp)"
    python3 tests/trace.py "$BATS_TEST_TMPDIR/one.json" | jq -e '.flows == 0 and .slices > 20'
}

@test "clusters: tap: ten times the parameters on 3.75 times the cards" {
    local small large
    small=$(jq '.levels[0].size * .levels[1].size' "$CLUSTERS/papers/tap-128.json")
    large=$(jq '.levels[0].size * .levels[1].size' "$CLUSTERS/papers/tap-480.json")
    [ "$small $large" = "128 480" ]
    for name in m6-moe-100b m6-moe-1t; do
        ap-model --stats -o /dev/null $name 2>&1 | jq .weight_elems
    done >"$BATS_TEST_TMPDIR/weights"
    shows "$(jq -sr '"\(.[0]) and \(.[1]) weights: \(.[1] / .[0]) times (10)"' "$BATS_TEST_TMPDIR/weights"), $small and $large cards: 3.75 times"
    jq -es --argjson cards "$((large * 100 / small))" \
        '.[1] / .[0] > 9.5 and .[1] / .[0] < 10.5 and $cards == 375' "$BATS_TEST_TMPDIR/weights"
}

@test "clusters: the presets are what scripts/clusters writes" {
    mkdir -p "$BATS_TEST_TMPDIR/scripts" "$BATS_TEST_TMPDIR/clusters"
    cp scripts/clusters "$BATS_TEST_TMPDIR/scripts/"
    cp clusters/measured.tsv clusters/published.tsv "$BATS_TEST_TMPDIR/clusters/"
    "$BATS_TEST_TMPDIR/scripts/clusters"
    diff -r -x h100-measured.json "$CLUSTERS" "$BATS_TEST_TMPDIR/clusters" # ap-cost --calibrate wrote that one
    # each says where its figures are from, and keeps saying so in the document
    jq -e '.source | length > 20' "$CLUSTERS"/*.json "$CLUSTERS"/papers/*.json
    run -0 jq -r .cluster.source <(ap-cost --cluster "$CLUSTERS/papers/p3x8.json" "$(imported mlp)")
    [[ $output == "Zheng et al., Alpa"* ]]
}

@test "clusters: a preset's name does what its file does, in every tool" {
    local dir=$BATS_TEST_TMPDIR doc
    doc=$(imported mlp)
    ap-coarsen --algorithm rannc --blocks 2 --no-history -o "$dir/blocks.json" "$doc"
    for c in p3x8 "$CLUSTERS/papers/p3x8.json"; do
        ap-coarsen --algorithm rannc --blocks 2 --no-history --cluster "$c" "$doc"
        ap-cost --no-history --cluster "$c" "$doc"
        ap-shard --no-history --mesh 2x4 --cluster "$c" "$doc"
        ap-stage --no-history --algorithm none --microbatches 1 --cluster "$c" "$dir/blocks.json"
        echo '{"id":0,"lo":0,"hi":1,"hosts":1,"devices":2,"microbatches":1}' |
            ap-shard --serve --cluster "$c" "$dir/blocks.json"
    done >"$dir/both"
    [ "$(wc -l <"$dir/both")" -ge 10 ]
    cmp <(head -n "$(($(wc -l <"$dir/both") / 2))" "$dir/both") \
        <(tail -n "$(($(wc -l <"$dir/both") / 2))" "$dir/both")
}

@test "clusters: help lists the presets, an unknown name says so, a file wins" {
    for t in ap-coarsen ap-cost ap-shard ap-stage; do
        "$t" --cluster help >"$BATS_TEST_TMPDIR/$t"
        cmp "$BATS_TEST_TMPDIR/$t" <(ap-cost --cluster=help)
    done
    [ "$(grep -v ^KIND "$BATS_TEST_TMPDIR/ap-cost" | awk '{ print $1 }' | sort)" = \
        "$(basename -s .json "$CLUSTERS"/*.json "$CLUSTERS"/papers/*.json | sort)" ]
    grep -qE '^p3x8 +8x8 V100-16GB +Zheng et al., Alpa' "$BATS_TEST_TMPDIR/ap-cost"
    local doc
    doc=$(imported mlp)
    refuses 1 "p4x8: no such file, and no preset has this name; '--cluster help' lists" \
        ap-cost --cluster p4x8 "$doc"
    refuses 1 "./p3x8: No such file" ap-cost --cluster ./p3x8 "$doc"
    cd "$BATS_TEST_TMPDIR"
    jq '.name = "mine"' "$CLUSTERS/papers/p3x8.json" >p3x8
    [ "$(ap-cost --cluster p3x8 "$doc" | jq -r .cluster.name)" = mine ]
}

@test "clusters: KINDxHOSTS is any number of hosts of a preset's kind" {
    local doc
    doc=$(imported mlp)
    is() { [ "$(ap-cost --cluster "$1" "$doc" | jq -c '.cluster | [.device, .levels[].size]')" = "$2" ]; }
    is h100x64 '["H100-80GB",8,64]'
    is a100-8x16 '["A100-80GB",8,16]'
    is a100x1 '["A100-80GB",8,1]'
    is h100 '["H100-80GB",8]'
    is dgx-h100 '["H100-80GB",8,1]'
    is dgx-h100x4 '["H100-80GB",8,4]'
    is gb200x2 '["GB200-186GB",64,2]'
    is p3x3 '["V100-16GB",8,3]'
    is tap-480x7 '["V100-32GB",8,7]'
    is tapx7 '["V100-32GB",8,7]'
    cmp <(ap-cost --no-history --cluster mi300x "$doc") <(ap-cost --no-history --cluster mi300x-8 "$doc")
    refuses 1 "cpu: no such file" ap-cost --cluster cpu "$doc" # cpu-4 or cpu-8
    refuses 1 "rannc2: no such file" ap-cost --cluster rannc2 "$doc"
    is rhino-s1x3 '["V100S-PCIe-32GB",3]'
    # the name is the document's, all else that of the preset
    diff <(ap-cost --no-history --cluster h100x4 "$doc") \
        <(ap-cost --no-history --cluster h100-8x4 "$doc" | sed 's/"h100-8x4"/"h100x4"/')
    refuses 1 "cpu-4x2: no preset says how hosts like cpu-4 are connected" ap-cost --cluster cpu-4x2 "$doc"
    refuses 1 "h100x0: no such file" ap-cost --cluster h100x0 "$doc"
    refuses 1 "h100x04: no such file" ap-cost --cluster h100x04 "$doc"
    refuses 1 "h100x999999: more than 1048576 devices" ap-cost --cluster h100x999999 "$doc"
}

@test "clusters: rails and oversubscription change what crosses hosts" {
    local doc level
    doc=$(ap-model mlp --batch 64 | ap-shard --mesh 16 --algorithm data --cluster p3x2)
    # step FILTER: communication of data parallelism over two hosts, the outer level changed
    step() {
        jq ".levels[1] |= ($1) | .levels[1].size = 2" "$CLUSTERS/papers/p3x8.json" >"$BATS_TEST_TMPDIR/c.json"
        ap-cost --cluster "$BATS_TEST_TMPDIR/c.json" <<<"$doc" | jq '[.cost.collectives[].sec] | add'
    }
    # one ring has one card, however many there are; a spine of half the width takes longer
    [ "$(step .)" = "$(step '.rails = 2 | del(.uplink)')" ]
    jq -en --argjson a "$(step .)" --argjson b "$(step '.oversubscription = 2')" '$b > $a'
    level=$(ap-cost --cluster "$BATS_TEST_TMPDIR/c.json" <<<"$doc" | jq -c '.cluster.levels[1] | [.uplink, .oversubscription]')
    [ "$level" = '[true,2]' ]
    wrong() {
        jq ".levels[1] |= ($1)" "$CLUSTERS/papers/p3x8.json" >"$BATS_TEST_TMPDIR/w.json"
        refuses 1 "$2" ap-cost --cluster "$BATS_TEST_TMPDIR/w.json" "$(imported mlp)"
    }
    wrong 'del(.uplink) | .shared = true | .rails = 2' '/levels/1: a shared level has no rails'
    wrong '.rails = 0' '/levels/1/rails'
    wrong '.oversubscription = 0.5' '/levels/1/oversubscription'
}

# mixed NAME [COUNT PRESET]...: a cluster of four hosts of eight devices with several kinds
mixed() {
    local name=$1 kinds='[]'
    shift
    while [ $# -gt 0 ]; do
        kinds=$(jq --argjson n "$1" --slurpfile of "$CLUSTERS/$2.json" '. + [$of[0] | {count: $n, device,
            memory_bytes, flops_per_sec, memory_bandwidth_bytes_per_sec, launch_sec, efficiency, collective_share,
            links: .levels[0] | {bandwidth_bytes_per_sec, latency_sec}}
            + (if .tf32_flops_per_sec then {tf32_flops_per_sec} else {} end)]' <<<"$kinds")
        shift 2
    done
    jq --argjson hosts "$kinds" --arg name "$name" '{$name, $hosts, levels, attention, overlap}' "$CLUSTERS/a100x4.json" \
        >"$BATS_TEST_TMPDIR/$name.json"
    echo "$BATS_TEST_TMPDIR/$name.json"
}

@test "clusters: stages are priced on hosts of different kinds" {
    local plan=$BATS_TEST_TMPDIR/plan.json
    ap-model gpt --layers 4 --hidden 256 --heads 4 --vocab 512 --batch 16 --seq 64 | ap-prune |
        ap-coarsen --blocks 4 | ap-stage --cluster a100x4 --stages 4 --submeshes 1x8 --microbatches 4 \
        --schedule 1f1b >"$plan"
    priced() { ap-cost --quiet --no-history --cluster "$1" "$plan"; }
    # one kind by any name is the same cluster
    diff <(priced a100x4 | jq "del(.cluster.source, .cluster.published, .cost.plan.published)") <(priced "$(mixed a100x4 4 a100x4)" |
        jq "del(.cost.plan.published)")
    figures() { jq '.cost | del(.plan.words, .plan.largest_micro_batch, .stages[].device)'; }
    diff <(priced a100x4 | figures) <(priced "$(mixed twice 1 a100x4 3 a100x4)" | figures)
    priced "$(mixed both 2 a100x4 2 h100x4)" >"$BATS_TEST_TMPDIR/priced.json"
    # the first two stages are A100's, the others H100's, as in clusters of one kind
    diff <(jq -c '.cost.stages[0, 1] | [.forward_sec, .backward_sec]' "$BATS_TEST_TMPDIR/priced.json") \
        <(priced a100x4 | jq -c '.cost.stages[0, 1] | [.forward_sec, .backward_sec]')
    diff <(jq -c '.cost.stages[2, 3] | [.forward_sec, .backward_sec]' "$BATS_TEST_TMPDIR/priced.json") \
        <(priced h100x4 | jq -c '.cost.stages[2, 3] | [.forward_sec, .backward_sec]')
    jq -e '.cluster | (.hosts | map(.device) == ["A100-80GB", "H100-80GB"]) and (has("device") | not)' \
        "$BATS_TEST_TMPDIR/priced.json"
    # read back from the section
    [ "$(ap-cost --no-history "$BATS_TEST_TMPDIR/priced.json" | jq .cost.step_sec)" = \
        "$(jq .cost.step_sec "$BATS_TEST_TMPDIR/priced.json")" ]
    ap-cost --details "$BATS_TEST_TMPDIR/priced.json" | grep -q 'of both (A100-80GB, H100-80GB)'
    ap-rewrite "$BATS_TEST_TMPDIR/priced.json" | jq -e '.pipeline.transfers | length > 0'
    /usr/bin/python3 -c 'import jsonschema' 2>/dev/null || return 0
    /usr/bin/python3 tests/validate.py "$BATS_TEST_TMPDIR/priced.json"
}

@test "clusters: several kinds are refused where one is planned for, and where they are wrong" {
    local both doc
    both=$(mixed both 2 a100x4 2 h100x4)
    doc=$(imported mlp)
    refuses 2 'cluster both has several kinds of devices (A100-80GB, H100-80GB)' \
        ap-shard --mesh 8 --cluster "$both" "$doc"
    refuses 2 'has several kinds' ap-shard --mesh auto --cluster "$both" "$doc"
    refuses 2 'has several kinds' ap-cost --cluster "$both" "$doc"
    ap-coarsen --blocks 2 -o "$BATS_TEST_TMPDIR/blocks.json" "$doc"
    refuses 2 'has several kinds' ap-shard --serve --cluster "$both" "$BATS_TEST_TMPDIR/blocks.json"
    refuses 2 'has several kinds' ap-coarsen --algorithm rannc --blocks 2 --cluster "$both" "$doc"
    refuses 1 '/hosts: 5 hosts, the levels have 4' ap-cost --cluster "$(mixed five 2 a100x4 3 h100x4)" "$doc"
    wrong() {
        jq "$1" "$both" >"$BATS_TEST_TMPDIR/wrong.json"
        refuses 1 "$2" ap-cost --cluster "$BATS_TEST_TMPDIR/wrong.json" "$doc"
    }
    wrong 'del(.hosts[1].memory_bytes)' '/hosts/1'
    wrong '.hosts[0].count = 0' '/hosts/0/count'
    wrong '.hosts[1].links = {}' '/hosts/1/links'
    wrong '.hosts = []' '/hosts: expected 1 to 8 kinds, got 0'
    wrong '.device = "A100"' '/hosts: there is a /device, too'
    # a stage over two kinds
    ap-model gpt --layers 2 --hidden 64 --heads 2 --vocab 64 --batch 32 --seq 16 | ap-prune | ap-coarsen --blocks 2 |
        ap-stage --cluster a100x4 --stages 1 --microbatches 1 -o "$BATS_TEST_TMPDIR/one.json"
    refuses 1 'devices are of several kinds, A100-80GB and H100-80GB: a stage has one' \
        ap-cost --cluster "$both" "$BATS_TEST_TMPDIR/one.json"
}

@test "README of cmd/ap-cost: its examples print what it says" {
    local readme=cmd/ap-cost/README.md n
    for n in 1 2; do
        awk -v n=$n '/^```sh/ { k++; on = k == n; next } /^```/ { on = 0 } on' "$readme" \
            >"$BATS_TEST_TMPDIR/run"
        awk -v n=$n '/^```text/ { k++; on = k == n; next } /^```/ { on = 0 } on' "$readme" \
            >"$BATS_TEST_TMPDIR/want"
        [ -s "$BATS_TEST_TMPDIR/want" ]
        bash "$BATS_TEST_TMPDIR/run" | diff - "$BATS_TEST_TMPDIR/want"
    done
}

@test "clusters: hosts of two kinds have the links that each kind's host has, by its level" {
    ap-coarsen --blocks 2 "$(imported mlp)" | ap-stage --quiet --cluster dgx-h100x1+dgx-a100x1 >"$BATS_TEST_TMPDIR/kinds.json"
    jq -e '.cluster | (has("collectives") | not) and (.hosts | length == 2) and .hosts[0].rates[0].kernel == "dot"' \
        "$BATS_TEST_TMPDIR/kinds.json"
    ap-coarsen --blocks 2 "$(imported mlp)" | ap-stage --quiet --cluster dgx-h100x1 | jq -e '.cluster.collectives | length == 12'
}

@test "cost: experts' products take what their tokens per expert say, and no others do" {
    local dir=$BATS_TEST_TMPDIR rates whole
    # experts [of a row] 4, capacity 16, 4 rows, 64 x 96: nine products in a layer, of 64 tokens per expert
    ap-model mixtral --layers 1 --hidden 64 --heads 4 --kv-heads 4 --ffn 96 --vocab 128 --seq 32 --batch 4 --experts 4 --top 2 \
        --dtype bf16 >"$dir/m.json"
    # RATES : seconds of a step at 1e12 FLOP/s
    sec() {
        jq -n --argjson rates "$1" '{name: "r", device: "r", memory_bytes: 1e12, flops_per_sec: {f32: 1e12},
            memory_bandwidth_bytes_per_sec: 1e30, launch_sec: 0, efficiency: 1, rates: $rates,
            levels: [{name: "l", size: 1, bandwidth_bytes_per_sec: 1e9, latency_sec: 0}]}' >"$dir/c.json"
        ap-shard --quiet --mesh 1 --cluster "$dir/c.json" --algorithm data "$dir/m.json" | ap-cost --quiet | jq .cost.step_sec
    }
    rates='[{"kernel": "grouped", "dtypes": ["bf16"], "of_peak": [{"size": 16, "of_peak": 0.008}, {"size": 64, "of_peak": 0.01}]}]'
    whole=$(sec '[]')
    jq -n --argjson a "$whole" --argjson b "$(sec "$rates")" -e \
        '(9 * 2 * 4 * 4 * 16 * 64 * 96 / 1e12 * 99) as $more | ($b - $a) / $more | . > 0.999 and . < 1.001'
    [ "$(sec "${rates//bf16/f16}")" = "$whole" ]
    # a table that says less of a larger part
    sec "${rates/0.008/0.02}" >"$dir/out" 2>&1 || true
    grep '/rates/0/of_peak/1: a larger size reaches less of the peak' "$dir/out"
}
