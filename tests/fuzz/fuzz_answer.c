/*
 * Lines that a shard command may answer: nothing may crash, leak or exit, what is refused
 * says why, and what is accepted has points that a planner can compare.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "oracle/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_point(const struct answer_point *p)
{
    const double sec[] = {p->forward_sec, p->backward_sec, p->sync_sec, p->update_sec};
    for (size_t i = 0; i < sizeof sec / sizeof *sec; i++)
        assert(isfinite(sec[i]) && sec[i] >= 0);
    assert(p->stage_bytes >= 0 && p->microbatch_bytes >= 0);
    assert(p->passing_bytes >= 0 && p->passing_bytes <= p->stage_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ap_arena arena = {0};
    struct ap_err err = {""};
    struct answer a;

    if (answer_parse(&arena, (const char *)data, size, &a, &err)) {
        assert(err.msg[0] && !a.sharding);
    } else {
        assert(a.id >= 0 && (a.error || a.n_points == 0 || a.points));
        for (int i = 0; i < a.n_points; i++)
            check_point(&a.points[i]);
        free(a.sharding);
    }
    ap_arena_free(&arena);
    return 0;
}
