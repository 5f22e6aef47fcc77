/*
 * Problem: list the alternatives to the answer: the n best distinct plans at hand. Idea:
 * the pool is the answer, the named plans, and the answer with one group's choice changed
 * on one axis, for the groups that hold a dot, a convolution or a weight (of each group
 * the best change; a change without effect on the price is no alternative). The price of
 * a change is the price of the group and of the conversions of its operands and results.
 * The best plans of the pool are then priced as a whole. Cost: per change the uses of
 * those tensors; n whole prices.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "cost/convert.h"
#include "problem/shard.h"

#define MAX_USES 4096 /* of a tensor that a change may touch */

struct candidate {
    const char *from;
    double sec; /* estimated, then exact */
    struct ap_plan plan;
    int order; /* ties go to what was found first */
    int group; /* changed one, -1: a whole plan */
    struct ap_choice_vec choice;
    uint64_t hash; /* of all choices */
};

struct pool {
    struct ap_arena *arena;
    const struct shard_task *task;
    struct ap_plan plan; /* the answer; changed while a change is priced */
    int *result_of;      /* per parameter node: a result that becomes it, -1 */
    int n, cap;
    struct candidate *list;
};

static void add(struct pool *p, const char *from, double sec, int group,
                const struct ap_choice_vec *choice, const struct ap_plan *plan)
{
    AP_ROOM(p->list, p->n, p->cap);
    struct candidate *c = &p->list[p->n++];
    *c = (struct candidate){
        .from = from, .sec = sec, .order = p->n, .group = group, .plan = *plan};
    if (choice)
        c->choice = *choice;
}

/* Seconds of all conversions of one tensor under the plan; -1: it has too many uses. */
static double tensor_sec(const struct pool *p, int node)
{
    const struct ap_plan *plan = &p->plan;
    const struct ap_graph *g = plan->graph;
    struct ap_layout from = ap_plan_node_layout(plan, node), *to;
    int n = 0, n_uses = g->user_start[node + 1] - g->user_start[node], last = -1;
    double sec = 0;

    if (g->nodes[node].shape.rank == 0)
        return 0; /* few bytes */
    if (n_uses > MAX_USES)
        return -1;
    struct ap_mark mark = ap_arena_mark(p->arena);
    to = AP_NEW_N(p->arena, 4 * n_uses + g->n_results + 1, struct ap_layout);
    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        int group = g->nodes[g->users[u]].group;
        const struct ap_nest *nest = &plan->nests->nest[group];
        if (group == g->nodes[node].group || group == last)
            continue;
        last = group;
        for (int i = 0; i < nest->n_ins; i++) {
            if (nest->ins[i].node != node || n >= 4 * n_uses)
                continue;
            struct ap_layout l =
                ap_nest_in_layout(nest, g, &plan->mesh, &plan->choice[group], i);
            bool seen = ap_layout_equal(&l, &from);
            for (int k = 0; k < n && !seen; k++)
                seen = ap_layout_equal(&l, &to[k]);
            if (seen)
                continue;
            to[n++] = l;
            sec += ap_convert_sec(p->task->cost, &g->nodes[node].shape, &from, &l);
        }
    }
    ap_arena_rewind(p->arena, mark);
    return sec;
}

/* Seconds of the group and of all conversions that depend on its choice; -1: unknown. */
static double touched_sec(const struct pool *p, const struct ap_nest *nest)
{
    const struct ap_graph *g = p->plan.graph;
    double sec = ap_plan_group_sec(nest, g, p->task->cost, &p->plan.choice[nest->group]);
    for (int i = 0; i < nest->n_ins + nest->n_outs; i++) {
        int node = i < nest->n_ins ? nest->ins[i].node : nest->outs[i - nest->n_ins];
        bool again = false;
        for (int k = 0; k < i && k < nest->n_ins && !again; k++)
            again = nest->ins[k].node == node;
        double s = again ? 0 : tensor_sec(p, node);
        if (s < 0)
            return -1;
        sec += s;
        int r = p->result_of[node]; /* the result comes to the parameter's layout */
        if (r >= 0 && !again) {
            int made = g->results[r].node;
            struct ap_layout from = ap_plan_node_layout(&p->plan, made);
            struct ap_layout to = ap_plan_result_layout(&p->plan, r);
            sec += ap_convert_sec(p->task->cost, &g->nodes[made].shape, &from, &to);
        }
    }
    return sec;
}

static bool large_enough(const struct ap_nest *nest, const struct ap_mesh *mesh,
                         const struct ap_choice_vec *c)
{
    for (int a = 0; a < mesh->n_axes; a++) {
        int64_t devices = 1;
        for (int b = 0; b < mesh->n_axes; b++)
            devices *= c->axis[b] == c->axis[a] ? mesh->size[b] : 1;
        if (c->axis[a] >= 0 && c->axis[a] < nest->n_factors &&
            nest->factors[c->axis[a]].size < devices)
            return false;
    }
    return true;
}

static bool is_decision(const struct ap_graph *g, const struct ap_nest *nest)
{
    return nest->heavy || g->nodes[nest->members[0]].role == AP_ROLE_WEIGHT;
}

/* The best change of one group. */
static void change_group(struct pool *p, const struct ap_nest *nest, double objective)
{
    const struct ap_mesh *mesh = &p->plan.mesh;
    struct ap_choice_vec old = p->plan.choice[nest->group], best = old;
    double before = touched_sec(p, nest), least = INFINITY;

    if (before < 0 || (p->task->fixed && p->task->fixed[nest->group]))
        return;
    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++)
        for (int c = -1; mesh->size[a] > 1 && c < nest->n_factors + nest->n_linear; c++) {
            struct ap_choice_vec v = old;
            v.axis[a] = (int16_t)c;
            if (c == old.axis[a] || !ap_choice_ok(nest, mesh, &v) ||
                !large_enough(nest, mesh, &v))
                continue;
            p->plan.choice[nest->group] = v;
            double sec = touched_sec(p, nest);
            bool moves = fabs(sec - before) > 1e-9 * objective;
            if (sec >= 0 && moves && sec < least) {
                least = sec;
                best = v;
            }
        }
    p->plan.choice[nest->group] = old;
    if (isfinite(least))
        add(p, p->plan.graph->nodes[nest->members[0]].name, objective + least - before,
            nest->group, &best, &p->plan);
}

static int compare(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;
    if (a->sec != b->sec)
        return a->sec < b->sec ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

static uint64_t hash_plan(const struct ap_plan *plan)
{
    uint64_t h = 0;
    for (int i = 0; i < plan->nests->n; i++)
        h = ap_hash(plan->choice[i].axis,
                    (size_t)plan->mesh.n_axes * sizeof plan->choice[i].axis[0], h);
    return h;
}

/* Keeps the n best by estimate, prices them whole, and drops doubles. */
static void settle(struct pool *p, int n)
{
    int kept = 0;
    qsort(p->list, (size_t)p->n, sizeof *p->list, compare);
    for (int i = 0; i < p->n && kept < n; i++) {
        struct candidate c = p->list[i];
        struct ap_err err = {0};
        struct ap_choice_vec old = {{0}};
        if (c.group >= 0) {
            old = p->plan.choice[c.group];
            p->plan.choice[c.group] = c.choice;
        }
        bool seen = ap_plan_sec(&c.plan, p->task->cost, &c.sec, &err) != 0;
        c.hash = hash_plan(&c.plan);
        if (c.group >= 0)
            p->plan.choice[c.group] = old;
        for (int k = 0; k < kept && !seen; k++)
            seen = p->list[k].hash == c.hash;
        if (!seen)
            p->list[kept++] = c;
    }
    p->n = kept;
    qsort(p->list, (size_t)p->n, sizeof *p->list, compare);
}

/* Layouts of the values outside of groups that differ from the answer's. */
static void put_nodes(struct pool *p, const struct candidate *c, struct ap_buf *out)
{
    const struct ap_mesh *mesh = &p->plan.mesh;
    const char *comma = "";
    int lo = c->group < 0 ? 0 : c->group, hi = c->group < 0 ? p->plan.nests->n : lo + 1;
    for (int i = lo; i < hi; i++) {
        const struct ap_nest *nest = &p->plan.nests->nest[i];
        const struct ap_choice_vec *choice =
            c->group < 0 ? &c->plan.choice[i] : &c->choice;
        for (int m = 0, o = 0; m < nest->n_members && o < nest->n_outs; m++) {
            if (nest->outs[o] != nest->members[m])
                continue;
            o++;
            struct ap_layout mine = ap_plan_node_layout(&p->plan, nest->members[m]);
            struct ap_layout l =
                ap_nest_value_layout(nest, p->plan.graph, mesh, choice, m);
            if (ap_layout_equal(&mine, &l))
                continue;
            ap_buf_puts(out, comma);
            ap_json_str(out, p->plan.graph->nodes[nest->members[m]].name);
            ap_buf_puts(out, ":\"");
            ap_layout_print(mesh, &l, out);
            ap_buf_putc(out, '"');
            comma = ",";
        }
    }
}

const char *shard_alternatives(struct shard_job *job, double objective, int n)
{
    struct pool p = {.arena = job->arena, .task = &job->task, .plan = job->answer.plan};
    struct ap_buf out = {0};

    p.result_of = AP_NEW_N(job->arena, job->graph.n_nodes, int);
    memset(p.result_of, -1, sizeof(int) * (size_t)job->graph.n_nodes);
    for (int r = 0; r < job->graph.n_results; r++)
        if (job->graph.results[r].alias >= 0)
            p.result_of[job->graph.results[r].alias] = r;
    add(&p, job->algorithm, objective, -1, NULL, &p.plan);
    if (job->task.n_plans > 0)
        shard_price_named_plans(&job->task);
    for (int i = 0; i < job->task.n_plans; i++)
        add(&p, job->task.plan_name[i], job->task.plan_sec[i], -1, NULL,
            &job->task.plans[i]);
    for (int i = 0; i < job->nests.n; i++)
        if (is_decision(&job->graph, &job->nests.nest[i]))
            change_group(&p, &job->nests.nest[i], objective);
    settle(&p, n);
    ap_buf_puts(&out, ",\"alternatives\":[");
    for (int i = 0; i < p.n; i++) {
        ap_buf_puts(&out, i ? ",{\"from\":" : "{\"from\":");
        ap_json_str(&out, p.list[i].from);
        ap_buf_puts(&out, ",\"objective_sec\":");
        ap_json_num(&out, p.list[i].sec);
        ap_buf_puts(&out, ",\"nodes\":{");
        put_nodes(&p, &p.list[i], &out);
        ap_buf_puts(&out, "}}");
    }
    ap_buf_putc(&out, ']');
    const char *text = ap_arena_strdup(job->arena, out.data);
    ap_buf_free(&out);
    free(p.list);
    return text;
}
