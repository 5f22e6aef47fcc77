/*
 * Correspondences of random regions and of their disturbed copies: sound by
 * ap_families_check, whole where nothing was disturbed, nearly whole where little was.
 */
#include <stdlib.h>
#include <string.h>

#include "prune.h"

#include "doc/doc.h"
#include "tap.h"

enum { COPIES = 3, SIZE = 40, FIRST = 3, N_NODES = FIRST + COPIES * SIZE + 1 };

static uint64_t seed_state;

static int draw(int n)
{
    seed_state = seed_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed_state >> 33) % (uint64_t)n);
}

static const char *const ops[] = {"add",     "multiply", "subtract",
                                  "maximum", "tanh",     "exponential"};

struct plan {
    int op[SIZE], in[SIZE][2]; /* in < 0: a node from outside */
};

/* Most nodes read one that is near, so that regions are deep; few values are alike. */
static void draw_plan(struct plan *p)
{
    for (int j = 0; j < SIZE; j++) {
        p->op[j] = draw(6);
        for (int k = 0; k < 2; k++) {
            int back = draw(draw(3) ? 4 : SIZE) + 1;
            p->in[j][k] = back > j ? -1 - draw(2) : j - back;
        }
    }
}

/* Copy i reads parameters x and y as one -1 and -2, the others in turn. */
static void put_copy(struct ap_buf *out, const struct plan *p, int i)
{
    int base = FIRST + i * SIZE;

    for (int j = 0; j < SIZE; j++) {
        int in[2];
        for (int k = 0; k < 2; k++)
            in[k] = p->in[j][k] < 0 ? (i - p->in[j][k]) % FIRST : base + p->in[j][k];
        ap_buf_printf(out, ",{\"op\":\"%s\",\"shape\":\"f32[4]\",\"in\":[%d",
                      ops[p->op[j]], in[0]);
        if (p->op[j] < 4)
            ap_buf_printf(out, ",%d", in[1]);
        ap_buf_puts(out, "]}");
    }
}

static void make_graph(struct ap_arena *arena, const struct plan *copies,
                       struct ap_graph *g)
{
    struct ap_buf text = {0};
    struct ap_err err = {0};
    struct ap_doc doc;

    ap_buf_puts(&text, "{\"autopar\":1,\"graph\":{\"nodes\":[");
    for (int i = 0; i < FIRST; i++)
        ap_buf_printf(&text, "%s{\"op\":\"parameter\",\"shape\":\"f32[4]\",\"param\":%d}",
                      i ? "," : "", i);
    for (int i = 0; i < COPIES; i++)
        put_copy(&text, &copies[i], i);
    ap_buf_printf(&text,
                  ",{\"op\":\"tanh\",\"shape\":\"f32[4]\",\"in\":[%d]}],\"results\":"
                  "[{\"node\":%d}]}}",
                  N_NODES - 2, N_NODES - 1);
    if (ap_doc_parse(arena, "test", text.data, text.len, &doc, &err) ||
        ap_doc_graph(arena, &doc, g, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    ap_buf_free(&text);
}

/* Aligns copies 1 and 2 with 0; the size of the family, -1 if it is not sound. */
static int align_all(struct ap_arena *arena, const struct ap_graph *g)
{
    struct prune_space *s = prune_space_new(arena, g);
    int *nodes = AP_NEW_N(arena, COPIES * SIZE, int), region[COPIES][SIZE];
    struct ap_families f = {.algorithm = "test"};
    struct ap_err err = {0};

    for (int at = 0; at < COPIES * SIZE; at++)
        region[at / SIZE][at % SIZE] = FIRST + at;
    memcpy(nodes, region[0], sizeof(region[0]));
    for (int i = 1; i < COPIES; i++)
        prune_align(s, region[0], SIZE, region[i], SIZE, nodes + (long)i * SIZE);
    int kept = prune_reconcile(s, COPIES, SIZE, nodes);
    struct prune_draft draft = {
        .n_instances = COPIES, .n_nodes = kept, .nodes = nodes, .parent = -1};
    if (!kept)
        return 0;
    prune_finish(arena, g, &draft, 1, &f);
    if (ap_families_check(arena, g, &f, &err)) {
        printf("# %s\n", err.msg);
        return -1;
    }
    for (int v = 0; v < g->n_nodes; v++)
        if (s->at[0][v] != -1 || s->at[1][v] != -1 || s->mate[0][v] != -1 ||
            s->mate[1][v] != -1)
            return -2; /* scratch that was left */
    return kept;
}

/* changes: how many nodes of copies 1 and 2 get another operator or operand. */
static void test_copies(int changes, int n_least, int n_mean)
{
    int n_graphs = 200, unsound = 0, least = SIZE, sum = 0;

    for (int k = 0; k < n_graphs; k++) {
        struct ap_arena arena = {0};
        struct plan copies[COPIES];
        struct ap_graph g;
        seed_state = (uint64_t)k * 977 + (uint64_t)changes;
        draw_plan(&copies[0]);
        copies[1] = copies[2] = copies[0];
        for (int c = 0; c < changes; c++) {
            struct plan *p = &copies[1 + c % 2];
            int j = 1 + draw(SIZE - 1);
            if (draw(2))
                p->op[j] = draw(6);
            else
                p->in[j][draw(2)] = draw(j);
        }
        make_graph(&arena, copies, &g);
        int kept = align_all(&arena, &g);
        unsound += kept < 0;
        least = kept < least ? kept : least;
        sum += kept;
        ap_arena_free(&arena);
    }
    CHECK(!unsound, "%d changes: all sound", changes);
    CHECK(least >= n_least, "%d changes: at least %d of %d nodes correspond", changes,
          least, SIZE);
    CHECK(sum >= n_mean * n_graphs, "%d changes: %.1f on average", changes,
          (double)sum / n_graphs);
}

int main(void)
{
    test_copies(0, SIZE, SIZE);
    test_copies(1, SIZE - 4, SIZE - 1);
    test_copies(4, SIZE - 12, SIZE - 4);
    test_copies(40, 1, 12);
    return tap_done();
}
