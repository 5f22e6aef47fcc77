#!/usr/bin/env bats
# ap-grad: gradients and train steps of JAX's forward graphs against JAX, what is frozen,
# low precision, what is refused.

load helpers

# Folder with in/K.npy for the forward graph of a model: links to the train step's.
data_of() {
    local d=$BATS_FILE_TMPDIR/$1 k s
    [ ! -d "$d" ] || { echo "$d"; return; }
    mkdir -p "$d/in"
    while read -r k s; do
        [ ! -e "$MODELS/$1/in/$s.npy" ] || ln -s "$MODELS/$1/in/$s.npy" "$d/in/$k.npy"
    done < <(jq -r '.params[] | "\(.index) \(.step_index)"' "$MODELS/$1_fwd/meta.json")
    echo "$d"
}

# The last N bytes of an array file as numbers, one a line: numbers FILE N
numbers() {
    tail -c "$2" "$1" | od -An -v -tf4 -w4
}

# Bytes of an array file behind its header.
payload() {
    local head
    head=$(od -An -tu2 -j8 -N2 "$1")
    echo $(($(wc -c <"$1") - 10 - head))
}

# worst_gradient MODEL OUT LR: largest relative error (in norm) of a weight's gradient, seen
# from one step of plain descent, against JAX's.
worst_gradient() {
    local f k n d
    d=$(data_of "$1")
    for f in "$MODELS/$1_fwd"/grad/*.npy; do
        k=$(basename "$f" .npy)
        n=$(payload "$f")
        paste <(numbers "$d/in/$k.npy" "$n") <(numbers "$2/$k.npy" "$n") <(numbers "$f" "$n") |
            awk -v lr="$3" '{ g = ($1 - $2) / lr; e += (g - $3) ^ 2; s += $3 ^ 2; n++ }
                END { print (n && s > 0) ? sqrt(e / s) : 1 }'
    done | sort -g | tail -n 1
}

# Losses of five steps: train MODEL OPTION...
train() {
    local d
    d=$(data_of "$1")
    ap-import "$(hlo "$1_fwd")" | ap-grad "${@:2}" | ap-rewrite |
        ap-exec --data "$d/in" --steps 5 --json | jq -c .losses
}

# near LIMIT A B: two lists of losses differ by less, relatively.
near() {
    jq -en --argjson l "$1" --argjson a "$2" --argjson b "$3" '($a | length) == 5
        and ([$a, $b] | transpose | all((.[0] - .[1] | fabs) <= $l * (.[1] | fabs)))' ||
        { echo "expected $3, got $2"; return 1; }
}

golden_losses() {
    numbers "$MODELS/$1/losses.npy" 20 | jq -sc .
}

@test "grad: gradients of JAX's forward graphs are JAX's within 1e-5" {
    needs_exec
    for m in mlp gpt2l resnet moe t5; do
        d=$(data_of "$m")
        # a learning rate that a weight's own rounding is small against
        ap-import "$(hlo "${m}_fwd")" | ap-grad --lr 1024 | ap-rewrite |
            ap-exec --data "$d/in" --steps 1 --out "$d/out" --quiet
        worst=$(worst_gradient "$m" "$d/out" 1024)
        echo "$m: $worst"
        awk -v e="$worst" 'BEGIN { exit !(e > 0 && e < 1e-5) }'
    done
}

@test "grad: five steps of adam and momentum give JAX's losses" {
    needs_exec
    for m in mlp gpt2l moe t5; do
        near 1e-5 "$(train $m --optimizer adam --lr 3e-3 --beta2 0.99 --eps 1e-6)" \
            "$(golden_losses $m)"
    done
    near 1e-5 "$(train resnet --optimizer momentum --lr 0.05)" "$(golden_losses resnet)"
}

@test "grad: low precision follows f32, weights in it or not" {
    needs_exec
    adam='--optimizer adam --lr 3e-3 --beta2 0.99 --eps 1e-6'
    for how in '--dtype bf16' '--dtype bf16 --master-weights' '--dtype f16 --master-weights' \
        '--dtype f16 --master-weights --cast-weights --low-gradients' '--recipe mixed,moments=bf16' '--recipe bf16,moments=f32'; do
        near 2e-2 "$(train gpt2l $adam $how)" "$(golden_losses gpt2l)"
    done
    ap-import "$(hlo gpt2l_fwd)" | ap-grad $adam --dtype f16 --master-weights \
        >"$BATS_TEST_TMPDIR/f16.json"
    jq -e '[.graph.nodes[] | select(.op == "dot") | .shape[:3]] | unique == ["f16"]' "$BATS_TEST_TMPDIR/f16.json"
    jq -e '[.graph.nodes[] | select(.op == "parameter" and .role == "weight") | .shape[:3]]
        | unique == ["f32"]' "$BATS_TEST_TMPDIR/f16.json"
    jq -e '[.graph.nodes[] | select(.op == "parameter") | .name] | contains(["opt_state/scale"])' \
        "$BATS_TEST_TMPDIR/f16.json"
}

@test "grad: a train step made here is planned and runs on four ranks" {
    needs_exec
    d=$(data_of gpt2l)
    ap-import "$(hlo gpt2l_fwd)" | ap-grad --optimizer adamw | ap-shard --mesh 2x2 |
        ap-rewrite | ap-exec -n 4 --steps 2 --data "$d/in" --verify
}

@test "grad: phases, scopes, roles and order of results" {
    ap-import "$(hlo mlp_fwd)" | ap-grad --optimizer adam >"$BATS_TEST_TMPDIR/mlp.json"
    jq -e '.graph as $g | [$g.results[] | .role] == ["loss"] + [range(6) | "weight"] + [range(13) | "state"]
        and ([$g.results[1:7][] | .alias] | . == sort)
        and ([$g.nodes[] | select(.op == "parameter" and .role == "state") | .name][0]
            == "opt_state/m/mlp/fc_0/b")
        and ([$g.nodes[] | select(.phase == "backward" and .op == "dot") | .scope] | unique
            == ["mlp/fc_0", "mlp/fc_1", "mlp/fc_2"])
        and ([$g.nodes[] | select(.phase == "update") | .scope] | any(. == "adam/mlp/fc_1/w"))
        and .history[-1].tool == "ap-grad"' "$BATS_TEST_TMPDIR/mlp.json"
    jq -e '.graph.nodes as $n | [$n[] | . as $v | .in // [] | .[] | $n[.]
        | select(.op != "parameter" and .phase == "update" and $v.phase != "update")] == []' \
        "$BATS_TEST_TMPDIR/mlp.json"
}

@test "grad: casts of given gradients are of the backward pass, whatever comes last" {
    ap-import --quiet "$MODELS/torch_gpt/model.hlo" | jq '(.graph.nodes | length) as $n | .graph.nodes += [{op: "negate",
        name: "late", in: [.graph.results[0].node], shape: "f32[]", phase: "forward"}] | .graph.results += [{node: $n, role: "aux"}]' |
        ap-grad --recipe mixed | ap-coarsen --blocks 2 -o "$BATS_TEST_TMPDIR/blocks.json"
}

@test "grad: running statistics go along" {
    ap-import "$(hlo resnet_fwd)" | ap-grad | jq -e '[.graph.results[] | .role] | unique
        == ["loss", "state", "weight"]'
}

@test "grad: frozen weights have no gradient, state or update" {
    ap-import "$(hlo gpt2l_fwd)" | ap-grad --optimizer momentum --freeze 'gpt/h_*' \
        --freeze "params*wpe*" >"$BATS_TEST_TMPDIR/f.json"
    jq -e '.graph as $g | ([$g.results[] | select(.alias != null) | $g.nodes[.alias].name]
        | length > 0 and all(test("gpt/h_|wpe") | not))
        and ([$g.nodes[] | .name] | any(startswith("opt_state/momentum/gpt/h_")) | not)' \
        "$BATS_TEST_TMPDIR/f.json"
}

@test "grad: the same bytes twice, unknown sections pass" {
    ap-import "$(hlo t5_fwd)" | jq -c '. + {mine: {a: 1}}' >"$BATS_TEST_TMPDIR/in.json"
    ap-grad --optimizer adam "$BATS_TEST_TMPDIR/in.json" >"$BATS_TEST_TMPDIR/a"
    ap-grad --optimizer adam "$BATS_TEST_TMPDIR/in.json" >"$BATS_TEST_TMPDIR/b"
    cmp "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b"
    jq -e '.mine.a == 1' "$BATS_TEST_TMPDIR/a"
}

@test "grad: muon has a state for each matrix of a layer; five steps on ranks are one device's" {
    needs_exec
    local f=$BATS_TEST_TMPDIR/moe.json
    ap-model --quiet moe --layers 2 --hidden 64 --heads 4 --seq 16 --vocab 128 --batch 16 --optimizer muon -o "$f"
    # tables and biases have two states, and so would the head
    jq -e '[.graph.nodes[] | select(.role == "state" and .op == "parameter") | {name, rank: (.shape | split(",") | length)}] |
        (map(select(.name | test("/momentum/")) | .rank) | sort) == [range(0; 11) | 2] + [3, 3] and
        (map(select((.name | startswith("opt_state/v/")) and .rank > 1) | .name | ltrimstr("opt_state/v/")) | sort) ==
            ["moe/h_1/moe/fc/b", "moe/h_1/moe/proj/b", "moe/wpe", "moe/wte"]' "$f"
    # rules that split its products, or gather what they read
    for rule in zero1 zero3 megatron ilp; do
        ap-shard --quiet --mesh 4 --cluster cpu-4 --algorithm $rule "$f" | ap-rewrite >"$BATS_TEST_TMPDIR/run.json"
        ap-exec -n 4 --verify --steps 5 --quiet "$BATS_TEST_TMPDIR/run.json"
    done
    jq -e '[.program.modules[0].graph.nodes[] | select(.phase == "update" and .op == "dot") | .shape] |
        any(. == "f32[16,64]")' "$BATS_TEST_TMPDIR/run.json"
    ap-shard --quiet --mesh 4 --algorithm zero1 "$f" | ap-cost --report | grep -q 'gradients f32: 1[2-5].* bytes per parameter'
}

@test "grad: first moments in 8 bits, with scales, train on four ranks as on one" {
    needs_exec
    local f=$BATS_TEST_TMPDIR/gpt.json d
    d=$(data_of gpt2l)
    losses() { ap-import "$(hlo gpt2l_fwd)" | ap-grad --optimizer adam --lr 3e-3 --beta2 0.99 --eps 1e-6 --recipe "f32,moments=$1" |
        ap-rewrite | ap-exec --data "$d/in" --steps 5 --json | jq -c .losses; }
    near 2e-3 "$(losses fp8:f32)" "$(golden_losses gpt2l)"
    [ "$(losses fp8:f32)" != "$(losses f32)" ]
    ap-model --quiet gpt --layers 2 --hidden 64 --heads 4 --seq 16 --vocab 128 --batch 16 --recipe mixed,moments=fp8:bf16 -o "$f"
    for rule in data zero1; do
        ap-shard --quiet --mesh 4 --cluster cpu-4 --algorithm $rule "$f" | ap-rewrite | ap-exec -n 4 --verify --steps 5 --quiet
    done
}

@test "grad: five steps of muon are PyTorch's" {
    needs_exec
    [ -n "${AP_TORCH_PYTHON-}" ] || skip "AP_TORCH_PYTHON names no Python with PyTorch"
    local type tolerance
    while read -r type tolerance; do
        "$AP_TORCH_PYTHON" tests/torch_muon.py "$BATS_TEST_TMPDIR/$type" $type
        ap-import --quiet "$BATS_TEST_TMPDIR/$type/model.hlo" | ap-grad --optimizer muon --lr 0.01 --weight-decay 0.1 |
            ap-rewrite | ap-exec --data "$BATS_TEST_TMPDIR/$type/inputs" --steps 5 --compare "$BATS_TEST_TMPDIR/$type" \
                --tolerance "$tolerance"
    done <<<$'f32 1e-5\nbf16 2e-3'
}

@test "grad: the optimizer's numbers and the loss's scale are in the step" {
    constants() { jq -c '[.graph.nodes[] | select(.op == "constant" and .phase != "forward") | .value] as $v |
        ["0.625", "0.375", "1024"] | map(tonumber) | map(IN($v[]))'; }
    [ "$(ap-grad --optimizer adamw --beta1 0.625 --weight-decay 0.375 --dtype f16 --loss-scale 1024 \
        "$(imported mlp_fwd)" | constants)" = "[true,true,true]" ]
    [ "$(ap-grad --optimizer adamw "$(imported mlp_fwd)" | constants)" = "[false,false,false]" ]
}

@test "grad: what is refused" {
    f=$(imported mlp)
    refuses 2 "is updated already" ap-grad "$f"
    g=$(imported mlp_fwd)
    refuses 1 "no node is named 'x'" ap-grad --loss x "$g"
    refuses 2 "is not a float scalar" ap-grad --loss "params['mlp/fc_0/w']" "$g"
    refuses 1 "matches no weight" ap-grad --freeze 'nothing*' "$g"
    refuses 2 "--momentum is not for --optimizer sgd" ap-grad --momentum 0.8 "$g"
    refuses 2 "'lion' is not one of sgd, momentum, adam, adamw, muon" ap-grad --optimizer lion "$g"
    refuses 2 "--eps is not for --optimizer momentum" ap-grad --optimizer momentum --eps 1 "$g"
    refuses 2 "no weight that is not frozen" ap-grad --freeze '*' "$g"
    refuses 2 "beta2" ap-grad --optimizer adam --beta2 1.5 "$g"
    ap-shard --mesh 1 "$g" >"$BATS_TEST_TMPDIR/s.json"
    refuses 2 'section "sharding"' ap-grad "$BATS_TEST_TMPDIR/s.json"
    cat >"$BATS_TEST_TMPDIR/max.hlo" <<'HLO'
HloModule max
most { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT m = f32[] maximum(a, b) }
plus { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT m = f32[] add(a, b) }
ENTRY main { w = f32[8] parameter(0), metadata={op_name="params['w']"}
  i = s32[3,1] parameter(1)
  u = f32[3] parameter(2)
  s = f32[8] scatter(w, i, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=most
  z = f32[] constant(0)
  ROOT loss = f32[] reduce(s, z), dimensions={0}, to_apply=plus }
HLO
    ap-import "$BATS_TEST_TMPDIR/max.hlo" >"$BATS_TEST_TMPDIR/max.json"
    refuses 2 "cannot differentiate scatter" ap-grad "$BATS_TEST_TMPDIR/max.json"
}
