/* Critical nodes, segments, cones and cuts against their definitions on random graphs. */
#include "graph/critical.h"
#include "tap.h"

#include <limits.h>
#include <string.h>

#define N_GRAPHS 400
#define MAX      40

static struct ap_arena arena;

/* A repeatable sequence of small numbers. */
static int draw(uint64_t *state, int n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((*state >> 33) % (uint64_t)n);
}

static struct ap_graph new_graph(int n, int max_in)
{
    struct ap_graph g = {.n_nodes = n, .nodes = AP_NEW_N(&arena, n, struct ap_node)};
    for (int v = 0; v < n; v++)
        g.nodes[v] = (struct ap_node){.op = AP_OP_CONSTANT,
                                      .name = "",
                                      .in = AP_NEW_N(&arena, max_in, int),
                                      .shape = {.dtype = AP_F32},
                                      .attrs = &ap_attrs_default,
                                      .scope = "",
                                      .param = -1};
    return g;
}

/* Joins u to v: a list of operands with one more. */
static void edge(struct ap_graph *g, int u, int v)
{
    struct ap_node *node = &g->nodes[v];
    int *in = AP_NEW_N(&arena, node->n_in + 1, int);

    for (int i = 0; i < node->n_in; i++)
        in[i] = node->in[i];
    in[node->n_in++] = u;
    node->in = in;
}

static void index_of(struct ap_graph *g)
{
    struct ap_err err = {""};
    if (ap_graph_index(&arena, g, "", &err))
        CHECK(false, "index: %s", err.msg);
}

/*
 * Few or many parents, near or far, most in the forward phase; at some nodes everything
 * passes, so that there are operators that all others are before or after.
 */
static struct ap_graph random_graph(uint64_t seed)
{
    int n = 4 + draw(&seed, MAX - 3), reach = 1 + draw(&seed, 8), heavy = draw(&seed, 4);
    int back = draw(&seed, 3) == 0 ? n - draw(&seed, n) : n, n_params = 0;
    struct ap_graph g = new_graph(n, MAX);

    for (int v = 0; v < n; v++) {
        struct ap_node *node = &g.nodes[v];
        bool neck = draw(&seed, 6) == 0;
        node->phase = v >= back && draw(&seed, 4) > 0 ? AP_BACKWARD : AP_FORWARD;
        if (v < 2 || draw(&seed, 8) == 0) {
            int kind = v == 0 ? 0 : draw(&seed, 3);
            node->op = kind == 1   ? AP_OP_CONSTANT
                       : kind == 2 ? AP_OP_IOTA
                                   : AP_OP_PARAMETER;
            node->param = kind == 0 ? n_params++ : -1;
            node->role = kind || v == 0   ? AP_ROLE_NONE
                         : draw(&seed, 2) ? AP_ROLE_INPUT
                                          : AP_ROLE_WEIGHT;
            continue;
        }
        for (int u = v - 1; neck && u >= 0 && u >= v - 2 * reach; u--)
            edge(&g, u, v);
        for (int k = 1 + draw(&seed, 2); !neck && k > 0; k--)
            edge(&g, v - 1 - draw(&seed, v < reach ? v : reach), v);
        node->op = draw(&seed, 4) < heavy && node->n_in == 2 ? AP_OP_DOT
                   : node->n_in == 1                         ? AP_OP_NEGATE
                   : node->n_in == 2                         ? AP_OP_ADD
                                                             : AP_OP_CONCATENATE;
    }
    g.results = AP_NEW_N(&arena, 2, struct ap_result);
    g.n_results = 2;
    g.results[0] = (struct ap_result){.node = n - 1, .alias = -1};
    g.results[1] = (struct ap_result){.node = draw(&seed, n), .alias = 0};
    index_of(&g);
    return g;
}

/* ---- critical nodes by definition ---- */

/* reach[u][v]: the longest forward path from u to v in nodes, both included; 0: none. */
static int reach[MAX][MAX];

static bool forward(const struct ap_graph *g, int v)
{
    return g->nodes[v].phase == AP_FORWARD;
}

static bool placed[MAX]; /* [node]: of ap_blocks_operators */

static bool heavy(const struct ap_graph *g, int v)
{
    return placed[v] && g->nodes[v].op == AP_OP_DOT;
}

static void find_paths(const struct ap_graph *g)
{
    int *ids, n = ap_blocks_operators(&arena, g, &ids);

    memset(placed, 0, sizeof(placed));
    for (int i = 0; i < n; i++)
        placed[ids[i]] = true;
    memset(reach, 0, sizeof(reach));
    for (int u = 0; u < g->n_nodes; u++)
        for (int v = u; v < g->n_nodes; v++) {
            const struct ap_node *node = &g->nodes[v];
            reach[u][v] = u == v && forward(g, u);
            for (int k = 0; k < node->n_in && forward(g, v); k++)
                if (reach[u][node->in[k]] >= reach[u][v] && reach[u][node->in[k]] > 0)
                    reach[u][v] = reach[u][node->in[k]] + 1;
        }
}

static bool is_critical(const struct ap_graph *g, int v, enum ap_critical_rule rule)
{
    int longest = 0, before = 0, after = 0;

    if (!heavy(g, v))
        return false;
    for (int u = 0; u < g->n_nodes; u++) {
        if (rule == AP_CRITICAL_CODE && heavy(g, u) && !reach[u][v] && !reach[v][u])
            return false;
        before = reach[u][v] > before ? reach[u][v] : before;
        after = reach[v][u] > after ? reach[v][u] : after;
        for (int w = 0; w < g->n_nodes; w++)
            longest = reach[u][w] > longest ? reach[u][w] : longest;
    }
    return rule == AP_CRITICAL_CODE || before + after - 1 == longest;
}

static void critical_nodes(void)
{
    int n_found[AP_N_CRITICAL_RULES] = {0}, bad[AP_N_CRITICAL_RULES] = {0}, differ = 0;

    for (uint64_t seed = 1; seed <= N_GRAPHS; seed++) {
        struct ap_mark mark = ap_arena_mark(&arena);
        struct ap_graph g = random_graph(seed);
        const int *list[AP_N_CRITICAL_RULES];
        int n[AP_N_CRITICAL_RULES];
        find_paths(&g);
        for (int rule = 0; rule < AP_N_CRITICAL_RULES; rule++) {
            int k = 0;
            n[rule] =
                ap_critical_nodes(&arena, &g, (enum ap_critical_rule)rule, &list[rule]);
            for (int v = 0; v < g.n_nodes; v++)
                if (is_critical(&g, v, (enum ap_critical_rule)rule))
                    bad[rule] += k >= n[rule] || list[rule][k++] != v;
            bad[rule] += k != n[rule];
            n_found[rule] += n[rule];
        }
        differ += n[0] != n[1];
        ap_arena_rewind(&arena, mark);
    }
    for (int rule = 0; rule < AP_N_CRITICAL_RULES; rule++)
        CHECK(bad[rule] == 0 && n_found[rule] > N_GRAPHS / 2,
              "%s: %d critical nodes of %d random graphs are those of the definition",
              ap_critical_names[rule], n_found[rule], N_GRAPHS);
    CHECK(differ > N_GRAPHS / 10, "the two rules differ on %d of them", differ);
}

/* ---- segments by definition ---- */

/* Wrong places; critical: also of what critical nodes need. */
static int wrong_segments(const struct ap_graph *g, int n, const int *critical,
                          const struct ap_segments *s)
{
    int bad = s->n != ap_segments_max(n);

    for (int v = 0; v < g->n_nodes; v++) {
        int first = -1;
        if (!placed[v]) {
            bad += s->segment_of[v] != -1;
            continue;
        }
        for (int i = n - 1; i >= 0; i--)
            if (reach[v][critical[i]])
                first = i > 0 ? i - 1 : 0;
        bad += first >= 0 && s->segment_of[v] != first;
        bad += s->segment_of[v] < 0 || s->segment_of[v] >= s->n;
        for (int k = 0; k < g->nodes[v].n_in; k++)
            bad += s->segment_of[g->nodes[v].in[k]] > s->segment_of[v];
    }
    for (int i = 0; i < s->n; i++)
        bad += s->tail[i] != (n > 1 ? critical[i + 1] : n == 1 ? critical[0] : -1);
    return bad;
}

static int wrong_groups(const struct ap_graph *g, int n, const int *critical,
                        const struct ap_segments *s, int n_groups)
{
    struct ap_segments joined;
    int least = INT_MAX, most = 0, bad = 0;

    ap_segments_of(&arena, g, n, critical, n_groups, &joined);
    for (int i = 0, group = 0; i < s->n; i++) {
        int size = 0;
        while (group < n_groups && s->tail[i] > joined.tail[group])
            group++;
        for (int k = 0; k < s->n; k++)
            size += s->tail[k] <= joined.tail[group] &&
                    (group == 0 || s->tail[k] > joined.tail[group - 1]);
        least = size < least ? size : least;
        most = size > most ? size : most;
        for (int v = 0; v < g->n_nodes; v++)
            bad += s->segment_of[v] == i && joined.segment_of[v] != group;
    }
    return bad + (joined.n != n_groups) + (most - least > 1);
}

static void segments(void)
{
    int bad = 0, bad_groups = 0, n_segments = 0;

    for (uint64_t seed = 1; seed <= N_GRAPHS; seed++) {
        struct ap_mark mark = ap_arena_mark(&arena);
        struct ap_graph g = random_graph(seed);
        const int *critical;
        struct ap_segments s;
        int n =
            ap_critical_nodes(&arena, &g, (enum ap_critical_rule)(seed % 2), &critical);
        find_paths(&g);
        ap_segments_of(&arena, &g, n, critical, 0, &s);
        bad += wrong_segments(&g, n, critical, &s);
        for (int n_groups = 1; n > 0 && n_groups <= s.n; n_groups++)
            bad_groups += wrong_groups(&g, n, critical, &s, n_groups);
        n_segments += s.n;
        ap_arena_rewind(&arena, mark);
    }
    CHECK(bad == 0, "%d segments hold what their tails need first, in order", n_segments);
    CHECK(bad_groups == 0, "grouped segments: the same, equal in number up to one");
}

/* a = dot(x), b = dot(a), c = dot(b); what follows from b but no one needs stands with b,
   what only the loss needs stands with the loss. */
static void rest_of_segments(void)
{
    struct ap_graph g = new_graph(9, 2);
    struct ap_segments s;
    const int *critical;
    static const int in[9][2] = {{-1, -1}, {0, 0},  {1, 1}, {2, 2}, {3, 3},
                                 {2, -1},  {0, -1}, {4, 6}, {7, 5}};
    static const enum ap_op op[9] = {AP_OP_PARAMETER, AP_OP_DOT, AP_OP_DOT,
                                     AP_OP_DOT,       AP_OP_DOT, AP_OP_NEGATE,
                                     AP_OP_NEGATE,    AP_OP_ADD, AP_OP_ADD};

    for (int v = 0; v < 9; v++) {
        g.nodes[v].op = op[v];
        for (int k = 0; k < 2; k++)
            if (in[v][k] >= 0)
                edge(&g, in[v][k], v);
    }
    g.nodes[0].param = 0;
    index_of(&g);
    int n = ap_critical_nodes(&arena, &g, AP_CRITICAL_PAPER, &critical);
    ap_segments_of(&arena, &g, n, critical, 0, &s);
    CHECK(n == 4 && s.n == 3, "a chain of four dots has three segments");
    CHECK(s.segment_of[5] == 0 && s.segment_of[6] == 2,
          "the rest: with its operands after a critical node, else with its readers");
}

/* ---- cones by definition ---- */

static bool constant(const struct ap_graph *g, int v)
{
    if (g->nodes[v].op == AP_OP_PARAMETER || g->nodes[v].op == AP_OP_DOT)
        return false;
    for (int k = 0; k < g->nodes[v].n_in; k++)
        if (!constant(g, g->nodes[v].in[k]))
            return false;
    return true;
}

static bool reads(const struct ap_graph *g, int v, int u)
{
    for (int k = 0; k < g->nodes[v].n_in; k++)
        if (g->nodes[v].in[k] == u)
            return true;
    return false;
}

static int n_operands(const struct ap_graph *g, const int *scope, int v)
{
    int n = 0;
    for (int u = 0; u < v; u++)
        n += reads(g, v, u) && !constant(g, u) && scope[u] == scope[v];
    return n;
}

static bool is_root(const struct ap_graph *g, const int *scope, int level, int fixed,
                    int v)
{
    int readers = 0;
    bool joint = n_operands(g, scope, v) >= 2;

    for (int w = v + 1; w < g->n_nodes; w++)
        if (reads(g, w, v) && scope[w] == scope[v]) {
            readers++;
            joint = joint || n_operands(g, scope, w) >= 2;
        }
    for (int i = 0; i < g->n_results; i++)
        if (g->results[i].node == v ||
            (g->results[i].alias >= 0 && g->results[i].alias == v))
            return true;
    return v == fixed || readers != 1 || level >= 4 || (level >= 2 && joint);
}

static int wrong_cones(const struct ap_graph *g, const int *scope, int level, int fixed,
                       const struct ap_cones *c)
{
    int bad = 0, n = 0;

    for (int v = 0; v < g->n_nodes; v++) {
        int cone = c->cone_of[v];
        if (constant(g, v)) {
            bad += cone != -1;
        } else if (is_root(g, scope, level, fixed, v)) {
            bad += n >= c->n || c->root[n] != v || cone != n;
            n++;
        } else {
            for (int w = v + 1; w < g->n_nodes; w++)
                bad += reads(g, w, v) && scope[w] == scope[v] && cone != c->cone_of[w];
        }
    }
    return bad + (n != c->n);
}

static int wrong_parts(const struct ap_graph *g, int n, const int *part_of,
                       const struct ap_parts *p)
{
    int bad = p->n != n;

    for (int i = 0, at = 0, in_at = 0; i < n; i++) {
        bad += p->node_start[i] != at || p->in_start[i] != in_at;
        for (int v = 0; v < g->n_nodes; v++) {
            bool cut = false;
            if (part_of[v] == i)
                bad += at >= p->node_start[i + 1] || p->node[at++] != v;
            for (int w = v + 1; w < g->n_nodes; w++)
                cut |= part_of[v] >= 0 && part_of[v] != i && part_of[w] == i &&
                       reads(g, w, v);
            if (cut)
                bad += in_at >= p->in_start[i + 1] || p->in[in_at++] != v;
        }
        bad += at != p->node_start[i + 1] || in_at != p->in_start[i + 1];
    }
    return bad;
}

static void cones(void)
{
    int bad[AP_CONE_LEVEL_MAX + 1] = {0}, n[AP_CONE_LEVEL_MAX + 1] = {0}, bad_parts = 0;
    int bad_cuts = 0;

    for (uint64_t seed = 1; seed <= N_GRAPHS; seed++) {
        struct ap_mark mark = ap_arena_mark(&arena);
        struct ap_graph g = random_graph(seed);
        int *scope = AP_NEW_N(&arena, g.n_nodes, int);
        uint64_t state = seed;
        int fixed = draw(&state, g.n_nodes);
        for (int v = 0; v < g.n_nodes && seed % 2; v++)
            scope[v] = draw(&state, 2) ? v / 10 : 0;
        for (int level = 0; level <= AP_CONE_LEVEL_MAX; level++) {
            struct ap_cones c;
            struct ap_parts p;
            ap_cones_of(&arena, &g, seed % 2 ? scope : NULL, level, seed % 3 == 0, &fixed,
                        &c);
            bad[level] += wrong_cones(&g, scope, level, seed % 3 == 0 ? fixed : -1, &c);
            n[level] += c.n;
            ap_parts_of(&arena, &g, c.n, c.cone_of, &p);
            bad_parts += wrong_parts(&g, c.n, c.cone_of, &p);
            for (int i = 0; i < c.n; i++)
                for (int k = p.in_start[i]; k < p.in_start[i + 1]; k++)
                    bad_cuts += scope[p.in[k]] == scope[c.root[i]] &&
                                c.root[c.cone_of[p.in[k]]] != p.in[k];
        }
        ap_arena_rewind(&arena, mark);
    }
    for (int level = 0; level <= AP_CONE_LEVEL_MAX; level++)
        CHECK(bad[level] == 0, "level %d: %d cones by their definition", level, n[level]);
    CHECK(n[0] == n[1] && n[1] < n[2] && n[2] == n[3] && n[3] < n[4],
          "higher levels have more cones");
    CHECK(bad_parts == 0, "parts: members and cut tensors");
    CHECK(bad_cuts == 0, "inside a scope only roots are cut");
}

/*
 * Layers of three dots side by side and one after them, with a sum that skips the layer:
 * as long as graphs get, so that anything but linear time would be felt.
 */
static void long_graph(void)
{
    enum { N_LAYERS = 60000, SIZE = 5 };
    struct ap_graph g = new_graph(2 + N_LAYERS * SIZE, 3);
    const int *critical;
    struct ap_segments s;
    struct ap_cones c;
    struct ap_parts p;
    int from = 1;

    g.nodes[0].op = AP_OP_PARAMETER;
    g.nodes[0].param = 0;
    g.nodes[1].op = AP_OP_NEGATE;
    edge(&g, 0, 1);
    for (int v = 2; v < g.n_nodes; v += SIZE, from = v - 1) {
        for (int k = 0; k < SIZE; k++)
            g.nodes[v + k].op = k < 3    ? AP_OP_DOT
                                : k == 3 ? AP_OP_CONCATENATE
                                         : AP_OP_ADD;
        for (int k = 0; k < 3; k++) {
            edge(&g, from, v + k);
            edge(&g, from, v + k);
            edge(&g, v + k, v + 3);
        }
        edge(&g, v + 3, v + 4);
        edge(&g, from, v + 4);
        if (v / SIZE % 2) { /* every other layer: one dot instead of the concatenation */
            g.nodes[v + 3].op = AP_OP_DOT;
            g.nodes[v + 3].n_in = 2;
            g.nodes[v + 2].op = AP_OP_ADD;
        }
    }
    index_of(&g);
    int n_paper = ap_critical_nodes(&arena, &g, AP_CRITICAL_PAPER, &critical);
    int n_code = ap_critical_nodes(&arena, &g, AP_CRITICAL_CODE, &critical);
    CHECK(n_paper == N_LAYERS * 3 && n_code == N_LAYERS / 2,
          "%d nodes: %d and %d critical ones", g.n_nodes, n_paper, n_code);
    ap_segments_of(&arena, &g, n_code, critical, 0, &s);
    CHECK(s.n == n_code - 1, "and %d segments", s.n);
    ap_cones_of(&arena, &g, s.segment_of, 2, n_code, critical, &c);
    ap_parts_of(&arena, &g, c.n, c.cone_of, &p);
    CHECK(p.n == c.n && c.n > N_LAYERS && p.in_start[p.n] > N_LAYERS, "and %d cones",
          c.n);
}

/* The projections to queries, keys and values are side by side. */
static void projections(void)
{
    enum { X, Q, K, V, SCORES, SOFT, OUT, N };
    struct ap_graph g = new_graph(N, 2);
    static const int in[N][2] = {{-1, -1}, {X, X},       {X, X},   {X, X},
                                 {Q, K},   {SCORES, -1}, {SOFT, V}};
    const int *critical;

    for (int v = 0; v < N; v++) {
        g.nodes[v].op = v == X ? AP_OP_PARAMETER : v == SOFT ? AP_OP_NEGATE : AP_OP_DOT;
        for (int k = 0; k < 2; k++)
            if (in[v][k] >= 0)
                edge(&g, in[v][k], v);
    }
    g.nodes[X].param = 0;
    index_of(&g);
    int n = ap_critical_nodes(&arena, &g, AP_CRITICAL_PAPER, &critical);
    CHECK(n == 4 && critical[0] == Q && critical[1] == K && critical[2] == SCORES &&
              critical[3] == OUT,
          "paper: queries and keys are critical, values have slack");
    n = ap_critical_nodes(&arena, &g, AP_CRITICAL_CODE, &critical);
    CHECK(n == 1 && critical[0] == OUT, "code: neither is, nor what values go around");
}

int main(void)
{
    critical_nodes();
    projections();
    segments();
    rest_of_segments();
    cones();
    long_graph();
    ap_arena_free(&arena);
    return tap_done();
}
