/*
 * Problem: find the fusion groups that may make one choice because their layers are
 * identical.
 * Idea: the families say which nodes correspond. Groups whose members correspond one by
 * one and whose nests are equal are twins. The description of an instance lists its
 * groups' twins and, for every tensor that enters or leaves the instance, the producer
 * and the users of the tensor, other instances being named by their distance. Instances
 * with equal descriptions are tied. The first and the last layer have other surroundings
 * and stay free. Cost: linear, by hashes of 64 bits (a false match would be noticed: the
 * plan's price would differ from the objective).
 */
#include "problem/fold.h"

#include "problem/classes.h"
#include "graph/identity.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MIN_INSTANCES 3 /* of two, one is first and one last: none would be tied */
#define FAR           2 /* instances apart, more than a skip connection's */
#define OUTSIDE       (1ULL << 63) /* marks a place that is a hash */

struct folder {
    struct ap_arena *arena;
    const struct ap_graph *g;
    const struct ap_nests *nests;
    const struct ap_families *families;
    const struct ap_pins *pins;       /* may be NULL */
    const int16_t *microbatch_choice; /* [group], may be NULL */
    struct shard_fold *fold;
    /* [node]: position in its instance, or a hash that stands for one, with OUTSIDE */
    uint64_t *place;
    int *family; /* [node], of the families that are folded, -1 */
    int *instance;
    int *anchor; /* [group]: the member that says where it belongs, -1 */
};

/* ---- which families ---- */

/* Outer families, and the children of those that have too few instances to fold. */
static bool *pick(const struct folder *f)
{
    const struct ap_families *all = f->families;
    bool *picked = AP_NEW_N(f->arena, all->n + 1, bool);
    bool *above = AP_NEW_N(f->arena, all->n + 1, bool); /* it, or one around it */

    for (int i = 0; i < all->n; i++) {
        int up = all->family[i].parent;
        above[i] = up >= 0 && above[up];
        if (above[i] || all->family[i].n_instances < MIN_INSTANCES)
            continue;
        picked[i] = above[i] = true;
    }
    return picked;
}

struct by_id {
    int node, instance;
};

static int compare_ids(const void *x, const void *y)
{
    const struct by_id *a = x, *b = y;
    return (a->node > b->node) - (a->node < b->node);
}

/*
 * rank[k]: the position of instance k in the forward pass, by its first contraction (or
 * first node that is no parameter or constant); names and parameters may be in any order.
 */
static void rank_instances(const struct folder *f, const struct ap_family *fam, int *rank)
{
    const struct ap_node *nodes = f->g->nodes;
    struct by_id *list = AP_NEW_N(f->arena, fam->n_instances, struct by_id);
    int best = 0, best_score = -1;

    for (int j = 0; j < fam->n_nodes; j++) {
        const struct ap_node *n = &nodes[fam->nodes[j]];
        int score = ap_ops[n->op].class == AP_CLASS_HEAVY  ? 2
                    : ap_ops[n->op].class == AP_CLASS_LEAF ? 0
                                                           : 1;
        if (n->phase == AP_FORWARD && score > best_score) {
            best = j;
            best_score = score;
        }
    }
    for (int k = 0; k < fam->n_instances; k++)
        list[k] = (struct by_id){fam->nodes[k * fam->n_nodes + best], k};
    qsort(list, (size_t)fam->n_instances, sizeof *list, compare_ids);
    for (int k = 0; k < fam->n_instances; k++)
        rank[list[k].instance] = k;
}

static void place_nodes(struct folder *f)
{
    const struct ap_families *all = f->families;
    bool *picked = pick(f);

    for (int i = 0; i < all->n; i++) {
        const struct ap_family *fam = &all->family[i];
        if (!picked[i])
            continue;
        int *rank = AP_NEW_N(f->arena, fam->n_instances, int);
        rank_instances(f, fam, rank);
        for (int k = 0; k < fam->n_instances; k++)
            for (int j = 0; j < fam->n_nodes; j++) {
                int node = fam->nodes[k * fam->n_nodes + j];
                f->family[node] = i;
                f->instance[node] = rank[k];
                f->place[node] = (uint64_t)j;
            }
    }
}

/* ---- nodes between instances ---- */

/*
 * Adopts node v, which no family has: its place is a hash of its operands' places. Only
 * if its operands and users are in one family and in neighbouring instances.
 */
static void adopt(struct folder *f, int v)
{
    const struct ap_graph *g = f->g;
    const struct ap_node *n = &g->nodes[v];
    int family = -1, low = 0, high = 0;

    for (int k = 0; k < n->n_in + g->user_start[v + 1] - g->user_start[v]; k++) {
        int u = k < n->n_in ? n->in[k] : g->users[g->user_start[v] + k - n->n_in];
        if (f->family[u] < 0) {
            continue;
        } else if (family < 0) {
            family = f->family[u];
            low = high = f->instance[u];
        } else if (f->family[u] != family) {
            return;
        }
        low = f->instance[u] < low ? f->instance[u] : low;
        high = f->instance[u] > high ? f->instance[u] : high;
    }
    if (family < 0 || high - low > 1)
        return;
    int last = -1; /* operand: a running sum is the last term's, forward or backward */
    for (int k = 0; k < n->n_in; k++)
        if (f->family[n->in[k]] == family && n->in[k] > last)
            last = n->in[k];
    if (last < 0)
        return;
    uint64_t place = ap_hash(&n->op, sizeof n->op, 0);
    bool sum = false;
    for (int k = 0; k < n->n_in; k++) {
        int u = n->in[k];
        uint64_t end[2] = {(uint64_t)k, 0};
        if (f->family[u] == family) {
            sum |= f->instance[u] != f->instance[last];
            end[1] = 1 + (uint64_t)(f->instance[u] - low);
            if (!(f->place[u] & OUTSIDE)) /* of a running sum only the last term */
                place = ap_hash(&f->place[u], sizeof f->place[u], place);
        }
        place = ap_hash(end, sizeof end, place);
    }
    f->family[v] = family;
    f->instance[v] = sum ? f->instance[last] : low;
    f->place[v] = place | OUTSIDE;
}

/* Whether instances far from each other need what group i makes. */
static bool is_needed_afar(const struct folder *f, int i)
{
    const struct ap_nest *nest = &f->nests->nest[i];
    const struct ap_graph *g = f->g;
    int low = f->instance[f->anchor[i]], high = low;

    for (int o = 0; o < nest->n_outs; o++)
        for (int k = g->user_start[nest->outs[o]]; k < g->user_start[nest->outs[o] + 1];
             k++) {
            int u = g->users[k];
            if (f->family[u] != f->family[f->anchor[i]])
                continue;
            low = f->instance[u] < low ? f->instance[u] : low;
            high = f->instance[u] > high ? f->instance[u] : high;
        }
    return high - low > FAR;
}

/*
 * A group belongs to the instance of its first member that is in one; others may be in a
 * neighbour (a gradient that is added up across the border) or in none. One that goes
 * through many instances (a norm of everything), or that makes what many need (the
 * gradient of the loss, with its first product), belongs to none.
 */
static void place_groups(struct folder *f)
{
    for (int i = 0; i < f->nests->n; i++) {
        const struct ap_nest *nest = &f->nests->nest[i];
        int low = INT_MAX, high = INT_MIN;
        f->fold->family[i] = f->fold->instance[i] = f->anchor[i] = -1;
        for (int m = 0; m < nest->n_members; m++) {
            int v = nest->members[m];
            if (f->family[v] < 0)
                continue;
            if (f->anchor[i] < 0)
                f->anchor[i] = v;
            low = f->instance[v] < low ? f->instance[v] : low;
            high = f->instance[v] > high ? f->instance[v] : high;
        }
        if (low > high || high - low > 1 || is_needed_afar(f, i))
            continue;
        f->fold->family[i] = f->family[f->anchor[i]];
        f->fold->instance[i] = f->instance[f->anchor[i]];
    }
}

/* ---- twins ---- */

static bool same_access(const struct ap_access *a, const struct ap_access *b)
{
    if (a->rank != b->rank || a->partial != b->partial)
        return false;
    for (int d = 0; d < a->rank; d++)
        if (a->dims[d].n != b->dims[d].n ||
            memcmp(a->dims[d].factor, b->dims[d].factor,
                   (size_t)a->dims[d].n * sizeof(int)) != 0)
            return false;
    return true;
}

static bool same_factors(const struct ap_nest *a, const struct ap_nest *b)
{
    if (a->n_factors != b->n_factors || a->n_linear != b->n_linear ||
        a->maskable != b->maskable || a->heavy != b->heavy)
        return false;
    for (int i = 0; i < a->n_factors; i++)
        if (a->factors[i].size != b->factors[i].size ||
            a->factors[i].kind != b->factors[i].kind ||
            a->factors[i].red != b->factors[i].red)
            return false;
    if (!a->ring != !b->ring ||
        (a->ring && (a->ring->rows != b->ring->rows || a->ring->keys != b->ring->keys ||
                     a->ring->ins != b->ring->ins)))
        return false;
    for (int i = 0; i < a->n_linear; i++)
        if (a->linear[i].ins != b->linear[i].ins)
            return false;
    return true;
}

static bool same_pin(const struct folder *f, int a, int b)
{
    const struct ap_pins *pins = f->pins;
    return !pins ||
           (pins->pinned[a] == pins->pinned[b] &&
            (!pins->pinned[a] || ap_layout_equal(&pins->layout[a], &pins->layout[b])));
}

/* Whether node x corresponds to y when group a corresponds to b. */
static bool same_place(const struct folder *f, int a, int x, int b, int y)
{
    if (f->family[x] < 0 || f->family[y] < 0)
        return f->family[x] == f->family[y] && ap_nodes_identical(f->g, x, y);
    return f->family[x] == f->family[y] && f->place[x] == f->place[y] &&
           f->instance[x] - f->fold->instance[a] == f->instance[y] - f->fold->instance[b];
}

bool shard_fold_same_nest(const struct ap_graph *ga, const struct ap_nest *a,
                          const struct ap_graph *gb, const struct ap_nest *b)
{
    if (a->n_members != b->n_members || a->n_ins != b->n_ins || a->n_outs != b->n_outs ||
        !same_factors(a, b))
        return false;
    for (int m = 0; m < a->n_members; m++)
        if (!same_access(&a->values[m], &b->values[m]) ||
            a->linear_values[m] != b->linear_values[m])
            return false;
    for (int i = 0; i < a->n_ins; i++)
        if (!same_access(&a->ins[i].access, &b->ins[i].access) ||
            !ap_shape_equal(&ga->nodes[a->ins[i].node].shape,
                            &gb->nodes[b->ins[i].node].shape))
            return false;
    for (int o = 0; o < a->n_outs; o++)
        if (ap_nest_member(a, a->outs[o]) != ap_nest_member(b, b->outs[o]))
            return false;
    return a->launched == b->launched && !a->in_kernel == !b->in_kernel &&
           (!a->in_kernel ||
            !memcmp(a->in_kernel, b->in_kernel, (size_t)(a->n_ins + a->n_outs)));
}

static bool are_twins(const struct folder *f, const struct ap_nest *a,
                      const struct ap_nest *b)
{
    if (!shard_fold_same_nest(f->g, a, f->g, b) ||
        (f->microbatch_choice &&
         f->microbatch_choice[a->group] != f->microbatch_choice[b->group]))
        return false;
    for (int m = 0; m < a->n_members; m++)
        if (!same_place(f, a->group, a->members[m], b->group, b->members[m]) ||
            !same_pin(f, a->members[m], b->members[m]))
            return false;
    return true;
}

static bool same_twin(const void *ctx, int a, int b)
{
    const struct folder *f = ctx;
    return f->fold->family[a] == f->fold->family[b] &&
           are_twins(f, &f->nests->nest[a], &f->nests->nest[b]);
}

static void find_twins(struct folder *f)
{
    struct ap_classes twins = {.same = same_twin, .ctx = f};

    for (int i = 0; i < f->nests->n; i++) {
        const int family = f->fold->family[i];
        if (family >= 0)
            f->fold->twin[i] = ap_class_of(
                &twins,
                ap_hash(&f->place[f->anchor[i]], sizeof(uint64_t), (uint64_t)family), i);
    }
    ap_classes_free(&twins);
}

/* ---- identical instances ---- */

/* Its values order the classes, and so the pieces of fold_bound.c. */
static uint64_t hash3(uint64_t h, int64_t a, int64_t b, int64_t c)
{
    const int64_t v[3] = {a, b, c};
    return ap_hash(v, sizeof v, h);
}

uint64_t shard_fold_slot(const struct ap_nest *nest, int slot)
{
    if (slot < 0)
        return 0;
    const struct ap_access *a = &nest->ins[slot].access;
    uint64_t h = hash3(12, a->rank, (int64_t)a->partial, 0);
    for (int d = 0; d < a->rank; d++)
        h = ap_hash(a->dims[d].factor, (size_t)a->dims[d].n * sizeof(int),
                    hash3(h, a->dims[d].n, d, 0));
    for (int k = 0; k < nest->n_linear && slot < 64; k++)
        h = hash3(h, k, (int64_t)(nest->linear[k].ins >> slot & 1), 0);
    return h;
}

bool shard_fold_wide(const struct shard_fold *fold, int home,
                     const struct select_users *users)
{
    int low = INT_MAX, high = INT_MIN;
    for (int u = 0; u < users->n; u++) {
        int group = users->uses[u].group;
        if (group < 0 || fold->family[group] < 0 ||
            fold->family[group] == fold->family[home])
            continue;
        low = fold->instance[group] < low ? fold->instance[group] : low;
        high = fold->instance[group] > high ? fold->instance[group] : high;
    }
    return fold->family[home] < 0 || (low <= high && high - low > 1);
}

/* A user in the description of the producer; of a wide tensor's users not the distance.
 */
static uint64_t see_user(const struct shard_fold *fold, uint64_t h, int home, int group,
                         bool wide)
{
    if (group < 0 || fold->family[group] < 0)
        return hash3(h, 1, group, 0);
    h = hash3(h, 2, fold->family[group], fold->twin[group]);
    return wide && fold->family[group] != fold->family[home]
               ? h
               : hash3(h, 3, fold->instance[group] - fold->instance[home], 0);
}

/* The producer in the description of a user. */
static uint64_t see_maker(const struct shard_fold *fold, uint64_t h, int group, int home,
                          bool wide)
{
    if (fold->family[home] < 0 || fold->family[group] < 0 ||
        (wide && fold->family[group] != fold->family[home]))
        return hash3(h, 4, home, 0);
    return hash3(hash3(h, 5, fold->family[home], fold->twin[home]), 6,
                 fold->instance[home] - fold->instance[group], 0);
}

static uint64_t slot_of(const struct folder *f, const struct select_use *use)
{
    return use->group < 0 ? 0 : shard_fold_slot(&f->nests->nest[use->group], use->slot);
}

/*
 * A wide tensor, described by its id, since its users are anywhere. A scalar that one
 * group outside of the families makes is described by its possible layouts: each layer
 * has a scalar of its own there.
 */
static uint64_t see_wide(const struct folder *f, int home, int out)
{
    const struct ap_nest *nest = &f->nests->nest[home];
    int node = nest->outs[out];
    if (f->fold->family[home] >= 0 || ap_shape_elems(&f->g->nodes[node].shape) != 1)
        return hash3(9, node, 0, 0);
    int m = ap_nest_member(nest, node);
    return hash3(13, home, (int64_t)nest->values[m].partial, nest->linear_values[m]);
}

/*
 * Adds the description of every tensor to sum[] of the groups that make or need it (the
 * order of the terms does not matter).
 */
static void describe_tensors(struct folder *f, uint64_t *sum)
{
    const struct shard_fold *fold = f->fold;
    struct select_users users;

    select_users_init(f->arena, f->g, f->nests, &users);
    for (int i = 0; i < f->nests->n; i++) {
        const struct ap_nest *nest = &f->nests->nest[i];
        for (int o = 0; o < nest->n_outs; o++) {
            int node = nest->outs[o];
            uint64_t tensor = hash3(7, fold->twin[i], o, 0);
            select_users_of(&users, node);
            bool wide = shard_fold_wide(fold, i, &users);
            for (int u = 0; u < users.n; u++) {
                const struct select_use *use = &users.uses[u];
                uint64_t slot = slot_of(f, use);
                tensor +=
                    see_user(fold, hash3(8, (int64_t)slot, 0, 0), i, use->group, wide);
            }
            if (wide)
                tensor = see_wide(f, i, o);
            sum[i] += hash3(tensor, 10, 0, 0);
            for (int u = 0; u < users.n; u++) {
                const struct select_use *use = &users.uses[u];
                if (use->group >= 0)
                    sum[use->group] += see_maker(fold, hash3(tensor, 11, use->slot, 0),
                                                 use->group, i, wide);
            }
        }
    }
    select_users_free(&users);
}

struct cell {
    uint64_t hash;
    int family, instance, n_groups;
};

static int by_family(const void *x, const void *y)
{
    const struct cell *a = x, *b = y;
    if (a->family != b->family)
        return a->family < b->family ? -1 : 1;
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    return (a->instance > b->instance) - (a->instance < b->instance);
}

/* Numbers cells and classes; start[family] + instance indexes cell_at. */
static void name_cells(struct folder *f, struct cell *cells, int n, const int *start,
                       int *cell_at)
{
    struct shard_fold *fold = f->fold;

    qsort(cells, (size_t)n, sizeof *cells, by_family);
    fold->class_of = AP_NEW_N(f->arena, n + 1, int);
    fold->n_identical = AP_NEW_N(f->arena, n + 1, int);
    fold->cell_of_class = AP_NEW_N(f->arena, n + 1, int);
    for (int i = 0; i < n;) {
        int end = i + 1;
        while (end < n && cells[end].family == cells[i].family &&
               cells[end].hash == cells[i].hash)
            end++;
        bool identical = end - i >= 2 && cells[i].n_groups > 0;
        for (int k = i; k < end; k++) {
            int *at = &cell_at[start[cells[k].family] + cells[k].instance];
            *at = -1;
            if (identical) {
                *at = fold->n_cells;
                fold->class_of[fold->n_cells++] = fold->n_classes;
            }
        }
        if (identical) {
            fold->cell_of_class[fold->n_classes] = fold->n_cells - (end - i);
            fold->n_identical[fold->n_classes++] = end - i;
        }
        i = end;
    }
}

static void find_cells(struct folder *f)
{
    const struct ap_families *all = f->families;
    struct shard_fold *fold = f->fold;
    int *start = AP_NEW_N(f->arena, all->n + 1, int);
    uint64_t *sum = AP_NEW_N(f->arena, f->nests->n, uint64_t);

    for (int i = 0; i < all->n; i++)
        start[i + 1] = start[i] + all->family[i].n_instances;
    struct cell *cells = AP_NEW_N(f->arena, start[all->n] + 1, struct cell);
    int *cell_at = AP_NEW_N(f->arena, start[all->n] + 1, int);
    for (int i = 0; i < all->n; i++)
        for (int k = 0; k < all->family[i].n_instances; k++)
            cells[start[i] + k] = (struct cell){.family = i, .instance = k};
    describe_tensors(f, sum);
    for (int i = 0; i < f->nests->n; i++) {
        if (fold->family[i] < 0)
            continue;
        struct cell *c = &cells[start[fold->family[i]] + fold->instance[i]];
        c->hash += hash3(sum[i], fold->twin[i], 0, 0);
        c->n_groups++;
    }
    name_cells(f, cells, start[all->n], start, cell_at);
    for (int i = 0; i < f->nests->n; i++)
        if (fold->family[i] >= 0)
            fold->cell[i] = cell_at[start[fold->family[i]] + fold->instance[i]];
}

/* Groups of identical cells at one place are tied. */
static void tie(struct folder *f)
{
    struct shard_fold *fold = f->fold;
    int *first = AP_NEW_N(f->arena, f->nests->n, int); /* [twin]: group + 1 */
    int *next = AP_NEW_N(f->arena, f->nests->n, int);

    for (int i = 0; i < f->nests->n; i++) {
        fold->tied[i] = i;
        if (fold->cell[i] >= 0) {
            int *slot = &first[fold->twin[i]], other = *slot;
            int class = fold->class_of[fold->cell[i]];
            while (other > 0 && fold->class_of[fold->cell[other - 1]] != class)
                other = next[other - 1];
            if (other > 0) {
                fold->tied[i] = other - 1;
                fold->n_tied++;
            } else {
                next[i] = *slot;
                *slot = i + 1;
            }
        }
        fold->weight[fold->tied[i]]++;
    }
}

void shard_fold_find(struct ap_arena *arena, const struct shard_task *task,
                     const struct ap_families *families, struct shard_fold *fold)
{
    static const struct ap_families none;
    const struct ap_graph *g = task->graph;
    const struct ap_nests *nests = task->nests;
    struct folder f = {.arena = arena,
                       .g = g,
                       .nests = nests,
                       .families = families ? families : &none,
                       .pins = task->pins,
                       .microbatch_choice = task->microbatch_choice,
                       .fold = fold};

    *fold = (struct shard_fold){.twin = AP_NEW_N(arena, nests->n, int),
                                .tied = AP_NEW_N(arena, nests->n, int),
                                .weight = AP_NEW_N(arena, nests->n, int),
                                .cell = AP_NEW_N(arena, nests->n, int),
                                .family = AP_NEW_N(arena, nests->n, int),
                                .instance = AP_NEW_N(arena, nests->n, int)};
    f.place = AP_NEW_N(arena, g->n_nodes, uint64_t);
    f.family = AP_NEW_N(arena, g->n_nodes, int);
    f.instance = AP_NEW_N(arena, g->n_nodes, int);
    for (int v = 0; v < g->n_nodes; v++)
        f.family[v] = f.instance[v] = -1;
    for (int i = 0; i < nests->n; i++) {
        fold->twin[i] = i;
        fold->cell[i] = -1;
    }
    f.anchor = AP_NEW_N(arena, nests->n, int);
    place_nodes(&f);
    for (int v = 0; v < g->n_nodes && f.families->n > 0; v++)
        if (f.family[v] < 0 && g->nodes[v].n_in > 0)
            adopt(&f, v);
    place_groups(&f);
    find_twins(&f);
    find_cells(&f);
    tie(&f);
}
