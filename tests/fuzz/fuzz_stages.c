/*
 * The section "stages" of any bytes, over a fixed graph of two layers: nothing may crash,
 * leak or exit, what is refused says why, and what is accepted has a price or a reason
 * against it, and is written as text that reads back as the same.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/stage_case.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int read_bytes(struct ap_arena *arena, const struct stage_case *c,
                      const char *data, size_t size, struct ap_stages *s,
                      struct ap_err *err)
{
    const struct ap_staged_graph of = {&c->sample.g, NULL, &c->blocks, &c->cluster};
    json_error_t bad;
    json_t *o = json_loadb(data, size, JSON_REJECT_DUPLICATES, &bad);
    if (!json_is_object(o)) {
        json_decref(o);
        return ap_err_set(err, "no object: %s", bad.text);
    }
    json_decref(o);
    return ap_stages_from_text(arena, data, size, &of, s, err);
}

/* -1: one of the plans that a hand-written section names is not legal. */
static int write(struct ap_arena *arena, const struct stage_case *c, struct ap_stages *s,
                 struct ap_buf *out, struct ap_err *err)
{
    for (int i = 0; i < s->n; i++)
        if (ap_stage_put_sharding(arena, &c->cluster, &s->stage[i], err))
            return -1;
    ap_stages_to_json(s, out);
    return 0;
}

static void round_trip(struct ap_arena *arena, const struct stage_case *c,
                       struct ap_stages *s)
{
    struct ap_buf first = {0}, second = {0};
    struct ap_err err = {""};
    struct ap_stages back;

    if (write(arena, c, s, &first, &err)) {
        assert(err.msg[0]);
    } else {
        if (read_bytes(arena, c, first.data, first.len, &back, &err) ||
            write(arena, c, &back, &second, &err)) {
            fprintf(stderr, "%s\n%.*s\n", err.msg, (int)first.len, first.data);
            abort();
        }
        assert(first.len == second.len && !memcmp(first.data, second.data, first.len));
    }
    ap_buf_free(&first);
    ap_buf_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ap_arena arena = {0};
    struct ap_err err = {""};
    struct stage_case c;
    struct ap_stages s;

    if (load_stage_case(&arena, &c, &err))
        abort();
    if (read_bytes(&arena, &c, (const char *)data, size, &s, &err))
        assert(err.msg[0]);
    else
        round_trip(&arena, &c, &s);
    ap_arena_free(&arena);
    return 0;
}
