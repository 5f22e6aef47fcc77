#!/usr/bin/env bats
# The commands of README.md and cmd/README.md run as printed and print what stands below them;
# the map and the glossary of libcommon/README.md are up to date.

load helpers

# The shell session in a README: lines of indented blocks whose first line starts with "$ ".
sessions() {
    awk '/^    / {
            text = substr($0, 5)
            if (!inside) { inside = 1; session = (text ~ /^\$ /) }
            if (session) print text
            next
        }
        /^$/ { next }
        { inside = 0 }' "$1"
}

# Runs the session of a README in a folder of its own, and compares.
runs_as_printed() {
    sessions "$1" >"$BATS_TEST_TMPDIR/expected"
    ln -s "$AP_TOP/testdata" "$AP_TOP/scripts" "$AP_TOP/examples" "$BATS_TEST_TMPDIR"
    ln -s "$AP_BUILD" "$BATS_TEST_TMPDIR/build"
    cd "$BATS_TEST_TMPDIR" || return
    { # a command goes on while its lines end in a pipe or a backslash
        command='' echo_lines=''
        while IFS= read -r line; do
            echo_lines+="printf '%s\n' $(printf '%q' "$line")"$'\n'
            command+=${line#\$ }$'\n'
            [[ $line != *\| && $line != *\\ ]] || continue
            printf '%s%s' "$echo_lines" "$command"
            command='' echo_lines=''
        done < <(awk '/^\$ / { on = 1 } on { print } on && !/[|\\]$/ { on = 0 }' expected)
    } >script
    [ -s script ]
    bash -euo pipefail script >got 2>&1
    diff -B expected got
}

# Files and folders that a README names in code spans exist: from the top, from the README's own
# folder, or somewhere below libcommon, cmd or tests. "ap-x" stands for any tool.
names_what_exists() {
    local f all
    all=$(find libcommon cmd tests)$'\n'
    while read -r f; do
        [[ $f == *ap-x* || $f == _* || -e $f || -e ${1%/*}/$f || $all == *"/${f%/}"$'\n'* ]] ||
            { echo "$1 names $f"; return 1; }
    done < <(grep -oE '`[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*(/|\.[chm]d?|\.bats|\.def)`|`(scripts|testdata|man|cmd|libcommon|tests)/[A-Za-z0-9_./-]+`' "$1" |
        tr -d '\140' | sort -u)
}

@test "README: every command of its sessions prints what stands below it" {
    needs_exec
    runs_as_printed README.md
    cmp timeline.svg "$AP_TOP/man/timeline.svg" # the picture is what its commands draw
}

@test "README of scripts/jax: a script moved to a plan differs as printed, by ten lines at most" {
    local command
    command=$(sessions scripts/jax/README.md | sed -n 's/^\$ //p')
    run -1 bash -c "$command"
    [ "$output" = "$(sessions scripts/jax/README.md | sed 1d)" ]
    [ "$(grep -c '^+' <<<"$output")" -le 11 ] # with the header's
}

@test "README of cmd: every command of its sessions prints what stands below it" {
    needs_exec
    runs_as_printed cmd/README.md
}

@test "README of cmd/ap-shard: every command of its sessions prints what stands below it" {
    runs_as_printed cmd/ap-shard/README.md
}

@test "README of cmd/ap-stage: every command of its sessions prints what stands below it" {
    runs_as_printed cmd/ap-stage/README.md
}

@test "README: at most 190 lines of at most 130 columns" {
    [ "$(wc -l <README.md)" -le 190 ]
    awk 'length > 130 && !/^\|/ { print FILENAME ": " FNR; bad = 1 } END { exit bad }' README.md
}

@test "READMEs: files that they name exist" {
    for f in README.md CONTRIBUTING.md cmd/README.md cmd/*/README.md cmd/*/*/README.md libcommon/README.md libcommon/*/README.md; do
        [ ! -e "$f" ] || names_what_exists "$f"
    done
}

@test "README of libcommon: it names every room, and no other" {
    diff <(grep -oE '^\| \[[a-z]+\]\(' libcommon/README.md | tr -dc 'a-z\n' | sort) \
        <(for d in libcommon/*/; do basename "$d"; done | sort)
}

@test "README of libcommon: every term of the glossary is explained once, and is in use" {
    terms=$(awk -F'|' '/^## Glossary/ { on = 1 } on && /^\|/ && !/---/ && $2 != " term " { print $2 }' libcommon/README.md |
        sed 's/, /\n/g; s/ *$//; s/^ *//; s/ of a graph$//; s/ of a problem$//')
    [ "$(sort <<<"$terms" | uniq -d)" = "" ]
    while read -r term; do
        grep -rqiE "${term// /[ _-]}" --include='*.[ch157]' --include='*.def' --include='*.md' libcommon/*/ cmd/*/ man ||
            { echo "nothing is called $term"; return 1; }
    done <<<"$terms"
}

@test "README of libcommon/layout: its sessions print what stands below them" {
    runs_as_printed libcommon/layout/README.md
}

@test "README of libcommon/cost: its sessions print what stands below them" {
    runs_as_printed libcommon/cost/README.md
}

@test "README of libcommon/program: its sessions print what stands below them" {
    runs_as_printed libcommon/program/README.md
}

@test "README of libcommon/plan: its sessions print what stands below them" {
    needs_exec
    runs_as_printed libcommon/plan/README.md
}

@test "README of libcommon/grad: its sessions print what stands below them" {
    runs_as_printed libcommon/grad/README.md
}

@test "README of libcommon/graph: its sessions print what stands below them" {
    runs_as_printed libcommon/graph/README.md
}

@test "README of libcommon/doc: its sessions print what stands below them" {
    runs_as_printed libcommon/doc/README.md
}

@test "README of libcommon/tool: its sessions print what stands below them" {
    runs_as_printed libcommon/tool/README.md
}

@test "README of cmd/ap-import: its sessions print what stands below them" {
    runs_as_printed cmd/ap-import/README.md
}
