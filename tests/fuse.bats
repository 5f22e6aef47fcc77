#!/usr/bin/env bats
# ap-fuse: attentions as one operator each: which are found, that the numbers stay, what it
# is worth.

load helpers

# A model's step with its attentions fused.
fused() {
    local f=$BATS_FILE_TMPDIR/$1.fused.json
    [ -s "$f" ] || ap-fuse --quiet --no-history -o "$f" "$(imported "$1")" || return
    echo "$f"
}

# counts DOCUMENT: fused groups of both passes, copies, softmaxes that stay
counts() {
    ap-fuse --quiet --stats "$1" 2>&1 >/dev/null | jq -c '[.forward, .backward, .copies, .plain]'
}

@test "ap-fuse: attentions of JAX's, PyTorch's and ap-model's steps are found" {
    [ "$(counts "$(imported gpt2l)")" = '[2,2,16,0]' ]
    [ "$(counts "$(imported bert)")" = '[2,2,14,0]' ]
    [ "$(counts "$(imported gpt2l_bf16)")" = '[2,2,20,0]' ]
    # recomputed layers run their forward pass twice
    [ "$(counts "$(imported scan_gpt)")" = '[4,2,20,0]' ]
    # the bias of T5's own attention is learned: its gradient reads the scores
    [ "$(counts "$(imported t5)")" = '[2,2,12,2]' ]
    [ "$(counts "$(imported mlp)")" = '[0,0,0,0]' ]
    ap-import --quiet "$MODELS/torch_gpt/model.hlo" | ap-grad >"$BATS_TEST_TMPDIR/torch.json"
    [ "$(counts "$BATS_TEST_TMPDIR/torch.json")" = '[2,2,16,0]' ]
    local m
    for m in gpt llama mixtral deepseek gemma qwen bert; do
        ap-model $m --layers 2 --hidden 64 --heads 4 --kv-heads 4 --seq 16 --batch 2 --vocab 64 \
            >"$BATS_TEST_TMPDIR/m.json" 2>/dev/null || ap-model $m >"$BATS_TEST_TMPDIR/m.json"
        counts "$BATS_TEST_TMPDIR/m.json" | jq -e '.[0] > 0 and .[0] == .[1] and .[3] == 0'
    done
}

@test "ap-fuse: what stays plain is said; a second time changes nothing" {
    run --separate-stderr -0 ap-fuse "$(imported t5)"
    [[ $stderr == *'2 softmax(es) between contractions stay as they are'* ]]
    ap-fuse --quiet --no-history "$(fused gpt2l)" | cmp - "$(fused gpt2l)"
}

@test "ap-fuse --cluster: only where the devices have kernels" {
    local f
    f=$(imported gpt2l)
    ap-fuse --cluster p3x8 --no-history "$f" | cmp - "$f"
    ap-fuse --cluster h100x2 --no-history "$f" | cmp - "$(fused gpt2l)"
    jq '.attention = "fused"' clusters/cpu-4.json >"$BATS_TEST_TMPDIR/c.json"
    ap-fuse --cluster "$BATS_TEST_TMPDIR/c.json" --no-history "$f" | cmp - "$(fused gpt2l)"
    jq '.attention = "some"' clusters/cpu-4.json >"$BATS_TEST_TMPDIR/c.json"
    refuses 1 "/attention: expected fused or plain" ap-fuse --cluster "$BATS_TEST_TMPDIR/c.json" "$f"
}

@test "ap-fuse: documents with what was computed of the graph are refused" {
    ap-prune "$(imported gpt2l)" >"$BATS_TEST_TMPDIR/families.json"
    refuses 2 'section "families" refers to the graph before the change' ap-fuse "$BATS_TEST_TMPDIR/families.json"
    ap-shard --mesh 2 "$(imported mlp)" | ap-rewrite >"$BATS_TEST_TMPDIR/program.json"
    refuses 2 'section "sharding" refers to the graph before the change' ap-fuse "$BATS_TEST_TMPDIR/program.json"
    refuses 1 "the input is empty" ap-fuse /dev/null
    refuses 1 "/attention" ap-shard --mesh 2 <(jq '.graph.nodes[5].attention = "x"' "$(imported mlp)")
}

@test "ap-fuse: a fused attention is split as a whole, and the numbers are those of one device" {
    local m a mesh
    for m in gpt2l bert t5 scan_gpt; do
        for a in data zero3 megatron; do
            mesh=$([ $a = zero3 ] && echo 4 || echo 2x2)
            ap-shard --quiet --mesh $mesh --algorithm $a "$(fused $m)" |
                ap-rewrite --quiet >"$BATS_TEST_TMPDIR/p.json"
            same_numbers $m "$BATS_TEST_TMPDIR/p.json"
        done
    done
    # batch, heads and rows of queries are split somewhere
    ap-shard --quiet --mesh 2x2 --algorithm megatron "$(fused gpt2l)" | jq -e '
        [.graph.nodes as $n | .sharding.groups | to_entries[] | select(.key as $g |
            any($n[]; .group == $g and .attention == 1)) | .value.choice | add] | any(. >= 0)'
}

# same_numbers MODEL PROGRAM: losses as those of the step as it was written, all results as on
# one rank
same_numbers() {
    local plain=$BATS_FILE_TMPDIR/$1.losses
    [ -s "$plain" ] || ap-shard --quiet --mesh 1 "$(imported "$1")" | ap-rewrite --quiet |
        ap-exec --data "$MODELS/$1/in" --steps 3 --json | jq .losses >"$plain"
    ap-exec -n 4 --data "$MODELS/$1/in" --steps 3 --verify --json "$2" |
        jq -e --slurpfile plain "$plain" '[.losses, $plain[0]] | transpose |
            length == 3 and all(.[0] / .[1] - 1 | fabs < 1e-6)'
}

# ringed DOCUMENT OPTION...: its program with queries split and communication that costs
# nothing to start, so that keys and values go round
ringed() {
    local doc=$1 c=$BATS_FILE_TMPDIR/ring.json name pins=()
    shift
    [ -s "$c" ] || jq '.attention = "fused" | .launch_sec = 0 | .levels[].latency_sec = 0' clusters/cpu-4.json >"$c"
    while read -r name; do pins+=(--pin "$name=$pin"); done < <(
        jq -r '.graph.nodes[] | select(.attention == 1) | .name' "$doc")
    ap-shard --quiet --cluster "$c" "${pins[@]}" "$@" "$doc" >"$BATS_TEST_TMPDIR/ring.json"
    ap-rewrite --quiet "$BATS_TEST_TMPDIR/ring.json"
}

# steps DOCUMENT: permutes along one axis
steps() { jq '[.program.modules[0].graph.nodes[] | select(.op == "collective-permute" and (.axes | length) == 1)] | length' "$1"; }

@test "ap-fuse: keys and values go round a ring, and the numbers stay" {
    local p=$BATS_TEST_TMPDIR/p.json
    pin=S0,S2 ringed "$(fused gpt2l)" --mesh 2x2 >"$p"
    # forward of each layer: k, v; backward: k, v and their gradients, and k once more
    [ "$(steps "$p")" -eq $((2 * (2 + 5))) ]
    same_numbers gpt2l "$p"
    pin=S2 ringed "$(fused bert)" --mesh 4 >"$p"
    [ "$(steps "$p")" -eq $((2 * 3 * (2 + 5))) ]
    same_numbers bert "$p"
    # grouped queries, a window, a gradient of what all scores share
    ap-model t5 --layers 1 --seq 32 --batch 1 --vocab 64 --heads 2 --hidden 32 --ffn 64 | ap-fuse --quiet >"$BATS_TEST_TMPDIR/t5.json"
    pin=S2 ringed "$BATS_TEST_TMPDIR/t5.json" --mesh 4 >"$p"
    [ "$(steps "$p")" -eq $((3 * 3 * (2 + 5))) ]
    ap-exec -n 4 --steps 1 --verify --json "$p" | jq -e '.verify.loss_error < 1e-5 and .verify.params_error < 1e-5'
}

@test "ap-fuse --stripes: devices have parts of all of a causal sequence, gathered or in a ring" {
    local d=$BATS_TEST_TMPDIR n p=$BATS_TEST_TMPDIR/p.json
    # four stripes on eight devices: 1/2 + 7/64 of all pairs in place of 15/16
    ap-model gpt --layers 1 --hidden 1024 --heads 2 --seq 131072 --batch 1 --vocab 512 --dtype bf16 >"$d/gpt.json"
    for n in 1 4; do
        ap-fuse --stripes $n "$d/gpt.json" | ap-shard --quiet --mesh 8 --cluster h100-8 | ap-cost >"$d/$n.json"
        ap-cost --report "$d/$n.json" | grep -q '^CP 8 '
    done
    jq -s -e 'map(.sharding.objective_sec) | .[1] < 0.75 * .[0]' "$d/1.json" "$d/4.json"
    ap-model llama --kv-heads 2 --heads 4 --hidden 32 --ffn 64 --layers 1 --seq 64 --batch 1 --vocab 64 >"$d/llama.json"
    ap-fuse --stripes 2 --stats "$d/llama.json" 2>&1 >"$d/striped.json" | jq -e '.striped == 2'
    pin=S2/32 ringed "$d/striped.json" --mesh 4 >"$p"
    [ "$(steps "$p")" -eq $((3 * (2 + 5))) ]
    ap-exec -n 4 --steps 1 --verify --json "$p" | jq -e '.verify.loss_error < 1e-6 and .verify.params_error < 1e-6'
    run --separate-stderr -0 ap-fuse --stripes 3 "$d/llama.json"
    [[ $stderr == *'2 of 2 fused groups are not in stripes'*' 3 does not divide their sequences'* ]]
    refuses 2 "--stripes" ap-fuse --stripes 0 "$d/llama.json"
}

@test "ap-fuse --fp8: layers' contractions read fp8, the head and attentions do not" {
    local d=$BATS_TEST_TMPDIR
    ap-model llama --layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 128 --vocab 96 --seq 16 --batch 4 --dtype bf16 \
        --master-weights --cast-weights >"$d/llama.json"
    # q, k, v, o and three of the feed-forward part: forward, and the gradients of both operands
    ap-fuse --fp8 --stats "$d/llama.json" 2>&1 >"$d/fp8.json" | jq -e '.fp8 == 2 * 7 * 3 and .forward == 2'
    jq -e '.graph.nodes as $n | [$n[] | select(.op == "dot") | [., $n[.in[]]] | map(.shape | sub("\\[.*"; "")) | [.[0], (.[1:] | sort)]] |
        all(.[0] == "bf16") and
        (map(select(.[1] == ["f8e4m3fn", "f8e4m3fn"])) | length) == 14 and
        (map(select(.[1] == ["f8e4m3fn", "f8e5m2"])) | length) == 28 and
        (map(select(.[1] == ["bf16", "bf16"])) | length) > 3' "$d/fp8.json"
    # the products take half as long, the rest and the casts do not
    ap-model llama --layers 2 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --vocab 4096 --seq 4096 --batch 4 --dtype bf16 \
        --master-weights --cast-weights | tee >(ap-fuse --fp8 >"$d/large8.json") | ap-fuse >"$d/large.json"
    sec() { ap-shard --quiet --mesh 1 --cluster dgx-h100 --algorithm data "$d/$1.json" | ap-cost --quiet | jq .cost.step_sec; }
    jq -n -e "($(sec large8) / $(sec large)) | . > 0.55 and . < 0.8"
    loss() { ap-rewrite "$1" | ap-exec --seed 1 --int-range 16 --steps 1 --json --quiet | jq '.losses[0]'; }
    jq -n -e "($(loss "$d/fp8.json") / $(loss "$d/llama.json") - 1) | fabs | . > 0 and . < 0.02"
    refuses 1 "--fp8: no layer has a contraction of a weight in 16 bits" ap-fuse --fp8 "$(imported mlp)"
}

@test "ap-fuse: a ring is cheaper than a gather, and takes less memory" {
    local doc=$BATS_TEST_TMPDIR/gpt.json
    ap-model gpt --layers 1 --hidden 1024 --heads 4 --seq 131072 --batch 1 --vocab 512 --dtype bf16 | ap-fuse --quiet >"$doc"
    ap-shard --quiet --mesh 8 --cluster h100-8 "$doc" >"$BATS_TEST_TMPDIR/ring.json"
    # the same without scores: no ring
    jq 'del(.graph.nodes[].scores)' "$doc" | ap-shard --quiet --mesh 8 --cluster h100-8 >"$BATS_TEST_TMPDIR/gather.json"
    jq -s '.[].sharding | .peak_bytes' "$BATS_TEST_TMPDIR/ring.json" "$BATS_TEST_TMPDIR/gather.json" | jq -s -e '.[0] < .[1]'
    # all keys of the sequence travel n - 1 times, behind the compute of a round
    [ "$(ap-rewrite --quiet "$BATS_TEST_TMPDIR/ring.json" | tee "$BATS_TEST_TMPDIR/p.json" | wc -c)" -gt 0 ]
    [ "$(steps "$BATS_TEST_TMPDIR/p.json")" -eq $((7 * (2 + 5))) ]
    ap-cost --report <(ap-cost "$BATS_TEST_TMPDIR/ring.json") | grep -q '^CP 8 '
    refuses 1 "scores: expected 0, 1 or 2" ap-shard --mesh 2 <(jq '(.graph.nodes[] | select(.scores)).scores = [3, 1, 2]' "$doc")
    refuses 1 "is not a dimension of a tensor of 4" ap-shard --mesh 2 <(jq '(.graph.nodes[] | select(.scores)).scores = [0, 1, 7]' "$doc")
    refuses 1 "collective-permute needs one or more mesh axes" ap-exec <(jq -c '(.program.modules[0].graph.nodes[] |
        select(.op == "collective-permute")).axes = []' "$BATS_TEST_TMPDIR/p.json")
}

@test "ap-fuse: pipelines of fused blocks compute the same" {
    ap-prune "$(fused gpt2l)" | ap-coarsen --blocks auto |
        ap-stage --quiet --cluster cpu-4 --stages 2 --microbatches 4 --schedule 1f1b |
        ap-rewrite >"$BATS_TEST_TMPDIR/p.json"
    same_numbers gpt2l "$BATS_TEST_TMPDIR/p.json"
}

@test "ap-fuse: scores take no memory and no traffic" {
    local how
    ap-model gpt --layers 2 --seq 8192 --batch 8 --no-history >"$BATS_TEST_TMPDIR/gpt.json"
    for how in cat ap-fuse; do
        $how "$BATS_TEST_TMPDIR/gpt.json" | ap-shard --mesh 8 --cluster h100-8 |
            jq '.sharding | .objective_sec, .peak_bytes'
    done | jq -s -e '.[2] < 0.9 * .[0] and .[3] < 0.3 * .[1]'
}

@test "ap-plan --attention: by the cluster, or as asked" {
    local -a small=(gpt --batch 8 --seq 32 --blocks 2)
    run -0 --separate-stderr ap-plan "${small[@]}" --cluster h100-8
    [[ $stderr == *'ap-fuse --cluster h100-8 --kernels |'* ]]
    run -0 --separate-stderr ap-plan "${small[@]}" --cluster p3x1 --attention fused
    [[ $stderr == *'ap-fuse --kernels |'* ]]
    run -0 --separate-stderr ap-plan "${small[@]}" --cluster h100-8 --attention plain
    [[ $stderr == *'ap-fuse --cluster h100-8 --attention plain --kernels |'* ]]
    refuses 2 "--attention: 'some' is not one of fused, plain" ap-plan "${small[@]}" --cluster h100-8 --attention some
}

# A GPU's program has one kernel where a CPU's has several groups, of the same plan.
@test "ap-fuse --kernels: groups that are one kernel each, and not a bit changes" {
    local m dir=$BATS_TEST_TMPDIR mesh
    for m in resnet gpt2l_bf16; do
        mesh=$([ $m = resnet ] && echo 1 || echo 2x2)
        # attentions that pass their rows on round otherwise
        ap-fuse --quiet --kernels --attention plain "$(imported $m)" | ap-shard --quiet --mesh $mesh --cluster h100-8 -o "$dir/gpu.json"
        jq '.cluster.attention = "plain"' "$dir/gpu.json" >"$dir/cpu.json"
        for to in cpu gpu; do
            ap-rewrite --quiet "$dir/$to.json" >"$dir/$to.program.json"
            ap-exec -n $((${mesh/x/*})) --quiet --data "$MODELS/$m/in" --steps 2 --out "$dir/$to.$m" "$dir/$to.program.json"
        done
        diff -r "$dir/cpu.$m" "$dir/gpu.$m"
        [ "$(groups "$dir/gpu.program.json")" -lt $(($(groups "$dir/cpu.program.json") * 9 / 10)) ]
    done
    # a layer norm, with both of its sums
    jq -e '[.program.modules[0].graph.nodes | group_by(.group)[] | map(.op)] |
           any((indices("reduce") | length == 2) and index("rsqrt"))' \
        "$dir/gpu.program.json"
}

# groups PROGRAM: how many there are that compute
groups() {
    jq '[.program.modules[0].graph.nodes | group_by(.group)[] |
         select(any(.op != "parameter" and .op != "constant"))] | length' "$1"
}

@test "fuse: a pipe without ap-fuse or ap-prune is told so where it matters" {
    local d=$BATS_TEST_TMPDIR gpt=(gpt --hidden 256 --heads 4 --vocab 512 --batch 8 --seq 128)
    shard() { ap-shard --mesh 8 --cluster "$1" "${@:2}" -o /dev/null; }
    ap-model "${gpt[@]}" --layers 2 >"$d/few.json"
    ap-model "${gpt[@]}" --layers 24 | ap-fuse >"$d/many.json"
    run -0 --separate-stderr shard h100-8 --algorithm data "$d/few.json"
    [ "$stderr" = "ap-shard: warning: the devices of h100-8 run attention as one kernel, and the graph's is not fused: add 'ap-fuse' to the pipe, before ap-prune" ]
    run -0 --separate-stderr ap-stage --cluster h100-8 --grid dp=8 -o /dev/null <(ap-coarsen --algorithm layers "$d/few.json")
    [[ $stderr == "ap-stage: warning: the devices of h100-8 "*ap-fuse* && ${#stderr_lines[@]} -eq 1 ]]
    # silent: asked to be, devices without such kernels, fused, too small to matter
    [ -z "$(shard h100-8 --quiet "$d/few.json" 2>&1)" ]
    [ -z "$(shard p3x1 --algorithm data "$d/few.json" 2>&1)" ]
    [ -z "$(ap-fuse "$d/few.json" | shard h100-8 --algorithm data 2>&1)" ]
    [ -z "$(ap-model "${gpt[@]}" --layers 2 --seq 64 | shard h100-8 --algorithm data 2>&1)" ]
    # equal layers: a search only, and one that may fold them
    run -0 --separate-stderr shard h100-8 "$d/many.json"
    [ "$stderr" = "ap-shard: warning: the graph repeats its layers and has no families: add 'ap-prune' to the pipe, and the search takes equal layers as one" ]
    [ -z "$(shard h100-8 --algorithm data "$d/many.json" 2>&1)" ]
    [ -z "$(ap-prune "$d/many.json" | shard h100-8 2>&1)" ]
}
