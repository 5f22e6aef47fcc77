/* Private to ap-shard: which fusion groups are alike, by the graph's families. */
#ifndef FOLD_H
#define FOLD_H

#include "problem/statement.h"

/*
 * Twins stand at the same place of two instances of a family and have the same nest, so
 * that they have the same strategies at the same cost. Instances are alike when all their
 * groups are twins and see the same surroundings: the same operands and users, in the
 * instances as far before or after, or outside the family. The groups of alike instances
 * can be tied: one choice for all of them.
 */
struct shard_fold {
    int *twin;   /* [group]: the first of its twins, itself if it has none before it */
    int *tied;   /* [group]: the first group that it is tied to, itself if there is none
                    before it */
    int *weight; /* [group]: how many are tied, 1 if it is alone, 0 if it is not first */
    int *cell;   /* [group]: cell of its instance, -1 if the instance is like no other */
    int n_cells; /* instances that are like another one, in order of their families */
    int *cell_of_class; /* [class]: its first cell */
    int *class_of;      /* [cell]: which cells are alike */
    int *n_alike;       /* [class]: cells */
    int n_classes;
    int *family;   /* [group]: family it was folded by, -1 for none */
    int *instance; /* [group]: within the family, -1 for none */
    int n_tied;    /* groups that follow another one */
    int period;
};

/*
 * families may be NULL: nothing is alike. Tensors pinned to different layouts are not,
 * nor groups with other choices on the axis of microbatches (time, may be NULL).
 * With a period of p, only every p-th instance is tied (layers that take turns).
 * O(nodes + edges).
 */
void shard_fold_find(struct ap_arena *arena, const struct ap_graph *g,
                     const struct ap_nests *nests, const struct ap_families *families,
                     const struct shard_pins *pins, const int16_t *time, int period,
                     struct shard_fold *fold);
/* Equal factors, operands and results: what one may choose the other may, at its cost. */
bool shard_fold_same_nest(const struct ap_graph *ga, const struct ap_nest *a,
                          const struct ap_graph *gb, const struct ap_nest *b);
/*
 * Tells apart the slots of a nest that ask for different layouts of their operands under
 * some choice; slots with one value are interchangeable. 0 for a result.
 */
uint64_t shard_fold_slot(const struct ap_nest *nest, int slot);

/*
 * Whether a tensor is made outside of all families, or is needed by instances far apart
 * of a family that it is not made in (a mask, an encoder's output): what its makers and
 * users know of each other does not depend on the instance.
 */
bool shard_fold_wide(const struct shard_fold *fold, int home,
                     const struct select_users *users);

#endif
