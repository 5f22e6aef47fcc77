/*
 * A fingerprint lies in documents that outlive the tools that wrote them, so attributes
 * go into it as the document's text, whose form is fixed. Texts that were hashed a moment
 * ago are not written again. O(nodes + edges).
 */
#include "doc/fingerprint.h"

#include <string.h>

#include "doc/attr_json.h"

static void put_node(const struct ap_graph *g, const struct ap_node *node,
                     struct ap_buf *out);

/* What a reducer computes: ids and names say nothing. */
static void put_reducer(const struct ap_graph *g, int id, struct ap_buf *out)
{
    if (id < 0)
        return;
    const struct ap_reducer *r = &g->reducers[id];
    ap_buf_puts(out, ap_red_names[r->red]);
    for (int i = 0; r->red == AP_RED_NONE && i < r->n_nodes; i++) {
        put_node(g, &r->nodes[i], out);
        ap_put_ids(out, "in", r->nodes[i].in, r->nodes[i].n_in);
        ap_put_int(out, "param", r->nodes[i].param);
    }
    if (r->red == AP_RED_NONE)
        ap_put_ids(out, "results", r->results, r->n_results);
}

/* All that identical nodes have in common, as text. */
static void put_node(const struct ap_graph *g, const struct ap_node *node,
                     struct ap_buf *out)
{
    const int head[5] = {(int)node->op, (int)node->phase, (int)node->role, node->n_in,
                         (int)node->shape.dtype};

    ap_buf_put(out, head, sizeof(head));
    if (node->shape.dtype == AP_TUPLE)
        ap_shape_print(&node->shape, out);
    else
        ap_buf_put(out, node->shape.dims,
                   (size_t)node->shape.rank * sizeof(*node->shape.dims));
    const struct ap_attrs *attrs = node->attrs;
    if (attrs->to_apply < 0 && attrs->select < 0 && attrs->scatter < 0 &&
        !attrs->argument && !attrs->recomputed) {
        ap_attrs_to_json(node, out);
        return;
    }
    struct ap_attrs plain = *attrs;
    struct ap_node copy = *node;
    plain.to_apply = plain.select = plain.scatter = -1;
    plain.argument = NULL; /* the origin of a parameter is no part of the graph */
    plain.recomputed = false;
    copy.attrs = &plain;
    ap_attrs_to_json(&copy, out);
    put_reducer(g, attrs->to_apply, out);
    ap_buf_putc(out, ';');
    put_reducer(g, attrs->select, out);
    ap_buf_putc(out, ';');
    put_reducer(g, attrs->scatter, out);
}

/* Identical, for the attributes are the same in memory. */
static bool share_attrs(const struct ap_node *a, const struct ap_node *b)
{
    return a->op == b->op && a->phase == b->phase && a->role == b->role &&
           a->n_in == b->n_in && a->attrs == b->attrs &&
           ap_shape_equal(&a->shape, &b->shape);
}

#define LATEST 1024

/* Equal for nodes that share attributes. */
static uint64_t quick_hash(const struct ap_node *node)
{
    uint64_t h = (uint64_t)(uintptr_t)node->attrs >> 4;
    h = h * 31 + (uint64_t)node->op;
    h = h * 31 + (uint64_t)node->phase;
    h = h * 31 + (uint64_t)node->role;
    for (int d = 0; node->shape.dtype != AP_TUPLE && d < node->shape.rank; d++)
        h = h * 31 + (uint64_t)node->shape.dims[d];
    return h ^ h >> 20;
}

static void hash_nodes(const struct ap_graph *g, uint64_t *sig)
{
    struct ap_buf text = {0};
    int latest[LATEST]; /* nodes whose hash is known, by quick_hash */

    for (int i = 0; i < LATEST; i++)
        latest[i] = -1;
    for (int v = 0; v < g->n_nodes; v++) {
        int *like = &latest[quick_hash(&g->nodes[v]) % LATEST];
        if (*like >= 0 && share_attrs(&g->nodes[*like], &g->nodes[v])) {
            sig[v] = sig[*like];
            continue;
        }
        text.len = 0;
        put_node(g, &g->nodes[v], &text);
        sig[v] = ap_hash(text.data, text.len, 0);
        *like = v;
    }
    ap_buf_free(&text);
}

const char *ap_graph_fingerprint(struct ap_arena *arena, const struct ap_graph *g)
{
    struct ap_mark mark = ap_arena_mark(arena);
    uint64_t *sig = AP_NEW_N(arena, g->n_nodes, uint64_t), h = 0;

    hash_nodes(g, sig);
    for (int i = 0; i < g->n_nodes; i++) {
        h = ap_hash(&sig[i], sizeof sig[i], h);
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            int64_t in = g->nodes[i].in[k];
            h = ap_hash(&in, sizeof in, h);
        }
    }
    for (int r = 0; r < g->n_results; r++) {
        int64_t v[2] = {g->results[r].node, g->results[r].alias};
        h = ap_hash(v, sizeof v, h);
    }
    ap_arena_rewind(arena, mark);
    return ap_arena_printf(arena, "%016llx", (unsigned long long)h);
}
