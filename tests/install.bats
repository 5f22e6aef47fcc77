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
    for f in clusters/*.json clusters/papers/*.json; do
        cmp "$f" "$dest/opt/ap/share/autopar/$f"
    done
    for f in schemas/*.json; do
        cmp "$f" "$dest/opt/ap/share/autopar/schemas/$(basename "$f")"
    done
    for f in python/autopar/*.py python/autopar/ops.def python/autopar/torch/*.py; do
        cmp "$f" "$dest/opt/ap/share/autopar/$f"
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
    others=("$dest/usr/bin/other" "$dest/usr/share/autopar/clusters/mine.json" "$dest/usr/share/man/man1/other.1")
    touch "${others[@]}" # somebody else's
    make -s uninstall BUILD="$AP_BUILD" DESTDIR="$dest" PREFIX=/usr
    [ "$(find "$dest" -type f | sort)" = "$(printf '%s\n' "${others[@]}")" ]
    rm "${others[@]}"
    make -s uninstall BUILD="$AP_BUILD" DESTDIR="$dest" PREFIX=/usr # nothing is left: no error
    [ ! -e "$dest/usr/share/autopar" ]
}

@test "install: pkg-config knows where schemas, clusters and tools are" {
    install_to "$BATS_TEST_TMPDIR/dest" /opt/ap
    export PKG_CONFIG_PATH=$BATS_TEST_TMPDIR/dest/opt/ap/share/pkgconfig
    [ "$(pkg-config --modversion autopar)" = "$(ap-cost --version | sed 's/.* //')" ]
    [ "$(pkg-config --variable=schemas autopar)" = /opt/ap/share/autopar/schemas ]
    [ "$(pkg-config --variable=clusters autopar)" = /opt/ap/share/autopar/clusters ]
    [ "$(pkg-config --variable=bindir autopar)" = /opt/ap/bin ]
}

# What bash offers behind a command line, one name a line: completed TOOL WORD...
completed() {
    (
        # shellcheck disable=SC1090 # what was installed
        source "$BATS_TEST_TMPDIR/dest/usr/share/bash-completion/completions/$1"
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
        "_${1//-/_}"
        printf '%s\n' "${COMPREPLY[@]}"
    )
}

@test "install: bash completes options, their values and files; zsh has the same options" {
    local dest=$BATS_TEST_TMPDIR/dest/usr t option
    install_to "$BATS_TEST_TMPDIR/dest" /usr
    [ "$(completed ap-shard --algor)" = --algorithm ]
    [ "$(completed ap-shard --algorithm mega)" = $'megatron\nmegatron-sp' ]
    [ "$(completed ap-shard --algorithm = mega)" = $'megatron\nmegatron-sp' ]
    [ "$(completed ap-shard --algorithm = | grep -c tofu)" -eq 1 ]
    [ "$(completed ap-shard --cluster cpu-4)" = cpu-4 ]
    [ "$(completed ap-cost README)" = README.md ]
    [ "$(completed ap-exec --data testd)" = testdata ]
    [ -z "$(completed ap-exec --steps '')" ]
    [ "$(completed ap-model gpt2-1)" = gpt2-124m ]
    for t in $(ap_tools); do
        bash -n "$dest/share/bash-completion/completions/$t"
        head -n 1 "$dest/share/zsh/site-functions/_$t" | grep -qx "#compdef $t"
        for option in $("$t" --help=all | sed -nE 's/^  (--?[a-z0-9-]+).*/\1/p'); do
            completed "$t" "$option" | grep -qxe "$option" || { echo "bash: $t $option"; return 1; }
            grep -qE -e "^    '[*]?$option(=|)\\[" "$dest/share/zsh/site-functions/_$t" ||
                { echo "zsh: $t $option"; return 1; }
        done
    done
    refuses 2 "--completion: 'fish' is not one of bash, zsh" ap-cost --completion fish
    run ! grep -qe --completion <(ap-cost --help=all)
}

@test "scripts/quickstart and scripts/deps: --help installs nothing" {
    # no package manager and no compiler is found: whatever they would run fails
    mkdir "$BATS_TEST_TMPDIR/bin"
    for t in bash dirname cat; do ln -s "$(command -v $t)" "$BATS_TEST_TMPDIR/bin/$t"; done
    for s in quickstart deps; do
        run -0 --separate-stderr env PATH="$BATS_TEST_TMPDIR/bin" scripts/$s --help
        [[ $output == "usage: scripts/$s"* ]]
        [ -z "$stderr" ]
        run -2 --separate-stderr env PATH="$BATS_TEST_TMPDIR/bin" scripts/$s --hlep
        [ -z "$output" ]
        [[ $stderr == "usage: scripts/$s"* ]]
    done
}
