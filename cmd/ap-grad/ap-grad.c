/* ap-grad: a train step of a forward graph. */
#include <math.h>
#include <string.h>

#include "grad/grad.h"
#include "tool/tool.h"

static const struct ap_choice dtypes[] = {
    {"f32", "as the graph says"},
    {"bf16", "contractions in bf16"},
    {"f16", "contractions in f16, with a scaled loss"},
    {NULL, NULL},
};

struct job {
    int optimizer, dtype;                                             /* rows */
    double lr, beta1, beta2, eps, momentum, weight_decay, loss_scale; /* NaN: default */
    bool master_weights;
    const char *loss;
    struct ap_list freeze;
    bool freeze_used[AP_MAX_LIST];
};

static bool is_frozen(const char *name, void *ctx)
{
    struct job *job = ctx;
    bool frozen = false;

    for (int k = 0; k < job->freeze.n; k++)
        if (ap_glob(job->freeze.v[k], name))
            frozen = job->freeze_used[k] = true;
    return frozen;
}

/* What was computed from the graph as it is would be wrong after this. */
static void check_document(const struct ap_doc *doc)
{
    static const char *const late[] = {"families", "blocks", "sharding",
                                       "stages",   "cost",   "program"};
    for (size_t i = 0; i < sizeof late / sizeof *late; i++)
        if (ap_doc_find(doc, late[i]))
            ap_die(AP_USAGE,
                   "%s: section \"%s\" is about the graph as it is: run "
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

static void set(double *to, double given)
{
    if (!isnan(given))
        *to = given;
}

static void fill(struct job *job, const struct ap_tool *tool, struct ap_grad_params *p)
{
    const char *optimizer = ap_optimizers[job->optimizer].name;
    static const enum ap_dtype types[] = {AP_F32, AP_BF16, AP_F16};
    struct ap_err err = {{0}};

    if (job->master_weights && types[job->dtype] == AP_F32)
        ap_die_usage("--master-weights needs --dtype bf16 or f16");
    for (const struct ap_opt *opt = tool->opts; opt->name; opt++)
        if (ap_tool_given(tool, opt->name) && !ap_grad_uses(optimizer, opt->name))
            ap_die_usage("--%s is not for --optimizer %s", opt->name, optimizer);
    if (ap_grad_defaults(optimizer, p, &err))
        ap_die_usage("%s", err.msg);
    set(&p->lr, job->lr);
    set(&p->beta1, job->beta1);
    set(&p->beta2, job->beta2);
    set(&p->eps, job->eps);
    set(&p->momentum, job->momentum);
    set(&p->weight_decay, job->weight_decay);
    p->compute = types[job->dtype];
    p->master_weights = job->master_weights;
    p->loss_scale = p->compute == AP_F16 ? 65536 : 0;
    set(&p->loss_scale, job->loss_scale);
    p->frozen = is_frozen;
    p->ctx = job;
}

/* The train step of g. Results of g other than the loss stay, after the new ones. */
static void differentiate(struct ap_arena *arena, const struct ap_doc *doc,
                          struct ap_graph *g, struct ap_grad_params *p)
{
    struct ap_build b;
    struct ap_err err = {{0}};
    struct ap_result *made, *all;
    int n_made, n = 0, *others = AP_NEW_N(arena, 2 * g->n_results + 1, int);

    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].phase == AP_BACKWARD)
            g->nodes[i].phase = AP_FORWARD; /* a side result's */
    ap_build_from(&b, arena, g);
    for (int i = 0; i < g->n_results; i++) {
        others[2 * i] = g->results[i].node;
        others[2 * i + 1] = g->results[i].alias < 0 ? 0 : g->results[i].alias;
    }
    p->keep = others;
    p->n_keep = 2 * g->n_results;
    int loss = p->loss;
    if (ap_grad_train_step(&b, p, &made, &n_made, &err))
        ap_die(AP_USAGE, "%s: %s", doc->file, err.msg);
    all = AP_NEW_N(arena, n_made + g->n_results, struct ap_result);
    for (; n < n_made; n++)
        all[n] = made[n];
    for (int i = 0; i < g->n_results; i++) {
        struct ap_result r = g->results[i];
        if (r.node == loss)
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

#define NUM(n, field, h)                                                        \
    {                                                                           \
        .name = n, .kind = AP_OPT_NUM, .out = &job.field, .arg = "X", .help = h \
    }

int main(int argc, char **argv)
{
    struct job job = {.lr = NAN,
                      .beta1 = NAN,
                      .beta2 = NAN,
                      .eps = NAN,
                      .momentum = NAN,
                      .weight_decay = NAN,
                      .loss_scale = NAN};
    const struct ap_opt opts[] = {
        {.name = "optimizer",
         .kind = AP_OPT_CHOICE,
         .out = &job.optimizer,
         .arg = "NAME",
         .help = "how weights are updated (sgd)",
         .choices = (const struct ap_choice *)ap_optimizers,
         .choice_stride = sizeof ap_optimizers[0]},
        NUM("lr", lr, "learning rate (1e-3; sgd and momentum: 1e-2)"),
        NUM("beta1", beta1, "Adam: decay of the first moment (0.9)"),
        NUM("beta2", beta2, "Adam: decay of the second moment (0.999)"),
        NUM("eps", eps, "Adam: added to the square root (1e-8)"),
        NUM("momentum", momentum, "decay of the momentum (0.9)"),
        NUM("weight-decay", weight_decay, "weight decay (0; adamw: 0.01)"),
        {.name = "loss",
         .kind = AP_OPT_STR,
         .out = &job.loss,
         .arg = "NODE",
         .help = "name of the node to minimize"},
        {.name = "freeze",
         .kind = AP_OPT_LIST,
         .out = &job.freeze,
         .arg = "GLOB",
         .help = "weights that are not trained; may be given several times"},
        {.name = "dtype",
         .kind = AP_OPT_CHOICE,
         .out = &job.dtype,
         .arg = "TYPE",
         .help = "type of contractions (f32)",
         .choices = dtypes,
         .choice_stride = sizeof dtypes[0]},
        {.name = "master-weights",
         .out = &job.master_weights,
         .help = "with --dtype: keep weights and states in f32"},
        NUM("loss-scale", loss_scale, "initial loss scale, 0 for none (f16: 65536)"),
        {.name = NULL},
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

    ap_tool_start(&tool, argc, argv);
    fill(&job, &tool, &params);
    ap_tool_read(&tool, &arena, &doc);
    check_document(&doc);
    if (ap_doc_graph(&arena, &doc, &graph, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    check_forward(&doc, &graph);
    params.loss = find_loss(&doc, &graph, job.loss);
    int before = graph.n_nodes;
    differentiate(&arena, &doc, &graph, &params);
    for (int k = 0; k < job.freeze.n; k++)
        if (!job.freeze_used[k])
            ap_die(AP_BAD_INPUT, "--freeze '%s' matches no weight", job.freeze.v[k]);
    struct ap_new_section section = {.name = "graph", .graph = &graph};
    ap_tool_write(&tool, &doc, &section, 1, "");
    return ap_tool_finish(&tool, stats(&arena, before, &graph));
}
