# The page of the results in `dir`, as Markdown or HTML (format), from tables.txt and claims.txt.
BEGIN {
    FS = " :: "
    html = format == "html"
    split("alpa rhino tap tofu rannc across", papers, " ")
    title["alpa"] = "Alpa (OSDI 2022)"; title["rhino"] = "Rhino (arXiv 2023)"; title["tap"] = "TAP (arXiv 2023)"
    title["tofu"] = "Tofu (tensor tiling, arXiv 2018; EuroSys 2019)"; title["rannc"] = "RaNNC (IPDPS 2021)"; title["across"] = "Across the papers"
    source["alpa"] = "Zheng et al., \"Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning\", OSDI 2022."
    source["rhino"] = "Zhang et al., \"Auto-Parallelizing Large Models with Rhino: A Systematic Approach on Production AI Platform\", arXiv 2302.08141, 2023."
    source["tap"] = "Shi et al., \"TAP: Accelerating Large-Scale DNN Training Through Tensor Automatic Parallelisation\", arXiv 2302.00247, 2023."
    source["tofu"] = "Two documents by Wang, Huang and Li. \"The slides\" are of Tofu as tensor tiling, \"Unifying Data, Model and Hybrid Parallelism in Deep Learning via Tensor Tiling\", arXiv 1805.04170, 2018: tensors are cut or replicated, and `--tofu-space 2018` is this one, the default. \"EuroSys 2019\" is \"Supporting Very Large Models using Automatic Dataflow Graph Partitioning\", EuroSys 2019 (arXiv 1807.08887): tensors are cut only, `--tofu-space eurosys`; \"the later code\" is its public fork of NNVM. Each row says which of them it is from; values of EuroSys 2019's own tables are not quoted here."
    source["rannc"] = "Tanaka et al., \"Automatic Graph Partitioning for Very Large-scale Deep Learning\", IPDPS 2021."
    paper["AL"] = "alpa"; paper["RH"] = "rhino"; paper["TP"] = "tap"; paper["TO"] = "tofu"; paper["RA"] = "rannc"
    paper["B"] = "all"
}
/^[a-z]/ {
    split($1, f, " ")
    n = ++n_tables[f[1]]
    name[f[1], "table", n] = f[1] "-" f[2]
    what[f[1], "table", n] = $2; theirs[f[1], "table", n] = $3; why[f[1], "table", n] = $4
    command[f[1], "table", n] = "scripts/experiments/" $1
}
/^[A-Z]+[0-9.]+ ::/ {
    key = $1
    sub(/[0-9.]+$/, "", key)
    p = paper[key]
    n = ++n_claims[p]
    name[p, "claim", n] = $1
    what[p, "claim", n] = $2; command[p, "claim", n] = $3; why[p, "claim", n] = $4
}
function escaped(text) {
    if (html) { gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text) }
    return text
}
# Text with code in `quotes`.
function prose(text) {
    text = escaped(text)
    if (html) while (match(text, /`[^`]*`/))
        text = substr(text, 1, RSTART - 1) "<code>" substr(text, RSTART + 1, RLENGTH - 2) "</code>" substr(text, RSTART + RLENGTH)
    return text
}
function heading(level, text, id) {
    if (html) printf "<h%d id=\"%s\">%s</h%d>\n", level, id, escaped(text), level
    else { printf "\n%s %s\n\n", substr("####", 1, level), text }
}
function paragraph(text) { print html ? "<p>" prose(text) "</p>" : prose(text) "\n" }
function code(text) {
    if (html) print "<pre>" escaped(text) "</pre>"
    else print "```\n" text "\n```\n"
}
# The result's status and seconds into `status` and `seconds`, its lines into line[1..n_lines].
function read_result(id,    file, text) {
    file = dir "/" id
    n_lines = 0; status = ""; seconds = ""
    if ((getline text <file) > 0) {
        split(text, head, " ")
        status = head[1]; seconds = head[2]
        while ((getline text <file) > 0) line[++n_lines] = text
    }
    close(file)
}
# Up to 40 lines of the output, then how many more there are.
function said(    i, text, n) {
    if (status == "") return "not run yet"
    for (i = 1; i <= n_lines; i++) {
        if (line[i] ~ /^1\.\.[0-9]+$/) continue
        if (++n <= 40) text = text (n > 1 ? "\n" : "") substr(line[i], 1, 160) (length(line[i]) > 160 ? " ..." : "")
    }
    if (n > 40) text = text "\n... " n - 40 " more lines"
    return text == "" ? "(done, nothing printed)" : text
}
function verdict() { return status == "" ? "not run" : status != 0 ? "exit status " status : "good, " seconds " s" }
function table(    i, k, n, f) {
    if (html) print "<table>"
    for (i = 1; i <= n_lines; i++) {
        n = split(line[i], f, "\t")
        if (html) printf "<tr>"
        for (k = 1; k <= n; k++)
            printf "%s", html ? (i == 1 ? "<th>" : "<td>") escaped(f[k]) : "| " f[k] " "
        print html ? "" : "|"
        if (!html && i == 1) { for (k = 1; k <= n; k++) printf "| --- "; print "|" }
    }
    print html ? "</table>" : ""
}
function has(file,    text, yes) { yes = (getline text <file) > 0; close(file); return yes }
function show_table(p, i,    id) {
    id = name[p, "table", i]
    read_result(id)
    heading(3, what[p, "table", i], id)
    if (theirs[p, "table", i] != "-") paragraph("The paper: " theirs[p, "table", i])
    paragraph("Here: " why[p, "table", i])
    code(command[p, "table", i])
    if (status == "0") table()
    else code(said())
    if (has(dir "/" id ".svg")) print html ? "<p><img src=\"" id ".svg\" alt=\"\"></p>" : "![" id "](" id ".svg)\n"
    paragraph("(" verdict() ")")
}
# The tables of one kind as one, the commands first.
function show_merged(p,    i, k, n, id, all, n_all, verdicts, commands) {
    heading(3, what[p, "table", 1], "ablation")
    paragraph("The papers: " theirs[p, "table", 1])
    paragraph("Here: " why[p, "table", 1])
    for (i = 1; i <= n_tables[p]; i++) {
        id = name[p, "table", i]
        commands = commands (i > 1 ? "\n" : "") command[p, "table", i]
        read_result(id)
        verdicts = verdicts (i > 1 ? ", " : "") id " " verdict()
        for (k = n_all ? 2 : 1; status == "0" && k <= n_lines; k++) all[++n_all] = line[k]
    }
    code(commands)
    for (n_lines = 0; n_lines < n_all; n_lines++) line[n_lines + 1] = all[n_lines + 1]
    if (n_all) table()
    paragraph("(" verdicts ")")
}
function show_claim(p, i,    id) {
    id = name[p, "claim", i]
    read_result(id)
    heading(4, id ": " what[p, "claim", i], id)
    code(command[p, "claim", i])
    code(said())
    paragraph("(" verdict() ") " (why[p, "claim", i] != "" ? "How it differs: " why[p, "claim", i] : p == "all" ? "" : "No difference."))
}
# All ids with their commands, each once.
function overview(    k, i, p, list) {
    split("alpa rhino tap tofu rannc all", list, " ")
    print html ? "<table><tr><th>id<th>paper, statement<th>result" : "| id | paper, statement | result |\n| --- | --- | --- |"
    for (k = 1; k in list; k++) for (i = 1; i <= n_claims[list[k]]; i++) {
        p = name[list[k], "claim", i]
        read_result(p)
        if (html) printf "<tr><td><a href=\"#%s\">%s</a><td>%s<td>%s\n", p, p, prose(what[list[k], "claim", i]), verdict()
        else printf "| %s | %s | %s |\n", p, what[list[k], "claim", i], verdict()
    }
    print html ? "</table>" : ""
}
# Links to papers and their tables; the planners' tables across papers are one.
function contents(    k, i, p) {
    print "<ul>"
    for (k = 1; k in papers; k++) {
        p = papers[k]
        printf "<li><a href=\"#%s\">%s</a><ul>\n", p, escaped(title[p])
        for (i = 1; p != "across" && i <= n_tables[p]; i++)
            printf "<li><a href=\"#%s\">%s</a>\n", name[p, "table", i], escaped(what[p, "table", i])
        if (n_claims[p]) printf "<li><a href=\"#%s-numbers\">numbers and plans</a>\n", p
        print "</ul>"
    }
    print "<li><a href=\"#capabilities\">What the papers can do</a>\n<li><a href=\"#ids\">All ids</a>\n</ul>"
}
END {
    if (html) {
        print "<!doctype html><html lang=en><meta charset=utf-8><title>Five papers, re-made</title>"
        print "<style>body{font:15px/1.4 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}td,th{vertical-align:top;text-align:left;padding:.2em .6em;border-bottom:1px solid #ccc}pre{background:#f4f4f4;padding:.5em;overflow-x:auto;font-size:12px}h4{margin-bottom:.3em}</style>"
        print "<h1>Five papers, re-made</h1>"
    } else print "# Five papers, re-made\n"
    paragraph("Every table, figure and number of Alpa, Rhino, TAP, Tofu and RaNNC that needs none of their hardware, by pipes of the filters: what the paper has, what comes out here, and why they differ. Steps are predicted seconds, but for Tofu's parts on one device, which are measured on a CPU. Each has its command, which runs in the root of the repository after")
    code("scripts/deps --plots && make all unit && export PATH=$PWD/build/bin:$PATH")
    paragraph("`make -C scripts/experiments results` makes this page; seconds are those of the CPU.")
    if (html) contents()
    for (k = 1; k in papers; k++) {
        p = papers[k]
        heading(2, title[p], p)
        if (p in source) paragraph(source[p])
        if (p == "across") show_merged(p)
        for (i = 1; p != "across" && i <= n_tables[p]; i++) show_table(p, i)
        if (n_claims[p]) heading(3, title[p] ": numbers and plans", p "-numbers")
        for (i = 1; i <= n_claims[p]; i++) show_claim(p, i)
    }
    heading(2, "What the papers can do", "capabilities")
    for (i = 1; i <= n_claims["all"]; i++) show_claim("all", i)
    heading(2, "All ids", "ids")
    overview()
}
