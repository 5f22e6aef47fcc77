/*
 * The contest's format on any bytes: nothing may crash, leak or exit, what is refused
 * says why, and what is accepted is written as text that reads back as the same.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/contest_gen.h"
#include "problem_read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ap_arena arena = {0};
    struct ap_err err = {""};
    struct contest p, back;
    struct ap_buf first = {0}, second = {0};

    if (contest_parse(&arena, "fuzz", (const char *)data, size, &p, &err)) {
        assert(err.msg[0]);
    } else {
        gen_write(&p, 1, &first);
        if (contest_parse(&arena, "fuzz", first.data, first.len, &back, &err))
            abort();
        gen_write(&back, 1, &second);
        assert(first.len == second.len && !memcmp(first.data, second.data, first.len));
    }
    ap_buf_free(&first);
    ap_buf_free(&second);
    ap_arena_free(&arena);
    return 0;
}
