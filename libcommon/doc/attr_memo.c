/*
 * Problem: attributes take 800 bytes, and of 100 000 nodes that have some most have one
 * of a few dozen. Idea: a table from operator, shape and text to what was made of them,
 * so that what is said again is neither parsed nor kept again.
 */
#include "doc/attr_memo.h"

#include <stdlib.h>
#include <string.h>

#include "doc/attr_json.h"
#include "doc/fast_json.h"

struct ap_attr_entry {
    uint64_t hash;
    enum ap_op op;
    struct ap_shape shape;
    const char *text; /* NULL: the slot is free */
    size_t len;
    const struct ap_attrs *attrs;
};

static bool is_same(const struct ap_attr_entry *a, const struct ap_attr_entry *b)
{
    return a->hash == b->hash && a->op == b->op && a->len == b->len &&
           !memcmp(a->text, b->text, a->len) && ap_shape_equal(&a->shape, &b->shape);
}

static struct ap_attr_entry *find(struct ap_attr_memo *memo,
                                  const struct ap_attr_entry *key)
{
    size_t at = key->hash % memo->n_slots;

    while (memo->slot[at].text && !is_same(&memo->slot[at], key))
        at = (at + 1) % memo->n_slots;
    return &memo->slot[at];
}

static void grow(struct ap_attr_memo *memo)
{
    struct ap_attr_memo old = *memo;

    memo->n_slots = old.n_slots ? 2 * old.n_slots : 256;
    memo->slot = ap_xrealloc(NULL, memo->n_slots * sizeof *memo->slot);
    for (size_t i = 0; i < memo->n_slots; i++)
        memo->slot[i] = (struct ap_attr_entry){.text = NULL};
    for (size_t i = 0; i < old.n_slots; i++)
        if (old.slot[i].text)
            *find(memo, &old.slot[i]) = old.slot[i];
    free(old.slot);
}

const struct ap_attrs *ap_attr_memo_get(struct ap_attr_memo *memo, struct ap_arena *arena,
                                        enum ap_op op, const struct ap_shape *shape,
                                        const char *text, size_t len)
{
    const uint64_t about[3] = {op, shape->dtype, (uint64_t)shape->rank};
    uint64_t hash = ap_hash(about, sizeof about, 0);
    struct ap_node node = {.op = op, .shape = *shape};
    struct ap_err ignored = {""};

    if (2 * memo->n >= memo->n_slots)
        grow(memo);
    hash = ap_hash(shape->dims, (size_t)shape->rank * sizeof *shape->dims, hash);
    struct ap_attr_entry key = {ap_hash(text, len, hash), op, *shape, text, len, NULL};
    struct ap_attr_entry *entry = find(memo, &key);
    if (entry->text)
        return entry->attrs;
    json_t *o = ap_fast_json_value(text, len);
    if (!json_is_object(o) || ap_attrs_from_json(arena, o, NULL, &node, &ignored)) {
        json_decref(o);
        return NULL;
    }
    json_decref(o);
    key.text = ap_arena_strndup(arena, text, len);
    key.attrs = node.attrs;
    *entry = key;
    memo->n++;
    return entry->attrs;
}

void ap_attr_memo_free(struct ap_attr_memo *memo)
{
    free(memo->slot);
}
