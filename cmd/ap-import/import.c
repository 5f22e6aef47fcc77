#include "import.h"

#include <stdlib.h>
#include <string.h>

#include "layout/nest.h"

#define DEFAULT_MAX_WORK 2000000 /* instructions after inlining */

/* Moves what grew by malloc into the arena. */
static void settle(struct import *im)
{
    struct ap_graph *g = &im->g;
    struct ap_arena *arena = im->src->arena;
    g->nodes = ap_arena_dup(arena, g->nodes ? (const void *)g->nodes : "",
                            (size_t)g->n_nodes * sizeof *g->nodes);
    g->reducers = ap_arena_dup(arena, im->reducers ? (const void *)im->reducers : "",
                               (size_t)g->n_reducers * sizeof *im->reducers);
    g->comps = ap_arena_dup(arena, im->comps ? (const void *)im->comps : "",
                            (size_t)g->n_comps * sizeof *im->comps);
    g->dropped = ap_arena_dup(arena, im->dropped ? (const void *)im->dropped : "",
                              (size_t)g->n_dropped * sizeof *im->dropped);
}

int import_finish(struct import *im, struct ap_graph *g, struct import_stats *stats)
{
    struct ap_node *grown = im->g.nodes;
    settle(im);
    *g = im->g;
    im->g.nodes = grown;
    struct ap_err err = {{0}};
    if (ap_graph_index(im->src->arena, g, "/graph", &err) ||
        ap_graph_check_shapes(g, "/graph", &err))
        return ap_err_set(im->src->err, "%s: %s", im->src->file, err.msg);
    ap_group(im->src->arena, g);
    ap_totals_of(g, &stats->totals);
    return 0;
}

void import_release(struct import *im)
{
    free(im->g.nodes);
    free(im->info);
    free(im->reducers);
    free(im->dropped);
    free(im->reducer_of);
    free(im->comps);
    free(im->comp_of);
    free(im->scope_list);
    ap_names_free(&im->reducer_texts);
    ap_names_free(&im->scopes);
    ap_names_free(&im->warned_calls);
    ap_buf_free(&im->scratch);
}

static int run(struct import *im, struct import_params *params, struct ap_graph *g,
               struct import_stats *stats)
{
    if (import_inline(im))
        return -1;
    stats->n_instrs = im->module->n_instrs;
    stats->n_inlined = im->g.n_nodes;
    import_unstack(im);
    import_clean(im);
    if (import_roles(im, params) || import_phases(im, params))
        return -1;
    import_loop_phases(im);
    return import_finish(im, g, stats);
}

int import_hlo(struct hlo_src *src, struct import_params *params, struct ap_graph *g,
               struct import_stats *stats)
{
    struct hlo_module module;
    if (hlo_parse(src, &module))
        return -1;
    struct import im = {.src = src, .module = &module};
    im.max_work = params->max_work ? params->max_work : DEFAULT_MAX_WORK;
    size_t n = 2 * (size_t)module.n_comps;
    im.reducer_of = ap_xrealloc(NULL, n * sizeof *im.reducer_of);
    memset(im.reducer_of, -1, n * sizeof *im.reducer_of);
    im.keep_loops = params->keep_loops;
    n = (size_t)module.n_comps + 1;
    im.comp_of = ap_xrealloc(NULL, n * sizeof *im.comp_of);
    memset(im.comp_of, -1, n * sizeof *im.comp_of);
    int rc = run(&im, params, g, stats);
    import_release(&im);
    return rc;
}
