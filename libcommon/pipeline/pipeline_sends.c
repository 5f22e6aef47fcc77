/*
 * Problem: which values do the stages of a pipeline send each other, how often, and for
 * how many seconds? Idea: a stage receives the values that its graph has cut in. A value
 * with a share for each microbatch goes once per microbatch, straight from its stage to
 * each stage that reads it, past the stages in between; a stage further on holds such a
 * value until its turn. What ap_subgraph copies (values of constants and weights), every
 * stage computes itself. A weight that several stages hold is updated by one of them: the
 * others send it their gradients and get the new value, once per step, as of a state that
 * several read.
 * Norms and other scalars of the update go once per step; all stages wait for the longest
 * chain of them. Cost: linear in the operands and the values cut.
 */
#include <string.h>

#include "pipeline/pipeline_price.h"

#include "base/array.h"

struct sender {
    struct ap_pricing *p;
    const uint8_t *origin; /* enum ap_origin */
    int *owner, *place;    /* [node]: stage that makes it and its id there; -1 */
    int *first, *next;     /* sends of a node, -1 at the end */
    int cap, cap_next;
    struct ap_link *link; /* [from * n + to] */
    bool *linked;
};

static void find_makers(struct sender *s)
{
    const struct ap_pricing *p = s->p;
    const struct ap_graph *g = p->g;

    for (int i = 0; i < g->n_nodes; i++)
        s->owner[i] = s->first[i] = -1;
    for (int st = 0; st < p->stages->n; st++) {
        const struct ap_subgraph *sub = &p->stages->stage[st].sub;
        for (int k = 0; k < sub->n_cut_out; k++) {
            s->owner[sub->source[sub->cut_out[k]]] = st;
            s->place[sub->source[sub->cut_out[k]]] = sub->cut_out[k];
        }
    }
}

static const struct ap_link *link_of(struct sender *s, int from, int to)
{
    const struct ap_pricing *p = s->p;
    int at = from * p->stages->n + to;

    if (!s->linked[at]) {
        const struct ap_stage *a = &p->stages->stage[from], *b = &p->stages->stage[to];
        struct ap_devices x = {a->n_devices, a->devices}, y = {b->n_devices, b->devices};
        s->link[at] = ap_link_between(p->cluster, &x, &y);
        s->linked[at] = true;
    }
    return &s->link[at];
}

/* made, read: its nodes in the stages' graphs. */
static void add_send(struct sender *s, int node, struct ap_send send)
{
    struct ap_pricing *p = s->p;
    const int from = send.from, to = send.to;
    const struct ap_layout lies =
        ap_plan_node_layout(&p->stages->stage[to].sharding.plan, send.read);
    const struct ap_layout *layout = &lies;
    const struct ap_link *link = link_of(s, from, to);
    const struct ap_cost *cost = &p->out->breakdown[to].cost;
    const struct ap_shape *shape = &p->g->nodes[node].shape;
    int64_t share = p->micro.split[node] ? p->micro.n : 1;
    int n = p->out->n_sends;

    AP_ROOM_IN(p->arena, p->out->sends, n, s->cap);
    AP_ROOM_IN(p->arena, s->next, n, s->cap_next);
    send.node = node;
    if (send.made >= 0 && ap_transfer_stays(&p->stages->stage[from], send.made,
                                            &p->stages->stage[to], send.read))
        send.transfer.how = AP_RESHARD_SEND_RECV;
    else
        send.transfer =
            ap_price_transfer(link, shape, share, cost, layout, p->stages->resharding);
    send.link = *link;
    p->out->sends[n] = send;
    s->next[n] = s->first[node];
    s->first[node] = n;
    p->out->n_sends++;
}

/* Whether a stage reads node `cut` of its graph as each microbatch's estimate. */
static bool is_estimate(const struct ap_pricing *p, int stage, int cut)
{
    const struct ap_subgraph *sub = &p->stages->stage[stage].sub;
    const struct ap_graph *g = &sub->graph;
    bool any = false;

    for (int u = g->user_start[cut]; u < g->user_start[cut + 1] && !any; u++)
        any = ap_microbatch_is_estimate(&p->whole, p->when, sub->source[cut],
                                        sub->source[g->users[u]]);
    return any;
}

/* How often a value is sent to a stage, of whose graph it is node `cut`. */
static enum ap_send_kind kind_of(const struct sender *s, int node, int to, int cut)
{
    const struct ap_pricing *p = s->p;
    const struct ap_node *n = &p->g->nodes[node];
    bool often = p->rows ? p->rows[node] : n->phase != AP_UPDATE;

    if (n->phase != AP_UPDATE && s->origin[node] != AP_FROM_INPUTS)
        return AP_SEND_WEIGHT;
    if (often ||
        (p->when ? is_estimate(p, to, cut) : p->micro.each && p->micro.each[node]))
        return AP_SEND_MICROBATCH;
    return n->shape.rank > 0 && n->phase != AP_FORWARD ? AP_SEND_GRADIENT : AP_SEND_ONCE;
}

static void list_sends(struct sender *s)
{
    struct ap_pricing *p = s->p;

    for (int to = 0; to < p->stages->n; to++) {
        const struct ap_stage *st = &p->stages->stage[to];
        for (int k = 0; k < st->sub.n_cut_in; k++) {
            int node = st->sub.source[st->sub.cut_in[k]], from = s->owner[node];
            if (from < 0)
                continue;
            add_send(s, node,
                     (struct ap_send){.from = from,
                                      .to = to,
                                      .made = s->place[node],
                                      .read = st->sub.cut_in[k],
                                      .kind = kind_of(s, node, to, st->sub.cut_in[k])});
        }
    }
}

/* Node of a stage's graph that is that of the whole; -1: none. */
static int place_in(const struct ap_pricing *p, int stage, int node)
{
    const struct ap_subgraph *sub = &p->stages->stage[stage].sub;
    for (int i = 0; i < sub->graph.n_nodes; i++)
        if (sub->source[i] == node)
            return i;
    return -1;
}

/* Parameters that stages read unchanged come from the stage that makes the new value. */
static void list_parameters(struct sender *s)
{
    struct ap_pricing *p = s->p;
    const struct ap_graph *g = p->g;
    int *updater = AP_NEW_N(p->arena, g->n_nodes, int);

    for (int r = 0; r < g->n_results; r++)
        if (g->results[r].alias >= 0 &&
            g->nodes[g->results[r].node].op != AP_OP_PARAMETER)
            updater[g->results[r].alias] = 1 + p->stage_of[g->results[r].node];
    for (int to = 0; to < p->stages->n; to++) {
        const struct ap_stage *st = &p->stages->stage[to];
        for (int i = 0; i < st->sub.graph.n_nodes; i++) {
            int node = st->sub.source[i];
            if (g->nodes[node].op != AP_OP_PARAMETER || updater[node] == 0 ||
                updater[node] == 1 + to)
                continue;
            add_send(s, node,
                     (struct ap_send){.from = updater[node] - 1,
                                      .to = to,
                                      .made = place_in(p, updater[node] - 1, node),
                                      .read = i,
                                      .kind = AP_SEND_WEIGHT});
        }
    }
}

/* ---- sums over the sends ---- */

static int64_t kept_bytes(const struct ap_stage *st, int place, int64_t share)
{
    struct ap_layout l = ap_stage_out_layout(&st->sharding.plan, place);
    return ap_ceil_div(ap_layout_local_bytes(&st->sharding.plan.mesh,
                                             &st->sub.graph.nodes[place].shape, &l),
                       share);
}

/* A value that skips stages waits for as many microbatches at its reader. */
static void add_waiting(struct sender *s, const struct ap_send *x)
{
    struct ap_pricing *p = s->p;
    int hops = x->to > x->from ? x->to - x->from : x->from - x->to;
    int64_t waiting = hops - 1 < p->micro.n - 1 ? hops - 1 : p->micro.n - 1;
    const struct ap_cost *cost = &p->out->breakdown[x->to].cost;
    int64_t n = ap_mesh_devices(&cost->mesh);
    int64_t tile = x->transfer.gather_bytes ? x->transfer.gather_bytes
                                            : ap_ceil_div(x->transfer.sent_bytes, n);

    if (waiting < 1)
        return;
    p->out->breakdown[x->to].waiting_bytes += waiting * tile;
    p->out->stage[x->to].fixed_bytes += waiting * tile;
}

static void add_microbatch(struct sender *s, const struct ap_send *x)
{
    struct ap_sim_stage *st = &s->p->out->stage[x->from];

    if (x->to > x->from) {
        st->send_forward_sec += x->transfer.sec;
        st->send_forward_bytes += x->transfer.sent_bytes;
        if (x->link.level > st->send_forward_level)
            st->send_forward_level = x->link.level;
    } else {
        st->send_backward_sec += x->transfer.sec;
        st->send_backward_bytes += x->transfer.sent_bytes;
        if (x->link.level > st->send_backward_level)
            st->send_backward_level = x->link.level;
    }
    add_waiting(s, x);
}

static void add_up(struct sender *s)
{
    struct ap_pricing *p = s->p;

    for (int i = 0; i < p->out->n_sends; i++) {
        const struct ap_send *x = &p->out->sends[i];
        switch (x->kind) {
        case AP_SEND_MICROBATCH:
            add_microbatch(s, x);
            break;
        case AP_SEND_GRADIENT: /* both wait: one sends, one adds */
            p->out->stage[x->from].sync_sec += x->transfer.sec;
            p->out->stage[x->to].sync_sec += x->transfer.sec;
            if (p->micro.n == 1) /* else a sum, which its stage counts */
                p->out->stage[x->from].fixed_bytes +=
                    kept_bytes(&p->stages->stage[x->from], s->place[x->node], 1);
            p->out->tied_bytes =
                ap_add64(p->out->tied_bytes, ap_shape_bytes(&p->g->nodes[x->node].shape));
            break;
        case AP_SEND_WEIGHT:
            p->out->stage[x->to].update_sec += x->transfer.sec;
            break;
        case AP_SEND_ONCE: /* by longest_chain */
        case AP_N_SENDS:
            break;
        }
    }
}

/* Seconds until operand `in` is at a stage, from when it is made; of what is spread
 * there, the scalar counts. */
static double once_sec(const struct sender *s, int in, int stage)
{
    const struct ap_graph *g = s->p->g;

    for (int x = s->first[in]; x >= 0; x = s->next[x]) {
        const struct ap_send *send = &s->p->out->sends[x];
        if (send->to == stage && send->kind == AP_SEND_ONCE)
            return send->transfer.sec;
    }
    bool spread = g->nodes[in].op == AP_OP_BROADCAST &&
                  g->nodes[g->nodes[in].in[0]].shape.rank == 0;
    return spread ? once_sec(s, g->nodes[in].in[0], stage) : 0;
}

/* Seconds of the longest chain of scalars that go from stage to stage. */
static double longest_chain(const struct sender *s)
{
    const struct ap_pricing *p = s->p;
    double *depth = AP_NEW_N(p->arena, p->g->n_nodes, double), longest = 0;

    for (int i = 0; i < p->g->n_nodes; i++) {
        const struct ap_node *n = &p->g->nodes[i];
        for (int k = 0; k < n->n_in; k++) {
            double d = depth[n->in[k]] + once_sec(s, n->in[k], p->stage_of[i]);
            depth[i] = d > depth[i] ? d : depth[i];
        }
        longest = depth[i] > longest ? depth[i] : longest;
    }
    return longest;
}

void ap_pipeline_sends(struct ap_pricing *p)
{
    int n = p->g->n_nodes, n_stages = p->stages->n;
    struct sender s = {.p = p,
                       .origin = ap_blocks_origins(p->arena, p->g),
                       .owner = AP_NEW_N(p->arena, n, int),
                       .place = AP_NEW_N(p->arena, n, int),
                       .first = AP_NEW_N(p->arena, n, int),
                       .link = AP_NEW_N(p->arena, n_stages * n_stages, struct ap_link),
                       .linked = AP_NEW_N(p->arena, n_stages * n_stages, bool)};

    find_makers(&s);
    list_sends(&s);
    list_parameters(&s);
    add_up(&s);
    p->out->sim.norm_sec = longest_chain(&s);
}
