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
    timeout 300 "$BROWSER" --headless --no-sandbox --disable-gpu --user-data-dir="$BATS_TEST_TMPDIR/profile" \
        --virtual-time-budget=5000 --enable-logging=stderr --dump-dom "file://$1${2-}" 2>"$BATS_TEST_TMPDIR/log"
    run ! grep -a CONSOLE "$BATS_TEST_TMPDIR/log" >&2
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

# A browser's picture of a page, and where its parts are in it: [{name, box, colors}, ...].
picture() { # PAGE PNG PARTS
    sed 's|^</body>|<script>{ const parts = [], box = e => { const r = e.getBoundingClientRect();\
        return [r.left + scrollX, r.top + scrollY, r.width, r.height]; };\
        document.querySelectorAll("section").forEach((section, i) => {\
            parts.push({name: i + " words", box: box(section.querySelector(".words")), colors: []});\
            parts.push({name: i + " figures", box: box(section.querySelector("dl")), colors: []});\
            for (const h of section.querySelectorAll("h2")) parts.push({name: i + " " + h.textContent,\
                box: box(h.nextElementSibling), colors: h.textContent.startsWith("Timeline") ? ["#6ea8dc", "#e79a55"] :\
                h.textContent.startsWith("Memory") ? ["#6ea8dc", "#6fb36f", "#e79a55"] : []}); });\
        document.body.append("parts " + JSON.stringify(parts) + " end"); }</script></body>|' "$1" >"$1.parts.html"
    local of=(--headless --no-sandbox --disable-gpu --hide-scrollbars "--window-size=1200,2600"
        --user-data-dir="$BATS_TEST_TMPDIR/profile" --force-color-profile=srgb)
    timeout 300 "$BROWSER" "${of[@]}" --dump-dom "file://$1.parts.html" 2>/dev/null |
        grep -o 'parts \[.* end' | sed 's/^parts //; s/ end$//' | sed 's/&amp;/\&/g' >"$3"
    timeout 300 "$BROWSER" "${of[@]}" --screenshot="$2" "file://$1" 2>/dev/null
}

@test "html: a picture has every part: words, figures, layers, timeline, memory, what would change" {
    needs_browser
    local dir=$BATS_TEST_TMPDIR
    ap-cost --html "$dir/page.html" -o /dev/null "$(pipeline)"
    picture "$dir/page.html" "$dir/page.png" "$dir/parts.json"
    jq -e 'map(.name) == ["0 words", "0 figures", "0 Layers", "0 Timeline of a step", "0 Memory over a step",
        "0 What would change the step"]' "$dir/parts.json"
    # one below the other, none over another
    jq -e '[.[] | .box[1], .box[1] + .box[3]] | . == sort' "$dir/parts.json"
    /usr/bin/python3 tests/png_parts.py "$dir/page.png" <"$dir/parts.json"
    # the check sees a part that is not there
    run ! /usr/bin/python3 tests/png_parts.py "$dir/page.png" < <(jq '.[0].colors = ["#123456"]' "$dir/parts.json")
}

@test "html: two plans side by side, and a picture of them" {
    needs_browser
    local dir=$BATS_TEST_TMPDIR
    ap-cost --html "$dir/two.html" --beside "$(sharded mlp 2x2 ilp)" -o /dev/null "$(pipeline)"
    dump "$dir/two.html" >"$dir/dom"
    [ "$(grep -o '<section aria-label=' "$dir/dom" | wc -l)" -eq 2 ]
    grep -q 'plans by rule on the same mesh' "$dir/dom"
    picture "$dir/two.html" "$dir/two.png" "$dir/parts.json"
    jq -e 'length == 12 and .[0].box[0] + .[0].box[2] <= .[6].box[0]' "$dir/parts.json"
    /usr/bin/python3 tests/png_parts.py "$dir/two.png" <"$dir/parts.json"
}

@test "html: what is typed filters the lines; the table of changes is that of the document" {
    needs_browser
    local dir=$BATS_TEST_TMPDIR
    ap-cost --html "$dir/page.html" -o /dev/null "$(pipeline)"
    # a script behind the page's own types into the box, and counts the lines that are left
    sed 's|^</body>|<script>{ const box = document.getElementById("search"), type = text => { box.value = text;\
        box.dispatchEvent(new Event("input", {bubbles: true})); return [...document.querySelectorAll(".layer")]\
        .filter(e => e.offsetParent !== null).length; };\
        const all = type(""), said = [all > 2, type("wpe"), type("no such tensor"), type("") === all];\
        const rows = [...document.querySelectorAll("table")].find(t => t.caption.textContent.includes("under one change"))\
            .tBodies[0].rows;\
        said.push(rows.length, rows[0].cells[0].textContent.replace(/ /g, "_"));\
        document.body.append("said " + said.join(" ") + " end"); }</script></body>|' "$dir/page.html" >"$dir/typed.html"
    dump "$dir/typed.html" >"$dir/dom"
    data_of "$dir/page.html" >"$dir/data.json"
    grep -q "said true 1 0 true $(jq -r '.plans[0].changes | length, (sort_by(.[1])[0][0] | gsub(" "; "_"))' "$dir/data.json" |
        paste -sd ' ') end" "$dir/dom" || { grep -o 'said .* end' "$dir/dom"; return 1; }
    jq -e '.plans[0] | .step_sec as $step | .changes | length >= 3 and all(.[]; .[1] < $step and .[2] < 0)' "$dir/data.json"
}

@test "html: GPT-39B in 48 stages is a page of less than 2 MB, which opens" {
    slow_with_sanitizers
    local dir=$BATS_TEST_TMPDIR
    ap-model gpt3-39b --batch 64 --dtype f16 | ap-prune | ap-coarsen --blocks 48 | jq -c '.stages = {microbatches: 64,
        stages: [range(48) | {blocks: [.], devices: [. * 4 + range(4)], sharding: {algorithm: "megatron", mesh: "4"}}]}' |
        ap-cost --cluster p3x24 --html "$dir/page.html" -o /dev/null
    [ "$(stat -c %s "$dir/page.html")" -lt 2000000 ]
    needs_browser
    dump "$dir/page.html" >"$dir/dom"
    [ "$(grep -o 'aria-label="memory over time of stage' "$dir/dom" | wc -l)" -eq 48 ]
}

@test "html: what is no page is refused" {
    refuses 2 "--beside: only with --html" ap-cost --beside "$(pipeline)" "$(pipeline)"
    ap-import "$(hlo mlp)" | ap-shard --mesh 2 --space alpa --cost-model alpa -o "$BATS_TEST_TMPDIR/alpa.json"
    refuses 2 "--html: the plan's cost model alpa is not in seconds" \
        ap-cost --html "$BATS_TEST_TMPDIR/p.html" "$BATS_TEST_TMPDIR/alpa.json"
    refuses 1 "/no/such/folder" ap-cost --html /no/such/folder/p.html "$(pipeline)"
}
