/*
 * Problem: people, and the trainers that they use, talk of layers; the graph has
 * operators. Idea: frameworks number the layers in the names of their weights
 * ("h_3/attn/q/w", "layers.3.self_attn"), and scopes carry these names to the operators.
 * The layer's number in a name is the first one that occurs with several values. Cost:
 * linear in the bytes of the names.
 */
#include "plan/layers.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/names.h"
#include "graph/blocks.h"

#define MOST_NUMBER 1000000000 /* larger ones are no layers */

/* A component of a name that ends in a number: the stem is what comes before it. */
struct numbered {
    size_t stem_len, end;
    int number;
};

/* The next one at or after *pos, which moves past it. */
static bool next_numbered(const char *name, size_t *pos, struct numbered *at)
{
    static const char cuts[] = "/.[]'\"()";

    while (name[*pos]) {
        size_t len = strcspn(name + *pos, cuts), digits = 0, end = *pos + len;
        while (digits < len && isdigit((unsigned char)name[end - digits - 1]))
            digits++;
        *pos = name[end] ? end + 1 : end;
        if (digits == 0 || digits > 9)
            continue;
        *at = (struct numbered){end - digits, end, 0};
        for (size_t i = end - digits; i < end; i++)
            at->number = at->number * 10 + (name[i] - '0');
        return at->number < MOST_NUMBER;
    }
    return false;
}

/* Stems by name: the number that was met first, and whether there is another. */
struct stems {
    struct ap_names names;
    int *first, cap;
    bool *several;
    int several_cap;
};

static void note(struct stems *s, const char *name)
{
    struct numbered at;

    for (size_t pos = 0; next_numbered(name, &pos, &at);) {
        int i = ap_names_get(&s->names, name, at.stem_len);
        if (i < 0) {
            i = s->names.n;
            AP_ROOM(s->first, i, s->cap);
            AP_ROOM(s->several, i, s->several_cap);
            s->first[i] = at.number;
            s->several[i] = false;
            ap_names_put(&s->names, name, at.stem_len, i);
        }
        s->several[i] |= s->first[i] != at.number;
    }
}

/* The layer's component of a name, if it has one. */
static bool layer_of_name(const struct stems *s, const char *name, struct numbered *at)
{
    for (size_t pos = 0; next_numbered(name, &pos, at);) {
        int i = ap_names_get(&s->names, name, at->stem_len);
        if (i >= 0 && s->several[i])
            return true;
    }
    return false;
}

/* A node's scope, or its name where it has none. */
static const char *name_of(const struct ap_node *n)
{
    return *n->scope ? n->scope : n->name;
}

int *ap_weight_origins(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_nests *nests)
{
    int *origin = AP_NEW_N(arena, nests->n + 1, int);

    for (int i = 0; i < nests->n; i++) {
        const struct ap_nest *nest = &nests->nest[i];
        const struct ap_node *first = &g->nodes[nest->members[0]];
        origin[i] = first->op == AP_OP_PARAMETER && first->role == AP_ROLE_WEIGHT
                        ? nest->members[0]
                        : -1;
        if (nest->heavy || ap_ops[first->op].class == AP_CLASS_INDEX ||
            first->phase == AP_UPDATE)
            continue;
        for (int k = 0; k < nest->n_ins; k++) {
            const struct ap_node *in = &g->nodes[nest->ins[k].node];
            if (in->shape.rank == 0)
                continue;
            int from = origin[in->group];
            if (from < 0 || (origin[i] >= 0 && origin[i] != from)) {
                origin[i] = -1;
                break;
            }
            origin[i] = from;
        }
    }
    return origin;
}

/* The name that a group's layer is in, NULL: it is no forward contraction, or has none.
 */
static const char *name_of_contraction(const struct ap_graph *g,
                                       const struct ap_nest *nest, const int *origin)
{
    const struct ap_node *first = &g->nodes[nest->members[0]];

    if (!nest->heavy || first->phase != AP_FORWARD)
        return NULL;
    if (*first->scope)
        return first->scope;
    for (int k = 0; k < nest->n_ins; k++) {
        int from = origin[g->nodes[nest->ins[k].node].group];
        if (from >= 0)
            return name_of(&g->nodes[from]);
    }
    return NULL;
}

/* What is known of layers while they are listed. */
struct listing {
    struct ap_layer *layer; /* [layer] */
    int *group, *stem;      /* [layer]: its first contraction; number of its stem */
    int *last;              /* [layer]: its last contraction */
    struct ap_names names, stems;
};

/*
 * Whether stems take turns ("up/layers/0", "down/layers/0", "up/layers/1", ...): the
 * numbers never fall, and what starts a number depends on all stems before. In an encoder
 * and a decoder, of which parts may be listed in turn, it does not.
 */
static bool take_turns(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_nests *nests, const struct listing *l)
{
    uint64_t *seen = AP_NEW_N(arena, nests->n + 1, uint64_t);
    uint64_t all = ((uint64_t)1 << (l->stems.n & 63)) - 1;
    int next = 0;

    if (l->stems.n > 63)
        return false;
    for (int i = 0; i < nests->n && next < l->names.n; i++) {
        const struct ap_nest *nest = &nests->nest[i];
        for (int k = 0; k < nest->n_ins; k++)
            seen[i] |= seen[g->nodes[nest->ins[k].node].group];
        if (l->group[next] != i)
            continue;
        int step = next ? l->layer[next].number - l->layer[next - 1].number : 0;
        if (step < 0 || (step > 0 && seen[i] != all))
            return false;
        seen[i] |= (uint64_t)1 << l->stem[next++];
    }
    return true;
}

/* Stems that take turns are parts of the same layers, by number. */
static void merge_stems(struct listing *l, struct ap_layers *out)
{
    int n = 0;

    for (int i = 0; i < out->n; i++) {
        if (i == 0 || l->layer[i].number != l->layer[n - 1].number)
            l->layer[n++] = l->layer[i];
        l->names.name[i].value = n - 1;
    }
    out->n = n;
    out->n_stems = n > 0;
}

/*
 * Layers of several stems in the order of their last contractions: what a decoder's first
 * layer makes of its own input may be listed before the encoder that it reads later.
 */
static void order_by_last(struct ap_arena *arena, const struct ap_nests *nests,
                          struct listing *l)
{
    int *ends = AP_NEW_N(arena, nests->n + 1, int), n = 0; /* layer + 1, 0: of none */
    struct ap_layer *old =
        ap_arena_dup(arena, l->layer, sizeof *old * (size_t)l->names.n);

    for (int i = 0; i < l->names.n; i++)
        ends[l->last[i]] = i + 1;
    for (int i = 0; i < nests->n; i++)
        if (ends[i]) {
            l->layer[n] = old[ends[i] - 1];
            l->names.name[ends[i] - 1].value = n++;
        }
}

/* The layers that have contractions, into out; their numbers by name into names. */
static void list_layers(struct ap_arena *arena, const struct ap_graph *g,
                        const struct ap_nests *nests, const struct stems *stems,
                        struct ap_names *names, struct ap_layers *out)
{
    const int *origin = ap_weight_origins(arena, g, nests);
    struct listing l = {.layer = AP_NEW_N(arena, nests->n + 1, struct ap_layer),
                        .group = AP_NEW_N(arena, nests->n + 1, int),
                        .stem = AP_NEW_N(arena, nests->n + 1, int),
                        .last = AP_NEW_N(arena, nests->n + 1, int)};
    struct numbered at;

    for (int i = 0; i < nests->n; i++) {
        const char *name = name_of_contraction(g, &nests->nest[i], origin);
        int n = l.names.n;
        if (!name || !layer_of_name(stems, name, &at))
            continue;
        int known = ap_names_get(&l.names, name, at.end);
        l.last[known < 0 ? n : known] = i;
        if (known >= 0)
            continue;
        l.layer[n] =
            (struct ap_layer){ap_arena_strndup(arena, name, at.stem_len), at.number};
        l.group[n] = i;
        l.stem[n] = ap_names_get(&l.stems, name, at.stem_len);
        if (l.stem[n] < 0) {
            l.stem[n] = l.stems.n;
            ap_names_put(&l.stems, name, at.stem_len, l.stems.n);
        }
        ap_names_put(&l.names, name, at.end, n);
    }
    *out = (struct ap_layers){.n = l.names.n, .layer = l.layer, .n_stems = l.stems.n};
    if (l.stems.n > 1 && take_turns(arena, g, nests, &l))
        merge_stems(&l, out);
    else if (l.stems.n > 1)
        order_by_last(arena, nests, &l);
    ap_names_free(&l.stems);
    *names = l.names;
}

void ap_layers_find(struct ap_arena *arena, const struct ap_graph *g,
                    const struct ap_nests *nests, struct ap_layers *out)
{
    struct stems stems = {.cap = 0};
    struct ap_names names = {.n = 0};
    int *of_node = AP_NEW_N(arena, g->n_nodes + 1, int);
    struct numbered at;

    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *p = &g->nodes[g->params[i]];
        if (p->role == AP_ROLE_WEIGHT && p->shape.rank >= 2)
            note(&stems, name_of(p));
    }
    list_layers(arena, g, nests, &stems, &names, out);
    for (int i = 0; i < g->n_nodes; i++) {
        const char *name = name_of(&g->nodes[i]);
        of_node[i] =
            layer_of_name(&stems, name, &at) ? ap_names_get(&names, name, at.end) : -1;
    }
    out->of_node = of_node;
    ap_names_free(&stems.names);
    ap_names_free(&names);
    free(stems.first);
    free(stems.several);
}

/* ---- blocks ---- */

/* Place in the operators of the last one of a layer, -1. */
static int last_of(const struct ap_layers *layers, const int *ids, int n, int layer)
{
    while (n > 0 && layers->of_node[ids[n - 1]] != layer)
        n--;
    return n - 1;
}

/* The latest block that an operator reads of. */
static int latest_read(const struct ap_graph *g, int node, const int *block_of)
{
    int latest = 0;

    for (int k = 0; k < g->nodes[node].n_in; k++)
        if (block_of[g->nodes[node].in[k]] > latest)
            latest = block_of[g->nodes[node].in[k]];
    return latest;
}

int ap_layers_cut(struct ap_arena *arena, const struct ap_graph *g,
                  const struct ap_layers *layers, int *block_of, struct ap_err *err)
{
    int *ids, n = ap_blocks_operators(arena, g, &ids), used = 0;
    int *number = AP_NEW_N(arena, layers->n + 2, int);

    if (layers->n == 0)
        return ap_err_set(err, "the names of the weights number no layers");
    for (int v = 0; v < g->n_nodes; v++)
        block_of[v] = -1;
    const int last = last_of(layers, ids, n, layers->n - 1);
    for (int i = 0; i < n; i++) {
        const int layer = layers->of_node[ids[i]];
        const int before = latest_read(g, ids[i], block_of);
        const int block = layer >= 0 ? layer + 1 : i > last ? layers->n + 1 : before;
        if (block < before)
            return ap_err_set(err, "%s of layer %d reads of layer %d",
                              g->nodes[ids[i]].name, layer, before - 1);
        block_of[ids[i]] = block;
        number[block] = 1;
    }
    for (int b = 0; b < layers->n + 2; b++)
        number[b] = number[b] ? used++ : -1;
    for (int i = 0; i < n; i++)
        block_of[ids[i]] = number[block_of[ids[i]]];
    return used;
}
