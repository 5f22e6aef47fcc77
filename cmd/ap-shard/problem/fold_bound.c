/*
 * Problem: bound the price of every plan of a deep graph, also of the plans that treat
 * identical layers differently, at the cost of its distinct layers.
 * Idea: Lagrangian decomposition. The graph is split into pieces: each tied instance is a
 * piece, all the rest another one. A tensor between two pieces is charged in one of them,
 * where a proxy takes the place of the group at the other end. One multiplier per
 * strategy is added to the proxy's cost and subtracted from the group's, so that the sum
 * of the pieces' optima is a lower bound for any multipliers. Proxies at the same place
 * of identical instances share their multipliers, so that one piece stands for all
 * instances of its class. libcommon finds good multipliers (solve/pieces.h). A tensor
 * with users in several places is charged where it is made; a tensor that is made outside
 * of all layers (a mask, a tied weight) is charged in equal parts to each place that
 * needs it. Cost: per round one exact solve per distinct layer and one of the rest. The
 * README of ap-shard derives the bound.
 */
#include "problem/fold_bound.h"

#include <math.h>
#include <stdlib.h>

#include "base/array.h"
#include "problem/classes.h"
#include "problem/statement.h"
#include "solve/pieces.h"

/* Where a group is: an instance of a family, or outside (-1, -1). */
struct site {
    int family, instance;
};

struct multiplier {
    uint64_t key;
    int n;              /* strategies */
    double plus, minus; /* how often it is added and subtracted, all pieces counted */
};

/* A problem node whose cost a multiplier changes. */
struct term {
    int multiplier, node;
    double sign;
};

struct piece {
    struct select_builder b;
    double weight; /* instances that it stands for */
    struct term *term;
    int n_terms, cap_terms;
};

/* The proxy, at a site, of a group elsewhere. */
struct proxy {
    struct site site;
    int group, multiplier;
    int var; /* in the site's piece, -1 if that piece is not built */
};

struct bounder {
    struct ap_arena *arena;
    const struct shard_space *space;
    const struct shard_fold *fold;
    int n_pieces;
    struct piece *piece; /* 0: all that is in no cell; then one per class */
    int *var;            /* [group]: its variable in its piece, -1 if that is not built */
    struct proxy *proxy;
    int n_proxies, cap_proxies;
    struct multiplier *multiplier;
    int n_multipliers, cap_multipliers;
    struct ap_classes proxies, multipliers; /* equal ones are one */
    double tensors, charged;                /* how many, and how many the pieces charge */
    const struct shard_answer *known;
    const struct fold_search *search;
};

static struct site site_of(const struct bounder *b, int group)
{
    return (struct site){b->fold->family[group], b->fold->instance[group]};
}

/* The piece that speaks for the group's cell; -1 if it is built from another cell. */
static int piece_of(const struct bounder *b, int group)
{
    int cell = b->fold->cell[group];
    if (cell < 0)
        return 0;
    int class = b->fold->class_of[cell];
    return b->fold->cell_of_class[class] == cell ? 1 + class : -1;
}

/* ---- multipliers and proxies ---- */

static uint64_t hash4(int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t v[4] = {a, b, c, d};
    return ap_hash(v, sizeof v, 0);
}

static bool same_multiplier(const void *ctx, int a, int b)
{
    const struct bounder *m = ctx;
    return m->multiplier[a].key == m->multiplier[b].key;
}

static bool same_proxy(const void *ctx, int a, int b)
{
    const struct bounder *m = ctx;
    const struct proxy *p = &m->proxy[a], *q = &m->proxy[b];
    return p->group == q->group && p->site.family == q->site.family &&
           p->site.instance == q->site.instance;
}

static int find_multiplier(struct bounder *b, uint64_t key, int group)
{
    int i = b->n_multipliers;

    AP_ROOM(b->multiplier, i, b->cap_multipliers);
    b->multiplier[i] = (struct multiplier){.key = key, .n = b->space->n[group]};
    int first = ap_class_of(&b->multipliers, key, i);
    b->n_multipliers += first == i;
    return first;
}

static void add_term(struct piece *p, int multiplier, int node, double sign)
{
    AP_ROOM(p->term, p->n_terms, p->cap_terms);
    p->term[p->n_terms++] = (struct term){multiplier, node, sign};
}

/* The multiplier of a group's proxy at a site: identical instances share it. */
static uint64_t key_of(const struct bounder *b, struct site site, int group, bool wide)
{
    const struct shard_fold *fold = b->fold;
    const struct site home = site_of(b, group);
    bool by_distance =
        home.family >= 0 && site.family >= 0 && !(wide && home.family != site.family);

    return by_distance
               ? hash4(16 + site.family, fold->twin[group], site.instance - home.instance,
                       0)
               : hash4(2, wide ? group : fold->twin[group], site.family, home.family);
}

/* The variable of a group's proxy at a site; made, with its multiplier, on first use. */
static int proxy_var(struct bounder *b, struct site site, int site_piece, int group,
                     bool wide)
{
    int i = b->n_proxies, owner = piece_of(b, group);

    AP_ROOM(b->proxy, i, b->cap_proxies);
    struct proxy *p = &b->proxy[i];
    *p = (struct proxy){.site = site, .group = group, .var = -1};
    int first = ap_class_of(&b->proxies, hash4(site.family, site.instance, group, 1), i);
    if (first < i)
        return b->proxy[first].var;
    b->n_proxies++;
    p->multiplier = find_multiplier(b, key_of(b, site, group, wide), group);
    struct multiplier *m = &b->multiplier[p->multiplier];
    if (site_piece >= 0) {
        p->var = select_var(&b->piece[site_piece].b, group, 0);
        add_term(&b->piece[site_piece], p->multiplier, p->var, 1);
        m->plus += b->piece[site_piece].weight;
    }
    if (owner >= 0) {
        add_term(&b->piece[owner], p->multiplier, b->var[group], -1);
        m->minus += b->piece[owner].weight;
    }
    return p->var;
}

/* ---- tensors ---- */

/* Where a tensor is charged. */
struct place {
    struct site site;
    int cell, piece; /* -1: no cell; a piece that is not built */
};

/*
 * Charges n uses of a tensor, all of one site or all there are, in the piece of `site`;
 * groups elsewhere are replaced by proxies.
 */
static void charge(struct bounder *b, int node, const struct select_use *uses, int n,
                   const struct place *at, bool wide, double weight)
{
    const struct site site = at->site;
    const int site_cell = at->cell, site_piece = at->piece;
    const struct shard_fold *fold = b->fold;
    int home = b->space->graph->nodes[node].group;
    struct copy_set set = {.node = node, .home = home, .n_uses = n, .weight = weight};

    if (site_piece >= 0) {
        b->charged += weight * b->piece[site_piece].weight;
        set.uses = ap_arena_dup(b->arena, uses, (size_t)n * sizeof *uses);
    }
    set.home_var = fold->cell[home] == site_cell
                       ? b->var[home]
                       : proxy_var(b, site, site_piece, home, wide);
    for (int u = 0; u < n; u++) {
        int group = uses[u].group;
        if (group < 0)
            continue;
        int var = fold->cell[group] == site_cell
                      ? b->var[group]
                      : proxy_var(b, site, site_piece, group, false);
        if (set.uses)
            set.uses[u].var = var;
    }
    if (set.uses)
        statement_add_copy_set(&b->piece[site_piece].b, &set);
}

/* Where a use is charged; all uses in the home's own piece count as one place. */
static struct site use_site(const struct bounder *b, int home,
                            const struct select_use *use)
{
    bool outside =
        use->group < 0 || (b->fold->cell[home] < 0 && b->fold->cell[use->group] < 0);

    return outside ? (struct site){-1, -1} : site_of(b, use->group);
}

static int by_site(const struct bounder *b, int home, const struct select_use *x,
                   const struct select_use *y)
{
    struct site p = use_site(b, home, x), q = use_site(b, home, y);

    if (p.family != q.family)
        return p.family < q.family ? -1 : 1;
    return (p.instance > q.instance) - (p.instance < q.instance);
}

/* Insertion into order of sites; users come nearly in order. */
static void sort_uses(const struct bounder *b, int home, struct select_use *uses, int n)
{
    for (int i = 1; i < n; i++) {
        struct select_use x = uses[i];
        int k = i;
        for (; k > 0 && by_site(b, home, &x, &uses[k - 1]) < 0; k--)
            uses[k] = uses[k - 1];
        uses[k] = x;
    }
}

static void add_tensor(struct bounder *b, int node, struct select_users *users)
{
    int home = b->space->graph->nodes[node].group, n_sites = 0;
    struct site home_site = site_of(b, home);
    const struct select_use *uses = users->uses;

    if (users->n == 0)
        return;
    bool wide = shard_fold_wide(b->fold, home, users);
    b->tensors++;
    sort_uses(b, home, users->uses, users->n);
    for (int u = 0; u < users->n; u++)
        n_sites += u == 0 || by_site(b, home, &uses[u - 1], &uses[u]) != 0;
    if (n_sites > 1 && !wide) {
        charge(b, node, uses, users->n,
               &(struct place){home_site, b->fold->cell[home], piece_of(b, home)}, false,
               1);
        return;
    }
    for (int u = 0, end; u < users->n; u = end) {
        for (end = u + 1; end < users->n && by_site(b, home, &uses[u], &uses[end]) == 0;
             end++)
            ;
        struct site site = use_site(b, home, &uses[u]);
        bool outside = site.family < 0;
        const struct place at = {site, outside ? -1 : b->fold->cell[uses[u].group],
                                 outside ? 0 : piece_of(b, uses[u].group)};
        charge(b, node, &uses[u], end - u, &at, wide, 1.0 / n_sites);
    }
}

static void build_pieces(struct bounder *b)
{
    const struct shard_space *sp = b->space;
    struct select_users users;

    b->n_pieces = 1 + b->fold->n_classes;
    b->piece = AP_NEW_N(b->arena, b->n_pieces, struct piece);
    for (int i = 0; i < b->n_pieces; i++) {
        select_init(&b->piece[i].b, b->arena, sp);
        b->piece[i].weight = i == 0 ? 1 : b->fold->n_identical[i - 1];
    }
    b->var = AP_NEW_N(b->arena, sp->nests->n, int);
    for (int i = 0; i < sp->nests->n; i++) {
        int p = piece_of(b, i);
        b->var[i] = p < 0 ? -1 : select_var(&b->piece[p].b, i, 1);
    }
    select_users_init(b->arena, sp->graph, sp->nests, &users);
    for (int i = 0; i < sp->nests->n; i++)
        for (int o = 0; o < sp->nests->nest[i].n_outs; o++) {
            select_users_of(&users, sp->nests->nest[i].outs[o]);
            add_tensor(b, sp->nests->nest[i].outs[o], &users);
        }
    select_users_free(&users);
}

/* ---- the bound ---- */

/* [group]: the plan's strategy; -1 where it has none of the space. */
static int *strategies_of(const struct bounder *b, const struct ap_plan *plan)
{
    int n = b->space->nests->n;
    int *strategy = AP_NEW_N(b->arena, n, int);

    for (int i = 0; i < n; i++) {
        int root = b->fold->tied[i];
        strategy[i] =
            root < i ? strategy[root] : shard_space_find(b->space, i, &plan->choice[i]);
    }
    return strategy;
}

/* The plan in a piece; NULL if it is not in the space. */
static const int *piece_start(const struct bounder *b, const struct piece *p,
                              const int *strategy)
{
    int *start = AP_NEW_N(b->arena, p->b.n_nodes + 1, int);

    for (int v = 0; v < p->b.n_nodes; v++) {
        start[v] = p->b.group[v] < 0 ? 0 : strategy[p->b.group[v]];
        if (start[v] < 0)
            return NULL;
    }
    select_make_copies(&p->b, start);
    return start;
}

static void find_starts(const struct bounder *b, const struct ap_plan *plan,
                        const int **start)
{
    const int *strategy = strategies_of(b, plan);

    for (int i = 0; i < b->n_pieces; i++)
        start[i] = piece_start(b, &b->piece[i], strategy);
}

/* The pieces as libcommon wants them, without multipliers that change nothing. */
static struct ap_pieces as_pieces(struct bounder *b, struct ap_subproblem *pieces)
{
    int *number = AP_NEW_N(b->arena, b->n_multipliers + 1, int);
    int *n_strategies = AP_NEW_N(b->arena, b->n_multipliers + 1, int), n = 0;

    for (int k = 0; k < b->n_multipliers; k++) {
        const struct multiplier *q = &b->multiplier[k];
        number[k] = q->n > 1 && q->plus == q->minus ? n : -1;
        if (number[k] >= 0)
            n_strategies[n++] = q->n;
    }
    for (int i = 0; i < b->n_pieces; i++) {
        const struct piece *p = &b->piece[i];
        struct ap_subproblem_term *term =
            AP_NEW_N(b->arena, p->n_terms + 1, struct ap_subproblem_term);
        int m = 0;
        for (int t = 0; t < p->n_terms; t++)
            if (number[p->term[t].multiplier] >= 0)
                term[m++] = (struct ap_subproblem_term){number[p->term[t].multiplier],
                                                        p->term[t].node, p->term[t].sign};
        pieces[i] = (struct ap_subproblem){.problem = select_problem(&p->b),
                                           .weight = p->weight,
                                           .n_terms = m,
                                           .term = term};
    }
    return (struct ap_pieces){b->n_pieces, pieces, n, n_strategies};
}

/* The price of the pieces' choices, each taken for all groups that it stands for. */
static double price_pieces(void *arg, int *const *choice)
{
    struct bounder *b = arg;
    int n = b->space->nests->n;
    int *strategy = AP_NEW_N(b->arena, n, int);

    for (int i = 0; i < n; i++)
        if (b->var[i] >= 0)
            strategy[b->fold->tied[i]] = choice[piece_of(b, i)][b->var[i]];
    for (int i = 0; i < n; i++)
        strategy[i] = strategy[b->fold->tied[i]];
    return b->search->price(b->search->arg, strategy);
}

static int solve_whole(void *arg, double share, double *objective, const int **start,
                       struct ap_err *err)
{
    struct bounder *b = arg;

    if (b->search->solve(b->search->arg, share, err))
        return -1;
    *objective = b->known->objective;
    find_starts(b, &b->known->plan, start);
    return 0;
}

static double at_hand(void *arg)
{
    const struct bounder *b = arg;

    return b->search->at_hand(b->search->arg);
}

int shard_fold_bound(struct ap_arena *arena, const struct shard_space *space,
                     const struct shard_fold *fold, const struct fold_bound_params *given,
                     struct fold_bound *out, struct ap_err *err)
{
    const struct fold_search *search = given->search;
    struct bounder b = {.arena = arena,
                        .space = space,
                        .fold = fold,
                        .known = given->known,
                        .search = search};
    const struct ap_pieces_search found = {&b, price_pieces, solve_whole, at_hand};
    struct ap_pieces_params params = {.objective = given->known->objective,
                                      .search = search ? &found : NULL,
                                      .max_rounds = given->max_rounds,
                                      .gap = given->gap,
                                      .work_limit = given->work_limit,
                                      .work = given->work};
    struct ap_pieces_answer answer = {0};
    int rc = 0;

    *out = (struct fold_bound){0};
    b.proxies = (struct ap_classes){.same = same_proxy, .ctx = &b};
    b.multipliers = (struct ap_classes){.same = same_multiplier, .ctx = &b};
    build_pieces(&b);
    struct ap_subproblem *piece = AP_NEW_N(arena, b.n_pieces, struct ap_subproblem);
    const struct ap_pieces pieces = as_pieces(&b, piece);
    const int **start = AP_NEW_N(arena, b.n_pieces, const int *);
    if (!search)
        find_starts(&b, &given->known->plan, start);
    for (int i = 0; i < b.n_pieces; i++)
        piece[i].start = start[i];
    /* all tensors are charged once, or instances were not as identical as the hashes said
     */
    if (fabs(b.charged - b.tensors) <= 1e-6 * b.tensors)
        rc = ap_pieces_bound(arena, &pieces, &params, &answer, err);
    out->bound = answer.bound;
    out->n_rounds = answer.n_rounds;
    for (int i = 0; i < b.n_pieces; i++) {
        select_free(&b.piece[i].b);
        free(b.piece[i].term);
    }
    free(b.proxy);
    free(b.multiplier);
    ap_classes_free(&b.proxies);
    ap_classes_free(&b.multipliers);
    return rc;
}
