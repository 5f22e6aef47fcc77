/* Choices of groups from layouts of named values, as people write them. */
#ifndef AP_LAYOUT_TO_CHOICE_H
#define AP_LAYOUT_TO_CHOICE_H

#include "plan/plan.h"

/*
 * A legal choice of the nest's group under which the value of each member m with
 * wanted[m] has layout[m] (indexed by position in nest->members). If there are several,
 * an axis on which no layout is asked for stays idle, and lower factors win. False if
 * there is none. Only factors and linear sets that fit an axis by themselves are
 * combined. On the microbatch axis the group takes on_microbatches.
 */
bool ap_choice_of_layouts(const struct ap_nest *nest, const struct ap_graph *g,
                          const struct ap_mesh *mesh, int on_microbatches,
                          const bool *wanted, const struct ap_layout *layout,
                          struct ap_choice_vec *choice);

#endif
