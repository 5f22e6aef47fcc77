#!/usr/bin/env bats
# scripts/tap, which all the other results go through, must see every way to fail.

load helpers

# program NAME LINE...: a script that runs these lines
program() {
    local f=$BATS_TEST_TMPDIR/$1
    shift
    printf '%s\n' '#!/bin/sh' "$@" >"$f"
    chmod +x "$f"
    echo "$f"
}

@test "tap: passes, failures and skips add up over programs" {
    a=$(program a 'echo ok 1 - x' 'echo "ok 2 - y # skip why"' 'echo 1..2')
    b=$(program b 'echo 1..2' 'echo ok 1' 'echo not ok 2 - broken' 'exit 1')
    run scripts/tap "$a" "$b"
    [ "$status" -eq 1 ]
    [ "${lines[-1]}" = "2 passed, 1 failed, 1 skipped" ]
    [ "${lines[-2]}" = "$b: not ok 2 - broken" ]
    run scripts/tap "$(program c 'echo ok 1' 'echo 1..1')"
    [ "$status" -eq 0 ]
    [ "${lines[-1]}" = "1 passed, 0 failed" ]
}

@test "tap: a crash, a missing plan and a missing test are failures" {
    run scripts/tap "$(program crash 'echo 1..2' 'echo ok 1' 'kill -SEGV $$')"
    [ "$status" -eq 1 ]
    [ "${lines[-1]}" = "1 passed, 1 failed" ]
    run scripts/tap "$(program no-plan 'echo ok 1')"
    [ "$status" -eq 1 ]
    [ "${lines[-1]}" = "1 passed, 1 failed" ]
    run scripts/tap "$(program late 'echo ok 1' 'echo 1..1' 'exit 9')"
    [ "$status" -eq 1 ]
    [ "${lines[-1]}" = "1 passed, 1 failed" ]
}

@test "tap: a program that hangs or does not exist is a failure" {
    AP_TEST_TIMEOUT=1 run scripts/tap "$(program hang 'echo 1..1' 'exec sleep 30')"
    [ "$status" -eq 1 ]
    [[ $output == *"timed out"* ]]
    run scripts/tap "$BATS_TEST_TMPDIR/none"
    [ "$status" -eq 1 ]
    [ "${lines[-1]}" = "0 passed, 1 failed" ]
}

@test "tap: as many files at a time as AP_TEST_JOBS says" {
    # each passes once the other is there
    local dir=$BATS_TEST_TMPDIR a b
    a=$(program a 'echo 1..1' ": >$dir/a.on" "timeout 9 sh -c 'until [ -e $dir/b.on ]; do sleep 0.1; done' && echo ok 1")
    b=$(program b 'echo 1..1' ": >$dir/b.on" "timeout 9 sh -c 'until [ -e $dir/a.on ]; do sleep 0.1; done' && echo ok 1")
    AP_TEST_JOBS=2 run scripts/tap "$a" "$b"
    [ "$status" -eq 0 ]
    [ "${lines[-1]}" = "2 passed, 0 failed" ]
    # the first waits as long as it may, and is over when the second starts
    rm "$dir"/*.on
    AP_TEST_TIMEOUT=3 AP_TEST_JOBS=1 run scripts/tap "$a" "$b"
    [ "$status" -eq 1 ]
    [ "${lines[-1]}" = "1 passed, 1 failed" ]
}

@test "tap: no test at all is a failure" {
    run scripts/tap
    [ "$status" -eq 1 ]
    [ "${lines[-1]}" = "0 passed, 1 failed" ]
    run scripts/tap "$(program empty 'echo 1..0')"
    [ "$status" -eq 1 ]
    [ "${lines[-1]}" = "0 passed, 1 failed" ]
}
