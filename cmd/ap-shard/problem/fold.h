/* Private to ap-shard: which fusion groups are identical, by the graph's families. */
#ifndef FOLD_H
#define FOLD_H

#include "problem/statement.h"

/*
 * Twins are two groups at the same place of two instances of a family whose nests are
 * equal, so that both have the same strategies at the same cost. Two instances are
 * identical when all their groups are twins with the same surroundings: the same operands
 * and users, in instances of the same distance or outside of the family. The groups of
 * identical instances can be tied: one choice for all of them.
 *
 * A cell is an instance that is identical to another one; a class is a set of identical
 * cells.
 */
struct shard_fold {
    int *twin;   /* [group]: the first of its twins, itself if it has none before it */
    int *tied;   /* [group]: the first group that it is tied to, which may be itself */
    int *weight; /* [group]: how many groups are tied to it, itself included; 0 if it is
                    tied to an earlier one */
    int *cell;   /* [group]: the cell of its instance, -1 for none */
    int n_cells; /* in the order of their families */
    int *cell_of_class; /* [class]: its first cell */
    int *class_of;      /* [cell] */
    int *n_identical;   /* [class]: cells */
    int n_classes;
    int *family;   /* [group]: the family that it is folded by, -1 for none */
    int *instance; /* [group]: within the family, -1 for none */
    int n_tied;    /* groups that follow another one */
};

/*
 * Of the task's graph, nests, pins and microbatches. families: the task's; NULL: no
 * groups are tied. Groups whose tensors are pinned to different layouts, or with
 * different choices on the microbatch axis, are not twins. O(nodes + edges).
 */
void shard_fold_find(struct ap_arena *arena, const struct shard_task *task,
                     const struct ap_families *families, struct shard_fold *fold);
/* Equal factors, operands and results: both groups have the same strategies and costs. */
bool shard_fold_same_nest(const struct ap_graph *ga, const struct ap_nest *a,
                          const struct ap_graph *gb, const struct ap_nest *b);
/*
 * A hash that differs between slots of a nest that, under some choice, need their
 * operands in different layouts; slots of one value are interchangeable. 0 for a result.
 */
uint64_t shard_fold_slot(const struct ap_nest *nest, int slot);

/*
 * Whether a tensor is made outside of all families, or is needed by distant instances of
 * a family that it is not made in (a mask, an encoder's output). The surroundings of its
 * producer and users then do not include the distance between instances.
 */
bool shard_fold_wide(const struct shard_fold *fold, int home,
                     const struct select_users *users);

#endif
