#!/usr/bin/env bats
# The default of ap-stage against its other rows and against plans written by hand: none of what
# its bound speaks of is below that, and it is no slower than what it says it looks at.

load helpers

# device LEVELS: a cluster of slow devices, so that small graphs are worth cutting
device() {
    local f=$BATS_TEST_TMPDIR/cluster.json
    jq -n --argjson levels "$1" '{name: "z", device: "d", memory_bytes: 1e11, launch_sec: 1e-7,
        flops_per_sec: {f32: 1e12}, memory_bandwidth_bytes_per_sec: 1e11, efficiency: 0.8,
        levels: $levels}' >"$f"
    echo "$f"
}

@test "stages that are no runs of blocks: looked at with all tolerances, and not below the bound" {
    local dir=$BATS_TEST_TMPDIR cluster x
    cluster=$(device '[{"name": "in", "size": 2, "bandwidth_bytes_per_sec": 1e11, "latency_sec": 1e-7}]')
    two_towers 12 64 16 | ap-import --no-history | ap-grad --no-history --optimizer adam |
        ap-prune --no-history | ap-coarsen --no-history --algorithm rannc --blocks 8 -o "$dir/in.json"
    ask() { ap-stage --no-history --cluster "$cluster" --stages 2 --microbatches 4 "$@" "$dir/in.json"; }
    ask -o "$dir/auto.json"
    for x in 0.2 0.5 1 9; do
        ask --algorithm rhino --imbalance $x -o "$dir/rhino.json"
        jq -es 'map(.stages) | .[0].objective_sec <= .[1].objective_sec and
            .[0].lower_bound_sec <= .[1].objective_sec' "$dir/auto.json" "$dir/rhino.json"
    done
    jq -e '.stages | .lower_bound_sec > 0 and .stopped == "all runs of blocks" and
        any(.stages[].blocks; .[-1] - .[0] + 1 > length)' "$dir/auto.json"
}

@test "interleaved on a part of the devices: looked at, and not below the bound" {
    local dir=$BATS_TEST_TMPDIR cluster all
    ap-model mlp --layers 8 --hidden 1024 --features 1024 --classes 1024 --batch 8 --no-history |
        ap-prune --no-history | ap-coarsen --no-history --blocks 4 --eps 3 -o "$dir/in.json"
    ask() { ap-stage --no-history --cluster "$cluster" --schedule interleaved-1f1b --microbatches 2 \
        --shard-command 'ap-shard --serve --algorithm data' "$dir/in.json"; }
    all='[{"name": "in", "size": 2, "bandwidth_bytes_per_sec": 1e8, "latency_sec": 1e-6},
        {"name": "out", "size": 2, "bandwidth_bytes_per_sec": 1e8, "latency_sec": 1e-6}]'
    cluster=$(device "$all")
    ask >"$dir/four.json"
    cluster=$(device "$(jq '.[:1]' <<<"$all")")
    ask >"$dir/two.json"
    jq -es 'map(.stages) | .[0].lower_bound_sec <= .[1].objective_sec and
        .[0].objective_sec <= .[1].objective_sec * (1 + 1e-9) and
        ([.[0].stages[].devices[]] | unique | length) == 2' "$dir/four.json" "$dir/two.json"
}

@test "recompute selected: no slower than a row that recomputes as it says" {
    local dir=$BATS_TEST_TMPDIR a
    jq -n '{name: "z", device: "d", memory_bytes: 1e12, launch_sec: 5e-6, efficiency: 0.8,
        flops_per_sec: {f32: 1966288822151}, memory_bandwidth_bytes_per_sec: 23441357988,
        levels: [{name: "in", size: 8, bandwidth_bytes_per_sec: 112093707, latency_sec: 8.65e-5}]}' \
        >"$dir/cluster.json"
    ap-model vit --batch 12 --layers 3 --hidden 64 --heads 4 --image 32 --patch 16 --classes 10 \
        --no-history | ap-prune --no-history | ap-coarsen --no-history --blocks 4 --eps 4 -o "$dir/in.json"
    for a in auto none rhino pp-dp intra-only; do
        ap-stage --no-history --quiet --algorithm $a --cluster "$dir/cluster.json" --recompute selected \
            --memory 4061322 -o "$dir/$a.json" "$dir/in.json"
        jq -es 'map(.stages) | .[0].objective_sec <= .[1].objective_sec * (1 + 1e-9) and
            .[0].lower_bound_sec <= .[1].objective_sec' "$dir/auto.json" "$dir/$a.json"
    done
    jq -e 'any(.stages.stages[]; .recompute == "selected")' "$dir/auto.json"
}

@test "inference: objective, bound, advice and the rows are in one measure" {
    local dir=$BATS_TEST_TMPDIR a
    ap-model gpt --layers 4 --hidden 256 --heads 4 --vocab 1000 --seq 128 --batch 32 --forward \
        --no-history | ap-prune --no-history | ap-coarsen --no-history --blocks 4 -o "$dir/in.json"
    ask() { ap-stage --no-history --quiet --cluster "$CLUSTERS/papers/p3x1.json" "$@" "$dir/in.json"; }
    for a in auto alpa none inter-only; do
        ask --algorithm $a -o "$dir/$a.json"
        jq -es 'map(.stages) | .[1].measure == "throughput" and
            .[0].objective_sec <= .[1].objective_sec * (1 + 1e-9) and
            .[0].lower_bound_sec <= .[1].objective_sec' "$dir/auto.json" "$dir/$a.json"
    done
    jq -e '.stages | .stopped == "all plans" and .gap < 1e-6 and .lower_bound_sec > 0' "$dir/auto.json"
    ap-cost --no-history "$dir/auto.json" >"$dir/cost.json"
    jq -e '.stages.objective_sec == .cost.batch_sec and .cost.batch_sec < .cost.step_sec and
        .cost.batch_sec == .stages.microbatches * ([.cost.stages[].forward_sec] | max)' "$dir/cost.json"
    /usr/bin/python3 tests/validate.py "$dir/cost.json"
    # cutting the batch would help the step only
    ap-cost --details "$dir/auto.json" >"$dir/report"
    grep -q 'time between batches in a stream' "$dir/report"
    run ! grep -E '^  [0-9]+ microbatch(es)? .* %' "$dir/report"
    ask --latency -o "$dir/latency.json"
    ap-cost --no-history "$dir/latency.json" >"$dir/cost.json"
    jq -e '.stages.measure == null and .stages.objective_sec == .cost.step_sec and
        .stages.lower_bound_sec <= .stages.objective_sec' "$dir/cost.json"
    jq '.stages.schedule = "1f1b"' "$dir/auto.json" >"$dir/bad.json"
    refuses 1 "/stages/measure: throughput is of schedule inference" ap-cost "$dir/bad.json"
}

@test "--simple: the simplest plan that is little slower, of the lines or of the search; the best is said" {
    local dir=$BATS_TEST_TMPDIR p
    ap-model gpt --layers 8 --hidden 1024 --heads 16 --vocab 8000 --batch 128 --seq 512 --recipe mixed |
        ap-fuse --quiet --cluster h100-8 --kernels | ap-prune | ap-coarsen --blocks 8 -o "$dir/in.json"
    ask() { ap-stage --quiet --no-history --cluster h100-8 "$@" "$dir/in.json"; }
    ask >"$dir/best.json"
    ask --simple 0 | cmp "$dir/best.json"
    for p in 1 50; do
        ask --simple $p | ap-cost --no-history -o "$dir/$p.json"
        jq -es --argjson p $p 'map(.stages) | .[1].best.step_sec == .[0].objective_sec and .[0].best == null and
            .[1].objective_sec > .[0].objective_sec and .[1].lower_bound_sec == .[0].lower_bound_sec and
            .[1].objective_sec <= (1 + $p / 100) * .[0].objective_sec' "$dir/best.json" "$dir/$p.json"
    done
    # a plan of the search in one stage; further off one of data alone, no slower than its line
    jq -e '.stages.stages | length == 1' "$dir/1.json"
    jq -es 'map(.cost.plan.words) | all(startswith("DP 8 "))' "$dir/1.json" "$dir/50.json"
    jq -e '.stages | .objective_sec as $sec | all(.grids[] | select(.name == "data"); .step_sec >= $sec)' "$dir/50.json"
    run -0 ap-cost --report "$dir/1.json"
    [[ ${lines[1]} == 'best: '*' ms, 0.'*' % less: PP 2 '* ]]
    # a line takes the place where the search has no such plan
    ask --simple 50 --stages 4 --microbatches 8 | jq -e '.stages.line == "pp=4,dp=2,zero=1,mbs=8" and .stages.chunks == 1 and
        (.stages.best.words | startswith("PP 4 (zb-h2) "))'
    refuses 2 '--simple: alpa has no such option' ask --algorithm alpa --simple 1
    refuses 2 '--simple: --grid says the whole plan' ask --grid dp=8 --simple 1
    refuses 2 '--imbalance, --epsilon and --simple: expected a number >= 0' ask --simple -1
}
