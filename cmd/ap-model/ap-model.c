/* ap-model: train steps of the papers' model families, at any size. */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "grad/grad.h"
#include "tool/tool.h"
#include "tool/totals.h"

#define LOSS_SCALE 65536.0   /* of f16, at the start */
#define MAX_LAYERS (1 << 16) /* so that the nodes can be counted, and held */

/* What was asked for. */
struct request {
    const char *optimizer; /* NULL: the family's */
    double lr, beta1, beta2, eps, momentum, weight_decay, loss_scale; /* NaN: default */
    int dtype;
    bool forward, master_weights;
    struct ap_list freeze; /* patterns for names of weights */
    bool freeze_used[AP_MAX_LIST];
    int64_t size[MODEL_N_SIZES]; /* 0: not given */
    bool flag[MODEL_N_SIZES];
};

static const struct ap_choice dtypes[] = {
    {"f32", "single precision"},
    {"bf16", "contractions and weights in bf16"},
    {"f16", "in f16, with a scaled loss"},
    {NULL, NULL},
};

static const char *const size_help[MODEL_N_SIZES] = {
    [MODEL_LAYERS] = "layers; encoder-decoder: of each; U-Net: levels",
    [MODEL_HIDDEN] = "hidden size; ResNet, U-Net: features of the first stage",
    [MODEL_HEADS] = "attention heads",
    [MODEL_HEAD_DIM] = "width of a head (hidden / heads)",
    [MODEL_FFN] = "hidden size of feed-forward layers (4 * hidden)",
    [MODEL_EXPERTS] = "experts of an MoE layer",
    [MODEL_TOP] = "experts per token, at most 8",
    [MODEL_MOE_EVERY] = "every N-th layer has experts",
    [MODEL_CAPACITY] = "expert capacity, tokens per sequence (top * seq / experts)",
    [MODEL_SEQ] = "sequence length; wav2vec: samples",
    [MODEL_TARGET_SEQ] = "sequence length of the decoder (seq)",
    [MODEL_BATCH] = "batch size",
    [MODEL_CLASSES] = "classes",
    [MODEL_VOCAB] = "vocabulary size",
    [MODEL_EMBED] = "embedding size",
    [MODEL_TEXT_HIDDEN] = "hidden size of the text encoder",
    [MODEL_IMAGE] = "height and width of the image",
    [MODEL_PATCH] = "height and width of a patch",
    [MODEL_WIDTH_FACTOR] = "width multiplier",
    [MODEL_FEATURES] = "input features",
    [MODEL_UNTIED] = "do not tie the head's weight to the embedding",
    [MODEL_HEAD_BIAS] = "the head has a bias",
    [MODEL_NO_KEY_BIAS] = "keys of attention have no bias",
    [MODEL_NO_EXPERT_BIAS] = "experts have no biases",
    [MODEL_NO_CAPACITY] = "every expert computes every token, masked",
    [MODEL_LAYER_NORM] = "layer norms and biases instead of RMS norms",
};

enum { N_OWN = 12 }; /* options that are no sizes */

#define NUM(n, field, h)                                                       \
    {                                                                          \
        .name = n, .kind = AP_OPT_NUM, .out = &r->field, .arg = "X", .help = h \
    }

static void set_options(struct request *r, struct ap_opt opts[MODEL_N_SIZES + N_OWN + 1])
{
    const struct ap_opt own[N_OWN] = {
        {.name = "dtype",
         .kind = AP_OPT_CHOICE,
         .out = &r->dtype,
         .arg = "TYPE",
         .help = "type of weights and contractions",
         .choices = dtypes,
         .choice_stride = sizeof dtypes[0]},
        {.name = "master-weights",
         .out = &r->master_weights,
         .help = "keep weights in f32 whatever --dtype is"},
        {.name = "optimizer",
         .kind = AP_OPT_STR,
         .out = &r->optimizer,
         .arg = "NAME",
         .help = "sgd, momentum, adam or adamw (by family)"},
        NUM("lr", lr, "learning rate (1e-3; sgd and momentum: 1e-2)"),
        NUM("beta1", beta1, "Adam: decay of the first moment (0.9)"),
        NUM("beta2", beta2, "Adam: decay of the second moment (0.999)"),
        NUM("eps", eps, "Adam: added to the square root (1e-8)"),
        NUM("momentum", momentum, "decay of the momentum (0.9)"),
        NUM("weight-decay", weight_decay, "weight decay (0; adamw: 0.01)"),
        NUM("loss-scale", loss_scale, "initial loss scale (none; f16: 65536)"),
        {.name = "freeze",
         .kind = AP_OPT_LIST,
         .out = &r->freeze,
         .arg = "GLOB",
         .help = "weights that are not trained; may be given several times"},
        {.name = "forward", .out = &r->forward, .help = "forward pass only"},
    };
    for (int s = 0; s < MODEL_N_SIZES; s++) {
        opts[s] = (struct ap_opt){.name = model_size_names[s], .help = size_help[s]};
        if (s >= MODEL_FIRST_FLAG) {
            opts[s].out = &r->flag[s];
            continue;
        }
        opts[s].kind = AP_OPT_INT;
        opts[s].out = &r->size[s];
        opts[s].arg = "N";
        opts[s].lo = 1;
        opts[s].hi = s == MODEL_TOP ? 8 : s == MODEL_LAYERS ? MAX_LAYERS : 1 << 30;
    }
    memcpy(opts + MODEL_N_SIZES, own, sizeof own);
    opts[MODEL_N_SIZES + N_OWN] = (struct ap_opt){.name = NULL};
}

/* `help` in place of a name: all names. */
static void print_names(struct ap_tool *tool)
{
    struct ap_buf out = {0};

    ap_buf_puts(&out, "families:\n");
    for (const struct model_family *f = model_families; f->name; f++)
        ap_buf_printf(&out, "  %-15s  %s\n", f->name, f->help);
    ap_buf_puts(&out, "configurations:\n");
    for (const struct model_config *c = model_configs; c->name; c++)
        ap_buf_printf(&out, "  %-15s  %s; %s\n", c->name, c->family, c->help);
    ap_tool_write_bytes(tool, &out);
    ap_buf_free(&out);
}

static void check_request(const struct request *r, const struct ap_tool *tool,
                          const struct model_family *f)
{
    const char *optimizer = r->optimizer ? r->optimizer : f->optimizer;
    for (const struct ap_opt *opt = tool->opts + MODEL_N_SIZES; opt->name; opt++) {
        if (!ap_tool_given(tool, opt->name))
            continue;
        if (r->forward && opt->out != &r->forward)
            ap_die_usage("--forward has no use for --%s", opt->name);
        if (!ap_grad_uses(optimizer, opt->name))
            ap_die_usage("--%s is not for optimizer %s", opt->name, optimizer);
    }
    if (r->master_weights && !r->dtype)
        ap_die_usage("--master-weights has no use without --dtype");
}

/* Family, configuration and options together; dies of options the family lacks. */
static const struct model_family *resolve(const char *name, const struct request *r,
                                          struct model *m)
{
    const struct model_config *config = model_find_config(name);
    const struct model_family *f = model_find_family(config ? config->family : name);

    if (!f)
        ap_die_usage("no model '%s'; 'ap-model help' prints all names", name);
    for (int s = 0; s < MODEL_N_SIZES; s++) {
        int64_t given = s >= MODEL_FIRST_FLAG ? r->flag[s] : r->size[s];
        if (given && !f->size[s])
            ap_die_usage("--%s: %s has no such size", model_size_names[s], f->name);
        m->size[s] = given                       ? given
                     : config && config->size[s] ? config->size[s]
                                                 : f->size[s];
    }
    if (m->size[MODEL_TOP] > m->size[MODEL_EXPERTS])
        ap_die_usage("--top %lld is more than --experts %lld",
                     (long long)m->size[MODEL_TOP], (long long)m->size[MODEL_EXPERTS]);
    return f;
}

static void set(double *to, double given)
{
    if (!isnan(given))
        *to = given;
}

/* ctx: the request. A weight is asked for by name and by path. */
static bool is_frozen(const char *name, void *ctx)
{
    struct request *r = ctx;
    bool frozen = false;

    for (int k = 0; k < r->freeze.n; k++)
        if (ap_glob(r->freeze.v[k], name))
            frozen = r->freeze_used[k] = true;
    return frozen;
}

static int fill(struct request *r, const struct model_family *f, struct ap_grad_params *p,
                struct ap_err *err)
{
    static const enum ap_dtype types[] = {AP_F32, AP_BF16, AP_F16};

    if (ap_grad_defaults(r->optimizer ? r->optimizer : f->optimizer, p, err))
        return -1;
    set(&p->lr, r->lr);
    set(&p->beta1, r->beta1);
    set(&p->beta2, r->beta2);
    set(&p->eps, r->eps);
    set(&p->momentum, r->momentum);
    set(&p->weight_decay, r->weight_decay);
    p->compute = types[r->dtype];
    p->master_weights = r->master_weights;
    p->frozen = r->freeze.n ? is_frozen : NULL;
    p->ctx = r;
    p->loss_scale = p->compute == AP_F16 ? LOSS_SCALE : 0;
    set(&p->loss_scale, r->loss_scale);
    return 0;
}

/* Forward, backward and update, or forward alone; new statistics are results as well. */
static int finish(struct model *m, const char *name, struct request *r,
                  const struct model_family *f, int loss, struct ap_graph *g)
{
    struct ap_result forward = {loss, AP_ROLE_LOSS, -1}, *step = &forward;
    int n = 1, *keep = AP_NEW_N(m->arena, 2 * m->n_stats + 1, int);
    struct ap_grad_params p;

    for (int i = 0; i < m->n_stats; i++) {
        keep[2 * i] = m->stats[i].node;
        keep[2 * i + 1] = m->stats[i].alias;
    }
    if (!r->forward) {
        if (fill(r, f, &p, m->err))
            return -1;
        p.loss = loss;
        p.keep = keep;
        p.n_keep = 2 * m->n_stats;
        if (ap_grad_train_step(&m->b, &p, &step, &n, m->err))
            return -1;
        for (int k = 0; k < r->freeze.n; k++)
            if (!r->freeze_used[k])
                return ap_err_set(m->err, "--freeze '%s' matches no weight",
                                  r->freeze.v[k]);
    }
    struct ap_result *results = AP_NEW_N(m->arena, n + m->n_stats, struct ap_result);
    memcpy(results, step, (size_t)n * sizeof *results);
    for (int i = 0; i < m->n_stats; i++)
        results[n + i] = (struct ap_result){keep[2 * i], AP_ROLE_STATE, keep[2 * i + 1]};
    return ap_build_finish(&m->b, name, n + m->n_stats, results, g, m->err);
}

int main(int argc, char **argv)
{
    struct request r = {.lr = NAN,
                        .beta1 = NAN,
                        .beta2 = NAN,
                        .eps = NAN,
                        .momentum = NAN,
                        .weight_decay = NAN,
                        .loss_scale = NAN};
    struct ap_opt opts[MODEL_N_SIZES + N_OWN + 1];
    struct ap_tool tool = {.name = "ap-model",
                           .summary = "write the train step of a model, at any size",
                           .operand = "NAME|help",
                           .opts = opts};
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct model m = {.arena = &arena, .err = &err, .aux = -1};
    struct ap_graph graph;
    set_options(&r, opts);
    ap_tool_start(&tool, argc, argv);
    if (strcmp(tool.path, "help") == 0) {
        print_names(&tool);
        return AP_OK;
    }

    const struct model_family *family = resolve(tool.path, &r, &m);
    check_request(&r, &tool, family);
    ap_build_init(&m.b, &arena);
    int loss = family->build(&m);
    if (loss < 0)
        ap_die_usage("%s: %s", tool.path, err.msg);
    if (finish(&m, tool.path, &r, family, loss, &graph))
        ap_die_usage("%s: %s", tool.path, err.msg);

    struct ap_doc doc = {.file = tool.path};
    struct ap_new_section section = {.name = "graph", .graph = &graph};
    struct ap_buf extra = {0}, stats = {0};
    struct ap_totals totals;
    ap_put_str(&extra, "model", tool.path);
    ap_tool_write(&tool, &doc, &section, 1, extra.data);
    ap_totals_of(&graph, &totals);
    ap_totals_put(&graph, &totals, &stats);
    int rc = ap_tool_finish(&tool, stats.data);
    ap_buf_free(&extra);
    ap_buf_free(&stats);
    ap_arena_free(&arena);
    return rc;
}
