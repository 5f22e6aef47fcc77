#include "problem/classes.h"

void ap_classes_free(struct ap_classes *classes)
{
    ap_index_free(&classes->first);
}

int ap_class_of(struct ap_classes *classes, uint64_t hash, int i)
{
    struct ap_index_walk walk;

    for (int k = ap_index_first(&classes->first, hash, &walk); k >= 0;
         k = ap_index_next(&classes->first, &walk))
        if (classes->same(classes->ctx, k, i))
            return k;
    ap_index_put(&classes->first, hash, i);
    return i;
}
