/*
 * Problem: find the choice of a group that gives named values the layouts that a person
 * wrote down. Idea: find the possible choices of each axis alone, combine them axis by
 * axis, and check. Cost: candidates left per axis, to the power of the axes; few, as a
 * split names its factor.
 */
#include "plan/layout_to_choice.h"

struct request {
    const struct ap_nest *nest;
    const struct ap_graph *g;
    const struct ap_mesh *mesh;
    int on_microbatches;
    const bool *wanted;
    const struct ap_layout *layout;
    struct ap_choice_vec choice;
};

/* Does axis a alone, doing c, treat the wanted values as asked (strides aside)? */
static bool serves_alone(const struct request *r, int a, int c)
{
    struct ap_choice_vec alone = AP_CHOICE_NONE;
    alone.axis[a] = (int16_t)c;
    if (!ap_choice_ok(r->nest, r->mesh, &alone))
        return false;
    for (int m = 0; m < r->nest->n_members; m++) {
        if (!r->wanted[m])
            continue;
        struct ap_layout l = ap_nest_value_layout(r->nest, r->g, r->mesh, &alone, m);
        if (l.axis[a].kind != r->layout[m].axis[a].kind ||
            (l.axis[a].kind == AP_SPLIT && l.axis[a].dim != r->layout[m].axis[a].dim))
            return false;
    }
    return true;
}

static bool serves(const struct request *r)
{
    for (int a = 0; a < r->mesh->n_axes; a++)
        if (!ap_choice_reaches(r->nest, r->mesh, &r->choice, r->choice.axis[a]))
            return false;
    if (!ap_choice_ok(r->nest, r->mesh, &r->choice))
        return false;
    for (int m = 0; m < r->nest->n_members; m++) {
        if (!r->wanted[m])
            continue;
        struct ap_layout l = ap_nest_value_layout(r->nest, r->g, r->mesh, &r->choice, m);
        if (!ap_layout_equal(&l, &r->layout[m]))
            return false;
    }
    return true;
}

static bool choose_axis(struct request *r, int a)
{
    if (a == r->mesh->n_axes)
        return serves(r);
    if (r->mesh->microbatch >> a & 1) {
        r->choice.axis[a] = (int16_t)r->on_microbatches;
        return choose_axis(r, a + 1);
    }
    for (int c = -1; c < r->nest->n_factors + r->nest->n_linear; c++) {
        if (c >= 0 && r->mesh->size[a] == 1)
            break;
        if (!serves_alone(r, a, c))
            continue;
        r->choice.axis[a] = (int16_t)c;
        if (choose_axis(r, a + 1))
            return true;
    }
    r->choice.axis[a] = -1;
    return false;
}

bool ap_choice_of_layouts(const struct ap_nest *nest, const struct ap_graph *g,
                          const struct ap_mesh *mesh, int on_microbatches,
                          const bool *wanted, const struct ap_layout *layout,
                          struct ap_choice_vec *choice)
{
    struct request r = {nest, g, mesh, on_microbatches, wanted, layout, AP_CHOICE_NONE};
    if (!choose_axis(&r, 0))
        return false;
    *choice = r.choice;
    return true;
}
