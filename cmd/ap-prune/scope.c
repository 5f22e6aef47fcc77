/*
 * Families from name scopes.
 *
 * Problem: find the scopes of a model that repeat: layers, and inside them heads, norms,
 * projections.
 * Idea: every node belongs to a scope (owner.c). Scopes may be alike if what works in
 * them is: the same forward contractions, reductions, look-ups and weights by operator,
 * shape and attributes; constants, casts and gradients, which differ at the ends of a
 * stack of layers, do not count. The largest such group of disjoint scopes comes first.
 * Its most common member by exact content represents it, the others are matched with it
 * node by node (correspond.c), and the nodes that all share are the family; members that
 * lack a contraction or much else are left for a family of their own if there are enough
 * without them. So a scope that repeats is never split because its parts repeat as well;
 * parts are looked for inside the representative, once for all instances. The paper's
 * walk from the deepest scopes up while they repeat, and EPL's from the outermost down,
 * arrive at the same outermost families, for what repeats as a whole repeats in its
 * parts; the second looks at no parts. Unlike the paper's, members must be isomorphic
 * with equal shapes.
 * Cost: O((nodes + edges) log nodes) for each level of nesting.
 *
 * After Shi et al., "TAP: Accelerating Large-Scale DNN Training Through Tensor Automatic
 * Parallelisation", algorithm 1, and EasyParallelLibrary's find_repeated_blocks.
 */
#include "prune.h"

#include <stdlib.h>
#include <string.h>

#include "owner.h"

/* Shares of the representative's nodes that an instance must have. */
#define NEAR_SHARE  0.9 /* at first, and all contractions */
#define LOOSE_SHARE 0.7 /* if there is no family otherwise */

#define MAX_ROUNDS 16 /* representatives tried in one group */

struct draft_list {
    struct prune_draft *draft;
    int *scope; /* of the first instance */
    int n, cap;
};

struct finder {
    const struct prune_params *params;
    struct prune_space *space;
    struct owners owners;
    uint64_t *skeleton; /* [scope], of all nodes in and below it */
    struct draft_list drafts;
    int *home;  /* [node]: the draft in whose first instance it is, -1 */
    int *taken; /* [scope]: in or above an instance found in draft i: i + 2 */
};

/* A group of scopes with one skeleton, as a run of candidates. */
struct candidate {
    uint64_t skeleton;
    int scope, n, rank;      /* n: nodes */
    int group_n, group_rank; /* of its largest, of its first */
};

static uint64_t spread(uint64_t h)
{
    h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdu;
    h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53u;
    return h ^ (h >> 33);
}

static bool is_bone(const struct ap_node *node)
{
    enum ap_op_class class = ap_ops[node->op].class;

    return (node->phase == AP_FORWARD &&
            (class == AP_CLASS_HEAVY || class == AP_CLASS_REDUCE ||
             class == AP_CLASS_INDEX)) ||
           node->role == AP_ROLE_WEIGHT;
}

/* Sums of hashes do not mind the order, and add up over the tree. */
static void hash_scopes(struct ap_arena *arena, const struct ap_graph *g,
                        struct finder *f)
{
    const struct owners *o = &f->owners;
    uint64_t *other = AP_NEW_N(arena, o->n_scopes, uint64_t);

    f->skeleton = AP_NEW_N(arena, o->n_scopes, uint64_t);
    for (int v = 0; v < g->n_nodes; v++) {
        uint64_t h = spread(f->space->sig[v]);
        if (is_bone(&g->nodes[v]))
            f->skeleton[o->of[v]] += h;
        else if (g->nodes[v].phase == AP_FORWARD)
            other[o->of[v]] += h;
    }
    for (int i = o->n_scopes - 1; i > 0; i--) {
        f->skeleton[o->scopes[i].parent] += f->skeleton[i];
        other[o->scopes[i].parent] += other[i];
    }
    for (int i = 0; i < o->n_scopes; i++)
        if (!f->skeleton[i])
            f->skeleton[i] = other[i];
}

/* ---- candidates ---- */

static int compare_skeleton(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;

    if (a->skeleton != b->skeleton)
        return a->skeleton < b->skeleton ? -1 : 1;
    return a->rank - b->rank;
}

/* Largest groups first; then the first in preorder. */
static int compare_group(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;

    if (a->group_n != b->group_n)
        return a->group_n > b->group_n ? -1 : 1;
    if (a->group_rank != b->group_rank)
        return a->group_rank - b->group_rank;
    return a->rank - b->rank;
}

/* The scopes below `top` that may be instances, grouped. */
static int find_candidates(struct finder *f, int top, struct candidate *out)
{
    const struct owners *o = &f->owners;
    int n = 0;

    for (int r = o->scopes[top].rank + 1; r <= o->scopes[top].last; r++) {
        int scope = o->by_rank[r];
        if (o->scopes[scope].n >= f->params->min_nodes && f->skeleton[scope])
            out[n++] = (struct candidate){.skeleton = f->skeleton[scope],
                                          .scope = scope,
                                          .n = o->scopes[scope].n,
                                          .rank = r};
    }
    qsort(out, (size_t)n, sizeof(*out), compare_skeleton);
    for (int i = 0, end; i < n; i = end) {
        int size = 0, rank = out[i].rank;
        for (end = i; end < n && out[end].skeleton == out[i].skeleton; end++)
            size = out[end].n > size ? out[end].n : size;
        for (int k = i; k < end; k++) {
            out[k].group_n = size;
            out[k].group_rank = rank;
        }
    }
    qsort(out, (size_t)n, sizeof(*out), compare_group);
    return n;
}

/* ---- one family ---- */

/* A scope's nodes that are in the draft being looked into, ascending. */
struct region {
    int scope, n;
    int *nodes;
    uint64_t content;
};

static int compare_int(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;

    return x < y ? -1 : x > y;
}

/* A node's counterpart must have the same name below the instance to be matched first. */
static void set_keys(struct finder *f, const struct region *region)
{
    const struct owners *o = &f->owners;
    size_t len = strlen(o->scopes[region->scope].path);
    uint64_t hash = 0;

    for (int i = 0, last = -1; i < region->n; i++) {
        int v = region->nodes[i], scope = o->of[v];
        const char *rest = o->scopes[scope].path + len;
        if (scope != last)
            hash = ap_hash(rest, strlen(rest), 1);
        f->space->key[v] = f->space->sig[v] ^ hash;
        last = scope;
    }
}

static void load_region(struct finder *f, int scope, int home, struct region *out)
{
    const struct owners *o = &f->owners;
    const struct scope *s = &o->scopes[scope];

    *out = (struct region){.scope = scope};
    out->nodes = AP_NEW_N(f->space->arena, s->n, int);
    for (int i = s->first; i < s->first + s->n; i++)
        if (f->home[o->order[i]] == home) {
            out->nodes[out->n++] = o->order[i];
            out->content += spread(f->space->sig[o->order[i]]);
        }
    qsort(out->nodes, (size_t)out->n, sizeof(int), compare_int);
    set_keys(f, out);
}

/* Scopes of one skeleton. */
struct group {
    int n;
    struct region *regions;
    bool *done;    /* [region]: in a family, or given up */
    int **match;   /* [region]: counterparts of the representative's nodes */
    double *share; /* [region]: what it has of them */
    bool *lacks;   /* [region]: one of them, a contraction */
};

struct content {
    uint64_t hash;
    int at;
};

static int compare_content(const void *x, const void *y)
{
    const struct content *a = x, *b = y;

    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    return a->at - b->at;
}

/* A region whose content most regions have, the first of them; -1 when all are done. */
static int representative(struct ap_arena *arena, const struct group *group)
{
    struct ap_mark mark = ap_arena_mark(arena);
    struct content *content = AP_NEW_N(arena, group->n, struct content);
    int n = 0, best = -1, best_count = 0;

    for (int i = 0; i < group->n; i++)
        if (!group->done[i])
            content[n++] = (struct content){group->regions[i].content, i};
    qsort(content, (size_t)n, sizeof(*content), compare_content);
    for (int i = 0, end; i < n; i = end) {
        for (end = i; end < n && content[end].hash == content[i].hash; end++)
            ;
        if (end - i > best_count || (end - i == best_count && content[i].at < best)) {
            best_count = end - i;
            best = content[i].at;
        }
    }
    ap_arena_rewind(arena, mark);
    return best;
}

static void match_all(struct finder *f, struct group *group, int first)
{
    const struct region *a = &group->regions[first];
    const struct ap_graph *g = f->space->g;

    for (int i = 0; i < group->n; i++) {
        const struct region *b = &group->regions[i];
        if (group->done[i] || i == first)
            continue;
        group->match[i] = AP_NEW_N(f->space->arena, a->n, int);
        int kept = prune_align(f->space, a->nodes, a->n, b->nodes, b->n, group->match[i]);
        group->share[i] = (double)kept / (a->n > b->n ? a->n : b->n);
        group->lacks[i] = false;
        for (int j = 0; j < a->n; j++)
            if (group->match[i][j] < 0 &&
                ap_ops[g->nodes[a->nodes[j]].op].class == AP_CLASS_HEAVY)
                group->lacks[i] = true;
    }
    group->match[first] = a->nodes;
    group->share[first] = 1;
    group->lacks[first] = false;
}

/*
 * Region i goes with the representative; near: hardly anything is lost by that. Without a
 * contraction, all else must be there.
 */
static bool goes_along(const struct group *group, int i, bool near)
{
    bool much = group->share[i] >= NEAR_SHARE, enough = group->share[i] >= LOOSE_SHARE;

    if (group->done[i])
        return false;
    return near ? much && !group->lacks[i] : much || (enough && !group->lacks[i]);
}

static int count_along(const struct group *group, bool near)
{
    int n = 0;

    for (int i = 0; i < group->n; i++)
        n += goes_along(group, i, near);
    return n;
}

/* The family of the regions that are near enough; false if too little is left of it. */
static bool make_draft(struct finder *f, const struct group *group, int first, bool near,
                       int home, struct prune_draft *draft)
{
    struct ap_arena *arena = f->space->arena;
    int n = group->regions[first].n, n_rows = count_along(group, near), row = 1;
    int *nodes = AP_NEW_N(arena, (int64_t)n * n_rows, int);
    const char **labels = AP_NEW_N(arena, n_rows, const char *);

    for (int i = 0; i < group->n; i++) {
        if (!goes_along(group, i, near))
            continue;
        int to = i == first ? 0 : row++;
        memcpy(nodes + (int64_t)to * n, group->match[i], (size_t)n * sizeof(int));
        labels[to] = f->owners.scopes[group->regions[i].scope].path;
    }
    int kept = prune_reconcile(f->space, n_rows, n, nodes);
    *draft = (struct prune_draft){.n_instances = n_rows,
                                  .n_nodes = kept,
                                  .nodes = nodes,
                                  .labels = labels,
                                  .parent = home};
    return kept >= f->params->min_nodes;
}

static void add_draft(struct finder *f, const struct prune_draft *draft, int scope)
{
    struct draft_list *l = &f->drafts;

    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 16;
        l->draft = ap_xrealloc(l->draft, (size_t)l->cap * sizeof(*l->draft));
        l->scope = ap_xrealloc(l->scope, (size_t)l->cap * sizeof(*l->scope));
    }
    l->draft[l->n] = *draft;
    l->scope[l->n++] = scope;
}

/* Nothing else is looked for in an instance's scope, nor around it. */
static void take_scope(struct finder *f, int scope, int top, int stamp)
{
    const struct owners *o = &f->owners;

    for (int r = o->scopes[scope].rank; r <= o->scopes[scope].last; r++)
        f->taken[o->by_rank[r]] = stamp;
    for (int up = scope; up != top && o->scopes[up].parent >= 0;) {
        up = o->scopes[up].parent;
        if (f->taken[up] == stamp)
            break;
        f->taken[up] = stamp;
    }
}

/* Families of one group, until what is left is no family. */
static void split_group(struct finder *f, struct group *group, int top, int home)
{
    const struct prune_draft *parent = home < 0 ? NULL : &f->drafts.draft[home];
    int least = f->params->min_duplicate, n_left = group->n;

    if (parent)
        least = least > 2 * parent->n_instances
                    ? (int)ap_ceil_div(least, parent->n_instances)
                    : 2;
    for (int round = 0; round < MAX_ROUNDS && n_left >= least; round++) {
        int first = representative(f->space->arena, group);
        struct prune_draft draft;
        match_all(f, group, first);
        bool near = count_along(group, true) >= least;
        if (count_along(group, near) < least ||
            !make_draft(f, group, first, near, home, &draft)) {
            group->done[first] = true;
            n_left--;
            continue;
        }
        for (int i = 0; i < group->n; i++)
            if (goes_along(group, i, near)) {
                group->done[i] = true;
                n_left--;
                take_scope(f, group->regions[i].scope, top, home + 2);
            }
        if (parent)
            prune_repeat(f->space, &f->drafts.draft[home], home, &draft);
        add_draft(f, &draft, group->regions[first].scope);
        parent = home < 0 ? NULL : &f->drafts.draft[home];
    }
}

static void try_group(struct finder *f, const struct candidate *c, int n, int top,
                      int home)
{
    struct ap_arena *arena = f->space->arena;
    struct group group = {0};
    int end = -1; /* of the last region, in preorder: one inside another is left out */

    group.regions = AP_NEW_N(arena, n, struct region);
    for (int i = 0; i < n; i++) {
        const struct scope *s = &f->owners.scopes[c[i].scope];
        if (f->taken[c[i].scope] == home + 2 || s->rank <= end)
            continue;
        load_region(f, c[i].scope, home, &group.regions[group.n]);
        if (group.regions[group.n].n < f->params->min_nodes)
            continue;
        end = s->last;
        group.n++;
    }
    if (group.n < 2)
        return;
    group.done = AP_NEW_N(arena, group.n, bool);
    group.match = AP_NEW_N(arena, group.n, int *);
    group.share = AP_NEW_N(arena, group.n, double);
    group.lacks = AP_NEW_N(arena, group.n, bool);
    split_group(f, &group, top, home);
}

/* Families among the scopes below `top`, in the first instance of draft `home`. */
static void find_below(struct finder *f, int top, int home)
{
    int n_below = f->owners.scopes[top].last - f->owners.scopes[top].rank;
    struct candidate *c = AP_NEW_N(f->space->arena, n_below, struct candidate);
    int n = find_candidates(f, top, c);

    for (int i = 0, end; i < n; i = end) {
        for (end = i; end < n && c[end].skeleton == c[i].skeleton; end++)
            ;
        if (end - i > 1)
            try_group(f, c + i, end - i, top, home);
    }
}

int prune_scope(struct ap_arena *arena, const struct ap_graph *g,
                const struct prune_params *params, struct ap_families *families,
                struct ap_err *err)
{
    struct finder f = {.params = params, .space = prune_space_new(arena, g)};

    (void)err; /* every graph has its families, be it none */
    owners_find(arena, g, params->max_depth, &f.owners);
    hash_scopes(arena, g, &f);
    f.home = AP_NEW_N(arena, g->n_nodes, int);
    f.taken = AP_NEW_N(arena, f.owners.n_scopes, int);
    for (int v = 0; v < g->n_nodes; v++)
        f.home[v] = -1;
    find_below(&f, 0, -1);
    for (int i = 0; params->order == PRUNE_DEEP && i < f.drafts.n; i++) {
        for (int j = 0; j < f.drafts.draft[i].n_nodes; j++)
            f.home[f.drafts.draft[i].nodes[j]] = i;
        find_below(&f, f.drafts.scope[i], i);
    }
    prune_finish(arena, g, f.drafts.draft, f.drafts.n, families);
    free(f.drafts.draft);
    free(f.drafts.scope);
    return 0;
}
