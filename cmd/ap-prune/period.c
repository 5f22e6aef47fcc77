/*
 * Scopes that repeat in turns.
 *
 * Problem: where layers of several kinds alternate (with experts and without), no scope
 * holds what repeats: a layer of each kind.
 * Idea: side by side below one scope, in the program's order, scopes stand for the
 * letters of a text, alike for alike contents. A run that repeats a word of at least two
 * different letters is cut into its words, each a scope of its own from then on
 * (owners_group); then they are like any scopes, and what their kinds have in common is
 * found inside the first. A word counts only if its letters are nowhere else in the text:
 * else the parts have more in common with others than the groups have. Cost: linear in
 * scopes, times MAX_PERIOD.
 *
 * The text's runs: for each period p and place i, ext[p][i] is how long the text from i
 * on equals that from i + p on.
 */
#include "period.h"

#include <stdlib.h>

enum { MAX_PERIOD = 12 };

struct text {
    int n;
    const int *scope;       /* [place] */
    const uint64_t *letter; /* [place] */
    int *ext;               /* [place * (MAX_PERIOD + 1) + p] */
    int *count;             /* [place]: how often its letter is in the text */
};

struct ranked {
    uint64_t letter;
    int place;
};

static int compare_ranked(const void *x, const void *y)
{
    const struct ranked *a = x, *b = y;

    if (a->letter != b->letter)
        return a->letter < b->letter ? -1 : 1;
    return a->place - b->place;
}

static void count_letters(struct ap_arena *arena, struct text *t)
{
    struct ap_mark mark = ap_arena_mark(arena);
    struct ranked *ranked = AP_NEW_N(arena, t->n, struct ranked);

    for (int i = 0; i < t->n; i++)
        ranked[i] = (struct ranked){t->letter[i], i};
    qsort(ranked, (size_t)t->n, sizeof(*ranked), compare_ranked);
    for (int i = 0, end; i < t->n; i = end) {
        for (end = i; end < t->n && ranked[end].letter == ranked[i].letter; end++)
            ;
        for (int k = i; k < end; k++)
            t->count[ranked[k].place] = end - i;
    }
    ap_arena_rewind(arena, mark);
}

static void extend(struct text *t)
{
    for (int i = t->n - 1; i >= 0; i--)
        for (int p = 1; p <= MAX_PERIOD; p++) {
            int *ext = &t->ext[i * (MAX_PERIOD + 1) + p];
            if (i + p >= t->n || t->letter[i] != t->letter[i + p])
                *ext = 0;
            else
                *ext = 1 + ext[MAX_PERIOD + 1];
        }
}

static int ext(const struct text *t, int i, int p)
{
    return t->ext[i * (MAX_PERIOD + 1) + p];
}

/* How often the word of p letters at i follows itself; 0: it is no word to cut at. */
static int words(const struct text *t, int i, int p)
{
    int n = ext(t, i, p) / p + 1;

    if (n < 2)
        return 0;
    for (int d = 1; d < p; d++) /* a word of its own word, or of one letter twice */
        if (p % d == 0 && ext(t, i, d) >= p - d)
            return 0;
    for (int k = i; k < i + p; k++) {
        int in_word = 0;
        for (int j = i; j < i + p; j++)
            in_word += t->letter[j] == t->letter[k];
        if (t->count[k] != n * in_word)
            return 0;
    }
    return n;
}

/* Numbers the words of the text's runs; returns the last number. */
static int cut_words(const struct text *t, int *group, int last)
{
    for (int i = 0; i < t->n;) {
        int n = 0, p = 2;
        for (; p <= MAX_PERIOD && !n; p++)
            n = words(t, i, p);
        p--;
        for (int k = 0; k < n * p; k++)
            group[t->scope[i + k]] = last + 1 + k / p;
        last += n;
        i += n ? n * p : 1;
    }
    return last;
}

/* Children of every scope in order: those of scope i are child[start[i]..start[i + 1]).
 */
static void list_children(const struct owners *o, int *start, int *filled, int *child)
{
    for (int i = 1; i < o->n_scopes; i++)
        start[o->scopes[i].parent + 1]++;
    for (int i = 0; i < o->n_scopes; i++)
        start[i + 1] += start[i];
    for (int i = 1; i < o->n_scopes; i++) {
        int parent = o->scopes[i].parent;
        child[start[parent] + filled[parent]++] = i;
    }
}

int *period_groups(struct ap_arena *arena, const struct owners *o,
                   const uint64_t *skeleton)
{
    int n = o->n_scopes, last = 0;
    int *group = AP_NEW_N(arena, n, int);
    struct ap_mark mark = ap_arena_mark(arena);
    int *start = AP_NEW_N(arena, n + 1, int), *child = AP_NEW_N(arena, n, int);
    int *count = AP_NEW_N(arena, n, int);
    int *extents = AP_NEW_N(arena, (int64_t)n * (MAX_PERIOD + 1), int);
    uint64_t *letter = AP_NEW_N(arena, n, uint64_t);

    list_children(o, start, count, child);
    for (int i = 0; i < start[n]; i++)
        letter[i] = skeleton[child[i]];
    for (int i = 0; i < n; i++) {
        struct text t = {.n = start[i + 1] - start[i],
                         .scope = child + start[i],
                         .letter = letter + start[i],
                         .count = count,
                         .ext = extents};
        if (t.n < 4)
            continue;
        count_letters(arena, &t);
        extend(&t);
        last = cut_words(&t, group, last);
    }
    ap_arena_rewind(arena, mark);
    return last ? group : NULL;
}
