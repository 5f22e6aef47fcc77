/* The section "families": written, and read with its check. */
#include "doc/families_json.h"

#include <limits.h>

static void put_family(const struct ap_graph *g, const struct ap_family *f,
                       struct ap_buf *out)
{
    int n_weights = 0;

    for (int j = 0; j < f->n_nodes; j++)
        n_weights += g->nodes[f->nodes[j]].role == AP_ROLE_WEIGHT;
    ap_buf_puts(out, "{\"name\":");
    ap_json_str(out, f->name);
    if (f->parent >= 0)
        ap_put_int(out, "parent", f->parent);
    ap_put_int(out, "weights", n_weights);
    ap_put_key(out, "labels");
    for (int i = 0; i < f->n_instances; i++) {
        ap_buf_putc(out, i ? ',' : '[');
        ap_json_str(out, f->labels[i]);
    }
    ap_buf_puts(out, "],\n\"nodes\":[");
    for (int i = 0; i < f->n_instances; i++) {
        const int *row = f->nodes + (int64_t)i * f->n_nodes;
        ap_buf_puts(out, i ? ",\n" : "");
        for (int j = 0; j < f->n_nodes; j++) {
            ap_buf_putc(out, j ? ',' : '[');
            ap_buf_int(out, row[j]);
        }
        ap_buf_putc(out, ']');
    }
    ap_buf_puts(out, "]}");
}

void ap_families_to_json(struct ap_arena *arena, const struct ap_graph *g,
                         const struct ap_families *f, struct ap_buf *out)
{
    struct ap_families_summary sum;

    ap_families_sum(arena, g, f, &sum);
    ap_buf_puts(out, "{\"algorithm\":");
    ap_json_str(out, f->algorithm);
    ap_put_int(out, "distinct", sum.n_distinct);
    ap_put_int(out, "instances", sum.n_instances);
    ap_put_int(out, "nodes_inside", sum.nodes);
    ap_put_int(out, "weights_inside", sum.weights);
    ap_buf_puts(out, ",\n\"families\":[");
    for (int i = 0; i < f->n; i++) {
        ap_buf_puts(out, i ? ",\n" : "\n");
        put_family(g, &f->family[i], out);
    }
    ap_buf_puts(out, "]");
    ap_put_ids(out, "trimmed", f->trimmed, f->n_trimmed);
    ap_buf_putc(out, '}');
}

static int read_row(const json_t *row, const struct ap_at *at, int n, int *out,
                    struct ap_err *err)
{
    if (!json_is_array(row) || json_array_size(row) != (size_t)n)
        return ap_at_err(at, err, "expected an array of %d node ids", n);
    for (int j = 0; j < n; j++) {
        struct ap_at here = {at, NULL, j};
        const json_t *id = json_array_get(row, (size_t)j);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT_MAX)
            return ap_at_err(&here, err, "expected a node id");
        out[j] = (int)json_integer_value(id);
    }
    return 0;
}

static int read_labels(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                       struct ap_family *f, struct ap_err *err)
{
    struct ap_at list = {at, "labels", 0};
    json_t *labels;

    const char **text = AP_NEW_N(arena, f->n_instances + 1, const char *);
    f->labels = text;
    for (int i = 0; i < f->n_instances; i++)
        text[i] = ap_arena_printf(arena, "%s %d", f->name, i);
    if (!json_object_get(o, "labels"))
        return 0;
    if (ap_get_arr(o, at, "labels", &labels, err))
        return -1;
    if (json_array_size(labels) != (size_t)f->n_instances)
        return ap_at_err(&list, err, "expected %d, one for each instance",
                         f->n_instances);
    for (int i = 0; i < f->n_instances; i++) {
        struct ap_at here = {&list, NULL, i};
        const char *s = json_string_value(json_array_get(labels, (size_t)i));
        if (!s)
            return ap_at_err(&here, err, "expected a string");
        text[i] = ap_arena_strdup(arena, s);
    }
    return 0;
}

static int read_family(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                       int n_graph, struct ap_family *f, struct ap_err *err)
{
    struct ap_at list = {at, "nodes", 0};
    const char *name = "family";
    json_t *rows;

    f->parent = -1;
    if (!json_is_object(o))
        return ap_at_err(at, err, "expected an object");
    if (ap_opt_str(o, at, "name", &name, err) ||
        ap_opt_int(o, at, "parent", 0, &f->parent, err) ||
        ap_get_arr(o, at, "nodes", &rows, err))
        return -1;
    size_t n = json_array_size(rows), size = json_array_size(json_array_get(rows, 0));
    if (n > (size_t)n_graph || size > (size_t)n_graph)
        return ap_at_err(&list, err, "more ids than the graph has nodes");
    f->name = ap_arena_strdup(arena, name);
    f->n_instances = (int)n;
    f->n_nodes = (int)size;
    if ((int64_t)f->n_instances * f->n_nodes > n_graph)
        return ap_at_err(&list, err, "more ids than the graph has nodes");
    int *nodes = AP_NEW_N(arena, n * size + 1, int);
    for (int i = 0; i < f->n_instances; i++) {
        struct ap_at here = {&list, NULL, i};
        if (read_row(json_array_get(rows, (size_t)i), &here, f->n_nodes,
                     nodes + (size_t)i * size, err))
            return -1;
    }
    f->nodes = nodes;
    return read_labels(arena, o, at, f, err);
}

int ap_families_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                          const struct ap_graph *g, struct ap_families *f,
                          struct ap_err *err)
{
    struct ap_at list = {at, "families", 0}, trimmed_at = {at, "trimmed", 0};
    struct ap_err found = {0};
    const char *algorithm = "given";
    json_t *families, *trimmed = NULL;

    *f = (struct ap_families){0};
    if (!json_is_object(o))
        return ap_at_err(at, err, "expected an object");
    if (ap_opt_str(o, at, "algorithm", &algorithm, err) ||
        ap_get_arr(o, at, "families", &families, err) ||
        (json_object_get(o, "trimmed") && ap_get_arr(o, at, "trimmed", &trimmed, err)))
        return -1;
    size_t n = json_array_size(families), n_trimmed = json_array_size(trimmed);
    if (n > (size_t)g->n_nodes)
        return ap_at_err(&list, err, "more families than nodes");
    if (n_trimmed > (size_t)g->n_nodes)
        return ap_at_err(&trimmed_at, err, "more ids than nodes");
    struct ap_family *family = AP_NEW_N(arena, n + 1, struct ap_family);
    int *ids = AP_NEW_N(arena, n_trimmed + 1, int);
    for (size_t i = 0; i < n; i++) {
        struct ap_at here = {&list, NULL, (long)i};
        if (read_family(arena, json_array_get(families, i), &here, g->n_nodes, &family[i],
                        err))
            return -1;
    }
    if (trimmed && read_row(trimmed, &trimmed_at, (int)n_trimmed, ids, err))
        return -1;
    *f = (struct ap_families){ap_arena_strdup(arena, algorithm), (int)n, family,
                              (int)n_trimmed, ids};
    if (!ap_families_check(arena, g, f, &found))
        return 0;
    struct ap_buf where = {0};
    ap_buf_puts(&where, "");
    ap_at_print(at, &where);
    ap_err_set(err, "%s%s", where.data, found.msg);
    ap_buf_free(&where);
    return -1;
}

int ap_doc_families(struct ap_arena *arena, const struct ap_doc *doc,
                    const struct ap_graph *g, struct ap_families *f, struct ap_err *err)
{
    const struct ap_section *section = ap_doc_find(doc, "families");
    const struct ap_at at = {.key = "families"};
    struct ap_err why = {0};

    if (!section)
        return 1;
    json_t *o = ap_doc_load(doc, section, &why);
    int rc = o ? ap_families_from_json(arena, o, &at, g, f, &why) : -1;
    json_decref(o);
    return rc ? ap_err_set(err, "%s: %s", doc->file, why.msg) : 0;
}
