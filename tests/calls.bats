#!/usr/bin/env bats
# ap-import: custom calls and batch norms.
# shellcheck disable=SC2154 # status, output and stderr are bats'

load helpers

@test "calls: an unknown custom call is whole everywhere, with one warning, and not run" {
    run --separate-stderr ap-import --no-history - <<'END'
ENTRY e { x = f32[8,4] parameter(0)
    t = (f32[8,4], s32[2]) custom-call(x), custom_call_target="mystery"
    u = f32[8,4] get-tuple-element(t), index=0
    v = f32[8,4] custom-call(u), custom_call_target="mystery", backend_config={"a": ["b"]}
    ROOT y = f32[8,4] negate(v) }
END
    [ "$status" -eq 0 ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == *":2:28: unknown custom call 'mystery'"* ]]
    jq -e '[.graph.nodes[] | select(.op == "custom-call") | [.target, .shape, .index // 0]] ==
        [["mystery", "f32[8,4]", 0], ["mystery", "f32[8,4]", 0]]' <<<"$output"
    jq -e '[.graph.nodes[].backend_config // empty] == ["{\"a\": [\"b\"]}"]' <<<"$output"
    ap-shard --mesh 2 <<<"$output" | ap-cost | ap-rewrite >"$BATS_TEST_TMPDIR/p.json"
    needs_exec
    refuses 2 "custom-call mystery: not supported yet" ap-exec -n 2 "$BATS_TEST_TMPDIR/p.json"
}

@test "calls: attention kernels have the FLOPs of their products" {
    ap-import --no-history <<'END' >"$BATS_TEST_TMPDIR/g.json"
ENTRY e { q = bf16[2,16,4,8] parameter(0)  k = bf16[2,32,4,8] parameter(1)
    v = bf16[2,32,4,8] parameter(2)  p = bf16[2,16,3,4,8] parameter(3)
    a = bf16[2,16,4,8] custom-call(q, k, v), custom_call_target="te_fused_attn_forward_ffi"
    b = bf16[2,16,4,8] custom-call(p), custom_call_target="te_fused_attn_backward_ffi"
    ROOT y = bf16[2,16,4,8] add(a, b) }
END
    jq -e '[.graph.nodes[] | select(.op == "custom-call") | .flops] ==
        [2 * 2 * 2*16*32*4*8, 2 * 5 * 2*16*16*4*8]' "$BATS_TEST_TMPDIR/g.json"
}

@test "calls: attention on nothing has no FLOPs" {
    run ap-import --no-history <<'END'
ENTRY e { p = f32[2,8,0,4,16] parameter(0)
    ROOT a = f32[2,8,4,16] custom-call(p), custom_call_target="te_fused_attn_forward" }
END
    [ "$status" -eq 0 ]
}

@test "calls: TopK takes the order of the comparison that it calls, which must be one" {
    topk() { # BODY
        printf '%s\n' "cmp { a = f32[] parameter(0)  b = f32[] parameter(1)
            i = s32[] parameter(2)  j = s32[] parameter(3)  $1 }
        ENTRY e { x = f32[2,8] parameter(0)
            ROOT t = (f32[2,3], s32[2,3]) custom-call(x), custom_call_target=\"TopK\",
                called_computations={cmp} }"
    }
    largest() { # BODY: the order of what is read
        topk "$1" | ap-import | jq -c '.graph.nodes[] | select(.op == "topk") |
            [.k, if has("largest") then .largest else true end]'
    }
    [ "$(largest 'ROOT r = pred[] compare(a, b), direction=GT')" = '[3,true]' ]
    [ "$(largest 'ROOT r = pred[] compare(b, a), direction=LT')" = '[3,true]' ]
    [ "$(largest 'ROOT r = pred[] compare(a, b), direction=LT')" = '[3,false]' ]
    [ "$(largest 'ROOT r = pred[] compare(b, a), direction=GT')" = '[3,false]' ]
    for body in 'c = f64[] convert(a)  d = f64[] convert(b)  ROOT r = pred[] compare(c, d), direction=GT' \
        'ROOT r = pred[] compare(a, a), direction=GT' \
        'ROOT r = pred[] compare(a, b), direction=EQ'; do
        topk "$body" >"$BATS_TEST_TMPDIR/topk.hlo"
        refuses 2 "TopK by 'cmp' is not supported" ap-import "$BATS_TEST_TMPDIR/topk.hlo"
    done
}

@test "calls: products and convolutions of libraries have their FLOPs" {
    ap-import --no-history <<'END' >"$BATS_TEST_TMPDIR/g.json"
ENTRY e { a = f32[2,16,8] parameter(0)  b = f32[2,8,4] parameter(1)
    p = (f32[2,16,4], s8[1024]) custom-call(a, b), custom_call_target="__cublas$gemm"
    x = f32[2,3,10,10] parameter(2)  w = f32[5,3,3,3] parameter(3)  g = f32[2,5,8,8] parameter(4)
    c = (f32[2,5,8,8], u8[0]) custom-call(x, w), custom_call_target="__cudnn$convForward",
        window={size=3x3}, dim_labels=bf01_oi01->bf01
    i = (f32[2,3,10,10], u8[0]) custom-call(g, w), custom_call_target="__cudnn$convBackwardInput",
        window={size=3x3}, dim_labels=bf01_oi01->bf01
    k = (f32[5,3,3,3], u8[0]) custom-call(x, g), custom_call_target="__cudnn$convBackwardFilter",
        window={size=3x3}, dim_labels=bf01_oi01->bf01
    p0 = f32[2,16,4] get-tuple-element(p), index=0  c0 = f32[2,5,8,8] get-tuple-element(c), index=0
    i0 = f32[2,3,10,10] get-tuple-element(i), index=0  k0 = f32[5,3,3,3] get-tuple-element(k), index=0
    ROOT t = (f32[2,16,4], f32[2,5,8,8], f32[2,3,10,10], f32[5,3,3,3]) tuple(p0, c0, i0, k0) }
END
    jq -e '[.graph.nodes[] | select(.op == "custom-call") | .flops] ==
        [2 * 2*16*8*4, 2 * 2*5*8*8*27, 2 * 2*5*8*8*27, 2 * 2*5*8*8*27]' "$BATS_TEST_TMPDIR/g.json"
}

@test "calls: side effects are refused in branches, where all are computed" {
    branch() { # SELECTOR
        echo "a { x = f32[4] parameter(0)
            ROOT y = f32[4] custom-call(x), custom_call_target=\"log_it\", custom_call_has_side_effect=true }
        b { x = f32[4] parameter(0)  ROOT y = f32[4] negate(x) }
        ENTRY e { p = pred[] $1  x = f32[4] parameter(0)
            ROOT y = f32[4] conditional(p, x, x), true_computation=a, false_computation=b }"
    }
    refuses 2 "custom call 'log_it' with a side effect in a branch" \
        ap-import --quiet - <<<"$(branch 'parameter(1)')"
    branch 'constant(true)' | ap-import --quiet --no-history | jq -e '.graph.nodes[1].target == "log_it"'
}

@test "calls: batch norms are what their definition says" {
    needs_exec
    values() { # INSTRUCTIONS: sum of w over all results y, m and v
        ap-import --no-history <<END | ap-rewrite | ap-exec
        sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
        ENTRY e { x = f32[2,3,4] parameter(0)  s = f32[3] parameter(1)  o = f32[3] parameter(2)
            g = f32[2,3,4] parameter(3)  mm = f32[3] parameter(4)  vv0 = f32[3] parameter(5)
            vv = f32[3] abs(vv0)  z = f32[] constant(0)  eight = f32[] constant(8)
            e1 = f32[] constant(0.125)  eights = f32[3] broadcast(eight), dimensions={}
            es = f32[3] broadcast(e1), dimensions={}
            $1
            yg = f32[2,3,4] multiply(y, g)  y2 = f32[2,3,4] sine(yg)
            ys = f32[] reduce(y2, z), dimensions={0,1,2}, to_apply=sum
            mo = f32[3] multiply(m, o)  ms = f32[] reduce(mo, z), dimensions={0}, to_apply=sum
            vo = f32[3] multiply(v, s)  vs = f32[] reduce(vo, z), dimensions={0}, to_apply=sum
            t = f32[] add(ys, ms)  ROOT r = f32[] add(t, vs) }
END
    }
    close() { awk -v a="${1##* }" -v b="${2##* }" 'BEGIN { e = (a - b) / b; exit !(b != 0 && e * e < 1e-10) }'; }
    wide() { echo "$1w = f32[2,3,4] broadcast($1), dimensions={1}"; }
    mean='ms0 = f32[3] reduce(x, z), dimensions={0,2}, to_apply=sum  m = f32[3] divide(ms0, eights)'
    var='x2 = f32[2,3,4] multiply(x, x)  vs0 = f32[3] reduce(x2, z), dimensions={0,2}, to_apply=sum
        vs1 = f32[3] divide(vs0, eights)  m2 = f32[3] multiply(m, m)  v = f32[3] subtract(vs1, m2)'
    norm='ve = f32[3] add(v, es)  r0 = f32[3] rsqrt(ve)  mw = f32[2,3,4] broadcast(m), dimensions={1}
        rw = f32[2,3,4] broadcast(r0), dimensions={1}  d0 = f32[2,3,4] subtract(x, mw)
        h = f32[2,3,4] multiply(d0, rw)'
    affine="$(wide s) $(wide o)  hs = f32[2,3,4] multiply(h, sw)  y = f32[2,3,4] add(hs, ow)"
    get='y = f32[2,3,4] get-tuple-element(n), index=0  m = f32[3] get-tuple-element(n), index=1
        v = f32[3] get-tuple-element(n), index=2'
    close "$(values "n = (f32[2,3,4], f32[3], f32[3]) batch-norm-training(x, s, o), epsilon=0.125, feature_index=1 $get")" \
        "$(values "$mean $var $norm $affine")"
    given='m = f32[3] copy(mm)  v = f32[3] copy(vv)'
    close "$(values "$given  y = f32[2,3,4] batch-norm-inference(x, s, o, mm, vv), epsilon=0.125, feature_index=1")" \
        "$(values "$given $norm $affine")"
    # d offset, d scale, and dx by the chain rule through mean and variance
    chain='ngw = f32[2,3,4] multiply(g, h)
        m0 = f32[3] reduce(ngw, z), dimensions={0,2}, to_apply=sum
        v9 = f32[3] reduce(g, z), dimensions={0,2}, to_apply=sum
        a0 = f32[3] divide(m0, eights)  a1 = f32[3] divide(v9, eights)
        a0w = f32[2,3,4] broadcast(a0), dimensions={1}  a1w = f32[2,3,4] broadcast(a1), dimensions={1}
        ha = f32[2,3,4] multiply(h, a0w)  g1 = f32[2,3,4] subtract(g, a1w)
        g2 = f32[2,3,4] subtract(g1, ha)  g3 = f32[2,3,4] multiply(g2, rw)
        sw = f32[2,3,4] broadcast(s), dimensions={1}  y = f32[2,3,4] multiply(g3, sw)'
    close "$(values "n = (f32[2,3,4], f32[3], f32[3]) batch-norm-grad(x, s, mm, vv, g), epsilon=0.125, feature_index=1 $get")" \
        "$(values "$(sed 's/\bm\b/mm/; s/add(v,/add(vv,/' <<<"$norm") $chain  m = f32[3] copy(m0)  v = f32[3] copy(v9)")"
}

# What JAX's dot_product_attention lowers to for GPUs, by cuDNN and by XLA, with bf16 as f32:
# grouped queries under a causal mask, a bias with its gradient, a window, lengths of sequences,
# heads before rows.
@test "calls: cuDNN's attentions are read as their operators, and compute what XLA's do" {
    needs_exec
    local k how d=$AP_TOP/testdata/attention
    for k in causal bias window pad heads; do
        for how in cudnn plain; do
            ap-import --quiet "$d/$k.$how.hlo.gz" >"$BATS_TEST_TMPDIR/$how.json"
            ap-shard --quiet --mesh 1 "$BATS_TEST_TMPDIR/$how.json" | ap-rewrite --quiet |
                ap-exec --steps 2 --json | jq .losses
        done | jq -s -e --arg k "$k" 'transpose | all(.[0] / .[1] - 1 | fabs < 1e-6)'
        [ "$(ap-fuse --quiet --stats "$BATS_TEST_TMPDIR/cudnn.json" 2>&1 >"$BATS_TEST_TMPDIR/$k.json" |
            jq -c '[.forward, .backward, .plain]')" = '[1,1,0]' ]
        jq -e 'all(.graph.nodes[]; .op != "custom-call")' "$BATS_TEST_TMPDIR/$k.json"
    done
    # masks are proved, of both passes
    for k in causal heads window; do
        jq -e '[.graph.nodes[].scores // empty | .[3:]] | unique == [[if $k == "window" then 4 else 15 end, 0]]' \
            --arg k "$k" "$BATS_TEST_TMPDIR/$k.json"
    done
}

@test "calls: of cuDNN's attentions, dropout and what does not fit stay calls" {
    local text
    text=$(gzip -dc "$AP_TOP/testdata/attention/causal.cudnn.hlo.gz")
    targets() { ap-import --quiet | jq -c '[.graph.nodes[].target // empty] | unique'; }
    [ "$(sed 's/"dropout_rate": 0.0/"dropout_rate": 0.1/' <<<"$text" | targets)" = '["__cudnn$fmhaSoftmax","__cudnn$fmhaSoftmaxBackward"]' ]
    [ "$(sed 's/"mask_type": "CAUSAL"/"mask_type": "ALIBI"/' <<<"$text" | targets)" = '["__cudnn$fmhaSoftmax","__cudnn$fmhaSoftmaxBackward"]' ]
    [ "$(sed 's/fmhaSoftmaxBackward"/fmhaSoftmaxBackwardF8"/' <<<"$text" | targets)" = '["__cudnn$fmhaSoftmaxBackwardF8"]' ]
    [ "$(sed 's/"fmha_scale": 0.25/"fmha_scale": "x"/' <<<"$text" | targets)" = '["__cudnn$fmhaSoftmax","__cudnn$fmhaSoftmaxBackward"]' ]
    refuses 1 "result 0 has another shape than its operands make" ap-import \
        <(sed 's/(f32\[2,4,16,16\]{3,1,2,0}, f32\[2,4,16\]/(f32[2,4,16,8]{3,1,2,0}, f32[2,4,16]/' <<<"$text")
}
