#!/usr/bin/env bats
# ap-stage --for: the best line that a trainer can run.

load helpers

# A model of blocks that are layers, in its file.
layers() { # FILE NAME OPTION...
    ap-model --hidden 64 --vocab 256 --seq 32 --batch 8 --recipe mixed "${@:2}" | ap-fuse --cluster h100 | ap-prune |
        ap-coarsen --algorithm layers >"$1"
}

setup_file() {
    layers "$BATS_FILE_TMPDIR/gpt" gpt --layers 2 --heads 4
    layers "$BATS_FILE_TMPDIR/llama" llama --layers 3 --heads 4 --kv-heads 2 --ffn 128
    layers "$BATS_FILE_TMPDIR/18" llama --layers 2 --heads 4 --kv-heads 2 --ffn 128 --batch 18
    layers "$BATS_FILE_TMPDIR/63" gpt --layers 2 --heads 4 --batch 63
    layers "$BATS_FILE_TMPDIR/uneven" llama --layers 5 --heads 4 --kv-heads 2 --ffn 128 --batch 4
    ap-model gpt --layers 4 --hidden 256 --heads 8 --vocab 1000 --seq 256 --batch 16 --recipe mixed |
        ap-fuse --cluster h100 --kernels | ap-prune | ap-coarsen --algorithm layers >"$BATS_FILE_TMPDIR/kernels"
    jq '.name = "h100-4" | .levels[0].size = 4' "$AP_TOP/clusters/h100-8.json" >"$BATS_FILE_TMPDIR/h100-4"
}

@test "ap-stage --for: the best line by brute force, and no price is below a bound" {
    brute="$BATS_TEST_DIRNAME/../build/unit/test_stage_lines"
    [ -x "$brute" ] || skip "make unit"
    for trainer in torchtitan deepspeed; do
        "$brute" "$BATS_FILE_TMPDIR/gpt" cpu-4 $trainer 600kB
        "$brute" "$BATS_FILE_TMPDIR/llama" cpu-4 $trainer 900kB
    done
    "$brute" "$BATS_FILE_TMPDIR/gpt" cpu-4 megatron 900kB
    for model in 18 63 uneven; do
        "$brute" "$BATS_FILE_TMPDIR/$model" cpu-4 megatron 2MB
    done
    "$brute" "$BATS_FILE_TMPDIR/uneven" cpu-4 deepspeed 2MB
    "$brute" "$BATS_FILE_TMPDIR/kernels" "$BATS_FILE_TMPDIR/h100-4" torchtitan 40MB # launched once a kernel
}

@test "ap-stage --for: the section says the trainer and counts lines, the report says them" {
    ap-stage --cluster cpu-4 --for torchtitan "$BATS_FILE_TMPDIR/llama" >"$BATS_TEST_TMPDIR/plan"
    jq -e '.stages | .for == "torchtitan" and .objective_sec == .lower_bound_sec and
        (.lines | .legal > 100 and .priced >= 1 and .priced < 20)' "$BATS_TEST_TMPDIR/plan"
    line=$(jq -r .stages.line "$BATS_TEST_TMPDIR/plan")
    ap-stage --cluster cpu-4 --grid "$line" "$BATS_FILE_TMPDIR/llama" >"$BATS_TEST_TMPDIR/line"
    [ "$(jq .stages.objective_sec "$BATS_TEST_TMPDIR/plan")" = "$(jq .stages.objective_sec "$BATS_TEST_TMPDIR/line")" ]
    ap-cost --report "$BATS_TEST_TMPDIR/plan" | grep -E '^best of [0-9]+ lines that torchtitan[^:]* runs: [0-9]+ priced, '
}

@test "ap-stage --for: where nothing fits, the leanest line" {
    refuses 3 "lines the leanest, dp=4,zero=1,mbs=2,overlap,packs,keeps-gradients, needs" ap-stage --cluster cpu-4 --memory 100kB --for deepspeed \
        "$BATS_FILE_TMPDIR/gpt"
    refuses 3 "DeepSpeed 0.19 can run no line of" ap-stage --cluster cpu-4 --stages 4 --for deepspeed "$BATS_FILE_TMPDIR/gpt"
    refuses 2 "is not one of megatron" ap-stage --cluster cpu-4 --for nanotron "$BATS_FILE_TMPDIR/gpt"
    refuses 2 "not with --for" ap-stage --cluster cpu-4 --for megatron --from megatron:x "$BATS_FILE_TMPDIR/gpt"
}

@test "ap-stage --for: sequence parallelism overlaps what it sends where that is quicker, and only there" {
    cd "$BATS_TEST_TMPDIR"
    ap-model gpt --layers 2 --hidden 512 --heads 8 --vocab 512 --seq 256 --batch 1 --recipe mixed | ap-prune --quiet |
        ap-coarsen --quiet --algorithm layers >model
    jq '.launch_sec = 1e-2' "$AP_TOP/clusters/cpu-4.json" >slow
    line() { ap-stage --quiet --for megatron --stages 1 --cluster "$1" model | jq -r .stages.line; }
    [ "$(line cpu-4)" = tp=4,dp=1,sp,mbs=1,packs,tp-overlap,wgrad-overlap ]
    [ "$(line slow)" = tp=4,dp=1,sp,mbs=1,packs,wgrad-overlap ] # parts of products are launched by themselves
}

@test "ap-plan --out: a free plan of a document is beside the line; a line that is given is the trainer's" {
    cd "$BATS_TEST_TMPDIR"
    ap-shard --quiet --cluster cpu-4 --mesh 4 "$BATS_FILE_TMPDIR/llama" | ap-cost >free
    refuses 3 "the plan is one of ap-shard" ap-rewrite --to megatron free
    run -0 ap-plan free --cluster cpu-4 --out megatron --quiet -o flags
    want=$(jq .cost.step_sec free | xargs printf '%.4g s if stages could differ')
    [[ $output == *'best of '*' lines that Megatron-LM'* && $output == *"$want"* ]]
    run -0 ap-plan "$BATS_FILE_TMPDIR/llama" --cluster cpu-4 --grid tp=2,mbs=2 --out megatron --quiet
    [[ $output == *"--tensor-model-parallel-size 2"* ]]
}

@test "ap-plan --for: the flags are of the line that was priced; --free says what other plans gain" {
    cd "$BATS_TEST_TMPDIR"
    run -0 ap-plan "$BATS_FILE_TMPDIR/llama" --cluster cpu-4 --out torchtitan --free --quiet -o flags
    grep -E '^best of [0-9]+ lines that torchtitan' <<<"$output"
    grep -E 's if stages could differ: [0-9.]+ % (less|more, none quicker was found) \(' <<<"$output"
    step=$(awk '$1 == "step" { print $2; exit }' <<<"$output")
    run -0 ap-plan "$BATS_FILE_TMPDIR/llama" --cluster cpu-4 --from torchtitan flags --quiet
    [ "$(awk '$1 == "step" { print $2; exit }' <<<"$output")" = "$step" ]
    refuses 2 "not with --for" ap-plan "$BATS_FILE_TMPDIR/llama" --cluster cpu-4 --for megatron --blocks 2
    refuses 2 "it is beside --for" ap-plan "$BATS_FILE_TMPDIR/llama" --cluster cpu-4 --free
}

@test "split backward passes: bounds hold, torchtitan has its names for them, the others refuse" {
    cd "$BATS_TEST_TMPDIR"
    brute="$BATS_TEST_DIRNAME/../build/unit/test_stage_lines"
    ap-model llama --untied --layers 4 --heads 4 --kv-heads 2 --ffn 128 --hidden 32 --vocab 64 --seq 8 --batch 8 |
        ap-coarsen --quiet --algorithm layers >model
    if [ -x "$brute" ]; then
        "$brute" model cpu-4 torchtitan 900kB zb-v
        "$brute" model cpu-4 any 900kB v-half
    fi
    while read -r line name; do
        ap-stage --for torchtitan --grid "pp=2,dp=2,zero=1,mbs=1,$line" --cluster cpu-4 --quiet model >plan
        ap-rewrite --to torchtitan --quiet plan >flags
        grep -q -- "--parallelism.pipeline_parallel_schedule $name\$" flags
        [ "$(ap-stage --from torchtitan:flags --cluster cpu-4 --quiet model | jq -r .stages.line)" = "$(jq -r .stages.line plan)" ]
    done <<'END'
schedule=zb-v ZBVZeroBubble
schedule=zb-h1,vpp=2 InterleavedZeroBubble
schedule=dualpipe-v DualPipeV
schedule=looped-bfs LoopedBFS
schedule=zb-h1 1F1B
schedule=zb-h2 1F1B
schedule=v-half ZBVZeroBubble
schedule=v-min ZBVZeroBubble
END
    # schedules without a name: the script makes the file of their order
    grep -q -- '--parallelism.pipeline_parallel_schedule_csv v-min.csv$' flags
    sed '/^PARALLEL_ARGS/,$d' flags | bash
    [ "$(wc -l <v-min.csv)" -eq 2 ]
    [[ $(head -n 1 v-min.csv) == 0F0,*,3I0,* ]]
    sed -i 's/0F1,/0F2,/; s/^1F0/1F1/' flags
    refuses 1 'the text has no order of a schedule that a line says' \
        ap-stage --from torchtitan:flags --cluster cpu-4 --quiet model
    while read -r trainer line why; do
        refuses 3 "$why" ap-stage --for "$trainer" --grid "pp=2,dp=2,mbs=1,$line" --cluster cpu-4 model
    done <<'END'
megatron schedule=zb-v its pipelines run 1f1b or interleaved-1f1b
deepspeed schedule=zb-h1 schedule zb-h1: PipelineModule runs 1f1b
END
}

@test "split backward passes: PyTorch reads the orders that are written for torchtitan" {
    [ -n "${AP_TORCH_PYTHON-}" ] || skip "AP_TORCH_PYTHON names no Python with PyTorch"
    cd "$BATS_TEST_TMPDIR"
    ap-model llama --untied --layers 8 --heads 4 --kv-heads 2 --ffn 128 --hidden 32 --vocab 64 --seq 8 --batch 16 |
        ap-coarsen --quiet --algorithm layers >model
    for schedule in v-half v-min zb-h2 zb-h1; do
        for size in 2,mbs=1 4,mbs=2; do # 8 microbatches
            ap-stage --for torchtitan --grid "schedule=$schedule,zero=1,pp=$size" --cluster cpu-4 --quiet model |
                ap-rewrite --to torchtitan --quiet | sed '/^PARALLEL_ARGS/,$d' | bash
            mv $schedule.csv "$schedule.${size%,*}"
        done
    done
    diff <("$AP_TORCH_PYTHON" "$AP_TOP/tests/torch_orders.py" {v-half,v-min,zb-h2,zb-h1}.{2,4}) - <<'END'
v-half.2 [0, 1, 1, 0] 8 96
v-half.4 [0, 1, 2, 3, 3, 2, 1, 0] 8 192
v-min.2 [0, 1, 1, 0] 8 96
v-min.4 [0, 1, 2, 3, 3, 2, 1, 0] 8 192
zb-h2.2 [0, 1] 8 48
zb-h2.4 [0, 1, 2, 3] 8 96
zb-h1.2 [0, 1] 8 48
zb-h1.4 [0, 1, 2, 3] 8 96
END
}
