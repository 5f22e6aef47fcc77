/*
 * The ring of an attention.
 *
 * Queries in blocks need all keys and values. Gathered, these take as much memory as on
 * one device, and all devices wait for the gather; in a ring, each device has a block of
 * them, computes with it and sends it on, until it has seen all blocks (Liu et al., "Ring
 * Attention with Blockwise Transformers", 2023; Megatron-LM's context parallelism). The
 * gradients of keys and values are sums over queries, which travel likewise. It is
 * therefore not a conversion but a choice of the group, with the layouts of both splits
 * at once.
 *
 * A group has one if each of its contractions makes scores from keys, sums over keys, or
 * sums over queries for each key, and keys come from outside, where contractions alone
 * read them. Other operands with keys (masks, biases of the scores) have queries, too, or
 * are available whole. If a sequence is in stripes, a device's block has its part of each
 * stripe (Brandon et al., "Striped Attention"). Linear in the members.
 */
#include "layout/nest_impl.h"

bool ap_access_has(const struct ap_access *access, int f)
{
    for (int d = 0; d < access->rank; d++)
        for (int j = 0; j < access->dims[d].n; j++)
            if (access->dims[d].factor[j] == f)
                return true;
    return false;
}

/* ---- parts ---- */

static const struct ap_access *access_of(const struct ap_nest *nest,
                                         const struct ap_graph *g, int m, int k)
{
    const int slot = nest->in_slot[m][k], in = g->nodes[nest->members[m]].in[k];
    int i = 0;

    if (slot >= 0)
        return &nest->ins[slot].access;
    while (nest->members[i] != in)
        i++;
    return &nest->values[i];
}

static bool has(const struct ap_access *a, int f)
{
    return ap_access_has(a, f);
}

static enum ap_ring_part part_of(const struct ap_nest *nest, const struct ap_graph *g,
                                 int m, const struct ap_ring *ring)
{
    const struct ap_access *out = &nest->values[m];
    const struct ap_access *in[2];
    bool rows[2], keys[2];

    if (g->nodes[nest->members[m]].op != AP_OP_DOT)
        return AP_RING_NONE;
    for (int k = 0; k < 2; k++) {
        in[k] = access_of(nest, g, m, k);
        rows[k] = has(in[k], ring->rows);
        keys[k] = has(in[k], ring->keys);
    }
    if (has(out, ring->rows) && has(out, ring->keys) && keys[0] != keys[1])
        return AP_RING_SCORES;
    if (has(out, ring->rows) && !has(out, ring->keys) && keys[0] && keys[1])
        return AP_RING_VALUES;
    if (!has(out, ring->rows) && has(out, ring->keys) && rows[0] && rows[1] &&
        keys[0] != keys[1])
        return AP_RING_SUMS;
    return AP_RING_NONE;
}

enum ap_ring_part ap_ring_part_of(const struct ap_nest *nest, const struct ap_graph *g,
                                  int m)
{
    return nest->ring ? part_of(nest, g, m, nest->ring) : AP_RING_NONE;
}

bool ap_ring_splits_keys(const struct ap_nest *nest, const struct ap_graph *g, int m)
{
    return ap_ring_part_of(nest, g, m) == AP_RING_SUMS;
}

int ap_ring_key_dim(const struct ap_nest *nest, const struct ap_access *access)
{
    for (int d = 0; d < access->rank; d++)
        for (int j = 0; j < access->dims[d].n; j++)
            if (access->dims[d].factor[j] == nest->ring->keys)
                return d;
    return -1;
}

int64_t ap_ring_stripes(const struct ap_nest *nest, int m)
{
    const struct ap_access *a = &nest->values[m];

    for (int i = 0; i <= nest->n_ins; i++) {
        const int d = ap_ring_key_dim(nest, a);
        if (d >= 0)
            return a->dims[d].n > 1 ? nest->factors[a->dims[d].factor[0]].size : 1;
        a = i < nest->n_ins ? &nest->ins[i].access : NULL;
    }
    return 1;
}

/* ---- which attentions have one ---- */

/* The one factor of a dimension, or what it has below its stripes, -1: neither. */
static int only_factor(const struct ap_nest *nest, const struct ap_access *a, int64_t d)
{
    const struct ap_dim_factors *list = &a->dims[d];
    const int last = list->n ? list->factor[list->n - 1] : -1;

    return list->n == 1 ||
                   (list->n == 2 && nest->factors[last].stripes == AP_STRIPES_INSIDE)
               ? last
               : -1;
}

/* Queries' and keys' factors by the first contraction that says so. */
static bool find_factors(const struct ap_nest *nest, const struct ap_graph *g,
                         struct ap_ring *ring)
{
    for (int m = 0; m < nest->n_members; m++) {
        const struct ap_ints *s = &g->nodes[nest->members[m]].attrs->scores;
        if (s->n < 3)
            continue;
        const struct ap_access *scores =
            s->v[0] ? access_of(nest, g, m, (int)s->v[0] - 1) : &nest->values[m];
        ring->rows = only_factor(nest, scores, s->v[1]);
        ring->keys = only_factor(nest, scores, s->v[2]);
        return ring->rows >= 0 && ring->keys >= 0 && ring->rows != ring->keys &&
               nest->factors[ring->rows].kind != AP_FACTOR_WHOLE &&
               nest->factors[ring->rows].stripes == nest->factors[ring->keys].stripes;
    }
    return false;
}

/* Slots of keys without queries that contractions of a part alone read. */
static uint64_t find_ins(const struct ap_nest *nest, const struct ap_graph *g,
                         const struct ap_ring *ring)
{
    uint64_t keys = 0, others = 0;

    for (int m = 0; m < nest->n_members; m++) {
        const enum ap_ring_part part = part_of(nest, g, m, ring);
        for (int k = 0; k < g->nodes[nest->members[m]].n_in; k++) {
            const int slot = nest->in_slot[m][k];
            if (slot < 0 || slot >= 64)
                continue;
            const struct ap_access *a = &nest->ins[slot].access;
            bool goes = (part == AP_RING_SCORES || part == AP_RING_VALUES) &&
                        has(a, ring->keys) && !has(a, ring->rows);
            *(goes ? &keys : &others) |= UINT64_C(1) << slot;
        }
    }
    return keys & ~others;
}

/* Whether every contraction has a part, and no member reads sums that go round. */
static bool all_have_parts(const struct ap_nest *nest, const struct ap_graph *g,
                           const struct ap_ring *ring)
{
    for (int m = 0; m < nest->n_members; m++) {
        const struct ap_node *n = &g->nodes[nest->members[m]];
        const enum ap_ring_part part = part_of(nest, g, m, ring);
        if (n->op == AP_OP_DOT && part == AP_RING_NONE)
            return false;
        for (int k = 0; k < n->n_in; k++)
            if (nest->in_slot[m][k] < 0) {
                const struct ap_access *a = access_of(nest, g, m, k);
                if (has(a, ring->keys) && !has(a, ring->rows) &&
                    (a->partial >> ring->rows & 1))
                    return false;
            }
    }
    return true;
}

void ap_nest_find_ring(struct ap_arena *arena, const struct ap_graph *g,
                       struct ap_nest *nest)
{
    struct ap_ring ring;

    if (!nest->attention || nest->n_factors == AP_MAX_FACTORS ||
        !find_factors(nest, g, &ring) || !all_have_parts(nest, g, &ring))
        return;
    ring.ins = find_ins(nest, g, &ring);
    if (!ring.ins)
        return;
    nest->ring = ap_arena_dup(arena, &ring, sizeof ring);
    nest->n_linear = 1;
    nest->linear = AP_NEW(arena, struct ap_linear_set);
}

/* ---- what it sends ---- */

int ap_nest_ring_bytes(const struct ap_nest *nest, const struct ap_graph *g,
                       const struct ap_mesh *mesh, const struct ap_choice_vec *choice,
                       double *in, double *out)
{
    int n = 0;

    *in = *out = 0;
    if (ap_choice_ring_axis(nest, mesh, choice) < 0)
        return 0;
    for (int s = 0; s < nest->n_ins && s < 64; s++)
        if (nest->ring->ins >> s & 1) {
            const struct ap_layout l = ap_nest_in_layout(nest, g, mesh, choice, s);
            n++;
            *in += (double)ap_layout_local_bytes(mesh, &g->nodes[nest->ins[s].node].shape,
                                                 &l);
        }
    for (int m = 0; m < nest->n_members; m++)
        if (ap_ring_splits_keys(nest, g, m)) {
            const struct ap_layout l = ap_nest_value_layout(nest, g, mesh, choice, m);
            n++;
            *out += (double)ap_layout_local_bytes(mesh, &g->nodes[nest->members[m]].shape,
                                                  &l);
        }
    return n;
}
