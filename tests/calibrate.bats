#!/usr/bin/env bats
# Profiles of ap-exec, and clusters that ap-cost fits to them and to outputs of nccl-tests.
# shellcheck disable=SC2154 # status, output and stderr are bats'

load helpers

# What all-reduces of 8 GPUs print.
nccl_table() {
    echo "# Collective test starting: all_reduce_perf"
    local i
    for i in {0..7}; do echo "#  Rank  $i Group  0 Pid  77 on  node-a device  $i [0000:07:00] NVIDIA H100"; done
    echo "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong"
    for i in 1024 65536 4194304 268435456; do
        awk -v b=$i 'BEGIN { printf "%12d %12d     float     sum      -1 %9.2f   0.1   0.2      0   9.0  0.1   0.2      0\n", b, b / 4, 20 + b / 2e5 }'
    done
}

@test "calibrate: a profile of a run becomes a cluster that planners take" {
    needs_exec
    cd "$BATS_TEST_TMPDIR"
    ap-exec -n 2 --quiet --profile prof.json "$(rewritten mlp 2)"
    /usr/bin/python3 "$BATS_TEST_DIRNAME/validate.py" --schema profile.json prof.json
    jq -e '.ranks == 2 and .step.steps == 6 and all(.kernels[], .collectives[], .sends[]; .sec > 0) and
        any(.kernels[]; .kernel == "dot" and .count >= 1) and any(.collectives[]; .alone | not)' prof.json
    ap-cost --calibrate prof.json -o cluster.json 2>residuals
    grep -qE '^dot f32 +[0-9]+ samples, error +[0-9.]+ % median' residuals
    /usr/bin/python3 "$BATS_TEST_DIRNAME/validate.py" --schema cluster.json cluster.json
    ap-cost --calibrate --quiet prof.json >again.json
    cmp cluster.json again.json
    ap-shard --mesh 2 --cluster cluster.json "$(rewritten mlp 2)" | ap-cost >priced.json
    jq -e '.cluster.kernels and .cluster.collectives and .cost.step_sec > 0' priced.json
    # what is measured is what is priced: the step's compute is the kernels' time, about
    jq -s -e '(.[0].cost.compute_sec) / ([.[1].kernels[] | .sec * .count] | add) | . > 0.3 and . < 3' priced.json prof.json
}

@test "calibrate: the step that a trainer took scales all times of its plan's cluster" {
    cd "$BATS_TEST_TMPDIR"
    priced() { # CLUSTER: the priced step of one plan
        ap-stage --grid tp=2,pp=2,mbs=1,packs --cluster "$1" model.json | ap-cost
    }
    ap-model gpt --layers 2 --hidden 64 --heads 4 --vocab 64 --seq 16 --batch 16 |
        ap-coarsen --algorithm layers -o model.json
    priced h100-8 >plan.json
    for sec in 0.01 0.0001; do # slower than planned; quicker than the peaks allow
        ap-cost --calibrate --step $sec plan.json -o cluster.json
        /usr/bin/python3 "$BATS_TEST_DIRNAME/validate.py" --schema cluster.json cluster.json
        priced cluster.json | jq -e --argjson sec $sec '.cost.step_sec / $sec | . > 0.999999 and . < 1.000001'
    done
    refuses 2 "--step: seconds, with --calibrate, of one plan" ap-cost --step 3 plan.json
    refuses 2 "--step: seconds, with --calibrate, of one plan" ap-cost --calibrate --cluster cpu-4 --step 3 plan.json
    refuses 1 "model.json: no plan with its cost and cluster" ap-cost --calibrate --step 3 model.json
    refuses 1 "plan.json: the step is predicted to take" ap-cost --calibrate --step 1e6 plan.json
}

@test "calibrate: nccl-tests replace what a cluster says of collectives" {
    cd "$BATS_TEST_TMPDIR"
    nccl_table >out.txt
    ap-cost --calibrate --cluster h100-8 out.txt >text.json 2>residuals
    grep -q '^all-reduce, 8 devices' residuals
    jq -e '.collectives[0] | .op == "all-reduce" and .devices == 8 and .rings == 1 and
        (.bytes[-1].sec / (20e-6 + 268435456 / 2e11) | . > 0.99 and . < 1.01)' text.json
    # the file of option -J says the same
    jq -n '{version: 3, args: ["./all_reduce_perf"], config: {devices: [range(8) | {rank: .}]},
        results: [1024, 65536, 4194304, 268435456 | {size: ., out_of_place: {time: (20 + . / 2e5)}, in_place: null}]}' >out.json
    ap-cost --calibrate --quiet --cluster h100-8 out.json >json.json
    jq -s -e '[.[] | .collectives[0].bytes[] | .sec * 1e8 | round] | .[:length / 2] == .[length / 2:]' text.json json.json
}

# refused STATUS PATTERN OPTION...
refused() {
    local want=$1 pattern=$2
    shift 2
    run --separate-stderr ap-cost --calibrate "$@"
    [ "$status" -eq "$want" ]
    [ -z "$output" ]
    [[ $stderr == *$pattern* ]]
}

@test "calibrate: bad measurements are refused by line or member" {
    cd "$BATS_TEST_TMPDIR"
    nccl_table | sed '2,9d' >ranks.txt
    refused 1 "ranks.txt:3: no line '#  Rank  0 ...'" --cluster h100-8 ranks.txt
    nccl_table | sed 's/ 65536 .*/ 65536 16384 float/' >short.txt
    refused 1 "short.txt:12: expected size, count, type" --cluster h100-8 short.txt
    nccl_table >out.txt
    refused 1 "out.txt:11: says nothing of devices" out.txt
    refused 1 "8 ranks, cluster cpu-4 has 4 devices" --cluster cpu-4 out.txt
    echo hello >hello.txt
    refused 1 "hello.txt: neither a profile of ap-exec nor an output of nccl-tests" --cluster cpu-4 hello.txt
    echo '{"profile": 1,' >cut.json
    refused 1 "cut.json:2:" cut.json
    echo '{}' >none.json
    refused 1 "none.json: neither" none.json
    echo '{"profile":1,"kernels":[{"kernel":"dot","dtype":"f32","flops":1,"bytes":1,"count":1,"sec":-1}],"collectives":[],"sends":[]}' >neg.json
    refused 1 "neg.json: /kernels/0/sec: expected a number from 0" --cluster cpu-4 neg.json
    echo '{"profile":1,"kernels":[],"collectives":[{"op":"all-reduce","groups":[[0,7]],"bytes":4,"sec":1}],"sends":[]}' >far.json
    refused 1 "far.json: /collectives/0/groups: these are not devices of cluster cpu-4" --cluster cpu-4 far.json
    run ap-exec --profile p.json --steps 3 "$(rewritten mlp 2)"
    [ "$status" -eq 2 ]
    [[ $output == *"--profile: needs at least 4 steps"* ]]
}

@test "calibrate: tables of a cluster are checked" {
    local table='{"kernel":"dot","dtype":"f32","launch_sec":0,"flops":[{"size":1,"sec":2},{"size":2,"sec":1}]}'
    cd "$BATS_TEST_TMPDIR"
    jq --argjson t "$table" '.kernels = [$t]' "$BATS_TEST_DIRNAME/../clusters/cpu-4.json" >falls.json
    run ap-cost --calibrate --cluster falls.json /dev/null
    [ "$status" -eq 1 ]
    [[ $output == *"falls.json: /kernels/0/flops/1: takes less time than the row before"* ]]
    jq '.collectives = [{op: "dot", level: "memory", devices: 2, rings: 1, bytes: [{size: 1, sec: 1}]}]' "$BATS_TEST_DIRNAME/../clusters/cpu-4.json" >op.json
    run ap-cost --calibrate --cluster op.json /dev/null
    [ "$status" -eq 1 ]
    [[ $output == *"op.json: /collectives/0/op: no collective has this name"* ]]
}
