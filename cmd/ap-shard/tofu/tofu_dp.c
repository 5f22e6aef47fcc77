/*
 * Problem: give each of many variables one of its few states so that the sum of tables
 * over a few variables each is least.
 *
 * Idea: Tofu's dynamic program goes over the levels of a breadth-first search from the
 * first output and keeps the best cost for every combination of schemes in a level. Here
 * the same is done one variable at a time: all tables over a variable are replaced by one
 * table over their other variables, in which the variable has its best state. Eliminating
 * a whole level is one step of Tofu's program; eliminating single variables keeps tables
 * small where a level is wide but its variables have few neighbours. The variable with
 * the smallest new table goes first (so variables with one or two neighbours go before
 * all others), among equals the one at the deepest level, then the lowest. While no table
 * would exceed max_table the answer is optimal; otherwise, of the variable and its
 * neighbours, the one with the most tables is fixed to the state for which the sum of its
 * tables' minima is least.
 *
 * Why not libcommon/solve/solve_elim.c, which eliminates nodes of a selection problem:
 * that one eliminates within a limit on the cost, in an order without levels, and gives
 * up where tables grow too large. Tofu's program has no limit at first, must choose among
 * equal cuts by level (they decide the cost of the next cut), must always answer, and
 * reports the sizes of its tables.
 *
 * Cost: the sum of the tables' sizes; linear in the variables where they know few others.
 * Source: Wang, Huang, Li, "Unifying Data, Model and Hybrid Parallelism in Deep Learning
 * via Tensor Tiling", one-cut tiling; elimination of variables after
 * Dechter, "Bucket elimination".
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/heap.h"
#include "tofu/tofu.h"

enum { MAX_TABLES = 64 }; /* a variable with more tables waits until it has fewer */

void tofu_dp_init(struct tofu_dp *dp, struct ap_arena *arena, int n_vars,
                  const int *n_states)
{
    *dp = (struct tofu_dp){
        .arena = arena, .n_vars = n_vars, .n_states = n_states, .max_table = 1 << 20};
    dp->unary = AP_NEW_N(arena, n_vars, double *);
    dp->of = AP_NEW_N(arena, n_vars, struct tofu_list);
    for (int v = 0; v < n_vars; v++)
        dp->unary[v] = AP_NEW_N(arena, n_states[v], double);
}

static bool same_scope(const struct tofu_table *t, int n, const int *var)
{
    return !t->dead && t->n == n && memcmp(t->var, var, (size_t)n * sizeof *var) == 0;
}

/* A table over exactly these variables, -1 for none. */
static int find_table(const struct tofu_dp *dp, int n, const int *var)
{
    const struct tofu_list *l = &dp->of[var[0]];

    for (int i = 1; i < n; i++)
        if (dp->of[var[i]].n < l->n)
            l = &dp->of[var[i]];
    for (int i = l->n - 1; i >= 0 && i >= l->n - MAX_TABLES; i--)
        if (same_scope(&dp->tables[l->table[i]], n, var))
            return l->table[i];
    return -1;
}

static void list_push(struct tofu_list *l, int table)
{
    AP_ROOM(l->table, l->n, l->cap);
    l->table[l->n++] = table;
    l->n_alive++;
}

/* Takes var and v, which lie in the arena. */
static void add_table(struct tofu_dp *dp, int n, int *var, double *v)
{
    int64_t size = 1;
    for (int i = 0; i < n; i++)
        size *= dp->n_states[var[i]];
    if (size > dp->largest)
        dp->largest = size;
    if (n == 0) {
        dp->constant += v[0];
        return;
    }
    int old = n == 1 ? -1 : find_table(dp, n, var);
    double *to = n == 1 ? dp->unary[var[0]] : old >= 0 ? dp->tables[old].v : NULL;
    if (to) {
        for (int64_t i = 0; i < size; i++)
            to[i] += v[i];
        return;
    }
    AP_ROOM(dp->tables, dp->n_tables, dp->cap_tables);
    for (int i = 0; i < n; i++)
        list_push(&dp->of[var[i]], dp->n_tables);
    dp->tables[dp->n_tables++] = (struct tofu_table){.n = n, .var = var, .v = v};
}

void tofu_dp_add(struct tofu_dp *dp, int x, int y, const double *cost)
{
    int nx = dp->n_states[x], ny = dp->n_states[y];
    int *var = AP_NEW_N(dp->arena, 2, int);
    double *v = AP_NEW_N(dp->arena, nx * ny, double);

    assert(x != y);
    var[0] = x < y ? x : y;
    var[1] = x < y ? y : x;
    for (int i = 0; i < nx; i++)
        for (int j = 0; j < ny; j++)
            v[x < y ? i * ny + j : j * nx + i] = cost[i * ny + j];
    add_table(dp, 2, var, v);
}

/* ---- levels ---- */

static int *find_levels(const struct tofu_dp *dp, int root)
{
    int *level = AP_NEW_N(dp->arena, dp->n_vars, int);
    int *queue = AP_NEW_N(dp->arena, dp->n_vars, int);
    int head = 0, n = 0;

    for (int v = 0; v < dp->n_vars; v++)
        level[v] = -1;
    for (int start = -1; start < dp->n_vars; start++) {
        int first = start < 0 ? root : start;
        if (first < 0 || level[first] >= 0)
            continue;
        level[first] = 0;
        queue[n++] = first;
        while (head < n) {
            int v = queue[head++];
            for (int i = 0; i < dp->of[v].n; i++) {
                const struct tofu_table *t = &dp->tables[dp->of[v].table[i]];
                for (int k = 0; k < t->n; k++) {
                    if (level[t->var[k]] >= 0)
                        continue;
                    level[t->var[k]] = level[v] + 1;
                    queue[n++] = t->var[k];
                }
            }
        }
    }
    return level;
}

/* ---- which variable goes next ---- */

struct entry {
    int64_t size; /* of the table that it would leave times its own states */
    int level, var, stamp;
};

static bool before(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;
    if (a->size != b->size)
        return a->size < b->size;
    if (a->level != b->level)
        return a->level > b->level;
    return a->var < b->var;
}

/* ---- one variable ---- */

/* The best state of an eliminated variable, given the others. */
struct record {
    int var, n;
    int *scope;
    uint8_t *best;
};

struct run {
    struct tofu_dp *dp;
    int *level, *stamp, *mark, mark_now;
    bool *gone;
    struct ap_heap heap;
    int n_records;
    struct record *records;
    uint8_t *state;
};

static void compact(const struct tofu_dp *dp, struct tofu_list *l)
{
    int n = 0;
    for (int i = 0; i < l->n; i++)
        if (!dp->tables[l->table[i]].dead)
            l->table[n++] = l->table[i];
    l->n = n;
}

static int by_id(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* The other variables of v's tables; their number; *size: entries, v's states included.
   scope NULL: only counts. */
static int gather(struct run *r, int v, int *scope, int64_t *size)
{
    struct tofu_dp *dp = r->dp;
    struct tofu_list *l = &dp->of[v];
    int n = 0, mark = ++r->mark_now;

    compact(dp, l);
    *size = dp->n_states[v];
    r->mark[v] = mark;
    for (int i = 0; i < l->n; i++) {
        const struct tofu_table *t = &dp->tables[l->table[i]];
        for (int k = 0; k < t->n; k++) {
            int u = t->var[k];
            if (r->mark[u] == mark)
                continue;
            r->mark[u] = mark;
            *size = ap_mul64(*size, dp->n_states[u]);
            if (scope)
                scope[n] = u;
            n++;
        }
    }
    if (scope)
        qsort(scope, (size_t)n, sizeof *scope, by_id);
    return n;
}

static void requeue(struct run *r, int v)
{
    struct entry e = {.size = INT64_MAX, .level = r->level[v], .var = v};

    e.stamp = ++r->stamp[v];
    if (r->dp->of[v].n_alive <= MAX_TABLES)
        gather(r, v, NULL, &e.size);
    ap_heap_push(&r->heap, &e);
}

static void kill_table(struct tofu_dp *dp, int table)
{
    struct tofu_table *t = &dp->tables[table];
    t->dead = true;
    for (int k = 0; k < t->n; k++)
        dp->of[t->var[k]].n_alive--;
}

/* Tables of a variable as they are walked through by counting its neighbours up. */
struct walk {
    const double *v;
    int64_t at;
    int64_t own;   /* step of the variable itself */
    int64_t *step; /* per variable of the scope */
};

static void start_walks(struct tofu_dp *dp, int v, int n, const int *scope,
                        struct walk *walks)
{
    const struct tofu_list *l = &dp->of[v];

    for (int i = 0; i < l->n; i++) {
        const struct tofu_table *t = &dp->tables[l->table[i]];
        walks[i] = (struct walk){.v = t->v, .step = AP_NEW_N(dp->arena, n, int64_t)};
        int64_t step = 1;
        for (int k = t->n - 1; k >= 0; k--) {
            if (t->var[k] == v)
                walks[i].own = step;
            for (int j = 0; j < n; j++)
                if (scope[j] == t->var[k])
                    walks[i].step[j] = step;
            step *= dp->n_states[t->var[k]];
        }
    }
}

static double best_state(const struct tofu_dp *dp, int v, const struct walk *walks,
                         uint8_t *best)
{
    double least = INFINITY;

    for (int s = 0; s < dp->n_states[v]; s++) {
        double sum = dp->unary[v][s];
        for (int i = 0; i < dp->of[v].n; i++)
            sum += walks[i].v[walks[i].at + s * walks[i].own];
        if (sum < least || s == 0) {
            least = sum;
            *best = (uint8_t)s;
        }
    }
    return least;
}

static void count_up(const struct tofu_dp *dp, int n, const int *scope, int *digit,
                     struct walk *walks, int n_walks)
{
    for (int j = n - 1; j >= 0; j--) {
        bool carry = ++digit[j] == dp->n_states[scope[j]];
        int64_t moved = carry ? 1 - dp->n_states[scope[j]] : 1;
        for (int i = 0; i < n_walks; i++)
            walks[i].at += moved * walks[i].step[j];
        if (!carry)
            break;
        digit[j] = 0;
    }
}

static void eliminate(struct run *r, int v)
{
    struct tofu_dp *dp = r->dp;
    int64_t size;
    int n = gather(r, v, NULL, &size);
    int *scope = AP_NEW_N(dp->arena, n, int);
    gather(r, v, scope, &size);
    size /= dp->n_states[v];

    double *cost = AP_NEW_N(dp->arena, size, double);
    struct record rec = {v, n, scope, AP_NEW_N(dp->arena, size, uint8_t)};
    int n_walks = dp->of[v].n;
    struct walk *walks = AP_NEW_N(dp->arena, n_walks, struct walk);
    int *digit = AP_NEW_N(dp->arena, n, int);

    start_walks(dp, v, n, scope, walks);
    for (int64_t i = 0; i < size; i++) {
        cost[i] = best_state(dp, v, walks, &rec.best[i]);
        count_up(dp, n, scope, digit, walks, n_walks);
    }
    for (int i = 0; i < n_walks; i++)
        kill_table(dp, dp->of[v].table[i]);
    r->gone[v] = true;
    r->records[r->n_records++] = rec;
    add_table(dp, n, scope, cost);
    for (int i = 0; i < n; i++)
        requeue(r, scope[i]);
}

/* ---- a variable with too many neighbours ---- */

/* Adds the minimum of table t with v in state s to sum[s]. */
static void add_minima(const struct tofu_dp *dp, const struct tofu_table *t, int v,
                       double *sum, double *least)
{
    int64_t size = 1, step = 1;
    for (int k = t->n - 1; k >= 0; k--) {
        if (t->var[k] == v)
            step = size;
        size *= dp->n_states[t->var[k]];
    }
    for (int s = 0; s < dp->n_states[v]; s++)
        least[s] = INFINITY;
    for (int64_t i = 0; i < size; i++) {
        int s = (int)(i / step % dp->n_states[v]);
        least[s] = fmin(least[s], t->v[i]);
    }
    for (int s = 0; s < dp->n_states[v]; s++)
        sum[s] += least[s];
}

/* Table t without v, which has state s. */
static void restrict_table(struct tofu_dp *dp, const struct tofu_table *t, int v, int s)
{
    int64_t size = 1, step = 1, own = dp->n_states[v], n = 0;
    int *var = AP_NEW_N(dp->arena, t->n, int), m = 0;

    for (int k = t->n - 1; k >= 0; k--) {
        if (t->var[k] == v)
            step = size;
        size *= dp->n_states[t->var[k]];
    }
    for (int k = 0; k < t->n; k++)
        if (t->var[k] != v)
            var[m++] = t->var[k];
    double *cost = AP_NEW_N(dp->arena, size / own, double);
    for (int64_t i = 0; i < size; i++)
        if (i / step % own == s)
            cost[n++] = t->v[i];
    add_table(dp, m, var, cost);
}

static void fix(struct run *r, int v)
{
    struct tofu_dp *dp = r->dp;
    double sum[256], least[256];
    int best = 0;
    int64_t size;
    int n = gather(r, v, NULL, &size);
    int *scope = AP_NEW_N(dp->arena, n, int);

    gather(r, v, scope, &size);
    for (int s = 0; s < dp->n_states[v]; s++)
        sum[s] = dp->unary[v][s];
    for (int i = 0; i < dp->of[v].n; i++)
        add_minima(dp, &dp->tables[dp->of[v].table[i]], v, sum, least);
    for (int s = 1; s < dp->n_states[v]; s++)
        if (sum[s] < sum[best])
            best = s;
    dp->constant += dp->unary[v][best];
    r->state[v] = (uint8_t)best;
    r->gone[v] = true;
    dp->n_fixed++;
    int n_tables = dp->of[v].n;
    for (int i = 0; i < n_tables; i++) {
        struct tofu_table t = dp->tables[dp->of[v].table[i]];
        kill_table(dp, dp->of[v].table[i]);
        restrict_table(dp, &t, v, best);
    }
    for (int i = 0; i < n; i++)
        requeue(r, scope[i]);
}

/* Of v and its neighbours, the variable with most tables. */
static int most_tables(struct run *r, int v)
{
    const struct tofu_list *of = r->dp->of;
    int64_t size;
    int best = v;

    if (of[v].n_alive > MAX_TABLES)
        return v;
    int n = gather(r, v, NULL, &size);
    int *scope = AP_NEW_N(r->dp->arena, n, int);
    gather(r, v, scope, &size);
    for (int i = 0; i < n; i++)
        if (of[scope[i]].n_alive > of[best].n_alive)
            best = scope[i];
    return best;
}

/* ---- all together ---- */

static void look_up(const struct tofu_dp *dp, const struct record *rec, uint8_t *state)
{
    int64_t at = 0;
    for (int i = 0; i < rec->n; i++)
        at = at * dp->n_states[rec->scope[i]] + state[rec->scope[i]];
    state[rec->var] = rec->best[at];
}

void tofu_dp_solve(struct tofu_dp *dp, int root, uint8_t *state)
{
    struct run r = {.dp = dp,
                    .level = find_levels(dp, root),
                    .stamp = AP_NEW_N(dp->arena, dp->n_vars, int),
                    .heap = {.size = sizeof(struct entry), .before = before},
                    .mark = AP_NEW_N(dp->arena, dp->n_vars, int),
                    .gone = AP_NEW_N(dp->arena, dp->n_vars, bool),
                    .records = AP_NEW_N(dp->arena, dp->n_vars, struct record),
                    .state = state};

    for (int v = 0; v < dp->n_vars; v++)
        requeue(&r, v);
    for (struct entry e; ap_heap_pop(&r.heap, &e);) {
        if (r.gone[e.var] || e.stamp != r.stamp[e.var])
            continue;
        if (e.size <= dp->max_table) {
            eliminate(&r, e.var);
        } else {
            int v = most_tables(&r, e.var);
            fix(&r, v);
            if (v != e.var)
                ap_heap_push(&r.heap, &e); /* void if fix has queued it anew */
        }
    }
    for (int i = r.n_records - 1; i >= 0; i--)
        look_up(dp, &r.records[i], state);
    for (int v = 0; v < dp->n_vars; v++)
        free(dp->of[v].table);
    free(dp->tables);
    ap_heap_free(&r.heap);
}
