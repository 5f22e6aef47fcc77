/* Graphs from JSON; attributes are attr_json.c's, writing is graph_write.c's. */
#include "doc/attr_json.h"
#include "graph/attrs.h"
#include "base/names.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

/* What reading a graph needs beside the graph. */
struct reader {
    struct ap_arena *arena;
    struct ap_err *err;
    struct ap_names scopes; /* so that equal ones are one string */
    /* the graph's nodes as text, if they are not in its JSON value; n < 0: they are */
    const struct ap_doc *doc;
    const struct ap_item *elements;
    int n_elements;
    bool located; /* the message has FILE:LINE:COLUMN already */
};

/* The one copy of a scope in the arena. */
static const char *intern(struct reader *r, const char *s)
{
    size_t len = strlen(s);
    int i = ap_names_get(&r->scopes, s, len);

    if (i >= 0)
        return r->scopes.name[i].s;
    const char *copy = ap_arena_strndup(r->arena, s, len);
    ap_names_put(&r->scopes, copy, len, r->scopes.n);
    return copy;
}

static int read_operands(struct reader *r, const json_t *o, const struct ap_at *at,
                         struct ap_node *node)
{
    struct ap_at list = {at, "in", 0};
    const json_t *v = json_object_get(o, "in");
    size_t n = json_array_size(v);

    if (v && !json_is_array(v))
        return ap_at_err(&list, r->err, "expected an array of node ids");
    int *in = AP_NEW_N(r->arena, n, int);
    for (size_t k = 0; k < n; k++) {
        struct ap_at here = {&list, NULL, (long)k};
        const json_t *id = json_array_get(v, k);
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < INT_MIN || value > INT_MAX)
            return ap_at_err(&here, r->err, "expected a node id");
        in[k] = (int)value;
    }
    node->n_in = (int)n;
    node->in = in;
    return 0;
}

static int read_node(struct reader *r, json_t *o, const struct ap_at *at,
                     struct ap_node *node)
{
    struct ap_at op_at = {at, "op", 0}, shape_at = {at, "shape", 0};
    const char *op, *shape, *name = "", *scope = "", *pin = NULL;
    int phase = AP_FORWARD, role = AP_ROLE_NONE;

    if (ap_get_str(o, at, "op", &op, r->err) ||
        ap_get_str(o, at, "shape", &shape, r->err))
        return -1;
    node->op = ap_op_find(op, strlen(op));
    if (node->op == AP_N_OPS)
        return ap_at_err(&op_at, r->err, "unknown operator '%s'", op);
    node->param = -1;
    node->group = -1;
    if (ap_shape_from_text(r->arena, shape, &shape_at, &node->shape, r->err) ||
        read_operands(r, o, at, node) || ap_opt_str(o, at, "name", &name, r->err) ||
        ap_opt_str(o, at, "scope", &scope, r->err) ||
        ap_opt_str(o, at, "pin", &pin, r->err) ||
        ap_opt_name(o, at, "phase", ap_phase_names, AP_N_PHASES, &phase, r->err) ||
        ap_opt_name(o, at, "role", ap_role_names, AP_N_ROLES, &role, r->err) ||
        ap_opt_int(o, at, "param", 0, &node->param, r->err) ||
        ap_opt_int(o, at, "group", 0, &node->group, r->err))
        return -1;
    node->name = ap_arena_strdup(r->arena, name);
    node->scope = intern(r, scope);
    node->pin = pin ? ap_arena_strdup(r->arena, pin) : NULL;
    node->phase = (enum ap_phase)phase;
    node->role = (enum ap_role)role;
    return ap_attrs_from_json(r->arena, o, at, node, r->err);
}

static int read_nodes(struct reader *r, const json_t *o, const struct ap_at *at,
                      int *n_nodes, struct ap_node **nodes)
{
    struct ap_at list = {at, "nodes", 0};
    json_t *v;

    if (ap_get_arr(o, at, "nodes", &v, r->err))
        return -1;
    size_t n = json_array_size(v);
    if (n > INT_MAX / 2)
        return ap_at_err(&list, r->err, "too many nodes");
    *nodes = AP_NEW_N(r->arena, n, struct ap_node);
    *n_nodes = (int)n;
    for (size_t i = 0; i < n; i++) {
        struct ap_at here = {&list, NULL, (long)i};
        if (read_node(r, json_array_get(v, i), &here, &(*nodes)[i]))
            return -1;
    }
    return 0;
}

/* The nodes of a graph that is read from a document, loaded one by one. */
static int read_elements(struct reader *r, const struct ap_at *at, struct ap_graph *g)
{
    struct ap_at list = {at, "nodes", 0};

    g->nodes = AP_NEW_N(r->arena, r->n_elements, struct ap_node);
    g->n_nodes = r->n_elements;
    for (int i = 0; i < g->n_nodes; i++) {
        struct ap_at here = {&list, NULL, i};
        const struct ap_section text = ap_doc_item(r->doc, &r->elements[i]);
        json_t *o = ap_doc_load(r->doc, &text, r->err);
        if (!o) {
            r->located = true;
            return -1;
        }
        int rc = read_node(r, o, &here, &g->nodes[i]);
        json_decref(o);
        if (rc)
            return -1;
    }
    return 0;
}

/* Member "results" of a reducer or computation of n nodes: `what` for messages. */
static int read_ids(struct reader *r, const json_t *o, const struct ap_at *at,
                    const char *what, int n_nodes, int *n, const int **out)
{
    struct ap_at results_at = {at, "results", 0};
    struct ap_ints results;

    if (ap_get_ints(r->arena, o, at, "results", &results, r->err))
        return -1;
    int *ids = AP_NEW_N(r->arena, results.n, int);
    for (int i = 0; i < results.n; i++) {
        struct ap_at here = {&results_at, NULL, i};
        if (results.v[i] < 0 || results.v[i] >= n_nodes)
            return ap_at_err(&here, r->err, "no node of the %s", what);
        ids[i] = (int)results.v[i];
    }
    *n = results.n;
    *out = ids;
    return 0;
}

static int read_reducer(struct reader *r, const json_t *o, const struct ap_at *at,
                        struct ap_reducer *reducer)
{
    const char *name = "";
    int kind = AP_RED_NONE;
    struct ap_node *nodes = NULL;

    if (!json_is_object(o))
        return ap_at_err(at, r->err, "expected an object");
    if (ap_opt_str(o, at, "name", &name, r->err) ||
        ap_opt_name(o, at, "kind", ap_red_names, AP_N_REDS, &kind, r->err) ||
        (json_object_get(o, "nodes") &&
         read_nodes(r, o, at, &reducer->n_nodes, &nodes)) ||
        read_ids(r, o, at, "reducer", reducer->n_nodes, &reducer->n_results,
                 &reducer->results))
        return -1;
    reducer->name = ap_arena_strdup(r->arena, name);
    reducer->red = (enum ap_red)kind;
    reducer->nodes = nodes;
    return 0;
}

static int read_reducers(struct reader *r, const json_t *o, const struct ap_at *at,
                         struct ap_graph *g)
{
    struct ap_at list = {at, "reducers", 0};
    json_t *v;

    if (!json_object_get(o, "reducers"))
        return 0;
    if (ap_get_arr(o, at, "reducers", &v, r->err))
        return -1;
    size_t n = json_array_size(v);
    struct ap_reducer *reducers = AP_NEW_N(r->arena, n, struct ap_reducer);
    for (size_t i = 0; i < n; i++) {
        struct ap_at here = {&list, NULL, (long)i};
        if (read_reducer(r, json_array_get(v, i), &here, &reducers[i]))
            return -1;
    }
    g->n_reducers = (int)n;
    g->reducers = reducers;
    return 0;
}

static int read_comps(struct reader *r, const json_t *o, const struct ap_at *at,
                      struct ap_graph *g)
{
    struct ap_at list = {at, "computations", 0};
    json_t *v;

    if (!json_object_get(o, "computations"))
        return 0;
    if (ap_get_arr(o, at, "computations", &v, r->err))
        return -1;
    size_t n = json_array_size(v);
    struct ap_comp *comps = AP_NEW_N(r->arena, n, struct ap_comp);
    for (size_t i = 0; i < n; i++) {
        struct ap_at here = {&list, NULL, (long)i};
        const json_t *e = json_array_get(v, i);
        const char *name = "";
        struct ap_node *nodes;
        if (!json_is_object(e))
            return ap_at_err(&here, r->err, "expected an object");
        if (ap_opt_str(e, &here, "name", &name, r->err) ||
            read_nodes(r, e, &here, &comps[i].n_nodes, &nodes) ||
            read_ids(r, e, &here, "computation", comps[i].n_nodes, &comps[i].n_results,
                     &comps[i].results))
            return -1;
        comps[i].name = ap_arena_strdup(r->arena, name);
        comps[i].nodes = nodes;
    }
    g->n_comps = (int)n;
    g->comps = comps;
    return 0;
}

static int read_results(struct reader *r, const json_t *o, const struct ap_at *at,
                        struct ap_graph *g)
{
    struct ap_at list = {at, "results", 0};
    json_t *v;

    if (ap_get_arr(o, at, "results", &v, r->err))
        return -1;
    size_t n = json_array_size(v);
    g->results = AP_NEW_N(r->arena, n, struct ap_result);
    g->n_results = (int)n;
    for (size_t i = 0; i < n; i++) {
        struct ap_at here = {&list, NULL, (long)i};
        const json_t *e = json_array_get(v, i);
        int role = AP_ROLE_AUX;
        int64_t node;
        g->results[i].alias = -1;
        if (ap_get_int(e, &here, "node", INT_MIN, INT_MAX, &node, r->err) ||
            ap_opt_name(e, &here, "role", ap_role_names, AP_N_ROLES, &role, r->err) ||
            ap_opt_int(e, &here, "alias", INT_MIN, &g->results[i].alias, r->err))
            return -1;
        const json_t *part = json_object_get(e, "result");
        struct ap_at part_at = {&here, "result", 0};
        if (part &&
            ap_part_from_json(r->arena, part, &part_at, &g->results[i].part, r->err))
            return -1;
        g->results[i].node = (int)node;
        g->results[i].role = (enum ap_role)role;
    }
    return 0;
}

static int read_dropped(struct reader *r, const json_t *o, const struct ap_at *at,
                        struct ap_graph *g)
{
    struct ap_at list = {at, "dropped", 0};
    json_t *v;

    if (!json_object_get(o, "dropped"))
        return 0;
    if (ap_get_arr(o, at, "dropped", &v, r->err))
        return -1;
    size_t n = json_array_size(v);
    const char **names = AP_NEW_N(r->arena, n, const char *);
    for (size_t i = 0; i < n; i++) {
        struct ap_at here = {&list, NULL, (long)i};
        const char *s = json_string_value(json_array_get(v, i));
        if (!s)
            return ap_at_err(&here, r->err, "expected a string");
        names[i] = ap_arena_strdup(r->arena, s);
    }
    g->n_dropped = (int)n;
    g->dropped = names;
    return 0;
}

static int read_graph(struct reader *r, const json_t *o, const struct ap_at *at,
                      struct ap_graph *g)
{
    struct ap_buf where = {0};
    const char *name = "";
    struct ap_err *err = r->err;

    *g = (struct ap_graph){0};
    ap_buf_puts(&where, "");
    ap_at_print(at, &where);
    int rc = json_is_object(o) ? 0 : ap_at_err(at, err, "expected an object");
    if (!rc)
        rc = ap_opt_str(o, at, "name", &name, err) ||
             ap_opt_int(o, at, "n_groups", 0, &g->n_groups, err) ||
             read_reducers(r, o, at, g) || read_comps(r, o, at, g) ||
             (r->n_elements < 0 ? read_nodes(r, o, at, &g->n_nodes, &g->nodes)
                                : read_elements(r, at, g)) ||
             read_results(r, o, at, g) || read_dropped(r, o, at, g);
    g->name = ap_arena_strdup(r->arena, name);
    if (!rc)
        rc = ap_graph_index(r->arena, g, where.data, err) ||
             ap_graph_check_shapes(g, where.data, err);
    ap_names_free(&r->scopes);
    ap_buf_free(&where);
    return rc ? -1 : 0;
}

int ap_graph_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                       struct ap_graph *g, struct ap_err *err)
{
    struct reader r = {.arena = arena, .err = err, .n_elements = -1};

    return read_graph(&r, o, at, g);
}

int ap_doc_graph(struct ap_arena *arena, const struct ap_doc *doc, struct ap_graph *g,
                 struct ap_err *err)
{
    const struct ap_section *section = ap_doc_find(doc, "graph");
    struct reader r = {.arena = arena, .err = err, .doc = doc, .n_elements = -1};
    const struct ap_item *elements = NULL;
    struct ap_at at = {NULL, "graph", 0};

    if (!section)
        return ap_err_set(err, "%s: no section \"graph\": make one with ap-import",
                          doc->file);
    json_t *o =
        ap_doc_load_but(arena, doc, section, "nodes", &elements, &r.n_elements, err);
    if (!o)
        return -1;
    r.elements = elements;
    int rc = read_graph(&r, o, &at, g);
    json_decref(o);
    return rc && !r.located ? ap_doc_err(doc, err) : rc;
}
