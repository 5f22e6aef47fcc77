#!/usr/bin/env bats
# ap-shard --algorithm rhino: its candidates, its bytes, its levels, its promises.

load helpers

# Document of a model: model NAME OPTION..., made once.
model() {
    local f
    f=$BATS_FILE_TMPDIR/$(echo "$*" | tr ' ' _).json
    [ -s "$f" ] || ap-model --no-history -o "$f" "$@" || return
    echo "$f"
}

# rhino FILE OPTION...: the document
rhino() {
    local f=$1
    shift
    ap-shard --no-history --algorithm rhino "$@" "$f"
}

# stat NAME FILE OPTION...: a member of --stats
stat() {
    local name=$1
    shift
    rhino "$@" --stats 2>&1 >/dev/null | jq ".$name"
}

# Weights and states, inputs: "name layout" of those that are not whole, of a document.
split_params() {
    jq -r --arg roles "$1" '.sharding.layouts as $l | .graph.nodes | to_entries[]
        | select((.value.role | IN($roles | split(" ")[])) and $l[.key] != "R")
        | "\(.value.name) \($l[.key])"'
}

# dot M K N [SHARDING of p [of q]]: a document with [M, K] times [K, N]
dot() {
    printf 'HloModule m
ENTRY e {
  p = f32[%d,%d] parameter(0)%s
  q = f32[%d,%d] parameter(1)%s
  ROOT d = f32[%d,%d] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}\n' "$1" "$2" "${4:+, sharding=$4}" "$2" "$3" "${5:+, sharding=$5}" "$1" "$3" |
        ap-import --no-history -
}

@test "rhino §4.3.3: methods of a tensor: 16, 5, 24, 20" {
    ways() { # SHAPE DEVICES WAYS
        dot "${1%,*}" "${1#*,}" 8 >"$BATS_TEST_TMPDIR/dot.json"
        ap-shard --algorithm rhino --mesh "$2" --explain - "$BATS_TEST_TMPDIR/dot.json" \
            2>&1 >/dev/null | grep "p f32\[$1\], $3 methods,"
    }
    ways 256,256 4 16
    ways 4,2 2 5
    ways 4096,16384 8 24
    ways 1024,4096 8 20
}

@test "rhino §7.4: DNABERT and U-Net are plain data parallel on 2 to 8 devices" {
    # at 512 and 48 rows; with fewer a pooler's or the bottom's weights are larger than
    # what flows through them, and splitting those moves fewer bytes
    local devices f
    for f in "$(model dnabert --batch 512)" "$(model unet --batch 48)"; do
        for devices in 2 4 8; do
            rhino "$f" --mesh $devices >"$BATS_TEST_TMPDIR/plan.json"
            [ -z "$(split_params "weight state" <"$BATS_TEST_TMPDIR/plan.json")" ]
            split_params input <"$BATS_TEST_TMPDIR/plan.json" >"$BATS_TEST_TMPDIR/inputs"
            grep -qE '^(tokens|image) S0$' "$BATS_TEST_TMPDIR/inputs"
            [ "$(grep -cv ' S0$' "$BATS_TEST_TMPDIR/inputs")" -eq 0 ]
            shows "$(basename "$f" .json), $devices devices: no weight split, inputs $(paste -sd, "$BATS_TEST_TMPDIR/inputs")"
        done
    done
}

@test "rhino §7.4: the classifier of VGG19-4.2B is split, its convolutions are not" {
    local devices
    for devices in 2 4 8; do
        run split_params "weight state" < <(rhino "$(model vgg19-4.2b)" --mesh $devices)
        shows "$devices devices: split are $(paste -sd, <<<"$output")"
        [[ $output == *'vgg19/fc_2/w S1'* ]]
        [[ $output != *conv* ]]
    done
}

# 7.3: on 2 devices plain data parallelism, on 4 one variable of the first layers is split, on 8
# all of Q, K and V with their slots. We find: from 8 on, the table of tokens, the largest
# variable; ilp's price is no higher than that of the paper's plan.
@test "rhino §7.3: GPT-Medium on 2, 4 and 8 devices, beside the paper's plan" {
    local f devices theirs mine pins
    f=$(model gpt-350m --layers 24 --seq 1024 --batch 8)
    for devices in 2 4 8; do
        rhino "$f" --mesh $devices --cluster "$CLUSTERS/papers/rhino-s1.json" >"$BATS_TEST_TMPDIR/plan.json"
        split_params weight <"$BATS_TEST_TMPDIR/plan.json" >"$BATS_TEST_TMPDIR/split.$devices"
        pins=()
        [ $devices -ne 4 ] || pins=(--pin 'gpt/h_0/attn/q/w=S1')
        [ $devices -ne 8 ] || pins=(--pin '*/attn/q/w=S1' --pin '*/attn/k/w=S1' --pin '*/attn/v/w=S1')
        theirs=$(rhino "$f" --mesh $devices --cluster "$CLUSTERS/papers/rhino-s1.json" "${pins[@]}" |
            jq .sharding.objective_sec)
        mine=$(ap-shard --cluster "$CLUSTERS/papers/rhino-s1.json" --mesh $devices "$f" |
            jq .sharding.objective_sec)
        shows "$devices devices: rhino $(jq .sharding.objective_sec "$BATS_TEST_TMPDIR/plan.json") s," \
            "the paper's plan $theirs s, ilp $mine s; split: $(paste -sd, "$BATS_TEST_TMPDIR/split.$devices")"
        jq -en "$mine <= $theirs"
    done
    [ ! -s "$BATS_TEST_TMPDIR/split.2" ]
    [ "$(wc -l <"$BATS_TEST_TMPDIR/split.4")" -le 1 ]
    [[ "$(cat "$BATS_TEST_TMPDIR/split.8")" == "gpt/wte "* ]]
}

# What 7.5 says of the time is for scripts/bench/rhino.
@test "rhino §7.5: O2's plan is a tenth worse than O3's at most, with more all-to-alls" {
    local level f
    f=$(model gpt --layers 12 --hidden 512 --heads 8)
    for level in O2 O3; do
        rhino "$f" --mesh 8 --level $level | ap-cost | jq '[.sharding.objective_sec,
            ([.cost.collectives[] | select(.op == "all-to-all") | .count] | add // 0)]'
    done >"$BATS_TEST_TMPDIR/plans"
    shows "O2 and O3, seconds and all-to-alls: $(jq -sc . "$BATS_TEST_TMPDIR/plans")"
    jq -se '.[0] as $o2 | .[1] as $o3
        | $o2[0] > $o3[0] and $o2[0] < 1.1 * $o3[0] and $o2[1] > $o3[1]' "$BATS_TEST_TMPDIR/plans"
}

@test "rhino: bytes of a single dot, by hand" {
    # lhs [8,32], 1024 bytes; rhs [32,64], 8192; the result, 2048, ends up whole
    local f=$BATS_TEST_TMPDIR/dot.json
    bytes() { [ "$(stat objective_bytes "$f" --mesh "$1")" = "$2" ]; }
    dot 8 32 64 >"$f"
    bytes 2 1024 # rows: an all-gather, b - b / n
    bytes 4 1536
    dot 8 32 16 '{devices=[1,4]<=[4]}' '{devices=[4,1]<=[4]}' >"$f"
    bytes 4 1024 # an all-reduce of 512 bytes: 2 b
    dot 8 32 16 '{devices=[1,2]<=[2]}' '{devices=[2,1]<=[2]}' >"$f"
    bytes 2 512 # b on two devices
    dot 8 32 64 '{devices=[1,4]<=[4]}' >"$f"
    bytes 4 1728 # to rows: an all-to-all of b / n - b / n^2, then the all-gather
    dot 8 32 64 '{replicated}' '{replicated}' >"$f"
    bytes 4 1546 # rows, or columns, are a slice: 10
}

# Each golden model, its levels: the plan is legal, names play no part.
@test "rhino: every golden model is planned, and alike without names" {
    local m level opts=(--mesh 2x4 --cluster "$CLUSTERS/cpu-8.json") bare=$BATS_TEST_TMPDIR/bare.json
    for m in bert ff gpt2l gpt2l_bf16 mlp moe resnet t5 scan_gpt scan_mlp lstm; do
        jq -c '(.graph.nodes[] | .scope?) |= "" | .graph.nodes |= (to_entries
            | map(.value + {name: "n\(.key)"}))' "$(imported $m)" >"$bare"
        for level in 0 2 3; do
            rhino "$(imported $m)" "${opts[@]}" --level $level --stats \
                2>"$BATS_TEST_TMPDIR/stats" >"$BATS_TEST_TMPDIR/plan.json"
            ap-cost "$BATS_TEST_TMPDIR/plan.json" | ap-rewrite >"$BATS_TEST_TMPDIR/program.json"
            [ "$(stat objective_bytes "$bare" "${opts[@]}" --level $level)" = \
                "$(jq .objective_bytes "$BATS_TEST_TMPDIR/stats")" ] ||
                { echo "$m at level $level"; return 1; }
        done
    done
}

@test "rhino: forward passes and other cost models too" {
    local m cost_model level
    for m in moe_fwd resnet_fwd t5_fwd; do rhino "$(imported $m)" --mesh 2x2 >/dev/null; done
    for cost_model in alpa bytes; do
        for level in 0 2 3; do
            rhino "$(imported moe)" --mesh 3 --level $level --cost-model $cost_model | ap-cost >/dev/null
        done
    done
}

@test "rhino: runs like JAX's" {
    needs_exec
    local m
    for m in mlp moe; do
        run scripts/bench/golden-table --models $m --meshes "2x2 4" --algorithms rhino
        echo "$output"
        [ "${lines[-1]}" = "2 passed, 0 failed, 0 do not exist" ]
    done
}

@test "rhino: both solvers agree; higher levels move no more bytes" {
    local m level
    for m in mlp scan_mlp; do
        for level in 1 2 3 4; do
            [ "$(stat objective_bytes "$(imported $m)" --mesh 4 --level $level)" = \
                "$(stat objective_bytes "$(imported $m)" --mesh 4 --level $level --solver glpk)" ]
        done
    done
    for m in gpt2l moe resnet t5; do
        for level in 0 1 2 3 4; do
            stat objective_bytes "$(imported $m)" --mesh 4 --level $level
        done | jq -se '.[0] >= .[1] and .[1] >= .[2] and .[2] >= .[3] and .[3] >= .[4]'
    done
}

# Bytes are not seconds: Rhino has no reduce-scatter and takes computing for free, so it
# updates the same weights on all devices.
@test "rhino: more expensive than ilp on gpt2l, for want of split updates and reduce-scatters" {
    local a opts=(--mesh 4 --cluster "$CLUSTERS/cpu-8.json")
    for a in rhino ilp; do
        ap-shard --algorithm $a "${opts[@]}" "$(imported gpt2l)" | ap-cost | jq '{
            sec: .sharding.objective_sec, compute: .cost.compute_sec,
            scattered: ([.cost.collectives[] | select(.op == "reduce-scatter") | .count] | add // 0)}'
    done | jq -se '.[0] as $rhino | .[1] as $ilp | $rhino.sec > 1.05 * $ilp.sec
        and $rhino.compute > 1.05 * $ilp.compute and $rhino.scattered == 0 and $ilp.scattered > 0'
}

# Bytes of weights and states per device, from the layouts of a document on four devices.
param_bytes() {
    jq '.sharding.layouts as $l | [.graph.nodes | to_entries[]
        | select(.value.role == "weight" or .value.role == "state")
        | ([.value.shape | scan("[0-9]+") | tonumber] | .[1:] | reduce .[] as $d (4; . * $d))
            / (if $l[.key] == "R" then 1 else 4 end)] | add'
}

@test "rhino: --memory splits as few of the largest parameters as will do" {
    local f limit n
    f=$(imported gpt2l)
    free=$(rhino "$f" --mesh 4 | param_bytes)
    last=0
    for limit in $((free - 1)) 700000 450000; do
        rhino "$f" --mesh 4 --memory $limit --stats 2>"$BATS_TEST_TMPDIR/stats" \
            >"$BATS_TEST_TMPDIR/plan.json"
        [ "$(param_bytes <"$BATS_TEST_TMPDIR/plan.json")" -le $limit ]
        n=$(jq .split_parameters "$BATS_TEST_TMPDIR/stats")
        [ "$n" -gt "$last" ]
        last=$n
    done
    [ "$(stat split_parameters "$f" --mesh 4 --memory "$free")" -eq 0 ]
    refuses 3 "with all of them split, --memory allows 1000" \
        ap-shard --algorithm rhino --mesh 4 --memory 1000 "$f"
}

@test "rhino: pins hold at every level, and those that cannot are named" {
    local f=$BATS_TEST_TMPDIR/pin.json level
    sed 's|parameter(1), metadata|parameter(1), sharding={devices=[2,2]<=[4]}, metadata|' \
        "$(hlo mlp)" | ap-import --no-history - >"$f"
    for level in 0 1 2 3 4; do
        rhino "$f" --mesh 2x2 --level $level | jq -e '.graph.nodes as $n
            | .sharding.layouts[[$n[] | .param == 1] | index(true)] == "S0,S1"'
    done
    jq -c '(.graph.nodes[] | select(.op == "parameter" and .shape == "f32[10]") | .pin)
        = "{devices=[4]<=[4]}"' "$(imported mlp)" >"$f"
    rhino "$f" --mesh 4 >/dev/null # padded
    refuses 3 "pinned layout {devices=[4]<=[4]} on mesh axis x" \
        ap-shard --algorithm rhino --mesh 4 --no-padding "$f"
}

@test "rhino, ilp and rules: a pin with a stride cuts the dimension, for all readers" {
    local f=$BATS_TEST_TMPDIR algorithm pin name gpt mlp
    mlp=$(model mlp --layers 2 --hidden 64 --features 24 --classes 10 --batch 8)
    gpt=$(model gpt --layers 2 --hidden 64 --heads 4 --seq 16 --vocab 64 --batch 8)
    for algorithm in rhino ilp data; do
        # no reshape cuts the first; the second has heads of 16, which do not fit 8 x 4
        for pin in "$mlp mlp/fc_0/w=S0/12" "$gpt gpt/h_1/attn/q/w=S1/32"; do
            name=${pin#* }
            ap-shard --quiet --mesh 4 --algorithm $algorithm --pin "$name" "${pin% *}" >"$f/p.json"
            jq -e --arg name "${name%=*}" --arg layout "${name#*=}" '.sharding.layouts as $l
                | .graph.nodes | to_entries[] | select(.value.name == $name)
                | .value.pin == "4:" + $layout and $l[.key] == $layout' "$f/p.json"
            ap-rewrite "$f/p.json" | ap-exec -n 4 --verify
        done
    done
    ap-cost "$f/p.json" | jq -e '.cost.step_sec > 0'
    # the document keeps it, as an imported sharding
    ap-shard --quiet --mesh 4 --algorithm rhino "$f/p.json" |
        jq -e '.sharding.layouts[[.graph.nodes[] | .pin != null] | index(true)] == "S1/32"'
    refuses 3 "a run of dimension 0 has 2 elements, axis x 4 devices" \
        ap-shard --algorithm rhino --mesh 4 --pin 'mlp/fc_0/w=S0/2' "$mlp"
    refuses 2 "'S0/10': strides do not divide the dimension" \
        ap-shard --algorithm rhino --mesh 4 --pin 'mlp/fc_0/w=S0/10' "$mlp"
    refuses 2 "tap keeps no pins" ap-shard --algorithm tap --mesh 4 --pin 'mlp/fc_0/w=S0/12' "$mlp"
    refuses 2 "a pin with a stride is for one mesh" \
        ap-shard --mesh auto --cluster "$CLUSTERS/cpu-8.json" --pin 'mlp/fc_0/w=S0/12' "$mlp"
    refuses 3 "the pinned layout --pin 'mlp/fc_1/b=S0' on mesh axis x" \
        ap-shard --algorithm rhino --no-padding --mesh 4 --pin 'mlp/fc_1/b=S0' "$mlp"
}

@test "rhino: --explain tells cones, segments, strategies and cuts; levels by both names" {
    local f=$BATS_TEST_TMPDIR/explained
    ap-shard --algorithm rhino --level O2 --mesh 2x2 --explain "$f" "$(imported gpt2l)" >"$f.o2"
    [ "$(grep -c '^axis ' "$f")" -eq 2 ]
    [ "$(grep -c '^segment ' "$f")" -eq 24 ]
    awk '/^segment/ { if (n != want) exit 1; want = $5; n = 0 }
        /^  cone/ { n++ }
        END { exit n != want || n == 0 }' "$f"
    # one strategy of each cone is chosen
    [ "$(grep '^  cone ' "$f" | grep -c '[*] ')" -eq "$(grep -c '^  cone ' "$f")" ]
    # segments add up to what the axis says
    awk '/^axis/ { if (sum != want) exit 1; want = $(NF - 1); sum = 0 }
        /^segment/ { for (i = 1; i < NF; i++) if ($(i + 1) ~ /^bytes/) sum += $i }
        END { exit sum != want }' "$f"
    jq -e '.history[-1] | .level == 2 and .objective_bytes > 0' "$f.o2"
    diff <(rhino "$(imported gpt2l)" --mesh 2x2 --level 2) \
        <(rhino "$(imported gpt2l)" --mesh 2x2 --level O2)
}

@test "rhino: nothing heavy, an empty mesh axis, wrong options, a path that cannot be written" {
    local f=$BATS_TEST_TMPDIR/light.json
    echo 'HloModule m
ENTRY e { p = f32[8] parameter(0) n = f32[8] negate(p) ROOT s = f32[8] sine(n) }' |
        ap-import --no-history - >"$f"
    rhino "$f" --mesh 1x2 | jq -e '.sharding.layouts | all(. == "R,R")'
    refuses 2 '--level' ap-shard --algorithm rhino --level 5 --mesh 2 "$f"
    refuses 2 '--level is for rhino, not for ilp' ap-shard --level O2 --mesh 2 "$f"
    refuses 2 '--explain is for rhino, not for data' ap-shard --algorithm data --explain - --mesh 2 "$f"
    refuses 1 '/nowhere/x: ' ap-shard --algorithm rhino --explain /nowhere/x --mesh 2 "$f"
}

@test "rhino: segments end at the critical nodes of the paper, or at those of its code" {
    local g rule
    g=$(model gpt --layers 2 --hidden 64 --heads 4 --seq 32 --batch 8 --vocab 128)
    for rule in paper code; do # queries and keys side by side: 7 and 4 in a layer, and the head
        [ "$(stat critical "$g" --mesh 4 --level 2 --critical $rule)" -eq \
            "$(ap-coarsen --algorithm rhino --critical $rule "$g" | jq '.blocks.critical | length')" ]
    done
    [ "$(stat critical "$g" --mesh 4 --level 2)" -eq 15 ]
    [ "$(stat critical "$g" --mesh 4 --level 2 --critical code)" -eq 9 ]
    refuses 2 'level O3 has no segments' ap-shard --algorithm rhino --critical code --mesh 4 "$g"
    refuses 2 'for rhino, not for ilp' ap-shard --critical code --mesh 4 "$g"
}
