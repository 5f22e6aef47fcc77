/*
 * Problem: a plan layer by layer, for the page. Idea: nodes belong to layers by their
 * names (plan/layers.h); a layer has its weights, the results of its forward contractions
 * and the collectives that its values pass through; nodes without a layer come first.
 * Cost: layers times nodes would be too much: one pass counts, one fills.
 */
#include "page.h"

struct lists {
    struct ap_buf weights, activations, collectives;
};

static void put_tensor(const struct ap_plan *plan, int node, const char *name,
                       struct ap_buf *out)
{
    const struct ap_node *n = &plan->graph->nodes[node];
    struct ap_layout l = ap_plan_node_layout(plan, node);
    struct ap_buf text = {0};

    ap_buf_puts(out, out->len ? ",[" : "[");
    ap_json_str(out, name);
    ap_buf_putc(out, ',');
    ap_shape_print(&n->shape, &text);
    ap_json_str(out, text.data);
    ap_buf_putc(out, ',');
    text.len = 0;
    ap_layout_print(&plan->mesh, &l, &text);
    ap_json_str(out, text.data);
    ap_buf_printf(out, ",%lld]",
                  (long long)ap_layout_local_bytes(&plan->mesh, &n->shape, &l));
    ap_buf_free(&text);
}

static void put_conversion(const struct ap_plan *plan, const struct ap_conversion *c,
                           struct ap_buf *out)
{
    for (int k = 0; k < c->path.n_steps; k++) {
        const struct ap_step *step = &c->path.steps[k];
        struct ap_buf axes = {0};
        if (step->sec <= 0)
            continue;
        for (int a = 0; a < plan->mesh.n_axes; a++)
            if (step->coll.axes >> a & 1)
                ap_buf_printf(&axes, "%s%s", axes.len ? "," : "", plan->mesh.name[a]);
        ap_buf_puts(out, out->len ? ",[" : "[");
        ap_json_str(out, price_node_name(&plan->graph->nodes[c->node]));
        ap_buf_printf(out, ",\"%s\",", ap_ops[step->op].name);
        ap_json_str(out, axes.len ? axes.data : "");
        ap_buf_printf(out, ",\"%s\",%lld,", ap_phase_names[c->phase],
                      (long long)step->bytes);
        ap_json_num(out, step->sec);
        ap_buf_putc(out, ']');
        ap_buf_free(&axes);
    }
}

static void fill(const struct page_part *part, const struct ap_layers *layers,
                 struct lists *of)
{
    const struct ap_plan *plan = part->plan;
    const struct ap_graph *g = plan->graph;

    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        struct lists *to = &of[layers->of_node[i] + 1];
        if (node->role == AP_ROLE_WEIGHT && node->op == AP_OP_PARAMETER)
            put_tensor(plan, i, node->name, &to->weights);
        else if (node->phase == AP_FORWARD && ap_ops[node->op].class == AP_CLASS_HEAVY)
            put_tensor(plan, i, price_node_name(node), &to->activations);
    }
    for (int i = 0; i < part->conv->n; i++) {
        const struct ap_conversion *c = &part->conv->conv[i];
        put_conversion(plan, c, &of[layers->of_node[c->node] + 1].collectives);
    }
}

static void put_list(const char *key, struct ap_buf *list, struct ap_buf *out)
{
    ap_put_key(out, key);
    ap_buf_putc(out, '[');
    ap_buf_put(out, list->data, list->len);
    ap_buf_putc(out, ']');
    ap_buf_free(list);
}

void page_put_layers(struct ap_arena *arena, const struct page_part *part,
                     struct ap_buf *out)
{
    struct ap_layers layers;
    const char *sep = "";

    ap_layers_find(arena, part->plan->graph, part->plan->nests, &layers);
    struct lists *of = AP_NEW_N(arena, layers.n + 1, struct lists);
    fill(part, &layers, of);
    ap_put_key(out, "layers");
    ap_buf_putc(out, '[');
    for (int i = 0; i <= layers.n; i++) {
        struct lists *l = &of[i];
        if (l->weights.len + l->activations.len + l->collectives.len == 0)
            continue;
        ap_buf_printf(out, "%s{\"name\":", sep);
        ap_json_str(out, i == 0 ? "outside the layers"
                                : ap_arena_printf(arena, "%s%d", layers.layer[i - 1].stem,
                                                  layers.layer[i - 1].number));
        put_list("weights", &l->weights, out);
        put_list("activations", &l->activations, out);
        put_list("collectives", &l->collectives, out);
        ap_buf_putc(out, '}');
        sep = ",";
    }
    ap_buf_putc(out, ']');
}
