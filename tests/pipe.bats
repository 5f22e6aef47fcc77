#!/usr/bin/env bats
# The filters together: pipes, determinism, what passes through, and bad input.

load helpers

# The filters that read a document, as commands that work on the document of a model.
filters=("ap-shard --mesh 2x2" ap-cost ap-rewrite)

@test "pipe: import | shard | cost | rewrite | exec -n 4 gives the losses of JAX" {
    needs_exec
    ap-import "$(hlo mlp)" | ap-shard --mesh 2x2 --cluster "$CLUSTERS/cpu-4.json" | ap-cost |
        ap-rewrite | ap-exec -n 4 --data "$MODELS/mlp/in" --steps 5 \
        --compare "$MODELS/mlp" --json >"$BATS_TEST_TMPDIR/run.json"
    jq -e '(.losses | length) == 5 and .compare.loss_error < 1e-5
        and .compare.params_error < 1e-4' "$BATS_TEST_TMPDIR/run.json"
}

@test "pipe: success is silent on standard error" {
    run --separate-stderr ap-import "$(hlo mlp)"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ]
    for f in "${filters[@]}"; do
        run --separate-stderr $f "$(sharded mlp 2x2)"
        [ "$status" -eq 0 ]
        [ -z "$stderr" ] || { echo "$f: $stderr"; return 1; }
    done
    needs_exec
    run --separate-stderr ap-exec -n 4 --data "$MODELS/mlp/in" "$(rewritten mlp 2x2)"
    [ "$status" -eq 0 ]
    [ -z "$stderr" ] || { echo "ap-exec: $stderr"; return 1; }
}

@test "pipe: every tool adds its sections and one entry of history" {
    ap-import "$(hlo mlp)" | ap-shard --mesh 2x2 --algorithm data | ap-cost | ap-rewrite \
        >"$BATS_TEST_TMPDIR/all.json"
    run jq -r 'keys_unsorted | join(" ")' "$BATS_TEST_TMPDIR/all.json"
    [ "$output" = "autopar graph cluster sharding cost program placement history" ]
    run jq -r '[.history[].tool] | join(" ")' "$BATS_TEST_TMPDIR/all.json"
    [ "$output" = "ap-import ap-shard ap-cost ap-rewrite" ]
    jq -e '.history[1].args == ["--mesh", "2x2", "--algorithm", "data"]' "$BATS_TEST_TMPDIR/all.json"
}

@test "pipe: same input, same bytes" {
    for step in "ap-import $(hlo gpt2l)" \
        "ap-shard --mesh 2x2 --cluster $CLUSTERS/cpu-4.json $(imported gpt2l)" \
        "ap-shard --mesh 2 --solver glpk --cluster $CLUSTERS/cpu-4.json $(imported resnet)" \
        "ap-cost $(sharded gpt2l 2x2)" "ap-rewrite $(sharded gpt2l 2x2)"; do
        cmp <($step) <($step) || { echo "$step"; return 1; }
    done
}

# A graph whose text is longer than a pipe holds.
long_blocks() {
    local doc="$BATS_FILE_TMPDIR/long.json"
    [ -f "$doc" ] || ap-model bert-256x2048 --layers 16 | ap-prune |
        ap-coarsen --cluster p3x8 --algorithm rannc --blocks 4 >"$doc"
    echo "$doc"
}

@test "pipe: of a long document the same comes out of pipes and of files" {
    doc=$(long_blocks)
    cd "$BATS_TEST_TMPDIR"
    stage="ap-stage --cluster h100-8 --algorithm equal-layer --stages 2 --microbatches 4 --jobs 2"
    for f in ap-prune "ap-coarsen --blocks 3" "ap-shard --mesh 2x2 --algorithm data" "$stage"; do
        $f <"$doc" >of-file
        $f < <(cat "$doc") | cat >of-pipe
        cmp of-file of-pipe || { echo "$f"; return 1; }
    done
    ap-cost <of-file >cost
    ap-cost < <(cat of-file) | cmp - cost
    ap-shard --mesh 2x2 --algorithm data <"$doc" >of-file
    ap-cost <of-file >cost
    ap-cost < <(cat of-file) | cmp - cost
}

@test "pipe: of a long graph that is wrong nothing is passed on" {
    doc=$(long_blocks)
    cd "$BATS_TEST_TMPDIR"
    set -o pipefail
    for f in ap-prune ap-coarsen ap-stage; do
        rc=0; sed 's/"phase":"update"/"phase":"later"/' "$doc" | $f 2>err | cat >out || rc=$?
        [ "$rc" -eq 1 ]
        grep -q 'phase' err
        [ ! -s out ]
        rc=0; sed 's/"phase":"update"/"phase":"later"/' "$doc" | $f -o made 2>err || rc=$?
        [ "$rc" -eq 1 ]
        [ ! -e made ]
        rc=0; sed 's/"phase":"update"/"phase":update/' "$doc" | $f 2>err | cat >out || rc=$?
        [ "$rc" -eq 1 ]
        [ "$(wc -l <err)" -eq 1 ] # and what comes behind the error is not looked at
        grep -q '<stdin>:' err
    done
}

@test "pipe: with a cluster that is not there nothing is passed on" {
    doc=$(long_blocks)
    cd "$BATS_TEST_TMPDIR"
    set -o pipefail
    echo '{"levels":3}' >wrong.json
    for cluster in nosuch wrong.json; do
        for f in "ap-coarsen --algorithm rannc" "ap-shard --mesh 2x4" ap-stage ap-cost; do
            rc=0; $f --cluster $cluster <"$doc" 2>err | cat >out || rc=$?
            [ "$rc" -eq 1 ] || { echo "$f: $rc"; return 1; }
            [ ! -s out ] || { echo "$f writes"; return 1; }
            grep -q "$cluster" err
        done
    done
}

@test "pipe: a document by name, by pipe and through -o is the same" {
    doc=$(imported mlp)
    ap-shard --mesh 4 "$doc" >"$BATS_TEST_TMPDIR/a"
    ap-shard --mesh 4 <"$doc" | cmp - "$BATS_TEST_TMPDIR/a"
    ap-shard --mesh 4 - <"$doc" | cmp - "$BATS_TEST_TMPDIR/a"
    run --separate-stderr ap-shard --mesh 4 -o "$BATS_TEST_TMPDIR/b" "$doc"
    [ "$status" -eq 0 ]
    [ -z "$output$stderr" ]
    cmp "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b"
}

@test "pipe: --no-history leaves the history alone, and a tool run twice changes nothing" {
    for f in "${filters[@]}"; do
        $f --no-history "$(sharded mlp 2x2)" >"$BATS_TEST_TMPDIR/once"
        $f --no-history "$BATS_TEST_TMPDIR/once" | cmp - "$BATS_TEST_TMPDIR/once"
        cmp <($f "$(sharded mlp 2x2)" | jq -c 'del(.history)') \
            <(jq -c 'del(.history)' "$BATS_TEST_TMPDIR/once")
        ! jq -e 'has("history")' "$BATS_TEST_TMPDIR/once" || return 1
    done
}

@test "pipe: unknown sections pass through byte for byte" {
    odd='"x-mine": { "b" :1.50e3,"a":[ ], "\u00e9\/":"\t" ,"n":123456789012345678901234567890}'
    sed "s|^{\"autopar\": *1|&,$(sed 's/[\\&|]/\\&/g' <<<"$odd")|" "$(sharded mlp 2x2)" \
        >"$BATS_TEST_TMPDIR/odd.json"
    grep -qF "$odd" "$BATS_TEST_TMPDIR/odd.json"
    for f in "${filters[@]}"; do
        $f "$BATS_TEST_TMPDIR/odd.json" | grep -qF "${odd#*: }" || { echo "$f"; return 1; }
    done
}

@test "pipe: rewrite without sharding makes the one-device program" {
    ap-rewrite "$(imported mlp)" >"$BATS_TEST_TMPDIR/one.json"
    jq -e '.program.n_ranks == 1 and .program.collectives == []' "$BATS_TEST_TMPDIR/one.json"
    needs_exec
    ap-exec --data "$MODELS/mlp/in" --steps 5 --compare "$MODELS/mlp" --json \
        "$BATS_TEST_TMPDIR/one.json" >"$BATS_TEST_TMPDIR/run.json"
    jq -e '.compare.loss_error < 1e-5 and .compare.params_error < 1e-4' "$BATS_TEST_TMPDIR/run.json"
}

@test "pipe: --stats prints one line of JSON on standard error" {
    run --separate-stderr ap-import --stats "$(hlo mlp)"
    jq -e '.tool == "ap-import" and .sec >= 0 and .peak_bytes > 0' <<<"$stderr"
    for f in "${filters[@]}"; do
        run --separate-stderr $f --stats "$(sharded mlp 2x2)"
        [ "${#stderr_lines[@]}" -eq 1 ]
        jq -e --arg tool "${f%% *}" '.tool == $tool and .sec >= 0 and .peak_bytes > 0' <<<"$stderr"
    done
}

@test "pipe: a reader that left ends each tool quietly by SIGPIPE, and leaves no file behind" {
    local doc dir=$BATS_TEST_TMPDIR left both
    doc=$(imported mlp)
    mkfifo "$dir/pipe"
    mkdir "$dir/tmp"
    # shellcheck disable=SC2094 # a pipe
    exec {both}<>"$dir/pipe" {left}>"$dir/pipe" {both}>&-
    ap-shard --mesh 2 --emit-problem "$dir/problem.json" -o "$dir/sharded.json" "$doc"
    ap-coarsen -o "$dir/blocks.json" "$doc"
    for f in "ap-import $(hlo mlp)" "ap-model mlp" "ap-prune $doc" "ap-coarsen $doc" \
        "ap-shard --mesh 2x2 $doc" "ap-solve $dir/problem.json" "ap-cost $doc" "ap-rewrite $doc" \
        "ap-stage --cluster cpu-4 --algorithm none --jobs 1" "ap-cost --help"; do
        TMPDIR=$dir/tmp run --separate-stderr bash -c 'cat "$1" | '"$f"' >&"$2"; exit "${PIPESTATUS[1]}"' \
            - "$dir/blocks.json" "$left"
        [ "$status" -eq 141 ] && [ -z "$stderr" ] || { echo "$f: $status $stderr"; return 1; }
    done
    [ -z "$(ls "$dir/tmp")" ]
}

@test "bad: a wrong format version is refused" {
    for f in "${filters[@]}"; do
        refuses 1 "version" $f <<<'{"autopar": 2, "graph": {}}'
        refuses 1 "autopar" $f <<<'{"graph": {}}'
    done
}

@test "bad: truncated, empty and non-object JSON name the place" {
    head -c 5000 "$(sharded mlp 2x2)" >"$BATS_TEST_TMPDIR/cut.json"
    for f in "${filters[@]}"; do
        refuses 1 "cut.json:" $f "$BATS_TEST_TMPDIR/cut.json"
        [[ $stderr =~ cut\.json:[0-9]+:[0-9]+ ]] || { echo "$stderr"; return 1; }
        refuses 1 "<stdin>" $f </dev/null
        refuses 1 "<stdin>:1:1" $f <<<'[1]'
        refuses 1 "<stdin>:1:20: expected an escape" $f < <(printf '{"autopar":1,"x":"\\\0"}')
        refuses 1 "<stdin>:1:" $f <<<'{"autopar": 1} x'
        refuses 1 "twice" $f <<<'{"autopar": 1, "graph": {}, "graph": {}}'
    done
}

@test "bad: NaN and infinities where a number belongs" {
    doc=$(sharded mlp 2x2)
    for value in NaN Infinity -Infinity 1e999; do
        sed "s/\"objective_sec\":[-+.0-9e]*/\"objective_sec\":$value/" "$doc" >"$BATS_TEST_TMPDIR/nan.json"
        ! cmp -s "$doc" "$BATS_TEST_TMPDIR/nan.json" || return 1
        for f in ap-cost ap-rewrite; do
            refuses 1 "nan.json" $f "$BATS_TEST_TMPDIR/nan.json"
        done
    done
}

@test "bad: a million nested brackets" {
    { printf '{"autopar":1,"x":'; head -c 1000000 /dev/zero | tr '\0' '['; } >"$BATS_TEST_TMPDIR/deep.json"
    for f in "${filters[@]}"; do
        refuses 1 "deep.json:1:" $f "$BATS_TEST_TMPDIR/deep.json"
    done
}

@test "bad: sections that are missing or of another graph" {
    refuses 1 "ap-import" ap-shard --mesh 2 <<<'{"autopar": 1}'
    refuses 1 "ap-import" ap-cost <<<'{"autopar": 1}'
    refuses 1 "ap-import" ap-rewrite <<<'{"autopar": 1}'
    jq -c --slurpfile other "$(sharded t5 2x2)" '.sharding = $other[0].sharding' \
        "$(sharded mlp 2x2)" >"$BATS_TEST_TMPDIR/other.json"
    for f in ap-cost ap-rewrite; do
        refuses 1 "/sharding" $f "$BATS_TEST_TMPDIR/other.json"
        refuses 1 "/sharding" $f <<<"$(jq -c '.sharding.groups[0].choice[0] = 99' "$(sharded mlp 2x2)")"
        refuses 1 "/sharding/lower_bound_sec: expected a number >= 0" \
            $f <<<"$(jq -c '.sharding.lower_bound_sec = -1' "$(sharded mlp 2x2)")"
    done
}

@test "bad: a graph with a dangling operand, a cycle, a wrong shape, an unknown operator" {
    doc=$(imported mlp)
    n=$(jq '.graph.nodes | length' "$doc")
    add=$(jq '[.graph.nodes[].op] | index("add")' "$doc")
    for change in ".in[0] = $n" ".in[0] = -1" ".in[0] = $add" ".shape = \"f32[3,3,3]\"" \
        '.op = "frobnicate"' '.in = [1]' '.shape = "f99[2]"'; do
        jq -c ".graph.nodes[$add] |= ($change)" "$doc" >"$BATS_TEST_TMPDIR/graph.json"
        for f in "${filters[@]}"; do
            refuses 1 "/graph/nodes/$add" $f "$BATS_TEST_TMPDIR/graph.json" ||
                { echo "$change"; return 1; }
        done
    done
}

@test "bad: a mesh that does not fit the cluster, or no mesh at all" {
    doc=$(imported mlp)
    refuses 3 "8" ap-shard --mesh 2x4 --cluster "$CLUSTERS/cpu-4.json" "$doc"
    refuses 2 "--mesh" ap-shard "$doc"
    for mesh in 2y4 0 2x 2x-1 99999999999999999999 2x2x2x2x2x2x2 a=2,a=2; do
        refuses 2 "--mesh" ap-shard --mesh "$mesh" "$doc"
    done
}

@test "bad: a program for 4 ranks does not run on 3" {
    needs_exec
    refuses 1 "4" ap-exec -n 3 --data "$MODELS/mlp/in" "$(rewritten mlp 2x2)"
    [[ $stderr == *3* ]]
    refuses 1 "program" ap-exec "$(imported mlp)"
}

@test "bad: options that do not exist, lack their value or have a wrong one" {
    for t in $(ap_tools); do
        refuses 2 "--frobnicate" "$t" --frobnicate
        refuses 2 "-o" "$t" -o
        refuses 2 "--stats" "$t" --stats=1
        [ "$t" != ap-model ] || continue # reads no file
        refuses 1 "/no/such/file" "$t" $([ "$t" != ap-shard ] || echo --mesh 2) \
            $([ "$t" != ap-plan ] || echo --cluster cpu-4) /no/such/file
    done
    refuses 2 "nonsense" ap-shard --mesh 2 --algorithm nonsense
    refuses 2 "more than one" ap-cost a b
}

@test "bad: did you mean: options, algorithms, models, clusters" {
    doc=$(imported mlp)
    refuses 2 "unknown option '--mess=2'; did you mean '--mesh'?" ap-shard --mess=2 "$doc"
    refuses 2 "unknown option '--verison'; did you mean '--version'?" ap-cost --verison
    refuses 2 "; did you mean 'megatron'?" ap-shard --mesh 2 --algorithm megtron "$doc"
    refuses 2 "no model 'gtp'; 'ap-model help' prints all names; did you mean 'gpt'?" ap-model gtp
    refuses 1 "lists the presets; did you mean 'cpu-4'?" ap-cost --cluster cpu4 "$doc"
    run --separate-stderr ap-shard --frobnicate "$doc"
    [ "$status" -eq 2 ]
    [[ $stderr != *"did you mean"* ]]
}

@test "pipe: after a tool that failed each later one says in a line that nothing came in" {
    run --separate-stderr bash -c 'ap-import /no/such/file | ap-grad | ap-prune | ap-shard --mesh 2 | ap-coarsen |
        ap-stage --cluster cpu-4 | ap-cost | ap-rewrite; echo "${PIPESTATUS[@]}"'
    [ "$output" = "1 1 1 1 1 1 1 1" ]
    [ "${#stderr_lines[@]}" -eq 8 ]
    [ "$(grep -c '<stdin>: the input is empty$' <<<"$stderr")" -eq 7 ]
    refuses 1 "ap-solve: <stdin>: the input is empty" ap-solve </dev/null
    needs_exec
    for n in "" "-n 2"; do
        run --separate-stderr ap-exec $n </dev/null
        [ "$status" -eq 1 ]
        [ "$stderr" = "ap-exec: <stdin>: the input is empty" ]
    done
}

@test "bad: binary input is not echoed" {
    cd "$BATS_TEST_TMPDIR"
    printf '\033[31mred\033[0m \001\002 = {' >esc
    head -c 4000 "$AP_BUILD/bin/ap-cost" >elf
    jq -c '.graph.nodes[3].op = "\u001b[31mred\u0007" | .graph.nodes[3].name = "\u009b"' "$(imported mlp)" >op.json
    for f in esc elf op.json; do
        for t in ap-import ap-cost ap-solve "ap-cost --cluster" "ap-shard --mesh 2 --plan"; do
            [[ $t == ap-import || $t != *" "* ]] || cp "$(imported mlp)" doc.json
            run --separate-stderr $t $f
            [ "$status" -eq 1 ] || [ "$status" -eq 2 ]
            [ "${#stderr}" -lt 1000 ]
            [ -z "$(tr -d '\n -~' <<<"$stderr")" ] || { echo "$t $f"; cat -v <<<"$stderr"; return 1; }
        done
    done
    refuses 1 "unknown operator '\\x1b[31mred\\x07'" ap-cost op.json
}

@test "pipe: -o writes to descriptors and through symbolic links" {
    doc=$(imported mlp)
    cd "$BATS_TEST_TMPDIR"
    ap-cost "$doc" >want
    # /dev/stdout is a link to what the shell has opened
    for path in /dev/stdout /dev/fd/1 /proc/self/fd/1; do
        { echo before; ap-cost -o "$path" "$doc"; echo behind; } >got
        { echo before; cat want; echo behind; } | cmp - got
        ap-cost -o "$path" "$doc" | cmp - want
    done
    ap-cost -o /dev/fd/7 "$doc" 7>got
    cmp got want
    [ -L /dev/stdout ]
    refuses 1 "/dev/fd/9: cannot write" ap-cost -o /dev/fd/9 "$doc"
    mkdir d
    echo old >d/real
    ln -s d/real link
    ln -s d/none dangling
    ap-cost -o link "$doc"
    [ -L link ] && cmp d/real want
    ap-cost -o dangling "$doc"
    [ -L dangling ] && cmp d/none want
    [ "$(find . -name '*.??????' | wc -l)" -eq 0 ]
    # and a failure leaves what is behind the link alone
    refuses 1 "" ap-cost -o link <<<'{"autopar": 1}'
    cmp d/real want
    ap-shard --mesh 2 --cluster cpu-4 "$doc" | ap-cost --trace link >/dev/null
    [ -L link ] && jq -e .traceEvents d/real >/dev/null
}

@test "bad: output that cannot be written is an error, and -o leaves the old file alone" {
    doc=$(imported mlp)
    run bash -c 'ap-cost "$1" >/dev/full' - "$doc"
    [ "$status" -eq 1 ]
    for f in "${filters[@]}"; do
        run bash -c "$f"' --stats "$1" 2>/dev/full >/dev/null' - "$doc"
        [ "$status" -eq 1 ]
    done
    refuses 1 "/no/such/folder" ap-cost -o /no/such/folder/x.json "$doc"
    mkdir "$BATS_TEST_TMPDIR/d"
    echo old >"$BATS_TEST_TMPDIR/d/keep"
    refuses 1 "" ap-cost -o "$BATS_TEST_TMPDIR/d/keep" <<<'{"autopar": 1}'
    [ "$(cat "$BATS_TEST_TMPDIR/d/keep")" = old ]
    [ "$(ls "$BATS_TEST_TMPDIR/d")" = keep ]
}

@test "bad: two outputs in one file" {
    doc=$(sharded mlp 2x2)
    cd "$BATS_TEST_TMPDIR"
    refuses 2 "--emit-problem and -o: both would write f" ap-shard --mesh 2 --emit-problem f -o f "$doc"
    touch f
    refuses 2 "--trace and -o: both would write ./f" ap-cost --trace ./f -o f "$doc"
    [ ! -s f ]
}

@test "bad: a shard command that is not there is one message" {
    ap-coarsen --quiet "$(imported mlp)" >"$BATS_TEST_TMPDIR/blocks"
    for command in no-such-tool "./no/such --serve" "$BATS_TEST_TMPDIR/blocks"; do
        run --separate-stderr ap-stage --cluster cpu-4 --shard-command "$command" "$BATS_TEST_TMPDIR/blocks"
        [ "$status" -eq 1 ]
        [ -z "$output" ]
        [ "$stderr" = "ap-stage: the shard command: ${command%% *}: not found" ]
    done
    # what the shell has to understand is left to it
    ap-stage --cluster cpu-4 --shard-command "'ap-shard' --serve" "$BATS_TEST_TMPDIR/blocks" >"$BATS_TEST_TMPDIR/plan"
}

@test "pipe: a shard command that neither reads nor answers is ended when its time is out" {
    cd "$BATS_TEST_TMPDIR"
    printf '#!/bin/sh\nexec sleep 60\n' >silent
    chmod +x silent
    ap-model bert-256x2048 --layers 60 | ap-coarsen --algorithm none >doc
    [ "$(stat -c %s doc)" -gt 5000000 ]
    rc=0
    ap-stage --time-out 1 --cluster p3x1 --shard-command ./silent < <(cat doc) >out 2>err || rc=$?
    [ "$rc" -eq 1 ]
    [ ! -s out ]
    grep -q 'gave no answer in 1 seconds' err
}

@test "pipe: -o and --trace write through symbolic links, which stay" {
    cd "$BATS_TEST_TMPDIR"
    mkdir there
    echo old >there/old
    ln -s there/old old
    ln -s there/new new # to what does not exist yet
    for f in old new; do
        ap-import --no-history -o $f "$(hlo mlp)"
        cmp $f "$(imported mlp)" && [ -L $f ]
        ap-cost -o /dev/null --trace $f "$(sharded mlp 2x2)"
        jq -e '.traceEvents | length > 0' there/$f && [ -L $f ]
    done
    [ "$(find there -type f -printf '%f\n' | sort | paste -sd' ')" = 'new old' ]
}

@test "pipe: a signal that ends a tool while it writes leaves no temporary file, and the old output" {
    cd "$BATS_TEST_TMPDIR"
    mkdir there
    echo old >there/graph.json
    run bash -c 'ulimit -c 0 -f 4; exec "$@"' bash ap-import -o there/graph.json "$(hlo mlp)"
    [ "$status" -eq 153 ] # SIGXFSZ, while the output is written
    [ "$(ls there)" = graph.json ]
    [ "$(cat there/graph.json)" = old ]
}

@test "bad: --plan takes documents of this version only" {
    for v in 2:'format version 2, this autopar reads version 1' '"1"':'is not a format version'; do
        jq -c --argjson v "${v%%:*}" '.autopar = $v' "$(sharded mlp 2x2)" >"$BATS_TEST_TMPDIR/plan.json"
        refuses 1 "${v#*:}" ap-shard --plan "$BATS_TEST_TMPDIR/plan.json" "$(imported mlp)"
    done
}
