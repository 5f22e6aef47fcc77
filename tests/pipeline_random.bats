#!/usr/bin/env bats
# Random pipelined plans of random graphs on 1 to 8 ranks give the bits of one device: schedules,
# microbatches, statistics of the batch or of each microbatch, recomputation, layouts on both sides
# of every transfer, buckets of gradients. AP_PIPELINES=300 runs so many of them, from AP_SEED on,
# AP_SCHEDULE=zb-v under one schedule.

load helpers

# shellcheck disable=SC2016 # links between devices that follow each other, one by one
each='def each: [.[] | . as [$f, $t, $b, $n] | range(0; $n // 1) | [$f + ., $t + ., $b]] | sort;'

setup() { needs_exec; }

# The plan of case SEED in $dir/plan.json, its program in $dir/run.json: 1 where there is none.
rewritten() {
    local why rules=() pack=(--pack-bytes "$((100 << ($1 / 3 % 4)))")
    [ $(($1 / 2 % 2)) -eq 0 ] || pack+=(--overlap)
    [ $(($1 % 3)) -gt 0 ] || pack=()
    until /usr/bin/python3 tests/staged.py "$1" "$mode" "${rules[@]}" <"$dir/blocks.json" >"$dir/plan.json" &&
        why=$(ap-rewrite --no-history "${pack[@]}" "$dir/plan.json" 2>&1 >"$dir/run.json"); do
        # a stage without rows of the batch cannot split them
        [[ $why =~ /stages/stages/([0-9]+)/sharding:\ [a-z0-9-]+:\ no\ input\ has\ a\ batch ]] || break
        rules+=("${BASH_REMATCH[1]}")
    done
    [ -z "$why" ] || echo "$why" >"$dir/why"
    [ -z "$why" ]
}

# document ROWS: a random graph of so many rows ("": without statistics), its train step every other time.
document() {
    local grad=(ap-grad --quiet --no-history --optimizer sgd --lr 1)
    [ $((seed % 4)) -ne 0 ] || grad=(cat)
    # shellcheck disable=SC2086 # no rows are no argument
    /usr/bin/python3 tests/chain.py "$seed" "$layers" $1 | ap-import --quiet --no-history | "${grad[@]}"
}

# Passes of microbatches in the lists of a program, and in the timeline of its plan; a stage without
# groups for a pass runs none.
passes='
    def once: reduce .[] as $x ([]; if .[-1] == $x then . else . + [$x] end);
    .pipeline as $p |
    [$p.lanes[].instructions | [.[] | select(has("run")) | $p.stages[.run].cuts as $c |
        select(.groups[0] >= $c[0] and .groups[0] < $c[-1]) |
        [.run, .microbatch, (.groups[0] as $g | [$c[] | select(. <= $g)] | length - 1)]] | once] as $lists |
    ($lists | add | map([.[0], .[2]]) | unique) as $there |
    ["forward", "backward", "weights"] as $names |
    [$t[0].traceEvents[] | select(.ph == "X" and (.cat | IN($names[]))) |
        [.pid, .args.stage, .args.microbatch, (.cat | . as $cat | $names | index($cat))] |
        select([.[1], .[3]] as $span | $there | index([$span]))] |
    $lists == [range($lists | length) as $d | [.[] | select(.[0] == $d + 1)[1:]]]
'

# one SEED: what case SEED is, its number of ranks, and whether its bits are right.
one() {
    local seed=$1 n=$(($1 % 5 % 4 + 1)) mode=exact rows="" m i layers
    [ -z "${AP_SCHEDULE:-}" ] || n=$((2 + 2 * ($1 % 3)))
    layers=$((n + 2 + (seed % 3 > 0) * 2 * n)) # several gradients in a stage, to pack
    [ $((seed % 2)) -eq 0 ] || { mode=each; rows=8; }
    rm -rf "$dir"
    mkdir "$dir"
    document "$rows" | tee "$dir/whole.json" |
        ap-coarsen --quiet --no-history --algorithm alpa --blocks "$n" --eps 4 >"$dir/blocks.json"
    if ! rewritten "$seed"; then
        # stages that need each other in turn have no order
        grep -q "depend on each other in a cycle\|are too few for\|only adds" "$dir/why" && return 2
        cat "$dir/why"
        return 1
    fi
    m=$(jq .stages.microbatches "$dir/plan.json")
    /usr/bin/python3 tests/slices.py data "$dir/whole.json" "$seed" "$m" "$dir"
    timeout 300 ap-exec -n "$(jq .pipeline.n_ranks "$dir/run.json")" --quiet --verify --tolerance 0 \
        --data "$dir/whole" --out "$dir/out" --json "$dir/run.json" >"$dir/out.json" || return 1
    # the list scheduler over the task graph orders passes as the lists do, or refuses
    if [ "$(jq '.pipeline.stages | any(.cuts | length == 4)' "$dir/run.json")" = false ]; then
        ap-rewrite --no-history --to taskgraph "$dir/plan.json" >"$dir/tasks.json" || return 1
        jq -e '[.lanes[].order[]] | length == (unique | length)' "$dir/tasks.json" >"$dir/same" || return 1
    fi
    # what each rank sent each other one is what was priced
    if ap-cost --no-history --trace "$dir/trace.json" "$dir/plan.json" >"$dir/cost.json" 2>"$dir/why"; then
        # the passes of the simulation are those of the lists, in order; the lists are priced likewise
        jq -e --slurpfile t "$dir/trace.json" "$passes" "$dir/run.json" >"$dir/same" || return 1
        ap-cost --no-history "$dir/run.json" | jq -e --slurpfile c "$dir/cost.json" '.cost == $c[0].cost' >"$dir/same" || return 1
        jq -e --slurpfile c "$dir/cost.json" "$each"' .links == ($c[0].cost.links | each)' "$dir/out.json" >"$dir/same" || {
            jq -c --slurpfile c "$dir/cost.json" '{sent: .links, priced: $c[0].cost.links}' "$dir/out.json"
            return 1
        }
        priced=$((priced + 1))
    elif ! grep -q "are too few for" "$dir/why"; then # rows that are padded are run, not priced
        cat "$dir/why"
        return 1
    fi
    [ $mode = each ] || return 0
    # each microbatch alone, on one device
    document $((8 / m)) | ap-rewrite --no-history >"$dir/slice.json"
    for ((i = 0; i < m; i++)); do
        ap-exec --quiet --data "$dir/in$i" --out "$dir/out$i" "$dir/slice.json"
    done
    /usr/bin/python3 tests/slices.py check "$m" "$dir" 0
}

@test "random pipelines give one device's bits; with statistics of each microbatch, the average of its slices" {
    local dir=$BATS_TEST_TMPDIR/case seed n=0 refused=0 priced=0 want=${AP_PIPELINES:-16} status
    for ((seed = ${AP_SEED:-1}; n < want; seed++)); do
        # a forward pass alone, of every fourth, has no schedule but that of inference
        [ -z "${AP_SCHEDULE:-}" ] || [ $((seed % 4)) -ne 0 ] || continue
        status=0
        one "$seed" || status=$?
        [ $status -ne 1 ] || { echo "seed $seed"; return 1; }
        if [ $status -eq 2 ]; then
            refused=$((refused + 1))
        else
            n=$((n + 1))
            jq -c '[.pipeline.schedule, .pipeline.microbatch, .pipeline.n_ranks, .pipeline.microbatches,
                any(.pipeline.stages[].program.modules[].graph.nodes[]; .each),
                any(.pipeline.stages[].program.modules[].graph.nodes[]; .recomputed),
                any(.pipeline.stages[].program.modules[].graph.nodes[]; .name | test("concatenate.pack")),
                any(.pipeline.stages[].program.modules[].async // [] | .[]; true)]' "$dir/run.json" >>"$BATS_TEST_TMPDIR/all"
        fi
    done
    # what is made of inputs alone is sent, too: its bytes had no price
    seed=197
    one $seed || { echo "seed $seed"; return 1; }
    echo "# $n cases, $priced of them priced; $refused without an order" >&3
    [ "$refused" -lt "$n" ]
    [ "$priced" -gt $((n / (${#AP_SCHEDULE} ? 4 : 2))) ] # dualpipe-v takes 8 microbatches, of few rows
    if [ -n "${AP_SCHEDULE:-}" ]; then
        jq -se --arg s "$AP_SCHEDULE" 'all(.[0] == $s)' "$BATS_TEST_TMPDIR/all"
        return
    fi
    # what they are to cover
    jq -se 'any(.[0] == "gpipe") and any(.[0] == "1f1b") and any(.[1] == "each") and any(.[1] == "exact") and
        (length < 100 or any(.[0] == "interleaved-1f1b") and any(.[0] == "inference") and any(.[2] == 1) and
            any(.[2] == 8) and any(.[3] == 8) and any(.[4]) and any(.[5]) and any(.[6]) and any(.[7]))' "$BATS_TEST_TMPDIR/all"
}

# cut BLOCKS FILE: a graph in that many stages of one device and 2 microbatches with their own statistics.
cut() {
    ap-import --quiet --no-history "$2" | ap-coarsen --quiet --no-history --algorithm rhino --blocks "$1" |
        jq -c '.blocks.n as $n | .stages = {microbatches: 2, microbatch: "each", stages: [range($n) |
            {blocks: [.], devices: [.], sharding: {algorithm: "data", mesh: "m=1"}}]}'
}

@test "statistics of each microbatch: what has none is refused by name" {
    local dir=$BATS_TEST_TMPDIR
    # step TEXT: rows of a batch, and what is made of them
    step() {
        printf '%s\n' 'HloModule m' 'add { a = s32[] parameter(0)  b = s32[] parameter(1)  ROOT c = s32[] add(a, b) }' \
            'times { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] multiply(a, b) }' \
            'ENTRY e {' 'x = f32[8,4] parameter(0)' 'one = f32[] constant(1)' 'none = s32[] constant(0)' "$@" '}' >"$dir/step.hlo"
        cut 1 "$dir/step.hlo" >"$dir/plan.json"
    }
    step 'ROOT d = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={1}'
    refuses 2 "microbatches would need each other's rows" ap-rewrite "$dir/plan.json"
    step 'p = f32[4] reduce(x, one), dimensions={0}, to_apply=times' 'q = f32[8,4] broadcast(p), dimensions={1}' \
        'ROOT d = f32[8,4] multiply(x, q)'
    refuses 2 "it cannot be estimated from one microbatch" ap-rewrite "$dir/plan.json"
    step 'i = s32[8,4] convert(x)' 'p = s32[4] reduce(i, none), dimensions={0}, to_apply=add' 'ROOT d = s32[4] multiply(p, p)'
    refuses 2 "integers of microbatches have no average" ap-rewrite "$dir/plan.json"
    # a sum that only the result is made of needs no estimate
    step 'i = s32[8,4] convert(x)' 'ROOT p = s32[4] reduce(i, none), dimensions={0}, to_apply=add'
    ap-rewrite "$dir/plan.json" | ap-exec --verify --tolerance 0
}

@test "statistics of each microbatch: batch norms and experts of the golden models run in three stages" {
    local dir=$BATS_TEST_TMPDIR m
    for m in resnet moe; do
        ap-coarsen --quiet --no-history --algorithm alpa --blocks 3 --eps 3 "$(imported $m)" |
            jq -c '.stages = {schedule: "1f1b", microbatches: 2, microbatch: "each", stages: [range(0; 3) |
                {blocks: [.], devices: [. * 2, . * 2 + 1], sharding:
                    {algorithm: ["data", "megatron", "zero2"][.], mesh: "m=2"}}]}' |
            ap-rewrite --no-history >"$dir/run.json"
        /usr/bin/python3 tests/validate.py "$dir/run.json"
        timeout 300 ap-exec -n 6 --verify --steps 2 "$dir/run.json"
    done
}

@test "alpa, section 6: a local all-gather sends each replicated tile once between the stages" {
    local dir=$BATS_TEST_TMPDIR how want
    ap-model gpt --layers 2 --hidden 32 --heads 2 --seq 8 --vocab 64 --batch 8 --no-history |
        ap-coarsen --quiet --no-history --blocks 2 >"$dir/blocks.json"
    for how in send-recv local-allgather broadcast; do
        ap-stage --quiet --no-history --cluster cpu-4 --stages 2 --submeshes 1x2 --microbatches 2 --resharding $how \
            --shard-command "ap-shard --serve --algorithm megatron" "$dir/blocks.json" >"$dir/$how.json"
        jq -e --arg how $how '.stages.resharding == $how' "$dir/$how.json"
        ap-cost --no-history "$dir/$how.json" | jq -c "$each .cost.links | each" >"$dir/priced"
        ap-rewrite --no-history "$dir/$how.json" >"$dir/run.json"
        jq -e --arg how $how 'any(.pipeline.transfers[]; .resharding == $how)' "$dir/run.json"
        timeout 300 ap-exec -n 4 --verify --json "$dir/run.json" | jq -c .links >"$dir/sent"
        cmp "$dir/priced" "$dir/sent"
        # devices 0 and 1 are stage 0
        jq '[.[] | select((.[0] < 2) != (.[1] < 2)) | .[2]] | add' "$dir/sent" >"$dir/$how.between"
    done
    # activations are whole on both devices of a stage
    [ "$(<"$dir/send-recv.between")" -gt "$(<"$dir/local-allgather.between")" ]
    cmp "$dir/local-allgather.between" "$dir/broadcast.between"
}

@test "a state that several stages read comes from one of them, and is priced" {
    local dir=$BATS_TEST_TMPDIR
    # layers that are trained one by one, each with its own update, and one count of steps
    ap-coarsen --quiet --no-history --algorithm alpa --blocks 3 --eps 3 "$(imported ff)" |
        jq -c '.stages = {schedule: "1f1b", microbatches: 2, stages: [range(0; 3) |
            {blocks: [.], devices: [.], sharding: {algorithm: "data", mesh: "m=1"}}]}' |
        ap-cost --quiet --no-history >"$dir/priced.json"
    ap-rewrite --no-history "$dir/priced.json" >"$dir/run.json"
    jq -e 'any(.pipeline.transfers[]; .shape == "s32[]")' "$dir/run.json"
    timeout 300 ap-exec -n 3 --verify --json "$dir/run.json" |
        jq -e --slurpfile p "$dir/priced.json" "$each"' .links == ($p[0].cost.links | each)'
}

@test "the list that the document has is the one that is simulated" {
    local dir=$BATS_TEST_TMPDIR s
    ap-coarsen --quiet --no-history --algorithm alpa --blocks 3 --eps 3 "$(imported mlp)" >"$dir/blocks.json"
    for s in gpipe 1f1b; do
        jq -c --arg s $s '.stages = {schedule: $s, microbatches: 4, stages: [range(0; 3) |
            {blocks: [.], devices: [.], sharding: {algorithm: "data", mesh: "m=1"}}]}' "$dir/blocks.json" |
            ap-rewrite --no-history >"$dir/$s.json"
        ap-cost --no-history "$dir/$s.json" | jq -c '[.cost.step_sec, .cost.devices[].memory.summed_bytes]' >"$dir/$s.cost"
    done
    run ! cmp -s "$dir/gpipe.cost" "$dir/1f1b.cost"
    # gpipe's lists under another name
    jq -c --slurpfile g "$dir/gpipe.json" '.pipeline.lanes = $g[0].pipeline.lanes' "$dir/1f1b.json" |
        ap-cost --no-history | jq -c '[.cost.step_sec, .cost.devices[].memory.summed_bytes]' | cmp - "$dir/gpipe.cost"
    refused() {
        jq -c "$2" "$dir/1f1b.json" >"$dir/bad.json"
        refuses 1 "$1" ap-cost "$dir/bad.json"
    }
    refused "/pipeline: is of another plan than the stages" '.stages.microbatches = 2'
    refused "/pipeline/lanes/0/instructions: leaves out microbatch 3 of stage 0" '.pipeline.lanes[0].instructions |= map(select(.microbatch != 3))'
    refused "/pipeline/lanes: 2 lanes, the plan has 3" '.pipeline.lanes |= .[:2]'
    refused "the stage is not of this lane" '.pipeline.lanes[0] as $l | .pipeline.lanes[0] = .pipeline.lanes[1] | .pipeline.lanes[1] = $l'
}
