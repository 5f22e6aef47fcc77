/*
 * Problem: a copy that is kept from one phase to the next, recomputed or waits between
 * users costs what several users and the tensor's own layout say together; a node per
 * copy, with tables to each of them, lets every relaxation take the best of each. Idea:
 * one node for all copies of a tensor, whose strategies are combinations of its users'
 * needs: one need per user. Its table to the tensor's home has the exact price of that,
 * tables to the users say which need is theirs. The cost of the home and a user together
 * (memory held between them) is part of it if the user's needs determine it. Cost: the
 * product of the users' needs per tensor; where that is too large there is no such node.
 */
#include "solve/memory/memory_copy_set.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_forbidden(double cost)
{
    return cost >= AP_FORBIDDEN;
}

static const struct ap_problem_edge *home_edge(const struct ap_memory *m, int copy)
{
    return &m->problem->edges[m->copy[copy].home_edge];
}

/* ---- users and what they need ---- */

struct row {
    const double *cell;
    size_t size;
    int strategy;
};

static int by_cells(const void *x, const void *y)
{
    const struct row *a = x, *b = y;
    const int order = memcmp(a->cell, b->cell, a->size);
    return order ? order : (a->strategy > b->strategy) - (a->strategy < b->strategy);
}

/* Strategies with equal rows have the same need. */
static void name_needs(struct ap_arena *arena, struct set_user *u, const double *cells,
                       int n_strategies, int width)
{
    struct row *row = AP_NEW_N(arena, n_strategies, struct row);
    const size_t size = (size_t)width * sizeof *cells;
    int n = 0;

    u->need = AP_NEW_N(arena, n_strategies, int);
    u->one = AP_NEW_N(arena, n_strategies, int);
    u->n_needs = 0;
    for (int s = 0; s < n_strategies; s++) {
        row[n++] = (struct row){cells + (size_t)s * (size_t)width, size, s};
    }
    qsort(row, (size_t)n, sizeof *row, by_cells);
    for (int i = 0; i < n; i++) {
        if (i == 0 || memcmp(row[i].cell, row[i - 1].cell, size) != 0)
            u->one[u->n_needs++] = row[i].strategy;
        u->need[row[i].strategy] = u->n_needs - 1;
    }
}

static struct set_user *user_of(const struct priced_set *set, int var)
{
    for (int u = 0; u < set->n_users; u++)
        if (set->user[u].var == var)
            return &set->user[u];
    return NULL;
}

static void find_needs(struct ap_arena *arena, const struct ap_memory *m,
                       const struct priced_set *set, struct set_user *user)
{
    const int n = m->problem->n_strategies[user->var], width = user->n_uses;
    double *cells = AP_NEW_N(arena, (int64_t)n * width, double);
    int k = 0;

    for (int c = set->first; c < set->first + set->n; c++)
        for (int i = 0; i < m->copy[c].n_uses; i++) {
            const struct ap_problem_edge *e = &m->problem->edges[m->copy[c].use[i].edge];
            if (e->b != user->var)
                continue;
            for (int s = 0; s < n; s++)
                cells[s * width + k] = is_forbidden(e->cost[s]);
            k++;
        }
    name_needs(arena, user, cells, n, width);
}

/* Cells of its tables; INFINITY when it is too large. */
static double count_cells(const struct ap_memory *m, const struct priced_set *set)
{
    const int *n_strategies = m->problem->n_strategies;
    double n = 1, most = n_strategies[set->home], sum = most;

    for (int u = 0; u < set->n_users; u++) {
        const double n_s = n_strategies[set->user[u].var];
        n *= set->user[u].n_needs;
        sum += n_s;
        most = n_s > most ? n_s : most;
    }
    return n < 1 || n > memory_tuning.set_states || n * most > memory_tuning.set_cells
               ? INFINITY
               : n * sum;
}

bool priced_set_find(struct ap_arena *arena, const struct ap_memory *m, int first, int n,
                     double *cells, struct priced_set *out)
{
    int most = 0;

    *out = (struct priced_set){.first = first, .n = n, .home = home_edge(m, first)->a};
    for (int c = first; c < first + n; c++)
        most += m->copy[c].n_uses;
    out->user = AP_NEW_N(arena, most + 1, struct set_user);
    for (int c = first; c < first + n; c++)
        for (int i = 0; i < m->copy[c].n_uses; i++) {
            const int var = m->problem->edges[m->copy[c].use[i].edge].b;
            struct set_user *user = user_of(out, var);
            if (!user) {
                user = &out->user[out->n_users++];
                user->var = var;
            }
            user->n_uses++;
        }
    for (int u = 0; u < out->n_users; u++)
        find_needs(arena, m, out, &out->user[u]);
    out->kept = AP_NEW_N(arena, n, double *);
    out->wait = AP_NEW_N(arena, 2 * n, const struct priced_wait *);
    const double more = count_cells(m, out);
    if (*cells + more > memory_tuning.all_set_cells)
        return false;
    *cells += more;
    return true;
}

/* ---- what lies between the home and a user ---- */

/* Needs are distinguished by what strategies cost with the home; false: not worth it. */
static bool refine(struct ap_arena *arena, const struct ap_memory *m,
                   const struct priced_set *set, struct set_user *user,
                   const struct ap_problem_edge *edges, double *all)
{
    const int n_home = m->problem->n_strategies[set->home];
    const int n = m->problem->n_strategies[user->var];
    const int width = 1 + user->n_between * n_home;
    const struct set_user before = *user;
    const double now = count_cells(m, set);
    double *cells = AP_NEW_N(arena, (int64_t)n * width, double);

    for (int s = 0; s < n; s++) {
        cells[s * width] = user->need[s];
        for (int i = 0; i < user->n_between; i++)
            for (int h = 0; h < n_home; h++)
                cells[s * width + 1 + i * n_home + h] =
                    edges[user->between[i]].cost[h * n + s];
    }
    name_needs(arena, user, cells, n, width);
    const double more = count_cells(m, set) - now;
    if (*all + more <= memory_tuning.all_set_cells) {
        *all += more;
        return true;
    }
    *user = before;
    return false;
}

/* Stars by home. */
struct homes {
    int *first, *next;
};

static struct set_user *find_set(const struct homes *homes, struct priced_set *sets,
                                 const struct ap_problem_edge *e)
{
    for (int i = homes->first[e->a]; i >= 0; i = homes->next[i]) {
        struct set_user *user = user_of(&sets[i], e->b);
        if (user)
            return user;
    }
    return NULL;
}

static void list_between(struct ap_arena *arena, const struct ap_memory *m,
                         struct priced_set *sets, int n_sets,
                         const struct ap_problem_edge *edges, int n_edges)
{
    struct homes homes = {AP_NEW_N(arena, m->n_vars, int),
                          AP_NEW_N(arena, n_sets + 1, int)};

    for (int v = 0; v < m->n_vars; v++)
        homes.first[v] = -1;
    for (int i = n_sets - 1; i >= 0; i--) {
        homes.next[i] = homes.first[sets[i].home];
        homes.first[sets[i].home] = i;
    }
    for (int count = 1; count >= 0; count--) /* how many, then which */
        for (int e = 0; e < n_edges; e++) {
            if (edges[e].a >= m->n_vars || edges[e].b >= m->n_vars)
                continue;
            struct set_user *user = find_set(&homes, sets, &edges[e]);
            if (!user)
                continue;
            if (count) {
                user->n_between++;
                continue;
            }
            if (!user->between) {
                user->between = AP_NEW_N(arena, user->n_between, int);
                user->n_between = 0;
            }
            user->between[user->n_between++] = e;
        }
}

/* ---- its tables ---- */

/* When a copy is asked for in a phase. */
struct asked {
    bool any;
    int first, last; /* turns */
    int when;        /* of the first */
    int64_t times;   /* that it is made for them */
};

static void ask(const struct ap_memory *m, int copy, const int *choice,
                struct asked asked[2])
{
    const struct ap_copy *c = &m->copy[copy];

    asked[0] = asked[1] = (struct asked){.first = c->n_turns, .last = -1};
    for (int i = 0; i < c->n_uses; i++) {
        const struct ap_copy_use *use = &c->use[i];
        const struct ap_problem_edge *e = &m->problem->edges[use->edge];
        struct asked *a = &asked[use->later];
        if (!is_forbidden(e->cost[choice[e->b]]))
            continue;
        if (!a->any || use->when < a->when) {
            a->when = use->when;
            a->times = use->times;
        }
        a->any = true;
        a->first = use->turn < a->first ? use->turn : a->first;
        a->last = use->turn > a->last ? use->turn : a->last;
    }
}

/* Adds what a copy of the set costs while it waits, by the strategy of its home. */
static void add_wait(const struct ap_memory *m, const struct priced_wait *w, int n_home,
                     const struct asked *asked, const int *choice, double *wait)
{
    for (int t = asked->first; t < asked->last; t++) {
        const double *cost = w->cost + (t - w->first) * n_home;
        const double *over = w->over + (t - w->first) * n_home;
        const bool passes =
            t > asked->first && !copy_asks(m, &m->copy[w->copy], w->later, t, choice);
        for (int h = 0; h < n_home; h++)
            wait[h] += cost[h] + (passes ? over[h] : 0);
    }
}

/* Adds what copy i of the set costs with each strategy of the home: kept, or again. */
static void add_copy(const struct ap_memory *m, const struct priced_set *set, int i,
                     const int *choice, double weight, double *once, double *twice)
{
    const int copy = set->first + i, n_home = m->problem->n_strategies[set->home];
    const double *made = home_edge(m, copy)->cost;
    struct asked asked[2];
    int64_t again = 0;

    ask(m, copy, choice, asked);
    for (int k = 0; k < 2; k++)
        if (asked[k].any)
            again += asked[k].times;
    if (again == 0)
        return;
    memset(set->spare, 0, (size_t)n_home * sizeof *set->spare);
    for (int k = 0; k < 2; k++)
        if (asked[k].any && set->wait[2 * i + k])
            add_wait(m, set->wait[2 * i + k], n_home, &asked[k], choice, set->spare);
    for (int h = 0; h < n_home; h++) {
        if (is_forbidden(made[2 * h + 1])) {
            once[h] = twice[h] = AP_FORBIDDEN;
            continue;
        }
        const bool both = asked[0].any && asked[1].any && set->kept[i];
        const double wait = set->spare[h];
        once[h] += wait + weight * made[2 * h + 1] + (both ? set->kept[i][h] : 0);
        twice[h] += wait + weight * made[2 * h + 1] * (double)again;
    }
}

/* A strategy of each user for a state, in choice. */
static void decode(const struct priced_set *set, int state, int *choice)
{
    for (int u = set->n_users - 1; u >= 0; u--) {
        const struct set_user *user = &set->user[u];
        choice[user->var] = user->one[state % user->n_needs];
        state /= user->n_needs;
    }
}

int priced_set_state(const struct priced_set *set, const int *choice)
{
    int state = 0;

    for (int u = 0; u < set->n_users; u++)
        state =
            state * set->user[u].n_needs + set->user[u].need[choice[set->user[u].var]];
    return state;
}

static double *price_home(struct ap_arena *arena, const struct ap_memory *m,
                          double weight, struct priced_set *set,
                          const struct ap_problem_edge *edges, int *choice)
{
    const int n_home = m->problem->n_strategies[set->home], n = set->n_states;
    double *table = AP_NEW_N(arena, (int64_t)n_home * n, double);
    double *once = AP_NEW_N(arena, n_home, double);
    double *twice = AP_NEW_N(arena, n_home, double);

    set->spare = AP_NEW_N(arena, n_home, double);
    set->twice = AP_NEW_N(arena, (int64_t)n_home * n, bool);
    for (int state = 0; state < n; state++) {
        memset(once, 0, (size_t)n_home * sizeof *once);
        memset(twice, 0, (size_t)n_home * sizeof *twice);
        decode(set, state, choice);
        for (int i = 0; i < set->n; i++)
            add_copy(m, set, i, choice, weight, once, twice);
        for (int h = 0; h < n_home; h++) {
            double *cell = &table[h * n + state];
            set->twice[h * n + state] = twice[h] < once[h];
            *cell = fmin(once[h], twice[h]);
            for (int u = 0; u < set->n_users; u++) {
                const struct set_user *user = &set->user[u];
                const int n_s = m->problem->n_strategies[user->var];
                for (int k = 0; k < user->n_between; k++)
                    *cell += edges[user->between[k]].cost[h * n_s + choice[user->var]];
            }
            *cell = fmin(*cell, AP_FORBIDDEN);
        }
    }
    return table;
}

/* Which states have the need of each of the user's strategies. */
static double *tell_needs(struct ap_arena *arena, const struct ap_memory *m,
                          const struct priced_set *set, int u)
{
    const struct set_user *user = &set->user[u];
    const int n_s = m->problem->n_strategies[user->var];
    double *table = AP_NEW_N(arena, (int64_t)set->n_states * n_s, double);
    int step = 1;

    for (int k = u + 1; k < set->n_users; k++)
        step *= set->user[k].n_needs;
    for (int state = 0; state < set->n_states; state++)
        for (int s = 0; s < n_s; s++)
            if (user->need[s] != state / step % user->n_needs)
                table[state * n_s + s] = AP_FORBIDDEN;
    return table;
}

int priced_sets_close(struct ap_arena *arena, const struct ap_memory *m, double weight,
                      double cells, const struct priced_problem *of,
                      struct ap_problem_edge *edges, int n_edges)
{
    struct priced_set *sets = of->set;
    const int n_sets = of->n_sets;
    bool *gone = AP_NEW_N(arena, n_edges + 1, bool);
    int *choice = AP_NEW_N(arena, m->n_vars + 1, int), n = 0;

    list_between(arena, m, sets, n_sets, edges, n_edges);
    for (int i = 0; i < n_sets; i++)
        for (int u = 0; u < sets[i].n_users; u++) {
            struct set_user *user = &sets[i].user[u];
            if (user->n_between > 0 && !refine(arena, m, &sets[i], user, edges, &cells))
                user->n_between = 0;
            for (int k = 0; k < user->n_between; k++)
                gone[user->between[k]] = true;
        }
    struct ap_problem_edge *new = AP_NEW_N(arena, n_edges + 1, struct ap_problem_edge);
    memcpy(new, edges, (size_t)n_edges * sizeof *edges);
    for (int e = 0; e < n_edges; e++)
        if (!gone[e])
            edges[n++] = new[e];
    for (int i = 0; i < n_sets; i++) {
        struct priced_set *set = &sets[i];
        set->n_states = 1;
        for (int u = 0; u < set->n_users; u++)
            set->n_states *= set->user[u].n_needs;
        edges[n++] = (struct ap_problem_edge){
            set->home, set->node, price_home(arena, m, weight, set, new, choice)};
        for (int u = 0; u < set->n_users; u++)
            edges[n++] = (struct ap_problem_edge){set->node, set->user[u].var,
                                                  tell_needs(arena, m, set, u)};
    }
    return n;
}
