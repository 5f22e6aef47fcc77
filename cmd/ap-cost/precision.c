/*
 * Problem: say which types a step trains in, and what a parameter takes of memory before
 * it is sharded. Idea: a weight's copy is a narrower type in which passes read it; a
 * gradient is what the update reads of the backward pass, or, over microbatches, its sum;
 * the type of most bytes is named. Cost: linear in the graph.
 */
#include <string.h>

#include "price.h"

#include "plan/model_flops.h"

/* Of the contractions' FLOPs, of the bytes of a kind: a type of less is not named. */
#define LEAST_SHARE 0.01

/* Bytes by type. */
struct held {
    double bytes[AP_N_DTYPES];
};

static void hold(struct held *h, enum ap_dtype dtype, const struct ap_shape *s)
{
    h->bytes[dtype] += (double)ap_dtype_size(dtype) * (double)ap_shape_elems(s);
}

/* All bytes, and the type of most of them. */
static double sum(const struct held *h, enum ap_dtype *most)
{
    double all = 0;

    *most = AP_F32;
    for (int t = 0; t < AP_N_DTYPES; t++) {
        all += h->bytes[t];
        *most = h->bytes[t] > h->bytes[*most] ? (enum ap_dtype)t : *most;
    }
    return all;
}

/* The narrower type in which passes read the weight, else its own. */
static enum ap_dtype read_as(const struct ap_graph *g, int weight)
{
    enum ap_dtype narrow = g->nodes[weight].shape.dtype;

    for (int u = g->user_start[weight]; u < g->user_start[weight + 1]; u++) {
        const struct ap_node *user = &g->nodes[g->users[u]];
        if (user->op == AP_OP_CONVERT && user->phase != AP_UPDATE &&
            ap_dtype_is_float(user->shape.dtype) &&
            ap_dtype_size(user->shape.dtype) < ap_dtype_size(narrow))
            narrow = user->shape.dtype;
    }
    return narrow;
}

static bool is_gradient(const struct ap_graph *g, int v)
{
    const struct ap_node *n = &g->nodes[v];
    bool updates = false;

    for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++)
        updates |= g->nodes[g->users[u]].phase == AP_UPDATE;
    return updates && n->phase == AP_BACKWARD && n->shape.rank > 0 &&
           ap_dtype_is_float(n->shape.dtype);
}

/* "bf16 products", of the types that contractions read. */
static void put_products(const struct cost_input *in, struct ap_buf *out)
{
    const struct ap_graph *g = &in->of.graph;
    struct held flops = {0};
    enum ap_dtype most;
    const char *last = "";

    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].n_in > 0)
            flops.bytes[g->nodes[g->nodes[i].in[0]].shape.dtype] +=
                ap_contraction_flops(g, i);
    const double all = sum(&flops, &most);
    for (int t = AP_N_DTYPES - 1; t >= 0; t--) {
        const char *name = t == AP_F8E4M3FN || t == AP_F8E5M2 ? "fp8"
                           : t == AP_F32 && in->of.cluster.tf32_flops_per_sec > 0
                               ? "tf32"
                               : ap_dtype_name((enum ap_dtype)t);
        if (flops.bytes[t] <= LEAST_SHARE * all || strcmp(name, last) == 0)
            continue;
        ap_buf_printf(out, "%s%s", *last ? " and " : "", name);
        last = name;
    }
    if (*last)
        ap_buf_puts(out, " products; ");
}

/* ", moments f32": the types of its bytes. */
static void put_kind(const char *what, const struct held *h, struct ap_buf *out)
{
    enum ap_dtype most;
    const double all = sum(h, &most);
    const char *before = what;

    for (int t = 0; all > 0 && t < AP_N_DTYPES; t++) {
        if (h->bytes[t] <= LEAST_SHARE * all)
            continue;
        ap_buf_printf(out, "%s%s %s", before == what ? ", " : " ", before,
                      ap_dtype_name((enum ap_dtype)t));
        before = "and";
    }
}

/* What weights, their copies, states and gradients take on one device that has all. */
struct held_by {
    struct held weights, copies, states, gradients;
    double elems; /* of the weights */
};

static void find_held(const struct ap_graph *g, bool wide_sums, struct held_by *by)
{
    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        const enum ap_dtype dtype = n->shape.dtype;
        if (is_gradient(g, v))
            hold(&by->gradients, wide_sums ? ap_dtype_of_sums(dtype) : dtype, &n->shape);
        if (n->op != AP_OP_PARAMETER || !ap_dtype_is_float(dtype))
            continue;
        if (n->role == AP_ROLE_STATE && n->shape.rank > 0)
            hold(&by->states, dtype, &n->shape);
        if (n->role != AP_ROLE_WEIGHT)
            continue;
        by->elems += (double)ap_shape_elems(&n->shape);
        hold(&by->weights, dtype, &n->shape);
        if (read_as(g, v) != dtype)
            hold(&by->copies, read_as(g, v), &n->shape);
    }
}

double precision_put(const struct cost_input *in, struct ap_buf *out)
{
    const struct ap_stages *s = &in->of.stages;
    const bool sums = (s->alone ? ap_mesh_microbatches(&s->stage[0].sharding.plan.mesh)
                                : s->microbatches) > 1;
    struct held_by by = {0};
    enum ap_dtype master, copy, any;

    find_held(&in->of.graph, sums && !(s->trainer & AP_TRAINER_LOW_SUMS), &by);
    if (by.elems == 0)
        return 0;
    const double weights = sum(&by.weights, &master), copies = sum(&by.copies, &copy);
    const double states = sum(&by.states, &any), gradients = sum(&by.gradients, &any);
    const double each = (weights + copies + states + gradients) / by.elems;
    put_products(in, out);
    ap_buf_printf(out, "weights %s", ap_dtype_name(copies > 0 ? copy : master));
    if (copies > 0)
        ap_buf_printf(out, " with %s master", ap_dtype_name(master));
    put_kind("moments", &by.states, out);
    put_kind(sums ? "gradient sums" : "gradients", &by.gradients, out);
    ap_buf_printf(out, ": %.4g bytes per parameter", each);
    return each;
}
