/*
 * Problem: times of kernels and collectives at some sizes become tables that say the time
 * at any size.
 *
 * Idea: a table is a sum of hats: a constant (the launch, the latency) and, between
 * neighbouring knots, a slope; all of them >= 0, so that more work never takes less time.
 * Knots lie at the largest size and a factor below each other. The sum is linear in the
 * unknowns, so the best fit is a nonnegative least-squares problem,
 *
 *     min sum_i w_i (sum_j a_ij x_j / t_i - 1)^2,  x >= 0,
 *
 * of relative errors, because a step is made of large and small kernels; w_i is a
 * kernel's share of the step, collectives' sizes count the same. Relative errors favour
 * tables that are too low (a time that is too short is wrong by 1 at most), so a kernel's
 * table is scaled until it gives the measured total of all its samples. Kernels have hats
 * in FLOPs and in bytes: contractions several in FLOPs (their efficiency over size) and
 * one in bytes, all others one in FLOPs and several in bytes (their bandwidth over size).
 * At most 13 unknowns: coordinate descent on the normal equations, exact enough after
 * some thousand rounds. Deterministic.
 */
#include "calibrate/calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_KNOTS   12
#define MAX_UNKNOWN (1 + 2 * MAX_KNOTS)
#define ROUNDS      20000
/* Knots are so far apart, and a table of kernels has at most so many. */
#define KERNEL_FACTOR     4
#define KERNEL_KNOTS      8
#define COLLECTIVE_FACTOR 4
/* Fewer samples of a kernel in a type make no table. */
#define LEAST_SAMPLES 3

/* ---- least squares ---- */

struct least_squares {
    int m;
    double gram[MAX_UNKNOWN][MAX_UNKNOWN], right[MAX_UNKNOWN], x[MAX_UNKNOWN];
};

/* a: of one sample, divided by its seconds. */
static void add_equation(struct least_squares *q, const double *a, double weight)
{
    for (int j = 0; j < q->m; j++) {
        for (int k = 0; k < q->m; k++)
            q->gram[j][k] += weight * a[j] * a[k];
        q->right[j] += weight * a[j];
    }
}

static void solve(struct least_squares *q)
{
    for (int round = 0; round < ROUNDS; round++) {
        double moved = 0;
        for (int j = 0; j < q->m; j++) {
            double rest = q->right[j];
            if (q->gram[j][j] <= 0)
                continue;
            for (int k = 0; k < q->m; k++)
                rest -= k == j ? 0 : q->gram[j][k] * q->x[k];
            const double x = rest > 0 ? rest / q->gram[j][j] : 0;
            moved += fabs(x - q->x[j]) * sqrt(q->gram[j][j]);
            q->x[j] = x;
        }
        if (moved < 1e-12)
            return;
    }
}

/* ---- hats ---- */

struct knots {
    int n;
    double at[MAX_KNOTS]; /* rising */
};

/* most, most / factor, ..., down to the first that is not above least. */
static struct knots knots_of(double least, double most, double factor, int n_most)
{
    struct knots k = {0};
    int n = 1;
    if (most <= 0)
        return k;
    for (double at = most; n < n_most && at > least; at /= factor)
        n++;
    k.n = n;
    for (int i = 0; i < n; i++)
        k.at[i] = most / pow(factor, n - 1 - i);
    return k;
}

/* The parts of [0, size] between the knots, beyond the last in proportion. */
static void hats(const struct knots *k, double size, double *a)
{
    for (int i = 0; i < k->n; i++) {
        const double from = i ? k->at[i - 1] : 0;
        a[i] = fmax(0, fmin(size, k->at[i]) - from);
    }
    for (int i = 0; i < k->n && size > k->at[k->n - 1]; i++)
        a[i] *= size / k->at[k->n - 1];
}

/* A table from slopes. */
static void rows_of(const struct knots *k, const double *slope, double at_zero,
                    struct ap_time_rows *rows)
{
    double sec = at_zero;
    *rows = (struct ap_time_rows){0};
    for (int i = 0; i < k->n; i++) {
        sec += slope[i] * (k->at[i] - (i ? k->at[i - 1] : 0));
        rows->row[i] = (struct ap_time_row){k->at[i], sec};
    }
    rows->n = sec > 0 ? k->n : 0;
}

/* ---- kernels ---- */

struct range {
    double least, most;
};

static void widen(struct range *r, double v)
{
    if (v <= 0)
        return;
    r->least = r->least > 0 ? fmin(r->least, v) : v;
    r->most = fmax(r->most, v);
}

/* Scales the solution by measured over fitted seconds, each sample with its weight. */
static void balance(const struct cal_class *class, const struct knots *f,
                    const struct knots *b, struct least_squares *q)
{
    double measured = 0, fitted = 0, a[MAX_UNKNOWN];

    for (int i = 0; i < class->n; i++) {
        const struct cal_sample *s = &class->sample[i];
        hats(f, s->flops, a);
        hats(b, s->bytes, a + f->n);
        a[q->m - 1] = 1;
        for (int j = 0; j < q->m; j++)
            fitted += s->weight / s->sec * a[j] * q->x[j];
        measured += s->weight;
    }
    for (int j = 0; j < q->m && fitted > 0; j++)
        q->x[j] *= measured / fitted;
}

static void fit_kernel(const struct cal_class *class, struct ap_kernel_time *t)
{
    const bool heavy = class->kernel >= AP_KERNEL_DOT;
    struct range flops = {0, 0}, bytes = {0, 0};
    struct least_squares q = {0};
    double a[MAX_UNKNOWN], all = 0;

    for (int i = 0; i < class->n; i++) {
        widen(&flops, class->sample[i].flops);
        widen(&bytes, class->sample[i].bytes);
        all += class->sample[i].weight;
    }
    const struct knots f =
        knots_of(flops.least, flops.most, KERNEL_FACTOR, heavy ? KERNEL_KNOTS : 1);
    const struct knots b =
        knots_of(bytes.least, bytes.most, KERNEL_FACTOR, heavy ? 1 : KERNEL_KNOTS);
    q.m = 1 + f.n + b.n;
    for (int i = 0; i < class->n; i++) {
        const struct cal_sample *s = &class->sample[i];
        hats(&f, s->flops, a);
        hats(&b, s->bytes, a + f.n);
        a[f.n + b.n] = 1; /* last: where slopes say the same, they do */
        for (int j = 0; j < q.m; j++)
            a[j] /= s->sec;
        /* a tenth of the weight is the same for all: what is small is not free */
        add_equation(&q, a, (all > 0 ? s->weight / all : 0) + 0.1 / class->n);
    }
    solve(&q);
    balance(class, &f, &b, &q);
    *t = (struct ap_kernel_time){
        .kernel = class->kernel, .dtype = class->dtype, .launch_sec = q.x[f.n + b.n]};
    rows_of(&f, q.x, 0, &t->flops);
    rows_of(&b, q.x + f.n, 0, &t->bytes);
}

/* ---- collectives and messages ---- */

static void fit_bytes(const struct cal_class *class, struct ap_time_rows *rows)
{
    struct range bytes = {0, 0};
    struct least_squares q = {0};
    double a[MAX_UNKNOWN];

    for (int i = 0; i < class->n; i++)
        widen(&bytes, class->sample[i].bytes);
    const struct knots b =
        knots_of(bytes.least, bytes.most, COLLECTIVE_FACTOR, MAX_KNOTS);
    q.m = b.n; /* the constant, and slopes after the first knot */
    for (int i = 0; i < class->n; i++) {
        hats(&b, fmax(class->sample[i].bytes, b.at[0]), a);
        a[0] = 1;
        for (int j = 0; j < q.m; j++)
            a[j] /= class->sample[i].sec;
        add_equation(&q, a, class->sample[i].weight);
    }
    solve(&q);
    const double first = q.x[0];
    q.x[0] = 0;
    rows_of(&b, q.x, first, rows);
}

/* Bytes that each device sends, and how often it waits for the latency. */
static void moved_by(const struct cal_class *class, double bytes, double *hops,
                     double *moved)
{
    const double n = (double)class->devices, part = bytes * (n - 1) / n;

    *hops = 1;
    *moved = bytes;
    if (class->what == CAL_SEND)
        return;
    switch ((int)class->op) {
    case AP_OP_ALL_REDUCE:
        *hops = 2 * (n - 1);
        *moved = 2 * part;
        break;
    case AP_OP_ALL_GATHER:
    case AP_OP_REDUCE_SCATTER:
        *hops = n - 1;
        *moved = part;
        break;
    case AP_OP_ALL_TO_ALL:
        *hops = n - 1;
        *moved = part / n;
        break;
    case AP_OP_COLLECTIVE_PERMUTE:
        break;
    }
}

/* Latency and bandwidth of a level: messages' if there are any, else what collectives
 * (one ring at once) make of them. Weights are seconds: what long messages take is the
 * bandwidth, however links treat short ones. */
static void fit_level(struct cal *c, int level)
{
    struct least_squares q = {.m = 2};
    bool sends = false;
    int n = 0;

    for (int k = 0; k < c->n; k++)
        sends |= c->class[k].what == CAL_SEND && c->class[k].level == level;
    for (int k = 0; k < c->n; k++) {
        const struct cal_class *class = &c->class[k];
        if (class->what != (sends ? CAL_SEND : CAL_COLLECTIVE) || class->level != level ||
            class->rings > 1)
            continue;
        for (int i = 0; i < class->n; i++, n++) {
            const struct cal_sample *s = &class->sample[i];
            double a[2];
            moved_by(class, s->bytes, &a[0], &a[1]);
            a[0] /= s->sec;
            a[1] /= s->sec;
            add_equation(&q, a, s->sec);
        }
    }
    if (n < 2)
        return;
    solve(&q);
    c->cluster.levels[level].latency_sec = q.x[0];
    if (q.x[1] > 0)
        c->cluster.levels[level].bandwidth_bytes_per_sec = fmax(1, 1 / q.x[1]);
}

/* ---- figures that follow ---- */

/* The best rate of contractions in each type is its peak, and the table's the efficiency
 * in the type that took longest. */
static void set_peaks(struct cal *c, const struct ap_kernel_time *t, int n)
{
    const struct ap_kernel_time *main = NULL;
    double longest = 0;

    for (int k = 0; k < c->n; k++) {
        const struct cal_class *class = &c->class[k];
        double peak = 0, sum = 0;
        if (class->what != CAL_KERNEL || class->kernel != AP_KERNEL_DOT)
            continue;
        for (int i = 0; i < class->n; i++) {
            peak = fmax(peak, class->sample[i].flops / class->sample[i].sec);
            sum += class->sample[i].weight;
        }
        for (int i = 0; i < n && peak >= 1; i++) {
            if (t[i].kernel != AP_KERNEL_DOT || t[i].dtype != class->dtype)
                continue;
            c->cluster.flops_per_sec[class->dtype] = peak;
            if (class->dtype == AP_BF16 || class->dtype == AP_F16 || sum <= longest)
                continue;
            longest = sum;
            main = &t[i];
        }
    }
    if (!main || main->flops.n == 0)
        return;
    c->cluster.measured.n_rates = 0; /* shares of other peaks */
    c->cluster.n_curve = main->flops.n;
    for (int i = 0; i < main->flops.n; i++) {
        const struct ap_time_row *row = &main->flops.row[i];
        const double peak = c->cluster.flops_per_sec[main->dtype];
        const double share = row->size / fmax(main->launch_sec + row->sec, 1e-12) / peak;
        c->cluster.curve[i] =
            (struct ap_share_row){row->size, fmin(1, fmax(1e-6, share))};
    }
    c->cluster.efficiency = c->cluster.curve[c->cluster.n_curve - 1].of_peak;
}

/* Bandwidth and launch are those of fused passes. */
static void set_memory(struct cal *c, const struct ap_kernel_time *t)
{
    if (t->kernel != AP_KERNEL_FUSED || t->dtype != AP_F32)
        return;
    c->cluster.launch_sec = t->launch_sec;
    if (t->bytes.n) {
        const struct ap_time_row *row = &t->bytes.row[t->bytes.n - 1];
        c->cluster.memory_bandwidth_bytes_per_sec = fmax(1, row->size / row->sec);
    }
}

/* ---- residuals ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double predicted(const struct cal *c, const struct cal_class *class,
                        const struct cal_sample *s)
{
    const struct ap_measured *m = &c->cluster.measured;
    if (class->what == CAL_KERNEL)
        return ap_cluster_kernel_sec(&c->cluster,
                                     &(struct ap_kernel_work){.kernel = class->kernel,
                                                              .dtype = class->dtype,
                                                              .flops = s->flops,
                                                              .bytes = s->bytes});
    if (class->what == CAL_SEND) {
        const struct ap_time_rows *rows = &ap_measured_send(m, class->level)->bytes;
        return ap_time_at(rows, s->bytes, rows->row[0].sec);
    }
    const struct ap_collective_time *t =
        ap_measured_collective(m, class->op, class->level, class->devices, class->rings);
    return ap_time_at(&t->bytes, s->bytes, t->bytes.row[0].sec);
}

static void find_errors(const struct cal *c, struct cal_class *class)
{
    double *error = malloc((size_t)(class->n + 1) * sizeof *error);
    if (!error)
        abort();
    for (int i = 0; i < class->n; i++)
        error[i] =
            fabs(predicted(c, class, &class->sample[i]) / class->sample[i].sec - 1);
    qsort(error, (size_t) class->n, sizeof *error, by_value);
    if (class->n) {
        class->median_error = error[class->n / 2];
        class->worst_error = error[class->n - 1];
    }
    free(error);
}

/* ---- all ---- */

/* What the cluster has measured before stays where nothing new replaces it. */
static void keep_old(const struct ap_measured *m, struct ap_kernel_time *kernel,
                     struct ap_collective_time *collective, struct ap_send_time *send,
                     struct ap_measured *now)
{
    for (int i = 0; i < m->n_sends; i++)
        if (!ap_measured_send(now, m->send[i].level))
            send[now->n_sends++] = m->send[i];
    for (int i = 0; i < m->n_kernels && now->n_kernels < AP_MAX_TIMES; i++)
        if (!ap_measured_kernel(now, m->kernel[i].kernel, m->kernel[i].dtype))
            kernel[now->n_kernels++] = m->kernel[i];
    for (int i = 0; i < m->n_collectives && now->n_collectives < AP_MAX_TIMES; i++) {
        const struct ap_collective_time *t = &m->collective[i];
        if (!ap_measured_collective(now, t->op, t->level, t->devices, t->rings))
            collective[now->n_collectives++] = *t;
    }
}

void cal_fit(struct cal *c)
{
    const int room = c->n + AP_MAX_TIMES;
    struct ap_kernel_time *kernel = AP_NEW_N(c->arena, room, struct ap_kernel_time);
    struct ap_collective_time *collective =
        AP_NEW_N(c->arena, room, struct ap_collective_time);
    struct ap_send_time *send = AP_NEW_N(c->arena, room, struct ap_send_time);
    struct ap_measured now = {.kernel = kernel, .collective = collective, .send = send};

    for (int k = 0; k < c->n; k++) {
        const struct cal_class *class = &c->class[k];
        if (class->what == CAL_KERNEL && class->n >= LEAST_SAMPLES)
            fit_kernel(class, &kernel[now.n_kernels++]);
        if (class->what == CAL_COLLECTIVE) {
            struct ap_collective_time *t = &collective[now.n_collectives++];
            *t = (struct ap_collective_time){
                class->op, class->level, class->devices, class->rings, {0}};
            fit_bytes(class, &t->bytes);
        }
        if (class->what == CAL_SEND) {
            send[now.n_sends].level = class->level;
            fit_bytes(class, &send[now.n_sends++].bytes);
        }
    }
    for (int l = 0; l < c->cluster.n_levels; l++)
        fit_level(c, l);
    set_peaks(c, kernel, now.n_kernels);
    for (int i = 0; i < now.n_kernels; i++)
        set_memory(c, &kernel[i]);
    keep_old(&c->cluster.measured, kernel, collective, send, &now);
    c->cluster.measured = now;
    for (int k = 0; k < c->n; k++)
        find_errors(c, &c->class[k]);
}

void cal_report(const struct cal *c, struct ap_buf *out)
{
    for (int k = 0; k < c->n; k++) {
        const struct cal_class *class = &c->class[k];
        struct ap_buf name = {0};
        if (class->what == CAL_KERNEL)
            ap_buf_printf(&name, "%s %s", ap_kernel_names[class->kernel],
                          ap_dtype_name(class->dtype));
        else if (class->what == CAL_SEND)
            ap_buf_printf(&name, "send, %s", c->cluster.levels[class->level].name);
        else
            ap_buf_printf(&name, "%s, %lld devices, %s", ap_ops[class->op].name,
                          (long long)class->devices,
                          c->cluster.levels[class->level].name);
        if (class->rings > 1)
            ap_buf_printf(&name, ", %lld rings", (long long)class->rings);
        const bool fitted = class->what != CAL_KERNEL || class->n >= LEAST_SAMPLES;
        ap_buf_printf(out, "%-40s %4d samples, error %5.1f %% median, %5.1f %% worst%s\n",
                      name.data, class->n, 100 * class->median_error,
                      100 * class->worst_error, fitted ? "" : " (no table: too few)");
        ap_buf_free(&name);
    }
}
