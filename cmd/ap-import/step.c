/*
 * The section `step`: the description of the exported step in the header of the text
 * (python/autopar/step.py writes it). It is checked against the entry computation,
 * so that no tool after this one meets a section that speaks of another step. Parameters
 * and results then say which arguments and results of the step they are, since splitting
 * stacked tensors numbers them anew.
 */
#include "import.h"

#include <stdlib.h>
#include <string.h>

#include "doc/doc.h"

struct reader {
    struct import *im;
    size_t pos; /* of the attribute in the text */
    struct ap_err err;
};

/* err as a message about the text; -1. */
static int fail(struct reader *r)
{
    return hlo_fail(r->im->src, r->pos, "autopar.step: %s", r->err.msg);
}

static int count_leaves(const struct ap_shape *shape)
{
    int n = shape->dtype != AP_TUPLE;
    for (int i = 0; i < shape->n_parts; i++)
        n += count_leaves(&shape->parts[i]);
    return n;
}

/* Adds the leaves of shape to out[n], ...; how many there are then. */
static int put_leaves(const struct ap_shape *shape, const struct ap_shape **out, int n)
{
    if (shape->dtype != AP_TUPLE) {
        out[n] = shape;
        return n + 1;
    }
    for (int i = 0; i < shape->n_parts; i++)
        n = put_leaves(&shape->parts[i], out, n);
    return n;
}

/* An optional member that must be true or false. */
static int opt_bool(const json_t *o, const struct ap_at *at, const char *key,
                    struct ap_err *err)
{
    const json_t *v = json_object_get(o, key);
    struct ap_at here = {at, key, 0};
    return v && !json_is_boolean(v) ? ap_at_err(&here, err, "expected true or false") : 0;
}

/* The role that a row gives its argument; AP_ROLE_NONE: none. */
static enum ap_role role_of(const json_t *row)
{
    const char *name = json_string_value(json_object_get(row, "role"));
    for (int i = AP_ROLE_NONE + 1; name && i <= AP_ROLE_CONSTANT; i++)
        if (strcmp(ap_role_names[i], name) == 0)
            return (enum ap_role)i;
    return AP_ROLE_NONE;
}

static int check_role(const json_t *row, const struct ap_at *at, struct ap_err *err)
{
    struct ap_at here = {at, "role", 0};
    return json_object_get(row, "role") && role_of(row) == AP_ROLE_NONE
               ? ap_at_err(&here, err, "expected weight, state, input or constant")
               : 0;
}

static int check_row(struct reader *r, const json_t *row, const struct ap_at *at,
                     const struct ap_shape *shape)
{
    struct ap_at shape_at = {at, "shape", 0};
    const char *path, *text, *key = NULL;
    if (!json_is_object(row))
        return ap_at_err(at, &r->err, "expected an object");
    if (ap_get_str(row, at, "path", &path, &r->err) ||
        ap_get_str(row, at, "shape", &text, &r->err) ||
        ap_opt_str(row, at, "key", &key, &r->err) ||
        opt_bool(row, at, "donated", &r->err) || opt_bool(row, at, "frozen", &r->err) ||
        check_role(row, at, &r->err))
        return -1;
    struct ap_buf want = {0};
    ap_shape_print(shape, &want);
    bool same = strcmp(want.data, text) == 0;
    if (!same)
        ap_at_err(&shape_at, &r->err, "\"%.60s\", but the entry computation has %.60s",
                  text, want.data);
    ap_buf_free(&want);
    return same ? 0 : -1;
}

/* The list `key` has a row for each of n shapes. */
static int check_rows(struct reader *r, const json_t *o, const char *key,
                      const struct ap_shape *const *shapes, int n)
{
    struct ap_at list = {NULL, key, 0};
    json_t *rows;
    if (ap_get_arr(o, NULL, key, &rows, &r->err))
        return -1;
    if (json_array_size(rows) != (size_t)n)
        return ap_at_err(&list, &r->err,
                         "there are %zu, but the entry computation has %d",
                         json_array_size(rows), n);
    for (int i = 0; i < n; i++) {
        struct ap_at here = {&list, NULL, i};
        if (check_row(r, json_array_get(rows, (size_t)i), &here, shapes[i]))
            return -1;
    }
    return 0;
}

static int check_head(struct reader *r, const json_t *o)
{
    struct ap_at hash_at = {NULL, "hash", 0};
    const char *text, *hash;
    if (!json_is_object(o))
        return ap_err_set(&r->err, "expected an object");
    if (ap_get_str(o, NULL, "framework", &text, &r->err) ||
        ap_get_str(o, NULL, "version", &text, &r->err) ||
        ap_get_str(o, NULL, "hash", &hash, &r->err))
        return -1;
    if (strlen(hash) != 64 || strspn(hash, "0123456789abcdef") != 64)
        return ap_at_err(&hash_at, &r->err, "expected 64 hexadecimal digits");
    return 0;
}

/* The result that the section calls the loss, into im. */
static int check_loss(struct reader *r, const json_t *o,
                      const struct ap_shape *const *results, int n)
{
    const json_t *loss = json_object_get(o, "loss");
    struct ap_at at = {NULL, "loss", 0}, result_at = {&at, "result", 0};
    int64_t result;
    if (!loss)
        return 0;
    if (!json_is_object(loss))
        return ap_at_err(&at, &r->err, "expected an object");
    if (ap_get_int(loss, &at, "result", 0, n - 1, &result, &r->err) ||
        opt_bool(loss, &at, "guessed", &r->err))
        return -1;
    if (results[result]->rank || !ap_dtype_is_float(results[result]->dtype))
        return ap_at_err(&result_at, &r->err, "result %d is not a float scalar",
                         (int)result);
    r->im->step_loss = (int)result + 1;
    return 0;
}

static int check(struct reader *r, const json_t *o)
{
    const struct hlo_comp *entry = &r->im->module->comps[r->im->module->entry];
    struct ap_arena *arena = r->im->src->arena;
    const struct ap_shape *root = &entry->instr[entry->root].shape;
    int n_results = count_leaves(root), n_params = 0;
    for (int i = 0; i < entry->n_params; i++)
        n_params += count_leaves(&entry->instr[entry->params[i]].shape);
    const struct ap_shape **params =
        AP_NEW_N(arena, n_params + 1, const struct ap_shape *);
    const struct ap_shape **results =
        AP_NEW_N(arena, n_results + 1, const struct ap_shape *);
    for (int i = 0, n = 0; i < entry->n_params; i++)
        n = put_leaves(&entry->instr[entry->params[i]].shape, params, n);
    put_leaves(root, results, 0);
    if (check_head(r, o) || check_rows(r, o, "arguments", params, n_params) ||
        check_rows(r, o, "results", results, n_results) ||
        check_loss(r, o, results, n_results))
        return -1;
    return 0;
}

/* Which arguments are weights that the step does not change. */
static const bool *frozen_of(struct ap_arena *arena, const json_t *o)
{
    const json_t *rows = json_object_get(o, "arguments");
    const size_t n = json_array_size(rows);
    bool *frozen = AP_NEW_N(arena, n + 1, bool);
    for (size_t i = 0; i < n; i++)
        frozen[i] = json_is_true(json_object_get(json_array_get(rows, i), "frozen"));
    return frozen;
}

static const enum ap_role *roles_of(struct ap_arena *arena, const json_t *o)
{
    const json_t *rows = json_object_get(o, "arguments");
    const size_t n = json_array_size(rows);
    enum ap_role *roles = AP_NEW_N(arena, n + 1, enum ap_role);
    for (size_t i = 0; i < n; i++)
        roles[i] = role_of(json_array_get(rows, i));
    return n && roles[0] != AP_ROLE_NONE ? roles : NULL;
}

int import_step(struct import *im, const char **section)
{
    const struct hlo_module *module = im->module;
    struct reader r = {.im = im, .pos = module->step_pos};
    json_error_t where;
    *section = NULL;
    if (!module->step)
        return 0;
    json_t *o = json_loads(module->step, JSON_REJECT_DUPLICATES, &where);
    if (!o)
        return hlo_fail(im->src, r.pos, "autopar.step: %s at character %d", where.text,
                        where.position);
    if (check(&r, o)) {
        json_decref(o);
        return fail(&r);
    }
    im->step_frozen = frozen_of(im->src->arena, o);
    im->step_role = roles_of(im->src->arena, o);
    char *text = json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII);
    *section = ap_arena_strdup(im->src->arena, text ? text : "");
    free(text);
    json_decref(o);
    return 0;
}

/* ---- numbers ---- */

static const struct ap_part *whole(struct ap_arena *arena, int index)
{
    struct ap_part part = {.index = index};
    return ap_arena_dup(arena, &part, sizeof part);
}

void import_number(struct import *im)
{
    struct ap_graph *g = &im->g;
    struct ap_arena *arena = im->src->arena;
    for (int i = 0; i < g->n_params; i++) {
        struct ap_attrs *a =
            ap_arena_dup(arena, g->nodes[i].attrs, sizeof *g->nodes[i].attrs);
        a->argument = whole(arena, i);
        g->nodes[i].attrs = a;
    }
    for (int i = 0; i < g->n_results; i++)
        g->results[i].part = whole(arena, i);
}

const struct ap_part *import_part(struct ap_arena *arena, const struct ap_part *of,
                                  int dim, int64_t part, int64_t parts)
{
    if (!of)
        return NULL;
    struct ap_part *p = ap_arena_dup(arena, of, sizeof *of);
    p->split[p->n++] = (struct ap_part_split){dim, part, parts};
    return p;
}

int import_step_result(const struct ap_graph *g, int index)
{
    for (int i = 0; i < g->n_results; i++)
        if (g->results[i].part && g->results[i].part->index == index)
            return i;
    return -1;
}
