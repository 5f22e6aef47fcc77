/* What every filter does alike, seen from outside: a child runs a small tool. */
#include "tool/tool.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"
#include "base/file.h"

static char dir[] = "/tmp/autopar-tool-XXXXXX";

struct algo {
    struct ap_choice choice;
    int unused;
};
static const struct algo algos[] = {
    {{"exact", "the best answer"}, 0}, {{"fast", "a quick one"}, 0}, {{NULL, NULL}, 0}};

/* Reads a document, adds a section with the options' values. */
static int tool_main(int argc, char **argv)
{
    struct ap_arena arena = {0};
    struct ap_doc doc;
    int64_t seed = 7;
    double limit = 0.5;
    const char *mesh = NULL;
    bool loud = false;
    int algo = 0;
    const struct ap_opt opts[] = {
        {.name = "seed",
         .kind = AP_OPT_INT,
         .out = &seed,
         .arg = "N",
         .help = "seed",
         .lo = 0,
         .hi = 99},
        {.name = "limit",
         .kind = AP_OPT_NUM,
         .out = &limit,
         .arg = "SEC",
         .help = "time limit"},
        {.name = "mesh",
         .kind = AP_OPT_STR,
         .out = &mesh,
         .arg = "MESH",
         .help = "shape of the mesh"},
        {.name = "loud", .out = &loud, .help = "warn"},
        {.name = "n", .kind = AP_OPT_INT, .out = &seed, .arg = "N", .help = "seed too"},
        {.name = "algorithm",
         .kind = AP_OPT_CHOICE,
         .out = &algo,
         .arg = "NAME",
         .help = "how",
         .choices = &algos[0].choice,
         .choice_stride = sizeof(algos[0])},
        {0},
    };
    struct ap_tool tool = {
        .name = "ap-test", .summary = "does nothing", .operand = "[FILE]", .opts = opts};
    struct ap_new_section section = {.name = "test"};

    ap_tool_start(&tool, argc, argv);
    if (loud)
        ap_warn("loud %d", 1);
    ap_tool_read(&tool, &arena, &doc);
    ap_buf_printf(&section.json, "[%lld,%g,\"%s\",%d]", (long long)seed, limit,
                  mesh ? mesh : "", algo);
    ap_tool_write(&tool, &doc, &section, 1, ",\"seed\":7");
    ap_arena_free(&arena);
    return ap_tool_finish(&tool, ",\"n\":1");
}

static char *slurp(const char *path)
{
    static char text[3][20000];
    static int turn;
    char *t = text[turn++ % 3];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(t, 1, sizeof(text[0]) - 1, f) : 0;

    t[n] = '\0';
    if (f)
        fclose(f);
    return t;
}

static void spill(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
}

/* Runs the tool in dir on file "in"; its exit status, outputs in files "out" and "err".
 */
static int run(const char *args)
{
    char line[500];
    char *argv[20] = {"ap-test"};
    int argc = 1, status;

    snprintf(line, sizeof(line), "%s", args);
    for (char *p = strtok(line, " "); p; p = strtok(NULL, " "))
        argv[argc++] = p;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        bool ok = freopen("in", "r", stdin) && freopen("err", "w", stderr) &&
                  freopen(getenv("TO") ? getenv("TO") : "out", "w", stdout);
        exit(ok ? tool_main(argc, argv) : 99);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* The tool with args exits with code, standard output and error starting so. */
static void expect(const char *args, int code, const char *out, const char *err)
{
    int got = run(args);
    char *o = slurp("out"), *e = slurp("err");
    bool ok = got == code && !strncmp(o, out, strlen(out)) &&
              !strncmp(e, err, strlen(err)) && (*out || !*o) && (*err || !*e);

    CHECK(ok, "ap-test %s: %d%s%s%s%s", args, got, ok ? "" : ": ", ok ? "" : o,
          ok ? "" : " / ", ok ? "" : e);
}

#define OUT(values, args)                                                  \
    "{\"autopar\":1,\n\"kept\":5,\n\"test\":" values ",\n\"history\":["    \
    "{\"tool\":\"ap-test\",\"version\":\"" AP_VERSION "\",\"args\":[" args \
    "],\"seed\":7}]}\n"

static void test_options(void)
{
    expect("", 0, OUT("[7,0.5,\"\",0]", ""), "");
    expect("in", 0, OUT("[7,0.5,\"\",0]", ""), "");
    expect("-", 0, OUT("[7,0.5,\"\",0]", ""), "");
    expect("-- in", 0, OUT("[7,0.5,\"\",0]", ""), "");
    expect("--seed 9 --limit=1e3 --mesh=2x4 --algorithm fast", 0,
           OUT("[9,1000,\"2x4\",1]", "\"--seed\",\"9\",\"--limit=1e3\",\"--mesh=2x4\","
                                     "\"--algorithm\",\"fast\""),
           "");
    expect("-n 3 --quiet", 0, OUT("[3,0.5,\"\",0]", "\"-n\",\"3\""), "");
    expect("--loud", 0, OUT("[7,0.5,\"\",0]", "\"--loud\""),
           "ap-test: warning: loud 1\n");
    expect("--loud --quiet", 0, OUT("[7,0.5,\"\",0]", "\"--loud\""), "");
    expect("--no-history", 0, "{\"autopar\":1,\n\"kept\":5,\n\"test\":[7,0.5,\"\",0]}\n",
           "");
    expect("--stats", 0, OUT("[7,0.5,\"\",0]", ""), "{\"tool\":\"ap-test\",\"sec\":");
    expect("--version", 0, "ap-test (autopar) " AP_VERSION "\n", "");
    expect("--algorithm=help", 0,
           "exact   the best answer (default)\nfast    a quick one\n", "");
    expect("--help", 0,
           "usage: ap-test [OPTION]... [FILE]\ndoes nothing\n\noptions:\n"
           "  --seed N           seed\n  --limit SEC        time limit\n"
           "  --mesh MESH        shape of the mesh\n  --loud             warn\n"
           "  -n N               seed too\n  --algorithm NAME   how\n"
           "  -o FILE            write to FILE",
           "");
}

static void test_usage(void)
{
    expect("--sed 3", 2, "",
           "ap-test: unknown option '--sed'; did you mean '--seed'?\ntry 'ap-test "
           "--help'\n");
    expect("--see=3", 2, "", "ap-test: unknown option '--see=3'");
    expect("-seed 3", 2, "", "ap-test: unknown option '-seed'");
    expect("-n x", 2, "", "ap-test: -n: expected an integer, got 'x'");
    expect("--n 3", 2, "", "ap-test: unknown option '--n'");
    expect("-q", 2, "", "ap-test: unknown option '-q'");
    expect("--seed", 2, "", "ap-test: option '--seed' needs a value");
    expect("--loud=1", 2, "", "ap-test: option '--loud' takes no value");
    expect("--seed x", 2, "", "ap-test: --seed: expected an integer, got 'x'");
    expect("--seed 1.5", 2, "", "ap-test: --seed: expected an integer, got '1.5'");
    expect("--seed=", 2, "", "ap-test: --seed: expected an integer, got ''");
    expect("--seed 100", 2, "",
           "ap-test: --seed: expected an integer from 0 to 99, got 100");
    expect("--limit nan", 2, "", "ap-test: --limit: expected a number, got 'nan'");
    expect("--algorithm slow", 2, "",
           "ap-test: --algorithm: 'slow' is not one of exact, fast");
    expect("in out", 2, "", "ap-test: more than one operand: 'in' and 'out'");
}

static void test_files(void)
{
    struct stat st;

    expect("nowhere", 1, "", "ap-test: nowhere: No such file or directory\n");
    expect(".", 1, "", "ap-test: .: Is a directory\n");
    expect("-o result", 0, "", "");
    CHECK(!strcmp(slurp("result"), OUT("[7,0.5,\"\",0]", "")), "-o writes a file");
    mode_t mask = umask(022);
    umask(mask);
    CHECK(!stat("result", &st) && (st.st_mode & 0777) == (0666 & ~mask), "of usual mode");
    CHECK(access("result", F_OK) == 0 && system("ls | grep -q result[.]") != 0,
          "no temporary file is left");
    expect("-o no/where", 1, "", "ap-test: no/where: cannot write: No such file");
    expect("-o /dev/null", 0, "", "");
    CHECK(!stat("/dev/null", &st) && S_ISCHR(st.st_mode), "a device is not replaced");
    setenv("TO", "/dev/full", 1);
    CHECK(run("") == 1 && strstr(slurp("err"), "cannot write to standard output"),
          "a full disk is noticed: %s", slurp("err"));
    unsetenv("TO");
    spill("in", "{\"autopar\":1,");
    expect("", 1, "", "ap-test: <stdin>:1:14: expected a section name in quotes, but");
    expect("in", 1, "", "ap-test: in:1:14: expected a section name in quotes, but");
    expect("-o result", 1, "", "ap-test: <stdin>:1:14");
    CHECK(!strncmp(slurp("result"), "{\"autopar\":1,\n\"kept\"", 20),
          "an old file stays when the tool fails");
}

static void test_gzip(void)
{
    struct ap_arena arena = {0};
    struct ap_err err = {""};
    char *text;
    size_t len;

    spill("plain", "some text");
    CHECK(!system("gzip -k plain && head -c 20 plain.gz >cut.gz"), "gzip runs");
    CHECK(!ap_read_file(&arena, "plain.gz", true, &text, &len, &err) && len == 9 &&
              !strcmp(text, "some text"),
          "gzip is unpacked");
    CHECK(!ap_read_file(&arena, "plain", true, &text, &len, &err) &&
              !strcmp(text, "some text"),
          "plain text is taken as it is");
    CHECK(!ap_read_file(&arena, "plain.gz", false, &text, &len, &err) &&
              text[0] == '\x1f',
          "unless not asked for");
    CHECK(ap_read_file(&arena, "cut.gz", true, &text, &len, &err) &&
              !strncmp(err.msg, "cut.gz: ", 8),
          "a cut gzip file is refused: %s", err.msg);
    err = (struct ap_err){""};
    CHECK(!system("head -c 70000000 /dev/zero | gzip >bomb.gz"), "gzip runs");
    CHECK(ap_read_file(&arena, "bomb.gz", true, &text, &len, &err) &&
              !strncmp(err.msg, "bomb.gz: unpacks to more than 67108864 bytes", 44),
          "a file that unpacks to a thousand times its size is refused: %s", err.msg);
    ap_arena_free(&arena);
}

int main(void)
{
    if (!mkdtemp(dir) || chdir(dir))
        return 1;
    spill("in", "{\"autopar\":1,\"kept\": 5}");
    test_options();
    test_usage();
    test_files();
    test_gzip();
    char remove[100];
    snprintf(remove, sizeof(remove), "rm -r %s", dir);
    CHECK(!chdir("/") && !system(remove), "the folder is removed");
    return tap_done();
}
