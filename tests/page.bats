#!/usr/bin/env bats
# ap-cost --html: the page's data, and the page in a browser where there is one.

load helpers

# A browser, or the test is skipped. scripts/deps --browser installs one.
needs_browser() {
    BROWSER=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
        skip "no chromium: scripts/deps --browser"
}

# The page's document after its scripts ran; console has what they complained of.
dump() { # FILE [#HASH]
    timeout 100 "$BROWSER" --headless --no-sandbox --disable-gpu --user-data-dir="$BATS_TEST_TMPDIR/profile" \
        --virtual-time-budget=5000 --enable-logging=stderr --dump-dom "file://$1${2-}" 2>"$BATS_TEST_TMPDIR/log"
    ! grep -a CONSOLE "$BATS_TEST_TMPDIR/log" >&2
}

data_of() { # PAGE
    sed -n '/^<script type="application.json"/,/^<\/script>/p' "$1" | sed '1d;$d'
}

pipeline() {
    local f=$BATS_FILE_TMPDIR/pipe.json
    [ -s "$f" ] || ap-model gpt --layers 4 --hidden 256 --heads 4 --vocab 1000 --batch 16 --seq 64 | ap-prune |
        ap-coarsen --blocks 4 | jq -c '.stages = {microbatches: 4, stages: [
            {blocks: [0, 1], devices: [0, 1], sharding: {algorithm: "megatron", mesh: "tp=2"}},
            {blocks: [2, 3], devices: [2, 3], sharding: {algorithm: "data", mesh: "2"}}]}' |
        ap-cost --cluster p3x1 -o "$f"
    echo "$f"
}

@test "html: the data are those of the section cost" {
    local dir=$BATS_TEST_TMPDIR
    ap-cost --html "$dir/page.html" -o "$dir/cost.json" "$(sharded mlp 2x2 ilp)"
    data_of "$dir/page.html" >"$dir/data.json"
    jq -e --slurpfile c "$dir/cost.json" '.plans[0] as $p | $c[0].cost as $cost |
        $p.plan == $cost.plan and $p.step_sec == $cost.step_sec and
        $p.peak_bytes == $cost.memory.peak_bytes and
        ([$p.stages[].layers[].collectives[][5]] | add - $cost.comm_sec | fabs) < 1e-12 and
        ([$p.timeline[].slices[][1]] | add - $p.step_sec | fabs) < 1e-9 and
        ([$p.stages[].layers[].weights[]] | length) == 6' "$dir/data.json"
    ap-cost --html "$dir/pipe.html" -o "$dir/cost.json" "$(pipeline)"
    data_of "$dir/pipe.html" | jq -e --slurpfile c "$dir/cost.json" '.plans[0] as $p | $c[0].cost as $cost |
        ($p.stages | length) == 2 and ($p.timeline | map(.slices | length)) == [10, 10] and
        ([$p.memory[].most[]] | max) == $cost.peak_bytes and $p.cut == false and
        ([$p.memory[].kinds[] | select(.[0] == "weight")[1]]) == [$cost.devices[].memory.weight_bytes]'
}

@test "html: names cannot end the script, and a page needs no other file" {
    local dir=$BATS_TEST_TMPDIR bad='</script><script>alert(1)</script><!--'
    jq -c --arg bad "$bad" '(.graph.nodes[] | select(.role == "weight") | .name) += $bad |
        .graph.name = $bad' "$(imported mlp)" | ap-shard --mesh 2 |
        ap-cost --html "$dir/page.html" -o /dev/null
    [ "$(grep -c '</script>' "$dir/page.html")" -eq 2 ]
    run ! grep -q 'alert(1)</script>' "$dir/page.html"
    data_of "$dir/page.html" | jq -e --arg bad "$bad" '.plans[0].model == $bad'
    run ! grep -qE '(src|href)=|@import|https?://[^w]' "$dir/page.html"
}

@test "html: rows, search and keys in a browser, without a complaint" {
    needs_browser
    local dir=$BATS_TEST_TMPDIR
    ap-cost --html "$dir/page.html" -o /dev/null "$(pipeline)"
    dump "$dir/page.html" >"$dir/dom"
    grep -q 'PP 2 · 4 microbatches; stage 0 TP 2, stage 1 DP 2</p>' "$dir/dom"
    grep -q 'aria-label="timeline of a step"' "$dir/dom"
    [ "$(grep -o 'aria-label="memory over time of stage' "$dir/dom" | wc -l)" -eq 2 ]
    grep -q 'gpt/h_0' "$dir/dom"
    grep -q 'devices of twice the FLOP/s' "$dir/dom"
    run ! grep -q '<td>gpt/h_0/attn/q/w' "$dir/dom" # closed
    dump "$dir/page.html" '#q=attn/q/w' >"$dir/dom"
    grep -q '<mark>attn/q/w</mark>' "$dir/dom"
    grep -qE '[0-9]+ lines? ha(s|ve) it' "$dir/dom"
    # what keys do: a script behind the page's own presses them and notes what follows
    sed 's|^</body>|<script>{ const press = key => (document.activeElement \|\| document.body).dispatchEvent(\
        new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true})), at = () => document.activeElement;\
        const said = [];\
        press("/"); said.push(at().id);\
        press("Escape"); said.push(at().textContent.includes("stage 0"));\
        press("ArrowDown"); const layer = at(); said.push(layer.textContent.includes("outside the layers"));\
        press("ArrowRight"); said.push(layer.getAttribute("aria-expanded"), document.querySelectorAll("td").length > 10);\
        press("ArrowLeft"); said.push(layer.getAttribute("aria-expanded"));\
        layer.click(); said.push(layer.getAttribute("aria-expanded"));\
        press("ArrowUp"); said.push(at() === document.querySelector("button"));\
        document.body.append("said " + said.join(" ") + " end"); }</script></body>|' "$dir/page.html" >"$dir/keys.html"
    dump "$dir/keys.html" >"$dir/dom"
    grep -q 'said search true true true true false true true end' "$dir/dom" || { grep -o 'said .* end' "$dir/dom"; return 1; }
}

@test "html: two plans side by side, and a picture of them" {
    needs_browser
    local dir=$BATS_TEST_TMPDIR
    ap-cost --html "$dir/two.html" --beside "$(sharded mlp 2x2 ilp)" -o /dev/null "$(pipeline)"
    dump "$dir/two.html" >"$dir/dom"
    [ "$(grep -o '<section aria-label=' "$dir/dom" | wc -l)" -eq 2 ]
    grep -q 'plans by rule on the same mesh' "$dir/dom"
    timeout 100 "$BROWSER" --headless --no-sandbox --disable-gpu --user-data-dir="$dir/profile" \
        --window-size=1200,900 --screenshot="$dir/two.png" "file://$dir/two.html" 2>/dev/null
    [ "$(stat -c %s "$dir/two.png")" -gt 20000 ]
}

@test "html: what is no page is refused" {
    refuses 2 "--beside: only with --html" ap-cost --beside "$(pipeline)" "$(pipeline)"
    ap-import "$(hlo mlp)" | ap-shard --mesh 2 --space alpa --cost-model alpa -o "$BATS_TEST_TMPDIR/alpa.json"
    refuses 2 "--html: the plan's cost model alpa is not in seconds" \
        ap-cost --html "$BATS_TEST_TMPDIR/p.html" "$BATS_TEST_TMPDIR/alpa.json"
    refuses 1 "/no/such/folder" ap-cost --html /no/such/folder/p.html "$(pipeline)"
}
