/*
 * Reading programs that somebody tampered with: each is refused with a place, or is one
 * that an interpreter can run inside its arena.
 */
#include "pipeline/pipeline_program.h"
#include "random_plan.h"
#include "sample_graphs.h"
#include "tap.h"

#include <ctype.h>
#include <stdlib.h>

/* All nodes are of one kernel. */
static void mark_all(struct ap_arena *arena, struct ap_graph *g)
{
    for (int i = 0; i < g->n_nodes; i++) {
        struct ap_attrs *attrs = ap_arena_dup(arena, g->nodes[i].attrs, sizeof *attrs);
        attrs->kernel = 1;
        g->nodes[i].attrs = attrs;
    }
}

/* Odd seeds: with collectives in flight; from 8 on with kernels. */
static int make_program(struct ap_arena *arena, const struct sample_graph *sg,
                        const char *mesh, uint64_t seed, struct ap_program *prog,
                        struct ap_err *err)
{
    struct sample s;
    struct ap_cost cost = {.cache = NULL};
    struct ap_conversions conv;
    if (load_sample(arena, sg->json, &s, err))
        return -1;
    struct ap_plan plan = {.graph = &s.g, .nests = &s.nests};
    if (ap_mesh_parse(arena, mesh, &plan.mesh, err))
        return -1;
    random_plan(arena, &plan, (struct random_weights){1, 4, 1}, seed);
    int rc = make_cost(arena, AP_COST_DEFAULT, &plan.mesh, &cost, err) ||
             ap_plan_conversions(arena, &plan, &cost, &conv, err) ||
             ap_partition(arena, &plan, &conv, prog, err);
    if (!rc && seed >= 8) {
        mark_all(arena, &prog->local);
        ap_program_kernels(arena, prog);
    }
    if (!rc && seed % 2)
        ap_program_pack(arena, prog,
                        &(struct ap_program_form){.overlap = true, .pack_bytes = 1000});
    if (!rc)
        ap_plan_buffers(arena, prog, 0);
    ap_cost_free(&cost);
    return rc;
}

static int read_text(struct ap_arena *arena, const char *text, struct ap_program *prog,
                     struct ap_err *err)
{
    struct ap_at at = {.key = "program"};
    json_error_t where;
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    if (!o)
        return ap_err_set(err, "/: %s", where.text);
    struct ap_pipeline_program one;
    int rc = ap_pipeline_from_json(arena, o, &at, &one, err);
    json_decref(o);
    if (!rc)
        *prog = one.stage[0].prog;
    return rc;
}

/* Everything that an interpreter touches lies in the arena. */
static const char *check_bounds(const struct ap_program *p)
{
    for (int i = 0; i < p->local.n_nodes; i++) {
        const struct ap_node *n = &p->local.nodes[i];
        int64_t bytes = ap_shape_bytes(&n->shape), offset = p->buffer[i].offset;
        if (offset >= 0 && (offset % 64 || offset > p->peak_bytes - bytes))
            return "a buffer outside the arena";
        for (int k = 0; k < n->n_in; k++)
            if (p->buffer[n->in[k]].offset < 0 &&
                p->local.nodes[n->in[k]].group != n->group)
                return "an operand without memory";
    }
    return NULL;
}

/* Puts another number in place of the one that starts at `at`. */
static char *tamper(const char *text, size_t at, const char *number)
{
    size_t end = at, len = strlen(text);
    while (end < len && (isdigit((unsigned char)text[end]) || text[end] == '.'))
        end++;
    struct ap_buf out = {0};
    ap_buf_put(&out, text, at);
    ap_buf_puts(&out, number);
    ap_buf_puts(&out, text + end);
    return out.data;
}

static void test_numbers(const struct sample_graph *sg, uint64_t seed)
{
    static const char *const numbers[] = {
        "0", "1", "7", "-1", "64", "4096", "2147483647", "9223372036854775807"};
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct ap_program prog;
    struct ap_buf text = {0};
    int rc = make_program(&arena, sg, "2x2", seed, &prog, &err);
    CHECK(!rc, "%s: a program: %s", sg->name, err.msg);
    if (rc)
        return;
    ap_program_to_json(&prog, &text);
    uint64_t state = 1;
    int refused = 0, taken = 0;
    const char *what = NULL;
    for (int i = 0; i < 600 && !what; i++) {
        size_t at = (size_t)(random_next(&state) % text.len);
        while (at < text.len && !(isdigit((unsigned char)text.data[at]) &&
                                  strchr("[,:-xSZ", text.data[at - 1])))
            at++;
        if (at >= text.len)
            continue;
        char *bad = tamper(text.data, at, numbers[random_below(&state, 8)]);
        struct ap_arena scratch = {0};
        struct ap_program back;
        struct ap_err why = {{0}};
        if (read_text(&scratch, bad, &back, &why)) {
            refused++;
            what = why.msg[0] == '/' ? NULL : "a message without a place";
        } else {
            taken++;
            what = check_bounds(&back);
        }
        if (what)
            printf("# %s: %s\n", what, why.msg);
        ap_arena_free(&scratch);
        free(bad);
    }
    CHECK(!what, "%s: %d changed numbers refused, %d harmless", sg->name, refused, taken);
    CHECK(refused > 300, "most changes are noticed");
    ap_buf_free(&text);
    ap_arena_free(&arena);
}

/* The result that is computed in the buffer of node i, a parameter; -1. */
static int new_value(const struct ap_program *p, int i)
{
    for (int r = 0; r < p->local.n_results; r++) {
        const struct ap_result *res = &p->local.results[r];
        if (res->alias == i && res->node != i && p->buffer[res->node].alias == i)
            return res->node;
    }
    return -1;
}

/* Whether a node is a view of fewer bytes than the value that it views: these live on
 * alone. */
static bool is_part(const struct ap_program *p, int i)
{
    const int alias = p->buffer[i].alias;

    return alias >= 0 && p->buffer[i].bytes < p->buffer[alias].bytes;
}

/* The node whose memory has a node's value, or `node`, if that is on the way. */
static int memory_of(const struct ap_program *p, int in, int node)
{
    while (p->buffer[in].alias >= 0 && in != node && !is_part(p, in) &&
           new_value(p, p->buffer[in].alias) != in)
        in = p->local.nodes[in].in[0];
    return in;
}

/* First and last group that a value is in memory; it has none: 1, 0. */
static void find_life(const struct ap_program *p, int node, int *birth, int *death)
{
    const struct ap_graph *g = &p->local;
    const int later = g->nodes[node].op == AP_OP_PARAMETER ? new_value(p, node) : -1;
    const int alias = p->buffer[node].alias;
    const bool in_place = alias >= 0 && new_value(p, alias) == node;

    *birth = g->nodes[node].op == AP_OP_PARAMETER ? 0 : g->nodes[node].group;
    *death = in_place || (!*birth && later < 0 && g->nodes[node].op == AP_OP_PARAMETER)
                 ? g->n_groups
                 : *birth;
    if (p->buffer[node].offset < 0 || (alias >= 0 && !in_place && !is_part(p, node)))
        *death = *birth - 1; /* a view */
    for (int i = 0; i < g->n_nodes && *death >= *birth; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            const int in = memory_of(p, g->nodes[i].in[k], node);
            const int wait = p->wait ? p->wait[g->nodes[i].group] : -1;
            const int read = wait < 0 ? g->nodes[i].group : wait - 1;
            *death = in == node && read > *death ? read : *death;
            if (wait >= 0 && memory_of(p, i, node) == node && read > *death)
                *death = read;
        }
    for (int r = 0; r < g->n_results; r++)
        if (memory_of(p, g->results[r].node, node) == node)
            *death = g->n_groups;
}

/* Whether two values that are needed at once share bytes: by lifetimes, pair by pair. */
static bool clashes(const struct ap_program *p, const int *birth, const int *death)
{
    for (int i = 0; i < p->local.n_nodes; i++)
        for (int k = 0; k < i; k++) {
            const struct ap_buffer *a = &p->buffer[i], *b = &p->buffer[k];
            if (birth[i] <= death[i] && birth[k] <= death[k] && birth[i] <= death[k] &&
                birth[k] <= death[i] && a->offset < b->offset + b->bytes &&
                b->offset < a->offset + a->bytes && a->alias != k && b->alias != i &&
                (a->alias < 0 || a->alias != b->alias))
                return true;
        }
    return false;
}

/* Moves buffers onto others: the play on the arena and lifetimes say the same. */
static void test_memory(const struct sample_graph *sg, uint64_t seed)
{
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    const struct ap_at at = {.key = "program"};
    struct ap_program prog;
    uint64_t state = 3;
    int refused = 0, taken = 0, wrong = 0;

    if (make_program(&arena, sg, "2x2", seed, &prog, &err)) {
        CHECK(false, "%s: a program: %s", sg->name, err.msg);
        return;
    }
    const int n = prog.local.n_nodes;
    struct ap_buffer *good = prog.buffer, *moved = AP_NEW_N(&arena, n, struct ap_buffer);
    int *birth = AP_NEW_N(&arena, n, int), *death = AP_NEW_N(&arena, n, int);
    for (int i = 0; i < n; i++)
        find_life(&prog, i, &birth[i], &death[i]);
    struct ap_pipeline_program one;
    ap_pipeline_of_program(&arena, &prog, &one);
    CHECK(!ap_pipeline_check_memory(&one, &at, &err), "%s: %s", sg->name, err.msg);
    prog.buffer = one.stage[0].prog.buffer = moved;
    for (int i = 0; i < 2000; i++) {
        const int a = random_below(&state, n), b = random_below(&state, n);
        const int64_t by = 64 * random_below(&state, 3);
        memcpy(moved, good, (size_t)n * sizeof *good);
        if (good[a].offset < 0 || good[b].offset < 0 || good[a].alias >= 0 ||
            prog.local.nodes[a].op == AP_OP_PARAMETER)
            continue;
        for (int k = 0; k < n; k++)
            if (k == a || good[k].alias == a)
                moved[k].offset = good[b].offset + by;
        struct ap_err why = {{0}};
        const bool bad = ap_pipeline_check_memory(&one, &at, &why) != 0;
        *(bad ? &refused : &taken) += 1;
        if (bad != clashes(&prog, birth, death) || (bad && why.msg[0] != '/')) {
            printf("# node %d onto %d: %s\n", a, b, why.msg);
            wrong++;
        }
    }
    CHECK(!wrong && refused > 100 && taken > 10,
          "%s: %d moved buffers refused, %d harmless", sg->name, refused, taken);
    for (int k = 0; k < n; k++)
        moved[k].offset = good[k].offset < 0 ? -1 : 0;
    CHECK(ap_pipeline_check_memory(&one, &at, &err), "%s: all at one offset: %s",
          sg->name, err.msg);
    ap_arena_free(&arena);
}

/* A change to the document and what the message must say. */
struct broken {
    const char *from, *to, *says;
};

static void test_messages(void)
{
    static const struct broken broken[] = {
        {"\"n_ranks\":4", "\"n_ranks\":3", "/program/n_ranks: 3 ranks"},
        {"\"shape\":[2,2]", "\"shape\":[2,0]", "/program/mesh"},
        {"\"axes\":[\"x\",\"y\"],\"shape\"", "\"axes\":[\"x\",\"x\"],\"shape\"", "twice"},
        {"\"instructions\":{\"all\":[{\"run\":0}]}", "\"instructions\":{\"all\":[]}",
         "/program/instructions"},
        {"\"offset\":[", "\"offset\":[3,", "one number per node"},
        {"\"offset\":[0", "\"offset\":[1", "multiple of 64"},
        {"\"peak_bytes\":", "\"peak_bytes\":1,\"was\":", "beyond peak_bytes"},
        {"\"alias\":[", "\"alias\":[-7],\"was\":[", "/alias"},
        {"\"global\":\"f32[10,16]\"", "\"global\":\"f32[10,32]\"", "shard"},
        {"\"n_groups\":", "\"n_groups\":9", "/n_groups"},
        {"\"source\":[", "\"source\":[-1],\"was\":[", "/source"},
    };
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct ap_program prog;
    struct ap_buf text = {0};
    if (make_program(&arena, &sample_graphs[0], "2x2", 3, &prog, &err)) {
        CHECK(false, "a program: %s", err.msg);
        return;
    }
    ap_program_to_json(&prog, &text);
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        char *at = strstr(text.data, broken[i].from);
        struct ap_err why = {{0}};
        struct ap_buf bad = {0};
        if (at) {
            ap_buf_put(&bad, text.data, (size_t)(at - text.data));
            ap_buf_puts(&bad, broken[i].to);
            ap_buf_puts(&bad, at + strlen(broken[i].from));
        }
        int rc = at ? read_text(&arena, bad.data, &prog, &why) : 0;
        CHECK(rc && strstr(why.msg, broken[i].says), "%s: %s", broken[i].to, why.msg);
        ap_buf_free(&bad);
    }
    ap_buf_free(&text);
    ap_arena_free(&arena);
}

/*
 * README of libcommon/program: h = exp(x) is whole in the forward pass and split in the
 * backward pass, between which exp(z) runs.
 */
static const char kept[] =
    "{\"autopar\":1,\"graph\":{\"reducers\":[{\"kind\":\"sum\",\"results\":[]}],"
    "\"nodes\":["
    "{\"op\":\"parameter\",\"name\":\"x\",\"shape\":\"f32[4096]\",\"in\":[],\"param\":0},"
    "{\"op\":\"exponential\",\"name\":\"h\",\"shape\":\"f32[4096]\",\"in\":[0]},"
    "{\"op\":\"constant\",\"shape\":\"f32[]\",\"in\":[],\"value\":0},"
    "{\"op\":\"reduce\",\"name\":\"sum\",\"shape\":\"f32[]\",\"in\":[1,2],\"dimensions\":"
    "[0],\"to_apply\":0},"
    "{\"op\":\"broadcast\",\"name\":\"spread\",\"shape\":\"f32[4096]\",\"in\":[3],"
    "\"dimensions\":[]},"
    "{\"op\":\"exponential\",\"name\":\"more\",\"shape\":\"f32[4096]\",\"in\":[4]},"
    "{\"op\":\"reduce\",\"name\":\"loss\",\"shape\":\"f32[]\",\"in\":[5,2],"
    "\"dimensions\":"
    "[0],\"to_apply\":0},"
    "{\"op\":\"broadcast\",\"name\":\"dh\",\"shape\":\"f32[4096]\",\"in\":[6],"
    "\"dimensions\":[],\"phase\":\"backward\"},"
    "{\"op\":\"multiply\",\"name\":\"dx\",\"shape\":\"f32[4096]\",\"in\":[1,7],"
    "\"phase\":\"backward\"}],"
    "\"results\":[{\"node\":6},{\"node\":8}]}}";

static int group_named(const struct ap_graph *g, const char *name)
{
    for (int i = 0; i < g->n_nodes; i++)
        if (!strcmp(g->nodes[i].name, name))
            return g->nodes[i].group;
    return -1;
}

/* Plans and partitions it; early: conversions may be made before they are needed, as they
 * are where the order of groups is not given. */
static int partition_kept(struct ap_arena *arena, bool early, struct ap_program *prog,
                          struct ap_err *err)
{
    struct sample *s = AP_NEW(arena, struct sample);
    struct ap_cost cost = {.cache = NULL};
    struct ap_conversions conv;
    struct ap_plan plan = {.graph = &s->g, .nests = &s->nests};

    if (load_sample(arena, kept, s, err) || ap_mesh_parse(arena, "4", &plan.mesh, err))
        return -1;
    plan.choice = AP_NEW_N(arena, s->nests.n, struct ap_choice_vec);
    for (int i = 0; i < s->nests.n; i++)
        plan.choice[i] = AP_CHOICE_NONE;
    plan.choice[s->g.nodes[8].group].axis[0] = 0;
    plan.turn = early ? NULL : AP_NEW_N(arena, s->nests.n, int);
    int rc = make_cost(arena, AP_COST_DEFAULT, &plan.mesh, &cost, err) ||
             ap_plan_conversions(arena, &plan, &cost, &conv, err) ||
             ap_partition(arena, &plan, &conv, prog, err);
    ap_cost_free(&cost);
    return rc;
}

static void test_readme(void)
{
    static const int64_t want[2] = {49280, 36992};

    for (int early = 0; early < 2; early++) {
        struct ap_arena arena = {0};
        struct ap_program prog;
        struct ap_err err = {""};
        int slice = -1;
        if (partition_kept(&arena, early, &prog, &err)) {
            CHECK(false, "README of libcommon/program: %s", err.msg);
            return;
        }
        for (int i = 0; i < prog.local.n_nodes && slice < 0; i++)
            if (prog.local.nodes[i].op == AP_OP_AP_SLICE)
                slice = prog.local.nodes[i].group;
        int sum = group_named(&prog.local, "sum");
        int loss = group_named(&prog.local, "loss");
        int64_t alive = ap_program_alive(&arena, &prog, true)[loss];
        CHECK(early ? slice == sum + 1 && slice < loss : slice > loss,
              "README of libcommon/program: the slice is made %s the loss",
              slice < loss ? "before" : "behind");
        CHECK(alive == want[early],
              "README of libcommon/program: %lld bytes alive at the loss",
              (long long)alive);
        ap_arena_free(&arena);
    }
}

int main(void)
{
    test_messages();
    test_readme();
    for (int i = 0; i < N_SAMPLE_GRAPHS; i++)
        for (uint64_t seed = 5; seed < 10; seed += 4)
            test_numbers(&sample_graphs[i], seed);
    for (int i = 0; i < N_SAMPLE_GRAPHS; i++)
        for (uint64_t seed = 6; seed < 9; seed++)
            test_memory(&sample_graphs[i], seed);
    return tap_done();
}
