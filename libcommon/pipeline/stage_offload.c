/*
 * What a plan of stages keeps on the host while nothing reads it: the section's list of
 * nodes, and the marks by which stages are priced and programs are made of it
 * (program/program_offload.c).
 */
#include "pipeline/stage_cost.h"
#include "pipeline/stages.h"

const bool *ap_stages_host(struct ap_arena *arena, const struct ap_stages *s,
                           const struct ap_graph *g)
{
    if (s->n_offloaded == 0)
        return NULL;
    bool *host = AP_NEW_N(arena, g->n_nodes, bool);
    for (int k = 0; k < s->n_offloaded; k++)
        host[s->offloaded[k]] = true;
    return host;
}

const bool *ap_stages_host_of(struct ap_arena *arena, const struct ap_stages *s,
                              const struct ap_graph *g, const struct ap_subgraph *sub)
{
    const bool *whole = ap_stages_host(arena, s, g);

    if (!whole)
        return NULL;
    bool *host = AP_NEW_N(arena, sub->graph.n_nodes, bool);
    for (int i = 0; i < sub->graph.n_nodes; i++)
        host[i] = whole[sub->source[i]];
    for (int k = 0; k < sub->n_cut_in; k++)
        host[sub->cut_in[k]] = false;
    return host;
}

bool ap_stage_is_optimizers(const struct ap_graph *g, int node)
{
    const struct ap_node *n = &g->nodes[node];

    return n->op == AP_OP_PARAMETER && n->shape.rank > 0 &&
           (n->role == AP_ROLE_STATE ||
            (n->role == AP_ROLE_WEIGHT && ap_stage_master_copy_bytes(g, node) > 0));
}

/* The first state of so many elements that the value of an update is made of; -1: none.
 */
static int find_state(const struct ap_graph *g, int node, int64_t elems, bool *seen)
{
    const struct ap_node *n = &g->nodes[node];

    if (seen[node] || ap_shape_elems(&n->shape) != elems)
        return -1;
    seen[node] = true;
    if (n->op == AP_OP_PARAMETER)
        return n->role == AP_ROLE_STATE ? node : -1;
    for (int i = 0; i < n->n_in && n->phase == AP_UPDATE; i++) {
        const int state = find_state(g, n->in[i], elems, seen);
        if (state >= 0)
            return state;
    }
    return -1;
}

const int64_t *ap_stage_updated_bytes(struct ap_arena *arena, const struct ap_graph *g)
{
    int64_t *bytes = AP_NEW_N(arena, g->n_nodes + 1, int64_t);
    bool *seen = AP_NEW_N(arena, g->n_nodes + 1, bool);

    for (int i = 0; i < g->n_results; i++) {
        const struct ap_result *r = &g->results[i];
        if (r->role != AP_ROLE_WEIGHT || r->alias < 0 ||
            ap_stage_master_copy_bytes(g, r->alias) > 0)
            continue;
        const struct ap_shape *shape = &g->nodes[r->alias].shape;
        const int state = find_state(g, r->node, ap_shape_elems(shape), seen);
        if (state >= 0)
            bytes[state] += ap_shape_bytes(shape);
    }
    return bytes;
}

bool ap_host_link_does(const struct ap_host_link *link, unsigned trainer)
{
    return link->out_bytes_per_sec > 0 &&
           (!(trainer & AP_TRAINER_HOST_UPDATE) || link->memory_bytes_per_sec > 0);
}

const char *ap_host_link_lacks(unsigned trainer)
{
    return trainer & AP_TRAINER_HOST_UPDATE
               ? " with memory_bytes_per_sec, which the host's update needs"
               : "";
}

void ap_stages_put_offload(const struct ap_stages *s, struct ap_buf *out)
{
    if (s->n_offloaded > 0)
        ap_put_ids(out, "offload", s->offloaded, s->n_offloaded);
}

int ap_stages_read_offload(struct ap_arena *arena, const json_t *o,
                           const struct ap_at *at, const struct ap_graph *g,
                           const struct ap_cluster *cluster, struct ap_stages *s,
                           struct ap_err *err)
{
    const struct ap_at list = {at, "offload", 0};

    if (!json_object_get(o, "offload"))
        return 0;
    s->n_offloaded =
        ap_get_ids(arena, o, at, "offload", (struct ap_id_range){-1, 0, g->n_nodes - 1},
                   &s->offloaded, err);
    if (s->n_offloaded < 0)
        return -1;
    for (int k = 0; k < s->n_offloaded; k++) {
        const struct ap_at here = {&list, NULL, k};
        const struct ap_node *n = &g->nodes[s->offloaded[k]];
        if (k > 0 && s->offloaded[k] <= s->offloaded[k - 1])
            return ap_at_err(&here, err, "expected nodes in ascending order");
        if (n->op == AP_OP_PARAMETER ? !ap_stage_is_optimizers(g, s->offloaded[k])
                                     : n->phase != AP_FORWARD)
            return ap_at_err(&here, err,
                             "node %d (%s) is no state of the optimizer, no weight that "
                             "passes read in fewer bytes, and no value of the forward "
                             "pass",
                             s->offloaded[k], n->name);
    }
    for (int k = 0; k < (cluster->n_kinds ? cluster->n_kinds : 1); k++) {
        const struct ap_cluster *of =
            cluster->n_kinds ? cluster->kind[k].devices : cluster;
        if (s->n_offloaded > 0 && !ap_host_link_does(&of->host_link, s->trainer))
            return ap_at_err(&list, err, "cluster %s has no host_link for %s%s",
                             cluster->name, of->device, ap_host_link_lacks(s->trainer));
    }
    return 0;
}
