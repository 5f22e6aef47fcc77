/*
 * Problem: at most k convex blocks of about equal time that each fit a device. Idea:
 * RaNNC's three phases. Coarsening joins neighbours in passes down to k clusters;
 * uncoarsening walks back and moves pieces across borders; compaction joins consecutive
 * blocks if coarsening ended with more than k. Cost: passes shrink the graph by a factor
 * as a rule, so near linear; where one does not (a hub takes one neighbour a pass)
 * RANNC_MAX_PASSES ends coarsening, and compaction does the rest. After Tanaka et al.,
 * "Automatic Graph Partitioning for Very Large-scale Deep Learning", section III-B.
 */
#include "rannc/rannc.h"

#include <assert.h>

#define RANNC_MAX_PASSES 64

static int check_components(const struct rannc_level *l,
                            const struct rannc_params *params, struct ap_err *err)
{
    for (int c = 0; c < l->n; c++) {
        if (rannc_fits(params, &l->all[c]))
            continue;
        int node = l->atoms->node[c];
        int64_t need =
            rannc_memory_bytes(&l->all[c], rannc_alloc_bytes(&l->all[c], &params->memory),
                               params->memory.optimizer_factor);
        return ap_err_set(err,
                          "/graph/nodes/%d (%s): its component needs %lld bytes, the "
                          "limit is %lld",
                          node, l->atoms->g->nodes[node].name, (long long)need,
                          (long long)params->limit_bytes);
    }
    return 0;
}

static int coarsen(struct ap_arena *arena, const struct rannc_params *params,
                   struct rannc_level **levels)
{
    int top = 0, target = params->stop_blocks ? params->stop_blocks : params->max_blocks;

    while (levels[top]->n > target && top + 1 < RANNC_MAX_PASSES) {
        int *map = AP_NEW_N(arena, levels[top]->n, int);
        int n = rannc_coarsen_pass(arena, levels[top], params, target, map);
        if (n == levels[top]->n)
            break;
        levels[top + 1] = rannc_level_contract(arena, levels[top], n, map);
        top++;
    }
    return top;
}

/*
 * New numbers for the n blocks of block_of, so that edges rise: Kahn's queue. The
 * contraction by the old numbers has the blocks' edges, which is all that is asked of it.
 */
static void sort_blocks(struct ap_arena *arena, struct rannc_level *l, int n,
                        int *block_of)
{
    const struct rannc_level *q = rannc_level_contract(arena, l, n, block_of);
    int *n_before = AP_NEW_N(arena, n, int), *queue = AP_NEW_N(arena, n, int);
    int *number = AP_NEW_N(arena, n, int), tail = 0;

    for (int b = 0; b < n; b++) {
        n_before[b] = q->in_start[b + 1] - q->in_start[b];
        if (!n_before[b])
            queue[tail++] = b;
    }
    for (int head = 0; head < tail; head++) {
        int b = queue[head];
        number[b] = head;
        for (int i = q->out_start[b]; i < q->out_start[b + 1]; i++)
            for (int v = q->out[i], k = q->reader_start[v]; k < q->reader_start[v + 1];
                 k++)
                if (--n_before[q->reader[k]] == 0)
                    queue[tail++] = q->reader[k];
    }
    assert(tail == n); /* moves make no cycles */
    for (int c = 0; c < l->n; c++)
        block_of[c] = number[block_of[c]];
}

static struct rannc_level *uncoarsen(struct ap_arena *arena,
                                     const struct rannc_params *params,
                                     struct rannc_level **levels, int top)
{
    int n = levels[top]->n;
    int *block_of = AP_NEW_N(arena, n, int);

    for (int c = 0; c < n; c++)
        block_of[c] = c;
    for (int i = top - 1; i >= 0; i--) {
        int *finer = AP_NEW_N(arena, levels[i]->n, int);
        for (int c = 0; c < levels[i]->n; c++)
            finer[c] = block_of[levels[i]->parent[c]];
        block_of = finer;
        rannc_uncoarsen(arena, levels[i], params, n, block_of);
    }
    sort_blocks(arena, levels[0], n, block_of);
    return rannc_level_contract(arena, levels[0], n, block_of);
}

static struct rannc_level *
compact(struct ap_arena *arena, const struct rannc_params *params, struct rannc_level *l)
{
    while (l->n > params->max_blocks) {
        int *map = AP_NEW_N(arena, l->n, int);
        int n = rannc_compact_pass(arena, l, params, params->max_blocks, map);
        if (n == l->n)
            break;
        l = rannc_level_contract(arena, l, n, map);
    }
    return l;
}

int rannc_blocks(struct ap_arena *arena, const struct rannc_atoms *atoms,
                 const struct rannc_params *params, struct rannc_level **blocks,
                 struct ap_err *err)
{
    struct rannc_level *levels[RANNC_MAX_PASSES] = {rannc_level_first(arena, atoms)};

    if (check_components(levels[0], params, err))
        return -1;
    int top = coarsen(arena, params, levels);
    struct rannc_level *l = levels[top];
    if (params->uncoarsen && top > 0)
        l = uncoarsen(arena, params, levels, top);
    l = compact(arena, params, l);
    if (l->n > params->max_blocks)
        return ap_err_set(err,
                          "%d blocks remain, %d are wanted: no two that follow each "
                          "other fit into %lld bytes together",
                          l->n, params->max_blocks, (long long)params->limit_bytes);
    for (int b = 0; b < l->n; b++)
        if (!rannc_fits(params, &l->all[b])) /* merges without prices */
            return ap_err_set(err, "block %d of %d does not fit into %lld bytes", b, l->n,
                              (long long)params->limit_bytes);
    *blocks = l;
    return 0;
}
