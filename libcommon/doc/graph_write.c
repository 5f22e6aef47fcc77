/* Graphs are written as JSON, piece by piece; attributes are attr_json.c's. */
#include "doc/attr_json.h"

enum { PIECE = 1 << 16 }; /* bytes that are written at a time */

static void write_node(struct ap_buf *out, const struct ap_node *node)
{
    ap_buf_puts(out, "{\"op\":\"");
    ap_buf_puts(out, ap_ops[node->op].name);
    ap_buf_putc(out, '"');
    ap_put_str(out, "name", node->name);
    if (node->n_in)
        ap_put_ids(out, "in", node->in, node->n_in);
    ap_put_shape(out, "shape", &node->shape);
    if (node->op == AP_OP_PARAMETER) {
        ap_put_int(out, "param", node->param);
        if (node->role != AP_ROLE_NONE)
            ap_put_str(out, "role", ap_role_names[node->role]);
    }
    ap_attrs_to_json(node, out);
    if (node->pin)
        ap_put_str(out, "pin", node->pin);
    if (node->scope[0])
        ap_put_str(out, "scope", node->scope);
    ap_put_str(out, "phase", ap_phase_names[node->phase]);
    if (node->group >= 0)
        ap_put_int(out, "group", node->group);
    ap_buf_putc(out, '}');
}

/* file: NULL, or takes what the buffer has when that is a piece. */
static void write_nodes(struct ap_buf *out, const struct ap_node *nodes, int n,
                        FILE *file)
{
    ap_buf_puts(out, ",\"nodes\":[");
    for (int i = 0; i < n; i++) {
        ap_buf_puts(out, i ? ",\n" : "\n");
        write_node(out, &nodes[i]);
        if (file && out->len >= PIECE) {
            fwrite(out->data, 1, out->len, file);
            out->len = 0;
        }
    }
    ap_buf_putc(out, ']');
}

/* The body is written only where no kind says all. */
static void write_reducer(struct ap_buf *out, const struct ap_reducer *r)
{
    ap_buf_puts(out, "{\"name\":");
    ap_json_str(out, r->name);
    if (r->red != AP_RED_NONE) {
        ap_put_str(out, "kind", ap_red_names[r->red]);
    } else {
        write_nodes(out, r->nodes, r->n_nodes, NULL);
        ap_put_ids(out, "results", r->results, r->n_results);
    }
    ap_buf_putc(out, '}');
}

static void write_comps(struct ap_buf *out, const struct ap_graph *g)
{
    if (!g->n_comps)
        return;
    ap_buf_puts(out, ",\n\"computations\":[");
    for (int i = 0; i < g->n_comps; i++) {
        const struct ap_comp *c = &g->comps[i];
        ap_buf_puts(out, i ? ",\n{\"name\":" : "\n{\"name\":");
        ap_json_str(out, c->name);
        write_nodes(out, c->nodes, c->n_nodes, NULL);
        ap_put_ids(out, "results", c->results, c->n_results);
        ap_buf_putc(out, '}');
    }
    ap_buf_putc(out, ']');
}

static void write_result(struct ap_buf *out, const struct ap_result *r)
{
    ap_buf_puts(out, "{\"node\":");
    ap_buf_int(out, r->node);
    ap_put_str(out, "role", ap_role_names[r->role]);
    if (r->alias >= 0)
        ap_put_int(out, "alias", r->alias);
    if (r->part)
        ap_part_to_json(out, "result", r->part);
    ap_buf_putc(out, '}');
}

static void write_graph(const struct ap_graph *g, struct ap_buf *out, FILE *file)
{
    ap_buf_puts(out, "{\"name\":");
    ap_json_str(out, g->name);
    if (g->n_groups)
        ap_put_int(out, "n_groups", g->n_groups);
    write_nodes(out, g->nodes, g->n_nodes, file);
    ap_buf_puts(out, ",\n\"reducers\":[");
    for (int i = 0; i < g->n_reducers; i++) {
        ap_buf_puts(out, i ? ",\n" : "\n");
        write_reducer(out, &g->reducers[i]);
    }
    ap_buf_putc(out, ']');
    write_comps(out, g);
    ap_buf_puts(out, ",\n\"results\":[");
    for (int i = 0; i < g->n_results; i++) {
        ap_buf_puts(out, i ? ",\n" : "\n");
        write_result(out, &g->results[i]);
    }
    ap_buf_putc(out, ']');
    if (g->n_dropped) {
        ap_buf_puts(out, ",\n\"dropped\":[");
        for (int i = 0; i < g->n_dropped; i++) {
            ap_buf_puts(out, i ? "," : "");
            ap_json_str(out, g->dropped[i]);
        }
        ap_buf_putc(out, ']');
    }
    ap_buf_putc(out, '}');
}

void ap_graph_to_json(const struct ap_graph *g, struct ap_buf *out)
{
    write_graph(g, out, NULL);
}

void ap_graph_write(const struct ap_graph *g, FILE *out)
{
    struct ap_buf buf = {0};

    write_graph(g, &buf, out);
    fwrite(buf.data, 1, buf.len, out);
    ap_buf_free(&buf);
}
