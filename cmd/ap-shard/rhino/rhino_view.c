/*
 * Problem: Rhino plans instructions, a plan of ours fusion groups. Idea: a graph with one
 * node per group, on which libcommon finds the cones; a group is in the segment of its
 * first value. Cost: linear in nodes and edges.
 */
#include "base/csr.h"
#include "rhino/rhino.h"

#include <string.h>

/* Distinct groups that group i reads, into ids. */
static int read_groups(const struct shard_task *task, int i, int *seen, int *ids)
{
    const struct ap_nest *nest = &task->nests->nest[i];
    int n = 0;
    for (int k = 0; k < nest->n_ins; k++) {
        int home = task->graph->nodes[nest->ins[k].node].group;
        if (seen[home] == i)
            continue;
        seen[home] = i;
        ids[n++] = home;
    }
    return n;
}

static enum ap_op proxy_op(const struct shard_task *task, int i)
{
    const struct ap_nest *nest = &task->nests->nest[i];
    enum ap_op op = nest->heavy ? AP_OP_DOT : AP_OP_CONSTANT;
    for (int m = 0; m < nest->n_members; m++)
        if (task->graph->nodes[nest->members[m]].op == AP_OP_PARAMETER)
            op = AP_OP_PARAMETER;
    return op;
}

static struct ap_graph shell_of(struct ap_arena *arena, const struct shard_task *task)
{
    const struct ap_graph *g = task->graph;
    int n = task->nests->n, n_ids = 0;
    int *seen = AP_NEW_N(arena, n, int);
    struct ap_graph shell = {.n_nodes = n,
                             .nodes = AP_NEW_N(arena, n, struct ap_node),
                             .n_results = g->n_results,
                             .results = AP_NEW_N(arena, g->n_results, struct ap_result)};

    for (int i = 0; i < n; i++) {
        n_ids += task->nests->nest[i].n_ins;
        seen[i] = -1;
    }
    int *ids = AP_NEW_N(arena, n_ids, int);
    for (int i = 0; i < n; i++) {
        struct ap_node *node = &shell.nodes[i];
        node->op = proxy_op(task, i);
        node->n_in = read_groups(task, i, seen, ids);
        node->in = ids;
        ids += node->n_in;
    }
    for (int r = 0; r < g->n_results; r++) {
        int alias = g->results[r].alias;
        shell.results[r].node = g->nodes[g->results[r].node].group;
        shell.results[r].alias = alias < 0 ? -1 : g->nodes[alias].group;
    }
    return shell;
}

/* ---- who uses a tensor, and what becomes of it ---- */

static void list_uses(struct ap_arena *arena, const struct shard_task *task,
                      struct rhino_view *view)
{
    const struct ap_nests *nests = task->nests;
    int n = 0, n_uses = 0;

    for (int i = 0; i < nests->n; i++)
        n_uses += nests->nest[i].n_ins;
    int *node = AP_NEW_N(arena, n_uses + 1, int),
        *group = AP_NEW_N(arena, n_uses + 1, int);
    int *slot = AP_NEW_N(arena, n_uses + 1, int);
    for (int i = 0; i < nests->n; i++)
        for (int k = 0; k < nests->nest[i].n_ins; k++) {
            node[n] = nests->nest[i].ins[k].node;
            group[n] = i;
            slot[n++] = k;
        }
    const struct ap_csr groups = ap_csr_new(arena, task->graph->n_nodes, n, node, group);
    view->use_start = groups.start;
    view->use_group = groups.item;
    view->use_slot = ap_csr_new(arena, task->graph->n_nodes, n, node, slot).item;
}

static void list_partners(struct ap_arena *arena, const struct ap_graph *g,
                          struct rhino_view *view)
{
    int n = 0, *node = AP_NEW_N(arena, 2 * g->n_results + 1, int);
    int *partner = AP_NEW_N(arena, 2 * g->n_results + 1, int);

    for (int r = 0; r < g->n_results; r++)
        if (g->results[r].alias >= 0) {
            node[n] = partner[n + 1] = g->results[r].alias;
            node[n + 1] = partner[n] = g->results[r].node;
            n += 2;
        }
    const struct ap_csr partners = ap_csr_new(arena, g->n_nodes, n, node, partner);
    view->partner_start = partners.start;
    view->partner = partners.item;
}

static void list_members(struct ap_arena *arena, const struct shard_task *task,
                         struct rhino_view *view)
{
    int *member = AP_NEW_N(arena, task->graph->n_nodes, int);
    int *out_slot = AP_NEW_N(arena, task->graph->n_nodes, int);

    for (int v = 0; v < task->graph->n_nodes; v++)
        out_slot[v] = -1;
    for (int i = 0; i < task->nests->n; i++) {
        const struct ap_nest *nest = &task->nests->nest[i];
        for (int m = 0; m < nest->n_members; m++)
            member[nest->members[m]] = m;
        for (int o = 0; o < nest->n_outs; o++)
            out_slot[nest->outs[o]] = o;
    }
    view->member = member;
    view->out_slot = out_slot;
}

/* ---- scopes ---- */

static void segments(struct ap_arena *arena, const struct shard_task *task,
                     struct rhino_view *view, int *scope_of, const int **critical)
{
    const struct ap_graph *g = task->graph;
    struct ap_segments s;

    view->n_critical = ap_critical_nodes(
        arena, g, (enum ap_critical_rule)task->params->critical, critical);
    ap_segments_of(arena, g, view->n_critical, *critical, 0, &s);
    int *block_of = ap_arena_dup(arena, s.segment_of, (size_t)g->n_nodes * sizeof(int));
    ap_blocks_carry(arena, g, s.n, block_of);
    for (int i = 0; i < task->nests->n; i++) {
        const struct ap_nest *nest = &task->nests->nest[i];
        scope_of[i] = block_of[nest->n_outs > 0 ? nest->outs[0] : nest->members[0]];
    }
    int *tail = AP_NEW_N(arena, s.n, int);
    for (int i = 0; i < s.n; i++)
        tail[i] = s.tail[i] < 0 ? -1 : g->nodes[s.tail[i]].group;
    view->n_scopes = s.n;
    view->tail = tail;
}

static void list_scopes(struct ap_arena *arena, struct rhino_view *view)
{
    int *scope = AP_NEW_N(arena, view->n_groups, int);
    int *position = AP_NEW_N(arena, view->n_groups, int);

    for (int i = 0; i < view->n_groups; i++)
        scope[i] = view->constant[i] ? -1 : view->scope_of[i];
    const struct ap_csr scopes =
        ap_csr_new(arena, view->n_scopes, view->n_groups, scope, NULL);
    for (int s = 0; s < view->n_scopes; s++)
        for (int k = scopes.start[s]; k < scopes.start[s + 1]; k++)
            position[scopes.item[k]] = k - scopes.start[s];
    view->scope_start = scopes.start;
    view->scoped = scopes.item;
    view->position = position;
}

/* Critical nodes and pinned ones: groups that are roots whatever reads them. */
static int fixed_roots(const struct shard_task *task, int n_critical, const int *critical,
                       int *fixed)
{
    int n = 0;
    for (int i = 0; i < n_critical; i++)
        fixed[n++] = task->graph->nodes[critical[i]].group;
    for (int v = 0; task->pins && task->pins->n > 0 && v < task->graph->n_nodes; v++)
        if (task->pins->pinned[v])
            fixed[n++] = task->graph->nodes[v].group;
    return n;
}

int rhino_view_build(struct ap_arena *arena, const struct shard_task *task, int level,
                     struct rhino_view *view, struct ap_err *err)
{
    static const int no_tail[1] = {-1};
    int n = task->nests->n;
    int *scope_of = AP_NEW_N(arena, n, int);
    int *fixed = AP_NEW_N(arena, 2 * task->graph->n_nodes, int);
    const int *critical = NULL;
    struct ap_graph shell = shell_of(arena, task);
    bool has_scopes = ap_cone_level_has_scopes(level);
    struct ap_cones cones;

    *view = (struct rhino_view){
        .level = level, .n_groups = n, .n_scopes = 1, .tail = no_tail};
    if (has_scopes && ap_blocks_check_phases(task->graph, err))
        return -1;
    if (has_scopes)
        segments(arena, task, view, scope_of, &critical);
    int n_fixed = fixed_roots(task, view->n_critical, critical, fixed);
    ap_cones_of(arena, &shell, has_scopes ? scope_of : NULL, level, n_fixed, fixed,
                &cones);
    uint8_t *constant = AP_NEW_N(arena, n, uint8_t), *root = AP_NEW_N(arena, n, uint8_t);
    for (int i = 0; i < n; i++)
        constant[i] = cones.cone_of[i] < 0;
    for (int c = 0; c < cones.n; c++)
        root[cones.root[c]] = 1;
    view->constant = constant;
    view->root = root;
    view->scope_of = scope_of;
    list_scopes(arena, view);
    list_members(arena, task, view);
    list_uses(arena, task, view);
    list_partners(arena, task->graph, view);
    return 0;
}
