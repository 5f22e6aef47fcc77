/*
 * Problem: find the choice of a group that gives named values the layouts that a person
 * wrote down. Idea: what an axis may do is seen on that axis alone; combine what is left,
 * axis by axis, and check. Cost: candidates left per axis, to the power of the axes; few,
 * as a split names its factor.
 */
#include "plan/layout_to_choice.h"

struct fit {
    const struct ap_nest *nest;
    const struct ap_graph *g;
    const struct ap_mesh *mesh;
    int time;
    const bool *wanted;
    const struct ap_layout *layout;
    struct ap_choice_vec choice;
};

static bool large_enough(const struct fit *f, int c)
{
    int64_t devices = 1;
    for (int a = 0; a < f->mesh->n_axes; a++)
        if (f->choice.axis[a] == c)
            devices *= f->mesh->size[a];
    return c < 0 || c >= f->nest->n_factors || f->nest->factors[c].size >= devices;
}

/* Does axis a alone, doing c, treat the wanted values as asked (strides aside)? */
static bool axis_fits(const struct fit *f, int a, int c)
{
    struct ap_choice_vec alone;
    for (int b = 0; b < AP_MAX_AXES; b++)
        alone.axis[b] = -1;
    alone.axis[a] = (int16_t)c;
    if (!ap_choice_ok(f->nest, f->mesh, &alone))
        return false;
    for (int m = 0; m < f->nest->n_members; m++) {
        if (!f->wanted[m])
            continue;
        struct ap_layout l = ap_nest_value_layout(f->nest, f->g, f->mesh, &alone, m);
        if (l.axis[a].kind != f->layout[m].axis[a].kind ||
            (l.axis[a].kind == AP_SPLIT && l.axis[a].dim != f->layout[m].axis[a].dim))
            return false;
    }
    return true;
}

static bool all_fit(const struct fit *f)
{
    for (int a = 0; a < f->mesh->n_axes; a++)
        if (!large_enough(f, f->choice.axis[a]))
            return false;
    if (!ap_choice_ok(f->nest, f->mesh, &f->choice))
        return false;
    for (int m = 0; m < f->nest->n_members; m++) {
        if (!f->wanted[m])
            continue;
        struct ap_layout l = ap_nest_value_layout(f->nest, f->g, f->mesh, &f->choice, m);
        if (!ap_layout_equal(&l, &f->layout[m]))
            return false;
    }
    return true;
}

static bool fit_axis(struct fit *f, int a)
{
    if (a == f->mesh->n_axes)
        return all_fit(f);
    if (f->mesh->time >> a & 1) {
        f->choice.axis[a] = (int16_t)f->time;
        return fit_axis(f, a + 1);
    }
    for (int c = -1; c < f->nest->n_factors + f->nest->n_linear; c++) {
        if (c >= 0 && f->mesh->size[a] == 1)
            break;
        if (!axis_fits(f, a, c))
            continue;
        f->choice.axis[a] = (int16_t)c;
        if (fit_axis(f, a + 1))
            return true;
    }
    f->choice.axis[a] = -1;
    return false;
}

bool ap_choice_of_layouts(const struct ap_nest *nest, const struct ap_graph *g,
                          const struct ap_mesh *mesh, int time, const bool *wanted,
                          const struct ap_layout *layout, struct ap_choice_vec *choice)
{
    struct fit f = {nest, g, mesh, time, wanted, layout, {{0}}};
    for (int a = 0; a < AP_MAX_AXES; a++)
        f.choice.axis[a] = -1;
    if (!fit_axis(&f, 0))
        return false;
    *choice = f.choice;
    return true;
}

/* ---- fingerprints ---- */

static const char *hex(struct ap_arena *arena, uint64_t h)
{
    return ap_arena_printf(arena, "%016llx", (unsigned long long)h);
}

const char *ap_cluster_fingerprint(struct ap_arena *arena, const struct ap_cluster *c)
{
    struct ap_buf text = {0};
    struct ap_cluster figures = *c;
    figures.source = NULL;
    ap_cluster_to_json(&figures, &text);
    uint64_t h = ap_hash(text.data, text.len, 0);
    ap_buf_free(&text);
    return hex(arena, h);
}
