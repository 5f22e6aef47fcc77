/*
 * Problem: which operators a stage runs again before each backward, and what it keeps on
 * the host, by the words of a line. Idea: walks along the graph from contractions of two
 * activations (scores and softmax of attention), or all of a block with layers, or of
 * several, but what others read. Cost: linear in the graph. Source: Korthikanti et al.,
 * "Reducing Activation Recomputation in Large Transformer Models", section 5.
 */
#include "grid/line_plan.h"

#include <string.h>

#include "pipeline/stage_cost.h"

bool line_is_contraction(const struct ap_graph *g, int v)
{
    return g->nodes[v].op == AP_OP_DOT || g->nodes[v].op == AP_OP_CONVOLUTION;
}

bool line_is_of_activations(const struct ap_graph *g, const uint8_t *from, int v)
{
    return line_is_contraction(g, v) && from[g->nodes[v].in[0]] == AP_FROM_INPUTS &&
           from[g->nodes[v].in[1]] == AP_FROM_INPUTS;
}

/* [node]: made of positions and scalars, one of which is an input: random numbers. */
static const bool *find_drawn(struct ap_arena *arena, const struct line_model *model)
{
    const struct ap_graph *g = model->of.graph;
    bool *drawn = AP_NEW_N(arena, g->n_nodes, bool);

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        drawn[v] = n->op != AP_OP_PARAMETER && n->shape.rank > 0 &&
                   model->origins[v] == AP_FROM_INPUTS;
        for (int i = 0; i < n->n_in; i++)
            drawn[v] &= drawn[n->in[i]] || g->nodes[n->in[i]].shape.rank == 0 ||
                        model->origins[n->in[i]] == AP_FROM_CONSTANTS;
    }
    return drawn;
}

/* Attention's scores, and what is made of them up to the values' contraction, with the
 * random numbers that are drawn there. */
static void mark_scores(struct ap_arena *arena, const struct line_model *model,
                        bool *again)
{
    const struct ap_graph *g = model->of.graph;
    const uint8_t *from = model->origins;
    bool *behind = AP_NEW_N(arena, g->n_nodes, bool); /* scores */
    bool *ahead = AP_NEW_N(arena, g->n_nodes, bool);  /* of such a contraction */
    const bool *drawn = find_drawn(arena, model);

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        behind[v] = n->phase == AP_FORWARD && line_is_of_activations(g, from, v);
        for (int i = 0;
             i < n->n_in && n->phase == AP_FORWARD && !line_is_contraction(g, v); i++)
            behind[v] |= behind[n->in[i]];
    }
    for (int v = g->n_nodes - 1; v >= 0; v--) {
        const struct ap_node *n = &g->nodes[v];
        bool use = n->phase == AP_FORWARD && (line_is_of_activations(g, from, v) ||
                                              (ahead[v] && !line_is_contraction(g, v)));
        for (int i = 0; i < n->n_in && use; i++)
            ahead[n->in[i]] = true;
        again[v] = ahead[v] && (behind[v] || drawn[v]);
    }
}

/* Leaves out what neither the backward pass reads nor what else runs again: PyTorch's
 * checkpoints stop there, and its compiler drops it. A block's last product is such. */
static void drop_unread(const struct ap_graph *g, bool *again)
{
    for (int v = g->n_nodes - 1; v >= 0; v--) {
        bool read = false;
        for (int u = g->user_start[v]; u < g->user_start[v + 1] && !read; u++)
            read = again[g->users[u]] || g->nodes[g->users[u]].phase != AP_FORWARD;
        again[v] &= read;
    }
}

/* All of the forward of sets of blocks but what others read; with `operators` less what
 * attention and every other contraction of the set make, the first one's among them.
 * set[block]: -1 where nothing runs again. */
static void mark_layers(const struct line_model *model, const int *set, bool operators,
                        bool *again)
{
    const struct ap_graph *g = model->of.graph;
    const int *block_of = model->of.blocks->block_of;
    const uint8_t *from = model->origins;
    bool odd = false;
    int last = -1; /* set of the contraction before */

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        bool keep = n->phase != AP_FORWARD || n->op == AP_OP_PARAMETER ||
                    from[v] != AP_FROM_INPUTS || set[block_of[v]] < 0;
        for (int u = g->user_start[v]; u < g->user_start[v + 1] && !keep; u++)
            keep = g->nodes[g->users[u]].phase == AP_FORWARD &&
                   set[block_of[g->users[u]]] != set[block_of[v]];
        if (operators && !keep && line_is_contraction(g, v)) {
            if (n->attrs->attention || line_is_of_activations(g, from, v))
                keep = true;
            else
                keep = odd = set[block_of[v]] != last || !odd;
            last = set[block_of[v]];
        } else if (operators && n->attrs->attention) {
            keep = true;
        }
        again[v] = !keep;
    }
}

void line_mark_recomputed(struct ap_arena *arena, struct line_model *model)
{
    int *set = AP_NEW_N(arena, model->of.blocks->n, int);
    bool *again[AP_N_LINE_RECOMPUTES];

    for (int b = 0; b < model->of.blocks->n; b++)
        set[b] = -1;
    for (int l = 0; l < model->layers.n; l++)
        for (int b = model->first[l]; b <= model->last[l]; b++)
            set[b] = b;
    for (int i = 0; i < AP_N_LINE_RECOMPUTES; i++)
        model->again[i] = again[i] = AP_NEW_N(arena, model->of.graph->n_nodes, bool);
    mark_scores(arena, model, again[AP_LINE_RECOMPUTE_SELECTIVE]);
    mark_layers(model, set, true, again[AP_LINE_RECOMPUTE_OPERATORS]);
    drop_unread(model->of.graph, again[AP_LINE_RECOMPUTE_OPERATORS]);
    mark_layers(model, set, false, again[AP_LINE_RECOMPUTE_FULL]);
    bool *read = AP_NEW_N(arena, model->of.graph->n_nodes, bool);
    memcpy(read, again[AP_LINE_RECOMPUTE_FULL],
           (size_t)model->of.graph->n_nodes * sizeof *read);
    drop_unread(model->of.graph, read);
    model->full_read = read;
    line_mark_modules(arena, model);
}

/* [block]: its layer, -1: none. NULL: some block has several. */
static const int *layers_of_blocks(struct ap_arena *arena, const struct line_model *model)
{
    int *layer = AP_NEW_N(arena, model->of.blocks->n, int);

    for (int b = 0; b < model->of.blocks->n; b++)
        layer[b] = -1;
    for (int l = 0; l < model->layers.n; l++)
        for (int b = model->first[l]; b <= model->last[l]; b++) {
            if (layer[b] >= 0)
                return NULL;
            layer[b] = l;
        }
    return layer;
}

/* [node]: runs again, where not all layers of a stage do by themselves. NULL: layers are
 * not blocks; err says so. */
static const bool *mark_stages(const struct line_maker *k, struct ap_err *err)
{
    const struct line_model *model = k->model;
    const int *layer = layers_of_blocks(k->arena, model);
    const int64_t group = k->line.recompute_group, most = k->line.recompute_first;
    int *set = AP_NEW_N(k->arena, model->of.blocks->n, int);
    bool *again = AP_NEW_N(k->arena, model->of.graph->n_nodes, bool);

    if (!layer) {
        ap_err_set(err, "recompute: a block has several layers (ap-coarsen --algorithm "
                        "layers)");
        return NULL;
    }
    for (int s = 0; s < k->stages->n; s++) {
        const struct ap_stage *st = &k->stages->stage[s];
        int first = -1; /* layer of the stage */
        for (int i = 0; i < st->n_blocks; i++) {
            const int b = st->blocks[i];
            first = first < 0 ? layer[b] : first;
            if (layer[b] < 0 || (most > 0 && layer[b] - first >= most))
                set[b] = -1;
            else
                set[b] = layer[b] - (group > 0 ? (layer[b] - first) % (int)group : 0);
        }
    }
    mark_layers(model, set, false, again);
    if (k->line.trainer & AP_TRAINER_STOPS_EARLY)
        drop_unread(model->of.graph, again);
    return again;
}

int line_list_recomputed(const struct line_maker *k, struct ap_err *err)
{
    const bool *again =
        k->line.recompute_first || k->line.recompute_group ? mark_stages(k, err)
        : k->line.recompute_modules
            ? line_join_modules(k->arena, k->model, k->line.recompute_modules)
        : k->line.recompute == AP_LINE_RECOMPUTE_FULL &&
                k->line.trainer & AP_TRAINER_STOPS_EARLY
            ? k->model->full_read
            : k->model->again[k->line.recompute];
    const int *block_of = k->model->of.blocks->block_of,
              n_nodes = k->model->of.graph->n_nodes;
    int *stage_of = AP_NEW_N(k->arena, k->model->of.blocks->n, int);
    int *count = AP_NEW_N(k->arena, k->stages->n, int);
    int **list = AP_NEW_N(k->arena, k->stages->n, int *);

    if (!again)
        return -1;
    for (int s = 0; s < k->stages->n; s++)
        for (int b = 0; b < k->stages->stage[s].n_blocks; b++)
            stage_of[k->stages->stage[s].blocks[b]] = s;
    for (int v = 0; v < n_nodes; v++)
        count[stage_of[block_of[v]]] += again[v];
    for (int s = 0; s < k->stages->n; s++) {
        struct ap_stage *st = &k->stages->stage[s];
        list[s] = AP_NEW_N(k->arena, count[s] + 1, int);
        st->recomputed = list[s];
        st->recompute = count[s] ? AP_RECOMPUTE_SELECTED : AP_RECOMPUTE_NONE;
    }
    for (int v = 0; v < n_nodes; v++)
        if (again[v]) {
            const int s = stage_of[block_of[v]];
            list[s][k->stages->stage[s].n_recomputed++] = v;
        }
    return 0;
}

const bool *line_mark_offloaded(struct ap_arena *arena, const struct line_model *model,
                                unsigned offload)
{
    const struct ap_graph *g = model->of.graph;
    bool *host = offload ? AP_NEW_N(arena, g->n_nodes, bool) : NULL;
    bool *layer = AP_NEW_N(arena, model->of.blocks->n + 1, bool);

    for (int l = 0; l < model->layers.n; l++)
        for (int b = model->first[l]; b <= model->last[l]; b++)
            layer[b] = true;
    for (int v = 0; v < g->n_nodes && offload; v++)
        host[v] =
            g->nodes[v].op == AP_OP_PARAMETER
                ? offload & AP_LINE_OFFLOAD_OPTIMIZER && ap_stage_is_optimizers(g, v)
                : offload & AP_LINE_OFFLOAD_ACTIVATIONS &&
                      g->nodes[v].phase == AP_FORWARD &&
                      model->origins[v] == AP_FROM_INPUTS &&
                      layer[model->of.blocks->block_of[v]];
    return host;
}

/* [block]: in layers behind the first ones of a stage, whose activations stay. NULL:
 * layers are not blocks; err says so. */
static const bool *find_behind(const struct line_maker *k, struct ap_err *err)
{
    bool *behind = AP_NEW_N(k->arena, k->model->of.blocks->n + 1, bool);

    if (!k->line.offload_first)
        return behind;
    const int *layer = layers_of_blocks(k->arena, k->model);
    if (!layer) {
        ap_err_set(err, "offload: a block has several layers (ap-coarsen --algorithm "
                        "layers)");
        return NULL;
    }
    for (int s = 0; s < k->stages->n; s++) {
        const struct ap_stage *st = &k->stages->stage[s];
        int first = -1;
        for (int i = 0; i < st->n_blocks; i++) {
            const int l = layer[st->blocks[i]];
            first = first < 0 ? l : first;
            behind[st->blocks[i]] = l >= 0 && l - first >= k->line.offload_first;
        }
    }
    return behind;
}

int line_list_offloaded(const struct line_maker *k, struct ap_err *err)
{
    const struct ap_cluster *c = k->model->of.cluster;
    const struct ap_graph *g = k->model->of.graph;
    const bool *host = line_mark_offloaded(k->arena, k->model, k->line.offload);
    const bool *behind = find_behind(k, err);
    int *list = AP_NEW_N(k->arena, g->n_nodes + 1, int), n = 0;
    unsigned found = 0;

    if (!behind)
        return -1;
    for (int v = 0; v < g->n_nodes && host; v++)
        if (host[v] && (g->nodes[v].op == AP_OP_PARAMETER ||
                        !behind[k->model->of.blocks->block_of[v]])) {
            list[n++] = v;
            found |= g->nodes[v].op == AP_OP_PARAMETER ? AP_LINE_OFFLOAD_OPTIMIZER
                                                       : AP_LINE_OFFLOAD_ACTIVATIONS;
        }
    k->stages->offloaded = list;
    k->stages->n_offloaded = n;
    const unsigned lacks = k->line.offload & ~found;
    if (lacks)
        return ap_err_set(err, "offload: the model has no %s",
                          lacks & AP_LINE_OFFLOAD_OPTIMIZER
                              ? "states of an optimizer, nor weights in two types"
                              : "numbered layers");
    for (int i = 0; i < (c->n_kinds ? c->n_kinds : 1) && host; i++) {
        const struct ap_cluster *of = c->n_kinds ? c->kind[i].devices : c;
        if (!ap_host_link_does(&of->host_link, k->stages->trainer))
            return ap_err_set(err, "offload: cluster %s has no host_link for %s%s",
                              c->name, of->device,
                              ap_host_link_lacks(k->stages->trainer));
    }
    return 0;
}
