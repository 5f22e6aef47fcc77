#!/usr/bin/env bats
# ap-shard --algorithm tofu, from outside; numbers of cuts are in unit/ap-shard/test_shard_tofu.c.
# shellcheck disable=SC2154 # status, output and stderr are bats'

load helpers

# tofu MODEL MESH SPACE: the document, made once
tofu() {
    local f=$BATS_FILE_TMPDIR/$1-$2-$3.json
    [ -s "$f" ] || ap-shard --no-history --mesh "$2" --algorithm tofu --tofu-space "$3" \
        --cluster "$CLUSTERS/cpu-8.json" --stats -o "$f" "$(imported "$1")" \
        2>"$f.stats" || return
    echo "$f"
}

# stat_of MODEL MESH SPACE MEMBER
stat_of() {
    local f
    f=$(tofu "$1" "$2" "$3") && jq ".$4" "$f.stats"
}

# Objective of another algorithm: other ALGORITHM MODEL MESH
other() {
    ap-shard --no-history --mesh "$3" --algorithm "$1" --cluster "$CLUSTERS/cpu-8.json" \
        "$(imported "$2")" | jq .sharding.objective_sec
}

@test "tofu: plans of both spaces run with the right numbers" {
    needs_exec
    while read -r model space; do
        ap-cost --no-history "$(tofu "$model" 4 "$space")" | ap-rewrite --no-history \
            -o "$BATS_TEST_TMPDIR/program.json"
        OMP_NUM_THREADS=1 timeout 300 ap-exec -n 4 --steps 2 --verify \
            "$BATS_TEST_TMPDIR/program.json"
    done <<<$'mlp 2018\nmlp eurosys\nresnet 2018\nmoe eurosys'
}

@test "tofu: time steps are cut alike where nothing is replicated" {
    local doc=$BATS_TEST_TMPDIR/lstm.json plan=$BATS_TEST_TMPDIR/plan.json one vars tied
    # without names: two layers, six steps in each
    jq -c -f tests/strip.jq "$(imported lstm)" | ap-prune --algorithm structure -o "$doc" -
    one=$(jq '.families.families | map(select(.parent != null)) |
        if length == 1 and (.[0].nodes | length) == 12 then .[0].nodes[0] | length else 0 end' "$doc")
    [ "$one" -gt 50 ]
    for option in "--tofu-space 2018" "--tofu-space eurosys --no-families" "--tofu-space eurosys"; do
        # shellcheck disable=SC2086 # options
        ap-shard --quiet --mesh 4 --algorithm tofu $option --stats --cluster "$CLUSTERS/cpu-8.json" \
            -o "$plan" "$doc" 2>"$plan.stats"
        tied=${tied:-}$(jq .tied "$plan.stats")/ vars=${vars:-}$(jq .variables "$plan.stats")/
    done
    [ "$(jq .fixed "$plan.stats")" -eq 0 ]
    [ "$tied" = "0/0/$((10 * one))/" ]
    vars=${vars#*/}
    [ "$(cut -d/ -f2 <<<"$vars")" -lt "${vars%%/*}" ]
    jq -e '.sharding.layouts as $at | [.families.families[] | select(.parent != null) | .nodes |
        (.[0:6], .[6:12]) | map(map($at[.])) | unique | length] == [1, 1]' "$plan"
    # scopes find the same steps in several families, layers are no steps
    for model in lstm gpt2l mlp; do
        ap-prune --quiet "$(imported $model)" | ap-shard --mesh 4 --algorithm tofu --stats \
            --tofu-space eurosys -o "$plan" - 2>"$plan.stats"
        [ $(($(jq .tied "$plan.stats") > 0)) -eq $((${#model} == 4)) ] ||
            { echo "$model: $(jq .tied "$plan.stats")"; return 1; }
    done
}

@test "tofu: plans of time steps run with the right numbers" {
    needs_exec
    jq -c -f tests/strip.jq "$(imported lstm)" | ap-prune --algorithm structure |
        ap-shard --quiet --mesh 4 --algorithm tofu --tofu-space eurosys | ap-cost | ap-rewrite |
        OMP_NUM_THREADS=1 timeout 300 ap-exec -n 4 --steps 2 --verify
}

@test "tofu: the mesh is one axis for each halving" {
    f=$(tofu mlp 2x4 2018)
    [ "$(jq -c .sharding.mesh.shape "$f")" = "[2,2,2]" ]
    [ "$(jq -c .sharding.mesh.axes "$f")" = '["x","y0","y1"]' ]
    cmp <(jq -c .sharding.layouts "$f") <(jq -c .sharding.layouts "$(tofu mlp 8 2018)")
    refuses 2 "axis x has 3, not a power of two" ap-shard --mesh 3 --algorithm tofu "$(imported mlp)"
    refuses 2 "two axes a0" ap-shard --mesh a=4,a0=2 --algorithm tofu "$(imported mlp)"
    refuses 2 "at most 64 devices" ap-shard --mesh 128 --algorithm tofu "$(imported mlp)"
}

@test "tofu: refuses options of others, others refuse its options" {
    refuses 2 "is for ilp and rhino, not for tofu" ap-shard --mesh 2 --algorithm tofu --solver glpk "$(imported mlp)"
    refuses 2 "is for tofu, not for" ap-shard --mesh 2 --tofu-space eurosys "$(imported mlp)"
    refuses 2 "is for tofu, not for" ap-shard --mesh 2 --algorithm data --tofu-ties 3 "$(imported mlp)"
}

# Phases count through fusion groups alone: with none, resnet's cuts are others, 0.03 % cheaper.
@test "tofu: no name or scope is looked at" {
    for model in mlp ff gpt2l gpt2l_bf16 resnet moe t5 bert; do
        for space in 2018 eurosys; do
            jq -c '.graph.nodes |= map(del(.scope) | .name = "x")' "$(imported "$model")" \
                >"$BATS_TEST_TMPDIR/bare.json"
            bare=$(ap-shard --mesh 8 --algorithm tofu --tofu-space "$space" --stats \
                --cluster "$CLUSTERS/cpu-8.json" -o /dev/null "$BATS_TEST_TMPDIR/bare.json" 2>&1 |
                jq .moved_bytes)
            [ "$bare" = "$(stat_of "$model" 8 "$space" moved_bytes)" ] && [ "$bare" -gt 0 ] ||
                { echo "$model $space: $bare"; return 1; }
        done
    done
}

@test "tofu: more ways to break ties never move more" {
    moved() {
        ap-shard --mesh 8 --algorithm tofu "$@" --stats -o /dev/null \
            "$(imported resnet)" 2>&1 | jq .moved_bytes
    }
    [ "$(moved --tofu-ties 8)" -lt "$(moved --tofu-ties 1)" ]
    # by default as many as bring something
    [ "$(moved)" -le "$(moved --tofu-ties 8)" ]
    [ "$(moved)" = "$(moved)" ]
}

# 500 thousand weights on 16 devices: a server that all push to and pull from moves 64 MB.
# Halvings move 60 MB, see the unit test.
@test "tofu, toy net: data parallelism, at a batch that divides" {
    bytes=$(ap-model --no-history mlp --layers 2 --hidden 500 --features 500 --classes 500 \
        --batch 320 | ap-shard --mesh 16 --algorithm data |
        jq '.graph.nodes as $n | [.sharding.conversions[] |
            select($n[.node].shape == "f32[500,500]") | .steps[] |
            select(.op == "all-reduce") | .bytes] | add')
    shows "16 devices, $((bytes * 2 * 16)) bytes to and from a server (64000000)"
    [ "$bytes" = 2000000 ]
    [ $((bytes * 2 * 16)) = 64000000 ]
}

# Two layers of 500 x 500 and 300 rows, as the slides' toy net, with the gradient that a layer
# before it would ask for.
toynet() {
    ap-import --no-history - <<'END'
HloModule toy, input_output_alias={ {1}: (0, {}, may-alias), {2}: (1, {}, may-alias) }
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY e { w0 = f32[500,500] parameter(0)  w1 = f32[500,500] parameter(1)  x = f32[300,500] parameter(2)
  h = f32[300,500] dot(x, w0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  y = f32[300,500] dot(h, w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  zero = f32[] constant(0)  yy = f32[300,500] multiply(y, y)
  loss = f32[] reduce(yy, zero), dimensions={0,1}, to_apply=sum
  dy = f32[300,500] add(y, y)
  dw1 = f32[500,500] dot(h, dy), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  dh = f32[300,500] dot(dy, w1), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  dw0 = f32[500,500] dot(x, dh), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  dx = f32[300,500] dot(dh, w0), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  new0 = f32[500,500] subtract(w0, dw0)  new1 = f32[500,500] subtract(w1, dw1)
  ROOT t = (f32[], f32[500,500], f32[500,500], f32[300,500]) tuple(loss, new0, new1, dx) }
END
}

# What 16 devices push to a server and pull from it, a tensor for each all-reduce; and what they
# send in rings (Tofu's halvings count the same: tests/unit/ap-shard/test_shard_tofu.c). The sum of the loss is left out.
@test "tofu, toy net: the data parallel, model parallel and hybrid plans move 64, 38.4, 25.6 MB" {
    local dir=$BATS_TEST_TMPDIR way server ring plan mine
    toynet >"$dir/toy.json"
    while read -r way server ring plan; do
        echo "$plan" >"$dir/$way.plan"
        ap-shard --cost-model bytes --plan "$dir/$way.plan" -o "$dir/$way.json" "$dir/toy.json"
        jq -e --argjson server "$server" --argjson ring "$ring" '
            [.sharding.conversions[] | select(.name != "loss") | .steps[] | select(.bytes > 0)] as $s |
            ([$s[].op] | unique == ["all-reduce"]) and 2 * 16 * ([$s[].bytes] | add) == $server and
            (16 * .sharding.objective_sec / $ring - 1 | . >= 0 and . < 1e-5)' "$dir/$way.json" ||
            { jq -c '.sharding | .objective_sec, .conversions' "$dir/$way.json"; return 1; }
        shows "$way: $server bytes to and from a server; in rings $(jq '16 * .sharding.objective_sec' "$dir/$way.json")"
    done <<'END'
data   64000000 60000000 {"mesh":"16","nodes":{"x":"S0"}}
model  38400000 36000000 {"mesh":"16","nodes":{"x":"R","w0":"S1","w1":"S0","y":"P","yy":"R","dy":"R","dx":"P"}}
hybrid 25600000 19200000 {"mesh":"4x4","nodes":{"x":"S0,R","w0":"R,S1","w1":"R,S0","y":"S0,P","yy":"S0,R","dy":"S0,R","dx":"S0,P"}}
END
    # a third of what model parallelism moves is saved; Tofu moves less than any
    mine=$(ap-shard --cost-model bytes --mesh 16 --algorithm tofu "$dir/toy.json" | jq '16 * .sharding.objective_sec')
    shows "tofu: in rings $mine"
    jq -en "$mine < 19200000"
}

@test "tofu: cheaper than data, model and hybrid parallelism on every golden model, but for 2 %" {
    local model mine way algorithm mesh their
    ms() { awk -v sec="$1" 'BEGIN { printf "%.4g ms", 1e3 * sec }'; }
    for model in mlp gpt2l resnet moe; do
        mine=$(jq .sharding.objective_sec "$(tofu "$model" 8 2018)")
        while read -r way algorithm mesh; do
            their=$(other "$algorithm" "$model" "$mesh")
            shows "$model: tofu $(ms "$mine"), $way parallelism (--mesh $mesh --algorithm $algorithm) $(ms "$their")"
            jq -en "$mine < 1.02 * $their" >/dev/null || { echo "$model: $mine, $way $their"; return 1; }
        done <<<$'data data 2x2x2\nmodel megatron 8\nmodel largest-dim 8\nhybrid megatron 4x2\nhybrid megatron 2x4'
    done
}

# Small layers over links with latency: a halving never computes a dot twice, though that is
# cheaper than any message, and every operator asks for its operands by itself.
@test "tofu: more expensive than ilp on mlp, for want of replicated dots" {
    ilp=$BATS_TEST_TMPDIR/ilp.json mine=$(tofu mlp 8 2018)
    ap-shard --no-history --mesh 2x2x2 --cluster "$CLUSTERS/cpu-8.json" -o "$ilp" "$(imported mlp)"
    whole() { # dots that every device computes
        jq '.sharding.layouts as $l | [.graph.nodes | to_entries[] |
            select(.value.op == "dot" and $l[.key] == "R,R,R")] | length' "$1"
    }
    steps() { jq '[.sharding.conversions[].steps[]] | length' "$1"; }
    jq -en "$(jq .sharding.objective_sec "$ilp") < $(jq .sharding.objective_sec "$mine")" >/dev/null
    [ "$(whole "$mine")" -eq 0 ]
    [ "$(whole "$ilp")" -gt 0 ]
    [ "$(steps "$ilp")" -lt "$(steps "$mine")" ]
}

@test "tofu: the same bytes twice, whatever was imported as sharding" {
    cmp <(tofu mlp 8 2018 | xargs cat) <(ap-shard --no-history --mesh 8 --algorithm tofu \
        --cluster "$CLUSTERS/cpu-8.json" "$(imported mlp)")
    sed "s|parameter(1), metadata|parameter(1), sharding={devices=[1,2]<=[2]}, metadata|" \
        "$(hlo mlp)" | ap-import -o "$BATS_TEST_TMPDIR/pin.json" -
    run --separate-stderr ap-shard --mesh 2 --algorithm tofu "$BATS_TEST_TMPDIR/pin.json"
    [ "$status" -eq 0 ]
    [[ $stderr == *"tofu keeps no imported shardings: 1"* ]]
}

@test "tofu: exits 3 where a product has nothing left to halve and copies cost nothing" {
    ap-model --no-history -o "$BATS_TEST_TMPDIR/odd.json" mlp --layers 2 --hidden 15 \
        --features 15 --classes 15 --batch 15
    refuses 3 "tofu: " ap-shard --mesh 2 --cost-model bytes --algorithm tofu "$BATS_TEST_TMPDIR/odd.json"
    ap-shard --mesh 2 --algorithm tofu "$BATS_TEST_TMPDIR/odd.json" |
        jq -e '.sharding.objective_sec > 0' >/dev/null
}
