#include "import.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "layout/nest.h"

#define DEFAULT_MAX_WORK 2000000 /* instructions after inlining */

/* ---- nodes ---- */

struct ap_node import_node(enum ap_op op, const char *name)
{
    return (struct ap_node){.op = op,
                            .name = name,
                            .attrs = &ap_attrs_default,
                            .scope = "",
                            .param = -1,
                            .group = -1};
}

struct ap_attrs *import_new_attrs(struct ap_arena *arena)
{
    return ap_arena_dup(arena, &ap_attrs_default, sizeof ap_attrs_default);
}

const struct ap_attrs *import_recomputed(struct ap_arena *arena,
                                         const struct ap_attrs *attrs)
{
    if (attrs->recomputed)
        return attrs;
    struct ap_attrs *a = ap_arena_dup(arena, attrs, sizeof *attrs);
    a->recomputed = true;
    return a;
}

struct ap_attrs *import_scalar_attrs(struct ap_arena *arena, enum ap_dtype dtype,
                                     const void *data)
{
    struct ap_attrs *a = import_new_attrs(arena);

    a->literal = *hlo_literal_make(arena, data, 1, (size_t)ap_dtype_size(dtype));
    return a;
}

void import_rewire(struct ap_arena *arena, struct ap_node *node, const int *to)
{
    int *in = AP_NEW_N(arena, node->n_in, int);

    for (int k = 0; k < node->n_in; k++)
        in[k] = to[node->in[k]];
    node->in = in;
}

void import_mark_needed(const struct ap_node *nodes, int n, bool *mark)
{
    for (int i = n - 1; i >= 0; i--)
        for (int k = 0; mark[i] && k < nodes[i].n_in; k++)
            mark[nodes[i].in[k]] = true;
}

struct import_nodes import_set_aside(struct import *im)
{
    struct import_nodes old = {im->g, im->info, im->cap};

    im->g.nodes = NULL;
    im->info = NULL;
    im->g.n_nodes = im->cap = 0;
    return old;
}

void import_free_nodes(struct import_nodes *old)
{
    free(old->g.nodes);
    free(old->info);
}

int import_add(struct import *im, const struct ap_node *node,
               const struct node_info *info)
{
    struct ap_graph *g = &im->g;
    int cap = im->cap;

    AP_ROOM(im->info, g->n_nodes, cap);
    AP_ROOM(g->nodes, g->n_nodes, im->cap);
    g->nodes[g->n_nodes] = *node;
    im->info[g->n_nodes] = *info;
    return g->n_nodes++;
}

void import_drop(struct import *im, const char *name)
{
    AP_ROOM(im->dropped, im->g.n_dropped, im->cap_dropped);
    im->dropped[im->g.n_dropped++] = name;
    im->g.dropped = im->dropped;
}

bool *import_live(struct import *im)
{
    const struct ap_graph *g = &im->g;
    bool *live = AP_NEW_N(im->src->arena, g->n_nodes + 1, bool);

    for (int i = 0; i < g->n_params; i++)
        live[i] = true;
    for (int i = 0; i < g->n_results; i++)
        live[g->results[i].node] = true;
    import_mark_needed(g->nodes, g->n_nodes, live);
    return live;
}

/* ---- the whole ---- */

static void *in_arena(struct ap_arena *arena, const void *p, int n, size_t size)
{
    return ap_arena_dup(arena, n ? p : "", (size_t)n * size);
}

/* Moves what grew by malloc into the arena. */
static void settle(struct import *im)
{
    struct ap_graph *g = &im->g;
    struct ap_arena *arena = im->src->arena;

    g->nodes = in_arena(arena, g->nodes, g->n_nodes, sizeof *g->nodes);
    g->reducers = in_arena(arena, im->reducers, g->n_reducers, sizeof *im->reducers);
    g->comps = in_arena(arena, im->comps, g->n_comps, sizeof *im->comps);
    g->dropped = in_arena(arena, im->dropped, g->n_dropped, sizeof *im->dropped);
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
    if (import_step(im, &stats->step) || import_inline(im))
        return -1;
    stats->n_instrs = im->module->n_instrs;
    stats->n_inlined = im->g.n_nodes;
    if (stats->step)
        import_number(im);
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
