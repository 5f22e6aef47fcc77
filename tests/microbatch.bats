#!/usr/bin/env bats
# Microbatches: planned, priced, rewritten and run with the numbers of the whole batch.

load helpers

# planned FILE MESH B ALGORITHM OPTION...: a program for so many microbatches
planned() {
    ap-shard --no-history --cluster "$CLUSTERS/cpu-8.json" --mesh "$2" --microbatches "$3" \
        --algorithm "$4" "${@:5}" "$1" | ap-cost --no-history | ap-rewrite --no-history
}

# The program keeps its promises: time, collectives, memory, one loop.
promised() {
    jq -e 'def counts: map([.op, .axes, .count, .bytes]) | sort;
        .sharding.objective_sec == .cost.serial_sec and
        (.cost.collectives | counts) == (.program.collectives | counts) and
        .program.peak_bytes == .sharding.peak_bytes and
        .sharding.mesh.time == "time" and .sharding.mesh == .program.mesh and
        (.cost.microbatches.compute_sec + .cost.once.compute_sec - .cost.compute_sec |
            fabs) <= 1e-9 * .cost.compute_sec and
        (.program.each_microbatch.groups | .[0] < .[1])' "$1" >/dev/null
}

@test "microbatches: losses and weights are those of one device" {
    needs_exec
    while read -r model mesh b algorithm; do
        planned "$(imported "$model")" "$mesh" "$b" "$algorithm" >"$BATS_TEST_TMPDIR/p.json"
        promised "$BATS_TEST_TMPDIR/p.json"
        ap-exec -n $((${mesh//x/*})) --verify --steps 2 --json "$BATS_TEST_TMPDIR/p.json" \
            >"$BATS_TEST_TMPDIR/run.json"
        jq -en --slurpfile p "$BATS_TEST_TMPDIR/p.json" --slurpfile r "$BATS_TEST_TMPDIR/run.json" \
            'def counts: map([.op, .axes, .count, .bytes]) | sort;
            ($p[0].program.collectives | counts) == ($r[0].collectives | counts)' >/dev/null ||
            { echo "$model $mesh $b $algorithm"; return 1; }
    done <<'END'
mlp 1 4 ilp
mlp 2x2 2 ilp
mlp_fwd 2 4 data
gpt2l 2 2 zero3
gpt2l 2x2 2 ilp
scan_gpt 2 4 megatron
bert 2x2 2 tap
mlp 2x2 2 tofu
gpt2l 2 2 rhino
END
}

@test "microbatches: one is as if nobody had asked" {
    ap-shard --no-history --mesh 2x2 "$(imported mlp)" >"$BATS_TEST_TMPDIR/a"
    ap-shard --no-history --mesh 2x2 --microbatches 1 "$(imported mlp)" | cmp - "$BATS_TEST_TMPDIR/a"
}

@test "microbatches: a batch that does not divide, and who may not plan them" {
    refuses 3 'a batch of 8 does not divide into 3 microbatches; 2 would do' \
        ap-shard --mesh 2 --microbatches 3 "$(imported mlp)"
    refuses 3 'does not divide into 7 microbatches; 8 would do' \
        ap-shard --mesh 1 --microbatches 7 "$(imported mlp)"
    refuses 2 'each is supported with --serve only' \
        ap-shard --mesh 2 --microbatches 2 --microbatch each "$(imported mlp)"
    planned "$(imported mlp)" 2 2 data >"$BATS_TEST_TMPDIR/p.json"
    for form in hlo jax; do
        refuses 2 'plan without --microbatches' ap-rewrite --to $form "$BATS_TEST_TMPDIR/p.json"
    done
}

# given OPTION...: objective of a plan of mlp on 2x2
given() {
    ap-shard --no-history --cluster "$CLUSTERS/cpu-8.json" "$@" "$(imported mlp)" |
        jq -e .sharding.objective_sec
}

@test "microbatches: a plan of the whole batch is taken into them, out of them, and as it is" {
    local f=$BATS_TEST_TMPDIR algorithm n one two
    for algorithm in zero3 tofu rhino; do
        for n in 1 2; do
            ap-shard --no-history --cluster "$CLUSTERS/cpu-8.json" --mesh 2x2 --microbatches $n \
                --algorithm $algorithm -o "$f/$n" "$(imported mlp)"
        done
        one=$(jq .sharding.objective_sec "$f/1") two=$(jq .sharding.objective_sec "$f/2")
        [ "$one" != "$two" ]
        [ "$(given --plan "$f/1" --microbatches 2)" = "$two" ]
        [ "$(given --plan "$f/2" --microbatches 1)" = "$one" ]
        [ "$(given --plan "$f/2")" = "$two" ]
    done
    # by name, from a document of another graph; its microbatches may be of another size
    jq '.sharding.fingerprint.graph = "0"' "$f/2" >"$f/other"
    ap-shard --quiet --no-history --cluster "$CLUSTERS/cpu-8.json" --plan "$f/other" "$(imported mlp)" |
        jq -e --slurpfile two "$f/2" '[., $two[0]] | map([.graph.nodes, .sharding.layouts] | transpose |
            map(select(.[0].op == "parameter") | .[1])) | .[0] == .[1]'
    for n in 2 4; do
        ap-shard --no-history --cluster "$CLUSTERS/cpu-8.json" --mesh 2x1 --microbatches $n \
            --algorithm data "$(imported mlp)" |
            jq '.sharding.fingerprint.graph = "0"' >"$f/$n"
    done
    [ "$(given --quiet --plan "$f/2" --microbatches 4)" = "$(given --quiet --plan "$f/4")" ]
}

@test "microbatches: pins and plans by hand name the layouts on devices; a start is not ended above" {
    local f=$BATS_TEST_TMPDIR free pins
    ap-shard --no-history --cluster "$CLUSTERS/cpu-8.json" --mesh 2x2 --microbatches 2 -o "$f/free" \
        "$(imported mlp)"
    free=$(jq .sharding.objective_sec "$f/free")
    # products lie as in the best plan, whatever they do in time: nothing is lost
    jq -r '[.graph.nodes, .sharding.layouts] | transpose | map(select(.[0].op == "dot") |
        "--pin", "\(.[0].name)=\(.[1] | sub("^[^,]*,"; ""))") | .[]' "$f/free" >"$f/pins"
    mapfile -t pins <"$f/pins"
    [ "$(given --mesh 2x2 --microbatches 2 "${pins[@]}")" = "$free" ]
    [ "$(given --mesh 2x2 --microbatches 2 --pin "*x'?=S0,S1")" != "$free" ]
    [ "$(given --mesh 2x2 --microbatches 2 --start "$f/free")" = "$free" ]
    echo '{"mesh": "2x2", "nodes": {"*/w'"'"'?": "R,S0", "dot_general.8": "S0,S1"}}' >"$f/hand"
    ap-shard --no-history --cluster "$CLUSTERS/cpu-8.json" --plan "$f/hand" --microbatches 2 "$(imported mlp)" |
        jq -e --argjson free "$free" '.sharding.objective_sec >= $free and
            ([.graph.nodes, .sharding.layouts] | transpose | map(select(.[0].name | test("/w.\\]$|dot_general.8$")) |
            .[1]) | unique == ["R,R,S0", "S0,S0,S1"])'
    refuses 3 'cannot have the layout asked by --pin' ap-shard --mesh 2x8 --microbatches 2 \
        --pin 'dot_general.8=R,S0' "$(imported mlp)"
}

@test "microbatches: statistics of batch normalisation forbid them, by name" {
    refuses 3 '(reduce_sum.539) combines the whole batch, and node 60 (sub.79) reads it before' \
        ap-shard --mesh 2 --microbatches 2 "$(imported resnet)"
}

# tokens NAME: a weighted mean over the batch whose weights' sum the gradient needs
tokens() {
    cat >"$BATS_TEST_TMPDIR/$1.hlo" <<'END'
HloModule tokens, input_output_alias={ {0}: (0, {}, may-alias) }
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY main {
  w = f32[8,4] parameter(0), metadata={op_name="params['w']"}
  x = f32[16,8] parameter(1), metadata={op_name="batch['x']"}
  m = f32[16] parameter(2), metadata={op_name="batch['m']"}
  zero = f32[] constant(0)
  y = f32[16,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  count = f32[] reduce(m, zero), dimensions={0}, to_apply=add
  rows = f32[16,4] broadcast(m), dimensions={0}
  each = f32[16,4] broadcast(count), dimensions={}
  part = f32[16,4] divide(rows, each)
  weighed = f32[16,4] multiply(y, part)
  square = f32[16,4] multiply(weighed, y)
  loss = f32[] reduce(square, zero), dimensions={0,1}, to_apply=add
  dw = f32[8,4] dot(x, weighed), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  new = f32[8,4] subtract(w, dw)
  ROOT out = (f32[8,4], f32[]) tuple(new, loss)
}
END
    ap-import --no-history "$BATS_TEST_TMPDIR/$1.hlo"
}

@test "microbatches: numbers of tokens are counted before the first one" {
    needs_exec
    tokens t >"$BATS_TEST_TMPDIR/t.json"
    for b in 2 8; do
        planned "$BATS_TEST_TMPDIR/t.json" 2 $b data >"$BATS_TEST_TMPDIR/p.json"
        promised "$BATS_TEST_TMPDIR/p.json"
        # the count is made once; the loop follows
        jq -e '.program | .each_microbatch.groups[0] as $lo |
            [.modules[0].graph.nodes[] | select(.op == "reduce" and .group < $lo)] | length == 1' \
            "$BATS_TEST_TMPDIR/p.json"
        ap-exec -n 2 --verify --steps 2 "$BATS_TEST_TMPDIR/p.json"
    done
}

# bytes ALGORITHM BATCH B: what a step moves on 8 devices
bytes() {
    local f=$BATS_FILE_TMPDIR/mlp-$2.json
    [ -s "$f" ] || ap-model mlp --no-history --layers 4 --batch "$2" --features 64 --hidden 64 \
        --classes 64 -o "$f"
    ap-shard --mesh 8 --cost-model bytes --algorithm "$1" --microbatches "$3" "$f" |
        jq .sharding.objective_sec
}

@test "alpa §8.1: tensor parallelism's bytes grow with accumulation steps, gradients' do not" {
    for algorithm in data megatron; do
        one=$(bytes $algorithm 64 1)
        for n in 2 4 8; do # as large a microbatch each time
            times=$([ $algorithm = data ] && echo 1 || echo $n)
            jq -en "$(bytes $algorithm $((64 * n)) $n) == $times * $one" >/dev/null
        done
    done
    # in a batch of one size, gradients are still summed once and activations every time
    count() { ap-shard --mesh 8 --algorithm "$1" --microbatches "$2" "$BATS_FILE_TMPDIR/mlp-512.json" |
        ap-cost | jq '[.cost.collectives[] | .count] | add'; }
    [ "$(count data 4)" -eq "$(count data 1)" ]
    [ "$(count megatron 4)" -gt "$(($(count megatron 1) * 2))" ]
}

@test "alpa §4.2: gradients reduce-scattered once per step, weights gathered, move as much" {
    data=$(bytes data 512 4)
    zero2=$(bytes zero2 512 4)
    zero3=$(bytes zero3 512 4)
    # ZeRO-2 and 3 reduce the gradients of each microbatch; summed first, they are reduced once
    ap-shard --quiet --mesh 8 --algorithm zero2 --microbatches 4 "$BATS_FILE_TMPDIR/mlp-512.json" |
        jq 'del(.sharding.scatters)' >"$BATS_TEST_TMPDIR/once.json"
    once=$(ap-shard --quiet --mesh 8 --cost-model bytes --plan "$BATS_TEST_TMPDIR/once.json" \
        "$BATS_FILE_TMPDIR/mlp-512.json" | jq .sharding.objective_sec)
    shows "bytes with 4 microbatches: all-reduced $data, scattered once and gathered $once, with each $zero2, weights gathered with each $zero3"
    jq -en "$once == $data and $zero2 > $data and $zero3 > $zero2" >/dev/null
}

@test "microbatches: activations shrink, and a tighter limit of memory can be met" {
    f=$BATS_TEST_TMPDIR/m.json
    ap-model mlp --no-history --layers 6 --batch 4096 --features 32 --hidden 32 --classes 32 -o "$f"
    whole=$(ap-shard --mesh 2 --algorithm data "$f" | jq .sharding.peak_bytes)
    parts=$(ap-shard --mesh 2 --algorithm data --microbatches 8 "$f" | jq .sharding.peak_bytes)
    [ $((4 * parts)) -lt $((3 * whole)) ]
    ap-shard --mesh 2 --microbatches 8 --memory $((whole / 2)) "$f" |
        jq -e --argjson whole "$whole" '.sharding | .peak_bytes <= $whole / 2 and
            .lower_bound_sec <= .objective_sec' >/dev/null
}

@test "microbatches: every named plan is priced beside the plan, and none beats ilp" {
    ap-shard --no-history --cluster "$CLUSTERS/cpu-8.json" --mesh 2x2 --microbatches 2 \
        -o "$BATS_TEST_TMPDIR/ilp.json" "$(imported gpt2l)"
    for algorithm in data zero2 zero3 megatron megatron-sp largest-dim; do
        ap-shard --no-history --cluster "$CLUSTERS/cpu-8.json" --mesh 2x2 --microbatches 2 \
            --algorithm "$algorithm" "$(imported gpt2l)" |
            jq -e --slurpfile i "$BATS_TEST_TMPDIR/ilp.json" \
                '.sharding.objective_sec >= $i[0].sharding.objective_sec' >/dev/null
    done
    jq -e '.sharding | .lower_bound_sec > 0.999 * .objective_sec' "$BATS_TEST_TMPDIR/ilp.json"
    ap-cost --details "$BATS_TEST_TMPDIR/ilp.json" >"$BATS_TEST_TMPDIR/report"
    grep -q ' 2 microbatches' "$BATS_TEST_TMPDIR/report"
    grep -q 'with every microbatch' "$BATS_TEST_TMPDIR/report"
    [ "$(wc -L <"$BATS_TEST_TMPDIR/report")" -le 100 ]
    grep -c 'megatron' "$BATS_TEST_TMPDIR/report"
    # the timeline adds up to the step, groups in the order in which they run
    ap-cost --trace "$BATS_TEST_TMPDIR/trace" -o "$BATS_TEST_TMPDIR/cost.json" \
        "$BATS_TEST_TMPDIR/ilp.json"
    jq -e --slurpfile t "$BATS_TEST_TMPDIR/trace" '(.cost.step_sec * 1e6) as $sec |
        ([$t[0].traceEvents[] | select(.ph == "X") | .dur] | add) / $sec |
        . > 0.999999 and . < 1.000001' "$BATS_TEST_TMPDIR/cost.json" >/dev/null
}

@test "microbatches: ilp finds what the papers' integer program finds" {
    price() { ap-shard --cluster "$CLUSTERS/cpu-8.json" --mesh "$2" --microbatches 2 --solver "$1" \
        "$(imported "$3")" | jq -e '.sharding | select(.stopped == "optimal") | .objective_sec'; }
    jq -en "($(price exact 2 mlp) / $(price glpk 2 mlp) - 1) | fabs < 1e-9"
    jq -en "($(price exact 2x2 mlp_fwd) / $(price glpk 2x2 mlp_fwd) - 1) | fabs < 1e-9"
}

@test "microbatches: where no plan fits, the least that is proven is no more than the least found" {
    run -3 --separate-stderr ap-shard --cluster "$CLUSTERS/cpu-8.json" --mesh 2x2 --microbatches 2 \
        --memory 1kB "$(imported mlp)"
    # shellcheck disable=SC2154
    [[ $stderr =~ 'least found needs '[^\(]*\(([0-9]+)\ bytes\) ]] && found=${BASH_REMATCH[1]}
    [[ $stderr =~ 'at least '[^\(]*\(([0-9]+)\ bytes\) ]] && proven=${BASH_REMATCH[1]}
    [ "$proven" -le "$found" ]
    ap-shard --cluster "$CLUSTERS/cpu-8.json" --mesh 2x2 --microbatches 2 --memory "$found" \
        "$(imported mlp)" | jq -e --argjson found "$found" '.sharding.peak_bytes <= $found'
}

@test "microbatches: the documents validate, and broken loops are refused by ap-exec" {
    needs_exec
    planned "$(imported mlp)" 2 2 ilp >"$BATS_TEST_TMPDIR/p.json"
    /usr/bin/python3 tests/validate.py "$BATS_TEST_TMPDIR/p.json"
    for edit in 'del(.program.each_microbatch)' '.program.each_microbatch.groups = [0, 100000]' \
        '.program.each_microbatch.groups = [5, 4]' '.program.each_microbatch.groups[0] += 9' \
        'del(.program.mesh.time)' '.program.mesh.time = "x"'; do
        jq "$edit" "$BATS_TEST_TMPDIR/p.json" >"$BATS_TEST_TMPDIR/bad.json"
        refuses 1 'program' ap-exec -n 2 "$BATS_TEST_TMPDIR/bad.json"
    done
}
