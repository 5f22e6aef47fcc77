#!/usr/bin/env bats
# ap-rewrite --to hlo and --to jax: plans in forms that other compilers read.

# shellcheck disable=SC2154 # status, output and stderr are bats'
load helpers

# The graph of a document, without what text does not keep: names of dropped nodes, and
# names as the text has them.
graph() {
    jq -c '.graph | (.nodes[] | del(.pin) |
            if .op == "parameter" then . else .name |= gsub("[^A-Za-z0-9_.-]"; "_") end),
        .results, [.reducers[] | del(.name)], [.computations[]? | .nodes | map(del(.name))]' "$1"
}

# same_again DOCUMENT [OPTION...]: its text, imported with these options, is the same graph.
same_again() {
    local doc=$1 again=$BATS_TEST_TMPDIR/again.json
    shift
    ap-rewrite --quiet --to hlo "$doc" | ap-import --quiet --no-history "$@" -o "$again" - || return
    [ "$(graph "$again" | wc -l)" -gt 10 ] || return
    diff <(graph "$doc") <(graph "$again") >"$BATS_TEST_TMPDIR/diff" ||
        { echo "$doc"; head -c 1000 "$BATS_TEST_TMPDIR/diff"; return 1; }
}

@test "rewrite: as HLO text, the golden models import to the same graphs" {
    for m in mlp gpt2l gpt2l_bf16 resnet moe t5 bert ff scan_mlp scan_gpt lstm; do
        same_again "$(imported $m)" || { echo "$m"; return 1; }
    done
    for m in scan_mlp scan_gpt; do
        ap-import --quiet --keep-loops --no-history -o "$BATS_TEST_TMPDIR/k.json" "$(hlo $m)"
        same_again "$BATS_TEST_TMPDIR/k.json" --keep-loops
    done
}

# Nodes that are no broadcasts, iotas or constants: ap-import makes one of those per user.
operators() {
    jq -c '.graph.nodes[] | select(.op as $op | ["broadcast", "iota", "constant"] | index($op) | not)
        | [.op, .shape, .phase, .scope, .role]' "$1" | sort
}

@test "rewrite: as HLO text, ap-model's families have the same operators" {
    local tokens="--layers 2 --hidden 32 --heads 4 --seq 16 --vocab 64" n=0
    while read -r line; do
        # shellcheck disable=SC2086 # options
        ap-model --no-history -o "$BATS_TEST_TMPDIR/m.json" $line
        ap-rewrite --to hlo "$BATS_TEST_TMPDIR/m.json" |
            ap-import --no-history -o "$BATS_TEST_TMPDIR/i.json" -
        # but for transposes, which contractions take in
        diff <(operators "$BATS_TEST_TMPDIR/m.json" | grep -v '^."transpose"') \
            <(operators "$BATS_TEST_TMPDIR/i.json" | grep -v '^."transpose"') ||
            { echo "$line"; return 1; }
        same_again "$BATS_TEST_TMPDIR/i.json" || { echo "$line"; return 1; }
        n=$((n + 1))
    done <<<"mlp
gpt $tokens
bert $tokens
t5 $tokens
moe $tokens --experts 4
switch $tokens --experts 4
wav2vec2 --layers 1
vit --layers 1
vgg19 --batch 2
unet --batch 2"
    [ "$n" -eq 10 ]
}

@test "rewrite: constants of every type are the same again" {
    cat >"$BATS_TEST_TMPDIR/c.hlo" <<'E2'
HloModule c
ENTRY e {
  a = f32[6] constant({-0, inf, -inf, nan, 1e-45, 0.1})
  b = f64[2] constant({0.1, 1.7976931348623157e308})
  c = bf16[2] constant({3.140625, -0})
  d = f16[2] constant({65504, 6e-8})
  f = u64[2] constant({18446744073709551615, 0})
  g = s8[2,2] constant({ {-128, 127}, {0, 1} })
  h = pred[3] constant({true, false, true})
  i = c64[2] constant({(1, -0), (nan, inf)})
  j = f8e4m3fn[2] constant({448, 0.001953125})
  k = f32[0] constant({})
  l = s32[2,3] constant({ {7, 7, 7}, {7, 7, 7} })
  m = f32[2,1,2] constant({ { {1, 2} }, { {3, 4} } })
  ROOT r = (f32[6], f64[2], bf16[2], f16[2], u64[2], s8[2,2], pred[3], c64[2], f8e4m3fn[2], f32[0], s32[2,3], f32[2,1,2]) tuple(a, b, c, d, f, g, h, i, j, k, l, m)
}
E2
    ap-import --no-history -o "$BATS_TEST_TMPDIR/c.json" "$BATS_TEST_TMPDIR/c.hlo"
    same_again "$BATS_TEST_TMPDIR/c.json"
}

@test "rewrite: attributes of rare operators are the same again" {
    cat >"$BATS_TEST_TMPDIR/o.hlo" <<'E2'
HloModule o
gt { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = pred[] compare(a, b), direction=GT, type=TOTALORDER }
ge { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = pred[] compare(a, b), direction=GE }
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
last { a = f32[] parameter(0)  ROOT b = f32[] parameter(1) }
arg { a = f32[] parameter(0)  i = s32[] parameter(1)  b = f32[] parameter(2)  j = s32[] parameter(3)
  m = pred[] compare(a, b), direction=GT  x = f32[] select(m, a, b)  y = s32[] select(m, i, j)
  ROOT t = (f32[], s32[]) tuple(x, y) }
ENTRY e {
  x = f32[8,8] parameter(0)
  z = f32[] constant(0)
  n = s32[8,8] iota(), iota_dimension=1
  zi = s32[] constant(0)
  r = (f32[8], s32[8]) reduce(x, n, z, zi), dimensions={1}, to_apply=arg
  r0 = f32[8] get-tuple-element(r), index=0
  s = f32[8,8] sort(x), dimensions={1}, is_stable=true, to_apply=gt
  t = (f32[8,2], s32[8,2]) topk(x), k=2, largest=false
  t0 = f32[8,2] get-tuple-element(t), index=0
  w = f32[4,4] reduce-window(x, z), window={size=2x2 stride=2x2}, to_apply=add
  b = f32[8,8] select-and-scatter(x, w, z), window={size=2x2 stride=2x2}, select=ge, scatter=add
  f = c64[8,5] fft(x), fft_type=RFFT, fft_length={8}
  c = f32[8,8] cholesky(x), lower=true
  d = f32[8,8] triangular-solve(c, x), left_side=true, lower=true, unit_diagonal=false, transpose_a=TRANSPOSE
  p = f32[10,9] pad(x, z), padding=1_1x0_-6_1
  q = f32[8,8] reduce-precision(x), exponent_bits=5, mantissa_bits=10
  u = s32[2] constant({1, 5})
  g = f32[2,8] gather(x, u), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}
  v = f32[8,8] scatter(x, u, g), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, unique_indices=true, to_apply=last
  k = f32[4,8] slice(x), slice={[0:8:2], [0:8]}
  o = f32[8,8] reverse(x), dimensions={1}
  one = s32[] constant(1)
  y = f32[2,8] dynamic-slice(x, one, zi), dynamic_slice_sizes={2,8}
  l = f32[8,8] dynamic-update-slice(x, y, one, zi)
  im = f32[1,8,8,1] reshape(x)
  ke = f32[3,3,1,2] constant({{{{1,2}},{{3,4}},{{5,6}}},{{{1,2}},{{3,4}},{{5,6}}},{{{1,2}},{{3,4}},{{5,6}}}})
  cv = f32[1,4,8,2] convolution(im, ke), window={size=3x3 stride=2x1 pad=1_1x2_2 rhs_dilate=1x2}, dim_labels=b01f_01io->b01f
  ROOT out = (f32[8], f32[8,8], f32[8,2], f32[8,8], c64[8,5], f32[8,8], f32[10,9], f32[8,8], f32[8,8], f32[4,8], f32[8,8], f32[8,8], f32[1,4,8,2]) tuple(r0, s, t0, b, f, d, p, q, v, k, o, l, cv)
}
E2
    ap-import --no-history -o "$BATS_TEST_TMPDIR/o.json" "$BATS_TEST_TMPDIR/o.hlo"
    same_again "$BATS_TEST_TMPDIR/o.json"
}

@test "rewrite: shardings in HLO text read back as the plan's layouts" {
    for case in "gpt2l megatron" "gpt2l zero3" "gpt2l ilp" "moe ilp" "resnet zero2"; do
        local plan dialect
        # shellcheck disable=SC2086 # model and algorithm
        plan=$(sharded ${case% *} 2x2 ${case#* })
        for dialect in gspmd shardy; do
            ap-rewrite --quiet --to hlo --dialect $dialect "$plan" | ap-import - |
                ap-shard --mesh 2x2 --cluster "$CLUSTERS/cpu-8.json" \
                    -o "$BATS_TEST_TMPDIR/again.json" 2>"$BATS_TEST_TMPDIR/err"
            [ ! -s "$BATS_TEST_TMPDIR/err" ] || { cat "$BATS_TEST_TMPDIR/err"; return 1; }
            diff <(jq -c '.sharding.layouts[]' "$plan") \
                <(jq -c '.sharding.layouts[]' "$BATS_TEST_TMPDIR/again.json") ||
                { echo "$case, $dialect"; return 1; }
        done
    done
}

@test "rewrite: shardings in HLO text are of their mesh" {
    ap-rewrite --quiet --to hlo "$(sharded gpt2l 2x2 zero3)" |
        ap-import -o "$BATS_TEST_TMPDIR/g.json" -
    run --separate-stderr ap-shard --mesh 2x4 -o "$BATS_TEST_TMPDIR/s.json" "$BATS_TEST_TMPDIR/g.json"
    local n
    n=$(jq '[.graph.nodes[] | select(.pin and .pin != "{replicated}")] | length' "$BATS_TEST_TMPDIR/g.json")
    [ "$n" -gt 100 ]
    [[ $stderr == "ap-shard: warning: $n imported shardings do not fit the mesh 2x4"* ]] || { echo "$n: $stderr"; return 1; }
}

@test "rewrite: GSPMD's tiles, Shardy's axes" {
    local plan text
    plan=$(sharded mlp 2x4 megatron)
    text=$BATS_TEST_TMPDIR/mlp.hlo
    ap-rewrite --quiet --to hlo -o "$text" "$plan"
    grep -q '^HloModule .* input_output_alias={ {1}: (0, {}, may-alias), .*, num_partitions=8$' "$text"
    grep -q "parameter(1), .*sharding={devices=\[1,4,2\]<=\[2,4\]T(1,0) last_tile_dim_replicate}" "$text"
    grep -q "parameter(19), .*sharding={devices=\[2,1,4\]<=\[8\] last_tile_dim_replicate}" "$text"
    grep -q 'ROOT .* tuple(.*), sharding={{replicated}, {devices=\[4,2\]' "$text"
    run -1 grep -q sdy "$text"
    ap-rewrite --quiet --to hlo --dialect shardy -o "$text" "$plan"
    grep -q 'xla.sdy.meshes={mesh = #sdy.mesh<\["x"=2, "y"=4\]>}' "$text"
    grep -qF 'parameter(1), metadata={op_name="params['"'mlp/fc_0/w'"']"}, frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{}, {\"y\"}]>"' "$text"
    grep -q 'custom_call_target="xla.sdy.FuncResultSharding"' "$text"
    run -1 grep -q 'devices=' "$text"
    ap-rewrite --to hlo -o "$text" "$(imported mlp)"
    run -1 grep -q 'sharding\|num_partitions' "$text"
}

@test "rewrite: what shardings cannot say is counted once" {
    run --separate-stderr ap-rewrite --to hlo -o /dev/null "$(sharded gpt2l 2x2 ilp)"
    [ "$status" -eq 0 ]
    [[ $stderr =~ ^"ap-rewrite: warning: hlo: left to the compiler: "[1-9][0-9]*" partial values, " ]]
    [ "$(wc -l <<<"$stderr")" -eq 1 ]
    run --separate-stderr ap-rewrite --quiet --to hlo -o /dev/null "$(sharded gpt2l 2x2 ilp)"
    [ -z "$stderr" ]
}

@test "rewrite: what HLO text cannot hold is refused by name" {
    ap-import --quiet -o "$BATS_TEST_TMPDIR/a.json" - <<<'HloModule m
        ENTRY e { x = f32[4] parameter(0)  ROOT y = f32[4] custom-call(x), custom_call_target="mine" }'
    refuses 2 "y: a call of 'mine' cannot be written as HLO" \
        ap-rewrite --to hlo "$BATS_TEST_TMPDIR/a.json"
    ap-import --quiet -o "$BATS_TEST_TMPDIR/b.json" - <<<'HloModule m
        ENTRY e { x = f32[4] parameter(0)  c = f32[4] constant({...})  ROOT y = f32[4] add(x, c) }'
    refuses 2 "c: the value of this constant was left out" \
        ap-rewrite --to hlo "$BATS_TEST_TMPDIR/b.json"
    refuses 2 "--dialect is for --to hlo" ap-rewrite --to jax --dialect shardy "$(imported mlp)"
    refuses 2 "--dialect: 'mhlo' is not one of gspmd, shardy" ap-rewrite --to hlo --dialect mhlo "$(imported mlp)"
}

@test "rewrite: the plan as a Python module" {
    local plan
    plan=$(sharded gpt2l 2x4 megatron)
    ap-rewrite --quiet --to jax -o "$BATS_TEST_TMPDIR/specs.py" "$plan"
    jq -c '.sharding.layouts as $l | [.graph.nodes | to_entries[] | select(.value.op == "parameter")
        | [.value.name, $l[.key], .value.shape]]' "$plan" >"$BATS_TEST_TMPDIR/want.json"
    cat >"$BATS_TEST_TMPDIR/check.py" <<'E2'
import json, re, sys, types

sys.modules["jax"] = types.ModuleType("jax")
sys.modules["jax.sharding"] = types.ModuleType("jax.sharding")
sys.modules["jax.sharding"].PartitionSpec = lambda *dims: dims
import specs

assert specs.axis_names == ("x", "y") and specs.axis_sizes == (2, 4)
want = json.load(open(sys.argv[1]))
assert list(specs.params) == [name for name, _, _ in want]
n_split = n_none = 0
for name, layout, shape in want:
    sizes = [int(d) for d in shape.split("[")[1][:-1].split(",") if d]
    dims = [[] for _ in sizes]
    for axis, placement in zip("xy", layout.split(",")):
        split = re.fullmatch(r"S(\d+)", placement)
        assert split or placement == "R", (name, layout)
        if split:
            dims[int(split[1])].append(axis)
    tiles = [2 ** len(set("x") & set(d)) * 4 ** len(set("y") & set(d)) for d in dims]
    if any(size % n for size, n in zip(sizes, tiles)):
        assert specs.params[name] is None, name
        n_none += 1
        continue
    spec = [tuple(d) if len(d) > 1 else d[0] if d else None for d in dims]
    while spec and spec[-1] is None:
        spec.pop()
    assert specs.params[name] == tuple(spec), (name, specs.params[name], spec)
    n_split += spec != []
assert n_split > 20 and n_none > 0, (n_split, n_none)
print(len(specs.results))
E2
    run env PYTHONPATH="$BATS_TEST_TMPDIR" python3 "$BATS_TEST_TMPDIR/check.py" "$BATS_TEST_TMPDIR/want.json"
    [ "$output" = "$(jq '.graph.results | length' "$plan")" ] || { echo "$output"; return 1; }
}

@test "rewrite: the same document gives the same text" {
    local plan
    plan=$(sharded gpt2l 2x2 ilp)
    for form in "hlo --dialect gspmd" "hlo --dialect shardy" jax; do
        # shellcheck disable=SC2086 # form and dialect
        cmp <(ap-rewrite --quiet --to $form "$plan") <(ap-rewrite --quiet --to $form "$plan")
    done
}

# A GPT of two stages with a tied embedding.
staged() {
    ap-import --no-history "$(hlo gpt2l)" | ap-coarsen --no-history --blocks 2 --eps 1 |
        jq -c '. + {stages: {microbatches: 2, stages: [
            {blocks: [0], devices: [0, 1], sharding: {algorithm: "megatron", mesh: "tp=2"}},
            {blocks: [1], devices: [2, 3], sharding: {algorithm: "zero3", mesh: "dp=2"}}]}}' \
            >"$BATS_TEST_TMPDIR/staged.json"
    echo "$BATS_TEST_TMPDIR/staged.json"
}

@test "rewrite: stages as HLO, one module each, and their transfers" {
    local doc i dialect
    doc=$(staged)
    for dialect in gspmd shardy; do
        ap-rewrite --quiet --to hlo --dialect $dialect -o "$BATS_TEST_TMPDIR/s.json" "$doc"
        run jq -c '.schedule, .microbatches, [.stages[] | .devices, .mesh.shape]' \
            "$BATS_TEST_TMPDIR/s.json"
        [ "${output//$'\n'/ }" = '"1f1b" 2 [[0,1],[2],[2,3],[2]]' ]
        for i in 0 1; do
            jq -r ".stages[$i].module" "$BATS_TEST_TMPDIR/s.json" >"$BATS_TEST_TMPDIR/$i.hlo"
            grep -q 'num_partitions=2' "$BATS_TEST_TMPDIR/$i.hlo"
            ap-import --no-history -o "$BATS_TEST_TMPDIR/$i.json" "$BATS_TEST_TMPDIR/$i.hlo"
        done
        # what goes from a result to a parameter has the shape of both
        jq -n --slurpfile s "$BATS_TEST_TMPDIR/s.json" --slurpfile a "$BATS_TEST_TMPDIR/0.json" \
            --slurpfile b "$BATS_TEST_TMPDIR/1.json" '[$a[0].graph, $b[0].graph] as $g
            | $s[0].transfers | length > 3 and all(
                . as $t | ($g[$t.from] | .nodes[.results[$t.result].node].shape) == $t.shape
                and ([$g[$t.to].nodes[] | select(.param == $t.parameter)][0].shape) == $t.shape)' \
            -e >"$BATS_TEST_TMPDIR/same"
    done
    # the stages have the operators of the whole
    run jq -s '[.[].graph.nodes | map(select(.op == "dot")) | length] | .[0] == .[1] + .[2]' \
        "$doc" "$BATS_TEST_TMPDIR/0.json" "$BATS_TEST_TMPDIR/1.json"
    [ "$output" = true ]
}

@test "rewrite: stages as PartitionSpecs, and what these do not pin" {
    local doc
    doc=$(staged)
    run --separate-stderr ap-rewrite --to jax "$doc"
    [[ $stderr == *"inside the stages the plan has "*" collectives of "*"XLA decides anew: "* ]]
    echo "$output" >"$BATS_TEST_TMPDIR/specs.py"
    cat >"$BATS_TEST_TMPDIR/check.py" <<'E2'
import sys, types

sys.modules["jax"] = types.ModuleType("jax")
sys.modules["jax.sharding"] = types.ModuleType("jax.sharding")
sys.modules["jax.sharding"].PartitionSpec = lambda *dims: dims
import specs

assert specs.microbatches == 2 and specs.schedule == "1f1b"
assert [s["devices"] for s in specs.stages] == [[0, 1], [2, 3]]
assert specs.stages[0]["axis_names"] == ("tp",) and specs.stages[1]["axis_sizes"] == (2,)
for t in specs.transfers:
    assert t["name"] == list(specs.stages[t["to"]]["params"])[t["parameter"]]
    assert t["result"] < len(specs.stages[t["from"]]["results"])
    assert t["messages"] in (1, 2)
print(len(specs.transfers))
E2
    run env PYTHONPATH="$BATS_TEST_TMPDIR" python3 "$BATS_TEST_TMPDIR/check.py"
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
}

@test "rewrite: PartitionSpecs say which collectives they leave to XLA" {
    local plan
    plan=$(sharded gpt2l 2x4 megatron)
    run --separate-stderr ap-rewrite --to jax "$plan"
    want=$(jq '[.sharding.conversions[].steps[] | select(.op | startswith("ap-") | not)] | length' "$plan")
    [[ $stderr == *"the plan has $want collectives of "* ]]
    [[ $output == "# the plan has $want collectives of "* ]]
    # without collectives there is nothing to say
    run --separate-stderr ap-rewrite --to jax "$(sharded mlp 1 data)"
    [ -z "$stderr" ]
    [[ $output == "from jax"* ]]
}
