/*
 * Problem: draw a graph with only one instance of each repeated part. Idea: a vertex is a
 * fusion group; groups at the same place of a family's instances are the one of its first
 * instance, and so are their edges; outermost families are boxes. Groups of constants
 * alone are left out. Cost: linear in nodes and edges, times a logarithm. Source: the DOT
 * language of Graphviz.
 */
#include <stdlib.h>

#include "doc/doc.h"
#include "graph/group.h"
#include "prune.h"

struct dot {
    const struct ap_graph *g;
    const struct ap_families *f;
    int *rep;       /* [node]: at its place in first instances */
    int *group_rep; /* [group] */
    int *first;     /* [group]: its first node */
    int *heavy;     /* [group]: its first contraction, -1 */
    int *count;     /* [group]: groups that it stands for */
    int *family;    /* [group]: outermost, -1 */
    bool *hidden;   /* [group] */
};

static void find_reps(struct dot *d)
{
    for (int i = 0; i < d->g->n_nodes; i++)
        d->rep[i] = i;
    for (int k = 0; k < d->f->n; k++) {
        const struct ap_family *f = &d->f->family[k];
        for (int i = 1; i < f->n_instances; i++)
            for (int j = 0; j < f->n_nodes; j++)
                d->rep[f->nodes[i * f->n_nodes + j]] = f->nodes[j];
    }
    for (int i = 0; i < d->g->n_nodes; i++)
        while (d->rep[d->rep[i]] != d->rep[i])
            d->rep[i] = d->rep[d->rep[i]];
}

static void find_groups(struct dot *d)
{
    const struct ap_graph *g = d->g;

    for (int i = 0; i < g->n_groups; i++) {
        d->first[i] = d->heavy[i] = d->family[i] = -1;
        d->hidden[i] = true;
    }
    for (int i = 0; i < g->n_nodes; i++) {
        int group = g->nodes[i].group;
        if (d->first[group] < 0)
            d->first[group] = i;
        if (d->heavy[group] < 0 && ap_ops[g->nodes[i].op].class == AP_CLASS_HEAVY)
            d->heavy[group] = i;
        d->hidden[group] &= g->nodes[i].op == AP_OP_CONSTANT;
    }
    for (int k = d->f->n - 1; k >= 0; k--)
        for (int j = 0; d->f->family[k].parent < 0 && j < d->f->family[k].n_nodes; j++)
            d->family[g->nodes[d->f->family[k].nodes[j]].group] = k;
    for (int i = 0; i < g->n_groups; i++) {
        d->group_rep[i] = g->nodes[d->rep[d->first[i]]].group;
        d->count[d->group_rep[i]]++;
    }
}

static void put_vertex(const struct dot *d, int group, struct ap_buf *out)
{
    static const char *const colors[AP_N_PHASES] = {"#dbeaf7", "#fbe3cd", "#dff0df"};
    bool heavy = d->heavy[group] >= 0;
    const struct ap_node *node = &d->g->nodes[heavy ? d->heavy[group] : d->first[group]];
    struct ap_buf text = {0};

    bool param = node->op == AP_OP_PARAMETER;
    bool scope = !param && *node->scope;
    ap_buf_printf(&text, "%s\n%s%s", param ? node->name : ap_ops[node->op].name,
                  scope ? node->scope : "", scope ? " " : "");
    ap_shape_print(&node->shape, &text);
    if (d->count[group] > 1)
        ap_buf_printf(&text, "\n%d times", d->count[group]);
    ap_buf_printf(out, "  g%d [label=", group);
    ap_json_str(out, text.data);
    ap_buf_printf(out, ",shape=%s,fillcolor=\"%s\"%s];\n", param ? "ellipse" : "box",
                  colors[node->phase], heavy ? ",penwidth=2.5" : "");
    ap_buf_free(&text);
}

/* Vertices of a family, or of none. */
static void put_vertices(const struct dot *d, int family, struct ap_buf *out)
{
    for (int i = 0; i < d->g->n_groups; i++)
        if (d->group_rep[i] == i && d->family[i] == family && !d->hidden[i])
            put_vertex(d, i, out);
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void put_edges(struct ap_arena *arena, const struct dot *d, struct ap_buf *out)
{
    const struct ap_graph *g = d->g;
    int64_t *edge, n = 0, all = 0;

    for (int i = 0; i < g->n_nodes; i++)
        all += g->nodes[i].n_in;
    edge = AP_NEW_N(arena, all + 1, int64_t);
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            int from = d->group_rep[g->nodes[g->nodes[i].in[k]].group];
            int to = d->group_rep[g->nodes[i].group];
            if (from != to && !d->hidden[from])
                edge[n++] = (int64_t)from << 32 | to;
        }
    qsort(edge, (size_t)n, sizeof *edge, compare);
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || edge[i] != edge[i - 1])
            ap_buf_printf(out, "  g%d -> g%d;\n", (int)(edge[i] >> 32),
                          (int)(edge[i] & 0xffffffff));
}

void prune_dot(struct ap_arena *arena, struct ap_graph *g, const struct ap_families *f,
               struct ap_buf *out)
{
    ap_group(arena, g); /* whatever the document says of groups */
    struct dot d = {.g = g,
                    .f = f,
                    .rep = AP_NEW_N(arena, g->n_nodes, int),
                    .group_rep = AP_NEW_N(arena, g->n_groups, int),
                    .first = AP_NEW_N(arena, g->n_groups, int),
                    .heavy = AP_NEW_N(arena, g->n_groups, int),
                    .count = AP_NEW_N(arena, g->n_groups, int),
                    .family = AP_NEW_N(arena, g->n_groups, int),
                    .hidden = AP_NEW_N(arena, g->n_groups, bool)};

    find_reps(&d);
    find_groups(&d);
    ap_buf_puts(out, "digraph ");
    ap_json_str(out, g->name);
    ap_buf_puts(out, " {\n  node [style=filled,fontname=\"sans-serif\",fontsize=10];\n");
    put_vertices(&d, -1, out);
    for (int k = 0; k < f->n; k++) {
        if (f->family[k].parent >= 0)
            continue;
        struct ap_buf label = {0};
        ap_buf_printf(&label, "%s, %d times", f->family[k].name,
                      f->family[k].n_instances);
        ap_buf_printf(out, "  subgraph cluster_%d {\n  label=", k);
        ap_json_str(out, label.data);
        ap_buf_puts(out, ";\n");
        put_vertices(&d, k, out);
        ap_buf_puts(out, "  }\n");
        ap_buf_free(&label);
    }
    put_edges(arena, &d, out);
    ap_buf_puts(out, "}\n");
}
