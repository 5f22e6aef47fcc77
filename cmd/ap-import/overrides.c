/* The files of --roles and --phases. */
#include "import.h"

#include <jansson.h>
#include <string.h>

int import_read_overrides(struct ap_arena *arena, const struct import_words *of,
                          struct override **out, struct ap_err *err)
{
    json_error_t where;
    const char *key;
    json_t *value, *root = json_loadb(of->text, of->len, JSON_REJECT_DUPLICATES, &where);
    int count = 0, rc = 0;

    if (!root)
        return ap_err_set(err, "%s:%d:%d: %s", of->file, where.line, where.column,
                          where.text);
    if (!json_is_object(root))
        rc = ap_err_set(err, "%s: expected an object", of->file);
    *out = AP_NEW_N(arena, json_object_size(root) + 1, struct override);
    json_object_foreach(root, key, value)
    {
        const char *word = json_is_string(value) ? json_string_value(value) : "";
        int i = 0;
        while (i < of->n && (!of->names[i] || strcmp(of->names[i], word) != 0))
            i++;
        if (i == of->n)
            rc = ap_err_set(err, "%s: /%s: '%s' is not one of the words allowed",
                            of->file, key, word);
        (*out)[count++] = (struct override){ap_arena_strdup(arena, key), i, false};
    }
    json_decref(root);
    return rc ? -1 : count;
}
