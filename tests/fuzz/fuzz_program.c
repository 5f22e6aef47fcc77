/*
 * Any bytes as an object with a section "program" or "pipeline": nothing may crash, leak
 * or exit, what is refused says why, and what is accepted is written as text that reads
 * back as the same, and so is what each lane's ranks get of it.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/pipeline_program.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static json_t *parsed(const struct ap_buf *text)
{
    json_t *o = json_loadb(text->data, text->len, 0, NULL);
    assert(o);
    return o;
}

static void same(struct ap_buf *first, struct ap_buf *second)
{
    assert(first->len == second->len && !memcmp(first->data, second->data, first->len));
    ap_buf_free(first);
    ap_buf_free(second);
}

static void try_lane(struct ap_arena *arena, const struct ap_at *at,
                     const struct ap_pipeline_program *whole, int lane)
{
    const struct ap_pipeline_program part = ap_pipeline_part(arena, whole, lane);
    struct ap_err err = {{0}};
    struct ap_pipeline_program back;
    struct ap_buf first = {0}, second = {0};

    ap_pipeline_to_json(&part, &first);
    json_t *again = parsed(&first);
    if (ap_pipeline_part_from_json(arena, again, at, &back, &err))
        abort();
    json_decref(again);
    ap_pipeline_to_json(&back, &second);
    same(&first, &second);
}

static void try_section(struct ap_arena *arena, const char *section, const json_t *o)
{
    const struct ap_at at = {NULL, section, 0};
    struct ap_err err = {{0}};
    struct ap_pipeline_program whole, back;
    struct ap_buf first = {0}, second = {0};

    if (ap_pipeline_from_json(arena, o, &at, &whole, &err)) {
        assert(err.msg[0]);
        return;
    }
    ap_pipeline_to_json(&whole, &first);
    json_t *again = parsed(&first);
    if (ap_pipeline_from_json(arena, again, &at, &back, &err))
        abort();
    json_decref(again);
    ap_pipeline_to_json(&back, &second);
    same(&first, &second);
    for (int i = 0; i < whole.n_lanes; i++)
        try_lane(arena, &at, &whole, i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ap_arena arena = {0};
    json_t *o = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);

    if (json_object_get(o, "program"))
        try_section(&arena, "program", json_object_get(o, "program"));
    if (json_object_get(o, "pipeline"))
        try_section(&arena, "pipeline", json_object_get(o, "pipeline"));
    json_decref(o);
    ap_arena_free(&arena);
    return 0;
}
