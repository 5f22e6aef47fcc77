#!/usr/bin/env bats
# ap-import: while loops unrolled, stacked tensors split layer by layer.

load helpers

import() {
    ap-import --no-history "$@"
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
    refuses 2 "trip count is not known" ap-import <(loop "$start" "$c" 'add(i, two)')
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
