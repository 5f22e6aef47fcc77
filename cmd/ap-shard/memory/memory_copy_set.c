/*
 * Problem: a copy that is kept from one phase to the next, made again or waits between
 * users costs what several users and the tensor's own layout say together; a node per
 * copy, with tables to each of them, lets every relaxation take the best of each.
 * Idea: one node for all copies of a tensor, whose strategies are what its users ask for
 * together: one need for each of them. Its table to the tensor's home has the exact price
 * of that, tables to the users say which need is theirs. What the home and a user cost
 * together (what is held between them) is part of it where a user's needs tell it.
 * Cost: the product of the users' needs per tensor; where that is too large there is no
 * such node.
 */
#include "memory/memory_copy_set.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/microbatch.h"

#define MOST_STATES 4000     /* of a node */
#define MOST_CELLS  150000   /* of one of its tables */
#define MOST_ALL    16000000 /* cells of all stars */

static bool is_forbidden(double cost)
{
    return cost >= AP_FORBIDDEN;
}

static const struct ap_problem_edge *home_edge(const struct mem_model *m, int copy)
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

/* Strategies with equal rows have the same need; those that are left out have none. */
static void name_needs(struct ap_arena *arena, struct star_user *u, const double *cells,
                       int n_strategies, int width)
{
    struct row *row = AP_NEW_N(arena, n_strategies, struct row);
    const size_t size = (size_t)width * sizeof *cells;
    int n = 0;

    u->need = AP_NEW_N(arena, n_strategies, int);
    u->one = AP_NEW_N(arena, n_strategies, int);
    u->n_needs = 0;
    for (int s = 0; s < n_strategies; s++) {
        u->need[s] = -1;
        if (!u->out || !u->out[s])
            row[n++] = (struct row){cells + (size_t)s * (size_t)width, size, s};
    }
    qsort(row, (size_t)n, sizeof *row, by_cells);
    for (int i = 0; i < n; i++) {
        if (i == 0 || memcmp(row[i].cell, row[i - 1].cell, size) != 0)
            u->one[u->n_needs++] = row[i].strategy;
        u->need[row[i].strategy] = u->n_needs - 1;
    }
}

static struct star_user *user_of(const struct mem_copy_set *star, int var)
{
    for (int u = 0; u < star->n_users; u++)
        if (star->user[u].var == var)
            return &star->user[u];
    return NULL;
}

static void find_needs(struct ap_arena *arena, const struct mem_model *m,
                       const struct mem_copy_set *star, struct star_user *user)
{
    const int n = m->problem->n_strategies[user->var], width = user->n_uses;
    double *cells = AP_NEW_N(arena, (int64_t)n * width, double);
    int k = 0;

    for (int c = star->first; c < star->first + star->n; c++)
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
static double count_cells(const struct mem_model *m, const struct mem_copy_set *star)
{
    const int *n_strategies = m->problem->n_strategies;
    double n = 1, most = n_strategies[star->home], sum = most;

    for (int u = 0; u < star->n_users; u++) {
        const double n_s = n_strategies[star->user[u].var];
        n *= star->user[u].n_needs;
        sum += n_s;
        most = n_s > most ? n_s : most;
    }
    return n < 1 || n > MOST_STATES || n * most > MOST_CELLS ? INFINITY : n * sum;
}

bool mem_copy_set_find(struct ap_arena *arena, const struct mem_model *m, int first,
                       int n, bool *const *left_out, double *cells,
                       struct mem_copy_set *out)
{
    int most = 0;

    *out = (struct mem_copy_set){.first = first, .n = n, .home = home_edge(m, first)->a};
    for (int c = first; c < first + n; c++)
        most += m->copy[c].n_uses;
    out->user = AP_NEW_N(arena, most + 1, struct star_user);
    for (int c = first; c < first + n; c++)
        for (int i = 0; i < m->copy[c].n_uses; i++) {
            const int var = m->problem->edges[m->copy[c].use[i].edge].b;
            struct star_user *user = user_of(out, var);
            if (!user) {
                user = &out->user[out->n_users++];
                user->var = var;
                user->out = left_out ? left_out[var] : NULL;
            }
            user->n_uses++;
        }
    for (int u = 0; u < out->n_users; u++)
        find_needs(arena, m, out, &out->user[u]);
    out->kept = AP_NEW_N(arena, n, double *);
    out->wait = AP_NEW_N(arena, 2 * n, const struct mem_wait *);
    const double more = count_cells(m, out);
    if (*cells + more > MOST_ALL)
        return false;
    *cells += more;
    return true;
}

/* ---- what lies between the home and a user ---- */

/* Needs are told apart by what strategies cost with the home; false: not worth it. */
static bool refine(struct ap_arena *arena, const struct mem_model *m,
                   const struct mem_copy_set *star, struct star_user *user,
                   const struct ap_problem_edge *edges, double *all)
{
    const int n_home = m->problem->n_strategies[star->home];
    const int n = m->problem->n_strategies[user->var];
    const int width = 1 + user->n_between * n_home;
    const struct star_user before = *user;
    const double now = count_cells(m, star);
    double *cells = AP_NEW_N(arena, (int64_t)n * width, double);

    for (int s = 0; s < n; s++) {
        cells[s * width] = user->need[s];
        for (int i = 0; i < user->n_between; i++)
            for (int h = 0; h < n_home; h++)
                cells[s * width + 1 + i * n_home + h] =
                    edges[user->between[i]].cost[h * n + s];
    }
    name_needs(arena, user, cells, n, width);
    const double more = count_cells(m, star) - now;
    if (*all + more <= MOST_ALL) {
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

static struct star_user *find_star(const struct homes *homes, struct mem_copy_set *stars,
                                   const struct ap_problem_edge *e)
{
    for (int i = homes->first[e->a]; i >= 0; i = homes->next[i]) {
        struct star_user *user = user_of(&stars[i], e->b);
        if (user)
            return user;
    }
    return NULL;
}

static void list_between(struct ap_arena *arena, const struct mem_model *m,
                         struct mem_copy_set *stars, int n_stars,
                         const struct ap_problem_edge *edges, int n_edges)
{
    struct homes homes = {AP_NEW_N(arena, m->n_vars, int),
                          AP_NEW_N(arena, n_stars + 1, int)};

    for (int v = 0; v < m->n_vars; v++)
        homes.first[v] = -1;
    for (int i = n_stars - 1; i >= 0; i--) {
        homes.next[i] = homes.first[stars[i].home];
        homes.first[stars[i].home] = i;
    }
    for (int count = 1; count >= 0; count--) /* how many, then which */
        for (int e = 0; e < n_edges; e++) {
            if (edges[e].a >= m->n_vars || edges[e].b >= m->n_vars)
                continue;
            struct star_user *user = find_star(&homes, stars, &edges[e]);
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
};

static void ask(const struct mem_model *m, int copy, const int *choice,
                struct asked asked[2])
{
    const struct mem_copy *c = &m->copy[copy];

    asked[0] = asked[1] = (struct asked){.first = c->n_turns, .last = -1};
    for (int i = 0; i < c->n_uses; i++) {
        const struct mem_use *use = &c->use[i];
        const struct ap_problem_edge *e = &m->problem->edges[use->edge];
        struct asked *a = &asked[use->later];
        if (!is_forbidden(e->cost[choice[e->b]]))
            continue;
        a->when = !a->any || use->when < a->when ? use->when : a->when;
        a->any = true;
        a->first = use->turn < a->first ? use->turn : a->first;
        a->last = use->turn > a->last ? use->turn : a->last;
    }
}

/* Adds what a copy of the star costs while it waits, by the strategy of its home. */
static void add_wait(const struct mem_model *m, const struct mem_wait *w, int n_home,
                     const struct asked *asked, const int *choice, double *wait)
{
    for (int t = asked->first; t < asked->last; t++) {
        const double *cost = w->cost + (t - w->first) * n_home;
        const double *over = w->over + (t - w->first) * n_home;
        const bool passes =
            t > asked->first && !mem_asks(m, &m->copy[w->copy], w->later, t, choice);
        for (int h = 0; h < n_home; h++)
            wait[h] += cost[h] + (passes ? over[h] : 0);
    }
}

/* Adds what copy i of the star costs with each strategy of the home: kept, or remade. */
static void add_copy(const struct mem_model *m, const struct mem_copy_set *star, int i,
                     const int *choice, double weight, double *once, double *twice)
{
    const int copy = star->first + i, n_home = m->problem->n_strategies[star->home];
    const double *made = home_edge(m, copy)->cost;
    struct asked asked[2];
    int64_t again = 0;

    ask(m, copy, choice, asked);
    for (int k = 0; k < 2; k++)
        if (asked[k].any)
            again += asked[k].when == AP_EACH ? m->copy[copy].n_each : 1;
    if (again == 0)
        return;
    memset(star->spare, 0, (size_t)n_home * sizeof *star->spare);
    for (int k = 0; k < 2; k++)
        if (asked[k].any && star->wait[2 * i + k])
            add_wait(m, star->wait[2 * i + k], n_home, &asked[k], choice, star->spare);
    for (int h = 0; h < n_home; h++) {
        if (is_forbidden(made[2 * h + 1])) {
            once[h] = twice[h] = AP_FORBIDDEN;
            continue;
        }
        const bool both = asked[0].any && asked[1].any && star->kept[i];
        const double wait = star->spare[h];
        once[h] += wait + weight * made[2 * h + 1] + (both ? star->kept[i][h] : 0);
        twice[h] += wait + weight * made[2 * h + 1] * (double)again;
    }
}

/* A strategy of each user for a state, in choice. */
static void decode(const struct mem_copy_set *star, int state, int *choice)
{
    for (int u = star->n_users - 1; u >= 0; u--) {
        const struct star_user *user = &star->user[u];
        choice[user->var] = user->one[state % user->n_needs];
        state /= user->n_needs;
    }
}

int mem_copy_set_state(const struct mem_copy_set *star, const int *choice)
{
    int state = 0;

    for (int u = 0; u < star->n_users; u++)
        state =
            state * star->user[u].n_needs + star->user[u].need[choice[star->user[u].var]];
    return state;
}

static double *price_home(struct ap_arena *arena, const struct mem_model *m,
                          double weight, struct mem_copy_set *star,
                          const struct ap_problem_edge *edges, int *choice)
{
    const int n_home = m->problem->n_strategies[star->home], n = star->n_states;
    double *table = AP_NEW_N(arena, (int64_t)n_home * n, double);
    double *once = AP_NEW_N(arena, n_home, double);
    double *twice = AP_NEW_N(arena, n_home, double);

    star->spare = AP_NEW_N(arena, n_home, double);
    star->twice = AP_NEW_N(arena, (int64_t)n_home * n, bool);
    for (int state = 0; state < n; state++) {
        memset(once, 0, (size_t)n_home * sizeof *once);
        memset(twice, 0, (size_t)n_home * sizeof *twice);
        decode(star, state, choice);
        for (int i = 0; i < star->n; i++)
            add_copy(m, star, i, choice, weight, once, twice);
        for (int h = 0; h < n_home; h++) {
            double *cell = &table[h * n + state];
            star->twice[h * n + state] = twice[h] < once[h];
            *cell = fmin(once[h], twice[h]);
            for (int u = 0; u < star->n_users; u++) {
                const struct star_user *user = &star->user[u];
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
static double *tell_needs(struct ap_arena *arena, const struct mem_model *m,
                          const struct mem_copy_set *star, int u)
{
    const struct star_user *user = &star->user[u];
    const int n_s = m->problem->n_strategies[user->var];
    double *table = AP_NEW_N(arena, (int64_t)star->n_states * n_s, double);
    int step = 1;

    for (int k = u + 1; k < star->n_users; k++)
        step *= star->user[k].n_needs;
    for (int state = 0; state < star->n_states; state++)
        for (int s = 0; s < n_s; s++)
            if (user->need[s] != state / step % user->n_needs)
                table[state * n_s + s] = AP_FORBIDDEN;
    return table;
}

int mem_copy_sets_close(struct ap_arena *arena, const struct mem_model *m, double weight,
                        double cells, struct mem_copy_set *stars, int n_stars,
                        struct ap_problem_edge *edges, int n_edges)
{
    bool *gone = AP_NEW_N(arena, n_edges + 1, bool);
    int *choice = AP_NEW_N(arena, m->n_vars + 1, int), n = 0;

    list_between(arena, m, stars, n_stars, edges, n_edges);
    for (int i = 0; i < n_stars; i++)
        for (int u = 0; u < stars[i].n_users; u++) {
            struct star_user *user = &stars[i].user[u];
            if (user->n_between > 0 && !refine(arena, m, &stars[i], user, edges, &cells))
                user->n_between = 0;
            for (int k = 0; k < user->n_between; k++)
                gone[user->between[k]] = true;
        }
    struct ap_problem_edge *new = AP_NEW_N(arena, n_edges + 1, struct ap_problem_edge);
    memcpy(new, edges, (size_t)n_edges * sizeof *edges);
    for (int e = 0; e < n_edges; e++)
        if (!gone[e])
            edges[n++] = new[e];
    for (int i = 0; i < n_stars; i++) {
        struct mem_copy_set *star = &stars[i];
        star->n_states = 1;
        for (int u = 0; u < star->n_users; u++)
            star->n_states *= star->user[u].n_needs;
        edges[n++] = (struct ap_problem_edge){
            star->home, star->node, price_home(arena, m, weight, star, new, choice)};
        for (int u = 0; u < star->n_users; u++)
            edges[n++] = (struct ap_problem_edge){star->node, star->user[u].var,
                                                  tell_needs(arena, m, star, u)};
    }
    return n;
}
