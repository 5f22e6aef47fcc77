/*
 * ap-grad: a train step of a forward graph, or of a graph that has its gradients: results
 * that the section `step` calls the gradient of an argument
 * (python/autopar/torch/hlo.py).
 */
#include <jansson.h>
#include <string.h>

#include "tool/train_opts.h"

/*
 * Refuses a document with sections that were computed from the graph before the change.
 */
static void check_document(const struct ap_doc *doc)
{
    static const char *const late[] = {"families", "blocks", "sharding",
                                       "stages",   "cost",   "program"};
    for (size_t i = 0; i < sizeof late / sizeof *late; i++)
        if (ap_doc_find(doc, late[i]))
            ap_die(AP_USAGE,
                   "%s: section \"%s\" refers to the graph before the change: run "
                   "ap-grad before the tool that made it",
                   doc->file, late[i]);
}

static void check_forward(const struct ap_doc *doc, const struct ap_graph *g)
{
    for (int i = 0; i < g->n_results; i++)
        if (g->results[i].alias >= 0 &&
            g->nodes[g->results[i].alias].role == AP_ROLE_WEIGHT)
            ap_die(AP_USAGE,
                   "%s: /graph/results/%d: '%s' is updated already: the graph is a train "
                   "step",
                   doc->file, i, g->nodes[g->results[i].alias].name);
}

/* The node of --loss, or the result that is one. */
static int find_loss(const struct ap_doc *doc, const struct ap_graph *g, const char *name)
{
    int found = -1;

    for (int i = 0; name && i < g->n_nodes; i++)
        if (strcmp(g->nodes[i].name, name) == 0)
            return i;
    if (name)
        ap_die(AP_BAD_INPUT, "%s: no node is named '%s'", doc->file, name);
    for (int i = 0; i < g->n_results; i++)
        if (g->results[i].role == AP_ROLE_LOSS)
            return g->results[i].node;
    for (int i = 0; i < g->n_results; i++) {
        const struct ap_shape *s = &g->nodes[g->results[i].node].shape;
        if (s->rank || !ap_dtype_is_float(s->dtype))
            continue;
        if (found >= 0)
            ap_die(AP_USAGE, "%s: more than one result may be the loss: say --loss NODE",
                   doc->file);
        found = g->results[i].node;
    }
    if (found < 0)
        ap_die(AP_USAGE, "%s: no result is a float scalar: say --loss NODE", doc->file);
    return found;
}

/* The parameter that is the argument of this number; -1: none. */
static int find_argument(const struct ap_graph *g, int number)
{
    for (int i = 0; i < g->n_params; i++) {
        const struct ap_part *part = g->nodes[g->params[i]].attrs->argument;
        if (part && part->index == number && !part->n)
            return g->params[i];
    }
    return -1;
}

/* weight[r]: the weight of which result r is the gradient, -1: of none. Their number. */
static int find_gradients(const struct ap_doc *doc, const struct ap_graph *g, int *weight)
{
    const struct ap_section *section = ap_doc_find(doc, "step");
    int n = 0;

    for (int i = 0; i < g->n_results; i++)
        weight[i] = -1;
    if (!section)
        return 0;
    json_t *step = json_loadb(section->text, section->len, 0, NULL);
    const json_t *rows = json_object_get(step, "results");
    for (int i = 0; i < g->n_results; i++) {
        const struct ap_part *part = g->results[i].part;
        const json_t *row = part ? json_array_get(rows, (size_t)part->index) : NULL;
        const json_t *of = json_object_get(row, "gradient");
        if (!json_is_integer(of))
            continue;
        int w = weight[i] = find_argument(g, (int)json_integer_value(of));
        if (w < 0 || g->nodes[w].role != AP_ROLE_WEIGHT ||
            !ap_shape_equal(&g->nodes[w].shape, &g->nodes[g->results[i].node].shape))
            ap_die(AP_BAD_INPUT,
                   "%s: /step/results/%d/gradient: expected the number of a weight of "
                   "the same shape",
                   doc->file, part->index);
        n++;
    }
    json_decref(step);
    return n;
}

/* The train step of g. Results of g other than loss and gradients stay, after the new. */
static void differentiate(struct ap_arena *arena, const struct ap_doc *doc,
                          struct ap_graph *g, struct ap_grad_params *p)
{
    struct ap_build b;
    struct ap_err err = {{0}};
    struct ap_result *made, *all;
    int n_made, n = 0, *of = AP_NEW_N(arena, g->n_results + 1, int);
    int *others = AP_NEW_N(arena, 4 * g->n_results + 1, int);

    p->n_given = find_gradients(doc, g, of);
    for (int i = 0; i < g->n_nodes && !p->n_given; i++)
        if (g->nodes[i].phase == AP_BACKWARD)
            g->nodes[i].phase = AP_FORWARD; /* a side result's */
    ap_build_from(&b, arena, g);
    for (int i = 0; i < g->n_results; i++) {
        others[2 * i] = g->results[i].node;
        others[2 * i + 1] = g->results[i].alias < 0 ? 0 : g->results[i].alias;
    }
    p->keep = others;
    p->n_keep = 2 * g->n_results;
    int *weights = p->keep + p->n_keep, *grads = weights + p->n_given;
    for (int i = 0, k = 0; i < g->n_results; i++)
        if (of[i] >= 0) {
            weights[k] = of[i];
            grads[k++] = g->results[i].node;
        }
    p->given_weight = weights;
    p->given_grad = grads;
    p->n_keep += 2 * p->n_given;
    int loss = p->loss;
    if (ap_grad_train_step(&b, p, &made, &n_made, &err))
        ap_die(AP_USAGE, "%s: %s", doc->file, err.msg);
    all = AP_NEW_N(arena, n_made + g->n_results, struct ap_result);
    for (; n < n_made; n++)
        all[n] = made[n];
    for (int i = 0; i < g->n_results; i++) {
        struct ap_result r = g->results[i];
        if (r.node == loss || of[i] >= 0)
            continue;
        r.node = others[2 * i];
        r.alias = r.alias < 0 ? -1 : others[2 * i + 1];
        r.role = r.role == AP_ROLE_LOSS ? AP_ROLE_AUX : r.role;
        all[n++] = r;
    }
    if (ap_build_finish(&b, g->name, n, all, g, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
}

static char *stats(struct ap_arena *arena, int before, const struct ap_graph *g)
{
    int count[AP_N_PHASES] = {0}, weights = 0, states = 0;

    for (int i = 0; i < g->n_nodes; i++)
        count[g->nodes[i].phase]++;
    for (int i = 0; i < g->n_results; i++) {
        weights += g->results[i].role == AP_ROLE_WEIGHT;
        states += g->results[i].role == AP_ROLE_STATE;
    }
    return ap_arena_printf(arena,
                           ",\"before\":%d,\"nodes\":%d,\"forward\":%d,\"backward\":%d,"
                           "\"update\":%d,\"weights\":%d,\"states\":%d",
                           before, g->n_nodes, count[AP_FORWARD], count[AP_BACKWARD],
                           count[AP_UPDATE], weights, states);
}

int main(int argc, char **argv)
{
    int optimizer = 0; /* row */
    const char *loss = NULL;
    struct ap_train_opts train;
    struct ap_opt opts[AP_N_TRAIN_OPTS + 3] = {
        {.name = "optimizer",
         .kind = AP_OPT_CHOICE,
         .out = &optimizer,
         .arg = "NAME",
         .help = "how weights are updated (sgd)",
         .choices = (const struct ap_choice *)ap_optimizers,
         .choice_stride = sizeof ap_optimizers[0]},
        {.name = "loss",
         .kind = AP_OPT_STR,
         .out = &loss,
         .arg = "NODE",
         .help = "name of the node to minimize"},
    };
    struct ap_tool tool = {.name = "ap-grad",
                           .summary = "turn a forward graph into a train step",
                           .operand = "[FILE]",
                           .opts = opts};
    struct ap_arena arena = {0};
    struct ap_doc doc;
    struct ap_graph graph;
    struct ap_grad_params params;
    struct ap_err err = {{0}};

    ap_train_opts_init(&train, opts + 2);
    ap_tool_start(&tool, argc, argv);
    ap_train_opts_fill(&train, &tool, ap_optimizers[optimizer].name, &params);
    ap_tool_read(&tool, &arena, &doc);
    check_document(&doc);
    if (ap_doc_graph(&arena, &doc, &graph, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    check_forward(&doc, &graph);
    params.loss = find_loss(&doc, &graph, loss);
    int before = graph.n_nodes;
    differentiate(&arena, &doc, &graph, &params);
    if (ap_train_opts_check_freeze(&train, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    struct ap_new_section sections[2] = {
        {.name = "graph", .graph = &graph},
        {.name = "step"} /* empty: it was the forward pass's */
    };
    ap_tool_write(&tool, &doc, sections, 2, "");
    return ap_tool_finish(&tool, stats(&arena, before, &graph));
}
