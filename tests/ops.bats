#!/usr/bin/env bats
# Operators of HLO text from the text to the numbers: bits, complex numbers, Fourier
# transforms, random numbers, fusions, windows and scatters of several arrays.
# shellcheck disable=SC2154 # status, output and stderr are bats'

load helpers

REDUCERS='
add_f { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
max_f { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] maximum(a, b) }
and_p { a = pred[] parameter(0)  b = pred[] parameter(1)  ROOT c = pred[] and(a, b) }
'

# holds SHAPE VALUE [COMPUTATION]: reads instructions that define y of this shape; y equals
# the literal: integers in every bit, floats within 1e-5.
holds() {
    local sizes=${1#*[} dims compare
    sizes=[$sizes
    dims=$([ "$sizes" = "[]" ] || seq -s, 0 "$(tr -cd , <<<"$sizes" | wc -c)")
    compare="same = pred$sizes compare(y, want), direction=EQ"
    [[ $1 != f32* ]] || compare="off = $1 subtract(y, want)  far = $1 abs(off)  tol = f32[] constant(1e-5)
    tols = $1 broadcast(tol), dimensions={}  same = pred$sizes compare(far, tols), direction=LT"
    {
        printf '%s%s\nENTRY e { want = %s constant(%s)\n' "$REDUCERS" "${3:-}" "$1" "$2"
        cat
        printf '%s  yes = pred[] constant(true)\n' "$compare"
        printf 'ok = pred[] reduce(same, yes), dimensions={%s}, to_apply=and_p\n' "$dims"
        echo 'ROOT result = f32[] convert(ok) }'
    } >"$BATS_TEST_TMPDIR/holds.hlo"
    run bash -c "ap-import --quiet --no-history '$BATS_TEST_TMPDIR/holds.hlo' | ap-rewrite | ap-exec"
    [[ $output == "step 1 loss 1" ]] || { cat "$BATS_TEST_TMPDIR/holds.hlo"; echo "$output"; return 1; }
}

# Planned for 2x2 devices, run on four ranks, the same numbers as on one.
splits() {
    ap-import --quiet --no-history - |
        ap-shard --quiet --mesh 2x2 --cluster "$CLUSTERS/cpu-8.json" |
        ap-cost | ap-rewrite | ap-exec -n 4 --verify
}

@test "ops: bits of numbers, also between widths" {
    needs_exec
    holds "u32[2]" "{1065353216, 3221225472}" <<<'x = f32[2] constant({1, -2})  y = u32[2] bitcast-convert(x)'
    holds "u32[2,2]" "{{2,1},{4,3}}" <<<'x = u64[2] constant({4294967298, 12884901892})
        y = u32[2,2] bitcast-convert(x)'
    holds "u64[2]" "{4294967298, 12884901892}" <<<'x = u32[2,2] constant({{2,1},{4,3}})
        y = u64[2] bitcast-convert(x)'
    holds "f32[2]" "{1, -2}" <<<'x = u8[2,4] constant({{0,0,128,63},{0,0,0,192}})
        y = f32[2] bitcast-convert(x)'
    holds "u16[3]" "{16256, 49152, 32640}" <<<'x = bf16[3] constant({1, -2, inf})
        y = u16[3] bitcast-convert(x)'
    holds "u16[2]" "{15360, 49152}" <<<'x = f16[2] constant({1, -2})  y = u16[2] bitcast-convert(x)'
    refuses 1 "bitcast-convert of u8 makes no pred" ap-import - <<<'ENTRY e { x = u8[4] parameter(0)
        ROOT y = pred[4] bitcast-convert(x) }'
    refuses 1 "is not made of the operand's bits" ap-import - <<<'ENTRY e { x = f32[4,3] parameter(0)
        ROOT y = u64[4] bitcast-convert(x) }'
}

@test "ops: integers' bits are counted" {
    needs_exec
    holds "u32[4]" "{32, 31, 8, 0}" <<<'x = u32[4] constant({0, 1, 16711935, 4294967295})
        y = u32[4] count-leading-zeros(x)'
    holds "s8[3]" "{0, 8, 1}" <<<'x = s8[3] constant({0, -1, -128})  y = s8[3] popcnt(x)'
    holds "f32[2]" "{1.5574077, -0.54630249}" <<<'x = f32[2] constant({1, -0.5})  y = f32[2] tan(x)'
}

@test "ops: hyperbolic functions" {
    needs_exec
    holds "f32[3]" "{0.88137359, -8.2940497, 1e-3}" <<<'x = f32[3] constant({1, -2000, 1e-3})  y = f32[3] asinh(x)'
    holds "f32[3]" "{1.1752012, -0.52109531, 1e-3}" <<<'x = f32[3] constant({1, -0.5, 1e-3})  y = f32[3] sinh(x)'
    holds "f32[2]" "{1.5430806, 1.1276260}" <<<'x = f32[2] constant({1, -0.5})  y = f32[2] cosh(x)'
    refuses 1 "asinh does not work on s32" ap-import - <<<'ENTRY e { x = s32[4] parameter(0)
        ROOT y = s32[4] asinh(x) }'
}

@test "ops: floats are compared by their total order" {
    needs_exec
    holds "s32[5]" "{1, 0, 0, 1, 1}" <<<'a = f32[5] constant({-0, 0, nan, 1, -inf})
        b = f32[5] constant({0, -0, inf, nan, -1})
        p = pred[5] compare(a, b), direction=LT, type=TOTALORDER  y = s32[5] convert(p)'
    holds "f32[4]" "{-2, -1, 3, 7}" "
        less { a = f32[] parameter(0)  b = f32[] parameter(1)
            ROOT c = pred[] compare(a, b), direction=LT, type=TOTALORDER }" \
        <<<'x = f32[4] constant({3, -1, 7, -2})  y = f32[4] sort(x), dimensions={0}, to_apply=less'
    refuses 1 "by total order does not work on s32" ap-import - <<<'ENTRY e { x = s32[2] parameter(0)
        ROOT y = pred[2] compare(x, x), direction=LT, type=TOTALORDER }'
}

@test "ops: complex numbers" {
    needs_exec
    local parts='r = f32[2] real(z)  i = f32[2] imag(z)  ra = f32[2,1] reshape(r)
        ia = f32[2,1] reshape(i)  y = f32[2,2] concatenate(ra, ia), dimensions={1}'
    local two='a = c64[2] constant({(1, 2), (0, -1)})  b = c64[2] constant({(3, -1), (2, 2)})'
    holds "f32[2,2]" "{{5, 5}, {2, -2}}" <<<"$two  z = c64[2] multiply(a, b) $parts"
    holds "f32[2,2]" "{{0.1, 0.7}, {-0.25, -0.25}}" <<<"$two  z = c64[2] divide(a, b) $parts"
    holds "f32[2,2]" "{{-1.1312044, 2.4717267}, {0.54030231, -0.84147098}}" \
        <<<"$two  z = c64[2] exponential(a) $parts"
    holds "f32[2,2]" "{{1.2720196, 0.78615138}, {0.70710678, -0.70710678}}" \
        <<<"$two  z = c64[2] sqrt(a) $parts"
    holds "f32[2]" "{2.236068, 1}" <<<"$two  y = f32[2] abs(a)"
    holds "f32[2]" "{7, 3}" <<<"$two  s = c64[] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}
        r = f32[] real(s)  i = f32[] imag(s)  ra = f32[1] reshape(r)  ia = f32[1] reshape(i)
        y = f32[2] concatenate(ra, ia), dimensions={0}"
    refuses 1 "real does not work on f32" ap-import - <<<'ENTRY e { x = f32[8] parameter(0)
        ROOT y = f32[8] real(x) }'
    splits <<END
$REDUCERS
ENTRY e { x = f32[8,16] parameter(0)  u = f32[8,16] parameter(1)  w = f32[16,16] parameter(2)
    v = c64[8,16] complex(x, u)  wc = c64[16,16] convert(w)
    m = c64[8,16] dot(v, wc), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    p = c64[8,16] tanh(m)  q = c64[8,16] multiply(p, v)  a = f32[8,16] abs(q)
    z = f32[] constant(0)  ROOT r = f32[] reduce(a, z), dimensions={0,1}, to_apply=add_f }
END
}

@test "ops: Fourier transforms of any length are their sums" {
    needs_exec
    has_fft || skip "ap-exec is built without FFTW"
    holds "f32[4,2]" "{{10, 0}, {-2, 2}, {-2, 0}, {-2, -2}}" <<<'x = f32[4] constant({1, 2, 3, 4})
        c = c64[4] convert(x)  z = c64[4] fft(c), fft_type=FFT, fft_length={4}
        r = f32[4] real(z)  i = f32[4] imag(z)  ra = f32[4,1] reshape(r)  ia = f32[4,1] reshape(i)
        y = f32[4,2] concatenate(ra, ia), dimensions={1}'
    holds "f32[3,2]" "{{15, 0}, {-2.5, 3.4409548}, {-2.5, 0.81229924}}" <<<'
        x = f32[5] constant({1, 2, 3, 4, 5})  z = c64[3] fft(x), fft_type=RFFT, fft_length={5}
        r = f32[3] real(z)  i = f32[3] imag(z)  ra = f32[3,1] reshape(r)  ia = f32[3,1] reshape(i)
        y = f32[3,2] concatenate(ra, ia), dimensions={1}'
    local rows='{{1,5,2,0,7,3},{4,-1,0,2,9,8}}'
    holds "f32[2,6]" "$rows" <<<"x = f32[2,6] constant($rows)
        a = c64[2,4] fft(x), fft_type=RFFT, fft_length={2,6}
        y = f32[2,6] fft(a), fft_type=IRFFT, fft_length={2,6}"
    holds "f32[2,6]" "$rows" <<<"x = f32[2,6] constant($rows)
        c = c64[2,6] convert(x)  a = c64[2,6] fft(c), fft_type=FFT, fft_length={6}
        b = c64[2,6] fft(a), fft_type=IFFT, fft_length={6}  y = f32[2,6] real(b)"
    splits <<END
$REDUCERS
ENTRY e { x = f32[8,6,10] parameter(0)  a = c64[8,6,6] fft(x), fft_type=RFFT, fft_length={6,10}
    b = f32[8,6,6] abs(a)  z = f32[] constant(0)
    ROOT r = f32[] reduce(b, z), dimensions={0,1,2}, to_apply=add_f }
END
    refuses 1 "fft_length: 5 of dimension 0 with 4 elements" ap-import - <<<'ENTRY e {
        x = c64[4] parameter(0)  ROOT y = c64[5] fft(x), fft_type=FFT, fft_length={5} }'
    refuses 1 "fft of type FFT does not work on f32" ap-import - <<<'ENTRY e {
        x = f32[4] parameter(0)  ROOT y = c64[4] fft(x), fft_type=FFT, fft_length={4} }'
}

@test "ops: random bits are XLA's" {
    needs_exec
    bits() { # ALGORITHM SHAPE
        echo "k = u64[2] constant({1311768467463790320, 1147797409030816545})
            g = (u64[2], $2) rng-bit-generator(k), algorithm=$1
            y = $2 get-tuple-element(g), index=1"
    }
    holds "u32[8]" "{321188122, 719450110, 4126047222, 1525795385, 2886374414, 630514655, 2437281700, 846035953}" \
        <<<"$(bits rng_three_fry 'u32[8]')"
    holds "u32[2,3]" "{{4280550385, 238971816, 1079828761}, {2933417630, 2651160362, 1297950909}}" \
        <<<"$(bits rng_philox 'u32[2,3]')"
    holds "u64[2]" "{3090014693874790682, 6553241283088776182}" <<<"$(bits rng_three_fry 'u64[2]')"
    holds "u64[2]" "{1311768467463790320, 1147797409030816549}" <<<'
        k = u64[2] constant({1311768467463790320, 1147797409030816545})
        g = (u64[2], u32[7]) rng-bit-generator(k), algorithm=rng_three_fry
        y = u64[2] get-tuple-element(g), index=0'
}

@test "ops: random numbers do not depend on how they are split" {
    needs_exec
    splits <<END
$REDUCERS
ENTRY e { x = f32[8,16] parameter(0)  k = u64[2] parameter(1)
    g = (u64[2], u32[8,16]) rng-bit-generator(k), algorithm=rng_default
    bits = u32[8,16] get-tuple-element(g), index=1  f = f32[8,16] convert(bits)
    lo = f32[] constant(2)  hi = f32[] constant(3)
    u = f32[8,16] rng(lo, hi), distribution=rng_uniform
    n = f32[8,16] rng(lo, hi), distribution=rng_normal
    a = f32[8,16] multiply(x, f)  b = f32[8,16] multiply(a, u)  c = f32[8,16] add(b, n)
    z = f32[] constant(0)  ROOT r = f32[] reduce(c, z), dimensions={0,1}, to_apply=add_f }
END
    # 4096 uniform numbers of [2, 3): mean 2.5; as many normal ones around 2: mean 2
    for case in "rng_uniform 2.5 0.02" "rng_normal 2 0.15"; do
        read -r name mean within <<<"$case"
        holds "f32[]" 0 <<<"lo = f32[] constant(2)  hi = f32[] constant(3)
            u = f32[4096] rng(lo, hi), distribution=$name  zz = f32[] constant(0)
            sum = f32[] reduce(u, zz), dimensions={0}, to_apply=add_f  n = f32[] constant(4096)
            avg = f32[] divide(sum, n)  mean = f32[] constant($mean)  miss = f32[] subtract(avg, mean)
            gap = f32[] abs(miss)  most = f32[] constant($within)
            bad = pred[] compare(gap, most), direction=GT  y = f32[] convert(bad)"
    done
    refuses 2 "of a state that is not u64[2]" ap-import - <<<'ENTRY e { k = u32[4] parameter(0)
        ROOT g = (u32[4], u32[8]) rng-bit-generator(k), algorithm=rng_default }'
}

@test "ops: fusions are calls, bitcasts follow the layouts, maps their computation" {
    needs_exec
    holds "f32[3,2]" "{{2,8},{4,10},{6,12}}" '
        fused { p = f32[2,3] parameter(0)  d = f32[2,3] add(p, p)  ROOT q = f32[2,3] copy(d) }' \
        <<<'x = f32[2,3]{1,0} constant({{1,2,3},{4,5,6}})
        f = f32[2,3]{1,0} fusion(x), kind=kLoop, calls=fused  y = f32[3,2]{0,1} bitcast(f)'
    holds "f32[3,2]" "{{1,2},{3,4},{5,6}}" <<<'x = f32[2,3]{1,0} constant({{1,2,3},{4,5,6}})
        y = f32[3,2]{1,0} bitcast(x)'
    holds "f32[2]" "{7, 1}" '
        m { a = f32[] parameter(0)  b = f32[] parameter(1)  two = f32[] constant(2)
            t = f32[] multiply(a, two)  ROOT s = f32[] add(t, b) }' \
        <<<'u = f32[2] constant({3, -1})  v = f32[2] constant({1, 3})
        y = f32[2] map(u, v), dimensions={0}, to_apply=m'
}

ARGMAX='
pick { v = f32[] parameter(0)  i = s32[] parameter(1)  w = f32[] parameter(2)  j = s32[] parameter(3)
    p = pred[] compare(v, w), direction=GE  a = f32[] select(p, v, w)  b = s32[] select(p, i, j)
    ROOT t = (f32[], s32[]) tuple(a, b) }'

@test "ops: windows over several arrays, and reductions of them" {
    needs_exec
    local text='x = f32[5] constant({1, 9, 2, 8, 3})  i = s32[5] iota(), iota_dimension=0
        low = f32[] constant(-inf)  none = s32[] constant(-1)
        t = (f32[3], s32[3]) reduce-window(x, i, low, none), to_apply=pick,
            window={size=3 stride=2 pad=1_1}'
    holds "s32[3]" "{1, 1, 3}" "$ARGMAX" <<<"$text  y = s32[3] get-tuple-element(t), index=1"
    holds "f32[3]" "{9, 9, 8}" "$ARGMAX" <<<"$text  y = f32[3] get-tuple-element(t), index=0"
    holds "s32[2]" "{1, 2}" "$ARGMAX" <<<'x = f32[2,3] constant({{1, 9, 2}, {0, 1, 7}})
        i = s32[2,3] iota(), iota_dimension=1  low = f32[] constant(-inf)  none = s32[] constant(-1)
        t = (f32[2], s32[2]) reduce(x, i, low, none), dimensions={1}, to_apply=pick
        y = s32[2] get-tuple-element(t), index=1'
}

@test "ops: scatters of several arrays, where they are apart" {
    needs_exec
    local attrs='update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1'
    local text="a = f32[4] constant({0, 0, 0, 0})  b = s32[4] constant({5, 5, 5, 5})
        at = s32[3] constant({1, 3, 1})  u = f32[3] constant({1, 2, 4})  v = s32[3] constant({7, 3, 9})
        t = (f32[4], s32[4]) scatter(a, b, at, u, v), to_apply=both, $attrs"
    local both='
        both { p = f32[] parameter(0)  q = s32[] parameter(1)  r = f32[] parameter(2)  s = s32[] parameter(3)
            x = f32[] add(p, r)  y = s32[] maximum(q, s)  ROOT t = (f32[], s32[]) tuple(x, y) }'
    holds "f32[4]" "{0, 5, 0, 2}" "$both" <<<"$text  y = f32[4] get-tuple-element(t), index=0"
    holds "s32[4]" "{5, 9, 5, 5}" "$both" <<<"$text  y = s32[4] get-tuple-element(t), index=1"
    refuses 2 "whose computation mixes them" ap-import - <<END
$ARGMAX
ENTRY e { a = f32[4] parameter(0)  b = s32[4] parameter(1)  at = s32[3] parameter(2)
    u = f32[3] parameter(3)  v = s32[3] parameter(4)
    ROOT t = (f32[4], s32[4]) scatter(a, b, at, u, v), to_apply=pick, $attrs }
END
}

@test "ops: Cholesky factors and triangular solves" {
    needs_exec
    local a='a = f32[2,2] constant({{4, 2}, {2, 5}})'
    holds "f32[2,2]" "{{2, 0}, {1, 2}}" <<<"$a  y = f32[2,2] cholesky(a), lower=true"
    holds "f32[2,2]" "{{2, 1}, {0, 2}}" <<<"$a  y = f32[2,2] cholesky(a), lower=false"
    for case in "true true NO_TRANSPOSE {{1,2},{1,-1}}" "true true TRANSPOSE {{0.5,2.5},{1,-1}}" \
        "true false NO_TRANSPOSE {{0,2},{1.5,0}}" "true false TRANSPOSE {{1,2},{0.5,-2}}" \
        "false true NO_TRANSPOSE {{0,1},{1.5,1}}" "false true TRANSPOSE {{1,0.5},{2,0}}"; do
        read -r left lower transpose want <<<"$case"
        # against the product: op(T) X = B, or X op(T) = B
        local t='{{2, 0}, {1, 2}}' lc=1 rc=0
        [ "$lower" = true ] || t='{{2, 1}, {0, 2}}'
        local args="m, x" dims
        [ "$left" = true ] || args="x, m"
        [ "$transpose" = NO_TRANSPOSE ] || { [ "$left" = true ] && lc=0 || rc=1; }
        dims="lhs_contracting_dims={$lc}, rhs_contracting_dims={$rc}"
        holds "f32[2,2]" "$want" <<<"m = f32[2,2] constant($t)  x = f32[2,2] constant($want)
            b = f32[2,2] dot($args), $dims
            y = f32[2,2] triangular-solve(m, b), left_side=$left, lower=$lower, transpose_a=$transpose"
    done
    holds "f32[2,1]" "{{1}, {2}}" <<<'m = f32[2,2] constant({{9, 9}, {3, 9}})  b = f32[2,1] constant({{1}, {5}})
        y = f32[2,1] triangular-solve(m, b), left_side=true, lower=true, unit_diagonal=true'
    splits <<END
$REDUCERS
ENTRY e { x = f32[8,4,4] parameter(0)  b = f32[8,4,12] parameter(1)
    xx = f32[8,4,4] dot(x, x), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={2}
    r = s32[4,4] iota(), iota_dimension=0  c = s32[4,4] iota(), iota_dimension=1
    eq = pred[4,4] compare(r, c), direction=EQ  eye = f32[4,4] convert(eq)
    eyes = f32[8,4,4] broadcast(eye), dimensions={1,2}  a = f32[8,4,4] add(xx, eyes)
    l = f32[8,4,4] cholesky(a), lower=true
    y = f32[8,4,12] triangular-solve(l, b), left_side=true, lower=true, transpose_a=NO_TRANSPOSE
    z = f32[] constant(0)  ROOT s = f32[] reduce(y, z), dimensions={0,1,2}, to_apply=add_f }
END
    # a matrix that is not positive definite is NaN, and no other of the batch
    holds "f32[]" 3 <<<'a = f32[2,2,2] constant({{{4,2},{2,5}},{{1,2},{2,1}}})
        l = f32[2,2,2] cholesky(a), lower=true  nan = pred[2,2,2] compare(l, l), direction=NE
        n = f32[2,2,2] convert(nan)  z = f32[] constant(0)
        y = f32[] reduce(n, z), dimensions={0,1,2}, to_apply=add_f'
    # matrices without elements: nothing is computed, and BLAS has nothing to say
    ap-import - <<<'ENTRY e { a = f32[2,0,0] parameter(0)  b = f32[2,0,3] parameter(1)
        l = f32[2,0,0] cholesky(a), lower=true
        ROOT y = f32[2,0,3] triangular-solve(l, b), left_side=true, lower=true }' |
        ap-rewrite >"$BATS_TEST_TMPDIR/empty.json"
    run ap-exec "$BATS_TEST_TMPDIR/empty.json"
    [ "$status" -eq 0 ]
    [ "$output" = "step 1" ]
    refuses 1 "cholesky needs square matrices" ap-import - <<<'ENTRY e { x = f32[4,3] parameter(0)
        ROOT y = f32[4,3] cholesky(x), lower=true }'
    refuses 1 "the matrices and the right sides do not fit" ap-import - <<<'ENTRY e { a = f32[4,4] parameter(0)
        b = f32[3,4] parameter(1)  ROOT y = f32[3,4] triangular-solve(a, b), left_side=true, lower=true }'
}

@test "ops: LAPACK's calls are operators" {
    run --separate-stderr ap-import --no-history - <<'END'
ENTRY e { a = f32[4,4] parameter(0)  b = f32[4,2] parameter(1)
    t = (f32[4,4], s32[]) custom-call(a), custom_call_target="lapack_spotrf_ffi", backend_config={uplo = 76 : ui8}
    l = f32[4,4] get-tuple-element(t), index=0
    ROOT y = f32[4,2] custom-call(l, b), custom_call_target="lapack_strsm_ffi",
        backend_config={diag = 78 : ui8, side = 76 : ui8, trans_x = 84 : ui8, uplo = 76 : ui8} }
END
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    jq -e '[.graph.nodes[] | select(.op == "cholesky" or .op == "triangular-solve") |
        [.op, .lower, .left_side, .transpose_a]] ==
        [["cholesky", true, null, null], ["triangular-solve", true, true, true]]' <<<"$output"
}

@test "ops: without FFTW a Fourier transform is refused" {
    needs_exec
    ! has_fft || skip "ap-exec is built with FFTW"
    ap-import --quiet --no-history - >"$BATS_TEST_TMPDIR/fft.json" <<<'ENTRY e { x = c64[4] parameter(0)
        ROOT y = c64[4] fft(x), fft_type=FFT, fft_length={4} }'
    refuses 2 "by an ap-exec without FFTW: not supported yet" bash -c \
        "ap-rewrite '$BATS_TEST_TMPDIR/fft.json' | ap-exec"
}
