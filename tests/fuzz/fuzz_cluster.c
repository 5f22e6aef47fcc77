/*
 * Any bytes as a cluster, of one kind of device or several: nothing may crash, leak or
 * exit, what is refused says why; what is accepted is written as text that reads back as
 * the same, has finite figures of every device, and its kinds are clusters of their own.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "pipeline/stages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int read_bytes(struct ap_arena *arena, const char *data, size_t size,
                      struct ap_cluster *c, struct ap_err *err)
{
    json_error_t bad;
    json_t *o = json_loadb(data, size, JSON_REJECT_DUPLICATES, &bad);

    if (!o)
        return ap_err_set(err, "no JSON: %s", bad.text);
    int rc = ap_cluster_from_json(arena, o, NULL, c, err);
    json_decref(o);
    return rc;
}

static void check_device(const struct ap_cluster *c, int64_t device)
{
    const struct ap_cluster *of = ap_cluster_of_device(c, device);

    assert(of->memory_bytes >= c->memory_bytes && of->device);
    assert(ap_cluster_peak(of, AP_BF16) > 0 && isfinite(ap_cluster_peak(of, AP_BF16)));
    assert(ap_cluster_efficiency(of, 1e9) > 0 && ap_cluster_efficiency(of, 1e9) <= 1);
}

/* The first devices of each kind, as stages have them. */
static void check_kinds(struct ap_arena *arena, const struct ap_cluster *c)
{
    int64_t first = 0, size = c->levels[0].size;

    for (int k = 0; k < c->n_kinds; k++) {
        struct ap_cluster one;
        struct ap_err err = {""};
        int64_t n = size < 64 ? size : 64;
        int64_t *ids = AP_NEW_N(arena, (int)n, int64_t);
        for (int64_t i = 0; i < n; i++)
            ids[i] = first + i;
        assert(ap_cluster_kind_of(c, first) == k);
        assert(!ap_cluster_take(c, n, ids, &one, &err) && one.n_kinds == 0);
        assert(ap_cluster_devices(&one) == n);
        first += c->kind[k].hosts * size;
    }
    assert(c->n_kinds == 0 || first == ap_cluster_devices(c));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ap_arena arena = {0};
    struct ap_err err = {""};
    struct ap_cluster c, back;

    if (read_bytes(&arena, (const char *)data, size, &c, &err)) {
        assert(err.msg[0]);
    } else {
        struct ap_buf first = {0}, second = {0};
        ap_cluster_to_json(&c, &first);
        int rc = read_bytes(&arena, first.data, first.len, &back, &err);
        assert(rc == 0);
        ap_cluster_to_json(&back, &second);
        assert(first.len == second.len && !memcmp(first.data, second.data, first.len));
        check_device(&c, 0);
        check_device(&c, ap_cluster_devices(&c) - 1);
        check_kinds(&arena, &c);
        ap_buf_free(&first);
        ap_buf_free(&second);
    }
    ap_arena_free(&arena);
    return 0;
}
