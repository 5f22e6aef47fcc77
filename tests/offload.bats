#!/usr/bin/env bats
# shellcheck disable=SC2016 # what jq expands
# What a plan keeps on the host: its price, its memory, its programs, lines and flags that say it.

load helpers

setup_file() {
    local dir=$BATS_FILE_TMPDIR
    # a link of 200 MB/s out and 100 MB/s in; both at once carry 125 MB/s in sum
    jq '.host_link = {out_bytes_per_sec: 2e8, in_bytes_per_sec: 1e8, both_bytes_per_sec: 1.25e8, memory_bytes_per_sec: 1e8,
        memory_bytes: 8e8}' \
        "$CLUSTERS/cpu-4.json" >"$dir/four.json"
    jq '.host_link = {out_bytes_per_sec: 1e9, in_bytes_per_sec: 1e9}' "$CLUSTERS/cpu-8.json" >"$dir/eight.json"
    ap-model --no-history gpt --layers 4 --hidden 64 --heads 4 --seq 16 --vocab 128 --batch 16 --recipe mixed |
        ap-fuse --quiet --no-history | ap-prune --quiet --no-history |
        ap-coarsen --quiet --no-history --algorithm layers -o "$dir/gpt.json"
}

# line LINE: the plan of the small GPT on four ranks, with its cost.
line() {
    ap-stage --quiet --no-history --cluster "$BATS_FILE_TMPDIR/four.json" --grid "$1" "$BATS_FILE_TMPDIR/gpt.json" |
        ap-cost --quiet --no-history
}

# chain SEED BLOCKS: the train step of a random graph of layers, with a momentum of each weight.
chain() {
    /usr/bin/python3 tests/chain.py "$1" $(($2 + 2)) | ap-import --quiet --no-history |
        ap-grad --quiet --no-history --optimizer momentum --momentum 0.5 --lr 1 |
        ap-coarsen --no-history --algorithm alpa --blocks "$2" --eps 4
}

# by_hand SEED SCHEDULE MICROBATCHES: a stage per block, rules by turns; on the host are all states, and the values
# of the forward pass whose numbers the seed picks.
by_hand() {
    jq -c --argjson seed "$1" --arg schedule "$2" --argjson b "$3" --slurpfile cluster "$BATS_FILE_TMPDIR/eight.json" '
        .blocks.n as $n | ["data", "largest-dim", "megatron", "zero3"] as $rules | .cluster = $cluster[0] |
        [.graph.nodes | to_entries[] | select(if .value.op == "parameter"
                then .value.role == "state" and (.value.shape | test("\\[\\]") | not)
                else (.value.phase // "forward") == "forward" and (.key * 7 + $seed) % 3 > 0 end) | .key] as $host |
        .stages = {schedule: $schedule, microbatches: $b, offload: $host, stages:
            (reduce range(0; $n) as $i ({at: 0, list: []};
                (1 + (($seed / (3 * ($i + 1)) | floor) + $i) % 2) as $d |
                {at: (.at + $d), list: (.list + [{blocks: [$i], devices: [range(.at; .at + $d)],
                    recompute: (if ($seed + $i) % 3 == 0 then "all" else "none" end),
                    sharding: {algorithm: $rules[($seed + $i) % 4], mesh: "m=\($d)"}}])}) | .list)}'
}

@test "random plans with values on the host give one device's bits" {
    needs_exec
    local seed schedules=(1f1b gpipe zb-h1) all=$BATS_TEST_TMPDIR/all.json run=$BATS_TEST_TMPDIR/run.json
    for seed in 1 2 3 4 5 7 8 9 12; do
        chain $seed $((2 + seed % 2)) | by_hand $seed "${schedules[seed % 3]}" $((1 << seed / 2 % 3)) |
            ap-rewrite --no-history >"$run"
        timeout 300 ap-exec -n "$(jq .pipeline.n_ranks "$run")" --verify --steps 2 --seed $seed --small-ints --tolerance 0 \
            --quiet "$run"
        jq -c .pipeline "$run" >>"$all"
    done
    # what they are to cover: states, forward values, several slots on the host, and of one place
    jq -se '[.[].stages[].program.modules[0].graph.nodes[] | select(.host)] as $host |
        any($host[]; .op == "parameter") and any($host[]; .op == "copy" and (.phase // "forward") == "forward") and
        any(.[].stages[]; .host_slot_bytes and (.slots | length) > 1) and
        any(.[]; (.lanes[0].host_bytes // 0) > 0 and (.stages[0].slots | not))' "$all"
}

@test "a line with optimizer and activations on the host trains as one device does" {
    needs_exec
    local what
    for what in tp=2,dp=2,zero=1,sp,offload=optimizer pp=2,dp=2,zero=1,offload=optimizer+activations \
        dp=4,zero=1,recompute=full,offload=activations; do
        line "$what,mbs=1" | ap-rewrite --quiet --no-history >"$BATS_TEST_TMPDIR/run.json"
        ap-exec -n 4 --steps 2 --verify --quiet "$BATS_TEST_TMPDIR/run.json"
        jq -e '.pipeline.lanes | all(.host_bytes > 0)' "$BATS_TEST_TMPDIR/run.json"
    done
}

@test "the optimizer on the host: bytes and seconds by hand" {
    local without=$BATS_TEST_TMPDIR/without.json with=$BATS_TEST_TMPDIR/with.json
    line dp=4,zero=1,mbs=1 >"$without"
    line dp=4,zero=1,mbs=1,offload=optimizer >"$with"
    jq -e '(.stages.line | test("offload=optimizer")) and (.cost.plan.words | test("offload optimizer$"))' "$with"
    # masters in f32 and two moments, a fourth of each on a device; masters come in twice, for the copies in bf16 and
    # for the update
    jq -se '.[0] as $a | .[1] as $b | $b.graph.nodes as $n |
        def bytes: capture("(?<t>[a-z0-9]+)\\[(?<d>[0-9,]*)\\]") | {bf16: 2, f32: 4, s32: 4}[.t] *
            reduce (.d | split(",")[] | tonumber) as $d (1; . * $d);
        ([$b.stages.offload[] | $n[.] | select(.role == "weight") | .shape | bytes] | add / 4) as $masters |
        ([$b.stages.offload[] | $n[.] | select(.role == "state") | .shape | bytes] | add / 4) as $states |
        ([$masters + $states, 2 * $masters + $states] as [$out, $in] |
            [$out / 2e8, $in / 1e8, ($out + $in) / 1.25e8] | max) as $link |
        ($states == 2 * $masters) and
        ($b.cost.plan.host_bytes - $masters - $states | . >= 0 and . < 64 * ($b.stages.offload | length)) and
        (($b.cost.plan.host_link_sec - $link) / $link | fabs < 1e-9) and
        $b.cost.stages[0].update_sec >= $link and $a.cost.stages[0].update_sec < $link and
        ($b.cost.step_sec - $a.cost.step_sec - ($link - $a.cost.stages[0].update_sec) | fabs < 1e-9) and
        ($a.cost.peak_bytes - $b.cost.peak_bytes) > 0.5 * $states' "$without" "$with"
    ap-cost --report "$with" | grep -q ' of 800 MB on the host; the link to it works .* ms of a step'
}

@test "trainers that update on the host: gradients go out, weights come in, cores read and write" {
    line dp=4,zero=1,mbs=1,packs,offload=optimizer,host-update | jq -e '.graph.nodes as $n |
        def elems: capture("\\[(?<d>[0-9,]*)\\]").d | reduce (split(",")[] | tonumber) as $d (1; . * $d);
        ([.stages.offload[] | $n[.] | select(.role == "weight") | .shape | elems] | add / 4) as $weights |
        ([4 * $weights / 2e8, 2 * $weights / 1e8, 6 * $weights / 1.25e8] | max) as $link | (30 * $weights / 1e8) as $cores |
        ((.cost.plan.host_link_sec - $link) / $link | fabs < 1e-9) and
        ((.cost.stages[0].update_sec - $cores) / $cores | fabs < 1e-9)'
    # weights that passes read as they are, all f32 or all bf16: as many bytes come in as go out
    local recipe
    for recipe in f32 bf16; do
        ap-model --no-history gpt --layers 4 --hidden 64 --heads 4 --seq 16 --vocab 128 --batch 16 --recipe $recipe |
            ap-fuse --quiet --no-history --cluster cpu-4 --kernels | ap-prune --quiet --no-history |
            ap-coarsen --quiet --no-history --algorithm layers |
            ap-stage --quiet --no-history --cluster "$BATS_FILE_TMPDIR/four.json" \
                --grid dp=4,zero=1,mbs=1,packs,offload=optimizer,host-update | ap-cost --quiet --no-history |
            jq -e --argjson type "$([ $recipe = f32 ] && echo 4 || echo 2)" '.graph.nodes as $n |
                def elems: capture("\\[(?<d>[0-9,]*)\\]").d | reduce (split(",")[] | tonumber) as $d (1; . * $d);
                ([.stages.offload[] | $n[.] | .shape | elems] | add / 8) as $weights |
                ([$type * $weights / 2e8, $type * $weights / 1e8, 2 * $type * $weights / 1.25e8] | max) as $link |
                ((.cost.plan.host_link_sec - $link) / $link | fabs < 1e-9)'
    done
    refuses 3 'memory_bytes_per_sec' ap-stage --quiet --cluster "$BATS_FILE_TMPDIR/eight.json" \
        --grid dp=8,zero=1,mbs=1,offload=optimizer,host-update "$BATS_FILE_TMPDIR/gpt.json"
    refuses 2 'the optimizer is not offloaded' ap-stage --quiet --cluster "$BATS_FILE_TMPDIR/four.json" \
        --grid dp=4,zero=1,mbs=1,host-update "$BATS_FILE_TMPDIR/gpt.json"
}

@test "activations on the host: a pass takes as long as its copies, and the device has less" {
    local without=$BATS_TEST_TMPDIR/without.json with=$BATS_TEST_TMPDIR/with.json
    line pp=2,dp=2,mbs=1 >"$without"
    line pp=2,dp=2,mbs=1,offload=activations >"$with"
    jq -se '.[0].cost as $a | .[1].cost as $b | $b.stages[0].forward_sec >= $a.stages[0].forward_sec and
        $b.stages[0].microbatch_bytes < $a.stages[0].microbatch_bytes and $b.peak_bytes < $a.peak_bytes and
        ((($a.stages[0].microbatch_bytes - $b.stages[0].microbatch_bytes) / 2e8 - $b.stages[0].forward_sec) | . <= 1e-12) and
        ((($a.stages[0].microbatch_bytes - $b.stages[0].microbatch_bytes) / 1e8 - $b.stages[0].backward_sec) | . <= 1e-12)' \
        "$without" "$with"
}

@test "activations of so many layers on the host: their share of the bytes, on ranks, in Megatron-LM's flags" {
    needs_exec
    local dir=$BATS_TEST_TMPDIR n
    for n in 0 1 2 3 4; do
        line "dp=4,zero=1,mbs=1$([ $n = 0 ] || echo ",offload=activations$([ $n = 4 ] || echo ":$n")")" >"$dir/$n.json"
    done
    line dp=4,zero=1,mbs=1,offload=activations:4 | jq '.stages.offload' | diff - <(jq '.stages.offload' "$dir/4.json")
    # the first layers': each has as many, but for what embedding and head keep beside them
    jq -se '[.[].stages.offload | length] as $n | $n[0] == 0 and ([range(2; 4) | $n[.] - $n[.-1]] | unique | length) == 1 and
        ([.[].cost.plan.host_bytes // 0] | . == sort and .[1] > 0 and .[1] < .[3]) and
        ([.[].cost.peak_bytes] | . == (sort | reverse) and .[0] > .[4])' "$dir"/{0,1,2,3,4}.json
    jq -e '.cost.plan.words | test("offload activations of 2 of each stage.s layers$")' "$dir/2.json"
    for n in dp=4,zero=1,offload=optimizer+activations:2 pp=2,dp=2,zero=1,offload=activations:1; do
        line "$n,mbs=1" | ap-rewrite --quiet --no-history >"$dir/run.json"
        ap-exec -n 4 --steps 2 --verify --quiet "$dir/run.json"
    done
    line dp=4,zero=1,mbs=1,packs,host-update,offload=optimizer+activations:2 | ap-rewrite --quiet --to megatron >"$dir/megatron.sh"
    grep -q -- '--cpu-offloading-num-layers 2$' "$dir/megatron.sh"
    ap-stage --quiet --no-history --cluster "$BATS_FILE_TMPDIR/four.json" --from "megatron:$dir/megatron.sh" \
        "$BATS_FILE_TMPDIR/gpt.json" | jq -e '.stages.line | test("offload=optimizer.activations:2")'
    refuses 3 '--cpu-offloading-num-layers: not with recomputation' ap-stage --quiet --cluster "$BATS_FILE_TMPDIR/four.json" \
        --for megatron --grid dp=4,mbs=1,recompute=full,offload=activations:2 "$BATS_FILE_TMPDIR/gpt.json"
}

@test "what a plan waits for its host is said apart" {
    local without=$BATS_TEST_TMPDIR/without.json with=$BATS_TEST_TMPDIR/with.json
    line pp=2,tp=2,mbs=1 >"$without"
    line pp=2,tp=2,mbs=1,offload=activations >"$with"
    # parts of the step; computation and collectives take what they take without
    jq -se 'map(.cost) | .[0] as $a | .[1] as $b | ($a | has("host_wait_sec") | not) and $b.host_wait_sec > 0.1 * $b.step_sec and
        ($b | (.compute_sec + .comm_sec + .send_sec + .sync_sec + .wait_sec + .host_wait_sec) / .step_sec - 1 | fabs < 1e-9) and
        ($b.compute_sec / $a.compute_sec - 1 | fabs < 1e-3) and ($b.comm_sec / $a.comm_sec - 1 | fabs < 1e-3) and $a.comm_sec > 0 and
        $b.sync_sec == $a.sync_sec' "$without" "$with"
    ap-cost --report "$with" >"$BATS_TEST_TMPDIR/report"
    grep -q 'compute .*, waiting for the host [1-9]' "$BATS_TEST_TMPDIR/report"
    grep -q "limited by the host's link, for [1-9]" "$BATS_TEST_TMPDIR/report"
    grep -q "^  twice the bandwidth of the host's link .*-[1-9]" "$BATS_TEST_TMPDIR/report"
    ap-cost --diff "$without" "$with" >"$BATS_TEST_TMPDIR/diff"
    grep -q '^ *[+].* waiting for the host$' "$BATS_TEST_TMPDIR/diff"
    run grep 'reductions of gradients' "$BATS_TEST_TMPDIR/diff"
    [ "$status" -eq 1 ]
}

@test "the host with least room left is the one that is named" {
    line pp=2,dp=2,mbs=1,offload=optimizer >"$BATS_TEST_TMPDIR/plan.json"
    # two hosts of two ranks, the second with little memory
    jq 'del(.name, .source, .levels, .attention, .overlap, .published) as $device | .levels[0] as $links |
        {name: "two", attention, overlap, levels: [$links + {size: 2}, $links + {size: 2, name: "hosts"}], hosts:
            [$device + {count: 1, links: ($links | {bandwidth_bytes_per_sec, latency_sec})} |
                ., (.device = "small" | .host_link.memory_bytes = 1000)]} | del(..|nulls)' \
        "$BATS_FILE_TMPDIR/four.json" >"$BATS_TEST_TMPDIR/two.json"
    ap-cost --report --cluster "$BATS_TEST_TMPDIR/two.json" "$BATS_TEST_TMPDIR/plan.json" |
        grep -q 'MB of 1 kB on the host: does not fit'
}

@test "what does not fit is searched with its optimizer on the host" {
    local plan=$BATS_TEST_TMPDIR/plan.json
    ap-stage --quiet --no-history --cluster "$BATS_FILE_TMPDIR/four.json" --memory 1MB --for megatron --recompute none \
        "$BATS_FILE_TMPDIR/gpt.json" >"$plan"
    jq -e '.stages | .line | test("offload=optimizer")' "$plan"
    # the plan of the line is as large and as fast as the search says, and no line fits that keeps the optimizer
    line "$(jq -r .stages.line "$plan")" | jq -e --argjson sec "$(jq .stages.objective_sec "$plan")" '.cost.peak_bytes <= 1e6 and
        .cost.step_sec == $sec'
    refuses 3 '' ap-stage --quiet --no-history --cluster cpu-4 --memory 1MB --for megatron --recompute none \
        "$BATS_FILE_TMPDIR/gpt.json"
    ap-rewrite --quiet --to megatron "$plan" | grep -q -- --optimizer-cpu-offload
    # over a fast link layers keep what they need on the host instead of running again
    jq '.host_link = {out_bytes_per_sec: 2e10, in_bytes_per_sec: 2e10}' "$CLUSTERS/cpu-4.json" >"$BATS_TEST_TMPDIR/fast.json"
    for cluster in "$BATS_TEST_TMPDIR/fast.json" "$CLUSTERS/cpu-4.json"; do
        ap-stage --quiet --no-history --cluster "$cluster" --memory 1400000 "$BATS_FILE_TMPDIR/gpt.json"
    done | jq -se 'map(.stages) | (.[0].line | test("offload=activations") and (test("recompute") | not)) and
        (.[1].line | test("recompute=full")) and .[0].objective_sec < .[1].objective_sec'
    # neither does a host that is too small
    jq '.host_link.memory_bytes = 1000' "$BATS_FILE_TMPDIR/four.json" >"$BATS_TEST_TMPDIR/small.json"
    refuses 3 ' bytes there, and has 1000 ' \
        ap-stage --quiet --no-history --cluster "$BATS_TEST_TMPDIR/small.json" --memory 1MB --for megatron \
        --recompute none "$BATS_FILE_TMPDIR/gpt.json"
}

@test "no plan that keeps values on the host is below the bound of auto" {
    local dir=$BATS_TEST_TMPDIR
    jq '.host_link = {out_bytes_per_sec: 1e12, in_bytes_per_sec: 1e12}' "$CLUSTERS/cpu-4.json" >"$dir/fast.json"
    ap-stage --quiet --no-history --cluster "$dir/fast.json" --memory 1.7MB "$BATS_FILE_TMPDIR/gpt.json" >"$dir/auto.json"
    jq -e '.stages | (.line | test("offload=optimizer")) and .lower_bound_sec > 0.95 * .objective_sec' "$dir/auto.json"
    # the plan without a limit fits once its optimizer is on the host: its nodes are those that a line offloads
    line dp=4,zero=1,mbs=1,offload=optimizer >"$dir/line.json"
    ap-stage --quiet --no-history --cluster "$dir/fast.json" --memory 10GB "$BATS_FILE_TMPDIR/gpt.json" |
        jq --slurpfile line "$dir/line.json" '.stages.offload = $line[0].stages.offload' |
        ap-cost --quiet --no-history >"$dir/by-hand.json"
    jq -se '.[1].cost.peak_bytes <= 1700000 and .[1].cost.step_sec <= .[0].stages.objective_sec and
        .[1].cost.step_sec >= .[0].stages.lower_bound_sec' "$dir/auto.json" "$dir/by-hand.json"
    # so it is with operators selected to run again
    ap-stage --quiet --no-history --cluster "$dir/fast.json" --memory 1.7MB --recompute selected "$BATS_FILE_TMPDIR/gpt.json" |
        jq -e --slurpfile hand "$dir/by-hand.json" '.stages.lower_bound_sec | . > 0 and . <= $hand[0].cost.step_sec'
}

@test "flags of Megatron and DeepSpeed that offload are written, and read back" {
    local dir=$BATS_TEST_TMPDIR
    line dp=4,zero=1,mbs=1,packs,offload=optimizer,host-update | ap-rewrite --quiet --to megatron >"$dir/megatron.sh"
    grep -q -- '--use-precision-aware-optimizer' "$dir/megatron.sh"
    grep -q -- '--overlap-cpu-optimizer-d2h-h2d' "$dir/megatron.sh"
    { echo WORLD_SIZE=4; cat "$dir/megatron.sh"; } >"$dir/train.sh"
    ap-stage --quiet --no-history --cluster "$BATS_FILE_TMPDIR/four.json" --from "megatron:$dir/train.sh" \
        "$BATS_FILE_TMPDIR/gpt.json" | jq -e '.stages.line | test("offload=optimizer.*host-update")'
    sed 's/--overlap-cpu-optimizer-d2h-h2d/--use-torch-optimizer-for-cpu-offload/' "$dir/train.sh" >"$dir/after.sh"
    ap-stage --no-history --cluster "$BATS_FILE_TMPDIR/four.json" --from "megatron:$dir/after.sh" \
        "$BATS_FILE_TMPDIR/gpt.json" 2>"$dir/notes" | jq -e '.stages.line | test("offload=optimizer")'
    grep -q 'without --overlap-cpu-optimizer-d2h-h2d' "$dir/notes"
    run grep torch-optimizer "$dir/notes"
    [ "$status" -eq 1 ]
    line dp=4,zero=2,mbs=1,packs,offload=optimizer,host-update | ap-rewrite --quiet --to deepspeed >"$dir/ds.json"
    jq -e '.zero_optimization.offload_optimizer.device == "cpu"' "$dir/ds.json"
    # what does not give a device offloads nothing
    jq '.zero_optimization.offload_optimizer = {}' "$dir/ds.json" >"$dir/none.json"
    local from
    for from in ds none; do
        ap-stage --quiet --no-history --cluster "$BATS_FILE_TMPDIR/four.json" --from "deepspeed:$dir/$from.json" \
            "$BATS_FILE_TMPDIR/gpt.json" | jq '.stages.line | test("offload=optimizer")'
    done | jq -se '. == [true, false]'
    refuses 3 'no flag of it says so' line_to torchtitan dp=4,zero=3,mbs=1,offload=optimizer
    refuses 3 'only with the distributed optimizer' line_to megatron dp=4,mbs=1,offload=optimizer
}

# line_to TRAINER LINE
line_to() {
    line "$2" | ap-rewrite --quiet --to "$1"
}

@test "what is not there, or has no program, is refused" {
    refuses 3 'has no host_link' ap-stage --quiet --cluster cpu-4 --grid dp=4,zero=1,mbs=1,offload=optimizer \
        "$BATS_FILE_TMPDIR/gpt.json"
    refuses 2 "offload: 'disk' is not one of" ap-stage --quiet --cluster "$BATS_FILE_TMPDIR/four.json" --grid dp=4,offload=disk \
        "$BATS_FILE_TMPDIR/gpt.json"
    refuses 2 "offload: '' is not one of optimizer, activations" ap-stage --quiet --cluster "$BATS_FILE_TMPDIR/four.json" \
        --grid dp=4,offload "$BATS_FILE_TMPDIR/gpt.json"
    local flags
    line_to megatron dp=4,zero=1,mbs=1,packs >"$BATS_TEST_TMPDIR/megatron.sh"
    while read -r flags; do
        { echo WORLD_SIZE=4; cat "$BATS_TEST_TMPDIR/megatron.sh"; echo "ARGS=(${flags%% | *})"; } >"$BATS_TEST_TMPDIR/train.sh"
        refuses 1 "${flags##* | }" ap-stage --quiet --cluster "$BATS_FILE_TMPDIR/four.json" \
            --from "megatron:$BATS_TEST_TMPDIR/train.sh" "$BATS_FILE_TMPDIR/gpt.json"
    done <<'END'
--fine-grained-activation-offloading | a line offloads all activations of layers: leave the flag out
--optimizer-cpu-offload --optimizer-offload-fraction 0.5 | fraction 0.5: 1.0 is what is supported
END
    refuses 2 "offload: 'optimizer:2' is not one of" ap-stage --quiet --cluster "$BATS_FILE_TMPDIR/four.json" \
        --grid dp=4,offload=optimizer:2 "$BATS_FILE_TMPDIR/gpt.json"
    refuses 2 "offload: expected a number from 1" ap-stage --quiet --cluster "$BATS_FILE_TMPDIR/four.json" \
        --grid dp=4,offload=activations:0 "$BATS_FILE_TMPDIR/gpt.json"
    refuses 2 "offload: 'optimizer+optimizer' is not one of" ap-stage --quiet --cluster "$BATS_FILE_TMPDIR/four.json" \
        --grid dp=4,offload=optimizer+optimizer "$BATS_FILE_TMPDIR/gpt.json"
    # the message names what the model lacks
    chain 1 1 >"$BATS_TEST_TMPDIR/block.json"
    refuses 3 'the model has no numbered layers' ap-stage --quiet --cluster "$BATS_FILE_TMPDIR/four.json" \
        --grid dp=4,offload=activations "$BATS_TEST_TMPDIR/block.json"
    jq '.host_link = {both: 3, out_bytes_per_sec: 1, in_bytes_per_sec: 1}' "$CLUSTERS/cpu-4.json" >"$BATS_TEST_TMPDIR/bad.json"
    refuses 1 'host_link/both: a host_link has no such member' ap-stage --quiet --cluster "$BATS_TEST_TMPDIR/bad.json" \
        "$BATS_FILE_TMPDIR/gpt.json"
    line dp=4,zero=1,mbs=1,offload=optimizer >"$BATS_TEST_TMPDIR/plan.json"
    for to in hlo jax torch taskgraph; do
        refuses 2 'on the host' ap-rewrite --quiet --to $to "$BATS_TEST_TMPDIR/plan.json"
    done
    jq '.stages.offload[0] = 0' "$BATS_TEST_TMPDIR/plan.json" >"$BATS_TEST_TMPDIR/bad.json"
    refuses 1 '/stages/offload/0: node 0' ap-check "$BATS_TEST_TMPDIR/bad.json"
    ap-rewrite --quiet "$BATS_TEST_TMPDIR/plan.json" >"$BATS_TEST_TMPDIR/run.json"
    jq '.pipeline.lanes[0].host_bytes += 64' "$BATS_TEST_TMPDIR/run.json" >"$BATS_TEST_TMPDIR/bad.json"
    refuses 1 'its buffers on the host take' ap-check "$BATS_TEST_TMPDIR/bad.json"
    jq '(.pipeline.stages[0].program.modules[0].graph.nodes[] | select(.host and .op == "copy") | .host) = false' \
        "$BATS_TEST_TMPDIR/run.json" >"$BATS_TEST_TMPDIR/bad.json"
    refuses 1 'buffer reaches beyond peak_bytes' ap-check "$BATS_TEST_TMPDIR/bad.json"
}
