#!/usr/bin/env bats
# Man pages: options as in --help, no lint, examples that run.

load helpers

# Options that --help lists, one a line: -o, --stats.
help_options() {
    "$1" --help=all | sed -n 's/^  \(--\{0,1\}[a-z][a-z-]*\).*/\1/p' | sort
}

# Options that the page documents as items of a list.
page_options() {
    sed -n -e 's/^\.It Fl -\([a-z-]*\).*/--\1/p' -e 's/^\.It Fl \([a-z]\)\( .*\)*$/-\1/p' \
        "man/$1.1" | sort
}

# The lines of the literal displays in EXAMPLES, without the page's escapes.
examples() {
    awk '/^\.Sh/ { on = ($2 == "EXAMPLES") }
        on && /^\.Ed/ { show = 0 }
        show { print }
        on && /^\.Bd -literal/ { show = 1 }' "$1" |
        sed -e 's/\\e/\\/g' -e 's/\\-/-/g' -e "s/\\\\(aq/'/g" -e 's/\\&//g'
}

@test "man: every tool has a page, and every page of section 1 a tool" {
    for t in $(ap_tools); do
        [ -s "man/$t.1" ] || { echo "no man/$t.1"; return 1; }
    done
    for f in man/*.1; do
        t=$(basename "$f" .1)
        [ -d "cmd/$t" ] || { echo "$f, but no cmd/$t"; return 1; }
    done
}

@test "man: pages list the options of --help, and no others" {
    for t in $(ap_tools); do
        [ "$(help_options "$t" | wc -l)" -ge 6 ]
        diff <(help_options "$t") <(page_options "$t") ||
            { echo "$t: < --help, > man page"; return 1; }
    done
}

@test "man: pages name every choice of an option" {
    for t in $(ap_tools); do
        for option in $("$t" --help=all | sed -n 's/^  --\([a-z-]*\) \(NAME\|MODE\) .*/\1/p'); do
            run --separate-stderr "$t" "--$option=help"
            [ "$status" -eq 0 ] || continue # takes a name that is no choice
            while read -r choice _; do
                grep -qE "^\.(It )?Cm $choice( |\$)" "man/$t.1" ||
                    { echo "man/$t.1 lacks .Cm $choice of --$option"; return 1; }
            done <<<"$output"
        done
    done
}

@test "man: mandoc finds nothing to say" {
    run mandoc -T lint -W warning man/*.[157]
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    [ -z "$output" ] || { echo "$output"; return 1; }
}

@test "man: pages refer to pages that exist" {
    while read -r name section; do
        [ -s "man/$name.$section" ] || { echo "no man/$name.$section"; return 1; }
    done < <(sed -n 's/^\.\(It \)\{0,1\}Xr \(ap[a-z-]*\) \([157]\).*/\2 \3/p' man/*.[157] | sort -u)
}

@test "man: every example runs" {
    needs_exec
    ln -s "$AP_TOP/testdata" "$BATS_TEST_TMPDIR/testdata"
    cd "$BATS_TEST_TMPDIR"
    for page in "$AP_TOP"/man/*.[157]; do
        examples "$page" >script
        [[ $page != *.1 || -s script ]] || { echo "$page has no examples"; return 1; }
        run timeout 300 bash -euo pipefail script
        [ "$status" -eq 0 ] || { echo "$page: exit $status: $output"; return 1; }
    done
}
