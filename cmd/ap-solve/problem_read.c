/*
 * Reads the selection problem in the contest's format (problem_read.h) as a stream: a
 * block of the file at a time, numbers straight into arrays, no tree of JSON values.
 * Arrays of costs and usages are looked up in a hash table of those seen before, as
 * layers repeat theirs: most files need less memory than their text. O(bytes).
 */
#include "problem_read.h"

#include "base/file.h"
#include "base/json_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#define BLOCK     ((size_t)1 << 18)
#define FORBIDDEN 1e18
#define MAX_ITEMS INT32_MAX

/* Equal arrays, once. */
struct pool {
    struct pool_item {
        uint64_t hash;
        const void *data;
        size_t n;
    } * slot;
    size_t n, cap;
};

/* A list of arrays, as they come. */
struct list {
    const void **data;
    size_t *n_items; /* [array] */
    size_t n, cap;
    bool seen;
};

struct reader {
    struct ap_arena *arena;
    struct ap_err *err;
    const char *name;
    struct ap_json json;
    gzFile gz;         /* NULL when the text is at hand */
    char *buffer;      /* of gz */
    const char *block; /* the bytes at hand: json stands in them */
    /* before the block: bytes, ends of lines, and where its first line begins */
    size_t n_before, n_lines, line_start;
    bool failed;
    struct pool pool;
    int64_t *scratch; /* numbers of one array, or the bits of doubles */
    size_t cap_scratch;
    struct list node_cost, usage, edge_cost, interval, edge_node;
    int64_t limit;
    bool has_limit, has_problem;
};

/* ---- bytes ---- */

/* Counts the lines that end in the block before `to`. */
static void count_lines(struct reader *r, const char *to)
{
    const char *at = r->block, *line;

    for (; at < to && (line = memchr(at, '\n', (size_t)(to - at))); at = line + 1) {
        r->n_lines++;
        r->line_start = r->n_before + (size_t)(line - r->block) + 1;
    }
}

static int fail(struct reader *r, const char *what)
{
    if (r->failed)
        return -1;
    count_lines(r, r->json.at);
    size_t offset = r->n_before + (size_t)(r->json.at - r->block);
    ap_err_set(r->err, "%s:%zu:%zu: %s", r->name, r->n_lines + 1,
               offset - r->line_start + 1, what);
    r->failed = true;
    return -1;
}

/* As fail, for what the tokenizer says. */
static int fail_json(struct reader *r)
{
    return fail(r, r->json.why);
}

/* The next block; false at the end. */
static bool refill(struct ap_json *json)
{
    struct reader *r = json->ctx;
    int code;

    if (!r->gz || r->failed)
        return false;
    count_lines(r, json->end);
    r->n_before += (size_t)(json->end - r->block);
    int n = gzread(r->gz, r->buffer, BLOCK);
    r->block = json->at = r->buffer;
    json->end = r->buffer + (n > 0 ? n : 0);
    if (n < 0) {
        const char *why = gzerror(r->gz, &code);
        ap_err_set(r->err, "%s: %s", r->name,
                   code == Z_ERRNO ? strerror(errno) : ap_gzip_why(why));
        r->failed = true;
    }
    return n > 0;
}

static int expect(struct reader *r, char want)
{
    char what[] = "expected ' '";

    if (ap_json_take(&r->json, want))
        return 0;
    what[10] = want;
    return fail(r, what);
}

/* After an item: 1 when another follows, 0 at the closing bracket, -1. */
static inline int more(struct reader *r, char close)
{
    int next = ap_json_more(&r->json, close);
    return next < 0 ? fail_json(r) : next;
}

/* ---- values ---- */

/* What follows the digits of x: a fraction, an exponent. Rarely used. */
static int read_rest(struct reader *r, uint64_t x, double *value)
{
    char text[64], *end;
    int n = snprintf(text, sizeof(text), "%" PRIu64, x), c;

    while ((c = ap_json_peek(&r->json)) >= 0 && strchr(".eE+-0123456789", c)) {
        if (n + 1 >= (int)sizeof(text))
            return fail(r, "the number is too long");
        text[n++] = (char)c;
        r->json.at++;
    }
    text[n] = '\0';
    *value = strtod(text, &end);
    if (*end || !isfinite(*value))
        return fail(r, "expected a number");
    return 0;
}

/*
 * A number >= 0. Costs (cost not NULL) may have a fraction; all others are integers, and
 * fit.
 */
static inline int read_number(struct reader *r, int64_t *value, double *cost)
{
    int c = ap_json_next(&r->json), n = 0;
    uint64_t x = 0;
    double real = 0;

    while (c >= '0' && c <= '9') {
        if (n++ > 0 && x == 0)
            return fail(r, "a number begins with 0");
        if (x > (INT64_MAX - 9) / 10)
            return fail(r, "the number is too large");
        x = 10 * x + (uint64_t)(c - '0');
        r->json.at++;
        c = ap_json_peek(&r->json);
    }
    if (n == 0)
        return fail(r, "expected a number >= 0");
    *value = (int64_t)x;
    if (cost)
        *cost = (double)x;
    if (c != '.' && c != 'e' && c != 'E')
        return 0;
    if (read_rest(r, x, &real))
        return -1;
    if (cost)
        *cost = real;
    else if (real != floor(real) || real > 9e18)
        return fail(r, "expected an integer");
    else
        *value = (int64_t)real;
    return 0;
}

/* Any value that nothing here needs. */
static int skip_value(struct reader *r)
{
    return ap_json_skip(&r->json, 0) ? fail_json(r) : 0;
}

/* ---- arrays of numbers ---- */

static void *grow(void *old, size_t *cap, size_t size)
{
    *cap = *cap ? 2 * *cap : 1024;
    return ap_xrealloc(old, *cap * size);
}

static void pool_grow(struct pool *pool)
{
    struct pool old = *pool;

    pool->cap = old.cap ? 2 * old.cap : 4096;
    pool->slot = ap_xrealloc(NULL, pool->cap * sizeof(*pool->slot));
    memset(pool->slot, 0, pool->cap * sizeof(*pool->slot));
    for (size_t i = 0; i < old.cap; i++) {
        if (!old.slot[i].data)
            continue;
        size_t h = old.slot[i].hash & (pool->cap - 1);
        while (pool->slot[h].data)
            h = (h + 1) & (pool->cap - 1);
        pool->slot[h] = old.slot[i];
    }
    free(old.slot);
}

/* The array's one copy. */
static const void *intern(struct reader *r, const int64_t *x, size_t n, uint64_t hash)
{
    struct pool *pool = &r->pool;

    if (2 * pool->n >= pool->cap)
        pool_grow(pool);
    size_t h = hash & (pool->cap - 1);
    for (; pool->slot[h].data; h = (h + 1) & (pool->cap - 1))
        if (pool->slot[h].hash == hash && pool->slot[h].n == n &&
            (n == 0 || !memcmp(pool->slot[h].data, x, n * sizeof(*x))))
            return pool->slot[h].data;
    const void *data = n ? ap_arena_dup(r->arena, x, n * sizeof(*x))
                         : ap_arena_alloc_n(r->arena, 1, sizeof(*x)); /* x may be NULL */
    pool->slot[h] = (struct pool_item){hash, data, n};
    pool->n++;
    return data;
}

/* One array of numbers; as doubles with forbidden ones when they are costs. */
static int read_row(struct reader *r, bool costs, struct list *into)
{
    uint64_t hash = costs ? 0x1234567 : 0x7654321;
    size_t n = 0;
    int next = 1;

    if (expect(r, '['))
        return -1;
    if (ap_json_take(&r->json, ']'))
        next = 0;
    while (next == 1) {
        int64_t x;
        double c;
        if (read_number(r, &x, costs ? &c : NULL))
            return -1;
        if (n == r->cap_scratch)
            r->scratch = grow(r->scratch, &r->cap_scratch, sizeof(*r->scratch));
        if (costs) {
            c = c >= FORBIDDEN ? AP_FORBIDDEN : c;
            memcpy(&x, &c, sizeof(x));
        }
        r->scratch[n++] = x;
        hash = (hash ^ (uint64_t)x) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
        next = more(r, ']');
    }
    if (next < 0)
        return -1;
    if (into->n == into->cap) {
        size_t cap = into->cap;
        into->data = grow(into->data, &cap, sizeof(*into->data));
        into->n_items = grow(into->n_items, &into->cap, sizeof(*into->n_items));
    }
    into->data[into->n] = intern(r, r->scratch, n, hash ^ n);
    into->n_items[into->n++] = n;
    return 0;
}

static int read_rows(struct reader *r, bool costs, struct list *into)
{
    int next = 1;

    if (into->seen)
        return fail(r, "the member is there twice");
    into->seen = true;
    if (expect(r, '['))
        return -1;
    if (ap_json_take(&r->json, ']'))
        return 0;
    while (next == 1) {
        if (read_row(r, costs, into))
            return -1;
        if (into->n == MAX_ITEMS)
            return fail(r, "too many items");
        next = more(r, ']');
    }
    return next;
}

/* ---- objects ---- */

/* Calls member(r, key) for each member. */
static int read_object(struct reader *r, int (*member)(struct reader *r, const char *key))
{
    int next = 1;

    if (expect(r, '{'))
        return -1;
    if (ap_json_take(&r->json, '}'))
        return 0;
    while (next == 1) {
        char key[32];
        if (ap_json_key(&r->json, key, sizeof(key)))
            return fail_json(r);
        if (member(r, key))
            return -1;
        next = more(r, '}');
    }
    return next;
}

static int node_member(struct reader *r, const char *key)
{
    if (!strcmp(key, "intervals"))
        return read_rows(r, false, &r->interval);
    if (!strcmp(key, "costs"))
        return read_rows(r, true, &r->node_cost);
    if (!strcmp(key, "usages"))
        return read_rows(r, false, &r->usage);
    return skip_value(r);
}

static int edge_member(struct reader *r, const char *key)
{
    if (!strcmp(key, "nodes"))
        return read_rows(r, false, &r->edge_node);
    if (!strcmp(key, "costs"))
        return read_rows(r, true, &r->edge_cost);
    return skip_value(r);
}

static int problem_member(struct reader *r, const char *key)
{
    if (!strcmp(key, "nodes"))
        return read_object(r, node_member);
    if (!strcmp(key, "edges"))
        return read_object(r, edge_member);
    if (strcmp(key, "usage_limit") != 0)
        return skip_value(r);
    if (r->has_limit)
        return fail(r, "the member is there twice");
    r->has_limit = true;
    return read_number(r, &r->limit, NULL);
}

static int top_member(struct reader *r, const char *key)
{
    if (strcmp(key, "problem") != 0)
        return skip_value(r);
    if (r->has_problem)
        return fail(r, "the member is there twice");
    r->has_problem = true;
    return read_object(r, problem_member);
}

/* ---- the problem ---- */

static int bad(struct reader *r, const char *where, size_t i, const char *what)
{
    return ap_err_set(r->err, "%s: /problem/%s/%zu: %s", r->name, where, i, what);
}

static int make_nodes(struct reader *r, struct contest *p)
{
    int *n_strategies = AP_NEW_N(r->arena, p->costs.n_nodes + 1, int);
    struct contest_span *span =
        AP_NEW_N(r->arena, p->costs.n_nodes + 1, struct contest_span);
    bool memory = r->has_limit && r->interval.seen && r->usage.seen;
    int64_t total = 0;

    for (int v = 0; v < p->costs.n_nodes; v++) {
        size_t n = r->node_cost.n_items[v];
        if (n == 0 || n > MAX_ITEMS)
            return bad(r, "nodes/costs", (size_t)v, "expected at least one strategy");
        n_strategies[v] = (int)n;
        if (!memory)
            continue;
        const int64_t *at = r->interval.data[v], *usage = r->usage.data[v];
        int64_t most = 0;
        if (r->interval.n_items[v] != 2 || at[0] > at[1])
            return bad(r, "nodes/intervals", (size_t)v, "expected [lo, hi], lo <= hi");
        if (r->usage.n_items[v] != n)
            return bad(r, "nodes/usages", (size_t)v, "expected as many items as costs");
        for (size_t s = 0; s < n; s++)
            most = usage[s] > most ? usage[s] : most;
        total = ap_add64(total, most);
        span[v] = (struct contest_span){at[0], at[1]};
    }
    if (total == INT64_MAX)
        return ap_err_set(r->err, "%s: /problem/nodes/usages: the sum does not fit",
                          r->name);
    p->costs.n_strategies = n_strategies;
    p->costs.cost = ap_arena_dup(r->arena, r->node_cost.data,
                                 (size_t)(p->costs.n_nodes + 1) * sizeof(void *));
    if (memory) {
        p->span = span;
        p->usage = ap_arena_dup(r->arena, r->usage.data,
                                (size_t)(p->costs.n_nodes + 1) * sizeof(void *));
        p->usage_limit = r->limit;
    }
    return 0;
}

static int make_edges(struct reader *r, struct contest *p)
{
    struct ap_problem_edge *edges =
        AP_NEW_N(r->arena, p->costs.n_edges + 1, struct ap_problem_edge);

    for (int e = 0; e < p->costs.n_edges; e++) {
        const int64_t *ends = r->edge_node.data[e];
        if (r->edge_node.n_items[e] != 2 || ends[0] >= p->costs.n_nodes ||
            ends[1] >= p->costs.n_nodes || ends[0] == ends[1])
            return bad(r, "edges/nodes", (size_t)e,
                       "expected two different nodes of the problem");
        int a = (int)ends[0], b = (int)ends[1];
        if (r->edge_cost.n_items[e] !=
            (size_t)p->costs.n_strategies[a] * (size_t)p->costs.n_strategies[b])
            return bad(r, "edges/costs", (size_t)e,
                       "expected as many items as pairs of strategies");
        edges[e] = (struct ap_problem_edge){a, b, r->edge_cost.data[e]};
    }
    p->costs.edges = edges;
    return 0;
}

static int make(struct reader *r, struct contest *p)
{
    if (!r->has_problem)
        return ap_err_set(r->err, "%s: expected a member \"problem\"", r->name);
    if (!r->node_cost.seen)
        return ap_err_set(r->err, "%s: /problem/nodes: expected a member \"costs\"",
                          r->name);
    if (r->interval.seen && r->interval.n != r->node_cost.n)
        return ap_err_set(r->err, "%s: /problem/nodes/intervals: %zu for %zu nodes",
                          r->name, r->interval.n, r->node_cost.n);
    if (r->usage.seen && r->usage.n != r->node_cost.n)
        return ap_err_set(r->err, "%s: /problem/nodes/usages: %zu for %zu nodes", r->name,
                          r->usage.n, r->node_cost.n);
    if (r->edge_cost.n != r->edge_node.n)
        return ap_err_set(r->err, "%s: /problem/edges/costs: %zu for %zu edges", r->name,
                          r->edge_cost.n, r->edge_node.n);
    if (r->has_limit && (!r->interval.seen || !r->usage.seen))
        return ap_err_set(
            r->err, "%s: /problem/usage_limit: without intervals and usages", r->name);
    *p = (struct contest){
        .costs = {.n_nodes = (int)r->node_cost.n, .n_edges = (int)r->edge_node.n}};
    /* one array more than none, to copy */
    if (r->node_cost.n == 0)
        r->node_cost.data = grow(NULL, &r->node_cost.cap, sizeof(void *));
    if (r->usage.n == 0)
        r->usage.data = grow(NULL, &r->usage.cap, sizeof(void *));
    return make_nodes(r, p) || make_edges(r, p) ? -1 : 0;
}

static void list_free(struct list *list)
{
    free(list->data);
    free(list->n_items);
}

static int read_all(struct reader *r, struct contest *p)
{
    int rc = read_object(r, top_member);

    if (!rc && ap_json_next(&r->json) >= 0)
        rc = fail(r, "expected the end of the text");
    if (r->failed)
        rc = -1;
    if (!rc)
        rc = make(r, p);
    list_free(&r->node_cost);
    list_free(&r->usage);
    list_free(&r->edge_cost);
    list_free(&r->interval);
    list_free(&r->edge_node);
    free(r->pool.slot);
    free(r->scratch);
    return rc;
}

int contest_parse(struct ap_arena *arena, const char *name, const char *text, size_t len,
                  struct contest *p, struct ap_err *err)
{
    struct reader r = {.arena = arena,
                       .err = err,
                       .name = name,
                       .block = text,
                       .json = {.at = text, .end = text + len}};

    return read_all(&r, p);
}

int contest_read(struct ap_arena *arena, const char *path, struct contest *p,
                 struct ap_err *err)
{
    bool is_stdin = !strcmp(path, "-");
    struct reader r = {.arena = arena, .err = err, .name = is_stdin ? "<stdin>" : path};
    int fd = is_stdin ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return ap_err_set(err, "%s: %s", r.name, strerror(errno));
    r.gz = gzdopen(fd, "rb");
    if (!r.gz) {
        close(fd);
        return ap_err_set(err, "%s: out of memory", r.name);
    }
    gzbuffer(r.gz, BLOCK);
    r.buffer = ap_xrealloc(NULL, BLOCK);
    r.block = r.buffer;
    r.json = (struct ap_json){.at = r.block, .end = r.block, .more = refill, .ctx = &r};
    int rc = ap_json_next(&r.json) < 0 ? ap_err_set(err, "%s: the input is empty", r.name)
                                       : read_all(&r, p);
    free(r.buffer);
    if (gzclose_r(r.gz) != Z_OK && !rc)
        rc = ap_err_set(err, "%s: the compressed data is cut short", r.name);
    return rc;
}
