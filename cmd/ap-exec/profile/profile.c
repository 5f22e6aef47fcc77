#include "profile/profile.h"

#include "step/backend.h"
#include "base/array.h"
#include "doc/doc.h"
#include "graph/blocks.h"
#include "layout/nest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Of what the clock says, at least. */
#define LEAST_SHARE 0.1

struct watched {
    struct exec *x;
    int stage;
};

struct profile {
    struct ap_arena *arena;
    struct comm *job;
    int64_t steps;
    int n, cap;
    struct watched *of;
    int n_plain;                              /* steps as without a profile */
    double *plain_sec, *timed_sec, *busy_sec; /* busy: of the processor, on this rank */
    double busy_start;
    int n_timed;
};

/* ---- measuring ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double profile_median(double *v, int n)
{
    if (n == 0)
        return 0;
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double profile_quartile(double *v, int n)
{
    profile_median(v, n);
    return n ? v[(n - 1) / 4] : 0;
}

struct profile *profile_open(struct ap_arena *arena, struct comm *job, int64_t steps)
{
    struct profile *p = AP_NEW(arena, struct profile);
    *p = (struct profile){.arena = arena,
                          .job = job,
                          .steps = steps,
                          .plain_sec = AP_NEW_N(arena, steps, double),
                          .timed_sec = AP_NEW_N(arena, steps, double),
                          .busy_sec = AP_NEW_N(arena, steps, double)};
    return p;
}

void profile_watch(struct profile *p, struct exec *x, int stage)
{
    for (int i = 0; i < p->n; i++)
        if (p->of[i].stage == stage) {
            x->timing = p->of[i].x->timing;
            return;
        }
    x->timing = timing_open(p->arena, x, (int)p->steps, true);
    x->timing->leads = p->n == 0;
    AP_ROOM_IN(p->arena, p->of, p->n, p->cap);
    p->of[p->n++] = (struct watched){x, stage};
}

static bool is_timed(int64_t i)
{
    return i >= PROFILE_WARMUP && (i - PROFILE_WARMUP) % 2 == 1;
}

void profile_begin(struct profile *p, int64_t i)
{
    for (int k = 0; p && k < p->n; k++)
        timing_step_begin(p->of[k].x->timing, is_timed(i));
    if (p)
        p->busy_start = timing_process_sec();
}

void profile_end(struct profile *p, int64_t i, double sec)
{
    for (int k = 0; p && k < p->n; k++)
        timing_step_end(p->of[k].x->timing);
    if (p && is_timed(i)) {
        p->timed_sec[p->n_timed++] = sec;
    } else if (p && i >= PROFILE_WARMUP) {
        p->busy_sec[p->n_plain] = timing_process_sec() - p->busy_start;
        p->plain_sec[p->n_plain++] = sec;
    }
}

/* ---- what a call is ---- */

/* A row of the document, or several that are identical. */
struct row {
    enum ap_kernel kernel; /* AP_N_KERNELS: a collective */
    enum ap_op op;         /* its last node's */
    enum ap_dtype dtype;
    const struct ap_shape *shape; /* of the result */
    unsigned axes;                /* of a collective */
    double flops, bytes, count, sec;
};

/* Whether the call is worth a row. */
static bool row_of(const struct exec *x, const struct call *call, struct row *row)
{
    const struct ap_graph *g = &x->prog->local;
    if (call->n_nodes == 0)
        return false;
    const struct ap_node *last = &g->nodes[call->nodes[call->n_nodes - 1]];
    const enum ap_op_class class = ap_ops[last->op].class;
    *row = (struct row){.kernel = ap_kernel_of_group(g, call->nodes, call->n_nodes),
                        .op = last->op,
                        .dtype = ap_value_shape(last)->dtype,
                        .shape = ap_value_shape(last)};
    if (class == AP_CLASS_COLLECTIVE) {
        const struct ap_shape *in = &g->nodes[last->in[0]].shape;
        row->kernel = AP_N_KERNELS;
        row->axes = last->attrs->coll.axes;
        row->bytes = (double)ap_coll_bytes(&x->prog->mesh, last, in);
        return !(row->axes & x->prog->mesh.microbatch);
    }
    if (class == AP_CLASS_LOCAL || class == AP_CLASS_LEAF || class == AP_CLASS_TUPLE ||
        last->op == AP_OP_WHILE)
        return false;
    for (int m = 0; m < call->n_nodes; m++)
        row->flops += ap_node_flops(g, call->nodes[m]);
    row->bytes = timing_bytes(x, call, &row->dtype);
    if (class == AP_CLASS_HEAVY)
        row->dtype = g->nodes[last->in[0]].shape.dtype;
    return true;
}

static int by_kind(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    if (x->kernel != y->kernel)
        return (int)x->kernel - (int)y->kernel;
    if (x->op != y->op)
        return (int)x->op - (int)y->op;
    if (x->axes != y->axes)
        return x->axes < y->axes ? -1 : 1;
    if (x->dtype != y->dtype)
        return (int)x->dtype - (int)y->dtype;
    if (x->flops != y->flops)
        return x->flops < y->flops ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    if (x->shape->rank != y->shape->rank)
        return x->shape->rank - y->shape->rank;
    for (int d = 0; d < x->shape->rank; d++)
        if (x->shape->dims[d] != y->shape->dims[d])
            return x->shape->dims[d] < y->shape->dims[d] ? -1 : 1;
    return 0;
}

/* ---- a stage ---- */

/* Samples of all ranks of the stage, [rank][step][call], on its first; NULL on others. */
static double *gather(const struct watched *w)
{
    struct comm *c = w->x->comm;
    const struct exec_timing *e = w->x->timing;
    const int64_t n = (int64_t)e->n_steps * e->n_calls;
    double *all =
        c->rank ? NULL : ap_xrealloc(NULL, (size_t)(n * c->size + 1) * sizeof *all);
    for (int r = 0; r < c->size; r++) {
        double *to = all ? all + r * n : e->sec;
        if (c->rank == r && all)
            memcpy(to, e->sec, (size_t)n * sizeof *to);
        if (r > 0 && (c->rank == r || c->rank == 0))
            c->to_root(c, r, to, n * (int64_t)sizeof *to);
    }
    return all;
}

/* Seconds of one run of call i. */
static double seconds_of(const struct watched *w, const double *all, int i,
                         bool collective)
{
    const struct exec_timing *e = w->x->timing;
    const int ranks = w->x->comm->size;
    double *v = ap_xrealloc(NULL, (size_t)(e->n_steps + 1) * sizeof *v), sum = 0;
    for (int r = 0; r < ranks; r++) {
        for (int s = 0; s < e->n_steps; s++) {
            double least = all[((ptrdiff_t)r * e->n_steps + s) * e->n_calls + i];
            for (int q = 0; q < ranks && collective; q++) {
                double other = all[((ptrdiff_t)q * e->n_steps + s) * e->n_calls + i];
                least = other < least ? other : least;
            }
            v[s] = least;
        }
        sum +=
            collective ? profile_quartile(v, e->n_steps) : profile_median(v, e->n_steps);
    }
    free(v);
    return sum * e->n_steps / ranks / (double)e->runs[i];
}

static void put_row(struct profile *p, const struct watched *w, const struct row *r,
                    const int *rank, struct ap_buf *out)
{
    const bool collective = r->kernel == AP_N_KERNELS;
    if (out->len)
        ap_buf_putc(out, ',');
    if (!collective)
        ap_buf_printf(out, "\n{\"kernel\":\"%s\",\"op\":\"%s\",\"dtype\":\"%s\"",
                      ap_kernel_names[r->kernel], ap_ops[r->op].name,
                      ap_dtype_name(r->dtype));
    else
        ap_buf_printf(out, "\n{\"op\":\"%s\"", ap_ops[r->op].name);
    if (collective)
        profile_put_groups(p->arena, &w->x->prog->mesh, r->axes, rank, out);
    ap_put_key(out, "shape");
    ap_buf_putc(out, '"');
    ap_shape_print(r->shape, out);
    ap_buf_putc(out, '"');
    if (!collective) {
        ap_put_key(out, "flops");
        ap_json_num(out, r->flops);
    }
    ap_put_key(out, "bytes");
    ap_json_num(out, r->bytes);
    ap_put_key(out, "count");
    ap_json_num(out, r->count);
    ap_put_key(out, "sec");
    ap_json_num(out, r->sec);
    ap_buf_putc(out, '}');
}

/* Between two events lies more, or less, than a call adds to a step that is one launch:
 * the difference is shared out. */
static void add_gaps(const struct profile *p, struct row *rows, int n)
{
    double sum = 0, count = 0;
    for (int i = 0; i < n; i++) {
        sum += rows[i].sec * rows[i].count;
        count += rows[i].count;
    }
    const double rest = profile_median(p->plain_sec, p->n_plain) - sum;
    for (int i = 0; i < n; i++)
        rows[i].sec = fmax(rows[i].sec + rest / count, LEAST_SHARE * rows[i].sec);
}

/* Rows of one stage, on the first of its ranks; rank: their numbers in the job. */
static void put_stage(struct profile *p, const struct watched *w, const int *rank,
                      struct ap_buf *kernels, struct ap_buf *collectives)
{
    const struct exec *x = w->x;
    double *all = gather(w);
    if (!all)
        return;
    struct row *rows = AP_NEW_N(p->arena, x->n_calls + 1, struct row);
    int n = 0;
    for (int i = 0; i < x->n_calls; i++) {
        struct row *r = &rows[n];
        if (x->timing->runs[i] == 0 || !row_of(x, &x->calls[i], r))
            continue;
        r->count = (double)x->timing->runs[i] / x->timing->n_steps;
        r->sec = seconds_of(w, all, i, r->kernel == AP_N_KERNELS);
        n++;
    }
    free(all);
    if (x->backend->clock)
        add_gaps(p, rows, n);
    qsort(rows, (size_t)n, sizeof *rows, by_kind);
    for (int i = 0, k; i < n; i = k) {
        struct row sum = rows[i];
        sum.sec *= sum.count;
        for (k = i + 1; k < n && by_kind(&rows[i], &rows[k]) == 0; k++) {
            sum.sec += rows[k].sec * rows[k].count;
            sum.count += rows[k].count;
        }
        sum.sec /= sum.count;
        put_row(p, w, &sum, rank, sum.kernel == AP_N_KERNELS ? collectives : kernels);
    }
}

/* ---- the document ---- */

/* Numbers of hosts, by rank, on all ranks; *n: how many there are. */
static int *find_hosts(struct profile *p, int *n)
{
    enum { BYTES = 64 };
    struct comm *c = p->job;
    char own[BYTES] = "", *name = AP_NEW_N(p->arena, (int64_t)c->size * BYTES, char);
    int *host = AP_NEW_N(p->arena, c->size, int);
    *n = 0;
    gethostname(own, BYTES - 1);
    for (int r = 0; r < c->size; r++) {
        memcpy(name + (size_t)r * BYTES, own, BYTES);
        if (c->rank == 0 || c->rank == r)
            c->to_root(c, r, name + (size_t)r * BYTES, BYTES);
    }
    c->broadcast(c, name, (int64_t)c->size * BYTES);
    for (int r = 0; r < c->size; r++) {
        int q = 0;
        while (strcmp(name + (size_t)q * BYTES, name + (size_t)r * BYTES) != 0)
            q++;
        host[r] = q < r ? host[q] : (*n)++;
    }
    return host;
}

/* A text of rank `from` to rank 0, where it is appended. */
static void text_to_root(struct comm *c, int from, const struct ap_buf *text,
                         struct ap_buf *out)
{
    int64_t len = (int64_t)text->len;
    if (c->rank != from && c->rank != 0)
        return;
    c->to_root(c, from, &len, sizeof len);
    char *copy = ap_xrealloc(NULL, (size_t)len + 1);
    memcpy(copy, text->len && c->rank == from ? text->data : "",
           c->rank == from ? (size_t)len : 0);
    c->to_root(c, from, copy, len);
    if (c->rank == 0 && len) {
        ap_buf_puts(out, out->len ? "," : "");
        ap_buf_printf(out, "%.*s", (int)len, copy);
    }
    free(copy);
}

/* Name and memory of the host's processor, as struct backend's `device`. */
static int64_t host_device(char *name, size_t size)
{
    char line[256], *at = NULL;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && !at && fgets(line, sizeof line, f))
        if (strncmp(line, "model name", 10) == 0)
            at = strchr(line, ':');
    if (f)
        fclose(f);
    if (at)
        at[strcspn(at, "\n")] = 0;
    snprintf(name, size, "%s", at ? at + 1 + (at[1] == ' ') : "CPU");
    return (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

static void put_seconds(const char *key, double sec, struct ap_buf *out)
{
    ap_put_key(out, key);
    ap_json_num(out, sec);
}

static void put_head(struct profile *p, const struct backend *backend, const int *host,
                     int n_hosts, struct ap_buf *out)
{
    ap_buf_puts(out, "{\"profile\":1,\"backend\":");
    ap_json_str(out, backend->name);
    char name[256];
    int on_first = 0;
    for (int r = 0; r < p->job->size; r++)
        on_first += host[r] == 0;
    const int64_t bytes = backend->device ? backend->device(name, sizeof name)
                                          : host_device(name, sizeof name) / on_first;
    ap_put_str(out, "device", name);
    ap_put_int(out, "memory_bytes", bytes);
    ap_put_int(out, "ranks", p->job->size);
    ap_put_int(out, "n_hosts", n_hosts);
    ap_put_key(out, "hosts");
    for (int r = 0; r < p->job->size; r++)
        ap_buf_printf(out, "%s%d", r ? "," : "[", host[r]);
    ap_buf_puts(out, "],\"step\":{\"steps\":");
    ap_buf_int(out, p->n_plain);
    put_seconds("sec", profile_median(p->plain_sec, p->n_plain), out);
    put_seconds("least_sec", p->n_plain ? p->plain_sec[0] : 0, out);
    put_seconds("busy_sec", profile_median(p->busy_sec, p->n_plain), out);
    put_seconds("timed_sec", profile_median(p->timed_sec, p->n_timed), out);
    ap_buf_putc(out, '}');
}

void profile_write(struct profile *p, const struct backend *backend, struct ap_buf *out)
{
    struct comm *c = p->job;
    struct ap_buf kernels = {0}, collectives = {0}, sends = {0};
    int n_hosts, *host = find_hosts(p, &n_hosts);
    int64_t most = 0;

    for (int i = 0; i < p->n; i++)
        most = p->of[i].stage > most ? p->of[i].stage : most;
    most = c->max(c, most);
    for (int s = 0, at = 0; s <= most; s++) {
        struct ap_buf texts[2] = {{0}};
        const struct watched *w = at < p->n && p->of[at].stage == s ? &p->of[at] : NULL;
        const int lead = (int)c->max(c, w && w->x->comm->rank == 0 ? c->rank : -1);
        int *rank = AP_NEW_N(p->arena, c->size, int); /* of the stage, on its first */
        for (int r = 0; w && r < w->x->comm->size; r++) {
            int job_rank = c->rank;
            if (w->x->comm->rank == 0 || w->x->comm->rank == r)
                w->x->comm->to_root(w->x->comm, r, &job_rank, sizeof job_rank);
            rank[r] = job_rank;
        }
        if (w)
            put_stage(p, w, rank, &texts[0], &texts[1]);
        at += w != NULL;
        text_to_root(c, lead, &texts[0], &kernels);
        text_to_root(c, lead, &texts[1], &collectives);
        ap_buf_free(&texts[0]);
        ap_buf_free(&texts[1]);
    }
    profile_comm(p->arena, c, backend, host, &collectives, &sends);
    if (c->rank == 0) {
        put_head(p, backend, host, n_hosts, out);
        ap_buf_printf(out, ",\"kernels\":[%s],\"collectives\":[%s],\"sends\":[%s]}\n",
                      kernels.len ? kernels.data : "",
                      collectives.len ? collectives.data : "",
                      sends.len ? sends.data : "");
    }
    ap_buf_free(&kernels);
    ap_buf_free(&collectives);
    ap_buf_free(&sends);
}
