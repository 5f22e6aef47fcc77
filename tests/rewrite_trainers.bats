#!/usr/bin/env bats
# ap-rewrite --to megatron, torchtitan, deepspeed: plans for trainers.

# shellcheck disable=SC2154 # output and stderr are bats'
load helpers

DIR=$AP_TOP/tests/trainers

setup_file() { "$AP_TOP/tests/trainers/plans" "$BATS_FILE_TMPDIR"; }

# What a trainer should be told of each plan: itself, or the nearest.
told() {
    cat <<'EOF'
data megatron DP 4 · micro-batch 4
data torchtitan DP 4 · micro-batch 4
data deepspeed DP 4 · micro-batch 4
accumulate megatron DP 4 · ZeRO-2 · micro-batch 2
accumulate torchtitan DP 4 · ZeRO-2 · micro-batch 2
accumulate deepspeed DP 4 · ZeRO-2 · micro-batch 2
zero2 megatron DP 4 · ZeRO-2 · micro-batch 4
zero2 torchtitan DP 4 · ZeRO-2 · micro-batch 4
zero2 deepspeed DP 4 · ZeRO-2 · micro-batch 4
zero3 megatron DP 4 · ZeRO-3 · micro-batch 4
zero3 torchtitan DP 4 · ZeRO-3 · micro-batch 4
zero3 deepspeed DP 4 · ZeRO-3 · micro-batch 4
tensor megatron TP 2 · DP 2 · micro-batch 8
tensor torchtitan TP 2 · DP 2 · micro-batch 8
tensor deepspeed TP 2 · DP 2 · micro-batch 8
sequence megatron TP 4 with sequence parallelism · DP 2 · micro-batch 8
sequence torchtitan TP 4 with sequence parallelism · DP 2 · micro-batch 8
sequence deepspeed TP 4 · DP 2 · micro-batch 8
experts megatron DP 4 · EP 2 · micro-batch 4
experts torchtitan DP 4 · EP 2 · ZeRO-2 · micro-batch 4
experts deepspeed DP 4 · EP 2 · micro-batch 4
uneven megatron PP 2 · DP 2 · ZeRO-1 · micro-batch 2 · recompute all layers 3 5
uneven torchtitan PP 2 · DP 2 · ZeRO-1 · micro-batch 2 · recompute all layers 3 5
uneven deepspeed PP 2 · DP 2 · ZeRO-1 · micro-batch 2 · recompute all
interleaved megatron TP 2 · PP 2 × VPP 2 · micro-batch 4
interleaved torchtitan TP 2 · PP 2 × VPP 2 · micro-batch 4 layers 2 2 2 2
interleaved deepspeed PP 2 · DP 2 · micro-batch 2
mixture megatron TP 2 with sequence parallelism · PP 2 · DP 2 · micro-batch 2 layers 5 3
mixture torchtitan TP 2 with sequence parallelism · PP 2 · DP 2 · micro-batch 2 layers 5 3
mixture deepspeed PP 2 · DP 4 · micro-batch 1
EOF
}

# Devices of a plan, from its document.
devices() {
    jq '.sharding.mesh as $m | if .stages then [.stages.stages[].devices[]] | unique | length
        else [range($m.axes | length) | select($m.axes[.] != $m.time) | $m.shape[.]]
            | reduce .[] as $n (1; . * $n) end' "$BATS_FILE_TMPDIR/$1.json"
}

# The arguments in a bash array, one a line; the file of deepspeed.
arguments() {
    if [ "$2" = deepspeed ]; then
        ap-rewrite --quiet --to deepspeed -o "$BATS_TEST_TMPDIR/$1.json" \
            "$BATS_FILE_TMPDIR/$1.json"
        echo "$BATS_TEST_TMPDIR/$1.json"
    else
        bash -c "$(ap-rewrite --quiet --to "$2" "$BATS_FILE_TMPDIR/$1.json")"'
            printf "%s\n" "${PARALLEL_ARGS[@]}"'
    fi
}

# Compares the golden outputs of a trainer.
check_golden() {
    local name
    for name in $(told | awk '{ print $1 }' | uniq); do
        diff <(sed -n "/^== $1/,/^== /p" "$DIR/$name.txt" | grep -v '^==') \
            <(ap-rewrite --quiet --to "$1" "$BATS_FILE_TMPDIR/$name.json") ||
            { echo "$name for $1 (tests/trainers/plans TMP --golden)"; return 1; }
    done
}

@test "trainers: ten plans as they were written before" {
    check_golden megatron
    check_golden torchtitan
    check_golden deepspeed
}

@test "trainers: read back, each is the plan, or the nearest that is said" {
    local name trainer words args
    while read -r name trainer words; do
        mapfile -t args < <(arguments "$name" "$trainer")
        run "$DIR/read.py" "$trainer" "$(devices "$name")" "${args[@]}"
        [ "${output//$'\n'/ }" = "$words" ] ||
            { echo "$name, $trainer: '$output', not '$words'"; return 1; }
        [ "$trainer" = deepspeed ] ||
            ap-rewrite --quiet --to "$trainer" "$BATS_FILE_TMPDIR/$name.json" |
            grep -qF ": ${words%% layers*}" || { echo "$name: no such comment"; return 1; }
    done < <(told)
}

@test "trainers: their own readers accept the files, where they are installed" {
    local python=${AP_TRAINERS_PYTHON:-} name trainer files
    [ -n "$python" ] || skip "AP_TRAINERS_PYTHON: a Python with torchtitan and deepspeed"
    for trainer in torchtitan deepspeed megatron; do
        files=()
        for name in $(told | awk '{ print $1 }' | uniq); do
            files+=("$BATS_TEST_TMPDIR/$name.$trainer-$(devices "$name")")
            ap-rewrite --quiet --to "$trainer" -o "${files[-1]}" "$BATS_FILE_TMPDIR/$name.json"
        done
        run "$python" "$DIR/load.py" $trainer "${files[@]}"
        [ "$status" -ne 77 ] || skip "$trainer is not installed in $python"
        [ "$status" -eq 0 ] || { echo "$trainer: $output"; return 1; }
    done
}

@test "trainers: the plan of given degrees has these degrees" {
    run "$AP_BUILD/unit/test_degrees" "$BATS_FILE_TMPDIR/gpt.model.json" \
        "$BATS_FILE_TMPDIR/moe.model.json"
    [ "$status" -eq 0 ] || { echo "$output" | grep '^not'; return 1; }
}

@test "trainers: facts of models that conditions ask for" {
    ap-model mixtral-8x7b --layers 2 --batch 8 --seq 512 --dtype bf16 |
        ap-fuse --cluster h100-8 -o "$BATS_TEST_TMPDIR/mixtral.json"
    ap-model wav2vec2-base --layers 2 --batch 4 -o "$BATS_TEST_TMPDIR/wav2vec.json" # codebooks are no experts
    ap-model deepseek --layers 5 --hidden 64 --heads 4 --vocab 256 --batch 4 --seq 16 -o "$BATS_TEST_TMPDIR/deepseek.json"
    run "$AP_BUILD/unit/test_trainer" "$BATS_TEST_TMPDIR/mixtral.json" \
        "$BATS_FILE_TMPDIR/gpt.model.json" "$BATS_TEST_TMPDIR/wav2vec.json" "$BATS_TEST_TMPDIR/deepseek.json"
    diff - <(echo "$output") <<'EOF'
heads of 128 and 128, inside 0, 14336 of experts, 0 beside them, gated, 2 layers with experts, RMS norms, rotary, no bias: batch 8 x 512, 2 layers, 32 heads, 8 of keys, 2 of 8 experts, 32000 tokens x 4096, bf16 of bf16, moments bf16
heads of 16 and 16, inside 256, 0 of experts, 0 beside them, GELU, 0 layers with experts, layer norms, learned positions, biases: batch 16 x 16, 4 layers, 4 heads, 4 of keys, 0 of 0 experts, 128 tokens x 64 tied, f32 of f32, moments f32
heads of 64 and 64, inside 3072, 0 of experts, 0 beside them, GELU, 0 layers with experts, biases: batch 4 x 499, 9 layers, 12 heads, 12 of keys, 0 of 0 experts, 0 tokens x 0, f32 of f32, moments f32
heads of 192 and 128, inside 18432, 2048 of experts, 2048 beside them, gated, 2 layers with experts, RMS norms, rotary, no bias: batch 4 x 16, 5 layers, 4 heads, 4 of keys, 16 of 256 experts, 256 tokens x 64, f32 of f32, moments f32
EOF
}

@test "trainers: command lines and files as people write them" {
    cd "$DIR/from" || return 1
    while read -r file devices layers want; do
        run "$AP_BUILD/unit/test_trainer" --read "${file##*.}" "$devices" "$layers" "$file"
        [ "${output##*$'\n'}" = "$want" ] || { echo "$file: '$output', not '$want'"; return 1; }
    done <<'END'
fsdp.megatron 64 32 dp=16,zero=3,mbs=2,overlap,packs of 256, 16 devices
gpt3-175b.megatron 1536 96 tp=8,pp=16,vpp=6,dp=12,recompute=selective,mbs=1,packs,low-sums of 1536, 1536 devices
llama3-8b.megatron 8 32 tp=2,pp=2,dp=16,zero=1,sp,mbs=1,overlap,packs,low-sums of 128, 64 devices
mixtral.megatron 8 32 tp=2,pp=4,vpp=4,ep=8,etp=1,dp=8,zero=1,sp,mbs=1,overlap,packs of 256, 64 devices
uneven.megatron 8 32 tp=8,pp=4,layers=7:8:8:9,cp=2,dp=4,zero=1,shard=4,sp,recompute=full,mbs=1,packs of 64, 256 devices
unknown.megatron 8 32 refused: --tensor-model-parallel-size: nothing in the text gives $TP a value
llama3.torchtitan 8 80 tp=8,dp=32,zero=3,sp,recompute=full,mbs=4,overlap,packs of 128, 256 devices
run.torchtitan 1 32 tp=2,dp=4,zero=3,sp,recompute=full,mbs=2,overlap,packs of 8, 8 devices
moe.torchtitan 8 27 tp=2,ep=8,etp=1,dp=32,zero=2,shard=16,sp,mbs=1,overlap,packs of 32, 64 devices
pipeline.torchtitan 8 32 tp=2,pp=4,vpp=2,layers=4:5:4:4:4:4:4:3,dp=4,zero=1,shard=2,recompute=operators,mbs=1,packs of 32, 32 devices
tokens.torchtitan-main 8 64 pp=2,dp=32,zero=1,recompute=operators,mbs=2,packs of 1024, 64 devices
zero3.deepspeed 64 32 dp=64,zero=3,mbs=2,overlap of 512, 64 devices
pipeline.deepspeed 64 32 pp=8,dp=8,zero=1,recompute=full,mbs=1,packs,keeps-gradients,waits of 512, 64 devices
moe.deepspeed 64 32 tp=2,ep=8,etp=1,dp=32,zero=2,mbs=8,overlap,packs of 512, 64 devices
huggingface.deepspeed 64 32 refused: train_batch_size: "auto" is for a launcher to fill in: give the number
people.megatron 8 24 tp=2,pp=2,dp=2,sp,recompute=full,mbs=1,packs of 2, 8 devices
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
megatron|--micro-batch-size 1 --use-torch-fsdp2|--use-torch-fsdp2: not with
megatron|--micro-batch-size 1 --bf16 --fp16|--bf16 and --fp16: one is expected
megatron|--micro-batch-size 1 --overlap-param-gather|it is beside --overlap-grad-reduce
megatron|--micro-batch-size 1 --recompute-granularity selective --recompute-method uniform|they are of --recompute-granularity full
megatron|--micro-batch-size 1 --recompute-granularity selective --recompute-modules mlp moe|--recompute-modules moe: a line says
megatron|--micro-batch-size 1 --fp8-format foo|'foo' is not one of e4m3, hybrid
megatron|--micro-batch-size 1 --moe-layer-freq 2|layers of several kinds
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

@test "trainers: a plan that is theirs is written without a word" {
    for name in data zero2 zero3 tensor; do # sequence: its table's gradient is reduced as ap-shard likes
        run --separate-stderr ap-rewrite --to megatron "$BATS_FILE_TMPDIR/$name.json"
        [ "$status" -eq 0 ] && [ -z "$stderr" ] || { echo "$name: $stderr"; return 1; }
        [[ $output != *nearest* && $output != *'of the plan'* ]]
    done
}

@test "trainers: what differs is said, with its price, and in the comment" {
    run --separate-stderr ap-rewrite --to deepspeed "$BATS_FILE_TMPDIR/sequence.json"
    [[ $stderr == *"DeepSpeed 0.19 cannot express the plan; nearest: TP 4 · DP 2"*"of the plan: step"* ]]
    [[ $stderr == *"without sequence parallelism"* ]]
    jq -e .tensor_parallel.autotp_size <<<"$output"
    run --separate-stderr ap-rewrite --to megatron "$BATS_FILE_TMPDIR/mixture.json"
    [[ $stderr == *"the schedule is 1f1b instead"* ]]
    [[ $output == *"# nearest to the plan:"*"in the plan stage 1 is DP 4"* ]]
}

@test "trainers: selected recomputation becomes what they select, or whole layers" {
    local doc=$BATS_TEST_TMPDIR/selected.json
    # the softmax of attention in all layers: what Megatron selects
    jq -c '.graph.nodes as $n | .blocks.block_of as $block | .stages.stages |= map(
        .blocks as $own | .recompute = "selected"
        | .recomputed = [range($n | length) as $i | select($n[$i].op == "exponential"
            and ($n[$i].scope | test("attn")) and ($own | index($block[$i]))) | $i])' \
        "$BATS_FILE_TMPDIR/uneven.json" >"$doc"
    run --separate-stderr ap-rewrite --to megatron "$doc"
    [[ $output == *"--recompute-granularity selective"*"core_attn"* ]] ||
        { echo "$output $stderr"; return 1; }
    [[ $stderr == *"not chosen one by one"* ]]
    run --separate-stderr ap-rewrite --to deepspeed "$doc"
    [[ $stderr == *"layers are recomputed whole or not at all: all are"* ]]
    [ "$(jq .pipeline.activation_checkpoint_interval <<<"$output")" = 1 ]
}

@test "trainers: layers that no stage has whole go where most of them is" {
    ap-coarsen --blocks 7 --eps 1 "$BATS_FILE_TMPDIR/deep.model.json" |
        ap-stage --quiet --cluster cpu-8 --stages 2 --submeshes 1x2 --microbatches 2 \
            --shard-command 'ap-shard --serve --algorithm data' \
            -o "$BATS_TEST_TMPDIR/cut.json"
    run --separate-stderr ap-rewrite --to megatron "$BATS_TEST_TMPDIR/cut.json"
    [ "$status" -eq 0 ]
    [[ $output == *"--pipeline-model-parallel-size 2"* ]]
}

@test "trainers: stages on different numbers of devices become sets of one size" {
    jq -c '.stages.stages = [
        {blocks: [0, 1, 2, 3], devices: [0, 1, 2, 3], sharding: {algorithm: "data", mesh: "4"}},
        {blocks: [4, 5], devices: [4, 5], sharding: {algorithm: "data", mesh: "2"}},
        {blocks: [6, 7], devices: [6, 7], sharding: {algorithm: "data", mesh: "2"}}]' \
        "$BATS_FILE_TMPDIR/uneven.json" >"$BATS_TEST_TMPDIR/sets.json"
    run --separate-stderr ap-rewrite --to megatron "$BATS_TEST_TMPDIR/sets.json"
    [[ $stderr == *"stages have different numbers of devices: 2 sets of 4 instead"* ]]
    [[ $output == *": PP 2 · DP 4 · micro-batch 1"*"--pipeline-model-parallel-size 2"* ]]
}

@test "trainers: where the nearest plan does not fit, it says who finds one that does" {
    local doc=$BATS_TEST_TMPDIR/small.json
    # PipelineModule has no tensor parallelism: data parallel stages take more memory
    jq -c --slurpfile c "$CLUSTERS/a100-8.json" '. + {cluster: ($c[0] | .memory_bytes = 5500000)}
        | .stages.stages |= map(.sharding = {algorithm: "megatron-sp", mesh: "tp=2"}
            | .recompute = "none")' "$BATS_FILE_TMPDIR/uneven.json" >"$doc"
    run --separate-stderr ap-rewrite --to deepspeed "$doc"
    [[ $stderr == *"it does not fit the 5.245 MiB of a device; ap-plan --for deepspeed finds"* ]] || { echo "$stderr"; return 1; }
}

@test "trainers: what has no near plan is refused" {
    ap-import --no-history "$(hlo mlp_fwd)" | ap-shard --quiet --no-history --mesh 2 \
        --algorithm data -o "$BATS_TEST_TMPDIR/fwd.json"
    run ap-rewrite --quiet --to megatron "$BATS_TEST_TMPDIR/fwd.json"
    [ "$status" -eq 0 ]
    jq -c '.stages.schedule = "inference"' "$BATS_FILE_TMPDIR/uneven.json" \
        >"$BATS_TEST_TMPDIR/inference.json"
    refuses 2 "inference" ap-rewrite --to megatron "$BATS_TEST_TMPDIR/inference.json"
    ap-import --no-history "$(hlo t5)" | ap-coarsen --no-history --blocks 4 --eps 1 |
        jq -c '. + {stages: {microbatches: 2, stages: [
            {blocks: [0, 1], devices: [0], sharding: {algorithm: "data", mesh: "1"}},
            {blocks: [2, 3], devices: [1], sharding: {algorithm: "data", mesh: "1"}}]}}' \
        >"$BATS_TEST_TMPDIR/t5.json"
    refuses 2 "layers of" ap-rewrite --to megatron "$BATS_TEST_TMPDIR/t5.json"
}
