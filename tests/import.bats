#!/usr/bin/env bats
# ap-import: what it reads, what it makes of it, and what it refuses.

load helpers

# The graph of the HLO text on standard input, as a document.
import() {
    ap-import --no-history "$@"
}

@test "import: the golden models have the roles and aliases of meta.json" {
    for m in mlp gpt2l gpt2l_bf16 resnet moe t5 scan_mlp scan_gpt lstm ff; do
        for source in cat bare; do
            "$source" "$(hlo "$m")" | import >"$BATS_TEST_TMPDIR/g.json"
            jq -e --slurpfile meta "$MODELS/$m/meta.json" '
                ([.graph.nodes[] | select(.op == "parameter") | .role]
                    == [$meta[0].params[].role]) and
                (.graph.results[0].role == "loss") and
                ([.graph.results[1:][] | .alias] == [range(.graph.results[1:] | length)])
                ' "$BATS_TEST_TMPDIR/g.json" || { echo "$m, $source"; return 1; }
        done
    done
}

@test "import: phases, with and without metadata" {
    for source in cat bare; do
        "$source" "$(hlo mlp)" | import >"$BATS_TEST_TMPDIR/g.json"
        # three layers: dots forward, dW of each and dx of all but the first backward
        jq -e '[.graph.nodes[] | select(.op == "dot") | .phase] | group_by(.) |
            map([.[0], length]) == [["backward", 5], ["forward", 3]]' "$BATS_TEST_TMPDIR/g.json"
        jq -e '[.graph.nodes[] | select(.op == "sqrt") | .phase] | unique == ["update"]' \
            "$BATS_TEST_TMPDIR/g.json"
        # no node is of an earlier phase than an operand that is not a parameter
        jq -e '{"forward": 0, "backward": 1, "update": 2} as $rank | .graph.nodes as $n |
            [$n[] | . as $user | (.in // [])[] | $n[.] | select(.op != "parameter") |
             select($rank[.phase] > $rank[$user.phase])] == []' "$BATS_TEST_TMPDIR/g.json"
    done
}

@test "import: phases of layers that learn on their own" {
    for source in cat bare; do
        "$source" "$(hlo ff)" | import >"$BATS_TEST_TMPDIR/g.json"
        # three layers, two batches: forward dots, dW of each, and dx of none
        jq -e '[.graph.nodes[] | select(.op == "dot") | .phase] | group_by(.) |
            map([.[0], length]) == [["backward", 6], ["forward", 6]]' "$BATS_TEST_TMPDIR/g.json"
        # both batches' gradients are summed backward, and only then is there an update
        jq -e '.graph.nodes as $n | [$n[] | select(.op == "add") |
            ([.in[] | $n[.].op] | unique) as $of | select($of == ["transpose"] or
            $of == ["reduce"]) | .phase] == [range(6) | "backward"]' "$BATS_TEST_TMPDIR/g.json"
        jq -e '[.graph.nodes[] | select(.op == "sqrt" or .op == "power") | .phase] | unique
            == ["update"]' "$BATS_TEST_TMPDIR/g.json"
    done
    # forward is what the loss needs, and no more, but for the masks of it
    jq -e '.graph as $g | (reduce range($g.nodes | length - 1; -1; -1) as $i
            ({"\($g.results[0].node)": true};
             if .["\($i)"] then reduce ($g.nodes[$i].in // [])[] as $k (.; .["\($k)"] = true)
             else . end)) as $needed |
        [$g.nodes | to_entries[] | select(.value.op != "parameter") |
         select((.value.phase == "forward") != ($needed["\(.key)"] // false)) | .value |
         [.phase, .op]] | unique == [["forward", "broadcast"], ["forward", "compare"], ["forward", "constant"]]' \
        "$BATS_TEST_TMPDIR/g.json"
}

# Two layers, clipped by the norm of all gradients, which is the first result too.
clipped() {
    cat <<'END'
HloModule jit_step, input_output_alias={ {1}: (0, {}, may-alias), {2}: (1, {}, may-alias) }

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  w1 = f32[8,8] parameter(0)
  w2 = f32[8,8] parameter(1)
  x = f32[4,8] parameter(2)
  zero = f32[] constant(0)
  one = f32[] constant(1)
  ones = f32[4,8] broadcast(one), dimensions={}
  h = f32[4,8] dot(x, w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/jvp(a)/dot"}
  t = f32[4,8] tanh(h), metadata={op_name="jit(step)/jvp(a)/tanh"}
  y = f32[4,8] dot(t, w2), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/jvp(b)/dot"}
  yy = f32[4,8] multiply(y, y), metadata={op_name="jit(step)/jvp(b)/mul"}
  loss = f32[] reduce(yy, zero), dimensions={0,1}, to_apply=sum, metadata={op_name="jit(step)/jvp(b)/sum"}
  dy = f32[4,8] add(y, y), metadata={op_name="jit(step)/transpose(jvp(b))/mul"}
  dw2 = f32[8,8] dot(t, dy), lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/transpose(jvp(b))/dot"}
  dt = f32[4,8] dot(dy, w2), lhs_contracting_dims={1}, rhs_contracting_dims={1}, metadata={op_name="jit(step)/transpose(jvp(b))/dot"}
  tt = f32[4,8] multiply(t, t), metadata={op_name="jit(step)/jvp(a)/mul"}
  slope = f32[4,8] subtract(ones, tt), metadata={op_name="jit(step)/jvp(a)/sub"}
  dh = f32[4,8] multiply(dt, slope), metadata={op_name="jit(step)/transpose(jvp(a))/mul"}
  dw1 = f32[8,8] dot(x, dh), lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/transpose(jvp(a))/dot"}
  sq1 = f32[8,8] multiply(dw1, dw1), metadata={op_name="jit(step)/square"}
  n1 = f32[] reduce(sq1, zero), dimensions={0,1}, to_apply=sum, metadata={op_name="jit(step)/reduce_sum"}
  sq2 = f32[8,8] multiply(dw2, dw2), metadata={op_name="jit(step)/square"}
  n2 = f32[] reduce(sq2, zero), dimensions={0,1}, to_apply=sum, metadata={op_name="jit(step)/reduce_sum"}
  total = f32[] add(n1, n2), metadata={op_name="jit(step)/add"}
  norm = f32[] sqrt(total), metadata={op_name="jit(step)/sqrt"}
  scales = f32[8,8] broadcast(norm), dimensions={}, metadata={op_name="jit(step)/div"}
  g1 = f32[8,8] divide(dw1, scales), metadata={op_name="jit(step)/div"}
  g2 = f32[8,8] divide(dw2, scales), metadata={op_name="jit(step)/div"}
  new1 = f32[8,8] subtract(w1, g1), metadata={op_name="jit(step)/sub"}
  new2 = f32[8,8] subtract(w2, g2), metadata={op_name="jit(step)/sub"}
  ROOT out = (RESULTS) tuple(FIRST, new1, new2, LAST)
}
END
}

@test "import: the norm of all gradients is an update, and no loss" {
    local types='f32[], f32[8,8], f32[8,8], f32[]' hlo=$BATS_TEST_TMPDIR/clip.hlo
    clipped | sed "s/RESULTS/$types/; s/FIRST/norm/; s/LAST/loss/" >"$hlo"
    clipped | sed -E "s/RESULTS/$types/; s/FIRST/loss/; s/LAST/norm/; s/, metadata=.*//" >"$hlo.bare"
    for f in "$hlo" "$hlo.bare"; do
        import -o "$BATS_TEST_TMPDIR/g.json" "$f"
        jq -e '.graph as $g | ($g.nodes | map({key: .name, value: .phase}) | from_entries) as $of |
            ($g.results[] | select(.role == "loss") | $g.nodes[.node].name == "loss") and
            ([$of["dw1", "dw2", "dt", "dy"]] | unique == ["backward"]) and
            ([$of["sq1", "n1", "sq2", "n2", "total", "norm", "scales", "g1", "g2"]] |
                unique == ["update"])' "$BATS_TEST_TMPDIR/g.json"
        ap-coarsen --blocks 2 "$BATS_TEST_TMPDIR/g.json" | jq -e '(.blocks.blocks | length) == 2'
    done
    # called backward, it has no place among the blocks
    jq '(.graph.nodes[] | select(.name | test("^(sq|n)[12]$|total|norm|scales|^g[12]$")) | .phase) =
        "backward"' "$BATS_TEST_TMPDIR/g.json" >"$BATS_TEST_TMPDIR/lie.json"
    refuses 1 "reads node" ap-coarsen --blocks 2 "$BATS_TEST_TMPDIR/lie.json"
}

@test "import: scopes are the same forward and backward, and parameters have theirs" {
    jq -e '[.graph.nodes[] | select(.op == "dot") | .scope] | group_by(.) |
        map([.[0], length]) == [["mlp/fc_0", 2], ["mlp/fc_1", 3], ["mlp/fc_2", 3]]' \
        "$(imported mlp)"
    jq -e '.graph.nodes[1] | .name == "params['\''mlp/fc_0/w'\'']" and .scope == "mlp/fc_0/w"' \
        "$(imported mlp)"
}

@test "import: every generation of the syntax" {
    run --separate-stderr import tests/fuzz/hlo/generations.hlo
    [ "$status" -eq 0 ]
    # one warning for the one unknown attribute, with its place
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == *"generations.hlo:47:63: unknown attribute 'brand_new'"* ]]
    jq -e '.graph | (.nodes | map(.op) == ["parameter", "constant", "reshape", "slice",
            "scatter", "constant", "reduce", "topk", "get-tuple-element", "constant", "pad",
            "multiply", "add"]) and
        (.reducers | map(.kind) == ["assign", "sum"]) and
        (.nodes[0].pin == "{devices=[2,1]<=[2]}") and (.nodes[4].pin == "{replicated}") and
        (.nodes[6].scope == "net/h_0") and (.nodes[6].name == "both/s") and
        (.dropped == ["custom", "barrier", "c", "e"])' <<<"$output"
    run --separate-stderr import --quiet tests/fuzz/hlo/generations.hlo
    [ -z "$stderr" ]
}

@test "import: sigils, operand shapes and layouts change nothing" {
    plain='r { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
        ENTRY e { x = f32[4,2] parameter(0)  y = f32[4,2] tanh(x)
        zero = f32[] constant(0)  ROOT z = f32[4] reduce(y, zero), dimensions={1}, to_apply=r }'
    adorned='HloModule module, entry_computation_layout={(f32[4,2]{1,0})->f32[4]{0}}
        %r (a: f32[], b: f32[]) -> f32[] { %a = f32[] parameter(0)  %b = f32[] parameter(1)
        ROOT %c = f32[] add(f32[] %a, f32[] %b) }
        ENTRY %e (x: f32[4,2]) -> f32[4] { %x = f32[4,2]{1,0} parameter(0)
        %y = f32[4,2]{1,0} tanh(f32[4,2]{1,0} %x)  %zero = f32[] constant(0)
        ROOT %z = f32[4]{0} reduce(/*index=0*/f32[4,2]{1,0} %y, f32[] %zero), dimensions={1}, to_apply=%r }'
    [ "$(import <<<"$plain")" = "$(import <<<"$adorned")" ]
    # no ENTRY: the last computation; no ROOT: the last instruction
    [ "$(import <<<"$plain")" = "$(sed 's/ENTRY //; s/ROOT z/z/' <<<"$plain" | import)" ]
}

@test "import: gzip is unpacked" {
    gzip -c "$(hlo mlp)" >"$BATS_TEST_TMPDIR/m.hlo.gz"
    cmp <(import "$BATS_TEST_TMPDIR/m.hlo.gz") <(import "$(hlo mlp)")
    cmp <(gzip -c "$(hlo mlp)" | import) <(import "$(hlo mlp)")
    printf '\x1f\x8b\x08junk' >"$BATS_TEST_TMPDIR/bad.gz"
    refuses 1 "bad.gz: unknown header flags set" ap-import "$BATS_TEST_TMPDIR/bad.gz"
    refuses 1 "bad.gz: unknown header flags set" ap-solve "$BATS_TEST_TMPDIR/bad.gz"
}

@test "import: constants, broadcasts and iotas have one user each, other operands keep theirs" {
    for m in mlp gpt2l moe resnet; do
        jq -e '.graph as $g | [$g.nodes[] | (.in // []) | unique | .[]] | group_by(.) |
            [.[] | select(length > 1) | $g.nodes[.[0]] |
             select(.op == "broadcast" or .op == "iota" or
                    (.op == "constant" and (.shape | endswith("[]"))))] == []' \
            "$(imported "$m")" || { echo "$m"; return 1; }
        jq -e '[.graph.nodes[].name] | length == (unique | length)' "$(imported "$m")"
    done
}

@test "import: what says nothing is gone" {
    import >"$BATS_TEST_TMPDIR/g.json" <<'END'
ENTRY e {
  x = f32[4,2] parameter(0)
  unused = f32[7] parameter(1)
  copied = f32[4,2] copy(x)
  same = f32[4,2] reshape(copied)
  turned = f32[2,4] transpose(same), dimensions={1,0}
  back = f32[4,2] transpose(turned), dimensions={1,0}
  cast = f32[4,2] convert(back)
  dead = f32[4,2] tanh(x)
  one = f64[] constant(1)
  one32 = f32[] convert(one)
  ones = f32[2] broadcast(one32), dimensions={}
  row = f32[1,2] reshape(ones)
  rows = f32[4,2] broadcast(ones), dimensions={1}
  twos = f32[4,2] constant({{2,2},{2,2},{2,2},{2,2}})
  sum = f32[4,2] add(cast, rows)
  ROOT all = f32[4,2] multiply(sum, twos)
}
END
    jq -e '.graph | (.nodes | map(.op) == ["parameter", "parameter", "constant", "broadcast",
            "add", "constant", "broadcast", "multiply"]) and
        (.nodes[2].shape == "f32[]") and (.nodes[2].value == 1) and
        (.nodes[4].in == [0, 3]) and (.nodes[5].value == 2) and
        (.dropped == ["dead", "row"])' "$BATS_TEST_TMPDIR/g.json"
}

@test "import: dimensions of size 1 around a broadcast go" {
    import >"$BATS_TEST_TMPDIR/g.json" <<'END'
r { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY e {
  x = f32[8,32] parameter(0)
  zero = f32[] constant(0)
  total = f32[8] reduce(x, zero), dimensions={1}, to_apply=r
  kept = f32[8,1] reshape(total)
  n = f32[] constant(32)
  ns = f32[8,1] broadcast(n), dimensions={}
  mean = f32[8,1] divide(kept, ns)
  wide = f32[8,1] broadcast(mean), dimensions={0,1}
  flat = f32[8] reshape(wide)
  full = f32[8,32] broadcast(flat), dimensions={0}
  ROOT y = f32[8,32] subtract(x, full)
}
END
    jq -e '.graph.nodes | map([.op, .shape]) == [["parameter", "f32[8,32]"],
        ["constant", "f32[]"], ["reduce", "f32[8]"], ["constant", "f32[]"],
        ["broadcast", "f32[8]"], ["divide", "f32[8]"], ["broadcast", "f32[8,32]"],
        ["subtract", "f32[8,32]"]]' "$BATS_TEST_TMPDIR/g.json"
}

@test "import: --roles and --phases override" {
    echo '{"batch*": "constant", "opt_state[?step*": "state", "div.32": "loss"}' \
        >"$BATS_TEST_TMPDIR/roles.json"
    echo '{"adam": "backward", "mlp/act_*": "update"}' >"$BATS_TEST_TMPDIR/phases.json"
    import --roles "$BATS_TEST_TMPDIR/roles.json" --phases "$BATS_TEST_TMPDIR/phases.json" \
        "$(hlo mlp)" >"$BATS_TEST_TMPDIR/g.json"
    jq -e '.graph | ([.nodes[] | select(.role == "constant") | .name] ==
            ["batch['\''x'\'']", "batch['\''y'\'']"]) and
        ([.nodes[] | select(.scope == "adam") | .phase] | unique == ["backward"]) and
        ([.nodes[] | select(.scope // "" | startswith("mlp/act_")) | .phase] | unique
            == ["update"])' "$BATS_TEST_TMPDIR/g.json"
    echo '{"nobody": "state"}' >"$BATS_TEST_TMPDIR/roles.json"
    refuses 1 "'nobody' matches no parameter" ap-import --roles "$BATS_TEST_TMPDIR/roles.json" \
        "$(hlo mlp)"
    echo '{"nobody": "update"}' >"$BATS_TEST_TMPDIR/phases.json"
    refuses 1 "'nobody' matches no node" ap-import --phases "$BATS_TEST_TMPDIR/phases.json" \
        "$(hlo mlp)"
    echo '{"batch*": "weihgt"}' >"$BATS_TEST_TMPDIR/roles.json"
    refuses 1 "roles.json: /batch*: 'weihgt'" ap-import --roles \
        "$BATS_TEST_TMPDIR/roles.json" "$(hlo mlp)"
}

@test "import: without a loss there are no aliases but those of the text" {
    text='ENTRY e { p = (f32[4], f32[4]) parameter(0)
        ROOT s = f32[4] add(p#0, p#1) }'
    import <<<"$text" | jq -e '.graph | .results == [{"node": 2, "role": "aux"}] and
        ([.nodes[].role] == ["input", "input", null]) and ([.nodes[].phase] | unique == ["forward"])'
    import <<<"HloModule m, input_output_alias={ {}: (0, {1}, must-alias) }
        $text" | jq -e '.graph.results == [{"node": 2, "role": "state", "alias": 1}]'
}

@test "import: --stats counts" {
    run --separate-stderr ap-import --stats -o /dev/null "$(hlo mlp)"
    # 2 * 8 rows * (32*64 + 64*64 + 64*10) forward; backward twice that less dx of the first
    jq -e '.weights == 6 and .states == 13 and .inputs == 2 and .instructions == 330 and
        .weight_elems == 6922 and .heavy_flops == 2*8*(3*(32*64 + 64*64 + 64*10) - 32*64)' \
        <<<"$stderr"
}

@test "import: bad inputs are refused with their place" {
    for f in testdata/bad/hlo/*.hlo; do
        read -r _ _ code place text <"$f"
        refuses "$code" "$f:$place: $text" ap-import "$f"
        # the message, the line, the caret under the place
        [ "${#stderr_lines[@]}" -ge 2 ]
        [[ ${stderr##*$'\n'} =~ ^\ *\^$ ]] || { echo "$f: $stderr"; return 1; }
    done
}

@test "import: a text cut anywhere is refused or read, never a crash" {
    text=$(head -n 140 "$(hlo mlp)" | tail -n 60)
    for ((cut = 0; cut < ${#text}; cut += 997)); do
        run --separate-stderr import <<<"${text:0:cut}"
        [ "$status" -eq 1 ] || [ "$status" -eq 0 ] || { echo "$cut: $status"; return 1; }
        [ "$status" -eq 0 ] || [ -z "$output" ]
    done
}

@test "import: 10^6 nested brackets are refused" {
    many() { yes "$1" | head -n 1000000 | tr -d '\n'; }
    for open in '{' '(' '['; do
        { printf 'ENTRY e { x = f32[] parameter(0), sharding='; many "$open"; } \
            >"$BATS_TEST_TMPDIR/deep.hlo"
        refuses 1 "deep.hlo:1:556: brackets are nested more than 512 deep" \
            ap-import "$BATS_TEST_TMPDIR/deep.hlo"
    done
    { printf 'ENTRY e { x = '; many '('; } >"$BATS_TEST_TMPDIR/deep.hlo"
    refuses 1 "deep.hlo:1:80: tuples are nested more than 64 deep" \
        ap-import "$BATS_TEST_TMPDIR/deep.hlo"
    { printf 'ENTRY e { x = f32[] parameter(0) y = f32[] '; many 'abs('; } \
        >"$BATS_TEST_TMPDIR/deep.hlo"
    refuses 1 "operands are nested more than 64 deep" ap-import "$BATS_TEST_TMPDIR/deep.hlo"
}

@test "import: calls that multiply are refused" {
    {
        echo 'c0 { a = f32[] parameter(0)  ROOT r = f32[] negate(a) }'
        for ((i = 1; i < 64; i++)); do
            echo "c$i { a = f32[] parameter(0)  b = f32[] call(a), to_apply=c$((i - 1))" \
                " ROOT r = f32[] call(b), to_apply=c$((i - 1)) }"
        done
        echo 'ENTRY e { a = f32[] parameter(0)  ROOT r = f32[] call(a), to_apply=c63 }'
    } >"$BATS_TEST_TMPDIR/calls.hlo"
    refuses 2 "instructions after inlining" ap-import "$BATS_TEST_TMPDIR/calls.hlo"
}

@test "import: other formats are refused by name" {
    refuses 1 "not an ONNX model" ap-import --format onnx "$(hlo mlp)"
    refuses 2 "StableHLO is not read: scripts/jax/export.py --stablehlo" ap-import --format stablehlo "$(hlo mlp)"
    refuses 2 "StableHLO is not read: scripts/jax/export.py --stablehlo" ap-import <<<'module @jit_f attributes {} {
        func.func public @main(%arg0: tensor<16xf32>) -> tensor<16xf32> { } }'
    refuses 2 "format" ap-import --format mlir "$(hlo mlp)"
    refuses 1 "no-such-file" ap-import no-such-file
    refuses 1 "" ap-import --format hlo <<<'module @jit_f { }'
    refuses 2 "1:51: a call back into Python (custom call 'xla_ffi_python_cpu_callback')" ap-import \
        <<<'ENTRY e { x = f32[4] parameter(0) ROOT y = f32[4] custom-call(x), custom_call_target="xla_ffi_python_cpu_callback" }'
}

@test "import: a learning rate among the results is no loss, a scaled one is" {
    ap-import --no-history - <<'END' >"$BATS_TEST_TMPDIR/g.json"
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY e { w = f32[4] parameter(0)  scale = f32[] parameter(1)  n = s32[] parameter(2)  x = f32[4] parameter(3)
    p = f32[4] multiply(w, x)  z = f32[] constant(0)  s = f32[] reduce(p, z), dimensions={0}, to_apply=sum
    scaled = f32[] multiply(s, scale)  g = f32[4] broadcast(scale), dimensions={}
    gx = f32[4] multiply(g, x)  w2 = f32[4] subtract(w, gx)
    two = f32[] constant(2)  scale2 = f32[] multiply(scale, two)
    one = s32[] constant(1)  n2 = s32[] add(n, one)  nf = f32[] convert(n)  lr = f32[] multiply(nf, two)
    ROOT t = (f32[], f32[], f32[4], f32[], s32[]) tuple(lr, scaled, w2, scale2, n2) }
END
    jq -e '[.graph.results[] | [.role, .alias // -1]] ==
        [["aux", -1], ["loss", -1], ["weight", 0], ["weight", 1], ["state", 2]]' "$BATS_TEST_TMPDIR/g.json"
    # of parts of a loss and their weighted sum the sum is the loss, but not what is computed of the sum
    ap-import --no-history - <<'END' | jq -e '[.graph.results[].role] == ["aux", "aux", "aux", "loss", "aux", "weight"]'
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY e { w = f32[4] parameter(0)  x = f32[4] parameter(1)  z = f32[] constant(0)  beta = f32[] constant(0.1)
    p = f32[4] multiply(w, x)  fit = f32[] reduce(p, z), dimensions={0}, to_apply=sum
    q = f32[4] multiply(w, w)  decay = f32[] reduce(q, z), dimensions={0}, to_apply=sum
    scaled = f32[] multiply(decay, beta)  total = f32[] add(fit, scaled)  e = f32[] exponential(total)
    w2 = f32[4] subtract(w, x)
    ROOT t = (f32[], f32[], f32[], f32[], f32[], f32[4]) tuple(fit, decay, scaled, total, e, w2) }
END
}

@test "import: an empty input is reported as such" {
    refuses 1 "<stdin>: the input is empty" ap-import </dev/null
    : >"$BATS_TEST_TMPDIR/empty.hlo"
    refuses 1 "empty.hlo: the input is empty" ap-import "$BATS_TEST_TMPDIR/empty.hlo"
}

@test "import: shardings of a tuple are its elements'" {
    ap-import --no-history - <<'END' >"$BATS_TEST_TMPDIR/t.json"
ENTRY e { p = (f32[8], s32[8], f32[4]) parameter(0), sharding={{devices=[2]<=[2]}, {replicated}, /*index=2*/{maximal device=0}}
    a = f32[8] get-tuple-element(p), index=0  b = s32[8] get-tuple-element(p), index=1
    c = f32[4] get-tuple-element(p), index=2, sharding={replicated}
    d = f32[8] negate(a)  e1 = s32[8] negate(b), sharding={replicated}  f = f32[4] negate(c)
    n = (f32[8], s32[8]) tuple(d, e1)
    ROOT t = ((f32[8], s32[8]), f32[4]) tuple(n, f), sharding={{devices=[2]0,1}, {devices=[2]1,0}, /*index=2*/{replicated}} }
END
    jq -e '[.graph.nodes[] | .pin] == ["{devices=[2]<=[2]}", "{replicated}", "{maximal device=0}",
        "{devices=[2]0,1}", "{replicated}", "{replicated}"]' "$BATS_TEST_TMPDIR/t.json"
    # one for the whole tuple
    ap-import --no-history - <<'END' | jq -e '[.graph.nodes[] | .pin] == [null, "{replicated}", "{replicated}"]'
ENTRY e { x = f32[8] parameter(0)  a = f32[8] negate(x)  b = f32[8] abs(x)
    ROOT t = (f32[8], f32[8]) tuple(a, b), sharding={replicated} }
END
}

@test "import: roles and phases are the same without metadata" {
    for model in mlp gpt2l gpt2l_bf16 resnet moe t5 bert ff scan_gpt scan_mlp lstm; do
        bare "$(hlo $model)" | ap-import --no-history -o "$BATS_TEST_TMPDIR/bare.json" -
        jq -e '[.graph.nodes[].phase] | unique == ["backward", "forward", "update"]' "$BATS_TEST_TMPDIR/bare.json"
        for doc in "$(imported $model)" "$BATS_TEST_TMPDIR/bare.json"; do
            jq -c '.graph | (.nodes[] | [.op, .in, .role, .phase]), .results' "$doc" >"$doc.said"
        done
        cmp "$(imported $model).said" "$BATS_TEST_TMPDIR/bare.json.said" || { echo "$model"; return 1; }
    done
    # running statistics are of the forward pass
    jq -e '[.graph.nodes[] | select(.role == "state" and (.name | test("bn/(mean|var)"))) | .phase] |
        length == 12 and unique == ["forward"]' "$(imported resnet)"
}

@test "import: a norm of gradients is no loss, wherever it stands" {
    for order in "norm, half, loss, w2" "w2, loss, half, norm" "half, w2, norm, loss"; do
        ap-import --no-history - <<END | jq -e '
            [.graph.nodes[].name] as $name | [.graph.results[] | select(.role == "loss")] | length == 1 and
            $name[.[0].node] == "loss"'
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY e { w = f32[4,4] parameter(0)  x = f32[8,4] parameter(1)  z = f32[] constant(0)
    y = f32[8,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    yy = f32[8,4] multiply(y, y)  loss = f32[] reduce(yy, z), dimensions={0,1}, to_apply=sum
    two = f32[] constant(2)  twos = f32[8,4] broadcast(two), dimensions={}  dy = f32[8,4] multiply(twos, y)
    g = f32[4,4] dot(dy, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}
    gt = f32[4,4] transpose(g), dimensions={1,0}  gg = f32[4,4] multiply(g, g)
    squares = f32[] reduce(gg, z), dimensions={0,1}, to_apply=sum  norm = f32[] sqrt(squares)
    half = f32[] divide(norm, two)  by = f32[4,4] broadcast(norm), dimensions={}
    step = f32[4,4] divide(gt, by)  w2 = f32[4,4] subtract(w, step)
    ROOT t = ($(sed -E 's/norm|half|loss/f32[]/g; s/w2/f32[4,4]/' <<<"$order")) tuple($order) }
END
    done
}

# HLO text of a step with two scalars, and a header that says what an exporter knows of it:
# stepped FILTER, jq's on the section `step`.
stepped() {
    local section text='HloModule step, frontend_attributes={xla.x={a = 1},autopar.step="'
    section=$(jq -n --arg hash "$(printf '%064d' 7)" '{framework: "jax", version: "0.10.2",
        hash: $hash, arguments: [{path: "params['"'"'w'"'"']", shape: "f32[4]", donated: true},
            {path: "key", shape: "u32[2]", key: "threefry2x32"}],
        results: [{path: "[0][\"norm\"]", shape: "f32[]"}, {path: "[0][\"total\"]", shape: "f32[]"},
            {path: "[1]", shape: "f32[4]"}], loss: {result: 1, guessed: true}}' | jq -c "${1:-.}" |
        sed -e 's/\\/\\\\/g' -e 's/"/\\"/g')
    printf '%s%s"}\n' "$text" "$section"
    cat <<'END'
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY e {
  w = f32[4] parameter(0), metadata={op_name="params['w']"}
  key = u32[2] parameter(1)
  zero = f32[] constant(0)
  norm = f32[] reduce(w, zero), dimensions={0}, to_apply=sum
  ww = f32[4] multiply(w, w)
  total = f32[] reduce(ww, zero), dimensions={0}, to_apply=sum
  new = f32[4] subtract(w, w)
  ROOT out = (f32[], f32[], f32[4]) tuple(norm, total, new)
}
END
}

@test "import: the section step comes from the header, names the loss, and is passed on" {
    stepped | import - >"$BATS_TEST_TMPDIR/g.json"
    jq -e '.step.version == "0.10.2" and .step.results[1].path == "[0][\"total\"]" and
        ([.graph.results[].role] == ["aux", "loss", "weight"]) and
        ([.graph.nodes[:2][].argument.index] == [0, 1]) and
        ([.graph.results[].result.index] == [0, 1, 2])' "$BATS_TEST_TMPDIR/g.json"
    /usr/bin/python3 tests/validate.py "$BATS_TEST_TMPDIR/g.json"
    # XLA prints it again without the quotes, since it is an object
    stepped | sed '1s/step="\(.*\)"}/step=\1}/; 1s/\\"/"/g; 1s/\\\\/\\/g' | import - |
        cmp - "$BATS_TEST_TMPDIR/g.json"
    # every tool behind passes it on as it is, and the local graph keeps the numbers
    ap-prune "$BATS_TEST_TMPDIR/g.json" | ap-shard --mesh 2 | ap-cost | ap-rewrite >"$BATS_TEST_TMPDIR/p.json"
    [ "$(jq -c .step "$BATS_TEST_TMPDIR/p.json")" = "$(jq -c .step "$BATS_TEST_TMPDIR/g.json")" ]
    jq -e '.program.modules[0].graph | ([.nodes[:2][].argument.index] == [0, 1]) and
        ([.results[].result.index] == [0, 1, 2])' "$BATS_TEST_TMPDIR/p.json"
    /usr/bin/python3 tests/validate.py "$BATS_TEST_TMPDIR/p.json"
    # a frozen weight is no input, and what is updated is not frozen
    stepped '.arguments[1].frozen = true | .arguments[0].frozen = true' | import - |
        jq -e '[.graph.nodes[:2][].role] == ["weight", "weight"]'
    # --roles decides before it; without the section, the first scalar is the loss
    echo '{"norm": "loss"}' >"$BATS_TEST_TMPDIR/roles.json"
    stepped | import --roles "$BATS_TEST_TMPDIR/roles.json" - |
        jq -e '[.graph.results[].role] == ["loss", "aux", "weight"]'
    stepped | sed "1s/.*/HloModule s, frontend_attributes={a={{}, b}}/" | import - |
        jq -e '(has("step") | not) and (.graph.nodes[0] | has("argument") | not) and
            (.graph.results[0] | has("result") | not)'
}

@test "import: a section step that is malformed, or of another step, is refused at its place" {
    local place filter
    while IFS='|' read -r place filter; do
        stepped "$filter" >"$BATS_TEST_TMPDIR/s.hlo"
        refuses 1 ":1:37: autopar.step: $place" ap-import "$BATS_TEST_TMPDIR/s.hlo"
    done <<'END'
member "framework" (a string) is missing|del(.framework)
/version: expected a string|.version = 10
/hash: expected 64 hexadecimal digits|.hash = "abc"
/arguments: there are 1, but the entry computation has 2|del(.arguments[1])
/arguments/0/shape: "f32[5]", but the entry computation has f32[4]|.arguments[0].shape = "f32[5]"
/arguments/0/donated: expected true or false|.arguments[0].donated = 1
/arguments/1/key: expected a string|.arguments[1].key = 3
/arguments/1/frozen: expected true or false|.arguments[1].frozen = "yes"
/results/2: expected an object|.results[2] = "w"
/results: expected an array|.results = {}
/loss/result: result 2 is not a float scalar|.loss.result = 2
/loss/result: expected an integer from 0 to 2|.loss.result = 3
expected an object|[]
END
    stepped | sed '1s/{."framework/{framework/' >"$BATS_TEST_TMPDIR/s.hlo"
    refuses 1 ":1:37: autopar.step: string or '}' expected" ap-import "$BATS_TEST_TMPDIR/s.hlo"
}

@test "import: precision and algorithm of products are kept, into the program and back to HLO" {
    cat >"$BATS_TEST_TMPDIR/p.hlo" <<'END'
ENTRY e { x = f32[8,4,4,2] parameter(0)  k = f32[3,3,2,2] parameter(1)  w = f32[2,6] parameter(2)
    c = f32[8,4,4,2] convolution(x, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f,
        operand_precision={highest,high}
    y = f32[8,4,4,6] dot(c, w), lhs_contracting_dims={3}, rhs_contracting_dims={0}, operand_precision={default,default}
    z = f32[8,4,4,6] dot(c, w), lhs_contracting_dims={3}, rhs_contracting_dims={0}, operand_precision={high}
    ROOT t = f32[8,4,4,6] dot(c, w), lhs_contracting_dims={3}, rhs_contracting_dims={0}, algorithm=dot_bf16_bf16_f32 }
END
    sed -i 's/ROOT t/t/; s/_f32 }/_f32\n    ROOT r = (f32[8,4,4,6], f32[8,4,4,6], f32[8,4,4,6]) tuple(y, z, t) }/' "$BATS_TEST_TMPDIR/p.hlo"
    import "$BATS_TEST_TMPDIR/p.hlo" >"$BATS_TEST_TMPDIR/g.json"
    precise='[.nodes[] | select(.op == "dot" or .op == "convolution") | .operand_precision // .algorithm]'
    want='["{highest,high}",null,"{high,high}","dot_bf16_bf16_f32"]'
    [ "$(jq -c ".graph | $precise" "$BATS_TEST_TMPDIR/g.json")" = "$want" ]
    ap-shard --mesh 2 -o "$BATS_TEST_TMPDIR/s.json" "$BATS_TEST_TMPDIR/g.json"
    ap-rewrite "$BATS_TEST_TMPDIR/s.json" >"$BATS_TEST_TMPDIR/q.json"
    [ "$(jq -c ".program.modules[0].graph | $precise" "$BATS_TEST_TMPDIR/q.json")" = "$want" ]
    /usr/bin/python3 tests/validate.py "$BATS_TEST_TMPDIR/q.json"
    [ "$(ap-rewrite --to hlo "$BATS_TEST_TMPDIR/s.json" | import - | jq -c ".graph | $precise")" = "$want" ]
    # the products of the backward pass are as precise
    import - <<'END' | ap-grad | jq -e '[.graph.nodes[] | select(.op == "dot") | .operand_precision] ==
        ["{highest,highest}", "{highest,highest}"]'
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[8,4] parameter(0)  w = f32[4,2] parameter(1), metadata={op_name="params['w']"}  z = f32[] constant(0)
    y = f32[8,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={highest,highest}
    ROOT l = f32[] reduce(y, z), dimensions={0,1}, to_apply=sum }
END
    sed 's/{high}/{low}/' "$BATS_TEST_TMPDIR/p.hlo" >"$BATS_TEST_TMPDIR/bad.hlo"
    refuses 1 "operand_precision: expected {default, high or highest" ap-import "$BATS_TEST_TMPDIR/bad.hlo"
}

@test "import: what reads through an opt-barrier is marked, also where the reader goes" {
    cat >"$BATS_TEST_TMPDIR/b.hlo" <<'END'
ENTRY e { x = f32[8,4] parameter(0)  w = f32[4,4] parameter(1)
    h = f32[8,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    y = f32[8,4] tanh(h)
    in = (f32[8,4], f32[4,4]) tuple(x, w)
    out = (f32[8,4], f32[4,4]) opt-barrier(in)
    x2 = f32[8,4] get-tuple-element(out), index=0
    w2 = f32[4,4] get-tuple-element(out), index=1
    x3 = f32[8,4] copy(x2)
    w3 = f32[4,4] transpose(w2), dimensions={1,0}
    again = f32[8,4] dot(x3, w3), lhs_contracting_dims={1}, rhs_contracting_dims={1}
    further = f32[8,4] tanh(again)
    ROOT r = (f32[8,4], f32[8,4]) tuple(y, further) }
END
    import "$BATS_TEST_TMPDIR/b.hlo" >"$BATS_TEST_TMPDIR/g.json"
    marked='[.nodes[] | select(.recomputed) | .name]'
    [ "$(jq -c ".graph | $marked" "$BATS_TEST_TMPDIR/g.json")" = '["again"]' ]
    ap-shard --mesh 2 -o "$BATS_TEST_TMPDIR/s.json" "$BATS_TEST_TMPDIR/g.json"
    [ "$(ap-rewrite "$BATS_TEST_TMPDIR/s.json" | jq -c ".program.modules[0].graph | $marked")" = '["again"]' ]
    # HLO text has barriers again, one for each operand, that read back as the mark
    ap-rewrite --to hlo "$BATS_TEST_TMPDIR/s.json" >"$BATS_TEST_TMPDIR/r.hlo"
    [ "$(grep -c ' opt-barrier(' "$BATS_TEST_TMPDIR/r.hlo")" -eq 2 ]
    [ "$(import "$BATS_TEST_TMPDIR/r.hlo" | jq -c ".graph | $marked")" = '["again"]' ]
}

@test "import: an argument or a result of the step that cannot be is refused at its place" {
    local place filter
    stepped | import - >"$BATS_TEST_TMPDIR/g.json"
    while IFS='|' read -r place filter; do
        jq -c "$filter" "$BATS_TEST_TMPDIR/g.json" >"$BATS_TEST_TMPDIR/bad.json"
        refuses 1 "$place" ap-prune "$BATS_TEST_TMPDIR/bad.json"
    done <<'END'
/graph/nodes/0/argument: expected an object|.graph.nodes[0].argument = 3
/graph/nodes/0/argument: member "index" (an integer) is missing|.graph.nodes[0].argument = {}
/graph/nodes/0/argument/index: expected an integer from 0|.graph.nodes[0].argument.index = -1
/graph/nodes/0/argument: member "dim" (an integer) is missing|.graph.nodes[0].argument.parts = 2
/graph/nodes/0/argument/part: expected an integer from 0 to 1|.graph.nodes[0].argument += {dim: 0, part: 2, parts: 2}
/graph/nodes/0 (params['w']): argument: no part of an array of 2 dimensions is 0 of 2 along dimension 2|.graph.nodes[0].argument += {dim: 2, part: 0, parts: 2}
/graph/nodes/0/argument/then/dim: expected an integer from 0 to 11|.graph.nodes[0].argument += {dim: 0, part: 0, parts: 1, then: {dim: 12, part: 0, parts: 1}}
/graph/results/1/result: expected an object|.graph.results[1].result = "loss"
END
}

@test "shardings on Shardy's empty mesh, those of JAX's typed keys, pin nothing" {
    local empty='xla.sdy.sharding="#sdy.sharding_per_value<[<@empty_mesh, [{}]>]>"'
    ap-import --no-history -o "$BATS_TEST_TMPDIR/key.json" - <<END
ENTRY e { key = u32[2] parameter(0)
    words = u32[2] custom-call(key), custom_call_target="Sharding", sharding={replicated}, frontend_attributes={$empty}
    w = f32[8] parameter(1), frontend_attributes={$empty}, sharding={replicated}
    v = f32[8] parameter(2), sharding={replicated}
    t = (u32[2], f32[8]) tuple(words, w)
    s = u32[2] get-tuple-element(t), index=0
    sum = f32[8] add(w, v)
    ROOT r = (u32[2], f32[8]) tuple(s, sum) }
END
    jq -e '[.graph.nodes[] | select(.pin) | .name] == ["v"]' "$BATS_TEST_TMPDIR/key.json"
}
