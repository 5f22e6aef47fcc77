#include "tool/train_opts.h"

#include <math.h>
#include <string.h>

#define LOSS_SCALE 65536.0 /* first scale of the loss in f16, as in PyTorch's scaler */

static const struct {
    struct ap_choice choice;
    enum ap_dtype dtype;
} dtypes[] = {
    {{"f32", "single precision"}, AP_F32},
    {{"bf16", "contractions and weights in bf16"}, AP_BF16},
    {{"f16", "contractions and weights in f16, with a scaled loss"}, AP_F16},
    {{NULL, NULL}, AP_F32},
};

/*
 * What trainers call a precision. Megatron-LM's --bf16, DeepSpeed's bf16 and torchtitan's
 * defaults (parameters in f32, which FSDP casts and whose gradients it reduces in f32)
 * are mixed.
 */
static const struct recipe {
    const char *name;
    int dtype;  /* row of dtypes */
    bool exact; /* that type alone, else any of 16 bits */
    bool mixed; /* weights and states in f32, of which all operators read casts */
} recipes[] = {
    {"mixed", 1, false, true},
    {"bf16", 1, true, false},
    {"f32", 0, true, false},
    {"fp8", 1, false, true}, /* mixed, and what ap-fuse --fp8 makes of it */
};
enum { N_RECIPES = sizeof recipes / sizeof *recipes };

#define NUM(n, field, h)                                                        \
    {                                                                           \
        .name = n, .kind = AP_OPT_NUM, .out = &o->field, .arg = "X", .help = h, \
        .group = "training"                                                     \
    }

void ap_train_opts_init(struct ap_train_opts *o, struct ap_opt rows[AP_N_TRAIN_OPTS])
{
    const struct ap_opt all[AP_N_TRAIN_OPTS] = {
        {.name = "dtype",
         .kind = AP_OPT_CHOICE,
         .out = &o->dtype,
         .arg = "TYPE",
         .help = "type of contractions and weights (f32)",
         .choices = &dtypes[0].choice,
         .choice_stride = sizeof dtypes[0]},
        {.name = "recipe",
         .kind = AP_OPT_STR,
         .out = &o->recipe,
         .arg = "NAME",
         .help = "types by name: mixed, bf16 or f32; with ,moments=TYPE[:TYPE] ,gradients=TYPE"},
        {.name = "master-weights",
         .out = &o->master_weights,
         .help = "with --dtype: keep weights and states in f32",
         .group = "training"},
        {.name = "cast-weights",
         .out = &o->cast_weights,
         .help = "with --master-weights: all operators read them in --dtype's type",
         .group = "training"},
        {.name = "low-gradients",
         .out = &o->low_gradients,
         .help = "with --cast-weights: gradients have that type up to the update",
         .group = "training"},
        NUM("lr", lr, "learning rate (1e-3; sgd and momentum: 1e-2)"),
        NUM("beta1", beta1, "Adam: decay of the first moment (0.9)"),
        NUM("beta2", beta2, "Adam: decay of the second moment (0.999)"),
        NUM("eps", eps, "Adam: added to the square root (1e-8)"),
        NUM("momentum", momentum, "decay of the momentum (0.9; muon: 0.95)"),
        NUM("weight-decay", weight_decay, "weight decay (0; adamw and muon: 0.01)"),
        NUM("loss-scale", loss_scale, "initial loss scale, 0 for none (f16: 65536)"),
        {.name = "freeze",
         .kind = AP_OPT_LIST,
         .out = &o->freeze,
         .arg = "GLOB",
         .help = "weights that are not trained; may be given several times",
         .group = "training"},
    };

    *o = (struct ap_train_opts){.lr = NAN,
                                .beta1 = NAN,
                                .beta2 = NAN,
                                .eps = NAN,
                                .momentum = NAN,
                                .weight_decay = NAN,
                                .loss_scale = NAN};
    memcpy(rows, all, sizeof all);
}

/* ctx: the options. A weight is asked for by name and by path. */
static bool is_frozen(const char *name, void *ctx)
{
    struct ap_train_opts *o = ctx;
    bool frozen = false;

    for (int k = 0; k < o->freeze.n; k++)
        if (ap_glob(o->freeze.v[k], name))
            frozen = o->freeze_used[k] = true;
    return frozen;
}

/* ---- recipes ---- */

/* The row of dtypes with this name; -1: none. */
static int find_dtype(const char *name)
{
    for (int i = 0; dtypes[i].choice.name; i++)
        if (strcmp(dtypes[i].choice.name, name) == 0)
            return i;
    return -1;
}

/* "bf16", or "fp8:bf16" of first and second moments. */
static void read_moments(struct ap_train_opts *o, const char *types,
                         struct ap_grad_params *p)
{
    const char *second = strchr(types, ':');
    char name[32];

    for (int s = 0; s < 2; s++) {
        const int len = second && s == 0 ? (int)(second - types) : (int)strlen(types);
        snprintf(name, sizeof name, "%.*s", len, types);
        const int row = find_dtype(name);
        if (row < 0 && strcmp(name, "fp8") != 0)
            ap_die_usage("--recipe %s: moments: '%s' is not one of f32, bf16, f16, fp8",
                         o->recipe, name);
        p->moments[s] = row < 0 ? AP_F8E4M3FN : dtypes[row].dtype;
        types = second && s == 0 ? second + 1 : types;
    }
    if (strcmp(p->optimizer, "sgd") == 0)
        ap_die_usage("--recipe %s: sgd has no moments", o->recipe);
}

/* One part after the name. */
static void read_part(struct ap_train_opts *o, const char *part, struct ap_grad_params *p)
{
    if (strncmp(part, "moments=", 8) == 0) {
        read_moments(o, part + 8, p);
    } else if (strncmp(part, "gradients=", 10) == 0) {
        const int dtype = find_dtype(part + 10);
        if (dtype != o->dtype && (dtype != 0 || !o->cast_weights))
            ap_die_usage("--recipe %s: gradients are %s%s", o->recipe,
                         dtypes[o->dtype].choice.name, o->cast_weights ? " or f32" : "");
        o->low_gradients = o->cast_weights && dtype == o->dtype;
    } else {
        ap_die_usage("--recipe %s: '%s' is not one of moments=TYPE, gradients=TYPE",
                     o->recipe, part);
    }
}

/* Sets the options that the recipe stands for. */
static void read_recipe(struct ap_train_opts *o, const struct ap_tool *tool,
                        struct ap_grad_params *p)
{
    char text[64], *rest = text;
    const struct recipe *r = recipes;

    if (!o->recipe)
        return;
    snprintf(text, sizeof text, "%s", o->recipe);
    const char *name = strtok_r(text, ",", &rest);
    while (r < recipes + N_RECIPES && (!name || strcmp(r->name, name) != 0))
        r++;
    if (r == recipes + N_RECIPES)
        ap_die_usage("--recipe: '%s' is not one of mixed, bf16, f32, fp8", o->recipe);
    if (strcmp(r->name, "fp8") == 0)
        ap_die_usage("--recipe fp8: products in fp8 are made by ap-fuse --fp8, of what "
                     "--recipe mixed makes");
    if (!ap_tool_given(tool, "dtype"))
        o->dtype = r->dtype;
    if (r->exact ? o->dtype != r->dtype : o->dtype == 0)
        ap_die_usage("--recipe %s: --dtype %s is another recipe's", o->recipe,
                     dtypes[o->dtype].choice.name);
    o->master_weights |= r->mixed;
    o->cast_weights |= r->mixed;
    for (const char *part; (part = strtok_r(NULL, ",", &rest));)
        read_part(o, part, p);
}

static void set(double *to, double given)
{
    if (!isnan(given))
        *to = given;
}

void ap_train_opts_fill(struct ap_train_opts *o, const struct ap_tool *tool,
                        const char *optimizer, struct ap_grad_params *p)
{
    struct ap_err err = {{0}};

    if (ap_grad_defaults(optimizer, p, &err))
        ap_die_usage("%s", err.msg);
    read_recipe(o, tool, p);
    if (o->master_weights && dtypes[o->dtype].dtype == AP_F32)
        ap_die_usage("--master-weights needs --dtype bf16 or f16");
    if (o->cast_weights && !o->master_weights)
        ap_die_usage("--cast-weights needs --master-weights");
    if (o->low_gradients && !o->cast_weights)
        ap_die_usage("--low-gradients needs --cast-weights");
    for (const struct ap_opt *opt = tool->opts; opt->name; opt++)
        if (ap_tool_given(tool, opt->name) && !ap_grad_uses(optimizer, opt->name))
            ap_die_usage("--%s is not for --optimizer %s", opt->name, optimizer);
    set(&p->lr, o->lr);
    set(&p->beta1, o->beta1);
    set(&p->beta2, o->beta2);
    set(&p->eps, o->eps);
    set(&p->momentum, o->momentum);
    set(&p->weight_decay, o->weight_decay);
    p->compute = dtypes[o->dtype].dtype;
    p->master_weights = o->master_weights;
    p->cast_weights = o->cast_weights;
    p->low_gradients = o->low_gradients;
    p->loss_scale = p->compute == AP_F16 ? LOSS_SCALE : 0;
    set(&p->loss_scale, o->loss_scale);
    p->frozen = o->freeze.n ? is_frozen : NULL;
    p->ctx = o;
}

int ap_train_opts_check_freeze(const struct ap_train_opts *o, struct ap_err *err)
{
    for (int k = 0; k < o->freeze.n; k++)
        if (!o->freeze_used[k])
            return ap_err_set(err, "--freeze '%s' matches no weight", o->freeze.v[k]);
    return 0;
}
