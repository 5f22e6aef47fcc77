#!/usr/bin/env bats
# The CUDA backend without a GPU: on tests/fakecuda, and its kernels through NVRTC.
# AP_FAKE_CASES=N: so many random programs per number of ranks (4); `make check-fake`: 75.

load helpers

setup_file() {
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 \
        OMPI_MCA_btl_vader_single_copy_mechanism=none OPENBLAS_NUM_THREADS=1
}

setup() {
    [ -x "$AP_BUILD/fake/test_fake" ] || skip "tests/fakecuda is not built (no CUDA headers, or no MPI)"
    unset AP_FAKE_SEED AP_FAKE_FAULT AP_FAKE_DEVICES
}

fake() {
    "$AP_BUILD/fake/test_fake" "$@"
}

# ranks N COMMAND...
ranks() {
    local n=$1
    shift
    timeout 300 mpirun -q --stdin none -n "$n" "$@"
}

# finds TEXT COMMAND...: the fake ends the command and says why
finds() {
    local text=$1
    shift
    run "$@"
    if [ "$status" -ne 97 ] || [[ $output != *"$text"* ]]; then
        echo "exit $status: $output"
        return 1
    fi
}

# --- the fake itself ---

@test "fake: kernels, captures, products and errors, in any order" {
    local seed
    for seed in 0 1 2 3 4 5; do
        AP_FAKE_SEED=$seed run fake
        [ "$status" -eq 0 ] || { echo "seed $seed: $output"; return 1; }
    done
}

@test "fake: a missing event shows, whichever stream is ahead" {
    local seed
    for seed in 0 1 2 3 4 5; do
        [ "$(AP_FAKE_SEED=$seed fake scale | head -n 1)" = right ]
    done
    [ "$(AP_FAKE_SEED=0 fake no-event | head -n 1)" = noticed ]
    [ "$(AP_FAKE_SEED=0 AP_FAKE_FAULT=drop-event:1 fake scale 2>/dev/null | head -n 1)" = wrong ]
}

@test "fake: work on a wrong stream shows" {
    [ "$(AP_FAKE_FAULT=wrong-stream:3 fake scale 2>/dev/null | head -n 1)" = wrong ]
}

@test "fake: a launch of the wrong size shows" {
    AP_FAKE_FAULT=wrong-launch:2 run fake
    [ "$status" -eq 1 ]
    [[ $output == *"not ok"*"sums of blocks"* ]]
}

@test "fake: the host's touch of device memory is found" {
    finds "the host touches byte 20 of device memory of 4000 bytes" fake host-touch
}

@test "fake: too small a buffer is found, by its filler and by its guard" {
    finds "beyond wrote byte 4000 of device memory of 4000 bytes" fake filler
    finds "beyond touches byte 4096 of device memory of 4000 bytes" fake guard
    AP_FAKE_FAULT=small-buffer:1 finds "device memory of 4000 bytes" fake filler
}

@test "fake: a barrier that some threads do not reach is found" {
    finds "100 of 128 threads" fake barrier
}

@test "fake: what is read without a barrier shows, in any order" {
    local seed name
    for seed in 0 1 2; do
        for name in early late; do
            [ "$(AP_FAKE_SEED=$seed fake $name | head -n 1)" = noticed ]
        done
    done
}

@test "fake: kernels with wrong indices, alignment and sizes are found" {
    local name
    for name in unaligned outside overflow; do
        finds "$name: an access that is not aligned, an index beyond its array, or an overflow" fake $name
    done
    finds "large uses too much shared memory (49600 bytes, at most 49152)" fake large
}

@test "fake: memory that was freed, or never written, is found" {
    finds "scale touches device memory that was freed" fake freed
    finds "a copy touches memory of the host that is no longer pinned" fake unpinned
    [ "$(fake unwritten | head -n 1)" = zero ]
    [ "$(AP_FAKE_NOISE=1 fake unwritten | head -n 1)" = noise ]
}

@test "fake: NCCL over 1 to 4 ranks; ranks that differ and shared devices are found" {
    local n
    for n in 1 2 3 4; do
        run ranks "$n" "$AP_BUILD/fake/test_fake" nccl
        [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    done
    # 8 elements on one rank, 9 on the other; whoever looks first says it
    finds "ncclAllReduce of 9" ranks 2 "$AP_BUILD/fake/test_fake" nccl-differ
    AP_TEST_DEVICE=0 finds "Duplicate GPU detected" ranks 2 "$AP_BUILD/fake/test_fake" nccl
}

# --- the communicator ---

@test "nccl: every collective, type and reduction on 1 to 4 ranks is MPI's" {
    local n
    for n in 1 2 3 4; do
        run ranks "$n" "$AP_BUILD/fake/test_nccl"
        [ "$status" -eq 0 ] || { echo "$n ranks: $output" | grep -v '^ok'; return 1; }
    done
}

@test "nccl: each of its events is needed and there" {
    local i seed found
    for seed in 0 1; do
        AP_FAKE_SEED=$seed run ranks 2 "$AP_BUILD/fake/test_nccl" overlap
        [ "$status" -eq 0 ]
    done
    for i in 1 2 3 4; do
        found=0
        for seed in 0 1; do
            [ "$found" = 0 ] || continue
            AP_FAKE_SEED=$seed AP_FAKE_FAULT=drop-event:$i run ranks 2 "$AP_BUILD/fake/test_nccl" overlap
            [ "$status" -eq 0 ] || found=1
        done
        [ "$found" = 1 ] || { echo "wait $i was dropped unnoticed"; return 1; }
    done
}

@test "nccl: ranks of one device go through the host, and say so" {
    AP_FAKE_DEVICES=2 run ranks 4 "$AP_BUILD/fake/test_nccl"
    [ "$status" -eq 0 ]
    [[ $output == *"several ranks have one device"* ]]
}

@test "nccl: a rank that does not come is waited for in vain only so long" {
    AP_NCCL_TIMEOUT=1 AP_FAKE_FAULT=nccl-init:1 run ranks 2 "$AP_BUILD/fake/test_nccl" overlap
    [ "$status" -eq 1 ]
    [[ $output == *"ncclCommInitRankConfig: not done after 1 s"* ]]
}

@test "nccl: an error of another rank ends the job and names rank and collective" {
    AP_FAKE_FAULT=nccl-error:2 run ranks 2 "$AP_BUILD/fake/test_nccl" overlap
    [ "$status" -eq 1 ]
    [[ $output == *"rank "*"all-reduce of 96 bytes over 2 ranks, number 2 of this run: remote process exited"* ]]
}

# --- the backend on the fake ---

needs_backend() {
    [ -e "$AP_BUILD/fake/ap_cuda.so" ] || skip "the backend is not built"
    export AP_CUDA_LIBRARY=$AP_BUILD/fake/ap_cuda.so XDG_CACHE_HOME=$AP_BUILD/fake/cache AP_FAKE_NOISE=1
}

# Tests that take minutes: in `make check-fake` only.
for_check_fake() {
    [ -n "${AP_FAKE_ALL-}" ] || skip "in make check-fake"
    needs_backend
}

# golden MODELS MESHES: against JAX, by scripts/bench/golden-table
golden() {
    local n
    run scripts/bench/golden-table --backend cuda --models "$1" --meshes "$2" --algorithms ilp
    echo "$output"
    [ "$status" -eq 0 ]
    n=$(($(wc -w <<<"$1") * $(wc -w <<<"$2")))
    [ "${lines[-1]}" = "$n passed, 0 failed, 0 do not exist" ]
}

# cases RANKS N: random programs, to the bit those of one rank on the CPU
cases() {
    local log=$BATS_FILE_TMPDIR/$1.log seed=$((${AP_SEED:-0} * 10000 + $1 * 1000))
    AP_FAKE_SEED=$1 timeout "${AP_FAKE_LIMIT:-300}" mpirun -q --stdin none -n "$1" "$AP_BUILD/equiv/test_equiv" "$seed" "$2" cuda \
        >"$log" 2>&1 || { grep -v '^ok\|^# covered' "$log" | head -n 20; return 1; }
    [ "$(grep -c '^ok' "$log")" -eq "$2" ]
    run ! grep '^# refused' "$log"
}

@test "backend: golden models" {
    needs_backend
    golden "mlp" "2 4"
    golden "gpt2l_bf16" "2"
}

@test "backend: every golden model on 1 to 4 ranks" {
    for_check_fake
    golden "mlp gpt2l gpt2l_bf16 resnet moe t5 scan_mlp scan_gpt lstm ff" "1 2 3 2x2"
}

@test "backend: random programs on 1 rank" { needs_backend; cases 1 "${AP_FAKE_CASES:-4}"; }
@test "backend: random programs on 2 ranks" { needs_backend; cases 2 "${AP_FAKE_CASES:-4}"; }
@test "backend: random programs on 3 ranks" { needs_backend; cases 3 "${AP_FAKE_CASES:-4}"; }
@test "backend: random programs on 4 ranks" { needs_backend; cases 4 "${AP_FAKE_CASES:-4}"; }

# Complex numbers: every function of them, and Fourier transforms there and back.
complex_program() {
    local ops=(cosine exponential exponential-minus-one log log-plus-one logistic negate rsqrt sign sine sqrt tan tanh)
    local i t='c64[16,8]' of=() types=()
    {
        echo "ENTRY e { x = f32[16,8] parameter(0)  u = f32[16,8] parameter(1)  v = $t complex(x, u)"
        for i in "${!ops[@]}"; do echo "a$i = $t ${ops[i]}(v)"; done
        echo "b0 = $t add(a0, a1)  b1 = $t divide(v, a1)  b2 = $t multiply(a3, a4)  b3 = $t power(v, a6)
            b4 = $t subtract(a9, a10)  p = pred[16,8] compare(b0, b2), direction=NE  b5 = $t select(p, b1, b3)
            m = c64[16,16] dot(v, b0), lhs_contracting_dims={1}, rhs_contracting_dims={1}
            f0 = $t fft(v), fft_type=FFT, fft_length={8}  f1 = $t fft(f0), fft_type=IFFT, fft_length={16,8}
            f2 = c64[16,5] fft(x), fft_type=RFFT, fft_length={16,8}
            y0 = f32[16,8] fft(f2), fft_type=IRFFT, fft_length={8}  y1 = f32[16,8] abs(b5)"
        for i in a{2,5,7,8,11,12} b{0,1,2,3,4,5} f{0,1}; do of+=("$i") types+=("$t"); done
        of+=(m y0 y1) types+=('c64[16,16]' 'f32[16,8]' 'f32[16,8]')
        echo "ROOT r = ($(IFS=,; echo "${types[*]}")) tuple($(IFS=,; echo "${of[*]}")) }"
    } >"$BATS_TEST_TMPDIR/complex.hlo"
    ap-import --quiet --no-history "$BATS_TEST_TMPDIR/complex.hlo" | ap-shard --no-history --mesh 1 |
        ap-cost --no-history | ap-rewrite -o "$BATS_TEST_TMPDIR/complex.json"
}

@test "backend: complex numbers and Fourier transforms have the CPU's bits" {
    needs_backend
    has_fft || skip "ap-exec is built without FFTW"
    local program=$BATS_TEST_TMPDIR/complex.json
    complex_program
    ap-exec --quiet --out "$BATS_TEST_TMPDIR/cpu" "$program"
    ap-exec --quiet --backend cuda --out "$BATS_TEST_TMPDIR/cuda" "$program"
    diff -r "$BATS_TEST_TMPDIR/cpu" "$BATS_TEST_TMPDIR/cuda"
    AP_FAKE_WITHOUT=cufft refuses 2 "without NVIDIA's libcufft.so" ap-exec --quiet --backend cuda "$program"
}

# A convolution with its gradients, as JAX writes them and with groups; one with unequal padding.
conv_program() { # TYPE
    sed "s/f32/$1/g" >"$BATS_TEST_TMPDIR/conv.hlo" <<'END'
ENTRY e { x = f32[2,9,11,6] parameter(0)  w = f32[3,3,6,4] parameter(1)  dy = f32[2,5,6,4] parameter(2)
  y = f32[2,5,6,4] convolution(x, w), window={size=3x3 stride=2x2 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  dw = f32[3,3,6,4] convolution(x, dy), window={size=5x6 pad=1_1x1_1 rhs_dilate=2x2}, dim_labels=f01b_i01o->01bf
  dx = f32[2,9,11,6] convolution(dy, w), window={size=3x3 pad=1_1x1_1 lhs_dilate=2x2 rhs_reversal=1x1}, dim_labels=b01f_01oi->b01f
  unequal = f32[2,5,6,4] convolution(x, w), window={size=3x3 stride=2x2 pad=2_0x1_1}, dim_labels=b01f_01io->b01f
  a = f32[2,6,9,11] transpose(x), dimensions={0,3,1,2}
  b = f32[4,6,3,3] transpose(w), dimensions={3,2,0,1}
  f = f32[4,3,3,3] slice(b), slice={[0:4],[0:3],[0:3],[0:3]}
  g = f32[2,4,9,11] convolution(a, f), window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01, feature_group_count=2
  df = f32[4,3,3,3] convolution(a, g), window={size=9x11 pad=1_1x1_1}, dim_labels=fb01_io01->fb01, batch_group_count=2
  h = f32[2,6,3,3] reshape(f)
  da = f32[2,6,9,11] convolution(g, h), window={size=3x3 pad=1_1x1_1 rhs_reversal=1x1}, dim_labels=bf01_io01->bf01, feature_group_count=2
  ROOT t = (f32[2,5,6,4], f32[3,3,6,4], f32[2,9,11,6], f32[2,5,6,4], f32[2,4,9,11], f32[4,3,3,3], f32[2,6,9,11])
      tuple(y, dw, dx, unequal, g, df, da) }
END
    ap-import --quiet --no-history "$BATS_TEST_TMPDIR/conv.hlo" | ap-shard --no-history --mesh 1 |
        ap-cost --no-history | ap-rewrite -o "$BATS_TEST_TMPDIR/conv.json"
}

@test "backend: convolutions by cuDNN, and without it, have the CPU's bits" {
    needs_backend
    local type without out=$BATS_TEST_TMPDIR exec=(ap-exec --quiet --small-ints)
    for type in f32 bf16; do
        conv_program $type
        "${exec[@]}" --out "$out/cpu" "$out/conv.json"
        for without in "" cudnn; do
            AP_FAKE_WITHOUT=$without run "${exec[@]}" --backend cuda --out "$out/cuda$without" "$out/conv.json"
            [ "$status" -eq 0 ]
            diff -r "$out/cpu" "$out/cuda$without"
        done
        [[ $output == *"libcudnn.so.9 is not found"*"im2col"* ]]
    done
}

# What programs of marked kernels need: sums, passes and rows, even and odd, narrow and wide
@test "backend: kernels of rows and of sums have the CPU's numbers" {
    needs_backend
    local out=$BATS_TEST_TMPDIR model
    while read -r plan model; do
        # shellcheck disable=SC2086 # words of the row
        ap-model $model | ap-fuse --kernels --attention plain |
            ap-shard --mesh "${plan#*:}" --algorithm "${plan%:*}" --cluster h100-8 | ap-rewrite -o "$out/p.json"
        ap-exec -n "${plan#*:}" --json --steps 2 "$out/p.json" >"$out/cpu"
        ap-exec -n "${plan#*:}" --backend cuda --json --steps 2 "$out/p.json" >"$out/cuda"
        jq -es '[.[0].losses, .[1].losses] | transpose | all((.[0] - .[1]) / .[0] | fabs < 1e-4)' "$out/cpu" "$out/cuda"
        jq -e '[.program.modules[0].graph.nodes[] | select(.kernel)] | length > 30' "$out/p.json"
    done <<'END'
ilp:1 gpt --layers 1 --hidden 128 --heads 2 --seq 64 --vocab 101 --batch 8 --dtype bf16 --master-weights
ilp:1 gpt --layers 1 --hidden 96 --heads 2 --seq 48 --vocab 1031 --batch 8
ilp:1 resnet --layers 18 --hidden 8 --image 32 --classes 10 --batch 4
megatron:2 llama --layers 1 --hidden 32 --heads 4 --kv-heads 2 --ffn 64 --vocab 64 --batch 4 --seq 16
END
    # a value per row inside of a kernel
    cat >"$out/rows.hlo" <<'END'
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT q = f32[] add(a, b) }
ENTRY y { z = f32[64,32] parameter(0)  m = f32[64] parameter(1)
  f = f32[64] floor(m)  fb = f32[64,32] broadcast(f), dimensions={0}
  s = f32[64,32] subtract(z, fb)  e = f32[64,32] exponential(s)  zero = f32[] constant(0)
  ROOT r = f32[64] reduce(e, zero), dimensions={1}, to_apply=add }
END
    ap-import "$out/rows.hlo" | ap-fuse --kernels | ap-shard --mesh 1 --cluster h100-8 | ap-rewrite -o "$out/rows.json"
    ap-exec --backend cuda --verify "$out/rows.json"
}

@test "backend: tensors without elements" {
    needs_backend
    local out=$BATS_TEST_TMPDIR
    cat >"$out/none.hlo" <<'END'
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT q = f32[] add(a, b) }
lt { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT q = pred[] compare(a, b), direction=LT }
ge { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT q = pred[] compare(a, b), direction=GE }
ENTRY e {
  x = f32[3,0] parameter(0)  i = s32[0] parameter(1)  u = f32[5,4] parameter(2)  s = s32[] parameter(3)
  im = f32[0,8,8,3] parameter(4)  w = f32[3,3,3,4] parameter(5)  y = f32[3] parameter(6)  zero = f32[] constant(0)
  a = f32[3,0] sort(x), dimensions={1}, to_apply=lt
  b = f32[0,4] gather(u, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}
  c = f32[0,4] exponential(b)
  d = f32[5,4] scatter(u, i, c), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
  f = f32[5,4] dynamic-update-slice(u, b, s, s)
  g = f32[0,8,8,4] convolution(im, w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  h = f32[3,3,3,4] convolution(im, g), window={size=8x8 pad=1_1x1_1}, dim_labels=f01b_i01o->01bf
  j = f32[0,4,4,3] reduce-window(im, zero), window={size=1x2x2x1 stride=1x2x2x1}, to_apply=add
  k = f32[0,8,8,3] select-and-scatter(im, j, zero), window={size=1x2x2x1 stride=1x2x2x1}, select=ge, scatter=add
  l = f32[2,4] pad(b, zero), padding=1_1x0_0
  m = f32[3,3] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  n = f32[3,0] broadcast(y), dimensions={0}  o = f32[0,3] transpose(n), dimensions={1,0}
  p = f32[] reduce(x, zero), dimensions={0,1}, to_apply=add
  q = f32[0] reduce(x, zero), dimensions={0}, to_apply=add
  r = f32[3] reduce(n, zero), dimensions={1}, to_apply=add  t = f32[3] add(y, r)
  ROOT v = (f32[3,0], f32[5,4], f32[5,4], f32[3,3,3,4], f32[0,8,8,3], f32[2,4], f32[3,3], f32[0,3], f32[], f32[0], f32[3])
      tuple(a, d, f, h, k, l, m, o, p, q, t) }
END
    ap-import --quiet "$out/none.hlo" | ap-shard --no-history --mesh 1 | ap-cost --no-history | ap-rewrite -o "$out/none.json"
    ap-exec --quiet --out "$out/cpu" "$out/none.json"
    ap-exec --quiet --backend cuda --out "$out/cuda" "$out/none.json"
    diff -r "$out/cpu" "$out/cuda"
}

@test "backend: rows with more sums than shared memory has room for" {
    needs_backend
    local out=$BATS_TEST_TMPDIR i sum=x
    {
        echo "add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT q = f32[] add(a, b) }"
        echo "ENTRY e { x = f32[8,8192] parameter(0)  z = f32[] constant(0)"
        for ((i = 1; i <= 25; i++)); do
            echo "c$i = f32[] constant($i)  b$i = f32[8,8192] broadcast(c$i), dimensions={}  t$i = f32[8,8192] minimum(x, b$i)
                r$i = f32[8] reduce(t$i, z), dimensions={1}, to_apply=add  s$i = f32[8,8192] broadcast(r$i), dimensions={0}
                a$i = f32[8,8192] add($sum, s$i)"
            sum=a$i
        done
        echo "ROOT o = f32[8,8192] multiply($sum, x) }"
    } >"$out/sums.hlo"
    ap-import --quiet "$out/sums.hlo" | ap-fuse --quiet --kernels | ap-shard --quiet --mesh 1 --cluster h100-8 | ap-rewrite -o "$out/sums.json"
    jq -e '[.program.modules[0].graph.nodes[] | select(.op == "reduce") | .group] | length == 25 and (unique | length) == 1' "$out/sums.json"
    ap-exec --quiet --small-ints --out "$out/cpu" "$out/sums.json"
    ap-exec --quiet --small-ints --backend cuda --out "$out/cuda" "$out/sums.json"
    diff -r "$out/cpu" "$out/cuda"
}

# Only prepared: nobody has that memory
@test "backend: places beyond an int, and many blocks" {
    needs_backend
    local out=$BATS_TEST_TMPDIR
    cat >"$out/far.hlo" <<'END'
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT q = f32[] add(a, b) }
ENTRY e { x = s8[4,1073741824] parameter(0)  i = s32[9] parameter(1)  u = f32[20,17000000] parameter(2)
  v = f32[9,17000000] parameter(3)
  s = s8[3,1024] slice(x), slice={[1:4:1],[4096:5120:1]}  z = s8[3,1024] negate(s)
  d = f32[20,17000000] scatter(u, i, v), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
  ROOT o = (s8[3,1024], f32[20,17000000]) tuple(z, d) }
END
    ap-import --quiet "$out/far.hlo" | ap-fuse --quiet --kernels | ap-shard --quiet --mesh 1 --cluster h100-8 | ap-rewrite -o "$out/far.json"
    mkdir "$out/sources"
    AP_FAKE_SOURCES=$out/sources XDG_CACHE_HOME=$out ap-exec --backend cuda --cuda-compile sm_90 "$out/far.json"
    grep -F '(int64_t)(i / 1024u) * (1073741824)' "$out"/sources/*
}

@test "backend: large products with odd sizes, to the bit" {
    needs_backend
    local out=$BATS_TEST_TMPDIR
    cat >"$out/odd.hlo" <<'END'
HloModule odd
ENTRY e {
  x = bf16[264,300] parameter(0)
  w = bf16[301,300] parameter(1)
  a = bf16[264,301] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  b = bf16[264,300] dot(a, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  c = bf16[301,300] dot(a, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ROOT t = (bf16[264,300], bf16[301,300]) tuple(b, c)
}
END
    ap-import "$out/odd.hlo" | ap-shard --mesh 1 | ap-rewrite -o "$out/odd.json"
    ap-exec --small-ints --out "$out/cpu" "$out/odd.json"
    ap-exec --backend cuda --small-ints --out "$out/cuda" "$out/odd.json"
    diff -r "$out/cpu" "$out/cuda"
    # a, made even, is an operand of two products: 5 copies of operands, and 3 of results
    AP_FAKE_FAULT=wrong-launch:8 run ap-exec --quiet --backend cuda "$out/odd.json"
    [[ $output == *planted* ]]
    AP_FAKE_FAULT=wrong-launch:9 run ap-exec --quiet --backend cuda "$out/odd.json"
    [[ $output != *planted* ]]
    # but not across a sort, whose scratch memory lies where the copy was
    sed -e 's/^  c = bf16\[301,300\] dot(a, x)/  s = bf16[264,300] sort(y), dimensions={0}, to_apply=less\n  c = bf16[301,300] dot(a, s)/' \
        -e 's/^  w = /  y = bf16[264,300] parameter(2)\n&/' \
        -e 's/^ENTRY/less { p = bf16[] parameter(0)  q = bf16[] parameter(1)  ROOT r = pred[] compare(p, q), direction=LT }\n&/' \
        "$out/odd.hlo" >"$out/between.hlo"
    ap-import "$out/between.hlo" | ap-shard --mesh 1 | ap-rewrite -o "$out/between.json"
    ap-exec --small-ints --out "$out/cpu" "$out/between.json"
    ap-exec --backend cuda --small-ints --out "$out/cuda" "$out/between.json"
    diff -r "$out/cpu" "$out/cuda"
}

@test "backend: a profile of a step by the device's clock" {
    needs_backend
    local out=$BATS_TEST_TMPDIR
    ap-model mlp | ap-shard --mesh 1 | ap-rewrite -o "$out/p.json"
    ap-exec --backend cuda --steps 6 --profile "$out/profile" "$out/p.json"
    jq -e '(.kernels | map(.sec * .count) | add) as $sum
        | .device == "fakecuda" and .memory_bytes == 8589934592 and .step.sec > 0 and $sum > 0.999 * .step.sec and all(.kernels[]; .sec > 0)' "$out/profile"
}

@test "backend: convolutions use tensor cores only where f32 may be rounded to tf32" {
    needs_backend
    local out=$BATS_TEST_TMPDIR exec=(ap-exec --quiet --backend cuda) name
    conv_program f32
    "${exec[@]}" --out "$out/f32" "$out/conv.json"
    "${exec[@]}" --f32-matmul tf32 --out "$out/tf32" "$out/conv.json"
    for name in 0 1 2 4 5 6; do # 3 is im2col
        run ! cmp -s "$out/f32/result_$name.npy" "$out/tf32/result_$name.npy"
    done
    [ "$(cd "$out/f32" && ls)" = "$(cd "$out/tf32" && ls)" ]
}

@test "backend: a convolution takes an engine with less workspace where the device is too small" {
    needs_backend
    cd "$BATS_TEST_TMPDIR"
    ap-import --quiet - <<'END' | ap-shard --quiet --mesh 1 | ap-rewrite -o conv.json
ENTRY e { x = f32[1,8192,840,8] parameter(0)  w = f32[1,1,8,8] parameter(1)
  ROOT y = f32[1,4,4,8] convolution(x, w), window={size=1x1 stride=2730x279}, dim_labels=b01f_01io->b01f }
END
    mkdir in # 220 MB of zeros
    printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 8192, 840, 8), }" >in/0.npy
    truncate -s $((128 + 8192 * 840 * 8 * 4)) in/0.npy
    # the larger workspace is 275 MB
    AP_FAKE_MEMORY=420000000 ap-exec --backend cuda --f32-matmul tf32 --data in --seed 1 --json conv.json >out
    jq -e '.scratch_bytes < 1000000' out
}

# attention_program MESH OPTION... : a layer of grouped heads, attentions as one group each
attention_program() {
    local mesh=$1
    shift
    ap-model llama --layers 1 --hidden 32 --heads 4 --kv-heads 2 --head-dim 8 --ffn 32 --vocab 32 --batch 2 --seq 24 \
        "$@" | ap-fuse | ap-shard --no-history --mesh "$mesh" --cluster a100-8 |
        ap-cost --no-history | ap-rewrite -o "$BATS_TEST_TMPDIR/attention.json"
}

@test "backend: attentions by cuDNN's fused kernels, on one rank and two" {
    needs_backend
    local mesh out=$BATS_TEST_TMPDIR
    for mesh in 1 2; do
        attention_program $mesh --dtype bf16 --master-weights
        ap-exec -n $mesh --json --steps 4 "$out/attention.json" >"$out/cpu"
        ap-exec -n $mesh --backend cuda --json --steps 4 "$out/attention.json" >"$out/fused"
        AP_FAKE_WITHOUT=cudnn ap-exec -n $mesh --backend cuda --json --steps 4 "$out/attention.json" >"$out/plain"
        jq -es 'map([.attention_calls, .attention_again]) == [[0, 0], [2, 0], [0, 0]]
            and ([.[0].losses, .[1].losses] | transpose | all((.[0] - .[1]) / .[0] | fabs < 1e-3))
            and .[1].losses != .[2].losses
            and .[0].scratch_bytes > 50000' "$out/cpu" "$out/fused" "$out/plain"
    done
}

@test "backend: JAX's GPT-2 in bf16 trains to JAX's losses with fused attention" {
    needs_backend
    ap-import "$MODELS/gpt2l_bf16"/gpt2l_bf16.hlo* | ap-fuse |
        ap-shard --mesh 1 --cluster a100-8 | ap-rewrite >"$BATS_TEST_TMPDIR/gpt.json"
    ap-exec --backend cuda --json --steps 5 --data "$MODELS/gpt2l_bf16/in" --compare "$MODELS/gpt2l_bf16" --tolerance 2e-3 \
        "$BATS_TEST_TMPDIR/gpt.json" | jq -e '.attention_calls == 4 and .attention_again == 0'
}

@test "backend: what fused attention does not compute runs operator by operator" {
    needs_backend
    local out=$BATS_TEST_TMPDIR
    attention_program 1 --dtype f32
    ap-exec --backend cuda --json "$out/attention.json" | jq -e '.attention_calls == 0'
    ap-model gpt --layers 1 --hidden 20 --heads 1 --vocab 32 --batch 1 --seq 8 --dtype bf16 | ap-fuse |
        ap-shard --mesh 1 --cluster a100-8 | ap-rewrite | ap-exec --backend cuda --json | jq -e '.attention_calls == 0'
    ap-model t5 --layers 1 --hidden 16 --heads 1 --vocab 32 --batch 1 --seq 8 --target-seq 8 --dtype bf16 | ap-fuse |
        ap-shard --mesh 1 --cluster a100-8 | ap-rewrite >"$out/t5.json"
    ap-exec --backend cuda --json "$out/t5.json" | jq -e '.attention_calls == 2' # of 6: the others add biases
    # what is marked as a causal softmax, and is another function: a mask turned round, gradients of another scale,
    # statistics that are others, another tensor in place of the result
    attention_program 1 --dtype bf16
    local nodes='.program.modules[0].graph.nodes' change calls
    while IFS='|' read -r calls change; do
        jq "([${nodes}[] | select(.attention)][0].in[0]) as \$q |
            (${nodes}[] | select(.attention)) |= ($change)" "$out/attention.json" >"$out/other.json"
        run ! cmp -s <(jq -c . "$out/attention.json") <(jq -c . "$out/other.json")
        ap-exec --backend cuda --json "$out/other.json" | jq -e ".attention_calls == $calls"
    done <<'END'
0|(select(.op == "compare") | .direction) = "LE"
1|(select(.phase == "backward" and (.value | type) == "number" and .value > 0.3 and .value < 0.4) | .value) = 0.5
0|(select(.op == "add" and (.name | test("handed"))) | .op) = "subtract"
1|(select(.op == "transpose" and (.name | test("handed")) and (.shape | test("bf16"))) | .in) = [$q]
END
}

@test "backend: fused attention has the CPU's gradients" {
    needs_backend
    run scripts/bench/check-attention "${AP_BUILD#"$AP_TOP"/}" narrow-16
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    [[ $output == "ok "*"fused 2 of 2"*"repeats" ]]
}

# planted FAULT: whether a run with it fails, or is off by more than rounding, in some order
planted() {
    local seed
    for seed in 0 1; do
        AP_FAKE_SEED=$seed AP_FAKE_FAULT=$1 run ap-exec -n 2 --backend cuda --data "$MODELS/mlp/in" \
            --compare "$MODELS/mlp" --tolerance 1e-5 --steps 5 "$(rewritten mlp 2)"
        [ "$status" -eq 0 ] || return 0
    done
    echo "$1 was not noticed"
    return 1
}

@test "backend: planted faults are found" {
    needs_backend
    local fault
    run ap-exec -n 2 --backend cuda --data "$MODELS/mlp/in" --compare "$MODELS/mlp" --tolerance 1e-5 \
        --steps 5 "$(rewritten mlp 2)"
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    for fault in drop-event:1 drop-event:2 drop-event:3 drop-event:4 wrong-stream:60 \
        small-buffer:1 small-buffer:2 wrong-launch:5; do
        planted "$fault"
    done
}

@test "backend: ranks of one device go through the host" {
    needs_backend
    AP_FAKE_DEVICES=1 run ap-exec -n 2 --backend cuda --data "$MODELS/mlp/in" --compare "$MODELS/mlp" \
        --tolerance 1e-5 --steps 5 "$(rewritten mlp 2)"
    [ "$status" -eq 0 ]
    [[ $output == *"several ranks have one device"* ]]
}

@test "backend: a pipeline of two stages on two ranks each, in any order" {
    needs_backend
    local seed
    ap-model gpt --layers 2 --hidden 16 --heads 2 --vocab 32 --batch 8 --seq 4 | ap-prune |
        ap-coarsen --blocks 4 | ap-stage --cluster cpu-4 --stages 2 --submeshes 1x2 --microbatches 4 \
        --schedule 1f1b | ap-rewrite -o "$BATS_TEST_TMPDIR/pipe.json"
    ap-exec -n 4 --json --steps 3 "$BATS_TEST_TMPDIR/pipe.json" | jq -c '[.losses[] * 1e5 | round]' >"$BATS_TEST_TMPDIR/cpu"
    for seed in 0 1 4; do
        AP_FAKE_SEED=$seed ap-exec -n 4 --backend cuda --json --steps 3 "$BATS_TEST_TMPDIR/pipe.json" |
            jq -c '[.losses[] * 1e5 | round]' | cmp - "$BATS_TEST_TMPDIR/cpu"
    done
}

@test "backend: sums in f32 of 16-bit values over microbatches have the CPU's bits" {
    needs_backend
    local type out=$BATS_TEST_TMPDIR
    for type in f16 bf16; do
        ap-import --quiet - <<END | ap-shard --quiet --mesh 2 --algorithm data --microbatches 4 | ap-rewrite -o "$out/sum.json"
ENTRY e { x = ${type}[16,40] parameter(0)  g = ${type}[16,36] parameter(1)
  ROOT w = ${type}[40,36] dot(x, g), lhs_contracting_dims={0}, rhs_contracting_dims={0} }
END
        # what is added has 16 bits, the sum 32
        jq -e --arg t "$type" '.program.modules[0].graph.nodes | any(.[]; .op == "all-reduce" and
            (.shape | test("^f32")) and .axes == [0]) and any(.[]; .op == "dot" and (.shape | startswith($t)))' "$out/sum.json"
        ap-exec --quiet -n 2 --small-ints --out "$out/cpu" "$out/sum.json"
        ap-exec --quiet -n 2 --backend cuda --small-ints --out "$out/cuda" "$out/sum.json"
        diff -r "$out/cpu" "$out/cuda"
    done
}

# --- kernels through the toolkit's NVRTC, which needs no GPU ---

@test "nvrtc: kernels compile for sm_80, sm_90 and sm_100 without warnings" {
    [ -e "$AP_BUILD/bin/ap_cuda.so" ] || skip "make cuda was not run"
    local arch program
    unset AP_CUDA_LIBRARY
    complex_program
    for arch in sm_80 sm_90 sm_100; do
        for program in "$(rewritten gpt2l_bf16 1)" "$BATS_TEST_TMPDIR/complex.json"; do
            XDG_CACHE_HOME=$BATS_TEST_TMPDIR run --separate-stderr ap-exec --backend cuda --cuda-compile $arch "$program"
            if [ "$status" -ne 0 ] || [[ $output != "kernels "* ]] || [ -n "$stderr" ]; then
                echo "$arch: $output $stderr"
                return 1
            fi
        done
    done
}

@test "calls.h lists what the backend's library takes from CUDA's" {
    [ -e "$AP_BUILD/bin/ap_cuda.so" ] || skip "make cuda was not run"
    diff <(nm -D --undefined-only "$AP_BUILD/bin/ap_cuda.so" | sed -nE 's/.* ((cuda|nvrtc|cublasLt|nccl)[A-Z][A-Za-z0-9]*)(@.*)?$/\1/p' | sort) \
        <(sed -nE 's/.*CALL\(([a-zA-Z]*)\).*/\1/p' cmd/ap-exec/cuda/calls.h | sort)
}

@test "cudnn: it has kernels for attention on sm_90, forward and backward" {
    local lib
    lib=$(ldd "$AP_BUILD/bin/ap_cuda.so" 2>/dev/null | awk '/libcudart/ { print $3 }')
    lib=${lib%/*}
    [ -e "$lib/stubs/libcuda.so" ] || skip "make cuda was not run, or the toolkit has no stub of libcuda"
    ln -s "$lib/stubs/libcuda.so" "$BATS_TEST_TMPDIR/libcuda.so.1"
    LD_LIBRARY_PATH=$BATS_TEST_TMPDIR:$lib run "$AP_BUILD/fake/test_sdpa"
    [ "$status" -ne 77 ] || skip "there is no libcudnn.so.9"
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
}

# --- with a GPU ---

@test "check-cuda and gpu-table say why they skip, and what to run" {
    [ ! -e /dev/nvidiactl ] || skip "there is a GPU"
    run scripts/bench/check-cuda "${AP_BUILD#"$AP_TOP"/}"
    [ "$status" -eq 0 ]
    [[ $output == "skipped: "*"make check-cuda"*"scripts/bench/gpu-table"*"all skipped" ]]
    AP_TORCH_PYTHON=/nonexistent/python run scripts/bench/gpu-table
    [ "$status" -eq 0 ]
    [[ $output == "skipped: "*"scripts/bench/gpu-table"* ]]
}
