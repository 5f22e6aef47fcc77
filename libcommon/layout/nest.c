/*
 * Nests from factor rules.
 *
 * Every dimension of every member value and operand of a group is cut into atoms (one,
 * unless the rule cuts it); atoms that the rules link are joined by union-find; each
 * class of atoms becomes one factor, or several where reshapes elsewhere in the graph
 * made boundaries (nest_refine.c). Operands that are read with equal accesses share a
 * slot. Cost: linear in the members and their dimensions, but for the inverse Ackermann
 * function.
 */
#include "layout/nest_impl.h"

#include <assert.h>

#include "base/array.h"
#include "base/csr.h"
#include "base/union_find.h"

struct atom {
    int node, dim; /* one of the dimensions that it stands for */
    int64_t size;
    enum ap_factor_kind kind;
    enum ap_red red;
    bool coarse;                 /* one factor, whatever the boundaries */
    int first_factor, n_factors; /* of representatives; n_factors -1 = not numbered yet */
};

/* A member's value, or operand k of a member from outside the group. */
struct port {
    int node;      /* whose value it is */
    int member, k; /* k: AP_OUT for the value */
    int first;     /* its atoms: starts[first + d] .. starts[first + d + 1] */
};

struct partial {
    int port, atom;
};

/* The graph's part of the work is done once; the rest is per group. */
struct builder {
    struct ap_arena *arena;   /* of the nests */
    struct ap_arena *lists;   /* of operands and outs, which passes over all groups read:
                                 near those of the group before */
    struct ap_arena *scratch; /* rewound after each group */
    const struct ap_graph *g;
    const struct ap_refine *refine;
    struct ap_rule rule;
    int *pos;       /* of each node among its group's members */
    int *last_slot; /* of each node: its latest slot in this group, -1 for none */
    bool *is_result;
    const int8_t *experts;        /* [node] */
    const struct ap_nests *comps; /* of the graph's computations */
    /* of the group */
    bool refined; /* use the boundaries */
    struct ap_nest *nest;
    int n_atoms, n_ports, n_starts, n_partials, cap_partials;
    struct atom *atoms;
    int *class; /* of atoms: union-find; what a class is stands at its root */
    struct port *ports;
    int *starts;
    struct partial *partials;
    int **port_of; /* [member][k]: port of an operand */
};

static struct atom *root_of(const struct builder *b, int atom)
{
    return &b->atoms[ap_sets_root(b->class, atom)];
}

static void atom_mark(struct atom *a, enum ap_factor_kind kind, enum ap_red red)
{
    if (kind > a->kind)
        a->kind = kind;
    if (a->red == AP_RED_NONE)
        a->red = red;
}

static void join(struct builder *b, int i, int j)
{
    struct atom *a = root_of(b, i), *c = root_of(b, j);

    if (!ap_sets_join(b->class, i, j))
        return;
    assert(a->size == c->size);
    struct atom *root = root_of(b, i), *other = root == a ? c : a;
    root->coarse |= other->coarse;
    atom_mark(root, other->kind, other->red);
}

/* ---- atoms ---- */

static const struct ap_rule_cut *cut_of(const struct ap_rule *rule, int port, int dim)
{
    for (int i = 0; i < rule->n_cuts; i++) {
        if (rule->cuts[i].port == port && rule->cuts[i].dim == dim)
            return &rule->cuts[i];
    }
    return NULL;
}

static void new_atom(struct builder *b, int node, int dim, int64_t size, bool coarse)
{
    b->atoms[b->n_atoms++] = (struct atom){.node = node,
                                           .dim = dim,
                                           .size = size,
                                           .coarse = coarse,
                                           .n_factors = b->rule.opaque ? 0 : -1};
}

static int new_port(struct builder *b, int node, int member, int k)
{
    const struct ap_shape *shape = ap_value_shape(&b->g->nodes[node]);

    b->ports[b->n_ports] = (struct port){node, member, k, b->n_starts};
    for (int d = 0; d < shape->rank; d++) {
        const struct ap_rule_cut *cut = cut_of(&b->rule, k, d);
        b->starts[b->n_starts++] = b->n_atoms;
        if (!cut)
            new_atom(b, node, d, shape->dims[d], false);
        for (int i = 0; cut && i < cut->n; i++)
            new_atom(b, node, d, b->rule.sizes[cut->first + i], true);
    }
    b->starts[b->n_starts++] = b->n_atoms;
    return b->n_ports++;
}

static int atom_at(const struct builder *b, int member, struct ap_rule_at at)
{
    int port = at.port == AP_OUT ? member : b->port_of[member][at.port];
    int piece = at.piece == AP_UNCUT ? 0 : at.piece;
    return b->starts[b->ports[port].first + at.dim] + piece;
}

static void add_partial(struct builder *b, int port, int atom)
{
    AP_ROOM_IN(b->scratch, b->partials, b->n_partials, b->cap_partials);
    b->partials[b->n_partials++] = (struct partial){port, atom};
}

/* Joins and marks atoms as member m's rule says. */
static void apply_rule(struct builder *b, int m)
{
    const struct ap_rule *rule = &b->rule;

    for (int i = 0; i < rule->n_links; i++)
        join(b, atom_at(b, m, rule->links[i].a), atom_at(b, m, rule->links[i].b));
    for (int i = 0; i < rule->n_marks; i++) {
        const struct ap_rule_mark *mark = &rule->marks[i];
        atom_mark(root_of(b, atom_at(b, m, mark->at)), mark->kind, mark->red);
    }
    for (int i = 0; i < rule->n_partials; i++) {
        int port = rule->partials[i].port;
        add_partial(b, port == AP_OUT ? m : b->port_of[m][port],
                    atom_at(b, m, rule->partials[i].over));
    }
}

/* Room for all atoms: whole dimensions, and for cut ones what a reshape can make. */
static void make_room(struct builder *b)
{
    const struct ap_nest *nest = b->nest;
    int n_dims = 0, n_ports = nest->n_members;

    for (int m = 0; m < nest->n_members; m++) {
        const struct ap_node *n = &b->g->nodes[nest->members[m]];
        n_dims += ap_value_shape(n)->rank;
        for (int k = 0; k < n->n_in; k++) {
            n_dims += ap_value_shape(&b->g->nodes[n->in[k]])->rank;
            n_ports++;
        }
    }
    b->n_atoms = b->n_ports = b->n_starts = b->n_partials = b->cap_partials = 0;
    b->atoms = AP_NEW_N(b->scratch, n_dims + 2 * AP_MAX_PIECES, struct atom);
    b->class = ap_sets_new(b->scratch, n_dims + 2 * AP_MAX_PIECES);
    b->ports = AP_NEW_N(b->scratch, n_ports, struct port);
    b->starts = AP_NEW_N(b->scratch, n_dims + n_ports, int);
    b->port_of = AP_NEW_N(b->scratch, nest->n_members, int *);
}

/* Ports 0 .. n_members - 1 are the members' values, the others operands from outside. */
static int make_atoms(struct builder *b, struct ap_err *err)
{
    const struct ap_nest *nest = b->nest;
    const struct ap_refine *refine = b->refined ? b->refine : NULL;

    make_room(b);
    for (int m = 0; m < nest->n_members; m++) {
        int id = nest->members[m];
        if (ap_rule_run(&b->rule, b->g, id, refine, err))
            return -1;
        new_port(b, id, m, AP_OUT);
    }
    for (int m = 0; m < nest->n_members; m++) {
        const struct ap_node *n = &b->g->nodes[nest->members[m]];
        if (nest->n_members > 1 &&
            ap_rule_run(&b->rule, b->g, nest->members[m], refine, err))
            return -1;
        b->port_of[m] = AP_NEW_N(b->scratch, n->n_in + 1, int);
        for (int k = 0; k < n->n_in; k++) {
            bool inside = b->g->nodes[n->in[k]].group == nest->group;
            b->port_of[m][k] = inside ? b->pos[n->in[k]] : new_port(b, n->in[k], m, k);
        }
        apply_rule(b, m);
    }
    return 0;
}

/* ---- factors ---- */

static void add_factor(struct builder *b, const struct atom *a, int64_t size,
                       enum ap_stripes stripes)
{
    struct ap_nest *nest = b->nest;
    if (nest->n_factors < AP_MAX_FACTORS)
        nest->factors[nest->n_factors] = (struct ap_factor){
            size, size == 0 ? AP_FACTOR_WHOLE : a->kind, a->red, (uint8_t)stripes};
    nest->n_factors++;
}

/* Numbers the factors of a class when its first atom turns up. */
static void number_factors(struct builder *b, struct atom *a)
{
    static const struct ap_bounds none = {0};
    const struct ap_bounds *bounds = &none;
    bool coarse = a->coarse || a->kind == AP_FACTOR_WHOLE || a->kind == AP_FACTOR_INDEXED;
    int64_t size = a->size;

    a->first_factor = b->nest->n_factors;
    a->n_factors = 0;
    if (a->size == 1)
        return;
    if (b->refined && !coarse)
        bounds = ap_refine_bounds(b->refine, a->node, a->dim);
    for (int i = 0; i < bounds->n; i++) {
        add_factor(b, a, size / bounds->minor[i],
                   size == bounds->stripe               ? AP_STRIPES_INSIDE
                   : bounds->minor[i] == bounds->stripe ? AP_STRIPES_WHICH
                                                        : AP_STRIPES_NONE);
        size = bounds->minor[i];
    }
    add_factor(b, a, size, size == bounds->stripe ? AP_STRIPES_INSIDE : AP_STRIPES_NONE);
    a->n_factors = bounds->n + 1;
}

/* -1 when there are too many. */
static int make_factors(struct builder *b)
{
    b->nest->n_factors = 0;
    for (int p = 0; p < b->n_ports; p++) {
        int first = b->ports[p].first;
        int rank = ap_value_shape(&b->g->nodes[b->ports[p].node])->rank;
        for (int i = b->starts[first]; i < b->starts[first + rank]; i++) {
            struct atom *a = root_of(b, i);
            if (a->n_factors < 0)
                number_factors(b, a);
        }
    }
    return b->nest->n_factors > AP_MAX_FACTORS ? -1 : 0;
}

static int dim_factors(struct builder *b, int first, int d, int *list)
{
    int n = 0;
    for (int i = b->starts[first + d]; i < b->starts[first + d + 1]; i++) {
        const struct atom *a = root_of(b, i);
        for (int f = 0; f < a->n_factors; f++)
            list[n++] = a->first_factor + f;
    }
    return n;
}

static bool same_access(const struct ap_access *a, const struct ap_access *b)
{
    if (a->partial != b->partial || a->rank != b->rank)
        return false;
    for (int d = 0; d < a->rank; d++) {
        int n = a->dims[d].n;
        if (n != b->dims[d].n)
            return false;
        for (int i = 0; i < n; i++) {
            if (a->dims[d].factor[i] != b->dims[d].factor[i])
                return false;
        }
    }
    return true;
}

/* Of port p; with the arrays of `like`, the access of another one (NULL: none), if they
 * are the same. */
static struct ap_access make_access(struct builder *b, int p,
                                    const struct ap_access *like)
{
    int rank = ap_value_shape(&b->g->nodes[b->ports[p].node])->rank;
    struct ap_dim_factors *dims = AP_NEW_N(b->scratch, rank, struct ap_dim_factors);
    const struct ap_access access = {rank, dims, 0};
    int list[3 * AP_MAX_RANK + 2 * AP_MAX_PIECES];

    for (int d = 0; d < rank; d++) {
        dims[d].n = dim_factors(b, b->ports[p].first, d, list);
        dims[d].factor = ap_arena_dup(b->scratch, list, (size_t)dims[d].n * sizeof(int));
    }
    if (like && same_access(&access, like))
        return *like;
    struct ap_dim_factors *kept =
        ap_arena_dup(b->arena, dims, (size_t)rank * sizeof *dims);
    for (int d = 0; d < rank; d++)
        kept[d].factor =
            ap_arena_dup(b->arena, dims[d].factor, (size_t)dims[d].n * sizeof(int));
    return (struct ap_access){rank, kept, 0};
}

/* ---- slots and results ---- */

/* The slot that reads `node` with this access; next[s] = an older slot of the same node.
 */
static int find_slot(struct builder *b, int *next, int node, struct ap_access access)
{
    struct ap_nest *nest = b->nest;

    for (int s = b->last_slot[node]; s >= 0; s = next[s]) {
        if (same_access(&nest->ins[s].access, &access))
            return s;
    }
    nest->ins[nest->n_ins] = (struct ap_nest_in){node, access};
    next[nest->n_ins] = b->last_slot[node];
    b->last_slot[node] = nest->n_ins;
    return nest->n_ins++;
}

static void make_slots(struct builder *b, const struct ap_access *access)
{
    struct ap_nest *nest = b->nest;
    int n_outside = b->n_ports - nest->n_members;
    int *next = AP_NEW_N(b->scratch, n_outside + 1, int);
    int **in_slot = AP_NEW_N(b->arena, nest->n_members, int *), n_slots = 0;

    nest->ins = AP_NEW_N(b->scratch, n_outside, struct ap_nest_in);
    for (int m = 0; m < nest->n_members; m++)
        n_slots += b->g->nodes[nest->members[m]].n_in;
    int *slots = AP_NEW_N(b->arena, n_slots + 1, int); /* of all members */
    for (int m = 0; m < nest->n_members; m++) {
        int n_in = b->g->nodes[nest->members[m]].n_in;
        in_slot[m] = slots;
        slots += n_in;
        for (int k = 0; k < n_in; k++) {
            int p = b->port_of[m][k];
            bool inside = p < nest->n_members;
            in_slot[m][k] = inside ? -1 : find_slot(b, next, b->ports[p].node, access[p]);
        }
    }
    nest->ins =
        ap_arena_dup(b->lists, nest->ins, (size_t)nest->n_ins * sizeof *nest->ins);
    nest->in_slot = (const int *const *)in_slot;
    nest->maskable = UINT64_MAX;
    if (b->g->nodes[nest->members[0]].op == AP_OP_SCATTER)
        nest->maskable = UINT64_C(1) << in_slot[0][2];
    for (int s = 0; s < nest->n_ins; s++)
        b->last_slot[nest->ins[s].node] = -1;
}

static bool used_outside(const struct builder *b, int id)
{
    for (int u = b->g->user_start[id]; u < b->g->user_start[id + 1]; u++) {
        if (b->g->nodes[b->g->users[u]].group != b->g->nodes[id].group)
            return true;
    }
    return b->is_result[id];
}

static void make_outs(struct builder *b)
{
    struct ap_nest *nest = b->nest;
    int *outs = AP_NEW_N(b->scratch, nest->n_members, int);

    for (int m = 0; m < nest->n_members; m++) {
        int id = nest->members[m];
        enum ap_op op = b->g->nodes[id].op;
        if (used_outside(b, id))
            outs[nest->n_outs++] = id;
        nest->heavy |= ap_ops[op].class == AP_CLASS_HEAVY;
    }
    nest->precise = ap_kernel_is_precise(b->g, nest->members, nest->n_members);
    nest->kernel = ap_kernel_of_group(b->g, nest->members, nest->n_members);
    nest->experts = nest->n_members == 1 ? b->experts[nest->members[0]] : -1;
    if (nest->experts >= 0)
        nest->kernel = AP_KERNEL_GROUPED;
    nest->outs = ap_arena_dup(b->lists, outs, (size_t)nest->n_outs * sizeof *outs);
}

/* ---- attentions ---- */

/* Makes the factors whole over which a value is partial that other members read. */
static void keep_whole(struct builder *b, const struct ap_access *access)
{
    struct ap_nest *nest = b->nest;
    uint64_t read = 0;

    for (int m = 0; m < nest->n_members; m++)
        for (int k = 0; k < b->g->nodes[nest->members[m]].n_in; k++)
            if (nest->in_slot[m][k] < 0)
                read |= access[b->port_of[m][k]].partial;
    for (int f = 0; f < nest->n_factors; f++)
        if (read >> f & 1)
            nest->factors[f].kind = AP_FACTOR_WHOLE;
}

/* ---- groups ---- */

static int build_one(struct builder *b, struct ap_err *err)
{
    struct ap_nest *nest = b->nest;
    struct ap_factor factors[AP_MAX_FACTORS];

    nest->factors = factors;
    b->refined = true;
    if (make_atoms(b, err))
        return -1;
    if (make_factors(b)) { /* too many: do without boundaries */
        b->refined = false;
        if (make_atoms(b, err))
            return -1;
        const struct ap_node *n = &b->g->nodes[nest->members[0]];
        if (make_factors(b))
            return ap_err_set(err, "node %d (%s): %s needs %d factors, at most %d fit",
                              nest->members[0], n->name, ap_ops[n->op].name,
                              nest->n_factors, AP_MAX_FACTORS);
    }
    nest->factors =
        ap_arena_dup(b->arena, factors, (size_t)nest->n_factors * sizeof(*factors));

    struct ap_access *access = AP_NEW_N(b->scratch, b->n_ports, struct ap_access);
    for (int p = 0; p < b->n_ports; p++)
        access[p] = make_access(b, p, p > 0 ? &access[p - 1] : NULL);
    for (int i = 0; i < b->n_partials; i++) {
        const struct atom *a = root_of(b, b->partials[i].atom);
        for (int f = 0; f < a->n_factors; f++)
            access[b->partials[i].port].partial |= UINT64_C(1) << (a->first_factor + f);
    }
    nest->values =
        ap_arena_dup(b->arena, access, (size_t)nest->n_members * sizeof(*access));
    make_slots(b, access);
    make_outs(b);
    nest->attention =
        b->g->nodes[nest->members[0]].attrs->attention && nest->n_members > 1;
    if (nest->attention)
        keep_whole(b, access);
    const struct ap_node *lead = &b->g->nodes[nest->members[0]];
    if (lead->op == AP_OP_WHILE) {
        nest->condition = &b->comps[lead->attrs->condition];
        nest->body = &b->comps[lead->attrs->body];
    }
    ap_nest_find_linear(b->arena, b->scratch, b->g, b->pos, nest);
    ap_nest_find_ring(b->arena, b->g, nest);
    return 0;
}

/* Members of each group, ascending, as slices of one array. */
static void list_members(struct ap_arena *arena, const struct ap_graph *g, int *pos,
                         struct ap_nests *nests)
{
    int *group = AP_NEW_N(arena, g->n_nodes, int);

    for (int v = 0; v < g->n_nodes; v++) {
        group[v] = g->nodes[v].group;
        pos[v] = nests->nest[group[v]].n_members++;
    }
    struct ap_csr members = ap_csr_new(arena, g->n_groups, g->n_nodes, group, NULL);
    for (int i = 0; i < g->n_groups; i++) {
        nests->nest[i].group = i;
        nests->nest[i].members = members.item + members.start[i];
    }
}

/* ---- kernels ---- */

static int64_t kernel_of(const struct ap_graph *g, const struct ap_nest *nest)
{
    int64_t kernel = 0;

    for (int m = 0; m < nest->n_members && kernel == 0; m++)
        kernel = g->nodes[nest->members[m]].attrs->kernel;
    return kernel;
}

/* Whether only the kernel's own nodes read the value. */
static bool stays(const struct builder *b, int node, int64_t kernel)
{
    for (int u = b->g->user_start[node]; u < b->g->user_start[node + 1]; u++)
        if (b->g->nodes[b->g->users[u]].attrs->kernel != kernel)
            return false;
    return !b->is_result[node];
}

/* What a kernel reads once, and what is never in memory. reader: [node], the kernel that
 * read it last. */
static void mark_kernel(struct builder *b, struct ap_nest *nest, int64_t kernel,
                        int64_t *reader)
{
    bool *in = AP_NEW_N(b->arena, nest->n_ins + nest->n_outs, bool);

    for (int s = 0; s < nest->n_ins; s++) {
        int node = nest->ins[s].node;
        in[s] = b->g->nodes[node].attrs->kernel == kernel || reader[node] == kernel;
        reader[node] = kernel;
    }
    for (int o = 0; o < nest->n_outs; o++)
        in[nest->n_ins + o] = stays(b, nest->outs[o], kernel);
    nest->in_kernel = in;
}

static void mark_kernels(struct builder *b, struct ap_nests *nests)
{
    int64_t *reader = AP_NEW_N(b->scratch, b->g->n_nodes, int64_t);
    int64_t most = 0;

    for (int v = 0; v < b->g->n_nodes; v++)
        if (b->g->nodes[v].attrs->kernel > most)
            most = b->g->nodes[v].attrs->kernel;
    if (most == 0)
        return;
    bool *launched = AP_NEW_N(b->scratch, most + 1, bool);
    for (int i = 0; i < nests->n; i++) {
        int64_t kernel = kernel_of(b->g, &nests->nest[i]);
        if (kernel == 0)
            continue;
        mark_kernel(b, &nests->nest[i], kernel, reader);
        nests->nest[i].launched = launched[kernel];
        launched[kernel] = true;
    }
}

static int build_all(struct builder *b, struct ap_nests *nests, struct ap_err *err)
{
    const struct ap_graph *g = b->g;
    struct ap_refine refine;

    if (ap_refine_build(b->scratch, g, &b->rule, &refine, err))
        return -1;
    b->refine = &refine;
    b->pos = AP_NEW_N(b->scratch, g->n_nodes, int);
    b->last_slot = AP_NEW_N(b->scratch, g->n_nodes, int);
    b->is_result = AP_NEW_N(b->scratch, g->n_nodes, bool);
    for (int v = 0; v < g->n_nodes; v++)
        b->last_slot[v] = -1;
    for (int i = 0; i < g->n_results; i++)
        b->is_result[g->results[i].node] = true;
    b->experts = ap_kernel_experts(b->scratch, g);
    list_members(b->arena, g, b->pos, nests);
    for (int i = 0; i < nests->n; i++) {
        struct ap_mark mark = ap_arena_mark(b->scratch);
        b->nest = &nests->nest[i];
        if (build_one(b, err))
            return -1;
        ap_arena_rewind(b->scratch, mark);
    }
    mark_kernels(b, nests);
    b->refine = NULL; /* it lives here */
    return 0;
}

/* The nests of one graph, whose computations' are known. */
static int build_graph(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_nests *comps, struct ap_nests *nests,
                       struct ap_err *err)
{
    struct ap_arena scratch = {0}, lists = {0};
    struct builder b = {
        .arena = arena, .lists = &lists, .scratch = &scratch, .g = g, .comps = comps};

    *nests =
        (struct ap_nests){g, g->n_groups, AP_NEW_N(arena, g->n_groups, struct ap_nest)};
    int status = build_all(&b, nests, err);
    ap_rule_free(&b.rule);
    ap_arena_free(&scratch);
    ap_arena_join(arena, &lists);
    return status;
}

int ap_nests_build(struct ap_arena *arena, const struct ap_graph *g,
                   struct ap_nests *nests, struct ap_err *err)
{
    struct ap_nests *comps = AP_NEW_N(arena, g->n_comps, struct ap_nests);

    for (int c = 0; c < g->n_comps; c++) {
        struct ap_graph *inner = AP_NEW(arena, struct ap_graph);
        ap_graph_of_comp(arena, g, c, inner);
        ap_group(arena, inner);
        if (build_graph(arena, inner, comps, &comps[c], err))
            return -1;
    }
    return build_graph(arena, g, comps, nests, err);
}
