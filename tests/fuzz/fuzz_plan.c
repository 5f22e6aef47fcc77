/*
 * Any bytes as an object with the sections "families", "blocks" and "sharding" over a
 * fixed graph (what --plan reads, too): nothing may crash, leak or exit, what is refused
 * says why, and a plan that is accepted has a price and a program, or a reason against
 * them.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/stage_case.h"
#include "doc/blocks_json.h"
#include "doc/families_json.h"
#include "pipeline/pipeline_program.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_sharding(struct ap_arena *arena, const struct stage_case *c,
                         const json_t *o)
{
    const struct ap_at at = {NULL, "sharding", 0};
    struct ap_err err = {{0}};
    struct ap_sharding s;
    struct ap_cost cost;
    struct ap_conversions conv;
    struct ap_program prog;

    if (ap_sharding_from_json(arena, o, &at, &c->sample.g, &c->sample.nests, &s, &err)) {
        assert(err.msg[0]);
        return;
    }
    if (ap_cost_init(arena, &cost, AP_COST_DEFAULT, &c->cluster, &s.plan.mesh, &err)) {
        assert(err.msg[0]);
        return;
    }
    if (ap_plan_conversions(arena, &s.plan, &cost, &conv, &err) ||
        ap_partition(arena, &s.plan, &conv, &prog, &err))
        assert(err.msg[0]);
    else
        ap_plan_buffers(arena, &prog, 0);
    ap_cost_free(&cost);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct stage_case c;
    struct ap_families families;
    struct ap_blocks blocks;
    json_t *o = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
    const struct ap_at f = {NULL, "families", 0}, b = {NULL, "blocks", 0};

    if (load_stage_case(&arena, &c, &err))
        abort();
    const struct ap_graph *g = &c.sample.g;
    const json_t *part = json_object_get(o, "families");
    if (part && ap_families_from_json(&arena, part, &f, g, &families, &err))
        assert(err.msg[0]);
    err.msg[0] = 0;
    part = json_object_get(o, "blocks");
    if (part && ap_blocks_from_json(&arena, part, &b, g, &blocks, &err))
        assert(err.msg[0]);
    part = json_object_get(o, "sharding");
    if (part)
        try_sharding(&arena, &c, part);
    json_decref(o);
    ap_arena_free(&arena);
    return 0;
}
