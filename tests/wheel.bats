#!/usr/bin/env bats
# The wheel: it is built, installed into an environment of its own, and runs without the tree.

load helpers

setup_file() {
    [[ $AP_BUILD != *asan* ]] || skip "a wheel has no sanitizers"
    python3 -m venv "$BATS_FILE_TMPDIR/env" >"$BATS_FILE_TMPDIR/log" 2>&1 ||
        skip "python3 makes no environment with pip: $(tail -n 1 "$BATS_FILE_TMPDIR/log")"
    make -s wheel BUILD="$AP_BUILD" >"$BATS_FILE_TMPDIR/name"
    "$BATS_FILE_TMPDIR/env/bin/pip" --disable-pip-version-check -q install --no-index \
        "$(cat "$BATS_FILE_TMPDIR/name")"
}

# A command with what the environment installed on its PATH, and nothing of the tree.
installed() {
    (cd / && env -i "PATH=$BATS_FILE_TMPDIR/env/bin:/usr/bin:/bin" "HOME=$BATS_TEST_TMPDIR" "$@")
}

@test "wheel: ap-plan finds its siblings, models, clusters and configs, and plans as the tree does" {
    local want
    want=$(ap-plan --quiet gpt2-124m --cluster h100-8 --batch 8 --seq 128 --stages 1)
    [ "$(installed ap-plan --quiet gpt2-124m --cluster h100-8 --batch 8 --seq 128 --stages 1)" = "$want" ]
    [ "$(installed ap-cost --cluster help)" = "$(ap-cost --cluster help)" ]
    [ "$(installed ap-model help)" = "$(ap-model help)" ]
    for t in $(ap_tools); do
        [ -x "$BATS_FILE_TMPDIR/env/bin/$t" ]
        [ -s "$BATS_FILE_TMPDIR/env/share/man/man1/$t.1" ]
    done
    cmp clusters/h100-8.json "$BATS_FILE_TMPDIR/env/share/autopar/clusters/h100-8.json"
}

@test "wheel: programs need glibc and MPI alone, and no newer glibc than the name says" {
    local name t found
    name=$(cat "$BATS_FILE_TMPDIR/name")
    [[ $name =~ manylinux_2_([0-9]+)_$(uname -m)\.whl$ ]]
    for t in "$BATS_FILE_TMPDIR"/env/bin/ap-* "$BATS_FILE_TMPDIR"/env/lib/autopar/*; do
        head -c 4 "$t" | grep -q ELF || continue
        found=$(readelf -V "$t" | grep -o 'GLIBC_2\.[0-9]*' | sort -V | tail -n 1)
        [ "${found#GLIBC_2.}" -le "${BASH_REMATCH[1]}" ]
        [[ $(readelf -d "$t" | grep NEEDED | grep -vE '\[(lib(c|m)\.so\.6|ld-linux.*)\]') == @(|*libmpi.so*) ]]
    done
    [ -n "$found" ]
    # a program that needs another library makes no wheel
    run scripts/wheel/make_wheel.py --build "$BATS_TEST_TMPDIR" --out "$BATS_TEST_TMPDIR"
    [ "$status" -ne 0 ]
    mkdir -p "$BATS_TEST_TMPDIR/wheel/bin"
    cp "$AP_BUILD/bin/ap-cost" "$BATS_TEST_TMPDIR/wheel/bin"
    run -1 scripts/wheel/make_wheel.py --build "$BATS_TEST_TMPDIR" --out "$BATS_TEST_TMPDIR"
    [[ $output == "make_wheel.py: ap-cost needs lib"*", which is not linked into it" ]]
}

@test "wheel: ap-exec runs where MPI is, and says what to install where it is not" {
    local dir=$BATS_TEST_TMPDIR program
    mkdir -p "$dir/bin" "$dir/lib/autopar"
    cp "$BATS_FILE_TMPDIR/env/bin/ap-exec" "$dir/bin"
    refuses 2 "ap-exec: it was not built, for want of OpenMPI or OpenBLAS" "$dir/bin/ap-exec" --version
    program=$dir/lib/autopar/ap-exec
    gcc -shared -Wl,-soname,libmpi.so.99 -o "$dir/libmpi.so" -x c - <<<'int mpi(void) { return 0; }'
    gcc -o "$program" -x c - -x none "$dir/libmpi.so" <<<'int mpi(void); int main(void) { return mpi(); }'
    refuses 2 "ap-exec: there is no OpenMPI (libmpi.so.99): install it, by" "$dir/bin/ap-exec" --version
    cp "$dir/libmpi.so" "$dir/libmpi.so.99"
    LD_LIBRARY_PATH=$dir "$dir/bin/ap-exec" --version
    needs_exec
    [ "$(ap-model mlp | ap-shard --mesh 2 --cluster cpu-4 | ap-rewrite | installed ap-exec -n 2 --json | jq '.losses | length')" = 1 ]
}

@test "wheel: Python finds the tools beside itself; what a tool refuses is its message" {
    installed "$BATS_FILE_TMPDIR/env/bin/python" - <<'END'
import autopar
from autopar import planned, tools
assert tools.run("ap-cost", "--version")[0].startswith(b"ap-cost ")
try:
    tools.run("ap-cost", "--cluster", "nowhere", stdin=b"{}")
except autopar.ToolError as error:
    assert error.tool == "ap-cost" and error.status == 1 and str(error).startswith("ap-cost: "), error
else:
    raise AssertionError("taken")
assert planned.words_of({"memory": "1GiB", "for_": "megatron", "free": True, "jobs": None}) == [
    "--memory", "1GiB", "--for", "megatron", "--free"]
tools.BESIDE = ()
try:
    tools.run("ap-nothing")
except autopar.ToolError as error:
    assert error.status is None and "ap-nothing is not installed" in str(error), error
END
}

@test "wheel: the package imports from a folder of the root, too" {
    run python3 - <<'END'
import pathlib
resolve = pathlib.Path.resolve
pathlib.Path.resolve = lambda path, strict=False: (
    pathlib.Path("/tmp/autopar/tools.py") if path.name == "tools.py" else resolve(path, strict))
import sys
sys.path.insert(0, "python")
from autopar import tools
assert tools.HERE == pathlib.Path("/tmp/autopar"), tools.HERE
assert pathlib.Path("/tmp/bin") in tools.BESIDE, tools.BESIDE
END
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
}

@test "pip install: make builds the tools of this machine, and the wheel has them and both licences" {
    local site
    BUILD=$AP_BUILD "$BATS_FILE_TMPDIR/env/bin/pip" --disable-pip-version-check -q install --no-index --force-reinstall .
    installed ap-plan --quiet gpt2-124m --cluster cpu-4 --batch 4 --seq 32 --stages 1 | grep -q '^step '
    site=$(echo "$BATS_FILE_TMPDIR"/env/lib/python3*/site-packages/autopar-*.dist-info)
    grep -qx 'License-Expression: GPL-3.0-or-later AND Apache-2.0' "$site/METADATA"
    cmp LICENSE "$site/licenses/LICENSE"
    cmp python/LICENSE "$site/licenses/python/LICENSE"
}

@test "licences: what users import says Apache-2.0, file by file" {
    [ -z "$(git ls-files python scripts/jax scripts/torch | grep -vE '\.(md|txt)$|/LICENSE$|ops\.def$|^scripts/jax/autopar$' |
        xargs grep -L 'SPDX-License-Identifier: Apache-2.0')" ]
}

@test "gallery: a page for each plan, and an index that says why a pair has none" {
    local dir=$BATS_TEST_TMPDIR/gallery
    run -1 scripts/gallery -b "$AP_BUILD" -o "$dir" mlp@cpu-4 gpt2-124m@cpu-4:batch=4:seq=32:stages=1 mlp@nowhere
    grep -q '<td><a href="mlp_cpu-4.html">' "$dir/index.html"
    grep -q '<code>ap-plan gpt2-124m --cluster cpu-4 --batch=4 --seq=32 --stages=1</code>' "$dir/index.html"
    grep -q '<td colspan="2">ap-fuse: nowhere: no such file' "$dir/index.html"
    grep -q '^step ' "$dir/mlp_cpu-4.txt"
    head -n 1 "$dir/mlp_cpu-4.html" | grep -q DOCTYPE
    [ ! -e "$dir/mlp_nowhere.html" ]
}
