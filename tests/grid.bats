#!/usr/bin/env bats
# Plans written as one line, the kernels between contractions, and measured steps of others.

load helpers

# A small GPT in blocks of layers: small OPTION...
small() {
    ap-model gpt --layers 4 --hidden 32 --heads 4 --vocab 64 --seq 8 --batch 8 "$@" |
        ap-coarsen --quiet --algorithm layers
}

# As many hosts of four A100s, links by the formulas; one A100.
cluster() {
    local f=$BATS_FILE_TMPDIR/$1.json
    jq --argjson n "$1" 'del(.collectives) | .levels[1].size = $n | .levels[0].size = 4' clusters/dgx-a100.json >"$f"
    echo "$f"
}

one() {
    jq 'del(.levels[1]) | .levels[0].size = 1' clusters/dgx-a100.json >"$BATS_FILE_TMPDIR/one.json"
    echo "$BATS_FILE_TMPDIR/one.json"
}

@test "ap-stage --grid: a line of keys, each said once" {
    local f=$BATS_TEST_TMPDIR/m.json line
    small >"$f"
    while read -r line why; do
        refuses 2 "--grid: $why" ap-stage --grid "$line" --cluster cpu-4 "$f"
    done <<'END'
tp=2,tp=2 tp is given twice
tp=2,xp=2 'xp' is not one of tp, pp, vpp
tp=2,sp=1 sp: takes no value, leave out '=1'
tp 'tp': expected KEY=VALUE, sp, ring, overlap or a trait of trainers
tp=0 tp: expected a number from 1 to
recompute=some recompute: 'some' is not one of none, selective, operators, full
vpp=2 vpp=2: there is no pipeline (pp)
ring,tp=2 ring: there is no context parallelism (cp)
sp,pp=2 sp: there is no tensor parallelism (tp)
pp=2,layers=1:2:1 layers: 3 numbers for 2 stages
dp=4,ep=3 ep=3 x etp=1 do not divide tp=1 x cp=1 x dp=4
dp=4,zero=1,shard=3 shard=3 does not divide cp=1 x dp=4
zero=4 zero: expected a number from 0 to 3
shard=2 shard=2: nothing is sharded (zero)
pp=2,vpp=2,schedule=1f1b schedule: vpp=2 is not 1f1b
pp=2,schedule=zb-v,vpp=3 schedule: vpp=3 is not zb-v
pp=2,schedule=zb-v,vpp=1 schedule: vpp=1 is not zb-v
pp=2,schedule=looped-bfs,vpp=1 schedule: vpp=1 is not looped-bfs
schedule=zb-v vpp=2: there is no pipeline (pp)
dp=4,schedule=zb-h1 schedule: zb-h1: there is no pipeline (pp)
pp=2,vpp=2,waits waits: not with interleaved-1f1b
dp=4,ep-overlap ep-overlap: there is no expert parallelism
tp=4,tp-overlap tp-overlap: there is no sequence parallelism
dp=4,wgrad-overlap wgrad-overlap: there is no tensor parallelism
tp=2,pp=2,schedule=zb-h1,wgrad-overlap wgrad-overlap: not with zb-h1
recompute=selective,stops-early stops-early: whole layers are not recomputed
END
    refuses 2 "--stages: --grid says the whole plan" ap-stage --grid tp=2 --stages 2 --cluster cpu-4 "$f"
    refuses 2 "--recompute: --grid says the whole plan" \
        ap-plan gpt3-350m --grid tp=2 --recompute none --cluster cpu-4
}

@test "ap-stage --from: the plan that a trainer's flags say" {
    local d=$BATS_TEST_TMPDIR f=$BATS_TEST_TMPDIR/m.json
    small >"$f"
    echo '--num-layers 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
        --seq-length 8 --micro-batch-size 2 --global-batch-size 8 --lr 1e-4 --frobnicate 3' >"$d/args"
    ap-stage --quiet --grid tp=2,pp=2,mbs=2,packs,wgrad-overlap --cluster cpu-4 -o "$d/grid.json" "$f"
    # what is written of a line has its price, and is read as the same plan
    run --separate-stderr ap-rewrite --to megatron -o "$d/written" "$d/grid.json"
    [[ $status -eq 0 && -z $stderr ]] && grep '; predicted: step ' "$d/written"
    ap-stage --quiet --from "megatron:$d/written" --cluster cpu-4 "$f" |
        diff <(jq .stages "$d/grid.json") <(jq .stages -)
    run --separate-stderr ap-stage --no-history --from "megatron:$d/args" --cluster cpu-4 -o "$d/from.json" "$f"
    [[ $status -eq 0 && $stderr == *"args: --frobnicate: not known, passed over" ]]
    diff <(jq .stages "$d/grid.json") <(jq .stages "$d/from.json")
    echo '{"train_micro_batch_size_per_gpu": 2}' >"$d/ds.json"
    ap-stage --quiet --from "megatron:$(cat "$d/args")" --cluster cpu-4 "$f" |
        diff <(jq .stages "$d/grid.json") <(jq .stages -)
    ap-stage --quiet --from "deepspeed:$d/ds.json" --grid recompute=full --cluster cpu-4 "$f" |
        jq -e '.stages.stages[0].recompute == "selected"'
    # later keys win, and the degrees that follow from them are found anew
    ap-stage --quiet --from "megatron:$(cat "$d/args")" --grid tp=1,mbs=1,zero=1,recompute=full --cluster cpu-4 "$f" |
        jq -e '.stages.line == "pp=2,dp=2,zero=1,recompute=full,mbs=1,packs"'
    refuses 3 "ap-stage: --from: torchtitan" ap-stage --cluster cpu-4 "$f" --from 'torchtitan:
        --parallelism.pipeline_parallel_degree 4 --training.local_batch_size 8 --training.seq_len 8'
    sed -i 's/size 8 --lr/size 16 --lr/' "$d/args"
    refuses 1 "args: it says 16 samples of a step, not 8 (make it with --batch 16)" \
        ap-stage --from "megatron:$d/args" --cluster cpu-4 "$f"
    echo '--micro-batch-size 2 --recompute-modules moe --recompute-granularity selective' >"$d/args"
    refuses 1 "args: --recompute-modules moe: " \
        ap-stage --from "megatron:$d/args" --cluster cpu-4 "$f"
    echo '--parallelism.pipeline_parallel_degree 4 --training.local_batch_size 8 --training.seq_len 8' >"$d/args"
    refuses 3 "embedding and head share a weight" ap-stage --from "torchtitan:$d/args" --cluster cpu-4 "$f"
    refuses 2 "--from: expected TRAINER:FILE or TRAINER:TEXT, with one of megatron," ap-stage --from "nemo:$d/args" --cluster cpu-4 "$f"
    refuses 2 "--stages: --from says the whole plan" \
        ap-stage --from "megatron:$d/args" --stages 2 --cluster cpu-4 "$f"
}

@test "ap-stage --grid: the man page has the keys that the reader has" {
    small >"$BATS_TEST_TMPDIR/m.json"
    run --separate-stderr ap-stage --grid xp=1 --cluster cpu-4 "$BATS_TEST_TMPDIR/m.json"
    diff <(sed -n "s/.* is not one of //; s/, /\n/gp" <<<"$stderr" | sort) \
        <(sed -n '/^\.It Fl -grid/,/^\.It Fl -plan/s/^\.It Cm //p' man/ap-stage.1 | sed 's/ , /\n/g' | sort)
}

@test "ap-stage --grid: what does not fit model or cluster is refused" {
    local f=$BATS_TEST_TMPDIR/m.json line why
    small >"$f"
    while IFS='|' read -r line why; do
        refuses 3 "$why" ap-stage --grid "$line" --cluster cpu-4 "$f"
    done <<'END'
tp=2,dp=4|tp=2 x cp=1 x pp=1 x dp=4 are 8 devices, there are 4
tp=4,mbs=3|dp=1 x mbs=3 do not divide the batch of 8
pp=4,vpp=2|4 layers in 8 stages: layers=A:B:... says how many are in each
pp=2,tp=2,layers=2:3|layers: 5, the model has 4
pp=4,vpp=1,layers=4:0:0:0|stage 1 has no blocks
END
    small --heads 2 >"$f"
    refuses 3 "tp=4 does not divide the heads of" ap-stage --grid tp=4 --cluster cpu-4 "$f"
    ap-model gpt --layers 4 --hidden 32 --heads 4 --vocab 64 --seq 8 --batch 8 | ap-coarsen --quiet --blocks 3 --eps 9 >"$f"
    refuses 3 "ap-coarsen --algorithm layers" ap-stage --grid pp=2,tp=2 --cluster cpu-4 "$f"
}

# words CLUSTER LINE OPTION...: what the plan of the line is
words() {
    local c=$1 line=$2
    shift 2
    small "$@" | ap-stage --quiet --grid "$line" --cluster "$(cluster "$c")" | ap-cost --quiet | jq -r .cost.plan.words
}

@test "ap-stage --grid: the plan is what the line says" {
    [ "$(words 2 tp=4,pp=2,mbs=2,sp)" = 'TP 4 with sequence parallelism · PP 2 · micro-batch 2' ]
    [ "$(words 1 tp=1,pp=2,vpp=2,dp=2,recompute=full)" = \
        'PP 2 × VPP 2 · DP 2 · micro-batch 1 · recompute all' ]
    [ "$(words 1 dp=4,zero=3,overlap)" = 'DP 4 · ZeRO-3 · micro-batch 1' ]
    # one microbatch, and several: ZeRO's stages differ in when gradients are reduced
    for zero in 1 2; do
        for mbs in 1 2; do
            [ "$(words 1 dp=4,zero=$zero,mbs=$mbs)" = "DP 4 · ZeRO-$zero · micro-batch $mbs" ]
        done
    done
    # the section says the whole line, but for what silence says; a plan that was changed has its own words
    small | ap-stage --quiet --grid tp=4,zero=2,mbs=2 --cluster "$(cluster 2)" >"$BATS_TEST_TMPDIR/l.json"
    jq -e '.stages.line == "tp=4,dp=2,zero=2,mbs=2"' "$BATS_TEST_TMPDIR/l.json"
    small | ap-stage --quiet --grid tp=4,mbs=8,pp=2 --cluster "$(cluster 2)" | jq -e '.stages.line == "tp=4,pp=2,dp=1,mbs=8"'
    [ "$(jq -c 'del(.stages.trainer)' "$BATS_TEST_TMPDIR/l.json" | ap-cost --quiet | jq -r .cost.plan.words)" = 'TP 4 · DP 2 · ZeRO-1 · micro-batch 2' ]
    [ "$(words 1 cp=2,dp=2,zero=1 --dtype bf16 --master-weights)" = 'CP 2 · DP 2 · ZeRO-1 · micro-batch 1' ]
}

@test "ap-stage --grid: context parallelism in stripes, gathered or round a ring" {
    local d=$BATS_TEST_TMPDIR line
    small --seq 64 --batch 2 --heads 2 >"$d/plain.json"
    refuses 3 "ring: no attention has one (ap-fuse)" ap-stage --grid cp=2,ring --cluster "$(cluster 1)" "$d/plain.json"
    refuses 3 "the model's plan would be CP 2" ap-stage --grid cp=2,a2a=2 --cluster "$(cluster 1)" "$d/plain.json"
    ap-model gpt --layers 2 --hidden 512 --heads 4 --vocab 64 --seq 65536 --batch 1 --dtype bf16 >"$d/gpt.json"
    for n in 1 8; do
        ap-fuse --quiet --stripes $n "$d/gpt.json" | ap-coarsen --quiet --algorithm layers >"$d/$n.json"
        for line in cp=4 cp=4,ring cp=4,a2a=4 cp=4,a2a=2,ring; do
            ap-stage --quiet --grid $line --cluster "$(cluster 1)" "$d/$n.json" | ap-cost --quiet |
                jq -c --arg k "$n $line" '{($k): [.cost.step_sec, .cost.peak_bytes, .cost.plan.words]}'
        done
    done | jq -s add >"$d/all.json"
    # the last of four devices sees 7/8 of all pairs in blocks, 1/2 + 3/64 in eight stripes
    jq -e '.["8 cp=4"][0] < 0.75 * .["1 cp=4"][0] and .["8 cp=4,ring"][0] < .["8 cp=4"][0] and
        .["8 cp=4,ring"][1] < .["8 cp=4"][1] and all(.[][2]; startswith("CP 4"))' "$d/all.json"
    # heads see all tokens: blocks are no worse than stripes
    jq -e '(.["8 cp=4,a2a=4"][0] / .["1 cp=4,a2a=4"][0] | . > 0.99 and . < 1.01) and
        (.["1 cp=4,a2a=4"][2] | startswith("CP 4 by heads")) and
        (.["8 cp=4,a2a=2,ring"][2] | startswith("CP 4, 2 of them by heads"))' "$d/all.json"
    refuses 3 "cp: 4 heads of dot" ap-stage --grid cp=8,a2a=8 --cluster a100-8 "$d/1.json"
}

@test "ap-stage --grid: layers of stages, devices, what is recomputed" {
    local f=$BATS_TEST_TMPDIR/s.json
    small | ap-stage --quiet --grid pp=2,tp=2,layers=3:1,recompute=selective,mbs=4 --cluster cpu-4 >"$f"
    [ "$(jq -c '[.stages.stages[] | [.blocks, .devices]]' "$f")" = '[[[0,1,2,3],[0,1]],[[4,5],[2,3]]]' ]
    jq -e '.stages.microbatches == 2 and .stages.algorithm == "grid"' "$f"
    # the scores and what is made of them, in all layers
    jq -e '[.stages.stages[].recomputed[] as $v | .graph.nodes[$v]] |
        all(.scope | test("/attn/core")) and (map(select(.op == "dot")) | length == 4)' "$f"
    # layers of each stage: the first ones, or several from one input
    recomputed() {
        small | ap-stage --quiet --grid "pp=2,layers=3:1,recompute=$1,mbs=4,dp=2" --cluster cpu-4 >"$f"
        jq -c '.graph.nodes as $n | [.stages.stages[] | [.recomputed // [] | .[] | $n[.].scope |
            capture("h_(?<l>[0-9])") | .l | tonumber] | unique]' "$f"
    }
    [ "$(recomputed block:2)" = '[[0,1],[3]]' ]
    [ "$(recomputed full)" = '[[0,1,2],[3]]' ]
    # not the head, nor the loss
    jq -e '.graph.nodes as $n | all(.stages.stages[].recomputed[]; $n[.].scope | test("^gpt/h_[0-9]"))' "$f"
    local one all
    one=$(jq '[.stages.stages[] | .recomputed | length]' -c "$f")
    [ "$(recomputed uniform:2)" = '[[0,1,2],[3]]' ]
    all=$(jq '[.stages.stages[] | .recomputed | length]' -c "$f")
    jq -ne --argjson one "$one" --argjson all "$all" '$all[0] == $one[0] + 1 and $all[1] == $one[1]' # the input of layer 1
    [ "$(ap-cost --quiet "$f" | jq -r .cost.plan.words)" = 'PP 2 · DP 2 · micro-batch 4 · recompute all, 2 layers together' ]
    # modules by name: maps of a part with what follows them, the last norms' outputs
    again() { # MODULES MODEL...: operators and scopes of layer 1 or 4
        ap-model "${@:2}" | ap-fuse --quiet | ap-coarsen --quiet --algorithm layers |
            ap-stage --quiet --grid "recompute=$1,mbs=8" --cluster "$(one)" | jq -r '.graph.nodes as $n |
                [.stages.stages[].recomputed // [] | .[] | $n[.] | select(.scope | test("/h_[14]/")) |
                    (.op | select(. == "dot" or . == "rsqrt" or . == "logistic")) + " " + (.scope | sub(".*/h_./"; ""))] |
                sort | join(", ")'
    }
    local llama=(llama --layers 2 --hidden 32 --heads 4 --kv-heads 2 --vocab 64 --seq 8 --batch 8)
    local moe=(deepseek --layers 5 --hidden 64 --heads 4 --vocab 64 --seq 8 --batch 8)
    [ "$(again mlp "${llama[@]}")" = 'dot mlp/gate, dot mlp/up, logistic mlp/act' ]
    [ "$(again layernorm+mlp "${llama[@]}")" = 'dot mlp/gate, dot mlp/up, logistic mlp/act, rsqrt ln_1, rsqrt ln_2' ]
    [ -z "$(again shared_experts+moe_act "${llama[@]}")" ]
    [ "$(again shared_experts "${moe[@]}")" = 'dot moe/shared/mlp/gate, dot moe/shared/mlp/up, logistic moe/shared/mlp/act' ]
    # of PyTorch's: the last product of a layer is read by no backward pass; in each layer the first one is kept
    [ "$(again full "${llama[@]}" | tr ',' '\n' | grep -c 'dot mlp')" = 3 ]
    [ "$(again full,stops-early "${llama[@]}" | tr ',' '\n' | grep 'dot mlp' | tr -d ' \n')" = dotmlp/gatedotmlp/up ]
    [ "$(again operators "${llama[@]}" | tr ',' '\n' | grep dot | tr -d ' \n')" = dotattn/kdotattn/odotmlp/up ]
    [ "$(again layernorm+moe_act "${moe[@]}")" = 'logistic moe/act, rsqrt ln_1, rsqrt ln_1, rsqrt ln_2, rsqrt ln_2' ] # no latents'
    # two layers' values live again at once, beside one input less
    for one in block:1 full uniform:2 uniform:4; do
        ap-model gpt --layers 4 --hidden 256 --heads 4 --vocab 64 --seq 128 --batch 8 | ap-coarsen --quiet --algorithm layers |
            ap-stage --quiet --grid "dp=1,recompute=$one,mbs=8" --cluster "$(one)" | ap-cost --quiet | jq .cost.peak_bytes
    done | jq -se '.[1] < .[0] and .[1] < .[2] and .[2] < .[3]'
    refuses 3 'recompute: a block has several layers' ap-stage --grid tp=4,recompute=uniform:2 --cluster cpu-4 \
        <(ap-model gpt --layers 4 --hidden 32 --heads 4 --vocab 64 --seq 8 --batch 8 | ap-coarsen --quiet --blocks 2 --eps 9)
    # tensor parallelism across hosts is two axes
    small --heads 8 | ap-stage --quiet --grid tp=8 --cluster "$(cluster 2)" >"$f"
    [ "$(jq -c '.stages.stages[0].sharding.mesh' "$f")" = '{"axes":["tp_hosts","tp"],"shape":[2,4]}' ]
}

@test "ap-stage --grid: what trainers do by themselves is priced" {
    local f=$BATS_TEST_TMPDIR/w.json
    small --dtype bf16 --master-weights --cast-weights --low-gradients >"$f"
    # of LINE: trainer, then seconds and bytes by LINE beside those of the second LINE
    of() { ap-stage --quiet --grid "$1" --cluster "$(cluster 1)" "$f" | ap-cost --quiet | jq -c "[.stages.trainer, .cost.step_sec, .cost.peak_bytes, .cost.devices[0].memory.summed_bytes]"; }
    beside() { { of "$1"; of "$2"; } | jq -se "$3"; }
    beside dp=4,mbs=1,packs dp=4,mbs=1 '.[0][0] == ["packs"] and .[0][1] < .[1][1] and .[0][2] == .[1][2]'
    beside dp=4,mbs=1,low-sums dp=4,mbs=1 '.[0][2] < .[1][2]'
    beside dp=4,mbs=1,keeps-gradients dp=4,mbs=1 '.[0][2] > .[1][2]'
    beside tp=4,mbs=2,sp,keeps-gathered tp=4,mbs=2,sp '.[0][2] == .[1][2] and .[0][3] > .[1][3]' # programs keep it, too
    beside pp=4,mbs=1,waits pp=4,mbs=1 '.[0][0] == ["waits"] and .[0][1] > .[1][1] and .[0][2] == .[1][2]'
    # latencies of four broadcasts, not of one gather
    beside dp=4,mbs=1,zero=1,packs,broadcasts dp=4,mbs=1,zero=1,packs '(.[0][1] - .[1][1]) * 1e6 | . > 44.9 and . < 45.1'
    # parts of products beside what is gathered for them, each launched by itself
    llama() {
        ap-model llama --layers 2 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --vocab 512 --seq 4096 --batch 2 --dtype bf16 |
            ap-coarsen --quiet --algorithm layers | ap-stage --quiet --grid "tp=4,mbs=2,sp$1" --cluster "$2" | ap-cost --quiet | jq .cost.step_sec
    }
    jq '.launch_sec = 1e-3' "$(cluster 1)" >"$f.slow"
    { llama '' "$(cluster 1)"; llama ,tp-overlap "$(cluster 1)"; llama '' "$f.slow"; llama ,tp-overlap "$f.slow"; } |
        jq -se '.[1] < 0.99 * .[0] and .[3] > .[2]'
    # sums of the backward pass beside weights' gradients: at most half of what is sent
    { llama '' "$(cluster 1)"; llama ,wgrad-overlap "$(cluster 1)"
        llama ,wgrad-overlap <(jq '.collective_share = {"reduce-scatter": 0.9}' "$(cluster 1)"); llama ,tp-overlap,wgrad-overlap "$(cluster 1)"; } |
        jq -se '.[1] < 0.99 * .[0] and .[1] < .[2] and .[2] < .[0] and .[3] < .[1]'
    # a sum over hosts takes two steps, but each product is computed once; of a context's sums none is a layer's
    across() {
        ap-model gpt --layers 2 --hidden 4096 --heads 32 --vocab 512 --seq 2048 --batch 2 --dtype bf16 |
            ap-coarsen --quiet --algorithm layers | ap-stage --quiet --grid "$1" --cluster h100x2 | ap-cost --quiet | jq .cost.step_sec
    }
    { across tp=16,mbs=2,sp; across tp=16,mbs=2,sp,wgrad-overlap; } | jq -se '.[1] < .[0] and .[1] > 0.95 * .[0]'
    # tokens beside the pass of another microbatch, which is in memory, too
    ap-model mixtral --layers 2 --hidden 64 --heads 4 --kv-heads 2 --experts 4 --top 2 --group 4 --vocab 64 --seq 32 --batch 16 | ap-coarsen --quiet --algorithm layers >"$f.moe"
    moe() { ap-stage --quiet --grid "$1" --cluster "$2" "$f.moe" | ap-cost --quiet | jq -c '[.cost.step_sec, .cost.peak_bytes]'; }
    { moe dp=4,ep=4,mbs=1,ep-overlap "$(cluster 1)"; moe dp=4,ep=4,mbs=1 "$(cluster 1)"
        moe dp=4,ep=4,mbs=1,ep-overlap <(jq '.collective_share = {}' "$(cluster 1)")
        moe dp=4,ep=4,mbs=1 <(jq '.expert_load = 4' "$(cluster 1)"); } |
        jq -se '.[3][0] > .[1][0] and .[2][0] < .[0][0] and .[0][0] < .[1][0] and .[0][1] > .[1][1]'
    # ZeRO-2 has a part of the gradients, and sums them with each microbatch
    beside dp=4,mbs=1,zero=2,packs dp=4,mbs=1,zero=1,packs '.[0][0] == ["packs", "scatters"] and .[0][2] < .[1][2] and .[0][1] > .[1][1]'
    # ZeRO's share of what tensor parallelism splits is of a device's own rows: half of an all-reduce
    shares() { ap-stage --quiet --grid "tp=2,dp=2,sp,packs$1" --cluster "$(cluster 1)" "$f.llama" | ap-cost --quiet | jq '.cost.stages[0].sync_sec'; }
    ap-model llama --layers 2 --hidden 256 --heads 8 --ffn 704 --vocab 1000 --batch 8 --seq 16 --dtype bf16 --master-weights |
        ap-coarsen --quiet --algorithm layers >"$f.llama"
    { shares ,zero=1; shares ''; } | jq -se '.[0] < 0.8 * .[1]'
    ap-stage --quiet --grid dp=4,packs --cluster "$(cluster 1)" "$f" | jq '.stages.trainer = ["what"]' >"$f.bad"
    refuses 1 '/stages/trainer/0: expected packs' ap-cost "$f.bad"
}

@test "ap-stage --grid: waits is refused under the schedules that it would end, by every tool that reads stages" {
    local f=$BATS_TEST_TMPDIR/p.json s
    small | ap-stage --quiet --grid pp=2,mbs=2,packs,waits --cluster cpu-4 >"$f"
    for s in interleaved-1f1b eager-1f1b; do
        jq -c --arg s $s '.stages.schedule = $s' "$f" >"$f.bad"
        for tool in ap-cost ap-rewrite; do
            refuses 1 "/stages/trainer/1: waits: not under $s" $tool "$f.bad"
        done
    done
    refuses 1 "/stages/microbatches: 16: the batch has 8 rows" ap-cost <(jq -c '.stages.microbatches = 16' "$f")
    for s in gpipe 1f1b; do # the others run
        jq -c --arg s $s '.stages.schedule = $s' "$f" | ap-cost --quiet | ap-rewrite --quiet | ap-exec --check
    done
}

@test "ap-stage --grid: rows of a vocabulary of 63 have a rate of their own, a table's gradient lies like the table" {
    local even=$BATS_TEST_TMPDIR/e.json uneven=$BATS_TEST_TMPDIR/u.json
    small >"$even"
    small --vocab 63 >"$uneven"
    jq '.uneven_of_peak = 1e-6' "$(cluster 1)" >"$BATS_TEST_TMPDIR/c.json"
    of() { ap-stage --quiet --grid dp=4 --cluster "$1" "$2" | ap-cost --quiet | jq .cost.step_sec; }
    [ "$(of "$(cluster 1)" "$even")" = "$(of "$BATS_TEST_TMPDIR/c.json" "$even")" ]
    jq -ne "$(of "$BATS_TEST_TMPDIR/c.json" "$uneven") > 1.2 * $(of "$(cluster 1)" "$uneven")"
    # not a sum of whole tables
    ap-stage --quiet --grid tp=4,sp --cluster cpu-4 "$even" | jq -e '.graph.nodes as $n | .stages.stages[0].sharding.layouts as $l |
        [range($n | length) | select($n[.].op == "scatter") | $l[.]] == ["S0"]'
}

@test "ap-stage --grid: stages run, and their numbers are those of one device" {
    needs_exec
    local f=$BATS_TEST_TMPDIR/m.json
    small >"$f"
    ap-rewrite "$f" | ap-exec --seed 1 --int-range 8 --steps 2 --json --quiet | jq -c '.losses | map(. * 1e4 | round)' >"$BATS_TEST_TMPDIR/one"
    for recompute in full uniform:2; do
        ap-stage --quiet --grid tp=2,pp=2,mbs=4,recompute=$recompute --cluster cpu-4 "$f" | ap-rewrite |
            ap-exec -n 4 --seed 1 --int-range 8 --steps 2 --json --quiet | jq -c '.losses | map(. * 1e4 | round)' |
            diff "$BATS_TEST_TMPDIR/one" -
    done
}

@test "ap-stage --grid: rings and exchanges for heads run, and their numbers are those of one device" {
    needs_exec
    local f=$BATS_TEST_TMPDIR/m.json
    losses() { ap-rewrite --quiet | ap-exec "$@" --seed 1 --int-range 8 --steps 2 --json --quiet | jq -c '.losses | map(. * 1e4 | round)'; }
    ap-model gpt --layers 2 --hidden 32 --heads 4 --vocab 64 --seq 64 --batch 4 >"$f"
    losses -n 1 <"$f" >"$BATS_TEST_TMPDIR/one"
    ap-fuse --quiet --stripes 8 "$f" | ap-coarsen --quiet --algorithm layers |
        tee "$f.fused" | ap-stage --quiet --grid cp=2,tp=2,sp,ring --cluster cpu-4 | losses -n 4 |
        diff "$BATS_TEST_TMPDIR/one" -
    for line in cp=4,a2a=4 tp=2,cp=2,a2a=2,sp,zero=1 pp=2,cp=2,a2a=2 cp=4,a2a=2,ring; do # heads of all tokens
        ap-stage --quiet --grid $line --cluster cpu-4 "$f.fused" | losses -n 4 | diff "$BATS_TEST_TMPDIR/one" -
    done
}

@test "ap-fuse --kernels: norms and activations are one kernel; the numbers stay" {
    needs_exec
    local f=$BATS_TEST_TMPDIR/k.json words
    for words in '--kernels' '--attention plain --kernels' '--norms' '--kernels --eager h_0'; do
        # shellcheck disable=SC2086
        ap-fuse --quiet $words "$(imported gpt2l)" >"$f"
        jq -e '[.graph.nodes[] | select(.kernel)] | length > 100' "$f"
        ap-rewrite "$f" | ap-exec --data "$MODELS/gpt2l/in" --steps 3 --json --quiet |
            jq -e '.losses | map(. * 1e4 | round) == [60850,53290,47691]'
    done
    # less is moved, and less kept for the backward pass
    ap-model gpt --layers 2 --hidden 256 --heads 4 --seq 256 --vocab 512 --batch 4 --dtype bf16 >"$f"
    for words in '' --kernels; do
        # shellcheck disable=SC2086
        ap-fuse --quiet --attention plain $words "$f" | ap-coarsen --algorithm layers |
            ap-stage --quiet --grid dp=1,mbs=4 --cluster "$(one)" | ap-cost --quiet |
            jq -c '.cost | [.step_sec, .peak_bytes]'
    done | jq -se '.[1][0] < 0.8 * .[0][0] and .[1][1] < 0.7 * .[0][1]'
    # layers are one family still, and runs of their blocks are asked for once
    ap-model gpt --layers 8 --hidden 64 --heads 4 --seq 32 --vocab 64 --batch 8 | ap-fuse --quiet --kernels |
        ap-prune | ap-coarsen --blocks 8 >"$f"
    jq -e '.families.instances == 8 and .families.nodes_inside > 0.95 * (.graph.nodes | length)' "$f"
    ap-stage --cluster h100-8 --stages 2 --microbatches 2 --stats "$f" 2>&1 >"$BATS_TEST_TMPDIR/plan" |
        jq -e '.runs == 36 and .distinct < 24'
    # a cluster whose devices have no such kernels has none
    ap-fuse --quiet --kernels --cluster p3x1 "$(imported gpt2l)" | jq -e 'all(.graph.nodes[]; has("kernel") | not)'
    ap-fuse --quiet --kernels --cluster h100-8 "$(imported gpt2l)" | jq -e 'any(.graph.nodes[]; .kernel)'
}

@test "ap-fuse --norms, --eager: which parts of the model have kernels" {
    local f=$BATS_TEST_TMPDIR/m.json words
    ap-model gpt --layers 2 --hidden 32 --heads 4 --vocab 64 --seq 8 --batch 8 >"$f"
    # nodes of kernels in norms, of attention, of the feed-forward part's activation and of the loss
    in_kernels() {
        # shellcheck disable=SC2086
        ap-fuse --quiet --attention plain $1 "$f" |
            jq -c '[.graph.nodes[] | select(.kernel) | .scope] |
                [("/ln_1$", "attn/core$", "mlp/act$", "^loss$") as $part | any(test($part))]'
    }
    [ "$(in_kernels --kernels)" = '[true,true,true,true]' ]
    [ "$(in_kernels --norms)" = '[true,true,false,true]' ]
    [ "$(in_kernels '--kernels --eager loss')" = '[true,true,true,false]' ]
    [ "$(in_kernels '--kernels --eager attn/core --eager act')" = '[true,false,false,true]' ]
    [ "$(in_kernels '--norms --eager loss')" = '[true,true,false,false]' ]
    # operators one by one take longer
    for words in '' '--eager loss'; do
        # shellcheck disable=SC2086
        ap-fuse --quiet --kernels $words "$f" | ap-coarsen --algorithm layers |
            ap-stage --quiet --grid dp=1,mbs=4 --cluster "$(one)" | ap-cost --quiet | jq .cost.step_sec
    done | jq -se '.[1] > .[0]'
    refuses 1 '--eager los: no part of the model has this name' ap-fuse --kernels --eager los "$f"
    refuses 1 '--eager : no part of the model has this name' ap-fuse --kernels --eager '' "$f"
    refuses 2 'needs --kernels or --norms' ap-fuse --eager loss "$f"
}

@test "ap-model --dropout: masks are kept for the backward pass, drawn again with attention's scores" {
    local f=$BATS_TEST_TMPDIR/d.json words
    # LAYERS' activations in bytes per device, beside those without dropout; per layer:
    # attention's mask heads * batch * seq^2, two of layers batch * seq * hidden
    for words in recompute=none recompute=selective; do
        for dropout in 0 0.1; do
            for layers in 2 6; do
                ap-model gpt --layers $layers --hidden 64 --heads 4 --seq 256 --vocab 64 --batch 8 --dtype bf16 --dropout $dropout |
                    ap-fuse --quiet --attention plain --kernels | ap-coarsen --algorithm layers |
                    ap-stage --quiet --grid tp=4,mbs=8,$words --cluster "$(cluster 1)" | ap-cost --quiet | jq .cost.peak_bytes
            done
        done >"$f"
        paste -sd' ' "$f"
    done >"$BATS_TEST_TMPDIR/all"
    cat "$BATS_TEST_TMPDIR/all"
    awk '{ m[NR] = (($4 - $3) - ($2 - $1)) / 4 } END { one = 8 * 256 * 256; two = 2 * 8 * 256 * 64
        exit !(m[1] > 0.99 * (one + two) && m[1] < 1.01 * (one + two) && m[2] > 0.99 * two && m[2] < 1.01 * two) }' "$BATS_TEST_TMPDIR/all"
}

@test "ap-stage --grid: weights of ZeRO are sent together where a step is one microbatch, too" {
    local f=$BATS_TEST_TMPDIR/m.json zero mbs
    small --dtype bf16 --master-weights --cast-weights --loss-scale 0 --batch 16 >"$f"
    for zero in 1 2 3; do
        for mbs in 4 2; do # microbatches: one, two
            ap-stage --quiet --grid dp=4,mbs=$mbs,zero=$zero,packs --cluster "$(cluster 1)" "$f" |
                ap-cost --quiet | jq -c '.cost | [.comm_sec, .sync_sec] | add'
        done
    done | jq -se '.[0] < 1.01 * .[1] and .[2] < 1.01 * .[3] and .[4] < 1.01 * .[5]'
}

@test "ap-stage --grid: tensor parallelism beside experts runs, and its numbers are those of one device" {
    needs_exec
    local f=$BATS_TEST_TMPDIR/m.json
    losses() { ap-rewrite --quiet | ap-exec "$@" --seed 1 --int-range 8 --steps 2 --json --quiet | jq -c '.losses | map(. * 1e4 | round)'; }
    ap-model mixtral --layers 2 --hidden 32 --heads 4 --kv-heads 4 --vocab 64 --experts 4 --group 4 --seq 16 \
        --batch 8 | ap-coarsen --quiet --algorithm layers >"$f"
    losses -n 1 <"$f" >"$BATS_TEST_TMPDIR/one"
    ap-stage --quiet --grid tp=2,dp=4,ep=4,sp,mbs=2 --cluster cpu-8 "$f" >"$BATS_TEST_TMPDIR/p.json"
    ap-cost --quiet "$BATS_TEST_TMPDIR/p.json" |
        jq -e '.cost.plan.words | startswith("TP 2 with sequence parallelism · DP 4 · EP 4 · ")'
    losses -n 8 <"$BATS_TEST_TMPDIR/p.json" | diff "$BATS_TEST_TMPDIR/one" -
    refuses 3 'attn/core) is split by it' ap-stage --grid tp=8 --cluster cpu-8 "$f"
}

@test "ap-stage --grid: experts in a grid of their own run, and their numbers are those of one device" {
    needs_exec
    local d=$BATS_TEST_TMPDIR line words why
    losses() { ap-rewrite --quiet | ap-exec "$@" --seed 1 --int-range 8 --steps 2 --json --quiet | jq -c '.losses | map(. * 1e4 | round)'; }
    ap-model mixtral --layers 2 --hidden 32 --heads 4 --kv-heads 4 --vocab 64 --experts 8 --group 4 --seq 16 \
        --batch 8 | ap-coarsen --quiet --algorithm layers >"$d/m.json"
    losses -n 1 <"$d/m.json" >"$d/one"
    while IFS='|' read -r line words; do
        ap-stage --quiet --grid "$line,mbs=1" --cluster cpu-8 "$d/m.json" >"$d/p.json"
        [ "$(ap-cost --quiet "$d/p.json" | jq -r .cost.plan.words)" = "$words · micro-batch 1" ]
        [ "$(jq -r .stages.line "$d/p.json")" = "$line,mbs=1" ]
        # read without the line, too
        jq -c 'del(.stages.line)' "$d/p.json" | ap-cost --quiet | jq -e --arg w "$words" '.cost.plan.words | startswith($w)'
        losses -n 8 <"$d/p.json" | diff "$d/one" - || { echo "$line"; return 1; }
    done <<'END'
tp=2,ep=4,dp=4|TP 2 · DP 4 · EP 4
tp=2,ep=8,etp=1,dp=4,zero=1,sp|TP 2 with sequence parallelism · DP 4 · EP 8 · expert TP 1 · ZeRO-1
tp=2,pp=2,ep=4,etp=1,dp=2,sp|TP 2 with sequence parallelism · PP 2 · DP 2 · EP 4 · expert TP 1
tp=2,cp=2,ep=2,etp=4,dp=2|TP 2 · CP 2 · DP 2 · EP 2 · expert TP 4
tp=4,ep=2,etp=1,dp=2,zero=1,sp|TP 4 with sequence parallelism · DP 2 · EP 2 · expert TP 1 · ZeRO-1
cp=2,ep=8,dp=4,zero=3|CP 2 · DP 4 · EP 8 · ZeRO-3
END
    while IFS='|' read -r line why; do
        refuses 3 "--grid $line: $why" ap-stage --grid "$line" --cluster cpu-8 "$d/m.json"
    done <<'END'
tp=2,ep=8|ep=8 x etp=2 do not divide tp=2 x cp=1 x dp=4
tp=2,etp=1|ep=1 x etp=1 beside tp=2: experts have different tokens on devices of tensor parallelism only with sp
ep=4,zero=1,shard=2|shard=2: experts of ep=4 x etp=1 are on more devices than tp=1 x shard
END
    small | ap-stage --quiet --grid dp=4,zero=1,shard=2 --cluster cpu-4 | jq -e '.stages.stages[0].sharding.mesh.shape == [2, 2]'
    small >"$d/dense.json"
    refuses 3 "ep=4: the model has no experts" ap-stage --grid ep=4 --cluster cpu-4 "$d/dense.json"
}

@test "ap-stage --grid: gradients and ZeRO of experts are on the devices that share them" {
    local f=$BATS_TEST_TMPDIR/m.json
    ap-model mixtral --layers 2 --hidden 64 --heads 4 --kv-heads 4 --vocab 64 --experts 4 --group 4 --seq 16 \
        --batch 8 | ap-coarsen --quiet --algorithm layers >"$f"
    # layouts of an expert's weight and of its states, LINE
    layouts() {
        ap-stage --quiet --grid "$1" --cluster cpu-8 "$f" | jq -c '.graph.nodes as $n | .stages.stages[0].sharding.layouts as $l |
            [range($n | length) | select($n[.].op == "parameter" and ($n[.].name | test("h_0/moe/fc/w"))) | $l[.]]'
    }
    [ "$(layouts tp=4,ep=2,etp=1,zero=1,sp)" = "$(layouts tp=4,ep=2,etp=1,zero=2,sp)" ]
    layouts tp=4,ep=2,etp=1,zero=1,sp
    layouts tp=4,ep=2,etp=1,zero=1,sp | jq -e '(.[0] | test("R,R,S0")) and all(.[1:][]; test("R") | not)'
    # gradients that each device has whole: shares are summed, and the sums say so
    for zero in 1 3; do
        ap-model mixtral --layers 2 --hidden 64 --heads 4 --kv-heads 4 --ffn 64 --experts 4 --vocab 128 --seq 16 --batch 8 |
            ap-coarsen --quiet --algorithm layers | ap-stage --quiet --grid cp=4,zero=$zero,packs --cluster cpu-4 |
            ap-cost --quiet | jq -e '.cost.devices[0].memory | .summed_bytes < 1.05 * .peak_bytes'
    done
}

@test "published: a step of a GPT of 22B on eight A100s is within 5 %" {
    local table=$BATS_TEST_TMPDIR/t.tsv
    { # the columns that are read; the run: Korthikanti et al., tables 3 and 5
        echo 'id source model layers hidden ffn ffn_kind heads kv_heads vocab tied_emb seq gpu gpu_mem_gb n_gpus nodes gpus_per_node interconnect dtype dp shard tp sp pp vpp pp_schedule cp ep micro_batch global_batch recompute attention compile step_s'
        echo '22B-full Korthikanti GPT-22B 48 6144 24576 gelu 64 64 51200 yes 2048 A100 80 8 1 8 NVSwitch fp16 1 none 8 no 1 1 none 1 1 4 4 full unfused no 1.42'
        echo 'unknown Korthikanti GPT ? 6144 24576 gelu 64 64 51200 yes 2048 A100 80 8 1 8 NVSwitch fp16 1 none 8 yes 1 1 none 1 1 4 4 selective unfused no 1.1'
        echo 'fp8 Korthikanti GPT 4 1024 4096 gelu 16 16 51200 yes 2048 A100 80 8 1 8 NVSwitch fp8 1 none 8 yes 1 1 none 1 1 4 4 none flash no 1'
        echo 'fp32 Korthikanti GPT 4 1024 4096 gelu 16 16 51200 yes 2048 A100 80 8 1 8 NVSwitch fp32 1 none 8 yes 1 1 none 1 1 4 4 none flash no 1'
        echo 'memory Korthikanti GPT 4 1024 4096 gelu 16 16 51200 yes 2048 H100 ? 8 1 8 NVSwitch bf16 1 none 8 yes 1 1 none 1 1 4 4 none flash no 1'
    } | tr ' ' '\t' >"$table"
    run -0 scripts/published --build "${AP_BUILD:-build}" --json "$BATS_TEST_TMPDIR/out.json" "$table"
    [[ $output == *'1 of 5 rows'* && $output == *'layers is not printed: unknown'* ]]
    [[ $output == *'A100 has no products of fp8: fp8'* && $output == *'dtype fp32: fp32'* ]]
    [[ $output == *'gpu_mem_gb is not printed: memory'* ]]
    jq -e '.[0] | .predicted_s / (.step_s | tonumber) | . > 0.95 and . < 1.05' "$BATS_TEST_TMPDIR/out.json"
}

@test "published: heads at odd bytes, DeepSpeed's stages" {
    local table=$BATS_TEST_TMPDIR/t.tsv
    {
        echo 'id source model layers hidden ffn ffn_kind heads kv_heads vocab tied_emb seq gpu gpu_mem_gb n_gpus nodes gpus_per_node interconnect dtype dp shard tp sp pp vpp pp_schedule cp ep micro_batch global_batch recompute attention compile step_s pair'
        local name source heads
        while read -r name source heads; do
            echo "$name $source GPT-S 7 960 3840 gelu $heads $heads 1024 yes 1024 A100 80 4 1 4 NVLink fp16 1 zero1 1 no 4 1 1f1b 1 1 4 16 full unfused no 1 lone-$name"
        done <<<$'even BigScience 15\nodd BigScience 16'
    } | tr ' ' '\t' >"$table"
    run -0 scripts/published --build "${AP_BUILD:-build}" --json "$BATS_TEST_TMPDIR/out.json" "$table"
    grep -E '^lone-odd +only one of its rows has a price$' <<<"$output"
    jq -e 'map({(.id): .predicted_s}) | add | .odd > 1.2 * .even' "$BATS_TEST_TMPDIR/out.json"
    jq -e 'all(.[]; .line | endswith(",layers=2:2:2:1"))' "$BATS_TEST_TMPDIR/out.json"
    { # hosts of one device each, then of two: messages by TCP; defaults of torchtitan
        head -1 "$table"
        local name nodes each titan='torchtitan L 8 1024 4096 swiglu 16 16 1024 no 1024 H100 80'
        while read -r name nodes each; do
            echo "$name nanotron L 4 1024 4096 swiglu 16 16 1024 no 1024 H100 80 2 $nodes $each ? bf16 1 none 1 no 2 1 1f1b 1 1 4 64 none flash2 no 1"
        done <<<$'far 2 1\nnear 1 2'
        echo "interleaved $titan 4 1 4 NVLink bf16 2 fsdp2(zero3) 1 no 2 ? interleaved-1f1b 1 1 ? 16 none sdpa yes 1"
        for name in none 'selective(layer)' full; do
            echo "$name $titan 2 1 2 NVLink bf16 2 fsdp2(zero3) 1 no 1 1 none 1 1 1 2 $name sdpa yes 1"
        done
    } | tr ' ' '\t' >"$BATS_TEST_TMPDIR/u.tsv"
    run -0 scripts/published --build "${AP_BUILD:-build}" --json "$BATS_TEST_TMPDIR/out.json" "$BATS_TEST_TMPDIR/u.tsv"
    [[ $output == *'6 of 6 rows'* ]]
    jq -e 'map({(.id): .}) | add | .far.predicted_s > 1.5 * .near.predicted_s and (.interleaved.line | test(",mbs=4,.*vpp=2,")) and
        (map_values(.predicted_s) | .none < .["selective(layer)"] and .["selective(layer)"] < .full)' "$BATS_TEST_TMPDIR/out.json"
}

# grids OPTION...: ap-stage on the small model for eight devices of two hosts
grids() { ap-stage --quiet --cluster "$BATS_FILE_TMPDIR/two.json" "$@" "$BATS_FILE_TMPDIR/small.json"; }

@test "megatron-grid: the best line of --grid, by its price, and no line that fits is quicker" {
    local line best sec
    cluster 2 | xargs cat >"$BATS_FILE_TMPDIR/two.json"
    small --batch 32 --layers 8 >"$BATS_FILE_TMPDIR/small.json"
    grids --algorithm megatron-grid >"$BATS_TEST_TMPDIR/m.json"
    line=$(jq -r '.stages.grids[] | select(.name == "megatron-grid") | .line' "$BATS_TEST_TMPDIR/m.json")
    best=$(jq .stages.objective_sec "$BATS_TEST_TMPDIR/m.json")
    jq -e '.stages | .algorithm == "megatron-grid" and all(.stages[]; .sharding.algorithm == "grid")' "$BATS_TEST_TMPDIR/m.json"
    # what a plan that is found is quicker than
    grids --simple 1 | jq -e --argjson best "$best" '.stages.grids[] | select(.name == "megatron-grid") | .step_sec == $best'
    # the line itself
    grids --grid "$line" | jq -e --argjson best "$best" '.stages.objective_sec == $best'
    for line in dp=8 dp=8,zero=1 tp=2,dp=4,zero=1,sp tp=4,dp=2,sp pp=2,dp=4 pp=2,vpp=2,dp=4 pp=4,tp=2,sp pp=8 \
        tp=2,pp=2,dp=2,sp,mbs=2 dp=8,mbs=2,zero=1 dp=8,mbs=4,zero=2 dp=8,mbs=4,zero=3; do
        sec=$(grids --grid $line | jq .stages.objective_sec)
        jq -n --argjson sec "$sec" --argjson best "$best" -e '$sec >= $best * (1 - 1e-9)' || { echo "$line"; return 1; }
    done
    # auto is no slower, and what limits it limits the grids
    grids | jq -e --argjson best "$best" '.stages.objective_sec <= $best * (1 + 1e-9)'
    grids --algorithm megatron-grid --stages 2 --microbatches 8 | jq -e '.stages | (.stages | length) == 2 and .microbatches == 8'
    grids --algorithm megatron-grid --recompute none |
        jq -e 'all(.stages.stages[]; .recompute == "none")'
    # in little memory lines of ZeRO-3 fit, which scatter with each microbatch: priced as --grid prices them
    small --hidden 256 --vocab 512 --seq 32 --batch 32 |
        ap-stage --quiet --cluster cpu-4 --algorithm megatron-grid --memory 40MB |
        jq -e '.stages as $s | $s.grids | map(select(.name == "megatron-grid")) |
            length == 1 and .[0].step_sec == $s.objective_sec'
    refuses 3 'megatron-grid: nothing fits in 1000 bytes' grids --algorithm megatron-grid --memory 1000
    refuses 2 '--shard-command: megatron-grid has no such option' grids --algorithm megatron-grid --shard-command x
}

@test "interleaved stages: what they recompute counts once on a device, in auto's plans and bound, too" {
    local best
    jq '.levels[0].size = 2 | .memory_bytes = 8e10 | .flops_per_sec.f32 = 6e11' clusters/cpu-8.json >"$BATS_FILE_TMPDIR/two.json"
    ap-model gpt --layers 8 --hidden 512 --heads 8 --seq 1024 --vocab 1024 --batch 64 |
        ap-coarsen --algorithm layers >"$BATS_FILE_TMPDIR/small.json"
    set -- --microbatches 8 --schedule interleaved-1f1b --memory 4637754496
    # 4 chunks of a device recompute 0.4 GB each: it has room for one of these
    best=$(grids "$@" --algorithm megatron-grid | jq '.stages | select(.chunks == 4) | .objective_sec')
    grids "$@" | jq -e --argjson best "$best" '.stages | .objective_sec <= $best and .lower_bound_sec <= $best and
        .lower_bound_sec > 0.95 * .objective_sec'
}

@test "deepspeed-moe-grid: experts beside data, no pipeline; data is its own row" {
    ap-model moe --layers 2 --hidden 64 --heads 4 --vocab 128 --experts 4 --batch 16 --seq 32 |
        ap-coarsen --algorithm layers | ap-stage --quiet --algorithm deepspeed-moe-grid --microbatch each --cluster cpu-4 |
        jq -e '.stages | (.stages | length) == 1 and ([.grids[].name] | index("deepspeed-moe-grid") != null) and
            (.grids[] | select(.name == "deepspeed-moe-grid") | .line | test("ep=[24],"))'
}

@test "grids-table: auto beside the best line of each grid; a line that is quicker fails" {
    local model='gpt:layers=2,hidden=64,heads=2,vocab=256,seq=64,batch=16@p3x8:4' bin=$BATS_TEST_TMPDIR/b/bin
    run -0 scripts/bench/grids-table --models "$model" --rows "$BATS_TEST_TMPDIR/rows"
    awk -F '\t' -v ok=0 '$2 > 0 && $3 >= $2 * (1 - 1e-9) && $4 ~ /mbs=/ { ok = 1 } END { exit !ok }' "$BATS_TEST_TMPDIR/rows"
    mkdir -p "$bin"
    ln -s "$AP_BUILD"/bin/* "$bin/"
    run -0 scripts/bench/grids-table --models "$model" --rows "$BATS_TEST_TMPDIR/rows"
    [[ $output != *'of build'* && $output != *'other builds'* ]]
    rm "$bin/ap-stage"
    {
        echo '#!/bin/sh'
        echo "case \"\$*\" in *megatron-grid*) '$AP_BUILD/bin/ap-stage' \"\$@\" | jq '.stages.objective_sec /= 2' ;;"
        echo "*) '$AP_BUILD/bin/ap-stage' \"\$@\" ;; esac"
    } >"$bin/ap-stage"
    chmod +x "$bin/ap-stage"
    AP_BUILD=$BATS_TEST_TMPDIR/b run -0 scripts/bench/grids-table --models "$model" --rows "$BATS_TEST_TMPDIR/rows"
    [[ $output == *"[of build $(cut -f 6 "$BATS_TEST_TMPDIR/rows")]"*'1 rows of '*' other builds than '* ]]
    AP_BUILD=$BATS_TEST_TMPDIR/b run -1 scripts/bench/grids-table --models "$model"
    [[ $output == *"FAILED: $model: "*" is quicker than auto"* ]]
    run -2 scripts/bench/grids-table --blocks
}

@test "published: regret is of the plan that the price puts first, among three at least" {
    local table=$BATS_TEST_TMPDIR/t.tsv name batch dp tp pp sec
    {
        echo 'id source model layers hidden ffn ffn_kind heads kv_heads vocab tied_emb seq gpu gpu_mem_gb n_gpus nodes gpus_per_node interconnect dtype dp shard tp sp pp vpp pp_schedule cp ep micro_batch global_batch recompute attention compile step_s'
        while read -r name batch dp tp pp sec; do
            echo "$name Somebody GPT-S 4 1024 4096 gelu 16 16 1024 yes 1024 A100 80 4 1 4 NVLink bf16 $dp zero1 $tp yes $pp 1 1f1b 1 1 1 $batch none flash yes $sec"
        done <<<$'dp 32 4 1 1 1.4\ndp-again 32 4 1 1 1.6\ntp 32 1 4 1 1\npp 32 1 1 4 2\ntwo 16 4 1 1 2\nother 16 1 4 1 1'
    } | tr ' ' '\t' >"$table"
    run -0 scripts/published --build "${AP_BUILD:-build}" "$table"
    [[ $output == *'6 of 6 rows'* ]]
    grep -E 'Somebody +1 +50\.0% +50\.0%  dp of 3, quickest tp$' <<<"$output"
}

@test "a line on 16384 devices is priced by its different devices, not one by one" {
    local f=$BATS_TEST_TMPDIR/m.json
    ap-model gpt --layers 16 --hidden 256 --heads 8 --vocab 512 --batch 4096 --seq 64 |
        ap-coarsen --quiet --algorithm layers |
        ap-stage --quiet --cluster h100x2048 --grid tp=8,pp=8,vpp=2,zero=1,sp,mbs=1 >"$f"
    # lists of all pairs of devices take 2.5 GB and 18 s
    (ulimit -t 6 && ap-cost --stats "$f" >"$f.priced" 2>"$f.stats")
    jq -e '.peak_bytes < 200e6' "$f.stats"
    # the first 2048 devices have two chunks, whose values go to the next 2048: each is sent its share of the sequence
    jq -e '([.cost.links[] | select(.[0] < 2048 and .[1] >= 2048 and .[1] < 4096) | .[2] * (.[3] // 1)] | add)
        == 4096 * 64 * 256 * 4 * 2' "$f.priced"
    jq -e '.cost.links | length < 100000' "$f.priced"
}

@test "the best line: a part of an encoder has the whole step's batch, not as many rows as biases have heads" {
    cd "$BATS_TEST_TMPDIR"
    ap-model t5 --layers 6 --hidden 64 --heads 4 --seq 32 --vocab 256 --batch 8 --recipe mixed | ap-fuse --quiet --cluster h100 |
        ap-prune | ap-coarsen --algorithm layers >t5
    best=$(ap-stage --cluster cpu-4 --algorithm megatron-grid t5 | jq .stages.objective_sec)
    ap-stage --cluster cpu-4 --grid tp=2,dp=2,zero=2,sp,mbs=4 t5 | jq -e --argjson best "$best" '.stages.objective_sec >= $best'
}

@test "ap-stage: the lower bound of auto is above no plan of any --schedule" {
    local schedule o bound n=0
    cd "$BATS_TEST_TMPDIR"
    ap-model gpt --layers 8 --hidden 64 --heads 4 --vocab 128 --batch 16 --seq 16 | ap-prune --quiet |
        ap-coarsen --quiet --algorithm layers >model
    plan() { ap-stage --quiet --cluster cpu-4 "$@" model; }
    while read -r o schedules; do
        bound=$(plan --microbatches ${o/,/ --stages } | jq .stages.lower_bound_sec)
        for schedule in $schedules; do
            plan --microbatches ${o/,/ --stages } --schedule $schedule |
                jq -e --argjson bound "$bound" '.stages | .objective_sec >= $bound * (1 - 1e-9) and $bound > 0 and
                    .lower_bound_sec > 0 and .lower_bound_sec <= .objective_sec' ||
                { echo "$o $schedule: $bound"; return 1; }
            n=$((n + 1))
        done
    done <<'END'
4,2 gpipe 1f1b zb-h1 zb-h2
8,8 interleaved-1f1b looped-bfs zb-h1 zb-v v-half v-min dualpipe-v
END
    [ $n = 11 ]
}

@test "split backward passes: auto takes zb-v, in less memory v-half, and says what they gain" {
    cd "$BATS_TEST_TMPDIR"
    # one device a host: pipelines are quickest, and a model of two layers for each
    jq 'del(.collectives) | .levels[0].size = 1 | .levels[1].size = 4' "$AP_TOP/clusters/dgx-a100.json" >ones.json
    ap-model llama --layers 8 --hidden 1024 --heads 8 --vocab 4000 --batch 6 --seq 2048 --recipe mixed |
        ap-fuse --quiet --cluster ones.json --kernels | ap-prune | ap-coarsen --quiet --algorithm layers >model
    ap-model gpt --layers 2 --hidden 32 --heads 4 --vocab 64 --seq 8 --batch 8 | ap-coarsen --quiet --algorithm layers >two
    plan() { ap-stage --quiet --cluster ones.json "$@" model; }
    plan --memory 3GB >plan
    jq -e '.stages | .schedule == "zb-v" and .line == "pp=4,dp=1,schedule=zb-v,mbs=1" and
        (.lower_bound_sec <= .objective_sec) and .stages[4].devices == .stages[3].devices and
        (.grids[] | select(.name == "zero-bubble-grid") | .step_sec < 0.97 * .whole_sec)' plan
    ap-cost --report plan | grep -E '^ +[0-9.]+ % less than the best plan with whole backward passes$'
    gains=$(jq -c '(.stages.grids[] | select(.whole_sec)).whole_sec = 1e-9' plan | ap-cost --report | grep -c 'whole backward passes') || true
    [ "$gains" = 0 ] # slower than these: nothing is said
    plan --memory 2.4GB | jq -e '.stages.schedule == "v-half"'
    # as it is asked for; what is no line's is refused
    plan --schedule zb-h2 | jq -e '.stages | .schedule == "zb-h2" and .chunks == 1'
    refuses 3 "--schedule zb-v: no line that fits has it: a line has two sets of devices or more, 2 stages or more on each" \
        ap-stage --schedule zb-v --microbatches 4 --cluster cpu-4 two
    refuses 2 "--schedule zb-v: only lines (--grid) have it" ap-stage --schedule zb-v --submeshes 1x1 --cluster ones.json model
    refuses 2 "alpa: plans for 1f1b and gpipe, not zb-v" ap-stage --schedule zb-v --algorithm alpa --cluster ones.json model
    refuses 1 "a plan of schedule zb-v is built from its line" ap-stage --plan plan --cluster ones.json model
}
