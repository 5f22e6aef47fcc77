/*
 * How many of its scores a device computes where a mask hides the others.
 *
 * Kernels skip what a mask hides (ap-fuse/attention_scores.c has the band that it
 * leaves), so that a device's work depends on which queries it has: of a causal mask and
 * rows in n blocks, the last block sees 1 - 1 / 2n of all pairs, the first 1 / 2n. A
 * group takes as long as its slowest device, which is the device with the last rows: no
 * other sees more keys. Rows of a minor factor (a split with stride, Brandon et al.,
 * "Striped Attention", 2023) come from all parts of the sequence. Summed in closed form
 * over runs of rows that stand together; O(runs), at most MAX_RUNS, beyond which rows are
 * taken to be even.
 */
#include "layout/nest_impl.h"

#define MAX_RUNS 1024

/* Sum of i over 0 <= i < n. */
static double triangle(double n)
{
    return n <= 0 ? 0 : n * (n - 1) / 2;
}

/* Sum over queries q < n of the keys k < keys with k <= q + ahead. */
static double keys_up_to(double n, double keys, double ahead)
{
    double rising = keys - 1 - ahead; /* queries that do not see the last key */

    rising = rising < 0 ? 0 : rising > n ? n : rising;
    return triangle(rising) + rising * (ahead + 1) + (n - rising) * keys;
}

/* Sum over queries q < n of the keys k < keys with k < q - back. */
static double keys_behind(double n, double keys, double back)
{
    double from = back < n ? back : n, to = keys + back < n ? keys + back : n;
    return triangle(to - from) + (n - to) * keys;
}

/* Pairs that queries first .. end - 1 see. */
static double pairs(double first, double end, double keys, const int64_t *band)
{
    const double back = (double)band[0], ahead = (double)band[1];
    return keys_up_to(end, keys, ahead) - keys_up_to(first, keys, ahead) -
           keys_behind(end, keys, back) + keys_behind(first, keys, back);
}

double ap_nest_seen(const struct ap_nest *nest, const struct ap_access *scores,
                    const struct ap_ints *attr, const int64_t *extent)
{
    const struct ap_dim_factors *rows = &scores->dims[attr->v[1]];
    const struct ap_dim_factors *keys = &scores->dims[attr->v[2]];
    double n_keys = 1, n_rows = 1, run = 1, seen = 0;
    int64_t n_runs = 1, stride[AP_MAX_FACTORS];
    int last = rows->n - 1;

    for (int j = 0; j < keys->n; j++)
        n_keys *= (double)nest->factors[keys->factor[j]].size;
    for (int j = last; j >= 0; j--) {
        stride[j] = (int64_t)n_rows;
        n_rows *= (double)nest->factors[rows->factor[j]].size;
    }
    while (last >= 0 &&
           extent[rows->factor[last]] == nest->factors[rows->factor[last]].size)
        last--; /* whole: part of the run */
    if (last >= 0)
        run = (double)(stride[last] * extent[rows->factor[last]]);
    else
        run = n_rows;
    for (int j = 0; j < last; j++)
        n_runs = ap_mul64(n_runs, extent[rows->factor[j]]);
    if (n_runs > MAX_RUNS)
        return pairs(0, n_rows, n_keys, attr->v + 3) / (n_rows * n_keys);
    for (int64_t r = 0; r < n_runs; r++) {
        int64_t rest = r, first = 0;
        for (int j = last; j >= 0; j--) {
            const int64_t size = nest->factors[rows->factor[j]].size,
                          mine = extent[rows->factor[j]];
            first += stride[j] * (size - mine + (j < last ? rest % mine : 0));
            rest = j < last ? rest / mine : rest;
        }
        seen += pairs((double)first, (double)first + run, n_keys, attr->v + 3);
    }
    return seen / ((double)n_runs * run * n_keys);
}
