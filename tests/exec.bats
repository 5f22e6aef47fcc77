#!/usr/bin/env bats
# ap-exec: options, data, output, failures. Programs come from ap-import and ap-rewrite.
# shellcheck disable=SC2154,SC2016 # status, output and stderr are bats'; the inner shell expands

load helpers

setup_file() {
    needs_exec
    ap-import "$(hlo mlp)" >"$BATS_FILE_TMPDIR/graph.json"
    ap-rewrite "$BATS_FILE_TMPDIR/graph.json" >"$BATS_FILE_TMPDIR/one.json"
    export ONE=$BATS_FILE_TMPDIR/one.json
}

# Numbers of an f32 .npy file with a header of 128 bytes, a line each.
floats() {
    tail -c +129 "$1" | od -An -v -tf4 -w4 | tr -d ' '
}

@test "exec: one line a step, and nothing on standard error" {
    run --separate-stderr ap-exec --data "$MODELS/mlp/in" --steps 3 "$ONE"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [ "${#lines[@]}" -eq 3 ]
    [[ ${lines[2]} =~ ^step\ 3\ loss\ [0-9.]+$ ]]
}

@test "exec: --quiet prints nothing" {
    run --separate-stderr ap-exec --quiet --data "$MODELS/mlp/in" "$ONE"
    [ "$status" -eq 0 ]
    [ -z "$output" ]
    [ -z "$stderr" ]
}

@test "exec: --json holds losses, times, bytes and the comparison" {
    ap-exec --json --data "$MODELS/mlp/in" --steps 5 --compare "$MODELS/mlp" "$ONE" |
        jq -e '.ranks == 1 and .steps == 5 and (.losses | length) == 5 and .sec_per_step > 0
            and .peak_bytes > 0 and .collectives == [] and .compare.loss_error < 1e-5'
}

@test "exec: -o takes what is printed at the end" {
    run ap-exec --json -o "$BATS_TEST_TMPDIR/run.json" --data "$MODELS/mlp/in" "$ONE"
    [ "$status" -eq 0 ]
    [ -z "$output" ]
    jq -e '.losses | length == 1' "$BATS_TEST_TMPDIR/run.json"
}

@test "exec: the same seed gives the same losses, another one others" {
    a=$(ap-exec --seed 1 --steps 2 "$ONE")
    [ "$a" = "$(ap-exec --seed 1 --steps 2 "$ONE")" ]
    [ "$a" != "$(ap-exec --seed 2 --steps 2 "$ONE")" ]
    [ "$(ap-exec --seed 0 --steps 2 "$ONE")" = "$(ap-exec --steps 2 "$ONE")" ]
}

@test "exec: --out writes whole arrays, which --data reads back" {
    out=$BATS_TEST_TMPDIR/out
    mkdir "$BATS_TEST_TMPDIR/in"
    ap-exec --quiet --data "$MODELS/mlp/in" --steps 2 --out "$out" "$ONE"
    ls "$out"/result_*.npy
    cp "$MODELS"/mlp/in/*.npy "$BATS_TEST_TMPDIR/in"
    for f in "$out"/[0-9]*.npy; do cp "$f" "$BATS_TEST_TMPDIR/in"; done
    three=$(ap-exec --data "$MODELS/mlp/in" --steps 3 "$ONE" | tail -n 1)
    again=$(ap-exec --data "$BATS_TEST_TMPDIR/in" --steps 1 "$ONE")
    [ "${three#step 3}" = "${again#step 1}" ]
}

@test "exec: a run that fails or is killed while it writes --out leaves the files of before" {
    cd "$BATS_TEST_TMPDIR"
    cp -r "$MODELS/mlp/in" in
    ap-exec --quiet --data in --steps 1 --out in "$ONE"
    cp -r in before
    small() { # OUT: not all arrays fit the limit of a file
        (ulimit -c 0 -f 12 && exec ap-exec --quiet --data in --steps 2 --out "$1" "$ONE")
    }
    trap '' XFSZ
    run -1 --separate-stderr small in
    [[ $stderr == "ap-exec: in/ap-exec-unfinished/"*": File too large" ]]
    diff -r before in
    run -1 --separate-stderr small new
    [ ! -e new ]
    trap - XFSZ
    run -153 --separate-stderr small in
    ls in/ap-exec-unfinished/0.npy
    diff -r -x ap-exec-unfinished before in
    for option in "--data in" "--data $MODELS/mlp/in --out in"; do
        # shellcheck disable=SC2086 # two words
        refuses 1 "in/ap-exec-unfinished: a run has not ended that writes these files" ap-exec $option "$ONE"
    done
    mv in/ap-exec-unfinished in/ap-exec-finished
    refuses 1 "in/ap-exec-finished: a run has not ended that moves these files" ap-exec --data in "$ONE"
    rm -r in/ap-exec-finished
    ap-exec --quiet --data in --steps 2 --out in "$ONE"
    ap-exec --quiet --data before --steps 2 --out new "$ONE"
    for f in new/*; do cmp "$f" "in/${f#new/}"; done
    [ -z "$(find . -name 'ap-exec-*')" ]
}

@test "exec: --verify on four ranks, and a tolerance that it breaks" {
    ap-shard --mesh 2x2 --cluster "$CLUSTERS/cpu-4.json" "$BATS_FILE_TMPDIR/graph.json" |
        ap-rewrite >"$BATS_TEST_TMPDIR/four.json"
    run --separate-stderr ap-exec -n 4 --steps 2 --verify --report "$BATS_TEST_TMPDIR/four.json"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    [[ $output == *"verify: losses max rel"* && $output == *"4 ranks, 2 steps"* ]]
    run --separate-stderr ap-exec -n 4 --quiet --steps 5 --verify --tolerance 1e-30 \
        "$BATS_TEST_TMPDIR/four.json"
    [ "$status" -eq 1 ]
    [[ $stderr == *"tolerance"* || $stderr == *"unpartitioned"* ]]
}

# A model's program on 2x2 ranks by Megatron's rule: partitioned NAME DOCUMENT
partitioned() {
    ap-shard --mesh 2x2 --algorithm megatron --cluster cpu-4 "$2" | ap-rewrite >"$BATS_TEST_TMPDIR/$1.json"
}

@test "exec: --verify compares what bf16 computes in parts of its change" {
    dir=$BATS_TEST_TMPDIR
    ap-import --no-history "$(hlo gpt2l_bf16)" >"$dir/graph.json"
    partitioned four "$dir/graph.json"
    for steps in 1 3; do
        run --separate-stderr ap-exec -n 4 --data "$MODELS/gpt2l_bf16/in" --steps $steps --verify "$dir/four.json"
        [ "$status" -eq 0 ]
        [ -z "$stderr" ]
        [[ ${lines[-1]} =~ ^verify:\ of\ 107\ tensors,\ 1\ within\ 1e-4\;\ [0-9]+\ by\ bf16\ within\ 1\ % ]]
    done
    # of one rank everything is the same; with a tolerance it is that of every tensor
    ap-rewrite "$dir/graph.json" | ap-exec --verify --json |
        jq -e '.verify | .full + .low == 107 and .rounding == [] and .decided_by_rounding == []'
    run --separate-stderr ap-exec -n 4 --quiet --verify --tolerance 1e-4 "$dir/four.json"
    [ "$status" -eq 1 ]
    [[ $stderr == *"unpartitioned"* || $stderr == *"tolerance 0.0001"* ]]
}

@test "exec: --verify names gradients that are zero up to rounding" {
    dir=$BATS_TEST_TMPDIR
    # what a key's bias adds to a row of a softmax is the same for all of the row
    ap-model gpt --layers 2 --hidden 32 --heads 4 --vocab 64 --seq 8 --batch 8 >"$dir/gpt.json"
    partitioned four "$dir/gpt.json"
    ap-exec -n 4 --seed 1 --int-range 64 --steps 4 --verify --json "$dir/four.json" |
        jq -e '.verify | .low == 0 and .rounding == [] and .full == 104 and .params_error < 1e-5 and
            (.decided_by_rounding | length == 6 and all(test("attn/k/b")))'
    run --separate-stderr ap-exec -n 4 --seed 1 --int-range 64 --steps 4 --verify --quiet "$dir/four.json"
    [ "$status" -eq 0 ]
    [[ $output == *"; 6 whose gradient is zero up to rounding, or lost in it: gpt/h_0/attn/k/b, "* ]]
}

@test "exec: --verify says where only the whole gradient overflows, so that only that step is skipped" {
    ap-model gpt --layers 1 --hidden 32 --heads 4 --seq 16 --vocab 64 --batch 8 --dtype f16 --master-weights \
        --loss-scale 180000 | ap-shard --mesh 4 --algorithm data | ap-rewrite -o "$BATS_TEST_TMPDIR/four.json"
    run --separate-stderr ap-exec -n 4 --quiet --seed 1 --verify "$BATS_TEST_TMPDIR/four.json"
    [ "$status" -eq 1 ]
    [[ $stderr == *"parameter 2 (gpt/wte): changes by "*"does not change in the unpartitioned graph (gradients in f16 "* ]]
}

@test "exec: --verify finds planted faults in f32 and in bf16" {
    dir=$BATS_TEST_TMPDIR
    ap-model gpt --layers 2 --hidden 32 --heads 4 --vocab 64 --seq 8 --batch 8 >"$dir/f32.json"
    ap-import --no-history "$(hlo gpt2l_bf16)" >"$dir/bf16.json"
    partitioned f32_four "$dir/f32.json"
    partitioned bf16_four "$dir/bf16.json"
    for m in f32 bf16; do
        # a sum over ranks that is left out, backward and forward; a learning rate; a weight's layout
        for fault in 'at("all-reduce"; "backward")[-1] as $i | .nodes[$i] |= (.op = "copy" | del(.axes, .red))' \
            'at("all-reduce"; "forward")[0] as $i | .nodes[$i] |= (.op = "copy" | del(.axes, .red))' \
            '[at("constant"; "update")[] as $i | select(.nodes[$i].value == 0.001) | $i][-1] as $i | .nodes[$i].value = 0.0011' \
            'at("parameter"; "forward") as $p | [$p[] as $i | select(.nodes[$i].layout == ["R", "S1"]) | $i][0] as $i |
                .nodes[$i].layout |= reverse'; do
            fault="def at(\$op; \$phase): [.nodes | to_entries[] | select(.value.op == \$op and .value.phase == \$phase).key]; $fault"
            jq -c ".program.modules[0].graph |= ($fault)" "$dir/${m}_four.json" >"$dir/bad.json"
            ! cmp -s "$dir/bad.json" "$dir/${m}_four.json" || { echo "changes nothing: $fault"; return 1; }
            run --separate-stderr ap-exec -n 4 --seed 1 --int-range 64 --steps 2 --quiet --verify "$dir/bad.json"
            [ "$status" -eq 1 ] && [[ $stderr == *"unpartitioned"* || $stderr == *"tolerance"* ]] ||
                { echo "$m: $fault: $status $stderr"; return 1; }
        done
    done
}

@test "exec: a program for more ranks than there are, or fewer" {
    run --separate-stderr ap-exec -n 2 "$ONE"
    [ "$status" -eq 1 ]
    [ -z "$output" ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == *"one.json: the program is for 1 rank, this job has 2: run it with -n 1" ]]
    refuses 1 "the program is for 1 rank, this job has 2" ap-exec --check -n 2 "$ONE"
    refuses 2 "--check: runs no step, which --out needs" ap-exec --check --out "$BATS_TEST_TMPDIR" "$ONE"
    refuses 2 "--check: runs no step, which --verify needs" ap-exec --check --verify "$ONE"
    refuses 2 "--check: runs no step, which --report needs" ap-exec --check --report "$ONE"
    refuses 2 "--check: runs no step, which --data needs" ap-exec --check --data "$MODELS/mlp/in" "$ONE"
    ap-exec --check -n 1 "$ONE"
}

@test "exec: a document without a program says what to do" {
    run --separate-stderr ap-exec "$BATS_FILE_TMPDIR/graph.json"
    [ "$status" -eq 1 ]
    [[ $stderr == *"ap-rewrite"* ]]
}

@test "exec: data that is missing, of another shape or no .npy file is named" {
    in=$BATS_TEST_TMPDIR/in
    cp -r "$MODELS/mlp/in" "$in"
    rm "$in/0.npy"
    run --separate-stderr ap-exec --data "$in" "$ONE"
    [ "$status" -eq 1 ]
    [[ $stderr == *"parameter 0 "*"0.npy: No such file"* ]]
    ap-exec --quiet --seed 1 --data "$in" "$ONE"
    cp "$in/1.npy" "$in/0.npy"
    run --separate-stderr ap-exec --data "$in" "$ONE"
    [ "$status" -eq 1 ]
    [[ $stderr == *"0.npy: expected f32["*"got f32["* ]]
    echo nonsense >"$in/0.npy"
    run --separate-stderr ap-exec --data "$in" "$ONE"
    [ "$status" -eq 1 ]
    [[ $stderr == *"0.npy: not a .npy file"* ]]
    head -c 200 "$MODELS/mlp/in/0.npy" >"$in/0.npy"
    run --separate-stderr ap-exec --data "$in" "$ONE"
    [ "$status" -eq 1 ]
    [[ $stderr == *"0.npy: truncated"* ]]
}

@test "exec: --small-ints gives small integers" {
    ap-exec --quiet --small-ints --seed 3 --out "$BATS_TEST_TMPDIR/out" \
        <(printf '%s' '{"autopar":1,"graph":{"name":"g","nodes":[
            {"op":"parameter","name":"w","param":0,"role":"weight","shape":"f32[64]"},
            {"op":"negate","name":"n","in":[0],"shape":"f32[64]"}],
            "results":[{"node":1,"role":"weight","alias":0}],"reducers":[]}}' | ap-rewrite)
    floats "$BATS_TEST_TMPDIR/out/0.npy" | awk '
        { if ($1 != int($1) || $1 < -2 || $1 > 2) bad = 1; seen[$1 + 0] = 1 }
        END { n = 0; for (v in seen) n++; exit bad || NR != 64 || n != 5 }'
}

@test "exec: a type that it does not run is refused by name" {
    printf '%s' '{"autopar":1,"graph":{"name":"g","nodes":[
        {"op":"parameter","name":"w","param":0,"role":"weight","shape":"c128[4]"},
        {"op":"negate","name":"n","in":[0],"shape":"c128[4]"}],
        "results":[{"node":1,"role":"weight","alias":0}],"reducers":[]}}' |
        ap-rewrite >"$BATS_TEST_TMPDIR/c128.json"
    run --separate-stderr ap-exec "$BATS_TEST_TMPDIR/c128.json"
    [ "$status" -eq 2 ]
    [ -z "$output" ]
    [[ $stderr == *"c128: not supported yet"* ]]
}

@test "exec: a constant whose values the text left out is refused by name" {
    cat >"$BATS_TEST_TMPDIR/t.hlo" <<'HLO'
HloModule t
ENTRY main {
  p = f32[4] parameter(0)
  table = f32[4] constant({...})
  ROOT r = f32[4] add(p, table)
}
HLO
    ap-import "$BATS_TEST_TMPDIR/t.hlo" | ap-rewrite >"$BATS_TEST_TMPDIR/t.json"
    run --separate-stderr ap-exec "$BATS_TEST_TMPDIR/t.json"
    [ "$status" -eq 1 ]
    [ -z "$output" ]
    [[ $stderr == *table* ]]
}

@test "exec: output that cannot be written is an error, on four ranks too" {
    [ -e /dev/full ] || skip "no /dev/full"
    run --separate-stderr bash -c 'ap-exec "$1" >/dev/full' - "$ONE"
    [ "$status" -eq 1 ]
    [ "$stderr" = "ap-exec: cannot write to standard output: No space left on device" ]
    ap-shard --mesh 4 --cluster "$CLUSTERS/cpu-4.json" "$BATS_FILE_TMPDIR/graph.json" |
        ap-rewrite >"$BATS_TEST_TMPDIR/four.json"
    run --separate-stderr bash -c 'ap-exec -n 4 "$1" >/dev/full' - "$BATS_TEST_TMPDIR/four.json"
    [ "$status" -eq 1 ]
    [ "$stderr" = "ap-exec: cannot write to standard output: No space left on device" ]
}

@test "exec: files that --trace, --profile and -o cannot write are named before the first step" {
    cd "$BATS_TEST_TMPDIR"
    mkdir dir
    local o
    for o in "--trace no/x" "--profile no/x" "--json -o no/x" "--trace dir" "--trace dir/no/x"; do
        # shellcheck disable=SC2086 # several words
        run --separate-stderr ap-exec $o "$ONE"
        [ "$status" -eq 1 ] && [ -z "$output" ] && [[ $stderr == "ap-exec: ${o##* }: cannot write: "* ]] || { echo "$o: $status $stderr"; return 1; }
    done
    # behind it, one message: not of ranks that mpirun then ends
    run --separate-stderr ap-exec -n 2 --quiet --trace /dev/full "$(rewritten mlp 2)"
    [ "$status" -eq 1 ]
    [ "$stderr" = "ap-exec: /dev/full: cannot write: No space left on device" ]
    refuses 2 "--trace and --profile: both would write x" ap-exec --trace x --profile x "$ONE"
    refuses 2 "--trace and --profile: both would write x" ap-exec --trace x --profile ./x "$ONE"
    refuses 2 "--trace and --profile: both would write -" ap-exec --trace - --profile - "$ONE"
    refuses 2 "--trace: expected a file" ap-exec --trace "" "$ONE"
    # the input is not destroyed
    cp "$ONE" one.json
    refuses 2 "--trace: one.json is the input" ap-exec --trace one.json ./one.json
    refuses 2 "--profile: ./one.json is the input" ap-exec --profile ./one.json one.json
    refuses 2 "-o: one.json is the input" ap-exec --json -o "$PWD/one.json" one.json
    refuses 1 "--out one.json: Not a directory" ap-exec --out one.json one.json
    cmp one.json "$ONE"
    refuses 1 "no/x: cannot write: No such file" ap-shard --mesh 2 -o no/x /dev/null
    # a link to what does not exist yet is none of these
    ln -s new link
    ap-exec --quiet --trace link "$ONE"
    jq -e .traceEvents new >/dev/null
}

@test "exec: --compare only reports without --tolerance and fails with it" {
    want=$BATS_TEST_TMPDIR/want
    cp -r "$MODELS/mlp" "$want"
    compare=(ap-exec --quiet --data "$MODELS/mlp/in" --steps 5 --compare "$want")
    "${compare[@]}" --tolerance 1e-4 "$ONE"
    for k in losses param state; do
        rm -rf "$want" && cp -r "$MODELS/mlp" "$want"
        case $k in
        losses) file=$want/losses.npy ;;
        *) file=$want/out/$(jq -r --arg k "$k" '[.graph.nodes[] | select(.op == "parameter"
            and .role == (if $k == "param" then "weight" else $k end))][0].param' "$ONE").npy ;;
        esac
        # one element of another size: its last byte holds sign and exponent
        printf '\x45' | dd of="$file" bs=1 seek=131 conv=notrunc status=none
        "${compare[@]}" "$ONE"
        run --separate-stderr "${compare[@]}" --tolerance 1e-4 "$ONE"
        [ "$status" -eq 1 ]
        [[ $stderr == "ap-exec: $k"*"relative error"*"tolerance 0.0001" ]]
    done
}

@test "exec: folders of --compare and --out are looked at before the first step" {
    dir=$BATS_TEST_TMPDIR
    early() { # TEXT OPTION...: says so at once
        run --separate-stderr ap-exec --data "$MODELS/mlp/in" --steps 5 "${@:2}" "$ONE"
        [ "$status" -eq 1 ] && [ -z "$output" ] && [[ $stderr == *"$1"* ]] ||
            { echo "${*:2}: $status $output $stderr"; return 1; }
    }
    early "/none/losses.npy: No such file" --compare "$dir/none"
    early "losses.npy: holds 5 losses, 6 steps were asked for" --compare "$MODELS/mlp" --steps 6
    cp -r "$MODELS/mlp" "$dir/want"
    k=$(jq '[.graph.nodes[] | select(.role == "weight")][0].param' "$ONE")
    rm "$dir/want/out/$k.npy"
    early "want/out/$k.npy: No such file" --compare "$dir/want"
    early "--out $dir/no/out: No such file" --out "$dir/no/out"
    touch "$dir/file"
    early "--out $dir/file: Not a directory" --out "$dir/file"
    jq -c 'del(.graph)' "$ONE" >"$dir/bare.json"
    run --separate-stderr ap-exec --verify "$dir/bare.json"
    [ "$status" -eq 1 ]
    [ -z "$output" ]
    [[ $stderr == *'bare.json: --verify: no section "graph"'* ]]
    cd "$dir"
    ap-exec --quiet --data "$MODELS/mlp/in" --out made/ "$ONE" && [ -s "made/$k.npy" ]
    ap-exec --quiet --data "$MODELS/mlp/in" --out made "$ONE"
}

@test "exec: rank 0 reads the document and the data, the others get their parts" {
    dir=$BATS_TEST_TMPDIR
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    ap-shard --mesh 2x2 --algorithm megatron --cluster cpu-4 "$BATS_FILE_TMPDIR/graph.json" |
        ap-rewrite >"$dir/four.json"
    mkdir "$dir/first" "$dir/others"
    cp -r "$MODELS/mlp/in" "$dir/first/in"
    cp "$dir/four.json" "$dir/first"
    run=(ap-exec --data in --steps 5 --compare "$MODELS/mlp" --tolerance 1e-4 --verify four.json)
    mpirun -q --oversubscribe -n 1 -wdir "$dir/first" "${run[@]}" : -n 3 -wdir "$dir/others" "${run[@]}"
    # what is wrong with a file is said once
    k=$(jq '[.graph.nodes[] | select(.role == "weight")][0].param' "$dir/four.json")
    echo nonsense >"$dir/first/in/$k.npy"
    run --separate-stderr mpirun -q --oversubscribe -n 1 -wdir "$dir/first" "${run[@]}" : -n 3 \
        -wdir "$dir/others" "${run[@]}"
    [ "$status" -eq 1 ]
    [ -z "$output" ]
    [ "$(grep -c "$k.npy: not a .npy file" <<<"$stderr")" -eq 1 ]
}

@test "exec: NaN is out of tolerance, and nothing compared is called none" {
    graph='{"autopar":1,"graph":{"name":"g","nodes":[
        {"op":"parameter","name":"w","param":0,"role":"weight","shape":"f32[4]"},
        {"op":"subtract","name":"d","in":[0,0],"shape":"f32[4]"},
        {"op":"divide","name":"n","in":[1,1],"shape":"f32[4]"}],
        "results":[{"node":2RESULT}],"reducers":[]}}'
    ap-rewrite <<<"${graph/RESULT/,\"role\":\"weight\",\"alias\":0}" >"$BATS_TEST_TMPDIR/nan.json"
    run --separate-stderr ap-exec --quiet --verify "$BATS_TEST_TMPDIR/nan.json"
    [ "$status" -eq 1 ]
    [[ $stderr == *"parameter 0 (w): relative error inf"* ]]
    ap-rewrite <<<"${graph/RESULT/}" | sed 's/"divide"/"add"/' >"$BATS_TEST_TMPDIR/none.json"
    run --separate-stderr ap-exec --quiet --verify "$BATS_TEST_TMPDIR/none.json"
    [ "$status" -eq 0 ]
    [ "$output" = "verify: losses max rel none, params rel norm none, states rel norm none" ]
}

@test "exec: -n that differs from the job's size, a tolerance below 0" {
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    run --separate-stderr mpirun -q --oversubscribe -n 4 ap-exec -n 2 "$ONE"
    [ "$status" -eq 2 ]
    [ -z "$output" ]
    [ "$stderr" = "ap-exec: -n 2: this job has 4 ranks" ]
    run --separate-stderr ap-exec --verify --tolerance -1 "$ONE"
    [ "$status" -eq 2 ]
    [[ $stderr == *"--tolerance: expected a number >= 0, got -1"* ]]
}

@test "exec: --stats on four ranks is one line" {
    ap-shard --mesh 4 --cluster "$CLUSTERS/cpu-4.json" "$BATS_FILE_TMPDIR/graph.json" |
        ap-rewrite >"$BATS_TEST_TMPDIR/four.json"
    run --separate-stderr ap-exec -n 4 --quiet --stats "$BATS_TEST_TMPDIR/four.json"
    [ "$status" -eq 0 ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    jq -e .sec <<<"$stderr"
}

@test "exec: without CUDA, --backend cuda says why and auto takes the CPU" {
    [ -z "${AP_TEST_BACKEND-}" ] || skip "compares with the CPU"
    export AP_CUDA_LIBRARY=/nonexistent/ap_cuda.so
    refuses 1 "cuda: /nonexistent/ap_cuda.so: cannot open" ap-exec --backend cuda "$ONE"
    refuses 1 "cuda: /nonexistent/ap_cuda.so: cannot open" ap-exec -n 2 --backend cuda "$ONE"
    refuses 1 "cannot open" ap-exec --cuda-compile sm_90 "$ONE"
    refuses 2 "expected an architecture like sm_90" ap-exec --cuda-compile 90 "$ONE"
    refuses 2 "--f32-matmul" ap-exec --f32-matmul half "$ONE"
    [ "$(ap-exec --backend auto --no-graph-capture --f32-matmul tf32 "$ONE" 2>"$BATS_TEST_TMPDIR/err")" = \
        "$(ap-exec "$ONE")" ]
    grep -q "the CPU computes" "$BATS_TEST_TMPDIR/err"
    [ "$(wc -l <"$BATS_TEST_TMPDIR/err")" -eq 1 ]
}

@test "exec: --int-range bounds seeded integer inputs; --backend names what computes" {
    printf '%s' '{"autopar":1,"graph":{"name":"g","nodes":[
        {"op":"parameter","name":"i","param":0,"role":"input","shape":"s32[64]"},
        {"op":"convert","name":"f","in":[0],"shape":"f32[64]"}],"results":[{"node":1}],"reducers":[]}}' |
        ap-rewrite >"$BATS_TEST_TMPDIR/ints.json"
    ap-exec --quiet --backend cpu --int-range 7 --out "$BATS_TEST_TMPDIR/out" "$BATS_TEST_TMPDIR/ints.json"
    floats "$BATS_TEST_TMPDIR/out/result_0.npy" | awk '
        { if ($1 != int($1) || $1 < 0 || $1 > 6) bad = 1; seen[$1 + 0] = 1 }
        END { n = 0; for (v in seen) n++; exit bad || NR != 64 || n != 7 }'
    ap-exec --json --backend cpu "$BATS_TEST_TMPDIR/ints.json" | jq -e '.backend == "cpu"'
    refuses 2 "--backend" ap-exec --backend abacus "$BATS_TEST_TMPDIR/ints.json"
}

@test "README of cmd/ap-exec: the worked example's program, losses and values" {
    local dir=$BATS_TEST_TMPDIR readme=cmd/ap-exec/README.md
    cd "$dir"
    sed -n '/^```hlo/,/^```$/p' "$AP_TOP/$readme" | grep -v '^```' >step.hlo
    bash -euo pipefail -c "$(sed -n '/^```sh/,/^```$/p' "$AP_TOP/$readme" | grep -v '^```')" >out
    cmp out <(sed -n '/^step 1 loss/,/^verify/p' "$AP_TOP/$readme")
    # the table: groups and buffers of the program ...
    jq -r '.program.modules[0] | .buffers.offset as $at | .graph.nodes | to_entries[] |
        select(.value.name | IN("y", "s", "loss", "g", "new") or test("all-reduce")) |
        "\(.value.group) \($at[.key])"' run.json >places
    sed -nE 's/^\| ([0-9]+) \| [^|]* \| ([0-9]+) \|.*/\1 \2/p' "$AP_TOP/$readme" | cmp - places
    # ... and what both ranks compute: rows 0, 1 and 2, 3 of one device
    {
        grep -vE 'ROOT t|^}$' step.hlo
        echo 'xs = f32[2,2,2] reshape(x)  ys = f32[2,2] reshape(y)  ss = f32[2,2] reshape(s)
            gs = f32[2,2] dot(xs, ys), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_contracting_dims={1}
            ls = f32[2] reduce(ss, zero), dimensions={1}, to_apply=add
            ROOT t = (f32[2], f32[], f32[4], f32[4], f32[2,2], f32[2], f32[2]) tuple(new, loss, y, s, gs, ls, g) }'
    } >parts.hlo
    ap-import --quiet parts.hlo | ap-rewrite | ap-exec --quiet --small-ints --seed 2 --out out.d
    row() { floats "out.d/$1.npy" | tr '\n' ' '; }
    [ "$(row 1)" = "-0.5 1 " ]
    [ "$(row result_1)$(row result_6)" = "80 -24 16 " ]
    [ "$(row result_2)$(row result_3)" = "8 0 -4 0 64 0 16 0 " ]
    [ "$(row result_4)$(row result_5)" = "-16 16 -8 0 64 16 " ]
}

@test "exec: rank 0 reads parts of files: its memory grows with its part, not with an array" {
    # one weight of 64 MiB, of which each of 4 ranks has a quarter
    echo '{"mesh": "4", "nodes": {"new": "S0", "params*": "S0"}}' >"$BATS_TEST_TMPDIR/plan"
    ap-import - <<'END' | ap-shard --quiet --plan "$BATS_TEST_TMPDIR/plan" --cluster cpu-4 | ap-rewrite >"$BATS_TEST_TMPDIR/p.json"
HloModule step, input_output_alias={ {0}: (0, {}, may-alias) }
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY e {
  w = f32[4096,4096] parameter(0), metadata={op_name="params['w']"}
  half = f32[] constant(0.5)
  halves = f32[4096,4096] broadcast(half), dimensions={}
  new = f32[4096,4096] multiply(w, halves)
  zero = f32[] constant(0)
  loss = f32[] reduce(new, zero), dimensions={0,1}, to_apply=sum
  ROOT out = (f32[4096,4096], f32[]) tuple(new, loss)
}
END
    mkdir "$BATS_TEST_TMPDIR/in"
    {
        printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "{'descr': '<f4', 'fortran_order': False, 'shape': (4096, 4096), }"
        head -c $((64 << 20)) /dev/zero
    } >"$BATS_TEST_TMPDIR/in/0.npy"
    [ "$(stat -c %s "$BATS_TEST_TMPDIR/in/0.npy")" -eq $((128 + (64 << 20))) ]
    jq -e '.program.modules[0].graph.nodes[] | select(.op == "parameter") | .shape | test("1024")' "$BATS_TEST_TMPDIR/p.json"
    run --separate-stderr ap-exec -n 4 --data "$BATS_TEST_TMPDIR/in" --stats "$BATS_TEST_TMPDIR/p.json"
    [ "$status" -eq 0 ]
    [ "$output" = 'step 1 loss 0' ]
    start=$(ap-exec -n 4 --data "$MODELS/mlp/in" --stats --quiet "$(rewritten mlp 4 data)" 2>&1 | jq .peak_bytes)
    # parameter, new value and what is read: three quarters, and not one array more
    jq -e --argjson start "$start" '.peak_bytes - $start < 3.5 * 16777216' <<<"$stderr"
}

# The losses of a run: losses OPTION...
losses() {
    ap-exec "$@" | sed -n 's/.* loss //p'
}

# Whether two lists of losses are those of one training: close A B
close() {
    paste "$1" "$2" | awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!($2 > 0) || d > 1e-5) bad = 1 }
        END { exit bad || NR == 0 }'
}

@test "exec: 3 steps on 4 ranks, 3 more on 1, 6 and 8 under other plans: the losses of one" {
    local plan n
    cd "$BATS_TEST_TMPDIR"
    ap-rewrite "$(imported mlp)" >one.json
    ap-prune "$(imported mlp)" | ap-coarsen --blocks 2 --eps 1 |
        ap-stage --stages 2 --microbatches 2 --cluster cpu-8 | ap-rewrite >staged.json
    losses --data "$MODELS/mlp/in" --steps 6 one.json >one
    losses -n 4 --data "$MODELS/mlp/in" --steps 3 --out done "$(rewritten mlp 2x2)" >first
    cp -n "$MODELS/mlp/in/"*.npy done
    for plan in one.json "$(rewritten mlp 8 zero3)" "$(rewritten mlp 2x4 megatron)" staged.json; do
        n=$(ap-exec --check --json "$plan" | jq .ranks)
        losses -n "$n" --data done --steps 3 --out "done.$n" "$plan" >rest
        cat first rest >six
        close six one
    done
    # and from the pipeline, the last of these, back to four ranks
    losses -n "$n" --data "$MODELS/mlp/in" --steps 3 --out staged staged.json >first
    cp -n "$MODELS/mlp/in/"*.npy staged
    losses -n 4 --data staged --steps 3 "$(rewritten mlp 2x2)" >rest
    cat first rest >six
    close six one
}

@test "exec: what is bf16 or a stack of layers goes on from the files of --out" {
    cd "$BATS_TEST_TMPDIR"
    ap-import - <<'END' | ap-rewrite >bf16.json
HloModule step, input_output_alias={ {0}: (0, {}, may-alias) }
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY e {
  w = bf16[8] parameter(0), metadata={op_name="params['w']"}
  third = bf16[] constant(0.333)
  thirds = bf16[8] broadcast(third), dimensions={}
  new = bf16[8] multiply(w, thirds)
  wide = f32[8] convert(new)
  zero = f32[] constant(0)
  loss = f32[] reduce(wide, zero), dimensions={0}, to_apply=sum
  ROOT out = (bf16[8], f32[]) tuple(new, loss)
}
END
    ap-exec --seed 1 --quiet --out out bf16.json
    [ "$(losses --seed 1 --steps 2 bf16.json | tail -n 1)" = "$(losses --seed 1 --data out bf16.json)" ]
    jq -c '([.graph.nodes[] | select(.op == "parameter").name | sub("layers/[0-9]+/"; "")] |
            reduce .[] as $n ([]; if index($n) then . else . + [$n] end)) as $names |
        (.graph.nodes[] | select(.op == "parameter")) |= ((.name | capture("layers/(?<l>[0-9]+)/").l // null)
            as $l | (.name | sub("layers/[0-9]+/"; "")) as $n | .argument = ({index: ($names | index($n))} +
            if $l then {dim: (if .shape == "f32[32,32]" then 1 else 0 end), part: ($l | tonumber), parts: 3}
            else {} end))' "$(imported scan_mlp)" >stacked.json
    ap-shard --mesh 2x2 --algorithm zero3 --cluster cpu-4 stacked.json | ap-rewrite >four.json
    ap-exec -n 4 --seed 1 --steps 2 --quiet --out stack four.json
    [ "$(losses -n 4 --seed 1 --steps 3 four.json | tail -n 1)" = "$(losses -n 4 --seed 1 --data stack four.json)" ]
}

@test "exec: --batches reads the inputs of each step, on any plan" {
    cd "$BATS_TEST_TMPDIR"
    local k inputs plan
    ap-prune "$(imported mlp)" | ap-coarsen --blocks 2 --eps 1 |
        ap-stage --stages 2 --microbatches 2 --cluster cpu-8 | ap-rewrite >staged.json
    inputs=$(jq -r '.graph.nodes[] | select(.op == "parameter" and .role == "input").param' "$(imported mlp)")
    # batch 2 has the first half of batch 1 twice
    for k in $inputs; do
        mkdir -p b/1 b/2
        cp "$MODELS/mlp/in/$k.npy" "b/1/$k.npy"
        /usr/bin/python3 - "$MODELS/mlp/in/$k.npy" "b/2/$k.npy" <<'END'
import sys
raw = open(sys.argv[1], "rb").read()
half = (len(raw) - 128) // 2
open(sys.argv[2], "wb").write(raw[:128] + raw[128:128 + half] * 2)
END
    done
    losses --data "$MODELS/mlp/in" --batches b --steps 4 "$ONE" >four
    losses --data "$MODELS/mlp/in" --steps 4 "$ONE" >same
    [ "$(head -n 1 four)" = "$(head -n 1 same)" ]
    run ! diff -q <(sed -n 2p four) <(sed -n 2p same)
    for plan in "$(rewritten mlp 2x2)" staged.json; do
        k=$(ap-exec --check --json "$plan" | jq .ranks)
        losses -n "$k" --data "$MODELS/mlp/in" --batches b --steps 4 --verify "$plan" >some
        close some four
    done
}

@test "exec: --batches without a folder, or without a file of an input, is refused" {
    cd "$BATS_TEST_TMPDIR"
    refuses 1 "none/1: no such folder" ap-exec --batches none "$ONE"
    mkdir -p empty/1
    refuses 1 "empty/1: has no K.npy of an input" ap-exec --batches empty "$ONE"
}
