#!/usr/bin/env bats
# ap-exec: checkpoints: --save, --every, --resume.
# shellcheck disable=SC2030,SC2031,SC2154 # status, output and stderr are bats'

load helpers

setup_file() {
    needs_exec
    ap-rewrite "$(imported mlp)" >"$BATS_FILE_TMPDIR/one.json"
    export ONE=$BATS_FILE_TMPDIR/one.json
}

teardown() {
    [ -z "${first-}" ] || kill -9 "$first" 2>/dev/null || true
}

# The losses of a run: losses OPTION...
losses() {
    ap-exec --data "$MODELS/mlp/in" "$@" | sed -n 's/.* loss //p'
}

# A pipeline program of mlp: 2 stages on 6 of 8 ranks.
staged() {
    local f=$BATS_FILE_TMPDIR/staged.json
    [ -s "$f" ] || ap-prune "$(imported mlp)" | ap-coarsen --blocks 2 --eps 1 |
        ap-stage --stages 2 --microbatches 2 --cluster cpu-8 | ap-rewrite >"$f" || return
    echo "$f"
}

# Whether two lists of losses are those of one training: close A B
close() {
    paste "$1" "$2" | awk '{ d = $1 / $2 - 1; if (d < 0) d = -d; if (!($2 > 0) || d > 1e-5) bad = 1 }
        END { exit bad || NR == 0 }'
}

# Whether tensor K of a checkpoint has the bytes of K.npy of a folder, for all K there:
# equals FILE FOLDER. Only Python's own modules: the format needs no more.
equals() {
    /usr/bin/python3 - "$1" "$2" <<'END'
import glob, json, struct, sys
raw = open(sys.argv[1], "rb").read()
n, = struct.unpack("<Q", raw[:8])
header, data = json.loads(raw[8:8 + n]), raw[8 + n:]
assert all(isinstance(v, str) for v in header.pop("__metadata__").values())
files = {f.split("/")[-1][:-4]: f for f in glob.glob(sys.argv[2] + "/[0-9]*.npy")}
assert header.keys() == files.keys(), (header.keys(), files.keys())
ends = sorted(t["data_offsets"] for t in header.values())
assert ends[0][0] == 0 and ends[-1][1] == len(data)
assert all(a[1] == b[0] for a, b in zip(ends, ends[1:]))
for k, t in header.items():
    npy = open(files[k], "rb").read()
    at = 10 + struct.unpack("<H", npy[8:10])[0]
    shape = eval(npy[10:at])["shape"]
    assert list(shape) == t["shape"] and npy[at:] == data[slice(*t["data_offsets"])], k
END
}

@test "checkpoint: 3 steps on 4 ranks, 3 more on 8 and 6 under other plans: the losses of one" {
    cd "$BATS_TEST_TMPDIR"
    losses --steps 6 "$ONE" >one
    losses -n 4 --steps 3 --save ck "$(rewritten mlp 2x2)" >first
    ls ck >list
    echo checkpoint.safetensors | diff - list
    for plan in "$(rewritten mlp 8 zero3)" "$(rewritten mlp 2x4 megatron)" "$(staged)" "$ONE"; do
        n=$(ap-exec --check --json "$plan" | jq .ranks)
        losses -n "$n" --steps 3 --resume ck "$plan" >rest
        cat first rest >six
        close six one
    done
    # and from a pipeline back to four ranks
    losses -n 6 --steps 3 --save staged "$(staged)" >first
    losses -n 4 --steps 3 --resume staged "$(rewritten mlp 2x2)" >rest
    cat first rest >six
    close six one
}

@test "checkpoint: steps are counted on, --compare and --verify go on from there" {
    cd "$BATS_TEST_TMPDIR"
    ap-exec --data "$MODELS/mlp/in" --steps 2 --quiet --save ck "$ONE"
    run ap-exec -n 4 --data "$MODELS/mlp/in" --steps 3 --resume ck --save ck --verify \
        --compare "$MODELS/mlp" --tolerance 1e-4 "$(rewritten mlp 2x2)"
    [ "$status" -eq 0 ]
    [[ ${lines[0]} == "step 3 loss "* && ${lines[2]} == "step 5 loss "* ]]
    ap-exec --data "$MODELS/mlp/in" --resume ck --json "$ONE" | jq -e '.first_step == 6 and .steps == 1'
}

@test "checkpoint: --every N saves after each N steps and at the end" {
    cd "$BATS_TEST_TMPDIR"
    for n in 3 4 5; do
        ap-exec --data "$MODELS/mlp/in" --steps $n --every 2 --save "ck$n" --quiet "$ONE"
        grep -ao '"step":"[0-9]*"' "ck$n/checkpoint.safetensors" >>steps
    done
    printf '"step":"%d"\n' 3 4 5 | diff - steps
    # a run that is killed in step 5 leaves step 4
    (ap-exec --data "$MODELS/mlp/in" --steps 1000000 --every 2 --save killed "$ONE" | {
        while read -r _ step _; do [ "$step" -lt 5 ] || exit; done
    }) || true
    ap-exec --data "$MODELS/mlp/in" --resume killed --json "$ONE" | jq -e '.first_step >= 5'
}

@test "checkpoint: tensors are whole, those of a stack of layers are one" {
    cd "$BATS_TEST_TMPDIR"
    jq -c '([.graph.nodes[] | select(.op == "parameter").name | sub("layers/[0-9]+/"; "")] |
            reduce .[] as $n ([]; if index($n) then . else . + [$n] end)) as $names |
        (.graph.nodes[] | select(.op == "parameter")) |= ((.name | capture("layers/(?<l>[0-9]+)/").l // null)
            as $l | (.name | sub("layers/[0-9]+/"; "")) as $n | .argument = ({index: ($names | index($n))} +
            if $l then {dim: (if .shape == "f32[32,32]" then 1 else 0 end), part: ($l | tonumber), parts: 3}
            else {} end))' "$(imported scan_mlp)" >stacked.json
    ap-shard --mesh 2x2 --algorithm zero3 --cluster cpu-4 stacked.json | ap-rewrite >four.json
    ap-exec -n 4 --seed 1 --steps 2 --save ck --out out four.json >/dev/null
    equals ck/checkpoint.safetensors out
    ap-rewrite stacked.json | ap-exec --seed 1 --resume ck --save again --out out2 - >/dev/null
    equals again/checkpoint.safetensors out2
    [ "$(ap-exec -n 4 --seed 1 --steps 3 four.json | tail -n 1)" = "$(ap-exec -n 4 --seed 1 --resume ck four.json)" ]
}

@test "checkpoint: bf16 is kept as bf16" {
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
    ap-exec --seed 1 --steps 1 --save ck bf16.json
    grep -aq '"dtype":"BF16","shape":\[8\],"data_offsets":\[0,16\]' ck/checkpoint.safetensors
    [ "$(ap-exec --seed 1 --steps 2 bf16.json | tail -n 1)" = "$(ap-exec --seed 1 --resume ck bf16.json)" ]
}

# refuses_file PATTERN: --resume ck, by one rank and by two
refuses_file() {
    local two
    two=$(rewritten mlp 2 data)
    run --separate-stderr ap-exec --data "$MODELS/mlp/in" --resume ck "$ONE"
    [ "$status" -eq 1 ]
    [ -z "$output" ]
    [[ $stderr == *ck/checkpoint.safetensors:*$1* ]]
    run --separate-stderr ap-exec -n 2 --data "$MODELS/mlp/in" --resume ck "$two"
    [ "$status" -eq 1 ]
    [ -z "$output" ]
    [[ $stderr == *ck/checkpoint.safetensors:*$1* ]]
}

@test "checkpoint: what is cut short, changed, or another program's is refused by name" {
    cd "$BATS_TEST_TMPDIR"
    run --separate-stderr ap-exec --resume none "$ONE"
    [ "$status" -eq 1 ]
    [[ $stderr == *"none/checkpoint.safetensors: No such file"* ]]
    ap-exec --data "$MODELS/mlp/in" --quiet --save good "$ONE"
    local good=good/checkpoint.safetensors ck=ck/checkpoint.safetensors size
    mkdir ck
    size=$(stat -c %s "$good")
    for n in 0 5; do head -c $n "$good" >"$ck" && refuses_file "cut short: $n bytes"; done
    head -c 500 "$good" >"$ck" && refuses_file 'cut short in the header'
    head -c $((size - 4)) "$good" >"$ck" && refuses_file 'bytes of tensors, the header has'
    { cat "$good" && echo; } >"$ck" && refuses_file 'bytes of tensors, the header has'
    cp "$good" "$ck"
    printf '\x55' | dd of="$ck" bs=1 seek=$((size - 1000)) conv=notrunc status=none
    refuses_file 'its bytes have changed since'
    sed 's/"F32"/"F33"/' "$good" >"$ck" && refuses_file 'malformed entry of tensor'
    sed 's/"step":"1"/"step":"x"/' "$good" >"$ck" && refuses_file 'does not say the step'
    sed 's/autopar checkpoint/someone elses file/' "$good" >"$ck" && refuses_file 'not a checkpoint of ap-exec'
    sed 's/"__meta/x__meta/' "$good" >"$ck" && refuses_file 'not a JSON object'
    sed "s/mlp\/fc_0\/b/mlp\/fc_0\/c/" "$good" >"$ck" && refuses_file 'in the program it is'
    cp "$ONE" "$ck" && refuses_file 'not a safetensors file'
    ap-rewrite "$(imported lstm)" >lstm.json
    ap-exec --seed 1 --quiet --save ck lstm.json
    refuses_file 'tensor'
}

@test "checkpoint: a full disk leaves the last one, and ends with the place" {
    cd "$BATS_TEST_TMPDIR"
    local four
    four=$(rewritten mlp 2x2)
    mkdir small
    if [ "$(id -u)" -eq 0 ] && mount -t tmpfs -o size=256k tmpfs small 2>/dev/null; then
        run --separate-stderr ap-exec -n 4 --data "$MODELS/mlp/in" --steps 5 --every 2 --save small/ck "$four"
        [ "$status" -eq 0 ] || { umount small && false; }
        # room for the new one beside the old one is gone
        head -c 100000 /dev/zero >small/other
        run --separate-stderr ap-exec -n 4 --data "$MODELS/mlp/in" --steps 5 --every 2 --resume small/ck --save small/ck "$four"
        cp -r small/ck left
        umount small
        [[ $stderr == *"small/ck/checkpoint.safetensors.new: No space left on device"* ]]
    else
        ap-exec --data "$MODELS/mlp/in" --quiet --steps 5 --save left "$ONE"
        run --separate-stderr bash -c 'trap "" XFSZ; ulimit -f 40; exec "$@"' bash ap-exec --data "$MODELS/mlp/in" \
            --steps 5 --every 2 --resume left --save left "$ONE"
        [[ $stderr == *"left/checkpoint.safetensors.new: File too large"* ]]
    fi
    [ "$status" -eq 1 ]
    [ "$(ls left)" = checkpoint.safetensors ]
    ap-exec --data "$MODELS/mlp/in" --resume left --json "$ONE" | jq -e '.first_step == 6'
}

@test "checkpoint: what --save and --every need" {
    run --separate-stderr ap-exec --every 2 "$ONE"
    [ "$status" -eq 2 ]
    [[ $stderr == *"--every: needs --save"* ]]
    run --separate-stderr ap-exec --save "$ONE" "$ONE"
    [ "$status" -eq 1 ]
    [ -z "$output" ]
    [[ $stderr == *"--save $ONE: Not a directory"* ]]
    run --separate-stderr ap-exec --save "$BATS_TEST_TMPDIR/no/ck" "$ONE"
    [ "$status" -eq 1 ]
    [ -z "$output" ]
    [[ $stderr == *"No such file"* ]]
    mkdir "$BATS_TEST_TMPDIR/ck"
    touch "$BATS_TEST_TMPDIR/elsewhere"
    ln -s ../elsewhere "$BATS_TEST_TMPDIR/ck/checkpoint.safetensors"
    ap-exec --data "$MODELS/mlp/in" --quiet --save "$BATS_TEST_TMPDIR/ck" "$ONE"
    [ -L "$BATS_TEST_TMPDIR/ck/checkpoint.safetensors" ]
    [ -s "$BATS_TEST_TMPDIR/elsewhere" ]
    # before the first step
    cd "$BATS_TEST_TMPDIR"
    mkdir -p dir/checkpoint.safetensors
    ln -s loop loop
    ln -s nowhere dangling
    run --separate-stderr ap-exec --save dir "$ONE"
    [ "$status" -eq 1 ]
    [ -z "$output" ]
    [[ $stderr == *"dir/checkpoint.safetensors: expected a file"* ]]
    run --separate-stderr ap-exec --save loop "$ONE"
    [ "$status" -eq 1 ]
    [ -z "$output" ]
    [[ $stderr == *"--save loop: Too many levels"* ]]
    run --separate-stderr ap-exec --save dangling "$ONE"
    [ "$status" -eq 1 ]
    [ -z "$output" ]
    [[ $stderr == *"--save dangling: No such file"* ]]
}

@test "checkpoint: a folder in which a run saves is no other run's, until it ends, however" {
    cd "$BATS_TEST_TMPDIR"
    mkdir ck linked
    ln -s ../ck/checkpoint.safetensors linked/
    ap-exec --data "$MODELS/mlp/in" --steps 100000000 --every 3 --save ck "$ONE" >out 3>&- &
    first=$!
    await test -s ck/checkpoint.safetensors
    run --separate-stderr ap-exec --data "$MODELS/mlp/in" --save ck "$ONE"
    local there=$stderr
    run --separate-stderr ap-exec --data "$MODELS/mlp/in" --save linked "$ONE"
    # a lock that NFS has, too: of bytes of a file, not of an open folder
    local posix
    posix=$(grep -c "POSIX .* $first .*:$(stat -c %i ck/checkpoint.safetensors.lock) " /proc/locks || true)
    kill -9 "$first"
    [ "$status" -eq 1 ]
    [ -z "$output" ]
    [[ $stderr == *"--save linked: another run saves there"* ]]
    [[ $there == *"--save ck: another run saves there"* ]]
    [ "$posix" -eq 1 ]
    wait "$first" || true
    ap-exec --data "$MODELS/mlp/in" --quiet --save ck/ "$ONE"
    [ "$(ls ck)" = checkpoint.safetensors ]
}

@test "checkpoint: a run that is refused leaves no folder" {
    cd "$BATS_TEST_TMPDIR"
    refuses 1 "/nowhere" ap-exec --save made --data /nowhere "$ONE"
    [ ! -e made ]
    mkdir kept
    refuses 1 "/nowhere" ap-exec --save kept --data /nowhere "$ONE"
    [ -z "$(ls -A kept)" ]
}

@test "exec: --batches reads the inputs of each step, on any plan, and goes on with --resume" {
    cd "$BATS_TEST_TMPDIR"
    local k inputs plan
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
    losses --batches b --steps 4 "$ONE" >four
    losses --steps 4 "$ONE" >same
    [ "$(head -n 1 four)" = "$(head -n 1 same)" ]
    run ! diff -q <(sed -n 2p four) <(sed -n 2p same)
    for plan in "$(rewritten mlp 2x2)" "$(staged)"; do
        k=$(ap-exec --check --json "$plan" | jq .ranks)
        losses -n "$k" --batches b --steps 3 --save ck "$plan" >some
        losses -n "$k" --batches b --resume ck --verify "$plan" >>some
        close some four
    done
    run --separate-stderr ap-exec --batches ck "$ONE"
    [ "$status" -eq 1 ]
    [[ $stderr == *"ck/1: no such folder"* ]]
    mkdir -p empty/1
    run --separate-stderr ap-exec --batches empty "$ONE"
    [ "$status" -eq 1 ]
    [[ $stderr == *"empty/1: has no K.npy of an input"* ]]
}
