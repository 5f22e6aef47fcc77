#!/usr/bin/env bats
# Pipelines on clusters of several kinds of devices: names of such clusters, stages on kinds,
# what reports say of them, that they run, and what is refused.

load helpers

# kinds FILTER: hosts of two cores each of two kinds, one a third as fast, changed by the filter
kinds() {
    jq "{name: \"two\", levels: [.levels[0] + {size: 2}, {name: \"net\", size: 2, bandwidth_bytes_per_sec: 4e9,
            latency_sec: 1e-5}],
        hosts: [{count: 1, device: \"fast\"}, {count: 1, device: \"slow\"}] | map(. + {memory_bytes: 4000000000,
            flops_per_sec: {f32: (if .device == \"fast\" then 60e9 else 20e9 end), f64: 10e9},
            memory_bandwidth_bytes_per_sec: 8e9, launch_sec: 2e-6, efficiency: 0.7})} | ${1:-.}" \
        "$CLUSTERS/cpu-8.json" >"$BATS_TEST_TMPDIR/two.json"
    echo "$BATS_TEST_TMPDIR/two.json"
}

# blocks LAYERS ARGS...: a GPT in a block for each layer
blocks() {
    ap-model gpt --layers "$1" --hidden 64 --heads 2 --vocab 128 --batch 16 --seq 32 | ap-prune |
        ap-coarsen --blocks "$1"
}

@test "kinds: KINDxHOSTS+KINDxHOSTS, with the slowest links between hosts" {
    local doc
    doc=$BATS_TEST_TMPDIR/plan.json
    blocks 4 | ap-stage --cluster h100x2+a100x3 --jobs 1 >"$doc"
    [ "$(jq -c '.cluster | [.name, (.hosts[] | .device, .count), (.levels[] | .name, .size)]' "$doc")" = \
        '["h100x2+a100x3","H100-80GB",2,"A100-80GB",3,"nvlink",8,"infiniband",5]' ]
    jq -e '.cluster.levels[1].bandwidth_bytes_per_sec == ([inputs.levels[1].bandwidth_bytes_per_sec] | min)' \
        "$doc" "$CLUSTERS/h100x4.json" "$CLUSTERS/a100x4.json"
    # inside a host the links are the kind's
    jq -e '.cluster.hosts | .[0].links.bandwidth_bytes_per_sec > .[1].links.bandwidth_bytes_per_sec' "$doc"
    # the same cluster from its own description
    jq .cluster "$doc" >"$BATS_TEST_TMPDIR/c.json"
    diff <(jq .stages "$doc") <(blocks 4 | ap-stage --cluster "$BATS_TEST_TMPDIR/c.json" --jobs 1 | jq .stages)
    local bad
    for bad in "h100x2+a10x1:a10x1: no such file, and no preset has this name" "h100x1+:expected hosts such as h100x2 on both sides of each '+'" \
        "h100x1+cpu-4:cpu-4 is not KINDxHOSTS" \
        "h100x1+p3x1:links between hosts of different forms, infiniband and ethernet" \
        "h100x70000+a100x70000:more than 1048576 devices"; do
        refuses 1 "${bad#*:}" ap-stage --cluster "${bad%%:*}" "$doc"
    done
}

@test "kinds: the faster kind gets more layers, a stage lies on one, reports say on which" {
    local plan=$BATS_TEST_TMPDIR/plan.json
    ap-model gpt --layers 12 --hidden 1024 --heads 16 --vocab 8000 --batch 128 --seq 512 --dtype bf16 |
        ap-prune | ap-coarsen --blocks 12 | ap-stage --cluster h100x1+a100x1 | ap-cost >"$plan"
    # devices 0 to 7 are H100s
    jq -e '[.stages.stages[] | {kind: (.devices | map(. < 8) | unique), n: (.blocks | length)}] |
        all(.[]; .kind | length == 1) and
        (map(select(.kind[0]) | .n) | add) > (map(select(.kind[0] | not) | .n) | add) and
        (map(.n) | add) == 12 and any(.[]; .kind[0] | not)' "$plan"
    jq -e '.stages | .lower_bound_sec > 0 and .lower_bound_sec <= .objective_sec' "$plan"
    # quicker than either kind alone
    local c
    for c in h100x1 a100x1; do
        jq -e --argjson both "$(jq .stages.objective_sec "$plan")" '.stages.objective_sec > $both' \
            <(ap-stage --cluster $c "$plan")
    done
    jq -e '[.cost.stages[].device] | unique == ["A100-80GB", "H100-80GB"]' "$plan"
    jq -r .cost.plan.words "$plan" | grep -qE '; stage.* on (A100|H100)-80GB, stage.* on (A100|H100)-80GB'
    ap-cost --report "$plan" >"$BATS_TEST_TMPDIR/report"
    grep -qE '^0 .* (A100|H100)-80GB ' "$BATS_TEST_TMPDIR/report"
    ap-cost --html "$BATS_TEST_TMPDIR/page.html" -o /dev/null "$plan"
    grep -qE 'stage 0 on (A100|H100)-80GB' "$BATS_TEST_TMPDIR/page.html"
    # MFU is of the devices that are used, each with its own peak
    jq -e '.cost | .plan.mfu > 0 and .plan.mfu < 1 and
        (.plan.model_flops / .step_sec / (8 * 989e12 + 8 * 312e12) / .plan.mfu - 1 | fabs < 1e-9)' "$plan"
    /usr/bin/python3 -c 'import jsonschema' 2>/dev/null || return 0
    /usr/bin/python3 tests/validate.py "$plan"
}

@test "kinds: the search equals the enumeration of all plans" {
    local plan=$BATS_TEST_TMPDIR/blocks.json a
    blocks 4 >"$plan"
    for a in auto exhaustive; do
        ap-stage --algorithm $a --cluster "$(kinds)" "$plan" >"$BATS_TEST_TMPDIR/$a.json"
        jq -e '[.stages.stages[] | .devices | map(. < 2) | unique | length] | all(. == 1)' "$BATS_TEST_TMPDIR/$a.json"
    done
    # one price with layouts; each is the best by its fronts
    jq -en --slurpfile a "$BATS_TEST_TMPDIR/auto.json" --slurpfile b "$BATS_TEST_TMPDIR/exhaustive.json" \
        '$a[0].stages.objective_sec <= $b[0].stages.objective_sec * (1 + 1e-9)'
    jq -e '.stages | .lower_bound_sec <= .objective_sec and .gap < 0.2' "$BATS_TEST_TMPDIR/auto.json"
    # twice the same bytes, whatever the number of processes
    cmp <(ap-stage --no-history --jobs 1 --cluster "$(kinds)" "$plan") \
        <(ap-stage --no-history --jobs 3 --cluster "$(kinds)" "$plan")
    # a shard command of its own is started for each kind, with that kind's cluster
    diff <(jq .stages.objective_sec "$BATS_TEST_TMPDIR/auto.json") \
        <(ap-stage --shard-command 'env ap-shard --serve --quiet' --cluster "$(kinds)" "$plan" |
            jq .stages.objective_sec)
}

@test "kinds: each kind has its own limit of memory" {
    local plan=$BATS_TEST_TMPDIR/plan.json free
    blocks 4 >"$BATS_TEST_TMPDIR/blocks.json"
    staged() { ap-stage --recompute none --cluster "$(kinds "$1")" "$BATS_TEST_TMPDIR/blocks.json" | ap-cost; }
    staged . >"$plan"
    free=$(jq '[.cost.devices[] | select(.n_devices > 0) | .memory.peak_bytes] | max' "$plan")
    # the fast kind has less than the plan takes: another plan, within both
    staged ".hosts[0].memory_bytes = $((free * 2 / 3))" >"$BATS_TEST_TMPDIR/lean.json"
    jq -e '.cost.devices | all(.memory.peak_bytes <= .memory.limit_bytes) and
        (map(.memory.limit_bytes) | unique | length) >= 1' "$BATS_TEST_TMPDIR/lean.json"
    jq -e '.cost.plan.spare_bytes >= 0' "$BATS_TEST_TMPDIR/lean.json"
    # nothing fits on either: what would do, of the kind with most memory
    refuses 3 'nothing fits in 40000 bytes of memory: the leanest plan found' \
        ap-stage --cluster "$(kinds '.hosts[].memory_bytes = 20000 | .hosts[0].memory_bytes = 40000')" \
        "$BATS_TEST_TMPDIR/blocks.json"
}

@test "kinds: the plan runs, and has the losses of one device" {
    needs_exec
    export OMPI_MCA_rmaps_base_oversubscribe=1
    blocks 4 | ap-stage --cluster "$(kinds)" --stages 2 --microbatches 4 | ap-cost | ap-rewrite >"$BATS_TEST_TMPDIR/run.json"
    timeout 300 ap-exec -n "$(jq .pipeline.n_ranks "$BATS_TEST_TMPDIR/run.json")" --seed 1 --steps 2 \
        --verify --json "$BATS_TEST_TMPDIR/run.json" | jq -e '.verify.loss_error < 1e-5'
}

@test "kinds: what is refused" {
    local doc=$BATS_TEST_TMPDIR/blocks.json a
    blocks 4 >"$doc"
    for a in rhino rannc intra-only inter-only pp-dp megatron-grid deepspeed-moe-grid none; do
        refuses 2 "--algorithm $a plans for one kind of device, and cluster two has several (fast, slow); auto, alpa" \
            ap-stage --algorithm $a --cluster "$(kinds)" "$doc"
    done
    refuses 2 'cluster two has several kinds of devices (fast, slow), and a mesh is laid over one; ap-stage places' \
        ap-shard --mesh 4 --cluster "$(kinds)" "$doc"
    # three hosts that are two racks' in part
    refuses 1 'cluster two: /hosts/1: its 3 hosts: devices are not spread evenly over level net' \
        ap-stage --cluster "$(kinds '.hosts[1].count = 3 | .levels += [.levels[1] | .name = "rack"] |
            .levels[1].size = 2 | .levels[2].size = 2')" "$doc"
    refuses 3 '--submeshes: 1x4 is not a part of 1x2' ap-stage --submeshes 1x4 --cluster "$(kinds)" "$doc"
}
