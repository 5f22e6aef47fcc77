/* Section "blocks". block_of is the authority, or a cut of the forward pass, which other
 * nodes follow; the sums are written to be read by people. */
#include "doc/blocks_json.h"

#include <string.h>

static void put_sum(const struct ap_block_sum *s, struct ap_buf *out)
{
    ap_buf_puts(out, "{\"nodes\":{");
    for (int i = 0; i < AP_N_PHASES; i++)
        ap_buf_printf(out, "%s\"%s\":%lld", i ? "," : "", ap_phase_names[i],
                      (long long)s->nodes[i]);
    ap_buf_puts(out, "},\"flops\":{");
    for (int i = 0; i < AP_N_PHASES; i++) {
        ap_buf_printf(out, "%s\"%s\":", i ? "," : "", ap_phase_names[i]);
        ap_json_num(out, s->flops[i]);
    }
    ap_buf_putc(out, '}');
    ap_put_int(out, "weight_bytes", s->weight_bytes);
    ap_put_int(out, "state_bytes", s->state_bytes);
    ap_put_int(out, "in_bytes", s->in_bytes);
    ap_put_int(out, "out_bytes", s->out_bytes);
    ap_put_int(out, "kept_bytes", s->kept_bytes);
    ap_buf_putc(out, '}');
}

static void put_num(struct ap_buf *out, const char *key, double v)
{
    ap_put_key(out, key);
    ap_json_num(out, v);
}

void ap_blocks_to_json(const struct ap_graph *g, const struct ap_blocks *b,
                       const struct ap_block_sum *sums, struct ap_buf *out)
{
    ap_buf_puts(out, "{\"algorithm\":");
    ap_json_str(out, b->algorithm);
    ap_put_int(out, "n", b->n);
    if (b->objective_unit) {
        put_num(out, "objective", b->objective);
        put_num(out, "bound", b->bound);
        ap_put_str(out, "unit", b->objective_unit);
    }
    ap_put_key(out, "blocks");
    for (int i = 0; i < b->n; i++) {
        ap_buf_putc(out, i ? ',' : '[');
        put_sum(&sums[i], out);
    }
    ap_buf_putc(out, ']');
    ap_put_ids(out, "block_of", b->block_of, g->n_nodes);
    if (b->n_critical)
        ap_put_ids(out, "critical", b->critical, b->n_critical);
    if (b->cone_of) {
        ap_put_ids(out, "cone_root", b->cone_root, b->n_cones);
        ap_put_ids(out, "cone_of", b->cone_of, g->n_nodes);
    }
    ap_buf_putc(out, '}');
}

static int read_cones(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                      const struct ap_graph *g, struct ap_blocks *b, struct ap_err *err)
{

    if (!json_object_get(o, "cone_of") && !json_object_get(o, "cone_root"))
        return 0;
    if ((b->n_cones = ap_get_ids(arena, o, at, "cone_root",
                                 (struct ap_id_range){-1, 0, g->n_nodes - 1},
                                 &b->cone_root, err)) < 0 ||
        ap_get_ids(arena, o, at, "cone_of",
                   (struct ap_id_range){g->n_nodes, -1, b->n_cones - 1}, &b->cone_of,
                   err) < 0)
        return -1;
    return 0;
}

static int read_objective(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                          struct ap_blocks *b, struct ap_err *err)
{
    const char *unit = NULL;

    if (ap_opt_str(o, at, "unit", &unit, err))
        return -1;
    if (!unit)
        return 0;
    b->objective_unit = ap_arena_strdup(arena, unit);
    if (ap_get_num(o, at, "objective", &b->objective, err) ||
        ap_get_num(o, at, "bound", &b->bound, err))
        return -1;
    return 0;
}

/* ---- a cut by hand ---- */

/* The node that an entry of "cut" names, by id or by name; -1. */
static int read_node(const json_t *v, const struct ap_at *at, const struct ap_graph *g,
                     struct ap_err *err)
{
    const char *name = json_string_value(v);
    int found = -1;

    if (json_is_integer(v) && json_integer_value(v) >= 0 &&
        json_integer_value(v) < g->n_nodes)
        return (int)json_integer_value(v);
    if (!name)
        return ap_at_err(at, err, "expected a node, by name or by id from 0 to %d",
                         g->n_nodes - 1);
    for (int i = 0; i < g->n_nodes; i++) {
        if (strcmp(g->nodes[i].name, name) != 0)
            continue;
        if (found >= 0)
            return ap_at_err(at, err, "nodes %d and %d are both named %s: write the id",
                             found, i, name);
        found = i;
    }
    return found < 0 ? ap_at_err(at, err, "the graph has no node %s", name) : found;
}

/* Where the section puts the nodes. */
struct places {
    const struct ap_graph *g;
    int n_ids, *ids; /* forward operators, in order */
    int *block_of;   /* [node], -1: not placed */
    int n;           /* blocks; 0: not known yet */
};

/* The member "cut": where blocks 1, 2, ... begin in the order of the operators. */
static int read_cut(const json_t *o, const struct ap_at *at, struct places *p,
                    struct ap_err *err)
{
    const struct ap_node *nodes = p->g->nodes;
    const struct ap_at list = {at, "cut", 0};
    json_t *cut, *v;
    size_t k;
    int done = 0, last = 0;

    if (ap_get_arr(o, at, "cut", &cut, err))
        return -1;
    json_array_foreach(cut, k, v)
    {
        const struct ap_at here = {&list, NULL, (long)k};
        int node = read_node(v, &here, p->g, err), first = done;
        if (node < 0)
            return -1;
        while (done < p->n_ids && p->ids[done] < node)
            p->block_of[p->ids[done++]] = (int)k;
        if (done == first)
            return ap_at_err(&here, err,
                             "node %d (%s) is not after the first operator of block %zu, "
                             "%d (%s), so that this block would be empty",
                             node, nodes[node].name, k,
                             p->ids[done < p->n_ids ? done : last],
                             nodes[p->ids[done < p->n_ids ? done : last]].name);
        last = first;
    }
    if (done == p->n_ids)
        return ap_at_err(
            &list, err,
            "the last block would be empty: the last operator is node %d (%s)",
            p->ids[p->n_ids - 1], nodes[p->ids[p->n_ids - 1]].name);
    p->n = (int)json_array_size(cut) + 1;
    while (done < p->n_ids)
        p->block_of[p->ids[done++]] = p->n - 1;
    return 0;
}

/* The member "block_of"; null or -1: not placed, which is said by *holes. */
static int read_block_of(const json_t *o, const struct ap_at *at, struct places *p,
                         bool *holes, struct ap_err *err)
{
    const int n_nodes = p->g->n_nodes;
    const struct ap_at list = {at, "block_of", 0};
    json_t *given;

    if (ap_get_arr(o, at, "block_of", &given, err))
        return -1;
    if (json_array_size(given) != (size_t)n_nodes)
        return ap_at_err(&list, err, "%zu numbers, but the graph has %d nodes",
                         json_array_size(given), n_nodes);
    for (int i = 0, most = p->n > 0 ? p->n : n_nodes; i < n_nodes; i++) {
        const struct ap_at here = {&list, NULL, i};
        const json_t *v = json_array_get(given, (size_t)i);
        json_int_t block = json_is_null(v) ? -1 : json_integer_value(v);
        if ((!json_is_integer(v) && !json_is_null(v)) || block < -1 || block >= most)
            return ap_at_err(&here, err,
                             "expected a block from 0 to %d, or -1 for a node that "
                             "follows the others",
                             most - 1);
        p->block_of[i] = (int)block;
        *holes |= block < 0;
    }
    for (int i = 0; i < n_nodes; i++)
        p->n = p->n > p->block_of[i] ? p->n : p->block_of[i] + 1;
    return 0;
}

/* All operators of the forward pass are placed, and no node of another phase. */
static int check_cut(const struct ap_at *at, const struct places *p, struct ap_err *err)
{
    const struct ap_graph *g = p->g;
    const int *ids = p->ids;
    const struct ap_at list = {at, "block_of", 0};

    for (int i = 0; i < p->n_ids; i++) {
        const struct ap_at here = {&list, NULL, ids[i]};
        if (p->block_of[ids[i]] < 0)
            return ap_at_err(&here, err,
                             "node %d (%s) is an operator of the forward pass, which a "
                             "cut has to place",
                             ids[i], g->nodes[ids[i]].name);
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_at here = {&list, NULL, i};
        if (g->nodes[i].phase != AP_FORWARD && p->block_of[i] >= 0)
            return ap_at_err(
                &here, err,
                "node %d (%s) is of the %s phase: a list with -1 is a cut of "
                "the forward pass, which has -1 there, too",
                i, g->nodes[i].name, ap_phase_names[g->nodes[i].phase]);
    }
    return 0;
}

/* The blocks of all nodes as they follow from those of the operators, beside what a whole
 * list says. */
static void carry(struct ap_arena *arena, const struct places *p, bool is_cut,
                  struct ap_blocks *b)
{
    const int n_nodes = p->g->n_nodes;
    int *block_of = AP_NEW_N(arena, n_nodes + 1, int);

    for (int i = 0; i < n_nodes; i++)
        block_of[i] = -1;
    for (int i = 0; i < p->n_ids; i++)
        block_of[p->ids[i]] = p->block_of[p->ids[i]];
    ap_blocks_carry(arena, p->g, b->n, block_of);
    b->block_of = is_cut ? block_of : p->block_of;
    for (int i = n_nodes - 1; i >= 0 && !is_cut; i--)
        if (block_of[i] != p->block_of[i]) {
            b->n_moved++;
            b->moved = i;
            b->moved_from = block_of[i];
        }
}

/* Block of each node: all given, or those of a cut and of what follows it. */
static int read_places(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                       const struct ap_graph *g, struct ap_blocks *b, struct ap_err *err)
{
    bool has_cut = json_object_get(o, "cut") != NULL, is_cut = has_cut;
    struct places p = {
        .g = g, .block_of = AP_NEW_N(arena, g->n_nodes + 1, int), .n = b->n};

    p.n_ids = ap_blocks_operators(arena, g, &p.ids);
    if (p.n_ids == 0)
        return ap_at_err(at, err, "the graph has no forward operator");
    if (!has_cut && !json_object_get(o, "block_of"))
        return ap_at_err(at, err,
                         "expected \"block_of\", or \"cut\" with the first nodes "
                         "of blocks 1, 2, ...");
    if (has_cut && json_object_get(o, "block_of"))
        return ap_at_err(at, err, "has cut and block_of: which is meant?");
    for (int i = 0; i < g->n_nodes; i++)
        p.block_of[i] = -1;
    if (has_cut ? read_cut(o, at, &p, err) : read_block_of(o, at, &p, &is_cut, err))
        return -1;
    if (b->n > 0 && b->n != p.n)
        return ap_at_err(at, err, "%d blocks, but n is %d", p.n, b->n);
    if (is_cut && (check_cut(at, &p, err) || ap_blocks_check_phases(g, err)))
        return -1;
    b->n = p.n;
    carry(arena, &p, is_cut, b);
    return 0;
}

int ap_blocks_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                        const struct ap_graph *g, struct ap_blocks *b, struct ap_err *err)
{
    const char *algorithm = "given";

    *b = (struct ap_blocks){0};
    if (!json_is_object(o))
        return ap_at_err(at, err, "expected an object");
    if (ap_opt_str(o, at, "algorithm", &algorithm, err) ||
        ap_opt_int(o, at, "n", 1, &b->n, err))
        return -1;
    b->algorithm = ap_arena_strdup(arena, algorithm);
    if (b->n > g->n_nodes)
        return ap_at_err(at, err, "%d blocks of %d nodes", b->n, g->n_nodes);
    if (read_objective(arena, o, at, b, err) || read_places(arena, o, at, g, b, err) ||
        (b->n_critical = ap_get_ids(arena, o, at, "critical",
                                    (struct ap_id_range){-1, 0, g->n_nodes - 1},
                                    &b->critical, err)) < 0 ||
        read_cones(arena, o, at, g, b, err))
        return -1;
    return ap_blocks_check(arena, g, b, err);
}
