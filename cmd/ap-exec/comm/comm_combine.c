/*
 * How collectives add up: block after block in the order of ranks, in tiles, half
 * precision in f32 with one rounding at the end.
 */
#include "comm/comm.h"

#include "elem/elem.h"

void comm_combine(void *out, const void *blocks, int n_blocks, int64_t n,
                  enum ap_dtype dtype, enum ap_red red)
{
    static const int one[3] = {1, 1, 1};
    cpu_fn *fn = cpu_op_find(cpu_red_op(red), AP_EQ, dtype, dtype);
    const int size = ap_dtype_size(dtype);
    double acc[CPU_TILE], next[CPU_TILE]; /* room for any element type */
    for (int64_t i = 0; i < n; i += CPU_TILE) {
        const int64_t k = n - i < CPU_TILE ? n - i : CPU_TILE;
        const char *p = (const char *)blocks + i * size;
        cpu_load(acc, p, 1, dtype, k);
        for (int q = 1; q < n_blocks; q++) {
            const void *x = p + q * n * size;
            if (!cpu_is_plain(dtype)) {
                cpu_load(next, x, 1, dtype, k);
                x = next;
            }
            fn(acc, acc, x, x, one, k);
        }
        cpu_store((char *)out + i * size, 1, acc, dtype, k);
    }
}
