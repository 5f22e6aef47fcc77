#!/usr/bin/env bats
# ap-rewrite --to megatron, torchtitan, deepspeed: plans for trainers.

# shellcheck disable=SC2154 # output and stderr are bats'
load helpers

DIR=$AP_TOP/tests/trainers

setup_file() { "$AP_TOP/tests/trainers/plans" "$BATS_FILE_TMPDIR"; }

# Devices of the plans are eight; what is written of one, for read.py: the arguments in a bash
# array, one a line, or the file of deepspeed.
arguments() { # PLAN TRAINER
    if [ "$2" = deepspeed ]; then
        ap-rewrite --quiet --to deepspeed -o "$BATS_TEST_TMPDIR/ds.json" "$1"
        echo "$BATS_TEST_TMPDIR/ds.json"
    else
        bash -c "$(ap-rewrite --quiet --to "$2" "$1")"'
            printf "%s\n" "${PARALLEL_ARGS[@]}"'
    fi
}

@test "trainers: lines as they were written before, without a word" {
    local trainer plan
    for trainer in megatron torchtitan torchtitan-main deepspeed; do
        for plan in "$BATS_FILE_TMPDIR"/*."$trainer.json"; do
            echo "== $(basename "$plan" ".$trainer.json")"
            ap-rewrite --quiet --to "$trainer" "$plan" | grep -v predicted # prices are others' tests
        done | diff "$DIR/$trainer.txt" - || { echo "$trainer (tests/trainers/plans TMP --golden)"; return 1; }
    done
    run --separate-stderr ap-rewrite --to megatron "$BATS_FILE_TMPDIR/uneven.megatron.json"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
}

@test "trainers: read back, each is the plan" {
    local trainer plan args words model stages
    for trainer in megatron torchtitan deepspeed; do
        for plan in "$BATS_FILE_TMPDIR"/*."$trainer.json"; do
            mapfile -t args < <(arguments "$plan" "$trainer")
            words=$(jq -r '.history[-1].words' "$plan")
            run "$DIR/read.py" "$trainer" 8 "${args[@]}"
            [ "${lines[0]}" = "$words" ] || { echo "$plan: '$output', not '$words'"; return 1; }
            # --from reads the same plan; stages of DeepSpeed are the script's
            model=$(jq -r .graph.name "$plan")
            [[ $plan != */@(uneven|even|interleaved).* ]] || model=deep
            stages=()
            [[ $plan != */even.deepspeed.json ]] || stages=(--grid pp=4)
            ap-rewrite --quiet --to "$trainer" -o "$BATS_TEST_TMPDIR/flags" "$plan"
            ap-stage --quiet --cluster h100-8 --from "$trainer:$BATS_TEST_TMPDIR/flags" "${stages[@]}" \
                "$BATS_FILE_TMPDIR/$model" | diff <(jq .stages "$plan") <(jq .stages -) || { echo "$plan"; return 1; }
        done
    done
    mapfile -t args < <(arguments "$BATS_FILE_TMPDIR/interleaved.torchtitan.json" torchtitan)
    "$DIR/read.py" torchtitan 8 "${args[@]}" | grep -qx 'layers 1 2 2 3'
}

@test "trainers: their own readers accept the files, where they are installed" {
    local python=${AP_TRAINERS_PYTHON:-} trainer plan files
    [ -n "$python" ] || skip "AP_TRAINERS_PYTHON: a Python with torchtitan and deepspeed"
    for trainer in torchtitan deepspeed megatron; do
        files=()
        for plan in "$BATS_FILE_TMPDIR"/*."$trainer.json"; do
            files+=("$BATS_TEST_TMPDIR/$(basename "$plan" .json)-8")
            ap-rewrite --quiet --to "$trainer" -o "${files[-1]}" "$plan"
        done
        run "$python" "$DIR/load.py" $trainer "${files[@]}"
        [ "$status" -ne 77 ] || skip "$trainer is not installed in $python"
        [ "$status" -eq 0 ] || { echo "$trainer: $output"; return 1; }
    done
}

@test "trainers: the plan of given degrees has these degrees" {
    run "$AP_BUILD/unit/test_stage_degrees" "$BATS_FILE_TMPDIR/gpt" "$BATS_FILE_TMPDIR/moe"
    [ "$status" -eq 0 ] || { echo "$output" | grep '^not'; return 1; }
}

@test "trainers: facts of models that conditions ask for" {
    ap-model mixtral-8x7b --layers 2 --batch 8 --seq 512 --dtype bf16 |
        ap-fuse --cluster h100-8 -o "$BATS_TEST_TMPDIR/mixtral.json"
    ap-model wav2vec2-base --layers 2 --batch 4 -o "$BATS_TEST_TMPDIR/wav2vec.json" # codebooks are no experts
    ap-model deepseek --layers 5 --hidden 64 --heads 4 --vocab 256 --batch 4 --seq 16 -o "$BATS_TEST_TMPDIR/deepseek.json"
    run "$AP_BUILD/unit/test_trainer" "$BATS_TEST_TMPDIR/mixtral.json" \
        "$BATS_FILE_TMPDIR/gpt" "$BATS_TEST_TMPDIR/wav2vec.json" "$BATS_TEST_TMPDIR/deepseek.json"
    diff - <(echo "$output") <<'EOF'
heads of 128 and 128, inside 0, 14336 of experts, 0 beside them, gated, 2 layers with experts, RMS norms, rotary, no bias: kind 1, batch 8 x 512, 2 layers, 32 heads, 8 of keys, 2 of 8 experts, 32000 tokens x 4096, bf16 of bf16, moments bf16
heads of 16 and 16, inside 256, 0 of experts, 0 beside them, GELU, 0 layers with experts, layer norms, learned positions, biases: kind 1, batch 16 x 16, 4 layers, 4 heads, 4 of keys, 0 of 0 experts, 128 tokens x 64 tied, f32 of f32, moments f32
heads of 64 and 64, inside 3072, 0 of experts, 0 beside them, GELU, 0 layers with experts, biases: kind 4, batch 4 x 499, 9 layers, 12 heads, 12 of keys, 0 of 0 experts, 0 tokens x 0, f32 of f32, moments f32
heads of 192 and 128, inside 18432, 2048 of experts, 2048 beside them, gated, 2 layers with experts, RMS norms, rotary, no bias: kind 1, batch 4 x 16, 5 layers, 4 heads, 4 of keys, 16 of 256 experts, 256 tokens x 64, f32 of f32, moments f32
EOF
}

@test "trainers: command lines and files as people write them" {
    cd "$DIR/from" || return 1
    while read -r file devices layers want; do
        run "$AP_BUILD/unit/test_trainer" --read "${file##*.}" "$devices" "$layers" "$file"
        [ "${output##*$'\n'}" = "$want" ] || { echo "$file: '$output', not '$want'"; return 1; }
    done <<'END'
fsdp.megatron 64 32 dp=16,zero=3,mbs=2,overlap,packs of 256, 16 devices
gpt3-175b.megatron 1536 96 tp=8,pp=16,vpp=6,dp=12,recompute=selective,mbs=1,packs,low-sums,wgrad-overlap of 1536, 1536 devices
llama3-8b.megatron 8 32 tp=2,pp=2,dp=16,zero=1,sp,mbs=1,overlap,packs,low-sums,wgrad-overlap of 128, 64 devices
mixtral.megatron 8 32 tp=2,pp=4,vpp=4,ep=8,etp=1,dp=8,zero=1,sp,mbs=1,overlap,packs,wgrad-overlap of 256, 64 devices
uneven.megatron 8 32 tp=8,pp=4,layers=7:8:8:9,cp=2,dp=4,zero=1,shard=4,sp,recompute=full,mbs=1,packs,wgrad-overlap of 64, 256 devices
unknown.megatron 8 32 refused: --tensor-model-parallel-size: nothing in the text gives $TP a value
llama3.torchtitan 8 80 tp=8,dp=32,zero=3,sp,recompute=full,mbs=4,overlap,packs,stops-early of 128, 256 devices
run.torchtitan 1 32 tp=2,dp=4,zero=3,sp,recompute=full,mbs=2,overlap,packs,stops-early of 8, 8 devices
moe.torchtitan 8 27 tp=2,ep=8,etp=1,dp=32,zero=2,shard=16,sp,mbs=1,overlap,packs of 32, 64 devices
pipeline.torchtitan 8 32 tp=2,pp=4,vpp=2,layers=4:5:4:4:4:4:4:3,dp=4,zero=1,shard=2,recompute=operators,mbs=1,packs of 32, 32 devices
tokens.torchtitan-main 8 64 pp=2,dp=32,zero=1,recompute=operators,mbs=2,packs of 1024, 64 devices
zero3.deepspeed 64 32 dp=64,zero=3,mbs=2,overlap of 512, 64 devices
pipeline.deepspeed 64 32 pp=8,dp=8,zero=1,recompute=full,mbs=1,packs,keeps-gradients,waits of 512, 64 devices
moe.deepspeed 64 32 tp=2,ep=8,etp=1,dp=32,zero=2,mbs=8,overlap,packs of 512, 64 devices
script.deepspeed 64 32 dp=16,zero=1,mbs=4,overlap,packs,keeps-gradients of 64, 16 devices
huggingface.deepspeed 64 32 refused: train_batch_size: "auto" is for a launcher to fill in: give the number
defaults.megatron 8 24 tp=2,pp=2,dp=2,sp,mbs=1,packs,wgrad-overlap of 32, 8 devices
people.megatron 8 24 tp=2,pp=2,dp=2,sp,recompute=full,mbs=1,packs,wgrad-overlap of 2, 8 devices
END
}

@test "trainers: words and flags that no line says are refused by their names" {
    local trainer args why
    while IFS='|' read -r trainer args why; do
        run "$AP_BUILD/unit/test_trainer" --read "$trainer" 8 32 <(echo "$args")
        [[ ${output##*$'\n'} == "refused: "*"$why"* ]] || { echo "$trainer $args: $output"; return 1; }
    done <<'END'
torchtitan|--training.dtype float16|'float16' is not one of float32, bfloat16
torchtitan|--training.mixed_precision_param float16|'float16' is not one of bfloat16, float32
torchtitan|--optimizer.implementation fast|'fast' is not one of fused,
torchtitan|--activation_checkpoint.mode partial|'partial' is not one of selective, none, full
torchtitan|--parallelism.enable_sequence_parallel maybe|expected True or False, got 'maybe'
torchtitan|--parallelism.spmd_backend full_dtensor|--parallelism.spmd-backend: it is not read
torchtitan-main|--training.seq_len 8192|a name of torchtitan 0.3: --from torchtitan
deepspeed|{"train_batch_size": 8, "data_types": {"grad_accum_dtype": "bf16"}}|sums of gradients in fp32 are read
deepspeed|{"train_batch_size": 8, "communication_data_type": "fp16"}|communication_data_type: no line says it
deepspeed|{"train_batch_size": 8, "optimizer": {"type": "OneBitAdam"}}|optimizer.type OneBitAdam: no line
deepspeed|{"train_batch_size": 8, "bf16": {"enabled": true}, "fp16": {"enabled": true}}|bf16 and fp16: one is expected
deepspeed|{"train_batch_size": 16, "gradient_accumulation_steps": 3}|by gradient_accumulation_steps 3 x the 8 replicas
megatron|if [ "$X" ]; then TP=2; fi; torchrun a.py --micro-batch-size 1 --tensor-model-parallel-size $TP|$TP depends on a condition
megatron|A="--save $1 --num-layers $2"; torchrun a.py --micro-batch-size 1 $A|--num-layers: nothing in the text gives $2 a value
megatron|A=(--bf16); [ -n "$X" ] && A+=(--swiglu); torchrun a.py --micro-batch-size 1 ${A[@]}|--swiglu: $A depends on a condition
megatron|--micro-batch-size 1 --num-experts 8 --num-layers 4 --moe-layer-freq [0]*1+[1]*4|layers of several kinds
megatron|torchrun a.py --micro-batch-size $((0-(0-9223372036854775807-1)))|--micro-batch-size: nothing in the text gives $((
megatron|TP=28; torchrun a.py --micro-batch-size 1 --tensor-model-parallel-size ${TP:0:1}|nothing in the text gives $TP a value
megatron|--micro-batch-size 1 --vocab-size 8 --make-vocab-size-divisible-by 0|--make-vocab-size-divisible-by: expected a number from 1 on
megatron|--micro-batch-size 1 --use-torch-fsdp2|--use-torch-fsdp2: not with
megatron|--micro-batch-size 1 --bf16 --fp16|--bf16 and --fp16: one is expected
megatron|--micro-batch-size 1 --overlap-param-gather|it is beside --overlap-grad-reduce
megatron|--micro-batch-size 1 --recompute-granularity selective --recompute-method uniform|they are of --recompute-granularity full
megatron|--micro-batch-size 1 --recompute-granularity selective --recompute-modules mlp moe|--recompute-modules moe: a line says
megatron|--micro-batch-size 1 --fp8-format foo|'foo' is not one of e4m3, hybrid
megatron|--micro-batch-size 1 --moe-layer-freq 2|layers of several kinds
megatron|--micro-batch-size 1 --use-precision-aware-optimizer --exp-avg-dtype fp9|--exp-avg-dtype: 'fp9' is not one of fp32
megatron|--micro-batch-size 1 --use-precision-aware-optimizer --main-params-dtype fp16|all but moments is in fp32
megatron|--micro-batch-size 1 --optimizer muon|another optimizer than adam or sgd
megatron|--micro-batch-size 1 --context-parallel-size 512|512 devices, do not divide the 8
megatron|--micro-batch-size 1 --context-parallel-size 2 --cp-comm-type p2p all_gather|--cp-comm-type p2p ...: p2p, all_gather,
megatron|--micro-batch-size 1 --context-parallel-size 8 --cp-comm-type a2a+p2p|two numbers are expected
megatron|--micro-batch-size 1 --seq-length 8 --encoder-seq-length 8|one is expected
megatron|--micro-batch-size 1 --tensor_model_parallel_size 2|not known; is it --tensor-model-parallel-size?
megatron|--micro-batch-size 1 --use-distributed-optimiser|not known; is it --use-distributed-optimizer?
END
}

@test "trainers: what no line says of a price is passed over with a word" {
    run "$AP_BUILD/unit/test_trainer" --read megatron 8 32 <(echo '--micro-batch-size 1 --attention-backend unfused
        --transformer-impl=local --optimizer sgd --encoder-seq-length 8 --pipeline-model-parallel-size 4 --lr 1
        --decoder-first-pipeline-num-layers 0 --decoder-last-pipeline-num-layers 2 --attention-backend auto
        --microbatch-group-size-per-virtual-pipeline-stage 4')
    diff - <(echo "$output") <<'END'
note: --attention-backend: not priced
note: --transformer-impl: not priced
note: --optimizer: the model's optimizer is priced
pp=4,layers=0:15:15:2,dp=2,mbs=1,packs of 2, 8 devices
END
}

@test "trainers: a plan that is no line of theirs is refused, with what makes one" {
    cd "$BATS_FILE_TMPDIR" || return 1
    ap-stage --quiet --cluster cpu-4 --shard-command 'ap-shard --serve --algorithm tofu' gpt -o free
    refuses 3 "the plan is free, and no line; ap-stage --for megatron" ap-rewrite --to megatron free
    ap-shard --quiet --cluster cpu-4 --mesh 4 --algorithm data gpt -o data
    refuses 3 "the plan is one of ap-shard" ap-rewrite --to deepspeed data
    refuses 3 "keeps-gradients: it does not do so" ap-rewrite --to megatron data.deepspeed.json
    ap-stage --quiet --cluster cpu-4 --grid mbs=2 gpt -o typed
    run -0 --separate-stderr ap-rewrite --to megatron typed
    [[ $output != *predicted* && $stderr == *"by itself it runs dp=4,mbs=2,packs, the plan is dp=4,mbs=2: no price"* ]]
    refuses 3 "shard=4: zero_optimization.stage 3 shards over all 8" \
        ap-stage --grid zero=3,shard=4,mbs=2 --for deepspeed --cluster h100-8 gpt
    refuses 3 "zero=1: FSDP scatters" ap-stage --grid zero=1,mbs=2 --for torchtitan --cluster h100-8 gpt
    # stages that somebody changed since
    jq '.stages.microbatches = 4' uneven.megatron.json >changed
    refuses 3 "the plan is not that of its line pp=2,layers=3:5" ap-rewrite --to megatron changed
}

@test "trainers: models that they have no layers for" {
    ap-model unet --layers 2 --batch 8 | ap-coarsen --blocks 4 >"$BATS_TEST_TMPDIR/unet"
    ap-model t5 --layers 2 --batch 8 --hidden 64 --heads 4 --vocab 128 | ap-coarsen --blocks 4 >"$BATS_TEST_TMPDIR/t5"
    ap-model vit --layers 2 --batch 8 | ap-coarsen --algorithm layers >"$BATS_TEST_TMPDIR/vit"
    ap-model llama --layers 2 --hidden 64 --ffn 64 --batch 8 --seq 16 --vocab 128 --optimizer muon | ap-coarsen --blocks 4 >"$BATS_TEST_TMPDIR/muon"
    while IFS='|' read -r model trainer line why; do
        refuses 3 "$why" ap-stage --quiet --for "$trainer" --grid "$line" --cluster cpu-4 "$BATS_TEST_TMPDIR/$model"
    done <<'END'
unet|megatron|mbs=1|it has no such model: without attention
unet|deepspeed|tp=2|autotp_size 2: it splits transformers alone
t5|torchtitan|mbs=1|it has no such model: with layers of several kinds
vit|torchtitan|mbs=1|it has no such model: without a table of tokens
muon|megatron|zero=1|the optimizer multiplies matrices (muon)
END
    refuses 3 "a reason: Megatron-LM 0.20: the optimizer multiplies matrices" \
        ap-stage --quiet --for megatron --cluster cpu-4 "$BATS_TEST_TMPDIR/muon"
    ap-stage --quiet --for deepspeed --grid zero=1 --cluster cpu-4 "$BATS_TEST_TMPDIR/t5" | ap-rewrite --quiet --to deepspeed |
        jq -e '.zero_optimization.stage == 1'
}
