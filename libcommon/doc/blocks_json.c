/* Section "blocks". block_of is the authority; the sums are written to be read by people.
 */
#include "doc/blocks_json.h"

#include <limits.h>

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

int ap_blocks_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                        const struct ap_graph *g, struct ap_blocks *b, struct ap_err *err)
{
    const char *algorithm;
    int64_t n;

    *b = (struct ap_blocks){0};
    if (!json_is_object(o))
        return ap_at_err(at, err, "expected an object");
    if (ap_get_str(o, at, "algorithm", &algorithm, err) ||
        ap_get_int(o, at, "n", 1, INT_MAX, &n, err))
        return -1;
    b->algorithm = ap_arena_strdup(arena, algorithm);
    if (n > g->n_nodes)
        return ap_at_err(at, err, "%lld blocks of %d nodes", (long long)n, g->n_nodes);
    b->n = (int)n;
    if (read_objective(arena, o, at, b, err) ||
        ap_get_ids(arena, o, at, "block_of",
                   (struct ap_id_range){g->n_nodes, 0, b->n - 1}, &b->block_of,
                   err) < 0 ||
        (b->n_critical = ap_get_ids(arena, o, at, "critical",
                                    (struct ap_id_range){-1, 0, g->n_nodes - 1},
                                    &b->critical, err)) < 0 ||
        read_cones(arena, o, at, g, b, err))
        return -1;
    return ap_blocks_check(arena, g, b, err);
}
