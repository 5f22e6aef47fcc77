/*
 * Problem: attributes take 800 bytes, and most of 100 000 nodes with attributes share a
 * few dozen different ones. Idea: a table from operator, shape and text to the
 * attributes, so that text that occurs again is neither parsed nor stored again.
 */
#include "doc/attr_memo.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "doc/attr_json.h"
#include "doc/fast_json.h"

struct ap_attr_entry {
    enum ap_op op;
    struct ap_shape shape;
    const char *text;
    size_t len;
    const struct ap_attrs *attrs;
};

static bool is_same(const struct ap_attr_entry *a, enum ap_op op,
                    const struct ap_shape *shape, const char *text, size_t len)
{
    return a->op == op && a->len == len && !memcmp(a->text, text, len) &&
           ap_shape_equal(&a->shape, shape);
}

const struct ap_attrs *ap_attr_memo_get(struct ap_attr_memo *memo, struct ap_arena *arena,
                                        enum ap_op op, const struct ap_shape *shape,
                                        const char *text, size_t len)
{
    const uint64_t about[3] = {op, shape->dtype, (uint64_t)shape->rank};
    uint64_t hash = ap_hash(about, sizeof about, 0);
    struct ap_node node = {.op = op, .shape = *shape};
    struct ap_err ignored = {""};

    hash = ap_hash(shape->dims, (size_t)shape->rank * sizeof *shape->dims, hash);
    hash = ap_hash(text, len, hash);
    struct ap_index_walk walk;
    for (int i = ap_index_first(&memo->index, hash, &walk); i >= 0;
         i = ap_index_next(&memo->index, &walk))
        if (is_same(&memo->entry[i], op, shape, text, len))
            return memo->entry[i].attrs;
    json_t *o = ap_fast_json_value(text, len);
    if (!json_is_object(o) || ap_attrs_from_json(arena, o, NULL, &node, &ignored)) {
        json_decref(o);
        return NULL;
    }
    json_decref(o);
    AP_ROOM(memo->entry, memo->n, memo->cap);
    ap_index_put(&memo->index, hash, memo->n);
    memo->entry[memo->n++] = (struct ap_attr_entry){
        op, *shape, ap_arena_strndup(arena, text, len), len, node.attrs};
    return node.attrs;
}

void ap_attr_memo_free(struct ap_attr_memo *memo)
{
    ap_index_free(&memo->index);
    free(memo->entry);
}
