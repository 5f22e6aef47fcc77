#!/usr/bin/env bats
# scripts/site: every page of the documentation, whose links lead somewhere.

load helpers

needs_tools() {
    command -v cmark-gfm >/dev/null || skip "no cmark-gfm: scripts/deps --test"
    command -v mandoc >/dev/null || skip "no mandoc: scripts/deps --test"
    git -C "$AP_TOP" rev-parse 2>/dev/null || skip "no git repository"
}

@test "site: every page of the documentation is there, and every link leads somewhere" {
    needs_tools
    run -0 "$AP_TOP/scripts/site" -o "$BATS_TEST_TMPDIR/site"
    [[ $output == *'every link leads somewhere' ]]
    for f in "$AP_TOP"/man/*.[157]; do [ -s "$BATS_TEST_TMPDIR/site/man/${f##*/}.html" ]; done
    grep -q 'href="ap-plan.1.html"' "$BATS_TEST_TMPDIR/site/man/ap.7.html"
    grep -q 'href="cmd/README.html"' "$BATS_TEST_TMPDIR/site/README.html"
    [ -s "$BATS_TEST_TMPDIR/site/man/page.png" ]
}

@test "site: a link that leads nowhere is said" {
    needs_tools
    local tree=$BATS_TEST_TMPDIR/tree
    mkdir -p "$tree/scripts" "$tree/man"
    cp "$AP_TOP/scripts/site" "$tree/scripts"
    cp "$AP_TOP/man/ap.7" "$AP_TOP"/man/ap-*.[15] "$tree/man"
    mkdir "$tree/cmd"
    printf '# One\n\n## A place\n\n[here](#a-place), [there](cmd/README.md#two)\n' >"$tree/README.md"
    printf '# Two\n\n[back](../README.md)\n' >"$tree/cmd/README.md"
    printf '# News\n' >"$tree/NEWS.md"
    git -C "$tree" init -q
    run -0 "$tree/scripts/site" -o "$tree/site"
    printf '[a](none.md), [b](#nowhere), [c](cmd/README.md#three)\n' >>"$tree/README.md"
    run -1 "$tree/scripts/site" -o "$tree/site"
    [ "$(grep -c '^README.html: ' <<<"$output")" -eq 3 ]
    [[ $output == *'none.html: there is no such page'* && $output == *'#nowhere: there is no such place'* ]]
}
