/*
 * Section "sharding". The choices are the authority; layouts and conversions are written
 * for people and other programs, and show on reading whether the section belongs to the
 * graph.
 */
#include "plan/plan.h"

#include <string.h>

#include "doc/fingerprint.h"

/* ---- meshes ---- */

void ap_mesh_to_json(const struct ap_mesh *mesh, struct ap_buf *out)
{
    ap_buf_puts(out, "{\"axes\":[");
    for (int a = 0; a < mesh->n_axes; a++) {
        if (a)
            ap_buf_putc(out, ',');
        ap_json_str(out, mesh->name[a]);
    }
    ap_buf_puts(out, "],\"shape\":[");
    for (int a = 0; a < mesh->n_axes; a++) {
        if (a)
            ap_buf_putc(out, ',');
        ap_buf_int(out, mesh->size[a]);
    }
    ap_buf_puts(out, "]");
    if (mesh->microbatch) {
        ap_buf_puts(out, ",\"time\":");
        ap_json_str(out, mesh->name[0]);
    }
    ap_buf_putc(out, '}');
}

/* The member "time", which names the first axis. */
static int read_microbatch_axis(const json_t *o, const struct ap_at *at,
                                struct ap_mesh *mesh, struct ap_err *err)
{
    struct ap_at here = {at, "time", 0};
    const char *name;
    if (!json_object_get(o, "time"))
        return 0;
    if (ap_get_str(o, at, "time", &name, err))
        return -1;
    if (strcmp(name, mesh->name[0]) != 0 || mesh->size[0] < 2)
        return ap_at_err(&here, err,
                         "the microbatch axis is the first one, of at least 2");
    mesh->microbatch = 1;
    return 0;
}

/* One axis: a distinct name without blanks or commas, and a size. */
static int read_axis(struct ap_arena *arena, const json_t *axes, const struct ap_at *at,
                     int a, struct ap_mesh *mesh, struct ap_err *err)
{
    struct ap_at names = {at, "axes", 0}, here = {&names, NULL, a};
    const json_t *name = json_array_get(axes, (size_t)a);
    if (!json_is_string(name) || !*json_string_value(name))
        return ap_at_err(&here, err, "expected the name of a mesh axis");
    mesh->name[a] = ap_arena_strdup(arena, json_string_value(name));
    for (int b = 0; b < a; b++)
        if (!strcmp(mesh->name[a], mesh->name[b]))
            return ap_at_err(&here, err, "axis \"%s\" twice", mesh->name[a]);
    if (mesh->size[a] < 1 || mesh->size[a] > AP_MAX_DEVICES)
        return ap_at_err(at, err, "shape: expected sizes from 1 to %d", AP_MAX_DEVICES);
    return 0;
}

int ap_mesh_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                      struct ap_mesh *mesh, struct ap_err *err)
{
    json_t *axes;
    struct ap_ints shape;
    if (!json_is_object(o))
        return ap_at_err(at, err, "expected an object");
    if (ap_get_arr(o, at, "axes", &axes, err) ||
        ap_get_ints(arena, o, at, "shape", &shape, err))
        return -1;
    size_t n = json_array_size(axes);
    if (n < 1 || n > AP_MAX_AXES)
        return ap_at_err(at, err, "a mesh has 1 to %d axes, got %zu", AP_MAX_AXES, n);
    if ((size_t)shape.n != n)
        return ap_at_err(at, err, "%zu axes but %d sizes", n, shape.n);
    *mesh = (struct ap_mesh){.n_axes = (int)n};
    for (int a = 0; a < mesh->n_axes; a++) {
        mesh->size[a] = shape.v[a];
        if (read_axis(arena, axes, at, a, mesh, err))
            return -1;
    }
    if (read_microbatch_axis(o, at, mesh, err))
        return -1;
    if (ap_mesh_devices(mesh) > AP_MAX_DEVICES)
        return ap_at_err(at, err, "more than %d devices", AP_MAX_DEVICES);
    return 0;
}

/* ---- writing ---- */

static void put_layout(const struct ap_mesh *mesh, const struct ap_layout *l,
                       struct ap_buf *out)
{
    ap_buf_putc(out, '"');
    ap_layout_print(mesh, l, out); /* letters, digits, commas, slashes */
    ap_buf_putc(out, '"');
}

static void put_groups(const struct ap_plan *plan, struct ap_buf *out)
{
    const struct ap_mesh *mesh = &plan->mesh;
    for (int i = 0; i < plan->nests->n; i++) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        ap_buf_puts(out, i ? ",{\"choice\":[" : "{\"choice\":[");
        for (int a = 0; a < mesh->n_axes; a++) {
            if (a)
                ap_buf_putc(out, ',');
            ap_buf_int(out, plan->choice[i].axis[a]);
        }
        ap_buf_puts(out, "],\"in\":[");
        for (int k = 0; k < nest->n_ins; k++) {
            struct ap_layout l =
                ap_nest_in_layout(nest, plan->graph, mesh, &plan->choice[i], k);
            if (k)
                ap_buf_putc(out, ',');
            put_layout(mesh, &l, out);
        }
        ap_buf_puts(out, "],\"out\":[");
        for (int k = 0; k < nest->n_outs; k++) {
            struct ap_layout l = ap_plan_node_layout(plan, nest->outs[k]);
            if (k)
                ap_buf_putc(out, ',');
            put_layout(mesh, &l, out);
        }
        ap_buf_puts(out, "]}");
    }
}

static void put_step(const struct ap_mesh *mesh, const struct ap_step *step,
                     struct ap_buf *out)
{
    ap_buf_printf(out, "{\"op\":\"%s\",\"axes\":[", ap_ops[step->op].name);
    const char *comma = "";
    for (int a = 0; a < mesh->n_axes; a++) {
        if (!(step->coll.axes >> a & 1))
            continue;
        ap_buf_puts(out, comma);
        ap_json_str(out, mesh->name[a]);
        comma = ",";
    }
    ap_buf_puts(out, "],\"bytes\":");
    ap_buf_int(out, step->bytes);
    if (mesh->microbatch)
        ap_buf_printf(out, ",\"times\":%lld", (long long)step->times);
    ap_buf_puts(out, ",\"sec\":");
    ap_json_num(out, step->sec);
    ap_buf_putc(out, '}');
}

static void put_conversion(const struct ap_plan *plan, const struct ap_conversion *c,
                           struct ap_buf *out)
{
    ap_buf_printf(out, "{\"node\":%d,\"name\":", c->node);
    ap_json_str(out, plan->graph->nodes[c->node].name);
    ap_buf_puts(out, ",\"from\":");
    put_layout(&plan->mesh, &c->from, out);
    ap_buf_puts(out, ",\"to\":");
    put_layout(&plan->mesh, &c->to, out);
    ap_buf_printf(out, ",\"phase\":\"%s\",\"steps\":[", ap_phase_names[c->phase]);
    for (int i = 0; i < c->path.n_steps; i++) {
        if (i)
            ap_buf_putc(out, ',');
        put_step(&plan->mesh, &c->path.steps[i], out);
    }
    ap_buf_puts(out, "],\"sec\":");
    ap_json_num(out, c->path.sec);
    ap_buf_putc(out, '}');
}

static void put_axes(const char *key, const struct ap_mesh *mesh, unsigned axes,
                     struct ap_buf *out)
{
    const char *comma = "";

    if (axes == 0)
        return;
    ap_buf_printf(out, ",\"%s\":[", key);
    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++) {
        if (!(axes >> ap_mesh_device_axis(mesh, a) & 1))
            continue;
        ap_buf_puts(out, comma);
        ap_json_str(out, mesh->name[a]);
        comma = ",";
    }
    ap_buf_putc(out, ']');
}

static void put_nums(const char *key, const double *v, int n, struct ap_buf *out)
{
    ap_buf_printf(out, "\"%s\":[", key);
    for (int i = 0; i < n; i++) {
        if (i)
            ap_buf_putc(out, ',');
        ap_json_num(out, v[i]);
    }
    ap_buf_putc(out, ']');
}

/* The member "alpa", where something is not Alpa's default. */
static void put_alpa(const struct ap_mesh *mesh, const struct ap_alpa_rules *rules,
                     struct ap_buf *out)
{
    const struct ap_alpa_rules usual = ap_alpa_defaults();
    /* Alpa's meshes have two axes: one that is not there has a latency, too */
    int n = mesh->n_axes - (mesh->microbatch ? 1 : 0);

    n = n < 2 ? 2 : n;
    if (!memcmp(rules->alpha, usual.alpha, (size_t)n * sizeof *usual.alpha) &&
        !memcmp(rules->beta, usual.beta, (size_t)n * sizeof *usual.beta) &&
        !rules->no_all_gather && !rules->no_all_to_all && !rules->scatter &&
        !rules->mixed)
        return;
    ap_buf_puts(out, ",\"alpa\":{");
    put_nums("alpha", rules->alpha, n, out);
    ap_buf_putc(out, ',');
    put_nums("beta", rules->beta, n, out);
    put_axes("no_all_gather", mesh, rules->no_all_gather, out);
    put_axes("no_all_to_all", mesh, rules->no_all_to_all, out);
    if (rules->scatter)
        ap_buf_puts(out, ",\"reduce_scatter\":true");
    if (rules->mixed)
        ap_buf_puts(out, ",\"mixed_mesh\":true");
    ap_buf_putc(out, '}');
}

static void put_summary(const struct ap_sharding *s, struct ap_buf *out)
{
    double gap = s->objective_sec - s->lower_bound_sec;
    ap_buf_puts(out, ",\"algorithm\":");
    ap_json_str(out, s->algorithm);
    if (s->solver) {
        ap_buf_puts(out, ",\"solver\":");
        ap_json_str(out, s->solver);
    }
    ap_buf_puts(out, ",\"cost_model\":");
    ap_json_str(out, s->cost_model);
    if (s->alpa.space)
        ap_buf_puts(out, ",\"space\":\"alpa\"");
    put_alpa(&s->plan.mesh, &s->alpa, out);
    ap_buf_puts(out, ",\"objective_sec\":");
    ap_json_num(out, s->objective_sec);
    ap_buf_puts(out, ",\"lower_bound_sec\":");
    ap_json_num(out, s->lower_bound_sec);
    ap_buf_puts(out, ",\"gap\":");
    ap_json_num(out, gap > 0 && s->objective_sec > 0 ? gap / s->objective_sec : 0);
    ap_buf_puts(out, ",\"stopped\":");
    ap_json_str(out, s->stopped);
    ap_buf_puts(out, ",\"peak_bytes\":");
    ap_buf_int(out, s->peak_bytes);
    if (s->limit_bytes > 0)
        ap_buf_printf(out, ",\"memory_limit_bytes\":%lld", (long long)s->limit_bytes);
    if (s->device_bytes > 0)
        ap_buf_printf(out, ",\"fits_device\":%s",
                      s->peak_bytes <= s->device_bytes ? "true" : "false");
}

/* The marked nodes, as a list of ids; marks may be NULL. */
static void put_marks(const char *open, const bool *marks, int n, struct ap_buf *out)
{
    const char *comma = "";
    ap_buf_puts(out, open);
    for (int i = 0; marks && i < n; i++) {
        if (!marks[i])
            continue;
        ap_buf_puts(out, comma);
        ap_buf_int(out, i);
        comma = ",";
    }
    ap_buf_putc(out, ']');
}

void ap_sharding_to_json(const struct ap_sharding *s, const struct ap_conversions *conv,
                         struct ap_buf *out)
{
    const struct ap_plan *plan = &s->plan;
    ap_buf_puts(out, "{\"mesh\":");
    ap_mesh_to_json(&plan->mesh, out);
    put_summary(s, out);
    if (s->graph_fingerprint && s->cluster_fingerprint)
        ap_buf_printf(out, ",\"fingerprint\":{\"graph\":\"%s\",\"cluster\":\"%s\"}",
                      s->graph_fingerprint, s->cluster_fingerprint);
    ap_buf_puts(out, ",\"groups\":[");
    put_groups(plan, out);
    ap_buf_puts(out, "],\"layouts\":[");
    for (int i = 0; i < plan->graph->n_nodes; i++) {
        struct ap_layout l = ap_plan_node_layout(plan, i);
        if (i)
            ap_buf_putc(out, ',');
        put_layout(&plan->mesh, &l, out);
    }
    ap_buf_puts(out, "]");
    if (plan->recompute_heavy)
        ap_buf_puts(out, ",\"recompute_heavy\":true");
    put_marks(",\"regather\":[", plan->regather, plan->graph->n_nodes, out);
    if (plan->scatters)
        ap_buf_puts(out, ",\"scatters\":true");
    if (plan->whole)
        put_marks(",\"whole\":[", plan->whole, plan->graph->n_nodes, out);
    ap_buf_puts(out, ",\"conversions\":[");
    for (int i = 0; i < conv->n; i++) {
        if (i)
            ap_buf_putc(out, ',');
        put_conversion(plan, &conv->conv[i], out);
    }
    ap_buf_puts(out, "]");
    ap_buf_putc(out, '}');
}

/* ---- reading ---- */

static int read_choice(const json_t *group, const struct ap_at *at,
                       const struct ap_nest *nest, const struct ap_mesh *mesh,
                       struct ap_choice_vec *choice, struct ap_err *err)
{
    json_t *axes;
    if (ap_get_arr(group, at, "choice", &axes, err))
        return -1;
    struct ap_at here = {at, "choice", 0};
    if (json_array_size(axes) != (size_t)mesh->n_axes)
        return ap_at_err(&here, err, "expected one number per mesh axis");
    int n = nest->n_factors + nest->n_linear;
    *choice = AP_CHOICE_NONE;
    for (int a = 0; a < mesh->n_axes; a++) {
        const json_t *v = json_array_get(axes, (size_t)a);
        if (!json_is_integer(v) || json_integer_value(v) < -1 ||
            json_integer_value(v) >= n)
            return ap_at_err(&here, err,
                             "expected integers from -1 to %d: made for another graph?",
                             n - 1);
        choice->axis[a] = (int16_t)json_integer_value(v);
    }
    if (!ap_choice_ok(nest, mesh, choice))
        return ap_at_err(&here, err,
                         "the operators of this group cannot be split this way: made for "
                         "another graph?");
    return 0;
}

/* A layout that the document states must be the one that follows from the choices. */
static int check_layout(const struct ap_mesh *mesh, const struct ap_shape *shape,
                        const struct ap_layout *l, const json_t *v,
                        const struct ap_at *at, struct ap_err *err)
{
    const char *stated = json_string_value(v);
    if (!stated)
        return ap_at_err(at, err, "expected a layout such as \"S0,R\"");
    struct ap_buf text = {0};
    ap_layout_print(mesh, l, &text);
    int rc = 0;
    if (strcmp(text.data, stated) != 0) {
        struct ap_layout other;
        struct ap_err ignored = {{0}};
        if (ap_layout_parse(mesh, shape, stated, &other, &ignored) ||
            !ap_layout_equal(&other, l))
            rc =
                ap_at_err(at, err,
                          "says %.80s, but %s follows from the choices: made for another "
                          "graph?",
                          stated, text.data);
    }
    ap_buf_free(&text);
    return rc;
}

/* Members "in" and "out" of a group. */
static int check_group(const struct ap_plan *plan, int g, const json_t *group,
                       const struct ap_at *at, struct ap_err *err)
{
    const struct ap_nest *nest = &plan->nests->nest[g];
    const struct ap_node *nodes = plan->graph->nodes;
    json_t *in, *out;
    if (!json_object_get(group, "in") && !json_object_get(group, "out"))
        return 0; /* by hand */
    if (ap_get_arr(group, at, "in", &in, err) || ap_get_arr(group, at, "out", &out, err))
        return -1;
    if (json_array_size(in) != (size_t)nest->n_ins ||
        json_array_size(out) != (size_t)nest->n_outs)
        return ap_at_err(at, err,
                         "expected %d operands and %d results, got %zu and %zu: made for "
                         "another graph?",
                         nest->n_ins, nest->n_outs, json_array_size(in),
                         json_array_size(out));
    struct ap_at ins = {at, "in", 0}, outs = {at, "out", 0};
    for (int k = 0; k < nest->n_ins; k++) {
        struct ap_at here = {&ins, NULL, k};
        struct ap_layout l =
            ap_nest_in_layout(nest, plan->graph, &plan->mesh, &plan->choice[g], k);
        if (check_layout(&plan->mesh, ap_value_shape(&nodes[nest->ins[k].node]), &l,
                         json_array_get(in, (size_t)k), &here, err))
            return -1;
    }
    for (int k = 0; k < nest->n_outs; k++) {
        struct ap_at here = {&outs, NULL, k};
        struct ap_layout l = ap_plan_node_layout(plan, nest->outs[k]);
        if (check_layout(&plan->mesh, ap_value_shape(&nodes[nest->outs[k]]), &l,
                         json_array_get(out, (size_t)k), &here, err))
            return -1;
    }
    return 0;
}

static int read_groups(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                       struct ap_plan *plan, struct ap_err *err)
{
    json_t *groups;
    if (ap_get_arr(o, at, "groups", &groups, err))
        return -1;
    struct ap_at list = {at, "groups", 0};
    int n = plan->nests->n;
    if (json_array_size(groups) != (size_t)n)
        return ap_at_err(&list, err,
                         "%zu groups, but the graph has %d: made for another "
                         "graph?",
                         json_array_size(groups), n);
    plan->choice = AP_NEW_N(arena, n, struct ap_choice_vec);
    int16_t *on_microbatches = AP_NEW_N(arena, n, int16_t);
    for (int i = 0; i < n; i++) {
        const json_t *group = json_array_get(groups, (size_t)i);
        struct ap_at here = {&list, NULL, i};
        if (!json_is_object(group))
            return ap_at_err(&here, err, "expected an object");
        if (read_choice(group, &here, &plan->nests->nest[i], &plan->mesh,
                        &plan->choice[i], err) ||
            check_group(plan, i, group, &here, err))
            return -1;
        on_microbatches[i] = plan->choice[i].axis[0];
    }
    plan->microbatch_choice = plan->mesh.microbatch ? on_microbatches : NULL;
    return 0;
}

static int check_layouts(const json_t *o, const struct ap_at *at,
                         const struct ap_plan *plan, struct ap_err *err)
{
    json_t *layouts;
    if (!json_object_get(o, "layouts"))
        return 0; /* by hand */
    if (ap_get_arr(o, at, "layouts", &layouts, err))
        return -1;
    struct ap_at list = {at, "layouts", 0};
    int n = plan->graph->n_nodes;
    if (json_array_size(layouts) != (size_t)n)
        return ap_at_err(&list, err,
                         "%zu layouts, but the graph has %d nodes: made for "
                         "another graph?",
                         json_array_size(layouts), n);
    for (int i = 0; i < n; i++) {
        struct ap_at here = {&list, NULL, i};
        struct ap_layout l = ap_plan_node_layout(plan, i);
        if (check_layout(&plan->mesh, ap_value_shape(&plan->graph->nodes[i]), &l,
                         json_array_get(layouts, (size_t)i), &here, err))
            return -1;
    }
    return 0;
}

/* Member `key`, a list of node ids; *marks stays NULL when it is empty. */
static int read_marks(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                      const char *key, int n_nodes, bool **marks, struct ap_err *err)
{
    struct ap_ints ids;
    if (ap_get_ints(arena, o, at, key, &ids, err))
        return -1;
    if (ids.n == 0)
        return 0;
    struct ap_at list = {at, key, 0};
    *marks = AP_NEW_N(arena, n_nodes, bool);
    for (int i = 0; i < ids.n; i++) {
        struct ap_at here = {&list, NULL, i};
        if (ids.v[i] < 0 || ids.v[i] >= n_nodes)
            return ap_at_err(&here, err, "the graph has no node %lld",
                             (long long)ids.v[i]);
        (*marks)[ids.v[i]] = true;
    }
    return 0;
}

static int read_conversions_how(struct ap_arena *arena, const json_t *o,
                                const struct ap_at *at, struct ap_plan *plan,
                                struct ap_err *err)
{
    int n = plan->graph->n_nodes;
    plan->recompute_heavy = json_is_true(json_object_get(o, "recompute_heavy"));
    plan->scatters = json_is_true(json_object_get(o, "scatters"));
    if (read_marks(arena, o, at, "regather", n, &plan->regather, err) ||
        read_marks(arena, o, at, "whole", n, &plan->whole, err))
        return -1;
    return 0;
}

/* What layouts cannot show: operators and operands are those that the plan was made for.
 */
static int check_fingerprint(struct ap_arena *arena, const json_t *o,
                             const struct ap_at *at, const struct ap_graph *g,
                             struct ap_err *err)
{
    const json_t *theirs = json_object_get(json_object_get(o, "fingerprint"), "graph");
    const char *own;

    if (!theirs)
        return 0;
    own = ap_graph_fingerprint(arena, g);
    if (json_is_string(theirs) && !strcmp(json_string_value(theirs), own))
        return 0;
    struct ap_at print = {at, "fingerprint", 0}, here = {&print, "graph", 0};
    return ap_at_err(&here, err,
                     "the sharding was made for another graph than this (%s): run "
                     "ap-shard on it, with --plan to take the plan over by name",
                     own);
}

/* A string of the document, kept beyond it; *out stays where there is none. */
static int read_text(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                     const char *key, const char **out, struct ap_err *err)
{
    const char *text = NULL;

    if (ap_opt_str(o, at, key, &text, err))
        return -1;
    *out = text ? ap_arena_strdup(arena, text) : *out;
    return 0;
}

/* The same of a number. */
static int read_num(const json_t *o, const struct ap_at *at, const char *key, double *out,
                    struct ap_err *err)
{
    return json_object_get(o, key) ? ap_get_num(o, at, key, out, err) : 0;
}

/* The cost model must be one that there is: users look it up by name. */
static int check_model(const char *name, const struct ap_at *at, struct ap_err *err)
{
    for (int v = AP_COST_DEFAULT; v <= AP_COST_BYTES; v++)
        if (!strcmp(name, ap_cost_variant_names[v]))
            return 0;
    struct ap_at here = {at, "cost_model", 0};
    return ap_at_err(&here, err, "there is no cost model \"%.80s\"", name);
}

/* The member "space", which only Alpa's has. */
static int read_space(const json_t *o, const struct ap_at *at, bool *alpa,
                      struct ap_err *err)
{
    const char *name;
    *alpa = json_object_get(o, "space") != NULL;
    if (!*alpa)
        return 0;
    if (ap_get_str(o, at, "space", &name, err))
        return -1;
    struct ap_at here = {at, "space", 0};
    return strcmp(name, "alpa")
               ? ap_at_err(&here, err, "there is no space \"%.80s\"", name)
               : 0;
}

/* The axes of devices that a list names; none where it is absent. */
static int read_axes(const json_t *o, const struct ap_at *at, const char *key,
                     const struct ap_mesh *mesh, unsigned *axes, struct ap_err *err)
{
    const json_t *list = json_object_get(o, key), *v;
    struct ap_at names = {at, key, 0};
    size_t i;

    if (list && !json_is_array(list))
        return ap_at_err(&names, err, "expected an array");
    json_array_foreach(list, i, v)
    {
        struct ap_at here = {&names, NULL, (int)i};
        int a = mesh->microbatch ? 1 : 0;
        while (a < mesh->n_axes &&
               (!json_is_string(v) || strcmp(json_string_value(v), mesh->name[a]) != 0))
            a++;
        if (a == mesh->n_axes)
            return ap_at_err(&here, err, "expected the name of an axis of the mesh");
        *axes |= 1u << ap_mesh_device_axis(mesh, a);
    }
    return 0;
}

/* Units per axis, at least 0. */
static int read_units(const json_t *o, const struct ap_at *at, const char *key, double *v,
                      struct ap_err *err)
{
    json_t *list, *item;
    size_t i;

    if (ap_get_arr(o, at, key, &list, err))
        return -1;
    json_array_foreach(list, i, item)
    {
        struct ap_at items = {at, key, 0}, here = {&items, NULL, (int)i};
        if (i >= AP_MAX_AXES || !json_is_number(item) || json_number_value(item) < 0)
            return ap_at_err(&here, err, "expected a number >= 0 for each axis");
        v[i] = json_number_value(item);
    }
    return 0;
}

/* The member "alpa", and "space". */
static int read_alpa(const json_t *o, const struct ap_at *at, struct ap_sharding *s,
                     struct ap_err *err)
{
    const json_t *rules = json_object_get(o, "alpa");
    struct ap_at here = {at, "alpa", 0};

    s->alpa = ap_alpa_defaults();
    if (read_space(o, at, &s->alpa.space, err))
        return -1;
    if (!rules)
        return 0;
    if (!json_is_object(rules))
        return ap_at_err(&here, err, "expected an object");
    s->alpa.scatter = json_is_true(json_object_get(rules, "reduce_scatter"));
    s->alpa.mixed = json_is_true(json_object_get(rules, "mixed_mesh"));
    return read_units(rules, &here, "alpha", s->alpa.alpha, err) ||
                   read_units(rules, &here, "beta", s->alpa.beta, err) ||
                   read_axes(rules, &here, "no_all_gather", &s->plan.mesh,
                             &s->alpa.no_all_gather, err) ||
                   read_axes(rules, &here, "no_all_to_all", &s->plan.mesh,
                             &s->alpa.no_all_to_all, err)
               ? -1
               : 0;
}

static int read_summary(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                        struct ap_sharding *s, struct ap_err *err)
{
    if (read_text(arena, o, at, "algorithm", &s->algorithm, err) ||
        read_text(arena, o, at, "cost_model", &s->cost_model, err) ||
        check_model(s->cost_model, at, err) || read_alpa(o, at, s, err) ||
        read_text(arena, o, at, "stopped", &s->stopped, err) ||
        read_num(o, at, "objective_sec", &s->objective_sec, err) ||
        read_num(o, at, "lower_bound_sec", &s->lower_bound_sec, err) ||
        (json_object_get(o, "peak_bytes") &&
         ap_get_int(o, at, "peak_bytes", 0, INT64_MAX, &s->peak_bytes, err)))
        return -1;
    const struct ap_at objective = {at, "objective_sec", 0},
                       bound = {at, "lower_bound_sec", 0};
    if (s->objective_sec < 0 || s->lower_bound_sec < 0)
        return ap_at_err(s->objective_sec < 0 ? &objective : &bound, err,
                         "expected a number >= 0");
    if (json_object_get(o, "memory_limit_bytes") &&
        ap_get_int(o, at, "memory_limit_bytes", 1, INT64_MAX, &s->limit_bytes, err))
        return -1;
    return read_text(arena, o, at, "solver", &s->solver, err);
}

/* The mesh, which may be text such as "dp=2,tp=4". */
static int read_mesh(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                     struct ap_mesh *mesh, struct ap_err *err)
{
    const json_t *v = json_object_get(o, "mesh");
    struct ap_at here = {at, "mesh", 0};
    struct ap_err why = {0};

    if (!json_is_string(v) && !json_is_object(v))
        return ap_at_err(
            &here, err,
            "expected text such as \"2x4\" or \"dp=2,tp=4\", or an object with "
            "axes and shape");
    if (json_is_object(v))
        return ap_mesh_from_json(arena, v, &here, mesh, err);
    return ap_mesh_parse(arena, json_string_value(v), mesh, &why)
               ? ap_at_err(&here, err, "%s", why.msg)
               : 0;
}

/* What a person wrote and nobody reads is a slip. */
static int check_members(json_t *o, const struct ap_at *at, struct ap_err *err)
{
    static const char *const known[] = {"mesh",    "algorithm",  "nodes",      "regather",
                                        "stopped", "cost_model", "fingerprint"};
    const char *name;
    json_t *v;

    json_object_foreach(o, name, v)
    {
        const struct ap_at here = {at, name, 0};
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            found |= strcmp(name, known[i]) == 0;
        if (!found)
            return ap_at_err(
                &here, err,
                "a sharding without \"groups\" has mesh, algorithm, nodes and "
                "regather, and no such member");
    }
    return 0;
}

/* The choices: of groups by number, or of nodes by name. */
static int read_choices(struct ap_arena *arena, json_t *o, const struct ap_at *at,
                        struct ap_plan *plan, struct ap_err *err)
{
    struct ap_at mesh_at = {at, "mesh", 0};

    if (json_object_get(o, "groups"))
        return read_groups(arena, o, at, plan, err) || check_layouts(o, at, plan, err) ||
                       read_conversions_how(arena, o, at, plan, err)
                   ? -1
                   : 0;
    if (plan->mesh.microbatch)
        return ap_at_err(&mesh_at, err,
                         "a plan without \"groups\" has no microbatch axis");
    return check_members(o, at, err) || ap_plan_by_hand(arena, o, at, plan, err) ? -1 : 0;
}

int ap_sharding_from_json(struct ap_arena *arena, json_t *o, const struct ap_at *at,
                          const struct ap_graph *g, const struct ap_nests *nests,
                          struct ap_sharding *s, struct ap_err *err)
{
    *s = (struct ap_sharding){.plan = {.graph = g, .nests = nests},
                              .algorithm = "given",
                              .cost_model = ap_cost_variant_names[AP_COST_DEFAULT],
                              .stopped = json_object_get(o, "groups") ||
                                                 !json_object_get(o, "algorithm")
                                             ? "given"
                                             : "rule"};
    if (!json_is_object(o))
        return ap_at_err(at, err, "expected an object");
    if (read_mesh(arena, o, at, &s->plan.mesh, err) ||
        read_summary(arena, o, at, s, err) || read_choices(arena, o, at, &s->plan, err) ||
        check_fingerprint(arena, o, at, g, err))
        return -1;
    return 0;
}
