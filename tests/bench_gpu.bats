#!/usr/bin/env bats
# scripts/bench/gpu: the models that scripts/bench/gpu-table trains in JAX start from what ap-exec's seed gives, and are the same.

load helpers

setup() {
    needs_exec
    needs_jax
    cd "$BATS_TEST_TMPDIR" || return 1
}

# spec RANGE COMMAND...: a document of the command, and what bench.py has to know, with the losses of three steps
spec() {
    local range=$1
    shift
    "$@" | ap-shard --mesh 1 | ap-cost >doc.json
    jq -f "$AP_TOP/scripts/bench/gpu/spec.jq" --arg name model --arg type f32 --argjson peak 0 --arg optimizer adam \
        --argjson lr 1e-3 --argjson heads 2 --argjson keys 0 --argjson top 2 --argjson range "$range" doc.json >spec
    ap-rewrite doc.json | ap-exec --json --steps 3 --int-range "$range" >report
    jq --slurpfile a report '.losses = $a[0].losses' spec >model.spec
}

@test "gpu-table: a mixture of experts in JAX, of which some are full, has ap-exec's losses; other losses show" {
    spec 64 ap-model moe --layers 1 --moe-every 1 --hidden 32 --heads 2 --experts 4 --top 2 --vocab 64 --batch 2 --seq 16
    jq 'del(.heads)' model.spec >broken.spec
    jq '.losses[2] *= 1.001' model.spec >other.spec
    JAX_PLATFORMS=cpu run "$JAX_PYTHON" "$AP_TOP/scripts/bench/gpu/bench.py" jax --done begun --steps 1 \
        broken.spec:jax model.spec:jax other.spec:jax
    echo "$output"
    [ "$status" -eq 0 ]
    [[ ${lines[0]} == "model "*" jax "*"heads"* ]]
    [[ ${lines[1]} == "model "*" jax "*" ok" ]]
    [[ ${lines[2]} == "model "*" 1.0e-03 off" ]]
    [ "$(wc -l <begun)" -eq 3 ]
}
