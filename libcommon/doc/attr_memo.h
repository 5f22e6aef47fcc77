/* Equal attributes of nodes are one in memory. */
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
 * What ap_attrs_from_json makes of the object in text, for a node of this operator and
 * shape; the same pointer whenever these are equal, in the arena. NULL: the text is not
 * plain JSON (fast_json.h), or wrong.
 */
const struct ap_attrs *ap_attr_memo_get(struct ap_attr_memo *memo, struct ap_arena *arena,
                                        enum ap_op op, const struct ap_shape *shape,
                                        const char *text, size_t len);
void ap_attr_memo_free(struct ap_attr_memo *memo);

#endif
