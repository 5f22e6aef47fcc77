#!/usr/bin/env bats
# ap-plan: every kind of model, the pipe that it prints, what it writes, what it refuses.

load helpers

@test "ap-plan: HLO: the pipe that is printed makes the plan and the report" {
    cd "$BATS_TEST_TMPDIR"
    run -0 --separate-stderr ap-plan --cluster cpu-4 -o ours.json "$(hlo mlp)"
    head -n 1 <<<"$output" | grep -qE '^(TP|DP|layers differ)'
    [ "${stderr_lines[0]}" = "ap-import $(hlo mlp) |" ]
    [ "${stderr_lines[-1]}" = 'ap-cost --report ours.json' ]
    jq -e '.cost.plan.words != "" and .stages.n_devices == 4' ours.json
    mv ours.json first.json
    diff <(bash -euo pipefail -c "$stderr") <(echo "$output")
    diff <(jq -S 'del(.history)' ours.json) <(jq -S 'del(.history)' first.json)
}

@test "ap-plan: names of ap-model, config.json, ONNX, folders, documents" {
    cd "$BATS_TEST_TMPDIR"
    run -0 --separate-stderr ap-plan mlp --cluster cpu-4 --batch 64 --optimizer sgd --no-history -o plan.json
    [[ $stderr == 'ap-model mlp --batch 64 --optimizer sgd --recipe mixed |'* ]]
    jq -e '.cost.plan.samples == 64 and (.history | length) == 0' plan.json
    run -0 --separate-stderr ap-plan --quiet --cluster=cpu-4 "$(imported mlp)"
    [ -z "$stderr" ]
    run -0 --separate-stderr ap-plan "$MODELS/torch_gpt" --cluster cpu-4
    [[ $stderr == "ap-import $MODELS/torch_gpt/model.hlo |"*'ap-grad --optimizer adam |'* ]]
    run -0 --separate-stderr ap-plan "$MODELS/onnx_gpt" --cluster cpu-4
    [[ $stderr == "ap-import $MODELS/onnx_gpt/model.onnx |"*'ap-grad --optimizer adam |'* ]]
    echo '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 32, "hidden_act": "silu", "tie_word_embeddings": false}' >config.json
    run -0 --separate-stderr ap-plan config.json --cluster h100x4 --batch 64 --seq 32
    [[ $stderr == 'ap-model --config config.json --batch 64 --seq 32 --recipe mixed |'*'ap-fuse --cluster h100x4 --kernels |'* ]]
    [[ $output == *' of 32 devices of h100x4'* ]]
    run -0 --separate-stderr ap-plan . --cluster h100-8 --batch 8 --seq 32 --stages 2 --microbatches 4 \
        --blocks 2 --recompute blocks --memory 16GiB --jobs 1 --html page.html --stats
    [[ $output == *'recompute all'* && $output == *'2 stages on '*' of 8 devices'* ]]
    [ -s page.html ]
    [[ $stderr == *'{"tool":"ap-stage"'* ]]
}

@test "ap-plan: --from prices what a trainer runs now" {
    cd "$BATS_TEST_TMPDIR"
    echo '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "hidden_act": "silu", "tie_word_embeddings": false}' >config.json
    local args='--num-layers 2 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
        --sequence-parallel --bf16 --micro-batch-size 1 --global-batch-size 4'
    run -0 --separate-stderr ap-plan config.json --cluster cpu-4 --batch 4 --seq 64 --from megatron "$args" \
        -o plan.json --quiet
    [[ ${lines[0]} == 'TP 2 with sequence parallelism · PP 2'* ]]
    jq -e '.stages.line == "tp=2,pp=2,dp=1,sp,mbs=1,packs,wgrad-overlap"' plan.json
    # beside it the best line of the trainer, what each key is worth, and the flags that differ
    [[ $output == *$'\nyours '*' tp=2,pp=2,dp=1,sp,mbs=1,packs,wgrad-overlap'$'\nbest '*' alone '*$'\nflags that differ'* ]]
    [[ $output == *'yours: --tensor-model-parallel-size 2'* ]]
    printf '# four\nA=1\ntorchrun --nproc_per_node 4 \\\n  pretrain_gpt.py %s' "${args//$'\n'/ }" >train.sh
    ap-plan config.json --cluster cpu-4 --batch 4 --seq 64 --from megatron train.sh --quiet | diff <(echo "$output") -
    ap-plan config.json --cluster cpu-4 --batch 4 --seq 64 --from megatron "$(cat train.sh)" --quiet |
        diff <(echo "$output") -
    # logs: the first steps do not count; torchtitan has tokens/s of a device, DeepSpeed samples/s of all
    { for ms in 9000 14 7 8 6 7; do
        echo " iteration 1/ 9 | elapsed time per iteration (ms): $ms.5 | global batch size: 4 |"
    done
        echo '[Rank 3] (after 2 iterations) memory (MB) | allocated: 1.00 | max allocated: 2.00 | reserved: 9.00'
    } >megatron.log
    grep iteration.1 megatron.log >bare.log # and no line of memory
    printf '\033[31mstep: %d  \033[33mmemory: 0.25GiB(1%%)  \033[34mtps: %s  \033[36mtflops: 1\033[39m\n' \
        1 100 10 8,000 20 8,000 >titan.log
    echo 'step=9, RunningAvgSamplesPerSec=1.1, CurrSamplesPerSec=1000.0, MemAllocated=1GB, MaxMemAllocated=1.5GB' >ds.log
    while read -r log want; do
        run -0 --separate-stderr ap-plan --quiet config.json --cluster cpu-4 --batch 4 --seq 64 \
            --grid tp=2,pp=2,sp,mbs=1,packs,wgrad-overlap --log "$log" --calibrate measured.json
        grep ^measured <<<"$output" | tr '\n' ' ' | grep -qE "$want" || { echo "$log: $output"; return 1; }
    done <<'END'
megatron.log step 0.0075 s,.*median of 4, after 2.* 0.002097 GB allocated
bare.log step 0.0075 s,.*median of 4, after 2
titan.log step 0.008 s,.*median of 2, after 1.* 0.2684 GB reserved
ds.log step 0.004 s,.*median of 1, after 0.* 1.611 GB allocated
END
    # the cluster as the last log measured it is one for later plans
    ap-plan --quiet config.json --cluster measured.json --batch 4 --seq 64 --from megatron:train.sh --log megatron.log |
        grep ^measured | tr '\n' ' ' | grep -qE ' step 0.0075 s, 1.875 x .* at this pace the best line takes 0.00[0-6]'
    refuses 2 "--calibrate: it is what --log measured" \
        ap-plan config.json --cluster cpu-4 --grid tp=2 --calibrate measured.json
    refuses 1 "titan.log: steps of torchtitan, and the plan is --from megatron" ap-plan --quiet config.json \
        --cluster cpu-4 --batch 4 --seq 64 --from megatron:train.sh --log titan.log
    refuses 1 "train.sh: no line of a step" ap-plan --quiet config.json --cluster cpu-4 --batch 4 --seq 64 \
        --from megatron:train.sh --log train.sh
    refuses 2 "--out torchtitan: the plan is --for megatron" \
        ap-plan config.json --cluster cpu-4 --for megatron --out torchtitan
    refuses 2 "--log: it is of one plan" ap-plan config.json --cluster cpu-4 --log ds.log
    refuses 1 "make it with --batch 4" ap-plan config.json --cluster cpu-4 --batch 8 --seq 64 --from=megatron:train.sh
    refuses 1 "it says 3 layers, not 2; 3072 features of a token, not 64; 256 features inside of a feed-forward part, not 128; 2 matrices" \
        ap-plan config.json --cluster cpu-4 --batch 4 --seq 64 --quiet --from megatron "--num-layers 3 --hidden-size 3072
            --num-attention-heads 4 --kv-channels 16 --group-query-attention --num-query-groups 2 --ffn-hidden-size 256
            --micro-batch-size 1"
    refuses 2 "--from megatron: expected a file, or flags" ap-plan config.json --from megatron
}

@test "ap-plan: a block for each layer, with the embedding and the loss in the first and last" {
    cd "$BATS_TEST_TMPDIR"
    config() { # LAYERS VOCAB
        echo '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": '"$1"', "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": '"$2"', "rms_norm_eps": 1e-5,
            "max_position_embeddings": 64, "hidden_act": "silu", "tie_word_embeddings": false}' >config.json
    }
    planned() {
        run -0 --separate-stderr ap-plan config.json --cluster h100-8 --batch 16 --seq 64 --stages 1 --microbatches 1
    }
    config 6 64
    planned
    [[ $stderr == *$'ap-coarsen --blocks 6 |\n'* && $output == *'operators in 6 blocks'* ]]
    config 6 4096
    planned
    [[ $stderr == *$'ap-coarsen --blocks 6 |\n'* && $output == *'operators in 6 blocks'* ]]
    config 134 64
    planned
    [[ $stderr == *$'ap-coarsen --blocks 67 |\n'* ]]
    run -0 --separate-stderr ap-plan mlp --cluster cpu-4 --batch 64 --dtype f32
    [[ $stderr == *$'ap-coarsen --blocks '* ]]
}

@test "ap-plan: --recipe is the options of ap-model and ap-fuse that trainers stand for" {
    made() { # OPTION...: the types of the report, and the commands that made the step
        ap-plan mlp --batch 64 --optimizer adam --cluster h100-8 --stages 1 --microbatches 1 "$@" 2>"$BATS_TEST_TMPDIR/err" |
            sed -n '/bytes per parameter/{s/.*: //;p}'
        sed -n 's/ |$//; s/^ *//; s/^ap-model mlp --batch 64 //; s/--cluster h100-8 //; 1,2p' "$BATS_TEST_TMPDIR/err"
    }
    [ "$(made)" = $'18 bytes per parameter\n--optimizer adam --recipe mixed\nap-fuse --kernels' ]
    [ "$(made --recipe bf16)" = $'8 bytes per parameter\n--optimizer adam --recipe bf16\nap-fuse --kernels' ]
    [ "$(made --dtype f32)" = $'16 bytes per parameter\n--dtype f32 --optimizer adam --recipe f32\nap-fuse --kernels' ]
    [[ $(made --dtype f16) == *$'\n--dtype f16 --optimizer adam --recipe mixed\n'* ]]
    [[ $(made --recipe mixed,moments=bf16) == $'14 bytes per parameter\n'* ]]
    run -0 --separate-stderr ap-plan llama --cluster h100-8 --batch 8 --seq 32 --stages 1 --recipe fp8
    [[ $stderr == *'--recipe mixed |'*'ap-fuse --cluster h100-8 --kernels --fp8 |'* && $output == *'fp8 and bf16 products'* ]]
    refuses 2 'have no products in fp8' ap-plan llama --cluster a100-8 --quiet --recipe fp8
    refuses 2 "'half' is not one of mixed, bf16, f32" ap-plan mlp --cluster h100-8 --quiet --recipe half
    refuses 2 '--recipe: ' ap-plan "$(hlo mlp)" --cluster h100-8 --recipe mixed
    # modules of PyTorch keep their types unless a recipe, or a type of products, is given
    run -0 --separate-stderr ap-plan "$MODELS/torch_gpt" --cluster cpu-4 --stages 1 --dtype bf16
    [[ $stderr == *'ap-grad --optimizer adam --dtype bf16 --recipe mixed |'* && $output == *'bf16 with f32 master'* ]]
}

@test "ap-plan: --f32-matmul is the search's, and the report's peak" {
    local model=(ap-plan mlp --cluster a100-8 --batch 4096 --dtype f32 --stages 1 --microbatches 1)
    run -0 --separate-stderr "${model[@]}"
    [[ $output == *tf32* ]]
    run -0 --separate-stderr "${model[@]}" --f32-matmul f32 -o "$BATS_TEST_TMPDIR/plan.json"
    [[ $stderr == *'ap-stage --cluster a100-8 --stages 1 --microbatches 1 --f32-matmul f32'* && $output != *tf32* ]]
    jq -e '.cluster | has("tf32_flops_per_sec") | not' "$BATS_TEST_TMPDIR/plan.json"
}

@test "ap-plan: several kinds of devices" {
    run -0 --separate-stderr ap-plan gpt2-124m --cluster h100x1+a100x1 --batch 64 --seq 512 --dtype bf16
    [[ $output == *'; stage'*' on '?100-80GB*' on '?100-80GB* ]]
    [[ $output == *'devices of h100x1+a100x1 (H100-80GB, A100-80GB)'* ]]
}

@test "ap-plan: --out writes for other systems, to a file or to standard output" {
    cd "$BATS_TEST_TMPDIR"
    run -0 --separate-stderr ap-plan "$(hlo mlp)" --cluster cpu-4 --out hlo -o step.hlo
    jq -r '.stages[].module' step.hlo | grep -q '^HloModule'
    [[ $output == *'where the time goes'* ]]
    run -0 --separate-stderr ap-plan "$(hlo mlp)" --cluster cpu-4 --out jax
    [[ $output == *PartitionSpec* && $output != *'where the time goes'* ]]
    [[ $stderr == *'where the time goes'* ]]
}

@test "ap-plan: the report of a plan that --out has nothing for" {
    run -2 --separate-stderr ap-plan "$(hlo mlp)" --cluster cpu-4 --quiet --out torch -o "$BATS_TEST_TMPDIR/torch"
    [ -z "$output" ]
    [ ! -e "$BATS_TEST_TMPDIR/torch" ]
    [[ $stderr == *'where the time goes'* ]]
}

@test "ap-plan: --memory is what counts in the report, the document and the page" {
    local p=$BATS_TEST_TMPDIR/plan.json h=$BATS_TEST_TMPDIR/page.html
    run -0 --separate-stderr ap-plan "$(hlo mlp)" --cluster cpu-4 --memory 1000000 -o "$p" --html "$h"
    [[ $output == *' of 1 MB: fits, '*' to spare'* ]]
    jq -e '.stages.memory_limit_bytes == 1000000 and .cost.devices[].memory.limit_bytes == 1000000 and
        .cost.plan.spare_bytes < 1000000' "$p"
    grep -q '"limit_bytes":1000000' "$h"
    ap-plan "$(hlo mlp)" --cluster cpu-4 --quiet -o "$p" >/dev/null
    jq -e '(.stages | has("memory_limit_bytes") | not) and
        .cost.devices[].memory.limit_bytes == .cluster.memory_bytes' "$p"
    # ap-shard's, without stages
    ap-shard --mesh 4 --cluster cpu-4 --memory 1000000 "$(imported mlp)" | ap-cost -o "$p"
    jq -e '.sharding.memory_limit_bytes == 1000000 and .cost.memory.limit_bytes == 1000000' "$p"
    ap-cost --report "$p" | grep -q ' of 1 MB: fits, '
    refuses 1 "/sharding/memory_limit_bytes" ap-cost <(jq -c '.sharding.memory_limit_bytes = 0' "$p")
}

@test "ap-plan: what it refuses, and where" {
    local doc
    doc=$(hlo mlp)
    refuses 2 "--cluster is missing" ap-plan "$doc"
    refuses 2 "operand MODEL is missing" ap-plan --cluster cpu-4
    refuses 2 "more than one MODEL: a, b" ap-plan --cluster cpu-4 a b
    refuses 2 "--batch: $doc has its own" ap-plan --cluster cpu-4 --batch 8 "$doc"
    refuses 2 "--out: 'lightning' is not one of hlo, jax, " ap-plan --cluster cpu-4 --out lightning "$doc"
    refuses 2 "option '--memory' needs a value" ap-plan "$doc" --memory
    refuses 2 "--f32-matmul: 'half' is not one of auto, tf32, f32" ap-plan --cluster cpu-4 --f32-matmul half "$doc"
    refuses 2 "--f32-matmul tf32: the devices of cluster cpu-4 have no tf32" ap-plan --quiet --cluster cpu-4 --f32-matmul tf32 "$doc"
    refuses 2 "no model 'gtp'" ap-plan --cluster cpu-4 --quiet gtp
    refuses 1 "no preset has this name" ap-plan --cluster nowhere --quiet "$doc"
    refuses 2 "--html: expected a file" ap-plan --cluster cpu-4 --html= "$doc"
    refuses 1 "no/such/page.html: No such file or directory" ap-plan --cluster cpu-4 --html no/such/page.html "$doc"
    refuses 1 "no/such/plan.json: No such file or directory" ap-plan --cluster cpu-4 -o no/such/plan.json "$doc"
    refuses 1 "no/such.hlo" ap-plan --cluster cpu-4 no/such.hlo
    echo '{"model_type": "qwen3_next"}' >"$BATS_TEST_TMPDIR/config.json"
    refuses 2 "qwen3_next: gated delta layers are not built" env AP_TORCH_PYTHON=false ap-plan --cluster cpu-4 "$BATS_TEST_TMPDIR"
    [[ $stderr == *"ap-plan: a Python with torch, jax and transformers (false, else AP_TORCH_PYTHON) would make it" ]]
    refuses 1 "config.json, model.hlo and model.onnx" ap-plan --cluster cpu-4 tests/unit
    refuses 3 "" ap-plan --cluster cpu-4 --quiet --memory 1000 "$doc"
    # nothing is left behind
    run env TMPDIR="$BATS_TEST_TMPDIR" ap-plan --cluster cpu-4 --quiet --memory 1000 "$doc"
    [ "$(find "$BATS_TEST_TMPDIR" -maxdepth 1 -name 'ap-plan.*' | wc -l)" -eq 0 ]
}

@test "ap-plan: help, version, clusters" {
    run -0 ap-plan --help
    [[ ${lines[0]} == "usage: ap-plan [OPTION]... MODEL" ]]
    [ "$(ap-plan --version)" = "$(ap-cost --version | sed 's/^ap-cost/ap-plan/')" ]
    diff <(ap-plan --cluster help) <(ap-cost --cluster help)
    run -0 ap-plan --out=help
    [[ $output == *megatron* && $output != *program* ]]
}

@test "ap-plan: a command that the machine lacks is named before the search" {
    local dir=$BATS_TEST_TMPDIR/few c
    mkdir "$dir"
    for c in bash dirname readlink awk sed grep gzip mktemp tail head tr cat rm; do
        ln -s "$(command -v $c)" "$dir/$c"
    done
    PATH=$dir "$AP_BUILD/bin/ap-plan" --quiet mlp --cluster cpu-4 | grep -q '^step '
    refuses 2 "ap-plan: jq is not installed" env PATH="$dir" "$AP_BUILD/bin/ap-plan" mlp --cluster cpu-4 --for megatron --free
    rm "$dir/awk"
    refuses 2 "ap-plan: awk is not installed" env PATH="$dir" "$AP_BUILD/bin/ap-plan" mlp --cluster cpu-4
}

@test "ap-plan: answers are kept by content, within a bound, and --no-cache runs the filters" {
    cd "$BATS_TEST_TMPDIR"
    export XDG_CACHE_HOME=$PWD/cache
    mkdir tools
    cp "$AP_BUILD"/bin/* tools/
    # filters that say that they run
    for t in import stage cost; do
        mv "tools/ap-$t" "tools/real-$t"
        printf '#!/bin/bash\n[[ $* == *help* ]] || echo %s >>%q\nexec -a ap-%s "%s" "$@"\n' \
            "$t" "$PWD/ran" "$t" "$PWD/tools/real-$t" >"tools/ap-$t"
        chmod +x "tools/ap-$t"
    done
    cp "$(hlo mlp)" model.hlo
    asked() { : >ran && tools/ap-plan model.hlo --cluster cpu-4 -o plan.json "$@" 2>err >report; }
    ran() { grep -xc "$1" ran || true; }
    asked
    [ "$(ran stage)" -eq 1 ]
    cp plan.json first.json && cp report first && cp err err1
    asked
    [ "$(ran import) $(ran stage)" = '0 0' ]
    cmp plan.json first.json
    cmp report first
    cmp err err1 # warnings and commands, too
    asked --html page.html # the search is known, the page is new
    [ "$(ran stage)" -eq 0 ]
    [ -s page.html ]
    rm page.html
    asked --html page.html
    [ -s page.html ]
    asked --no-cache
    [ "$(ran import) $(ran stage)" = '1 1' ]
    cmp plan.json first.json
    sed 's/^HloModule [^,]*/HloModule other/' model.hlo >m && mv m model.hlo # other content, same name
    asked
    [ "$(ran import)" -eq 1 ]
    run -3 asked --memory 1000 # no plan: this answer is kept, too
    cp err err1
    run -3 asked --memory 1000
    [ "$(ran stage)" -eq 0 ]
    cmp err err1
    # what is over the bound goes, the oldest first
    truncate -s 1100M cache/autopar/plan/large
    touch -d '1 year ago' cache/autopar/plan/large
    asked
    [ ! -e cache/autopar/plan/large ]
    [ "$(ran stage)" -eq 0 ]
    asked
    [ "$(ran stage)" -eq 0 ]
    # ONNX may have weights in files beside it: it is read again, and what follows from it is known
    cp "$MODELS/onnx_resnet/model.onnx" .
    tools/ap-plan --quiet model.onnx --cluster cpu-4 --stages 1 >first
    : >ran && tools/ap-plan --quiet model.onnx --cluster cpu-4 --stages 1 | diff first -
    [ "$(ran import) $(ran stage)" = '1 0' ]
    XDG_CACHE_HOME=/dev/null asked # no place for a cache
    [ "$(ran stage)" -eq 1 ]
}
