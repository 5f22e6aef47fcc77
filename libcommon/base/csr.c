#include "base/csr.h"

struct ap_csr ap_csr_new(struct ap_arena *arena, int n_rows, int n, const int *row,
                         const int *item)
{
    struct ap_csr csr = {n_rows, AP_NEW_N(arena, n_rows + 1, int), NULL};
    int total = 0;

    for (int i = 0; i < n; i++)
        if (row[i] >= 0)
            csr.start[row[i]]++;
    for (int r = 0; r <= n_rows; r++) {
        int count = csr.start[r];
        csr.start[r] = total;
        total += count;
    }
    csr.item = AP_NEW_N(arena, total, int);
    for (int i = 0; i < n; i++)
        if (row[i] >= 0)
            csr.item[csr.start[row[i]]++] = item ? item[i] : i;
    for (int r = n_rows; r > 0; r--)
        csr.start[r] = csr.start[r - 1];
    csr.start[0] = 0;
    return csr;
}
