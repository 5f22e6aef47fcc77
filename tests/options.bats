#!/usr/bin/env bats
# Options that no other file has in a test: each does what its page says.

load helpers

# The train step of a small forward graph: grad OPTION...
grad() {
    local forward=$BATS_FILE_TMPDIR/forward.json
    [ -s "$forward" ] || ap-import --no-history -o "$forward" "$(hlo mlp_fwd)"
    ap-grad --no-history "$@" "$forward"
}

# Whether a document has a scalar constant: has_constant VALUE
has_constant() {
    jq -e --argjson v "$1" 'any(.graph.nodes[]; .op == "constant" and .value == $v)' >/dev/null
}

# A small model: counts of weights and of their elements. sizes FAMILY OPTION...
small=(--layers 2 --hidden 32 --heads 4 --vocab 64 --seq 8 --batch 4)
sizes() {
    ap-model "$@" --stats -o /dev/null 2>&1 | jq -c '[.weights, .weight_elems]'
}

@test "--help: at most fifteen lines, and all options are in --help=all" {
    for t in $(ap_tools); do
        run -0 "$t" --help
        [ "${#lines[@]}" -le 14 ] || { echo "$t --help: ${#lines[@]} lines that are not empty"; return 1; }
        [[ $output == *"--help=all"* && ${lines[0]} == "usage: $t "* ]]
        "$t" --help=all >"$BATS_TEST_TMPDIR/all"
        while read -r line; do
            [[ $line == -* && $line != --help=all* ]] || continue
            grep -qE -e "^ *${line%% *} " "$BATS_TEST_TMPDIR/all" || { echo "$t --help=all lacks $line"; return 1; }
        done <<<"$output"
        n=$(grep -cE '^  -' "$BATS_TEST_TMPDIR/all")
        [[ $output == *"all $n options"* ]] || { echo "$t has $n options: $output"; return 1; }
        refuses 2 "--help: 'no-such' is not one of " "$t" --help=no-such
    done
    for group in alpa rannc rhino; do
        run -0 ap-coarsen --help=$group
        [[ $output == *"$group: "* && $output != *--algorithm* ]]
    done
}

@test "ap-grad --beta1: decay of Adam's first moment" {
    grad --optimizer adam | has_constant 0.9
    run ! has_constant 0.9 < <(grad --optimizer adam --beta1 0.5)
    grad --optimizer adam --beta1 0.5 | has_constant 0.5
}

@test "ap-grad --loss-scale: a power of two changes no loss, and is a state" {
    needs_exec
    for s in 0 1024; do
        grad --loss-scale $s | ap-rewrite | ap-exec --seed 1 --int-range 10 --steps 3 --json |
            jq -c .losses >"$BATS_TEST_TMPDIR/$s"
    done
    cmp "$BATS_TEST_TMPDIR/0" "$BATS_TEST_TMPDIR/1024"
    grad --loss-scale 1024 | jq -e 'any(.graph.nodes[]; .role == "state" and .name == "opt_state/scale")'
}

@test "ap-grad --weight-decay: sgd takes lr times the decay times the weight away" {
    needs_exec
    # the first weight: at the start (lr 0), after a step, after a step with decay
    local w files
    for w in "start --lr 0" "step --lr 1" "decay --lr 1 --weight-decay 0.5"; do
        set -- $w
        grad --optimizer sgd "${@:2}" | ap-rewrite |
            ap-exec --seed 1 --int-range 10 --out "$BATS_TEST_TMPDIR/$1" >/dev/null
        files=("$BATS_TEST_TMPDIR/$1"/[0-9]*.npy)
        od -An -v -t f4 -w4 -j 128 "${files[0]}" >"$BATS_TEST_TMPDIR/$1.txt"
    done
    paste "$BATS_TEST_TMPDIR/"{start,step,decay}.txt | awk '
        { d = $3 - ($2 - 0.5 * $1); if (d < 0) d = -d; if (d > worst) worst = d; if ($1 != 0) n++ }
        END { print n, worst; exit !(n > 0 && worst < 1e-6) }'
}

@test "ap-model --momentum, --weight-decay: the constants of the update" {
    ap-model gpt "${small[@]}" --optimizer momentum --momentum 0.75 | has_constant 0.75
    ap-model gpt "${small[@]}" --optimizer adamw --weight-decay 0.0625 >"$BATS_TEST_TMPDIR/a.json"
    ap-model gpt "${small[@]}" --optimizer adamw --weight-decay 0.125 >"$BATS_TEST_TMPDIR/b.json"
    run ! cmp -s "$BATS_TEST_TMPDIR/a.json" "$BATS_TEST_TMPDIR/b.json"
    ap-model gpt "${small[@]}" --optimizer adamw >"$BATS_TEST_TMPDIR/default.json"
    ap-model gpt "${small[@]}" --optimizer adamw --weight-decay 0.01 |
        cmp <(jq .graph) <(jq .graph "$BATS_TEST_TMPDIR/default.json")
}

@test "ap-model --head-bias, --head-dim: GPT's head has 64 biases, heads are 16 wide" {
    [ "$(sizes gpt "${small[@]}")" = "[36,27776]" ]
    [ "$(sizes gpt "${small[@]}" --head-bias)" = "[37,27840]" ] # 64 more
    # q, k and v of two layers: 32 more columns of 32, and 32 more biases; 32 more rows behind
    [ "$(sizes gpt "${small[@]}" --head-dim 16)" = "[36,$((27776 + 2 * (3 * (32 * 32 + 32) + 32 * 32)))]" ]
}

@test "ap-model --layer-norm, --target-seq: T5's norms and biases, its decoder's length" {
    read -r rms with < <(echo "$(sizes t5 "${small[@]}" | jq '.[0]') $(sizes t5 "${small[@]}" --layer-norm | jq '.[0]')")
    [ "$with" -gt "$rms" ]
    ap-model t5 "${small[@]}" --target-seq 5 |
        jq -e '[.graph.nodes[] | select(.role == "input") | .shape] | index("s32[4,5]") and index("s32[4,8]")'
}

@test "ap-model --moe-every, --capacity: how many layers have experts, how many tokens they accept" {
    local experts='[.graph.nodes[] | select(.op == "dot" and .phase == "forward" and .shape == $shape)] | length'
    [ "$(ap-model moe "${small[@]}" --experts 4 | jq --arg shape 'f32[4,4,4,128]' "$experts")" -eq 1 ]
    [ "$(ap-model moe "${small[@]}" --experts 4 --moe-every 1 | jq --arg shape 'f32[4,4,4,128]' "$experts")" -eq 2 ]
    [ "$(ap-model moe "${small[@]}" --experts 4 --capacity 3 | jq --arg shape 'f32[4,4,3,128]' "$experts")" -eq 1 ]
}

@test "ap-model --width-factor: twice as wide is four times the weights of a convolution" {
    local net=(resnet --layers 18 --hidden 8 --image 32 --batch 4 --classes 10)
    read -r one two < <(echo "$(sizes "${net[@]}" | jq '.[1]') $(sizes "${net[@]}" --width-factor 2 | jq '.[1]')")
    [ "$two" -gt $((3 * one)) ]
    [ "$two" -lt $((4 * one)) ]
}

@test "ap-rewrite --rankfile, --hosts, --rankfile-format, --rankfile-cores: ranks on the hosts of the plan" {
    local plan=$BATS_TEST_TMPDIR/plan.json file=$BATS_TEST_TMPDIR/ranks
    ap-shard --mesh 2x8 --cluster tap -o "$plan" "$(imported mlp)"
    ap-rewrite --rankfile "$file" --hosts b,a "$plan" | jq -e '.placement.hosts == ([range(16)] | map(. / 8 | floor))'
    diff "$file" <(for r in {0..15}; do
        if [ "$r" -lt 8 ]; then echo "rank $r=b slot=$r"; else echo "rank $r=a slot=$((r - 8))"; fi
    done)
    ap-rewrite --rankfile "$file" --hosts b,a --rankfile-cores 4 -o /dev/null "$plan"
    [ "$(sed -n 10p "$file")" = "rank 9=a slot=4-7" ]
    ap-rewrite --rankfile "$file" --hosts b,a --rankfile-format slurm -o /dev/null "$plan"
    diff "$file" <(printf 'b\n%.0s' {1..8} && printf 'a\n%.0s' {1..8})
    # stages on some devices of two of three hosts, whose ranks are the devices in order
    ap-coarsen --blocks 2 --eps 1 "$(imported mlp)" | jq --argjson c "$(jq '.levels[1].size = 3' "$CLUSTERS/papers/tap.json")" '.cluster = $c
        | .stages = {schedule: "1f1b", microbatches: 2, stages: [[0, [2, 3]], [1, [20, 21]]]
        | map({blocks: [.[0]], devices: .[1], sharding: {algorithm: "data", mesh: "2"}})}' >"$plan"
    ap-rewrite --rankfile "$file" --hosts x,z "$plan" | jq -e '.placement.hosts == [0, 0, 1, 1]'
    [ "$(tr '\n' ' ' <"$file")" = "rank 0=x slot=0 rank 1=x slot=1 rank 2=z slot=0 rank 3=z slot=1 " ]
    refuses 2 "the plan's 4 ranks are priced on 2 hosts, got 3 names" ap-rewrite --rankfile "$file" --hosts x,y,z "$plan"
    refuses 2 "--hosts: x is named twice" ap-rewrite --rankfile "$file" --hosts x,x "$plan"
    refuses 2 '--hosts: expected names of hosts with commas between them, got ""' ap-rewrite --rankfile "$file" --hosts x, "$plan"
    refuses 2 "--rankfile: needs --hosts" ap-rewrite --rankfile "$file" "$plan"
    refuses 2 "--hosts: needs --rankfile" ap-rewrite --hosts x "$plan"
    refuses 2 "--rankfile is for --to program" ap-rewrite --to hlo --rankfile "$file" --hosts x "$plan"
}

@test "ap-exec --alternate: plans of one step take turns on the same ranks, and each is right" {
    needs_exec
    local a b
    a=$(rewritten mlp 2x2 data) b=$(rewritten mlp 4 zero3)
    ap-exec -n 4 --data "$MODELS/mlp/in" --steps 3 --verify --alternate "$b" "$a" >"$BATS_TEST_TMPDIR/out"
    [ "$(grep -o '^.*: step [0-9]' "$BATS_TEST_TMPDIR/out" | tr '\n' ' ')" = "$(for i in 1 2 3; do
        printf '%s: step %d ' "$a" $i "$b" $i; done)" ]
    [ "$(grep -c '^verify: losses' "$BATS_TEST_TMPDIR/out")" -eq 2 ]
    ap-exec -n 4 --data "$MODELS/mlp/in" --steps 5 --compare "$MODELS/mlp" --tolerance 1e-4 --json --alternate "$b" "$a" >"$BATS_TEST_TMPDIR/out"
    jq -se 'length == 2 and all(.[]; .compare.loss_error < 1e-5 and .memory[0].measured_bytes == null)
        and .[1].memory[0].buffer_bytes < .[0].memory[0].buffer_bytes' "$BATS_TEST_TMPDIR/out"
    refuses 1 "the program is for 4 ranks, this job has 2" ap-exec -n 2 --alternate "$a" "$(rewritten mlp 2)"
    refuses 2 "--alternate: --out is of one program" ap-exec --out x --alternate "$a" "$b"
    refuses 2 "--alternate: expected a file, got -" ap-exec --alternate - "$b"
}

@test "files beside the output, and -o, go where a symbolic link points" {
    local f dir=$BATS_TEST_TMPDIR
    for f in out trace ranks; do ln -s "$f.there" "$dir/$f"; done
    ap-shard --mesh 2 "$(imported mlp)" | ap-cost --trace "$dir/trace" | ap-rewrite --rankfile "$dir/ranks" --hosts a -o "$dir/out"
    for f in out trace ranks; do [ -L "$dir/$f" ] && [ -s "$dir/$f.there" ]; done
}

@test "ap-exec: a placement of other ranks is refused" {
    needs_exec
    jq '.placement.hosts = [0, 0, 1]' "$(rewritten mlp 2)" >"$BATS_TEST_TMPDIR/bad.json"
    refuses 1 "bad.json: /placement/hosts: expected 2 integers, got 3" ap-exec -n 2 "$BATS_TEST_TMPDIR/bad.json"
}

@test "ap-shard --max-axes: --mesh auto tries meshes of so many axes" {
    local n
    for n in 1 2 3; do
        ap-shard --mesh auto --max-axes $n --algorithm data --cluster cpu-8 "$(imported mlp)" |
            jq -c '.sharding.meshes | length'
    done >"$BATS_TEST_TMPDIR/got"
    [ "$(tr '\n' ' ' <"$BATS_TEST_TMPDIR/got")" = "1 3 4 " ] # 8; 2x4, 4x2; 2x2x2
}

# Blocks of a GPT whose batch suits 64 devices.
blocks() {
    local f=$BATS_FILE_TMPDIR/blocks.json
    [ -s "$f" ] || ap-model gpt --layers 4 --hidden 256 --heads 4 --vocab 1000 --batch 256 | ap-prune |
        ap-coarsen --blocks 4 -o "$f"
    echo "$f"
}
stage() { # OPTION...: statistics of a plan with data parallel stages
    ap-stage --shard-command 'ap-shard --serve --algorithm data' --microbatches 4 --cluster p3x8 "$@" \
        --stats -o "$BATS_TEST_TMPDIR/plan.json" "$(blocks)" 2>&1 | tail -n 1
}

@test "ap-stage --search: RaNNC's goes on to more stages, and its own measure does not get worse" {
    local first all asked_first asked_all
    asked_first=$(stage --algorithm rannc --search first | jq .asked)
    first=$(jq '.history[-1].measured' "$BATS_TEST_TMPDIR/plan.json")
    asked_all=$(stage --algorithm rannc --search all | jq .asked)
    all=$(jq '.history[-1].measured' "$BATS_TEST_TMPDIR/plan.json")
    [ "$asked_all" -gt "$asked_first" ]
    jq -en --argjson all "$all" --argjson first "$first" '$all <= $first'
}

@test "ap-stage --kept: fewer plans are simulated" {
    [ "$(stage --kept 1 | jq .plans)" -lt "$(stage | jq .plans)" ]
    jq -e '.stages | .objective_sec >= .lower_bound_sec' "$BATS_TEST_TMPDIR/plan.json"
}

@test "ap-stage --work-limit: the search stops early, with a plan and its bound" {
    stage --work-limit 1 >/dev/null
    jq -e '.stages | .stopped == "work limit" and .objective_sec >= .lower_bound_sec' "$BATS_TEST_TMPDIR/plan.json"
}

@test "ap-shard --overlap: the objective is ap-cost's step, no plan by rule is quicker, and the bound is below" {
    local a best one=$BATS_TEST_TMPDIR/one.json doc=$BATS_TEST_TMPDIR/doc.json
    ap-model gpt "${small[@]}" --hidden 256 --seq 64 --batch 16 | ap-prune >"$one"
    for m in 8 2x4; do
        ap-shard --mesh $m --cluster h100-8 --overlap on "$one" | ap-cost -o "$doc"
        jq -e '.sharding as $s | .cost.step_sec == $s.objective_sec and
            $s.lower_bound_sec > $s.objective_sec / 2 and $s.lower_bound_sec <= $s.objective_sec' "$doc"
        best=$(jq .sharding.objective_sec "$doc")
        for a in data zero1 zero3 megatron; do
            ap-shard --mesh $m --cluster h100-8 --overlap on --algorithm $a "$one" |
                jq -e ".sharding.objective_sec >= $best * (1 - 1e-9)"
        done
    done
    # a step that is compute most of the time is proven at one λ
    ap-model gpt --layers 4 --heads 4 --vocab 512 --hidden 1024 --seq 256 --batch 256 |
        ap-shard --mesh 8 --cluster a100-8 --stats -o "$doc" 2>"$one.said"
    [[ $(<"$one.said") == *'"overlap_searches":'[12]'}'* ]]
    jq -e '.sharding | .gap < 0.003 and .objective_sec < 0.1' "$doc" # gap: what one λ proves
    # most of the time is hidden where choices of known plans are put together for that
    ap-model gpt --layers 2 --hidden 1024 --heads 16 --batch 64 | ap-prune |
        ap-shard --mesh 8x4 --cluster h100x4 --overlap on |
        jq -e '.sharding | .objective_sec < 0.0114 and .lower_bound_sec > 0.00797'
    # a proof at one λ does not end the search for plans
    ap-model gpt --layers 4 --hidden 256 --heads 8 --seq 128 --vocab 1000 --batch 32 |
        ap-shard --mesh 8x4 --cluster h100x4 --overlap on |
        jq -e '.sharding.objective_sec < 0.0023'
    # a loop's operators are weighted once, or the bound is above the step
    ap-import --keep-loops "$MODELS/lstm/lstm.hlo" | ap-shard --mesh 8 --cluster h100-8 --overlap on |
        jq -e '.sharding | .lower_bound_sec <= .objective_sec and .gap < 0.01'
    refuses 2 "without --overlap" ap-shard --serve --overlap on --cluster h100-8 "$one"
    ap-shard --mesh 8 --cluster h100-8 --overlap off "$one" | jq -e '.cluster | has("overlap") | not'
}
