/*
 * The best end of a layer among a range of cuts, see cut_tree.h.
 *
 * Problem: layers from one operator on that receive the same bytes end at a range of cuts
 * p. Among the cuts with the least sum after them, the one with the least (p - first)² +
 * squares(p) is wanted. Where nothing heavy bounds the layers the ranges are as long as
 * the graph.
 *
 * Idea: a segment tree over cuts. A node keeps the cuts of its least sum only, and of
 * those the lower envelope of the lines -2 p first + p² + squares(p). As `first` falls,
 * smaller cuts win for good, so that the envelope is a queue: pushed from the largest cut
 * down, and read from its front. Nodes are made when they are first asked; ranges shorter
 * than a leaf are scanned.
 *
 * Cost: O(n log n) for all nodes, then O(log n) amortized per question.
 */
#include "cut_tree.h"

#include <math.h>
#include <string.h>

#define LEAF       5 /* the lowest level has nodes of 32 cuts */
#define MAX_LEVELS 32

struct node {
    int head,
        size; /* of its queue, from its first place in `cut` on; size -1: not made */
};

struct cut_tree {
    const struct layers_rest *rest;
    bool by_count;
    int n, n_levels;
    struct node *nodes[MAX_LEVELS]; /* level k: of 2^(LEAF + k) cuts */
    int *cut[MAX_LEVELS];           /* [n + 1] the queues of a level */
};

struct cut_tree *cut_tree_new(struct ap_arena *arena, int n, bool by_count)
{
    struct cut_tree *t = AP_NEW(arena, struct cut_tree);

    *t = (struct cut_tree){.n = n, .by_count = by_count};
    for (; (n + 1) >> (LEAF + t->n_levels); t->n_levels++) {
        int k = t->n_levels;
        t->nodes[k] = AP_NEW_N(arena, (n + 1) >> (LEAF + k), struct node);
        t->cut[k] = AP_NEW_N(arena, n + 1, int);
    }
    return t;
}

void cut_tree_reset(struct cut_tree *t, const struct layers_rest *rest)
{
    t->rest = rest;
    for (int k = 0; k < t->n_levels; k++)
        for (int i = 0; i < (t->n + 1) >> (LEAF + k); i++)
            t->nodes[k][i] = (struct node){0, -1};
}

static double squares(const struct cut_tree *t, int first, int cut)
{
    double count = t->by_count ? cut - first : 0;
    return count * count + t->rest[cut].squares;
}

/* The largest `first` for which a is no worse than b, a < b. */
static int64_t wins_up_to(const struct cut_tree *t, int a, int b)
{
    int64_t ca = (int64_t)a * a + (int64_t)t->rest[a].squares;
    int64_t cb = (int64_t)b * b + (int64_t)t->rest[b].squares;
    int64_t over = cb - ca, by = 2 * (int64_t)(b - a);
    return over / by - (over % by < 0);
}

/* Puts a cut that is smaller than all others after the queue's end. */
static int push(const struct cut_tree *t, int *queue, int size, int cut)
{
    if (!t->by_count) { /* nothing changes with `first` */
        if (!size || t->rest[cut].squares <= t->rest[queue[0]].squares)
            queue[0] = cut;
        return 1;
    }
    while (size > 1 && wins_up_to(t, cut, queue[size - 1]) >=
                           wins_up_to(t, queue[size - 1], queue[size - 2]))
        size--;
    queue[size] = cut;
    return size + 1;
}

static void make(const struct cut_tree *t, struct node *node, int *queue, int from,
                 int n_cuts)
{
    int64_t sum = INT64_MAX;

    *node = (struct node){0};
    for (int p = from + n_cuts - 1; p >= from; p--) {
        if (isinf(t->rest[p].squares) || t->rest[p].sum > sum)
            continue;
        if (t->rest[p].sum < sum)
            node->size = 0;
        sum = t->rest[p].sum;
        node->size = push(t, queue, node->size, p);
    }
}

/* The better of a cut and one after it, -1 for none. */
static int better(const struct cut_tree *t, int first, int a, int b)
{
    if (a < 0 || isinf(t->rest[a].squares))
        return b < 0 || isinf(t->rest[b].squares) ? -1 : b;
    if (b < 0 || isinf(t->rest[b].squares) || t->rest[a].sum < t->rest[b].sum)
        return a;
    return t->rest[a].sum > t->rest[b].sum || squares(t, first, b) < squares(t, first, a)
               ? b
               : a;
}

/* The best cut of node i of a level. */
static int best_of_node(struct cut_tree *t, int level, int i, int first)
{
    int from = i << (LEAF + level);
    struct node *node = &t->nodes[level][i];
    int *queue = t->cut[level] + from;

    if (node->size < 0)
        make(t, node, queue, from, 1 << (LEAF + level));
    if (!node->size)
        return -1;
    while (node->head + 1 < node->size && squares(t, first, queue[node->head + 1]) <=
                                              squares(t, first, queue[node->head]))
        node->head++;
    return queue[node->head];
}

int cut_tree_best(struct cut_tree *t, int first, int from, int to)
{
    int best = -1;

    for (int p = from; p <= to;) {
        int level = -1;
        while (level + 1 < t->n_levels && p % (1 << (LEAF + level + 1)) == 0 &&
               p + (1 << (LEAF + level + 1)) - 1 <= to)
            level++;
        int cut = level < 0 ? p : best_of_node(t, level, p >> (LEAF + level), first);
        best = better(t, first, best, cut);
        p += level < 0 ? 1 : 1 << (LEAF + level);
    }
    return best;
}
