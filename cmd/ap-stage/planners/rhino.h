/* Rhino's proposals and its stage ILP. */
#ifndef STAGE_RHINO_H
#define STAGE_RHINO_H

#include "search/space.h"

/* A mesh of `stages` x `devices`; micro: the batch is split into microbatches. */
struct rhino_proposal {
    int stages, devices;
    bool micro;
};
/* Proposals for a number of devices, at most 64; returns how many. */
int rhino_proposals(int n_devices, struct rhino_proposal out[64]);

/* First and last stage that each block may be in; least > most: none. */
void rhino_bounds(struct ap_arena *arena, const struct plan_instance *inst, int n_stages,
                  double imbalance, int *least, int *most);
/* false: no such stages. proven: they are the best. */
bool rhino_stages(struct ap_arena *arena, const struct plan_instance *inst, int n_stages,
                  double imbalance, int *stage_of, bool *proven);
/* Bytes of values that leave their stage. */
int64_t rhino_bytes(const struct plan_instance *inst, const int *stage_of);

#endif
