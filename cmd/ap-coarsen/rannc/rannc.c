/*
 * RaNNC's blocks: atomic components (rannc_atoms.c) put into at most k convex blocks of
 * about equal time under the memory limit (rannc_blocks.c), by the rules of the paper
 * unless an option asks for one of its published code's. The objective is the
 * time of the slowest block, forward and backward, for one microbatch; no block is faster
 * than the slowest component, nor than all work shared out among k, which is the bound.
 * After Tanaka et al., "Automatic Graph Partitioning for Very Large-scale Deep Learning",
 * sections III-A and III-B.
 */
#include "coarsen.h"
#include "rannc/rannc.h"

#include <math.h>

#define DEFAULT_BLOCKS 32 /* section IV-A */

/* Optimizer states per byte of weights, as the graph has them. */
static double states_per_weight(const struct ap_graph *g)
{
    double weights = 0, states = 0;
    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *p = &g->nodes[g->params[i]];
        if (p->role == AP_ROLE_WEIGHT)
            weights += (double)ap_shape_bytes(&p->shape);
        if (p->role == AP_ROLE_STATE)
            states += (double)ap_shape_bytes(&p->shape);
    }
    return weights > 0 ? states / weights : 0;
}

static struct rannc_params params_of(const struct ap_graph *g,
                                     const struct coarsen_params *params)
{
    const struct coarsen_rannc *o = &params->rannc;
    struct rannc_params p = {
        .max_blocks = params->n_blocks ? params->n_blocks : DEFAULT_BLOCKS,
        .stop_blocks = (int)o->stop_blocks,
        .unprofiled_above = (int)o->unprofiled_above,
        .merge = (enum rannc_merge)o->merge,
        .successors_only = o->successors_only,
        .uncoarsen = !o->no_uncoarsening,
        .limit_bytes = INT64_MAX,
        .n_devices = ap_cluster_devices(params->cluster),
        .memory = {.optimizer_factor = o->optimizer_factor < 0 ? states_per_weight(g)
                                                               : o->optimizer_factor,
                   .microbatches = o->microbatches,
                   .checkpointing = !o->no_checkpointing},
        .cluster = params->cluster,
    };
    if (params->memory_bytes)
        p.limit_bytes = rannc_limit_bytes(params->memory_bytes, o->memory_margin);
    return p;
}

static void score(const struct rannc_atoms *atoms, const struct rannc_level *l, int k,
                  struct ap_blocks *more)
{
    double total = 0, slowest = 0, component = 0;

    for (int b = 0; b < l->n; b++)
        if (rannc_sec(&l->all[b]) > slowest)
            slowest = rannc_sec(&l->all[b]);
    for (int a = 0; a < atoms->n; a++) {
        double sec = rannc_sec(&atoms->own[a]);
        total += sec;
        if (sec > component)
            component = sec;
    }
    for (int s = 0; s < atoms->n_shared; s++)
        total += atoms->shared_sec[s];
    more->objective = slowest;
    more->bound = component > total / k ? component : total / k;
    if (more->bound > slowest) /* the same sum in another order */
        more->bound = slowest;
    more->objective_unit = "seconds";
}

static int check_options(const struct coarsen_rannc *o, struct ap_err *err)
{
    if (!(o->memory_margin >= 0 && o->memory_margin < 1))
        return ap_err_set(err, "--memory-margin: expected 0 to less than 1, got %g",
                          o->memory_margin);
    if (!(o->optimizer_factor >= 0 || isinf(o->optimizer_factor)))
        return ap_err_set(err, "--optimizer-factor: expected 0 or more, got %g",
                          o->optimizer_factor);
    if (o->unprofiled_above && o->merge != RANNC_MERGE_GAIN)
        return ap_err_set(err, "--unprofiled-above is for --merge gain");
    return 0;
}

enum ap_exit coarsen_rannc(struct ap_arena *arena, const struct ap_graph *g,
                           const struct coarsen_params *params,
                           struct coarsen_answer *answer, struct ap_err *err)
{
    struct rannc_params p = params_of(g, params);
    struct rannc_atoms atoms;
    struct rannc_level *l;

    if (check_options(&params->rannc, err))
        return AP_USAGE;
    if (rannc_atoms_make(arena, g, &p, &atoms, err))
        return AP_BAD_INPUT;
    if (rannc_blocks(arena, &atoms, &p, &l, err))
        return AP_NO_SOLUTION;
    answer->n = l->n;
    for (int i = 0; i < g->n_nodes; i++)
        if (atoms.atom_of[i] >= 0)
            answer->block_of[i] = l->owner[atoms.atom_of[i]];
    score(&atoms, l, p.max_blocks, &answer->more);
    answer->stats = ap_arena_printf(arena, ",\"components\":%d,\"clones\":%d", atoms.n,
                                    atoms.n_shared);
    return AP_OK;
}
