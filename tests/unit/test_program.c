/*
 * Reading programs that somebody tampered with: each is refused with a place, or is one
 * that an interpreter can run inside its arena.
 */
#include "program/program.h"
#include "random_plan.h"
#include "sample_graphs.h"
#include "tap.h"

#include <ctype.h>
#include <stdlib.h>

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
    if (!rc)
        ap_plan_buffers(arena, prog);
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
    int rc = ap_program_from_json(arena, o, &at, prog, err);
    json_decref(o);
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

static void test_numbers(const struct sample_graph *sg)
{
    static const char *const numbers[] = {
        "0", "1", "7", "-1", "64", "4096", "2147483647", "9223372036854775807"};
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct ap_program prog;
    struct ap_buf text = {0};
    int rc = make_program(&arena, sg, "2x2", 5, &prog, &err);
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

int main(void)
{
    test_messages();
    for (int i = 0; i < N_SAMPLE_GRAPHS; i++)
        test_numbers(&sample_graphs[i]);
    return tap_done();
}
