#!/usr/bin/env bats
# `make install` puts everything in place, and what it installs works from there.

load helpers

install_to() { # FOLDER PREFIX
    make -s install BUILD="$AP_BUILD" DESTDIR="$1" PREFIX="$2"
}

@test "install: tools, pages, clusters and schemas land below DESTDIR and PREFIX" {
    dest=$BATS_TEST_TMPDIR/dest
    install_to "$dest" /opt/ap
    for t in $(ap_tools); do
        [ -x "$dest/opt/ap/bin/$t" ]
        [ -s "$dest/opt/ap/share/man/man1/$t.1" ]
    done
    [ -s "$dest/opt/ap/share/man/man5/ap-document.5" ]
    [ -s "$dest/opt/ap/share/man/man7/ap.7" ]
    for f in clusters/*.json; do
        cmp "$f" "$dest/opt/ap/share/autopar/clusters/$(basename "$f")"
    done
    for f in schemas/*.json; do
        cmp "$f" "$dest/opt/ap/share/autopar/schemas/$(basename "$f")"
    done
    [ "$(ls "$dest")" = opt ] # and nothing elsewhere
}

@test "install: installed tools run from another folder" {
    install_to "$BATS_TEST_TMPDIR/dest" /usr
    share=$BATS_TEST_TMPDIR/dest/usr/share/autopar
    model=$(hlo mlp)
    cd /
    PATH=$BATS_TEST_TMPDIR/dest/usr/bin:/usr/bin:/bin
    ap-import "$model" | ap-shard --mesh 4 --cluster "$share/clusters/cpu-4.json" |
        ap-cost | ap-rewrite >"$BATS_TEST_TMPDIR/program.json"
    jq -e '.program.peak_bytes > 0' "$BATS_TEST_TMPDIR/program.json"
}

@test "install: uninstall removes all of it, and nothing else" {
    dest=$BATS_TEST_TMPDIR/dest
    install_to "$dest" /usr
    touch "$dest/usr/bin/other" "$dest/usr/share/man/man1/other.1" # somebody else's
    make -s uninstall BUILD="$AP_BUILD" DESTDIR="$dest" PREFIX=/usr
    [ "$(find "$dest" -type f | sort)" = "$dest/usr/bin/other
$dest/usr/share/man/man1/other.1" ]
    [ ! -e "$dest/usr/share/autopar" ]
}
