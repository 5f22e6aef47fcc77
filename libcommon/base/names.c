#include "base/names.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"

static int find(const struct ap_names *names, const char *s, size_t len)
{
    struct ap_index_walk walk;

    for (int i = ap_index_first(&names->index, ap_hash(s, len, 0), &walk); i >= 0;
         i = ap_index_next(&names->index, &walk))
        if (names->name[i].len == len && !memcmp(names->name[i].s, s, len))
            return i;
    return -1;
}

int ap_names_get(const struct ap_names *names, const char *s, size_t len)
{
    int i = find(names, s, len);
    return i < 0 ? -1 : names->name[i].value;
}

void ap_names_put(struct ap_names *names, const char *s, size_t len, int value)
{
    AP_ROOM(names->name, names->n, names->cap);
    ap_index_put(&names->index, ap_hash(s, len, 0), names->n);
    names->name[names->n++] = (struct ap_name){s, len, value};
}

void ap_names_set(struct ap_names *names, const char *s, size_t len, int value)
{
    names->name[find(names, s, len)].value = value;
}

void ap_names_clear(struct ap_names *names)
{
    ap_index_clear(&names->index);
    names->n = 0;
}

void ap_names_free(struct ap_names *names)
{
    ap_index_free(&names->index);
    free(names->name);
    *names = (struct ap_names){0};
}
