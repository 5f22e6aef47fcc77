/* Private to ap-stage: a plan of stages from a file, to be used again. */
#ifndef OUTLINE_H
#define OUTLINE_H

#include "judge/planner.h"

/*
 * Reads the section "stages" of the document at path: of each stage the blocks and the
 * devices. All else that a stage has is of its own graph and cluster. -1: it is no such
 * section; err has the place.
 */
int plan_outline_read(struct ap_arena *arena, const char *path, struct plan_outline *out,
                      struct ap_err *err);

/*
 * Finds replicas and submeshes with which the instance's stages get those devices, among
 * the submeshes that params allow. 1: there are none, or the instance has other blocks,
 * devices, or values that would flow backwards; err says which.
 */
int plan_outline_fit(struct ap_arena *arena, const struct plan_instance *inst,
                     const struct plan_params *params, struct plan_outline *outline,
                     struct ap_err *err);

#endif
