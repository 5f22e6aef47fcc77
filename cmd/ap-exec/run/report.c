/* The output of a run: printed lines and written files. */
#include "run/session.h"

#include "doc/doc.h"
#include "run/arrays.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int session_collectives(struct ap_arena *arena, const struct exec *x, int64_t steps,
                        struct ap_coll_count **out)
{
    enum { N_SETS = 1 << AP_MAX_AXES };
    struct ap_coll_count *sum = AP_NEW_N(arena, AP_N_OPS * N_SETS, struct ap_coll_count);
    for (int i = 0; i < x->n_calls; i++) {
        const struct call *call = &x->calls[i];
        if (call->n_nodes != 1)
            continue;
        const struct ap_node *v = &x->prog->local.nodes[call->nodes[0]];
        if (ap_ops[v->op].class != AP_CLASS_COLLECTIVE ||
            (v->attrs->coll.axes & x->prog->mesh.microbatch))
            continue;
        struct ap_coll_count *c = &sum[v->op * N_SETS + v->attrs->coll.axes % N_SETS];
        c->op = v->op;
        c->axes = v->attrs->coll.axes;
        c->count += call->n_runs;
        c->bytes += call->n_runs * ap_coll_bytes(&x->prog->mesh, v,
                                                 &x->prog->local.nodes[v->in[0]].shape);
    }
    int n = 0;
    for (int i = 0; i < AP_N_OPS * N_SETS; i++)
        if (sum[i].count) {
            sum[n] = sum[i];
            sum[n].count /= steps > 0 ? steps : 1;
            sum[n++].bytes /= steps > 0 ? steps : 1;
        }
    *out = sum;
    return n;
}

static void put_num(struct ap_buf *out, double v)
{
    if (isfinite(v))
        ap_json_num(out, v);
    else
        ap_buf_puts(out, "null");
}

static void put_axes(const struct ap_mesh *mesh, unsigned axes, struct ap_buf *out)
{
    bool first = true;
    ap_buf_putc(out, '[');
    for (int a = 0; a < mesh->n_axes; a++)
        if (axes >> a & 1) {
            ap_buf_puts(out, first ? "" : ",");
            ap_json_str(out, mesh->name[a]);
            first = false;
        }
    ap_buf_putc(out, ']');
}

static void put_error(struct ap_buf *out, const char *name, double v)
{
    ap_buf_printf(out, "\"%s\":", name);
    if (v < 0)
        ap_buf_puts(out, "null");
    else
        put_num(out, v);
}

static void put_names(struct ap_buf *out, const char *const *name, int n)
{
    ap_buf_putc(out, '[');
    for (int i = 0; i < n; i++) {
        ap_buf_puts(out, i ? "," : "");
        ap_json_str(out, name[i]);
    }
    ap_buf_putc(out, ']');
}

static void put_comparison(struct ap_buf *out, const char *name,
                           const struct comparison *c)
{
    if (!c->done)
        return;
    ap_buf_printf(out, ",\"%s\":{", name);
    put_error(out, "loss_error", c->loss_error);
    ap_buf_putc(out, ',');
    put_error(out, "params_error", c->params_error);
    ap_buf_putc(out, ',');
    put_error(out, "states_error", c->states_error);
    static const char *const kinds[] = {"full", "low", "rounding", "decided_by_rounding"};
    for (int k = 0; c->by_type && k < VERIFY_N_KINDS; k++)
        if (k < VERIFY_ROUNDING) {
            ap_put_int(out, kinds[k], c->n[k]);
        } else {
            ap_put_key(out, kinds[k]);
            put_names(out, c->name[k], c->n[k]);
        }
    ap_buf_putc(out, '}');
}

/* "; 3 WHAT: a, b, c", at most eight names. */
static void put_kind(struct ap_buf *out, const struct comparison *c,
                     enum verify_kind kind, const char *what)
{
    enum { MOST = 8 };
    if (!c->n[kind])
        return;
    ap_buf_printf(out, "; %d %s", c->n[kind], what);
    if (kind == VERIFY_LOW)
        return;
    for (int i = 0; i < c->n[kind] && i < MOST; i++)
        ap_buf_printf(out, "%s %s", i ? "," : ":", c->name[kind][i]);
    if (c->n[kind] > MOST)
        ap_buf_printf(out, " and %d more", c->n[kind] - MOST);
}

void report_kinds(const struct comparison *c, struct ap_buf *out)
{
    const int others = c->n[VERIFY_LOW] + c->n[VERIFY_ROUNDING] + c->n[VERIFY_DECIDED];
    struct ap_buf low = {0};
    if (!c->by_type || others == 0)
        return;
    ap_buf_printf(&low, "by %s within 1 %% of their change", ap_dtype_name(c->low));
    ap_buf_printf(out, "verify: of %d tensors, %d within 1e-4", others + c->n[0],
                  c->n[VERIFY_FULL]);
    put_kind(out, c, VERIFY_LOW, low.data);
    put_kind(out, c, VERIFY_ROUNDING, "further off, no more than rounding moves them");
    put_kind(out, c, VERIFY_DECIDED,
             "whose gradient is zero up to rounding, or lost in it");
    ap_buf_putc(out, '\n');
    ap_buf_free(&low);
}

static void put_memory(const struct rank_memory *m, int rank, struct ap_buf *out)
{
    ap_buf_printf(out, "%s{\"rank\":%d", rank ? "," : "", rank);
    ap_put_int(out, "buffer_bytes", m->buffers);
    ap_put_int(out, "working_bytes", m->working);
    if (m->measured >= 0)
        ap_put_int(out, "measured_bytes", m->measured);
    else
        ap_buf_puts(out, ",\"measured_bytes\":null");
    ap_buf_putc(out, '}');
}

/* What ranks send each other between stages, in a step. */
static void put_links(const struct session *s, struct ap_buf *out)
{
    const int n = s->comm->size;
    const char *comma = "";

    ap_put_int(out, "sent_bytes", s->sent_bytes);
    ap_put_key(out, "links");
    ap_buf_putc(out, '[');
    for (int i = 0; s->link_bytes && i < n * n; i++)
        if (s->link_bytes[i] > 0) {
            ap_buf_printf(out, "%s[%d,%d,%lld]", comma, i / n, i % n,
                          (long long)s->link_bytes[i]);
            comma = ",";
        }
    ap_buf_putc(out, ']');
}

static void put_list(struct ap_buf *out, const char *name, const double *v, int64_t n)
{
    ap_put_key(out, name);
    ap_buf_putc(out, '[');
    for (int64_t i = 0; i < n; i++) {
        ap_buf_puts(out, i ? "," : "");
        put_num(out, v[i]);
    }
    ap_buf_putc(out, ']');
}

static void put_named(struct ap_buf *out, const char *name, double v)
{
    ap_put_key(out, name);
    put_num(out, v);
}

static void put_kernels(struct ap_arena *arena, const struct session *s,
                        struct ap_buf *out)
{
    struct timing_row *rows;
    const int n = timing_rows(arena, s->alone, &rows);
    ap_put_key(out, "kernels");
    ap_buf_putc(out, '[');
    for (int i = 0; i < n; i++) {
        ap_buf_puts(out, i ? ",{\"kind\":" : "{\"kind\":");
        ap_json_str(out, rows[i].kind);
        put_named(out, "calls", rows[i].calls);
        put_named(out, "sec", rows[i].sec);
        put_named(out, "blas_sec", rows[i].blas_sec);
        put_named(out, "flops", rows[i].flops);
        put_named(out, "bytes", rows[i].bytes);
        ap_buf_putc(out, '}');
    }
    ap_buf_putc(out, ']');
}

/* Attentions that one kernel computes, of one device's program; again: those whose
 * forward pass is computed again for the gradients. */
static int64_t attention_calls(const struct exec *x, bool again)
{
    int64_t n = 0;
    for (int i = 0; i < x->n_calls; i++)
        n += again ? x->calls[i].again : x->calls[i].attention;
    return n;
}

void report_json(struct ap_arena *arena, const struct session *s,
                 const struct comparison *cmp, const struct comparison *verified,
                 struct ap_buf *out)
{
    const struct stage_report *stage = s->stage;
    const int n = s->program->n_stages;
    ap_buf_puts(out, "{\"ranks\":");
    ap_buf_int(out, s->comm->size);
    ap_buf_puts(out, ",\"backend\":");
    ap_json_str(out, s->backend->name);
    ap_buf_puts(out, ",\"steps\":");
    ap_buf_int(out, s->steps);
    ap_buf_puts(out, ",\"losses\":[");
    for (int64_t i = 0; s->loss >= 0 && i < s->steps; i++) {
        ap_buf_puts(out, i ? "," : "");
        put_num(out, s->losses[i]);
    }
    ap_buf_puts(out, "],\"sec_per_step\":");
    put_num(out, s->sec_per_step);
    put_list(out, "step_sec", s->step_sec, s->steps);
    put_list(out, "cpu_sec", s->cpu_sec, s->steps);
    put_kernels(arena, s, out);
    ap_buf_puts(out, ",\"peak_bytes\":");
    ap_buf_int(out, s->peak_bytes);
    ap_buf_puts(out, ",\"scratch_bytes\":");
    ap_buf_int(out, s->scratch_bytes);
    if (s->alone) {
        ap_put_int(out, "attention_calls", attention_calls(s->alone, false));
        ap_put_int(out, "attention_again", attention_calls(s->alone, true));
    }
    ap_buf_puts(out, ",\"memory\":[");
    for (int k = 0; k < s->comm->size; k++)
        put_memory(&s->rank_memory[k], k, out);
    ap_buf_puts(out, "],\"collectives\":[");
    const char *comma = "";
    for (int k = 0; k < n; k++)
        for (int i = 0; i < stage[k].n; i++) {
            const struct ap_coll_count *c = &stage[k].coll[i];
            ap_buf_printf(out, "%s{\"op\":\"%s\",\"axes\":", comma, ap_ops[c->op].name);
            put_axes(stage[k].mesh, c->axes, out);
            ap_put_int(out, "count", c->count);
            ap_put_int(out, "bytes", c->bytes);
            if (!s->alone)
                ap_put_int(out, "stage", k);
            ap_buf_putc(out, '}');
            comma = ",";
        }
    ap_buf_putc(out, ']');
    if (!s->alone)
        put_links(s, out);
    put_comparison(out, "compare", cmp);
    put_comparison(out, "verify", verified);
    ap_buf_puts(out, "}\n");
}

/* One line of the table of collectives; stage -1: there is one program. */
static void put_line(const struct stage_report *r, const struct ap_coll_count *c,
                     int stage, struct ap_buf *out)
{
    struct ap_buf axes = {0};
    for (int a = 0; a < r->mesh->n_axes; a++)
        if (c->axes >> a & 1)
            ap_buf_printf(&axes, "%s%s", axes.len ? "," : "", r->mesh->name[a]);
    ap_buf_printf(out, "%-20s %-10s %8lld %14lld", ap_ops[c->op].name, axes.data,
                  (long long)c->count, (long long)c->bytes);
    if (stage >= 0)
        ap_buf_printf(out, "  stage %d", stage);
    ap_buf_putc(out, '\n');
    ap_buf_free(&axes);
}

/* Table of kernels: what each kind takes, and how much of it is in BLAS. */
static void put_kernel_lines(struct ap_arena *arena, const struct session *s,
                             struct ap_buf *out)
{
    struct timing_row *rows;
    const int n = timing_rows(arena, s->alone, &rows);
    if (n)
        ap_buf_printf(out, "%-20s %8s %11s %11s %8s %8s\n", "kernels per step", "calls",
                      "seconds", "in BLAS", "GFLOP", "GB");
    for (int i = 0; i < n; i++)
        ap_buf_printf(out, "%-20s %8.0f %11.6f %11.6f %8.3f %8.3f\n", rows[i].kind,
                      rows[i].calls, rows[i].sec, rows[i].blas_sec, rows[i].flops / 1e9,
                      rows[i].bytes / 1e9);
}

void report_text(struct ap_arena *arena, const struct session *s, struct ap_buf *out)
{
    const struct stage_report *stage = s->stage;
    const int n = s->program->n_stages;
    ap_buf_printf(out, "%d ranks, %lld steps, %.6f s per step\n", s->comm->size,
                  (long long)s->steps, s->sec_per_step);
    ap_buf_printf(out, "memory per rank: %lld bytes of buffers, %lld of scratch\n",
                  (long long)s->peak_bytes, (long long)s->scratch_bytes);
    put_kernel_lines(arena, s, out);
    if (!s->alone)
        ap_buf_printf(out, "sent from stage to stage: %lld bytes per step\n",
                      (long long)s->sent_bytes);
    bool titled = false;
    for (int k = 0; k < n; k++)
        for (int i = 0; i < stage[k].n; i++) {
            if (!titled)
                ap_buf_printf(out, "%-20s %-10s %8s %14s\n", "collectives per step",
                              "axes", "count", "bytes");
            titled = true;
            put_line(&stage[k], &stage[k].coll[i], s->alone ? -1 : k, out);
        }
}

void report_checked(const struct ap_pipeline_program *r, bool json, struct ap_buf *out)
{
    long long nodes = 0, instructions = 0;

    for (int s = 0; s < r->n_stages; s++)
        nodes += r->stage[s].prog.local.n_nodes;
    for (int l = 0; l < r->n_lanes; l++)
        instructions += r->alone ? 1 : r->lane[l].n; /* that the section has */
    ap_buf_printf(out,
                  json ? "{\"ranks\":%d,\"stages\":%d,\"microbatches\":%d,"
                         "\"operators\":%lld,\"instructions\":%lld}\n"
                       : "%d ranks, %d stages, %d microbatches, %lld operators, "
                         "%lld instructions: in order\n",
                  r->n_ranks, r->n_stages, r->microbatches, nodes, instructions);
}

int report_check(const char *dir, struct ap_err *err)
{
    struct ap_buf parent = {0};
    struct stat st;
    int rc = 0;
    const bool exists = !stat(dir, &st);
    if (exists ? !S_ISDIR(st.st_mode) : errno != ENOENT || !lstat(dir, &st))
        return ap_err_set(err, "--out %s: %s", dir, strerror(exists ? ENOTDIR : errno));
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    while (n > 0 && dir[n - 1] != '/')
        n--;
    ap_buf_printf(&parent, "%.*s", exists ? (int)strlen(dir) : (int)n, dir);
    if (arrays_check(dir, err))
        rc = -1;
    else if (access(parent.len ? parent.data : ".", W_OK | X_OK))
        rc = ap_err_set(err, "--out %s: %s", dir, strerror(errno));
    ap_buf_free(&parent);
    return rc;
}

static int write_files(const struct session *s, const char *dir, struct ap_err *err)
{
    const struct ap_graph *g = &s->outline;
    struct ap_buf path = {0};
    int rc = 0;
    for (int k = 0; k < g->n_params && !rc;)
        rc = arrays_write(dir, g, s->params, &k, err);
    for (int r = 0; r < g->n_results && !rc; r++) {
        path.len = 0;
        ap_buf_printf(&path, "%s/result_%d.npy", dir, r);
        if (s->results[r])
            rc = ap_npy_write(path.data, &g->nodes[g->results[r].node].shape,
                              s->results[r], err);
    }
    ap_buf_free(&path);
    return rc;
}

static int is_array(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* Moves the files of a folder to another one (NULL: removes them), and removes it. */
static int move_files(const char *from, const char *to, struct ap_err *err)
{
    struct ap_buf old = {0}, new = {0};
    struct dirent **list;
    const int n = scandir(from, &list, is_array, alphasort);
    int rc = n < 0 ? ap_err_set(err, "%s: %s", from, strerror(errno)) : 0;
    for (int i = 0; i < n; i++) {
        old.len = new.len = 0;
        ap_buf_printf(&old, "%s/%s", from, list[i]->d_name);
        ap_buf_printf(&new, "%s/%s", to ? to : "", list[i]->d_name);
        if (!rc && (to ? rename(old.data, new.data) : unlink(old.data)))
            rc = ap_err_set(err, "%s: %s", to ? new.data : old.data, strerror(errno));
        free(list[i]);
    }
    if (n >= 0)
        free(list);
    if (!rc && rmdir(from))
        rc = ap_err_set(err, "%s: %s", from, strerror(errno));
    ap_buf_free(&old);
    ap_buf_free(&new);
    return rc;
}

/* Files are written beside those of before, then moved over them: a run that is killed
 * leaves these as they are, or one of two folders that tell (arrays_check). */
int report_files(const struct session *s, const char *dir, struct ap_err *err)
{
    struct ap_buf part = {0}, whole = {0};
    struct ap_err ignored;
    const bool made = !mkdir(dir, 0777);
    ap_buf_printf(&part, "%s/" ARRAYS_UNFINISHED, dir);
    ap_buf_printf(&whole, "%s/" ARRAYS_FINISHED, dir);
    int rc = mkdir(part.data, 0777)
                 ? ap_err_set(err, "%s: %s", part.data, strerror(errno))
                 : 0;
    if (!rc && (write_files(s, part.data, err) ||
                (rename(part.data, whole.data) &&
                 ap_err_set(err, "%s: %s", whole.data, strerror(errno))))) {
        move_files(part.data, NULL, &ignored);
        rc = -1;
    }
    if (rc && made)
        rmdir(dir);
    rc = rc ? rc : move_files(whole.data, dir, err);
    ap_buf_free(&part);
    ap_buf_free(&whole);
    return rc;
}
