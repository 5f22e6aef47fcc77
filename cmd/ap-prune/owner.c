/*
 * Which name scope a node belongs to.
 *
 * Problem: a layer's forward and backward nodes carry its scope, but its weights, states
 * and update nodes, its constants and casts often do not: they have no scope, another
 * root ("opt_state/m/..."), or the scope of the first layer that needed them. Idea: names
 * count for forward and backward operators only; all else belongs where the data goes. A
 * parameter or a node made of constants belongs to the lowest common ancestor of its
 * users; an update node to the common ancestor of the weights whose new values need it,
 * or of its operands if that is lower (a gradient's norm before all norms are summed);
 * any other node without a scope follows the same rule. A few sweeps over the nodes; an
 * edge costs the depth of the scopes.
 */
#include "owner.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/csr.h"
#include "base/index_map.h"

#define UNKNOWN (-1)

struct finder {
    struct ap_arena *arena;
    const struct ap_graph *g;
    struct owners *o;
    int cap;
    struct ap_index by_path; /* scopes */
    const bool *constant;    /* [node]: owners_constant's */
    int *below;              /* [node]: where its users are, UNKNOWN */
};

/* ---- the tree ---- */

static int new_scope(struct finder *f, int parent, const char *path)
{
    struct owners *o = f->o;

    AP_ROOM(o->scopes, o->n_scopes, f->cap);
    o->scopes[o->n_scopes] =
        (struct scope){.parent = parent,
                       .depth = parent < 0 ? 0 : o->scopes[parent].depth + 1,
                       .path = path};
    return o->n_scopes++;
}

/* The scope of a path of len bytes below another one, made if it is new. */
static int scope_below(struct finder *f, int parent, const char *path, size_t len)
{
    uint64_t hash = ap_hash(path, len, 0);
    struct ap_index_walk walk;

    for (int i = ap_index_first(&f->by_path, hash, &walk); i >= 0;
         i = ap_index_next(&f->by_path, &walk)) {
        const char *known = f->o->scopes[i].path;
        if (!strncmp(known, path, len) && !known[len])
            return i;
    }
    int scope = new_scope(f, parent, ap_arena_strndup(f->arena, path, len));
    ap_index_put(&f->by_path, hash, scope);
    return scope;
}

/* The scope of a path, cut at max_depth; made with its ancestors if it is new. */
static int scope_of(struct finder *f, const char *path, int max_depth)
{
    int scope = 0;

    for (const char *end = path; *end && max_depth--;) {
        end += strcspn(end, "/");
        scope = scope_below(f, scope, path, (size_t)(end - path));
        end += *end == '/';
    }
    return scope;
}

static int common(const struct owners *o, int a, int b)
{
    if (a == UNKNOWN || b == UNKNOWN)
        return a == UNKNOWN ? b : a;
    while (a != b)
        if (a > b)
            a = o->scopes[a].parent;
        else
            b = o->scopes[b].parent;
    return a;
}

/* ---- who owns what ---- */

bool *owners_constant(struct ap_arena *arena, const struct ap_graph *g)
{
    bool *constant = AP_NEW_N(arena, g->n_nodes, bool);

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *node = &g->nodes[v];
        constant[v] = node->op != AP_OP_PARAMETER;
        for (int k = 0; k < node->n_in; k++)
            constant[v] &= constant[node->in[k]];
    }
    return constant;
}

static bool has_name(const struct finder *f, int v)
{
    const struct ap_node *node = &f->g->nodes[v];

    return node->scope[0] && node->phase != AP_UPDATE && node->op != AP_OP_PARAMETER &&
           !f->constant[v];
}

static void read_names(struct finder *f, int max_depth)
{
    const char *last = "";
    int last_scope = 0;

    for (int v = 0; v < f->g->n_nodes; v++) {
        const struct ap_node *node = &f->g->nodes[v];
        f->o->of[v] = f->below[v] = UNKNOWN;
        if (!has_name(f, v))
            continue;
        if (node->scope != last)
            last_scope = scope_of(f, node->scope, max_depth);
        last = node->scope;
        f->o->of[v] = last_scope;
    }
}

/*
 * From users to operands, last node first. Of a parameter of another phase update nodes
 * say nothing: the new value of a weight needs the weight. Nor do nodes without a name in
 * the first sweep, as long as others do: a penalty on the weights reads all of them.
 */
static void sweep_up(struct finder *f, bool first)
{
    const struct ap_graph *g = f->g;
    int *of = f->o->of;

    for (int v = g->n_nodes - 1; v >= 0; v--) {
        bool update = g->nodes[v].phase == AP_UPDATE, named = of[v] != UNKNOWN;
        int place = named ? of[v] : f->below[v];
        if (f->constant[v] || (g->nodes[v].op == AP_OP_PARAMETER && !named))
            of[v] = f->below[v];
        for (int k = 0; k < g->nodes[v].n_in; k++) {
            int u = g->nodes[v].in[k];
            if (g->nodes[u].op != AP_OP_PARAMETER ||
                (update ? g->nodes[u].phase == AP_UPDATE : named || !first))
                f->below[u] = common(f->o, f->below[u], place);
        }
    }
}

/* The new value of a weight belongs to the weight. */
static void start_updates(struct finder *f)
{
    for (int i = 0; i < f->g->n_results; i++) {
        const struct ap_result *r = &f->g->results[i];
        if (r->alias >= 0 && f->g->nodes[r->alias].role == AP_ROLE_WEIGHT &&
            f->g->nodes[r->node].phase == AP_UPDATE)
            f->below[r->node] = common(f->o, f->below[r->node], f->o->of[r->alias]);
    }
}

/* From operands to users: what has no name settles where its data is from, or goes. */
static void sweep_down(struct finder *f)
{
    const struct ap_graph *g = f->g;
    struct owners *o = f->o;

    for (int v = 0; v < g->n_nodes; v++) {
        int above = UNKNOWN, below = f->below[v];
        if (o->of[v] != UNKNOWN || f->constant[v] || g->nodes[v].op == AP_OP_PARAMETER)
            continue;
        for (int k = 0; k < g->nodes[v].n_in; k++)
            if (!f->constant[g->nodes[v].in[k]])
                above = common(o, above, o->of[g->nodes[v].in[k]]);
        bool lower =
            above != UNKNOWN &&
            (below == UNKNOWN || o->scopes[above].depth > o->scopes[below].depth ||
             (o->scopes[above].depth == o->scopes[below].depth &&
              g->nodes[v].phase != AP_UPDATE));
        o->of[v] = lower ? above : below;
    }
}

/* ---- order ---- */

/* Preorder without recursion: a scope's rank is its parent's plus what came before it. */
static void rank_scopes(struct ap_arena *arena, struct owners *o)
{
    int *size = AP_NEW_N(arena, o->n_scopes, int);
    int *taken = AP_NEW_N(arena, o->n_scopes, int);

    for (int i = o->n_scopes - 1; i >= 0; i--) {
        size[i]++;
        if (i)
            size[o->scopes[i].parent] += size[i];
    }
    o->by_rank = AP_NEW_N(arena, o->n_scopes, int);
    for (int i = 0; i < o->n_scopes; i++) {
        struct scope *s = &o->scopes[i];
        if (i) {
            s->rank = o->scopes[s->parent].rank + 1 + taken[s->parent];
            taken[s->parent] += size[i];
        }
        s->last = s->rank + size[i] - 1;
        o->by_rank[s->rank] = i;
    }
}

static void sort_nodes(struct ap_arena *arena, const struct ap_graph *g, struct owners *o)
{
    int *rank = AP_NEW_N(arena, g->n_nodes, int);

    for (int v = 0; v < g->n_nodes; v++)
        rank[v] = o->scopes[o->of[v]].rank;
    struct ap_csr nodes = ap_csr_new(arena, o->n_scopes, g->n_nodes, rank, NULL);
    o->order = nodes.item;
    for (int i = 0; i < o->n_scopes; i++) {
        o->scopes[i].first = nodes.start[o->scopes[i].rank];
        o->scopes[i].n = nodes.start[o->scopes[i].last + 1] - o->scopes[i].first;
    }
}

void owners_find(struct ap_arena *arena, const struct ap_graph *g, int max_depth,
                 struct owners *out)
{
    struct finder f = {.arena = arena, .g = g, .o = out};

    *out = (struct owners){.of = AP_NEW_N(arena, g->n_nodes, int)};
    f.constant = owners_constant(arena, g);
    f.below = AP_NEW_N(arena, g->n_nodes, int);
    new_scope(&f, -1, "");
    read_names(&f, max_depth);
    sweep_up(&f, true);
    sweep_up(&f, false);
    start_updates(&f);
    sweep_up(&f, false);
    sweep_down(&f);
    for (int v = 0; v < g->n_nodes; v++)
        f.below[v] = UNKNOWN;
    sweep_up(&f, false);
    for (int v = 0; v < g->n_nodes; v++)
        if (out->of[v] == UNKNOWN)
            out->of[v] = 0;
    struct scope *scopes = out->scopes;
    out->scopes = ap_arena_dup(arena, scopes, (size_t)out->n_scopes * sizeof(*scopes));
    free(scopes);
    ap_index_free(&f.by_path);
    rank_scopes(arena, out);
    sort_nodes(arena, g, out);
}

/* ---- groups ---- */

/* The path of a group with one more member. */
static const char *joined(struct ap_arena *arena, const char *path, const char *other)
{
    const char *slash = strrchr(other, '/');

    return ap_arena_printf(arena, "%s+%s", path, slash ? slash + 1 : other);
}

void owners_group(struct ap_arena *arena, const struct ap_graph *g, struct owners *o,
                  const int *group)
{
    int *now = AP_NEW_N(arena, o->n_scopes, int); /* the number of a scope from now on */
    int *made = AP_NEW_N(arena, o->n_scopes + 1, int); /* [group]: its number, 0 */
    int *members = AP_NEW_N(arena, o->n_scopes + 1, int);
    struct scope *scopes = AP_NEW_N(arena, 2 * (int64_t)o->n_scopes, struct scope);
    int n = 0;

    for (int i = 0; i < o->n_scopes; i++) {
        struct scope s = o->scopes[i];
        s.parent = s.parent < 0 ? -1 : now[s.parent];
        if (group[i]) {
            int *id = &made[group[i]];
            if (!*id) {
                *id = n;
                scopes[n++] = (struct scope){.parent = s.parent, .depth = s.depth};
            }
            scopes[*id].path =
                scopes[*id].path ? joined(arena, scopes[*id].path, s.path) : s.path;
            s.parent = *id;
            s.member = ++members[group[i]];
        }
        now[i] = n;
        scopes[n++] = s;
    }
    for (int v = 0; v < g->n_nodes; v++)
        o->of[v] = now[o->of[v]];
    o->scopes = scopes;
    o->n_scopes = n;
    rank_scopes(arena, o);
    sort_nodes(arena, g, o);
}

const char *owners_below(const struct owners *o, int top, int scope, int *member)
{
    int above = scope;

    while (above != top && o->scopes[above].parent != top)
        above = o->scopes[above].parent;
    *member = o->scopes[above].member;
    if (above == top || !*member)
        above = top;
    return o->scopes[scope].path + strlen(o->scopes[above].path);
}
