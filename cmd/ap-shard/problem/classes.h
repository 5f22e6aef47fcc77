/*
 * Equivalence classes of identical items of a graph. Nodes, fusion groups, tensors with
 * their users, blocks and runs of blocks are all sorted into classes in the same way: by
 * a hash of the compared properties, and then by the owner's comparison. The first item
 * of a class stands for it, so that classes are the same whatever the hash is:
 *
 *     struct ap_classes classes = {.same = same_nest, .ctx = nests};
 *     for (int i = 0; i < n; i++)
 *         first[i] = ap_class_of(&classes, hash_nest(nests, i), i);
 *     ap_classes_free(&classes);
 *
 * Expected O(1) per item, and one comparison for an item that has an earlier one.
 */
#ifndef AP_CLASSES_H
#define AP_CLASSES_H

#include "base/index_map.h"

/* Starts with same and ctx set, the rest zero; the owner calls ap_classes_free. */
struct ap_classes {
    /* Whether items a and b, whose hashes agree, are identical. */
    bool (*same)(const void *ctx, int a, int b);
    const void *ctx;
    struct ap_index first; /* of each class */
};

void ap_classes_free(struct ap_classes *classes);
/* The first item given so far that is identical to item i, or i itself. */
int ap_class_of(struct ap_classes *classes, uint64_t hash, int i);

#endif
