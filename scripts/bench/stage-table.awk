# scripts/bench/stage-table: prints a row (mode=row, with auto's step and choices), or what stands
# below all rows (mode=end).
function differs(own, n, i, f, g, text) {
    n = split(own, f, "|")
    split(choices, g, "|")
    for (i = 1; i <= n; i++)
        if (f[i] != g[i]) {
            sub(/ .*/, "", f[i])
            text = text (text == "" ? "" : ", ") f[i]
        }
    return text
}
# Rows of one key have the same blocks and shards.
function own_key(text, f) { split(text, f, "\t"); return f[1] "@" f[2] " " f[19] " " f[4] }
function bad(text) { print "FAILED: " text; n_bad++ }
mode == "row" {
    ratio = auto > 0 ? sprintf("%6.3f", $6 / auto) : "     -"
    bound = $13 > 0 ? sprintf("%10.2f %6.2f", 1e3 * $13, 100 * ($6 - $13) / $6) : sprintf("%10s %6s", "-", "-")
    printf "%10.2f %s %4d %-6s %5.1f %8.4f %6.2f %s %7.2f %7.2f %7.3f %5.0f  %s\n", 1e3 * $6, ratio, $7,
        $8, 100 * $10, $11, $12, bound, $14, $15, $16, $17, $9
    own = $20
    for (i = 21; i <= NF; i++) own = own "|" $i
    if (auto > 0 && $6 > auto * (1 + 1e-9))
        printf "%59s auto is faster by another %s\n", "", differs(own)
    next
}
{
    n_rows++
    key = $1 "@" $2 " " $3 " " $4
    blocks = $1 "@" $2 " " $3
    if (!seen["blocks", blocks]++) tables[++n_tables] = blocks
    if (!seen["shards", $4]++) shards[++n_shards] = $4
    if (!seen["planner", $5]++) planners[++n_planners] = $5
    cell[blocks, $4, $5] = $6 == "-" ? $7 : sprintf("%.2f", 1e3 * $6) ($9 ~ /over memory/ ? "!" : "")
    family = $1
    sub(/-.*/, "", family)
    if ($6 == "-") {
        fails[family, $2, $5] = 1
        devices[family, $2] = 1
        next
    }
    row[NR] = $0
    if ($5 == "auto") auto_of[key] = $6
    if ($5 == "auto" && ($4 == "ilp" || $4 == "-")) ilp_of[blocks] = $6
    if ($13 > bound_of[own_key($0)]) bound_of[own_key($0)] = $13
    if ($18 < $6 * (1 - 1e-9) || $18 > $6 * (1 + 1e-9)) bad(key " " $5 ": ap-stage's objective is not ap-cost's step")
    if (!((family, $2, $5) in speed) || $11 > speed[family, $2, $5]) speed[family, $2, $5] = $11
    families[family] = 1
    devices[family, $2] = 1
    series = $1 "@" $2 " " $4 " " $5
    sub(/:.*/, "", $3)
    series = series " over blocks by " $3
    if (!(series in least) || $6 < least[series]) least[series] = $6
    if ($6 > most[series]) most[series] = $6
    n_of[series]++
}
function side_by_side(t, s, p) {
    for (t = 1; t <= n_tables && n_shards > 1 && n_planners > 1; t++) {
        printf "\n%-34s", tables[t] ": step ms"
        for (p = 1; p <= n_planners; p++) printf "%12s", planners[p]
        print ""
        for (s = 1; s <= n_shards; s++) {
            printf "  %-32s", shards[s]
            for (p = 1; p <= n_planners; p++) printf "%12s", cell[tables[t], shards[s], planners[p]]
            print ""
        }
    }
}
function scaling(f, d, line, word, first, base) {
    for (f in families) {
        n = 0
        for (d = 1; d <= 65536; d *= 2) if ((f, d) in devices) n++
        if (n < 2) continue
        printf "\n%s: PFLOP/s, and in %% of as many times that on the fewest devices\n", f
        split("auto alpa intra-only inter-only", word, " ")
        for (i = 1; i in word; i++) {
            base = 0
            line = sprintf("  %-12s", word[i])
            for (d = 1; d <= 65536; d *= 2) {
                if (!((f, d) in devices)) continue
                if ((f, d, word[i]) in speed) {
                    if (!base) base = speed[f, d, word[i]] / d
                    line = line sprintf("  %d: %.4f (%.0f %%)", d, speed[f, d, word[i]], 100 * speed[f, d, word[i]] / d / base)
                } else if ((f, d, word[i]) in fails)
                    line = line sprintf("  %d: none", d)
            }
            print line
        }
    }
}
# Of as many times the speed on the fewest devices, in %; -1: no such row, 0: no plan.
function percent(f, d, planner, e) {
    if ((f, d, planner) in fails && !((f, d, planner) in speed)) return 0
    if (!((f, d, planner) in speed)) return -1
    for (e = 1; e <= d; e *= 2) if ((f, e, planner) in speed) break
    return 100 * speed[f, d, planner] / d / (speed[f, e, planner] / e)
}
function says(yes, text, figures) {
    printf "%s: %s (%s)\n", text, yes ? "yes" : "no", substr(figures, 3)
    if (papers && !yes) bad(text ": no")
}
# What Alpa's paper says of its planners, looked for in the rows: intra-only / auto at each
# number of devices and the speed of inter-only and auto beside linear scaling.
function orderings(f, d, x, least, most, line) {
    for (f in families) {
        least = 1e9; most = -1; line = ""
        for (d = 1; d <= 65536 && f ~ /^gpt/; d *= 2) {
            if (!((f, d, "auto") in speed) || percent(f, d, "intra-only") < 0) continue
            x = speed[f, d, "intra-only"] / speed[f, d, "auto"]
            line = line sprintf(", %d: %s", d, x > 0 ? sprintf("%.2f of auto", x) : "none")
            if (d <= 16 && x < least) least = x
            if (d > 16 && x > most) most = x
        }
        if (most >= 0 && least < 1e9) says(most < least, f ": intra-only falls behind beyond 16 devices", line)
        x = percent(f, 64, "inter-only")
        if (f ~ /^gpt/ && x >= 0) says(x >= 90, f ": inter-only is linear to 64 devices", sprintf(", %.0f %%", x))
        x = percent(f, 32, "inter-only")
        if (f ~ /^moe/ && x >= 0) says(x == 0, f ": inter-only has no plan on 32 devices", x > 0 ? sprintf(", %.0f %%", x) : ", none")
        x = percent(f, 32, "auto")
        if (f ~ /^wresnet/ && x >= 0) says(x >= 80, f ": auto keeps 80 % of linear to 32 devices", sprintf(", %.0f %%", x))
    }
}
END {
    if (mode == "row") exit
    for (r in row) {
        split(row[r], f, "\t")
        key = f[1] "@" f[2] " " f[3] " " f[4]
        if (f[6] < bound_of[own_key(row[r])] * (1 - 1e-9)) bad(key " " f[5] ": below a lower bound")
        if (papers && f[5] == "auto" && f[1] ~ /^gpt/ && f[6] > f[13] / 0.75) bad(key ": gap above 25 %")
        if (f[9] ~ /over memory/) continue
        if (key in auto_of && f[6] < auto_of[key] * (1 - 1e-9)) bad(key " " f[5] ": faster than auto")
        blocks = f[1] "@" f[2] " " f[3]
        if (blocks in ilp_of && f[6] < ilp_of[blocks] * (1 - 1e-9))
            bad(key " " f[5] ": faster than auto with shards by ilp")
    }
    side_by_side()
    scaling()
    orderings()
    for (s in n_of)
        if (n_of[s] > 1)
            printf "spread %s: %.2f to %.2f ms, %.1f %%, of %d\n", s, 1e3 * least[s], 1e3 * most[s],
                100 * (most[s] / least[s] - 1), n_of[s] | "sort"
    close("sort")
    printf "%d rows, %d checks failed\n", n_rows, n_bad
    exit n_bad > 0 || n_rows == 0
}
