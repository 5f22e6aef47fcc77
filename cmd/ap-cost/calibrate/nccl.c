/*
 * Outputs of nccl-tests (github.com/NVIDIA/nccl-tests): the table that its tests print,
 * with a line per rank and one per size, or the file of its option -J. Times are those
 * out of place, in microseconds. A row's size is the collective's full tensor for
 * all-reduce, all-gather and reduce-scatter; for all-to-all the bytes of one rank, a part
 * of it, and for sendrecv the bytes that one rank sends.
 */
#include "calibrate/calibrate.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct test {
    const char *name;
    enum ap_op op;
} tests[] = {
    {"all_reduce", AP_OP_ALL_REDUCE},         {"all_gather", AP_OP_ALL_GATHER},
    {"reduce_scatter", AP_OP_REDUCE_SCATTER}, {"alltoall", AP_OP_ALL_TO_ALL},
    {"sendrecv", AP_OP_COLLECTIVE_PERMUTE},
};

/* The collective whose test's name is part of the text, AP_N_OPS: none. */
static enum ap_op op_in(const char *text)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strstr(text, tests[i].name))
            return tests[i].op;
    return AP_N_OPS;
}

/* The class of a test on the cluster's first n devices. */
static int class_of(const struct cal *c, enum ap_op op, int64_t n, struct cal_class *key,
                    struct ap_err *err)
{
    const int first[] = {0, (int)n};
    int64_t *device = AP_NEW_N(c->arena, n + 1, int64_t);

    if (!c->has_cluster)
        return ap_err_set(err, "says nothing of devices: give a cluster by --cluster, or "
                               "a profile before it");
    for (int64_t i = 0; i < n; i++)
        device[i] = i;
    *key = (struct cal_class){.what = CAL_COLLECTIVE, .op = op, .devices = n};
    if (n < 2 || cal_level(&c->cluster, 1, first, device, &key->level, &key->rings))
        return ap_err_set(err, "%lld ranks, cluster %s has %lld devices", (long long)n,
                          c->cluster.name, (long long)ap_cluster_devices(&c->cluster));
    return 0;
}

static void add_row(struct cal *c, const struct cal_class *key, double size, double usec)
{
    const double times = key->op == AP_OP_ALL_TO_ALL ? (double)key->devices : 1;
    const struct cal_sample s = {.bytes = size * times, .sec = usec * 1e-6, .weight = 1};
    if (s.bytes > 0 && s.sec > 0)
        cal_add(c, cal_class_of(c, key), &s);
}

/* ---- text ---- */

struct table {
    enum ap_op op;
    int64_t ranks;
    int line;
};

/* A comment: what test it is, and who takes part. */
static void read_comment(struct table *t, const char *line)
{
    static const char starts[] = "Collective test starting:";
    const char *word = line + 1 + strspn(line + 1, " \t");

    if (strncmp(word, starts, sizeof starts - 1) == 0)
        t->op = op_in(word);
    if (strncmp(word, "Rank", 4) == 0 && isspace((unsigned char)word[4])) {
        const int64_t rank = strtoll(word + 4, NULL, 10);
        t->ranks = rank + 1 > t->ranks ? rank + 1 : t->ranks;
    }
}

/* size count type redop root time algbw busbw #wrong ... */
static int read_row(struct cal *c, const struct table *t, const char *line,
                    struct ap_err *err)
{
    enum { SIZE, COUNT, TYPE, REDOP, ROOT, TIME, ALGBW, BUSBW, N_FIELDS };
    char field[N_FIELDS][32];
    int n = 0;
    struct cal_class key;

    for (const char *p = line; n < N_FIELDS; n++) {
        p += strspn(p, " \t\r");
        const size_t len = strcspn(p, " \t\r");
        if (len == 0 || len >= sizeof field[0])
            break;
        memcpy(field[n], p, len);
        field[n][len] = 0;
        p += len;
    }
    char *size_end = NULL, *time_end = NULL;
    const double size = n > SIZE ? strtod(field[SIZE], &size_end) : 0;
    const double usec = n > TIME ? strtod(field[TIME], &time_end) : 0;
    if (n < N_FIELDS || *size_end || *time_end || !(usec >= 0 && usec < 1e12) ||
        !(size >= 0 && size < 1e18))
        return ap_err_set(err, "expected size, count, type, redop, root, time, algbw and "
                               "busbw");
    if (t->op == AP_N_OPS)
        return ap_err_set(err, "unknown collective: neither a line 'Collective test "
                               "starting: all_reduce_perf' nor the file's name has it");
    if (t->ranks == 0)
        return ap_err_set(err, "no line '#  Rank  0 ...' before it says how many take "
                               "part");
    if (class_of(c, t->op, t->ranks, &key, err))
        return -1;
    add_row(c, &key, size, usec);
    return 0;
}

/* Lines of numbers; others are messages of NCCL and mpirun. */
static bool is_row(const char *line)
{
    const char *p = line + strspn(line, " \t");
    const size_t digits = strspn(p, "0123456789");
    const char *next = p + digits + strspn(p + digits, " \t");
    return digits > 0 && next > p + digits && isdigit((unsigned char)*next);
}

int cal_read_nccl_text(struct cal *c, const char *file, const char *text,
                       struct ap_err *err)
{
    const char *name = strrchr(file, '/');
    struct table t = {.op = op_in(name ? name : file)};
    struct ap_err why = {0};
    int n = 0;

    for (const char *p = text; *p; t.line++) {
        const size_t len = strcspn(p, "\n");
        const char *line = ap_arena_strndup(c->arena, p, len);
        p += len + (p[len] == '\n');
        const char *at = line + strspn(line, " \t");
        if (*at == '#') {
            read_comment(&t, at);
        } else if (is_row(line)) {
            if (read_row(c, &t, line, &why))
                return ap_err_set(err, "%s:%d: %s", file, t.line + 1, why.msg);
            n++;
        }
    }
    if (n == 0)
        return ap_err_set(err,
                          "%s: neither a profile of ap-exec nor an output of "
                          "nccl-tests",
                          file);
    return 0;
}

/* ---- JSON ---- */

bool cal_is_nccl_json(const json_t *doc)
{
    return json_object_get(doc, "results") && json_object_get(doc, "config");
}

static int read_json(struct cal *c, const char *file, const json_t *doc,
                     struct ap_err *err)
{
    const struct ap_at args_at = {NULL, "args", 0}, results_at = {NULL, "results", 0};
    const struct ap_at config_at = {NULL, "config", 0};
    const json_t *program = json_array_get(json_object_get(doc, "args"), 0);
    const char *name = strrchr(file, '/');
    json_t *results, *devices;
    struct cal_class key;

    enum ap_op op =
        json_is_string(program) ? op_in(json_string_value(program)) : AP_N_OPS;
    if (op == AP_N_OPS)
        op = op_in(name ? name : file);
    if (op == AP_N_OPS)
        return ap_at_err(&args_at, err,
                         "expected the name of a test first, such as "
                         "all_reduce_perf");
    if (ap_get_arr(json_object_get(doc, "config"), &config_at, "devices", &devices,
                   err) ||
        ap_get_arr(doc, NULL, "results", &results, err) ||
        class_of(c, op, (int64_t)json_array_size(devices), &key, err))
        return -1;
    for (size_t i = 0; i < json_array_size(results); i++) {
        const struct ap_at at = {&results_at, NULL, (long)i};
        const struct ap_at place_at = {&at, "out_of_place", 0};
        const json_t *row = json_array_get(results, i);
        const json_t *place = json_object_get(row, "out_of_place");
        double size, usec;
        if (ap_get_num(row, &at, "size", &size, err))
            return -1;
        if (!json_is_object(place))
            return ap_at_err(&place_at, err, "expected an object with the time");
        if (ap_get_num(place, &place_at, "time", &usec, err))
            return -1;
        add_row(c, &key, size, usec);
    }
    return 0;
}

int cal_read_nccl_json(struct cal *c, const char *file, const json_t *doc,
                       struct ap_err *err)
{
    struct ap_err why = {0};
    return read_json(c, file, doc, &why) ? ap_err_set(err, "%s: %s", file, why.msg) : 0;
}
