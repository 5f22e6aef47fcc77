/* ap-model: train steps of the papers' model families, at any size. */
#include "model.h"

#include <string.h>

#include "base/text.h"
#include "tool/totals.h"
#include "tool/train_opts.h"

#define MAX_LAYERS (1 << 16) /* so that the nodes can be counted, and held */

/* What was asked for. */
struct request {
    const char *optimizer; /* NULL: the family's */
    const char *config;    /* NULL: a name is given */
    double dropout;
    struct ap_train_opts train;
    bool forward;
    int64_t size[MODEL_N_SIZES]; /* 0: not given */
    bool flag[MODEL_N_SIZES];
};

enum { N_OPTS = MODEL_N_SIZES + AP_N_TRAIN_OPTS + 4 };

/* Sizes that --help shows; the others are for fewer families. */
static bool is_usual(int size)
{
    static const int usual[] = {MODEL_LAYERS, MODEL_HIDDEN, MODEL_HEADS, MODEL_SEQ,
                                MODEL_BATCH};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (usual[i] == size)
            return true;
    return false;
}

static void set_options(struct request *r, struct ap_opt opts[N_OPTS + 1])
{
    for (int s = 0; s < MODEL_N_SIZES; s++) {
        opts[s] = (struct ap_opt){.name = model_sizes[s].name,
                                  .help = model_sizes[s].help,
                                  .group = is_usual(s) ? NULL : "sizes"};
        if (s >= MODEL_FIRST_FLAG) {
            opts[s].out = &r->flag[s];
            continue;
        }
        opts[s].kind = AP_OPT_INT;
        opts[s].out = &r->size[s];
        opts[s].arg = "N";
        opts[s].lo = 1;
        opts[s].hi = s == MODEL_TOP      ? MODEL_MAX_TOP
                     : s == MODEL_LAYERS ? MAX_LAYERS
                                         : 1 << 30;
    }
    ap_train_opts_init(&r->train, opts + MODEL_N_SIZES);
    opts[N_OPTS - 4] =
        (struct ap_opt){.name = "dropout",
                        .kind = AP_OPT_NUM,
                        .out = &r->dropout,
                        .arg = "X",
                        .help = "share that transformer layers drop at random (0)",
                        .group = "training"};
    opts[N_OPTS - 3] =
        (struct ap_opt){.name = "config",
                        .kind = AP_OPT_STR,
                        .out = &r->config,
                        .arg = "FILE",
                        .help = "sizes from Hugging Face's config.json; no NAME"};
    opts[N_OPTS - 2] =
        (struct ap_opt){.name = "optimizer",
                        .kind = AP_OPT_STR,
                        .out = &r->optimizer,
                        .arg = "NAME",
                        .help = "sgd, momentum, adam, adamw or muon (by family)"};
    opts[N_OPTS - 1] = (struct ap_opt){.name = "forward",
                                       .out = &r->forward,
                                       .help = "forward pass only",
                                       .group = "training"};
    opts[N_OPTS] = (struct ap_opt){.name = NULL};
}

/* `help` in place of a name: all names. */
static void print_names(struct ap_tool *tool)
{
    struct ap_arena arena = {0};
    struct ap_buf out = {0};
    int n;
    const struct model_name *named = model_named_configs(&arena, &n);

    ap_buf_puts(&out, "families:\n");
    for (const struct model_family *f = model_families; f->name; f++)
        ap_buf_printf(&out, "  %-15s  %s\n", f->name, f->help);
    ap_buf_puts(&out, "configurations:\n");
    for (const struct model_config *c = model_configs; c->name; c++)
        ap_buf_printf(&out, "  %-15s  %s; %s\n", c->name, c->family, c->help);
    ap_buf_puts(&out, "models by their config.json:\n");
    for (int i = 0; i < n; i++)
        ap_buf_printf(&out, "  %-22s  %s\n", named[i].name, named[i].type);
    ap_arena_free(&arena);
    ap_tool_write_bytes(tool, &out);
    ap_buf_free(&out);
}

static void put_names(struct ap_buf *out)
{
    for (const struct model_family *f = model_families; f->name; f++)
        ap_buf_printf(out, " %s", f->name);
    for (const struct model_config *c = model_configs; c->name; c++)
        ap_buf_printf(out, " %s", c->name);
    struct ap_arena arena = {0};
    int n;
    const struct model_name *named = model_named_configs(&arena, &n);
    for (int i = 0; i < n; i++)
        ap_buf_printf(out, " %s", named[i].name);
    ap_arena_free(&arena);
    ap_buf_puts(out, " help");
}

_Noreturn static void refuse_name(const char *name)
{
    struct ap_nearest near = {.want = name};
    char meant[AP_MEANT];
    for (const struct model_family *f = model_families; f->name; f++)
        ap_nearest_try(&near, f->name);
    for (const struct model_config *c = model_configs; c->name; c++)
        ap_nearest_try(&near, c->name);
    struct ap_arena arena = {0};
    int n;
    const struct model_name *named = model_named_configs(&arena, &n);
    for (int i = 0; i < n; i++)
        ap_nearest_try(&near, named[i].name);
    ap_die_usage("no model '%s'; 'ap-model help' prints all names%s", name,
                 ap_nearest_meant(&near, "", meant));
}

/* The configuration that is asked for, NULL for a family alone, and its name. */
static const struct model_config *find_config(const struct ap_tool *tool,
                                              const struct request *r,
                                              struct model_config *file,
                                              struct ap_arena *arena, const char **name)
{
    struct ap_err err = {{0}};
    bool named = strcmp(tool->path, "-") != 0;

    if (named == (r->config != NULL))
        ap_die_usage(named ? "--config comes without a NAME"
                           : "operand NAME|help is missing, or --config FILE");
    if (named) {
        *name = tool->path;
        const struct model_config *found = model_find_config(tool->path);
        if (found || !model_named_config(arena, tool->path, file))
            return found;
        return file;
    }
    int rc = model_read_config(arena, r->config, tool->quiet, file, &err);
    if (rc)
        ap_die(rc, "%s", err.msg);
    *name = file->name;
    return file;
}

/* Family, configuration and options together; dies of options the family lacks. */
static const struct model_family *resolve(const char *name,
                                          const struct model_config *config,
                                          const struct request *r, struct model *m)
{
    const struct model_family *f = model_find_family(config ? config->family : name);

    if (!f)
        refuse_name(name);
    for (int s = 0; s < MODEL_N_SIZES; s++) {
        int64_t given = s >= MODEL_FIRST_FLAG ? r->flag[s] : r->size[s];
        if (given && !f->size[s])
            ap_die_usage("--%s: %s has no such size", model_sizes[s].name, f->name);
        m->size[s] = given                       ? given
                     : config && config->size[s] ? config->size[s]
                                                 : f->size[s];
    }
    m->family = f->name;
    m->style = *(config && config->style ? config->style
                 : f->style              ? f->style
                                         : &model_classic);
    if (m->size[MODEL_EXPERTS] > 0 && m->size[MODEL_TOP] > m->size[MODEL_EXPERTS])
        ap_die_usage("--top %lld is more than --experts %lld",
                     (long long)m->size[MODEL_TOP], (long long)m->size[MODEL_EXPERTS]);
    return f;
}

/* With --forward nothing is said of the train step. */
static void check_forward(const struct request *r, const struct ap_tool *tool)
{
    for (const struct ap_opt *opt = tool->opts + MODEL_N_SIZES; opt->name; opt++)
        if (ap_tool_given(tool, opt->name) && opt->out != &r->forward &&
            opt->out != &r->config)
            ap_die_usage("--forward has no use for --%s", opt->name);
}

static int build(struct model *m, const struct model_family *family, double dropout)
{
    if (!(dropout >= 0 && dropout < 1))
        return ap_err_set(m->err, "--dropout: expected a number from 0 up to 1");
    ap_build_init(&m->b, m->arena);
    m->dropout = dropout;
    int loss = family->build(m);
    if (loss >= 0 && dropout > 0 && m->n_drops == 0)
        return ap_err_set(m->err, "--dropout: there are no transformer layers");
    return loss;
}

/* The train step, or the forward graph alone if params is NULL; new statistics are
 * results as well. */
static int finish(struct model *m, const char *name, const struct ap_train_opts *train,
                  struct ap_grad_params *params, int loss, struct ap_graph *g)
{
    struct ap_result forward = {loss, AP_ROLE_LOSS, -1, NULL}, *step = &forward;
    int n = 1, *keep = AP_NEW_N(m->arena, 2 * m->n_stats + 1, int);

    for (int i = 0; i < m->n_stats; i++) {
        keep[2 * i] = m->stats[i].node;
        keep[2 * i + 1] = m->stats[i].alias;
    }
    if (params) {
        params->loss = loss;
        params->keep = keep;
        params->n_keep = 2 * m->n_stats;
        if (ap_grad_train_step(&m->b, params, &step, &n, m->err) ||
            ap_train_opts_check_freeze(train, m->err))
            return -1;
    }
    struct ap_result *results = AP_NEW_N(m->arena, n + m->n_stats, struct ap_result);
    memcpy(results, step, (size_t)n * sizeof *results);
    for (int i = 0; i < m->n_stats; i++)
        results[n + i] =
            (struct ap_result){keep[2 * i], AP_ROLE_STATE, keep[2 * i + 1], NULL};
    return ap_build_finish(&m->b, name, n + m->n_stats, results, g, m->err);
}

int main(int argc, char **argv)
{
    struct request r = {0};
    struct ap_opt opts[N_OPTS + 1];
    struct ap_tool tool = {.name = "ap-model",
                           .summary = "write the train step of a model, at any size",
                           .operand = "[NAME|help]",
                           .operand_names = put_names,
                           .opts = opts};
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct model m = {.arena = &arena, .err = &err, .aux = -1};
    struct ap_grad_params params;
    struct ap_graph graph;

    set_options(&r, opts);
    ap_tool_start(&tool, argc, argv);
    if (strcmp(tool.path, "help") == 0) {
        print_names(&tool);
        return AP_OK;
    }

    struct model_config file;
    const char *name;
    const struct model_config *config = find_config(&tool, &r, &file, &arena, &name);
    const struct model_family *family = resolve(name, config, &r, &m);
    if (r.forward)
        check_forward(&r, &tool);
    else
        ap_train_opts_fill(&r.train, &tool, r.optimizer ? r.optimizer : family->optimizer,
                           &params);
    int loss = build(&m, family, r.dropout);
    if (loss < 0)
        ap_die_usage("%s: %s", name, err.msg);
    if (finish(&m, name, &r.train, r.forward ? NULL : &params, loss, &graph))
        ap_die_usage("%s: %s", name, err.msg);

    struct ap_doc doc = {.file = name};
    struct ap_new_section section = {.name = "graph", .graph = &graph};
    struct ap_buf extra = {0}, stats = {0};
    struct ap_totals totals;
    ap_put_str(&extra, "model", name);
    ap_tool_write(&tool, &doc, &section, 1, extra.data);
    ap_totals_of(&graph, &totals);
    ap_totals_put(&graph, &totals, &stats);
    int rc = ap_tool_finish(&tool, stats.data);
    ap_buf_free(&extra);
    ap_buf_free(&stats);
    ap_index_free(&m.by_name);
    ap_arena_free(&arena);
    return rc;
}
