/*
 * Any bytes as the file of --roles: nothing may crash, leak or exit, what is refused
 * says why, and what is accepted are patterns with roles that there are.
 */
#include <assert.h>
#include <string.h>

#include "import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct override *list;
    const struct import_words of = {"fuzz", (const char *)data, size, ap_role_names,
                                    AP_N_ROLES};
    const int n = import_read_overrides(&arena, &of, &list, &err);

    assert((n < 0) == (err.msg[0] != 0));
    for (int i = 0; i < n; i++) {
        assert(list[i].value >= 0 && list[i].value < AP_N_ROLES);
        ap_glob(list[i].glob, "gpt/h_1/mlp/w");
    }
    ap_arena_free(&arena);
    return 0;
}
