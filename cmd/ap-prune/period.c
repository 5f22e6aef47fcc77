/*
 * Scopes that repeat in turns.
 *
 * Problem: if layers of several kinds alternate (with experts and without), no scope
 * contains the repeated part, which is one layer of each kind. Idea: side by side below
 * one scope, in the program's order, scopes stand for the letters of a text, equal
 * letters for equal skeletons. A run that repeats a word of at least two different
 * letters is cut into its words, each a scope of its own from then on (owners_group);
 * then they are like any scopes, and the common parts of their kinds are found inside the
 * first. A word counts only if its letters are nowhere else in the text: else the parts
 * have more in common with others than the groups have. Cost: linear in scopes, times
 * MAX_PERIOD.
 *
 * The text's runs: for each period p and place i, ext[p][i] is how long the text from i
 * on equals that from i + p on.
 */
#include "period.h"

#include "base/csr.h"
#include "prune.h"

enum { MAX_PERIOD = 12 }; /* letters of a word: a limit, for the table of extents */

struct text {
    int n;
    const int *scope;       /* [place] */
    const uint64_t *letter; /* [place] */
    int *ext;               /* [place * (MAX_PERIOD + 1) + p] */
    int *count;             /* [place]: how often its letter is in the text */
};

static void count_letters(struct ap_arena *arena, struct text *t)
{
    struct ap_mark mark = ap_arena_mark(arena);
    struct prune_ranked *ranked = AP_NEW_N(arena, t->n, struct prune_ranked);

    for (int i = 0; i < t->n; i++)
        ranked[i] = (struct prune_ranked){t->letter[i], i};
    prune_rank(ranked, t->n);
    for (int i = 0, end; i < t->n; i = end) {
        end = prune_run_end(ranked, t->n, i);
        for (int k = i; k < end; k++)
            t->count[ranked[k].at] = end - i;
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

int *period_groups(struct ap_arena *arena, const struct owners *o,
                   const uint64_t *skeleton)
{
    int n = o->n_scopes, last = 0;
    int *group = AP_NEW_N(arena, n, int);
    struct ap_mark mark = ap_arena_mark(arena);
    int *parent = AP_NEW_N(arena, n, int), *count = AP_NEW_N(arena, n, int);
    int *extents = AP_NEW_N(arena, (int64_t)n * (MAX_PERIOD + 1), int);
    uint64_t *letter = AP_NEW_N(arena, n, uint64_t);

    for (int i = 0; i < n; i++)
        parent[i] = o->scopes[i].parent;
    struct ap_csr child = ap_csr_new(arena, n, n, parent, NULL);
    for (int i = 0; i < child.start[n]; i++)
        letter[i] = skeleton[child.item[i]];
    for (int i = 0; i < n; i++) {
        struct text t = {.n = ap_csr_count(&child, i),
                         .scope = child.item + child.start[i],
                         .letter = letter + child.start[i],
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
