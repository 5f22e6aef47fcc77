#!/usr/bin/env bats
# ap-rewrite: plans as programs.

# shellcheck disable=SC2154 # stderr is bats'
load helpers

# Collectives of a document's conversions, as the program lists them.
planned() {
    jq -c '.sharding.mesh.axes as $axes
        | [.sharding.conversions[].steps[] | select(.op | startswith("ap-") | not)]
        | group_by([.op, .axes])
        | map({op: .[0].op, axes: .[0].axes, count: length, bytes: map(.bytes) | add})
        | sort_by([.op, .axes])[]' "$1"
}

counted() { jq -c '.program.collectives | sort_by([.op, .axes])[]' "$1"; }

@test "rewrite: without a sharding, the program is the graph" {
    for m in mlp gpt2l resnet moe; do
        ap-rewrite --no-history -o "$BATS_TEST_TMPDIR/one.json" "$(imported $m)"
        run jq -c '(.graph.nodes | length) == (.program.modules[0].graph.nodes | length),
            .program.n_ranks, .program.collectives,
            ([.program.modules[0].source[]] | sort) == [range(.graph.nodes | length)],
            (.graph.nodes as $n | .program.modules[0] | [.source, .graph.nodes] | transpose
                | all($n[.[0]].op == .[1].op and $n[.[0]].shape == .[1].shape))' \
            "$BATS_TEST_TMPDIR/one.json"
        [ "$(echo $output)" = "true 1 [] true true" ] || { echo "$m: $output"; return 1; }
    done
}

@test "rewrite: random plans of the models make sound programs" {
    run "$AP_BUILD/unit/test_partition" "$(imported mlp)" "$(imported gpt2l)" \
        "$(imported resnet)" "$(imported moe)"
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
}

@test "rewrite: the program's collectives and memory are the plan's" {
    for m in mlp gpt2l resnet; do
        for a in ilp data zero3; do
            ap-rewrite -o "$BATS_TEST_TMPDIR/p.json" "$(sharded $m 2x2 $a)"
            diff <(planned "$BATS_TEST_TMPDIR/p.json") <(counted "$BATS_TEST_TMPDIR/p.json")
            run jq '.sharding.peak_bytes >= .program.peak_bytes' "$BATS_TEST_TMPDIR/p.json"
            [ "$output" = true ] || { echo "$m $a: more memory than promised"; return 1; }
        done
    done
}

@test "rewrite: a result that becomes a parameter is computed in its memory" {
    ap-rewrite -o "$BATS_TEST_TMPDIR/p.json" "$(imported mlp)"
    run jq '.program.modules[0] | .buffers.alias as $a | .graph.results
        | map(select(.alias)) | all($a[.node] == .alias)' "$BATS_TEST_TMPDIR/p.json"
    [ "$output" = true ]
}

@test "rewrite: the backward phase's smaller copy is made once nobody needs the whole value" {
    cat >"$BATS_TEST_TMPDIR/early.hlo" <<'EOF'
HloModule early
ENTRY main {
  x = f32[64,64] parameter(0)
  a = f32[64,64] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jvp(f)/dot"}
  b = f32[64,64] dot(x, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name="jvp(f)/dot"}
  c = f32[64,64] dot(b, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jvp(f)/dot"}
  ROOT r = f32[64,64] dot(a, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="transpose(jvp(f))/dot"}
}
EOF
    # names A R: the program's nodes when a and r have these layouts
    names() {
        echo '{"mesh":{"axes":["x"],"shape":[4]},"nodes":{"a":"'"$1"'","b":"R","c":"R","r":"'"$2"'"}}' \
            >"$BATS_TEST_TMPDIR/plan.json"
        ap-import "$BATS_TEST_TMPDIR/early.hlo" | ap-shard --plan "$BATS_TEST_TMPDIR/plan.json" |
            ap-rewrite | jq -r '.program.modules[0].graph.nodes | map(.name) | join(" ")'
    }
    # a quarter of a is cut at once; a quarter is made whole as late as it may
    [[ $(names R S0) == "x a a.ap-slice.2 b c r"* ]]
    [[ $(names S0 R) == *"a b c a.all-gather."*" r" ]]
}

@test "rewrite: so it is of a view, where nobody else reads what that is a view of" {
    # order B: the program's nodes when b is the dot of B and x
    order() {
        cat >"$BATS_TEST_TMPDIR/view.hlo" <<EOF
HloModule view
ENTRY main {
  x = f32[64,64] parameter(0)
  w = f32[128,128] parameter(1)
  a = f32[64,64] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jvp(f)/dot"}
  v = f32[32,128] reshape(a), metadata={op_name="jvp(f)/reshape"}
  b = f32[64,64] dot($1, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name="jvp(f)/dot"}
  r = f32[32,128] dot(v, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}, metadata={op_name="transpose(jvp(f))/dot"}
  ROOT t = (f32[32,128], f32[64,64]) tuple(r, b)
}
EOF
        echo '{"mesh":{"axes":["x"],"shape":[4]},"nodes":{"a":"R","v":"R","b":"R","r":"S0"}}' \
            >"$BATS_TEST_TMPDIR/plan.json"
        ap-import "$BATS_TEST_TMPDIR/view.hlo" | ap-shard --plan "$BATS_TEST_TMPDIR/plan.json" |
            ap-rewrite | jq -r '.program.modules[0].graph.nodes | map(.name) | join(" ")'
    }
    [[ $(order x) == *"a v v.ap-slice."*" b r "* ]]
    [[ $(order a) == *"a v b v.ap-slice."*" r "* ]]
}

@test "rewrite: the same document gives the same bytes" {
    ap-rewrite -o "$BATS_TEST_TMPDIR/a.json" "$(sharded gpt2l 2x2 zero3)"
    ap-rewrite -o "$BATS_TEST_TMPDIR/b.json" "$BATS_TEST_TMPDIR/a.json"
    cmp <(jq -c .program "$BATS_TEST_TMPDIR/a.json") \
        <(jq -c .program "$BATS_TEST_TMPDIR/b.json")
}

@test "rewrite: a sharding of another graph is refused" {
    jq -c --slurpfile s "$(sharded mlp 2x2 data)" '.sharding = $s[0].sharding' \
        "$(imported gpt2l)" >"$BATS_TEST_TMPDIR/x.json"
    refuses 1 "another graph" ap-rewrite "$BATS_TEST_TMPDIR/x.json"
    # of the same shapes
    jq -c '(.graph.nodes | map(.op) | index("multiply")) as $i | .graph.nodes[$i].op = "add"' \
        "$(sharded mlp 2x2 data)" >"$BATS_TEST_TMPDIR/z.json"
    refuses 1 "/sharding/fingerprint/graph: the sharding was made for another graph" \
        ap-rewrite "$BATS_TEST_TMPDIR/z.json"
    jq -c '.sharding.groups[0].choice[0] = 40' "$(sharded mlp 2x2 data)" \
        >"$BATS_TEST_TMPDIR/y.json"
    refuses 1 "/sharding/groups/0/choice" ap-rewrite "$BATS_TEST_TMPDIR/y.json"
    jq -c '.sharding.cost_model = "guess"' "$(sharded mlp 2x2 data)" \
        >"$BATS_TEST_TMPDIR/z.json"
    refuses 1 "/sharding/cost_model" ap-rewrite "$BATS_TEST_TMPDIR/z.json"
}

@test "rewrite: --stats counts" {
    run --separate-stderr ap-rewrite --stats -o /dev/null "$(imported mlp)"
    [ "$status" -eq 0 ]
    run jq -e '.tool == "ap-rewrite" and .nodes > 0 and .collectives == 0 and
        .peak_device_bytes > 0' <<<"$stderr"
    [ "$status" -eq 0 ]
}
