/*
 * Families from name scopes.
 *
 * Problem: find the scopes of a model that repeat: layers, and inside them heads, norms,
 * projections. Idea: every node belongs to a scope (owner.c). Scopes may be alike if
 * their working operators are: the same forward contractions, reductions, look-ups and
 * weights by operator, shape and attributes; constants, casts and gradients, which differ
 * at the ends of a stack of layers, do not count. The largest such group of disjoint
 * scopes comes first. Its most common member by exact content represents it, the others
 * are matched with it node by node (correspond.c), and the nodes that all share are the
 * family; members that lack a contraction or much else are left for a family of their own
 * if there are enough without them. A scope that repeats is therefore never split because
 * its parts repeat as well; parts are looked for inside the representative, once for all
 * instances. The paper's walk from the deepest scopes up while they repeat, and EPL's
 * from the outermost down, arrive at the same outermost families, since a scope that
 * repeats as a whole repeats in its parts; the second ignores parts. Unlike the paper's,
 * members must be isomorphic with equal shapes. Three things names hide: layers of kinds
 * that take turns repeat as groups of one each (period.c); a scope that is the only one
 * of its skeleton may be joined with an adjacent scope of this kind if they share half of
 * their forward operators, and at least one of these computes. And inside an instance,
 * scopes that are not all alike, but have parts, are left to these: the parts may be.
 * Cost: O((nodes + edges) log nodes) for each level of nesting.
 *
 * After Shi et al., "TAP: Accelerating Large-Scale DNN Training Through Tensor Automatic
 * Parallelisation", algorithm 1, and EasyParallelLibrary's find_repeated_blocks.
 */
#include "prune.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "owner.h"
#include "period.h"

/* Shares of the representative's nodes that an instance must have: tests/prune.bats. */
#define NEAR_SHARE  0.9 /* at first, and all contractions */
#define LOOSE_SHARE 0.7 /* if there is no family otherwise */
#define HALF_SHARE  0.5 /* of scopes side by side that no other is like */

/* Limits, which no model of the tests reaches. */
#define MAX_ROUNDS 16 /* representatives tried in one group */
#define MAX_PARTS  8  /* of a scope, by which others are found that share one */

struct draft_list {
    int n, cap;
    struct prune_draft *draft;
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

/*
 * A group of scopes with one skeleton, as a run of candidates; or of scopes that share a
 * part (the largest ones count) and are side by side, each the only one of its skeleton.
 */
struct candidate {
    uint64_t key;            /* skeleton, or hash of the part and the scope around */
    int scope, n, rank;      /* n: nodes */
    int group_n, group_rank; /* of its largest, of its first */
    bool by_part;
};

static bool is_bone(const struct ap_node *node)
{
    enum ap_op_class class = ap_ops[node->op].class;

    return (node->phase == AP_FORWARD &&
            (class == AP_CLASS_HEAVY || class == AP_CLASS_REDUCE ||
             class == AP_CLASS_INDEX)) ||
           node->role == AP_ROLE_WEIGHT;
}

static bool is_forward_operator(const struct ap_node *node)
{
    return node->phase == AP_FORWARD && ap_ops[node->op].class != AP_CLASS_LEAF;
}

/* Sums of hashes do not mind the order, and add up over the tree. */
static void hash_scopes(struct ap_arena *arena, const struct ap_graph *g,
                        struct finder *f)
{
    const struct owners *o = &f->owners;
    uint64_t *other = AP_NEW_N(arena, o->n_scopes, uint64_t);

    f->skeleton = AP_NEW_N(arena, o->n_scopes, uint64_t);
    for (int v = 0; v < g->n_nodes; v++) {
        uint64_t h = ap_hash_mix(0, f->space->sig[v]);
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

static int compare_key(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;

    if (a->by_part != b->by_part)
        return a->by_part ? 1 : -1;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->rank - b->rank;
}

/* Largest groups first; then the first in preorder. */
static int compare_group(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;

    if (a->group_n != b->group_n)
        return a->group_n > b->group_n ? -1 : 1;
    if (a->by_part != b->by_part)
        return a->by_part ? 1 : -1;
    if (a->group_rank != b->group_rank)
        return a->group_rank - b->group_rank;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->rank - b->rank;
}

static bool same_group(const struct candidate *a, const struct candidate *b)
{
    return a->key == b->key && a->by_part == b->by_part;
}

struct part {
    uint64_t key;
    int n;
};

static int compare_part(const void *x, const void *y)
{
    const struct part *a = x, *b = y;

    if (a->n != b->n)
        return a->n > b->n ? -1 : 1;
    return a->key < b->key ? -1 : a->key > b->key;
}

/*
 * The largest parts of a scope: scopes directly in it and its own bones. Fewer than one
 * if what repeats in it is most of it: that is its unit, not the scope.
 */
static int find_parts(struct finder *f, int scope, struct part *out)
{
    const struct owners *o = &f->owners;
    const struct scope *s = &o->scopes[scope];
    struct ap_mark mark = ap_arena_mark(f->space->arena);
    struct part *part = AP_NEW_N(f->space->arena, s->n + s->last - s->rank, struct part);
    int n = 0, kept = 0, repeated = 0;

    for (int r = s->rank + 1; r <= s->last; r = o->scopes[o->by_rank[r]].last + 1)
        if (f->skeleton[o->by_rank[r]])
            part[n++] =
                (struct part){f->skeleton[o->by_rank[r]], o->scopes[o->by_rank[r]].n};
    for (int i = s->first; i < s->first + s->n && o->of[o->order[i]] == scope; i++)
        if (is_bone(&f->space->g->nodes[o->order[i]]))
            part[n++] = (struct part){f->space->sig[o->order[i]], 1};
    qsort(part, (size_t)n, sizeof(*part), compare_part);
    for (int i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && part[end].key == part[i].key; end++)
            ;
        int all = (end - i) * part[i].n;
        repeated = end - i > 1 && all > repeated ? all : repeated;
        if (kept < MAX_PARTS)
            out[kept++] = part[i];
    }
    ap_arena_rewind(f->space->arena, mark);
    return 2 * repeated > s->n ? 0 : kept;
}

/* Adds those that nothing is like, as candidates by part. */
static int add_by_part(struct finder *f, struct candidate *out, int n)
{
    const struct owners *o = &f->owners;
    int n_all = n;

    for (int i = 0; i < n; i++) {
        struct part part[MAX_PARTS];
        if ((i && out[i - 1].key == out[i].key) ||
            (i + 1 < n && out[i + 1].key == out[i].key))
            continue;
        int n_parts = find_parts(f, out[i].scope, part);
        for (int k = 0; k < n_parts; k++) {
            struct candidate *c = &out[n_all++];
            *c = out[i];
            c->key = ap_hash_mix(part[k].key, (uint64_t)o->scopes[c->scope].parent);
            c->by_part = true;
        }
    }
    qsort(out + n, (size_t)(n_all - n), sizeof(*out), compare_key);
    return n_all;
}

/* The scopes below `top` that may be instances, grouped. */
static int find_candidates(struct finder *f, int top, struct candidate *out)
{
    const struct owners *o = &f->owners;
    int n = 0;

    for (int r = o->scopes[top].rank + 1; r <= o->scopes[top].last; r++) {
        int scope = o->by_rank[r];
        if (o->scopes[scope].n >= f->params->min_nodes && f->skeleton[scope])
            out[n++] = (struct candidate){.key = f->skeleton[scope],
                                          .scope = scope,
                                          .n = o->scopes[scope].n,
                                          .rank = r};
    }
    qsort(out, (size_t)n, sizeof(*out), compare_key);
    n = add_by_part(f, out, n);
    for (int i = 0, end; i < n; i = end) {
        int size = 0, rank = out[i].rank;
        for (end = i; end < n && same_group(&out[end], &out[i]); end++)
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

/* A node's counterpart must have the same name below the instance to be matched first. */
static void set_keys(struct finder *f, const struct region *region)
{
    const struct owners *o = &f->owners;
    uint64_t hash = 0;

    for (int i = 0, last = -1; i < region->n; i++) {
        int v = region->nodes[i], scope = o->of[v];
        if (scope != last) {
            int member;
            const char *rest = owners_below(o, region->scope, scope, &member);
            hash = ap_hash(rest, strlen(rest), 1 + (uint64_t)member);
        }
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
            out->content += ap_hash_mix(0, f->space->sig[o->order[i]]);
        }
    qsort(out->nodes, (size_t)out->n, sizeof(int), ap_compare_int);
    set_keys(f, out);
}

/* Scopes of one skeleton, or that share a part. */
struct group {
    int n;
    bool by_part;
    struct region *regions;
    bool *done;    /* [region]: in a family, or given up */
    int **match;   /* [region]: counterparts of the representative's nodes */
    double *share; /* [region]: what it has of them */
    bool *lacks;   /* [region]: one of them, a contraction */
};

/* A region whose content most regions have, the first of them; -1 when all are done. */
static int representative(struct ap_arena *arena, const struct group *group)
{
    struct ap_mark mark = ap_arena_mark(arena);
    struct prune_ranked *content = AP_NEW_N(arena, group->n, struct prune_ranked);
    int n = 0, best = -1, best_count = 0;

    for (int i = 0; i < group->n; i++)
        if (!group->done[i])
            content[n++] = (struct prune_ranked){group->regions[i].content, i};
    prune_rank(content, n);
    for (int i = 0, end; i < n; i = end) {
        end = prune_run_end(content, n, i);
        if (end - i > best_count || (end - i == best_count && content[i].at < best)) {
            best_count = end - i;
            best = content[i].at;
        }
    }
    ap_arena_rewind(arena, mark);
    return best;
}

/*
 * Share of the forward operators that two regions have in common, 0 if nothing there
 * contracts, sums or looks up.
 */
static double share_forward(const struct ap_graph *g, const struct region *a,
                            const struct region *b, const int *match)
{
    int n_a = 0, n_b = 0, kept = 0;
    bool computes = false;

    for (int i = 0; i < a->n; i++) {
        bool counts = is_forward_operator(&g->nodes[a->nodes[i]]);
        n_a += counts;
        kept += counts && match[i] >= 0;
        computes |= counts && match[i] >= 0 && is_bone(&g->nodes[a->nodes[i]]);
    }
    for (int i = 0; i < b->n; i++)
        n_b += is_forward_operator(&g->nodes[b->nodes[i]]);
    return computes ? (double)kept / (n_a > n_b ? n_a : n_b) : 0;
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
        group->share[i] = group->by_part ? share_forward(g, a, b, group->match[i])
                                         : (double)kept / (a->n > b->n ? a->n : b->n);
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
 * contraction, all else must be there; those that share a part need only share half.
 */
static bool goes_along(const struct group *group, int i, bool near)
{
    bool much = group->share[i] >= NEAR_SHARE, enough = group->share[i] >= LOOSE_SHARE;

    if (group->done[i])
        return false;
    if (group->by_part)
        return group->share[i] >= HALF_SHARE;
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
                                  .parent = home,
                                  .scope = group->regions[first].scope};
    return kept >= f->params->min_nodes;
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

static bool has_parts(const struct finder *f, int scope)
{
    const struct scope *s = &f->owners.scopes[scope];

    for (int r = s->rank + 1; r <= s->last; r++)
        if (f->skeleton[f->owners.by_rank[r]] &&
            f->owners.scopes[f->owners.by_rank[r]].n >= f->params->min_nodes)
            return true;
    return false;
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
        int n_near = count_along(group, true);
        bool near = parent || n_near >= least;
        if (parent && n_near < n_left && has_parts(f, group->regions[first].scope))
            return; /* the parts repeat, or may */
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
        AP_ROOM(f->drafts.draft, f->drafts.n, f->drafts.cap);
        f->drafts.draft[f->drafts.n++] = draft;
        parent = home < 0 ? NULL : &f->drafts.draft[home];
    }
}

/* Adds a scope's region unless it is taken, overlaps the last one, or is too small. */
static void add_region(struct finder *f, struct group *group, int scope, int home)
{
    const struct owners *o = &f->owners;
    const struct region *last = group->n ? &group->regions[group->n - 1] : NULL;
    struct region *region = &group->regions[group->n];

    if (f->taken[scope] == home + 2 ||
        (last && o->scopes[scope].rank <= o->scopes[last->scope].last))
        return;
    load_region(f, scope, home, region);
    group->n += region->n >= f->params->min_nodes;
}

static void try_group(struct finder *f, const struct candidate *c, int n, int top,
                      int home)
{
    struct ap_arena *arena = f->space->arena;
    struct group group = {.by_part = c->by_part};

    group.regions = AP_NEW_N(arena, n, struct region);
    for (int i = 0; i < n; i++)
        add_region(f, &group, c[i].scope, home);
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
    struct candidate *c =
        AP_NEW_N(f->space->arena, (int64_t)n_below * (MAX_PARTS + 1), struct candidate);
    int n = find_candidates(f, top, c);

    for (int i = 0, end; i < n; i = end) {
        for (end = i; end < n && same_group(&c[end], &c[i]); end++)
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
    const int *group = period_groups(arena, &f.owners, f.skeleton);
    if (group) {
        owners_group(arena, g, &f.owners, group);
        hash_scopes(arena, g, &f);
    }
    f.home = AP_NEW_N(arena, g->n_nodes, int);
    f.taken = AP_NEW_N(arena, f.owners.n_scopes, int);
    for (int v = 0; v < g->n_nodes; v++)
        f.home[v] = -1;
    find_below(&f, 0, -1);
    for (int i = 0; params->order == PRUNE_DEEP && i < f.drafts.n; i++) {
        for (int j = 0; j < f.drafts.draft[i].n_nodes; j++)
            f.home[f.drafts.draft[i].nodes[j]] = i;
        find_below(&f, f.drafts.draft[i].scope, i);
    }
    prune_finish(arena, g, f.drafts.draft, f.drafts.n, families);
    free(f.drafts.draft);
    return 0;
}
