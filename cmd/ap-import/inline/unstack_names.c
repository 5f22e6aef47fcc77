/* Names and shardings of single layers. */
#include "inline/unstack.h"

#include <ctype.h>
#include <string.h>

/* ---- names ---- */

/* True if the word says that it holds layers: "layers", "encoder_block", "h". */
static bool is_stack(const char *s, size_t len)
{
    static const char *const parts[] = {"layer", "block", "stack", "norm"};
    bool found[4] = {false};
    for (int k = 0; k < 4; k++)
        for (size_t i = 0; i + strlen(parts[k]) <= len; i++) {
            size_t n = 0;
            while (parts[k][n] && tolower((unsigned char)s[i + n]) == parts[k][n])
                n++;
            found[k] |= !parts[k][n];
        }
    return !found[3] && (found[0] || found[1] || found[2] || (len == 1 && *s == 'h'));
}

/*
 * Where the first word that says so ends in "params['decoder']['layers']['mlp']['w']" or
 * "params['decoder/layers/w']"; the end of the name if none does.
 */
static size_t stack_end(const char *name)
{
    static const char stops[] = "[]'\"./";
    for (size_t i = 0; name[i];) {
        size_t n = strcspn(name + i, stops);
        if (n && is_stack(name + i, n))
            return i + n;
        i += n;
        i += strspn(name + i, stops);
    }
    return strlen(name);
}

const char *unstack_param_name(struct ap_arena *arena, const char *name, int64_t layer)
{
    size_t at = stack_end(name), quoted = at;
    while (name[quoted] == '\'' || name[quoted] == '"' || name[quoted] == ']')
        quoted++;
    if (quoted > at || !name[at]) /* ['layers'][3] */
        return ap_arena_printf(arena, "%.*s[%lld]%s", (int)quoted, name, (long long)layer,
                               name + quoted);
    return ap_arena_printf(arena, "%.*s%c%lld%s", (int)at, name,
                           name[at] == '/' ? '/' : '.', (long long)layer, name + at);
}

/* ---- shardings ---- */

/* Text with entry d of the list at s ("[..., ...]") left out; NULL if there is none. */
static const char *without_entry(struct ap_arena *arena, const char *text, const char *s,
                                 int d, bool only_ones)
{
    int depth = 0, entry = 0;
    const char *from = s + 1, *p = s + 1;
    for (; *p; p++) {
        bool end = depth == 0 && (*p == ',' || *p == ']');
        if (end && entry == d)
            break;
        if (end) {
            if (*p == ']')
                return NULL;
            entry++;
            from = p + 1;
        }
        depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
    }
    bool one = p - from == 1 && *from == '1';
    if (!*p || (only_ones && !one))
        return NULL;
    const char *rest = p;
    if (*p == ',')
        rest = p + 1 + strspn(p + 1, d == 0 ? " " : "");
    if (*p == ']' && d > 0)
        from--; /* the comma in front */
    if (*p == ',' && d > 0)
        rest = p + 1;
    return ap_arena_printf(arena, "%.*s%s", (int)(from - text), text, rest);
}

const char *unstack_pin(struct ap_arena *arena, const char *pin, int d)
{
    static const char tiles[] = "{devices=[";
    if (!pin || strncmp(pin, "{replicated", 11) == 0 || strncmp(pin, "{maximal", 8) == 0)
        return pin;
    if (strncmp(pin, tiles, sizeof tiles - 1) == 0)
        return without_entry(arena, pin, pin + sizeof tiles - 2, d, true);
    const char *list = strstr(pin, ", [");
    return list ? without_entry(arena, pin, list + 2, d, false) : NULL;
}
