#!/usr/bin/env bats
# ap-exec's CPU kernels from outside: what is fused or run on several threads is what the same
# operators give one by one.

load helpers

# permuted: a batch of products (2 x 3 of them) and all their transposes, each twice: of a dot that
# nothing else reads, and behind a barrier
permuted() {
    local order rows='' results=() types=() n=0 dims=(2 3 7 6) d twice='([0-3]).*\1'
    for order in {0..3},{0..3},{0..3},{0..3}; do
        [[ ! $order =~ $twice ]] || continue
        d=
        for i in ${order//,/ }; do d+=${d:+,}${dims[i]}; done
        rows+="  d$n = f32[2,3,7,6] dot(a, b), lhs_batch_dims={0,1}, rhs_batch_dims={0,1}, lhs_contracting_dims={3}, rhs_contracting_dims={2}
  t$n = f32[$d] transpose(d$n), dimensions={$order}
  e$n = f32[2,3,7,6] dot(a, b), lhs_batch_dims={0,1}, rhs_batch_dims={0,1}, lhs_contracting_dims={3}, rhs_contracting_dims={2}
  o$n = f32[2,3,7,6] opt-barrier(e$n)
  u$n = f32[$d] transpose(o$n), dimensions={$order}
"
        results+=("t$n" "u$n")
        types+=("f32[$d]" "f32[$d]")
        n=$((n + 1))
    done
    echo "HloModule permuted
ENTRY step {
  a = f32[2,3,7,5] parameter(0)
  b = f32[2,3,5,6] parameter(1)
$rows  ROOT r = ($(IFS=,; echo "${types[*]}")) tuple($(IFS=,; echo "${results[*]}"))
}"
}

@test "kernels: the transpose of a dot is the same behind a barrier" {
    cd "$BATS_TEST_TMPDIR"
    permuted >p.hlo
    ap-import --quiet p.hlo | ap-shard --quiet --mesh 1 | ap-rewrite --quiet >p.json
    ap-exec --quiet --small-ints --out out p.json
    [ -e out/result_47.npy ]
    for ((i = 0; i < 48; i += 2)); do
        cmp "out/result_$i.npy" "out/result_$((i + 1)).npy"
    done
}

@test "kernels: --threads changes no bit" {
    cd "$BATS_TEST_TMPDIR"
    cat >t.hlo <<'HLO'
HloModule threads
add { p = f32[] parameter(0) q = f32[] parameter(1) ROOT s = f32[] add(p, q) }
max { p = f32[] parameter(0) q = f32[] parameter(1) ROOT s = f32[] maximum(p, q) }
ge { p = f32[] parameter(0) q = f32[] parameter(1) ROOT s = pred[] compare(p, q), direction=GE }
ENTRY step {
  a = f32[1100,300] parameter(0)
  b = f32[300,700] parameter(1)
  x = f32[8,20,20,24] parameter(2)
  k = f32[3,3,24,40] parameter(3)
  z = f32[] constant(0)
  a2 = f32[300,700] add(b, b)
  d = f32[1100,700] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  e = f32[1100,700] exponential(d)
  f = f32[1100,700] tanh(e)
  t = f32[700,1100] transpose(f), dimensions={1,0}
  r = f32[1100] reduce(f, z), dimensions={1}, to_apply=add
  c = f32[700] reduce(f, z), dimensions={0}, to_apply=add
  w = f32[8,20,20,40] convolution(x, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  g = f32[3,3,24,40] convolution(x, w), window={size=20x20 pad=1_1x1_1}, dim_labels=f01b_i01o->01bf
  v = f32[11,100,7,100] reshape(d)
  m = f32[11,7,7] dot(v, v), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1,3}, rhs_contracting_dims={1,3}
  n = f32[8,10,10,40] reduce-window(w, z), window={size=1x2x2x1 stride=1x2x2x1}, to_apply=max
  s = f32[8,20,20,40] select-and-scatter(w, n, z), window={size=1x2x2x1 stride=1x2x2x1}, select=ge, scatter=add
  u = f32[40] reduce(w, z), dimensions={0,1,2}, to_apply=add
  y = f32[3,70000] reshape(a2)
  i = f32[3,70000] reverse(y), dimensions={0}
  ROOT o = (f32[700,1100], f32[1100], f32[700], f32[8,20,20,40], f32[3,3,24,40], f32[11,7,7],
    f32[8,10,10,40], f32[8,20,20,40], f32[40], f32[3,70000]) tuple(t, r, c, w, g, m, n, s, u, i)
}
HLO
    ap-import --quiet t.hlo | ap-shard --quiet --mesh 1 | ap-rewrite --quiet >t.json
    for n in 1 2 3; do
        ap-exec --quiet --threads "$n" --out "out$n" t.json
    done
    ap-exec --quiet --threads 0 t.json
    [ -e out1/result_9.npy ]
    diff -r out1 out2
    diff -r out1 out3
    # a rank with two of the images multiplies in one block what one rank of all cuts into several
    ap-import --quiet t.hlo | ap-shard --quiet --mesh 4 --algorithm data | ap-rewrite --quiet >t4.json
    ap-exec -n 4 --quiet --small-ints --verify --tolerance 0 t4.json
}

# handed FILE: of each program of a document, statistics that attentions pass on, and groups of their gradients
handed() {
    jq -c '[.pipeline // .program | .. | objects | select(has("graph")) | .graph.nodes |
        [.[] | select(.attention and .phase == "backward") | .in[]?] as $read |
        ([to_entries[] | select((.key | IN($read[])) and .value.attention and .value.op == "add" and
            (.value.shape | test("^f32.[0-9]+,2,12.$")))] | length),
        ([.[] | select(.attention and .op == "dot")] | group_by(.group) | map(select(length == 5)) | length)]' "$1"
}

@test "kernels: attentions pass on their result and statistics, from the nearest forward pass" {
    cd "$BATS_TEST_TMPDIR"
    local how
    jq '.levels[].size = 2' "$CLUSTERS/h100-8.json" >two.json
    ap-model gpt --layers 2 --hidden 32 --heads 2 --seq 12 --vocab 32 --batch 4 | ap-fuse --kernels | ap-coarsen -o m.json
    ap-shard --mesh 1 --cluster h100-8 m.json | tee fused.plan | jq '.cluster.attention = "plain"' >plain.plan
    for how in plain fused; do
        ap-rewrite -o $how.json $how.plan
        ap-exec --quiet --json --steps 3 $how.json >$how.out
    done
    jq -es '[.[].losses] | transpose | all((.[0] - .[1]) / .[0] | fabs < 1e-5)' plain.out fused.out
    [ "$(handed plain.json)" = '[0,0]' ]
    [ "$(handed fused.json)" = '[2,2]' ]
    # a stage that computes its blocks again: their backward passes read the second of two forward passes
    ap-stage --quiet --cluster ./two.json --stages 2 --submeshes 1x1 --microbatches 2 --recompute blocks m.json |
        jq '.stages.stages[].recompute = "all"' | ap-rewrite -o again.json
    [ "$(handed again.json)" = '[2,2,0,0]' ]
    jq -e '[.pipeline | .. | objects | select(has("graph")) | .graph.nodes[] | select(.attention == 1)] |
        map(.phase) == ["forward", "forward", "backward", "backward", "backward", "backward"]' again.json
    ap-exec -n 2 --quiet --json --steps 3 again.json >again.out
    jq -es '[.[].losses] | transpose | all((.[0] - .[1]) / .[0] | fabs < 1e-5)' plain.out again.out
}
