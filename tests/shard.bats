#!/usr/bin/env bats
# ap-shard: what its answers promise.

load helpers

# objective FILE
objective() {
    jq '.sharding.objective_sec' "$1"
}

# ilp MODEL MESH COST_MODEL [OPTION...]: the document, made once. By Alpa's prices and by bytes gpt2l takes
# 15 s to the optimum; what is promised of a plan holds wherever the search ends.
ilp() {
    local f=$BATS_FILE_TMPDIR/$1-$2-$3${4:-}.ilp.json
    [[ $1 != gpt2l || $3 == default ]] || set -- "$@" --work-limit 3
    [ -s "$f" ] || ap-shard --mesh "$2" --cluster "$CLUSTERS/cpu-8.json" --cost-model "$3" \
        "${@:4}" -o "$f" "$(imported "$1")" || return
    echo "$f"
}

# cost_models MODEL: those that it is tested with; with sanitizers only the quick ones
cost_models() {
    [[ $AP_BUILD == */asan && $1 == gpt2l ]] && echo default || echo default alpa bytes
}

@test "never worse than a named plan, under each cost model" {
    for model in mlp gpt2l resnet; do
        for cost_model in $(cost_models $model); do
            best=$(objective "$(ilp "$model" 2x2 "$cost_model")")
            for named in data zero2 zero3 megatron largest-dim; do
                other=$BATS_TEST_TMPDIR/other.json status=0
                ap-shard --mesh 2x2 --cluster "$CLUSTERS/cpu-8.json" --cost-model "$cost_model" \
                    --algorithm "$named" -o "$other" "$(imported "$model")" 2>/dev/null || status=$?
                [ "$status" -eq 0 ] || { [ "$status" -eq 3 ]; continue; }
                jq -en "$best <= $(objective "$other") * (1 + 1e-12)" >/dev/null ||
                    { echo "$model $cost_model: $best > $named $(objective "$other")"; return 1; }
            done
        done
    done
}

@test "the objective is ap-cost's serial time, the bound below it" {
    for model in mlp gpt2l resnet; do
        for cost_model in $(cost_models $model); do
            ap-cost "$(ilp "$model" 2x2 "$cost_model")" | jq -e '
                .sharding.objective_sec == .cost.serial_sec and
                .sharding.lower_bound_sec <= .sharding.objective_sec' >/dev/null
        done
    done
}

@test "a mesh of four axes is planned, to the optimum; more axes are refused" {
    ap-model --no-history mlp --layers 1 >"$BATS_TEST_TMPDIR/mlp.json"
    ap-shard --mesh 2x2x2x2 "$BATS_TEST_TMPDIR/mlp.json" | jq -e '.sharding.stopped == "optimal"'
    refuses 2 "mesh '2x2x2x2x2': more than 4 axes" ap-shard --mesh 2x2x2x2x2 "$BATS_TEST_TMPDIR/mlp.json"
}

# inputs FILE: "name layout" of every input
inputs() {
    jq -r '.sharding.groups as $g | .graph.nodes[] | select(.role == "input") |
        "\(.name) \($g[.group].out[0])"' "$1"
}

@test "an input that is cut for free is held cut, at the same price" {
    local model mesh whole name layout free=$BATS_TEST_TMPDIR/free.json n_cut=0
    while read -r model mesh whole; do
        plan=$(sharded "$model" "$mesh")
        while read -r name layout; do
            [ "$layout" != "$whole" ] || continue
            ap-shard --no-history --mesh "$mesh" --cluster "$CLUSTERS/cpu-8.json" \
                --pin "$name=$whole" -o "$free" "$(imported "$model")"
            jq -en "($(objective "$plan") - $(objective "$free")) | fabs < 1e-12" >/dev/null ||
                { echo "$model $mesh: $name as $layout costs less than whole"; return 1; }
            jq -en "$(jq .sharding.peak_bytes "$plan") <= $(jq .sharding.peak_bytes "$free")"
            n_cut=$((n_cut + 1))
        done < <(inputs "$plan")
    done <<'END'
gpt2l 4 R
gpt2l 2x4 R,R
gpt2l 2x2 R,R
mlp 4 R
mlp 2x4 R,R
moe 4 R
END
    [ "$n_cut" -ge 4 ]
    ap-model --no-history mlp --batch 4096 --hidden 64 |
        ap-shard --no-history --mesh 4 --cluster "$CLUSTERS/cpu-4.json" -o "$free"
    [ "$(inputs "$free" | sed 's/.* //' | sort -u)" = S0 ]
}

@test "--prove goes on where the default work leaves a gap, and changes nothing elsewhere" {
    local one=$BATS_TEST_TMPDIR/one.json two=$BATS_TEST_TMPDIR/two.json
    ap-shard --no-history --mesh 2x2 --cluster "$CLUSTERS/cpu-8.json" -o "$one" "$(imported gpt2l)"
    ap-shard --no-history --mesh 2x2 --cluster "$CLUSTERS/cpu-8.json" --prove -o "$two" "$(imported gpt2l)"
    cmp "$one" "$two"
    ap-shard --no-history --mesh 2x4 --cluster "$CLUSTERS/cpu-8.json" --work-limit 1 --prove -o "$two" \
        "$(imported moe)"
    ap-shard --no-history --mesh 2x4 --cluster "$CLUSTERS/cpu-8.json" --work-limit 1 -o "$one" "$(imported moe)"
    jq -en --slurpfile a "$one" --slurpfile b "$two" '$a[0].sharding as $a | $b[0].sharding as $b |
        $a.stopped == "work limit" and $a.lower_bound_sec < $a.objective_sec and
        $b.objective_sec <= $a.objective_sec and $b.lower_bound_sec > $a.lower_bound_sec'
    refuses 2 "--prove is for ilp, not for tofu" ap-shard --mesh 2 --algorithm tofu --prove "$(imported mlp)"
}

@test "a small budget of work finds prices within 0.5 % of the proven ones" {
    slow_with_sanitizers
    local ask short=$BATS_TEST_TMPDIR/short.json proven=$BATS_TEST_TMPDIR/proven.json
    for ask in gpt2l:2x2x2 lstm:2x4; do
        ap-shard --mesh "${ask#*:}" --cluster "$CLUSTERS/cpu-8.json" --work-limit 7 -o "$short" \
            "$(imported "${ask%:*}")"
        ap-shard --mesh "${ask#*:}" --cluster "$CLUSTERS/cpu-8.json" -o "$proven" "$(imported "${ask%:*}")"
        jq -en --slurpfile a "$short" --slurpfile b "$proven" '$a[0].sharding as $a | $b[0].sharding as $b |
            $b.stopped == "optimal" and $a.objective_sec <= 1.005 * $b.objective_sec and
            $a.lower_bound_sec <= $b.objective_sec' || { echo "$ask"; return 1; }
    done
}

@test "shard: where two axes are too many for the budget, each is searched while the other stays" {
    # 175 ms, a rule's plan, from the search of both axes alone; 166.6 with axes in turn
    ap-model resnet --layers 50 --batch 256 | ap-shard --quiet --mesh 8x4 --cluster p3x8 --work-limit 6 |
        jq -e '.sharding.objective_sec < 0.168'
}

@test "where the budget ends the search, answers do not depend on the number of jobs" {
    local j one=$BATS_TEST_TMPDIR/1.json two=$BATS_TEST_TMPDIR/2.json
    for j in 1 2; do
        ap-shard --no-history --mesh auto --jobs $j --cluster "$CLUSTERS/cpu-8.json" --work-limit 1 \
            "$(imported gpt2l)" >"$BATS_TEST_TMPDIR/$j.json"
    done
    cmp "$one" "$two"
    ap-shard --mesh 2x2x2 --cluster "$CLUSTERS/cpu-8.json" --work-limit 1 "$(imported gpt2l)" |
        jq -e '.sharding.stopped == "work limit" and .sharding.lower_bound_sec < .sharding.objective_sec'
}

@test "layers whose losses are added up from the first to the last are folded" {
    ap-model mixtral --layers 12 --hidden 64 --heads 8 --batch 8 --seq 32 | ap-prune --quiet |
        ap-shard --quiet --stats --mesh 2 --cluster "$CLUSTERS/cpu-4.json" -o /dev/null 2>"$BATS_TEST_TMPDIR/stats"
    jq -e '.tied > 0.4 * .groups' "$BATS_TEST_TMPDIR/stats"
}

# agree MODEL [OPTION...]: both solvers prove the same objective on two devices
agree() {
    local model=$1 exact=$BATS_TEST_TMPDIR/exact.json glpk=$BATS_TEST_TMPDIR/glpk.json
    shift
    ap-shard --mesh 2 "$@" -o "$exact" "$(imported "$model")"
    ap-shard --mesh 2 --solver glpk "$@" -o "$glpk" "$(imported "$model")"
    [ "$(jq -r .sharding.stopped "$exact" "$glpk" | sort -u)" = optimal ]
    jq -en "$(objective "$exact") as \$e | $(objective "$glpk") as \$g |
        (\$e - \$g | fabs) <= 1e-9 * \$e" >/dev/null ||
        { echo "$model $*: exact $(objective "$exact"), glpk $(objective "$glpk")"; return 1; }
}

@test "exact and glpk agree on golden models" { # GLPK takes a while for t5
    slow_with_sanitizers
    for model in mlp gpt2l gpt2l_bf16 resnet moe; do agree "$model"; done
}

@test "exact and glpk agree where splitting pays" {
    for model in mlp resnet; do agree "$model" --cluster "$CLUSTERS/cpu-8.json"; done
}

@test "without padding every split divides" {
    padded() { # is anything of the plan on 3 devices padded?
        ap-rewrite "$1" | jq -e '[.program.modules[0].graph.nodes[].split // empty |
            select(.full % .part != 0)] != []' >/dev/null
    }
    padded "$(ilp gpt2l 3 default)" # batch 8, vocabulary 257
    run ! padded "$(ilp gpt2l 3 default --no-padding)"
}

@test "alpa and bytes replicate no dot or convolution without --recompute-heavy" {
    plain=$(objective "$(ilp mlp 2x2 bytes)")
    free=$(objective "$(ilp mlp 2x2 bytes --recompute-heavy)")
    jq -en "$free <= $plain and $plain > 0" >/dev/null
    [ "$free" = 0 ] # everything on every device moves nothing
}

pinned() { # pinned SHARDING: mlp.hlo with this sharding on its first weight
    sed "s|parameter(1), metadata|parameter(1), sharding=$1, metadata|" "$(hlo mlp)"
}

@test "imported shardings are pins, of all generations" {
    for sharding in '{devices=[2,2]<=[4]}' '{devices=[2,2]0,1,2,3}' \
        "{mesh['a'=2,'b'=2], [{'a'}, {'b'}]}"; do
        pinned "$sharding" | ap-import - | ap-shard --mesh 2x2 >"$BATS_TEST_TMPDIR/pin.json"
        jq -e '.graph.nodes as $n | .sharding.layouts[[$n[] | .param == 1] | index(true)] == "S0,S1"' \
            "$BATS_TEST_TMPDIR/pin.json" >/dev/null || { echo "$sharding"; return 1; }
    done
    pinned '{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}' | ap-import - |
        ap-shard --mesh 2x2 | jq -e '.graph.nodes as $n |
            .sharding.layouts[[$n[] | .param == 1] | index(true)] == "R,S1"' >/dev/null
}

@test "pins of another mesh are dropped with one warning that names both" {
    pinned '{devices=[4,2]<=[8]}' | ap-import -o "$BATS_TEST_TMPDIR/graph.json" -
    run --separate-stderr ap-shard --mesh 2x2 "$BATS_TEST_TMPDIR/graph.json"
    [ "$status" -eq 0 ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == *"2x2"*"devices=[4,2]"* ]]
    run --separate-stderr ap-shard --mesh 2x2 --pins ignore "$BATS_TEST_TMPDIR/graph.json"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
}

@test "an infeasible pin is named, a broken one too" {
    # five classes on four devices: the padding would be more than a quarter
    sed 's|parameter(1), metadata|parameter(1), sharding={devices=[1,4]<=[4]}, metadata|' \
        "$(hlo mlp)" | ap-import -o "$BATS_TEST_TMPDIR/graph.json" -
    for bad in '{devices=[oops]<=[4]}' '{mesh[x=4], [{-}, {}]}' "{mesh['x'=4], [{'x'"; do
        jq -c --arg bad "$bad" '(.graph.nodes[] | select(.pin)).pin = $bad' \
            "$BATS_TEST_TMPDIR/graph.json" >"$BATS_TEST_TMPDIR/bad.json"
        refuses 1 "cannot read the sharding" timeout 300 ap-shard --mesh 4 "$BATS_TEST_TMPDIR/bad.json"
    done
    jq -c '(.graph.nodes[] | select(.op == "parameter" and .shape == "f32[10]") | .pin) = "{devices=[4]<=[4]}"' \
        "$BATS_TEST_TMPDIR/graph.json" >"$BATS_TEST_TMPDIR/bad.json"
    refuses 3 "cannot have the imported sharding" ap-shard --mesh 4 --no-padding "$BATS_TEST_TMPDIR/bad.json"
}

@test "a new plan drops what was derived from the old one" {
    ap-shard --mesh 4 "$(imported mlp)" | ap-cost | ap-rewrite | ap-shard --mesh 2 |
        jq -e '(has("cost") or has("program")) | not' >/dev/null
}

@test "--recompute-heavy holds for named plans" {
    doc=$(imported resnet)
    refuses 3 "replicated on axis" ap-shard --mesh 2x4 --cost-model alpa --algorithm megatron "$doc"
    ap-shard --mesh 2x4 --cost-model alpa --algorithm megatron --recompute-heavy "$doc" | ap-cost >/dev/null
}

@test "a named plan refuses options of a search" {
    refuses 2 "more than 1048576 devices" ap-shard --mesh 2147483647 "$(imported mlp)"
    refuses 2 "more than 1048576 devices" ap-shard --mesh 65536x65536 "$(imported mlp)"
    refuses 2 "is for ilp, tofu, tap and rhino, not for data" ap-shard --mesh 2 --algorithm data --no-padding "$(imported mlp)"
    refuses 2 "is for ilp and rhino, not for data" ap-shard --mesh 2 --algorithm data --solver glpk "$(imported mlp)"
}

@test "shard: shardings that are not read are reported once" {
    ap-import --no-history - <<'END' >"$BATS_TEST_TMPDIR/sdy.json"
ENTRY e { x = f32[8,4] parameter(0), frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{\"x\"}, {}]>"}
    y = f32[8,4] parameter(1), frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{}, {\"x\"}]>"}
    ROOT z = f32[8,4] add(x, y) }
END
    run --separate-stderr ap-shard --mesh 2 -o /dev/null "$BATS_TEST_TMPDIR/sdy.json"
    [ "$status" -eq 0 ]
    [ "$stderr" = "ap-shard: warning: 2 imported shardings are in Shardy's form (#sdy), which is not read yet; they are dropped (the first: the sharding of x)" ]
}

@test "names, scopes and metadata decide nothing: ilp, rhino and tofu find the same plans without" {
    slow_with_sanitizers
    local model mesh algorithm doc
    for model in mlp gpt2l gpt2l_bf16 resnet moe t5 bert ff scan_gpt scan_mlp lstm; do
        mesh=2x2
        [[ $model != @(moe|t5|bert|scan_gpt) ]] || mesh=4 # ten times as quick
        bare "$(hlo $model)" | ap-import - | jq -c -f tests/strip.jq >"$BATS_TEST_TMPDIR/bare.json"
        for algorithm in ilp rhino tofu; do
            for doc in "$(imported $model)" "$BATS_TEST_TMPDIR/bare.json"; do
                ap-shard --pins ignore --mesh $mesh --algorithm $algorithm --cluster "$CLUSTERS/cpu-8.json" "$doc" |
                    jq '.sharding | .objective_sec, .lower_bound_sec' >"$doc.$algorithm"
                [ -s "$doc.$algorithm" ]
            done
            cmp "$(imported $model).$algorithm" "$BATS_TEST_TMPDIR/bare.json.$algorithm" ||
                { echo "$model $algorithm"; return 1; }
        done
    done
}
