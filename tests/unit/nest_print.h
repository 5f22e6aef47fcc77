/*
 * Graphs from short JSON, nests as one line of text, and what must hold of every nest;
 * for test_nest.c and test_group.c.
 */
#ifndef AP_NEST_PRINT_H
#define AP_NEST_PRINT_H

#include "doc/doc.h"
#include "layout/nest.h"

#include <stdlib.h>
#include <string.h>

#include "tap.h"

static struct ap_arena arena;

#define SCALAR(type, param) \
    "{'op':'parameter','shape':'" type "[]','in':[],'param':" param "},"

/* Numbers the parameters in order. */
static inline void put_nodes(const char *nodes, struct ap_buf *out)
{
    static const char parameter[] = "'op':'parameter'";
    int n = 0;
    for (const char *s; (s = strstr(nodes, parameter)); nodes = s + strlen(parameter)) {
        ap_buf_put(out, nodes, (size_t)(s - nodes));
        ap_buf_printf(out, "%s,'param':%d", parameter, n++);
    }
    ap_buf_puts(out, nodes);
}

/*
 * Nodes are "op shape operands attributes" in JSON with ' for ", results node ids.
 * Reducers: 0 sum, 1 max, 2 prod, 3 or, 4 assign, 5 none of one value, 6 none of an f32
 * and an s32, 7 compares such.
 */
static inline bool graph_of(const char *nodes, const char *results, struct ap_graph *g)
{
    struct ap_buf text = {0};
    struct ap_at at = {NULL, "graph", 0};
    struct ap_err err = {""};

    ap_buf_puts(
        &text,
        "{'reducers':[{'kind':'sum','results':[]},{'kind':'max','results':[]},"
        "{'kind':'prod','results':[]},{'kind':'or','results':[]},"
        "{'kind':'assign','results':[]},"
        "{'nodes':[" SCALAR("f32", "0") SCALAR(
            "f32",
            "1") "{'op':'atan2','shape':'f32[]','in':[0,1]}],'results':[2]},"
                 "{'nodes':[" SCALAR("f32", "0") SCALAR("s32", "1") SCALAR(
                     "f32",
                     "2") "{'op':'parameter','shape':'s32[]','in':[],'param':3}],'"
                          "results':[0,1]},"
                          "{'nodes':[" SCALAR("f32", "0") SCALAR("f32", "1") SCALAR("s32",
                                                                                    "2")
                              SCALAR("s32",
                                     "3") "{'op':'compare','shape':'pred[]','in':[0,1],"
                                          "'direction':'LT'}],'results':[4]}],"
                                          "'nodes':[");
    put_nodes(nodes, &text);
    ap_buf_printf(&text, "],'results':[%s]}", results);
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] == '\'')
            text.data[i] = '"';
    }
    json_error_t where;
    json_t *o = json_loads(text.data, 0, &where);
    bool ok = o && ap_graph_from_json(&arena, o, &at, g, &err) == 0;
    if (!ok)
        CHECK(false, "graph: %s%s in %s", err.msg, o ? "" : where.text, nodes);
    json_decref(o);
    ap_buf_free(&text);
    if (ok)
        ap_group(&arena, g);
    return ok;
}

/* The last node is the only result. */
static inline bool graph_of_last(const char *nodes, struct ap_graph *g)
{
    char results[32];
    int n = 0;
    for (const char *s = nodes; (s = strstr(s, "'op':")); s++)
        n++;
    snprintf(results, sizeof(results), "{'node':%d}", n - 1);
    return graph_of(nodes, results, g);
}

static inline void print_access(const struct ap_access *a, struct ap_buf *out)
{
    ap_buf_putc(out, '(');
    for (int d = 0; d < a->rank; d++) {
        if (d > 0)
            ap_buf_putc(out, ' ');
        for (int j = 0; j < a->dims[d].n; j++)
            ap_buf_printf(out, "%s%d", j > 0 ? "." : "", a->dims[d].factor[j]);
        if (a->dims[d].n == 0)
            ap_buf_putc(out, '-');
    }
    for (int f = 0; f < 64; f++) {
        if (a->partial >> f & 1)
            ap_buf_printf(out, " P%d", f);
    }
    ap_buf_putc(out, ')');
}

/*
 * "8 4w 16:sum 5?sum | (0 2) (2 1) -> (0 1 P2) | {0} {1}": factors (w whole, : reduced, ?
 * indexed), operand slots -> values of all members, linear sets.
 */
static inline const char *print_nest(const struct ap_nest *nest)
{
    struct ap_buf out = {0};
    ap_buf_puts(&out, "");
    for (int f = 0; f < nest->n_factors; f++) {
        const struct ap_factor *factor = &nest->factors[f];
        static const char *const kind[] = {"", ":", "?", "w"};
        ap_buf_printf(&out, "%lld%s%s ", (long long)factor->size, kind[factor->kind],
                      factor->red ? ap_red_names[factor->red] : "");
    }
    ap_buf_puts(&out, "|");
    for (int i = 0; i < nest->n_ins; i++) {
        ap_buf_putc(&out, ' ');
        print_access(&nest->ins[i].access, &out);
    }
    ap_buf_puts(&out, " ->");
    for (int m = 0; m < nest->n_members; m++) {
        ap_buf_putc(&out, ' ');
        print_access(&nest->values[m], &out);
    }
    ap_buf_puts(&out, " |");
    for (int k = 0; k < nest->n_linear; k++) {
        const char *comma = "";
        ap_buf_puts(&out, " {");
        for (int i = 0; i < 64; i++) {
            if (nest->linear[k].ins >> i & 1) {
                ap_buf_printf(&out, "%s%d", comma, i);
                comma = ",";
            }
        }
        ap_buf_puts(&out, "}");
    }
    const char *text = ap_arena_strdup(&arena, out.data);
    ap_buf_free(&out);
    return text;
}

static inline const struct ap_shape *value_shape(const struct ap_graph *g, int node)
{
    const struct ap_shape *s = &g->nodes[node].shape;
    return s->dtype == AP_TUPLE ? &s->parts[0] : s;
}

/* Factors multiply to the dimensions; false when some do not. */
static inline bool sizes_fit(const struct ap_nest *nest, const struct ap_access *a,
                             const struct ap_shape *shape)
{
    if (a->rank != shape->rank)
        return false;
    for (int d = 0; d < a->rank; d++) {
        int64_t size = 1;
        for (int j = 0; j < a->dims[d].n; j++)
            size *= nest->factors[a->dims[d].factor[j]].size;
        if (size != shape->dims[d])
            return false;
    }
    return true;
}

/* A tensor's local shape under its layout is what the factors' extents say. */
static inline bool extents_fit(const struct ap_nest *nest, const struct ap_mesh *mesh,
                               const struct ap_choice_vec *c, const struct ap_access *a,
                               const struct ap_shape *shape, const struct ap_layout *l)
{
    struct ap_mark mark = ap_arena_mark(&arena);
    struct ap_shape local = ap_layout_local(&arena, mesh, shape, l);
    bool ok = true;
    for (int d = 0; d < a->rank; d++) {
        int64_t size = 1;
        for (int j = 0; j < a->dims[d].n; j++)
            size *= ap_nest_extent(nest, mesh, c, a->dims[d].factor[j]);
        ok &= size == local.dims[d];
    }
    ap_arena_rewind(&arena, mark);
    return ok;
}

static inline bool choice_fits(const struct ap_nest *nest, const struct ap_graph *g,
                               const struct ap_mesh *mesh, const struct ap_choice_vec *c)
{
    bool ok = true;
    for (int i = 0; i < nest->n_ins; i++) {
        struct ap_layout l = ap_nest_in_layout(nest, g, mesh, c, i);
        ok &= extents_fit(nest, mesh, c, &nest->ins[i].access,
                          value_shape(g, nest->ins[i].node), &l);
    }
    for (int m = 0; m < nest->n_members; m++) {
        struct ap_layout l = ap_nest_value_layout(nest, g, mesh, c, m);
        ok &= extents_fit(nest, mesh, c, &nest->values[m],
                          value_shape(g, nest->members[m]), &l);
    }
    return ok;
}

/* The next choice in the order of an odometer; false after the last. */
static inline bool next_choice(const struct ap_nest *nest, const struct ap_mesh *mesh,
                               struct ap_choice_vec *c)
{
    for (int a = 0; a < mesh->n_axes; a++) {
        if (++c->axis[a] < nest->n_factors + nest->n_linear)
            return true;
        c->axis[a] = -1;
    }
    return false;
}

static inline struct ap_choice_vec no_choice(void)
{
    struct ap_choice_vec c;
    for (int a = 0; a < AP_MAX_AXES; a++)
        c.axis[a] = -1;
    return c;
}

/* What must hold of every nest, all choices on three meshes included. */
static inline bool nest_fits(const struct ap_nest *nest, const struct ap_graph *g)
{
    static const struct ap_mesh meshes[] = {{2, {2, 2}, {"x", "y"}, 0},
                                            {2, {3, 4}, {"x", "y"}, 0},
                                            {3, {2, 3, 2}, {"x", "y", "z"}, 0}};
    bool ok = nest->n_factors <= AP_MAX_FACTORS && nest->n_members > 0;

    for (int i = 0; i < nest->n_ins; i++)
        ok &= sizes_fit(nest, &nest->ins[i].access, value_shape(g, nest->ins[i].node));
    for (int m = 0; m < nest->n_members; m++)
        ok &= sizes_fit(nest, &nest->values[m], value_shape(g, nest->members[m]));
    for (int i = 0; i < 3; i++) {
        struct ap_choice_vec c = no_choice();
        do {
            if (ap_choice_ok(nest, &meshes[i], &c))
                ok &= choice_fits(nest, g, &meshes[i], &c);
        } while (next_choice(nest, &meshes[i], &c));
    }
    return ok;
}

static inline bool build(const struct ap_graph *g, struct ap_nests *nests)
{
    struct ap_err err = {""};
    int status = ap_nests_build(&arena, g, nests, &err);
    if (status)
        CHECK(false, "nests: %s", err.msg);
    return status == 0;
}

#endif
