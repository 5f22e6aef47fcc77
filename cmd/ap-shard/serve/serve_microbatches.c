/*
 * Problem: parts are priced for many numbers of microbatches, which mostly differ in
 * little. This file finds the differences: which values of a block a microbatch splits,
 * and which devices it leaves without rows. Cost: linear in the graph once per number;
 * per mesh the distinct sizes that are split.
 */
#include "serve/serve.h"

#include <stdlib.h>

static void hash_blocks(const struct serve_blocks *b, struct serve_microbatches *t)
{
    t->hash = AP_NEW_N(&t->arena, b->n + 1, uint64_t);
    for (int i = 0; i < b->n; i++) {
        for (int k = b->node_start[i]; k < b->node_start[i + 1]; k++) {
            int v = b->node[k];
            const bool key[3] = {t->axis.split[v], t->axis.runs[v],
                                 t->axis.each && t->axis.each[v]};
            t->hash[i] = ap_hash(key, sizeof key, t->hash[i]);
        }
        for (int e = b->ext_start[i]; e < b->ext_start[i + 1]; e++)
            t->hash[i] = ap_hash(&t->axis.split[b->ext[e]], sizeof(bool), t->hash[i]);
        for (int e = b->ext_start[i]; e < b->ext_start[i + 1] && t->axis.each; e++)
            t->hash[i] = ap_hash(&t->axis.each[b->ext[e]], sizeof(bool), t->hash[i]);
    }
}

static int compare_rows(const void *pa, const void *pb)
{
    int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;
    return (a > b) - (a < b);
}

static void list_rows(const struct ap_graph *g, struct serve_microbatches *t)
{
    int n = 0;
    t->rows = AP_NEW_N(&t->arena, g->n_nodes + 1, int64_t);
    for (int v = 0; v < g->n_nodes; v++)
        if (t->axis.dim[v] >= 0)
            t->rows[n++] = g->nodes[v].shape.dims[t->axis.dim[v]];
    qsort(t->rows, (size_t)n, sizeof *t->rows, compare_rows);
    for (int i = 0; i < n; i++)
        if (i == 0 || t->rows[i] != t->rows[i - 1])
            t->rows[t->n_rows++] = t->rows[i];
    t->dims = ap_hash(t->axis.dim, (size_t)g->n_nodes * sizeof *t->axis.dim, 0);
}

uint64_t serve_microbatches_rows(const struct serve_microbatches *t,
                                 const struct ap_mesh *mesh)
{
    uint64_t key = t->dims;
    bool any = false;
    for (int i = 0; i < t->n_rows && t->rows[i] / t->n < ap_mesh_devices(mesh); i++)
        for (unsigned set = 1; set < 1u << mesh->n_axes; set++) {
            int64_t devices = 1;
            for (int a = 0; a < mesh->n_axes; a++)
                devices *= set >> a & 1 ? mesh->size[a] : 1;
            bool few = t->rows[i] / t->n < devices;
            key = ap_hash(&few, sizeof few, key);
            any |= few;
        }
    return any ? key | 1 : 0;
}

struct serve_microbatches *serve_microbatches_new(const struct serve_blocks *b,
                                                  const struct ap_graph *g,
                                                  const struct ap_nests *nests, int64_t n,
                                                  struct ap_err *err)
{
    struct serve_microbatches *t = ap_xrealloc(NULL, sizeof *t);
    struct ap_err why = {0};

    *t = (struct serve_microbatches){.n = n};
    if (ap_stage_microbatch_axis(&t->arena, g, nests, n, &t->axis, &why)) {
        serve_microbatches_free(t);
        ap_err_set(err, "%lld microbatches: %s", (long long)n, why.msg);
        return NULL;
    }
    if (b->n > 0)
        t->axis.block_of = b->home;
    hash_blocks(b, t);
    list_rows(g, t);
    return t;
}

struct serve_microbatches *serve_microbatches_like(const struct serve_microbatches *t,
                                                   int64_t n)
{
    struct serve_microbatches like = *t;
    like.n = n;
    like.arena = (struct ap_arena){0};
    if (!ap_stage_microbatch_like(&t->axis, n, &like.axis))
        return NULL;
    struct serve_microbatches *own = ap_xrealloc(NULL, sizeof *own);
    *own = like;
    return own;
}

void serve_microbatches_free(struct serve_microbatches *t)
{
    ap_arena_free(&t->arena);
    free(t);
}
