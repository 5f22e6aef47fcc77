#!/usr/bin/env bats
# What searches show on a terminal, which script(1) is, and that they show nothing in a pipe.

load helpers

# on_terminal FILE COMMAND: the command's terminal session
on_terminal() {
    command -v script >/dev/null || skip "no script(1)"
    script -qec "$2" /dev/null >"$1" </dev/null
}

# The line is rewritten in place, and taken away at last: no session ends in one.
taken_away() {
    [ "$(tr '\r' '\n' <"$1" | grep -c $'\e\[K')" -ge 2 ]
    tr '\r' '\n' <"$1" | grep $'\e\[K' | tail -n 1 | grep -qE $'^(ap-[a-z]*: .*)?\e\\[K'
    run ! grep -qE "ap-[a-z]+: [^$(printf '\r')]*, [0-9]+ s$(printf '\r')?\$" "$1"
}

# late TOOL: a folder with the tool, whose input comes two seconds after its start, and ap-plan over it. Nothing
# is shown in the first second, and most is over then.
late() {
    local dir=$BATS_TEST_TMPDIR/late
    mkdir -p "$dir"
    printf '#!/bin/sh\n{ sleep 2; cat; } | exec "%s" "$@"\n' "$AP_BUILD/bin/$1" >"$dir/$1"
    cp "$AP_BUILD/bin/ap-plan" "$dir"
    chmod +x "$dir/$1"
    echo "$dir"
}

@test "progress: ap-shard says the price so far; in a pipe nothing" {
    local late
    late="$(late ap-shard)/ap-shard --mesh 2x2 --cluster $CLUSTERS/cpu-8.json -o /dev/null <$(imported gpt2l)"
    on_terminal "$BATS_TEST_TMPDIR/terminal" "$late"
    grep -qE 'ap-shard: [a-z ]+, objective [0-9.e-]+.*, [1-9][0-9]* s' "$BATS_TEST_TMPDIR/terminal"
    taken_away "$BATS_TEST_TMPDIR/terminal"
    bash -c "$late" 2>&1 | tee "$BATS_TEST_TMPDIR/pipe"
    [ ! -s "$BATS_TEST_TMPDIR/pipe" ]
}

@test "progress: ap-stage says what it does, and the best step so far; in a pipe nothing" {
    local doc=$BATS_TEST_TMPDIR/blocks.json late
    late="$(late ap-stage)/ap-stage --jobs 1 --cluster p3x1 --stages 2"
    ap-model gpt --layers 4 --hidden 256 --heads 4 --vocab 1000 --batch 16 --seq 64 | ap-prune |
        ap-coarsen --blocks 4 -o "$doc"
    on_terminal "$BATS_TEST_TMPDIR/terminal" "$late -o $BATS_TEST_TMPDIR/seen.json <$doc"
    grep -qE 'ap-stage: [a-z ]+, [1-9][0-9]* s' "$BATS_TEST_TMPDIR/terminal"
    taken_away "$BATS_TEST_TMPDIR/terminal"
    bash -c "$late -o $BATS_TEST_TMPDIR/piped.json <$doc" 2>&1 | tee "$BATS_TEST_TMPDIR/pipe"
    [ ! -s "$BATS_TEST_TMPDIR/pipe" ]
    # who looks on does not change what is found
    cmp <(jq -S 'del(.history)' "$BATS_TEST_TMPDIR/seen.json") <(jq -S 'del(.history)' "$BATS_TEST_TMPDIR/piped.json")
    on_terminal "$BATS_TEST_TMPDIR/quiet" "$late --quiet -o /dev/null <$doc"
    [ ! -s "$BATS_TEST_TMPDIR/quiet" ]
}

@test "progress: ap-plan shows that of the search, and its pipe and report" {
    local plan
    plan="$(late ap-stage)/ap-plan gpt3-1.3b --cluster h100x1 --stages 1 --jobs 1"
    on_terminal "$BATS_TEST_TMPDIR/terminal" "$plan"
    grep -q '^ap-model gpt3-1.3b' "$BATS_TEST_TMPDIR/terminal"
    grep -qE 'ap-stage: [a-z ]+(, objective [0-9.e-]+)?(, bound [0-9.e-]+)?, [1-9][0-9]* s' "$BATS_TEST_TMPDIR/terminal"
    grep -q '^where the time goes' "$BATS_TEST_TMPDIR/terminal"
    taken_away "$BATS_TEST_TMPDIR/terminal"
    # the report in a pipe, the pipe that is printed in another: no line of progress in either
    run -0 --separate-stderr bash -c "$plan"
    [[ $output$stderr != *$'\r'* && $output$stderr != *$'\e'* ]]
    [[ $stderr == 'ap-model gpt3-1.3b'* && $output == *'where the time goes'* ]]
}

# ended_when LINE FILE COMMAND: the command's terminal session until LINE is seen; the command, which would
# go on for hours, is ended by a signal then
ended_when() {
    local job
    script -qfec "echo \$\$ >$2.pid; exec $3" /dev/null >"$2" </dev/null 3>&- &
    job=$!
    await grep -sqE "$1" "$2" || true
    kill "$(<"$2.pid")"
    wait "$job" || true
    grep -E "$1" "$2"
}

@test "progress: ap-exec says the step; not where steps are printed, nor in a pipe" {
    needs_exec
    command -v script >/dev/null || skip "no script(1)"
    local one=$BATS_TEST_TMPDIR/one.json run="ap-exec --seed 1 --steps 30000000"
    ap-model gpt --layers 2 --hidden 64 --heads 4 --vocab 500 --batch 8 --seq 16 | ap-rewrite -o "$one"
    ended_when 'ap-exec: step [0-9]+ of 30000000, loss [0-9.]+, [1-9][0-9]* s' "$BATS_TEST_TMPDIR/alone" "$run --json -o /dev/null $one"
    ended_when 'step [0-9]+000 loss' "$BATS_TEST_TMPDIR/steps" "$run $one"
    run ! grep -q $'\e' "$BATS_TEST_TMPDIR/steps"
}
