/*
 * From an ONNX model to a graph. Inputs and weights become parameters: the graph's inputs
 * first, in their order, then initialisers that are used as data, in theirs. Nodes are
 * lowered one after another (their order allows it), and the result is brought to the
 * same normal form as HLO text (clean.c). Linear in the file.
 */
#include "onnx/onnx.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "layout/nest.h"
#include "doc/npy.h"

/* Elements of an initialiser of role constant that becomes a literal. */
#define MAX_CONSTANT 4096

static int find_value(struct ox *c, const char *name)
{
    return ap_names_get(&c->values, name, strlen(name));
}

static int put_value(struct ox *c, const char *name, int id)
{
    if (find_value(c, name) >= 0)
        return onnx_fail(c->file, "'%s' is defined twice", name);
    ap_names_put(&c->values, name, strlen(name), id);
    return 0;
}

static int add_param(struct ox *c, const char *name, struct ap_shape shape,
                     enum ap_role role, struct ox_leaf leaf)
{
    AP_ROOM(c->leaves, c->n_leaves, c->cap_leaves);
    c->leaves[c->n_leaves++] = leaf;
    return ap_build_param(&c->b, name, shape, role);
}

/* ---- inputs ---- */

static int64_t dim_size(struct ox *c, const struct onnx_value *v, int d)
{
    const char *place = ap_arena_printf(c->file->arena, "%s.%d", v->name, d);
    if (v->dims[d] >= 0)
        return v->dims[d];
    for (int i = c->opt->n_dims - 1; i >= 0; i--)
        if (strcmp(c->opt->dims[i].name, place) == 0 ||
            (*v->symbol[d] && strcmp(c->opt->dims[i].name, v->symbol[d]) == 0)) {
            c->opt->dims[i].used = true;
            return c->opt->dims[i].size;
        }
    return onnx_refuse(c->file,
                       "input '%s': dimension %d has no fixed size: not supported yet "
                       "without --dim %s=N",
                       v->name, d, *v->symbol[d] ? v->symbol[d] : place);
}

static int add_input(struct ox *c, int k)
{
    const struct onnx_value *v = &c->model->inputs[k];
    enum ap_dtype dtype = onnx_dtype(v->type);
    int64_t dims[AP_MAX_RANK];
    if (v->type && (dtype == AP_N_DTYPES || ap_dtype_size(dtype) > 8 || dtype == AP_C64))
        return onnx_refuse(c->file, "input '%s': element type %d is not supported yet",
                           v->name, v->type);
    if (!v->type || !v->has_shape)
        return onnx_refuse(c->file,
                           "input '%s' is not a tensor of known rank: not supported yet",
                           v->name);
    for (int d = 0; d < v->rank; d++) {
        dims[d] = dim_size(c, v, d);
        if (dims[d] < 0)
            return -1;
    }
    struct ap_shape s = ap_build_shape(&c->b, dtype, v->rank, dims);
    if (ap_shape_elems(&s) > (int64_t)1 << 48)
        return onnx_refuse(c->file, "input '%s': this size is not supported yet",
                           v->name);
    struct ox_leaf leaf = {-1, k};
    return put_value(c, v->name, add_param(c, v->name, s, AP_ROLE_INPUT, leaf));
}

/* Inputs that no initialiser is the value of (older models list those, too). */
static int add_inputs(struct ox *c)
{
    struct ap_names inits = {0};
    int rc = 0, k = 0;
    for (int i = 0; i < c->model->n_inits; i++) {
        const char *name = c->model->inits[i].name;
        if (ap_names_get(&inits, name, strlen(name)) < 0)
            ap_names_put(&inits, name, strlen(name), i);
    }
    for (int i = 0; i < c->model->n_inputs; i++) {
        const char *name = c->model->inputs[i].name;
        if (ap_names_get(&inits, name, strlen(name)) < 0)
            c->model->inputs[k++] = c->model->inputs[i];
    }
    c->model->n_inputs = k;
    for (int i = 0; i < k && !rc; i++)
        rc = add_input(c, i);
    ap_names_free(&inits);
    return rc;
}

/* ---- initialisers ---- */

/* Names that exporters make up ("onnx::Mul_12", "/net/Constant_output_0", "31"). */
static bool made_up(const char *name)
{
    return strstr(name, "::") || *name == '/' || !name[strspn(name, "0123456789")];
}

/* The file does not say it: floats are weights. */
static enum ap_role init_role(const struct onnx_tensor *t)
{
    if (!ap_dtype_is_float(t->shape.dtype) || (t->shape.rank == 0 && made_up(t->name)))
        return AP_ROLE_CONSTANT;
    return AP_ROLE_WEIGHT;
}

static int add_init(struct ox *c, int k)
{
    struct onnx_tensor *t = &c->model->inits[k];
    int64_t n = ap_shape_elems(&t->shape);
    enum ap_role role = init_role(t);
    if (t->shape.dtype == AP_C64 || t->shape.dtype == AP_C128)
        return onnx_refuse(c->file,
                           "initialiser '%s': complex numbers are not supported "
                           "yet",
                           t->name);
    if (role == AP_ROLE_CONSTANT && n <= MAX_CONSTANT) {
        if (onnx_map_external(c->file, t))
            return -1;
        return put_value(c, t->name, ap_build_literal(&c->b, t->shape, t->data));
    }
    if (n > (int64_t)1 << 48)
        return onnx_fail(c->file, "initialiser '%s' is too large", t->name);
    struct ox_leaf leaf = {k, -1};
    return put_value(c, t->name, add_param(c, t->name, t->shape, role, leaf));
}

/* ---- nodes ---- */

static int read_operands(struct ox *c, const struct onnx_node *node)
{
    c->n_in = node->n_in;
    c->in = AP_NEW_N(c->file->arena, node->n_in + 1, int);
    for (int i = 0; i < node->n_in; i++) {
        c->in[i] = *node->in[i] ? find_value(c, node->in[i]) : -1;
        if (*node->in[i] && c->in[i] < 0)
            return ox_fail(c, "input '%.200s' is not defined", node->in[i]);
    }
    while (c->n_in > 0 && c->in[c->n_in - 1] < 0)
        c->n_in--;
    for (int i = 0; i < c->op->min_in; i++)
        if (ox_in(c, i) < 0)
            return ox_fail(c, "input %d is missing", i);
    if (c->op->max_in >= 0 && c->n_in > c->op->max_in)
        return ox_fail(c, "has %d inputs, at most %d are known", c->n_in, c->op->max_in);
    return 0;
}

/* Checks the nodes that one ONNX node became. */
static int check_new(struct ox *c, int first)
{
    struct ap_graph g = {.n_nodes = c->b.n,
                         .nodes = c->b.nodes,
                         .n_reducers = c->b.n_reducers,
                         .reducers = c->b.reducers};
    for (int i = first; i < c->b.n; i++) {
        struct ap_err err = {{0}};
        if (ap_check_node(&g, &c->b.nodes[i], &err))
            return ox_refuse(c, "as %s: %.400s: not supported yet",
                             ap_ops[c->b.nodes[i].op].name, err.msg);
    }
    return 0;
}

static int keep_outputs(struct ox *c, int first)
{
    const struct onnx_node *node = c->node;
    for (int k = 0; k < node->n_out; k++) {
        if (!*node->out[k])
            continue;
        int id = c->out[k];
        if (id < 0)
            return ox_refuse(c, "output %d is not supported yet", k);
        if (id >= first)
            c->b.nodes[id].name = node->out[k];
        if (put_value(c, node->out[k], id))
            return -1;
    }
    return 0;
}

/* "/layers.0/fc/Gemm", as PyTorch names nodes, is "layers/0/fc". */
static const char *scope_of(struct ox *c, struct import *im, const char *name)
{
    if (*name != '/')
        return import_scope(im, name);
    char *path = ap_arena_strdup(c->file->arena, name + 1);
    for (char *p = path; *p; p++)
        if (*p == '.')
            *p = '/';
    return import_scope(im, path);
}

static int lower(struct ox *c, struct import *im, const struct onnx_node *node)
{
    bool known = false;
    c->node = node;
    c->op = ox_find(node->domain, node->op, c->model->opset, &known);
    if (!c->op && known)
        return ox_refuse(c, "in opset %lld is not supported yet",
                         (long long)c->model->opset);
    if (!c->op)
        return ox_refuse(c, "this operator%s%.60s is not supported yet",
                         *node->domain ? " of " : "", node->domain);
    if (node->n_out > OX_MAX_OUT)
        return ox_refuse(c, "with more than %d outputs is not supported yet", OX_MAX_OUT);
    if (read_operands(c, node))
        return -1;
    int first = c->b.n;
    c->b.scope = scope_of(c, im, node->name);
    for (int k = 0; k < OX_MAX_OUT; k++)
        c->out[k] = -1;
    int id = c->op->run(c);
    if (c->file->err->msg[0])
        return -1;
    if (c->out[0] < 0)
        c->out[0] = id;
    if (check_new(c, first) || keep_outputs(c, first))
        return -1;
    c->node = NULL;
    return 0;
}

/* ---- results ---- */

/* What the file says of a result must be what its operators give. */
static int check_result(struct ox *c, const struct onnx_value *v, int id)
{
    struct ap_shape s = ox_shape(c, id);
    bool same = !v->type || onnx_dtype(v->type) == s.dtype;
    same = same && (!v->has_shape || v->rank == s.rank);
    for (int d = 0; v->has_shape && same && d < v->rank; d++)
        same = v->dims[d] < 0 || v->dims[d] == s.dims[d];
    if (same)
        return 0;
    struct ap_buf text = {0};
    ap_shape_print(&s, &text);
    onnx_fail(c->file,
              "output '%s' is said to be of another shape than the %s that its "
              "operators give",
              v->name, text.data);
    ap_buf_free(&text);
    return -1;
}

static int add_results(struct ox *c, struct import *im)
{
    im->g.n_results = c->model->n_outputs;
    im->g.results = AP_NEW_N(c->file->arena, im->g.n_results + 1, struct ap_result);
    for (int k = 0; k < c->model->n_outputs; k++) {
        const struct onnx_value *v = &c->model->outputs[k];
        int id = find_value(c, v->name);
        if (id < 0)
            return onnx_fail(c->file, "output '%s' is not defined", v->name);
        if (check_result(c, v, id))
            return -1;
        im->g.results[k] = (struct ap_result){id, AP_ROLE_AUX, -1, NULL};
    }
    if (!im->g.n_results)
        return onnx_fail(c->file, "the graph has no outputs");
    return 0;
}

/* ---- to the importer's form ---- */

static bool *live_nodes(const struct ox *c, const struct import *im)
{
    bool *live = AP_NEW_N(c->file->arena, c->b.n + 1, bool);
    for (int k = 0; k < im->g.n_results; k++)
        live[im->g.results[k].node] = true;
    import_mark_needed(c->b.nodes, c->b.n, live);
    return live;
}

/* Parameters first (unused weights go), then the rest, renumbered. */
static void move_nodes(struct ox *c, struct import *im)
{
    const struct node_info info = {.hint = HINT_FORWARD};
    bool *live = live_nodes(c, im);
    int *to = AP_NEW_N(c->file->arena, c->b.n + 1, int);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < c->b.n; i++) {
            struct ap_node node = c->b.nodes[i];
            bool is_param = node.op == AP_OP_PARAMETER;
            if (is_param == (pass == 1))
                continue;
            if (is_param && !live[i] && c->leaves[node.param].init >= 0) {
                import_drop(im, node.name);
                continue;
            }
            if (is_param) {
                c->leaves[im->g.n_params] = c->leaves[node.param];
                node.param = im->g.n_params++;
                if (node.role != AP_ROLE_INPUT)
                    node.scope = import_path_scope(im, node.name);
            }
            import_rewire(c->file->arena, &node, to);
            to[i] = import_add(im, &node, &info);
        }
    for (int k = 0; k < im->g.n_results; k++)
        im->g.results[k].node = to[im->g.results[k].node];
    im->g.n_reducers = im->cap_reducers = c->b.n_reducers;
    im->reducers =
        ap_xrealloc(NULL, (size_t)(c->b.n_reducers + 1) * sizeof *im->reducers);
    for (int i = 0; i < c->b.n_reducers; i++)
        im->reducers[i] = c->b.reducers[i];
    im->g.reducers = im->reducers;
}

/* The result that --roles names, or the first floating-point scalar; -1: none. */
static int find_loss(const struct ap_graph *g, struct import_params *params)
{
    int loss = -1;
    for (int k = 0; k < g->n_results && loss < 0; k++) {
        const struct ap_node *node = &g->nodes[g->results[k].node];
        if (node->shape.rank == 0 && ap_dtype_is_float(node->shape.dtype))
            loss = k;
    }
    for (int j = 0; j < params->n_roles; j++) {
        struct override *o = &params->roles[j];
        for (int k = 0; k < g->n_results && o->value == AP_ROLE_LOSS; k++)
            if (ap_glob(o->glob, g->nodes[g->results[k].node].name)) {
                loss = k;
                o->used = true;
            }
    }
    return loss;
}

static int set_roles(struct import *im, struct import_params *params)
{
    struct ap_graph *g = &im->g;
    int loss = find_loss(g, params);
    if (import_override_roles(im, params))
        return -1;
    for (int k = 0; k < g->n_results; k++)
        g->results[k] = (struct ap_result){.node = g->results[k].node,
                                           .role = k == loss ? AP_ROLE_LOSS : AP_ROLE_AUX,
                                           .alias = -1};
    return 0;
}

/* ---- weights ---- */

static int write_weights(struct ox *c, const struct ap_graph *g)
{
    struct ap_err why = {{0}};
    const char *dir = c->opt->weights;
    if (mkdir(dir, 0777) && errno != EEXIST)
        return ap_err_set(c->file->err, "%s: %s", dir, strerror(errno));
    for (int k = 0; k < g->n_params; k++) {
        const char *path = ap_arena_printf(c->file->arena, "%s/%d.npy", dir, k);
        if (c->leaves[k].init < 0)
            continue;
        struct onnx_tensor *t = &c->model->inits[c->leaves[k].init];
        if (onnx_map_external(c->file, t))
            return -1;
        if (ap_npy_write(path, &t->shape, t->data, &why))
            return ap_err_set(c->file->err, "%s", why.msg);
    }
    return 0;
}

/* ---- all of it ---- */

static int run(struct ox *c, struct import *im, struct import_params *params)
{
    int rc = add_inputs(c);
    for (int i = 0; i < c->model->n_inits && !rc; i++)
        rc = add_init(c, i);
    for (int i = 0; i < c->model->n_nodes && !rc; i++)
        rc = lower(c, im, &c->model->nodes[i]);
    if (rc || add_results(c, im))
        return -1;
    for (int i = 0; i < c->opt->n_dims; i++)
        if (!c->opt->dims[i].used)
            return onnx_fail(c->file, "--dim %s: no input has such a dimension",
                             c->opt->dims[i].name);
    move_nodes(c, im);
    import_clean(im);
    if (set_roles(im, params))
        return -1;
    return import_phases(im, params);
}

int import_onnx(struct onnx_file *f, struct onnx_options *options,
                struct import_params *params, struct ap_graph *g,
                struct import_stats *stats)
{
    struct onnx_model model;
    if (onnx_read(f, &model))
        return -1;
    struct hlo_src src = {.arena = f->arena, .file = f->path, .err = f->err};
    struct import im = {.src = &src, .g.name = *model.name ? model.name : "onnx"};
    struct ox c = {.file = f, .model = &model, .opt = options, .opset = model.opset};
    ap_build_init(&c.b, f->arena);
    int rc = run(&c, &im, params);
    stats->n_instrs = model.n_nodes;
    stats->n_inlined = c.b.n;
    if (!rc)
        rc = import_finish(&im, g, stats);
    if (!rc && options->weights)
        rc = write_weights(&c, g);
    import_release(&im);
    free(c.b.nodes);
    free(c.leaves);
    free(c.known);
    free(c.known_state);
    ap_names_free(&c.values);
    return rc;
}
