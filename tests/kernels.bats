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

@test "kernels: a dot is written in the order of the transpose that reads it" {
    cd "$BATS_TEST_TMPDIR"
    permuted >p.hlo
    ap-import --quiet p.hlo | ap-shard --quiet --mesh 1 | ap-rewrite --quiet >p.json
    ap-exec --quiet --small-ints --out out p.json
    [ -e out/result_47.npy ]
    for ((i = 0; i < 48; i += 2)); do
        cmp "out/result_$i.npy" "out/result_$((i + 1)).npy"
    done
}
