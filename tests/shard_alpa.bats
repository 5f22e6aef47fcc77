#!/usr/bin/env bats
# Alpa's space under Alpa's prices: the closed forms of Alpa's own tests, derived from layer
# sizes, and what its paper reports of the plans.

load helpers
load alpa_helpers

# mlp LAYERS BATCH HIDDEN: a train step with Adam, all layers of one width
mlp() {
    local f=$BATS_FILE_TMPDIR/mlp-$1-$2-$3.json
    [ -s "$f" ] || ap-model mlp --no-history --layers "$1" --batch "$2" --features "$3" \
        --hidden "$3" --classes "$3" --optimizer adam -o "$f" || return
    echo "$f"
}

# ---- closed forms ----
# Where our step differs from theirs: cross-entropy in place of a mean square, which adds
# the scalar of the loss; a step counter among Adam's leaves.

@test "closed form: MLP, data parallel on either axis" {
    for a in 0 1; do
        [ $a = 0 ] && mesh=4x1 batch=S0,R || mesh=1x4 batch=R,S0
        f=$(alpa "$(mlp 6 256 32)" $mesh)
        closed "$f" "6 * (ar(4 * 32 * 32; $a) + ar(4 * 32; $a)) + pen(12 + 25)"
        [ "$(layouts "$f" weight . | tr ' ' '\n' | sort -u)" = R,R ]
        [ "$(layouts "$f" input .)" = "$batch $batch" ]
    done
}

@test "closed form: MLP, model parallel on either axis" {
    for a in 0 1; do
        [ $a = 0 ] && mesh=4x1 column=S1,R row=S0,R || mesh=1x4 column=R,S1 row=R,S0
        f=$(alpa "$(mlp 6 64 128)" $mesh)
        # replicated: inputs, step, biases of the layers split by rows, and their states
        closed "$f" "(6 - 1) * ar(4 * 64 * 128; $a) + pen(2 + 1 + 3 * 3)"
        [ "$(layouts "$f" weight '/w$')" = "$column $row $column $row $column $row" ]
    done
}

@test "closed form: MLP, data and model parallel on two axes" {
    f=$(alpa "$(mlp 6 64 128)" 2x2)
    # biases of columns are split with them
    closed "$f" "6 * ar(4 * 128 * 128 / 2; 0) + 3 * (ar(4 * 128 / 2; 0) + ar(4 * 128; 0)) + pen(3 * 3) +
        (6 - 1) * ar(4 * 64 / 2 * 128; 1)"
    [ "$(layouts "$f" weight '/w$')" = "R,S1 R,S0 R,S1 R,S0 R,S1 R,S0" ]
    [ "$(layouts "$f" input .)" = "S0,R S0,R" ]
}

# Weights of a layer of width h: queries, keys and values 3 h^2, output h^2, feed-forward 8
# h^2, their biases 3 + 1 + 4 + 1, two norms 4 h. Twelve leaves, and two states for each.
@test "closed form: BERT, data parallel on either axis" {
    for a in 0 1; do
        [ $a = 0 ] && mesh=4x1 || mesh=1x4
        f=$(alpa "$(bert 2 64 16 64 8)" $mesh)
        closed "$f" "64 as \$h |
            def layer: ([3, 1, 4, 4 | ar(4 * . * \$h * \$h; $a)] | add) +
                ([3, 1, 4, 1, 1, 1, 1, 1 | ar(4 * . * \$h; $a)] | add);
            2 * layer + pen(2 * 12 * 3 + 1)"
        [ "$(layouts "$f" weight . | tr ' ' '\n' | sort -u)" = R,R ]
    done
}

@test "closed form: BERT, model parallel on either axis" {
    for a in 0 1; do
        [ $a = 0 ] && mesh=4x1 column=S1,R row=S0,R || mesh=1x4 column=R,S1 row=R,S0
        f=$(alpa "$(bert 2 8 8 128 8)" $mesh)
        # two forward and two backward a layer; nothing goes back into the hidden states
        # replicated: inputs, step, in each layer two biases and the norms, and their states
        closed "$f" "(4 * 2 - 1) * ar(4 * 8 * 8 * 128; $a) + pen(2 + 1 + 2 * 6 * 3)"
        [ "$(layouts "$f" weight '_w$')" = "$column $row $column $row $column $row $column $row" ]
    done
}

@test "closed form: BERT, data and model parallel on two axes" {
    f=$(alpa "$(bert 2 8 8 128 8)" 2x2)
    closed "$f" "128 as \$h |
        def layer: ([3, 1, 4, 4 | ar(4 * . * \$h * \$h / 2; 0)] | add) +
            ([3, 4 | ar(4 * . * \$h / 2; 0)] | add) +
            ([1, 1, 1, 1, 1, 1 | ar(4 * . * \$h; 0)] | add) + pen(6 * 3);
        2 * layer + (4 * 2 - 1) * ar(4 * 8 / 2 * 8 * \$h; 1)"
    [ "$(layouts "$f" weight '_w$')" = "R,S1 R,S0 R,S1 R,S0 R,S1 R,S0 R,S1 R,S0" ]
    [ "$(layouts "$f" input .)" = "S0,R S0,R" ]
    # attention by sequences and heads
    [ "$(dots "$f" forward | grep 'f32\[8,8,8,8\]' | sort -u)" = 'f32[8,8,8,8]S0,S1' ]
}

# ---- the space ----

@test "Alpa's space: sums at once, one way to convert, never cheaper than the default one" {
    for model in mlp gpt2l resnet; do
        for mesh in 4 2x2; do
            f=$(alpa "$(imported $model)" $mesh)
            jq -e '[.sharding.conversions[].steps[] | select(.op == "reduce-scatter" or
                .op == "collective-permute" or (.op == "all-reduce" and (.axes | length) > 1))] == [] and
                .sharding.space == "alpa"' "$f" >/dev/null
            ap-cost "$f" | jq -e '.sharding.objective_sec == .cost.serial_sec' >/dev/null
            ap-shard --cost-model alpa --mesh $mesh "$(imported $model)" | jq -e --slurpfile alpa "$f" \
                '.sharding.lower_bound_sec <= $alpa[0].sharding.objective_sec' >/dev/null
        done
    done
}

@test "Alpa's space: two products added are summed once" {
    cat >"$BATS_TEST_TMPDIR/add.hlo" <<'END'
HloModule add
ENTRY main {
  x = f32[8,64] parameter(0)
  y = f32[8,64] parameter(1)
  a = f32[64,7] parameter(2)
  b = f32[64,7] parameter(3)
  xa = f32[8,7] dot(x, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  yb = f32[8,7] dot(y, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT sum = f32[8,7] add(xa, yb)
}
END
    ap-import -o "$BATS_TEST_TMPDIR/add.json" "$BATS_TEST_TMPDIR/add.hlo"
    f=$(alpa "$BATS_TEST_TMPDIR/add.json" 16) # 16 devices: only the contraction divides
    closed "$f" 'ar(4 * 8 * 7; 0)'
    # the gradient of a tied embedding: one of the products is transposed
    sed 's/yb = f32\[8,7\] dot(y, b), .*/by = f32[7,8] dot(b, y), lhs_contracting_dims={0}, rhs_contracting_dims={1}\n  yb = f32[8,7] transpose(by), dimensions={1,0}/' \
        "$BATS_TEST_TMPDIR/add.hlo" | ap-import -o "$BATS_TEST_TMPDIR/tied.json" -
    jq -e '[.graph.nodes[].op] | index("transpose")' "$BATS_TEST_TMPDIR/tied.json" >/dev/null
    closed "$(alpa "$BATS_TEST_TMPDIR/tied.json" 16)" 'ar(4 * 8 * 7; 0)'
    closed "$(alpa "$BATS_TEST_TMPDIR/tied.json" 4x4 --batch-axis free)" 'ar(4 * 8 * 7 / 4; 1)'
}

@test "Alpa's space: results that are no states lie as they fall" {
    printf '%s\n' 'HloModule m' 'ENTRY main {' '  x = f32[64,8] parameter(0)' \
        '  w = f32[8,8] parameter(1)' \
        '  ROOT y = f32[64,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}' '}' |
        ap-import -o "$BATS_TEST_TMPDIR/y.json" -
    f=$(alpa "$BATS_TEST_TMPDIR/y.json" 4)
    closed "$f" 'pen(1)' # the weight
    [ "$(dots "$f" forward)" = 'f32[64,8]S0' ]
    ap-cost "$f" | jq -e '.sharding.objective_sec == .cost.serial_sec' >/dev/null
    needs_exec # which hands whole results out
    ap-rewrite -o "$BATS_TEST_TMPDIR/program.json" "$f"
    timeout 300 ap-exec -n 4 --verify "$BATS_TEST_TMPDIR/program.json"
}

@test "Alpa's space: a conversion is paid once per tensor and layout; Alpa pays it for each operator that reads it" {
    # only the columns of y divide, and gathering y is cheaper than summing what it is multiplied to
    printf '%s\n' 'HloModule m' 'ENTRY main {' '  x = f32[7,5] parameter(0)' '  w = f32[5,64] parameter(1)' \
        '  p = f32[64,4096] parameter(2)' '  q = f32[64,4096] parameter(3)' \
        '  y = f32[7,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}' \
        '  a = f32[7,4096] dot(y, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}' \
        '  b = f32[7,4096] dot(y, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}' \
        '  ROOT out = (f32[7,4096], f32[7,4096]) tuple(a, b)' '}' |
        ap-import -o "$BATS_TEST_TMPDIR/two.json" -
    f=$(alpa "$BATS_TEST_TMPDIR/two.json" 4)
    closed "$f" 'ag(4 * 7 * 64; 0) + pen(1)' # Alpa: 2 * ag
    jq -e '[.sharding.conversions[] | select(.name == "y") | .steps[].op] == ["all-gather"]' "$f" >/dev/null
    priced "$f"
}

@test "Alpa's space: the plan is what runs" {
    needs_exec
    f=$(alpa "$(imported mlp)" 2x2)
    ap-rewrite -o "$BATS_TEST_TMPDIR/program.json" "$f"
    timeout 300 ap-exec -n 4 --verify "$BATS_TEST_TMPDIR/program.json"
}

@test "--batch-axis: the first of two axes, another, free, or none" {
    for axis in x y; do
        f=$(alpa "$(mlp 2 64 128)" 2x2 --batch-axis $axis)
        [ "$(layouts "$f" input .)" = "$([ $axis = x ] && echo 'S0,R S0,R' || echo 'R,S0 R,S0')" ]
    done
    free=$(jq .sharding.objective_sec "$(alpa "$(mlp 2 64 128)" 2x2 --batch-axis free)")
    bound=$(jq .sharding.objective_sec "$(alpa "$(mlp 2 64 128)" 2x2)")
    jq -en "$free < $bound" >/dev/null
    # none, and an axis of one device: no axis may split the batch
    for axis in none y; do
        f=$(alpa "$(mlp 2 256 32)" 4x1 --batch-axis $axis)
        [ "$(dots "$f" forward | sed 's/.*]//' | grep -c S0)" = 0 ]
        [ "$(layouts "$f" input . | tr ' ' '\n' | grep -c S0)" = 0 ]
    done
    jq -en --slurpfile none "$f" --slurpfile free "$(alpa "$(mlp 2 256 32)" 4x1)" \
        '$none[0].sharding.objective_sec > $free[0].sharding.objective_sec' >/dev/null
    refuses 2 "no axis z" ap-shard --space alpa --mesh 2x2 --batch-axis z "$(mlp 2 64 128)"
}

@test "Alpa's space: what it has not is named" {
    refuses 2 "Alpa's have two at most" ap-shard --space alpa --mesh 2x2x2 "$(mlp 2 64 128)"
    refuses 2 "--space alpa is for ilp, not for data" ap-shard --space alpa --mesh 4 --algorithm data "$(mlp 2 64 128)"
    for option in '--batch-axis x' '--forbid all-gather' --mixed-mesh --reduce-scatter; do
        # shellcheck disable=SC2086 # an option and its argument
        refuses 2 "is for --space alpa" ap-shard $option --mesh 4 "$(mlp 2 64 128)"
    done
    refuses 2 "--beta is for --cost-model alpa" ap-shard --beta 1,1 --mesh 4 "$(mlp 2 64 128)"
    refuses 2 "--alpha: expected numbers" ap-shard --cost-model alpa --alpha 1,-1 --mesh 4 "$(mlp 2 64 128)"
    refuses 2 "--forbid: expected all-gather or all-to-all, got p2p" ap-shard --space alpa --forbid p2p \
        --mesh 4 "$(mlp 2 64 128)"
    refuses 3 "splits it on every axis" ap-shard --space alpa --mesh 5 "$(mlp 2 64 128)"
    printf '%s\n' 'HloModule m' 'ENTRY main {' '  x = f32[4,4] parameter(0)' \
        '  ROOT c = f32[4,4] cholesky(x), lower=true' '}' |
        ap-import -o "$BATS_TEST_TMPDIR/cholesky.json" -
    refuses 3 "no strategy for cholesky" ap-shard --space alpa --mesh 4 "$BATS_TEST_TMPDIR/cholesky.json"
    jq '.sharding.space = "tofu"' "$(alpa "$(mlp 2 64 128)" 4)" >"$BATS_TEST_TMPDIR/bad.json"
    refuses 1 '/sharding/space: there is no space "tofu"' ap-cost "$BATS_TEST_TMPDIR/bad.json"
    jq '.sharding.alpa = {alpha: [1, 1], beta: [1, 1], no_all_gather: ["v"]}' "$(alpa "$(mlp 2 64 128)" 4)" \
        >"$BATS_TEST_TMPDIR/bad.json"
    refuses 1 '/sharding/alpa/no_all_gather/0: expected the name of an axis' ap-cost "$BATS_TEST_TMPDIR/bad.json"
}

# ---- options of Alpa's solver ----

# collectives FILE: how many of each kind
collectives() {
    jq -c '[.sharding.conversions[].steps[].op] | group_by(.) | map({(.[0]): length}) | add' "$1"
}

# priced FILE: ap-cost finds the objective again
priced() {
    ap-cost "$1" | jq -e '.sharding.objective_sec == .cost.serial_sec' >/dev/null
}

@test "--alpha, --beta: the units of collectives, in the document too" {
    f=$(alpa "$(mlp 2 256 32)" 4x1 --alpha 2,2 --beta 0.5,0.5)
    jq -e '.sharding.alpa == {alpha: [2, 2], beta: [0.5, 0.5]}' "$f" >/dev/null
    closed "$f" "def twice(\$x): 2 + 0.5 * 2 * 3 / 4 * \$x + 0.01;
        2 * (twice(4 * 32 * 32) + twice(4 * 32)) + (4 + 9) * ((3.01 + 2.01) | round)"
    priced "$f"
}

@test "--forbid: no all-gather, no all-to-all" {
    moe=$(alpa_model sgd moe 1 8 64 8 8 64)
    f=$(alpa "$moe" 4)
    jq -e '."all-to-all" == 2' <<<"$(collectives "$f")" >/dev/null
    f=$(alpa "$moe" 4 --forbid all-to-all)
    jq -e '."all-to-all" == null' <<<"$(collectives "$f")" >/dev/null
    jq -e '.sharding.alpa.no_all_to_all == .sharding.mesh.axes' "$f" >/dev/null
    priced "$f"
}

@test "--reduce-scatter: states are split, sums scattered, the objective the same within 1 %" {
    one=$(alpa "$(mlp 6 256 32)" 4x1) two=$(alpa "$(mlp 6 256 32)" 4x1 --reduce-scatter)
    jq -e '."reduce-scatter" == 12 and ."all-gather" == 12' <<<"$(collectives "$two")" >/dev/null
    jq -e --slurpfile one "$one" '(.sharding.objective_sec / $one[0].sharding.objective_sec - 1 |
        fabs < 0.01) and .sharding.peak_bytes < $one[0].sharding.peak_bytes' "$two" >/dev/null
    [ "$(layouts "$two" state '/w$' | tr ' ' '\n' | sort -u | grep -c S)" -ge 1 ]
    priced "$two"
}

@test "--mixed-mesh: the batch over both axes; --recompute-heavy: an axis may be idle where the other sums" {
    one=$(alpa "$(mlp 6 256 32)" 2x2) two=$(alpa "$(mlp 6 256 32)" 2x2 --mixed-mesh)
    jq -e --slurpfile one "$one" '.sharding.objective_sec <= $one[0].sharding.objective_sec' "$two" >/dev/null
    priced "$two"
    printf '%s\n' 'HloModule m' 'ENTRY main {' '  x = f32[7,64] parameter(0)' \
        '  w = f32[64,7] parameter(1)' \
        '  ROOT y = f32[7,7] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}' '}' |
        ap-import -o "$BATS_TEST_TMPDIR/y.json" -
    refuses 3 "splits it on every axis" ap-shard --space alpa --cost-model alpa --mesh 2x2 --batch-axis free "$BATS_TEST_TMPDIR/y.json"
    f=$(alpa "$BATS_TEST_TMPDIR/y.json" 2x2 --batch-axis free --recompute-heavy)
    closed "$f" 'ar(4 * 7 * 7; 1) + ar(4 * 7 * 64 * 2; 0) + ar(4 * 7 * 64 * 2; 1)'
    priced "$f"
    closed "$(alpa "$BATS_TEST_TMPDIR/y.json" 2x2 --batch-axis free --mixed-mesh)" 'ar(4 * 7 * 7; 0) + ar(4 * 7 * 7; 1)'
}

@test "--microbatches: gradients are reduced once, activations with each microbatch" {
    for n in 1 4; do
        f=$(alpa "$(mlp 6 64 128)" 1x4 --microbatches $n)
        closed "$f" "(6 - 1) * $n * ar(4 * 64 / $n * 128; 1) + pen(2 + 1 + 3 * 3)"
        priced "$f"
    done
}

@test "--serve: stages in Alpa's space, with the same price in ap-stage and ap-cost" {
    ap-model gpt --layers 2 --hidden 64 --heads 4 --seq 16 --batch 16 --vocab 64 | ap-prune |
        ap-coarsen --algorithm alpa --blocks 2 --eps 1 |
        ap-stage --cluster cpu-4 --jobs 1 --microbatches 4 --algorithm alpa --stages 2 \
            --shard-command 'ap-shard --serve --space alpa' -o "$BATS_TEST_TMPDIR/plan.json"
    jq -e '[.stages.stages[].sharding.space] == ["alpa", "alpa"]' "$BATS_TEST_TMPDIR/plan.json" >/dev/null
    ap-cost "$BATS_TEST_TMPDIR/plan.json" |
        jq -e '.stages.objective_sec / .cost.step_sec | . > 1 - 1e-9 and . < 1 + 1e-9' >/dev/null
}

# ---- what the paper reports ----

@test "alpa §8.6: Wide-ResNet on four GPUs: the batch in the first layers, channels in the last" {
    ap-model wresnet-1b --batch 32 -o "$BATS_TEST_TMPDIR/wresnet.json"
    f=$(alpa "$BATS_TEST_TMPDIR/wresnet.json" 1x4)
    # share of convolutions split on the batch, by height of the image, from the input on
    shows "convolutions split on the batch, of all, by height of the image: $(jq -c '[[.graph.nodes, .sharding.layouts] |
        transpose[] | select(.[0].op == "convolution" and .[0].phase == "forward") |
        [(.[0].shape | capture("\\[[0-9]+,(?<h>[0-9]+)").h | tonumber), .[1] == "R,S0"]] | group_by(-.[0]) |
        map({("\(.[0][0])"): "\(map(select(.[1])) | length)/\(length)"}) | add' "$f")"
    jq -e '[[.graph.nodes, .sharding.layouts] | transpose[] |
            select(.[0].op == "convolution" and .[0].phase == "forward") |
            [(.[0].shape | capture("\\[[0-9]+,(?<h>[0-9]+)").h | tonumber), .[1] == "R,S0"]] |
        (.[:24] | all(.[1])) and (.[-3:] | any(.[1]) | not) and
        (group_by(-.[0]) | map((map(select(.[1])) | length) / length) |
            . == (sort | reverse) and .[0] == 1 and .[-1] == 0)' "$f" >/dev/null
}

@test "alpa §8.1: a mixture of experts: experts split, the batch elsewhere, ZeRO for the rest" {
    moe=$BATS_TEST_TMPDIR/moe.json
    ap-model moe --layers 2 --hidden 128 --heads 4 --experts 16 --seq 64 --batch 8 --vocab 128 -o "$moe"
    f=$(alpa "$moe" 8)
    [ "$(layouts "$f" weight 'moe/(fc|proj)/w$')" = "S0 S0" ]
    [ "$(layouts "$f" weight '(attn/.|mlp/fc|mlp/proj|router)/w$' | tr ' ' '\n' | sort -u)" = R ]
    [ "$(dots "$f" forward | grep -E '^f32\[8,(64|4)' | sed 's/.*\]//' | sort -u)" = S0 ] # by sequences
    shows "weights of experts $(layouts "$f" weight 'moe/(fc|proj)/w$'), of other layers R, products by sequences S0"
    # with partial sums that may stay, gradients are scattered and states split
    ap-shard --cost-model alpa --mesh 8 -o "$BATS_TEST_TMPDIR/zero.json" "$moe"
    z=$BATS_TEST_TMPDIR/zero.json
    [ "$(layouts "$z" weight 'moe/(fc|proj)/w$')" = "S0 S0" ]
    [ "$(layouts "$z" state 'opt_state/./.*attn/./w$' | tr ' ' '\n' | cut -c 1 | sort -u)" = S ]
    jq -e --slurpfile alpa "$f" '([.sharding.conversions[].steps[] |
        select(.op == "reduce-scatter")] | length > 0) and
        .sharding.peak_bytes < $alpa[0].sharding.peak_bytes and
        .sharding.objective_sec < $alpa[0].sharding.objective_sec' "$z" >/dev/null
}

# price FILE ALGORITHM: objective in bytes and peak memory on 8 devices
price() {
    ap-shard --mesh 8 --cost-model bytes --algorithm "$2" "$1" |
        jq -r '.sharding | "\(.objective_sec) \(.peak_bytes)"'
}

@test "alpa §8.1: accumulation: tensor parallelism's bytes grow with the steps, data parallelism's do not" {
    # Accumulating over n steps moves what one step on n batches does: sums of activations
    # are n times as long, those of gradients are made once.
    for algorithm in data megatron; do
        one=$(price "$(mlp 4 64 64)" $algorithm)
        for n in 2 4 8; do
            many=$(price "$(mlp 4 $((64 * n)) 64)" $algorithm)
            times=$([ $algorithm = data ] && echo 1 || echo $n)
            shows "$algorithm, $n steps: ${many% *}, one: ${one% *}"
            jq -en "${many% *} == $times * ${one% *}" >/dev/null
        done
    done
}

@test "alpa §8.2, §4.2: data runs out first, ZeRO and the heuristic lose by communication" {
    f=$BATS_TEST_TMPDIR/gpt.json # weights of 25 MB, activations of 0.5 MB a layer
    ap-model gpt --layers 2 --hidden 512 --heads 8 --seq 32 --batch 8 --vocab 512 -o "$f"
    for algorithm in data zero2 zero3 largest-dim megatron ilp; do
        read -r "sec_${algorithm/-/_}" "peak_${algorithm/-/_}" <<<"$(price "$f" $algorithm)"
        shows "$algorithm: $(price "$f" $algorithm) (price, bytes a device)"
    done
    # shellcheck disable=SC2154
    jq -en "$peak_data > $peak_zero2 and $peak_zero2 > $peak_zero3" >/dev/null
    jq -en "[$peak_zero2, $peak_zero3, $peak_largest_dim, $peak_megatron, $peak_ilp] | all(. < $peak_data)" >/dev/null
    jq -en "$sec_zero2 > $sec_megatron and $sec_zero3 > $sec_megatron and $sec_largest_dim > $sec_megatron" >/dev/null
    jq -en "[$sec_data, $sec_zero2, $sec_zero3, $sec_largest_dim, $sec_megatron] | all(. >= $sec_ilp)" >/dev/null
    # an all-reduce as reduce-scatter and all-gather moves as much
    jq -en "$sec_zero2 == $sec_data" >/dev/null
}

# ---- searches ----

@test "a dot and its weight's gradient are split along different factors where that is best" {
    # Forward by rows of x: gathering the weight in bf16 costs half of summing y in f32.
    # The gradient by columns of x: gathering g in bf16 costs half of summing dw in f32.
    cat >"$BATS_TEST_TMPDIR/apart.hlo" <<'END'
HloModule apart, input_output_alias={ {0}: (1, {}, may-alias) }
ENTRY main {
  x = bf16[64,64] parameter(0)
  w = f32[64,3] parameter(1)
  half = bf16[64,3] convert(w)
  y = f32[64,3] dot(x, half), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  bent = f32[64,3] tanh(y)
  g = bf16[64,3] convert(bent)
  dw = f32[64,3] dot(x, g), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  new = f32[64,3] subtract(w, dw)
  ROOT out = (f32[64,3]) tuple(new)
}
END
    ap-import -o "$BATS_TEST_TMPDIR/apart.json" "$BATS_TEST_TMPDIR/apart.hlo"
    # a gathered tensor: 64 * 3 elements of 2 bytes, 3/4 of them from others
    ap-shard --mesh 4 --cost-model bytes "$BATS_TEST_TMPDIR/apart.json" | jq -e '
        [.graph.nodes, .sharding.layouts] as [$n, $l] |
        def at($name): $l[[$n[].name] | index($name)];
        .sharding.stopped == "optimal" and .sharding.objective_sec == 2 * 64 * 3 * 2 * 3 / 4 and
        at("y") == "S0" and at("dw") == "S0" and at("w") == "S0" and
        ([.sharding.conversions[] | select(.steps[].op == "all-gather").name] | sort) == ["g", "half"]' \
        >/dev/null
}
