/*
 * A choice under way: what each node's strategies would cost with the neighbours as they
 * are, kept up to date edge by edge, so that an answer is a scan of one array; and what
 * is left of the memory, in a tree over the slots with the least of every subtree and
 * what was added to all of it (range add, range minimum, O(log slots)).
 */
#include "mem.h"

#include <string.h>

bool mem_spend(struct mem_budget *b, int64_t work)
{
    b->work += work;
    if (b->work_limit > 0 && b->work >= b->work_limit)
        b->out = true;
    if (b->until_sec > 0 && (b->ticks += 1 + (int)(work >> 12)) >= 16) {
        b->ticks = 0;
        b->out |= ap_now_sec() >= b->until_sec;
    }
    return b->out;
}

/* ---- memory ---- */

struct mem_tree mem_tree_new(struct ap_arena *arena, const struct mem_core *m)
{
    struct mem_tree t = {.size = 1};

    while (t.size < m->n_slots)
        t.size *= 2;
    t.least = AP_NEW_N(arena, 2 * t.size, int64_t);
    t.add = AP_NEW_N(arena, 2 * t.size, int64_t);
    mem_tree_reset(&t, m);
    return t;
}

void mem_tree_reset(struct mem_tree *t, const struct mem_core *m)
{
    memset(t->add, 0, 2 * (size_t)t->size * sizeof(int64_t));
    for (int i = 0; i < t->size; i++)
        t->least[t->size + i] = i < m->n_slots ? m->room[i] : INT64_MAX / 4;
    for (int i = t->size - 1; i > 0; i--) {
        int64_t a = t->least[2 * i], b = t->least[2 * i + 1];
        t->least[i] = a < b ? a : b;
    }
}

static inline void pull(struct mem_tree *t, int i)
{
    for (i /= 2; i > 0; i /= 2) {
        int64_t a = t->least[2 * i], b = t->least[2 * i + 1];
        t->least[i] = (a < b ? a : b) + t->add[i];
    }
}

/* least[i] includes add[i], but not what was added to the subtrees that hold i. */
void mem_tree_add(struct mem_tree *t, int lo, int hi, int64_t x)
{
    int l = lo + t->size, r = hi + t->size;

    for (; l < r; l /= 2, r /= 2) {
        if (l & 1) {
            t->least[l] += x;
            t->add[l++] += x;
        }
        if (r & 1) {
            t->least[--r] += x;
            t->add[r] += x;
        }
    }
    pull(t, lo + t->size);
    pull(t, hi - 1 + t->size);
}

static int64_t mem_tree_least(const struct mem_tree *t, int lo, int hi)
{
    int64_t left = INT64_MAX / 2, right = INT64_MAX / 2; /* of the nodes taken so far */
    int l = lo + t->size, r = hi + t->size - 1;

    /* l and r are inside: each step up adds what lies on the way */
    left = t->least[l];
    right = t->least[r];
    while (l / 2 != r / 2) {
        if (!(l & 1) && t->least[l + 1] < left)
            left = t->least[l + 1];
        if ((r & 1) && t->least[r - 1] < right)
            right = t->least[r - 1];
        l /= 2;
        r /= 2;
        left += t->add[l];
        right += t->add[r];
    }
    left = left < right ? left : right;
    for (l /= 2; l > 0; l /= 2)
        left += t->add[l];
    return left;
}

void mem_tree_take(struct mem_tree *t, const struct mem_core *m, int v, int s, int sign)
{
    for (int i = m->first[v]; i < m->first[v + 1]; i++) {
        const struct mem_part *part = &m->part[i];
        if (part->usage[s] > 0)
            mem_tree_add(t, part->lo, part->hi, sign * part->usage[s]);
    }
}

bool mem_tree_try(struct mem_tree *t, const struct mem_core *m, int v, int s)
{
    int n = m->first[v + 1] - m->first[v];

    for (int i = m->first[v]; i < m->first[v + 1]; i++) {
        const struct mem_part *part = &m->part[i];
        if (part->usage[s] > 0 && mem_tree_least(t, part->lo, part->hi) < part->usage[s])
            return false;
    }
    mem_tree_take(t, m, v, s, -1);
    if (n < 2 || mem_tree_all(t) >= 0)
        return true;
    mem_tree_take(t, m, v, s, 1);
    return false;
}

/* ---- states ---- */

double mem_cost(const struct mem_core *m, const int *choice)
{
    return sel_cost(m->core, choice);
}

struct mem_state *mem_state_new(struct ap_arena *arena, const struct mem_core *m)
{
    const struct sel_core *c = m->core;
    struct mem_state *st = AP_NEW(arena, struct mem_state);

    st->m = m;
    st->choice = AP_NEW_N(arena, c->n_nodes + 1, int);
    st->answer = AP_NEW_N(arena, c->n_nodes + 1, double *);
    st->forbidden = AP_NEW_N(arena, c->n_nodes + 1, int *);
    for (int v = 0; v < c->n_nodes; v++) {
        st->answer[v] = AP_NEW_N(arena, c->node[v].n_strategies, double);
        st->forbidden[v] = AP_NEW_N(arena, c->node[v].n_strategies, int);
    }
    st->left = mem_tree_new(arena, m);
    st->cost = INFINITY;
    return st;
}

void mem_state_set(struct mem_state *st, const int *choice)
{
    const struct sel_core *c = st->m->core;

    memcpy(st->choice, choice, (size_t)c->n_nodes * sizeof(int));
    mem_tree_reset(&st->left, st->m);
    for (int v = 0; v < c->n_nodes; v++) {
        const struct sel_node *node = &c->node[v];
        memcpy(st->answer[v], node->cost, (size_t)node->n_strategies * sizeof(double));
        memset(st->forbidden[v], 0, (size_t)node->n_strategies * sizeof(int));
        for (int k = 0; k < node->n_edges; k++) {
            const struct sel_edge *e = &c->edge[node->edges[k]];
            int t = choice[sel_other(e, v)];
            for (int s = 0; s < node->n_strategies; s++) {
                double x = e->a == v ? sel_base(e, s, t) : sel_base(e, t, s);
                if (x < INFINITY)
                    st->answer[v][s] += x;
                else
                    st->forbidden[v][s]++;
            }
        }
        mem_tree_take(&st->left, st->m, v, choice[v], -1);
    }
    st->cost = mem_cost(st->m, choice);
}

/* The neighbour w's answers, as cells change from x[] to y[], by stride. */
static inline void replace(double *restrict answer, int *restrict forbidden, int n,
                           const int *restrict class, const double *x, const double *y,
                           size_t stride)
{
    for (int t = 0; t < n; t++) {
        size_t at = (size_t) class[t] * stride;
        double old = x[at], new = y[at];
        if (old < INFINITY)
            answer[t] -= old;
        else
            forbidden[t]--;
        if (new < INFINITY)
            answer[t] += new;
        else
            forbidden[t]++;
    }
}

int64_t mem_state_change(struct mem_state *st, int v, int s)
{
    const struct sel_core *c = st->m->core;
    const struct sel_node *node = &c->node[v];
    int before = st->choice[v];
    int64_t work = 0;

    st->cost += st->answer[v][s] - st->answer[v][before];
    st->choice[v] = s;
    for (int k = 0; k < node->n_edges; k++) {
        const struct sel_edge *e = &c->edge[node->edges[k]];
        const struct sel_table *t = e->table;
        size_t width = (size_t)t->n_cols;
        if (e->a == v && e->row[s] != e->row[before])
            replace(st->answer[e->b], st->forbidden[e->b], c->node[e->b].n_strategies,
                    e->col, t->cost + (size_t)e->row[before] * width,
                    t->cost + (size_t)e->row[s] * width, 1);
        if (e->b == v && e->col[s] != e->col[before])
            replace(st->answer[e->a], st->forbidden[e->a], c->node[e->a].n_strategies,
                    e->row, t->cost + e->col[before], t->cost + e->col[s], width);
        work += c->node[sel_other(e, v)].n_strategies;
    }
    return work;
}
