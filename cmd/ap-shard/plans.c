/*
 * Plans from files: written by hand, {"mesh":"2x4","nodes":{"*fc/kernel":"R,S1"}}, or
 * taken from another document. Idea: if the document has the fingerprint of this graph,
 * its choices are taken unchanged; otherwise nodes are found by name, their groups'
 * choices fitted (layout_to_choice.h), and all others follow (ap_named_plan_complete).
 * Cost: names are sorted once; one pass over all nodes per glob.
 */
#include <stdlib.h>
#include <string.h>

#include "doc/fingerprint.h"
#include "plan/layout_to_choice.h"
#include "problem/shard.h"
#include "base/file.h"

/* What a person wrote and nobody reads is a slip. */
static int check_members(const struct shard_given *given, struct ap_err *err)
{
    static const char *const known[] = {"mesh", "algorithm", "nodes", "regather",
                                        "fingerprint"};
    const char *name;
    json_t *v;

    json_object_foreach(given->root, name, v)
    {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            found |= strcmp(name, known[i]) == 0;
        if (!found)
            return ap_err_set(
                err,
                "%s: /%s: a plan has no such member, but mesh, algorithm, nodes, "
                "regather and fingerprint",
                given->path, name);
    }
    return 0;
}

int shard_given_load(struct ap_arena *arena, const char *path, struct shard_given *given,
                     struct ap_err *err)
{
    char *text;
    size_t len;
    json_error_t bad;

    *given = (struct shard_given){.path = path};
    if (ap_read_file(arena, path, false, &text, &len, err))
        return -1;
    given->root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &bad);
    if (!given->root)
        return ap_err_set(err, "%s:%d:%d: %s", path, bad.line, bad.column, bad.text);
    if (!json_is_object(given->root))
        return ap_err_set(err, "%s: expected an object", path);
    const json_t *version = json_object_get(given->root, "autopar");
    given->is_document = version != NULL;
    if (version && !json_is_integer(version))
        return ap_err_set(err, "%s: \"autopar\" is not a format version (a whole number)",
                          path);
    if (version && json_integer_value(version) != AP_DOC_VERSION)
        return ap_err_set(err, "%s: format version %lld, this autopar reads version %d",
                          path, (long long)json_integer_value(version), AP_DOC_VERSION);
    if (given->is_document && !json_is_object(json_object_get(given->root, "sharding")))
        return ap_err_set(err, "%s: the document has no section \"sharding\"", path);
    if (!given->is_document && !json_is_object(json_object_get(given->root, "nodes")))
        return ap_err_set(err, "%s: expected a document, or an object with \"nodes\"",
                          path);
    return given->is_document ? 0 : check_members(given, err);
}

/* What holds mesh, fingerprint and regather. */
static json_t *body_of(const struct shard_given *given)
{
    return given->is_document ? json_object_get(given->root, "sharding") : given->root;
}

/* Puts the file's name before a message. */
static int file_err(const struct shard_given *given, struct ap_err *err)
{
    struct ap_err full = {0};
    ap_err_set(&full, "%s: %s", given->path, err->msg);
    *err = full;
    return -1;
}

int shard_given_mesh(struct ap_arena *arena, const struct shard_given *given,
                     struct ap_mesh *mesh, struct ap_err *err)
{
    const json_t *o = json_object_get(body_of(given), "mesh");
    struct ap_at top = {.key = "sharding"},
                 at = {given->is_document ? &top : NULL, "mesh", 0};
    struct ap_err why = {0};

    *mesh = (struct ap_mesh){0};
    if (!o)
        return 0;
    if (json_is_string(o)) {
        if (ap_mesh_parse(arena, json_string_value(o), mesh, &why)) {
            ap_at_err(&at, err, "%s", why.msg);
            return file_err(given, err);
        }
        return 0;
    }
    return ap_mesh_from_json(arena, o, &at, mesh, err) ? file_err(given, err) : 0;
}

/* ---- nodes by name ---- */

struct named {
    const char *name;
    int id;
};

struct names {
    const struct ap_graph *g;
    struct named *list; /* by name, then id */
};

static int compare_names(const void *pa, const void *pb)
{
    const struct named *a = pa, *b = pb;
    int c = strcmp(a->name, b->name);
    return c ? c : a->id - b->id;
}

static void sort_names(struct ap_arena *arena, const struct ap_graph *g, struct names *n)
{
    *n = (struct names){.g = g, .list = AP_NEW_N(arena, g->n_nodes, struct named)};
    for (int i = 0; i < g->n_nodes; i++)
        n->list[i] = (struct named){g->nodes[i].name, i};
    qsort(n->list, (size_t)g->n_nodes, sizeof *n->list, compare_names);
}

/* First position whose name is not before `name`. */
static int find_name(const struct names *n, const char *name)
{
    int lo = 0, hi = n->g->n_nodes;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (strcmp(n->list[mid].name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

struct pinner {
    struct ap_pins pins;
    const struct shard_task *task;
    struct ap_mesh mesh; /* of the devices */
    const char *layout, *asker;
};

static int pin_node(void *arg, int node, struct ap_err *err)
{
    struct pinner *p = arg;
    return ap_pins_set(&p->pins, p->task->graph, &p->mesh, node, p->layout, p->asker,
                       err);
}

/* The shape of a document's parameter; rank -1 for other nodes. */
static struct ap_shape shape_of(struct ap_arena *arena, const json_t *node)
{
    const char *op = json_string_value(json_object_get(node, "op"));
    const char *text = json_string_value(json_object_get(node, "shape"));
    struct ap_shape shape;
    struct ap_err ignored = {0};
    size_t pos = 0;
    if (!op || strcmp(op, ap_ops[AP_OP_PARAMETER].name) != 0 || !text ||
        ap_shape_parse(arena, text, &pos, &shape, &ignored))
        return (struct ap_shape){.rank = -1};
    return shape;
}

/*
 * A parameter's layout in a plan of microbatches, on the devices' axes: what splits
 * each microbatch's rows (an input's S0/4, of 8 rows in two) splits all rows.
 */
static const char *on_devices(struct ap_arena *arena, const struct ap_mesh *theirs,
                              const struct ap_shape *shape, const json_t *node,
                              const char *text)
{
    const char *role = json_string_value(json_object_get(node, "role"));
    struct ap_mesh mesh = *theirs;
    struct ap_layout l;
    struct ap_err ignored = {0};
    struct ap_buf out = {0};

    if (!mesh.microbatch || ap_layout_parse(&mesh, shape, text, &l, &ignored))
        return text;
    for (int a = 1; a < mesh.n_axes; a++) {
        struct ap_placement *x = &l.axis[a - 1];
        *x = l.axis[a];
        if (x->kind == AP_SPLIT && role && !strcmp(role, "input") &&
            ap_mul64(x->stride, mesh.size[0]) == shape->dims[x->dim])
            x->stride = 0;
    }
    ap_mesh_drop_microbatches(&mesh);
    ap_layout_print(&mesh, &l, &out);
    text = ap_arena_strndup(arena, out.data, out.len);
    ap_buf_free(&out);
    return text;
}

/*
 * The layouts of a document's parameters that the graph has too. The names of other nodes
 * mean nothing in another graph.
 */
static int pin_document(struct ap_arena *arena, const struct shard_given *given,
                        const struct names *names, struct pinner *p, struct ap_err *err)
{
    struct ap_at top = {.key = "sharding"}, graph = {.key = "graph"};
    struct ap_at list = {&graph, "nodes", 0};
    struct ap_mesh theirs;
    json_t *layouts, *nodes;
    int n_found = 0;

    if (shard_given_mesh(arena, given, &theirs, err) ||
        ap_get_arr(json_object_get(given->root, "graph"), &graph, "nodes", &nodes, err) ||
        ap_get_arr(body_of(given), &top, "layouts", &layouts, err))
        return -1;
    if (json_array_size(layouts) != json_array_size(nodes))
        return ap_at_err(&top, err, "%zu layouts of %zu nodes", json_array_size(layouts),
                         json_array_size(nodes));
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        struct ap_at here = {&list, NULL, (long)i};
        const char *name;
        struct ap_err why = {0};
        if (ap_get_str(json_array_get(nodes, i), &here, "name", &name, err))
            return -1;
        p->layout = json_string_value(json_array_get(layouts, i));
        if (!p->layout)
            return ap_at_err(&here, err, "has no layout in /sharding/layouts");
        p->asker = given->path;
        int at = find_name(names, name);
        if (at == names->g->n_nodes || strcmp(names->list[at].name, name) != 0)
            continue;
        int node = names->list[at].id;
        const struct ap_shape shape = shape_of(arena, json_array_get(nodes, i));
        if (names->g->nodes[node].op != AP_OP_PARAMETER ||
            shape.rank != names->g->nodes[node].shape.rank)
            continue;
        p->layout =
            on_devices(arena, &theirs, &shape, json_array_get(nodes, i), p->layout);
        if (pin_node(p, node, &why))
            return ap_at_err(&here, err, "%s", why.msg);
        n_found++;
    }
    return n_found ? 0 : ap_at_err(&list, err, "the graph has none of these parameters");
}

/* Nodes whose copies are regathered: ids of the document's graph. */
static int read_regather(const struct shard_given *given, const struct names *names,
                         bool *regather, struct ap_err *err)
{
    const json_t *list = json_object_get(body_of(given), "regather");
    const json_t *nodes = json_object_get(json_object_get(given->root, "graph"), "nodes");
    struct ap_at at = {.key = "regather"};

    if (list && !json_is_array(list))
        return ap_at_err(&at, err, "expected an array of nodes");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        struct ap_at here = {&at, NULL, (long)i};
        const char *name = NULL;
        if (json_is_integer(v) && json_integer_value(v) >= 0)
            name = json_string_value(json_object_get(
                json_array_get(nodes, (size_t)json_integer_value(v)), "name"));
        if (!name)
            return ap_at_err(&here, err, "expected a node");
        for (int k = find_name(names, name);
             k < names->g->n_nodes && !strcmp(names->list[k].name, name); k++)
            regather[names->list[k].id] = true;
    }
    return 0;
}

/* ---- the plan ---- */

/* The difference of the fingerprints; NULL if they agree or there are none. */
static const char *compare(struct ap_arena *arena, const json_t *print, const char *graph,
                           const char *cluster)
{
    const char *g = json_string_value(json_object_get(print, "graph"));
    const char *c = json_string_value(json_object_get(print, "cluster"));
    bool other_g = g && strcmp(g, graph) != 0, other_c = c && strcmp(c, cluster) != 0;
    if (!other_g && !other_c)
        return NULL;
    return ap_arena_printf(arena, "made for another %s (%s, here %s)",
                           other_g ? other_c ? "graph and another cluster" : "graph"
                                   : "cluster",
                           other_g ? g : c, other_g ? graph : cluster);
}

static int by_name(struct ap_arena *arena, const struct shard_given *given,
                   const struct shard_task *task, struct ap_plan *plan,
                   struct ap_err *err)
{
    struct pinner p = {
        .pins = ap_pins_none(arena, task->graph), .task = task, .mesh = task->cost->mesh};
    struct names names;
    bool *fixed, *regather = AP_NEW_N(arena, task->graph->n_nodes, bool);

    ap_mesh_drop_microbatches(&p.mesh);
    sort_names(arena, task->graph, &names);
    if (pin_document(arena, given, &names, &p, err) ||
        read_regather(given, &names, regather, err)) {
        file_err(given, err);
        return AP_BAD_INPUT;
    }
    if (shard_pins_on_mesh(arena, &p.pins, task->nests, &task->cost->mesh,
                           task->microbatch_choice, err) ||
        ap_pins_fit(arena, plan, &p.pins, &plan->choice, &fixed, err))
        return AP_NO_SOLUTION;
    ap_named_plan_complete(arena, plan, fixed);
    plan->regather = regather;
    plan->scatters = json_is_true(json_object_get(body_of(given), "scatters"));
    return 0;
}

void shard_choices_on_mesh(const struct shard_task *task, const struct ap_mesh *from,
                           struct ap_choice_vec *choice)
{
    int to = (int)task->cost->mesh.microbatch, less = to - (int)from->microbatch;
    for (int i = 0; i < task->nests->n; i++) {
        struct ap_choice_vec c = AP_CHOICE_NONE;
        for (int a = to; a < task->cost->mesh.n_axes; a++)
            c.axis[a] = choice[i].axis[a - less];
        if (to)
            c.axis[0] = task->microbatch_choice[i];
        choice[i] = c;
    }
}

/* A plan by hand is one of devices; microbatches come before it. */
static int by_hand(struct ap_arena *arena, const struct shard_given *given,
                   const struct shard_task *task, struct ap_plan *plan,
                   struct ap_err *err)
{
    struct ap_plan own = {
        .graph = task->graph, .nests = task->nests, .mesh = task->cost->mesh};

    ap_mesh_drop_microbatches(&own.mesh);
    int rc = ap_plan_by_hand(arena, given->root, NULL, &own, err);
    if (rc) {
        file_err(given, err);
        return rc > 0 ? AP_NO_SOLUTION : AP_BAD_INPUT;
    }
    shard_choices_on_mesh(task, &own.mesh, own.choice);
    plan->choice = own.choice;
    plan->regather = own.regather;
    plan->whole = own.whole;
    return 0;
}

int shard_given_plan(struct ap_arena *arena, const struct shard_given *given,
                     const struct shard_task *task, struct ap_plan *plan,
                     const char **differs, struct ap_err *err)
{
    const json_t *print = json_object_get(body_of(given), "fingerprint");
    const char *graph = ap_graph_fingerprint(arena, task->graph);

    *plan = shard_empty_plan(task);
    *differs =
        compare(arena, print, graph, ap_cluster_fingerprint(arena, &task->cost->cluster));
    const char *theirs = json_string_value(json_object_get(print, "graph"));
    if (!given->is_document)
        return by_hand(arena, given, task, plan, err);
    if (theirs && strcmp(theirs, graph) != 0)
        return by_name(arena, given, task, plan, err);

    struct ap_at at = {.key = "sharding"};
    struct ap_sharding s;
    struct ap_err why = {0};
    if (ap_sharding_from_json(arena, body_of(given), &at, task->graph, task->nests, &s,
                              &why)) {
        if (!theirs)
            return by_name(arena, given, task, plan, err);
        ap_err_set(err, "%s: %s", given->path, why.msg);
        return AP_BAD_INPUT;
    }
    shard_choices_on_mesh(task, &s.plan.mesh, s.plan.choice);
    plan->choice = s.plan.choice;
    plan->regather = s.plan.regather;
    plan->whole = s.plan.whole;
    plan->scatters = s.plan.scatters;
    return 0;
}
