/*
 * Problem: which values PyTorch can pin to a layout. A plan has one per operator; hooks
 * see the inputs and outputs of a module. Idea: the scope of a node is its module's name.
 * A forward value that is used outside of its module is an output, and an input of the
 * modules that use it; both are pinned where the module has one of them, for then there
 * is no doubt which tensor it is. An output is passed on in the layout that its users
 * agree on, else in its own with sums made. Values that depend on no input (masks, rotary
 * tables) are not pinned. Changes of layout in the forward pass that no pin has are left
 * to DTensor, and counted. Stages begin at modules: at the outermost one that runs in
 * later stages only. Operators before it go to the stage before, unless a contraction is
 * among them. Cost: linear in the edges, times the depth of the modules.
 */
#include "torch.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/names.h"
#include "graph/blocks.h"

/* ---- scopes ---- */

/* Whether a module is the other or lies in it. */
static bool is_within(const char *scope, const char *other)
{
    size_t len = strlen(other);
    return len == 0 ||
           (strncmp(scope, other, len) == 0 && (scope[len] == '/' || scope[len] == 0));
}

/* What crosses a module's boundary: of inputs, floats and others apart. */
struct module {
    const char *scope;
    int n_in[2], in[2];      /* distinct values, as far as 2; the first */
    int user[2], operand[2]; /* its first use in the module */
    int n_out, out;
};

struct modules {
    struct ap_arena *arena;
    const struct ap_graph *g;
    const uint8_t *origin; /* [node] enum ap_origin */
    struct ap_names names;
    struct module *module;
    int n, cap;
};

static struct module *module_of(struct modules *m, const char *scope)
{
    size_t len = strlen(scope);
    int at = ap_names_get(&m->names, scope, len);

    if (at < 0) {
        at = m->n;
        AP_ROOM_IN(m->arena, m->module, m->n, m->cap);
        m->module[m->n++] = (struct module){.scope = scope};
        ap_names_put(&m->names, scope, len, at);
    }
    return &m->module[at];
}

static bool is_value(const struct modules *m, int node)
{
    const struct ap_node *n = &m->g->nodes[node];
    return n->phase == AP_FORWARD && m->origin[node] == AP_FROM_INPUTS &&
           n->shape.dtype != AP_TUPLE;
}

static void add_edge(struct modules *m, int from, int to, int operand)
{
    const struct ap_node *value = &m->g->nodes[from], *user = &m->g->nodes[to];

    if (!is_within(user->scope, value->scope)) {
        struct module *out = module_of(m, value->scope);
        out->n_out += out->n_out == 0 || out->out != from;
        out->out = out->n_out == 1 ? from : out->out;
    }
    if (!is_within(value->scope, user->scope)) {
        struct module *in = module_of(m, user->scope);
        int k = !ap_dtype_is_float(value->shape.dtype);
        if (in->n_in[k] == 0) {
            in->in[k] = from;
            in->user[k] = to;
            in->operand[k] = operand;
        }
        in->n_in[k] += in->n_in[k] == 0 || in->in[k] != from;
    }
}

static void find_modules(struct modules *m)
{
    const struct ap_graph *g = m->g;

    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        for (int k = 0; k < node->n_in && node->phase == AP_FORWARD; k++)
            if (is_value(m, node->in[k]))
                add_edge(m, node->in[k], i, k);
    }
    for (int r = 0; r < g->n_results; r++) {
        int node = g->results[r].node;
        if (!is_value(m, node) || g->nodes[node].scope[0] == 0)
            continue;
        struct module *out = module_of(m, g->nodes[node].scope);
        out->n_out += out->n_out == 0 || out->out != node;
        out->out = out->n_out == 1 ? node : out->out;
    }
}

/* ---- pins ---- */

/* The layout of all users outside of the module, or the value's own with sums made. */
static struct ap_layout passed_on(const struct torch_part *part, const char *scope,
                                  int node, const struct ap_layout *own)
{
    const struct ap_graph *g = part->plan->graph;
    struct ap_layout first = *own;
    bool found = false;

    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        const struct ap_node *user = &g->nodes[g->users[u]];
        for (int k = 0; k < user->n_in; k++) {
            if (user->in[k] != node || user->phase != AP_FORWARD ||
                is_within(user->scope, scope))
                continue;
            struct ap_layout l =
                torch_operand_layout(part->plan, part->conv, g->users[u], k);
            if (found && !ap_layout_equal(&l, &first))
                return ap_layout_whole(own);
            first = l;
            found = true;
        }
    }
    return found ? first : ap_layout_whole(own);
}

static void add_pin(struct torch_part *part, struct torch_pin pin, int *cap)
{
    AP_ROOM_IN(part->arena, part->pin, part->n_pins, *cap);
    part->pin[part->n_pins++] = pin;
}

static bool has_convolution(const struct ap_graph *g, int node)
{
    const struct ap_node *n = &g->nodes[node];
    for (int k = 0; k < n->n_in; k++)
        if (g->nodes[n->in[k]].op == AP_OP_CONVOLUTION)
            return true;
    return n->op == AP_OP_CONVOLUTION;
}

static void pin_module(struct torch_part *part, const struct module *m, int *cap)
{
    const struct ap_graph *g = part->plan->graph;
    int k = m->n_in[0] == 0;

    if (m->scope[0] == 0)
        return;
    if (m->n_in[k] == 1) {
        struct torch_pin pin = {.scope = m->scope, .node = m->in[k]};
        pin.computed = pin.wanted =
            torch_operand_layout(part->plan, part->conv, m->user[k], m->operand[k]);
        torch_express(part, pin.node,
                      has_convolution(g, m->user[k]) ? TORCH_CONVOLVED : 0, &pin.wanted);
        pin.computed = pin.wanted;
        add_pin(part, pin, cap);
    }
    if (m->n_out == 1 && g->nodes[m->out].op != AP_OP_PARAMETER) { /* of this stage */
        struct torch_pin pin = {.scope = m->scope, .output = true, .node = m->out};
        unsigned where = has_convolution(g, m->out) ? TORCH_CONVOLVED : 0;
        pin.computed = ap_plan_node_layout(part->plan, m->out);
        pin.wanted = passed_on(part, m->scope, m->out, &pin.computed);
        const bool passed = ap_layout_equal(&pin.wanted, &pin.computed);
        torch_express(part, pin.node, where, &pin.wanted);
        if (passed)
            pin.computed = pin.wanted;
        else
            torch_express(part, pin.node, where, &pin.computed);
        add_pin(part, pin, cap);
    }
}

static int compare_pins(const void *a, const void *b)
{
    const struct torch_pin *x = a, *y = b;
    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    if (x->output != y->output)
        return x->output ? -1 : 1;
    return strcmp(x->scope, y->scope);
}

bool torch_is_pinned(const struct torch_part *part, int node, const struct ap_layout *to)
{
    int lo = 0, hi = part->n_pins;

    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (part->pin[mid].node < node)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < part->n_pins && part->pin[lo].node == node; lo++)
        if (ap_layout_equal(&part->pin[lo].wanted, to))
            return true;
    return false;
}

void torch_find_pins(struct torch_part *part)
{
    const struct ap_graph *g = part->plan->graph;
    struct modules m = {.arena = part->arena, .g = g};
    int cap = 0;

    m.origin = ap_blocks_origins(part->arena, g);
    find_modules(&m);
    for (int i = 0; i < m.n; i++)
        pin_module(part, &m.module[i], &cap);
    ap_names_free(&m.names);
    if (part->n_pins)
        qsort(part->pin, (size_t)part->n_pins, sizeof *part->pin, compare_pins);
}

/* ---- stages ---- */

struct starts {
    const struct ap_graph *g;
    const uint8_t *origin; /* [node] enum ap_origin */
    const int *stage_of;
    struct ap_names first; /* by scope: the first stage that a node of it runs in */
};

static bool counts(const struct starts *s, int node)
{
    return s->g->nodes[node].phase == AP_FORWARD && s->origin[node] == AP_FROM_INPUTS &&
           s->g->nodes[node].op != AP_OP_PARAMETER && s->stage_of[node] >= 0;
}

/* Length of the scope's next outer module; 0: the whole. */
static size_t outer(const char *scope, size_t len)
{
    while (len > 0 && scope[--len] != '/')
        ;
    return len;
}

static void find_first(struct starts *s)
{
    for (int i = 0; i < s->g->n_nodes; i++) {
        const char *scope = s->g->nodes[i].scope;
        for (size_t len = strlen(scope); len && counts(s, i); len = outer(scope, len)) {
            int known = ap_names_get(&s->first, scope, len);
            if (known < 0)
                ap_names_put(&s->first, scope, len, s->stage_of[i]);
            else if (s->stage_of[i] < known)
                ap_names_set(&s->first, scope, len, s->stage_of[i]);
        }
    }
}

/* The outermost module of the node that runs in no stage before; 0: there is none. */
static size_t outermost(const struct starts *s, int node)
{
    const char *scope = s->g->nodes[node].scope;
    size_t best = 0;

    for (size_t len = strlen(scope); len; len = outer(scope, len))
        if (ap_names_get(&s->first, scope, len) >= s->stage_of[node])
            best = len;
    return best;
}

/* A scope with dots, as PyTorch names the module. */
static const char *module_name(struct ap_arena *arena, const char *scope)
{
    char *name = ap_arena_strndup(arena, scope, strlen(scope));

    for (char *s = name; *s; s++)
        *s = *s == '/' ? '.' : *s;
    return name;
}

/* What comes in a stage before its first module. */
struct before {
    int n, node; /* operators; the first, or the first contraction */
    bool heavy;
};

static void add_before(const struct ap_graph *g, int node, struct before *b)
{
    bool heavy = ap_ops[g->nodes[node].op].class == AP_CLASS_HEAVY;

    if (b->n++ == 0 || (heavy && !b->heavy))
        b->node = node;
    b->heavy |= heavy;
}

int torch_stage_starts(struct ap_arena *arena, const struct ap_graph *g,
                       const int *stage_of, int n_stages, struct ap_notes *notes,
                       const char ***starts, struct ap_err *err)
{
    const char **start = AP_NEW_N(arena, n_stages + 1, const char *);
    struct before *before = AP_NEW_N(arena, n_stages + 1, struct before);
    struct starts s = {.g = g, .stage_of = stage_of};

    s.origin = ap_blocks_origins(arena, g);
    find_first(&s);
    start[0] = "";
    for (int i = 0; i < g->n_nodes; i++) {
        int stage = stage_of[i];
        if (!counts(&s, i) || start[stage])
            continue;
        size_t len = outermost(&s, i);
        if (len)
            start[stage] = ap_arena_strndup(arena, g->nodes[i].scope, len);
        else
            add_before(g, i, &before[stage]);
    }
    ap_names_free(&s.first);
    *starts = start;
    for (int k = 1; k < n_stages; k++) {
        const struct before *b = &before[k];
        if (b->n && (b->heavy || !start[k]))
            return ap_err_set(err,
                              "stage %d begins inside module %s, at node %d (%s), and "
                              "PyTorch's stages begin with a module: ap-coarsen --cut "
                              "modules makes blocks that do",
                              k, module_name(arena, g->nodes[b->node].scope), b->node,
                              g->nodes[b->node].name);
        if (!start[k])
            return ap_err_set(err, "stage %d has no operator of the forward pass", k);
        if (b->n)
            ap_note(notes,
                    "stage %d begins between modules: %d operators, no contraction "
                    "among them, go to the stage before, and it begins with %s",
                    k, b->n, module_name(arena, start[k]));
    }
    return 0;
}
