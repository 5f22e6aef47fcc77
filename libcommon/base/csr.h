/*
 * Lists of items per row, one after the other: row r has the items item[start[r]] up to
 * item[start[r + 1]].
 */
#ifndef AP_CSR_H
#define AP_CSR_H

#include "base/base.h"

struct ap_csr {
    int n_rows;
    int *start; /* [n_rows + 1] */
    int *item;
};

/*
 * Lists from n pairs (row[i], item[i]); item NULL: the pairs' numbers. Each row keeps the
 * order of the pairs; pairs of row -1 are left out. O(n + n_rows).
 */
struct ap_csr ap_csr_new(struct ap_arena *arena, int n_rows, int n, const int *row,
                         const int *item);
static inline int ap_csr_count(const struct ap_csr *csr, int row)
{
    return csr->start[row + 1] - csr->start[row];
}

#endif
