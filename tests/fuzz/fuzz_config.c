/*
 * Any bytes as Hugging Face's config.json: nothing may crash, leak or exit, what is
 * refused says why, and what is accepted has a family, a name and no negative size but
 * "none".
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static FILE *file; /* the reader opens it again, from its beginning */
    static char path[32];
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct model_config config;

    if (!file) {
        file = tmpfile();
        assert(file);
        snprintf(path, sizeof path, "/dev/fd/%d", fileno(file));
    }
    int rc = ftruncate(fileno(file), 0) || pwrite(fileno(file), data, size, 0) < 0;
    assert(rc == 0);
    rc = model_read_config(&arena, path, true, &config, &err);
    assert(!rc == !err.msg[0]);
    if (rc) {
        assert(!strncmp(err.msg, path, strlen(path)));
    } else {
        assert(config.family && config.name && *config.name);
        for (int i = 0; i < MODEL_N_SIZES; i++)
            assert(config.size[i] >= -1);
    }
    ap_arena_free(&arena);
    return 0;
}
