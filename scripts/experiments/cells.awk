# Draws the table of `ablation` as SVG: for each model the step of every cell, as a bar, from the fastest on; a cell
# without a plan is its reason.
#   awk -F '\t' -f scripts/experiments/cells.awk cells.tsv >cells.svg
function escaped(s)
{
    gsub(/&/, "\\&amp;", s)
    gsub(/</, "\\&lt;", s)
    gsub(/>/, "\\&gt;", s)
    return s
}

# Whether cell a stands before cell b: models as they come, plans by their step, then what has none.
function before(a, b)
{
    if (model[a] != model[b]) return first[model[a]] < first[model[b]]
    if ((ms[a] == "-") != (ms[b] == "-")) return ms[b] == "-"
    return ms[a] == ms[b] ? a < b : ms[a] + 0 < ms[b] + 0
}

NR > 1 {
    n++
    model[n] = $1 " on " $2 " of " $3
    name[n] = $4 " · " $5 " · " $6 " · " $7
    ms[n] = $9
    why[n] = $8 == "plan" ? "" : $8 ": " $16
    if (!(model[n] in first)) first[model[n]] = n
    if ($9 != "-" && $9 + 0 > most[model[n]]) most[model[n]] = $9 + 0
    if ($9 != "-" && (!(model[n] in least) || $9 + 0 < least[model[n]])) least[model[n]] = $9 + 0
    if (length(name[n]) > widest) widest = length(name[n])
    order[n] = n
}

END {
    for (i = 2; i <= n; i++) # insertion
        for (k = i; k > 1 && before(order[k], order[k - 1]); k--) {
            swap = order[k]
            order[k] = order[k - 1]
            order[k - 1] = swap
        }
    left = 20 + widest * 6.4
    body = ""
    y = 10
    for (i = 1; i <= n; i++) {
        c = order[i]
        if (i == 1 || model[c] != model[order[i - 1]]) {
            y += 24
            body = body sprintf("<text x=\"10\" y=\"%d\" font-weight=\"bold\">%s</text>\n", y, escaped(model[c] ": milliseconds of a step"))
            y += 6
        }
        y += 15
        body = body sprintf("<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", left - 6, y, escaped(name[c]))
        if (ms[c] == "-") {
            body = body sprintf("<text x=\"%d\" y=\"%d\" fill=\"#a33\">%s</text>\n", left, y, escaped(why[c]))
            continue
        }
        wide = 460 * ms[c] / most[model[c]]
        body = body sprintf("<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"11\" fill=\"#8fb8de\"/>\n", left, y - 10, wide)
        body = body sprintf("<text x=\"%.1f\" y=\"%d\">%.4g, %.2f x</text>\n", left + wide + 5, y, ms[c], ms[c] / least[model[c]])
    }
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"11\">\n", left + 600, y + 15
    printf "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n%s</svg>\n", body
}
