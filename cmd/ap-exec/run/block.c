#include "run/block.h"

#include "graph/part.h"

#include <string.h>

void block_open(struct ap_arena *arena, struct block *b, const struct ap_mesh *mesh,
                const struct placement *place, const struct ap_part *part,
                const int64_t *coords)
{
    const struct shard s = exec_shard(arena, mesh, place, coords);
    *b = (struct block){.shard = s,
                        .row = s.local.rank ? s.local.dims[s.local.rank - 1] : 1};
    b->offset = ap_part_place(&place->global, part, b->stride);
    b->n_rows = b->row ? ap_shape_elems(&s.local) / b->row : 0;
}

/* Where row i's first column lies in the whole; -1 when the row is padding. */
static int64_t row_at(const struct block *b, int64_t i)
{
    int64_t base = b->offset;
    for (int d = b->shard.local.rank - 2; d >= 0; d--) {
        const int64_t g = b->shard.map[d][i % b->shard.local.dims[d]];
        if (g < 0)
            return -1;
        base += g * b->stride[d];
        i /= b->shard.local.dims[d];
    }
    return base;
}

/* Where column j lies from its row's first one; -1 for padding. */
static int64_t column_at(const struct block *b, int64_t j)
{
    const int last = b->shard.local.rank - 1;
    if (last < 0)
        return 0;
    const int64_t g = b->shard.map[last][j];
    return g < 0 ? -1 : g * b->stride[last];
}

int block_each(const struct block *b, block_run_fn *run, void *ctx)
{
    int64_t local = 0, whole = 0, n = 0; /* the run at hand */
    for (int64_t i = 0; i < b->n_rows; i++) {
        const int64_t base = row_at(b, i);
        for (int64_t j = 0; base >= 0 && j < b->row; j++) {
            const int64_t c = column_at(b, j), at = i * b->row + j;
            if (c < 0)
                continue;
            if (n && at == local + n && base + c == whole + n) {
                n++;
                continue;
            }
            const int rc = n ? run(ctx, local, whole, n) : 0;
            if (rc)
                return rc;
            local = at;
            whole = base + c;
            n = 1;
        }
    }
    return n ? run(ctx, local, whole, n) : 0;
}

struct moving {
    char *local, *whole;
    int size;
    bool out;
};

static int move_run(void *ctx, int64_t local, int64_t whole, int64_t n)
{
    const struct moving *m = ctx;
    char *p = m->local + local * m->size, *q = m->whole + whole * m->size;
    if (m->out)
        memcpy(q, p, (size_t)(n * m->size));
    else
        memcpy(p, q, (size_t)(n * m->size));
    return 0;
}

void block_move(const struct block *b, char *local, char *whole, int size, bool out)
{
    struct moving m = {local, whole, size, out};
    block_each(b, move_run, &m);
}
