/*
 * Problem: the graph as HLO text, with the plan as shardings, for XLA's partitioner.
 * Idea: one instruction per node, in order. A sharding belongs to a value, so the values
 * that a group makes are annotated with their layouts; if users need another layout, a
 * custom call "Sharding" stands for the conversion, once per conversion of the plan.
 * Partial values have no sharding that XLA can express, the conversion after them has.
 * Shardy reads annotations of parameters and custom calls only: there each annotated
 * value is followed by one. Cost: linear, names are sorted. Source: Xu et al., "GSPMD:
 * General and Scalable Parallelization for ML Computation Graphs", sections 3.1 and 3.2.
 */
#include "hlo.h"

#include <string.h>

/* A list of instructions: the entry, or a computation of a loop. */
struct block {
    const struct ap_node *nodes;
    int n_nodes;
    const char **name;  /* per node */
    const char **value; /* per node: what its users name, name or an annotation of it */
};

struct printer {
    struct ap_arena *arena;
    const struct ap_graph *g;
    const struct ap_plan *plan;
    const struct ap_conversions *conv;
    enum hlo_dialect dialect;
    bool annotated; /* several devices */
    struct ap_buf *out;
    struct hlo_lost *lost;
    int *comp_of;           /* reducer * AP_N_DTYPES + dtype: row of comp_name, or -1 */
    const char **comp_name; /* of reducers, then of the graph's computations, then main */
    int n_reducers;         /* rows of reducers */
    /* entry only */
    bool *wanted;                /* per node: is annotated */
    int *first_conv, *next_conv; /* conversions of a node */
    bool *has_conv;              /* per conversion: it is in the text */
};

static void put_shape(struct printer *p, const struct ap_shape *shape)
{
    ap_shape_print(shape, p->out);
    ap_buf_putc(p->out, ' ');
}

/* ---- reducers ---- */

/* Where a reducer is listed that works on elements like those of the first operand. */
static int *comp_row(struct printer *p, const struct ap_node *nodes,
                     const struct ap_node *node, int reducer)
{
    enum ap_dtype dtype = p->g->reducers[reducer].red == AP_RED_NONE
                              ? AP_PRED
                              : nodes[node->in[0]].shape.dtype;
    return &p->comp_of[reducer * AP_N_DTYPES + (int)dtype];
}

static void list_reducers(struct printer *p, const struct ap_node *nodes, int n_nodes,
                          const char **want)
{
    for (int i = 0; i < n_nodes; i++) {
        const struct ap_attrs *a = nodes[i].attrs;
        int used[3] = {a->to_apply, a->select, a->scatter};
        for (int k = 0; k < 3; k++) {
            int *row = used[k] < 0 ? NULL : comp_row(p, nodes, &nodes[i], used[k]);
            if (!row || *row >= 0)
                continue;
            const struct ap_reducer *r = &p->g->reducers[used[k]];
            *row = p->n_reducers++;
            want[*row] =
                r->red == AP_RED_NONE
                    ? r->name
                    : ap_arena_printf(p->arena, "%s.%s", ap_red_names[r->red],
                                      ap_dtype_name(nodes[nodes[i].in[0]].shape.dtype));
        }
    }
}

/* Numbers and names all computations. */
static void list_comps(struct printer *p)
{
    const struct ap_graph *g = p->g;
    int n = g->n_reducers * AP_N_DTYPES;
    const char **want = AP_NEW_N(p->arena, n + g->n_comps + 1, const char *);
    p->comp_of = AP_NEW_N(p->arena, n + 1, int);
    memset(p->comp_of, -1, (size_t)n * sizeof *p->comp_of);
    list_reducers(p, g->nodes, g->n_nodes, want);
    for (int c = 0; c < g->n_comps; c++)
        list_reducers(p, g->comps[c].nodes, g->comps[c].n_nodes, want);
    for (int c = 0; c < g->n_comps; c++)
        want[p->n_reducers + c] = g->comps[c].name;
    want[p->n_reducers + g->n_comps] = "main";
    p->comp_name = hlo_names(p->arena, want, p->n_reducers + g->n_comps + 1);
}

static void put_named(struct printer *p, const struct ap_reducer *r, enum ap_dtype dtype)
{
    const char *type = ap_dtype_name(dtype);
    bool assign = r->red == AP_RED_ASSIGN;
    ap_buf_printf(p->out, "  a = %s[] parameter(0)\n", type);
    ap_buf_printf(p->out, "  %sb = %s[] parameter(1)\n", assign ? "ROOT " : "", type);
    if (!assign)
        ap_buf_printf(p->out, "  ROOT c = %s[] %s(a, b)\n", type,
                      ap_ops[ap_red_ops[r->red]].name);
}

static void put_body(struct printer *p, const struct ap_reducer *r)
{
    const char **want = AP_NEW_N(p->arena, r->n_nodes + 1, const char *);
    for (int i = 0; i < r->n_nodes; i++)
        want[i] = r->nodes[i].name;
    const char **name = hlo_names(p->arena, want, r->n_nodes);
    int n_params = 0;
    for (int i = 0; i < r->n_nodes; i++) {
        const struct ap_node *node = &r->nodes[i];
        bool root = r->n_results == 1 && r->results[0] == i;
        ap_buf_printf(p->out, "  %s%s = ", root ? "ROOT " : "", name[i]);
        put_shape(p, &node->shape);
        ap_buf_printf(p->out, "%s(", ap_ops[node->op].name);
        if (node->op == AP_OP_PARAMETER)
            ap_buf_int(p->out, n_params++);
        if (node->op == AP_OP_CONSTANT)
            hlo_put_literal(&node->attrs->literal, &node->shape, p->out);
        for (int k = 0; k < node->n_in; k++)
            ap_buf_printf(p->out, "%s%s", k ? ", " : "", name[node->in[k]]);
        ap_buf_putc(p->out, ')');
        hlo_put_attrs(node, p->out);
        ap_buf_putc(p->out, '\n');
    }
    if (r->n_results == 1)
        return;
    struct ap_shape *parts = AP_NEW_N(p->arena, r->n_results + 1, struct ap_shape);
    for (int i = 0; i < r->n_results; i++)
        parts[i] = r->nodes[r->results[i]].shape;
    ap_buf_puts(p->out, "  ROOT ap.results = ");
    put_shape(p, &(struct ap_shape){
                     .dtype = AP_TUPLE, .n_parts = r->n_results, .parts = parts});
    ap_buf_puts(p->out, "tuple(");
    for (int i = 0; i < r->n_results; i++)
        ap_buf_printf(p->out, "%s%s", i ? ", " : "", name[r->results[i]]);
    ap_buf_puts(p->out, ")\n");
}

static void put_reducers(struct printer *p)
{
    int n = p->g->n_reducers * AP_N_DTYPES;
    int *key_of = AP_NEW_N(p->arena, p->n_reducers + 1, int);
    for (int key = 0; key < n; key++)
        if (p->comp_of[key] >= 0)
            key_of[p->comp_of[key]] = key;
    for (int row = 0; row < p->n_reducers; row++) {
        const struct ap_reducer *r = &p->g->reducers[key_of[row] / AP_N_DTYPES];
        ap_buf_printf(p->out, "%s {\n", p->comp_name[row]);
        if (r->red == AP_RED_NONE)
            put_body(p, r);
        else
            put_named(p, r, (enum ap_dtype)(key_of[row] % AP_N_DTYPES));
        ap_buf_puts(p->out, "}\n\n");
    }
}

/* ---- instructions ---- */

/* The path that the node's scope and phase are read from again. */
static void put_metadata(struct printer *p, const struct ap_node *node, const char *name)
{
    static const char *const open[AP_N_PHASES] = {"jvp(", "transpose(jvp(", ""};
    static const char *const close[AP_N_PHASES] = {")", "))", ""};
    struct ap_buf path = {0};
    if (node->op == AP_OP_PARAMETER) {
        bool plain = !*node->scope && strcmp(name, node->name) == 0;
        ap_buf_puts(&path, plain ? "" : node->name);
    } else {
        ap_buf_printf(&path, "jit(step)/%s%s%s%s%s", open[node->phase], node->scope,
                      close[node->phase],
                      node->phase == AP_UPDATE && !*node->scope ? "" : "/",
                      ap_ops[node->op].name);
    }
    if (path.len) {
        ap_buf_puts(p->out, ", metadata={op_name=");
        hlo_put_quoted(path.data, p->out);
        ap_buf_putc(p->out, '}');
    }
    ap_buf_free(&path);
}

static void put_called(struct printer *p, const struct block *b,
                       const struct ap_node *node)
{
    const struct ap_attrs *a = node->attrs;
    static const char *const names[] = {"to_apply", "select", "scatter"};
    int used[3] = {a->to_apply, a->select, a->scatter};
    for (int k = 0; k < 3; k++)
        if (used[k] >= 0)
            ap_buf_printf(p->out, ", %s=%s", names[k],
                          p->comp_name[*comp_row(p, b->nodes, node, used[k])]);
    if (node->op != AP_OP_WHILE)
        return;
    ap_buf_printf(p->out, ", condition=%s, body=%s",
                  p->comp_name[p->n_reducers + a->condition],
                  p->comp_name[p->n_reducers + a->body]);
    if (a->trip_count >= 0)
        ap_buf_printf(p->out, ", backend_config={\"known_trip_count\":{\"n\":\"%lld\"}}",
                      (long long)a->trip_count);
}

/* What operand k of node i is called: the conversion that the plan makes for it, or the
 * value itself. */
static const char *operand(struct printer *p, const struct block *b, int i, int k)
{
    const struct ap_node *node = &b->nodes[i];
    const char *value = b->value[node->in[k]];
    if (!p->annotated || b->nodes != p->g->nodes)
        return value;
    const struct ap_nest *nest = &p->plan->nests->nest[node->group];
    int slot = nest->in_slot[ap_nest_member(nest, i)][k];
    int c = slot < 0 ? -1 : p->conv->in_conv[p->conv->in_start[node->group] + slot];
    return c >= 0 && p->has_conv[c] ? ap_arena_printf(p->arena, "ap.to.%d", c) : value;
}

/* What is computed once more on purpose reads through barriers, so that no compiler
 * merges it with the first time. */
static bool is_barred(const struct ap_node *node)
{
    return node->attrs->recomputed && node->op != AP_OP_WHILE;
}

static void put_operands(struct printer *p, const struct block *b, int i)
{
    for (int k = 0; k < b->nodes[i].n_in; k++)
        if (is_barred(&b->nodes[i]))
            ap_buf_printf(p->out, "%sap.barrier.%d.%d", k ? ", " : "", i, k);
        else
            ap_buf_printf(p->out, "%s%s", k ? ", " : "", operand(p, b, i, k));
}

/* "  NAME = SHAPE OP(" */
static void put_head(struct printer *p, const char *name, const struct ap_shape *shape,
                     const char *op)
{
    ap_buf_printf(p->out, "  %s = ", name);
    put_shape(p, shape);
    ap_buf_printf(p->out, "%s(", op);
}

/* Instructions before the node's own that it needs; true if that says it all. */
static bool put_before(struct printer *p, const struct block *b, int i)
{
    const struct ap_node *node = &b->nodes[i];
    const struct ap_literal *value = &node->attrs->literal;
    for (int k = 0; k < node->n_in && is_barred(node); k++) {
        put_head(p, ap_arena_printf(p->arena, "ap.barrier.%d.%d", i, k),
                 &b->nodes[node->in[k]].shape, "opt-barrier");
        ap_buf_printf(p->out, "%s)\n", operand(p, b, i, k));
    }
    if (node->op == AP_OP_WHILE) {
        put_head(p, ap_arena_printf(p->arena, "ap.state.%d", i), &node->shape, "tuple");
        put_operands(p, b, i);
        ap_buf_puts(p->out, ")\n");
    }
    if (node->op != AP_OP_CONSTANT || !node->shape.rank || !value->splat || value->elided)
        return false;
    struct ap_shape scalar = {.dtype = node->shape.dtype};
    const char *name = ap_arena_printf(p->arena, "ap.scalar.%d", i);
    put_head(p, name, &scalar, "constant");
    hlo_put_literal(value, &scalar, p->out);
    ap_buf_puts(p->out, ")\n");
    put_head(p, b->name[i], &node->shape, "broadcast");
    ap_buf_printf(p->out, "%s), dimensions={}", name);
    return true;
}

/* The node's instruction, without the end of its line. */
static void put_instr(struct printer *p, const struct block *b, int i)
{
    const struct ap_node *node = &b->nodes[i];
    if (!put_before(p, b, i)) {
        put_head(p, b->name[i], &node->shape, ap_ops[node->op].name);
        if (node->op == AP_OP_PARAMETER)
            ap_buf_int(p->out, node->param);
        else if (node->op == AP_OP_CONSTANT)
            hlo_put_literal(&node->attrs->literal, &node->shape, p->out);
        else if (node->op == AP_OP_WHILE)
            ap_buf_printf(p->out, "ap.state.%d", i);
        else
            put_operands(p, b, i);
        ap_buf_putc(p->out, ')');
        hlo_put_attrs(node, p->out);
        put_called(p, b, node);
    }
    put_metadata(p, node, b->name[i]);
}

/* ---- annotations ---- */

/*
 * Appends the sharding in the dialect's form. False where it has none, and where it has
 * only one that is close and that is not enough; counts both.
 */
static bool put_spec(struct printer *p, const struct ap_shape *shape,
                     const struct ap_layout *l, bool close_is_enough, struct ap_buf *out)
{
    const struct ap_mesh *mesh = &p->plan->mesh;
    enum hlo_said said = p->dialect == HLO_GSPMD ? hlo_put_gspmd(mesh, shape, l, out)
                                                 : hlo_put_shardy(mesh, shape, l, out);
    p->lost->partial += said == HLO_NOT_SAID;
    p->lost->moved += said == HLO_MOVED && close_is_enough;
    p->lost->strided += said == HLO_MOVED && !close_is_enough;
    return said == HLO_SAID || (said == HLO_MOVED && close_is_enough);
}

/* A custom call on `of` that holds a sharding. */
static void put_sharding_call(struct printer *p, const char *name, const char *of,
                              const struct ap_node *node, const char *target,
                              const char *spec)
{
    put_head(p, name, &node->shape, "custom-call");
    ap_buf_printf(p->out, "%s), custom_call_target=\"%s\"", of, target);
    put_metadata(p, node, name);
    if (p->dialect == HLO_GSPMD)
        ap_buf_printf(p->out, ", sharding=%s\n", spec);
    else
        ap_buf_printf(
            p->out,
            "%s, frontend_attributes={xla.sdy.sharding="
            "\"#sdy.sharding_per_value<[%s]>\"}\n",
            strcmp(target, "Sharding") != 0 ? ", custom_call_has_side_effect=true" : "",
            spec);
}

/*
 * The layout of node i's own value, after its instruction; ends the line. What the
 * dialect's sharding does not say, or ap-import does not read, is said in our own words.
 */
static void annotate_value(struct printer *p, struct block *b, int i)
{
    const struct ap_node *node = &b->nodes[i];
    struct ap_buf spec = {0};
    struct ap_layout l = ap_plan_node_layout(p->plan, i);
    bool strided = false;
    for (int a = 0; a < p->plan->mesh.n_axes; a++)
        strided |= l.axis[a].stride > 0;
    bool has = put_spec(p, &node->shape, &l, node->op == AP_OP_PARAMETER, &spec);
    bool call = has && p->dialect == HLO_SHARDY && node->op != AP_OP_PARAMETER;
    if (has && p->dialect == HLO_GSPMD)
        ap_buf_printf(p->out, ", sharding=%s", spec.data);
    if (!has || p->dialect == HLO_SHARDY || strided) {
        ap_buf_puts(p->out, ", frontend_attributes={");
        if (has && !call && p->dialect == HLO_SHARDY)
            ap_buf_printf(p->out, "xla.sdy.sharding=\"#sdy.sharding%s\",", spec.data);
        ap_buf_puts(p->out, "autopar.layout=\"");
        for (int a = 0; a < p->plan->mesh.n_axes; a++)
            ap_buf_printf(p->out, "%s%lld", a ? "x" : "",
                          (long long)p->plan->mesh.size[a]);
        ap_buf_putc(p->out, ':');
        ap_layout_print(&p->plan->mesh, &l, p->out);
        ap_buf_puts(p->out, "\"}");
    }
    ap_buf_putc(p->out, '\n');
    if (call) {
        b->value[i] = ap_arena_printf(p->arena, "ap.at.%d", i);
        put_sharding_call(p, b->value[i], b->name[i], node, "Sharding", spec.data);
    }
    ap_buf_free(&spec);
}

static void put_conversions(struct printer *p, const struct block *b, int i)
{
    for (int c = p->first_conv[i]; c >= 0; c = p->next_conv[c]) {
        struct ap_buf spec = {0};
        if (put_spec(p, &b->nodes[i].shape, &p->conv->conv[c].to, false, &spec)) {
            p->has_conv[c] = true;
            put_sharding_call(p, ap_arena_printf(p->arena, "ap.to.%d", c), b->value[i],
                              &b->nodes[i], "Sharding", spec.data);
        }
        ap_buf_free(&spec);
    }
}

/* Finds out what is annotated. */
static void list_annotations(struct printer *p)
{
    const struct ap_graph *g = p->g;
    p->wanted = AP_NEW_N(p->arena, g->n_nodes + 1, bool);
    p->first_conv = AP_NEW_N(p->arena, g->n_nodes + 1, int);
    p->next_conv = AP_NEW_N(p->arena, p->conv->n + 1, int);
    p->has_conv = AP_NEW_N(p->arena, p->conv->n + 1, bool);
    for (int n = 0; n < p->plan->nests->n; n++) {
        const struct ap_nest *nest = &p->plan->nests->nest[n];
        for (int k = 0; k < nest->n_outs; k++)
            p->wanted[nest->outs[k]] = true;
    }
    for (int c = 0; c < p->conv->n; c++) /* parts of tuples, too */
        p->wanted[p->conv->conv[c].node] = true;
    for (int r = 0; r < g->n_results; r++)
        p->wanted[g->results[r].node] = true;
    for (int i = 0; i < g->n_nodes; i++) {
        p->wanted[i] |= g->nodes[i].op == AP_OP_PARAMETER || p->dialect == HLO_GSPMD;
        p->wanted[i] &= g->nodes[i].shape.dtype != AP_TUPLE;
        p->first_conv[i] = -1;
    }
    for (int c = p->conv->n - 1; c >= 0; c--) {
        int node = p->conv->conv[c].node;
        p->next_conv[c] = p->first_conv[node];
        p->first_conv[node] = c;
    }
}

/* ---- computations ---- */

static struct block make_block(struct printer *p, const struct ap_node *nodes, int n)
{
    const char **want = AP_NEW_N(p->arena, n + 1, const char *);
    for (int i = 0; i < n; i++)
        want[i] = nodes[i].name;
    const char **name = hlo_names(p->arena, want, n);
    return (struct block){nodes, n, name,
                          ap_arena_dup(p->arena, name, (size_t)(n + 1) * sizeof *name)};
}

static struct ap_shape tuple_of(struct printer *p, const struct ap_node *nodes,
                                const int *ids, int n)
{
    struct ap_shape *parts = AP_NEW_N(p->arena, n + 1, struct ap_shape);
    for (int i = 0; i < n; i++)
        parts[i] = nodes[ids[i]].shape;
    return (struct ap_shape){.dtype = AP_TUPLE, .n_parts = n, .parts = parts};
}

/* The computation of a loop: its parameters are the parts of one tuple. */
static void put_comp(struct printer *p, int id, bool condition)
{
    const struct ap_comp *comp = &p->g->comps[id];
    struct block b = make_block(p, comp->nodes, comp->n_nodes);
    int *ids = AP_NEW_N(p->arena, comp->n_nodes + 1, int), n = 0;
    while (n < comp->n_nodes && comp->nodes[n].op == AP_OP_PARAMETER) {
        ids[n] = n;
        n++;
    }
    struct ap_shape state = tuple_of(p, comp->nodes, ids, n);
    ap_buf_printf(p->out, "%s {\n", p->comp_name[p->n_reducers + id]);
    put_head(p, "ap.state", &state, "parameter");
    ap_buf_puts(p->out, "0)\n");
    for (int i = 0; i < comp->n_nodes; i++) {
        if (condition && comp->results[0] == i)
            ap_buf_puts(p->out, "  ROOT");
        if (i < n) {
            put_head(p, b.name[i], &comp->nodes[i].shape, "get-tuple-element");
            ap_buf_printf(p->out, "ap.state), index=%d", i);
        } else {
            put_instr(p, &b, i);
        }
        ap_buf_putc(p->out, '\n');
    }
    if (!condition) {
        struct ap_shape next = tuple_of(p, comp->nodes, comp->results, comp->n_results);
        ap_buf_puts(p->out, "  ROOT");
        put_head(p, "ap.next", &next, "tuple");
        for (int i = 0; i < comp->n_results; i++)
            ap_buf_printf(p->out, "%s%s", i ? ", " : "", b.value[comp->results[i]]);
        ap_buf_puts(p->out, ")\n");
    }
    ap_buf_puts(p->out, "}\n\n");
}

static void put_comps(struct printer *p)
{
    bool *condition = AP_NEW_N(p->arena, p->g->n_comps + 1, bool);
    for (int c = p->g->n_comps; c >= 0; c--) {
        bool entry = c == p->g->n_comps;
        const struct ap_node *nodes = entry ? p->g->nodes : p->g->comps[c].nodes;
        int n = entry ? p->g->n_nodes : p->g->comps[c].n_nodes;
        for (int i = 0; i < n; i++)
            if (nodes[i].op == AP_OP_WHILE)
                condition[nodes[i].attrs->condition] = true;
    }
    for (int c = 0; c < p->g->n_comps; c++)
        put_comp(p, c, condition[c]);
}

/* Calls that give every result its sharding, as Shardy wants it; names in value. */
static void put_result_calls(struct printer *p, const struct block *b, const char **value,
                             struct ap_buf *tuple)
{
    for (int r = 0; r < p->g->n_results; r++) {
        int node = p->g->results[r].node, c = p->annotated ? p->conv->result_conv[r] : -1;
        value[r] = c >= 0 && p->has_conv[c] ? ap_arena_printf(p->arena, "ap.to.%d", c)
                                            : b->value[node];
        if (!p->annotated)
            continue;
        struct ap_layout l = ap_plan_result_layout(p->plan, r);
        struct ap_buf spec = {0};
        const struct ap_shape *shape = &b->nodes[node].shape;
        bool has = put_spec(p, shape, &l, true, &spec);
        if (p->dialect == HLO_GSPMD)
            ap_buf_printf(tuple, "%s%s", r ? ", " : "", has ? spec.data : "{replicated}");
        if (p->dialect == HLO_SHARDY && has) {
            const char *of = value[r];
            value[r] = ap_arena_printf(p->arena, "ap.result.%d", r);
            put_sharding_call(p, value[r], of, &b->nodes[node],
                              "xla.sdy.FuncResultSharding", spec.data);
        }
        ap_buf_free(&spec);
    }
}

static void put_results(struct printer *p, const struct block *b)
{
    int n = p->g->n_results;
    int *ids = AP_NEW_N(p->arena, n + 1, int);
    const char **value = AP_NEW_N(p->arena, n + 1, const char *);
    struct ap_buf shardings = {0};
    for (int r = 0; r < n; r++)
        ids[r] = p->g->results[r].node;
    put_result_calls(p, b, value, &shardings);
    struct ap_shape shape = tuple_of(p, b->nodes, ids, n);
    ap_buf_puts(p->out, "  ROOT");
    put_head(p, "ap.results", &shape, "tuple");
    for (int r = 0; r < n; r++)
        ap_buf_printf(p->out, "%s%s", r ? ", " : "", value[r]);
    ap_buf_putc(p->out, ')');
    if (shardings.len)
        ap_buf_printf(p->out, ", sharding={%s}", shardings.data);
    ap_buf_putc(p->out, '\n');
    ap_buf_free(&shardings);
}

static void put_entry(struct printer *p)
{
    struct block b = make_block(p, p->g->nodes, p->g->n_nodes);
    if (p->annotated)
        list_annotations(p);
    ap_buf_printf(p->out, "ENTRY %s {\n", p->comp_name[p->n_reducers + p->g->n_comps]);
    for (int i = 0; i < b.n_nodes; i++) {
        put_instr(p, &b, i);
        if (p->annotated && p->wanted[i])
            annotate_value(p, &b, i);
        else
            ap_buf_putc(p->out, '\n');
        if (p->annotated)
            put_conversions(p, &b, i);
    }
    put_results(p, &b);
    ap_buf_puts(p->out, "}\n");
}

static void put_header(struct printer *p)
{
    const struct ap_mesh *mesh = &p->plan->mesh;
    const char *name = p->g->name && *p->g->name ? p->g->name : "step", *sep = " ";
    ap_buf_printf(p->out, "HloModule %s", hlo_names(p->arena, &name, 1)[0]);
    ap_buf_puts(p->out, ", input_output_alias={");
    for (int r = 0; r < p->g->n_results; r++) {
        int alias = p->g->results[r].alias;
        if (alias < 0)
            continue;
        ap_buf_printf(p->out, "%s{%d}: (%d, {}, may-alias)", sep, r,
                      p->g->nodes[alias].param);
        sep = ", ";
    }
    ap_buf_puts(p->out, " }");
    if (p->annotated)
        ap_buf_printf(p->out, ", num_partitions=%lld", (long long)ap_mesh_devices(mesh));
    if (p->annotated && p->dialect == HLO_SHARDY) {
        ap_buf_puts(p->out, ", frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<[");
        for (int a = 0; a < mesh->n_axes; a++)
            ap_buf_printf(p->out, "%s\"%s\"=%lld", a ? ", " : "", mesh->name[a],
                          (long long)mesh->size[a]);
        ap_buf_puts(p->out, "]>}}");
    }
    ap_buf_puts(p->out, "\n\n");
}

/* ---- what cannot be said ---- */

static int check_nodes(const struct ap_node *nodes, int n, struct ap_err *err)
{
    for (int i = 0; i < n; i++) {
        if (nodes[i].op == AP_OP_CUSTOM_CALL)
            return ap_err_set(err,
                              "%s: a call of '%s' cannot be written as HLO: its "
                              "layouts and effects are not part of the graph",
                              nodes[i].name, nodes[i].attrs->target);
        if (nodes[i].attrs->literal.elided)
            return ap_err_set(err,
                              "%s: the value of this constant was left out of the text "
                              "that was imported",
                              nodes[i].name);
    }
    return 0;
}

static int check_graph(const struct ap_graph *g, struct ap_err *err)
{
    if (check_nodes(g->nodes, g->n_nodes, err))
        return -1;
    for (int c = 0; c < g->n_comps; c++)
        if (check_nodes(g->comps[c].nodes, g->comps[c].n_nodes, err))
            return -1;
    return 0;
}

int hlo_print(struct ap_arena *arena, const struct ap_plan *plan,
              const struct ap_conversions *conv, enum hlo_dialect dialect,
              struct ap_buf *out, struct hlo_lost *lost, struct ap_err *err)
{
    struct printer p = {.arena = arena,
                        .g = plan->graph,
                        .plan = plan,
                        .conv = conv,
                        .dialect = dialect,
                        .annotated = ap_mesh_devices(&plan->mesh) > 1,
                        .out = out,
                        .lost = lost};
    *lost = (struct hlo_lost){0};
    if (check_graph(p.g, err))
        return -1;
    list_comps(&p);
    put_header(&p);
    put_reducers(&p);
    put_comps(&p);
    put_entry(&p);
    return 0;
}

void hlo_warn_lost(const struct ap_tool *tool, const char *form,
                   const struct hlo_lost *lost)
{
    if ((lost->partial || lost->strided || lost->moved) && !tool->quiet)
        ap_warn("%s: left to the compiler: %d partial values, %d split at a stride or "
                "unevenly; split in one place instead: %d parameters and results",
                form, lost->partial, lost->strided, lost->moved);
}
