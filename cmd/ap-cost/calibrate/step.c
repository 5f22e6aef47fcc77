/*
 * Problem: a cluster for later plans from the time that a trainer's step took. Idea: one
 * figure does not say what is slow, so all times of the plan's cluster are scaled by
 * measured / predicted: the plan then has the measured time, and plans keep their order.
 * Shares of the peak are scaled rather than the peak, which utilisation is counted of.
 */
#include "calibrate/calibrate.h"

#include <math.h>

static void scale_rows(struct ap_time_rows *rows, double by)
{
    for (int i = 0; i < rows->n; i++)
        rows->row[i].sec *= by;
}

static void scale_tables(struct ap_arena *arena, struct ap_measured *m, double by)
{
    struct ap_kernel_time *kernel =
        AP_NEW_N(arena, m->n_kernels + 1, struct ap_kernel_time);
    struct ap_collective_time *collective =
        AP_NEW_N(arena, m->n_collectives + 1, struct ap_collective_time);
    struct ap_send_time *send = AP_NEW_N(arena, m->n_sends + 1, struct ap_send_time);

    for (int i = 0; i < m->n_kernels; i++) {
        kernel[i] = m->kernel[i];
        kernel[i].launch_sec *= by;
        scale_rows(&kernel[i].flops, by);
        scale_rows(&kernel[i].bytes, by);
    }
    for (int i = 0; i < m->n_collectives; i++) {
        collective[i] = m->collective[i];
        scale_rows(&collective[i].bytes, by);
    }
    for (int i = 0; i < m->n_sends; i++) {
        send[i] = m->send[i];
        scale_rows(&send[i].bytes, by);
    }
    m->kernel = kernel;
    m->collective = collective;
    m->send = send;
}

static double most_of(const struct ap_share_row *row, int n, double most)
{
    for (int i = 0; i < n; i++)
        most = fmax(most, row[i].of_peak);
    return most;
}

static void scale_shares(struct ap_share_row *row, int n, double by)
{
    for (int i = 0; i < n; i++)
        row[i].of_peak *= by;
}

/* Shares are at most 1: what is left raises the peaks. */
static void scale_compute(struct ap_arena *arena, struct ap_cluster *c, double by)
{
    double most = fmax(c->efficiency, fmax(c->attention_of_peak, c->uneven_of_peak));
    struct ap_rate *rate = AP_NEW_N(arena, c->measured.n_rates + 1, struct ap_rate);

    most = most_of(c->curve, c->n_curve, most);
    for (int i = 0; i < c->measured.n_rates; i++) {
        rate[i] = c->measured.rate[i];
        most = most_of(rate[i].row, rate[i].n, most);
    }
    const double shares = fmin(1 / by, 1 / most), peaks = 1 / by / shares;
    for (int i = 0; i < c->measured.n_rates; i++)
        scale_shares(rate[i].row, rate[i].n, shares);
    scale_shares(c->curve, c->n_curve, shares);
    c->measured.rate = rate;
    c->efficiency *= shares;
    c->attention_of_peak *= shares;
    c->uneven_of_peak *= shares;
    for (int i = 0; i < AP_N_DTYPES; i++)
        c->flops_per_sec[i] *= peaks;
    c->tf32_flops_per_sec *= peaks;
    c->memory_bandwidth_bytes_per_sec /= by;
    c->launch_sec *= by;
    c->host_sec *= by;
}

void cal_scale(struct cal *c, double by)
{
    scale_compute(c->arena, &c->cluster, by);
    for (int i = 0; i < c->cluster.n_levels; i++) {
        c->cluster.levels[i].bandwidth_bytes_per_sec /= by;
        c->cluster.levels[i].latency_sec *= by;
    }
    scale_tables(c->arena, &c->cluster.measured, by);
}

int cal_read_step(struct cal *c, const char *file, double measured_sec, double *by,
                  struct ap_err *err)
{
    struct ap_doc doc;
    const struct ap_at at = {NULL, "cost", 0};
    double sec;

    if (ap_doc_read(c->arena, file, &doc, err))
        return -1;
    const struct ap_section *section = ap_doc_find(&doc, "cost");
    if (!section || !ap_doc_find(&doc, "cluster"))
        return ap_err_set(err, "%s: no plan with its cost and cluster: price it first",
                          doc.file);
    json_t *cost = ap_doc_load(&doc, section, err);
    const int rc = !cost || ap_get_num(cost, &at, "step_sec", &sec, err) ||
                   ap_cluster_get(c->arena, &doc, NULL, 1, &c->cluster, err);
    json_decref(cost);
    if (rc)
        return -1;
    *by = measured_sec / sec;
    if (!(*by >= 0.01 && *by <= 100)) /* a sum of other steps, or of microbatches */
        return ap_err_set(err, "%s: the step is predicted to take %.4g s, not %.4g",
                          doc.file, sec, measured_sec);
    c->has_cluster = true;
    return 0;
}
