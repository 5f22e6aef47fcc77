#!/usr/bin/env bats
# scripts/lint-house: it passes on this tree, and finds what is planted in a copy.

load helpers

setup() {
    root=$BATS_TEST_TMPDIR/tree
    mkdir -p "$root"
}

# Copies files into the tree.
copy() {
    local f
    for f; do
        mkdir -p "$root/$(dirname "$f")"
        cp -r "$f" "$root/$f"
    done
}

# finds CHECK TEXT...: the check fails on the tree, and prints a line that has all texts.
finds() {
    local check=$1 text lines
    shift
    run scripts/lint-house "$check" "$root"
    [ "$status" -eq 1 ]
    lines=$output
    for text; do lines=$(grep -F -e "$text" <<<"$lines") || { echo "no $text in: $output"; return 1; }; done
}

@test "lint-house: this tree passes" {
    run scripts/lint-house -b "$AP_BUILD"
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    [ -z "$output" ]
}

@test "lint-house: a check that does not exist is refused" {
    run scripts/lint-house --rooms
    [ "$status" -eq 2 ]
    [[ $output == *"includes"*"words"* ]]
}

@test "lint-house: an include of a later room is found" {
    copy libcommon
    run scripts/lint-house includes "$root"
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    echo '#include "plan/plan.h"' >>"$root/libcommon/layout/nest.c"
    finds includes "libcommon/layout/nest.c:" 'layout/ includes "plan/plan.h" of a later room'
}

@test "lint-house: solve/ includes base/ only, and includes name their room" {
    mkdir -p "$root/libcommon/"{base,solve,graph}
    touch "$root/libcommon/graph/graph.h"
    echo '#include "graph/graph.h"' >"$root/libcommon/solve/a.c"
    finds includes 'libcommon/solve/a.c:1: solve/ includes "graph/graph.h"'
    echo '#include "base.h"' >"$root/libcommon/solve/a.c"
    finds includes 'libcommon/solve/a.c:1:' '"ROOM/FILE.h"'
    mkdir "$root/libcommon/attic"
    echo '#include "base/base.h"' >"$root/libcommon/attic/a.c"
    finds includes 'libcommon/attic/a.c:1: libcommon/attic is no room'
}

@test "lint-house: an include of another tool is found" {
    copy cmd/ap-cost cmd/ap-prune
    mkdir "$root/libcommon"
    run scripts/lint-house includes "$root"
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    echo '#include "prune.h"' >>"$root/cmd/ap-cost/ap-cost.c"
    finds includes "cmd/ap-cost/ap-cost.c:" '"prune.h" is neither in libcommon nor in cmd/ap-cost'
    echo '#include "../ap-prune/prune.h"' >"$root/cmd/ap-cost/more.c"
    finds includes "cmd/ap-cost/more.c:1:" 'leaves its folder'
}

@test "lint-house: a symbol of a later room is found" {
    mkdir -p "$root/libcommon/"{base,graph,tool} "$root/build/libcommon/"{base,graph,tool}
    echo 'int ap_die(void); int low(void); int low(void) { return ap_die(); }' >"$root/libcommon/base/low.c"
    echo 'int ap_die(void); int ap_die(void) { return 1; }' >"$root/libcommon/tool/high.c"
    echo 'int low(void); int mid(void); int mid(void) { return low(); }' >"$root/libcommon/graph/mid.c"
    for f in base/low tool/high graph/mid; do
        cc -c -o "$root/build/libcommon/$f.o" "$root/libcommon/$f.c"
    done
    finds symbols 'libcommon/base/low.o: needs ap_die of tool/'
    [ "$(wc -l <<<"$output")" -eq 1 ]
}

@test "lint-house: an include of a later folder of a tool is found" {
    copy libcommon cmd/ap-exec cmd/ap-stage
    mkdir -p "$root/cmd/ap-shard"
    cp -r cmd/ap-shard/serve "$root/cmd/ap-shard/"
    run scripts/lint-house includes "$root"
    [[ $output != *ap-exec* && $output != *ap-stage* ]] || { echo "$output"; return 1; }
    echo '#include "cpu/cpu.h"' >>"$root/cmd/ap-exec/step/exec.c"
    finds includes 'cmd/ap-exec/step/exec.c:' 'step/ of ap-exec includes "cpu/cpu.h" of a later folder'
    echo '#include "planning.h"' >>"$root/cmd/ap-stage/search/space.h" # beside ap-stage.c
    finds includes 'cmd/ap-stage/search/space.h:' 'search/ of ap-stage includes "planning.h" of a later folder'
}

@test "lint-house: a symbol of a later folder of a tool is found" {
    mkdir -p "$root/"{,build/}"cmd/ap-exec/"{elem,comm}
    echo 'int high(void); int low(void); int low(void) { return high(); }' >"$root/cmd/ap-exec/elem/low.c"
    echo 'int low(void); int high(void); int high(void) { return low(); }' >"$root/cmd/ap-exec/comm/high.c"
    for f in elem/low comm/high; do
        cc -c -o "$root/build/cmd/ap-exec/$f.o" "$root/cmd/ap-exec/$f.c"
    done
    finds symbols 'cmd/ap-exec/elem/low.o: needs high of comm/'
    [ "$(wc -l <<<"$output")" -eq 1 ]
}

@test "lint-house: a function and a pointer to one of eight parameters are found" {
    mkdir -p "$root/cmd/ap-x"
    cat >"$root/cmd/ap-x/ap-x.c" <<'END'
#define EIGHT(a, b, c, d, e, f, g, h) (a)
int seven(int a, int b, int c, int (*d)(int, int), /* a, comma */
          int e, int f, int g);
int eight(int a, int b, int c, int d,
          int e, int f, int g, int h)
{
    return seven(a, b, c, 0, e, f, g) + EIGHT(a, b, c, d, e, f, g, h);
}
struct table {
    int (*each)(int, int, int, int, int, int, int, int);
};
END
    finds params 'cmd/ap-x/ap-x.c:4: eight has 8 parameters, at most 7'
    finds params 'cmd/ap-x/ap-x.c:10: each has 8 parameters'
    [ "$(wc -l <<<"$output")" -eq 2 ]
}

@test "lint-house: conditions of tests whose failure bash passes over are found" {
    mkdir -p "$root/tests"
    cat >"$root/tests/x.bats" <<'END'
x() {
    [ -e a ] && [ -e b ]
    ! grep -q a b
    [ -e a ] && [ -e b ] || return 1
    run ! grep -q a b
    if [ -e a ] && [ -e b ]; then true; fi
}
END
    finds silent 'tests/x.bats:2: a failure that no test sees'
    finds silent 'tests/x.bats:3: a failure that no test sees'
    [ "$(wc -l <<<"$output")" -eq 2 ]
}

@test "lint-house: a file of an algorithm, and a long file that searches, without an opening comment are found" {
    mkdir -p "$root/cmd/"{ap-x,ap-prune} "$root/libcommon/"{doc,graph}
    cat >"$root/cmd/ap-x/ap-x.c" <<'END'
static const struct algorithm algorithms[] = {
    {"greedy", run_greedy},
    {"exact", run_exact},
    {0},
};
END
    echo 'int run_exact(int a)' >"$root/cmd/ap-x/exact.c"
    {
        echo '/* Takes the cheapest choice of every group in turn, in the order of the graph: at most'
        echo ' * twice the best for chains, by the exchange of two neighbours. */'
        echo 'int run_greedy(int a)'
    } >"$root/cmd/ap-x/greedy.c"
    for n in {1..201}; do echo "int number_$n; /* a line */"; done |
        tee "$root/libcommon/doc/long.c" >"$root/libcommon/graph/long.c"
    head -200 "$root/libcommon/doc/long.c" >"$root/cmd/ap-prune/short.c"
    finds comments 'cmd/ap-x/exact.c: no opening comment'
    finds comments 'libcommon/graph/long.c: no opening comment'
    [ "$(wc -l <<<"$output")" -eq 2 ]
}

@test "lint-house: code of libcommon that one tool alone needs is found" {
    mkdir -p "$root/libcommon/base" "$root/cmd/"{ap-a,ap-b} "$root/build/libcommon/base" "$root/build/cmd/"{ap-a,ap-b}
    echo 'int both(void); int both(void) { return 1; }' >"$root/libcommon/base/both.c"
    echo 'int deep(void); int deep(void) { return 2; }' >"$root/libcommon/base/deep.c"
    echo 'int deep(void); int one(void); int one(void) { return deep(); }' >"$root/libcommon/base/one.c"
    echo 'int none(void); int none(void) { return 3; }' >"$root/libcommon/base/none.c"
    echo 'int both(void); int one(void); int main(void) { return both() + one(); }' >"$root/cmd/ap-a/ap-a.c"
    echo 'int both(void); int main(void) { return both(); }' >"$root/cmd/ap-b/ap-b.c"
    for f in libcommon/base/{both,deep,one,none} cmd/ap-a/ap-a; do
        cc -c -o "$root/build/$f.o" "$root/$f.c"
    done
    run scripts/lint-house users "$root" # ap-b is not built: nothing can be said
    [ "$status" -eq 0 ]
    cc -c -o "$root/build/cmd/ap-b/ap-b.o" "$root/cmd/ap-b/ap-b.c"
    finds users 'libcommon/base/deep.c: only ap-a needs it: move it to cmd/ap-a'
    finds users 'libcommon/base/one.c: only ap-a needs it'
    finds users 'libcommon/base/none.c: no tool needs it'
    [ "$(wc -l <<<"$output")" -eq 3 ]
}

@test "lint-house: a print and an exit in a low room are found, in comments and strings they are not" {
    copy libcommon/cost libcommon/base libcommon/tool
    run scripts/lint-house prints "$root"
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    cat >"$root/libcommon/cost/planted.c" <<'END'
/* printf("no"); and over
   lines exit(1) */
static const char *text = "printf(\"x\"); /* exit(1)";
static void show(FILE *out) { fprintf(out, "of the caller"); }
static void bad(void) { printf("%s\n", text); }
static void worse(void) { /* a */ exit(3); }
static void third(FILE *f) { f = stderr; }
END
    finds prints "libcommon/cost/planted.c:5: prints or exits below tool/" 'printf('
    finds prints "libcommon/cost/planted.c:6:" 'exit(3)'
    finds prints "libcommon/cost/planted.c:7:" 'stderr'
    [ "$(wc -l <<<"$output")" -eq 3 ]
}

@test "lint-house: a struct tag of two private headers is found" {
    copy cmd/ap-cost cmd/ap-solve
    run scripts/lint-house tags "$root"
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    printf 'struct planted {\n    int a;\n};\n' | tee -a "$root/cmd/ap-cost/price.h" >"$root/cmd/ap-solve/solve_impl.h"
    printf 'struct planted;\nint use(const struct planted *p);\n' >"$root/cmd/ap-solve/third.h"
    finds tags "struct planted: defined in cmd/ap-cost/price.h:" "cmd/ap-solve/solve_impl.h:1"
    [ "$(wc -l <<<"$output")" -eq 1 ]
}

@test "lint-house: an option that no test names is found" {
    copy cmd/ap-prune/ap-prune.c tests/prune.bats
    run scripts/lint-house options "$root"
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    sed -i 's/{"max-depth", AP_OPT_INT/{"planted", AP_OPT_INT, 0},\n&/' "$root/cmd/ap-prune/ap-prune.c"
    finds options "ap-prune --planted: no test in tests/"
    echo 'ap-prune --planted-more 3' >>"$root/tests/prune.bats" # another option
    finds options "ap-prune --planted: no test in tests/"
    echo 'ap-prune --planted 3' >>"$root/tests/prune.bats"
    run scripts/lint-house options "$root"
    [ "$status" -eq 0 ]
}

@test "lint-house: an algorithm that no README names is found" {
    mkdir -p "$root/cmd/ap-prune" "$root/build/bin"
    ln -s "$AP_BUILD/bin/ap-prune" "$root/build/bin/ap-prune"
    echo 'Algorithms: `scope`, `structure-x`, `none`.' >"$root/cmd/ap-prune/README.md"
    finds rows "ap-prune --algorithm structure: no README.md names it"
    [ "$(wc -l <<<"$output")" -eq 1 ]
    echo '`structure` too' >>"$root/cmd/ap-prune/README.md"
    run scripts/lint-house rows "$root"
    [ "$status" -eq 0 ]
}

@test "lint-house: folders with too many files or without a README are found" {
    mkdir -p "$root/libcommon/base" "$root/cmd/ap-exec/comm"
    touch "$root/libcommon/base/"{1..40}.c "$root/cmd/ap-exec/comm/"{1..11}.c
    finds folders "libcommon/base: no README.md"
    finds folders "cmd/ap-exec: no README.md"
    finds folders "cmd/ap-exec/comm: no README.md"
    for d in libcommon/base cmd/ap-exec cmd/ap-exec/comm; do echo x >"$root/$d/README.md"; done
    run scripts/lint-house folders "$root"
    [ "$status" -eq 0 ]
    touch "$root/libcommon/base/41.h"
    finds folders "libcommon/base: 41 source files, at most 40"
}

@test "lint-house: a folder of a tool that has no place in the order is found" {
    mkdir -p "$root/cmd/"{ap-exec,ap-prune}/attic
    touch "$root/cmd/"{ap-exec,ap-prune}/attic/a.h
    finds folders "cmd/ap-exec/attic: has no place in the order of ap-exec's folders"
    finds folders "cmd/ap-prune/attic: has no place in the order of ap-prune's folders"
    [ "$(wc -l <<<"$output")" -eq 2 ]
}

@test "lint-house: a coined word is found in code, comments, pages and messages" {
    mkdir -p "$root/libcommon/base" "$root/man"
    echo 'struct hunt { int a; };' >"$root/libcommon/base/a.h"
    echo 'The Stand-In of the graph.' >"$root/man/ap-x.1"
    echo 'Hunting is shunted, not early; a bookshelf looks fine.' >"$root/README.md"
    finds words 'libcommon/base/a.h:1: "hunt": say memory search'
    finds words 'man/ap-x.1:1: "Stand-In": say proxy'
    finds words 'README.md:1: "Hunting"'
    [ "$(wc -l <<<"$output")" -eq 3 ]
}

# The tree that the check of operators reads.
copy_operators() {
    copy libcommon cmd/ap-exec cmd/ap-import cmd/ap-cost schemas python/autopar scripts/jax
    run scripts/lint-house operators "$root"
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
}

# planted ROW: in the copy's operator table, before the operators of programs
planted() {
    sed -i "s/^\/\* programs only/AP_OP($1)\n&/" "$root/libcommon/graph/ops.def"
}

@test "lint-house: an operator without a schema, JAX counterpart, kernel or columns is found" {
    copy_operators
    planted 'PLANT, "plant", 1, AP_CLASS_ELEMENTWISE, 8, AP_OF_FLOAT, AP_IN_F32, UNARY(NEG(d)), ""'
    finds operators 'schemas/graph.json: no operator plant'
    [[ $output == *'operators.py: no function for plant, and its row names none of jax.lax'* ]]
    [[ $output == *'cmd/ap-exec: no formula for plant, nor a place in cuda/'* ]]
    [[ $output == *'cmd/ap-exec: no formula for plant, nor a place in cpu/'* ]]
    sed -i 's/AP_OP(PLANT.*/AP_OP(PLANT, "plant", 1, AP_CLASS_ELEMENTWISE, 8, AP_IN_F32, UNARY(NEG(d)), "neg")/' \
        "$root/libcommon/graph/ops.def"
    finds operators 'libcommon/graph/ops.def:' 'a row without all its columns' # no element types
    sed -i 's/AP_OP(PLANT.*/AP_OP(PLANT, "plant", 1, AP_CLASS_MOVE, 0, AP_OF_ANY, AP_LIKE_OPERANDS, NONE, "neg")/' \
        "$root/libcommon/graph/ops.def"
    finds operators 'no formula for plant, nor a place in cuda/'
    sed -i 's/"plant"/"acosh"/' "$root/libcommon/graph/ops.def"
    finds operators 'hlo_parse.c: refuses acosh, which libcommon/graph/ops.def has'
}

@test "lint-house: an elementwise operator is its row, its formula and its name in the schema" {
    copy_operators
    planted 'PLANT, "plant", 1, AP_CLASS_ELEMENTWISE, 8, AP_OF_FLOAT, AP_IN_F32, UNARY(NEG(d)), "neg"'
    sed -i 's/^    UNARY(SQRT, S, T, .*/&\n    UNARY(PLANT, S, T, -x) \\/' "$root/libcommon/graph/formulas.h"
    sed -i 's/^            "sqrt",/&\n            "plant",/' "$root/schemas/graph.json"
    run scripts/lint-house operators "$root"
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
}

@test "lint-house: a collective that one place leaves out is found, and a place that is not listed" {
    copy_operators
    sed -i 's/^AP_OP(ALL_TO_ALL, "all-to-all"\(.*\)/&\nAP_OP(ALL_PLANT, "all-plant"\1/' "$root/libcommon/graph/ops.def"
    # everywhere where all-to-all is
    grep -rlE 'AP_OP_ALL_TO_ALL\b|"all-to-all"' "$root" --include='*.[ch]' --include='*.py' --include='*.json' |
        xargs sed -i 's/.*AP_OP_ALL_TO_ALL\b.*/&\n\/* AP_OP_ALL_PLANT *\//; s/"all-to-all"/&, "all-plant"/'
    sed -i 's/"all-to-all", "all-plant": all_to_all,/"all-to-all": all_to_all, "all-plant": all_to_all,/' \
        "$root/python/autopar/collectives.py"
    run scripts/lint-house operators "$root"
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    local file
    for file in libcommon/cost/convert.c cmd/ap-cost/calibrate/fit.c schemas/program.json \
        python/autopar/collectives.py; do
        cp "$root/$file" "$root/whole"
        sed -i 's/ALL_PLANT//; s/"all-plant"//' "$root/$file"
        finds operators "$file: a collective is left out: all-plant"
        mv "$root/whole" "$root/$file"
    done
    cp "$root/libcommon/pipeline/stage_trainer.c" "$root/cmd/ap-cost/elsewhere.c"
    finds operators 'cmd/ap-cost/elsewhere.c: names every collective, and libcommon/cost/README.md does not list it'
}
