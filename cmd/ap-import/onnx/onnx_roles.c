/*
 * What the exporter says of each initialiser, in the model's metadata "autopar.roles":
 *
 *   {"weights": [NAME...], "states": {NAME: OUTPUT...}, "constants": [NAME...],
 *    "loss": OUTPUT}
 *
 * NAMEs are initialisers, each exactly once; OUTPUTs are outputs of the graph. A state is
 * a buffer that the forward pass changes, OUTPUT its next value. scripts/torch/ takes
 * these from torch.export's graph signature. Without it the importer has to guess, and
 * would train constants. Linear in the number of names.
 */
#include "onnx/onnx.h"

#include <jansson.h>
#include <string.h>

struct reader {
    struct onnx_file *f;
    const struct onnx_model *m;
    struct onnx_roles *roles;
    struct ap_names inits, outputs; /* name to number */
    bool *taken;                    /* [n_outputs]: loss or state */
};

static int fail(struct reader *r, const char *at, const char *what)
{
    return onnx_fail(r->f, "metadata \"autopar.roles\": %.200s: %.400s", at, what);
}

/* The initialiser of this name gets a role. */
static int set_role(struct reader *r, const char *at, const char *name, enum ap_role role)
{
    int k = name ? ap_names_get(&r->inits, name, strlen(name)) : -1;
    if (!name)
        return fail(r, at, "expected a string");
    if (k < 0)
        return fail(r, at,
                    ap_arena_printf(r->f->arena, "'%s' is not an initialiser", name));
    if (r->roles->of_init[k] != AP_ROLE_NONE)
        return fail(r, at, ap_arena_printf(r->f->arena, "'%s' has two roles", name));
    if (role == AP_ROLE_WEIGHT && !ap_dtype_is_float(r->m->inits[k].shape.dtype))
        return fail(r, at, ap_arena_printf(r->f->arena, "'%s' is not of floats", name));
    r->roles->of_init[k] = role;
    return k;
}

/* The number of an output that has no meaning yet. */
static int take_output(struct reader *r, const char *at, const json_t *name)
{
    const char *text = json_string_value(name);
    int k = text ? ap_names_get(&r->outputs, text, strlen(text)) : -1;
    if (!text)
        return fail(r, at, "expected the name of an output");
    if (k < 0)
        return fail(r, at, ap_arena_printf(r->f->arena, "'%s' is not an output", text));
    if (r->taken[k])
        return fail(r, at, ap_arena_printf(r->f->arena, "'%s' is there twice", text));
    r->taken[k] = true;
    return k;
}

static int read_list(struct reader *r, const char *key, const json_t *list,
                     enum ap_role role)
{
    if (!json_is_array(list))
        return fail(r, ap_arena_printf(r->f->arena, "/%s", key),
                    "expected a list of names");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *at = ap_arena_printf(r->f->arena, "/%s/%zu", key, i);
        if (set_role(r, at, json_string_value(json_array_get(list, i)), role) < 0)
            return -1;
    }
    return 0;
}

static int read_states(struct reader *r, json_t *states)
{
    const char *name;
    json_t *output;
    if (!json_is_object(states))
        return fail(r, "/states", "expected an object");
    size_t n = json_object_size(states);
    r->roles->states = AP_NEW_N(r->f->arena, n + 1, struct onnx_state);
    json_object_foreach(states, name, output)
    {
        const char *at = ap_arena_printf(r->f->arena, "/states/%s", name);
        int init = set_role(r, at, name, AP_ROLE_STATE);
        int k = init < 0 ? -1 : take_output(r, at, output);
        if (k < 0)
            return -1;
        r->roles->states[r->roles->n_states++] = (struct onnx_state){init, k};
    }
    return 0;
}

static int read_loss(struct reader *r, const json_t *name)
{
    int k = take_output(r, "/loss", name);
    if (k < 0)
        return -1;
    r->roles->loss = k;
    return 0;
}

static int read_members(struct reader *r, json_t *root)
{
    const char *key;
    json_t *value;
    int rc = 0;
    json_object_foreach(root, key, value)
    {
        if (strcmp(key, "weights") == 0)
            rc = read_list(r, key, value, AP_ROLE_WEIGHT);
        else if (strcmp(key, "constants") == 0)
            rc = read_list(r, key, value, AP_ROLE_CONSTANT);
        else if (strcmp(key, "states") == 0)
            rc = read_states(r, value);
        else if (strcmp(key, "loss") == 0)
            rc = read_loss(r, value);
        else
            rc = fail(r, ap_arena_printf(r->f->arena, "/%s", key),
                      "expected weights, states, constants or loss");
        if (rc)
            return -1;
    }
    for (int k = 0; k < r->m->n_inits; k++)
        if (r->roles->of_init[k] == AP_ROLE_NONE)
            return onnx_fail(
                r->f, "metadata \"autopar.roles\" says nothing of initialiser '%s'",
                r->m->inits[k].name);
    return 0;
}

static void index_names(struct reader *r)
{
    for (int k = 0; k < r->m->n_inits; k++) {
        const char *name = r->m->inits[k].name;
        if (ap_names_get(&r->inits, name, strlen(name)) < 0)
            ap_names_put(&r->inits, name, strlen(name), k);
    }
    for (int k = 0; k < r->m->n_outputs; k++) {
        const char *name = r->m->outputs[k].name;
        if (ap_names_get(&r->outputs, name, strlen(name)) < 0)
            ap_names_put(&r->outputs, name, strlen(name), k);
    }
}

int onnx_read_roles(struct onnx_file *f, const struct onnx_model *m,
                    struct onnx_roles *roles)
{
    struct reader r = {.f = f, .m = m, .roles = roles};
    json_error_t where;
    *roles = (struct onnx_roles){.loss = -1};
    if (!m->roles)
        return 0;
    json_t *root = json_loads(m->roles, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        return onnx_fail(f, "metadata \"autopar.roles\": byte %d: %s", where.position,
                         where.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return onnx_fail(f, "metadata \"autopar.roles\": expected a JSON object");
    }
    roles->given = true;
    roles->of_init = AP_NEW_N(f->arena, m->n_inits + 1, enum ap_role);
    r.taken = AP_NEW_N(f->arena, m->n_outputs + 1, bool);
    index_names(&r);
    int rc = read_members(&r, root);
    json_decref(root);
    ap_names_free(&r.inits);
    ap_names_free(&r.outputs);
    return rc;
}
