/*
 * Problem: why an operator is split as it is, and why one plan is more expensive than
 * another. Idea: for one operator, price the plan again with each legal choice of its
 * group; for two plans, take the difference group by group and conversion by conversion,
 * and sum it up by kinds of names. Cost: `why` prices the plan once a choice, MAX_TRIED
 * at most (beyond it one mesh axis changes at a time); `diff` sorts the groups.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "price.h"

#define MAX_TRIED 256

/* ---- alternatives ---- */

struct option {
    struct ap_choice_vec choice;
    struct ap_price price;
    int order;
};

int price_find_node(const struct ap_graph *g, const char *name)
{
    char *end;
    for (int i = 0; i < g->n_nodes; i++)
        if (strcmp(g->nodes[i].name, name) == 0)
            return i;
    long id = strtol(name, &end, 10);
    return *name && !*end && id >= 0 && id < g->n_nodes ? (int)id : -1;
}

static int by_price(const void *a, const void *b)
{
    const struct option *x = a, *y = b;
    if (x->price.step_sec != y->price.step_sec)
        return x->price.step_sec < y->price.step_sec ? -1 : 1;
    return x->order - y->order;
}

/* Prices the plan with another choice for the group; false where it is not legal. */
static bool price_choice(const struct cost_input *in, struct ap_plan *plan, int group,
                         struct option *o)
{
    struct ap_choice_vec own = plan->choice[group];
    struct ap_arena scratch = {0};
    struct ap_conversions conv;
    struct ap_err err = {""};
    bool ok = false;

    plan->choice[group] = o->choice;
    if (ap_choice_ok(&plan->nests->nest[group], &plan->mesh, &o->choice) &&
        ap_plan_check_choices(plan, &in->cost, &err) == 0 &&
        ap_plan_conversions(&scratch, plan, &in->cost, &conv, &err) == 0) {
        o->price = in->price ? in->price(in->price_context, plan, &conv)
                             : ap_plan_price(plan, &in->cost, &conv);
        ok = true;
    }
    plan->choice[group] = own;
    ap_arena_free(&scratch);
    return ok;
}

/* The i-th combination of factors: all axes freely, or one axis beside the plan's. */
static struct ap_choice_vec nth_choice(const struct ap_plan *plan, int group, bool freely,
                                       int64_t i)
{
    const struct ap_nest *nest = &plan->nests->nest[group];
    int64_t n = nest->n_factors + nest->n_linear + 1;
    struct ap_choice_vec c = plan->choice[group];

    if (!freely) {
        c.axis[i / n] = (int16_t)(i % n - 1);
        return c;
    }
    for (int a = plan->mesh.n_axes - 1; a >= 0; a--, i /= n)
        c.axis[a] = (int16_t)(i % n - 1);
    return c;
}

static int find_options(const struct cost_input *in, struct ap_plan *plan, int group,
                        bool *freely, struct option *list)
{
    const struct ap_nest *nest = &plan->nests->nest[group];
    int64_t each = nest->n_factors + nest->n_linear + 1, all = 1;
    int n = 0;

    for (int a = 0; a < plan->mesh.n_axes; a++)
        all = ap_mul64(all, each);
    *freely = all <= MAX_TRIED;
    if (!*freely)
        all = each * plan->mesh.n_axes;
    for (int64_t i = 0; i < all && n < MAX_TRIED; i++) {
        struct option o = {.choice = nth_choice(plan, group, *freely, i), .order = n};
        size_t bytes = sizeof(o.choice.axis[0]) * (size_t)plan->mesh.n_axes;
        bool own = memcmp(o.choice.axis, plan->choice[group].axis, bytes) == 0;
        bool moved = plan->mesh.microbatch && /* between microbatches: not a choice */
                     o.choice.axis[0] != plan->choice[group].axis[0];
        if (!own && !moved && price_choice(in, plan, group, &o))
            list[n++] = o;
    }
    return n;
}

static void put_choice(const struct ap_plan *plan, int group,
                       const struct ap_choice_vec *choice, int node, struct ap_buf *out)
{
    const struct ap_nest *nest = &plan->nests->nest[group];
    struct ap_layout l = ap_nest_value_layout(nest, plan->graph, &plan->mesh, choice,
                                              ap_nest_member(nest, node));

    ap_layout_print(&plan->mesh, &l, out);
    ap_buf_puts(out, nest->n_ins ? " <-" : "");
    for (int i = 0; i < nest->n_ins; i++) {
        ap_buf_putc(out, ' ');
        l = ap_nest_in_layout(nest, plan->graph, &plan->mesh, choice, i);
        ap_layout_print(&plan->mesh, &l, out);
    }
    ap_buf_putc(out, '\n');
}

int price_why(struct ap_arena *arena, const struct cost_input *in, const struct priced *p,
              const char *name, struct ap_buf *out, struct ap_err *err)
{
    const struct ap_graph *g = &in->graph;
    int node = price_find_node(g, name);
    if (node < 0)
        return ap_err_set(err, "the graph has no node %s", name);
    int group = g->nodes[node].group;
    struct ap_plan plan = p->plan;
    struct option *list = AP_NEW_N(arena, MAX_TRIED, struct option);
    bool freely;
    int n = find_options(in, &plan, group, &freely, list);

    qsort(list, (size_t)n, sizeof(*list), by_price);
    ap_buf_printf(out, "node %d %s (%s), %s, in group %d of %d operators\n", node,
                  g->nodes[node].name, ap_ops[g->nodes[node].op].name,
                  ap_phase_names[g->nodes[node].phase], group,
                  in->nests.nest[group].n_members);
    ap_buf_printf(out, "choices of its group, everything else as in the plan%s\n",
                  freely ? "" : ", one mesh axis at a time");
    ap_buf_printf(out, "  %14s%14s%14s  layouts: own <- operands\n", "step", "compute",
                  "communication");
    ap_buf_printf(out, "  %14s%14s%14s  ", "the plan", "", "");
    put_choice(&plan, group, &plan.choice[group], node, out);
    for (int i = 0; i < n && i < PRICE_ROWS; i++) {
        ap_buf_puts(out, "  ");
        price_put_change(out, in, list[i].price.step_sec - p->price.step_sec);
        price_put_change(out, in, list[i].price.compute_sec - p->price.compute_sec);
        price_put_change(out, in, list[i].price.comm_sec - p->price.comm_sec);
        ap_buf_puts(out, "  ");
        put_choice(&plan, group, &list[i].choice, node, out);
    }
    if (n > PRICE_ROWS)
        ap_buf_printf(out, "  and %d more, more expensive than these\n", n - PRICE_ROWS);
    if (n == 0)
        ap_buf_puts(out, "  no other choice is legal\n");
    price_fit_columns(out);
    return 0;
}

/* ---- two plans ---- */

struct part {
    char kind[PRICE_KIND];
    double compute_sec, comm_sec; /* of the plan, less the other's */
};

static int by_kind(const void *a, const void *b)
{
    return strcmp(((const struct part *)a)->kind, ((const struct part *)b)->kind);
}

static int by_size(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    double dx = fabs(x->compute_sec + x->comm_sec);
    double dy = fabs(y->compute_sec + y->comm_sec);
    if (dx != dy)
        return dx > dy ? -1 : 1;
    return strcmp(x->kind, y->kind);
}

/* Adds a plan's groups and conversions to the list, times sign. */
static int add_parts(const struct cost_input *in, const struct priced *p, double sign,
                     struct part *list)
{
    int n = 0;
    for (int i = 0; i < in->nests.n; i++) {
        const struct ap_nest *nest = &in->nests.nest[i];
        int node = nest->n_outs ? nest->outs[0] : nest->members[0];
        price_kind(price_node_name(&in->graph.nodes[node]), list[n].kind);
        list[n++].compute_sec =
            sign * ap_plan_group_sec(nest, &in->graph, &in->cost, &p->plan.choice[i]);
    }
    for (int i = 0; i < p->conv.n; i++) {
        const struct ap_conversion *c = &p->conv.conv[i];
        price_kind(price_node_name(&in->graph.nodes[c->node]), list[n].kind);
        list[n++].comm_sec = sign * c->path.sec;
    }
    return n;
}

/* Sorts parts and joins those of one kind; returns how many are left. */
static int join_parts(struct part *list, int n)
{
    int to = 0;
    qsort(list, (size_t)n, sizeof(*list), by_kind);
    for (int i = 0; i < n; i++) {
        if (to > 0 && strcmp(list[to - 1].kind, list[i].kind) == 0) {
            list[to - 1].compute_sec += list[i].compute_sec;
            list[to - 1].comm_sec += list[i].comm_sec;
        } else {
            list[to++] = list[i];
        }
    }
    qsort(list, (size_t)to, sizeof(*list), by_size);
    return to;
}

static int check_alike(const struct cost_input *a, const struct cost_input *b,
                       struct ap_err *err)
{
    const struct ap_graph *g = &a->graph, *h = &b->graph;

    if (a->cost.variant != b->cost.variant)
        return ap_err_set(err, "cost models differ: %s and %s",
                          ap_cost_variant_names[a->cost.variant],
                          ap_cost_variant_names[b->cost.variant]);
    if (g->n_nodes != h->n_nodes)
        return ap_err_set(err, "the graphs differ: %d and %d nodes", g->n_nodes,
                          h->n_nodes);
    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op != h->nodes[i].op ||
            !ap_shape_equal(&g->nodes[i].shape, &h->nodes[i].shape))
            return ap_err_set(err, "the graphs differ: node %d is %s and %s", i,
                              g->nodes[i].name, h->nodes[i].name);
    return 0;
}

static void put_total(struct ap_buf *out, const struct cost_input *in,
                      const struct priced *p)
{
    double sec[3] = {p->price.step_sec, p->price.compute_sec, p->price.comm_sec};

    ap_buf_puts(out, "  ");
    for (int i = 0; i < 3; i++) {
        price_put_sec(out, in, sec[i], 14);
    }
    ap_buf_printf(out, "  %s on mesh ", p->name);
    for (int first = in->cost.mesh.microbatch ? 1 : 0, a = first;
         a < in->cost.mesh.n_axes; a++)
        ap_buf_printf(out, a > first ? "x%lld" : "%lld",
                      (long long)in->cost.mesh.size[a]);
    if (in->cost.mesh.microbatch)
        ap_buf_printf(out, " in %lld microbatches", (long long)in->cost.mesh.size[0]);
    ap_buf_puts(out, ", ");
    price_put_bytes(out, (double)p->peak_bytes, 0);
    ap_buf_puts(out, p->peak_bytes > price_limit(in) ? ", too large\n" : "\n");
}

int price_diff(struct ap_arena *arena, const struct cost_input *in,
               const struct priced *p, const struct cost_input *other_in,
               const struct priced *other, struct ap_buf *out, struct ap_err *err)
{
    if (check_alike(in, other_in, err))
        return -1;
    struct part *list = AP_NEW_N(
        arena, in->nests.n + p->conv.n + other_in->nests.n + other->conv.n, struct part);
    int n = add_parts(in, p, 1, list);
    n += add_parts(other_in, other, -1, list + n);
    n = join_parts(list, n);
    const double whole = p->price.step_sec;
    int shown = 0;
    while (shown < n && shown < PRICE_ROWS &&
           fabs(list[shown].compute_sec + list[shown].comm_sec) > 1e-9 * whole)
        shown++;

    ap_buf_printf(out, "  %14s%14s%14s\n", "step", "compute", "communication");
    put_total(out, in, p);
    put_total(out, other_in, other);
    ap_buf_puts(out, shown ? "\nthe first costs more (+) or less (-) for\n"
                           : "\nthe two cost the same everywhere\n");
    for (int i = 0; i < shown; i++) {
        ap_buf_puts(out, "  ");
        price_put_change(out, in, list[i].compute_sec + list[i].comm_sec);
        price_put_change(out, in, list[i].compute_sec);
        price_put_change(out, in, list[i].comm_sec);
        ap_buf_printf(out, "  %s\n", list[i].kind);
    }
    price_fit_columns(out);
    return 0;
}
