/* Reads a line of the shard command; ap-shard(1) has the protocol. */
#include "oracle/answer.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_scan.h"
#include "doc/fast_json.h"

/* Sums over microbatches and stages stay finite. */
#define MAX_SEC 1e30

static int get_sec(const json_t *o, const struct ap_at *at, const char *key, double *out,
                   struct ap_err *err)
{
    struct ap_at here = {at, key, 0};
    if (ap_get_num(o, at, key, out, err))
        return -1;
    if (*out >= 0 && *out <= MAX_SEC)
        return 0;
    return ap_at_err(&here, err, "expected seconds >= 0%s, got %g",
                     *out > 0 ? " and up to 1e30" : "", *out);
}

static int get_point(const json_t *o, const struct ap_at *at, struct answer_point *p,
                     struct ap_err *err)
{
    const json_t *each = json_object_get(o, "sec_per_microbatch");
    const json_t *again = json_object_get(o, "recompute");
    struct ap_at here = {at, "sec_per_microbatch", 0};
    double step;

    p->passing_bytes = 0;
    if (!json_is_object(each))
        return ap_at_err(&here, err, "expected an object of forward and backward");
    if (get_sec(each, &here, "forward", &p->forward_sec, err) ||
        get_sec(each, &here, "backward", &p->backward_sec, err) ||
        get_sec(o, at, "sec_per_step", &step, err) ||
        get_sec(o, at, "sync_sec", &p->sync_sec, err) ||
        ap_get_int(o, at, "stage_bytes", 0, INT64_MAX, &p->stage_bytes, err) ||
        ap_get_int(o, at, "bytes_per_microbatch", 0, INT64_MAX, &p->microbatch_bytes,
                   err) ||
        (json_object_get(o, "passing_bytes") &&
         ap_get_int(o, at, "passing_bytes", 0, p->stage_bytes, &p->passing_bytes, err)))
        return -1;
    if (!json_is_boolean(again))
        return ap_at_err(at, err, "expected recompute to be true or false");
    if (p->sync_sec > step * (1 + 1e-9))
        return ap_at_err(at, err, "sync_sec %g is more than sec_per_step %g", p->sync_sec,
                         step);
    p->update_sec = step > p->sync_sec ? step - p->sync_sec : 0;
    p->recompute = json_is_true(again);
    p->slack_sec = 0;
    if (!json_object_get(o, "slack_sec"))
        return 0;
    double slack;
    if (get_sec(o, at, "slack_sec", &slack, err))
        return -1;
    p->slack_sec = (float)slack;
    return 0;
}

static int get_front(struct ap_arena *arena, const json_t *o, struct answer *a,
                     struct ap_err *err)
{
    json_t *front;
    struct ap_at at = {.key = "front"};
    if (ap_get_arr(o, NULL, "front", &front, err))
        return -1;
    a->points = AP_NEW_N(arena, json_array_size(front) + 1, struct answer_point);
    for (size_t i = 0; i < json_array_size(front); i++) {
        struct ap_at here = {&at, NULL, (long)i};
        const json_t *point = json_array_get(front, i);
        if (!json_is_object(point))
            return ap_at_err(&here, err, "expected an object");
        if (get_point(point, &here, &a->points[a->n_points++], err))
            return -1;
    }
    return 0;
}

/* ---- shardings, which are most of a line and are read with their plan ---- */

/* Skips the members of an object up to the one of that name, or to the end. */
static bool skip_to(struct ap_json *p, const char *name, bool *found)
{
    const char *text;

    *found = false;
    if (!ap_json_take(p, '{'))
        return false;
    do {
        int n = ap_json_plain_string(p, &text);
        if (n < 0 || !ap_json_take(p, ':'))
            return false;
        *found = n == (int)strlen(name) && memcmp(text, name, (size_t)n) == 0;
    } while (!*found && !ap_json_skip(p, 1) && ap_json_take(p, ','));
    return true;
}

/* The line without its sharding, whose text goes to a; NULL: it has none, or all of it is
 * to be read. The caller decrefs. */
static json_t *take_sharding(const char *line, size_t len, struct answer *a)
{
    struct ap_json p = {.at = line, .end = line + len}, inside;
    struct ap_buf rest = {0};
    bool found, groups;

    if (!skip_to(&p, "sharding", &found) || !found || ap_json_next(&p) != '{')
        return NULL;
    const char *from = p.at;
    inside = p;
    if (ap_json_skip(&p, 1) || !skip_to(&inside, "groups", &groups))
        return NULL;
    ap_buf_put(&rest, line, (size_t)(from - line));
    ap_buf_putc(&rest, '0');
    ap_buf_put(&rest, p.at, (size_t)(p.end - p.at));
    json_t *o = ap_fast_json_value(rest.data, rest.len);
    ap_buf_free(&rest);
    if (!o)
        return NULL;
    size_t size = (size_t)(p.at - from);
    a->sharding = ap_xrealloc(NULL, size + 1);
    memcpy(a->sharding, from, size);
    a->sharding[size] = '\0';
    a->names_only = !groups;
    return o;
}

int answer_parse(struct ap_arena *arena, const char *line, size_t len, struct answer *a,
                 struct ap_err *err)
{
    json_error_t bad;
    const char *error = NULL;
    int rc = 0;

    *a = (struct answer){.id = -1};
    json_t *o = take_sharding(line, len, a);
    if (!o)
        o = ap_fast_json_value(line, len);
    if (!o) /* slowly, and with a reason if it is wrong */
        o = json_loadb(line, len, JSON_REJECT_DUPLICATES, &bad);
    if (!o)
        return ap_err_set(err, "column %d: %s", bad.column, bad.text);
    if (!json_is_object(o))
        rc = ap_err_set(err, "not an object");
    else if (ap_get_int(o, NULL, "id", 0, INT32_MAX, &a->id, err) ||
             ap_opt_str(o, NULL, "error", &error, err))
        rc = -1;
    else if (error)
        a->error = ap_arena_strdup(arena, error);
    else
        rc = get_front(arena, o, a, err);
    const json_t *sharding = json_object_get(o, "sharding");
    if (rc == 0 && !a->error && json_is_object(sharding)) {
        a->sharding = json_dumps(sharding, JSON_COMPACT);
        a->names_only = !json_object_get(sharding, "groups");
    }
    json_decref(o);
    if (rc == 0 && !a->error)
        return 0;
    free(a->sharding);
    a->sharding = NULL;
    return rc;
}
