/*
 * Information in names: scopes and phases from op_name, scopes of parameters from their
 * paths. JAX writes the call stack of a primitive as
 * "jit(step)/jvp(gpt/h_0)/mlp/dot_general": transformations wrap path components, the
 * primitive comes last. If an operator stands for several, whose paths JAX joins
 * ("a/mul;b/add"), the first path counts.
 */
#include "import.h"

#include <ctype.h>
#include <string.h>

#include "base/array.h"

#define MAX_WRAPS 16

static bool is_one_of(struct hlo_span s, const char *const *list)
{
    while (*list && !hlo_span_is(s, *list))
        list++;
    return *list;
}

/* A scope being written, and the number of a layer that waits for its module's name. */
struct scope {
    struct ap_buf *out;
    struct hlo_span number;
};

static void put_word(struct scope *scope, struct hlo_span s)
{
    if (!s.len)
        return;
    if (scope->out->len)
        ap_buf_putc(scope->out, '/');
    ap_buf_put(scope->out, s.s, s.len);
}

/* "#3" is the third layer (loop.c): its number comes after the next component. */
static void put_component(struct scope *scope, struct hlo_span s)
{
    bool number = s.len > 1 && s.s[0] == '#' && isdigit((unsigned char)s.s[1]);
    if (!number)
        put_word(scope, s);
    if (s.len)
        put_word(scope, scope->number);
    if (s.len)
        scope->number =
            number ? (struct hlo_span){s.s + 1, s.len - 1} : (struct hlo_span){NULL, 0};
}

/* Length of the component at s, up to a '/' outside brackets. */
static size_t component_len(const char *s, size_t len)
{
    int depth = 0;
    for (size_t i = 0; i < len; i++) {
        if (s[i] == '(' || s[i] == '[')
            depth++;
        else if (s[i] == ')' || s[i] == ']')
            depth--;
        else if (s[i] == '/' && depth <= 0)
            return i;
    }
    return len;
}

/* Appends the normalised components of a path; its last is a primitive if so said. */
static void put_path(struct scope *out, const char *s, size_t len, bool primitive,
                     int wraps)
{
    /* transparent: only their argument counts */
    static const char *const unwrap[] = {"jvp",        "transpose", "vmap",
                                         "checkpoint", "remat",     "custom_jvp",
                                         "custom_vjp", "linearize", NULL};
    static const char *const drop_call[] = {"jit",  "pjit", "xla_call",  "core_call",
                                            "pmap", "xmap", "shard_map", NULL};
    static const char *const drop[] = {"checkpoint",
                                       "remat",
                                       "remat2",
                                       "rematted_computation",
                                       "pjit",
                                       "closed_call",
                                       "core_call",
                                       "custom_jvp_call",
                                       "custom_vjp_call",
                                       "custom_vjp_call_jaxpr",
                                       "while",
                                       "body",
                                       "cond",
                                       "shard_map",
                                       NULL};
    for (size_t i = 0; i <= len;) {
        size_t n = component_len(s + i, len - i);
        struct hlo_span part = {s + i, n}, head = {s + i, 0};
        while (head.len < n && s[i + head.len] != '(')
            head.len++;
        bool call = head.len < n && s[i + n - 1] == ')';
        bool last = i + n >= len;
        if (call && is_one_of(head, unwrap)) {
            if (wraps < MAX_WRAPS)
                put_path(out, head.s + head.len + 1, n - head.len - 2, false, wraps + 1);
        } else if (!(call && is_one_of(head, drop_call)) && !(last && primitive) &&
                   !is_one_of(part, drop)) {
            put_component(out, part);
        }
        i += n + 1;
    }
}

static const char *intern(struct import *im, const char *s, size_t len)
{
    int known = ap_names_get(&im->scopes, s, len);
    if (known >= 0)
        return im->scope_list[known];
    AP_ROOM(im->scope_list, im->n_scopes, im->cap_scopes);
    const char *copy = ap_arena_strndup(im->src->arena, s, len);
    ap_names_put(&im->scopes, copy, len, im->n_scopes);
    return im->scope_list[im->n_scopes++] = copy;
}

const char *import_scope(struct import *im, const char *op_name)
{
    im->scratch.len = 0;
    struct scope scope = {&im->scratch, {NULL, 0}};
    put_path(&scope, op_name, strcspn(op_name, ";"), true, 0);
    put_word(&scope, scope.number);
    return im->scratch.len ? intern(im, im->scratch.data, im->scratch.len) : "";
}

enum node_hint import_hint(const char *op_name)
{
    if (strstr(op_name, "transpose(") || strstr(op_name, "rematted_computation"))
        return HINT_BACKWARD;
    if (strstr(op_name, "jvp("))
        return HINT_FORWARD;
    return strchr(op_name, '/') ? HINT_BARE : HINT_NONE;
}

bool import_is_path(const char *op_name)
{
    if (!isalpha((unsigned char)*op_name) && *op_name != '_')
        return false;
    return !strchr(op_name, ' ') && !strchr(op_name, '(');
}

/* Next component of a path such as a['b/c'][0].d; false at its end. */
static bool next_key(const char **path, struct hlo_span *out)
{
    const char *p = *path;
    while (*p && strchr(".[]'\"", *p))
        p++;
    bool quoted = p > *path && (p[-1] == '\'' || p[-1] == '"');
    const char *stop = quoted ? (p[-1] == '\'' ? "'" : "\"") : ".[]";
    *out = (struct hlo_span){p, strcspn(p, stop)};
    *path = p + out->len;
    return out->len > 0;
}

const char *import_path_scope(struct import *im, const char *path)
{
    static const char *const roots[] = {"state", "params", "data", "batch", "self", NULL};
    struct hlo_span key;
    bool leading = true;
    struct scope scope = {&im->scratch, {NULL, 0}};
    im->scratch.len = 0;
    while (next_key(&path, &key)) {
        leading = leading && is_one_of(key, roots);
        if (!leading)
            put_word(&scope, key);
    }
    return im->scratch.len ? intern(im, im->scratch.data, im->scratch.len) : "";
}
