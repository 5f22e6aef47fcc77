# The page of the results in `dir`, as Markdown or HTML (format), from papers.txt, tables.txt and claims.txt.
BEGIN {
    FS = " :: "
    html = format == "html"
    split("alpa rhino tap tofu rannc across", papers, " ")
    title["alpa"] = "Alpa (OSDI 2022)"; title["rhino"] = "Rhino (arXiv 2023)"; title["tap"] = "TAP (arXiv 2023)"
    title["tofu"] = "Tofu (slides; SoyBean, arXiv 2018; EuroSys 2019)"; title["rannc"] = "RaNNC (IPDPS 2021)"; title["across"] = "Across the papers"
    source["alpa"] = "Zheng et al., \"Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning\", OSDI 2022."
    source["rhino"] = "Zhang et al., \"Auto-Parallelizing Large Models with Rhino: A Systematic Approach on Production AI Platform\", arXiv 2302.08141, 2023."
    source["tap"] = "Shi et al., \"TAP: Accelerating Large-Scale DNN Training Through Tensor Automatic Parallelisation\", arXiv 2302.00247v1, 2023; sections and figures are numbered as there (v2, of 2025, is called TAPAS)."
    source["tofu"] = "Three documents by Wang, Huang and Li. \"SoyBean\" is \"Unifying Data, Model and Hybrid Parallelism in Deep Learning via Tensor Tiling\", arXiv 1805.04170, 2018: tensors are cut or replicated, and `--tofu-space 2018`, the default, is this one. \"The slides\" are of a talk about Tofu, with that algorithm; rows name their subject. \"EuroSys 2019\" is \"Supporting Very Large Models using Automatic Dataflow Graph Partitioning\", EuroSys 2019 (arXiv 1807.08887): tensors are cut only, `--tofu-space eurosys`. \"The authors' code\" is their public forks of NNVM and MXNet. Of SoyBean and EuroSys 2019 what is quoted here was looked up in their abstracts; values of their tables and figures are not quoted."
    source["rannc"] = "Tanaka et al., \"Automatic Graph Partitioning for Very Large-scale Deep Learning\", IPDPS 2021."
    paper["AL"] = "alpa"; paper["RH"] = "rhino"; paper["TP"] = "tap"; paper["TO"] = "tofu"; paper["RA"] = "rannc"
    paper["B"] = "all"
}
FILENAME ~ /papers\.txt$/ {
    if (/^[a-z]/) {
        n = ++n_places[$1]
        place[$1, n] = $2; shown[$1, n] = $3; here[$1, n] = $4; missing[$1, n] = $5
    }
    next
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
    else printf "\n<a id=\"%s\"></a>\n\n%s %s\n\n", id, substr("####", 1, level), text
}
function link(id, text) { return html ? "<a href=\"#" id "\">" escaped(text) "</a>" : "[" text "](#" id ")" }
# A row of a table of n cells that are marked up already; the first row of one is its head.
function put_row(n, cell, head,    k, text) {
    for (k = 1; k <= n; k++) {
        if (html) text = text (head ? "<th>" : "<td>") cell[k]
        else { gsub(/\|/, "\\|", cell[k]); text = text "| " cell[k] " " }
    }
    print html ? "<tr>" text : text "|"
    if (!html && head) { for (k = 1; k <= n; k++) printf "| --- "; print "|" }
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
# Up to 40 lines of the output, then how many more there are. Of a test, the figures that it shows and
# what it has checked.
function said(    i, text, n, one) {
    if (status == "") return "not run yet"
    for (i = 1; i <= n_lines; i++) {
        one = line[i]
        if (one ~ /^1\.\.[0-9]+$/) continue
        if (sub(/^ok [0-9]+ (- )?/, "", one)) one = "checked: " one
        else if (sub(/^not ok [0-9]+ (- )?/, "", one)) one = "FAILS: " one
        else sub(/^# /, "", one)
        if (++n <= 40) text = text (n > 1 ? "\n" : "") substr(one, 1, 240) (length(one) > 240 ? " ..." : "")
    }
    if (n > 40) text = text "\n... " n - 40 " more lines"
    return text == "" ? "(done, nothing printed)" : text
}
function verdict() { return status == "" ? "not run" : status != 0 ? "exit status " status : "ran, " seconds " s" }
function table(    i, k, n, f) {
    if (html) print "<table>"
    for (i = 1; i <= n_lines; i++) {
        n = split(line[i], f, "\t")
        for (k = 1; k <= n; k++) f[k] = escaped(f[k])
        put_row(n, f, i == 1)
    }
    print html ? "</table>" : ""
}
function has(file,    text, yes) { yes = (getline text <file) > 0; close(file); return yes }
function show_table(p, i,    id) {
    id = name[p, "table", i]
    read_result(id)
    heading(3, what[p, "table", i], id)
    if (theirs[p, "table", i] != "-") paragraph("The paper: " theirs[p, "table", i] (theirs[p, "table", i] ~ /\.$/ ? "" : "."))
    paragraph("Here: " why[p, "table", i])
    code(command[p, "table", i])
    if (status == "0") table()
    else code(said())
    if (has(dir "/" id ".svg")) print html ? "<p><img src=\"" id ".svg\" alt=\"plot of the table\"></p>" : "![plot of the table](" id ".svg)\n"
    paragraph("(" verdict() ")")
}
# The tables of one kind as one, the commands first.
function show_merged(p,    i, k, n, id, all, n_all, verdicts, commands) {
    heading(3, what[p, "table", 1], "ablation")
    paragraph("The papers: " theirs[p, "table", 1] ".")
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
    paragraph("(" verdict() ") " (why[p, "claim", i] != "" ? "How it differs: " why[p, "claim", i] : p == "all" ? "" : "As in the paper."))
}
# What is named by `text`, as links: a table, or an id.
function links(text,    n, k, f, out) {
    n = split(text, f, " ")
    for (k = 1; k <= n; k++) {
        named[f[k]] = 1
        if (!(f[k] in known)) { print "page.awk: there is no " f[k] >"/dev/stderr"; bad = 1 }
        out = out (k > 1 ? ", " : "") link(f[k], f[k] ~ /^[a-z]/ ? "table" : f[k])
    }
    return out
}
# How the paper is run anew, then its tables, figures and sections in its order: what of them is here.
function show_paper(p,    i, k, n, kind, cell) {
    paragraph("To run all of it again, and to make this page again:")
    code("make -C scripts/experiments results ONLY=" p)
    paragraph("To run one table or number again: the command that stands with it, copied, in the root of the repository, after")
    code("make all unit && export PATH=$PWD/build/bin:$PATH")
    if (p == "across") return
    if (html) print "<table>"
    cell[1] = "place in the paper"; cell[2] = "what it shows"; cell[3] = "here"
    put_row(3, cell, 1)
    for (i = 1; i <= n_places[p]; i++) {
        cell[1] = escaped(place[p, i]); cell[2] = escaped(shown[p, i])
        cell[3] = here[p, i] == "-" ? "not here" : links(here[p, i])
        if (missing[p, i] != "") cell[3] = cell[3] (here[p, i] == "-" ? ": " : "; ") escaped(missing[p, i])
        put_row(3, cell)
    }
    # what no place of papers.txt names: its title or statement begins with its place
    for (k = 1; k <= 2; k++) {
        kind = k == 1 ? "table" : "claim"
        for (i = 1; i <= (k == 1 ? n_tables[p] : n_claims[p]); i++) {
            if (name[p, kind, i] in named) continue
            n = index(what[p, kind, i], ": ")
            cell[1] = escaped(substr(what[p, kind, i], 1, n - 1)); cell[2] = escaped(substr(what[p, kind, i], n + 2))
            cell[3] = links(name[p, kind, i])
            put_row(3, cell)
        }
    }
    print html ? "</table>" : ""
}
# All ids, each once.
function overview(    k, i, p, list, cell) {
    split("alpa rhino tap tofu rannc all", list, " ")
    if (html) print "<table>"
    cell[1] = "id"; cell[2] = "paper, statement"; cell[3] = "result"
    put_row(3, cell, 1)
    for (k = 1; k in list; k++) for (i = 1; i <= n_claims[list[k]]; i++) {
        p = name[list[k], "claim", i]
        read_result(p)
        cell[1] = link(p, p); cell[2] = prose(what[list[k], "claim", i]); cell[3] = verdict()
        put_row(3, cell)
    }
    print html ? "</table>" : ""
}
# An entry of the contents; in HTML lists are nested by their tags, in Markdown by the space before them.
function entry(level, id, text) {
    if (html) print "<li>" link(id, text)
    else printf "%s- %s\n", level == 1 ? "" : "  ", link(id, text)
}
# Links to papers and their tables; the planners' tables across papers are one.
function contents(    k, i, p) {
    if (html) print "<ul>"
    for (k = 1; k in papers; k++) {
        p = papers[k]
        entry(1, p, title[p])
        if (html) print "<ul>"
        for (i = 1; p != "across" && i <= n_tables[p]; i++) entry(2, name[p, "table", i], what[p, "table", i])
        if (n_claims[p]) entry(2, p "-numbers", "Numbers and plans: " name[p, "claim", 1] " to " name[p, "claim", n_claims[p]])
        if (html) print "</ul>"
    }
    entry(1, "capabilities", "What the papers can do")
    entry(1, "ids", "All ids")
    print html ? "</ul>" : ""
}
END {
    for (k in name) known[name[k]] = 1
    if (html) {
        print "<!doctype html><html lang=en><meta charset=utf-8><title>Five papers, re-made</title>"
        print "<style>body{font:15px/1.4 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}td,th{vertical-align:top;text-align:left;padding:.2em .6em;border-bottom:1px solid #ccc}pre{background:#f4f4f4;padding:.5em;overflow-x:auto;font-size:12px}h4{margin-bottom:.3em}</style>"
        print "<h1>Five papers, re-made</h1>"
    } else print "# Five papers, re-made\n"
    paragraph("Every table, figure and number of Alpa, Rhino, TAP, Tofu and RaNNC that needs none of their hardware, by pipes of the filters: what the paper has, what comes out here, and why they differ. Steps are predicted seconds, but for Tofu's parts on one device, which are measured on a CPU. Each paper begins with a list of its tables, figures and sections in its own order, with what is not here and why. Each result has its command, which is copied as it stands. What the page needs is installed and built, and the page made, by")
    code("scripts/deps --plots && make all unit && make -C scripts/experiments results")
    paragraph("\"ran, 1.5 s\" below a result says that its command ended well after so many seconds of a CPU.")
    contents()
    for (k = 1; k in papers; k++) {
        p = papers[k]
        heading(2, title[p], p)
        if (p in source) paragraph(source[p])
        show_paper(p)
        if (p == "across") show_merged(p)
        for (i = 1; p != "across" && i <= n_tables[p]; i++) show_table(p, i)
        if (n_claims[p]) heading(3, title[p] ": numbers and plans", p "-numbers")
        for (i = 1; i <= n_claims[p]; i++) show_claim(p, i)
    }
    heading(2, "What the papers can do", "capabilities")
    for (i = 1; i <= n_claims["all"]; i++) show_claim("all", i)
    heading(2, "All ids", "ids")
    overview()
    exit bad
}
