#!/usr/bin/env bats
# shellcheck disable=SC2154 # status, output and stderr are bats'
# ap-exec --trace: a step as it ran, beside ap-cost's timeline.

load helpers

setup_file() {
    needs_exec
    cd "$BATS_FILE_TMPDIR" || return
    ap-shard --quiet --no-history --mesh 2 --cluster cpu-4 --algorithm zero2 --microbatches 2 "$(imported mlp)" |
        ap-cost --no-history --trace predicted.json | ap-rewrite --no-history --overlap >run.json
}

setup() { cd "$BATS_FILE_TMPDIR" || return; }

# process_names FILE: of a timeline, in order of their numbers
process_names() {
    jq -r '[.traceEvents[] | select(.name == "process_name")] | sort_by(.pid)[].args.name' "$1"
}

# beside PREDICTED MEASURED: both in both.json
beside() { jq -c -s '.[0] + {traceEvents: map(.traceEvents) | add}' "$1" "$2" >both.json; }

@test "trace: ranks beside the prediction, by the rules of the format" {
    ap-exec -n 2 --steps 3 --trace measured.json --json run.json >out.json
    beside predicted.json measured.json
    /usr/bin/python3 "$AP_TOP/tests/trace.py" both.json >sum.json
    [ "$(process_names both.json)" = "$(process_names predicted.json)
measured: rank 0
measured: rank 1" ]
    # all that was predicted is there
    jq -e -n --slurpfile p predicted.json --slurpfile b both.json '
        [$p, $b] | map([.[0].traceEvents[] | select(.pid == 1 and .ph == "X")]) | .[0] == .[1]'
    # the last step only: the calls of one step, of both microbatches, within its time
    jq -e --slurpfile r out.json --slurpfile p run.json '
        [.traceEvents[] | select(.ph == "X" and .pid > 1)] as $x |
        ([$x[] | .ts + .dur] | max) <= $r[0].step_sec[-1] * 1e6 and
        all([1048576, 1048577][]; . as $pid | [$x[] | select(.pid == $pid)] |
            all([0, 1][]; . as $m | any($x[]; .args.microbatch == $m)) and
            ([.[] | select(.tid == 2)] | length) == ([$r[0].collectives[].count] | add) and
            ([.[] | select(.tid == 2) | .args.bytes] | add) == ([$r[0].collectives[].bytes] | add))' both.json
    # a step of one operator after the other, in the order of the program
    jq -e '[.traceEvents[] | select(.pid == 1048576 and .tid == 1 and .args.microbatch == null and .args.group) | .args.group] |
        length > 5 and . == sort' both.json
}

@test "trace: microbatches of a pipeline run in the order that is predicted, in every schedule" {
    local schedule chunks
    ap-coarsen --quiet --no-history --algorithm alpa --blocks 4 --eps 3 "$(imported gpt2l)" >blocks.json
    for schedule in gpipe 1f1b interleaved-1f1b; do
        chunks=1
        [ $schedule != interleaved-1f1b ] || chunks=2
        jq -c --arg schedule $schedule --argjson chunks $chunks '.stages = {schedule: $schedule, chunks: $chunks,
            microbatches: 4, stages: [range(4) | {blocks: [.], devices: [. % (4 / $chunks)],
            sharding: {algorithm: "data", mesh: "m=1"}}]}' blocks.json |
            ap-cost --no-history --trace p.json | ap-rewrite --no-history >staged.json
        timeout 300 ap-exec -n $((4 / chunks)) --quiet --trace measured.json staged.json
        beside p.json measured.json
        /usr/bin/python3 "$AP_TOP/tests/trace.py" both.json >sum.json
        jq -e --argjson n $((4 / chunks)) '[.traceEvents[] | select(.ph == "X" and .tid == 1 and (.cat | IN("forward", "backward")))] as $x |
            all(range(1; $n + 1); . as $pid | [$pid, $pid + 1048575] |
                map(. as $p | [$x[] | select(.pid == $p)] | sort_by(.ts) | map([.name, .args.stage])) |
                .[0] == .[1] and (.[0] | length) > 0) and
            ([.traceEvents[] | select(.name == "send" and .pid > $n and .ph == "X")] | length) ==
            ([.traceEvents[] | select(.name == "receive")] | length)' both.json || { echo $schedule; return 1; }
    done
}

@test "trace: options that do not go together are refused" {
    refuses 2 "--check: runs no step, which --trace needs" ap-exec --check --trace t.json run.json
    refuses 2 "--alternate: --trace is of one program" ap-exec --trace t.json --alternate run.json run.json
    [ ! -e t.json ]
}
