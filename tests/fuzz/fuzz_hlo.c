/*
 * HLO text to a graph and its JSON, on any bytes: nothing may crash, leak or exit, and a
 * text that is refused must say why. What is accepted is read back as a document.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "doc/doc.h"
#include "import.h"

#define MAX_WORK 20000 /* instructions after inlining, for speed */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ignore(void *arg, const char *msg)
{
    size_t *n = arg;
    *n += strlen(msg);
}

/* Reads the JSON of a graph and writes it again. */
static struct ap_buf rewrite(struct ap_arena *arena, struct ap_buf in)
{
    struct ap_buf out = {0};
    struct ap_err err = {{0}};
    struct ap_graph g;
    struct ap_at at = {.key = "graph"};
    json_t *json = json_loadb(in.data, in.len, 0, NULL);
    if (!json || ap_graph_from_json(arena, json, &at, &g, &err))
        abort();
    ap_graph_to_json(&g, &out);
    json_decref(json);
    ap_buf_free(&in);
    return out;
}

/* The JSON can be read, and once it was (bytes that are no UTF-8 change) stays the same.
 */
static void round_trip(struct ap_arena *arena, const struct ap_graph *g)
{
    struct ap_buf first = {0};
    ap_graph_to_json(g, &first);
    first = rewrite(arena, first);
    struct ap_buf copy = {0};
    ap_buf_put(&copy, first.data, first.len);
    struct ap_buf second = rewrite(arena, copy);
    if (first.len != second.len || memcmp(first.data, second.data, first.len) != 0)
        abort();
    ap_buf_free(&first);
    ap_buf_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    size_t warned = 0;
    char *text = ap_arena_strndup(&arena, "", 0);
    if (size) {
        text = ap_arena_alloc(&arena, size + 1);
        memcpy(text, data, size);
    }
    struct hlo_src src = {.arena = &arena,
                          .file = "fuzz",
                          .text = text,
                          .len = size,
                          .err = &err,
                          .warn = ignore,
                          .warn_arg = &warned};
    struct import_params params = {.max_work = MAX_WORK};
    struct import_stats stats = {0};
    struct ap_graph graph;
    if (import_hlo(&src, &params, &graph, &stats))
        assert(err.msg[0]);
    else
        round_trip(&arena, &graph);
    ap_arena_free(&arena);
    return 0;
}
