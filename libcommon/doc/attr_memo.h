/* Equal attributes of nodes share one copy in memory. */
#ifndef AP_ATTR_MEMO_H
#define AP_ATTR_MEMO_H

#include "base/index_map.h"
#include "graph/graph.h"

/* Starts zeroed; the owner calls ap_attr_memo_free. */
struct ap_attr_memo {
    struct ap_attr_entry *entry;
    int n, cap;
    struct ap_index index;
};

/*
 * The attributes that ap_attrs_from_json reads from the object in `text` for a node of
 * this operator and shape, in the arena; equal arguments give the same pointer. NULL if
 * the text is not plain JSON (fast_json.h) or is wrong.
 */
const struct ap_attrs *ap_attr_memo_get(struct ap_attr_memo *memo, struct ap_arena *arena,
                                        enum ap_op op, const struct ap_shape *shape,
                                        const char *text, size_t len);
void ap_attr_memo_free(struct ap_attr_memo *memo);

#endif
