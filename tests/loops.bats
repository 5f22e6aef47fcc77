#!/usr/bin/env bats
# ap-import: while loops unrolled, stacked tensors split layer by layer.
# shellcheck disable=SC2154 # status, output and stderr are bats'

load helpers

import() {
    ap-import --no-history -
}

# A loop that negates x: initial counter, condition on counter i, and step of the counter.
loop() { # START CONDITION STEP [ATTRIBUTES]
    cat <<END
below { a = s32[] parameter(0)  b = s32[] parameter(1)
    ROOT l = pred[] compare(a, b), direction=LT }
cond { s = (s32[], f32[4]) parameter(0)  i = s32[] get-tuple-element(s), index=0
    six = s32[] constant(6)  $2 }
body { s = (s32[], f32[4]) parameter(0)  i = s32[] get-tuple-element(s), index=0
    x = f32[4] get-tuple-element(s), index=1  y = f32[4] negate(x)
    two = s32[] constant(2)  next = s32[] $3
    ROOT t = (s32[], f32[4]) tuple(next, y) }
ENTRY e { x = f32[4] parameter(0)  $1  s = (s32[], f32[4]) tuple(i, x)
    w = (s32[], f32[4]) while(s), condition=cond, body=body$4
    ROOT y = f32[4] get-tuple-element(w), index=1 }
END
}

# How often the loop on standard input runs.
trips() {
    import | jq '[.graph.nodes[] | select(.op == "negate")] | length'
}

@test "loops: the condition tells the trip count, whatever its form" {
    zero='i = s32[] constant(0)' up='add(i, two)'
    [ "$(loop "$zero" 'ROOT c = pred[] compare(i, six), direction=LT' "$up" | trips)" -eq 3 ]
    [ "$(loop "$zero" 'ROOT c = pred[] compare(i, six), direction=LE' "$up" | trips)" -eq 4 ]
    [ "$(loop "$zero" 'ROOT c = pred[] compare(six, i), direction=GT' "$up" | trips)" -eq 3 ]
    [ "$(loop "$zero" 'ROOT c = pred[] compare(i, six), direction=NE' "$up" | trips)" -eq 3 ]
    [ "$(loop "$zero" 'ROOT c = pred[] call(i, six), to_apply=below' "$up" | trips)" -eq 3 ]
    [ "$(loop "$zero" 'ROOT c = pred[] compare(i, six), direction=GT' "$up" | trips)" -eq 0 ]
    [ "$(loop 'i = s32[] constant(-1)' 'ROOT c = pred[] compare(i, six), direction=LT' \
        "$up" | trips)" -eq 4 ]
    [ "$(loop 'i = s32[] constant(15)' 'ROOT c = pred[] compare(i, six), direction=GE' \
        'subtract(i, two)' | trips)" -eq 5 ]
}

@test "loops: known_trip_count counts where the start is not known" {
    start='i = s32[] parameter(1)' c='ROOT c = pred[] compare(i, six), direction=LT'
    [ "$(loop "$start" "$c" 'add(i, two)' ', backend_config={"known_trip_count":{"n":"5"}}' |
        trips)" -eq 5 ]
    [ "$(loop "$start" "$c" 'add(i, two)' \
        ', backend_config="{\"known_trip_count\":{\"n\":\"7\"}}"' | trips)" -eq 7 ]
    refuses 1 "known_trip_count is negative" ap-import \
        <(loop "$start" "$c" 'add(i, two)' ', backend_config={"known_trip_count":{"n":"-5"}}')
    refuses 2 "unknown trip count" ap-import <(loop "$start" "$c" 'add(i, two)')
    refuses 2 "instructions after inlining" ap-import \
        <(loop 'i = s32[] constant(0)' 'ROOT c = pred[] compare(i, i), direction=EQ' 'add(i, two)')
}

@test "loops: nested, and named after their iterations" {
    import >"$BATS_TEST_TMPDIR/g.json" <<'END'
below { s = (s32[], f32[4]) parameter(0)  n = s32[] constant(2)
    ROOT c = pred[] compare(s#0, n), direction=LT }
inner { s = (s32[], f32[4]) parameter(0)  one = s32[] constant(1)  n = s32[] add(s#0, one)
    y = f32[4] negate(s#1), metadata={op_name="jit(f)/a/while/body/b/while/body/c/neg"}
    ROOT t = (s32[], f32[4]) tuple(n, y) }
outer { s = (s32[], f32[4]) parameter(0)  one = s32[] constant(1)  n = s32[] add(s#0, one)
    zero = s32[] constant(0)  i = (s32[], f32[4]) tuple(zero, s#1)
    w = (s32[], f32[4]) while(i), condition=below, body=inner
    y = f32[4] abs(w#1), metadata={op_name="jit(f)/a/while/body/b/d/abs"}
    ROOT t = (s32[], f32[4]) tuple(n, y) }
ENTRY e { x = f32[4] parameter(0)  zero = s32[] constant(0)
    s = (s32[], f32[4]) tuple(zero, x)
    v = (s32[], f32[4]) while(s), condition=below, body=outer
    ROOT y = f32[4] get-tuple-element(v), index=1 }
END
    jq -e '[.graph.nodes[1:][] | [.op, .name, .scope]] == [
        ["negate", "v/0/w/0/y", "a/b/0/c/0"], ["negate", "v/0/w/1/y", "a/b/0/c/1"],
        ["abs", "v/0/y", "a/b/0/d"],
        ["negate", "v/1/w/0/y", "a/b/1/c/0"], ["negate", "v/1/w/1/y", "a/b/1/c/1"],
        ["abs", "v/1/y", "a/b/1/d"]]' "$BATS_TEST_TMPDIR/g.json"
}

# Loss of the program on standard input, inputs from the seed.
loss() {
    needs_exec
    import | ap-rewrite | ap-exec
}

# Operators and shapes that the graph on standard input has.
ops() {
    import | jq -r '.graph.nodes[] | .op + " " + .shape'
}

# A loop over the three layers of x0, writing to y; what comes of y is the rest of ENTRY.
stack() { # BODY ENTRY RESULT
    cat <<END
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
max { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] maximum(a, b) }
gt { a = f32[] parameter(0)  b = f32[] parameter(1)
    ROOT c = pred[] compare(a, b), direction=GT }
cond { s = (s32[], f32[3,4], f32[3,4], f32[4]) parameter(0)  n = s32[] constant(3)
    ROOT c = pred[] compare(s#0, n), direction=LT }
body { s = (s32[], f32[3,4], f32[3,4], f32[4]) parameter(0)
    i = s32[] get-tuple-element(s), index=0  one = s32[] constant(1)  next = s32[] add(i, one)
    zero = s32[] constant(0)
    row = f32[1,4] dynamic-slice(s#1, i, zero), dynamic_slice_sizes={1,4}
    w = f32[4] reshape(row)  v = f32[4] multiply(w, s#3)
    $1
    y = f32[3,4] dynamic-update-slice(s#2, new, i, zero)
    ROOT t = (s32[], f32[3,4], f32[3,4], f32[4]) tuple(next, s#1, y, v) }
ENTRY e { a = f32[4] parameter(0)  zero = s32[] constant(0)
    a3 = f32[3,4] broadcast(a), dimensions={1}
    b0 = f32[3,4] constant({{1.5,2,3,4},{5,6.5,7,8},{9,1,2.5,3}})
    b1 = f32[3,4] add(a3, b0)  b = f32[3,4] cosine(b1)
    z = f32[] constant(0)  zeros = f32[3,4] broadcast(z), dimensions={}
    one = f32[] constant(1)  ones = f32[4] broadcast(one), dimensions={}
    $2
    s = (s32[], f32[3,4], f32[3,4], f32[4]) tuple(zero, x0, zeros, ones)
    l = (s32[], f32[3,4], f32[3,4], f32[4]) while(s), condition=cond, body=body
    y = f32[3,4] get-tuple-element(l), index=2
    $3 }
END
}

# The same without a loop and without slices that could be split.
unrolled() { # BODY ENTRY RESULT
    stack "$@" | sed -n '/^sum/,/^cond/p' | sed '/^cond/d'
    cat <<END
ENTRY e { a = f32[4] parameter(0)  z = f32[] constant(0)
    a3 = f32[3,4] broadcast(a), dimensions={1}
    b0 = f32[3,4] constant({{1.5,2,3,4},{5,6.5,7,8},{9,1,2.5,3}})
    b1 = f32[3,4] add(a3, b0)  b = f32[3,4] cosine(b1)
    $2
    r0 = f32[1,4] slice(x0), slice={[0:1],[0:4]}  w0 = f32[4] reshape(r0)
    r1 = f32[1,4] slice(x0), slice={[1:2],[0:4]}  w1 = f32[4] reshape(r1)
    r2 = f32[1,4] slice(x0), slice={[2:3],[0:4]}  w2 = f32[4] reshape(r2)
    v1 = f32[4] multiply(w0, w1)  v2 = f32[4] multiply(v1, w2)
    n0 = f32[1,4] reshape(w0)  n1 = f32[1,4] reshape(v1)  n2 = f32[1,4] reshape(v2)
    y = f32[3,4] concatenate(n0, n1, n2), dimensions={0}
    $3 }
END
}

# Two losses are equal but for rounding.
alike() {
    awk -v a="${1##* }" -v b="${2##* }" 'BEGIN { e = (a - b) / b; exit !(e * e < 1e-12) }'
}

# same BODY-INPUT RESULT SPLIT: both programs give the same loss; SPLIT is yes if no node
# of the loop's graph has an axis of three layers.
same() {
    local new='new = f32[1,4] reshape(v)' a b left
    a=$(stack "$new" "$1" "$2" | loss)
    b=$(unrolled "$new" "$1" "$2" | loss)
    alike "$a" "$b" || { echo "'$a' is not '$b': $1 $2"; return 1; }
    left=$(stack "$new" "$1" "$2" | ops | grep -c '\[3' || true)
    [ "$3" = "$([ "$left" -eq 0 ] && echo yes || echo no)" ] || { echo "$left left: $1 $2"; return 1; }
}

@test "loops: what is split computes what the stack did" {
    total='ROOT r = f32[] reduce(y, z), dimensions={0,1}, to_apply=sum'
    b='x0 = f32[3,4] copy(b)'
    same "$b" "$total" yes
    same "$b" "h = f32[] constant(0.5)  ROOT r = f32[] reduce(y, h), dimensions={0,1}, to_apply=sum" yes
    same "$b" "m = f32[4] reduce(y, z), dimensions={0}, to_apply=max
        ROOT r = f32[] reduce(m, z), dimensions={0}, to_apply=sum" yes
    same "$b" "h = f32[] constant(0.01)  m = f32[4] reduce(y, h), dimensions={0}, to_apply=max
        ROOT r = f32[] reduce(m, z), dimensions={0}, to_apply=sum" yes
    same "$b" "m = f32[3] reduce(y, z), dimensions={1}, to_apply=max  i = f32[3] iota(), iota_dimension=0
        p = f32[3] multiply(m, i)  ROOT r = f32[] reduce(p, z), dimensions={0}, to_apply=sum" yes
    same "$b" "t = f32[4,3] transpose(y), dimensions={1,0}  k = f32[3] constant({3, 5, 7})
        kk = f32[4,3] broadcast(k), dimensions={1}  p = f32[4,3] multiply(t, kk)
        q = f32[2,2,3] reshape(p)
        ROOT r = f32[] reduce(q, z), dimensions={0,1,2}, to_apply=sum" yes
    same "$b" "q = f32[3,4] reverse(y), dimensions={0,1}  k = f32[3,4] constant({{1,2,3,4},{5,6,7,8},{9,1,2,3}})
        p = f32[3,4] multiply(q, k)  ROOT r = f32[] reduce(p, z), dimensions={0,1}, to_apply=sum" yes
    same "$b" "d = f32[3] dot(y, b), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_contracting_dims={1}
        e2 = f32[3] multiply(d, d)  ROOT r = f32[] reduce(e2, z), dimensions={0}, to_apply=sum" yes
    same "q0 = f32[1,4] reshape(a)  q1 = f32[1,4] negate(q0)  q2 = f32[1,4] sine(q0)
        x0 = f32[3,4] concatenate(q0, q1, q2), dimensions={0}" "$total" yes
}

@test "loops: what cannot be split stays a stack, with slices at known places" {
    total='ROOT r = f32[] reduce(q, z), dimensions={0,1}, to_apply=sum'
    k='k = f32[3,4] constant({{1,2,3,4},{5,6,7,8},{9,1,2,3}})'
    b='x0 = f32[3,4] copy(b)'
    same "$b" "$k  p = f32[3,4] sort(y), dimensions={0}, is_stable=true, to_apply=gt
        q = f32[3,4] multiply(p, k)  $total" no
    same "$b" "g = f32[12] reshape(y)  f = f32[12] reverse(g), dimensions={0}
        p = f32[3,4] reshape(f)  $k  q = f32[3,4] multiply(p, k)  $total" no
    same "$b" "h = f32[2,4] slice(y), slice={[1:3],[0:4]}  p = f32[3,4] pad(h, z), padding=0_1x0_0
        $k  q = f32[3,4] multiply(p, k)  $total" no
    same "x0 = f32[3,4] sort(b), dimensions={0}, is_stable=true, to_apply=gt" \
        "q = f32[3,4] copy(y)  $total" no
    same "$b" "d = f32[3,3] dot(y, y), lhs_contracting_dims={1}, rhs_contracting_dims={1}
        ROOT r = f32[] reduce(d, z), dimensions={0,1}, to_apply=sum" no
    left=$(stack 'new = f32[1,4] reshape(v)' "x0 = f32[3,4] sort(b), dimensions={0}, to_apply=gt" \
        "q = f32[3,4] copy(y)  $total" | ops | grep -c '^dynamic-slice' || true)
    [ "$left" -eq 0 ]
}

@test "loops: branches are selected, or known" {
    branches() { # SELECTOR CALL
        cat <<END
        half { x = f32[4] parameter(0)  h = f32[] constant(0.5)  hs = f32[4] broadcast(h), dimensions={}
            y = f32[4] multiply(x, hs)  ROOT t = (f32[4], f32[4]) tuple(y, x) }
        less { x = f32[4] parameter(0)  y = f32[4] negate(x)  ROOT t = (f32[4], f32[4]) tuple(y, x) }
        sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
        ENTRY e { x = f32[4] parameter(0)  u = f32[4] sine(x)  z = f32[] constant(0)
            total = f32[] reduce(u, z), dimensions={0}, to_apply=sum
            $1  c = (f32[4], f32[4]) conditional($2
            v = f32[4] get-tuple-element(c), index=0  w = f32[4] get-tuple-element(c), index=1
            p = f32[4] multiply(v, w)  ROOT r = f32[] reduce(p, z), dimensions={0}, to_apply=sum }
END
    }
    index='i = s32[] constant' n='branch_computations={half, less, half}'
    two='true_computation=half, false_computation=less'
    half=$(branches "$index(0)" "i, x, x, x), $n" | loss) less=$(branches "$index(1)" "i, x, x, x), $n" | loss)
    [ "$half" != "$less" ]
    [ "$(branches "$index(-7)" "i, x, x, x), $n" | loss)" = "$half" ]
    [ "$(branches "$index(9)" "i, x, x, x), branch_computations={half, half, less}" | loss)" = "$less" ]
    [ "$(branches 'i = pred[] constant(true)' "i, x, x), $two" | loss)" = "$half" ]
    [ "$(branches 'i = pred[] constant(false)' "i, x, x), $two" | loss)" = "$less" ]
    # not known: what is selected depends on the data
    over() { echo "k = f32[] constant($1)  i = pred[] compare(total, k), direction=GT"; }
    run --separate-stderr import <<<"$(branches "$(over -9)" "i, x, x), $two")"
    [[ $stderr == *"all branches of conditionals are computed"* ]]
    [ "$(branches "$(over -9)" "i, x, x), $two" | loss)" = "$half" ]
    [ "$(branches "$(over 9)" "i, x, x), $two" | loss)" = "$less" ]
    floor='f = f32[] floor(total)  g = f32[] subtract(f, f)  one = f32[] constant(1)
        h = f32[] add(g, one)  i = s32[] convert(h)'
    [ "$(branches "$floor" "i, x, x, x), $n" | loss)" = "$less" ]
}

# Loss of the loops on standard input, kept: on one rank, and planned for four.
kept() { # [MESH]
    needs_exec
    local f=$BATS_TEST_TMPDIR/kept.json
    ap-import --no-history --keep-loops - |
        if [ $# -gt 0 ]; then ap-shard --no-history --mesh "$1" --algorithm data; else cat; fi |
        ap-rewrite -o "$f"
    ap-exec -n "$(jq '.program.n_ranks' "$f")" "$f"
}

@test "loops: kept, they are one node and compute what the iterations do" {
    b='x0 = f32[3,4] copy(b)' new='new = f32[1,4] reshape(v)'
    total='ROOT r = f32[] reduce(y, z), dimensions={0,1}, to_apply=sum'
    stack "$new" "$b" "$total" >"$BATS_TEST_TMPDIR/stack.hlo"
    one=$(loss <"$BATS_TEST_TMPDIR/stack.hlo")
    alike "$(kept <"$BATS_TEST_TMPDIR/stack.hlo")" "$one"
    alike "$(kept 4 <"$BATS_TEST_TMPDIR/stack.hlo")" "$one"
    ap-import --no-history --keep-loops "$BATS_TEST_TMPDIR/stack.hlo" |
        jq -e '[.graph.nodes[] | select(.op == "while")] |
            length == 1 and .[0].trip_count == 3 and .[0].shape == "(s32[], f32[3,4], f32[3,4], f32[4])"'
    # as many parameters as the state has tensors, the body's results in their places
    ap-import --no-history --keep-loops "$BATS_TEST_TMPDIR/stack.hlo" |
        jq -e '.graph as $g | $g.nodes[] | select(.op == "while") | $g.computations[.body] |
            (.results | length) == 4 and ([.nodes[:4][].op] | unique) == ["parameter"] and .results[1] == 1'
}

@test "loops: kept, the condition tells the trip count, or it is not known" {
    trip_count() {
        ap-import --no-history --quiet --keep-loops - |
            jq -c '[.graph.nodes[] | select(.op == "while") | .trip_count]'
    }
    zero='i = s32[] constant(0)' up='add(i, two)' c='ROOT c = pred[] compare(i, six), direction=LT'
    [ "$(loop "$zero" "$c" "$up" | trip_count)" = '[3]' ]
    [ "$(loop "$zero" 'ROOT c = pred[] call(i, six), to_apply=below' "$up" | trip_count)" = '[3]' ]
    [ "$(loop 'i = s32[] constant(15)' 'ROOT c = pred[] compare(i, six), direction=GE' \
        'subtract(i, two)' | trip_count)" = '[5]' ]
    [ "$(loop "$zero" 'ROOT c = pred[] compare(i, six), direction=GT' "$up" | trip_count)" = '[0]' ]
    start='i = s32[] parameter(1)'
    [ "$(loop "$start" "$c" "$up" ', backend_config={"known_trip_count":{"n":"5"}}' | trip_count)" = '[5]' ]
    [ "$(loop "$start" "$c" "$up" | trip_count)" = '[null]' ]
    # a loop that never ends is not counted for ever
    [ "$(loop "$zero" 'ROOT c = pred[] compare(i, i), direction=EQ' "$up" | trip_count)" = '[null]' ]
    run --separate-stderr ap-import --keep-loops <(loop "$start" "$c" "$up")
    [[ $stderr == *"while 'w': unknown trip count, priced as one iteration"* ]]
    refuses 2 "while 'w': unknown trip count; --keep-loops" \
        ap-import <(loop "$start" "$c" "$up")
    refuses 2 "--keep-loops is for HLO text" \
        ap-import --keep-loops testdata/models/onnx_gpt/model.onnx
}

@test "loops: kept, a loop that data ends runs until then" {
    halve() { # FIRST
        cat <<END
        sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
        cond { s = (f32[4], s32[]) parameter(0)  z = f32[] constant(0)
            t = f32[] reduce(s#0, z), dimensions={0}, to_apply=sum  one = f32[] constant(1)
            ROOT c = pred[] compare(t, one), direction=GT }
        body { s = (f32[4], s32[]) parameter(0)  h = f32[] constant(0.5)
            hs = f32[4] broadcast(h), dimensions={}  x = f32[4] multiply(s#0, hs)
            i = s32[] constant(1)  n = s32[] add(s#1, i)  ROOT t = (f32[4], s32[]) tuple(x, n) }
        ENTRY e { p = f32[4] parameter(0)  k = f32[] constant($1)  x = f32[4] broadcast(k), dimensions={}
            zero = s32[] constant(0)  s = (f32[4], s32[]) tuple(x, zero)
            w = (f32[4], s32[]) while(s), condition=cond, body=body
            y = f32[] convert(w#1)  z = f32[] constant(0)  u = f32[] reduce(w#0, z), dimensions={0}, to_apply=sum
            ROOT r = f32[] add(y, u) }
END
    }
    # 4k, halved until it is no more than 1: that, and how often
    [ "$(halve 1 | kept)" = "step 1 loss 3" ]
    [ "$(halve 6 | kept)" = "step 1 loss 5.75" ]
    [ "$(halve 0.25 | kept)" = "step 1 loss 1" ]
    [ "$(halve 6 | kept 2)" = "step 1 loss 5.75" ]
}

@test "loops: kept, loops inside of loops share their computations and are counted once a trip" {
    nested() {
        cat <<'END'
        below { s = (s32[], f32[4,4]) parameter(0)  n = s32[] constant(3)
            ROOT c = pred[] compare(s#0, n), direction=LT }
        inner { s = (s32[], f32[4,4]) parameter(0)  one = s32[] constant(1)  n = s32[] add(s#0, one)
            y = f32[4,4] dot(s#1, s#1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
            t = f32[4,4] sine(y)  ROOT r = (s32[], f32[4,4]) tuple(n, t) }
        outer { s = (s32[], f32[4,4]) parameter(0)  one = s32[] constant(1)  n = s32[] add(s#0, one)
            zero = s32[] constant(0)  i = (s32[], f32[4,4]) tuple(zero, s#1)
            w = (s32[], f32[4,4]) while(i), condition=below, body=inner
            j = (s32[], f32[4,4]) tuple(zero, w#1)
            x = (s32[], f32[4,4]) while(j), condition=below, body=inner
            ROOT r = (s32[], f32[4,4]) tuple(n, x#1) }
        sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
        ENTRY e { p = f32[4,4] parameter(0)  x = f32[4,4] cosine(p)  zero = s32[] constant(0)
            s = (s32[], f32[4,4]) tuple(zero, x)
            v = (s32[], f32[4,4]) while(s), condition=below, body=outer  z = f32[] constant(0)
            ROOT y = f32[] reduce(v#1, z), dimensions={0,1}, to_apply=sum }
END
    }
    alike "$(nested | kept 2)" "$(nested | loss)"
    nested | ap-import --no-history --keep-loops - >"$BATS_TEST_TMPDIR/n.json"
    jq -e '[.graph.computations[].name] == ["below", "inner", "outer"]' "$BATS_TEST_TMPDIR/n.json"
    /usr/bin/python3 tests/validate.py "$BATS_TEST_TMPDIR/n.json"
    # 3 * 2 * 3 dots of 128 FLOPs; seconds and FLOPs of the iterations, but for what
    # unrolling folds
    run --separate-stderr ap-import --stats --keep-loops -o /dev/null <(nested)
    [ "$(jq '.heavy_flops' <<<"$stderr")" -eq $((18 * 128)) ]
    ap-shard --mesh 1 "$BATS_TEST_TMPDIR/n.json" | ap-cost | jq '.cost' >"$BATS_TEST_TMPDIR/kept"
    nested | import | ap-shard --mesh 1 | ap-cost | jq '.cost' >"$BATS_TEST_TMPDIR/unrolled"
    # a counter's add and compare cost a launch each: once a trip
    jq -e -n --slurpfile k "$BATS_TEST_TMPDIR/kept" --slurpfile u "$BATS_TEST_TMPDIR/unrolled" '
        $k[0].flops_per_device > $u[0].flops_per_device and
        $k[0].flops_per_device < $u[0].flops_per_device + 100 and
        $k[0].compute_sec > $u[0].compute_sec and $k[0].compute_sec < 4 * $u[0].compute_sec'
}

@test "loops: a sharding that splits the layers is dropped with one warning" {
    pinned() { # SHARDING
        stack 'new = f32[1,4] reshape(v)' "q = f32[3,4] parameter(1), sharding=$1
            r0 = f32[3,4] parameter(2), sharding=$1  x0 = f32[3,4] add(q, r0)" \
            'ROOT r = f32[] reduce(y, z), dimensions={0,1}, to_apply=sum'
    }
    run --separate-stderr import <<<"$(pinned '{devices=[3,1]<=[3]}')"
    [ "$(grep -c warning <<<"$stderr")" -eq 1 ]
    [[ $stderr == *"the sharding {devices=[3,1]<=[3]} of 'q' splits its layers"* ]]
    run --separate-stderr import <<<"$(pinned '{devices=[1,2]<=[2]}')"
    [ -z "$stderr" ]
    jq -e '[.graph.nodes[] | select(.pin) | .pin] | length == 6 and all(. == "{devices=[2]<=[2]}")' <<<"$output"
}

# The HLO text of a golden model with a section step in its header, as an exporter writes it.
stepped() { # MODEL
    local section
    section=$(ap-import --quiet --keep-loops "$(hlo "$1")" | jq -c '.graph as $g | {framework: "jax", version: "0",
        hash: ("0" * 64), arguments: [$g.nodes[] | select(.op == "parameter") | {path: .name, shape}],
        results: [$g.results[] | {path: "", shape: $g.nodes[.node].shape}]}' | sed 's/"/\\\\"/g')
    gzip -dcf "$(hlo "$1")" | awk -v s="$section" 'NR == 1 { $0 = $0 ", frontend_attributes={autopar.step=\"" s "\"}" } 1'
}

@test "loops: with a section step, data is that of the stacked arguments, unrolled or not" {
    needs_exec
    local dir=$BATS_TEST_TMPDIR
    stepped scan_mlp >"$dir/s.hlo"
    ap-import --quiet "$dir/s.hlo" >"$dir/g.json"
    # three layers of a stack are its parts; what was not split is whole
    jq -e '.graph | [.nodes[:4][].argument] == [range(3) | {index: 0, dim: 1, part: ., parts: 3}] + [{index: 1}] and
        [.results[1:4][].result] == [range(3) | {index: 1, dim: 1, part: ., parts: 3}]' "$dir/g.json"
    /usr/bin/python3 tests/validate.py "$dir/g.json"
    /usr/bin/python3 tests/stacked.py "$dir/g.json" "$MODELS/scan_mlp/in" "$dir/in"
    /usr/bin/python3 tests/stacked.py "$dir/g.json" "$MODELS/scan_mlp/out" "$dir/golden"
    cp "$MODELS/scan_mlp/losses.npy" "$dir"
    mv "$dir/golden" "$dir/out"
    # the golden numbers, from and against files of whole stacks
    ap-shard --mesh 4 "$dir/g.json" | ap-rewrite >"$dir/p.json"
    ap-exec -n 4 --quiet --data "$dir/in" --steps 5 --compare "$dir" --out "$dir/got" "$dir/p.json"
    # what is written is whole again, and so it is without unrolling
    [ "$(cd "$dir/out" && echo *.npy)" = "$(cd "$dir/got" && echo [0-9]*.npy)" ]
    ap-import --quiet --keep-loops "$dir/s.hlo" | ap-rewrite |
        ap-exec --quiet --data "$dir/in" --steps 5 --out "$dir/kept" -
    for f in "$dir"/got/[0-9]*.npy; do
        cmp -n 128 "$f" "$dir/out/${f##*/}"
        cmp -n 128 "$f" "$dir/kept/${f##*/}"
    done
    # the stages of a pipeline say of each parameter and result of their own which it is
    ap-coarsen --blocks 2 "$dir/g.json" | ap-stage --cluster cpu-4 --stages 2 --microbatches 2 | ap-rewrite |
        jq -e '.graph as $g | .pipeline | [.stages[] | . as $s | .program.modules[0].graph | .nodes as $n |
            ([$n[] | select(.op == "parameter")] | sort_by(.param) | to_entries[] | select($s.params[.key] >= 0) |
                .value.argument == ($g.nodes | map(select(.op == "parameter")))[$s.params[.key]].argument),
            (.results | to_entries[] | select($s.results[.key] >= 0) |
                .value.result == $g.results[$s.results[.key]].result)] | length > 70 and all'
    # what ap-grad makes of a forward pass is another step; its parameters are still the arguments
    stepped mlp_fwd | ap-import --quiet - | ap-grad --optimizer adam | jq -e '(has("step") | not) and
        [.graph.nodes[] | select(.op == "parameter") | .argument.index] == [range(8), (range(13) | null)]'
    # a stack that is missing, or of another shape, is named with its parameter
    mv "$dir/in/0.npy" "$dir/first.npy"
    refuses 1 "parameter 0 (params['mlp/down/layers/0/w']): $dir/in/0.npy: No such file" \
        ap-exec --data "$dir/in" <(ap-rewrite "$dir/g.json")
    cp "$MODELS/scan_mlp/in/0.npy" "$dir/in"
    refuses 1 "0.npy: expected f32[32,3,32], got f32[32,32]" ap-exec --data "$dir/in" <(ap-rewrite "$dir/g.json")
}
