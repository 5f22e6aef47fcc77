/*
 * Problem: the best simulated plan of a setting, proven, where it has few plans.
 * Idea: stages are chosen from the first on, their number fixed. What is chosen says when
 * the next stage gets its first microbatch and how long the way back takes; the rest is
 * at least its label (auto_labels.c) with that number of stages and as many devices or
 * fewer. Children are tried best first; what is not below the best plan is cut.
 * Cost: exponential at worst, ended by the search's limits; the setting's bound stands
 * then.
 * Worth: without it the step of Llama-3 8B on hosts of two kinds is 1.0 % longer, and
 * bounds of Wide-ResNet, MoE and U-Net on 8 GPUs are 1.5 to 2.3 % lower.
 */
#include "search/auto.h"

#include "base/array.h"

#include <math.h>
#include <stdlib.h>

/* Least label by block, number of stages and devices at most. */
struct rests {
    int n, n_units;
    struct label *at; /* [(block * (n + 1) + stages) * (units + 1) + units] */
};

struct child {
    double bound;
    int hi, mesh, serial;
    const struct plan_point *point;
    struct prepend p;
};

struct tree {
    struct stage_search *search;
    const struct setting *set;
    struct rests rests;
    struct ap_arena scratch;
    struct plan_answer now;
    int64_t node_limit;
    bool ended; /* a limit was met */
};

static struct label *rest_at(const struct rests *r, int k, int s, int d)
{
    return &r->at[((size_t)k * (size_t)(r->n + 1) + (size_t)s) *
                      (size_t)(r->n_units + 1) +
                  (size_t)d];
}

static void lower(struct label *to, const struct label *from)
{
    to->end = least_of(to->end, from->end);
    to->done = least_of(to->done, from->done);
    to->way = least_of(to->way, from->way);
}

static void spread_labels(struct tree *t, const struct labels *l)
{
    const struct setting *set = t->set;
    struct rests *r = &t->rests;
    const struct plan_counts *c = &set->units;
    size_t all = (size_t)(r->n + 1) * (size_t)(r->n + 1) * (size_t)(r->n_units + 1);

    r->at = AP_NEW_N(&t->scratch, all, struct label);
    for (size_t i = 0; i < all; i++)
        r->at[i] = (struct label){.end = INFINITY, .done = INFINITY, .way = INFINITY};
    for (int k = 0; k <= r->n; k++)
        for (int d = 0; d <= r->n_units; d++) {
            size_t at = (size_t)k * (size_t)(set->n_units + 1) + (size_t)d;
            for (int i = l->first[at]; i < l->first[at] + l->n[at]; i++)
                for (int s = l->all[i].least_stages; s <= l->all[i].most_stages; s++)
                    lower(rest_at(r, k, s, d), &l->all[i]);
            for (int kind = 0; kind < c->n_kinds; kind++)
                for (int s = 0; counts_digit(c, d, kind) > 0 && s <= r->n; s++)
                    lower(rest_at(r, k, s, d), rest_at(r, k, s, d - c->stride[kind]));
        }
}

static int compare_children(const void *a, const void *b)
{
    const struct child *x = a, *y = b;
    if (x->bound != y->bound)
        return x->bound < y->bound ? -1 : 1;
    return x->serial - y->serial;
}

/* What is chosen so far. */
struct node {
    int k, left,
        behind; /* block, devices as struct plan_counts, stages still to choose */
    double arrival, back; /* of the first microbatch; from the end of the last backward of
                             the next stage to the end of the step, at least */
    double bound;
};

static void fill_prepend(const struct tree *t, const struct node *v,
                         const struct plan_point *point, struct prepend *p)
{
    const struct setting *set = t->set;
    int flight = setting_flight(set, v->behind);

    *p = (struct prepend){.forward = point->forward_sec,
                          .backward = point->backward_sec,
                          .sum = point->forward_sec + point->backward_sec,
                          .tail = point->sync_sec + point->update_sec,
                          .least_flight = flight,
                          .most_flight = flight};
}

static bool is_throughput(const struct setting *set)
{
    return set->schedule == AP_SCHEDULE_INFERENCE && !set->sp->params->latency;
}

static int list_children(struct tree *t, const struct node *v, struct child **out)
{
    const struct setting *set = t->set;
    int n = set->sp->n, n_out = 0, cap = 0, flight = setting_flight(set, v->behind);

    *out = NULL;
    for (int hi = v->behind > 1 ? v->k : n - 1; hi + v->behind <= n; hi++)
        for (int m = 0; m < set->c->n_meshes; m++) {
            const struct cell *cell =
                &set->cell[set->sp->run[v->k * n + hi] * set->c->n_meshes + m];
            if (!config_has(set->c, v->left, m))
                continue;
            const struct label *rest = rest_at(&t->rests, hi + 1, v->behind - 1,
                                               v->left - config_take(set->c, m));
            for (int i = 0; i < cell->n; i++) {
                struct child c = {.hi = hi, .mesh = m, .serial = n_out};
                struct label out_label;
                if (cell->step[i].max_flight < flight)
                    continue;
                c.point = cell->step[i].own;
                fill_prepend(t, v, c.point, &c.p);
                setting_prepend(set, &c.p, v->behind > 1 ? rest : NULL, &out_label);
                c.bound = v->arrival + most_of(out_label.done, out_label.end + v->back);
                c.bound = most_of(c.bound, v->bound);
                t->search->nodes++;
                if (auto_is_over(t->search, c.bound))
                    continue;
                AP_ROOM(*out, n_out, cap);
                (*out)[n_out++] = c;
            }
        }
    if (n_out > 0)
        qsort(*out, (size_t)n_out, sizeof **out, compare_children);
    return n_out;
}

static void descend(struct tree *t, const struct node *v)
{
    struct child *children;
    const struct setting *set = t->set;

    if (v->behind == 0) {
        t->ended |= !auto_try(t->search, set->sp, &t->now, "tree");
        return;
    }
    int n = list_children(t, v, &children);
    for (int i = 0; i < n && !t->ended; i++) {
        const struct child *c = &children[i];
        const struct plan_submesh *m = &set->c->mesh[c->mesh];
        if (auto_is_over(t->search, c->bound))
            break;
        if (t->search->nodes > t->node_limit) {
            t->ended = true;
            break;
        }
        t->now.stage[t->now.n_stages++] = (struct plan_stage){.lo = v->k,
                                                              .hi = c->hi,
                                                              .hosts = m->hosts,
                                                              .devices = m->devices,
                                                              .kind = m->kind,
                                                              .point = c->point};
        struct node next = {.k = c->hi + 1,
                            .left = v->left - config_take(set->c, c->mesh),
                            .behind = v->behind - 1,
                            .bound = c->bound,
                            .back = -INFINITY};
        if (!is_throughput(set))
            next.arrival = v->arrival + c->p.forward;
        if (set->schedule != AP_SCHEDULE_INFERENCE)
            next.back = c->p.backward + most_of(v->back, c->p.tail);
        descend(t, &next);
        t->now.n_stages--;
    }
    free(children);
}

/* The number of stages of least bound that is left, 0. */
static int next_number(const struct tree *t, const bool *done, double *least)
{
    int best = 0, want = t->set->sp->params->n_stages;

    *least = INFINITY;
    for (int s = 1; s <= t->set->sp->n; s++) {
        double bound = rest_at(&t->rests, 0, s, t->rests.n_units)->done;
        if (done[s] || (want > 0 && s != want) || auto_is_over(t->search, bound))
            continue;
        if (bound < *least) {
            *least = bound;
            best = s;
        }
    }
    return best;
}

/* The numbers of stages by their bound; the least bound of what is left at last. */
static double search_stages(struct tree *t)
{
    bool *done = AP_NEW_N(&t->scratch, t->set->sp->n + 1, bool);
    double least;

    for (int s; (s = next_number(t, done, &least)) > 0; done[s] = true) {
        struct node root = {
            .left = t->rests.n_units, .behind = s, .back = -INFINITY, .bound = least};
        t->now.n_stages = 0;
        descend(t, &root);
        if (t->ended)
            return least;
    }
    return INFINITY;
}

#define MAX_RESTS 400000 /* blocks * blocks * units of devices, for memory */

/* The setting's own bound, for settings too large to search. */
static double root_bound(const struct setting *set, const struct labels *l)
{
    double least = INFINITY;
    int want = set->sp->params->n_stages;

    for (int d = 0; d <= set->n_units; d++)
        for (int i = l->first[d]; i < l->first[d] + l->n[d]; i++)
            if (want == 0 ||
                (want >= l->all[i].least_stages && want <= l->all[i].most_stages))
                least = least_of(least, l->all[i].done);
    return least;
}

void auto_tree(struct stage_search *search, const struct setting *set,
               const struct labels *bounds)
{
    int n = set->sp->n;
    struct tree t = {.search = search,
                     .set = set,
                     .rests = {.n = n, .n_units = set->n_units},
                     .node_limit = search->nodes + search->node_limit / 8,
                     .now = {.replicas = set->c->replicas,
                             .microbatches = set->c->microbatches,
                             .schedule = set->schedule,
                             .chunks = 1}};
    double open = root_bound(set, bounds);

    if (auto_is_over(search, open))
        return;
    if (t.node_limit > search->node_limit)
        t.node_limit = search->node_limit;
    if (set->units.width == set->c->counts.width &&
        (int64_t)n * n * set->n_units < MAX_RESTS) {
        t.now.stage = AP_NEW_N(&t.scratch, n, struct plan_stage);
        spread_labels(&t, bounds);
        int64_t whole = auto_share(search);
        open = search_stages(&t);
        search->instruction_limit = whole;
        ap_arena_free(&t.scratch);
    }
    search->bound = least_of(search->bound, open);
}
