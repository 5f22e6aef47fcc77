/*
 * Programs of random plans: local graphs are sound, hold the conversions' collectives,
 * keep values that live at once apart in memory, and survive being written and read.
 */
#include "pipeline/pipeline_program.h"
#include "sample_plan.h"
#include "tap.h"
#include "tool/tool.h"
#include "base/file.h"

#include <stdlib.h>

/* ---- memory, by brute force ---- */

struct life {
    int from, to;   /* groups, both included */
    int owner;      /* node whose value it is */
    int64_t lo, hi; /* bytes */
};

/* Of a value, or the same memory reduced in place. */
static bool is_view(const struct ap_program *p, int i)
{
    return p->buffer[i].alias >= 0 && (ap_program_view_offset(&p->local, i) >= 0 ||
                                       ap_program_reduces_in_place(p, i));
}

/* Lives of all values; views count for the value that they show. */
static int find_lives(const struct ap_program *p, struct life *life)
{
    const struct ap_graph *g = &p->local;
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *n = &g->nodes[i];
        bool param = n->op == AP_OP_PARAMETER;
        life[i] = (struct life){param ? 0 : n->group, n->group, i, p->buffer[i].offset,
                                p->buffer[i].offset + ap_shape_bytes(&n->shape)};
        if (is_view(p, i))
            life[i].owner = life[n->in[0]].owner;
        for (int k = 0; k < n->n_in; k++) {
            struct life *in = &life[life[n->in[k]].owner];
            in->to = n->group > in->to ? n->group : in->to;
        }
    }
    for (int r = 0; r < g->n_results; r++)
        life[life[g->results[r].node].owner].to = g->n_groups;
    return g->n_nodes;
}

/* A result written over its parameter by the pass that reads it last, element by element.
 */
static bool may_touch(const struct ap_program *p, const struct life *old,
                      const struct life *new)
{
    const struct ap_node *n = p->local.nodes;
    if (n[old->owner].op != AP_OP_PARAMETER || old->to != new->from ||
        p->buffer[new->owner].alias != old->owner)
        return false;
    for (int i = 0; i < p->local.n_nodes; i++)
        for (int k = 0; k < n[i].n_in; k++)
            if (n[i].in[k] == old->owner && n[i].group == new->from &&
                (i > new->owner || ap_ops[n[i].op].class != AP_CLASS_ELEMENTWISE ||
                 !ap_shape_same_dims(&n[i].shape, &n[old->owner].shape)))
                return false;
    return true;
}

/* Arenas beside what is alive at once. */
static double waste_sum;
static int n_wastes;

static void note_waste(struct ap_arena *arena, const struct ap_program *p,
                       const struct life *life)
{
    const struct ap_graph *g = &p->local;
    int64_t *alive = AP_NEW_N(arena, g->n_groups + 1, int64_t), most = 1;

    for (int i = 0; i < g->n_nodes; i++)
        for (int t = life[i].from; t <= life[i].to && life[i].owner == i; t++)
            if (p->buffer[i].offset >= 0 && p->buffer[i].alias < 0)
                alive[t] += (life[i].hi - life[i].lo + 63) / 64 * 64;
    for (int t = 0; t <= g->n_groups; t++)
        most = alive[t] > most ? alive[t] : most;
    waste_sum += (double)p->peak_bytes / (double)most;
    n_wastes++;
}

static const char *check_memory(struct ap_arena *arena, const struct ap_program *p)
{
    const struct ap_graph *g = &p->local;
    struct life *life = AP_NEW_N(arena, g->n_nodes, struct life);
    int n = find_lives(p, life);
    note_waste(arena, p, life);
    for (int i = 0; i < n; i++) {
        const struct life *a = &life[i];
        if (p->buffer[i].offset < 0)
            continue;
        if (a->lo % 64 || a->hi > p->peak_bytes)
            return "a buffer that is not aligned, or not in the arena";
        if (a->owner != i)
            continue;
        for (int j = 0; j < n; j++) {
            const struct life *b = &life[j];
            if (j == i || b->owner != j || b->lo < 0 || a->lo >= b->hi ||
                b->lo >= a->hi || a->from > b->to || b->from > a->to)
                continue;
            if (!may_touch(p, a, b) && !may_touch(p, b, a))
                return ap_arena_printf(arena, "%s and %s share memory", g->nodes[i].name,
                                       g->nodes[j].name);
        }
    }
    return NULL;
}

/* ---- the rest ---- */

static const char *check_collectives(struct ap_arena *arena, const struct ap_program *p,
                                     const struct ap_conversions *conv)
{
    struct ap_coll_count *a, *b;
    int n = ap_program_collectives(arena, p, &a);
    if (n != ap_conversion_collectives(arena, &p->mesh, conv, &b))
        return "other kinds of collectives than the conversions";
    for (int i = 0; i < n; i++)
        if (a[i].op != b[i].op || a[i].axes != b[i].axes || a[i].count != b[i].count ||
            a[i].bytes != b[i].bytes)
            return ap_arena_printf(
                arena, "%s on axes %u: program %lld times %lld bytes, plan %lld, %lld",
                ap_ops[a[i].op].name, a[i].axes, (long long)a[i].count,
                (long long)a[i].bytes, (long long)b[i].count, (long long)b[i].bytes);
    return NULL;
}

/* Every value of the source graph has a local one of its shard's shape, in place. */
static const char *check_sources(const struct ap_plan *plan, const struct ap_program *p)
{
    const struct ap_graph *g = plan->graph;
    int members = 0;
    for (int i = 0; i < p->local.n_nodes; i++) {
        const struct ap_node *local = &p->local.nodes[i], *src = &g->nodes[p->source[i]];
        bool made = ap_ops[local->op].class == AP_CLASS_COLLECTIVE ||
                    ap_ops[local->op].class == AP_CLASS_LOCAL;
        if (made)
            continue;
        members++;
        if (local->op != src->op || local->n_in != src->n_in ||
            local->param != src->param)
            return "a member became another operator";
    }
    if (members != g->n_nodes)
        return "members are missing or doubled";
    for (int i = 0; i < g->n_params; i++)
        if (p->source[p->local.params[i]] != g->params[i])
            return "parameters in another order";
    return NULL;
}

static const char *check_json(struct ap_arena *arena, const struct ap_program *p,
                              struct ap_err *err)
{
    struct ap_buf text = {0}, again = {0};
    struct ap_pipeline_program back;
    const char *what = NULL;
    ap_program_to_json(p, &text);
    json_error_t where;
    json_t *o = json_loads(text.data, JSON_REJECT_DUPLICATES, &where);
    struct ap_at at = {.key = "program"};
    if (!o)
        what = "no JSON";
    else if (ap_pipeline_from_json(arena, o, &at, &back, err))
        what = err->msg;
    if (!what) {
        ap_pipeline_to_json(&back, &again);
        if (strcmp(text.data, again.data) != 0)
            what = "reads back differently";
    }
    json_decref(o);
    ap_buf_free(&text);
    ap_buf_free(&again);
    return what;
}

/* Whether a limit can be kept agrees with the arena that is made without one. */
static const char *check_within(struct ap_arena *arena, const struct ap_program *p)
{
    for (int64_t below = 0; below <= 128; below += 64) {
        struct ap_program again = *p;
        const int64_t limit = p->peak_bytes - below;
        ap_plan_buffers(arena, &again, limit);
        if ((again.peak_bytes <= limit) != (below == 0))
            return "a limit is judged otherwise than the arena without one";
    }
    return p->alive_bytes <= p->peak_bytes ? NULL
                                           : "more is alive than there is room for";
}

static const char *check_program(struct ap_arena *arena, const struct ap_plan *plan,
                                 const struct ap_conversions *conv, struct ap_err *err)
{
    struct ap_program prog;
    if (ap_partition(arena, plan, conv, &prog, err) ||
        ap_graph_check_shapes(&prog.local, "/program", err))
        return err->msg;
    ap_plan_buffers(arena, &prog, 0);
    struct ap_at at = {.key = "program"};
    if (ap_program_check(&prog, &at, err))
        return err->msg;
    const char *what = check_sources(plan, &prog);
    if (!what)
        what = check_collectives(arena, &prog, conv);
    if (!what)
        what = check_memory(arena, &prog);
    if (!what)
        what = check_within(arena, &prog);
    return what ? what : check_json(arena, &prog, err);
}

/* Random plans of one graph, given by its document. */
static void test_random(const struct sample_graph *sg, uint64_t n_seeds)
{
    for (uint64_t seed = 1; seed <= n_seeds; seed++) {
        struct ap_arena arena = {0};
        struct ap_err err = {{0}};
        struct sample_plan p;
        const char *what = sample_plan(&arena, sg->json, seed, &p, &err) ? err.msg : NULL;
        if (!what)
            what = check_program(&arena, &p.plan, &p.conv, &err);
        if (what || seed == n_seeds)
            CHECK(!what, "%s, seed %d: %s", sg->name, (int)seed, what ? what : "sound");
        ap_cost_free(&p.cost);
        ap_arena_free(&arena);
        if (what)
            return;
    }
}

/* One device: the source graph, node for node. */
static void test_single(const struct sample_graph *sg)
{
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct sample s;
    struct ap_plan plan;
    struct ap_cost cost = {.cache = NULL};
    struct ap_conversions conv;
    struct ap_program prog = {.peak_bytes = 0};
    int rc = load_sample(&arena, sg->json, &s, &err);
    if (!rc) {
        ap_plan_single(&arena, &s.g, &s.nests, &plan);
        rc = make_cost(&arena, AP_COST_DEFAULT, &plan.mesh, &cost, &err) ||
             ap_plan_conversions(&arena, &plan, &cost, &conv, &err) ||
             ap_partition(&arena, &plan, &conv, &prog, &err);
    }
    CHECK(!rc && prog.local.n_nodes == s.g.n_nodes, "%s: one device: %s", sg->name,
          err.msg);
    bool same = true;
    for (int i = 0; i < prog.local.n_nodes; i++) {
        const struct ap_node *a = &prog.local.nodes[i], *b = &s.g.nodes[prog.source[i]];
        same = same && a->op == b->op && ap_shape_equal(&a->shape, &b->shape) &&
               a->n_in == b->n_in && a->group == b->group && a->phase == b->phase &&
               (a->attrs == b->attrs || a->op == AP_OP_PARAMETER);
        for (int k = 0; same && k < a->n_in; k++)
            same = prog.source[a->in[k]] == b->in[k];
    }
    CHECK(same, "%s: node for node", sg->name);
    ap_cost_free(&cost);
    ap_arena_free(&arena);
}

/* Documents from the command line: a test of the same kind on real train steps. */
static void test_file(const char *path)
{
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct sample_graph sg = {.name = path};
    char *text = NULL;
    size_t len;
    int rc = ap_read_file(&arena, path, false, &text, &len, &err);
    CHECK(!rc, "%s is read: %s", path, err.msg);
    if (!rc) {
        sg.json = text;
        test_single(&sg);
        test_random(&sg, 8);
    }
    ap_arena_free(&arena);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        test_file(argv[i]);
    if (argc > 1)
        return tap_done();
    for (int i = 0; i < N_SAMPLE_GRAPHS; i++) {
        test_single(&sample_graphs[i]);
        test_random(&sample_graphs[i], 100);
    }
    CHECK(waste_sum < 1.08 * n_wastes, "arenas of %d programs: %.3f of what is alive",
          n_wastes, waste_sum / n_wastes);
    return tap_done();
}
