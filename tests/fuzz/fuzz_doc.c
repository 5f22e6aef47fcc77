/*
 * Documents of any bytes: nothing may crash, leak or exit, what is refused says why, and
 * a graph that is accepted is written as text that reads back as the same graph.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "doc/doc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ap_doc_write's text. */
static struct ap_buf written(const struct ap_doc *doc, struct ap_new_section *sections,
                             int n, const char *history)
{
    struct ap_buf out = {0};
    FILE *file = open_memstream(&out.data, &out.len);

    ap_doc_write(doc, sections, n, history, file);
    fclose(file);
    return out;
}

static void round_trip(struct ap_arena *arena, const struct ap_graph *g)
{
    struct ap_doc none = {.file = "fuzz"}, doc;
    struct ap_buf second = {0};
    struct ap_new_section section = {.name = "graph"};
    struct ap_err err = {""};
    struct ap_graph back;

    ap_graph_to_json(g, &section.json);
    struct ap_buf first = written(&none, &section, 1, "{}");
    if (ap_doc_parse(arena, "fuzz", first.data, first.len, &doc, &err) ||
        ap_doc_graph(arena, &doc, &back, &err))
        abort();
    ap_graph_to_json(&back, &second);
    assert(second.len == section.json.len &&
           !memcmp(second.data, section.json.data, second.len));
    ap_buf_free(&section.json);
    ap_buf_free(&first);
    ap_buf_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ap_arena arena = {0};
    struct ap_err err = {""};
    struct ap_doc doc;
    struct ap_graph g;
    struct ap_buf out = {0};

    if (ap_doc_parse(&arena, "fuzz", (const char *)data, size, &doc, &err)) {
        assert(err.msg[0]);
    } else {
        if (ap_doc_graph(&arena, &doc, &g, &err))
            assert(err.msg[0]);
        else
            round_trip(&arena, &g);
        out = written(&doc, NULL, 0, "{\"tool\":\"fuzz\"}");
        err.msg[0] = '\0';
        if (ap_doc_parse(&arena, "fuzz", out.data, out.len, &doc, &err))
            abort();
    }
    ap_buf_free(&out);
    ap_arena_free(&arena);
    return 0;
}
