# A sweep as text, html or svg, as $form says. The columns of table and page are the same list.
def seconds: if . >= 1 then "\(three) s" elif . >= 1e-3 then "\(. * 1e3 | three) ms" else "\(. * 1e6 | three) us" end;
def bytes: if . >= 1e9 then "\(. / 1e9 | three) GB" elif . >= 1e6 then "\(. / 1e6 | three) MB" else "\(. / 1e3 | three) kB" end;
# 1234567: 1,234,567; three digits count
def grouped: if . < 1000 then three else (log10 | floor - 2) as $e | (. / pow(10; $e) | round * pow(10; $e) | round | tostring)
    | [while(length > 0; .[:-3]) | .[-3:]] | reverse | join(",") end;
def hundredth: . * 100 | round | "\(. / 100 | floor).\(. % 100 + 100 | tostring[1:])";
def percent: "\(. * 1000 | round / 10) %";
def pad($n): . + (" " * ($n - length) // "");
def padded($n): (" " * ($n - length) // "") + .;
def escape: gsub("&"; "&amp;") | gsub("<"; "&lt;") | gsub(">"; "&gt;") | gsub("\""; "&quot;");
def several(f): .rows | differ(f);
def planned: .rows | map(select(.step_sec));

def note($all): if .why then .why
    else [if .dominated_by then "dominated by \(.dominated_by)" else empty end,
          if $all.days and .days > $all.days then "over \($all.days | three) days" else empty end,
          if .unpriced then "no price of \(.unpriced | join(", "))" else empty end] | join("; ") end;

# What eight of ten published runs make of a number that grows with the step: " (90-110)"; without such runs, nothing.
def range_of(f): if .published then [.published.low, .published.high] as [$low, $high] | " (\(f * $low | grouped)-\(f * $high | grouped))" else "" end;

# [name, filter's text; null: nothing to say]
def cells($all): [
    ["cluster", .cluster],
    ["devices", if .devices then [.devices[]] | add | tostring else null end],
    if $all | several(.samples) then ["batch", (.samples // "") | tostring] else empty end,
    if $all | several(.seq) then ["seq", (.seq // "") | tostring] else empty end,
    ["step", if .step_sec then .step_sec | seconds else null end],
    if any($all.rows[]; .published) then ["8 of 10 runs", if .published then "\(.published.low | hundredth)-\(.published.high | hundredth) x" else null end] else empty end,
    ["tokens/s", if (.tokens // 0) > 0 then .tokens / .step_sec | grouped else null end],
    ["to bound", if .bound_sec then (1 - .bound_sec / .step_sec | if . < 0 then 0 else . end) | percent else null end],
    ["MFU", if .mfu then .mfu | percent else null end],
    ["memory", if .peak_bytes then .peak_bytes | bytes else null end],
    ["of", if .peak_bytes then .peak_bytes + .spare_bytes | bytes else null end],
    if ($all | several(.samples) or several(.seq)) then ["largest micro-batch", if .largest_micro_batch then .largest_micro_batch | tostring else null end] else empty end,
    if $all.tokens then
        ["days", if .days then (.days | three) + range_of(.days) else null end],
        ["device-hours", if .device_hours then .device_hours | grouped else null end] else empty end,
    if $all.currency then [$all.currency, if .money then (.money | grouped) + range_of(.money) else null end] else empty end
] | map([.[0], .[1] // "-"]);

def title: "\(.model)" + ((.rows | map(select(.step_sec))[0]) as $r
    | if $r and (several(.samples) | not) then ", batch \($r.samples)" else "" end
      + if $r and $r.seq > 0 and (several(.seq) | not) then ", \($r.seq) tokens a sample" else "" end)
    + (if .tokens then ", \(.tokens_said) tokens in all" else "" end);

def text: . as $all
    | [.rows[] | cells($all)] as $cells
    | ([$cells[0][][0]] | to_entries | map(.key as $i | [.value, $cells[][$i][1]] | map(length) | max)) as $width
    | def line: to_entries | map(if .key == 0 then .value | pad($width[0]) else .key as $i | .value | padded($width[$i]) end) | join("  ");
    title, "",
    ([$cells[0][][0]] | line),
    (.rows | to_entries[] | (.key as $i | $cells[$i] | map(.[1]) | line) as $l | (.value | note($all)) as $n
        | ($l + if $n == "" then "" else "  " + $n end)),
    (if .says == [] then empty else "", .says[] end),
    "", "plans",
    (.rows[] | select(.words) | "  \(.cluster | pad($width[0]))" + (if $all | several(.samples) then "  batch \(.samples)" else "" end)
        + (if $all | several(.seq) then "  seq \(.seq)" else "" end) + "  \(.words)");

# ---- pictures ----

def color: ["#3b75af", "#c8622a", "#4d9a4d", "#8a5fa8", "#b0423f", "#7f6a52", "#c570a8", "#666666"][. % 8];
def round1: . * 10 | round / 10;
# Round numbers inside a range: as many as help to read it.
def ticks($lo; $hi): def at(f): [range($lo | log10 | floor; ($hi | log10 | floor) + 1) as $e | f * pow(10; $e)
        | select(. >= $lo * 0.999 and . <= $hi * 1.001)];
    at(1, 2, 5) as $usual | if ($usual | length) > 8 then at(1) elif ($usual | length) < 3 then at(1, 1.5, 2, 3, 4, 5, 6, 7, 8) else $usual end;
def short: if . >= 1e6 then "\(. / 1e6 | three)M" elif . >= 1e4 then "\(. / 1e3 | three)k" else three end;

# Names beside their points {x, y, name}, each in turn where it covers the fewest points and names so far: .at, its left end.
def beside($points): reduce $points[] as $p ([]; . as $placed
    | ($p.name | length * 6.2) as $wide
    | [([7, -7 - $wide] | .[]) as $dx | (-7, 15, 4) as $dy | [$p.x + $dx, $p.y + $dy]]
    | . + [[$p.x + 7, $p.y - 19], [$p.x + 7, $p.y + 27]]
    | min_by(. as [$x, $y] | ([$points[] | select(.x > $x - 5 and .x < $x + $wide + 5 and .y > $y - 14 and .y < $y + 6)] | length)
        + ([$placed[] | select(.at[0] < $x + $wide and .at[0] + .wide > $x and (.at[1] - $y | fabs) < 12)] | length)) as $at
    | $placed + [$p + {at: $at, wide: $wide}]);

# Points {x, y, range, name, group, weak} on logarithmic axes; a line through those of a group.
def panel($at; $points; $x; $y): 330 as $w | 250 as $h | 62 as $left | 34 as $top
    | ([$points[].x] | unique | length <= 7 and all(. == floor)) as $few # sizes that were asked for
    | ([$points[].x] | [min / 1.25, max * 1.6]) as $xs | ([$points[] | .y, .range[]?] | [min / 1.25, max * 1.25]) as $ys
    | def px: (. / $xs[0] | log) / ($xs[1] / $xs[0] | log) * $w + $left | round1;
      def py: $top + $h - (. / $ys[0] | log) / ($ys[1] / $ys[0] | log) * $h | round1;
    ([$points[].group] | unique) as $groups
    | "<g transform=\"translate(\($at) 0)\">",
      "<rect x=\"\($left)\" y=\"\($top)\" width=\"\($w)\" height=\"\($h)\" fill=\"#f7f7f7\"/>",
      "<text x=\"\($left)\" y=\"\($top - 10)\" font-weight=\"bold\">\($y | escape)</text>",
      "<text x=\"\($left + $w)\" y=\"\($top + $h + 32)\" text-anchor=\"end\" font-weight=\"bold\">\($x | escape)</text>",
      ((if $few then [$points[].x] | unique else ticks($xs[0]; $xs[1]) end)[] | "<line x1=\"\(px)\" x2=\"\(px)\" y1=\"\($top)\" y2=\"\($top + $h)\" stroke=\"#ddd\"/><text x=\"\(px)\" y=\"\($top + $h + 15)\" text-anchor=\"middle\" fill=\"#555\">\(short)</text>"),
      (ticks($ys[0]; $ys[1])[] | "<line y1=\"\(py)\" y2=\"\(py)\" x1=\"\($left)\" x2=\"\($left + $w)\" stroke=\"#ddd\"/><text x=\"\($left - 5)\" y=\"\(py + 4)\" text-anchor=\"end\" fill=\"#555\">\(short)</text>"),
      ($groups | to_entries[] | .key as $i | [$points[] | select(.group == $groups[$i])] | sort_by(.x) | select(length > 1)
        | "<polyline fill=\"none\" stroke=\"\($i | color)\" stroke-width=\"1.5\" points=\"\(map("\(.x | px),\(.y | py)") | join(" "))\"/>"),
      ($points[] | . as $p | ($groups | index($p.group) | color) as $c
        | (select(.range) | "<path stroke=\"\($c)\" d=\"M\(.x | px) \(.range[0] | py)V\(.range[1] | py)\"/>"),
          "<circle cx=\"\(.x | px)\" cy=\"\(.y | py)\" r=\"4.5\" stroke=\"\($c)\" stroke-width=\"1.5\" fill=\"\(if .weak then "white" else $c end)\"><title>\(.name | escape): \(.y | short), \(.x | short)</title></circle>"),
      (beside($points | map({name, x: (.x | px), y: (.y | py), color: (.group as $g | $groups | index($g) | color)}))[]
        | "<text x=\"\(.at[0] | round1)\" y=\"\(.at[1] | round1)\" fill=\"\(.color)\">\(.name | escape)</text>"),
      "</g>";

def points(fx; fy): [planned[] | {x: fx, y: fy, range: null, name: .cluster, group: "\(.kind) \(.devices | keys)", weak: (.dominated_by != null)}
    | select((.x // 0) > 0 and (.y // 0) > 0)];
# Of what grows with the step: with what eight of ten published runs make of it.
def lasting(fx; fy): [planned[] | . as $row | fy as $y | [$row] | {rows: .} | points(fx; $y)[]
    | if $row.published then .range = [$y * $row.published.low, $y * $row.published.high] else . end];
def panels: . as $all
    | (if .tokens then "days of \(.tokens_said) tokens" else "seconds of a step" end) as $time
    | [(if .currency and any(planned[]; .money) then [lasting(.money; .days), "\(.currency)", $time] else empty end),
       (if several(.samples) or several(.seq) then empty
        else [lasting([.devices[]] | add; .days // .step_sec), "devices", $time] end),
       (if several(.samples) then [points(.samples; .tokens / .step_sec), "batch", "tokens/s"], [points(.samples; .peak_bytes / 1e9), "batch", "memory, GB"] else empty end),
       (if several(.seq) then [points(.seq; .tokens / .step_sec), "tokens of a sample", "tokens/s"], [points(.seq; .peak_bytes / 1e9), "tokens of a sample", "memory, GB"] else empty end)]
    | map(select(.[0] != []));

def svg: panels as $panels
    | (($panels | length) * 440 + 10) as $wide
    | "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"\($wide)\" height=\"350\" viewBox=\"0 0 \($wide) 350\" font-family=\"sans-serif\" font-size=\"11\">",
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>",
      ($panels | to_entries[] | panel(.key * 440; .value[0]; .value[1]; .value[2])),
      "<text x=\"62\" y=\"340\" fill=\"#555\">hollow: another row takes no more time and costs no more\(if any(planned[]; .published) then "; bars: 8 of 10 published runs" else "" end)</text>",
      "</svg>";

def html: . as $all
    | "<!DOCTYPE html>", "<html lang=\"en\"><head><meta charset=\"utf-8\"><title>\(title | escape)</title>",
      "<style>body { font: 14px/1.5 sans-serif; margin: 2em; color: #222 } h1 { font-size: 1.3em } table { border-collapse: collapse }",
      "th, td { text-align: right; padding: .25em .9em; border-bottom: 1px solid #ddd } th:first-child, td:first-child { text-align: left }",
      "tr.weak { color: #888 } th, td { white-space: nowrap } tr.row td { border-bottom: none; padding-bottom: 0 }",
      "td.words { white-space: normal; font-size: 12px; padding-top: 0 } div { overflow-x: auto } code { background: #f3f3f3; padding: .2em .4em }",
      "svg { max-width: 100%; height: auto }</style></head><body>",
      "<h1>\(title | escape)</h1>", "<p><code>\(.asked | escape)</code></p>",
      "<div><table><tr>\([.rows[0] | cells($all)[] | "<th>\(.[0] | escape)</th>"] | join(""))</tr>",
      (.rows[] | (if .dominated_by or .why then " weak" else "" end) as $weak | cells($all) as $cells
        | "<tr class=\"row\($weak)\">\([$cells[] | "<td>\(.[1] | escape)</td>"] | join(""))</tr>",
          "<tr class=\"plan\($weak)\"><td class=\"words\" colspan=\"\($cells | length)\">\(
            [(.words // empty), (note($all) | select(. != ""))] | map(escape) | join("<br>"))</td></tr>"),
      "</table></div>", (.says[] | "<p>\(. | escape)</p>"),
      (if planned == [] then empty else svg end),
      (if .price_source then "<p>prices: \(.price_source | tostring | escape)</p>" else empty end),
      "</body></html>";

if $form == "text" then text elif $form == "html" then html else svg end
