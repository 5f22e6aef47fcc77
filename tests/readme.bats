#!/usr/bin/env bats
# README's commands run as printed and print what README says.

load helpers

# The shell session in README: lines of indented blocks whose first line starts with "$ ".
sessions() {
    awk '/^    / {
            text = substr($0, 5)
            if (!inside) { inside = 1; session = (text ~ /^\$ /) }
            if (session) print text
            next
        }
        /^$/ { next }
        { inside = 0 }' README.md
}

@test "readme: every command of its sessions prints what stands below it" {
    needs_exec
    sessions >"$BATS_TEST_TMPDIR/expected"
    ln -s "$AP_TOP/testdata" "$BATS_TEST_TMPDIR/testdata"
    ln -s "$AP_BUILD" "$BATS_TEST_TMPDIR/build"
    ln -s "$AP_TOP/scripts" "$BATS_TEST_TMPDIR/scripts"
    cd "$BATS_TEST_TMPDIR"
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
    cmp timeline.svg "$AP_TOP/man/timeline.svg" # the picture is what its commands draw
}

@test "readme: at most 190 lines, and files that it names exist" {
    [ "$(wc -l <README.md)" -le 190 ]
    while read -r f; do
        [ -e "$f" ] || { echo "$f"; return 1; }
    done < <(grep -oE '`?(scripts|testdata|man)/[A-Za-z0-9_./-]+' README.md | tr -d '`' | sed 's/[.]$//' | sort -u)
}
