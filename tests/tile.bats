#!/usr/bin/env bats
# ap-rewrite --devices-per-rank: one rank plays several devices of the plan.
# shellcheck disable=SC2154 # status, output and stderr are bats'

load helpers

setup_file() {
    needs_exec
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 \
        OMPI_MCA_btl_vader_single_copy_mechanism=none OPENBLAS_NUM_THREADS=1
    cd "$BATS_FILE_TMPDIR" || return
    ap-import --quiet "$(hlo mlp)" -o mlp.json
    for a in zero3 data megatron tofu; do
        ap-shard --quiet --mesh 2x2 --algorithm $a -o $a.json mlp.json
    done
}

setup() { cd "$BATS_FILE_TMPDIR" || return; }

# same_bits RANKS DEVICES CASES: random programs, of which each rank plays so many devices
same_bits() {
    local log=$BATS_TEST_TMPDIR/log
    [ -x "$AP_BUILD/equiv/test_equiv" ] || skip "test_equiv is not built"
    timeout 300 mpirun --stdin none -n "$1" "$AP_BUILD/equiv/test_equiv" \
        $((${AP_SEED:-0} * 10000 + 50000 + $1 * 1000)) "$3" "$2" >"$log" 2>&1 ||
        { grep -v '^ok\|^# covered' "$log" | head -n 20; return 1; }
    [ "$(grep -c '^ok' "$log")" -eq "$3" ]
    # what it is about did occur
    for kind in all-reduce all-gather reduce-scatter all-to-all padded 'groups behind microbatches'; do
        grep -qx "# covered $kind" "$log" || { echo "did not occur: $kind"; return 1; }
    done
}

@test "tile: 1 rank of 4 devices, random programs: the bits of one device" { same_bits 1 4 60; }
@test "tile: 2 ranks of 2 devices" { same_bits 2 2 60; }
@test "tile: 2 ranks of 4 devices" { same_bits 2 4 60; }
@test "tile: 1 rank of 8 devices" { same_bits 1 8 60; }

@test "tile: golden models under the plans of 4 devices, on 2 ranks and on one" {
    local model a n
    for model in mlp gpt2l moe; do
        for a in zero3 tofu; do
            ap-import --quiet "$(hlo $model)" | ap-shard --quiet --mesh 2x2 --algorithm $a -o plan.json
            for n in 2 4; do
                ap-rewrite --quiet --devices-per-rank $n plan.json |
                    ap-exec -n $((4 / n)) --quiet --data "$MODELS/$model/in" --steps 5 \
                        --compare "$MODELS/$model" --tolerance 1e-5 ||
                    { echo "$model, $a, $n devices per rank"; return 1; }
            done
        done
    done
}

@test "tile: buckets, collectives in flight and microbatches" {
    ap-shard --quiet --mesh 2x2 --algorithm zero2 --microbatches 2 -o each.json mlp.json
    for o in "--pack-bytes 8000 zero3.json" "--overlap data.json" each.json; do
        # shellcheck disable=SC2086 # options and a file
        ap-rewrite --quiet --devices-per-rank 2 $o -o run.json
        ap-exec --check run.json
        ap-exec -n 2 --quiet --data "$MODELS/mlp/in" --steps 5 --compare "$MODELS/mlp" --tolerance 1e-5 run.json
    done
}

# ran PLAN OP: bytes of a step's collectives, with 2 devices per rank
ran() {
    ap-rewrite --quiet --devices-per-rank 2 "$1" | ap-exec -n 2 --json --data "$MODELS/mlp/in" |
        jq "[.collectives[] | select(.op | test(\"$2\")) | .bytes] | add // 0"
}

# priced PLAN OP: what the plan moves between two ranks that are its second axis: along the first axis once
# for each of their devices, over both axes once
priced() {
    ap-cost --no-history "$1" | jq "[.cost.collectives[] | select(.op | test(\"$2\")) |
        select(.axes | index(\"x\")) | .bytes * (if .axes == [\"x\"] then 2 else 1 end)] | add // 0"
}

@test "tile: between ranks runs what the plan is priced for; values that both devices have, once" {
    local plan
    [ "$(ran data.json .)" -eq "$(priced data.json .)" ]
    [ "$(ran zero3.json reduce)" -eq "$(priced zero3.json reduce)" ]
    [ "$(ran tofu.json reduce-scatter)" -eq "$(priced tofu.json reduce-scatter)" ]
    for plan in megatron zero3 tofu; do
        [ "$(ran $plan.json 'reduce|gather')" -le "$(priced $plan.json 'reduce|gather')" ] || { echo "$plan"; return 1; }
    done
}

@test "tile: ap-cost says that it prices the plan, not the program of several devices per rank" {
    ap-rewrite --quiet --devices-per-rank 2 data.json -o run.json
    run --separate-stderr ap-cost --no-history run.json
    [ "$status" -eq 0 ]
    [[ $stderr == *"/program: its ranks run 2 devices each; the price is the plan's"* ]]
    [ "$(jq -c .cost <<<"$output")" = "$(ap-cost --no-history data.json | jq -c .cost)" ]
    ap-rewrite --quiet data.json | ap-cost --no-history >plain.json 2>err
    [ ! -s err ]
}

@test "tile: what devices of a rank hold alike, a rank has once" {
    # states and weights whole, activations of one device after the other
    ap-model gpt --layers 2 --hidden 64 --heads 4 --seq 64 --vocab 128 --batch 16 |
        ap-shard --quiet --mesh 8 --algorithm data -o gpt.json
    one=$(jq 'del(.sharding)' gpt.json | ap-rewrite | jq .program.peak_bytes)
    tiled=$(ap-rewrite --devices-per-rank 8 gpt.json | jq .program.peak_bytes)
    echo "$one $tiled"
    [ $((3 * tiled)) -lt "$one" ]
    n=$(jq '[.graph.nodes[] | select(.op == "parameter" and .role != "input")] | length' gpt.json)
    [ "$(ap-rewrite --devices-per-rank 8 gpt.json |
        jq '[.program.modules[0].graph.nodes[] | select(.op == "parameter" and .role != "input")] | length')" -eq "$n" ]
}

@test "tile: a checkpoint of 2 x 2 goes on as 1 x 4, then as 4 x 1" {
    ap-rewrite --quiet --devices-per-rank 2 zero3.json -o 22.json
    ap-rewrite --quiet --devices-per-rank 4 megatron.json -o 14.json
    ap-rewrite --quiet data.json -o 41.json
    rm -rf saved
    {
        ap-exec -n 2 --data "$MODELS/mlp/in" --steps 2 --save saved 22.json
        ap-exec --data "$MODELS/mlp/in" --steps 2 --resume saved --save saved 14.json
        ap-exec -n 4 --data "$MODELS/mlp/in" --resume saved 41.json
    } | sed 's/\(.*\......\).*/\1/' >went
    ap-rewrite --quiet mlp.json | ap-exec --data "$MODELS/mlp/in" --steps 5 | sed 's/\(.*\......\).*/\1/' >want
    diff want went
}

@test "tile: whole arrays come out, and go in" {
    ap-rewrite --quiet --devices-per-rank 4 tofu.json |
        ap-exec --quiet --small-ints --seed 3 --steps 2 --out out4
    ap-rewrite --quiet mlp.json | ap-exec --quiet --small-ints --seed 3 --steps 2 --out out1
    diff <(ls out1) <(ls out4)
    ap-rewrite --quiet --devices-per-rank 2 tofu.json |
        ap-exec -n 2 --verify --steps 2
}

@test "tile: numbers of devices that are not a part of the mesh, and stages, are refused" {
    local n
    for n in 0 3 8 x; do
        run --separate-stderr ap-rewrite --devices-per-rank $n data.json
        [ "$status" -eq 2 ]
        [ -z "$output" ]
        [[ $stderr == *--devices-per-rank* ]]
    done
    ap-shard --quiet --mesh 2x3 --algorithm data -o six.json mlp.json
    run ap-rewrite --devices-per-rank 2 six.json
    [ "$status" -eq 2 ]
    [[ $output == *"2 devices per rank are not a part of the mesh"* ]]
    run ap-rewrite --devices-per-rank 2 mlp.json
    [ "$status" -eq 2 ]
    [[ $output == *"there is no plan"*"ap-shard makes one"* ]]
    run ap-rewrite --devices-per-rank 2 --to hlo data.json
    [ "$status" -eq 2 ]
    [[ $output == *"--devices-per-rank is for --to program"* ]]
    ap-coarsen --quiet --blocks 2 mlp.json | ap-stage --quiet --cluster cpu-4 --stages 2 --submeshes 1x1 -o stages.json
    run ap-rewrite --devices-per-rank 2 stages.json
    [ "$status" -eq 2 ]
    [[ $output == *"pipeline stages run on one device per rank only"* ]]
}

# refused FILTER MESSAGE: a tiled program that is changed so
refused() {
    jq "$1" 22.json >bad.json
    run ap-exec -n 2 --check bad.json
    echo "$1: $output"
    [ "$status" -eq 1 ]
    [[ $output == *"$2"* ]]
}

@test "tile: changed programs are refused" {
    ap-rewrite --quiet --devices-per-rank 2 zero3.json -o 22.json
    local nodes=".program.modules[0].graph.nodes[]"
    refused "del(.program.device_mesh)" "/device_mesh"
    refused ".program.devices_per_rank = 4" "in ranks of 4 devices is not the mesh"
    refused ".program.parameters[1] = 0" "/parameters"
    refused ".program.parameters[-1] = 0" "is a shard"
    refused "($nodes | select(.device == 1 and .op == \"parameter\") | .device) = 2" \
        "is for a device that its rank does not have"
    refused "($nodes | select(.device == 1 and .op == \"parameter\")) |= del(.device)" \
        "is a shard that its rank has twice"
    refused "(first($nodes | select(.op == \"dot\")) | .device) = 1" "is for one device, but the same for all"
}
