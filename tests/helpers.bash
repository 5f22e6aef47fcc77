# shellcheck shell=bash
# What the bats files share; `load helpers` at the top of each.
# shellcheck disable=SC2154 # status, output and stderr are bats'

bats_require_minimum_version 1.5.0

AP_TOP=$(cd "${BATS_TEST_DIRNAME:?}/.." && pwd)
AP_BUILD=${AP_BUILD:-build}
[[ $AP_BUILD == /* ]] || AP_BUILD=$AP_TOP/$AP_BUILD
PATH=$AP_BUILD/bin:$PATH
MODELS=$AP_TOP/testdata/models
CLUSTERS=$AP_TOP/clusters
# AP_TEST_BACKEND=cuda: every ap-exec of a test computes by that backend.
if [ -n "${AP_TEST_BACKEND-}" ]; then
    AP_WRAPPERS=$BATS_RUN_TMPDIR/backend
    mkdir -p "$AP_WRAPPERS"
    printf '#!/bin/sh\nexec %q --backend %q "$@"\n' "$AP_BUILD/bin/ap-exec" "$AP_TEST_BACKEND" >"$AP_WRAPPERS/ap-exec.$$"
    chmod +x "$AP_WRAPPERS/ap-exec.$$"
    mv "$AP_WRAPPERS/ap-exec.$$" "$AP_WRAPPERS/ap-exec"
    PATH=$AP_WRAPPERS:$PATH
fi
XDG_CACHE_HOME=/dev/null # ap-plan keeps no answers, unless a test says where
export AP_TOP AP_BUILD PATH MODELS CLUSTERS XDG_CACHE_HOME
cd "$AP_TOP" || exit 1

# The tools that were built.
ap_tools() {
    local f
    for f in "$AP_BUILD"/bin/ap-*; do basename "$f"; done
}

# Skips a test that needs ap-exec where it was not built for want of MPI.
needs_exec() {
    [ -x "$AP_BUILD/bin/ap-exec" ] || skip "ap-exec is not built"
}

# JAX_PYTHON, a Python with JAX, Flax and Optax: AP_JAX_PYTHON, or that of build/jaxenv where
# scripts/jax/environment came to its end; skips the test without.
needs_jax() {
    JAX_PYTHON=${AP_JAX_PYTHON:-$AP_BUILD/jaxenv/bin/python}
    [ -n "${AP_JAX_PYTHON-}" ] || [ -s "$AP_BUILD/jaxenv/made" ] || skip "scripts/jax/environment has not made $AP_BUILD/jaxenv"
    [ -x "$JAX_PYTHON" ] || skip "no Python at $JAX_PYTHON"
}

# Whether ap-exec was built with FFTW.
has_fft() {
    ldd "$AP_BUILD/bin/ap-exec" | grep -q libfftw3
}

# Skips a test of searches that take minutes with sanitizers; shorter ones go the same ways.
slow_with_sanitizers() {
    [[ $AP_BUILD != */asan ]] || skip "too slow with sanitizers"
}

# await COMMAND...: waits until the command succeeds, however slow the machine is; fails where it does
# not for five minutes, which is a fault and no load.
await() {
    local end=$((SECONDS + 300))
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.05
    done
}

# A figure that stands beside the result, for the page of scripts/experiments: shows TEXT
shows() {
    echo "# $*" >&3
}

# The HLO text of a golden model.
hlo() {
    local f
    for f in "$MODELS/$1/$1.hlo" "$MODELS/$1/$1.hlo.gz" "$MODELS/$1.hlo.gz"; do
        [ ! -e "$f" ] || { echo "$f"; return; }
    done
    echo "no model $1" >&2
    return 1
}

# HLO text of a file without metadata and aliases: what is left is what an old dump has.
bare() {
    gzip -dcf "$1" | sed -E -e 's/, metadata=\{[^}]*\}//' \
        -e '1s/input_output_alias=\{( \{[0-9]*\}: \([^)]*\),?)* \},? ?//'
}

# Document of a model after import, made once per bats file.
imported() {
    local f=$BATS_FILE_TMPDIR/$1.json
    [ -s "$f" ] || ap-import --no-history -o "$f" "$(hlo "$1")" || return
    echo "$f"
}

# Sharded document: sharded MODEL MESH [ALGORITHM]. On eight CPU ranks: slow devices with fast
# links, where small models are worth splitting.
sharded() {
    local f=$BATS_FILE_TMPDIR/$1-$2-${3:-ilp}.json
    [ -s "$f" ] || ap-shard --no-history --mesh "$2" --algorithm "${3:-ilp}" -o "$f" \
        --cluster "$CLUSTERS/cpu-8.json" "$(imported "$1")" || return
    echo "$f"
}

# Program: rewritten MODEL MESH [ALGORITHM]
rewritten() {
    local f=$BATS_FILE_TMPDIR/$1-$2-${3:-ilp}.program.json
    [ -s "$f" ] || ap-cost --no-history "$(sharded "$@")" |
        ap-rewrite --no-history -o "$f" || return
    echo "$f"
}

# jq 1.6 calls the empty output of a tool that failed true: jq -e asks for a result.
jq() {
    local option asks='' out status=0
    for option; do
        [[ $option != --exit-status && ! $option =~ ^-[a-zA-Z]*e[a-zA-Z]*$ ]] || asks=1
    done
    if [ -z "$asks" ]; then
        command jq "$@"
        return
    fi
    out=$(command jq "$@"; status=$?; printf x; exit "$status") || status=$?
    out=${out%x}
    printf %s "$out"
    [ -n "$out" ] || [ "$status" -ne 0 ] || status=4
    return "$status"
}

# refuses CODE TEXT COMMAND...: the command exits with CODE, prints nothing on stdout, and
# says on stderr who is speaking and something that contains TEXT.
refuses() {
    local code=$1 text=$2
    shift 2
    run --separate-stderr "$@"
    if [ "$status" -ne "$code" ] || [ -n "$output" ] || [[ $stderr != *"$text"* ]]; then
        echo "expected exit $code, no output and '$text' in the message of: $*"
        echo "exit $status, output '${output:0:200}', message '${stderr:0:1000}'"
        return 1
    fi
}

# two_towers LAYERS WIDTH BATCH: HLO of a forward pass of two towers of dense layers, between which
# nothing flows before the loss, a sum over rows: its batch can be cut, which CLIP's cannot
two_towers() {
    local l t x in="f32[$3,$2]" w="f32[$2,$2]" n=0
    printf '%s\n' 'HloModule towers' 'sum {' '  a = f32[] parameter(0)' '  b = f32[] parameter(1)' \
        '  ROOT c = f32[] add(a, b)' '}' 'ENTRY main {'
    for t in left right; do
        x=$t
        echo "  $t = $in parameter($((n++))), metadata={op_name=\"batch['$t']\"}"
        for ((l = 0; l < $1; l++)); do
            echo "  w$t$l = $w parameter($((n++))), metadata={op_name=\"params['$t/$l/w']\"}"
            echo "  dot$t$l = $in dot($x, w$t$l), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name=\"$t/$l/dot\"}"
            x=tanh$t$l
            echo "  $x = $in tanh(dot$t$l), metadata={op_name=\"$t/$l/tanh\"}"
        done
    done
    echo "  both = $in multiply(tanhleft$((l - 1)), $x), metadata={op_name=\"loss/both\"}"
    echo "  zero = f32[] constant(0)"
    echo "  ROOT loss = f32[] reduce(both, zero), dimensions={0,1}, to_apply=sum, metadata={op_name=\"loss/sum\"}"
    echo "}"
}
