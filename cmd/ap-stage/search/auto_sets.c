/*
 * Problem: the stages of a setting's plans are runs of blocks. Where the blocks do not
 * form a chain, a stage may be another set of them, too (rhino's are), and the bound of
 * settings does not cover such plans. Idea: if every block is read by the next one,
 * stages in the order of values are runs, and nothing is missed. Otherwise the sets that
 * rhino finds are candidates, with several tolerances (auto_rules.c), and the bound is
 * also what all devices take at least for all blocks, whatever is together. Cost: blocks
 * * submeshes for each configuration; nothing is asked for.
 */
#include "search/auto.h"

#include <math.h>

bool plan_is_chain(const struct plan_instance *inst)
{
    struct ap_arena scratch = {0};
    bool *reads =
        AP_NEW_N(&scratch, inst->n_blocks + 1, bool); /* [block]: the one before */
    bool chain = true;

    for (int i = 0; i < inst->n_values; i++)
        for (int k = 0; k < inst->value[i].n_to; k++)
            if (inst->value[i].to[k] == inst->value[i].from + 1)
                reads[inst->value[i].to[k]] = true;
    for (int b = 1; b < inst->n_blocks; b++)
        chain &= reads[b];
    ap_arena_free(&scratch);
    return chain;
}

double space_sets_bound(const struct space *whole)
{
    const struct plan_instance *inst = whole->inst;
    struct ap_arena scratch = {0};
    struct space sp = *whole;
    double least = INFINITY;

    if (plan_is_chain(inst))
        return least;
    sp.arena = &scratch;
    for (int r = 1; r <= inst->n_hosts * inst->n_devices; r++)
        for (int i = 0; i < inst->n_microbatches; i++) {
            struct config c;
            if (config_init(&sp, &c, r, inst->microbatches[i], NULL, 0))
                least = least_of(least, setting_known_bound(&sp, &c));
            ap_arena_free(&scratch);
        }
    return least;
}
