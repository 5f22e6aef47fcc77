/*
 * New groups of marked nodes.
 *
 * Problem: members of a kernel have different shapes and stand apart; a group that runs
 * as one kernel has one of three forms (kernel_form.h), and groups must stay convex.
 * Idea: the marked nodes of one kernel that the same stretch of the list runs are a
 * *unit*. Of a unit,
 *
 *   1. members are of *classes*: those with as many elements as the operand of a reduce
 *      over trailing dimensions, and those with one element for each of its rows, are one
 *      class (ROWS); other numbers of elements are a class each (PASS); reductions of
 *      another kind, and operators that fit no kernel, are alone;
 *   2. level(v) = max over operands u of level(u) + (0 where v reads u in its own place,
 *      within one class, else 1), and 1 more after what is not of the unit but depends
 *      on it. No path leaves the members of one class and level and comes back: those
 * that an edge joins, or a value from outside that they read, are a group. What is made
 *      of values from outside alone rises to its users;
 *   3. reductions of another kind become groups after the others (COLS): what leads to
 *      their operands from values that are in memory anyway is computed again in them,
 *      unless that reads more than to write the operand and to read it;
 *   4. so are other values that a group reads of another one of its unit, and scalars,
 *      iotas and what is made of constants alone.
 *
 * Cost: O(nodes + edges) per unit and the stretch of the list that it spans, and the
 * copies.
 */
#include "program/kernel_units.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/union_find.h"
#include "program/kernel_form.h"

enum { NONE = -1 };

/* Operators that are computed again for one that reads them, at most. */
#define MOST_COPIES 64

/* Classes of a unit's members; from FIRST on: by numbers of elements. */
enum { ALONE, COLUMNS, SCALAR, FIRST };

/* A number of elements and the class that it is of. */
struct kernel_count {
    int64_t elems;
    int class;
    int64_t rows; /* of the class, 0: it has no rows */
};

static const struct ap_node *at(const struct kernels *k, int v)
{
    return kernels_node(k, v);
}

static int64_t elems(const struct kernels *k, int v)
{
    return ap_shape_elems(&at(k, v)->shape);
}

static bool is_elementwise(const struct ap_node *n)
{
    return ap_ops[n->op].class == AP_CLASS_ELEMENTWISE;
}

/* ---- units ---- */

static void find_runs(struct kernels *k)
{
    const struct ap_program *prog = k->prog;
    int run = 0, last = NONE; /* of a group with nodes */

    for (int i = 0; i < k->g->n_nodes; i++) {
        const int group = at(k, i)->group;
        if (last != NONE && group != last &&
            (prog->turn[group] != prog->turn[last] ||
             kernels_stretch(prog, group) != kernels_stretch(prog, last)))
            run++;
        k->run[group] = run;
        last = group;
    }
}

/* Scalar constants, iotas and what is made of such, wherever it stands: how many
 * operators stand one after the other, 0 for another node, or if they are many. */
static uint8_t count_constant(const struct kernels *k, int v)
{
    const struct ap_node *n = at(k, v);
    const bool takes = ap_kernel_takes(k->g, v);
    int longest = 0;

    if (n->op == AP_OP_CONSTANT)
        return takes;
    if (n->op == AP_OP_IOTA)
        return takes && !(n->attrs->global &&
                          ap_layout_per_microbatch(&k->prog->mesh, &n->attrs->layout));
    if (!takes || n->attrs->attention || n->n_in == 0 ||
        (!is_elementwise(n) && n->op != AP_OP_BROADCAST))
        return 0;
    for (int i = 0; i < n->n_in; i++) {
        const int in = n->in[i];
        if (!k->constant[in] || (n->op == AP_OP_BROADCAST && elems(k, in) != 1))
            return 0;
        longest = k->constant[in] > longest ? k->constant[in] : longest;
    }
    return (uint8_t)(longest < MOST_COPIES ? longest + 1 : 0);
}

static bool is_marked(const struct kernels *k, int v)
{
    const struct ap_node *n = at(k, v);
    return n->attrs->kernel > 0 && !n->attrs->attention && n->shape.dtype != AP_TUPLE &&
           ap_ops[n->op].class != AP_CLASS_LEAF && ap_shape_elems(&n->shape) > 0 &&
           (ap_kernel_takes(k->g, v) || n->op == AP_OP_REDUCE ||
            ap_ops[n->op].class == AP_CLASS_MOVE);
}

/* A marked node, by what its unit is. */
struct marked {
    int64_t kernel;
    int run, node;
};

static int by_unit(const void *pa, const void *pb)
{
    const struct marked *a = pa, *b = pb;
    if (a->run != b->run)
        return a->run < b->run ? -1 : 1;
    if (a->kernel != b->kernel)
        return a->kernel < b->kernel ? -1 : 1;
    return (a->node > b->node) - (a->node < b->node);
}

static void find_units(struct kernels *k)
{
    struct marked *list = AP_NEW_N(k->arena, k->g->n_nodes + 1, struct marked);
    int *member = AP_NEW_N(k->arena, k->g->n_nodes + 1, int), n = 0;

    for (int v = 0; v < k->g->n_nodes; v++) {
        k->constant[v] = count_constant(k, v);
        k->unit_of[v] = NONE;
        if (is_marked(k, v) && !(k->constant[v] && at(k, v)->shape.rank == 0))
            list[n++] =
                (struct marked){at(k, v)->attrs->kernel, k->run[at(k, v)->group], v};
    }
    qsort(list, (size_t)n, sizeof *list, by_unit);
    for (int lo = 0, hi; lo < n; lo = hi) {
        for (hi = lo;
             hi < n && list[hi].kernel == list[lo].kernel && list[hi].run == list[lo].run;
             hi++) {
            member[hi] = list[hi].node;
            k->unit_of[list[hi].node] = k->n_units;
        }
        AP_ROOM_IN(k->arena, k->unit, k->n_units, k->cap_units);
        k->unit[k->n_units++] = (struct kernel_unit){.kernel = list[lo].kernel,
                                                     .run = list[lo].run,
                                                     .n = hi - lo,
                                                     .member = member + lo};
    }
}

/* ---- classes ---- */

static struct kernel_count *find_count(const struct kernels *k, int64_t n)
{
    for (int i = 0; i < k->n_counts; i++)
        if (k->counts[i].elems == n)
            return &k->counts[i];
    return NULL;
}

static int add_count(struct kernels *k, int64_t n, int class, int64_t rows)
{
    k->counts[k->n_counts++] = (struct kernel_count){n, class, rows};
    return class;
}

/* Numbers of elements that reduces over trailing dimensions lead from and to; those of
 * the largest operands first. */
static void find_rows(struct kernels *k, const struct kernel_unit *unit)
{
    int64_t below = INT64_MAX;
    int n_classes = FIRST;

    k->n_counts = 0;
    for (;;) {
        int best = NONE;
        int64_t most = 0;
        for (int i = 0; i < unit->n; i++) {
            const int v = unit->member[i];
            const int64_t from = at(k, v)->n_in ? elems(k, at(k, v)->in[0]) : 0;
            if (from > most && from < below && ap_kernel_reduces(k->g, v) &&
                elems(k, v) > 1 && ap_kernel_row(k->g, v) > 1) {
                best = v;
                most = from;
            }
        }
        if (best == NONE)
            return;
        below = most;
        if (find_count(k, most) || find_count(k, elems(k, best)))
            continue;
        add_count(k, most, n_classes, elems(k, best));
        add_count(k, elems(k, best), n_classes++, elems(k, best));
    }
}

/* A transpose of what an attention makes: its kernel writes in any order. */
static bool orders_attention(const struct kernels *k, int v)
{
    return at(k, v)->op == AP_OP_TRANSPOSE && at(k, at(k, v)->in[0])->attrs->attention;
}

static int class_of(struct kernels *k, int v)
{
    const int64_t n = elems(k, v);
    const struct kernel_count *c;

    if (ap_kernel_reduces(k->g, v)) {
        const int64_t from = elems(k, at(k, v)->in[0]);
        c = find_count(k, from);
        if (c && c->rows == n && from > n && ap_kernel_row(k->g, v) == from / n)
            return c->class;
        return COLUMNS;
    }
    if (!ap_kernel_takes(k->g, v) || orders_attention(k, v))
        return ALONE;
    if (n == 1)
        return is_elementwise(at(k, v)) ? SCALAR : ALONE;
    c = find_count(k, n);
    return c ? c->class : add_count(k, n, FIRST + k->n_counts, 0);
}

/* Whether v reads member u in its own place, or row. */
static bool reads_in_place(const struct kernels *k, int u, int v)
{
    const struct ap_node *n = at(k, v);

    if (k->class[u] == SCALAR)
        return k->class[v] != ALONE && k->class[v] != COLUMNS;
    if (k->class[u] < FIRST || k->class[u] != k->class[v] || n->op == AP_OP_TRANSPOSE ||
        n->op == AP_OP_SLICE)
        return false;
    if (n->op != AP_OP_BROADCAST)
        return true;
    return ap_kernel_spreads(k->g, u, v); /* of one class: rows, or as many elements */
}

/* ---- levels ---- */

static bool in_unit(const struct kernels *k, int v, int unit)
{
    return k->unit_of[v] == unit;
}

/* Levels of the unit's members; of others between them: of the last that they need. */
static void set_levels(struct kernels *k, int unit)
{
    const struct kernel_unit *u = &k->unit[unit];

    for (int v = u->member[0]; v <= u->member[u->n - 1]; v++) {
        const bool mine = in_unit(k, v, unit);
        k->tag[v] = mine ? 0 : NONE;
        k->late[v] = mine;
        for (int i = 0; i < at(k, v)->n_in; i++) {
            const int in = at(k, v)->in[i];
            if (in < u->member[0])
                continue;
            int above = k->tag[in];
            if (in_unit(k, in, unit))
                above += mine && !reads_in_place(k, in, v);
            else if (above != NONE)
                above += mine;
            k->tag[v] = above > k->tag[v] ? above : k->tag[v];
            k->late[v] &= above == NONE || (in_unit(k, in, unit) && k->late[in]);
        }
    }
}

static bool columns_alike(const struct kernels *k, int a, int b)
{
    const struct ap_node *p = at(k, a), *q = at(k, b);
    const struct ap_ints *x = &p->attrs->dimensions, *y = &q->attrs->dimensions;

    return ap_shape_same_dims(&at(k, p->in[0])->shape, &at(k, q->in[0])->shape) &&
           x->n == y->n && !memcmp(x->v, y->v, (size_t)x->n * sizeof *x->v);
}

/* The highest level of reductions like v that no user forbids. */
static int level_of_columns(const struct kernels *k, const struct kernel_unit *u, int v)
{
    int level = k->tag[v];

    for (int i = 0; i < u->n; i++) {
        const int w = u->member[i];
        if (k->class[w] == COLUMNS && k->tag[w] > level && columns_alike(k, v, w))
            level = k->tag[w];
    }
    return level;
}

/* What may come later does, if its users do. */
static void raise_levels(struct kernels *k, int unit)
{
    const struct kernel_unit *u = &k->unit[unit];
    const int last = u->member[u->n - 1];

    for (int v = last; v >= u->member[0]; v--) {
        const bool mine = in_unit(k, v, unit);
        int most = INT_MAX, inside = 0;
        for (int i = k->g->user_start[v]; i < k->g->user_start[v + 1]; i++) {
            const int w = k->g->users[i];
            if (w > last)
                continue;
            int limit = k->low[w];
            if (in_unit(k, w, unit)) {
                inside++;
                limit = k->tag[w] - (mine && !reads_in_place(k, v, w));
            } else if (mine && limit != INT_MAX) {
                limit--;
            }
            most = limit < most ? limit : most;
        }
        k->low[v] = most;
        if (!mine)
            continue;
        const int want = k->class[v] == COLUMNS ? level_of_columns(k, u, v)
                         : k->late[v] && inside ? most
                                                : k->tag[v];
        if (want > k->tag[v])
            k->tag[v] = want < most ? want : most;
    }
    for (int i = 0; i < u->n; i++)
        k->level[u->member[i]] = k->tag[u->member[i]];
}

/* ---- sets: the new groups ---- */

static int add_set(struct kernels *k, int unit, int v)
{
    const int group = at(k, v)->group;

    AP_ROOM_IN(k->arena, k->sets, k->n_sets, k->cap_sets);
    k->sets[k->n_sets] = (struct kernel_set){
        .run = k->run[group], .place = group, .unit = unit, .lead = v};
    return k->n_sets++;
}

static bool same_set(const struct kernels *k, int a, int b)
{
    return k->unit_of[a] == k->unit_of[b] && k->level[a] == k->level[b] &&
           k->class[a] == k->class[b] && k->class[a] >= FIRST && !k->name[a] &&
           !k->name[b];
}

/* Whether v only names its operand anew, and nobody in its set reads it. */
static bool is_name(const struct kernels *k, int v)
{
    if (at(k, v)->op != AP_OP_RESHAPE && at(k, v)->op != AP_OP_OPT_BARRIER)
        return false;
    for (int i = k->g->user_start[v]; i < k->g->user_start[v + 1]; i++)
        if (same_set(k, v, k->g->users[i]))
            return false;
    return true;
}

/* Rows' values of a set without a reduce are a set of their own, which the others read.
 */
static void split_rows(struct kernels *k, const struct kernel_unit *u)
{
    bool *reduces = AP_NEW_N(k->arena, k->n_sets + 1, bool);
    int *rows = AP_NEW_N(k->arena, k->n_sets + 1, int);
    int64_t *most = AP_NEW_N(k->arena, k->n_sets + 1, int64_t);

    for (int i = 0; i < u->n; i++) {
        const int v = u->member[i], s = k->set[v];
        reduces[s] |= at(k, v)->op == AP_OP_REDUCE;
        most[s] = elems(k, v) > most[s] ? elems(k, v) : most[s];
        rows[s] = NONE;
    }
    for (int i = 0; i < u->n; i++) {
        const int v = u->member[i], s = k->set[v];
        if (k->class[v] < FIRST || reduces[s] || elems(k, v) == most[s])
            continue;
        if (rows[s] == NONE)
            rows[s] = add_set(k, k->unit_of[v], v);
        k->set[v] = rows[s];
    }
}

/* Joins v to members of its class and level that it reads, or that read what it reads. */
static void join_set(struct kernels *k, int *up, int v)
{
    for (int i = 0; i < at(k, v)->n_in; i++) {
        const int in = at(k, v)->in[i];
        if (same_set(k, in, v)) {
            ap_sets_join(up, in, v);
            continue;
        }
        for (int b = k->g->user_start[in];
             elems(k, in) >= elems(k, v) && !k->constant[in] && k->g->users[b] < v; b++)
            if (same_set(k, k->g->users[b], v)) {
                ap_sets_join(up, k->g->users[b], v);
                break;
            }
    }
}

/* Members of one class and level that belong together are a set; names, scalars and
 * others are alone. Columns get theirs later. */
static void find_sets(struct kernels *k, int unit)
{
    const struct kernel_unit *u = &k->unit[unit];

    for (int i = u->n - 1; i >= 0; i--)
        k->name[u->member[i]] = is_name(k, u->member[i]);
    for (int i = 0; i < u->n; i++)
        if (k->class[u->member[i]] >= FIRST)
            join_set(k, k->up, u->member[i]);
    for (int i = 0; i < u->n; i++) {
        const int v = u->member[i], root = ap_sets_root(k->up, v);
        k->set[v] = root == v ? add_set(k, unit, v) : k->set[root];
        k->sets[k->set[v]].columns = k->class[v] == COLUMNS;
        k->sets[k->set[v]].alone = k->class[v] == ALONE || k->name[v];
    }
    split_rows(k, u);
}

/* ---- what is in memory ---- */

static void find_stored(struct kernels *k)
{
    for (int r = 0; r < k->g->n_results; r++)
        k->stored[k->g->results[r].node] = true;
    for (int v = 0; v < k->g->n_nodes; v++)
        for (int i = 0; i < at(k, v)->n_in; i++) {
            const int in = at(k, v)->in[i];
            if (k->unit_of[in] == NONE || k->unit_of[in] != k->unit_of[v])
                k->stored[in] = true;
        }
}

/* Whether member v, of another set, may be computed again in a set that reads it. */
static bool can_copy(const struct kernels *k, const struct kernel_set *s, int v)
{
    if (k->constant[v])
        return true;
    if (k->unit_of[v] == NONE || k->stored[v] || k->unit_of[v] != s->unit)
        return false;
    if (k->class[v] == SCALAR)
        return true;
    return k->class[v] >= FIRST && at(k, v)->op != AP_OP_REDUCE;
}

/* Whether node v of a set, or a copy of it, may have a copy of its operand beside it. */
bool ap_kernel_copies(const struct kernels *k, const struct kernel_set *s, int v, int in)
{
    const enum ap_op op = at(k, v)->op;

    if (!can_copy(k, s, in))
        return false;
    if (elems(k, in) == 1)
        return at(k, in)->shape.rank == 0 || op == AP_OP_BROADCAST ||
               is_elementwise(at(k, v));
    if (op == AP_OP_TRANSPOSE || op == AP_OP_SLICE)
        return false;
    if (op != AP_OP_BROADCAST)
        return true;
    return elems(k, v) == elems(k, in) && ap_kernel_spreads(k->g, in, v);
}

struct chain {
    int n;                /* operators */
    int n_from, cap_from; /* values in memory that it reads, as large as its end */
    int *from;
};

/* Follows what v is made of, for a copy of it in set s. */
static void follow(struct kernels *k, const struct kernel_set *s, int v, int64_t full,
                   struct chain *c)
{
    if (k->stamp[v] == k->n_stamps || c->n > MOST_COPIES)
        return;
    k->stamp[v] = k->n_stamps;
    c->n++;
    for (int i = 0; i < at(k, v)->n_in; i++) {
        const int in = at(k, v)->in[i];
        if (ap_kernel_copies(k, s, v, in)) {
            follow(k, s, in, full, c);
        } else if (k->stamp[in] != k->n_stamps) {
            k->stamp[in] = k->n_stamps;
            if (elems(k, in) < full)
                continue;
            AP_ROOM_IN(k->arena, c->from, c->n_from, c->cap_from);
            c->from[c->n_from++] = in;
        }
    }
}

/* What copies of v in set s need is stored. */
static void store_below(struct kernels *k, const struct kernel_set *s, int v)
{
    for (int i = 0; i < at(k, v)->n_in; i++) {
        const int in = at(k, v)->in[i];
        if (ap_kernel_copies(k, s, v, in)) {
            if (k->stamp[in] != k->n_stamps) {
                k->stamp[in] = k->n_stamps;
                store_below(k, s, in);
            }
        } else if (k->unit_of[in] != NONE) {
            k->stored[in] = true;
        }
    }
}

static bool has_from(const struct kernel_set *s, int v)
{
    for (int i = 0; i < s->n_from; i++)
        if (s->from[i] == v)
            return true;
    return false;
}

/* The set of reductions that v may join, which reads what c says, or part of it, or more;
 * NONE. */
static int set_to_join(const struct kernels *k, int v, const struct chain *c)
{
    const int own = k->set[v];

    for (int b = own - 1; b >= 0 && k->sets[b].unit == k->sets[own].unit; b--) {
        const struct kernel_set *s = &k->sets[b];
        int n = 0;
        if (!s->columns || s->n_from == 0 || !columns_alike(k, s->lead, v) ||
            k->level[s->lead] != k->level[v])
            continue;
        for (int i = 0; i < c->n_from; i++)
            n += has_from(s, c->from[i]);
        if (n == c->n_from || n == s->n_from)
            return b;
    }
    return NONE;
}

/* Bytes that a set has to read for a chain, beside what it reads anyway. */
static int64_t more_bytes(const struct kernels *k, const struct chain *c, int set)
{
    int64_t bytes = 0;

    for (int i = 0; i < c->n_from; i++)
        if (set == NONE || !has_from(&k->sets[set], c->from[i]))
            bytes = ap_add64(bytes, ap_shape_bytes(&at(k, c->from[i])->shape));
    return bytes;
}

/* What a copy of v's operand `in` in set s consists of. */
static void follow_copy(struct kernels *k, const struct kernel_set *s, int v, int in,
                        struct chain *c)
{
    k->n_stamps++;
    if (ap_kernel_copies(k, s, v, in))
        follow(k, s, in, elems(k, in), c);
}

/* Whether it takes less to store `in` than to compute it again in set `to`. */
static bool is_much(const struct kernels *k, const struct chain *c, int in, int to)
{
    return c->n > MOST_COPIES ||
           more_bytes(k, c, to) > ap_mul64(2, ap_shape_bytes(&at(k, in)->shape));
}

/* Decides whether the operand of a reduce is computed again for it, or stored, and which
 * others it runs with. */
static void join_columns(struct kernels *k, int v)
{
    const int own = k->set[v], in = at(k, v)->in[0];
    struct chain c = {0};

    follow_copy(k, &k->sets[own], v, in, &c);
    int to = set_to_join(k, v, &c);
    k->stored[in] |= is_much(k, &c, in, to);
    if (c.n == 0 || k->stored[in]) {
        c = (struct chain){.n_from = 1, .from = AP_NEW_N(k->arena, 1, int)};
        c.from[0] = in;
        to = set_to_join(k, v, &c);
    }
    k->n_stamps++;
    store_below(k, &k->sets[own], v);
    if (to == NONE || c.n_from > k->sets[to].n_from) {
        struct kernel_set *s = &k->sets[to == NONE ? own : to];
        s->n_from = c.n_from;
        s->from = c.from;
    }
    k->set[v] = to == NONE ? own : to;
}

/* Decides what is stored, and which reductions run together. */
static void find_reads(struct kernels *k, int unit)
{
    const struct kernel_unit *u = &k->unit[unit];

    for (int i = 0; i < u->n; i++) {
        const int v = u->member[i];
        if (k->class[v] == COLUMNS) {
            join_columns(k, v);
            continue;
        }
        for (int b = 0; b < at(k, v)->n_in; b++) {
            const int in = at(k, v)->in[b];
            struct chain c = {0};
            if (k->set[in] == k->set[v] || !in_unit(k, in, unit))
                continue;
            if (!k->sets[k->set[v]].alone)
                follow_copy(k, &k->sets[k->set[v]], v, in, &c);
            if (c.n == 0 || (!k->constant[in] && is_much(k, &c, in, NONE))) {
                k->stored[in] = true;
                continue;
            }
            k->n_stamps++;
            store_below(k, &k->sets[k->set[v]], in);
        }
    }
}

/* ---- the whole ---- */

/* Groups that stay, and operators of groups of which something was taken. */
static void find_rest(struct kernels *k)
{
    bool *taken = AP_NEW_N(k->arena, k->g->n_groups + 1, bool);
    int *set = AP_NEW_N(k->arena, k->g->n_groups + 1, int);

    for (int v = 0; v < k->g->n_nodes; v++)
        if (k->unit_of[v] != NONE)
            taken[at(k, v)->group] = true;
    for (int i = 0; i <= k->g->n_groups; i++)
        set[i] = NONE;
    for (int v = 0; v < k->g->n_nodes; v++) {
        int *of = &set[at(k, v)->group];
        if (k->unit_of[v] != NONE)
            continue;
        if (*of == NONE || taken[at(k, v)->group])
            *of = add_set(k, NONE, v);
        k->set[v] = *of;
    }
}

static void allocate(struct kernels *k)
{
    const int n = k->g->n_nodes + 1;

    k->run = AP_NEW_N(k->arena, k->g->n_groups + 1, int);
    k->unit_of = AP_NEW_N(k->arena, n, int);
    k->class = AP_NEW_N(k->arena, n, int);
    k->level = AP_NEW_N(k->arena, n, int);
    k->tag = AP_NEW_N(k->arena, n, int);
    k->low = AP_NEW_N(k->arena, n, int);
    k->set = AP_NEW_N(k->arena, n, int);
    k->stamp = AP_NEW_N(k->arena, n, int);
    k->up = ap_sets_new(k->arena, n);
    k->name = AP_NEW_N(k->arena, n, bool);
    k->stored = AP_NEW_N(k->arena, n, bool);
    k->constant = AP_NEW_N(k->arena, n, uint8_t);
    k->late = AP_NEW_N(k->arena, n, bool);
    k->counts = AP_NEW_N(k->arena, n + 1, struct kernel_count);
}

void ap_kernel_units_find(struct kernels *k, const bool *banned)
{
    allocate(k);
    find_runs(k);
    find_units(k);
    for (int v = 0; v < k->g->n_nodes; v++)
        if (k->unit_of[v] != NONE && banned[k->unit_of[v]])
            k->unit_of[v] = NONE;
    for (int u = 0; u < k->n_units; u++) {
        if (banned[u])
            continue;
        find_rows(k, &k->unit[u]);
        for (int i = 0; i < k->unit[u].n; i++)
            k->class[k->unit[u].member[i]] = class_of(k, k->unit[u].member[i]);
        set_levels(k, u);
        raise_levels(k, u);
        find_sets(k, u);
    }
    find_stored(k);
    for (int u = 0; u < k->n_units; u++)
        if (!banned[u])
            find_reads(k, u);
    find_rest(k);
}
